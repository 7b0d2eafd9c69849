//! Promotion outside the in-sync set (R11). If no replica with every acknowledged write comes back,
//! an operator may go on with what another replica has.
//!
//! This loses the writes that the replica lacks, so the operator asks for it by name. The command
//! names the record that was read, the replica, and how far that replica was when the operator was
//! told. The promotion is recorded, and it begins another history.
//!
//! # What becomes of the others
//!
//! Every other replica becomes *unverified*: its log may hold entries that the new history does not
//! have. Its volumes may hold them too, because the replica could destage whatever was committed.
//! The record keeps the doubt, so a restart does not lose it.
//!
//! ```text
//!              its log is the beginning of the primary's: `Trust`
//!   unverified ────────────────────────────────────────────────────▶ a replica like others
//!      │
//!      └─────────────────────────────────────────────────────────▶ leaving ─▶ made anew, empty (R9), and filled
//!              it is not, or that is not known: `Part`
//! ```
//!
//! The primary judges an unverified replica after that replica has promised its epoch. From then on
//! no earlier primary can change the replica's log (R1).
//!
//! The exact loss lies between two positions: the last common entry, and the end of the old history
//! on a former member of the in-sync set. The cluster learns both when that member returns, and not
//! before. Then an event tells them.

use crate::facts::Cause;
use crate::state::{Forced, Loss, Outcome, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Code, ConfigVersion, Epoch, Index, Member, NodeId, Position, Problem, ResourceId, Severity, VolumeId,
    duration, reach, size_words,
};

/// Positions of the replica that the operator was told before a forced promotion: the end of its
/// log, and the last entry that it had heard to be committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub end: Index,
    pub heard: Index,
}

impl State {
    /// Why `node` cannot be promoted by force, if it cannot.
    pub fn cannot_force(&self, id: ResourceId, node: NodeId) -> Option<Problem> {
        if let Some(node) = self.fence_awaited(id) {
            return Some(self.awaits_fence_of(node));
        }
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return Some(Problem::new(
                Code::UnknownResource,
                format!("there is no resource {id}"),
                "see `mainstay resource list`",
            ));
        };
        let (record, name) = (&resource.record, self.node_name(node));
        let members = || {
            let names = record.iss.iter().map(|member| self.node_name(member.node));
            names.collect::<Vec<_>>().join(" or ")
        };
        if record.epoch == Epoch(0) {
            return Some(Problem::new(
                Code::NotReady,
                format!("resource {} was never served", resource.name),
                "wait until it has a primary",
            ));
        }
        if record.replica(node).is_none() {
            return Some(Problem::new(
                Code::NotEligible,
                format!("{name} has no replica of resource {}", resource.name),
                "choose a node that holds a replica: `mainstay resource list` names them",
            ));
        }
        if let Some(primary) = record.primary {
            reach!("control: a forced promotion against a living primary");
            let primary = self.node_name(primary);
            return Some(Problem::new(
                Code::HasPrimary,
                format!("{primary} is primary, and has every acknowledged write"),
                "move the service instead: that loses nothing",
            ));
        }
        if !self.able(resource).is_empty() {
            return Some(Problem::new(
                Code::NotNeeded,
                format!("{} has every acknowledged write and can be primary", members()),
                "wait until it is; that loses nothing",
            ));
        }
        if !self.lives_usable(resource, node) {
            reach!("control: a forced promotion of what cannot serve");
            return Some(Problem::new(
                Code::NotEligible,
                format!("{name} holds no replica that can be used now"),
                "choose a node that lives and holds a whole replica",
            ));
        }
        // A proven member that can be used is a candidate.
        None
    }

    pub(crate) fn force_promote(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        to: Member,
        held: Held,
    ) -> Outcome {
        if let Some(refusal) = self.cannot_force(id, to.node) {
            return Outcome::Refused(refusal);
        }
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        if resource.record.version != version || resource.record.replica(to.node) != Some(to) {
            reach!("control: a forced promotion is based on an older record");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        reach!("control: a forced promotion");
        self.begin_history(at_ms, id, to, Some((held.end, held.heard)));
        self.set_primary(at_ms, id, to.node, "forced by an operator", Cause::Operator);
        Outcome::Done
    }

    /// The next promotion goes on from what `to` has, and from nothing else. `told`: see
    /// [`Forced::told`].
    pub(crate) fn begin_history(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        to: Member,
        told: Option<(Index, Index)>,
    ) {
        let Some(resource) = self.resources.get(&id) else { return };
        let record = &resource.record;
        let mut lost_with = record.iss.clone();
        // The replica that the last forced promotion chose may never have served. So the loss is
        // measured against the replicas that had everything before that promotion.
        let before =
            resource.forced.as_ref().filter(|forced| forced.epoch == record.epoch && forced.to != to.node);
        for member in before.iter().flat_map(|forced| &forced.lost_with).filter(|member| **member != to) {
            if !lost_with.contains(member) {
                reach!("control: a promotion is forced after one that may never have served");
                lost_with.push(*member);
            }
        }
        let names: Vec<String> = lost_with.iter().map(|member| self.node_name(member.node)).collect();
        let (name, names) = (self.node_name(to.node), names.join(" or "));
        let Some(resource) = self.resources.get_mut(&id) else { return };
        let record = &mut resource.record;
        record.iss = vec![to];
        // The writes that `to` has are all that remain.
        record.instances.clear();
        resource.reopened.clear();
        let record = &mut resource.record;
        record.unverified = record.replicas.iter().copied().filter(|member| *member != to).collect();
        let text = match told {
            Some((end, heard)) => format!(
                "forced to go on from {name}, which held the log up to entry {} and had heard of entry {}: what followed is lost; only {names} had everything",
                end.0, heard.0
            ),
            None => format!(
                "goes on from {name}, which lacks no more than {} or {} of what {names} acknowledged; that is lost",
                size_words(record.policy.lag().bytes),
                duration::typed(record.policy.lag().ms)
            ),
        };
        // Some of their growth may be lost as well; it is wished for again.
        for (volume, bytes) in (0..).map(VolumeId).zip(&resource.spec.volumes) {
            resource.growing.entry(volume).or_insert(*bytes);
        }
        resource.forced =
            Some(Forced { epoch: record.epoch.next(), to: to.node, lost_with, told, at_ms, loss: None });
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Critical, subject, text);
    }

    /// The primary has seen the log of an unverified replica. `differs`: the last position that
    /// both hold, and its end. The caller has compared the version.
    pub(crate) fn judge_replica(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        member: Member,
        differs: Option<(Position, Position)>,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let record = &resource.record;
        if !record.unverified.contains(&member) {
            reach!("control: a judgement of an unverified replica is based on an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let name = self.node_name(member.node);
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let record = &mut resource.record;
        record.unverified.retain(|other| *other != member);
        record.version = record.version.next();
        let Some((common, end)) = differs else {
            reach!("control: an unverified replica is trusted");
            let subject = format!("resource {}", resource.name);
            let text = format!("{name} holds nothing that was lost by the forced promotion; it is fed");
            self.note(at_ms, Severity::Info, subject, text);
            return Outcome::Done;
        };
        reach!("control: an unverified replica goes");
        record.replicas.retain(|other| *other != member);
        resource.forget_snapshots_on(member.node);
        resource.broken.remove(&member.node);
        resource.leaving.insert(member.node, member.incarnation);
        let text = match &mut resource.forced {
            Some(forced) if forced.lost_with.contains(&member) => {
                let loss = Loss { after: common, until: end };
                // If several replicas had everything, the one that holds most tells the loss.
                if forced.loss.is_none_or(|known| known.until < end) {
                    forced.loss = Some(loss);
                }
                format!(
                    "{name} is back: lost by the forced promotion are {} entries, {} to {}; its replica is removed and filled anew",
                    loss.entries(),
                    common.index.next(),
                    end.index
                )
            }
            _ => format!(
                "{name} holds entries that were lost by the forced promotion, up to {}; its replica is removed and filled anew",
                end.index
            ),
        };
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Warning, subject, text);
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    /// For the simulator: promotes a follower when the primary of a resource in mode A dies, as a
    /// system without R11 would.
    pub(crate) fn promote_follower(&mut self, at_ms: u64, id: ResourceId, why: &str) -> bool {
        let Some(resource) = self.resources.get(&id).filter(|_| planted(Bug::FollowerPromoted)) else {
            return false;
        };
        let mut followers = resource.record.replicas.iter().copied();
        let old = resource.record.primary;
        let Some(to) =
            followers.find(|member| Some(member.node) != old && self.lives_whole(resource, member.node))
        else {
            return false;
        };
        if let Some(resource) = self.resources.get_mut(&id) {
            resource.record.iss = vec![to];
        }
        self.set_primary(at_ms, id, to.node, why, Cause::Other);
        true
    }
}
