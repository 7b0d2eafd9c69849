//! Questions to nodes before a change: who uses a device there, and whether a service finds its place (R27).

use crate::agent::Agent;
use crate::error::body;
use crate::messages::{Call, CallReply};
use crate::raft::View;
use crate::service::holders;
use mainstay_api::rest::ErrorBody;
use mainstay_control::state::{NodeStatus, Resource};
use mainstay_ha::ServiceSpec;
use mainstay_types::NodeId;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a node may take to look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a user may take to go by itself: programs look at new devices for a moment.
pub(super) const PASSING: Duration = Duration::from_secs(2);
/// How long a move waits for it.
const MOVE_WAIT: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(300);

/// Refuses a change that takes the devices of a resource away, or puts other content there, while something but its own
/// service uses them. `doing`: the change, in words.
pub(super) fn refuse_used(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
    patience: Duration,
) -> Result<(), ErrorBody> {
    refuse(agent, view, resource, doing, patience, false)
}

/// Refuses a move of the devices to another node in the same way. Users that find them there by themselves do not count.
pub(super) fn refuse_used_to_move(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
) -> Result<(), ErrorBody> {
    refuse(agent, view, resource, doing, MOVE_WAIT, true)
}

fn refuse(
    agent: &Arc<Agent>,
    view: &View,
    resource: &Resource,
    doing: &str,
    patience: Duration,
    moves: bool,
) -> Result<(), ErrorBody> {
    let record = &resource.record;
    let Some(node) = record.attached.map(|attached| attached.node).or(record.primary) else { return Ok(()) };
    if !view.state.nodes.get(&node).is_some_and(|known| known.status == NodeStatus::Alive) {
        return Ok(());
    }
    let own = view.state.services.values().map(|service| &service.spec);
    let service = own.into_iter().find(|spec| spec.resource == resource.name).cloned();
    let deadline = Instant::now() + patience;
    loop {
        let question = Call::Users { resource: resource.name.clone(), service: service.clone(), moves };
        let name = view.state.node_name(node);
        let users = match agent.ask(&*agent.member()?, node, question, LOOK_TIMEOUT) {
            Ok(CallReply::Users { users }) => users,
            Ok(CallReply::Error(error)) if error.code == "users-unknown" => {
                return Err(body(
                    "users-unknown",
                    format!("{doing}: on {name} {}", error.message),
                    "Look for a process in state D with `ps -eo pid,stat,comm` there, and try again when it has ended.",
                ));
            }
            Ok(_) | Err(_) => {
                return Err(body(
                    "node-unreachable",
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
            return Err(body(
                "device-in-use",
                format!("{doing}: on {name} it is used by {}", holders::words(&users)),
                "End that, disconnect it or unmount it, and try again.",
            ));
        }
        sleep(PAUSE);
    }
}

/// Refuses a service that does not find the place for its file system on one of these nodes, as far as they can say.
pub(super) fn refuse_place(
    agent: &Arc<Agent>,
    view: &View,
    spec: &ServiceSpec,
    nodes: &[NodeId],
) -> Result<(), ErrorBody> {
    if spec.mount.is_none() {
        return Ok(());
    }
    let others = view.state.services.values().map(|service| &service.spec);
    let others: Vec<ServiceSpec> = others.filter(|other| other.name != spec.name).cloned().collect();
    let alive =
        |node: &&NodeId| view.state.nodes.get(node).is_some_and(|known| known.status == NodeStatus::Alive);
    for &node in nodes.iter().filter(alive) {
        let question = Call::Place { spec: Box::new(spec.clone()), others: others.clone() };
        if let Ok(CallReply::Place { unfit: Some(why) }) =
            agent.ask(&*agent.member()?, node, question, LOOK_TIMEOUT)
        {
            return Err(body(
                "bad-mount-path",
                format!("mount.path: on {} {why}", view.state.node_name(node)),
                "Give the service an empty directory of its own on every node, for example /srv/NAME.",
            ));
        }
    }
    Ok(())
}
