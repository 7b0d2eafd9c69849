//! Times as people write them: `60s`, `10m`, `1h`, `30d`, `500ms`.

/// Parses a time in milliseconds. A number alone is one of seconds.
pub fn parse_ms(text: &str) -> Result<u64, String> {
    let explain = || format!("`{text}` is not a time; write for example 90s, 10m or 1h");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().map_err(|_| explain())?;
    let unit = match text[digits..].trim() {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(explain()),
    };
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is too long"))
}

/// The same, or `off`, which is 0.
pub fn parse_ms_or_off(text: &str) -> Result<u64, String> {
    if text == "off" { Ok(0) } else { parse_ms(text) }
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
        ];
        for (text, ms) in good {
            assert_eq!(parse_ms(text), Ok(ms), "{text}");
        }
        for bad in ["", "s", "-1s", "1w", "1.5s", "18446744073709551615h"] {
            assert!(parse_ms(bad).is_err(), "{bad}");
        }
        assert_eq!((parse_ms_or_off("off"), parse_ms_or_off("1m")), (Ok(0), Ok(60_000)));
    }
}
