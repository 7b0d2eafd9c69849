//! Block devices: made of the volumes of a frontend, and taken away again.
//!
//! Attaching and detaching make the kernel send requests to the very engine that asks for it, and therefore
//! happen on a thread of their own: [`DeviceAdmin`]. It is not on the path of any request.
//!
//! What this file guarantees: every job is answered once, in the order in which jobs were given. What a kind of device
//! needs is in the file of its own: [`crate::loop_device`].

use crate::loop_device::{LoopDevice, LoopError};
use mainstay_types::{ResourceId, VolumeId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use thiserror::Error;

/// Why a device could not be attached or detached.
#[derive(Debug, Error)]
pub enum DeviceError {
    #[error(transparent)]
    Loop(#[from] LoopError),
}

/// How a volume of a frontend becomes a block device; see [`Frontend::attachment`](crate::frontend::Frontend).
#[derive(Debug)]
pub enum Attachment {
    /// A loop device over this file.
    Loop { backing: PathBuf },
}

/// An attached block device. Dropping it closes what the engine holds of it.
#[derive(Debug)]
pub enum Device {
    Loop(LoopDevice),
}

impl Device {
    fn attach(attachment: Attachment) -> Result<Self, DeviceError> {
        match attachment {
            Attachment::Loop { backing } => Ok(Self::Loop(LoopDevice::attach(&backing)?)),
        }
    }

    /// For example `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Loop(device) => device.path(),
        }
    }

    /// Takes the device away, or leaves it to its last user to do so by closing it. Tells which: `true` when it is gone.
    pub fn detach(self) -> Result<bool, DeviceError> {
        match self {
            Self::Loop(device) => Ok(device.detach()?),
        }
    }
}

/// What [`DeviceAdmin`] is asked to do.
#[derive(Debug)]
pub enum DeviceJob {
    /// Make a block device of a volume.
    Attach { resource: ResourceId, volume: VolumeId, attachment: Attachment },
    /// Detach these. The frontend behind them must either still answer, or have been detached before, so that
    /// what the kernel still wants to write fails instead of waiting.
    Detach { resource: ResourceId, devices: Vec<Device> },
}

/// How a job ended.
#[derive(Debug)]
pub enum DeviceOutcome {
    Attached {
        resource: ResourceId,
        volume: VolumeId,
        device: Device,
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

/// The thread that attaches and detaches devices. Jobs are done one after the other; the queue is bounded by
/// the number of volumes, because the shard has at most one job per volume in it.
pub struct DeviceAdmin {
    jobs: Option<mpsc::Sender<DeviceJob>>,
    thread: Option<JoinHandle<()>>,
}

impl DeviceAdmin {
    /// Starts the thread. `done` is called on it after every job, and must not block on the shard.
    pub fn start(mut done: impl FnMut(DeviceOutcome) + Send + 'static) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let thread = thread::Builder::new().name("devices".into()).spawn(move || {
            for job in queue {
                done(run(job));
            }
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

fn run(job: DeviceJob) -> DeviceOutcome {
    match job {
        DeviceJob::Attach { resource, volume, attachment } => match Device::attach(attachment) {
            Ok(device) => DeviceOutcome::Attached { resource, volume, device },
            Err(error) => DeviceOutcome::AttachFailed { resource, volume, error },
        },
        DeviceJob::Detach { resource, devices } => {
            let errors = devices.into_iter().filter_map(|device| device.detach().err()).collect();
            DeviceOutcome::Detached { resource, errors }
        }
    }
}
