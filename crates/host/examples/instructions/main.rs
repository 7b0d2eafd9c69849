//! Fixed work for counting instructions: `make instructions` runs it under callgrind and compares
//! with `bench/instructions.txt`. Arguments: the name of a case and how often it is repeated.
//!
//! Everything is pure, so the same arguments execute the same instructions. The cost of one
//! repetition of a case is the difference of two runs of different length. Work that is done once,
//! as formatting a store, is no part of it.

mod world;

use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, NewEntry};
use mainstay_types::{BLOCK_BYTES, Chain, Epoch, Index, Range, ResourceId, VolumeId};
use std::hint::black_box;
use world::Cluster;

/// Writes that are in flight together where a case says so.
const DEPTH: u64 = 32;
/// Blocks of a write where a case says so.
const LARGE: u64 = 16;

fn main() {
    let mut args = std::env::args().skip(1);
    let (case, count) = (args.next(), args.next().and_then(|count| count.parse().ok()));
    let (Some(case), Some(count)) = (case, count) else { usage() };
    match case.as_str() {
        "seal-1" => seal(1, count),
        "seal-8" => seal(8, count),
        "decode-1" => decode(1, count),
        "decode-8" => decode(8, count),
        "write-1-copy" => writes(&mut Cluster::new(1), 1, 1, count),
        "write-1-copy-deep" => writes(&mut Cluster::new(1), 1, DEPTH, count),
        "write-1-copy-large" => writes(&mut Cluster::new(1), LARGE, 1, count),
        "write-2-copies" => writes(&mut Cluster::new(2), 1, 1, count),
        "write-2-copies-deep" => writes(&mut Cluster::new(2), 1, DEPTH, count),
        "write-2-copies-large" => writes(&mut Cluster::new(2), LARGE, 1, count),
        "read-volume" => reads(count),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: instructions CASE COUNT (the cases are those of bench/instructions.txt)");
    std::process::exit(2);
}

fn entries(number: u64) -> Vec<NewEntry> {
    let payload = Bytes::from(vec![0x5a; BLOCK_BYTES as usize]);
    let entry = |block| NewEntry {
        kind: EntryKind::Write,
        range: Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: BLOCK_BYTES },
        payload: payload.clone(),
        session: 0,
        request: block,
    };
    (0..number).map(entry).collect()
}

fn sealed(number: u64, first: u64) -> Batch {
    Batch::seal(ResourceId(1), Epoch(1), Index(first), Chain(0), Index(0), entries(number))
}

/// Makes a batch of `number` blocks of 4 KiB, `count` times.
fn seal(number: u64, count: u64) {
    for first in 0..count {
        black_box(sealed(number, 1 + first * number));
    }
}

/// A batch is read back from its bytes.
fn decode(number: u64, count: u64) {
    let batch = sealed(number, 1);
    let payload = Bytes::from(batch.payload.concat());
    for _ in 0..count {
        black_box(Batch::decode(black_box(&batch.header), &payload).expect("it was just sealed"));
    }
}

/// Stretches of blocks are written at random places, appended, sent, committed and destaged.
fn writes(cluster: &mut Cluster, blocks: u64, depth: u64, count: u64) {
    let mut block = world::Blocks::new();
    let mut left = count;
    while left > 0 {
        let now = depth.min(left);
        for _ in 0..now {
            cluster.write(block.next(blocks), blocks);
        }
        cluster.settle();
        left -= now;
    }
    assert_eq!(cluster.answered(), count, "every write is acknowledged");
}

/// Blocks that were never written are read from the volume.
fn reads(count: u64) {
    let mut cluster = Cluster::new(1);
    let mut block = world::Blocks::new();
    for _ in 0..count {
        cluster.read(block.next(1));
        cluster.settle();
    }
    assert_eq!(cluster.answered(), count, "every read is answered");
}
