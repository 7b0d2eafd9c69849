//! What follows when a node dies, or its replica cannot go on. One entry does all of it: no storm of entries.

use crate::state::{NodeStatus, Outcome, Severity, State};
use mainstay_types::{ConfigVersion, NodeId, ResourceId};

impl State {
    pub(crate) fn node_dead(&mut self, at_ms: u64, node: NodeId, generation: u64) -> Outcome {
        let Some(entry) = self.nodes.get_mut(&node) else { return Outcome::Conflict { record: None } };
        if entry.generation != generation || entry.status == NodeStatus::Dead {
            return Outcome::Conflict { record: None };
        }
        entry.status = NodeStatus::Dead;
        let name = entry.name.clone();
        self.note(at_ms, Severity::Critical, format!("node {name}"), "does not answer; its lease has ended");
        let affected: Vec<ResourceId> = self
            .resources
            .values()
            .filter(|resource| !resource.deleting && resource.record.iss_member(node).is_some())
            .map(|resource| resource.id)
            .collect();
        for id in affected {
            let was_primary =
                self.resources.get(&id).is_some_and(|resource| resource.record.primary == Some(node));
            self.leave_iss(at_ms, id, node, &format!("{name} is dead"));
            if was_primary {
                self.replace_primary(at_ms, id, &format!("{name} is dead"));
            }
        }
        for service in self.services.values_mut() {
            if let Some(on) = service.nodes.get_mut(&node) {
                // Proven by the end of the lease: the node silences itself before that (R19).
                on.phase = crate::state::ServicePhase::Stopped;
                on.detail = "the node is dead".into();
            }
        }
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    pub(crate) fn step_down(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        node: NodeId,
        reason: &str,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        if resource.record.version != version || resource.record.primary != Some(node) {
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        let name = self.node_name(node);
        let reason = format!("{name} stepped down: {reason}");
        self.leave_iss(at_ms, id, node, &reason);
        self.replace_primary(at_ms, id, &reason);
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    /// Takes `node` out of the in-sync set, if a living member remains (R11). While nobody else lives it stays: it holds
    /// everything that was acknowledged, and may be the first to return.
    fn leave_iss(&mut self, at_ms: u64, id: ResourceId, node: NodeId, why: &str) {
        let Some(resource) = self.resources.get(&id) else { return };
        let others_live =
            resource.record.iss.iter().any(|member| member.node != node && self.alive(member.node));
        if !others_live {
            return;
        }
        let subject = format!("resource {}", resource.name);
        let name = self.node_name(node);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.iss.retain(|member| member.node != node);
        resource.record.version = resource.record.version.next();
        self.note(at_ms, Severity::Warning, subject, format!("{name} left the in-sync set: {why}"));
    }

    /// Promotes the best other candidate, or records that there is none and what is missing. The present primary is dead or silent.
    pub(crate) fn replace_primary(&mut self, at_ms: u64, id: ResourceId, why: &str) {
        let Some(resource) = self.resources.get(&id) else { return };
        let old = resource.record.primary;
        let target = self.candidates(resource).into_iter().find(|candidate| Some(*candidate) != old);
        if let Some(to) = target {
            self.set_primary(at_ms, id, to, why);
            return;
        }
        let missing: Vec<String> =
            resource.record.iss.iter().map(|member| self.node_name(member.node)).collect();
        let text = format!(
            "no node can take over ({why}); only {} has everything that was acknowledged",
            missing.join(" or ")
        );
        let subject = format!("resource {}", resource.name);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.primary = None;
        resource.record.version = resource.record.version.next();
        resource.failure = Some(text.clone());
        self.note(at_ms, Severity::Critical, subject, text);
    }
}
