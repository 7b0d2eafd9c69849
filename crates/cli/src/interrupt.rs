//! Ctrl-C while a command waits: the command says what goes on without it, how to look at that, and
//! how to undo it.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

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

/// From now on Ctrl-C tells that a change may go on.
pub fn change_begins() {
    CHANGING.store(true, Ordering::Relaxed);
    WATCH.call_once(watch);
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
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<String>> {
    TELLS.lock().unwrap_or_else(PoisonError::into_inner)
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
        // The terminal has shown ^C behind a line of progress.
        let mut out = std::io::stderr().lock();
        let _ = match text {
            Some(text) => writeln!(out, "\ninterrupted: {text}"),
            None => writeln!(out),
        };
        std::process::exit(EXIT);
    });
}
