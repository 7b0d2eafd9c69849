//! Makes a failing plan smaller: fewer faults, fewer operations, fewer nodes, a shorter time. A
//! person reads the plan that is left.
//!
//! The method is delta debugging (Zeller and Hildebrandt, 2002) over the steps. Before that the
//! shrinker tries to leave out big pieces: whole kinds of steps, whole resources, nodes, features
//! of the shape.
//!
//! A smaller plan counts only if it ends with the same violation. It must also keep to the fault
//! budget if the original did: taking a node away must not make damage unsurvivable. The seed of
//! the plan decides latencies, and the shrinker may replace it. The steps are data and stay.

use crate::budget;
use crate::oracle::Violation;
use crate::plan::{Action, Away, Fault, Plan, Step, Target};
use mainstay_types::NodeId;

/// Denominator of a large change: one that leaves out at least this fraction of the steps.
const MUCH: usize = 16;
/// Number of further seeds that a large change is tried with.
const OTHER_SEEDS: u64 = 3;

/// The smallest plan that was found within `runs` runs; `plan` itself if it does not fail.
#[must_use]
pub fn shrink(plan: &Plan, run: &mut dyn FnMut(&Plan) -> Option<Violation>, runs: usize) -> Plan {
    let Some(violation) = run(plan) else { return plan.clone() };
    let keeps_budget = budget::check(plan).is_ok();
    let mut shrinker =
        Shrinker { best: plan.clone(), id: violation.id, keeps_budget, run, left: runs.saturating_sub(1) };
    loop {
        let before = size(&shrinker.best);
        shrinker.without_kinds();
        shrinker.without_steps();
        shrinker.without_resources();
        shrinker.without_nodes();
        shrinker.plainer_shape();
        shrinker.shorter();
        if shrinker.left == 0 || size(&shrinker.best) >= before {
            return shrinker.best;
        }
    }
}

/// Returns the size of a plan: steps, nodes, resources, and the time at which faults stop, in
/// milliseconds.
fn size(plan: &Plan) -> (usize, u32, usize, u64) {
    (plan.steps.len(), plan.shape.nodes, plan.shape.resources.len(), plan.heal_at_ms)
}

struct Shrinker<'a> {
    best: Plan,
    id: &'static str,
    keeps_budget: bool,
    run: &'a mut dyn FnMut(&Plan) -> Option<Violation>,
    left: usize,
}

impl Shrinker<'_> {
    /// Takes `plan` if it fails in the same way.
    fn try_plan(&mut self, plan: Plan) -> bool {
        self.try_plan_with(plan, 0)
    }

    /// Takes `plan` if it fails in the same way, and tries up to `other_seeds` further seeds.
    /// Leaving steps out shifts everything after them, so a plan that still holds the cause may
    /// pass by chance. The extra runs are worth it when a change leaves out many steps at once.
    fn try_plan_with(&mut self, mut plan: Plan, other_seeds: u64) -> bool {
        if plan == self.best || (self.keeps_budget && budget::check(&plan).is_err()) {
            return false;
        }
        let seed = plan.seed;
        for other in 0..=other_seeds {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            plan.seed = seed.wrapping_add(other);
            if (self.run)(&plan).is_some_and(|violation| violation.id == self.id) {
                self.best = plan;
                return true;
            }
        }
        false
    }

    fn try_steps(&mut self, keep: impl FnMut(&Step) -> bool) -> bool {
        let mut plan = self.best.clone();
        let before = plan.steps.len();
        plan.steps.retain(keep);
        let much = before - plan.steps.len() >= before.div_ceil(MUCH);
        plan.steps.len() < before && self.try_plan_with(plan, if much { OTHER_SEEDS } else { 0 })
    }

    /// Leaves out all steps of one kind at once: all reads, all faults of one kind, everything at
    /// the end.
    fn without_kinds(&mut self) {
        // The shortest beginning of the plan that still fails. Steps after the violation have no
        // part in it.
        let (mut few, mut enough) = (0, self.best.steps.len());
        while enough - few > enough.div_ceil(MUCH) {
            let middle = few.midpoint(enough);
            let mut plan = self.best.clone();
            plan.steps.truncate(middle);
            if self.try_plan_with(plan, OTHER_SEEDS) {
                enough = middle;
            } else {
                few = middle;
            }
        }
        let mut kinds: Vec<_> = self.best.steps.iter().map(|step| kind(&step.action)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for gone in kinds {
            self.try_steps(|step| kind(&step.action) != gone);
        }
    }

    /// Chunks of half of the steps, of a quarter, and so on down to single ones.
    fn without_steps(&mut self) {
        let mut chunk = self.best.steps.len().div_ceil(2);
        while chunk > 0 {
            // From the end, because steps after the violation go first.
            let mut end = self.best.steps.len();
            while end > 0 && self.left > 0 {
                let start = end.saturating_sub(chunk);
                let mut plan = self.best.clone();
                plan.steps.drain(start..end);
                let much = chunk >= self.best.steps.len().div_ceil(MUCH);
                self.try_plan_with(plan, if much { OTHER_SEEDS } else { 0 });
                end = start;
            }
            chunk = if chunk == 1 { 0 } else { chunk.div_ceil(2) };
        }
    }

    fn without_resources(&mut self) {
        for resource in (0..self.best.shape.resources.len()).rev() {
            if self.best.shape.resources.len() > 1 {
                let plan = without_resource(&self.best, resource);
                self.try_plan(plan);
            }
        }
    }

    fn without_nodes(&mut self) {
        for node in (1..=self.best.shape.nodes).rev() {
            if let Some(plan) = without_node(&self.best, node) {
                self.try_plan(plan);
            }
        }
    }

    /// Tries a shape without drift, without loss, without services, and with one volume each.
    fn plainer_shape(&mut self) {
        let mut changes: Vec<fn(&mut Plan)> = vec![
            |plan| plan.shape.clock_ppm.fill(0),
            |plan| {
                plan.shape.datagram_loss = 0;
                plan.shape.datagram_duplicate = 0;
                plan.shape.datagram_late = 0;
            },
            |plan| plan.shape.proposal_loss = 0,
            |plan| plan.shape.devices_stay = false,
            |plan| plan.shape.away = Away::default(),
            |plan| plan.shape.away.nodes.truncate(1),
        ];
        changes.push(|plan| plan.shape.resources.iter_mut().for_each(|resource| resource.service = false));
        changes.push(|plan| {
            plan.steps.retain(|step| match step.action {
                Action::Client { op, .. } => op.volume().is_none_or(|volume| volume == 0),
                _ => true,
            });
            plan.shape.resources.iter_mut().for_each(|resource| {
                resource.volumes.truncate(1);
                resource.grown.truncate(1);
            });
        });
        for change in changes {
            let mut plan = self.best.clone();
            change(&mut plan);
            self.try_plan(plan);
        }
        for resource in 0..self.best.shape.resources.len() {
            let mut plan = self.best.clone();
            plan.shape.resources[resource].service = false;
            self.try_plan(plan);
        }
    }

    /// Faults end soon after the last of them; gaps between steps become shorter.
    fn shorter(&mut self) {
        loop {
            let mut plan = self.best.clone();
            let last = plan.steps.iter().filter(|step| !matches!(step.action, Action::Client { .. }));
            let earliest = last.map(|step| step.at_ms + 1).max().unwrap_or(1);
            plan.heal_at_ms = earliest.max(plan.heal_at_ms / 2);
            if plan.heal_at_ms >= self.best.heal_at_ms || !self.try_plan(plan) {
                break;
            }
        }
        let mut number = 0;
        while number < self.best.steps.len() && self.left > 0 {
            let before = if number == 0 { 0 } else { self.best.steps[number - 1].at_ms };
            let gap = self.best.steps[number].at_ms - before;
            // A gap that matters is kept as it is after one attempt to halve it.
            if gap > 100 {
                let mut plan = self.best.clone();
                for step in &mut plan.steps[number..] {
                    step.at_ms -= gap / 2;
                }
                if self.best.steps[number].at_ms <= plan.heal_at_ms {
                    plan.heal_at_ms -= gap / 2;
                }
                if self.try_plan(plan) {
                    continue;
                }
            }
            number += 1;
        }
    }
}

/// Steps of one kind are tried together.
fn kind(action: &Action) -> (u8, String) {
    // The name of a variant is what its debug text begins with.
    let name = |text: String| text.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default().to_owned();
    match action {
        Action::Client { resource, op } => (0, format!("{} {resource}", name(format!("{op:?}")))),
        Action::Fault(Fault::Disk { fault, .. }) => (1, name(format!("{fault:?}"))),
        Action::Fault(Fault::Service { .. }) => (2, String::new()),
        Action::Fault(fault) => (3, name(format!("{fault:?}"))),
        Action::Operator(operator) => (4, name(format!("{operator:?}"))),
    }
}

/// The plan without resource `gone` and every step on it. Later resources move up.
fn without_resource(plan: &Plan, gone: usize) -> Plan {
    let moved = |resource: usize| match resource {
        r if r == gone => None,
        r if r > gone => Some(r - 1),
        r => Some(r),
    };
    let target = |target: Target| {
        Some(match target {
            Target::Primary(resource) => Target::Primary(moved(resource)?),
            Target::Secondary(resource, pick) => Target::Secondary(moved(resource)?, pick),
            Target::Node(_) | Target::Leader => target,
        })
    };
    let mut plan = plan.clone();
    plan.shape.resources.remove(gone);
    plan.steps = plan.steps.into_iter().filter_map(|step| rename(step, &moved, &target)).collect();
    plan
}

/// The plan without node `gone`. Later nodes move up. `None` if a resource would be left without a
/// replica.
fn without_node(plan: &Plan, gone: u32) -> Option<Plan> {
    let moved = |node: u32| match node {
        n if n == gone => None,
        n if n > gone => Some(n - 1),
        n => Some(n),
    };
    let target = |target: Target| {
        Some(match target {
            Target::Node(node) => Target::Node(NodeId(moved(node.0)?)),
            _ => target,
        })
    };
    let mut plan = plan.clone();
    plan.shape.nodes -= 1;
    plan.shape.clock_ppm.remove(gone as usize - 1);
    let away = &mut plan.shape.away.nodes;
    *away = away.iter().filter_map(|node| moved(*node)).collect();
    for resource in &mut plan.shape.resources {
        resource.replicas = resource.replicas.iter().filter_map(|node| moved(*node)).collect();
        if resource.replicas.is_empty() {
            return None;
        }
    }
    plan.steps = plan.steps.into_iter().filter_map(|step| rename(step, &Some, &target)).collect();
    let low = (1 << (gone - 1)) - 1;
    for step in &mut plan.steps {
        if let Action::Fault(Fault::Partition(side)) = &mut step.action {
            *side = (*side & low) | ((*side >> 1) & !low);
        }
    }
    Some(plan)
}

/// The step with other numbers. `None` if the step names something that is gone.
fn rename(
    mut step: Step,
    resource_of: &dyn Fn(usize) -> Option<usize>,
    target_of: &dyn Fn(Target) -> Option<Target>,
) -> Option<Step> {
    match &mut step.action {
        Action::Client { resource, .. } => *resource = resource_of(*resource)?,
        Action::Operator(operator) => {
            if let Some(resource) = operator.resource_mut() {
                *resource = resource_of(*resource)?;
            }
        }
        Action::Fault(fault) => {
            if let Fault::Disk { resource, .. }
            | Fault::Service { resource, .. }
            | Fault::Trap { resource, .. } = fault
            {
                *resource = resource_of(*resource)?;
            }
            for target in fault.targets_mut().into_iter().flatten() {
                *target = target_of(*target)?;
            }
        }
    }
    Some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ClientOp;
    use crate::swarm;

    const SEEN: Violation = Violation { id: "S1", text: String::new() };

    fn plan_with(seed: u64, wanted: impl Fn(&Plan) -> bool) -> Plan {
        (seed..).map(swarm::plan).find(wanted).unwrap_or_else(|| unreachable!("seeds do not end"))
    }

    fn has(plan: &Plan, wanted: impl Fn(&Fault) -> bool) -> bool {
        plan.steps.iter().any(|step| matches!(&step.action, Action::Fault(fault) if wanted(fault)))
    }

    /// Fails when a write comes while all is off, and a disk of the same resource had stalled
    /// before.
    fn fails(plan: &Plan) -> Option<Violation> {
        let mut stalled = false;
        let mut off = false;
        for step in &plan.steps {
            match step.action {
                Action::Fault(Fault::Disk {
                    resource: 0,
                    fault: crate::plan::DiskFault::Stall { .. },
                    ..
                }) => stalled = true,
                Action::Fault(Fault::PowerCutAll) => off = stalled,
                Action::Fault(Fault::PowerOnAll) => off = false,
                Action::Client { resource: 0, op: ClientOp::Write { .. } } if off => return Some(SEEN),
                _ => {}
            }
        }
        None
    }

    #[test]
    fn the_smallest_plan_is_found() {
        for from in [0, 1000, 2000] {
            let plan = plan_with(from, |plan| fails(plan).is_some());
            assert!(plan.steps.len() > 50, "a plan with something to leave out");
            let small = shrink(&plan, &mut fails, 2000);
            assert!(fails(&small).is_some());
            assert_eq!(small.steps.len(), 3, "seed {}: {:#?}", plan.seed, small.steps);
            assert_eq!((small.shape.nodes, small.shape.resources.len()), (1, 1), "seed {}", plan.seed);
            assert!(small.shape.clock_ppm.iter().all(|ppm| *ppm == 0));
            let last = small.steps.last().map_or(0, |step| step.at_ms);
            assert!(last <= 300 && small.heal_at_ms < 5000, "seed {}: {last} ms", plan.seed);
            assert!(budget::check(&small).is_ok());
        }
    }

    #[test]
    fn the_shrinker_ignores_a_different_violation() {
        let plan = plan_with(0, |plan| fails(plan).is_some());
        let whole = plan.steps.len();
        let mut run = |plan: &Plan| {
            let violation =
                Violation { id: if plan.steps.len() == whole { "S1" } else { "S2" }, text: String::new() };
            Some(violation)
        };
        assert_eq!(shrink(&plan, &mut run, 500).steps, plan.steps);
    }

    #[test]
    fn the_shrinker_takes_no_more_runs_than_allowed() {
        let plan = plan_with(0, |plan| fails(plan).is_some());
        let mut runs = 0;
        let mut run = |plan: &Plan| {
            runs += 1;
            fails(plan)
        };
        let _ = shrink(&plan, &mut run, 17);
        assert_eq!(runs, 17);
    }

    #[test]
    fn a_plan_that_does_not_fail_stays() {
        let plan = swarm::plan(1);
        assert_eq!(shrink(&plan, &mut |_| None, 100), plan);
    }

    #[test]
    fn the_budget_is_kept() {
        let damaged = |fault: &Fault| matches!(fault, Fault::Disk { fault, .. } if budget::harm(*fault) == budget::Harm::Replica);
        let plan = plan_with(0, |plan| plan.shape.nodes == 3 && has(plan, damaged));
        let small = shrink(&plan, &mut |plan| has(plan, damaged).then_some(SEEN), 2000);
        assert_eq!(small.steps.len(), 1);
        assert_eq!(small.shape.nodes, 2, "the damaged replica and one that is not");
    }

    #[test]
    fn nodes_that_move_up_keep_their_faults() {
        let plan = plan_with(0, |plan| {
            plan.shape.nodes == 5
                && plan.shape.resources.iter().all(|r| r.replicas.len() > 1)
                && has(plan, |fault| matches!(fault, Fault::Partition(_)))
        });
        let mut plan = plan;
        plan.steps.retain(|step| matches!(step.action, Action::Fault(Fault::Partition(_))));
        plan.steps.truncate(1);
        plan.steps[0].action = Action::Fault(Fault::Partition(0b10110));
        plan.steps.push(Step {
            at_ms: plan.steps[0].at_ms,
            action: Action::Fault(Fault::PowerCut(Target::Node(NodeId(5)))),
        });
        plan.steps.push(Step {
            at_ms: plan.steps[0].at_ms,
            action: Action::Fault(Fault::PowerCut(Target::Node(NodeId(2)))),
        });
        plan.shape.away.nodes = vec![2, 5];
        let away = without_node(&plan, 2).map(|plan| plan.shape.away.nodes);
        assert_eq!(away, Some(vec![4]));
        let without = without_node(&plan, 2)
            .map(|plan| plan.steps.into_iter().map(|step| step.action).collect::<Vec<_>>());
        let expected = vec![
            Action::Fault(Fault::Partition(0b1010)),
            Action::Fault(Fault::PowerCut(Target::Node(NodeId(4)))),
        ];
        assert_eq!(without, Some(expected));
    }
}
