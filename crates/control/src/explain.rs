//! Where a service would run, and why not elsewhere: the words of `mainstay explain`.
//!
//! Each reason is asked of the function that decides, in the order in which an operator would mend
//! them: what makes the node unable, then what forbids it, then what prefers another one.

use crate::state::{Resource, Service, State};
use mainstay_types::{NodeId, NodeStatus, ServicePhase};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One node, for a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fit {
    pub node: NodeId,
    /// The service runs there, or would, as things are.
    pub chosen: bool,
    /// Whether the service could run there.
    pub can: bool,
    /// In words, one line.
    pub why: String,
}

impl State {
    /// Why the primary of a resource could not be on `node` now, beside what its service says.
    pub(crate) fn unable(&self, resource: &Resource, node: NodeId) -> Option<String> {
        let record = &resource.record;
        if !resource.spec.replicas.contains(&node) {
            return Some(format!("it holds no replica of resource {}", resource.name));
        }
        if self.nodes.get(&node).is_some_and(|known| known.status == NodeStatus::Dead) {
            return Some("it is dead".into());
        }
        if let Some(broken) = resource.broken(node) {
            return Some(format!("its replica cannot be used: {}", broken.reason));
        }
        if record.replica(node).is_none() {
            return Some("its replica is not made yet".into());
        }
        if let Some(why) = self.unfit.get(&node) {
            return Some(format!("it is not to be primary: {why}"));
        }
        if let Some(fenced) = self.fence_awaited(resource.id) {
            let name = self.node_name(fenced);
            return Some(format!("{name} is to be switched off first (`mainstay node confirm-off {name}`)"));
        }
        if !self.may_come(resource, node) {
            let name = &resource.name;
            return Some(format!("not in sync (`mainstay resource status {name}` says how far it is)"));
        }
        None
    }

    fn forbidden(&self, service: &Service, node: NodeId) -> Option<String> {
        let failures = service.failures_on(node);
        if service.failed_on(node) {
            let on = service.nodes.get(&node);
            let last = on.map(|on| on.last_failure.as_str()).filter(|why| !why.is_empty());
            let last = last.map(|why| format!(", the last time because {why}")).unwrap_or_default();
            return Some(format!("failed there {}{last}", times(failures)));
        }
        self.avoids(service, node).then(|| "avoided (placement.avoid)".into())
    }

    /// Why an operator's move of a service to `node` is refused; `None` if it is not.
    pub(crate) fn refuses_move(&self, name: &str, node: NodeId) -> Option<String> {
        let service = self.services.get(name)?;
        let resource = self.resource_of(service)?;
        let there = resource.record.primary == Some(node);
        if !there && let Some(why) = self.closed(node) {
            return Some(why);
        }
        for member in self.group(name) {
            let of = self.services.get(&member)?;
            if !of.is_wanted() && member != name {
                continue;
            }
            if self.avoids(of, node) {
                return Some(format!("{member} is never to run there (placement.avoid)"));
            }
            let its = self.resource_of(of)?;
            if member != name && !self.may_come(its, node) {
                return Some(format!(
                    "{member} goes with it, and resource {} is not in sync there",
                    its.name
                ));
            }
        }
        if !self.is_tied(name) || !service.is_wanted() {
            return None;
        }
        // With the wish, as many services are to run as without it.
        let seated = |state: &Self| state.seats(name).values().flatten().count();
        let before = seated(self);
        let mut trial = self.clone();
        for member in self.group(name) {
            if let Some(of) = trial.services.get_mut(&member).filter(|of| of.is_wanted()) {
                (of.desired_node, of.moved, of.round) = (Some(node), self.revision + 1, of.round + 1);
            }
        }
        let seats = trial.seats(name);
        if seats.get(name).copied().flatten() == Some(node) && seated(&trial) >= before {
            return None;
        }
        let rival = |other: &str| {
            let at = self.services.get(other).and_then(|of| self.resource_of(of));
            at.and_then(|resource| resource.record.primary) == Some(node)
        };
        let group = self.group(name);
        let mut rivals = group.iter().flat_map(|member| self.apart_from(member)).filter(|other| rival(other));
        Some(match rivals.next() {
            Some(other) => {
                format!("it is to be apart from {other}, which runs there and could run nowhere else")
            }
            None => "another service that it is tied to could not run any more".into(),
        })
    }

    /// Each node of the cluster, for a service. `lacks`: what nodes lack for it, as they say.
    #[must_use]
    pub fn explain(&self, name: &str, lacks: &BTreeMap<NodeId, Vec<String>>) -> Vec<Fit> {
        let Some(service) = self.services.get(name) else { return Vec::new() };
        let Some(resource) = self.resource_of(service) else { return Vec::new() };
        let target = self.target(resource.id);
        let primary = resource.record.primary;
        let candidates = self.candidates(resource);
        let tied = self.is_tied(name).then(|| self.seats(name));
        let fits = self.nodes.keys().copied().map(|node| {
            let lacking = lacks.get(&node).filter(|lacks| !lacks.is_empty());
            let lacking = lacking.map(|lacks| format!("lacks: {}", lacks.join("; ")));
            let barred = || tied.as_ref().and_then(|seats| self.tie_of(name, seats, node));
            let closed = || self.closed(node).filter(|_| primary != Some(node));
            let unable = self.unable(resource, node).or_else(|| self.forbidden(service, node));
            let why = unable.or_else(closed).or_else(barred);
            let chosen = target == Some(node) && why.is_none();
            let can = why.is_none();
            let why = match why.or(lacking) {
                Some(why) => why,
                None if chosen => self.here(name, service, node, primary == Some(node)),
                None => {
                    match candidates.iter().filter(|other| Some(**other) != target).position(|to| *to == node)
                    {
                        Some(0) => "could run there, and is next".into(),
                        Some(at) => format!(
                            "could run there, and comes after {at} other{}",
                            if at == 1 { "" } else { "s" }
                        ),
                        None => "could run there once it has caught up".into(),
                    }
                }
            };
            Fit { node, chosen, can, why }
        });
        fits.collect()
    }

    /// Why the services that a service is tied to keep it from `node`.
    fn tie_of(&self, name: &str, seats: &BTreeMap<String, Option<NodeId>>, node: NodeId) -> Option<String> {
        let seat = |name: &str| seats.get(name).copied().flatten();
        if seat(name) == Some(node) {
            return None;
        }
        let service = self.services.get(name)?;
        if let Some(with) = &service.spec.placement.with {
            let other = self.services.get(with)?;
            let place = seat(with).or_else(|| self.resource_of(other)?.record.primary);
            if place != Some(node) {
                return Some(match place {
                    Some(place) => {
                        format!("it is to run with {with}, whose place is on {}", self.node_name(place))
                    }
                    None => format!("it is to run with {with}, which has no place now"),
                });
            }
        }
        let group = self.group(name);
        let mut rivals =
            group.iter().flat_map(|member| self.apart_from(member)).filter(|other| seat(other) == Some(node));
        rivals.next().map(|rival| format!("apart from {rival}, which has its place there"))
    }

    /// Words about the node where the service runs or would run.
    fn here(&self, name: &str, service: &Service, node: NodeId, is_primary: bool) -> String {
        if !is_primary {
            return "would run there: it is moved there next".into();
        }
        if service.stopped.is_some() {
            return "its place is there; an operator has stopped it".into();
        }
        let runs = service.nodes.get(&node).is_some_and(|on| on.phase == ServicePhase::Running);
        let waits = self.barred(name, node).or_else(|| self.awaits(name).map(|bar| bar.why));
        let rests = self.rests(name).map(|scope| {
            format!("; {} is in maintenance (`{}` ends that)", scope.words(self), scope.off(self))
        });
        let words = match (runs, waits) {
            (_, Some(why)) => format!("its place is there, and it waits: {why}"),
            (true, None) => "runs there".into(),
            (false, None) => "its place is there".into(),
        };
        words + &rests.unwrap_or_default()
    }
}

fn times(count: u32) -> String {
    match count {
        0 | 1 => "once".into(),
        count => format!("{count} times"),
    }
}
