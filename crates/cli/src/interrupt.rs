//! Ctrl-C while a command waits: the command says what goes on without it, how to look at that, and
//! how to undo it.

use crate::pasted::for_this_user;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Exit code of a command that was interrupted, as shells have it.
const EXIT: i32 = 130;

/// Texts that the command prints on Ctrl-C, innermost last.
static TELLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static WATCH: Once = Once::new();
/// Whether the command has asked for a change. Ctrl-C then prints [`CHANGE`] when there is no more
/// exact text.
static CHANGING: AtomicBool = AtomicBool::new(false);
/// Text for Ctrl-C that is true of every change.
const CHANGE: &str = "the change goes on in the cluster if it was recorded already. To see whether it was, run `mainstay status`.";

/// The operation of the newest change, if the agent has named one.
static OPERATION: Mutex<Option<String>> = Mutex::new(None);

/// From now on Ctrl-C tells that a change may go on.
pub fn change_begins() {
    CHANGING.store(true, Ordering::Relaxed);
    *operation() = None;
    WATCH.call_once(watch);
}

/// From now on Ctrl-C tells the operation of the change.
pub fn goes_on_as(id: &str) {
    *operation() = Some(id.to_owned());
}

/// While this lives, Ctrl-C tells its text.
pub struct GoesOn(());

impl GoesOn {
    /// `text`: what goes on after the command has ended, in full sentences.
    pub fn tell(text: impl Into<String>) -> Self {
        lock().push(text.into());
        WATCH.call_once(watch);
        Self(())
    }

    /// The same, but only if nothing more exact is to be told.
    pub fn unless_told(text: String) -> Option<Self> {
        let told = !lock().is_empty();
        if told { None } else { Some(Self::tell(text)) }
    }

    /// Work on something that has a name. `undo`: a command, or nothing if there is none.
    pub fn work(doing: &str, look: &str, undo: &str) -> Self {
        let undo = if undo.is_empty() { String::new() } else { format!(" To undo it, run `{undo}`.") };
        Self::tell(format!("{doing} goes on in the cluster. To look at it, run `{look}`.{undo}"))
    }
}

impl Drop for GoesOn {
    fn drop(&mut self) {
        lock().pop();
        *operation() = None;
    }
}

fn lock() -> MutexGuard<'static, Vec<String>> {
    TELLS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn operation() -> MutexGuard<'static, Option<String>> {
    OPERATION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch() {
    use nix::sys::signal::{SigSet, Signal};
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    // Threads that are started later inherit this. Only the thread below takes the signal.
    if signals.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        if signals.wait().is_err() {
            return;
        }
        let text = lock().last().cloned();
        let text = text.or_else(|| CHANGING.load(Ordering::Relaxed).then(|| CHANGE.to_owned()));
        let operation = operation().clone();
        let text = text.map(|text| with_operation(text, operation.as_deref()));
        // The terminal has shown ^C behind a line of progress.
        let mut out = std::io::stderr().lock();
        let _ = match text {
            Some(text) => writeln!(out, "\ninterrupted: {}", for_this_user(&text)),
            None => writeln!(out),
        };
        std::process::exit(EXIT);
    });
}

/// Words about work that goes on, with its operation.
fn with_operation(text: String, operation: Option<&str>) -> String {
    match operation {
        None => text,
        Some(id) => {
            format!("{text} It is operation {id}: `mainstay operation show {id}` tells how far it is.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_command_names_the_operation_that_goes_on() {
        let text = "draining node n1 goes on in the cluster.";
        assert_eq!(with_operation(text.to_owned(), None), text);
        let told = with_operation(text.to_owned(), Some("0d1c2b3a00000007"));
        assert!(told.starts_with(text) && told.contains("operation 0d1c2b3a00000007:"), "{told}");
        assert!(told.contains("`mainstay operation show 0d1c2b3a00000007`"), "{told}");
        let current = || operation().clone();
        goes_on_as("0d1c2b3a00000007");
        assert_eq!(current().as_deref(), Some("0d1c2b3a00000007"));
        // Another change is not that operation.
        change_begins();
        assert_eq!(current(), None);
    }
}
