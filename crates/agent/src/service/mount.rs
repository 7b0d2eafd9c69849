//! File systems of services.
//!
//! Guarantees
//! - A file system is made only on a volume whose beginning and end are all zeroes, which is how a new
//!   volume is born. Anything else is content and is never formatted.
//! - Mounting what is mounted and unmounting what is not are successes.
//! - A mount table that cannot be read proves nothing: no unmount succeeds by it (R19).

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What file systems that can be mounted begin with: at which byte, and whose it is.
const SIGNATURES: [(u64, &[u8], &str); 3] =
    [(0, b"XFSB", "xfs"), (1080, &[0x53, 0xef], "ext"), (65_600, b"_BHRfS_M", "btrfs")];
/// Bytes at the beginning of a volume that are searched for content; every known file system, volume manager
/// and partition table has something there.
const HEAD_BYTES: u64 = 4 << 20;
/// Bytes at the end of a volume that are searched, where RAID and partition tables keep copies.
const TAIL_BYTES: u64 = 1 << 20;
const XFS_PUSH: &str = "/proc/sys/fs/xfs/xfssyncd_centisecs";
/// The shortest that the kernel takes.
const XFS_PUSH_CENTISECS: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
const MAKE_POLL: Duration = Duration::from_millis(10);

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot read {device}: {source}")]
    Read {
        device: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{device} is blank and the service does not allow making a file system (mkfs = true)")]
    Blank { device: PathBuf },
    #[error("{device} holds {found}, not {wanted}; it is not touched")]
    Foreign { device: PathBuf, found: &'static str, wanted: String },
    #[error("making the file system on {device} failed: {message}")]
    Make { device: PathBuf, message: String },
    #[error("cannot make the mount point {path}: {source}")]
    MountPoint {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("mounting {device} at {path} failed: {errno}")]
    Mount { device: PathBuf, path: PathBuf, errno: Errno },
    #[error("something else is mounted at {path}: {source_found}")]
    Occupied { path: PathBuf, source_found: String },
    #[error("unmounting {path} failed: {errno}")]
    Unmount { path: PathBuf, errno: Errno },
    #[error("cannot read the mount table: {0}")]
    Table(#[source] io::Error),
    #[error("it was called off")]
    CalledOff,
}

/// What to mount.
#[derive(Clone, Debug)]
pub struct MountPlan {
    pub device: PathBuf,
    pub path: PathBuf,
    pub fstype: String,
    /// Comma-separated, as in fstab; may be empty.
    pub options: String,
    pub mkfs: bool,
}

/// Mounts, after making a file system if the volume is blank and that is wanted. Nothing that can still be avoided
/// is begun when `wanted` has become false.
///
/// # Errors
/// See [`MountError`].
pub fn ensure_mounted(plan: &MountPlan, wanted: &dyn Fn() -> bool) -> Result<(), MountError> {
    if let Some(found) = mounted_source(&plan.path)? {
        if same_device(Path::new(&found), &plan.device) {
            return Ok(());
        }
        return Err(MountError::Occupied { path: plan.path.clone(), source_found: found });
    }
    let read = |source| MountError::Read { device: plan.device.clone(), source };
    let content = inspect(&mut File::open(&plan.device).map_err(read)?).map_err(read)?;
    match content {
        Content::Blank if plan.mkfs => make(&plan.device, &plan.fstype, wanted)?,
        Content::Blank => return Err(MountError::Blank { device: plan.device.clone() }),
        Content::FileSystem(name) if name == family(&plan.fstype) => {}
        Content::FileSystem(found) => {
            return Err(MountError::Foreign {
                device: plan.device.clone(),
                found,
                wanted: plan.fstype.clone(),
            });
        }
        // The kernel knows more file systems than this file; it refuses what it does not recognize.
        Content::Unknown => {}
    }
    std::fs::create_dir_all(&plan.path)
        .map_err(|source| MountError::MountPoint { path: plan.path.clone(), source })?;
    if plan.fstype == "xfs" {
        push_often();
    }
    let (flags, data) = parse_options(&plan.fstype, &plan.options);
    if !wanted() {
        return Err(MountError::CalledOff);
    }
    mount(Some(&plan.device), &plan.path, Some(plan.fstype.as_str()), flags, Some(data.as_str()))
        .map_err(|errno| MountError::Mount { device: plan.device.clone(), path: plan.path.clone(), errno })
}

/// Makes XFS write back what its log holds once per second instead of every 30 seconds. All that has not been
/// written back must be replayed record by record by the node that mounts after a power cut: seconds of failover
/// time under load. The setting is the machine's, and is read when a file system is mounted.
fn push_often() {
    let current = std::fs::read_to_string(XFS_PUSH).ok().and_then(|text| text.trim().parse::<u32>().ok());
    if current.is_none_or(|current| current <= XFS_PUSH_CENTISECS) {
        return;
    }
    match std::fs::write(XFS_PUSH, XFS_PUSH_CENTISECS.to_string()) {
        Ok(()) => tracing::info!(
            "{XFS_PUSH} is {XFS_PUSH_CENTISECS} from now on: a mount after a power cut is quicker"
        ),
        Err(error) => {
            tracing::warn!(%error, "cannot write {XFS_PUSH}: a mount after a power cut may take seconds")
        }
    }
}

/// Unmounts; waits for what still holds it busy until `deadline`, and no longer than it is `wanted`.
///
/// # Errors
/// When it is still busy, or the kernel refuses for another reason.
pub fn ensure_unmounted(path: &Path, deadline: Instant, wanted: &dyn Fn() -> bool) -> Result<(), MountError> {
    while mounted_source(path)?.is_some() {
        if !wanted() {
            return Err(MountError::CalledOff);
        }
        match umount2(path, MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(Errno::EBUSY) if Instant::now() < deadline => std::thread::sleep(BUSY_PAUSE),
            Err(errno) => return Err(MountError::Unmount { path: path.to_path_buf(), errno }),
        }
    }
    Ok(())
}

/// Takes the mount out of sight at once; the kernel ends it when the last user is gone (R19).
///
/// # Errors
/// When the kernel refuses.
pub fn detach(path: &Path) -> Result<(), MountError> {
    while mounted_source(path)?.is_some() {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            // Somebody else, such as the engine's guard, was quicker.
            Ok(()) | Err(Errno::EINVAL) => {}
            Err(errno) => return Err(MountError::Unmount { path: path.to_path_buf(), errno }),
        }
    }
    Ok(())
}

/// Source of the topmost mount at `path`, if there is one.
///
/// # Errors
/// When the mount table cannot be read.
pub fn mounted_source(path: &Path) -> Result<Option<String>, MountError> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").map_err(MountError::Table)?;
    Ok(find_mount(&table, path))
}

/// Mount point of the cgroup hierarchy of version 2.
#[must_use]
pub fn cgroup2_mount() -> Option<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        let point = PathBuf::from(unescape(before.split(' ').nth(4)?));
        (kind == "cgroup2" && point.is_dir()).then_some(point)
    })
}

fn find_mount(table: &str, path: &Path) -> Option<String> {
    table.lines().rev().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = unescape(before.split(' ').nth(4)?);
        (Path::new(&point) == path).then(|| unescape(after.split(' ').nth(1).unwrap_or("")))
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn same_device(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    real(a) == real(b)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Blank,
    FileSystem(&'static str),
    Unknown,
}

fn inspect(device: &mut (impl Read + Seek)) -> io::Result<Content> {
    let bytes = device.seek(SeekFrom::End(0))?;
    // One at a time: a block that cannot be read further on is no reason not to mount, nor is a failover to wait for it.
    for (at, magic, name) in SIGNATURES {
        if read_piece(device, at, magic.len() as u64)? == magic {
            return Ok(Content::FileSystem(name));
        }
    }
    let head = read_piece(device, 0, bytes.min(HEAD_BYTES))?;
    let tail_start = bytes.saturating_sub(TAIL_BYTES);
    let tail = read_piece(device, tail_start, bytes - tail_start)?;
    let blank = head.iter().chain(&tail).all(|&byte| byte == 0);
    Ok(if blank { Content::Blank } else { Content::Unknown })
}

fn read_piece(device: &mut (impl Read + Seek), offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    device.seek(SeekFrom::Start(offset))?;
    let mut piece = Vec::new();
    device.take(bytes).read_to_end(&mut piece)?;
    Ok(piece)
}

/// The name that [`inspect`] has for file systems of this type.
fn family(fstype: &str) -> &str {
    if fstype.starts_with("ext") { "ext" } else { fstype }
}

/// Makes a file system. It is killed when it is not `wanted` any more.
fn make(device: &Path, fstype: &str, wanted: &dyn Fn() -> bool) -> Result<(), MountError> {
    if !wanted() {
        return Err(MountError::CalledOff);
    }
    let failed = |message: String| MountError::Make { device: device.to_path_buf(), message };
    let mut command = Command::new(format!("mkfs.{fstype}"));
    // A new volume is all zeroes already: discarding it would only send that to every replica.
    match fstype {
        "xfs" => command.args(["-q", "-K"]),
        "ext2" | "ext3" | "ext4" => command.args(["-q", "-E", "nodiscard"]),
        _ => &mut command,
    };
    let unusable = |error| failed(format!("mkfs.{fstype} cannot be run: {error}"));
    command.arg(device).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(unusable)?;
    while child.try_wait().map_err(unusable)?.is_none() {
        if !wanted() {
            // It may have ended just now; in either case it is over only when it was waited for.
            drop(child.kill());
            drop(child.wait());
            return Err(MountError::CalledOff);
        }
        std::thread::sleep(MAKE_POLL);
    }
    // What it writes there are a few lines, which fit into the pipe.
    let output = child.wait_with_output().map_err(unusable)?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}: {}", output.status, cause(&String::from_utf8_lossy(&output.stderr)))))
}

/// What a program says before it explains its usage.
fn cause(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<_> = lines.take_while(|line| !line.to_lowercase().starts_with("usage")).collect();
    told.join("; ")
}

fn parse_options(fstype: &str, options: &str) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut data: Vec<&str> = Vec::new();
    for option in options.split(',').map(str::trim).filter(|option| !option.is_empty()) {
        match option {
            "defaults" | "rw" => {}
            "ro" => flags |= MsFlags::MS_RDONLY,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "lazytime" => flags |= MsFlags::MS_LAZYTIME,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            other => data.push(other),
        }
    }
    // XFS refuses two mounts of one UUID in one kernel. A dead mount of an earlier primacy that somebody
    // still holds open must not keep the service down; the record decides who may write, not the UUID.
    if fstype == "xfs" && !data.contains(&"nouuid") {
        data.push("nouuid");
    }
    (flags, data.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_program_s_usage_is_not_its_cause() {
        let said = "size 4096 too small\n\nUsage: mkfs.xfs\n/* blocksize */ [-b size=num]\n";
        assert_eq!(cause(said), "size 4096 too small");
        assert_eq!(cause("one\ntwo\n"), "one; two");
        assert_eq!(cause(""), "");
    }

    #[test]
    fn only_zeroes_are_blank() {
        let size = 8 << 20;
        assert_eq!(inspect(&mut Cursor::new(vec![0; size])).unwrap(), Content::Blank);
        for at in [0, 512, HEAD_BYTES as usize - 1, size - 1, size - TAIL_BYTES as usize] {
            let mut bytes = vec![0; size];
            bytes[at] = 1;
            assert_eq!(inspect(&mut Cursor::new(bytes)).unwrap(), Content::Unknown, "a byte at {at}");
        }
        let mut xfs = vec![0; size];
        xfs[..4].copy_from_slice(b"XFSB");
        assert_eq!(inspect(&mut Cursor::new(xfs)).unwrap(), Content::FileSystem("xfs"));
        let mut ext = vec![0; size];
        ext[1080..1082].copy_from_slice(&[0x53, 0xef]);
        assert_eq!(inspect(&mut Cursor::new(ext)).unwrap(), Content::FileSystem(family("ext4")));
    }

    /// A volume with damage from byte `from` on.
    struct Damaged {
        whole: Cursor<Vec<u8>>,
        from: u64,
    }

    impl Read for Damaged {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let left = self.from.saturating_sub(self.whole.position()).min(buffer.len() as u64) as usize;
            if left == 0 && self.whole.position() < self.whole.get_ref().len() as u64 {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            self.whole.read(&mut buffer[..left])
        }
    }

    impl Seek for Damaged {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.whole.seek(to)
        }
    }

    #[test]
    fn damage_behind_its_signature_does_not_hide_a_file_system_and_is_never_blank() {
        let mut bytes = vec![0; 8 << 20];
        let damaged = |bytes: &[u8]| Damaged { whole: Cursor::new(bytes.to_vec()), from: 70_000 };
        assert!(inspect(&mut damaged(&bytes)).is_err(), "who knows what is there");
        bytes[..4].copy_from_slice(b"XFSB");
        assert_eq!(inspect(&mut damaged(&bytes)).unwrap(), Content::FileSystem("xfs"));
    }

    #[test]
    fn content_is_never_formatted() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("volume");
        let mut bytes = vec![0; 8 << 20];
        bytes[65_600..65_608].copy_from_slice(b"_BHRfS_M");
        std::fs::write(&device, &bytes).unwrap();
        let plan = MountPlan {
            device: device.clone(),
            path: dir.path().join("mnt"),
            fstype: "xfs".into(),
            options: String::new(),
            mkfs: true,
        };
        assert!(matches!(ensure_mounted(&plan, &|| true), Err(MountError::Foreign { found: "btrfs", .. })));
        assert_eq!(std::fs::read(&device).unwrap(), bytes);
    }

    #[test]
    fn nothing_is_made_once_it_is_called_off() {
        let dir = tempfile::tempdir().unwrap();
        let device = dir.path().join("volume");
        std::fs::write(&device, vec![0; 8 << 20]).unwrap();
        let path = dir.path().join("mnt");
        for mkfs in [true, false] {
            let plan = MountPlan {
                device: device.clone(),
                path: path.clone(),
                fstype: "xfs".into(),
                options: String::new(),
                mkfs,
            };
            let result = ensure_mounted(&plan, &|| false);
            assert!(matches!(result, Err(MountError::CalledOff | MountError::Blank { .. })), "{result:?}");
        }
        assert!(std::fs::read(&device).unwrap().iter().all(|&byte| byte == 0));
        // What holds a file system is not mounted either.
        std::fs::write(&device, b"XFSB").unwrap();
        let plan = MountPlan { device, path, fstype: "xfs".into(), options: String::new(), mkfs: false };
        assert!(matches!(ensure_mounted(&plan, &|| false), Err(MountError::CalledOff)));
    }

    #[test]
    fn the_topmost_mount_counts() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     40 22 7:1 / /srv/my\\040db rw - xfs /dev/loop1 rw\n\
                     41 40 7:2 / /srv/my\\040db rw shared:3 - xfs /dev/loop2 rw\n";
        assert_eq!(find_mount(table, Path::new("/srv/my db")).as_deref(), Some("/dev/loop2"));
        assert_eq!(find_mount(table, Path::new("/srv")), None);
    }

    #[test]
    fn options_are_split_into_flags_and_data() {
        let (flags, data) = parse_options("xfs", "noatime, nodev,logbsize=256k");
        assert_eq!(flags, MsFlags::MS_NOATIME | MsFlags::MS_NODEV);
        assert_eq!(data, "logbsize=256k,nouuid");
    }
}
