//! The machine's clocks.

// A clock is asked by a system call with a pointer.
#![allow(unsafe_code)]

use mainstay_types::Time;
use std::io;

/// The boot-time clock of this machine: it goes on during suspend and never steps (R10).
#[inline]
#[must_use]
pub fn boot_now() -> Time {
    let mut spec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `spec` is a valid place for the result.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut spec) };
    assert!(result == 0, "Linux has had CLOCK_BOOTTIME since 2.6.39");
    Time(spec.tv_sec as u64 * 1_000_000 + spec.tv_nsec as u64 / 1000)
}

/// Whether a time service keeps the wall clock right, as the kernel knows it.
///
/// # Errors
/// When the kernel does not say.
pub fn is_synchronised() -> io::Result<bool> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut clock: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the place is valid for the call. No mode is set, so nothing changes.
    let state = unsafe { libc::adjtimex(&raw mut clock) };
    if state < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0)
}
