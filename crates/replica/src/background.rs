//! Pace of background traffic: how fast a primary fills replicas that are not in sync, and how fast
//! it scrubs the others. It fills them by copies and from the journal. A scrub counts like a copy.
//!
//! A copy is fast when several of its extents are under way. But then writes of clients wait: on
//! the primary's disk, in front of its network, on its processor. So there are three limits. Their
//! names are those of DRBD, which operators know.
//!
//! - *c-max-rate*: limit for everything that the node fills, in bytes per second (R18). The runtime
//!   divides it among the replicas of the node ([`crate::Event::BackgroundRate`]). 0 means no
//!   limit.
//! - the *window*: number of extents under way at a time, over all peers. Its maximum is
//!   [`copy_extents_max`](crate::ReplicaConfig::copy_extents_max). It is at its maximum while no
//!   client writes.
//! - *c-min-rate*: below this rate the background does not slow down for clients. 0 means that it
//!   never slows down for clients.
//!
//! # How the window yields
//!
//! Clients are harmed when their writes take longer than *usual*. The usual latency is the one
//! while the background rests. So the background rests from time to time, as LEDBAT++ slows down to
//! find its base delay (Balasubramanian, Ertugay and Havey, draft-irtf-iccrg-ledbat-plus-plus).
//! LEDBAT itself (RFC 6817) takes a minimum over the past. When the clients' own load has grown,
//! such a minimum would blame the background for it.
//!
//! ```text
//!            no write comes                     what is usual is known
//!   Idle ◀─────────────────── any     ┌──────────────────────────────────────┐
//!    │ a client writes                │                                      ▼
//!    └─────────────────────────▶ Resting ◀──────────────────────────────── Working
//!                                nothing new        every REST_EVERY_MS     every INTERVAL_MS: over factor times usual:
//!                                                                           half the window, at 1 c-min-rate; else one more
//! ```
//!
//! Two latencies are compared with their usual values. Clients are harmed when either is above its
//! own.
//!
//! - The latency of a write: the greatest of the recent latencies of the primary's own journal and
//!   of the required peers. `slow.rs` measures them. They count only while clients write, because
//!   the entries of scrubs and repairs are measured too and are no reason to yield.
//! - Beside a copy or a scrub also the latency that clients see: from the admission of a client's
//!   write to its commit, for one write at a time. Under a load that fills the journal, a write
//!   waits for room in it, and so for the disk that the background reads. The journal's latency
//!   does not show that wait.
//!
//! While there is nothing to fill, nothing is measured or timed here, and writes cost nothing
//! extra.
//!
//! A feed from the journal has to outrun the clients' writes, because the journal is trimmed
//! without regard to the feed. So a feed never rests: its usual latency is that of a write when the
//! feed begins. It yields by its window only, and the window never falls below the size of an
//! extent.
//!
//! If clients write more than c-max-rate, the journal is trimmed before the feed ends, and a copy
//! follows. A copy ends, because the number of its extents is fixed. Entries that are written
//! meanwhile are sent beside it without a limit.

use crate::Replica;
use crate::peer::{Link, Peer};
use mainstay_types::{BackgroundLimits, EXTENT_BYTES, NodeId, Time, reach};

/// How often the window is judged, in milliseconds; as often as DRBD's controller.
const INTERVAL_MS: u64 = 100;
/// How long the background rests to learn what is usual, and how often: a twentieth of the time.
const REST_MS: u64 = 100;
const REST_EVERY_MS: u64 = 2_000;
/// Longest wait for the extents under way before a rest counts: a peer may be slow to acknowledge.
const DRAIN_MS_MAX: u64 = 400;
/// Smaller differences than this are no harm: timers and the scheduler make them, in microseconds.
const NOISE_US: u64 = 50;
/// Age from which the latency of a write no longer counts, in milliseconds.
const FORGET_MS: u64 = 500;
/// Number of client writes from which on their mean latency counts. Of fewer, the mean is a matter
/// of chance.
const SAMPLES_MIN: u64 = 8;
/// How far back the unused rate still counts, in microseconds.
const BURST_US: u64 = 100_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No client writes, or c-min-rate is 0: the window is at its largest.
    Idle,
    Resting {
        since: Time,
        /// Since when nothing is under way, and until when it is to be so.
        quiet: Option<(Time, Time)>,
    },
    Working {
        until: Time,
    },
}

/// Background traffic that this primary has under way.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Filling {
    /// Whether a copy or a scrub runs. `copied` is the number of its extents under way, over all
    /// peers.
    pub copying: bool,
    pub copied: usize,
    /// Bytes under way from the journal.
    pub fed: u64,
}

/// Latencies of client writes in the current rest or interval, in microseconds.
#[derive(Clone, Copy, Default, Debug)]
struct OfClients {
    sum: u64,
    count: u64,
    longest: u64,
}

impl OfClients {
    /// 0 if there were none.
    fn mean(self) -> u64 {
        self.sum.checked_div(self.count).unwrap_or(0)
    }

    /// Returns the usual latency and the longest one, in microseconds. With few samples the longest
    /// counts as usual, because their mean is a matter of chance.
    fn usual(self) -> (u64, u64) {
        (if self.count < SAMPLES_MIN { self.longest } else { self.mean() }, self.longest)
    }
}

/// See the top of this file.
#[derive(Clone, Debug)]
pub(crate) struct Background {
    /// Limits of the record.
    recorded: BackgroundLimits,
    /// Limits in force: the rate may be a share of the recorded one.
    limits: BackgroundLimits,
    window_max: usize,
    window: usize,
    phase: Phase,
    /// Usual latency of a write, in microseconds: its latency while the background rests. 0 if not
    /// known.
    usual_us: u64,
    /// The same for the latency that clients see: the usual one and the longest one.
    usual_of_clients_us: (u64, u64),
    of_clients: OfClients,
    /// Time of the last call of [`judge`](Self::judge).
    judged_at: Time,
    /// Current interval: when it began, the sum of the latencies that were looked at, and their
    /// number.
    interval: (Time, u64, u64),
    /// At the smallest window clients are harmed: c-min-rate counts.
    crawls: bool,
    /// Before this time the rate allows nothing more.
    paid_until: Time,
    /// When a client wrote last.
    written_at: Option<Time>,
    /// Whether a copy, a feed or a scrub waits until the limits allow it more.
    pub waiting: bool,
}

impl Background {
    pub fn new(window_max: usize) -> Self {
        let window_max = window_max.max(1);
        let limits = BackgroundLimits::default();
        Self {
            recorded: limits,
            limits,
            window_max,
            window: window_max,
            phase: Phase::Idle,
            usual_us: 0,
            usual_of_clients_us: (0, 0),
            of_clients: OfClients::default(),
            judged_at: Time(0),
            interval: (Time(0), 0, 0),
            crawls: false,
            paid_until: Time(0),
            written_at: None,
            waiting: false,
        }
    }

    /// A client writes.
    pub fn written(&mut self, now: Time) {
        self.written_at = Some(now);
    }

    /// Whether latencies of clients' writes are wanted: the background yields to clients, and
    /// [`judge`](Self::judge) was called a short time ago.
    pub fn watches_clients(&self, now: Time) -> bool {
        self.phase != Phase::Idle && now < self.judged_at.plus_ms(FORGET_MS)
    }

    /// A client's write that was admitted then is committed.
    pub fn committed(&mut self, since: Time, now: Time) {
        let counts = match self.phase {
            Phase::Idle => false,
            // A write that was admitted earlier may have waited for extents that were under way
            // then.
            Phase::Resting { quiet, .. } => quiet.is_some_and(|(quiet, _)| quiet <= since),
            Phase::Working { .. } => true,
        };
        if counts {
            let took = now.0.saturating_sub(since.0);
            let OfClients { sum, count, longest } = self.of_clients;
            self.of_clients = OfClients { sum: sum + took, count: count + 1, longest: longest.max(took) };
        }
    }

    /// Takes the limits of a newer record. The share of the node's limit stays until the limit
    /// changes.
    pub fn set_limits(&mut self, limits: BackgroundLimits) {
        if limits.max_rate != self.recorded.max_rate {
            self.set_max_rate(limits.max_rate);
        }
        self.limits = BackgroundLimits { max_rate: self.limits.max_rate, ..limits };
        self.recorded = limits;
    }

    /// The replica's share of the node's limit, in bytes per second. 0: none.
    pub fn set_max_rate(&mut self, bytes_per_s: u64) {
        self.limits.max_rate = bytes_per_s;
        self.paid_until = Time(0);
    }

    /// Judges the effect on clients. `write_us` is the present latency of a write, in microseconds,
    /// or 0 when clients do not write. The timed write of a client waits since `waits`.
    pub fn judge(&mut self, now: Time, write_us: u64, waits: Option<Time>, filling: Filling) {
        self.judged_at = now;
        if !filling.copying {
            // A feed never rests, so the usual latency of clients would never be measured again.
            self.usual_of_clients_us = (0, 0);
        }
        if write_us == 0 || self.limits.min_rate == 0 {
            (self.phase, self.usual_us, self.crawls) = (Phase::Idle, 0, false);
            (self.usual_of_clients_us, self.of_clients) = ((0, 0), OfClients::default());
            self.window = self.window_max;
            return;
        }
        match self.phase {
            Phase::Idle if filling.copying => {
                reach!("replica: the background yields to clients");
                self.phase = Phase::Resting { since: now, quiet: None };
                self.judge_rest(now, write_us, waits, filling.copied);
            }
            Phase::Idle if filling.fed == 0 => {
                reach!("replica: a feed yields to clients");
                self.begin_work(now, write_us);
            }
            // A feed is under way already, so the usual latency cannot be told.
            Phase::Idle => {}
            Phase::Resting { .. } if filling.copying => self.judge_rest(now, write_us, waits, filling.copied),
            Phase::Working { until } if until <= now && filling.copying => {
                reach!("replica: the background rests");
                self.phase = Phase::Resting { since: now, quiet: None };
                self.judge_rest(now, write_us, waits, filling.copied);
            }
            Phase::Resting { .. } => self.begin_work(now, write_us),
            Phase::Working { .. } => self.judge_work(now, write_us, waits),
        }
    }

    fn judge_rest(&mut self, now: Time, write_us: u64, waits: Option<Time>, copied: usize) {
        let Phase::Resting { since, quiet } = &mut self.phase else { return };
        let drained = copied == 0 || since.plus_ms(DRAIN_MS_MAX) <= now;
        if !drained {
            *quiet = None;
        } else if quiet.is_none() {
            *quiet = Some((now, now.plus_ms(REST_MS)));
            self.of_clients = OfClients::default();
        }
        let Some((began, until)) = quiet else { return };
        if now < *until {
            return;
        }
        // A client's write has waited for longer than the rest: the rest goes on for a while.
        let unknown = self.of_clients.count == 0 && waits.is_some();
        if unknown && now < began.plus_ms(DRAIN_MS_MAX) {
            *until = now.plus_ms(REST_MS);
            return;
        }
        if self.usual_us == 0 {
            // As careful as TCP when it begins.
            self.window = 1;
        }
        self.usual_of_clients_us = self.of_clients.usual();
        self.begin_work(now, write_us);
    }

    fn begin_work(&mut self, now: Time, usual_us: u64) {
        self.usual_us = usual_us;
        self.of_clients = OfClients::default();
        self.interval = (now, 0, 0);
        self.phase = Phase::Working { until: now.plus_ms(REST_EVERY_MS) };
    }

    fn judge_work(&mut self, now: Time, write_us: u64, waits: Option<Time>) {
        let (began, sum, count) = &mut self.interval;
        (*sum, *count) = (*sum + write_us, *count + 1);
        if now < began.plus_ms(INTERVAL_MS) {
            return;
        }
        let mean = *sum / *count;
        self.interval = (now, 0, 0);
        let factor = 100 + self.limits.slowdown_percent;
        let over = |us: u64, usual_us: u64| {
            us.saturating_mul(100) > usual_us.saturating_mul(factor) && us > usual_us + NOISE_US
        };
        // One that waits now is an exception among others; it tells something when no other has
        // waited as long in a rest.
        let waited = waits.map_or(0, |since| now.0.saturating_sub(since.0));
        let enough = self.of_clients.count >= SAMPLES_MIN;
        let of_clients = if enough { std::mem::take(&mut self.of_clients).mean() } else { 0 };
        let (usual_of_clients, longest) = self.usual_of_clients_us;
        let harmed = over(mean, self.usual_us)
            || (usual_of_clients > 0 && (over(of_clients, usual_of_clients) || over(waited, longest)));
        if !harmed {
            self.window = if self.crawls { 1 } else { (self.window + 1).min(self.window_max) };
            self.crawls = false;
        } else if self.window > 1 {
            reach!("replica: the background shrinks its window");
            self.window /= 2;
        } else {
            reach!("replica: the background crawls");
            self.crawls = true;
        }
    }

    /// Number of extents that each of `copies` copies may have under way now. 0 while the
    /// background rests or has spent its rate.
    pub fn share(&self, now: Time, copies: usize) -> usize {
        if self.rests() || self.paid_until > now { 0 } else { (self.window / copies.max(1)).max(1) }
    }

    /// Bytes that a feed from the journal may have under way now, of `window`; 0 when the rate is
    /// spent.
    pub fn feed_bytes(&self, now: Time, window: u64) -> u64 {
        if self.limits.max_rate > 0 && self.paid_until > now {
            return 0;
        }
        let part = window / self.window_max as u64 * self.window as u64;
        part.max(EXTENT_BYTES.min(window))
    }

    /// Counts `bytes` that are sent now against the rate. `feed` tells that they come from the
    /// journal: c-min-rate does not slow those down.
    pub fn spend(&mut self, now: Time, bytes: u64, feed: bool) {
        let crawls = self.crawls && !feed;
        let rate = match (self.limits.max_rate, crawls) {
            (rate, false) => rate,
            (0, true) => self.limits.min_rate,
            (rate, true) => rate.min(self.limits.min_rate),
        };
        let Some(us) = bytes.saturating_mul(1_000_000).checked_div(rate) else { return };
        let from = self.paid_until.0.max(now.0.saturating_sub(BURST_US));
        self.paid_until = Time(from.saturating_add(us));
    }

    /// Takes back `bytes` that were counted against the rate and need not be sent after all.
    pub fn refund(&mut self, bytes: u64) {
        if let Some(us) = bytes.saturating_mul(1_000_000).checked_div(self.limits.max_rate) {
            self.paid_until = Time(self.paid_until.0.saturating_sub(us));
        }
    }

    fn slows(&self, now: Time) -> bool {
        self.rests() || self.window < self.window_max || self.paid_until > now
    }

    fn rests(&self) -> bool {
        matches!(self.phase, Phase::Resting { .. })
    }

    /// When more may go, if it may not now; `None` when the end of something under way decides.
    pub fn next_at(&self, now: Time) -> Option<Time> {
        match self.phase {
            Phase::Resting { quiet: Some((_, until)), .. } => Some(until),
            Phase::Resting { since, quiet: None } => Some(since.plus_ms(DRAIN_MS_MAX)),
            Phase::Idle | Phase::Working { .. } => Some(self.paid_until).filter(|at| *at > now),
        }
    }
}

impl Replica {
    /// Whether a peer is fed from the journal in the background: it lags, and no commit waits for
    /// it. A peer near the end does not count, because commits wait for it soon. Nor does a feed
    /// beside a copy or after it: without a limit the filling ends.
    pub(crate) fn is_fed(&self, peer: &Peer) -> bool {
        let Link::Streaming(stream) = &peer.link else { return false };
        let lags = stream.loading.is_some() || stream.next <= self.log.end.index;
        lags && !peer.required() && !stream.follows_copy && !self.is_near(peer)
    }

    /// Whether a peer lags by so little that it may be made to join.
    pub(crate) fn is_near(&self, peer: &Peer) -> bool {
        let lag = self.sequence.sealed.lag_bytes(peer.durable, self.log.end.index);
        lag.is_some_and(|lag| lag < self.config.join_lag_bytes)
    }

    fn filling(&self) -> Filling {
        let mut filling = Filling { copying: self.scrub.runs(), copied: self.scrub.under_way(), fed: 0 };
        for peer in self.peers.values() {
            let Link::Streaming(stream) = &peer.link else { continue };
            if let Some(copy) = &stream.copy {
                filling.copying = true;
                filling.copied += copy.under_way();
            } else if self.is_fed(peer) {
                filling.fed += stream.sent_bytes;
            }
        }
        filling
    }

    /// Limit of the record for everything that the node fills, in bytes per second. 0: no limit,
    /// or no record yet.
    #[must_use]
    pub fn fill_rate_of_node(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.policy.background.max_rate)
    }

    /// Whether anything is filled from here.
    #[must_use]
    pub fn fills(&self) -> bool {
        let copied = |peer: &Peer| matches!(&peer.link, Link::Streaming(stream) if stream.copy.is_some());
        let fills = || self.peers.values().any(|peer| copied(peer) || self.is_fed(peer));
        self.leading() && (self.scrub.runs() || fills())
    }

    /// Whether filling from here goes slower than it could, for the sake of clients or by
    /// c-max-rate.
    #[must_use]
    pub fn filling_slowed(&self) -> bool {
        self.fills() && self.background.slows(self.now)
    }

    /// Looks at the clients before something is sent in the background.
    pub(crate) fn judge_background(&mut self) {
        let (now, since) = (self.now, self.background.written_at);
        let clients_write =
            since.is_some_and(|at| now < at.plus_ms(FORGET_MS)) || self.sequence.clients_wait();
        let peers = self.peers.values().filter(|_| clients_write);
        let write_us = peers.filter(|peer| peer.required()).map(|peer| peer.latency_us(now, FORGET_MS));
        let own = clients_write.then(|| self.own.latency_us(now, FORGET_MS));
        let write_us = write_us.chain(own).max().unwrap_or(0);
        let filling = self.filling();
        self.background.judge(now, write_us, self.sequence.watched_since(), filling);
    }

    /// Extents that the copy to a peer may have under way now.
    pub(crate) fn copy_share(&mut self) -> usize {
        self.judge_background();
        let copies = |peer: &&Peer| matches!(&peer.link, Link::Streaming(stream) if stream.copy.is_some());
        // A scrub reads as much as a copy, on every replica.
        let copies = self.peers.values().filter(copies).count() + usize::from(self.scrub.runs());
        let share = self.background.share(self.now, copies);
        self.background.waiting |= share == 0;
        share
    }

    /// Bytes that a peer may have under way from the journal now.
    pub(crate) fn feed_window(&mut self, node: NodeId) -> u64 {
        let window = self.config.window_bytes;
        if !self.peers.get(&node).is_some_and(|peer| self.is_fed(peer)) {
            return window;
        }
        self.judge_background();
        let bytes = self.background.feed_bytes(self.now, window);
        self.background.waiting |= bytes == 0;
        bytes
    }

    /// Goes on with the traffic that had to wait for its time.
    pub(crate) fn continue_background(&mut self) {
        let now = self.now;
        if !self.background.waiting || self.background.next_at(now).is_some_and(|at| at > now) {
            return;
        }
        self.background.waiting = false;
        // A peer that waited may be required by now, and then waits no longer.
        let peers: Vec<NodeId> = self.peers.keys().copied().collect();
        for node in peers {
            self.pump_copy(node);
            self.pump(node);
        }
    }

    /// When [`continue_background`](Self::continue_background) has something to do.
    pub(crate) fn background_deadline(&self) -> Option<Time> {
        self.background.next_at(self.now).filter(|_| self.background.waiting)
    }
}
