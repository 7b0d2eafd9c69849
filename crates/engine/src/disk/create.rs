//! The making and removing of a replica's files.
//!
//! Guarantees:
//! - A directory of that name appears whole or not at all.
//! - The space of meta and journal is allocated before the directory appears, so a write to them
//!   never lacks space. They are filled with zeroes, so a durable overwrite changes no metadata of
//!   the file system.
//! - Files of volumes are sparse, unless the layout says that they are
//!   [preallocated](Layout::preallocate).
//! - A journal elsewhere exists only while a link in the pool names it.
//!   [journals.md](../../../../docs/internals/journals.md) has the steps and what a crash leaves
//!   after each.

use super::error::{DiskError, failed};
use super::files::{CHUNK_BYTES, FileMedia, Layout, ReplicaFiles, open_file};
use super::journal::NewJournal;
use super::snapshots::Content;
use crate::buffer::BufferPool;
use bytes::Bytes;
use mainstay_pool::durable::sync_parent;
use mainstay_pool::{Failed, Part, Replica, Space as PoolSpace, replica_at};
use mainstay_store::Area;
use mainstay_types::BLOCK_BYTES;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Space that a new replica leaves free in the pool, in bytes: for the directory, and for the file
/// system's own sake.
const SPARE_BYTES: u64 = 16 << 20;

/// The files of a replica in the making. Dropped without [`publish`](Self::publish) they are
/// removed.
#[derive(Debug)]
pub struct NewReplica {
    replica: Arc<dyn Replica>,
    /// Place of the files until they are published.
    begun: Arc<dyn Replica>,
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
        let replica = replica_at(path);
        if replica.is_there() {
            return Err(DiskError::Exists { path: path.to_owned() });
        }
        if let Some(journal) = journal {
            journal.check()?;
            if journal.path.exists() {
                return Err(DiskError::Exists { path: journal.path.clone() });
            }
        }
        let begun = replica.begin()?;
        let result = fill(&*begun, layout, journal, pool);
        match result.and_then(|()| ReplicaFiles::open_at(Arc::clone(&begun))) {
            Ok(files) => Ok(Self { replica, begun, journal: journal.cloned(), files: Some(files) }),
            Err(error) => {
                // The first fault is the one to report; leftovers go with the next attempt.
                let _ = take_back(&*replica, journal);
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
        content.clone_to(&*self.begun, files)
    }

    /// Gives the replica its name, durably.
    pub fn publish(mut self) -> Result<ReplicaFiles, DiskError> {
        self.replica.finish()?;
        let mut files = self.files.take().expect("taken only here");
        files.at = Arc::clone(&self.replica);
        let place = self.replica.place();
        failed("cannot flush the directory of", place, self.replica.settle())?;
        Ok(files)
    }
}

impl Drop for NewReplica {
    fn drop(&mut self) {
        if self.files.take().is_some()
            && let Err(error) = take_back(&*self.replica, self.journal.as_ref())
        {
            tracing::warn!(%error, "a half-made replica is left; the next attempt removes it");
        }
    }
}

/// The journal goes before the link that names it.
fn take_back(replica: &dyn Replica, journal: Option<&NewJournal>) -> Result<(), DiskError> {
    if let Some(journal) = journal {
        journal.remove()?;
    }
    Ok(replica.cancel()?)
}

fn fill(
    begun: &dyn Replica,
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
    check_space(begun, sum(volumes), sum(others) + SPARE_BYTES, layout.preallocate)?;
    let zeroes = {
        let mut buffer = pool.get(CHUNK_BYTES);
        buffer.as_mut_slice().fill(0);
        buffer.freeze(CHUNK_BYTES)
    };
    if let Some(journal) = journal {
        begun.link_journal(&journal.path)?;
    }
    for (area, bytes) in layout.files() {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "{area:?} of {bytes} bytes");
        let space = match area {
            Area::Sums(_) => Space::Sparse,
            Area::Volume(_) if !layout.preallocate => Space::Sparse,
            Area::Volume(_) => Space::Allocated,
            Area::Meta | Area::Journal => Space::Zeroed,
        };
        // Only a journal that lies elsewhere has a label, and it may be in memory.
        let elsewhere = journal.filter(|_| area == Area::Journal);
        let label = elsewhere.map(|journal| pool.copy_of(&journal.label.encode()));
        let path = make(begun, area, (bytes, space), label, &zeroes)?;
        if elsewhere.is_some() {
            failed("cannot flush the directory of", &path, sync_parent(&path))?;
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

/// Makes an area of `bytes` bytes and the `label` after them, durably. Returns where it is.
fn make(
    begun: &dyn Replica,
    area: Area,
    (bytes, space): (u64, Space),
    label: Option<Bytes>,
    zeroes: &[u8],
) -> Result<PathBuf, DiskError> {
    let all = bytes + label.as_ref().map_or(0, |label| label.len() as u64);
    let path = match begun.make(Part::Area(area), all, space != Space::Sparse) {
        Err(Failed { source, path, .. }) if source.kind() == io::ErrorKind::StorageFull => {
            return Err(DiskError::NoSpace { free: pool_space(begun)?.available, path, need: all });
        }
        made => made?,
    };
    let (file, _) = open_file(&path, label.is_none(), |_| {})?;
    if space == Space::Zeroed {
        let mut at = 0;
        while at < bytes {
            let part = (bytes - at).min(zeroes.len() as u64);
            failed("cannot write", &path, file.write_all_at(&zeroes[..part as usize], at))?;
            at += part;
        }
    }
    if let Some(label) = label {
        failed("cannot write", &path, file.write_all_at(&label, bytes))?;
    }
    failed("cannot flush", &path, file.sync_all())?;
    Ok(path)
}

/// Checks that a pool has room for a replica, in bytes. Volumes need free space only where they are
/// `preallocated`. But no replica may be larger than its pool, even an empty one: writes to it
/// would fail one day.
fn check_space(
    replica: &dyn Replica,
    volumes: u64,
    others: u64,
    preallocated: bool,
) -> Result<(), DiskError> {
    let PoolSpace { available: free, size } = pool_space(replica)?;
    let path = || replica.place().to_owned();
    let all = volumes.saturating_add(others);
    let need = if preallocated { all } else { others };
    if free < need {
        return Err(DiskError::NoSpace { path: path(), need, free });
    }
    if size < all {
        return Err(DiskError::PoolTooSmall { path: path(), need: all, size });
    }
    Ok(())
}

fn pool_space(replica: &dyn Replica) -> Result<PoolSpace, DiskError> {
    failed("cannot ask for the free space of", replica.place(), replica.space())
}
