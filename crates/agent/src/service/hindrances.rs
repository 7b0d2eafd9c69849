//! Hindrances of the services that run on this node, as the threads that look for them see them.
//!
//! Guarantees
//! - A hindrance is as old as the time over which a thread saw it. It is told only while its thread
//!   goes on seeing it, and no longer than [`FRESH`] after the last look.
//! - No lock is held while anything is looked at.

use crate::threads::lock;
use mainstay_control::stalls::Hindrance;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest time between two looks after which a hindrance still counts as there.
const FRESH: Duration = Duration::from_secs(15);

/// Part of a service that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    FileSystem,
    /// Room in the file system.
    Room,
    /// Answers of the file system.
    Answers,
    /// The interface of this address.
    Interface(IpAddr),
    Address(IpAddr),
    /// Pages of the process with this number.
    Pages(usize),
}

#[derive(Clone, Debug)]
struct SeenHindrance {
    what: Hindrance,
    first: Instant,
    last: Instant,
}

/// See the top of this file. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub struct Hindrances(Arc<Mutex<BTreeMap<(String, Part), SeenHindrance>>>);

impl Hindrances {
    /// Takes in what was found at `now` when a part of a service was looked at.
    pub fn note(&self, service: &str, part: Part, found: Option<Hindrance>, now: Instant) {
        let mut known = lock(&self.0);
        let key = (service.to_owned(), part);
        match found {
            None => drop(known.remove(&key)),
            Some(what) => {
                let seen =
                    known.entry(key).or_insert(SeenHindrance { what: what.clone(), first: now, last: now });
                if seen.what != what {
                    *seen = SeenHindrance { what, first: now, last: now };
                }
                seen.last = now;
            }
        }
    }

    /// All hindrances that are there at `now`, with their services and their ages in milliseconds.
    #[must_use]
    pub fn list(&self, now: Instant) -> Vec<(String, Hindrance, u64)> {
        let known = lock(&self.0);
        let fresh = known.iter().filter(|(_, seen)| now.saturating_duration_since(seen.last) < FRESH);
        let aged = fresh.map(|((service, _), seen)| {
            let age = seen.last.saturating_duration_since(seen.first);
            (service.clone(), seen.what.clone(), u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
        });
        aged.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hindrance_is_as_old_as_it_was_seen_and_is_not_told_when_nothing_looks_at_it() {
        let hindrances = Hindrances::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let frozen = |path: &str| Hindrance::Frozen { path: path.into() };
        let note = |found, seconds| hindrances.note("db", Part::FileSystem, found, at(seconds));
        assert_eq!(hindrances.list(at(0)), []);
        note(Some(frozen("/srv/db")), 0);
        note(Some(frozen("/srv/db")), 7);
        assert_eq!(hindrances.list(at(9)), [("db".to_owned(), frozen("/srv/db"), 7000)]);
        assert_eq!(hindrances.list(at(30)), [], "its thread hangs, and nothing is known");
        note(Some(frozen("/srv/other")), 31);
        assert_eq!(hindrances.list(at(31))[0].2, 0, "it is another one");
        note(None, 32);
        assert_eq!(hindrances.list(at(32)), []);
    }
}
