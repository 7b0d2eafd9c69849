//! Counts of the kernel's tracepoints for single threads, by `perf_event_open`.
#![allow(unsafe_code, reason = "the system call takes a structure that no crate here describes")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::path::Path;

/// Counter of events that one thread causes.
pub struct Counter(File);

/// `PERF_FLAG_FD_CLOEXEC`.
const FLAG_CLOEXEC: u64 = 8;
const TYPE_TRACEPOINT: u32 = 2;
/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER1`; all but type, size and config stay zero.
const ATTR_BYTES: usize = 72;

impl Counter {
    /// Counts the events of this tracepoint that the thread causes, from now on.
    ///
    /// # Errors
    /// When the tracepoint does not exist or may not be counted.
    pub fn new(tid: i32, tracepoint: &str) -> io::Result<Self> {
        let path = Path::new("/sys/kernel/tracing/events").join(tracepoint).join("id");
        let id: u64 = std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
        let mut attr = [0u8; ATTR_BYTES];
        attr[..4].copy_from_slice(&TYPE_TRACEPOINT.to_ne_bytes());
        attr[4..8].copy_from_slice(&(ATTR_BYTES as u32).to_ne_bytes());
        attr[8..16].copy_from_slice(&id.to_ne_bytes());
        // SAFETY: the kernel reads as many bytes as the structure says it has.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, attr.as_ptr(), tid, -1i32, -1i32, FLAG_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and has no other owner.
        Ok(Self(unsafe { File::from_raw_fd(fd as i32) }))
    }

    pub fn read(&self) -> u64 {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes).expect("a counter can be read");
        u64::from_ne_bytes(bytes)
    }
}
