//! Why the files of a replica cannot be made or used.

use mainstay_pool::Failed;
use mainstay_types::{BLOCK_BYTES, size_words};
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why the files of a replica cannot be made or used.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error("{} exists already", path.display())]
    Exists { path: PathBuf },
    #[error("there is no replica in {}", path.display())]
    Missing { path: PathBuf },
    #[error("{} is in use by another process", path.display())]
    InUse { path: PathBuf },
    #[error("the file system that holds {} has {} free where {} are needed", path.display(), size_words(*free), size_words(*need))]
    NoSpace { path: PathBuf, need: u64, free: u64 },
    #[error("the file system that holds {} has a size of {} where {} may be needed", path.display(), size_words(*size), size_words(*need))]
    PoolTooSmall { path: PathBuf, need: u64, size: u64 },
    #[error("the file system of {} cannot do direct I/O in blocks of {BLOCK_BYTES} bytes", path.display())]
    NoDirect { path: PathBuf },
    #[error("the file system of {} cannot clone files: XFS with reflink or btrfs can", path.display())]
    NoClones { path: PathBuf },
    #[error("{} has {found} bytes where {expected} are expected", path.display())]
    Size { path: PathBuf, found: u64, expected: u64 },
    #[error("the journal of {} is at {}, which is not there", path.display(), journal.display())]
    JournalMissing { path: PathBuf, journal: PathBuf },
    #[error("{} is not the journal of this replica: {what}", path.display())]
    WrongJournal { path: PathBuf, what: String },
    #[error("{} is not the file that the replica wrote last: {what}", path.display())]
    Foreign { path: PathBuf, what: String },
    #[error("{} is on a file system that a power cut empties", path.display())]
    VolatileJournal { path: PathBuf },
    #[error("{}, where journals are to be, is not there", path.display())]
    JournalDirectory { path: PathBuf },
    #[error("{}, where journals are to be, is a mount point, and would be there without its device too", path.display())]
    JournalMountPoint { path: PathBuf },
    #[error("{what} {}", path.display())]
    System {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl DiskError {
    /// Whether it would have gone well with more space in the pool.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        let Self::System { source, .. } = self else { return false };
        matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    }
}

impl From<Failed> for DiskError {
    fn from(Failed { what, path, source }: Failed) -> Self {
        Self::System { what, path, source }
    }
}

/// Names a failed step on a path.
pub(super) fn failed<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, DiskError> {
    result.map_err(|source| DiskError::System { what, path: path.to_owned(), source })
}
