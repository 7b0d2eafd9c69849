//! Membership of the in-sync set: shrink (R3) and grow (R4).
//!
//! The two are mirror images. A member leaves the required set only *after* the primary has learnt
//! that the member is out of the record. A joiner enters the required set *before* its entry into
//! the record is proposed. It leaves the set only when the version has moved on without it. So the
//! required set is always a superset of every ISS that is or may become recorded. A replica that is
//! promoted out of it holds every acknowledged write.
//!
//! Each condition has one function. A peer is *required* by its [`Membership`]. It *fails* by the
//! state of its link and the time. It *leaves* when it fails or is too slow (`slow.rs`), unless too
//! few copies would remain (`copies.rs`). It *joins* when it is fed, whole and near the end, and
//! has kept up. `due` puts them in order, for the review of a peer and for its deadline alike.

use crate::peer::{AskedChange, Failover, Link, Membership, Peer};
use crate::{Effect, Fence, Replica};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    ConfigVersion, IssChange, Member, NodeId, Proposal, ProposedChange, ResourceRecord, Role, ShrinkReason,
    StepDownReason, Time, reach,
};

/// Step that is due about a peer.
enum Due {
    Nothing,
    Reattach,
    GiveUpJoin(ShrinkReason),
    Join,
    Propose(IssChange),
}

impl Replica {
    /// Takes the membership of a newer record of this epoch.
    pub(crate) fn adopt_members(&mut self, record: &ResourceRecord) {
        let (own, limits) = (self.config.node, self.slow_limits);
        let wanted = |member: &Member| record.replica(member.node) == Some(*member);
        self.peers.retain(|_, peer| wanted(&peer.member) || record.iss.contains(&peer.member));
        for member in record.replicas.iter().chain(&record.iss).filter(|member| member.node != own) {
            let in_iss = record.iss.contains(member);
            let now = self.now;
            let peer = self.peers.entry(member.node).or_insert_with(|| Peer::new(*member, in_iss, now));
            let latency_us = peer.latency_us(now, limits.for_ms);
            peer.slow.recorded(record.version, (peer.is_member(), in_iss), latency_us, now, &limits);
            peer.membership = match peer.membership {
                _ if in_iss => Membership::Member,
                // From now on mode A. A proposal on an older version can no longer take effect.
                Membership::Joining { .. } if !record.admits(member.node) => {
                    reach!("replica: a joiner need not join any more");
                    Membership::Outside
                }
                // The change on an older version can no longer happen.
                Membership::Joining { proposed: Some(version) } if version < record.version => {
                    reach!("replica: a proposal to join came to nothing");
                    Membership::Joining { proposed: None }
                }
                Membership::Member => Membership::Outside,
                same => same,
            };
            peer.failover = match peer.failover {
                _ if record.failover_ready.contains(member) => Failover::Recorded,
                Failover::Proposed(version) if version >= record.version => peer.failover,
                _ => Failover::Unbound,
            };
        }
        self.attach_connected();
        let stale: Vec<NodeId> =
            self.peers.iter().filter(|(_, p)| matches!(p.link, Link::Stale)).map(|(n, _)| *n).collect();
        for node in stale {
            self.begin_copy(node);
        }
        self.advance_commit();
    }

    /// Takes the steps that are due, peer by peer: at most `REPLICAS_MAX` peers, a few comparisons
    /// each.
    pub(crate) fn review(&mut self) {
        self.review_own();
        if self.epoch_start.is_none() {
            return;
        }
        let nodes: [Option<NodeId>; mainstay_types::REPLICAS_MAX] = {
            let mut nodes = [None; mainstay_types::REPLICAS_MAX];
            for (slot, node) in nodes.iter_mut().zip(self.peers.keys()) {
                *slot = Some(*node);
            }
            nodes
        };
        for node in nodes.into_iter().flatten() {
            self.review_peer(node);
        }
        self.review_own_memory();
    }

    fn review_peer(&mut self, node: NodeId) {
        let (version, now) = (self.version(), self.now);
        let limits = self.slow_limits;
        self.watch(node);
        self.watch_lag(node);
        let due = self.peers.get(&node).map_or(Due::Nothing, |peer| self.due(peer));
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let streaming = matches!(peer.link, Link::Streaming(_));
        match due {
            Due::Nothing => {}
            Due::Reattach => {
                reach!("replica: a peer that refused is asked again");
                self.attach(node);
            }
            Due::GiveUpJoin(why) => {
                reach!("replica: a joiner is given up");
                peer.membership = Membership::Outside;
                if streaming {
                    reach!("replica: a joiner is too slow");
                    let latency_us = peer.latency_us(now, limits.for_ms);
                    peer.slow.left(latency_us, why == ShrinkReason::Absent, now, &limits);
                }
                self.begin_copy(node);
                self.advance_commit();
            }
            Due::Join => {
                reach!("replica: a peer becomes required to join");
                if planted(Bug::GrowBeforeRequired) {
                    let add = peer.member;
                    self.propose(IssChange::Grow { add });
                } else {
                    peer.membership = Membership::Joining { proposed: None };
                    // Its feed may have yielded to clients. From now on their writes wait for this
                    // peer.
                    self.pump(node);
                    self.review_peer(node);
                }
            }
            Due::Propose(change) => {
                match change {
                    IssChange::Shrink { why, .. } => {
                        reach!("replica: a shrink is due");
                        if streaming {
                            peer.slow.leaves(version, why == ShrinkReason::Absent);
                        }
                        if planted(Bug::ShrinkBeforeKnown) && peer.is_member() {
                            peer.membership = Membership::Outside;
                        }
                    }
                    IssChange::Grow { .. } => {
                        reach!("replica: a grow is due");
                        peer.membership = Membership::Joining { proposed: Some(version) };
                    }
                    IssChange::Trust { .. } => {
                        reach!("replica: an unverified peer has nothing that the history has not");
                    }
                    IssChange::Part { .. } => {}
                    IssChange::Memory { .. } => {
                        reach!("replica: the instance in which a member counts is to be recorded");
                    }
                    IssChange::FailoverReady { .. } | IssChange::NotFailoverReady { .. } => {
                        reach!("replica: the failover-ready followers change");
                        if matches!(change, IssChange::FailoverReady { .. }) {
                            peer.failover = Failover::Proposed(version);
                        } else if planted(Bug::UnreadyBeforeKnown) {
                            peer.failover = Failover::Unbound;
                        }
                    }
                }
                self.propose(change);
                if planted(Bug::ShrinkBeforeKnown) {
                    self.advance_commit();
                }
            }
        }
    }

    /// The step that is due about a peer now. [`peer_deadline`](Self::peer_deadline) asks this
    /// function as well, and adds the times at which the answer may become another one. So a time
    /// that has passed is never waited for. Seed 239526.
    fn due(&self, peer: &Peer) -> Due {
        let member = peer.member;
        if self.retry_at(peer).is_some_and(|due| due <= self.now) {
            return Due::Reattach;
        }
        if let Some(change) = self.failover_change(peer) {
            return Due::Propose(change);
        }
        if let Some((common, end)) = peer.diverged {
            // It was trusted before its copy was interrupted, and half a copy looks like another
            // history. Seed 271574.
            let part = Due::Propose(IssChange::Part { member, common, end });
            return if self.unverified(member) { part } else { Due::Reattach };
        }
        if let Some(why) = self.leaves(peer) {
            let proposed = matches!(peer.membership, Membership::Joining { proposed: Some(_) });
            if proposed {
                reach!("replica: a joiner that may be recorded fails");
            }
            return if peer.is_member() || (proposed && !planted(Bug::GiveUpJoin)) {
                Due::Propose(IssChange::Shrink { remove: member, why })
            } else {
                Due::GiveUpJoin(why)
            };
        }
        if let Some(instance) = self.memory_change(peer) {
            return Due::Propose(IssChange::Memory { member, instance });
        }
        let copied = matches!(peer.link, Link::Streaming(_)) && planted(Bug::JoinWhileCopied);
        if !(peer.fed_whole() || copied) || peer.is_member() || !self.serving() {
            return Due::Nothing;
        }
        if self.unverified(member) {
            return Due::Propose(IssChange::Trust { member });
        }
        if peer.joins() {
            let caught_up = peer.durable >= self.answered() || planted(Bug::GrowBeforeCaughtUp);
            return if caught_up { Due::Propose(IssChange::Grow { add: member }) } else { Due::Nothing };
        }
        let may = !self.must_wait(peer) && !self.sequence.demoting && self.admits(member.node);
        if may && self.is_near(peer) { Due::Join } else { Due::Nothing }
    }

    /// Why a required peer is to leave the required set now, if it is.
    fn leaves(&self, peer: &Peer) -> Option<ShrinkReason> {
        if !peer.required() {
            None
        } else if !self.fails(peer) {
            self.too_slow(peer).then_some(ShrinkReason::Slow)
        } else if self.stays_for_copies(peer) {
            reach!("replica: a member that does not answer stays because too few copies remain");
            None
        } else {
            Some(ShrinkReason::Absent)
        }
    }

    /// Whether a peer is to be taken for failed now, if commits wait for it.
    pub(crate) fn fails(&self, peer: &Peer) -> bool {
        self.fails_at(peer).is_some_and(|due| due <= self.now)
    }

    /// When a required peer is to be taken for failed, as things stand.
    pub(crate) fn fails_at(&self, peer: &Peer) -> Option<Time> {
        let timeout = self.config.member_timeout_ms;
        match &peer.link {
            Link::Down if planted(Bug::WaitForever) => None,
            Link::Down if self.role == Role::Promoting => Some(peer.since.plus_ms(timeout)),
            Link::Down => Some(peer.since.plus_ms(self.config.reconnect_grace_ms)),
            Link::Attaching | Link::Cutting { .. } | Link::Beginning { .. } => {
                Some(peer.since.plus_ms(timeout))
            }
            Link::Stale | Link::Refused => Some(peer.since),
            Link::Streaming(_) if peer.durable < self.log.end.index => {
                Some(peer.progress_at.plus_ms(timeout))
            }
            Link::Streaming(_) => None,
        }
    }

    /// When a peer that refused is asked again. A store that failed may have been opened again by
    /// then.
    fn retry_at(&self, peer: &Peer) -> Option<Time> {
        match peer.link {
            Link::Refused if peer.diverged.is_some() || planted(Bug::AskOnce) => None,
            Link::Refused => Some(peer.since.plus_ms(self.config.member_timeout_ms)),
            _ => None,
        }
    }

    /// Proposes a change about a peer; repeats it at most every so often while the version stands.
    pub(crate) fn propose(&mut self, change: IssChange) {
        let (version, epoch, now) = (self.version(), self.epoch, self.now);
        let repeat = self.config.proposal_repeat_ms;
        let Some(peer) = self.peers.get_mut(&change.member().node) else { return };
        let last = peer.asked.filter(|last| last.is(&change, version));
        if last.is_some_and(|last| last.at.plus_ms(repeat) > now) {
            return;
        }
        if last.is_some() {
            reach!("replica: a proposal is repeated");
        }
        peer.asked = Some(AskedChange { change, version, at: now });
        let change = ProposedChange::Iss(change);
        self.effects.push_back(Effect::Propose(Proposal { version, epoch, change }));
    }

    /// Asks to be relieved while the record names this replica and it cannot serve.
    fn review_own(&mut self) {
        let Some(reason) = self.relief() else { return };
        let (version, now) = (self.version(), self.now);
        let repeat = self.config.proposal_repeat_ms;
        if self.relief_asked.is_some_and(|(asked, at)| asked == version && at.plus_ms(repeat) > now) {
            return;
        }
        reach!("replica: a primary asks to be relieved");
        self.relief_asked = Some((version, now));
        let epoch = self.record.as_ref().map_or(self.epoch, |record| record.epoch);
        let change = ProposedChange::StepDown { reason };
        self.effects.push_back(Effect::Propose(Proposal { version, epoch, change }));
    }

    fn relief(&self) -> Option<StepDownReason> {
        let record = self.record.as_ref()?;
        if record.primary != Some(self.config.node) {
            return None;
        }
        match self.fence? {
            Fence::StoreFailed => Some(StepDownReason::StoreFailed),
            Fence::Restarted => Some(StepDownReason::Restarted),
            Fence::NotEligible => Some(StepDownReason::NotEligible),
            Fence::Older => Some(StepDownReason::Older),
            // Its node tells the content of its log: it may be the replica that holds most.
            Fence::Unproven | Fence::Outlived | Fence::LeaseEnded | Fence::Demoted => None,
        }
    }

    /// The next time at which something is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let repeat = self.config.proposal_repeat_ms;
        let own = self.relief().and(self.relief_asked).map(|(_, at)| at.plus_ms(repeat));
        if self.epoch_start.is_none() {
            return own;
        }
        let peers = self.peers.values().filter_map(|peer| self.peer_deadline(peer));
        peers
            .chain(own)
            .chain(self.own_memory_deadline())
            .chain(self.commit_deadline())
            .chain(self.copies_deadline())
            .chain(self.background_deadline())
            .chain(self.scrub_deadline())
            .min()
    }

    /// When the step that is due is repeated, or another one may be due.
    fn peer_deadline(&self, peer: &Peer) -> Option<Time> {
        let (now, due) = (self.now, self.due(peer));
        let again = match due {
            // `slow_deadline` has it.
            Due::Propose(IssChange::Shrink { why: ShrinkReason::Slow, .. }) => None,
            Due::Propose(change) => {
                let asked = peer.asked.filter(|asked| asked.is(&change, self.version()));
                Some(asked.map_or(now, |asked| asked.at.plus_ms(self.config.proposal_repeat_ms)))
            }
            _ => None,
        };
        // Changes that are to be recorded come first.
        let waits = matches!(
            due,
            Due::Propose(
                IssChange::FailoverReady { .. } | IssChange::NotFailoverReady { .. } | IssChange::Part { .. }
            )
        );
        let fails = self.fails_at(peer).filter(|at| *at > now && peer.required() && !waits);
        let quiet = self.returns_at(peer).filter(|at| *at > now && peer.fed_whole() && !peer.required());
        let (lag, slow) = (self.lag_deadline(peer), self.slow_deadline(peer));
        [again, fails, quiet, lag, slow, self.retry_at(peer)].into_iter().flatten().min()
    }

    /// Version of the record that this replica holds.
    pub(crate) fn version(&self) -> ConfigVersion {
        self.record.as_ref().map_or(ConfigVersion(0), |record| record.version)
    }
}
