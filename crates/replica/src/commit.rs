//! The commit index (R2): an entry is committed when the primary and every member of its required
//! set hold the log durably up to it. Required are the members of the recorded ISS and every
//! joiner.
//!
//! This holds also for entries of older epochs, even before the log has the epoch start. In Raft it
//! would not hold (Ongaro and Ousterhout, 2014, section 5.4.2): there an entry that a majority
//! holds may still lose against the log of another server. Here all required members hold the
//! entry, and the primary has attached each of them in this epoch. Such a member has promised the
//! epoch, and its log is cut to a prefix of the primary's. No lower epoch can cut what it holds any
//! more. A replica that is promoted later is one of these members (R5). So no later log lacks the
//! entry. `spec/` checks it.
//!
//! The rule matters when failed promotions have filled a journal (R18). Their entries are
//! committed, destaged and trimmed as soon as the required set is attached, and the epoch start
//! finds room.

use crate::peer::{Link, Peer};
use crate::{Effect, Replica};
use mainstay_codec::Message;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, NodeId, Role, Time, reach};

impl Replica {
    /// A peer says how far it holds the log durably. This counts only on a stream of this epoch,
    /// and only for entries that were sent (R1).
    pub(crate) fn on_ack(&mut self, from: NodeId, durable: Index) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let known = peer.durable;
        let Some(stream) = peer.stream() else { return };
        if durable >= stream.next || durable <= known {
            reach!("replica: an acknowledgement that says nothing new");
            return;
        }
        let sent_at = stream.acknowledged(durable);
        peer.durable = durable;
        peer.known = durable;
        peer.slow.acknowledged(sent_at, now, self.slow_limits.for_ms);
        peer.progress_at = now;
        self.advance_commit();
        self.pump(from);
    }

    /// Moves the commit index as far as the required set allows.
    pub(crate) fn advance_commit(&mut self) {
        let Some(epoch_start) = self.epoch_start else { return };
        let mut to = self.log.durable;
        if !planted(Bug::CommitAlone) {
            for peer in self.peers.values().filter(|peer| peer.required()) {
                if planted(Bug::CommitWithoutDisconnected) && matches!(peer.link, Link::Down) {
                    continue;
                }
                let received = planted(Bug::ReceivedCountsAsCommitted).then_some(peer.received);
                to = to.min(received.unwrap_or_default().max(peer.durable));
            }
        }
        let alone = self.log.durable >= epoch_start && planted(Bug::EpochStartAlone);
        if alone && self.role == Role::Promoting {
            self.serve();
        }
        if !self.log.commit_to(to) {
            reach!("replica: the commit index cannot move yet");
            return;
        }
        self.effects.push_back(Effect::Commit(self.log.commit));
        if let Some(since) = self.sequence.take_watched(self.log.commit) {
            self.background.committed(since, self.now);
        }
        self.complete_committed();
        if self.role != Role::Promoting {
            return;
        }
        // R6
        if self.log.commit >= epoch_start {
            self.serve();
        } else {
            reach!("replica: what older epochs left behind is committed before the epoch start");
        }
    }

    /// Tells the commit index to peers that do not learn it from the next batch. If a batch is
    /// about to be sealed, that batch carries the index. Otherwise the message waits a moment for a
    /// batch that may come. Without this wait, a client that writes one block after the other would
    /// cost a message to every peer, and two wake-ups of a peer, for each write. The message goes
    /// at once when requests wait for it: because writes are held, or because the journals have no
    /// room.
    pub(crate) fn tell_commit(&mut self) {
        let commit = self.log.commit;
        let writes = self.serving() && !self.sequence.nothing_open() && !self.paused;
        let journal_free = self.log.end.index == self.log.durable;
        let rides = writes && !journal_free;
        let waited = self.commit_due(self.commit_owed.unwrap_or(self.now)) <= self.now;
        let at_once = waited || self.paused || self.sequence.demoting || (writes && journal_free);
        let next = self.log.end.index.next();
        // A scrub waits for the replicas that apply its entry.
        let scrubbed = self.scrub.awaited(commit);
        let mut owed = false;
        let mut to = std::mem::take(&mut self.told);
        for (node, peer) in &mut self.peers {
            if peer.told >= commit {
                continue;
            }
            let Some(stream) = peer.stream() else { continue };
            if rides && stream.next == next && stream.sent_bytes < self.config.window_bytes {
                continue;
            }
            if !at_once && scrubbed.is_none_or(|at| peer.told >= at) {
                owed = true;
                continue;
            }
            reach!("replica: a commit index is told alone");
            peer.told = commit;
            to.push(*node);
        }
        for node in to.drain(..) {
            self.send_as_primary(node, Message::Commit { commit });
        }
        self.told = to;
        self.commit_owed = if owed { self.commit_owed.or(Some(self.now)) } else { None };
    }

    /// When the commit index that is owed since then is told alone.
    fn commit_due(&self, since: Time) -> Time {
        since.plus_ms(self.config.commit_tell_ms)
    }

    /// When [`tell_commit`](Self::tell_commit) has something to tell, if nothing is written before.
    pub(crate) fn commit_deadline(&self) -> Option<Time> {
        self.commit_owed.map(|since| self.commit_due(since))
    }

    /// Number of events that have to come before this replica can go on with what was sequenced.
    ///
    /// - While requests wait to be sequenced: 1, the write of its own journal.
    /// - Otherwise the write of its own journal and the acknowledgements of required peers that the
    ///   oldest batch still needs.
    /// - In mode B: acknowledgements of everything from memory.
    /// - On a replica that does not lead: 1 while it does something that another replica waits for.
    /// - 0 when nothing is under way.
    #[must_use]
    pub fn awaited(&self) -> usize {
        if self.failed {
            return 0;
        }
        let end = self.log.end.index;
        if !self.leading() {
            return usize::from(self.works_for_others());
        }
        if let Some(lacking) = self.awaited_in_memory() {
            return lacking;
        }
        if !self.sequence.nothing_open() {
            // The own journal, or what makes room for more.
            return 1;
        }
        let end = self.sequence.sealed.end_after(self.log.commit).unwrap_or(end);
        let lacks =
            |peer: &&Peer| peer.required() && peer.durable < end && matches!(peer.link, Link::Streaming(_));
        usize::from(self.log.durable < end) + self.peers.values().filter(lacks).count()
    }
}
