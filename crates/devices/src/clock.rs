//! State of the machine's wall clock.

// The clock is asked by a system call with a pointer.
#![allow(unsafe_code)]

use std::io;

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
