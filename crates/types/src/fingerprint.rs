//! Fingerprints: the names by which certificates, keys and secrets are recorded.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes of a fingerprint.
pub const FINGERPRINT_BYTES: usize = 32;

/// SHA-256 of a certificate, of a public key or of a secret. Written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; FINGERPRINT_BYTES]);

/// A text that is not 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoFingerprint;

impl fmt::Display for NoFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fingerprint has 64 hexadecimal digits")
    }
}

impl std::error::Error for NoFingerprint {}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NoFingerprint;

    fn from_str(text: &str) -> Result<Self, NoFingerprint> {
        bytes_of(text).and_then(|bytes| bytes.try_into().ok()).map(Self).ok_or(NoFingerprint)
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Bytes that are written as hexadecimal digits: a certificate, or something sealed.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct HexBytes(pub Vec<u8>);

impl fmt::Debug for HexBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl Serialize for HexBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&digits)
    }
}

impl<'de> Deserialize<'de> for HexBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let bytes =
            bytes_of(&digits).ok_or_else(|| serde::de::Error::custom("hexadecimal digits are expected"))?;
        Ok(Self(bytes))
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let is_whole = digits.len().is_multiple_of(2) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_whole.then_some(())?;
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_was_written_and_nothing_else_is() {
        let fingerprint = Fingerprint(std::array::from_fn(|at| at as u8 * 8));
        let text = fingerprint.to_string();
        assert_eq!((text.len(), text.parse()), (64, Ok(fingerprint)));
        let json = serde_json::to_string(&fingerprint).unwrap();
        assert_eq!(serde_json::from_str::<Fingerprint>(&json).unwrap(), fingerprint);
        for bad in
            ["", &text[1..], &format!("{text}0"), &text.replace('8', "g"), &"é".repeat(32), &"+f".repeat(32)]
        {
            assert_eq!(bad.parse::<Fingerprint>(), Err(NoFingerprint), "{bad}");
        }
    }
    #[test]
    fn bytes_are_read_as_they_were_written() {
        let bytes = HexBytes((0..=255).collect());
        let json = serde_json::to_string(&bytes).unwrap();
        assert_eq!((json.len(), serde_json::from_str::<HexBytes>(&json).unwrap()), (514, bytes));
        for bad in ["\"0\"", "\"0g\"", "\"é\"", "\"+1\"", "7"] {
            assert!(serde_json::from_str::<HexBytes>(bad).is_err(), "{bad}");
        }
    }
}
