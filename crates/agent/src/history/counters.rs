//! The counters of the engine, as the history records them.

use crate::metrics::Gathered;
use mainstay_api::engine::ReplicaStatus;
use mainstay_api::metrics::{OperationCounts, ReplicaMetrics};
use mainstay_history::{NodeUse, Peer, Reading, ReplicaReading, Requests, Stage, Work};
use mainstay_types::{Histogram, NodeId, Role, Time};
use std::collections::BTreeMap;

/// Returns the reading of what was gathered for a page of metrics. `None` if the engine did not
/// answer.
pub fn reading(seen: &Gathered, engine: Option<u32>, at: Time) -> Option<Reading> {
    let answered = seen.engine.as_ref()?;
    let mut node = NodeUse::default();
    for (name, process) in &seen.processes {
        let (cpu, memory) = match *name {
            "engine" => (&mut node.engine_cpu_us, &mut node.engine_memory_bytes),
            _ => (&mut node.agent_cpu_us, &mut node.agent_memory_bytes),
        };
        (*cpu, *memory) = (process.cpu_us, process.resident_bytes);
    }
    (node.pool_size_bytes, node.pool_free_bytes) = seen.pool.unwrap_or_default();
    let replicas = answered.replicas.iter().map(|one| {
        let is_primary = one.status.role == Role::Primary;
        (one.status.resource, ReplicaReading { is_primary, work: work(one, answered.now) })
    });
    Some(Reading { at, wall_ms: seen.wall_ms, engine, node, replicas: replicas.collect() })
}

fn stage(histogram: &Histogram) -> Stage {
    Stage { count: histogram.count(), time_us: histogram.sum() }
}

fn work(one: &ReplicaMetrics, now: Time) -> Work {
    let ReplicaMetrics { status, counts } = one;
    let requests = std::array::from_fn(|kind| {
        let sum = |value: fn(&OperationCounts) -> u64| {
            counts.volumes.iter().map(|volume| value(&volume.requests[kind])).sum()
        };
        let took: &Histogram = &counts.requests_us[kind];
        let (bytes, errors) = (sum(|done| done.bytes), sum(|done| done.errors));
        Requests { bytes, errors, time_us: took.sum(), buckets: took.into() }
    });
    let disk = &counts.disk;
    Work {
        name: status.name.clone(),
        primary_ms: 0,
        requests,
        journal: stage(&counts.journal_us),
        commit: stage(&counts.commit_us),
        read: stage(&counts.read_us),
        disk_written_bytes: disk.journal_written
            + disk.volume_written
            + disk.metadata_written
            + disk.snapshot_written,
        disk_read_bytes: disk.journal_read + disk.volume_read,
        copied_bytes: counts.copied_bytes,
        peers: peers(one, now),
        journal_permille: permille(status),
    }
}

fn permille(status: &ReplicaStatus) -> u64 {
    let used = u128::from(status.journal_bytes_used) * 1000;
    let permille = used.checked_div(u128::from(status.journal_bytes)).unwrap_or(0);
    u64::try_from(permille).unwrap_or(1000)
}

fn peers(one: &ReplicaMetrics, now: Time) -> BTreeMap<NodeId, Peer> {
    let mut peers: BTreeMap<NodeId, Peer> = BTreeMap::new();
    for fed in &one.counts.peers {
        let peer = peers.entry(fed.node).or_default();
        peer.acknowledged = stage(&fed.acknowledged_us);
        peer.times_slow = fed.times_slow;
        (peer.sent_bytes, peer.copied_bytes) = (fed.sent_bytes, fed.copied_bytes);
    }
    for seen in &one.status.peers {
        let peer = peers.entry(seen.node).or_default();
        peer.lag_bytes = seen.lag_bytes;
        if seen.lag_since_us != Time(0) {
            peer.lag_ms = now.us_since(seen.lag_since_us) / 1000;
        }
    }
    peers
}
