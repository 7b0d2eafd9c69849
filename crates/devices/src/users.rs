//! Services that use the devices of this node. They are killed before a device fails, so that none
//! of them sees the failure.
//!
//! Guarantee: [`Users::kill`] returns when SIGKILL has been sent to every process
//! of the services on a resource. Where that was not possible, the log says why. It does not wait
//! for the processes to end. A process with SIGKILL pending does not return to its own code,
//! whatever it is answered, so it can acknowledge nothing any more. The engine calls it before it
//! makes a device fail.
//!
//! Why: a file system whose device fails shuts down. XFS (seen on Linux 6.18) may then report
//! content as on the device that is not there.
//!
//! The guard's list names these services: no step of a service begins before the engine has
//! confirmed that the service is on that list. The list is noted in the run directory before it is
//! confirmed, because it outlives the engine. The next engine may have to end devices before an
//! agent has talked to it. When there is no next engine, the agent ends them.

use mainstay_api::engine::GuardEntry;
use mainstay_types::ResourceId;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Below the run directory.
const FILE: &str = "users.json";

/// List of the services that is noted in a run directory.
#[derive(Clone, Debug)]
pub struct Users {
    file: PathBuf,
}

impl Users {
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self { file: run_dir.join(FILE) }
    }

    /// Replaces what was noted before.
    ///
    /// # Errors
    /// When it cannot be written: then no service may begin.
    pub fn note(&self, entries: &[GuardEntry]) -> io::Result<()> {
        // Under another name first: an engine may die at any time. The run directory does not
        // outlive a power cut, nor do processes.
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, serde_json::to_vec(entries)?)?;
        fs::rename(fresh, &self.file)
    }

    /// Sends SIGKILL to all processes of the services on `resource`.
    pub fn kill(&self, resource: ResourceId) {
        let entries = match self.entries() {
            Ok(entries) => entries,
            Err(error) => {
                tracing::error!(file = %self.file.display(), %error, "cannot read the users of devices: the devices fail under them");
                return;
            }
        };
        let users = entries.iter().filter(|entry| entry.resource == resource);
        for cgroup in users.flat_map(|entry| &entry.cgroups).map(Path::new) {
            match kill_cgroup(cgroup) {
                Ok(()) => {
                    tracing::warn!(%resource, cgroup = %cgroup.display(), "its device is about to fail: killed")
                }
                Err(error) => {
                    tracing::error!(%resource, cgroup = %cgroup.display(), %error, "its device fails, and it could not be killed");
                }
            }
        }
    }

    /// Entries that were noted last; empty if none ever were.
    ///
    /// # Errors
    /// When they cannot be read or understood.
    pub fn entries(&self) -> io::Result<Vec<GuardEntry>> {
        match fs::read(&self.file) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
            // No service has ever run here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Sends SIGKILL to all processes in a cgroup of version 2, nested ones included.
///
/// # Errors
/// When the kernel refuses. A cgroup that is not there has no processes.
pub fn kill_cgroup(cgroup: &Path) -> io::Result<()> {
    match fs::write(cgroup.join("cgroup.kill"), "1") {
        Err(error) if cgroup.exists() => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(resource: u64, cgroup: &Path) -> GuardEntry {
        GuardEntry {
            resource: ResourceId(resource),
            cgroups: vec![cgroup.to_str().expect("text").into()],
            ..GuardEntry::default()
        }
    }

    #[test]
    fn only_the_users_of_the_resource_are_killed_also_by_a_later_process() {
        let dir = std::env::temp_dir().join(format!("mainstay-users-{}", std::process::id()));
        // A directory instead of a cgroup: what is written stays to be seen.
        let cgroups = [1, 2].map(|number| dir.join(number.to_string()));
        cgroups.iter().for_each(|cgroup| fs::create_dir_all(cgroup).expect("a directory"));
        let killed = |number: usize| cgroups[number].join("cgroup.kill").exists();
        Users::new(&dir).kill(ResourceId(1));
        assert!(!killed(0), "no user is known");
        Users::new(&dir).note(&[entry(1, &cgroups[0]), entry(2, &cgroups[1])]).expect("noted");
        Users::new(&dir).kill(ResourceId(3));
        assert!(!killed(0) && !killed(1));
        Users::new(&dir).kill(ResourceId(2));
        assert!(!killed(0) && killed(1));
        Users::new(&dir).note(&[]).expect("noted");
        Users::new(&dir).kill(ResourceId(1));
        assert!(!killed(0), "it is silent");
        fs::remove_dir_all(&dir).expect("removed");
    }
}
