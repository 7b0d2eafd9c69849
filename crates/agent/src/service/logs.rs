//! Reading the output of processes back, for an operator at another node.
//!
//! Guarantees
//! - One answer has at most [`ANSWER_BYTES_MAX`] bytes of output, and the newest where there is
//!   more.
//! - A reader that goes on from a [`Position`] misses nothing and hears nothing twice, also when
//!   the writer begins a new file meanwhile, as long as the output is still there. Otherwise the
//!   answer says that something was left out.

use super::command::ServiceDirs;
use super::output::paths;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

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
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.inode, self.bytes)
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (inode, bytes) = text.split_once('-').ok_or(())?;
        Ok(Self { inode: inode.parse().map_err(drop)?, bytes: bytes.parse().map_err(drop)? })
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
        return Ok(Piece { text: String::new(), next: Position::default(), cut: false });
    };
    let mut next = Position { inode: last.inode, bytes: last.bytes };
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
    Ok(Piece { text: String::from_utf8_lossy(&bytes).into_owned(), next, cut })
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
        assert_eq!(last(5), Piece { text: String::new(), next: Position::default(), cut: false });
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
        let lost = after(Position { inode: third.next.inode + 1_000_000, bytes: 1 });
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
    fn a_position_is_read_as_it_is_written() {
        let at = Position { inode: 7, bytes: 99 };
        assert_eq!(at.to_string().parse(), Ok(at));
        for text in ["", "7", "7-", "-7", "x-1", "1-2-3"] {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }
}
