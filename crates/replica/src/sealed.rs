//! The primary's account of the batches that it has sealed in its epoch: their bytes and their
//! times. It tells how far a peer is behind, and how much the journals still have to write.

use mainstay_types::{Index, Mode, Time};
use std::collections::VecDeque;

/// Batches that are remembered; more in mode A, where it matters how many bytes a peer lags.
const BATCHES_MAX: usize = 4096;
const BATCHES_MAX_IN_A: usize = 16_384;

#[derive(Clone, Debug, Default)]
pub(crate) struct Sealed {
    /// Journal bytes of this epoch.
    total: u64,
    /// The newest batches, oldest first. The first one marks the start of the epoch, or the end of
    /// the batches that are forgotten.
    batches: VecDeque<SealedBatch>,
}

#[derive(Clone, Copy, Debug)]
struct SealedBatch {
    /// Its last entry.
    last: Index,
    /// Journal bytes sealed until then.
    total: u64,
    at: Time,
}

/// How far a peer is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lag {
    pub entries: u64,
    /// In the journal.
    pub bytes: u64,
    /// When the oldest of them was sealed.
    pub since: Option<Time>,
    /// The peer lags further than the primary keeps account of: the other fields are lower bounds.
    pub more: bool,
}

impl Sealed {
    /// Begins at the end of the log, where an epoch starts.
    pub fn begin(&mut self, end: Index, now: Time) {
        self.total = 0;
        self.batches.clear();
        self.batches.push_back(SealedBatch { last: end, total: 0, at: now });
    }

    pub fn push(&mut self, last: Index, bytes: u64, now: Time, mode: Mode) {
        self.total += bytes;
        let most = if mode == Mode::A { BATCHES_MAX_IN_A } else { BATCHES_MAX };
        while self.batches.len() >= most {
            self.batches.pop_front();
        }
        self.batches.push_back(SealedBatch { last, total: self.total, at: now });
    }

    /// Bytes between `durable` and the end of the log, if the account reaches back that far.
    pub fn lag_bytes(&self, durable: Index, end: Index) -> Option<u64> {
        if durable >= end {
            return Some(0);
        }
        let found = self.batches.binary_search_by_key(&durable, |batch| batch.last).ok()?;
        Some(self.total - self.batches[found].total)
    }

    /// Lag of a peer that holds everything up to `durable`.
    pub fn lag(&self, durable: Index, end: Index) -> Lag {
        let entries = end.0.saturating_sub(durable.0);
        if entries == 0 {
            return Lag::default();
        }
        let next = self.batches.partition_point(|batch| batch.last <= durable);
        let more = next == 0;
        let before = self.batches.get(next.saturating_sub(1)).map_or(0, |batch| batch.total);
        let since = self.batches.get(next).map(|batch| batch.at);
        Lag { entries, bytes: self.total - before, since, more }
    }

    /// Bytes of the batches that end after `durable`. `None` if there are more than `batches_max`.
    pub fn since(&self, durable: Index, batches_max: usize) -> Option<u64> {
        let after = self.batches.iter().rev().take_while(|batch| batch.last > durable);
        let count = after.take(batches_max + 1).count();
        let before = self.batches.iter().rev().nth(count).map_or(0, |batch| batch.total);
        (count <= batches_max).then_some(self.total - before)
    }

    /// Where the batch ends that has the entry after `index`, if it is remembered.
    pub fn end_after(&self, index: Index) -> Option<Index> {
        let at = self.batches.partition_point(|batch| batch.last <= index);
        self.batches.get(at).map(|batch| batch.last)
    }
}
