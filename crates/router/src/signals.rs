//! SIGTERM and SIGINT: the router is to end.

use nix::sys::signal::{SigSet, Signal};
use std::io;
use std::thread;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Returns where each of these signals is told. Call it before other threads are started: those
/// inherit that they are not ended by them.
///
/// # Errors
/// When the system refuses it.
pub fn stops() -> io::Result<UnboundedReceiver<()>> {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT]);
    signals.thread_block()?;
    let (sender, receiver) = unbounded_channel();
    let wait = move || while signals.wait().is_ok() && sender.send(()).is_ok() {};
    thread::Builder::new().name("router-signals".into()).spawn(wait)?;
    Ok(receiver)
}
