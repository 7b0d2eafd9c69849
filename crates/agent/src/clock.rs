//! The two clocks of an agent: boot time for decisions, wall time for display, and for when scrubs
//! are due.

use mainstay_types::Time;
use nix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Boot-time clock of this machine: goes on during suspend and never steps (R10).
#[must_use]
pub fn boot_now() -> Time {
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every supported kernel has a boot-time clock");
    let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec()).unwrap_or(0);
    Time(seconds * 1_000_000 + nanoseconds / 1_000)
}

/// Milliseconds since 1970: for display, and for when scrubs are due.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
