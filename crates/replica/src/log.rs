//! Knowledge of a replica about its own log, without the entries: its end, how far it is durable
//! and committed, and which epochs it consists of. The entries themselves are in the store.

use crate::attachment::Marks;
use crate::sizes::Sizes;
use crate::snapshots::Snapshots;
use mainstay_codec::frame::EPOCHS_MAX;
use mainstay_codec::{Batch, LogState};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Chain, ClientMark, DataState, Epoch, Index, Position, SnapshotId, reach};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Log {
    /// Last entry given to the store.
    pub end: Position,
    pub chain: Chain,
    pub durable: Index,
    pub commit: Index,
    pub data: DataState,
    pub sizes: Sizes,
    pub snapshots: Snapshots,
    pub clients: Marks,
    /// See [`LogState::base`]; meaningful while inconsistent.
    base: Index,
    /// See [`LogState::epochs`].
    epochs: VecDeque<(Epoch, Index)>,
    /// Ends of the batches above `commit`, with the chain there.
    marks: VecDeque<(Position, Chain)>,
    /// Position and chain at `commit`, where known: not right after a start with an uncommitted
    /// tail.
    commit_mark: Option<(Position, Chain)>,
}

impl Log {
    pub fn new(state: LogState, sizes: Sizes, snapshots: Snapshots, clients: Marks) -> Self {
        let commit_mark = (state.commit == state.end.index).then_some((state.end, state.chain));
        Self {
            end: state.end,
            chain: state.chain,
            durable: state.end.index,
            commit: state.commit,
            data: state.data,
            sizes,
            snapshots,
            clients,
            base: state.base,
            epochs: state.epochs.into(),
            marks: VecDeque::new(),
            commit_mark,
        }
    }

    /// Returns the answer to a primary that attaches.
    pub fn state(&self) -> LogState {
        LogState {
            data: self.data,
            end: self.end,
            chain: self.chain,
            commit: self.commit,
            base: if self.data == DataState::Consistent { self.commit } else { self.base },
            epochs: self.epochs.iter().copied().collect(),
        }
    }

    pub fn appended(&mut self, batch: &Batch) {
        self.end = batch.end();
        self.chain = batch.chain;
        self.marks.push_back((self.end, self.chain));
        match self.epochs.back_mut() {
            Some((epoch, last)) if *epoch == batch.epoch => *last = self.end.index,
            _ => {
                if self.epochs.len() == EPOCHS_MAX {
                    reach!("replica: the list of epochs is full");
                    self.epochs.pop_front();
                }
                self.epochs.push_back((batch.epoch, self.end.index));
            }
        }
    }

    /// Moves the commit index to `to`, if that is further and durable here. Returns whether it
    /// moved.
    pub fn commit_to(&mut self, to: Index) -> bool {
        let to = to.min(self.durable);
        if to <= self.commit {
            return false;
        }
        self.commit = to;
        self.sizes.commit_to(to);
        self.snapshots.commit_to(to);
        self.clients.commit_to(to);
        while self.marks.front().is_some_and(|(position, _)| position.index <= to) {
            self.commit_mark = self.marks.pop_front();
        }
        if self.commit_mark.is_some_and(|(position, _)| position.index != to) {
            self.commit_mark = None;
        }
        true
    }

    /// Position and chain at the commit index.
    pub fn commit_mark(&self) -> Option<(Position, Chain)> {
        if self.commit == self.end.index { Some((self.end, self.chain)) } else { self.commit_mark }
    }

    /// The store has cut the log after `end`.
    pub fn was_cut(&mut self, end: Position, chain: Chain) {
        self.end = end;
        self.chain = chain;
        self.durable = end.index;
        self.cut_notes(end.index);
        while self.epochs.back().is_some_and(|(epoch, _)| *epoch > end.epoch) {
            self.epochs.pop_back();
        }
        if let Some((epoch, last)) = self.epochs.back_mut()
            && *epoch == end.epoch
        {
            *last = end.index;
        }
        while self.marks.back().is_some_and(|(position, _)| position.index > end.index) {
            self.marks.pop_back();
        }
    }

    /// Notes that a batch comes next in the log. Its changes of volumes, snapshots and clients'
    /// marks count for the entries after it.
    pub fn note(&mut self, batch: &Batch) {
        self.sizes.note(batch);
        self.snapshots.note(batch);
        self.clients.note(batch);
    }

    /// Forgets the notes about entries after `end`: those entries do not come any more.
    pub fn cut_notes(&mut self, end: Index) {
        self.sizes.cut(end);
        self.snapshots.cut(end);
        self.clients.cut(end);
    }

    /// The store has begun an empty log right after `at`, which is committed, as the target of a
    /// copy (R16). The volumes have these sizes there, there are these snapshots, and this is the
    /// last change of a client.
    pub fn restarted(
        &mut self,
        at: Position,
        chain: Chain,
        volumes: Vec<u64>,
        snapshots: Vec<SnapshotId>,
        client: ClientMark,
    ) {
        self.sizes.restart(volumes);
        self.snapshots.restart(snapshots);
        self.clients.restart(client);
        if self.data == DataState::Consistent || planted(Bug::CopyForgetsBase) {
            self.base = self.commit;
        } else {
            reach!("replica: a copy starts over");
        }
        self.data = DataState::Inconsistent;
        self.end = at;
        self.chain = chain;
        self.durable = at.index;
        self.commit = at.index;
        self.epochs.clear();
        if at.index > Index(0) {
            self.epochs.push_back((at.epoch, at.index));
        }
        self.marks.clear();
        self.commit_mark = Some((at, chain));
    }

    /// The last position that both this log and the other hold, by their epochs: only one node
    /// sequences in an epoch, so logs that hold the same position hold the same prefix. `None` when
    /// the lists, which are bounded, do not reach back far enough to tell.
    pub fn last_common(&self, other: &LogState) -> Option<Position> {
        for (epoch, theirs) in other.epochs.iter().rev() {
            if let Ok(found) = self.epochs.binary_search_by_key(epoch, |(epoch, _)| *epoch) {
                return Some(Position { epoch: *epoch, index: self.epochs[found].1.min(*theirs) });
            }
        }
        // Both hold the empty prefix, and nothing of the other's was ever committed beyond it.
        reach!("replica: two logs without a common epoch");
        (other.commit == Index(0)).then(Position::default)
    }

    /// Whether the other log certainly has committed entries that this log lacks. It has if this
    /// log left an epoch before the other one did, and the other one's commit index lies beyond
    /// that. Every later log has the committed entries (R7), so this log is an older copy of
    /// itself.
    pub fn lacks_committed(&self, other: &LogState) -> bool {
        for (epoch, theirs) in other.epochs.iter().rev() {
            if let Ok(found) = self.epochs.binary_search_by_key(epoch, |(epoch, _)| *epoch) {
                let own = self.epochs[found].1;
                return own < *theirs && own < other.commit;
            }
        }
        false
    }

    /// Whether the other log is certainly the beginning of this one. Where the lists do not reach
    /// back far enough it is not certain.
    pub fn continues(&self, other: &LogState) -> bool {
        if other.data != DataState::Consistent {
            return false;
        }
        if other.end.index == Index(0) {
            return true;
        }
        let found = self.epochs.binary_search_by_key(&other.end.epoch, |(epoch, _)| *epoch);
        found.is_ok_and(|found| {
            let began = found.checked_sub(1).map_or(Index(0), |before| self.epochs[before].1);
            began < other.end.index && other.end.index <= self.epochs[found].1
        })
    }

    /// Whether this log holds this position. Unknown for epochs before the list: those are long
    /// committed.
    pub fn holds(&self, position: Position) -> bool {
        match self.epochs.binary_search_by_key(&position.epoch, |(epoch, _)| *epoch) {
            Ok(found) => {
                position.index <= self.epochs[found].1
                    && (found == 0 || self.epochs[found - 1].1 < position.index)
            }
            Err(0) => self.epochs.front().is_some_and(|(_, last)| position.index <= *last),
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(epochs: &[(u64, u64)], commit: u64) -> LogState {
        let (epoch, index) = *epochs.last().unwrap_or(&(0, 0));
        LogState {
            data: DataState::Consistent,
            end: Position::new(epoch, index),
            chain: Chain(0),
            commit: Index(commit),
            base: Index(commit),
            epochs: epochs.iter().map(|(e, i)| (Epoch(*e), Index(*i))).collect(),
        }
    }

    fn new(state: LogState) -> Log {
        let clients = Marks::new(ClientMark::default(), Vec::new());
        Log::new(
            state,
            Sizes::new(vec![1 << 20], Vec::new()),
            Snapshots::new(Vec::new(), Vec::new()),
            clients,
        )
    }

    #[test]
    fn the_last_common_position_is_found_by_epochs() {
        let own = new(log(&[(1, 10), (3, 20)], 10));
        // A longer tail of an older epoch is cut where the own log leaves that epoch.
        assert_eq!(own.last_common(&log(&[(1, 14)], 8)), Some(Position::new(1, 10)));
        // A tail of an epoch that the own log never had is cut entirely, however long.
        assert_eq!(own.last_common(&log(&[(1, 9), (2, 40)], 9)), Some(Position::new(1, 9)));
        assert_eq!(own.last_common(&log(&[(1, 10), (3, 15)], 9)), Some(Position::new(3, 15)));
        // An empty replica has everything in common with everyone.
        assert_eq!(own.last_common(&log(&[], 0)), Some(Position::default()));
        // Nothing shared but something committed: the lists cannot tell.
        assert_eq!(own.last_common(&log(&[(2, 5)], 3)), None);
    }

    #[test]
    fn a_log_that_lacks_committed_entries_is_known() {
        // It left epoch 1 after entry 10 and began epoch 3.
        let own = new(log(&[(1, 10), (3, 11)], 10));
        assert!(own.lacks_committed(&log(&[(1, 12)], 11)));
        assert!(!own.lacks_committed(&log(&[(1, 12)], 10)), "the tail was never committed");
        assert!(own.lacks_committed(&log(&[(1, 12), (2, 14)], 13)), "nor does it have the epoch after that");
        assert!(!own.lacks_committed(&log(&[(1, 10), (3, 11)], 11)));
        assert!(!own.lacks_committed(&log(&[(2, 5)], 5)), "the lists cannot tell");
    }

    #[test]
    fn only_a_beginning_that_is_certain_continues() {
        let own = new(log(&[(1, 10), (3, 20)], 10));
        for (epochs, continues) in [
            (&[][..], true),
            (&[(1, 10)], true),
            (&[(1, 7)], true),
            (&[(1, 10), (3, 20)], true),
            // One entry more of the same epoch, or of one that was left out.
            (&[(1, 11)], false),
            (&[(1, 10), (3, 21)], false),
            (&[(1, 10), (2, 12)], false),
        ] {
            assert_eq!(own.continues(&log(epochs, 0)), continues, "{epochs:?}");
        }
        let forgotten = new(log(&[(3, 20)], 10));
        assert!(!forgotten.continues(&log(&[(1, 7)], 0)), "the lists do not tell any more");
        let copied = LogState { data: DataState::Inconsistent, ..log(&[(1, 7)], 7) };
        assert!(!own.continues(&copied));
    }

    #[test]
    fn a_cut_shortens_the_epochs() {
        let mut own = new(log(&[(1, 10), (3, 20)], 5));
        own.was_cut(Position::new(1, 8), Chain(7));
        assert_eq!(own.state().epochs, vec![(Epoch(1), Index(8))]);
        assert!(own.holds(Position::new(1, 8)) && !own.holds(Position::new(1, 9)));
        assert!(!own.holds(Position::new(3, 11)));
    }
}
