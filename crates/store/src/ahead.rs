//! Blocks of extents that are still to come and that the log has written already (R16). It keeps
//! one bit for each block: 32 bytes for each MiB that was written to. So the size of the volumes
//! bounds it.
//!
//! It does not matter which entry wrote a block. Everything newer than the beginning of the copy
//! also comes in the log. So if the copy has newer content, the entry that made it comes too. The
//! written block is kept, and its part of the copy is left out.

use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, VolumeId};
use std::collections::BTreeMap;

const BLOCKS: u64 = EXTENT_BYTES / BLOCK_BYTES;
const WORDS: usize = BLOCKS.div_ceil(64) as usize;

#[derive(Default, Debug)]
pub struct Ahead(BTreeMap<(VolumeId, Extent), [u64; WORDS]>);

impl Ahead {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The blocks `first..end` of a volume are written. Those of extents that `came` are forgotten
    /// at once.
    pub fn note(&mut self, volume: VolumeId, first: u64, end: u64, came: impl Fn(Extent) -> bool) {
        for extent in first / BLOCKS..end.div_ceil(BLOCKS) {
            // Volumes have fewer extents than fit.
            if came(Extent(extent as u32)) {
                continue;
            }
            let start = extent * BLOCKS;
            let bits = self.0.entry((volume, Extent(extent as u32))).or_default();
            for block in first.max(start) - start..end.min(start + BLOCKS) - start {
                bits[(block / 64) as usize] |= 1 << (block % 64);
            }
        }
    }

    /// Takes the bits of an extent that has come. Returns those of its blocks `first..end` that
    /// were not written, as stretches. Blocks count from the start of the volume.
    pub fn take(&mut self, volume: VolumeId, extent: Extent, (first, end): (u64, u64)) -> Vec<(u64, u64)> {
        let bits = self.0.remove(&(volume, extent)).unwrap_or_default();
        let start = extent.first_block();
        let written = |block: u64| bits[((block - start) / 64) as usize] >> ((block - start) % 64) & 1 == 1;
        let mut stretches: Vec<(u64, u64)> = Vec::with_capacity(1);
        for block in (first..end).filter(|&block| !written(block)) {
            match stretches.last_mut() {
                Some((_, to)) if *to == block => *to += 1,
                _ => stretches.push((block, block + 1)),
            }
        }
        stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V: VolumeId = VolumeId(1);

    #[test]
    fn ranges_written_ahead_are_left_out_once() {
        let mut ahead = Ahead::default();
        let whole = (BLOCKS, 2 * BLOCKS);
        assert_eq!(ahead.take(V, Extent(1), whole), [whole]);
        // Across three extents, of which the first has come.
        ahead.note(V, 3, 2 * BLOCKS + 5, |extent| extent == Extent(0));
        ahead.note(V, 2 * BLOCKS + 7, 2 * BLOCKS + 8, |_| false);
        assert_eq!(ahead.take(V, Extent(0), (0, BLOCKS)), [(0, BLOCKS)]);
        assert_eq!(ahead.take(V, Extent(1), whole), []);
        let (at, end) = (2 * BLOCKS, 3 * BLOCKS);
        assert_eq!(ahead.take(VolumeId(0), Extent(2), (at, end)), [(at, end)]);
        assert_eq!(ahead.take(V, Extent(2), (at, end)), [(at + 5, at + 7), (at + 8, end)]);
        assert_eq!(ahead.take(V, Extent(2), (at, end)), [(at, end)], "it is forgotten");
        // The last extent of a volume may be short.
        ahead.note(V, at, at + 2, |_| false);
        assert_eq!(ahead.take(V, Extent(2), (at, at + 4)), [(at + 2, at + 4)]);
    }
}
