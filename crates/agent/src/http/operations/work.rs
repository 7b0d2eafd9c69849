//! Work that goes on after its change was recorded, and how the record tells that it is done, was
//! cancelled or has failed.
//!
//! Everything but a scrub is read from the record, so any node tells the same.

use mainstay_control::State;
use mainstay_control::state::{Resource, Service};
use mainstay_types::{Access, Code, NodeId, Problem, ServicePhase, SnapshotState, VolumeId};
use serde_json::Value;

/// Work of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// The answer to the request says that all is done.
    Answered,
    MoveService {
        service: String,
        to: String,
    },
    MovePrimary {
        resource: String,
        to: String,
    },
    Drain {
        node: String,
    },
    Scrub {
        resource: String,
        /// The node that compares: the primary when it began.
        by: Option<NodeId>,
    },
    AddReplica {
        resource: String,
        node: String,
    },
    RemoveReplica {
        resource: String,
        node: String,
    },
    MoveReplica {
        resource: String,
        from: String,
        to: String,
    },
    Resize {
        resource: String,
        volume: u16,
    },
    TakeSnapshot {
        resource: String,
        snapshot: String,
    },
    RollBack {
        resource: String,
        snapshot: String,
    },
    DeleteResource {
        resource: String,
    },
    DeleteService {
        service: String,
    },
    /// Number of the new authority.
    Rotate {
        to: u32,
    },
}

/// How far work is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    Runs(String),
    Done(String),
    /// An operator has ended it.
    Cancelled(String),
    Failed(Problem),
}

impl Work {
    /// The work of a request that was answered with success. `path`: of the request. `state`: as of
    /// the answer.
    pub fn of(method: &str, path: &str, body: &Value, answer: &Value, state: &State) -> Self {
        let parts: Vec<&str> = path.split('/').skip(2).collect();
        let named = |part: &&str| (*part).to_owned();
        let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let flag = |field: &str| body[field].as_bool().unwrap_or(false);
        match (method, parts.as_slice()) {
            ("POST", ["services", service, "move"]) => {
                Self::MoveService { service: named(service), to: text(body, "to") }
            }
            ("POST", ["resources", resource, "move"]) => {
                Self::MovePrimary { resource: named(resource), to: text(answer, "to") }
            }
            ("PUT", ["nodes", node, "cordon"]) if flag("on") && flag("drain") => {
                Self::Drain { node: named(node) }
            }
            ("POST", ["resources", resource, "scrub"]) => {
                let by = state.resource_by_name(resource).and_then(|known| known.record.primary);
                Self::Scrub { resource: named(resource), by }
            }
            ("POST", ["resources", resource, "replicas"]) => {
                Self::AddReplica { resource: named(resource), node: text(body, "node") }
            }
            ("DELETE", ["resources", resource, "replicas", node]) => {
                Self::RemoveReplica { resource: named(resource), node: named(node) }
            }
            ("POST", ["resources", resource, "replicas", from, "move"]) => {
                Self::MoveReplica { resource: named(resource), from: named(from), to: text(body, "to") }
            }
            ("POST", ["resources", resource, "volumes", volume, "resize"]) => {
                Self::Resize { resource: named(resource), volume: volume.parse().unwrap_or_default() }
            }
            ("POST", ["resources", resource, "snapshots"]) => {
                Self::TakeSnapshot { resource: named(resource), snapshot: text(body, "name") }
            }
            ("POST", ["resources", resource, "snapshots", snapshot, "rollback"]) => {
                Self::RollBack { resource: named(resource), snapshot: named(snapshot) }
            }
            ("DELETE", ["resources", resource]) => Self::DeleteResource { resource: named(resource) },
            ("DELETE", ["services", service]) => Self::DeleteService { service: named(service) },
            ("POST", ["cluster", "rotation"]) => {
                let under_way = state.identities.rotates().map(|(rotation, _)| rotation.to);
                let issuing = state.identities.issuing().map(|authority| authority.number);
                Self::Rotate { to: under_way.or(issuing).unwrap_or_default() }
            }
            _ => Self::Answered,
        }
    }

    /// Whether another request for this work, while it is under way, asks for nothing more.
    pub fn is_same_as(&self, other: &Self) -> bool {
        // A growth does not know its size here, and the second request may be for a larger one.
        self == other && !matches!(self, Self::Answered | Self::Resize { .. })
    }

    /// Right that is needed to cancel the work; none if it cannot be cancelled.
    pub fn cancel_needs(&self) -> Option<Access> {
        match self {
            Self::Drain { .. } | Self::Scrub { .. } => Some(Access::Operate),
            Self::Rotate { .. } => Some(Access::Admin),
            _ => None,
        }
    }

    /// Advice for a caller who wants to cancel work that cannot be cancelled.
    pub fn instead(&self) -> String {
        match self {
            Self::MoveService { service, .. } => {
                format!(
                    "Wait for its end, and move the service back: `mainstay service move {service} --to NODE`."
                )
            }
            Self::MovePrimary { resource, .. } => {
                format!("Wait for its end, and move it back: `mainstay resource move {resource} --to NODE`.")
            }
            Self::AddReplica { resource, node } => {
                format!("Remove the replica: `mainstay resource remove-replica {resource} {node}`.")
            }
            Self::MoveReplica { resource, to, .. } => {
                format!("Remove the new replica: `mainstay resource remove-replica {resource} {to}`.")
            }
            Self::TakeSnapshot { resource, snapshot } => {
                format!("Delete the snapshot: `mainstay snapshot delete {resource} {snapshot}`.")
            }
            _ => "Wait for its end.".to_owned(),
        }
    }

    /// How far the work is by the record; `None` if the record does not tell.
    pub fn look(&self, state: &State) -> Option<Look> {
        Some(match self {
            Self::Answered => Look::Done("done".to_owned()),
            Self::Scrub { .. } => return None,
            Self::MoveService { service, to } => match state.services.get(service) {
                Some(known) => move_of_service(state, service, known, to),
                None => Look::Failed(gone(&format!("service {service}"))),
            },
            Self::DeleteService { service } => match state.services.get(service) {
                Some(known) if known.deleting => Look::Runs(format!("service {service} is being stopped")),
                _ => Look::Done(format!("service {service} is deleted")),
            },
            Self::Drain { node } => drain(state, node),
            Self::Rotate { to } => rotation(state, *to),
            Self::DeleteResource { resource } => match state.resource_by_name(resource) {
                Some(known) if known.deleting => {
                    Look::Runs(format!("resource {resource} is being deleted on its nodes"))
                }
                _ => Look::Done(format!("resource {resource} is deleted")),
            },
            Self::MovePrimary { resource, .. }
            | Self::AddReplica { resource, .. }
            | Self::RemoveReplica { resource, .. }
            | Self::MoveReplica { resource, .. }
            | Self::Resize { resource, .. }
            | Self::TakeSnapshot { resource, .. }
            | Self::RollBack { resource, .. } => match state.resource_by_name(resource) {
                Some(known) if !known.deleting => self.look_at(state, known),
                _ => Look::Failed(gone(&format!("resource {resource}"))),
            },
        })
    }

    /// Work on a resource.
    fn look_at(&self, state: &State, resource: &Resource) -> Look {
        let (name, record) = (&resource.name, &resource.record);
        let id = |node: &str| state.node_by_name(node).map(|node| node.id);
        let holds = |node: Option<NodeId>| node.is_some_and(|node| resource.spec.replicas.contains(&node));
        let in_sync = |node: Option<NodeId>| node.is_some_and(|node| record.iss_member(node).is_some());
        match self {
            Self::MovePrimary { to, .. } => {
                let node = id(to);
                if node.is_some() && record.primary == node {
                    Look::Done(format!("the primary of resource {name} is on {to}"))
                } else if node.is_some() && resource.desired_node == node {
                    Look::Runs(format!("the primary of resource {name} moves to {to}"))
                } else {
                    given_up(&format!("the move of the primary of resource {name} to {to}"))
                }
            }
            Self::AddReplica { node, .. } if in_sync(id(node)) => {
                Look::Done(format!("the replica of resource {name} on {node} is in sync"))
            }
            Self::AddReplica { node, .. } if holds(id(node)) => {
                Look::Runs(format!("the replica of resource {name} on {node} is being filled"))
            }
            Self::AddReplica { node, .. } => given_up(&format!("the replica of resource {name} on {node}")),
            Self::RemoveReplica { node, .. } => {
                let node_id = id(node);
                let leaves = node_id
                    .filter(|node| resource.leaving.contains_key(node))
                    .is_some_and(|node| state.alive(node));
                if holds(node_id) || leaves {
                    Look::Runs(format!("the replica of resource {name} on {node} is being removed"))
                } else {
                    Look::Done(format!("resource {name} has no replica on {node}"))
                }
            }
            Self::MoveReplica { from, to, .. } => {
                let (old, new) = (id(from), id(to));
                if old.is_some_and(|old| resource.moving.get(&old).copied() == new && new.is_some()) {
                    Look::Runs(format!("the replica of resource {name} on {to} is being filled"))
                } else if holds(new) && !holds(old) {
                    Look::Done(format!("the replica of resource {name} is on {to} instead of {from}"))
                } else {
                    given_up(&format!("the move of the replica of resource {name} from {from} to {to}"))
                }
            }
            Self::Resize { volume, .. } => match resource.growing.get(&VolumeId(*volume)) {
                Some(_) => Look::Runs(format!("volume {volume} of resource {name} grows")),
                None => Look::Done(format!("volume {volume} of resource {name} has its new size")),
            },
            Self::TakeSnapshot { snapshot, .. } => snapshot_of(resource, snapshot),
            Self::RollBack { snapshot, .. } => match (&resource.rollback, &resource.rolled_back) {
                (Some(_), _) => {
                    Look::Runs(format!("resource {name} is being rolled back to snapshot {snapshot}"))
                }
                (None, Some(done)) if done.to == *snapshot && done.entry.is_some() => {
                    Look::Done(format!("resource {name} has the content of snapshot {snapshot}"))
                }
                _ => Look::Failed(Problem::new(
                    Code::NotRolledBack,
                    format!("resource {name} was not rolled back to snapshot {snapshot}: nothing is changed"),
                    "See why with `mainstay events`.",
                )),
            },
            _ => Look::Done("done".to_owned()),
        }
    }
}

fn gone(what: &str) -> Problem {
    Problem::new(Code::Deleted, format!("{what} was deleted meanwhile"), "See `mainstay events`.")
}

fn given_up(what: &str) -> Look {
    Look::Failed(Problem::new(
        Code::NotEligible,
        format!("{what} was given up"),
        "See why with `mainstay events`.",
    ))
}

fn move_of_service(state: &State, name: &str, service: &Service, to: &str) -> Look {
    let node = state.node_by_name(to).map(|node| node.id);
    let primary = state.resource_of(service).and_then(|resource| resource.record.primary);
    if node.is_none() || primary != node {
        return match node.is_some() && service.desired_node == node {
            true => Look::Runs(format!("service {name} moves to {to}")),
            false => given_up(&format!("the move of service {name} to {to}")),
        };
    }
    if service.stopped.is_some() {
        return Look::Done(format!("the place of service {name}, which is stopped, is {to}"));
    }
    let there = node.and_then(|node| service.nodes.get(&node));
    match there.map(|there| there.phase) {
        Some(ServicePhase::Running) => Look::Done(format!("service {name} runs on {to}")),
        Some(ServicePhase::Failed) => {
            let why = there.map(|there| there.last_failure.clone()).unwrap_or_default();
            let message = format!("service {name} failed on {to}: {why}");
            let remedy = format!("See `mainstay service status {name}`.");
            Look::Failed(Problem::new(Code::ServiceFailed, message, remedy))
        }
        _ => Look::Runs(format!("service {name} starts on {to}")),
    }
}

fn drain(state: &State, name: &str) -> Look {
    let node = state.node_by_name(name).map(|node| node.id);
    let Some(node) = node.filter(|node| state.is_drained(*node)) else {
        return Look::Cancelled(format!("services and primaries do not leave {name} any more"));
    };
    let left = state.resources.values().filter(|resource| resource.record.primary == Some(node));
    let left: Vec<&str> = left.map(|resource| resource.name.as_str()).collect();
    if left.is_empty() {
        return Look::Done(format!("no service and no primary is on {name}"));
    }
    Look::Runs(format!("services and primaries leave {name}; still there: {}", left.join(", ")))
}

fn rotation(state: &State, to: u32) -> Look {
    if state.identities.rotates().is_some() {
        let waits = state.rotation_waits_for();
        let names: Vec<String> = waits.into_iter().map(|node| state.node_name(node)).collect();
        return Look::Runs(format!(
            "authority {to} replaces the present one; this waits for {}",
            names.join(", ")
        ));
    }
    let issuing = state.identities.issuing().map(|authority| authority.number);
    if issuing.is_some_and(|number| number >= to) {
        return Look::Done(format!("authority {to} has replaced the earlier one"));
    }
    given_up(&format!("the replacement of the authority by authority {to}"))
}

fn snapshot_of(resource: &Resource, snapshot: &str) -> Look {
    let name = &resource.name;
    let Some(known) = resource.snapshots.values().find(|known| known.name == snapshot) else {
        return Look::Failed(gone(&format!("snapshot {snapshot} of resource {name}")));
    };
    // A replica that is not in sync meets the snapshot on its way.
    let has = |node: &NodeId| known.nodes.get(node).is_some_and(|on| on.state != SnapshotState::Taking);
    let in_sync: Vec<NodeId> = resource.record.iss.iter().map(|member| member.node).collect();
    if in_sync.is_empty() || !in_sync.iter().all(has) {
        return Look::Runs(format!("snapshot {snapshot} of resource {name} is being taken"));
    }
    if known.nodes.values().any(|on| on.state == SnapshotState::Held) {
        return Look::Done(format!("snapshot {snapshot} of resource {name} is taken"));
    }
    Look::Failed(Problem::new(
        Code::NotTaken,
        format!("no node could take snapshot {snapshot} of resource {name}"),
        "The engines' logs say why; pools must have space. Delete the snapshot then.",
    ))
}

#[cfg(test)]
mod tests;
