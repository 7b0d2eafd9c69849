//! Services that are tied to others by their files: what is refused, where they run
//! (`constraints.rs` decides), and when they may start and stop.
//!
//! Guarantees
//! - A service begins on a node only if it is to be there: the node is none that it avoids, the
//!   service that it runs `with` has its primary there, and no service that it is `apart` from is
//!   left there (H15). A running service for which this ends is stopped.
//! - A service begins only while all services run that it comes `after`, and stops before them.
//! - The primary of its resource may be where the service must not run: the data stay available.
//! - A file whose constraints no node could keep is refused, as are cycles.

use crate::actions::Observed;
use crate::constraints::{Ask, TIED_MAX, decide};
use crate::state::{Outcome, Service, State, refused};
use mainstay_ha::ServiceSpec;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, NodeId, ServicePhase, reach};
use std::collections::{BTreeMap, BTreeSet};

/// A reason why a service does not run on a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bar {
    /// The end of a sentence: "it does not run there, because …".
    pub why: String,
    /// An operator's order to another service is the reason.
    pub ordered: bool,
}

impl State {
    fn placement(&self, name: &str) -> Option<&mainstay_ha::Placement> {
        self.services.get(name).filter(|service| !service.deleting).map(|service| &service.spec.placement)
    }

    /// Services that `name` is apart from, whichever file says so.
    pub(crate) fn apart_from(&self, name: &str) -> BTreeSet<&str> {
        let own = self.placement(name).into_iter().flat_map(|of| &of.apart).map(String::as_str);
        let theirs = self.services.iter().filter(|(_, of)| !of.deleting);
        let theirs = theirs.filter(|(_, of)| of.spec.placement.apart.iter().any(|other| other == name));
        own.filter(|other| self.placement(other).is_some())
            .chain(theirs.map(|(other, _)| other.as_str()))
            .filter(|other| *other != name)
            .collect()
    }

    /// Whether where the service runs depends on others.
    pub(crate) fn is_tied(&self, name: &str) -> bool {
        let with = |of: &Service| of.spec.placement.with.as_deref() == Some(name) && !of.deleting;
        self.placement(name).is_some_and(|of| of.with.is_some())
            || !self.apart_from(name).is_empty()
            || self.services.values().any(with)
    }

    /// The services that are with one another, `name` among them.
    #[must_use]
    pub fn group(&self, name: &str) -> BTreeSet<String> {
        self.joined(name, false)
    }

    /// The services that are with one another, or also those that are apart from them and so on.
    fn joined(&self, name: &str, apart: bool) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut next = vec![name.to_owned()];
        while let Some(name) = next.pop() {
            if self.placement(&name).is_none() || !found.insert(name.clone()) {
                continue;
            }
            let with = self.placement(&name).and_then(|of| of.with.clone());
            let followers =
                self.services.iter().filter(|(_, of)| of.spec.placement.with.as_ref() == Some(&name));
            next.extend(with.into_iter().chain(followers.map(|(other, _)| other.clone())));
            if apart {
                next.extend(self.apart_from(&name).into_iter().map(str::to_owned));
            }
        }
        found
    }

    fn ask(&self, name: &str, service: &Service, places: &BTreeMap<&str, usize>) -> Ask {
        let resource = self.resource_of(service);
        let at = resource.and_then(|resource| resource.record.primary);
        let nodes: Vec<NodeId> = resource.map(|resource| self.candidates(resource)).unwrap_or_default();
        let drained = |node: NodeId| {
            self.is_drained(node) && at == Some(node) && nodes.iter().any(|other| !self.is_drained(*other))
        };
        let stays = resource.is_some_and(|resource| at.is_some_and(|at| !self.drains_now(resource, at)));
        let can = |node: &NodeId| {
            !service.failed_on(*node) && !self.avoids(service, *node) && (!drained(*node) || stays)
        };
        let can: Vec<NodeId> = nodes.iter().copied().filter(can).collect();
        Ask {
            name: name.to_owned(),
            at,
            runs: at.and_then(|at| service.nodes.get(&at)).is_some_and(|on| !on.phase.is_silent()),
            want: resource.and_then(|resource| self.target_alone(resource)),
            nodes: can,
            wish: service.desired_node,
            moved: service.moved,
            fixed: resource.is_some_and(|resource| self.held(resource).is_some()),
            wanted: service.is_wanted(),
            with: service.spec.placement.with.as_deref().and_then(|with| places.get(with).copied()),
            apart: self.apart_from(name).iter().filter_map(|other| places.get(other).copied()).collect(),
        }
    }

    /// The seats of all services that are tied to this one, by name.
    pub(crate) fn seats(&self, name: &str) -> BTreeMap<String, Option<NodeId>> {
        let names = self.joined(name, true);
        let places: BTreeMap<&str, usize> =
            names.iter().enumerate().map(|(n, name)| (name.as_str(), n)).collect();
        let asks: Vec<Ask> =
            names.iter().filter_map(|name| Some(self.ask(name, self.services.get(name)?, &places))).collect();
        let seats = decide(&asks);
        names.iter().cloned().zip(seats).collect()
    }

    /// Where the service of a resource is to run, if it is tied to others and is to run.
    pub(crate) fn tied_seat(&self, resource: &crate::state::Resource) -> Option<NodeId> {
        let (name, service) = self.service_of(resource.id)?;
        (service.is_wanted() && self.is_tied(name)).then(|| self.seat(name)).flatten()
    }

    /// Where a tied service is to run; `None` if nowhere now.
    pub(crate) fn seat(&self, name: &str) -> Option<NodeId> {
        self.seats(name).remove(name).flatten()
    }

    /// Why a service is not to be on `node`, of which its primary may be; `None` if it may.
    #[must_use]
    pub fn barred(&self, name: &str, node: NodeId) -> Option<String> {
        let service = self.services.get(name)?;
        if self.avoids(service, node) {
            return Some(format!("it is never to run on {} (placement.avoid)", self.node_name(node)));
        }
        if !self.is_tied(name) {
            return None;
        }
        if let Some(with) = &service.spec.placement.with
            && let Some(other) = self.services.get(with)
        {
            let there = self.resource_of(other).and_then(|resource| resource.record.primary);
            if there != Some(node) {
                let place = match there {
                    Some(there) => format!("has its place on {}", self.node_name(there)),
                    None => "has no place now".into(),
                };
                return Some(format!("it is to run with {with}, which {place}"));
            }
        }
        if planted(Bug::ApartIgnored) {
            return None;
        }
        let seats = self.seats(name);
        if seats.get(name).copied().flatten() == Some(node) {
            return None;
        }
        let rival = self
            .apart_from(name)
            .into_iter()
            .find(|rival| seats.get(*rival).copied().flatten() == Some(node));
        Some(match rival {
            Some(rival) => format!("it is to be apart from {rival}, which has its place there"),
            None => "its place is on another node, with the services that it is tied to".into(),
        })
    }

    /// Why a service does not run yet although its primary is on the right node: one that it comes
    /// after does not run, or is about to stop.
    #[must_use]
    pub fn awaits(&self, name: &str) -> Option<Bar> {
        let service = self.services.get(name)?;
        service.spec.placement.after.iter().find_map(|of| {
            let bar =
                |why: &str, ordered| Some(Bar { why: format!("it comes after {of}, which {why}"), ordered });
            let Some(other) = self.services.get(of) else { return bar("does not exist", true) };
            if other.deleting {
                return bar("is being deleted", true);
            }
            if other.stopped.is_some() {
                return bar("an operator has stopped", true);
            }
            let resource = self.resource_of(other);
            let primary = resource.and_then(|resource| resource.record.primary);
            let (Some(resource), Some(primary)) = (resource, primary) else {
                return bar("has no primary", false);
            };
            if self.target(resource.id) != Some(primary) {
                return bar("moves", other.desired_node.is_some());
            }
            if other.restart.is_some() {
                return bar("an operator restarts", true);
            }
            let on = other.nodes.get(&primary);
            let runs = on.is_some_and(|on| {
                on.phase == ServicePhase::Running
                    && on.epoch == resource.record.epoch
                    && on.round >= other.changed_round
            });
            (!runs).then(|| bar("does not run", false)).flatten()
        })
    }

    /// Whether all that comes after a service is silent, so that the service may stop.
    pub(crate) fn followers_are_silent(&self, name: &str, node: NodeId, observed: &Observed) -> bool {
        let mut followers =
            self.services.iter().filter(|(_, of)| of.spec.placement.after.iter().any(|of| of == name));
        let silent = |(follower, of): (&String, &Service)| {
            let here = observed.services.get(follower).is_none_or(|seen| seen.phase.is_silent());
            let there = of.nodes.iter().filter(|(on, _)| **on != node && self.alive(**on));
            here && there.map(|(_, on)| on.phase).all(ServicePhase::is_silent)
        };
        followers.all(silent)
    }

    /// Whether nothing is left here of services that `name` is apart from.
    pub(crate) fn rivals_are_silent(&self, name: &str, observed: &Observed) -> bool {
        planted(Bug::ApartIgnored)
            || self.apart_from(name).into_iter().all(|rival| {
                observed.services.get(rival).is_none_or(|seen| seen.phase.is_silent())
                    && !observed.sweeping.contains(rival)
            })
    }

    /// The refusal if the constraints of a file make no sense in this cluster.
    pub(crate) fn refuse_placement(&self, spec: &ServiceSpec) -> Option<Outcome> {
        let placement = &spec.placement;
        let named = [("after", &placement.after), ("apart", &placement.apart)];
        let with = placement.with.iter().map(|name| ("with", name));
        let services =
            named.into_iter().flat_map(|(field, names)| names.iter().map(move |name| (field, name)));
        for (field, name) in services.chain(with) {
            if self.placement(name).is_none() {
                return Some(refused(
                    Code::BadPlacement,
                    format!("placement.{field}: there is no service {name}"),
                    "apply the file of that service first, or correct the name; see `mainstay service list`",
                ));
            }
        }
        if let Some(node) = placement.avoid.iter().find(|node| self.node_by_name(node).is_none()) {
            return Some(refused(
                Code::BadPlacement,
                format!("placement.avoid: there is no node {node}"),
                "see `mainstay node list`",
            ));
        }
        if placement.is_empty() && !self.services.contains_key(&spec.name) {
            return None;
        }
        // The rest is looked at with the file applied.
        let mut trial = self.clone_services();
        trial.services.insert(spec.name.clone(), Service::new(spec.clone()));
        let refuse = |field: &str, message: String, remedy: &str| {
            Some(refused(Code::BadPlacement, format!("placement.{field}: {message}"), remedy))
        };
        let after = |name: &str| trial.placement(name).map(|of| of.after.clone()).unwrap_or_default();
        if let Some(cycle) = cycle(&spec.name, after) {
            let message = format!("each of {cycle} would wait for the next one, for ever");
            return refuse("after", message, "remove one of them from `after`");
        }
        let with = |name: &str| trial.placement(name).and_then(|of| of.with.clone()).into_iter().collect();
        if let Some(cycle) = cycle(&spec.name, with) {
            let message = format!("{cycle} would be with one another in a circle, and none would lead");
            return refuse("with", message, "let one of them stand without `with`");
        }
        if trial.joined(&spec.name, true).len() > TIED_MAX {
            let message = format!("more than {TIED_MAX} services would be tied to one another");
            return refuse("apart", message, "name fewer services in `with` and `apart`");
        }
        let group = trial.group(&spec.name);
        let within = group.iter().find_map(|one| {
            let apart = trial.apart_from(one);
            let other = apart.into_iter().find(|other| group.contains(*other));
            other.map(|other| (one.clone(), other.to_owned()))
        });
        if let Some((one, other)) = within {
            let message =
                format!("{one} and {other} would have to be on one node and apart from one another");
            return refuse("apart", message, "remove one of `with` and `apart`");
        }
        let can = |name: &String| -> BTreeSet<NodeId> {
            let service = trial.services.get(name);
            let resource = service.and_then(|service| self.resource_of(service));
            let replicas = resource.map(|resource| resource.spec.replicas.clone()).unwrap_or_default();
            replicas.into_iter().filter(|node| !service.is_some_and(|of| self.avoids(of, *node))).collect()
        };
        if can(&spec.name).is_empty() {
            let message = format!("every node that holds a replica of {} is avoided", spec.resource);
            return refuse("avoid", message, "leave one of them out of `avoid`");
        }
        let common = group.iter().map(can).reduce(|one, other| &one & &other);
        if common.is_some_and(|common| common.is_empty()) {
            let names = group.into_iter().collect::<Vec<_>>().join(", ");
            let message = format!("no node could run all of {names}");
            return refuse(
                "with",
                message,
                "give their resources a common node: `mainstay resource add-replica RESOURCE NODE`",
            );
        }
        None
    }

    /// The services alone, with the nodes: what the checks above look at.
    fn clone_services(&self) -> Self {
        let services = self.services.iter().map(|(name, of)| {
            let deleting = of.deleting;
            (name.clone(), Service { deleting, ..Service::new(of.spec.clone()) })
        });
        Self { services: services.collect(), ..Self::default() }
    }

    /// The refusal to delete a service that others name.
    pub(crate) fn refuse_named(&self, name: &str) -> Option<Outcome> {
        let names = |of: &Service| {
            let placement = &of.spec.placement;
            let lists = placement.after.iter().chain(&placement.with).chain(&placement.apart);
            lists.into_iter().any(|other| other == name)
        };
        let (other, _) = self.services.iter().find(|(_, of)| !of.deleting && names(of))?;
        Some(refused(
            Code::ServiceInUse,
            format!("service {name} is not deleted: the file of service {other} names it in [placement]"),
            format!("remove it there first: `mainstay service edit {other}`"),
        ))
    }
}

/// Names in a circle that begins with `name`, if there is one.
fn cycle(name: &str, next: impl Fn(&str) -> Vec<String>) -> Option<String> {
    let mut paths: Vec<Vec<String>> = vec![vec![name.to_owned()]];
    let mut seen = BTreeSet::new();
    while let Some(path) = paths.pop() {
        for to in next(path.last()?) {
            if to == name {
                reach!("control: services in a circle are refused");
                return Some(path.join(", "));
            }
            if seen.insert(to.clone()) {
                let mut longer = path.clone();
                longer.push(to);
                paths.push(longer);
            }
        }
    }
    None
}
