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

use crate::peer::Link;
use crate::{Effect, Replica, Role};
use mainstay_codec::Message;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, NodeId, reach};

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
        stream.acknowledged(durable);
        peer.durable = durable;
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
                to = to.min(peer.durable);
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

    /// Tells the commit index to peers that will not learn it from the next batch. It rides on the batch when one
    /// is about to be sealed; an idle primary says it at once.
    pub(crate) fn tell_commit(&mut self) {
        let commit = self.log.commit;
        let rides = self.serving()
            && !self.sequence.nothing_open()
            && !self.paused
            && self.log.end.index > self.log.durable;
        let next = self.log.end.index.next();
        let mut to = Vec::new();
        for (node, peer) in &mut self.peers {
            if peer.told >= commit {
                continue;
            }
            let Some(stream) = peer.stream() else { continue };
            if rides && stream.next == next && stream.sent_bytes < self.config.window_bytes {
                continue;
            }
            reach!("replica: a commit index is told alone");
            peer.told = commit;
            to.push(*node);
        }
        for node in to {
            self.send_as_primary(node, Message::Commit { commit });
        }
    }
}
