//! Where the journal of a replica is, whose it is, and whether it is written as a file or as
//! memory. [journals.md](../../../../docs/internals/journals.md) has the states and what a crash
//! leaves.
//!
//! Guarantees:
//! - A journal that a link leads to is used only if its label names the replica.
//! - No journal is made in a directory that is a mount point: the directory would be there without
//!   its device, too.
//! - A journal that would not survive a power cut is used only if it was made for that.

use super::error::{DiskError, failed};
use super::files::{AreaFile, ReplicaFiles};
use super::memory::Memory;
use crate::buffer::BufferPool;
use mainstay_codec::{JOURNAL_LABEL_BYTES, JournalLabel};
use mainstay_pool::Part;
use mainstay_pool::durable::sync_parent;
use mainstay_store::{Area, Media, StoreConfig};
use mainstay_types::{Incarnation, ResourceId};
use rustix::fs::{FsWord, statfs};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const TMPFS_MAGIC: FsWord = 0x0102_1994;
const RAMFS_MAGIC: FsWord = 0x8584_58f6;

/// A journal that is to lie elsewhere than in its replica's directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewJournal {
    /// The file; it must not exist, and its directory must.
    pub path: PathBuf,
    /// Label of the journal. With `volatile` the journal may lie on a file system that a power cut
    /// empties.
    pub label: JournalLabel,
}

impl NewJournal {
    /// Whether the journal may be made there.
    pub(super) fn check(&self) -> Result<(), DiskError> {
        let at = || self.path.clone();
        let Some(directory) = self.path.parent().filter(|_| self.path.is_absolute()) else {
            return Err(DiskError::JournalDirectory { path: at() });
        };
        let found = match fs::metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(DiskError::JournalDirectory { path: directory.to_owned() });
            }
            found => failed("cannot look at", directory, found)?,
        };
        let above = failed("cannot look at", directory, fs::metadata(directory.join("..")))?;
        if found.dev() != above.dev() {
            return Err(DiskError::JournalMountPoint { path: directory.to_owned() });
        }
        if !self.label.volatile && is_volatile(directory)? {
            return Err(DiskError::VolatileJournal { path: at() });
        }
        Ok(())
    }

    /// Takes back what was made of it.
    pub(crate) fn remove(&self) -> Result<(), DiskError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => failed("cannot remove", &self.path, result)?,
        }
        failed("cannot flush the directory of", &self.path, sync_parent(&self.path))
    }
}

/// Whether a power cut empties the file system of `path`.
fn is_volatile(path: &Path) -> Result<bool, DiskError> {
    let found = statfs(path).map_err(io::Error::from);
    let kind = failed("cannot look at the file system of", path, found)?.f_type;
    Ok(matches!(kind, TMPFS_MAGIC | RAMFS_MAGIC))
}

impl ReplicaFiles {
    /// Makes journal and meta ready for a store of this configuration, which the superblock has
    /// said: sees that the journal is the replica's, and maps what is persistent memory. Nothing is
    /// written.
    pub fn prepare(&mut self, config: &StoreConfig, pool: &BufferPool) -> Result<(), DiskError> {
        let volatile = self.check_label(config, pool)?;
        for area in [Area::Journal, Area::Meta] {
            let volatile = volatile && area == Area::Journal;
            let path = self.at.part(Part::Area(area));
            let Some(file) = self.area_mut(area) else { continue };
            let handle = failed("cannot map", &path, file.file.try_clone().map(File::from))?;
            file.memory = failed("cannot map", &path, Memory::map(&handle, file.bytes, volatile))?;
            match (&file.memory, volatile) {
                (Some(_), true) => tracing::warn!(
                    path = %path.display(),
                    "the journal is in memory that a power cut empties: the replica does not survive one"
                ),
                (Some(_), false) => tracing::info!(path = %path.display(), "written as persistent memory"),
                (None, _) if !file.direct => return Err(DiskError::NoDirect { path }),
                (None, _) => {}
            }
        }
        Ok(())
    }

    /// Whether the journal may be volatile, and is.
    fn check_label(&self, config: &StoreConfig, pool: &BufferPool) -> Result<bool, DiskError> {
        let Some(journal) = self.at.journal_elsewhere() else { return Ok(false) };
        let wrong = |what: String| DiskError::WrongJournal { path: journal.clone(), what };
        let AreaFile { bytes, .. } = self.area(Area::Journal).expect("opened with the others");
        if *bytes != config.journal_bytes + JOURNAL_LABEL_BYTES as u64 {
            return Err(wrong(format!("it has {bytes} bytes, and none of them are a label")));
        }
        let mut media = self.media(pool);
        let block = media.read(Area::Journal, config.journal_bytes, JOURNAL_LABEL_BYTES);
        let block = block.map_err(|error| wrong(error.to_string()))?;
        let label = JournalLabel::decode(&block).map_err(|error| wrong(error.to_string()))?;
        check_owner(&label, config.resource, config.incarnation, config.journal_bytes).map_err(wrong)?;
        let volatile = is_volatile(&journal)?;
        if volatile && !label.volatile {
            return Err(DiskError::VolatileJournal { path: journal });
        }
        Ok(volatile)
    }
}

/// Whether a label is that of a replica; otherwise what is wrong with it.
pub fn check_owner(
    label: &JournalLabel,
    resource: ResourceId,
    incarnation: Incarnation,
    journal_bytes: u64,
) -> Result<(), String> {
    if (label.resource, label.incarnation) != (resource, incarnation) {
        return Err(format!(
            "it is that of resource number {}, incarnation {:016x}, and this replica is of resource number {}, incarnation {:016x}",
            label.resource.0, label.incarnation.0, resource.0, incarnation.0
        ));
    }
    if label.journal_bytes != journal_bytes {
        return Err(format!("it has {} bytes, not {journal_bytes}", label.journal_bytes));
    }
    Ok(())
}
