//! Services: the operator's specifications, and the nodes' reports about them.

use crate::facts::Fact;
use crate::state::{Links, Node, Outcome, Service, ServiceOnNode, State, cut, host_address, refused};
use mainstay_ha::{ServiceSpec, Vip, is_within};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, Epoch, MacAddress, NodeId, Problem, ServicePhase, Severity, reach};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Report of a node about a service; see [`crate::state::Command::ServiceStatus`].
pub(crate) struct StatusReport {
    pub node: NodeId,
    pub phase: ServicePhase,
    pub epoch: Epoch,
    pub round: u64,
    pub detail: String,
    pub failures: u32,
    pub passes: bool,
    pub last_failure: String,
}

/// The service, node and epoch that a report is about.
struct OfService<'a> {
    name: &'a str,
    resource: String,
    node: String,
    epoch: Epoch,
}

impl OfService<'_> {
    fn failed(&self, why: String, given_up: bool) -> Fact {
        let (service, resource, node) = (self.name.to_owned(), self.resource.clone(), self.node.clone());
        Fact::ServiceFailed { service, resource, node, epoch: self.epoch, why, given_up }
    }

    /// The fact of a phase that was just reached.
    fn reached(&self, phase: ServicePhase, failures: u32, why: String) -> Option<Fact> {
        let (service, resource, node) = (self.name.to_owned(), self.resource.clone(), self.node.clone());
        let epoch = self.epoch;
        match phase {
            ServicePhase::Running => Some(Fact::ServiceStarted { service, resource, node, epoch }),
            ServicePhase::Stopped => Some(Fact::ServiceStopped { service, resource, node, epoch }),
            ServicePhase::Failed => Some(self.failed(why, true)),
            ServicePhase::BackingOff if failures > 0 => Some(self.failed(why, false)),
            _ => None,
        }
    }
}

/// The floating addresses of a service.
fn addresses_of(spec: &ServiceSpec) -> impl Iterator<Item = IpAddr> {
    spec.vips.iter().filter_map(Vip::parsed).map(|address| address.ip)
}

impl State {
    pub(crate) fn apply_service(&mut self, at_ms: u64, spec: ServiceSpec) -> Outcome {
        if let Err(error) = spec.validate() {
            return refused(Code::BadService, error.to_string(), error.remedy);
        }
        let Some(resource) = self.resource_by_name(&spec.resource).filter(|resource| !resource.deleting)
        else {
            return refused(
                Code::UnknownResource,
                format!("there is no resource {}", spec.resource),
                "create it with `mainstay resource create NAME --size SIZE`, or correct `resource`",
            );
        };
        if let Some(mount) = &spec.mount
            && usize::from(mount.volume) >= resource.spec.volumes.len()
        {
            return refused(
                Code::UnknownVolume,
                format!("resource {} has no volume {}", spec.resource, mount.volume),
                format!("use 0 to {}", resource.spec.volumes.len().saturating_sub(1)),
            );
        }
        if let Some(refusal) = self.refuse_attached(resource) {
            return refusal;
        }
        if let Some((other, _)) = self.service_of(resource.id)
            && *other != spec.name
        {
            return refused(
                Code::ResourceInUse,
                format!("service {other} runs on resource {}", spec.resource),
                "put the processes into one service, or use another resource",
            );
        }
        let holds = |name: &String| {
            self.node_by_name(name).is_some_and(|node| resource.spec.replicas.contains(&node.id))
        };
        if let Some(preferred) = spec.policy.preferred.iter().find(|name| !holds(name)) {
            return refused(
                Code::BadPreferred,
                format!("policy.preferred: resource {} has no replica on {preferred}", spec.resource),
                format!("name a node that has one; see `mainstay resource status {}`", spec.resource),
            );
        }
        let refusal = self.taken(&spec).or_else(|| self.of_a_node(&spec));
        if let Some(refusal) = refusal.or_else(|| self.refuse_placement(&spec)) {
            return refusal;
        }
        let (id, subject) = (resource.id, format!("service {}", spec.name));
        match self.services.get_mut(&spec.name) {
            Some(service) if service.deleting => {
                return refused(
                    Code::BeingDeleted,
                    format!("service {} is being deleted", spec.name),
                    "wait until it is gone",
                );
            }
            Some(service) if service.spec.resource != spec.resource => {
                return refused(
                    Code::ResourceChanged,
                    format!(
                        "resource: service {} is on resource {}, the file says {}, and a service cannot change its resource",
                        spec.name, service.spec.resource, spec.resource
                    ),
                    format!(
                        "if the file is of another service, give that a name of its own; to put this one on {}, run `mainstay service \
                         delete {}` and apply the file again",
                        spec.resource, spec.name
                    ),
                );
            }
            Some(service) if service.spec == spec && !service.has_failures() => {
                reach!("control: a service is applied as it is");
                return Outcome::Unchanged;
            }
            Some(service) => {
                reach!("control: a service is applied again");
                service.round += 1;
                service.halted = None;
                let changed: Vec<String> =
                    service.spec.changes(&spec).into_iter().map(|change| change.field).collect();
                let text = if changed.is_empty() {
                    "applied again, failures cleared".into()
                } else if service.spec.needs_restart(&spec) {
                    service.revision += 1;
                    service.restart = None;
                    service.changed_round = service.round;
                    let then = if service.stopped.is_some() { "stays stopped" } else { "starts again" };
                    format!("changed, {then}: {}", changed.join(", "))
                } else {
                    format!("changed in place: {}", changed.join(", "))
                };
                service.edition += u64::from(service.spec != spec);
                let name = spec.name.clone();
                service.spec = spec;
                self.order(&name);
                self.note(at_ms, Severity::Info, subject, text);
            }
            None => {
                if self.services.len() >= crate::state::RESOURCES_MAX {
                    return refused(
                        Code::TooManyServices,
                        "the cluster has as many services as it can hold",
                        "delete one that is not needed",
                    );
                }
                reach!("control: a service is made");
                let name = spec.name.clone();
                // From now on the primary moves with the service.
                if let Some(resource) = self.resources.get_mut(&id) {
                    resource.desired_node = None;
                }
                let service = Service::new(spec);
                self.services.insert(name.clone(), service);
                self.order(&name);
                self.note(at_ms, Severity::Info, subject, "created");
            }
        }
        Outcome::Done
    }

    /// The refusal if another service has the same address or mount point: two services may meet on
    /// one node.
    fn taken(&self, spec: &ServiceSpec) -> Option<Outcome> {
        let others = || self.services.iter().filter(|(name, _)| **name != spec.name);
        let of_others = |ip: IpAddr| {
            others()
                .find(|(_, other)| addresses_of(&other.spec).any(|theirs| theirs == ip))
                .map(|(name, _)| name)
        };
        if let Some((address, other)) =
            addresses_of(spec).find_map(|address| Some((address, of_others(address)?)))
        {
            return Some(refused(
                Code::AddressInUse,
                format!("vip.address: service {other} has {address}"),
                "give each service an address of its own",
            ));
        }
        if let Some(mount) = &spec.mount
            && let Some((other, theirs)) = others()
                .filter_map(|(name, service)| Some((name, &service.spec.mount.as_ref()?.path)))
                .find(|(_, theirs)| is_within(theirs, &mount.path) || is_within(&mount.path, theirs))
        {
            return Some(refused(
                Code::PathInUse,
                format!("mount.path: service {other} mounts at {theirs}"),
                format!(
                    "give each service a path of its own: {} would lie over that of the other, or in it",
                    mount.path
                ),
            ));
        }
        None
    }

    /// The refusal if the address is a node's own. A node that lost its own address would be out of
    /// the cluster for good.
    fn of_a_node(&self, spec: &ServiceSpec) -> Option<Outcome> {
        let of_node = |address: IpAddr| {
            let mut nodes = self.nodes.values();
            nodes.find(|node| node.addresses().any(|own| own == address)).map(|node| (address, node))
        };
        let (address, node) = addresses_of(spec).find_map(of_node)?;
        Some(refused(
            Code::AddressOfANode,
            format!("vip.address: {address} is an address of node {}", node.name),
            "give the service an address that no host has",
        ))
    }

    /// The other way round: a service may move its address to the newcomer, or away from it.
    pub(crate) fn address_of_a_service(&self, agent_and_engine: &[&String]) -> Option<Problem> {
        let own: Vec<IpAddr> = agent_and_engine.iter().filter_map(|addr| host_address(addr)).collect();
        let (name, address) = self.services.iter().find_map(|(name, service)| {
            let address = addresses_of(&service.spec).find(|address| own.contains(address))?;
            Some((name, address))
        })?;
        Some(Problem::new(
            Code::AddressOfAService,
            format!("{address} is the floating address of service {name}"),
            "give an address that stays on this node",
        ))
    }

    pub(crate) fn delete_service(&mut self, at_ms: u64, name: &str) -> Outcome {
        if let Some(refusal) = self.refuse_named(name) {
            return refusal;
        }
        let Some(service) = self.services.get_mut(name) else { return unknown_service(&self.services, name) };
        if service.deleting {
            return Outcome::Unchanged;
        }
        reach!("control: a service is being deleted");
        service.deleting = true;
        service.desired_node = None;
        self.note(at_ms, Severity::Info, format!("service {name}"), "is being deleted");
        Outcome::Done
    }

    pub(crate) fn service_gone(&mut self, at_ms: u64, name: &str) -> Outcome {
        match self.services.get(name) {
            None => Outcome::Unchanged,
            Some(service) if !service.deleting => refused(
                Code::NotDeleting,
                "the service is not being deleted",
                "look at `mainstay service list`",
            ),
            Some(_) => {
                reach!("control: a service is gone");
                self.services.remove(name);
                self.note(at_ms, Severity::Info, format!("service {name}"), "deleted");
                Outcome::Done
            }
        }
    }

    pub(crate) fn move_service(&mut self, at_ms: u64, name: &str, to: NodeId) -> Outcome {
        let Some(service) = self.services.get(name).filter(|service| !service.deleting) else {
            return unknown_service(&self.services, name);
        };
        let to_name = self.node_name(to);
        let Some(resource) = self.resource_of(service) else { return unknown_service(&self.services, name) };
        if !self.may_come(resource, to) {
            reach!("control: a move to a node that is not eligible");
            let remedy = if resource.record.iss.is_empty() {
                "wait until the replicas are made".to_string()
            } else {
                let possible: Vec<String> =
                    self.candidates(resource).iter().map(|node| self.node_name(*node)).collect();
                format!(
                    "possible now: {}",
                    if possible.is_empty() { "none".into() } else { possible.join(", ") }
                )
            };
            return refused(Code::NotEligible, format!("node {to_name} is not alive and in sync"), remedy);
        }
        if let Some(why) = self.refuses_move(name, to) {
            reach!("control: a move that a constraint or a closed node forbids");
            let remedy = format!("see `mainstay explain {name}`");
            return refused(
                Code::NotEligible,
                format!("service {name} is not moved to {to_name}: {why}"),
                remedy,
            );
        }
        reach!("control: a service is moved");
        let moved = self.revision + 1;
        for member in self.group(name) {
            let there = self
                .services
                .get(&member)
                .and_then(|service| self.resource_of(service))
                .is_none_or(|resource| resource.record.primary == Some(to));
            let Some(service) = self.services.get_mut(&member) else { continue };
            if member != name && !service.is_wanted() {
                continue;
            }
            service.round += 1;
            service.halted = None;
            service.moved = moved;
            service.desired_node = (!there).then_some(to);
            self.order(&member);
        }
        self.note(at_ms, Severity::Info, format!("service {name}"), format!("is to run on {to_name}"));
        Outcome::Done
    }

    pub(crate) fn service_status(&mut self, at_ms: u64, name: &str, report: StatusReport) -> Outcome {
        if !self.nodes.contains_key(&report.node) {
            return Outcome::Unchanged;
        }
        let node_name = self.node_name(report.node);
        let why_stopped = self.why_stopped(name, report.node);
        let Some(service) = self.services.get_mut(name) else { return unknown_service(&self.services, name) };
        let StatusReport { node, phase, epoch, round, detail, failures, passes, last_failure } = report;
        let before = service.nodes.get(&node);
        let failed_round = match phase {
            ServicePhase::Failed if planted(Bug::FailureForgotten) => None,
            ServicePhase::Failed => Some(round),
            _ => before.and_then(|on| on.failed_round),
        };
        let last_failure = cut(last_failure);
        let last_failure_ms = match before {
            Some(old) if failures <= old.failures && last_failure == old.last_failure => old.last_failure_ms,
            _ if failures == 0 && last_failure.is_empty() => 0,
            _ => at_ms,
        };
        let on = ServiceOnNode {
            phase,
            epoch,
            round,
            detail: cut(detail),
            failures,
            failed_round,
            passes,
            last_failure,
            last_failure_ms,
            at_ms,
        };
        if before.is_some_and(|old| ServiceOnNode { at_ms, ..old.clone() } == on) {
            reach!("control: a status that says nothing new");
            return Outcome::Unchanged;
        }
        let phase_changed = before.is_none_or(|old| old.phase != phase);
        let is_told = before.is_some_and(|old| {
            let tells =
                matches!(old.phase, ServicePhase::Running | ServicePhase::Starting | ServicePhase::Stopping);
            tells && old.failures >= failures && old.round == round && old.last_failure == on.last_failure
        });
        // A failure that did not end the whole service. The node mends it while the rest stays as
        // it is.
        let partial =
            matches!(phase, ServicePhase::Running | ServicePhase::Starting | ServicePhase::Stopping)
                && failures > before.map_or(0, |old| old.failures);
        let partial = partial.then(|| on.last_failure.clone()).filter(|why| !why.is_empty());
        // A service that goes on running says only what its probes find (R28).
        let found = before.filter(|old| old.phase == phase && phase == ServicePhase::Running);
        let found = found.and_then(|old| match (old.detail.is_empty(), on.detail.is_empty()) {
            (true, false) => Some((Severity::Warning, format!("on {node_name}: {}", on.detail))),
            (false, true) => Some((
                Severity::Info,
                format!("on {node_name}: all its processes and addresses answer again"),
            )),
            _ => None,
        });
        let text = match phase {
            ServicePhase::Running => {
                reach!("control: a service runs");
                Some((Severity::Info, format!("runs on {node_name}")))
            }
            ServicePhase::Stopped => Some((Severity::Info, format!("stopped on {node_name}{why_stopped}"))),
            ServicePhase::Failed => {
                reach!("control: a service failed on a node");
                Some((Severity::Critical, format!("failed on {node_name}: {}", on.detail)))
            }
            // A service that only waits for its address, with everything else started, has not
            // failed.
            ServicePhase::BackingOff if failures == 0 => {
                Some((Severity::Warning, format!("on {node_name} {}", on.detail)))
            }
            // An event told this failure when it was counted.
            ServicePhase::BackingOff if is_told => None,
            ServicePhase::BackingOff => {
                Some((Severity::Warning, format!("failed on {node_name}, trying again: {}", on.detail)))
            }
            ServicePhase::Killing => {
                Some((Severity::Warning, format!("is being killed on {node_name}: {}", on.detail)))
            }
            ServicePhase::Starting | ServicePhase::Stopping => None,
        };
        let about =
            OfService { name, resource: service.spec.resource.clone(), node: node_name.clone(), epoch };
        let why = on.detail.clone();
        service.nodes.insert(node, on);
        // It was tried as an operator had ordered.
        let tried = [ServicePhase::Running, ServicePhase::Failed, ServicePhase::BackingOff].contains(&phase);
        service.ordered = service.ordered.filter(|ordered| !(tried && *ordered <= round));
        if phase == ServicePhase::Running {
            service.halted = None;
        }
        if let Some(why) = partial {
            let text = format!("failed on {node_name}, trying again: {why}");
            let fact = about.failed(why, false);
            self.note_fact(at_ms, Severity::Warning, format!("service {name}"), text, fact);
        }
        match (text.filter(|_| phase_changed), about.reached(phase, failures, why)) {
            (Some((severity, text)), Some(fact)) => {
                self.note_fact(at_ms, severity, format!("service {name}"), text, fact);
            }
            (text, _) => {
                if let Some((severity, text)) = text.or(found) {
                    self.note(at_ms, severity, format!("service {name}"), text);
                }
            }
        }
        if phase == ServicePhase::Failed {
            self.halt_if_nowhere(at_ms, name);
        }
        Outcome::Done
    }

    /// Why a service that stopped on a node has stopped there, as an end of a sentence; empty if
    /// nothing here says so.
    fn why_stopped(&self, name: &str, node: NodeId) -> String {
        let Some(service) = self.services.get(name) else { return String::new() };
        if service.deleting {
            return ", because it is being deleted".into();
        }
        if service.stopped.is_some() {
            return ", because an operator stopped it".into();
        }
        let Some(resource) = self.resource_of(service) else { return String::new() };
        match resource.record.primary {
            Some(primary) if primary != node => {
                format!(", because {} is primary of resource {} now", self.node_name(primary), resource.name)
            }
            None => format!(", because resource {} has no primary", resource.name),
            Some(_) if resource.rollback.is_some() => {
                format!(", because resource {} is being rolled back", resource.name)
            }
            Some(_) => String::new(),
        }
    }

    /// Says so when a service has used up its attempts wherever it could run (R21).
    fn halt_if_nowhere(&mut self, at_ms: u64, name: &str) {
        let Some(service) = self.services.get(name) else { return };
        let Some(resource) = self.resource_of(service) else { return };
        let candidates = self.candidates(resource);
        let mut others = resource.record.replicas.iter().map(|member| member.node);
        let somewhere = others.any(|node| self.may_come(resource, node) && !service.failed_on(node));
        if service.halted.is_some() || !service.is_wanted() || somewhere {
            return;
        }
        reach!("control: a service is halted");
        let reasons: Vec<String> = candidates
            .iter()
            .filter_map(|node| {
                service.nodes.get(node).map(|on| format!("{}: {}", self.node_name(*node), on.detail))
            })
            .collect();
        let text =
            cut(format!("stopped: it failed on every node that could run it ({})", reasons.join("; ")));
        if let Some(service) = self.services.get_mut(name) {
            service.halted = Some(text.clone());
        }
        self.note(at_ms, Severity::Critical, format!("service {name}"), text);
    }

    /// Notes that failed services are to be tried anew everywhere, because a node came or went and
    /// the cause may have gone with it. The node of the primary says when: it counts the time since
    /// the last failure, so that nodes that come and go in a row do not start a service over and
    /// over again (R21). No wall clock decides that.
    pub(crate) fn try_services_again(&mut self, node: NodeId) {
        let concerned = |service: &Service| {
            let resource = self.resource_of(service);
            service.is_wanted()
                && resource.is_some_and(|resource| resource.spec.replicas.contains(&node))
                && service.nodes.keys().any(|node| service.failed_on(*node))
        };
        let names: Vec<String> = self
            .services
            .iter()
            .filter(|(_, service)| concerned(service))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(service) = self.services.get_mut(&name) else { continue };
            reach!("control: a failed service is to be tried again because a node came or went");
            service.nodes_changed = true;
        }
    }

    pub(crate) fn retry_service(&mut self, at_ms: u64, name: &str, round: u64) -> Outcome {
        let Some(service) = self.services.get(name) else { return unknown_service(&self.services, name) };
        if service.round != round || !service.may_be_tried_again() {
            return Outcome::Unchanged;
        }
        let why = if service.nodes_have_changed() {
            reach!("control: a service is tried again because a node came or went");
            "nodes have come or gone since it failed"
        } else {
            reach!("control: a halted service is tried again");
            "what it failed for may have passed"
        };
        self.new_round(at_ms, name, why);
        Outcome::Done
    }

    /// Failures until now do not count any more.
    fn new_round(&mut self, at_ms: u64, name: &str, why: &str) {
        let Some(service) = self.services.get_mut(name) else { return };
        service.round += 1;
        service.halted = None;
        service.nodes_changed = false;
        self.note(at_ms, Severity::Info, format!("service {name}"), format!("is tried again: {why}"));
    }

    pub(crate) fn node_links(&mut self, node: NodeId, links: Links) -> Outcome {
        let Some(known) = self.nodes.get_mut(&node) else { return Outcome::Conflict { record: None } };
        if known.links == links || links.macs.len() > Links::MAX || links.addresses.len() > Links::MAX {
            return Outcome::Unchanged;
        }
        known.links = links;
        Outcome::Done
    }

    /// A node says whether it may be primary, and why not.
    pub(crate) fn node_fitness(&mut self, at_ms: u64, node: NodeId, unfit: Option<String>) -> Outcome {
        let unfit = unfit.map(cut);
        if !self.nodes.contains_key(&node) || self.unfit.get(&node) == unfit.as_ref() {
            return Outcome::Unchanged;
        }
        let subject = format!("node {}", self.node_name(node));
        match unfit {
            Some(why) => {
                reach!("control: a node is not to be primary");
                self.note(at_ms, Severity::Warning, subject, format!("is not to be primary: {why}"));
                self.unfit.insert(node, why);
            }
            None => {
                reach!("control: a node may be primary again");
                self.unfit.remove(&node);
                self.note(at_ms, Severity::Info, subject, "may be primary again");
            }
        }
        Outcome::Done
    }

    /// Whether the host that answers for `address` with `mac` is a node whose right to the address
    /// has ended. It is one if `mac` belongs to a node and the address is there for a service. The
    /// node that asks is primary, so no other node has a lease for that service (R19).
    #[must_use]
    pub fn has_lost_right(&self, address: IpAddr, mac: MacAddress) -> Option<&Node> {
        let node = self.nodes.values().find(|node| node.links.macs.contains(&mac))?;
        (!node.addresses().any(|own| own == address)).then_some(node)
    }

    /// A move to a node that can no longer be primary is given up: it would surprise the operator
    /// later.
    pub(crate) fn cancel_impossible_moves(&mut self, at_ms: u64) {
        self.cancel_impossible_primary_moves(at_ms);
        let cancelled: Vec<(String, NodeId)> = self
            .services
            .iter()
            .filter_map(|(name, service)| service.desired_node.map(|to| (name.clone(), to)))
            .filter(|(name, to)| {
                self.services
                    .get(name)
                    .and_then(|service| self.resource_of(service))
                    .is_none_or(|resource| !self.may_come(resource, *to) || self.closed(*to).is_some())
            })
            .collect();
        for (name, to) in cancelled {
            reach!("control: a move is given up");
            if let Some(service) = self.services.get_mut(&name) {
                service.desired_node = None;
            }
            let text = format!(
                "the move to {} is given up: {}",
                self.node_name(to),
                self.closed(to).unwrap_or_else(|| "it is not alive and in sync any more".into())
            );
            self.note(at_ms, Severity::Warning, format!("service {name}"), text);
        }
    }
}

/// Refusal of a name that no service has, with the one that was probably meant.
pub(crate) fn unknown_service(services: &BTreeMap<String, Service>, name: &str) -> Outcome {
    let hint = mainstay_ha::nearest(name, services.keys()).map(|near| format!("did you mean {near}? "));
    let remedy = format!("{}see `mainstay service list`", hint.unwrap_or_default());
    refused(Code::UnknownService, format!("there is no service {name}"), remedy)
}
