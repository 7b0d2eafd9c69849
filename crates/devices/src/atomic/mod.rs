//! Whether a page of a database can tear on the file system at a path: the facts are gathered from
//! the kernel, and the decision is pure ([`verdict`]).
//!
//! Guarantees
//! - Yes is said only if the device is one that an engine of this node serves, its queue cuts no
//!   page, the file system keeps each page in one aligned piece, now and when it grows, and every
//!   data file that is there already lies like that.
//! - What cannot be seen is no yes. What cannot be looked at, because a right is missing, is an
//!   error.
//! - Nothing is changed: no file is written and none is flushed. On ext4 the kernel's memory of
//!   where files lie is dropped and built again.
//!
//! Limits: files are known by their names. A tablespace that only the database knows, in a place
//! outside of the path, is not seen.

mod calls;
mod files;
mod open_files;
pub mod pages;
mod place;
pub mod verdict;

use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;
use verdict::{Answer, Facts, FileSystem, Writes, judge};

/// Why no answer can be given.
#[derive(Debug, Error)]
pub enum AtomicError {
    #[error("cannot look at {path}")]
    Look {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the file system that holds {path} is not mounted in sight of this process")]
    NoMount { path: PathBuf },
    #[error("the check was given up")]
    GivenUp,
}

impl AtomicError {
    fn look(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Look { path, source }
    }
}

/// A question about a place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Question {
    /// Directory with the data files, or one such file.
    pub path: PathBuf,
    /// Bytes of a page.
    pub page: u64,
    pub writes: Writes,
    /// Names of data files, with `*` and `?`; none: those of InnoDB and PostgreSQL.
    pub files: Vec<String>,
    /// Where the engine of this node notes its devices.
    pub run_dir: PathBuf,
}

/// Answers a question.
///
/// # Errors
/// When the kernel does not let this process look.
pub fn check(question: &Question) -> Result<Answer, AtomicError> {
    check_while(question, &|| true)
}

/// Answers a question, and gives up before the next file when it is not `wanted` any more.
///
/// # Errors
/// As [`check`], and [`AtomicError::GivenUp`].
pub fn check_while(question: &Question, wanted: &dyn Fn() -> bool) -> Result<Answer, AtomicError> {
    facts(question, wanted).map(|facts| judge(&facts))
}

/// Gathers the facts for an answer, while it is `wanted`.
///
/// # Errors
/// When the kernel does not let this process look, or the answer is not wanted any more.
pub fn facts(question: &Question, wanted: &dyn Fn() -> bool) -> Result<Facts, AtomicError> {
    let Question { path, page, writes, files, run_dir } = question;
    let path = path.canonicalize().map_err(AtomicError::look(path))?;
    let place = place::look(&path, run_dir)?;
    let patterns = files::Patterns::new(files);
    let is_ext4 = matches!(place.file_system, FileSystem::Ext4 { .. });
    let look = files::Look::new(*page, *writes, &patterns, place.number, is_ext4, wanted);
    let mut files = look.below(&path)?;
    if *writes == Writes::Direct {
        open_files::note(&path, &patterns, &mut files);
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    let kernel = kernel.as_deref().and_then(place::release);
    let (file_system, device) = (place.file_system, place.device);
    Ok(Facts { page: *page, writes: *writes, kernel, file_system, device, files })
}

#[cfg(test)]
mod tests;
