//! Sums of the blocks of the volumes (docs/adr/0012-block-checksums.md). A block that is read from
//! a volume and does not fit its sum is damage, never data.
//!
//! A page of sums is read when a write to its blocks begins, unless the write covers all of them.
//! It stays in memory until the write has ended. Then it has changed. It is written before the
//! checkpoint of the pass, or earlier when too many pages wait. Sums of what was filled come with
//! a second write, if no superblock knows of the commit yet. On disk a page may be older or
//! newer than the volume. After a crash the blocks for which that matters are in the overlay or
//! filled by a record of the journal (`fill.rs`), or the replica is the target of a copy.

use crate::destage::Stage;
use crate::volume_op::{Filling, Group, GroupId, Piece};
use crate::{Op, Output, Store};
use bytes::Bytes;
use mainstay_codec::sums::{DAMAGED_BLOCK, DAMAGED_SUM, SUMS_PER_PAGE, block_sum};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, Range, VolumeId, reach};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Most pages in one write of sums, and most such writes in flight.
const PAGES_PER_WRITE_MAX: u64 = 64;
const WRITES_MAX: usize = 8;
/// Most blocks of zeroes in one write to a volume that has sums: their pages are in memory
/// meanwhile.
pub const ZEROES_BLOCKS_MAX: u64 = 64 * SUMS_PER_PAGE;
/// Pages that are looked at for one that can be given up.
const LOOKED_AT_MAX: usize = 64;
/// Places for the stamps of changes; several pages share one.
const CHANGES: usize = 1024;

/// A block of a volume does not hold its last written content.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("block {block} of volume {} is damaged", volume.0)]
pub struct DamagedBlock {
    pub volume: VolumeId,
    pub block: u64,
}

/// Result of [`Store::check_blocks`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    Well,
    /// A write came between: the read says nothing and is to be done anew.
    Again,
    Damaged(DamagedBlock),
}

/// A page: the volume, and its number there.
pub type PageAt = (VolumeId, u64);

#[derive(Debug)]
struct Page {
    sums: Box<[u32]>,
    /// Writes to its blocks that are under way.
    users: usize,
}

#[derive(Debug, Default)]
pub struct Sums {
    pages: BTreeMap<PageAt, Page>,
    /// Pages that are being read, with the groups that wait for them.
    reading: BTreeMap<PageAt, Vec<GroupId>>,
    /// Newer than on disk.
    changed: BTreeSet<PageAt>,
    /// Being written.
    writing: BTreeSet<PageAt>,
    writes: usize,
    /// The pool had no space for one of them, until it is tried anew.
    pub stalled: bool,
    /// The page that may be given up next, if it can be.
    next_out: Option<PageAt>,
    /// Rises whenever a write to a volume begins or ends.
    stamp: u64,
    /// The stamp at the last change of a page, for all pages that share a place. As many as
    /// [`CHANGES`], or none before the first change.
    changes: Vec<u64>,
}

/// Pages that tell of the blocks `first..end`.
pub(crate) fn pages_of(first: u64, end: u64) -> std::ops::Range<u64> {
    first / SUMS_PER_PAGE..end.div_ceil(SUMS_PER_PAGE)
}

/// Place in [`Sums::changes`].
fn place_of((volume, page): PageAt) -> usize {
    (page + u64::from(volume.0)) as usize % CHANGES
}

impl Sums {
    fn note_change(&mut self, at: PageAt) {
        self.changes.resize(CHANGES, 0);
        self.changes[place_of(at)] = self.stamp;
    }

    /// The stamp at the last change of this page, or at a later one of another page.
    fn changed_at(&self, at: PageAt) -> u64 {
        self.changes.get(place_of(at)).copied().unwrap_or(0)
    }
}

fn decoded(page: &[u8]) -> Box<[u32]> {
    let (sums, _) = page.as_chunks::<4>();
    sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()
}

pub(crate) fn sum_in(page: &[u8], block: u64) -> u32 {
    let at = (block % SUMS_PER_PAGE) as usize;
    // Proof: a page has as many sums as blocks that it tells of, and pages are read whole.
    u32::from_le_bytes(page[4 * at..4 * at + 4].try_into().expect("four bytes"))
}

impl Store {
    /// Pages of sums that must be read to check a read of the range. None if all are in memory, or
    /// if there are no sums.
    pub fn sums_to_read(&self, range: Range) -> impl Iterator<Item = u64> {
        let pages = if self.config.sums { pages_of(range.first_block(), range.end_block()) } else { 0..0 };
        pages.filter(move |&page| !self.sums.pages.contains_key(&(range.volume, page)))
    }

    /// The pages that need not be read, as they are now: for [`Store::damaged_blocks`], as memory
    /// may give them up before the read ends.
    pub fn sums_in_memory(&self, range: Range) -> impl Iterator<Item = (u64, Bytes)> {
        let pages = if self.config.sums { pages_of(range.first_block(), range.end_block()) } else { 0..0 };
        pages.filter_map(move |page| {
            let here = self.sums.pages.get(&(range.volume, page))?;
            Some((page, here.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()))
        })
    }

    /// To be asked before a read, for [`Store::check_blocks`].
    #[must_use]
    pub fn volume_stamp(&self) -> u64 {
        self.sums.stamp
    }

    /// Keeps pages that a read has brought, so that the next one need not; `stamp`: from before
    /// that read. A page that has changed since is not kept: it may be an older one, if the newer
    /// one was written and left memory meanwhile.
    pub fn keep_sums(&mut self, volume: VolumeId, pages: &[(u64, Bytes)], stamp: u64) {
        for (page, bytes) in pages {
            let at = (volume, *page);
            if self.sums.changed_at(at) <= stamp && !self.sums.reading.contains_key(&at) {
                self.sums.pages.entry(at).or_insert_with(|| Page { sums: decoded(bytes), users: 0 });
            }
        }
        self.give_up_pages();
    }

    /// Compares blocks that were read of a volume, from block `first` on, with their sums. `stamp`:
    /// from before the read; `pages`: those of [`Store::sums_to_read`].
    #[must_use]
    pub fn check_blocks(
        &self,
        (volume, first): (VolumeId, u64),
        bytes: &[u8],
        pages: &[(u64, Bytes)],
        stamp: u64,
    ) -> Checked {
        if !self.config.sums || planted(Bug::BlockSumsNotChecked) {
            return Checked::Well;
        }
        for (block, content) in (first..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
            let sum = self.sum_of(volume, block, pages);
            if sum == Some(block_sum(content)) {
                continue;
            }
            let overtaken = stamp != self.sums.stamp || self.conflicts(volume, block, block + 1);
            if sum.is_none() || overtaken || self.rolling_back() {
                reach!("store: a read of a volume is overtaken by a write");
                return Checked::Again;
            }
            reach!("store: a block does not fit its sum");
            return Checked::Damaged(DamagedBlock { volume, block });
        }
        Checked::Well
    }

    /// `None`: its page was in memory when the read began, and is not any more.
    fn sum_of(&self, volume: VolumeId, block: u64, pages: &[(u64, Bytes)]) -> Option<u32> {
        let page = block / SUMS_PER_PAGE;
        if let Some(here) = self.sums.pages.get(&(volume, page)) {
            return Some(here.sums[(block % SUMS_PER_PAGE) as usize]);
        }
        let (_, read) = pages.iter().find(|(number, _)| *number == page)?;
        Some(sum_in(read, block))
    }

    /// Returns the blocks of a *pinned* extent ([`Store::scrub_ended`]) that do not fit their sums,
    /// by their numbers in the volume. The volume is not written there, so no write can have
    /// overtaken the read. `pages`: those of [`Store::sums_to_read`], and those that were in memory
    /// when the read began.
    pub fn damaged_blocks(
        &self,
        (volume, first): (VolumeId, u64),
        bytes: &[u8],
        pages: &[(u64, Bytes)],
    ) -> Vec<u64> {
        if !self.config.sums || planted(Bug::BlockSumsNotChecked) {
            return Vec::new();
        }
        let blocks = (first..).zip(bytes.chunks(BLOCK_BYTES as usize));
        let damaged =
            blocks.filter(|(block, content)| self.sum_of(volume, *block, pages) != Some(block_sum(content)));
        damaged.map(|(block, _)| block).collect()
    }

    /// Takes hold of the pages for a group that is about to be written. How many of them must be
    /// read before.
    pub(crate) fn hold_sums(&mut self, id: GroupId, volume: VolumeId, first: u64, end: u64) -> usize {
        if !self.config.sums {
            return 0;
        }
        let mut missing = 0;
        for page in pages_of(first, end) {
            let at = (volume, page);
            let whole = first <= page * SUMS_PER_PAGE && (page + 1) * SUMS_PER_PAGE <= end;
            if let Some(page) = self.sums.pages.get_mut(&at) {
                page.users += 1;
            } else if let Some(waiting) = self.sums.reading.get_mut(&at) {
                reach!("store: two writes wait for one page of sums");
                waiting.push(id);
                missing += 1;
            } else if whole {
                let sums = vec![0; SUMS_PER_PAGE as usize].into();
                self.sums.pages.insert(at, Page { sums, users: 1 });
            } else {
                self.sums.reading.insert(at, vec![id]);
                let op = self.start(Op::SumsRead(at));
                let offset = page * BLOCK_BYTES;
                self.outputs.push_back(Output::SumsRead { op, volume, offset, len: BLOCK_BYTES });
                missing += 1;
            }
        }
        missing
    }

    pub(crate) fn sums_read(&mut self, at: PageAt, bytes: &Bytes) {
        let waiting = self.sums.reading.remove(&at).unwrap_or_default();
        self.sums.pages.insert(at, Page { sums: decoded(bytes), users: waiting.len() });
        for id in waiting {
            self.page_of_group_read(id);
        }
    }

    /// A group is about to be submitted.
    pub(crate) fn volume_changes(&mut self) {
        self.sums.stamp += 1;
    }

    /// A group is written: its blocks have these sums now.
    pub(crate) fn note_sums(&mut self, group: &Group) {
        self.volume_changes();
        if !self.config.sums {
            return;
        }
        let pieces = match &group.operation {
            Some(Filling::Data(pieces)) => &pieces[..],
            _ => &[],
        };
        let here = pieces.iter().filter_map(|piece| match piece {
            Piece::Here { bytes, sums } => Some((bytes, sums.as_ref())),
            Piece::InJournal(_) => None,
        });
        // The bytes of a payload are not read again. If they have changed in memory since the
        // payload was sealed or checked, its kept sums show the damage to whoever reads the volume.
        let written = here.flat_map(|(bytes, sums)| {
            let blocks = bytes.chunks(BLOCK_BYTES as usize).enumerate();
            blocks
                .map(move |(n, block)| sums.and_then(|sums| sums.get(n)).unwrap_or_else(|| block_sum(block)))
        });
        // A block without pieces is zeroes, or lost.
        let rest = match &group.operation {
            Some(Filling::Damaged) if planted(Bug::DamageCopiedAsContent) => block_sum(&DAMAGED_BLOCK),
            Some(Filling::Damaged) => DAMAGED_SUM,
            _ => 0,
        };
        self.set_sums(group.volume, group.first, group.end, written.chain(std::iter::repeat(rest)));
        self.give_up_pages();
    }

    /// The blocks `first..end` have these sums from now on, of which there are enough. Lets go of
    /// their pages.
    pub(crate) fn set_sums(
        &mut self,
        volume: VolumeId,
        first: u64,
        end: u64,
        sums: impl Iterator<Item = u32>,
    ) {
        let mut sums = (first..end).zip(sums).peekable();
        for page in pages_of(first, end) {
            let at = (volume, page);
            self.sums.note_change(at);
            // Proof: held since before the blocks were written.
            let held = self.sums.pages.get_mut(&at).expect("a page of sums that a write holds");
            held.users -= 1;
            self.sums.changed.insert(at);
            while let Some((block, sum)) = sums.next_if(|(block, _)| block / SUMS_PER_PAGE == page) {
                held.sums[(block % SUMS_PER_PAGE) as usize] = sum;
            }
        }
    }

    /// Gives the blocks of a range, which a batch has filled, the sums of zeroes. They were zeroes
    /// before, but the pass that made them so may not have written their sums. The pages are in
    /// memory.
    pub(crate) fn blank_sums(&mut self, range: Range) {
        for block in range.first_block()..range.end_block() {
            let at = (range.volume, block / SUMS_PER_PAGE);
            let held = self.sums.pages.get_mut(&at);
            let sum = held.and_then(|page| page.sums.get_mut((block % SUMS_PER_PAGE) as usize));
            if let Some(sum) = sum.filter(|sum| **sum != 0) {
                reach!("store: recovery finds an older sum under what was filled");
                *sum = 0;
                self.sums.changed.insert(at);
            }
        }
    }

    /// Takes hold of the pages of a range, all of which are in memory.
    pub(crate) fn hold_pages(&mut self, range: Range) {
        for page in pages_of(range.first_block(), range.end_block()) {
            if let Some(page) = self.sums.pages.get_mut(&(range.volume, page)) {
                page.users += 1;
            }
        }
    }

    /// Lets go of the pages of a range whose sums did not change.
    pub(crate) fn release_pages(&mut self, range: Range) {
        for page in pages_of(range.first_block(), range.end_block()) {
            if let Some(page) = self.sums.pages.get_mut(&(range.volume, page)) {
                page.users -= 1;
            }
        }
    }

    /// Whether the pages of these blocks are in memory and say that all of them are zeroes.
    pub(crate) fn all_blank(&self, volume: VolumeId, first: u64, end: u64) -> bool {
        pages_of(first, end).all(|page| {
            let from = first.max(page * SUMS_PER_PAGE) - page * SUMS_PER_PAGE;
            let to = end.min((page + 1) * SUMS_PER_PAGE) - page * SUMS_PER_PAGE;
            let here = self.sums.pages.get(&(volume, page));
            here.is_some_and(|page| page.sums[from as usize..to as usize].iter().all(|&sum| sum == 0))
        })
    }

    /// Whether a page is being read.
    pub(crate) fn reads_sums(&self) -> bool {
        !self.sums.reading.is_empty()
    }

    /// Reads pages that are not in memory, if there is room for them.
    pub(crate) fn read_sums_ahead(&mut self, volume: VolumeId, pages: std::ops::Range<u64>) {
        for page in pages {
            let at = (volume, page);
            if self.sums.pages.contains_key(&at) || self.sums.reading.contains_key(&at) {
                continue;
            }
            let most = self.sums_pages_max().saturating_sub(self.sums.reading.len());
            self.give_up_pages_to(most.saturating_sub(1));
            if self.sums.pages.len() >= most {
                reach!("store: there is no room for sums that are read ahead");
                continue;
            }
            reach!("store: sums are read ahead of a large write");
            self.sums.reading.insert(at, Vec::new());
            let op = self.start(Op::SumsRead(at));
            let offset = page * BLOCK_BYTES;
            self.outputs.push_back(Output::SumsRead { op, volume, offset, len: BLOCK_BYTES });
        }
    }

    /// Takes a page that recovery has read.
    pub(crate) fn insert_page(&mut self, at: PageAt, bytes: &[u8]) {
        self.sums.pages.entry(at).or_insert_with(|| Page { sums: decoded(bytes), users: 0 });
    }

    /// The files of sums hold the sums of a snapshot, and the pages in memory are from before. All
    /// changed pages were written, and no write to a volume is under way.
    pub(crate) fn sums_restored(&mut self) {
        self.volume_changes();
        self.sums.changes = vec![self.sums.stamp; CHANGES];
        if !planted(Bug::SumsOutlastRollback) {
            self.sums.pages.clear();
            self.sums.changed.clear();
        }
    }

    fn sums_pages_max(&self) -> usize {
        (self.tuning.sums_bytes_max / BLOCK_BYTES) as usize
    }

    /// Forgets pages that are on disk and not in use, when there are too many.
    pub(crate) fn give_up_pages(&mut self) {
        self.give_up_pages_to(self.sums_pages_max());
    }

    fn give_up_pages_to(&mut self, most: usize) {
        let mut looked = 0;
        while self.sums.pages.len() > most && looked < LOOKED_AT_MAX {
            looked += 1;
            let from = self.sums.next_out.take().unwrap_or((VolumeId(0), 0));
            let Some((&at, page)) = self.sums.pages.range(from..).next() else { continue };
            self.sums.next_out = Some((at.0, at.1 + 1));
            if page.users == 0 && !self.sums.changed.contains(&at) && !self.sums.writing.contains(&at) {
                reach!("store: a page of sums is given up");
                self.sums.pages.remove(&at);
            }
        }
    }

    /// Whether too many pages wait to be written, so that nothing more should change.
    pub(crate) fn sums_behind(&self) -> bool {
        (self.sums.writes > 0 || self.sums.stalled) && self.sums.changed.len() >= self.sums_pages_max()
    }

    /// Writes pages before a checkpoint asks for it, when many have changed.
    pub(crate) fn write_sums_early(&mut self) {
        if self.sums.changed.len() > self.sums_pages_max() / 2 && self.sums.writes == 0 {
            reach!("store: sums are written before the checkpoint");
            let mut from = (VolumeId(0), 0);
            while let Some(next) = self.write_sums(from, true) {
                from = next;
            }
        }
    }

    /// Writes the first pages at or after `from` that have changed. Where to go on; `None` if there
    /// are none, or too much is in flight.
    ///
    /// Sums of what was filled are written once a superblock says durably that it is committed.
    /// Until then a page has those of zeroes in their place, and has to be written again. `early`:
    /// such pages are left out.
    fn write_sums(&mut self, from: PageAt, early: bool) -> Option<PageAt> {
        if self.sums.writes >= WRITES_MAX || self.sums.stalled {
            return None;
        }
        let fills = &self.fills;
        let unannounced = |&(volume, page): &PageAt| {
            fills.unannounced(volume, page * SUMS_PER_PAGE, (page + 1) * SUMS_PER_PAGE)
        };
        let waits = |at: &PageAt| early && unannounced(at).next().is_some();
        let due = |at: &&PageAt| !self.sums.writing.contains(at) && !waits(at);
        let mut changed = self.sums.changed.range(from..).filter(due);
        let &(volume, first) = changed.next()?;
        let follow = changed.zip(first + 1..first + PAGES_PER_WRITE_MAX);
        let end = first + 1 + follow.take_while(|&(&at, next)| at == (volume, next)).count() as u64;
        let mut data = Vec::with_capacity(((end - first) * BLOCK_BYTES) as usize);
        for page in first..end {
            let sums = self.sums.pages.get(&(volume, page)).map_or(&[][..], |page| &page.sums);
            let (begin, block) = (data.len(), page * SUMS_PER_PAGE);
            data.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
            self.sums.changed.remove(&(volume, page));
            for (first, end) in unannounced(&(volume, page)) {
                reach!("store: sums of what was filled wait for its commit index");
                let place = |of: u64| begin + 4 * (of - block) as usize;
                if let Some(sums) = data.get_mut(place(first)..place(end)) {
                    sums.fill(0);
                }
                self.sums.changed.insert((volume, page));
            }
            self.sums.writing.insert((volume, page));
        }
        self.sums.writes += 1;
        let op = self.start(Op::SumsWrite { volume, first, end });
        self.outputs.push_back(Output::SumsWrite {
            op,
            volume,
            offset: first * BLOCK_BYTES,
            data: Bytes::from(data),
        });
        Some((volume, end))
    }

    pub(crate) fn sums_written(&mut self, volume: VolumeId, first: u64, end: u64) {
        self.sums.writes -= 1;
        for page in first..end {
            self.sums.writing.remove(&(volume, page));
        }
        self.give_up_pages();
    }

    /// The pool has no space for pages: they wait as if they had not been written.
    pub(crate) fn sums_stalled(&mut self, volume: VolumeId, first: u64, end: u64) {
        reach!("store: sums wait for space in the pool");
        self.sums.changed.extend((first..end).map(|page| (volume, page)));
        self.sums.stalled = true;
        self.sums_again((volume, first));
        self.sums_written(volume, first, end);
        self.give_up_kept();
    }

    /// The stage of a pass in which everything that has changed is written, once.
    pub(crate) fn issue_sums(&mut self, from: PageAt) -> Option<Stage> {
        let mut at = from;
        // A page that is being written, as it was before, is waited for.
        while let Some(next) = self.sums.changed.range(at..).next().copied()
            && !self.sums.writing.contains(&next)
        {
            match self.write_sums(next, false) {
                Some(next) => at = next,
                None => break,
            }
        }
        let left = self.sums.changed.range(at..).next().is_some();
        let waits = left || self.sums.writes > 0 || self.sums.stalled;
        if waits && !planted(Bug::SumsNotAwaited) {
            // The stage is the pass's own: where to go on is noted there.
            self.sums_written_up_to(at);
            return None;
        }
        self.after_sums()
    }
}
