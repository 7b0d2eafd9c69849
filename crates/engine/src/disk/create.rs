//! The making and removing of a replica's files.
//!
//! What this file guarantees:
//! - A directory of that name appears whole or not at all.
//! - The space of meta and journal is allocated before the directory appears, so a write to them
//!   never lacks space. They are filled with zeroes, so a durable overwrite changes no metadata of
//!   the file system.
//! - Files of volumes are sparse, unless the layout says that they are
//!   [preallocated](Layout::preallocate).
//! - A journal elsewhere exists only while a link in the pool names it.
//!   [journals.md](../../../../docs/internals/journals.md) has the steps and what a crash leaves
//!   after each.

// fallocate and statvfs have no safe form in the standard library.
#![allow(unsafe_code)]

use super::error::{DiskError, failed};
use super::files::{CHUNK_BYTES, FileMedia, Layout, ReplicaFiles, name, open_file};
use super::journal::NewJournal;
use super::snapshots::Content;
use crate::buffer::BufferPool;
use bytes::Bytes;
use mainstay_store::Area;
use mainstay_types::BLOCK_BYTES;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Space that a new replica leaves free in the pool, in bytes: for the directory, and for the file
/// system's own sake.
const SPARE_BYTES: u64 = 16 << 20;

/// The files of a replica in the making. Dropped without [`publish`](Self::publish) they are
/// removed.
#[derive(Debug)]
pub struct NewReplica {
    path: PathBuf,
    journal: Option<NewJournal>,
    /// `None` once published.
    files: Option<ReplicaFiles>,
}

impl NewReplica {
    /// Allocates all files of a replica that will be in `path`, and fills meta and journal with
    /// zeroes. `journal`: where that is to be, if not in `path`. When this fails nothing is left
    /// behind.
    ///
    /// Removes what an earlier attempt has left of the directory. If that names a journal
    /// elsewhere, the caller removes the journal before.
    pub fn create(
        path: &Path,
        layout: &Layout,
        journal: Option<&NewJournal>,
        pool: &BufferPool,
    ) -> Result<Self, DiskError> {
        if path.exists() {
            return Err(DiskError::Exists { path: path.to_owned() });
        }
        if let Some(journal) = journal {
            journal.check()?;
            if journal.path.exists() {
                return Err(DiskError::Exists { path: journal.path.clone() });
            }
        }
        let temporary = beside(path, "creating");
        remove_all(&temporary)?;
        failed("cannot make the directory", &temporary, fs::create_dir_all(&temporary))?;
        let result = fill(&temporary, layout, journal, pool);
        match result.and_then(|()| ReplicaFiles::open(&temporary)) {
            Ok(files) => Ok(Self { path: path.to_owned(), journal: journal.cloned(), files: Some(files) }),
            Err(error) => {
                // The first fault is the one to report; leftovers go with the next attempt.
                let _ = take_back(&temporary, journal);
                Err(error)
            }
        }
    }

    /// Synchronous access, for formatting.
    #[must_use]
    pub fn media(&self, pool: &BufferPool) -> FileMedia<'_> {
        self.files.as_ref().expect("taken only when published").media(pool)
    }

    /// Clones the files of a snapshot of another replica: the new one has them as its own snapshot.
    pub fn adopt(&self, content: &Content) -> Result<(), DiskError> {
        let files = self.files.as_ref().expect("taken only when published");
        content.clone_to(&beside(&self.path, "creating"), files)
    }

    /// Gives the replica its name, durably.
    pub fn publish(mut self) -> Result<ReplicaFiles, DiskError> {
        let temporary = beside(&self.path, "creating");
        failed("cannot flush", &temporary, File::open(&temporary).and_then(|dir| dir.sync_all()))?;
        failed("cannot rename", &temporary, fs::rename(&temporary, &self.path))?;
        let mut files = self.files.take().expect("taken only here");
        files.path.clone_from(&self.path);
        sync_parent(&self.path)?;
        Ok(files)
    }
}

impl Drop for NewReplica {
    fn drop(&mut self) {
        if self.files.take().is_some()
            && let Err(error) = take_back(&beside(&self.path, "creating"), self.journal.as_ref())
        {
            tracing::warn!(%error, "a half-made replica is left; the next attempt removes it");
        }
    }
}

/// The journal goes before the link that names it.
fn take_back(temporary: &Path, journal: Option<&NewJournal>) -> Result<(), DiskError> {
    if let Some(journal) = journal {
        journal.remove()?;
    }
    remove_all(temporary)
}

/// `<path>.<suffix>`: a place on the same file system.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

pub(super) fn remove_all(path: &Path) -> Result<(), DiskError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => failed("cannot remove", path, result),
    }
}

pub(super) fn sync_parent(path: &Path) -> Result<(), DiskError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    failed("cannot flush", parent, File::open(parent).and_then(|dir| dir.sync_all()))
}

fn fill(
    path: &Path,
    layout: &Layout,
    journal: Option<&NewJournal>,
    pool: &BufferPool,
) -> Result<(), DiskError> {
    // Asked first, so that a full pool is not filled to the brim before the answer is no.
    let here = layout.files().filter(|(area, _)| journal.is_none() || *area != Area::Journal);
    // As long as they are, sums take only what their volumes have written.
    let here = here.filter(|(area, _)| !matches!(area, Area::Sums(_)));
    let (volumes, others): (Vec<_>, Vec<_>) = here.partition(|(area, _)| matches!(area, Area::Volume(_)));
    let sum = |files: Vec<(Area, u64)>| files.into_iter().map(|(_, bytes)| bytes).sum::<u64>();
    check_space(path, sum(volumes), sum(others) + SPARE_BYTES, layout.preallocate)?;
    let zeroes = {
        let mut buffer = pool.get(CHUNK_BYTES);
        buffer.as_mut_slice().fill(0);
        buffer.freeze(CHUNK_BYTES)
    };
    if let Some(journal) = journal {
        journal.link(path)?;
    }
    for (area, bytes) in layout.files() {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "{area:?} of {bytes} bytes");
        let space = match area {
            Area::Sums(_) => Space::Sparse,
            Area::Volume(_) if !layout.preallocate => Space::Sparse,
            Area::Volume(_) => Space::Allocated,
            Area::Meta | Area::Journal => Space::Zeroed,
        };
        match journal.filter(|_| area == Area::Journal) {
            None => make(&path.join(name(area)), bytes, space, None, &zeroes)?,
            Some(NewJournal { path, label }) => {
                make(path, bytes, space, Some(pool.copy_of(&label.encode())), &zeroes)?;
                sync_parent(path)?;
            }
        }
    }
    Ok(())
}

/// State of the space of a new file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Sparse,
    Allocated,
    /// Allocated, and written once.
    Zeroed,
}

/// Makes a file of `bytes` bytes and the `label` after them, durably.
fn make(path: &Path, bytes: u64, space: Space, label: Option<Bytes>, zeroes: &[u8]) -> Result<(), DiskError> {
    let all = bytes + label.as_ref().map_or(0, |label| label.len() as u64);
    // Only a journal that lies elsewhere has a label, and it may be in memory.
    let (file, _) = open_file(path, label.is_none(), |options| _ = options.create_new(true))?;
    if space == Space::Sparse {
        failed("cannot make so large", path, file.set_len(all))?;
    } else {
        allocate(&file, path, all)?;
    }
    if space == Space::Zeroed {
        let mut at = 0;
        while at < bytes {
            let part = (bytes - at).min(zeroes.len() as u64);
            failed("cannot write", path, file.write_all_at(&zeroes[..part as usize], at))?;
            at += part;
        }
    }
    if let Some(label) = label {
        failed("cannot write", path, file.write_all_at(&label, bytes))?;
    }
    failed("cannot flush", path, file.sync_all())
}

fn allocate(file: &File, path: &Path, bytes: u64) -> Result<(), DiskError> {
    // SAFETY: fallocate takes no pointers and the descriptor is open.
    let result = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as libc::off_t) };
    if result == 0 {
        return Ok(());
    }
    let source = io::Error::last_os_error();
    Err(if source.raw_os_error() == Some(libc::ENOSPC) {
        DiskError::NoSpace { free: pool_space(path)?.free, path: path.to_owned(), need: bytes }
    } else {
        DiskError::System { what: "cannot allocate", path: path.to_owned(), source }
    })
}

/// Checks that a pool has room for a replica, in bytes. Volumes need free space only where they are
/// `preallocated`. But no replica may be larger than its pool, even an empty one: writes to it
/// would fail one day.
fn check_space(path: &Path, volumes: u64, others: u64, preallocated: bool) -> Result<(), DiskError> {
    let PoolSpace { free, size } = pool_space(path)?;
    let all = volumes.saturating_add(others);
    let need = if preallocated { all } else { others };
    if free < need {
        return Err(DiskError::NoSpace { path: path.to_owned(), need, free });
    }
    if size < all {
        return Err(DiskError::PoolTooSmall { path: path.to_owned(), need: all, size });
    }
    Ok(())
}

struct PoolSpace {
    /// In bytes.
    free: u64,
    size: u64,
}

fn pool_space(path: &Path) -> Result<PoolSpace, DiskError> {
    let what = "cannot ask for the free space of";
    let c_path = failed(what, path, CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other))?;
    // SAFETY: `statvfs` consists of integers, for which zero is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and `stat` a valid place for the result.
    if unsafe { libc::statvfs(c_path.as_ptr(), &raw mut stat) } != 0 {
        return failed(what, path, Err(io::Error::last_os_error()));
    }
    let bytes = |blocks: libc::fsblkcnt_t| blocks.saturating_mul(stat.f_frsize);
    Ok(PoolSpace { free: bytes(stat.f_bavail), size: bytes(stat.f_blocks) })
}
