//! Checks of the place that a benchmark is to write to. The benchmark destroys its content, so it
//! looks at it first.

use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a device's front and of its end that are read whole. File systems, partition tables and
/// volume managers have their marks there.
const EDGE_BYTES: u64 = 1 << 20;
/// Number of places in between that are read as well.
const PROBES: u64 = 256;
const PROBE_BYTES: u64 = 64 << 10;
/// `O_EXCL` of open(2): of a block device, refused while it is mounted or part of something else.
const O_EXCL: i32 = 0o200;

/// Marks of file systems and of other known contents: name, offset, bytes.
const MARKS: [(&str, usize, &[u8]); 8] = [
    ("an XFS file system", 0, b"XFSB"),
    ("an ext2, ext3 or ext4 file system", 1080, &[0x53, 0xef]),
    ("a Btrfs file system", 65_600, b"_BHRfS_M"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("an LVM physical volume", 536, b"LVM2 001"),
    ("an encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a partition table", 512, b"EFI PART"),
    ("a partition table", 510, &[0x55, 0xaa]),
];

/// A place for fio to write to. A file that was made for it is removed at the end.
#[derive(Debug)]
pub struct Place {
    pub path: PathBuf,
    made: bool,
}

impl Place {
    /// Opens a block device or a file, and looks at its content, unless `overwrite` says that it is
    /// not wanted. In a directory, makes a file of `mib` MiB.
    ///
    /// # Errors
    /// [`Error::Occupied`] when there is something on it, [`Error::Unusable`] when it is too small
    /// or in use.
    pub fn open(path: &Path, mib: u64, overwrite: bool) -> Result<Self> {
        let named = |path: &Path| path.display().to_string();
        let unusable = |why: &str| Error::Unusable { path: named(path), why: why.into() };
        let kind = match std::fs::metadata(path) {
            Ok(meta) => meta.file_type(),
            Err(error) => return Err(unusable(&error.to_string())),
        };
        if kind.is_dir() {
            let file = path.join(format!("mainstay-bench.{}", std::process::id()));
            // Only a file that did not exist is ours to remove.
            OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&file)
                .map_err(Error::system(format!("make {}", named(&file))))?;
            return Ok(Self { path: file, made: true });
        }
        if !kind.is_block_device() && !kind.is_file() {
            return Err(unusable("it is neither a block device, nor a file, nor a directory"));
        }
        let flags = if kind.is_block_device() { O_EXCL } else { 0 };
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        let mut file = file.map_err(|error| {
            let busy = error.kind() == std::io::ErrorKind::ResourceBusy;
            unusable(&if busy { "it is mounted or otherwise in use".into() } else { error.to_string() })
        })?;
        let failed = || Error::system(format!("read {}", named(path)));
        let bytes = file.seek(SeekFrom::End(0)).map_err(failed())?;
        if kind.is_block_device() && bytes < mib << 20 {
            return Err(unusable(&format!("it has {} MiB, and {mib} are wanted", bytes >> 20)));
        }
        if !overwrite && let Some(what) = content(&mut file, bytes).map_err(failed())? {
            return Err(Error::Occupied { path: named(path), what: what.into() });
        }
        Ok(Self { path: path.into(), made: false })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.made {
            // The result does not matter. The path was told at the beginning.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Finds out the content of a file or device, as far as its edges and places in between show it.
/// Returns `None` when all of these are zeroes.
fn content(file: &mut File, bytes: u64) -> std::io::Result<Option<&'static str>> {
    let mut read = |offset: u64, len: u64| -> std::io::Result<Vec<u8>> {
        let mut part = vec![0; len.min(bytes - offset) as usize];
        file.seek(SeekFrom::Start(offset))?;
        file.read_exact(&mut part)?;
        Ok(part)
    };
    let front = read(0, EDGE_BYTES)?;
    let marked = |(_, at, mark): &&(&str, usize, &[u8])| front.get(*at..*at + mark.len()) == Some(*mark);
    if let Some((name, ..)) = MARKS.iter().find(marked) {
        return Ok(Some(name));
    }
    let written = |part: &[u8]| part.iter().any(|&byte| byte != 0);
    let mut found = written(&front) || written(&read(bytes.saturating_sub(EDGE_BYTES), EDGE_BYTES)?);
    for probe in 0..PROBES {
        if found {
            break;
        }
        found = written(&read(bytes / PROBES * probe, PROBE_BYTES)?);
    }
    Ok(found.then_some("data"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mainstay-bench-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, bytes: u64, content: &[(u64, &[u8])]) -> PathBuf {
            use std::os::unix::fs::FileExt;
            let path = self.0.join("file");
            let file = File::create(&path).unwrap();
            file.set_len(bytes).unwrap();
            for (offset, part) in content {
                file.write_all_at(part, *offset).unwrap();
            }
            path
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_target_with_data_is_overwritten_only_on_request() {
        let dir = Dir::new("occupied");
        let what = |path: &Path| match Place::open(path, 1, false) {
            Err(Error::Occupied { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        assert_eq!(what(&dir.file(8 << 20, &[(0, b"XFSB")])), "an XFS file system");
        assert_eq!(what(&dir.file(8 << 20, &[(1080, &[0x53, 0xef])])), "an ext2, ext3 or ext4 file system");
        assert_eq!(what(&dir.file(8 << 20, &[((8 << 20) - 1, b"x")])), "data");
        assert_eq!(what(&dir.file(8 << 20, &[(4 << 20, b"x")])), "data");
        assert_eq!(what(&dir.file(100, &[(50, b"x")])), "data");
        let path = dir.file(8 << 20, &[(0, b"XFSB")]);
        Place::open(&path, 1, true).unwrap();
        assert!(path.exists(), "a file that was there stays");
        Place::open(&dir.file(8 << 20, &[]), 1, false).unwrap();
        Place::open(&dir.file(0, &[]), 1, false).unwrap();
        assert!(matches!(Place::open(Path::new("/dev/null"), 1, true), Err(Error::Unusable { .. })));
        assert!(matches!(Place::open(&dir.0.join("none"), 1, true), Err(Error::Unusable { .. })));
    }

    #[test]
    fn a_directory_gets_a_file_that_goes_again() {
        let dir = Dir::new("directory");
        let place = Place::open(&dir.0, 1, false).unwrap();
        let path = place.path.clone();
        assert!(path.exists() && path.starts_with(&dir.0));
        drop(place);
        assert!(!path.exists());
    }
}
