//! Mode A: a write is acknowledged when the primary's own journal has it, and the others follow.
//!
//! In mode A the recorded in-sync set is the primary alone, and any replica that *joins for a
//! move*, because the primary or a replica moves there. So commits, promotions and cuts are those
//! of mode C (R2, R5, R7, R11): a replica that may lack an acknowledged write is promoted only by
//! an act that names it. The rules of mode A alone are here:
//!
//! - A replica that has caught up is not asked to join, unless it joins for a move (R4,
//!   `membership.rs`).
//! - The lag of the other replicas is bounded (R18). While a replica that was *within the limits*
//!   lags by more than [`LagLimits`](mainstay_types::LagLimits), the primary seals nothing new.
//!   Requests wait in the same place as for room in the journal.
//! - The primary knows each lag exactly, in entries, bytes and time, as far as it keeps account of
//!   its batches.
//!
//! ```text
//!           fed from the log, within the limits
//!   beyond ──────────────────────────────────────▶ within
//!    ▲                                               │
//!    └───────────────────────────────────────────────┘
//!      gone for reconnect_grace_ms, silent for member_timeout_ms while something is outstanding,
//!      in need of a copy, or refusing
//! ```
//!
//! With *takeover* the record names followers that may take over by themselves. The record binds
//! the primary to wait for them:
//!
//! - It proposes `FailoverReady` for a follower that is within the limits. From then on writes wait
//!   for that follower until the version has moved on without it, as for a joiner (R4).
//! - It proposes `NotFailoverReady` for a follower that is no longer within the limits. Writes go
//!   on waiting until the primary has learnt that the record has changed (R3).
//!
//! So a follower that may take over lacks at most the limits and one batch of the acknowledged
//! writes.
//!
//! A replica that is beyond the limits holds up no write. Otherwise a dead replica would stop all
//! writes, and one that returns after a day would stop them until it has caught up. So a replica
//! that makes no progress holds up writes for `member_timeout_ms` at most. A replica that makes
//! progress slows them to its own pace.

use crate::Replica;
use crate::peer::{Failover, Link, Peer};
use crate::sealed::Lag;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{IssChange, LagLimits, Mode, NodeId, Time, reach};

impl Replica {
    pub(crate) fn mode(&self) -> Mode {
        self.record.as_ref().map_or(Mode::C, |record| record.policy.mode())
    }

    /// Whether a peer that has caught up is to join the in-sync set.
    pub(crate) fn admits(&self, node: NodeId) -> bool {
        self.record.as_ref().is_some_and(|record| record.admits(node))
    }

    /// How far a peer is behind the end of the log.
    pub(crate) fn lag(&self, peer: &Peer) -> Lag {
        self.sequence.sealed.lag(peer.known, self.log.end.index)
    }

    fn over(&self, peer: &Peer) -> bool {
        let limits = self.record.as_ref().map(|record| record.policy.lag()).unwrap_or_default();
        let lag = self.lag(peer);
        // Entries of older epochs are not in the account.
        lag.more
            || lag.bytes > limits.bytes
            || lag.since.is_some_and(|since| since.plus_ms(limits.ms) < self.now)
    }

    /// Sees whether a peer is within the limits. In mode C, one comparison.
    pub(crate) fn watch_lag(&mut self, node: NodeId) {
        let in_a = self.mode() == Mode::A;
        let Some(peer) = self.peers.get(&node) else { return };
        if !in_a && !peer.within_limits {
            return;
        }
        let follows = peer.fed_whole() && !self.over(peer);
        let within_limits = in_a && (follows || (peer.within_limits && !self.fails(peer)));
        if peer.within_limits && !within_limits {
            reach!("replica: a follower is not waited for any more");
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.within_limits = within_limits;
        }
    }

    /// Whether nothing may be sealed because a follower lags too far.
    pub(crate) fn held_by_lag(&self) -> bool {
        if self.mode() != Mode::A || planted(Bug::LagUnbounded) {
            return false;
        }
        let held = self.peers.values().any(|peer| peer.counts() && self.over(peer));
        if held {
            reach!("replica: writes wait for a follower");
        }
        held
    }

    /// Returns the change to propose about a follower with takeover, if one is due.
    pub(crate) fn failover_change(&self, peer: &Peer) -> Option<IssChange> {
        let record = self.record.as_ref()?;
        let member = peer.member;
        let may_be = self.serving() && !peer.required() && record.may_be_failover_ready(member);
        match (peer.within_limits && may_be, peer.failover) {
            (true, Failover::Recorded) | (false, Failover::Unbound) => None,
            // It may count as within the limits and lag by more, if they were wider: then it must
            // not take over yet. Seed 3345710.
            (true, _) => (!self.over(peer)).then_some(IssChange::FailoverReady { member }),
            (false, _) => Some(IssChange::NotFailoverReady { member }),
        }
    }

    /// When a follower for which writes wait, or that is gone, is given up, if it does not move.
    pub(crate) fn lag_deadline(&self, peer: &Peer) -> Option<Time> {
        let fed = matches!(peer.link, Link::Streaming(_));
        let waited_for = peer.within_limits && self.mode() == Mode::A && (!fed || self.over(peer));
        waited_for.then(|| self.fails_at(peer)).flatten()
    }

    /// In mode A, how far followers may lag.
    #[must_use]
    pub fn lag_limits(&self) -> Option<LagLimits> {
        self.record
            .as_ref()
            .filter(|record| record.policy.mode() == Mode::A)
            .map(|record| record.policy.lag())
    }

    /// The followers for which writes wait when they lag too far, with what each is known to hold
    /// durably. In mode A only.
    pub fn waited_followers(&self) -> impl Iterator<Item = (NodeId, mainstay_types::Index)> + '_ {
        self.peers.iter().filter(|(_, peer)| peer.counts()).map(|(node, peer)| (*node, peer.known))
    }
}
