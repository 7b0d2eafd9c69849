//! F42: the wall clocks of machines serve people only, and they say when scheduled scrubs are due.
//! In a run without schedules, steps of the clocks change nothing.

use mainstay_sim::plan::{Action, Fault, Operator, Plan, Step, Target};
use mainstay_sim::run::{Outcome, RunOptions, run};
use mainstay_sim::swarm;
use mainstay_types::NodeId;

const SEEDS: u64 = 16;
const HOUR_MS: i64 = 3_600_000;

/// Returns `plan` with a clock that steps every now and then: by hours, or by nothing.
fn with_steps(plan: &Plan, far: i64) -> Plan {
    let mut plan = plan.clone();
    let schedules = |step: &Step| matches!(step.action, Action::Operator(Operator::SetScrub { .. }));
    plan.steps.retain(|step| !schedules(step));
    for (n, at_ms) in (0..plan.heal_at_ms).step_by(700).enumerate() {
        let target = Target::Node(NodeId(1 + n as u32 % plan.shape.nodes));
        let by_ms = far * [-1, 3, -7, 5][n % 4];
        plan.steps.push(Step { at_ms, action: Action::Fault(Fault::StepClock { target, by_ms }) });
    }
    plan.steps.sort_by_key(|step| step.at_ms);
    plan
}

/// All events, except the notes of how far clocks were stepped, and without the age of a snapshot,
/// which a refusal tells to people.
fn told(outcome: &Outcome) -> Vec<(u64, Option<NodeId>, String)> {
    let lines = outcome.lines.iter().filter(|line| !line.text.starts_with("the wall clock of"));
    lines.map(|line| (line.at_us, line.node, without_age(&line.text))).collect()
}

fn without_age(text: &str) -> String {
    const BEFORE: &str = "it was asked for ";
    match text.split_once(BEFORE) {
        Some((before, after)) => {
            let (_, after) = after.split_once(" ago").unwrap_or_default();
            format!("{before}{BEFORE}{after}")
        }
        None => text.to_owned(),
    }
}

#[test]
fn wall_clocks_decide_nothing() {
    for seed in 0..SEEDS {
        let plan = swarm::plan(seed);
        let options = RunOptions { keep_lines: true, ..RunOptions::default() };
        let [still, moved] = [0, HOUR_MS].map(|far| run(&with_steps(&plan, far), &options));
        assert!(moved.counters.get("F42 wall clock steps").is_some_and(|count| *count > 10), "seed {seed}");
        let differ = told(&still).into_iter().zip(told(&moved)).find(|(a, b)| a != b);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!((still.hash, still.events), (moved.hash, moved.events), "seed {seed}");
        assert_eq!(still.counters, moved.counters, "seed {seed}");
    }
}
