//! The version table on disk: for every extent the index of the last entry that changed it. It lies
//! in pages of one block, each with a checksum of its own, so that a checkpoint rewrites only
//! changed pages. The superblock holds the *root* of the pages that count. So a page with an older
//! content is noticed.
//!
//! `docs/internals/formats.md` has the layout, which a test compares with the encoded bytes.

use crate::wire::{DecodeError, Put, Reader};
use crate::{crc32c, crc64};
use mainstay_types::{BLOCK_BYTES, Index};

pub const VERSIONS_PAGE_BYTES: usize = BLOCK_BYTES as usize;
/// Versions in one page.
pub const VERSIONS_PER_PAGE: usize = (VERSIONS_PAGE_BYTES - 16) / 8;
const VERSIONS_MAGIC: u32 = u32::from_le_bytes(*b"MSVT");
const CRC_AT: usize = 8;

/// Appends one page to `out`. Answers its checksum.
///
/// # Panics
/// On more than [`VERSIONS_PER_PAGE`] versions.
pub fn encode_page(out: &mut Vec<u8>, page: u32, versions: &[Index]) -> u32 {
    assert!(versions.len() <= VERSIONS_PER_PAGE);
    let start = out.len();
    out.put_u32(VERSIONS_MAGIC);
    out.put_u32(page);
    out.put_u64(0);
    for version in versions {
        out.put_u64(version.0);
    }
    out.resize(start + VERSIONS_PAGE_BYTES, 0);
    let crc = crc32c(&out[start..]);
    out[start + CRC_AT..start + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Returns the root that a superblock records for the pages that it names. The root is a CRC-64
/// over the checksums of all of them, those of the first volume first.
#[must_use]
pub fn versions_root(checksums: impl Iterator<Item = u32>) -> u64 {
    crc64(&[&checksums.flat_map(u32::to_le_bytes).collect::<Vec<u8>>()])
}

/// Decodes the page that must be number `page` into `versions`. Answers its checksum.
pub fn decode_page(block: &[u8], page: u32, versions: &mut [Index]) -> Result<u32, DecodeError> {
    let what = "version table page";
    if block.len() != VERSIONS_PAGE_BYTES || versions.len() > VERSIONS_PER_PAGE {
        return Err(DecodeError::Short { what, need: VERSIONS_PAGE_BYTES, have: block.len() });
    }
    let mut r = Reader::new(what, block);
    let magic = r.u32()?;
    if magic != VERSIONS_MAGIC {
        return Err(DecodeError::Magic { what, found: magic });
    }
    let number = r.u32()?;
    let crc = r.u32()?;
    let mut whole = [0; VERSIONS_PAGE_BYTES];
    whole.copy_from_slice(block);
    whole[CRC_AT..CRC_AT + 4].fill(0);
    if crc32c(&whole) != crc {
        return Err(DecodeError::Checksum { what });
    }
    if number != page {
        return Err(r.field("page", number.into()));
    }
    r.zeroes(4)?;
    for version in versions {
        *version = Index(r.u64()?);
    }
    let rest = r.remaining();
    r.zeroes(rest)?;
    Ok(crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_they_were_encoded() {
        for len in [0, 1, VERSIONS_PER_PAGE] {
            let versions: Vec<Index> = (0..len as u64).map(|i| Index(i * 7)).collect();
            let mut out = vec![1, 2, 3];
            let crc = encode_page(&mut out, 5, &versions);
            assert_eq!(out.len(), 3 + VERSIONS_PAGE_BYTES);
            let mut back = vec![Index(1); len];
            assert_eq!(decode_page(&out[3..], 5, &mut back), Ok(crc));
            assert_eq!(back, versions);
            assert!(decode_page(&out[3..], 6, &mut back).is_err(), "a misplaced page is refused");
        }
    }

    #[test]
    fn the_root_is_of_all_pages_in_their_order() {
        let root = |checksums: &[u32]| versions_root(checksums.iter().copied());
        assert_ne!(root(&[1, 2]), root(&[2, 1]));
        assert_ne!(root(&[1, 2]), root(&[1]));
        assert_ne!(root(&[0]), root(&[]));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let mut good = Vec::new();
        encode_page(&mut good, 0, &[Index(3), Index(4)]);
        let mut versions = [Index(0); 2];
        for byte in 0..good.len() {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert!(decode_page(&bad, 0, &mut versions).is_err(), "byte {byte}");
        }
    }
}
