//! Rolling back to a snapshot (R17): an entry of the log from which on all volumes hold the content
//! of the snapshot again.
//!
//! ```text
//! applied ─▶ what came before is set aside as a layer ─▶ a pass writes it and ends at the entry ─▶ SnapshotRestore ─▶ recorded
//! ```
//!
//! - The entry also makes a snapshot with a number of its own: the mark. It holds the content of
//!   the volumes from the entry on. Every reader of the log sees by the mark that the rollback was
//!   done, so it is done only once.
//! - Between the entry and the superblock that records it, a volume may hold the old content, the
//!   new content or a mixture. Nothing is read from it meanwhile ([`Store::rolling_back`]). Entries
//!   that are written meanwhile are in the overlay and lie over the new content.
//! - After a crash before that superblock the entry is applied again. Committed entries are applied
//!   when the replica is opened. A superblock that was written before the pass touched a volume
//!   says that the entry is committed. So a mixture is never read.
//! - The files of the snapshot must be there until then. So an entry that drops it, and everything
//!   after that entry, is applied afterwards.
//! - Sums of blocks (`sums.rs`) are kept with a snapshot and come back with it. So a block that has
//!   rotted since is noticed after the rollback too. The sums may be a mixture while the volumes
//!   are one.
//! - A scrub reads either the old content or the new one: a pinned extent is read first, and the
//!   entry of a later scrub is applied afterwards.
//! - All extents count as changed: their versions are those of the entry.
//! - A replica that does not hold the snapshot cannot know the content of the volumes from then on.
//!   It does not take such an entry from its primary, which copies to it instead
//!   (`mainstay_replica`). If files were lost since, it may have to apply one all the same. Then it
//!   stops using its store (R13), and never goes on with other content.
//! - If the pool has no space for a rollback, it is tried again, as for a write ([`Store::retry`]).

use crate::{IoFailure, Op, Output, Store};
use mainstay_codec::{Batch, EntryKind};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, Range, SNAPSHOTS_MAX, SnapshotId, SnapshotOn, SnapshotState, VolumeId, reach};

impl Store {
    /// Whether a rollback is applied and the volumes do not hold its content yet. They must not be
    /// read then.
    #[must_use]
    pub fn rolling_back(&self) -> bool {
        self.layers.iter().any(|layer| layer.from.is_some())
    }

    /// Snapshots whose files are here: those that it may be rolled back to.
    pub fn snapshots_held(&self) -> impl Iterator<Item = SnapshotId> {
        let held = self.snapshots.iter().filter(|(_, snapshot)| snapshot.state == SnapshotState::Held);
        held.map(|(id, _)| *id)
    }

    /// Whether a batch drops the snapshot that the volumes are being rolled back to, or scrubs them
    /// meanwhile.
    pub(crate) fn waits_for_rollback(&self, batch: &Batch) -> bool {
        // Asked for every batch, and there are hardly ever layers.
        if self.layers.is_empty() {
            return false;
        }
        let needed = |id: SnapshotId| self.layers.iter().any(|layer| layer.from == Some(id));
        let drops = batch.entries.iter().filter(|entry| entry.kind == EntryKind::DropSnapshot);
        let ends = drops.filter_map(|entry| entry.snapshot()).any(needed);
        if ends {
            reach!("store: the end of a snapshot waits until the volumes are rolled back to it");
        }
        let scrubs = self.rolling_back() && batch.entries.iter().any(|entry| entry.kind == EntryKind::Scrub);
        if scrubs {
            reach!("store: a scrub waits until the volumes are rolled back");
        }
        ends || scrubs
    }

    /// Whether a rollback must wait, because it would take away the content that a scrub reads.
    pub(crate) fn restore_waits(&self) -> bool {
        let restores = self.layers.front().is_some_and(|layer| layer.from.is_some());
        let waits = restores && self.any_pinned();
        if waits {
            reach!("store: a rollback waits for a scrub");
        }
        // A page of sums that is being read would come from before.
        let reads = restores && self.reads_sums() && !planted(Bug::SumsReadAcrossRollback);
        if reads {
            reach!("store: a rollback waits for sums that are read ahead");
        }
        waits || reads
    }

    /// An entry that rolls back to the snapshot `to` is applied.
    pub(crate) fn roll_back(&mut self, at: Index, to: SnapshotId, mark: SnapshotId) {
        let known = self.snapshots.get(&to).map(|snapshot| snapshot.state);
        if known.is_none() || self.snapshots.contains_key(&mark) || self.snapshots.len() >= SNAPSHOTS_MAX {
            // The primary prevents this. Every replica leaves the entry out, at the same place.
            reach!("store: a rollback that cannot be is left out");
            return;
        }
        let whole = self.unfinished.is_none() || self.ends_copy();
        if !whole || known == Some(SnapshotState::Missing) {
            if planted(Bug::RollbackLeftOut) {
                return;
            }
            reach!("store: a replica without the snapshot cannot be rolled back");
            return self.cannot(to);
        }
        reach!("store: a rollback begins");
        self.last_snapshot = mark.max(self.last_snapshot);
        self.fills.all_changed(at);
        if !planted(Bug::RollbackNotInVersions) {
            for (n, len) in self.config.volumes.clone().into_iter().enumerate() {
                self.versions.raise_range(Range { volume: VolumeId(n as u16), offset: 0, len }, at);
            }
        }
        self.begin_layer(at, mark, Some(to));
        self.snapshots.insert(mark, SnapshotOn { at, state: SnapshotState::Taking });
        self.outputs.push_back(Output::SnapshotsChanged);
    }

    fn cannot(&mut self, to: SnapshotId) {
        self.fail(format!("the log is rolled back to snapshot {to}, which is not held here"));
    }

    /// Issues the rollback of the volumes, once all that came before the entry is in them, durably.
    pub(crate) fn issue_restore(&mut self) {
        let Some((mark, Some(from), volumes)) =
            self.layers.front().map(|layer| (layer.snapshot, layer.from, layer.volumes.clone()))
        else {
            return;
        };
        if self.snapshots.get(&from).is_none_or(|snapshot| snapshot.state != SnapshotState::Held) {
            reach!("store: a snapshot is lost before it was rolled back to");
            return self.cannot(from);
        }
        let op = self.start(Op::SnapshotRestore(mark));
        self.outputs.push_back(Output::SnapshotRestore { op, snapshot: mark, from, volumes });
    }

    pub(crate) fn snapshot_restored(&mut self, mark: SnapshotId, result: Result<(), IoFailure>) {
        match result {
            Ok(()) => {}
            Err(failure) if failure.no_space => {
                reach!("store: a rollback finds no space");
                self.restore_stalled = true;
                return;
            }
            Err(failure) => return self.fail(format!("rolling back to a snapshot failed: {failure}")),
        }
        reach!("store: the volumes are rolled back");
        self.restore_stalled = false;
        self.sums_restored();
        if let Some(snapshot) = self.snapshots.get_mut(&mark) {
            snapshot.state = SnapshotState::Held;
        } else {
            reach!("store: the mark of a rollback is dropped before it is done");
            self.doomed.push(mark);
        }
        self.snapshot_stage_ended();
    }

    pub(crate) fn retry_restore(&mut self) {
        if std::mem::take(&mut self.restore_stalled) {
            self.issue_restore();
        }
    }
}
