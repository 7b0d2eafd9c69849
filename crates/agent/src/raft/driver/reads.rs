//! Reads of the state that are no older than the majority's (Raft's ReadIndex).
//!
//! Each attempt to read gets a random number of its own, so that no answer counts for the read of
//! another node, of an earlier process or of an earlier attempt that has been given up. The leader
//! tells, after a round of heartbeats that a majority answered, up to which entry the log was
//! committed when it was asked; once that entry is applied here the read is confirmed. The Raft
//! core drops what it is asked while there is no leader, so a read is repeated until its deadline.

use crate::messages::random_u64;
use raft::{RawNode, ReadState, Storage};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Reads that wait; further ones are not confirmed.
const READS_MAX: usize = 256;
/// An unanswered read is asked for again after this time.
const REPEAT_AFTER: Duration = Duration::from_millis(150);
/// Attempts of one read whose answers are taken; it is asked for no more often.
const ATTEMPTS_MAX: usize = 64;

struct Read {
    /// The numbers of its attempts.
    attempts: Vec<u64>,
    /// The entry that has to be applied, once the leader has told it.
    index: Option<u64>,
    reply: SyncSender<()>,
    deadline: Instant,
    repeat_at: Instant,
}

/// Reads that wait for their confirmation.
#[derive(Default)]
pub(super) struct Reads {
    waiting: Vec<Read>,
    /// The last entry of which a leader has told that it is committed.
    told: u64,
}

impl Reads {
    /// Asks the leader; `reply` hears when the state is confirmed, and is dropped after `deadline`.
    pub(super) fn ask<S: Storage>(&mut self, raw: &mut RawNode<S>, reply: SyncSender<()>, deadline: Instant) {
        if self.waiting.len() >= READS_MAX {
            return;
        }
        let repeat_at = Instant::now() + REPEAT_AFTER;
        let mut read = Read { attempts: Vec::new(), index: None, reply, deadline, repeat_at };
        read.attempt(raw);
        self.waiting.push(read);
    }

    /// Gives up what is overdue and repeats what was not answered.
    pub(super) fn tick<S: Storage>(&mut self, raw: &mut RawNode<S>) {
        let now = Instant::now();
        self.waiting.retain(|read| read.deadline > now);
        for read in self.waiting.iter_mut().filter(|read| read.index.is_none() && read.repeat_at <= now) {
            read.repeat_at = now + REPEAT_AFTER;
            read.attempt(raw);
        }
    }

    /// Whether no read waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The last entry of which a leader has told that it is committed.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// Takes the leader's answers.
    pub(super) fn take(&mut self, states: Vec<ReadState>) {
        for state in states {
            self.told = self.told.max(state.index);
            let number = <[u8; 8]>::try_from(state.request_ctx.as_slice()).ok().map(u64::from_be_bytes);
            let asked = |read: &&mut Read| number.is_some_and(|number| read.attempts.contains(&number));
            if let Some(read) = self.waiting.iter_mut().find(asked) {
                read.index.get_or_insert(state.index);
            }
        }
    }

    /// Confirms what is applied; whether that was anything. To be called after the state was
    /// published.
    pub(super) fn answer(&mut self, applied: u64) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|read| {
            if read.index.is_none_or(|index| index > applied) {
                return true;
            }
            // The reader may have given up at this moment, which is its right.
            let _ = read.reply.try_send(());
            false
        });
        self.waiting.len() < before
    }
}

impl Read {
    fn attempt<S: Storage>(&mut self, raw: &mut RawNode<S>) {
        if self.attempts.len() < ATTEMPTS_MAX {
            let number = random_u64();
            self.attempts.push(number);
            raw.read_index(number.to_be_bytes().to_vec());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::core_config;
    use super::*;
    use mainstay_types::NodeId;
    use raft::storage::MemStorage;
    use std::sync::mpsc::{Receiver, sync_channel};

    const LONG: Duration = Duration::from_secs(60);

    fn core(voters: Vec<u64>) -> RawNode<MemStorage> {
        let storage = MemStorage::new_with_conf_state((voters, vec![]));
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        RawNode::new(&core_config(NodeId(1), 0), storage, &logger).unwrap()
    }

    /// Does what the core asks for; returns the last entry that it has committed.
    fn run(raw: &mut RawNode<MemStorage>, reads: &mut Reads) -> u64 {
        while raw.has_ready() {
            let mut ready = raw.ready();
            reads.take(ready.take_read_states());
            raw.mut_store().wl().append(ready.entries()).unwrap();
            if let Some(hard_state) = ready.hs() {
                raw.mut_store().wl().set_hardstate(hard_state.clone());
            }
            raw.advance(ready);
            raw.advance_apply();
        }
        raw.raft.raft_log.committed
    }

    fn ask(raw: &mut RawNode<MemStorage>, reads: &mut Reads, patience: Duration) -> Receiver<()> {
        let (reply, answer) = sync_channel(1);
        reads.ask(raw, reply, Instant::now() + patience);
        answer
    }

    #[test]
    fn a_read_is_confirmed_when_all_committed_entries_are_applied() {
        let (mut raw, mut reads) = (core(vec![1]), Reads::default());
        raw.campaign().unwrap();
        run(&mut raw, &mut reads);
        raw.propose(Vec::new(), b"change".to_vec()).unwrap();
        let committed = run(&mut raw, &mut reads);
        let answer = ask(&mut raw, &mut reads, LONG);
        run(&mut raw, &mut reads);
        reads.answer(committed - 1);
        assert!(answer.try_recv().is_err(), "the change is committed and not applied");
        reads.answer(committed);
        assert!(answer.try_recv().is_ok());
    }

    /// Two nodes, or one before and after its restart, ask the same leader.
    #[test]
    fn no_two_attempts_have_one_number_and_an_answer_to_each_of_them_counts() {
        let mut raw = core(vec![1, 2, 3]);
        let (mut one, mut other) = (Reads::default(), Reads::default());
        let answer = ask(&mut raw, &mut one, LONG);
        let _other = ask(&mut raw, &mut other, LONG);
        for _ in 0..2 * ATTEMPTS_MAX {
            one.waiting[0].repeat_at = Instant::now();
            one.tick(&mut raw);
        }
        let attempts = one.waiting[0].attempts.clone();
        let numbers: std::collections::BTreeSet<_> =
            attempts.iter().chain(&other.waiting[0].attempts).collect();
        assert_eq!((attempts.len(), numbers.len()), (ATTEMPTS_MAX, ATTEMPTS_MAX + 1));
        let state = |number: u64| ReadState { index: 7, request_ctx: number.to_be_bytes().to_vec() };
        one.take(vec![state(other.waiting[0].attempts[0])]);
        assert!(!one.answer(7), "that was the answer to another node");
        assert_eq!(one.told(), 7);
        one.take(vec![state(attempts[1])]);
        assert!(!one.answer(6) && one.answer(7) && answer.try_recv().is_ok());
    }

    #[test]
    fn a_node_without_a_majority_confirms_nothing() {
        let (mut raw, mut reads) = (core(vec![1, 2, 3]), Reads::default());
        let answer = ask(&mut raw, &mut reads, Duration::ZERO);
        let committed = run(&mut raw, &mut reads);
        reads.tick(&mut raw);
        reads.answer(committed);
        assert!(answer.recv().is_err(), "the reader hears that no voter answers");
        assert!(reads.waiting.is_empty());
    }
}
