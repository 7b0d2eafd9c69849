//! The files of snapshots: clones of the volumes' files beside them, and of the files of their sums
//! if there are any. A clone shares its space with the original until one of both changes.
//!
//! Guarantee: when [`Clones::take`] has succeeded the files are whole and durable.
//! Until then they have another name, or do not exist. Files that an earlier attempt has left are
//! replaced.
//!
//! A clone needs a file system that can make one (XFS with reflink, which is its default, or
//! btrfs). It takes as long as the file system takes to copy a list of extents: a thread of its own
//! waits for that. Where the file system cannot clone, the content of volumes is put aside before
//! it is overwritten (`cow.rs`). Sums, a thousandth of that, are copied.

use super::cow::{self, Layer, Standing};
use super::error::{DiskError, failed};
use super::files::{ReplicaFiles, SUMS_BYTES};
use super::freeing;
use crate::ring::Fd;
use mainstay_api::engine::ContentSource;
use mainstay_codec::sums::SUM_BYTES;
use mainstay_pool::{Part, Replica, replica_at};
use mainstay_store::{Area, IoFailure, OpId};
use mainstay_types::{BLOCK_BYTES, ResourceId, SnapshotId, VolumeId};
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

/// Change to the files of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotAction {
    /// Clone the volumes, cut to these sizes in bytes, and the sums of these parts.
    Take(Vec<u64>),
    /// Clone the files of snapshot `from`, for volumes of these sizes in bytes. Then clone the
    /// volumes and their sums from the new files.
    Restore {
        from: SnapshotId,
        volumes: Vec<u64>,
    },
    Remove,
}

/// An order of a store to change the files of a snapshot.
pub struct SnapshotJob {
    pub resource: ResourceId,
    /// Id of the disk that gave the order, see [`super::Disk::id_of`]. By the end of the job
    /// another replica may have the resource's name.
    pub disk: u32,
    pub op: OpId,
    pub snapshot: SnapshotId,
    pub action: SnapshotAction,
    pub(super) clones: Clones,
}

/// Consequence of an order for the keepers of the volumes.
#[derive(Debug, Default)]
pub(super) enum Change {
    #[default]
    None,
    /// From now on content is put aside in this layer before it is overwritten.
    Begun(Layer),
    /// Layers that are left after the order. Chunks that they cover need not be put aside any more,
    /// as long as the keepers still write to the same layer.
    Left(Standing),
}

/// Result of an order.
#[derive(Debug)]
pub struct SnapshotDone {
    pub resource: ResourceId,
    pub disk: u32,
    pub op: OpId,
    pub result: Result<(), IoFailure>,
    pub(super) change: Change,
}

/// Snapshots that are kept in layers: content is put aside before it is overwritten. A snapshot
/// that is being made is in the set before it has a file.
pub(super) type Held = Arc<Mutex<BTreeSet<SnapshotId>>>;

/// The place of a replica and the open files of its volumes and sums. While one exists, no
/// other process can open the replica.
pub(super) struct Clones {
    at: Arc<dyn Replica>,
    files: Vec<(Area, Fd)>,
    held: Held,
    /// Lock that is held while space is freed or layers are written.
    freeing: Arc<Mutex<()>>,
    _lock: Fd,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked has left a set that is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Areas that are cloned when a snapshot is taken: all volumes, and with `sums` their sums.
fn areas(volumes: usize, sums: bool) -> impl Iterator<Item = Area> {
    let numbers = move || (0..volumes).map(|n| VolumeId(n as u16));
    numbers().map(Area::Volume).chain(numbers().filter(move |_| sums).map(Area::Sums))
}

/// Cuts the clone of an area for a volume of `bytes` bytes, or makes it as large. The rest of it is
/// zeroes.
fn fit(file: &File, area: Area, bytes: u64) -> io::Result<()> {
    if !matches!(area, Area::Sums(_)) {
        return file.set_len(bytes);
    }
    file.set_len(bytes / BLOCK_BYTES * SUM_BYTES)?;
    file.set_len(SUMS_BYTES)
}

impl SnapshotJob {
    /// Does it on a thread of its own, or here if there can be none.
    pub fn start(self, done: impl FnOnce(SnapshotDone) + Send + 'static) {
        let (give, take) = mpsc::channel();
        let thread = thread::Builder::new().name("snapshot".into()).spawn(move || {
            if let Ok((job, done)) = take.recv() {
                Self::run(job, done);
            }
        });
        match thread {
            // The thread waits for it.
            Ok(_) => _ = give.send((self, done)),
            Err(_) => self.run(done),
        }
    }

    fn run(self, done: impl FnOnce(SnapshotDone)) {
        let Self { resource, disk, op, snapshot, action, clones } = self;
        let result = match &action {
            SnapshotAction::Take(volumes) => clones.take(snapshot, volumes),
            SnapshotAction::Restore { from, volumes } => clones.restore(snapshot, *from, volumes),
            SnapshotAction::Remove => clones.remove(snapshot),
        };
        if result.is_err() && matches!(action, SnapshotAction::Take(_)) {
            // Some of the volumes may have been cloned. These clones would otherwise stay until the
            // replica is opened again.
            locked(&clones.held).remove(&snapshot);
            let _ = clones.remove(snapshot);
        }
        // The lock is released before a caller can learn that the job has ended.
        drop(clones);
        if let Err(error @ DiskError::NoClones { .. }) = &result {
            tracing::debug!(%resource, %error, "what this replica holds is not kept while it is copied to");
        } else if let Err(error) = &result {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%resource, %snapshot, %error, cause, "a snapshot could not be kept or removed here");
        }
        let (result, change) = match result {
            Ok(change) => (Ok(()), change),
            Err(error) => {
                let failure =
                    IoFailure { no_space: error.is_no_space(), ..IoFailure::new(error.to_string()) };
                (Err(failure), Change::None)
            }
        };
        done(SnapshotDone { resource, disk, op, result, change });
    }
}

/// A snapshot in the files of another replica.
#[derive(Clone, Debug)]
pub struct Content {
    /// Directory of that replica, on the same file system.
    pub dir: PathBuf,
    pub snapshot: SnapshotId,
    /// Number of the snapshot in the new replica.
    pub name: SnapshotId,
}

impl From<ContentSource> for Content {
    fn from(ContentSource { dir, snapshot, name }: ContentSource) -> Self {
        Self { dir: dir.into(), snapshot, name }
    }
}

impl Content {
    /// Whether the sums of its blocks are known.
    pub fn has_sums(&self) -> bool {
        replica_at(&self.dir).has(Part::Snapshot(self.snapshot, Area::Sums(VolumeId(0))))
    }

    /// Clones its files into a replica in the making, durably but for their names.
    pub(super) fn clone_to(&self, new: &dyn Replica, files: &ReplicaFiles) -> Result<(), DiskError> {
        let source = replica_at(&self.dir);
        let volumes = (0..).take_while(|n| files.area(Area::Volume(VolumeId(*n))).is_some()).count();
        for area in areas(volumes, files.has_sums()) {
            let from = source.part(Part::Snapshot(self.snapshot, area));
            let to = new.part(Part::Snapshot(self.name, area));
            if let Area::Volume(volume) = area
                && cow::is_here(&*source, self.snapshot)
            {
                cow::copy_out(&source.part(Part::map(self.snapshot, volume)), &new_file(&to)?)?;
                continue;
            }
            let file = failed("cannot open what the replica is made of,", &from, File::open(&from))?;
            match clone_file(new, file.as_fd(), &to, |_| Ok(())) {
                Err(DiskError::NoClones { .. }) => copy_file(&from, &to, u64::MAX, |_| Ok(()))?,
                cloned => _ = cloned?,
            }
        }
        Ok(())
    }
}

fn new_file(path: &Path) -> Result<File, DiskError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    failed("cannot make", path, options.open(path))
}

/// Makes `path`, of a replica, a clone of `source`, durably but for its name.
fn clone_file(
    at: &dyn Replica,
    source: BorrowedFd<'_>,
    path: &Path,
    fit: impl FnOnce(&File) -> io::Result<()>,
) -> Result<File, DiskError> {
    let Some(file) = at.clone_to(path, source)? else {
        return Err(DiskError::NoClones { path: path.to_owned() });
    };
    failed("cannot cut", path, fit(&file))?;
    failed("cannot flush", path, file.sync_all())?;
    Ok(file)
}

/// Makes `to` a copy of the first `bytes` of `from`, durably but for its name.
fn copy_file(
    from: &Path,
    to: &Path,
    bytes: u64,
    fit: impl FnOnce(&File) -> io::Result<()>,
) -> Result<(), DiskError> {
    let source = failed("cannot open", from, File::open(from))?;
    let file = new_file(to)?;
    let all = failed("cannot look at", from, source.metadata())?.len();
    failed("cannot make so large", to, file.set_len(all))?;
    failed("cannot copy to", to, cow::copy_sparse(&source, &file, bytes.min(all)))?;
    failed("cannot cut", to, fit(&file))?;
    failed("cannot flush", to, file.sync_all())
}

impl Clones {
    pub(super) fn of(files: &ReplicaFiles, volumes: usize, held: &Held, freeing: &Arc<Mutex<()>>) -> Self {
        let file = |area: Area| files.area(area).map(|file| (area, Fd::clone(&file.file)));
        Self {
            at: Arc::clone(&files.at),
            files: areas(volumes, files.has_sums()).filter_map(file).collect(),
            held: Arc::clone(held),
            freeing: Arc::clone(freeing),
            _lock: files.area(Area::Meta).map(|file| Fd::clone(&file.file)).expect("a replica has one"),
        }
    }

    fn take(&self, snapshot: SnapshotId, sizes: &[u64]) -> Result<Change, DiskError> {
        match self.keep(snapshot, sizes, |_, file| Ok(Fd::clone(file))) {
            // Nothing is put aside for a replica that is copied to: nearly all of it may be
            // overwritten, and to put that aside would be a second copy.
            Err(DiskError::NoClones { .. }) if snapshot != SnapshotId::BEFORE_COPY => {
                self.forget_half_made(snapshot)?;
                self.begin_layer(snapshot, sizes, |volume| self.at.part(Part::Area(Area::Sums(volume))))
            }
            kept => kept.map(|_| Change::None),
        }
    }

    /// Clones the files of the snapshot `from`, and volumes and sums from the clones: what fails
    /// half-way is done again as a whole.
    fn restore(&self, snapshot: SnapshotId, from: SnapshotId, sizes: &[u64]) -> Result<Change, DiskError> {
        let kept = if cow::is_here(&*self.at, from) {
            Err(DiskError::NoClones { path: self.at.place().to_owned() })
        } else {
            self.keep(snapshot, sizes, |area, _| {
                let path = self.at.part(Part::Snapshot(from, area));
                failed("cannot open", &path, File::open(&path)).map(|file| Fd::new(file.into()))
            })
        };
        let files = match kept {
            Err(DiskError::NoClones { .. }) => return self.restore_copies(snapshot, from, sizes),
            kept => kept?,
        };
        for ((_, target), (path, file)) in self.files.iter().zip(&files) {
            let cloned = self.at.clone_over(target.as_fd(), file.as_fd());
            failed("cannot clone to a volume or its sums", path, cloned)?;
            let flushed = rustix::fs::fsync(target).map_err(io::Error::from);
            failed("cannot flush what is cloned from", path, flushed)?;
        }
        Ok(Change::None)
    }

    /// Restores by copying, where files cannot be cloned.
    fn restore_copies(
        &self,
        snapshot: SnapshotId,
        from: SnapshotId,
        sizes: &[u64],
    ) -> Result<Change, DiskError> {
        self.forget_half_made(snapshot)?;
        // A thread that frees space reads the maps that are written here.
        let _one_at_a_time = locked(&self.freeing);
        let sums = |volume| self.at.part(Part::Snapshot(from, Area::Sums(volume)));
        let change = self.begin_layer(snapshot, sizes, sums)?;
        let volumes: Vec<_> = self.volumes(sizes).collect();
        let held = locked(&self.held).clone();
        cow::restore(&*self.at, (from, snapshot), &held, &volumes)?;
        for (volume, bytes) in self.sums(sizes) {
            let (source, target) = (sums(volume), self.at.part(Part::Area(Area::Sums(volume))));
            let file = OpenOptions::new().read(true).write(true).open(&target);
            let file = failed("cannot open", &target, file)?;
            let copied = cow::punch(&file, 0, SUMS_BYTES)
                .and_then(|()| cow::copy_sparse(&File::open(&source)?, &file, bytes))
                .and_then(|()| file.sync_all());
            failed("cannot copy the sums of a snapshot to", &target, copied)?;
        }
        Ok(change)
    }

    /// Begins a layer: from now on the content of volumes of these sizes is put aside before it is
    /// overwritten. `sums`: path of the sums of a volume's present content.
    fn begin_layer(
        &self,
        snapshot: SnapshotId,
        sizes: &[u64],
        sums: impl Fn(VolumeId) -> PathBuf,
    ) -> Result<Change, DiskError> {
        for (volume, bytes) in self.sums(sizes) {
            let part = Part::Snapshot(snapshot, Area::Sums(volume));
            copy_file(&sums(volume), &self.at.half(part), bytes, |file| file.set_len(SUMS_BYTES))?;
            self.at.complete(part)?;
        }
        locked(&self.held).insert(snapshot);
        Layer::create(&*self.at, snapshot, sizes).map(Change::Begun)
    }

    /// The volumes and their sizes, in bytes.
    fn volumes(&self, sizes: &[u64]) -> impl Iterator<Item = (VolumeId, Fd, u64)> {
        self.files.iter().filter_map(|(area, file)| match area {
            Area::Volume(volume) => {
                sizes.get(usize::from(volume.0)).map(|bytes| (*volume, Fd::clone(file), *bytes))
            }
            _ => None,
        })
    }

    /// The volumes that have sums, and the size of these.
    fn sums(&self, sizes: &[u64]) -> impl Iterator<Item = (VolumeId, u64)> {
        self.files.iter().filter_map(|(area, _)| match area {
            Area::Sums(volume) => {
                sizes.get(usize::from(volume.0)).map(|bytes| (*volume, bytes / BLOCK_BYTES * SUM_BYTES))
            }
            _ => None,
        })
    }

    /// Makes the files of a snapshot out of those that `source` gives, of these sizes.
    fn keep(
        &self,
        snapshot: SnapshotId,
        sizes: &[u64],
        source: impl Fn(Area, &Fd) -> Result<Fd, DiskError>,
    ) -> Result<Vec<(PathBuf, File)>, DiskError> {
        let mut files = Vec::new();
        for (area, file) in &self.files {
            let (Area::Volume(volume) | Area::Sums(volume)) = *area else { continue };
            let Some(bytes) = sizes.get(usize::from(volume.0)) else { continue };
            let source = source(*area, file)?;
            let part = Part::Snapshot(snapshot, *area);
            let fit = |file: &File| fit(file, *area, *bytes);
            let file = clone_file(&*self.at, source.as_fd(), &self.at.half(part), fit)?;
            self.at.complete(part)?;
            files.push((self.at.part(part), file));
        }
        self.at.flush()?;
        Ok(files)
    }

    /// Removes the files of a snapshot, and the parts of its layer that no other snapshot needs.
    fn remove(&self, snapshot: SnapshotId) -> Result<Change, DiskError> {
        remove_snapshots(&*self.at, |id| id == snapshot)?;
        let _one_at_a_time = locked(&self.freeing);
        let volumes = self.files.iter().filter(|(area, _)| matches!(area, Area::Volume(_))).count();
        cow::tidy(&*self.at, || locked(&self.held).clone(), volumes, false).map(Change::Left)
    }

    /// Removes the files that are left of clones that were not possible.
    fn forget_half_made(&self, snapshot: SnapshotId) -> Result<(), DiskError> {
        remove_snapshots(&*self.at, |id| id == snapshot)
    }
}

/// Removes the files of snapshots that are `unwanted`, half-made ones included.
fn remove_snapshots(at: &dyn Replica, unwanted: impl Fn(SnapshotId) -> bool) -> Result<(), DiskError> {
    let parts = failed("cannot list", at.place(), at.parts())?.into_iter();
    for entry in parts.filter(|entry| matches!(entry.part, Part::Snapshot(id, _) if unwanted(id))) {
        let file = entry.path;
        match freeing::remove(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return failed("cannot remove", &file, Err(error));
            }
            _ => {}
        }
    }
    Ok(())
}

impl ReplicaFiles {
    /// Removes what a crash has left of snapshots, and says which of `recorded` are not here as a
    /// whole.
    ///
    /// # Errors
    /// When the directory cannot be read or changed.
    pub fn sweep_snapshots(
        &mut self,
        recorded: &BTreeSet<SnapshotId>,
        volumes: usize,
    ) -> Result<Vec<SnapshotId>, DiskError> {
        remove_snapshots(&*self.at, |id| !recorded.contains(&id))?;
        let in_layers: BTreeSet<_> =
            recorded.iter().copied().filter(|id| cow::is_here(&*self.at, *id)).collect();
        let standing = cow::tidy(&*self.at, || in_layers.clone(), volumes, true)?;
        let whole = |id: &SnapshotId| {
            let layer = in_layers.contains(id);
            let own =
                areas(volumes, self.has_sums()).filter(|area| !layer || !matches!(area, Area::Volume(_)));
            let mut parts = own.map(|area| Part::Snapshot(*id, area));
            parts.all(|part| self.at.has(part)) && !standing.lost.contains(id)
        };
        let lost: Vec<_> = recorded.iter().copied().filter(|id| !whole(id)).collect();
        let held = in_layers.into_iter().filter(|id| !lost.contains(id)).collect();
        self.layers = (held, standing);
        Ok(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::FileExt;

    /// Sums beyond the end of the kept volume say nothing. Should that volume grow again, it has
    /// zeroes there.
    #[test]
    fn the_clone_of_sums_ends_with_its_volume_and_is_as_long_as_any() {
        let path = std::env::temp_dir().join(format!("mainstay-fit-{}", std::process::id()));
        fs::write(&path, [7; 2 * BLOCK_BYTES as usize]).expect("a scratch file");
        let file = OpenOptions::new().read(true).write(true).open(&path).expect("it is there");
        fit(&file, Area::Sums(VolumeId(0)), 3 * BLOCK_BYTES).expect("well");
        let mut found = vec![0; 2 * BLOCK_BYTES as usize];
        file.read_exact_at(&mut found, 0).expect("well");
        let bytes = file.metadata().expect("well").len();
        fit(&file, Area::Volume(VolumeId(0)), 3 * BLOCK_BYTES).expect("well");
        let volume_bytes = file.metadata().expect("well").len();
        fs::remove_file(&path).expect("well");
        assert_eq!((found.iter().filter(|byte| **byte == 7).count(), &found[..12]), (12, &[7; 12][..]));
        assert_eq!((bytes, volume_bytes), (SUMS_BYTES, 3 * BLOCK_BYTES));
    }
}
