//! Byte counts as people write them: `4GiB`, `512M`, `4096`. K, M, G and T are powers of 1024.

/// Parses a byte count. Nothing that has a size here may have none.
pub fn parse(text: &str) -> Result<u64, String> {
    let explain = || format!("`{text}` is not a size; write for example 4GiB, 512MiB or 4096");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().map_err(|_| explain())?;
    let unit = text[digits..].trim().to_ascii_lowercase();
    let shift = match unit.trim_end_matches('b').trim_end_matches('i') {
        "" if unit != "i" && unit != "ib" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(explain()),
    };
    match number.checked_mul(1 << shift) {
        Some(0) => Err("a size is at least 1 byte".into()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("`{text}` is too large")),
    }
}

/// The same, or 0, for none.
pub fn parse_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse(text) }
}

/// A byte count with three or more significant digits.
pub fn format(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in
            [("4096", 4096), ("1k", 1024), ("4GiB", 4 << 30), ("512 MB", 512 << 20), ("2T", 2 << 40)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "4X", "-1", "4.5G", "7i", "99999999999T", "0", "0GiB", "4GG"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!((parse_or_none("0"), parse_or_none("1k")), (Ok(0), Ok(1024)));
        assert_eq!(format(4 << 30), "4 GiB");
        assert_eq!(format(1536), "1.5 KiB");
        assert_eq!(format(12), "12 B");
    }
}
