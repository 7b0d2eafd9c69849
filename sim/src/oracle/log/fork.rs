//! Forced promotions (R11): their loss, and that it is the loss that was stated (S17).
//!
//! The committed log is that of the promoted replica when it began its epoch. Entries beyond it
//! that other replicas had committed are lost. The oracle knows the loss when the first entry after
//! the promotion is made. From then on the other replicas are strays: they may hold and commit lost
//! entries, and no client may be told of these. A stray is judged like any other replica again once
//! it is given an entry of the new history, or the beginning of a copy. If its volumes hold
//! anything that is lost, it shows.
//!
//! In mode A, the lead of a primary's acknowledgements over a follower for which writes wait is at
//! most what the limits allow.

use super::{Check, LogOracle, wrong};
use mainstay_codec::Batch;
use mainstay_control::state::Forced;
use mainstay_types::{
    Chain, Epoch, Incarnation, Index, IssChange, Member, NodeId, Proposal, ProposedChange, ResourceRecord,
};

/// All of one resource.
#[derive(Debug, Default)]
pub(super) struct Forks {
    all: Vec<Fork>,
    /// The committed log was cut here, and clients' registers are to follow.
    told: Option<Index>,
}

#[derive(Debug)]
struct Fork {
    epoch: Epoch,
    to: NodeId,
    lost_with: Vec<Member>,
    /// Most bytes that the promotion may cost, if no operator decided on it.
    most: Option<u64>,
    begun: Option<Begun>,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    /// Epoch of the first entry of the new history.
    epoch: Epoch,
    /// The last entry that the new history has of the old one.
    at: Index,
    /// Last entry that had been acknowledged when the new history began.
    acknowledged: Index,
}

impl Forks {
    /// The epoch of the last one that has begun.
    pub fn newest(&self) -> Epoch {
        self.all.iter().filter_map(|fork| fork.begun).map(|begun| begun.epoch).max().unwrap_or_default()
    }

    /// How many histories there have been.
    pub fn histories(&self) -> usize {
        self.all.iter().filter(|fork| fork.begun.is_some()).count()
    }

    /// Tells whether a promotion was forced whose loss is not known yet.
    pub fn pending(&self) -> bool {
        self.all.iter().any(|fork| fork.begun.is_none())
    }

    /// Whether the primary of this record was promoted by force.
    pub fn forced(&self, record: &ResourceRecord) -> bool {
        let named = |fork: &Fork| fork.epoch == record.epoch && record.primary == Some(fork.to);
        self.all.iter().any(named) && record.iss.len() == 1
    }

    /// # Errors
    /// S17: by a primary of a history that is over.
    pub fn acknowledged(&self, node: NodeId, epoch: Epoch, index: Index) -> Check {
        if epoch >= self.newest() {
            return Ok(());
        }
        wrong(
            "S17",
            format!("{node} acknowledges {index} in {epoch}; another history began in {}", self.newest()),
        )
    }
}

impl LogOracle {
    /// The control plane knows of this forced promotion.
    pub fn forced(&mut self, forced: &Forced) {
        // A takeover without an operator may lose only what the recorded limits allow, and a batch
        // that was under way when they were reached.
        let batch = self.batches.iter().map(|known| known.bytes).max().unwrap_or_default();
        let lag = self.record.as_ref().map_or(0, |record| record.policy.lag().bytes);
        let most = forced.told.is_none().then_some(lag + batch);
        if self.forks.all.iter().all(|fork| fork.epoch != forced.epoch) {
            // Leaves out the members of an earlier promotion that has begun. The control plane
            // cannot know that it had served. What these members report is the loss of that
            // promotion. Seed 247580.
            let told = |member: &Member| {
                let mut begun = self.forks.all.iter().filter(|fork| fork.begun.is_some());
                begun.any(|fork| fork.lost_with.contains(member))
            };
            let lost_with = forced.lost_with.iter().copied().filter(|member| !told(member)).collect();
            self.forks.all.push(Fork { epoch: forced.epoch, to: forced.to, lost_with, most, begun: None });
        }
    }

    /// A primary has made this batch. If it is the first after a forced promotion, the entries
    /// before it are the history.
    ///
    /// # Errors
    /// S17: a follower took over by itself and lacked more than the limits allow.
    pub(super) fn fork(&mut self, node: NodeId, incarnation: Incarnation, batch: &Batch) -> Check {
        self.begin((node, incarnation), batch.epoch, Index(batch.first.0 - 1), batch.prev_chain)
    }

    /// A replica commits. If a promotion of it was forced and it has promised that epoch, its log
    /// is the history. It may commit entries that older epochs left in its log before it makes an
    /// entry of its own (ADR 5). Seed 83.
    ///
    /// # Errors
    /// S17, as in `fork`.
    pub(super) fn fork_at_commit(&mut self, node: NodeId, incarnation: Incarnation) -> Check {
        let Some(replica) = self.replicas.get(&(node, incarnation)) else { return Ok(()) };
        let promised = replica.promised;
        let waits = |fork: &Fork| fork.begun.is_none() && fork.to == node && fork.epoch <= promised;
        if !self.forks.all.iter().any(waits) {
            return Ok(());
        }
        let (end, chain) = replica.end(&self.batches);
        self.begin((node, incarnation), promised, end.index, chain)
    }

    /// From this epoch on the history is the log of this replica, up to this entry.
    fn begin(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        epoch: Epoch,
        at: Index,
        chain: Chain,
    ) -> Check {
        let begins = |fork: &&mut Fork| fork.epoch <= epoch && fork.begun.is_none();
        let begun = Begun { epoch, at, acknowledged: self.acknowledged };
        let mut most = None;
        for fork in self.forks.all.iter_mut().filter(begins) {
            fork.begun = Some(begun);
            most = Some(fork.most);
        }
        let Some(most) = most else { return Ok(()) };
        // Back to the last entry that the committed log has too.
        let (mut tail, mut index, mut chain) = (Vec::new(), at, chain);
        while let Some(id) = self.by_end.get(&(index, chain)).copied().filter(|_| index > Index(0)) {
            if self.truth.get(index.0 as usize - 1) == Some(&id) {
                break;
            }
            tail.push(id);
            let known = &self.batches[id as usize];
            (index, chain) = (Index(known.first.0 - 1), known.prev_chain);
        }
        let mut lost =
            self.truth.get(index.0 as usize..self.acknowledged.0 as usize).unwrap_or_default().to_vec();
        lost.dedup();
        let bytes: u64 = lost.iter().map(|id| self.batches[*id as usize].bytes).sum();
        if most.is_some_and(|most| bytes > most) {
            let acknowledged = self.acknowledged;
            return wrong(
                "S17",
                format!(
                    "{node} takes over by itself with {index}, and {acknowledged} was acknowledged: {bytes} bytes are lost, {most:?} are allowed"
                ),
            );
        }
        self.fork_soft(node, incarnation);
        if (index.0 as usize) < self.truth.len() || !tail.is_empty() {
            self.truth.truncate(index.0 as usize);
            for history in self.model.iter_mut().flatten() {
                history.retain(|(of, _)| *of <= index);
            }
            self.rollbacks.cut(index);
            // Entries that an earlier promotion has taken out may be back, and the replica may have
            // committed them as a stray. Seed 239296.
            for id in tail.into_iter().rev() {
                let known = &self.batches[id as usize];
                for entry in known.first.0..=known.end.index.0 {
                    self.truth.push(id);
                    super::apply(&mut self.model, known, Index(entry));
                    self.rollbacks.apply(&mut self.model, known, Index(entry));
                }
            }
            // The registers take the result of all these entries, not of a rollback among them.
            // Seed 804761.
            self.rollbacks.forget();
            self.acknowledged = self.acknowledged.min(index);
            self.forks.told = Some(at);
        }
        for ((other, content), replica) in &mut self.replicas {
            replica.stray = (*other, *content) != (node, incarnation);
        }
        Ok(())
    }

    /// Number of the history that the replica belongs to. `None` if that history may be over.
    #[must_use]
    pub fn history(&self, node: NodeId, incarnation: Incarnation) -> Option<usize> {
        let stray = self.replicas.get(&(node, incarnation)).is_some_and(|replica| replica.stray);
        (!stray && !self.forks.pending()).then(|| self.forks.histories())
    }

    /// Position at which the committed log was cut since the last call.
    pub fn take_fork(&mut self) -> Option<Index> {
        self.forks.told.take()
    }

    /// A primary states the loss, because a replica has returned that had everything.
    ///
    /// # Errors
    /// S17: the stated loss is less than the true one.
    pub fn stated(&self, proposal: &Proposal) -> Check {
        let ProposedChange::Iss(IssChange::Part { member, common, end }) = &proposal.change else {
            return Ok(());
        };
        let (node, incarnation) = (member.node, member.incarnation);
        let lies =
            self.replicas.get(&(node, incarnation)).is_none_or(|replica| replica.damaged || !replica.stray);
        // Promotions may be forced one after the other before any of them serves. Then only the
        // members that the first one left out had everything. Seeds 211394 and 247872.
        let newest = self.forks.newest();
        let begun = self.forks.all.iter().filter_map(|fork| Some((fork, fork.begun?)));
        let first =
            begun.filter(|(_, begun)| begun.epoch == newest).map(|(fork, begun)| (&fork.lost_with, begun));
        let Some((had, Begun { at, acknowledged, .. })) = { first }.next().filter(|_| !lies) else {
            return Ok(());
        };
        if !had.contains(member) || (common.index <= at && end.index >= acknowledged) {
            return Ok(());
        }
        wrong(
            "S17",
            format!(
                "{node} is said to have lost {common} to {end}; lost was what followed {at}, and {acknowledged} was acknowledged"
            ),
        )
    }

    /// A primary in mode A has acknowledged everything up to `commit`, and these followers are
    /// within the limits.
    ///
    /// # Errors
    /// S17: one of them lacks more than `most` bytes.
    pub fn followed(&self, waited_for: impl Iterator<Item = NodeId>, commit: Index, most: u64) -> Check {
        let Some(record) = &self.record else { return Ok(()) };
        for node in waited_for {
            // A follower that is no longer failover-ready, or has another incarnation since, does
            // not take over. The primary may learn that late.
            let Some(member) = record.failover_ready.iter().find(|member| member.node == node) else {
                continue;
            };
            let Some(replica) = self.replicas.get(&(node, member.incarnation)) else { continue };
            if replica.stray || replica.damaged || replica.gone {
                continue;
            }
            let (from, to) = (replica.durable.0 as usize, (commit.0 as usize).min(self.truth.len()));
            let mut lacks: Vec<_> = self.truth.get(from..to).unwrap_or_default().to_vec();
            lacks.dedup();
            let bytes: u64 = lacks.iter().map(|id| self.batches[*id as usize].bytes).sum();
            if bytes > most {
                let durable = replica.durable;
                return wrong(
                    "S17",
                    format!(
                        "{commit} is acknowledged and {node} holds {durable}: it lacks {bytes} bytes, where {most} are the most"
                    ),
                );
            }
        }
        Ok(())
    }
}
