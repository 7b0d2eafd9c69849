//! Snapshots (R17): the content of all volumes at one entry of the log, kept as files beside
//! theirs.
//!
//! ```text
//! applied ─▶ the overlay is set aside as a layer ─▶ a pass writes the layer and ends at the entry ─▶ SnapshotTake ─▶ recorded
//! ```
//!
//! - Later entries go into a new overlay, so no client waits. Reads look through the layers, the
//!   newest first. Passes write the oldest layer, and nothing newer reaches a volume before that
//!   layer is done. So between a pass's flushes and its superblock the volumes hold exactly the
//!   content of the log up to the entry, also in blocks that have changed since. Then they are
//!   cloned.
//! - The sums of blocks, if there are any (`sums.rs`), are cloned with the volumes. All of them are
//!   on disk then, and fit.
//! - A superblock names a snapshot as held only after its files are durable. After a crash before
//!   that the entry is applied again, and its files that are there are replaced.
//! - A snapshot that cannot be taken is missing here, and nothing else fails. The pool may know no
//!   clones, or have no space for one. A snapshot is missing too on the target of a copy, because
//!   the content of its volumes is no prefix of the log.
//! - The files of a dropped snapshot are removed once no superblock names them. Files that a crash
//!   leaves are not on [`Store::snapshots_on_disk`], and the program that opens the replica removes
//!   them.
//! - Numbers ascend. A snapshot with a number that was used before is missing. Work that is still
//!   under way for the first one (its layer, its clone or the removal of its files) would be taken
//!   for the second one's.
//! - The target of a copy takes over the list of the log at the position where it restarts. Of
//!   these snapshots it holds those that it held before.

use crate::overlay::Overlay;
use crate::{IoFailure, Op, Output, Store};
use mainstay_codec::{EntryKind, SnapshotRecord};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, Position, SNAPSHOTS_MAX, SnapshotId, SnapshotOn, SnapshotState, reach};

/// Committed content that is not in the volumes yet, up to a snapshot.
#[derive(Debug)]
pub(crate) struct Layer {
    pub snapshot: SnapshotId,
    /// Its entry, the last of a batch.
    pub to: Index,
    pub overlay: Overlay,
    /// Sizes of the volumes there.
    pub volumes: Vec<u64>,
    /// Its entry rolls back to this one, see `rollback.rs`.
    pub from: Option<SnapshotId>,
}

impl Store {
    /// The snapshots that the log has as far as it is applied, in ascending order.
    pub fn snapshots(&self) -> impl Iterator<Item = (SnapshotId, SnapshotOn)> {
        self.snapshots.iter().map(|(id, snapshot)| (*id, *snapshot))
    }

    /// Entries of the log that were not applied yet and take or drop a snapshot, as index, snapshot
    /// and whether it is taken.
    pub fn snapshots_ahead(&self) -> impl Iterator<Item = (Index, SnapshotId, bool)> {
        self.pending.iter().flat_map(|batch| {
            let entries = (batch.first.0..).map(Index).zip(&batch.entries);
            entries.filter_map(|(index, entry)| {
                Some((index, entry.snapshot()?, entry.kind != EntryKind::DropSnapshot))
            })
        })
    }

    /// Snapshots that the superblock names as held. Files of other snapshots are left from a crash,
    /// unless they are being taken.
    pub fn snapshots_on_disk(&self) -> impl Iterator<Item = SnapshotId> {
        let kept = self.superblock.unfinished.filter(|copy| copy.kept).map(|_| SnapshotId::BEFORE_COPY);
        let held = self.superblock.snapshots.iter().filter(|record| record.held).map(|record| record.id);
        held.chain(kept)
    }

    /// The files of a snapshot are not there, whatever the superblock says.
    pub fn snapshot_lost(&mut self, id: SnapshotId) {
        if id == SnapshotId::BEFORE_COPY {
            return self.kept_lost();
        }
        if let Some(snapshot) = self.snapshots.get_mut(&id)
            && snapshot.state == SnapshotState::Held
        {
            snapshot.state = SnapshotState::Missing;
            self.outputs.push_back(Output::SnapshotsChanged);
        }
    }

    /// Returns the overlay that passes write: the oldest content that is not in the volumes.
    pub(crate) fn oldest(&self) -> &Overlay {
        let layer = self.layers.front().filter(|_| !planted(Bug::SnapshotLeavesOut));
        layer.map_or(&self.overlay, |layer| &layer.overlay)
    }

    pub(crate) fn oldest_mut(&mut self) -> &mut Overlay {
        let layer = self.layers.front_mut().filter(|_| !planted(Bug::SnapshotLeavesOut));
        layer.map_or(&mut self.overlay, |layer| &mut layer.overlay)
    }

    /// Runs of all layers and the overlay.
    pub(crate) fn runs(&self) -> usize {
        // Asked at every turn, and there are hardly ever layers.
        if self.layers.is_empty() {
            return self.overlay.len();
        }
        self.overlay.len() + self.layers.iter().map(|layer| layer.overlay.len()).sum::<usize>()
    }

    /// An entry that takes a snapshot is applied.
    pub(crate) fn take_snapshot(&mut self, at: Index, id: SnapshotId) {
        if self.snapshots.contains_key(&id) || self.snapshots.len() >= SNAPSHOTS_MAX {
            // The primary prevents this. Every replica leaves the entry out, at the same place.
            reach!("store: a snapshot is there already, or one too many");
            return;
        }
        // While the pass that ends a copy is under way, what comes later is of a whole replica: its
        // superblock will say so, and after a crash this entry is met again by one. Were it missing
        // now, passes would not end at it, and then it would be taken with newer content.
        let whole = self.unfinished.is_none() || self.ends_copy();
        let again = id <= self.last_snapshot;
        self.last_snapshot = id.max(self.last_snapshot);
        let state = if !whole && !planted(Bug::SnapshotOfHalf) {
            reach!("store: the target of a copy cannot take a snapshot");
            SnapshotState::Missing
        } else {
            // Passes end here in any case: one that crashed beyond it would leave newer content for
            // a second attempt.
            self.begin_layer(at, id, None);
            if again {
                reach!("store: the number of a snapshot was used before");
                SnapshotState::Missing
            } else {
                reach!("store: a snapshot begins");
                SnapshotState::Taking
            }
        };
        self.snapshots.insert(id, SnapshotOn { at, state });
        self.outputs.push_back(Output::SnapshotsChanged);
    }

    pub(crate) fn begin_layer(&mut self, to: Index, snapshot: SnapshotId, from: Option<SnapshotId>) {
        if !self.layers.is_empty() {
            reach!("store: a snapshot begins while another is taken");
        }
        if self.pass.is_some() {
            reach!("store: a snapshot begins during a pass");
        }
        let left_out = planted(Bug::SnapshotLeavesOut);
        let overlay = if left_out { Overlay::default() } else { std::mem::take(&mut self.overlay) };
        let volumes = self.config.volumes.clone();
        self.layers.push_back(Layer { snapshot, to, overlay, volumes, from });
    }

    /// An entry that drops one is applied.
    pub(crate) fn drop_snapshot(&mut self, id: SnapshotId) {
        let Some(snapshot) = self.snapshots.remove(&id) else {
            reach!("store: a snapshot that does not exist is dropped");
            return;
        };
        match snapshot.state {
            SnapshotState::Held => {
                reach!("store: a snapshot is dropped");
                self.doomed.push(id);
            }
            SnapshotState::Taking => {
                reach!("store: a snapshot is dropped before it is taken");
            }
            SnapshotState::Missing => {
                reach!("store: a missing snapshot is dropped");
            }
        }
        // Its space is wanted back.
        self.destage_forced = true;
        self.outputs.push_back(Output::SnapshotsChanged);
    }

    /// Issues the snapshot: the volumes durably hold exactly the content of the log up to its
    /// entry. Returns whether anything was issued.
    pub(crate) fn issue_snapshot(&mut self, id: SnapshotId) -> bool {
        if self.layers.front().is_some_and(|layer| layer.snapshot == id && layer.from.is_some()) {
            self.issue_restore();
            return true;
        }
        let taking = self.snapshots.get(&id).is_some_and(|snapshot| snapshot.state == SnapshotState::Taking);
        let Some(layer) = self.layers.front().filter(|layer| layer.snapshot == id && taking) else {
            return false;
        };
        let volumes = layer.volumes.clone();
        let op = self.start(Op::SnapshotTake(id));
        self.outputs.push_back(Output::SnapshotTake { op, snapshot: id, volumes });
        true
    }

    pub(crate) fn snapshot_taken(&mut self, id: SnapshotId, result: Result<(), IoFailure>) {
        match self.snapshots.get_mut(&id) {
            Some(snapshot) if result.is_ok() => {
                reach!("store: a snapshot is taken");
                snapshot.state = SnapshotState::Held;
            }
            Some(snapshot) => {
                reach!("store: a snapshot could not be taken");
                snapshot.state = SnapshotState::Missing;
            }
            None => {
                reach!("store: a snapshot is taken after it was dropped");
                self.doomed.push(id);
            }
        }
        self.snapshot_stage_ended();
    }

    /// The layer of a snapshot is in the volumes, and the superblock says so.
    pub(crate) fn layer_done(&mut self, id: SnapshotId) {
        if self.layers.front().is_some_and(|layer| layer.snapshot == id) {
            let layer = self.layers.pop_front();
            self.outputs.push_back(Output::SnapshotsChanged);
            if layer.is_some_and(|layer| layer.from.is_some()) {
                // Applies the entries that had to wait.
                self.apply();
            }
        }
    }

    /// Returns the records of snapshots for a superblock whose checkpoint is at `to`.
    pub(crate) fn snapshot_records(&self, to: Index) -> Vec<SnapshotRecord> {
        let recorded = self
            .snapshots
            .iter()
            .filter(|(_, snapshot)| snapshot.at <= to && snapshot.state != SnapshotState::Taking);
        let record = |(id, snapshot): (&SnapshotId, &SnapshotOn)| SnapshotRecord {
            id: *id,
            held: snapshot.state == SnapshotState::Held,
            at: snapshot.at,
        };
        recorded.map(record).collect()
    }

    /// Returns the records of the snapshots that the log has where it restarts. Each tells whether
    /// the files of the snapshot are here.
    pub(crate) fn snapshots_at_restart(&self, listed: &[SnapshotId]) -> Vec<SnapshotRecord> {
        let known = |id: SnapshotId| self.snapshots.get(&id);
        let record = |&id: &SnapshotId| SnapshotRecord {
            id,
            held: known(id).is_some_and(|snapshot| snapshot.state == SnapshotState::Held),
            at: known(id).map_or(Index(0), |snapshot| snapshot.at),
        };
        listed.iter().map(record).collect()
    }

    /// The log has restarted with the list of the superblock.
    pub(crate) fn snapshots_restarted(&mut self, at: Position) {
        self.layers.clear();
        let snapshots = self.superblock.snapshots.iter().map(on_record).collect();
        let before = std::mem::replace(&mut self.snapshots, snapshots);
        let gone = before.iter().filter(|(id, snapshot)| {
            snapshot.state == SnapshotState::Held && !self.snapshots.contains_key(id)
        });
        let gone: Vec<_> = gone.map(|(id, _)| *id).collect();
        if !gone.is_empty() {
            reach!("store: the target of a copy learns that a snapshot was dropped");
        }
        if self.snapshots.values().any(|snapshot| snapshot.state == SnapshotState::Missing) {
            reach!("store: the target of a copy lacks a snapshot");
        }
        debug_assert!(self.snapshots.values().all(|snapshot| snapshot.at <= at.index));
        // No superblock names them any more.
        let doomed = std::mem::take(&mut self.doomed);
        if before != self.snapshots {
            self.outputs.push_back(Output::SnapshotsChanged);
        }
        self.remove_snapshots(doomed.into_iter().chain(gone).collect());
    }

    pub(crate) fn remove_snapshots(&mut self, snapshots: Vec<SnapshotId>) {
        for snapshot in snapshots {
            let op = self.start(Op::SnapshotDrop(snapshot));
            self.outputs.push_back(Output::SnapshotDrop { op, snapshot });
        }
    }
}

/// A snapshot as the superblock has it.
pub(crate) fn on_record(record: &SnapshotRecord) -> (SnapshotId, SnapshotOn) {
    let state = if record.held { SnapshotState::Held } else { SnapshotState::Missing };
    (record.id, SnapshotOn { at: record.at, state })
}
