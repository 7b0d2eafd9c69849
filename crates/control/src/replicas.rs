//! Replicas that are added, removed and moved while the resource is used.
//!
//! `spec.replicas` are wanted; `record.replicas` exist. A node that is to hold a replica
//! and has none makes one and reports it ([`Command::ReplicaReady`]). The new replica is empty. The
//! primary fills it and takes it into the in-sync set (R9, R16, R4). So adding a replica is one
//! line in the specification.
//!
//! Removing takes the member out of the record in the same entry. The primary goes on waiting for
//! the member until it has learnt that (R3). All that the member acknowledged until then is on the
//! other members as well.
//!
//! A move is both: the replica at the old place goes when the new one is in sync. Every step is an
//! entry of its own, so the nodes can go on after an interruption at any moment.
//!
//! Per node of a resource, as the state has it:
//!
//! | from | command | to |
//! |---|---|---|
//! | none | [`Command::AddReplica`] | wanted |
//! | wanted | [`Command::ReplicaReady`] | registered |
//! | wanted | [`Command::RemoveReplica`] | none |
//! | registered | [`Command::RemoveReplica`], unless it is primary or no other living replica has everything (R11) | leaving |
//! | registered | [`Command::MoveReplica`] | moving; another node becomes wanted |
//! | moving | [`Command::FinishMove`] when the other is in sync and this is not primary | leaving |
//! | moving, the other one gone | [`Command::RemoveReplica`] of the other | registered |
//! | leaving | [`Command::ReplicaGone`] | none |
//! | none | [`Command::ReplicaReady`] of a disk that was made too late | leaving |
//! | unverified | [`IssChange::Part`], when its history is over, see `force.rs` | leaving, and wanted |
//!
//! Guarantees, after every command:
//! - files are dropped only under the incarnation that is leaving: a node that acts on an older
//!   state does not drop a replica that was made since;
//! - a living whole member of the in-sync set remains when a member leaves, so no acknowledged
//!   write leaves with it (R11);
//! - a move leads from a node of `spec.replicas` to another node of `spec.replicas`.
//!
//! [`IssChange::Part`]: mainstay_types::IssChange::Part
//! [`Command::AddReplica`]: crate::state::Command::AddReplica
//! [`Command::RemoveReplica`]: crate::state::Command::RemoveReplica
//! [`Command::MoveReplica`]: crate::state::Command::MoveReplica
//! [`Command::FinishMove`]: crate::state::Command::FinishMove
//! [`Command::ReplicaReady`]: crate::state::Command::ReplicaReady
//! [`Command::ReplicaGone`]: crate::state::Command::ReplicaGone

use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, Epoch, Incarnation, NodeId, REPLICAS_MAX, ResourceId, Severity, reach};

impl State {
    pub(crate) fn add_replica(&mut self, at_ms: u64, id: ResourceId, node: NodeId) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return unknown_resource(id);
        };
        if let Some(refusal) = self.cannot_hold(resource, node) {
            return refusal;
        }
        reach!("control: a replica is added");
        self.want_replica(id, node);
        let text = format!("{} is to hold a replica", self.node_name(node));
        self.note_on(at_ms, id, Severity::Info, text);
        Outcome::Done
    }

    pub(crate) fn remove_replica(&mut self, at_ms: u64, id: ResourceId, node: NodeId) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return unknown_resource(id);
        };
        let name = self.node_name(node);
        if !resource.spec.replicas.contains(&node) {
            return refused(
                Code::NoReplicaHere,
                format!("resource {} has no replica on {name}", resource.name),
                format!("see `mainstay resource status {}`", resource.name),
            );
        }
        if resource.spec.replicas.len() == 1 {
            return refused(
                Code::LastReplica,
                format!("the replica on {name} is the only one of resource {}", resource.name),
                "add another one first, or delete the resource",
            );
        }
        let wanted = resource.record.policy.min_copies.copies as usize;
        // Removing the source or the target of a move ends the move.
        let moves = resource.moving.iter().any(|(from, to)| *from == node || *to == node);
        if resource.lasting_replicas() - usize::from(!moves) < wanted {
            reach!("control: a replica is not removed because too few would remain");
            return refused(
                Code::TooFewReplicas,
                format!("{wanted} copies of resource {} are wanted (min-copies)", resource.name),
                format!(
                    "add another replica first, or want fewer: `mainstay resource set-min-copies {} {}`",
                    resource.name,
                    wanted - 1
                ),
            );
        }
        if resource.record.primary == Some(node) {
            reach!("control: the primary's replica is not removed");
            if planted(Bug::RefusalNotTold) {
                return Outcome::Done;
            }
            return refused(
                Code::IsPrimary,
                format!("{name} is the primary of resource {}", resource.name),
                "move the service to another node first, or move the replica: `mainstay resource move-replica NAME NODE --to OTHER`",
            );
        }
        if !self.others_have_everything(resource, node) {
            reach!("control: the last living copy is not removed");
            return refused(
                Code::LastCopy,
                format!("no living node but {name} has every acknowledged write, or even not {name}"),
                "wait until another replica is in sync, or bring the nodes back that have everything",
            );
        }
        reach!("control: a replica is removed");
        self.drop_replica(at_ms, id, node);
        Outcome::Done
    }

    pub(crate) fn move_replica(&mut self, at_ms: u64, id: ResourceId, from: NodeId, to: NodeId) -> Outcome {
        let Some(resource) = self.resources.get(&id).filter(|resource| !resource.deleting) else {
            return unknown_resource(id);
        };
        let (from_name, to_name) = (self.node_name(from), self.node_name(to));
        if resource.moving.get(&from) == Some(&to) {
            return Outcome::Unchanged;
        }
        if !resource.spec.replicas.contains(&from) {
            return refused(
                Code::NoReplicaHere,
                format!("resource {} has no replica on {from_name}", resource.name),
                format!("see `mainstay resource status {}`", resource.name),
            );
        }
        if resource.moving.contains_key(&from) || resource.moving.values().any(|other| *other == from) {
            return refused(
                Code::MovingAlready,
                format!("the replica on {from_name} is a part of another move"),
                "wait for its end, or remove the replica at the new place, which ends it",
            );
        }
        if resource.record.epoch == Epoch(0) {
            return refused(
                Code::NotReady,
                format!("resource {} was never served", resource.name),
                "wait until it has a primary",
            );
        }
        if let Some(refusal) = self.cannot_hold(resource, to) {
            return refusal;
        }
        reach!("control: a replica is to move");
        self.want_replica(id, to);
        if let Some(resource) = self.resources.get_mut(&id) {
            resource.moving.insert(from, to);
        }
        let text = format!("the replica on {from_name} is to move to {to_name}");
        self.note_on(at_ms, id, Severity::Info, text);
        Outcome::Done
    }

    /// The replica at the new place is in sync: the one at the old place goes.
    pub(crate) fn finish_move(&mut self, at_ms: u64, id: ResourceId, from: NodeId, to: NodeId) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let due = planted(Bug::MoveEndsEarly) && resource.moving.get(&from) == Some(&to);
        if !(due || self.move_is_done(resource, from, to)) {
            reach!("control: the end of a move is based on an older state");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        reach!("control: a move ends");
        self.drop_replica(at_ms, id, from);
        Outcome::Done
    }

    /// Whether what [`Command::FinishMove`](crate::state::Command::FinishMove) says is so.
    #[must_use]
    pub(crate) fn move_is_done(&self, resource: &Resource, from: NodeId, to: NodeId) -> bool {
        resource.moving.get(&from) == Some(&to)
            && !resource.deleting
            && resource.record.primary != Some(from)
            && resource.record.iss_member(to).is_some()
            && self.others_have_everything(resource, from)
    }

    /// Takes in a replica on a node that is to hold none: it was made before its node learnt that.
    /// The replica leaves, under its own name.
    pub(crate) fn made_too_late(
        &mut self,
        id: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        if resource.leaving.get(&node) == Some(&incarnation) {
            return Outcome::Unchanged;
        }
        reach!("control: a replica was made too late");
        resource.leaving.insert(node, incarnation);
        Outcome::Done
    }

    /// A replica that was to be removed is gone from its node.
    pub(crate) fn replica_left(&mut self, at_ms: u64, id: ResourceId, node: NodeId) -> Outcome {
        let left = self.resources.get_mut(&id).and_then(|resource| resource.leaving.remove(&node));
        if left.is_none() {
            return Outcome::Unchanged;
        }
        reach!("control: a removed replica is gone");
        let text = format!("the replica of {} is removed", self.node_name(node));
        self.note_on(at_ms, id, Severity::Info, text);
        Outcome::Done
    }

    /// Why `node` cannot get a replica of `resource`, if it cannot.
    pub(crate) fn cannot_hold(&self, resource: &Resource, node: NodeId) -> Option<Outcome> {
        let name = self.node_name(node);
        let Some(known) = self.nodes.get(&node) else {
            return Some(refused(
                Code::UnknownNode,
                format!("there is no node {name}"),
                "see `mainstay node list`",
            ));
        };
        if known.witness {
            return Some(refused(
                Code::IsWitness,
                format!("{name} is a witness and holds no data"),
                "choose another node",
            ));
        }
        if known.candidate {
            return Some(refused(
                Code::HasNotJoined,
                format!("{name} has not joined yet"),
                "wait until `mainstay node list` does not show it as joining any more",
            ));
        }
        if resource.spec.replicas.contains(&node) {
            let text = format!("resource {} has a replica on {name} already", resource.name);
            return Some(refused(Code::HasReplica, text, "choose another node"));
        }
        if resource.record.attached.is_some_and(|attached| attached.node == node) {
            return self.refuse_attached(resource);
        }
        if resource.leaving.contains_key(&node) {
            reach!("control: a replica is added where one is still being removed");
            let text = format!(
                "an earlier replica of resource {} is still being removed from {name}",
                resource.name
            );
            return Some(refused(Code::BeingRemoved, text, "try again when it is gone"));
        }
        if resource.spec.replicas.len() >= REPLICAS_MAX {
            let text = format!("resource {} has {REPLICAS_MAX} replicas, which is the most", resource.name);
            return Some(refused(Code::TooManyReplicas, text, "remove one first"));
        }
        None
    }

    /// Whether a living whole member of the in-sync set remains without `node` (R11). Before the
    /// first write every replica has everything.
    pub(crate) fn others_have_everything(&self, resource: &Resource, node: NodeId) -> bool {
        resource.record.epoch == Epoch(0) || self.a_member_lives_whole(resource, Some(node))
    }

    /// The node is to hold a replica. R21: the failures of the service there were failures without
    /// this replica, so the service is tried anew. Otherwise a primary could never move there.
    pub(crate) fn want_replica(&mut self, id: ResourceId, node: NodeId) {
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.spec.replicas.push(node);
        resource.spec.replicas.sort_unstable();
        let services = self.services.values_mut().filter(|service| service.spec.resource == resource.name);
        for on in services.filter_map(|service| service.nodes.get_mut(&node)) {
            on.failed_round = None;
        }
    }

    /// Takes the replica of `node` out of specification and record; its node removes the files when
    /// it learns it. The caller has checked that it may go.
    pub(crate) fn drop_replica(&mut self, at_ms: u64, id: ResourceId, node: NodeId) {
        let name = self.node_name(node);
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.spec.replicas.retain(|other| *other != node);
        resource.spec.preferred.retain(|other| *other != node);
        resource.moving.retain(|from, to| *from != node && *to != node);
        resource.forget_snapshots_on(node);
        if let Some(member) = resource.record.replica(node) {
            let record = &mut resource.record;
            record.replicas.retain(|other| other.node != node);
            record.unverified.retain(|other| other.node != node);
            if !planted(Bug::RemovedStaysInSync) {
                record.iss.retain(|other| other.node != node);
            }
            record.version = record.version.next();
            resource.broken.remove(&node);
            resource.leaving.insert(node, member.incarnation);
        }
        self.note_on(at_ms, id, Severity::Warning, format!("the replica of {name} is to be removed"));
        self.cancel_impossible_moves(at_ms);
    }

    pub(crate) fn note_on(&mut self, at_ms: u64, id: ResourceId, severity: Severity, text: String) {
        let Some(resource) = self.resources.get(&id) else { return };
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, severity, subject, text);
    }

    /// For [`State::check`].
    pub(crate) fn check_replicas(&self, resource: &Resource) -> Result<(), &'static str> {
        let spec = &resource.spec.replicas;
        let wanted = |node: &NodeId| spec.contains(node);
        if !resource.moving.iter().all(|(from, to)| wanted(from) && wanted(to) && from != to) {
            return Err("a move from or to where no replica is to be");
        }
        if !resource.record.replicas.iter().all(|member| wanted(&member.node)) {
            return Err("a registered replica where none is to be");
        }
        if !spec.is_sorted() || spec.is_empty() {
            return Err("no sorted list of nodes that hold a replica");
        }
        Ok(())
    }
}

fn unknown_resource(id: ResourceId) -> Outcome {
    refused(Code::UnknownResource, format!("there is no resource {id}"), "see `mainstay resource list`")
}
