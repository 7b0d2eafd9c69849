//! Reports on a replica for the agent.

use super::{OpenReplica, ShardParts};
use mainstay_api::engine::{EngineEvent, PeerStatus, ReplicaStatus, SnapshotStatus};
use mainstay_api::metrics::ReplicaMetrics;
use mainstay_host::Host;
use mainstay_replica::ScrubReport;
use mainstay_types::{DataState, Role, SnapshotId, SnapshotOn, StoreState, Time};

/// Shortest time between two reports of progress, in milliseconds.
const PROGRESS_MS: u64 = 250;

impl OpenReplica {
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        self.status_at(Time(0))
    }

    /// Status as of `now`. An unanswered write has an age, which grows also while nothing else
    /// happens.
    #[must_use]
    pub fn status_at(&self, now: Time) -> ReplicaStatus {
        let (host, around) = (&self.host, &self.around);
        let status = host.replica().status_at(now);
        let config = host.store().config();
        let peers = status.peers.iter().map(|peer| PeerStatus {
            node: peer.member.node,
            state: peer.state,
            lag_bytes: peer.lag.bytes,
            lag_entries: peer.lag.entries,
            lag_since_us: peer.lag.since.unwrap_or_default(),
            lag_more: peer.lag.more,
            copied_permille: peer.copied.map_or(0, |(done, total)| (done * 1000 / total.max(1)) as u16),
            latency_us: peer.latency_us,
            slow: peer.slow,
            copy: peer.copy,
        });
        ReplicaStatus {
            resource: around.resource,
            name: around.name.clone(),
            incarnation: config.incarnation,
            files: around.disk.files().identity(),
            instance: around.instance,
            reopened: host.replica().reopened(),
            caches: around.caches && around.flushed,
            role: match status.role {
                // Once its devices are gone a replica that was asked to step back is as good as a
                // secondary.
                Role::Fenced if host.demoted() && around.resource_devices.is_withdrawn() => Role::Secondary,
                role => role,
            },
            epoch: status.epoch,
            version: status.version,
            commit: status.commit,
            end: status.end.index,
            durable: status.durable,
            heard: status.heard,
            data: match (host.failed(), status.data) {
                (Some(_), _) => StoreState::Failed,
                (None, DataState::Consistent) => StoreState::Consistent,
                (None, DataState::Inconsistent) => StoreState::Inconsistent,
            },
            paused: host.paused_until().is_some(),
            promoted_at_us: host.promoted_at(),
            journal_bytes_used: config.journal_bytes.saturating_sub(host.store().room()),
            journal_bytes: config.journal_bytes,
            journal_latency_us: status.journal_latency_us,
            volumes: around.volumes.clone(),
            allocated: around.disk.allocated(around.volumes.len()),
            no_space: host.no_space().map(str::to_owned),
            full: host.failed_full(),
            older: host.replica().is_older(),
            unreadable: unreadable(host),
            requests: around.pending.len(),
            waiting_for: status.waiting_for.clone(),
            peers: peers.collect(),
            devices: around.resource_devices.device_list(),
            continues: around.resource_devices.continues(),
            attached: around.attached,
            snapshots: host.store().snapshots().chain(host.store().kept()).map(snapshot_status).collect(),
            scrub: host.replica().scrub_report().map(ScrubReport::summary),
            feeds_all: host.replica().feeds_all(),
            copies: host.replica().copies_state(),
            proposal: around.proposal,
        }
    }

    /// The same with what was counted.
    #[must_use]
    pub fn metrics(&self) -> ReplicaMetrics {
        let mut counts = self.around.counts.taken(&self.host);
        counts.disk_operations = self.around.disk.in_flight() as u64;
        counts.disk.snapshot_written = self.around.disk.put_aside();
        ReplicaMetrics { status: self.status(), counts }
    }

    /// Tells the agent about a change at once, and about mere progress a few times per second at
    /// most, when something else happens anyway: an idle resource reports nothing.
    pub(super) fn report(&mut self, shared: &mut ShardParts<'_>) {
        let around = &mut self.around;
        for reason in around.resource_devices.take_failures() {
            shared.events.push(EngineEvent::Failed { resource: around.resource, reason });
        }
        around.dirty |= around.resource_devices.take_changed();
        // An idle resource has no progress to report; its agent waits for these.
        let replica = self.host.replica();
        let scrubbed = replica.scrub_report().map(|last| (last.ordinal, last.state));
        let awaited = (replica.feeds_all(), replica.copies_state(), scrubbed);
        around.dirty |= std::mem::replace(&mut around.awaited, awaited) != awaited;
        let busy = around.role == Role::Primary && shared.now.ms_since(around.reported_at) >= PROGRESS_MS;
        // An agent that starts meanwhile would take it for open, and hear nothing of its end.
        if (around.dirty || busy) && !around.closing {
            around.dirty = false;
            around.reported_at = shared.now;
            shared.events.push(EngineEvent::Replica(self.status()));
        }
    }
}

fn snapshot_status((id, on): (SnapshotId, SnapshotOn)) -> SnapshotStatus {
    SnapshotStatus { id, at: on.at, state: on.state }
}

/// The first of the blocks that no replica has, and how many more there are.
fn unreadable(host: &Host) -> Option<String> {
    let mut blocks = host.unreadable();
    let first = blocks.next()?;
    Some(match blocks.len() {
        0 => first.to_string(),
        more => format!("{first}, with {more} more"),
    })
}
