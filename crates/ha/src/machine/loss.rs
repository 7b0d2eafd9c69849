//! Losses: a step's result that does not hold any more, and processes that end by themselves (R28).

use super::{Machine, Mode, Then};
use crate::steps::{Step, step_words};
use mainstay_types::{Time, reach};

impl Machine {
    /// The index of the highest step that may have had an effect, and the index of `step`. `None`
    /// if `step` is being undone, or was not begun.
    pub(super) fn begun(&self, step: Step) -> Option<(usize, usize)> {
        let top = match self.mode {
            Mode::Forward { at } => self.top(at),
            Mode::Running => self.steps.len().saturating_sub(1),
            _ => return None,
        };
        let at = self.steps.iter().position(|known| *known == step)?;
        (at <= top).then_some((top, at))
    }

    /// R28: takes down the steps that stand on `step`, in order, and makes them anew from there.
    pub(super) fn on_lost(&mut self, step: Step, why: &str, mendable: bool, now: Time) {
        let at_step = self.steps.iter().position(|known| *known == step);
        let words = step_words(&self.spec, step);
        let why = match self.mode {
            Mode::Forward { at } if at_step == Some(at) => format!("{words} failed: {why}"),
            _ => format!("'{words}' does not hold any more: {why}"),
        };
        if let (Mode::BackingOff { from }, Some(at)) = (&self.mode, at_step)
            && let Some(top) = from.checked_sub(1).filter(|top| *top >= at)
        {
            // The failure is counted already, with a step that stood on it.
            self.passes = true;
            self.last_failure.clone_from(&why);
            self.reason = why;
            let (floor, then) = if mendable { (at, Then::Retry) } else { (0, Then::Fail) };
            return self.backward(top, floor, then, 0, now);
        }
        let Some((top, at)) = self.begun(step) else { return };
        // No program of the service is at fault.
        self.passes = true;
        if mendable {
            reach!("ha: a step's result is lost");
            self.fail(top, at, why, now);
        } else {
            self.fail_here(top, why, now);
        }
    }

    pub(super) fn on_process_exited(&mut self, process: usize, status: &str, now: Time) {
        let started = self.steps.iter().position(|step| *step == Step::StartProcess { process });
        let Some(started) = started else { return };
        let name = &self.spec.processes[process].name;
        let why = format!("process {name} ended by itself: {status}");
        match self.mode {
            Mode::Stopped | Mode::Failed | Mode::Killing => {}
            Mode::Forward { at } if started <= self.top(at) => {
                reach!("ha: a process ended by itself while others start");
                self.passes = false;
                self.fail(self.top(at), started, why, now);
            }
            Mode::Forward { .. } => {}
            Mode::Running => {
                reach!("ha: a process ended by itself");
                self.passes = false;
                self.fail(self.steps.len().saturating_sub(1), started, why, now);
            }
            // The machine has made no attempt since the failure that is being undone. So this is a
            // part of that failure.
            Mode::Backward { ref mut floor, then: Then::Retry, .. } if started < *floor => {
                reach!("ha: a process ended by itself while another one is undone");
                *floor = started;
                self.passes = false;
                self.reason = format!("{}; {why}", self.reason);
                self.last_failure.clone_from(&self.reason);
                self.persist();
                self.report();
            }
            Mode::Backward { floor, then: Then::Restart, .. } if started < floor => {
                self.fail_in_restart(started, why, now);
            }
            // A process that is being undone is to end, and one that was undone has ended.
            Mode::Backward { .. } => {}
            Mode::BackingOff { from } if started < from => {
                reach!("ha: a process ended by itself while another one waits");
                self.passes = false;
                self.reason = format!("{}; {why}", self.reason);
                self.last_failure.clone_from(&self.reason);
                self.backward(from - 1, started, Then::Retry, 0, now);
            }
            Mode::BackingOff { .. } => {}
        }
    }
}
