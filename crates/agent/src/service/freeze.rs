//! Whether a file system is frozen: a write waits, and not for the device.
//!
//! Guarantees
//! - The agent and its threads never wait for the file system: a process of its own does.
//! - A question writes nothing and reads nothing that the kernel does not keep in memory, so it
//!   wakes no disk. It changes nothing.
//! - A device that is slow or hangs is not called frozen.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pause between the answer to a question and the next question.
const ASK_EVERY: Duration = Duration::from_secs(3);

/// Length of a name that no directory has, in bytes: file systems allow 255.
const NAME_BYTES: usize = 300;

/// A process that a frozen file system holds up. It removes a directory that cannot be there: the
/// kernel waits for the thaw before it looks for it.
pub(super) struct Question(Child);

impl Question {
    /// # Errors
    /// When the process cannot be started.
    pub fn ask(path: &Path) -> io::Result<Self> {
        let mut command = Command::new("rmdir");
        command.arg("--").arg(path.join("x".repeat(NAME_BYTES)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self)
    }

    /// Whether there is no answer yet.
    pub fn is_open(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Whether it waits for a thaw at this moment.
    pub fn waits_for_thaw(&self) -> bool {
        let waits = std::fs::read_to_string(format!("/proc/{}/wchan", self.0.id())).unwrap_or_default();
        waits.contains("percpu_rwsem") || waits.contains("sb_start_write")
    }
}

impl Drop for Question {
    /// A frozen file system holds the process up until the thaw, although it is killed.
    fn drop(&mut self) {
        if !self.is_open() {
            return;
        }
        drop(self.0.kill());
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        std::thread::spawn(move || nix::sys::wait::waitpid(pid, None));
    }
}

/// Asks the same file system again and again.
pub(super) struct FreezeWatch {
    path: PathBuf,
    /// At most one at a time, so that a file system that hangs holds up one process.
    open: Option<Question>,
    next: Instant,
}

impl FreezeWatch {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: None, next: Instant::now() }
    }

    /// Whether it is frozen, as far as that is known at this moment. Waits for nothing.
    pub fn is_frozen(&mut self) -> bool {
        if let Some(question) = &mut self.open {
            if question.is_open() {
                return question.waits_for_thaw();
            }
            self.open = None;
            self.next = Instant::now() + ASK_EVERY;
        }
        if Instant::now() >= self.next {
            match Question::ask(&self.path) {
                Ok(question) => self.open = Some(question),
                Err(error) => {
                    tracing::debug!(path = %self.path.display(), %error, "it cannot be asked whether a file system is frozen");
                    self.next = Instant::now() + ASK_EVERY;
                }
            }
        }
        false
    }
}
