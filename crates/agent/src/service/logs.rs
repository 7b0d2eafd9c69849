//! Reading the output of processes back, for an operator at another node.
//!
//! Guarantees
//! - One answer has at most [`ANSWER_BYTES_MAX`] bytes of output, and the newest where there is
//!   more.
//! - A reader that goes on from a [`Position`] misses nothing and hears nothing twice, also when
//!   the writer begins a new file meanwhile, as long as the output is still there. Otherwise the
//!   answer says that something was left out.
//! - The output of a unit of systemd is that of its preparation and tests, which is in a file, and
//!   what is in the journal. The one that was written last is the last one in an answer.

use super::command::ServiceDirs;
use super::journal;
use super::output::paths;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

/// Most output of one process in one answer, in bytes. All processes of a service, as JSON, fit
/// into one answer.
pub const ANSWER_BYTES_MAX: u64 = 256 << 10;
/// Most lines of one process in one answer.
pub const LINES_MAX: usize = 10_000;

/// A place in the output of one process: everything before it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Position {
    /// Number of the file; 0 before there is one.
    pub inode: u64,
    pub bytes: u64,
    /// Place in the journal beside that in the file, of a unit of systemd.
    #[serde(default, skip_serializing_if = "journal::Place::is_start")]
    pub journal: journal::Place,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.inode, self.bytes)?;
        if self.journal.is_start() {
            return Ok(());
        }
        write!(f, "-{}-{}", self.journal.time_us, self.journal.hash)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let numbers: Result<Vec<u64>, _> = text.split('-').map(str::parse).collect();
        match *numbers.map_err(drop)?.as_slice() {
            [inode, bytes] => Ok(Self { inode, bytes, journal: journal::Place::default() }),
            [inode, bytes, time_us, hash] => {
                Ok(Self { inode, bytes, journal: journal::Place { time_us, hash } })
            }
            _ => Err(()),
        }
    }
}

/// Output that an operator wants to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Wanted {
    /// The last lines.
    Lines(usize),
    /// Everything after this place.
    After(Position),
}

/// A part of the output of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Piece {
    pub text: String,
    pub next: Position,
    /// Output before it was left out.
    pub cut: bool,
    /// Output that cannot be read, and why, in words for the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// One file of a log, as it was when it was opened.
struct Part {
    file: File,
    inode: u64,
    bytes: u64,
}

impl Part {
    fn open(path: &std::path::Path) -> io::Result<Option<Self>> {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let metadata = file.metadata()?;
        Ok(Some(Self { file, inode: metadata.ino(), bytes: metadata.len() }))
    }

    /// At most `most` bytes, the last ones, of those after `from`.
    fn end(&mut self, from: u64, most: u64) -> io::Result<Vec<u8>> {
        let from = from.min(self.bytes).max(self.bytes.saturating_sub(most));
        self.file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        (&mut self.file).take(self.bytes - from).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

/// Reads output of `process`. Output of which nothing was ever written is empty.
///
/// # Errors
/// When a file cannot be read.
pub fn read(dirs: &ServiceDirs, process: &str, wanted: Wanted) -> io::Result<Piece> {
    read_within(dirs, process, wanted, ANSWER_BYTES_MAX)
}

/// Reads output of a process that is a unit of systemd.
///
/// # Errors
/// When a file cannot be read. A journal that cannot be read is told in the notice.
pub fn read_unit(dirs: &ServiceDirs, process: &str, unit: &str, wanted: Wanted) -> io::Result<Piece> {
    const EACH: u64 = ANSWER_BYTES_MAX / 2;
    let file = read_within(dirs, process, wanted, EACH)?;
    let from_journal = match wanted {
        // One entry at least, so that a reader can go on from it.
        Wanted::Lines(lines) => journal::Wanted::Entries(lines.max(1)),
        Wanted::After(at) => journal::Wanted::After(at.journal),
    };
    let written = journal::read(unit, from_journal, usize::try_from(EACH).unwrap_or(usize::MAX));
    let file_time = std::fs::metadata(paths(dirs, process).0).and_then(|metadata| metadata.modified()).ok();
    let file_us =
        file_time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|time| time.as_micros());
    Ok(together(file, file_us.unwrap_or(0), written, wanted))
}

/// One answer of what is in the file, which was written last at `file_us` microseconds since 1970,
/// and in the journal.
fn together(file: Piece, file_us: u128, journal: Result<journal::Written, String>, wanted: Wanted) -> Piece {
    let written = match journal {
        Ok(written) => written,
        Err(notice) => {
            let journal = match wanted {
                Wanted::After(at) => at.journal,
                Wanted::Lines(_) => journal::Place::default(),
            };
            return Piece { next: Position { journal, ..file.next }, notice: Some(notice), ..file };
        }
    };
    let next = Position { journal: written.next, ..file.next };
    let (of_file, of_journal) = ((file.text, file.cut), (written.text, written.cut));
    let file_is_last = file_us > u128::from(written.next.time_us);
    let (first, last) = if file_is_last { (of_journal, of_file) } else { (of_file, of_journal) };
    let (mut text, mut cut) = first;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text += &last.0;
    match wanted {
        Wanted::After(_) => cut |= last.1,
        // Output before a gap is older than the gap, so it is left out too.
        Wanted::Lines(0) => (text, cut) = (String::new(), false),
        Wanted::Lines(_) if last.1 => (text, cut) = last,
        Wanted::Lines(lines) => {
            let from = start_of_last(text.as_bytes(), lines.min(LINES_MAX));
            text.drain(..from);
            cut &= from == 0;
        }
    }
    Piece { text, next, cut, notice: None }
}

fn read_within(dirs: &ServiceDirs, process: &str, wanted: Wanted, most: u64) -> io::Result<Piece> {
    let (path, old_path) = paths(dirs, process);
    // The newest first: if the writer begins a new file in between, its earlier one is found twice,
    // and never not at all.
    let mut parts: Vec<Part> = Vec::new();
    for path in [path, old_path] {
        if let Some(part) = Part::open(&path)?
            && parts.iter().all(|known| known.inode != part.inode)
        {
            parts.insert(0, part);
        }
    }
    let Some(last) = parts.last() else {
        return Ok(Piece { text: String::new(), next: Position::default(), cut: false, notice: None });
    };
    let mut next = Position { inode: last.inode, bytes: last.bytes, journal: journal::Place::default() };
    let known =
        |at: &Position| parts.iter().position(|part| part.inode == at.inode && at.bytes <= part.bytes);
    // Without a file there was nothing yet, so everything is new.
    let (first, from, mut cut) = match wanted {
        Wanted::Lines(_) | Wanted::After(Position { inode: 0, .. }) => (0, 0, false),
        Wanted::After(at) => known(&at).map_or((0, 0, true), |part| (part, at.bytes, false)),
    };
    let mut bytes: Vec<u8> = Vec::new();
    for (i, part) in parts.iter_mut().enumerate().skip(first).rev() {
        let from = if i == first { from } else { 0 };
        let left = most.saturating_sub(bytes.len() as u64);
        cut |= part.bytes.saturating_sub(from) > left;
        let mut earlier = part.end(from, left)?;
        earlier.append(&mut bytes);
        bytes = earlier;
    }
    // The rest of a character that is being written comes with the next answer.
    let unfinished = unfinished(&bytes);
    bytes.truncate(bytes.len() - unfinished);
    next.bytes -= unfinished as u64;
    // A part that was cut does not begin in the midst of a line.
    if cut && let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        bytes.drain(..=end);
    }
    if let Wanted::Lines(lines) = wanted {
        let from = start_of_last(&bytes, lines.min(LINES_MAX));
        bytes.drain(..from);
        cut &= from == 0;
    }
    Ok(Piece { text: String::from_utf8_lossy(&bytes).into_owned(), next, cut, notice: None })
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let begins = |from: &usize| {
        let rest = std::str::from_utf8(&bytes[*from..]);
        rest.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (bytes.len().saturating_sub(3)..bytes.len()).find(begins).map_or(0, |from| bytes.len() - from)
}

/// Where the last `lines` lines begin.
fn start_of_last(bytes: &[u8], lines: usize) -> usize {
    let whole = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let ends = whole.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match lines {
        0 => bytes.len(),
        lines => ends.take(lines).nth(lines - 1).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn dirs(root: &Path) -> ServiceDirs {
        ServiceDirs { cgroup: root.join("cgroup"), logs: root.to_path_buf(), log_writer: Vec::new() }
    }

    fn add(path: &Path, text: &str) {
        let mut all = fs::read_to_string(path).unwrap_or_default();
        all.push_str(text);
        // In place, as a writer does it: the file stays the same.
        fs::write(path, all).unwrap();
    }

    #[test]
    fn the_last_lines_of_a_process_reach_back_into_the_earlier_file() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let last = |lines| read(&dirs, "p", Wanted::Lines(lines)).unwrap();
        assert_eq!(
            last(5),
            Piece { text: String::new(), next: Position::default(), cut: false, notice: None }
        );
        add(&root.path().join("p.log.old"), "1\n2\n3\n");
        add(&root.path().join("p.log"), "4\n5\n");
        assert_eq!(last(2).text, "4\n5\n");
        assert_eq!(last(4).text, "2\n3\n4\n5\n");
        assert_eq!((last(99).text.as_str(), last(99).cut), ("1\n2\n3\n4\n5\n", false));
        assert_eq!(last(0).text, "");
    }

    #[test]
    fn a_reader_that_follows_a_log_misses_nothing_when_a_new_file_begins() {
        let root = tempfile::tempdir().unwrap();
        let (dirs, log, old) = (dirs(root.path()), root.path().join("p.log"), root.path().join("p.log.old"));
        let after = |at| read(&dirs, "p", Wanted::After(at)).unwrap();
        let first = after(Position::default());
        add(&log, "1\n");
        let second = after(first.next);
        assert_eq!(second.text, "1\n");
        assert_eq!(after(second.next).text, "");
        add(&log, "2\n");
        fs::rename(&log, &old).unwrap();
        add(&log, "3\n");
        let third = after(second.next);
        assert_eq!((third.text.as_str(), third.cut), ("2\n3\n", false));
        // Both files are others now. What there is comes, and the reader hears that it lacks some.
        fs::rename(&log, &old).unwrap();
        add(&log, "5\n");
        add(&old, "4\n");
        assert_eq!(after(third.next).text, "4\n5\n");
        let lost = after(Position { inode: third.next.inode + 1_000_000, bytes: 1, ..Position::default() });
        assert!(lost.cut && lost.text.ends_with("5\n"), "{lost:?}");
    }

    #[test]
    fn an_answer_has_the_newest_output_where_there_is_more_than_it_may_have() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        add(&root.path().join("p.log.old"), "aaaa\nbbbb\n");
        add(&root.path().join("p.log"), "cccc\ndddd\n");
        let within = |wanted, most| read_within(&dirs, "p", wanted, most).unwrap();
        let piece = within(Wanted::After(Position::default()), 13);
        assert_eq!((piece.text.as_str(), piece.cut), ("cccc\ndddd\n", true));
        let piece = within(Wanted::Lines(1), 13);
        assert_eq!((piece.text.as_str(), piece.cut), ("dddd\n", false));
    }

    #[test]
    fn a_character_that_is_being_written_comes_whole() {
        let root = tempfile::tempdir().unwrap();
        let dirs = dirs(root.path());
        let log = root.path().join("p.log");
        let after = |at| read(&dirs, "p", Wanted::After(at)).unwrap();
        let whole = "a€".as_bytes();
        for bytes in 2..4 {
            fs::write(&log, &whole[..bytes]).unwrap();
            let first = after(Position::default());
            assert_eq!(first.text, "a");
            fs::write(&log, whole).unwrap();
            assert_eq!(after(first.next).text, "€");
        }
        fs::write(&log, b"a\xff").unwrap();
        assert_eq!(after(Position::default()).text, "a\u{fffd}", "it is no beginning of anything");
    }

    #[test]
    fn output_of_a_unit_is_in_the_order_in_which_it_was_written_last() {
        let piece = |text: &str, cut| Piece {
            text: text.into(),
            next: Position { inode: 1, bytes: 2, ..Position::default() },
            cut,
            notice: None,
        };
        let place = |time_us| journal::Place { time_us, hash: 1 };
        let written = |text: &str, cut| Ok(journal::Written { text: text.into(), next: place(50), cut });
        let (ten, after) = (Wanted::Lines(10), Wanted::After(Position::default()));
        let joined = together(piece("f1\nf2", false), 9, written("j1\nj2\n", false), ten);
        assert_eq!((joined.text.as_str(), joined.cut), ("f1\nf2\nj1\nj2\n", false));
        assert_eq!(joined.next, Position { inode: 1, bytes: 2, journal: place(50) });
        // A preparation that failed after the unit has run.
        let joined = together(piece("f1\nf2\n", false), 99, written("j1\nj2\n", true), Wanted::Lines(3));
        assert_eq!((joined.text.as_str(), joined.cut), ("j2\nf1\nf2\n", false));
        let joined = together(piece("f1\n", false), 9, written("j2\n", true), ten);
        assert_eq!((joined.text.as_str(), joined.cut), ("j2\n", true), "no gap within");
        let joined = together(piece("f1\n", true), 9, written("j1\n", false), after);
        assert_eq!((joined.text.as_str(), joined.cut), ("f1\nj1\n", true));
        let known = Position { journal: place(7), ..Position::default() };
        let unread = together(piece("f1\n", false), 9, Err("no journal".into()), Wanted::After(known));
        assert_eq!((unread.text.as_str(), unread.next.journal), ("f1\n", place(7)), "it goes on from there");
        assert_eq!(unread.notice.as_deref(), Some("no journal"));
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let at = Position { inode: 7, bytes: 99, ..Position::default() };
        let in_journal = Position { journal: journal::Place { time_us: 5, hash: u64::MAX }, ..at };
        for at in [at, in_journal] {
            assert_eq!(at.to_string().parse(), Ok(at));
        }
        assert_eq!(at.to_string(), "7-99", "as earlier releases have it");
        for text in ["", "7", "7-", "-7", "x-1", "1-2-3", "1-2-3-4-5"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
