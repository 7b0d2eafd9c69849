//! Times as people write them: `60s`, `10m`, `1h`, `30d`, `500ms`, `1m30s`.

/// Longest time that is taken, in milliseconds: ten years. Sums with the present time still fit.
const MS_MAX: u64 = 3650 * 86_400_000;

const EXAMPLES: &str = "write a whole number and a unit, for example 500ms, 90s, 10m, 1h, 30d or 1m30s";

/// The unit of a time, in milliseconds.
fn unit_of(text: &str) -> Option<u64> {
    Some(match text {
        "ms" => 1,
        "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    })
}

/// A time in milliseconds. `alone`: the unit of a number without one, with its name.
fn parse(text: &str, (alone, name): (u64, &str)) -> Result<u64, String> {
    let text = text.trim();
    let explain = |why: &str| format!("`{text}` is not a time{why}; {EXAMPLES}; a number alone is in {name}");
    if text.contains(['.', ',']) {
        return Err(explain(": it has a fraction, and times are whole numbers"));
    }
    if let Some(number) = text.parse::<u64>().ok().and_then(|number| number.checked_mul(alone)) {
        return limited(text, Some(number));
    }
    let (mut rest, mut sum) = (text, Some(0u64));
    let mut above = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.len() - after.trim_start_matches(|c: char| c.is_alphabetic()).len();
        let (unit, next) = after.split_at(letters);
        if number.is_empty() {
            return Err(explain(""));
        }
        if unit.is_empty() && number == text {
            // A number that no time is long enough for.
            return limited(text, None);
        }
        let Some(ms) = unit_of(unit) else {
            return Err(explain(&if unit.is_empty() {
                String::new()
            } else {
                format!(": `{unit}` is no unit of time")
            }));
        };
        if ms >= above {
            return Err(explain(": its parts have to go from the longest unit to the shortest"));
        }
        above = ms;
        let part = number.parse().ok().and_then(|number: u64| number.checked_mul(ms));
        sum = sum.zip(part).and_then(|(sum, part)| sum.checked_add(part));
        rest = next.trim_start();
    }
    if text.is_empty() { Err(explain("")) } else { limited(text, sum) }
}

fn limited(text: &str, ms: Option<u64>) -> Result<u64, String> {
    ms.filter(|ms| *ms <= MS_MAX)
        .ok_or_else(|| format!("`{text}` is too long: the most is {}d", MS_MAX / 86_400_000))
}

/// Parses a time in milliseconds. A number alone is one of seconds.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    parse(text, (1000, "seconds"))
}

/// The same, of an option in milliseconds: there a number alone is one of milliseconds.
pub fn parse_bare_ms(text: &str) -> Result<u64, String> {
    parse(text, (1, "milliseconds"))
}

/// Parses a time in milliseconds, which needs a unit unless it is 0.
pub fn parse_with_unit(text: &str) -> Result<u64, String> {
    let ms = parse_ms(text)?;
    let bare = text.trim();
    if ms != 0 && bare.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("`{bare}` has no unit: write {bare}ms or {bare}s"));
    }
    Ok(ms)
}

/// A time as it can be typed, in the largest unit that divides it: `500ms`, `90s`, `30d`.
#[must_use]
pub fn typed(ms: u64) -> String {
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")];
    let fits = units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    match fits {
        _ if ms == 0 => "0s".to_owned(),
        Some((unit, name)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// Parses a time in seconds, of an option in seconds. A number alone is one of seconds.
pub fn parse_s(text: &str) -> Result<u64, String> {
    let ms = parse_ms(text)?;
    if ms.is_multiple_of(1000) {
        return Ok(ms / 1000);
    }
    Err(format!("`{text}` is no whole number of seconds: write {}s or {}s", ms / 1000, ms / 1000 + 1))
}

/// The same as [`parse_ms`], or `off`, which is 0.
pub fn parse_ms_or_off(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    parse_ms(text).map_err(|why| if why.contains("too long") { why } else { format!("{why}; off for never") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let good = [
            ("500ms", 500),
            ("60", 60_000),
            ("60s", 60_000),
            ("10 m", 600_000),
            ("2h", 7_200_000),
            ("30d", 2_592_000_000),
            ("1m30s", 90_000),
            ("1h 30min", 5_400_000),
            ("2s500ms", 2_500),
            ("0s", 0),
        ];
        for (text, ms) in good {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for bad in ["", "s", "-1s", "1w", "1.5s", "18446744073709551615h"] {
            assert!(parse_ms(bad).is_err(), "{bad}");
        }
        for (text, why) in [
            ("1w", "`w` is no unit of time"),
            ("5S", "`S` is no unit of time"),
            ("1.5s", "has a fraction"),
            ("30s1m", "from the longest unit"),
            ("1m 30", "is not a time"),
            ("1m1m", "from the longest unit"),
            ("soon", "is not a time"),
            ("-5s", "a number alone is in seconds"),
            ("3651d", "the most is 3650d"),
            ("99999999999999999999", "the most is 3650d"),
        ] {
            let said = parse_ms(text).expect_err(text);
            assert!(said.contains(why) && said.contains(text), "{text}: {said}");
        }
        assert_eq!((parse_ms_or_off("off"), parse_ms_or_off("1m")), (Ok(0), Ok(60_000)));
        assert_eq!((parse_bare_ms("2000"), parse_bare_ms("2s")), (Ok(2000), Ok(2000)));
        assert_eq!((parse_s("5"), parse_s("5s"), parse_s("2m")), (Ok(5), Ok(5), Ok(120)));
        assert!(parse_s("1500ms").is_err_and(|why| why.contains("1s or 2s")));
    }
}
