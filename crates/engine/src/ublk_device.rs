//! ublk devices: made, kept over the death of an engine, and taken away. On the device thread, never on the shard.
//!
//! An engine that dies leaves its devices behind. The kernel holds everything that is asked of them (their state is
//! *quiesced*), and no user sees an error. What becomes of such a *left* device is decided by the next engine of this node:
//!
//! ```text
//!   live ── engine dies ──▶ left ── the resource is served here again ──▶ live    what was not answered is asked again
//!                            └──── given up ───────────────────────────▶ gone     everything in it fails
//! ```
//!
//! It is taken over only while every epoch since it was last served has named this node primary: epochs rise by one, so none
//! is missing unseen. Otherwise somebody else may have written, and what waits in it, or a file system mounted on it, is of
//! the past.
//!
//! It is given up (R19, R20) when an epoch has another primary or is missing; when a service runs on it, which the agent
//! stops after an engine's death and which could not stop while its device hangs; when this engine uses another frontend; and
//! at the latest after [`LEFT_MS_MAX`]. When no engine comes back the agent gives it up after the same time.
//!
//! What this file guarantees: a left device is taken over only if it was made by an engine of this node, for this volume, in
//! its present size, which a file in the run directory and a random number in the kernel's description of the device prove
//! together. A request that is asked again is harmless then: the caller never got an answer, and nobody else wrote.

use crate::frontend::ublk::{Channel, Control, UblkError, abi};
use mainstay_types::{Epoch, ResourceId, VolumeId};
use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// How long a device of a dead engine keeps what is asked of it, in milliseconds.
pub const LEFT_MS_MAX: u64 = 30_000;
/// How long the kernel may take to notice that the engine before has ended.
const QUIESCE_WAIT: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// How long starting and stopping wait for the shard. It answers at once, unless the machine hangs.
const SHARD_WAIT: Duration = Duration::from_secs(20);
/// Below the run directory: a file for each device that was made, with its number and its random number.
const DIRECTORY: &str = "ublk";

/// What a volume's device is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkPlan {
    pub resource: ResourceId,
    pub volume: VolumeId,
    pub bytes: u64,
    /// In which the resource is served here.
    pub epoch: Epoch,
    /// Requests at most.
    pub depth: u16,
}

/// A started device.
#[derive(Debug)]
pub struct UblkDevice {
    number: u32,
    path: PathBuf,
    note: PathBuf,
}

impl UblkDevice {
    /// For example `/dev/ublkb0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// A device that an engine before this one has made.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Left {
    number: u32,
    cookie: u64,
    /// The last one in which this node was primary, as far as no other primary has been since the device was served.
    epoch: Epoch,
    note: PathBuf,
}

/// Everything that the device thread knows of ublk.
pub struct UblkAdmin {
    /// Opened when it is first needed.
    control: Option<Control>,
    directory: PathBuf,
    left: BTreeMap<(ResourceId, VolumeId), Left>,
    /// When what is left is given up.
    until: Instant,
}

impl UblkAdmin {
    /// Looks what engines before this one have left in `run_dir`.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        let directory = run_dir.join(DIRECTORY);
        let left = read_notes(&directory);
        Self { control: None, directory, left, until: Instant::now() + Duration::from_millis(LEFT_MS_MAX) }
    }

    /// When [`give_up_all`](Self::give_up_all) is due, if at all.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        (!self.left.is_empty()).then_some(self.until)
    }

    /// The control plane's record of a resource: its epoch, and whether this node is its primary.
    pub fn record(&mut self, resource: ResourceId, epoch: Epoch, primary: bool) {
        let of_resource = self.left.iter_mut().filter(|((owner, _), _)| *owner == resource);
        let mut broken = false;
        for (_, left) in of_resource {
            if primary && epoch.0 == left.epoch.0 + 1 {
                left.epoch = epoch;
                // Should it not be written, the next engine finds an epoch missing and gives the device up.
                if let Err(error) = write_note(&self.directory, left) {
                    tracing::warn!(device = left.number, %error, "cannot note the epoch of a left ublk device");
                }
            }
            broken |= epoch > left.epoch || (!primary && epoch == left.epoch);
        }
        if broken {
            self.give_up(resource);
        }
    }

    /// Makes a volume's device, or takes over the one that is left. `opened` gets the way to its requests, which must be
    /// fetched for this to end.
    pub fn attach(
        &mut self,
        plan: &UblkPlan,
        opened: &mut dyn FnMut(Channel),
    ) -> Result<UblkDevice, UblkError> {
        if let Some(left) = self.left.remove(&(plan.resource, plan.volume)) {
            match self.take_over(plan, &left, opened) {
                Ok(device) => {
                    tracing::info!(device = %device.path.display(), "ublk device goes on");
                    return Ok(device);
                }
                Err(TakeOver::Refused(error)) => {
                    tracing::warn!(device = left.number, %error, "a left ublk device cannot be taken over; it is ended");
                    self.end(&left);
                }
                // The shard has its queue: the frontend must not get a second one.
                Err(TakeOver::Broken(error)) => {
                    self.end(&left);
                    return Err(error);
                }
            }
        }
        self.make(plan, opened)
    }

    fn control(&mut self) -> Result<&mut Control, UblkError> {
        match &mut self.control {
            Some(control) => Ok(control),
            none => Ok(none.insert(Control::open()?)),
        }
    }

    fn make(&mut self, plan: &UblkPlan, opened: &mut dyn FnMut(Channel)) -> Result<UblkDevice, UblkError> {
        let cookie = RandomState::new().build_hasher().finish();
        let note = note_path(&self.directory, plan);
        let directory = self.directory.clone();
        let control = self.control()?;
        let info = control.add(plan.depth, cookie)?;
        let left = Left { number: info.device, cookie, epoch: plan.epoch, note: note.clone() };
        let made = write_note(&directory, &left)
            .map_err(|source| UblkError::Queue { path: note.display().to_string(), source })
            .and_then(|()| control.set_params(info.device, plan.bytes))
            .and_then(|()| Channel::open(info.device, info.depth));
        let started = made.and_then(|channel| {
            opened(channel);
            control.start(info.device, SHARD_WAIT)
        });
        match started {
            Ok(()) => {
                let path = block_path(info.device);
                tracing::info!(device = %path.display(), "ublk device attached");
                Ok(UblkDevice { number: info.device, path, note })
            }
            Err(error) => {
                self.end(&left);
                Err(error)
            }
        }
    }

    fn take_over(
        &mut self,
        plan: &UblkPlan,
        left: &Left,
        opened: &mut dyn FnMut(Channel),
    ) -> Result<UblkDevice, TakeOver> {
        let unfit = |what: &str| UblkError::Unfit { device: left.number, what: what.into() };
        if left.epoch != plan.epoch {
            return Err(unfit("was served in another epoch, and somebody else may have written since").into());
        }
        let control = self.control()?;
        let info = control.info(left.number)?;
        if info.cookie != left.cookie {
            return Err(unfit("is another one now").into());
        }
        if info.queues != 1 || control.volume_bytes(left.number)? != plan.bytes {
            return Err(unfit("has another size or number of queues").into());
        }
        let end = Instant::now() + QUIESCE_WAIT;
        while let Err(error) = control.start_recovery(left.number) {
            if !error.is_busy() || Instant::now() >= end {
                return Err(error.into());
            }
            thread::sleep(RETRY_PAUSE);
        }
        opened(Channel::open(left.number, info.depth)?);
        control.end_recovery(left.number, SHARD_WAIT).map_err(TakeOver::Broken)?;
        Ok(UblkDevice { number: left.number, path: block_path(left.number), note: left.note.clone() })
    }

    /// Takes a device away, whoever uses it (R20): later requests fail. Its last user removes the rest.
    pub fn detach(&mut self, device: UblkDevice) -> Result<(), UblkError> {
        let UblkDevice { number, path, note } = device;
        let control = self.control()?;
        control.stop(number, SHARD_WAIT)?;
        control.delete(number)?;
        remove_note(&note);
        tracing::info!(device = %path.display(), "ublk device detached");
        Ok(())
    }

    /// Fails what is left of a resource.
    pub fn give_up(&mut self, resource: ResourceId) {
        let keys: Vec<_> = self.left.keys().filter(|(owner, _)| *owner == resource).copied().collect();
        for key in keys {
            if let Some(left) = self.left.remove(&key) {
                tracing::warn!(resource = %key.0, volume = %key.1, device = left.number, "a left ublk device is given up");
                if let Err(error) = self.await_quiesced(&left) {
                    tracing::error!(device = left.number, %error, "a ublk device is not given up");
                    continue;
                }
                self.end(&left);
            }
        }
    }

    /// Fails everything that is left.
    pub fn give_up_all(&mut self) {
        for resource in self.left.keys().map(|(resource, _)| *resource).collect::<Vec<_>>() {
            self.give_up(resource);
        }
    }

    /// Waits until the kernel has noticed that nobody serves a device any more. Somebody who does keeps it.
    fn await_quiesced(&mut self, left: &Left) -> Result<(), UblkError> {
        let control = self.control()?;
        let end = Instant::now() + QUIESCE_WAIT;
        while control.info(left.number).is_ok_and(|info| info.state == abi::STATE_LIVE) {
            if Instant::now() >= end {
                return Err(UblkError::Unfit { device: left.number, what: "is being served".into() });
            }
            thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }

    /// Stops and removes a device, if it is still the one that was noted.
    fn end(&mut self, left: &Left) {
        let result = self.control().and_then(|control| {
            if control.info(left.number)?.cookie == left.cookie {
                control.stop(left.number, SHARD_WAIT)?;
                control.delete(left.number)?;
            }
            Ok(())
        });
        match result {
            // Gone already, as after a restart of the machine that kept the run directory.
            Err(UblkError::Command { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => {
                tracing::error!(device = left.number, %error, "cannot end a ublk device");
                return;
            }
            Ok(()) => {}
        }
        remove_note(&left.note);
    }
}

/// Why a left device was not taken over.
enum TakeOver {
    /// Nobody has been given its queue.
    Refused(UblkError),
    /// The shard has its queue already.
    Broken(UblkError),
}

impl From<UblkError> for TakeOver {
    fn from(error: UblkError) -> Self {
        Self::Refused(error)
    }
}

/// Fails everything that a dead engine has left in `run_dir`. For whoever finds that no engine comes back.
pub fn give_up_left(run_dir: &Path) {
    UblkAdmin::new(run_dir).give_up_all();
}

fn block_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

fn note_path(directory: &Path, plan: &UblkPlan) -> PathBuf {
    directory.join(format!("{}.{}", plan.resource.0, plan.volume.0))
}

/// Written under another name first: an engine may die at any time.
fn write_note(directory: &Path, left: &Left) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let fresh = left.note.with_extension("new");
    fs::write(&fresh, format!("{} {} {}\n", left.number, left.cookie, left.epoch.0))?;
    fs::rename(fresh, &left.note)
}

fn remove_note(note: &Path) {
    // Should it stay, it names a device that is gone, or another one with another random number.
    let _ = fs::remove_file(note);
}

fn read_notes(directory: &Path) -> BTreeMap<(ResourceId, VolumeId), Left> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| read_note(&entry.path())).collect()
}

fn read_note(path: &Path) -> Option<((ResourceId, VolumeId), Left)> {
    let (resource, volume) = path.file_name()?.to_str()?.split_once('.')?;
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_ascii_whitespace();
    let left = Left {
        number: words.next()?.parse().ok()?,
        cookie: words.next()?.parse().ok()?,
        epoch: Epoch(words.next()?.parse().ok()?),
        note: path.to_owned(),
    };
    Some(((ResourceId(resource.parse().ok()?), VolumeId(volume.parse().ok()?)), left))
}

/// What ublk offers here.
pub fn probe() -> Result<String, String> {
    match Control::open() {
        Ok(control) => Ok(format!("the kernel has ublk with features {:#x}", control.features())),
        Err(error) => Err(match std::error::Error::source(&error) {
            Some(cause) => format!("{error} ({cause})"),
            None => error.to_string(),
        }),
    }
}

const _: () = assert!(crate::frontend::ublk::DEPTH <= abi::QUEUE_DEPTH_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    /// One device, left in epoch 4; no control node is needed for what is only noted.
    fn left_in_epoch_4(directory: &Path) -> UblkAdmin {
        let left = Left { number: 5, cookie: 1, epoch: Epoch(4), note: directory.join("7.0") };
        UblkAdmin {
            control: None,
            directory: directory.to_owned(),
            left: BTreeMap::from([((ResourceId(7), VolumeId(0)), left)]),
            until: Instant::now(),
        }
    }

    #[test]
    fn a_left_device_waits_only_while_no_epoch_is_missing() {
        let directory = std::env::temp_dir().join(format!("mainstay-ublk-epochs-{}", std::process::id()));
        let waits = |records: &[(u64, bool)]| {
            let mut admin = left_in_epoch_4(&directory);
            for (epoch, primary) in records {
                admin.record(ResourceId(7), Epoch(*epoch), *primary);
                admin.record(ResourceId(8), Epoch(90), false);
            }
            admin.left.values().next().map(|left| left.epoch.0)
        };
        assert_eq!(waits(&[(4, true)]), Some(4), "nothing has happened yet");
        assert_eq!(waits(&[(4, true), (5, true), (5, true), (6, true)]), Some(6));
        assert_eq!(waits(&[(3, false)]), Some(4), "of the past");
        assert_eq!(waits(&[(5, false)]), None, "another primary");
        assert_eq!(waits(&[(6, true)]), None, "somebody may have been primary in 5");
        assert_eq!(waits(&[(5, true), (5, false)]), None);
        let noted = read_notes(&directory).remove(&(ResourceId(7), VolumeId(0))).map(|left| left.epoch);
        assert_eq!(noted, Some(Epoch(5)), "the next engine has to know");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn notes_are_found_again_and_noise_is_not() {
        let directory = std::env::temp_dir().join(format!("mainstay-ublk-notes-{}", std::process::id()));
        let plan =
            UblkPlan { resource: ResourceId(7), volume: VolumeId(3), bytes: 4096, epoch: Epoch(4), depth: 1 };
        let left = Left { number: 5, cookie: u64::MAX, epoch: Epoch(4), note: note_path(&directory, &plan) };
        write_note(&directory, &left).expect("written");
        for (name, text) in
            [("7.4", "five 6 1"), ("8.x", "1 2 3"), ("noise", "1 2 3"), ("7.5", "1 2"), ("9.0", "")]
        {
            fs::write(directory.join(name), text).expect("written");
        }
        let found = read_notes(&directory);
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(found, BTreeMap::from([((ResourceId(7), VolumeId(3)), left)]));
    }
}
