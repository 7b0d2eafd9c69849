//! A writer and reader at random places on a ring of its own, for the examples that measure.

use bytes::Bytes;
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::ring::{Fd, Op, Owner, Ring};
use std::time::Instant;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Read,
    Write,
}

impl Direction {
    /// Word for one such request.
    pub fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Kind and place of requests, and how much each asks for, in bytes.
#[derive(Clone, Copy)]
pub struct Span {
    pub direction: Direction,
    pub volume_bytes: u64,
    pub request_bytes: u64,
}

/// Writes or reads `count` times at random places of a device, `depth` at a time; returns the
/// microseconds that each took.
pub fn transfer(
    ring: &mut Ring,
    device: &Fd,
    span: Span,
    depth: u64,
    count: u64,
    seed: &mut u64,
) -> Vec<f64> {
    let Span { direction, volume_bytes, request_bytes } = span;
    let pool = BufferPool::new(1 << 20);
    let payload: Bytes = pool.copy_of(&vec![0x5a; request_bytes as usize]);
    let mut began = vec![Instant::now(); depth as usize];
    let mut took = Vec::with_capacity(count as usize);
    let mut completions = Vec::new();
    let mut submit = |ring: &mut Ring, slot: u64, began: &mut [Instant]| {
        // Knuth's MMIX generator.
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = (*seed >> 33) % (volume_bytes / request_bytes);
        began[slot as usize] = Instant::now();
        let (fd, offset) = (Fd::clone(device), place * request_bytes);
        let op = match direction {
            Direction::Write => Op::Write { fd, offset, pieces: [payload.clone()].into(), durable: false },
            Direction::Read => {
                let len = request_bytes as usize;
                Op::Read { fd, offset, buffer: pool.get(len), at: 0, len }
            }
        };
        ring.submit(Owner::Shard, slot, op);
    };
    let mut left = count;
    for slot in 0..depth.min(left) {
        submit(ring, slot, &mut began);
        left -= 1;
    }
    while (took.len() as u64) < count {
        ring.turn(None, &mut completions).expect("a turn");
        for completion in completions.drain(..) {
            assert_eq!(completion.result.expect("done"), request_bytes as u32);
            took.push(began[completion.tag as usize].elapsed().as_secs_f64() * 1e6);
            if left > 0 {
                left -= 1;
                submit(ring, completion.tag, &mut began);
            }
        }
    }
    took
}
