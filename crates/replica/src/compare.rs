//! Comparison of a copy's source with its target (R16): blocks that the target already holds are
//! not sent.
//!
//! An extent counts as changed when one of its blocks has changed. A target that once had the
//! volumes, or whose copy was interrupted, holds most of the other blocks. So the source asks it
//! for the sums of its blocks before it reads the extent itself. It then sends only the blocks
//! whose sums differ.
//!
//! Why this is right: take a block that no entry after the beginning of the copy changes. It is the
//! same at all moments of the copy, on both sides. So equal sums mean that the target holds what
//! the source holds. If such an entry changes the block, the target gets its content from the log,
//! whatever it kept. Sums are CRC-64, as in a scrub: two different contents have equal sums by
//! chance once in 2^64.
//!
//! A block that is kept may lie only in the cache of the target's device, from before the target
//! was started again. So the volume is flushed before the copy ends.
//!
//! A target without any content is not asked. Where few blocks are equal, asking costs the target a
//! read of everything and saves nothing. Then the source asks for a sample of the extents only.

use bytes::Bytes;
use mainstay_codec::{BlockSums, block_sum};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, reach};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Shortest run of equal blocks that is not sent. A shorter run is sent too: the target then writes
/// the blocks around it in one go.
const KEPT_MIN: usize = 4;
/// Extents that are asked for before anything is judged.
const FIRST: u64 = 8;
/// Where few blocks are equal, the target is asked for one extent of this number.
const SAMPLE: u64 = 16;
/// Few blocks are equal if fewer than one of this number of blocks is.
const LITTLE: u64 = 8;
/// Number of blocks after which the earlier counts are halved.
const HALVED_AFTER: u64 = 4096;

/// Whether asking has paid so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Comparing {
    extents: u64,
    compared: u64,
    kept: u64,
}

impl Comparing {
    /// Whether to ask for the next extent.
    pub fn asks(&mut self) -> bool {
        self.extents += 1;
        let pays = self.kept.saturating_mul(LITTLE) >= self.compared;
        let asks = pays || self.extents <= FIRST || self.extents.is_multiple_of(SAMPLE);
        if !asks {
            reach!("replica: the target of a copy is not asked because it holds little");
        }
        asks
    }

    /// Notes that the target kept `kept` of the `blocks` blocks of an extent.
    pub fn note(&mut self, blocks: u64, kept: u64) {
        self.compared += blocks;
        self.kept += kept;
        if self.compared > HALVED_AFTER {
            (self.compared, self.kept) = (self.compared / 2, self.kept / 2);
        }
    }
}

/// The blocks of an extent that are the same at a target, by their place, ascending; none if all of
/// it is zeroes (no `data`), which costs nothing to send.
pub(crate) fn kept_blocks(data: &Bytes, damaged: &[u32], held: &BlockSums) -> Vec<u32> {
    let lost = |list: &[u32], block: u32| list.binary_search(&block).is_ok();
    let kept = |block: u32, bytes: &[u8], sum: u64| {
        let equal = block_sum(bytes) == sum || planted(Bug::KeptUnequal);
        equal && !lost(damaged, block) && !lost(&held.damaged, block)
    };
    let blocks = (0u32..).zip(data.chunks(BLOCK)).zip(&held.sums);
    let equal: Vec<u32> = blocks
        .filter(|((block, bytes), sum)| kept(*block, bytes, **sum))
        .map(|((block, _), _)| block)
        .collect();
    let runs = equal.chunk_by(|one, next| one + 1 == *next);
    let mut out = Vec::with_capacity(equal.len());
    for run in runs.filter(|run| run.len() >= KEPT_MIN) {
        out.extend(run);
    }
    if !out.is_empty() {
        reach!("replica: blocks of a copy are kept by its target");
    }
    out
}

/// Returns the part of an extent's `data` that is sent: all blocks but `kept`, which are in
/// ascending order.
pub(crate) fn without(data: Bytes, kept: &[u32]) -> Bytes {
    if kept.is_empty() {
        return data;
    }
    let mut kept = kept.iter().copied().peekable();
    let mut sent = Vec::with_capacity(data.len());
    for (block, bytes) in (0u32..).zip(data.chunks(BLOCK)) {
        if kept.next_if_eq(&block).is_none() {
            sent.extend_from_slice(bytes);
        }
    }
    Bytes::from(sent)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(fills: &[u8]) -> Bytes {
        fills.iter().flat_map(|fill| vec![*fill; BLOCK]).collect()
    }

    fn held(fills: &[u8], damaged: &[u32]) -> BlockSums {
        let sums = fills.iter().map(|fill| block_sum(&vec![*fill; BLOCK])).collect();
        BlockSums { sums, damaged: damaged.to_vec() }
    }

    #[test]
    fn equal_blocks_are_kept_and_the_others_sent() {
        let here = extent(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let kept = kept_blocks(&here, &[], &held(&[1, 2, 3, 4, 9, 6, 7, 8], &[]));
        assert_eq!(kept, [0, 1, 2, 3], "three in a row are too few");
        assert_eq!(without(here.clone(), &kept), extent(&[5, 6, 7, 8]));
        let all = kept_blocks(&here, &[], &held(&[1, 2, 3, 4, 5, 6, 7, 8], &[]));
        assert_eq!((all.len(), without(here, &all).len()), (8, 0));
    }

    #[test]
    fn damaged_blocks_are_not_kept_whatever_their_sum() {
        let here = extent(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let same = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(kept_blocks(&here, &[], &held(&same, &[4])), [0, 1, 2, 3, 5, 6, 7, 8], "damaged there");
        assert_eq!(
            kept_blocks(&here, &[4], &held(&same, &[])),
            [0, 1, 2, 3, 5, 6, 7, 8],
            "damaged everywhere"
        );
    }

    #[test]
    fn a_replica_that_reports_no_sums_keeps_no_blocks() {
        let here = extent(&[1; 8]);
        assert!(kept_blocks(&here, &[], &BlockSums::default()).is_empty());
        // Blocks beyond the end of the volume there were not summed.
        assert_eq!(kept_blocks(&here, &[], &held(&[1; 5], &[])), [0, 1, 2, 3, 4]);
        assert_eq!(kept_blocks(&extent(&[1; 5]), &[], &held(&[1; 8], &[])), [0, 1, 2, 3, 4]);
        assert!(kept_blocks(&Bytes::new(), &[], &held(&[0; 8], &[])).is_empty());
    }

    #[test]
    fn comparing_goes_on_while_it_pays() {
        let mut comparing = Comparing::default();
        for _ in 0..100 {
            assert!(comparing.asks());
            comparing.note(256, 200);
        }
        // Then nothing is equal any more.
        let asked = (0..1000).filter(|_| {
            let asks = comparing.asks();
            if asks {
                comparing.note(256, 0);
            }
            asks
        });
        assert!((1000 / SAMPLE as usize..150).contains(&asked.count()));
        // And then it is again.
        for _ in 0..20 * SAMPLE {
            if comparing.asks() {
                comparing.note(256, 256);
            }
        }
        assert!((0..10).all(|_| comparing.asks()));
    }
}
