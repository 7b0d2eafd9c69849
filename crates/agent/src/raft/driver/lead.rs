//! Duties of the leader for the log: members, lost snapshots, and handing over the lead.

use super::reach::is_caught_up;
use super::{Driver, StateEntry, node_of};
use crate::clock;
use crate::messages::{LogLag, Proposal, ProposalId};
use crate::threads::lock;
use mainstay_control::handover::Decision;
use mainstay_control::state::Command;
use mainstay_types::NodeId;
use raft::eraftpb::{ConfChange, ConfChangeType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A snapshot that was not confirmed within this time is taken for lost.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);
/// How often a vote is asked for a node that joins.
const SEAT_PAUSE: Duration = Duration::from_millis(300);

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

    /// Gives a node that joins its vote when it has answered at its address with all entries in its
    /// log (R29).
    fn seat(&mut self) {
        if self.seated.is_some_and(|last| last.elapsed() < SEAT_PAUSE) {
            return;
        }
        let proven = |node: &NodeId| {
            let id = u64::from(node.0);
            self.conf_state.learners.contains(&id) && self.is_active(id) && is_caught_up(&self.raw, id)
        };
        if let Some(node) = self.machine.state.next_seat(proven) {
            self.seated = Some(Instant::now());
            let entry = StateEntry { at_ms: clock::wall_ms(), command: Command::SeatNode { node } };
            self.append(&Proposal { id: ProposalId::random(), entry });
        }
    }

    /// Whether the leader has had an answer of `node` lately.
    fn is_active(&self, node: u64) -> bool {
        self.raw.raft.prs().get(node).is_some_and(|progress| progress.recent_active)
    }

    fn next_member_change(&self) -> Option<ConfChange> {
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
        // One that could not join.
        if let Some(&node) = self.conf_state.learners.iter().find(|node| !wanted.contains(node)) {
            return Some(change(ConfChangeType::RemoveNode, node));
        }
        self.conf_state
            .learners
            .iter()
            .find(|&&node| voters.contains(&node) && self.is_active(node) && is_caught_up(&self.raw, node))
            .map(|&node| change(ConfChangeType::AddNode, node))
    }
}
