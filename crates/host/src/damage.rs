//! Reads that have found a block that does not fit its checksum ([ADR
//! 14](../../../docs/adr/0014-mending.md)).
//!
//! - A primary's read waits until the extent is mended from other replicas, and is done again.
//! - If no replica has a block, a request that reads it gets an error. This replica does not fail:
//!   the other replicas do not have the block either.
//! - A copy to another replica takes such a block there as damage
//!   ([ADR 15](../../../docs/adr/0015-damage-is-copied.md)). The extent is read once more, and only
//!   blocks that no replica has may be damaged then. To a replica without checksums the copy waits
//!   at that extent. It is tried again from time to time, because a client may have written the
//!   extent anew.
//! - The primary reports such a block until it is well again, and reads it from time to time to
//!   find out.
//! - If a replica that may have the block could not be asked, this replica fails as after a read
//!   error (R13), and the others go on.
//! - A read to repair the blocks of others gives them nothing. A digest is not made, and no replica
//!   fails for it: a scrub finds which replica has the block.

use crate::reads::{Purpose, ReadJob};
use crate::{AnswerError, Happened, Host, Platform};
use bytes::Bytes;
use mainstay_replica::{AttachedClients, Event, Mended, RequestError};
use mainstay_store::DamagedBlock;
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, NodeId, Range, Role, Time, VolumeId, reach};
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds after which the primary reads again what no replica had whole.
const RETRY_MS: u64 = 10_000;
/// Most blocks that are told of, and looked at.
const TOLD_MAX: usize = 64;

/// Counts about damaged blocks since the replica was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DamageCounts {
    /// Reads that have found damage; one that is done again counts once.
    pub found: u64,
    /// Reads that were answered with an error because no replica has the block.
    pub unreadable: u64,
    /// Blocks that were sent to other replicas as damaged.
    pub copied: u64,
}

#[derive(Default)]
pub(crate) struct Damage {
    /// Reads that wait for an extent to be mended.
    waiting: BTreeMap<(VolumeId, Extent), Vec<Waiting>>,
    /// Extents that a copy needs and no replica has whole, to replicas that cannot hold damage.
    lacking: Vec<(NodeId, VolumeId, Extent)>,
    /// Blocks that go to a replica as damaged when the extent is read next for it: the other
    /// replicas were asked, and none has them.
    lost: BTreeMap<(NodeId, VolumeId, Extent), Vec<u32>>,
    retry_at: Option<Time>,
    /// No replica in sync had these when they were read last.
    unreadable: BTreeSet<(VolumeId, u64)>,
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
        self.retry_at.filter(|_| !self.lacking.is_empty() || !self.unreadable.is_empty())
    }

    /// Blocks that a read of an extent may find damaged, because no replica has them.
    pub fn copied_as_such(&self, job: &ReadJob) -> Option<&Vec<u32>> {
        match job.purpose {
            Purpose::Extent { peer, volume, extent, .. } => self.lost.get(&(peer, volume, extent)),
            _ => None,
        }
    }

    /// All of the range is well.
    pub fn was_read(&mut self, range: Range) {
        let within = (range.volume, range.first_block())..(range.volume, range.end_block());
        let told = self.unreadable.len();
        self.unreadable.retain(|block| !within.contains(block));
        if self.unreadable.len() < told {
            reach!("host: what could not be read is well again");
        }
    }
}

impl Host {
    #[must_use]
    pub fn damage_counts(&self) -> DamageCounts {
        self.damage.counts
    }

    /// Blocks that no replica in sync had whole when this primary read them last: reading them is
    /// an error. The first of them only, if there are many.
    pub fn unreadable(&self) -> impl ExactSizeIterator<Item = DamagedBlock> {
        self.damage.unreadable.iter().map(|&(volume, block)| DamagedBlock { volume, block })
    }

    pub(crate) fn found_damage(&mut self, platform: &mut impl Platform, job: ReadJob, damaged: DamagedBlock) {
        match job.purpose {
            Purpose::Look => return,
            Purpose::Digest { .. } => {
                reach!("host: what is damaged is not digested");
                return self.digest_failed(platform, &damaged.to_string());
            }
            _ => {}
        }
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
            Purpose::Digest { .. } | Purpose::Scrub { .. } | Purpose::Held { .. } | Purpose::Look => false,
        };
        if !waits {
            return self.read_failed(platform, &job, &damaged.to_string());
        }
        let waiting = Waiting { purpose: job.purpose, range: job.range, rounds: job.rounds + 1, damaged };
        // Each extent of it may be damaged, and twice while it is read; more is a disk that cannot
        // be written to.
        if job.rounds > 2 * (job.range.len / EXTENT_BYTES + 2) {
            reach!("host: damage comes back");
            return self.read_lacks(platform, &waiting);
        }
        let extent = (damaged.volume, Extent::of(damaged.block * BLOCK_BYTES));
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
        (volume, extent): (VolumeId, Extent),
        mended: Mended,
        lost: &[u32],
    ) {
        let first = extent.first_block();
        for read in self.damage.waiting.remove(&(volume, extent)).unwrap_or_default() {
            match mended {
                Mended::Again => {
                    reach!("host: a read is done again after damage was mended");
                    self.read_again(platform, read.purpose, read.range, read.rounds);
                }
                Mended::Nowhere => {
                    self.tell_lost(
                        platform.now(),
                        volume,
                        lost.iter().map(|&block| first + u64::from(block)),
                    );
                    if let Purpose::Extent { peer, .. } = read.purpose
                        && !lost.is_empty()
                        && self.replica.holds_damage(peer)
                    {
                        reach!("host: what no replica has whole is copied as damage");
                        self.damage.lost.insert((peer, volume, extent), lost.to_vec());
                        self.read_again(platform, read.purpose, read.range, read.rounds);
                    } else {
                        self.read_lacks(platform, &read);
                    }
                }
                Mended::NotNow => {
                    reach!("host: what is damaged is not mended for want of copies");
                    match read.purpose {
                        Purpose::Extent { peer, volume, extent, .. } => {
                            self.damage.lacking.push((peer, volume, extent));
                            self.look_later(platform.now());
                        }
                        Purpose::Request(id) => self.answer(platform, id, Err(AnswerError::Disk)),
                        Purpose::Blocks
                        | Purpose::Digest { .. }
                        | Purpose::Scrub { .. }
                        | Purpose::Held { .. }
                        | Purpose::Look => {}
                    }
                }
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

    fn tell_lost(&mut self, now: Time, volume: VolumeId, blocks: impl Iterator<Item = u64>) {
        let damage = &mut self.damage;
        for block in blocks.take(TOLD_MAX.saturating_sub(damage.unreadable.len())) {
            damage.unreadable.insert((volume, block));
        }
        self.look_later(now);
    }

    fn look_later(&mut self, now: Time) {
        let damage = &mut self.damage;
        if damage.retry_at.is_none_or(|at| at <= now) {
            damage.retry_at = Some(now.plus_ms(RETRY_MS));
        }
    }

    /// An extent goes to another replica, with blocks of it that are damaged everywhere.
    pub(crate) fn damage_copied(
        &mut self,
        platform: &mut impl Platform,
        to: NodeId,
        (volume, extent): (VolumeId, Extent),
        blocks: u64,
    ) {
        self.damage.lost.remove(&(to, volume, extent));
        self.damage.counts.copied += blocks;
        platform.happened(Happened::DamageCopied { to, volume, extent, blocks });
    }

    /// Ends a read of a block that no replica has: a request gets an error, and a copy waits at the
    /// extent.
    fn read_lacks(&mut self, platform: &mut impl Platform, read: &Waiting) {
        self.tell_lost(platform.now(), read.damaged.volume, std::iter::once(read.damaged.block));
        platform.happened(Happened::Unreadable(read.damaged));
        match read.purpose {
            Purpose::Request(id) => {
                reach!("host: a read that no replica can answer");
                self.damage.counts.unreadable += 1;
                if AttachedClients::owns(id) {
                    self.sessions.unreadable(id);
                } else {
                    platform.complete(id, Err(AnswerError::Disk));
                }
            }
            Purpose::Extent { peer, volume, extent, .. } => {
                reach!("host: a copy waits at an extent that no replica has whole");
                self.damage.lacking.push((peer, volume, extent));
            }
            Purpose::Blocks
            | Purpose::Digest { .. }
            | Purpose::Scrub { .. }
            | Purpose::Held { .. }
            | Purpose::Look => {}
        }
    }

    /// Reads again what no replica had. Called often, and nearly always there is nothing to do.
    pub(crate) fn look_at_damage(&mut self, platform: &mut impl Platform) {
        let now = platform.now();
        if self.damage.retry_at().is_none_or(|at| at > now) {
            return;
        }
        self.damage.retry_at = Some(now.plus_ms(RETRY_MS));
        for (volume, block) in self.damage.unreadable.clone() {
            let range = Range { volume, offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
            self.start_read(platform, Purpose::Look, range);
        }
        for (peer, volume, extent) in std::mem::take(&mut self.damage.lacking) {
            self.load_extent(platform, peer, volume, extent);
        }
    }

    /// The replica is not primary any more.
    pub(crate) fn refuse_mended(&mut self, platform: &mut impl Platform) {
        self.damage.unreadable.clear();
        self.damage.lacking.clear();
        self.damage.lost.clear();
        self.damage.retry_at = None;
        for read in std::mem::take(&mut self.damage.waiting).into_values().flatten() {
            // Clients ask the next primary.
            if let Purpose::Request(id) = read.purpose
                && !AttachedClients::owns(id)
            {
                reach!("host: a read waits for damage to be mended when the role ends");
                platform.complete(id, Err(AnswerError::Request(RequestError::NotPrimary)));
            }
        }
    }
}
