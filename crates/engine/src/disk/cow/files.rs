//! Files of snapshots in a pool that cannot clone files. A snapshot is a *layer* there: for each
//! volume, a file of content that was put aside before it was overwritten, and a map that says
//! which chunks these are.
//!
//! ```text
//! what snapshot 5 held = chunks of snap5-old0 that snap5-map0 has, else of snap7-…, else of snap9-…, else of vol0
//! ```
//!
//! Guarantees:
//! - Only the keepers of the volumes add chunks, and only to the newest layer. In older layers,
//!   chunks that no snapshot needs are freed, and nothing else changes.
//! - A layer exists from the moment at which the map of volume 0 has its name, and is gone with
//!   that name.
//! - The layer of a deleted snapshot is called `gone…` and stays for as long as an older snapshot
//!   may find something in it. A chunk that an older layer has as well is freed. A layer is removed
//!   when an older one has all its chunks.

use super::chunks::ChunkSet;
use super::io::{punch, read_at, write_at};
use crate::disk::error::{DiskError, failed};
use crate::disk::files::open_file;
use crate::disk::freeing;
use crate::ring::Fd;
use mainstay_codec::old_map::{OLD_CHUNK_BYTES, OldMapHeader};
use mainstay_pool::{Entry, LayerKind, LayerPart, Part, Replica};
use mainstay_types::{BLOCK_BYTES, SnapshotId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

/// How often a list is read again when what it names has been removed meanwhile.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Part of a layer that belongs to one volume.
#[derive(Debug)]
pub struct LayerVolume {
    /// Size of the volume when the snapshot was taken, in bytes.
    pub bytes: u64,
    pub own: ChunkSet,
    pub map: Fd,
    pub old: Fd,
}

#[derive(Debug)]
pub struct Layer {
    pub snapshot: SnapshotId,
    pub volumes: Vec<LayerVolume>,
}

/// State of the layers, as far as copy-before-write needs it.
#[derive(Debug, Default)]
pub struct Standing {
    /// The layer that is written, while it is.
    pub written: Option<SnapshotId>,
    /// For each volume, the chunks that the newest snapshot finds in other layers than the written
    /// one. Empty: none.
    pub covered: Vec<ChunkSet>,
    /// The layer that is to be written, if copy-before-write has not begun.
    pub newest: Option<Layer>,
    /// Snapshots whose layers, or other layers that they need, cannot be read.
    pub lost: Vec<SnapshotId>,
}

fn part(snapshot: SnapshotId, kind: LayerKind, volume: VolumeId, gone: bool) -> Part {
    Part::Layer(LayerPart { snapshot, volume, kind, gone })
}

/// The parts of layers that there are, half-made ones included.
fn parts(at: &dyn Replica) -> Result<Vec<(LayerPart, Entry)>, DiskError> {
    let parts = failed("cannot list", at.place(), at.parts())?.into_iter();
    let layer = |entry: Entry| match entry.part {
        Part::Layer(layer) => Some((layer, entry)),
        _ => None,
    };
    Ok(parts.filter_map(layer).collect())
}

/// Whether a layer exists as long as this part has its name.
fn is_first(layer: LayerPart, entry: &Entry) -> bool {
    layer.kind == LayerKind::Map && layer.volume == VolumeId(0) && !entry.half
}

fn is_gone(error: &DiskError) -> bool {
    matches!(error, DiskError::System { source, .. } if source.kind() == io::ErrorKind::NotFound)
}

/// The layers that there are, and whether their snapshots are there as well.
fn list(at: &dyn Replica) -> Result<BTreeMap<SnapshotId, bool>, DiskError> {
    let layers = parts(at)?.into_iter().filter(|(layer, entry)| is_first(*layer, entry));
    Ok(layers.map(|(layer, _)| (layer.snapshot, !layer.gone)).collect())
}

/// Removes the files of `unwanted` layers, half-made ones included.
fn remove(at: &dyn Replica, unwanted: impl Fn(SnapshotId) -> bool) -> Result<(), DiskError> {
    let doomed = parts(at)?.into_iter().filter(|(layer, _)| unwanted(layer.snapshot));
    // The map of volume 0 first.
    let mut doomed: Vec<_> = doomed.map(|(layer, entry)| (!is_first(layer, &entry), entry.path)).collect();
    doomed.sort();
    for (_, file) in doomed {
        match freeing::remove(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return failed("cannot remove", &file, Err(error));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Layer {
    /// Makes an empty one, durably. `sizes`: of the volumes, in bytes.
    ///
    /// # Errors
    /// When there is no space, or an older snapshot needs the layer that has this number.
    pub fn create(at: &dyn Replica, snapshot: SnapshotId, sizes: &[u64]) -> Result<Self, DiskError> {
        if list(at)?.contains_key(&snapshot) {
            let before = Self::open(at, snapshot, sizes.len())?;
            if before.volumes.iter().any(|volume| !volume.own.is_empty()) {
                let taken = io::Error::other(
                    "its number was used before, and an older snapshot needs what was kept then",
                );
                return failed("cannot keep a snapshot in", at.place(), Err(taken));
            }
        }
        remove(at, |other| other == snapshot)?;
        let mut volumes = Vec::with_capacity(sizes.len());
        for (number, bytes) in sizes.iter().copied().enumerate().rev() {
            let volume = VolumeId(number as u16);
            let old_path = at.part(part(snapshot, LayerKind::Old, volume, false));
            let (old, _) = open_file(&old_path, true, |options| _ = options.create_new(true))?;
            failed("cannot make so large", &old_path, old.set_len(bytes))?;
            failed("cannot flush", &old_path, old.sync_all())?;
            let own = ChunkSet::of(bytes);
            let half = at.half(Part::map(snapshot, volume));
            let (map, _) = open_file(&half, true, |options| _ = options.create(true).truncate(true))?;
            let map = Fd::new(map.into());
            let mut whole = OldMapHeader { snapshot, volume, bytes }.encode();
            (0..own.pages()).for_each(|page| whole.extend(own.page(page)));
            failed("cannot write", &half, write_at(&map, 0, &whole))?;
            failed("cannot flush", &half, rustix::fs::fsync(&map).map_err(io::Error::from))?;
            at.complete(Part::map(snapshot, volume))?;
            volumes.push(LayerVolume { bytes, own, map, old: Fd::new(old.into()) });
        }
        volumes.reverse();
        at.flush()?;
        Ok(Self { snapshot, volumes })
    }

    /// Opens one that is there, whether its snapshot is or not.
    ///
    /// # Errors
    /// When a file of it is gone, or its map is not as it was written.
    pub fn open(replica: &dyn Replica, snapshot: SnapshotId, volumes: usize) -> Result<Self, DiskError> {
        let open = |kind, volume| {
            let at = |gone| replica.part(part(snapshot, kind, volume, gone));
            let here = at(false);
            match open_file(&here, true, |_| {}) {
                // The snapshot may be deleted between the two.
                Err(error) if is_gone(&error) => {
                    open_file(&at(true), true, |_| {}).map(|(file, _)| (file, at(true)))
                }
                result => result.map(|(file, _)| (file, here)),
            }
        };
        let one = |volume: VolumeId| {
            let (map, map_path) = open(LayerKind::Map, volume)?;
            let (old, _) = open(LayerKind::Old, volume)?;
            let (map, old) = (Fd::new(map.into()), Fd::new(old.into()));
            let wrong = |error: mainstay_codec::DecodeError| io::Error::other(error);
            let read = |at, len| failed("cannot read", &map_path, read_at(&map, at, len));
            let header = OldMapHeader::decode(&read(0, BLOCK_BYTES as usize)?).map_err(wrong);
            let header = failed("cannot use", &map_path, header)?;
            if (header.snapshot, header.volume) != (snapshot, volume) {
                let other = io::Error::other(format!(
                    "it is of snapshot {}, volume {}",
                    header.snapshot, header.volume.0
                ));
                return failed("cannot use", &map_path, Err(other));
            }
            let pages = ChunkSet::of(header.bytes).pages() as usize * BLOCK_BYTES as usize;
            let own = ChunkSet::decode(&read(BLOCK_BYTES, pages)?, header.bytes).map_err(wrong);
            let own = failed("cannot use", &map_path, own)?;
            Ok(LayerVolume { bytes: header.bytes, own, map, old })
        };
        let volumes = (0..volumes).map(|n| one(VolumeId(n as u16))).collect::<Result<_, DiskError>>()?;
        Ok(Self { snapshot, volumes })
    }
}

/// Whether this snapshot is kept so, and has not been deleted.
#[must_use]
pub fn is_here(at: &dyn Replica, snapshot: SnapshotId) -> bool {
    at.has(Part::map(snapshot, VolumeId(0)))
}

/// The layers in which the content of a snapshot is looked for, its own first.
///
/// # Errors
/// When the snapshot is not there, or one of them cannot be read.
pub fn chain(at: &dyn Replica, from: SnapshotId, volumes: usize) -> Result<Vec<Layer>, DiskError> {
    chain_but(at, from, volumes, None)
}

/// The same, without one that is being made.
pub fn chain_but(
    at: &dyn Replica,
    from: SnapshotId,
    volumes: usize,
    without: Option<SnapshotId>,
) -> Result<Vec<Layer>, DiskError> {
    let mut failure = None;
    for _ in 0..TRIES {
        let layers = list(at)?;
        if layers.get(&from) != Some(&true) {
            break;
        }
        let wanted = layers.keys().filter(|layer| **layer >= from && Some(**layer) != without);
        match wanted.map(|layer| Layer::open(at, *layer, volumes)).collect() {
            Ok(chain) => return Ok(chain),
            // One of them may have been removed meanwhile, and the newest one was being written.
            Err(error) => failure = Some(error),
        }
        std::thread::sleep(PAUSE);
    }
    if let Some(error) = failure.filter(|_| is_here(at, from)) {
        return Err(error);
    }
    let file = at.part(Part::map(from, VolumeId(0)));
    failed("cannot open the snapshot", &file, Err(io::ErrorKind::NotFound.into()))
}

/// Takes the names of snapshots that are not `held` from their layers, removes layers that no
/// snapshot needs, and returns what is left. `held` is asked after the layers were listed: a
/// snapshot that is made meanwhile is in its answer before its layer has a name. `resting`: no
/// snapshot is being made, and no layer is being written.
///
/// # Errors
/// When the directory cannot be read or changed.
pub fn tidy(
    at: &dyn Replica,
    held: impl FnOnce() -> BTreeSet<SnapshotId>,
    volumes: usize,
    resting: bool,
) -> Result<Standing, DiskError> {
    let layers = list(at)?;
    let mut held = held();
    if resting {
        remove(at, |layer| !layers.contains_key(&layer))?;
    }
    for (layer, _) in layers.iter().filter(|(layer, here)| **here && !held.contains(layer)) {
        give_up_name(at, *layer, volumes)?;
    }
    held.retain(|id| layers.contains_key(id));
    let mut standing = Standing::default();
    let mut opened = Vec::new();
    // The newest layer may be changing just now, and cannot be read then.
    let written = layers.keys().next_back().filter(|_| !resting);
    for layer in layers.keys().rev().filter(|layer| Some(*layer) != written) {
        match Layer::open(at, *layer, volumes) {
            Ok(layer) => opened.push(layer),
            // Nothing is given up, and nothing removed, before the replica is opened again.
            Err(error) if !resting => return Err(error),
            Err(error) => {
                // All older snapshots need this layer.
                let newer = held.split_off(&SnapshotId(layer.0 + 1));
                tracing::error!(path = %at.place().display(), %layer, %error, "what a snapshot has kept cannot be read");
                standing.lost.extend(std::mem::replace(&mut held, newer));
                break;
            }
        }
    }
    opened.reverse();
    let Some(first) = held.first().copied() else {
        // Nothing is freed in parts that is open.
        drop(opened);
        remove(at, |layer| layers.contains_key(&layer))?;
        return Ok(standing);
    };
    opened.retain(|layer| layer.snapshot >= first);
    remove(at, |layer| layer < first && layers.contains_key(&layer))?;
    if resting {
        while opened.last().is_some_and(|last| !held.contains(&last.snapshot) && last.is_empty()) {
            let empty = opened.pop().map(|layer| layer.snapshot);
            remove(at, |layer| Some(layer) == empty)?;
        }
        standing.newest = opened.pop();
    }
    let mut since: Vec<ChunkSet> = Vec::new();
    for layer in opened {
        if held.contains(&layer.snapshot) {
            since = layer.volumes.into_iter().map(|volume| volume.own).collect();
            continue;
        }
        let within = layer.volumes.iter().zip(&since).all(|(volume, since)| volume.own.is_within(since));
        if within {
            let unneeded = layer.snapshot;
            drop(layer);
            remove(at, |other| other == unneeded)?;
            continue;
        }
        for (volume, since) in layer.volumes.iter().zip(&mut since) {
            failed("cannot free a part of a layer in", at.place(), volume.free(since))?;
            let mut all = volume.own.clone();
            all.add(since);
            *since = all;
        }
    }
    standing.written = written.copied();
    let newest = standing.newest.as_ref().map(|layer| layer.snapshot).or(written.copied());
    if newest.is_some_and(|newest| !held.contains(&newest)) {
        standing.covered = since;
    }
    Ok(standing)
}

/// The snapshot is deleted: its layer has another name from now on, that of volume 0's map first.
fn give_up_name(at: &dyn Replica, snapshot: SnapshotId, volumes: usize) -> Result<(), DiskError> {
    for volume in (0..volumes).map(|n| VolumeId(n as u16)) {
        for kind in [LayerKind::Map, LayerKind::Old] {
            at.rename(part(snapshot, kind, volume, false), part(snapshot, kind, volume, true))?;
        }
    }
    Ok(at.flush()?)
}

impl Layer {
    fn is_empty(&self) -> bool {
        self.volumes.iter().all(|volume| volume.own.is_empty())
    }
}

impl LayerVolume {
    /// Gives back the space of what `others` have as well.
    fn free(&self, others: &ChunkSet) -> io::Result<()> {
        let mut run: Option<(u64, u64)> = None;
        for chunk in self.own.both(others) {
            match &mut run {
                Some((_, end)) if *end == chunk => *end += 1,
                _ => {
                    if let Some((first, end)) = run.replace((chunk, chunk + 1)) {
                        punch(&self.old, first * OLD_CHUNK_BYTES, (end - first) * OLD_CHUNK_BYTES)?;
                    }
                }
            }
        }
        match run {
            Some((first, end)) => punch(&self.old, first * OLD_CHUNK_BYTES, (end - first) * OLD_CHUNK_BYTES),
            None => Ok(()),
        }
    }
}
