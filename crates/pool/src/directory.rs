//! A pool that is a directory, with a directory for each replica and a file for each of its parts.
//!
//! ```text
//! <pool>/db-1/                   replica.json  meta  journal  marks  vol0  sums0  snap1-vol0 …
//!        db-1.making.creating/   meta …, as far as the engine has made them
//!        db-1.making/            meta …, and from the last step on replica.json
//!        db-1.removed/           removed.json  meta …, as far as they are left
//! ```
//!
//! Guarantees
//! - A directory named as a replica holds a whole one with its label. It gets that name when both
//!   are durable, and loses it before anything in it is removed. So the remains of a making or a
//!   removing after a crash have names of their own ([`rest_of`]). Only by these names are files
//!   removed when the agent starts.
//! - A journal that lies elsewhere exists only while a directory in the pool names it, and is
//!   removed before that directory ([`journals`]).
//! - Mainstay did not leave a replica's directory without a label. It neither uses, writes nor
//!   removes it.

use crate::durable::{sync_parent, write_durable};
use crate::part::HALF;
use crate::{Entry, Failed, Part, Pool, Replica, Space, journals};
use mainstay_api::engine::FileId;
use mainstay_types::Area;
use mainstay_types::label::{Found, Label, Look, directory_name};
use rustix::fs::{FallocateFlags, fallocate, ioctl_ficlone, statvfs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The label of a replica, in its directory.
const LABEL: &str = "replica.json";
/// The label while it is being written.
const HALF_LABEL: &str = "replica.new";
/// The label of a replica that is being removed.
const REMOVED_LABEL: &str = "removed.json";
const MAKING: &str = ".making";
const REMOVED: &str = ".removed";
/// While the engine makes the files, they are in a directory of its own, beside the one that it is
/// to make.
const BEGUN: &str = ".creating";
/// The same beside a directory that is named as in [`MAKING`].
const CREATING: &str = ".making.creating";
/// Files that are being removed, whatever they are.
const DISCARDED: &str = ".deleting";

/// A directory whose directories are replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectoryPool(PathBuf);

/// A directory in such a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Directory(PathBuf);

impl DirectoryPool {
    #[must_use]
    pub fn at(place: PathBuf) -> Self {
        Self(place)
    }

    /// Returns directories that crashes left in the pool, of replicas that were being made or
    /// removed.
    fn rests(&self) -> io::Result<Vec<PathBuf>> {
        let mut rests = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.is_dir() && is_left_by_us(&path) {
                rests.push(path);
            }
        }
        Ok(rests)
    }
}

impl Pool for DirectoryPool {
    fn place(&self) -> &Path {
        &self.0
    }

    fn make(&self) -> io::Result<()> {
        // Even making a directory that exists waits while the file system is frozen, like any other
        // change.
        if self.0.is_dir() { Ok(()) } else { fs::create_dir_all(&self.0) }
    }

    fn replica(&self, place: &Path) -> Arc<dyn Replica> {
        Arc::new(Directory(place.to_owned()))
    }

    fn scan(&self) -> io::Result<Vec<(String, Found)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if !path.is_dir() || is_left_by_us(&path) {
                continue;
            }
            let label = label(&path);
            if label == Found::NoLabel && !is_replica_directory(&path).unwrap_or(false) {
                continue;
            }
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push((name, label));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    fn clear(&self) -> io::Result<()> {
        for rest in self.rests()? {
            tracing::info!(directory = %rest.display(), "removing what is left of a replica that was being made or removed");
            match journals::remove_of(&rest) {
                Ok(()) => remove(&rest)?,
                // The next start, or the next job of the replica, tries again.
                Err(error) => {
                    tracing::error!(directory = %rest.display(), %error, "it stays until the next attempt")
                }
            }
        }
        Ok(())
    }

    fn look(&self, label: &Label, open: &BTreeMap<String, FileId>) -> Look {
        let own = self.0.join(directory_name(label.resource, &label.name));
        let has = |directory: &Path, file: &str, id: &FileId| {
            fs::metadata(directory.join(file))
                .is_ok_and(|found| found.dev() == id.dev && found.ino() == id.ino)
        };
        let missing: Vec<String> =
            open.iter().filter(|(file, id)| !has(&own, file, id)).map(|(file, _)| file.clone()).collect();
        let meta = Part::Area(Area::Meta).to_string();
        let elsewhere = open.get(&meta).filter(|_| missing.contains(&meta)).and_then(|id| {
            let entries = fs::read_dir(&self.0).ok()?.flatten();
            let mut holds = entries.filter(|entry| has(&entry.path(), &meta, id));
            holds.next().map(|entry| entry.file_name().to_string_lossy().into_owned())
        });
        Look { missing, taken: own.symlink_metadata().is_ok(), label: self::label(&own), elsewhere }
    }

    fn storage(&self) -> Option<u64> {
        fs::metadata(&self.0).ok().map(|found| found.dev())
    }

    fn space(&self) -> io::Result<Space> {
        space(&self.0)
    }

    fn journals(&self) -> io::Result<BTreeSet<PathBuf>> {
        let mut named = BTreeSet::new();
        for entry in fs::read_dir(&self.0)? {
            named.extend(journals::link_of(&entry?.path()));
        }
        Ok(named)
    }
}

impl Replica for Directory {
    fn place(&self) -> &Path {
        &self.0
    }

    fn is_there(&self) -> bool {
        self.0.exists()
    }

    fn was_removed(&self) -> bool {
        matches!(self.0.try_exists(), Ok(false)) && self.0.parent().is_some_and(Path::is_dir)
    }

    fn is_taken(&self) -> bool {
        let labelled = [LABEL, REMOVED_LABEL].iter().any(|label| self.0.join(label).exists());
        labelled || replica_name(&self.0).is_some()
    }

    fn is_left(&self) -> bool {
        is_left_by_us(&self.0)
    }

    fn label(&self) -> Found {
        label(&self.0)
    }

    fn label_place(&self) -> PathBuf {
        self.0.join(LABEL)
    }

    fn relabel(&self, label: &Label) -> io::Result<()> {
        write_durable(&self.0.join(LABEL), &serde_json::to_vec(label).map_err(io::Error::other)?)
    }

    fn making(&self) -> PathBuf {
        beside(&self.0, MAKING)
    }

    fn publish(&self, label: &Label) -> io::Result<()> {
        let making = self.making();
        let bytes = serde_json::to_vec(label).map_err(io::Error::other)?;
        write_durable(&making.join(LABEL), &bytes)?;
        fs::rename(&making, &self.0)?;
        sync_parent(&self.0)
    }

    // If other files have the name of a removed replica, the label alone says that it is removed.
    fn withdraw(&self) -> io::Result<()> {
        let removed = beside(&self.0, REMOVED);
        if is_left_by_us(&removed) {
            remove(&removed)?;
        }
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match fs::rename(self.0.join(LABEL), self.0.join(REMOVED_LABEL)) {
            Err(error) if !gone(&error) => return Err(error),
            Err(_) => {}
            Ok(()) => File::open(&self.0)?.sync_all()?,
        }
        if removed.exists() {
            return sync_parent(&self.0);
        }
        match fs::rename(&self.0, &removed) {
            Err(error) if !gone(&error) => Err(error),
            _ => sync_parent(&self.0),
        }
    }

    fn settle(&self) -> io::Result<()> {
        sync_parent(&self.0)
    }

    fn remove_rests(&self) -> io::Result<()> {
        let rests = rest_of(&self.0);
        let own = rests.iter().map(PathBuf::as_path).chain([self.0.as_path()]);
        own.filter(|rest| is_left_by_us(rest)).try_for_each(remove)
    }

    fn begin(&self) -> Result<Arc<dyn Replica>, Failed> {
        let begun = beside(&self.0, BEGUN);
        remove_all(&begun)?;
        failed("cannot make the directory", &begun, fs::create_dir_all(&begun))?;
        Ok(Arc::new(Self(begun)))
    }

    fn cancel(&self) -> Result<(), Failed> {
        remove_all(&beside(&self.0, BEGUN))
    }

    fn finish(&self) -> Result<(), Failed> {
        let begun = Self(beside(&self.0, BEGUN));
        begun.flush()?;
        failed("cannot rename", &begun.0, fs::rename(&begun.0, &self.0))
    }

    fn discard(&self) -> Result<(), Failed> {
        let doomed = beside(&self.0, DISCARDED);
        remove_all(&doomed)?;
        if self.0.exists() {
            failed("cannot rename", &self.0, fs::rename(&self.0, &doomed))?;
            failed("cannot flush the directory of", &self.0, sync_parent(&self.0))?;
        }
        remove_all(&doomed)
    }

    fn space(&self) -> io::Result<Space> {
        space(&self.0)
    }

    fn part(&self, part: Part) -> PathBuf {
        self.0.join(part.to_string())
    }

    fn half(&self, part: Part) -> PathBuf {
        self.0.join(format!("{part}.{HALF}"))
    }

    fn part_named(&self, path: &Path) -> Option<Part> {
        let (part, half) = Part::named(path.file_name()?.to_str()?)?;
        (!half).then_some(part)
    }

    fn parts(&self) -> io::Result<Vec<Entry>> {
        let found = fs::read_dir(&self.0)?.flatten().filter_map(|entry| {
            let (part, half) = Part::named(entry.file_name().to_str()?)?;
            Some(Entry { part, half, path: entry.path() })
        });
        Ok(found.collect())
    }

    fn make(&self, part: Part, bytes: u64, reserved: bool) -> Result<PathBuf, Failed> {
        let elsewhere = (part == Part::Area(Area::Journal)).then(|| self.journal_elsewhere()).flatten();
        let path = elsewhere.unwrap_or_else(|| self.part(part));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let file = failed("cannot open", &path, file)?;
        if reserved {
            let allocated = fallocate(&file, FallocateFlags::empty(), 0, bytes);
            failed("cannot allocate", &path, allocated.map_err(io::Error::from))?;
        } else {
            failed("cannot make so large", &path, file.set_len(bytes))?;
        }
        Ok(path)
    }

    fn complete(&self, part: Part) -> Result<(), Failed> {
        let half = self.half(part);
        failed("cannot rename", &half, fs::rename(&half, self.part(part)))
    }

    fn rename(&self, from: Part, to: Part) -> Result<(), Failed> {
        let old = self.part(from);
        match fs::rename(&old, self.part(to)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                failed("cannot rename", &old, Err(error))
            }
            _ => Ok(()),
        }
    }

    fn flush(&self) -> Result<(), Failed> {
        failed("cannot flush", &self.0, File::open(&self.0).and_then(|directory| directory.sync_all()))
    }

    fn clone_to(&self, path: &Path, source: BorrowedFd<'_>) -> Result<Option<File>, Failed> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(0o600);
        let file = failed("cannot make", path, options.open(path))?;
        let cloned = ioctl_ficlone(&file, source).map_err(io::Error::from);
        if cloned.as_ref().is_err_and(cannot_clone) {
            return Ok(None);
        }
        failed("cannot clone to", path, cloned)?;
        Ok(Some(file))
    }

    fn clone_over(&self, target: BorrowedFd<'_>, source: BorrowedFd<'_>) -> io::Result<()> {
        ioctl_ficlone(target, source).map_err(io::Error::from)
    }

    fn link_journal(&self, journal: &Path) -> Result<(), Failed> {
        let link = self.part(Part::Area(Area::Journal));
        failed("cannot make", &link, std::os::unix::fs::symlink(journal, &link))?;
        self.flush()?;
        failed("cannot flush the directory of", &self.0, sync_parent(&self.0))
    }

    // A link of an operator may be relative.
    fn journal_elsewhere(&self) -> Option<PathBuf> {
        journals::link_of(&self.0).ok().map(|journal| self.0.join(journal))
    }
}

/// Names a failed step on a path.
fn failed<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, Failed> {
    result.map_err(|source| Failed { what, path: path.to_owned(), source })
}

/// Whether the file system cannot clone these files.
fn cannot_clone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errors = [Errno::OPNOTSUPP, Errno::INVAL, Errno::XDEV, Errno::NOTTY];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn space(path: &Path) -> io::Result<Space> {
    let stat = statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Space { size: bytes(stat.f_blocks), available: bytes(stat.f_bavail) })
}

fn remove_all(path: &Path) -> Result<(), Failed> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => failed("cannot remove", path, result),
    }
}

fn remove(directory: &Path) -> io::Result<()> {
    journals::remove_of(directory)?;
    remove_files(directory)
}

/// The label of a directory, as far as it can be read.
fn label(directory: &Path) -> Found {
    match fs::read(directory.join(LABEL)) {
        Ok(bytes) if bytes.is_empty() => Found::Unreadable("it is empty".into()),
        Ok(bytes) => match serde_json::from_slice::<Label>(&bytes) {
            Ok(label) => Found::Label(label),
            Err(error) => Found::Unreadable(error.to_string()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::NoLabel,
        Err(error) => Found::Unreadable(error.to_string()),
    }
}

fn beside(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Everything that the making and the removing of a replica may leave in a crash.
fn rest_of(directory: &Path) -> [PathBuf; 3] {
    [CREATING, MAKING, REMOVED].map(|suffix| beside(directory, suffix))
}

/// The name of the replica that a directory is, or is what is left of.
#[must_use]
pub(crate) fn replica_name(directory: &Path) -> Option<&str> {
    let name = directory.file_name()?.to_str()?;
    // Longest first: one ends like another.
    let rest = [CREATING, MAKING, REMOVED].iter().find_map(|suffix| name.strip_suffix(suffix));
    Some(rest.unwrap_or(name)).filter(|name| is_replica_name(name))
}

/// Whether a path is named as in [`rest_of`].
fn is_rest(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    [CREATING, MAKING, REMOVED].iter().any(|suffix| name.strip_suffix(suffix).is_some_and(is_replica_name))
}

/// Whether a directory was left by the making or the removing of a replica: the removal has changed
/// its label, or its name says so and nothing else is in it. A replica that an operator has given
/// such a name still has its label (R27).
fn is_left_by_us(directory: &Path) -> bool {
    let has = |file: &str| directory.join(file).exists();
    let removed = has(REMOVED_LABEL) && !has(LABEL);
    if is_replica_name_of(directory) {
        return removed;
    }
    let named_removed = directory.file_name().is_some_and(|name| name.to_string_lossy().ends_with(REMOVED));
    let whole = named_removed && has(LABEL);
    is_rest(directory) && (removed || !whole && holds_only_ours(directory).unwrap_or(false))
}

/// Removes the files of a replica from its directory, and the directory if nothing else is in it. A
/// directory that does not exist is success.
fn remove_files(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    let mut others = false;
    for entry in entries {
        let entry = entry?;
        match entry.file_name().to_str() {
            // The directory is known by this label until the end.
            Some(REMOVED_LABEL) => {}
            Some(file) if is_ours(file) && !entry.file_type()?.is_dir() => fs::remove_file(entry.path())?,
            _ => others = true,
        }
    }
    match fs::remove_file(directory.join(REMOVED_LABEL)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if others {
        tracing::warn!(directory = %directory.display(), "files of others are in the directory of a replica that was removed; they stay");
        return Ok(());
    }
    fs::remove_dir(directory)
}

fn is_replica_name_of(directory: &Path) -> bool {
    directory.file_name().and_then(|name| name.to_str()).is_some_and(is_replica_name)
}

/// Whether a directory in the pool is named as [`directory_name`] does it, and nothing is in it
/// but what belongs to a replica.
fn is_replica_directory(path: &Path) -> io::Result<bool> {
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(name.is_some_and(is_replica_name) && holds_only_ours(path)?)
}

fn is_replica_name(name: &str) -> bool {
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once('-').is_some_and(|(_, id)| is_digits(id))
}

/// Whether a file is named as one of a replica.
fn is_ours(file: &str) -> bool {
    matches!(file, LABEL | HALF_LABEL | REMOVED_LABEL) || Part::named(file).is_some()
}

fn holds_only_ours(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if !entry?.file_name().to_str().is_some_and(is_ours) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::{Incarnation, ResourceId};

    #[test]
    fn leftovers_of_a_crash_are_known_by_their_files() {
        let pool = tempfile::tempdir().expect("a directory");
        let make = |name: &str, files: &[&str]| {
            let directory = pool.path().join(name);
            fs::create_dir(&directory).expect("a directory");
            for file in files {
                fs::write(directory.join(file), "").expect("a file");
            }
            directory
        };
        let ours = [
            "meta",
            "journal",
            "vol0",
            "vol12",
            "sums0",
            "snap1-vol0",
            "snap1-sums0",
            "snap2-vol0.new",
            "snap3-map0",
            "snap3-old0",
            "gone2-map1",
            "gone2-old1",
            "before-copy-vol0",
            "before-copy-sums0.new",
            "marks",
            "marks.new",
        ];
        let (half, whole) = (make("db-1.making", &ours), make("db-2", &ours));
        make("db-3.making", &["meta", "vol0", "dump.sql"]);
        make("db-4.making", &["snap1-dump"]);
        assert_eq!(DirectoryPool::at(pool.path().to_owned()).rests().expect("it can be read"), [half]);
        assert!(is_replica_directory(&whole).expect("it can be read"));
        assert!(!is_replica_directory(&make("db-5", &["snap-vol0"])).expect("it can be read"));
    }

    #[test]
    fn only_a_directory_that_is_gone_from_a_pool_that_is_there_was_removed() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("pool/db-1");
        let replica = Directory(directory.clone());
        assert!(!replica.was_removed(), "the pool is not mounted");
        fs::create_dir_all(&directory).unwrap();
        assert!(!replica.was_removed());
        fs::remove_dir(&directory).unwrap();
        assert!(replica.was_removed());
    }

    /// The engine makes and fills the parts, the agent does the rest. A crash between two steps
    /// leaves what the next start knows.
    #[test]
    fn each_step_of_a_replicas_life_leaves_a_whole_one_or_a_rest() {
        let root = tempfile::tempdir().unwrap();
        let pool = DirectoryPool::at(root.path().to_owned());
        let label = Label { resource: ResourceId(1), name: "db".into(), incarnation: Incarnation(9) };
        let replica = pool.replica_of(label.resource, &label.name);
        let making = pool.replica(&replica.making());
        let rests = |names: &[&str]| {
            assert_eq!(
                pool.rests().unwrap(),
                names.iter().map(|name| root.path().join(name)).collect::<Vec<_>>()
            );
        };
        let begun = making.begin().unwrap();
        let meta = Part::Area(Area::Meta);
        assert_eq!(begun.make(meta, 4096, false).unwrap(), begun.part(meta));
        rests(&["db-1.making.creating"]);
        assert!(begun.make(meta, 4096, false).is_err(), "nothing is overwritten");
        making.finish().and_then(|()| making.flush()).unwrap();
        making.settle().unwrap();
        rests(&["db-1.making"]);
        assert!(!replica.is_there() && making.has(meta));
        replica.publish(&label).unwrap();
        rests(&[]);
        assert_eq!(pool.scan().unwrap(), [("db-1".to_owned(), Found::Label(label))]);
        assert_eq!(replica.parts().unwrap(), [Entry { part: meta, half: false, path: replica.part(meta) }]);
        replica.withdraw().unwrap();
        rests(&["db-1.removed"]);
        replica.remove_rests().unwrap();
        rests(&[]);
        assert_eq!(pool.scan().unwrap(), []);
    }
}
