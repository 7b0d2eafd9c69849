//! Byte counts as people write them: `4GiB`, `512M`, `4GB`, `4096`. KiB, MiB, GiB and TiB, and the letters alone, are powers of
//! 1024; KB, MB, GB and TB are powers of 1000, as disks and networks are labelled.

/// Parses a byte count. Nothing that has a size here may have none.
pub fn parse(text: &str) -> Result<u64, String> {
    let explain = || {
        format!(
            "`{text}` is not a size; write for example 4GiB or 4G (1024-fold), 4GB (1000-fold) or 4096 (bytes)"
        )
    };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().map_err(|_| explain())?;
    let unit = text[digits..].trim().to_ascii_lowercase();
    let (letter, base): (&str, u64) = match unit.as_str() {
        "" | "b" => ("", 1),
        unit => match (unit.strip_suffix("ib"), unit.strip_suffix('b')) {
            (Some(letter), _) => (letter, 1024),
            (None, Some(letter)) => (letter, 1000),
            (None, None) => (unit, 1024),
        },
    };
    let power = match letter {
        "" if unit.len() <= 1 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(explain()),
    };
    match number.checked_mul(base.pow(power)) {
        Some(0) => Err("a size is at least 1 byte".into()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("`{text}` is too large")),
    }
}

/// The size of a volume or of a journal, which are made of blocks.
pub fn parse_blocks(text: &str) -> Result<u64, String> {
    const BLOCK_BYTES: u64 = 4096;
    let bytes = parse(text)?;
    if bytes.is_multiple_of(BLOCK_BYTES) {
        return Ok(bytes);
    }
    let fits = bytes.next_multiple_of(BLOCK_BYTES);
    Err(format!(
        "`{text}` is {bytes} bytes, and this size is a multiple of {BLOCK_BYTES} bytes: write {fits}, or for example 4GiB"
    ))
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
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("4GiB", 4 << 30),
            ("4g", 4 << 30),
            ("512 MiB", 512 << 20),
            ("512 MB", 512_000_000),
            ("4gb", 4_000_000_000),
            ("7b", 7),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in
            ["", "G", "4X", "-1", "4.5G", "7i", "99999999999T", "0", "0GiB", "4GG", "4ib", "4bb", "4Gib7"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(parse_blocks("4GiB"), Ok(4 << 30));
        assert!(parse_blocks("4GB").is_err_and(|why| why.contains("4000002048")));
        assert_eq!((parse_or_none("0"), parse_or_none("1k")), (Ok(0), Ok(1024)));
        assert_eq!(format(4 << 30), "4 GiB");
        assert_eq!(format(1536), "1.5 KiB");
        assert_eq!(format(12), "12 B");
    }
}
