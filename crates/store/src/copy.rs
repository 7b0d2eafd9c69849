//! The target of an extent copy (R16): `restart` → Restarted → `install_extent`… → `finish_copy` → CopyFinished.
//!
//! The log restarts empty at the primary's position, the replica durably inconsistent. Entries stream in and
//! are committed and destaged as ever, while extents are installed beside them, straight into the volume. An
//! extent's copy contains every entry that changed it up to the moment of the copy, and `version` is at or after
//! the last of these but not after that moment. Blocks that were destaged from entries after `version` are therefore newer than
//! the copy and are left out of it ([`Store::ahead`] remembers them); all others are as old or older.
//!
//! If the replica crashes on the way it is still inconsistent, with the same base, and starts over with
//! `restart`.

use crate::volume_op::{Owner, Piece};
use crate::{Output, Store};
use bytes::Bytes;
use mainstay_codec::DataState;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{BLOCK_BYTES, Chain, EXTENT_BYTES, Index, Position, VolumeId, reach};
use smallvec::{SmallVec, smallvec};

use crate::append::note_epoch;
use crate::superblock::Job;

/// An extent that waits to be written.
#[derive(Debug)]
pub struct Install {
    volume: VolumeId,
    extent: u32,
    version: Index,
    data: Bytes,
}

impl Store {
    /// Restarts the log, empty, after `at`, and marks the replica inconsistent; answered by
    /// [`Output::Restarted`]. Uncommitted entries are cut. Committed ones are destaged before, so that every
    /// extent is as new as the commit index that [`Store::log_state`] told as `base`. Batches may be
    /// appended after `at` at once; extents only after the answer. `volumes`: the sizes of the volumes at `at`.
    ///
    /// # Panics
    /// When these are not as many volumes as there are.
    pub fn restart(&mut self, at: Position, chain: Chain, volumes: &[u64]) {
        if self.failed {
            return;
        }
        reach!("store: restart");
        if self.copying {
            reach!("store: a restart in the middle of a copy");
        }
        self.queue.clear();
        self.queue_bytes = 0;
        self.pending.clear();
        self.installs.clear();
        self.finish = None;
        if !self.restarting() {
            self.truncate(self.applied);
        }
        assert!(volumes.len() == self.config.volumes.len(), "sizes of {} volumes", volumes.len());
        self.end = at;
        self.end_chain = chain;
        self.end_volumes = volumes.to_vec();
        self.grow_due = true;
        self.jobs.push_back(Job::Restart { at, chain, volumes: volumes.to_vec() });
    }

    pub(crate) fn restart_ready(&self) -> bool {
        let destaged = self.data != DataState::Consistent
            || (self.overlay.is_empty() && self.superblock.checkpoint.at.index == self.applied);
        self.journal_write.is_none()
            && self.pass.is_none()
            && self.groups.is_empty()
            && destaged
            && self.growing.is_empty()
            && !self.grow_due
    }

    pub(crate) fn restarted(&mut self, at: Position, chain: Chain) {
        reach!("store: a restart is durable");
        self.data = self.superblock.data;
        self.set_volumes(self.superblock.volumes.clone());
        self.journal.restart(at.index);
        self.overlay.clear();
        self.ahead.clear();
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

    /// Writes a copied extent to its volume; empty `data` means zeroes. `version` is the version-table
    /// entry that belongs to the content. Answered by [`Output::ExtentInstalled`], not flushed.
    ///
    /// # Panics
    /// Outside of a copy, or if `data` is neither empty nor exactly the extent.
    pub fn install_extent(&mut self, volume: VolumeId, extent: u32, version: Index, data: Bytes) {
        if self.failed {
            return;
        }
        assert!(self.copying && self.finish.is_none(), "an extent outside of a copy");
        let (first, end) = self.extent_blocks(volume, extent);
        assert!(
            data.is_empty() || data.len() as u64 == (end - first) * BLOCK_BYTES,
            "{} bytes for extent {extent} of {volume}",
            data.len()
        );
        self.installs.push_back(Install { volume, extent, version, data });
    }

    /// Ends the copy once everything up to `need` is committed here; answered by [`Output::CopyFinished`].
    ///
    /// # Panics
    /// Outside of a copy, or between `restart` and its answer: it would end the copy that is yet to begin.
    pub fn finish_copy(&mut self, need: Index) {
        if self.failed {
            return;
        }
        assert!(self.copying && !self.restarting(), "the end of a copy that did not begin");
        self.finish = Some(need);
    }

    /// Whether the primary has said that this was all, and all of it is written: nothing can overtake it any more.
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
        self.data = self.superblock.data;
        self.copying = false;
        self.finish = None;
        self.ahead.clear();
        self.installed.clear();
        self.outputs.push_back(Output::CopyFinished);
    }

    /// First block of an extent and one past its last.
    fn extent_blocks(&self, volume: VolumeId, extent: u32) -> (u64, u64) {
        let bytes = self.copy_volumes.get(usize::from(volume.0)).copied().unwrap_or(0);
        let start = u64::from(extent) * EXTENT_BYTES;
        assert!(start < bytes, "extent {extent} lies beyond volume {volume}");
        (start / BLOCK_BYTES, bytes.min(start + EXTENT_BYTES) / BLOCK_BYTES)
    }

    /// Starts the installs that wait, in order, while none of their blocks is being written.
    pub(crate) fn issue_installs(&mut self) {
        while self.installing.len() < self.tuning.installs_max && !self.restarting() {
            let Some(next) = self.installs.front() else { return };
            let (volume, extent) = (next.volume, next.extent);
            let (first, end) = self.extent_blocks(volume, extent);
            let conflicts = self.conflicts(volume, first, end) && !planted(Bug::WritesOverlap);
            if conflicts || self.installing.contains_key(&(volume, extent)) {
                reach!("store: an extent waits for writes to its blocks");
                return;
            }
            let Some(install) = self.installs.pop_front() else { return };
            let newer: Vec<(u64, u64)> = self
                .ahead
                .within(volume, first, end)
                .filter(|(_, run)| run.index > install.version && !planted(Bug::CopyOverwritesNewer))
                .map(|(at, run)| (at, at + run.blocks))
                .collect();
            if !newer.is_empty() {
                reach!("store: newer blocks are left out of an extent's copy");
            }
            let mut stretches = Vec::with_capacity(newer.len() + 1);
            let mut at = first;
            for (newer_first, newer_end) in newer {
                if at < newer_first {
                    stretches.push((at, newer_first));
                }
                at = newer_end;
            }
            if at < end {
                stretches.push((at, end));
            }
            self.ahead.forget(volume, first, end, Index(u64::MAX));
            self.installed.insert((volume, extent));
            // One more than there are groups, so that an extent that needs none is answered as well.
            self.installing.insert((volume, extent), (stretches.len() + 1, install.version));
            for (from, to) in stretches {
                let pieces = if install.data.is_empty() {
                    SmallVec::new()
                } else {
                    let slice =
                        ((from - first) * BLOCK_BYTES) as usize..((to - first) * BLOCK_BYTES) as usize;
                    smallvec![Piece::Here(install.data.slice(slice))]
                };
                self.write_group(Owner::Install { extent }, volume, from, to - from, pieces);
            }
            self.install_part_written(volume, extent);
        }
    }

    pub(crate) fn install_part_written(&mut self, volume: VolumeId, extent: u32) {
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
