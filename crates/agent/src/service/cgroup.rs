//! The cgroups in which services live.
//!
//! Guarantees
//! - A kill succeeds only when no process is left in the cgroups and below (R19).
//! - A cgroup that cannot be read counts as populated (R19).

use nix::sys::signal::{Signal, kill as send};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(5);

#[derive(Debug, thiserror::Error)]
#[error("the processes in {0} could not be killed; they count as running")]
pub struct Unkillable(PathBuf);

/// Kills every process in `cgroups` and below, all at once, and waits until none is left.
///
/// # Errors
/// When some process does not go away within `patience`.
pub fn kill<P: AsRef<Path>>(cgroups: &[P], patience: Duration) -> Result<(), Unkillable> {
    let deadline = Instant::now() + patience;
    loop {
        let mut left = None;
        for cgroup in cgroups.iter().map(AsRef::as_ref).filter(|cgroup| is_populated(cgroup)) {
            if fs::write(cgroup.join("cgroup.kill"), "1").is_err() {
                // Kernels before 5.14 have no cgroup.kill.
                for pid in pids(cgroup).into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
                    let _ = send(Pid::from_raw(pid), Signal::SIGKILL);
                }
            }
            left = Some(cgroup);
        }
        let Some(left) = left else { return Ok(()) };
        if Instant::now() >= deadline {
            return Err(Unkillable(left.to_path_buf()));
        }
        std::thread::sleep(POLL);
    }
}

/// Whether any process lives in `cgroup` or below.
#[must_use]
pub fn is_populated(cgroup: &Path) -> bool {
    match fs::read_to_string(cgroup.join("cgroup.events")) {
        Ok(events) => !events.lines().any(|line| line == "populated 0"),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// The processes in `cgroup` and below.
#[must_use]
pub fn pids(cgroup: &Path) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = fs::read_to_string(cgroup.join("cgroup.procs"))
        .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
        .unwrap_or_default();
    for below in below(cgroup) {
        found.append(&mut pids(&below));
    }
    found
}

/// Removes `cgroup` and all below it, as far as they are empty.
pub fn remove(cgroup: &Path) {
    for below in below(cgroup) {
        remove(&below);
    }
    drop(fs::remove_dir(cgroup));
}

fn below(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}
