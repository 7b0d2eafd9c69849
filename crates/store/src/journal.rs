//! The journal as a ring: where batches lie, where the next one goes, which of them are in memory.
//!
//! Batches lie in log order around the ring and never wrap: one that does not fit before the end goes
//! to offset 0. *Live* batches are those after the checkpoint; they are never overwritten. Older ones
//! stay, for catch-up, until their space is needed.

use mainstay_codec::Batch;
use mainstay_types::{Chain, Epoch, Index, Position};
use std::collections::VecDeque;
use std::sync::Arc;

/// A batch that has a place in the ring.
#[derive(Clone, Debug)]
pub struct Placed {
    pub first: Index,
    pub last: Index,
    pub epoch: Epoch,
    /// Chain after this batch.
    pub chain: Chain,
    pub offset: u64,
    /// Header block and payload, in bytes.
    pub len: u64,
    /// The batch itself while memory lasts.
    pub batch: Option<Arc<Batch>>,
}

#[derive(Debug)]
pub struct Journal {
    size: u64,
    placed: VecDeque<Placed>,
    /// Where the next batch goes if it fits before the end.
    head: u64,
    /// Batches after this index are live.
    checkpoint: Index,
    memory_bytes: u64,
    /// No batch before this index is in memory.
    memory_from: Index,
}

impl Journal {
    pub fn new(size: u64, head: u64, checkpoint: Index) -> Self {
        Self { size, placed: VecDeque::new(), head, checkpoint, memory_bytes: 0, memory_from: Index(0) }
    }

    /// Position in `placed` of the first live batch.
    fn live(&self) -> usize {
        self.placed.partition_point(|p| p.last <= self.checkpoint)
    }

    /// The free stretches of the ring, as offset and length: first the one at the head.
    fn free(&self) -> [(u64, u64); 2] {
        let Some(tail) = self.placed.get(self.live()).map(|p| p.offset) else {
            // Nothing is live: the whole ring is free. Recovery looks at the head and at the start.
            return [(self.head, self.size - self.head), (0, self.size)];
        };
        if self.head > tail {
            [(self.head, self.size - self.head), (0, tail)]
        } else {
            [(self.head, tail - self.head), (0, 0)]
        }
    }

    /// Largest batch that has a place now.
    pub fn free_bytes(&self) -> u64 {
        let [at_head, at_start] = self.free();
        at_head.1.max(at_start.1)
    }

    /// Bytes of the ring that are not free, as a measure of how urgent a checkpoint is.
    pub fn live_bytes(&self) -> u64 {
        let Some(tail) = self.placed.get(self.live()).map(|p| p.offset) else { return 0 };
        if self.head > tail { self.head - tail } else { self.size - tail + self.head }
    }

    /// Where a batch of `len` bytes would go.
    pub fn place_for(&self, len: u64) -> Option<u64> {
        self.free().into_iter().find(|&(_, free)| free >= len).map(|(offset, _)| offset)
    }

    /// Gives the batch the place that [`Journal::place_for`] found. Retained batches there are forgotten
    /// before their bytes are overwritten.
    pub fn place(&mut self, offset: u64, batch: Arc<Batch>) {
        let len = batch.journal_len();
        let skipped_from = if offset == self.head { self.size } else { self.head };
        while let Some(front) = self.placed.front() {
            let overlaps = front.offset < offset + len && offset < front.offset + front.len;
            if front.last > self.checkpoint || !(overlaps || front.offset >= skipped_from) {
                break;
            }
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
            batch: Some(batch),
        });
    }

    /// Adds a batch that recovery found.
    pub fn push(&mut self, placed: Placed) {
        self.head = placed.offset + placed.len;
        self.placed.push_back(placed);
    }

    fn forget_front(&mut self) {
        if let Some(batch) = self.placed.pop_front().and_then(|p| p.batch) {
            self.memory_bytes -= batch.payload_len;
        }
    }

    /// Forgets every batch after `end`.
    pub fn truncate(&mut self, end: Index) {
        while self.placed.back().is_some_and(|p| p.last > end) {
            // Proof: just seen.
            let Some(gone) = self.placed.pop_back() else { break };
            self.head = gone.offset;
            if let Some(batch) = gone.batch {
                self.memory_bytes -= batch.payload_len;
            }
        }
        // The batch that was cut may have been the one that went to offset 0; the next one continues
        // behind the last that is left, where recovery looks first.
        if let Some(last) = self.placed.back() {
            self.head = last.offset + last.len;
        }
    }

    /// Empties the ring; the log goes on after `checkpoint`, at offset 0.
    pub fn restart(&mut self, checkpoint: Index) {
        *self = Self::new(self.size, 0, checkpoint);
    }

    /// Everything up to `index` is in the backing store: its space may be used again.
    pub fn trim(&mut self, index: Index) {
        self.checkpoint = index;
    }

    /// The batch that holds `index`.
    pub fn find(&self, index: Index) -> Option<&Placed> {
        let at = self.placed.partition_point(|p| p.last < index);
        self.placed.get(at).filter(|p| p.first <= index)
    }

    /// Batches from the one that holds `index` on.
    pub fn from(&self, index: Index) -> impl Iterator<Item = &Placed> {
        let at = self.placed.partition_point(|p| p.last < index);
        self.placed.range(at..)
    }

    /// End of the last batch that ends at or before `index`, with the chain there.
    pub fn end_at(&self, index: Index) -> Option<(Position, Chain)> {
        let at = self.placed.partition_point(|p| p.last <= index);
        let placed = self.placed.get(at.checked_sub(1)?)?;
        Some((Position { epoch: placed.epoch, index: placed.last }, placed.chain))
    }

    /// Where the batch after `index` is, or would go.
    pub fn offset_after(&self, index: Index) -> u64 {
        let at = self.placed.partition_point(|p| p.last <= index);
        self.placed.get(at).map_or(self.head, |p| p.offset)
    }

    /// Drops the oldest batch from memory if more than `max` bytes are held; never one after `durable`,
    /// for that is still being written. Returns what it dropped.
    pub fn evict(&mut self, max: u64, durable: Index) -> Option<Index> {
        while self.memory_bytes > max {
            let at = self.placed.partition_point(|p| p.first < self.memory_from);
            let placed = self.placed.get_mut(at).filter(|p| p.last <= durable)?;
            self.memory_from = placed.last.next();
            if let Some(batch) = placed.batch.take() {
                self.memory_bytes -= batch.payload_len;
                return Some(batch.first);
            }
        }
        None
    }
}
