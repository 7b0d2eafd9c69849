//! Large writes to where nothing is (docs/adr/0057-large-writes.md). Their payload goes straight to
//! its place in the volumes, and the journal gets the header block alone, with a mark. So such data
//! is written once and not twice. The place of the payload in the ring is kept and not written.
//!
//! ```text
//! placed ─▶ header durable ─▶ payload durable: the entry is durable ─▶ (commit) sums noted: applied
//!                          └▶ no space: the payload goes to the ring as ever ─▶ applied as ever
//! cut at any step ─▶ nothing is in flight ─▶ superblock of the cut ─▶ zeroes again, flushed: done
//! ```
//!
//! - A block is *blank* if its sum is that of zeroes and no entry of overlay or log that is not
//!   applied has it. Only blank blocks are filled. So undoing is zeroing, and needs no copy (R7).
//! - Until its entry is applied a filled block reads as zeroes, whatever is in the volume.
//! - The header block is durable before the first byte of the payload is written. So after a crash
//!   the ring names every place where something may be that is no content. Recovery zeroes it where
//!   the sums say that it is blank, before anything else.
//! - A cut or a restart makes records void first, with its superblock. Then what they had filled
//!   becomes zeroes again, and nothing is written to the journal meanwhile, so the header blocks
//!   stay. So recovery finds either a log that is whole or void records.
//! - On disk the sums of a filled batch stay those of zeroes until a superblock says durably that
//!   it is committed. Until then a crash and a cut can take it back, and a second crash can
//!   interrupt the cut.
//! - Nothing is written over a filled block before a checkpoint covers its entry: recovery compares
//!   the payload in the volume with the checksum of the entry. So a pass ends before the first
//!   entry that changes such a block ([`Store::pass_limit`]).
//! - Nothing is filled while a snapshot, a rollback or a copy is under way or still in the log to
//!   be applied, nor in an extent that is pinned.
//! - What came before a filled block was destaged, and may not be covered by a checkpoint yet. Then
//!   recovery lays it over the volume again, and takes it away where a later batch is filled.
//! - A peer is fed with a filled batch from memory, or else from the volume. Behind the checkpoint
//!   the volume may have changed; then the journal does not hold the batch any more.
//! - A superblock says durably that there may be filled batches before the first one is written,
//!   until a checkpoint covers the last. A build that cannot read them does not open the replica.
//!
//! Each replica decides for itself. Neither the log nor what is sent differs. A new replica is
//! filled by a copy (`copy.rs`) and not by this.

use crate::superblock::Job;
use crate::volume_op::{Filling, Owner};
use crate::{Op, OpId, Output, Store};
use bytes::Bytes;
use mainstay_codec::sums::{KeptSums, SUMS_PER_PAGE, sums_bytes};
use mainstay_codec::{Batch, EntryKind, LocalHeader, PayloadPlace, Superblock};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, Chain, Index, Position, Range, VolumeId, reach};
use smallvec::{SmallVec, smallvec};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Pages of sums that are read ahead of a write that may be filled.
const PAGES_AHEAD: u64 = 2;
/// Writes that go to the journal as ever after the pool had no space for one.
const REST_AFTER_NO_SPACE: u32 = 64;

/// A batch that is filled and not applied yet.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    first: Index,
    parts: SmallVec<[FillPart; 1]>,
    state: State,
    /// Its batch is no longer in the log.
    cut: bool,
}

/// The payload of one entry.
#[derive(Clone, Debug)]
pub(crate) struct FillPart {
    pub range: Range,
    pub sums: KeptSums,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The header block is being written.
    Header(OpId),
    /// The payload is being written to the volumes.
    Payload { record: OpId, left: usize, no_space: bool },
    /// Payload and header are durable.
    Whole,
    /// The payload is in the ring, or on the way there. Something of it may be in the volumes.
    Ring,
    /// Its blocks are being zeroed.
    Undoing,
}

/// Filled blocks whose entry is applied, and which no checkpoint covers.
#[derive(Clone, Copy, Debug)]
struct Laid {
    end: u64,
    /// The last entry of the batch.
    last: Index,
    /// The first later entry that changes some of the blocks.
    over: Option<Index>,
}

/// The end of a cut or of a restart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterUndo {
    Cut,
    Restart { at: Position, chain: Chain },
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(crate) struct Fills {
    /// In the order of the log, those that were cut among them.
    fills: VecDeque<Fill>,
    /// By the first block; no two overlap.
    laid: BTreeMap<(VolumeId, u64), Laid>,
    laid_bytes: u64,
    /// Zeroing and then flushes that have not ended.
    undoing: usize,
    /// Writes that still go to the journal because there was no space.
    resting: u32,
    /// Sizes of the volumes as the last durable superblock has them: recovery looks no further.
    sizes: Vec<u64>,
    /// The commit index that it has.
    committed: Index,
    /// The superblock that makes cut batches void is durable. Follows when they are undone.
    after: Option<AfterUndo>,
    /// The superblock says so, durably. Builds that cannot read such records refuse it.
    allowed: bool,
    /// A superblock that says so waits or is being written.
    asked: bool,
    /// The last entry of any batch whose header block says that its payload is in the volumes, or
    /// was to be.
    last: Index,
}

impl Fill {
    /// A fill that recovery found.
    pub fn found(batch: &Batch) -> Self {
        Self { first: batch.first, parts: parts_of(batch), state: State::Whole, cut: false }
    }

    /// The ranges with the payload.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        self.parts.iter().map(|part| part.range)
    }
}

impl Fills {
    /// The fills that recovery found.
    pub fn found(fills: VecDeque<Fill>) -> Self {
        Self { fills, ..Self::default() }
    }

    /// Whether nothing is filled that is not applied, nor to be undone.
    pub fn is_empty(&self) -> bool {
        self.fills.is_empty()
    }

    /// Whether blocks of this range may hold what is not applied.
    pub fn touches(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        self.within(volume, first, end).next().is_some()
    }

    /// The stretches of these blocks that may hold what is not applied, in no order.
    fn within(&self, volume: VolumeId, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let ranges = self.fills.iter().flat_map(Fill::ranges).filter(move |range| range.volume == volume);
        let parts = ranges.map(move |range| (range.first_block().max(first), range.end_block().min(end)));
        parts.filter(|(first, end)| first < end)
    }

    /// Cuts the blocks `first..end` into stretches that may hold what is not applied (`true`) and
    /// the others, in order.
    pub fn split(&self, volume: VolumeId, first: u64, end: u64) -> SmallVec<[(u64, u64, bool); 1]> {
        if self.fills.is_empty() || planted(Bug::FilledReadEarly) {
            return smallvec![(first, end, false)];
        }
        let mut filled: SmallVec<[(u64, u64); 4]> = self.within(volume, first, end).collect();
        filled.sort_unstable();
        let mut out = SmallVec::new();
        let mut at = first;
        for (from, to) in filled {
            if at < from {
                out.push((at, from, false));
            }
            if at.max(from) < to {
                out.push((at.max(from), to, true));
            }
            at = at.max(to);
        }
        if at < end {
            out.push((at, end, false));
        }
        out
    }

    /// Bytes that a checkpoint would cover beyond those in the overlay.
    pub fn laid_bytes(&self) -> u64 {
        self.laid_bytes
    }

    /// This superblock is durable.
    pub fn recorded(&mut self, superblock: &Superblock) {
        self.committed = superblock.commit;
        if self.sizes != superblock.volumes {
            self.sizes.clone_from(&superblock.volumes);
        }
    }

    /// The stretches of these blocks that are applied while no superblock says durably that they
    /// are committed. After a crash they may be cut and zeroed, so the sums on disk have to be
    /// those of zeroes.
    pub fn unannounced(&self, volume: VolumeId, first: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let laid = self.laid.range(..(volume, end)).rev();
        let within = laid.take_while(move |((v, _), laid)| *v == volume && laid.end > first);
        let due = within.filter(|(_, laid)| laid.last > self.committed && !planted(Bug::SumsBeforeCommit));
        due.map(move |(&(_, from), laid)| (from.max(first), laid.end.min(end)))
    }

    /// Whether something is undone before a cut or a restart counts as done.
    pub fn is_undoing(&self) -> bool {
        self.after.is_some()
    }

    /// Whether that is a restart.
    pub fn restarts(&self) -> bool {
        matches!(self.after, Some(AfterUndo::Restart { .. }))
    }

    /// Whether nothing is left that may still be applied.
    pub fn all_cut(&self) -> bool {
        self.fills.iter().all(|fill| fill.cut)
    }

    /// The log has begun anew.
    pub fn restarted(&mut self) {
        self.laid.clear();
        (self.laid_bytes, self.last) = (0, Index(0));
    }

    /// Every batch after `end` has left the log.
    pub fn truncate(&mut self, end: Index) {
        for fill in self.fills.iter_mut().filter(|fill| fill.first > end) {
            reach!("store: a filled batch is cut");
            fill.cut = true;
        }
    }

    /// Whether something that was cut is not zeroes again.
    pub fn any_cut(&self) -> bool {
        self.fills.iter().any(|fill| fill.cut)
    }

    /// Whether a block here is filled and applied and not covered by a checkpoint. It may be blank
    /// nevertheless: zeroes can be written as well.
    fn laid_within(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        let before = self.laid.range(..(volume, end)).next_back();
        before.is_some_and(|((v, _), laid)| *v == volume && laid.end > first)
    }

    /// Notes that an entry changes these blocks.
    pub fn changed(&mut self, index: Index, range: Range) {
        if self.laid.is_empty() {
            return;
        }
        let (volume, first, end) = (range.volume, range.first_block(), range.end_block());
        for ((v, _), laid) in self.laid.range_mut(..(volume, end)).rev() {
            if *v != volume || laid.end <= first {
                break;
            }
            reach!("store: a filled block is changed before a checkpoint");
            laid.over.get_or_insert(index);
        }
    }

    /// Notes that an entry changes everything.
    pub fn all_changed(&mut self, index: Index) {
        for laid in self.laid.values_mut() {
            reach!("store: volumes with filled blocks are rolled back");
            laid.over.get_or_insert(index);
        }
    }

    /// A checkpoint covers everything up to `index`.
    pub fn covered(&mut self, index: Index) {
        if self.laid.is_empty() {
            return;
        }
        self.laid.retain(|_, laid| laid.last > index);
        let blocks: u64 = self.laid.iter().map(|((_, first), laid)| laid.end - first).sum();
        self.laid_bytes = blocks * BLOCK_BYTES;
    }
}

/// The entries of a batch of writes, with the sums of their blocks.
fn parts_of(batch: &Batch) -> SmallVec<[FillPart; 1]> {
    let part = |entry: &mainstay_codec::EntryDesc| {
        let kept = entry.kept_sums(0);
        // Proof: they are made when a payload is sealed or checked, and both were here.
        Some(FillPart { range: entry.range, sums: kept? })
    };
    batch.entries.iter().filter_map(part).collect()
}

impl Store {
    /// The last entry up to which a pass that would go to `to` may go.
    pub(crate) fn pass_limit(&self, to: Index) -> Index {
        let over = self.fills.laid.values().filter_map(|laid| laid.over).min();
        match over {
            Some(over) if over <= to && !planted(Bug::FilledOverwritten) => {
                reach!("store: a pass ends before a filled block changes");
                Index(over.0 - 1)
            }
            _ => to,
        }
    }

    /// Whether the payload of the next batch of the queue may go straight to its place.
    pub(crate) fn may_fill(&mut self, batch: &Batch) -> bool {
        let least = self.tuning.fill_bytes_min;
        let large = batch.payload_len >= least && self.config.sums;
        if !large || batch.entries.iter().any(|e| e.kind != EntryKind::Write || e.range.len < least) {
            return false;
        }
        if self.fills.resting > 0 {
            return false;
        }
        // Each is looked at, so that the pages of sums of all are read.
        let blank: SmallVec<[bool; 4]> =
            batch.entries.iter().map(|entry| self.is_blank_range(entry.range)).collect();
        let blank = blank.iter().all(|blank| *blank);
        let layers = !self.layers.is_empty() && !planted(Bug::FilledBesideSnapshot);
        let whole = self.unfinished.is_none() && !self.copying && !layers;
        let quiet = self.jobs.is_empty() && self.growing.is_empty() && !self.grow_due;
        let now = whole && quiet && self.nothing_before(batch);
        if blank && !now {
            reach!("store: a large write is not filled now");
        }
        let fill = blank && now && !overlap(batch);
        if fill && !self.fills.allowed && !planted(Bug::FilledUnannounced) {
            if !std::mem::replace(&mut self.fills.asked, true) {
                self.jobs.push_back(Job::AllowFills);
            }
            return false;
        }
        fill
    }

    /// A batch gets its place in the ring.
    pub(crate) fn large_write_placed(&mut self, batch: &Batch) {
        if self.fills.resting > 0 && batch.payload_len >= self.tuning.fill_bytes_min {
            self.fills.resting -= 1;
        }
    }

    /// The superblock says durably that there may be filled batches.
    pub(crate) fn fills_allowed(&mut self) {
        (self.fills.allowed, self.fills.asked) = (self.superblock.filled, false);
    }

    /// Whether a superblock with its checkpoint at `to` has to say that there may be filled batches
    /// behind it. If not, none begins from now on.
    pub(crate) fn fills_go_on(&mut self, to: Index) -> bool {
        let go_on = !self.fills.is_empty() || self.fills.last > to;
        self.fills.allowed &= go_on;
        if !go_on {
            reach!("store: a checkpoint covers all that was filled");
        }
        go_on
    }

    /// Whether no batch before this one, of those that are not applied, touches its blocks or is
    /// anything but a change of blocks.
    fn nothing_before(&self, batch: &Batch) -> bool {
        let before = self.pending.iter().take_while(|other| other.first < batch.first);
        before.flat_map(|other| &other.entries).all(|entry| match entry.kind {
            EntryKind::Write | EntryKind::Discard | EntryKind::WriteZeroes => {
                !batch.entries.iter().any(|e| meet(e.range, entry.range))
            }
            EntryKind::EpochStart | EntryKind::Scrub => true,
            EntryKind::Resize | EntryKind::Snapshot | EntryKind::DropSnapshot | EntryKind::Rollback => {
                planted(Bug::FilledBesideSnapshot)
            }
        })
    }

    /// Whether all blocks are blank as far as the applied log goes, nothing else is about to write
    /// them, and the pages that say so are in memory. Has those read that are not.
    fn is_blank_range(&mut self, range: Range) -> bool {
        let (volume, first, end) = (range.volume, range.first_block(), range.end_block());
        let recorded = self.fills.sizes.get(usize::from(volume.0)).copied().unwrap_or(0);
        if range.end() > recorded || self.pinned(volume, first, end) {
            return false;
        }
        let pages = first / SUMS_PER_PAGE..(end.div_ceil(SUMS_PER_PAGE) + PAGES_AHEAD);
        let last = sums_bytes(recorded) / BLOCK_BYTES;
        if self.layers.is_empty() {
            self.read_sums_ahead(volume, pages.start..pages.end.min(last));
        }
        self.overlay.within(volume, first, end).next().is_none()
            && !self.conflicts(volume, first, end)
            && !self.fills.laid_within(volume, first, end)
            && self.all_blank(volume, first, end)
    }

    /// Gives a batch that has a place in the ring to its volumes: `record` writes its header block.
    pub(crate) fn fill(&mut self, record: OpId, batch: &Batch) {
        reach!("store: a large write is filled");
        let parts = parts_of(batch);
        for part in &parts {
            self.hold_pages(part.range);
        }
        self.fills.last = batch.last();
        self.journal.in_volume(batch.first, true);
        self.fills.fills.push_back(Fill {
            first: batch.first,
            parts,
            state: State::Header(record),
            cut: false,
        });
        if planted(Bug::FilledBeforeHeader) {
            self.write_payload(batch.first, record);
        }
    }

    /// A write to the journal has ended. `true`: it was a header block, and its batch is not whole
    /// yet.
    pub(crate) fn header_written(&mut self, op: OpId) -> bool {
        let waits = |fill: &&mut Fill| match fill.state {
            State::Header(record) => record == op,
            State::Payload { record, .. } => record == op && planted(Bug::FilledBeforeHeader),
            _ => false,
        };
        let Some(fill) = self.fills.fills.iter_mut().find(waits) else { return false };
        let (first, cut) = (fill.first, fill.cut);
        if fill.state != State::Header(op) {
            self.filled(first, true);
            return true;
        }
        if cut {
            reach!("store: a filled batch is cut before its payload is written");
            fill.state = State::Whole;
            return false;
        }
        self.write_payload(first, op);
        true
    }

    fn write_payload(&mut self, first: Index, record: OpId) {
        let Some(batch) = self.journal.in_memory(first) else {
            // Nothing leaves memory before it is durable.
            return self.fail(format!("the payload of entry {first} is gone"));
        };
        let left = batch.entries.len() + usize::from(planted(Bug::FilledBeforeHeader));
        self.volume_changes();
        for entry in &batch.entries {
            let op = self.start(Op::Fill(first));
            let Range { volume, offset, .. } = entry.range;
            let data = smallvec![entry.payload.clone()];
            let durable = !planted(Bug::FilledNotFlushed);
            self.outputs.push_back(Output::VolumeWrite { op, volume, offset, data, durable });
        }
        if let Some(fill) = self.fills.fills.iter_mut().find(|fill| fill.first == first && !fill.cut) {
            fill.state = State::Payload { record, left, no_space: false };
        }
    }

    /// A part of a payload is in its volume, or found no space.
    pub(crate) fn filled(&mut self, first: Index, found_space: bool) {
        // A batch that was cut may have the number of one that came in its place, but nothing comes
        // before the cut is durable.
        let of_it = |fill: &&mut Fill| fill.first == first && matches!(fill.state, State::Payload { .. });
        let Some(fill) = self.fills.fills.iter_mut().find(of_it) else { return };
        let State::Payload { record, left, no_space } = &mut fill.state else { return };
        *left -= 1;
        *no_space |= !found_space;
        if *left > 0 {
            return;
        }
        let (record, no_space) = (*record, *no_space);
        if no_space && !fill.cut {
            fill.state = State::Ring;
            return self.payload_to_ring(first, record);
        }
        fill.state = State::Whole;
        self.record_written(record);
    }

    /// The pool has no space for it: the payload goes behind its header block, where its place is
    /// still free.
    fn payload_to_ring(&mut self, first: Index, record: OpId) {
        reach!("store: a large write finds no space and goes to the ring");
        self.fills.resting = REST_AFTER_NO_SPACE;
        let Some(batch) = self.journal.in_memory(first) else {
            return self.fail(format!("the payload of entry {first} is gone"));
        };
        self.journal.in_volume(first, false);
        let Some(offset) = self.journal.find(first).map(|placed| placed.offset) else { return };
        let op = self.start(Op::JournalWrite);
        let durable_before = self.rewrite(record, op);
        let generation = self.superblock.generation;
        let local = LocalHeader { generation, durable_before, payload: PayloadPlace::JournalAfterVolume };
        self.outputs.push_back(Output::JournalWrite { op, offset, parts: smallvec![(local, batch)] });
    }

    /// Applies a batch whose payload is in the volumes already. `false`: it is none, and its
    /// entries are to be applied as ever.
    pub(crate) fn apply_filled(&mut self, batch: &Arc<Batch>) -> bool {
        let Some(at) = self.fills.fills.iter().position(|fill| fill.first == batch.first && !fill.cut) else {
            return false;
        };
        let Some(fill) = self.fills.fills.remove(at) else { return false };
        if fill.state == State::Ring {
            for range in fill.ranges() {
                self.release_pages(range);
            }
            return false;
        }
        reach!("store: a filled batch is applied");
        self.volume_changes();
        for (n, part) in fill.parts.into_iter().enumerate() {
            let FillPart { range, sums } = part;
            let (first, end) = (range.first_block(), range.end_block());
            let sums = (0..(end - first) as usize).map(|n| sums.get(n).unwrap_or(0));
            self.set_sums(range.volume, first, end, sums);
            // An older entry is in the overlay only if recovery has applied it once more: it was in
            // the volume already, and no checkpoint covered it.
            if !planted(Bug::FilledUnderOlder) {
                self.overlay.forget(range.volume, first, end, Index(batch.first.0 + n as u64));
            }
            if !planted(Bug::VersionsTooOld) {
                self.versions.raise_range(range, Index(batch.first.0 + n as u64));
            }
            let laid = Laid { end, last: batch.last(), over: None };
            self.fills.laid.insert((range.volume, first), laid);
            self.fills.laid_bytes += range.len;
        }
        self.give_up_pages();
        true
    }

    /// Takes the batches that recovery found, with their pages of sums.
    pub(crate) fn take_fills(
        &mut self,
        fills: VecDeque<Fill>,
        pages: BTreeMap<(VolumeId, u64), Bytes>,
        end: Index,
    ) {
        for (at, bytes) in pages {
            self.insert_page(at, &bytes);
        }
        for range in fills.iter().flat_map(Fill::ranges) {
            self.hold_pages(range);
            self.blank_sums(range);
        }
        self.fills = Fills::found(fills);
        (self.fills.allowed, self.fills.last) = (self.superblock.filled, end);
        self.fills.recorded(&self.superblock);
        self.give_up_pages();
    }

    /// Takes out of the overlay what is older than a filled batch and in its blocks. Recovery has
    /// applied it once more. It was in the volume when the batch was filled, and was zeroes.
    pub(crate) fn forget_under_fills(&mut self) {
        for fill in &self.fills.fills {
            for range in fill.ranges().filter(|_| !planted(Bug::FilledUnderOlder)) {
                let before = Index(fill.first.0 - 1);
                self.overlay.forget(range.volume, range.first_block(), range.end_block(), before);
            }
        }
    }

    /// Zeroes what was cut, once nothing of it is being written any more and it is void.
    pub(crate) fn undo_fills(&mut self) {
        if self.fills.is_empty() || !self.fills.any_cut() || self.fills.undoing > 0 {
            return;
        }
        let void = self.fills.after.is_some() || planted(Bug::UndoneBeforeCut);
        if !self.journal_writes.is_empty() || !void {
            return;
        }
        let due = |fill: &&mut Fill| fill.cut && fill.state != State::Undoing;
        let mut ranges: SmallVec<[Range; 4]> = SmallVec::new();
        for fill in self.fills.fills.iter_mut().filter(due) {
            ranges.extend(fill.ranges());
            fill.state = State::Undoing;
        }
        for range in ranges {
            if planted(Bug::CutLeavesFilled) {
                continue;
            }
            reach!("store: what was filled and cut becomes zeroes again");
            self.fills.undoing += 1;
            let (first, blocks) = (range.first_block(), range.len / BLOCK_BYTES);
            self.write_group(Owner::Undo, range.volume, first, blocks, Filling::Zeroes { free: true });
        }
        if self.fills.undoing == 0 {
            self.undone();
        }
    }

    /// A part of what was cut is zeroes again. The volumes are flushed when all of it is.
    pub(crate) fn part_undone(&mut self) {
        self.fills.undoing -= 1;
        if self.fills.undoing > 0 {
            return;
        }
        let undoing = self.fills.fills.iter().filter(|fill| fill.state == State::Undoing);
        let mut volumes: SmallVec<[VolumeId; 4]> =
            undoing.flat_map(Fill::ranges).map(|range| range.volume).collect();
        volumes.sort_unstable();
        volumes.dedup();
        self.fills.undoing = volumes.len();
        for volume in volumes {
            let op = self.start(Op::UndoFlush);
            self.outputs.push_back(Output::VolumeFlush { op, volume });
        }
    }

    pub(crate) fn undo_flushed(&mut self) {
        self.fills.undoing -= 1;
        if self.fills.undoing == 0 {
            self.undone();
        }
    }

    fn undone(&mut self) {
        let (undone, left) = std::mem::take(&mut self.fills.fills)
            .into_iter()
            .partition::<VecDeque<_>, _>(|fill| fill.state == State::Undoing);
        self.fills.fills = left;
        for range in undone.iter().flat_map(Fill::ranges) {
            self.release_pages(range);
        }
        if !self.fills.any_cut()
            && let Some(after) = self.fills.after.take()
        {
            self.after_undo(after);
        }
    }

    /// The superblock of a cut or a restart is durable. It counts as done when all that was filled
    /// and cut is zeroes again.
    pub(crate) fn when_undone(&mut self, after: AfterUndo) {
        if self.fills.any_cut() {
            self.fills.after = Some(after);
        } else {
            self.after_undo(after);
        }
    }

    fn after_undo(&mut self, after: AfterUndo) {
        match after {
            AfterUndo::Cut => self.cut_done(),
            AfterUndo::Restart { at, chain } => self.restarted(at, chain),
        }
    }
}

fn meet(a: Range, b: Range) -> bool {
    a.volume == b.volume && a.offset < b.end() && b.offset < a.end()
}

/// Whether two entries of a batch have blocks in common.
fn overlap(batch: &Batch) -> bool {
    let ranges = batch.entries.iter().map(|entry| entry.range).enumerate();
    ranges.clone().any(|(n, range)| ranges.clone().skip(n + 1).any(|(_, other)| meet(range, other)))
}
