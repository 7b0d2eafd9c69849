//! The overlay: which committed blocks are in the journal and not yet in the backing store.
//!
//! Runs of blocks rather than blocks, because one discard may cover a million of them. Runs never
//! overlap; a newer entry carves its range out of the older ones. A run names its place in the
//! journal, never its bytes, so that memory can be dropped without touching the overlay.

use mainstay_types::{BLOCK_BYTES, Index, VOLUME_BYTES_MAX, VolumeId};
use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

/// Content of a run, as a read sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Zeroes without space of their own: a discard.
    Hole,
    /// Zeroes whose space stays.
    Zero,
    /// Payload that starts at this offset of the journal.
    Data { at: u64 },
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
            Content::Hole | Content::Zero => self.content,
            Content::Data { at } => Content::Data { at: at + skip * BLOCK_BYTES },
        };
        Self { blocks: self.blocks - skip, content, ..self }
    }

    fn bytes(self) -> Bytes {
        let bytes = self.blocks * BLOCK_BYTES;
        match self.content {
            Content::Hole => Bytes { holes: bytes, ..Bytes::default() },
            Content::Zero => Bytes::default(),
            Content::Data { .. } => Bytes { data: bytes, ..Bytes::default() },
        }
    }
}

/// Volume and block as one number, which compares faster than two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key(u64);

const BLOCK_BITS: u32 = 48;
// The block after the last has a key as well.
const _: () = assert!(VOLUME_BYTES_MAX / BLOCK_BYTES < 1 << BLOCK_BITS);

impl Key {
    fn new(volume: VolumeId, block: u64) -> Self {
        Self(u64::from(volume.0) << BLOCK_BITS | block)
    }

    fn parts(self) -> (VolumeId, u64) {
        (VolumeId((self.0 >> BLOCK_BITS) as u16), self.0 & ((1 << BLOCK_BITS) - 1))
    }
}

/// Bytes that runs stand for: of payload and of holes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Bytes {
    data: u64,
    holes: u64,
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.holes += other.holes;
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        self.data -= other.data;
        self.holes -= other.holes;
    }
}

#[derive(Default, Debug)]
pub struct Overlay {
    runs: BTreeMap<Key, Run>,
    bytes: Bytes,
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
        self.bytes.data
    }

    /// Bytes whose space the backing store has not given back yet.
    pub fn hole_bytes(&self) -> u64 {
        self.bytes.holes
    }

    pub fn clear(&mut self) {
        self.runs.clear();
        self.bytes = Bytes::default();
    }

    /// Lays `run` over everything older that starts at `block`.
    pub fn insert(&mut self, volume: VolumeId, block: u64, run: Run) {
        let (key, end) = (Key::new(volume, block), Key::new(volume, block + run.blocks));
        // Looks at the last of the runs that begin before the end. If it does not overlap, none
        // does. If it is the same stretch, it alone overlaps. Nearly every write of a database is
        // one of these cases.
        match self.runs.range_mut(..end).next_back() {
            Some((&at, old)) if Key(at.0 + old.blocks) > key => {
                if at == key && old.blocks == run.blocks {
                    self.bytes -= old.bytes();
                    self.bytes += run.bytes();
                    *old = run;
                    return;
                }
            }
            _ => {
                self.bytes += run.bytes();
                self.runs.insert(key, run);
                return;
            }
        }
        self.split(key, |_| true);
        self.split(end, |_| true);
        while let Some((&at, &old)) = self.runs.range(key..end).next() {
            self.runs.remove(&at);
            self.bytes -= old.bytes();
        }
        self.bytes += run.bytes();
        self.runs.insert(key, run);
    }

    /// Forgets what in `first..end` was written at or before `to`: the backing store has it.
    pub fn forget(&mut self, volume: VolumeId, first: u64, end: u64, to: Index) {
        let (first, end) = (Key::new(volume, first), Key::new(volume, end));
        if let Some((&at, &run)) = self.runs.range(..end).next_back()
            && (at, Key(at.0 + run.blocks)) == (first, end)
        {
            if run.index <= to {
                self.runs.remove(&at);
                self.bytes -= run.bytes();
            }
            return;
        }
        self.split(first, |run| run.index <= to);
        self.split(end, |run| run.index <= to);
        let mut from = first;
        while let Some((&at, &run)) = self.runs.range(from..end).next() {
            if run.index <= to {
                self.runs.remove(&at);
                self.bytes -= run.bytes();
            }
            // A newer run was not split and may reach beyond the end.
            from = end.min(Key(at.0 + run.blocks));
        }
    }

    /// The parts of runs within `first..end`, in order, each with its first block.
    pub fn within(&self, volume: VolumeId, first: u64, end: u64) -> impl Iterator<Item = (u64, Run)> + '_ {
        let (from, to) = (Key::new(volume, first), Key::new(volume, end));
        let before = self.across(from).map(|run| (first, run));
        let inside = self.runs.range(from..to).map(|(at, &run)| (at.parts().1, run));
        before
            .into_iter()
            .chain(inside)
            .map(move |(at, run)| (at, Run { blocks: run.blocks.min(end - at), ..run }))
    }

    /// Runs from `cursor` on, over all volumes; a run that reaches across the cursor counts from
    /// there.
    pub fn from(&self, cursor: (VolumeId, u64)) -> impl Iterator<Item = (VolumeId, u64, Run)> + '_ {
        let (volume, first) = cursor;
        let from = Key::new(volume, first);
        let before = self.across(from).map(move |run| (volume, first, run));
        before.into_iter().chain(self.runs.range(from..).map(|(at, &run)| {
            let (volume, block) = at.parts();
            (volume, block, run)
        }))
    }

    /// Returns the part from `key` on of the run that begins before `key` and reaches across it.
    fn across(&self, key: Key) -> Option<Run> {
        let (&at, run) = self.runs.range(..key).next_back()?;
        (at.0 + run.blocks > key.0).then(|| run.tail(key.0 - at.0))
    }

    /// Splits the run that reaches across `key` there, if there is one and it is `wanted`.
    fn split(&mut self, key: Key, wanted: impl Fn(&Run) -> bool) {
        let Some((&at, run)) = self.runs.range_mut(..key).next_back() else { return };
        if at.0 + run.blocks <= key.0 || !wanted(run) {
            return;
        }
        let tail = run.tail(key.0 - at.0);
        run.blocks = key.0 - at.0;
        self.runs.insert(key, tail);
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
        fn the_overlay_agrees_with_a_flat_array(ops in prop::collection::vec((0u8..5, 0u64..40, 1u64..20, 0u64..30), 1..60)) {
            let mut overlay = Overlay::default();
            let mut flat: Vec<Option<(u64, Content)>> = vec![None; 64];
            for (number, (kind, first, blocks, back)) in ops.into_iter().enumerate() {
                let index = number as u64 + 1;
                match kind {
                    0..3 => {
                        let at = index << 20;
                        let content = [Content::Zero, Content::Data { at }, Content::Hole][usize::from(kind)];
                        overlay.insert(V, first, Run { blocks, index: Index(index), content });
                        for i in 0..blocks {
                            let part = Run { blocks, index: Index(index), content }.tail(i).content;
                            flat[(first + i) as usize] = Some((index, part));
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
                let count = |wanted: fn(Content) -> bool| {
                    flat.iter().flatten().filter(|(_, content)| wanted(*content)).count() as u64 * BLOCK_BYTES
                };
                prop_assert_eq!(overlay.data_bytes(), count(|content| matches!(content, Content::Data { .. })));
                prop_assert_eq!(overlay.hole_bytes(), count(|content| content == Content::Hole));
                for (from, to) in [(0, 64), (first, first + blocks)] {
                    let mut seen = vec![None; 64];
                    for (at, run) in overlay.within(V, from, to) {
                        for i in 0..run.blocks {
                            let content = run.tail(i).content;
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
