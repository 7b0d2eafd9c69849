//! Notices when `GET /v1/status` has another answer than before, for readers of the stream.
//!
//! Guarantees
//! - One thread looks for all readers, every [`LOOK_EVERY`], and less often if a look is much
//!   work: every [`LOOK_EVERY_MAX`] at least.
//!   It runs only while there are readers.
//! - A change of a state, a name or a sentence is told at once. A change of numbers alone is told
//!   every [`MEASURES_EVERY`] at most: while services write, some number always changes.

use crate::agent::Agent;
use crate::http;
use crate::threads::{lock, spawn};
use mainstay_api::rest::StatusView;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The pause is this many times the work of a look, so that looks take half a percent of a
/// processor.
const PAUSE_BY_WORK: u32 = 200;
/// The pause is no longer than this.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(10);
/// Shortest time between two changes of numbers alone that are told.
const MEASURES_EVERY: Duration = Duration::from_secs(5);

/// Counts changes of the picture, while somebody reads.
pub struct Pictures {
    number: watch::Sender<u64>,
    /// Whether the thread runs.
    looks: Mutex<bool>,
}

impl Default for Pictures {
    fn default() -> Self {
        Self { number: watch::Sender::new(0), looks: Mutex::default() }
    }
}

impl Pictures {
    /// A number that rises with each change from now on.
    pub fn subscribe(agent: &Arc<Agent>) -> watch::Receiver<u64> {
        let pictures = &agent.pictures;
        let mut looks = lock(&pictures.looks);
        let receiver = pictures.number.subscribe();
        if !std::mem::replace(&mut *looks, true) {
            let agent = agent.clone();
            spawn("agent-picture", move || look(&agent));
        }
        receiver
    }
}

/// Looks until no reader is left.
fn look(agent: &Arc<Agent>) {
    let Pictures { number, looks } = &agent.pictures;
    let mut seen = None;
    loop {
        {
            let mut looks = lock(looks);
            if number.receiver_count() == 0 {
                *looks = false;
                return;
            }
        }
        let began = Instant::now();
        let status = http::status_view(agent);
        let prints = Prints::of(status);
        if let Some(prints) = prints
            && Told::note(&mut seen, prints, began)
        {
            number.send_modify(|number| *number += 1);
        }
        std::thread::sleep((began.elapsed() * PAUSE_BY_WORK).clamp(LOOK_EVERY, LOOK_EVERY_MAX));
    }
}

/// Hashes of a status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Prints {
    /// Hash without digits.
    states: u64,
    /// Hash of everything.
    all: u64,
}

impl Prints {
    /// `None` if the status cannot be written, which does not happen.
    fn of(mut status: StatusView) -> Option<Self> {
        // These say when the status was made.
        status.lease_left_ms = 0;
        if let Some(cluster) = &mut status.cluster {
            cluster.as_of_ms = cluster.as_of_ms.map(|age_ms| age_ms.min(1));
        }
        for resource in &mut status.resources {
            resource.scrubs.now_ms = 0;
        }
        let text = serde_json::to_vec(&status).ok()?;
        let mut all = DefaultHasher::new();
        all.write(&text);
        let mut states = DefaultHasher::new();
        for piece in text.split(u8::is_ascii_digit) {
            states.write(piece);
        }
        Some(Self { states: states.finish(), all: all.finish() })
    }
}

/// The picture that readers were told of last.
struct Told {
    prints: Prints,
    at: Instant,
}

impl Told {
    /// Whether readers are to be told now. The first picture is the one that they begin with.
    fn note(told: &mut Option<Self>, prints: Prints, now: Instant) -> bool {
        let is_news = match told {
            None => false,
            Some(told) if prints.states != told.prints.states => true,
            Some(told) => {
                let is_due = now.saturating_duration_since(told.at) >= MEASURES_EVERY;
                if prints.all == told.prints.all || !is_due {
                    return false;
                }
                true
            }
        };
        *told = Some(Self { prints, at: now });
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::EngineView;

    fn status(message: &str, lease_left_ms: u64) -> StatusView {
        let engine =
            EngineView { connected: true, message: message.to_owned(), frontend: None, watchdog: None };
        StatusView {
            cluster: None,
            engine,
            lease_left_ms,
            resources: Vec::new(),
            services: Vec::new(),
            advice: Vec::new(),
        }
    }

    #[test]
    fn a_changed_state_is_told_at_once_and_changed_numbers_alone_seldom() {
        let prints = |message: &str| Prints::of(status(message, 7)).unwrap();
        let (mut told, begun) = (None, Instant::now());
        let after = |ms| begun + Duration::from_millis(ms);
        assert!(!Told::note(&mut told, prints("lags by 5 MiB"), begun), "readers begin with this one");
        assert!(!Told::note(&mut told, prints("lags by 5 MiB"), after(9000)));
        assert!(!Told::note(&mut told, prints("lags by 17 MiB"), after(4000)));
        assert!(Told::note(&mut told, prints("lags by 17 MiB"), after(5000)), "it is not forgotten");
        assert!(!Told::note(&mut told, prints("lags by 17 MiB"), after(20_000)));
        assert!(Told::note(&mut told, prints("does not answer"), after(20_001)));
        assert!(Told::note(&mut told, prints("lags by 17 MiB"), after(20_002)));
    }

    #[test]
    fn the_time_at_which_a_status_was_made_is_no_change() {
        assert_eq!(Prints::of(status("connected", 900)), Prints::of(status("connected", 1300)));
    }
}
