//! Sizes of the volumes (R17). A size changes at the place of its entry in the log. A resize that
//! is not committed yet counts for the entries after it, and is dropped if the tail is cut.

use mainstay_codec::{Batch, EntryKind};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, Index, Range, VolumeId};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Sizes {
    /// In bytes, as of the commit index.
    committed: Vec<u64>,
    /// Resizes after it, oldest first.
    ahead: VecDeque<(Index, VolumeId, u64)>,
    /// Sizes in bytes where the log was restarted for a copy.
    at_restart: Vec<u64>,
}

fn within(range: Range, bytes: u64) -> bool {
    range.offset.is_multiple_of(BLOCK_BYTES)
        && range.len.is_multiple_of(BLOCK_BYTES)
        && range.offset.checked_add(range.len).is_some_and(|end| end <= bytes)
}

impl Sizes {
    pub fn new(committed: Vec<u64>, ahead: Vec<(Index, VolumeId, u64)>) -> Self {
        Self { at_restart: committed.clone(), committed, ahead: ahead.into() }
    }

    pub fn committed(&self) -> &[u64] {
        &self.committed
    }

    /// Size of a volume in bytes after all entries that were noted; 0 if there is no such volume.
    pub fn at_end(&self, volume: VolumeId) -> u64 {
        let committed = self.committed.get(usize::from(volume.0)).copied().unwrap_or(0);
        let ahead = self.ahead.iter().filter(|(_, of, _)| *of == volume).map(|(_, _, bytes)| *bytes);
        ahead.fold(committed, u64::max)
    }

    /// Whether a range is whole blocks within its volume as it is committed.
    pub fn fits(&self, range: Range) -> bool {
        self.committed.get(usize::from(range.volume.0)).is_some_and(|&bytes| within(range, bytes))
    }

    /// Whether all entries of a batch that comes next lie within their volumes.
    pub fn batch_fits(&self, batch: &Batch) -> bool {
        batch.entries.iter().all(|entry| match entry.kind {
            EntryKind::EpochStart | EntryKind::Snapshot | EntryKind::DropSnapshot | EntryKind::Rollback => {
                true
            }
            EntryKind::Resize => usize::from(entry.range.volume.0) < self.committed.len(),
            _ if self.ahead.is_empty() => self.fits(entry.range),
            _ => within(entry.range, self.at_end(entry.range.volume)),
        })
    }

    /// A batch comes next in the log.
    pub fn note(&mut self, batch: &Batch) {
        for (index, entry) in (batch.first.0..).map(Index).zip(&batch.entries) {
            if entry.kind == EntryKind::Resize {
                self.ahead.push_back((index, entry.range.volume, entry.range.offset));
            }
        }
    }

    pub fn commit_to(&mut self, to: Index) {
        while self.ahead.front().is_some_and(|(index, ..)| *index <= to) {
            let Some((_, volume, bytes)) = self.ahead.pop_front() else { return };
            if let Some(size) = self.committed.get_mut(usize::from(volume.0)) {
                *size = bytes.max(*size);
            }
        }
    }

    /// The log ends at `end` again.
    pub fn cut(&mut self, end: Index) {
        while self.ahead.back().is_some_and(|(index, ..)| *index > end) {
            self.ahead.pop_back();
        }
    }

    /// The log begins anew where the volumes have these sizes.
    pub fn restart(&mut self, volumes: Vec<u64>) {
        self.ahead.clear();
        self.at_restart.clone_from(&volumes);
        self.committed = volumes;
    }

    /// Bytes of an extent of a copy that began where the log was restarted; 0 beyond the volume.
    pub fn extent_bytes(&self, volume: VolumeId, extent: Extent) -> u64 {
        extent_bytes(&self.at_restart, volume, extent)
    }
}

/// Bytes of an extent of volumes of these sizes; 0 beyond them.
pub(crate) fn extent_bytes(volumes: &[u64], volume: VolumeId, extent: Extent) -> u64 {
    let bytes = volumes.get(usize::from(volume.0)).copied().unwrap_or(0);
    bytes.saturating_sub(extent.offset()).min(EXTENT_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use mainstay_codec::NewEntry;
    use mainstay_types::{Chain, Epoch, ResourceId};

    const V: VolumeId = VolumeId(0);

    fn batch(first: u64, kind: EntryKind, offset: u64, len: u64) -> Batch {
        let range = Range { volume: V, offset, len };
        let entry = NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 };
        Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), [entry])
    }

    #[test]
    fn a_resize_counts_for_later_entries_at_once_and_for_clients_when_committed() {
        let mut sizes = Sizes::new(vec![8 * BLOCK_BYTES], Vec::new());
        let (resize, beyond) = (
            batch(1, EntryKind::Resize, 10 * BLOCK_BYTES, 0),
            batch(2, EntryKind::Discard, 9 * BLOCK_BYTES, BLOCK_BYTES),
        );
        assert!(sizes.batch_fits(&resize) && !sizes.batch_fits(&beyond));
        sizes.note(&resize);
        assert!(sizes.batch_fits(&beyond) && !sizes.fits(beyond.entries[0].range));
        sizes.cut(Index(0));
        assert!(!sizes.batch_fits(&beyond), "it went with the tail");
        sizes.note(&resize);
        sizes.commit_to(Index(1));
        sizes.cut(Index(1));
        assert!(sizes.fits(beyond.entries[0].range));
        // A volume that is larger already, because its replica was made later, stays as it is.
        sizes.note(&batch(2, EntryKind::Resize, 9 * BLOCK_BYTES, 0));
        sizes.commit_to(Index(2));
        assert_eq!(sizes.committed(), [10 * BLOCK_BYTES]);
    }

    #[test]
    fn a_volume_that_does_not_exist_is_not_resized() {
        let sizes = Sizes::new(vec![8 * BLOCK_BYTES], Vec::new());
        let mut strange = batch(1, EntryKind::Resize, BLOCK_BYTES, 0);
        strange.entries[0].range.volume = VolumeId(1);
        assert!(!sizes.batch_fits(&strange));
        assert_eq!(sizes.at_end(VolumeId(1)), 0);
    }
}
