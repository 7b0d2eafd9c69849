//! What the agent is told about a replica.

use super::{Host, Shared};
use mainstay_api::engine::{DataState, EngineEvent, PeerState, PeerStatus, ReplicaStatus, Role};
use mainstay_codec::ReplicaData;
use mainstay_replica::{PeerState as Seen, Role as CoreRole, StepDownReason};

/// Shortest time between two reports of progress, in milliseconds.
const PROGRESS_MS: u64 = 250;

impl Host {
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let status = self.replica.status();
        let config = self.store.config();
        let peers = status.peers.iter().map(|peer| {
            let (state, lag_bytes, copied_permille) = match peer.state {
                Seen::Disconnected => (PeerState::Disconnected, 0, 0),
                Seen::Attaching => (PeerState::Attaching, 0, 0),
                Seen::CatchingUp { lag_bytes } => (PeerState::CatchingUp, lag_bytes.unwrap_or(0), 0),
                Seen::Copying { done, total } => (PeerState::Copying, 0, (done * 1000 / total.max(1)) as u16),
                Seen::InSync => (PeerState::InSync, 0, 0),
                Seen::Joining => (PeerState::Joining, 0, 0),
                Seen::Refused => (PeerState::Failed, 0, 0),
            };
            PeerStatus {
                node: peer.member.node,
                state,
                lag_bytes,
                lag_entries: peer.lag_entries,
                copied_permille,
            }
        });
        ReplicaStatus {
            resource: self.resource,
            name: self.name.clone(),
            incarnation: config.incarnation,
            role: match status.role {
                CoreRole::Secondary => Role::Secondary,
                CoreRole::Promoting => Role::Promoting,
                CoreRole::Primary => Role::Primary,
                // Once its devices are gone a replica that was asked to step back is as good as a secondary.
                CoreRole::Fenced if self.demoted && self.is_withdrawn() => Role::Secondary,
                CoreRole::Fenced => Role::Fenced,
            },
            epoch: status.epoch,
            version: status.version,
            commit: status.commit,
            end: status.end.index,
            durable: status.durable,
            data: match (&self.failed, status.data) {
                (Some(_), _) => DataState::Failed,
                (None, ReplicaData::Consistent) => DataState::Consistent,
                (None, ReplicaData::Inconsistent) => DataState::Inconsistent,
            },
            paused: self.paused_until.is_some(),
            promoted_at_us: self.promoted_at,
            journal_bytes_used: config.journal_bytes.saturating_sub(self.store.room()),
            journal_bytes: config.journal_bytes,
            volumes: config.volumes.clone(),
            requests: self.pending.len(),
            waiting_for: status.waiting_for.clone(),
            peers: peers.collect(),
            devices: self.device_list(),
            proposal: self.proposal.clone(),
        }
    }

    /// Tells the agent about a change at once, and about mere progress a few times per second at most, when
    /// something else happens anyway: an idle resource reports nothing.
    pub(super) fn report(&mut self, shared: &mut Shared<'_>) {
        let busy = self.role == CoreRole::Primary && shared.now.ms_since(self.reported_at) >= PROGRESS_MS;
        if self.dirty || busy {
            self.dirty = false;
            self.reported_at = shared.now;
            shared.events.push(EngineEvent::Replica(self.status()));
        }
    }
}

pub(super) fn step_down_words(reason: StepDownReason) -> &'static str {
    match reason {
        StepDownReason::StoreFailed => "store-failed",
        StepDownReason::Restarted => "restarted",
        StepDownReason::NotEligible => "not-eligible",
    }
}
