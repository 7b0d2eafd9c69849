//! The history of this node's work: a record each minute, for reports.
//!
//! Guarantees
//! - The engine is asked once a minute, as a scrape of the metrics asks it. No other part of the
//!   agent waits for the history.
//! - Files that cannot be written cost the history and nothing else. The agent says so once, and
//!   again after it has worked in between.
//! - The files take at most [`files::BYTES_MAX`], and only files are removed that have the names of
//!   the history's own (R18, R27).
//!
//! A minute in which the engine did not answer is part of the next record, unless more than
//! [`SPAN_MAX_MS`] are missing. After a start of the agent, the first reading has none before it,
//! so the history begins with the second one.
//!
//! Reading order: `mainstay_history` (records), `counters.rs`, `files.rs`, `baselines.rs` (records
//! of named intervals that are kept for longer), `pages.rs`.

pub mod baselines;
mod counters;
pub mod files;
mod pages;

use crate::agent::Agent;
use crate::clock::boot_now;
use crate::metrics;
use crate::threads::spawn;
use files::Writer;
use mainstay_history::Reading;
pub use pages::{LoadQuestion, answer, answer_baseline};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Longest time that one record covers.
pub const SPAN_MAX_MS: u64 = 5 * 60_000;
/// Milliseconds from one reading to the next, in tests.
pub const TEST_MINUTE: &str = "MAINSTAY_TEST_MINUTE_MS";

fn minute() -> Duration {
    #[cfg(debug_assertions)]
    if let Some(ms) = std::env::var(TEST_MINUTE).ok().and_then(|text| text.parse().ok()) {
        return Duration::from_millis(ms);
    }
    Duration::from_secs(60)
}

/// Directory of the history.
#[must_use]
pub fn directory(state_dir: &Path) -> PathBuf {
    state_dir.join("history")
}

/// Keeps the history on a thread, as long as the agent is in use.
pub fn keep(agent: &Arc<Agent>) {
    let this = Arc::downgrade(agent);
    let mut recorder = Recorder::new(Writer::new(directory(agent.state_dir())));
    spawn("agent-history", move || {
        while let Some(agent) = this.upgrade() {
            let seen = metrics::gather(&agent);
            if let Some(now) = counters::reading(&seen, agent.engine.pid(), boot_now()) {
                recorder.take(now);
            }
            drop(agent);
            thread::sleep(minute());
        }
    });
}

/// Makes records of readings.
struct Recorder {
    writer: Writer,
    last: Option<Reading>,
    /// The last record could not be written.
    fails: bool,
}

impl Recorder {
    fn new(writer: Writer) -> Self {
        Self { writer, last: None, fails: false }
    }

    fn take(&mut self, now: Reading) {
        let minute = self.last.as_ref().map(|before| now.since(before));
        self.last = Some(now);
        let Some(minute) = minute.filter(|minute| (1..=SPAN_MAX_MS).contains(&minute.span_ms)) else {
            return;
        };
        match self.writer.append(&minute) {
            Ok(()) => self.fails = false,
            Err(_) if self.fails => {}
            Err(error) => {
                self.fails = true;
                tracing::warn!(
                    code = "history-files",
                    directory = %self.writer.files.directory().display(),
                    %error,
                    "the history of this node's work cannot be written; the agent goes on without it and tries again each minute"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
