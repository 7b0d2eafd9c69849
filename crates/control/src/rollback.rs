//! Rolling a resource back to a snapshot (R17).
//!
//! ```text
//! RollBack ─▶ wanted ─▶ the state of now is kept ─▶ services are silent ─▶ the primary's engine logs it ─▶ its log has the mark ─▶ done
//! ```
//!
//! - A rollback happens once, whichever replica is primary and whatever dies. Its entry makes a
//!   snapshot of its own, the mark, and an engine whose log has the mark does not roll back again.
//!   The number of the mark is never used again, and the mark is dropped when the wish is
//!   fulfilled.
//! - The state until then is kept as a snapshot first, if the operator wants that. If the primary
//!   cannot keep it, no rollback happens, and the wish ends with the reason.
//! - No service runs meanwhile. The wish is refused while a service runs, unless it says to stop
//!   the service and start it again.
//! - The primary must hold the snapshot. It copies to a replica that does not hold it. If a node
//!   becomes primary that does not hold the snapshot, that node ends the wish.

use crate::snapshots::{Snapshot, bad_name, unknown_resource};
use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::{
    Code, Index, NodeId, ResourceId, SNAPSHOTS_MAX, Severity, SnapshotId, SnapshotOn, SnapshotState, reach,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A wish that is not fulfilled yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rollback {
    pub to: SnapshotId,
    /// The snapshot that keeps the state from before the rollback.
    pub keep: Option<SnapshotId>,
    /// The snapshot that the entry of the log makes.
    pub mark: SnapshotId,
    /// Number of the last snapshot when the rollback was wished. It identifies the wish.
    pub last: u32,
    /// Wall clock of the wish, for display.
    pub at_ms: u64,
}

/// Result of the last wish.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RolledBack {
    /// The name of the snapshot.
    pub to: String,
    /// The entry of the log from which on the volumes held the snapshot's content. `None`: the
    /// rollback was impossible, and nothing was changed.
    pub entry: Option<Index>,
    /// Number of the last snapshot when the rollback was wished, as [`Rollback::last`].
    pub last: u32,
    /// The name of the snapshot that was to keep the state from before.
    pub keep: Option<String>,
    /// Wall clock.
    pub at_ms: u64,
}

impl State {
    /// Whether a resource is being rolled back to a snapshot that the replica of a node does not
    /// have.
    pub(crate) fn lacks_rollback(&self, id: ResourceId, node: NodeId) -> bool {
        self.resources.get(&id).is_some_and(|resource| {
            let to = resource.rollback.as_ref().and_then(|rollback| resource.snapshots.get(&rollback.to));
            let on = to.and_then(|snapshot| snapshot.nodes.get(&node));
            to.is_some() && on.is_none_or(|on| on.state == SnapshotState::Missing)
        })
    }

    pub(crate) fn roll_back(
        &mut self,
        at_ms: u64,
        (id, last): (ResourceId, u32),
        name: &str,
        keep: Option<String>,
        restart: bool,
    ) -> Outcome {
        let service = self.service_of(id).filter(|(_, service)| service.stopped.is_none());
        let service = service.map(|(name, _)| name.clone());
        let attached = self.resources.get(&id).and_then(|resource| self.refuse_attached(resource));
        let found = self.resources.get_mut(&id).filter(|resource| !resource.deleting);
        let Some(resource) = found else { return unknown_resource(id) };
        if resource.last_rollback() == Some((last, name, keep.as_deref())) {
            reach!("control: a rollback is wished once more");
            return Outcome::Unchanged;
        }
        if resource.last_snapshot != last {
            reach!("control: a rollback is wished as of earlier snapshots");
            return Outcome::Conflict { record: Some(resource.record.clone()) };
        }
        if let Some(refusal) = resource.no_rollback(name, keep.as_deref()) {
            return refusal;
        }
        // A client with the devices would see other content under a file system in use.
        if let Some(refusal) = attached {
            return refusal;
        }
        if let Some(service) = service.filter(|_| !restart) {
            reach!("control: a resource in use is not rolled back");
            return refused(
                Code::ResourceInUse,
                format!("service {service} runs on resource {}", resource.name),
                format!(
                    "stop the service first with `mainstay service stop {service}`, or add --restart-service: then it is stopped for this and started again"
                ),
            );
        }
        let Some((&to, _)) = resource.snapshots.iter().find(|(_, known)| known.name == name) else {
            return Outcome::Unchanged;
        };
        reach!("control: a resource is to be rolled back");
        let mut number = || {
            resource.last_snapshot += 1;
            SnapshotId(resource.last_snapshot)
        };
        let keep = keep.map(|name| (number(), name));
        let mark = number();
        resource.unfinished.clear();
        resource.rollback = Some(Rollback { to, keep: keep.as_ref().map(|(id, _)| *id), mark, last, at_ms });
        if let Some((id, name)) = keep {
            resource.snapshots.insert(id, Snapshot::wanted(name, at_ms));
        }
        resource.record.version = resource.record.version.next();
        let text = format!("it is to be rolled back to snapshot {name}");
        self.note_on(at_ms, id, Severity::Warning, text);
        Outcome::Done
    }

    /// Judges by the snapshots in the primary's log whether the wish is fulfilled, or cannot be.
    /// Returns whether the wish ends with this.
    pub(crate) fn rollback_seen(
        &mut self,
        at_ms: u64,
        id: ResourceId,
        seen: &BTreeMap<SnapshotId, SnapshotOn>,
    ) -> bool {
        if self.resources.get(&id).is_some_and(|resource| resource.origin.is_some()) {
            return self.origin_seen(at_ms, id, seen);
        }
        let Some(resource) = self.resources.get_mut(&id) else { return false };
        let Some(rollback) = resource.rollback.clone() else { return false };
        let has = |id: SnapshotId| seen.get(&id).map(|on| on.state);
        let name = resource.snapshots.get(&rollback.to).map_or("", |known| &known.name).to_owned();
        let keep = rollback.keep.and_then(|id| resource.snapshots.get(&id)).map(|known| known.name.clone());
        let entry = seen.get(&rollback.mark).map(|on| on.at);
        let text = if let Some(on) = seen.get(&rollback.mark) {
            reach!("control: a resource is rolled back");
            format!("rolled back to snapshot {name} by entry {}", on.at.0)
        } else if has(rollback.to) == Some(SnapshotState::Missing) {
            reach!("control: a primary does not hold what is rolled back to");
            format!("not rolled back: the primary does not hold snapshot {name}")
        } else if rollback.keep.is_some_and(|keep| has(keep) == Some(SnapshotState::Missing)) {
            reach!("control: what is given up by a rollback cannot be kept");
            format!("not rolled back to snapshot {name}: the state of now cannot be kept")
        } else {
            return false;
        };
        resource.rollback = None;
        resource.rolled_back = Some(RolledBack { to: name, entry, last: rollback.last, keep, at_ms });
        resource.record.version = resource.record.version.next();
        self.note_on(at_ms, id, Severity::Warning, text);
        true
    }
}

impl Resource {
    /// Returns the wish that is being fulfilled, or the last one: the number of the last snapshot
    /// then, the snapshot that it rolls back to, and the name of the kept state.
    #[must_use]
    pub fn last_rollback(&self) -> Option<(u32, &str, Option<&str>)> {
        let name = |id: SnapshotId| self.snapshots.get(&id).map_or("", |known| &known.name);
        let wanted = self.rollback.as_ref();
        let wanted = wanted.map(|rollback| (rollback.last, name(rollback.to), rollback.keep.map(name)));
        let done = self.rolled_back.as_ref();
        wanted.or_else(|| done.map(|done| (done.last, done.to.as_str(), done.keep.as_deref())))
    }

    /// The refusal of a rollback to the snapshot `name` that keeps the present state as `keep`;
    /// `None` if it is possible.
    fn no_rollback(&self, name: &str, keep: Option<&str>) -> Option<Outcome> {
        let Some((_, snapshot)) = self.snapshots.iter().find(|(_, known)| known.name == name) else {
            return Some(self.unknown_snapshot(name));
        };
        if self.rollback.is_some() {
            let text = format!("resource {} is being rolled back already", self.name);
            return Some(refused(Code::RollingBack, text, "wait until that is done"));
        }
        if snapshot.dropping {
            return Some(refused(
                Code::UnknownSnapshot,
                format!("snapshot {name} is being deleted"),
                "see `mainstay snapshot list NAME`",
            ));
        }
        let held = |node| snapshot.nodes.get(&node).is_some_and(|on| on.state == SnapshotState::Held);
        if !self.record.primary.is_some_and(held) {
            reach!("control: a rollback to what the primary does not hold");
            return Some(refused(
                Code::NotHeld,
                format!(
                    "the primary of resource {} does not hold snapshot {name}, or there is no primary",
                    self.name
                ),
                "see `mainstay snapshot list NAME`, and move the service to a node that holds it",
            ));
        }
        if let Some(keep) = keep {
            if let Some(refusal) = bad_name(keep) {
                return Some(refusal);
            }
            if self.snapshots.values().any(|known| known.name == keep) {
                let text = format!("resource {} has a snapshot {keep}", self.name);
                return Some(refused(Code::Exists, text, "choose another name with --keep, or delete it"));
            }
        }
        if self.snapshots.len() + 1 + usize::from(keep.is_some()) > SNAPSHOTS_MAX {
            reach!("control: no room for the mark of a rollback");
            return Some(refused(
                Code::TooMany,
                format!(
                    "resource {} has {} snapshots, and this takes two of {SNAPSHOTS_MAX}",
                    self.name,
                    self.snapshots.len()
                ),
                "delete one that is not needed",
            ));
        }
        None
    }

    /// Why a snapshot cannot be dropped yet.
    pub(crate) fn needed_by_rollback(&self, name: &str) -> Option<Outcome> {
        let rollback = self.rollback.as_ref()?;
        let needed = [Some(rollback.to), rollback.keep].into_iter().flatten();
        let mut needed = needed.filter_map(|id| self.snapshots.get(&id));
        needed.any(|known| known.name == name).then(|| {
            reach!("control: a snapshot that a rollback needs is not deleted");
            refused(
                Code::RollingBack,
                format!("resource {} is being rolled back, and that needs snapshot {name}", self.name),
                "wait until it is done",
            )
        })
    }

    /// Returns the snapshot that the primary is to roll back to now. `has` are the snapshots in its
    /// log.
    pub(crate) fn due_rollback(&self, has: &[(SnapshotId, SnapshotOn)]) -> Option<SnapshotId> {
        let rollback = self.rollback.as_ref()?;
        let state = |id: SnapshotId| has.iter().find(|(of, _)| *of == id).map(|(_, on)| on.state);
        let held = |id: SnapshotId| state(id) == Some(SnapshotState::Held);
        let due = state(rollback.mark).is_none() && held(rollback.to) && rollback.keep.is_none_or(held);
        due.then_some(rollback.to)
    }

    /// Whether what the primary's log has ends the wish.
    pub(crate) fn rollback_ends(&self, has: &[(SnapshotId, SnapshotOn)]) -> bool {
        let Some(rollback) = &self.rollback else { return false };
        let state = |id: SnapshotId| has.iter().find(|(of, _)| *of == id).map(|(_, on)| on.state);
        if let Some(origin) = &self.origin {
            let lacks = state(rollback.to) != Some(SnapshotState::Held);
            return state(rollback.mark).is_some() || lacks != origin.failure.is_some();
        }
        let missing = |id: SnapshotId| state(id) == Some(SnapshotState::Missing);
        state(rollback.mark).is_some() || missing(rollback.to) || rollback.keep.is_some_and(missing)
    }
}
