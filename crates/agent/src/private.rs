//! Files that only root may read. The record of the cluster and the notes about services hold the
//! environment of processes, and logs hold what processes write: each may be a secret (R24).

use std::fs::{DirBuilder, File, OpenOptions, Permissions, set_permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes a directory of Mainstay's own, with those above it that are missing. An earlier release
/// may have made it for everybody to read.
///
/// # Errors
/// As the system tells them.
pub fn directory(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(found) if found.permissions().mode() & 0o077 != 0 => {
            set_permissions(path, Permissions::from_mode(0o700))
        }
        Ok(_) => Ok(()),
        Err(_) => DirBuilder::new().recursive(true).mode(0o700).create(path),
    }
}

/// Makes an empty file of Mainstay's own unless there is one.
///
/// # Errors
/// As the system tells them.
pub fn file(path: &Path) -> io::Result<()> {
    let file: File = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(0o600))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn what_is_made_and_what_an_earlier_release_made_is_for_root_alone() {
        let place = tempfile::tempdir().unwrap();
        let (new, old) = (place.path().join("a/new"), place.path().join("old"));
        std::fs::create_dir(&old).unwrap();
        set_permissions(&old, Permissions::from_mode(0o755)).unwrap();
        for path in [&new, &old] {
            directory(path).unwrap();
            assert_eq!(mode(path), 0o700, "{}", path.display());
            let (made, found) = (path.join("made"), path.join("found"));
            std::fs::write(&found, "kept").unwrap();
            set_permissions(&found, Permissions::from_mode(0o644)).unwrap();
            for path in [&made, &found] {
                file(path).unwrap();
                assert_eq!(mode(path), 0o600, "{}", path.display());
            }
            assert_eq!(std::fs::read(&found).unwrap(), b"kept");
        }
    }
}
