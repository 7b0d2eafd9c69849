//! File system and device that hold a directory, and the limits of the device's queue, as the
//! kernel tells them.

use super::AtomicError;
use super::calls;
use super::verdict::{Device, FileSystem, Limits, Owner};
use crate::{nbd_device, ublk_device};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Source of the file systems by which engines show their volumes.
const FUSE_SOURCE: &str = "mainstay";
/// Place and length of ext4's superblock.
const SUPERBLOCK: (u64, usize) = (1024, 1024);
const EXT4_MAGIC: u64 = 0xef53;
/// Bit of `s_feature_ro_compat`: blocks are reserved in clusters.
const BIGALLOC: u64 = 0x200;

/// A line of `/proc/self/mountinfo`, what of it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Mount {
    /// Number of the mount, as `statx` gives it.
    id: u64,
    device: (u32, u32),
    point: PathBuf,
    fstype: String,
    source: String,
    /// Options of the file system.
    options: String,
}

fn mount(line: &str) -> Option<Mount> {
    let (of_mount, of_file_system) = line.split_once(" - ")?;
    let mut fields = of_mount.split(' ');
    let id = fields.next()?.parse().ok()?;
    let (major, minor) = fields.nth(1)?.split_once(':')?;
    let point = fields.nth(1)?.replace("\\040", " ").into();
    let mut rest = of_file_system.split(' ');
    Some(Mount {
        id,
        device: (major.parse().ok()?, minor.parse().ok()?),
        point,
        fstype: rest.next()?.into(),
        source: rest.next()?.replace("\\040", " "),
        options: rest.next().unwrap_or_default().into(),
    })
}

fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

/// The mount that holds `path`, which has no links in it. Several mounts may show one file system:
/// the mount with the number `id` counts, else the one with the longest path above `path`. Of two
/// mounts on one point the last one counts, because it hides the other.
fn holder<'a>(mounts: &'a [Mount], path: &Path, device: (u32, u32), id: Option<u64>) -> Option<&'a Mount> {
    let shows = |mount: &&Mount| mount.device == device;
    let above = |of: &dyn Fn(&&Mount) -> bool| {
        let holds = mounts.iter().filter(|mount| of(mount) && path.starts_with(&mount.point));
        holds.max_by_key(|mount| mount.point.as_os_str().len())
    };
    let by_id = mounts.iter().find(|mount| Some(mount.id) == id);
    let by_device = || above(&shows).or_else(|| mounts.iter().rev().find(shows));
    // btrfs gives its files other numbers than its mounts have.
    by_id.or_else(by_device).or_else(|| above(&|_| true))
}

/// Number of the mount that a path is on; `None` on kernels before 5.8, which do not tell.
fn mount_id(path: &Path) -> Option<u64> {
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::MNT_ID).ok()?;
    let told = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    told.then_some(found.stx_mnt_id)
}

/// Place of a directory.
pub struct Place {
    /// Number of the file system, as `stat` gives it.
    pub number: u64,
    pub file_system: FileSystem,
    pub device: Device,
}

/// Looks where `path` is, which has no links in it. `run_dir`: where the engine notes its devices.
///
/// # Errors
/// When the kernel does not tell.
pub fn look(path: &Path, run_dir: &Path) -> Result<Place, AtomicError> {
    let number = fs::metadata(path).map_err(AtomicError::look(path))?.dev();
    let device = (rustix::fs::major(number), rustix::fs::minor(number));
    let table = Path::new("/proc/self/mountinfo");
    let mounts = mounts(&fs::read_to_string(table).map_err(AtomicError::look(table))?);
    let Some(mount) = holder(&mounts, path, device, mount_id(path)) else {
        return Err(AtomicError::NoMount { path: path.to_owned() });
    };
    let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", device.0, device.1)).canonicalize().ok();
    let file_system = match mount.fstype.as_str() {
        "ext4" => ext4(mount, device, sys.as_deref())?,
        "xfs" => {
            let block = File::open(path).and_then(|file| calls::xfs_block_bytes(&file));
            let block = block.map_err(AtomicError::look(path))?;
            FileSystem::Xfs { block, has_realtime: has_option(mount, "rtdev") }
        }
        other => FileSystem::Other(other.to_owned()),
    };
    let device = match sys {
        Some(sys) => device_of(&sys, &mounts, run_dir)?,
        None => Device {
            path: mount.source.clone(),
            queue: String::new(),
            owner: Owner::Foreign("it is no single block device".into()),
            start: 0,
            limits: Limits::default(),
        },
    };
    Ok(Place { number, file_system, device })
}

fn has_option(mount: &Mount, name: &str) -> bool {
    mount.options.split(',').any(|option| option.split('=').next() == Some(name))
}

fn ext4(mount: &Mount, number: (u32, u32), sys: Option<&Path>) -> Result<FileSystem, AtomicError> {
    let node = node(Path::new(&mount.source), number, sys);
    let mut superblock = [0; SUPERBLOCK.1];
    let read = File::open(&node).and_then(|file| file.read_exact_at(&mut superblock, SUPERBLOCK.0));
    read.map_err(AtomicError::look(&node))?;
    let journals_data = mount.options.split(',').any(|option| option == "data=journal");
    parse_ext4(&superblock, journals_data)
        .ok_or_else(|| AtomicError::look(&node)(io::Error::other("it has no superblock of ext4")))
}

/// Path of a device's node: the source of the mount, if it is that device.
fn node(source: &Path, number: (u32, u32), sys: Option<&Path>) -> PathBuf {
    let is_it = fs::metadata(source).is_ok_and(|found| {
        let rdev = found.rdev();
        found.file_type().is_block_device() && (rustix::fs::major(rdev), rustix::fs::minor(rdev)) == number
    });
    match sys.and_then(Path::file_name) {
        Some(name) if !is_it => Path::new("/dev").join(name),
        _ => source.to_owned(),
    }
}

/// Blocks and clusters, as a superblock of ext4 says.
fn parse_ext4(superblock: &[u8; SUPERBLOCK.1], journals_data: bool) -> Option<FileSystem> {
    let word = |at: usize| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&superblock[at..at + 4]);
        u64::from(u32::from_le_bytes(bytes))
    };
    let size = |log: u64| 1024u64.checked_shl(u32::try_from(log).ok()?).filter(|_| log <= 20);
    if word(0x38) & 0xffff != EXT4_MAGIC {
        return None;
    }
    let block = size(word(0x18))?;
    let cluster = if word(0x64) & BIGALLOC != 0 { size(word(0x1c))? } else { block };
    Some(FileSystem::Ext4 { block, cluster, first: word(0x14) * block, journals_data })
}

fn device_of(sys: &Path, mounts: &[Mount], run_dir: &Path) -> Result<Device, AtomicError> {
    let name =
        |sys: &Path| sys.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let (path, mut whole, mut start) = (format!("/dev/{}", name(sys)), sys, 0);
    if sys.join("partition").exists() {
        start = number(&sys.join("start")).unwrap_or(1).saturating_mul(512);
        whole = sys.parent().unwrap_or(sys);
    }
    let queue = name(whole);
    let owner = owner(whole, &queue, mounts, run_dir)?;
    if matches!(owner, Owner::Foreign(_)) {
        // A loop device of others may begin behind the start of its file.
        start += number(&whole.join("loop/offset")).unwrap_or(0);
    }
    Ok(Device { path, owner, start, limits: limits(&whole.join("queue")), queue })
}

fn owner(sys: &Path, name: &str, mounts: &[Mount], run_dir: &Path) -> Result<Owner, AtomicError> {
    let numbered = |prefix: &str| name.strip_prefix(prefix).and_then(|rest| rest.parse::<u32>().ok());
    if numbered("loop").is_some() {
        return of_loop(sys, name, mounts);
    }
    if let Some(number) = numbered("ublkb") {
        let is_own = ublk_device::is_noted(run_dir, number);
        return Ok(if is_own { Owner::Ublk } else { not_noted("ublk", run_dir) });
    }
    if let Some(index) = numbered("nbd") {
        let is_own = nbd_device::is_noted(run_dir, index);
        return Ok(if is_own { Owner::Nbd } else { not_noted("nbd", run_dir) });
    }
    Ok(Owner::Foreign(match name {
        _ if name.starts_with("dm-") => {
            "it is one of the device mapper, as of LVM, encryption or multipath, which may cut requests"
                .into()
        }
        _ if name.starts_with("md") => "it is a RAID of md, which may cut requests".into(),
        _ => "no engine of this node has made it".into(),
    }))
}

fn not_noted(kind: &str, run_dir: &Path) -> Owner {
    let run_dir = run_dir.display();
    Owner::Foreign(format!("no engine with the run directory {run_dir} has made this {kind} device"))
}

fn of_loop(sys: &Path, name: &str, mounts: &[Mount]) -> Result<Owner, AtomicError> {
    let node = Path::new("/dev").join(name);
    let found = File::open(&node).and_then(|file| calls::loop_file_device(&file));
    let found = found.map_err(AtomicError::look(&node))?;
    let found = (rustix::fs::major(found), rustix::fs::minor(found));
    // Its path as the program gave it that made the loop device.
    let file = fs::read_to_string(sys.join("loop/backing_file")).unwrap_or_default();
    let under = holder(mounts, Path::new(file.trim_end_matches('\n')), found, None);
    let Some(under) = under.filter(|mount| mount.device == found) else {
        return Ok(Owner::Foreign("it is a loop device on a file that is not mounted here".into()));
    };
    if under.fstype != "fuse" || under.source != FUSE_SOURCE {
        let (fstype, point) = (&under.fstype, under.point.display());
        return Ok(Owner::Foreign(format!("it is a loop device on a file of the {fstype} at {point}")));
    }
    let is = |file: &str, value: u64| number(&sys.join("loop").join(file)) == Some(value);
    Ok(Owner::Loop {
        is_direct: is("dio", 1),
        is_part: !(is("offset", 0) && is("sizelimit", 0)),
        fuse_pages: number(Path::new("/proc/sys/fs/fuse/max_pages_limit")),
    })
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn limits(queue: &Path) -> Limits {
    let times = |name: &str, unit: u64| number(&queue.join(name)).map(|value| value.saturating_mul(unit));
    Limits {
        logical_block: times("logical_block_size", 1),
        request: times("max_sectors_kb", 1024),
        segments: times("max_segments", 1),
        segment: times("max_segment_size", 1),
        chunk: times("chunk_sectors", 512),
        gap_mask: times("virt_boundary_mask", 1),
    }
}

/// Major and minor number of a release of Linux.
#[must_use]
pub fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim_end().split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_path_is_found_by_its_number_its_device_or_the_path() {
        let table = mounts(
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             40 22 7:1 / /srv/my\\040db rw,noatime shared:3 - xfs /dev/loop1 rw,rtdev=/dev/sdb\n\
             41 22 0:50 / /srv/tree rw - btrfs /dev/sdc rw\n\
             42 22 7:1 / /backup rw - xfs /dev/loop1 rw,rtdev=/dev/sdb\n\
             rubbish\n",
        );
        assert_eq!(table.len(), 4);
        let at = |path: &str, device, id| {
            holder(&table, Path::new(path), device, id).map(|mount| mount.point.to_str().expect("text"))
        };
        let found = holder(&table, Path::new("/srv/my db/data"), (7, 1), None).expect("it is there");
        assert_eq!((&*found.source, &*found.fstype), ("/dev/loop1", "xfs"));
        assert!(has_option(found, "rtdev") && !has_option(found, "noatime"));
        // Two mounts show the file system.
        assert_eq!(at("/srv/my db/data", (7, 1), None), Some("/srv/my db"));
        assert_eq!(at("/backup/data", (7, 1), None), Some("/backup"));
        assert_eq!(at("/srv/my db/data", (7, 1), Some(42)), Some("/backup"), "the kernel knows better");
        assert_eq!(at("/elsewhere", (7, 1), Some(99)), Some("/backup"), "the last one hides others");
        assert_eq!(at("/srv/tree/x", (0, 77), None), Some("/srv/tree"));
    }

    #[test]
    fn a_superblock_tells_blocks_and_clusters() {
        let mut superblock = [0; 1024];
        assert_eq!(parse_ext4(&superblock, false), None, "it is none");
        superblock[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        superblock[0x18] = 2;
        superblock[0x1c] = 4;
        let plain = FileSystem::Ext4 { block: 4096, cluster: 4096, first: 0, journals_data: true };
        assert_eq!(parse_ext4(&superblock, true), Some(plain));
        superblock[0x65] = 2;
        superblock[0x14] = 1;
        let clusters = FileSystem::Ext4 { block: 4096, cluster: 16384, first: 4096, journals_data: false };
        assert_eq!(parse_ext4(&superblock, false), Some(clusters));
        superblock[0x18..0x1c].copy_from_slice(&[0xff; 4]);
        assert_eq!(parse_ext4(&superblock, false), None, "no such size");
    }

    #[test]
    fn a_release_is_understood() {
        assert_eq!(release("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(release("5.10-rc1\n"), Some((5, 10)));
        assert_eq!(release("unknown"), None);
    }

    #[test]
    fn a_limit_that_is_not_there_is_not_made_up() {
        assert_eq!(limits(Path::new("/nonexistent")), Limits::default());
    }
}
