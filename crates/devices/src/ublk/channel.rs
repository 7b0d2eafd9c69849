//! `/dev/ublkcN`: where requests of one device are described, and their payloads copied.

// The descriptors lie in memory that the kernel writes.
#![allow(unsafe_code)]

use super::abi::{self, DESCRIPTOR_BYTES, Descriptor};
use super::control::UblkError;
use crate::Fd;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// udev makes the node, or devtmpfs does; either may take a moment.
const NODE_WAIT: Duration = Duration::from_secs(5);
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The open end of a device.
#[derive(Debug)]
pub struct Channel {
    /// For commands.
    pub fd: Fd,
    /// The same, for payloads.
    file: File,
    descriptors: Descriptors,
    pub depth: u16,
}

impl Channel {
    /// Opens the first queue of a device.
    pub fn open(device: u32, depth: u16) -> Result<Self, UblkError> {
        let path = format!("/dev/ublkc{device}");
        let fail = |source| UblkError::Queue { path: path.clone(), source };
        let end = Instant::now() + NODE_WAIT;
        let file = loop {
            match File::options().read(true).write(true).open(&path) {
                Ok(file) => break file,
                Err(error)
                    if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EBUSY | libc::EACCES))
                        && Instant::now() < end =>
                {
                    thread::sleep(RETRY_PAUSE);
                }
                Err(error) => return Err(fail(error)),
            }
        };
        let descriptors = Descriptors::map(&file, depth).map_err(fail)?;
        let fd: Fd = Arc::new(file.try_clone().map_err(fail)?.into());
        Ok(Self { fd, file, descriptors, depth })
    }

    /// The request that a command of this tag has brought.
    pub fn request(&self, tag: u16) -> Descriptor {
        self.descriptors.get(tag)
    }

    /// Copies the payload of a write out of the kernel: the one copy that is made of it.
    pub fn read_payload(&self, tag: u16, payload: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(payload, abi::payload_position(0, tag))
    }

    /// Copies a part of what a read has found into the kernel.
    pub fn write_payload(&self, tag: u16, at: u64, piece: &[u8]) -> io::Result<()> {
        self.file.write_all_at(piece, abi::payload_position(0, tag) + at)
    }
}

#[derive(Debug)]
struct Descriptors {
    start: NonNull<u8>,
    depth: u16,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Descriptors` is its only owner.
unsafe impl Send for Descriptors {}

impl Descriptors {
    fn map(file: &File, depth: u16) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                abi::descriptors_bytes(depth),
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: NonNull::new(start.cast()).expect("a mapping is never at address zero"), depth })
    }

    fn get(&self, tag: u16) -> Descriptor {
        assert!(tag < self.depth, "tag {tag} of a queue of {}", self.depth);
        // SAFETY: within the mapping by the assertion; any bytes are a value of the array. The
        // kernel writes a descriptor before it completes the command of its tag and not again
        // before it gets the next one, so nothing is torn.
        let bytes = unsafe {
            self.start.as_ptr().cast::<[u8; DESCRIPTOR_BYTES]>().add(usize::from(tag)).read_volatile()
        };
        Descriptor::decode(&bytes)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: exactly one mapping, and no other pointer into it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), abi::descriptors_bytes(self.depth)) };
    }
}
