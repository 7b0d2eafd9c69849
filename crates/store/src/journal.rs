//! The journal as a ring: where batches lie, where the next one goes, which of them are in memory.
//!
//! Batches lie in log order around the ring and never wrap: one that does not fit before the end
//! goes to offset 0. *Live* batches are those after the checkpoint; they are never overwritten.
//! Older ones stay, for catch-up, until their space is needed.

use crate::Payload;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Batch, EntryDesc, EntryKind};
use mainstay_types::{Chain, Epoch, Index, Position, Range, reach};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where the bytes of a placed batch are.
#[derive(Clone, Debug)]
pub enum Held {
    /// In memory, while it lasts.
    Memory(Arc<Batch>),
    /// Only in the ring. Content that is read back is checked against these sums, in order.
    Ring(Sums),
    /// The header block in the ring, the payloads in these ranges of the volumes.
    Volume(Box<[Range]>),
}

/// A batch with one write needs no list.
#[derive(Clone, Debug)]
pub enum Sums {
    One(Sum),
    More(Box<[Sum]>),
}

impl FromIterator<Sum> for Sums {
    fn from_iter<I: IntoIterator<Item = Sum>>(sums: I) -> Self {
        let mut sums = sums.into_iter();
        match (sums.next(), sums.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => Self::More(first.into_iter().chain(second).chain(sums).collect()),
        }
    }
}

impl std::ops::Deref for Sums {
    type Target = [Sum];

    fn deref(&self) -> &[Sum] {
        match self {
            Self::One(sum) => std::slice::from_ref(sum),
            Self::More(sums) => sums,
        }
    }
}

/// The payload of one entry within its batch. 12 bytes for each write that the ring retains, and a
/// write takes at least a block of it: at most 3 MiB for each GiB of journal (R18).
#[derive(Clone, Copy, Debug)]
pub struct Sum {
    /// Where it starts in the payload area, in bytes.
    at: u32,
    len: u32,
    crc: u32,
}

impl Held {
    /// Describes a batch that is not kept in memory: the place and the checksum of each payload.
    pub fn without_memory(batch: &Batch, in_volume: bool) -> Self {
        let writes = batch.entries.iter().filter(|entry| entry.kind == EntryKind::Write);
        if in_volume {
            return Self::Volume(writes.map(|entry| entry.range).collect());
        }
        // Proof: BATCH_BYTES_MAX is far below 4 GiB, and both were checked when the batch was made.
        let sum = |entry: &EntryDesc| Sum {
            at: entry.payload_at as u32,
            len: entry.range.len as u32,
            crc: entry.payload_crc,
        };
        Self::Ring(writes.map(sum).collect())
    }
}

/// A batch that has a place in the ring.
#[derive(Clone, Debug)]
pub struct Placed {
    pub first: Index,
    pub last: Index,
    pub epoch: Epoch,
    /// Chain after this batch.
    pub chain: Chain,
    pub offset: u64,
    /// Header block and payload, in bytes; also if the payload is in the volumes.
    pub len: u64,
    /// The payload is in the volumes, see `fill.rs`.
    pub in_volume: bool,
    pub held: Held,
}

impl Placed {
    fn memory_bytes(&self) -> u64 {
        match &self.held {
            Held::Memory(batch) => batch.payload_len,
            Held::Ring(_) | Held::Volume(_) => 0,
        }
    }
}

#[derive(Debug)]
pub struct Journal {
    size: u64,
    placed: VecDeque<Placed>,
    /// Where the next batch goes if it fits before the end.
    head: u64,
    /// Where the first one after the checkpoint goes, if it fits there: where recovery looks first.
    start: u64,
    /// Batches after this index are live.
    checkpoint: Index,
    /// Position in `placed` of the first live batch. Kept, because room is asked for with every
    /// step of every write.
    live: usize,
    memory_bytes: u64,
    /// No batch before this index is in memory.
    memory_from: Index,
}

impl Journal {
    pub fn new(size: u64, head: u64, checkpoint: Index) -> Self {
        let placed = VecDeque::new();
        Self { size, placed, head, start: head, checkpoint, live: 0, memory_bytes: 0, memory_from: Index(0) }
    }

    /// Where the first live batch lies.
    fn tail(&self) -> Option<u64> {
        debug_assert_eq!(self.live, self.placed.partition_point(|p| p.last <= self.checkpoint));
        self.placed.get(self.live).map(|p| p.offset)
    }

    /// The free stretches of the ring, as offset and length: first the one at the head.
    fn free(&self) -> [(u64, u64); 2] {
        let Some(tail) = self.tail() else {
            // Nothing is live: the whole ring is free. Recovery looks at the head and at the start.
            return [(self.head, self.size - self.head), (0, self.size)];
        };
        if self.head > tail {
            [(self.head, self.size - self.head), (0, tail)]
        } else {
            [(self.head, tail - self.head), (0, 0)]
        }
    }

    /// Number of bytes for which there is a place now, in batches of any size and any order. When
    /// nothing is live the whole ring is free, but only for the first batch: if that one goes to
    /// the head, the part at the start ends there.
    pub fn free_bytes(&self) -> u64 {
        let [at_head, at_start] = self.free();
        at_head.1.max(at_start.1.min(self.head))
    }

    /// Bytes of the ring that are not free, as a measure of how urgent a checkpoint is.
    pub fn live_bytes(&self) -> u64 {
        let Some(tail) = self.tail() else { return 0 };
        if self.head > tail { self.head - tail } else { self.size - tail + self.head }
    }

    /// Where a batch of `len` bytes would go.
    pub fn place_for(&self, len: u64) -> Option<u64> {
        self.free().into_iter().find(|&(_, free)| free >= len).map(|(offset, _)| offset)
    }

    /// Gives the batch the place that [`Journal::place_for`] found. Retained batches there are
    /// forgotten before their bytes are overwritten.
    pub fn place(&mut self, offset: u64, batch: Arc<Batch>) {
        let len = batch.journal_len();
        if offset != self.head {
            reach!("store: the journal wraps");
        }
        let skipped_from = if offset == self.head { self.size } else { self.head };
        while let Some(front) = self.placed.front() {
            let overlaps = front.offset < offset + len && offset < front.offset + front.len;
            if front.last > self.checkpoint || !(overlaps || front.offset >= skipped_from) {
                break;
            }
            reach!("store: a retained batch is overwritten");
            self.forget_front();
        }
        self.memory_bytes += batch.payload_len;
        self.push(Placed {
            first: batch.first,
            last: batch.last(),
            epoch: batch.epoch,
            chain: batch.chain,
            offset,
            len,
            in_volume: false,
            held: Held::Memory(batch),
        });
    }

    /// Notes where the payload of the batch with this first entry goes.
    pub fn in_volume(&mut self, first: Index, in_volume: bool) {
        let at = self.position(first);
        if let Some(placed) = self.placed.get_mut(at).filter(|placed| placed.first == first) {
            placed.in_volume = in_volume;
        }
    }

    /// The batch with this first entry, if it is in memory.
    pub fn in_memory(&self, first: Index) -> Option<Arc<Batch>> {
        match &self.find(first)?.held {
            Held::Memory(batch) if batch.first == first => Some(batch.clone()),
            _ => None,
        }
    }

    /// Forgets a batch behind the checkpoint, and so all before it.
    pub fn forget(&mut self, index: Index) {
        while self.placed.front().is_some_and(|front| front.first <= index && front.last <= self.checkpoint) {
            self.forget_front();
        }
    }

    /// Adds a batch that recovery found.
    pub fn push(&mut self, placed: Placed) {
        self.head = placed.offset + placed.len;
        // A batch before the checkpoint is not live. Recovery adds none, because it begins there.
        self.live += usize::from(placed.last <= self.checkpoint);
        self.placed.push_back(placed);
    }

    fn forget_front(&mut self) {
        if let Some(gone) = self.placed.pop_front() {
            self.memory_bytes -= gone.memory_bytes();
            self.live = self.live.saturating_sub(1);
        }
    }

    /// Forgets every batch after `end`.
    pub fn truncate(&mut self, end: Index) {
        while self.placed.back().is_some_and(|p| p.last > end) {
            // Proof: just seen.
            reach!("store: a placed batch is cut");
            let Some(gone) = self.placed.pop_back() else { break };
            self.memory_bytes -= gone.memory_bytes();
        }
        self.live = self.live.min(self.placed.len());
        self.memory_from = self.memory_from.min(end.next());
        // The batch that was cut may have been the one that went to offset 0. So the next one
        // continues behind the last that is left, or where the checkpoint says. Recovery takes a
        // batch in another place for damage.
        self.head = self.placed.back().map_or(self.start, |last| last.offset + last.len);
    }

    /// Empties the ring; the log goes on after `checkpoint`, at offset 0.
    pub fn restart(&mut self, checkpoint: Index) {
        *self = Self::new(self.size, 0, checkpoint);
    }

    /// Everything up to `index` is in the backing store: its space may be used again.
    pub fn trim(&mut self, index: Index) {
        if index > self.checkpoint {
            self.start = self.offset_after(index);
        }
        self.checkpoint = index;
        self.live = self.placed.partition_point(|p| p.last <= index);
    }

    /// Position in `placed` of the first batch that ends at or after `index`; the number of batches
    /// if there is none.
    ///
    /// Batches are about equally long. So this looks first where the index would be if all were
    /// equally long, and goes from there in steps that double. A binary search would fetch a dozen
    /// places of a large ring that are in no processor cache.
    fn position(&self, index: Index) -> usize {
        let count = self.placed.len();
        let (Some(front), Some(back)) = (self.placed.front(), self.placed.back()) else { return 0 };
        if index <= front.last {
            return 0;
        }
        if index > back.last {
            return count;
        }
        let entries = u128::from(back.last.0 - front.first.0 + 1);
        let guess = (u128::from(index.0 - front.first.0) * count as u128 / entries) as usize;
        let ends_before = |at: usize| self.placed[at].last < index;
        // Whatever is at `low` ends before, whatever is at `high` does not.
        let (mut low, mut high) = (0, count - 1);
        let (mut at, mut step) = (guess.min(count - 1), 1);
        while low < at && at < high {
            if ends_before(at) {
                low = at;
                at += step;
            } else {
                high = at;
                at = at.saturating_sub(step);
            }
            step *= 2;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if ends_before(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    /// The batch that holds `index`.
    pub fn find(&self, index: Index) -> Option<&Placed> {
        let at = self.position(index);
        self.placed.get(at).filter(|p| p.first <= index)
    }

    /// The payload at this offset of the journal if that is one of the batch of `index`, and the
    /// batch is no longer in memory.
    pub fn payload(&self, index: Index, offset: u64) -> Option<Payload> {
        let placed = self.find(index)?;
        let Held::Ring(sums) = &placed.held else { return None };
        let start = placed.offset + HEADER_BLOCK_BYTES as u64;
        let at = offset.checked_sub(start)?;
        let sum = sums.get(sums.partition_point(|sum| u64::from(sum.at) + u64::from(sum.len) <= at))?;
        Some(Payload { index, offset: start + u64::from(sum.at), len: sum.len.into(), crc: sum.crc })
    }

    /// Batches from the one that holds `index` on.
    pub fn from(&self, index: Index) -> impl Iterator<Item = &Placed> {
        self.placed.range(self.position(index)..)
    }

    /// End of the last batch that ends at or before `index`, with the chain there.
    pub fn end_at(&self, index: Index) -> Option<(Position, Chain)> {
        let at = self.position(index.next());
        let placed = self.placed.get(at.checked_sub(1)?)?;
        Some((Position { epoch: placed.epoch, index: placed.last }, placed.chain))
    }

    /// The last of the oldest live batches that together take at most `bytes`, at least one batch.
    /// `None` when nothing is live.
    pub fn end_of_part(&self, bytes: u64) -> Option<Index> {
        let mut left = bytes;
        let fits = |placed: &&Placed| {
            let fits = placed.len <= left;
            left = left.saturating_sub(placed.len);
            fits
        };
        let live = self.placed.range(self.live..);
        let last = live.take_while(fits).last().or_else(|| self.placed.get(self.live));
        last.map(|placed| placed.last)
    }

    /// Where the last batch that ends at or before `index` ends. The next one is there or, if it
    /// did not fit there, at the start. The present place of the next batch does not count: it may
    /// be cut, and the batch that comes instead may fit.
    pub fn offset_after(&self, index: Index) -> u64 {
        let at = self.position(index.next());
        let before = at.checked_sub(1).and_then(|at| self.placed.get(at));
        before.map_or(self.head, |placed| placed.offset + placed.len)
    }

    /// Drops the oldest batch from memory if more than `max` bytes are held. It drops no batch
    /// after `durable`, because that is still being written. Returns the first index of the dropped
    /// batch.
    pub fn evict(&mut self, max: u64, durable: Index) -> Option<Index> {
        while self.memory_bytes > max {
            let at = self.position(self.memory_from);
            let placed = self.placed.get_mut(at).filter(|p| p.last <= durable)?;
            self.memory_from = placed.last.next();
            if let Held::Memory(batch) = &placed.held {
                self.memory_bytes -= batch.payload_len;
                placed.held = Held::without_memory(batch, placed.in_volume);
                return Some(placed.first);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::NewEntry;
    use mainstay_types::{BLOCK_BYTES, Range, ResourceId, VolumeId};
    use proptest::prelude::*;

    /// A batch of `blocks` journal blocks, its header among them.
    fn batch(index: u64, blocks: u64) -> Arc<Batch> {
        let len = (blocks - 1) * BLOCK_BYTES;
        let range = Range { volume: VolumeId(0), offset: 0, len: len.max(BLOCK_BYTES) };
        let kind = if len == 0 { EntryKind::Discard } else { EntryKind::Write };
        let payload = Bytes::from(vec![0; len as usize]);
        let entry = NewEntry { kind, range, payload, session: 0, request: 0 };
        let batch = Batch::seal(ResourceId(1), Epoch(1), Index(index), Chain(0), Index(0), vec![entry]);
        Arc::new(batch)
    }

    proptest! {
        /// In whatever state the ring is, a batch for which there is room has a place without
        /// another trim. (Once an empty ring had all its bytes as room, wherever the head was. Then
        /// the second of two batches could find no place.)
        #[test]
        fn a_batch_with_room_has_a_place_in_the_journal(
            ring in 8u64..40,
            steps in prop::collection::vec((1u64..12, prop::bool::weighted(0.3), 0u64..8), 1..60),
        ) {
            let mut journal = Journal::new(ring * BLOCK_BYTES, 0, Index(0));
            let mut last = 0;
            let mut room = journal.free_bytes();
            for (blocks, trim, behind) in steps {
                let len = blocks * BLOCK_BYTES;
                if len <= room {
                    last += 1;
                    let offset = journal.place_for(len);
                    prop_assert!(offset.is_some(), "{blocks} blocks of {room} bytes in {:?}", journal.free());
                    journal.place(offset.unwrap_or_default(), batch(last, blocks));
                    // Promised room stays promised.
                    prop_assert!(journal.free_bytes() >= room - len, "{:?}", journal.free());
                    room -= len;
                }
                if trim {
                    journal.trim(Index(last.saturating_sub(behind)).max(journal.checkpoint));
                    prop_assert!(journal.free_bytes() >= room);
                    room = journal.free_bytes();
                }
                if journal.live_bytes() == 0 {
                    prop_assert!(journal.free_bytes() >= ring / 2 * BLOCK_BYTES);
                }
            }
        }

        /// Against a search that looks at every batch.
        #[test]
        fn a_batch_is_found_by_its_index(
            lengths in prop::collection::vec(prop_oneof![Just(1u64), 1u64..4, 1u64..90], 0..60),
            first in 1u64..1000,
        ) {
            let mut journal = Journal::new(1 << 20, 0, Index(0));
            let mut next = first;
            for len in lengths {
                let range = (Index(next), Index(next + len - 1));
                journal.push(Placed {
                    first: range.0,
                    last: range.1,
                    epoch: Epoch(1),
                    chain: Chain(next),
                    offset: 0,
                    len: 0,
                    in_volume: false,
                    held: Held::Ring(Sums::More(Box::default())),
                });
                next += len;
            }
            for index in (first.saturating_sub(2)..next + 2).map(Index) {
                let slow = journal.placed.iter().position(|p| p.last >= index).unwrap_or(journal.placed.len());
                prop_assert_eq!(journal.position(index), slow, "{:?}", index);
            }
        }
    }
}
