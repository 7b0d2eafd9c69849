//! Devices of an engine that died. The kernel may keep the devices and all requests to them. Then
//! the next engine goes on where this one ended, and programs see only a pause.
//!
//! Guarantee: the devices fail when the absence of the engine has lasted for too
//! long, which [`mainstay_silence::Absence`] decides (R20). Devices of a living engine are not
//! touched. No service sees a device fail, because `fail` kills the services first.

use crate::clock::boot_now;
use crate::threads::spawn;
use mainstay_silence::Absence;
use std::path::{Path, PathBuf};

/// See the top of this file.
pub struct EngineAbsence {
    run_dir: PathBuf,
    fail: fn(&Path),
    absence: Absence,
}

impl EngineAbsence {
    /// `fail` makes devices fail that are left in a run directory; it may wait for the kernel.
    #[must_use]
    pub fn new(run_dir: PathBuf, fail: fn(&Path)) -> Self {
        Self { run_dir, fail, absence: Absence::default() }
    }

    /// To be called now and then, and when the engine comes or goes. `in_use`: a service runs that
    /// is not silent.
    pub fn look(&mut self, connected: bool, in_use: bool) {
        if self.absence.is_due(boot_now(), connected, in_use) {
            tracing::warn!(in_use, "the engine is gone: what it has left of its devices fails from now on");
            let (run_dir, fail) = (self.run_dir.clone(), self.fail);
            spawn("agent-devices", move || fail(&run_dir));
        }
    }
}
