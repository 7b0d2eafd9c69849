//! Which node should be primary of a resource. Every node computes the same answer from the same
//! state.

use crate::state::{Resource, State};
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

    /// The eligible nodes, best first. In order of weight: a node where the service has not failed,
    /// whose replica does not move away, that the service prefers, that the resource prefers (in
    /// order), with the fewest primaries, with the lowest id.
    #[must_use]
    pub fn candidates(&self, resource: &Resource) -> Vec<NodeId> {
        let service = self.service_of(resource.id).map(|(_, service)| service);
        let runs = service.filter(|service| service.stopped.is_none());
        let record = &resource.record;
        let members = if planted(Bug::OutsiderPromoted) { &record.replicas } else { &record.iss };
        let mut nodes: Vec<NodeId> =
            members.iter().map(|member| member.node).filter(|node| self.eligible(resource, *node)).collect();
        nodes.sort_by_key(|node| {
            let failed = runs.is_some_and(|service| service.failed_on(*node));
            let named = service
                .and_then(|service| service.spec.policy.preferred.as_ref())
                .is_some_and(|name| *name == self.node_name(*node));
            let preferred = resource.spec.preferred.iter().position(|p| p == node).unwrap_or(usize::MAX);
            let moves_away = resource.moving.contains_key(node);
            (failed, moves_away, !named, preferred, self.primaries_on(*node), *node)
        });
        nodes
    }

    /// Where the primary of `resource` should be now; the present primary unless there is a reason
    /// to move (R21). `None` if no node is eligible.
    #[must_use]
    pub fn target(&self, resource: ResourceId) -> Option<NodeId> {
        let resource = self.resources.get(&resource)?;
        let service = self.service_of(resource.id).map(|(_, service)| service);
        let candidates = self.candidates(resource);
        // A service that an operator has stopped moves nothing, unless an operator moves it.
        let runs = service.filter(|service| service.stopped.is_none());
        let failed = |node: NodeId| runs.is_some_and(|service| service.failed_on(node));
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
        if let Some(desired) = service.and_then(|service| service.desired_node)
            && candidates.contains(&desired)
            && !failed(desired)
        {
            reach!("control: the operator wants the primary elsewhere");
            return Some(desired);
        }
        if let Some(service) = runs
            && service.spec.policy.failback
            && let Some(preferred) =
                service.spec.policy.preferred.as_deref().and_then(|name| self.node_by_name(name))
            && candidates.contains(&preferred.id)
            && !failed(preferred.id)
        {
            reach!("control: the service prefers a node");
            return Some(preferred.id);
        }
        let best = candidates.first().copied();
        match resource.record.primary {
            Some(primary) if candidates.contains(&primary) => {
                // The best candidate is one where the service has not failed, if there is any.
                if failed(primary) && best.is_some_and(|best| !failed(best)) {
                    reach!("control: the service failed here and goes elsewhere");
                    best
                } else {
                    Some(primary)
                }
            }
            _ => best,
        }
    }
}
