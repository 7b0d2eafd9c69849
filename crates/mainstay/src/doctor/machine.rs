//! The machine: user, name, kernel, clock, programs.

use super::{Node, Row};
use mainstay_devices::clock::is_synchronised;
use mainstay_engine::frontend::{self, DeviceOption};
use mainstay_engine::lease_file::is_in_memory;
use mainstay_engine::ring::Ring;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Locked memory that virtual machines and large queues may take, in KiB.
const MEMLOCK_KIB: u64 = 64 << 10;

pub fn rows(node: &Node) -> Vec<Row> {
    vec![
        root(),
        name(),
        io_uring(),
        devices(),
        cgroup(),
        clock(),
        run_dir(&node.run_dir),
        memlock(),
        xfs(),
        ext4(),
    ]
}

fn root() -> Row {
    match fs::metadata("/proc/self").map(|own| own.uid()) {
        Ok(0) => Row::ok("root", "this user is root"),
        _ => Row::fails(
            "root",
            "this user is not root",
            "engine and agent cannot make devices, mounts and addresses, and some checks below cannot be made",
            "Run the command as root, for example with sudo.",
        ),
    }
}

fn name() -> Row {
    let found = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name_of(found.trim())
}

fn name_of(host: &str) -> Row {
    if mainstay_ha::valid_name(host) {
        return Row::ok("name", format!("{host} can be the name of a node"));
    }
    let short: String = host.to_lowercase().split('.').next().unwrap_or_default().chars().take(32).collect();
    let instead = if mainstay_ha::valid_name(&short) { short } else { "n1".to_owned() };
    Row::warning(
        "name",
        format!(
            "{host} cannot be the name of a node: names have 1 to 32 characters out of a-z, 0-9 and the dash"
        ),
        "the node needs another name than its machine",
        format!("Give it with --as when the node is made a member, for example --as {instead}."),
    )
}

fn io_uring() -> Row {
    match Ring::new() {
        Ok(_) => Row::ok("io_uring", "the kernel has what the engine needs"),
        Err(error) => Row::fails(
            "io_uring",
            crate::failure::chain(&error),
            "the engine does not start",
            "Use Linux 6.1 or newer. If io_uring is switched off: sysctl -w kernel.io_uring_disabled=0",
        ),
    }
}

fn devices() -> Row {
    let choice = frontend::choose(DeviceOption::Auto, frontend::probe);
    match choice {
        Ok(choice) => match choice.kind {
            Some(kind) => Row::ok("devices", format!("volumes become devices by {kind}: {}", choice.reason)),
            None => no_devices(&choice.reason),
        },
        Err(error) => no_devices(&error.to_string()),
    }
}

fn no_devices(reason: &str) -> Row {
    Row::fails(
        "devices",
        format!("volumes cannot become devices: {reason}"),
        "the node can keep replicas and cannot be primary",
        "Load a driver: modprobe --all fuse loop; on Linux 6.12 or newer better: modprobe ublk_drv",
    )
}

fn cgroup() -> Row {
    match mainstay_cli::members::cgroup_root() {
        Ok(root) if root.join("cgroup.kill").exists() || has_kill(&root) => {
            Row::ok("cgroup", format!("control groups of version 2 are at {}", root.display()))
        }
        Ok(root) => Row::warning(
            "cgroup",
            format!("the control groups at {} cannot be killed as a whole", root.display()),
            "processes of services are killed one by one, which takes longer",
            "Use Linux 5.14 or newer.",
        ),
        Err(failure) => Row::fails(
            "cgroup",
            failure.problem.message,
            "no service can run on this node",
            "Mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        ),
    }
}

/// The root group has no such file, so any group below tells.
fn has_kill(root: &Path) -> bool {
    let Ok(entries) = fs::read_dir(root) else { return true };
    let mut groups = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).peekable();
    groups.peek().is_none() || groups.any(|group| group.join("cgroup.kill").exists())
}

fn clock() -> Row {
    match is_synchronised() {
        Ok(true) => Row::ok("clock", "a time service keeps it right"),
        Ok(false) => Row::warning(
            "clock",
            "the kernel says that no time service keeps it right",
            "times of events and of scheduled scrubs differ between nodes; failover does not depend on them",
            "Run a time service: apt-get install chrony",
        ),
        Err(error) => Row::warning(
            "clock",
            format!("the kernel does not say whether it is right: {error}"),
            "times of events may differ between nodes; failover does not depend on them",
            "Ask the time service: timedatectl",
        ),
    }
}

fn run_dir(run_dir: &Path) -> Row {
    let there = run_dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if is_in_memory(there) {
        return Row::ok("run", format!("{} is in memory", run_dir.display()));
    }
    Row::warning(
        "run",
        format!("{} is on a disk", run_dir.display()),
        "a disk that hangs holds up the thread that silences this node",
        "Choose a directory below /run with the key run_dir of the configuration, and mount /run as tmpfs.",
    )
}

fn memlock() -> Row {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    let limit = line.and_then(|line| line.split_whitespace().next()).unwrap_or("unlimited");
    match limit.parse::<u64>() {
        Ok(bytes) if bytes / 1024 < MEMLOCK_KIB => Row::warning(
            "memlock",
            format!("this shell may lock {} KiB of memory", bytes / 1024),
            "an engine that is started from it may lack memory for its queues; the unit of the package is not concerned",
            "Start the engine by its unit, or first run: ulimit -l unlimited",
        ),
        _ => Row::ok("memlock", "enough memory can be locked"),
    }
}

fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin", "/usr/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(usual).map(|dir| dir.join(name)).find(|path| path.is_file())
}

fn of_package(name: &str, package: &str, costs: &str) -> Row {
    match program(name) {
        Some(path) => Row::ok(name, path.display().to_string()),
        None => Row::warning(
            name,
            "there is no such program",
            costs,
            format!("Install it: apt-get install {package}"),
        ),
    }
}

fn xfs() -> Row {
    of_package(
        "mkfs.xfs",
        "xfsprogs",
        "a service with `mkfs` on a volume without a file system does not start here",
    )
}

fn ext4() -> Row {
    of_package("mkfs.ext4", "e2fsprogs", "a service with `mkfs` and `fstype = \"ext4\"` does not start here")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_host_name_with_dots_is_no_name_of_a_node() {
        assert_eq!(name_of("db1").verdict, Verdict::Ok);
        let row = name_of("DB1.example.net");
        assert!(row.verdict == Verdict::Warning && row.remedy.contains("--as db1."), "{row:?}");
        assert!(name_of("_.x").remedy.contains("--as n1"));
    }
}
