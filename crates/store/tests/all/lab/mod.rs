//! A store on a simulated disk, next to a flat model of what it must contain.
//!
//! The disk executes operations in any order. Volume writes are volatile until a flush that was
//! issued after them completes; a crash keeps an arbitrary subset of the volatile blocks and of the
//! blocks of writes in flight.

// Each test binary uses its own part of this.
#![allow(dead_code)]

use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::sums::sums_bytes;
use mainstay_codec::{Batch, EntryKind, NewEntry, rollback_range, snapshot_range};
use mainstay_store::{
    Area, Checked, IoFailure, LogSource, Media, MediaError, OpId, Output, RecoverError, Segment, Source,
    Store, StoreConfig, Tuning,
};
use mainstay_types::{
    BLOCK_BYTES, Chain, DataState, EXTENT_BYTES, Epoch, Extent, Incarnation, Index, Position, Range,
    ResourceId, SnapshotId, SnapshotState, VolumeId,
};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const BLOCK: usize = BLOCK_BYTES as usize;
pub const RESOURCE: ResourceId = ResourceId(7);

/// A small generator of its own, so that a case repeats from its seed alone.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

pub fn config() -> StoreConfig {
    StoreConfig {
        resource: RESOURCE,
        incarnation: Incarnation(99),
        volumes: vec![2 * EXTENT_BYTES + 8 * BLOCK_BYTES, EXTENT_BYTES],
        sums: true,
        journal_bytes: 40 * BLOCK_BYTES,
    }
}

pub fn tuning() -> Tuning {
    Tuning {
        destage_start_bytes: 12 * BLOCK_BYTES,
        pass_parts: 1,
        pass_bytes_min: 0,
        memory_bytes_max: 6 * BLOCK_BYTES,
        write_bytes_max: 12 * BLOCK_BYTES,
        journal_writes_max: mainstay_types::JOURNAL_WRITES_MAX,
        destage_write_bytes_max: 4 * BLOCK_BYTES,
        destage_writes_max: 3,
        destage_bunch: 2,
        destage_bytes_max: 5 * BLOCK_BYTES,
        installs_max: 2,
        runs_max: 1 << 10,
        hole_bytes_min: 2 * BLOCK_BYTES,
        reserve_bytes: 2 * BLOCK_BYTES,
        sums_bytes_max: BLOCK_BYTES,
        fill_bytes_min: u64::MAX,
        batch_bytes_max: 8 * BLOCK_BYTES,
    }
}

/// Writes of two blocks and more go straight to their place where nothing is.
pub fn filling() -> Tuning {
    Tuning { fill_bytes_min: 2 * BLOCK_BYTES, sums_bytes_max: 3 * BLOCK_BYTES, ..tuning() }
}

/// Content of the media.
#[derive(Clone, Default)]
pub struct Disk {
    pub areas: BTreeMap<Area, Vec<u8>>,
    /// Blocks that a crash may change, where they differ from `areas`: first the content that would
    /// certainly survive, then the later contents that might.
    volatile: BTreeMap<(Area, u64), Vec<Vec<u8>>>,
    /// The files of snapshots: the content of each volume.
    pub snapshots: BTreeMap<SnapshotId, Vec<Vec<u8>>>,
    /// The sums of that.
    pub kept_sums: BTreeMap<SnapshotId, Vec<Vec<u8>>>,
}

impl Disk {
    pub fn new(config: &StoreConfig) -> Self {
        let mut disk = Self::default();
        disk.areas.insert(Area::Meta, vec![0; Store::meta_bytes(config) as usize]);
        disk.areas.insert(Area::Journal, vec![0xee; config.journal_bytes as usize]);
        for (volume, &bytes) in config.volumes.iter().enumerate() {
            disk.areas.insert(Area::Volume(VolumeId(volume as u16)), vec![0; bytes as usize]);
            disk.areas.insert(Area::Sums(VolumeId(volume as u16)), vec![0; sums_bytes(bytes) as usize]);
        }
        disk
    }

    pub fn slice(&self, area: Area, offset: u64, len: u64) -> &[u8] {
        &self.areas[&area][offset as usize..(offset + len) as usize]
    }

    fn put(&mut self, area: Area, offset: u64, data: &[u8]) {
        let bytes = self.areas.get_mut(&area).expect("area exists");
        bytes[offset as usize..offset as usize + data.len()].copy_from_slice(data);
    }

    pub fn grow(&mut self, volume: VolumeId, bytes: u64, meta_bytes: u64) {
        // A real one is as large as it will ever be.
        let sums = (Area::Sums(volume), sums_bytes(bytes));
        for (area, bytes) in [(Area::Volume(volume), bytes), (Area::Meta, meta_bytes), sums] {
            let area = self.areas.get_mut(&area).expect("area exists");
            area.resize(area.len().max(bytes as usize), 0);
        }
    }

    pub fn take_snapshot(&mut self, id: SnapshotId, volumes: &[u64]) {
        let file = |(n, &bytes): (usize, &u64)| {
            self.areas[&Area::Volume(VolumeId(n as u16))][..bytes as usize].to_vec()
        };
        let files = volumes.iter().enumerate().map(file).collect();
        self.snapshots.insert(id, files);
        let sums = |(n, &bytes): (usize, &u64)| {
            let sums = &self.areas[&Area::Sums(VolumeId(n as u16))];
            cut_sums(sums, bytes, sums.len())
        };
        let sums = volumes.iter().enumerate().map(sums).collect();
        self.kept_sums.insert(id, sums);
    }

    /// Puts the content of the snapshot `from` into the volumes, and keeps it once more as `id`.
    /// `half`: only every other block and every other sum, and nothing is kept.
    pub fn restore(&mut self, id: SnapshotId, from: SnapshotId, volumes: &[u64], half: bool) {
        let (mut files, mut sums) = (self.snapshots[&from].clone(), self.kept_sums[&from].clone());
        for (n, &bytes) in volumes.iter().enumerate() {
            let volume = VolumeId(n as u16);
            files[n].resize(bytes as usize, 0);
            sums[n] = cut_sums(&sums[n], bytes, self.areas[&Area::Sums(volume)].len());
            for (area, file, piece) in
                [(Area::Volume(volume), &files[n], BLOCK), (Area::Sums(volume), &sums[n], 4)]
            {
                for (nth, part) in file.chunks(piece).enumerate().filter(|(nth, _)| !half || nth % 2 == 0) {
                    let area = self.areas.get_mut(&area).expect("area exists");
                    area[nth * piece..(nth + 1) * piece].copy_from_slice(part);
                }
            }
        }
        if !half {
            self.snapshots.insert(id, files);
            self.kept_sums.insert(id, sums);
        }
    }

    pub fn drop_snapshot(&mut self, id: SnapshotId) {
        self.snapshots.remove(&id);
        self.kept_sums.remove(&id);
    }

    /// A write that no power cut undoes. Nothing older comes back.
    fn put_durable(&mut self, area: Area, offset: u64, data: &[u8]) {
        for (n, block) in data.chunks(BLOCK).enumerate() {
            let versions = self.volatile.get_mut(&(area, offset + (n * BLOCK) as u64));
            versions.into_iter().flatten().for_each(|version| *version = block.to_vec());
        }
        self.put(area, offset, data);
    }

    /// A write that reads see and a power cut may undo.
    pub fn put_volatile(&mut self, area: Area, offset: u64, data: &[u8]) {
        for (n, block) in data.chunks(BLOCK).enumerate() {
            let at = offset + (n * BLOCK) as u64;
            let old = self.slice(area, at, BLOCK_BYTES).to_vec();
            let versions = self.volatile.entry((area, at)).or_insert_with(|| vec![old]);
            versions.push(block.to_vec());
            self.put(area, at, block);
        }
    }
}

/// Returns the sums of a volume of `volume` bytes out of `sums`, as an area of `len` bytes.
fn cut_sums(sums: &[u8], volume: u64, len: usize) -> Vec<u8> {
    let mut sums = sums[..sums.len().min(volume as usize / BLOCK * 4)].to_vec();
    sums.resize(len, 0);
    sums
}

impl Disk {
    /// The worst power cut: nothing stays that was not certain to.
    pub fn lose_volatile(&mut self) {
        for ((area, at), versions) in std::mem::take(&mut self.volatile) {
            self.put(area, at, &versions[0]);
        }
    }
}

impl Media for Disk {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        Ok(Bytes::copy_from_slice(self.slice(area, offset, len as u64)))
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.put(area, offset, data);
        Ok(())
    }

    fn flush(&mut self, area: Area) -> Result<(), MediaError> {
        self.volatile.retain(|&(of, _), _| of != area);
        Ok(())
    }
}

/// An operation in flight.
#[derive(Clone)]
pub enum Doing {
    Durable {
        area: Area,
        offset: u64,
        data: Vec<u8>,
    },
    Volatile {
        area: Area,
        offset: u64,
        data: Vec<u8>,
    },
    Read {
        area: Area,
        offset: u64,
        len: u64,
    },
    /// How many versions of each block the flush covers.
    Flush {
        covers: BTreeMap<(Area, u64), usize>,
    },
    Grow {
        volume: VolumeId,
        bytes: u64,
        meta_bytes: u64,
    },
    Take {
        id: SnapshotId,
        volumes: Vec<u64>,
    },
    Restore {
        id: SnapshotId,
        from: SnapshotId,
        volumes: Vec<u64>,
    },
    Drop {
        id: SnapshotId,
    },
}

/// The log of the resource, and what the volumes contain after each of its entries.
#[derive(Clone, Default)]
pub struct Log {
    pub batches: Vec<Arc<Batch>>,
}

impl Log {
    pub fn end(&self) -> Position {
        self.batches.last().map_or(Position::default(), |batch| batch.end())
    }

    pub fn chain(&self) -> Chain {
        self.batches.last().map_or(Chain(0), |batch| batch.chain)
    }

    pub fn truncate(&mut self, end: Index) {
        self.batches.retain(|batch| batch.last() <= end);
    }

    /// Ends of batches from `from` on.
    pub fn ends(&self, from: Index) -> Vec<Position> {
        let mut ends = vec![];
        if from.0 == 0 {
            ends.push(Position::default());
        }
        ends.extend(self.batches.iter().map(|batch| batch.end()).filter(|end| end.index >= from));
        ends
    }

    /// Seals a batch of entries right after the end.
    pub fn seal(&mut self, epoch: u64, commit: Index, entries: Vec<NewEntry>) -> Arc<Batch> {
        let first = self.end().index.next();
        let batch = Arc::new(Batch::seal(RESOURCE, Epoch(epoch), first, self.chain(), commit, entries));
        self.batches.push(batch.clone());
        batch
    }

    fn entries(&self, to: Index) -> impl Iterator<Item = (Index, &mainstay_codec::EntryDesc)> {
        self.batches
            .iter()
            .flat_map(|b| b.entries.iter().enumerate().map(|(n, e)| (Index(b.first.0 + n as u64), e)))
            .filter(move |&(index, _)| index <= to)
    }

    /// Returns the content, at `to`, of volumes that had these sizes before the log.
    pub fn content(&self, volumes: &[u64], to: Index) -> Vec<Vec<u8>> {
        let mut out: Vec<Vec<u8>> = volumes.iter().map(|&bytes| vec![0; bytes as usize]).collect();
        let of_volumes = |kind: EntryKind| {
            kind.changes_blocks() || matches!(kind, EntryKind::Resize | EntryKind::Rollback)
        };
        for (index, entry) in self.entries(to).filter(|(_, e)| of_volumes(e.kind)) {
            let range = entry.range;
            if let Some((to, _)) = entry.rollback() {
                let taken = self.snapshots(Index(index.0 - 1))[&to];
                let sizes: Vec<_> = out.iter().map(Vec::len).collect();
                out = self.content(volumes, taken);
                out.iter_mut().zip(sizes).for_each(|(content, bytes)| content.resize(bytes, 0));
                continue;
            }
            if entry.kind == EntryKind::Resize {
                let content = &mut out[usize::from(range.volume.0)];
                content.resize(content.len().max(range.offset as usize), 0);
                continue;
            }
            let slot = &mut out[usize::from(range.volume.0)][range.offset as usize..range.end() as usize];
            if entry.kind == EntryKind::Write {
                slot.copy_from_slice(&entry.payload);
            } else {
                slot.fill(0);
            }
        }
        out
    }

    /// How large the volumes are that had these sizes before the log.
    pub fn sizes(&self, volumes: &[u64], to: Index) -> Vec<u64> {
        let mut sizes = volumes.to_vec();
        for (_, entry) in self.entries(to).filter(|(_, e)| e.kind == EntryKind::Resize) {
            let size = &mut sizes[usize::from(entry.range.volume.0)];
            *size = entry.range.offset.max(*size);
        }
        sizes
    }

    /// Snapshots as of `to`, each with the entry that took it.
    pub fn snapshots(&self, to: Index) -> BTreeMap<SnapshotId, Index> {
        let mut out = BTreeMap::new();
        for (index, entry) in self.entries(to) {
            match (entry.kind, entry.snapshot()) {
                (EntryKind::Snapshot | EntryKind::Rollback, Some(id)) => _ = out.entry(id).or_insert(index),
                (EntryKind::DropSnapshot, Some(id)) => _ = out.remove(&id),
                _ => {}
            }
        }
        out
    }

    /// Last entry up to `to` that changed each extent.
    pub fn versions(&self, to: Index) -> BTreeMap<(VolumeId, Extent), Index> {
        let mut out = BTreeMap::new();
        for (index, entry) in self.entries(to) {
            if entry.kind == EntryKind::Rollback {
                out.values_mut().for_each(|changed| *changed = index);
            }
            if !entry.kind.changes_blocks() {
                continue;
            }
            for extent in entry.range.offset / EXTENT_BYTES..entry.range.end().div_ceil(EXTENT_BYTES) {
                out.insert((entry.range.volume, Extent(extent as u32)), index);
            }
        }
        out
    }
}

/// A few random entries, mostly on the same few blocks and around an extent boundary; seldom a
/// volume grows.
pub fn entries(random: &mut Random, volumes: &[u64]) -> Vec<NewEntry> {
    let count = 1 + random.below(3);
    (0..count)
        .map(|_| {
            let volume = random.below(volumes.len());
            if random.chance(3) {
                return resize(volume as u16, volumes[volume] + (1 + random.below(24) as u64) * BLOCK_BYTES);
            }
            let blocks_in_volume = volumes[volume] / BLOCK_BYTES;
            let start = [0, 250, 508, blocks_in_volume - 8][random.below(4)].min(blocks_in_volume - 8);
            let first = start + random.below(8) as u64;
            let most = (blocks_in_volume - first).min(4);
            let mut blocks = 1 + random.below(most as usize) as u64;
            let kind = match random.below(10) {
                0 => EntryKind::Discard,
                1 => EntryKind::WriteZeroes,
                _ => EntryKind::Write,
            };
            if kind == EntryKind::Discard && random.chance(30) {
                blocks = blocks_in_volume - first;
            }
            let len = blocks * BLOCK_BYTES;
            let payload = if kind == EntryKind::Write {
                // No two blocks are alike, so that none is taken for another.
                let tag = random.next();
                let block = |n| tag.wrapping_add(n).to_le_bytes().repeat(BLOCK / 8);
                Bytes::from((0..blocks).flat_map(block).collect::<Vec<u8>>())
            } else {
                Bytes::new()
            };
            let range = Range { volume: VolumeId(volume as u16), offset: first * BLOCK_BYTES, len };
            NewEntry { kind, range, payload, session: 0, request: 0 }
        })
        .collect()
}

pub fn snapshot(id: u32) -> NewEntry {
    let range = snapshot_range(SnapshotId(id));
    NewEntry { kind: EntryKind::Snapshot, range, payload: Bytes::new(), session: 0, request: 0 }
}

pub fn drop_snapshot(id: u32) -> NewEntry {
    NewEntry { kind: EntryKind::DropSnapshot, ..snapshot(id) }
}

pub fn rollback(to: u32, mark: u32) -> NewEntry {
    let range = rollback_range(SnapshotId(to), SnapshotId(mark));
    NewEntry { kind: EntryKind::Rollback, range, ..snapshot(to) }
}

pub fn resize(volume: u16, bytes: u64) -> NewEntry {
    let range = Range { volume: VolumeId(volume), offset: bytes, len: 0 };
    NewEntry { kind: EntryKind::Resize, range, payload: Bytes::new(), session: 0, request: 0 }
}

/// Entry of a scrub of an extent, in a volume of `volume_bytes` bytes.
pub fn scrub(volume: u16, extent: u64, volume_bytes: u64) -> NewEntry {
    let offset = extent * EXTENT_BYTES;
    let len = EXTENT_BYTES.min(volume_bytes - offset);
    let range = Range { volume: VolumeId(volume), offset, len };
    NewEntry { kind: EntryKind::Scrub, range, payload: Bytes::new(), session: 0, request: 0 }
}

pub fn write(block: u64, blocks: u64, fill: u8) -> NewEntry {
    let payload = Bytes::from(vec![fill; blocks as usize * BLOCK]);
    NewEntry { kind: EntryKind::Write, payload, ..discard(block, blocks) }
}

pub fn discard(block: u64, blocks: u64) -> NewEntry {
    let range = Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: blocks * BLOCK_BYTES };
    NewEntry { kind: EntryKind::Discard, range, payload: Bytes::new(), session: 0, request: 0 }
}

pub fn zeroes(block: u64, blocks: u64) -> NewEntry {
    NewEntry { kind: EntryKind::WriteZeroes, ..discard(block, blocks) }
}

pub struct Lab {
    pub config: StoreConfig,
    pub tuning: Tuning,
    pub store: Store,
    pub disk: Disk,
    pub doing: Vec<(OpId, Doing)>,
    /// Outputs by which the store told something, oldest first.
    pub told: Vec<Output>,
    /// Ranges that were zeroed: first block, number of blocks, whether their space goes.
    pub zeroed: Vec<(u64, u64, bool)>,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(config(), tuning())
    }

    pub fn with(config: StoreConfig, tuning: Tuning) -> Self {
        let mut disk = Disk::new(&config);
        Store::format(&mut disk, &config).expect("the simulated disk does not fail");
        let store = Store::recover(&mut disk, tuning).expect("a formatted replica");
        assert_eq!(store.config(), &config);
        Self { config, tuning, store, disk, doing: Vec::new(), told: Vec::new(), zeroed: Vec::new() }
    }

    /// Takes all outputs.
    pub fn pump(&mut self) {
        while let Some(output) = self.store.poll() {
            let (op, doing) = match output {
                Output::JournalWrite { op, offset, parts } => {
                    let mut data = Vec::new();
                    for (local, batch) in &parts {
                        data.extend_from_slice(&batch.header_block(*local));
                        batch.payload.iter().for_each(|piece| data.extend_from_slice(piece));
                    }
                    (op, Doing::Durable { area: Area::Journal, offset, data })
                }
                Output::MetaWrite { op, offset, data } => {
                    (op, Doing::Durable { area: Area::Meta, offset, data: data.to_vec() })
                }
                Output::JournalRead { op, offset, len } => {
                    (op, Doing::Read { area: Area::Journal, offset, len })
                }
                Output::SumsRead { op, volume, offset, len } => {
                    (op, Doing::Read { area: Area::Sums(volume), offset, len })
                }
                Output::SumsWrite { op, volume, offset, data } => {
                    (op, Doing::Durable { area: Area::Sums(volume), offset, data: data.to_vec() })
                }
                Output::VolumeWrite { op, volume, offset, data, durable } => {
                    let (area, data) = (Area::Volume(volume), data.concat());
                    let doing = if durable {
                        Doing::Durable { area, offset, data }
                    } else {
                        Doing::Volatile { area, offset, data }
                    };
                    (op, doing)
                }
                Output::VolumeZero { op, volume, offset, len, free } => {
                    self.zeroed.push((offset / BLOCK_BYTES, len / BLOCK_BYTES, free));
                    (op, Doing::Volatile { area: Area::Volume(volume), offset, data: vec![0; len as usize] })
                }
                Output::VolumeFlush { op, volume } => {
                    let area = Area::Volume(volume);
                    let of_volume = self.disk.volatile.iter().filter(|((a, _), _)| *a == area);
                    (op, Doing::Flush { covers: of_volume.map(|(&key, v)| (key, v.len())).collect() })
                }
                Output::VolumeGrow { op, volume, bytes, meta_bytes } => {
                    (op, Doing::Grow { volume, bytes, meta_bytes })
                }
                Output::SnapshotTake { op, snapshot: id, volumes } => {
                    let writes = |(_, doing): &(OpId, Doing)| matches!(doing, Doing::Volatile { .. });
                    assert!(!self.doing.iter().any(writes), "a volume is written while it is cloned");
                    (op, Doing::Take { id, volumes })
                }
                Output::SnapshotRestore { op, snapshot: id, from, volumes } => {
                    let writes = |(_, doing): &(OpId, Doing)| matches!(doing, Doing::Volatile { .. });
                    assert!(!self.doing.iter().any(writes), "a volume is written while it is rolled back");
                    assert!(self.disk.volatile.is_empty(), "what was written before is not flushed");
                    (op, Doing::Restore { id, from, volumes })
                }
                Output::SnapshotDrop { op, snapshot: id } => (op, Doing::Drop { id }),
                told => {
                    self.told.push(told);
                    continue;
                }
            };
            self.forbid_overlap(&doing);
            self.doing.push((op, doing));
        }
    }

    /// Two writes in flight must not touch the same block: a disk may do them in either order.
    fn forbid_overlap(&self, new: &Doing) {
        let span = |doing: &Doing| match doing {
            Doing::Durable { area, offset, data } | Doing::Volatile { area, offset, data } => {
                Some((*area, *offset, *offset + data.len() as u64))
            }
            _ => None,
        };
        let Some((area, start, end)) = span(new) else { return };
        assert!(end <= self.disk.areas[&area].len() as u64, "write beyond the end of {area:?}");
        for (_, other) in &self.doing {
            if let Some((a, s, e)) = span(other) {
                assert!(a != area || e <= start || end <= s, "overlapping writes in flight to {area:?}");
            }
        }
    }

    /// Completes the operation at this place among those in flight.
    pub fn complete(&mut self, at: usize) {
        let (op, doing) = self.doing.remove(at);
        let mut bytes = None;
        match doing {
            Doing::Durable { area, offset, data } => self.disk.put_durable(area, offset, &data),
            Doing::Volatile { area, offset, data } => self.disk.put_volatile(area, offset, &data),
            Doing::Grow { volume, bytes, meta_bytes } => self.disk.grow(volume, bytes, meta_bytes),
            Doing::Take { id, volumes } => self.disk.take_snapshot(id, &volumes),
            Doing::Restore { id, from, volumes } => self.disk.restore(id, from, &volumes, false),
            Doing::Drop { id } => self.disk.drop_snapshot(id),
            Doing::Read { area, offset, len } => {
                bytes = Some(Bytes::copy_from_slice(self.disk.slice(area, offset, len)));
            }
            Doing::Flush { covers } => {
                for (key, count) in covers {
                    if let Some(versions) = self.disk.volatile.get_mut(&key) {
                        versions.drain(..count - 1);
                        if versions.len() == 1 {
                            self.disk.volatile.remove(&key);
                        }
                    }
                }
            }
        }
        self.store.complete(op, Ok(bytes));
        self.pump();
    }

    pub fn fail(&mut self, at: usize) {
        let (op, _) = self.doing.remove(at);
        self.store.complete(op, Err(IoFailure::new("planted")));
        self.pump();
    }

    pub fn fail_for_space(&mut self, at: usize) {
        let (op, _) = self.doing.remove(at);
        self.store.complete(op, Err(IoFailure { no_space: true, ..IoFailure::new("full") }));
        self.pump();
    }

    /// Ends every write to a volume for want of space, and everything else well. Returns whether
    /// there was such a write.
    pub fn settle_without_space(&mut self) -> bool {
        let mut met = false;
        self.pump();
        while !self.doing.is_empty() {
            if !matches!(self.doing[0].1, Doing::Volatile { .. }) {
                self.complete(0);
                continue;
            }
            met = true;
            let (op, _) = self.doing.remove(0);
            self.store.complete(op, Err(IoFailure { no_space: true, ..IoFailure::new("full") }));
            self.pump();
        }
        met
    }

    /// Appends one batch, and runs the operations that follow from it.
    pub fn append(&mut self, log: &mut Log, entries: Vec<NewEntry>) {
        let batch = log.seal(1, log.end().index, entries);
        self.store.append(batch.clone());
        self.store.commit(batch.last());
        self.pump();
    }

    /// Completes everything, oldest first.
    pub fn settle(&mut self) {
        self.pump();
        while !self.doing.is_empty() {
            self.complete(0);
        }
    }

    /// Returns a disk that a crash now could leave behind.
    pub fn crashed_disk(&self, random: &mut Random) -> Disk {
        let mut disk = self.disk.clone();
        let keep = [0, 50, 100][random.below(3)];
        for (_, doing) in &self.doing {
            match doing {
                Doing::Durable { area, offset, data } => {
                    for (n, block) in data.chunks(BLOCK).enumerate() {
                        if random.chance(keep) {
                            disk.put(*area, offset + (n * BLOCK) as u64, block);
                        }
                    }
                }
                Doing::Volatile { area, offset, data } => disk.put_volatile(*area, *offset, data),
                Doing::Grow { volume, bytes, meta_bytes } if random.chance(keep) => {
                    disk.grow(*volume, *bytes, *meta_bytes);
                }
                Doing::Take { id, volumes } if random.chance(keep) => disk.take_snapshot(*id, volumes),
                // Half of a snapshot.
                Doing::Take { id, .. } if random.chance(50) => _ = disk.snapshots.insert(*id, vec![]),
                Doing::Restore { id, from, volumes } => match random.below(3) {
                    0 => disk.restore(*id, *from, volumes, false),
                    1 => disk.restore(*id, *from, volumes, true),
                    _ => {}
                },
                Doing::Drop { id } if random.chance(keep) => disk.drop_snapshot(*id),
                Doing::Read { .. }
                | Doing::Flush { .. }
                | Doing::Grow { .. }
                | Doing::Take { .. }
                | Doing::Drop { .. } => {}
            }
        }
        for ((area, at), versions) in std::mem::take(&mut disk.volatile) {
            let survivor = &versions[random.below(versions.len())];
            disk.put(area, at, survivor);
        }
        disk
    }

    pub fn recover_from(&mut self, disk: Disk) -> Result<(), RecoverError> {
        self.disk = disk;
        self.doing.clear();
        self.told.clear();
        self.store = Store::recover(&mut self.disk, self.tuning)?;
        // Like the program that opens a replica.
        let kept: Vec<_> = self.store.snapshots_on_disk().collect();
        assert!(kept.iter().all(|id| self.disk.snapshots.contains_key(id)), "{kept:?} are not there");
        self.disk.snapshots.retain(|id, _| kept.contains(id));
        self.disk.kept_sums.retain(|id, _| kept.contains(id));
        Ok(())
    }

    /// Completes `operations` operations one after the other, in the order in which they were
    /// begun, or all if there are fewer.
    pub fn complete_some(&mut self, operations: u64) {
        for _ in 0..operations {
            if !self.doing.is_empty() {
                self.complete(0);
            }
        }
    }

    /// Crashes, and commits all that is left of the log.
    pub fn crash_and_commit(&mut self, random: &mut Random, log: &mut Log) {
        self.crash(random).expect("only torn tails");
        log.truncate(self.store.log_state().end.index);
        self.store.commit(log.end().index);
        self.settle();
    }

    pub fn crash(&mut self, random: &mut Random) -> Result<(), RecoverError> {
        let disk = self.crashed_disk(random);
        self.recover_from(disk)
    }

    /// Committed content as a reader of the devices would see it.
    pub fn content(&self) -> Vec<Vec<u8>> {
        let volumes = (0..).map(VolumeId).zip(&self.store.config().volumes);
        let content = volumes.map(|(volume, &len)| {
            let range = Range { volume, offset: 0, len };
            self.gather(range, &self.store.read(range)).expect("what the overlay names is in the ring")
        });
        content.collect()
    }

    /// Returns the content of the segments of a range; `None` if the journal has not all of it any
    /// more.
    pub fn gather(&self, range: Range, segments: &[Segment]) -> Option<Vec<u8>> {
        let mut content = Vec::new();
        for segment in segments {
            assert_eq!(segment.offset, range.offset + content.len() as u64, "segments are consecutive");
            match &segment.source {
                Source::Memory(data) => {
                    assert_eq!(data.len() as u64, segment.len);
                    content.extend_from_slice(data);
                }
                Source::Journal { offset, payload } => {
                    if !self.store.holds(payload) {
                        return None;
                    }
                    let whole = self.disk.slice(Area::Journal, payload.offset, payload.len);
                    let part = payload.part(&Bytes::copy_from_slice(whole), *offset, segment.len);
                    content.extend_from_slice(&part.expect("the payload is whole"));
                }
                Source::Volume => {
                    let found = self.disk.slice(Area::Volume(range.volume), segment.offset, segment.len);
                    self.check_sums(range.volume, segment.offset, found);
                    content.extend_from_slice(found);
                }
                Source::Zero => content.resize(content.len() + segment.len as usize, 0),
            }
        }
        assert_eq!(content.len() as u64, range.len);
        Some(content)
    }

    /// Returns what [`Store::check_blocks`] says of `found`, if it is read from a volume now.
    pub fn checked(&self, volume: VolumeId, offset: u64, found: &[u8]) -> Checked {
        let range = Range { volume, offset, len: found.len() as u64 };
        let page = |page: u64| {
            let bytes = self.disk.slice(Area::Sums(volume), page * BLOCK_BYTES, BLOCK_BYTES);
            (page, Bytes::copy_from_slice(bytes))
        };
        let pages: Vec<_> = self.store.sums_to_read(range).map(page).collect();
        self.store.check_blocks((volume, offset / BLOCK_BYTES), found, &pages, self.store.volume_stamp())
    }

    /// Checks that what is read of a volume fits its sums, unless it is just being written or the
    /// target of a copy.
    fn check_sums(&self, volume: VolumeId, offset: u64, found: &[u8]) {
        if self.store.log_state().data == DataState::Consistent {
            let checked = self.checked(volume, offset, found);
            assert!(!matches!(checked, Checked::Damaged(_)), "{checked:?}");
        }
    }

    /// The store agrees with the model in everything it can be asked.
    pub fn check(&self, log: &Log) {
        let state = self.store.log_state();
        assert!(state.commit <= state.end.index);
        assert!(log.end().index >= state.end.index, "durable {} beyond {}", state.end, log.end());
        // While it is rolled back nothing is to be read.
        if self.store.log_state().data == DataState::Consistent && !self.store.rolling_back() {
            assert!(
                self.content() == log.content(&self.config.volumes, state.commit),
                "content at {}",
                state.commit
            );
            for ((volume, extent), changed) in log.versions(state.commit) {
                let version = self.store.version(volume, extent);
                assert!(
                    version >= changed,
                    "version of {volume}/{extent} is {version}, changed at {changed} (R14)"
                );
            }
        }
        self.check_log(log);
        self.check_snapshots(log);
    }

    /// Checks that the kept state of a copy's target is what the log says it held. A whole replica
    /// keeps none.
    pub fn check_kept(&self, log: &Log) {
        let state = self.store.log_state();
        let Some((id, kept)) = self.store.kept() else { return };
        assert_eq!((state.data, kept.at), (DataState::Inconsistent, state.base));
        let content = log.content(&self.config.volumes, kept.at);
        assert!(self.disk.snapshots[&id] == content, "what is kept is not the log up to {}", kept.at);
    }

    /// Checks that the snapshots are those of the log, and that the files here have their content.
    pub fn check_snapshots(&self, log: &Log) {
        let expected = log.snapshots(self.store.applied());
        let found: Vec<_> = self.store.snapshots().collect();
        assert!(found.iter().map(|(id, _)| id).eq(expected.keys()), "{found:?} and not {expected:?}");
        for (id, snapshot) in found {
            assert!(snapshot.at == expected[&id] || snapshot.at.0 == 0, "{snapshot:?} of {expected:?}");
            if snapshot.state == SnapshotState::Held {
                let content = log.content(&self.config.volumes, expected[&id]);
                assert!(self.disk.snapshots[&id] == content, "content of {id} as of {}", expected[&id]);
            }
        }
    }

    /// Every batch that the store says it has is the model's.
    pub fn check_log(&self, log: &Log) {
        let durable = self.store.log_state().end.index;
        for batch in &log.batches {
            let Ok(plan) = self.store.log_plan(batch.first, 1) else { continue };
            let Some(piece) = plan.first() else { continue };
            assert_eq!(
                (piece.first, piece.last, piece.len),
                (batch.first, batch.last(), batch.journal_len())
            );
            match &piece.source {
                LogSource::Memory(found) => assert_eq!(found.chain, batch.chain),
                LogSource::Journal { offset } => {
                    assert!(batch.last() <= durable);
                    let bytes = Bytes::copy_from_slice(self.disk.slice(Area::Journal, *offset, piece.len));
                    let found =
                        Batch::decode(&bytes[..HEADER_BLOCK_BYTES], &bytes.slice(HEADER_BLOCK_BYTES..));
                    assert_eq!(found.expect("a whole batch").chain, batch.chain);
                }
                LogSource::Volume { offset, ranges } => {
                    assert!(batch.last() <= durable);
                    let header = self.disk.slice(Area::Journal, *offset, BLOCK_BYTES);
                    let part =
                        |range: &Range| self.disk.slice(Area::Volume(range.volume), range.offset, range.len);
                    let payload = ranges.iter().map(part).collect::<Vec<_>>().concat();
                    let found = Batch::decode(header, &payload.into());
                    let covered = batch.last() <= self.store.checkpoint();
                    assert!(covered || found.is_ok_and(|found| found.chain == batch.chain));
                }
            }
        }
    }

    pub fn told_durable(&self) -> Index {
        let durable = self.told.iter().filter_map(|told| match told {
            Output::Durable { index } => Some(*index),
            _ => None,
        });
        durable.last().unwrap_or_default()
    }
}
