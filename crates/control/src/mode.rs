//! Replication modes: when a write is acknowledged, per resource, and changed while it is used.
//!
//! In mode A the recorded in-sync set is the primary alone. Everything else follows from that.
//! Commits wait for no other replica (R2), and no other replica can be promoted (R5). When the
//! primary dies, the resource waits for it or for an operator's forced promotion (R11, `force.rs`).
//! The primary feeds the other replicas in the background, like members that are out for their
//! slowness. After a change from A to C they join one by one (R4). A change from C to A is one
//! step.
//!
//! A replica *joins for a move* when the primary, or a replica, is to move to its node. It joins
//! the in-sync set as in mode C, so the handover loses nothing. The old primary leaves the set in
//! the handover. The state derives the replicas that join for a move from what operators asked for,
//! after every command.
//!
//! With *takeover*, a follower is promoted without an operator's word when the primary is lost. The
//! writes that the follower lacks are lost. So the primary keeps in the record the set of followers
//! that lack no more than the limits allow. It keeps this set as it keeps the in-sync set. Writes
//! wait for a follower from before it is in the set, until the primary has learnt that it is out. A
//! new primary begins with an empty set.
//!
//! In mode B the in-sync set is as in mode C, and the record also says which members' memory counts
//! (`mode_b.rs`). On the way from B to A, the primary settles that before the set shrinks to
//! itself. Until then writes wait for the journals of all members, so on the way no moment is
//! less safe than the one before.
//!
//! Guaranteed after every command (`State::check` asserts it in tests): in mode A, while
//! there is a primary and no memory counts, the in-sync set is the primary and some of the replicas
//! that join for a move.

use crate::facts::Cause;
use crate::state::{Outcome, Resource, State};
use mainstay_types::{BLOCK_BYTES, LagLimits, Member, Mode, NodeId, ResourceId, reach, size_words};
use std::collections::BTreeSet;

impl State {
    /// Whether the primary could move to `node`, now or when that node has caught up.
    #[must_use]
    pub(crate) fn may_come(&self, resource: &Resource, node: NodeId) -> bool {
        let led = resource.record.primary.is_some() && !resource.deleting;
        led && self.follows(resource, node) || self.eligible(resource, node)
    }

    /// Whether the mode is A and the replica on `node` can follow.
    pub(crate) fn follows(&self, resource: &Resource, node: NodeId) -> bool {
        let record = &resource.record;
        record.policy.mode() == Mode::A && record.replica(node).is_some() && self.lives_whole(resource, node)
    }

    /// The nodes whose replicas are to be in sync although the mode is A.
    fn joining_for_move(&self, resource: &Resource) -> Vec<NodeId> {
        let record = &resource.record;
        if record.policy.mode() != Mode::A || resource.deleting {
            return Vec::new();
        }
        let mut joining_for_move: BTreeSet<NodeId> = resource.moving.values().copied().collect();
        joining_for_move.extend(self.desired(resource));
        if let Some((_, service)) = self.service_of(resource.id) {
            let policy = &service.spec.policy;
            let preferred = policy.preferred.first().filter(|_| policy.failback);
            joining_for_move.extend(preferred.and_then(|name| self.node_by_name(name)).map(|node| node.id));
            // R21: a service that has failed on the primary goes to another node.
            if record.primary.is_some_and(|primary| service.failed_on(primary)) {
                let others = record.replicas.iter().map(|member| member.node);
                let mut others = others.filter(|node| self.may_come(resource, *node));
                joining_for_move.extend(others.find(|node| !service.failed_on(*node)));
            }
            joining_for_move
                .retain(|node| !service.failed_on(*node) || resource.moving.values().any(|to| to == node));
        }
        joining_for_move.retain(|node| record.primary != Some(*node) && self.may_come(resource, *node));
        joining_for_move.into_iter().collect()
    }

    /// The primary reports that a follower is within the limits, or no longer is.
    pub(crate) fn set_failover_ready(&mut self, id: ResourceId, member: Member, ready: bool) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let record = &resource.record;
        let may_be = record.may_be_failover_ready(member) && self.lives_whole(resource, member.node);
        if ready && (!may_be || record.failover_ready.contains(&member)) {
            reach!("control: a follower that cannot be failover-ready");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let record = &mut resource.record;
        record.failover_ready.retain(|other| *other != member);
        if ready {
            reach!("control: a follower is failover-ready");
            record.failover_ready.push(member);
            record.failover_ready.sort_unstable();
        } else {
            reach!("control: a follower is no longer failover-ready");
        }
        record.version = record.version.next();
        Outcome::Done
    }

    /// Returns the follower that takes over when all replicas with every acknowledged write are
    /// lost. `None` unless the resource is in mode A and takes over automatically.
    fn takes_over(&self, resource: &Resource) -> Option<Member> {
        let record = &resource.record;
        let due = record.policy.mode() == Mode::A
            && record.policy.takeover()
            && record.primary.is_none()
            && self.fence_awaited(resource.id).is_none()
            && !resource.deleting;
        if !due || self.stays_put(resource) || self.a_member_lives_whole(resource, None) {
            return None;
        }
        let preferred = |member: &&Member| {
            resource.spec.preferred.iter().position(|node| *node == member.node).unwrap_or(usize::MAX)
        };
        let able = record.failover_ready.iter().filter(|member| self.lives_whole(resource, member.node));
        able.min_by_key(|member| (preferred(member), member.node)).copied()
    }

    /// Works out anew which replicas join for a move, and the in-sync set in mode A. Runs after
    /// every command.
    pub(crate) fn settle_modes(&mut self, at_ms: u64) {
        let ids: Vec<ResourceId> = self.resources.keys().copied().collect();
        for id in ids {
            let Some(resource) = self.resources.get(&id) else { continue };
            if resource.record.policy.mode() != Mode::A && resource.record.joining_for_move.is_empty() {
                continue;
            }
            if let Some(to) = self.takes_over(resource) {
                reach!("control: a follower takes over within the limits of its lag");
                self.begin_history(at_ms, id, to, None);
                self.set_primary(at_ms, id, to.node, "within the limits of mode A", Cause::NodeDead);
            }
            let Some(resource) = self.resources.get(&id) else { continue };
            let joining_for_move = self.joining_for_move(resource);
            let Some(resource) = self.resources.get_mut(&id) else { continue };
            let record = &mut resource.record;
            let before = (record.joining_for_move.clone(), record.iss.len(), record.failover_ready.len());
            let settled = record.policy.mode() == Mode::A && record.instances.is_empty();
            if let Some(primary) = record.primary.filter(|_| settled) {
                record.iss.retain(|member| member.node == primary || joining_for_move.contains(&member.node));
            }
            record.joining_for_move = joining_for_move;
            let mut ready = std::mem::take(&mut record.failover_ready);
            ready.retain(|member| record.may_be_failover_ready(*member));
            record.failover_ready = ready;
            if before != (record.joining_for_move.clone(), record.iss.len(), record.failover_ready.len()) {
                reach!("control: the in-sync set of mode A changes");
                record.version = record.version.next();
            }
        }
    }

    /// For [`State::check`].
    pub(crate) fn check_mode(resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        let alone = |primary| {
            record
                .iss
                .iter()
                .all(|member| member.node == primary || record.joining_for_move.contains(&member.node))
        };
        let settled = record.policy.mode() == Mode::A && record.instances.is_empty();
        if settled && record.primary.is_some_and(|primary| !alone(primary)) {
            return Err("in mode A, in sync without joining for a move");
        }
        let follows = |member: &Member| record.replicas.contains(member) && !record.iss.contains(member);
        if !record.failover_ready.iter().all(follows)
            || !(record.policy.takeover() || record.failover_ready.is_empty())
        {
            return Err("failover-ready, and no follower");
        }
        if !record.unverified.iter().all(|member| record.replicas.contains(member)) {
            return Err("doubt about a replica that is not registered");
        }
        if record.unverified.iter().any(|member| record.iss.contains(member)) {
            return Err("an unverified replica in sync (R11)");
        }
        Ok(())
    }
}

/// Checks the limits of the lag. A follower is fed from the journal. The entries that it lacks have
/// to fit there, beside those that are not destaged yet.
pub(crate) fn check_lag(resource: &Resource, lag: LagLimits) -> Result<(), (String, String)> {
    let most = resource.spec.journal_bytes / 2;
    if lag.bytes < 16 * BLOCK_BYTES || lag.bytes > most {
        return Err((
            format!(
                "lag-bytes: {} are wanted, and the journal has {}",
                size_words(lag.bytes),
                size_words(resource.spec.journal_bytes)
            ),
            format!(
                "choose {} to {} for lag-bytes; the most is half the journal",
                size_words(16 * BLOCK_BYTES),
                size_words(most)
            ),
        ));
    }
    Ok(())
}
