//! Histogram of values by powers of two, with a fixed number of buckets.
//!
//! Bucket n holds values greater than 2^(n-1) and not greater than 2^n; the last one holds the
//! rest. A value that is read as the upper bound of its bucket is overstated by less than a factor
//! of two. A value that is interpolated within its bucket is off by less than half of that bound.
//! Sum and count, and so the mean, are exact. Noting a value takes some ten instructions, and
//! neither allocates nor locks, because a histogram has one owner.

use serde::{Deserialize, Serialize};

/// Number of buckets: those up to 2^26, which in microseconds is 67 s, and one for greater values.
pub const HISTOGRAM_BUCKETS: usize = 28;
const LAST: usize = HISTOGRAM_BUCKETS - 1;

/// Histogram of values, described at the top of this file. The caller that notes the values chooses
/// their unit.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Histogram {
    buckets: [u64; HISTOGRAM_BUCKETS],
    sum: u64,
}

impl Histogram {
    /// Notes one value.
    #[inline]
    pub fn note(&mut self, value: u64) {
        let place = (u64::BITS - value.saturating_sub(1).leading_zeros()) as usize;
        self.buckets[place.min(LAST)] += 1;
        self.sum = self.sum.wrapping_add(value);
    }

    /// Values that were noted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all values; begins again at 2^64.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets == [0; HISTOGRAM_BUCKETS]
    }

    /// For each power of two the bound, and how many values were not greater, ascending. Values
    /// above the last bound are only in [`count`](Self::count).
    pub fn up_to(&self) -> impl Iterator<Item = (u64, u64)> {
        self.buckets[..LAST].iter().enumerate().scan(0, |sum, (power, count)| {
            *sum += count;
            Some((1 << power, *sum))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound of the bucket that a value is in; `None` for the last.
    fn bound(value: u64) -> Option<u64> {
        let mut one = Histogram::default();
        one.note(value);
        assert_eq!((one.count(), one.sum()), (1, value));
        one.up_to().find(|(_, count)| *count == 1).map(|(bound, _)| bound)
    }

    #[test]
    fn a_value_is_at_most_its_bound_and_more_than_half_of_it() {
        let mut values: Vec<u64> = (0..=5000).collect();
        values.extend((12..=26).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 1]));
        for value in values {
            match bound(value) {
                Some(bound) => {
                    assert!(value <= bound && (value <= 1 || value > bound / 2), "{value}: {bound}")
                }
                None => assert!(value > 1 << 26, "{value}"),
            }
        }
        assert_eq!([0, 1, 2, 3, 1 << 26].map(bound), [Some(1), Some(1), Some(2), Some(4), Some(1 << 26)]);
        assert_eq!([(1 << 26) + 1, u64::MAX].map(bound), [None, None]);
    }

    #[test]
    fn counts_are_those_of_a_sorted_list() {
        let mut state = 7_u64;
        let mut seen = Histogram::default();
        let mut values = Vec::new();
        assert!(seen.is_empty());
        for _ in 0..10_000 {
            // The generator of Knuth's MMIX; shifted by itself, so that all sizes come.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            values.push((state >> 33) >> (state >> 59));
            seen.note(*values.last().expect("pushed"));
        }
        for (bound, count) in seen.up_to() {
            assert_eq!(count, values.iter().filter(|value| **value <= bound).count() as u64, "{bound}");
        }
        assert_eq!((seen.count(), seen.sum()), (10_000, values.iter().sum::<u64>()));
        assert!(!seen.is_empty());
    }
}
