//! Baselines: records of named intervals, which stay after the history is gone.
//!
//! A file of this directory is a line of JSON ([`KeptBaseline`]) and a segment of records, as the
//! history has them. Each node keeps its own part. A save is flushed, because it is wanted for
//! long.
//!
//! Guarantees
//! - A node keeps at most [`BASELINES_MAX`] baselines of some [`BYTES_MAX`] bytes each (R18).
//! - A save never replaces a baseline, and one that fails leaves none behind.
//! - Only files are listed, read and removed that have the names and the form of baselines (R27).

use super::files::Files;
use super::pages::{CELLS_MAX, page_of};
use crate::private;
use mainstay_api::rest::LoadPage;
use mainstay_control::State;
use mainstay_ha::valid_name;
use mainstay_history::{Kept, Records, SEGMENT_HEADER, Series};
use mainstay_pool::durable::write_private;
use mainstay_types::{Code, Problem};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Most baselines of a cluster, and of a node.
pub const BASELINES_MAX: usize = 16;
/// Bytes of a baseline on one node at which its records become longer. One record may be larger.
pub const BYTES_MAX: usize = 1 << 20;
/// Most records of a baseline, as points of an answer.
const RECORDS_MAX: u64 = 1440;
const MINUTE_MS: u64 = 60_000;
/// Remedy for a name that is none.
pub const NAME_REMEDY: &str = "Use 1 to 32 of a-z, 0-9 and the dash, beginning with a letter.";
/// Longest first line.
const LINE_BYTES_MAX: usize = 512;

/// A baseline as a node keeps it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeptBaseline {
    pub name: String,
    pub from_ms: u64,
    pub to_ms: u64,
    /// When it was saved, by the wall clock.
    pub made_ms: u64,
    /// Length of a record.
    pub step_ms: u64,
    /// Size of the file.
    #[serde(default)]
    pub bytes: u64,
}

/// A question about the baselines of a node, or a change of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum BaselineOrder {
    List,
    /// Keeps the records of this interval. A node without any keeps nothing. `step_ms` and `bytes`
    /// are not used.
    Keep(KeptBaseline),
    Delete {
        name: String,
    },
    /// Asks for the kept figures as [`LoadPage`].
    Load {
        name: String,
        step_ms: u64,
    },
}

/// The directory of the baselines.
pub struct Baselines {
    directory: PathBuf,
    bytes_max: usize,
}

impl Baselines {
    #[must_use]
    pub fn of(state_dir: &Path) -> Self {
        Self { directory: state_dir.join("baselines"), bytes_max: BYTES_MAX }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// All baselines, by name.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<KeptBaseline>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| valid_name(name)) else { continue };
            if entry.metadata()?.is_file() {
                let mut start = Vec::new();
                let file = fs::File::open(entry.path())?;
                file.take((LINE_BYTES_MAX + SEGMENT_HEADER.len()) as u64).read_to_end(&mut start)?;
                let bytes = entry.metadata()?.len();
                found.extend(split(name, start).map(|(baseline, _)| KeptBaseline { bytes, ..baseline }));
            }
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }

    /// A baseline and its segment; `None` if there is no such file, or if it is none of ours.
    fn read(&self, name: &str) -> io::Result<Option<(KeptBaseline, Vec<u8>)>> {
        if !valid_name(name) {
            return Ok(None);
        }
        let path = self.path(name);
        match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            found => Ok(if found?.is_file() { split(name, fs::read(&path)?) } else { None }),
        }
    }

    /// Keeps the records of an interval; `None` if the history has none.
    ///
    /// # Errors
    /// `bad-name`, `name-taken`, `too-many-baselines`; `history-files`: files cannot be read or
    /// written.
    pub fn keep(&self, history: &Files, asked: &KeptBaseline) -> Result<Option<KeptBaseline>, Problem> {
        let KeptBaseline { name, from_ms, to_ms, .. } = asked;
        // The name becomes a part of a path.
        if !valid_name(name) {
            return Err(Problem::new(Code::BadName, "this is no name of a baseline", NAME_REMEDY));
        }
        let known = self.list().map_err(|error| self.unreadable(&error))?;
        check(known.iter().map(|known| known.name.as_str()), name)?;
        let step_ms = to_ms.saturating_sub(*from_ms).div_ceil(RECORDS_MAX).next_multiple_of(MINUTE_MS);
        let mut kept = Kept::new(*from_ms, *to_ms, step_ms, self.bytes_max);
        history
            .read(*from_ms, *to_ms, |minute| kept.add(&minute))
            .map_err(|error| self.unreadable(&error))?;
        let Some((step_ms, segment)) = kept.finish() else { return Ok(None) };
        let baseline = KeptBaseline { step_ms, ..asked.clone() };
        self.write(&baseline, &segment).map_err(|error| self.unreadable(&error))
    }

    fn write(&self, baseline: &KeptBaseline, segment: &[u8]) -> io::Result<Option<KeptBaseline>> {
        private::directory(&self.directory)?;
        let mut bytes = serde_json::to_vec(baseline).map_err(io::Error::other)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(segment);
        let path = self.path(&baseline.name);
        if path.exists() {
            return Err(io::Error::other(format!("{} is no baseline and is in the way", path.display())));
        }
        write_private(&path, &bytes)?;
        Ok(Some(KeptBaseline { bytes: bytes.len() as u64, ..baseline.clone() }))
    }

    /// Removes a baseline. Returns whether there was one.
    ///
    /// # Errors
    /// When its file cannot be removed.
    pub fn delete(&self, name: &str) -> io::Result<bool> {
        if self.read(name)?.is_none() {
            return Ok(false);
        }
        fs::remove_file(self.path(name))?;
        Ok(true)
    }

    /// The kept figures of this node; `None` if it has no such baseline.
    pub(super) fn page(
        &self,
        (name, step_ms): (&str, u64),
        node: String,
        state: &State,
    ) -> io::Result<Option<LoadPage>> {
        let Some((baseline, segment)) = self.read(name)? else { return Ok(None) };
        let step_ms = step_ms.max(baseline.step_ms);
        let mut series = Series::new(baseline.from_ms, baseline.to_ms, step_ms, CELLS_MAX);
        Records::of(&segment).for_each(|minute| series.add(minute, |_| true));
        let ends = (baseline.from_ms, baseline.to_ms);
        Ok(Some(page_of(&series, ends, Some(baseline.from_ms), node, state)))
    }

    pub(super) fn unreadable(&self, error: &io::Error) -> Problem {
        Problem::new(
            Code::HistoryFiles,
            format!("a baseline cannot be read or written: {error}"),
            format!("Look at {} on that node.", self.directory.display()),
        )
    }
}

/// The first line and what follows, if the bytes are the begin of a baseline of this name.
fn split(name: &str, mut bytes: Vec<u8>) -> Option<(KeptBaseline, Vec<u8>)> {
    let end = bytes.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let segment = bytes.split_off(end + 1);
    let line: KeptBaseline = serde_json::from_slice(&bytes).ok()?;
    (line.name == name && segment.starts_with(&SEGMENT_HEADER)).then_some((line, segment))
}

/// Whether a baseline of this name can be added to those that there are.
///
/// # Errors
/// `name-taken`, `too-many-baselines`.
pub fn check<'a>(known: impl Iterator<Item = &'a str> + Clone, name: &str) -> Result<(), Problem> {
    if known.clone().any(|known| known == name) {
        return Err(Problem::new(
            Code::NameTaken,
            format!("there is a baseline {name} already"),
            format!("Choose another name, or delete it: `mainstay report baseline delete {name}`."),
        ));
    }
    if known.count() >= BASELINES_MAX {
        return Err(Problem::new(
            Code::TooManyBaselines,
            format!("there are {BASELINES_MAX} baselines already, which is the most"),
            "Delete one that you do not need: `mainstay report baseline list` shows them.",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
