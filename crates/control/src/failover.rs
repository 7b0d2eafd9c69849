//! Consequences of a dead node, or of a replica that its node cannot use. One entry of the log
//! records all of them: no storm of entries.

use crate::facts::{Cause, Fact};
use crate::state::{Outcome, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{ConfigVersion, NodeId, NodeStatus, ResourceId, Severity, reach};

impl State {
    pub(crate) fn node_dead(&mut self, at_ms: u64, node: NodeId, generation: u64) -> Outcome {
        let Some(entry) = self.nodes.get_mut(&node) else { return Outcome::Conflict { record: None } };
        let meant = entry.generation == generation || planted(Bug::OldDeathCounts);
        if !meant || entry.status == NodeStatus::Dead {
            reach!("control: a death of another generation, or a second one");
            return Outcome::Conflict { record: None };
        }
        reach!("control: a node dies");
        entry.status = NodeStatus::Dead;
        let name = entry.name.clone();
        let fact = Fact::NodeLost { node: name.clone() };
        let text = "does not answer; its lease has ended";
        self.note_fact(at_ms, Severity::Critical, format!("node {name}"), text, fact);
        let affected: Vec<ResourceId> = self
            .resources
            .values()
            .filter(|resource| !resource.deleting && resource.record.iss_member(node).is_some())
            .map(|resource| resource.id)
            .collect();
        let leads = |id: &ResourceId| {
            self.resources.get(id).is_some_and(|resource| resource.record.primary == Some(node))
        };
        let led: Vec<ResourceId> = affected.iter().copied().filter(leads).collect();
        let waiting = self.owe_fence(at_ms, node, &led);
        for id in affected {
            let was_primary = led.contains(&id);
            let held = self.resources.get(&id).is_some_and(|resource| self.stays_put(resource));
            if was_primary && held {
                // Without a primary nothing is written, so the node lacks nothing when it is back.
                reach!("control: a primary in maintenance dies and stays in sync");
            } else {
                self.leave_iss(at_ms, id, node, &format!("{name} is dead"));
            }
            if was_primary && waiting.contains(&id) {
                self.wait_for_fence(at_ms, id, node);
                if let Some(resource) = self.resources.get_mut(&id).filter(|_| held) {
                    resource.waits_for = Some(node);
                }
            } else if was_primary {
                reach!("control: a primary dies");
                self.replace_primary(at_ms, id, &format!("{name} is dead"), Cause::NodeDead);
            }
        }
        let deleting = self.resources.values().filter(|resource| resource.deleting);
        for id in deleting.map(|resource| resource.id).collect::<Vec<_>>() {
            self.finish_deletion(at_ms, id);
        }
        for service in self.services.values_mut() {
            if let Some(on) = service.nodes.get_mut(&node) {
                // Proven by the end of the lease: the node silences itself before that (R19).
                on.phase = mainstay_types::ServicePhase::Stopped;
                on.detail = "the node is dead".into();
            }
        }
        self.cancel_impossible_moves(at_ms);
        self.try_services_again(node);
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
            reach!("control: a step-down is based on an older record");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        let name = self.node_name(node);
        reach!("control: a primary steps down");
        let reason = format!("{name} stepped down: {reason}");
        self.leave_iss(at_ms, id, node, &reason);
        self.replace_primary(at_ms, id, &reason, Cause::SteppedDown);
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    /// Takes `node` out of the in-sync set, if a living whole member remains (R11), and enough
    /// copies. If no other member lives, `node` stays in the set: it holds everything that was
    /// acknowledged, and may be the first to return.
    fn leave_iss(&mut self, at_ms: u64, id: ResourceId, node: NodeId, why: &str) {
        let Some(resource) = self.resources.get(&id) else { return };
        if Self::stays_for_copies(resource, node) {
            reach!("control: a dead member stays in sync because too few copies remain");
            return;
        }
        if !self.a_member_lives_whole(resource, Some(node)) && !planted(Bug::IssEmptied) {
            reach!("control: the last living member stays in sync");
            return;
        }
        let subject = format!("resource {}", resource.name);
        let name = self.node_name(node);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.iss.retain(|member| member.node != node);
        resource.record.version = resource.record.version.next();
        self.note(at_ms, Severity::Warning, subject, format!("{name} left the in-sync set: {why}"));
    }

    /// Promotes the best other candidate, or records that there is none and what is missing. The
    /// present primary is dead or silent.
    pub(crate) fn replace_primary(&mut self, at_ms: u64, id: ResourceId, why: &str, cause: Cause) {
        let Some(resource) = self.resources.get(&id) else { return };
        if let Some(scope) = self.held(resource).filter(|_| self.stays_put(resource)) {
            let resource = resource.clone();
            return self.hold_primary(at_ms, &resource, &scope, why);
        }
        let old = resource.record.primary;
        let mut others = self.candidates(resource).into_iter().filter(|candidate| Some(*candidate) != old);
        let first = others.next();
        // A service that is tied to others goes where it can run with them.
        let seat = self
            .tied_seat(resource)
            .filter(|seat| Some(*seat) == first || others.any(|other| other == *seat));
        let target = seat.or(first);
        if planted(Bug::WitnessPromoted) && target.is_none() {
            let witness = self.nodes.keys().copied().find(|node| self.alive(*node) && Some(*node) != old);
            return witness.map_or((), |to| self.set_primary(at_ms, id, to, why, cause));
        }
        if let Some(to) = target {
            reach!("control: another member takes over");
            self.set_primary(at_ms, id, to, why, cause);
            return;
        }
        if self.promote_follower(at_ms, id, why) {
            return;
        }
        let Some(resource) = self.resources.get(&id) else { return };
        reach!("control: no member can take over");
        let text = self.no_takeover_text(resource, why);
        let subject = format!("resource {}", resource.name);
        let from = old.map(|node| self.node_name(node));
        let fact = Fact::PrimaryLost { resource: resource.name.clone(), from, cause };
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.primary = None;
        resource.record.version = resource.record.version.next();
        resource.failure = Some(text.clone());
        self.note_fact(at_ms, Severity::Critical, subject, text, fact);
    }
}
