//! Mode B: which members' memory counts, and which member goes on when all have lost it.
//!
//! The record names, for each member, the instance of its replica in which its memory counts
//! (`replica/src/mode_b.rs` has the primary's side). A member that was opened anew may lack what it
//! had acknowledged. It is still a member, but it is *unproven*:
//!
//! ```text
//!            its node says that it was opened anew: `ReplicaReopened`
//!   proven ───────────────────────────────────────────────────────────▶ unproven
//!      ▲                                                                  │  │  │
//!      ├──────────────────────────────────────────────────────────────────┘  │  └─▶ out, if it does not catch up (R3), or dies
//!      │   the primary has fed it everything: `Memory`                       │      while a proven one lives
//!      └─────────────────────────────────────────────────────────────────────┘
//!          all members are unproven, or broken, and its log reaches furthest
//! ```
//!
//! Guaranteed after every command (`State::check` asserts it in tests):
//! - an unproven member is not primary, and is not made primary (R5). No other member leaves the
//!   set because of it (R11);
//! - only members of the in-sync set are named with an instance.
//!
//! While one member has not said that it was opened anew, it may be the one that has everything.
//! The cluster waits for it, unless an operator forces the promotion of another member.
//!
//! When the last member has said so, no member has the acknowledged writes in memory, and there is
//! no primary to feed the others. So all members are asked anew for the ends of their logs, on that
//! version of the record. The member whose log reaches furthest goes on. The writes that it lacks
//! were acknowledged but never flushed, and no member of the in-sync set has them on disk. Flushed
//! writes are committed, so each member has them (R2).
//!
//! A replica knows by itself that it is unproven and refuses to lead, so it does not matter how
//! soon its node says so.

use crate::facts::Cause;
use crate::state::{Outcome, Reopened, Resource, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{ConfigVersion, Instance, Member, Mode, NodeId, ResourceId, Severity, reach};

impl State {
    /// Whether the member still has the memory that counts: its node has not reported a new
    /// instance.
    #[must_use]
    pub(crate) fn proven(resource: &Resource, node: NodeId) -> bool {
        !resource.reopened.contains_key(&node) || planted(Bug::InstanceNotChecked)
    }

    /// The primary says in which instance a member's memory counts. The caller has compared the
    /// version.
    pub(crate) fn set_memory(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        member: Member,
        instance: Option<Instance>,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let record = &mut resource.record;
        let lawful =
            instance.is_none_or(|instance| record.policy.mode() == Mode::B && instance != Instance(0));
        let known = record.instances.get(&member.node).copied();
        if !lawful || known == instance || !record.iss.contains(&member) {
            reach!("control: an instance that cannot count");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        match instance {
            Some(instance) => {
                reach!("control: the memory of a member counts");
                record.instances.insert(member.node, instance);
            }
            None => {
                reach!("control: the memory of a member counts no more");
                record.instances.remove(&member.node);
            }
        }
        record.version = record.version.next();
        resource.reopened.remove(&member.node);
        self.drop_broken(at_ms, id);
        Outcome::Done
    }

    /// Takes in that a member was opened anew, as its node says. Its memory is lost.
    pub(crate) fn replica_reopened(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        member: Member,
        reopened: Reopened,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let (record, node) = (&resource.record, member.node);
        let counted = record.instances.get(&node).is_some_and(|counted| *counted != reopened.instance);
        if resource.deleting || record.version != version || !counted || !record.iss.contains(&member) {
            reach!("control: a replica was opened anew in an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let known = resource.reopened.get(&node).filter(|known| known.instance == reopened.instance);
        if known == Some(&reopened) {
            return Outcome::Unchanged;
        }
        let (first, was_primary) = (known.is_none(), record.primary == Some(node));
        let name = self.node_name(node);
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        resource.reopened.insert(node, reopened);
        resource.record.version = resource.record.version.next();
        if !first {
            reach!("control: the end of a log is told anew");
            return Outcome::Done;
        }
        reach!("control: a member was opened anew");
        // The other members may have been fed since they reported.
        for (_, other) in resource.reopened.iter_mut().filter(|(other, _)| **other != node) {
            other.end = None;
        }
        let why = format!(
            "{name} was opened anew and may lack what it had acknowledged from memory (mode B); it counts again when it has caught up"
        );
        self.note_memory(at_ms, id, Severity::Warning, why.clone());
        if was_primary {
            reach!("control: the primary was opened anew");
            self.replace_primary(at_ms, id, &why, Cause::MemoryLost);
        }
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    /// Forgets reports that no longer hold. If all members have lost their memory, lets the one
    /// whose log reaches furthest go on. Runs after every command.
    pub(crate) fn settle_memory(&mut self, at_ms: u64) {
        let mut waiting = Vec::new();
        for (id, resource) in &mut self.resources {
            if resource.record.instances.is_empty() && resource.reopened.is_empty() {
                continue;
            }
            forget_instances(resource);
            if resource.record.primary.is_none() && !resource.reopened.is_empty() {
                waiting.push(*id);
            }
        }
        for id in waiting {
            let furthest = self.resources.get(&id).and_then(|resource| self.furthest(resource));
            let Some((node, reopened)) = furthest else { continue };
            reach!("control: all members have lost their memory, and the furthest goes on");
            let name = self.node_name(node);
            let Some(resource) = self.resources.get_mut(&id) else { continue };
            resource.record.instances.insert(node, reopened.instance);
            resource.reopened.remove(&node);
            resource.record.version = resource.record.version.next();
            let end = reopened.end.unwrap_or_default();
            let text = format!(
                "all that were in sync have lost their memory; {name}, whose log reaches furthest, goes on from entry {}: what was acknowledged after that was not flushed, and is lost",
                end.index.0
            );
            self.note_memory(at_ms, id, Severity::Critical, text);
            self.drop_broken(at_ms, id);
            if let Some(resource) = self.resources.get_mut(&id) {
                forget_instances(resource);
            }
        }
    }

    /// Returns a living member whose log reaches furthest, if all members have lost their memory.
    /// `None` if a member may have everything, or if the node of the furthest log is not alive.
    fn furthest(&self, resource: &Resource) -> Option<(NodeId, Reopened)> {
        if resource.deleting {
            return None;
        }
        let mut known = Vec::new();
        for member in &resource.record.iss {
            match resource.reopened.get(&member.node).filter(|reopened| reopened.end.is_some()) {
                Some(reopened) => known.push((member.node, *reopened)),
                // R12: a broken replica cannot be used, whatever it has.
                None if resource.broken(member.node).is_some() => {}
                None => return None,
            }
        }
        let furthest = known.iter().map(|(_, reopened)| reopened.end).max()?;
        let able = |(node, reopened): &&(NodeId, Reopened)| {
            let far = reopened.end == furthest || planted(Bug::ShorterLogGoesOn);
            far && self.lives_unbroken(resource, *node)
        };
        known.iter().find(able).copied()
    }

    fn note_memory(&mut self, at_ms: u64, id: ResourceId, severity: Severity, text: String) {
        let Some(resource) = self.resources.get(&id) else { return };
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, severity, subject, text);
    }

    /// For [`State::check`].
    pub(crate) fn check_memory(resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        if !record.instances.keys().all(|node| record.iss_member(*node).is_some()) {
            return Err("an instance of what is not in sync");
        }
        let lost = |(node, reopened): (&NodeId, &Reopened)| {
            record.instances.get(node).is_some_and(|counted| *counted != reopened.instance)
        };
        if !resource.reopened.iter().all(lost) {
            return Err("unproven in the instance that counts");
        }
        if record.primary.is_some_and(|primary| resource.reopened.contains_key(&primary)) {
            return Err("the primary is unproven (R5)");
        }
        Ok(())
    }
}

/// Forgets the instances of replicas that are no longer in sync. Also forgets that a replica was
/// opened anew, unless its memory counts in another instance.
fn forget_instances(resource: &mut Resource) {
    let record = &mut resource.record;
    let (iss, before) = (&record.iss, record.instances.len());
    record.instances.retain(|node, _| iss.iter().any(|member| member.node == *node));
    if record.instances.len() != before {
        record.version = record.version.next();
    }
    let instances = &record.instances;
    resource
        .reopened
        .retain(|node, reopened| instances.get(node).is_some_and(|counted| *counted != reopened.instance));
}
