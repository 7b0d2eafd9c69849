//! A file that is persistent memory: mapped, written by stores, durable without a system call.
//!
//! Guarantees:
//! - [`Memory::map`] takes only persistent memory: `MAP_SYNC` succeeds only where the file system
//!   maps the memory itself (DAX) and keeps the metadata of the mapping durable. It takes volatile
//!   memory (tmpfs) only where the caller says so.
//! - When [`Memory::finish`] has returned success, everything that was put before survives a power
//!   cut. Before that, each word of 8 bytes may survive or not. Nothing that is put after it
//!   becomes durable before it.
//! - Memory that fails under an access (a bad page, a file that was cut short) ends no process: the
//!   access goes on with zeroes. Its [`Memory::finish`] or [`Memory::get`] fails, and so does every
//!   later one, see [`crate::fault`].
//!
//! Stores are non-temporal: they pass by the caches, so whole lines need no write-back and no line
//! is left dirty. The fence at the end orders and drains them (Intel, *Software Developer's Manual*
//! vol. 1, 10.4.6.2 and vol. 3, 11.10; the same choice as `pmem_memcpy_nodrain` of PMDK makes for
//! anything long). Bytes at the edges of a piece that fill no line are stored as usual, and the
//! line is flushed by `clflush`, which every x86-64 has.
//!
//! Only x86-64 has code for it; elsewhere nothing is taken, and files are written as files.

// A mapping, and stores into it that the language has no words for.
#![allow(unsafe_code)]

use crate::fault::Guarded;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};
use thiserror::Error;

/// Why an access failed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    #[error("{len} bytes at {offset} reach beyond the end, {bytes}")]
    Beyond { offset: u64, len: usize, bytes: usize },
    #[error("the memory cannot be accessed: a page is bad, or the file was cut short")]
    Lost,
}

/// See the top of this file.
pub struct Memory {
    /// Before the mapping, so that it is dropped before it.
    guard: Guarded,
    mapping: Mapping,
}

/// Exactly one shared mapping of a file.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and `Mapping` is its only owner.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference the mapping is only read.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are exactly one mapping, and no pointer into it leaves this
        // file.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Memory {
    /// Maps `bytes` bytes of a file that is mapped for writing nowhere else. `None`: it is a file
    /// as any other. `volatile`: it is taken as memory though a power cut loses it.
    ///
    /// # Errors
    /// When it is such memory and cannot be used, for example because a page is bad.
    pub fn map(file: &File, bytes: u64, volatile: bool) -> io::Result<Option<Self>> {
        if !cfg!(target_arch = "x86_64") {
            return Ok(None);
        }
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let kind = if volatile { libc::MAP_SHARED } else { libc::MAP_SHARED_VALIDATE | libc::MAP_SYNC };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                kind,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            let ordinary =
                matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENODEV));
            return if ordinary && !volatile { Ok(None) } else { Err(error) };
        }
        let mapping =
            Mapping { start: NonNull::new(start.cast()).expect("a mapping is never at address zero"), bytes };
        // SAFETY: exactly the mapping, which is only populated.
        if unsafe { libc::madvise(start, bytes, libc::MADV_POPULATE_WRITE) } != 0 {
            let error = io::Error::last_os_error();
            // A kernel or file system that cannot populate does so at the first access.
            if error.raw_os_error() != Some(libc::EINVAL) {
                return Err(error);
            }
        }
        // Too many mappings are guarded already: it is written as a file.
        Ok(Guarded::new(start.cast(), bytes).map(|guard| Self { guard, mapping }))
    }

    /// Where `len` bytes at `offset` are.
    fn place(&self, offset: u64, len: usize) -> Result<NonNull<u8>, Fault> {
        let bytes = self.mapping.bytes;
        let at =
            usize::try_from(offset).ok().filter(|at| at.checked_add(len).is_some_and(|end| end <= bytes));
        let at = at.ok_or(Fault::Beyond { offset, len, bytes })?;
        // SAFETY: within the mapping, as was just checked.
        Ok(unsafe { self.mapping.start.add(at) })
    }

    fn intact(&self) -> Result<(), Fault> {
        // The handler of the signal runs on this thread, in the midst of the access.
        compiler_fence(Ordering::SeqCst);
        if self.guard.is_lost() { Err(Fault::Lost) } else { Ok(()) }
    }

    /// Stores `data` at `offset` and returns where it ends. Not durable before
    /// [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`Fault::Beyond`]; nothing is stored then.
    pub fn put(&mut self, offset: u64, data: &[u8]) -> Result<u64, Fault> {
        let place = self.place(offset, data.len())?;
        // SAFETY: `data.len()` bytes from `place` on are mapped for writing, and `self` is borrowed
        // exclusively; `data` is not of the mapping, because nothing lends references into it.
        unsafe { stream::copy(place.as_ptr(), data) };
        Ok(offset + data.len() as u64)
    }

    /// Returns when all that was put is durable.
    ///
    /// # Errors
    /// [`Fault::Lost`]; it is not known then what is durable.
    pub fn finish(&mut self) -> Result<(), Fault> {
        stream::fence();
        self.intact()
    }

    /// Copies out of the memory.
    ///
    /// # Errors
    /// See [`Fault`]; `into` is worthless then.
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        let place = self.place(offset, into.len())?;
        // SAFETY: `into.len()` bytes from `place` on are mapped; `into` is other memory, because
        // nothing lends references into the mapping. They do not change meanwhile: a write needs
        // `self` exclusively, and the file is locked.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), into.as_mut_ptr(), into.len()) };
        self.intact()
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({})", self.mapping.bytes)
    }
}

#[cfg(target_arch = "x86_64")]
mod stream {
    use std::arch::x86_64::{__m128i, _mm_clflush, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    /// Bytes of a line of the cache.
    const LINE: usize = 64;
    const WORD: usize = size_of::<__m128i>();

    /// Copies so that nothing stays in the caches; ordered and durable only after [`fence`].
    ///
    /// # Safety
    /// `to` is valid for writing `data.len()` bytes, none of which are of `data`.
    pub unsafe fn copy(to: *mut u8, data: &[u8]) {
        let to_line = (LINE - to as usize % LINE) % LINE;
        let (head, rest) = data.split_at(to_line.min(data.len()));
        let (lines, tail) = rest.split_at(rest.len() - rest.len() % LINE);
        // SAFETY: head, lines and tail lie one after the other within `data.len()` bytes.
        unsafe {
            edge(to, head);
            let mut at = to.add(head.len()).cast::<__m128i>();
            for word in lines.chunks_exact(WORD) {
                // Every x86-64 has SSE2. The place is aligned to a line, so to a word; the source
                // need not be.
                _mm_stream_si128(at, _mm_loadu_si128(word.as_ptr().cast()));
                at = at.add(1);
            }
            edge(at.cast(), tail);
        }
    }

    /// Less than a line, within one.
    ///
    /// # Safety
    /// As for [`copy`].
    unsafe fn edge(to: *mut u8, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        // SAFETY: the caller's obligations are the same; `to` is a valid address of the line.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len());
            _mm_clflush(to);
        }
    }

    /// Everything that was copied is in the domain that a power cut does not reach, before anything
    /// that is stored later.
    pub fn fence() {
        // SAFETY: every x86-64 has the instruction, and it touches no memory.
        unsafe { _mm_sfence() };
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod stream {
    /// # Safety
    /// As for the other one.
    pub unsafe fn copy(_: *mut u8, _: &[u8]) {
        unreachable!("nothing is mapped here");
    }

    pub fn fence() {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const BYTES: usize = 64 << 10;

    /// A file on tmpfs; `None` where there is none.
    fn file() -> Option<File> {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(format!(
            "/dev/shm/mainstay-memory-{:?}-{}",
            std::thread::current().id(),
            std::process::id()
        ));
        let file = file.ok()?;
        file.set_len(BYTES as u64).ok()?;
        Some(file)
    }

    fn remove() {
        let path =
            format!("/dev/shm/mainstay-memory-{:?}-{}", std::thread::current().id(), std::process::id());
        std::fs::remove_file(path).expect("was made");
    }

    /// Against an array of bytes: any length at any place, aligned or not.
    #[test]
    fn bytes_put_into_the_mapping_are_read_back_and_are_in_the_file() {
        let Some(file) = file() else { return };
        remove();
        let mut memory = Memory::map(&file, BYTES as u64, true).expect("mapped").expect("x86-64");
        let mut model = vec![0u8; BYTES];
        let mut seed = 7u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        for round in 0..3000u32 {
            let len = [random(200), random(9000), 4096, 0][random(4)];
            let at = if round % 3 == 0 { random(14) * 4096 } else { random(BYTES - len) };
            let skew = random(17);
            let data: Vec<u8> = (0..len + skew).map(|n| (n as u32 * 7 + round) as u8).collect();
            assert_eq!(memory.put(at as u64, &data[skew..]), Ok((at + len) as u64));
            memory.finish().expect("the memory is good");
            model[at..at + len].copy_from_slice(&data[skew..]);
            let (from, count) = (random(BYTES - 5000), random(5000));
            let mut found = vec![0; count];
            memory.get(from as u64, &mut found).expect("the memory is good");
            assert!(found == model[from..from + count], "round {round}");
        }
        let mut found = vec![0; BYTES];
        file.read_exact_at(&mut found, 0).expect("readable");
        assert!(found == model, "the file holds what was stored");
    }

    #[test]
    fn no_access_reaches_beyond_the_end_of_the_mapping() {
        let Some(file) = file() else { return };
        remove();
        let mut memory = Memory::map(&file, BYTES as u64, true).expect("mapped").expect("x86-64");
        for offset in [BYTES as u64 - 4095, BYTES as u64, u64::MAX - 5] {
            assert!(matches!(memory.put(offset, &[1; 4096]), Err(Fault::Beyond { .. })));
            assert!(matches!(memory.get(offset, &mut [0; 4096]), Err(Fault::Beyond { .. })));
        }
        memory.finish().expect("the memory is good");
    }

    /// A page that is gone is answered by the same signal as one that is bad.
    #[test]
    fn memory_that_fails_under_an_access_is_an_error_from_then_on() {
        let Some(file) = file() else { return };
        remove();
        let mut memory = Memory::map(&file, BYTES as u64, true).expect("mapped").expect("x86-64");
        memory.put(0, &[5; 4096]).expect("within");
        memory.finish().expect("the memory is good");
        file.set_len(32 << 10).expect("shortened");
        memory.put(40 << 10, &[6; 4096]).expect("within");
        assert_eq!(memory.finish(), Err(Fault::Lost));
        assert_eq!(memory.get(0, &mut [0; 4096]), Err(Fault::Lost));
        memory.put(0, &[7; 4096]).expect("within");
        assert_eq!(memory.finish(), Err(Fault::Lost));
        let mut first = [0; 1];
        file.read_exact_at(&mut first, 0).expect("readable");
        assert_eq!(first, [5], "nothing is stored into the file after the fault");
    }

    /// tmpfs loses what it holds, so it is not taken for persistent memory.
    #[test]
    fn volatile_memory_is_not_taken_for_persistent_memory() {
        let Some(file) = file() else { return };
        remove();
        assert!(Memory::map(&file, BYTES as u64, false).expect("no error").is_none());
    }
}
