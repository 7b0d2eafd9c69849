//! The disk of one replica, as physics has it: what reads see, what would survive a power cut, and
//! everything that can go wrong with either.
//!
//! As long as no fault was injected, these rules hold:
//! - A journal or meta write is durable when it has finished. A volume write or zeroing is visible
//!   when it has finished. It is durable when a flush of its volume has finished that was
//!   *submitted* after that.
//! - A power cut leaves any subset of the 512-byte sectors that were not durable, in any order (F1,
//!   F17). Each sector is its durable content, or the content that any later write gave it. Writes
//!   in flight count as such writes.
//! - The end of the process alone loses no finished write. Writes in flight may be carried out,
//!   wholly, in part or not at all. They *are not durable*, even those that would have been durable
//!   had they finished.
//! - A read gets the content at the moment when it was submitted, or at the moment when it
//!   finishes.
//!
//! Not simulated:
//! - a device whose sectors are larger or smaller than 512 bytes;
//! - damage within a sector other than flipped bits;
//! - a write of a dead process that is carried out after the next process has started, because the
//!   replica's lock forbids it.
//!
//! When a fault gives a block wrong content behind the caller's back, the disk marks the block
//! until it is written again, see [`Disk::is_damaged`]. So oracles know which blocks not to
//! believe.

mod lost;
mod media;
mod region;
mod rollback;
pub(crate) use rollback::SnapshotFiles;
mod rot;
#[cfg(test)]
mod tests;

pub use lost::Place;
pub use media::DiskMedia;
pub use region::SECTOR_BYTES;
pub use rot::Record;

use crate::plan::{DiskFault, DiskOp};
use crate::random::Random;
use bytes::Bytes;
use mainstay_store::{Area, IoFailure, IoResult, OpId, Output, SUPERBLOCK_COPIES, Store, StoreConfig};
use mainstay_types::{BLOCK_BYTES, SnapshotId, VolumeId};
use region::{BLOCK, Block, Blocks, Fates, Region};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Room for the sums of any volume here, in bytes.
const SUMS_BYTES: u64 = 16 * BLOCK_BYTES;
/// Overwritten blocks whose older content is remembered, for writes that are lost and reads that
/// are stale.
const REMEMBERED_MAX: usize = 128;

/// Sizes of the areas in bytes, all whole blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    pub meta: u64,
    pub journal: u64,
    pub volumes: Vec<u64>,
}

impl Sizes {
    #[must_use]
    pub fn of(config: &StoreConfig) -> Self {
        Self {
            meta: Store::meta_bytes(config),
            journal: config.journal_bytes,
            volumes: config.volumes.clone(),
        }
    }
}

/// Names an operation between [`Disk::submit`] and [`Disk::finish`]. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u64);

/// Operation that a disk can be asked for.
#[derive(Clone, Debug)]
pub enum Operation {
    /// One of the store's outputs that carry an [`OpId`].
    Store(Output),
    Read {
        token: u64,
        area: Area,
        offset: u64,
        len: u64,
    },
}

/// How an operation ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finished {
    Store { op: OpId, result: IoResult },
    Read { token: u64, result: Result<Bytes, IoFailure> },
}

/// See the top of this file.
#[derive(Debug)]
pub struct Disk {
    random: Random,
    /// Meta, journal, then each volume and its sums.
    regions: Vec<Region>,
    /// The files of snapshots.
    snapshots: BTreeMap<SnapshotId, rollback::Files>,
    in_flight: Vec<(Ticket, InFlight)>,
    next_ticket: u64,
    /// Counts volatile writes, so that a flush knows which ones it covers.
    stamp: u64,
    remembered: VecDeque<(usize, u64, Block)>,
    stale: Option<lost::Stale>,
    image: Option<Vec<Region>>,
    /// Faults that wait for the operation that they hit.
    armed: Vec<DiskFault>,
    /// Faults that have hit since the last [`Disk::fired`].
    fired: Vec<DiskFault>,
    lying: bool,
    gone: bool,
    read_only: bool,
    full: bool,
}

#[derive(Debug)]
struct InFlight {
    who: Who,
    work: Work,
}

#[derive(Clone, Copy, Debug)]
enum Who {
    Store(OpId),
    Reader(u64),
}

#[derive(Debug)]
enum Work {
    Write {
        region: usize,
        first: u64,
        blocks: Blocks,
        durable: bool,
    },
    /// The regions grow to this many blocks.
    Grow {
        regions: [(usize, u64); 2],
    },
    /// The volumes are cloned, each with this many blocks.
    Take {
        snapshot: SnapshotId,
        blocks: Vec<u64>,
    },
    /// The volumes get the content of the snapshot `from`, and their present content is kept as
    /// another snapshot.
    Restore {
        snapshot: SnapshotId,
        from: SnapshotId,
        blocks: Vec<u64>,
    },
    Drop {
        snapshot: SnapshotId,
    },
    /// Covers the writes up to `stamp`.
    Flush {
        region: usize,
        stamp: u64,
    },
    /// `early`: the content at submission, if the read gets that one.
    Read {
        region: usize,
        offset: u64,
        len: u64,
        early: Option<Bytes>,
    },
}

fn region_of(area: Area) -> usize {
    match area {
        Area::Meta => 0,
        Area::Journal => 1,
        Area::Volume(VolumeId(volume)) => 2 + 2 * usize::from(volume),
        Area::Sums(VolumeId(volume)) => 3 + 2 * usize::from(volume),
    }
}

fn failure(detail: &str) -> IoFailure {
    IoFailure::new(detail)
}

impl Disk {
    /// All zeroes.
    #[must_use]
    pub fn new(random: Random, sizes: &Sizes) -> Self {
        let mut regions = vec![Region::new(sizes.meta), Region::new(sizes.journal)];
        regions.extend(sizes.volumes.iter().flat_map(|&bytes| [Region::new(bytes), Region::new(SUMS_BYTES)]));
        Self {
            random,
            regions,
            snapshots: BTreeMap::new(),
            in_flight: Vec::new(),
            next_ticket: 0,
            stamp: 0,
            remembered: VecDeque::with_capacity(REMEMBERED_MAX),
            stale: None,
            image: None,
            armed: Vec::new(),
            fired: Vec::new(),
            lying: false,
            gone: false,
            read_only: false,
            full: false,
        }
    }

    /// Takes an operation in. Nothing happens to it before [`Disk::finish`].
    ///
    /// # Panics
    /// On an output of the store that is no operation, and on ranges that are not whole blocks
    /// within their area.
    pub fn submit(&mut self, operation: Operation) -> Ticket {
        let (who, work) = match operation {
            Operation::Read { token, area, offset, len } => {
                (Who::Reader(token), self.read_work(area, offset, len))
            }
            Operation::Store(output) => {
                let (op, work) = self.store_work(output);
                (Who::Store(op), work)
            }
        };
        if let Work::Write { region, first, blocks, .. } = &work {
            assert!(
                first + blocks.len() <= self.regions[*region].len(),
                "a write beyond the end of area {region}: {} blocks at {first}",
                blocks.len()
            );
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.in_flight.push((ticket, InFlight { who, work }));
        ticket
    }

    fn store_work(&mut self, output: Output) -> (OpId, Work) {
        match output {
            Output::JournalWrite { op, offset, parts } => {
                let mut data = Vec::new();
                for (local, batch) in &parts {
                    data.push(Bytes::copy_from_slice(&batch.header_block(*local)));
                    batch.payload.iter().for_each(|piece| Blocks::push(&mut data, piece));
                }
                (op, write_work(Area::Journal, offset, Blocks::Data(data), true))
            }
            Output::MetaWrite { op, offset, data } => {
                let mut blocks = Vec::new();
                Blocks::push(&mut blocks, &data);
                (op, write_work(Area::Meta, offset, Blocks::Data(blocks), true))
            }
            Output::SumsRead { op, volume, offset, len } => {
                (op, self.read_work(Area::Sums(volume), offset, len))
            }
            Output::SumsWrite { op, volume, offset, data } => {
                let mut blocks = Vec::new();
                Blocks::push(&mut blocks, &data);
                (op, write_work(Area::Sums(volume), offset, Blocks::Data(blocks), true))
            }
            Output::VolumeWrite { op, volume, offset, data, durable } => {
                let mut blocks = Vec::new();
                data.iter().for_each(|piece| Blocks::push(&mut blocks, piece));
                (op, write_work(Area::Volume(volume), offset, Blocks::Data(blocks), durable))
            }
            Output::VolumeZero { op, volume, offset, len, .. } => {
                assert!(len.is_multiple_of(BLOCK_BYTES), "zeroing {len} bytes");
                (op, write_work(Area::Volume(volume), offset, Blocks::Zero(len / BLOCK_BYTES), false))
            }
            Output::VolumeFlush { op, volume } => {
                (op, Work::Flush { region: region_of(Area::Volume(volume)), stamp: self.stamp })
            }
            Output::VolumeGrow { op, volume, bytes, meta_bytes } => {
                let areas = [(Area::Volume(volume), bytes), (Area::Meta, meta_bytes)];
                (
                    op,
                    Work::Grow { regions: areas.map(|(area, bytes)| (region_of(area), bytes / BLOCK_BYTES)) },
                )
            }
            Output::SnapshotTake { op, snapshot, volumes } => {
                let blocks = volumes.iter().map(|bytes| bytes / BLOCK_BYTES).collect();
                (op, Work::Take { snapshot, blocks })
            }
            Output::SnapshotRestore { op, snapshot, from, volumes } => {
                let blocks = volumes.iter().map(|bytes| bytes / BLOCK_BYTES).collect();
                (op, Work::Restore { snapshot, from, blocks })
            }
            Output::SnapshotDrop { op, snapshot } => (op, Work::Drop { snapshot }),
            Output::JournalRead { op, offset, len } => (op, self.read_work(Area::Journal, offset, len)),
            told => panic!("not an operation of a disk: {told:?}"),
        }
    }

    fn read_work(&mut self, area: Area, offset: u64, len: u64) -> Work {
        let region = region_of(area);
        let early = self.random.coin().then(|| self.regions[region].read(offset, len));
        Work::Read { region, offset, len, early }
    }

    /// The operation ends now. `None`: a power cut or the end of the process has made the ticket
    /// void.
    pub fn finish(&mut self, ticket: Ticket) -> Option<Finished> {
        let at = self.in_flight.iter().position(|&(t, _)| t == ticket)?;
        let (_, InFlight { who, work }) = self.in_flight.remove(at);
        let result = match work {
            Work::Write { region, first, blocks, durable } => {
                self.write(region, first, &blocks, durable).map(|()| None)
            }
            Work::Grow { regions } => self.grow(regions).map(|()| None),
            Work::Take { snapshot, blocks } => self.take_snapshot(snapshot, &blocks).map(|()| None),
            Work::Restore { snapshot, from, blocks } => {
                self.restore_snapshot(snapshot, from, &blocks).map(|()| None)
            }
            Work::Drop { snapshot } => {
                self.snapshots.remove(&snapshot);
                Ok(None)
            }
            Work::Flush { region, stamp } => self.flush(region, stamp).map(|()| None),
            Work::Read { region, offset, len, early } => self.read(region, offset, len, early).map(Some),
        };
        Some(match who {
            Who::Store(op) => Finished::Store { op, result },
            Who::Reader(token) => {
                Finished::Read { token, result: result.map(|bytes| bytes.unwrap_or_default()) }
            }
        })
    }

    /// Returns the kind of an operation in flight. `None` if the ticket names none in flight.
    #[must_use]
    pub fn kind(&self, ticket: Ticket) -> Option<DiskOp> {
        let (_, doing) = self.in_flight.iter().rev().find(|(other, _)| *other == ticket)?;
        Some(match &doing.work {
            Work::Read { .. } => DiskOp::Read,
            Work::Flush { .. } => DiskOp::Flush,
            Work::Write { region: 0, .. } => DiskOp::MetaWrite,
            Work::Write { region: 1, .. } => DiskOp::JournalWrite,
            Work::Write { .. }
            | Work::Grow { .. }
            | Work::Take { .. }
            | Work::Restore { .. }
            | Work::Drop { .. } => DiskOp::VolumeWrite,
        })
    }

    /// Operations between submission and end.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn write(&mut self, region: usize, first: u64, blocks: &Blocks, durable: bool) -> Result<(), IoFailure> {
        if self.gone || self.read_only || self.hits(DiskFault::WriteError) {
            let keep = self.random.below(1001);
            self.write_some(region, first, blocks, keep, true);
            return Err(failure(match (self.gone, self.read_only) {
                (true, _) => "the device is gone",
                (_, true) => "no space left, or read-only",
                _ => "planted: write error",
            }));
        }
        if self.full && self.needs_space(region, first, blocks) {
            // Blocks that have space may have been written.
            self.stamp += 1;
            for n in 0..blocks.len() {
                let has = self.regions[region].now[(first + n) as usize].bytes.is_some();
                if has && self.random.coin() {
                    self.put(region, first + n, blocks.get(n), false);
                }
            }
            return Err(IoFailure { no_space: true, ..failure("planted: no space") });
        }
        if durable && self.hits(DiskFault::LostWrite) {
            for block in first..first + blocks.len() {
                self.regions[region].now[block as usize].bad = true;
            }
            return Ok(());
        }
        let mut target = first;
        let elsewhere = self.regions[region].len() - blocks.len();
        if elsewhere > 0 && self.hits(DiskFault::Misdirect) {
            target = self.random.below(elsewhere);
            target += u64::from(target >= first);
            for block in first..first + blocks.len() {
                self.regions[region].now[block as usize].bad = true;
            }
        }
        let durable = durable && !self.lying;
        self.stamp += 1;
        for n in 0..blocks.len() {
            let content = Block { bad: target != first, ..blocks.get(n) };
            self.put(region, target + n, content, durable);
        }
        Ok(())
    }

    /// All or nothing: a file system's journal sees to it.
    fn grow(&mut self, regions: [(usize, u64); 2]) -> Result<(), IoFailure> {
        if self.gone || self.read_only || self.hits(DiskFault::WriteError) {
            return Err(failure("read-only, or gone"));
        }
        if self.full {
            return Err(IoFailure { no_space: true, ..failure("planted: no space") });
        }
        for (region, blocks) in regions {
            self.regions[region].grow(blocks);
        }
        Ok(())
    }

    /// Each file gets its name when it is whole. A pool without space, or one that cannot clone
    /// files, gets no snapshot at all.
    fn take_snapshot(&mut self, snapshot: SnapshotId, blocks: &[u64]) -> Result<(), IoFailure> {
        if self.gone || self.read_only || self.full || self.hits(DiskFault::WriteError) {
            return Err(failure("no space left, read-only, or gone"));
        }
        let now = |area: Area| self.regions[region_of(area)].now.clone();
        let clone = |(n, &blocks): (usize, &u64)| {
            let volume = VolumeId(n as u16);
            rollback::File::of(now(Area::Volume(volume)), now(Area::Sums(volume)), blocks)
        };
        let files = blocks.iter().enumerate().map(clone).collect();
        self.snapshots.insert(snapshot, files);
        Ok(())
    }

    /// Removes snapshots that are not in `recorded`, as the engine does when it opens a replica
    /// after a crash. Returns the recorded snapshots that are not on the disk.
    pub fn sweep_snapshots(&mut self, recorded: &BTreeSet<SnapshotId>) -> Vec<SnapshotId> {
        self.snapshots.retain(|id, _| recorded.contains(id));
        recorded.iter().copied().filter(|id| !self.snapshots.contains_key(id)).collect()
    }

    /// Whether there are files of a snapshot.
    #[must_use]
    pub fn has_snapshot(&self, snapshot: SnapshotId) -> bool {
        self.snapshots.contains_key(&snapshot)
    }

    /// A block of a snapshot: no bytes are zeroes. `None`: it has no such block, or damage was
    /// copied into it.
    #[must_use]
    pub fn snapshot_block(
        &self,
        snapshot: SnapshotId,
        volume: VolumeId,
        block: u64,
    ) -> Option<Option<&[u8]>> {
        let file = self.snapshots.get(&snapshot)?.get(usize::from(volume.0))?;
        let block = file.blocks.get(block as usize)?;
        (!block.bad).then_some(block.bytes.as_deref())
    }

    /// The process or the power ends while files are made larger: each file has grown or has not.
    fn grow_some(&mut self, regions: [(usize, u64); 2]) {
        for (region, blocks) in regions {
            if self.random.coin() {
                self.regions[region].grow(blocks);
            }
        }
    }

    /// The process or the power ends while a snapshot is taken: all its files are there, or none.
    fn take_perhaps(&mut self, snapshot: SnapshotId, blocks: &[u64]) {
        if self.random.coin() {
            let _ = self.take_snapshot(snapshot, blocks);
        }
    }

    /// Whether data are to be written to blocks of a volume that have no space yet.
    fn needs_space(&self, region: usize, first: u64, blocks: &Blocks) -> bool {
        let new = || {
            (first..first + blocks.len())
                .any(|block| self.regions[region].now[block as usize].bytes.is_none())
        };
        region >= region_of(Area::Volume(VolumeId(0))) && matches!(blocks, Blocks::Data(_)) && new()
    }

    fn put(&mut self, region: usize, block: u64, content: Block, durable: bool) {
        let place = &self.regions[region];
        let old = &place.now[block as usize];
        if old.bytes.is_none() && content.bytes.is_none() && !old.bad && !content.bad {
            // Zeroes over zeroes: neither a read nor a power cut shows a difference, unless other
            // content is still volatile there.
            if place.unflushed.is_empty() || !place.unflushed.contains_key(&block) {
                return;
            }
        }
        if self.remembered.len() == REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back((region, block, old.clone()));
        self.written(region, block);
        let place = &mut self.regions[region];
        if durable {
            place.put_durable(block, content);
        } else {
            place.put_volatile(block, content, self.stamp);
        }
    }

    /// Each piece of the write is carried out with a chance of `keep` per mille; none of it is
    /// durable. Pieces are sectors if `torn`, else blocks.
    fn write_some(&mut self, region: usize, first: u64, blocks: &Blocks, keep: u64, torn: bool) -> Fates {
        let mut fates = Fates::default();
        self.stamp += 1;
        for n in 0..blocks.len() {
            let old = self.regions[region].now[(first + n) as usize].clone();
            let new = blocks.get(n);
            let random = &mut self.random;
            let content = if torn {
                Block::mix(&[&old, &new], || {
                    let kept = random.permille(keep);
                    fates.note(kept, !kept);
                    usize::from(kept)
                })
            } else {
                let kept = random.permille(keep);
                fates.note(kept, !kept);
                if !kept {
                    continue;
                }
                new
            };
            self.put(region, first + n, content, false);
        }
        fates
    }

    pub(super) fn flush(&mut self, region: usize, stamp: u64) -> Result<(), IoFailure> {
        if self.gone {
            return Err(failure("the device is gone"));
        }
        if self.read_only || self.hits(DiskFault::FlushError) {
            // F8: some of the data is durable, the rest is gone, and another flush would succeed.
            self.cut_region(region);
            return Err(failure("planted: flush error"));
        }
        if !self.lying {
            self.regions[region].settle(stamp);
        }
        Ok(())
    }

    fn read(
        &mut self,
        region: usize,
        offset: u64,
        len: u64,
        early: Option<Bytes>,
    ) -> Result<Bytes, IoFailure> {
        if self.gone {
            return Err(failure("the device is gone"));
        }
        if self.hits(DiskFault::ReadError) {
            return Err(failure("planted: read error"));
        }
        let bytes = early.unwrap_or_else(|| self.regions[region].read(offset, len));
        let bytes = self.make_stale(region, offset, bytes);
        if self.armed.is_empty() || !self.armed.contains(&DiskFault::StaleRead) {
            return Ok(bytes);
        }
        let range = offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES);
        let stale = self.remembered.iter().rev().find(|(in_region, block, content)| {
            *in_region == region
                && range.contains(block)
                && content.slice() != self.regions[region].now[*block as usize].slice()
        });
        let Some((_, block, content)) = stale else { return Ok(bytes) };
        let mut whole = self.regions[region]
            .read(range.start * BLOCK_BYTES, (range.end - range.start) * BLOCK_BYTES)
            .to_vec();
        let at = (block - range.start) as usize * BLOCK;
        whole[at..at + BLOCK].copy_from_slice(content.slice());
        let skip = (offset - range.start * BLOCK_BYTES) as usize;
        let bytes = Bytes::from(whole).slice(skip..skip + len as usize);
        self.hits(DiskFault::StaleRead);
        Ok(bytes)
    }

    /// Whether the fault waits. If so, it has hit now.
    fn hits(&mut self, fault: DiskFault) -> bool {
        let Some(at) = self.armed.iter().position(|&armed| armed == fault) else { return false };
        self.armed.remove(at);
        self.fired.push(fault);
        true
    }

    /// F25, F1: see the top of this file. Every ticket is void. Returns `true` if one part of the
    /// data that was not durable is there, and another part is not.
    pub fn power_cut(&mut self) -> bool {
        let mut fates = Fates::default();
        for (_, InFlight { work, .. }) in std::mem::take(&mut self.in_flight) {
            match work {
                Work::Write { region, first, blocks, .. } => {
                    self.stamp += 1;
                    for n in 0..blocks.len() {
                        self.put(region, first + n, blocks.get(n), false);
                    }
                }
                Work::Grow { regions } => self.grow_some(regions),
                Work::Take { snapshot, blocks } => self.take_perhaps(snapshot, &blocks),
                Work::Restore { snapshot, from, blocks } => self.restore_some(snapshot, from, &blocks),
                Work::Flush { .. } | Work::Read { .. } | Work::Drop { .. } => {}
            }
        }
        for region in 0..self.regions.len() {
            let of_region = self.cut_region(region);
            fates.note(of_region.kept, of_region.lost);
        }
        self.lying = false;
        self.start_over();
        fates.is_torn()
    }

    /// Each sector that is not durable gets one of the contents that it has had since it was
    /// durable.
    fn cut_region(&mut self, region: usize) -> Fates {
        let mut fates = Fates::default();
        let unflushed = std::mem::take(&mut self.regions[region].unflushed);
        if unflushed.is_empty() {
            return fates;
        }
        // The extremes find the most, so they are frequent.
        let keep = [0, 1000, 100, 500, 900][self.random.below(5) as usize];
        for (block, history) in unflushed {
            let versions: Vec<&Block> =
                std::iter::once(&history.durable).chain(history.later.iter().map(|(_, c)| c)).collect();
            let last = versions.len() - 1;
            let random = &mut self.random;
            let content = match keep {
                0 => {
                    fates.note(false, true);
                    history.durable.clone()
                }
                1000 => {
                    fates.note(true, false);
                    versions[last].clone()
                }
                keep => Block::mix(&versions, || {
                    let choice =
                        if random.permille(keep) { last } else { random.below(last as u64) as usize };
                    fates.note(choice > 0, choice < last);
                    choice
                }),
            };
            self.regions[region].now[block as usize] = content;
        }
        fates
    }

    /// F21, F1: the process is gone, and the machine still runs. Every ticket is void. Returns
    /// `true` if one part of the writes in flight is there, and another part is not.
    pub fn abandon(&mut self) -> bool {
        let mut fates = Fates::default();
        for (_, InFlight { work, .. }) in std::mem::take(&mut self.in_flight) {
            match work {
                Work::Write { region, first, blocks, .. } => {
                    let keep = [0, 1000, 500][self.random.below(3) as usize];
                    let of_write = self.write_some(region, first, &blocks, keep, false);
                    fates.note(of_write.kept, of_write.lost);
                }
                Work::Flush { region, stamp } if self.random.coin() && !self.lying => {
                    self.regions[region].settle(stamp);
                }
                Work::Grow { regions } => self.grow_some(regions),
                Work::Take { snapshot, blocks } => self.take_perhaps(snapshot, &blocks),
                Work::Restore { snapshot, from, blocks } => self.restore_some(snapshot, from, &blocks),
                Work::Flush { .. } | Work::Read { .. } | Work::Drop { .. } => {}
            }
        }
        self.start_over();
        fates.is_torn()
    }

    /// Carries out the faults that wait for the next power cut or end of the process.
    fn start_over(&mut self) {
        if self.hits(DiskFault::OldImage) {
            self.restore_image();
        }
        if self.hits(DiskFault::Replace) {
            self.wipe();
        }
    }

    /// Does what the fault says, or lets it wait for the operation that it hits ([`Disk::fired`]
    /// then tells). `OldImage` and `Replace` wait for the next power cut or end of the process.
    ///
    /// Returns `false` if the fault can do nothing: damage to a journal that is empty, or an image
    /// that was never kept. The disk does not handle `Slow`, `Stall`, `Late`, `Remove` and
    /// `Copied`. Records of the journal have methods of their own.
    pub fn inject(&mut self, fault: DiskFault) -> bool {
        match fault {
            DiskFault::Slow { .. }
            | DiskFault::Stall { .. }
            | DiskFault::Late { .. }
            | DiskFault::Remove
            | DiskFault::OtherFiles
            | DiskFault::Copied
            | DiskFault::LostRecord { .. }
            | DiskFault::MisdirectedRecord { .. }
            | DiskFault::StaleRecord { .. } => false,
            DiskFault::OldImage if self.image.is_none() => false,
            DiskFault::WriteError
            | DiskFault::FlushError
            | DiskFault::ReadError
            | DiskFault::LostWrite
            | DiskFault::Misdirect
            | DiskFault::StaleRead
            | DiskFault::OldImage
            | DiskFault::Replace => {
                self.armed.push(fault);
                true
            }
            DiskFault::Vanish => !std::mem::replace(&mut self.gone, true),
            DiskFault::ReadOnly => !std::mem::replace(&mut self.read_only, true),
            DiskFault::Full => !std::mem::replace(&mut self.full, true),
            DiskFault::Room => std::mem::take(&mut self.full),
            DiskFault::LyingFlush => !std::mem::replace(&mut self.lying, true),
            DiskFault::KeepImage => {
                self.keep_image();
                true
            }
            DiskFault::RotSuperblock { copy } => self.rot(Area::Meta, copy % SUPERBLOCK_COPIES as u64, copy),
            DiskFault::LostSuperblock { copy } => self.lose_superblock(copy % SUPERBLOCK_COPIES as u64),
            DiskFault::RotSuperblocks => {
                let copies = 0..SUPERBLOCK_COPIES as u64;
                copies.filter(|&copy| self.rot(Area::Meta, copy, copy)).count() > 0
            }
            DiskFault::RotJournal { pick } => self.rot_record(pick, |_| true, |_| true),
            DiskFault::RotVersions { pick } => self.rot_versions(pick),
            DiskFault::LostVersions { pick } => self.lose_versions(pick),
            DiskFault::MisdirectedVersions { pick } => self.misdirect_versions(pick),
            DiskFault::StaleVersions { pick } => self.stale_versions(pick),
            DiskFault::LostBlock { pick } => self.lose_block(pick),
            DiskFault::RotVolume { pick } => self.rot_volume(pick, |_, _| true).is_some(),
        }
    }

    /// Faults that were waiting and have hit since the last call.
    pub fn fired(&mut self) -> Vec<DiskFault> {
        std::mem::take(&mut self.fired)
    }

    /// F15: remembers the present content of the disk, including what is only in its cache.
    pub fn keep_image(&mut self) {
        let regions =
            self.regions.iter().map(|region| Region { now: region.now.clone(), unflushed: BTreeMap::new() });
        self.image = Some(regions.collect());
    }

    /// Puts the kept image back, at once. False if there is none. Nothing may be in flight.
    pub fn restore_image(&mut self) -> bool {
        let Some(image) = self.image.clone() else { return false };
        self.void_all();
        self.snapshots.clear();
        self.regions = image;
        true
    }

    /// Replaces the disk by an empty one, at once; it is there again if it had vanished. Nothing
    /// may be in flight.
    pub fn wipe(&mut self) {
        self.void_all();
        self.snapshots.clear();
        for region in &mut self.regions {
            *region = Region::new(region.len() * BLOCK_BYTES);
        }
        self.image = None;
        self.heal();
    }

    /// Ends every fault. A device that has vanished is there again, with its content, and can be
    /// written. Faults that wait for an operation hit none. Damage stays.
    pub fn heal(&mut self) {
        self.gone = false;
        self.read_only = false;
        self.full = false;
        self.lying = false;
        self.armed.clear();
        self.stale = None;
    }

    /// New blocks of volumes find no space.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    fn void_all(&mut self) {
        self.in_flight.clear();
        self.remembered.clear();
        self.stale = None;
    }

    /// Gives synchronous access, for formatting and recovery. Its writes are durable at once.
    pub fn media(&mut self) -> DiskMedia<'_> {
        DiskMedia::new(self, None)
    }

    /// Like [`Disk::media`], but the power fails during the write after `writes` others. That write
    /// is torn, and every operation after it fails. The caller cuts the power as soon as it sees
    /// the failure.
    pub fn media_with_cut(&mut self, writes: u32) -> DiskMedia<'_> {
        DiskMedia::new(self, Some(writes))
    }

    /// Whether nothing of these whole blocks takes space: they read as zeroes without being read.
    #[must_use]
    pub fn is_hole(&self, area: Area, offset: u64, len: u64) -> bool {
        let blocks = (offset / BLOCK_BYTES) as usize..((offset + len) / BLOCK_BYTES) as usize;
        self.regions[region_of(area)].now[blocks].iter().all(|block| block.bytes.is_none())
    }

    /// Returns the content that reads of this block see, `None` for zeroes. Damage shows, read
    /// errors do not.
    ///
    /// # Panics
    /// On a block beyond the area.
    #[must_use]
    pub fn peek(&self, area: Area, block: u64) -> Option<&[u8]> {
        self.regions[region_of(area)].now[block as usize].bytes.as_deref()
    }

    /// Blocks of volumes whose content a fault has made.
    pub fn damaged_blocks(&self) -> impl Iterator<Item = (VolumeId, u64)> {
        let volumes = (0..).map(VolumeId).zip(self.regions[2..].iter().step_by(2));
        volumes.flat_map(|(volume, region)| {
            let bad = (0..).zip(&region.now).filter(|(_, block)| block.bad);
            bad.map(move |(block, _)| (volume, block))
        })
    }

    /// Whether a fault made the content of this block: rot, a lost write, or a write that belonged
    /// elsewhere.
    #[must_use]
    pub fn is_damaged(&self, area: Area, block: u64) -> bool {
        self.regions[region_of(area)].now[block as usize].bad
    }
}

fn write_work(area: Area, offset: u64, blocks: Blocks, durable: bool) -> Work {
    assert!(offset.is_multiple_of(BLOCK_BYTES), "a write at {offset}");
    Work::Write { region: region_of(area), first: offset / BLOCK_BYTES, blocks, durable }
}
