//! Mounting and unmounting the file systems of services.
//!
//! Guarantees
//! - A mount is a service's own only by its device ([`super::mount_table`]). Mainstay unmounts no
//!   other mount, and no mount in or over the service's own goes with it (R27).
//! - To mount a file system that is mounted, and to unmount one that is not, are successes.
//! - A mount table that cannot be read proves nothing: no unmount succeeds by it (R19).
//! - All written data is on the device before a mount goes, unless the node's lease has ended or
//!   the device does not take the data.

use super::bounded::Bounded;
use super::content;
use super::freeze::Question;
use super::holders::{self, Held, Search};
use super::make::{self, Volume};
use super::mount_table::{DeviceId, MountTable, Mounted};
use mainstay_ha::{AtPath, MountOption, Unmount, mount_options};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const XFS_PUSH: &str = "/proc/sys/fs/xfs/xfssyncd_centisecs";
/// The shortest that the kernel takes.
const XFS_PUSH_CENTISECS: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(50);
/// How long a file system may take to answer a question that changes nothing, before it counts as
/// frozen or hung.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long an unmount waits for a mount of others in or over the service's.
const MOUNT_PATIENCE: Duration = Duration::from_secs(2);
/// How often a file system that waits for its unmount is asked whether it is frozen.
const FREEZE_PAUSE: Duration = Duration::from_secs(1);

static FLUSHES: Bounded = Bounded::new();

#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot read {device}: {source}")]
    Read {
        device: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no device at {link}: {source}")]
    NoDevice {
        link: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{device} is blank, and the service does not allow making a file system; set mkfs = true in [mount], or make \
         one by hand"
    )]
    Blank { device: PathBuf },
    #[error(
        "making the file system on {device} was interrupted, and the service does not allow making it anew; set \
         mkfs = true in [mount], or make one by hand"
    )]
    Unfinished { device: PathBuf },
    #[error(
        "{device} holds {found}, not {wanted}; it is not touched; correct mount.fstype, or use another volume"
    )]
    Foreign { device: PathBuf, found: &'static str, wanted: String },
    #[error(
        "{device} holds no file system of the type {wanted}: {found}; it was written to before, so it is not formatted; \
         make a file system there by hand if nothing on it is needed"
    )]
    NoFileSystem { device: PathBuf, wanted: String, found: String },
    #[error("it is not known whether {device} may be formatted: {why}")]
    Volume { device: PathBuf, why: String },
    #[error(
        "{device} is blank, and Mainstay makes no file system of the type {fstype}; make one by hand, or set mount.fstype to \
         xfs, ext4, btrfs or f2fs"
    )]
    NotMade { device: PathBuf, fstype: String },
    #[error("making the file system on {device} failed: {message}")]
    Make { device: PathBuf, message: String },
    #[error("cannot make the mount point {path}: {source}")]
    MountPoint {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} holds files, among them {file}, which the mount would hide; move them away, or set hide_files = true in \
         [mount]"
    )]
    HoldsFiles { path: PathBuf, file: String },
    #[error("{path} {why}; give the service a directory of its own")]
    Place { path: PathBuf, why: String },
    #[error(
        "mounting {device} at {path} failed: {errno}; {found}; check it with the tools of its type while the service is \
         deleted, or roll back to a snapshot"
    )]
    Mount { device: PathBuf, path: PathBuf, errno: Errno, found: String },
    #[error("nothing can be mounted at {path}: {why}")]
    Occupied { path: PathBuf, why: String },
    #[error("unmounting {path} failed: {errno}")]
    Unmount { path: PathBuf, errno: Errno },
    #[error("{path} is in use by {holders}")]
    Busy { path: PathBuf, holders: String },
    #[error("what was written to {path} is not on its device yet")]
    Unflushed { path: PathBuf },
    #[error("{path} stays mounted: {why}; unmount that first")]
    Waits { path: PathBuf, why: String },
    #[error(
        "the file system that was mounted at {path} is mounted at {point} now; run `umount {point}` on this node"
    )]
    Elsewhere { path: PathBuf, point: PathBuf },
    #[error("{path} is frozen; run `fsfreeze --unfreeze {path}` on this node")]
    Frozen { path: PathBuf },
    #[error("{path} is not mounted any more")]
    Gone { path: PathBuf },
    #[error("cannot read the mount table: {0}")]
    Table(#[source] io::Error),
    #[error("it was called off")]
    CalledOff,
}

impl MountError {
    /// Whether the error is about the path on this node, so that another attempt of the service
    /// meets it again.
    #[must_use]
    pub fn is_of_the_place(&self) -> bool {
        matches!(
            self,
            Self::Occupied { .. }
                | Self::Waits { .. }
                | Self::HoldsFiles { .. }
                | Self::Place { .. }
                | Self::MountPoint { .. }
        )
    }
}

/// A mount that a service made, or is about to make.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Place {
    /// Without links in it.
    pub path: PathBuf,
    pub device: DeviceId,
    /// Wanted so.
    pub read_only: bool,
    /// Number of the file system, once it is mounted, where that is not the device's.
    #[serde(default)]
    pub number: Option<DeviceId>,
}

impl Place {
    /// The place as it is noted when the file system is mounted there.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn as_mounted(&self) -> Result<Self, MountError> {
        let table = MountTable::read().map_err(MountError::Table)?;
        let number = table.at(&self.path).and_then(Mounted::number);
        Ok(Self { number, ..self.clone() })
    }

    /// Whether it is the same path and the same device.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.path == other.path && self.device == other.device
    }

    /// Its device, with the file system on it.
    #[must_use]
    pub fn held(&self) -> Held {
        Held { device: self.device, number: self.number }
    }

    /// Refuses a file system that is no longer mounted here but is mounted at another path: a
    /// directory above its mount point was renamed, or it was moved.
    ///
    /// # Errors
    /// When that is so, or the mount table cannot be read.
    pub fn refuse_elsewhere(&self) -> Result<(), MountError> {
        let table = MountTable::read().map_err(MountError::Table)?;
        let at = table.look(&self.path, self.held(), self.read_only);
        if !matches!(at, AtPath::Nothing | AtPath::Foreign(_)) {
            return Ok(());
        }
        let found = table.iter().find(|mounted| mounted.is_on(self.device, self.number));
        found.map_or(Ok(()), |found| {
            Err(MountError::Elsewhere { path: self.path.clone(), point: found.point.clone() })
        })
    }

    /// Tells what is mounted at the place at this moment.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn look(&self) -> Result<AtPath, MountError> {
        let table = MountTable::read().map_err(MountError::Table)?;
        Ok(table.look(&self.path, self.held(), self.read_only))
    }

    /// The same, and whether a file system that looks well lists its root directory, which one of
    /// the type xfs that has shut down does not.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn look_inside(&self) -> Result<AtPath, MountError> {
        let at = self.look()?;
        if matches!(at, AtPath::Ours | AtPath::Holds(_)) {
            let listed = std::fs::read_dir(&self.path).and_then(|mut entries| entries.next().transpose());
            if let Err(error) = listed
                && error.raw_os_error() == Some(Errno::EIO as i32)
            {
                return Ok(AtPath::Dead("it cannot be read: I/O error".into()));
            }
        }
        Ok(at)
    }

    /// The same, and whether a file system that looks well takes writes.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    pub fn look_closely(&self) -> Result<AtPath, MountError> {
        let at = self.look()?;
        if matches!(at, AtPath::Ours | AtPath::Holds(_))
            && let Flushed::Failed(errno) = self.flush(ANSWER_PATIENCE)
        {
            return Ok(AtPath::Dead(format!("it cannot be written to: {}", errno.desc())));
        }
        Ok(at)
    }

    /// Has everything that was written to the file system on its device, or gives up after
    /// `patience`.
    fn flush(&self, patience: Duration) -> Flushed {
        let path = self.path.clone();
        // A device that does not answer keeps the thread, and no other thread.
        let flushed = FLUSHES.ask(&self.path, Instant::now() + patience, move || {
            let opened = File::open(&path);
            opened
                .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(0)))
                .and_then(nix::unistd::syncfs)
        });
        match flushed {
            Some(Ok(())) => Flushed::Whole,
            Some(Err(errno)) => Flushed::Failed(errno),
            None => Flushed::Late,
        }
    }

    /// Writes to the device what was written to the file system, also where another mount lies over
    /// it. With no `patience` it does not try.
    ///
    /// # Errors
    /// When that takes longer.
    pub fn flush_all(&self, patience: Duration) -> Result<(), MountError> {
        if patience.is_zero() {
            return Ok(());
        }
        let visible = matches!(self.look()?, AtPath::Ours | AtPath::Holds(_) | AtPath::Dead(_));
        let flushed = if visible {
            self.flush(patience)
        } else {
            // No path leads to it any more.
            let all = FLUSHES.ask(Path::new("all"), Instant::now() + patience, || {
                nix::unistd::sync();
            });
            all.map_or(Flushed::Late, |()| Flushed::Whole)
        };
        match flushed {
            Flushed::Late => Err(MountError::Unflushed { path: self.path.clone() }),
            Flushed::Whole | Flushed::Failed(_) => Ok(()),
        }
    }

    /// Whether it can be unmounted now, as far as is to be seen: no other mount is in or over it,
    /// and its device answers.
    #[must_use]
    pub fn may_go(&self) -> bool {
        match self.look().map(|at| at.unmount()) {
            Ok(Unmount::Nothing) => true,
            Ok(Unmount::Topmost) => !matches!(self.flush(ANSWER_PATIENCE), Flushed::Late),
            Ok(Unmount::Waits(_)) | Err(_) => false,
        }
    }

    /// Whether the file system is frozen: a write waits, and not for the device.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        let Ok(mut question) = Question::ask(&self.path) else { return false };
        let deadline = Instant::now() + ANSWER_PATIENCE;
        while question.is_open() {
            if question.waits_for_thaw() {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(BUSY_PAUSE / 5);
        }
        false
    }

    fn busy(&self) -> MountError {
        let path = self.path.clone();
        if self.is_frozen() {
            return MountError::Frozen { path };
        }
        let search = Search { held: vec![self.held()], own: vec![path.clone()], ..Search::default() };
        match search.holders() {
            Ok(found) if found.is_empty() => {
                MountError::Busy { path, holders: "a holder that cannot be found".into() }
            }
            Ok(found) => MountError::Busy { path, holders: holders::words(&found) },
            Err(error) => MountError::Busy { path, holders: format!("a holder that is not named: {error}") },
        }
    }

    /// Unmounts; waits for what still holds it busy until `deadline`, and no longer than it is
    /// `wanted`.
    ///
    /// # Errors
    /// When it is still busy, or the kernel refuses for another reason.
    pub fn ensure_unmounted(&self, deadline: Instant, wanted: &dyn Fn() -> bool) -> Result<(), MountError> {
        self.unmount_after(deadline, wanted, &|patience| self.flush(patience))
    }

    fn unmount_after(
        &self,
        deadline: Instant,
        wanted: &dyn Fn() -> bool,
        flush: &dyn Fn(Duration) -> Flushed,
    ) -> Result<(), MountError> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let (mut flushed, mut asked, mut met) = (false, None::<Instant>, None::<Instant>);
        loop {
            let waits = match self.look()?.unmount() {
                Unmount::Nothing => return Ok(()),
                Unmount::Waits(why) => {
                    let waits = MountError::Waits { path: self.path.clone(), why };
                    // A mount that stays for this time does not go by itself.
                    if met.get_or_insert_with(Instant::now).elapsed() >= MOUNT_PATIENCE {
                        return Err(waits);
                    }
                    waits
                }
                // Both checks may take seconds, in which another program may mount something there.
                // So the loop looks again.
                Unmount::Topmost if asked.is_none_or(|at| at.elapsed() >= FREEZE_PAUSE) => {
                    // A file system that is unmounted while frozen stays frozen, with its device,
                    // and cannot be thawed any more.
                    if self.is_frozen() {
                        asked = None;
                        MountError::Frozen { path: self.path.clone() }
                    } else {
                        if !flushed {
                            flush(left());
                            flushed = true;
                        }
                        asked = Some(Instant::now());
                        continue;
                    }
                }
                Unmount::Topmost => match umount2(&self.path, MntFlags::UMOUNT_NOFOLLOW) {
                    Ok(()) | Err(Errno::EINVAL) => continue,
                    Err(Errno::EBUSY) if Instant::now() < deadline => MountError::CalledOff,
                    Err(Errno::EBUSY) => self.busy(),
                    Err(errno) => return Err(MountError::Unmount { path: self.path.clone(), errno }),
                },
            };
            if !wanted() {
                return Err(MountError::CalledOff);
            }
            if Instant::now() >= deadline {
                return Err(match waits {
                    MountError::CalledOff => self.busy(),
                    waits => waits,
                });
            }
            let pause = if asked.is_none() { FREEZE_PAUSE } else { BUSY_PAUSE };
            std::thread::sleep(pause.min(left()));
        }
    }

    /// Takes the mount out of sight; the kernel ends it when the last user is gone (R19). The
    /// written data is on the device before, unless the device does not take it. With no `patience`
    /// the flush is left out.
    ///
    /// # Errors
    /// When the kernel refuses, another mount would go with it, or what was written is not on the
    /// device after `patience`.
    pub fn detach(&self, patience: Duration) -> Result<(), MountError> {
        self.detach_after(patience, &|patience| self.flush(patience))
    }

    fn detach_after(
        &self,
        mut patience: Duration,
        flush: &dyn Fn(Duration) -> Flushed,
    ) -> Result<(), MountError> {
        loop {
            match self.look()?.unmount() {
                Unmount::Nothing => return Ok(()),
                Unmount::Waits(why) => return Err(MountError::Waits { path: self.path.clone(), why }),
                // Both the question and the flush may take seconds, so the loop looks again.
                Unmount::Topmost if !patience.is_zero() => {
                    if self.is_frozen() {
                        return Err(MountError::Frozen { path: self.path.clone() });
                    }
                    if let Flushed::Late = flush(std::mem::take(&mut patience)) {
                        return Err(MountError::Unflushed { path: self.path.clone() });
                    }
                    continue;
                }
                Unmount::Topmost => {}
            }
            match umount2(&self.path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
                // Another, such as the engine's guard, was quicker.
                Ok(()) | Err(Errno::EINVAL) => {}
                Err(errno) => return Err(MountError::Unmount { path: self.path.clone(), errno }),
            }
        }
    }
}

enum Flushed {
    Whole,
    Failed(Errno),
    /// The flush may still be under way.
    Late,
}

/// A mount to be made.
#[derive(Clone, Debug)]
pub struct MountPlan {
    pub device: PathBuf,
    pub place: Place,
    pub fstype: String,
    /// Comma-separated, as in fstab; may be empty.
    pub options: String,
    /// Options for making the file system; `None` if none may be made.
    pub mkfs: Option<Vec<String>>,
    pub hide_files: bool,
}

/// Mounts the file system. Makes it first if the volume is blank and the service wants that. Begins
/// no avoidable step once `wanted` is false. `runs`: processes of the service run.
///
/// # Errors
/// See [`MountError`].
pub fn ensure_mounted(
    plan: &MountPlan,
    runs: bool,
    volume: &dyn Volume,
    wanted: &dyn Fn() -> bool,
) -> Result<(), MountError> {
    let Place { path, .. } = &plan.place;
    let occupied = |why| MountError::Occupied { path: path.clone(), why };
    if !plan.place.look_closely()?.to_mount(runs).map_err(occupied)? {
        return Ok(());
    }
    let place = |source| MountError::MountPoint { path: path.clone(), source };
    std::fs::create_dir_all(path).map_err(place)?;
    if !plan.hide_files
        && let Some(file) = std::fs::read_dir(path).map_err(place)?.next()
    {
        let file = file.map_err(place)?.file_name().to_string_lossy().into_owned();
        return Err(MountError::HoldsFiles { path: path.clone(), file });
    }
    make::ensure_made(&plan.device, &plan.fstype, plan.mkfs.as_deref(), volume, wanted)?;
    if plan.fstype == "xfs" {
        push_often();
    }
    let (flags, data) = parse_options(&plan.fstype, &plan.options);
    if !wanted() {
        return Err(MountError::CalledOff);
    }
    // Making a file system may have taken minutes, in which another program may have mounted
    // something there.
    if !plan.place.look()?.to_mount(runs).map_err(occupied)? {
        return Ok(());
    }
    mount(Some(&plan.device), path, Some(plan.fstype.as_str()), flags, Some(data.as_str())).map_err(|errno| {
        MountError::Mount {
            device: plan.device.clone(),
            path: path.clone(),
            errno,
            found: content::described(&plan.device),
        }
    })
}

/// Whether these options ask for a file system that is only read.
#[must_use]
pub fn is_read_only(options: &str) -> bool {
    parse_options("", options).0.contains(MsFlags::MS_RDONLY)
}

/// Makes XFS write back the content of its log once per second instead of every 30 seconds. After a
/// power cut, the next node to mount must replay the rest record by record. That takes seconds of
/// failover time under load. The setting is the machine's, and is read when a file system is
/// mounted.
fn push_often() {
    let current = std::fs::read_to_string(XFS_PUSH).ok().and_then(|text| text.trim().parse::<u32>().ok());
    if current.is_none_or(|current| current <= XFS_PUSH_CENTISECS) {
        return;
    }
    match std::fs::write(XFS_PUSH, XFS_PUSH_CENTISECS.to_string()) {
        Ok(()) => tracing::info!(
            "{XFS_PUSH} is {XFS_PUSH_CENTISECS} from now on: a mount after a power cut is quicker"
        ),
        Err(error) => {
            tracing::warn!(%error, "cannot write {XFS_PUSH}: a mount after a power cut may take seconds")
        }
    }
}

/// Mount point of the cgroup hierarchy of version 2.
#[must_use]
pub fn cgroup2_mount() -> Option<PathBuf> {
    let table = MountTable::read().ok()?;
    let mut found = table.iter().filter(|mounted| mounted.fstype == "cgroup2").map(|mounted| &mounted.point);
    found.find(|point| point.is_dir()).cloned()
}

/// Returns the part of these options that is for the file system.
pub(super) fn mount_data(fstype: &str, options: &str) -> String {
    parse_options(fstype, options).1
}

fn parse_options(fstype: &str, options: &str) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut data: Vec<&str> = Vec::new();
    for option in mount_options(options) {
        match option {
            MountOption::Flags { set, clear } => {
                flags.remove(MsFlags::from_bits_retain(clear));
                flags.insert(MsFlags::from_bits_retain(set));
            }
            MountOption::FileSystem(option) => data.push(option),
            // Specifications with such options are refused. If an older version took one, it is
            // mounted as it was meant.
            MountOption::ForOthers | MountOption::Refused { .. } => {}
        }
    }
    // XFS refuses two mounts of one UUID in one kernel. A process may still hold a dead mount of an
    // earlier primacy open. That must not keep the service down: the record decides which node may
    // write, not the UUID.
    if fstype == "xfs" && !data.contains(&"nouuid") {
        data.push("nouuid");
    }
    (flags, data.join(","))
}

#[cfg(test)]
mod tests;
