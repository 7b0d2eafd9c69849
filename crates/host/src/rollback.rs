//! Reads while volumes are rolled back to a snapshot (R17): they wait until it is done, which takes
//! as long as the pool takes to clone files. A read under way whose content does not fit the sums
//! begins anew, and so waits as well.

use crate::{AnswerError, Host, Platform};
use mainstay_replica::{RequestError, RequestId};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Extent, NodeId, Range, VolumeId, reach};

use crate::reads::Purpose;

/// A read that has not begun. As many as there are requests, extents of copies and repairs: the
/// replication core bounds them (R18).
#[derive(Clone, Copy)]
pub(crate) enum Waiting {
    Request(RequestId, Range),
    Extent(NodeId, VolumeId, Extent),
    /// To repair those of a replica.
    Blocks(Range),
}

impl Host {
    /// Whether a read has to wait; it is kept then.
    pub(crate) fn must_wait(&mut self, read: Waiting) -> bool {
        let waits = self.store.rolling_back() && !planted(Bug::RollbackReadTooEarly);
        if waits {
            reach!("host: a read waits until the volumes are rolled back");
            self.waiting.push(read);
        }
        waits
    }

    /// Begins the reads that have waited, if they need not wait any more. Returns whether there
    /// were any.
    pub(crate) fn answer_waiting_reads(&mut self, platform: &mut impl Platform) -> bool {
        if self.waiting.is_empty() || self.store.rolling_back() || self.failed.is_some() {
            return false;
        }
        for read in std::mem::take(&mut self.waiting) {
            match read {
                Waiting::Request(id, range) => self.start_read(platform, Purpose::Request(id), range),
                Waiting::Extent(peer, volume, extent) => self.load_extent(platform, peer, volume, extent),
                Waiting::Blocks(range) => self.start_read(platform, Purpose::Blocks, range),
            }
        }
        true
    }

    /// R10: as for reads under way.
    pub(crate) fn refuse_waiting(&mut self, platform: &mut impl Platform) {
        self.waiting.retain(|read| {
            let Waiting::Request(id, _) = *read else { return true };
            platform.complete(id, Err(AnswerError::Request(RequestError::NotPrimary)));
            false
        });
    }
}
