//! Processes, mounts and devices that hold a file system or a block device, in words for the
//! operator.
//!
//! Guarantees
//! - Nothing here waits for a file system. The kernel's tables, and its data about open files, tell
//!   what processes hold, so a file system that hangs does not matter. The answer comes in bounded
//!   time; otherwise the caller hears that there is none.
//! - A mount that goes with the service's own, in this mount namespace or another, is none of its
//!   holders.
//!
//! Processes, mounts and files that cannot be looked at are left out: a process may end at any
//! moment.

use super::bounded::Bounded;
use super::mount_table::{DeviceId, MountTable, Mounted};
use crate::sys;
use mainstay_api::engine::DeviceUser;
use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Most holders that are named; the others are counted.
const NAMED_MAX: usize = 5;
/// How long the search may take.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Part of [`PATIENCE`] for files that are mapped. Where the memory of a process cannot be looked
/// at in time, the holders without it are the answer.
const MAPPED_PATIENCE: Duration = Duration::from_secs(1);

static SEARCHES: Bounded = Bounded::new();

/// A block device, with every file system on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub device: DeviceId,
    /// Number of the file system where that is not the device's own.
    pub number: Option<DeviceId>,
}

/// The search has no end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("its users are not known within {} s, because a process or a file system of this node hangs", PATIENCE.as_secs())]
pub struct NotKnown;

/// Devices and file systems whose holders are searched for.
#[derive(Clone, Debug, Default)]
pub struct Search {
    pub held: Vec<Held>,
    /// Processes that do not count.
    pub except: BTreeSet<u32>,
    /// Paths of mounts in this mount namespace that do not count, nor do those that an unmount
    /// there takes along.
    pub own: Vec<PathBuf>,
    /// File systems whose files are behind the devices.
    pub backing: Vec<Backing>,
}

/// A file system whose files are behind devices. Its mounts hold nothing; a process with one of the
/// files open does, and so does a block device on it that is none of the devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backing {
    number: DeviceId,
    point: PathBuf,
}

/// The file systems of this kind that are mounted at `point`. They are not asked for anything: they
/// may hang.
#[must_use]
pub fn backing(point: &Path) -> Vec<Backing> {
    // The kernel names mounts without links in their paths.
    let above = point.parent().and_then(|above| above.canonicalize().ok());
    let point = above.zip(point.file_name()).map(|(above, name)| above.join(name));
    let (Some(point), Ok(table)) = (point, MountTable::read()) else { return Vec::new() };
    let found = table.iter().filter(|mounted| mounted.point == point);
    found.map(|mounted| Backing { number: mounted.device(), point: point.clone() }).collect()
}

/// Meaning of a mount for the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Held,
    /// Device nodes may be there.
    MayHaveDevices,
    Other,
}

type Kinds = BTreeMap<u64, Kind>;

impl Search {
    /// Returns the holders of the devices and file systems.
    ///
    /// # Errors
    /// When they are not known in time.
    pub fn holders(&self) -> Result<Vec<String>, NotKnown> {
        let deadline = Instant::now() + PATIENCE;
        let search = self.clone();
        let found = SEARCHES.ask(Path::new("tables"), deadline - MAPPED_PATIENCE, move || search.in_tables());
        let (found, processes) = found.ok_or(NotKnown)?;
        if !found.is_empty() {
            return Ok(found);
        }
        // For this question the memory of the process has to be still, and the question may hang.
        let search = self.clone();
        let mapped = SEARCHES.ask(Path::new("memory"), deadline, move || search.in_memory(&processes));
        Ok(mapped.unwrap_or_default())
    }

    fn in_tables(&self) -> (Vec<String>, Vec<u32>) {
        let mut found = Vec::new();
        let (mut kinds, mut points) = (Kinds::new(), BTreeSet::new());
        let own_table = MountTable::read().ok();
        if let Some(table) = &own_table {
            self.classify(table, &mut kinds);
            points.extend(
                table.iter().filter(|mounted| self.is_held(mounted)).map(|found| found.point.clone()),
            );
            let goes_along =
                |mounted: &Mounted| self.own_in(table).any(|own| table.goes_with(mounted, table, own));
            let others: BTreeSet<&Path> = table
                .iter()
                .filter(|mounted| self.is_held(mounted) && !self.own.contains(&mounted.point))
                .filter(|mounted| !goes_along(mounted))
                .map(|mounted| mounted.point.as_path())
                .collect();
            found.extend(others.into_iter().map(|point| format!("a mount at {}", point.display())));
        }
        let namespace = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let mut namespaces: BTreeSet<_> = namespace(Path::new("/proc/self")).into_iter().collect();
        let processes: Vec<u32> = processes().filter(|pid| !self.except.contains(pid)).collect();
        for &pid in &processes {
            let process = directory(pid);
            let Some(namespace) = namespace(&process).filter(|found| !namespaces.contains(found)) else {
                continue;
            };
            let Ok(table) = MountTable::of_process(&process) else { continue };
            namespaces.insert(namespace);
            self.classify(&table, &mut kinds);
            let goes_along = |mounted: &Mounted| {
                own_table.iter().any(|own_table| {
                    self.own_in(own_table).any(|own| table.goes_with(mounted, own_table, own))
                })
            };
            let mut held = table.iter().filter(|mounted| self.is_held(mounted) && !goes_along(mounted));
            if let Some(mounted) = held.next() {
                let (point, name) = (mounted.point.display(), name(pid));
                found.push(format!("a mount at {point} in the mount namespace of {name}"));
            }
        }
        let others: Vec<u32> = processes.into_iter().filter(|pid| !is_mainstay(&directory(*pid))).collect();
        for &pid in &others {
            if let Some(how) = self.holds(&directory(pid), &kinds) {
                found.push(format!("{} with {how}", name(pid)));
            }
        }
        found.extend(self.held.iter().flat_map(|held| devices_on(held.device, &points)));
        found.extend(self.backing.iter().flat_map(|backing| self.devices_beside(backing)));
        (found, others)
    }

    fn classify(&self, table: &MountTable, kinds: &mut Kinds) {
        for mounted in table.iter() {
            let kind = match () {
                () if self.is_held(mounted) || self.is_behind(mounted.device()) => Kind::Held,
                () if mounted.may_have_devices() => Kind::MayHaveDevices,
                () => Kind::Other,
            };
            kinds.insert(mounted.id, kind);
        }
    }

    /// The service's own mounts.
    fn own_in<'a>(&'a self, table: &'a MountTable) -> impl Iterator<Item = &'a Mounted> {
        table.iter().filter(|mounted| self.is_held(mounted) && self.own.contains(&mounted.point))
    }

    fn is_held(&self, mounted: &Mounted) -> bool {
        self.held.iter().any(|held| mounted.is_on(held.device, held.number))
    }

    fn has_number(&self, number: DeviceId) -> bool {
        self.held.iter().any(|held| held.device == number || held.number == Some(number))
    }

    fn is_behind(&self, number: DeviceId) -> bool {
        self.backing.iter().any(|backing| backing.number == number)
    }

    /// Loop devices on these files that are none of the devices.
    fn devices_beside(&self, backing: &Backing) -> Vec<String> {
        let others = loop_devices().into_iter().filter(|(name, file)| {
            let number = fs::read_to_string(format!("/sys/block/{name}/dev")).unwrap_or_default();
            let is_own = number.trim().parse().is_ok_and(|number| self.has_number(number));
            // Another mount namespace, or an earlier mount, may have had the same path.
            let is_there = || {
                let device = fs::File::open(Path::new("/dev").join(name)).ok()?;
                let number = sys::loop_file_device(&device).ok()?;
                Some(DeviceId::from_number(number) == backing.number)
            };
            file.starts_with(&backing.point) && !is_own && is_there() == Some(true)
        });
        others.map(|(name, file)| format!("the loop device {name} on {}", file.display())).collect()
    }

    /// How a process holds it.
    fn holds(&self, process: &Path, kinds: &Kinds) -> Option<String> {
        let places = [
            ("cwd", "its working directory there"),
            ("root", "its root directory there"),
            ("exe", "its program there"),
        ];
        let is_held = |link: &Path| kept(link).is_some_and(|about| self.is_file_of(&about, kinds));
        if let Some((_, how)) = places.into_iter().find(|(link, _)| is_held(&process.join(link))) {
            return Some(how.into());
        }
        for entry in fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten() {
            let about = fs::read_to_string(entry.path()).unwrap_or_default();
            let mount =
                about.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok());
            let kind = mount.and_then(|mount| kinds.get(&mount).copied());
            let link = process.join("fd").join(entry.file_name());
            let name = || fs::read_link(&link).unwrap_or_default();
            let found = match kind {
                Some(Kind::Held) => true,
                Some(Kind::Other) => false,
                Some(Kind::MayHaveDevices) => is_held(&link),
                // Of a mount that was detached, or of none: a pipe, a socket.
                None => name().is_absolute() && is_held(&link),
            };
            if found {
                return Some(format!("{} open", name().display()));
            }
        }
        None
    }

    fn is_file_of(&self, about: &Statx, kinds: &Kinds) -> bool {
        let of_mount = StatxFlags::from_bits_retain(about.stx_mask).contains(StatxFlags::MNT_ID)
            && kinds.get(&about.stx_mnt_id) == Some(&Kind::Held);
        let is_device = FileType::from_raw_mode(about.stx_mode.into()) == FileType::BlockDevice
            && self.has_number(DeviceId::new(about.stx_rdev_major, about.stx_rdev_minor));
        let file_system = DeviceId::new(about.stx_dev_major, about.stx_dev_minor);
        of_mount || is_device || self.has_number(file_system) || self.is_behind(file_system)
    }

    fn in_memory(&self, processes: &[u32]) -> Vec<String> {
        // The fourth field of a line is the device of the file that is mapped, in hexadecimal.
        let number = |line: &str| {
            let (major, minor) = line.split_whitespace().nth(3)?.split_once(':')?;
            let digits = |text| u32::from_str_radix(text, 16).ok();
            Some(DeviceId::new(digits(major)?, digits(minor)?))
        };
        let maps = |pid: &u32| {
            let maps = fs::read_to_string(directory(*pid).join("maps")).unwrap_or_default();
            maps.lines().filter_map(number).any(|number| self.has_number(number) || self.is_behind(number))
        };
        let holding = processes.iter().filter(|pid| maps(pid));
        holding.map(|&pid| format!("{} with a file mapped", name(pid))).collect()
    }
}

/// Returns the attributes that the kernel keeps of a file that a process has open. Its file system
/// is not asked.
fn kept(link: &Path) -> Option<Statx> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    statx(CWD, link, flags, StatxFlags::TYPE | StatxFlags::MNT_ID).ok()
}

/// The list as the operator reads it.
#[must_use]
pub fn words(holders: &[String]) -> String {
    let named: Vec<&str> = holders.iter().take(NAMED_MAX).map(String::as_str).collect();
    match holders.len().saturating_sub(NAMED_MAX) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn directory(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn name(pid: u32) -> String {
    let comm = fs::read_to_string(directory(pid).join("comm"));
    let comm = comm.map_or_else(|_| "a process".into(), |text| text.trim().to_owned());
    format!("{comm} (process {pid})")
}

/// The node's own agent and engine have devices open as a matter of course.
fn is_mainstay(process: &Path) -> bool {
    // For its whole command the memory of the process has to be still.
    if !fs::read(process.join("comm")).is_ok_and(|comm| comm.starts_with(b"mainstay")) {
        return false;
    }
    let Ok(line) = fs::read(process.join("cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    program.ends_with(b"mainstay") && words.any(|word| matches!(word, b"agent" | b"engine"))
}

/// Block devices that are made of it, and swap on it. `points`: where file systems on it are
/// mounted.
fn devices_on(device: DeviceId, points: &BTreeSet<PathBuf>) -> Vec<String> {
    let mut found = Vec::new();
    let about = PathBuf::from(format!("/sys/dev/block/{device}"));
    for entry in fs::read_dir(about.join("holders")).into_iter().flatten().flatten() {
        found.push(format!("the block device {}", entry.file_name().to_string_lossy()));
    }
    // The kernel names files without links in their paths.
    let link = fs::read_link(&about).ok();
    let node = link.as_deref().and_then(Path::file_name).map(|name| Path::new("/dev").join(name));
    let is_there =
        |file: &Path| node.as_deref() == Some(file) || points.iter().any(|point| file.starts_with(point));
    for (name, file) in loop_devices() {
        if is_there(&file) {
            found.push(format!("the loop device {name} on {}", file.display()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for file in swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        if is_there(Path::new(file)) {
            found.push(format!("swap on {file}"));
        }
    }
    found
}

/// Loop devices of this machine, with the files that they are on.
fn loop_devices() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let on = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        name.starts_with("loop").then(|| (name, PathBuf::from(file.trim_end())))
    };
    entries.filter_map(on).collect()
}

/// A user that the engine serves, as the operator reads it.
#[must_use]
pub fn served(user: &DeviceUser) -> String {
    match user.process {
        Some(process) => format!("{}, {}", user.what, name(process)),
        None => user.what.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{OFlag, open};
    use nix::mount::{MntFlags, MsFlags, mount, umount2};
    use nix::sys::stat::Mode;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Child, Command};

    fn search(directory: &Path) -> Search {
        let device = DeviceId::from_number(fs::metadata(directory).expect("it is there").dev());
        Search { held: vec![Held { device, number: None }], ..Search::default() }
    }

    fn end(mut child: Child) {
        child.kill().and_then(|()| child.wait()).expect("it ends");
    }

    /// A `sleep` with its name, which the kernel sets a moment after the program has begun.
    fn sleeping(command: &mut Command) -> Child {
        let child = command.arg("60").spawn().expect("sleep is there");
        let comm = format!("/proc/{}/comm", child.id());
        while fs::read_to_string(&comm).is_ok_and(|name| name.trim() != "sleep") {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_holder_is_named_with_the_file_or_directory_that_it_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut search = search(directory.path());
        let child = sleeping(Command::new("sleep").current_dir(directory.path()));
        let named = format!("sleep (process {}) with its working directory there", child.id());
        let found = search.holders().expect("it is known");
        search.except = BTreeSet::from([child.id()]);
        let without = search.holders().expect("it is known");
        end(child);
        assert!(found.contains(&named), "{found:?}");
        assert!(!without.contains(&named), "a process of the service itself is none");
    }

    /// A file system at a path of its own; gone when dropped.
    struct Mount(tempfile::TempDir);

    impl Mount {
        fn new(fstype: &str, data: &str) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            mount(Some("test"), directory.path(), Some(fstype), MsFlags::empty(), Some(data))
                .expect("it is mounted");
            Self(directory)
        }

        fn bound(point: &Path) -> Self {
            let directory = tempfile::tempdir().expect("a directory");
            mount(Some(point), directory.path(), None::<&str>, MsFlags::MS_BIND, None::<&str>)
                .expect("bound");
            Self(directory)
        }
    }

    impl Drop for Mount {
        fn drop(&mut self) {
            let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
        }
    }

    /// A volume whose device is a file of a FUSE file system can be opened beside the device.
    #[test]
    fn a_program_with_the_file_behind_a_device_open_is_a_user_and_the_mount_of_it_is_none() {
        let mounted = Mount::new("tmpfs", "");
        let file = mounted.0.path().canonicalize().expect("it is there").join("0");
        fs::write(&file, [0; 1 << 16]).expect("written");
        let search = Search { backing: backing(mounted.0.path()), ..Search::default() };
        assert_eq!(search.holders(), Ok(Vec::new()));
        let opened = fs::File::open(&file).expect("opened");
        let child = sleeping(Command::new("sleep").stdin(opened));
        let named = format!("sleep (process {}) with {} open", child.id(), file.display());
        let found = search.holders();
        end(child);
        assert_eq!(found, Ok(vec![named]));
        assert_eq!(search.holders(), Ok(Vec::new()));
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output().expect("it runs");
        let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let found = search.holders();
        let own = DeviceId::of(Path::new(&device)).map(|device| Held { device, number: None });
        let of_the_device = Search { held: own.into_iter().collect(), ..search }.holders();
        let ended = Command::new("losetup").arg("--detach").arg(&device).status();
        assert!(ended.is_ok_and(|status| status.success()), "{made:?}");
        let named = format!("the loop device {} on {}", device.trim_start_matches("/dev/"), file.display());
        assert_eq!(found, Ok(vec![named]));
        assert_eq!(of_the_device, Ok(Vec::new()), "the device itself is no user");
    }

    #[test]
    fn a_user_that_the_engine_serves_is_named_with_its_process() {
        let at = DeviceUser { what: "an NBD client at 10.0.0.9:4000".into(), process: None, follows: true };
        assert_eq!(served(&at), "an NBD client at 10.0.0.9:4000");
        let child = sleeping(&mut Command::new("sleep"));
        let near = DeviceUser { what: "an NBD client".into(), process: Some(child.id()), follows: true };
        let words = served(&near);
        let named = format!("an NBD client, sleep (process {})", child.id());
        end(child);
        assert_eq!(words, named);
    }

    /// A process in a mount namespace of its own, of which it has told that it is there.
    fn elsewhere(propagation: &str, within: &Path) -> Child {
        let mark = within.join(propagation);
        let script = format!(": > {}; exec sleep 60", mark.display());
        let mut command = Command::new("unshare");
        let child = command.args(["--mount", "--propagation", propagation, "sh", "-c", &script]).spawn();
        while !mark.exists() {
            std::thread::sleep(Duration::from_millis(10));
        }
        child.expect("unshare is installed")
    }

    /// Mounts on every host with systemd: `/` is shared, and units with directories of their own
    /// have it as slaves.
    #[test]
    fn a_propagated_mount_in_a_foreign_namespace_is_no_holder_and_a_private_one_is() {
        let (marks, above) = (tempfile::tempdir().expect("a directory"), Mount::new("tmpfs", ""));
        mount(None::<&str>, above.0.path(), None::<&str>, MsFlags::MS_SHARED, None::<&str>).expect("shared");
        let bind = Mount::bound(above.0.path());
        let point = above.0.path().canonicalize().expect("it is there").join("db");
        fs::create_dir(&point).expect("a directory");
        mount(Some("db"), &point, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("it is mounted");
        let search = Search { own: vec![point.clone()], ..search(&point) };
        let (goes_along, copy) = (search.holders(), bind.0.path().join("db"));
        let by_hand = Mount::bound(&point);
        let stays = search.holders();
        drop(by_hand);
        let (slave, earlier) = (elsewhere("slave", marks.path()), search.holders());
        let private = elsewhere("private", marks.path());
        let later = search.holders();
        end(private);
        let gone = umount2(&point, MntFlags::empty());
        end(slave);
        assert_eq!(goes_along, Ok(Vec::new()), "the copy at {} goes along", copy.display());
        assert!(stays.as_ref().is_ok_and(|found| found.len() == 1), "{stays:?}");
        assert_eq!(earlier, Ok(Vec::new()));
        assert!(
            later.as_ref().is_ok_and(|found| found[0].contains("in the mount namespace of")),
            "{later:?}"
        );
        assert_eq!(gone, Ok(()), "as the kernel has it");
    }

    #[test]
    fn a_hanging_foreign_file_system_does_not_delay_the_answer() {
        let Ok(device) = fs::File::options().read(true).write(true).open("/dev/fuse") else {
            return eprintln!("skipped: no FUSE here");
        };
        let (searched, data) = (
            Mount::new("tmpfs", ""),
            format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd()),
        );
        // Its server answers nothing.
        let hangs = Mount::new("fuse", &data);
        let file = open(hangs.0.path(), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).expect("opened");
        let (search, began) = (search(searched.0.path()), Instant::now());
        let found = std::thread::spawn(move || search.holders());
        while !found.is_finished() && began.elapsed() < PATIENCE * 2 {
            std::thread::sleep(Duration::from_millis(10));
        }
        let answered = found.is_finished();
        drop((file, device));
        let found = found.join().expect("it ends");
        assert!(answered, "it waited for the file system of others");
        assert!(found.as_ref().is_ok_and(|found| !found.is_empty()), "{found:?}");
    }

    #[test]
    fn many_holders_are_counted() {
        let many: Vec<String> = (1..=7).map(|n| n.to_string()).collect();
        assert_eq!(words(&many), "1, 2, 3, 4, 5 and 2 more");
        assert_eq!(words(&many[..2]), "1, 2");
    }
}
