//! Which snapshots there are (R17). As with sizes, an entry counts from its place in the log on,
//! and is dropped if the tail is cut.

use mainstay_codec::{Batch, EntryDesc, EntryKind};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, SNAPSHOTS_MAX, SnapshotId, reach};
use std::collections::{BTreeSet, VecDeque};

#[derive(Debug)]
pub(crate) struct Snapshots {
    /// Snapshots that exist as of the commit index.
    committed: BTreeSet<SnapshotId>,
    /// Changes by entries after the commit index, oldest first: take (true) or drop.
    ahead: VecDeque<(Index, SnapshotId, bool)>,
    /// Snapshots whose files the store holds.
    held: BTreeSet<SnapshotId>,
}

impl Snapshots {
    pub fn new(committed: Vec<SnapshotId>, ahead: Vec<(Index, SnapshotId, bool)>) -> Self {
        Self { committed: committed.into_iter().collect(), ahead: ahead.into(), held: BTreeSet::new() }
    }

    /// In ascending order.
    pub fn committed(&self) -> Vec<SnapshotId> {
        self.committed.iter().copied().collect()
    }

    /// The store holds these.
    pub fn set_held(&mut self, held: BTreeSet<SnapshotId>) {
        self.held = held;
    }

    /// Whether the volumes can be rolled back to it at the end of the noted entries.
    pub fn can_roll_back_to(&self, id: SnapshotId) -> bool {
        self.exists(id) && self.held.contains(&id)
    }

    /// Whether a batch rolls back to a snapshot that is not here.
    pub fn lacks(&self, batch: &Batch) -> bool {
        let mut rollbacks = batch.entries.iter().filter_map(EntryDesc::rollback);
        let lacks = rollbacks.any(|(to, _)| !self.held.contains(&to)) && !planted(Bug::RollbackLeftOut);
        if lacks {
            reach!("replica: a snapshot that is rolled back to is not here");
        }
        lacks
    }

    /// Whether it exists at the end of the noted entries.
    pub fn exists(&self, id: SnapshotId) -> bool {
        let newest = self.ahead.iter().rev().find(|(_, of, _)| *of == id);
        newest.map_or(self.committed.contains(&id), |(_, _, taken)| *taken)
    }

    /// Whether there may be one more.
    pub fn has_room(&self) -> bool {
        let taken = self.ahead.iter().filter(|(_, _, taken)| *taken).count();
        self.committed.len() + taken < SNAPSHOTS_MAX
    }

    /// A batch comes next in the log.
    pub fn note(&mut self, batch: &Batch) {
        for (index, entry) in (batch.first.0..).map(Index).zip(&batch.entries) {
            if let Some(id) = entry.snapshot() {
                self.ahead.push_back((index, id, entry.kind != EntryKind::DropSnapshot));
            }
        }
    }

    pub fn commit_to(&mut self, to: Index) {
        while self.ahead.front().is_some_and(|(index, ..)| *index <= to) {
            match self.ahead.pop_front() {
                Some((_, id, true)) if self.committed.len() < SNAPSHOTS_MAX => _ = self.committed.insert(id),
                Some((_, id, false)) => _ = self.committed.remove(&id),
                _ => {}
            }
        }
    }

    /// The log ends at `end` again.
    pub fn cut(&mut self, end: Index) {
        while self.ahead.back().is_some_and(|(index, ..)| *index > end) {
            self.ahead.pop_back();
        }
    }

    /// The log begins anew where there are these.
    pub fn restart(&mut self, snapshots: Vec<SnapshotId>) {
        self.ahead.clear();
        self.committed = snapshots.into_iter().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::{NewEntry, snapshot_range};
    use mainstay_types::{Chain, Epoch, ResourceId};

    fn batch(first: u64, kind: EntryKind, id: u32) -> Batch {
        let range = snapshot_range(SnapshotId(id));
        let entry = NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 };
        Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), [entry])
    }

    #[test]
    fn a_snapshot_counts_from_its_entry_on_and_goes_with_the_tail() {
        let mut snapshots = Snapshots::new(vec![SnapshotId(1)], Vec::new());
        snapshots.note(&batch(5, EntryKind::Snapshot, 2));
        snapshots.note(&batch(6, EntryKind::DropSnapshot, 1));
        assert!(snapshots.exists(SnapshotId(2)) && !snapshots.exists(SnapshotId(1)));
        assert_eq!(snapshots.committed(), [SnapshotId(1)], "nothing of it is committed");
        snapshots.commit_to(Index(5));
        snapshots.cut(Index(5));
        assert_eq!(snapshots.committed(), [SnapshotId(1), SnapshotId(2)]);
        assert!(snapshots.exists(SnapshotId(1)), "its end went with the tail");
        snapshots.note(&batch(6, EntryKind::DropSnapshot, 1));
        snapshots.commit_to(Index(6));
        assert_eq!(snapshots.committed(), [SnapshotId(2)]);
        snapshots.restart(vec![SnapshotId(7)]);
        assert_eq!(snapshots.committed(), [SnapshotId(7)]);
    }

    #[test]
    fn there_are_only_so_many() {
        let all = (1..=SNAPSHOTS_MAX as u32).map(SnapshotId).collect();
        let mut snapshots = Snapshots::new(all, Vec::new());
        assert!(!snapshots.has_room());
        // The primary takes one snapshot too many: no replica has it.
        snapshots.note(&batch(1, EntryKind::Snapshot, 1000));
        snapshots.commit_to(Index(1));
        assert!(!snapshots.committed().contains(&SnapshotId(1000)));
        snapshots.note(&batch(2, EntryKind::DropSnapshot, 1));
        snapshots.commit_to(Index(2));
        assert!(snapshots.has_room());
    }
}
