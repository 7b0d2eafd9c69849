//! Mapped files that cannot be read or written any more: an access would end the engine, with
//! everything that it serves.
//!
//! A process that shares memory by a file can make the file shorter at any time, and a page of
//! persistent memory can be bad. The kernel then sends SIGBUS to the thread that accesses it. A
//! handler puts zeroes in the place of the whole mapping and lets the access go on. The user of the
//! memory asks [`Guarded::is_lost`], and gives the memory up. Any other SIGBUS ends the process, as
//! without the handler. Files that are sealed against becoming shorter (QEMU's are) need none of
//! this.
//!
//! The technique is that of libwayland's `wl_shm_buffer_begin_access`, which has the same problem.

// A signal handler, and a mapping that it replaces.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most mappings at once in this process.
const PLACES: usize = 512;

/// A mapping. `start` is 0 while the place is free, 1 while it is being filled.
struct Place {
    start: AtomicUsize,
    bytes: AtomicUsize,
    lost: AtomicBool,
}

const FREE: usize = 0;
const TAKEN: usize = 1;

static TABLE: [Place; PLACES] = [const {
    Place { start: AtomicUsize::new(FREE), bytes: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; PLACES];
static INSTALL: Once = Once::new();

/// A mapping whose loss is survived, until this is dropped, which must come before the mapping
/// goes.
pub struct Guarded {
    place: &'static Place,
}

impl Guarded {
    /// `None` when there are too many.
    pub fn new(start: *mut u8, bytes: usize) -> Option<Self> {
        INSTALL.call_once(install);
        let free = |place: &&Place| {
            place.start.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = TABLE.iter().find(free)?;
        place.bytes.store(bytes, Ordering::Relaxed);
        place.lost.store(false, Ordering::Relaxed);
        place.start.store(start as usize, Ordering::Release);
        Some(Self { place })
    }

    pub fn is_lost(&self) -> bool {
        self.place.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.place.start.store(FREE, Ordering::Release);
    }
}

fn install() {
    // SAFETY: all of `sigaction` are integers, function addresses and a set, for which zero is a
    // value; the handler only does what a handler may.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | libc::SA_ONSTACK;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut())
    };
    assert!(result == 0, "SIGBUS can be handled");
}

/// Runs in the midst of an access: touches only atomics and makes system calls.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid description to a handler that was installed with SA_SIGINFO.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // A signal of another process has a code of zero or less, and no address.
    let mapping = TABLE.iter().find(|place| {
        let (start, bytes) = (place.start.load(Ordering::Acquire), place.bytes.load(Ordering::Relaxed));
        code > 0 && start > TAKEN && address.wrapping_sub(start) < bytes
    });
    if let Some(place) = mapping {
        place.lost.store(true, Ordering::Relaxed);
        // SAFETY: exactly the mapping that was registered, which only ever holds plain bytes; it
        // stays mapped, so every pointer into it stays valid.
        let zeroes = unsafe {
            libc::mmap(
                place.start.load(Ordering::Relaxed) as *mut libc::c_void,
                place.bytes.load(Ordering::Relaxed),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if zeroes != libc::MAP_FAILED {
            return;
        }
    }
    // SAFETY: takes no pointers. The access is made again, and now ends the process.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}
