//! Replication modes: when a write is acknowledged, per resource, and changed while it is used.
//!
//! In mode A the recorded in-sync set is the primary alone. Everything else follows from that.
//! Commits wait for no other replica (R2), and no other replica can be promoted (R5). When the
//! primary dies, the resource waits for it or for an operator's forced promotion (R11, `force.rs`).
//! The primary feeds the other replicas in the background, like members that are out for their
//! slowness. After a change from A to C they join one by one (R4). A change from C to A is one
//! step.
//!
//! A replica is *called* when the primary, or a replica, is to move to its node. It joins the
//! in-sync set as in mode C, so the handover loses nothing. The old primary leaves the set in the
//! handover. The state derives the called replicas from what operators asked for, after every
//! command.
//!
//! With *takeover*, a follower is promoted without an operator's word when the primary is lost. The
//! writes that the follower lacks are lost. So the primary keeps in the record the set of followers
//! that lack no more than the limits allow. It keeps this set as it keeps the in-sync set. Writes
//! wait for a follower from before it is in the set, until the primary has learnt that it is out. A
//! new primary begins with an empty set.
//!
//! In mode B the in-sync set is as in mode C, and the record also says which members' memory counts
//! (`memory.rs`). On the way from B to A, the primary settles that before the set shrinks to
//! itself. Until then writes wait for the journals of all members, so on the way no moment is
//! less safe than the one before.
//!
//! What is guaranteed, after every command (`State::check` asserts it in tests): in mode A, while
//! there is a primary and no memory counts, the in-sync set is the primary and some of the called
//! replicas.

use crate::copies;
use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::{
    BLOCK_BYTES, Code, ConfigVersion, LagLimits, Member, Mode, NodeId, ResourceId, Severity, reach,
    size_words,
};
use std::collections::BTreeSet;

/// Bounds of the limits in time, in milliseconds.
const LAG_MS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

impl State {
    pub(crate) fn set_mode(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        (mode, lag, takeover): (Mode, LagLimits, bool),
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return refused(
                Code::UnknownResource,
                format!("there is no resource {id}"),
                "see `mainstay resource list`",
            );
        };
        if let Err((message, remedy)) = check_lag(resource, lag) {
            return refused(Code::BadMode, message, remedy);
        }
        if let Err((message, _)) =
            copies::check(resource.record.min_copies, resource.lasting_replicas(), mode)
        {
            let remedy = format!(
                "let one copy be enough first: `mainstay resource set-min-copies {} 1`",
                resource.name
            );
            return refused(Code::BadMode, message, remedy);
        }
        let record = &resource.record;
        let takeover = takeover && mode == Mode::A;
        if (record.mode, record.lag, record.takeover) == (mode, lag, takeover) {
            return Outcome::Unchanged;
        }
        if record.version != version {
            reach!("control: a change of mode is based on an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let text = match mode {
            Mode::A => {
                reach!("control: mode A");
                format!(
                    "mode A: writes are acknowledged by the primary alone; the others follow within {} MiB and {} s{}",
                    lag.bytes >> 20,
                    lag.ms / 1000,
                    if takeover { ", and one that does takes over when the primary is lost" } else { "" }
                )
            }
            Mode::B => {
                reach!("control: mode B");
                "mode B: writes are acknowledged when all replicas that are in sync have them in memory; a flush waits for their disks".into()
            }
            Mode::C => {
                reach!("control: mode C");
                "mode C: writes are acknowledged by all replicas that are in sync".into()
            }
        };
        let subject = format!("resource {}", resource.name);
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let record = &mut resource.record;
        (record.mode, record.lag, record.takeover) = (mode, lag, takeover);
        // The followers in the set were within other limits.
        record.near.clear();
        record.version = record.version.next();
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    /// Whether the primary could move to `node`, now or when that node has caught up.
    #[must_use]
    pub(crate) fn may_come(&self, resource: &Resource, node: NodeId) -> bool {
        let follows = resource.record.mode == Mode::A
            && resource.record.primary.is_some()
            && resource.record.replica(node).is_some()
            && !resource.deleting
            && self.lives_whole(resource, node);
        follows || self.eligible(resource, node)
    }

    /// The nodes whose replicas are to be in sync although the mode is A.
    fn called(&self, resource: &Resource) -> Vec<NodeId> {
        let record = &resource.record;
        if record.mode != Mode::A || resource.deleting {
            return Vec::new();
        }
        let mut called: BTreeSet<NodeId> = resource.moving.values().copied().collect();
        if let Some((_, service)) = self.service_of(resource.id) {
            called.extend(service.desired_node);
            let policy = &service.spec.policy;
            let preferred = policy.preferred.as_deref().filter(|_| policy.failback);
            called.extend(preferred.and_then(|name| self.node_by_name(name)).map(|node| node.id));
            // R21: a service that has failed on the primary goes to another node.
            if record.primary.is_some_and(|primary| service.failed_on(primary)) {
                let others = record.replicas.iter().map(|member| member.node);
                let mut others = others.filter(|node| self.may_come(resource, *node));
                called.extend(others.find(|node| !service.failed_on(*node)));
            }
            called.retain(|node| !service.failed_on(*node) || resource.moving.values().any(|to| to == node));
        }
        called.retain(|node| record.primary != Some(*node) && self.may_come(resource, *node));
        called.into_iter().collect()
    }

    /// The primary reports that a follower is within the limits, or no longer is.
    pub(crate) fn set_near(&mut self, id: ResourceId, member: Member, near: bool) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let record = &resource.record;
        let follows = record.takeover
            && record.replica(member.node) == Some(member)
            && !record.iss.contains(&member)
            && !record.doubtful.contains(&member)
            && self.lives_whole(resource, member.node);
        if near && (!follows || record.near.contains(&member)) {
            reach!("control: a follower that cannot be near");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let record = &mut resource.record;
        record.near.retain(|other| *other != member);
        if near {
            reach!("control: a follower is near");
            record.near.push(member);
            record.near.sort_unstable();
        } else {
            reach!("control: a follower is far");
        }
        record.version = record.version.next();
        Outcome::Done
    }

    /// Returns the follower that takes over when all replicas with every acknowledged write are
    /// lost. `None` unless the resource is in mode A and takes over automatically.
    fn takes_over(&self, resource: &Resource) -> Option<Member> {
        let record = &resource.record;
        let due = record.mode == Mode::A && record.takeover && record.primary.is_none() && !resource.deleting;
        if !due || record.iss.iter().any(|member| self.lives_whole(resource, member.node)) {
            return None;
        }
        let preferred = |member: &&Member| {
            resource.spec.preferred.iter().position(|node| *node == member.node).unwrap_or(usize::MAX)
        };
        let able = record.near.iter().filter(|member| self.lives_whole(resource, member.node));
        able.min_by_key(|member| (preferred(member), member.node)).copied()
    }

    /// Works out anew the called replicas, and the in-sync set in mode A. Runs after every command.
    pub(crate) fn settle_modes(&mut self, at_ms: u64) {
        let ids: Vec<ResourceId> = self.resources.keys().copied().collect();
        for id in ids {
            let Some(resource) = self.resources.get(&id) else { continue };
            if resource.record.mode != Mode::A && resource.record.called.is_empty() {
                continue;
            }
            if let Some(to) = self.takes_over(resource) {
                reach!("control: a follower takes over within the limits of its lag");
                self.begin_history(at_ms, id, to, None);
                self.set_primary(at_ms, id, to.node, "within the limits of mode A");
            }
            let Some(resource) = self.resources.get(&id) else { continue };
            let called = self.called(resource);
            let Some(resource) = self.resources.get_mut(&id) else { continue };
            let record = &mut resource.record;
            let before = (record.called.clone(), record.iss.len(), record.near.len());
            let settled = record.mode == Mode::A && record.openings.is_empty();
            if let Some(primary) = record.primary.filter(|_| settled) {
                record.iss.retain(|member| member.node == primary || called.contains(&member.node));
            }
            record.called = called;
            let (replicas, iss, doubtful) = (&record.replicas, &record.iss, &record.doubtful);
            record.near.retain(|member| {
                replicas.contains(member) && !iss.contains(member) && !doubtful.contains(member)
            });
            if before != (record.called.clone(), record.iss.len(), record.near.len()) {
                reach!("control: who is in sync in mode A changes");
                record.version = record.version.next();
            }
        }
    }

    /// For [`State::check`].
    pub(crate) fn check_mode(resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        let alone = |primary| {
            record.iss.iter().all(|member| member.node == primary || record.called.contains(&member.node))
        };
        let settled = record.mode == Mode::A && record.openings.is_empty();
        if settled && record.primary.is_some_and(|primary| !alone(primary)) {
            return Err("in mode A, in sync without being called");
        }
        let follows = |member: &Member| record.replicas.contains(member) && !record.iss.contains(member);
        if !record.near.iter().all(follows) || !(record.takeover || record.near.is_empty()) {
            return Err("near, and no follower");
        }
        if !record.doubtful.iter().all(|member| record.replicas.contains(member)) {
            return Err("doubt about a replica that is not registered");
        }
        if record.doubtful.iter().any(|member| record.iss.contains(member)) {
            return Err("a doubtful replica in sync (R11)");
        }
        Ok(())
    }
}

/// Checks the limits of the lag. A follower is fed from the journal. The entries that it lacks have
/// to fit there, beside those that are not destaged yet.
fn check_lag(resource: &Resource, lag: LagLimits) -> Result<(), (String, String)> {
    let most = resource.spec.journal_bytes / 2;
    if lag.bytes < 16 * BLOCK_BYTES || lag.bytes > most {
        return Err((
            format!(
                "lag-bytes: {} are asked for, and the journal has {}",
                size_words(lag.bytes),
                size_words(resource.spec.journal_bytes)
            ),
            format!(
                "set --lag-bytes from {} to {}, which is half the journal",
                size_words(16 * BLOCK_BYTES),
                size_words(most)
            ),
        ));
    }
    if !LAG_MS.contains(&lag.ms) {
        return Err((
            format!("lag-s: {} s are asked for", lag.ms / 1000),
            format!("set --lag-s from 1 to {}", LAG_MS.end() / 1000),
        ));
    }
    Ok(())
}
