//! Changes of files and directories that survive a power cut.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Replaces a file as a whole: after a crash it has the old content or the new.
///
/// # Errors
/// When the new content may not survive a power cut.
pub fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let fresh = path.with_extension("new");
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(directory)?.sync_all()
}

/// Makes durable which names the directory of a path has.
///
/// # Errors
/// When they may not survive a power cut.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent =
        path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    parent.map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}
