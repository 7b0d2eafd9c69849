//! Scrubbing (R17): at an entry of a scrub the store says where the content of an extent is. It is
//! read soon and summed block by block. An extent that another replica is about to copy to this one
//! is summed in the same way. Blocks are read here, too, to repair those of other replicas.
//!
//! More extents are under way than are read at a time: their entries travel in common batches. To
//! give its full speed, a disk is asked for them in order, a little ahead.

use crate::reads::{Purpose, ReadJob, is_zero};
use crate::{Host, Platform};
use bytes::Bytes;
use mainstay_codec::{BlockSums, block_sum};
use mainstay_replica::{Event, ScrubOrder};
use mainstay_store::Segments;
use mainstay_types::{BLOCK_BYTES, Extent, Index, Position, Range, Role, Time, VolumeId, reach};
use std::sync::LazyLock;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Most extents that are read for scrubs at a time. Measured (bench/RESULTS.md): three readers with
/// eight requests each under way got four fifths of what a disk gave them with one or two each.
const READS_MAX: usize = 2;
static SUM_OF_ZEROES: LazyLock<u64> = LazyLock::new(|| block_sum(&[0; BLOCK]));

impl Host {
    /// Begins to compare the replicas. False, and nothing, when this is not the primary, or when
    /// they are being compared.
    pub fn scrub(&mut self, now: Time, order: ScrubOrder) -> bool {
        let begins = self.role == Role::Primary && !self.replica.scrubs();
        if begins {
            self.replica.handle(now, Event::Scrub(Some(order)));
        }
        begins
    }

    /// Ends the scrub that is under way, if there is one.
    pub fn stop_scrub(&mut self, now: Time) {
        self.replica.handle(now, Event::Scrub(None));
    }

    /// The store has come to an entry of a scrub.
    pub(crate) fn scrub_extent(
        &mut self,
        platform: &mut impl Platform,
        at: Index,
        range: Range,
        segments: Segments,
    ) {
        if segments.is_empty() {
            return self.replica.handle(platform.now(), Event::Scrubbed { at, held: BlockSums::default() });
        }
        self.scrubs.push_back((at, range, segments));
        self.read_for_scrubs(platform);
    }

    /// Begins as many reads as may be.
    fn read_for_scrubs(&mut self, platform: &mut impl Platform) {
        while !self.scrubs.is_empty() {
            let reads = self.reads.values().filter(|job| matches!(job.purpose, Purpose::Scrub { .. }));
            if reads.count() >= READS_MAX {
                reach!("host: an extent waits until others are scrubbed");
                return;
            }
            let Some((at, range, segments)) = self.scrubs.pop_front() else { return };
            // R13: nothing more is read of a disk that is not used any more.
            if self.failed.is_none()
                && let Some(job) =
                    self.gather_segments(platform, Purpose::Scrub { at: Some(at) }, range, segments, 0)
            {
                self.tell_scrubbed(platform, at, Some(job));
            }
        }
    }

    /// Forgets the scrubs, because the log began anew: the results for its old entries are not
    /// needed any more, and entries of another history may get their numbers. Reads under way have
    /// to be waited for all the same.
    pub(crate) fn forget_scrubs(&mut self) {
        self.scrubs.clear();
        for job in self.reads.values_mut() {
            if let Purpose::Scrub { at } = &mut job.purpose {
                *at = None;
            }
        }
    }

    /// Tells the replica the sums of an extent that was read for a scrub. `at`: the scrub's entry;
    /// `None` if the log began anew. `job`: the read; `None` if a part of the extent was written
    /// over before.
    pub(crate) fn extent_scrubbed(
        &mut self,
        platform: &mut impl Platform,
        at: Option<Index>,
        job: Option<ReadJob>,
    ) {
        // The disk goes on while this is summed.
        self.read_for_scrubs(platform);
        let Some(at) = at else {
            reach!("host: the log began anew while an extent was scrubbed");
            return;
        };
        self.tell_scrubbed(platform, at, job);
    }

    fn tell_scrubbed(&mut self, platform: &mut impl Platform, at: Index, job: Option<ReadJob>) {
        // It has begun anew, and that is about to be heard.
        if !self.store.scrub_ended(at) {
            return;
        }
        let held = self.held(job);
        self.replica.handle(platform.now(), Event::Scrubbed { at, held });
    }

    /// Sums the blocks of an extent that is to be copied to this replica, as they are here now.
    /// They need not be right in the sense of any log. A block that is written while it is read, or
    /// looks damaged for that reason, is merely sent.
    pub(crate) fn sum_extent(
        &mut self,
        platform: &mut impl Platform,
        volume: VolumeId,
        extent: Extent,
        at: Position,
    ) {
        // R13: nothing more is read of a disk that is not used any more.
        if self.failed.is_some() {
            return;
        }
        match self.extent_range(volume, extent).filter(|_| !self.store.rolling_back()) {
            Some(range) => self.start_read(platform, Purpose::Held { extent, at }, range),
            None => {
                reach!("host: what is held of an extent cannot be said");
                self.extent_summed(platform, (volume, extent), at, None);
            }
        }
    }

    pub(crate) fn extent_summed(
        &mut self,
        platform: &mut impl Platform,
        (volume, extent): (VolumeId, Extent),
        at: Position,
        job: Option<ReadJob>,
    ) {
        let held = self.held(job);
        self.replica.handle(platform.now(), Event::ExtentSummed { volume, extent, at, held });
    }

    fn held(&self, job: Option<ReadJob>) -> BlockSums {
        job.map_or_else(BlockSums::default, |job| {
            let damaged = job.damaged(&self.store);
            BlockSums { sums: job.into_pieces().iter().flat_map(sums_of).collect(), damaged }
        })
    }
}

fn sums_of(piece: &Bytes) -> impl Iterator<Item = u64> + '_ {
    let zero = is_zero(piece);
    piece.chunks(BLOCK).map(move |block| if zero { *SUM_OF_ZEROES } else { block_sum(block) })
}
