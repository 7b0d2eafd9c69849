//! Journals that lie outside of the pool, `--journal-dir`. docs/internals/journals.md has the whole
//! story.
//!
//! Guarantees
//! - A journal elsewhere is removed only through the link of a directory that is being removed. Its
//!   name must be that of this replica, and no other directory of the pool may have a link to it.
//! - The journal is removed before the link that names it. If its directory is not there because
//!   its device is not mounted, link and directory stay.

use crate::directory::replica_name;
use crate::{Part, Pool};
use mainstay_api::engine::JournalPlace;
use mainstay_types::{Area, Incarnation};
use std::io;
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".journal";
/// Hexadecimal digits of an incarnation in a name.
const DIGITS: usize = 16;

/// Where the journals of new replicas go.
#[derive(Clone, Debug, Default)]
pub struct Journals {
    /// The directory; `None` for the replica's own directory.
    pub directory: Option<PathBuf>,
    /// The directory may be in memory that a power cut empties.
    pub volatile: bool,
}

impl Journals {
    /// Where the journal of an incarnation of a replica goes; `replica` is the directory of the
    /// latter.
    #[must_use]
    pub fn place(&self, replica: &Path, incarnation: Incarnation) -> Option<JournalPlace> {
        let name = format!("{}.{:016x}{SUFFIX}", replica_name(replica)?, incarnation.0);
        let path = self.directory.as_ref()?.join(name);
        Some(JournalPlace { path: path.to_string_lossy().into_owned(), volatile: self.volatile })
    }

    /// Says what an operator should know about the directory when the agent starts.
    pub fn look(&self, pool: &dyn Pool) {
        let Some(directory) = &self.directory else { return };
        if !directory.is_dir() {
            tracing::warn!(
                directory = %directory.display(),
                "the directory for journals is not there: its device is not mounted, or it has yet to be made"
            );
            return;
        }
        match forgotten(pool, directory) {
            Ok(journals) => {
                for journal in journals {
                    tracing::warn!(
                        journal = %journal.display(),
                        "a journal of no replica in the pool; remove it if no other pool has its replica"
                    );
                }
            }
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "cannot look for journals")
            }
        }
    }
}

/// Whether a file's name is that of a journal of a replica.
fn is_journal_of(file: &str, replica: &str) -> bool {
    let incarnation =
        file.strip_suffix(SUFFIX).and_then(|name| name.strip_prefix(replica)?.strip_prefix('.'));
    incarnation.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Link to the journal of the replica in a directory.
fn link(directory: &Path) -> PathBuf {
    directory.join(Part::Area(Area::Journal).to_string())
}

/// Where that leads.
pub(crate) fn link_of(directory: &Path) -> io::Result<PathBuf> {
    std::fs::read_link(link(directory))
}

/// Journals in the directory that no link in the pool names.
fn forgotten(pool: &dyn Pool, directory: &Path) -> io::Result<Vec<PathBuf>> {
    let named = pool.journals()?;
    let mut forgotten = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let replica =
            name.strip_suffix(SUFFIX).and_then(|name| name.rsplit_once('.')).map_or("", |found| found.0);
        if is_journal_of(name, replica) && !named.contains(&path) {
            forgotten.push(path);
        }
    }
    Ok(forgotten)
}

/// Removes the journal that a directory names which is being removed, durably. None there is
/// success.
///
/// # Errors
/// When it could not be removed; the directory must stay then.
pub(crate) fn remove_of(directory: &Path) -> io::Result<()> {
    // No link: the journal is in the directory, or there is none.
    let Ok(journal) = link_of(directory) else { return Ok(()) };
    let name = journal.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if !replica_name(directory).is_some_and(|replica| is_journal_of(name, replica)) {
        tracing::warn!(directory = %directory.display(), journal = %journal.display(), "the link leads to no journal of this replica; what is there stays");
        return Ok(());
    }
    if let Some(other) = other_with(directory, &journal)? {
        tracing::warn!(directory = %directory.display(), journal = %journal.display(), other = %other.display(), "the journal is another directory's as well; it stays");
        return Ok(());
    }
    let Some(parent) = journal.parent().filter(|parent| parent.is_dir()) else {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!(
                "the journal {} cannot be removed, because its directory is not there: mount its device or, if that is lost, \
                 make the directory",
                journal.display()
            ),
        ));
    };
    match std::fs::remove_file(&journal) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => std::fs::File::open(parent)?.sync_all(),
    }
}

/// Another directory of the same pool whose link leads to this journal: one of both is a copy.
fn other_with(directory: &Path, journal: &Path) -> io::Result<Option<PathBuf>> {
    let Some(pool) = directory.parent() else { return Ok(None) };
    for entry in std::fs::read_dir(pool)? {
        let path = entry?.path();
        if path != directory && link_of(&path).is_ok_and(|link| link == journal) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"journal").unwrap();
    }

    #[test]
    fn a_journal_is_named_after_its_replica_and_its_life() {
        let journals = Journals { directory: Some("/fast/m".into()), volatile: true };
        let place = journals.place(Path::new("/pool/db-1"), Incarnation(0xabc)).unwrap();
        assert_eq!((place.path.as_str(), place.volatile), ("/fast/m/db-1.0000000000000abc.journal", true));
        assert_eq!(journals.place(Path::new("/pool/db-1.making"), Incarnation(0xabc)), Some(place));
        assert_eq!(Journals::default().place(Path::new("/pool/db-1"), Incarnation(1)), None);
        assert!(is_journal_of("db-1.0000000000000abc.journal", "db-1"));
        for foreign in
            ["db-1.journal", "db-1.abc.journal", "db-12.0000000000000abc.journal", "db-1.0000000000000abc"]
        {
            assert!(!is_journal_of(foreign, "db-1"), "{foreign}");
        }
    }

    /// Removal takes away only the journal of the replica that goes, and only while its directory
    /// is there.
    #[test]
    fn only_the_journal_of_the_removed_replica_goes() {
        let root = tempfile::tempdir().unwrap();
        let journal = root.path().join("fast/db-1.0000000000000abc.journal");
        let foreign = root.path().join("fast/other.db");
        let rest = root.path().join("pool/db-1.removed");
        std::fs::create_dir_all(&rest).unwrap();
        remove_of(&rest).unwrap();

        touch(&foreign);
        symlink(&foreign, link(&rest)).unwrap();
        remove_of(&rest).unwrap();
        assert!(foreign.exists(), "named as no replica's journal");

        std::fs::remove_file(link(&rest)).unwrap();
        symlink(&journal, link(&rest)).unwrap();
        remove_of(&rest).unwrap();
        touch(&journal);
        remove_of(&rest).unwrap();
        assert!(!journal.exists() && foreign.exists() && link(&rest).is_symlink());

        std::fs::remove_dir_all(journal.parent().unwrap()).unwrap();
        let error = remove_of(&rest).unwrap_err();
        assert!(error.to_string().contains("mount its device"), "{error}");
        std::fs::create_dir_all(journal.parent().unwrap()).unwrap();
        remove_of(&rest).unwrap();
    }

    #[test]
    fn a_journal_that_no_replica_names_is_found() {
        let root = tempfile::tempdir().unwrap();
        let (pool, fast) = (root.path().join("pool"), root.path().join("fast"));
        let named = fast.join("db-1.0000000000000abc.journal");
        let left = fast.join("my.db-1.0000000000000abd.journal");
        for file in [&named, &left, &fast.join("notes.txt"), &pool.join("db-1/meta")] {
            touch(file);
        }
        symlink(&named, link(&pool.join("db-1"))).unwrap();
        assert_eq!(forgotten(&*crate::at(&pool), &fast).unwrap(), [left]);
    }
}
