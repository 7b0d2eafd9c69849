//! Counts what every thread takes from the allocator. A binary that wants the counts makes
//! [`Counting`] its global allocator.
#![allow(unsafe_code, reason = "an allocator is unsafe to implement; this one only counts and passes on")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Threads beyond the last share its place.
const THREADS_MAX: usize = 256;

static COUNTS: [AtomicU64; THREADS_MAX] = [const { AtomicU64::new(0) }; THREADS_MAX];
static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Where this thread counts; without a destructor, so that it needs no allocation itself.
    static PLACE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Where the calling thread counts.
pub fn place() -> usize {
    PLACE.with(|place| {
        if place.get() == usize::MAX {
            place.set(NEXT.fetch_add(1, Ordering::Relaxed).min(THREADS_MAX - 1));
        }
        place.get()
    })
}

/// Allocations of the thread with this place since it began; growing what was allocated is one as
/// well.
pub fn count(place: usize) -> u64 {
    COUNTS[place].load(Ordering::Relaxed)
}

pub struct Counting;

impl Counting {
    fn note() {
        COUNTS[place()].fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promised.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::note();
        // SAFETY: as the caller promised.
        unsafe { System.realloc(memory, layout, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(memory, layout) }
    }
}
