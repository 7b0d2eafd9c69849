//! A node's boot-time clock: its own origin and its own rate.

use mainstay_types::Time;

/// Node time = origin + true time × (1 + ppm / 1,000,000), in whole microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_us: u64,
    ppm: i64,
}

impl Clock {
    #[must_use]
    pub fn new(origin_us: u64, ppm: i64) -> Self {
        Self { origin_us, ppm }
    }

    /// Tells whether the clock runs at another rate than true time.
    #[must_use]
    pub fn drifts(self) -> bool {
        self.ppm != 0
    }

    #[must_use]
    pub fn node_time(self, true_us: u64) -> Time {
        let drift = true_us as i64 * self.ppm / 1_000_000;
        Time(self.origin_us + (true_us as i64 + drift) as u64)
    }

    /// Earliest true time at which the node's clock shows at least `time`, up to rounding, and
    /// never earlier.
    #[must_use]
    pub fn true_time(self, time: Time) -> u64 {
        let since = time.0.saturating_sub(self.origin_us);
        let guess = (u128::from(since) * 1_000_000 / (1_000_000 + self.ppm) as u128) as u64;
        let mut at = guess.saturating_sub(2);
        while self.node_time(at) < time {
            at += 1;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_drifts_at_any_other_rate() {
        assert_eq!([-1, 0, 1].map(|ppm| Clock::new(7, ppm).drifts()), [true, false, true]);
    }

    #[test]
    fn there_and_back() {
        for ppm in [-10_000, -37, 0, 1, 9_999, 10_000] {
            let clock = Clock::new(5_000_000_000, ppm);
            for true_us in [0, 1, 999, 123_456_789, 3_600_000_000] {
                let time = clock.node_time(true_us);
                let back = clock.true_time(time);
                assert!(clock.node_time(back) >= time);
                assert!(back <= true_us + 2 && back + 4 > true_us, "{ppm} {true_us} {back}");
            }
        }
    }
}
