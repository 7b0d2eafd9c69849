//! Membership of the in-sync set: shrink (R3) and grow (R4).
//!
//! The two are mirror images. A member leaves the required set only *after* the primary has learnt
//! that the member is out of the record. A joiner enters the required set *before* its entry into
//! the record is proposed. It leaves the set only when the version has moved on without it. So the
//! required set is always a superset of every ISS that is or may become recorded. A replica that is
//! promoted out of it holds every acknowledged write.

use crate::peer::{AskedChange, Joining, Link};
use crate::{Effect, Fence, Replica};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    ConfigVersion, IssChange, Member, NodeId, Proposal, ProposedChange, ResourceRecord, Role, ShrinkReason,
    StepDownReason, Time, reach,
};

/// Change that is due about a peer.
enum Verdict {
    Fine,
    Remove(ShrinkReason),
    GiveUpJoin(ShrinkReason),
    Join,
    Record,
    Trust,
    Part,
    Failover,
    Memory,
    Reattach,
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
            let peer =
                self.peers.entry(member.node).or_insert_with(|| crate::peer::Peer::new(*member, in_iss, now));
            let latency_us = peer.latency_us(now, limits.for_ms);
            peer.slow.recorded(record.version, (peer.in_iss, in_iss), latency_us, now, &limits);
            peer.in_iss = in_iss;
            peer.failover_recorded = record.failover_ready.contains(member);
            if peer.failover_recorded
                || peer.failover_proposed.is_some_and(|version| version < record.version)
            {
                peer.failover_proposed = None;
            }
            if in_iss {
                peer.joining = None;
            } else if !record.admits(member.node) && peer.joining.is_some() {
                // From now on mode A. A proposal on an older version can no longer take effect.
                reach!("replica: a joiner need not join any more");
                peer.joining = None;
            } else if let Some(joining) = &mut peer.joining {
                // The change on an older version can no longer happen.
                if joining.proposed.is_some_and(|version| version < record.version) {
                    reach!("replica: a proposal to join came to nothing");
                    joining.proposed = None;
                }
            }
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
        let verdict = self.verdict(node);
        let Some(peer) = self.peers.get_mut(&node) else { return };
        let member = peer.member;
        match verdict {
            Verdict::Fine => {}
            Verdict::Remove(why) => {
                reach!("replica: a shrink is due");
                if matches!(peer.link, Link::Streaming(_)) {
                    peer.slow.leaves(version, why == ShrinkReason::Absent);
                }
                if planted(Bug::ShrinkBeforeKnown) {
                    peer.in_iss = false;
                }
                self.propose(IssChange::Shrink { remove: member, why });
                self.advance_commit_if(Bug::ShrinkBeforeKnown);
            }
            Verdict::GiveUpJoin(why) => {
                reach!("replica: a joiner is given up");
                peer.joining = None;
                if matches!(peer.link, Link::Streaming(_)) {
                    reach!("replica: a joiner is too slow");
                    let latency_us = peer.latency_us(now, limits.for_ms);
                    peer.slow.left(latency_us, why == ShrinkReason::Absent, now, &limits);
                }
                self.begin_copy(node);
                self.advance_commit();
            }
            Verdict::Join => {
                reach!("replica: a peer becomes required to join");
                if planted(Bug::GrowBeforeRequired) {
                    self.propose(IssChange::Grow { add: member });
                } else {
                    peer.joining = Some(Joining { proposed: None });
                    // Its feed may have yielded to clients. From now on their writes wait for this
                    // peer.
                    self.pump(node);
                    self.review_peer(node);
                }
            }
            Verdict::Record => {
                reach!("replica: a grow is due");
                if let Some(joining) = &mut peer.joining {
                    joining.proposed = Some(version);
                }
                self.propose(IssChange::Grow { add: member });
            }
            Verdict::Trust => {
                reach!("replica: an unverified peer has nothing that the history has not");
                self.propose(IssChange::Trust { member });
            }
            Verdict::Failover => self.record_failover_ready(node),
            Verdict::Memory => self.propose_memory(node),
            Verdict::Part => {
                let (common, end) = peer.diverged.unwrap_or_default();
                self.propose(IssChange::Part { member, common, end });
            }
            Verdict::Reattach => {
                reach!("replica: a peer that refused is asked again");
                self.attach(node);
            }
        }
    }

    fn advance_commit_if(&mut self, bug: Bug) {
        if planted(bug) {
            self.advance_commit();
        }
    }

    fn verdict(&self, node: NodeId) -> Verdict {
        let Some(peer) = self.peers.get(&node) else { return Verdict::Fine };
        // Every time in `peer_deadline` is of something that is done here when it comes: one that
        // has passed and is left for something else would be waited for without end. Seed 239526.
        if self.retry_at(node).is_some_and(|due| due <= self.now) {
            return Verdict::Reattach;
        }
        if self.failover_change(peer).is_some() {
            return Verdict::Failover;
        }
        if peer.diverged.is_some() {
            // It was trusted before its copy was interrupted, and half a copy looks like another
            // history. Seed 271574.
            return if self.unverified(node) { Verdict::Part } else { Verdict::Reattach };
        }
        let fails = || self.fails_at(node).is_some_and(|due| due <= self.now);
        let why = if !peer.required() {
            None
        } else if fails() {
            let stays = self.stays_for_copies(peer);
            if stays {
                reach!("replica: a member that does not answer stays because too few copies remain");
            }
            (!stays).then_some(ShrinkReason::Absent)
        } else {
            self.too_slow(node).then_some(ShrinkReason::Slow)
        };
        if let Some(why) = why {
            if peer.joining.is_some_and(|joining| joining.proposed.is_some()) {
                reach!("replica: a joiner that may be recorded fails");
            }
            let may_still_happen =
                peer.joining.is_some_and(|joining| joining.proposed.is_some()) && !planted(Bug::GiveUpJoin);
            return if peer.in_iss || may_still_happen {
                Verdict::Remove(why)
            } else {
                Verdict::GiveUpJoin(why)
            };
        }
        if self.memory_change(peer).is_some() {
            return Verdict::Memory;
        }
        match &peer.link {
            Link::Streaming(stream)
                if (stream.copy.is_none() || planted(Bug::JoinWhileCopied))
                    && !peer.in_iss
                    && self.serving() =>
            {
                match peer.joining {
                    _ if self.unverified(node) => Verdict::Trust,
                    Some(_) if peer.durable >= self.answered() || planted(Bug::GrowBeforeCaughtUp) => {
                        Verdict::Record
                    }
                    Some(_) => Verdict::Fine,
                    None if self.must_wait(peer) || self.sequence.demoting || !self.admits(node) => {
                        Verdict::Fine
                    }
                    None => match self.sequence.sealed.lag_bytes(peer.durable, self.log.end.index) {
                        Some(lag) if lag < self.config.join_lag_bytes => Verdict::Join,
                        _ => Verdict::Fine,
                    },
                }
            }
            _ => Verdict::Fine,
        }
    }

    /// When a required peer is to be taken for failed, as things stand.
    pub(crate) fn fails_at(&self, node: NodeId) -> Option<Time> {
        let peer = self.peers.get(&node)?;
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
    fn retry_at(&self, node: NodeId) -> Option<Time> {
        let peer = self.peers.get(&node)?;
        match peer.link {
            Link::Refused if peer.diverged.is_some() => None,
            Link::Refused if planted(Bug::AskOnce) => None,
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
        let peers = self.peers.iter().filter_map(|(node, peer)| self.peer_deadline(*node, peer, repeat));
        peers
            .chain(own)
            .chain(self.own_memory_deadline())
            .chain(self.commit_deadline())
            .chain(self.copies_deadline())
            .chain(self.background_deadline())
            .chain(self.scrub_deadline())
            .min()
    }

    fn peer_deadline(&self, node: NodeId, peer: &crate::peer::Peer, repeat: u64) -> Option<Time> {
        let member = peer.member;
        let asked_again = |change: IssChange| {
            peer.asked.filter(|asked| asked.is(&change, self.version())).map(|asked| asked.at.plus_ms(repeat))
        };
        let shrink = IssChange::Shrink { remove: member, why: ShrinkReason::Absent };
        // What is to be recorded comes first, see `verdict`.
        let waits = self.failover_change(peer).is_some() || peer.diverged.is_some();
        let fails = if peer.required() && !waits { self.fails_at(node) } else { None };
        let fails = fails.filter(|due| *due > self.now || !self.stays_for_copies(peer));
        let remove = fails.map(|due| if due > self.now { due } else { asked_again(shrink).unwrap_or(due) });
        let streaming = matches!(&peer.link, Link::Streaming(stream) if stream.copy.is_none());
        let grow = if peer.joining.is_some_and(|joining| joining.proposed.is_some()) && streaming {
            asked_again(IssChange::Grow { add: member })
        } else {
            None
        };
        let doubt = match () {
            () if let Some(change) = self.failover_change(peer) => asked_again(change),
            () if let Some(instance) = self.memory_change(peer) => {
                asked_again(IssChange::Memory { member, instance })
            }
            () if let Some((common, end)) = peer.diverged => {
                asked_again(IssChange::Part { member, common, end })
            }
            () if streaming && self.unverified(node) => asked_again(IssChange::Trust { member }),
            () => None,
        };
        let lag = self.lag_deadline(node, peer);
        let quiet = self.returns_at(peer).filter(|at| *at > self.now && streaming && !peer.required());
        let slow = self.slow_deadline(peer).filter(|at| !waits || *at > self.now);
        [remove, grow, doubt, lag, quiet, slow, self.retry_at(node)].into_iter().flatten().min()
    }

    /// Version of the record that this replica holds.
    pub(crate) fn version(&self) -> ConfigVersion {
        self.record.as_ref().map_or(ConfigVersion(0), |record| record.version)
    }
}
