//! Shared by the end-to-end tests, the demo and the benchmarks: a lab driven through the real
//! binary, a MariaDB on top of it, the load and the proofs. Everything here works from outside: it
//! knows the command line and the API, not the crates behind them.

pub mod bench;
pub mod events;
pub mod idle;
pub mod interrupt;
pub mod lab;
pub mod ledger;
pub mod local;
pub mod mariadb;
pub mod measured;
pub mod metrics;
pub mod plain;
pub mod proof;
pub mod report;
pub mod sysbench;
pub mod timeline;

pub use mainstay_bench::command;

use std::time::{Duration, Instant, SystemTime};

/// Microseconds of wall clock since 1970. All processes of a lab run on one machine, so their
/// clocks are one clock; nothing but reports depends on it.
#[must_use]
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Cause of an error of [`wait_for`]: a time limit of a test that a slow machine may miss. Found
/// with `error.downcast_ref::<NotInTime>()`.
#[derive(Debug)]
pub struct NotInTime {
    what: String,
    limit: Duration,
}

impl std::fmt::Display for NotInTime {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: not within {:?}", self.what, self.limit)
    }
}

/// Asks `ready` every 50 ms until it gives a value. After `limit` fails with its last error.
///
/// # Errors
/// When the limit is reached: [`NotInTime`].
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match ready() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() >= limit => {
                return Err(error.context(NotInTime { what: what.to_string(), limit }));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}
