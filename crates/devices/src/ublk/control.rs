//! Control commands of ublk, one after the other, on a ring of their own: they need SQEs of 128
//! bytes, and some of them wait for the shard. For the device thread, never for the shard.
//!
//! Guarantee: no command lasts longer than its limit, because it is cancelled then;
//! memory that the kernel may write stays until the command has ended.

// A command carries the address of its buffer.
#![allow(unsafe_code)]

use super::abi::{self, DEVICE_INFO_BYTES, DeviceInfo, PARAMS_BYTES};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use thiserror::Error;

/// Time limit for commands that do not wait for the shard or for users of the device.
const QUICK: Duration = Duration::from_secs(10);
/// Time limit for the end of a command that was cancelled.
const CANCEL_WAIT: Duration = Duration::from_secs(10);
/// Commands are numbered from 1 on.
const CANCEL: u64 = 0;
/// Asks the kernel to choose the number of a new device.
const ANY_DEVICE: u32 = u32::MAX;
/// `ENOTSUPP`, which the kernel should not show and does.
const NOT_SUPPORTED_INSIDE: i32 = 524;

/// Why ublk did not do what it was told.
#[derive(Debug, Error)]
pub enum UblkError {
    #[error("cannot open {}; is the kernel's ublk_drv module loaded?", abi::CONTROL_NODE)]
    Control(#[source] io::Error),
    #[error("cannot make a ring for commands of ublk")]
    Ring(#[source] io::Error),
    #[error("this kernel's ublk lacks {0}")]
    Lacks(&'static str),
    #[error("{command} of ublk device {device} failed")]
    Command {
        command: &'static str,
        device: u32,
        #[source]
        source: io::Error,
    },
    #[error("cannot use {path}")]
    Queue {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("ublk device {device} {what}")]
    Unfit { device: u32, what: String },
}

impl UblkError {
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Command { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// The device is in use by a process that has not quite ended; it passes.
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(libc::EBUSY)
    }

    fn is_unknown_command(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL | NOT_SUPPORTED_INSIDE))
    }
}

/// An open `/dev/ublk-control`.
pub struct Control {
    file: File,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    features: u64,
    /// Number of the last command.
    last: u64,
}

impl Control {
    /// Opens it and asks what this kernel's ublk can do.
    ///
    /// # Errors
    /// When there is none, or it lacks one of [`abi::NEEDED`].
    pub fn open() -> Result<Self, UblkError> {
        let file = File::options().read(true).write(true).open(abi::CONTROL_NODE);
        let file = file.map_err(UblkError::Control)?;
        let ring = IoUring::<squeue::Entry128, cqueue::Entry>::builder().build(4).map_err(UblkError::Ring)?;
        let mut control = Self { file, ring, features: 0, last: CANCEL };
        let mut features = [0; 8];
        control.with_buffer("GET_FEATURES", abi::GET_FEATURES, 0, &mut features).map_err(|error| {
            if error.is_unknown_command() {
                UblkError::Lacks("the command that tells its features")
            } else {
                error
            }
        })?;
        control.features = u64::from_ne_bytes(features);
        match abi::NEEDED.iter().find(|(bit, _)| control.features & bit == 0) {
            Some((_, name)) => Err(UblkError::Lacks(name)),
            None => Ok(control),
        }
    }

    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Makes a device with one queue, not yet started.
    pub fn add(&mut self, depth: u16, cookie: u64) -> Result<DeviceInfo, UblkError> {
        let flags = abi::NEEDED.iter().fold(0, |flags, (bit, _)| flags | bit);
        let wanted = DeviceInfo { queues: 1, depth, state: 0, device: ANY_DEVICE, pid: 0, flags, cookie };
        let mut buffer = wanted.encode();
        self.with_buffer("ADD_DEV", abi::ADD_DEV, ANY_DEVICE, &mut buffer)?;
        let made = DeviceInfo::decode(&buffer);
        if made.flags & flags != flags {
            let _ = self.delete(made.device);
            let what = format!("has features {:#x} instead of {flags:#x}", made.flags);
            return Err(UblkError::Unfit { device: made.device, what });
        }
        Ok(made)
    }

    pub fn info(&mut self, device: u32) -> Result<DeviceInfo, UblkError> {
        let mut buffer = [0; DEVICE_INFO_BYTES];
        self.with_buffer("GET_DEV_INFO", abi::GET_DEV_INFO, device, &mut buffer)?;
        Ok(DeviceInfo::decode(&buffer))
    }

    pub fn set_params(&mut self, device: u32, volume_bytes: u64) -> Result<(), UblkError> {
        let mut buffer = abi::params(volume_bytes);
        self.with_buffer("SET_PARAMS", abi::SET_PARAMS, device, &mut buffer)
    }

    /// Makes a device as large as its volume has become.
    pub fn resize(&mut self, device: u32, volume_bytes: u64) -> Result<(), UblkError> {
        if self.features & abi::UPDATE_SIZE_OFFERED == 0 {
            return Err(UblkError::Lacks("a command that makes a device larger; Linux 6.16 has it"));
        }
        let sectors = volume_bytes / abi::SECTOR_BYTES;
        self.command("UPDATE_SIZE", abi::UPDATE_SIZE, device, (0, 0), sectors, QUICK)
    }

    /// Bytes of the volume that the device was made for.
    pub fn volume_bytes(&mut self, device: u32) -> Result<u64, UblkError> {
        let mut buffer = [0; PARAMS_BYTES];
        buffer[..4].copy_from_slice(&(PARAMS_BYTES as u32).to_ne_bytes());
        self.with_buffer("GET_PARAMS", abi::GET_PARAMS, device, &mut buffer)?;
        Ok(abi::params_volume_bytes(&buffer))
    }

    /// Starts a device. Waits until the shard has fetched on all tags, and has answered what the
    /// kernel reads to look for partitions.
    pub fn start(&mut self, device: u32, limit: Duration) -> Result<(), UblkError> {
        self.command("START_DEV", abi::START_DEV, device, (0, 0), own_pid(), limit)
    }

    pub fn start_recovery(&mut self, device: u32) -> Result<(), UblkError> {
        self.command("START_USER_RECOVERY", abi::START_USER_RECOVERY, device, (0, 0), 0, QUICK)
    }

    /// Lets a device go on. Waits until the shard has fetched on all tags.
    pub fn end_recovery(&mut self, device: u32, limit: Duration) -> Result<(), UblkError> {
        self.command("END_USER_RECOVERY", abi::END_USER_RECOVERY, device, (0, 0), own_pid(), limit)
    }

    /// Ends a device: requests that are queued in it fail. Waits until its server has answered
    /// those that it holds.
    pub fn stop(&mut self, device: u32, limit: Duration) -> Result<(), UblkError> {
        self.command("STOP_DEV", abi::STOP_DEV, device, (0, 0), 0, limit)
    }

    /// Removes a device; it goes with its last user.
    pub fn delete(&mut self, device: u32) -> Result<(), UblkError> {
        match self.command("DEL_DEV_ASYNC", abi::DEL_DEV_ASYNC, device, (0, 0), 0, QUICK) {
            // Older than 6.9. This command waits for the last user, who may take longer than we
            // wait.
            Err(error) if error.is_unknown_command() => {
                self.command("DEL_DEV", abi::DEL_DEV, device, (0, 0), 0, QUICK)
            }
            result => result,
        }
    }

    fn with_buffer(
        &mut self,
        name: &'static str,
        op: u32,
        device: u32,
        buffer: &mut [u8],
    ) -> Result<(), UblkError> {
        // A command that could not be ended may write into this for ever: then it is not freed.
        let mut place = buffer.to_vec().into_boxed_slice();
        let at = (place.as_mut_ptr() as u64, place.len() as u16);
        let result = self.command(name, op, device, at, 0, QUICK);
        let unfinished = matches!(&result, Err(error) if error.errno() == Some(libc::ETIME));
        buffer.copy_from_slice(&place);
        if unfinished {
            std::mem::forget(place);
        }
        result
    }

    fn command(
        &mut self,
        name: &'static str,
        op: u32,
        device: u32,
        buffer: (u64, u16),
        data: u64,
        limit: Duration,
    ) -> Result<(), UblkError> {
        let bytes = abi::control(device, buffer, data);
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), op).cmd(bytes).build();
        self.last += 1;
        let result = self.run(entry.user_data(self.last), limit);
        result.map_err(|source| UblkError::Command { command: name, device, source })
    }

    fn run(&mut self, entry: squeue::Entry128, limit: Duration) -> io::Result<()> {
        self.push(&entry);
        if let Some(result) = self.wait(limit)? {
            return result;
        }
        let cancel = opcode::AsyncCancel::new(self.last).build().user_data(CANCEL);
        self.push(&cancel.into());
        match self.wait(CANCEL_WAIT)? {
            // It may have succeeded at the last moment.
            Some(result) => result,
            None => Err(io::Error::from_raw_os_error(libc::ETIME)),
        }
    }

    fn push(&mut self, entry: &squeue::Entry128) {
        // SAFETY: the buffer that a command names is kept by `with_buffer` until the command has
        // ended, the descriptor by `self`.
        let pushed = unsafe { self.ring.submission().push(entry) };
        assert!(pushed.is_ok(), "at most a command and its cancellation are in the queue");
    }

    /// The result of the command; `None` when it takes longer.
    fn wait(&mut self, limit: Duration) -> io::Result<Option<io::Result<()>>> {
        let end = std::time::Instant::now() + limit;
        loop {
            for entry in self.ring.completion() {
                if entry.user_data() == self.last {
                    let result = entry.result();
                    return Ok(Some(if result < 0 {
                        Err(io::Error::from_raw_os_error(-result))
                    } else {
                        Ok(())
                    }));
                }
            }
            let left = end.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let spec = types::Timespec::from(left);
            match self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&spec)) {
                Ok(_) => {}
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EAGAIN)) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn own_pid() -> u64 {
    u64::from(std::process::id())
}
