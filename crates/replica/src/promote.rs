//! Becoming primary, and ceasing to be it (R5, R6).
//!
//! A record may name this replica primary in an epoch that is higher than everything it has
//! promised. Then the replica promises that epoch durably, attaches every other replica, and
//! appends an epoch start to its log. It serves once the epoch start is committed on the whole
//! required set. Every member that attaches cuts the part of its log that the new log does not
//! hold.
//!
//! The epoch start is appended at once if the journal has room for it, be it in the reserve (R18).
//! A series of failed promotions may have filled the journal with epoch starts that were never
//! committed. Then the epoch begins without an epoch start: commits need none (`commit.rs`), and
//! make room.

use crate::{Busy, Effect, Fence, Replica, RequestError};
use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{EntryKind, NewEntry};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{DataState, Epoch, Range, ResourceRecord, Role, VolumeId, reach};

impl Replica {
    pub(crate) fn on_record(&mut self, record: ResourceRecord) {
        self.take_record(record);
        self.tell_received();
    }

    fn take_record(&mut self, record: ResourceRecord) {
        if record.resource != self.config.resource || record.version <= self.version() {
            reach!("replica: a record that is not newer");
            return;
        }
        let named = record.primary == Some(self.config.node);
        let epoch = record.epoch;
        self.slow_limits = record.policy.slow;
        self.background.set_limits(record.policy.background);
        self.record = Some(record);
        if self.failed {
            return;
        }
        if self.leading() {
            if planted(Bug::KeepsServing) && !named {
                return;
            }
            if named && epoch == self.epoch {
                reach!("replica: the own record changes");
                // Before the epoch start there are no peers; they are taken from the record then.
                if self.epoch_start.is_some() {
                    self.adopt_newest();
                }
                return;
            }
            reach!("replica: the record ends the own epoch");
            self.give_up(None, RequestError::NotPrimary);
        }
        if !named {
            self.fence(None);
        } else if self.older {
            self.fence(Some(Fence::Older));
        } else if epoch < self.promise_wanted {
            reach!("replica: named in an epoch that is outlived");
            self.fence(Some(Fence::Outlived));
        } else if epoch == self.promise_wanted
            && self.promise_ahead != Some(epoch)
            && !planted(Bug::SameEpochTwice)
        {
            reach!("replica: named in an epoch that it may have served");
            // It may have sequenced in this epoch before, and must not give a position away twice.
            // A replica that was demoted, or knows itself outlived, waits for the next decision of
            // the control plane.
            let kept = |fence: &Fence| {
                matches!(fence, Fence::Demoted | Fence::Outlived | Fence::LeaseEnded | Fence::Older)
            };
            let known = self.fence.filter(kept);
            self.fence(Some(known.unwrap_or(Fence::Restarted)));
        } else if !self.eligible() {
            reach!("replica: named but not eligible");
            self.fence(Some(Fence::NotEligible));
        } else if !self.is_proven() {
            reach!("replica: named and not proven");
            self.fence(Some(Fence::Unproven));
        } else {
            self.promote(epoch);
        }
    }

    fn adopt_newest(&mut self) {
        if let Some(record) = self.record.take() {
            self.record = Some(record.clone());
            self.adopt_members(&record);
        }
    }

    /// R5, R9, R16: only a whole replica whose disk content is the recorded one.
    fn eligible(&self) -> bool {
        let member = self.record.as_ref().and_then(|record| record.iss_member(self.config.node));
        self.data() == DataState::Consistent
            && member.is_some_and(|member| {
                member.incarnation == self.config.incarnation || planted(Bug::DiskNotChecked)
            })
    }

    /// Inconsistent from the moment on in which the store is told to restart the log for a copy:
    /// nothing stops that any more, and a promotion would end with volumes that are no prefix of
    /// the log.
    pub(crate) fn data(&self) -> DataState {
        match self.busy {
            Some(Busy::Restart { .. }) => DataState::Inconsistent,
            _ => self.log.data,
        }
    }

    fn promote(&mut self, epoch: Epoch) {
        reach!("replica: promoted");
        self.promise_ahead = None;
        self.drop_session();
        self.fence = None;
        self.epoch = epoch;
        self.epoch_start = None;
        self.answered = mainstay_types::Index(0);
        self.set_role(Role::Promoting);
        self.promise(epoch);
    }

    /// Makes the promise of `epoch` for the control plane, as a primary of that epoch would ask for
    /// it. Nothing changes here from then on until a replica, perhaps this one, is primary in that
    /// epoch. Returns false if the promise cannot be made.
    pub fn promise_ahead(&mut self, epoch: Epoch) -> bool {
        let may = !self.failed
            && !self.leading()
            && self.data() == DataState::Consistent
            && (epoch > self.promise_wanted || self.promise_ahead == Some(epoch));
        if may && self.promise_ahead != Some(epoch) {
            reach!("replica: an epoch is promised before it has a primary");
            self.promise(epoch);
            self.drop_session();
            self.promise_ahead = Some(epoch);
        }
        may
    }

    /// The epoch of [`promise_ahead`](Self::promise_ahead), once its promise is durable and the log
    /// rests.
    #[must_use]
    pub fn promised_ahead(&self) -> Option<Epoch> {
        self.promise_ahead.filter(|epoch| *epoch <= self.promised && self.quiescent())
    }

    /// Persists a promise of `epoch`, after which lower ones are refused forever (R1).
    pub(crate) fn promise(&mut self, epoch: Epoch) {
        if epoch > self.promise_wanted {
            self.promise_wanted = epoch;
            self.effects.push_back(Effect::Promise(epoch));
        }
    }

    pub(crate) fn continue_promotion(&mut self) {
        self.begin_epoch();
        self.append_epoch_start();
    }

    /// Begins the epoch once its promise is durable and nothing is under way in the own journal.
    fn begin_epoch(&mut self) {
        let ready = self.role == Role::Promoting
            && self.epoch_start.is_none()
            && (self.promised >= self.epoch || planted(Bug::PromiseNotAwaited))
            && self.quiescent();
        if !ready {
            return;
        }
        reach!("replica: an epoch starts");
        if self.log.commit < self.log.end.index {
            reach!("replica: an epoch starts after entries whose fate is open");
        }
        let end = self.log.end.index;
        self.epoch_start = Some(end.next());
        self.sequence.sealed.begin(end, self.now);
        self.adopt_newest();
    }

    fn append_epoch_start(&mut self) {
        let next = self.log.end.index.next();
        if self.role != Role::Promoting || self.epoch_start != Some(next) {
            return;
        }
        if self.room_with_reserve < HEADER_BLOCK_BYTES as u64 {
            reach!("replica: the own epoch start waits for room in the journal");
            return;
        }
        self.append_own(std::iter::once(NewEntry {
            kind: EntryKind::EpochStart,
            range: Range { volume: VolumeId(0), offset: 0, len: 0 },
            payload: Bytes::new(),
            session: 0,
            request: 0,
        }));
        if planted(Bug::ServeAtOnce) {
            self.serve();
        }
    }

    /// The epoch start is committed.
    pub(crate) fn serve(&mut self) {
        reach!("replica: the epoch start is committed");
        self.set_role(Role::Primary);
        self.unpark();
        let nodes: Vec<_> = self.peers.keys().copied().collect();
        for node in nodes {
            self.begin_copy(node);
        }
    }

    /// Gives up the epoch because a replica has promised a higher one: no entry of this epoch can
    /// be committed any more.
    pub(crate) fn outlived(&mut self, _by: Epoch) {
        self.give_up(Some(Fence::Outlived), RequestError::NotPrimary);
    }

    /// Ceases to be primary. Uncommitted requests fail. They may or may not survive, as after a
    /// crash.
    pub(crate) fn give_up(&mut self, fence: Option<Fence>, error: RequestError) {
        self.fail_requests(error);
        self.peers.clear();
        self.commit_owed = None;
        self.epoch_start = None;
        self.own.led();
        self.pause_wanted = false;
        self.paused = false;
        self.forget_copies();
        self.fence(fence);
    }

    /// Follows, or waits behind a fence.
    pub(crate) fn fence(&mut self, fence: Option<Fence>) {
        self.fence = fence;
        self.set_role(if fence.is_some() { Role::Fenced } else { Role::Secondary });
    }

    pub(crate) fn on_lease_ended(&mut self) {
        if self.leading() && !planted(Bug::LeadsOnAfterLease) {
            reach!("replica: the lease ended while it led");
            self.give_up(Some(Fence::LeaseEnded), RequestError::NotPrimary);
        }
    }

    pub(crate) fn on_demote(&mut self) {
        match self.role {
            Role::Primary => {
                reach!("replica: a primary is demoted");
                self.sequence.demoting = true;
                self.paused = false;
            }
            Role::Promoting => {
                reach!("replica: demoted before it served");
                self.demoted();
            }
            Role::Secondary | Role::Fenced => self.effects.push_back(Effect::Demoted),
        }
    }

    /// Ends a demotion when everything admitted is finished.
    pub(crate) fn continue_demotion(&mut self) {
        if self.role == Role::Primary && self.sequence.demoting && self.sequence.finished() {
            reach!("replica: a demotion is complete");
            self.tell_commit();
            self.demoted();
        }
    }

    fn demoted(&mut self) {
        self.give_up(Some(Fence::Demoted), RequestError::NotPrimary);
        self.effects.push_back(Effect::Demoted);
    }

    /// R13: nothing is acknowledged any more, in any role.
    pub(crate) fn on_store_failed(&mut self) {
        if self.failed {
            return;
        }
        reach!("replica: the store failed");
        if self.leading() {
            reach!("replica: the store of a primary failed");
        }
        self.failed = true;
        self.give_up(Some(Fence::StoreFailed), RequestError::StoreFailed);
        self.reject(mainstay_codec::Reject::Failed);
        self.drop_session();
    }
}
