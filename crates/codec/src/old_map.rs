//! Map of a snapshot that is kept without clones of files. It tells which chunks of a volume were
//! put aside before something else was written there, as they were when the snapshot was taken. A
//! header block, then sectors of bits in whole blocks.
//!
//! Bits are only ever set. A power cut may tear a write of sectors. The map then has the old bits,
//! the new ones or something between, and never lacks a bit that was set before.
//!
//! `docs/internals/formats.md` has the layout, which a test compares with what is encoded here.

use crate::crc32c;
use crate::wire::{DecodeError, Put, Reader};
use mainstay_types::{BLOCK_BYTES, SnapshotId, VolumeId, is_volume_size};

pub const OLD_MAP_MAGIC: u32 = u32::from_le_bytes(*b"MSOM");
pub const OLD_MAP_VERSION: u16 = 1;
/// The least that is put aside: a page of InnoDB.
pub const OLD_CHUNK_BYTES: u64 = 16 << 10;
/// Unit of writing, in bytes: a device writes a sector as a whole or not at all.
pub const OLD_MAP_SECTOR_BYTES: usize = 512;
/// Words of 64 bits that a sector has.
pub const OLD_MAP_WORDS: usize = 63;

const HEADER_BYTES: usize = BLOCK_BYTES as usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OldMapHeader {
    pub snapshot: SnapshotId,
    pub volume: VolumeId,
    /// Size of the volume when the snapshot was taken, in bytes.
    pub bytes: u64,
}

impl OldMapHeader {
    /// The whole block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.put_u32(OLD_MAP_MAGIC);
        out.put_u16(OLD_MAP_VERSION);
        out.put_u16(self.volume.0);
        out.put_u32(self.snapshot.0);
        out.put_u32(OLD_CHUNK_BYTES as u32);
        out.put_u64(self.bytes);
        out.resize(HEADER_BYTES - 4, 0);
        let crc = crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// # Errors
    /// When these bytes are no such block.
    pub fn decode(block: &[u8]) -> Result<Self, DecodeError> {
        let what = "map of a snapshot";
        if block.len() != HEADER_BYTES {
            return Err(DecodeError::Short { what, need: HEADER_BYTES, have: block.len() });
        }
        let (body, crc) = block.split_at(HEADER_BYTES - 4);
        let mut r = Reader::new(what, body);
        let magic = r.u32()?;
        if magic != OLD_MAP_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        if crc32c(body).to_le_bytes() != crc {
            return Err(DecodeError::Checksum { what });
        }
        let version = r.u16()?;
        if version != OLD_MAP_VERSION {
            return Err(DecodeError::Version { what, found: version, known: OLD_MAP_VERSION });
        }
        let volume = VolumeId(r.u16()?);
        let snapshot = SnapshotId(r.u32()?);
        let chunk = r.u32()?;
        if u64::from(chunk) != OLD_CHUNK_BYTES {
            return Err(r.field("chunk bytes", chunk.into()));
        }
        let bytes = r.u64()?;
        if !is_volume_size(bytes) {
            return Err(r.field("volume bytes", bytes));
        }
        let rest = r.remaining();
        r.zeroes(rest)?;
        Ok(Self { snapshot, volume, bytes })
    }
}

/// Appends the sector of this number. `words`: at most [`OLD_MAP_WORDS`]; missing words are zero.
///
/// # Panics
/// When there are more.
pub fn encode_old_sector(out: &mut Vec<u8>, number: u32, words: &[u64]) {
    assert!(words.len() <= OLD_MAP_WORDS, "{} words", words.len());
    let from = out.len();
    for word in words {
        out.put_u64(*word);
    }
    out.resize(from + OLD_MAP_WORDS * 8, 0);
    out.put_u32(number);
    let crc = crc32c(&out[from..]);
    out.put_u32(crc);
}

/// The words of the sector of this number.
///
/// # Errors
/// When these bytes are another sector or none.
pub fn decode_old_sector(bytes: &[u8], number: u32) -> Result<[u64; OLD_MAP_WORDS], DecodeError> {
    let what = "map of a snapshot";
    if bytes.len() != OLD_MAP_SECTOR_BYTES {
        return Err(DecodeError::Short { what, need: OLD_MAP_SECTOR_BYTES, have: bytes.len() });
    }
    let (body, crc) = bytes.split_at(OLD_MAP_SECTOR_BYTES - 4);
    if crc32c(body).to_le_bytes() != crc {
        return Err(DecodeError::Checksum { what });
    }
    let mut r = Reader::new(what, body);
    let mut words = [0; OLD_MAP_WORDS];
    for word in &mut words {
        *word = r.u64()?;
    }
    let found = r.u32()?;
    if found != number {
        return Err(r.field("sector number", found.into()));
    }
    r.finish()?;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_encoded_and_every_flipped_bit_is_noticed() {
        let header = OldMapHeader { snapshot: SnapshotId(9), volume: VolumeId(3), bytes: 7 << 20 };
        let good = header.encode();
        assert_eq!(OldMapHeader::decode(&good), Ok(header));
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(OldMapHeader::decode(&bad).is_err(), "byte {byte}");
        }
        assert!(OldMapHeader::decode(&good[..100]).is_err());

        let mut sector = Vec::new();
        encode_old_sector(&mut sector, 5, &[1, u64::MAX]);
        let words = decode_old_sector(&sector, 5).expect("a sector");
        assert_eq!((words[0], words[1], words[2]), (1, u64::MAX, 0));
        assert!(decode_old_sector(&sector, 4).is_err(), "it was written elsewhere");
        for byte in 0..sector.len() {
            let mut bad = sector.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(decode_old_sector(&bad, 5).is_err(), "byte {byte}");
        }
        assert!(decode_old_sector(&[0; OLD_MAP_SECTOR_BYTES], 0).is_err(), "it was never written");
        assert!(decode_old_sector(&sector[1..], 5).is_err());
    }
}
