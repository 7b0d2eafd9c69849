//! The state that a restarted agent goes on from, and the words about it for operators.

use super::{Effect, Machine, Mode, Probe, Report, Saved};
use crate::steps::{Step, step_words};

impl Machine {
    pub(super) fn persist(&mut self) {
        let saved = Saved {
            mode: match self.mode {
                // A second restart must still know how far the first process had come.
                Mode::Forward { at } => Mode::Forward { at: at.max(self.adopt_below) },
                ref mode => mode.clone(),
            },
            epoch: self.epoch,
            round: self.round,
            spent_epoch: self.spent_epoch,
            began: self.began,
            passes: self.passes,
            failures: self.failures.clone(),
            reason: self.reason.clone(),
            last_failure: self.last_failure.clone(),
            restarted: self.restarted,
            rests: self.rests,
            hooked: self.hooked,
            kept: self.kept,
            // Answers to work that is still under way must not match tickets given after a restart.
            next_ticket: self.next_ticket + 64,
        };
        self.effects.push_back(Effect::Persist(saved));
    }

    pub(super) fn report(&mut self) {
        let detail = match &self.mode {
            Mode::Forward { at }
                if self.is_last(*at) && self.awaited.is_none() && self.address_held.is_some() =>
            {
                self.held_words().unwrap_or_default()
            }
            Mode::Forward { at } => match self.steps.get(*at) {
                Some(Step::AddAddress) if self.probe != Probe::Free => "probe the address".into(),
                Some(step) => {
                    let words = step_words(&self.spec, *step);
                    self.not_ready.as_ref().map_or(words.clone(), |why| format!("{words}: {why}"))
                }
                None => String::new(),
            },
            Mode::Running => self.findings(),
            Mode::Backward { at, attempt: 0, .. } => {
                let undoing = format!("undo '{}'", step_words(&self.spec, self.steps[*at]));
                if self.reason.is_empty() { undoing } else { format!("{undoing}: {}", self.reason) }
            }
            Mode::BackingOff { .. } if self.rests => {
                format!("{}; the next attempt waits for the end of the maintenance", self.reason)
            }
            _ => self.reason.clone(),
        };
        let report = Report {
            phase: self.phase(),
            epoch: self.epoch,
            round: self.round,
            detail,
            failures: u32::try_from(self.failures.len()).unwrap_or(u32::MAX),
            passes: self.passes,
            last_failure: self.last_failure.clone(),
        };
        self.effects.push_back(Effect::Report(report));
    }
}
