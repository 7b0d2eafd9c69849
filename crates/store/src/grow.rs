//! Volumes that get larger (R17): a committed [`EntryKind::Resize`](mainstay_codec::EntryKind)
//! applies at its place in the log, on every replica.
//!
//! ```text
//! applied ─▶ the file is made larger ─▶ Grown ─▶ … ─▶ the next checkpoint records the size
//! ```
//!
//! - A read beyond the end of the file, between the first two steps, gets zeroes and the content of
//!   the overlay.
//! - No pass begins while a file is being made larger. So nothing is written beyond the end of a
//!   file, and the version table has the room that it then needs.
//! - A superblock names a size only after the file has it. After a crash before that the entry is
//!   applied again. The file, which may already be larger, is made larger again.
//! - If the pool has no space, growing is tried again, as for a write ([`Store::retry`]). The entry
//!   is committed, so to give up the store would cost one replica after the other.
//! - The target of a copy takes over the sizes that the volumes have where its log restarts. Its
//!   files are made larger before that is recorded.

use crate::recovery::table_offset;
use crate::superblock::Job;
use crate::versions::{pages_end, placed};
use crate::{Op, Output, Store};
use mainstay_codec::EntryKind;
use mainstay_types::{VolumeId, reach};

impl Store {
    /// Entries of the log that were not applied yet and change the size of a volume, as index,
    /// volume and bytes.
    pub fn resizes_ahead(&self) -> impl Iterator<Item = (mainstay_types::Index, VolumeId, u64)> {
        self.pending.iter().flat_map(|batch| {
            let entries = (batch.first.0..).map(mainstay_types::Index).zip(&batch.entries);
            let resizes = entries.filter(|(_, entry)| entry.kind == EntryKind::Resize);
            resizes.map(|(index, entry)| (index, entry.range.volume, entry.range.offset))
        })
    }

    /// Sizes of the volumes at the end of the log.
    pub(crate) fn volumes_at_end(&self) -> Vec<u64> {
        let mut volumes = self.config.volumes.clone();
        for (_, volume, bytes) in self.resizes_ahead() {
            let at_end = &mut volumes[usize::from(volume.0)];
            *at_end = bytes.max(*at_end);
        }
        volumes
    }

    /// A resize is applied.
    pub(crate) fn grow(&mut self, volume: VolumeId, bytes: u64) {
        let size = &mut self.config.volumes[usize::from(volume.0)];
        if bytes <= *size {
            reach!("store: a volume has the size of a resize already");
            return;
        }
        reach!("store: a volume grows");
        *size = bytes;
        self.versions.fit(&self.config.volumes);
        self.grow_due = true;
    }

    /// The sizes that the volumes have where the log restarts.
    pub(crate) fn set_volumes(&mut self, volumes: Vec<u64>) {
        self.versions.fit(&volumes);
        self.copy_volumes.clone_from(&volumes);
        for (n, (old, new)) in self.config.volumes.iter().zip(&volumes).enumerate() {
            if old != new {
                reach!("store: the target of a copy takes over another size");
                self.outputs.push_back(Output::Grown { volume: VolumeId(n as u16), bytes: *new });
            }
        }
        self.config.volumes = volumes;
    }

    /// Has files made larger that must be.
    pub(crate) fn issue_grows(&mut self) {
        if !std::mem::take(&mut self.grow_due) {
            return;
        }
        let mut wanted = self.config.volumes.clone();
        let writing = self.superblock_write.as_ref().map(|write| &write.job);
        for job in self.jobs.iter().chain(writing) {
            let Job::Restart { volumes, .. } = job else { continue };
            wanted.iter_mut().zip(volumes).for_each(|(wanted, bytes)| *wanted = *bytes.max(wanted));
        }
        let tables = &self.superblock.tables;
        let pages = pages_end(&placed(tables, &wanted)).max(pages_end(&placed(tables, &self.config.volumes)));
        let meta_bytes = table_offset(pages).max(self.meta_bytes);
        // A table may need room although no file does: when it moves a second time.
        let first = (meta_bytes > self.meta_bytes).then_some(0);
        let behind =
            wanted.iter().enumerate().filter(|&(n, bytes)| *bytes > self.files[n] || first == Some(n));
        let behind: Vec<_> = behind.map(|(n, bytes)| (VolumeId(n as u16), *bytes)).collect();
        for (volume, bytes) in behind {
            if self.growing.insert(volume) {
                let op = self.start(Op::Grow { volume, bytes, meta_bytes });
                self.outputs.push_back(Output::VolumeGrow { op, volume, bytes, meta_bytes });
            }
        }
    }

    /// Tries the growth again that found no space in the pool. Until there is space no pass begins,
    /// and the journal fills.
    pub(crate) fn retry_grows(&mut self) {
        for volume in std::mem::take(&mut self.grow_stalled) {
            self.growing.remove(&volume);
            self.grow_due = true;
        }
    }

    pub(crate) fn volume_grown(&mut self, volume: VolumeId, bytes: u64, meta_bytes: u64) {
        let n = usize::from(volume.0);
        self.growing.remove(&volume);
        self.files[n] = self.files[n].max(bytes);
        self.meta_bytes = self.meta_bytes.max(meta_bytes);
        // It may have grown again meanwhile.
        self.grow_due = true;
        if self.config.volumes[n] <= self.files[n] {
            reach!("store: the file of a volume is as large as the volume");
            self.outputs.push_back(Output::Grown { volume, bytes: self.config.volumes[n] });
        }
    }
}
