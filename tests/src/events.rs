//! The cluster's events, followed on all nodes at once: when a node dies, the others still report
//! them.

use crate::lab::Lab;
use anyhow::{Context, Result};
use mainstay_api::rest::{EventView, EventsPage};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One request waits this long for news.
const WAIT_MS: u64 = 2_000;
/// Pause after a node that did not answer.
const PAUSE: Duration = Duration::from_millis(200);

/// Hands out each event once, as soon as the first node tells it.
pub struct Follower {
    receiver: Receiver<EventView>,
    stop: Arc<AtomicBool>,
}

impl Follower {
    /// Follows everything that happens from now on.
    ///
    /// # Errors
    /// When no node tells where the events are now.
    pub fn start(lab: &Arc<Lab>) -> Result<Self> {
        let nodes = lab.nodes()?;
        let now = nodes.iter().find_map(|node| page(lab, node, 0, 0).ok());
        let after = now.context("no agent tells its events")?.last;
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let (sender, receiver) = channel();
        for node in nodes {
            let (lab, stop, seen, sender) = (lab.clone(), stop.clone(), seen.clone(), sender.clone());
            std::thread::spawn(move || follow(&lab, &node, after, &stop, &seen, &sender));
        }
        Ok(Self { receiver, stop })
    }

    /// The next event, if one comes within `limit`.
    pub fn next(&self, limit: Duration) -> Option<EventView> {
        self.receiver.recv_timeout(limit).ok()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn page(lab: &Lab, node: &str, after: u64, wait_ms: u64) -> Result<EventsPage> {
    Ok(lab.agent(node)?.get(&format!("/v1/events?after={after}&wait_ms={wait_ms}"))?)
}

fn follow(
    lab: &Lab,
    node: &str,
    mut after: u64,
    stop: &AtomicBool,
    seen: &Mutex<BTreeSet<u64>>,
    sender: &Sender<EventView>,
) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(page) = page(lab, node, after, WAIT_MS) else {
            std::thread::sleep(PAUSE);
            continue;
        };
        after = page.last.max(after);
        for event in page.events {
            // A poisoned lock means that another follower panicked; its set is still a set.
            let first = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(event.index);
            if first && sender.send(event).is_err() {
                return;
            }
        }
    }
}
