//! Ctrl-C in a program that builds labs: no half cluster may stay.

use crate::lab::Lab;
use crate::wait_for;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest patience with a command that is just changing the lab.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether the user has interrupted the program, and the labs are being removed.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Directories that go with the labs.
static ALSO: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Has a directory removed as well when the program is interrupted.
pub fn also_remove(dir: PathBuf) {
    ALSO.lock().unwrap_or_else(PoisonError::into_inner).push(dir);
}

/// Removes these labs when the program is interrupted, then ends it. `again` is the command that
/// tries once more. A second interrupt ends at once.
///
/// # Errors
/// When the signal cannot be caught.
pub fn remove(labs: Vec<Arc<Lab>>, again: &str) -> Result<()> {
    let again = again.to_owned();
    ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        eprintln!("\ninterrupted: removing the cluster");
        for lab in &labs {
            // Another command may hold the lab's lock while it changes the lab. It got the same
            // signal and ends.
            if let Err(error) = wait_for("removal of the lab", LIMIT, || lab.down()) {
                eprintln!("{error:#}\n`{again}` tries again");
            }
        }
        for dir in ALSO.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // The directory may be gone already.
            let _ = std::fs::remove_dir_all(dir);
        }
        std::process::exit(130);
    })
    .context("catch Ctrl-C")
}

/// To be called before a program ends, or changes its labs after a failure. A removal of the labs
/// may be under way, and it makes every command fail. The removal then ends the program.
pub fn give_way() {
    while ASKED.load(Ordering::Relaxed) {
        std::thread::sleep(LIMIT);
    }
}
