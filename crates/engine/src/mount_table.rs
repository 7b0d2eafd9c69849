//! Whether a mount may be taken away: it is of a device of ours, and nothing else goes with it
//! (R27).
//!
//! The agent knows more of mounts (`agent/src/service/mount_table.rs`). Here is only what the guard
//! needs when there is no agent.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A block device as the kernel numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceId {
    major: u32,
    minor: u32,
}

impl DeviceId {
    /// Number of the block device at `path`, which may be a link to it.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        if !found.file_type().is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device"));
        }
        Ok(Self { major: libc::major(found.rdev()), minor: libc::minor(found.rdev()) })
    }
}

struct Mounted {
    id: u64,
    parent: u64,
    device: DeviceId,
    /// Directory of the file system that is mounted; `/` for the whole.
    root: String,
    point: PathBuf,
    fstype: String,
    source: PathBuf,
    /// Options of the file system, as opposed to those of the mount.
    options: String,
}

/// Whether what is mounted at `point` is a file system on `device`, with no other mount in it or
/// over it.
///
/// # Errors
/// When the kernel does not tell.
pub fn is_own(point: &Path, device: DeviceId) -> io::Result<bool> {
    Ok(is_own_in(&fs::read_to_string("/proc/self/mountinfo")?, point, device))
}

fn is_own_in(table: &str, point: &Path, device: DeviceId) -> bool {
    let mounts: Vec<Mounted> = table.lines().filter_map(parse).collect();
    let mut here = mounts.iter().filter(|mounted| mounted.point == point).peekable();
    let carries = |of: &Mounted| mounts.iter().any(|other| other.parent == of.id);
    // A file system that may be on several devices has a number of its own. Only its source is
    // asked: a file of others may take for ever.
    let is_on = |of: &Mounted| {
        let by_source = of.device.major == 0
            && matches!(of.fstype.as_str(), "btrfs" | "bcachefs")
            && of.source.is_absolute();
        of.device == device || by_source && DeviceId::of(&of.source).is_ok_and(|found| found == device)
    };
    here.peek().is_some() && here.all(|mounted| is_on(mounted) && is_whole(mounted) && !carries(mounted))
}

/// Whether the whole of a file system is mounted there, or a subvolume, which is asked for with an
/// option.
fn is_whole(of: &Mounted) -> bool {
    let subvolume = of.options.split(',').find_map(|option| option.strip_prefix("subvol="));
    of.root == "/" || subvolume == Some(&of.root)
}

fn parse(line: &str) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = DeviceId { major: major.parse().ok()?, minor: minor.parse().ok()? };
    let (root, point) = (fields.next()?.to_owned(), unescaped(fields.next()?));
    let mut after = after.split(' ');
    let (fstype, source) = (after.next()?.to_owned(), unescaped(after.next()?));
    let options = after.next().unwrap_or_default().to_owned();
    Some(Mounted { id, parent, device, root, point, fstype, source, options })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let text = field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    PathBuf::from(text.replace("\\134", "\\"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         40 22 7:1 / /srv/my\\040db rw - xfs /dev/loop1 rw\n\
         41 22 0:50 / /srv/tmp rw - tmpfs others rw\n\
         43 22 7:3 / /srv/over rw - ext4 /dev/loop3 rw\n\
         44 43 0:51 / /srv/over rw - tmpfs others rw\n\
         45 22 7:4 / /srv/holds rw - ext4 /dev/loop4 rw\n\
         46 45 0:52 / /srv/holds/inner rw - tmpfs others rw\n\
         47 22 7:5 /part /srv/part rw - ext4 /dev/loop5 rw\n\
         48 22 7:6 /sub /srv/sub rw - btrfs /dev/loop6 rw,subvolid=256,subvol=/sub\n\
         49 22 7:6 /sub/part /srv/subpart rw - btrfs /dev/loop6 rw,subvolid=256,subvol=/sub\n";

    #[test]
    fn only_a_mount_of_the_device_that_carries_no_other_may_go() {
        let own = |point: &str, minor| is_own_in(TABLE, Path::new(point), DeviceId { major: 7, minor });
        assert!(own("/srv/my db", 1));
        assert!(!own("/srv/my db", 2), "another device");
        assert!(!own("/srv/tmp", 1), "another file system");
        assert!(!own("/srv/over", 3) && !own("/srv/holds", 4), "another one would go with it");
        assert!(own("/srv/sub", 6) && !own("/srv/subpart", 6), "a subvolume, and a part of it");
        assert!(!own("/srv/part", 5), "a part of it is mounted by others");
        assert!(!own("/srv", 1), "nothing is mounted there");
    }
}
