//! Block devices: made of the volumes of a frontend, and taken away again.
//!
//! Attaching and detaching make the kernel send requests to the very engine that asks for it. So
//! they happen on a thread of their own, [`DeviceAdmin`], which is not on the path of any request.
//!
//! Guarantee: every job is answered once, in the order in which jobs were given.
//! Each kind of device has a file of its own: [`crate::loop_device`], and those of
//! [`mainstay_devices`] for devices that may outlive their engine.

use crate::frontend::{LeftFuse, Opened, unmount_stale};
use crate::loop_device::{LoopDevice, LoopError, LoopResizing};
use crate::ring::Fd;
use mainstay_devices::descriptor_holder::DescriptorHolder;
use mainstay_devices::device_recovery::LeavesDevices;
use mainstay_devices::nbd_device::{NbdAdmin, NbdDevice, NbdDeviceError, NbdPlan};
use mainstay_devices::ublk::UblkError;
use mainstay_devices::ublk_device::{UblkAdmin, UblkDevice, UblkPlan};
use mainstay_devices::users::Users;
use mainstay_types::{Epoch, FrontendKind, REQUEST_BYTES_MAX, ResourceId, Time, VolumeId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use thiserror::Error;

/// Why a device could not be attached or detached.
#[derive(Debug, Error)]
pub enum DeviceError {
    #[error(transparent)]
    Loop(#[from] LoopError),
    #[error(transparent)]
    Ublk(#[from] UblkError),
    #[error(transparent)]
    Nbd(#[from] NbdDeviceError),
}

/// How a volume of a frontend becomes a block device; see
/// [`Frontend::attachment`](crate::frontend::Frontend).
#[derive(Debug)]
pub enum Attachment {
    /// A loop device over this file of a FUSE mount, which lasts as long as its connection.
    Loop { backing: PathBuf, connection: Fd },
    /// The loop device over this file that an engine before this one has left. The holder has both
    /// it and the connection already.
    Left { backing: PathBuf, device: Fd },
    /// A ublk device, or the one that the engine before has left. The frontend is given its queue
    /// meanwhile.
    Ublk(UblkPlan),
    /// A device of the kernel's nbd driver, or the one that the engine before has left; where it
    /// has none, clients of the NBD server find the volume by its address.
    Nbd(NbdPlan),
    /// None but for such clients.
    Export { uri: String },
}

/// An attached block device. Dropping it closes what the engine holds of it.
#[derive(Debug)]
pub enum Device {
    Loop(LoopDevice),
    Ublk(UblkDevice),
    Nbd(NbdDevice),
    /// Address of an export.
    Export(PathBuf),
}

/// Handle with which the device thread makes a device as large as its volume has become.
#[derive(Debug)]
pub enum Resizing {
    Loop(LoopResizing),
    Ublk { number: u32 },
    Nbd { index: u32 },
}

impl Device {
    /// For example `/dev/loop3`, or the address of an export.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Loop(device) => device.path(),
            Self::Ublk(device) => device.path(),
            Self::Nbd(device) => device.path(),
            Self::Export(uri) => uri,
        }
    }

    /// Longest write that is one entry of the log, whole or absent on every replica, if it reaches
    /// the device as one request of whole blocks; in bytes (R26).
    ///
    /// # Errors
    /// Why no length is promised, in words.
    pub fn atomic_write_max(&self) -> Result<u64, String> {
        match self {
            Self::Loop(device) => device.atomic_write_max(),
            // The kernel is told the limit when a ublk device is made, and keeps to it. The NBD
            // server and virtual machines may be asked for more, and cut it between mebibytes of
            // the volume only.
            Self::Ublk(_) | Self::Nbd(_) | Self::Export(_) => Ok(REQUEST_BYTES_MAX),
        }
    }

    /// `None` for what has no size of its own.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn resizing(&self) -> Result<Option<Resizing>, DeviceError> {
        Ok(Some(match self {
            Self::Loop(device) => Resizing::Loop(device.resizing()?),
            Self::Ublk(device) => Resizing::Ublk { number: device.number() },
            Self::Nbd(device) => Resizing::Nbd { index: device.index() },
            Self::Export(_) => return Ok(None),
        }))
    }
}

/// A job for [`DeviceAdmin`].
#[derive(Debug)]
pub enum DeviceJob {
    /// Make a block device of a volume.
    Attach { resource: ResourceId, volume: VolumeId, attachment: Attachment },
    /// Make a device as large as its volume, which has `bytes` bytes. This job has no answer. A
    /// device that cannot grow while it is in use stays as it is until it is attached again.
    Resize { path: PathBuf, resizing: Resizing, bytes: u64 },
    /// Detach these devices. The frontend behind them must still answer, or have been detached
    /// before. Then writes that the kernel still holds fail instead of waiting.
    Detach { resource: ResourceId, devices: Vec<Device> },
    /// Fail the devices of a resource that an engine before this one has left.
    GiveUp { resource: ResourceId },
    /// Fail the devices that an engine has left for this one, of a FUSE mount in this directory.
    GiveUpLeft { resource: ResourceId, dir: PathBuf, left: LeftFuse },
    /// Leave everything to a successor, which may come until that time. This engine ends then;
    /// unless `left` hears that nothing was left.
    Leave { until: Time, left: mpsc::SyncSender<io::Result<()>> },
    /// Have an agent that has just said hello keep the descriptors that must outlive this engine.
    Keep,
    /// The control plane's record, which tells whether left devices may still wait. `own`: this
    /// node is primary, and the resource is attached nowhere.
    Record { resource: ResourceId, epoch: Epoch, own: bool },
}

/// How a job ended.
#[derive(Debug)]
pub enum DeviceOutcome {
    Attached {
        resource: ResourceId,
        volume: VolumeId,
        device: Device,
    },
    /// The frontend can take requests of this volume, and must, for its attachment to end.
    Opened {
        resource: ResourceId,
        volume: VolumeId,
        opened: Opened,
    },
    AttachFailed {
        resource: ResourceId,
        volume: VolumeId,
        error: DeviceError,
    },
    /// All that were given are detached, or left to their last users.
    Detached {
        resource: ResourceId,
        errors: Vec<DeviceError>,
    },
}

/// The thread that attaches and detaches devices. Jobs are done one after the other; the queue is
/// bounded by the number of volumes, because the shard has at most one job per volume in it, and
/// one per resource that is given up.
pub struct DeviceAdmin {
    jobs: Option<mpsc::Sender<DeviceJob>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceAdmin {
    /// Starts the thread of an engine that uses this frontend. `done` is called on it, after every
    /// job and when a device was opened, and must not block on the shard. Devices that an engine
    /// before this one has left in `run_dir` wait for their resources to be served again, if they
    /// can. `holder` has those that such an engine has left on purpose.
    pub fn start(
        kind: Option<FrontendKind>,
        run_dir: &Path,
        holder: DescriptorHolder,
        done: impl FnMut(DeviceOutcome) + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let (ublk, nbd, users) = (UblkAdmin::new(run_dir), NbdAdmin::new(run_dir), Users::new(run_dir));
        let mut worker = Worker { ublk, nbd, users, holder, done };
        let thread = thread::Builder::new().name("devices".into()).spawn(move || {
            if kind != Some(FrontendKind::Ublk) {
                worker.ublk.give_up_all();
            }
            if kind != Some(FrontendKind::Nbd) {
                worker.nbd.give_up_all();
            }
            worker.run(&queue);
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    pub fn submit(&self, job: DeviceJob) {
        if let Some(jobs) = &self.jobs {
            // Fails only when the thread has panicked, which the panic itself has reported.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for DeviceAdmin {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker<F> {
    ublk: UblkAdmin,
    nbd: NbdAdmin,
    users: Users,
    holder: DescriptorHolder,
    done: F,
}

impl<F: FnMut(DeviceOutcome)> Worker<F> {
    fn run(&mut self, queue: &mpsc::Receiver<DeviceJob>) {
        loop {
            let deadline = self.ublk.deadline().into_iter().chain(self.nbd.deadline()).min();
            let job = match deadline {
                None => queue.recv().ok(),
                Some(deadline) => {
                    match queue.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                        Ok(job) => Some(job),
                        Err(RecvTimeoutError::Timeout) => {
                            self.ublk.give_up_all();
                            self.nbd.give_up_all();
                            continue;
                        }
                        Err(RecvTimeoutError::Disconnected) => None,
                    }
                }
            };
            match job {
                Some(job) => self.job(job),
                None => return,
            }
        }
    }

    fn job(&mut self, job: DeviceJob) {
        match job {
            DeviceJob::Attach { resource, volume, attachment } => {
                let outcome = match self.attach(resource, volume, attachment) {
                    Ok(device) => DeviceOutcome::Attached { resource, volume, device },
                    Err(error) => DeviceOutcome::AttachFailed { resource, volume, error },
                };
                (self.done)(outcome);
            }
            DeviceJob::Detach { resource, devices } => {
                self.holder.release(resource);
                let errors = devices.into_iter().filter_map(|device| self.detach(device).err()).collect();
                (self.done)(DeviceOutcome::Detached { resource, errors });
            }
            DeviceJob::Resize { path, resizing, bytes } => {
                let device = path.display();
                match self.resize(resizing, bytes) {
                    Ok(()) => tracing::info!(%device, bytes, "the device has grown"),
                    Err(error) => {
                        let cause =
                            std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                        tracing::warn!(%device, bytes, %error, cause, "the device keeps its size until it is attached again");
                    }
                }
            }
            DeviceJob::GiveUp { resource } => {
                self.ublk.give_up(resource);
                self.nbd.give_up(resource);
            }
            DeviceJob::GiveUpLeft { resource, dir, left } => {
                tracing::warn!(%resource, "devices that the engine before has left are given up");
                self.users.kill(resource);
                self.holder.release(resource);
                unmount_stale(&dir);
                drop(left);
            }
            DeviceJob::Leave { until, left } => {
                // The receiver waits for a bounded time.
                let _ = left.send(self.holder.leave(until));
            }
            DeviceJob::Keep => self.holder.again(),
            DeviceJob::Record { resource, epoch, own } => {
                self.ublk.record(resource, epoch, own);
                self.nbd.record(resource, epoch, own);
            }
        }
    }

    fn attach(
        &mut self,
        resource: ResourceId,
        volume: VolumeId,
        attachment: Attachment,
    ) -> Result<Device, DeviceError> {
        match attachment {
            Attachment::Export { uri } => Ok(Device::Export(uri.into())),
            Attachment::Nbd(plan) => {
                let device = self.nbd.attach(&plan)?;
                Ok(device.map_or_else(|| Device::Export(plan.uri.into()), Device::Nbd))
            }
            Attachment::Loop { backing, connection } => {
                self.holder.keep(resource, connection);
                let device = LoopDevice::attach(&backing)?;
                self.holder.keep(resource, device.duplicate()?);
                Ok(Device::Loop(device))
            }
            Attachment::Left { backing, device } => Ok(Device::Loop(LoopDevice::left(&backing, &device)?)),
            Attachment::Ublk(plan) => {
                let Self { ublk, done, .. } = self;
                let mut opened = |channel| {
                    done(DeviceOutcome::Opened { resource, volume, opened: Opened::Ublk(channel) });
                };
                Ok(Device::Ublk(ublk.attach(&plan, &mut opened)?))
            }
        }
    }

    fn resize(&mut self, resizing: Resizing, bytes: u64) -> Result<(), DeviceError> {
        match resizing {
            Resizing::Loop(device) => Ok(device.resize()?),
            Resizing::Ublk { number } => Ok(self.ublk.resize(number, bytes)?),
            Resizing::Nbd { index } => Ok(self.nbd.resize(index, bytes)?),
        }
    }

    fn detach(&mut self, device: Device) -> Result<(), DeviceError> {
        match device {
            Device::Nbd(device) => self.nbd.detach(device).map_err(DeviceError::from),
            Device::Export(_) => Ok(()),
            Device::Loop(device) => device.detach().map(drop).map_err(DeviceError::from),
            Device::Ublk(device) => self.ublk.detach(device).map_err(DeviceError::from),
        }
    }
}
