//! Content of a snapshot that is kept in layers: copied to files of its own, or back into the
//! volumes.
//!
//! The engine may write to the volume and the newest layer while a snapshot is copied. The copy
//! first reads all chunks from the volume that are not in the map. Then it reads the maps anew, and
//! takes the chunks that they have by now from the layers. A chunk that is still in no map had not
//! been overwritten when it was read, because the map comes before the write.

use super::chunks::ChunkSet;
use super::files::{Layer, LayerVolume, chain, chain_but, is_here};
use super::io::{Aligned, next_data, punch, read_at, write_at};
use crate::disk::error::{DiskError, failed};
use crate::disk::files::open_file;
use crate::ring::Fd;
use mainstay_codec::old_map::OLD_CHUNK_BYTES;
use mainstay_pool::{LayerKind, LayerPart, Part, Replica, part_at};
use mainstay_store::Area;
use mainstay_types::{BLOCK_BYTES, SnapshotId, VOLUMES_MAX, VolumeId};
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Chunks that are kept with one flush.
const BATCH: usize = 64;

fn volumes_in(replica: &dyn Replica) -> usize {
    let there = |n: &usize| replica.has(Part::Area(Area::Volume(VolumeId(*n as u16))));
    (0..VOLUMES_MAX).take_while(there).count()
}

/// The first layer that has a chunk of a volume.
fn find(chain: &[Layer], volume: VolumeId, chunk: u64) -> Option<&LayerVolume> {
    let volumes = chain.iter().filter_map(|layer| layer.volumes.get(usize::from(volume.0)));
    volumes.into_iter().find(|volume| volume.own.contains(chunk))
}

/// Writes into the empty file `to` what its volume held at a snapshot, durably. `map`: the
/// snapshot's map, in the directory of a replica that is open or not.
///
/// # Errors
/// When something cannot be read or written, or the snapshot was deleted meanwhile.
pub fn copy_out(map: &Path, to: &File) -> Result<(), DiskError> {
    let unknown = || io::Error::other("it is not named as the map of a snapshot");
    let (replica, part) = failed("cannot use", map, part_at(map).ok_or_else(unknown))?;
    let Part::Layer(LayerPart { snapshot, volume, kind: LayerKind::Map, gone: false }) = part else {
        return failed("cannot use", map, Err(unknown()));
    };
    let count = volumes_in(&*replica);
    let path = replica.part(Part::Area(Area::Volume(volume)));
    let (current, _) = open_file(&path, true, |_| {})?;
    let layers = chain(&*replica, snapshot, count)?;
    let bytes =
        layers.first().and_then(|layer| layer.volumes.get(usize::from(volume.0))).map(|one| one.bytes);
    let gone = || io::Error::other("the snapshot was deleted meanwhile");
    let bytes = failed("cannot use", map, bytes.ok_or_else(unknown))?;
    failed("cannot make so large", map, to.set_len(bytes))?;
    let len = |chunk: u64| (bytes - chunk * OLD_CHUNK_BYTES).min(OLD_CHUNK_BYTES) as usize;
    let put = |chunk: u64, content: &[u8], fresh: bool| {
        // A chunk that was not written before is zeroes already.
        if fresh && content.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        failed("cannot write what is copied from", map, to.write_all_at(content, chunk * OLD_CHUNK_BYTES))
    };
    let mut at = 0;
    while let Some(data) = failed("cannot read", &path, next_data(&current, at, bytes))? {
        let chunk = data / OLD_CHUNK_BYTES;
        if find(&layers, volume, chunk).is_none() {
            let content = read_at(&current, chunk * OLD_CHUNK_BYTES, len(chunk));
            put(chunk, &failed("cannot read", &path, content)?, true)?;
        }
        at = (chunk + 1) * OLD_CHUNK_BYTES;
        if at >= bytes {
            break;
        }
    }
    let layers = chain(&*replica, snapshot, count)?;
    for chunk in 0..bytes.div_ceil(OLD_CHUNK_BYTES) {
        if let Some(layer) = find(&layers, volume, chunk) {
            let content = read_at(&layer.old, chunk * OLD_CHUNK_BYTES, len(chunk));
            put(chunk, &failed("cannot read a chunk of", map, content)?, false)?;
        }
    }
    // A deletion takes the name away before it frees anything, so all was there if the name still
    // is.
    failed("cannot use", map, is_here(&*replica, snapshot).then_some(()).ok_or_else(gone))?;
    failed("cannot flush what is copied from", map, to.sync_all())
}

/// Where the content of a snapshot is.
enum Source {
    Layers(Vec<Layer>),
    /// A file of each volume, and its size.
    Files(Vec<(File, u64)>),
}

/// The newest layer, which keeps the present content of the volumes before it is overwritten.
struct Newest {
    layer: Layer,
    covered: Vec<ChunkSet>,
}

impl Newest {
    fn open(
        at: &dyn Replica,
        held: &BTreeSet<SnapshotId>,
        mark: SnapshotId,
        count: usize,
    ) -> Result<Option<Self>, DiskError> {
        let here = held.iter().rev().copied().find(|id| *id != mark && is_here(at, *id));
        let Some(newest) = here else { return Ok(None) };
        let mut layers = chain_but(at, newest, count, Some(mark))?;
        let Some(layer) = layers.pop() else { return Ok(None) };
        let mut covered: Vec<ChunkSet> = layer.volumes.iter().map(|volume| volume.own.clone()).collect();
        for other in &layers {
            for (covered, volume) in covered.iter_mut().zip(&other.volumes) {
                covered.add(&volume.own);
            }
        }
        Ok(Some(Self { layer, covered }))
    }

    /// Keeps chunks of a volume, durably.
    fn keep(&mut self, volume: VolumeId, current: &Fd, chunks: impl Iterator<Item = u64>) -> io::Result<()> {
        let number = usize::from(volume.0);
        let (one, covered) = (&mut self.layer.volumes[number], &mut self.covered[number]);
        let missing: Vec<u64> =
            chunks.filter(|chunk| *chunk < one.own.chunks() && !covered.contains(*chunk)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        for chunk in &missing {
            let offset = chunk * OLD_CHUNK_BYTES;
            let end = (offset + OLD_CHUNK_BYTES).min(one.bytes);
            if next_data(current, offset, end)?.is_some() {
                write_at(&one.old, offset, &read_at(current, offset, (end - offset) as usize)?)?;
            }
        }
        rustix::fs::fdatasync(&one.old)?;
        missing.iter().for_each(|chunk| one.own.insert(*chunk));
        let pages: BTreeSet<u64> = missing.iter().map(|chunk| ChunkSet::page_of(*chunk)).collect();
        for page in pages {
            write_at(&one.map, BLOCK_BYTES * (1 + page), &one.own.page(page))?;
        }
        rustix::fs::fdatasync(&one.map)?;
        missing.iter().for_each(|chunk| covered.insert(*chunk));
        Ok(())
    }
}

/// New content of a chunk of a volume.
enum New {
    Zeroes,
    Content(Aligned),
}

impl Source {
    fn open(at: &dyn Replica, from: SnapshotId, mark: SnapshotId, count: usize) -> Result<Self, DiskError> {
        if is_here(at, from) {
            return Ok(Self::Layers(chain_but(at, from, count, Some(mark))?));
        }
        let file = |n: usize| {
            let path = at.part(Part::Snapshot(from, Area::Volume(VolumeId(n as u16))));
            let (file, _) = open_file(&path, true, |_| {})?;
            let bytes = failed("cannot look at", &path, file.metadata())?.len();
            Ok((file, bytes))
        };
        (0..count).map(file).collect::<Result<_, DiskError>>().map(Self::Files)
    }

    /// New content for a chunk of `len` bytes; `None` if the chunk holds it already.
    fn new_content(&self, volume: VolumeId, chunk: u64, len: usize, current: &Fd) -> io::Result<Option<New>> {
        let offset = chunk * OLD_CHUNK_BYTES;
        let bytes = match self {
            Self::Layers(chain) => {
                let one = chain.first().and_then(|layer| layer.volumes.get(usize::from(volume.0)));
                one.map_or(0, |one| one.bytes)
            }
            Self::Files(files) => files.get(usize::from(volume.0)).map_or(0, |(_, bytes)| *bytes),
        };
        let has_data =
            |file: &dyn AsFd| Ok::<_, io::Error>(next_data(file, offset, offset + len as u64)?.is_some());
        let zeroes = || Ok(has_data(current)?.then_some(New::Zeroes));
        // Beyond that the volume has grown since.
        let held = bytes.saturating_sub(offset).min(len as u64) as usize;
        if held == 0 {
            return zeroes();
        }
        let source: &dyn AsFd = match self {
            Self::Layers(chain) => match find(chain, volume, chunk) {
                Some(layer) => &layer.old,
                None if held == len => return Ok(None),
                None => current,
            },
            Self::Files(files) => &files[usize::from(volume.0)].0,
        };
        let mut content = Aligned::new(len);
        if has_data(source)? {
            content[..held].copy_from_slice(&read_at(source, offset, held)?);
        }
        if content.iter().all(|byte| *byte == 0) {
            return zeroes();
        }
        let same = has_data(current)? && *read_at(current, offset, len)? == *content;
        Ok((!same).then_some(New::Content(content)))
    }
}

/// Makes the volumes hold what a snapshot holds, durably, and keeps for the other snapshots what
/// the volumes held. The caller sees that nothing else writes to them. After a failure the call can
/// be repeated. `mark`: snapshot whose layer begins with this change, and is therefore not read.
/// `held`: snapshots that are there.
///
/// # Errors
/// When something cannot be read or written.
pub fn restore(
    at: &dyn Replica,
    (from, mark): (SnapshotId, SnapshotId),
    held: &BTreeSet<SnapshotId>,
    volumes: &[(VolumeId, Fd, u64)],
) -> Result<(), DiskError> {
    let path = at.place();
    let source = Source::open(at, from, mark, volumes.len())?;
    let mut newest = Newest::open(at, held, mark, volumes.len())?;
    for (volume, current, bytes) in volumes {
        let mut batch = Vec::with_capacity(BATCH);
        let mut write = |batch: &mut Vec<(u64, New)>| {
            if let Some(newest) = &mut newest {
                let kept = newest.keep(*volume, current, batch.iter().map(|(chunk, _)| *chunk));
                failed("cannot keep what is rolled back in", path, kept)?;
            }
            for (chunk, new) in batch.drain(..) {
                let offset = chunk * OLD_CHUNK_BYTES;
                let written = match new {
                    New::Zeroes => punch(current, offset, OLD_CHUNK_BYTES.min(*bytes - offset)),
                    New::Content(content) => write_at(current, offset, &content),
                };
                failed("cannot write to a volume of", path, written)?;
            }
            Ok::<_, DiskError>(())
        };
        for chunk in 0..bytes.div_ceil(OLD_CHUNK_BYTES) {
            let len = (bytes - chunk * OLD_CHUNK_BYTES).min(OLD_CHUNK_BYTES) as usize;
            let new = source.new_content(*volume, chunk, len, current);
            batch.extend(failed("cannot read a snapshot in", path, new)?.map(|new| (chunk, new)));
            if batch.len() == BATCH {
                write(&mut batch)?;
            }
        }
        write(&mut batch)?;
        failed("cannot flush a volume of", path, rustix::fs::fsync(current).map_err(io::Error::from))?;
    }
    Ok(())
}
