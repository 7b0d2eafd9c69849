//! Hooks: which commands of operators are due for an event, and with what environment.
//!
//! Guarantees
//! - A node runs the hooks of an event at most once: [`due`] goes forward only, and the node notes
//!   how far before it runs anything.
//! - Exactly one node runs them: the one that the event names ([`EventRecord::on`]).
//! - Stages that no event tells belong to the node where they happen: the one before a start
//!   ([`starting`]), and those of addresses ([`of_address`]).
//! - Environment comes from facts. A text is passed on for people, and nothing is taken out of it.

use crate::facts::{Cause, Fact};
use crate::state::{EventRecord, State};
use mainstay_ha::listed_addresses;
use mainstay_types::{Epoch, NodeId, Severity};
use std::collections::BTreeMap;

/// Stages by name, as files of the hooks directory have it.
pub const STAGES: [&str; 13] = [
    "node-lost",
    "node-back",
    "failover-begin",
    "primary-changed",
    "primary-lost",
    "failover-end",
    STARTING,
    "service-started",
    "service-moved",
    "service-stopped",
    "service-failed",
    ADDED,
    REMOVED,
];
/// The stage before a service starts. Its hook may refuse the start, and the node that starts the
/// service runs it as a step of the start.
pub const STARTING: &str = "service-starting";
const ADDED: &str = "address-added";
const REMOVED: &str = "address-removed";
/// Name of the file that is run at every stage but [`STARTING`].
pub const EVERY_STAGE: &str = "all";
/// Age of an event from which on its hooks are not run any more, in milliseconds: the node was down
/// meanwhile, and what they would tell is history.
const LATE_MS: u64 = 600_000;

/// Hooks that are due.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hook {
    pub stage: &'static str,
    /// All begin with `MAINSTAY_`.
    pub environment: BTreeMap<&'static str, String>,
}

/// The hooks that `node` has to run for events after `done`, oldest first, and the index of the
/// last event that was looked at. `now_ms`: wall clock.
#[must_use]
pub fn due(state: &State, node: NodeId, done: u64, now_ms: u64) -> (Vec<Hook>, u64) {
    let newer = state.events.iter().filter(|event| event.index > done);
    let concerned = newer.filter(|event| event.on == Some(node));
    let fresh = concerned.filter(|event| now_ms.saturating_sub(event.at_ms) < LATE_MS);
    (fresh.flat_map(|event| hooks_of(state, event)).collect(), state.last_event.max(done))
}

/// Whether the cluster replaced a primary that it had lost.
fn is_failover(cause: Cause) -> bool {
    let planned =
        [Cause::First, Cause::Restarted, Cause::Operator, Cause::Drained, Cause::Failback, Cause::Placement];
    !planned.contains(&cause)
}

fn hooks_of(state: &State, event: &EventRecord) -> Vec<Hook> {
    let Some(fact) = &event.fact else { return Vec::new() };
    let mut environment = BTreeMap::from([
        ("MAINSTAY_CLUSTER", state.cluster.as_ref().map_or_else(String::new, |cluster| cluster.name.clone())),
        ("MAINSTAY_EVENT", event.index.to_string()),
        ("MAINSTAY_TIME_MS", event.at_ms.to_string()),
        ("MAINSTAY_SEVERITY", severity_word(event.severity).to_owned()),
        ("MAINSTAY_TEXT", event.text.clone()),
    ]);
    let mut set = |name, value: &str| drop(environment.insert(name, value.to_owned()));
    let mut change = |from: Option<&str>, cause: Cause| {
        set("MAINSTAY_FROM", from.unwrap_or_default());
        set("MAINSTAY_CAUSE", cause.word());
        set("MAINSTAY_DECIDED_BY", cause.decided_by().word());
    };
    let mut stages = Vec::new();
    let mut of_resource = None;
    let mut of_service = None;
    match fact {
        Fact::NodeLost { node } => {
            stages.push("node-lost");
            environment.insert("MAINSTAY_SUBJECT_NODE", node.clone());
        }
        Fact::NodeBack { node } => {
            stages.push("node-back");
            environment.insert("MAINSTAY_SUBJECT_NODE", node.clone());
        }
        Fact::PrimaryChanged { resource, from, to, epoch, cause } => {
            change(from.as_deref(), *cause);
            if is_failover(*cause) {
                stages.push("failover-begin");
            }
            stages.push("primary-changed");
            let service = state.services.iter().find(|(_, service)| service.spec.resource == *resource);
            // With a service a failover ends when that runs.
            if is_failover(*cause) && service.is_none() {
                stages.push("failover-end");
            }
            of_service = service.map(|(name, _)| name.clone());
            of_resource = Some((resource, Some(to), Some(*epoch)));
        }
        Fact::PrimaryLost { resource, from, cause } => {
            change(from.as_deref(), *cause);
            stages.push("primary-lost");
            of_resource = Some((resource, None, None));
        }
        Fact::ServiceStarted { service, resource, node, epoch } => {
            let known = state.primary_change(resource, *epoch);
            let (from, cause, _) = known.unwrap_or((None, Cause::Other, 0));
            change(from, cause);
            stages.push("service-started");
            if known.is_some() && !ran_before(state, event, service, *epoch) {
                if from.is_some_and(|from| from != node) {
                    stages.push("service-moved");
                }
                if is_failover(cause) {
                    stages.push("failover-end");
                }
            }
            of_service = Some(service.clone());
            of_resource = Some((resource, Some(node), Some(*epoch)));
        }
        Fact::ServiceStopped { service, resource, node, epoch } => {
            stages.push("service-stopped");
            change(Some(node), Cause::Other);
            of_service = Some(service.clone());
            of_resource = Some((resource, None, Some(*epoch)));
        }
        Fact::ServiceFailed { service, resource, node, epoch, why, given_up } => {
            stages.push("service-failed");
            change(Some(node), Cause::ServiceFailed);
            environment.insert("MAINSTAY_REASON", why.clone());
            environment.insert("MAINSTAY_GIVEN_UP", u8::from(*given_up).to_string());
            of_service = Some(service.clone());
            of_resource = Some((resource, None, Some(*epoch)));
        }
        Fact::Unknown => {}
    }
    if let Some((resource, to, epoch)) = of_resource {
        environment.insert("MAINSTAY_RESOURCE", resource.clone());
        environment.insert("MAINSTAY_TO", to.cloned().unwrap_or_default());
        environment.insert("MAINSTAY_EPOCH", epoch.map_or_else(String::new, |epoch| epoch.0.to_string()));
    }
    if let Some(service) = of_service {
        let vips = state.services.get(&service).map(|known| listed_addresses(&known.spec.vips));
        environment.insert("MAINSTAY_ADDRESSES", vips.unwrap_or_default().replace(", ", " "));
        environment.insert("MAINSTAY_SERVICE", service);
    }
    let hook = |stage| {
        let mut environment = environment.clone();
        environment.insert("MAINSTAY_STAGE", String::from(stage));
        Hook { stage, environment }
    };
    stages.into_iter().map(hook).collect()
}

/// The environment of a stage of a service that no event tells.
fn of_service(
    state: &State,
    service: &str,
    stage: &'static str,
    text: String,
    now_ms: u64,
) -> BTreeMap<&'static str, String> {
    let known = state.services.get(service);
    let resource = known.and_then(|known| state.resource_of(known));
    let vips = known.map(|known| listed_addresses(&known.spec.vips));
    BTreeMap::from([
        ("MAINSTAY_STAGE", stage.to_owned()),
        ("MAINSTAY_CLUSTER", state.cluster.as_ref().map_or_else(String::new, |cluster| cluster.name.clone())),
        ("MAINSTAY_TIME_MS", now_ms.to_string()),
        ("MAINSTAY_SEVERITY", severity_word(Severity::Info).to_owned()),
        ("MAINSTAY_TEXT", text),
        ("MAINSTAY_SERVICE", service.to_owned()),
        ("MAINSTAY_RESOURCE", known.map_or_else(String::new, |known| known.spec.resource.clone())),
        ("MAINSTAY_EPOCH", resource.map_or_else(String::new, |known| known.record.epoch.0.to_string())),
        ("MAINSTAY_ADDRESSES", vips.unwrap_or_default().replace(", ", " ")),
    ])
}

/// The former primary, and why `node` is primary now.
fn came_from(state: &State, service: &str) -> (String, Cause) {
    let resource = state.services.get(service).and_then(|known| state.resource_of(known));
    let change = resource.and_then(|resource| state.primary_change(&resource.name, resource.record.epoch));
    let (from, cause) = change.map_or((None, Cause::Other), |(from, cause, _)| (from, cause));
    (from.unwrap_or_default().to_owned(), cause)
}

fn set_cause(environment: &mut BTreeMap<&'static str, String>, cause: Cause) {
    environment.insert("MAINSTAY_CAUSE", cause.word().to_owned());
    environment.insert("MAINSTAY_DECIDED_BY", cause.decided_by().word().to_owned());
}

/// The hook before a start of a service on `node`. `now_ms`: wall clock.
#[must_use]
pub fn starting(state: &State, node: NodeId, service: &str, now_ms: u64) -> Hook {
    let name = state.node_name(node);
    let text = format!("service {service} is about to start on {name}");
    let mut environment = of_service(state, service, STARTING, text, now_ms);
    let (from, cause) = came_from(state, service);
    environment.insert("MAINSTAY_FROM", from);
    environment.insert("MAINSTAY_TO", name);
    set_cause(&mut environment, cause);
    Hook { stage: STARTING, environment }
}

/// A floating address that a node has added, or taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AddressChange<'a> {
    pub service: &'a str,
    /// With its prefix, as the service names it.
    pub address: &'a str,
    pub interface: &'a str,
    /// The address is here now. Otherwise it is gone from here.
    pub added: bool,
    /// The service was killed because the node's lease ended.
    pub lease_ended: bool,
}

/// The hook for an address that was added on `node` or taken away there. `now_ms`: wall clock.
#[must_use]
pub fn of_address(state: &State, node: NodeId, change: AddressChange, now_ms: u64) -> Hook {
    let AddressChange { service, address, interface, added, .. } = change;
    let name = state.node_name(node);
    let (stage, text) = if added {
        (ADDED, format!("address {address} of service {service} was added to {interface} on {name}"))
    } else {
        (REMOVED, format!("address {address} of service {service} was removed from {interface} on {name}"))
    };
    let mut environment = of_service(state, service, stage, text, now_ms);
    environment.insert("MAINSTAY_ADDRESS", address.to_owned());
    environment.insert("MAINSTAY_INTERFACE", interface.to_owned());
    let (from, to, cause) = if added {
        let (from, cause) = came_from(state, service);
        (from, name, cause)
    } else {
        let (to, cause) = why_removed(state, node, change);
        (name, to, cause)
    };
    environment.insert("MAINSTAY_FROM", from);
    environment.insert("MAINSTAY_TO", to);
    set_cause(&mut environment, cause);
    Hook { stage, environment }
}

/// The node that has the service next, as far as that is known, and why `node` gave its address up.
fn why_removed(state: &State, node: NodeId, change: AddressChange) -> (String, Cause) {
    let known = state.services.get(change.service);
    let resource = known.and_then(|known| state.resource_of(known));
    let next = resource.and_then(|resource| resource.record.primary.or_else(|| state.target(resource.id)));
    let next = next.filter(|next| *next != node).or_else(|| {
        let target = resource.and_then(|resource| state.target(resource.id));
        target.filter(|target| *target != node && known.is_some_and(crate::state::Service::is_wanted))
    });
    let ordered = known.is_none_or(|known| {
        !known.is_wanted() || known.restart.is_some() || known.desired_node.is_some_and(|to| to != node)
    });
    let cause = if change.lease_ended {
        Cause::NodeDead
    } else if resource.is_some_and(|resource| resource.record.primary.is_some_and(|now| now != node)) {
        came_from(state, change.service).1
    } else if ordered {
        Cause::Operator
    } else if state.is_drained(node) && next.is_some() {
        Cause::Drained
    } else if known.is_some_and(|known| known.failures_on(node) > 0) {
        Cause::ServiceFailed
    } else {
        Cause::Other
    };
    (next.map(|next| state.node_name(next)).unwrap_or_default(), cause)
}

/// Whether the service ran in this epoch before this event.
fn ran_before(state: &State, event: &EventRecord, name: &str, in_epoch: Epoch) -> bool {
    state.events.iter().take_while(|earlier| earlier.index < event.index).any(|earlier| {
        matches!(&earlier.fact, Some(Fact::ServiceStarted { service, epoch, .. })
            if service == name && *epoch == in_epoch)
    })
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}
