//! Control groups (version 2) of a lab: `mainstay-lab-<name>/<node>/…`. Through them the lab finds,
//! freezes and kills all processes of a node at once, whatever names and parents they have.

use super::state::{Lab, cgroup_name};
use crate::failure::{Code, Context, Failure, Outcome};
use crate::members::cgroup_root;
pub use crate::members::is_frozen;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Group of a node's first process, engine, agent and `lab exec`. Services get groups beside it,
/// and no service name contains an underscore.
const OWN: &str = "_node";

pub fn of_lab(name: &str) -> Outcome<PathBuf> {
    Ok(cgroup_root()?.join(cgroup_name(name)))
}

pub fn create(lab: &Lab, node: &str) -> Outcome<()> {
    let group = lab.cgroup(node)?.join(OWN);
    std::fs::create_dir_all(&group).or_fail(Code::LabCgroup, || format!("make {}", group.display()))
}

/// Moves this process into the group that is the root of all groups that a node with systemd sees.
pub fn enter_root(lab: &Lab, node: &str) -> Outcome<()> {
    let file = lab.cgroup(node)?.join("cgroup.procs");
    std::fs::write(&file, "0").or_fail(Code::LabCgroup, || format!("enter {}", file.display()))
}

/// Moves this process into a node's group; it is killed with the node.
pub fn enter(lab: &Lab, node: &str) -> Outcome<()> {
    let file = lab.cgroup(node)?.join(OWN).join("cgroup.procs");
    std::fs::write(&file, "0").or_fail(Code::LabCgroup, || format!("enter {}", file.display()))
}

/// The group this process is in, as a way back to it. Open, because the path may mean something
/// else by then.
pub fn own() -> Outcome<File> {
    let groups =
        std::fs::read_to_string("/proc/self/cgroup").or_fail(Code::LabCgroup, || "read own group".into())?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    let file = cgroup_root()?.join(path).join("cgroup.procs");
    File::options().write(true).open(&file).or_fail(Code::LabCgroup, || format!("open {}", file.display()))
}

/// Moves this process back to the group that [`own`] has found.
pub fn leave_to(mut group: &File) -> Outcome<()> {
    group.write_all(b"0").or_fail(Code::LabCgroup, || "leave the node's group".into())
}

pub fn set_frozen(group: &Path, frozen: bool) -> Outcome<()> {
    let file = group.join("cgroup.freeze");
    std::fs::write(&file, if frozen { "1" } else { "0" })
        .or_fail(Code::LabCgroup, || format!("write {}", file.display()))
}

/// Whether a line of the group's events is set: `populated`, `frozen`.
pub fn event(group: &Path, name: &str) -> bool {
    let events = std::fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line.strip_prefix(name).is_some_and(|value| value.trim() == "1"))
}

/// Kills every process in the group and below, frozen or not, without waiting.
pub fn kill(group: &Path) -> Outcome<()> {
    if !group.exists() {
        return Ok(());
    }
    let file = group.join("cgroup.kill");
    std::fs::write(&file, "1").or_fail(Code::LabCgroup, || format!("write {}", file.display()))
}

/// Waits until the group has no process; false if the time is over.
pub fn wait_empty(group: &Path, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while event(group, "populated") {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Removes a group with all groups below it. They have to be empty of processes.
pub fn remove(group: &Path) -> Outcome<()> {
    let Ok(entries) = std::fs::read_dir(group) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove(&entry.path())?;
    }
    // A group stays busy for a moment after its last process has been reaped.
    for _ in 0..100 {
        match std::fs::remove_dir(group) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(10))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            other => return other.or_fail(Code::LabCgroup, || format!("remove {}", group.display())),
        }
    }
    Err(Failure::new(
        Code::LabCgroup,
        format!("{} stays busy", group.display()),
        "End the processes that its file cgroup.procs names, and run the command again.",
    ))
}

/// Processes in the group and below.
pub fn processes(group: &Path) -> Vec<u32> {
    let own = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<u32> = own.lines().filter_map(|line| line.parse().ok()).collect();
    if let Ok(entries) = std::fs::read_dir(group) {
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            pids.extend(processes(&entry.path()));
        }
    }
    pids
}
