//! Processes, mounts and devices that hold a file system or a block device, in words for the operator.
//!
//! What cannot be looked at is left out: a process may end at any moment.

use super::mount_table::{DeviceId, MountTable};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Most holders that are named; the others are counted.
const NAMED_MAX: usize = 5;

/// What a holder is asked about.
#[derive(Clone, Debug)]
pub struct Held {
    device: DeviceId,
    /// `stat` gives this number for every file of the file system. It is the device's own but for btrfs.
    files: u64,
    path: Option<PathBuf>,
}

impl Held {
    /// The file system on `device` that is mounted at `path`.
    #[must_use]
    pub fn file_system(path: &Path, device: DeviceId) -> Self {
        let files = fs::metadata(path).map_or(0, |found| found.dev());
        Self { device, files, path: Some(path.to_path_buf()) }
    }

    /// The block device itself, and every file system on it.
    #[must_use]
    pub fn device(device: DeviceId) -> Self {
        Self { device, files: 0, path: None }
    }

    fn is_file_of(&self, link: &Path) -> bool {
        let Ok(found) = fs::metadata(link) else { return false };
        let is_device =
            found.file_type().is_block_device() && DeviceId::from_number(found.rdev()) == self.device;
        is_device || self.has_number(found.dev())
    }

    fn has_number(&self, number: u64) -> bool {
        number != 0 && (number == self.files || DeviceId::from_number(number) == self.device)
    }
}

/// Everything that holds it but the processes `except`. A mount at `own` in this mount namespace is not counted.
#[must_use]
pub fn holders(held: &Held, except: &BTreeSet<u32>, own: Option<&Path>) -> Vec<String> {
    let mut found = Vec::new();
    let mut namespaces = BTreeSet::new();
    if let Ok(link) = fs::read_link("/proc/self/ns/mnt") {
        namespaces.insert(link);
    }
    if let Ok(table) = MountTable::read() {
        let others =
            table.iter().filter(|mounted| mounted.is_on(held.device) && own != Some(&*mounted.point));
        found.extend(others.map(|mounted| format!("a mount at {}", mounted.point.display())));
    }
    for pid in processes() {
        let process = PathBuf::from(format!("/proc/{pid}"));
        if except.contains(&pid) || is_mainstay(&process) {
            continue;
        }
        let name = || format!("{} (process {pid})", comm(&process));
        if let Some(how) = holds(held, &process) {
            found.push(format!("{} with {how}", name()));
        }
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else { continue };
        if !namespaces.contains(&namespace)
            && let Ok(table) = MountTable::of_process(&process)
        {
            namespaces.insert(namespace);
            if let Some(mounted) = table.iter().find(|mounted| mounted.is_on(held.device)) {
                let point = mounted.point.display();
                found.push(format!("a mount at {point} in the mount namespace of {}", name()));
            }
        }
    }
    found.extend(devices_on(held));
    found
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

/// The processes in a cgroup, nested ones included.
#[must_use]
pub fn in_cgroup(cgroup: &Path) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = fs::read_to_string(cgroup.join("cgroup.procs"))
        .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
        .unwrap_or_default();
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.append(&mut in_cgroup(&entry.path()));
        }
    }
    found
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn comm(process: &Path) -> String {
    fs::read_to_string(process.join("comm"))
        .map_or_else(|_| "a process".into(), |text| text.trim().to_owned())
}

/// The node's own agent and engine have devices open as a matter of course.
fn is_mainstay(process: &Path) -> bool {
    let Ok(line) = fs::read(process.join("cmdline")) else { return false };
    let mut words = line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default();
    program.ends_with(b"mainstay") && words.any(|word| matches!(word, b"agent" | b"engine"))
}

/// How a process holds it.
fn holds(held: &Held, process: &Path) -> Option<String> {
    let places = [
        ("cwd", "its working directory there"),
        ("root", "its root directory there"),
        ("exe", "its program there"),
    ];
    for (link, how) in places {
        if held.is_file_of(&process.join(link)) {
            return Some(how.into());
        }
    }
    for entry in fs::read_dir(process.join("fd")).into_iter().flatten().flatten() {
        if held.is_file_of(&entry.path()) {
            let name = fs::read_link(entry.path()).unwrap_or_default();
            return Some(format!("{} open", name.display()));
        }
    }
    // The fourth field of a line is the device of the file that is mapped, in hexadecimal.
    let maps = fs::read_to_string(process.join("maps")).ok()?;
    let is_mapped = maps.lines().any(|line| {
        let device = line.split_whitespace().nth(3).and_then(|field| field.split_once(':'));
        let numbers = device
            .and_then(|(a, b)| Some((u64::from_str_radix(a, 16).ok()?, u64::from_str_radix(b, 16).ok()?)));
        numbers.is_some_and(|(major, minor)| held.has_number(nix::sys::stat::makedev(major, minor)))
    });
    is_mapped.then(|| "a file mapped".into())
}

/// Block devices that are made of it, and swap on it.
fn devices_on(held: &Held) -> Vec<String> {
    let mut found = Vec::new();
    let holders = format!("/sys/dev/block/{}/holders", held.device);
    for entry in fs::read_dir(holders).into_iter().flatten().flatten() {
        found.push(format!("the block device {}", entry.file_name().to_string_lossy()));
    }
    for entry in fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let file = fs::read_to_string(entry.path().join("loop/backing_file"));
        let Some(file) = file.ok().filter(|_| name.starts_with("loop")) else { continue };
        let file = Path::new(file.trim_end());
        let of_mount = held.path.as_deref().is_some_and(|path| file.starts_with(path));
        if of_mount || DeviceId::of(file).is_ok_and(|device| device == held.device) {
            found.push(format!("the loop device {name} on {}", file.display()));
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for file in swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()) {
        let of_mount = held.path.as_deref().is_some_and(|path| Path::new(file).starts_with(path));
        if of_mount || DeviceId::of(Path::new(file)).is_ok_and(|device| device == held.device) {
            found.push(format!("swap on {file}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_named_with_what_it_holds() {
        let directory = tempfile::tempdir().expect("a directory");
        let device = DeviceId::from_number(fs::metadata(directory.path()).expect("it is there").dev());
        let held = Held::file_system(directory.path(), device);
        let mut child =
            Command::new("sleep").arg("60").current_dir(directory.path()).spawn().expect("sleep is there");
        let named = format!("sleep (process {}) with its working directory there", child.id());
        let found = holders(&held, &BTreeSet::new(), None);
        let without = holders(&held, &BTreeSet::from([child.id()]), None);
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(found.contains(&named), "{found:?}");
        assert!(!without.contains(&named), "a process of the service itself is none");
    }

    #[test]
    fn many_holders_are_counted() {
        let many: Vec<String> = (1..=7).map(|n| n.to_string()).collect();
        assert_eq!(words(&many), "1, 2, 3, 4, 5 and 2 more");
        assert_eq!(words(&many[..2]), "1, 2");
    }
}
