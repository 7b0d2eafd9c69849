//! The version table in memory (R14: too new is harmless, too old loses data in a resync), and
//! where it lies on disk.
//!
//! Two slots on disk are written in turn. Each has a set of pages in which it lags behind memory,
//! so that a checkpoint writes only what changed since this slot was written last. The superblock
//! names one slot and holds its *root*, computed over the checksums of all of its pages. A page may
//! be as it was before: its last write was lost or landed elsewhere, or its read is stale. Such a
//! page does not fit the root, however old it is. The root does not tell which page it is, so the
//! replica is not opened.
//!
//! The table of each volume has a [`TablePlace`] of its own, with room for at most twice as many
//! pages as are in use. A volume that outgrows its place gets another one, after all others. The
//! old one is not used again. All places of a volume together take less than twice the room of the
//! last one, because each is at least twice as large as the one before.

use mainstay_codec::versions::{
    VERSIONS_PAGE_BYTES, VERSIONS_PER_PAGE, decode_page, encode_page, versions_root,
};
use mainstay_codec::{DecodeError, TablePlace};
use mainstay_types::{EXTENT_BYTES, Extent, Index, Range, VolumeId};

/// Most pages in one write of a table.
const PAGES_PER_WRITE_MAX: usize = 256;

/// A page of a volume's table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PageId {
    pub volume: usize,
    pub page: usize,
}

#[derive(Debug)]
pub struct Versions {
    /// For each volume the versions of its extents.
    tables: Vec<Vec<Index>>,
    /// For each slot and volume one flag per page: the slot lags behind memory.
    lagging: [Vec<Vec<bool>>; 2],
    /// For each slot and volume the checksum of each page, as it was last written or read.
    checksums: [Vec<Vec<u32>>; 2],
}

/// Extents of a volume.
fn extents(bytes: u64) -> usize {
    bytes.div_ceil(EXTENT_BYTES) as usize
}

/// Pages that are in use in each slot.
pub fn pages(place: TablePlace) -> usize {
    (place.extents as usize).div_ceil(VERSIONS_PER_PAGE)
}

/// Pages that each slot has room for.
fn room(place: TablePlace) -> usize {
    pages(place).next_power_of_two()
}

/// Where page 0 of a slot is, in pages after the superblocks.
pub fn first_page(place: TablePlace, slot: u8) -> usize {
    place.first_page as usize + usize::from(slot) * room(place)
}

/// Pages of all tables, in both slots.
pub fn pages_end(places: &[TablePlace]) -> usize {
    places.iter().map(|&place| place.first_page as usize + 2 * room(place)).max().unwrap_or(0)
}

/// Where the tables of these volumes lie, if so far they lay in `places`; fewer, or none, for
/// volumes that are new.
pub fn placed(places: &[TablePlace], volumes: &[u64]) -> Vec<TablePlace> {
    let mut end = pages_end(places);
    let mut place_of = |(n, &bytes): (usize, &u64)| {
        let extents = extents(bytes) as u32;
        if let Some(&old) = places.get(n) {
            // A volume may be smaller than its table, if it is the target of a copy of one that has
            // not grown.
            let place = TablePlace { extents: old.extents.max(extents), ..old };
            if room(place) == room(old) {
                return place;
            }
        }
        let place = TablePlace { first_page: end as u32, extents };
        end += 2 * room(place);
        place
    };
    volumes.iter().enumerate().map(&mut place_of).collect()
}

impl Versions {
    /// All zero, with as many extents as the tables tell of; no slot on disk is taken to agree.
    pub fn new(places: &[TablePlace]) -> Self {
        let flags = || places.iter().map(|&place| vec![true; pages(place)]).collect();
        let checksums = || places.iter().map(|&place| vec![0; pages(place)]).collect();
        Self {
            tables: places.iter().map(|place| vec![Index(0); place.extents as usize]).collect(),
            lagging: [flags(), flags()],
            checksums: [checksums(), checksums()],
        }
    }

    /// Versions for volumes of these sizes from now on. No entry has changed the extents that are
    /// new.
    pub fn fit(&mut self, volumes: &[u64]) {
        for (volume, &bytes) in volumes.iter().enumerate() {
            let table = &mut self.tables[volume];
            table.resize(extents(bytes), Index(0));
            let pages = table.len().div_ceil(VERSIONS_PER_PAGE);
            for slot in &mut self.lagging {
                if slot[volume].len() < pages {
                    slot[volume].resize(pages, true);
                }
            }
        }
    }

    /// Whether no entry has ever changed an extent of the volume.
    pub fn is_blank(&self, volume: VolumeId) -> bool {
        self.tables
            .get(usize::from(volume.0))
            .is_some_and(|table| table.iter().all(|version| *version == Index(0)))
    }

    /// The tables lay in `old` and are to lie in `new`. So the pages that are not on disk lag.
    pub fn relaid(&mut self, old: &[TablePlace], new: &[TablePlace]) {
        for (volume, (old, new)) in old.iter().zip(new).enumerate() {
            let unchanged = match (old.first_page == new.first_page, old.extents == new.extents) {
                (true, true) => continue,
                // The last page may have been written without the extents that are in it now.
                (true, false) => old.extents as usize / VERSIONS_PER_PAGE,
                (false, _) => 0,
            };
            for slot in &mut self.lagging {
                let flags = &mut slot[volume];
                flags.resize(flags.len().max(pages(*new)), true);
                flags[unchanged..].fill(true);
            }
        }
    }

    /// Takes one page from the content on disk in the place of page `number`. Afterwards the slot
    /// agrees with memory there.
    pub fn load_page(
        &mut self,
        slot: u8,
        PageId { volume, page }: PageId,
        (number, block): (u32, &[u8]),
    ) -> Result<(), DecodeError> {
        let table = &mut self.tables[volume];
        let first = page * VERSIONS_PER_PAGE;
        let end = (first + VERSIONS_PER_PAGE).min(table.len());
        self.checksums[usize::from(slot)][volume][page] = decode_page(block, number, &mut table[first..end])?;
        self.lagging[usize::from(slot)][volume][page] = false;
        Ok(())
    }

    /// Returns the root checksum of the pages that were last written to the slot, or read from it,
    /// of tables that lie in `places`.
    pub fn root(&self, slot: u8, places: &[TablePlace]) -> u64 {
        let tables = self.checksums[usize::from(slot)].iter().zip(places);
        versions_root(tables.flat_map(|(checksums, &place)| checksums[..pages(place)].iter().copied()))
    }

    fn slot_of(&mut self, volume: VolumeId, extent: Extent) -> &mut Index {
        let at = self.tables[usize::from(volume.0)].get_mut(extent.index());
        // Proof: ranges are checked against the sizes of the volumes when they are admitted or
        // received.
        at.unwrap_or_else(|| panic!("extent {extent} lies beyond volume {volume}"))
    }

    /// 0 beyond the volume.
    pub fn get(&self, volume: VolumeId, extent: Extent) -> Index {
        let table = self.tables.get(usize::from(volume.0));
        table.and_then(|table| table.get(extent.index())).copied().unwrap_or(Index(0))
    }

    /// Raises the version of one extent; never lowers it (R14).
    pub fn raise(&mut self, volume: VolumeId, extent: Extent, to: Index) {
        let version = self.slot_of(volume, extent);
        if *version < to {
            *version = to;
            let page = extent.index() / VERSIONS_PER_PAGE;
            for slot in &mut self.lagging {
                slot[usize::from(volume.0)][page] = true;
            }
        }
    }

    /// Raises the versions of all extents that `range` touches.
    pub fn raise_range(&mut self, range: Range, to: Index) {
        for extent in range.offset / EXTENT_BYTES..range.end().div_ceil(EXTENT_BYTES) {
            self.raise(range.volume, Extent(extent as u32), to);
        }
    }

    pub fn newer_than(&self, index: Index) -> Vec<(VolumeId, Extent)> {
        let mut out = Vec::new();
        for (volume, table) in self.tables.iter().enumerate() {
            let newer = table.iter().enumerate().filter(|&(_, &version)| version > index);
            out.extend(newer.map(|(extent, _)| (VolumeId(volume as u16), Extent(extent as u32))));
        }
        out
    }

    /// The next pages at or after `from` in which `slot` lags, of tables that lie in `places`: the
    /// first of them and the bytes to write, which are of one volume. They count as written from
    /// here on. A checkpoint sweeps once: a page that changes behind the sweep waits for the next
    /// one, and its changes are still in the journal.
    pub fn next_write(&mut self, slot: u8, from: PageId, places: &[TablePlace]) -> Option<(PageId, Vec<u8>)> {
        let PageId { volume, page } = self.next_lagging(slot, from, places)?;
        let (place, table) = (places[volume], &self.tables[volume]);
        let told = table.len().min(place.extents as usize);
        let lagging = &mut self.lagging[usize::from(slot)][volume];
        let checksums = &mut self.checksums[usize::from(slot)][volume];
        checksums.resize(checksums.len().max(pages(place)), 0);
        let mut bytes = Vec::new();
        let in_use = lagging.iter_mut().enumerate().take(pages(place));
        for (page, lags) in in_use.skip(page).take(PAGES_PER_WRITE_MAX) {
            if !std::mem::take(lags) {
                break;
            }
            let start = (page * VERSIONS_PER_PAGE).min(told);
            let end = (start + VERSIONS_PER_PAGE).min(told);
            checksums[page] =
                encode_page(&mut bytes, (first_page(place, slot) + page) as u32, &table[start..end]);
        }
        debug_assert!(bytes.len().is_multiple_of(VERSIONS_PAGE_BYTES));
        Some((PageId { volume, page }, bytes))
    }

    fn next_lagging(&self, slot: u8, from: PageId, places: &[TablePlace]) -> Option<PageId> {
        let lagging = &self.lagging[usize::from(slot)];
        (from.volume..places.len()).find_map(|volume| {
            let first = if volume == from.volume { from.page } else { 0 };
            let page = (first..pages(places[volume])).find(|&page| lagging[volume][page])?;
            Some(PageId { volume, page })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = VERSIONS_PER_PAGE as u64 * EXTENT_BYTES;

    fn write_all(versions: &mut Versions, slot: u8, places: &[TablePlace]) -> Vec<(PageId, usize)> {
        let mut from = PageId { volume: 0, page: 0 };
        let mut written = Vec::new();
        while let Some((at, bytes)) = versions.next_write(slot, from, places) {
            let pages = bytes.len() / VERSIONS_PAGE_BYTES;
            written.push((at, pages));
            from = PageId { page: at.page + pages, ..at };
        }
        written
    }

    #[test]
    fn places_do_not_overlap_and_stay_while_there_is_room() {
        let old = placed(&[], &[3 * PAGE, EXTENT_BYTES]);
        assert_eq!(old[0], TablePlace { first_page: 0, extents: 3 * VERSIONS_PER_PAGE as u32 });
        assert_eq!((old[1].first_page, pages_end(&old)), (8, 10));
        let within = placed(&old, &[4 * PAGE, EXTENT_BYTES]);
        assert_eq!(within[0].first_page, 0, "four pages were set aside for three");
        assert_eq!(within[1], old[1]);
        let beyond = placed(&within, &[4 * PAGE + 1, EXTENT_BYTES]);
        assert_eq!((beyond[0].first_page, beyond[1]), (10, old[1]), "after all others");
        assert_eq!(placed(&beyond, &[PAGE, EXTENT_BYTES])[0], beyond[0], "a table never shrinks");
    }

    /// Seen to fail without [`Versions::relaid`]: the page that was written short counts as
    /// written.
    #[test]
    fn a_page_that_was_written_before_the_volume_grew_is_written_again() {
        let small = placed(&[], &[2 * EXTENT_BYTES]);
        let mut versions = Versions::new(&small);
        versions.fit(&[2 * EXTENT_BYTES]);
        versions.fit(&[4 * EXTENT_BYTES]);
        versions.raise(VolumeId(0), Extent(3), Index(9));
        let first = PageId { volume: 0, page: 0 };
        assert_eq!(write_all(&mut versions, 1, &small), [(first, 1)], "without the extent that is new");
        let grown = placed(&small, &[4 * EXTENT_BYTES]);
        versions.relaid(&small, &grown);
        assert_eq!(write_all(&mut versions, 1, &grown), [(first, 1)]);
        assert_eq!(write_all(&mut versions, 1, &grown), []);
        assert_eq!(write_all(&mut versions, 0, &grown), [(first, 1)]);
    }

    #[test]
    fn a_table_that_moves_is_written_whole_in_both_slots() {
        let old = placed(&[], &[PAGE]);
        let mut versions = Versions::new(&old);
        for slot in [0, 1] {
            write_all(&mut versions, slot, &old);
        }
        versions.fit(&[3 * PAGE]);
        let new = placed(&old, &[3 * PAGE]);
        versions.relaid(&old, &new);
        for slot in [0, 1] {
            assert_eq!(write_all(&mut versions, slot, &new), [(PageId { volume: 0, page: 0 }, 3)]);
        }
    }
}
