//! The log of guard and silencer.

use super::detached;
use std::sync::mpsc::{self, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Writes to the log on a thread of its own: the reader of the log may be slow, or may have
/// stopped.
pub(crate) struct LogThread {
    lines: Option<SyncSender<Box<dyn FnOnce() + Send>>>,
    thread: Option<JoinHandle<()>>,
}

impl LogThread {
    /// Most reports that wait. Those beyond are not written.
    const WAITING_MAX: usize = 16;
    /// How long the reports that wait may take when the owner ends.
    const PATIENCE: Duration = Duration::from_millis(500);

    pub(crate) fn start() -> Self {
        let (lines, waiting) = mpsc::sync_channel::<Box<dyn FnOnce() + Send>>(Self::WAITING_MAX);
        let started = thread::Builder::new()
            .name("guard-log".into())
            .spawn(move || waiting.iter().for_each(|line| line()));
        Self { lines: Some(lines), thread: started.ok() }
    }

    pub(crate) fn tell(&self, line: impl FnOnce() + Send + 'static) {
        // The queue is full when the log has no reader.
        let _ = self.lines.as_ref().map(|lines| lines.try_send(Box::new(line)));
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        self.lines = None;
        detached(self.thread.as_slice(), Self::PATIENCE);
    }
}
