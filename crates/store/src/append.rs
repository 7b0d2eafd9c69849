//! From the queue to the overlay: batches are placed and written, several in one contiguous write,
//! become durable, and are applied once they are both committed and durable here (R7).

use crate::overlay::{Content, Run};
use crate::superblock::Job;
use crate::{Op, OpId, Output, Store};
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::frame::EPOCHS_MAX;
use mainstay_codec::{Batch, EntryDesc, EntryKind, LocalHeader, PayloadPlace};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, ClientMark, Epoch, Index, reach};
use smallvec::SmallVec;
use std::sync::Arc;

/// A journal write whose entries are not durable yet: it is in flight, or it has ended before one
/// that came first.
///
/// The writes end in any order, and become durable in the order of the log. `durable_before` of a
/// record is the end of the durable log when its write was issued. So it is true in whatever order
/// the disk works. Entries that were in flight with the record are called durable only by the
/// records of later writes.
#[derive(Debug)]
pub struct JournalInFlight {
    op: OpId,
    /// Its last entry that still counts; a cut may lower it.
    pub last: Index,
    /// In the journal.
    bytes: u64,
    ended: bool,
}

impl Store {
    /// Queues a batch for the journal. Its durability is told by [`Output::Durable`], in order. A
    /// batch for which there is no [`Store::room`] waits in the queue for a checkpoint.
    ///
    /// # Panics
    /// If the batch does not continue the log or reaches beyond a volume: both were checked when it
    /// was received or made.
    pub fn append(&mut self, batch: Arc<Batch>) {
        if self.failed {
            return;
        }
        assert!(batch.resource == self.config.resource, "batch of another resource");
        assert!(
            batch.first == self.end.index.next()
                && batch.prev_chain == self.end_chain
                && batch.epoch >= self.end.epoch,
            "batch {} of {} does not continue the log after {}",
            batch.first,
            batch.epoch,
            self.end
        );
        assert!(batch.journal_len() <= self.config.journal_bytes, "batch larger than the journal");
        for entry in &batch.entries {
            let volume = self.end_volumes.get_mut(usize::from(entry.range.volume.0));
            match (entry.kind, volume) {
                (EntryKind::Resize, Some(bytes)) => *bytes = entry.range.offset.max(*bytes),
                (EntryKind::Snapshot | EntryKind::DropSnapshot | EntryKind::Rollback, _) => {}
                (_, volume) => {
                    assert!(
                        volume.is_some_and(|bytes| entry.range.end() <= *bytes),
                        "entry beyond its volume"
                    );
                }
            }
        }
        self.end = batch.end();
        self.end_chain = batch.chain;
        if !self.restarting() {
            note_epoch(&mut self.epochs, batch.epoch, batch.last());
        }
        self.queue_bytes += batch.journal_len();
        self.pending.push_back(batch.clone());
        self.queue.push_back(batch);
    }

    /// Everything up to `index` is committed, whether or not it is here already.
    pub fn commit(&mut self, index: Index) {
        if !self.failed && index > self.commit {
            self.commit = index;
            self.apply();
        }
    }

    /// Last entry that reads see. It may be below the commit index while the volumes are rolled
    /// back.
    #[must_use]
    pub fn applied(&self) -> Index {
        self.applied
    }

    /// Everything up to here is committed and durable here, though some of it may have to wait
    /// until the volumes are rolled back. Always the end of a batch.
    pub(crate) fn known_committed(&self) -> Index {
        let to = self.commit.min(self.durable);
        let waiting = self.pending.iter().map(|batch| batch.last()).take_while(|last| *last <= to);
        waiting.last().unwrap_or(self.applied)
    }

    /// Journal bytes that may be appended now, in batches of any size, and still leave the reserve
    /// for epoch starts (R18). 0 when full.
    #[must_use]
    pub fn room(&self) -> u64 {
        if self.failed || self.runs() >= self.tuning.runs_max {
            reach!("store: no room because of a failure or too many runs");
            return 0;
        }
        let reserve = if planted(Bug::ReserveSpent) { 0 } else { self.tuning.reserve_bytes };
        let room = self.room_with_reserve().saturating_sub(reserve);
        if room == 0 {
            reach!("store: the journal is full but for the reserve");
        }
        room
    }

    /// Whether there is no room for a batch of any size.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.room() < self.batch_bytes_max()
    }

    /// Journal bytes that epoch starts may use now. A batch that is appended within this room never
    /// waits in the queue for a checkpoint.
    #[must_use]
    pub fn room_with_reserve(&self) -> u64 {
        if self.failed { 0 } else { self.journal.free_bytes().saturating_sub(self.queue_bytes) }
    }

    /// Largest batch that must find room sooner or later; less than the setting in a journal that
    /// is too small for it.
    pub(crate) fn batch_bytes_max(&self) -> u64 {
        let half = (self.config.journal_bytes / 2).saturating_sub(self.tuning.reserve_bytes);
        self.tuning.batch_bytes_max.min(half)
    }

    /// Entries after this index must not be written before the cuts and restarts that wait are
    /// durable: they would carry the old generation and be void after a crash.
    fn write_limit(&self) -> Index {
        if self.fills.any_cut() {
            // A new record could take the place of a header block that says where something is to
            // be zeroed.
            return Index(0);
        }
        let writing = self.superblock_write.as_ref().map(|write| &write.job);
        let limits = self.jobs.iter().chain(writing).filter_map(|job| match job {
            Job::Cut { to } => Some(*to),
            Job::Restart { .. } => Some(Index(0)),
            Job::Promise(_) | Job::Commit | Job::Checkpoint | Job::GiveUpKept | Job::AllowFills => None,
        });
        limits.min().unwrap_or(Index(u64::MAX))
    }

    /// Whether nothing is being written to the journal and nothing in the queue may be written now.
    pub(crate) fn journal_at_rest(&self) -> bool {
        let limit = self.write_limit();
        self.journal_writes.is_empty() && self.queue.front().is_none_or(|batch| batch.last() > limit)
    }

    /// Takes back the queued batches that are not yet submitted.
    pub(crate) fn drop_queue(&mut self) {
        for _ in self.queue.drain(..) {
            reach!("store: a queued batch is taken back");
            // The queue is the end of the pending batches.
            self.pending.pop_back();
        }
        self.queue_bytes = 0;
    }

    /// Whether a batch waits for a checkpoint.
    pub(crate) fn journal_blocked(&self) -> bool {
        self.journal_writes.is_empty()
            && self.queue.front().is_some_and(|batch| self.place_for(batch).is_none())
    }

    /// Returns the place in the ring for a batch, if there is room now. There is none while the
    /// overlay is full (R18): a journal has room for millions of discards, and a replica that is
    /// not primary does not ask for [`room`](Self::room) first. A batch that changes nothing has
    /// room even then, so that an epoch can start.
    fn place_for(&self, batch: &Batch) -> Option<u64> {
        let changes = batch.entries.iter().any(|entry| entry.kind != EntryKind::EpochStart);
        if changes && self.runs() >= self.tuning.runs_max {
            reach!("store: a batch waits because the overlay is full");
            return None;
        }
        let place = self.journal.place_for(batch.journal_len());
        if place.is_none() {
            reach!("store: a batch waits for space in the ring");
        }
        place
    }

    pub(crate) fn issue_journal_writes(&mut self) {
        while !self.queue.is_empty() {
            let Some(bytes_max) = self.next_write_bytes_max() else { return };
            if !self.issue_journal_write(bytes_max) {
                return;
            }
        }
    }

    /// Most bytes of a journal write that may begin now; one of a single batch may be larger if
    /// nothing else is in flight.
    fn next_write_bytes_max(&self) -> Option<u64> {
        if self.journal_writes.len() >= self.tuning.journal_writes_max.max(1) {
            reach!("store: as many journal writes are in flight as may be");
            return None;
        }
        let bytes: u64 = self.journal_writes.iter().map(|write| write.bytes).sum();
        self.tuning.write_bytes_max.checked_sub(bytes).filter(|left| *left > 0)
    }

    /// Whether there was something that may be written.
    fn issue_journal_write(&mut self, bytes_max: u64) -> bool {
        let limit = self.write_limit();
        let durable_before = match self.journal_writes.back() {
            Some(newest) if planted(Bug::InFlightCalledDurable) => newest.last,
            _ => self.durable,
        };
        let generation = self.superblock.generation;
        let mut local = LocalHeader { generation, durable_before, payload: PayloadPlace::Journal };
        let mut filled = None;
        let mut parts: SmallVec<[(_, Arc<Batch>); 1]> = SmallVec::new();
        let mut start = 0;
        let mut bytes = 0;
        while let Some(batch) = self.queue.front().filter(|batch| batch.last() <= limit).cloned() {
            let len = batch.journal_len();
            let Some(offset) = self.place_for(&batch) else { break };
            let fill = self.may_fill(&batch);
            if fill && !parts.is_empty() {
                // Its header block is a write of its own.
                break;
            }
            if parts.is_empty() {
                if len > bytes_max && !self.journal_writes.is_empty() {
                    reach!("store: a batch waits because too much is being written");
                    return false;
                }
                start = offset;
            } else if offset != start + bytes || bytes + len > bytes_max {
                reach!("store: a journal write ends before the queue does");
                break;
            }
            self.queue.pop_front();
            self.large_write_placed(&batch);
            if !parts.is_empty() {
                reach!("store: several batches in one journal write");
            }
            if len > self.journal.free_bytes().saturating_sub(self.tuning.reserve_bytes) {
                reach!("store: the reserve is used");
            }
            self.queue_bytes -= len;
            bytes += len;
            self.journal.place(offset, batch.clone());
            if fill {
                local.payload = PayloadPlace::Volume;
                parts.push((local, without_payload(&batch)));
                filled = Some(batch);
                break;
            }
            parts.push((local, batch));
        }
        let Some((_, last)) = parts.last() else {
            reach!("store: the queue waits for a cut, a restart or a checkpoint");
            return false;
        };
        let last = last.last();
        if !self.journal_writes.is_empty() {
            reach!("store: a journal write begins beside others");
        }
        let op = self.start(Op::JournalWrite);
        self.journal_writes.push_back(JournalInFlight { op, last, bytes, ended: false });
        if let Some(batch) = filled {
            self.fill(op, &batch);
        }
        self.outputs.push_back(Output::JournalWrite { op, offset: start, parts });
        true
    }

    /// The record whose write began as `record` is written once more, as `op`. Returns what is
    /// durable now.
    pub(crate) fn rewrite(&mut self, record: OpId, op: OpId) -> Index {
        if let Some(write) = self.journal_writes.iter_mut().find(|write| write.op == record) {
            write.op = op;
        }
        self.durable
    }

    pub(crate) fn journal_written(&mut self, op: OpId) {
        if !self.header_written(op) {
            self.record_written(op);
        }
    }

    /// All of a record is written.
    pub(crate) fn record_written(&mut self, op: OpId) {
        if let Some(write) = self.journal_writes.iter_mut().find(|write| write.op == op) {
            write.ended = true;
        }
        let (before, first) = (self.durable, self.journal_writes.front().map(|write| write.op));
        let ended =
            |write: &&JournalInFlight| write.ended || write.op < op && planted(Bug::EarlierWritesNotAwaited);
        while let Some(last) = self.journal_writes.front().filter(ended).map(|write| write.last) {
            self.journal_writes.pop_front();
            if last > self.durable {
                self.durable = last;
            } else {
                reach!("store: a journal write ends after it was cut");
            }
        }
        if first != Some(op) {
            reach!("store: a journal write ends before one that came first");
        }
        if self.durable == before {
            return;
        }
        if let Some((_, chain)) = self.journal.end_at(self.durable) {
            self.durable_chain = chain;
        }
        self.outputs.push_back(Output::Durable { index: self.durable });
        self.apply();
        self.evict();
    }

    /// Moves committed and durable entries into the overlay, in whole batches only: a commit index
    /// is always the end of a batch, because batches are acknowledged as a whole.
    pub(crate) fn apply(&mut self) {
        let committed = if planted(Bug::UncommittedApplied) { self.durable } else { self.commit };
        let to = committed.min(self.durable);
        if self.commit > self.durable {
            reach!("store: entries are committed before they are durable here");
        }
        while let Some(batch) = self.pending.front().filter(|batch| batch.last() <= to).cloned() {
            if self.waits_for_rollback(&batch) {
                return;
            }
            let Some(offset) = self.journal.find(batch.first).map(|placed| placed.offset) else {
                // A durable entry has a place. Otherwise all blocks from here on would read as they
                // were before.
                return self.fail(format!("entry {} is durable and not in the journal", batch.first));
            };
            let filled = self.apply_filled(&batch);
            for (n, entry) in batch.entries.iter().enumerate().filter(|_| !filled) {
                let index = Index(batch.first.0 + n as u64);
                self.apply_entry(index, entry, offset + HEADER_BLOCK_BYTES as u64 + entry.payload_at);
            }
            if self.failed {
                return;
            }
            // The marks rise along the log, but the mark of a superblock may be ahead.
            if let Some((_, mark)) = batch.last_of_client() {
                self.client = self.client.max(mark);
            }
            self.applied = batch.last();
            self.pending.pop_front();
        }
    }

    /// The last change that a client asked for, as far as the log is applied.
    #[must_use]
    pub fn client(&self) -> ClientMark {
        self.client
    }

    /// The last ones of the batches that were not applied yet, by index.
    pub fn clients_ahead(&self) -> impl Iterator<Item = (Index, ClientMark)> {
        self.pending.iter().filter_map(|batch| batch.last_of_client())
    }

    fn apply_entry(&mut self, index: Index, entry: &EntryDesc, at: u64) {
        let content = match entry.kind {
            EntryKind::Write => Content::Data { at },
            EntryKind::Discard if planted(Bug::DiscardForgotten) => return,
            EntryKind::Discard => Content::Hole,
            EntryKind::WriteZeroes => Content::Zero,
            EntryKind::EpochStart => return,
            EntryKind::Scrub => return self.scrub(index, entry.range),
            EntryKind::Resize => return self.grow(entry.range.volume, entry.range.offset),
            EntryKind::Rollback => {
                let Some((to, mark)) = entry.rollback() else { return };
                return self.roll_back(index, to, mark);
            }
            EntryKind::Snapshot | EntryKind::DropSnapshot => {
                let Some(id) = entry.snapshot() else { return };
                return match entry.kind {
                    EntryKind::Snapshot => self.take_snapshot(index, id),
                    _ => self.drop_snapshot(id),
                };
            }
        };
        let range = entry.range;
        self.fills.changed(index, range);
        let run = Run { blocks: range.len / BLOCK_BYTES, index, content };
        self.overlay.insert(range.volume, range.first_block(), run);
        match content {
            Content::Hole => {
                reach!("store: a hole is laid over the volume");
            }
            Content::Zero => {
                reach!("store: zeroes are laid over the volume");
            }
            Content::Data { .. } => {}
        }
        if !planted(Bug::VersionsTooOld) {
            self.versions.raise_range(range, index);
        }
    }

    /// Keeps the payloads in memory below their limit (R18), the oldest going first.
    fn evict(&mut self) {
        while let Some(first) = self.journal.evict(self.tuning.memory_bytes_max, self.durable) {
            reach!("store: a batch leaves memory");
            let at = self.pending.partition_point(|batch| batch.first < first);
            if let Some(batch) = self.pending.get_mut(at).filter(|batch| batch.first == first) {
                reach!("store: an uncommitted batch leaves memory");
                *batch = without_payload(batch);
            }
        }
    }
}

/// The batch with its entries but without their bytes.
pub fn without_payload(batch: &Batch) -> Arc<Batch> {
    let entries = batch.entries.iter().map(EntryDesc::without_payload).collect();
    Arc::new(Batch { entries, payload: SmallVec::new(), header: batch.header.clone(), ..*batch })
}

/// Adds a batch of `epoch` that ends at `last` to an epoch history.
pub fn note_epoch(epochs: &mut Vec<(Epoch, Index)>, epoch: Epoch, last: Index) {
    match epochs.last_mut() {
        Some(newest) if newest.0 == epoch => newest.1 = last,
        _ => {
            if epochs.len() == EPOCHS_MAX {
                epochs.remove(0);
            }
            epochs.push((epoch, last));
        }
    }
}

/// Shortens an epoch history to the part up to `end`.
pub fn cut_epochs(epochs: &mut Vec<(Epoch, Index)>, end: Index) {
    while epochs.len() >= 2 && epochs[epochs.len() - 2].1 >= end {
        epochs.pop();
    }
    if let Some(newest) = epochs.last_mut() {
        newest.1 = newest.1.min(end);
    }
    if end.0 == 0 {
        epochs.clear();
    }
}
