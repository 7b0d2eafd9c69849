//! The steps down: a failed or overdue step undoes itself and every earlier one, in reverse (R21).

use super::{Effect, Machine, Mode, Then};
use crate::steps::{KILL_TIMEOUT_MS, Step, step_words};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};

/// Pause before a failed undo is repeated, in milliseconds.
const UNDO_RETRY_MS: u64 = 1_000;
/// Pause before a second restart in the window, in milliseconds; doubles with every further
/// failure. The first restart comes at once, because a failure that comes alone says nothing about
/// the next attempt.
const BACKOFF_MS: u64 = 2_000;
const BACKOFF_MS_MAX: u64 = 60_000;

impl Machine {
    /// Counts a failure and undoes from `at` down to `floor`; all of it if no attempt is left
    /// (R21).
    pub(super) fn fail(&mut self, at: usize, floor: usize, why: String, now: Time) {
        self.count_failure(why, now);
        let spent = self.is_spent();
        let at = self.top(at);
        let (floor, then) = if spent { (0, Then::Fail) } else { (floor, Then::Retry) };
        self.backward(at, floor, then, 0, now);
    }

    /// Whether no attempt is left on this node.
    pub(super) fn is_spent(&self) -> bool {
        let limit = self.spec.policy.restart_limit as usize;
        let unlimited = planted(Bug::AttemptsUnlimited) || planted(Bug::TriedAgainAtOnce);
        let spent = self.failures.len() > limit && !unlimited;
        if spent {
            reach!("ha: no attempt is left");
        }
        spent
    }

    /// Undoes everything from `at` down, and makes no other attempt on this node.
    pub(super) fn fail_here(&mut self, at: usize, why: String, now: Time) {
        self.count_failure(why, now);
        self.backward(self.top(at), 0, Then::Fail, 0, now);
    }

    pub(super) fn count_failure(&mut self, why: String, now: Time) {
        let window_ms = self.spec.policy.window_s.saturating_mul(1000);
        self.failures.retain(|failure| now.ms_since(*failure) < window_ms);
        self.failures.push(now);
        self.last_failure.clone_from(&why);
        self.reason = why;
    }

    /// The highest step that may have had an effect while `steps[at]` is being run.
    pub(super) fn top(&self, at: usize) -> usize {
        at.max(self.adopt_below).min(self.steps.len().saturating_sub(1))
    }

    /// Undoes `steps[at]`; `attempt` counts failed attempts of it.
    pub(super) fn backward(&mut self, mut at: usize, floor: usize, then: Then, attempt: u32, now: Time) {
        self.losses.retain(|lost, _| *lost < floor);
        self.adopt_below = 0;
        self.address_held = None;
        self.awaited = None;
        self.deadline = None;
        self.drop_held();
        at = self.top_with_kept(at, floor, &then);
        loop {
            let step = self.steps[at];
            // A probe leaves nothing behind, and a readiness test ends with the process that it
            // tests.
            let nothing = matches!(step, Step::CheckReady { .. } | Step::ProbeAddress);
            if !nothing && !self.keeps(at, floor, &then) {
                self.mode = Mode::Backward { at, floor, then, attempt };
                self.persist();
                self.report();
                let ticket = self.ticket();
                let unanswering = self.unanswering.map(|process| Step::StartProcess { process });
                let force = attempt > 0 || unanswering == Some(step);
                let timeout_ms = if force { KILL_TIMEOUT_MS } else { self.spec.undo_timeout_ms(step) };
                self.effects.push_back(Effect::Undo { ticket, step, force, timeout_ms });
                self.awaited = Some(ticket);
                self.deadline = Some(now.plus_ms(timeout_ms));
                return;
            }
            if at <= floor {
                self.all_undone(floor, then, now);
                return;
            }
            at -= 1;
        }
    }

    pub(super) fn undone(&mut self, at: usize, floor: usize, then: Then, now: Time) {
        if at <= floor || planted(Bug::UndoneHalfway) {
            self.all_undone(floor, then, now);
        } else {
            self.backward(at - 1, floor, then, 0, now);
        }
    }

    pub(super) fn undo_failed(&mut self, why: &str, now: Time) {
        let Mode::Backward { at, attempt, .. } = &mut self.mode else { return };
        reach!("ha: an undo failed");
        *attempt = attempt.saturating_add(1);
        let at = *at;
        self.reason = format!(
            "undoing '{}' failed, trying again with force: {why}",
            step_words(&self.spec, self.steps[at])
        );
        self.awaited = None;
        self.deadline = Some(now.plus_ms(UNDO_RETRY_MS));
        self.report();
    }

    pub(super) fn all_undone(&mut self, floor: usize, then: Then, now: Time) {
        match then {
            Then::Stop => {
                reach!("ha: stopped");
                self.settle(Mode::Stopped);
                self.start_pending(now);
            }
            Then::Fail => {
                reach!("ha: failed for good");
                self.settle(Mode::Failed);
                self.start_pending(now);
            }
            Then::Restart => self.go_on_from(floor, now),
            Then::Retry => {
                reach!("ha: backing off");
                if floor > 0 {
                    reach!("ha: only a part is undone");
                }
                self.mode = Mode::BackingOff { from: floor };
                self.awaited = None;
                let pause_ms = self.backoff_ms();
                self.deadline = Some(now.plus_ms(pause_ms));
                self.persist();
                self.report();
                // In maintenance not even the first attempt is made: it waits for the end of that.
                let waits = self.rests && !planted(Bug::MaintenanceMends);
                if pause_ms == 0 && !waits {
                    reach!("ha: a first restart comes at once");
                    self.deadline = None;
                    self.go_on_from(floor, now);
                }
            }
        }
    }

    /// Pause before the next attempt, in milliseconds.
    pub(super) fn backoff_ms(&self) -> u64 {
        if planted(Bug::TriedAgainAtOnce) {
            return 0;
        }
        let Some(doublings) = self.failures.len().checked_sub(2) else { return 0 };
        let doublings = u32::try_from(doublings).unwrap_or(u32::MAX).min(16);
        (BACKOFF_MS << doublings).min(BACKOFF_MS_MAX)
    }
}
