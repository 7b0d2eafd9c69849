//! Expectations of a recovered store: the flat model, and the logs that may be found.

use super::image::{BLOCK, Image, mixed};
use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Batch, EntryKind, LogState};
use mainstay_store::{Area, LogSource, Source, Store};
use mainstay_types::{BLOCK_BYTES, Chain, DataState, Epoch, Extent, Index, Position, Range, VolumeId};
use std::sync::Arc;

pub const VOLUME: VolumeId = VolumeId(0);

/// Content of the volume, block by block.
pub type Flat = Vec<Bytes>;

/// A log that a crash may bring back. A cut and a restart each make a new one; the older ones stay
/// possible until the store has told that they are gone.
#[derive(Clone, Debug)]
pub struct PossibleLog {
    /// The log begins after this position, with this content.
    pub start: Position,
    pub chain: Chain,
    pub content: Flat,
    pub batches: Vec<Arc<Batch>>,
    /// Everything up to here was handed to the disk.
    pub submitted: Index,
    /// Everything up to here was acknowledged as durable.
    pub told: Index,
    /// The store has still to tell that the older logs are gone.
    pub awaited: bool,
    pub copy: Option<Copy>,
}

/// A log that began with a restart (R16).
#[derive(Clone, Debug)]
pub struct Copy {
    /// Index that an inconsistent replica must state: every block is at least as new as this entry.
    pub base: Index,
    /// The restarted copy was one itself, and may have ended meanwhile: the base may also be in
    /// this range.
    pub or_within: Option<(Index, Index)>,
    /// Contents that each block may have while the copy goes on.
    pub may: Vec<Flat>,
    /// Fingerprint of what `may` comes from.
    pub history: u128,
    pub finished: bool,
}

impl PossibleLog {
    pub fn end(&self) -> Position {
        self.batches.last().map_or(self.start, |batch| batch.end())
    }

    pub fn end_chain(&self) -> Chain {
        self.batches.last().map_or(self.chain, |batch| batch.chain)
    }

    /// The last position at or before `index` where a batch ends.
    fn end_before(&self, index: Index) -> (Position, Chain) {
        let batch = self.batches.iter().rev().find(|batch| batch.last() <= index);
        batch.map_or((self.start, self.chain), |batch| (batch.end(), batch.chain))
    }

    pub fn truncate(&mut self, end: Index) {
        self.batches.retain(|batch| batch.last() <= end);
    }

    pub fn content_at(&self, to: Index) -> Flat {
        let mut content = self.content.clone();
        for batch in self.batches.iter().take_while(|batch| batch.last() <= to) {
            apply(&mut content, batch);
        }
        content
    }

    fn epochs(&self, to: Index) -> Vec<(Epoch, Index)> {
        let mut epochs = Vec::new();
        if self.start.index.0 > 0 {
            epochs.push((self.start.epoch, self.start.index));
        }
        for batch in self.batches.iter().take_while(|batch| batch.last() <= to) {
            match epochs.last_mut() {
                Some((epoch, last)) if *epoch == batch.epoch => *last = batch.last(),
                _ => epochs.push((batch.epoch, batch.last())),
            }
        }
        epochs
    }
}

pub fn apply(content: &mut Flat, batch: &Batch) {
    for entry in &batch.entries {
        for n in 0..entry.range.len / BLOCK_BYTES {
            let at = (n * BLOCK_BYTES) as usize;
            content[(entry.range.first_block() + n) as usize] = match entry.kind {
                EntryKind::Write => entry.payload.slice(at..at + BLOCK),
                _ => Bytes::from_static(&[0; BLOCK]),
            };
        }
    }
}

/// Conditions on a recovery from any image that a crash leaves at one moment.
#[derive(Clone, Debug)]
pub struct Expectation {
    /// Oldest first.
    pub worlds: Vec<PossibleLog>,
    pub promised: Epoch,
}

impl Expectation {
    pub fn hash(&self) -> u128 {
        let mut hash = u128::from(self.promised.0);
        for world in &self.worlds {
            let finished = world.copy.as_ref().map_or(0, |copy| 1 + u128::from(copy.finished));
            let bases = world.copy.as_ref().map_or((0, 0), |copy| {
                (
                    u128::from(copy.base.0),
                    copy.or_within.map_or(0, |(from, to)| u128::from(from.0 << 8 | to.0) + 1),
                )
            });
            let history = world.copy.as_ref().map_or(0, |copy| copy.history);
            for more in [
                history,
                u128::from(world.chain.0) << 64 | u128::from(world.start.index.0),
                u128::from(world.told.0) << 64 | u128::from(world.submitted.0),
                finished << 100 | bases.0 << 50 | bases.1,
            ] {
                hash = mixed(hash, more);
            }
            for batch in world.batches.iter().filter(|batch| batch.last() <= world.submitted) {
                hash = mixed(hash, u128::from(batch.chain.0));
            }
        }
        hash
    }

    /// The log that was found, if it is one that may be.
    pub fn world_of(&self, state: &LogState) -> Option<&PossibleLog> {
        let found = |world: &&PossibleLog| world.end_before(state.end.index) == (state.end, state.chain);
        self.worlds.iter().filter(found).find(|world| state.end.index >= world.told)
    }

    /// `image` as it is after the recovery, which found `commit_before` and `promised_before` in
    /// the superblock.
    pub fn check(&self, store: &Store, image: &Image, before: (Index, Epoch)) -> Result<(), String> {
        let state = store.log_state();
        if store.promised() < self.promised.max(before.1) {
            return Err(format!(
                "R1: promised {} in the superblock, {} told, {} found",
                before.1,
                self.promised,
                store.promised()
            ));
        }
        if state.commit < before.0 {
            return Err(format!(
                "commit index {} was durable, {} found: {}",
                before.0, state.commit, state.end
            ));
        }
        if let Some(world) = self.world_of(&state) {
            return check_world(world, store, image);
        }
        let told: Vec<Index> = self.worlds.iter().map(|world| world.told).collect();
        Err(format!(
            "S4: {} {:?} found; {told:?} told durable, of each log that may be",
            state.end, state.chain
        ))
    }
}

fn check_world(world: &PossibleLog, store: &Store, image: &Image) -> Result<(), String> {
    let state = store.log_state();
    match (state.data, &world.copy) {
        (DataState::Inconsistent, None) => return Err("inconsistent without a copy".to_owned()),
        (DataState::Inconsistent, Some(copy)) => {
            let base_right = state.base == copy.base
                || copy.or_within.is_some_and(|(from, to)| (from..=to).contains(&state.base));
            if copy.finished || !base_right {
                return Err(format!(
                    "R16: inconsistent with base {}, expected {} or within {:?}; finished: {}",
                    state.base, copy.base, copy.or_within, copy.finished
                ));
            }
            check_half_copied(world, copy, image)?;
        }
        (DataState::Consistent, _) => {
            let model = world.content_at(state.commit);
            let content = read_all(store, image);
            if let Some(block) = (0..model.len()).find(|&n| model[n] != content[n]) {
                return Err(format!("S4: content of block {block} is not that at {}", state.commit));
            }
        }
    }
    let epochs = world.epochs(state.end.index);
    if state.epochs != epochs {
        return Err(format!("epochs {:?}, expected {epochs:?}", state.epochs));
    }
    let entries = world.batches.iter().take_while(|batch| batch.last() <= state.commit);
    // The copy has changed the extent as well, up to where the log was restarted.
    let copied = if world.copy.is_some() { world.start.index } else { Index(0) };
    let changed = entries.last().map_or(copied, |batch| batch.last());
    if state.data == DataState::Consistent && store.version(VOLUME, Extent(0)) < changed {
        return Err(format!(
            "S12: version {} of an extent changed at {changed}",
            store.version(VOLUME, Extent(0))
        ));
    }
    check_log(world, store, image)
}

/// While a copy goes on, every sector has the old content, the content of the copy, or that of an
/// entry committed since.
fn check_half_copied(world: &PossibleLog, copy: &Copy, image: &Image) -> Result<(), String> {
    let mut may = copy.may.clone();
    let mut content = world.content.clone();
    may.push(content.clone());
    for batch in &world.batches {
        apply(&mut content, batch);
        may.push(content.clone());
    }
    for block in 0..content.len() {
        let bytes = image.slice(Area::Volume(VOLUME), block as u64 * BLOCK_BYTES, BLOCK_BYTES);
        for at in (0..BLOCK).step_by(crate::disk::SECTOR_BYTES) {
            let sector = at..at + crate::disk::SECTOR_BYTES;
            if !may.iter().any(|flat| flat[block][sector.clone()] == bytes[sector.clone()]) {
                return Err(format!("S11: block {block} is older than the base of the copy"));
            }
        }
    }
    Ok(())
}

/// The committed content as a reader would see it.
pub fn read_all(store: &Store, image: &Image) -> Flat {
    let bytes = store.config().volumes[usize::from(VOLUME.0)];
    let mut flat = Vec::new();
    for segment in store.read(Range { volume: VOLUME, offset: 0, len: bytes }) {
        let data = match segment.source {
            Source::Memory(data) => data,
            Source::Journal { offset, .. } => image.slice(Area::Journal, offset, segment.len),
            Source::Volume => image.slice(Area::Volume(VOLUME), segment.offset, segment.len),
            Source::Zero => vec![0; segment.len as usize].into(),
        };
        flat.extend((0..data.len()).step_by(BLOCK).map(|at| data.slice(at..at + BLOCK)));
    }
    flat
}

/// Checks the log of a recovered store. Entries that are not committed must be there to be sent or
/// applied, and every entry that is there must be the model's.
fn check_log(world: &PossibleLog, store: &Store, image: &Image) -> Result<(), String> {
    let state = store.log_state();
    for batch in world.batches.iter().take_while(|batch| batch.last() <= state.end.index) {
        let piece = match store.log_plan(batch.first, 1) {
            Ok(plan) => plan.into_iter().next(),
            Err(_) if batch.last() <= state.commit => continue,
            Err(gone) => return Err(format!("entry {}, not committed: {gone}", batch.first)),
        };
        let whole = match piece.map(|piece| (piece.source, piece.len)) {
            Some((LogSource::Memory(found), _)) => found.chain == batch.chain,
            Some((LogSource::Journal { offset }, len)) => {
                let bytes = image.slice(Area::Journal, offset, len);
                let (header, payload) =
                    (bytes.slice(..HEADER_BLOCK_BYTES), bytes.slice(HEADER_BLOCK_BYTES..));
                Batch::decode(&header, &payload).is_ok_and(|found| found.chain == batch.chain)
            }
            Some((LogSource::Volume { offset, ranges }, _)) => {
                let header = image.slice(Area::Journal, offset, BLOCK as u64);
                let payload = ranges
                    .iter()
                    .map(|range| image.slice(Area::Volume(range.volume), range.offset, range.len));
                let payload = payload.collect::<Vec<_>>().concat();
                Batch::decode(&header, &payload.into()).is_ok_and(|found| found.chain == batch.chain)
            }
            None => false,
        };
        if !whole {
            return Err(format!("the journal does not hold entry {}", batch.first));
        }
    }
    Ok(())
}
