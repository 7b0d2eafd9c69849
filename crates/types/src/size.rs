//! Byte counts as people read and write them: `4GiB`, `512M`, `4GB`, `4096`. KiB, MiB, GiB and TiB,
//! and the letters alone, are powers of 1024; KB, MB, GB and TB are powers of 1000, as disks and
//! networks are labelled.

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

/// A byte count as it can be typed, exactly: `64MiB`, `1536KiB`, `4097`.
#[must_use]
pub fn size_typed(bytes: u64) -> String {
    let units = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fits = units.into_iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    fits.map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// Largest byte count that is taken: far beyond any disk, and sums of many of them still fit.
const BYTES_MAX: u64 = 1 << 50;

const EXAMPLES: &str =
    "write a whole number and a unit, for example 4GiB or 4G (1024-fold), 4GB (1000-fold) or 4096 (bytes)";

/// The unit of a byte count, in bytes.
fn unit_of(text: &str) -> Option<u64> {
    let unit = text.trim().to_ascii_lowercase();
    let (letter, base): (&str, u64) = match unit.as_str() {
        "" | "b" => return Some(1),
        unit => match (unit.strip_suffix("ib"), unit.strip_suffix('b')) {
            (Some(letter), _) => (letter, 1024),
            (None, Some(letter)) => (letter, 1000),
            (None, None) => (unit, 1024),
        },
    };
    let power = ["k", "m", "g", "t"].iter().position(|known| *known == letter)?;
    Some(base.pow(power as u32 + 1))
}

/// Parses a byte count, which must not be 0.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, rest) = text.split_at(digits);
    if let Some(whole) = in_smaller_unit(text) {
        return Err(format!("`{text}` has a fraction, and sizes are whole numbers: write {whole}"));
    }
    if number.is_empty() {
        return Err(format!("`{text}` is not a size; {EXAMPLES}"));
    }
    let Some(unit) = unit_of(rest) else {
        return Err(format!("`{text}` is not a size: `{}` is no unit of bytes; {EXAMPLES}", rest.trim()));
    };
    match number.parse().ok().and_then(|number: u64| number.checked_mul(unit)) {
        Some(0) => Err(format!("`{text}` is no size: the least is 1 byte")),
        Some(bytes) if bytes <= BYTES_MAX => Ok(bytes),
        _ => Err(format!("`{text}` is too large: the most is {}", size_words(BYTES_MAX).replace(' ', ""))),
    }
}

/// A size with a fraction, such as `1.5GiB`, as a whole number of the next smaller unit if that is
/// exact.
fn in_smaller_unit(text: &str) -> Option<String> {
    let (whole, rest) = text.split_once(['.', ','])?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (fraction, unit) = rest.split_at(digits);
    let bytes = u128::from(unit_of(unit)?);
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let scaled =
        (whole.parse::<u64>().ok().map(u128::from)? * scale + fraction.parse::<u128>().ok()?) * bytes;
    let (exact, base) = (scaled.div_ceil(scale), if bytes.is_power_of_two() { 1024 } else { 1000 });
    let smaller = ["", "K", "M", "G"].iter().enumerate().rev().find_map(|(power, letter)| {
        let size = u128::from(base as u64).pow(power as u32);
        let end = if power == 0 {
            ""
        } else if base == 1024 {
            "iB"
        } else {
            "B"
        };
        (size < bytes && exact.is_multiple_of(size)).then(|| format!("{}{letter}{end}", exact / size))
    });
    Some(smaller.unwrap_or_else(|| exact.to_string()))
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
        "`{text}` is {bytes} bytes, and this size has to be a multiple of {BLOCK_BYTES} bytes: write {fits}, or a size in KiB, MiB or GiB"
    ))
}

/// The same, or 0, for none.
pub fn parse_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { parse(text) }
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
        for (text, why) in [
            ("1.5GiB", "write 1536MiB"),
            ("1,5G", "write 1536MiB"),
            ("0.5T", "write 512GiB"),
            ("2.25MB", "write 2250KB"),
            ("0.1KiB", "write 103"),
            ("4parsecs", "`parsecs` is no unit of bytes"),
            ("4G 3M", "is no unit of bytes"),
            ("-4GiB", "is not a size"),
            ("0", "the least is 1 byte"),
            ("1025T", "the most is 1024TiB"),
            ("18446744073709551616", "the most is 1024TiB"),
        ] {
            let said = parse(text).expect_err(text);
            assert!(said.contains(why) && said.contains(text), "{text}: {said}");
        }
        assert_eq!(parse_blocks("4GiB"), Ok(4 << 30));
        assert!(parse_blocks("4GB").is_err_and(|why| why.contains("4000002048")));
        assert_eq!((parse_or_none("0"), parse_or_none("1k")), (Ok(0), Ok(1024)));
        for text in ["64MiB", "1536KiB", "4097", "2TiB", "0"] {
            assert_eq!(size_typed(parse_or_none(text).expect(text)), text);
        }
    }

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
