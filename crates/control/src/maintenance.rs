//! Maintenance: an operator works on a service, on a node or on the cluster, and Mainstay moves,
//! starts, restarts and stops nothing there by itself.
//!
//! Guarantees, for what is in maintenance
//! - No service is started, restarted, stopped or moved, except by an operator's order, or because
//!   it must be silent (R19): the lease ends, or its device goes. What is lost is watched and said.
//! - No other node becomes primary, except by an operator's order. A primary whose node dies stays
//!   in sync, because nothing can be written without it, and leads again when it is back.
//! - What depends on something in maintenance rests with it: a service that runs `with` or `after`
//!   another one, and the services of one group.
//! - All this holds at the entry of the log that begins the maintenance, on all nodes alike.
//!
//! | state | left by | to |
//! |---|---|---|
//! | none | [`Command::SetMaintenance`] | maintenance, with or without an end |
//! | maintenance | the same, off | none |
//! | maintenance that ends | [`Command::MaintenanceCounted`] with nothing left | none |
//!
//! The end is counted and not dated: no wall clock decides. One node counts, by the time since its
//! boot ([`State::counts`]), and records each minute how much is left. When another node takes over
//! the counting, at most that minute is counted again.
//!
//! An operator's order to a service in maintenance carries a start with it: [`Service::ordered`] is
//! the round that may start once.
//!
//! [`Command::SetMaintenance`]: crate::state::Command::SetMaintenance
//! [`Command::MaintenanceCounted`]: crate::state::Command::MaintenanceCounted

use crate::state::{Outcome, Resource, Service, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, NodeId, Severity, reach};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Bounds of the time after which a maintenance ends by itself, in milliseconds.
pub const MAINTENANCE_MS: std::ops::RangeInclusive<u64> = 1000..=90 * 24 * 3_600_000;
/// How much time may pass until the rest of it is recorded, in milliseconds.
pub const COUNT_MS: u64 = 60_000;

/// The scope of a maintenance.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(tag = "of", rename_all = "kebab-case")]
pub enum Scope {
    Cluster,
    Node { node: NodeId },
    Service { name: String },
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Maintenance {
    /// Higher than that of every earlier maintenance.
    pub number: u64,
    /// Wall clock of the order, for display.
    pub at_ms: u64,
    /// How long it lasts, if it ends by itself, and how much of that was left when that was last
    /// recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<(u64, u64)>,
}

impl Scope {
    /// The command that ends the maintenance.
    #[must_use]
    pub fn off(&self, state: &State) -> String {
        match self {
            Self::Cluster => "mainstay cluster maintenance --off".into(),
            Self::Node { node } => format!("mainstay node maintenance {} --off", state.node_name(*node)),
            Self::Service { name } => format!("mainstay service maintenance {name} --off"),
        }
    }

    /// For example `node n1`.
    #[must_use]
    pub fn words(&self, state: &State) -> String {
        match (self, &state.cluster) {
            (Self::Cluster, Some(cluster)) => format!("cluster {}", cluster.name),
            (Self::Cluster, None) => "the cluster".into(),
            (Self::Node { node }, _) => format!("node {}", state.node_name(*node)),
            (Self::Service { name }, _) => format!("service {name}"),
        }
    }
}

impl State {
    fn maintenance_mut(&mut self, scope: &Scope) -> Result<&mut Option<Maintenance>, Box<Outcome>> {
        match scope {
            Scope::Cluster => Ok(&mut self.maintenance),
            Scope::Node { node } => match self.nodes.get_mut(node) {
                Some(node) => Ok(&mut node.maintenance),
                None => Err(Box::new(refused(
                    Code::UnknownNode,
                    format!("there is no node {node}"),
                    "see `mainstay node list`",
                ))),
            },
            Scope::Service { name } => {
                let unknown = crate::service::unknown_service(&self.services, name);
                match self.services.get_mut(name) {
                    Some(service) if !service.deleting => Ok(&mut service.maintenance),
                    _ => Err(Box::new(unknown)),
                }
            }
        }
    }

    /// The maintenance of exactly this scope.
    #[must_use]
    pub fn maintenance_of(&self, scope: &Scope) -> Option<&Maintenance> {
        match scope {
            Scope::Cluster => self.maintenance.as_ref(),
            Scope::Node { node } => self.nodes.get(node)?.maintenance.as_ref(),
            Scope::Service { name } => self.services.get(name)?.maintenance.as_ref(),
        }
    }

    /// All that is in maintenance.
    pub fn maintenances(&self) -> impl Iterator<Item = (Scope, &Maintenance)> {
        let nodes = self.nodes.values().map(|node| (Scope::Node { node: node.id }, &node.maintenance));
        let services = self.services.iter();
        let services = services.map(|(name, of)| (Scope::Service { name: name.clone() }, &of.maintenance));
        let all = [(Scope::Cluster, &self.maintenance)].into_iter().chain(nodes).chain(services);
        all.filter_map(|(scope, maintenance)| Some((scope, maintenance.as_ref()?)))
    }

    pub(crate) fn set_maintenance(
        &mut self,
        at_ms: u64,
        scope: Scope,
        on: bool,
        for_ms: Option<u64>,
    ) -> Outcome {
        if let Some(for_ms) = for_ms.filter(|for_ms| !MAINTENANCE_MS.contains(for_ms)) {
            let message = format!("a maintenance of {for_ms} ms");
            return refused(Code::BadSettings, message, "use 1 second to 90 days, or leave `--for` out");
        }
        let number = self.revision + 1;
        let subject = scope.words(self);
        let known = match self.maintenance_mut(&scope) {
            Ok(known) => known,
            Err(refusal) => return *refusal,
        };
        if !on {
            if known.take().is_none() {
                return Outcome::Unchanged;
            }
            reach!("control: a maintenance is ended by an operator");
            self.note(at_ms, Severity::Info, subject, "an operator ends its maintenance");
            return Outcome::Done;
        }
        let left_ms = for_ms.map(|for_ms| (for_ms, for_ms));
        let began = match known {
            Some(known) if known.left_ms.is_none() && left_ms.is_none() => return Outcome::Unchanged,
            Some(known) => known.at_ms,
            None => at_ms,
        };
        reach!("control: a maintenance begins");
        *known = Some(Maintenance { number, at_ms: began, left_ms });
        let end = match for_ms {
            Some(for_ms) => format!("it ends in {}", span(for_ms)),
            None => "it ends when an operator says so".into(),
        };
        // A service that has not begun does not begin.
        let resting: Vec<String> =
            self.services.keys().filter(|name| self.rests(name).is_some()).cloned().collect();
        for name in resting {
            if let Some(service) = self.services.get_mut(&name) {
                service.ordered = None;
            }
        }
        self.note(at_ms, Severity::Info, subject, format!("is in maintenance: {end}"));
        Outcome::Done
    }

    /// Notes how much of a maintenance is left.
    pub(crate) fn maintenance_counted(
        &mut self,
        at_ms: u64,
        scope: &Scope,
        number: u64,
        left: u64,
    ) -> Outcome {
        let subject = scope.words(self);
        let Ok(known) = self.maintenance_mut(scope) else { return Outcome::Unchanged };
        let Some(maintenance) = known.as_mut().filter(|known| known.number == number) else {
            return Outcome::Unchanged;
        };
        let Some((_, before)) = maintenance.left_ms.as_mut().filter(|(_, before)| left < *before) else {
            return Outcome::Unchanged;
        };
        *before = left;
        if left == 0 {
            reach!("control: a maintenance is over");
            *known = None;
            self.note(at_ms, Severity::Info, subject, "its maintenance is over: its time has passed");
        }
        Outcome::Done
    }

    /// The node that counts the time of maintenances: the first living voter.
    #[must_use]
    pub fn counts(&self) -> Option<NodeId> {
        self.nodes.values().find(|node| node.voter && self.alive(node.id)).map(|node| node.id)
    }

    /// The maintenance that keeps Mainstay's hands off a service, if any does.
    #[must_use]
    pub fn rests(&self, name: &str) -> Option<Scope> {
        if self.maintenance.is_some() {
            return Some(Scope::Cluster);
        }
        let mut seen = BTreeSet::new();
        let mut next = vec![name];
        while let Some(name) = next.pop() {
            let Some(service) = self.services.get(name).filter(|_| seen.insert(name)) else { continue };
            if service.maintenance.is_some() {
                return Some(Scope::Service { name: name.to_owned() });
            }
            let resource = self.resource_of(service);
            if let Some(node) = resource.and_then(|resource| self.node_at_rest(resource)) {
                return Some(Scope::Node { node });
            }
            let placement = &service.spec.placement;
            next.extend(placement.with.iter().chain(&placement.after).map(String::as_str));
        }
        None
    }

    /// The node in maintenance on which a resource is primary, or waits to be again.
    fn node_at_rest(&self, resource: &Resource) -> Option<NodeId> {
        let node = resource.record.primary.or(resource.waits_for)?;
        self.nodes.get(&node).filter(|node| node.maintenance.is_some()).map(|node| node.id)
    }

    /// The maintenance that keeps the primary of a resource where it is, if any does. The services
    /// of a group are held together.
    #[must_use]
    pub fn held(&self, resource: &Resource) -> Option<Scope> {
        if resource.record.epoch.0 == 0 {
            // The service never had a place.
            return None;
        }
        if self.maintenance.is_some() {
            return Some(Scope::Cluster);
        }
        let of_service = self.service_of(resource.id).and_then(|(name, _)| {
            let group = self.group(name);
            group.iter().find_map(|name| self.rests(name))
        });
        of_service.or_else(|| self.node_at_rest(resource).map(|node| Scope::Node { node }))
    }

    /// Where the primary of a held resource should be.
    pub(crate) fn held_target(&self, resource: &Resource) -> Option<NodeId> {
        let ordered = self.desired(resource);
        let stays = ordered
            .filter(|to| self.eligible(resource, *to))
            .or(resource.record.primary)
            .or(resource.waits_for);
        reach!("control: a primary stays in maintenance");
        stays.filter(|node| self.eligible(resource, *node))
    }

    /// Whether a promotion of `to` would move a resource that is to stay.
    pub(crate) fn moves_in_maintenance(&self, resource: &Resource, to: NodeId) -> Option<Scope> {
        let scope = self.held(resource)?;
        (self.held_target(resource) != Some(to) && !planted(Bug::MaintenanceFailsOver)).then_some(scope)
    }

    /// Whether a primary of the resource that ends has no successor.
    pub(crate) fn stays_put(&self, resource: &Resource) -> bool {
        self.held(resource).is_some() && !planted(Bug::MaintenanceFailsOver)
    }

    /// The old primary cannot go on, and no other node becomes primary. `wait`: the old one leads
    /// again when it is back.
    pub(crate) fn hold_primary(&mut self, at_ms: u64, resource: &Resource, scope: &Scope, why: &str) {
        reach!("control: a resource in maintenance has no primary");
        let id = resource.id;
        let last = resource.record.primary.or(resource.waits_for);
        let waits_for = last.filter(|node| resource.record.iss_member(*node).is_some());
        let end = format!("`{}` ends the maintenance of {}", scope.off(self), scope.words(self));
        let text = match waits_for {
            Some(node) => format!(
                "has no primary ({why}), and nothing is moved in maintenance: it waits for {}, or {end}",
                self.node_name(node)
            ),
            None => format!("has no primary ({why}), and nothing is moved in maintenance: {end}"),
        };
        let subject = format!("resource {}", resource.name);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.waits_for = waits_for;
        resource.record.primary = None;
        resource.record.version = resource.record.version.next();
        resource.failure = Some(text.clone());
        self.note(at_ms, Severity::Critical, subject, text);
    }

    /// An operator's order about a service: it may start once, also in maintenance.
    pub(crate) fn order(&mut self, name: &str) {
        let rests = self.rests(name).is_some();
        if let Some(service) = self.services.get_mut(name) {
            service.ordered = rests.then_some(service.round);
        }
    }

    /// Whether a service may be started on its primary as far as maintenance is concerned.
    #[must_use]
    pub fn may_begin(&self, name: &str, service: &Service) -> bool {
        self.rests(name).is_none() || service.ordered == Some(service.round)
    }

    /// Says what an order to a service has to wait for, as a sentence; empty if nothing.
    #[must_use]
    pub fn order_waits(&self, name: &str) -> String {
        let Some(scope) = self.rests(name) else { return String::new() };
        format!(
            "; {} is in maintenance, so Mainstay neither restarts nor moves it by itself until `{}`",
            scope.words(self),
            scope.off(self)
        )
    }
}

/// An advice: severity, subject, what is the case, remedy.
type Advised = (Severity, String, String, String);

impl State {
    /// Says what is in maintenance, cordoned or drained, so that no operator forgets it. `wall_ms`:
    /// the wall clock.
    pub(crate) fn advise_left_alone(&self, wall_ms: u64) -> Vec<Advised> {
        let since = |at_ms: u64| span(wall_ms.saturating_sub(at_ms));
        let resting = self.maintenances().map(|(scope, maintenance)| {
            let end = match maintenance.left_ms {
                Some((_, left_ms)) => format!("and ends by itself within {}", span(left_ms)),
                None => "until an operator ends it".into(),
            };
            let what = format!(
                "has been in maintenance for {}, {end}: Mainstay watches and does nothing by itself, and nothing fails over",
                since(maintenance.at_ms)
            );
            (Severity::Info, scope.words(self), what, format!("end it with `{}`", scope.off(self)))
        });
        let cordoned = self.nodes.values().filter_map(|node| {
            let cordon = node.cordon?;
            let left = |resource: &&Resource| resource.record.primary == Some(node.id);
            let left: Vec<&str> =
                self.resources.values().filter(left).map(|resource| resource.name.as_str()).collect();
            let what = match (cordon.drain, left.is_empty()) {
                (true, true) => format!("has been drained for {}: nothing is left there", since(cordon.at_ms)),
                (true, false) => format!(
                    "has been drained for {}, and is still primary of {}; `mainstay explain SERVICE` says what keeps it",
                    since(cordon.at_ms),
                    left.join(", ")
                ),
                (false, _) => format!("has been cordoned for {}: nothing comes there", since(cordon.at_ms)),
            };
            let severity = if cordon.drain && !left.is_empty() { Severity::Warning } else { Severity::Info };
            let remedy = format!("open it again with `mainstay node uncordon {}`", node.name);
            Some((severity, format!("node {}", node.name), what, remedy))
        });
        resting.chain(cordoned).collect()
    }

    /// Why a service waits whose primary is where it should be, and what to do about it.
    pub(crate) fn why_it_waits(
        &self,
        name: &str,
        service: &Service,
        primary: NodeId,
    ) -> Option<(String, String)> {
        if let Some(why) = self.barred(name, primary).or_else(|| self.awaits(name).map(|bar| bar.why)) {
            return Some((why, format!("`mainstay explain {name}` says where it could run")));
        }
        let scope = self.rests(name).filter(|_| !self.may_begin(name, service))?;
        let why = format!("{} is in maintenance, and nothing is started there", scope.words(self));
        let start = format!("`mainstay service start {name}` starts it all the same");
        Some((why, format!("end it with `{}`; {start}", scope.off(self))))
    }
}

/// A span of time in words, rounded to what matters.
#[must_use]
pub fn span(ms: u64) -> String {
    let minutes = ms.div_ceil(60_000);
    match (minutes / 60, minutes % 60) {
        _ if ms <= 120_000 => format!("{} s", ms.div_ceil(1000)),
        (0, minutes) => format!("{minutes} min"),
        (hours, 0) => format!("{hours} h"),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}
