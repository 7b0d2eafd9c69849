//! The overlay: which committed blocks are in the journal and not yet in the backing store.
//!
//! Runs of blocks rather than blocks, because one discard may cover a million of them. Runs never
//! overlap; a newer entry carves its range out of the older ones. A run names its place in the journal,
//! never its bytes, so that memory can be dropped without touching the overlay.

use mainstay_types::{BLOCK_BYTES, Index, VolumeId};
use std::collections::BTreeMap;

/// What a run reads as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Zero,
    /// Payload that starts at this offset of the journal.
    Data {
        at: u64,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub blocks: u64,
    /// The entry that wrote it.
    pub index: Index,
    pub content: Content,
}

impl Run {
    /// The part that starts `skip` blocks in.
    fn tail(self, skip: u64) -> Self {
        let content = match self.content {
            Content::Zero => Content::Zero,
            Content::Data { at } => Content::Data { at: at + skip * BLOCK_BYTES },
        };
        Self { blocks: self.blocks - skip, content, ..self }
    }

    fn data_bytes(self) -> u64 {
        match self.content {
            Content::Zero => 0,
            Content::Data { .. } => self.blocks * BLOCK_BYTES,
        }
    }
}

#[derive(Default, Debug)]
pub struct Overlay {
    runs: BTreeMap<(VolumeId, u64), Run>,
    data_bytes: u64,
}

impl Overlay {
    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes of payload that the backing store does not have yet.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    pub fn clear(&mut self) {
        self.runs.clear();
        self.data_bytes = 0;
    }

    /// Lays `run` over everything older that starts at `block`.
    pub fn insert(&mut self, volume: VolumeId, block: u64, run: Run) {
        let end = block + run.blocks;
        self.split(volume, block, |_| true);
        self.split(volume, end, |_| true);
        while let Some((&key, &old)) = self.runs.range((volume, block)..(volume, end)).next() {
            self.runs.remove(&key);
            self.data_bytes -= old.data_bytes();
        }
        self.data_bytes += run.data_bytes();
        self.runs.insert((volume, block), run);
    }

    /// Forgets what in `first..end` was written at or before `to`: the backing store has it.
    pub fn forget(&mut self, volume: VolumeId, first: u64, end: u64, to: Index) {
        self.split(volume, first, |run| run.index <= to);
        self.split(volume, end, |run| run.index <= to);
        let mut at = first;
        while let Some((&key, &run)) = self.runs.range((volume, at)..(volume, end)).next() {
            if run.index <= to {
                self.runs.remove(&key);
                self.data_bytes -= run.data_bytes();
            }
            // A newer run was not split and may reach beyond the end.
            at = end.min(key.1 + run.blocks);
        }
    }

    /// The parts of runs within `first..end`, in order, each with its first block.
    pub fn within(&self, volume: VolumeId, first: u64, end: u64) -> impl Iterator<Item = (u64, Run)> + '_ {
        let before = self
            .runs
            .range(..(volume, first))
            .next_back()
            .filter(|&(&(v, at), run)| v == volume && at + run.blocks > first)
            .map(|(&(_, at), run)| (first, run.tail(first - at)));
        let inside = self.runs.range((volume, first)..(volume, end)).map(|(&(_, at), &run)| (at, run));
        before
            .into_iter()
            .chain(inside)
            .map(move |(at, run)| (at, Run { blocks: run.blocks.min(end - at), ..run }))
    }

    /// Runs from `cursor` on, over all volumes; a run that reaches across the cursor counts from there.
    pub fn from(&self, cursor: (VolumeId, u64)) -> impl Iterator<Item = (VolumeId, u64, Run)> + '_ {
        let (volume, first) = cursor;
        let before = self
            .runs
            .range(..cursor)
            .next_back()
            .filter(move |&(&(v, at), run)| v == volume && at + run.blocks > first)
            .map(move |(&(_, at), run)| (volume, first, run.tail(first - at)));
        before.into_iter().chain(self.runs.range(cursor..).map(|(&(v, at), &run)| (v, at, run)))
    }

    /// Splits the run that reaches across `block` there, if there is one and it is `wanted`.
    fn split(&mut self, volume: VolumeId, block: u64, wanted: impl Fn(&Run) -> bool) {
        let Some((&(v, at), run)) = self.runs.range_mut(..(volume, block)).next_back() else {
            return;
        };
        if v != volume || at + run.blocks <= block || !wanted(run) {
            return;
        }
        let tail = run.tail(block - at);
        run.blocks = block - at;
        self.runs.insert((volume, block), tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const V: VolumeId = VolumeId(1);

    proptest! {
        /// Against a flat array of (index, content) per block.
        #[test]
        fn it_agrees_with_a_flat_array(ops in prop::collection::vec((0u8..4, 0u64..40, 1u64..20, 0u64..30), 1..60)) {
            let mut overlay = Overlay::default();
            let mut flat: Vec<Option<(u64, Option<u64>)>> = vec![None; 64];
            for (number, (kind, first, blocks, back)) in ops.into_iter().enumerate() {
                let index = number as u64 + 1;
                match kind {
                    0 | 1 => {
                        let at = index << 20;
                        let content = if kind == 0 { Content::Zero } else { Content::Data { at } };
                        overlay.insert(V, first, Run { blocks, index: Index(index), content });
                        for i in 0..blocks {
                            flat[(first + i) as usize] = Some((index, (kind == 1).then(|| at + i * BLOCK_BYTES)));
                        }
                    }
                    _ => {
                        let to = index.saturating_sub(back);
                        overlay.forget(V, first, first + blocks, Index(to));
                        for slot in &mut flat[first as usize..(first + blocks) as usize] {
                            if slot.is_some_and(|(i, _)| i <= to) {
                                *slot = None;
                            }
                        }
                    }
                }
                let data = flat.iter().filter(|s| s.is_some_and(|(_, at)| at.is_some())).count() as u64;
                prop_assert_eq!(overlay.data_bytes(), data * BLOCK_BYTES);
                for (from, to) in [(0, 64), (first, first + blocks)] {
                    let mut seen = vec![None; 64];
                    for (at, run) in overlay.within(V, from, to) {
                        for i in 0..run.blocks {
                            let content = match run.content {
                                Content::Zero => None,
                                Content::Data { at } => Some(at + i * BLOCK_BYTES),
                            };
                            prop_assert!(seen[(at + i) as usize].is_none());
                            seen[(at + i) as usize] = Some((run.index.0, content));
                        }
                    }
                    prop_assert_eq!(&seen[from as usize..to as usize], &flat[from as usize..to as usize]);
                    let first_from = overlay.from((V, from)).next().map(|(_, at, _)| at);
                    let expected = (from..64).find(|&b| flat[b as usize].is_some());
                    prop_assert_eq!(first_from, expected);
                }
                prop_assert_eq!(overlay.within(VolumeId(0), 0, 64).count(), 0);
                prop_assert_eq!(overlay.within(VolumeId(2), 0, 64).count(), 0);
            }
        }
    }
}
