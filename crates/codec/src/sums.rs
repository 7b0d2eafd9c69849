//! Sums of the blocks of a volume, as they lie in its file of sums: four bytes for each block, in
//! the order of the blocks.
//!
//! A payload is read once for its checksum and for the sums of its blocks ([`payload_sums`]). CRC
//! is linear, so the checksum of the whole follows from those of the blocks
//! (docs/adr/0058-one-pass-of-sums.md).

use crate::crc32c;
use mainstay_types::BLOCK_BYTES;
use std::sync::Arc;

/// Bytes of the sum of a block.
pub const SUM_BYTES: u64 = 4;
/// Blocks that a page of [`BLOCK_BYTES`] tells of.
pub const SUMS_PER_PAGE: u64 = BLOCK_BYTES / SUM_BYTES;

/// CRC-32C of a block of zeroes.
const CRC_OF_ZEROES: u32 = 0x98f9_4189;

/// Content that is written in the place of a block that no replica is known to have any more. It is
/// not zeroes, because a lost page of sums would take zeroes for right.
pub static DAMAGED_BLOCK: [u8; BLOCK_BYTES as usize] = {
    let text = b"MAINSTAY: LOST. ";
    let mut block = [0; BLOCK_BYTES as usize];
    let mut at = 0;
    while at < block.len() {
        block[at] = text[at % text.len()];
        at += 1;
    }
    block
};

/// The sum beside it, which fits neither it nor zeroes.
pub const DAMAGED_SUM: u32 = u32::MAX;

/// The CRC-32C of a block, arranged so that the sum of zeroes is zero: a file of holes is right for
/// a volume of holes.
#[must_use]
pub fn block_sum(block: &[u8]) -> u32 {
    crc32c(block) ^ CRC_OF_ZEROES
}

/// Polynomial of CRC-32C with its bits in reverse order, as [`crc32c`] computes.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Result of [`after_block`] for each value of each four bits of a checksum, the lowest bits first.
static AFTER_BLOCK: [[u32; 16]; 8] = {
    let mut table = [[0; 16]; 8];
    let mut bit = 0;
    while bit < 32 {
        // The checksum with this bit alone, after as many zero bits as a block has.
        let mut shifted = 1 << bit;
        let mut left = 8 * BLOCK_BYTES;
        while left > 0 {
            shifted = if shifted & 1 == 1 { shifted >> 1 ^ POLYNOMIAL } else { shifted >> 1 };
            left -= 1;
        }
        let mut value = 0;
        while value < 16 {
            if value >> (bit % 4) & 1 == 1 {
                table[bit / 4][value] ^= shifted;
            }
            value += 1;
        }
        bit += 1;
    }
    table
};

/// Share of the checksum of some bytes in the checksum of the same bytes and one block behind them.
/// Exclusive or with the checksum of the block gives the checksum of all. This is `crc32_combine`
/// of zlib for one length.
fn after_block(crc: u32) -> u32 {
    let four_bits = |n: usize| (crc >> (4 * n) & 15) as usize;
    AFTER_BLOCK.iter().enumerate().fold(0, |sum, (n, table)| sum ^ table[four_bits(n)])
}

/// Returns the CRC-32C of a payload and, if it has several blocks, their sums, in one pass. The sum
/// of a single block follows from the CRC-32C ([`KeptSums::of_payload`]).
#[must_use]
pub fn payload_sums(payload: &[u8]) -> (u32, Option<Arc<[u32]>>) {
    let (blocks, rest) = payload.as_chunks::<{ BLOCK_BYTES as usize }>();
    if blocks.len() < 2 || !rest.is_empty() {
        return (crc32c(payload), None);
    }
    let mut crc = 0;
    let sums = blocks.iter().map(|block| {
        let own = crc32c(block);
        crc = after_block(crc) ^ own;
        own ^ CRC_OF_ZEROES
    });
    let sums = sums.collect();
    (crc, Some(sums))
}

/// Sums of consecutive blocks of a payload ([`block_sum`]), kept since the payload was sealed or
/// checked. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptSums {
    /// The sum of the only block.
    One(u32),
    /// The sums of all blocks of the payload, and the place of the first of these.
    Several { all: Arc<[u32]>, first: u32 },
}

impl KeptSums {
    /// The sums of the blocks from `first` on of a payload of `len` bytes, from the results of
    /// [`payload_sums`]. `None` if they were not kept.
    #[must_use]
    pub fn of_payload(len: u64, crc: u32, sums: Option<&Arc<[u32]>>, first: u32) -> Option<Self> {
        match sums {
            Some(all) => Some(Self::Several { all: all.clone(), first }),
            None => (len == BLOCK_BYTES).then_some(Self::One(crc ^ CRC_OF_ZEROES)),
        }
    }

    /// The sum of the `n`th block, from 0 on; `None` beyond the payload.
    #[must_use]
    pub fn get(&self, n: usize) -> Option<u32> {
        match self {
            Self::One(sum) => (n == 0).then_some(*sum),
            Self::Several { all, first } => all.get(*first as usize + n).copied(),
        }
    }
}

/// Size of the sums of a volume of `volume` bytes.
#[must_use]
pub const fn sums_bytes(volume: u64) -> u64 {
    volume.div_ceil(BLOCK_BYTES * SUMS_PER_PAGE) * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BLOCK: usize = BLOCK_BYTES as usize;

    /// Bytes of which no two blocks are alike.
    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut state = seed | 1;
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    #[test]
    fn one_pass_gives_the_checksum_of_a_payload_of_any_length_and_the_sums_of_its_blocks() {
        let all = bytes(7, 256 * BLOCK);
        for blocks in (0..=40).chain([63, 64, 65, 255, 256]) {
            let payload = &all[..blocks * BLOCK];
            let (crc, sums) = payload_sums(payload);
            assert_eq!(crc, crc32c(payload), "{blocks} blocks");
            for (n, block) in payload.chunks(BLOCK).enumerate() {
                let kept = KeptSums::of_payload(payload.len() as u64, crc, sums.as_ref(), n as u32);
                assert_eq!(kept.and_then(|kept| kept.get(0)), Some(block_sum(block)), "{n} of {blocks}");
            }
        }
    }

    #[test]
    fn no_sum_is_kept_for_what_is_no_whole_block() {
        for len in [0, 1, BLOCK - 1, BLOCK + 1, 3 * BLOCK - 1] {
            let payload = bytes(3, len);
            let (crc, sums) = payload_sums(&payload);
            assert_eq!((crc, &sums), (crc32c(&payload), &None));
            assert_eq!(KeptSums::of_payload(len as u64, crc, sums.as_ref(), 0), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn sums_of_a_part_of_a_payload_are_those_of_its_blocks(
            seed in any::<u64>(), blocks in 1usize..12, from in 0usize..12, n in 0usize..14,
        ) {
            let payload = bytes(seed, blocks * BLOCK);
            let (crc, sums) = payload_sums(&payload);
            let from = from % blocks;
            let kept = KeptSums::of_payload(payload.len() as u64, crc, sums.as_ref(), from as u32);
            let expected = payload[from * BLOCK..].chunks(BLOCK).nth(n).map(block_sum);
            prop_assert_eq!(kept.and_then(|kept| kept.get(n)), expected);
        }

        #[test]
        fn a_changed_byte_changes_the_checksum_and_the_sum_of_its_block_alone(
            seed in any::<u64>(), blocks in 1usize..6, at in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let mut payload = bytes(seed, blocks * BLOCK);
            let before = payload_sums(&payload);
            let at = at.index(payload.len());
            payload[at] ^= flip;
            let after = payload_sums(&payload);
            prop_assert_ne!(before.0, after.0);
            if let (Some(before), Some(after)) = (before.1, after.1) {
                let changed = (0..blocks).filter(|n| before[*n] != after[*n]);
                prop_assert_eq!(changed.collect::<Vec<_>>(), [at / BLOCK]);
            }
        }
    }

    #[test]
    fn only_a_block_of_zeroes_has_the_sum_of_zeroes() {
        let mut block = [0; BLOCK_BYTES as usize];
        assert_eq!(block_sum(&block), 0);
        for byte in (0..block.len()).step_by(97) {
            block[byte] = 1;
            assert_ne!(block_sum(&block), 0, "byte {byte}");
            block[byte] = 0;
        }
    }

    #[test]
    fn the_filler_of_a_lost_block_fits_no_sum_that_is_written_for_it() {
        assert_ne!(block_sum(&DAMAGED_BLOCK), DAMAGED_SUM);
        assert_ne!(block_sum(&DAMAGED_BLOCK), 0, "a page of sums that was lost");
        assert_ne!(block_sum(&[0; BLOCK_BYTES as usize]), DAMAGED_SUM, "a block that was lost");
    }

    #[test]
    fn a_page_tells_of_four_mebibytes() {
        assert_eq!(sums_bytes(4 << 20), BLOCK_BYTES);
        assert_eq!(sums_bytes((4 << 20) + BLOCK_BYTES), 2 * BLOCK_BYTES);
        assert_eq!(sums_bytes(1 << 40), 1 << 30);
    }
}
