//! Changes of files and directories that survive a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file as a whole: after a crash it has the old content or the new.
///
/// # Errors
/// When the new content may not survive a power cut.
pub fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o666)
}

/// The same for a file that only its owner may read, from its first byte on.
///
/// # Errors
/// As [`write_durable`].
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, bytes, 0o600)
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let fresh = path.with_extension("new");
    // One that a crash has left has the mode that it was made with.
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(mode).open(&fresh)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_private_file_is_private_whatever_a_crash_has_left() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("below/keys.json");
        write_durable(&path, b"old").unwrap();
        fs::write(path.with_extension("new"), "left").unwrap();
        write_private(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!path.with_extension("new").exists());
    }
}
