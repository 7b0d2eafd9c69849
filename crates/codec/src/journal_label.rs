//! Label of a journal that does not lie beside its superblock: it names the replica. One block
//! after the end of the ring.
//!
//! `docs/internals/formats.md` has the layout, which a test compares with the encoded bytes.

use crate::crc32c;
use crate::wire::{DecodeError, Put, Reader};
use mainstay_types::{BLOCK_BYTES, Incarnation, ResourceId};

pub const JOURNAL_LABEL_BYTES: usize = BLOCK_BYTES as usize;
pub const JOURNAL_LABEL_MAGIC: u32 = u32::from_le_bytes(*b"MSJF");
pub const JOURNAL_LABEL_VERSION: u16 = 1;

const VOLATILE: u16 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalLabel {
    pub resource: ResourceId,
    pub incarnation: Incarnation,
    /// Size of the ring before the label.
    pub journal_bytes: u64,
    /// Whether the journal was made to be lost with the power of the machine, as one in memory is.
    pub volatile: bool,
}

impl JournalLabel {
    /// The whole block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(JOURNAL_LABEL_BYTES);
        out.put_u32(JOURNAL_LABEL_MAGIC);
        out.put_u16(JOURNAL_LABEL_VERSION);
        out.put_u16(if self.volatile { VOLATILE } else { 0 });
        out.put_u64(self.resource.0);
        out.put_u64(self.incarnation.0);
        out.put_u64(self.journal_bytes);
        out.resize(JOURNAL_LABEL_BYTES - 4, 0);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let what = "journal label";
        if block.len() != JOURNAL_LABEL_BYTES {
            return Err(DecodeError::Short { what, need: JOURNAL_LABEL_BYTES, have: block.len() });
        }
        let (body, crc) = block.split_at(JOURNAL_LABEL_BYTES - 4);
        let mut r = Reader::new(what, body);
        let magic = r.u32()?;
        if magic != JOURNAL_LABEL_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        if crc32c(body).to_le_bytes() != crc {
            return Err(DecodeError::Checksum { what });
        }
        let version = r.u16()?;
        if version != JOURNAL_LABEL_VERSION {
            return Err(DecodeError::Version { what, found: version, known: JOURNAL_LABEL_VERSION });
        }
        let volatile = match r.u16()? {
            0 => false,
            VOLATILE => true,
            other => return Err(r.field("flags", other.into())),
        };
        let resource = ResourceId(r.u64()?);
        let incarnation = Incarnation(r.u64()?);
        let journal_bytes = r.u64()?;
        if journal_bytes == 0 || !journal_bytes.is_multiple_of(BLOCK_BYTES) {
            return Err(r.field("journal bytes", journal_bytes));
        }
        let rest = r.remaining();
        r.zeroes(rest)?;
        Ok(Self { resource, incarnation, journal_bytes, volatile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: JournalLabel = JournalLabel {
        resource: ResourceId(3),
        incarnation: Incarnation(77),
        journal_bytes: 1 << 24,
        volatile: true,
    };

    #[test]
    fn a_record_is_decoded_as_encoded_and_every_flipped_bit_is_noticed() {
        let good = LABEL.encode();
        assert_eq!(JournalLabel::decode(&good), Ok(LABEL));
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(JournalLabel::decode(&bad).is_err(), "byte {byte}");
        }
        assert!(JournalLabel::decode(&good[..100]).is_err());
    }
}
