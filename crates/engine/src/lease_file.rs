//! The times that engine and silencer tell each other, in a file in the run directory that both
//! have mapped (R19).
//!
//! Guarantees
//! - To note a time, or to read one, is an access to memory. It waits for no disk while the run
//!   directory is in memory, as `/run` is; [`is_in_memory`] says whether.
//! - The engine notes a lease before it reads what the silencer noted, and the silencer notes that
//!   it acts before it reads the lease. So at least one of them sees what the other does.
//! - While it says that starts are barred, a process of a service that is already in its cgroup
//!   does not begin: the agent has it look there last (`agent/src/service/footing.rs`). The bar is
//!   noted before anything is killed, so a start is either seen and killed, or sees the bar.
//! - A file that another process shortens is an error, and ends neither engine nor silencer.

// A mapping.
#![allow(unsafe_code)]

use crate::fault::Guarded;
use mainstay_types::Time;
use rustix::fs::statfs;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const FILE: &str = mainstay_api::engine::LEASE_FILE;
const BYTES: usize = 4096;
const LEASE_AT: usize = 0;
const SILENCED_AT: usize = mainstay_api::engine::SILENCED_AT;
const BOOT_AT: u64 = 16;
/// Behind the boot, which has 37 bytes.
const SILENT_AT: usize = 64;
/// The agent reads it, too.
const BARRED_AT: usize = mainstay_api::engine::STARTS_BARRED_AT;
const _: () = assert!(BARRED_AT >= SILENT_AT + 8 && BARRED_AT.is_multiple_of(8) && BARRED_AT + 8 <= BYTES);

/// Points of the boot-time clock, and the boot that they are of.
pub struct LeaseFile {
    /// Dropped before the mapping.
    guard: Guarded,
    mapping: Mapping,
}

struct Mapping(NonNull<u8>);

// SAFETY: all accesses are atomic.
unsafe impl Send for Mapping {}
// SAFETY: all accesses are atomic.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping, into which nothing points any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}

impl LeaseFile {
    /// Opens the file in a run directory. Times of an earlier boot are forgotten.
    ///
    /// # Errors
    /// When it cannot be made or mapped.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(run_dir.join(FILE))?;
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut found = vec![0; boot.len()];
        let same = file.read_exact_at(&mut found, BOOT_AT).is_ok() && found == boot;
        // A file of an earlier release, which did not note whether all is silent.
        let earlier = file.metadata()?.len() < BYTES as u64;
        if earlier {
            file.set_len(BYTES as u64)?;
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping(NonNull::new(start.cast()).expect("a mapping is never at address zero"));
        // SAFETY: exactly the mapping. Without the right to lock it, it is paged as other memory
        // is.
        unsafe { libc::mlock(start, BYTES) };
        let guard =
            Guarded::new(start.cast(), BYTES).ok_or_else(|| io::Error::other("too many mapped files"))?;
        let opened = Self { guard, mapping };
        if !same {
            for at in [LEASE_AT, SILENCED_AT, SILENT_AT, BARRED_AT] {
                opened.write(at, Time(0))?;
            }
            file.write_all_at(&boot, BOOT_AT)?;
        } else if earlier {
            opened.note_silent(opened.silenced()?)?;
        }
        Ok(opened)
    }

    fn place(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: within the page, aligned, and mapped for as long as `self`.
        unsafe { AtomicU64::from_ptr(self.mapping.0.as_ptr().add(offset).cast()) }
    }

    fn intact(&self) -> io::Result<()> {
        if self.guard.is_lost() { Err(io::Error::other("the file of the lease was cut off")) } else { Ok(()) }
    }

    fn read(&self, offset: usize) -> io::Result<Time> {
        let found = u64::from_le(self.place(offset).load(Ordering::SeqCst));
        self.intact().map(|()| Time(found))
    }

    fn write(&self, offset: usize, at: Time) -> io::Result<()> {
        self.place(offset).store(at.0.to_le(), Ordering::SeqCst);
        self.intact()
    }

    /// End of the lease that an engine was told last; 0 for none.
    ///
    /// # Errors
    /// When the file was cut off.
    pub fn lease_until(&self) -> io::Result<Time> {
        self.read(LEASE_AT)
    }

    /// Point at which the guard or a silencer acted last; 0 for never. A process of a service that
    /// began before has SIGKILL pending.
    ///
    /// # Errors
    /// When the file was cut off.
    pub fn silenced(&self) -> io::Result<Time> {
        self.read(SILENCED_AT)
    }

    /// Point at which nothing was left to silence; 0 for never.
    ///
    /// # Errors
    /// When the file was cut off.
    pub fn silent(&self) -> io::Result<Time> {
        self.read(SILENT_AT)
    }

    /// # Errors
    /// When it cannot be noted: then no step of a service may begin within this lease.
    pub fn note_lease(&self, until: Time) -> io::Result<()> {
        self.write(LEASE_AT, until)
    }

    /// # Errors
    /// When it cannot be noted.
    pub fn note_silenced(&self, at: Time) -> io::Result<()> {
        self.write(SILENCED_AT, at)
    }

    /// Since when no process of a service begins; 0 while processes may.
    ///
    /// # Errors
    /// When the file was cut off.
    pub fn barred(&self) -> io::Result<Time> {
        self.read(BARRED_AT)
    }

    /// From `at` on no process of a service begins; 0 ends that.
    ///
    /// # Errors
    /// When it cannot be noted.
    pub fn note_barred(&self, at: Time) -> io::Result<()> {
        self.write(BARRED_AT, at)
    }

    /// # Errors
    /// When it cannot be noted.
    pub fn note_silent(&self, at: Time) -> io::Result<()> {
        self.write(SILENT_AT, at)
    }
}

/// Whether what is written in a directory stays in memory.
#[must_use]
pub fn is_in_memory(directory: &Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    statfs(directory).is_ok_and(|found| matches!(found.f_type, TMPFS | RAMFS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("mainstay-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a directory");
        dir
    }

    #[test]
    fn notes_are_read_by_another_process_and_forgotten_with_the_boot() {
        let dir = directory("lease");
        let engine = LeaseFile::open(&dir).expect("a file");
        assert_eq!(engine.lease_until().expect("read"), Time(0));
        engine.note_lease(Time(7)).expect("written");
        let silencer = LeaseFile::open(&dir).expect("the same file");
        assert_eq!(silencer.lease_until().expect("read"), Time(7));
        silencer.note_silenced(Time(6)).expect("written");
        silencer.note_silent(Time(5)).expect("written");
        assert_eq!((engine.silenced().expect("read"), engine.silent().expect("read")), (Time(6), Time(5)));
        let file = File::options().write(true).open(dir.join(FILE)).expect("the file");
        file.write_all_at(b"another boot", BOOT_AT).expect("written");
        let later = LeaseFile::open(&dir).expect("the same file");
        let found = [later.lease_until(), later.silenced(), later.silent()];
        assert_eq!(found.map(|found| found.expect("read")), [Time(0); 3]);
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn the_file_of_an_earlier_release_is_taken_over() {
        let dir = directory("earlier-lease");
        let boot = fs::read("/proc/sys/kernel/random/boot_id").expect("Linux");
        let bytes = [&7u64.to_le_bytes()[..], &6u64.to_le_bytes(), &boot].concat();
        fs::write(dir.join(FILE), bytes).expect("written");
        let file = LeaseFile::open(&dir).expect("the file");
        let found = [file.lease_until(), file.silenced(), file.silent()];
        assert_eq!(found.map(|found| found.expect("read")), [Time(7), Time(6), Time(6)]);
        fs::remove_dir_all(&dir).expect("removed");
    }

    #[test]
    fn a_file_truncated_by_another_program_is_an_error() {
        let dir = directory("cut-lease");
        let noted = LeaseFile::open(&dir).expect("a file");
        noted.note_lease(Time(7)).expect("written");
        File::options().write(true).open(dir.join(FILE)).and_then(|file| file.set_len(0)).expect("cut off");
        assert!(noted.note_lease(Time(8)).is_err() && noted.lease_until().is_err());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
