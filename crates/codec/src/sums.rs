//! Sums of the blocks of a volume, as they lie in its file of sums: four bytes for each block, in
//! the order of the blocks.

use crate::crc32c;
use mainstay_types::BLOCK_BYTES;

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

/// Size of the sums of a volume of `volume` bytes.
#[must_use]
pub const fn sums_bytes(volume: u64) -> u64 {
    volume.div_ceil(BLOCK_BYTES * SUMS_PER_PAGE) * BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

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
