//! The probes of processes that run: when each is asked, and what its answers mean (R28).
//!
//! A process with a probe is watched from the end of its readiness test until it is undone. While
//! the service is started or runs, each watched process is in one of two states:
//!
//! | state | left by | to |
//! |---|---|---|
//! | `Waits { until }` | the moment `until` | `Asked`, with [`Effect::Probe`] |
//! | `Asked { ticket, until }` | the answer with this ticket, or the moment `until` | `Waits` |
//!
//! | answer | what follows |
//! |---|---|
//! | healthy | failures in a row start at 0 again |
//! | recovering | the same; the service says that the process recovers |
//! | unhealthy, or no answer in time | one more failure; at `probe_failures` a restart |
//! | gone: it cleanly does not run | a restart |
//! | not asked | nothing: this node could not ask, which says nothing of the process |
//!
//! Invariants
//! - At most one probe of a process is under way.
//! - A process that may still run is restarted only after `probe_failures` failures in a row, all
//!   since its last start.
//! - A process that does not answer is not asked to end either: it is killed at once. A stop signal
//!   would wait for a process that stands still, up to `stop_timeout_s`.
//! - A probe is answered before the next one is asked, so a slow probe is never asked more often
//!   than it can answer.

use super::{Effect, Machine, Mode};
use crate::steps::Step;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};
use std::collections::BTreeMap;

/// How much later than its time limit an answer may come before the probe counts as lost, in
/// milliseconds. The limit itself is the runtime's to keep.
const LATE_MS: u64 = 2_000;

/// Words about a service whose agent was restarted in maintenance.
const UNWALKED: &str = "its mount and its address are looked at again when the maintenance ends, because the agent was restarted";

/// Result of one probe of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    Healthy,
    /// The process answers that it recovers from a crash or still starts.
    Recovering(String),
    Unhealthy(String),
    /// Certain: the process does not run.
    Gone(String),
    /// This node could not ask.
    NotAsked(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    Waits { until: Time },
    Asked { ticket: u64, until: Time },
}

/// See the top of this file.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    next: Next,
    /// When the last probe was asked.
    asked: Time,
    /// Failures in a row.
    failures: u32,
    /// Words for the operator while the service runs; none for a healthy process.
    words: Option<String>,
}

impl Machine {
    /// When a probe is due or given up.
    pub(super) fn next_probe(&self) -> Option<Time> {
        if !self.asks() {
            return None;
        }
        let due = |watched: &Watched| match watched.next {
            Next::Waits { until } | Next::Asked { until, .. } => until,
        };
        self.watched.values().map(due).min()
    }

    /// Whether probes are asked now. While a part of the service is undone, they wait.
    fn asks(&self) -> bool {
        matches!(self.mode, Mode::Forward { .. } | Mode::Running)
    }

    /// Watches the processes that are ready now, and no others.
    pub(super) fn watch(&mut self, now: Time) {
        let is_ready = |process: usize| {
            let at = |step: Step| self.steps.iter().position(|known| *known == step);
            let (started, tested) = (at(Step::StartProcess { process }), at(Step::CheckReady { process }));
            match self.mode {
                Mode::Running => true,
                Mode::Forward { at } => tested.is_some_and(|tested| tested < at),
                // Only what is above stops.
                Mode::Backward { floor, .. } => started.is_some_and(|started| started < floor),
                Mode::BackingOff { from } => started.is_some_and(|started| started < from),
                Mode::Stopped | Mode::Failed | Mode::Killing => false,
            }
        };
        let processes = self.spec.processes.iter().enumerate();
        let ready: Vec<(usize, u64)> = processes
            .filter(|(process, described)| described.is_probed() && is_ready(*process))
            .map(|(process, described)| (process, described.probe_interval_ms()))
            .collect();
        let mut before = std::mem::take(&mut self.watched);
        let kept = ready.into_iter().map(|(process, interval_ms)| {
            let fresh = || Watched {
                next: Next::Waits { until: now.plus_ms(interval_ms) },
                asked: now,
                failures: 0,
                words: None,
            };
            (process, before.remove(&process).unwrap_or_else(fresh))
        });
        self.watched = kept.collect::<BTreeMap<_, _>>();
    }

    /// Asks the probes that are due, and gives up those without an answer.
    pub(super) fn ask_probes(&mut self, now: Time) {
        if !self.asks() {
            return;
        }
        let mut late = Vec::new();
        let mut due = Vec::new();
        for (process, watched) in &self.watched {
            match watched.next {
                Next::Waits { until } if until <= now => due.push(*process),
                Next::Asked { ticket, until } if until <= now => late.push((*process, ticket)),
                _ => {}
            }
        }
        for process in due {
            let timeout_ms = self.spec.processes[process].probe_timeout_ms();
            let ticket = self.ticket();
            if let Some(watched) = self.watched.get_mut(&process) {
                watched.asked = now;
                watched.next = Next::Asked { ticket, until: now.plus_ms(timeout_ms + LATE_MS) };
                self.effects.push_back(Effect::Probe { ticket, process, timeout_ms });
            }
        }
        for (process, ticket) in late {
            reach!("ha: a probe has no answer in time");
            let why = "its probe did not end in time".to_owned();
            self.on_probed(ticket, process, Finding::Unhealthy(why), now);
        }
    }

    pub(super) fn on_probed(&mut self, ticket: u64, process: usize, finding: Finding, now: Time) {
        let asks = self.asks();
        let Some(watched) = self.watched.get_mut(&process) else { return };
        if !matches!(watched.next, Next::Asked { ticket: asked, .. } if asked == ticket) {
            reach!("ha: a late answer of a probe");
            return;
        }
        let described = &self.spec.processes[process];
        let due = watched.asked.plus_ms(described.probe_interval_ms());
        watched.next = Next::Waits { until: due.max(now) };
        if !asks {
            // The probe ran beside the undo of something that it may have needed.
            return;
        }
        let (limit, name) = (described.failures_max(), &described.name);
        let before = watched.words.take();
        let failures = watched.failures;
        let is_gone = matches!(finding, Finding::Gone(_));
        match finding {
            Finding::Healthy => watched.failures = 0,
            Finding::Recovering(_) if planted(Bug::RecoveryIsUnhealthy) => watched.failures += 1,
            Finding::Recovering(why) => {
                reach!("ha: a process that runs recovers");
                watched.failures = 0;
                watched.words = Some(format!("process {name} recovers: {why}"));
            }
            Finding::Unhealthy(why) => {
                watched.failures += 1;
                watched.words = Some(format!("process {name} does not answer: {why}"));
            }
            Finding::Gone(why) => {
                reach!("ha: a probe finds that a process does not run");
                watched.failures = limit.max(failures.saturating_add(1));
                watched.words = Some(format!("process {name} does not run: {why}"));
            }
            Finding::NotAsked(why) => {
                reach!("ha: a probe could not be asked");
                watched.words = Some(format!("whether process {name} answers is not known: {why}"));
            }
        }
        let failed = watched.failures > failures
            && (watched.failures >= limit || planted(Bug::OneProbeDecides))
            && !planted(Bug::ProbesOnlyTell);
        if failed && self.rests {
            reach!("ha: a process that does not answer is left alone in maintenance");
        } else if failed {
            let why = watched.words.clone().unwrap_or_default();
            let why = match watched.failures {
                _ if is_gone => why,
                1 => why,
                times => format!("{why} ({times} probes in a row failed)"),
            };
            return self.on_unanswering(process, why, now);
        }
        if watched.words != before && self.mode == Mode::Running {
            self.report();
        }
    }

    /// Restarts a process that does not answer, with all that was started after it.
    fn on_unanswering(&mut self, process: usize, why: String, now: Time) {
        let started = self.steps.iter().position(|step| *step == Step::StartProcess { process });
        let top = match self.mode {
            Mode::Forward { at } => self.top(at),
            _ => self.steps.len().saturating_sub(1),
        };
        let Some(started) = started.filter(|started| *started <= top) else { return };
        reach!("ha: a process that does not answer is restarted");
        self.passes = false;
        self.unanswering = Some(process);
        self.fail(top, started, why, now);
    }

    /// Tells what the start waits for. A process that recovers from a crash may take as long as it
    /// needs.
    pub(super) fn on_not_ready(&mut self, process: usize, why: String, recovers: bool, now: Time) {
        let Mode::Forward { at } = self.mode else { return };
        let step = Step::CheckReady { process };
        if self.steps.get(at) != Some(&step) || self.awaited.is_none() {
            return;
        }
        if recovers && !planted(Bug::RecoveryIsUnhealthy) {
            reach!("ha: a start waits for a recovery");
            self.deadline = Some(now.plus_ms(self.spec.timeout_ms(step)));
        }
        if self.not_ready.as_ref() != Some(&why) {
            self.not_ready = Some(why);
            self.report();
        }
    }

    /// Returns the findings about a service that runs: of its probes, and the addresses that it
    /// waits for. Empty if all is well.
    pub(super) fn findings(&self) -> String {
        let held = self.held_words();
        let lost = self.losses.values().map(|(why, _)| why.as_str());
        let found = self.watched.values().filter_map(|watched| watched.words.as_deref());
        let unwalked = self.unwalked.then_some(UNWALKED);
        lost.chain(found).chain(unwalked).chain(held.as_deref()).collect::<Vec<_>>().join("; ")
    }
}
