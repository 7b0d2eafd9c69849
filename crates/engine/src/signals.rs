//! The signals that tell an engine to end: SIGTERM and SIGINT.

// Signals are system calls with pointers.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

fn ends() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `sigemptyset` makes a whole set of the place that it is given, and the signals exist.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGINT);
        set.assume_init()
    }
}

/// Blocks SIGTERM and SIGINT, which stay pending until [`wait`] takes them. This holds for the
/// calling thread and for threads that it starts from now on.
pub fn block() {
    let set = ends();
    // SAFETY: the set is valid for the call, and the mask before it is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for one of the signals that end the engine.
pub fn wait() {
    let (set, mut signal) = (ends(), 0);
    // SAFETY: both are valid for the call. It fails for sets that are not valid only.
    unsafe { libc::sigwait(&raw const set, &raw mut signal) };
}
