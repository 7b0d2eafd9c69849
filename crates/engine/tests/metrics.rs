//! Counts of engines while a device is written and read, and while a replica is handed over.
//!
//! Needs root, /dev/fuse and loop devices.

mod support;

use mainstay_api::engine::{Reply, Request};
use mainstay_api::metrics::{MetricsPage, PeerCounts, ReplicaMetrics, RequestKind};
use mainstay_types::{NodeId, ResourceId};
use std::fs::File;
use std::os::unix::fs::FileExt;
use support::{Engine, RESOURCE, fresh_dir, record, wait};

const BLOCK: usize = 4096;
const VOLUME_BYTES: u64 = 16 << 20;
const WRITES: u64 = 200;
const READS: u64 = 50;

fn page(engine: &mut Engine, after: Option<ResourceId>) -> MetricsPage {
    match engine.ask(Request::Metrics { after }) {
        Reply::Metrics(page) => page,
        other => panic!("{other:?}"),
    }
}

fn replica(engine: &mut Engine) -> ReplicaMetrics {
    let mut page = page(engine, None);
    assert_eq!((page.replicas.len(), page.more_after), (1, None));
    page.replicas.remove(0)
}

/// Memory with the alignment that direct I/O needs.
fn blocks(device: &File, count: u64, each: impl Fn(&File, &mut [u8], u64)) {
    let mut buffer = mainstay_engine::buffer::BufferPool::new(0).get(BLOCK);
    buffer.as_mut_slice().fill(0x5a);
    for at in 0..count {
        each(device, &mut buffer.as_mut_slice()[..BLOCK], at * BLOCK as u64);
    }
}

fn count(one: &ReplicaMetrics, kind: RequestKind) -> u64 {
    one.counts.volumes[0].requests[kind as usize].count
}

fn changes(one: &ReplicaMetrics) -> u64 {
    [RequestKind::Write, RequestKind::Discard, RequestKind::WriteZeroes]
        .map(|kind| count(one, kind))
        .iter()
        .sum()
}

#[test]
fn counts_rise_with_the_requests_of_a_device() {
    let base = fresh_dir("metrics");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start(node, &base)).collect();
    for (engine, node) in engines.iter_mut().zip(1..) {
        engine.create(RESOURCE, &format!("m-n{node}"), vec![VOLUME_BYTES]);
        let fresh = replica(engine);
        assert_eq!((changes(&fresh), fresh.counts.required), (0, 0));
        assert!(fresh.counts.journal_us.is_empty() && fresh.counts.peers.is_empty());
    }
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }
    let device = engines[0].device();
    let before = replica(&mut engines[0]);
    blocks(&device, WRITES, |device, bytes, at| device.write_all_at(bytes, at).expect("written"));
    blocks(&device, READS, |device, bytes, at| device.read_exact_at(bytes, at).expect("read"));

    let primary = replica(&mut engines[0]);
    let (writes, reads) = (RequestKind::Write, RequestKind::Read);
    assert_eq!(count(&primary, writes) - count(&before, writes), WRITES);
    assert!(
        count(&primary, reads) - count(&before, reads) >= READS,
        "programs that look at devices read as well"
    );
    let written = &primary.counts.volumes[0].requests[writes as usize];
    assert_eq!((written.bytes, written.errors), (count(&primary, writes) * BLOCK as u64, 0));
    let took = &primary.counts.requests_us;
    assert_eq!(took[writes as usize].count(), count(&primary, writes));
    assert!(took[writes as usize].sum() > 0, "a durable write takes longer than a turn");
    // All that was answered is committed: every entry is of one request, and every batch was timed.
    let counts = &primary.counts;
    assert_eq!(counts.batch_entries.sum(), changes(&primary));
    assert_eq!(counts.commit_us.count(), counts.batch_entries.count());
    assert_eq!(counts.read_us.count(), count(&primary, reads));
    assert!(counts.journal_us.count() > 0 && counts.journal_us.sum() > 0);
    // Header block and payload of each.
    let least = (counts.batch_entries.count() + counts.batch_entries.sum()) * BLOCK as u64;
    assert!(counts.disk.journal_written >= least, "{} of {least}", counts.disk.journal_written);
    assert_eq!(counts.required, 3);
    assert_eq!(counts.promotions.map(|step| step.count), [1; 4], "{:?}", counts.promotions);
    let peers: Vec<NodeId> = counts.peers.iter().map(|peer| peer.node).collect();
    assert_eq!(peers, [NodeId(2), NodeId(3)]);
    for PeerCounts { sent_batches, sent_bytes, acknowledged_us, times_slow, .. } in &counts.peers {
        // And the start of the epoch.
        assert_eq!((*sent_batches, *times_slow), (counts.batch_entries.count() + 1, 0));
        assert!(*sent_bytes >= least && acknowledged_us.count() > 0 && acknowledged_us.sum() > 0);
    }

    let links = page(&mut engines[0], None).links;
    assert_eq!(links.len(), 2);
    assert!(links.iter().all(|link| link.outgoing), "{links:?}");
    let rest = page(&mut engines[0], Some(RESOURCE));
    assert!(rest.replicas.is_empty() && rest.links.is_empty() && rest.more_after.is_none());

    let secondary = replica(&mut engines[1]);
    assert_eq!((changes(&secondary), secondary.counts.required), (0, 0));
    assert!(secondary.counts.journal_us.count() > 0 && secondary.counts.commit_us.is_empty());
    assert!(secondary.counts.disk.journal_written >= least);
    assert_eq!(secondary.counts.promotions.map(|step| step.count), [0; 4]);

    // Another one leads: what was counted here stays.
    drop(device);
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(2, 2, 2, &[2, 3]) });
    }
    drop(engines[1].device());
    let new = replica(&mut engines[1]);
    assert_eq!(new.counts.promotions.map(|step| step.count), [1; 4]);
    // The third one may be about to join again.
    assert!((2..=3).contains(&new.counts.required), "{}", new.counts.required);
    let old = wait("the old primary to step down", || {
        Some(replica(&mut engines[0])).filter(|one| one.counts.required == 0)
    });
    assert!(changes(&old) >= WRITES && old.counts.commit_us.count() >= counts.commit_us.count());
    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
