//! A replica as secondary: promise, cut, append, acknowledge (R1, R7). Code:
//! `replica/src/secondary.rs`.
//!
//! To make something durable and to answer are one step: a crash between the two has the effect of
//! a lost answer.

use crate::model::Spec;
use crate::rules::Mutation;
use crate::state::{Back, Out, State, Violation};

impl Spec {
    /// `node` hears the next message of the primary of `epoch`, however long ago it was sent.
    pub(crate) fn deliver(&self, state: &State, epoch: u8, node: u8) -> Option<State> {
        match state.talk(epoch, node).out {
            Out::Nothing => None,
            Out::Attach => self.attached(state, epoch, node),
            Out::Cut(to) => cut(state, epoch, node, to),
            Out::Entries => self.appended(state, epoch, node),
        }
    }

    fn attached(&self, state: &State, epoch: u8, node: u8) -> Option<State> {
        if state.node(node).promised > epoch && !self.planted(Mutation::NoEpochCheck) {
            return None;
        }
        let mut next = *state;
        let primary = next.era(epoch).log;
        let replica = next.node_mut(node);
        replica.step_back();
        replica.promised = replica.promised.max(epoch);
        if !self.planted(Mutation::PromiseNotDurable) {
            replica.promised_durably = replica.promised;
        }
        replica.session = epoch;
        // The replica answers when its own journal stands still.
        replica.durable = replica.log.end();
        let (common, end, whole) = (primary.last_common(replica.log), replica.log.end(), replica.whole);
        let talk = next.talk_mut(epoch, node);
        talk.out = Out::Nothing;
        talk.back = Back::AttachReply { common, end, whole };
        Some(next)
    }

    fn appended(&self, state: &State, epoch: u8, node: u8) -> Option<State> {
        let replica = state.node(node);
        let log = state.era(epoch).log;
        let end = replica.log.end();
        let heard = replica.session == epoch && replica.leads == 0;
        // The chain of the batch shows whether the logs agree so far.
        let fits = replica.log == log.prefix(end) || self.planted(Mutation::NoCut);
        if !heard || !fits || end >= log.end() {
            return None;
        }
        let mut next = *state;
        let replica = next.node_mut(node);
        replica.log.push(log.epoch_at(end + 1));
        if !self.planted(Mutation::AckOnReceipt) {
            replica.durable = end + 1;
        }
        next.talk_mut(epoch, node).back = Back::Ack(end + 1);
        Some(next)
    }
}

/// R7: entries that the primary's log does not hold go. It does not matter what a *later* epoch has
/// made of them. A replica outside the ISS may hear the cut of a superseded primary late, and lose
/// entries that were committed elsewhere since.
fn cut(state: &State, epoch: u8, node: u8, to: u8) -> Option<State> {
    let mut next = *state;
    let (done, done_in) = (next.done, next.done_in);
    let replica = next.node_mut(node);
    if replica.session != epoch || replica.leads != 0 {
        return None;
    }
    let lost = to + 1..=replica.log.shared(done);
    let loses_committed = lost.into_iter().any(|index| done_in.epoch_at(index) <= epoch);
    replica.log = replica.log.prefix(to);
    replica.durable = to;
    let talk = next.talk_mut(epoch, node);
    talk.out = Out::Nothing;
    talk.back = Back::CutReply(to);
    if loses_committed {
        next.violate(Violation::Cut);
    }
    Some(next)
}
