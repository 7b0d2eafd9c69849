//! Latencies of an interval by powers of two, and percentiles of them.

use mainstay_types::{HISTOGRAM_BUCKETS, Histogram};

pub const BUCKETS: usize = HISTOGRAM_BUCKETS;

/// Numbers of values by the buckets of a [`Histogram`]: bucket n holds those above 2^(n-1) and not
/// above 2^n.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buckets(pub [u64; BUCKETS]);

impl Buckets {
    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, one| sum.saturating_add(*one))
    }
}

impl From<&Histogram> for Buckets {
    fn from(histogram: &Histogram) -> Self {
        let (mut buckets, mut before) = ([0; BUCKETS], 0);
        for (bucket, (_, up_to)) in buckets.iter_mut().zip(histogram.up_to()) {
            *bucket = up_to - before;
            before = up_to;
        }
        buckets[BUCKETS - 1] = histogram.count() - before;
        Self(buckets)
    }
}

/// Returns the value that `permille` thousandths of the values do not exceed, interpolated within
/// its bucket, so it is off by less than half of the bound of that bucket. A value above the last
/// bound is told as that bound. `None` without values. Trailing zeroes may be left out.
#[must_use]
pub fn percentile(buckets: &[u64], permille: u32) -> Option<u64> {
    let count: u128 = buckets.iter().map(|one| u128::from(*one)).sum();
    if count == 0 {
        return None;
    }
    let rank = (count * u128::from(permille.min(1000))).div_ceil(1000).max(1);
    let mut before = 0;
    for (power, inside) in buckets.iter().take(BUCKETS).enumerate() {
        let inside = u128::from(*inside);
        if before + inside < rank {
            before += inside;
            continue;
        }
        let upper = 1u64 << power;
        let lower = if power == 0 { 0 } else { upper / 2 };
        if power + 1 == BUCKETS {
            return Some(lower);
        }
        let part = u128::from(upper - lower) * (rank - before) / inside;
        return Some(lower + u64::try_from(part).unwrap_or(u64::MAX - lower));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_percentile_is_in_the_bucket_of_the_value_that_a_sorted_list_gives(
            mut values in prop::collection::vec(0u64..200_000_000, 1..300),
            permille in 0u32..=1000,
        ) {
            let mut histogram = Histogram::default();
            values.iter().for_each(|value| histogram.note(*value));
            let buckets = Buckets::from(&histogram);
            prop_assert_eq!(buckets.count(), values.len() as u64);
            values.sort_unstable();
            let rank = (values.len() * permille as usize).div_ceil(1000).max(1);
            let exact = values[rank - 1];
            let found = percentile(&buckets.0, permille).unwrap();
            let last = 1 << (BUCKETS - 2);
            if exact > last {
                prop_assert_eq!(found, last);
            } else {
                let bound = exact.next_power_of_two();
                prop_assert!(found <= bound && (bound == 1 || found > bound / 2), "{} for {}", found, exact);
            }
        }
    }

    #[test]
    fn percentiles_rise_and_none_is_known_of_nothing() {
        assert_eq!(percentile(&[], 500), None);
        assert_eq!(percentile(&[0; BUCKETS], 990), None);
        // Ten values up to 16, of which the half is at the half of the upper half of that.
        assert_eq!(percentile(&[0, 0, 0, 0, 10], 500), Some(12));
        assert_eq!(percentile(&[0, 0, 0, 0, 10], 1000), Some(16));
        let all: Vec<_> = (0..=1000).map(|at| percentile(&[3, 9, 0, 1, 70, 2], at)).collect();
        assert!(all.is_sorted());
    }
}
