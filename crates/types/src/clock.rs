//! Points in time and lengths of time as the command line and reports show them.

/// Date and time of day in UTC of a point in milliseconds since 1970. The date is computed with the
/// days-to-civil algorithm of Howard Hinnant's date library.
#[must_use]
pub fn clock(at_ms: u64) -> String {
    let days = at_ms / 86_400_000;
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let ms = at_ms % 86_400_000;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03}Z",
        ms / 3_600_000,
        ms / 60_000 % 60,
        ms / 1000 % 60,
        ms % 1000
    )
}

/// A length of time in microseconds, with three digits at most below 1000 s: `812 µs`, `4.1 ms`,
/// `72 ms`.
#[must_use]
pub fn time_words(us: u64) -> String {
    let tenths = |unit: u64| {
        let tenths = (us.saturating_mul(10).saturating_add(unit / 2)) / unit;
        format!("{}.{}", tenths / 10, tenths % 10)
    };
    let whole = |unit: u64| us.saturating_add(unit / 2) / unit;
    match us {
        0..1000 => format!("{us} µs"),
        1000..10_000 => format!("{} ms", tenths(1000)),
        // A value that would be rounded to four digits is shown in the next form.
        10_000..999_500 => format!("{} ms", whole(1000)),
        999_500..99_950_000 => format!("{} s", tenths(1_000_000)),
        _ => format!("{} s", whole(1_000_000)),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_length_of_time_has_two_or_three_digits() {
        let shown =
            [812, 1000, 4149, 9960, 71_600, 4_100_000, 99_999_999, 123_456_789].map(super::time_words);
        let expected = ["812 µs", "1.0 ms", "4.1 ms", "10.0 ms", "72 ms", "4.1 s", "100 s", "123 s"];
        assert_eq!(shown, expected);
        for us in (10..20_000).chain((20_000..999_000_000).step_by(49_999)).chain([999_499, 99_949_999]) {
            let shown = super::time_words(us);
            let digits = shown.chars().filter(char::is_ascii_digit).count();
            assert!((2..=3).contains(&digits), "{us} µs is shown as {shown}");
        }
        assert_eq!(super::time_words(u64::MAX), "18446744073709 s");
    }

    #[test]
    fn the_clock_knows_leap_days() {
        assert_eq!(super::clock(0), "1970-01-01 00:00:00.000Z");
        assert_eq!(super::clock(951_782_400_000), "2000-02-29 00:00:00.000Z");
        assert_eq!(super::clock(1_767_225_599_999), "2025-12-31 23:59:59.999Z");
    }
}
