//! Questions to the kernel that it may never answer: a device or another file system hangs.
//!
//! Guarantees
//! - The caller waits no longer than it wants to.
//! - One question of a kind is under way at a time. So a device that hangs keeps only one thread.

use crate::threads::lock;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Questions of one kind, told apart by what they are about.
pub(super) struct Bounded {
    under_way: Mutex<BTreeSet<PathBuf>>,
    ended: Condvar,
}

/// Ends a question when dropped, also when its thread has panicked.
struct UnderWay(&'static Bounded, PathBuf);

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.under_way).remove(&self.1);
        self.0.ended.notify_all();
    }
}

impl Bounded {
    pub const fn new() -> Self {
        Self { under_way: Mutex::new(BTreeSet::new()), ended: Condvar::new() }
    }

    /// Has `ask` answered on a thread of its own, after an earlier question `about` the same thing;
    /// `None` when there is no answer by `deadline`.
    pub fn ask<T: Send + 'static>(
        &'static self,
        about: &Path,
        deadline: Instant,
        ask: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let busy = |under_way: &mut BTreeSet<PathBuf>| under_way.contains(about);
        let (mut under_way, waited) = self
            .ended
            .wait_timeout_while(lock(&self.under_way), left(), busy)
            .unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return None;
        }
        under_way.insert(about.to_path_buf());
        drop(under_way);
        let (answer, answers) = sync_channel(1);
        let turn = UnderWay(self, about.to_path_buf());
        let started = std::thread::Builder::new().name("agent-question".into()).spawn(move || {
            let answered = ask();
            drop(turn);
            let _ = answer.send(answered);
        });
        started.ok()?;
        answers.recv_timeout(left()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    static QUESTIONS: Bounded = Bounded::new();

    #[test]
    fn a_question_that_hangs_keeps_one_thread_and_no_caller() {
        let soon = || Instant::now() + Duration::from_millis(50);
        let late = || Instant::now() + Duration::from_secs(20);
        let (release, released) = channel::<()>();
        let hangs = move || released.recv().unwrap_or_default();
        assert_eq!(QUESTIONS.ask(Path::new("/hangs"), soon(), hangs), None);
        let again = || unreachable!("the first one is still under way");
        assert_eq!(QUESTIONS.ask::<()>(Path::new("/hangs"), soon(), again), None);
        assert_eq!(QUESTIONS.ask(Path::new("/answers"), late(), || 1), Some(1), "another one is asked");
        drop(release);
        assert_eq!(QUESTIONS.ask(Path::new("/hangs"), late(), || 2), Some(2), "it has ended");
    }
}
