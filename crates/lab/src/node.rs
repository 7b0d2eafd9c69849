//! A node's power: start and power cut, pause and resume.

use super::state::{Lab, Node, STATE_DIR};
use super::{cgroup, disk, fuse, network, program};
use crate::failure::{Code, Context, Failure, Outcome};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// How long the kernel gets to take everything down.
const GONE_WITHIN: Duration = Duration::from_secs(30);

pub fn image(lab: &Lab, node: &str) -> PathBuf {
    lab.node_dir(node).join("disk.img")
}

/// Returns the directory that a node has as its disk, where the disk is not an image.
pub fn directory(lab: &Lab, node: &str) -> PathBuf {
    lab.node_dir(node).join("disk")
}

pub fn log_dir(lab: &Lab, node: &str) -> PathBuf {
    lab.node_dir(node).join("log")
}

/// Plugs the node in, attaches its disk and starts its first process.
pub fn start(lab: &mut Lab, name: &str) -> Outcome<()> {
    let node = lab.node(name)?.clone();
    if lab.init_pid(&node).is_some() {
        let message = format!("{name} runs already");
        return Err(Failure::new(
            Code::LabNodeRuns,
            message,
            format!("mainstay lab status --name {}", lab.name),
        ));
    }
    // If a first process died by itself, the rest of its node is still there.
    clear(lab, name)?;
    let booted = boot(lab, &node);
    if booted.is_err() {
        clear(lab, name)?;
    }
    lab.node_mut(name)?.init = Some(booted?);
    lab.save()
}

/// Returns the process id of the node's first process once it has mounted everything.
fn boot(lab: &Lab, node: &Node) -> Outcome<u32> {
    cgroup::create(lab, &node.name)?;
    network::plug(lab, &lab.port(&node.name)?)?;
    // Held until the node has mounted it.
    let image = if lab.directories { None } else { Some(disk::attach(&image(lab, &node.name))?) };
    let disk = image.as_ref().map_or_else(|| directory(lab, &node.name), |image| image.path.clone());
    let log_path = log_dir(lab, &node.name).join("init.log");
    let log = OpenOptions::new().create(true).append(true).open(&log_path);
    let log = log.or_fail(Code::LabNode, || format!("open {}", log_path.display()))?;
    let exe = std::env::current_exe().or_fail(Code::LabNode, || "find this program".into())?;
    let mut child = program::again(exe, "node")
        .arg("--lab-dir")
        .arg(&lab.dir)
        .args(["--self", &node.name])
        .arg("--disk")
        .arg(&disk)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
        .or_fail(Code::LabNode, || format!("start {}", node.name))?;
    let (mut pid, mut ready) = (None, false);
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            match line.split_once(' ') {
                Some(("pid", number)) => pid = number.parse().ok(),
                _ => ready |= line == "ready",
            }
        }
    }
    let _ = child.wait();
    match pid {
        Some(pid) if ready => Ok(pid),
        _ => {
            let said = super::logs::tail(&log_path, 1).join("\n");
            let remedy = format!("Its log is {}.", log_path.display());
            Err(Failure::new(Code::LabNodeStart, format!("{} did not start: {said}", node.name), remedy))
        }
    }
}

/// Cuts the power of a node, in this order: its processes freeze, its link goes down, its disk
/// image takes no more writes, and its processes are killed.
pub fn power_cut(lab: &mut Lab, name: &str) -> Outcome<()> {
    let node = lab.node(name)?.clone();
    let Some(pid) = lab.init_pid(&node) else {
        if node.init.is_none() {
            return lab.running(&node).map(drop);
        }
        clear(lab, name)?;
        lab.node_mut(name)?.init = None;
        return Ok(());
    };
    let group = lab.cgroup(name)?;
    // Written down first: when the processes are half dead, they can no longer be asked.
    lab.node_mut(name)?.fuse = fuse::connections(pid);
    lab.save()?;
    cgroup::set_frozen(&group, true)?;
    let link = network::link_down(lab, name);
    let mounted = format!("/proc/{pid}/root{STATE_DIR}");
    let disk = if lab.directories { Ok(()) } else { disk::power_cut(Path::new(&mounted)) };
    cgroup::kill(&group)?;
    clear(lab, name)?;
    lab.node_mut(name)?.init = None;
    link.and(disk)
}

/// Kills the processes of a node, waits until it is gone with its mounts and devices, and unplugs
/// it.
fn clear(lab: &mut Lab, name: &str) -> Outcome<()> {
    let group = lab.cgroup(name)?;
    kill_and_wait(&group, &lab.node(name)?.fuse)?;
    lab.node_mut(name)?.fuse.clear();
    network::unplug(lab, name)?;
    let left = disk::wait_detached(&lab.node_dir(name), GONE_WITHIN);
    if !left.is_empty() {
        let message = format!("the disk of {name} is still in use as {left:?}");
        return Err(Failure::new(
            Code::LabDiskBusy,
            message,
            "Look for what holds it: lsof, /proc/*/mountinfo.",
        ));
    }
    cgroup::remove(&group)
}

/// Kills every process in a group, ends its FUSE connections and returns when no process is left.
pub fn kill_and_wait(group: &Path, connections: &[u32]) -> Outcome<()> {
    if !cgroup::event(group, "populated") {
        return Ok(());
    }
    cgroup::kill(group)?;
    fuse::abort(connections)?;
    if cgroup::wait_empty(group, GONE_WITHIN) {
        return Ok(());
    }
    let message = format!("processes {:?} do not die", cgroup::processes(group));
    Err(Failure::new(Code::LabProcessStuck, message, "They wait for a device; `dmesg` may say which."))
}

/// Stops all processes of a node where they stand, or lets them go on.
pub fn freeze(lab: &Lab, name: &str, frozen: bool) -> Outcome<()> {
    lab.running(lab.node(name)?)?;
    let group = lab.cgroup(name)?;
    if cgroup::is_frozen(&group) == frozen {
        let message = format!("{name} is {}", if frozen { "paused already" } else { "not paused" });
        return Err(Failure::new(
            Code::LabNodePaused,
            message,
            format!("mainstay lab status --name {}", lab.name),
        ));
    }
    cgroup::set_frozen(&group, frozen)?;
    // A process that waits for a device freezes only after that. It does no work meanwhile either.
    let deadline = Instant::now() + Duration::from_secs(1);
    while cgroup::event(&group, "frozen") != frozen && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
