//! Mode B: entries that were acknowledged from memory, and may still be lost.
//!
//! A batch that was acknowledged and not committed is *soft*. It may be lost when no recorded
//! member of the in-sync set holds it any more: in memory, if it runs, or durably. A member whose
//! store has failed holds nothing that is of use (R13). From that moment on the batch is a request
//! with an unknown outcome: it may be found again after all. Until then every new primary has it. A
//! flush that was asked for after it waits until it is committed, and then it is a part of the
//! truth like any other batch. As logs are prefixes (S4), so is what is left.

use super::{BatchId, Check, LogOracle, wrong};
use mainstay_types::{Epoch, Incarnation, Index, Instance, Member, NodeId};
use std::collections::VecDeque;

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Soft batches by their last index, in the order of the log.
    soft: VecDeque<(Index, BatchId)>,
    /// Last entry that keeps its guarantee, if entries after it have lost theirs since
    /// [`LogOracle::take_lost`] was last called. No recorded member of the in-sync set holds those.
    lost: Option<Index>,
}

impl LogOracle {
    /// An engine has opened the replica anew, after `recovered`.
    pub fn opened(&mut self, node: NodeId, incarnation: Incarnation, instance: Instance) {
        self.replica(node, incarnation).instance = instance;
    }

    /// The engine of this node is gone, and what its replica had only in memory.
    pub fn memory_gone(&mut self, node: NodeId) {
        for (_, replica) in self.replicas.range_mut((node, Incarnation(0))..=(node, Incarnation(u64::MAX))) {
            replica.up = false;
        }
        self.forget_soft();
    }

    /// An engine has given up this replica (R13).
    pub fn gave_up(&mut self, node: NodeId, incarnation: Incarnation) {
        self.replica(node, incarnation).failed = true;
        self.forget_soft();
    }

    /// A primary has acknowledged everything up to `upto`, committed or not.
    ///
    /// # Errors
    /// S8: a member that may be promoted as things are does not hold it; or it is not in the
    /// primary's own log. S9: something was acknowledged in a newer epoch before. S17: by a primary
    /// of a history that is over.
    pub fn acknowledged_up_to(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        (epoch, late): (Epoch, bool),
        upto: Index,
    ) -> Check {
        let committed = Index(self.truth.len() as u64);
        if upto <= committed {
            return Ok(());
        }
        self.forks.acknowledged(node, epoch, upto)?;
        if epoch < self.acknowledged_in && !late {
            let newer = self.acknowledged_in;
            return wrong("S9", format!("{node} acknowledges {upto} in {epoch} after something in {newer}"));
        }
        self.acknowledged_in = epoch.max(self.acknowledged_in);
        let known = self.memory.soft.back().map_or(committed, |(last, _)| *last);
        let mut next = known.next();
        while next <= upto {
            let own = self.replicas.get(&(node, incarnation)).and_then(|replica| replica.batch_of(next));
            let Some(id) = own else {
                return wrong("S8", format!("{node} acknowledges {upto} and has no {next} in its log"));
            };
            let last = self.batches[id as usize].end.index;
            self.memory.soft.push_back((last, id));
            next = last.next();
        }
        self.check_soft()
    }

    /// S8 for soft batches: each recorded member that may be promoted at this moment holds them.
    pub(super) fn check_soft(&self) -> Check {
        let (Some(record), Some((last, id))) = (&self.record, self.memory.soft.back()) else { return Ok(()) };
        if self.forks.pending() {
            return Ok(());
        }
        for member in &record.iss {
            let Some(replica) = self.replicas.get(&(member.node, member.incarnation)) else { continue };
            if replica.gone || replica.damaged || replica.failed {
                continue;
            }
            let has = self.has(member.node, member.incarnation, *last, *id);
            let held = match record.instances.get(&member.node) {
                None => replica.durable >= *last && has,
                // The member knows by itself that it is not to lead.
                Some(instance) if !replica.up || *instance != replica.instance => continue,
                Some(_) => has,
            };
            if !held {
                let (node, durable) = (member.node, replica.durable);
                return wrong(
                    "S8",
                    format!(
                        "{last} was acknowledged from memory; {node}, which may be promoted, holds {durable} durably and lacks it"
                    ),
                );
            }
        }
        Ok(())
    }

    /// Checks that a primary which begins an epoch has all soft batches of this epoch and of those
    /// before.
    ///
    /// # Errors
    /// S1: it lacks one, and a recorded member had it.
    pub(super) fn check_soft_of(&self, node: NodeId, incarnation: Incarnation, epoch: Epoch) -> Check {
        let Some((last, id)) = self.memory.soft.back().copied() else { return Ok(()) };
        if self.epochs.contains_key(&epoch) || self.forks.pending() || self.has(node, incarnation, last, id) {
            return Ok(());
        }
        // It learns late that it was primary. Every replica that acknowledged the soft batch has
        // promised the newer epoch (S19), and commits no entry of this one.
        if self.batches[id as usize].end.epoch > epoch {
            return Ok(());
        }
        wrong(
            "S1",
            format!(
                "{node} begins {epoch} without {last}, which was acknowledged from memory, and a member in sync has it"
            ),
        )
    }

    fn has(&self, node: NodeId, incarnation: Incarnation, last: Index, id: BatchId) -> bool {
        let replica = self.replicas.get(&(node, incarnation));
        replica.is_some_and(|replica| last <= replica.start.0.index || replica.batch_of(last) == Some(id))
    }

    /// Number of soft batches that this member still holds, counted from the first.
    fn soft_held(&self, member: Member) -> usize {
        let Some(replica) = self.replicas.get(&(member.node, member.incarnation)) else { return 0 };
        if replica.gone || replica.damaged || replica.failed {
            return 0;
        }
        let visible = |last: Index| replica.up || last <= replica.durable;
        let soft = self.memory.soft.iter();
        soft.take_while(|(last, id)| visible(*last) && self.has(member.node, member.incarnation, *last, *id))
            .count()
    }

    /// Forgets the soft batches that no recorded member holds any more.
    pub(super) fn forget_soft(&mut self) {
        let Some(record) = self.record.as_ref().filter(|_| !self.memory.soft.is_empty()) else { return };
        let held = record.iss.iter().map(|member| self.soft_held(*member)).max().unwrap_or_default();
        self.keep_soft(held);
    }

    /// A forced promotion: the entries of this replica are all that is left (R11).
    pub(super) fn fork_soft(&mut self, node: NodeId, incarnation: Incarnation) {
        let held = self.soft_held(Member { node, incarnation });
        self.keep_soft(held);
    }

    fn keep_soft(&mut self, held: usize) {
        if held == self.memory.soft.len() {
            return;
        }
        self.memory.soft.truncate(held);
        let kept = self.memory.soft.back().map_or(Index(self.truth.len() as u64), |(last, _)| *last);
        self.memory.lost = Some(self.memory.lost.map_or(kept, |lost| lost.min(kept)));
    }

    /// Forgets soft batches that are committed by now.
    pub(super) fn harden(&mut self) {
        let committed = self.truth.len() as u64;
        while self.memory.soft.front().is_some_and(|(last, _)| last.0 <= committed) {
            self.memory.soft.pop_front();
        }
    }

    /// Returns the last entry that keeps its guarantee, if entries after it have lost theirs since
    /// the last call.
    pub fn take_lost(&mut self) -> Option<Index> {
        self.memory.lost.take()
    }

    /// The last that was acknowledged and is not committed.
    #[must_use]
    pub fn soft_end(&self) -> Option<Index> {
        self.memory.soft.back().map(|(last, _)| *last)
    }

    /// S5: entries that were soft when a flush was asked for are committed when it is answered.
    ///
    /// # Errors
    /// When some of it still is.
    pub fn flushed(&self, node: NodeId, upto: Index) -> Check {
        match self.memory.soft.front() {
            Some((last, _)) if *last <= upto => wrong(
                "S5",
                format!(
                    "a flush of {node} is answered, and {last}, acknowledged before it was asked for, is not committed"
                ),
            ),
            _ => Ok(()),
        }
    }
}
