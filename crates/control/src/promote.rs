//! Promotion: one compare-and-set that names the next primary in the next epoch (R5).

use crate::facts::{Cause, Fact};
use crate::state::{Outcome, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, ConfigVersion, NodeId, ResourceId, Severity, reach};

impl State {
    pub(crate) fn promote(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        expect_version: ConfigVersion,
        by: NodeId,
        to: NodeId,
        reason: &str,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        if resource.record.version != expect_version {
            reach!("control: a promotion is based on an older record");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        if resource.record.primary.is_some_and(|primary| primary != by) {
            reach!("control: a promotion against a living primary");
            // Only the primary itself can say that it has stopped; the others wait for its death
            // (R19).
            return refused(
                Code::NotPrimary,
                "another node is primary",
                "wait until it hands over or is declared dead",
            );
        }
        if !self.alive(by) {
            reach!("control: a promotion by a dead node");
            return refused(Code::NodeDead, "the proposing node counts as dead", "it has to rejoin first");
        }
        if let Some(node) = self.fence_awaited(id) {
            return Outcome::Refused(self.awaits_fence_of(node));
        }
        if let Some(why) = self.unfit.get(&to) {
            return refused(
                Code::NotEligible,
                format!("node {} is not to be primary: {why}", self.node_name(to)),
                "choose another node, or mend that",
            );
        }
        if !self.eligible(resource, to) {
            reach!("control: a promotion of what is not eligible");
            return refused(
                Code::NotEligible,
                format!("node {} is not alive and in sync with the registered disk", self.node_name(to)),
                "choose a node of the in-sync set",
            );
        }
        if !self.first_promotion_is_due(id) {
            reach!("control: a first promotion comes too early");
            return refused(
                Code::NotReady,
                "not every living node has made its replica yet",
                "wait for the nodes, or bring them up",
            );
        }
        if let Some(scope) = self.moves_in_maintenance(resource, to) {
            reach!("control: a promotion that would move what is in maintenance");
            return refused(
                Code::InMaintenance,
                format!("{} is in maintenance, and nothing is moved there", scope.words(self)),
                format!("end it with `{}`", scope.off(self)),
            );
        }
        reach!("control: promote");
        let cause = self.cause_of_promotion(id, to);
        self.set_primary(at_ms, id, to, reason, cause);
        Outcome::Done
    }

    /// Whether the first promotion may happen. Before it all replicas are empty and in sync without
    /// a copy, so it waits for every living node that is to make one.
    #[must_use]
    pub(crate) fn first_promotion_is_due(&self, id: ResourceId) -> bool {
        let Some(resource) = self.resources.get(&id) else { return false };
        resource.record.epoch.0 > 0
            || resource.spec.replicas.iter().all(|node| {
                !self.alive(*node)
                    || resource.record.replica(*node).is_some()
                    || !self.replica_is_awaited(resource, *node)
            })
    }

    /// Raises the epoch and names `to`. The caller has checked that `to` is eligible.
    pub(crate) fn set_primary(&mut self, at_ms: u64, id: ResourceId, to: NodeId, reason: &str, cause: Cause) {
        let name = self.node_name(to);
        let before = self.resources.get(&id).and_then(|resource| resource.record.primary);
        let from = before.map(|node| self.node_name(node));
        let Some(resource) = self.resources.get_mut(&id) else { return };
        let record = &mut resource.record;
        if record.epoch.0 == 0 || !planted(Bug::EpochNotRaised) {
            record.epoch = record.epoch.next();
        }
        record.version = record.version.next();
        record.primary = Some(to);
        record.failover_ready.clear();
        if planted(Bug::OutsiderPromoted) {
            let member = record.replica(to).filter(|member| !record.iss.contains(member));
            record.iss.extend(member);
            record.iss.sort_unstable();
        }
        (resource.failure, resource.refused, resource.waits_for) = (None, None, None);
        if resource.desired_node == Some(to) {
            reach!("control: a primary that an operator moves has got there");
            resource.desired_node = None;
        }
        let subject = format!("resource {}", resource.name);
        let text = format!("{name} is primary in epoch {}: {reason}", record.epoch.0);
        let (resource_name, epoch) = (resource.name.clone(), record.epoch);
        for service in self.services.values_mut().filter(|service| service.spec.resource == resource_name) {
            if service.desired_node == Some(to) {
                reach!("control: a moved service has got there");
                service.desired_node = None;
            }
            // In another epoch it is started anew anyhow.
            service.restart = None;
            if planted(Bug::FailoverStartsStopped) {
                service.stopped = None;
            }
        }
        let fact = Fact::PrimaryChanged { resource: resource_name, from, to: name, epoch, cause };
        self.note_fact(at_ms, Severity::Info, subject, text, fact);
    }
}
