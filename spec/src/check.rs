//! Runs of the checker.

use crate::model::{Bounds, Spec, Step};
use crate::rules::Mutation;
use crate::state::State;
use stateright::report::{ReportData, ReportDiscovery, Reporter};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

/// A way into a violation: every step with the state after it.
#[derive(Clone, Debug)]
pub struct Counterexample {
    pub property: &'static str,
    pub initial: State,
    pub steps: Vec<(Step, State)>,
}

/// Result of a run of the checker.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub generated: usize,
    pub distinct: usize,
    /// States on the longest of the shortest ways to a state.
    pub depth: usize,
    pub found: Option<Counterexample>,
}

/// Explores everything within the bounds, or up to about `states_max` generated states, and stops
/// at the first violation. Writes the checker's progress to `log`.
pub fn run(spec: Spec, states_max: Option<usize>, log: Option<&mut (dyn Write + Send)>) -> Outcome {
    explore(spec, states_max, None, log)
}

fn explore(
    spec: Spec,
    states_max: Option<usize>,
    depth_max: Option<usize>,
    log: Option<&mut (dyn Write + Send)>,
) -> Outcome {
    // With one thread the search is breadth first; with more only about.
    let mut builder = spec.checker().threads(1).finish_when(HasDiscoveries::Any);
    if let Some(max) = states_max {
        builder = builder.target_state_count(max);
    }
    if let Some(max) = depth_max {
        builder = builder.target_max_depth(max);
    }
    let checker = builder.spawn_bfs();
    let checker = match log {
        Some(log) => checker.join_and_report(&mut Progress { log, next: Duration::ZERO }),
        None => checker.join(),
    };
    let found = checker
        .discoveries()
        .into_iter()
        .map(|(property, path)| {
            let mut states = path.into_vec();
            let mut steps = Vec::new();
            // A path is (state, action after it) with no action after the last.
            for at in 1..states.len() {
                if let (state, Some(step)) = (states[at].0, states[at - 1].1.take()) {
                    steps.push((step, state));
                }
            }
            Counterexample { property, initial: states[0].0, steps }
        })
        .min_by_key(|found| (found.steps.len(), found.property));
    Outcome {
        generated: checker.state_count(),
        distinct: checker.unique_state_count(),
        depth: checker.max_depth(),
        found,
    }
}

/// Returns the shortest way in which a mutation loses something, if there is one within the bounds.
/// The checker looks for violations in batches, and remembers the last one of a batch. So the
/// search is repeated below the depth of the last find, until it finds nothing.
#[must_use]
pub fn shortest(bounds: Bounds, mutation: Mutation) -> Option<Counterexample> {
    let mut best: Option<Counterexample> = None;
    loop {
        let spec = Spec::new(bounds, Some(mutation), false);
        // The checker counts states, one more than the steps of a way, and skips states at the
        // limit.
        let depth_max = best.as_ref().map(|best| best.steps.len() + 1);
        let outcome = explore(spec, None, depth_max, None);
        match outcome.found {
            Some(found) if best.as_ref().is_none_or(|best| found.steps.len() < best.steps.len()) => {
                best = Some(found);
            }
            _ => return best,
        }
    }
}

/// Writes how far the checker is, now and then.
struct Progress<'a> {
    log: &'a mut (dyn Write + Send),
    next: Duration,
}

const PROGRESS_EVERY: Duration = Duration::from_secs(20);

impl Reporter<Spec> for Progress<'_> {
    fn report_checking(&mut self, data: ReportData) {
        if data.duration < self.next && !data.done {
            return;
        }
        self.next = data.duration + PROGRESS_EVERY;
        let what = if data.done { "done" } else { "checking" };
        // A log that cannot be written must not end the run.
        let _ = writeln!(
            self.log,
            "{what}: {} s, {} states generated, {} distinct, depth {}",
            data.duration.as_secs(),
            data.total_states,
            data.unique_states,
            data.max_depth
        );
    }

    /// Reports nothing: `prose` tells what was found.
    fn report_discoveries(&mut self, _: &Spec, _: BTreeMap<&'static str, ReportDiscovery<Spec>>) {}
}
