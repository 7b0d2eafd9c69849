//! A resource that is made of a snapshot of another one, its origin (docs/adr/0017-clones.md).
//!
//! ```text
//! CreateResource ─▶ the nodes that hold the snapshot clone its files ─▶ promoted ─▶ rolled back to the clones ─▶ the origin is forgotten
//! ```
//!
//! - A replica that is made of the origin has empty volumes and holds one snapshot, [`CONTENT`]:
//!   the files of the origin's snapshot. A rollback brings it into the volumes (`rollback.rs`), so
//!   it belongs to one place in the log. The primary copies to every replica that lacks the
//!   snapshot.
//! - All of them hold the same: they are made of replicas of the origin that were in sync and held
//!   the snapshot when the resource was made, and of no others. Whatever becomes of the origin
//!   meanwhile, a forced promotion of it does not give them two histories.
//! - The other nodes make their replicas only after the rollback is in the log. Then the primary
//!   copies to them.
//! - Before the rollback, no service starts, no client attaches, and no scrub begins: the volumes
//!   hold nothing until then.
//! - The snapshot, and the resource that has it, stay until then.
//! - The origin may also be the state that the target of a copy held before (`before_copy` of the
//!   resource). Only one replica has that state, and it is the holder. Nothing guarantees that the
//!   state stays, since the copy may end. If it is gone before it was cloned, the resource cannot
//!   be made, and says so. The replica of the origin is whole then.

use crate::actions::Observed;
use crate::rollback::Rollback;
use crate::snapshots::{BEFORE_COPY, Snapshot};
use crate::state::{Outcome, Resource, ResourceSpec, State, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Code, Incarnation, Index, Member, NodeId, ResourceId, Severity, SnapshotId, SnapshotOn, SnapshotState,
    VolumeId, reach,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The snapshot of the new resource that is the origin's.
pub const CONTENT: SnapshotId = SnapshotId(1);
/// The mark of the rollback to it.
const MARK: SnapshotId = SnapshotId(2);

/// A snapshot of a resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotOf {
    pub resource: ResourceId,
    pub snapshot: SnapshotId,
}

/// The snapshot that a resource is made of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Origin {
    pub of: SnapshotOf,
    /// Replicas of the origin of which one of this resource is made, on the same nodes.
    pub holders: BTreeSet<Member>,
    /// The last entry of the source's log that the content includes. Set only if the resource is
    /// made of the state that a replica held before it was copied to. A later copy keeps another
    /// state under the same name.
    #[serde(default)]
    pub at: Option<Index>,
    /// Why it could not be brought into the volumes.
    #[serde(default)]
    pub failure: Option<String>,
}

/// Whether a node makes a replica now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Making {
    Now(Option<SnapshotOf>),
    /// This node cannot reach the snapshot that the replica would be made of.
    NotYet,
}

impl Origin {
    fn holder(&self, node: NodeId) -> Option<Incarnation> {
        self.holders.iter().find(|member| member.node == node).map(|member| member.incarnation)
    }
}

impl State {
    /// Returns the origin of a new resource of this specification that is made of a snapshot.
    ///
    /// # Errors
    /// The refusal, if the resource cannot be made of this snapshot.
    pub(crate) fn origin(&self, of: SnapshotOf, spec: &ResourceSpec) -> Result<Origin, Box<Outcome>> {
        let known = self.resources.get(&of.resource).filter(|known| !known.deleting);
        let Some(source) = known else {
            return Err(Box::new(crate::snapshots::unknown_resource(of.resource)));
        };
        let before_copy = of.snapshot == SnapshotId::BEFORE_COPY;
        let wanted = source.before_copy.values().any(|kept| !kept.dropping);
        if before_copy && !wanted {
            reach!("control: a resource is to be made of a kept state that no target of a copy has");
            return Err(Box::new(refused(
                Code::UnknownSnapshot,
                format!("no replica of {} is being copied to and keeps what it held before", source.name),
                "see `mainstay snapshot list NAME`",
            )));
        }
        if !before_copy && source.snapshots.get(&of.snapshot).is_none_or(|known| known.dropping) {
            reach!("control: a resource is to be made of a snapshot that is gone");
            return Err(Box::new(refused(
                Code::UnknownSnapshot,
                format!("resource {} has no snapshot {}, or it is being deleted", source.name, of.snapshot),
                "see `mainstay snapshot list NAME`",
            )));
        }
        if source.origin.is_some() {
            reach!("control: a resource is to be made of one that is not made yet");
            return Err(Box::new(refused(
                Code::BeingMade,
                format!("resource {} is being made of a snapshot itself", source.name),
                "wait until that is done",
            )));
        }
        let sizes = source.sizes_max();
        let large_enough = spec.volumes.len() == sizes.len()
            && spec.volumes.iter().zip(&sizes).all(|(bytes, least)| bytes >= least);
        if !large_enough {
            reach!("control: a resource is smaller than the snapshot it is to be made of");
            let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
            return Err(Box::new(refused(
                Code::BadResource,
                format!("resource {} has volumes of {} bytes", source.name, sizes.join(", ")),
                "leave the sizes out, or give as many volumes, each at least as large",
            )));
        }
        let all = source.holders(of.snapshot);
        let holders: BTreeSet<Member> =
            all.iter().filter(|member| spec.replicas.contains(&member.node)).copied().collect();
        let names = |members: &BTreeSet<Member>| -> Vec<String> {
            members.iter().map(|member| self.node_name(member.node)).collect()
        };
        if before_copy && holders.len() > 1 {
            reach!("control: a resource is to be made of what several targets of copies held");
            return Err(Box::new(refused(
                Code::Ambiguous,
                format!(
                    "{} keep each what they held themselves, which may differ",
                    names(&holders).join(" and ")
                ),
                "name one of them; `mainstay snapshot list NAME` has the entry up to which each goes. The other can be added when that is done: `mainstay resource add-replica NAME NODE`",
            )));
        }
        if holders.is_empty() {
            reach!("control: a resource is to be made of a snapshot where no replica holds it");
            let names = names(&all);
            let what = match source.snapshots.get(&of.snapshot) {
                Some(snapshot) => format!("that is in sync and holds snapshot {}", snapshot.name),
                None => "that keeps what it held before it was copied to".into(),
            };
            return Err(Box::new(refused(
                Code::NotHeld,
                format!("none of these nodes has a replica of {} {what}", source.name),
                match &names[..] {
                    [] => "see `mainstay snapshot list NAME`: it must be held by a replica".to_owned(),
                    [name] => format!("name {name} as well; other replicas are copied from it"),
                    names => {
                        format!("name one of {} as well; other replicas are copied from it", names.join(", "))
                    }
                },
            )));
        }
        let kept =
            holders.iter().filter(|_| before_copy).find_map(|holder| source.before_copy.get(&holder.node));
        let at = kept.map(|kept| kept.at);
        Ok(Origin { of, holders, at, failure: None })
    }

    /// The name of the snapshot that a resource is made of, and of the resource that has it.
    #[must_use]
    pub fn origin_names(&self, origin: &Origin) -> (String, String) {
        let source = self.resources.get(&origin.of.resource);
        let snapshot = source.and_then(|source| source.snapshots.get(&origin.of.snapshot));
        let name = match snapshot {
            Some(known) => known.name.clone(),
            None if origin.of.snapshot == SnapshotId::BEFORE_COPY => BEFORE_COPY.into(),
            None => origin.of.snapshot.to_string(),
        };
        (name, source.map_or_else(|| origin.of.resource.to_string(), |source| source.name.clone()))
    }

    pub(crate) fn check_origin(&self, resource: &Resource) -> Result<(), &'static str> {
        let Some(origin) = resource.origin.as_ref().filter(|_| !resource.deleting) else { return Ok(()) };
        let source = self.resources.get(&origin.of.resource).filter(|source| !source.deleting);
        let snapshot = source.and_then(|source| source.snapshots.get(&origin.of.snapshot));
        let kept = origin.of.snapshot == SnapshotId::BEFORE_COPY && source.is_some();
        if snapshot.is_none_or(|snapshot| snapshot.dropping) && !kept {
            return Err("what it is made of is gone");
        }
        if resource.record.replicas.iter().any(|member| origin.holder(member.node).is_none()) {
            return Err("a replica was made of something else than its origin");
        }
        if resource.rollback.as_ref().is_none_or(|rollback| rollback.to != CONTENT) {
            return Err("nothing brings its origin into its volumes");
        }
        Ok(())
    }

    /// The refusal to delete a snapshot of `id` (or all of `id` if none is named) while a resource
    /// is being made of it.
    pub(crate) fn needed_by_clone(&self, id: ResourceId, snapshot: Option<SnapshotId>) -> Option<Outcome> {
        if planted(Bug::OriginNotKept) {
            return None;
        }
        let needs = |other: &&Resource| {
            let of = other.origin.as_ref().filter(|_| !other.deleting).map(|origin| origin.of);
            of.is_some_and(|of| of.resource == id && snapshot.is_none_or(|id| id == of.snapshot))
        };
        let clone = self.resources.values().find(needs)?;
        reach!("control: what a resource is made of is not deleted");
        let name = &clone.name;
        Some(refused(
            Code::BeingCloned,
            format!("resource {name} is being made of it"),
            format!("wait until that is done, or delete resource {name}"),
        ))
    }

    /// Judges by the snapshots in the primary's log whether the volumes hold the snapshot that they
    /// are made of. Returns whether that changes the state.
    pub(crate) fn origin_seen(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        seen: &BTreeMap<SnapshotId, SnapshotOn>,
    ) -> bool {
        let Some(resource) = self.resources.get(&id) else { return false };
        let Some(origin) = &resource.origin else { return false };
        let (snapshot, source) = self.origin_names(origin);
        let lacks = seen.get(&CONTENT).is_none_or(|on| on.state != SnapshotState::Held);
        let failure = lacks.then(|| {
            format!(
                "it does not hold what snapshot {snapshot} of {source} held: the primary has lost its files"
            )
        });
        let (severity, text) = match seen.get(&MARK) {
            Some(on) => {
                reach!("control: a resource holds what it is made of");
                let text =
                    format!("holds what snapshot {snapshot} of {source} held, from entry {} on", on.at.0);
                (Severity::Info, text)
            }
            None if failure == origin.failure => return false,
            None => {
                reach!("control: a primary does not hold what its resource is made of");
                (
                    Severity::Critical,
                    failure.clone().unwrap_or_else(|| "the primary holds it after all".into()),
                )
            }
        };
        let Some(resource) = self.resources.get_mut(&id) else { return false };
        if seen.contains_key(&MARK) {
            (resource.origin, resource.rollback) = (None, None);
            // The operator asked for a resource, and not for a snapshot of its beginning. That
            // snapshot grows with all that changes.
            if let Some(content) = resource.snapshots.get_mut(&CONTENT) {
                content.dropping = true;
            }
        } else if let Some(origin) = &mut resource.origin {
            origin.failure = failure;
        }
        resource.record.version = resource.record.version.next();
        self.note_on(at_ms, id, severity, text);
        true
    }

    /// Whether the first promotion waits for a replica on `node`, which is alive and has none.
    pub(crate) fn replica_is_awaited(&self, resource: &Resource, node: NodeId) -> bool {
        let Some(origin) = &resource.origin else { return true };
        // A node that does not hold the snapshot any more makes no replica before the rollback.
        let source = self.resources.get(&origin.of.resource).filter(|source| !source.deleting);
        let Some(source) = source else { return false };
        // The state that a target of a copy held before is removed when the copy is complete.
        let at = source.before_copy.get(&node).map(|kept| kept.at);
        let kept = origin.at.is_none() || at == origin.at;
        kept && source.record.replica(node).is_some_and(|member| origin.holders.contains(&member))
    }

    /// Returns whether a resource that is being made of a snapshot has failed, the problem, and the
    /// remedy.
    pub(crate) fn advise_origin(&self, resource: &Resource) -> Option<(bool, String, String)> {
        let origin = resource.origin.as_ref()?;
        let (snapshot, source) = self.origin_names(origin);
        let delete = format!(
            "delete it, and make it of a snapshot that is held: `mainstay resource delete {}`",
            resource.name
        );
        if let Some(failure) = &origin.failure {
            return Some((true, failure.clone(), delete));
        }
        let unmade = |node: &NodeId| resource.record.replica(*node).is_none();
        let can = |node: &&NodeId| !unmade(node) || self.replica_is_awaited(resource, **node);
        let able: Vec<NodeId> = resource.spec.replicas.iter().filter(can).copied().collect();
        if able.is_empty() {
            let what =
                format!("cannot be made: none of its nodes holds snapshot {snapshot} of {source} any more");
            return Some((true, what, delete));
        }
        let waits: Vec<String> = able.into_iter().filter(unmade).map(|node| self.node_name(node)).collect();
        let what = format!("is being made of snapshot {snapshot} of {source}");
        if waits.is_empty() {
            return Some((
                false,
                what,
                format!("see `mainstay resource status {}` if this lasts", resource.name),
            ));
        }
        let what = format!("{what}; it waits for the replicas of {}", waits.join(", "));
        Some((false, what, "see `mainstay node list` if this lasts".into()))
    }
}

impl Resource {
    /// Replicas that hold this snapshot and of which a replica of another resource can be made. The
    /// kept states of several targets of copies may differ.
    #[must_use]
    pub fn holders(&self, snapshot: SnapshotId) -> BTreeSet<Member> {
        if snapshot == SnapshotId::BEFORE_COPY {
            let kept = self.before_copy.iter().filter(|(_, kept)| !kept.dropping);
            return kept.filter_map(|(node, _)| self.record.replica(*node)).collect();
        }
        let Some(known) = self.snapshots.get(&snapshot) else { return BTreeSet::new() };
        let held = |member: &&Member| {
            known.nodes.get(&member.node).is_some_and(|on| on.state == SnapshotState::Held)
        };
        self.record.iss.iter().filter(held).copied().collect()
    }

    /// Bytes that each volume has or is to have.
    #[must_use]
    pub fn sizes_max(&self) -> Vec<u64> {
        let sizes = (0..).map(VolumeId).zip(&self.spec.volumes);
        sizes.map(|(id, bytes)| self.growing.get(&id).map_or(*bytes, |more| *more.max(bytes))).collect()
    }

    /// The wishes of a resource that is made of a snapshot called `name`.
    pub(crate) fn begin_as(&mut self, origin: Origin, name: String, at_ms: u64) {
        reach!("control: a resource is made of a snapshot");
        self.snapshots = BTreeMap::from([(CONTENT, Snapshot::wanted(name, at_ms))]);
        self.last_snapshot = MARK.0;
        self.rollback = Some(Rollback { to: CONTENT, keep: None, mark: MARK, last: 0, at_ms });
        self.origin = Some(origin);
    }

    /// Whether `node`, which has no replica, makes one now, and of what.
    pub(crate) fn making(&self, node: NodeId, observed: &Observed) -> Making {
        let Some(origin) = &self.origin else { return Making::Now(None) };
        if planted(Bug::CloneMadeEmpty) {
            return Making::Now(None);
        }
        let source = observed.replicas.get(&origin.of.resource);
        let held = |seen: &[(SnapshotId, SnapshotOn)]| {
            let is =
                |on: &SnapshotOn| on.state == SnapshotState::Held && origin.at.is_none_or(|at| on.at == at);
            seen.iter().any(|(id, on)| *id == origin.of.snapshot && is(on))
        };
        let here = source
            .is_some_and(|source| origin.holder(node) == Some(source.incarnation) && held(&source.snapshots));
        if here { Making::Now(Some(origin.of)) } else { Making::NotYet }
    }
}
