//! Allocations that a write and a read cost on the shards of a primary and of its secondaries.
//! Measured in steady state: journals go round, blocks are destaged, and every list has the length
//! that it needs.
//!
//! Needs root, /dev/fuse and loop devices.

mod support;

use bytes::Bytes;
use mainstay_api::engine::Request;
use mainstay_engine::DeviceOption;
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::ring::{Fd, Op, Owner, Ring};
use mainstay_types::FrontendKind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use support::counting::{self, Counting};
use support::{Engine, RESOURCE, fresh_dir, identities, record};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: usize = 4096;
const VOLUME_BYTES: u64 = 32 << 20;
/// Two blocks of the journal each: twice round.
const WRITES: u64 = 2 * support::JOURNAL_BYTES / (2 * BLOCK as u64);

/// Most allocations of a write on the primary: its batch, and trees that grow, stretches and
/// checkpoints.
const PRIMARY_MAX: f64 = 2.0;
/// Most allocations of a write on a secondary: the same, and the count of references of the
/// received payload.
const SECONDARY_MAX: f64 = 3.0;
/// Most allocations of a read: it costs only its part of a stretch, and the work that runs beside
/// it.
const READ_MAX: f64 = 0.5;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Write,
    Read,
}

/// Writes or reads `count` blocks, `depth` at a time.
fn work(kind: Kind, ring: &mut Ring, device: &Fd, depth: u64, count: u64) {
    let pool = BufferPool::new(1 << 20);
    let payload: Bytes = pool.copy_of(&[0x5a; BLOCK]);
    let mut completions = Vec::new();
    let (mut begun, mut ended) = (0, 0);
    while ended < count {
        while begun < count && begun - ended < depth {
            // 5167 is prime, so every block comes once before one comes again.
            let block = begun * 5167 % (VOLUME_BYTES / BLOCK as u64);
            let (fd, offset) = (Fd::clone(device), block * BLOCK as u64);
            let op = match kind {
                Kind::Write => Op::Write { fd, offset, pieces: [payload.clone()].into(), durable: false },
                Kind::Read => Op::Read { fd, offset, buffer: pool.get(BLOCK), at: 0, len: BLOCK },
            };
            ring.submit(Owner::Shard, 0, op);
            begun += 1;
        }
        ring.turn(None, &mut completions).expect("a turn");
        for completion in completions.drain(..) {
            assert_eq!(completion.result.expect("done"), BLOCK as u32);
            ended += 1;
        }
    }
}

#[test]
fn requests_cost_few_allocations() {
    for allows_clear in [true, false] {
        identities::ALLOWS_CLEAR.store(allows_clear, Ordering::Relaxed);
        measure(allows_clear);
    }
}

fn measure(is_clear: bool) {
    println!("payloads are {}", if is_clear { "clear" } else { "encrypted" });
    let base = fresh_dir(if is_clear { "allocations-clear" } else { "allocations" });
    let (told, shards) = mpsc::channel();
    let (mut engines, mut places) = (Vec::new(), Vec::new());
    for node in 1..=3 {
        let told = told.clone();
        let fuse = |options: &mut mainstay_engine::EngineOptions| {
            options.device = DeviceOption::Only(FrontendKind::Fuse);
        };
        let begin = move || told.send(counting::place()).expect("awaited");
        engines.push(Engine::start_on(node, &base, fuse, begin));
        places.push(shards.recv_timeout(Duration::from_secs(60)).expect("a shard"));
    }
    for (engine, node) in engines.iter_mut().zip(1..) {
        engine.create(RESOURCE, &format!("a-n{node}"), vec![VOLUME_BYTES]);
        engine.ask(Request::Record { record: record(1, 1, 1, &[1, 2, 3]) });
    }
    let device: Fd = Arc::new(engines[0].device().into());
    let mut ring = Ring::new().expect("a ring");
    let counts = || places.iter().map(|place| counting::count(*place)).collect::<Vec<_>>();
    for (kind, depth) in [(Kind::Write, 1), (Kind::Write, 32), (Kind::Read, 1), (Kind::Read, 32)] {
        // The lists find their lengths.
        work(kind, &mut ring, &device, depth, WRITES);
        // An engine drops an agent that does not listen to its reports.
        engines.iter_mut().for_each(|engine| while engine.listen().is_some() {});
        let before = counts();
        work(kind, &mut ring, &device, depth, WRITES);
        let after = counts();
        let each: Vec<f64> = before
            .iter()
            .zip(&after)
            .map(|(before, after)| (after - before) as f64 / WRITES as f64)
            .collect();
        let (what, most) = match kind {
            // Encryption costs none.
            Kind::Write => ("write", [PRIMARY_MAX, SECONDARY_MAX, SECONDARY_MAX]),
            Kind::Read => ("read", [READ_MAX; 3]),
        };
        println!("depth {depth}: allocations per {what} on the primary and both secondaries: {each:.2?}");
        assert!(
            each.iter().zip(most).all(|(count, most)| *count <= most),
            "{what}, depth {depth}: {each:.2?}"
        );
    }
    drop(device);
    for engine in &mut engines {
        engine.ask(Request::Drop { resource: RESOURCE });
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
}
