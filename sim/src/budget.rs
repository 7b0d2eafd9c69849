//! Fault budget of a cluster that is asked to survive, in the manner of TigerBeetle's
//! `ClusterFaultAtlas`. When a plan breaks this budget, a violation that an oracle reports proves
//! nothing.
//!
//! The reasoning, for plans that are to be survived:
//! - **Faults that only interrupt are free**: power cuts of any set of nodes, kills, pauses, cuts
//!   of every kind, slow links and disks, lost and late datagrams, control-plane faults, faults of
//!   services. None of them takes away what was durable.
//! - **One copy of the superblock may rot on every replica**, always the same one of that replica.
//!   Four copies are written as two pairs, so that two may decay at any moment (R14).
//! - **A disk is damaged on one replica of a resource at most**, its *victim*, the same in the
//!   whole run, and only if the resource has others. An entry is committed when all of the recorded
//!   in-sync set hold it (R2), so the others have everything that the victim may lose. Thus at most
//!   (replicas - 1) replicas ever lack data, even if damages overlap. The plan names the victim by
//!   its node, never as "the primary", because the primary changes.
//! - **The victim may be all that is left**: after the others were removed from the in-sync set for
//!   being unreachable, it alone has what was acknowledged since. No plan knows when that is. So
//!   when a damage is due and no other recorded member is whole, the world leaves the damage out
//!   (`world/faults.rs`), and counts it. The world does not see a removal that is on its way at
//!   that moment. Then the resource stands still for want of a whole member (R11), which is right.
//!   Safety is never excused.
//! - **No address stays for good where no engine guards it.** The agent alone tries a few times
//!   before its lease ends; an address that stays through all of them needs a watchdog (*not yet*).
//!   So the world leaves this fault out while the node's engine is not there and another node has a
//!   replica, and could take over.
//! - **A rotten journal record must be one that a later durable record calls durable.** The newest
//!   record that rots looks like the torn tail of a crash (R12) and nothing on that disk can tell
//!   the difference. The world picks accordingly.
//! - **The same holds of a record whose write was lost or landed elsewhere, and of one that is read
//!   as what was there before** (F2, F3, F4). A later write of the journal, begun after the record
//!   was durable, must be durable too. Then the record lies in the middle of the log for the
//!   recovery that finds it wrong. A lost write without such a witness is an acknowledgement that
//!   is forgotten, as with F9. For the same reason a write that lands elsewhere never hits the
//!   newest writes.
//! - **One copy of the superblock may be an older one**, as with rot and the same one. A whole pair
//!   may not: if a crash tears the other pair (R14), the pair that is left is older than what was
//!   promised.
//! - **Any block of a volume may rot, or be what it was before its last write.** It does not fit
//!   its checksum, and is damage when it is read. Until then the replica counts as whole, although
//!   it is not.
//! - **Any page of the version table may be an older one, or another.** The superblock holds the
//!   root of the right pages, so the replica is not opened.
//! - **No disk lies in any other way.** A disk may forget what it acknowledged (F2, F9), write or
//!   read elsewhere (F3, F4), or come back as it was before (F15). The cluster may believe such a
//!   disk. A member of the in-sync set that forgets makes "all of them hold it" untrue, and commits
//!   rest on that. Such faults are in the plans of [`crate::swarm::beyond_plan`] only.
//! - **The nodes that stay away when faults stop are a minority**; all nodes are voters. So the
//!   nodes that are left have a leader. They must serve each resource that has an in-sync member
//!   among them which is whole and knows itself to be so. If all in-sync members are away, or
//!   cannot be used, the resource stands still until they are back (R11), and says so.
//!
//! *Unsurvivable* plans damage all replicas of a resource, with damage that the store is built to
//! notice. The only right end is correct data or a clear stop. *Beyond* plans have the lying kinds
//! on top. Their findings are a list of what is not promised, not of defects.

use crate::plan::{Action, ClientOp, DiskFault, Fault, Operator, Plan, Shape, Target};
use mainstay_types::NodeId;
use std::collections::BTreeMap;

/// Largest read, write, discard or write-zeroes, in blocks (`REQUEST_BYTES_MAX`).
pub const REQUEST_BLOCKS_MAX: u64 = mainstay_types::REQUEST_BYTES_MAX / mainstay_types::BLOCK_BYTES;

/// Loss that a disk fault causes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Harm {
    /// No loss: the fault only interrupts or delays.
    None,
    /// One of the copies of the superblock.
    Copy(u64),
    /// A replica; the store notices.
    Replica,
    /// A replica; today's store cannot notice.
    Lie,
}

#[must_use]
pub fn harm(fault: DiskFault) -> Harm {
    match fault {
        DiskFault::Slow { .. }
        | DiskFault::Stall { .. }
        | DiskFault::Late { .. }
        | DiskFault::Room
        | DiskFault::Copied => Harm::None,
        DiskFault::RotSuperblock { copy } | DiskFault::LostSuperblock { copy } => Harm::Copy(copy),
        DiskFault::WriteError
        | DiskFault::FlushError
        | DiskFault::ReadError
        | DiskFault::Vanish
        | DiskFault::ReadOnly
        | DiskFault::Full
        | DiskFault::RotSuperblocks
        | DiskFault::RotJournal { .. }
        | DiskFault::RotVersions { .. }
        | DiskFault::RotVolume { .. }
        | DiskFault::LostBlock { .. }
        | DiskFault::LostRecord { .. }
        | DiskFault::MisdirectedRecord { .. }
        | DiskFault::StaleRecord { .. }
        | DiskFault::LostVersions { .. }
        | DiskFault::MisdirectedVersions { .. }
        | DiskFault::StaleVersions { .. }
        | DiskFault::Replace
        | DiskFault::Remove
        | DiskFault::OtherFiles => Harm::Replica,
        DiskFault::LostWrite
        | DiskFault::Misdirect
        | DiskFault::StaleRead
        | DiskFault::LyingFlush
        | DiskFault::KeepImage
        | DiskFault::OldImage => Harm::Lie,
    }
}

/// Checks that a plan is in order and within its budget.
///
/// # Errors
/// What is wrong, for people.
pub fn check(plan: &Plan) -> Result<(), String> {
    check_shape(plan)?;
    let mut before = 0;
    let mut damage = Damage::default();
    for (number, step) in plan.steps.iter().enumerate() {
        let at = |what: String| format!("step {number} at {} ms: {what}", step.at_ms);
        if step.at_ms < before {
            return Err(at("comes after a later one".into()));
        }
        before = step.at_ms;
        if step.at_ms >= plan.heal_at_ms && !matches!(step.action, Action::Client { .. }) {
            return Err(at("a fault after the healing has begun".into()));
        }
        check_action(plan, &step.action).map_err(at)?;
        if let Action::Fault(Fault::Disk { target, resource, fault }) = step.action {
            damage.add(plan, target, resource, fault).map_err(at)?;
        }
    }
    Ok(())
}

/// Damage that the plan has done up to a step, to check the steps in order.
#[derive(Default)]
struct Damage {
    /// By resource.
    victims: BTreeMap<usize, NodeId>,
    /// By resource and node.
    copies: BTreeMap<(usize, NodeId), u64>,
}

impl Damage {
    fn add(&mut self, plan: &Plan, target: Target, resource: usize, fault: DiskFault) -> Result<(), String> {
        if plan.unsurvivable {
            return Ok(());
        }
        let harm = harm(fault);
        if harm == Harm::None {
            return Ok(());
        }
        let Target::Node(node) = target else {
            return Err(format!("{fault:?} must name its node: the holder of a role changes"));
        };
        match harm {
            Harm::None => {}
            Harm::Copy(copy) => {
                let first = *self.copies.entry((resource, node)).or_insert(copy);
                if first != copy {
                    return Err(format!("a second copy of the superblock of {node} rots"));
                }
            }
            Harm::Replica => {
                if plan.shape.resources[resource].replicas.len() < 2 {
                    return Err(format!("{fault:?} of the only replica"));
                }
                if plan.shape.resources[resource].moves {
                    return Err(format!("{fault:?} of a resource whose replicas move"));
                }
                if plan.shape.resources[resource].modes {
                    return Err(format!("{fault:?} of a resource whose mode changes"));
                }
                let victim = *self.victims.entry(resource).or_insert(node);
                if victim != node {
                    return Err(format!("{fault:?} of {node}, but {victim} is the victim"));
                }
            }
            Harm::Lie => return Err(format!("{fault:?} is not survived by any member of an in-sync set")),
        }
        Ok(())
    }
}

fn check_shape(plan: &Plan) -> Result<(), String> {
    let shape = &plan.shape;
    if shape.nodes == 0 || shape.nodes > 64 || shape.clock_ppm.len() != shape.nodes as usize {
        return Err("there must be 1 to 64 nodes with a clock each".into());
    }
    if shape.clock_ppm.iter().any(|ppm| ppm.abs() > 10_000) {
        return Err("a clock is more than 1 % off (R10)".into());
    }
    if shape.resources.is_empty() {
        return Err("there must be a resource".into());
    }
    check_away(shape)?;
    for (number, resource) in shape.resources.iter().enumerate() {
        let mut seen = resource.replicas.clone();
        seen.sort_unstable();
        seen.dedup();
        if seen.is_empty()
            || seen.len() != resource.replicas.len()
            || seen.iter().any(|node| *node == 0 || *node > shape.nodes)
        {
            return Err(format!("resource {number} has replicas on {:?}", resource.replicas));
        }
        if resource.late && number + 1 < shape.resources.len() {
            return Err(format!("resource {number} is made late and is not the last"));
        }
        let shrinks = resource.grown.iter().zip(&resource.volumes).any(|(grown, blocks)| grown < blocks);
        if shrinks || resource.grown.len() != resource.volumes.len() {
            return Err(format!("the volumes of resource {number} shrink"));
        }
        if resource.volumes.is_empty() || resource.volumes.contains(&0) || resource.journal_blocks < 8 {
            return Err(format!("resource {number} is too small"));
        }
    }
    Ok(())
}

fn check_away(shape: &Shape) -> Result<(), String> {
    let away = &shape.away.nodes;
    if away.windows(2).any(|pair| pair[0] >= pair[1])
        || away.iter().any(|node| *node == 0 || *node > shape.nodes)
    {
        return Err(format!("{away:?} are not nodes in order"));
    }
    if away.len() * 2 >= shape.nodes as usize {
        return Err(format!("no majority is left of {} nodes without {away:?}", shape.nodes));
    }
    Ok(())
}

fn check_action(plan: &Plan, action: &Action) -> Result<(), String> {
    match action {
        Action::Client { resource, op } => {
            let volumes = &plan.shape.resources.get(*resource).ok_or("there is no such resource")?.grown;
            let (ClientOp::Write { volume, block, blocks }
            | ClientOp::Read { volume, block, blocks }
            | ClientOp::Discard { volume, block, blocks }
            | ClientOp::WriteZeroes { volume, block, blocks }) = *op
            else {
                return Ok(());
            };
            let size = *volumes.get(usize::from(volume)).ok_or("there is no such volume")?;
            if blocks == 0 || blocks > REQUEST_BLOCKS_MAX || block + blocks > size {
                return Err(format!("blocks {block} + {blocks} of a volume of {size}"));
            }
            Ok(())
        }
        Action::Operator(operator) => check_operator(plan, operator),
        Action::Fault(fault) => check_fault(plan, fault),
    }
}

fn check_operator(plan: &Plan, operator: &Operator) -> Result<(), String> {
    let Some(resource) = operator.resource() else { return Ok(()) };
    check_resource(plan, resource)?;
    let late = plan.shape.resources[resource].late;
    match operator {
        Operator::AddReplica { .. } | Operator::RemoveReplica { .. } | Operator::MoveReplica { .. }
            if !plan.shape.resources[resource].moves =>
        {
            Err(format!("the replicas of resource {resource} are not to move"))
        }
        Operator::Grow { volume, blocks, .. } => {
            let resource = &plan.shape.resources[resource];
            match resource.grown.get(usize::from(*volume)) {
                Some(most) if blocks <= most => Ok(()),
                _ => Err(format!("volume {volume} is not to have {blocks} blocks")),
            }
        }
        Operator::SetMode { .. } | Operator::ModeB { .. } | Operator::Force { .. }
            if !plan.shape.resources[resource].modes =>
        {
            Err(format!("the mode of resource {resource} is not to change"))
        }
        Operator::CreateResource { .. } if !late => Err(format!("resource {resource} exists from the start")),
        // A proposal to make it that is on its way for long would make it again, under another
        // number.
        Operator::DeleteResource { .. } if late => {
            Err(format!("resource {resource} is made late and deleted"))
        }
        _ => Ok(()),
    }
}

fn check_fault(plan: &Plan, fault: &Fault) -> Result<(), String> {
    for target in fault.targets().into_iter().flatten() {
        match target {
            Target::Node(node) if node.0 == 0 || node.0 > plan.shape.nodes => {
                return Err(format!("there is no {node}"));
            }
            Target::Primary(resource) | Target::Secondary(resource, _) => check_resource(plan, resource)?,
            Target::Node(_) | Target::Leader => {}
        }
    }
    match fault {
        Fault::Disk { target: Target::Node(node), resource, .. } => {
            check_resource(plan, *resource)?;
            if !plan.shape.resources[*resource].replicas.contains(&node.0) {
                return Err(format!("{node} has no replica of resource {resource}"));
            }
            Ok(())
        }
        Fault::Disk { resource, .. } | Fault::Service { resource, .. } | Fault::Trap { resource, .. } => {
            check_resource(plan, *resource)
        }
        _ => Ok(()),
    }
}

fn check_resource(plan: &Plan, resource: usize) -> Result<(), String> {
    if resource < plan.shape.resources.len() {
        Ok(())
    } else {
        Err(format!("there is no resource {resource}"))
    }
}

impl ClientOp {
    /// `None` for a flush, which concerns all of them.
    #[must_use]
    pub fn volume(&self) -> Option<u16> {
        match *self {
            Self::Write { volume, .. }
            | Self::Read { volume, .. }
            | Self::Discard { volume, .. }
            | Self::WriteZeroes { volume, .. } => Some(volume),
            Self::Flush => None,
        }
    }
}

impl Fault {
    /// Returns the targets that the fault names: none, one or two.
    #[must_use]
    pub fn targets_mut(&mut self) -> [Option<&mut Target>; 2] {
        match self {
            Self::PowerCut(target)
            | Self::PowerOn(target)
            | Self::KillEngine { target, .. }
            | Self::ReplaceEngine { target, .. }
            | Self::KillAgent { target, .. }
            | Self::PauseMachine { target, .. }
            | Self::PauseEngine { target, .. }
            | Self::PauseAgent { target, .. }
            | Self::StepClock { target, .. }
            | Self::Isolate(target)
            | Self::Disk { target, .. }
            | Self::Snapshot(target)
            | Self::Service { target, .. } => [Some(target), None],
            Self::Cut(a, b)
            | Self::CutAgents(a, b)
            | Self::CutEngines(a, b)
            | Self::CutOneWay(a, b)
            | Self::SlowLink { a, b, .. }
            | Self::NarrowLink { a, b, .. }
            | Self::Reset(a, b)
            | Self::CorruptFrame(a, b) => [Some(a), Some(b)],
            Self::PowerCutAll
            | Self::PowerOnAll
            | Self::Partition(_)
            | Self::Heal
            | Self::LeaderChange
            | Self::LoseProposals
            | Self::Trap { .. } => [None, None],
        }
    }

    /// Returns the targets that the fault names: none, one or two.
    #[must_use]
    pub fn targets(&self) -> [Option<Target>; 2] {
        let mut copy = *self;
        copy.targets_mut().map(|target| target.copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Step;
    use crate::swarm;

    /// Three replicas on n1, n2, n3, and nothing is done to them.
    fn quiet() -> Plan {
        let mut plan = swarm::plan(0);
        let mut resource = plan.shape.resources[0].clone();
        resource.replicas = vec![1, 2, 3];
        resource.volumes = vec![256];
        resource.grown = vec![256];
        plan.shape.nodes = 3;
        plan.shape.clock_ppm = vec![0; 3];
        let mut lone = resource.clone();
        lone.replicas = vec![2];
        plan.shape.resources = vec![resource, lone];
        plan.steps.clear();
        plan
    }

    fn damage(node: u32, resource: usize, fault: DiskFault) -> Action {
        Action::Fault(Fault::Disk { target: Target::Node(NodeId(node)), resource, fault })
    }

    fn checked(actions: Vec<Action>) -> Result<(), String> {
        let mut plan = quiet();
        plan.steps = actions.into_iter().map(|action| Step { at_ms: 5, action }).collect();
        check(&plan)
    }

    fn refused(actions: Vec<Action>, why: &str) {
        let Err(text) = checked(actions) else { panic!("not refused: {why}") };
        assert!(text.contains(why), "{text}");
    }

    #[test]
    fn one_victim_may_be_damaged_again_and_again() {
        assert_eq!(
            checked(vec![
                damage(2, 0, DiskFault::Vanish),
                damage(2, 0, DiskFault::Replace),
                damage(2, 0, DiskFault::RotJournal { pick: 7 }),
                damage(2, 0, DiskFault::LostRecord { pick: 1 }),
                damage(2, 0, DiskFault::MisdirectedRecord { pick: 1 }),
                damage(2, 0, DiskFault::StaleRecord { pick: 1 }),
                damage(2, 0, DiskFault::RotVolume { pick: 1 }),
                damage(2, 0, DiskFault::LostBlock { pick: 1 }),
                damage(2, 0, DiskFault::LostVersions { pick: 1 }),
                damage(2, 0, DiskFault::MisdirectedVersions { pick: 1 }),
                damage(2, 0, DiskFault::StaleVersions { pick: 1 }),
                damage(1, 0, DiskFault::RotSuperblock { copy: 1 }),
                damage(1, 0, DiskFault::LostSuperblock { copy: 1 }),
                damage(2, 1, DiskFault::RotSuperblock { copy: 3 }),
                damage(3, 0, DiskFault::Slow { factor: 100 }),
            ]),
            Ok(())
        );
    }

    #[test]
    fn plans_with_unsurvivable_damage_are_refused() {
        let two = vec![damage(2, 0, DiskFault::Vanish), damage(3, 0, DiskFault::WriteError)];
        refused(two, "n2 is the victim");
        refused(vec![damage(2, 1, DiskFault::ReadError)], "only replica");
        let copies = vec![
            damage(1, 0, DiskFault::RotSuperblock { copy: 1 }),
            damage(1, 0, DiskFault::RotSuperblock { copy: 2 }),
        ];
        refused(copies, "second copy");
        let copies = vec![
            damage(1, 0, DiskFault::RotSuperblock { copy: 1 }),
            damage(1, 0, DiskFault::LostSuperblock { copy: 2 }),
        ];
        refused(copies, "second copy");
        let two = vec![
            damage(2, 0, DiskFault::StaleRecord { pick: 1 }),
            damage(3, 0, DiskFault::LostRecord { pick: 1 }),
        ];
        refused(two, "n2 is the victim");
        for lie in [
            DiskFault::LostWrite,
            DiskFault::Misdirect,
            DiskFault::StaleRead,
            DiskFault::LyingFlush,
            DiskFault::KeepImage,
            DiskFault::OldImage,
        ] {
            refused(vec![damage(2, 0, lie)], "not survived");
        }
        let fault = Fault::Disk { target: Target::Primary(0), resource: 0, fault: DiskFault::Vanish };
        refused(vec![Action::Fault(fault)], "must name its node");
    }

    #[test]
    fn senseless_plans_are_refused() {
        refused(vec![damage(1, 1, DiskFault::Slow { factor: 2 })], "no replica");
        refused(vec![Action::Fault(Fault::PowerCut(Target::Node(NodeId(4))))], "there is no n4");
        refused(vec![Action::Fault(Fault::PowerCut(Target::Primary(2)))], "no resource 2");
        let op = ClientOp::Write { volume: 0, block: 250, blocks: 7 };
        refused(vec![Action::Client { resource: 0, op }], "of a volume of 256");
        let mut plan = quiet();
        plan.steps = [8, 5].map(|at_ms| Step { at_ms, action: Action::Fault(Fault::Heal) }).to_vec();
        assert!(check(&plan).is_err_and(|why| why.contains("after a later one")));
        plan.steps = vec![Step { at_ms: plan.heal_at_ms, action: Action::Fault(Fault::Heal) }];
        assert!(check(&plan).is_err_and(|why| why.contains("healing")));
        plan.steps.clear();
        for (away, why) in [(vec![1, 2], "no majority"), (vec![4], "not nodes"), (vec![1, 1], "not nodes")] {
            plan.shape.away.nodes = away;
            assert!(check(&plan).is_err_and(|text| text.contains(why)), "{:?}", plan.shape.away);
        }
        plan.shape.away.nodes = vec![3];
        assert_eq!(check(&plan), Ok(()));
    }
}
