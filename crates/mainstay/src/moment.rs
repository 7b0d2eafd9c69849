//! Points in time as people write them, in UTC: `2026-11-29T14:00:30`, `2026-11-29 14:00`,
//! `2026-11-29`, `14:00`.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY_MS: u64 = 86_400_000;
const EXAMPLES: &str = "write a date and a time in UTC, for example 2026-11-29T14:00, or 14:00 alone";

/// The wall clock, in milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Parses a point in time, in milliseconds since 1970. A time without a date is the last one
/// before the present.
pub fn parse_now(text: &str) -> Result<u64, String> {
    parse(text, now_ms())
}

fn parse(text: &str, now_ms: u64) -> Result<u64, String> {
    let plain = text.trim().trim_end_matches(['Z', 'z']);
    let explain = || format!("`{text}` is not a point in time; {EXAMPLES}");
    let (date, time) = match plain.split_once(['T', 't', ' ']) {
        Some((date, time)) => (Some(date), Some(time)),
        None if plain.contains(':') => (None, Some(plain)),
        None => (Some(plain), None),
    };
    let time_ms = time.map_or(Some(0), time_of_day).ok_or_else(explain)?;
    let Some(date) = date else {
        let today = now_ms / DAY_MS * DAY_MS + time_ms;
        return Ok(if today <= now_ms { today } else { today.saturating_sub(DAY_MS) });
    };
    let days = days_of(date).ok_or_else(explain)?;
    Ok(days * DAY_MS + time_ms)
}

/// Numbers of exactly these widths with a separator between them.
fn fields<const N: usize>(text: &str, separator: char, widths: [usize; N]) -> Option<[u64; N]> {
    let mut found = [0; N];
    let mut parts = text.split(separator);
    for (field, width) in found.iter_mut().zip(widths) {
        let part = parts.next().filter(|part| part.len() == width)?;
        *field = part.parse().ok().filter(|_| part.bytes().all(|byte| byte.is_ascii_digit()))?;
    }
    parts.next().is_none().then_some(found)
}

fn time_of_day(text: &str) -> Option<u64> {
    let (whole, ms) = match text.split_once('.') {
        Some((whole, fraction)) => (whole, fields(fraction, '.', [3])?[0]),
        None => (text, 0),
    };
    let [hour, minute, second] = match fields(whole, ':', [2, 2]) {
        Some([hour, minute]) => [hour, minute, 0],
        None => fields(whole, ':', [2, 2, 2])?,
    };
    let is_time = hour < 24 && minute < 60 && second < 60;
    is_time.then_some(((hour * 60 + minute) * 60 + second) * 1000 + ms)
}

/// Days since 1970, computed with the days-from-civil algorithm of Howard Hinnant's date library.
fn days_of(text: &str) -> Option<u64> {
    let [year, month, day] = fields(text, '-', [4, 2, 2])?;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return None,
    };
    if year < 1970 || day == 0 || day > length {
        return None;
    }
    let year = year - u64::from(month <= 2);
    let (era, year_of_era) = (year / 400, year % 400);
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::clock::clock;

    #[test]
    fn a_moment_is_read_as_the_clock_writes_it() {
        for at in [0, 951_782_400_000, 1_767_225_599_999, 1_790_000_000_000, 4_102_444_799_000] {
            assert_eq!(parse(&clock(at), 0), Ok(at), "{}", clock(at));
        }
        let day = 1_764_374_400_000;
        for text in ["2025-11-29", "2025-11-29T00:00", "2025-11-29 00:00:00Z"] {
            assert_eq!(parse(text, 0), Ok(day), "{text}");
        }
    }

    #[test]
    fn a_time_alone_is_the_last_one() {
        let noon = 1_764_374_400_000 + 12 * 3_600_000;
        assert_eq!(parse("12:00", noon), Ok(noon));
        assert_eq!(parse("11:59:30", noon), Ok(noon - 30_000));
        assert_eq!(parse("12:01", noon), Ok(noon + 60_000 - DAY_MS));
    }

    #[test]
    fn what_is_no_point_in_time_is_refused_with_an_example() {
        for text in [
            "",
            "now",
            "25:00",
            "12:60",
            "2025-02-29",
            "2025-13-01",
            "2025-1-1",
            "+025-01-01",
            "1:00",
            "12:00:00.1",
            "1969-12-31",
        ] {
            let why = parse(text, 1).unwrap_err();
            assert!(why.contains("is not a point in time; write a date"), "{text}: {why}");
        }
    }
}
