//! Words for the acts and messages of cores, for the lines of a trace. This module decides nothing,
//! and makes words only for lines that are kept.

use mainstay_codec::{Envelope, Message, Reject};
use mainstay_control::maintenance::Scope;
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{
    BLOCK_BYTES, DataState, Epoch, Index, IssChange, Key, NodeId, Range, ResourceId, Role, ServicePhase,
    SnapshotOn,
};

/// The resource's name: r0, r1, ... in the order of the plan, as in the names of services. Ids
/// count from 1.
#[must_use]
pub fn resource(id: ResourceId) -> String {
    format!("r{}", id.0.saturating_sub(1))
}

/// Returns in words the answer to the proposer of a command.
#[must_use]
pub fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Unchanged => "it was so already".into(),
        Outcome::NodeAdded { node, .. } => format!("it is {node}"),
        Outcome::ResourceCreated { resource: of } => format!("it is {}", resource(*of)),
        Outcome::Conflict { .. } => "the record is not the one that it was based on".into(),
        Outcome::Refused(refusal) => format!("refused, {}: {}", refusal.message, refusal.remedy),
    }
}

/// Returns in words what a node asks the control plane for. The text is to be read after "asks to"
/// and after "entry 7:".
#[must_use]
pub fn command(command: &Command) -> String {
    match command {
        Command::InitCluster { name, .. } => format!("make the cluster {name}"),
        Command::AuditBegun { asked } => format!("{} asks for {}", asked.who, asked.action),
        Command::AuditEnded { id, result } => format!("request {id:x} ended with {}", result.status),
        Command::AddNode { name, .. } => format!("add the node {name}"),
        Command::AdmitNode { name, .. } => format!("let the node {name} join without a vote"),
        Command::SetAuthority { authority } => format!("take authority {}", authority.number),
        Command::GiveCertificate { node, .. } => format!("give {node} a certificate"),
        Command::CreateToken { node, .. } => format!("make a token for {node}"),
        Command::RevokeToken { id } => format!("revoke the token {id:x}"),
        Command::AnnounceAuthority { authority } => format!("announce authority {}", authority.number),
        Command::ConfirmAuthority { node, authority, certified: false } => {
            format!("note that {node} believes authority {authority}")
        }
        Command::ConfirmAuthority { node, authority, certified: true } => {
            format!("note that {node} has a certificate of authority {authority}")
        }
        Command::AdvanceRotation { authority, .. } => {
            format!("go on with the rotation to authority {authority}")
        }
        Command::CancelRotation { authority } => format!("withdraw authority {authority}"),
        Command::LeaveOut { authority, .. } => format!("go on to authority {authority} without dead nodes"),
        Command::CreateApiToken { name, access, .. } => format!("make the token {name} for `{access}`"),
        Command::RevokeApiToken { name } => format!("revoke the token {name}"),
        Command::ApiTokenUsed { id } => format!("note that the token {id:x} was used"),
        Command::SeatNode { node } => format!("give {node} its vote"),
        Command::RemoveNode { node, .. } => format!("remove {node} from the cluster"),
        Command::ReplaceNode { node, by } => format!("put {by} in the place of {node}"),
        Command::SetVote { node, votes: true } => format!("give {node} a vote"),
        Command::SetVote { node, votes: false } => format!("take the vote of {node}"),
        Command::SetAddress { node, agent_addr, .. } => format!("note that {node} is at {agent_addr}"),
        Command::WithdrawNode { .. } => "forget a node that could not join".into(),
        Command::VotersSeen { node, .. } => format!("note that {node} knows the voters"),
        Command::NodeFitness { node, unfit: None } => format!("{node} may be primary"),
        Command::NodeFitness { node, unfit: Some(why) } => format!("{node} is not to be primary: {why}"),
        Command::Fenced { node, result: Ok(by), .. } => format!("{node} was switched off by {by}"),
        Command::Fenced { node, result: Err(why), .. } => format!("{node} is not switched off: {why}"),
        Command::ConfirmOff { node } => format!("an operator says that {node} is off"),
        Command::NodeLevel { node, level } => format!("note that {node} has feature level {level}"),
        Command::RaiseLevel { level } => format!("raise the feature level to {level}"),
        Command::NodeLinks { node, .. } => format!("note the interfaces of {node}"),
        Command::RetryService { name, .. } => format!("try the service {name} again"),
        Command::NodeDead { node, .. } => format!("declare {node} dead"),
        Command::NodeRejoin { node, .. } => format!("take {node} back as alive"),
        Command::CreateResource { name, .. } => format!("make the resource {name}"),
        Command::ReplicaReady { resource: of, version, node, incarnation } => {
            let (of, disk) = (resource(*of), disk(incarnation.0));
            format!("note that {node} has made a replica of {of} ({disk}; if it is still {version})")
        }
        Command::ReplicaBroken { resource: of, version, node, reason, .. } => {
            let of = resource(*of);
            format!("note that {node} cannot use its replica of {of} (if it is still {version}): {reason}")
        }
        Command::ReplicaOpened { resource: of, node, .. } => {
            format!("note that {node} can use its replica of {} again", resource(*of))
        }
        Command::DeleteResource { resource: of } => format!("delete {}", resource(*of)),
        Command::AddReplica { resource: of, node } => format!("add a replica of {} on {node}", resource(*of)),
        Command::RemoveReplica { resource: of, node } => {
            format!("remove the replica of {} on {node}", resource(*of))
        }
        Command::MoveReplica { resource: of, from, to } => {
            format!("move the replica of {} on {from} to {to}", resource(*of))
        }
        Command::MovePrimary { resource: of, to } => {
            format!("move the primary of {} to {to}", resource(*of))
        }
        Command::GrowVolume { resource: of, volume, bytes } => {
            format!("have {volume} of {} grow to {} blocks", resource(*of), bytes / BLOCK_BYTES)
        }
        Command::VolumeGrown { resource: of, volume, bytes, .. } => {
            format!("note that {volume} of {} has {} blocks", resource(*of), bytes / BLOCK_BYTES)
        }
        Command::MakeFileSystem { resource: of, volume, uuid, .. } => {
            let whole = if uuid.is_some() { "being made" } else { "whole" };
            format!("note that the file system on {volume} of {} is {whole}", resource(*of))
        }
        Command::TakeSnapshot { resource: of, name } => {
            format!("take snapshot {name} of {}", resource(*of))
        }
        Command::DropSnapshot { resource: of, name } => {
            format!("delete snapshot {name} of {}", resource(*of))
        }
        Command::RollBack { resource: of, name, .. } => {
            format!("roll {} back to snapshot {name}", resource(*of))
        }
        Command::SnapshotsSeen { resource: of, node, seen } => {
            let held = |(id, on): &(mainstay_types::SnapshotId, SnapshotOn)| format!("{id} {:?}", on.state);
            let held: Vec<_> = seen.iter().map(held).collect();
            format!("note what {node} has of snapshots of {}: {}", resource(*of), held.join(", "))
        }
        Command::AttachResource { resource: of, node, take_over, .. } => {
            let over = if *take_over { ", from any holder" } else { "" };
            format!("attach {} to {node}{over}", resource(*of))
        }
        Command::DetachResource { resource: of } => format!("detach {}", resource(*of)),
        Command::ClaimAttachment { resource: of, session, node, instance } => {
            format!(
                "note that {node} has opened a client of {} ({instance}, if it is still {session})",
                resource(*of)
            )
        }
        Command::BeginScrub { resource: of, epoch } => {
            format!("scrub {} as that is due, in {epoch}", resource(*of))
        }
        Command::ScrubEnded { resource: of, seen, .. } => {
            let (state, done) = (seen.state, seen.done);
            format!("note how a scrub of {} ended: {state:?} after {done} extents", resource(*of))
        }
        Command::FinishMove { resource: of, from, to } => {
            format!("end the move of {} from {from}, as {to} is in sync", resource(*of))
        }
        Command::ReplicaGone { resource: of, node } => {
            format!("note that the replica of {} on {node} is gone", resource(*of))
        }
        Command::ChangeIss { resource: of, version, change: IssChange::Shrink { remove, .. }, .. } => {
            format!(
                "remove {} from the in-sync set of {} (if it is still {version})",
                remove.node,
                resource(*of)
            )
        }
        Command::ChangeIss { resource: of, version, change: IssChange::Grow { add }, .. } => {
            format!("add {} to the in-sync set of {} (if it is still {version})", add.node, resource(*of))
        }
        Command::ChangeIss { resource: of, version, change: IssChange::FailoverReady { member }, .. } => {
            format!(
                "record that {} is failover-ready, of {}, on version {version}",
                member.node,
                resource(*of)
            )
        }
        Command::ChangeIss {
            resource: of, version, change: IssChange::NotFailoverReady { member }, ..
        } => {
            format!(
                "record that {} is not failover-ready, of {}, on version {version}",
                member.node,
                resource(*of)
            )
        }
        Command::ChangeIss { resource: of, version, change: IssChange::Trust { member }, .. } => {
            format!("trust {} with {}, on version {version}", member.node, resource(*of))
        }
        Command::ChangeIss {
            resource: of,
            version,
            change: IssChange::Memory { member, instance: Some(instance) },
            ..
        } => {
            let (node, of) = (member.node, resource(*of));
            format!("record that the memory of {node} counts for {of} in {instance}, on version {version}")
        }
        Command::ChangeIss {
            resource: of,
            version,
            change: IssChange::Memory { member, instance: None },
            ..
        } => {
            let (node, of) = (member.node, resource(*of));
            format!("record that the memory of {node} counts no more for {of}, on version {version}")
        }
        Command::ReplicaReopened { resource: of, version, node, instance, end, .. } => {
            let of = resource(*of);
            format!(
                "note that the replica of {of} on {node} was opened anew in {instance}, ends at {end}, on version {version}"
            )
        }
        Command::ChangeIss {
            resource: of, version, change: IssChange::Part { member, common, end }, ..
        } => {
            let (node, of) = (member.node, resource(*of));
            format!(
                "part with the replica of {of} on {node}, which left the history at {common} and ends at {end}, on version {version}"
            )
        }
        Command::ChangeSettings { resource: of, version, changes } => {
            let one = |(key, value): (&Key, &Option<u64>)| {
                let setting = key.setting();
                let value = value.map_or_else(|| "default".to_owned(), |value| setting.write(value));
                format!("{}={value}", setting.name)
            };
            let of = of.map_or_else(|| "the cluster".to_owned(), resource);
            let version = version.map_or_else(String::new, |version| format!(", on version {version}"));
            format!("set {} of {of}{version}", changes.iter().map(one).collect::<Vec<_>>().join(" "))
        }
        Command::ForcePromote { resource: of, version, to, end, .. } => {
            format!(
                "go on with {} from {}, whose log ends at {end}, on version {version}",
                resource(*of),
                to.node
            )
        }
        Command::Promote { resource: of, expect_version, to, reason, .. } => {
            format!("make {to} the primary of {} (if it is still {expect_version}): {reason}", resource(*of))
        }
        Command::StepDown { resource: of, version, node, reason } => {
            format!("relieve {node}, the primary of {} (if it is still {version}): {reason}", resource(*of))
        }
        Command::ApplyService { spec } => format!("take over the definition of {}", spec.name),
        Command::DeleteService { name } => format!("delete {name}"),
        Command::ServiceGone { name } => format!("note that {name} is gone"),
        Command::MoveService { name, to } => format!("move {name} to {to}"),
        Command::StopService { name } => format!("stop {name}"),
        Command::SetMaintenance { scope, on: true, for_ms } => {
            let end = for_ms.map(|ms| format!(" for {ms} ms")).unwrap_or_default();
            format!("begin the maintenance of {}{end}", self::scope(scope))
        }
        Command::SetMaintenance { scope, on: false, .. } => {
            format!("end the maintenance of {}", self::scope(scope))
        }
        Command::MaintenanceCounted { scope, left_ms, .. } => {
            format!("note that {left_ms} ms of the maintenance of {} are left", self::scope(scope))
        }
        Command::SetCordon { node, on: false, .. } => format!("open {node} again"),
        Command::SetCordon { node, drain: false, .. } => format!("cordon {node}"),
        Command::SetCordon { node, drain: true, .. } => format!("drain {node}"),
        Command::StartService { name } => format!("start {name}"),
        Command::RestartService { name, process: None } => format!("restart {name}"),
        Command::RestartService { name, process: Some(process) } => {
            format!("restart {process} of {name}")
        }
        Command::ServiceRestarted { name, number } => {
            format!("note that {name} is restarted (wish {number})")
        }
        Command::Note { subject, text, .. } => format!("note about {subject}: {text}"),
        Command::ServiceStatus { name, node, phase, epoch, detail, .. } => {
            let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
            format!("note that {name} is {} on {node} in {epoch}{detail}", self::phase(*phase))
        }
    }
}

/// The last digits are enough to tell two disks apart.
fn disk(incarnation: u64) -> String {
    format!("disk {:04x}", incarnation & 0xffff)
}

fn phase(phase: ServicePhase) -> &'static str {
    match phase {
        ServicePhase::Stopped => "stopped",
        ServicePhase::Starting => "starting",
        ServicePhase::Running => "running",
        ServicePhase::Stopping => "stopping",
        ServicePhase::BackingOff => "waiting for another attempt",
        ServicePhase::Killing => "being killed",
        ServicePhase::Failed => "failed for good",
    }
}

/// Returns in words the role that a replica has from now on.
#[must_use]
pub fn role(of: ResourceId, role: Role, epoch: Epoch) -> String {
    let of = resource(of);
    match role {
        Role::Secondary => format!("{of} follows in {epoch}"),
        Role::Promoting => format!("{of} is to be primary in {epoch} and commits its epoch start first"),
        Role::Primary => format!("{of} is primary in {epoch} and serves"),
        Role::Fenced => format!("{of} neither serves nor follows"),
    }
}

/// Returns in words the state of a replica that was found on a disk.
#[must_use]
pub fn data(data: DataState) -> &'static str {
    match data {
        DataState::Consistent => "whole",
        DataState::Inconsistent => "not whole: a copy did not end",
    }
}

/// A message of one engine to another.
#[must_use]
pub fn message(to: NodeId, envelope: &Envelope) -> String {
    let Envelope { epoch, message, .. } = envelope;
    let text = match message {
        Message::Hello { .. } => "hello".into(),
        Message::Ping => "ping".into(),
        Message::Pong => "pong".into(),
        Message::Attach => format!("attach: I am primary in {epoch}"),
        Message::AttachReply(log) => format!(
            "attached in {epoch}: my log ends at {}, committed up to {}, {}",
            log.end,
            log.commit,
            data(log.data)
        ),
        Message::Cut { to: end, .. } => format!("cut your log after {end}"),
        Message::CutReply { end } => format!("my log ends at {end} now"),
        Message::Append(batch) => {
            format!("append {} of {}", indexes(batch.first, batch.last()), batch.epoch)
        }
        Message::Ack { durable } => format!("durable up to {durable}"),
        Message::Received { instance, index } => format!("received up to {index}, in {instance}"),
        Message::Commit { commit } => format!("committed up to {commit}"),
        Message::CopyBegin { at, .. } => format!("a copy begins: restart your log after {at}"),
        Message::CopyBeginReply { at, .. } => format!("ready for the copy, my log begins after {at}"),
        Message::CopyAsk { volume, extent, .. } => {
            format!("what do you hold of extent {extent} of {volume}?")
        }
        Message::CopyHeld { volume, extent, held, .. } => {
            format!(
                "sums of {} blocks of extent {extent} of {volume}, {} damaged",
                held.sums.len(),
                held.damaged.len()
            )
        }
        Message::CopyExtent { volume, extent, version, data, damaged, kept, .. } => {
            let (blocks, lost, kept) = (data.len() / 4096, damaged.len(), kept.len());
            format!(
                "extent {extent} of {volume} as of {version}, {blocks} blocks, {lost} damaged, {kept} kept"
            )
        }
        Message::CopyExtentAck { volume, extent } => format!("have extent {extent} of {volume}"),
        Message::CopyEnd { need } => format!("the copy ends: whole once committed up to {need}"),
        Message::ClientAsk(ask) => {
            let what = match &ask.ask {
                mainstay_codec::Ask::Attach => "attach",
                mainstay_codec::Ask::Write { .. } => "write",
                mainstay_codec::Ask::Discard { .. } => "discard",
                mainstay_codec::Ask::WriteZeroes { .. } => "write zeroes",
                mainstay_codec::Ask::Read { .. } => "read",
                mainstay_codec::Ask::Flush => "flush",
            };
            format!("{} stream {} number {}: {what}", ask.session, ask.stream, ask.number)
        }
        Message::ClientAnswer(answer) => {
            let what = match &answer.answer {
                mainstay_codec::Answered::Attached { .. } => "the stream is open".to_owned(),
                mainstay_codec::Answered::Done => "done".to_owned(),
                mainstay_codec::Answered::Data(_) => "read".to_owned(),
                mainstay_codec::Answered::Unreadable => "no replica has it".to_owned(),
                mainstay_codec::Answered::Refused(why) => format!("refused: {why:?}"),
            };
            format!("{} stream {} number {}: {what}", answer.session, answer.stream, answer.number)
        }
        Message::CopyEndReply => "whole again".into(),
        Message::ScrubSums { at, held } if held.sums.is_empty() => format!("cannot say what it held at {at}"),
        Message::ScrubSums { at, held } if held.damaged.is_empty() => format!("sums of what it held at {at}"),
        Message::ScrubSums { at, held } => {
            format!("sums of what it held at {at}, damaged: {:?}", held.damaged)
        }
        Message::ReadBlocks { range, at } => format!("send {} as of {at} or later", of_volume(*range)),
        Message::BlocksRead { range, data } if data.is_empty() => {
            format!("cannot send {}", of_volume(*range))
        }
        Message::BlocksRead { range, .. } => format!("have {}", of_volume(*range)),
        Message::Rejected(reject) => format!("refused: {}", self::reject(*reject)),
    };
    format!("to {to}, {}: {text}", resource(envelope.resource))
}

fn of_volume(range: Range) -> String {
    format!("{} of {}", blocks(range.first_block(), range.end_block()), range.volume)
}

fn indexes(first: Index, last: Index) -> String {
    if first == last { first.to_string() } else { format!("{first} to {last}") }
}

fn reject(reject: Reject) -> String {
    match reject {
        Reject::Epoch(epoch) => format!("{epoch} is promised here"),
        Reject::Unknown => "no such replica here".into(),
        Reject::Gap(end) => format!("it does not follow {end}, where the log ends"),
        Reject::Chain => "it is of another history".into(),
        Reject::Failed => "the disk here is not used any more".into(),
        Reject::Snapshot => "the snapshot that it goes back to is not here".into(),
    }
}

/// Blocks of a volume, as clients ask for them.
#[must_use]
pub fn blocks(first: u64, end: u64) -> String {
    if end == first + 1 { format!("block {first}") } else { format!("blocks {first} to {}", end.max(1) - 1) }
}

fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Cluster => "the cluster".into(),
        Scope::Node { node } => node.to_string(),
        Scope::Service { name } => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::{ConfigVersion, Incarnation, Member, ShrinkReason};

    #[test]
    fn proposals_are_sentences() {
        let remove = Member { node: NodeId(2), incarnation: Incarnation(7) };
        let shrink = Command::ChangeIss {
            resource: ResourceId(1),
            version: ConfigVersion(5),
            epoch: Epoch(1),
            change: IssChange::Shrink { remove, why: ShrinkReason::Absent },
        };
        assert_eq!(command(&shrink), "remove n2 from the in-sync set of r0 (if it is still c5)");
        let dead = Command::NodeDead { node: NodeId(3), generation: 1 };
        assert_eq!(command(&dead), "declare n3 dead");
    }

    #[test]
    fn blocks_are_counted_to_the_last() {
        assert_eq!([blocks(7, 8), blocks(7, 10)], ["block 7", "blocks 7 to 9"]);
    }
}
