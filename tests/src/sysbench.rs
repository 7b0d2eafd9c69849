//! Running sysbench in the lab's client network, and reading what it prints.

use crate::lab::{CLIENT, Lab};
use crate::mariadb;
use anyhow::{Context, Result};
use mainstay_bench::sysbench::{Load, Server, Workload, parse_summary};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

pub use mainstay_bench::sysbench::Summary;

/// One line of the report that sysbench prints every second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the run began.
    pub at_s: u64,
    pub tps: f64,
    pub p95_ms: f64,
    pub errors: f64,
    pub reconnects: f64,
}

/// The tests' user of the server at `address:port`.
///
/// # Errors
/// When the address has no port.
pub fn server(address: &str) -> Result<Server> {
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let (user, password) = (mariadb::USER.into(), mariadb::PASSWORD.into());
    Ok(Server::Tcp { host: host.into(), port: port.into(), user, password })
}

/// Runs a program in the client's place of the lab's network, and returns its standard output.
///
/// # Errors
/// When it fails.
pub fn client(lab: &Lab, words: &[String]) -> Result<String> {
    lab.exec(CLIENT, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Makes and fills the tables.
///
/// # Errors
/// When sysbench fails.
pub fn prepare(lab: &Lab, address: &str) -> Result<()> {
    // sysbench ends with 0 even when it could not connect. So another client tries the connection
    // first.
    sql(lab, address, "SELECT 1")?;
    client(lab, &server(address)?.prepare()).map(drop)
}

/// Runs statements on the server at this address and returns their rows.
///
/// # Errors
/// When it refuses or does not answer.
pub fn sql(lab: &Lab, address: &str, statements: &str) -> Result<String> {
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let (host, port) = (format!("--host={host}"), format!("--port={port}"));
    let (user, password) = (format!("--user={}", mariadb::USER), format!("--password={}", mariadb::PASSWORD));
    let login = [&*host, &port, &user, &password];
    let options = ["mariadb", "--no-defaults", "--local-infile=1", "--batch", "--skip-column-names"];
    lab.exec(CLIENT, &[&options[..], &login, &["--execute", statements]].concat())
}

/// Runs a load for `seconds` and returns its summary.
///
/// # Errors
/// When sysbench fails or prints something unknown.
pub fn once(lab: &Lab, address: &str, load: Load, seconds: u64) -> Result<Summary> {
    Ok(parse_summary(&client(lab, &server(address)?.run(load, seconds))?)?)
}

/// Runs oltp_read_write for `warmup_s` seconds that do not count, then for `seconds` that do.
///
/// # Errors
/// When sysbench fails or prints something unknown.
pub fn run(lab: &Lab, address: &str, threads: u32, warmup_s: u64, seconds: u64) -> Result<Summary> {
    let load = Load { workload: Workload::ReadWrite, threads };
    once(lab, address, load, warmup_s)?;
    once(lab, address, load, seconds)
}

/// A run in the background that outlives its server: it reconnects and goes on.
pub struct Background {
    child: Child,
    log: PathBuf,
    seconds: u64,
}

impl Background {
    /// # Errors
    /// When sysbench cannot be started.
    pub fn start(lab: &Lab, address: &str, threads: u32, seconds: u64) -> Result<Self> {
        let more = [
            format!("--threads={threads}"),
            format!("--time={seconds}"),
            "--report-interval=1".into(),
            "--mysql-ignore-errors=all".into(),
            // A statement prepared on the lost server is unknown to the new one for good.
            "--db-ps-mode=disable".into(),
        ];
        let words = server(address)?.command(Workload::ReadWrite, &more, "run");
        // Line by line, so that the report can be read while sysbench writes it.
        let words = [&["stdbuf", "-oL"][..], &words.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let child = lab.spawn(CLIENT, &words, "sysbench.log")?;
        Ok(Self { child, log: lab.dir().join("sysbench.log"), seconds })
    }

    /// The lines so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn seconds(&self) -> Result<Vec<Second>> {
        Ok(parse_seconds(&read(&self.log)?))
    }

    /// Waits for the end and returns all lines. A thread that hangs on a dead connection may keep
    /// sysbench from printing its summary, so this does not need one.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn end(mut self) -> Result<Vec<Second>> {
        let limit = Duration::from_secs(self.seconds + 10);
        crate::command::wait(&mut self.child, limit)?;
        self.seconds()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Does nothing when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Reads the lines `[ 3s ] thds: 10 tps: 812.97 qps: … lat (ms,95%): 17.63 err/s: 0.00 reconn/s:
/// 0.00`.
#[must_use]
pub fn parse_seconds(text: &str) -> Vec<Second> {
    let after = |line: &str, label: &str| -> Option<f64> {
        let rest = line.split_once(label)?.1.trim_start();
        rest.split_whitespace().next()?.parse().ok()
    };
    let second = |line: &str| {
        let at = line.trim_start().strip_prefix('[')?.split_once("s ]")?.0.trim().parse().ok()?;
        Some(Second {
            at_s: at,
            tps: after(line, " tps:")?,
            p95_ms: after(line, "95%):")?,
            errors: after(line, "err/s:")?,
            reconnects: after(line, "reconn/s:")?,
        })
    };
    text.lines().filter_map(second).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

[ 1s ] thds: 10 tps: 812.97 qps: 16412.16 (r/w/o: 11506.78/3272.47/1632.91) lat (ms,95%): 17.63 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 10 tps: 0.00 qps: 0.00 (r/w/o: 0.00/0.00/0.00) lat (ms,95%): 0.00 err/s: 9.98 reconn/s: 9.98
";

    #[test]
    fn the_lines_of_every_second_are_read() {
        let seconds = parse_seconds(OUTPUT);
        assert_eq!(seconds.len(), 2);
        assert_eq!(seconds[0], Second { at_s: 1, tps: 812.97, p95_ms: 17.63, errors: 0.0, reconnects: 0.0 });
        assert_eq!((seconds[1].at_s, seconds[1].tps, seconds[1].errors), (2, 0.0, 9.98));
    }
}
