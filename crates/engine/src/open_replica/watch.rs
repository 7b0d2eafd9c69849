//! Comparison of the content that devices read with the content that the log says was written
//! there; see `EngineOptions::check_reads`.
//!
//! Known are the blocks that entries have changed since this process opened the replica. Their
//! checksums, not their bytes, are kept: about 30 bytes for each block.

use bytes::Bytes;
use mainstay_codec::{Batch, EntryDesc, EntryKind, crc32c};
use mainstay_host::CoreMessage;
use mainstay_replica::{Effect, RequestId};
use mainstay_types::{BLOCK_BYTES, Index, Range, VolumeId};
use std::collections::{HashMap, VecDeque};

static ZEROES: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// A range that an entry changes.
struct Change {
    range: Range,
    /// Checksum of each block, for a write; `None` where all blocks become zero.
    sums: Option<Vec<u32>>,
}

/// See the top of this file.
#[derive(Default)]
pub(super) struct Watch {
    /// Batches that are not committed yet, by their last entry.
    pending: VecDeque<(Index, Vec<Change>)>,
    /// Entries among these that roll back to a snapshot, of whose content nothing is known here.
    rollbacks: VecDeque<Index>,
    /// Checksum of each known block.
    blocks: HashMap<(VolumeId, u64), u32>,
    /// Reads under way, with what was known when they began.
    reads: HashMap<RequestId, (Range, Vec<Option<u32>>)>,
}

impl Watch {
    pub fn observe(&mut self, seen: CoreMessage<'_>) {
        let CoreMessage::Effect(effect) = seen else { return };
        match effect {
            Effect::Append(batch) => self.appended(batch),
            Effect::Commit(index) => self.committed(*index),
            Effect::Cut(to) => {
                self.pending.retain(|(last, _)| *last <= to.index);
                self.rollbacks.retain(|last| *last <= to.index);
            }
            Effect::Restart { .. } => {
                self.pending.clear();
                self.rollbacks.clear();
                self.blocks.clear();
            }
            Effect::Read { id, range } => {
                let known = self.known(*range);
                self.reads.insert(*id, (*range, known));
            }
            _ => {}
        }
    }

    /// The answer to a request of a device.
    ///
    /// # Panics
    /// When it is not what the log says.
    pub fn answered(&mut self, id: RequestId, pieces: Option<&[Bytes]>) {
        let (Some((range, before)), Some(pieces)) = (self.reads.remove(&id), pieces) else { return };
        // Pieces are whole blocks.
        let blocks = pieces.iter().flat_map(|piece| piece.chunks(BLOCK_BYTES as usize));
        let now = self.known(range);
        for (((block, content), before), now) in (range.first_block()..).zip(blocks).zip(before).zip(now) {
            // A read may see a change that came meanwhile, or not.
            if let Some(expected) = before.filter(|_| before == now) {
                let found = crc32c(content);
                assert!(
                    found == expected,
                    "block {block} of volume {} was read with checksum {found:08x}, and the log says {expected:08x}; \
                     part of a read of {} bytes at {}",
                    range.volume,
                    range.len,
                    range.offset
                );
            }
        }
    }

    fn appended(&mut self, batch: &Batch) {
        let changes = batch.entries.iter().filter(|entry| entry.kind.changes_blocks()).map(change);
        if batch.entries.iter().any(|entry| entry.kind == EntryKind::Rollback) {
            self.rollbacks.push_back(batch.last());
        }
        self.pending.push_back((batch.last(), changes.collect()));
    }

    fn committed(&mut self, index: Index) {
        while self.pending.front().is_some_and(|(last, _)| *last <= index) {
            let (last, changes) = self.pending.pop_front().unwrap_or_default();
            for Change { range, sums } in changes {
                let zero = crc32c(&ZEROES);
                for (at, block) in (range.first_block()..range.end_block()).enumerate() {
                    let sum = sums.as_ref().map_or(zero, |sums| sums[at]);
                    self.blocks.insert((range.volume, block), sum);
                }
            }
            // It is the last entry of its batch.
            if self.rollbacks.front().is_some_and(|rollback| *rollback <= last) {
                self.rollbacks.pop_front();
                self.blocks.clear();
            }
        }
    }

    fn known(&self, range: Range) -> Vec<Option<u32>> {
        let blocks = range.first_block()..range.end_block();
        blocks.map(|block| self.blocks.get(&(range.volume, block)).copied()).collect()
    }
}

fn change(entry: &EntryDesc) -> Change {
    let sums = entry.payload.chunks(BLOCK_BYTES as usize).map(crc32c);
    Change { range: entry.range, sums: (entry.kind == EntryKind::Write).then(|| sums.collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_codec::{NewEntry, rollback_range};
    use mainstay_types::{Chain, Epoch, Position, ResourceId, SnapshotId};
    use std::sync::Arc;

    const RANGE: Range = Range { volume: VolumeId(0), offset: 2 * BLOCK_BYTES, len: BLOCK_BYTES };

    fn block(fill: u8) -> Bytes {
        vec![fill; BLOCK_BYTES as usize].into()
    }

    fn append(watch: &mut Watch, index: u64, kind: EntryKind, payload: Bytes) {
        append_to(watch, index, kind, RANGE, payload);
    }

    fn append_to(watch: &mut Watch, index: u64, kind: EntryKind, range: Range, payload: Bytes) {
        let entry = NewEntry { kind, range, payload, session: 0, request: 0 };
        let batch =
            Batch::seal(ResourceId(1), Epoch(1), Index(index), Chain(0), Index(index - 1), vec![entry]);
        watch.observe(CoreMessage::Effect(&Effect::Append(Arc::new(batch))));
    }

    fn commit(watch: &mut Watch, index: u64) {
        watch.observe(CoreMessage::Effect(&Effect::Commit(Index(index))));
    }

    fn read(watch: &mut Watch, during: impl FnOnce(&mut Watch), content: Bytes) {
        watch.observe(CoreMessage::Effect(&Effect::Read { id: RequestId(1), range: RANGE }));
        during(watch);
        watch.answered(RequestId(1), Some(&[content]));
    }

    #[test]
    fn committed_content_may_be_read_and_cut_content_is_forgotten() {
        let mut watch = Watch::default();
        read(&mut watch, |_| (), block(9));
        append(&mut watch, 1, EntryKind::Write, block(1));
        append(&mut watch, 2, EntryKind::Write, block(2));
        commit(&mut watch, 1);
        read(&mut watch, |_| (), block(1));
        read(&mut watch, |watch| commit(watch, 2), block(1));
        read(&mut watch, |_| (), block(2));
        append(&mut watch, 3, EntryKind::Discard, Bytes::new());
        append(&mut watch, 4, EntryKind::Write, block(4));
        watch.observe(CoreMessage::Effect(&Effect::Cut(Position { epoch: Epoch(1), index: Index(3) })));
        commit(&mut watch, 4);
        read(&mut watch, |_| (), block(0));
    }

    #[test]
    fn an_entry_that_changes_nothing_is_no_zeroes() {
        let mut watch = Watch::default();
        append(&mut watch, 1, EntryKind::Write, block(1));
        let range = Range { volume: VolumeId(0), offset: 0, len: 16 * BLOCK_BYTES };
        append_to(&mut watch, 2, EntryKind::Scrub, range, Bytes::new());
        commit(&mut watch, 2);
        read(&mut watch, |_| (), block(1));
    }

    #[test]
    fn after_a_rollback_nothing_is_known_until_it_is_written() {
        let mut watch = Watch::default();
        append(&mut watch, 1, EntryKind::Write, block(1));
        let entry = |kind, range, payload| NewEntry { kind, range, payload, session: 0, request: 0 };
        let back = rollback_range(SnapshotId(1), SnapshotId(2));
        let entries =
            vec![entry(EntryKind::Write, RANGE, block(2)), entry(EntryKind::Rollback, back, Bytes::new())];
        let batch = Batch::seal(ResourceId(1), Epoch(1), Index(2), Chain(0), Index(1), entries);
        watch.observe(CoreMessage::Effect(&Effect::Append(Arc::new(batch))));
        read(&mut watch, |watch| commit(watch, 3), block(9));
        read(&mut watch, |_| (), block(8));
        append(&mut watch, 4, EntryKind::Write, block(4));
        commit(&mut watch, 4);
        read(&mut watch, |_| (), block(4));
    }

    #[test]
    #[should_panic(expected = "and the log says")]
    fn a_read_of_older_content_is_noticed() {
        let mut watch = Watch::default();
        append(&mut watch, 1, EntryKind::Write, block(1));
        append(&mut watch, 2, EntryKind::Write, block(2));
        commit(&mut watch, 2);
        read(&mut watch, |_| (), block(1));
    }
}
