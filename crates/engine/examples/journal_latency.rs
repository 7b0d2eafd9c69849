//! How long a 4 KiB write takes with the journal on the disk and with the journal in memory (tmpfs,
//! `/dev/shm`): whole engines in this process, one replica and three, the same volume files on the
//! same disk. Each run in memory stands between two on the disk. Prints medians and ratios. Run
//! with `--release`, as root; arguments: rounds, writes of a run, then depths; 9 3000 1 if there
//! are none. `TMPDIR` says where the disk is.

#[path = "../tests/support/mod.rs"]
mod support;
#[allow(dead_code, reason = "this program reads nothing")]
#[path = "write_path/writer.rs"]
mod writer;

use mainstay_api::engine::{JournalPlace, Request};
use mainstay_engine::ring::{Fd, Ring};
use mainstay_types::{ConfigVersion, Epoch, NodeId, ResourceId, ResourceRecord, Role};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::{Engine, fresh_dir, member};
use writer::{Direction, Span, transfer};

const VOLUME_BYTES: u64 = 64 << 20;
const JOURNAL_BYTES: u64 = 64 << 20;
const SPAN: Span = Span { direction: Direction::Write, volume_bytes: VOLUME_BYTES, request_bytes: 4096 };

/// A resource on the first `replicas` engines, with the journals in `memory` if that is said; its
/// device at the first one.
fn resource(engines: &mut [Engine], number: u64, replicas: usize, memory: Option<&Path>) -> Fd {
    let resource = ResourceId(number);
    let members: Vec<_> = (1..=replicas as u32).map(member).collect();
    for (engine, node) in engines.iter_mut().zip(1..).take(replicas) {
        let dir = format!("{}-{number}", engine.replica_dir());
        let path =
            |memory: &Path| memory.join(format!("r-{number}.{node:016x}.journal")).display().to_string();
        let journal = memory.map(|memory| JournalPlace { path: path(memory), volatile: true });
        let name = format!("r{number}-n{node}");
        engine.create_at(&dir, resource, &name, vec![VOLUME_BYTES], JOURNAL_BYTES, journal);
        let record = ResourceRecord {
            resource,
            version: ConfigVersion(1),
            epoch: Epoch(1),
            primary: Some(NodeId(1)),
            iss: members.clone(),
            replicas: members.clone(),
            ..ResourceRecord::new(resource)
        };
        engine.ask(Request::Record { record });
    }
    let status = engines[0].until("a device", |status| {
        status.resource == resource && status.role == Role::Primary && !status.devices.is_empty()
    });
    let device =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&status.devices[0].path);
    Arc::new(device.expect("the device").into())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|word| word.parse::<u64>().expect("a number"));
    let rounds = arguments.next().unwrap_or(9);
    let count = arguments.next().unwrap_or(3000);
    let mut depths: Vec<u64> = arguments.collect();
    if depths.is_empty() {
        depths.push(1);
    }
    let base = fresh_dir("journal-latency");
    let memory = PathBuf::from(format!("/dev/shm/mainstay-latency-{}", std::process::id()));
    std::fs::create_dir_all(&memory).expect("a tmpfs at /dev/shm");
    let mut engines: Vec<_> = (1..=3).map(|node| Engine::start(node, &base)).collect();
    let pairs: Vec<_> = [(1, 1), (3, 3)]
        .map(|(number, replicas)| {
            let disk = resource(&mut engines, number, replicas, None);
            let memory = resource(&mut engines, number + 1, replicas, Some(&memory));
            (replicas, disk, memory)
        })
        .into();

    let listened = support::listen(engines);
    let mut ring = Ring::new().expect("a ring");
    let mut seed = 1;
    println!("| replicas | depth | disk, µs | memory, µs | ratio | smallest and largest of {rounds} |");
    println!("|---|---|---|---|---|---|");
    for (replicas, disk, memory) in &pairs {
        for &depth in &depths {
            let mut run = |device: &Fd| {
                let mut took = transfer(&mut ring, device, SPAN, depth, count, &mut seed);
                median(&mut took)
            };
            run(memory);
            let mut before = run(disk);
            let (mut disks, mut memories, mut ratios) = (vec![before], Vec::new(), Vec::new());
            for _ in 0..rounds {
                let between = run(memory);
                let after = run(disk);
                ratios.push(between / ((before + after) / 2.0));
                memories.push(between);
                disks.push(after);
                before = after;
            }
            let ratio = median(&mut ratios);
            println!(
                "| {replicas} | {depth} | {:.0} | {:.0} | {ratio:.2} | {:.2} to {:.2} |",
                median(&mut disks),
                median(&mut memories),
                ratios[0],
                ratios[ratios.len() - 1]
            );
        }
    }
    drop(pairs);
    let mut engines = listened();
    for (engine, node) in engines.iter_mut().zip(1..) {
        for number in (1..=4).filter(|number| node == 1 || *number > 2) {
            engine.ask(Request::Drop { resource: ResourceId(number) });
        }
    }
    std::fs::remove_dir_all(&base).expect("nothing holds the files any more");
    std::fs::remove_dir_all(&memory).expect("nothing holds the journals any more");
}
