//! The mounts of this node, as the kernel knows them.
//!
//! Guarantees
//! - A file system is known by its device, never by a name. A mount at a path is a service's own
//!   only if it is on the device of its volume.
//! - The mount that the kernel finds at a path counts, also when a mount lies over a directory
//!   above it.

use super::holders::Held;
use mainstay_ha::AtPath;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::{Mode, major, minor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A block device as the kernel numbers it; written `major:minor`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct DeviceId {
    major: u64,
    minor: u64,
}

impl DeviceId {
    /// Returns the number of the device at `path`, which may be a link to it.
    ///
    /// # Errors
    /// When there is no block device.
    pub fn of(path: &Path) -> io::Result<Self> {
        let found = std::fs::metadata(path)?;
        if !found.file_type().is_block_device() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a block device"));
        }
        Ok(Self::from_number(found.rdev()))
    }

    #[must_use]
    pub fn new(major: u32, minor: u32) -> Self {
        Self { major: major.into(), minor: minor.into() }
    }

    /// Converts a device number as `stat` gives it.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self { major: major(number), minor: minor(number) }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (major, minor) = numbers.ok_or_else(|| format!("'{text}' is not a device number"))?;
        Ok(Self { major, minor })
    }
}

impl From<DeviceId> for String {
    fn from(device: DeviceId) -> Self {
        device.to_string()
    }
}

impl TryFrom<String> for DeviceId {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    pub id: u64,
    parent: u64,
    /// Number of the file system. A file system that may be on several devices, such as btrfs, has
    /// a number of its own.
    device: DeviceId,
    /// Directory of the file system that is mounted.
    root: String,
    pub point: PathBuf,
    pub fstype: String,
    pub source: String,
    /// Options of the mount and of the file system, each list separated by commas.
    options: [String; 2],
    /// The peer group: a mount below one of its members is made below all of them.
    shared: Option<u64>,
    /// The peer group from which this mount receives mounts.
    master: Option<u64>,
}

impl Mounted {
    /// Whether it is a file system on `device`. `number`: of that file system, where it is known
    /// not to be the device's.
    #[must_use]
    pub fn is_on(&self, device: DeviceId, number: Option<DeviceId>) -> bool {
        // The source is asked only if the number of the file system says nothing, and if the source
        // is a device. A question about a file of another file system may take for ever.
        let by_source = || {
            self.has_number_of_its_own()
                && self.source.starts_with('/')
                && DeviceId::of(Path::new(&self.source)).is_ok_and(|found| found == device)
        };
        self.device == device || number == Some(self.device) || by_source()
    }

    /// Whether the number is the file system's own. It then says nothing of the devices, of which
    /// there may be several.
    fn has_number_of_its_own(&self) -> bool {
        self.device.major == 0 && matches!(self.fstype.as_str(), "btrfs" | "bcachefs")
    }

    /// Number of the file system.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// The number of the file system, where it is not that of its device.
    #[must_use]
    pub fn number(&self) -> Option<DeviceId> {
        self.has_number_of_its_own().then_some(self.device)
    }

    /// Whether the whole of a file system is mounted there, or a subvolume, which is asked for with
    /// an option.
    fn is_whole(&self) -> bool {
        self.root == "/" || self.has_option(&format!("subvol={}", self.root))
    }

    /// Whether device nodes may be there.
    #[must_use]
    pub fn may_have_devices(&self) -> bool {
        let kind =
            matches!(self.fstype.as_str(), "devtmpfs" | "tmpfs" | "ramfs" | "rootfs" | "overlay" | "btrfs");
        (self.device.major != 0 || kind) && !self.has_option("nodev")
    }

    fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|options| options.split(',').any(|found| found == option))
    }

    /// Describes the mount in words for the operator.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{} ({}) at {}", self.source, self.fstype, self.point.display())
    }
}

/// The mounts of one mount namespace.
#[derive(Clone, Debug)]
pub struct MountTable(Vec<Mounted>);

impl MountTable {
    /// Reads the mounts of this process.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn read() -> io::Result<Self> {
        Self::of_process(Path::new("/proc/self"))
    }

    /// Reads the mounts of the process behind a directory of `/proc`.
    ///
    /// # Errors
    /// When the kernel does not tell, or the process has ended.
    pub fn of_process(process: &Path) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(process.join("mountinfo"))?))
    }

    fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// All mounts.
    pub fn iter(&self) -> impl Iterator<Item = &Mounted> {
        self.0.iter()
    }

    /// The mount that the kernel finds at `path`, if it begins there.
    #[must_use]
    pub fn at(&self, path: &Path) -> Option<&Mounted> {
        let id = visible(path)?;
        self.iter().find(|mounted| mounted.id == id && mounted.point == path)
    }

    /// Whether an unmount of `own` in another namespace takes `mounted` in this one along.
    #[must_use]
    pub fn goes_with(&self, mounted: &Mounted, own_table: &Self, own: &Mounted) -> bool {
        let above = |table: &Self, of: &Mounted| {
            let parent = table.iter().find(|above| above.id == of.parent)?;
            let below = of.point.strip_prefix(&parent.point).ok()?;
            Some((Path::new(&parent.root).join(below), parent.clone()))
        };
        let (Some((place, parent)), Some((own_place, own_parent))) =
            (above(self, mounted), above(own_table, own))
        else {
            return false;
        };
        let Some(group) = own_parent.shared else { return false };
        // Groups that follow one another are looked for in both tables.
        let mut groups: BTreeSet<u64> = parent.shared.into_iter().chain(parent.master).collect();
        loop {
            let known = groups.len();
            for link in self.iter().chain(own_table.iter()) {
                if let (Some(shared), Some(master)) = (link.shared, link.master)
                    && groups.contains(&shared)
                {
                    groups.insert(master);
                }
            }
            if groups.len() == known {
                break;
            }
        }
        place == own_place && groups.contains(&group)
    }

    /// Tells what is mounted at `path`, which has no links in it, for a service whose volume is
    /// `held`. `read_only`: the service wants its mount read-only.
    #[must_use]
    pub fn look(&self, path: &Path, held: Held, read_only: bool) -> AtPath {
        self.look_with(path, held, read_only, visible(path))
    }

    /// `visible`: the mount that the kernel finds at `path`.
    fn look_with(&self, path: &Path, held: Held, read_only: bool, visible: Option<u64>) -> AtPath {
        let at_path = || self.0.iter().filter(|mounted| mounted.point == path);
        let seen = match visible {
            Some(id) => self.0.iter().find(|mounted| mounted.id == id),
            // The topmost mount there cannot be looked at. It is the one that carries no other of
            // them.
            None => at_path().find(|mounted| !at_path().any(|other| other.parent == mounted.id)),
        };
        // An operator may have mounted a part of the file system there.
        let is_ours = |mounted: &&Mounted| {
            mounted.point == path && mounted.is_whole() && mounted.is_on(held.device, held.number)
        };
        match (seen.filter(is_ours), at_path().find(is_ours)) {
            (Some(ours), _) => {
                if let Some(inner) = self.0.iter().find(|mounted| mounted.parent == ours.id) {
                    // If one of ours lies below another of ours, that other one is its parent, and
                    // it is told by its own path.
                    return AtPath::Holds(inner.words());
                }
                let dead = [
                    ("shutdown", "it has shut down after an error"),
                    ("emergency_ro", "the kernel has made it read-only after an error"),
                    ("ro", "it is read-only"),
                ];
                let found = dead.into_iter().find(|(option, _)| !read_only && ours.has_option(option));
                found.map_or(AtPath::Ours, |(_, why)| AtPath::Dead(why.into()))
            }
            (None, Some(_)) => AtPath::Covered(seen.map_or_else(String::new, Mounted::words)),
            (None, None) => match seen.filter(|seen| seen.point == path) {
                Some(foreign) => AtPath::Foreign(foreign.words()),
                None => AtPath::Nothing,
            },
        }
    }
}

/// Identity of the mount that `path` is on, as the kernel finds it at this moment.
fn visible(path: &Path) -> Option<u64> {
    let file = open(path, OFlag::O_PATH | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW, Mode::empty()).ok()?;
    let about = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
    about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

fn parse_line(line: &str) -> Option<Mounted> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<&str> = before.split(' ').collect();
    let after: Vec<&str> = after.split(' ').collect();
    let group = |name: &str| before.iter().skip(6).find_map(|field| field.strip_prefix(name)?.parse().ok());
    Some(Mounted {
        shared: group("shared:"),
        master: group("master:"),
        id: before.first()?.parse().ok()?,
        parent: before.get(1)?.parse().ok()?,
        device: before.get(2)?.parse().ok()?,
        root: unescape(before.get(3)?),
        point: PathBuf::from(unescape(before.get(4)?)),
        fstype: (*after.first()?).to_owned(),
        source: unescape(after.get(1).unwrap_or(&"")),
        options: [(*before.get(5)?).to_owned(), (*after.get(2).unwrap_or(&"")).to_owned()],
    })
}

/// The kernel writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
         40 22 7:1 / /srv/my\\040db rw,noatime - xfs /dev/loop1 rw,nouuid\n\
         41 22 0:50 / /srv/tmp rw shared:3 - tmpfs others rw\n\
         42 22 7:2 / /srv/dead rw - ext4 /dev/loop2 ro,errors=remount-ro\n\
         43 22 7:3 / /srv/over rw - ext4 /dev/loop3 rw\n\
         44 43 0:51 / /srv/over rw - tmpfs others rw\n\
         45 22 7:4 / /srv/holds rw - ext4 /dev/loop4 rw\n\
         46 45 0:52 / /srv/holds/inner rw - tmpfs others rw\n\
         47 22 7:5 /part /srv/part rw - ext4 /dev/loop5 rw\n";

    fn device(minor: u64) -> DeviceId {
        DeviceId { major: 7, minor }
    }

    fn held(minor: u64) -> Held {
        Held { device: device(minor), number: None }
    }

    fn look(path: &str, minor: u64) -> AtPath {
        MountTable::parse(TABLE).look_with(Path::new(path), held(minor), false, None)
    }

    #[test]
    fn a_mount_is_the_service_s_only_by_its_device() {
        assert_eq!(look("/srv/my db", 1), AtPath::Ours);
        assert_eq!(look("/srv/my db", 2), AtPath::Foreign("/dev/loop1 (xfs) at /srv/my db".into()));
        assert_eq!(look("/srv/tmp", 1), AtPath::Foreign("others (tmpfs) at /srv/tmp".into()));
        assert_eq!(look("/srv", 1), AtPath::Nothing);
        assert!(matches!(look("/srv/part", 5), AtPath::Foreign(_)), "a part of it is mounted by others");
    }

    #[test]
    fn mounts_over_a_mount_and_in_it_are_seen() {
        assert_eq!(look("/srv/over", 3), AtPath::Covered("others (tmpfs) at /srv/over".into()));
        assert_eq!(look("/srv/holds", 4), AtPath::Holds("others (tmpfs) at /srv/holds/inner".into()));
        // A mount over the directory above hides it.
        let table = MountTable::parse(&format!("{TABLE}50 22 0:60 / /srv rw - tmpfs above rw\n"));
        let seen = table.look_with(Path::new("/srv/my db"), held(1), false, Some(50));
        assert_eq!(seen, AtPath::Covered("above (tmpfs) at /srv".into()));
    }

    #[test]
    fn a_file_system_that_became_read_only_is_dead_unless_that_is_wanted() {
        assert_eq!(look("/srv/dead", 2), AtPath::Dead("it is read-only".into()));
        let wanted = MountTable::parse(TABLE).look_with(Path::new("/srv/dead"), held(2), true, None);
        assert_eq!(wanted, AtPath::Ours);
    }

    #[test]
    fn a_file_system_with_a_number_of_its_own_is_known_when_its_device_is_gone_and_only_as_a_whole() {
        let table = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
             40 22 0:60 / /srv/db rw - btrfs /dev/gone rw,subvolid=5,subvol=/\n\
             41 22 0:60 /part /srv/part rw - btrfs /dev/gone rw,subvolid=5,subvol=/\n\
             42 22 0:60 /sub /srv/sub rw - btrfs /dev/gone rw,subvolid=257,subvol=/sub\n";
        let table = MountTable::parse(table);
        let look =
            |path, number| table.look_with(Path::new(path), Held { device: device(9), number }, false, None);
        let noted = Some(DeviceId::new(0, 60));
        assert!(matches!(look("/srv/db", None), AtPath::Foreign(_)), "its device does not tell");
        assert_eq!(look("/srv/db", noted), AtPath::Ours);
        assert_eq!(look("/srv/sub", noted), AtPath::Ours);
        assert!(matches!(look("/srv/part", noted), AtPath::Foreign(_)), "a part of it is mounted by others");
    }

    #[test]
    fn propagation_of_a_mount_depends_on_the_mount_above_it() {
        let own = MountTable::parse(
            "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n40 22 7:1 / /srv/db rw shared:9 - ext4 /dev/loop1 rw\n",
        );
        let others = |above: &str, point: &str| {
            MountTable::parse(&format!(
                "60 1 8:1 / / rw {above} - ext4 /dev/sda1 rw\n\
                 61 60 8:1 / /other rw shared:5 master:1 - ext4 /dev/sda1 rw\n\
                 70 60 7:1 / {point} rw master:9 - ext4 /dev/loop1 rw\n"
            ))
        };
        let goes = |above: &str, point: &str| {
            let table = others(above, point);
            let mounted = table.iter().last().expect("it is there");
            table.goes_with(mounted, &own, own.iter().last().expect("it is there"))
        };
        assert!(goes("master:1", "/srv/db") && goes("shared:1", "/srv/db"), "a slave or a peer");
        assert!(goes("master:5", "/srv/db"), "a slave of a slave");
        assert!(!goes("", "/srv/db") && !goes("master:7", "/srv/db"), "nothing reaches it");
        assert!(!goes("master:1", "/data"), "it was bound to another place there");
    }

    #[test]
    fn the_kernel_says_which_mount_a_path_is_on() {
        let root = visible(Path::new("/")).expect("it is told");
        assert!(MountTable::read().expect("it is told").iter().any(|mounted| mounted.id == root));
        assert_eq!(visible(Path::new("/no/such/directory")), None);
    }
}
