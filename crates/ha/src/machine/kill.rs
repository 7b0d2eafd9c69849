//! The way out when the lease ends (R19): everything is ordered away at once, and again until it is
//! gone.

use super::{Effect, Machine, Mode, Probe};
use crate::steps::{ADDRESS_TIMEOUT_MS, KILL_TIMEOUT_MS, Step};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};

/// Pause before a failed action of the kill path is repeated, in milliseconds.
const KILL_RETRY_MS: u64 = 200;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum KillAction {
    RemoveAddress,
    KillProcesses,
    Detach,
}

impl Machine {
    pub(super) fn on_lease_lost(&mut self, why: &str, now: Time) {
        self.pending_start = None;
        let nothing_left = matches!(self.mode, Mode::Stopped | Mode::Failed);
        if nothing_left || self.mode == Mode::Killing {
            return;
        }
        reach!("ha: the lease is lost");
        self.reason = why.into();
        self.kill(now);
    }

    /// Silences everything at once, and does not persist first: the write could be slower than the
    /// lease. If the agent restarts in between, it kills again while it has no lease, or if the
    /// guard has acted. Otherwise no other node can have started the service, and the agent starts
    /// again what is gone.
    pub(super) fn kill(&mut self, now: Time) {
        self.mode = Mode::Killing;
        self.address_held = None;
        self.kept = false;
        if !planted(Bug::SpentEpochRuns) {
            self.spent_epoch = Some(self.epoch);
        }
        self.awaited = None;
        self.probe = Probe::NotAsked;
        self.kill_awaited.clear();
        self.kill_failed.clear();
        self.drop_held();
        // The state persisted below says more, and the disk may be slower than the lease.
        self.effects.retain(|effect| !matches!(effect, Effect::Persist(_)));
        let mut actions = Vec::new();
        if !self.spec.vips.is_empty() {
            actions.push(KillAction::RemoveAddress);
        }
        actions.push(KillAction::KillProcesses);
        if self.spec.mount.is_some() {
            actions.push(KillAction::Detach);
        }
        for action in actions {
            self.kill_action(action);
        }
        self.deadline = Some(now.plus_ms(KILL_TIMEOUT_MS));
        self.persist();
        self.report();
    }

    /// Drops the steps that were about to begin, because they must not begin any more (R10). A
    /// process that was stopped for long, or has just started again, may have decided on them
    /// before it heard of the lease.
    pub(super) fn drop_held(&mut self) {
        let probe = self.probe;
        let mut probe_held = false;
        self.effects.retain(|effect| {
            let Effect::Run { ticket, .. } = effect else { return true };
            probe_held |= probe == (Probe::Running { ticket: *ticket });
            false
        });
        if probe_held {
            self.probe = Probe::NotAsked;
        }
    }

    pub(super) fn kill_action(&mut self, action: KillAction) {
        let ticket = self.ticket();
        self.kill_awaited.insert(ticket, action);
        let effect = match action {
            KillAction::RemoveAddress => {
                Effect::Undo { ticket, step: Step::AddAddress, force: true, timeout_ms: ADDRESS_TIMEOUT_MS }
            }
            KillAction::KillProcesses => Effect::Kill { ticket },
            KillAction::Detach => {
                Effect::Undo { ticket, step: Step::Mount, force: true, timeout_ms: KILL_TIMEOUT_MS }
            }
        };
        self.effects.push_back(effect);
    }

    pub(super) fn on_kill_done(&mut self, ticket: u64, result: Result<(), String>, now: Time) {
        let Some(action) = self.kill_awaited.remove(&ticket) else { return };
        if let Err(why) = result
            && !planted(Bug::FailedKillCounts)
        {
            reach!("ha: a part of a kill failed");
            self.kill_failed.push(action);
            let cause = self.reason.split("; ").next().unwrap_or_default();
            self.reason = format!("{cause}; {}: {why}", kill_action_words(action));
            self.deadline = Some(now.plus_ms(KILL_RETRY_MS));
            self.report();
        }
        if self.kill_awaited.is_empty() && self.kill_failed.is_empty() {
            reach!("ha: killed");
            self.settle(Mode::Stopped);
            self.start_pending(now);
        }
    }

    pub(super) fn retry_kill(&mut self, now: Time) {
        // An action without an answer in time is repeated as well: its answer may be lost.
        reach!("ha: a kill is repeated");
        let mut actions = std::mem::take(&mut self.kill_failed);
        actions.extend(std::mem::take(&mut self.kill_awaited).into_values());
        actions.sort_unstable();
        if planted(Bug::AddressOrderedOnce) {
            actions.retain(|action| *action != KillAction::RemoveAddress);
        }
        for action in actions {
            self.kill_action(action);
        }
        self.deadline = Some(now.plus_ms(KILL_TIMEOUT_MS));
    }
}

fn kill_action_words(action: KillAction) -> &'static str {
    match action {
        KillAction::RemoveAddress => "the address could not be removed",
        KillAction::KillProcesses => "the processes could not be killed",
        KillAction::Detach => "the file system could not be detached",
    }
}
