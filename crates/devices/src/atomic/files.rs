//! The data files of a database below a directory: which they are, and how they lie on the device.
//!
//! Guarantees
//! - No file is written, and what a running database adds or removes meanwhile is no error.
//! - A file that cannot be looked at is an error: it may be the one whose pages tear.
//! - Directories are read entry by entry, and links are followed a bounded number of times.

use super::AtomicError;
use super::calls::{self, Described};
use super::pages::PageWalk;
use super::verdict::{Files, Trouble, Writes};
use rustix::fs::ioctl_getflags;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names of InnoDB's files that hold pages: tablespaces, the system tablespace, undo logs.
const INNODB: [&str; 4] = ["*.ibd", "ibdata*", "undo*", "*.ibu"];
/// A file of MariaDB that names a tablespace elsewhere.
const LINK_FILE_END: &str = ".isl";
const LINK_FILE_BYTES_MAX: u64 = 4096;
/// Directory of PostgreSQL with links to tablespaces.
const TABLESPACES: &str = "pg_tblspc";
/// Deepest directory, from the one that was named on.
const DEPTH_MAX: usize = 16;
/// Links to directories that are followed.
const LINKS_MAX: usize = 256;
/// Attributes of a file because of which the kernel writes it through the page cache or not as it
/// is: compressed, encrypted, and written through the journal.
const ATTRIBUTES: u32 = 0x4 | 0x800 | 0x4000;

/// Data files, by their names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Patterns {
    names: Vec<String>,
    postgresql: bool,
}

impl Patterns {
    /// Patterns of an operator, with `*` and `?`. Without any, those of InnoDB and PostgreSQL.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        let usual = || INNODB.map(str::to_owned).to_vec();
        Self { names: if names.is_empty() { usual() } else { names.to_vec() }, postgresql: names.is_empty() }
    }

    /// Whether a file of this name is one.
    #[must_use]
    pub fn fit(&self, name: &str) -> bool {
        self.names.iter().any(|pattern| fits(pattern.as_bytes(), name.as_bytes()))
    }

    fn fit_in(&self, directory: Kind, name: &str) -> bool {
        self.fit(name) || (self.postgresql && directory == Kind::Relations && is_relation(name))
    }
}

/// Whether a name fits a pattern with `*` and `?`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where the last star stands, and the place in the name up to which it reaches.
    let mut star: Option<(usize, usize)> = None;
    while of < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, of));
                at += 1;
            }
            Some(&sign) if sign == b'?' || sign == name[of] => (at, of) = (at + 1, of + 1),
            _ => {
                let Some((place, reach)) = star else { return false };
                star = Some((place, reach + 1));
                (at, of) = (place + 1, reach + 1);
            }
        }
    }
    pattern[at..].iter().all(|sign| *sign == b'*')
}

/// Whether PostgreSQL keeps a table or an index under this name: `16384`, `16384.1`, `16384_vm`.
fn is_relation(name: &str) -> bool {
    let (number, rest) = name.split_at(name.bytes().take_while(u8::is_ascii_digit).count());
    let (fork, segment) = rest.split_once('.').map_or((rest, "1"), |(fork, segment)| (fork, segment));
    !number.is_empty()
        && ["", "_vm", "_fsm", "_init"].contains(&fork)
        && !segment.is_empty()
        && segment.bytes().all(|byte| byte.is_ascii_digit())
}

/// Role of a directory in a cluster of PostgreSQL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Other,
    /// Directory of tables.
    Relations,
    /// Directory of links to tablespaces.
    Tablespaces,
}

/// Looks at all data files below a directory, or at the one file that is named.
pub struct Look<'a> {
    pub page: u64,
    pub writes: Writes,
    pub patterns: &'a Patterns,
    /// Number of the file system, as `stat` gives it.
    pub number: u64,
    pub is_ext4: bool,
    /// Whether the answer is still wanted.
    pub wanted: &'a dyn Fn() -> bool,
    links: usize,
    found: Files,
}

impl<'a> Look<'a> {
    #[must_use]
    pub fn new(
        page: u64,
        writes: Writes,
        patterns: &'a Patterns,
        number: u64,
        is_ext4: bool,
        wanted: &'a dyn Fn() -> bool,
    ) -> Self {
        Self { page, writes, patterns, number, is_ext4, wanted, links: 0, found: Files::default() }
    }

    /// # Errors
    /// When a file or a directory cannot be read.
    pub fn below(mut self, path: &Path) -> Result<Files, AtomicError> {
        if path.is_dir() {
            self.directory(path, 0)?;
        } else {
            self.file(path)?;
        }
        Ok(self.found)
    }

    fn directory(&mut self, path: &Path, depth: usize) -> Result<(), AtomicError> {
        let kind = kind(path);
        let entries = match fs::read_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(AtomicError::look(path))?,
        };
        for entry in entries {
            let entry = entry.map_err(AtomicError::look(path))?;
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            let is_data = self.patterns.fit_in(kind, &name);
            // Not for links: the entry itself is asked.
            match entry.file_type().map_err(AtomicError::look(&path))? {
                of if of.is_symlink() => self.link(&path, is_data, kind, depth)?,
                of if of.is_dir() => self.deeper(&path, depth)?,
                of if of.is_file() && is_data => self.file(&path)?,
                of if of.is_file() && name.ends_with(LINK_FILE_END) => self.link_file(&path)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn deeper(&mut self, path: &Path, depth: usize) -> Result<(), AtomicError> {
        // Other file systems below are another matter, unless the database keeps files there.
        if depth >= DEPTH_MAX {
            self.found.note(Trouble::Elsewhere, &format!("{} (too deep)", path.display()));
            return Ok(());
        }
        self.directory(path, depth + 1)
    }

    fn link(&mut self, path: &Path, is_data: bool, kind: Kind, depth: usize) -> Result<(), AtomicError> {
        let Ok(target) = path.canonicalize() else { return Ok(()) };
        if is_data && target.is_file() {
            return self.file(&target);
        }
        if !target.is_dir() {
            return Ok(());
        }
        self.links += 1;
        let is_here = fs::metadata(&target).is_ok_and(|found| found.dev() == self.number);
        if is_here && self.links <= LINKS_MAX && depth < DEPTH_MAX {
            return self.directory(&target, depth + 1);
        }
        // A link to a directory of others, such as one with logs, has no pages.
        if kind == Kind::Tablespaces || !is_here && self.has_data(&target) || self.links > LINKS_MAX {
            self.found.note(Trouble::Elsewhere, &target.display().to_string());
        }
        Ok(())
    }

    /// Whether a directory itself has a data file.
    fn has_data(&self, path: &Path) -> bool {
        let kind = kind(path);
        let Ok(entries) = fs::read_dir(path) else { return true };
        entries.flatten().any(|entry| self.patterns.fit_in(kind, &entry.file_name().to_string_lossy()))
    }

    fn link_file(&mut self, path: &Path) -> Result<(), AtomicError> {
        use std::io::Read;
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(LINK_FILE_BYTES_MAX).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(AtomicError::look(path))?,
        };
        let target = PathBuf::from(text.trim_end_matches(['\n', '\0', ' ']));
        let target = if target.is_absolute() { target } else { path.with_file_name(target) };
        self.file(&target)
    }

    fn file(&mut self, path: &Path) -> Result<(), AtomicError> {
        if !(self.wanted)() {
            return Err(AtomicError::GivenUp);
        }
        let mut options = File::options();
        // A file that became a pipe meanwhile must not keep the command.
        options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file.map_err(AtomicError::look(path))?,
        };
        let name = path.display().to_string();
        let metadata = file.metadata().map_err(AtomicError::look(path))?;
        if !metadata.is_file() {
            return Ok(());
        }
        if metadata.dev() != self.number {
            self.found.files += 1;
            self.found.note(Trouble::Elsewhere, &name);
            return Ok(());
        }
        if self.writes == Writes::Direct && !self.is_direct(&file).map_err(AtomicError::look(path))? {
            self.found.note(Trouble::NoDirect, &name);
        }
        let mut walk = PageWalk::new(self.page, metadata.len());
        let (mut is_shared, mut is_odd) = (false, false);
        let mut each = |described: Described| {
            walk.add(described.extent);
            is_shared |= described.is_shared;
            is_odd |= described.is_odd;
        };
        match calls::extents(&file, self.is_ext4, &mut each) {
            // The file system does not say where files are: its kind is a reason already.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => is_odd = true,
            told => told.map_err(AtomicError::look(path))?,
        }
        self.found.add(&name, walk.finish());
        if is_shared {
            self.found.note(Trouble::Shared, &name);
        }
        if is_odd && metadata.len() >= self.page {
            self.found.note(Trouble::Odd, &name);
        }
        Ok(())
    }

    fn is_direct(&self, file: &File) -> io::Result<bool> {
        let attributes = ioctl_getflags(file).map_or(0, |flags| flags.bits());
        if attributes & ATTRIBUTES != 0 {
            return Ok(false);
        }
        Ok(match calls::direct_alignment(file)? {
            Some(0) => false,
            Some(bytes) => self.page.is_multiple_of(bytes.into()),
            // Linux 6.1 is the first to tell. The attributes and options that forbid it are known.
            None => true,
        })
    }
}

/// Role of a directory in a cluster of PostgreSQL. Each directory of a database has a file
/// `PG_VERSION`; `global` is the one of tables that all databases share.
fn kind(path: &Path) -> Kind {
    let is = |name: &str| path.file_name().is_some_and(|found| found == name);
    let above = path.parent().is_some_and(|above| above.join("PG_VERSION").is_file());
    match () {
        () if is(TABLESPACES) && above => Kind::Tablespaces,
        () if (is("global") && above) || path.join("PG_VERSION").is_file() => Kind::Relations,
        () => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_files_are_known_by_their_names() {
        let usual = Patterns::new(&[]);
        for name in ["t.ibd", "ibdata1", "undo001", "undo_002.ibu", "mysql.ibd", "t#P#p0.ibd"] {
            assert!(usual.fit(name), "{name}");
        }
        for name in ["ib_logfile0", "ibtmp1", "aria_log.00000001", "t.frm", "16384", "#ib_16384_0.dblwr"] {
            assert!(!usual.fit(name), "{name}");
        }
        for name in ["16384", "16384.1", "16384_vm", "16384_fsm.2", "2619_init"] {
            assert!(usual.fit_in(Kind::Relations, name), "{name}");
            assert!(!usual.fit_in(Kind::Other, name), "{name}");
        }
        for name in ["", "PG_VERSION", "t3_16384", "pg_internal.init", "16384.", "16384.x", "16384_log"] {
            assert!(!usual.fit_in(Kind::Relations, name), "{name}");
        }
        let own = Patterns::new(&["*.dat".to_owned()]);
        assert!(own.fit("a.dat") && !own.fit("t.ibd") && !own.fit_in(Kind::Relations, "16384"));
    }

    #[test]
    fn stars_and_question_marks_stand_for_signs() {
        for (pattern, name) in [("*", ""), ("a*b*c", "axxbyyc"), ("?b", "ab"), ("**", "x"), ("a*a", "aa")] {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in [("", "a"), ("?", ""), ("a*b", "abc"), ("a*a", "a"), ("*.ibd", "ibd")] {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    /// Fits by the book: each sign of the pattern tried in every way.
    fn slowly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, rest) => rest.is_none(),
            (Some((b'*', rest)), _) => (0..=name.len()).any(|at| slowly(rest, &name[at..])),
            (Some((sign, rest)), Some((found, behind))) => {
                (*sign == b'?' || sign == found) && slowly(rest, behind)
            }
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_fit_as_by_the_book(pattern in "[ab?*]{0,8}", name in "[ab]{0,8}") {
            let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(fits(pattern, name), slowly(pattern, name));
        }
    }
}
