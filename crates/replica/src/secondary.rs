//! Following a primary: promise, cut, append, acknowledge, commit (R1, R7).
//!
//! The replica checks everything that a primary says before it reaches the journal (P63): epoch,
//! incarnation, continuity, chain, ranges. A message that does not fit is refused with the reason.
//! No message from outside makes a replica panic.
//!
//! A session ends with its replica. The connections belong to the node. They outlive a replica that
//! is closed and opened anew beside others. So a replica says that it is being closed. And a
//! replica that hears a primary in a session that it does not know says so. The primary then
//! forgets the acknowledgements of that session, and attaches the replica as after a lost
//! connection.

use crate::copy::CopyTarget;
use crate::{Busy, Effect, Replica};
use mainstay_codec::{Batch, EntryKind, Envelope, Message, Reject};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BATCH_BYTES_MAX, Chain, ClientMark, DataState, Epoch, Index, NodeId, Position, Role, SnapshotId, Time,
    reach,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// A primary that attached on the present connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub primary: NodeId,
    pub epoch: Epoch,
    /// `AttachReply` was sent; before that nothing but `Attach` is heard.
    pub attached: bool,
    /// Highest commit index heard from it; may be ahead of the own journal.
    pub commit_known: Index,
    pub copy: Option<CopyTarget>,
    /// The answer to a cut or to the beginning of a copy is owed.
    answer_owed: bool,
    /// The chain that the primary expects after the cut.
    cut_chain: Option<Chain>,
    /// Received, not yet in the journal for want of room. At most two windows and a batch of them
    /// (R18).
    held: VecDeque<Arc<Batch>>,
    held_bytes: u64,
}

impl Replica {
    /// Handles a message of a primary. `envelope` is from a connected node and of this resource.
    pub(crate) fn on_primary_message(&mut self, from: NodeId, envelope: Envelope) {
        let Envelope { epoch, incarnation, message, .. } = envelope;
        if self.failed {
            reach!("replica: a failed replica refuses a primary");
            return self.reject_to(from, epoch, Reject::Failed);
        }
        if self.closed {
            return self.reject_to(from, epoch, Reject::Unknown);
        }
        if incarnation != self.config.incarnation && !planted(Bug::DiskNotChecked) {
            reach!("replica: a primary means another disk content");
            return self.reject_to(from, epoch, Reject::Unknown);
        }
        if epoch < self.promise_wanted && !planted(Bug::NoEpochCheck) {
            reach!("replica: a lower epoch is refused");
            return self.reject_to(from, epoch, Reject::Epoch(self.promise_wanted));
        }
        if let Message::Attach = message {
            return self.on_attach(from, epoch);
        }
        let session = self.session.as_ref();
        let session = session.filter(|session| session.primary == from && session.epoch == epoch);
        let Some(session) = session else {
            if !planted(Bug::SessionOutlivesReplica) {
                reach!("replica: a primary goes on in a session of an earlier instance");
                self.reject_to(from, epoch, Reject::Unknown);
            }
            return;
        };
        if !session.attached {
            return;
        }
        match message {
            Message::Append(batch) => self.on_append(batch),
            Message::Commit { commit } => self.learn_commit(commit),
            Message::Cut { to, chain } => self.on_cut(to, chain),
            Message::CopyBegin { at, chain, volumes, snapshots, client } => {
                self.on_copy_begin(at, chain, volumes, snapshots, client);
            }
            Message::CopyAsk { at, volume, extent } => self.on_copy_ask((volume, extent), at),
            Message::CopyExtent { volume, extent, version, data, damaged, kept, .. } => {
                self.on_copy_extent((volume, extent), version, data, damaged, kept);
            }
            Message::CopyEnd { need } => self.on_copy_end(need),
            Message::ReadBlocks { range, at } => self.on_read_blocks(range, at),
            _ => {}
        }
    }

    fn on_attach(&mut self, from: NodeId, epoch: Epoch) {
        if self.leading() {
            if epoch == self.epoch || planted(Bug::KeepsServing) {
                // Only one node is primary in an epoch, and that is this one.
                reach!("replica: another speaks as primary of the own epoch");
                return self.reject_to(from, epoch, Reject::Epoch(epoch));
            }
            reach!("replica: a primary is attached by its successor");
            self.give_up(None, crate::RequestError::NotPrimary);
        }
        reach!("replica: a primary attaches");
        self.promise_ahead = None;
        self.promise(epoch);
        self.fence = None;
        self.older = false;
        self.drop_session();
        self.set_role(Role::Secondary);
        self.session = Some(Session {
            primary: from,
            epoch,
            attached: false,
            commit_known: Index(0),
            copy: None,
            answer_owed: false,
            cut_chain: None,
            held: VecDeque::new(),
            held_bytes: 0,
        });
    }

    /// No connection ends with this replica, so its primary learns from itself that what it has
    /// acknowledged does not count any more.
    pub(crate) fn on_close(&mut self) {
        if planted(Bug::SessionOutlivesReplica) {
            return;
        }
        if self.session.is_some() {
            reach!("replica: a primary hears that a replica is being closed");
        }
        self.closed = true;
        self.reject(Reject::Unknown);
        self.drop_session();
    }

    /// Ends the session with the primary, and forgets batches that were received and are not in the
    /// log.
    pub(crate) fn drop_session(&mut self) {
        self.session = None;
        self.log.cut_notes(self.log.end.index);
    }

    /// Answers an attach once the promise is durable and the own log stands still.
    pub(crate) fn continue_attach(&mut self) {
        let (promised, quiescent) = (self.promised, self.quiescent());
        let Some(session) = self.session.as_mut() else { return };
        let promise_waits = promised < session.epoch && !planted(Bug::PromiseNotAwaited);
        if session.attached || promise_waits || !quiescent {
            return;
        }
        reach!("replica: an attach is answered");
        session.attached = true;
        self.answer(Message::AttachReply(self.log.state()));
        self.tell_received();
    }

    /// Whether work is under way in the own store, or waits for room there. Another replica is told
    /// its end.
    pub(crate) fn works_for_others(&self) -> bool {
        !self.quiescent() || self.session.as_ref().is_some_and(|session| !session.held.is_empty())
    }

    /// Whether no work is under way in the own store.
    pub(crate) fn quiescent(&self) -> bool {
        self.busy.is_none() && self.installing == 0 && self.log.durable == self.log.end.index
    }

    fn on_append(&mut self, batch: Arc<Batch>) {
        let Some(session) = self.session.as_ref() else { return };
        let (end, chain) =
            session.held.back().map_or((self.log.end, self.log.chain), |held| (held.end(), held.chain));
        let held_max = self.config.window_bytes.saturating_mul(2).saturating_add(BATCH_BYTES_MAX);
        let continues = batch.first == end.index.next() && batch.epoch >= end.epoch;
        let lawful = batch.resource == self.config.resource && batch.epoch <= session.epoch;
        // An inconsistent replica appends only as the target of a copy: its log begins where the
        // copy does.
        let placed = self.busy.is_none()
            && (self.log.data == DataState::Consistent || session.copy.is_some())
            && (session.held.is_empty() || session.held_bytes + batch.journal_len() <= held_max);
        if !continues || !lawful || !placed {
            reach!("replica: a batch does not fit here");
            return self.reject(Reject::Gap(end));
        }
        if batch.prev_chain != chain {
            reach!("replica: a batch of another history");
            return self.reject(Reject::Chain);
        }
        if !self.log.sizes.batch_fits(&batch) {
            reach!("replica: a batch beyond the volumes");
            return self.reject(Reject::Unknown);
        }
        // Content that a copy has brought so far is older than the rollback. So the copy has to
        // begin anew after this entry, as for a replica that lacks the snapshot.
        let copying =
            session.copy.is_some() && batch.entries.iter().any(|entry| entry.kind == EntryKind::Rollback);
        if copying || self.log.snapshots.lacks(&batch) {
            return self.reject(Reject::Snapshot);
        }
        let commit = batch.commit;
        self.log.note(&batch);
        if let Some(session) = self.session.as_mut() {
            session.held_bytes += batch.journal_len();
            session.held.push_back(batch);
        }
        self.append_held();
        self.learn_commit(commit);
    }

    /// Gives the journal the batches that it has room for. An epoch start may use the reserve.
    pub(crate) fn append_held(&mut self) {
        while let Some(session) = self.session.as_mut() {
            let Some(batch) = session.held.front() else { return };
            let reserved = batch.entries.iter().all(|entry| entry.kind == EntryKind::EpochStart);
            let len = batch.journal_len();
            if len > (if reserved { self.room_with_reserve } else { self.room }) {
                reach!("replica: a received batch waits for room in the journal");
                return;
            }
            let Some(batch) = session.held.pop_front() else { return };
            if len > self.room {
                reach!("replica: an epoch start uses the reserve");
            }
            session.held_bytes -= len;
            self.take_room(len);
            self.log.appended(&batch);
            self.effects.push_back(Effect::Append(Arc::clone(&batch)));
            if planted(Bug::AckOnReceipt) {
                self.answer(Message::Ack { durable: batch.last() });
            }
            self.tell_received();
        }
    }

    /// The own journal holds everything up to `index`.
    pub(crate) fn on_durable(&mut self, index: Index, began: Time, next: Option<Time>) {
        if index <= self.log.durable || index > self.log.end.index {
            return;
        }
        self.log.durable = index;
        if self.leading() {
            // Entries that are not in flight yet are given to it now.
            let next = (index < self.log.end.index).then_some(next.unwrap_or(self.now));
            self.own.durable(began, next, self.now, self.slow_limits.for_ms);
            self.advance_commit();
            return;
        }
        if self.session.as_ref().is_some_and(|session| session.attached) {
            self.answer(Message::Ack { durable: index });
            self.learn_commit(if planted(Bug::DurableIsCommitted) { index } else { Index(0) });
        }
    }

    /// Takes over the primary's commit index as far as the own journal is durable.
    fn learn_commit(&mut self, commit: Index) {
        let Some(session) = self.session.as_mut() else { return };
        session.commit_known = session.commit_known.max(commit);
        if self.log.commit_to(session.commit_known) {
            reach!("replica: a secondary learns the commit index");
            self.effects.push_back(Effect::Commit(self.log.commit));
        }
    }

    fn on_cut(&mut self, to: Position, chain: Option<Chain>) {
        if !self.quiescent() || to.index > self.log.end.index {
            reach!("replica: a cut comes too early");
            return self.reject(Reject::Gap(self.log.end));
        }
        // R7: every later primary's log has the committed entries. A cut below them means damage.
        if to.index < self.log.commit {
            reach!("replica: a cut below the commit index is refused");
            return self.reject(Reject::Chain);
        }
        let Some(session) = self.session.as_mut() else { return };
        session.answer_owed = true;
        session.cut_chain = chain;
        if to == self.log.end {
            reach!("replica: there is nothing to cut");
            self.after_cut(self.log.end, self.log.chain);
            return;
        }
        reach!("replica: the own tail is cut");
        self.busy = Some(Busy::Cut);
        self.effects.push_back(Effect::Cut(to));
    }

    pub(crate) fn on_cut_done(&mut self, end: Position, chain: Chain) {
        if self.busy != Some(Busy::Cut) {
            return;
        }
        self.busy = None;
        self.log.was_cut(end, chain);
        self.after_cut(end, chain);
    }

    fn after_cut(&mut self, end: Position, chain: Chain) {
        let Some(session) = self.session.as_mut() else { return };
        if !std::mem::take(&mut session.answer_owed) {
            reach!("replica: a cut ends in a later session");
            return;
        }
        if session.cut_chain.take().is_some_and(|expected| expected != chain) {
            reach!("replica: what is left after a cut is another history");
            return self.reject(Reject::Chain);
        }
        self.answer(Message::CutReply { end });
        self.tell_received();
    }

    fn on_copy_begin(
        &mut self,
        at: Position,
        chain: Chain,
        volumes: Vec<u64>,
        snapshots: Vec<SnapshotId>,
        client: ClientMark,
    ) {
        if !self.quiescent() {
            return self.reject(Reject::Gap(self.log.end));
        }
        if volumes.len() != self.log.sizes.committed().len() {
            reach!("replica: a copy of other volumes is refused");
            return self.reject(Reject::Unknown);
        }
        let Some(session) = self.session.as_mut() else { return };
        session.answer_owed = true;
        // Batches that still wait for room belong to the log that ends here.
        session.held.clear();
        session.held_bytes = 0;
        reach!("replica: the log is restarted for a copy");
        session.copy = Some(CopyTarget::Copying);
        let own = planted(Bug::GrowthNotCopied).then(|| self.log.sizes.committed().to_vec());
        let volumes = own.unwrap_or(volumes);
        let own = planted(Bug::SnapshotsNotCopied).then(|| self.log.snapshots.committed());
        let snapshots = own.unwrap_or(snapshots);
        let (sizes, kept) = (volumes.clone(), snapshots.clone());
        self.busy = Some(Busy::Restart { at, chain, volumes: sizes, snapshots: kept, client });
        self.effects.push_back(Effect::Restart { at, chain, volumes, snapshots, client });
    }

    pub(crate) fn on_restarted(&mut self, at: Position) {
        let restart =
            self.busy.take_if(|busy| matches!(busy, Busy::Restart { at: asked, .. } if *asked == at));
        let Some(Busy::Restart { chain, volumes, snapshots, client, .. }) = restart else { return };
        self.log.restarted(at, chain, volumes, snapshots, client);
        let Some(session) = self.session.as_mut() else { return };
        if std::mem::take(&mut session.answer_owed) {
            let sums = self.config.sums;
            self.answer(Message::CopyBeginReply { at, sums });
        }
    }

    /// Says something to the primary that is attached.
    pub(crate) fn answer(&mut self, message: Message) {
        let Some(session) = self.session.as_ref() else { return };
        let (to, epoch) = (session.primary, session.epoch);
        self.send(to, epoch, self.config.incarnation, message);
    }

    pub(crate) fn reject(&mut self, reject: Reject) {
        self.answer(Message::Rejected(reject));
    }

    /// Refuses a message, in the epoch of that message.
    fn reject_to(&mut self, to: NodeId, epoch: Epoch, reject: Reject) {
        self.send(to, epoch, self.config.incarnation, Message::Rejected(reject));
    }
}
