//! Entries that roll back to a snapshot: from there on the model holds what it held at that snapshot's entry.

use super::{Known, LogOracle};
use mainstay_codec::{Batch, EntryKind};
use mainstay_types::{Index, SNAPSHOTS_MAX, SnapshotId};

/// All of one resource.
#[derive(Debug, Default)]
pub(super) struct Rollbacks {
    /// Snapshots in the order in which they were taken, each with its entry, and the entry that dropped it.
    taken: Vec<(SnapshotId, Index, Option<Index>)>,
    /// Clients' registers are to follow.
    told: Option<Index>,
}

/// The snapshot that a batch takes, and the one that it goes back to before.
pub(super) fn takes(batch: &Batch) -> Option<(SnapshotId, Option<SnapshotId>)> {
    let last = batch.entries.last()?;
    let takes = matches!(last.kind, EntryKind::Snapshot | EntryKind::Rollback);
    takes.then(|| Some((last.snapshot()?, last.rollback().map(|(to, _)| to)))).flatten()
}

/// The snapshots that a batch drops, with their entries.
pub(super) fn drops(batch: &Batch) -> Vec<(Index, SnapshotId)> {
    let entries = (batch.first.0..).map(Index).zip(&batch.entries);
    let drops = entries.filter(|(_, entry)| entry.kind == EntryKind::DropSnapshot);
    drops.filter_map(|(index, entry)| Some((index, entry.snapshot()?))).collect()
}

impl Rollbacks {
    /// The entry is committed.
    pub fn apply(&mut self, model: &mut [Vec<Vec<(Index, u64)>>], known: &Known, index: Index) {
        for (_, id) in known.drops.iter().filter(|(at, _)| *at == index) {
            let there = self.taken.iter_mut().find(|(of, _, dropped)| of == id && dropped.is_none());
            if let Some((_, _, dropped)) = there {
                *dropped = Some(index);
            }
        }
        let Some((id, to)) = known.takes.filter(|_| known.end.index == index) else { return };
        let there = |id: SnapshotId| {
            self.taken.iter().find(|(of, _, dropped)| *of == id && dropped.is_none()).map(|(_, at, _)| *at)
        };
        let count = self.taken.iter().filter(|(.., dropped)| dropped.is_none()).count();
        if there(id).is_some() || count >= SNAPSHOTS_MAX {
            return;
        }
        if let Some(to) = to {
            let Some(at) = there(to) else { return };
            for history in model.iter_mut().flatten() {
                let after = history.partition_point(|(of, _)| *of <= at);
                let value = after.checked_sub(1).map_or(0, |at| history[at].1);
                if history.last().is_some_and(|(_, now)| *now != value) {
                    history.push((index, value));
                }
            }
            self.told = Some(index);
        }
        self.taken.push((id, index, None));
    }

    /// Clients' registers need not follow.
    pub fn forget(&mut self) {
        self.told = None;
    }

    /// The committed log ends here again.
    pub fn cut(&mut self, end: Index) {
        self.taken.retain(|(_, at, _)| *at <= end);
        for (.., dropped) in &mut self.taken {
            *dropped = dropped.filter(|at| *at <= end);
        }
    }
}

impl LogOracle {
    /// The last entry that rolled back, if clients' registers do not know of it.
    pub fn take_rolled_back(&mut self) -> Option<Index> {
        self.rollbacks.told.take()
    }
}
