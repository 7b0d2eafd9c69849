//! Words for operators, made of texts from outside.

/// Longest reason, in characters.
const REASON_CHARS_MAX: usize = 600;
/// Longest text from outside within a reason, in characters.
const QUOTE_CHARS_MAX: usize = 200;

/// The text as one line without control characters, cut after `REASON_CHARS_MAX`.
pub fn one_line(text: &str) -> String {
    cut(text, REASON_CHARS_MAX)
}

/// Bytes from outside as a part of a reason.
pub fn quoted(bytes: &[u8]) -> String {
    cut(&String::from_utf8_lossy(bytes), QUOTE_CHARS_MAX)
}

fn cut(text: &str, chars_max: usize) -> String {
    let plain = text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
    let plain = plain.collect::<Vec<_>>().join(" ");
    match plain.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}…", &plain[..end]),
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        assert_eq!(one_line(" a\n\tb\u{7}c\r\n"), "a b c");
        assert_eq!(quoted(&[b'x'; 1000]).chars().count(), QUOTE_CHARS_MAX + 1);
        assert_eq!(quoted(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }
}
