//! Maintenance: an operator works on what the service needs, and Mainstay keeps its hands off.
//!
//! | state when the maintenance begins or while it lasts | what the machine does |
//! |---|---|
//! | running | watches on; notes what is lost and says it, and mends nothing |
//! | between two attempts | makes no further attempt |
//! | a start or a stop that has begun | brings it to its end; a start that fails is undone |
//! | an operator's stop, start or restart | does it |
//! | the lease ends (R19) | kills, as ever |
//!
//! Invariants
//! - In maintenance the machine begins a step only for an operator's order that reached it.
//! - When the maintenance ends, each loss that was noted counts as if it were noticed then. A
//!   service whose agent was restarted meanwhile is walked over from its first step, as after any
//!   restart.

use super::{Machine, Mode, Then};
use crate::steps::{Step, step_words};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};

impl Machine {
    /// Whether the service is in maintenance, as far as this machine knows.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.rests
    }

    /// Begins or ends the maintenance of the service.
    pub fn rest(&mut self, rests: bool, now: Time) {
        if self.rests == rests {
            return;
        }
        self.rests = rests;
        match &self.mode {
            _ if rests => {
                reach!("ha: a maintenance begins");
            }
            Mode::BackingOff { from } => {
                reach!("ha: attempts go on after a maintenance");
                let top = from.checked_sub(1);
                match (std::mem::take(&mut self.losses).into_keys().next(), top) {
                    // The steps above a loss are made anew with it.
                    (Some(at), Some(top)) => return self.backward(top, at, Then::Retry, 0, now),
                    _ => self.deadline = Some(now.plus_ms(self.backoff_ms())),
                }
            }
            Mode::Running => self.make_up(now),
            _ => self.losses.clear(),
        }
        self.persist();
        self.report();
        self.watch(now);
    }

    /// Mends what was lost in a maintenance that has ended.
    fn make_up(&mut self, now: Time) {
        let lost = std::mem::take(&mut self.losses);
        if std::mem::take(&mut self.unwalked) {
            reach!("ha: a maintenance ends, and the steps are walked over");
            self.adopt_below = self.steps.len();
            return self.forward(0, now);
        }
        // All that stands on the lowest step is made anew with it.
        let Some((at, (why, mendable))) = lost.into_iter().next() else { return };
        reach!("ha: what was lost in a maintenance is mended");
        let top = self.steps.len().saturating_sub(1);
        self.passes = !matches!(self.steps[at], Step::StartProcess { .. });
        if mendable {
            self.fail(top, at, why, now);
        } else {
            self.fail_here(top, why, now);
        }
    }

    /// Whether losses are noted and not acted upon.
    pub(super) fn notes_losses(&self) -> bool {
        let still = matches!(self.mode, Mode::Running | Mode::BackingOff { .. });
        self.rests && still && !planted(Bug::MaintenanceMends)
    }

    pub(super) fn note_exit(&mut self, process: usize, status: &str) {
        let Some(described) = self.spec.processes.get(process) else { return };
        let why = format!("process {} ended by itself: {status}", described.name);
        self.note_at(Step::StartProcess { process }, why, true);
    }

    pub(super) fn note_loss(&mut self, step: Step, why: String, mendable: bool) {
        let why = format!("'{}' does not hold any more: {why}", step_words(&self.spec, step));
        self.note_at(step, why, mendable);
    }

    fn note_at(&mut self, step: Step, why: String, mendable: bool) {
        let begun = match self.mode {
            Mode::BackingOff { from } => from,
            _ => self.steps.len(),
        };
        let at = self.steps.iter().position(|known| *known == step).filter(|at| *at < begun);
        let Some(at) = at else { return };
        reach!("ha: a loss is noted in maintenance");
        let known = self.losses.insert(at, (why.clone(), mendable));
        if known.is_none_or(|(before, _)| before != why) {
            self.report();
        }
    }
}
