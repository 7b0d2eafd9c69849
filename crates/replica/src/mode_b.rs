//! Mode B: a write is acknowledged when every required replica, the primary included, has it in
//! memory. A flush waits for their journals.
//!
//! So an acknowledged entry need not be committed. A replica says
//! [`Received`](mainstay_codec::Message::Received) when it has checked a batch and given it to its
//! journal. It says `Ack` when the batch is durable, as in every mode. Commits, cuts and promotions
//! stay as they are (R2, R5, R7). An entry that is acknowledged and not committed is in the log of
//! every required replica, though perhaps in no journal yet.
//!
//! A replica that lost its memory may lack entries that it had acknowledged. So the record names
//! for each member the *instance* in which its memory counts:
//!
//! ```text
//!                   mode B, streaming, its journal has all that was acknowledged
//!   durable only ──────────────────────────────────────────────────────────────▶ counts in instance o
//!        ▲                                                                        │   │
//!        └────────────────────────────────────────────────────────────────────────┘   │ opened anew
//!             another mode, and its journal has all that was acknowledged             ▼
//!   counts in instance p ◀──────────────────────────────────────────── unproven: not promotable (R5)
//!                        its journal has all that was acknowledged
//! ```
//!
//! The primary takes every edge but the loss by a compare-and-set. All these edges have one
//! condition: the acknowledged entries are durable at the member.
//!
//! An edge towards an instance counts from when the primary has learnt of it, as in R4. Otherwise a
//! member that lost its memory could be promoted as if it had not. An edge away from an instance
//! counts from when it was proposed, as in R3: from then on the primary waits for journals. So at
//! every moment each recorded member either holds every acknowledged entry, durably or in the
//! instance that the record names, or is not promotable.
//!
//! The mode may change at any moment. The members then take the same edges, one by one. While the
//! record names an instance, entries that were acknowledged from memory may not be durable
//! everywhere.
//!
//! An entry is acknowledged from memory only if the users of the devices know that they have to
//! flush ([`Event::Cached`](crate::Event::Cached)).
//!
//! Reads wait for uncommitted entries, as in every mode (`sequence.rs`). So content that was read
//! once is never lost.

use crate::peer::{Link, Peer};
use crate::{Effect, Replica};
use mainstay_codec::Message;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    Index, Instance, IssChange, Mode, NodeId, Position, Proposal, ProposedChange, Time, reach,
};

impl Replica {
    /// Whether memory is to count: the mode says so, and users of the devices know that they have
    /// to flush.
    fn in_mode_b(&self) -> bool {
        // Clients outlive a primary that loses its memory.
        self.cached && self.mode() == Mode::B && self.attached().is_none()
    }

    /// Mode B, or instances are left of it.
    fn memory_matters(&self) -> bool {
        self.record
            .as_ref()
            .is_some_and(|record| record.policy.mode() == Mode::B || !record.instances.is_empty())
    }

    /// Whether the record says that what this replica has in memory counts, in this instance.
    fn counts_memory(&self, node: NodeId, instance: Instance) -> bool {
        let recorded = self.record.as_ref().and_then(|record| record.instances.get(&node)) == Some(&instance);
        instance != Instance(0) && (recorded || planted(Bug::MemoryCountedTooEarly))
    }

    /// Everything up to here may have been acknowledged in this epoch.
    #[must_use]
    pub fn answered(&self) -> Index {
        self.answered.max(self.log.commit)
    }

    /// The place in the log of a write that was acknowledged and is not committed, or is under way.
    #[must_use]
    pub fn uncommitted_index(&self, id: crate::RequestId) -> Option<Index> {
        self.sequence.index_of(id)
    }

    /// Index up to which a required peer holds the log: durably, or also in memory where its memory
    /// counts.
    fn held_by(&self, peer: &Peer) -> Index {
        match peer.instance {
            Some(instance) if self.counts_memory(peer.member.node, instance) => {
                peer.received.max(peer.durable)
            }
            _ => peer.durable,
        }
    }

    /// Index up to which this replica holds the log: durably, or also in memory where its memory
    /// counts.
    fn held_here(&self) -> Index {
        let counts = self.counts_memory(self.config.node, self.config.instance);
        if counts { self.log.end.index } else { self.log.durable }
    }

    /// Acknowledges what every required replica has in memory.
    pub(crate) fn answer_from_memory(&mut self) {
        if !self.in_mode_b() || !self.serving() || self.held_for_copies() {
            return;
        }
        let required = self.peers.values().filter(|peer| peer.required());
        let to = required.map(|peer| self.held_by(peer)).fold(self.held_here(), Index::min);
        if to <= self.answered() {
            return;
        }
        reach!("replica: acknowledged from memory");
        self.answered = to;
        while let Some(id) = self.sequence.in_flight.answer(to) {
            self.effects.extend(id.map(|id| Effect::Complete { id, result: Ok(()) }));
        }
    }

    /// Whether sealing waits. It waits while the newest batch is neither in the journal nor
    /// acknowledged, and too little has gathered for another journal write. It also waits while too
    /// much is acknowledged and not committed (R18).
    pub(crate) fn seal_waits(&self) -> bool {
        let (end, durable) = (self.log.end.index, self.log.durable);
        if end <= durable {
            return false;
        }
        let limits = (self.config.journal_writes_max, self.config.journal_write_bytes_max);
        let beside = || {
            self.sequence.worth_another_batch(self.own.least_us())
                && self.sequence.written_at_once(durable, limits)
        };
        end > self.answered && !beside() || self.sequence.in_flight.cached_bytes() > self.config.window_bytes
    }

    /// A peer has the log in memory up to `index`. This counts only on a stream of this epoch, and
    /// only for entries that were sent (R1).
    pub(crate) fn on_received(&mut self, from: NodeId, instance: Instance, index: Index) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let Some(stream) = peer.stream() else { return };
        if index >= stream.next {
            reach!("replica: a receipt of what was not sent");
            return;
        }
        peer.instance = Some(instance);
        peer.received = peer.received.max(index);
        if planted(Bug::ReceivedCountsAsCommitted) {
            self.advance_commit();
        }
    }

    /// Tells the primary how far this secondary holds the log in memory. Does so only in mode B and
    /// in an instance that can count.
    pub(crate) fn tell_received(&mut self) {
        if self.mode() != Mode::B || self.config.instance == Instance(0) {
            return;
        }
        if self.session.as_ref().is_some_and(|session| session.attached) {
            let (instance, index) = (self.config.instance, self.log.end.index);
            self.answer(Message::Received { instance, index });
        }
    }

    /// In which instance the memory of this member is to count from now on, if that is to change
    /// and may.
    pub(crate) fn memory_change(&self, peer: &Peer) -> Option<Option<Instance>> {
        if !self.memory_matters() {
            return None;
        }
        self.change_for(peer.member.node, peer.instance, peer.durable)
            .filter(|_| peer.fed_whole() && peer.is_member())
    }

    fn change_for(
        &self,
        node: NodeId,
        instance: Option<Instance>,
        durable: Index,
    ) -> Option<Option<Instance>> {
        let record = self.record.as_ref()?;
        let recorded = record.instances.get(&node).copied();
        if recorded.is_none() && record.policy.mode() != Mode::B {
            return None;
        }
        let known = instance.filter(|instance| *instance != Instance(0));
        let wanted = if self.in_mode_b() { Some(known?) } else { None };
        let settled = durable >= self.answered() || (wanted.is_none() && planted(Bug::SettledTooEarly));
        (wanted != recorded && settled && self.serving()).then_some(wanted)
    }

    /// The same for the primary itself.
    pub(crate) fn review_own_memory(&mut self) {
        if !self.memory_matters() {
            return;
        }
        let (node, instance) = (self.config.node, self.config.instance);
        let Some(change) = self.change_for(node, Some(instance), self.log.durable) else { return };
        let (version, now) = (self.version(), self.now);
        if self
            .own_memory_asked
            .is_some_and(|(asked, at)| asked == version && at.plus_ms(self.config.proposal_repeat_ms) > now)
        {
            return;
        }
        let member = self.record.as_ref().and_then(|record| record.iss_member(node));
        let Some(member) = member else { return };
        self.own_memory_asked = Some((version, now));
        let epoch = self.epoch;
        let change = ProposedChange::Iss(IssChange::Memory { member, instance: change });
        self.effects.push_back(Effect::Propose(Proposal { version, epoch, change }));
    }

    /// When that is proposed again.
    pub(crate) fn own_memory_deadline(&self) -> Option<Time> {
        let (asked, at) = self.own_memory_asked?;
        let due = asked == self.version()
            && self.change_for(self.config.node, Some(self.config.instance), self.log.durable).is_some();
        due.then(|| at.plus_ms(self.config.proposal_repeat_ms))
    }

    /// Whether this replica may hold everything that was acknowledged, as far as its memory goes
    /// (R5).
    pub(crate) fn is_proven(&self) -> bool {
        self.reopened_at().is_none() || planted(Bug::InstanceNotChecked)
    }

    fn reopened_at(&self) -> Option<Position> {
        let recorded = self.record.as_ref()?.instances.get(&self.config.node)?;
        (*recorded != self.config.instance).then_some(self.log.end)
    }

    /// End of the log, if this replica does not lead and the record counts on its memory of another
    /// instance.
    #[must_use]
    pub fn reopened(&self) -> Option<Position> {
        self.reopened_at().filter(|_| !self.leading())
    }

    /// In mode B, how many acknowledgements there are to wait for; `None` when there are none, or
    /// it is another mode.
    pub(crate) fn awaited_in_memory(&self) -> Option<usize> {
        if !self.in_mode_b() || !self.serving() {
            return None;
        }
        let end = self.log.end.index;
        let lacks = |peer: &&Peer| {
            peer.required() && matches!(peer.link, Link::Streaming(_)) && self.held_by(peer) < end
        };
        let lacking = usize::from(self.held_here() < end) + self.peers.values().filter(lacks).count();
        (lacking > 0).then_some(lacking)
    }
}
