//! The verbs that talk to an agent. They translate between the command line and the API and decide
//! nothing themselves; advice comes from the API.

mod attached;
pub mod audit;
mod authority;
pub mod check;
pub mod cluster;
pub mod events;
pub mod history;
mod identities;
pub mod inspect;
#[cfg(test)]
mod lists;
pub mod metrics;
mod modes;
pub mod nodes;
pub mod operation;
mod pace;
pub mod placement;
pub mod probe;
pub mod report;
pub mod resource;
mod scrub;
pub mod service;
mod settings;
pub mod snapshot;
pub mod status;
pub mod support;
pub mod token;
pub mod top;
mod upgrade;
mod watch;

use crate::connect::checked_name;
use crate::failure::{Code, Failure, Outcome};
use crate::interrupt::GoesOn;
use crate::output::{self, Progress};
use std::time::{Duration, Instant};

/// How often the cluster is asked while a command follows long work.
const POLL: Duration = Duration::from_millis(250);

/// Asks again and again until `step` says that the work is done, or the time is over. If the user
/// interrupts the command meanwhile, it says that the work goes on.
fn follow<T>(what: &str, limit_s: u64, mut step: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let deadline = Instant::now() + Duration::from_secs(limit_s);
    let _told =
        GoesOn::unless_told(format!("{what} goes on in the cluster. To look at it, run `mainstay status`."));
    let mut progress = None;
    loop {
        if let Some(done) = step()? {
            return Ok(done);
        }
        // Only where the step shows nothing itself.
        if progress.is_none() && !output::is_shown() {
            progress = Some(Progress::new());
        }
        if let Some(progress) = &mut progress {
            progress.show(what);
        }
        if Instant::now() >= deadline {
            let remedy = "The work goes on; `mainstay status` says what it waits for.";
            return Err(Failure::new(
                Code::WaitOver,
                format!("{what} is not done after {limit_s} s"),
                remedy,
            ));
        }
        std::thread::sleep(POLL);
    }
}

/// Advice as an indented list under its subject.
fn advice_lines(advice: &[String]) -> String {
    advice.iter().map(|line| format!("\n  → {}", line.replace('\n', "\n    "))).collect()
}
