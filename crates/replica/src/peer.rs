//! Another replica, as the primary of an epoch sees it.
//!
//! ```text
//! Down ─▶ Attaching ─▶ Cutting ─▶ Streaming            any ─▶ Down (connection lost)
//!             │                      ▲                 any ─▶ Refused ─▶ Attaching (after a while)
//!             ├─▶ Stale ─▶ Beginning ┘ (with a copy)
//!             └──────────────────────▶ (nothing to cut)
//! ```

use crate::copy::CopySource;
use crate::slow::Slowness;
use mainstay_types::{ConfigVersion, Index, Instance, IssChange, Member, Position, Time};
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Peer {
    pub member: Member,
    pub membership: Membership,
    pub link: Link,
    /// When `link` took its present value.
    pub since: Time,
    /// Everything up to here is durable there. Counts only what was acknowledged on this connection
    /// in this epoch (R1).
    pub durable: Index,
    /// Everything up to here is in memory there, as it said on this connection in this epoch, in
    /// this instance (mode B).
    pub received: Index,
    pub instance: Option<Instance>,
    /// The highest value of `durable` in this epoch. So the peer lacks at most the rest. For mode A
    /// and for people.
    pub known: Index,
    /// Writes wait for it when it lags too far, see `mode_a.rs`.
    pub within_limits: bool,
    pub failover: Failover,
    /// Last position that both logs hold, and the end of the peer's log. Set if an unverified
    /// peer's log is not the beginning of ours.
    pub diverged: Option<(Position, Position)>,
    /// Every extent of its backing store is at least as new as this, whatever happens to its log.
    pub base: Index,
    /// The commit index that it was told last.
    pub told: Index,
    /// When it last made progress, or when it last began to have something outstanding.
    pub progress_at: Time,
    /// The last proposal about it, to time its repetition.
    pub asked: Option<AskedChange>,
    /// Whether it keeps up, and since when it is out because it did not; see `slow.rs`.
    pub slow: Slowness,
    /// Its log differs from ours at a position that both hold; only a copy helps.
    pub damaged: bool,
    /// `ListExtents` not answered yet. Only the answer to the last one is of use.
    pub lists_pending: u32,
}

#[derive(Debug)]
pub(crate) enum Link {
    Down,
    /// `Attach` was sent.
    Attaching,
    /// `Cut` was sent.
    Cutting {
        to: Position,
    },
    /// The peer needs a copy. The copy may not begin while the peer is required (R16).
    Stale,
    /// `CopyBegin` was sent.
    Beginning {
        at: Position,
        /// Sizes of the volumes there.
        volumes: Vec<u64>,
    },
    Streaming(Stream),
    /// The peer refused, or said something impossible.
    Refused,
}

/// The log on its way to a peer.
#[derive(Debug)]
pub(crate) struct Stream {
    /// First entry not sent yet.
    pub next: Index,
    /// Batches sent and not acknowledged.
    pub sent: VecDeque<Sent>,
    pub sent_bytes: u64,
    /// `LoadLog` from here is not answered yet.
    pub loading: Option<Index>,
    pub copy: Option<Box<CopySource>>,
    /// Whether the stream began with a copy, which may have ended since.
    pub follows_copy: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub last: Index,
    /// Its length in the journal.
    pub bytes: u64,
    pub at: Time,
}

/// Place of a peer in the required set (R2). In each epoch it begins as the record says.
///
/// ```text
/// Outside ─▶ Joining ─▶ Member      asked to join, then recorded (R4)
///    ▲          │         │
///    ├──────────┘         │         given up before it is proposed, or mode A
///    └────────────────────┘         recorded without it (R3)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Membership {
    Outside,
    /// Commits wait for it although it is not recorded yet.
    Joining {
        /// The version on which `Grow` was last proposed. While the record has this version the
        /// change may still happen, and the joiner stays required.
        proposed: Option<ConfigVersion>,
    },
    /// In the ISS of the newest record.
    Member,
}

/// Whether the primary is bound to a follower that may take over by itself (`mode_a.rs`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failover {
    Unbound,
    /// Proposed on this version, and may still happen.
    Proposed(ConfigVersion),
    /// The newest record says so.
    Recorded,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AskedChange {
    pub change: IssChange,
    pub version: ConfigVersion,
    pub at: Time,
}

impl AskedChange {
    /// Whether it is the same on this version, for whatever reason.
    pub fn is(&self, change: &IssChange, version: ConfigVersion) -> bool {
        self.version == version && std::mem::discriminant(&self.change) == std::mem::discriminant(change)
    }
}

impl Stream {
    pub fn new(next: Index, copy: Option<Box<CopySource>>) -> Self {
        let follows_copy = copy.is_some();
        Self { next, sent: VecDeque::new(), sent_bytes: 0, loading: None, copy, follows_copy }
    }

    pub fn sent(&mut self, last: Index, bytes: u64, at: Time) {
        self.next = last.next();
        self.sent.push_back(Sent { last, bytes, at });
        self.sent_bytes += bytes;
    }

    /// Returns when the oldest of the batches was sent that this acknowledges.
    pub fn acknowledged(&mut self, durable: Index) -> Option<Time> {
        let mut oldest = None;
        while let Some(sent) = self.sent.front().filter(|sent| sent.last <= durable).copied() {
            oldest = oldest.or(Some(sent.at));
            self.sent.pop_front();
            self.sent_bytes -= sent.bytes;
        }
        oldest
    }
}

impl Peer {
    pub fn new(member: Member, in_iss: bool, now: Time) -> Self {
        Self {
            member,
            membership: if in_iss { Membership::Member } else { Membership::Outside },
            link: Link::Down,
            since: now,
            durable: Index(0),
            received: Index(0),
            instance: None,
            known: Index(0),
            within_limits: false,
            failover: Failover::Unbound,
            diverged: None,
            base: Index(0),
            told: Index(0),
            progress_at: now,
            asked: None,
            slow: Slowness::default(),
            damaged: false,
            lists_pending: 0,
        }
    }

    /// Whether commits wait for it (R2).
    pub fn required(&self) -> bool {
        self.membership != Membership::Outside
    }

    pub fn is_member(&self) -> bool {
        self.membership == Membership::Member
    }

    pub fn joins(&self) -> bool {
        matches!(self.membership, Membership::Joining { .. })
    }

    /// Whether it is fed and whole: no copy to it is under way.
    pub fn fed_whole(&self) -> bool {
        matches!(&self.link, Link::Streaming(stream) if stream.copy.is_none())
    }

    /// Whether writes wait for it when it lags too far.
    pub fn counts(&self) -> bool {
        self.within_limits || self.failover != Failover::Unbound
    }

    pub fn set_link(&mut self, link: Link, now: Time) {
        self.link = link;
        self.since = now;
    }

    pub fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.link {
            Link::Streaming(stream) => Some(stream),
            _ => None,
        }
    }

    /// Forgets how far the peer holds the log: acknowledgements of the last connection do not count
    /// any more.
    pub fn forget_held(&mut self) {
        self.durable = Index(0);
        self.received = Index(0);
        self.instance = None;
    }

    /// Begins to feed it from right after `at`, which it holds durably.
    pub fn start_stream(&mut self, at: Position, copy: Option<Box<CopySource>>, now: Time) {
        self.forget_held();
        self.durable = at.index;
        self.known = at.index;
        self.progress_at = now;
        self.slow.stream_began(now);
        self.set_link(Link::Streaming(Stream::new(at.index.next(), copy)), now);
    }
}
