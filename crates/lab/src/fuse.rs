//! FUSE connections of a node. The last process of a node unmounts the node's mounts. If such a
//! mount lies on a volume, that process waits for the engine's file system. The engine is dead
//! then. But its end of the connection may close only later, through the very process that waits.
//! Aborting the connection ends the wait.

use crate::failure::{Code, Context, Outcome};
use crate::program;
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Connection numbers of the FUSE file systems that a process sees and this one does not: a node's
/// own.
pub fn connections(pid: u32) -> Vec<u32> {
    let outside = seen_by("self");
    seen_by(&pid.to_string()).into_iter().filter(|connection| !outside.contains(connection)).collect()
}

/// The number is the minor part of the mount's device number.
fn seen_by(process: &str) -> Vec<u32> {
    let mounts = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    let connection = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        if kind != "fuse" && kind != "fuseblk" && !kind.starts_with("fuse.") {
            return None;
        }
        left.split(' ').nth(2)?.split_once(':')?.1.parse().ok()
    };
    mounts.lines().filter_map(connection).collect()
}

/// Aborts connections in a process of its own, because the control file system has to be mounted
/// for it, and no trace of that may remain.
pub fn abort(connections: &[u32]) -> Outcome<()> {
    if connections.is_empty() {
        return Ok(());
    }
    let numbers = connections.iter().map(u32::to_string);
    // By this name the program is found even if its file has been replaced meanwhile.
    program::again("/proc/self/exe", "fuse-abort")
        .args(numbers)
        .status()
        .or_fail(Code::LabFuse, || "abort file system connections".into())
        .map(drop)
}

/// The part of [`abort`] that runs in its own process.
pub fn abort_here(connections: &[u32]) -> Outcome<()> {
    let nothing = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS)
        .and_then(|()| mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing))
        .and_then(|()| {
            match mount(
                Some("fusectl"),
                "/sys/fs/fuse/connections",
                Some("fusectl"),
                MsFlags::empty(),
                nothing,
            ) {
                // It is mounted there already, as on most machines.
                Err(Errno::EBUSY) => Ok(()),
                other => other,
            }
        })
        .or_fail(Code::LabFuse, || "mount the FUSE control file system".into())?;
    for connection in connections {
        // A connection that has ended by itself is as good.
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
    Ok(())
}
