//! Steps by which guard and silencer silence this node. Each has a bounded wait.

use super::GuardTarget;
use crate::addresses::{AddressThread, Wanted};
use crate::mount_table::{self, DeviceId};
use crate::ring::now;
use mainstay_devices::users::kill_cgroup;
use mainstay_silence::{GUARD_MARGIN_MS, SILENCER_MARGIN_MS};
use mainstay_types::{ResourceId, Time};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long killed processes are waited for before the devices fail regardless: a process that
/// waits for a device dies only when that answers.
const KILL_WAIT_MS: u64 = 150;
const KILL_POLL: Duration = Duration::from_millis(2);
/// How long the kernel may take to remove addresses before the kill goes on without.
const ADDRESSES_WAIT_MS: u64 = 150;

const _: () = assert!(KILL_WAIT_MS < GUARD_MARGIN_MS / 2);
const _: () = assert!(ADDRESSES_WAIT_MS + KILL_WAIT_MS < GUARD_MARGIN_MS);
const _: () = assert!(ADDRESSES_WAIT_MS < SILENCER_MARGIN_MS);

/// Result of a silencing by the guard. The shard gets it and then fails the devices of all
/// resources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Silenced {
    /// End of the lease that was not renewed.
    pub until: Time,
    pub began: Time,
    pub addresses_gone: Time,
    pub processes_gone: Time,
    /// Steps that failed, in words.
    pub problems: Vec<String>,
    /// Targets that are not wholly silent, each reduced to its parts that are still there.
    pub left: Vec<GuardTarget>,
    /// Something of `left` has not even SIGKILL pending.
    pub failed: bool,
}

impl Silenced {
    /// A silencing for a lease that ends at `until`, before its first step.
    pub(super) fn begins(until: Time) -> Self {
        let (began, left) = (now(), Vec::new());
        let [addresses_gone, processes_gone] = [began; 2];
        Self { until, began, addresses_gone, processes_gone, problems: Vec::new(), left, failed: false }
    }

    pub(super) fn remove_addresses(
        &mut self,
        targets: &[GuardTarget],
        addresses: &mut AddressThread,
        wanted: &Wanted,
    ) {
        let all = targets.iter().flat_map(|target| target.addresses.clone()).collect();
        self.problems = addresses.remove(all, wanted, Duration::from_millis(ADDRESSES_WAIT_MS));
        self.failed = !self.problems.is_empty();
        if self.failed {
            let with_addresses = targets.iter().filter(|target| !target.addresses.is_empty());
            self.left.extend(with_addresses.map(|target| GuardTarget {
                addresses: target.addresses.clone(),
                ..GuardTarget::nothing_of(target.resource)
            }));
        }
        self.addresses_gone = now();
    }

    pub(super) fn kill_processes(&mut self, targets: &[GuardTarget]) {
        let of = |target: &GuardTarget| {
            let resource = target.resource;
            target.cgroups.clone().into_iter().map(move |cgroup| (resource, cgroup))
        };
        let cgroups: Vec<(ResourceId, PathBuf)> = targets.iter().flat_map(of).collect();
        let mut there = BTreeSet::new();
        for (resource, cgroup) in &cgroups {
            if let Err(error) = kill_cgroup(cgroup) {
                self.problems.push(format!("cgroup {}: {error}", cgroup.display()));
                self.failed = true;
                there.insert((resource, cgroup));
            }
        }
        let end = self.addresses_gone.plus_ms(KILL_WAIT_MS);
        for (resource, cgroup) in &cgroups {
            while populated(cgroup) {
                if now() >= end {
                    self.problems.push(format!("cgroup {} still has processes", cgroup.display()));
                    there.insert((resource, cgroup));
                    break;
                }
                thread::sleep(KILL_POLL);
            }
        }
        self.left.extend(there.into_iter().map(|(resource, cgroup)| GuardTarget {
            cgroups: vec![cgroup.clone()],
            ..GuardTarget::nothing_of(*resource)
        }));
        self.processes_gone = now();
    }
}

pub(crate) fn silence(
    until: Time,
    targets: &[GuardTarget],
    addresses: &mut AddressThread,
    wanted: &Wanted,
) -> Silenced {
    let mut silenced = Silenced::begins(until);
    silenced.remove_addresses(targets, addresses, wanted);
    silenced.kill_processes(targets);
    silenced
}

/// Whether a cgroup, nested ones included, has live processes.
pub(super) fn populated(cgroup: &Path) -> bool {
    fs::read_to_string(cgroup.join("cgroup.events"))
        .is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
}

/// A mount point, and the device that a mount there must be on to be a service's own (R27).
pub(crate) type GuardedMount = (PathBuf, DeviceId);

pub(crate) fn guarded_mounts(targets: &[GuardTarget]) -> Vec<GuardedMount> {
    let of_target = |target: &GuardTarget| {
        let devices: Vec<DeviceId> =
            target.devices.iter().filter_map(|link| DeviceId::of(link).ok()).collect();
        let mounts = target.mounts.clone();
        mounts
            .into_iter()
            .flat_map(move |mount| devices.clone().into_iter().map(move |device| (mount.clone(), device)))
    };
    targets.iter().flat_map(|target| of_target(target).collect::<Vec<_>>()).collect()
}

/// Detaches mounts, each on a thread of its own: the last reference to a mount flushes it, and that
/// may take as long as the device does not answer. Mounts of others at the same place, in it or
/// over it, stay.
pub(crate) fn detach_mounts(mounts: Vec<GuardedMount>, wanted: &Wanted) -> Vec<JoinHandle<()>> {
    let start = |(mount, device): GuardedMount| {
        let wanted = Arc::clone(wanted);
        let started = thread::Builder::new().name("guard-unmount".into()).spawn(move || {
            if wanted()
                && let Err(error) = detach(&mount, device)
            {
                tracing::warn!(mount = %mount.display(), %error, "the guard could not detach a mount");
            }
        });
        started.inspect_err(|error| tracing::warn!(%error, "the guard could not detach a mount")).ok()
    };
    mounts.into_iter().filter_map(start).collect()
}

fn detach(mount: &Path, device: DeviceId) -> io::Result<()> {
    if !mount_table::is_own(mount, device)? {
        return Ok(());
    }
    let name = CString::new(mount.as_os_str().as_bytes())?;
    // SAFETY: the pointer is to a zero-terminated string that outlives the call.
    let result = unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
    let error = io::Error::last_os_error();
    if result != 0 && !matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) {
        return Err(error);
    }
    Ok(())
}

pub(crate) fn report(silenced: &Silenced, targets: &[GuardTarget], why: &str) {
    let left_ms = silenced.until.ms_since(silenced.processes_gone);
    let resources: Vec<String> = targets.iter().map(|target| target.resource.to_string()).collect();
    tracing::error!(
        lease_until_us = silenced.until.0,
        began_us = silenced.began.0,
        addresses_gone_us = silenced.addresses_gone.0,
        processes_gone_us = silenced.processes_gone.0,
        left_ms,
        resources = resources.join(" "),
        "{why}: addresses removed, processes killed, file systems detached"
    );
    for problem in &silenced.problems {
        tracing::error!(problem, "the guard could not silence everything");
    }
}

/// Waits until threads have detached what they were given; returns whether they have.
pub(crate) fn detached(threads: &[JoinHandle<()>], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        let ended = threads.iter().all(JoinHandle::is_finished);
        if ended || Instant::now() >= deadline {
            return ended;
        }
        thread::sleep(KILL_POLL);
    }
}
