//! The files of snapshots: clones of the volumes' files beside them, which share their space until one of both changes.
//!
//! What this file guarantees: when [`Clones::take`] has succeeded the files are whole and durable; until then there are only such
//! with another name, or none. Whatever is there of an earlier attempt is replaced.
//!
//! A clone needs a file system that knows them (XFS with reflink, which is its default, or btrfs). It takes as long as the file system
//! takes to copy a list of extents: a thread of its own waits for that.

use super::error::{DiskError, failed};
use super::files::ReplicaFiles;
use crate::ring::Fd;
use mainstay_api::engine::snapshot_file;
use mainstay_store::{Area, IoFailure, OpId};
use mainstay_types::{ResourceId, SnapshotId, VolumeId};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

/// What is to be done to the files of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SnapshotAction {
    /// Clone the volumes, cut to these sizes in bytes.
    Take(Vec<u64>),
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

/// The directory of a replica and the open files of its volumes. While one exists nobody else opens the replica.
pub(super) struct Clones {
    path: PathBuf,
    volumes: Vec<Fd>,
    _lock: Fd,
}

/// The snapshot that a file is of, if it is of one; half-made ones included.
fn snapshot_of(file: &str) -> Option<SnapshotId> {
    let (number, _) = file.strip_prefix("snap")?.split_once("-vol")?;
    number.parse().ok().map(SnapshotId)
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
        let result = result.map_err(|error| IoFailure::new(error.to_string()));
        done(SnapshotDone { resource, disk, op, result });
    }
}

impl Clones {
    pub(super) fn of(files: &ReplicaFiles, volumes: usize) -> Self {
        let volume =
            |n: usize| files.area(Area::Volume(VolumeId(n as u16))).map(|file| Fd::clone(&file.file));
        Self {
            path: files.path().to_owned(),
            volumes: (0..volumes).map_while(volume).collect(),
            _lock: files.area(Area::Meta).map(|file| Fd::clone(&file.file)).expect("a replica has one"),
        }
    }

    fn take(&self, snapshot: SnapshotId, sizes: &[u64]) -> Result<(), DiskError> {
        for (n, (source, bytes)) in self.volumes.iter().zip(sizes).enumerate() {
            let path = self.path.join(snapshot_file(snapshot, VolumeId(n as u16)));
            let half = path.with_extension("new");
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(true).mode(0o600);
            let file = failed("cannot make", &half, options.open(&half))?;
            let cloned = rustix::fs::ioctl_ficlone(&file, source).map_err(io::Error::from);
            let cloned = cloned.map_err(|error| match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EXDEV) => io::Error::other(
                    "the file system of the pool cannot clone files: XFS with reflink or btrfs can",
                ),
                _ => error,
            });
            failed("cannot clone a volume to", &half, cloned)?;
            failed("cannot cut", &half, file.set_len(*bytes))?;
            failed("cannot flush", &half, file.sync_all())?;
            failed("cannot rename", &half, fs::rename(&half, &path))?;
        }
        self.sync()
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
            (0..volumes).all(|n| self.path().join(snapshot_file(*id, VolumeId(n as u16))).exists())
        };
        Ok(recorded.iter().copied().filter(|id| !whole(id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_snapshot_a_file_is_of() {
        let name = snapshot_file(SnapshotId(12), VolumeId(3));
        assert_eq!((name.as_str(), snapshot_of(&name)), ("snap12-vol3", Some(SnapshotId(12))));
        assert_eq!(snapshot_of("snap7-vol0.new"), Some(SnapshotId(7)));
        for other in ["vol0", "meta", "journal", "snapx-vol0", "snap7"] {
            assert_eq!(snapshot_of(other), None);
        }
    }
}
