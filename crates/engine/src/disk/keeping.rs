//! Copy-before-write for a replica's volumes (`cow/copy_before_write.rs`) on the shard's ring. If a
//! snapshot needs the content of a range, writes and zeroes to that range are held until the
//! content is put aside.
//!
//! If there is no space to put content aside, the write fails for want of space. The store then
//! tries it again, as it does when the volume itself finds no space; no snapshot is given up. Any
//! other failure is one of the write.

use super::cow::{ChunkSet, CopyBeforeWrite, Layer, Standing, Todo, Turn, next_data};
use super::freeing;
use super::snapshots::Change;
use super::{Disk, DiskDone, DiskTag, Pending, SnapshotDone, Whose, Work, snapshots};
use crate::ring::{Fd, Op, Ring};
use bytes::Bytes;
use mainstay_store::{Area, IoFailure, IoResult, Output};
use mainstay_types::{BLOCK_BYTES, SnapshotId, VolumeId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// A step of putting something aside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// Chunks are being read from their volume.
    Read {
        first: u64,
        chunks: u64,
    },
    /// The chunks are being written to the layer.
    Write,
    Flush,
    Map,
}

struct VolumeCopies {
    copier: CopyBeforeWrite<Output>,
    map: Fd,
    old: Fd,
    /// Why content could not be put aside.
    failure: Option<IoFailure>,
}

/// Keepers of the volumes of a replica, with the layer that they write and the snapshots that need
/// it.
pub(super) struct Keeping {
    pub held: snapshots::Held,
    pub freeing: Arc<Mutex<()>>,
    /// Snapshot for which the present layer was begun, even if it is deleted by now.
    layer: Option<SnapshotId>,
    volumes: Vec<VolumeCopies>,
    /// No snapshot needs a layer any more.
    over: bool,
    /// Bytes that were put aside since the replica was opened.
    written: u64,
}

impl Keeping {
    pub fn new((held, standing): (BTreeSet<SnapshotId>, Standing)) -> Self {
        let (held, freeing) = (Arc::new(Mutex::new(held)), Arc::default());
        let mut keeping = Self { held, freeing, layer: None, volumes: Vec::new(), over: false, written: 0 };
        if let Some(layer) = standing.newest {
            keeping.begin(layer, &standing.covered);
        }
        keeping
    }

    fn begin(&mut self, layer: Layer, covered: &[ChunkSet]) {
        let idle = self.volumes.iter().all(|volume| volume.copier.is_idle());
        assert!(idle, "a snapshot is taken while volumes are written");
        let nothing = ChunkSet::default();
        let volumes = layer.volumes.into_iter().enumerate().map(|(n, volume)| VolumeCopies {
            copier: CopyBeforeWrite::new(volume.bytes, volume.own, covered.get(n).unwrap_or(&nothing)),
            map: volume.map,
            old: volume.old,
            failure: None,
        });
        let before = std::mem::replace(&mut self.volumes, volumes.collect());
        before.into_iter().for_each(|volume| freeing::close(volume.old));
        (self.layer, self.over) = (Some(layer.snapshot), false);
    }

    /// Ends the keeping, once no snapshot needs it and no write waits. The layer has been removed;
    /// its space comes back when its files are closed.
    fn end(&mut self) {
        if self.over && self.volumes.iter().all(|volume| volume.copier.is_idle()) {
            std::mem::take(&mut self.volumes).into_iter().for_each(|volume| freeing::close(volume.old));
            self.layer = None;
        }
    }

    /// Writes that are held.
    pub fn waiting(&self) -> usize {
        self.volumes.iter().map(|volume| volume.copier.waiting()).sum()
    }

    /// A snapshot is deleted.
    pub fn forget(&mut self, snapshot: SnapshotId) {
        let mut held = snapshots::locked(&self.held);
        held.remove(&snapshot);
        self.over = held.is_empty();
    }

    /// The end of what was done to the files of a snapshot.
    fn changed(&mut self, change: Change) {
        match change {
            Change::None => {}
            Change::Begun(layer) => self.begin(layer, &[]),
            Change::Left(standing) if standing.written.is_some() && standing.written == self.layer => {
                let nothing = ChunkSet::default();
                for (n, volume) in self.volumes.iter_mut().enumerate() {
                    volume.copier.cover(standing.covered.get(n).unwrap_or(&nothing));
                }
            }
            // It was about another one, or there is none any more.
            Change::Left(_) => self.end(),
        }
    }
}

impl Disk {
    /// Takes note of the end of an order, which is then the store's to hear of.
    pub fn snapshot_done(&mut self, done: &mut SnapshotDone) {
        self.keeping.changed(std::mem::take(&mut done.change));
    }

    /// Bytes that were put aside for snapshots since the replica was opened.
    #[must_use]
    pub fn put_aside(&self) -> u64 {
        self.keeping.written
    }

    /// Gives back what may be started at once.
    pub(super) fn keep_first(&mut self, ring: &mut Ring, output: Output) -> Option<Output> {
        if self.keeping.volumes.is_empty() || self.keeping.over {
            return Some(output);
        }
        let (volume, range, zeroes) = match &output {
            Output::VolumeWrite { volume, offset, data, .. } => {
                (*volume, (*offset, data.iter().map(|piece| piece.len() as u64).sum()), false)
            }
            Output::VolumeZero { volume, offset, len, .. } => (*volume, (*offset, *len), true),
            _ => return Some(output),
        };
        let Some(one) = self.keeping.volumes.get_mut(usize::from(volume.0)) else { return Some(output) };
        let output = one.copier.hold(range, zeroes, output);
        if output.is_none() {
            self.begin_round(ring, volume);
        }
        output
    }

    fn begin_round(&mut self, ring: &mut Ring, volume: VolumeId) {
        let Some(one) = self.keeping.volumes.get_mut(usize::from(volume.0)) else { return };
        let file = self.files.area(Area::Volume(volume)).expect("the store names only files that exist");
        // A file system that does not report holes has content everywhere.
        let turn = one.copier.begin(|from, end| next_data(&file.file, from, end).unwrap_or(Some(from)));
        self.take_turn(ring, volume, turn);
    }

    fn take_turn(&mut self, ring: &mut Ring, volume: VolumeId, turn: Turn<Output>) {
        for todo in turn.todo {
            self.start_part(ring, volume, todo);
        }
        for output in turn.free {
            let started = self.start_output(ring, output);
            debug_assert!(started.is_none(), "a write is for the ring");
        }
        if turn.failed.is_empty() {
            return;
        }
        let one = self.keeping.volumes.get_mut(usize::from(volume.0));
        let failure = one.and_then(|one| one.failure.take());
        let failure =
            failure.unwrap_or_else(|| IoFailure::new("what a snapshot needs could not be put aside"));
        for output in turn.failed {
            let (Output::VolumeWrite { op, .. } | Output::VolumeZero { op, .. }) = output else { continue };
            self.ended.push_back(DiskDone { tag: DiskTag::Store(op), result: Err(failure.clone()) });
        }
    }

    fn start_part(&mut self, ring: &mut Ring, volume: VolumeId, todo: Todo) {
        let one = &self.keeping.volumes[usize::from(volume.0)];
        let area = Area::Volume(volume);
        let pending = |part, work| Pending { whose: Whose::CopyBeforeWrite(volume, part), area, work };
        match todo {
            Todo::Copy { first, chunks } => {
                let (offset, len) = one.copier.place(first, chunks);
                let (len, buffer) = (len as usize, self.pool.get(len as usize));
                let pending = pending(Part::Read { first, chunks }, Work::Read { len });
                self.start(ring, pending, |fd| Op::Read { fd, offset, buffer, at: 0, len });
            }
            Todo::Flush => {
                let fd = Fd::clone(&one.old);
                self.start(ring, pending(Part::Flush, Work::Flush), |_| Op::Sync { fd });
            }
            Todo::Map(page) => {
                let fd = Fd::clone(&one.map);
                let (offset, durable) = (BLOCK_BYTES * (1 + page), true);
                let pieces = [self.pool.copy_of(&one.copier.page(page))].into();
                let pending = pending(Part::Map, Work::Write { offset, durable });
                self.start(ring, pending, |_| Op::Write { fd, offset, pieces, durable });
            }
        }
    }

    /// A step has ended.
    pub(super) fn kept(&mut self, ring: &mut Ring, volume: VolumeId, part: Part, result: IoResult) {
        let one = &mut self.keeping.volumes[usize::from(volume.0)];
        if let (Part::Read { first, chunks }, Ok(Some(bytes))) = (part, &result) {
            let (offset, len) = one.copier.place(first, chunks);
            self.keeping.written += len;
            let (fd, pieces, durable): (_, _, _) = (Fd::clone(&one.old), [Bytes::clone(bytes)].into(), false);
            let whose = Whose::CopyBeforeWrite(volume, Part::Write);
            let pending =
                Pending { whose, area: Area::Volume(volume), work: Work::Write { offset, durable } };
            return self.start(ring, pending, |_| Op::Write { fd, offset, pieces, durable });
        }
        let ok = result.is_ok();
        if let Err(failure) = result {
            one.failure.get_or_insert(failure);
        }
        let turn = one.copier.done(ok);
        self.take_turn(ring, volume, turn);
        self.begin_round(ring, volume);
    }
}
