//! The commit index (R2): an entry is committed when the primary and every member of its required set are durable
//! up to it. Required are the members of the recorded ISS and every joiner.
//!
//! That holds for what older epochs left behind as well, and before the epoch start is in the log. In Raft it would not
//! (Ongaro and Ousterhout, 2014, section 5.4.2): there an entry that a majority holds may still lose against the log of
//! one of the others. Here all required members hold it, each attached in this epoch: it has promised the epoch, its log is
//! cut to a prefix of this one, and what it holds no lower epoch can cut any more. Whoever is promoted later is one of
//! them (R5). So no later log lacks the entry. `spec/` checks it.
//!
//! It matters when a journal is full of what failed promotions left behind (R18): that is committed, destaged and
//! trimmed as soon as the required set is attached, and the epoch start finds room.

use crate::peer::{Link, Peer};
use crate::{Effect, Replica};
use mainstay_codec::Message;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, NodeId, Role, Time, reach};

impl Replica {
    /// A peer says what it holds durably. Counts only on a stream of this epoch, and only for what was sent (R1).
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
        peer.slow.acknowledged(sent_at, now, self.config.slow.for_ms);
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

    /// Tells the commit index to peers that do not learn it from the next batch. It rides on the batch when one is about to be
    /// sealed, and waits a moment for one that may come: whoever writes one block after the other would else pay for a
    /// message to every peer, and a peer would wake up twice for every write. At once when somebody waits for it: because
    /// writes are held, or the journals have no room.
    pub(crate) fn tell_commit(&mut self) {
        let commit = self.log.commit;
        let writes = self.serving() && !self.sequence.nothing_open() && !self.paused;
        let journal_free = self.log.end.index == self.log.durable;
        let rides = writes && !journal_free;
        let waited = self.commit_due(self.commit_owed.unwrap_or(self.now)) <= self.now;
        let at_once = waited || self.paused || self.sequence.demoting || (writes && journal_free);
        let next = self.log.end.index.next();
        // A scrub waits for those who apply its entry.
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

    /// How many things have to happen before there is something to do for what was sequenced: a write of the own journal and
    /// the acknowledgements of required peers before the oldest batch is committed, or the former alone while more waits to be
    /// sequenced; in mode B acknowledgements of everything from memory. 1 for who does not lead and does something that
    /// another replica waits for. 0 when nothing is under way.
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
