//! Where the devices of a resource are, if not on its primary ([ADR
//! 13](../../../docs/adr/0013-clients.md)).
//!
//! | the record names | command | it names then |
//! |---|---|---|
//! | no node | [`Command::AttachResource`] | that node, a session that no client has |
//! | a node | the same, of another node, if it is to be taken over | that one, a session that no client has |
//! | a node | [`Command::ClaimAttachment`] by the agent of that node, whose engine has opened a client | its instance, a new session |
//! | a node | [`Command::DetachResource`] | no node |
//!
//! Guarantees, after every command:
//! - a session is the version of the record that began it, so it is higher than every one before;
//!   it is of one instance of a client;
//! - a node that is attached holds no replica of the resource, no service runs on it, and it is not
//!   rolled back.
//!
//! Nothing here waits for the node that loses the devices: the primary admits nothing of an older
//! session (S18).
//!
//! [`Command::AttachResource`]: crate::state::Command::AttachResource
//! [`Command::ClaimAttachment`]: crate::state::Command::ClaimAttachment
//! [`Command::DetachResource`]: crate::state::Command::DetachResource

use crate::actions::{Action, Observed};
use crate::state::{Command, Outcome, Resource, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Attachment, Code, ConfigVersion, Instance, NodeId, ResourceId, SessionId, Severity, reach,
};

/// Bounds of how long a request of a client may wait, in milliseconds (R20).
pub const WAIT_MS: std::ops::RangeInclusive<u64> = 1_000..=3_600_000;
pub const WAIT_MS_DEFAULT: u64 = 60_000;

/// A client that this node's engine has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClientSeen {
    pub instance: Instance,
    /// Version of the record that the client acts on; 0 for none.
    pub version: ConfigVersion,
    /// Its devices exist and answer.
    pub ready: bool,
    /// Its session is over, and it is of no use any more.
    pub over: bool,
}

impl State {
    pub(crate) fn attach_resource(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        node: NodeId,
        wait_ms: u64,
        take_over: bool,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return unknown_resource(id);
        };
        if let Some(refusal) = self.cannot_attach(resource, node, wait_ms) {
            return refusal;
        }
        let name = self.node_name(node);
        if let Some(attached) = resource.record.attached {
            if attached.node == node && attached.wait_ms == wait_ms {
                return Outcome::Unchanged;
            }
            if attached.node != node && !take_over {
                reach!("control: a resource is attached elsewhere");
                return refused(
                    Code::AttachedElsewhere,
                    format!("resource {} is attached to {}", resource.name, self.node_name(attached.node)),
                    "detach it there, or take it over: `mainstay resource attach NAME NODE --take-over`",
                );
            }
        }
        reach!("control: a resource is attached");
        let text = match resource.record.attached {
            Some(attached) if attached.node != node => {
                format!("is taken over by {name} from {}", self.node_name(attached.node))
            }
            _ => format!("is attached to {name}"),
        };
        let Some(resource) = self.resources.get_mut(&id) else { return unknown_resource(id) };
        let record = &mut resource.record;
        record.version = record.version.next();
        match &mut record.attached {
            Some(attached) if attached.node == node => attached.wait_ms = wait_ms,
            attached => {
                let session = SessionId(record.version.0);
                *attached = Some(Attachment { node, session, instance: None, wait_ms });
            }
        }
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    fn cannot_attach(&self, resource: &Resource, node: NodeId, wait_ms: u64) -> Option<Outcome> {
        let name = self.node_name(node);
        let Some(known) = self.nodes.get(&node) else {
            let text = format!("there is no node {name}");
            return Some(refused(Code::UnknownNode, text, "see `mainstay node list`"));
        };
        if known.witness {
            let text = format!("{name} is a witness and has no devices");
            return Some(refused(Code::IsWitness, text, "choose another node"));
        }
        if known.candidate {
            let text = format!("{name} has not joined yet");
            return Some(refused(
                Code::HasNotJoined,
                text,
                "wait until `mainstay node list` does not show it as joining any more",
            ));
        }
        if resource.spec.replicas.contains(&node) {
            return Some(refused(
                Code::HasReplica,
                format!("{name} holds a replica of resource {}", resource.name),
                "its devices are on the primary when it is attached nowhere; choose a node without a replica",
            ));
        }
        if resource.leaving.contains_key(&node) {
            let text = format!(
                "an earlier replica of resource {} is still being removed from {name}",
                resource.name
            );
            return Some(refused(Code::BeingRemoved, text, "try again when it is gone"));
        }
        if let Some((service, _)) = self.service_of(resource.id) {
            reach!("control: a resource with a service is not attached");
            return Some(refused(
                Code::ResourceInUse,
                format!("service {service} runs on resource {}", resource.name),
                format!("services run on the primary; delete it first: `mainstay service delete {service}`"),
            ));
        }
        if resource.rollback.is_some() {
            reach!("control: a resource that is being rolled back is not attached");
            return Some(refused(
                Code::RollingBack,
                format!("resource {} is being rolled back", resource.name),
                "wait until that is done",
            ));
        }
        if !WAIT_MS.contains(&wait_ms) {
            return Some(refused(
                Code::BadWait,
                format!("requests cannot wait for {wait_ms} ms"),
                "use 1 second to 1 hour",
            ));
        }
        None
    }

    pub(crate) fn detach_resource(&mut self, at_ms: u64, id: ResourceId) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return unknown_resource(id) };
        let Some(attached) = resource.record.attached.take() else { return Outcome::Unchanged };
        reach!("control: a resource is detached");
        resource.record.version = resource.record.version.next();
        let subject = format!("resource {}", resource.name);
        let text = format!("is detached from {}", self.node_name(attached.node));
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    /// The engine of `node` has opened a client. From now on the recorded session belongs to that
    /// client, under a new number.
    pub(crate) fn claim_attachment(
        &mut self,
        id: ResourceId,
        session: SessionId,
        node: NodeId,
        instance: Instance,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id).filter(|resource| !resource.deleting) else {
            return Outcome::Conflict { record: None };
        };
        let record = &mut resource.record;
        let named = record.attached.as_mut().filter(|named| (named.node, named.session) == (node, session));
        let Some(named) = named else {
            reach!("control: a session that is over is claimed");
            return Outcome::Conflict { record: Some(record.clone()) };
        };
        if named.instance == Some(instance) {
            return Outcome::Unchanged;
        }
        if named.instance.is_some() {
            reach!("control: a client was opened anew");
        }
        reach!("control: a session is claimed");
        record.version = record.version.next();
        named.instance = Some(instance);
        if !planted(Bug::SessionKept) {
            named.session = SessionId(record.version.0);
        }
        Outcome::Done
    }

    /// The refusal of a service, a replica or another use, if the resource is attached to a node.
    pub(crate) fn refuse_attached(&self, resource: &Resource) -> Option<Outcome> {
        let attached = resource.record.attached?;
        reach!("control: a resource that is attached is left alone");
        Some(refused(
            Code::Attached,
            format!("resource {} is attached to {}", resource.name, self.node_name(attached.node)),
            format!("detach it first: `mainstay resource detach {}`", resource.name),
        ))
    }

    /// Returns problem and remedy if a resource is attached to a dead node.
    pub(crate) fn advise_attached(&self, resource: &Resource) -> Option<(String, String)> {
        let attached = resource.record.attached.filter(|attached| !self.alive(attached.node))?;
        let (node, name) = (self.node_name(attached.node), &resource.name);
        let what = format!("is attached to {node}, which is dead, so no node has its devices");
        let remedy = format!(
            "bring {node} back; or attach it elsewhere: `mainstay resource attach {name} NODE --take-over`; or give the devices to the primary: `mainstay resource detach {name}`"
        );
        Some((what, remedy))
    }

    /// Whether the invariants hold.
    pub(crate) fn check_attached(resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        let Some(attached) = record.attached else { return Ok(()) };
        if resource.spec.replicas.contains(&attached.node) {
            return Err("attached to a node with a replica");
        }
        if attached.session.0 == 0 || attached.session.0 > record.version.0 {
            return Err("a session that no version began");
        }
        if resource.rollback.is_some() {
            return Err("rolled back under a client");
        }
        Ok(())
    }
}

/// Adds the actions of this node for its clients.
pub(crate) fn plan_clients(node: NodeId, state: &State, observed: &Observed, actions: &mut Vec<Action>) {
    let gone = |id: &&ResourceId| !state.resources.contains_key(id);
    for resource in observed.clients.keys().filter(gone) {
        actions.push(Action::DetachClient { resource: *resource });
    }
    for resource in state.resources.values() {
        let id = resource.id;
        let here = resource.record.attached.filter(|attached| attached.node == node && !resource.deleting);
        let seen = observed.clients.get(&id);
        match (here, seen) {
            (None, None) => {}
            (None, Some(_)) => {
                reach!("control: plan: a client is not wanted any more");
                actions.push(Action::DetachClient { resource: id });
            }
            (Some(_), Some(seen)) if seen.over => {
                reach!("control: plan: a client whose session is over is opened anew");
                actions.push(Action::DetachClient { resource: id });
            }
            (Some(_), None) => {
                reach!("control: plan: open a client");
                actions.push(Action::AttachClient(resource.record.clone()));
            }
            (Some(attached), Some(seen)) => {
                if seen.version < resource.record.version {
                    reach!("control: plan: give the record to a client");
                    actions.push(Action::AttachClient(resource.record.clone()));
                }
                if attached.instance != Some(seen.instance) {
                    reach!("control: plan: claim a session");
                    let (session, instance) = (attached.session, seen.instance);
                    let claim = Command::ClaimAttachment { resource: id, session, node, instance };
                    actions.push(Action::Propose(claim));
                }
            }
        }
    }
}

fn unknown_resource(id: ResourceId) -> Outcome {
    refused(Code::UnknownResource, format!("there is no resource {id}"), "see `mainstay resource list`")
}
