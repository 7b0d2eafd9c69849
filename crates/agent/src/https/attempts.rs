//! Requests without a good token, by their sources: after some of them a source is refused for a
//! while, whatever it sends.
//!
//! Each such request costs [`FORGIVEN_EVERY`] of time. A source that has [`FAILED_MAX`] of them
//! open waits until one is forgiven. So answers and log lines about wrong tokens are bounded, and
//! the refusal does not tell whether a token is good.

use super::places::source_of;
use crate::threads::lock;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Failed requests after which a source is refused.
const FAILED_MAX: u32 = 10;
/// Time after which one of them is forgiven.
const FORGIVEN_EVERY: Duration = Duration::from_secs(6);
/// Sources that are remembered.
const SOURCES_MAX: usize = 4096;

/// When everything is forgiven, by source.
#[derive(Default)]
pub(super) struct Attempts(Mutex<BTreeMap<IpAddr, Instant>>);

impl Attempts {
    /// How long the source is still refused.
    pub(super) fn refused_for(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let until = *lock(&self.0).get(&source_of(from))?;
        let open = until.saturating_duration_since(now);
        let over = open.checked_sub(FORGIVEN_EVERY * (FAILED_MAX - 1))?;
        (!over.is_zero()).then_some(over)
    }

    /// A request from there had no good token.
    pub(super) fn failed(&self, from: IpAddr, now: Instant) {
        let (source, mut all) = (source_of(from), lock(&self.0));
        if all.len() >= SOURCES_MAX && !all.contains_key(&source) {
            all.retain(|_, until| *until > now);
            // The one that has least to be forgiven.
            let first = all.iter().min_by_key(|(_, until)| **until).map(|(source, _)| *source);
            if let Some(first) = first.filter(|_| all.len() >= SOURCES_MAX) {
                all.remove(&first);
            }
        }
        let until = all.entry(source).or_insert(now);
        *until = (*until).max(now) + FORGIVEN_EVERY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(number: u32) -> IpAddr {
        IpAddr::from((0x0a00_0000 + number).to_be_bytes())
    }

    #[test]
    fn a_source_of_wrong_tokens_is_refused_until_one_is_forgiven() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for _ in 0..FAILED_MAX {
            assert_eq!(attempts.refused_for(host(1), start), None);
            attempts.failed(host(1), start);
        }
        assert_eq!(attempts.refused_for(host(1), start), Some(FORGIVEN_EVERY));
        assert_eq!(attempts.refused_for(host(2), start), None, "others are not refused");
        let later = start + FORGIVEN_EVERY;
        assert_eq!(attempts.refused_for(host(1), later), None);
        attempts.failed(host(1), later);
        assert_eq!(attempts.refused_for(host(1), later), Some(FORGIVEN_EVERY));
        let much_later = start + FORGIVEN_EVERY * 100;
        for _ in 0..FAILED_MAX {
            assert_eq!(attempts.refused_for(host(1), much_later), None);
            attempts.failed(host(1), much_later);
        }
    }

    #[test]
    fn the_memory_for_sources_is_bounded_and_keeps_the_worst() {
        let (attempts, now) = (Attempts::default(), Instant::now());
        (0..FAILED_MAX).for_each(|_| attempts.failed(host(1), now));
        (2..10_000).for_each(|number| attempts.failed(host(number), now));
        assert_eq!(lock(&attempts.0).len(), SOURCES_MAX);
        assert!(attempts.refused_for(host(1), now).is_some());
    }
}
