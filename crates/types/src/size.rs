//! Byte counts as people read them.

/// A byte count in the largest power of 1024 that it fills, with one decimal unless it is a whole
/// number: `4 GiB`, `1.5 KiB`, `12 B`.
#[must_use]
pub fn size_words(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let (name, one) = (UNITS[unit], 1_u64 << (10 * unit));
    if bytes.is_multiple_of(one) {
        return format!("{} {name}", bytes / one);
    }
    let tenths = (u128::from(bytes) * 10 + u128::from(one / 2)) / u128::from(one);
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::size_words;

    #[test]
    fn a_size_has_the_largest_unit_that_it_fills() {
        for (bytes, words) in [
            (0, "0 B"),
            (12, "12 B"),
            (1536, "1.5 KiB"),
            (2047, "2.0 KiB"),
            (4 << 30, "4 GiB"),
            (9 << 40, "9 TiB"),
        ] {
            assert_eq!(size_words(bytes), words);
        }
    }
}
