//! Slow members: when one leaves because commits wait for it too long, and when it may return.
//!
//! A slow disk or a narrow link does not fail, but it holds up all clients: every commit waits for
//! the slowest member (R2). So a primary measures each member, and asks for the removal of one that
//! is too slow. The removal is a shrink like any other (R3): the primary goes on waiting for the
//! member until it has learnt of the removal. This file decides only *when* to ask. It never makes
//! an acknowledgement count that has not come.
//!
//! # What is measured
//!
//! The *latency* of a member is the greater of two times. The first is the age of its oldest
//! unacknowledged batch. The second is the recent time of its acknowledgements, smoothed as TCP
//! does with its round trips (Jacobson 1988: one eighth of each new sample). The second no longer
//! counts after [`SlowLimits::for_ms`] without an acknowledgement. Batches of catch-up and of
//! writes count alike. The primary's own journal is measured in the same way, and members are
//! compared with it too.
//!
//! A member is *over its limit* while its latency is above `ack_ms` and above `factor` times that
//! of the others: the upper median of the primary's journal and the other required peers. So where
//! everything is slow (the load, the primary's own network or disk) no member is over its limit.
//! This holds with an even number of others as well as with an odd one.
//!
//! A member leaves only while it is slow: while its oldest batch waits longer than `ack_ms`, or its
//! newest acknowledgement did and is no older than `for_ms`.
//!
//! # States
//!
//! ```text
//!             over its limit for for_ms, and min_copies remain without it: Shrink is proposed
//!   Prompt ────────────────────────────────────────────────────▶ Leaving
//!     ▲  ▲                                                        │   │
//!     │  └──── the record moves on with it still in the set ──────┘   │ the record moves on without it
//!     │                                                               ▼
//!     │   recorded again (R4)                                        Out ──┐ over its limit for for_ms, or a new
//!     └──────────────────────── asked to join ◀────────────────────── ▲ ───┘ connection: the quiet period begins anew
//!                               quiet_ms kept up, and not far behind
//! ```
//!
//! A joiner that is given up for its slowness is Out as well. A replica that is Out is fed like any
//! replica that lags: a window ahead of its acknowledgements, then from the journal, then by
//! extents. No commit waits for it, and the journal is trimmed without it.
//!
//! The quiet period doubles each time that the replica leaves, up to `quiet_max_ms`. Each
//! `quiet_max_ms` in the in-sync set takes one doubling back. A new primary does not know the
//! measurements of the old one, and begins with the shortest period.
//!
//! With fewer copies than `min_copies`, a replica that is merely slow returns at once. One that had
//! stood still returns after the shortest period.
//!
//! A member may acknowledge nothing from its removal on, and then lose its connection. The first
//! time it counts as gone and not as slow, and returns like any replica that was absent. The next
//! time it has a quiet period, because a link on which no connection lasts is as bad as a slow one.
//!
//! # Limits of this
//!
//! With two copies and `min_copies` of 2 a slow secondary stays: one fast copy is worth less than
//! two slow ones. A member that acknowledges *nothing* for
//! [`member_timeout_ms`](crate::ReplicaConfig::member_timeout_ms) still leaves. If the primary's
//! own journal is the slow one, the status says so and the primary goes on.
//!
//! While nothing is under way, only the end of a quiet period is timed.

use crate::Replica;
use crate::peer::{Link, Membership, Peer};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{ConfigVersion, Histogram, IssChange, NodeId, REPLICAS_MAX, SlowLimits, Time, reach};

/// Recent time of a replica or a journal to make its entries durable.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    smooth_us: u64,
    newest_us: u64,
    sampled_at: Time,
}

impl Pace {
    fn took(&mut self, since: Time, now: Time, forget_ms: u64) {
        let before = self.of_late(now, forget_ms);
        let sample = now.0.saturating_sub(since.0);
        self.smooth_us = before - before / 8 + sample / 8;
        self.newest_us = sample;
        self.sampled_at = now;
    }

    /// Microseconds; 0 when nothing was heard for `forget_ms`.
    fn of_late(&self, now: Time, forget_ms: u64) -> u64 {
        if now <= self.sampled_at.plus_ms(forget_ms) { self.smooth_us } else { 0 }
    }

    /// The newest sample in microseconds; 0 when nothing was heard for `forget_ms`.
    fn newest(&self, now: Time, forget_ms: u64) -> u64 {
        if now <= self.sampled_at.plus_ms(forget_ms) { self.newest_us } else { 0 }
    }
}

/// Shortest time for which the least latency is remembered. The first sample that comes twice this
/// time after it replaces it.
const LEAST_MS: u64 = 10_000;

/// The least of late, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Least {
    /// Since `since`, and of the time before that.
    now: Option<u64>,
    before: Option<u64>,
    since: Time,
}

impl Least {
    fn took(&mut self, us: u64, now: Time) {
        let passed = now.ms_since(self.since);
        if passed >= 2 * LEAST_MS {
            *self = Self { now: None, before: None, since: now };
        } else if passed >= LEAST_MS {
            self.before = self.now.take();
            self.since = self.since.plus_ms(LEAST_MS);
        }
        self.now = Some(self.now.map_or(us, |least| least.min(us)));
    }

    fn us(&self) -> Option<u64> {
        self.now.into_iter().chain(self.before).min()
    }
}

/// Pace of the own journal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnPace {
    pace: Pace,
    least: Least,
    /// When the oldest write under way was given to it.
    since: Option<Time>,
}

impl OwnPace {
    pub fn began(&mut self, now: Time) {
        self.since = self.since.or(Some(now));
    }

    /// Forgets when the writes under way began: this replica does not lead any more.
    pub fn led(&mut self) {
        self.since = None;
    }

    /// Notes that a write that was issued at `began` is durable. `next`: when the oldest write that
    /// is still under way was given to it, if any is.
    pub fn durable(&mut self, began: Time, next: Option<Time>, now: Time, forget_ms: u64) {
        self.pace.took(began, now, forget_ms);
        self.least.took(now.us_since(began), now);
        self.since = next;
    }

    /// Shortest time that a journal write took of late, in microseconds; 0 if not known. The disk
    /// needs this time by itself, without waits for other writes or for a processor.
    pub fn least_us(&self) -> u64 {
        self.least.us().unwrap_or(0)
    }

    pub fn latency_us(&self, now: Time, forget_ms: u64) -> u64 {
        self.latency_around(now, now, forget_ms)
    }

    fn latency_around(&self, then: Time, now: Time, forget_ms: u64) -> u64 {
        let wait = self.since.map_or(0, |since| now.0.saturating_sub(since.0));
        wait.max(self.pace.of_late(then, forget_ms))
    }
}

/// Knowledge of a primary about the slowness of a peer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slowness {
    pace: Pace,
    /// Since when it has been over its limit without a break.
    over_since: Option<Time>,
    /// The version on which its removal was proposed, and whether because it stood still.
    leaving: Option<(ConfigVersion, bool)>,
    pub out: Option<Out>,
    /// Whether it has acknowledged anything since it was to leave.
    heard: bool,
    /// Whether the peer was taken for absent although it had seemed slow, and has not made up for
    /// it since.
    excused: bool,
    /// How often it has left, minus how often it was forgiven.
    times: u32,
    /// When it became a member.
    in_since: Time,
    /// Latencies of the peer's acknowledgements, in microseconds, and how often it has left: for
    /// people.
    pub acknowledged_us: Histogram,
    pub times_left: u64,
}

/// Out of the in-sync set because it was slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Out {
    pub since: Time,
    /// Its latency when it left.
    pub latency_us: u64,
    /// Whether the peer acknowledged no entry at all when it was to leave.
    stalled: bool,
    /// Since when it has kept up.
    quiet_since: Time,
    quiet_ms: u64,
}

impl Slowness {
    /// Notes that the peer has acknowledged entries; their oldest batch was sent at `sent_at`.
    pub fn acknowledged(&mut self, sent_at: Option<Time>, now: Time, forget_ms: u64) {
        self.heard = true;
        if let Some(sent_at) = sent_at {
            self.acknowledged_us.note(now.us_since(sent_at));
            self.pace.took(sent_at, now, forget_ms);
        }
    }

    pub fn disconnected(&mut self) {
        self.pace = Pace::default();
        self.over_since = None;
        let leaves = self.leaving.is_some() || self.out.is_some();
        // It is excused once: a link on which no connection lasts is as bad as a slow one.
        if leaves && !self.heard && !self.excused {
            reach!("replica: a member that seemed slow is gone");
            self.excused = true;
            self.leaving = None;
            if self.out.take().is_some() {
                self.times = self.times.saturating_sub(1);
            }
        }
    }

    /// Notes that the peer is fed on a new connection: a quiet period begins anew.
    pub fn stream_began(&mut self, now: Time) {
        self.pace = Pace::default();
        self.over_since = None;
        if let Some(out) = &mut self.out {
            out.quiet_since = now;
        }
    }

    /// Its removal is proposed on this version. `stalled`: it acknowledges nothing at all.
    pub fn leaves(&mut self, version: ConfigVersion, stalled: bool) {
        if self.leaving.is_none() && self.out.is_none() {
            self.heard = false;
        }
        self.leaving = Some((version, stalled));
    }

    /// Whether it is in the ISS of the newest record, `version`, and was in that of the one before.
    pub fn recorded(
        &mut self,
        version: ConfigVersion,
        (was, is): (bool, bool),
        latency_us: u64,
        now: Time,
        limits: &SlowLimits,
    ) {
        if is && !was {
            self.in_since = now;
            self.out = None;
        }
        let Some((proposed, stalled)) = self.leaving else { return };
        if proposed >= version {
            return;
        }
        self.leaving = None;
        if was && !is {
            reach!("replica: a slow member has left");
            self.left(latency_us, stalled, now, limits);
        }
    }

    /// Notes that the peer is out for its slowness from `now` on, and sets its quiet period.
    pub fn left(&mut self, latency_us: u64, stalled: bool, now: Time, limits: &SlowLimits) {
        let forgiven = now.ms_since(self.in_since) / limits.quiet_max_ms.max(1);
        self.times = self.times.saturating_sub(forgiven.try_into().unwrap_or(u32::MAX));
        self.excused &= forgiven == 0;
        let doubled = limits.quiet_ms.saturating_mul(1 << self.times.min(32));
        let quiet_ms = doubled.min(limits.quiet_max_ms.max(limits.quiet_ms));
        if self.times > 0 {
            reach!("replica: a replica that is slow again stays out for longer");
        }
        if doubled < limits.quiet_max_ms {
            self.times += 1;
        }
        self.times_left += 1;
        self.in_since = now;
        self.out = Some(Out { since: now, latency_us, stalled, quiet_since: now, quiet_ms });
        self.over_since = None;
    }
}

impl Peer {
    /// How long it takes to acknowledge, in microseconds; 0 if nothing is known.
    pub fn latency_us(&self, now: Time, forget_ms: u64) -> u64 {
        self.latency_around(now, now, forget_ms)
    }

    /// The same, with the latency around `then` in place of the recent one.
    fn latency_around(&self, then: Time, now: Time, forget_ms: u64) -> u64 {
        let Link::Streaming(stream) = &self.link else { return 0 };
        let wait = stream.sent.front().map_or(0, |sent| now.0.saturating_sub(sent.at.0));
        wait.max(self.slow.pace.of_late(then, forget_ms))
    }

    /// When the oldest entry was sent to it that it has not acknowledged.
    fn oldest_sent_at(&self) -> Option<Time> {
        let Link::Streaming(stream) = &self.link else { return None };
        stream.sent.front().map(|sent| sent.at)
    }
}

impl Replica {
    /// Sees whether a peer is over its limit. Where it is not, which is almost always, one
    /// comparison.
    pub(crate) fn watch(&mut self, node: NodeId) {
        let (now, limits) = (self.now, self.slow_limits);
        let serving = self.serving();
        let Some(peer) = self.peers.get(&node) else { return };
        let measured = serving && limits.ack_ms > 0 && (peer.required() || peer.slow.out.is_some());
        let latency_us = if measured { peer.latency_us(now, limits.for_ms) } else { 0 };
        let over = latency_us > limits.ack_ms * 1000
            && latency_us > self.others_us(node).saturating_mul(limits.factor);
        if !over && peer.slow.over_since.is_none() {
            return;
        }
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if !over {
            peer.slow.over_since = None;
            return;
        }
        let since = *peer.slow.over_since.get_or_insert(now);
        if let Some(out) = &mut peer.slow.out
            && since.plus_ms(limits.for_ms) <= now
            && !matches!(peer.membership, Membership::Joining { .. })
        {
            reach!("replica: a replica that is out is still slow");
            out.quiet_since = now;
            peer.slow.over_since = None;
        }
    }

    /// The upper median of the latencies of the others, the own journal among them, in
    /// microseconds. While the peer holds up commits the others have nothing to do. So their
    /// latencies of the time count when the peer was given the batch that it holds up now.
    fn others_us(&self, node: NodeId) -> u64 {
        let (now, forget_ms) = (self.now, self.slow_limits.for_ms);
        let then = self.peers.get(&node).and_then(Peer::oldest_sent_at).unwrap_or(now);
        let mut all = [0; REPLICAS_MAX];
        all[0] = self.own.latency_around(then, now, forget_ms);
        let others = self.peers.iter().filter(|(other, peer)| {
            **other != node && peer.required() && matches!(peer.link, Link::Streaming(_))
        });
        let mut count = 1;
        for ((_, peer), place) in others.zip(&mut all[1..]) {
            *place = peer.latency_around(then, now, forget_ms);
            count += 1;
        }
        all[..count].sort_unstable();
        all[count / 2]
    }

    /// Whether the peer has been over its limit for long enough to leave, and may.
    pub(crate) fn too_slow(&self, peer: &Peer) -> bool {
        let for_ms = self.slow_limits.for_ms;
        let long = peer.slow.over_since.is_some_and(|since| since.plus_ms(for_ms) <= self.now);
        if !long || self.sequence.demoting {
            return false;
        }
        // The smoothed time falls by an eighth with each acknowledgement. With few writes it tells
        // of one stall for long after its end.
        let wait_us = peer.oldest_sent_at().map_or(0, |at| self.now.us_since(at));
        if wait_us.max(peer.slow.pace.newest(self.now, for_ms)) <= self.slow_limits.ack_ms * 1000 {
            reach!("replica: a member that was slow is not slow any more");
            return false;
        }
        let enough = self.copies_without(peer.member.node) >= self.copies_that_stay()
            || planted(Bug::MinCopiesIgnored);
        if !enough {
            reach!("replica: a slow member stays because too few copies remain");
        }
        enough
    }

    /// Number of copies that commits would still wait for: the own one, and each member that is
    /// connected and not about to be removed.
    fn copies_without(&self, node: NodeId) -> usize {
        let version = self.version();
        let stays = |peer: &Peer| {
            let removed = peer.asked.is_some_and(|asked| {
                matches!(asked.change, IssChange::Shrink { .. }) && asked.version == version
            });
            peer.is_member() && matches!(peer.link, Link::Streaming(_)) && !removed
        };
        1 + self.peers.iter().filter(|(other, peer)| **other != node && stays(peer)).count()
    }

    /// When a replica that is out is asked to join, if it keeps up until then. With fewer copies
    /// than there should be, one that is merely slow is better than none. One that stood still then
    /// has to keep up for the shortest period only.
    pub(crate) fn returns_at(&self, peer: &Peer) -> Option<Time> {
        let (out, limits) = (peer.slow.out?, &self.slow_limits);
        let quiet_ms = match out.stalled {
            _ if planted(Bug::SlowReturnsAtOnce) => 0,
            _ if self.copies_recorded() >= self.copies_that_stay() => out.quiet_ms,
            true => limits.quiet_ms.min(out.quiet_ms),
            false => {
                reach!("replica: a slow replica may return because there are too few copies");
                0
            }
        };
        Some(out.quiet_since.plus_ms(quiet_ms))
    }

    /// Whether a replica that is out must keep up for longer before it is asked to join.
    pub(crate) fn must_wait(&self, peer: &Peer) -> bool {
        self.returns_at(peer).is_some_and(|at| at > self.now)
    }

    /// When [`watch`](Self::watch) or [`too_slow`](Self::too_slow) may have something new to say,
    /// if nothing else happens.
    pub(crate) fn slow_deadline(&self, peer: &Peer) -> Option<Time> {
        let limits = &self.slow_limits;
        if limits.ack_ms == 0 || !self.serving() || !(peer.required() || peer.slow.out.is_some()) {
            return None;
        }
        let Link::Streaming(stream) = &peer.link else { return None };
        let oldest = stream.sent.front()?.at;
        let due = match peer.slow.over_since {
            Some(since) => since.plus_ms(limits.for_ms),
            None => Time(oldest.plus_ms(limits.ack_ms).0 + 1),
        };
        // Over the limit and nothing follows from it: the others are slow too, or too few copies
        // would remain.
        Some(if due > self.now { due } else { self.now.plus_ms(limits.for_ms.max(4) / 4) })
    }
}
