//! Metrics for the agent: one page for each request, so that other work on the shard waits only
//! shortly.
//!
//! Pages answer requests; the reports that the agent gets anyway would not do. Only a busy primary
//! sends reports. The last report of a resource that falls idle states for ever what was true just
//! before its last write was acknowledged. A secondary reports nothing about its journal. The
//! answer to a request states what is true now. It wakes the shard once for each page, only during
//! a scrape. To make a page, the shard copies numbers and asks the kernel for the space of the
//! volumes on it. Another thread makes it into text.

use crate::open_replica::OpenReplica;
use crate::transport::PeerStatus;
use mainstay_api::metrics::{LinkCounts, MetricsPage, ReplicaMetrics};
use mainstay_types::ResourceId;

/// Largest weight of one page: a replica counts 1, each of its peers 1, and four volumes 1. Each
/// takes some microseconds on the shard, and less than 4 KiB of a line.
const WEIGHT_MAX: usize = 96;

/// Most clients that are reported, all on the first page. Each takes less than 1 KiB of a line,
/// with one volume.
pub const CLIENTS_MAX: usize = 256;

/// Page with the first replicas of `left`, as many as fit.
pub fn replicas<'a>(left: impl Iterator<Item = (&'a ResourceId, &'a OpenReplica)>) -> MetricsPage {
    page(left.map(|(resource, replica)| (*resource, replica)), OpenReplica::metrics)
}

fn page<T>(
    left: impl Iterator<Item = (ResourceId, T)>,
    metrics: impl Fn(T) -> ReplicaMetrics,
) -> MetricsPage {
    let mut page = MetricsPage::default();
    let mut weight = 0;
    let mut last = None;
    for (resource, replica) in left {
        if weight >= WEIGHT_MAX {
            page.more_after = last;
            break;
        }
        let metrics = metrics(replica);
        let peers = metrics.status.peers.len().max(metrics.counts.peers.len());
        weight += 1 + peers + metrics.status.volumes.len() / 4;
        page.replicas.push(metrics);
        last = Some(resource);
    }
    page
}

pub fn links(peers: Vec<PeerStatus>) -> Vec<LinkCounts> {
    let link = |peer: PeerStatus| LinkCounts {
        node: peer.node,
        outgoing: peer.outgoing,
        incoming: peer.incoming,
        queued_bytes: peer.queued_bytes as u64,
    };
    peers.into_iter().map(link).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::engine::{DeviceStatus, EngineLine, PeerStatus, Reply, encode_line};
    use mainstay_api::metrics::{OperationCounts, PeerCounts, VolumeCounts};
    use mainstay_types::{Histogram, NodeId, REPLICAS_MAX, VOLUMES_MAX, VolumeId};

    fn replica(peers: usize, volumes: usize) -> ReplicaMetrics {
        // 2^44 µs is half a year, and as bytes it is 16 TiB; many values of each size.
        const LARGE: u64 = 1 << 44;
        let mut histogram = Histogram::default();
        for power in 0..28 {
            (0..100).for_each(|_| histogram.note(1 << power));
        }
        let mut metrics = ReplicaMetrics::default();
        let (status, counts) = (&mut metrics.status, &mut metrics.counts);
        status.name = "x".repeat(32);
        status.volumes = vec![LARGE; volumes];
        status.allocated = vec![LARGE; volumes];
        let device = |volume| DeviceStatus {
            volume: VolumeId(volume),
            path: "/dev/loop1000".into(),
            ..DeviceStatus::default()
        };
        status.devices = (0..volumes as u16).map(device).collect();
        let nodes = || (0..peers as u32).map(NodeId);
        let peer = |node| PeerStatus { node, lag_bytes: LARGE, lag_entries: LARGE, ..PeerStatus::default() };
        status.peers = nodes().map(peer).collect();
        status.waiting_for = nodes().map(|node| format!("member {node} {}", "x".repeat(80))).collect();
        let done = OperationCounts { count: LARGE, bytes: LARGE, errors: LARGE };
        counts.volumes = vec![VolumeCounts { requests: [done; 5] }; volumes];
        counts.requests_us = std::array::from_fn(|_| histogram.clone());
        counts.read_us = histogram.clone();
        counts.journal_us = histogram.clone();
        counts.commit_us = histogram.clone();
        let peer = |node| PeerCounts {
            node,
            sent_bytes: LARGE,
            copied_bytes: LARGE,
            acknowledged_us: histogram.clone(),
            ..PeerCounts::default()
        };
        counts.peers = nodes().map(peer).collect();
        metrics
    }

    #[test]
    fn a_page_fits_into_a_line_and_the_next_goes_on_after_it() {
        for (peers, volumes) in
            [(0, 1), (2, 1), (REPLICAS_MAX - 1, 1), (0, VOLUMES_MAX), (REPLICAS_MAX - 1, VOLUMES_MAX)]
        {
            let all: Vec<(ResourceId, ())> = (1..=1000).map(|id| (ResourceId(id), ())).collect();
            let (mut seen, mut pages, mut after) = (0, 0, ResourceId(0));
            loop {
                let left = all.iter().copied().filter(|(id, ())| *id > after);
                let page = page(left, |()| replica(peers, volumes));
                seen += page.replicas.len();
                pages += 1;
                let next = page.more_after;
                let line = EngineLine::Reply { id: u64::MAX, reply: Reply::Metrics(page) };
                encode_line(&line).expect("a line that fits");
                let Some(next) = next else { break };
                assert_eq!(next, ResourceId(seen as u64), "the last one that was told");
                after = next;
            }
            assert_eq!(seen, 1000, "each once, of {peers} peers and {volumes} volumes");
            assert!(peers > 0 || volumes > 1 || pages <= 11, "{pages} pages of 1000 secondaries");
        }
    }
}
