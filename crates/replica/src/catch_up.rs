//! Catch-up from the journal. The primary attaches a peer, cuts the peer's log to the last common
//! position, and feeds it the entries that it lacks. A feed is at most one window ahead of the
//! peer's acknowledgements, and loads one part of the log at a time (R18).

use crate::peer::{Link, Stream};
use crate::{Effect, Fence, Replica, RequestError};
use mainstay_codec::{Batch, LogState, Message, Reject};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{DataState, Index, Member, NodeId, Position, reach};
use std::sync::Arc;

impl Replica {
    /// Attaches every peer that is connected and not yet spoken to in this epoch.
    pub(crate) fn attach_connected(&mut self) {
        if self.epoch_start.is_none() {
            return;
        }
        let waiting: Vec<NodeId> = self
            .peers
            .iter()
            .filter(|(node, peer)| matches!(peer.link, Link::Down) && self.connected.contains(node))
            .map(|(node, _)| *node)
            .collect();
        for node in waiting {
            self.attach(node);
        }
    }

    pub(crate) fn attach(&mut self, node: NodeId) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&node) else { return };
        reach!("replica: a peer is attached");
        peer.forget_held();
        peer.told = Index(0);
        peer.diverged = None;
        peer.set_link(Link::Attaching, now);
        self.send_as_primary(node, Message::Attach);
    }

    /// A peer has promised this epoch and shows its log.
    pub(crate) fn on_attach_reply(&mut self, from: NodeId, state: &LogState) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if !matches!(peer.link, Link::Attaching) {
            return;
        }
        peer.base = state.base;
        let member = peer.member;
        if self.unverified(member) && !self.log.continues(state) {
            return self.diverges(from, state);
        }
        if state.data == DataState::Consistent && self.log.lacks_committed(state) {
            // R7, R12: it was promoted although it is an older copy of what it was.
            reach!("replica: a peer knows to be committed what the own log lacks");
            self.older = true;
            return self.give_up(Some(Fence::Older), RequestError::NotPrimary);
        }
        let Some(peer) = self.peers.get_mut(&from) else { return };
        let consistent = state.data == DataState::Consistent && !peer.damaged;
        // R7: what the peer knows to be committed is in every later log, so it is never cut. A
        // common position below it only says that the lists of epochs do not reach back far enough.
        let common = self.log.last_common(state).filter(|common| consistent && common.index >= state.commit);
        match common {
            None => {
                reach!("replica: a peer has nothing in common and needs a copy");
                peer.set_link(Link::Stale, now);
                self.begin_copy(from);
            }
            Some(common) if common == state.end || planted(Bug::NoCut) => {
                if common == self.log.end && state.chain != self.log.chain {
                    reach!("replica: a peer's log differs at its end");
                    self.damaged(from);
                    return;
                }
                reach!("replica: a peer needs no cut");
                peer.start_stream(common, None, now);
                self.advance_commit();
                self.pump(from);
            }
            Some(common) => {
                reach!("replica: a peer's tail must be cut");
                peer.set_link(Link::Cutting { to: common }, now);
                let chain = (common == self.log.end).then_some(self.log.chain);
                self.send_as_primary(from, Message::Cut { to: common, chain });
            }
        }
    }

    /// Whether the record doubts the peer: it was a member when a promotion was forced, and no
    /// primary has found its log sound since.
    pub(crate) fn unverified(&self, member: Member) -> bool {
        self.record.as_ref().is_some_and(|record| record.unverified.contains(&member))
            && !planted(Bug::DoubtForgotten)
    }

    /// R11: the peer's log may hold entries that were taken out of the history. So may its volumes:
    /// entries that were committed then could be destaged, and its commit index may be lower now.
    /// What the peer lacks cannot be told, so nothing is cut and no copy is made over it. It has to
    /// leave and to begin anew.
    fn diverges(&mut self, node: NodeId, state: &LogState) {
        reach!("replica: a peer is of another history since a forced promotion");
        let common = self.log.last_common(state).unwrap_or_default();
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.diverged = Some((common, state.end));
            peer.set_link(Link::Refused, now);
        }
    }

    pub(crate) fn on_cut_reply(&mut self, from: NodeId, end: Position) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(&from) else { return };
        match peer.link {
            Link::Cutting { to } if to == end => {
                reach!("replica: a peer has cut its tail");
                peer.start_stream(to, None, now);
                self.advance_commit();
                self.pump(from);
            }
            _ => {}
        }
    }

    pub(crate) fn on_rejected(&mut self, from: NodeId, reject: Reject) {
        if let Reject::Epoch(epoch) = reject {
            if epoch > self.epoch {
                reach!("replica: a peer knows a higher epoch");
                self.outlived(epoch);
            }
            return;
        }
        if reject == Reject::Chain {
            reach!("replica: a peer finds another history");
            self.damaged(from);
            return;
        }
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&from) {
            reach!("replica: a peer refuses");
            // Its log is good, but its volumes cannot take the content that the entry names. So it
            // needs a copy.
            peer.damaged |= reject == Reject::Snapshot;
            if reject == Reject::Unknown {
                // The replica that is opened there next may have other files, or lack the content
                // of its memory (R1).
                peer.forget_held();
            }
            peer.set_link(Link::Refused, now);
        }
    }

    /// The peer's log and ours differ where they should be equal: it needs a copy.
    fn damaged(&mut self, node: NodeId) {
        let now = self.now;
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.damaged = true;
            peer.set_link(Link::Refused, now);
        }
    }

    /// Loads the entries that the peer lacks, as far as the window allows.
    pub(crate) fn pump(&mut self, node: NodeId) {
        let end = self.log.end.index;
        let lags = |stream: &Stream| stream.next <= end && stream.loading.is_none();
        if !self.peers.get_mut(&node).and_then(|peer| peer.stream()).is_some_and(|stream| lags(stream)) {
            return;
        }
        let window = self.feed_window(node);
        let Some(stream) = self.peers.get_mut(&node).and_then(|peer| peer.stream()) else { return };
        if stream.sent_bytes >= window {
            return;
        }
        reach!("replica: a peer is fed from the journal");
        let from = stream.next;
        stream.loading = Some(from);
        let max_bytes = window - stream.sent_bytes;
        self.effects.push_back(Effect::LoadLog { peer: node, from, max_bytes });
    }

    pub(crate) fn on_log_loaded(&mut self, node: NodeId, from: Index, batches: Option<Vec<Arc<Batch>>>) {
        let now = self.now;
        let fed = self.peers.get(&node).is_some_and(|peer| self.is_fed(peer));
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let known = peer.durable;
        let Some(stream) = peer.stream() else { return };
        if stream.loading != Some(from) {
            reach!("replica: a load without a waiting peer");
            return;
        }
        stream.loading = None;
        let Some(batches) = batches.filter(|batches| !batches.is_empty()) else {
            // The journal has let it go: the extents themselves must be copied.
            reach!("replica: the journal no longer reaches back to a peer");
            peer.set_link(Link::Stale, now);
            self.begin_copy(node);
            return;
        };
        let (mut to_send, mut bytes) = (Vec::with_capacity(batches.len()), 0);
        for batch in batches {
            let Some(stream) = peer.stream() else { break };
            // A load that was asked for in an earlier epoch may hold entries that were cut since.
            if batch.first != stream.next || !self.log.holds(batch.end()) {
                reach!("replica: a load of what was cut since");
                break;
            }
            stream.sent(batch.last(), batch.journal_len(), now);
            bytes += batch.journal_len();
            to_send.push(batch);
        }
        if fed {
            self.background.spend(now, bytes, true);
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if known.next() == from {
            peer.progress_at = now;
        }
        for batch in to_send {
            self.send_as_primary(node, Message::Append(batch));
        }
        self.pump(node);
    }
}
