//! A restart in place because an operator asks for one, or because the arguments of a process do
//! not hold any more. The service stays on its node, its mount stays, and no failure is counted.

use super::{Machine, Mode, Then};
use crate::steps::Step;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Time, reach};

/// Reason of the stop, in words for the operator.
const RESTARTED: &str = "an operator restarts it";

impl Machine {
    /// Number of the last restart that this machine has begun; 0 before the first.
    #[must_use]
    pub fn restarted(&self) -> u64 {
        self.restarted
    }

    /// Takes down `process`, or all processes, and what was started after it, and starts all that
    /// again. Only what runs is restarted: a service that is being started or stopped takes no
    /// notice. A restart of the same number is begun once.
    pub(super) fn on_restart(&mut self, number: u64, process: Option<usize>, now: Time) {
        if self.mode != Mode::Running || number <= self.restarted {
            return;
        }
        reach!("ha: an operator restarts it");
        self.restarted = number;
        self.reason = RESTARTED.into();
        let floor = self.first_of(process.unwrap_or(0));
        self.backward(self.steps.len().saturating_sub(1), floor, Then::Restart, 0, now);
    }

    /// Starts a process again whose arguments do not hold any more, and all that was started after
    /// it. What is being started or stopped takes no notice, and neither does a service in
    /// maintenance: the runtime tells it again.
    pub(super) fn on_outdated(&mut self, process: usize, why: &str, now: Time) {
        let started = self.steps.iter().position(|step| *step == Step::StartProcess { process });
        let rests = self.rests && !planted(Bug::OutdatedInMaintenance);
        let Some(floor) = started.filter(|_| self.mode == Mode::Running && !rests) else { return };
        if planted(Bug::OutdatedGoesOn) {
            return;
        }
        reach!("ha: a process is started again because its arguments do not hold any more");
        self.reason = format!("it is started again {why}");
        self.backward(self.steps.len().saturating_sub(1), floor, Then::Restart, 0, now);
    }

    /// The first step of a process. Without processes, the first step of all.
    fn first_of(&self, process: usize) -> usize {
        let of_it =
            |step: &Step| *step == Step::Prepare { process } || *step == Step::StartProcess { process };
        self.steps.iter().position(of_it).unwrap_or(0)
    }

    /// A process below the ones that are restarted ended by itself meanwhile. That is a failure, as
    /// it is at any other time.
    pub(super) fn fail_in_restart(&mut self, started: usize, why: String, now: Time) {
        reach!("ha: a process ended by itself while an operator restarts another one");
        self.passes = false;
        self.count_failure(why, now);
        let spent = self.is_spent();
        if let Mode::Backward { floor, then, .. } = &mut self.mode {
            (*floor, *then) = if spent { (0, Then::Fail) } else { (started, Then::Retry) };
        }
        self.persist();
        self.report();
    }

    /// Goes forward from `steps[from]`, after a pause or a restart.
    pub(super) fn go_on_from(&mut self, from: usize, now: Time) {
        // R22: the address may have been off meanwhile. The machine asks for it beside the steps,
        // as in a start from the first one. An address that was kept is found on this node.
        self.probe = super::Probe::NotAsked;
        self.mode = Mode::Forward { at: from };
        if from > 0 && !self.spec.vips.is_empty() {
            self.persist();
            self.ask_probe();
        }
        self.forward(from, now);
    }
}
