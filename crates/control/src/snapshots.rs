//! Snapshots of resources: the operator's wishes, and the nodes that hold each snapshot (R17).
//!
//! ```text
//! TakeSnapshot ─▶ wanted ─▶ the primary's engine logs it ─▶ each replica keeps it, or cannot ─▶ SnapshotsSeen of its node
//! DropSnapshot ─▶ dropping ─▶ the primary's engine logs that ─▶ its SnapshotsSeen does not name it any more ─▶ forgotten
//! ```
//!
//! - The wish stays until it is fulfilled, whichever replica is primary by then. A primary that
//!   already has the snapshot ignores it.
//! - Each wish makes a new version of the record. A primary is told only on the version that it
//!   acts on. Otherwise a restarted agent that does not know of the last snapshot yet would have it
//!   dropped.
//! - Numbers are never used again within a resource. So a replica's report about an old snapshot is
//!   never taken for a new one.
//! - While the primary copies to a replica, the replica keeps the last complete state that it held,
//!   without any wish (R16, docs/adr/0021-kept-states.md). The state of each node is known under a
//!   name that no snapshot may have, because two nodes need not keep the same.
//! - A node reports only when the snapshots of its replica differ from those that the state knows.

use crate::origin::CONTENT;
use crate::state::{Command, Outcome, Resource, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Code, Index, NodeId, ResourceId, SNAPSHOTS_MAX, Severity, SnapshotId, SnapshotOn, SnapshotState, reach,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Longest name, in characters; as of resources.
const NAME_MAX: usize = 32;

/// The name of the last complete state of a replica, kept while the replica is copied to.
pub const BEFORE_COPY: &str = "before-copy";

/// The last complete state of one node's replica, kept while that replica is copied to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BeforeCopy {
    /// The entry of the log up to which it goes.
    pub at: Index,
    /// Wall clock of when this became known, for display.
    pub since_ms: u64,
    /// The state is no longer wanted.
    #[serde(default)]
    pub dropping: bool,
}

/// A snapshot as the control plane knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// Wall clock of the wish, for display.
    pub at_ms: u64,
    /// The snapshot is to be deleted.
    pub dropping: bool,
    /// The last report of each node about the snapshot.
    pub nodes: BTreeMap<NodeId, SnapshotOn>,
}

/// Why a snapshot cannot be called so.
pub(crate) fn bad_name(name: &str) -> Option<Outcome> {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !(1..=NAME_MAX).contains(&name.len()) || !name.chars().all(good) {
        let what = format!("{name:?} is no name of a snapshot");
        return Some(refused(Code::BadName, what, "use 1 to 32 characters out of a-z, 0-9 and the dash"));
    }
    (name == BEFORE_COPY).then(|| {
        let what =
            format!("{name} is what a replica held before it was copied to, and no name of a snapshot");
        refused(Code::BadName, what, "choose another name")
    })
}

/// Snapshots that the primary's log is to have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Keep {
    /// The snapshots that the log is to have, and no others.
    pub snapshots: BTreeSet<SnapshotId>,
    /// One more snapshot that the log may have: the mark of a rollback that is wanted.
    pub mark: Option<SnapshotId>,
    /// The snapshot that the log is to be rolled back to now, if it does not have the mark.
    pub to: Option<SnapshotId>,
}

impl Snapshot {
    pub(crate) fn wanted(name: String, at_ms: u64) -> Self {
        Self { name, at_ms, dropping: false, nodes: BTreeMap::new() }
    }
}

impl State {
    pub(crate) fn take_snapshot(&mut self, at_ms: u64, id: ResourceId, name: String) -> Outcome {
        let found = self.resources.get_mut(&id).filter(|resource| !resource.deleting);
        let Some(resource) = found else { return unknown_resource(id) };
        if let Some(refusal) = bad_name(&name) {
            return refusal;
        }
        if let Some(known) = resource.snapshots.values().find(|known| known.name == name)
            && !planted(Bug::SnapshotTakenAgain)
        {
            reach!("control: a snapshot has the name already");
            let ago_s = at_ms.saturating_sub(known.at_ms) / 1000;
            let held = known.nodes.values().filter(|on| on.state == SnapshotState::Held).count();
            let (of, state) = (&resource.name, if known.dropping { ", and is being deleted" } else { "" });
            let message = format!(
                "resource {of} has a snapshot {name}, of another moment: it was asked for {ago_s} s ago, is held by {held} nodes{state}"
            );
            let remedy = if known.dropping {
                format!(
                    "wait until `mainstay snapshot list {of}` does not show it any more, or choose another name"
                )
            } else {
                format!(
                    "choose another name, or run `mainstay snapshot delete {of} {name}` if it is not needed any more"
                )
            };
            return refused(Code::Exists, message, remedy);
        }
        if resource.snapshots.len() + usize::from(resource.rollback.is_some()) >= SNAPSHOTS_MAX {
            reach!("control: a snapshot too many");
            return refused(
                Code::TooMany,
                format!("resource {} has {SNAPSHOTS_MAX} snapshots, which is the most", resource.name),
                "delete one that is not needed",
            );
        }
        reach!("control: a snapshot is wanted");
        resource.last_snapshot += 1;
        resource.record.version = resource.record.version.next();
        let number = SnapshotId(resource.last_snapshot);
        resource.snapshots.insert(number, Snapshot::wanted(name.clone(), at_ms));
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Info, subject, format!("snapshot {name} is to be taken"));
        Outcome::Done
    }

    pub(crate) fn drop_snapshot(&mut self, at_ms: u64, id: ResourceId, name: &str) -> Outcome {
        let Some(resource) = self.resources.get(&id) else { return unknown_resource(id) };
        let Some((number, snapshot)) = resource.snapshots.iter().find(|(_, known)| known.name == name) else {
            if name == BEFORE_COPY && !resource.before_copy.is_empty() {
                return self.drop_before_copy(at_ms, id);
            }
            return resource.unknown_snapshot(name);
        };
        if snapshot.dropping {
            return Outcome::Unchanged;
        }
        if let Some(refusal) = resource.needed_by_rollback(name) {
            return refusal;
        }
        let number = *number;
        if let Some(refusal) = self.needed_by_clone(id, Some(number)) {
            return refusal;
        }
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        let Some(snapshot) = resource.snapshots.get_mut(&number) else { return Outcome::Unchanged };
        reach!("control: a snapshot is to go");
        snapshot.dropping = true;
        resource.record.version = resource.record.version.next();
        let subject = format!("resource {}", resource.name);
        self.note(at_ms, Severity::Info, subject, format!("snapshot {name} is deleted"));
        Outcome::Done
    }

    /// Marks the states that targets of copies held before as no longer wanted, on all nodes that
    /// keep one now.
    fn drop_before_copy(&mut self, at_ms: u64, id: ResourceId) -> Outcome {
        if let Some(refusal) = self.needed_by_clone(id, Some(SnapshotId::BEFORE_COPY)) {
            return refusal;
        }
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        if resource.before_copy.values().all(|kept| kept.dropping) {
            return Outcome::Unchanged;
        }
        reach!("control: what nodes held before they are copied to is wanted no longer");
        resource.before_copy.values_mut().for_each(|kept| kept.dropping = true);
        let nodes: Vec<NodeId> = resource.before_copy.keys().copied().collect();
        let subject = format!("resource {}", resource.name);
        let names: Vec<String> = nodes.into_iter().map(|node| self.node_name(node)).collect();
        let text = format!("what {} held before the copy is deleted", names.join(" and "));
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }

    /// Notes the snapshots that the replica of a node has. Leaves out numbers that this state does
    /// not know.
    pub(crate) fn snapshots_seen(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        node: NodeId,
        seen: &[(SnapshotId, SnapshotOn)],
    ) -> Outcome {
        let Some(resource) = self.resources.get_mut(&id) else { return Outcome::Unchanged };
        if resource.record.replica(node).is_none() {
            reach!("control: a report of snapshots comes after the replica has gone");
            return Outcome::Unchanged;
        }
        let seen: BTreeMap<SnapshotId, SnapshotOn> = seen.iter().copied().collect();
        let primary = resource.record.primary == Some(node);
        let (mut changed, mut events) = (false, Vec::new());
        let (resource_name, node_name) = (resource.name.clone(), node);
        for (number, snapshot) in &mut resource.snapshots {
            let before = match seen.get(number) {
                Some(on) => snapshot.nodes.insert(node, *on),
                None => snapshot.nodes.remove(&node),
            };
            let now = seen.get(number).copied();
            changed |= before != now;
            if before != now && now.is_some_and(|on| on.state == SnapshotState::Missing) {
                reach!("control: a snapshot is missing on a node");
                events.push((node_name, snapshot.name.clone()));
            }
        }
        let kept = seen.get(&SnapshotId::BEFORE_COPY).filter(|on| on.state == SnapshotState::Held);
        let before = resource.before_copy.get(&node).map(|kept| kept.at);
        if before != kept.map(|on| on.at) {
            match kept {
                Some(on) => {
                    reach!("control: a node keeps what it held before it is copied to");
                    resource
                        .before_copy
                        .insert(node, BeforeCopy { at: on.at, since_ms: at_ms, dropping: false });
                }
                None => _ = resource.before_copy.remove(&node),
            }
            changed = true;
        }
        let before = resource.snapshots.len();
        // The primary has logged the end of the snapshot, and every other replica meets that entry
        // on its way.
        resource
            .snapshots
            .retain(|number, snapshot| !(primary && snapshot.dropping && !seen.contains_key(number)));
        if resource.snapshots.len() < before {
            reach!("control: a snapshot is gone");
            changed = true;
        }
        for (node, name) in events {
            let text = format!("snapshot {name} could not be kept on {}", self.node_name(node));
            self.note(at_ms, Severity::Warning, format!("resource {resource_name}"), text);
        }
        changed |= primary && self.rollback_seen(at_ms, id, &seen);
        if changed { Outcome::Done } else { Outcome::Unchanged }
    }
}

pub(crate) fn unknown_resource(id: ResourceId) -> Outcome {
    refused(Code::UnknownResource, format!("there is no resource {id}"), "see `mainstay resource list`")
}

impl Resource {
    /// The refusal of a snapshot name that does not exist. The kept states of targets of copies are
    /// no snapshots, though they are listed with them.
    pub(crate) fn unknown_snapshot(&self, name: &str) -> Outcome {
        if name != BEFORE_COPY || self.before_copy.is_empty() {
            let what = format!("resource {} has no snapshot {name}", self.name);
            let remedy = format!("see `mainstay snapshot list {}`", self.name);
            return refused(Code::UnknownSnapshot, what, remedy);
        }
        refused(
            Code::UnknownSnapshot,
            format!(
                "{name} is no snapshot of resource {0}: it is what one replica held before it was copied to, and goes by itself when the copy has ended",
                self.name
            ),
            format!(
                "to use it, clone it, or make another resource of it: `mainstay resource create NAME --from {}@{name} --replicas NODE`",
                self.name
            ),
        )
    }

    /// Forgets the snapshots on a node: its replica is gone, or is another one.
    pub(crate) fn forget_snapshots_on(&mut self, node: NodeId) {
        for snapshot in self.snapshots.values_mut() {
            snapshot.nodes.remove(&node);
        }
        self.before_copy.remove(&node);
    }

    /// The snapshots that the primary's log is to have, and the snapshot to roll back to; `None` if
    /// nothing is to change. `silent`: nothing uses the volumes.
    pub(crate) fn wanted_snapshots(&self, has: &[(SnapshotId, SnapshotOn)], silent: bool) -> Option<Keep> {
        // The snapshot that the resource is made of was never taken. It would be empty if it were
        // taken now.
        let given = |id: SnapshotId| self.origin.is_some() && id == CONTENT && !planted(Bug::CloneMadeEmpty);
        let has_it = |id: SnapshotId| has.iter().any(|(of, _)| *of == id);
        let wanted = self.snapshots.iter().filter(|(_, snapshot)| !snapshot.dropping).map(|(id, _)| *id);
        let snapshots: BTreeSet<_> = wanted.filter(|id| !given(*id) || has_it(*id)).collect();
        let mark = self.rollback.as_ref().map(|rollback| rollback.mark);
        let others = has.iter().map(|(id, _)| *id).filter(|id| Some(*id) != mark);
        let others = others.filter(|id| *id != SnapshotId::BEFORE_COPY);
        let same = snapshots.iter().copied().eq(others);
        let to = self.due_rollback(has).filter(|_| silent);
        (!same || to.is_some()).then_some(Keep { snapshots, mark, to })
    }

    /// Returns the order to drop the state that `node` held before its replica is copied to. `None`
    /// if the state is still wanted or is gone.
    pub(crate) fn unwanted_before_copy(
        &self,
        node: NodeId,
        has: &[(SnapshotId, SnapshotOn)],
    ) -> Option<Keep> {
        let known = self.before_copy.get(&node).filter(|kept| kept.dropping)?;
        // The kept state of another copy is not the one that is unwanted.
        let same = |(id, on): &(SnapshotId, SnapshotOn)| *id == SnapshotId::BEFORE_COPY && on.at == known.at;
        has.iter().any(same).then(|| Keep { snapshots: BTreeSet::new(), mark: None, to: None })
    }

    /// Returns the report of a node about its snapshots, if the state does not know it yet.
    pub(crate) fn snapshots_report(&self, node: NodeId, has: &[(SnapshotId, SnapshotOn)]) -> Option<Command> {
        let known = self.snapshots.iter();
        let known = known.filter_map(|(id, snapshot)| Some((*id, *snapshot.nodes.get(&node)?)));
        let mine = has.iter().copied().filter(|(id, _)| self.snapshots.contains_key(id));
        let keeps =
            has.iter().find(|(id, on)| *id == SnapshotId::BEFORE_COPY && on.state == SnapshotState::Held);
        let kept = self.before_copy.get(&node).map(|kept| kept.at) != keeps.map(|(_, on)| on.at);
        let gone = self.record.primary == Some(node)
            && self
                .snapshots
                .iter()
                .any(|(id, snapshot)| snapshot.dropping && has.iter().all(|(of, _)| of != id))
            || self.record.primary == Some(node) && self.rollback_ends(has);
        (gone || kept || !known.eq(mine)).then(|| Command::SnapshotsSeen {
            resource: self.id,
            node,
            seen: has.to_vec(),
        })
    }
}
