//! Medians and their spread.

use serde::{Deserialize, Serialize};

/// The middle of some numbers, and how far they reach.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

impl Spread {
    /// `None` of nothing.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max, count: values.len() })
    }
}

/// A number with about three digits that count.
#[must_use]
pub fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        "0".into()
    } else if size >= 100.0 {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(Spread::of([]), None);
        let one = Spread::of([3.0]).unwrap();
        assert_eq!((one.median, one.min, one.max, one.count), (3.0, 3.0, 3.0, 1));
        assert_eq!(Spread::of([9.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of([9.0, 1.0, 2.0, 4.0]).unwrap().median, 3.0);
    }

    #[test]
    fn numbers_are_rounded_by_their_size() {
        assert_eq!(
            [0.0, 0.0123, 0.456, 7.654, 76.54, 7654.3].map(number),
            ["0", "0.012", "0.46", "7.65", "76.5", "7654"]
        );
    }
}
