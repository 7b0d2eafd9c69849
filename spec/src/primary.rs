//! A replica as primary: promotion (R5, R6), the required set (R2, R3, R4), the commit index.
//! Code: `replica/src/{promote,commit,membership,catch_up,copy}.rs`.

use crate::model::Spec;
use crate::rules::Mutation;
use crate::state::{Back, Link, Out, State, VERSIONS, Violation, has, with, without};

impl Spec {
    /// The primary learns a version of the record that names it, in an epoch above every epoch that
    /// it promised. It promises the epoch and appends the epoch start. The two are one step,
    /// because a crash between them leaves the same as one after them.
    pub(crate) fn begin(&self, state: &State, epoch: u8, ahead: u8) -> Option<State> {
        let era = state.era(epoch);
        let node = era.node;
        let replica = state.node(node);
        if ahead >= era.count || replica.leads >= epoch {
            return None;
        }
        let resumes = self.planted(Mutation::ResumeEpoch) && epoch == replica.promised && replica.leads == 0;
        if epoch <= replica.promised && !resumes {
            return None;
        }
        let version = era.versions[usize::from(ahead)];
        let registered =
            has(version >> 4, node) == replica.second || self.planted(Mutation::IgnoreIncarnation);
        let quiescent = replica.durable == replica.log.end();
        if !has(version & 15, node) || !registered || !replica.whole || !quiescent {
            return None;
        }
        let mut next = *state;
        let replica = next.node_mut(node);
        replica.step_back();
        replica.promised = epoch;
        replica.promised_durably = epoch;
        replica.session = 0;
        replica.leads = epoch;
        replica.in_iss = without(version & 15, node);
        replica.serves = self.planted(Mutation::ServeAtOnce);
        forget_older(&mut next, epoch, ahead);
        sequence(&mut next, node, epoch);
        Some(next)
    }

    /// The primary learns a newer version of its own epoch.
    pub(crate) fn learn(&self, state: &State, node: u8, ahead: u8) -> Option<State> {
        let epoch = state.node(node).leads;
        if epoch == 0 || ahead == 0 || ahead >= state.era(epoch).count {
            return None;
        }
        let mut next = *state;
        let old = next.era(epoch).versions[0];
        forget_older(&mut next, epoch, ahead);
        let version = next.era(epoch).versions[0];
        let replica = next.node_mut(node);
        replica.in_iss = without(version & 15, node);
        replica.joining &= !replica.in_iss;
        // A change that was proposed on an older version cannot happen any more.
        replica.proposed = 0;
        let renewed = (old ^ version) >> 4;
        for peer in (0..self.bounds.nodes).filter(|peer| has(renewed, *peer)) {
            // Another disk is another peer (R9).
            let replica = next.node_mut(node);
            replica.joining = without(replica.joining, peer);
            replica.copying = without(replica.copying, peer);
            *next.talk_mut(epoch, peer) = Default::default();
        }
        self.advance_commit(&mut next, node);
        Some(next)
    }

    /// The primary learns that the record has gone on without it.
    pub(crate) fn renounce(&self, state: &State, node: u8) -> Option<State> {
        let epoch = state.node(node).leads;
        if epoch == 0 || !state.over(epoch) {
            return None;
        }
        let mut next = *state;
        next.node_mut(node).step_back();
        Some(next)
    }

    /// The primary is asked to stop, for a planned move.
    pub(crate) fn demote(&self, state: &State, node: u8) -> Option<State> {
        let epoch = state.node(node).leads;
        if epoch == 0 || state.over(epoch) || epoch >= self.bounds.epochs {
            return None;
        }
        let mut next = *state;
        next.node_mut(node).step_back();
        Some(next)
    }

    /// A client writes. One batch is under way in the own journal at a time.
    pub(crate) fn write(&self, state: &State, node: u8) -> Option<State> {
        let replica = state.node(node);
        if !replica.serves || state.budget.writes == 0 || replica.durable < replica.log.end() {
            return None;
        }
        let mut next = *state;
        next.budget.writes -= 1;
        sequence(&mut next, node, replica.leads);
        Some(next)
    }

    /// The own journal has everything that was appended.
    pub(crate) fn flush(&self, state: &State, node: u8) -> Option<State> {
        let replica = state.node(node);
        if replica.durable == replica.log.end() {
            return None;
        }
        let mut next = *state;
        let replica = next.node_mut(node);
        replica.durable = replica.log.end();
        if replica.leads > 0 {
            self.advance_commit(&mut next, node);
        }
        Some(next)
    }

    /// Makes a new connection to a peer. Messages under way on the old one are lost, in both
    /// directions. That is the only way in which messages are lost, because within a connection
    /// none is.
    pub(crate) fn attach(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let epoch = state.node(node).leads;
        if epoch == 0 || node == peer {
            return None;
        }
        let talk = state.talk(epoch, peer);
        let attaching = talk.link == Link::Attaching && talk.out == Out::Attach;
        let refused = state.node(peer).promised > epoch && !self.planted(Mutation::NoEpochCheck);
        let registered = has(state.era(epoch).versions[0] >> 4, peer) == state.node(peer).second;
        let pointless = !self.bounds.reconnects && state.node(peer).session == epoch;
        if attaching || refused || pointless || !(registered || self.planted(Mutation::IgnoreIncarnation)) {
            return None;
        }
        let mut next = *state;
        let talk = next.talk_mut(epoch, peer);
        (talk.link, talk.at, talk.out, talk.back) = (Link::Attaching, 0, Out::Attach, Back::Nothing);
        let replica = next.node_mut(node);
        replica.copying = without(replica.copying, peer);
        Some(next)
    }

    /// The primary of `epoch` hears what `peer` answered.
    pub(crate) fn answered(&self, state: &State, epoch: u8, peer: u8) -> Option<State> {
        let talk = *state.talk(epoch, peer);
        let node = state.era(epoch).node;
        if talk.back == Back::Nothing || state.node(node).leads != epoch {
            return None;
        }
        let end = state.era(epoch).log.end();
        let mut next = *state;
        let talk = next.talk_mut(epoch, peer);
        let back = std::mem::take(&mut talk.back);
        let stream_from = match back {
            Back::AttachReply { whole: false, .. } => {
                talk.link = Link::Stale;
                None
            }
            Back::AttachReply { end: theirs, .. } if self.planted(Mutation::NoCut) => Some(theirs.min(end)),
            Back::AttachReply { common, end: theirs, .. } if common < theirs => {
                (talk.link, talk.at, talk.out) = (Link::Cutting, common, Out::Cut(common));
                None
            }
            Back::AttachReply { common, .. } => Some(common),
            Back::CutReply(to) => (talk.link == Link::Cutting && talk.at == to).then_some(to),
            Back::Ack(durable) => {
                if talk.link == Link::Streaming {
                    talk.at = talk.at.max(durable.min(end));
                }
                None
            }
            Back::Nothing => None,
        };
        if let Some(at) = stream_from {
            (talk.link, talk.at, talk.out) = (Link::Streaming, at, Out::Entries);
        }
        self.advance_commit(&mut next, node);
        Some(next)
    }

    /// The primary proposes to remove a member that it takes for failed (R3), or to rule out that a
    /// joiner becomes one. That is possible at any time: there is no clock.
    pub(crate) fn ask_shrink(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        if replica.leads == 0 || !has(replica.in_iss | replica.proposed, peer) {
            return None;
        }
        let lands =
            state.knows_newest(replica.leads) && state.budget.changes > 0 && !has(state.record.shrink, peer);
        let early = self.planted(Mutation::ShrinkBeforeKnown);
        if !lands && !early {
            return None;
        }
        let mut next = *state;
        if lands {
            next.record.shrink = with(next.record.shrink, peer);
        }
        if early {
            let replica = next.node_mut(node);
            replica.in_iss = without(replica.in_iss, peer);
            self.advance_commit(&mut next, node);
        }
        Some(next)
    }

    /// From now on commits wait for a peer that is being fed (R4).
    pub(crate) fn join(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        if !self.may_join(state, node, peer) || has(replica.joining, peer) {
            return None;
        }
        let mut next = *state;
        let replica = next.node_mut(node);
        replica.joining = with(replica.joining, peer);
        Some(next)
    }

    /// The primary proposes to record a joiner that has everything acknowledged (R4).
    pub(crate) fn ask_grow(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        if !self.may_join(state, node, peer)
            || !(has(replica.joining, peer) || self.planted(Mutation::GrowBeforeRequired))
            || state.budget.changes == 0
            || has(state.record.grow, peer)
            || !state.knows_newest(replica.leads)
        {
            return None;
        }
        let caught_up = state.talk(replica.leads, peer).at >= replica.commit;
        if !caught_up && !self.planted(Mutation::GrowBeforeCaughtUp) {
            return None;
        }
        let mut next = *state;
        next.record.grow = with(next.record.grow, peer);
        let replica = next.node_mut(node);
        if has(replica.joining, peer) {
            replica.proposed = with(replica.proposed, peer);
        }
        Some(next)
    }

    fn may_join(&self, state: &State, node: u8, peer: u8) -> bool {
        let replica = state.node(node);
        replica.serves
            && node != peer
            && !has(replica.in_iss, peer)
            && !has(replica.copying, peer)
            && state.talk(replica.leads, peer).link == Link::Streaming
    }

    /// The primary stops waiting for a joiner that failed, if the joiner cannot become recorded any
    /// more (R4).
    pub(crate) fn give_up_join(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        let possible = has(replica.proposed, peer) && !self.planted(Mutation::GiveUpJoin);
        if replica.leads == 0 || !has(replica.joining, peer) || possible {
            return None;
        }
        let mut next = *state;
        let replica = next.node_mut(node);
        replica.joining = without(replica.joining, peer);
        replica.proposed = without(replica.proposed, peer);
        self.advance_commit(&mut next, node);
        Some(next)
    }

    /// The journal does not reach back far enough: the target's log is begun anew at the commit
    /// index (R16). Source and target act in one step.
    pub(crate) fn begin_copy(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        let epoch = replica.leads;
        if !replica.serves || node == peer || has(replica.required(), peer) || has(replica.copying, peer) {
            return None;
        }
        let talk = state.talk(epoch, peer);
        let target = state.node(peer);
        let due = talk.link == Link::Stale || talk.link == Link::Streaming && state.budget.copies > 0;
        if !due || target.session != epoch || target.leads != 0 {
            return None;
        }
        let mut next = *state;
        let restarted = replica.log.prefix(replica.commit);
        let target = next.node_mut(peer);
        let was_whole = std::mem::take(&mut target.whole);
        target.log = restarted;
        target.durable = restarted.end();
        if was_whole {
            next.budget.copies = next.budget.copies.checked_sub(1)?;
        }
        let replica = next.node_mut(node);
        replica.copying = with(replica.copying, peer);
        let talk = next.talk_mut(epoch, peer);
        (talk.link, talk.at, talk.out) = (Link::Streaming, restarted.end(), Out::Entries);
        talk.back = Back::Nothing;
        Some(next)
    }

    /// The target is whole, and the source knows it.
    pub(crate) fn end_copy(&self, state: &State, node: u8, peer: u8) -> Option<State> {
        let replica = state.node(node);
        if !has(replica.copying, peer) || state.node(peer).session != replica.leads {
            return None;
        }
        let mut next = *state;
        next.node_mut(peer).whole = !self.planted(Mutation::CopyEndsEarly);
        let replica = next.node_mut(node);
        replica.copying = without(replica.copying, peer);
        Some(next)
    }

    /// R2: an entry is committed when the primary and its whole required set, attached in this
    /// epoch, hold it durably. The epoch in which it was sequenced does not matter. R6: the primary
    /// serves once its commit index reaches its epoch start.
    pub(crate) fn advance_commit(&self, next: &mut State, node: u8) {
        let replica = *next.node(node);
        let epoch = replica.leads;
        let log = next.era(epoch).log;
        let mut to = replica.durable;
        if !self.planted(Mutation::CommitAlone) {
            for peer in (0..self.bounds.nodes).filter(|peer| has(replica.required(), *peer)) {
                let talk = next.talk(epoch, peer);
                to = to.min(if talk.link == Link::Streaming { talk.at } else { 0 });
            }
        }
        if to <= replica.commit {
            return;
        }
        let replica = next.node_mut(node);
        replica.commit = to;
        replica.serves |= to >= log.first_of(epoch);
        let committed = log.prefix(to);
        let later = next.done.last_epoch() > epoch;
        if committed.starts_with(next.done) && !later {
            next.done = committed;
            while next.done_in.end() < to {
                next.done_in.push(epoch);
            }
        } else if !next.done.starts_with(committed) {
            next.violate(if later { Violation::Fence } else { Violation::Agreement });
        }
    }
}

/// Appends an entry of `epoch` to the primary's log, and sends it to every peer that streams.
fn sequence(next: &mut State, node: u8, epoch: u8) {
    let index = next.node(node).log.end() + 1;
    let logs = next.nodes.iter().map(|replica| replica.log).chain([next.era(epoch).log]);
    if logs.into_iter().any(|log| log.epoch_at(index) == epoch) {
        next.violate(Violation::Sequencer);
    }
    let replica = next.node_mut(node);
    replica.log.push(epoch);
    let log = replica.log;
    next.era_mut(epoch).log = log;
}

/// The version that is `ahead` of the first becomes the first.
fn forget_older(next: &mut State, epoch: u8, ahead: u8) {
    let era = next.era_mut(epoch);
    let ahead = usize::from(ahead);
    era.versions.rotate_left(ahead);
    era.versions[VERSIONS - ahead..].fill(0);
    era.count -= ahead as u8;
}
