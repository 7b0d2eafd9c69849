//! ublk devices: made, kept over the death of an engine, and taken away. On the device thread,
//! never on the shard.
//!
//! An engine that dies leaves its devices behind, and the kernel holds everything that is asked of
//! them (their state is *quiesced*). When such a device goes on, and when it fails, is the same for
//! all frontends: see [`crate::device_recovery`].
//!
//! Guarantee: a left device is taken over only if an engine of this node made it,
//! for this volume, in its present size. Its note and the cookie in the kernel's description of the
//! device prove that together.

use crate::device_recovery::{DEATH_WAIT, LeavesDevices, Left, LeftDevices, RETRY_PAUSE, new_cookie, noted};
use crate::ublk::{Channel, Control, UblkError, abi};
use mainstay_silence::may_take_over;
use mainstay_types::{Epoch, ResourceId, VolumeId};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

/// How long starting and stopping wait for the shard. It answers at once, unless the machine hangs.
const SHARD_WAIT: Duration = Duration::from_secs(20);
/// Below the run directory: the notes of the devices that were made.
const DIRECTORY: &str = "ublk";

/// Parts from which a volume's device is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkPlan {
    pub resource: ResourceId,
    pub volume: VolumeId,
    pub bytes: u64,
    /// Epoch in which the resource is served here.
    pub epoch: Epoch,
    /// Most requests in flight.
    pub depth: u16,
}

/// Number and cookie by which the kernel knows a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UblkId {
    number: u32,
    cookie: u64,
}

impl fmt::Display for UblkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.number, self.cookie)
    }
}

impl FromStr for UblkId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, cookie) = text.split_once(' ').ok_or(())?;
        Ok(Self { number: number.parse().map_err(|_| ())?, cookie: cookie.parse().map_err(|_| ())? })
    }
}

/// A started device.
#[derive(Debug)]
pub struct UblkDevice {
    path: PathBuf,
    noted: Left<UblkId>,
}

impl UblkDevice {
    /// Number of the device, as in `/dev/ublkb0`.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.noted.device.number
    }

    /// For example `/dev/ublkb0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Everything that the device thread knows of ublk.
pub struct UblkAdmin {
    /// Opened when it is first needed.
    control: Option<Control>,
    left: LeftDevices<UblkId>,
}

impl UblkAdmin {
    /// Looks what engines before this one have left in `run_dir`.
    #[must_use]
    pub fn new(run_dir: &Path) -> Self {
        Self { control: None, left: LeftDevices::new(run_dir, DIRECTORY) }
    }

    /// Makes a volume's device, or takes over the one that is left. `opened` gets the way to its
    /// requests, which must be fetched for this to end.
    pub fn attach(
        &mut self,
        plan: &UblkPlan,
        opened: &mut dyn FnMut(Channel),
    ) -> Result<UblkDevice, UblkError> {
        if let Some(left) = self.left.take(plan.resource, plan.volume) {
            match self.take_over(plan, &left, opened) {
                Ok(device) => {
                    tracing::info!(device = %device.path.display(), "ublk device goes on");
                    return Ok(device);
                }
                Err(TakeOver::Refused(error)) => {
                    tracing::warn!(device = %left.device, %error, "a left ublk device cannot be taken over; it is ended");
                    self.fail(plan.resource, &left);
                }
                // The shard has its queue: the frontend must not get a second one.
                Err(TakeOver::Broken(error)) => {
                    self.fail(plan.resource, &left);
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
        let cookie = new_cookie();
        let info = self.control()?.add(plan.depth, cookie)?;
        let id = UblkId { number: info.device, cookie };
        let noted = match self.left.note((plan.resource, plan.volume), id, plan.epoch) {
            Ok(noted) => noted,
            Err(source) => {
                self.remove(id)?;
                return Err(UblkError::Queue { path: "the note of a device".into(), source });
            }
        };
        let control = self.control()?;
        let made =
            control.set_params(id.number, plan.bytes).and_then(|()| Channel::open(id.number, info.depth));
        let started = made.and_then(|channel| {
            opened(channel);
            control.start(id.number, SHARD_WAIT)
        });
        match started {
            Ok(()) => {
                let path = block_path(id.number);
                tracing::info!(device = %path.display(), "ublk device attached");
                Ok(UblkDevice { path, noted })
            }
            Err(error) => {
                self.end(&noted);
                Err(error)
            }
        }
    }

    fn take_over(
        &mut self,
        plan: &UblkPlan,
        left: &Left<UblkId>,
        opened: &mut dyn FnMut(Channel),
    ) -> Result<UblkDevice, TakeOver> {
        let UblkId { number, cookie } = left.device;
        let unfit = |what: &str| UblkError::Unfit { device: number, what: what.into() };
        if !may_take_over(left.epoch, plan.epoch) {
            return Err(unfit("was served in another epoch, and another node may have written since").into());
        }
        let control = self.control()?;
        let info = control.info(number)?;
        if info.cookie != cookie {
            return Err(unfit("is another one now").into());
        }
        if info.queues != 1 || control.volume_bytes(number)? > plan.bytes {
            return Err(unfit("has another size or number of queues").into());
        }
        let end = Instant::now() + DEATH_WAIT;
        while let Err(error) = control.start_recovery(number) {
            if !error.is_busy() || Instant::now() >= end {
                return Err(error.into());
            }
            thread::sleep(RETRY_PAUSE);
        }
        opened(Channel::open(number, info.depth)?);
        control.end_recovery(number, SHARD_WAIT).map_err(TakeOver::Broken)?;
        // The engine before may have ended between the volume's growth and the device's.
        if control.volume_bytes(number).is_ok_and(|bytes| bytes < plan.bytes)
            && let Err(error) = control.resize(number, plan.bytes)
        {
            tracing::warn!(number, %error, "a left ublk device keeps its size until it is attached again");
        }
        Ok(UblkDevice { path: block_path(number), noted: left.clone() })
    }

    /// Makes a device as large as its volume, which has grown.
    ///
    /// # Errors
    /// When the kernel cannot do that (before Linux 6.16), or the device is gone.
    pub fn resize(&mut self, number: u32, bytes: u64) -> Result<(), UblkError> {
        self.control()?.resize(number, bytes)
    }

    /// Takes a device away, also while it is in use (R20): later requests fail. Its last user
    /// removes the rest.
    pub fn detach(&mut self, device: UblkDevice) -> Result<(), UblkError> {
        self.remove(device.noted.device)?;
        device.noted.forget();
        tracing::info!(device = %device.path.display(), "ublk device detached");
        Ok(())
    }

    /// Stops and removes a device, if it is still the one that is meant.
    fn remove(&mut self, id: UblkId) -> Result<(), UblkError> {
        let control = self.control()?;
        if control.info(id.number)?.cookie == id.cookie {
            control.stop(id.number, SHARD_WAIT)?;
            control.delete(id.number)?;
        }
        Ok(())
    }
}

impl LeavesDevices for UblkAdmin {
    type Device = UblkId;
    type Error = UblkError;

    fn left(&mut self) -> &mut LeftDevices<UblkId> {
        &mut self.left
    }

    fn await_death(&mut self, left: &Left<UblkId>) -> Result<(), UblkError> {
        let number = left.device.number;
        let control = self.control()?;
        let end = Instant::now() + DEATH_WAIT;
        while control.info(number).is_ok_and(|info| info.state == abi::STATE_LIVE) {
            if Instant::now() >= end {
                return Err(UblkError::Unfit { device: number, what: "is being served".into() });
            }
            thread::sleep(RETRY_PAUSE);
        }
        Ok(())
    }

    fn end(&mut self, left: &Left<UblkId>) {
        match self.remove(left.device) {
            // Gone already, as after a restart of the machine that kept the run directory.
            Err(UblkError::Command { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => {
                tracing::error!(device = %left.device, %error, "cannot end a ublk device");
                return;
            }
            Ok(()) => {}
        }
        left.forget();
    }
}

/// Why a left device was not taken over.
enum TakeOver {
    /// The take-over failed before the shard got the device's queue.
    Refused(UblkError),
    /// The take-over failed after the shard got the device's queue.
    Broken(UblkError),
}

impl From<UblkError> for TakeOver {
    fn from(error: UblkError) -> Self {
        Self::Refused(error)
    }
}

fn block_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{number}"))
}

/// Whether an engine with this run directory has made the device with this number, as its note and
/// the cookie in the kernel's description say.
#[must_use]
pub fn is_noted(run_dir: &Path, number: u32) -> bool {
    let noted: Vec<UblkId> = noted(run_dir, DIRECTORY);
    let Some(id) = noted.into_iter().find(|id| id.number == number) else { return false };
    let info = Control::open().and_then(|mut control| control.info(number));
    info.is_ok_and(|info| info.cookie == id.cookie)
}

/// Checks whether ublk can be used here. Returns its features, or why it cannot be used, in words.
pub fn probe() -> Result<String, String> {
    match Control::open() {
        Ok(control) => Ok(format!("the kernel has ublk with features {:#x}", control.features())),
        Err(error) => Err(match std::error::Error::source(&error) {
            Some(cause) => format!("{error} ({cause})"),
            None => error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_a_ublk_device_is_read_as_it_was_written() {
        let id = UblkId { number: 5, cookie: u64::MAX };
        assert_eq!(id.to_string().parse(), Ok(id));
        for noise in ["", "5", "five 6", "5 6 7", "5 "] {
            assert_eq!(noise.parse::<UblkId>(), Err(()), "{noise:?}");
        }
    }
}
