//! File systems that fill the devices that they are on.
//!
//! A mounted xfs, ext4 or btrfs is made as large as its device, by the kernel's own calls. No other
//! program has to be installed, and no file system is unmounted. A file system that is as large
//! already stays as it is. Other types keep their size, and Mainstay says so.

use crate::sys;
use mainstay_ha::Room;
use nix::errno::Errno;
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, statfs};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a device may take to follow its volume.
const DEVICE_WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

/// Why a file system was not made larger.
#[derive(Debug, Error)]
pub enum FillError {
    #[error("cannot look at {path}")]
    Look {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "this kind of file system (magic {magic:#x}) cannot be made larger by Mainstay; use its own tools"
    )]
    Kind { magic: i64 },
    #[error("the device has {found} bytes and not yet {wanted}; it grows when it is attached again")]
    Device { found: u64, wanted: u64 },
    #[error("the kernel does not make the file system larger")]
    Grow(#[source] Errno),
}

/// Makes the file system that is mounted at `path` as large as `device`. Waits for a while until
/// the device has `bytes` bytes. Returns the size of the device in bytes, if the file system was
/// smaller.
///
/// # Errors
/// See [`FillError`]. The file system stays as it is and goes on.
pub fn fill(path: &Path, device: &Path, bytes: u64) -> Result<Option<u64>, FillError> {
    let look = |path: &Path| {
        let path = path.display().to_string();
        move |source: io::Error| FillError::Look { path, source }
    };
    let block_device = File::open(device).map_err(look(device))?;
    let size = || sys::device_bytes(&block_device).map_err(|errno| look(device)(errno.into()));
    let end = Instant::now() + DEVICE_WAIT;
    while size()? < bytes {
        if Instant::now() >= end {
            return Err(FillError::Device { found: size()?, wanted: bytes });
        }
        std::thread::sleep(POLL);
    }
    let size = size()?;
    let root = File::open(path).map_err(look(path))?;
    let kind = statfs(path).map_err(|errno| look(path)(errno.into()))?;
    match kind.filesystem_type() {
        XFS_SUPER_MAGIC => {
            let mut geometry = sys::XfsGeometry::default();
            sys::xfs_geometry(&root, &mut geometry).map_err(FillError::Grow)?;
            let blocks = size / u64::from(geometry.block_bytes.max(1));
            if blocks <= geometry.data_blocks {
                return Ok(None);
            }
            sys::xfs_grow(&root, blocks, geometry.inode_percent).map_err(FillError::Grow)?;
        }
        EXT4_SUPER_MAGIC => {
            let (blocks, block_bytes) = ext4_size(&block_device).map_err(look(device))?;
            let wanted = size / block_bytes;
            if wanted <= blocks {
                return Ok(None);
            }
            sys::ext4_grow(&root, wanted).map_err(FillError::Grow)?;
        }
        BTRFS_SUPER_MAGIC => {
            sys::btrfs_grow(&root).map_err(FillError::Grow)?;
            if statfs(path).is_ok_and(|now| now.blocks() == kind.blocks()) {
                return Ok(None);
            }
        }
        other => return Err(FillError::Kind { magic: other.0 }),
    }
    Ok(Some(size))
}

/// Room in the file system that is mounted at `path`; `None` if the kernel does not tell.
pub fn room(path: &Path) -> Option<Room> {
    let found = statfs(path).ok()?;
    let bytes = u64::try_from(found.block_size()).ok()?;
    Some(Room {
        bytes: found.blocks().saturating_mul(bytes),
        free_bytes: found.blocks_available().saturating_mul(bytes),
        files: found.files(),
        free_files: found.files_free(),
    })
}

/// Blocks of an ext4, and bytes of each, as its superblock says: `s_blocks_count_lo` and `_hi`,
/// `s_log_block_size`.
fn ext4_size(device: &File) -> io::Result<(u64, u64)> {
    let mut superblock = [0; 1024];
    device.read_exact_at(&mut superblock, 1024)?;
    let word = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&superblock[at..at + 4]);
        u64::from(u32::from_le_bytes(bytes))
    };
    Ok((word(0x4) | word(0x150) << 32, 1024 << word(0x18).min(16)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::unmounted::unmount;
    use std::path::PathBuf;
    use std::process::Command;

    const SMALL: u64 = 320 << 20;
    const LARGE: u64 = 448 << 20;

    fn run(program: &str, words: &[&str]) -> String {
        let output = Command::new(program).args(words).output().expect("the program is installed");
        assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A loop device over a file, with a file system that is mounted; gone when dropped.
    struct Mounted {
        _directory: tempfile::TempDir,
        file: PathBuf,
        device: String,
        path: PathBuf,
    }

    impl Mounted {
        fn new(mkfs: &str) -> Self {
            Self::with(&[mkfs])
        }

        fn with(mkfs: &[&str]) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            let (file, path) = (directory.path().join("file"), directory.path().join("mounted"));
            std::fs::create_dir(&path).expect("a mount point");
            File::create(&file).and_then(|file| file.set_len(SMALL)).expect("a file");
            let device = run("losetup", &["--find", "--show", &file.to_string_lossy()]);
            run(mkfs[0], &[&["-q"], &mkfs[1..], &[&device]].concat());
            run("mount", &[&device, &path.to_string_lossy()]);
            Self { _directory: directory, file, device, path }
        }

        fn bytes(&self) -> u64 {
            let found = statfs(&self.path).expect("it is mounted");
            found.blocks() * u64::try_from(found.block_size()).expect("a size")
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            unmount(&self.path.to_string_lossy());
            run("losetup", &["--detach", &self.device]);
        }
    }

    #[test]
    fn a_mounted_file_system_fills_its_device() {
        let clusters = ["mkfs.ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"];
        for words in [&["mkfs.xfs"][..], &["mkfs.ext4"], &clusters, &["mkfs.btrfs"]] {
            let mkfs = words[0];
            if Command::new(mkfs).arg("--version").output().is_err() && mkfs == "mkfs.btrfs" {
                eprintln!("{mkfs} is not installed: not tried");
                continue;
            }
            let mounted = Mounted::with(words);
            let (before, device) = (mounted.bytes(), Path::new(&mounted.device).to_path_buf());
            assert_eq!(fill(&mounted.path, &device, SMALL).expect("there is nothing to do"), None, "{mkfs}");
            assert_eq!(mounted.bytes(), before, "{mkfs}: it is as large already");
            File::options()
                .write(true)
                .open(&mounted.file)
                .and_then(|file| file.set_len(LARGE))
                .expect("larger");
            run("losetup", &["--set-capacity", &mounted.device]);
            match fill(&mounted.path, &device, LARGE) {
                // ext4 wants CAP_SYS_RESOURCE, which containers may be without.
                Err(FillError::Grow(Errno::EPERM)) if mkfs == "mkfs.ext4" => {
                    eprintln!("{mkfs}: not permitted here, not tried");
                    continue;
                }
                grown => grown.expect("it grows"),
            };
            let after = mounted.bytes();
            assert!(after > before + (LARGE - SMALL) / 10 * 9, "{mkfs}: {before} bytes, then {after}");
            fill(&mounted.path, &device, LARGE).expect("once more changes nothing");
            assert_eq!(mounted.bytes(), after);
        }
    }

    #[test]
    fn a_file_system_that_cannot_grow_is_reported() {
        let mounted = Mounted::new("mkfs.xfs");
        let refused = fill(Path::new("/proc"), Path::new(&mounted.device), 0).expect_err("nothing to grow");
        assert!(matches!(refused, FillError::Kind { .. }), "{refused}");
        assert!(matches!(fill(&mounted.path, Path::new("/nonexistent"), 0), Err(FillError::Look { .. })));
    }
}
