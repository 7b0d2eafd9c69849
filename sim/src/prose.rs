//! Plans in words, for the top of an explained run, and for the lines of a trace that name an act
//! of the plan.

use crate::plan::{
    Action, ClientOp, Deed, DiskFault, DiskOp, Fault, Moment, Operator, Plan, Proposed, Rests, ServiceFault,
    Side, Target, Tie,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Client steps are listed one by one up to this many, and counted beyond it.
const CLIENT_STEPS_MAX: usize = 40;

/// The plan as a page of text, every line ended.
#[must_use]
pub fn plan(plan: &Plan) -> String {
    let shape = &plan.shape;
    let mut text = format!(
        "Seed {}: {} with {}.\n",
        plan.seed,
        count(shape.nodes.into(), "node"),
        count(shape.resources.len() as u64, "resource")
    );
    for (number, resource) in shape.resources.iter().enumerate() {
        let nodes: Vec<_> = resource.replicas.iter().map(|node| format!("n{node}")).collect();
        let sizes: Vec<_> = resource.volumes.iter().map(u64::to_string).collect();
        let _ = writeln!(
            text,
            "r{number} has its replicas on {}, volumes of {} blocks, a journal of {}{}.",
            list(&nodes),
            list(&sizes),
            resource.journal_blocks,
            if resource.service { format!(", and the service s{number} on top") } else { String::new() },
        );
    }
    let _ = writeln!(
        text,
        "Leases last {} ms, heartbeats come every {} ms, the margin is {} ms. A message takes about {} µs, a durable write {} µs.",
        shape.lease_ms, shape.heartbeat_ms, shape.margin_ms, shape.latency_us, shape.disk_us
    );
    if shape.clock_ppm.iter().any(|ppm| *ppm != 0) {
        let clocks: Vec<_> =
            shape.clock_ppm.iter().zip(1..).map(|(ppm, node)| format!("n{node} {ppm:+}")).collect();
        let _ = writeln!(text, "Clocks are off, in parts per million: {}.", clocks.join(", "));
    }
    let shares = [
        (shape.datagram_loss, "of the agents' datagrams are lost"),
        (shape.datagram_duplicate, "come twice"),
        (shape.datagram_late, "come late"),
        (shape.proposal_loss, "of the proposals to the control plane are lost or stay unknown"),
    ];
    let shares: Vec<_> =
        shares.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} per mille {what}")).collect();
    if !shares.is_empty() {
        let _ = writeln!(text, "{}.", capital(&list(&shares)));
    }
    if shape.devices_stay {
        text.push_str("The kernel keeps the devices of an engine that dies.\n");
    }
    if plan.unsurvivable {
        text.push_str(
            "There is damage that no cluster survives: the only right end is correct data or a clear stop.\n",
        );
    }
    steps(plan, &mut text);
    let at = seconds(plan.heal_at_ms);
    let _ = match shape.away.nodes.as_slice() {
        [] => writeln!(text, "At {at} faults end: everything is healed and must converge."),
        away => {
            let nodes: Vec<_> = away.iter().map(|node| format!("n{node}")).collect();
            let how = if shape.away.cut { "cut off, each from every other node" } else { "switched off" };
            writeln!(
                text,
                "At {at} faults end, but for {}: {how} until the others have converged. Then they are back, and everything must converge.",
                list(&nodes)
            )
        }
    };
    text
}

fn steps(plan: &Plan, text: &mut String) {
    let is_client = |action: &Action| matches!(action, Action::Client { .. });
    let clients = plan.steps.iter().filter(|step| is_client(&step.action)).count();
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    text.push('\n');
    for step in &plan.steps {
        match &step.action {
            Action::Client { op, .. } if clients > CLIENT_STEPS_MAX => {
                *counts.entry(verb(op)).or_default() += 1
            }
            action => {
                let _ = writeln!(text, "  {:>9}  {}", seconds(step.at_ms), capital(&self::action(action)));
            }
        }
    }
    if !counts.is_empty() {
        let texts: Vec<_> = counts.into_iter().map(|(verb, n)| count(n, verb)).collect();
        let _ = writeln!(text, "  all along  {}", list(&texts));
    }
    text.push('\n');
}

/// Returns the action in words, without a capital and without a full stop.
#[must_use]
pub fn action(action: &Action) -> String {
    match action {
        Action::Client { resource, op } => format!("clients of r{resource}: {}", client_op(op)),
        Action::Operator(operator) => format!("the operator {}", self::operator(operator)),
        Action::Fault(fault) => self::fault(fault),
    }
}

fn operator(operator: &Operator) -> String {
    match *operator {
        Operator::Move { resource, pick } => format!("moves s{resource} (choice {pick})"),
        Operator::ApplyService { resource, prefer: None } => format!("applies s{resource} again"),
        Operator::ApplyService { resource, prefer: Some(pick) } => {
            format!("applies s{resource}, which is to prefer a node (choice {pick})")
        }
        Operator::DeleteService { resource } => format!("deletes s{resource}"),
        Operator::StopService { resource } => format!("stops s{resource}"),
        Operator::Maintain { resource, rests, for_ms } => {
            let what = match rests {
                Rests::Service => format!("s{resource}"),
                Rests::Node => format!("the node of the primary of r{resource}"),
                Rests::Cluster => "the cluster".to_owned(),
            };
            let end = if for_ms == 0 { String::new() } else { format!(" for {for_ms} ms") };
            format!("begins the maintenance of {what}{end}")
        }
        Operator::EndMaintenance { resource } => {
            format!("ends all maintenance that s{resource} is in")
        }
        Operator::Cordon { resource, drain: false } => {
            format!("cordons the node of the primary of r{resource}")
        }
        Operator::Cordon { resource, drain: true } => {
            format!("drains the node of the primary of r{resource}")
        }
        Operator::Uncordon { resource } => format!("opens all nodes again (r{resource})"),
        Operator::Tie { resource, other, tie } => {
            let how = match tie {
                Tie::After => "after",
                Tie::With => "with",
                Tie::Apart => "apart from",
            };
            format!("has s{resource} run {how} s{other}")
        }
        Operator::StartService { resource } => format!("starts s{resource}"),
        Operator::RestartService { resource, last: false } => format!("restarts s{resource}"),
        Operator::RestartService { resource, last: true } => {
            format!("restarts the last process of s{resource}")
        }
        Operator::CreateResource { resource } => format!("makes r{resource}"),
        Operator::DeleteResource { resource } => format!("deletes r{resource}"),
        Operator::Scrub { resource, repair, rate } => {
            let repair = if repair { " with repair" } else { "" };
            let rate = if rate > 0 { format!(", {rate} bytes per second") } else { String::new() };
            format!("scrubs r{resource}{repair}{rate}")
        }
        Operator::StopScrub { resource } => format!("ends the scrub of r{resource}"),
        Operator::SetScrub { resource, interval_ms: 0, .. } => {
            format!("wants no scrubs of r{resource} but those that he asks for")
        }
        Operator::SetScrub { resource, interval_ms, .. } => {
            format!("wants r{resource} to be scrubbed every {}", length(interval_ms))
        }
        Operator::Digest { resource, hold_ms } => {
            format!("compares the replicas of r{resource}, with writes held for {}", length(hold_ms))
        }
        Operator::AddReplica { resource, pick } => format!("adds a replica of r{resource} (choice {pick})"),
        Operator::RemoveReplica { resource, pick } => {
            format!("removes a replica of r{resource} (choice {pick})")
        }
        Operator::MoveReplica { resource, from, to } => {
            format!("moves a replica of r{resource} (choices {from} and {to})")
        }
        Operator::Grow { resource, volume, blocks } => {
            format!("wants volume {volume} of r{resource} to have {blocks} blocks")
        }
        Operator::RollBack { resource, pick, keep, restart } => {
            let kept = if keep { "keeping what is there" } else { "keeping nothing" };
            let service = if restart { "" } else { ", if no service runs there" };
            format!("rolls r{resource} back to a snapshot (choice {pick}), {kept}{service}")
        }
        Operator::Attach { resource, pick, wait_ms, take_over } => {
            let over = if take_over { ", even from another one" } else { "" };
            format!(
                "attaches r{resource} to a node without a replica ({pick}), which waits for {wait_ms} ms{over}"
            )
        }
        Operator::Detach { resource } => format!("detaches r{resource}"),
        Operator::Snapshot { resource, drop: None } => format!("takes a snapshot of r{resource}"),
        Operator::Snapshot { resource, drop: Some(pick) } => {
            format!("deletes a snapshot of r{resource} (choice {pick})")
        }
        Operator::ModeB { resource } => format!("puts r{resource} into mode B"),
        Operator::MinCopies { resource, copies, suspend_ms } => {
            let wait = length(suspend_ms);
            format!("wants {copies} copies of r{resource} at least; with fewer requests wait {wait} and fail")
        }
        Operator::SetMode { resource, a: None } => format!("puts r{resource} into mode C"),
        Operator::SetMode { resource, a: Some((blocks, ms, takeover)) } => {
            let takeover = if takeover { " and takeover" } else { "" };
            format!("puts r{resource} into mode A, with a lag of {blocks} blocks or {ms} ms{takeover}")
        }
        Operator::Force { resource, pick } => {
            format!("goes on without what only the dead have of r{resource} (choice {pick})")
        }
        Operator::JoinAgain { pick } => format!("has a node join again (choice {pick})"),
    }
}

/// Returns the request of a client in words.
#[must_use]
pub fn client_op(op: &ClientOp) -> String {
    match *op {
        ClientOp::Flush => "flush".into(),
        ClientOp::Write { volume, block, blocks }
        | ClientOp::Read { volume, block, blocks }
        | ClientOp::Discard { volume, block, blocks }
        | ClientOp::WriteZeroes { volume, block, blocks } => {
            let verb = verb(op);
            if blocks == 1 {
                format!("{verb} block {block} of v{volume}")
            } else {
                format!("{verb} blocks {block} to {} of v{volume}", block + blocks - 1)
            }
        }
    }
}

fn verb(op: &ClientOp) -> &'static str {
    match op {
        ClientOp::Write { .. } => "write",
        ClientOp::Read { .. } => "read",
        ClientOp::Discard { .. } => "discard",
        ClientOp::WriteZeroes { .. } => "zero",
        ClientOp::Flush => "flush",
    }
}

/// Returns the fault in words.
#[must_use]
pub fn fault(fault: &Fault) -> String {
    let restarted = |ms: u64| {
        if ms == 0 { "started again at once".into() } else { format!("started again after {}", length(ms)) }
    };
    match *fault {
        Fault::PowerCut(at) => format!("the power of {} is cut", target(at)),
        Fault::PowerOn(at) => format!("{} gets power", target(at)),
        Fault::PowerCutAll => "the power of all is cut".into(),
        Fault::PowerOnAll => "all get power".into(),
        Fault::KillEngine { target: at, restart_after_ms } => {
            format!("the engine of {} is killed, and {}", target(at), restarted(restart_after_ms))
        }
        Fault::ReplaceEngine { target: at, gap_ms } => {
            format!("the engine of {} is replaced, and the next one {}", target(at), restarted(gap_ms))
        }
        Fault::KillAgent { target: at, restart_after_ms } => {
            format!("the agent of {} is killed, and {}", target(at), restarted(restart_after_ms))
        }
        Fault::PauseMachine { target: at, ms } => format!("{} stands still for {}", target(at), length(ms)),
        Fault::PauseEngine { target: at, ms } => {
            format!("the engine of {} stands still for {}", target(at), length(ms))
        }
        Fault::PauseAgent { target: at, ms } => {
            format!("the agent of {} stands still for {}", target(at), length(ms))
        }
        Fault::StepClock { target: at, by_ms } => {
            let way = if by_ms < 0 { "back" } else { "ahead" };
            format!("the wall clock of {} steps {way} by {}", target(at), length(by_ms.unsigned_abs()))
        }
        Fault::Cut(a, b) => format!("{} and {} are cut off from each other", target(a), target(b)),
        Fault::CutAgents(a, b) => {
            format!("the agents of {} and {} are cut off from each other", target(a), target(b))
        }
        Fault::CutEngines(a, b) => {
            format!("the engines of {} and {} are cut off from each other", target(a), target(b))
        }
        Fault::CutOneWay(a, b) => format!("nothing from {} reaches {}", target(a), target(b)),
        Fault::Isolate(at) => format!("{} is cut off from all", target(at)),
        Fault::Partition(side) => {
            let nodes: Vec<_> =
                (0..64).filter(|bit| side >> bit & 1 == 1).map(|bit| format!("n{}", bit + 1)).collect();
            if nodes.is_empty() {
                "a partition with no node on one side".into()
            } else {
                format!("{} and the rest are cut off from each other", list(&nodes))
            }
        }
        Fault::Heal => "the network is whole again".into(),
        Fault::SlowLink { a, b, factor } => {
            format!("everything between {} and {} takes {factor} times longer", target(a), target(b))
        }
        Fault::NarrowLink { a, b, kib_per_s } => {
            format!("{kib_per_s} KiB a second go through between {} and {}", target(a), target(b))
        }
        Fault::Reset(a, b) => format!("the connection of {} and {} breaks", target(a), target(b)),
        Fault::CorruptFrame(a, b) => {
            format!("a bit of the next frame from {} to {} flips", target(a), target(b))
        }
        Fault::Disk { target: at, resource, fault } => {
            format!("disk of r{resource} on {}: {}", target(at), disk_fault(fault))
        }
        Fault::LeaderChange => "another node leads the control plane".into(),
        Fault::LoseProposals => "proposals under way to the control plane get lost or stay unknown".into(),
        Fault::Trap { resource, moment, skip, deed } => {
            let after = if skip == 0 { String::new() } else { format!(" but {skip}") };
            format!(
                "at the next moment{after} when, of r{resource}, {}: {}",
                self::moment(moment),
                self::deed(deed)
            )
        }
        Fault::Snapshot(at) => format!("{} gets the control plane's state whole", target(at)),
        Fault::Service { target: at, resource, fault } => {
            format!("s{resource} on {}: {}", target(at), service_fault(fault))
        }
    }
}

fn moment(moment: Moment) -> &'static str {
    match moment {
        Moment::Grow => "a member is proposed",
        Moment::Shrink => "the removal of a member is proposed",
        Moment::Promote => "a primary is proposed",
        Moment::StepDown => "the primary proposes to be relieved",
        Moment::CopyBegin => "a copy begins",
        Moment::CopyBegun => "a copy has begun",
        Moment::CopyExtent => "an extent is sent",
        Moment::CopyEnd => "the end of a copy is sent",
        Moment::Cut => "a replica is told to cut its tail",
        Moment::CutReply => "a replica has cut its tail",
        Moment::Propose(what) => proposed(what),
    }
}

fn proposed(what: Proposed) -> &'static str {
    match what {
        Proposed::AddNode => "a node is said to join again",
        Proposed::NodeDead => "a node is said to be dead",
        Proposed::NodeRejoin => "a node wants to be taken back",
        Proposed::CreateResource => "its making is proposed",
        Proposed::DeleteResource => "its deletion is proposed",
        Proposed::ReplicaReady => "a replica is said to be made",
        Proposed::ReplicaBroken => "a replica is said to be of no use",
        Proposed::ReplicaOpened => "a replica is said to be of use again",
        Proposed::ReplicaReopened => "a replica is said to be opened anew",
        Proposed::ReplicaGone => "a replica is said to be gone",
        Proposed::AddReplica => "a new replica is proposed",
        Proposed::RemoveReplica => "the removal of a replica is proposed",
        Proposed::MoveReplica => "the move of a replica is proposed",
        Proposed::MovePrimary => "the move of its primary is proposed",
        Proposed::FinishMove => "the end of a move is proposed",
        Proposed::GrowVolume => "the growth of a volume is proposed",
        Proposed::VolumeGrown => "a volume is said to have grown",
        Proposed::TakeSnapshot => "a snapshot is proposed",
        Proposed::DropSnapshot => "the deletion of a snapshot is proposed",
        Proposed::SnapshotsSeen => "snapshots are reported",
        Proposed::RollBack => "a rollback is proposed",
        Proposed::AttachResource => "its attachment is proposed",
        Proposed::DetachResource => "the end of its attachment is proposed",
        Proposed::ClaimAttachment => "a client is said to be open",
        Proposed::SetMode => "a mode is proposed",
        Proposed::SetMinCopies => "how many copies there have to be is proposed",
        Proposed::SetScrub => "a schedule of its scrubs is proposed",
        Proposed::BeginScrub => "a scrub is proposed, as one is due",
        Proposed::ScrubEnded => "a scrub is said to have ended",
        Proposed::ForcePromote => "a forced promotion is proposed",
        Proposed::Trust => "an unverified replica is proposed to be trusted",
        Proposed::FailoverReady => "a follower is proposed to be failover-ready",
        Proposed::NotFailoverReady => "a follower is proposed to be failover-ready no longer",
        Proposed::Memory => "the memory of a member is proposed to count, or not to",
        Proposed::Part => "parting with a replica is proposed",
        Proposed::ApplyService => "its service is applied",
        Proposed::DeleteService => "the deletion of its service is proposed",
        Proposed::ServiceGone => "its service is said to be gone",
        Proposed::MoveService => "the move of its service is proposed",
        Proposed::SetMaintenance => "a maintenance is proposed to begin or end",
        Proposed::MaintenanceCounted => "what is left of a maintenance is recorded",
        Proposed::SetCordon => "a node is proposed to be cordoned, or open again",
        Proposed::StopService => "the stop of its service is proposed",
        Proposed::StartService => "the start of its service is proposed",
        Proposed::RestartService => "a restart of its service is proposed",
        Proposed::ServiceRestarted => "its service is said to be restarted",
        Proposed::ServiceStatus => "its service is reported on",
    }
}

/// Returns in words what a trap does.
#[must_use]
pub fn deed(deed: Deed) -> String {
    let side = |side: Side| if side == Side::Actor { "the node that does so" } else { "its peer" };
    match deed {
        Deed::Late { ms } => format!("that comes {} late", length(ms)),
        Deed::LeaderChange => "another node leads the control plane".into(),
        Deed::KillEngine { whom, restart_after_ms } => {
            format!("the engine of {} is killed for {}", side(whom), length(restart_after_ms))
        }
        Deed::KillAgent { whom, restart_after_ms } => {
            format!("the agent of {} is killed for {}", side(whom), length(restart_after_ms))
        }
        Deed::PowerCut { whom, on_after_ms } => {
            format!("the power of {} is cut for {}", side(whom), length(on_after_ms))
        }
        Deed::Reset => "the connection of both breaks".into(),
        Deed::LateDisk { whose, what, ms } => {
            format!("on the disk of {} {}", side(whose), disk_fault(DiskFault::Late { what, ms }))
        }
    }
}

fn disk_op(what: DiskOp) -> &'static str {
    match what {
        DiskOp::Read => "read",
        DiskOp::JournalWrite => "write to the journal",
        DiskOp::VolumeWrite => "write to a volume",
        DiskOp::MetaWrite => "write to the meta area",
        DiskOp::Flush => "flush",
    }
}

/// Returns in words what happens to a disk.
#[must_use]
pub fn disk_fault(fault: DiskFault) -> String {
    match fault {
        DiskFault::Late { what, ms } => format!("the next {} takes {}", disk_op(what), length(ms)),
        DiskFault::ReadOnly => "every write fails".into(),
        DiskFault::Full => "has no space for new blocks of volumes".into(),
        DiskFault::Room => "has space again".into(),
        DiskFault::Slow { factor: 1 } => "is as fast as before".into(),
        DiskFault::Slow { factor } => format!("takes {factor} times longer"),
        DiskFault::Stall { ms } => format!("stands still for {}", length(ms)),
        DiskFault::WriteError => "the next write fails".into(),
        DiskFault::FlushError => "the next flush fails".into(),
        DiskFault::ReadError => "the next read fails".into(),
        DiskFault::Vanish => "is gone".into(),
        DiskFault::RotSuperblock { copy } => format!("copy {copy} of the superblock rots"),
        DiskFault::RotSuperblocks => "all copies of the superblock rot".into(),
        DiskFault::RotJournal { .. } => "a record of the journal rots".into(),
        DiskFault::RotVersions { .. } => "the version table rots".into(),
        DiskFault::LostRecord { .. } => "a record of the journal was never written".into(),
        DiskFault::MisdirectedRecord { .. } => "a record of the journal has landed elsewhere in it".into(),
        DiskFault::StaleRecord { .. } => "the next read of a record of the journal is stale".into(),
        DiskFault::LostVersions { .. } => "a page of the version table was never written".into(),
        DiskFault::MisdirectedVersions { .. } => "a page of the version table has landed on another".into(),
        DiskFault::StaleVersions { .. } => "the next read of a page of the version table is stale".into(),
        DiskFault::LostSuperblock { copy } => {
            format!("the last write of copy {copy} of the superblock was lost")
        }
        DiskFault::LostBlock { .. } => "a block of a volume was never written".into(),
        DiskFault::RotVolume { .. } => "a block of a volume rots".into(),
        DiskFault::LostWrite => "the next durable write is acknowledged and lost".into(),
        DiskFault::Misdirect => "the next write lands elsewhere".into(),
        DiskFault::StaleRead => "the next read gives what was there before".into(),
        DiskFault::LyingFlush => "acknowledges from a cache until the next power cut".into(),
        DiskFault::KeepImage => "an image of it is kept".into(),
        DiskFault::OldImage => "is the kept image at the next start".into(),
        DiskFault::Replace => "is replaced by an empty one".into(),
        DiskFault::Remove => "is emptied by an operator".into(),
        DiskFault::OtherFiles => "has the files of another replica put in its place".into(),
        DiskFault::Copied => "has a file replaced by a copy of it".into(),
    }
}

fn service_fault(fault: ServiceFault) -> &'static str {
    match fault {
        ServiceFault::IgnoreStop => "ignores the stop signal",
        ServiceFault::Hang => "the next step hangs",
        ServiceFault::FailStart => "does not start",
        ServiceFault::KeepAddress => "the address cannot be taken away once",
        ServiceFault::Dies => "its process ends",
        ServiceFault::LateInterface => "the interface of its address comes late",
        ServiceFault::AddressByHand => "an administrator sets its address by hand",
        ServiceFault::Unmounted => "its file system is unmounted by an operator",
        ServiceFault::Replaced => "an operator mounts another file system in the place of its own",
        ServiceFault::StandsStill => "its process stands still",
        ServiceFault::FailProbe => "its next probe fails",
        ServiceFault::Recovers => "its process recovers from a crash",
        ServiceFault::PagesTear => "pages of its files can tear",
        ServiceFault::Well => "is well again",
    }
}

/// Returns the target of a fault in words.
#[must_use]
pub fn target(target: Target) -> String {
    match target {
        Target::Node(node) => node.to_string(),
        Target::Primary(resource) => format!("the primary of r{resource}"),
        Target::Secondary(resource, pick) => format!("a secondary of r{resource} (choice {pick})"),
        Target::Leader => "the control plane's leader".into(),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

fn length(ms: u64) -> String {
    if ms < 1000 { format!("{ms} ms") } else { seconds(ms) }
}

fn count(n: u64, what: &str) -> String {
    let ending = match n {
        1 => "",
        _ if what.ends_with("sh") => "es",
        _ => "s",
    };
    format!("{n} {what}{ending}")
}

fn list(of: &[String]) -> String {
    match of {
        [] => "none".into(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// With a capital, unless it begins with a name such as n1, r0 or s0.
fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    if matches!(first, 'n' | 'r' | 's') && chars.clone().next().is_some_and(|next| next.is_ascii_digit()) {
        return text.to_owned();
    }
    first.to_uppercase().chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Away, Step};
    use crate::swarm;
    use mainstay_types::NodeId;

    #[test]
    fn a_plan_is_told_in_full() {
        let mut made = swarm::plan(7);
        made.steps = vec![
            Step { at_ms: 1500, action: Action::Fault(Fault::PowerCut(Target::Primary(0))) },
            Step {
                at_ms: 1500,
                action: Action::Client {
                    resource: 0,
                    op: ClientOp::Write { volume: 1, block: 3, blocks: 2 },
                },
            },
            Step { at_ms: 12_034, action: Action::Fault(Fault::Partition(0b101)) },
            Step {
                at_ms: 13_000,
                action: Action::Fault(Fault::KillAgent {
                    target: Target::Node(NodeId(2)),
                    restart_after_ms: 30,
                }),
            },
        ];
        made.shape.away = Away { nodes: vec![1, 3], cut: true };
        let text = plan(&made);
        assert!(text.contains("but for n1 and n3: cut off"), "{text}");
        for line in [
            "    1.500 s  The power of the primary of r0 is cut",
            "    1.500 s  Clients of r0: write blocks 3 to 4 of v1",
            "   12.034 s  n1 and n3 and the rest are cut off from each other",
            "   13.000 s  The agent of n2 is killed, and started again after 30 ms",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn many_client_steps_are_counted() {
        let made = swarm::plan(1);
        let text = plan(&made);
        assert!(text.contains("all along") && text.contains(" writes") && !text.contains("flushs"), "{text}");
        assert!(text.lines().count() < made.steps.len());
    }
}
