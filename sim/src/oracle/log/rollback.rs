//! Entries that roll back to a snapshot. From there on the model has the content that it had at
//! that snapshot's entry.

use super::{Check, Known, LogOracle, wrong};
use mainstay_codec::{Batch, EntryKind};
use mainstay_control::origin::CONTENT;
use mainstay_types::{Incarnation, Index, NodeId, SNAPSHOTS_MAX, SnapshotId, VolumeId};

/// All of one resource.
#[derive(Debug, Default)]
pub(super) struct Rollbacks {
    /// Snapshots in the order in which they were taken, each with its entry, and the entry that
    /// dropped it.
    taken: Vec<(SnapshotId, Index, Option<Index>)>,
    /// Clients' registers are to follow.
    told: Option<Index>,
    /// Values of all blocks, by volume, in the snapshot [`CONTENT`]. `None` unless the resource was
    /// made of a snapshot of another one.
    given: Option<Vec<Vec<u64>>>,
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
            let given = self.given.as_ref().filter(|_| to == CONTENT);
            for (volume, blocks) in model.iter_mut().enumerate() {
                for (block, history) in blocks.iter_mut().enumerate() {
                    let after = history.partition_point(|(of, _)| *of <= at);
                    let then = after.checked_sub(1).map_or(0, |at| history[at].1);
                    let value = given.map_or(then, |given| value_in(given, volume, block));
                    if history.last().map_or(0, |(_, now)| *now) != value {
                        history.push((index, value));
                    }
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

/// Returns the value of a block in `given`; 0 beyond the end of a volume.
fn value_in(given: &[Vec<u64>], volume: usize, block: usize) -> u64 {
    given.get(volume).and_then(|blocks| blocks.get(block)).copied().unwrap_or(0)
}

impl LogOracle {
    /// Returns the value that every block of every volume had at the entry of this snapshot. `None`
    /// if the snapshot does not exist.
    #[must_use]
    pub fn snapshot_content(&self, snapshot: SnapshotId) -> Option<Vec<Vec<u64>>> {
        let there =
            |(id, _, dropped): &&(SnapshotId, Index, Option<Index>)| *id == snapshot && dropped.is_none();
        let (_, at, _) = self.rollbacks.taken.iter().find(there)?;
        if *at == Index(0) {
            return self.rollbacks.given.clone();
        }
        let volume = |(n, blocks): (usize, &Vec<_>)| {
            let volume = VolumeId(n as u16);
            (0..blocks.len() as u64).map(|block| self.value_at(volume, block, *at)).collect()
        };
        Some(self.model.iter().enumerate().map(volume).collect())
    }

    /// Blocks of each volume, if the resource was made of a snapshot of another one. Any of them
    /// may hold content of the other resource.
    #[must_use]
    pub fn blocks_given(&self) -> Vec<usize> {
        if self.rollbacks.given.is_none() { Vec::new() } else { self.model.iter().map(Vec::len).collect() }
    }

    /// Whether the oracle knows the content that the resource was made of.
    #[must_use]
    pub fn was_given(&self) -> bool {
        self.rollbacks.given.is_some()
    }

    /// A replica of the resource is made of a snapshot with this content.
    ///
    /// # Errors
    /// R17: another replica was made of other content.
    pub fn begin_with(&mut self, content: Vec<Vec<u64>>) -> Check {
        match &self.rollbacks.given {
            Some(given) if *given != content => {
                wrong("R17", "replicas are made of snapshots that differ".to_owned())
            }
            Some(_) => Ok(()),
            None => {
                self.rollbacks.taken.insert(0, (CONTENT, Index(0), None));
                self.rollbacks.given = Some(content);
                Ok(())
            }
        }
    }

    /// Compares the content of a replica's snapshot with the log at its entry, or with the content
    /// that the resource was made of.
    ///
    /// # Errors
    /// S4, as of a replica.
    pub fn check_snapshot(
        &self,
        (node, incarnation): (NodeId, Incarnation),
        (snapshot, at): (SnapshotId, Index),
        read: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) -> Check {
        let Some(given) = self.rollbacks.given.as_ref().filter(|_| (snapshot, at) == (CONTENT, Index(0)))
        else {
            if snapshot == SnapshotId::BEFORE_COPY {
                return self.check_kept((node, incarnation), at, read);
            }
            return self.check_replica(node, incarnation, at, false, read);
        };
        for (volume, blocks) in given.iter().enumerate() {
            for (block, value) in blocks.iter().enumerate() {
                // The block is not there, because the snapshot was taken of a smaller volume.
                let found = read(VolumeId(volume as u16), block as u64);
                if found.is_some_and(|found| found != *value) {
                    let text =
                        format!("{node} holds {found:?} in block {block} of volume {volume}, not {value}");
                    return wrong("S4", text);
                }
            }
        }
        Ok(())
    }

    /// The last entry that rolled back, if clients' registers do not know of it.
    pub fn take_rolled_back(&mut self) -> Option<Index> {
        self.rollbacks.told.take()
    }
}
