//! Many runs on all cores: seeds in order, and hunts for planted bugs. One seed in about a hundred
//! runs twice, to prove that runs repeat.
//!
//! Runs share nothing, so threads do not change them. Threads do not decide which seeds belong to a
//! result either: seeds are handed out in order and judged in order.

use crate::oracle::Violation;
use crate::plan::{Action, Plan};
use crate::run::{Outcome, RunOptions};
use crate::swarm;
use mainstay_types::simulation::BugInfo;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Function that runs a plan: [`crate::run::run`], or a test's own.
pub type Runner = dyn Fn(&Plan, &RunOptions) -> Outcome + Sync;

/// Distance between seeds that are run twice to compare the hashes. It has no factor in common with
/// [`UNSURVIVABLE_EVERY`], so that runs of both kinds are repeated.
pub const REPEAT_EVERY: u64 = 99;
/// Distance between seeds of a campaign whose damage no cluster can survive.
pub const UNSURVIVABLE_EVERY: u64 = 10;
/// Threads have this name.
const THREAD: &str = "runs seeds";

/// Which plan a seed stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Survivable,
    Unsurvivable,
    /// Disks lie; what is found is not a defect (`budget.rs`).
    Beyond,
}

impl Mode {
    /// The mode of a seed in a campaign.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        if seed % UNSURVIVABLE_EVERY == UNSURVIVABLE_EVERY - 1 {
            Self::Unsurvivable
        } else {
            Self::Survivable
        }
    }

    #[must_use]
    pub fn plan(self, seed: u64) -> Plan {
        match self {
            Self::Survivable => swarm::plan(seed),
            Self::Unsurvivable => swarm::unsurvivable_plan(seed),
            Self::Beyond => swarm::beyond_plan(seed),
        }
    }

    /// The argument of `mainstay-sim` for it, with a blank before it.
    #[must_use]
    pub fn argument(self) -> &'static str {
        match self {
            Self::Survivable => "",
            Self::Unsurvivable => " --unsurvivable",
            Self::Beyond => " --beyond",
        }
    }
}

/// A run that went wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub seed: u64,
    pub mode: Mode,
    pub violation: Violation,
}

impl Found {
    /// The command that repeats the run.
    #[must_use]
    pub fn command(&self) -> String {
        format!("mainstay-sim --seed {}{} --explain", self.seed, self.mode.argument())
    }
}

/// Sum of the results of many runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    pub seeds: u64,
    pub repeated: u64,
    pub simulated_us: u64,
    pub events: u64,
    pub acknowledged: u64,
    pub counters: BTreeMap<&'static str, u64>,
    /// By seed.
    pub found: Vec<Found>,
    /// Seeds that did not repeat to the byte.
    pub differ: Vec<u64>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.repeated += other.repeated;
        self.simulated_us += other.simulated_us;
        self.events += other.events;
        self.acknowledged += other.acknowledged;
        for (name, count) in other.counters {
            *self.counters.entry(name).or_default() += count;
        }
        self.found.extend(other.found);
        self.differ.extend(other.differ);
    }

    fn run(&mut self, runner: &Runner, seed: u64, mode: Mode) {
        let plan = mode.plan(seed);
        let options = RunOptions::default();
        let outcome = runner(&plan, &options);
        self.seeds += 1;
        self.simulated_us += outcome.simulated_us;
        self.events += outcome.events;
        self.acknowledged += outcome.acknowledged;
        if seed.is_multiple_of(REPEAT_EVERY) {
            let again = runner(&plan, &options);
            self.repeated += 1;
            self.simulated_us += again.simulated_us;
            if (again.hash, again.events) != (outcome.hash, outcome.events) {
                self.differ.push(seed);
            }
        }
        for (name, count) in outcome.counters {
            *self.counters.entry(name).or_default() += count;
        }
        if let Some(violation) = outcome.violation {
            self.found.push(Found { seed, mode, violation });
        }
    }
}

/// How many seeds, and when to stop.
#[derive(Clone, Copy)]
pub struct Extent<'a> {
    pub from: u64,
    pub seeds: u64,
    pub threads: usize,
    /// No further run begins once this says so.
    pub over: &'a (dyn Fn() -> bool + Sync),
}

/// Runs seeds until they are through, time is over, or `violations_max` were found.
pub fn campaign(extent: Extent<'_>, violations_max: u64, runner: &Runner) -> Tally {
    let found = AtomicU64::new(0);
    let tallies = in_threads(extent, &|tally: &mut Tally, seed| {
        let before = tally.found.len();
        tally.run(runner, seed, Mode::of(seed));
        let new = (tally.found.len() - before) as u64;
        found.fetch_add(new, Ordering::Relaxed) + new < violations_max
    });
    let mut sum = Tally::default();
    for tally in tallies {
        sum.add(tally);
    }
    sum.found.sort_by_key(|found| found.seed);
    sum.differ.sort_unstable();
    sum
}

/// Returns the seeds from `from` on whose survivable plans have clusters of this many nodes, with
/// clients and faults.
pub fn seeds_of(from: u64, nodes: u32) -> impl Iterator<Item = u64> {
    (from..).filter(move |seed| {
        let plan = Mode::Survivable.plan(*seed);
        let has = |wanted: fn(&Action) -> bool| plan.steps.iter().any(|step| wanted(&step.action));
        Mode::of(*seed) == Mode::Survivable
            && plan.shape.nodes == nodes
            && has(|action| matches!(action, Action::Client { .. }))
            && has(|action| matches!(action, Action::Fault(_)))
    })
}

/// Runs these seeds, one after the other.
pub fn tally(seeds: &[u64], runner: &Runner) -> Tally {
    let mut tally = Tally::default();
    for seed in seeds {
        tally.run(runner, *seed, Mode::of(*seed));
    }
    tally
}

/// How a planted bug fared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hunt {
    pub info: &'static BugInfo,
    /// Seeds that were run.
    pub seeds: u64,
    /// Seeds in which it was caught, and by what.
    pub caught: Vec<(u64, &'static str)>,
    /// Seeds that fail without the bug too, which proves nothing.
    pub unclean: u64,
    /// The story of `tests/planted.rs` that catches the bug, where plans do not bring its situation
    /// about. No seeds were run then.
    pub story: Option<&'static str>,
}

impl Hunt {
    /// Caught by a story.
    #[must_use]
    pub fn told(info: &'static BugInfo, story: &'static str) -> Self {
        Self { info, seeds: 0, caught: Vec::new(), unclean: 0, story: Some(story) }
    }

    /// Neither a seed nor a story catches it.
    #[must_use]
    pub fn is_missed(&self) -> bool {
        self.caught.is_empty() && self.story.is_none()
    }

    /// Returns the ids of the invariants whose oracles caught the bug, each once, most frequent
    /// first.
    #[must_use]
    pub fn by(&self) -> Vec<&'static str> {
        let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (_, id) in &self.caught {
            *counts.entry(id).or_default() += 1;
        }
        let mut ids: Vec<_> = counts.into_iter().collect();
        ids.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
        ids.into_iter().map(|(id, _)| id).collect()
    }
}

/// Runs seeds with the bug planted until it was caught `enough` times or the seeds are through.
pub fn hunt(info: &'static BugInfo, extent: Extent<'_>, enough: u64, runner: &Runner) -> Hunt {
    let caught = AtomicU64::new(0);
    let results = in_threads(extent, &|results: &mut Vec<(u64, Option<Violation>, bool)>, seed| {
        let plan = Mode::of(seed).plan(seed);
        let violation = runner(&plan, &RunOptions { bug: Some(info.bug), ..RunOptions::default() }).violation;
        let clean = violation.is_none() || runner(&plan, &RunOptions::default()).violation.is_none();
        let new = u64::from(violation.is_some() && clean);
        results.push((seed, violation, clean));
        caught.fetch_add(new, Ordering::Relaxed) + new < enough
    });
    let mut results: Vec<_> = results.into_iter().flatten().collect();
    results.sort_by_key(|(seed, ..)| *seed);
    let mut hunt = Hunt { info, seeds: 0, caught: Vec::new(), unclean: 0, story: None };
    // Seeds that another thread began before it heard of the last catch do not count.
    for (seed, violation, clean) in results {
        if hunt.caught.len() as u64 >= enough {
            break;
        }
        hunt.seeds += 1;
        match violation {
            Some(violation) if clean => hunt.caught.push((seed, violation.id)),
            Some(_) => hunt.unclean += 1,
            None => {}
        }
    }
    hunt
}

/// Hands out seeds in order. `each` says whether to go on; a thread that has begun a seed finishes
/// it.
fn in_threads<T: Default + Send>(extent: Extent<'_>, each: &(dyn Fn(&mut T, u64) -> bool + Sync)) -> Vec<T> {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let work = || {
        let mut result = T::default();
        while !stop.load(Ordering::Relaxed) && !(extent.over)() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= extent.seeds {
                break;
            }
            if !each(&mut result, extent.from + number) {
                stop.store(true, Ordering::Relaxed);
            }
        }
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..extent.threads.max(1))
            .map(|_| {
                let thread = std::thread::Builder::new().name(THREAD.into()).spawn_scoped(scope, work);
                thread.unwrap_or_else(|why| panic!("cannot start a thread: {why}"))
            })
            .collect();
        let results = threads.into_iter().map(|thread| {
            // A panic of a run is caught inside the run. This one is of the tool.
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        results.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::simulation::BUGS;

    fn extent(from: u64, seeds: u64, threads: usize) -> Extent<'static> {
        Extent { from, seeds, threads, over: &|| false }
    }

    /// With a bug every 7th seed fails; seed 500 always does.
    fn runner(plan: &Plan, options: &RunOptions) -> Outcome {
        let bad = options.bug.is_some() && plan.seed % 7 == 3 || plan.seed == 500;
        Outcome {
            violation: bad.then(|| Violation {
                id: if plan.seed.is_multiple_of(2) { "S1" } else { "S7" },
                text: String::new(),
            }),
            hash: plan.seed,
            events: 10,
            simulated_us: 1000,
            counters: BTreeMap::from([("F25 power cut", 2)]),
            lines: Vec::new(),
            acknowledged: 3,
        }
    }

    #[test]
    fn threads_change_nothing() {
        let one = campaign(extent(0, 600, 1), 10, &runner);
        let four = campaign(extent(0, 600, 4), 10, &runner);
        assert_eq!(one, four);
        assert_eq!(
            (one.seeds, one.repeated, one.acknowledged, one.counters["F25 power cut"]),
            (600, 7, 1800, 1200)
        );
        assert_eq!(one.found.iter().map(|found| found.seed).collect::<Vec<_>>(), [500]);
        assert!(one.differ.is_empty());
        let hunts = [1, 4].map(|threads| hunt(&BUGS[0], extent(0, 600, threads), 5, &runner));
        assert_eq!(hunts[0], hunts[1]);
        assert_eq!(hunts[0].caught, [(3, "S7"), (10, "S1"), (17, "S7"), (24, "S1"), (31, "S7")]);
        assert_eq!((hunts[0].seeds, hunts[0].unclean, hunts[0].by()), (32, 0, vec!["S7", "S1"]));
    }

    #[test]
    fn seeds_of_one_size_are_in_order_and_have_clients_and_faults() {
        let seeds: Vec<u64> = seeds_of(20, 3).take(12).collect();
        assert!(seeds[0] >= 20 && seeds.is_sorted(), "{seeds:?}");
        for seed in 20..=seeds[11] {
            let plan = swarm::plan(seed);
            let clients =
                plan.steps.iter().filter(|step| matches!(step.action, Action::Client { .. })).count();
            let faults = plan.steps.iter().filter(|step| matches!(step.action, Action::Fault(_))).count();
            let fits =
                Mode::of(seed) == Mode::Survivable && plan.shape.nodes == 3 && clients > 0 && faults > 0;
            assert_eq!(seeds.contains(&seed), fits, "{seed}");
        }
        let tally = tally(&seeds, &runner);
        assert_eq!((tally.seeds, tally.acknowledged), (12, 36));
    }

    #[test]
    fn a_run_that_does_not_repeat_is_told() {
        let calls = AtomicU64::new(0);
        let runner = move |plan: &Plan, options: &RunOptions| {
            let mut outcome = runner(plan, options);
            if plan.seed == 198 {
                outcome.hash = calls.fetch_add(1, Ordering::Relaxed);
            }
            outcome
        };
        assert_eq!(campaign(extent(100, 200, 2), 1, &runner).differ, [198]);
    }

    #[test]
    fn runs_of_both_kinds_are_repeated() {
        for unsurvivable in [false, true] {
            let calls = AtomicU64::new(0);
            let differing = move |plan: &Plan, options: &RunOptions| {
                let mut outcome = runner(plan, options);
                if plan.unsurvivable == unsurvivable {
                    outcome.hash = calls.fetch_add(1, Ordering::Relaxed);
                }
                outcome
            };
            let tally = campaign(extent(0, 1000, 1), 10, &differing);
            let kind = if unsurvivable { Mode::Unsurvivable } else { Mode::Survivable };
            assert!(tally.differ.iter().any(|seed| *seed > 0), "none of {kind:?} is repeated");
            assert!(tally.differ.iter().all(|seed| Mode::of(*seed) == kind));
        }
    }

    #[test]
    fn a_seed_that_fails_without_the_bug_is_no_catch() {
        let hunt = hunt(&BUGS[0], extent(500, 10, 1), 5, &runner);
        assert_eq!((hunt.unclean, hunt.caught.len(), hunt.seeds), (1, 1, 10));
        assert_eq!(hunt.caught[0].0, 507);
    }

    #[test]
    fn violations_stop_a_campaign() {
        let always = |plan: &Plan, options: &RunOptions| Outcome {
            violation: Some(Violation { id: "S1", text: String::new() }),
            ..runner(plan, options)
        };
        let tally = campaign(extent(0, 1000, 1), 3, &always);
        assert_eq!((tally.found.len(), tally.seeds), (3, 3));
        assert_eq!(tally.found[0].command(), "mainstay-sim --seed 0 --explain");
        let late = campaign(Extent { over: &|| true, ..extent(0, 1000, 2) }, 3, &always);
        assert_eq!(late.seeds, 0);
    }
}
