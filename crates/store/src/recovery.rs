//! Formatting and recovery.
//!
//! Recovery takes the newest superblock, loads the version table that it names, and follows the
//! chain of batches from the checkpoint. Where the chain ends, recovery asks whether the next
//! record is torn or damaged (R12). Every record that was submitted after another one was durable
//! says so (`durable_before`). So recovery searches the rest of the ring for such statements.
//!
//! The records that were in flight with the newest ones have no such witness. Any part of them may
//! be there, and the first that is not whole ends the log. Statements in records that a cut or an
//! earlier recovery made void do not count. The superblock says where the last of these ended the
//! log, and that counts. Then recovery makes a new generation and the end that it found durable,
//! before anything else can be appended.
//!
//! A batch's own `commit` field is no evidence of durability here: a replica that is catching up
//! receives batches whose commit index is ahead of its journal.
//!
//! [recovery.md](../../../docs/internals/recovery.md) has every condition that is distinguished
//! here, with the decision, the reason, an example and the test that shows it.

use crate::Store;
use crate::api::{Area, Media, MediaError, RecoverError, StoreConfig, Tuning};
use crate::append::{note_epoch, without_payload};
use crate::before_copy::Kept;
use crate::fill::{Fill, Fills};
use crate::journal::{Held, Journal, Placed};
use crate::overlay::Overlay;
use crate::snapshots::on_record;
use crate::sums::{Sums, pages_of, sum_in};
use crate::superblock::{SUPERBLOCK_COPIES, is_void, push_void};
use crate::versions::{PageId, Versions, first_page, pages, pages_end, placed};
use bytes::Bytes;
use mainstay_codec::batch::{BATCH_MAGIC, BatchHead, HEADER_BLOCK_BYTES};
use mainstay_codec::sums::SUMS_PER_PAGE;
use mainstay_codec::superblock::SUPERBLOCK_BYTES;
use mainstay_codec::versions::VERSIONS_PAGE_BYTES;
use mainstay_codec::{
    Batch, Checkpoint, DecodeError, LocalHeader, PayloadPlace, SnapshotRecord, Superblock, TablePlace, Void,
};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, Epoch, Index, Position, Range, SnapshotId, VolumeId, reach,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Bytes that are read or written at once.
const CHUNK_BYTES: u64 = 4 << 20;

/// Where a page of the version tables is in the meta area, in bytes.
pub fn table_offset(page: usize) -> u64 {
    (SUPERBLOCK_COPIES * SUPERBLOCK_BYTES + page * VERSIONS_PAGE_BYTES) as u64
}

/// The blocks of [`Area::Meta`] that hold the version tables which a superblock names.
#[must_use]
pub fn table_blocks(superblock: &Superblock) -> Vec<u64> {
    let of_volume = |&place: &TablePlace| {
        let first = SUPERBLOCK_COPIES + first_page(place, superblock.versions_slot);
        (first..first + pages(place)).map(|block| block as u64)
    };
    superblock.tables.iter().flat_map(of_volume).collect()
}

impl Store {
    /// Size of [`Area::Meta`] of a replica that is to be formatted so.
    #[must_use]
    pub fn meta_bytes(config: &StoreConfig) -> u64 {
        table_offset(pages_end(&placed(&[], &config.volumes)))
    }

    /// Size of [`Area::Meta`] that this replica needs, at least.
    ///
    /// # Errors
    /// When there is no whole superblock, or the media cannot be read.
    pub fn meta_bytes_on(media: &mut dyn Media) -> Result<u64, RecoverError> {
        Ok(table_offset(pages_end(&read_superblock(media)?.0.tables)))
    }

    /// Makes an empty replica. Zeroes the whole journal, so that no record of an earlier life is in
    /// it and its space is allocated. Volumes and their sums must read as zeroes already.
    pub fn format(media: &mut dyn Media, config: &StoreConfig) -> Result<(), MediaError> {
        Self::format_holding(media, config, &[])
    }

    /// Makes an empty replica that holds these snapshots, which no entry of its log has taken:
    /// their files are there. In ascending order.
    ///
    /// # Errors
    /// When the media cannot be written.
    pub fn format_holding(
        media: &mut dyn Media,
        config: &StoreConfig,
        snapshots: &[SnapshotId],
    ) -> Result<(), MediaError> {
        // An earlier replica must not be half there: first its superblocks go.
        media.write_durable(Area::Meta, 0, &[0; SUPERBLOCK_COPIES * SUPERBLOCK_BYTES])?;
        let zeroes = vec![0; CHUNK_BYTES.min(config.journal_bytes) as usize];
        let mut offset = 0;
        while offset < config.journal_bytes {
            let len = CHUNK_BYTES.min(config.journal_bytes - offset);
            media.write_durable(Area::Journal, offset, &zeroes[..len as usize])?;
            offset += len;
        }
        let tables = placed(&[], &config.volumes);
        let mut versions = Versions::new(&tables);
        let mut from = PageId { volume: 0, page: 0 };
        while let Some((at, bytes)) = versions.next_write(0, from, &tables) {
            let page = first_page(tables[at.volume], 0) + at.page;
            media.write_durable(Area::Meta, table_offset(page), &bytes)?;
            from = PageId { page: at.page + bytes.len() / VERSIONS_PAGE_BYTES, ..at };
        }
        let versions_root = versions.root(0, &tables);
        let superblock = Superblock {
            sequence: 1,
            resource: config.resource,
            incarnation: config.incarnation,
            volumes: config.volumes.clone(),
            tables,
            journal_bytes: config.journal_bytes,
            sums: config.sums,
            filled: false,
            promised: Epoch(0),
            generation: 1,
            voids: Vec::new(),
            checkpoint: Checkpoint { at: Position::default(), chain: Chain(0), offset: 0 },
            commit: Index(0),
            unfinished: None,
            epochs: Vec::new(),
            versions_slot: 0,
            versions_root,
            snapshots: snapshots.iter().map(|&id| SnapshotRecord { id, held: true, at: Index(0) }).collect(),
            client: ClientMark::default(),
        };
        write_superblock(media, &superblock, [0, 1])
    }

    /// Returns the parameters of the replica, for a caller that checks first whether the rest of it
    /// fits.
    ///
    /// # Errors
    /// When there is no whole superblock, or the media cannot be read.
    pub fn config_on(media: &mut dyn Media) -> Result<StoreConfig, RecoverError> {
        Ok(config_of(&read_superblock(media)?.0))
    }

    /// Brings back the durable state of a replica.
    ///
    /// # Errors
    /// See [`RecoverError`]. Nothing is changed on the media then, except when writing itself
    /// failed.
    pub fn recover(media: &mut dyn Media, tuning: Tuning) -> Result<Self, RecoverError> {
        Self::recover_known(media, tuning, Index(0))
    }

    /// Recovers like [`Store::recover`], and refuses an older copy of the files. `known` is the
    /// last entry that this replica is known to have held, durable and committed, by evidence
    /// outside of these files. A log that ends earlier is that of an older copy, which must not
    /// lead (R12). An inconsistent replica does not lead anyway (R16), and its log may begin anew;
    /// for it `known` does not count.
    ///
    /// # Errors
    /// As [`Store::recover`], and [`RecoverError::Older`].
    pub fn recover_known(media: &mut dyn Media, tuning: Tuning, known: Index) -> Result<Self, RecoverError> {
        let (mut superblock, order) = read_superblock(media)?;
        let versions = read_versions(media, &superblock)?;
        let log = scan(media, &superblock)?;
        let older = log.end.index < known && superblock.unfinished.is_none();
        if older && !planted(Bug::OlderCopyBelieved) {
            reach!("store: the files are an older copy");
            return Err(RecoverError::Older { end: log.end.index, known });
        }
        // Records that a process that died left in the device's cache were found as well. They
        // count as durable from now on. So does what they have filled.
        media.flush(Area::Journal)?;
        let pages = zero_unfinished(media, &superblock, &log)?;
        reach!("store: a replica is recovered");
        if superblock.unfinished.is_some() {
            reach!("store: an inconsistent replica is recovered");
        }
        superblock.sequence += 1;
        superblock.generation += 1;
        superblock.commit = log.commit;
        push_void(&mut superblock.voids, Void { generation: superblock.generation, end: log.end.index });
        write_superblock(media, &superblock, order)?;

        let mut store = Self {
            end_volumes: superblock.volumes.clone(),
            files: superblock.volumes.clone(),
            meta_bytes: table_offset(pages_end(&superblock.tables)),
            growing: BTreeSet::new(),
            grow_stalled: BTreeSet::new(),
            grow_due: true,
            restore_stalled: false,
            config: config_of(&superblock),
            tuning,
            superblock_write: None,
            jobs: VecDeque::new(),
            promised: superblock.promised,
            promises_made: VecDeque::new(),
            unfinished: superblock.unfinished,
            journal: log.journal,
            queue: VecDeque::new(),
            queue_bytes: 0,
            journal_writes: VecDeque::new(),
            end: log.end,
            end_chain: log.chain,
            epochs: log.epochs,
            durable: log.end.index,
            durable_chain: log.chain,
            commit: log.commit,
            applied: superblock.checkpoint.at.index,
            pending: log.pending,
            overlay: Overlay::default(),
            fills: Fills::default(),
            layers: VecDeque::new(),
            snapshots: superblock.snapshots.iter().map(on_record).collect(),
            last_snapshot: superblock.snapshots.iter().map(|record| record.id).max().unwrap_or_default(),
            doomed: Vec::new(),
            client: superblock.client,
            versions,
            sums: Sums::default(),
            pass: None,
            destage_forced: false,
            copying: false,
            copy_volumes: superblock.volumes.clone(),
            installed: BTreeSet::new(),
            ahead: Default::default(),
            installs: VecDeque::new(),
            installing: BTreeMap::new(),
            finish: None,
            kept: if superblock.unfinished.is_some_and(|copy| copy.kept) { Kept::Held } else { Kept::No },
            ops: Vec::new(),
            groups: BTreeMap::new(),
            of_pass: (0, 0),
            touched: BTreeSet::new(),
            pins: Vec::new(),
            outputs: VecDeque::new(),
            next_op: 1,
            failed: false,
            superblock,
        };
        store.end_volumes = store.volumes_at_end();
        store.take_fills(log.fills, pages, log.end.index);
        store.apply();
        store.forget_under_fills();
        store.forget_scrubs();
        Ok(store)
    }
}

/// Makes blocks zeroes again that batches which are not in the log may have filled, or for which
/// there was no space (`fill.rs`). Only those whose sums say that they are zeroes, because where
/// anything else is the log or the volume has its content. Flushes the volumes. Returns the pages
/// of sums of all batches that are in the log and filled.
fn zero_unfinished(
    media: &mut dyn Media,
    superblock: &Superblock,
    log: &Log,
) -> Result<BTreeMap<(VolumeId, u64), Bytes>, MediaError> {
    let mut pages: BTreeMap<(VolumeId, u64), Bytes> = BTreeMap::new();
    let mut page_of = |media: &mut dyn Media, volume: VolumeId, page: u64| -> Result<Bytes, MediaError> {
        match pages.entry((volume, page)) {
            Entry::Occupied(here) => Ok(here.get().clone()),
            Entry::Vacant(place) => {
                let bytes = media.read(Area::Sums(volume), page * BLOCK_BYTES, BLOCK_BYTES as usize)?;
                Ok(place.insert(bytes).clone())
            }
        }
    };
    let filled = Fills::found(log.fills.iter().cloned().collect());
    let filled_volumes = log.fills.iter().flat_map(Fill::ranges).map(|range| range.volume);
    let mut touched: BTreeSet<_> = filled_volumes.filter(|_| !planted(Bug::FoundFillsNotFlushed)).collect();
    for range in log.unfinished.iter().filter(|range| is_within(superblock, range)) {
        if planted(Bug::RecoveryLeavesFilled) {
            break;
        }
        let volume = range.volume;
        for (first, end, in_log) in filled.split(volume, range.first_block(), range.end_block()) {
            if in_log {
                continue;
            }
            let (offset, len) = (first * BLOCK_BYTES, (end - first) * BLOCK_BYTES);
            let content = media.read(Area::Volume(volume), offset, len as usize)?;
            for (block, bytes) in (first..end).zip(content.chunks(BLOCK_BYTES as usize)) {
                let sums = page_of(media, volume, block / SUMS_PER_PAGE)?;
                if sum_in(&sums, block) == 0 && bytes.iter().any(|&byte| byte != 0) {
                    reach!("store: recovery zeroes what an unfinished write has left");
                    media.zero(volume, block * BLOCK_BYTES, BLOCK_BYTES)?;
                    touched.insert(volume);
                }
            }
        }
    }
    for volume in touched {
        media.flush(Area::Volume(volume))?;
    }
    for range in log.fills.iter().flat_map(Fill::ranges) {
        for page in pages_of(range.first_block(), range.end_block()) {
            page_of(media, range.volume, page)?;
        }
    }
    Ok(pages)
}

/// Whether a range of a record lies in the volumes as the superblock has them: nothing is filled
/// beyond.
fn is_within(superblock: &Superblock, range: &Range) -> bool {
    let bytes = superblock.volumes.get(usize::from(range.volume.0)).copied().unwrap_or(0);
    superblock.sums && range.end() <= bytes
}

fn config_of(superblock: &Superblock) -> StoreConfig {
    StoreConfig {
        resource: superblock.resource,
        incarnation: superblock.incarnation,
        volumes: superblock.volumes.clone(),
        journal_bytes: superblock.journal_bytes,
        sums: superblock.sums,
    }
}

/// `order`: of the pairs of copies.
fn write_superblock(
    media: &mut dyn Media,
    superblock: &Superblock,
    order: [u64; 2],
) -> Result<(), MediaError> {
    let copy = superblock.encode();
    let data = [copy.as_slice(), copy.as_slice()].concat();
    for pair in order {
        media.write_durable(Area::Meta, pair * data.len() as u64, &data)?;
    }
    Ok(())
}

/// Each copy of the superblock that is whole.
///
/// # Errors
/// When the media cannot be read, or a copy is whole and of another format.
pub(crate) fn superblock_copies(media: &mut dyn Media) -> Result<Vec<Option<Superblock>>, RecoverError> {
    let bytes = media.read(Area::Meta, 0, SUPERBLOCK_COPIES * SUPERBLOCK_BYTES)?;
    let copies = bytes.chunks_exact(SUPERBLOCK_BYTES).map(|copy| match Superblock::decode(copy) {
        Ok(superblock) => Ok(Some(superblock)),
        Err(error @ DecodeError::Version { .. }) => Err(RecoverError::Format(error)),
        Err(_) => Ok(None),
    });
    copies.collect()
}

/// The newest superblock, and in which order its pairs of copies are to be written: the one that
/// was torn or is older goes first, so that the other one is whole until it is.
fn read_superblock(media: &mut dyn Media) -> Result<(Superblock, [u64; 2]), RecoverError> {
    let copies = superblock_copies(media)?;
    let worth = |pair: &[Option<Superblock>]| {
        let whole = pair.iter().all(|copy| copy.is_some() && *copy == pair[0]);
        (whole, pair.iter().flatten().map(|copy| copy.sequence).max())
    };
    let (first, second) = copies.split_at(SUPERBLOCK_COPIES / 2);
    let order = if worth(second) < worth(first) { [1, 0] } else { [0, 1] };
    if copies.iter().any(Option::is_none) {
        reach!("store: a copy of the superblock is damaged");
    }
    let newest = copies.into_iter().flatten().max_by_key(|superblock| superblock.sequence);
    Ok((newest.ok_or(RecoverError::NoSuperblock)?, order))
}

pub(crate) fn read_versions(
    media: &mut dyn Media,
    superblock: &Superblock,
) -> Result<Versions, RecoverError> {
    let slot = superblock.versions_slot;
    let mut versions = Versions::new(&superblock.tables);
    let pages_per_read = CHUNK_BYTES as usize / VERSIONS_PAGE_BYTES;
    for (volume, &place) in superblock.tables.iter().enumerate() {
        let (page_count, first) = (pages(place), first_page(place, slot));
        for start in (0..page_count).step_by(pages_per_read) {
            let end = page_count.min(start + pages_per_read);
            let len = (end - start) * VERSIONS_PAGE_BYTES;
            let bytes = media.read(Area::Meta, table_offset(first + start), len)?;
            for (page, block) in (start..end).zip(bytes.chunks_exact(VERSIONS_PAGE_BYTES)) {
                let (number, id) = ((first + page) as u32, PageId { volume, page });
                versions.load_page(slot, id, (number, block)).map_err(|source| {
                    reach!("store: a version table page is damaged");
                    RecoverError::VersionTable { page: number, source }
                })?;
            }
        }
    }
    if versions.root(slot, &superblock.tables) != superblock.versions_root
        && !planted(Bug::OlderVersionsBelieved)
    {
        reach!("store: a page of the version table is an older one");
        return Err(RecoverError::OlderVersionTable);
    }
    versions.fit(&superblock.volumes);
    Ok(versions)
}

/// Log that the scan of the journal found.
pub(crate) struct Log {
    journal: Journal,
    /// Every batch after the checkpoint, without payloads.
    pending: VecDeque<Arc<Batch>>,
    pub end: Position,
    chain: Chain,
    pub epochs: Vec<(Epoch, Index)>,
    pub commit: Index,
    /// Where it ends.
    pub offset: u64,
    /// Batches whose payload is in the volumes.
    fills: VecDeque<Fill>,
    /// Ranges in which batches that are not whole, or that were given up, may have left something.
    pub unfinished: Vec<Range>,
}

fn scan(media: &mut dyn Media, superblock: &Superblock) -> Result<Log, RecoverError> {
    let mut window = Window::new(media, superblock.journal_bytes);
    let mut log = follow(&mut window, superblock, &mut |_, _, _| {})?;
    let known_durable = known_durable(&mut window, superblock, log.end.index, &mut log.unfinished)?;
    if known_durable > log.end.index && !planted(Bug::CorruptionTruncated) {
        reach!("store: a journal record is found damaged");
        return Err(RecoverError::Corrupt { index: log.end.index.next(), offset: log.offset, known_durable });
    }
    log.commit = log.commit.min(log.end.index);
    Ok(log)
}

/// Follows the chain of batches from the checkpoint to where it ends. `found` is told each batch
/// with its offset.
pub(crate) fn follow(
    window: &mut Window<'_>,
    superblock: &Superblock,
    found: &mut dyn FnMut(u64, LocalHeader, &Batch),
) -> Result<Log, MediaError> {
    let checkpoint = superblock.checkpoint;
    let mut log = Log {
        journal: Journal::new(superblock.journal_bytes, checkpoint.offset, checkpoint.at.index),
        pending: VecDeque::new(),
        end: checkpoint.at,
        chain: checkpoint.chain,
        epochs: superblock.epochs.clone(),
        commit: superblock.commit,
        offset: checkpoint.offset,
        fills: VecDeque::new(),
        unfinished: Vec::new(),
    };
    loop {
        let mut next = None;
        for at in [log.offset, 0] {
            if let Some((local, batch)) = read_batch(window, superblock, &log, at)? {
                if at != log.offset && log.offset + batch.journal_len() <= superblock.journal_bytes {
                    // Nothing follows it here, so what does would be taken for a torn tail.
                    reach!("store: a record lies at the start of the ring that had room before its end");
                    break;
                }
                next = Some((at, local, batch));
                break;
            }
        }
        let Some((at, local, batch)) = next else { return Ok(log) };
        found(at, local, &batch);
        if at != log.offset {
            reach!("store: recovery follows the log around the ring");
        }
        log.end = batch.end();
        log.chain = batch.chain;
        log.commit = log.commit.max(batch.commit);
        note_epoch(&mut log.epochs, batch.epoch, batch.last());
        log.offset = at + batch.journal_len();
        let in_volume = local.payload == PayloadPlace::Volume;
        if in_volume {
            reach!("store: recovery finds a filled batch");
            log.fills.push_back(Fill::found(&batch));
        } else if local.payload.touches_volumes() {
            log.unfinished.extend(batch.entries.iter().map(|entry| entry.range));
        }
        log.journal.push(Placed {
            first: batch.first,
            last: batch.last(),
            epoch: batch.epoch,
            chain: batch.chain,
            offset: at,
            len: batch.journal_len(),
            in_volume,
            held: Held::without_memory(&batch, in_volume),
        });
        log.pending.push_back(without_payload(&batch));
    }
}

/// The batch at `at` if it is whole and continues the log.
fn read_batch(
    window: &mut Window<'_>,
    superblock: &Superblock,
    log: &Log,
    at: u64,
) -> Result<Option<(LocalHeader, Batch)>, MediaError> {
    let Some(block) = window.get(at, HEADER_BLOCK_BYTES as u64)? else { return Ok(None) };
    let Ok(head) = BatchHead::decode(&block) else { return Ok(None) };
    let continues = head.resource == superblock.resource
        && head.first == log.end.index.next()
        && head.prev_chain == log.chain
        && head.epoch >= log.end.epoch;
    let Ok(local) = LocalHeader::decode(&block, head.chain) else { return Ok(None) };
    // One that no superblock speaks of is from before the checkpoint.
    let continues = continues && (superblock.filled || !local.payload.touches_volumes());
    if !continues || is_void(&superblock.voids, local.generation, head.first) {
        if continues {
            reach!("store: a void record would have continued the log");
        }
        return Ok(None);
    }
    let place = at + HEADER_BLOCK_BYTES as u64;
    let payload = match local.payload {
        PayloadPlace::Volume => window.filled(superblock, &block)?,
        PayloadPlace::Journal | PayloadPlace::JournalAfterVolume => window.get(place, head.payload_len)?,
    };
    let Some(payload) = payload else { return Ok(None) };
    let batch = Batch::decode(&block, &payload).ok();
    if batch.is_none() {
        reach!("store: a record with a good header is torn");
    }
    Ok(batch.map(|batch| (local, batch)))
}

/// The highest index that anything on the media says was durable in this journal, `end` or less if
/// nothing does. `unfinished`: gets the ranges that records of the ring have filled or may have.
pub(crate) fn known_durable(
    window: &mut Window<'_>,
    superblock: &Superblock,
    end: Index,
    unfinished: &mut Vec<Range>,
) -> Result<Index, MediaError> {
    let mut known = superblock.commit.max(superblock.checkpoint.at.index);
    // The last cut or recovery recorded where the log ended durably. It was not cut below that
    // since, or there would be a younger void that ends earlier.
    known = known.max(superblock.voids.last().map_or(Index(0), |void| void.end));
    for at in (0..superblock.journal_bytes).step_by(HEADER_BLOCK_BYTES) {
        let Some(block) = window.get(at, HEADER_BLOCK_BYTES as u64)? else { break };
        if !block.starts_with(&BATCH_MAGIC.to_le_bytes()) {
            continue;
        }
        let Ok(head) = BatchHead::decode(&block) else { continue };
        let local = LocalHeader::decode(&block, head.chain);
        // Void ones too, and those of which a torn write has left no more: where they say that
        // something may be, blocks without content become zeroes, and no others.
        let touches = local.as_ref().map_or(true, |local| local.payload.touches_volumes());
        // A record that a checkpoint covers is undone, unless the log began anew before that.
        let open = head.first > superblock.checkpoint.at.index || superblock.unfinished.is_some();
        if superblock.filled && touches && open && head.resource == superblock.resource {
            unfinished.extend(Batch::written_ranges(&block).unwrap_or_default());
        }
        let Ok(local) = local else { continue };
        if head.resource == superblock.resource
            && head.first > end
            && !is_void(&superblock.voids, local.generation, head.first)
        {
            reach!("store: a record beyond the end of the log");
            let torn = planted(Bug::TornTakenForDamaged);
            known = known.max(if torn { head.last() } else { local.durable_before });
        }
    }
    Ok(known)
}

/// Reads the journal ahead in large pieces.
pub(crate) struct Window<'a> {
    media: &'a mut dyn Media,
    size: u64,
    start: u64,
    bytes: Bytes,
}

impl<'a> Window<'a> {
    /// Begins to read a journal of `size` bytes.
    pub fn new(media: &'a mut dyn Media, size: u64) -> Self {
        Self { media, size, start: 0, bytes: Bytes::new() }
    }

    /// The payload of a filled batch with this header block, out of the volumes. `None` if it is
    /// not one that could be there.
    fn filled(&mut self, superblock: &Superblock, block: &[u8]) -> Result<Option<Bytes>, MediaError> {
        let ranges = Batch::written_ranges(block).unwrap_or_default();
        if ranges.is_empty() || !ranges.iter().all(|range| is_within(superblock, range)) {
            return Ok(None);
        }
        let mut payload = Vec::new();
        for range in ranges {
            payload.extend_from_slice(&self.media.read(
                Area::Volume(range.volume),
                range.offset,
                range.len as usize,
            )?);
        }
        Ok(Some(Bytes::from(payload)))
    }

    /// `None` if the range reaches beyond the ring.
    fn get(&mut self, offset: u64, len: u64) -> Result<Option<Bytes>, MediaError> {
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        if offset < self.start || offset + len > self.start + self.bytes.len() as u64 {
            let ahead = (CHUNK_BYTES + BLOCK_BYTES).max(len).min(self.size - offset);
            self.bytes = self.media.read(Area::Journal, offset, ahead as usize)?;
            self.start = offset;
        }
        let at = (offset - self.start) as usize;
        Ok(Some(self.bytes.slice(at..at + len as usize)))
    }
}
