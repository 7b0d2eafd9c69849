//! Changes of the in-sync set: by the primary (R3, R4), and when a node's disk is new (R9).
//!
//! A member also leaves the set when its node dies (`failover.rs`), when it cannot be used
//! (`broken.rs`), when an operator removes it (`replicas.rs`), and in mode A (`mode.rs`).

use crate::facts::Cause;
use crate::state::{Outcome, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Code, ConfigVersion, Epoch, IssChange, Member, ResourceId, Severity, ShrinkReason, reach,
};

impl State {
    pub(crate) fn change_iss(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        epoch: Epoch,
        change: IssChange,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let record = &resource.record;
        let current = record.version == version || planted(Bug::OldChangeApplied);
        if !current || record.epoch != epoch || record.primary.is_none() {
            reach!("control: a change of the in-sync set is based on an older record");
            return Outcome::Conflict { record: Some(record.clone()) };
        }
        let name = self.node_name(change.member().node);
        let (severity, text) = match change {
            IssChange::Trust { member } => return self.judge_replica(at_ms, id, member, None),
            IssChange::FailoverReady { member } => return self.set_failover_ready(id, member, true),
            IssChange::NotFailoverReady { member } => return self.set_failover_ready(id, member, false),
            IssChange::Memory { member, instance } => return self.set_memory(at_ms, id, member, instance),
            IssChange::Part { member, common, end } => {
                return self.judge_replica(at_ms, id, member, Some((common, end)));
            }
            IssChange::Shrink { remove, why } => {
                if record.primary == Some(remove.node) {
                    reach!("control: a shrink of the primary");
                    return refused(
                        Code::IsPrimary,
                        "the primary cannot leave the in-sync set (R8)",
                        "it has to step down",
                    );
                }
                reach!("control: shrink");
                let why = match why {
                    ShrinkReason::Absent if self.lacks_rollback(id, remove.node) => {
                        "it does not have the snapshot that the resource is rolled back to"
                    }
                    ShrinkReason::Absent => "it does not answer",
                    ShrinkReason::Slow => {
                        reach!("control: a slow member leaves");
                        "it did not acknowledge in time, and writes waited for it"
                    }
                };
                if record.iss.contains(&remove) {
                    (Severity::Warning, format!("{name} left the in-sync set: {why}"))
                } else {
                    // Raises the version all the same. The primary wants to be sure that an earlier
                    // `Grow` cannot happen any more (R4). Otherwise it would wait for a joiner that
                    // is gone.
                    reach!("control: a joiner is given up");
                    (Severity::Info, format!("{name} does not join the in-sync set: {why}"))
                }
            }
            IssChange::Grow { add } => {
                if record.iss.contains(&add) || record.replica(add.node) != Some(add) {
                    reach!("control: a grow by what is in sync or has another disk");
                    return Outcome::Conflict { record: Some(record.clone()) };
                }
                if !record.admits(add.node) {
                    reach!("control: a grow by a replica that does not join for a move in mode A");
                    return refused(
                        Code::NotCalled,
                        format!("writes do not wait for {name} in mode A"),
                        "change the mode, or move the service there",
                    );
                }
                if record.unverified.contains(&add) {
                    reach!("control: a grow by an unverified replica");
                    return Outcome::Conflict { record: Some(record.clone()) };
                }
                if !self.alive(add.node) {
                    reach!("control: a grow by a dead node");
                    return refused(
                        Code::NodeDead,
                        format!("node {name} counts as dead"),
                        "it joins after it came back",
                    );
                }
                if self.resources.get(&id).is_some_and(|resource| resource.broken(add.node).is_some()) {
                    reach!("control: a grow by a broken replica");
                    return refused(
                        Code::ReplicaBroken,
                        format!("the replica of {name} counts as broken"),
                        "it joins when its node has said that it was opened after all",
                    );
                }
                reach!("control: grow");
                (Severity::Info, format!("{name} is in sync"))
            }
        };
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        match change {
            IssChange::Shrink { remove, .. } => resource.record.iss.retain(|member| *member != remove),
            IssChange::Grow { add } => {
                resource.record.iss.push(add);
                resource.record.iss.sort_unstable();
            }
            IssChange::Trust { .. }
            | IssChange::Part { .. }
            | IssChange::FailoverReady { .. }
            | IssChange::NotFailoverReady { .. }
            | IssChange::Memory { .. } => {}
        }
        resource.record.version = resource.record.version.next();
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, severity, subject, text);
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    pub(crate) fn replica_ready(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        version: ConfigVersion,
        new: Member,
    ) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return Outcome::Conflict { record: None } };
        let Member { node, incarnation } = new;
        let name = self.node_name(node);
        let subject = format!("resource {}", resource.name);
        if resource.deleting || incarnation.0 == 0 || self.is_removed(node) {
            return refused(
                Code::NoReplicaHere,
                format!("node {name} is to hold no replica"),
                "nothing: the node removes its files by itself",
            );
        }
        let known = resource.record.replica(node);
        if known == Some(new) {
            reach!("control: a replica reports ready again");
            return Outcome::Unchanged;
        }
        if version != resource.record.version {
            reach!("control: a report of a replica is based on an older state");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        if resource.leaving.get(&node) == Some(&incarnation) {
            reach!("control: a replica that goes reports ready");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        if !resource.spec.replicas.contains(&node) {
            return self.made_too_late(id, node, incarnation);
        }
        let record = &resource.record;
        let first = record.epoch == Epoch(0);
        let in_sync = record.iss_member(node).is_some();
        if in_sync && !first && record.iss.len() == 1 {
            // The only complete copy cannot be replaced by an empty one (R11).
            reach!("control: the only complete copy has a new disk");
            let text = format!("{name} reports a new disk, but its old one had the only complete copy");
            if resource.failure.as_ref() != Some(&text) {
                self.note(at_ms, Severity::Critical, subject, text.clone());
            }
            if let Some(resource) = self.resources.get_mut(&id) {
                (resource.failure, resource.refused) = (Some(text.clone()), Some((version, new)));
            }
            return refused(
                Code::LastCopy,
                text,
                "bring the old disk back, go on from another replica (`mainstay resource force-promote NAME NODE`), or delete the resource and restore a backup",
            );
        }
        let was_primary = record.primary == Some(node);
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Conflict { record: None } };
        resource.forget_snapshots_on(node);
        let record = &mut resource.record;
        record.replicas.retain(|member| member.node != node);
        record.replicas.push(new);
        record.replicas.sort_unstable();
        record.iss.retain(|member| member.node != node);
        record.unverified.retain(|member| member.node != node);
        if first || (in_sync && planted(Bug::NewDiskStaysInSync)) {
            // Nothing was ever written: all empty replicas are equal.
            record.iss.push(new);
            record.iss.sort_unstable();
        }
        record.version = record.version.next();
        // The marks of the old disk are void (R9).
        resource.broken.remove(&node);
        let (severity, text) = match known {
            None => {
                reach!("control: a replica is made");
                (Severity::Info, format!("{name} has made its replica"))
            }
            Some(_) => {
                reach!("control: a replica has a new disk");
                (
                    Severity::Warning,
                    format!(
                        "{name} has a new, empty replica: its disk is new, or the old directory was moved or removed"
                    ),
                )
            }
        };
        self.note(at_ms, severity, subject, text);
        self.drop_broken(at_ms, id);
        if was_primary {
            reach!("control: the primary lost its disk");
            self.replace_primary(at_ms, id, &format!("{name} lost its disk"), Cause::DiskLost);
        }
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }
}
