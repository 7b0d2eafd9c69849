//! The version table in memory (R14: too new is harmless, too old loses data in a resync).
//!
//! Two slots on disk are written in turn. Each has a set of pages in which it lags behind memory, so
//! that a checkpoint writes only what changed since this slot was written last.

use mainstay_codec::versions::{VERSIONS_PAGE_BYTES, VERSIONS_PER_PAGE, encode_page};
use mainstay_types::{EXTENT_BYTES, Index, Range, VolumeId};

/// Most pages in one write of a table.
const PAGES_PER_WRITE_MAX: usize = 256;

#[derive(Debug)]
pub struct Versions {
    table: Vec<Index>,
    /// Where each volume's extents start in the table; one more element gives the end.
    starts: Vec<usize>,
    /// For each slot, one flag per page: the slot lags behind memory.
    lagging: [Vec<bool>; 2],
}

/// Where each volume's extents start in the table; the last element is the number of all extents.
fn starts(volumes: &[u64]) -> Vec<usize> {
    let mut starts = vec![0];
    let mut total = 0;
    for bytes in volumes {
        total += bytes.div_ceil(EXTENT_BYTES) as usize;
        starts.push(total);
    }
    starts
}

/// Pages that the table of these volumes needs.
pub fn pages(volumes: &[u64]) -> usize {
    // Proof that there is a last element: `starts` begins with one.
    starts(volumes).last().map_or(0, |total| total.div_ceil(VERSIONS_PER_PAGE))
}

impl Versions {
    /// All zero; no slot on disk is taken to agree.
    pub fn new(volumes: &[u64]) -> Self {
        let starts = starts(volumes);
        let total = starts.last().copied().unwrap_or(0);
        let pages = pages(volumes);
        Self { table: vec![Index(0); total], starts, lagging: [vec![true; pages], vec![true; pages]] }
    }

    pub fn page_count(&self) -> usize {
        self.lagging[0].len()
    }

    /// The versions of one page, to be filled from disk. Afterwards the slot agrees with memory there.
    pub fn load_page(&mut self, slot: u8, page: usize) -> &mut [Index] {
        self.lagging[usize::from(slot)][page] = false;
        let first = page * VERSIONS_PER_PAGE;
        let end = (first + VERSIONS_PER_PAGE).min(self.table.len());
        &mut self.table[first..end]
    }

    fn slot_of(&self, volume: VolumeId, extent: u32) -> usize {
        let at = self.starts[usize::from(volume.0)] + extent as usize;
        assert!(at < self.starts[usize::from(volume.0) + 1], "extent {extent} lies beyond volume {volume}");
        at
    }

    pub fn get(&self, volume: VolumeId, extent: u32) -> Index {
        self.table[self.slot_of(volume, extent)]
    }

    /// Raises the version of one extent; never lowers it (R14).
    pub fn raise(&mut self, volume: VolumeId, extent: u32, to: Index) {
        let at = self.slot_of(volume, extent);
        if self.table[at] < to {
            self.table[at] = to;
            let page = at / VERSIONS_PER_PAGE;
            self.lagging[0][page] = true;
            self.lagging[1][page] = true;
        }
    }

    /// Raises the versions of all extents that `range` touches.
    pub fn raise_range(&mut self, range: Range, to: Index) {
        for extent in range.offset / EXTENT_BYTES..range.end().div_ceil(EXTENT_BYTES) {
            self.raise(range.volume, extent as u32, to);
        }
    }

    pub fn newer_than(&self, index: Index) -> Vec<(VolumeId, u32)> {
        let mut out = Vec::new();
        for (volume, bounds) in self.starts.windows(2).enumerate() {
            let extents = self.table[bounds[0]..bounds[1]].iter().enumerate();
            out.extend(
                extents
                    .filter(|&(_, &version)| version > index)
                    .map(|(extent, _)| (VolumeId(volume as u16), extent as u32)),
            );
        }
        out
    }

    /// The next pages at or after `from` in which `slot` lags: the first page's number and the bytes to
    /// write. They count as written from here on. A checkpoint sweeps once: a page that changes behind
    /// the sweep waits for the next one, and its changes are still in the journal.
    pub fn next_write(&mut self, slot: u8, from: usize) -> Option<(usize, Vec<u8>)> {
        let lagging = &mut self.lagging[usize::from(slot)];
        let first = from + lagging.get(from..)?.iter().position(|&lags| lags)?;
        let mut bytes = Vec::new();
        for page in first..lagging.len().min(first + PAGES_PER_WRITE_MAX) {
            if !lagging[page] {
                break;
            }
            lagging[page] = false;
            let start = page * VERSIONS_PER_PAGE;
            let end = (start + VERSIONS_PER_PAGE).min(self.table.len());
            encode_page(&mut bytes, page as u32, &self.table[start..end]);
        }
        debug_assert!(bytes.len().is_multiple_of(VERSIONS_PAGE_BYTES));
        Some((first, bytes))
    }
}
