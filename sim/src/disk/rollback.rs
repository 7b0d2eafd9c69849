//! Rollbacks of volumes to the content of a snapshot.

use super::region::{BLOCK, Block};
use super::{Disk, failure, region_of};
use crate::plan::DiskFault;
use bytes::Bytes;
use mainstay_codec::sums::{SUM_BYTES, SUMS_PER_PAGE};
use mainstay_store::{Area, IoFailure};
use mainstay_types::{SnapshotId, VolumeId};

const ZEROES: [u8; BLOCK] = [0; BLOCK];

/// Content that a snapshot keeps, by volume.
pub(super) type Files = Vec<File>;

/// Content of a snapshot of a disk, for another disk.
#[derive(Debug)]
pub(crate) struct SnapshotFiles(Files);

/// Content of a volume, and the pages with its checksums.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub blocks: Vec<Block>,
    pub sums: Vec<Block>,
}

impl File {
    /// Keeps the content of a volume of `blocks` blocks. Beyond its end the content and its
    /// checksums are zeroes.
    pub fn of(mut content: Vec<Block>, mut sums: Vec<Block>, blocks: u64) -> Self {
        content.resize_with(blocks as usize, Block::default);
        let whole = (blocks / SUMS_PER_PAGE) as usize;
        for (n, page) in sums.iter_mut().enumerate().skip(whole) {
            let keep = if n == whole { (blocks % SUMS_PER_PAGE * SUM_BYTES) as usize } else { 0 };
            let cut = |bytes: Bytes| [&bytes[..keep], &ZEROES[keep..]].concat().into();
            page.bytes = page.bytes.take().filter(|_| keep > 0).map(cut);
        }
        Self { blocks: content, sums }
    }
}

impl Disk {
    /// Restores the content of a snapshot, durably, each block at once. Damage is copied, too, as
    /// by any tool that clones files.
    pub(super) fn restore_snapshot(
        &mut self,
        snapshot: SnapshotId,
        from: SnapshotId,
        blocks: &[u64],
    ) -> Result<(), IoFailure> {
        if self.full {
            return Err(IoFailure { no_space: true, ..failure("no space left") });
        }
        if self.gone || self.read_only || self.hits(DiskFault::WriteError) {
            return Err(failure("read-only, or gone"));
        }
        self.restore_blocks(from, blocks, |_| true)?;
        let files = self.snapshots.get(&from).cloned().unwrap_or_default();
        let grown = files.into_iter().zip(blocks);
        let files = grown.map(|(file, &blocks)| File::of(file.blocks, file.sums, blocks)).collect();
        self.snapshots.insert(snapshot, files);
        Ok(())
    }

    /// The files of a snapshot.
    pub(crate) fn snapshot_files(&self, snapshot: SnapshotId) -> Option<SnapshotFiles> {
        self.snapshots.get(&snapshot).cloned().map(SnapshotFiles)
    }

    /// Clones of them, as the files of a snapshot of this disk.
    pub(crate) fn adopt(&mut self, snapshot: SnapshotId, files: SnapshotFiles) {
        self.snapshots.insert(snapshot, files.0);
    }

    /// The process or the power ends meanwhile: some blocks and checksums have their new content,
    /// and the new files are there or not.
    pub(super) fn restore_some(&mut self, snapshot: SnapshotId, from: SnapshotId, blocks: &[u64]) {
        match self.random.below(3) {
            0 => {}
            1 => _ = self.restore_snapshot(snapshot, from, blocks),
            _ => {
                let some = self.random.below(1000);
                let mut random = self.random.clone();
                let _ = self.restore_blocks(from, blocks, |_| random.permille(some));
                self.random = random;
            }
        }
    }

    fn restore_blocks(
        &mut self,
        from: SnapshotId,
        blocks: &[u64],
        mut which: impl FnMut(u64) -> bool,
    ) -> Result<(), IoFailure> {
        let Some(files) = self.snapshots.get(&from) else { return Err(failure("no such file")) };
        for (n, (file, &blocks)) in files.iter().zip(blocks).enumerate() {
            let volume = VolumeId(n as u16);
            let sums = file.sums.len() as u64;
            let files =
                [(Area::Volume(volume), &file.blocks, blocks), (Area::Sums(volume), &file.sums, sums)];
            for (area, file, blocks) in files {
                let region = &mut self.regions[region_of(area)];
                for block in (0..blocks).filter(|block| which(*block)) {
                    region.now[block as usize] = file.get(block as usize).cloned().unwrap_or_default();
                    region.unflushed.remove(&block);
                }
            }
        }
        Ok(())
    }
}
