//! The two clocks of an agent: boot time for decisions, wall time for display, and for when scrubs
//! are due.

pub use mainstay_devices::clock::boot_now;
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970: for display, and for when scrubs are due.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
