//! What the leader does for the log: members, lost snapshots, and handing over the lead.

use super::Driver;
use super::reach::is_caught_up;
use mainstay_control::handover::Decision;
use raft::eraftpb::{ConfChange, ConfChangeType};
use raft::{ProgressState, SnapshotStatus, StateRole};
use std::collections::BTreeSet;
use std::time::Duration;

/// A snapshot that was not confirmed within this time is taken for lost.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(5);

impl Driver {
    /// What only the leader does: bring the members in line with the cluster state, one at a time, notice
    /// lost snapshots, and hand over when it does not hear somebody whom others hear.
    pub(super) fn lead(&mut self) {
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
        if let Some(change) = self.next_member_change()
            && let Err(error) = self.raw.propose_conf_change(Vec::new(), change)
        {
            tracing::debug!(%error, "a change of members was dropped; it is proposed again");
        }
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
        let active = |node: u64| self.raw.raft.prs().get(node).is_some_and(|progress| progress.recent_active);
        self.conf_state
            .learners
            .iter()
            .find(|&&node| voters.contains(&node) && active(node) && is_caught_up(&self.raw, node))
            .map(|&node| change(ConfChangeType::AddNode, node))
    }
}
