//! The replication core.

mod interface;
mod status;

pub use interface::{
    Effect, Event, Op, Proposal, ReplicaConfig, RequestError, RequestId, Role, StepDownReason,
};
pub use status::{PeerState, PeerStatus, Status};

use mainstay_codec::LogState;
use mainstay_types::{ConfigVersion, Epoch, Time};
use std::collections::VecDeque;

/// One replica of one resource, in whatever role.
pub struct Replica {
    promised: Epoch,
    log: LogState,
    effects: VecDeque<Effect>,
}

impl Replica {
    /// A replica as its store found it.
    #[must_use]
    pub fn new(_config: ReplicaConfig, promised: Epoch, log: LogState) -> Self {
        Self { promised, log, effects: VecDeque::new() }
    }

    /// Takes in what happened.
    pub fn handle(&mut self, _now: Time, _event: Event) {}

    /// What is to be done, in order; to be called until it is empty.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When [`Event::Tick`] is wanted; `None` when nothing is timed.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    #[must_use]
    pub fn status(&self) -> Status {
        Status {
            role: Role::Secondary,
            epoch: self.promised,
            version: ConfigVersion(0),
            commit: self.log.commit,
            durable: self.log.end.index,
            end: self.log.end,
            data: self.log.data,
            peers: Vec::new(),
            requests: 0,
            waiting_for: Vec::new(),
        }
    }
}
