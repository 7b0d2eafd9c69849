//! Requests without a good token, by their sources: after some of them a source is refused for a
//! while, whatever it sends. Requests for files of the console are counted in the same way, by
//! themselves.
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
/// The same for files of the console, of which a page has four.
const FILES_MAX: u32 = 120;
const FILE_FORGIVEN_EVERY: Duration = Duration::from_secs(1);
/// Sources that are remembered.
const SOURCES_MAX: usize = 4096;

/// Requests of one kind, by source.
pub(super) struct Attempts {
    /// Requests after which a source is refused, and the time after which one is forgiven.
    max: u32,
    forgiven_every: Duration,
    /// When everything is forgiven.
    until: Mutex<BTreeMap<IpAddr, Instant>>,
}

impl Attempts {
    /// Counts requests without a good token.
    pub(super) fn with_wrong_tokens() -> Self {
        Self { max: FAILED_MAX, forgiven_every: FORGIVEN_EVERY, until: Mutex::default() }
    }

    /// Counts requests for files of the console.
    pub(super) fn for_files() -> Self {
        Self { max: FILES_MAX, forgiven_every: FILE_FORGIVEN_EVERY, until: Mutex::default() }
    }

    /// How long the source is still refused.
    pub(super) fn refused_for(&self, from: IpAddr, now: Instant) -> Option<Duration> {
        let until = *lock(&self.until).get(&source_of(from))?;
        let open = until.saturating_duration_since(now);
        let over = open.checked_sub(self.forgiven_every * (self.max - 1))?;
        (!over.is_zero()).then_some(over)
    }

    /// A request of this kind came from there.
    pub(super) fn failed(&self, from: IpAddr, now: Instant) {
        let (source, mut all) = (source_of(from), lock(&self.until));
        if all.len() >= SOURCES_MAX && !all.contains_key(&source) {
            all.retain(|_, until| *until > now);
            // The one that has least to be forgiven.
            let first = all.iter().min_by_key(|(_, until)| **until).map(|(source, _)| *source);
            if let Some(first) = first.filter(|_| all.len() >= SOURCES_MAX) {
                all.remove(&first);
            }
        }
        let until = all.entry(source).or_insert(now);
        *until = (*until).max(now) + self.forgiven_every;
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
        let (attempts, start) = (Attempts::with_wrong_tokens(), Instant::now());
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
    fn a_source_that_asks_for_many_files_of_the_console_is_refused_for_a_while() {
        let (files, start) = (Attempts::for_files(), Instant::now());
        (0..FILES_MAX).for_each(|_| files.failed(host(1), start));
        assert_eq!(files.refused_for(host(1), start), Some(FILE_FORGIVEN_EVERY));
        assert_eq!(files.refused_for(host(2), start), None);
        assert_eq!(files.refused_for(host(1), start + FILE_FORGIVEN_EVERY), None);
    }

    #[test]
    fn the_memory_for_sources_is_bounded_and_keeps_the_worst() {
        let (attempts, now) = (Attempts::with_wrong_tokens(), Instant::now());
        (0..FAILED_MAX).for_each(|_| attempts.failed(host(1), now));
        (2..10_000).for_each(|number| attempts.failed(host(number), now));
        assert_eq!(lock(&attempts.until).len(), SOURCES_MAX);
        assert!(attempts.refused_for(host(1), now).is_some());
    }
}
