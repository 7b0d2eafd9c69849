//! Checks that the answer to an operator's command is true (H7), when its entry is applied:
//!
//! - *done*: the state has what the operator asked for. Applying the entry once more would change
//!   nothing, so a repetition after an unknown outcome does no harm. The exceptions: applying,
//!   starting and moving a service clear its failures each time, and it is restarted each time.
//! - *unchanged*: the state had it already, and nothing has changed.
//! - *refused*, *conflict*: nothing has changed. A refusal has a code, says why, and names a
//!   remedy.
//!
//! The check compares no events. When something is done, it checks only that some were added.

use mainstay_control::State;
use mainstay_control::snapshots::{BEFORE_COPY, BeforeCopy};
use mainstay_control::state::{Command, Entry, Outcome, Service};
use mainstay_types::{Choices, NodeId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Whether the command comes from an operator, and not from a node.
#[must_use]
pub fn is_operators(command: &Command) -> bool {
    match command {
        Command::AddNode { .. }
        | Command::RemoveNode { .. }
        | Command::ReplaceNode { .. }
        | Command::SetAddress { .. }
        | Command::CreateResource { .. }
        | Command::DeleteResource { .. }
        | Command::AddReplica { .. }
        | Command::RemoveReplica { .. }
        | Command::MoveReplica { .. }
        | Command::MovePrimary { .. }
        | Command::GrowVolume { .. }
        | Command::TakeSnapshot { .. }
        | Command::DropSnapshot { .. }
        | Command::RollBack { .. }
        | Command::AttachResource { .. }
        | Command::DetachResource { .. }
        | Command::ChangeSettings { .. }
        | Command::ForcePromote { .. }
        | Command::ApplyService { .. }
        | Command::DeleteService { .. }
        | Command::StopService { .. }
        | Command::SetMaintenance { .. }
        | Command::SetCordon { .. }
        | Command::StartService { .. }
        | Command::RestartService { .. }
        | Command::MoveService { .. } => true,
        Command::InitCluster { .. }
        | Command::AuditBegun { .. }
        | Command::AuditEnded { .. }
        | Command::MaintenanceCounted { .. }
        | Command::AdmitNode { .. }
        | Command::SetAuthority { .. }
        | Command::GiveCertificate { .. }
        | Command::CreateToken { .. }
        | Command::RevokeToken { .. }
        | Command::AnnounceAuthority { .. }
        | Command::ConfirmAuthority { .. }
        | Command::AdvanceRotation { .. }
        | Command::CancelRotation { .. }
        | Command::LeaveOut { .. }
        | Command::CreateApiToken { .. }
        | Command::RevokeApiToken { .. }
        | Command::ApiTokenUsed { .. }
        | Command::SeatNode { .. }
        | Command::WithdrawNode { .. }
        | Command::SetVote { .. }
        | Command::VotersSeen { .. }
        | Command::NodeLinks { .. }
        | Command::NodeFitness { .. }
        | Command::NodeLevel { .. }
        | Command::RaiseLevel { .. }
        | Command::Fenced { .. }
        | Command::ConfirmOff { .. }
        | Command::RetryService { .. }
        | Command::ServiceRestarted { .. }
        | Command::NodeDead { .. }
        | Command::NodeRejoin { .. }
        | Command::ReplicaReady { .. }
        | Command::ReplicaBroken { .. }
        | Command::ReplicaOpened { .. }
        | Command::ReplicaReopened { .. }
        | Command::FinishMove { .. }
        | Command::ReplicaGone { .. }
        | Command::VolumeGrown { .. }
        | Command::MakeFileSystem { .. }
        | Command::SnapshotsSeen { .. }
        | Command::BeginScrub { .. }
        | Command::ScrubEnded { .. }
        | Command::ClaimAttachment { .. }
        | Command::ChangeIss { .. }
        | Command::Promote { .. }
        | Command::StepDown { .. }
        | Command::ServiceGone { .. }
        | Command::Note { .. }
        | Command::ServiceStatus { .. } => false,
    }
}

/// The state but for its events, of which there may be many.
#[must_use]
pub fn without_events(state: &State) -> State {
    State {
        cluster: state.cluster.clone(),
        level: state.level,
        settings: state.settings,
        choices: state.choices.clone(),
        maintenance: state.maintenance.clone(),
        nodes: state.nodes.clone(),
        resources: state.resources.clone(),
        services: state.services.clone(),
        events: VecDeque::new(),
        revision: state.revision,
        voters_version: state.voters_version,
        last_event: state.last_event,
        last_node: state.last_node,
        last_resource: state.last_resource,
        unfit: state.unfit.clone(),
        fences: state.fences.clone(),
        removed: state.removed.clone(),
        audit: state.audit.clone(),
        identities: state.identities.clone(),
        api_tokens: state.api_tokens.clone(),
    }
}

/// H20: a node was removed, and the voters that live are a majority of those that remain.
///
/// # Errors
/// Their numbers, when they are not.
pub fn a_majority_lives(state: &State) -> Result<&'static str, String> {
    let voters = state.voters();
    let alive = voters.iter().filter(|node| state.alive(**node)).count();
    if alive * 2 > voters.len() {
        return Ok("H20 a removal leaves a majority");
    }
    Err(format!("{alive} of {} voters live after it", voters.len()))
}

/// H19: no record of a resource names a node that was removed.
///
/// # Errors
/// The resource, when one does.
pub fn nothing_names_the_removed(state: &State) -> Result<(), String> {
    if state.removed.is_empty() {
        return Ok(());
    }
    state.check()
}

/// Judges the answer to `entry`, which made `after` of `before`, both without events. Returns a
/// name for counting it.
///
/// # Errors
/// The part of the answer that is not true.
pub fn judge(
    before: &State,
    entry: &Entry,
    outcome: &Outcome,
    after: &State,
) -> Result<&'static str, String> {
    let command = &entry.command;
    let untouched = |answer: &'static str| match before == after {
        true => Ok(answer),
        false => Err(format!("it was answered '{answer}', and something has changed: {outcome:?}")),
    };
    match outcome {
        Outcome::Refused(refusal) => {
            if [refusal.code.as_str(), &refusal.message, &refusal.remedy]
                .iter()
                .any(|text| text.trim().is_empty())
            {
                return Err(format!("it was refused without saying why, or what to do: {refusal:?}"));
            }
            untouched("H7 answer refused")
        }
        Outcome::Conflict { .. } => untouched("H7 answer conflict"),
        Outcome::Unchanged => {
            has_effect(before, command, outcome, after)?;
            untouched("H7 answer unchanged")
        }
        Outcome::Done | Outcome::NodeAdded { .. } | Outcome::ResourceCreated { .. } => {
            has_effect(before, command, outcome, after)?;
            let mut again = after.clone();
            let second = again.apply(entry.clone());
            if comparable(again) != comparable(after.clone()) {
                return Err(format!("repeated, it has an effect a second time: {second:?}"));
            }
            Ok("H7 answer done")
        }
    }
}

/// Names of the services that an operator has stopped.
#[must_use]
pub fn stopped(state: &State) -> BTreeSet<String> {
    let stopped = state.services.iter().filter(|(_, service)| service.stopped.is_some());
    stopped.map(|(name, _)| name.clone()).collect()
}

/// H14: the command leaves alone what an operator has stopped, unless it starts that, or the
/// service is deleted. `before`: what was stopped before it.
///
/// # Errors
/// The service that it starts.
pub fn stay_stopped(
    before: &BTreeSet<String>,
    command: &Command,
    after: &State,
) -> Result<&'static str, String> {
    let started = |name: &&String| {
        let ordered = matches!(command, Command::StartService { name: of } if of == *name);
        !ordered && after.services.get(*name).is_some_and(|service| service.stopped.is_none())
    };
    match before.iter().find(started) {
        None => Ok("H14 a stopped service stays stopped"),
        Some(name) => Err(format!("{name} was stopped by an operator, and this starts it")),
    }
}

/// H16: the command moves nothing that is in maintenance, unless an operator has asked for it.
/// `before`: the state before a command that is no operator's.
///
/// # Errors
/// The resource that it moves.
pub fn stay_in_place(before: &State, after: &State) -> Result<&'static str, String> {
    if before.maintenances().next().is_none() {
        return Ok("nothing is in maintenance");
    }
    for (id, old) in before.resources.iter().filter(|(_, old)| before.held(old).is_some()) {
        let ordered = match before.service_of(*id) {
            Some((_, service)) => service.desired_node,
            None => old.desired_node,
        };
        let may_be = [old.record.primary, old.waits_for, ordered];
        let now = after.resources.get(id).and_then(|new| new.record.primary);
        if let Some(to) = now.filter(|to| !may_be.contains(&Some(*to))) {
            return Err(format!("{} is in maintenance, and {to} becomes its primary", old.name));
        }
    }
    Ok("H16 what is in maintenance stays")
}

/// R17: two resources with replicas on one node are never scrubbed by schedule at once.
///
/// # Errors
/// The resources that are.
pub fn scrubs_are_apart(state: &State) -> Result<&'static str, String> {
    let mut whose: BTreeMap<NodeId, &str> = BTreeMap::new();
    for resource in state.resources.values().filter(|resource| resource.scrubs.turn.is_some()) {
        for node in &resource.spec.replicas {
            if let Some(other) = whose.insert(*node, &resource.name) {
                return Err(format!("{other} and {} are both scrubbed on {node}", resource.name));
            }
        }
    }
    Ok("L4 a scrub of the schedule begins")
}

/// The state without the parts that a repetition may change.
fn comparable(mut state: State) -> State {
    state.events.clear();
    (state.revision, state.last_event) = (0, 0);
    let of_nodes = state.nodes.values_mut().filter_map(|node| node.maintenance.as_mut());
    of_nodes.chain(&mut state.maintenance).for_each(|maintenance| maintenance.number = 0);
    for service in state.services.values_mut() {
        (service.round, service.halted, service.ordered) = (0, None, None);
        (service.moved, service.changed_round) = (0, 0);
        service.maintenance.iter_mut().for_each(|maintenance| maintenance.number = 0);
        service.restart.iter_mut().for_each(|restart| restart.number = 0);
    }
    state
}

/// Whether what was asked for is in the state.
fn has_effect(before: &State, command: &Command, outcome: &Outcome, after: &State) -> Result<(), String> {
    let resource = |id| after.resources.get(id);
    let spec = |id| resource(id).map(|known| &known.spec);
    let rounds =
        |state: &State, name: &str| state.services.get(name).map_or(0, |service: &Service| service.round);
    let holds = match command {
        Command::AddNode { name, .. } => match outcome {
            Outcome::NodeAdded { node, .. } => after.nodes.get(node).is_some_and(|known| known.name == *name),
            _ => false,
        },
        Command::CreateResource { name, spec, .. } => match outcome {
            Outcome::ResourceCreated { resource: id } => {
                let made = |known: &mainstay_control::state::Resource| {
                    known.name == *name && known.spec.volumes == spec.volumes
                };
                resource(id).is_some_and(made) && after.last_resource == before.last_resource + 1
            }
            _ => false,
        },
        Command::RemoveNode { node, .. } => after.is_removed(*node),
        Command::ReplaceNode { node, .. } => {
            let held = before.resources.values().filter(|known| known.spec.replicas.contains(node));
            let count =
                |state: &State, id| state.resources.get(&id).map_or(0, |known| known.spec.replicas.len());
            after.is_removed(*node)
                && held.map(|known| known.id).all(|id| count(after, id) + 1 >= count(before, id))
        }
        Command::SetAddress { node, agent_addr, .. } => {
            after.nodes.get(node).is_some_and(|known| known.agent_addr == *agent_addr)
        }
        Command::DeleteResource { resource: id } => resource(id).is_none_or(|known| known.deleting),
        Command::AddReplica { resource: id, node } => {
            spec(id).is_some_and(|spec| spec.replicas.iter().filter(|held| *held == node).count() == 1)
        }
        Command::RemoveReplica { resource: id, node } => {
            spec(id).is_some_and(|spec| !spec.replicas.contains(node))
        }
        Command::MoveReplica { resource: id, from, to } => resource(id)
            .is_some_and(|known| known.moving.get(from) == Some(to) && known.spec.replicas.contains(to)),
        Command::MovePrimary { resource: id, to } => {
            resource(id).is_some_and(|known| known.desired_node.or(known.record.primary) == Some(*to))
        }
        Command::GrowVolume { resource: id, volume, bytes } => resource(id).is_some_and(|known| {
            let size = known.spec.volumes.get(usize::from(volume.0));
            known.growing.get(volume).or(size) == Some(bytes)
        }),
        Command::TakeSnapshot { resource: id, name } => resource(id).is_some_and(|known| {
            let named = known.snapshots.values().filter(|held| held.name == *name && !held.dropping);
            let last = before.resources.get(id).map_or(0, |known| known.last_snapshot);
            named.count() == 1 && known.last_snapshot == last + 1
        }),
        Command::DropSnapshot { resource: id, name } => resource(id).is_some_and(|known| {
            let kept = |kept: &BeforeCopy| name != BEFORE_COPY || kept.dropping;
            known.snapshots.values().all(|held| held.name != *name || held.dropping)
                && known.before_copy.values().all(kept)
        }),
        Command::RollBack { resource: id, last, name, keep, .. } => {
            resource(id).is_some_and(|known| known.last_rollback() == Some((*last, name, keep.as_deref())))
        }
        Command::AttachResource { resource: id, node, wait_ms, .. } => resource(id).is_some_and(|known| {
            let attached = known.record.attached;
            attached.is_some_and(|attached| (attached.node, attached.wait_ms) == (*node, *wait_ms))
        }),
        Command::DetachResource { resource: id } => {
            resource(id).is_some_and(|known| known.record.attached.is_none())
        }
        Command::ChangeSettings { resource: id, changes, .. } => {
            let choices = match id {
                Some(id) => resource(id).map(|known| &known.choices),
                None => Some(&after.choices),
            };
            let has = |choices: &Choices| changes.iter().all(|(key, value)| choices.get(*key) == *value);
            choices.is_some_and(has)
        }
        Command::ForcePromote { resource: id, to, end, heard, .. } => resource(id).is_some_and(|known| {
            let told = known.forced.as_ref().and_then(|forced| forced.told);
            known.record.primary == Some(to.node) && told == Some((*end, *heard))
        }),
        Command::ApplyService { spec } => {
            let known = after.services.get(&spec.name);
            let fresh = u64::from(*outcome != Outcome::Unchanged);
            known.is_some_and(|known| known.spec == *spec && !known.deleting)
                && rounds(after, &spec.name) == rounds(before, &spec.name) + fresh
        }
        Command::DeleteService { name } => after.services.get(name).is_none_or(|known| known.deleting),
        Command::SetMaintenance { scope, on, .. } => after.maintenance_of(scope).is_some() == *on,
        Command::SetCordon { node, on, drain } => {
            let wanted = on.then_some(*drain);
            after.nodes.get(node).is_some_and(|known| known.cordon.map(|cordon| cordon.drain) == wanted)
        }
        Command::StopService { name } => {
            after.services.get(name).is_some_and(|known| known.stopped.is_some())
        }
        Command::StartService { name } => {
            after.services.get(name).is_some_and(|known| known.stopped.is_none())
        }
        Command::RestartService { name, process } => {
            let asked = after.services.get(name).and_then(|known| known.restart.as_ref());
            asked.is_some_and(|restart| restart.process == *process)
        }
        Command::MoveService { name, to } => after.services.get(name).is_some_and(|known| {
            let there = after.resource_of(known).is_some_and(|on| on.record.primary == Some(*to));
            (known.desired_node == Some(*to) || there) && rounds(after, name) == rounds(before, name) + 1
        }),
        _ => true,
    };
    if holds { Ok(()) } else { Err(format!("it was answered {outcome:?}, and it is not so")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::initial_state;
    use crate::plan::Shape;
    use mainstay_types::{Code, Problem, ResourceId, VolumeId};

    const R: ResourceId = ResourceId(1);

    fn applied(command: Command) -> (State, Entry, Outcome, State) {
        let before = without_events(&initial_state(&Shape::small(3, 2, true)));
        let mut after = before.clone();
        let entry = Entry { at_ms: 0, command };
        let outcome = after.apply(entry.clone());
        (before, entry, outcome, without_events(&after))
    }

    fn answer(command: Command) -> Result<&'static str, String> {
        let (before, entry, outcome, after) = applied(command);
        judge(&before, &entry, &outcome, &after)
    }

    #[test]
    fn true_answers_pass() {
        let bytes = 2048 * mainstay_types::BLOCK_BYTES;
        let grow = Command::GrowVolume { resource: R, volume: VolumeId(0), bytes };
        assert_eq!(answer(grow), Ok("H7 answer done"));
        assert_eq!(answer(Command::AddReplica { resource: R, node: NodeId(3) }), Ok("H7 answer done"));
        assert_eq!(answer(Command::AddReplica { resource: R, node: NodeId(2) }), Ok("H7 answer refused"));
        assert_eq!(answer(Command::DeleteService { name: "s0".into() }), Ok("H7 answer done"));
        assert_eq!(answer(Command::TakeSnapshot { resource: R, name: "a".into() }), Ok("H7 answer done"));
    }

    #[test]
    fn an_answer_that_is_not_so_is_seen() {
        let (before, entry, _, _) = applied(Command::AddReplica { resource: R, node: NodeId(3) });
        let said = judge(&before, &entry, &Outcome::Done, &before);
        assert!(said.is_err_and(|why| why.contains("it is not so")));
        let said = judge(&before, &entry, &Outcome::Unchanged, &before);
        assert!(said.is_err_and(|why| why.contains("it is not so")));
    }

    #[test]
    fn a_refusal_that_changes_the_state_or_has_no_remedy_is_noticed() {
        let (before, entry, _, after) = applied(Command::AddReplica { resource: R, node: NodeId(3) });
        let refused = |remedy: &str| Outcome::Refused(Problem::new(Code::NotReady, "because", remedy));
        assert_eq!(judge(&before, &entry, &refused("do so"), &before), Ok("H7 answer refused"));
        let said = judge(&before, &entry, &refused("do so"), &after);
        assert!(said.is_err_and(|why| why.contains("has changed")));
        let said = judge(&before, &entry, &refused(""), &before);
        assert!(said.is_err_and(|why| why.contains("what to do")));
        let said = judge(&before, &entry, &Outcome::Conflict { record: None }, &after);
        assert!(said.is_err_and(|why| why.contains("has changed")));
    }
}
