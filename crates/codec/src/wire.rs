//! Bounds-checked little-endian reading and writing of fixed layouts.

use thiserror::Error;

/// Why bytes from outside were refused.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum DecodeError {
    #[error("{what}: {have} bytes where {need} are needed")]
    Short { what: &'static str, need: usize, have: usize },
    #[error("{what}: bad magic number {found:#010x}")]
    Magic { what: &'static str, found: u32 },
    #[error("{what}: version {found} is not understood (this build knows {known})")]
    Version { what: &'static str, found: u16, known: u16 },
    #[error("{what}: checksum mismatch")]
    Checksum { what: &'static str },
    #[error("{what}: field {field} has the impossible value {value}")]
    Field { what: &'static str, field: &'static str, value: u64 },
}

/// Reads fixed-size fields from the front of a slice.
pub struct Reader<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, bytes, at: 0 }
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(DecodeError::Short {
                what: self.what,
                need: self.at.saturating_add(len),
                have: self.bytes.len(),
            });
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Takes `len` reserved bytes and refuses any that is not zero: one message has one encoding,
    /// and a later version may give these bytes a meaning without being misread by this one.
    pub fn zeroes(&mut self, len: usize) -> Result<(), DecodeError> {
        // All of them together first: that is done many at a time, a search byte by byte.
        let bytes = self.take(len)?;
        if bytes.iter().fold(0, |all, byte| all | byte) == 0 {
            return Ok(());
        }
        let found = bytes.iter().copied().find(|&byte| byte != 0).unwrap_or_default();
        Err(self.field("reserved bytes", found.into()))
    }

    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn field(&self, field: &'static str, value: u64) -> DecodeError {
        DecodeError::Field { what: self.what, field, value }
    }

    /// Ends decoding; refuses trailing bytes.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.remaining() {
            0 => Ok(()),
            left => Err(self.field("trailing bytes", left as u64)),
        }
    }
}

/// Appends fixed-size fields to a vector.
pub trait Put {
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
}

impl Put for Vec<u8> {
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}
