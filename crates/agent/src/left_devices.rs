//! Devices of an engine that died. The kernel may keep the devices and all requests to them. Then
//! the next engine goes on where this one ended, and programs see only a pause.
//!
//! What this file guarantees: the pause is bounded (R20). The devices fail after [`LEFT_MAX`]
//! without an engine. While a service runs, they fail after [`IN_USE_MAX`]: the service is stopped
//! after the death of its engine, and cannot stop while its device hangs (R19). Devices of a living
//! engine are not touched. No service sees a device fail, because `fail` kills the services first.

use crate::threads::spawn;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time without an engine after which its devices fail. An engine that came back keeps them for as
/// long itself.
pub const LEFT_MAX: Duration = Duration::from_secs(30);

/// Longer than it takes to connect to an engine that lives, as an agent must that has just started.
const IN_USE_MAX: Duration = Duration::from_secs(1);

/// Absence of the engine, as its agent sees it.
pub struct LeftDevices {
    run_dir: PathBuf,
    fail: fn(&Path),
    absent: Option<Absent>,
}

struct Absent {
    since: Instant,
    failed: bool,
}

impl LeftDevices {
    /// `fail` makes devices fail that are left in a run directory; it may wait for the kernel.
    #[must_use]
    pub fn new(run_dir: PathBuf, fail: fn(&Path)) -> Self {
        Self { run_dir, fail, absent: None }
    }

    /// To be called now and then, and when the engine comes or goes. `in_use`: a service runs that
    /// is not silent.
    pub fn look(&mut self, connected: bool, in_use: bool) {
        if self.is_due(Instant::now(), connected, in_use) {
            tracing::warn!(in_use, "the engine is gone: what it has left of its devices fails from now on");
            let (run_dir, fail) = (self.run_dir.clone(), self.fail);
            spawn("agent-devices", move || fail(&run_dir));
        }
    }

    fn is_due(&mut self, now: Instant, connected: bool, in_use: bool) -> bool {
        if connected {
            self.absent = None;
            return false;
        }
        let absent = self.absent.get_or_insert(Absent { since: now, failed: false });
        let limit = if in_use { IN_USE_MAX } else { LEFT_MAX };
        let due = !absent.failed && now.duration_since(absent.since) >= limit;
        absent.failed |= due;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_is_bounded_and_short_under_a_service() {
        let mut left = LeftDevices::new(PathBuf::new(), |_| ());
        let start = Instant::now();
        assert!(!left.is_due(start, true, true), "an engine that is there keeps its devices");
        assert!(!left.is_due(start, false, false));
        assert!(!left.is_due(start + LEFT_MAX / 2, false, false));
        assert!(left.is_due(start + LEFT_MAX, false, false));
        assert!(!left.is_due(start + LEFT_MAX * 2, false, true), "once for each absence");
        assert!(!left.is_due(start + LEFT_MAX * 2, true, true));
        assert!(!left.is_due(start + LEFT_MAX * 3, false, true), "it may only have lost its connection");
        assert!(left.is_due(start + LEFT_MAX * 3 + IN_USE_MAX, false, true));
    }
}
