//! The files of snapshots: clones of the volumes' files beside them, and of the files of their sums if there are any, which share their space
//! until one of both changes.
//!
//! What this file guarantees: when [`Clones::take`] has succeeded the files are whole and durable; until then there are only such
//! with another name, or none. Whatever is there of an earlier attempt is replaced.
//!
//! A clone needs a file system that knows them (XFS with reflink, which is its default, or btrfs). It takes as long as the file system
//! takes to copy a list of extents: a thread of its own waits for that.

use super::error::{DiskError, failed};
use super::files::{ReplicaFiles, SUMS_BYTES, name};
use crate::ring::Fd;
use mainstay_api::engine::{ContentSource, snapshot_file};
use mainstay_codec::sums::SUM_BYTES;
use mainstay_store::{Area, IoFailure, OpId};
use mainstay_types::{BLOCK_BYTES, ResourceId, SnapshotId, VolumeId};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

/// What is to be done to the files of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotAction {
    /// Clone the volumes, cut to these sizes in bytes, and what their sums say of so much.
    Take(Vec<u64>),
    /// Clone the files of another snapshot, for volumes as large as this, and the volumes and their sums from these.
    Restore {
        from: SnapshotId,
        volumes: Vec<u64>,
    },
    Remove,
}

/// One such order of a store.
pub struct SnapshotJob {
    pub resource: ResourceId,
    /// Of the disk that wants it, see [`super::Disk::id_of`]: another replica may have the resource's name by the time it ends.
    pub disk: u32,
    pub op: OpId,
    pub snapshot: SnapshotId,
    pub action: SnapshotAction,
    pub(super) clones: Clones,
}

/// What came of it.
#[derive(Debug)]
pub struct SnapshotDone {
    pub resource: ResourceId,
    pub disk: u32,
    pub op: OpId,
    pub result: Result<(), IoFailure>,
}

/// The directory of a replica and the open files of its volumes and sums. While one exists nobody else opens the replica.
pub(super) struct Clones {
    path: PathBuf,
    files: Vec<(Area, Fd)>,
    _lock: Fd,
}

/// What is cloned when a snapshot is taken.
fn areas(volumes: usize, sums: bool) -> impl Iterator<Item = Area> {
    let numbers = move || (0..volumes).map(|n| VolumeId(n as u16));
    numbers().map(Area::Volume).chain(numbers().filter(move |_| sums).map(Area::Sums))
}

/// The name of the clone of an area.
fn clone_name(snapshot: SnapshotId, area: Area) -> String {
    match area {
        Area::Volume(volume) => snapshot_file(snapshot, volume),
        _ => format!("snap{}-{}", snapshot.0, name(area)),
    }
}

/// The snapshot that a file is of, if it is of one; half-made ones included.
fn snapshot_of(file: &str) -> Option<SnapshotId> {
    let (number, of) = file.strip_prefix("snap")?.split_once('-')?;
    let kept = of.starts_with("vol") || of.starts_with("sums");
    number.parse().ok().filter(|_| kept).map(SnapshotId)
}

/// Cuts the clone of an area for a volume of so many bytes, or makes it as large. What lies beyond that is zeroes.
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
            // Of several volumes some may have been cloned; nobody would remove them before the replica is opened again.
            let _ = clones.remove(snapshot);
        }
        // The lock goes before anybody can hear that it has ended.
        drop(clones);
        if let Err(error) = &result {
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%resource, %snapshot, %error, cause, "a snapshot could not be kept or removed here");
        }
        let result = result.map_err(|error| IoFailure {
            no_space: error.is_no_space(),
            ..IoFailure::new(error.to_string())
        });
        done(SnapshotDone { resource, disk, op, result });
    }
}

/// A snapshot in the files of another replica.
#[derive(Clone, Debug)]
pub struct Content {
    /// Directory of that replica, on the same file system.
    pub dir: PathBuf,
    pub snapshot: SnapshotId,
    /// What it is to be called in the new replica.
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
        self.dir.join(clone_name(self.snapshot, Area::Sums(VolumeId(0)))).exists()
    }

    /// Clones its files into the directory of a new replica, durably but for their names.
    pub(super) fn clone_to(&self, path: &Path, files: &ReplicaFiles) -> Result<(), DiskError> {
        let volumes = (0..).take_while(|n| files.area(Area::Volume(VolumeId(*n))).is_some()).count();
        for area in areas(volumes, files.has_sums()) {
            let from = self.dir.join(clone_name(self.snapshot, area));
            let source = failed("cannot open what the replica is made of,", &from, File::open(&from))?;
            clone_file(&source, &path.join(clone_name(self.name, area)), |_| Ok(()))?;
        }
        Ok(())
    }
}

/// Makes `path` a clone of `source`, durably but for its name.
fn clone_file(
    source: impl AsFd,
    path: &Path,
    fit: impl FnOnce(&File) -> io::Result<()>,
) -> Result<File, DiskError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600);
    let file = failed("cannot make", path, options.open(path))?;
    let cloned = rustix::fs::ioctl_ficlone(&file, source).map_err(io::Error::from);
    let cloned = cloned.map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EXDEV) => {
            io::Error::other("the file system of the pool cannot clone files: XFS with reflink or btrfs can")
        }
        _ => error,
    });
    failed("cannot clone to", path, cloned)?;
    failed("cannot cut", path, fit(&file))?;
    failed("cannot flush", path, file.sync_all())?;
    Ok(file)
}

impl Clones {
    pub(super) fn of(files: &ReplicaFiles, volumes: usize) -> Self {
        let file = |area: Area| files.area(area).map(|file| (area, Fd::clone(&file.file)));
        Self {
            path: files.path().to_owned(),
            files: areas(volumes, files.has_sums()).filter_map(file).collect(),
            _lock: files.area(Area::Meta).map(|file| Fd::clone(&file.file)).expect("a replica has one"),
        }
    }

    fn take(&self, snapshot: SnapshotId, sizes: &[u64]) -> Result<(), DiskError> {
        self.keep(snapshot, sizes, |_, file| Ok(Fd::clone(file))).map(|_| ())
    }

    /// Clones the files of the snapshot `from`, and volumes and sums from the clones: what fails half-way is done again as a whole.
    fn restore(&self, snapshot: SnapshotId, from: SnapshotId, sizes: &[u64]) -> Result<(), DiskError> {
        let files = self.keep(snapshot, sizes, |area, _| {
            let path = self.path.join(clone_name(from, area));
            failed("cannot open", &path, File::open(&path)).map(|file| Fd::new(file.into()))
        })?;
        for ((_, target), (path, file)) in self.files.iter().zip(&files) {
            let cloned = rustix::fs::ioctl_ficlone(target, file).map_err(io::Error::from);
            failed("cannot clone to a volume or its sums", path, cloned)?;
            let flushed = rustix::fs::fsync(target).map_err(io::Error::from);
            failed("cannot flush what is cloned from", path, flushed)?;
        }
        Ok(())
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
            let path = self.path.join(clone_name(snapshot, *area));
            let half = path.with_extension("new");
            let file = clone_file(&source, &half, |file| fit(file, *area, *bytes))?;
            failed("cannot rename", &half, fs::rename(&half, &path))?;
            files.push((path, file));
        }
        self.sync()?;
        Ok(files)
    }

    fn remove(&self, snapshot: SnapshotId) -> Result<(), DiskError> {
        remove_snapshots(&self.path, |id| id == snapshot)
    }

    fn sync(&self) -> Result<(), DiskError> {
        failed("cannot flush", &self.path, File::open(&self.path).and_then(|dir| dir.sync_all()))
    }
}

fn snapshot_files(path: &Path) -> Result<Vec<(SnapshotId, PathBuf)>, DiskError> {
    let entries = failed("cannot list", path, fs::read_dir(path))?;
    let found = entries.flatten().filter_map(|entry| {
        let id = snapshot_of(&entry.file_name().to_string_lossy())?;
        Some((id, entry.path()))
    });
    Ok(found.collect())
}

/// Removes the files of snapshots that are `unwanted`, half-made ones included.
pub(super) fn remove_snapshots(path: &Path, unwanted: impl Fn(SnapshotId) -> bool) -> Result<(), DiskError> {
    for (_, file) in snapshot_files(path)?.into_iter().filter(|(id, _)| unwanted(*id)) {
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return failed("cannot remove", &file, Err(error));
            }
            _ => {}
        }
    }
    Ok(())
}

impl ReplicaFiles {
    /// Removes what a crash has left of snapshots, and says which of `recorded` are not here as a whole.
    ///
    /// # Errors
    /// When the directory cannot be read or changed.
    pub fn sweep_snapshots(
        &self,
        recorded: &BTreeSet<SnapshotId>,
        volumes: usize,
    ) -> Result<Vec<SnapshotId>, DiskError> {
        remove_snapshots(self.path(), |id| !recorded.contains(&id))?;
        let whole = |id: &SnapshotId| {
            areas(volumes, self.has_sums()).all(|area| self.path().join(clone_name(*id, area)).exists())
        };
        Ok(recorded.iter().copied().filter(|id| !whole(id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// What lies beyond the end of the volume that is kept says nothing: should that volume grow again, it has zeroes there.
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

    #[test]
    fn names_say_which_snapshot_a_file_is_of() {
        let name = snapshot_file(SnapshotId(12), VolumeId(3));
        assert_eq!((name.as_str(), snapshot_of(&name)), ("snap12-vol3", Some(SnapshotId(12))));
        assert_eq!(snapshot_of("snap7-vol0.new"), Some(SnapshotId(7)));
        let sums = clone_name(SnapshotId(12), Area::Sums(VolumeId(3)));
        assert_eq!((sums.as_str(), snapshot_of(&sums)), ("snap12-sums3", Some(SnapshotId(12))));
        for other in ["vol0", "sums0", "meta", "journal", "snapx-vol0", "snap7", "snap7-journal"] {
            assert_eq!(snapshot_of(other), None);
        }
    }
}
