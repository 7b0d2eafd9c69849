//! Space on the disk that only the control state can take.
//!
//! Guarantees
//! - Blocks are allocated for a file of the control state as it is and for its next growth (redb
//!   doubles a file). So a commit finds space on a disk that other files have filled.
//! - The file looks no larger (`FALLOC_FL_KEEP_SIZE`). The reserve belongs to the file, so it goes
//!   with it.
//!
//! Limits: a file system that writes every block to a new place (btrfs), or cannot allocate in
//! advance (NFS, ZFS), reserves nothing. The latter is logged. While the disk is full, nothing can
//! be reserved, and the agent tries again every [`AGAIN`].

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two attempts to reserve space on a full disk.
pub const AGAIN: Duration = Duration::from_secs(10);

/// The reserve of one file.
#[derive(Debug)]
pub struct Reserve {
    path: PathBuf,
    file: File,
    /// Least number of bytes beyond the file's end.
    bytes_min: u64,
    /// Length of the file for which space is reserved; 0 before the first time.
    reserved_for: Cell<u64>,
    failed: Cell<Option<Instant>>,
    /// The file system cannot do it.
    unsupported: Cell<bool>,
}

impl Reserve {
    /// Reserves space for the file at `path`, which exists: at least `bytes_min` beyond its end.
    ///
    /// # Errors
    /// When the file cannot be opened. That space cannot be reserved is logged and no error.
    pub fn of(path: &Path, bytes_min: u64) -> io::Result<Self> {
        let reserve = Self {
            path: path.to_path_buf(),
            file: File::options().read(true).write(true).open(path)?,
            bytes_min,
            reserved_for: Cell::new(0),
            failed: Cell::new(None),
            unsupported: Cell::new(false),
        };
        reserve.keep();
        Ok(reserve)
    }

    /// Reserves space again if the file has another length, to be called after each commit. Costs
    /// one `fstat` otherwise.
    pub fn keep(&self) {
        let waits = self.failed.get().is_some_and(|at| at.elapsed() < AGAIN);
        let Ok(bytes) = self.file.metadata().map(|metadata| metadata.len()) else { return };
        if self.unsupported.get() || waits || bytes == self.reserved_for.get() {
            return;
        }
        let end = bytes + bytes.max(self.bytes_min);
        match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, end.cast_signed()) {
            Ok(()) => {
                self.reserved_for.set(bytes);
                if self.failed.take().is_some() {
                    tracing::info!(path = %self.path.display(), "space for the control state is reserved again");
                }
            }
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                self.unsupported.set(true);
                tracing::warn!(
                    path = %self.path.display(),
                    "this file system cannot reserve space for the control state: the agent ends when the disk is full"
                );
            }
            Err(errno) => {
                if self.failed.replace(Some(Instant::now())).is_none() {
                    tracing::warn!(
                        path = %self.path.display(), %errno,
                        "no space for the control state can be reserved; make room on this disk, or the agent ends when it is full"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn space_is_reserved_beyond_the_end_and_follows_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"content").unwrap();
        let reserve = Reserve::of(&path, 1 << 20).unwrap();
        if reserve.unsupported.get() {
            eprintln!("skipped: the file system of the temporary directory cannot reserve space");
            return;
        }
        let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
        assert!(allocated() >= 1 << 20, "{} bytes", allocated());
        reserve.file.set_len(4 << 20).unwrap();
        reserve.keep();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 << 20);
        assert!(allocated() >= 8 << 20, "{} bytes", allocated());
    }
}
