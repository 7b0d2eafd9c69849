//! Progress of a copy: how far it is, its recent rate, and the time that it still needs.
//!
//! As in DRBD (`DRBD_SYNC_MARKS`, `DRBD_SYNC_MARK_STEP`), eight marks, three seconds apart, tell
//! how much was done. The rate is the one since the oldest mark.

use mainstay_types::Time;

const MARKS: usize = 8;
const MARK_EVERY_MS: u64 = 3_000;
/// Shortest time from which a rate is told, in milliseconds.
const MEASURED_MS_MIN: u64 = 500;

/// A copy's extents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    pub total: u64,
    pub done: u64,
    /// The oldest and the newest of them lie beside each other, at `next`.
    marks: Box<[(Time, u64); MARKS]>,
    next: usize,
}

impl Progress {
    pub fn begin(total: u64, now: Time) -> Self {
        Self { total, done: 0, marks: Box::new([(now, 0); MARKS]), next: 0 }
    }

    /// One more is done.
    pub fn step(&mut self, now: Time) {
        self.done += 1;
        let (newest, _) = self.marks[(self.next + MARKS - 1) % MARKS];
        if now.ms_since(newest) >= MARK_EVERY_MS {
            self.marks[self.next] = (now, self.done);
            self.next = (self.next + 1) % MARKS;
        }
    }

    /// Extents per 1000 seconds, of late; `None` until there is something to tell it from.
    pub fn rate(&self, now: Time) -> Option<u64> {
        let (since, before) = self.marks[self.next];
        let ms = now.ms_since(since);
        let did = self.done - before;
        (ms >= MEASURED_MS_MIN && did > 0).then(|| did.saturating_mul(1_000_000) / ms)
    }

    /// How long the rest takes, in milliseconds.
    pub fn left_ms(&self, now: Time) -> Option<u64> {
        let rate = self.rate(now).filter(|rate| *rate > 0)?;
        Some((self.total.saturating_sub(self.done)).saturating_mul(1_000_000).div_ceil(rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time(1_000_000).plus_ms(ms)
    }

    #[test]
    fn the_time_left_follows_from_the_latest_rate() {
        let mut progress = Progress::begin(1000, at(0));
        assert_eq!(
            (progress.rate(at(10_000)), progress.left_ms(at(10_000))),
            (None, None),
            "nothing is done"
        );
        // Ten per second.
        for n in 1..=300 {
            progress.step(at(n * 100));
        }
        assert_eq!(progress.rate(at(30_000)), Some(10_000));
        assert_eq!(progress.left_ms(at(30_000)), Some(70_000));
        // Then one per second: after eight marks the past does not count any more.
        for n in 1..=30 {
            progress.step(at(30_000 + n * 1000));
        }
        assert_eq!(progress.rate(at(60_000)), Some(1_000));
        assert_eq!(progress.left_ms(at(60_000)), Some(670_000));
    }

    #[test]
    fn the_time_left_grows_while_a_copy_stands_still() {
        let mut progress = Progress::begin(10, at(0));
        progress.step(at(1000));
        let left = [2, 10, 100].map(|s| progress.left_ms(at(s * 1000)).expect("a rate"));
        assert!(left[0] < left[1] && left[1] < left[2], "{left:?}");
    }
}
