//! Fields of a message, read without ever going beyond its end.

/// The rest of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `n` bytes.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub fn u16_le(&mut self) -> Option<u16> {
        self.bytes(2)?.try_into().ok().map(u16::from_le_bytes)
    }

    pub fn u32_be(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// Bytes up to a zero, which is taken too.
    pub fn zero_ended(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let text = self.bytes(end)?;
        self.bytes(1)?;
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_stops_at_the_end_of_the_message() {
        let mut reader = Reader(b"\x01\x02\x00ab\x00c");
        assert_eq!((reader.u8(), reader.u16_le()), (Some(1), Some(2)));
        assert_eq!(reader.zero_ended(), Some(&b"ab"[..]));
        assert_eq!(
            (reader.u32_be(), reader.zero_ended(), reader.u8(), reader.u8()),
            (None, None, Some(b'c'), None)
        );
    }
}
