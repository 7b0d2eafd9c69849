//! The thread that tells the engine which node this is, where the others are, and what to silence.
//!
//! If an engine hangs, a thread that writes to it or waits for its answer waits as well. The
//! reconciler must not wait, because it may have services to kill before the lease ends (R19).
//!
//! Guarantees
//! - One thread tells the engine everything, in the order in which it was given. It leaves out a
//!   list for the guard that is outdated before its turn comes.

use crate::engine_link::EngineLink;
use crate::service::place::resolve_soon;
use crate::threads::spawn;
use mainstay_api::engine::{GuardEntry, Request};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const GUARD_TIMEOUT: Duration = Duration::from_millis(500);

enum Telling {
    Greet(Request),
    Post(Request),
    Guard { number: u64, entries: Vec<GuardEntry> },
}

/// The way to the thread, which ends with it.
pub struct EngineFeed {
    queue: Sender<Telling>,
}

impl EngineFeed {
    /// `answered` hears, on the thread, whether the engine has confirmed a list for the guard.
    #[must_use]
    pub fn start(engine: EngineLink, answered: impl Fn(u64, bool) + Send + 'static) -> Self {
        let (queue, tellings) = channel();
        spawn("agent-feed", move || run(&engine, &tellings, &answered));
        Self { queue }
    }

    /// See [`EngineLink::greet`].
    pub fn greet(&self, greeting: Request) {
        drop(self.queue.send(Telling::Greet(greeting)));
    }

    /// See [`EngineLink::post`].
    pub fn post(&self, request: Request) {
        drop(self.queue.send(Telling::Post(request)));
    }

    /// Asks the engine to silence these when the lease ends, and nothing else.
    pub fn guard(&self, number: u64, entries: Vec<GuardEntry>) {
        drop(self.queue.send(Telling::Guard { number, entries }));
    }
}

fn run(engine: &EngineLink, tellings: &Receiver<Telling>, answered: &impl Fn(u64, bool)) {
    while let Ok(first) = tellings.recv() {
        let mut batch = vec![first];
        batch.extend(tellings.try_iter());
        let guards = batch.iter().filter(|telling| matches!(telling, Telling::Guard { .. })).count();
        let mut outdated = guards.saturating_sub(1);
        for telling in batch {
            match telling {
                Telling::Greet(greeting) => engine.greet(greeting),
                Telling::Post(request) => engine.post(request),
                Telling::Guard { .. } if outdated > 0 => outdated -= 1,
                Telling::Guard { number, mut entries } => {
                    for path in entries.iter_mut().flat_map(|entry| &mut entry.mounts) {
                        *path = resolve_soon(Path::new(path)).to_string_lossy().into_owned();
                    }
                    let reply = engine.request(Request::Guard { entries }, GUARD_TIMEOUT);
                    if let Err(error) = &reply {
                        tracing::warn!(%error, "the engine has not confirmed what to silence; no service starts until it has");
                    }
                    answered(number, reply.is_ok());
                }
            }
        }
    }
}
