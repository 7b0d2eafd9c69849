//! Removes a lab, or the remains of one. Finds everything by its name in the kernel, not only by
//! the state file.

use super::state::{LOCK_FILE, Lab, Lock, STATE_FILE};
use super::{cgroup, disk, fuse, network, node, state, tool};
use crate::failure::{Code, Context, Failure, Outcome};
use std::path::Path;
use std::time::Duration;

const DETACHED_WITHIN: Duration = Duration::from_secs(30);

/// Lists the remains of a lab of this name, in words; empty if there are none.
pub fn remains(base: &Path, name: &str) -> Outcome<Vec<String>> {
    let dir = base.join(name);
    let mut found = network::namespaces(name)?;
    let group = cgroup::of_lab(name)?;
    if group.exists() {
        found.push(group.display().to_string());
    }
    found.extend(disk::attached_below(&dir).iter().map(|device| device.display().to_string()));
    if dir.join(STATE_FILE).exists() {
        found.push(dir.display().to_string());
    }
    Ok(found)
}

/// Files are deleted only in a directory that a lab has made.
pub fn refuse_foreign(dir: &Path) -> Outcome<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    if names.iter().any(|name| name == STATE_FILE) || names.iter().all(|name| name == LOCK_FILE) {
        return Ok(());
    }
    Err(Failure::new(
        Code::LabDirForeign,
        format!("{} holds files that no lab has made", dir.display()),
        "Give another --name or --dir.",
    ))
}

pub fn run(base: &Path, name: &str) -> Outcome<()> {
    tool::check()?;
    let dir = base.join(name);
    refuse_foreign(&dir)?;
    if remains(base, name)?.is_empty() {
        return Err(Failure::new(
            Code::LabUnknown,
            format!("there is no lab `{name}` in {}", base.display()),
            "Give --name or --dir if it has another name or place.",
        ));
    }
    std::fs::create_dir_all(&dir).or_fail(Code::LabState, || format!("make {}", dir.display()))?;
    let _lock = Lock::take(base, name)?;
    remove(base, name)
}

fn connections_of(group: &Path) -> Vec<u32> {
    let mut all: Vec<u32> = cgroup::processes(group).into_iter().flat_map(fuse::connections).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Removes everything, going on after failures so that as little as possible stays; returns the
/// first.
pub fn remove(base: &Path, name: &str) -> Outcome<()> {
    let dir = base.join(name);
    let group = cgroup::of_lab(name)?;
    let mut connections = vec![];
    let mut xfs_push_before = None;
    // A state file that cannot be read names nothing more. The processes that still live can be
    // asked.
    if let Ok(mut lab) = Lab::load(base, name) {
        for node in &mut lab.nodes {
            let seen = connections_of(&group.join(&node.name));
            node.fuse.extend(seen);
            connections.append(&mut node.fuse.clone());
        }
        lab.save()?;
        xfs_push_before = lab.xfs_push_before.take();
    } else {
        connections = connections_of(&group);
    }
    connections.sort_unstable();
    connections.dedup();
    let mut result = node::kill_and_wait(&group, &connections);
    let left = disk::wait_detached(&dir, DETACHED_WITHIN);
    if !left.is_empty() {
        let message = format!("loop devices are still in use: {left:?}");
        result = result.and(Err(Failure::new(Code::LabDiskBusy, message, "Try again in a moment.")));
    }
    for namespace in network::namespaces(name)? {
        result = result.and(network::delete_namespace(&namespace));
    }
    result = result.and(cgroup::remove(&group));
    if let Some(before) = xfs_push_before
        && state::others(base, name).next().is_none()
    {
        result = result.and(disk::restore_xfs_push(&before));
    }
    // The state file stays until all that it stands for is gone, so that the next `down` finds
    // that.
    result?;
    std::fs::remove_dir_all(&dir).or_fail(Code::LabState, || format!("remove {}", dir.display()))?;
    // Other labs may live beside it; then this refuses, as it should.
    let _ = std::fs::remove_dir(base);
    Ok(())
}
