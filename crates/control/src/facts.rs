//! Facts of events: what an event tells, for programs. Texts are for operators, and no code reads
//! them.
//!
//! Guarantees
//! - The primary of a resource changes only with a [`Fact::PrimaryChanged`], which names the cause
//!   and whether an operator or the cluster decided.
//! - A fact names the node that runs the hooks for it ([`EventRecord::on`]): the node that it is
//!   about, or the first living node if that one is dead. So all nodes agree on it.
//!
//! The cause of a change is derived from the state at that moment, not from the words of a
//! proposal.

use crate::state::{EventRecord, State};
use mainstay_types::{Epoch, NodeId, ResourceId, Severity};
use serde::{Deserialize, Serialize};

/// Why the primary of a resource changed, or its service left a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The resource had no primary before.
    First,
    /// An operator moved the service or the primary, or forced the promotion.
    Operator,
    /// An operator drains the node.
    Drained,
    /// The node died or lost its lease.
    NodeDead,
    /// The node gave the role up because its replica or engine could not go on.
    SteppedDown,
    DiskLost,
    /// The replica cannot be used.
    ReplicaBroken,
    /// The node lost acknowledged writes from memory (mode B).
    MemoryLost,
    /// The service failed on the node.
    ServiceFailed,
    /// The preferred node is in sync again.
    Failback,
    /// The service goes where the services run that its placement ties it to, or away from those
    /// that it is to be apart from.
    Placement,
    /// The same node is primary again: its engine restarted, or its lease had ended.
    Restarted,
    /// A cause that this version does not know.
    #[default]
    #[serde(other)]
    Other,
}

impl Cause {
    /// The cause as hooks get it, and as JSON has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Operator => "operator",
            Self::Drained => "drained",
            Self::NodeDead => "node-dead",
            Self::SteppedDown => "stepped-down",
            Self::DiskLost => "disk-lost",
            Self::ReplicaBroken => "replica-broken",
            Self::MemoryLost => "memory-lost",
            Self::ServiceFailed => "service-failed",
            Self::Failback => "failback",
            Self::Placement => "placement",
            Self::Restarted => "restarted",
            Self::Other => "other",
        }
    }

    #[must_use]
    pub const fn decided_by(self) -> DecidedBy {
        if matches!(self, Self::Operator | Self::Drained) { DecidedBy::Operator } else { DecidedBy::Cluster }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DecidedBy {
    Operator,
    Cluster,
}

impl DecidedBy {
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Cluster => "cluster",
        }
    }
}

/// See the top of this file. Nodes, resources and services are named, so that a fact stays true
/// when they are gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "fact", rename_all = "kebab-case")]
pub enum Fact {
    NodeLost {
        node: String,
    },
    NodeBack {
        node: String,
    },
    PrimaryChanged {
        resource: String,
        /// None if there was no primary.
        from: Option<String>,
        to: String,
        epoch: Epoch,
        cause: Cause,
    },
    /// No node can take over.
    PrimaryLost {
        resource: String,
        from: Option<String>,
        cause: Cause,
    },
    ServiceStarted {
        service: String,
        resource: String,
        node: String,
        epoch: Epoch,
    },
    ServiceStopped {
        service: String,
        resource: String,
        node: String,
        epoch: Epoch,
    },
    /// `given_up`: no attempt is left on this node.
    ServiceFailed {
        service: String,
        resource: String,
        node: String,
        epoch: Epoch,
        why: String,
        given_up: bool,
    },
    /// A fact that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Fact {
    /// Name of the node that the fact is about.
    fn about(&self) -> Option<&str> {
        match self {
            Self::NodeLost { node }
            | Self::NodeBack { node }
            | Self::ServiceStarted { node, .. }
            | Self::ServiceStopped { node, .. }
            | Self::ServiceFailed { node, .. } => Some(node),
            Self::PrimaryChanged { to, .. } => Some(to),
            Self::PrimaryLost { from, .. } => from.as_deref(),
            Self::Unknown => None,
        }
    }
}

impl State {
    /// Adds an event with its fact.
    pub(crate) fn note_fact(
        &mut self,
        at_ms: u64,
        severity: Severity,
        subject: String,
        text: impl Into<String>,
        fact: Fact,
    ) {
        let about = fact.about().and_then(|name| self.node_by_name(name)).map(|node| node.id);
        let on = about.filter(|node| self.alive(*node));
        let on = on.or_else(|| self.nodes.keys().copied().find(|node| self.alive(*node)));
        self.note(at_ms, severity, subject, text);
        if let Some(event) = self.events.back_mut() {
            (event.fact, event.on) = (Some(fact), on);
        }
    }

    /// Why `to` is promoted by the proposal of a node, in the present state.
    pub(crate) fn cause_of_promotion(&self, id: ResourceId, to: NodeId) -> Cause {
        let Some(resource) = self.resources.get(&id) else { return Cause::Other };
        let service = self.service_of(id).map(|(_, service)| service);
        match resource.record.primary {
            None if resource.record.epoch.0 == 0 => Cause::First,
            Some(primary) if primary == to => Cause::Restarted,
            _ if self.desired(resource) == Some(to) => Cause::Operator,
            Some(primary) if service.is_some_and(|service| service.failed_on(primary)) => {
                Cause::ServiceFailed
            }
            Some(primary) if self.is_drained(primary) => Cause::Drained,
            Some(_) if self.tied_seat(resource) == Some(to) => Cause::Placement,
            Some(_) if service.is_some_and(|service| service.spec.policy.failback) => Cause::Failback,
            _ => Cause::Other,
        }
    }
}

/// A change of the primary, with all that followed until its service ran.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrimaryChange<'a> {
    pub resource: &'a str,
    pub from: Option<&'a str>,
    /// None if no node could take over.
    pub to: Option<&'a str>,
    pub epoch: Epoch,
    pub cause: Cause,
    /// The service of the resource, once it ran or failed in this epoch.
    pub service: Option<&'a str>,
    pub at_ms: u64,
    /// When the service ran for the first time in this epoch.
    pub running_ms: Option<u64>,
    /// Events about the resource and its service from the change on, until the service ran.
    pub stages: Vec<&'a EventRecord>,
}

impl State {
    /// Changes of primaries that the events tell, oldest first.
    #[must_use]
    pub fn primary_changes(&self) -> Vec<PrimaryChange<'_>> {
        let mut changes: Vec<PrimaryChange<'_>> = Vec::new();
        for event in &self.events {
            let open = |changes: &mut Vec<PrimaryChange<'_>>, of: &str, in_epoch: Epoch| {
                changes
                    .iter()
                    .rposition(|change| change.resource == of)
                    .filter(|&at| changes[at].epoch == in_epoch && changes[at].running_ms.is_none())
            };
            match &event.fact {
                Some(Fact::PrimaryChanged { resource, from, to, epoch, cause }) => {
                    changes.push(PrimaryChange {
                        resource,
                        from: from.as_deref(),
                        to: Some(to),
                        epoch: *epoch,
                        cause: *cause,
                        service: None,
                        at_ms: event.at_ms,
                        running_ms: None,
                        stages: vec![event],
                    });
                }
                Some(Fact::PrimaryLost { resource, from, cause }) => changes.push(PrimaryChange {
                    resource,
                    from: from.as_deref(),
                    to: None,
                    epoch: Epoch(0),
                    cause: *cause,
                    service: None,
                    at_ms: event.at_ms,
                    running_ms: None,
                    stages: vec![event],
                }),
                Some(Fact::ServiceStarted { service, resource, epoch, .. }) => {
                    if let Some(at) = open(&mut changes, resource, *epoch) {
                        changes[at].service = Some(service);
                        changes[at].running_ms = Some(event.at_ms);
                        changes[at].stages.push(event);
                    }
                }
                Some(Fact::ServiceFailed { service, resource, epoch, .. }) => {
                    if let Some(at) = open(&mut changes, resource, *epoch) {
                        changes[at].service = Some(service);
                        changes[at].stages.push(event);
                    }
                }
                Some(_) => {}
                // The report of a node that starts the service.
                None => {
                    let resource = event.subject.strip_prefix("service ").and_then(|name| {
                        self.services.get(name).map(|service| service.spec.resource.as_str())
                    });
                    let at = resource
                        .and_then(|resource| changes.iter().rposition(|change| change.resource == resource));
                    if let Some(at) = at.filter(|&at| changes[at].running_ms.is_none()) {
                        changes[at].stages.push(event);
                    }
                }
            }
        }
        changes
    }

    /// The change that made a node primary in this epoch, if the events still tell it.
    #[must_use]
    pub fn primary_change(&self, resource: &str, epoch: Epoch) -> Option<(Option<&str>, Cause, u64)> {
        self.events.iter().rev().find_map(|event| match &event.fact {
            Some(Fact::PrimaryChanged { resource: of, from, epoch: of_epoch, cause, .. })
                if of == resource && *of_epoch == epoch =>
            {
                Some((from.as_deref(), *cause, event.at_ms))
            }
            _ => None,
        })
    }
}
