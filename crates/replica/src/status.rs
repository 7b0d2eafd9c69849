//! Status of a replica, for people and for the agent.

use crate::peer::{Link, Peer};
use crate::sealed::Lag;
use crate::{Fence, Replica};
use mainstay_types::{
    ConfigVersion, CopyStatus, DataState, EXTENT_BYTES, Epoch, Histogram, Index, Member, Mode, NodeId,
    PeerState, Position, Role, SlowStatus, Time,
};

/// A snapshot of a replica for people and for the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub role: Role,
    /// The epoch it leads in, or has promised.
    pub epoch: Epoch,
    /// Version of the record that it holds; 0 before the first.
    pub version: ConfigVersion,
    pub commit: Index,
    /// Index up to which everything is acknowledged: on a primary in mode B also from memory, else
    /// the commit index.
    pub answered: Index,
    pub durable: Index,
    /// Last entry of its log, durable or not.
    pub end: Position,
    pub data: DataState,
    /// The other replicas, as the primary sees them; empty on others.
    pub peers: Vec<PeerStatus>,
    /// How long the own journal took when it last had something to write as primary, in
    /// microseconds.
    pub journal_latency_us: u64,
    /// Requests admitted and not completed.
    pub requests: usize,
    /// Reasons why the replica waits, in words; empty when all is well.
    pub waiting_for: Vec<String>,
    /// Highest commit index that a primary told this secondary in this session. May be beyond its
    /// end.
    pub heard: Index,
}

/// A replica as its primary sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    pub member: Member,
    pub state: PeerState,
    /// Whether commits wait for it: recorded in the ISS, or joining.
    pub required: bool,
    pub in_iss: bool,
    /// Everything up to here is durable there; 0 if not known since the last connection.
    pub durable: Index,
    /// Extents of a copy that are done, and all of them; `None` while none is going on.
    pub copied: Option<(u64, u64)>,
    /// How far it is behind, as far as is known. Known also of a peer that is not connected.
    pub lag: Lag,
    /// Its latency when it last had entries to acknowledge, in microseconds; 0 if that is not
    /// known.
    pub latency_us: u64,
    /// Out because it was slow.
    pub slow: Option<SlowStatus>,
    /// How fast it is copied to of late, if that is known.
    pub copy: Option<CopyStatus>,
}

/// Counts about a peer since this replica began to lead.
#[derive(Clone, Copy, Debug)]
pub struct PeerCounts<'a> {
    pub node: NodeId,
    /// Whether commits wait for it.
    pub required: bool,
    /// Latencies of its acknowledgements, in microseconds.
    pub acknowledged_us: &'a Histogram,
    /// How often it left the in-sync set for being slow.
    pub times_slow: u64,
}

impl Replica {
    /// A snapshot for people and for the agent.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status_at(self.now)
    }

    /// The same, as of `now`. The replica may have been idle for long: the age of requests under
    /// way counts up to `now`.
    #[must_use]
    pub fn status_at(&self, now: Time) -> Status {
        let now = self.now.max(now);
        Status {
            role: self.role,
            epoch: self.epoch(),
            version: self.version(),
            commit: self.log.commit,
            answered: if self.leading() { self.answered() } else { self.log.commit },
            durable: self.log.durable,
            end: self.log.end,
            data: self.data(),
            peers: self.peers.values().map(|peer| self.peer_status(peer, now)).collect(),
            journal_latency_us: self.own.latency_us(now, self.slow_limits.for_ms),
            requests: self.sequence.len(),
            waiting_for: self.waiting_for(),
            heard: self.session.as_ref().map_or(self.log.commit, |session| session.commit_known),
        }
    }

    /// Returns the counts about the other replicas; none unless this replica leads.
    pub fn peer_counts(&self) -> impl Iterator<Item = PeerCounts<'_>> {
        self.peers.iter().map(|(node, peer)| PeerCounts {
            node: *node,
            required: peer.required(),
            acknowledged_us: &peer.slow.acknowledged_us,
            times_slow: peer.slow.times_left,
        })
    }

    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The epoch that it leads in or has promised, as in [`Status::epoch`].
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        if self.leading() { self.epoch } else { self.promise_wanted }
    }

    /// Whether no follower (mode A) is away, refuses, or is copied to. In the other modes the
    /// in-sync set tells that.
    #[must_use]
    pub fn feeds_all(&self) -> bool {
        self.mode() != Mode::A || self.peers.values().all(Peer::fed_whole)
    }

    /// Bytes of the log that were acknowledged from memory and are not committed. `None` unless
    /// this replica is a primary that serves in mode B.
    #[must_use]
    pub fn cached_bytes(&self) -> Option<u64> {
        (self.serving() && self.mode() == Mode::B).then(|| self.sequence.in_flight.cached_bytes())
    }

    /// Everything up to here is known to be committed.
    #[must_use]
    pub fn committed(&self) -> Index {
        self.log.commit
    }

    /// Version of the record that this replica acts on.
    #[must_use]
    pub fn record_version(&self) -> ConfigVersion {
        self.version()
    }

    fn peer_status(&self, peer: &Peer, now: Time) -> PeerStatus {
        PeerStatus {
            member: peer.member,
            state: self.peer_state(peer),
            required: peer.required(),
            in_iss: peer.is_member(),
            durable: peer.durable,
            copied: copied(peer),
            lag: self.lag(peer),
            latency_us: peer.latency_us(now, self.slow_limits.for_ms),
            slow: peer.slow.out.map(|out| SlowStatus {
                since_us: out.since,
                latency_us: out.latency_us,
                returns_us: self.returns_at(peer).unwrap_or(out.since),
            }),
            copy: self.copy_status(peer),
        }
    }

    fn copy_status(&self, peer: &Peer) -> Option<CopyStatus> {
        let Link::Streaming(stream) = &peer.link else { return None };
        let progress = &stream.copy.as_ref()?.progress;
        let bytes_per_s = progress.rate(self.now)?.saturating_mul(EXTENT_BYTES) / 1000;
        Some(CopyStatus { bytes_per_s, left_ms: progress.left_ms(self.now)? })
    }

    fn peer_state(&self, peer: &Peer) -> PeerState {
        match &peer.link {
            Link::Down => PeerState::Disconnected,
            Link::Attaching | Link::Cutting { .. } => PeerState::Attaching,
            Link::Stale | Link::Beginning { .. } => PeerState::Copying,
            Link::Refused => PeerState::Failed,
            Link::Streaming(stream) => match &stream.copy {
                Some(_) => PeerState::Copying,
                None if peer.joins() => PeerState::Joining,
                None if peer.is_member() && self.serving() => PeerState::InSync,
                None if self.mode() == Mode::A && !self.admits(peer.member.node) => PeerState::Following,
                None => PeerState::CatchingUp,
            },
        }
    }

    /// Whether it led although its files are an older copy, and no primary has fed it since.
    #[must_use]
    pub fn is_older(&self) -> bool {
        self.older
    }

    /// Returns the reasons that keep this replica from doing its work, one sentence each.
    fn waiting_for(&self) -> Vec<String> {
        let mut out = Vec::new();
        if let Some(fence) = self.fence {
            out.push(
                match fence {
                    Fence::StoreFailed => "its store failed; replace the disk or restart the node",
                    Fence::Restarted => "it was restarted in its epoch; waits for a new promotion",
                    Fence::NotEligible => {
                        "it was named primary but its data is not whole or not the recorded one"
                    }
                    Fence::Older => {
                        "another replica holds acknowledged entries that this one lacks: the files of this replica are an older copy"
                    }
                    Fence::Unproven => {
                        "it was opened anew and may lack what it had acknowledged from memory; waits for one that has it"
                    }
                    Fence::Outlived => "a higher epoch exists; waits for the record that says whose",
                    Fence::LeaseEnded => "the lease of its node had ended; waits for the next promotion",
                    Fence::Demoted => "it was demoted; waits for the next promotion",
                }
                .to_owned(),
            );
        }
        if self.leading() {
            match self.epoch_start {
                None => out.push("its own journal, to promise the new epoch".to_owned()),
                Some(start) if self.log.end.index < start => {
                    out.push("room in the journal for the start of its epoch".to_owned());
                }
                Some(_) => {}
            }
        }
        if let Some(short) = self.short_of_copies() {
            let fail = if self.refuses_for_copies() { "writes fail" } else { "writes wait" };
            out.push(format!(
                "{} copies are wanted (min-copies) and {} in sync; {fail} until there are as many",
                short.wanted,
                if short.there == 1 { "one is".to_owned() } else { format!("{} are", short.there) }
            ));
        }
        for (node, peer) in &self.peers {
            if !peer.required() {
                continue;
            }
            let what = match &peer.link {
                Link::Down if self.stays_for_copies(peer) => "is disconnected; waits for it",
                Link::Down => "is disconnected; waits for it or for its removal from the in-sync set",
                Link::Attaching | Link::Cutting { .. } => "has not answered the new epoch yet",
                Link::Stale | Link::Beginning { .. } => "needs a copy and must leave the in-sync set first",
                Link::Refused => "refuses; waits for its removal from the in-sync set",
                Link::Streaming(_)
                    if peer.durable < self.log.commit.max(self.epoch_start.unwrap_or_default()) =>
                {
                    "has not acknowledged enough yet"
                }
                Link::Streaming(_) => continue,
            };
            out.push(format!("member {node} {what}"));
        }
        if self.role == Role::Primary
            && self.log.durable == self.log.end.index
            && !self.sequence.nothing_open()
        {
            let what = match () {
                () if self.paused => "new writes are held",
                () if self.held_by_lag() => "a follower that lags too far (mode A)",
                () => "room in the journal",
            };
            out.push(what.to_owned());
        }
        out
    }
}

/// How far the extent copy to a peer is, if one is under way or about to begin.
fn copied(peer: &Peer) -> Option<(u64, u64)> {
    match &peer.link {
        Link::Stale | Link::Beginning { .. } => Some((0, 0)),
        Link::Streaming(stream) => stream.copy.as_ref().map(|copy| (copy.progress.done, copy.progress.total)),
        _ => None,
    }
}
