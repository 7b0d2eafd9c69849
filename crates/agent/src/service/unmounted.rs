//! For tests that mount something.

use std::process::Command;
use std::time::{Duration, Instant};

/// Unmounts what is mounted at `path` last. A process that another test begins has a copy of each
/// open file until it runs its program, so a mount may be busy for a moment.
///
/// # Panics
/// When it is busy for longer.
pub fn unmount(path: &str) {
    let limit = Instant::now() + Duration::from_secs(10);
    loop {
        let done = Command::new("umount").arg(path).output().expect("umount is installed");
        if done.status.success() {
            return;
        }
        assert!(Instant::now() < limit, "umount {path}: {}", String::from_utf8_lossy(&done.stderr));
        std::thread::sleep(Duration::from_millis(20));
    }
}
