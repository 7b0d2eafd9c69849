//! The files of the history: a segment for each hour, in a directory that only root may read.
//!
//! `<hour since 1970>.minutes` has a record for each minute. When there is no room, the oldest of
//! them becomes `<hour>.tens`, with a record for each ten minutes; when there are none to thin, the
//! oldest segment is removed. `<hour>.new` is a segment that is being thinned. Nothing is flushed:
//! a crash of the machine costs the last minutes. A segment that a crash has cut is used up to its
//! last whole record.

use crate::private;
use mainstay_history::{Minute, RECORD_BYTES_MAX, Records, SEGMENT_HEADER, encode, thin};
use mainstay_types::ResourceId;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Time for which records are kept.
pub const KEPT_MS: u64 = 8 * 86_400_000;
/// Bytes of all segments together.
pub const BYTES_MAX: u64 = 64 << 20;
/// Length of a record in a thinned segment.
pub const TENS_MS: u64 = 600_000;
const HOUR_MS: u64 = 3_600_000;
const MINUTES: &str = "minutes";
const TENS: &str = "tens";
const NEW: &str = "new";

// A record always finds room once other segments are gone.
const _: () = assert!(BYTES_MAX > 2 * RECORD_BYTES_MAX as u64);

/// A file of the history.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Segment {
    hour: u64,
    /// One of [`MINUTES`], [`TENS`] and [`NEW`].
    kind: &'static str,
    bytes: u64,
}

impl Segment {
    /// The segment of this name, if the history makes such files.
    fn named(name: &str, bytes: u64) -> Option<Self> {
        let (hour, kind) = name.split_once('.')?;
        let kind = [MINUTES, TENS, NEW].into_iter().find(|known| *known == kind)?;
        let is_number = !hour.is_empty() && hour.bytes().all(|byte| byte.is_ascii_digit());
        let parsed = hour.parse().ok().filter(|_| is_number)?;
        let segment = Self { hour: parsed, kind, bytes };
        (segment.name() == name).then_some(segment)
    }

    fn name(&self) -> String {
        format!("{}.{}", self.hour, self.kind)
    }
}

/// The directory of the history.
#[derive(Clone, Debug)]
pub struct Files {
    directory: PathBuf,
    bytes_max: u64,
}

impl Files {
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { directory, bytes_max: BYTES_MAX }
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, segment: &Segment) -> PathBuf {
        self.directory.join(segment.name())
    }

    /// All segments, by hour. None if there is no directory.
    fn segments(&self) -> io::Result<Vec<Segment>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut segments = Vec::new();
        for entry in entries {
            let entry = entry?;
            let metadata = entry.metadata()?;
            let name = entry.file_name();
            let segment = name.to_str().and_then(|name| Segment::named(name, metadata.len()));
            segments.extend(segment.filter(|_| metadata.is_file()));
        }
        segments.sort_by_key(|segment| (segment.hour, segment.kind));
        Ok(segments)
    }

    /// Calls `each` with every record that ends in the interval after `from_ms` up to `to_ms`, and
    /// returns the end of the oldest record of all. A segment that goes meanwhile is left out.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(&self, from_ms: u64, to_ms: u64, mut each: impl FnMut(Minute)) -> io::Result<Option<u64>> {
        let mut oldest = None;
        let segments = self.segments()?;
        for segment in segments.iter().filter(|segment| segment.kind != NEW) {
            let is_wanted = segment.hour >= from_ms / HOUR_MS && segment.hour <= to_ms / HOUR_MS;
            if !is_wanted && oldest.is_some() {
                continue;
            }
            let bytes = match fs::read(self.path(segment)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                bytes => bytes?,
            };
            for minute in Records::of(&bytes) {
                oldest.get_or_insert(minute.end_ms);
                if !is_wanted {
                    break;
                }
                if minute.end_ms > from_ms && minute.end_ms <= to_ms {
                    each(minute);
                }
            }
        }
        Ok(oldest)
    }

    /// Removes segments that are too old, and thins or removes others until there is room for
    /// `room` bytes. The segment of the present hour is removed last.
    fn keep_bounds(&self, now_ms: u64, room: u64) -> io::Result<()> {
        let present = now_ms / HOUR_MS;
        // A clock that was wrong may have made segments of the future: they go first.
        let order = |segment: &Segment| (segment.hour == present, segment.hour <= present + 1, segment.hour);
        loop {
            let segments = self.segments()?;
            let is_over = |segment: &&Segment| {
                let ended = segment.hour.saturating_add(1).saturating_mul(HOUR_MS);
                ended.saturating_add(KEPT_MS) <= now_ms || segment.kind == NEW
            };
            for segment in segments.iter().filter(is_over) {
                remove(&self.path(segment))?;
            }
            let kept: Vec<&Segment> = segments.iter().filter(|segment| !is_over(segment)).collect();
            let bytes: u64 = kept.iter().map(|segment| segment.bytes).sum();
            if bytes.saturating_add(room) <= self.bytes_max {
                return Ok(());
            }
            let to_thin = kept.iter().filter(|segment| segment.kind == MINUTES && segment.hour != present);
            if let Some(segment) = to_thin.min_by_key(|segment| order(segment)) {
                self.thin(segment)?;
            } else if let Some(segment) = kept.iter().min_by_key(|segment| order(segment)) {
                remove(&self.path(segment))?;
            } else {
                return Ok(());
            }
        }
    }

    /// Replaces a segment of minutes by one of tens, or removes it if nothing of it can be read.
    fn thin(&self, segment: &Segment) -> io::Result<()> {
        let path = self.path(segment);
        let Some(thinned) = thin(&fs::read(&path)?, TENS_MS) else {
            return remove(&path);
        };
        let new = self.directory.join(Segment { kind: NEW, ..segment.clone() }.name());
        let mut file = private_file().truncate(true).write(true).open(&new)?;
        file.write_all(&thinned)?;
        drop(file);
        // A crash between the two leaves a segment that has been thinned already.
        fs::rename(&new, &path)?;
        fs::rename(&path, self.directory.join(Segment { kind: TENS, ..segment.clone() }.name()))
    }
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Appends records.
pub struct Writer {
    pub files: Files,
    open: Option<Open>,
}

/// The segment that is written.
struct Open {
    hour: u64,
    file: File,
    bytes: u64,
    /// Replicas whose names are in it, since this process began.
    named: BTreeSet<ResourceId>,
}

impl Writer {
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self { files: Files::new(directory), open: None }
    }

    /// Appends a record, after it has made room for it.
    ///
    /// # Errors
    /// When the directory or a file cannot be written. The segment is as it was before.
    pub fn append(&mut self, minute: &Minute) -> io::Result<()> {
        private::directory(&self.files.directory)?;
        let hour = minute.end_ms / HOUR_MS;
        // With all names a record is largest.
        let room = encode(minute, &mut BTreeSet::new()).map_or(0, |bytes| bytes.len() as u64);
        self.files.keep_bounds(minute.end_ms, room + SEGMENT_HEADER.len() as u64)?;
        let path = self.files.path(&Segment { hour, kind: MINUTES, bytes: 0 });
        let kept = self.open.take().filter(|open| open.hour == hour && path.exists());
        let mut open = match kept {
            Some(open) => open,
            None => Open::at(&path, hour)?,
        };
        let Some(record) = encode(minute, &mut open.named) else {
            return Err(io::Error::other("the record of a minute is too large"));
        };
        if let Err(error) = open.file.write_all(&record) {
            // A part of it may be there. If it stays, the next start of the agent cuts it.
            let _ = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes += record.len() as u64;
        self.open = Some(open);
        Ok(())
    }
}

impl Open {
    /// Opens a segment, new or after its last whole record.
    fn at(path: &Path, hour: u64) -> io::Result<Self> {
        let mut file = private_file().read(true).write(true).truncate(false).open(path)?;
        let found = fs::read(path)?;
        let mut records = Records::of(&found);
        records.by_ref().for_each(drop);
        let mut bytes = records.good_bytes() as u64;
        file.set_len(bytes)?;
        file.seek(SeekFrom::Start(bytes))?;
        if bytes == 0 {
            file.write_all(&SEGMENT_HEADER)?;
            bytes = SEGMENT_HEADER.len() as u64;
        }
        Ok(Self { hour, file, bytes, named: BTreeSet::new() })
    }
}

#[cfg(test)]
mod tests;
