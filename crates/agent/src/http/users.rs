//! Questions to nodes before a change: the users of a device there, and whether a service finds its
//! place (R27).

use crate::agent::Agent;
use crate::messages::{Call, CallReply};
use crate::raft::{ConsensusLog, View};
use crate::service::holders;
use crate::service::instance::FREEZE;
use mainstay_control::state::Resource;
use mainstay_ha::ServiceSpec;
use mainstay_types::{Code, NodeId, NodeStatus, Problem, ServicePhase};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a node may take to look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it may take where the answer changes nothing but words.
const WORDS_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a user may take to go by itself: programs look at new devices for a moment.
pub(super) const PASSING: Duration = Duration::from_secs(2);
/// How long a move waits for it.
const MOVE_WAIT: Duration = Duration::from_secs(3);
/// The way out of a refusal because of a frozen file system.
const THAW: &str = "Thaw it with the command that is named there, and try again. `--force` does not help: the processes cannot end, and nothing can be written to the volume, before the file system is thawed.";

/// The remedy where a service does not find the place for its file system.
pub(super) const FIT: &str =
    "Give the service an empty directory of its own on every node, for example /srv/NAME.";

const PAUSE: Duration = Duration::from_millis(300);

/// Refuses a change that takes the devices of a resource away, or puts other content there, while
/// something but its own service uses them. `doing`: the change, in words.
pub(super) fn refuse_used(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
    patience: Duration,
) -> Result<(), Problem> {
    refuse(agent, view, resource, doing, patience, false)
}

/// Refuses a move of the devices to another node in the same way. Users that find them there by
/// themselves do not count.
pub(super) fn refuse_used_to_move(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
) -> Result<(), Problem> {
    refuse(agent, view, resource, doing, MOVE_WAIT, true)
}

fn refuse(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
    patience: Duration,
    moves: bool,
) -> Result<(), Problem> {
    let Some(node) = serving(view, resource) else { return Ok(()) };
    let name = view.state.node_name(node);
    let deadline = Instant::now() + patience;
    loop {
        let users = match ask_users(agent, view, resource, node, (moves, LOOK_TIMEOUT))? {
            CallReply::Users { users } => users,
            CallReply::Error(error) if error.code == Code::UsersUnknown => {
                return Err(Problem::new(
                    Code::UsersUnknown,
                    format!("{doing}: on {name} {}", error.message),
                    "Look for a process in state D with `ps -eo pid,stat,comm` there, and try again when it has ended.",
                ));
            }
            _ => {
                return Err(Problem::new(
                    Code::NodeUnreachable,
                    format!(
                        "{name} does not say whether the devices of resource {} are in use",
                        resource.name
                    ),
                    "Try again when it answers; see `mainstay status`.",
                ));
            }
        };
        if users.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Problem::new(
                Code::DeviceInUse,
                format!("{doing}: on {name} it is used by {}", holders::words(&users)),
                "End what uses it, or disconnect or unmount it there, and try again.",
            ));
        }
        sleep(PAUSE);
    }
}

/// The node that has the devices of a resource, if it is alive.
fn serving(view: &View, resource: &Resource) -> Option<NodeId> {
    let record = &resource.record;
    let node = record.attached.map(|attached| attached.node).or(record.primary)?;
    view.state.nodes.get(&node).is_some_and(|known| known.status == NodeStatus::Alive).then_some(node)
}

fn ask_users(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    node: NodeId,
    (moves, timeout): (bool, Duration),
) -> Result<CallReply, Problem> {
    let own = view.state.services.values().map(|service| &service.spec);
    let service = own.into_iter().find(|spec| spec.resource == resource.name).cloned();
    let question = Call::Users { resource: resource.name.clone(), service, moves };
    Ok(agent.ask(&*agent.member()?, node, question, timeout).unwrap_or_else(CallReply::Error))
}

/// Names what uses the devices of a resource that are about to be cut off, with the node; nothing
/// where that is not known.
pub(super) fn cut_off(agent: &Arc<Agent>, view: &View, resource: &Resource) -> Option<String> {
    let node = serving(view, resource)?;
    match ask_users(agent, view, resource, node, (false, WORDS_TIMEOUT)) {
        Ok(CallReply::Users { users }) if !users.is_empty() => {
            Some(format!("{} on {}", holders::words(&users), view.state.node_name(node)))
        }
        _ => None,
    }
}

/// Tells the node that runs a service that its next stop waits for no holder of the file system. If
/// the node does not hear that, the stop waits as any other does.
pub(super) fn disregard(agent: &Arc<Agent>, service: &str) {
    let Ok(member) = agent.member() else { return };
    let view = member.log.view();
    let resource = view.state.services.get(service).map(|found| &found.spec.resource);
    let resource = resource.and_then(|resource| view.state.resource_by_name(resource));
    if let Some(node) = resource.and_then(|resource| serving(&view, resource)) {
        let question = Call::Disregard { service: service.to_owned() };
        drop(agent.ask(&member, node, question, WORDS_TIMEOUT));
    }
}

/// Refuses a change that stops a service while something but the service itself uses its file
/// system. `or`: the way to make the change all the same. If the users are not known, the change is
/// made: the stop waits for them, too.
pub(super) fn refuse_held(
    agent: &Arc<Agent>,
    view: &View,
    service: &str,
    doing: &str,
    or: &str,
) -> Result<(), Problem> {
    let Some(service) = view.state.services.get(service) else { return Ok(()) };
    let Some(resource) = view.state.resource_by_name(&service.spec.resource) else { return Ok(()) };
    // If the service does not run there, a mount at its path is not its own, and stays.
    let here = resource.record.primary.and_then(|node| service.nodes.get(&node));
    if service.spec.mount.is_none() || here.is_none_or(|on| on.phase != ServicePhase::Running) {
        return Ok(());
    }
    match refuse_used_to_move(agent, view, resource, doing) {
        Err(mut refusal) if refusal.code == Code::DeviceInUse => {
            or_by_force(&mut refusal, or);
            Err(refusal)
        }
        _ => Ok(()),
    }
}

/// Refuses to drain a node while something but a service itself uses what would leave it.
pub(super) fn refuse_drain(agent: &Arc<Agent>, view: &View, node: NodeId) -> Result<(), Problem> {
    let doing = format!("{} cannot be drained", view.state.node_name(node));
    let led = |resource: &&Resource| resource.record.primary == Some(node) && !resource.deleting;
    for resource in view.state.resources.values().filter(led) {
        match view.state.service_of(resource.id) {
            Some((name, _)) => {
                let or =
                    format!("Or move the service first: `mainstay service move {name} --to NODE --force`.");
                refuse_held(agent, view, name, &doing, &or)?;
            }
            None => refuse_used_to_move(agent, view, resource, &doing)?,
        }
    }
    Ok(())
}

/// Adds the way to make a change all the same. A frozen file system leaves none: the stop would
/// wait for the thaw, too.
pub(super) fn or_by_force(refusal: &mut Problem, or: &str) {
    if refusal.message.contains(FREEZE) {
        refusal.remedy = THAW.into();
    } else {
        refusal.remedy += &format!(" {or}");
    }
}

/// Refuses a service that does not find the place for its file system on one of these nodes, as far
/// as they can say.
pub(super) fn refuse_place(
    agent: &Arc<Agent>,
    view: &View,
    spec: &ServiceSpec,
    nodes: &[NodeId],
) -> Result<(), Problem> {
    let alive =
        |node: &&NodeId| view.state.nodes.get(node).is_some_and(|known| known.status == NodeStatus::Alive);
    for &node in nodes.iter().filter(alive) {
        if let Some(why) = unfit(agent, view, spec, node) {
            let message = format!("mount.path: on {} {why}", view.state.node_name(node));
            return Err(Problem::new(Code::BadMountPath, message, FIT));
        }
    }
    Ok(())
}

/// Why the service does not find the place for its file system on `node`, if the node says so.
pub(super) fn unfit(agent: &Arc<Agent>, view: &View, spec: &ServiceSpec, node: NodeId) -> Option<String> {
    spec.mount.as_ref()?;
    let others = view.state.services.values().map(|service| &service.spec);
    let others: Vec<ServiceSpec> = others.filter(|other| other.name != spec.name).cloned().collect();
    let question = Call::Place { spec: Box::new(spec.clone()), others };
    match agent.ask(&*agent.member().ok()?, node, question, LOOK_TIMEOUT) {
        Ok(CallReply::Place { unfit }) => unfit,
        _ => None,
    }
}
