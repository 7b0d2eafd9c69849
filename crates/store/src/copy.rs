//! The target of an extent copy (R16): `restart` → Restarted → `install_extent`… → `finish_copy` →
//! CopyFinished.
//!
//! The log restarts empty at the primary's position, and the replica is durably inconsistent.
//! Entries stream in, and are committed and destaged as ever. Beside them extents are installed,
//! straight into the volume.
//!
//! The copy of an extent contains every entry that changed it up to the moment of the copy.
//! `version` is at or after the last of these entries, and not after that moment. Some blocks were
//! already destaged from entries of the stream (`ahead` remembers them): these are left out of the
//! copy. If the copy has a newer content of such a block, the entry that made it comes in the
//! stream. All other blocks in the volume are as old as the copy, or older.
//!
//! If the replica crashes before the end, it is still inconsistent, with the same base. It starts
//! over with `restart`.

use crate::volume_op::{Filling, Owner, Piece};
use crate::{Output, Store};
use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, EXTENT_BYTES, Extent, Index, Position, Range, SnapshotId, VolumeId, reach,
};
use smallvec::smallvec;

use crate::append::note_epoch;
use crate::superblock::Job;

const ZERO_BLOCK: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

/// An extent that waits to be written.
#[derive(Debug)]
pub struct Install {
    volume: VolumeId,
    extent: Extent,
    version: Index,
    data: Bytes,
    /// Blocks that no replica holds whole, by their place in the extent, ascending.
    damaged: Vec<u32>,
    /// Blocks that the volume already holds as they should be, in the same manner. They are not
    /// among `data`.
    kept: Vec<u32>,
}

/// The blocks `from..to` of an extent that begins with block `first`, without those that are kept,
/// as [`fillings`] has them.
fn parts(install: &Install, first: u64, (from, to): (u64, u64), holes_min: u64) -> Vec<(u64, u64, Filling)> {
    let mut out = Vec::new();
    let mut at = from;
    // How many of the extent's blocks before `at` are not among the data.
    let mut left_out = 0;
    for block in install.kept.iter().map(|&block| first + u64::from(block)) {
        if block >= to {
            break;
        }
        if block >= at {
            out.extend(fillings(install, first, left_out, (at, block), holes_min));
            at = block + 1;
        }
        left_out += 1;
    }
    out.extend(fillings(install, first, left_out, (at, to), holes_min));
    out
}

/// Cuts the blocks `from..to` of an extent into stretches that are written and stretches that
/// become holes. A hole is at least `holes_min` blocks of zeroes. The copy of the extent, `data`,
/// begins with block `first`. Without `data` all of it is zero.
///
/// Blocks of `damaged` are held as damaged. `left_out`: number of blocks of the extent before these
/// that are not among the data.
///
/// Zeroes that were allocated at the source become a hole here. The only loss is the promise of
/// space. To keep that promise, an operator preallocates, and then nothing becomes a hole.
fn fillings(
    install: &Install,
    first: u64,
    left_out: u64,
    (from, to): (u64, u64),
    holes_min: u64,
) -> Vec<(u64, u64, Filling)> {
    let mut out = Vec::new();
    let mut at = from;
    let in_data = first + left_out;
    let damaged = install.damaged.iter().map(|&block| first + u64::from(block));
    for block in damaged.filter(|block| (from..to).contains(block)) {
        out.extend(contents(&install.data, in_data, (at, block), holes_min));
        out.push((block, 1, Filling::Damaged));
        at = block + 1;
    }
    out.extend(contents(&install.data, in_data, (at, to), holes_min));
    out
}

/// The same of blocks none of which is damaged.
fn contents(data: &Bytes, first: u64, (from, to): (u64, u64), holes_min: u64) -> Vec<(u64, u64, Filling)> {
    if from == to {
        return Vec::new();
    }
    const HOLE: Filling = Filling::Zeroes { free: true };
    if data.is_empty() {
        return vec![(from, to - from, HOLE)];
    }
    let bytes =
        |from: u64, to: u64| ((from - first) * BLOCK_BYTES) as usize..((to - first) * BLOCK_BYTES) as usize;
    let zero = |block: u64| data[bytes(block, block + 1)] == ZERO_BLOCK;
    let mut out = Vec::new();
    let write = |out: &mut Vec<_>, from: u64, to: u64| {
        if from < to {
            let piece = Piece::Here { bytes: data.slice(bytes(from, to)), sums: None };
            out.push((from, to - from, Filling::Data(smallvec![piece])));
        }
    };
    let (mut written, mut at) = (from, from);
    while at < to {
        let end = (at..to).find(|&block| !zero(block)).unwrap_or(to);
        if end - at >= holes_min {
            reach!("store: zeroes in the copy of an extent become a hole");
            write(&mut out, written, at);
            out.push((at, end - at, HOLE));
            written = end;
        }
        at = end + 1;
    }
    write(&mut out, written, to);
    out
}

impl Store {
    /// Extents that may have changed after `index`, in order. Committed entries that wait for a
    /// rollback of the volumes count too.
    #[must_use]
    pub fn extents_newer_than(&self, index: Index) -> Vec<(VolumeId, Extent)> {
        let mut extents = self.versions.newer_than(index);
        let committed = self.pending.iter().filter(|batch| batch.last() <= self.commit);
        let ahead: Vec<_> = committed.flat_map(|batch| self.extents_changed(batch)).collect();
        if !ahead.is_empty() {
            reach!("store: what is not applied yet is listed as changed");
            extents.extend(ahead);
            extents.sort_unstable();
            extents.dedup();
        }
        extents
    }

    /// Extents that a batch changes when it is applied.
    fn extents_changed(&self, batch: &Batch) -> Vec<(VolumeId, Extent)> {
        let of = |range: Range| {
            let extents = range.offset / EXTENT_BYTES..(range.offset + range.len).div_ceil(EXTENT_BYTES);
            extents.map(move |extent| (range.volume, Extent(extent as u32)))
        };
        let mut extents = Vec::new();
        for entry in &batch.entries {
            match entry.kind {
                EntryKind::Write | EntryKind::Discard | EntryKind::WriteZeroes => {
                    extents.extend(of(entry.range))
                }
                EntryKind::Rollback => {
                    let volumes = (0..).map(VolumeId).zip(&self.config.volumes);
                    extents.extend(volumes.flat_map(|(volume, &len)| of(Range { volume, offset: 0, len })));
                }
                EntryKind::EpochStart
                | EntryKind::Scrub
                | EntryKind::Resize
                | EntryKind::Snapshot
                | EntryKind::DropSnapshot => {}
            }
        }
        extents
    }

    /// Restarts the log, empty, after `at`, and marks the replica inconsistent. Answered by
    /// [`Output::Restarted`]. Uncommitted entries are cut. Committed ones are destaged before. So
    /// every extent is as new as the commit index that [`Store::log_state`] told as `base`. Batches
    /// may be appended after `at` at once, extents only after the answer.
    ///
    /// `volumes`: sizes of the volumes at `at`. `snapshots`: the snapshots there, in ascending
    /// order. `client`: the last change that a client asked for.
    ///
    /// # Panics
    /// When the number of `volumes` is not that of this replica.
    pub fn restart(
        &mut self,
        at: Position,
        chain: Chain,
        volumes: &[u64],
        snapshots: &[SnapshotId],
        client: ClientMark,
    ) {
        if self.failed {
            return;
        }
        reach!("store: restart");
        if self.copying {
            reach!("store: a restart in the middle of a copy");
        }
        self.queue.clear();
        self.queue_bytes = 0;
        // Some committed entries may have to wait until the volumes are rolled back. The primary
        // was told that they are here. So they are applied and destaged like the rest before the
        // log restarts.
        let committed = self.known_committed();
        if committed > self.applied {
            reach!("store: a restart waits for what waits for a rollback");
        }
        self.pending.retain(|batch| batch.last() <= committed);
        self.installs.clear();
        self.finish = None;
        if !self.restarting() {
            self.truncate(committed);
        }
        assert!(volumes.len() == self.config.volumes.len(), "sizes of {} volumes", volumes.len());
        self.end = at;
        self.end_chain = chain;
        self.end_volumes = volumes.to_vec();
        self.grow_due = true;
        let (volumes, snapshots) = (volumes.to_vec(), snapshots.to_vec());
        self.jobs.push_back(Job::Restart { at, chain, volumes, snapshots, client });
    }

    pub(crate) fn restart_ready(&self) -> bool {
        let destaged = self.unfinished.is_some()
            || (self.overlay.is_empty()
                && self.layers.is_empty()
                && self.superblock.checkpoint.at.index == self.applied);
        self.journal_writes.is_empty()
            && self.pass.is_none()
            && self.groups.is_empty()
            && destaged
            && self.growing.is_empty()
            && !self.grow_due
    }

    pub(crate) fn restarted(&mut self, at: Position, chain: Chain) {
        reach!("store: a restart is durable");
        self.unfinished = self.superblock.unfinished;
        self.kept_restarted();
        self.client = self.superblock.client;
        self.set_volumes(self.superblock.volumes.clone());
        self.journal.restart(at.index);
        self.overlay.clear();
        self.forget_scrubs();
        self.snapshots_restarted(at);
        self.ahead.clear();
        self.fills.restarted();
        self.installed.clear();
        self.installing.clear();
        self.copying = true;
        self.durable = at.index;
        self.durable_chain = chain;
        self.applied = at.index;
        self.commit = self.commit.max(at.index);
        self.epochs = self.superblock.epochs.clone();
        for batch in &self.queue {
            note_epoch(&mut self.epochs, batch.epoch, batch.last());
        }
        self.outputs.push_back(Output::Restarted { at });
    }

    /// Writes a copied extent to its volume. Empty `data` means zeroes. Longer zeroes become holes.
    /// `version` is the version-table entry that belongs to the content.
    ///
    /// Blocks of `damaged`, by their place in the extent and ascending, are damaged here as they
    /// are on every replica: a read of such a block does not fit its sum until the block is written
    /// anew. Blocks of `kept`, in the same manner, stay as they are in the volume and are not among
    /// `data`. Answered by [`Output::ExtentInstalled`], not flushed.
    ///
    /// # Panics
    /// If no copy is under way. If `data` is neither empty nor exactly the extent without the kept
    /// blocks. If blocks are damaged and there are no sums, or they are beyond the extent.
    pub fn install_extent(
        &mut self,
        volume: VolumeId,
        extent: Extent,
        version: Index,
        data: Bytes,
        damaged: Vec<u32>,
        kept: Vec<u32>,
    ) {
        if self.failed {
            return;
        }
        assert!(self.copying && self.finish.is_none(), "an extent outside of a copy");
        let (first, end) = self.extent_blocks(volume, extent);
        assert!(
            data.is_empty() || data.len() as u64 == (end - first - kept.len() as u64) * BLOCK_BYTES,
            "{} bytes for extent {extent} of {volume}",
            data.len()
        );
        let within = |last: &u32| self.config.sums && first + u64::from(*last) < end;
        assert!(damaged.last().is_none_or(within), "damage that cannot be held: {damaged:?}");
        let apart = |block: &u32| first + u64::from(*block) < end && !damaged.contains(block);
        assert!(kept.is_sorted() && kept.iter().all(apart), "kept blocks that are not: {kept:?}");
        self.installs.push_back(Install { volume, extent, version, data, damaged, kept });
    }

    /// Ends the copy once everything up to `need` is committed here; answered by
    /// [`Output::CopyFinished`].
    ///
    /// # Panics
    /// Outside of a copy, or between `restart` and its answer: it would end the copy that is yet to
    /// begin.
    pub fn finish_copy(&mut self, need: Index) {
        if self.failed {
            return;
        }
        assert!(self.copying && !self.restarting(), "the end of a copy that did not begin");
        self.finish = Some(need);
    }

    /// Whether the primary has said that this was all, and all of it is written: nothing can
    /// overtake it any more.
    pub(crate) fn all_extents_came(&self) -> bool {
        self.finish.is_some() && self.installs.is_empty() && self.installing.is_empty()
    }

    pub(crate) fn finish_ready(&self) -> bool {
        self.copying
            && self.finish.is_some_and(|need| self.applied >= need)
            && self.all_extents_came()
            && !self.restarting()
    }

    pub(crate) fn copy_finished(&mut self) {
        reach!("store: a copy is finished");
        self.unfinished = self.superblock.unfinished;
        self.kept_is_needless();
        self.copying = false;
        self.finish = None;
        self.ahead.clear();
        self.installed.clear();
        self.outputs.push_back(Output::CopyFinished);
    }

    /// First block of an extent and one past its last.
    fn extent_blocks(&self, volume: VolumeId, extent: Extent) -> (u64, u64) {
        let bytes = self.copy_volumes.get(usize::from(volume.0)).copied().unwrap_or(0);
        let start = extent.offset();
        assert!(start < bytes, "extent {extent} lies beyond volume {volume}");
        (start / BLOCK_BYTES, bytes.min(start + EXTENT_BYTES) / BLOCK_BYTES)
    }

    /// Starts the installs that wait, in order, while none of their blocks is being written.
    pub(crate) fn issue_installs(&mut self) {
        while self.installing.len() < self.tuning.installs_max && !self.restarting() && !self.sums_behind() {
            let Some(next) = self.installs.front() else { return };
            let (volume, extent) = (next.volume, next.extent);
            let (first, end) = self.extent_blocks(volume, extent);
            let conflicts = self.conflicts(volume, first, end) && !planted(Bug::WritesOverlap);
            if conflicts || self.installing.contains_key(&(volume, extent)) {
                reach!("store: an extent waits for writes to its blocks");
                return;
            }
            let Some(install) = self.installs.pop_front() else { return };
            let mut stretches = if planted(Bug::CopyOverwritesNewer) {
                vec![(first, end)]
            } else {
                self.ahead.take(volume, extent, (first, end))
            };
            if stretches != [(first, end)] {
                reach!("store: newer blocks are left out of an extent's copy");
            }
            if planted(Bug::CopiedInPart) {
                stretches.retain(|(from, _)| *from < (first + end) / 2);
                stretches.iter_mut().for_each(|(_, to)| *to = (*to).min((first + end) / 2));
            }
            self.installed.insert((volume, extent));
            let holes_min = (self.tuning.hole_bytes_min / BLOCK_BYTES).max(1);
            if !install.kept.is_empty() {
                // It may be in no more than the cache of the device, from before this store was
                // opened.
                self.touched.insert(volume);
            }
            let parts: Vec<_> = stretches
                .into_iter()
                .flat_map(|(from, to)| parts(&install, first, (from, to), holes_min))
                .collect();
            // One more than there are groups, so that an extent that needs none is answered as
            // well.
            self.installing.insert((volume, extent), (parts.len() + 1, install.version));
            for (from, blocks, filling) in parts {
                self.write_group(Owner::Install { extent }, volume, from, blocks, filling);
            }
            self.install_part_written(volume, extent);
        }
    }

    pub(crate) fn install_part_written(&mut self, volume: VolumeId, extent: Extent) {
        let Some((left, version)) = self.installing.get_mut(&(volume, extent)) else { return };
        *left -= 1;
        if *left == 0 {
            let version = *version;
            self.installing.remove(&(volume, extent));
            reach!("store: an extent is installed");
            if !planted(Bug::CopyVersionForgotten) {
                self.versions.raise(volume, extent, version);
            }
            self.outputs.push_back(Output::ExtentInstalled { volume, extent });
        }
    }
}
