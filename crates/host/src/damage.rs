//! Reads that have found a block that does not fit its checksum ([ADR 14](../../../docs/adr/0014-mending.md)).
//!
//! - A primary's read waits until the extent is mended from other replicas, and is done again.
//! - What nobody has is an error for who reads, and nothing else: the replica has nothing that others have not. A copy to another replica waits at that
//!   extent; it is tried again from time to time, because a client may have written it anew.
//! - If others may have it who could not be asked, the replica fails as after a read error (R13), and they go on.
//! - Who reads to repair others' blocks has nothing to give. A digest is not made.

use crate::reads::{Purpose, ReadJob};
use crate::{AnswerError, Happened, Host, Platform};
use bytes::Bytes;
use mainstay_replica::{Event, Mended, RequestError, Role, Sessions};
use mainstay_store::DamagedBlock;
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, NodeId, Range, Time, VolumeId, reach};
use std::collections::BTreeMap;

/// How often an extent that nobody has whole is tried anew for a copy, in milliseconds.
const RETRY_MS: u64 = 10_000;

/// What was counted of damaged blocks since the replica was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DamageCounts {
    /// Reads that have found damage; one that is done again counts once.
    pub found: u64,
    /// Reads that were answered with an error because nobody has the block.
    pub unreadable: u64,
}

#[derive(Default)]
pub(crate) struct Damage {
    /// Reads that wait for an extent to be mended.
    waiting: BTreeMap<(VolumeId, u32), Vec<Waiting>>,
    /// Extents that a copy needs and nobody has whole.
    lacking: Vec<(NodeId, VolumeId, u32)>,
    retry_at: Option<Time>,
    /// No replica in sync had it when it was read last.
    unreadable: Option<DamagedBlock>,
    counts: DamageCounts,
}

struct Waiting {
    purpose: Purpose,
    range: Range,
    rounds: u64,
    damaged: DamagedBlock,
}

impl Damage {
    pub fn retry_at(&self) -> Option<Time> {
        self.retry_at
    }

    /// All of the range is well.
    pub fn was_read(&mut self, range: Range) {
        let within = |damaged: &DamagedBlock| {
            damaged.volume == range.volume
                && (range.first_block()..range.end_block()).contains(&damaged.block)
        };
        if self.unreadable.as_ref().is_some_and(within) {
            reach!("host: what could not be read is well again");
            self.unreadable = None;
        }
    }
}

impl Host {
    #[must_use]
    pub fn damage_counts(&self) -> DamageCounts {
        self.damage.counts
    }

    /// A block that no replica in sync had whole when this primary read it last: reading it is an error, and whoever lacks it cannot be copied to.
    #[must_use]
    pub fn unreadable(&self) -> Option<DamagedBlock> {
        self.damage.unreadable
    }

    pub(crate) fn found_damage(&mut self, platform: &mut impl Platform, job: ReadJob, damaged: DamagedBlock) {
        if job.rounds == 0 {
            self.damage.counts.found += 1;
            platform.happened(Happened::Damaged(damaged));
        }
        let waits = match job.purpose {
            Purpose::Request(_) | Purpose::Extent { .. } => self.role == Role::Primary,
            Purpose::Blocks => {
                reach!("host: what is to repair others is damaged too");
                let event = Event::BlocksLoaded { range: job.range, data: Bytes::new() };
                return self.replica.handle(platform.now(), event);
            }
            Purpose::Digest { .. } | Purpose::Scrub { .. } => false,
        };
        if !waits {
            return self.read_failed(platform, &job, &damaged.to_string());
        }
        let waiting = Waiting { purpose: job.purpose, range: job.range, rounds: job.rounds + 1, damaged };
        // Each extent of it may be damaged, and twice while it is read; more is a disk that cannot be written to.
        if job.rounds > 2 * (job.range.len / EXTENT_BYTES + 2) {
            reach!("host: damage comes back");
            return self.read_lacks(platform, &waiting);
        }
        let extent = (damaged.volume, (damaged.block * BLOCK_BYTES / EXTENT_BYTES) as u32);
        let others = self.damage.waiting.entry(extent).or_default();
        others.push(waiting);
        if others.len() == 1 {
            reach!("host: a read waits for damage to be mended");
            let (volume, extent) = extent;
            self.replica.handle(platform.now(), Event::Mend { volume, extent });
        } else {
            reach!("host: another read waits for the same extent to be mended");
        }
    }

    /// The replication core has done what it could.
    pub(crate) fn mended(
        &mut self,
        platform: &mut impl Platform,
        volume: VolumeId,
        extent: u32,
        mended: Mended,
    ) {
        for read in self.damage.waiting.remove(&(volume, extent)).unwrap_or_default() {
            match mended {
                Mended::Again => {
                    reach!("host: a read is done again after damage was mended");
                    self.read_again(platform, read.purpose, read.range, read.rounds);
                }
                Mended::Nowhere => self.read_lacks(platform, &read),
                Mended::Unknown => {
                    reach!("host: others may have what is damaged");
                    let answer = Err(AnswerError::Disk);
                    if let Purpose::Request(id) = read.purpose {
                        self.answer(platform, id, answer);
                    }
                    let reason =
                        format!("{}, and not every replica that may have it could be asked", read.damaged);
                    self.fail(platform, reason);
                }
            }
        }
    }

    /// Nobody has what it needs.
    fn read_lacks(&mut self, platform: &mut impl Platform, read: &Waiting) {
        self.damage.unreadable = Some(read.damaged);
        platform.happened(Happened::Unreadable(read.damaged));
        match read.purpose {
            Purpose::Request(id) => {
                reach!("host: a read that no replica can answer");
                self.damage.counts.unreadable += 1;
                if Sessions::owns(id) {
                    self.sessions.unreadable(id);
                } else {
                    platform.complete(id, Err(AnswerError::Disk));
                }
            }
            Purpose::Extent { peer, volume, extent, .. } => {
                reach!("host: a copy waits at an extent that no replica has whole");
                self.damage.lacking.push((peer, volume, extent));
                self.damage.retry_at = Some(platform.now().plus_ms(RETRY_MS));
            }
            Purpose::Blocks | Purpose::Digest { .. } | Purpose::Scrub { .. } => {}
        }
    }

    /// Looks again at what a copy waits for. Called often, and nearly always there is nothing.
    pub(crate) fn retry_lacking(&mut self, platform: &mut impl Platform) {
        if self.damage.retry_at.is_none_or(|at| at > platform.now()) {
            return;
        }
        self.damage.retry_at = None;
        for (peer, volume, extent) in std::mem::take(&mut self.damage.lacking) {
            self.load_extent(platform, peer, volume, extent);
        }
    }

    /// The replica is not primary any more.
    pub(crate) fn refuse_mended(&mut self, platform: &mut impl Platform) {
        self.damage.unreadable = None;
        self.damage.lacking.clear();
        self.damage.retry_at = None;
        for read in std::mem::take(&mut self.damage.waiting).into_values().flatten() {
            // Clients ask the next primary.
            if let Purpose::Request(id) = read.purpose
                && !Sessions::owns(id)
            {
                reach!("host: a read waits for damage to be mended when the role ends");
                platform.complete(id, Err(AnswerError::Request(RequestError::NotPrimary)));
            }
        }
    }
}
