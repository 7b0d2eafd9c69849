//! Checks of the log at certain moments: at acknowledgements, at changes of the record, at
//! barriers.

use super::{Check, LogOracle, wrong};
use mainstay_types::{
    BLOCK_BYTES, EXTENT_BYTES, Epoch, Extent, Incarnation, Index, Member, NodeId, ResourceRecord, VolumeId,
};
use std::collections::BTreeMap;

impl LogOracle {
    /// A write with this index was completed to its client as done, by a primary of this epoch.
    /// Writes complete in the order of the log and as soon as they are committed. So the commit
    /// index of that node may stand for a whole burst.
    ///
    /// The write counts when the client gets the answer. An answer that the guard has silenced
    /// meanwhile was not given; otherwise a late answer of an old primary would be S9. `late` says
    /// that the lease had ended before the guard came: the client hears of a committed write, truly
    /// and late.
    ///
    /// # Errors
    /// S1: it is not committed. S9: something was acknowledged in a newer epoch before. S8: see
    /// [`Self::check_members`].
    pub fn acknowledged(&mut self, node: NodeId, epoch: Epoch, late: bool, index: Index) -> Check {
        self.forks.acknowledged(node, epoch, index)?;
        if index.0 > self.truth.len() as u64 {
            return wrong("S1", format!("{node} acknowledges {index}; i{} is committed", self.truth.len()));
        }
        if epoch < self.acknowledged_in && !late {
            let newer = self.acknowledged_in;
            return wrong("S9", format!("{node} acknowledges {index} in {epoch} after something in {newer}"));
        }
        self.acknowledged_in = epoch.max(self.acknowledged_in);
        if index > self.acknowledged {
            self.acknowledged = index;
            return self.check_members();
        }
        Ok(())
    }

    /// The control plane's record has changed: this is the newest truth.
    ///
    /// # Errors
    /// S19: version or epoch go back, or an epoch is left out. S7: an epoch gets another primary.
    /// S8: the in-sync set is empty, the new primary is not of it (R5), or see
    /// [`Self::check_members`].
    pub fn record(&mut self, record: &ResourceRecord) -> Check {
        if let Some(old) = &self.record {
            if record == old {
                return Ok(());
            }
            let (was, is) = ((old.version, old.epoch), (record.version, record.epoch));
            if is.0 <= was.0 || is.1 < was.1 || is.1.0 > was.1.0 + 1 {
                return wrong(
                    "S19",
                    format!("the record goes from {} {} to {} {}", was.0, was.1, is.0, is.1),
                );
            }
            if old.epoch == record.epoch && record.primary.is_some() && record.primary != old.primary {
                let (was, is) = (old.primary, record.primary);
                return wrong("S7", format!("{} passes from {was:?} to {is:?}", record.epoch));
            }
            let chosen = record.primary.filter(|_| record.epoch > old.epoch);
            if let Some(primary) = chosen
                && old.epoch.0 > 0
                && !self.forks.forced(record)
                && (record.iss_member(primary).is_none()
                    || record.iss_member(primary) != old.iss_member(primary))
            {
                return wrong("S8", format!("{primary} is promoted in {} and was not in sync", record.epoch));
            }
            if record.iss.is_empty() && !old.iss.is_empty() && old.epoch.0 > 0 {
                return wrong("S8", format!("the in-sync set is empty at {} (R11)", record.version));
            }
        }
        if let Some(stranger) = record.iss.iter().find(|member| !record.replicas.contains(member)) {
            return wrong("S8", format!("{} is in sync and no replica at {}", stranger.node, record.version));
        }
        self.record = Some(record.clone());
        self.forget_soft();
        self.check_soft()?;
        self.check_members()
    }

    /// S8: every recorded member of the in-sync set whose disk exists holds everything that was
    /// acknowledged, durably and by chain, and is whole.
    ///
    /// # Errors
    /// The first one that does not.
    pub fn check_members(&self) -> Check {
        let Some(record) = &self.record else { return Ok(()) };
        // The cost of a forced promotion is not known before its history has begun.
        if self.acknowledged == Index(0) || self.forks.pending() {
            return Ok(());
        }
        for member in &record.iss {
            self.check_member(*member)?;
        }
        Ok(())
    }

    pub(super) fn check_member(&self, member: Member) -> Check {
        let needed = self.acknowledged;
        let node = member.node;
        let Some(replica) = self.replicas.get(&(node, member.incarnation)) else {
            return wrong(
                "S8",
                format!("{node} {} is recorded in sync and does not exist", member.incarnation),
            );
        };
        if replica.gone && replica.held < needed {
            let held = replica.held;
            return wrong(
                "S8",
                format!(
                    "{needed} was acknowledged; {node} is in sync with a lost disk that held {held} at most"
                ),
            );
        }
        if replica.gone || replica.damaged {
            return Ok(());
        }
        if replica.inconsistent {
            return wrong("S8", format!("{node} is recorded in sync in the middle of a copy"));
        }
        if replica.durable < needed {
            let durable = replica.durable;
            return wrong(
                "S8",
                format!("{node} is in sync and durable up to {durable}; {needed} was acknowledged"),
            );
        }
        // Before the start of its log a whole replica counts as true: it was copied or destaged
        // from the truth.
        let own = replica.batch_of(needed);
        if own.is_some() && own != self.truth.get(needed.0 as usize - 1).copied() {
            return wrong(
                "S8",
                format!("{node} is in sync and holds another {needed} than was acknowledged"),
            );
        }
        Ok(())
    }

    /// The journal of a replica has room for `left` bytes of epoch starts, which is less than its
    /// reserve.
    ///
    /// # Errors
    /// R18: its log ends with an entry of a client, so clients' entries have used a part of the
    /// reserve.
    pub fn reserve_used(&self, node: NodeId, incarnation: Incarnation, left: u64) -> Check {
        let replica = self.replicas.get(&(node, incarnation)).filter(|replica| replica.restarting.is_none());
        let last = replica.and_then(|replica| replica.log.last());
        let Some((_, id)) = last else { return Ok(()) };
        let known = &self.batches[*id as usize];
        if known.writes.is_empty() {
            return Ok(());
        }
        let end = known.end;
        wrong(
            "R18",
            format!("{node} has {left} bytes of its journal left for epoch starts after the write at {end}"),
        )
    }

    /// The highest index that was acknowledged to a client.
    #[must_use]
    pub fn highest_acked(&self) -> Index {
        self.acknowledged
    }

    /// Highest index that any replica has committed.
    #[must_use]
    pub fn highest_committed(&self) -> Index {
        Index(self.truth.len() as u64)
    }

    /// Returns the value that the block has in the committed log at `upto`; 0 if it was never
    /// written.
    #[must_use]
    pub fn value_at(&self, volume: VolumeId, block: u64, upto: Index) -> u64 {
        let history = self.model.get(usize::from(volume.0)).and_then(|volume| volume.get(block as usize));
        let Some(history) = history else { return 0 };
        let after = history.partition_point(|(index, _)| *index <= upto);
        after.checked_sub(1).map_or(0, |at| history[at].1)
    }

    /// The flat model at an index: every block that was ever written, with its value then.
    #[must_use]
    pub fn content(&self, upto: Index) -> BTreeMap<(VolumeId, u64), u64> {
        let mut content = BTreeMap::new();
        for (volume, blocks) in self.model.iter().enumerate() {
            let volume = VolumeId(volume as u16);
            for (block, history) in blocks.iter().enumerate() {
                if history.first().is_some_and(|(index, _)| *index <= upto) {
                    content.insert((volume, block as u64), self.value_at(volume, block as u64, upto));
                }
            }
        }
        content
    }

    /// S4, S11, S13: every block of a consistent replica shows the committed log up to `applied`,
    /// its store's commit index. The check skips a replica in the middle of a copy. It looks at
    /// blocks that no client wrote only if the replica is to be `whole`. It skips a block when
    /// `read_block` knows of damage there.
    ///
    /// # Errors
    /// The first block that differs.
    pub fn check_replica(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        applied: Index,
        whole: bool,
        read_block: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) -> Check {
        if !self.is_judged(node, incarnation) {
            return Ok(());
        }
        self.compare(node, applied, whole, read_block)
    }

    /// Whether the content of a replica says anything: it is neither in the middle of a copy nor of
    /// another history.
    #[must_use]
    pub fn is_judged(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let replica = self.replicas.get(&(node, incarnation));
        replica.is_none_or(|replica| !replica.inconsistent && !replica.stray)
    }

    /// Blocks of each volume up to the last one that was ever written.
    pub fn written(&self) -> impl Iterator<Item = (VolumeId, std::ops::Range<u64>)> + '_ {
        self.model.iter().enumerate().map(|(volume, blocks)| {
            let end =
                blocks.iter().rposition(|history| !history.is_empty()).map_or(0, |last| last as u64 + 1);
            (VolumeId(volume as u16), 0..end)
        })
    }

    /// S14: the content that a replica kept when a copy began is the committed log up to `at`. The
    /// check skips content of a history that is over.
    ///
    /// # Errors
    /// The first block that differs.
    pub fn check_kept(
        &self,
        (node, incarnation): (NodeId, Incarnation),
        at: Index,
        read_block: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) -> Check {
        let whole_in = self.replicas.get(&(node, incarnation)).and_then(|replica| replica.whole_in);
        if whole_in.is_none() || self.forks.pending() || whole_in != Some(self.forks.histories()) {
            return Ok(());
        }
        self.compare(node, at, false, read_block)
    }

    fn compare(
        &self,
        node: NodeId,
        applied: Index,
        whole: bool,
        read_block: &mut dyn FnMut(VolumeId, u64) -> Option<u64>,
    ) -> Check {
        if applied.0 > self.truth.len() as u64 {
            return wrong("S6", format!("{node} has applied {applied}; i{} is committed", self.truth.len()));
        }
        for (volume, blocks) in self.model.iter().enumerate() {
            let volume = VolumeId(volume as u16);
            for (block, history) in (0..).zip(blocks) {
                if history.is_empty() && !whole {
                    continue;
                }
                let Some(have) = read_block(volume, block) else { continue };
                let want = self.value_at(volume, block, applied);
                if have != want {
                    let id = self.which(volume, block, have, applied);
                    let resource = crate::words::resource(self.resource);
                    let text = format!(
                        "{node} holds {have} in block {block} of {volume} of {resource} at {applied}, not {want}"
                    );
                    return wrong(id, text);
                }
            }
        }
        Ok(())
    }

    /// Returns the invariant that a wrong content of a block breaks. Old or uncommitted content
    /// breaks the prefix (S4); content of no entry is damage (S16).
    fn which(&self, volume: VolumeId, block: u64, value: u64, applied: Index) -> &'static str {
        let history = &self.model[usize::from(volume.0)][block as usize];
        let older = value == 0 || history.iter().any(|(index, known)| *known == value && *index <= applied);
        let made = || {
            let at = (volume.0, block, value);
            self.batches
                .iter()
                .any(|batch| batch.writes.iter().any(|(_, v, b, known)| (*v, *b, *known) == at))
        };
        if older || made() { "S4" } else { "S16" }
    }

    /// S12: the version of each extent is at least the index of the last entry up to `applied` that
    /// changed it.
    ///
    /// # Errors
    /// The first extent whose version is too old.
    pub fn check_versions(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        applied: Index,
        version_of: &mut dyn FnMut(VolumeId, Extent) -> Index,
    ) -> Check {
        let replica = self.replicas.get(&(node, incarnation));
        if replica.is_some_and(|replica| replica.inconsistent || replica.stray) {
            return Ok(());
        }
        let extent_blocks = (EXTENT_BYTES / BLOCK_BYTES) as usize;
        for (volume, blocks) in self.model.iter().enumerate() {
            let volume = VolumeId(volume as u16);
            for (extent, blocks) in blocks.chunks(extent_blocks).enumerate() {
                let last = blocks.iter().filter_map(|history| {
                    let after = history.partition_point(|(index, _)| *index <= applied);
                    after.checked_sub(1).map(|at| history[at].0)
                });
                let Some(last) = last.max() else { continue };
                let version = version_of(volume, Extent(extent as u32));
                if version < last {
                    return wrong(
                        "S12",
                        format!(
                            "{node} has version {version} for extent {extent} of {volume}, changed at {last}"
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}
