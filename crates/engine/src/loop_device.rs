//! Loop devices over the files of a FUSE mount.
//!
//! Guarantees:
//! - An attached device does direct I/O in blocks of 4096 bytes. It has no page cache of its own,
//!   so a flush means what it says.
//! - The device says how long a write may be to reach the engine as one request, or why no length
//!   is safe (R26): the driver hands a request to FUSE, which cuts a request that is too long.
//! - After the engine has died, the device disappears by itself when its last user closes it
//!   (autoclear). The engine holds it open for as long as it lives, and the agent for a moment
//!   longer ([`mainstay_devices::descriptor_holder`]).

// The loop driver is controlled by ioctl.
#![allow(unsafe_code)]

use crate::ring::Fd;
use mainstay_devices::block_queue;
use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};
use thiserror::Error;

const LOOP_MAJOR: u32 = 7;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4C07;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Most numbers to try: another program may take a number between `LOOP_CTL_GET_FREE` and
/// `LOOP_CONFIGURE`.
const ATTACH_TRIES_MAX: usize = 64;
/// How long a device's state is waited for, attached or detached.
const SETTLE_MS: u64 = 2_000;
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Why a loop device could not be attached or detached.
#[derive(Debug, Error)]
pub enum LoopError {
    #[error("cannot open /dev/loop-control; is the kernel's loop module loaded?")]
    Control(#[source] io::Error),
    #[error("the kernel gave no free loop device")]
    Free(#[source] io::Error),
    #[error("cannot open {path}")]
    Open {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot attach {backing} to a loop device")]
    Configure {
        backing: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} does not do direct I/O; Mainstay needs Linux 5.8 or newer")]
    NotDirect { path: PathBuf },
    #[error("cannot make {path} as large as its volume")]
    Resize {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot detach {path}")]
    Detach {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    const fn zeroed() -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: 0,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// An attached loop device. Dropping it closes it: it then goes away with its last user.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    backing: PathBuf,
    number: u32,
    file: File,
    atomic: Result<u64, String>,
}

impl LoopDevice {
    /// Attaches `backing`. Blocks until the engine has answered the requests that this causes.
    pub fn attach(backing: &Path) -> Result<Self, LoopError> {
        let open = |path: &Path, flags: i32| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(flags);
            options.open(path).map_err(|source| LoopError::Open { path: path.to_owned(), source })
        };
        let control = File::options().read(true).write(true).open("/dev/loop-control");
        let control = control.map_err(LoopError::Control)?;
        let backing_file = open(backing, libc::O_DIRECT)?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..ATTACH_TRIES_MAX {
            // SAFETY: this ioctl takes no argument.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            let Ok(number) = u32::try_from(number) else {
                return Err(LoopError::Free(io::Error::last_os_error()));
            };
            let path = PathBuf::from(format!("/dev/loop{number}"));
            block_queue::ensure_node(&path, libc::makedev(LOOP_MAJOR, number));
            let file = match open(&path, 0) {
                // The number was taken and its device removed since.
                Err(LoopError::Open { source, .. })
                    if matches!(source.raw_os_error(), Some(libc::ENXIO | libc::ENODEV | libc::ENOENT)) =>
                {
                    last = source;
                    thread::sleep(RETRY_PAUSE);
                    continue;
                }
                result => result?,
            };
            let mut config = LoopConfig {
                fd: backing_file.as_raw_fd() as u32,
                block_size: BLOCK_BYTES as u32,
                info: LoopInfo::zeroed(),
                reserved: [0; 8],
            };
            config.info.flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_AUTOCLEAR;
            let name = backing.as_os_str().as_bytes();
            // Shown by losetup; the last byte stays zero.
            let shown = name.len().min(config.info.file_name.len() - 1);
            config.info.file_name[..shown].copy_from_slice(&name[..shown]);
            // SAFETY: `config` has the layout of `struct loop_config` and outlives the call.
            if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                let atomic = Err(String::new());
                let mut device = Self { path, backing: backing.to_owned(), number, file, atomic };
                device.check_direct()?;
                block_queue::tune(&device.path);
                device.limit_requests();
                // A setting of the number's earlier device would keep flushes from us, which mode B
                // must see.
                block_queue::set(&device.path, "write_cache", "write back");
                tracing::info!(device = %device.path.display(), backing = %backing.display(), "loop device attached");
                return Ok(device);
            }
            last = io::Error::last_os_error();
            if !matches!(last.raw_os_error(), Some(libc::EBUSY | libc::ENXIO | libc::EAGAIN | libc::EINTR)) {
                break;
            }
            thread::sleep(RETRY_PAUSE);
        }
        Err(LoopError::Configure { backing: backing.to_owned(), source: last })
    }

    /// The attached device of an engine before this one, which has left it.
    ///
    /// # Errors
    /// When it is no loop device, or there are no descriptors left.
    pub fn left(backing: &Path, device: &Fd) -> Result<Self, LoopError> {
        let fail = |source| LoopError::Open { path: backing.to_owned(), source };
        let file = File::from(device.try_clone().map_err(fail)?);
        let number = file.metadata().map_err(fail)?.rdev();
        if libc::major(number) != LOOP_MAJOR {
            return Err(fail(io::Error::from_raw_os_error(libc::ENOTBLK)));
        }
        let number = libc::minor(number);
        let path = PathBuf::from(format!("/dev/loop{number}"));
        block_queue::ensure_node(&path, libc::makedev(LOOP_MAJOR, number));
        tracing::info!(device = %path.display(), backing = %backing.display(), "loop device of the engine before goes on");
        let atomic = Err(String::new());
        let mut device = Self { path, backing: backing.to_owned(), number, file, atomic };
        device.limit_requests();
        Ok(device)
    }

    fn limit_requests(&mut self) {
        self.atomic = block_queue::limit_requests(&self.path, fuse_request_bytes_max());
        if let Err(why) = &self.atomic {
            tracing::warn!(device = %self.path.display(), why, "no write is promised to be whole");
        }
    }

    /// Longest write that reaches the engine as one request, in bytes.
    ///
    /// # Errors
    /// Why there is no such length, in words.
    pub fn atomic_write_max(&self) -> Result<u64, String> {
        self.atomic.clone()
    }

    /// A duplicate of what the engine holds: the device stays until both are closed.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn duplicate(&self) -> Result<Fd, LoopError> {
        let file = self.file.try_clone();
        let file = file.map_err(|source| LoopError::Open { path: self.path.clone(), source })?;
        Ok(Arc::new(file.into()))
    }

    /// Handle with which the device is made as large as the file behind it.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn resizing(&self) -> Result<LoopResizing, LoopError> {
        let file = self.file.try_clone();
        let file = file.map_err(|source| LoopError::Open { path: self.path.clone(), source })?;
        Ok(LoopResizing { path: self.path.clone(), backing: self.backing.clone(), file })
    }

    /// For example `/dev/loop3`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches the device, or, when it is in use, leaves it to its last user to do so by closing
    /// it. Tells which: `true` when it is gone.
    pub fn detach(self) -> Result<bool, LoopError> {
        let Self { path, file, number, .. } = self;
        let fail = |source| LoopError::Detach { path: path.clone(), source };
        let end = Instant::now() + Duration::from_millis(SETTLE_MS);
        loop {
            // SAFETY: this ioctl takes no argument.
            if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CLR_FD) } == 0 {
                break;
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::ENXIO) => break,
                Some(libc::EINTR | libc::EBUSY) if Instant::now() < end => thread::sleep(RETRY_PAUSE),
                _ => return Err(fail(error)),
            }
        }
        // While it is open the kernel only marks it: the last close, normally this one, clears it.
        drop(file);
        while backing_file_known(number) {
            if Instant::now() >= end {
                tracing::info!(device = %path.display(), "loop device is still in use and will go with its last user");
                return Ok(false);
            }
            thread::sleep(RETRY_PAUSE);
        }
        tracing::info!(device = %path.display(), "loop device detached");
        Ok(true)
    }

    fn check_direct(&self) -> Result<(), LoopError> {
        let mut info = LoopInfo::zeroed();
        // SAFETY: `info` has the layout of `struct loop_info64` and outlives the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
        if result == 0 && info.flags & LO_FLAGS_DIRECT_IO != 0 {
            return Ok(());
        }
        Err(LoopError::NotDirect { path: self.path.clone() })
    }
}

/// A loop device whose file may have grown.
#[derive(Debug)]
pub struct LoopResizing {
    path: PathBuf,
    backing: PathBuf,
    file: File,
}

impl LoopResizing {
    /// Blocks until the engine has said how large the file is.
    ///
    /// # Errors
    /// When the device is gone.
    pub fn resize(&self) -> Result<(), LoopError> {
        let fail = |source| LoopError::Resize { path: self.path.clone(), source };
        ask_for_size(&self.backing).map_err(fail)?;
        // SAFETY: this ioctl takes no argument.
        if unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_SET_CAPACITY, 0) } == 0 {
            return Ok(());
        }
        Err(fail(io::Error::last_os_error()))
    }
}

/// Longest write that FUSE does not cut, in bytes. Since Linux 6.13 an administrator may limit the
/// pages of a request to fewer than the engine asks for.
fn fuse_request_bytes_max() -> u64 {
    request_bytes_max(fs::read_to_string("/proc/sys/fs/fuse/max_pages_limit").ok().as_deref())
}

/// No page is smaller than a block.
fn request_bytes_max(pages_limit: Option<&str>) -> u64 {
    let pages = pages_limit.and_then(|limit| limit.trim().parse::<u64>().ok());
    pages.map_or(REQUEST_BYTES_MAX, |pages| REQUEST_BYTES_MAX.min(pages.saturating_mul(BLOCK_BYTES)))
}

/// Has the kernel ask for the attributes of a file anew: the driver takes the size that the kernel
/// knows.
fn ask_for_size(file: &Path) -> io::Result<()> {
    let path = CString::new(file.as_os_str().as_bytes())?;
    // SAFETY: `statx` consists of integers, for which zero is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and `stat` a valid place for the result.
    let result = unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_STATX_FORCE_SYNC, libc::STATX_SIZE, &raw mut stat)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn backing_file_known(number: u32) -> bool {
    Path::new(&format!("/sys/block/loop{number}/loop/backing_file")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_no_longer_than_fuse_may_hand_on_at_once() {
        for (limit, bytes) in
            [(None, 1 << 20), (Some("256\n"), 1 << 20), (Some("65535\n"), 1 << 20), (Some("32\n"), 128 << 10)]
        {
            assert_eq!(request_bytes_max(limit), bytes, "{limit:?}");
        }
    }
}
