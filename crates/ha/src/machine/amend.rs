//! A change of the specification that needs no restart: it counts from the next decision on.

use super::{Effect, Machine, Mode};
use crate::spec::ServiceSpec;
use crate::steps::{Step, steps_of};
use mainstay_types::{Time, reach};

impl Machine {
    /// Goes on under `spec`, which needs no restart ([`ServiceSpec::needs_restart`]). A step that
    /// is under way keeps the time limit with which it began.
    pub fn amend(&mut self, spec: ServiceSpec, now: Time) {
        reach!("ha: the specification changes in place");
        let steps = steps_of(&spec, self.hooked);
        // Only readiness tests come and go. A machine at a test that goes waits for the process of
        // that test.
        let moved = |at: usize| match self.steps.get(at) {
            None => steps.len(),
            Some(step) => {
                let same = steps.iter().position(|other| other == step);
                let started = |process| {
                    steps.iter().position(|other| *other == Step::StartProcess { process }).unwrap_or(0)
                };
                same.unwrap_or_else(|| match step {
                    Step::CheckReady { process } => started(*process),
                    _ => 0,
                })
            }
        };
        self.adopt_below = moved(self.adopt_below);
        self.mode = match self.mode.clone() {
            Mode::Forward { at } => Mode::Forward { at: moved(at) },
            Mode::Backward { at, floor, then, attempt } => {
                Mode::Backward { at: moved(at), floor: moved(floor), then, attempt }
            }
            Mode::BackingOff { from } => Mode::BackingOff { from: moved(from) },
            mode @ (Mode::Stopped | Mode::Failed | Mode::Running | Mode::Killing) => mode,
        };
        self.steps = steps;
        self.spec = spec;
        // The states that were to be persisted are about the earlier steps.
        self.effects.retain(|effect| !matches!(effect, Effect::Persist(_)));
        self.persist();
        if let Some(noted) = self.effects.pop_back() {
            self.effects.push_front(noted);
        }
        self.watch(now);
    }
}
