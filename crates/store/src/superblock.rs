//! Everything that waits for a superblock: promise (R1), cut (R7), restart (R16), checkpoint (R14).
//!
//! There are four copies, written as two pairs, one pair after the other. So at any moment one pair
//! is whole, and two copies may decay. An update is durable when both pairs are. One update is in
//! flight at a time. If a crash has torn a pair, recovery writes that pair first.

use crate::append::cut_epochs;
use crate::before_copy::Kept;
use crate::fill::AfterUndo;
use crate::{Op, Output, Store};
use bytes::Bytes;
use mainstay_codec::superblock::{SUPERBLOCK_BYTES, VOIDS_MAX};
use mainstay_codec::{Checkpoint, LogState, UnfinishedCopy, Void};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Chain, ClientMark, DataState, Epoch, Index, Position, SnapshotId, reach};

/// Copies of the superblock, at the start of the meta area.
pub const SUPERBLOCK_COPIES: usize = 4;
/// Where the second pair of copies is.
const SECOND_PAIR: u64 = 2 * SUPERBLOCK_BYTES as u64;

/// Wanted change of the superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Job {
    Promise(Epoch),
    /// The log in memory is cut already.
    Cut {
        to: Index,
    },
    Restart {
        at: Position,
        chain: Chain,
        /// Sizes of the volumes there, and the snapshots.
        volumes: Vec<u64>,
        snapshots: Vec<SnapshotId>,
        client: ClientMark,
    },
    /// The kept state is given up, see `before_copy.rs`.
    GiveUpKept,
    /// Large writes may be filled from now on, see `fill.rs`.
    AllowFills,
    /// The present pass is about to write up to here.
    Commit,
    /// The present pass has nothing left to do but this.
    Checkpoint,
}

#[derive(Debug)]
pub struct SuperblockWrite {
    pub job: Job,
    pair: Bytes,
    second: bool,
}

impl Store {
    /// Returns the knowledge of this replica about its own log, of durable things only.
    ///
    /// At [`Output::Promised`] the log ends here: appending goes on right after `end`.
    #[must_use]
    pub fn log_state(&self) -> LogState {
        let mut epochs = self.epochs.clone();
        cut_epochs(&mut epochs, self.durable);
        let epoch = epochs.last().map_or(Epoch(0), |newest| newest.0);
        let (data, base) = match self.unfinished {
            None => (DataState::Consistent, self.applied),
            Some(copy) => (DataState::Inconsistent, copy.base),
        };
        LogState {
            data,
            end: Position { epoch, index: self.durable },
            chain: self.durable_chain,
            commit: self.known_committed(),
            base,
            epochs,
        }
    }

    /// Makes the promise durable (R1); answered by [`Output::Promised`]. A promise lower than an
    /// earlier one changes nothing and is answered all the same.
    pub fn promise(&mut self, epoch: Epoch) {
        if planted(Bug::PromiseNotPersisted) {
            self.promised = self.promised.max(epoch);
            self.promises_made.push_back(epoch);
        } else if !self.failed {
            self.jobs.push_back(Job::Promise(epoch));
        }
    }

    /// Cuts the log after `to`, or after the last batch that ends before it; answered by
    /// [`Output::CutDone`]. Batches that were not submitted to the journal yet go in any case.
    /// Batches appended from now on continue the shortened log.
    ///
    /// # Panics
    /// If `to` lies before a committed entry (R7), or between `restart` and its answer.
    pub fn cut(&mut self, to: Position) {
        if self.failed {
            return;
        }
        assert!(!self.restarting(), "a cut of a log that is being restarted");
        reach!("store: cut");
        let applied = self.applied;
        assert!(to.index >= applied, "cut to {to} would remove committed entry {applied} (R7)");
        self.drop_queue();
        while self.pending.back().is_some_and(|batch| batch.last() > to.index) {
            self.pending.pop_back();
        }
        let end = self.pending.back().map_or(applied, |batch| batch.last());
        self.truncate(end);
        self.end_at_last_placed();
        self.end_volumes = self.volumes_at_end();
        self.jobs.push_back(Job::Cut { to: end });
    }

    /// Takes everything after `end` out of ring, epochs and commit index.
    pub(crate) fn truncate(&mut self, end: Index) {
        self.journal.truncate(end);
        self.fills.truncate(end);
        for write in &mut self.journal_writes {
            write.last = write.last.min(end);
        }
        if self.durable > end {
            self.durable = end;
            // No batch left in the ring that ends there: it is the checkpoint.
            reach!("store: durable entries are cut");
            let checkpoint = self.superblock.checkpoint;
            self.durable_chain = self.journal.end_at(end).map_or(checkpoint.chain, |(_, chain)| chain);
        }
        self.commit = self.commit.min(end);
        cut_epochs(&mut self.epochs, end);
    }

    fn durable_position(&self) -> Position {
        let mut epochs = self.epochs.clone();
        cut_epochs(&mut epochs, self.durable);
        Position { epoch: epochs.last().map_or(Epoch(0), |newest| newest.0), index: self.durable }
    }

    /// The log ends with the last batch that has a place in the ring.
    fn end_at_last_placed(&mut self) {
        (self.end, self.end_chain) = match self.pending.back() {
            Some(batch) => (batch.end(), batch.chain),
            None => (self.durable_position(), self.durable_chain),
        };
    }

    /// Whether a restart waits or is being written.
    pub(crate) fn restarting(&self) -> bool {
        let writing = self.superblock_write.as_ref().map(|write| &write.job);
        self.jobs.iter().chain(writing).any(|job| matches!(job, Job::Restart { .. })) || self.fills.restarts()
    }

    pub(crate) fn issue_superblock(&mut self) {
        if self.superblock_write.is_some() {
            return;
        }
        let Some(job) = self.next_job() else { return };
        match &job {
            Job::Promise(epoch) => self.superblock.promised = self.superblock.promised.max(*epoch),
            Job::Cut { .. } => {
                self.superblock.generation += 1;
                self.superblock.commit = self.applied;
                self.push_void(self.durable);
            }
            &Job::Restart { at, chain, ref volumes, ref snapshots, client } => {
                let snapshots = self.snapshots_at_restart(snapshots);
                let known = self.superblock.unfinished.filter(|_| !planted(Bug::CopyForgetsBase));
                let base = known.map_or(self.applied, |copy| copy.base);
                let kept = self.kept_at_restart();
                let superblock = &mut self.superblock;
                superblock.generation += 1;
                superblock.volumes.clone_from(volumes);
                superblock.snapshots = snapshots;
                superblock.client = client;
                if !planted(Bug::CopyNotMarked) {
                    superblock.unfinished = Some(UnfinishedCopy { base, kept });
                }
                superblock.commit = at.index;
                superblock.checkpoint = Checkpoint { at, chain, offset: 0 };
                superblock.epochs.clear();
                if at.index.0 > 0 {
                    superblock.epochs.push((at.epoch, at.index));
                }
                superblock.voids.clear();
                self.push_void(at.index);
            }
            Job::GiveUpKept => {
                if let Some(copy) = &mut self.superblock.unfinished {
                    copy.kept = false;
                }
            }
            Job::AllowFills => self.superblock.filled = true,
            Job::Commit => self.fill_commit(),
            Job::Checkpoint => self.fill_checkpoint(),
        }
        self.superblock.sequence += 1;
        let copy = self.superblock.encode();
        let pair = Bytes::from([copy.as_slice(), copy.as_slice()].concat());
        self.superblock_write = Some(SuperblockWrite { job, pair: pair.clone(), second: false });
        let op = self.start(Op::Superblock);
        self.outputs.push_back(Output::MetaWrite { op, offset: 0, data: pair });
    }

    /// A checkpoint goes first, because a restart may wait for it. The others keep their order.
    fn next_job(&mut self) -> Option<Job> {
        if self.fills.is_undoing() {
            // A stalled pool may hold that up, and a promise must not wait for it.
            let promise = matches!(self.jobs.front(), Some(Job::Promise(_))) && !self.fills.restarts();
            return if promise { self.jobs.pop_front() } else { None };
        }
        if let Some(job) = self.job_of_pass() {
            return Some(job);
        }
        if self.kept == Kept::GivenUp {
            return Some(Job::GiveUpKept);
        }
        let ready = match self.jobs.front()? {
            Job::Promise(_) | Job::Commit | Job::Checkpoint | Job::GiveUpKept | Job::AllowFills => true,
            Job::Cut { .. } => self.journal_at_rest(),
            Job::Restart { .. } => self.restart_ready() && self.fills.all_cut() && self.kept_before_restart(),
        };
        if !ready {
            reach!("store: a superblock waits for the journal");
        }
        if ready { self.jobs.pop_front() } else { None }
    }

    /// Declares records of older generations after `end` void.
    fn push_void(&mut self, end: Index) {
        push_void(&mut self.superblock.voids, Void { generation: self.superblock.generation, end });
    }

    pub(crate) fn superblock_written(&mut self) {
        let Some(mut write) = self.superblock_write.take() else { return };
        if !write.second && !planted(Bug::OnePairWritten) {
            write.second = true;
            let data = write.pair.clone();
            self.superblock_write = Some(write);
            let op = self.start(Op::Superblock);
            self.outputs.push_back(Output::MetaWrite { op, offset: SECOND_PAIR, data });
            return;
        }
        self.fills.recorded(&self.superblock);
        match write.job {
            Job::Promise(epoch) => {
                self.promised = self.superblock.promised;
                reach!("store: a promise is durable");
                self.promises_made.push_back(epoch);
            }
            Job::Cut { .. } => {
                reach!("store: a cut is durable");
                self.when_undone(AfterUndo::Cut);
            }
            Job::Restart { at, chain, .. } => self.when_undone(AfterUndo::Restart { at, chain }),
            Job::GiveUpKept => self.drop_kept(),
            Job::AllowFills => self.fills_allowed(),
            Job::Commit => self.commit_announced(),
            Job::Checkpoint => self.checkpointed(),
        }
    }

    pub(crate) fn cut_done(&mut self) {
        let (end, chain) = (self.durable_position(), self.durable_chain);
        self.outputs.push_back(Output::CutDone { end, chain });
    }

    /// A promise is told once the journal rests, so that [`Store::log_state`] then tells all there
    /// is.
    pub(crate) fn tell_promises(&mut self) {
        if self.promises_made.is_empty() {
            return;
        }
        if !self.journal_at_rest() {
            reach!("store: a promise waits for the journal to rest");
            return;
        }
        let made = self.promises_made.drain(..);
        self.outputs.extend(made.map(|epoch| Output::Promised { epoch }));
    }

    /// Gives the superblock the log position that a pass has reached.
    pub(crate) fn checkpoint_at(&mut self, at: Position, chain: Chain, offset: u64) {
        let superblock = &mut self.superblock;
        superblock.epochs.clone_from(&self.epochs);
        cut_epochs(&mut superblock.epochs, at.index);
        superblock.checkpoint = Checkpoint { at, chain, offset };
        // Entries that hid older versions of their blocks from this pass are at or below this
        // index, so that recovery finds them committed and lays them over the volume again.
        superblock.commit = self.applied;
        prune_voids(&mut superblock.voids, at.index);
    }
}

/// Adds a void. One that ends earlier and is younger makes the others needless. Beyond the limit
/// the oldest goes: it protects only against a record older than 31 cuts that by chance continues
/// the chain.
pub fn push_void(voids: &mut Vec<Void>, void: Void) {
    while voids.last().is_some_and(|older| older.end >= void.end) {
        reach!("store: a void makes an older one needless");
        voids.pop();
    }
    if voids.len() == VOIDS_MAX {
        reach!("store: the voids are full");
        voids.remove(0);
    }
    voids.push(void);
}

/// Forgets voids that concern only records before the checkpoint, except the youngest of them.
fn prune_voids(voids: &mut Vec<Void>, checkpoint: Index) {
    while voids.len() >= 2 && voids[1].end <= checkpoint {
        reach!("store: a void before the checkpoint is forgotten");
        voids.remove(0);
    }
}

/// Whether a cut or a recovery made the record void.
pub fn is_void(voids: &[Void], generation: u64, first: Index) -> bool {
    !planted(Bug::VoidIgnored) && voids.iter().any(|void| generation < void.generation && first > void.end)
}
