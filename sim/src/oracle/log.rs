//! The truth about one resource's log, over all its replicas and all its epochs (S1, S4, S6 to S9,
//! S11 to S13, S15, S16, S19).
//!
//! The first replica that commits an entry makes it true. All reports of other replicas are
//! compared with it. A batch is known by its last index and its chain, which covers everything
//! before it. Of its payload the oracle keeps only the number at the beginning of each block.
//!
//! The oracle hears of events in the order in which they happen:
//! - from the replica core, its effects `Append`, `Commit`, `Cut` and `Restart`, when they are
//!   carried out;
//! - from the store, its outputs `Durable`, `Promised`, `CutDone`, `Restarted` and `CopyFinished`,
//!   when they come out;
//! - `recovered`, after each start of an engine.

use super::Violation;
use mainstay_codec::{Batch, EntryKind, LogState};
use mainstay_types::{
    BLOCK_BYTES, Chain, DataState, Epoch, Incarnation, Index, Instance, Member, NodeId, Position, ResourceId,
    ResourceRecord, SnapshotId,
};
use std::collections::BTreeMap;
use std::sync::Arc;

mod checks;
mod feed;
mod fork;
mod mode_b;
mod rollback;
#[cfg(test)]
mod tests;

/// Every check answers so.
pub type Check = Result<(), Violation>;

/// Place of a batch in `LogOracle::batches`.
type BatchId = u32;

/// See the top of this file.
#[derive(Debug)]
pub struct LogOracle {
    resource: ResourceId,
    /// Every batch that was ever made.
    batches: Vec<Known>,
    by_end: BTreeMap<(Index, Chain), BatchId>,
    /// The committed log: the batch of each index, from 1 on.
    truth: Vec<BatchId>,
    /// For each block of each volume, its values, each with the index from which it held.
    /// Ascending.
    model: Vec<Vec<Vec<(Index, u64)>>>,
    rollbacks: rollback::Rollbacks,
    replicas: BTreeMap<(NodeId, Incarnation), Replica>,
    epochs: BTreeMap<Epoch, Sequencer>,
    record: Option<ResourceRecord>,
    /// Highest index that was acknowledged, and the newest epoch in which that was done.
    acknowledged: Index,
    acknowledged_in: Epoch,
    forks: fork::Forks,
    memory: mode_b::Memory,
    may_differ: bool,
}

#[derive(Debug)]
struct Known {
    first: Index,
    end: Position,
    chain: Chain,
    prev_chain: Chain,
    /// In a journal.
    bytes: u64,
    /// Writes of the batch: index, volume, block, value.
    writes: Vec<(Index, u16, u64, u64)>,
    /// Snapshot that the batch takes, and the one that it goes back to before that. The entry that
    /// does so is the last one of its batch.
    takes: Option<(SnapshotId, Option<SnapshotId>)>,
    /// The snapshots that it drops.
    drops: Vec<(Index, SnapshotId)>,
}

/// Replica that made the entries of an epoch.
#[derive(Debug)]
struct Sequencer {
    node: NodeId,
    incarnation: Incarnation,
    /// How often its replica had been opened by then.
    opened: u32,
    last: Index,
}

/// One disk content of a node, as far as it is known from outside.
#[derive(Debug, Default)]
struct Replica {
    /// The log is empty up to here. The content before this position counts as the committed one.
    start: (Position, Chain),
    /// Appended batches after `start`, with their last index.
    log: Vec<(Index, BatchId)>,
    /// Everything up to here was reported durable and must not be cut.
    durable: Index,
    /// The highest that `durable` ever was.
    held: Index,
    commit: Index,
    promised: Epoch,
    /// How often an engine has opened it.
    opened: u32,
    /// The last of these instances, and whether that engine still runs. If it runs, the whole log
    /// is there, durable or not.
    instance: Instance,
    up: bool,
    /// The engine has given the replica up. Its content is of no use until an engine opens it anew.
    failed: bool,
    /// A restart for a copy that may or may not have become durable.
    restarting: Option<(Position, Chain)>,
    /// A copy is under way.
    inconsistent: bool,
    /// The history that the replica belonged to when the copy began, if that is certain.
    whole_in: Option<usize>,
    /// Its disk has lied or was put back: nothing can be demanded of it.
    damaged: bool,
    /// Its disk was damaged in a way that its store cannot notice.
    lied_to: bool,
    /// A promotion of another replica was forced, and this one has not been taken into the new
    /// history yet. Its content is not judged.
    stray: bool,
    /// Its disk does not exist any more.
    gone: bool,
}

impl Replica {
    fn end(&self, batches: &[Known]) -> (Position, Chain) {
        self.log.last().map_or(self.start, |(_, id)| {
            let known = &batches[*id as usize];
            (known.end, known.chain)
        })
    }

    /// The batch that holds the entry, if it was appended after the start of the log.
    fn batch_of(&self, index: Index) -> Option<BatchId> {
        if index <= self.start.0.index {
            return None;
        }
        // The entry that is asked for is nearly always in one of the last batches.
        let at = match self.log.len().checked_sub(8) {
            Some(near) if self.log[near].0 < index => {
                near + self.log[near..].partition_point(|(last, _)| *last < index)
            }
            _ => self.log.partition_point(|(last, _)| *last < index),
        };
        self.log.get(at).map(|(_, id)| *id)
    }

    /// Shortens the log to `to` if it has a batch that ends there with this chain.
    fn cut(&mut self, batches: &[Known], to: Position, chain: Chain) -> bool {
        if (to, chain) == self.start {
            self.log.clear();
        } else {
            let keep = self.log.partition_point(|(last, _)| *last <= to.index);
            let Some((_, id)) = keep.checked_sub(1).and_then(|at| self.log.get(at)) else { return false };
            let known = &batches[*id as usize];
            if (known.end, known.chain) != (to, chain) {
                return false;
            }
            self.log.truncate(keep);
        }
        self.durable = self.durable.min(to.index);
        true
    }

    fn restart(&mut self, at: Position, chain: Chain) {
        self.start = (at, chain);
        self.log.clear();
        self.durable = at.index;
        self.held = self.held.max(at.index);
        self.commit = at.index;
        self.restarting = None;
        self.inconsistent = true;
    }
}

fn wrong<T>(id: &'static str, text: String) -> Result<T, Violation> {
    Err(Violation { id, text })
}

impl LogOracle {
    /// For a resource with volumes of these many blocks.
    #[must_use]
    pub fn new(resource: ResourceId, volumes: &[u64]) -> Self {
        Self {
            resource,
            batches: Vec::new(),
            by_end: BTreeMap::new(),
            truth: Vec::new(),
            model: volumes.iter().map(|blocks| vec![Vec::new(); *blocks as usize]).collect(),
            rollbacks: rollback::Rollbacks::default(),
            replicas: BTreeMap::new(),
            epochs: BTreeMap::new(),
            record: None,
            acknowledged: Index(0),
            acknowledged_in: Epoch(0),
            forks: fork::Forks::default(),
            memory: mode_b::Memory::default(),
            may_differ: false,
        }
    }

    fn replica(&mut self, node: NodeId, incarnation: Incarnation) -> &mut Replica {
        self.replicas.entry((node, incarnation)).or_default()
    }

    /// A primary has made this batch. `appended` calls it for a batch that is new, so it need not
    /// be called.
    ///
    /// # Errors
    /// S7: another replica makes entries in that epoch, or this one did before a restart (R5). Or
    /// the position was given away before, or the control plane did not name this node. S19: its
    /// own promise of the epoch is not durable (R1).
    pub fn sequenced(&mut self, node: NodeId, incarnation: Incarnation, batch: &Batch) -> Check {
        let epoch = batch.epoch;
        if let Some(record) = &self.record
            && (epoch > record.epoch || (epoch == record.epoch && record.primary.is_some_and(|p| p != node)))
        {
            let (named, at) = (record.primary, record.epoch);
            return wrong(
                "S7",
                format!("{node} makes {} in {epoch}; the record names {named:?} in {at}", batch.first),
            );
        }
        let (promised, opened) = self
            .replicas
            .get(&(node, incarnation))
            .map_or((Epoch(0), 0), |replica| (replica.promised, replica.opened));
        if promised < epoch {
            return wrong(
                "S19",
                format!("{node} makes {} in {epoch} and has promised {promised}", batch.first),
            );
        }
        self.check_soft_of(node, incarnation, epoch)?;
        let sequencer =
            self.epochs.entry(epoch).or_insert(Sequencer { node, incarnation, opened, last: Index(0) });
        let made_by = (sequencer.node, sequencer.incarnation);
        if made_by == (node, incarnation) && sequencer.opened != opened {
            return wrong(
                "S7",
                format!("{node} makes {} in {epoch}, in which it was primary before a restart", batch.first),
            );
        }
        if made_by != (node, incarnation) {
            return wrong(
                "S7",
                format!("{node} makes {} in {epoch}, in which {} made entries", batch.first, made_by.0),
            );
        }
        if batch.first <= sequencer.last {
            let last = sequencer.last;
            return wrong("S7", format!("{node} makes {} again in {epoch}: it was at {last}", batch.first));
        }
        sequencer.last = batch.last();
        self.fork(node, incarnation, batch)?;
        self.learn(batch)?;
        Ok(())
    }

    /// Keeps the parts of a new batch that are needed later.
    fn learn(&mut self, batch: &Batch) -> Result<BatchId, Violation> {
        let mut writes = Vec::new();
        for (place, entry) in batch.entries.iter().enumerate() {
            if entry.kind != EntryKind::Resize && !entry.kind.changes_blocks() {
                continue;
            }
            let index = Index(batch.first.0 + place as u64);
            let volume = entry.range.volume.0;
            if entry.kind == EntryKind::Resize {
                // A block that the growth adds counts as a block that was never written.
                if let Some(blocks) = self.model.get_mut(usize::from(volume)) {
                    let more = (entry.range.offset / BLOCK_BYTES) as usize;
                    blocks.resize(blocks.len().max(more), Vec::new());
                }
                continue;
            }
            let blocks = entry.range.first_block()..entry.range.end_block();
            if self.model.get(usize::from(volume)).is_none_or(|model| (model.len() as u64) < blocks.end) {
                return wrong("S16", format!("entry {index} changes {:?}, beyond its volume", entry.range));
            }
            for (nth, block) in blocks.enumerate() {
                let at = nth * BLOCK_BYTES as usize;
                let front = entry.payload.get(at..at + 8).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
                writes.push((index, volume, block, front.map_or(0, u64::from_le_bytes)));
            }
        }
        let id = self.batches.len() as BatchId;
        self.batches.push(Known {
            first: batch.first,
            end: batch.end(),
            chain: batch.chain,
            prev_chain: batch.prev_chain,
            bytes: batch.journal_len(),
            writes,
            takes: rollback::takes(batch),
            drops: rollback::drops(batch),
        });
        self.by_end.insert((batch.last(), batch.chain), id);
        Ok(id)
    }

    /// The batch is given to the journal of a replica, whatever its role.
    ///
    /// # Errors
    /// S4: it does not continue that replica's log. S7, as in `sequenced`.
    pub fn appended(&mut self, node: NodeId, incarnation: Incarnation, batch: &Arc<Batch>) -> Check {
        let mut known = self.by_end.get(&(batch.last(), batch.chain)).copied();
        if known.is_none() {
            self.sequenced(node, incarnation, batch)?;
            known = self.by_end.get(&(batch.last(), batch.chain)).copied();
        }
        let Some(id) = known else { return Ok(()) };
        let made = &self.batches[id as usize];
        if (made.first, made.end, made.prev_chain) != (batch.first, batch.end(), batch.prev_chain) {
            return wrong("S6", format!("{node} has another batch with the chain of {}", made.end));
        }
        let replica = self.replicas.entry((node, incarnation)).or_default();
        let (end, chain) = replica.end(&self.batches);
        if batch.first != end.index.next() || batch.prev_chain != chain || batch.epoch < end.epoch {
            let (first, last) = (batch.first, batch.end());
            return wrong(
                "S4",
                format!("{node} appends {first} to {last}, which does not continue its log at {end}"),
            );
        }
        replica.log.push((batch.last(), id));
        // By now its log is the beginning of the new history, as the chains show. From here on its
        // volumes are checked again.
        replica.stray &= batch.epoch < self.forks.newest();
        Ok(())
    }

    /// The store has said that its journal holds everything up to `index` durably.
    ///
    /// # Errors
    /// S4: that was never appended.
    pub fn durable(&mut self, node: NodeId, incarnation: Incarnation, index: Index) -> Check {
        let replica = self.replicas.entry((node, incarnation)).or_default();
        let end = replica.end(&self.batches).0.index;
        if index > end {
            return wrong("S4", format!("{node} says that {index} is durable; its log ends at {end}"));
        }
        replica.durable = replica.durable.max(index);
        replica.held = replica.held.max(index);
        Ok(())
    }

    /// The store has said that its promise is durable.
    ///
    /// # Errors
    /// S19: it had promised a higher one.
    pub fn promised(&mut self, node: NodeId, incarnation: Incarnation, epoch: Epoch) -> Check {
        let replica = self.replica(node, incarnation);
        if epoch < replica.promised && !replica.damaged {
            return wrong("S19", format!("{node} promises {epoch} after {}", replica.promised));
        }
        replica.promised = epoch;
        Ok(())
    }

    /// The replica tells a primary of this epoch what its log holds.
    ///
    /// # Errors
    /// S19: it has not durably promised this very epoch (R1). So a primary of an older epoch may
    /// still change its log.
    pub fn answered(&mut self, node: NodeId, incarnation: Incarnation, epoch: Epoch) -> Check {
        let promised = self.replica(node, incarnation).promised;
        if promised == epoch {
            return Ok(());
        }
        wrong("S19", format!("{node} answers in {epoch} and has durably promised {promised}"))
    }

    /// The replica has moved its commit index (`Effect::Commit`).
    ///
    /// # Errors
    /// S6: another entry was committed at that position. S4: it is not durable there.
    pub fn committed(&mut self, node: NodeId, incarnation: Incarnation, index: Index) -> Check {
        self.fork_at_commit(node, incarnation)?;
        let Some(replica) = self.replicas.get_mut(&(node, incarnation)) else {
            return wrong("S6", format!("{node} commits {index} and never had a log"));
        };
        if index > replica.durable {
            let durable = replica.durable;
            return wrong("S4", format!("{node} commits {index}, which is not durable there: {durable} is"));
        }
        if index < replica.commit {
            return wrong("S6", format!("{node} commits {index} after {}", replica.commit));
        }
        if replica.stray {
            replica.commit = index;
            return Ok(());
        }
        let from = std::mem::replace(&mut replica.commit, index).max(replica.start.0.index);
        let first = replica.log.partition_point(|(last, _)| *last <= from);
        let mut next = from.0 + 1;
        for (last, id) in &replica.log[first..] {
            while next <= index.0.min(last.0) {
                match self.truth.get(next as usize - 1) {
                    Some(true_id) if true_id == id => {}
                    Some(true_id) => {
                        let (was, now) =
                            (self.batches[*true_id as usize].end, self.batches[*id as usize].end);
                        let text = format!(
                            "{node} commits another i{next}: of the batch up to {now}, it was of {was}"
                        );
                        return wrong("S6", text);
                    }
                    None if next as usize == self.truth.len() + 1 => {
                        self.truth.push(*id);
                        let known = &self.batches[*id as usize];
                        apply(&mut self.model, known, Index(next));
                        self.rollbacks.apply(&mut self.model, known, Index(next));
                    }
                    None => {
                        let end = self.truth.len();
                        return wrong(
                            "S6",
                            format!("{node} commits i{next}; no node committed the entries after i{end}"),
                        );
                    }
                }
                next += 1;
            }
            if *last >= index {
                break;
            }
        }
        self.harden();
        Ok(())
    }

    /// The replica is about to cut its log after `to` (`Effect::Cut`). A crash may come before or
    /// after. A replica that is not in sync may lose committed entries in this way: the primary no
    /// longer knows the epochs of old logs, and copies.
    ///
    /// # Errors
    /// S8: a recorded member loses what was acknowledged.
    pub fn cut(&mut self, node: NodeId, incarnation: Incarnation, to: Position) -> Check {
        let replica = self.replica(node, incarnation);
        replica.durable = replica.durable.min(to.index);
        let member = Member { node, incarnation };
        let recorded = self.record.as_ref().is_some_and(|record| record.iss.contains(&member));
        if recorded && to.index < self.acknowledged { self.check_member(member) } else { Ok(()) }
    }

    /// The store has cut the log (`CutDone`).
    ///
    /// # Errors
    /// S4: the log does not hold that end.
    pub fn cut_done(&mut self, node: NodeId, incarnation: Incarnation, end: Position, chain: Chain) -> Check {
        let replica = self.replicas.entry((node, incarnation)).or_default();
        if !replica.cut(&self.batches, end, chain) && !replica.damaged {
            return wrong("S4", format!("{node} has cut its log to {end}, where it never was"));
        }
        Ok(())
    }

    /// The store has given up batches that were never durable (before it answers a promise, when
    /// its journal is full).
    ///
    /// # Errors
    /// S4: the log does not hold that end. S19: they were durable.
    pub fn dropped(&mut self, node: NodeId, incarnation: Incarnation, end: Position, chain: Chain) -> Check {
        let replica = self.replicas.entry((node, incarnation)).or_default();
        let durable = replica.durable;
        if end.index < durable {
            return wrong("S19", format!("{node} drops what follows {end}; {durable} was durable"));
        }
        if !replica.cut(&self.batches, end, chain) {
            return wrong("S4", format!("{node} has dropped its log down to {end}, where it never was"));
        }
        Ok(())
    }

    /// The replica is about to begin an empty log after `at`, as the target of a copy
    /// (`Effect::Restart`); a crash may come before or after.
    ///
    /// # Errors
    /// S11: `at` is not a committed position of the history that the replica follows.
    pub fn restart(&mut self, node: NodeId, incarnation: Incarnation, at: Position, chain: Chain) -> Check {
        let of_history = self.is_true(at, chain);
        // After forced promotions a replica may not have heard of the last one. A primary of an
        // older history may then copy to it what that history had committed. The replica stays a
        // stray. Seed 217255.
        let known = self.by_end.contains_key(&(at.index, chain));
        let history = self.history(node, incarnation);
        let replica = self.replica(node, incarnation);
        if !(of_history || replica.stray && known) {
            return wrong("S11", format!("{node} begins a copy at {at}, which no node has committed"));
        }
        replica.restarting = Some((at, chain));
        if !replica.inconsistent {
            replica.whole_in = history;
        }
        replica.inconsistent = true;
        replica.stray = !of_history;
        Ok(())
    }

    /// The store has restarted the log (`Restarted`).
    ///
    /// # Errors
    /// S11: the replica core did not ask for it.
    pub fn restarted(&mut self, node: NodeId, incarnation: Incarnation, at: Position) -> Check {
        let replica = self.replica(node, incarnation);
        match replica.restarting {
            Some((asked, chain)) if asked == at => replica.restart(at, chain),
            _ => return wrong("S11", format!("{node} restarts its log at {at} unasked")),
        }
        Ok(())
    }

    /// The store is consistent and has recorded so (`CopyFinished`). `check_replica` is to follow.
    pub fn copy_finished(&mut self, node: NodeId, incarnation: Incarnation) {
        let replica = self.replica(node, incarnation);
        replica.inconsistent = false;
        replica.damaged = false;
    }

    /// An engine has opened the replica: after a format, a crash or an orderly stop.
    /// `check_replica` is to follow if it is consistent.
    ///
    /// # Errors
    /// S4: the log is none of those that a crash can leave. S6: it claims a commit that did not
    /// happen. S19: something durable or promised is missing.
    pub fn recovered(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        promised: Epoch,
        state: &LogState,
    ) -> Check {
        for ((_, other), replica) in
            self.replicas.range_mut((node, Incarnation(0))..=(node, Incarnation(u64::MAX)))
        {
            // R9: one disk content per node.
            replica.gone = *other != incarnation;
        }
        let committed = self.truth.len() as u64;
        let replica = self.replicas.entry((node, incarnation)).or_default();
        let (end, chain) = (state.end, state.chain);
        if !replica.damaged {
            if promised < replica.promised {
                return wrong(
                    "S19",
                    format!("{node} recovers promise {promised} after {}", replica.promised),
                );
            }
            if state.commit > end.index || (state.commit.0 > committed && !replica.stray) {
                return wrong(
                    "S6",
                    format!(
                        "{node} recovers commit {} with its end at {end}; i{committed} is committed",
                        state.commit
                    ),
                );
            }
        }
        replica.promised = promised;
        replica.opened += 1;
        replica.up = true;
        replica.failed = false;
        let durable = replica.durable;
        let restarted = replica.restarting.take().filter(|at| *at == (end, chain));
        if let Some((at, chain)) = restarted.filter(|_| state.data == DataState::Inconsistent) {
            replica.restart(at, chain);
        } else if !replica.cut(&self.batches, end, chain) {
            if !replica.damaged {
                return wrong(
                    "S4",
                    format!("{node} recovers a log up to {end}, which is no prefix of what it was given"),
                );
            }
            replica.start = (end, chain);
            replica.log.clear();
        } else if end.index < durable && !replica.lied_to {
            return wrong("S19", format!("{node} recovers a log up to {end}; {durable} was durable"));
        }
        replica.durable = end.index;
        replica.held = replica.held.max(end.index);
        replica.commit = state.commit;
        replica.inconsistent = state.data == DataState::Inconsistent;
        Ok(())
    }

    /// A fault of the plan has made the disk of this replica lose or change durable content. Until
    /// a copy makes the replica whole, the oracle demands only that it says nothing wrong. Unless
    /// the disk `lies`, the store has to notice the damage, and may not open with less than it had.
    pub fn damaged(&mut self, node: NodeId, incarnation: Incarnation, lies: bool) {
        let replica = self.replica(node, incarnation);
        replica.damaged = true;
        replica.lied_to |= lies;
        self.may_differ |= lies;
    }

    /// Blocks of volumes are being damaged on fewer replicas than hold them well. No violation is
    /// excused for that.
    pub fn rotten(&mut self) {
        self.may_differ = true;
    }

    /// Whether a disk was damaged in a way that its store cannot notice.
    #[must_use]
    pub fn may_differ(&self) -> bool {
        self.may_differ
    }

    /// The node's disk was replaced by an empty one (R9), or lost.
    pub fn wiped(&mut self, node: NodeId) {
        for (_, replica) in self.replicas.range_mut((node, Incarnation(0))..=(node, Incarnation(u64::MAX))) {
            replica.gone = true;
        }
    }

    /// Whether the committed log has a batch that ends there so.
    fn is_true(&self, at: Position, chain: Chain) -> bool {
        if at.index == Index(0) {
            return (at, chain) == (Position::default(), Chain(0));
        }
        self.truth.get(at.index.0 as usize - 1).is_some_and(|id| {
            let known = &self.batches[*id as usize];
            (known.end, known.chain) == (at, chain)
        })
    }
}

/// Carries out the entry in the flat model.
fn apply(model: &mut [Vec<Vec<(Index, u64)>>], batch: &Known, index: Index) {
    let from = batch.writes.partition_point(|(of, ..)| *of < index);
    for (of, volume, block, value) in &batch.writes[from..] {
        if *of > index {
            break;
        }
        if let Some(history) = model.get_mut(usize::from(*volume)).and_then(|v| v.get_mut(*block as usize)) {
            history.push((index, *value));
        }
    }
}
