//! Three whole engines in one process, on addresses of the loopback network, with a control plane
//! made of a few lines: a resource is made, promoted, written through its device, handed over, and
//! compared.
//!
//! Needs root, /dev/fuse and loop devices.

mod support;

use mainstay_api::engine::{JournalPlace, Reply, Request};
use mainstay_types::{IssChange, PeerState, ProposedChange, ResourceId, Role};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use support::{Engine, JOURNAL_BYTES, RESOURCE, assert_equal, fresh_dir, member, record, wait};

const VOLUME_BYTES: u64 = 64 << 20;

/// Memory with the alignment that direct I/O needs.
fn block(fill: u8) -> mainstay_engine::buffer::BufMut {
    let mut buffer = mainstay_engine::buffer::BufferPool::new(0).get(4096);
    buffer.as_mut_slice().fill(fill);
    buffer
}

fn write_blocks(device: &File, blocks: &[u64], fill: u8) {
    for &at in blocks {
        device.write_all_at(&block(fill).as_slice()[..4096], at * 4096).expect("written");
    }
}

fn assert_block(device: &File, at: u64, fill: u8) {
    let mut buffer = block(!fill);
    device.read_exact_at(&mut buffer.as_mut_slice()[..4096], at * 4096).expect("read");
    assert!(buffer.as_slice()[..4096].iter().all(|byte| *byte == fill), "block {at} is not all {fill}");
}

/// Writes in a thread of its own and meanwhile listens to the engines, of which the first serves
/// the device: one drops an agent that does not listen to its reports.
fn write_listening(
    engines: &mut [Engine],
    resource: ResourceId,
    device: &File,
    write: impl FnOnce(&File) + Send + 'static,
) {
    let device = device.try_clone().expect("a second handle");
    let writer = std::thread::spawn(move || write(&device));
    let until = Instant::now() + Duration::from_secs(180);
    while !writer.is_finished() {
        for engine in &mut *engines {
            engine.listen();
        }
        if Instant::now() > until {
            // Ends the write that hangs, so that the test can fail.
            engines[0].ask(Request::Detach { resource });
            panic!("the writer hangs: {:#?}", engines[0].status);
        }
    }
    writer.join().expect("a writer");
}

/// Engines share the process, so the tests of this file take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_resource_is_written_handed_over_and_equal_everywhere() {
    let _turn = TURN.lock();
    let base = fresh_dir("engines");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start(node, &base)).collect();
    for (engine, node) in engines.iter_mut().zip(1..) {
        engine.create(RESOURCE, &format!("r-n{node}"), vec![VOLUME_BYTES]);
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }

    // More than the journal holds, with hot blocks, so that destage, checkpoint and trim all
    // happen.
    let device = engines[0].device();
    for round in 0..3u8 {
        let mut large = mainstay_engine::buffer::BufferPool::new(0).get(1 << 20);
        large.as_mut_slice().fill(round + 1);
        for at in 0..20u64 {
            device.write_all_at(&large.as_slice()[..1 << 20], at << 20).expect("written");
            write_blocks(&device, &[7, 5000 + at], 100 + round);
            // On a slow machine this takes long, and an engine drops an agent that does not listen
            // to its reports.
            if at % 4 == 3 {
                for engine in &mut engines {
                    engine.listen();
                }
            }
        }
    }
    assert_block(&device, 7, 102);
    assert_block(&device, 6, 3);
    assert_block(&device, 9000, 0);
    drop(device);
    assert_equal(&mut engines);

    // A planned handover: the old primary gives its device back first.
    engines[0].ask(Request::Demote { resource: RESOURCE });
    engines[0].until("the old primary to be secondary", |status| status.role == Role::Secondary);
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(2, 2, 2, &[1, 2, 3]) });
    }
    let device = engines[1].device();
    assert_block(&device, 7, 102);
    write_blocks(&device, &[7, 8, 16000], 42);

    // A member is removed, misses writes, and is asked back when it has caught up.
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(3, 2, 2, &[1, 2]) });
    }
    write_blocks(&device, &[8], 43);
    let grown = wait("a proposal to grow", || {
        engines[1].listen();
        engines[1].proposals.pop()
    });
    assert_eq!(grown, ProposedChange::Iss(IssChange::Grow { add: member(3) }));
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(4, 2, 2, &[1, 2, 3]) });
    }
    write_blocks(&device, &[9], 44);
    assert_block(&device, 8, 43);
    drop(device);
    assert_equal(&mut engines);

    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// Two replicas have their journals in memory, one on the disk: what follows from an append follows
/// in the same turn on the one side and in a later one on the other. Then one of them is closed and
/// recovered.
#[test]
fn replicas_with_journals_in_memory_and_on_the_disk_are_equal() {
    let _turn = TURN.lock();
    let base = fresh_dir("memory");
    let fast = std::path::PathBuf::from(format!("/dev/shm/mainstay-cluster-{}", std::process::id()));
    std::fs::create_dir_all(&fast).expect("a tmpfs at /dev/shm");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start(node, &base)).collect();
    for (engine, node) in engines.iter_mut().zip(1..) {
        let path = fast.join(format!("r-1.{node:016x}.journal")).display().to_string();
        let journal = (node < 3).then_some(JournalPlace { path, volatile: true });
        let dir = engine.replica_dir();
        engine.create_at(&dir, RESOURCE, "r", vec![VOLUME_BYTES], JOURNAL_BYTES, journal);
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }
    let device = engines[0].device();
    // Several times round the journal, so that what is read back from it is destaged, and its space
    // is used again.
    let rounds = |device: &File| {
        for round in 0..3u8 {
            let mut large = mainstay_engine::buffer::BufferPool::new(0).get(1 << 20);
            large.as_mut_slice().fill(round + 1);
            for at in 0..20u64 {
                device.write_all_at(&large.as_slice()[..1 << 20], at << 20).expect("written");
                write_blocks(device, &[7, 5000 + at], 100 + round);
            }
        }
    };
    write_listening(&mut engines, RESOURCE, &device, rounds);
    assert_block(&device, 7, 102);
    assert_block(&device, 6, 3);
    assert_equal(&mut engines);

    // The second one goes: it is closed, misses writes, is recovered from its journal and fed from
    // the primary's. An agent closes a replica for good only; one that comes back the same does so
    // with its engine, on a new connection, by which it is attached.
    engines[0].know(&[1, 3]);
    engines[0].until("the second one to be away", |status| {
        status.peers.iter().any(|peer| peer.node.0 == 2 && peer.state == PeerState::Disconnected)
    });
    engines[1].ask(Request::Drop { resource: RESOURCE });
    for node in [0, 2] {
        engines[node].ask(Request::Record { record: record(2, 1, 1, &[1, 3]) });
    }
    write_listening(&mut engines, RESOURCE, &device, |device| write_blocks(device, &[7, 8], 43));
    let dir = engines[1].replica_dir();
    engines[1].ask(Request::Open {
        resource: RESOURCE,
        name: "r".into(),
        dir,
        incarnation: None,
        held: mainstay_types::Index(0),
    });
    engines[1].ask(Request::Record { record: record(2, 1, 1, &[1, 3]) });
    engines[0].know(&[1, 2, 3]);
    wait("a proposal to grow", || {
        engines[0].listen();
        engines[0].proposals.contains(&ProposedChange::Iss(IssChange::Grow { add: member(2) })).then_some(())
    });
    for engine in &mut engines {
        engine.ask(Request::Record { record: record(3, 1, 1, &[1, 2, 3]) });
    }
    write_blocks(&device, &[9], 44);
    assert_block(&device, 8, 43);
    drop(device);
    assert_equal(&mut engines);

    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
    std::fs::remove_dir_all(&fast).expect("nothing holds the journals any more");
}

/// R10, R19: without a lease nothing is served, and devices answer with errors.
#[test]
fn a_lease_that_runs_out_fences_the_device() {
    let _turn = TURN.lock();
    let base = fresh_dir("fence");
    let mut engine = Engine::start(9, &base);
    let resource = ResourceId(9);
    engine.serve_alone(resource, "fenced", vec![VOLUME_BYTES]);
    let device = engine.device();
    write_blocks(&device, &[1], 7);
    let until = mainstay_engine::ring::now().plus_ms(800);
    engine.ask(Request::Lease { until_us: until });
    wait("the device to fail", || {
        let failed = device.write_all_at(&block(1).as_slice()[..4096], 4096).is_err();
        failed.then_some(())
    });
    assert!(mainstay_engine::ring::now() < until, "the device failed only after the lease had ended");
    engine.ask(Request::Drop { resource });
    drop(device);
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// R18: small writes go on for ever, wherever in the ring the journal's free part lies.
#[test]
fn small_writes_go_round_the_journal_again_and_again() {
    let _turn = TURN.lock();
    let base = fresh_dir("round");
    let mut engine = Engine::start(8, &base);
    let resource = ResourceId(8);
    engine.serve_alone(resource, "round", vec![VOLUME_BYTES]);
    let device = engine.device();
    // Each takes two blocks of the journal: four times round.
    let writes = 4 * JOURNAL_BYTES / 8192;
    let write = move |device: &File| {
        let block = block(5);
        for at in 0..writes {
            device.write_all_at(&block.as_slice()[..4096], at % 997 * 4096).expect("written");
        }
    };
    write_listening(std::slice::from_mut(&mut engine), resource, &device, write);
    drop(device);
    engine.ask(Request::Drop { resource });
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}

/// An agent may be restarted while its engine opens a replica, and the new one may have heard that
/// the replica is not wanted any more.
#[test]
fn a_replica_that_is_dropped_while_it_is_opened_is_closed_before_the_answer() {
    let _turn = TURN.lock();
    let base = fresh_dir("drop-early");
    let mut engine = Engine::start(7, &base);
    let resource = ResourceId(7);
    engine.create(resource, "early", vec![VOLUME_BYTES]);
    engine.ask(Request::Drop { resource });
    for _ in 0..20 {
        let dir = engine.replica_dir();
        let opened = engine.send(Request::Open {
            resource,
            name: "early".into(),
            dir,
            incarnation: None,
            held: mainstay_types::Index(0),
        });
        let dropped = engine.send(Request::Drop { resource });
        let mut replies = Vec::new();
        wait("both replies", || {
            replies.extend(engine.listen().map(|(id, _)| id));
            (replies.len() == 2).then_some(())
        });
        assert_eq!(replies, [opened, dropped]);
        let Reply::Status(status) = engine.ask(Request::Status) else { panic!("not a status") };
        assert!(status.replicas.is_empty(), "{:?}", status.replicas);
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
