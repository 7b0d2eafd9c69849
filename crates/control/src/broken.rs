//! Replicas that cannot be used: they cannot be opened, because what is on the disk is damaged
//! (R12) or the disk fails, or their store has stopped after a failed write (R13). Their nodes are
//! alive, so the cluster does not declare them dead. The state marks these replicas, to tell them
//! from living members.
//!
//! Guaranteed after every command (`State::check` asserts it in tests):
//! - a broken replica is not primary, and is not made primary (R5);
//! - a broken replica is in sync only while no living member is whole. It stays recorded because it
//!   holds everything that was acknowledged (R11), and may be the first that is usable again;
//! - the mark is about the registered disk and about no other (R9).
//!
//! Per replica, as the state has it:
//!
//! | from | command | to | with it |
//! |---|---|---|---|
//! | whole | [`Command::ReplicaOpened`], when its node had reported a new disk in its place | whole | it may lead again |
//! | whole | [`Command::ReplicaBroken`] by its node, on the record that it has read | broken | it leaves the in-sync set if a living whole member remains; a primary is replaced |
//! | broken | [`Command::ReplicaBroken`] | broken | the reason, if it is another one now |
//! | broken | [`Command::ReplicaOpened`] by its node | whole | in sync if it was left there, else it is caught up |
//! | broken | [`Command::ReplicaReady`] with another incarnation | whole | the new disk is empty and is filled (R9) |
//! | broken | [`Command::DeleteResource`] | forgotten | |
//!
//! A broken member that had to stay leaves as soon as a living whole member is there: one that
//! rejoins, is opened after all, or is new while nothing was written yet.
//!
//! Each node keeps the mark of its own replica true. It compares what it sees with what the state
//! says, and proposes the other command when they differ (`actions::plan`).
//!
//! The cluster may commit a proposal late, so `ReplicaBroken` counts only on the version of the
//! record that it names. A node that became primary after that version may have started services.
//! It is not replaced without its word (R19). The primary of that very version starts no service on
//! it once it has proposed the command ([`gives_up`](crate::actions::gives_up)).
//!
//! [`Command::ReplicaBroken`]: crate::state::Command::ReplicaBroken
//! [`Command::ReplicaOpened`]: crate::state::Command::ReplicaOpened
//! [`Command::ReplicaReady`]: crate::state::Command::ReplicaReady
//! [`Command::DeleteResource`]: crate::state::Command::DeleteResource

use crate::actions::Unusable;
use crate::facts::Cause;
use crate::state::{Broken, Outcome, Resource, State, cut, cut_code};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{ConfigVersion, Incarnation, Member, NodeId, ResourceId, Severity, reach};

impl Resource {
    /// Why the replica on `node` cannot be used, if its node has said so.
    #[must_use]
    pub fn broken(&self, node: NodeId) -> Option<&Broken> {
        self.broken.get(&node)
    }

    /// The member of the in-sync set that a node made, by the incarnations that it has `made`.
    /// While the cluster counts on that replica its node makes no new one in its place, which could
    /// only be empty: the directory may be put back (R11).
    #[must_use]
    pub fn counts_on(&self, made: impl Fn(Incarnation) -> bool) -> Option<Member> {
        let written = self.record.epoch.0 > 0 && !planted(Bug::MissedMadeAnew);
        self.record.iss.iter().copied().find(|member| written && made(member.incarnation))
    }

    /// Whether `node` is the only member of the in-sync set, has said that its disk is new, and was
    /// refused because the old one had the only complete copy.
    #[must_use]
    pub fn lost_the_last_copy(&self, node: NodeId) -> bool {
        let [only] = self.record.iss[..] else { return false };
        let replaced = |new: Member| new.node == only.node && new.incarnation != only.incarnation;
        only.node == node && self.refused.is_some_and(|(_, new)| replaced(new))
    }
}

impl State {
    /// Whether this member of the in-sync set could serve now: its node lives, its replica can be
    /// used, and it has not lost what it had in memory (`mode_b.rs`).
    #[must_use]
    pub(crate) fn lives_whole(&self, resource: &Resource, node: NodeId) -> bool {
        self.lives_usable(resource, node) && Self::proven(resource, node)
    }

    /// Whether its node lives and its replica can be used, whatever it holds.
    #[must_use]
    pub(crate) fn lives_usable(&self, resource: &Resource, node: NodeId) -> bool {
        self.lives_unbroken(resource, node) && !resource.lost_the_last_copy(node)
    }

    /// Whether its node lives and has not said that its registered replica cannot be used.
    pub(crate) fn lives_unbroken(&self, resource: &Resource, node: NodeId) -> bool {
        self.alive(node) && resource.broken(node).is_none()
    }

    /// Whether a member of the in-sync set on a node other than `without` could serve now. Without
    /// such a member, none leaves the set (R11).
    pub(crate) fn a_member_lives_whole(&self, resource: &Resource, without: Option<NodeId>) -> bool {
        let mut members = resource.record.iss.iter().map(|member| member.node);
        members.any(|node| Some(node) != without && self.lives_whole(resource, node))
    }

    pub(crate) fn replica_broken(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        member: Member,
        why: Unusable,
    ) -> Outcome {
        let Unusable { reason, code } = why;
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let (record, node) = (&resource.record, member.node);
        if resource.deleting || record.version != version || record.replica(node) != Some(member) {
            reach!("control: a replica was broken in an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        if let Some(known) = resource.broken(node) {
            let now =
                Broken { incarnation: member.incarnation, reason: cut(reason.clone()), code: cut_code(code) };
            if *known == now {
                reach!("control: a broken replica is reported again");
                return Outcome::Unchanged;
            }
            reach!("control: a replica is broken for another reason");
            let text = format!("the replica of {} cannot be used: {reason}", self.node_name(node));
            if let Some(resource) = self.resources.get_mut(&id) {
                resource.broken.insert(node, now);
            }
            self.note_on(at_ms, id, Severity::Warning, text);
            return Outcome::Done;
        }
        reach!("control: a replica is broken");
        let was_primary = record.primary == Some(node);
        let name = self.node_name(node);
        let why = format!("the replica of {name} cannot be used: {reason}");
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        resource.broken.insert(
            node,
            Broken { incarnation: member.incarnation, reason: cut(reason), code: cut_code(code) },
        );
        // What is said last of a disk counts.
        resource.refused = resource.refused.filter(|(_, new)| new.node != node);
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Critical, subject, why.clone());
        self.drop_broken(at_ms, id);
        if was_primary {
            reach!("control: the replica of the primary is broken");
            self.replace_primary(at_ms, id, &why, Cause::ReplicaBroken);
        } else {
            self.say_missing_replicas(at_ms, id, &why);
        }
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    pub(crate) fn replica_opened(&mut self, at_ms: u64, id: ResourceId, member: Member) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        let node = member.node;
        let back = resource.lost_the_last_copy(node) && resource.record.replica(node) == Some(member);
        if back {
            reach!("control: the old disk with the only complete copy is back");
            (resource.failure, resource.refused) = (None, None);
        }
        if resource.broken(node).is_none_or(|broken| broken.incarnation != member.incarnation) {
            if back {
                let text = format!("the old disk of {} is back", self.node_name(node));
                self.note_on(at_ms, id, Severity::Info, text);
                return Outcome::Done;
            }
            return Outcome::Unchanged;
        }
        reach!("control: a broken replica was opened after all");
        resource.broken.remove(&node);
        let subject = format!("resource {}", resource.name);
        let text = format!("the replica of {} can be used again", self.node_name(node));
        self.note(at_ms, Severity::Info, subject, text);
        self.drop_broken(at_ms, id);
        Outcome::Done
    }

    /// Takes broken members out of the in-sync set, if a living whole one remains (R11, R12). The
    /// primary learns it from the record, as when a node dies. A broken primary is the caller's to
    /// replace.
    pub(crate) fn drop_broken(&mut self, at_ms: u64, id: ResourceId) {
        let Some(resource) = self.resources.get(&id) else { return };
        let iss = &resource.record.iss;
        let leaving: Vec<Member> =
            iss.iter().copied().filter(|member| resource.broken(member.node).is_some()).collect();
        if leaving.is_empty() {
            return;
        }
        if !self.a_member_lives_whole(resource, None) {
            reach!("control: a broken member stays in sync, because no other lives");
            return;
        }
        reach!("control: a broken member leaves the in-sync set");
        let subject = format!("resource {}", resource.name);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.iss.retain(|member| !leaving.contains(member));
        resource.record.version = resource.record.version.next();
        for member in leaving {
            let text =
                format!("{} left the in-sync set: its replica cannot be used", self.node_name(member.node));
            self.note(at_ms, Severity::Warning, subject.clone(), text);
        }
    }

    /// If no replica is primary and none can be promoted, records which nodes must come back.
    fn say_missing_replicas(&mut self, at_ms: u64, id: ResourceId, why: &str) {
        let Some(resource) = self.resources.get(&id) else { return };
        let record = &resource.record;
        if record.primary.is_some() || record.epoch.0 == 0 || !self.able(resource).is_empty() {
            return;
        }
        let text = self.no_takeover_text(resource, why);
        let subject = format!("resource {}", resource.name);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.failure = Some(text.clone());
        self.note(at_ms, Severity::Critical, subject, text);
    }

    /// Returns in words which nodes must come back before the resource can have a primary. `why` is
    /// the reason why it has none.
    pub(crate) fn no_takeover_text(&self, resource: &Resource, why: &str) -> String {
        let names = |broken: bool| {
            let members = resource.record.iss.iter().map(|member| member.node);
            let list = members.filter(|node| resource.broken(*node).is_some() == broken);
            list.map(|node| self.node_name(node)).collect::<Vec<_>>().join(" or ")
        };
        let replaced = resource.record.iss.iter().any(|member| resource.lost_the_last_copy(member.node));
        let missing = match (names(false), names(true)) {
            (only, _) | (_, only) if replaced && !only.is_empty() => {
                format!(
                    "only the old disk of {only} had everything that was acknowledged, and it reports a new disk"
                )
            }
            (whole, broken) if broken.is_empty() => {
                format!("only {whole} has everything that was acknowledged")
            }
            (whole, broken) if whole.is_empty() => {
                format!("only {broken} has everything that was acknowledged, and that replica cannot be used")
            }
            (whole, broken) => format!(
                "only {whole} has everything that was acknowledged, and {broken}, whose replica cannot be used"
            ),
        };
        format!("no node can take over ({why}); {missing}")
    }

    /// For [`State::check`].
    pub(crate) fn check_broken(&self, resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        let registered = |(node, broken): (&NodeId, &Broken)| {
            record.replica(*node).map(|member| member.incarnation) == Some(broken.incarnation)
        };
        if !resource.broken.iter().all(registered) {
            return Err("a broken replica that is not registered (R9)");
        }
        if record.primary.is_some_and(|primary| resource.broken(primary).is_some()) {
            return Err("the primary is broken (R12)");
        }
        // Not `a_member_lives_whole`: a check that asked it could not find it wrong.
        let whole = record.iss.iter().any(|member| self.lives_whole(resource, member.node));
        if whole && record.iss.iter().any(|member| resource.broken(member.node).is_some()) {
            return Err("a broken member in sync beside a living whole one (R12)");
        }
        Ok(())
    }
}
