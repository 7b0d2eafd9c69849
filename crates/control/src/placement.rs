//! Which node should be primary of a resource. Every node computes the same answer from the same
//! state.
//!
//! In order of weight: maintenance holds a primary where it is (`maintenance.rs`); services that
//! are tied to others are placed with them (`tied.rs`); all others go where
//! [`State::target_alone`] says.

use crate::state::{Resource, Service, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{NodeId, ResourceId, reach};

impl State {
    /// Whether `node` may become primary (R5): a member of the in-sync set, with the registered
    /// disk, which can be used (R12), alive, and fit by its own word. No node may while a fence is
    /// awaited (`fencing.rs`).
    #[must_use]
    pub fn eligible(&self, resource: &Resource, node: NodeId) -> bool {
        let member = resource.record.iss_member(node);
        let recorded = resource.record.replica(node);
        let in_sync = member.is_some() && member == recorded;
        !resource.deleting
            && !self.unfit.contains_key(&node)
            && self.fence_awaited(resource.id).is_none()
            && self.lives_whole(resource, node)
            && (in_sync || (recorded.is_some() && planted(Bug::OutsiderPromoted)))
    }

    /// Resources whose primary is `node`.
    #[must_use]
    pub fn primaries_on(&self, node: NodeId) -> usize {
        self.resources.values().filter(|resource| resource.record.primary == Some(node)).count()
    }

    /// Whether the service is never to run on `node`.
    #[must_use]
    pub fn avoids(&self, service: &Service, node: NodeId) -> bool {
        let avoid = &service.spec.placement.avoid;
        !avoid.is_empty() && avoid.contains(&self.node_name(node))
    }

    /// How far `node` is from the front of the list of preferred nodes.
    fn preference(&self, service: &Service, node: NodeId) -> usize {
        let preferred = &service.spec.policy.preferred;
        let name = self.node_name(node);
        preferred.iter().position(|known| *known == name).unwrap_or(preferred.len())
    }

    /// The nodes that could become primary, best first: the eligible ones, without those that are
    /// closed. The present primary is one as long as it is eligible. In order of weight: a node
    /// where the service has not failed, that it does not avoid, whose replica does not move away,
    /// that is not drained, that the service prefers, that the resource prefers (both in order),
    /// with the fewest primaries, with the lowest id.
    #[must_use]
    pub fn candidates(&self, resource: &Resource) -> Vec<NodeId> {
        let mut nodes = self.able(resource);
        let record = &resource.record;
        nodes.retain(|node| record.primary == Some(*node) || self.closed(*node).is_none());
        let service = self.service_of(resource.id).map(|(_, service)| service);
        let runs = service.filter(|service| service.stopped.is_none());
        nodes.sort_by_key(|node| {
            let failed = runs.is_some_and(|service| service.failed_on(*node));
            let avoided = runs.is_some_and(|service| self.avoids(service, *node));
            let place = service.map_or(0, |service| self.preference(service, *node));
            let preferred = resource.spec.preferred.iter().position(|p| p == node).unwrap_or(usize::MAX);
            let leaves = resource.moving.contains_key(node) || self.is_drained(*node);
            (failed || avoided, leaves, place, preferred, self.primaries_on(*node), *node)
        });
        nodes
    }

    /// The eligible nodes, closed or not.
    pub(crate) fn able(&self, resource: &Resource) -> Vec<NodeId> {
        let record = &resource.record;
        let members = if planted(Bug::OutsiderPromoted) { &record.replicas } else { &record.iss };
        members.iter().map(|member| member.node).filter(|node| self.eligible(resource, *node)).collect()
    }

    /// Where the primary of `resource` should be now; the present primary unless there is a reason
    /// to move (R21). `None` if no node is eligible.
    #[must_use]
    pub fn target(&self, resource: ResourceId) -> Option<NodeId> {
        let resource = self.resources.get(&resource)?;
        if self.held(resource).is_some() && !planted(Bug::MaintenanceFailsOver) {
            return self.held_target(resource);
        }
        let alone = self.target_alone(resource);
        match self.service_of(resource.id) {
            Some((name, service)) if service.is_wanted() && self.is_tied(name) => {
                let stays = resource.record.primary.filter(|primary| self.eligible(resource, *primary));
                self.seat(name).or(stays).or(alone)
            }
            _ => alone,
        }
    }

    /// The same for a service that is tied to no other.
    pub(crate) fn target_alone(&self, resource: &Resource) -> Option<NodeId> {
        let service = self.service_of(resource.id).map(|(_, service)| service);
        let candidates = self.candidates(resource);
        // A service that an operator has stopped moves nothing, unless an operator moves it.
        let runs = service.filter(|service| service.stopped.is_none());
        let failed =
            |node: NodeId| runs.is_some_and(|service| service.failed_on(node) || self.avoids(service, node));
        // The replica can leave only when it is not primary any more. If the service fails at the
        // new place, any other node will do.
        if let Some(to) = resource.record.primary.and_then(|primary| resource.moving.get(&primary))
            && candidates.contains(to)
        {
            let stays = |node: &NodeId| !failed(*node) && !resource.moving.contains_key(node);
            if let Some(next) = [*to].into_iter().chain(candidates.iter().copied()).find(stays) {
                reach!("control: the primary's replica moves");
                return Some(next);
            }
        }
        if let Some(desired) = self.desired(resource)
            && candidates.contains(&desired)
            && !failed(desired)
        {
            reach!("control: the operator wants the primary elsewhere");
            return Some(desired);
        }
        let best = candidates.first().copied();
        let Some(primary) = resource.record.primary.filter(|primary| candidates.contains(primary)) else {
            return best;
        };
        if self.is_drained(primary)
            && let Some(to) = candidates.iter().copied().find(|to| *to != primary && !failed(*to))
        {
            reach!("control: a primary leaves a node that is drained");
            return Some(if self.drains_now(resource, primary) { to } else { primary });
        }
        if let Some(service) = runs
            && service.spec.policy.failback
            && let Some(better) = candidates
                .iter()
                .copied()
                .find(|to| !failed(*to) && self.preference(service, *to) < self.preference(service, primary))
        {
            reach!("control: the service prefers a node");
            return Some(better);
        }
        // The best candidate is one where the service has not failed, if there is any.
        if failed(primary) && best.is_some_and(|best| !failed(best)) {
            reach!("control: the service failed here and goes elsewhere");
            return best;
        }
        Some(primary)
    }
}
