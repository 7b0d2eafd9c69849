//! Duties of the leader for the log: members, lost snapshots, and handing over the lead.

use super::reach::is_caught_up;
use super::{Driver, StateEntry, node_of};
use crate::clock;
use crate::level;
use crate::messages::{LogLag, Proposal, ProposalId};
use crate::threads::lock;
use mainstay_control::handover::Decision;
use mainstay_control::state::Command;
use mainstay_control::votes::{DEAD_VOTER_MS, next_vote};
use mainstay_types::NodeId;
use raft::eraftpb::{ConfChange, ConfChangeType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A snapshot that was not confirmed within this time is taken for lost.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);
/// How often a vote is asked for a node that joins.
const SEAT_PAUSE: Duration = Duration::from_millis(300);
/// How long a removed node that answers stays in the log's members to learn of its removal.
const TOLD_WITHIN: Duration = Duration::from_millis(400);
const PART_PATIENCE: Duration = Duration::from_secs(3);

impl Driver {
    /// Does the duties of a leader: brings the members in line with the cluster state, one at a
    /// time, and notices lost snapshots. Hands the lead over when a voter is silent that other
    /// nodes may hear.
    pub(super) fn lead(&mut self) {
        self.note_lags();
        if self.raw.raft.state != StateRole::Leader {
            self.snapshots_sent.clear();
            self.reach.follow();
            return;
        }
        let progress = self.raw.raft.prs();
        let lost: Vec<u64> = self
            .snapshots_sent
            .iter()
            .filter(|(_, sent)| sent.elapsed() > SNAPSHOT_PATIENCE)
            .map(|(&peer, _)| peer)
            .collect();
        let stuck: Vec<u64> = lost
            .iter()
            .copied()
            .filter(|&peer| {
                progress.get(peer).is_some_and(|progress| progress.state == ProgressState::Snapshot)
            })
            .collect();
        for peer in lost {
            self.snapshots_sent.remove(&peer);
        }
        for peer in stuck {
            self.raw.report_snapshot(peer, SnapshotStatus::Failure);
        }
        if self.raw.raft.has_pending_conf() {
            return;
        }
        let state = &self.machine.state;
        if state.is_removed(self.node) {
            // The next leader takes this node out of the log's members.
            return self.give_lead_away();
        }
        if let Some(Decision { to, silent }) =
            self.reach.hand_over(&mut self.raw, &self.conf_state.voters, state)
        {
            tracing::info!(node = %self.node, %silent, %to, "a voter that counts as alive does not answer: handing over the lead");
            return;
        }
        self.seat();
        if let Some(change) = self.next_member_change()
            && let Err(error) = self.raw.propose_conf_change(Vec::new(), change)
        {
            tracing::debug!(%error, "a change of members was dropped; it is proposed again");
        }
    }

    /// Hands the lead to another voter that lives and has all entries.
    fn give_lead_away(&mut self) {
        let (state, own) = (&self.machine.state, self.raw.raft.id);
        let others = self.conf_state.voters.iter().copied().filter(|id| *id != own);
        let able = |id: &u64| {
            let votes = node_of(*id).is_some_and(|node| state.alive(node) && state.voters().contains(&node));
            votes && self.is_active(*id) && is_caught_up(&self.raw, *id)
        };
        if let Some(to) = others.into_iter().find(able) {
            self.raw.transfer_leader(to);
        }
    }

    /// Notes which voters lack entries although they live, and since when: heartbeats are small and
    /// may pass where entries do not.
    fn note_lags(&mut self) {
        let leads = self.raw.raft.state == StateRole::Leader;
        let (own, log) = (self.raw.raft.id, &self.raw.raft.raft_log);
        let (committed, last) = (log.committed, log.last_index());
        let mut lags = BTreeMap::new();
        let mut confirmed = BTreeMap::new();
        let voters = self.conf_state.voters.iter().copied().filter(|id| leads && *id != own);
        for (id, node) in voters.filter_map(|id| Some((id, node_of(id)?))) {
            let matched = self.raw.raft.prs().get(id).map_or(0, |progress| progress.matched);
            if matched >= committed || !self.machine.state.alive(node) {
                continue;
            }
            let before = self.confirmed.get(&id).filter(|(before, _)| *before == matched);
            let since = before.map_or_else(Instant::now, |(_, since)| *since);
            confirmed.insert(id, (matched, since));
            let ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
            lags.insert(node, LogLag { entries: last.saturating_sub(matched), ms });
        }
        self.confirmed = confirmed;
        *lock(&self.shared.lags) = lags;
    }

    /// Makes a node that joins a member when it has answered at its address with all entries in its
    /// log (R29). Gives and takes votes, so that the right number of members has one. Raises the
    /// feature level when every node has it, and goes on with a rotation of the authority when
    /// every node is so far.
    fn seat(&mut self) {
        let state = &self.machine.state;
        let own = self.node;
        self.dead_since.retain(|node, _| state.nodes.contains_key(node) && !state.alive(*node));
        for node in state.nodes.keys().filter(|node| !state.alive(**node)) {
            self.dead_since.entry(*node).or_insert_with(Instant::now);
        }
        if self.seated.is_some_and(|last| last.elapsed() < SEAT_PAUSE) {
            return;
        }
        let proven = |node: &NodeId| {
            let id = u64::from(node.0);
            self.conf_state.learners.contains(&id) && self.is_active(id) && is_caught_up(&self.raw, id)
        };
        let long_dead = |node: NodeId| {
            self.dead_since
                .get(&node)
                .is_some_and(|since| since.elapsed() >= Duration::from_millis(DEAD_VOTER_MS))
        };
        let seat = state.next_seat(proven).map(|node| Command::SeatNode { node });
        let vote = || next_vote(state, own, long_dead, |node| proven(&node));
        let raise = || {
            let level = state.next_level().filter(|level| *level <= level::own())?;
            Some(Command::RaiseLevel { level })
        };
        let rotate = || state.next_rotation_step();
        let command = seat.or_else(vote).or_else(raise).or_else(rotate);
        if let Some(command) = command {
            self.seated = Some(Instant::now());
            let entry = StateEntry { at_ms: clock::wall_ms(), command };
            self.append(&Proposal { id: ProposalId::random(), entry });
        }
    }

    /// Whether a node that was removed has received the entry that says so, or has had the time to.
    fn has_been_told(&mut self, node: u64) -> bool {
        let last = self.raw.raft.raft_log.last_index();
        let (known, index, since) = *self.parting.get_or_insert((node, last, Instant::now()));
        if known != node {
            self.parting = None;
            return false;
        }
        let has = self.raw.raft.prs().get(node).is_some_and(|progress| progress.matched >= index);
        // The end of what is committed comes with the next heartbeat.
        let told = has && since.elapsed() > TOLD_WITHIN;
        told || since.elapsed() > PART_PATIENCE || !self.is_active(node)
    }

    /// Whether the leader has had an answer of `node` lately.
    fn is_active(&self, node: u64) -> bool {
        self.raw.raft.prs().get(node).is_some_and(|progress| progress.recent_active)
    }

    fn next_member_change(&mut self) -> Option<ConfChange> {
        let wanted: BTreeSet<u64> = self.machine.state.nodes.keys().map(|node| u64::from(node.0)).collect();
        let voters: BTreeSet<u64> =
            self.machine.state.voters().iter().map(|node| u64::from(node.0)).collect();
        let change = |kind, node_id| {
            let mut change = ConfChange { node_id, ..ConfChange::default() };
            change.set_change_type(kind);
            change
        };
        let known =
            |node: u64| self.conf_state.voters.contains(&node) || self.conf_state.learners.contains(&node);
        if let Some(&node) = wanted.iter().find(|&&node| !known(node)) {
            return Some(change(ConfChangeType::AddLearnerNode, node));
        }
        // One that could not join, or was removed.
        let members = self.conf_state.learners.iter().chain(&self.conf_state.voters);
        if let Some(node) = members.copied().find(|node| !wanted.contains(node)) {
            let told = self.has_been_told(node);
            return told.then(|| change(ConfChangeType::RemoveNode, node));
        }
        self.parting = None;
        // A member that has lost its vote receives the log as before.
        let own = self.raw.raft.id;
        let is_voter = |node: &&u64| !voters.contains(*node) && **node != own;
        if let Some(&node) = self.conf_state.voters.iter().find(is_voter) {
            return Some(change(ConfChangeType::AddLearnerNode, node));
        }
        self.conf_state
            .learners
            .iter()
            .find(|&&node| voters.contains(&node) && self.is_active(node) && is_caught_up(&self.raw, node))
            .map(|&node| change(ConfChangeType::AddNode, node))
    }
}
