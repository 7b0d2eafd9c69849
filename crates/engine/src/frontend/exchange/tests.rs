//! The exchange between clients and a resource that does what it is asked in any order that the log
//! allows, against an array of bytes.

use super::*;
use crate::frontend::{Extent, FrontendOp, FrontendResult};
use bytes::Bytes;
use proptest::prelude::*;

const BLOCK: usize = BLOCK_BYTES as usize;

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// An answer that a client waits for, and the content that it must have.
struct Expected {
    client: u64,
    cookie: u64,
    from: usize,
    to: usize,
    /// Content that a read must return; `None` for other requests.
    content: Option<Vec<u8>>,
    got: Vec<u8>,
}

struct Lab {
    exchange: Exchange,
    /// Present content of the resource.
    volume: Vec<u8>,
    /// Content that the resource must have when all requests have ended.
    model: Vec<u8>,
    outstanding: Vec<FrontendRequest>,
    done: Vec<(u64, FrontendResult)>,
    expected: Vec<Expected>,
    rng: Rng,
    cookies: u64,
}

fn range_of(op: &FrontendOp) -> (usize, usize) {
    match op {
        FrontendOp::Read { offset, len }
        | FrontendOp::Discard { offset, len }
        | FrontendOp::WriteZeroes { offset, len }
        | FrontendOp::Extents { offset, len } => (*offset as usize, (offset + len) as usize),
        FrontendOp::Write { offset, payload } => (*offset as usize, *offset as usize + payload.len()),
        FrontendOp::Flush => (0, 0),
    }
}

impl Lab {
    fn new(seed: u64, blocks: usize) -> Self {
        let mut rng = Rng(seed | 1);
        let volume: Vec<u8> = (0..blocks * BLOCK).map(|_| rng.below(256) as u8).collect();
        Self {
            exchange: Exchange::new(BufferPool::new(16 << 20)),
            model: volume.clone(),
            volume,
            outstanding: Vec::new(),
            done: Vec::new(),
            expected: Vec::new(),
            rng,
            cookies: 0,
        }
    }

    fn client(&self, number: u64) -> Client {
        let bytes = self.volume.len() as u64;
        // Odd ones have agreed on structured replies.
        Client { number, volume: VolumeId(0), bytes, structured: number % 2 == 1, allocation: true }
    }

    /// Makes one request of any kind. No other request uses its bytes at the moment; its blocks may
    /// be shared.
    fn ask(&mut self, len_max: usize) {
        let from = self.rng.below(self.volume.len());
        let to = (from + 1 + self.rng.below(len_max)).min(self.volume.len());
        // Half of them are of whole blocks.
        let (from, to) = if self.rng.below(2) == 0 {
            (from / BLOCK * BLOCK, to.next_multiple_of(BLOCK))
        } else {
            (from, to)
        };
        if self.expected.iter().any(|other| other.from < to && from < other.to) {
            return;
        }
        let command = match self.rng.below(8) {
            0..3 => Command::Write,
            3..5 => {
                Command::Read { whole: to - from <= REQUEST_BYTES_MAX as usize && self.rng.below(2) == 0 }
            }
            5 => Command::Trim,
            6 => Command::WriteZeroes { keep: self.rng.below(2) == 0 },
            _ => Command::Flush,
        };
        let number = self.rng.below(4) as u64;
        let client = self.client(number);
        self.cookies += 1;
        let request = Request {
            command,
            cookie: self.cookies,
            offset: from as u64,
            len: (to - from) as u32,
            bad_flags: false,
        };
        let content = match command {
            Command::Read { .. } => Some(self.model[from..to].to_vec()),
            Command::WriteZeroes { .. } => {
                self.model[from..to].fill(0);
                None
            }
            Command::Trim => {
                let (first, last) = (from.next_multiple_of(BLOCK), to / BLOCK * BLOCK);
                if first < last {
                    self.model[first..last].fill(0);
                }
                None
            }
            _ => None,
        };
        let (number, cookie) = (client.number, request.cookie);
        self.expected.push(Expected { client: number, cookie, from, to, content, got: Vec::new() });
        match self.exchange.request(client, &request, 0, 0) {
            Admission::Taken(_) => {}
            Admission::Payload(job) => {
                let payload: Vec<u8> = (from..to).map(|_| self.rng.below(256) as u8).collect();
                self.model[from..to].copy_from_slice(&payload);
                let (mut at, mut rest) = (from, &payload[..]);
                while !rest.is_empty() {
                    let (skip, len) = part_of_write(at as u64, rest.len() as u64);
                    let mut buffer = BufferPool::new(0).get((skip + len).next_multiple_of(BLOCK));
                    buffer.as_mut_slice().fill(0xee);
                    buffer.as_mut_slice()[skip..skip + len].copy_from_slice(&rest[..len]);
                    rest = &rest[len..];
                    self.exchange.part(job, at as u64, buffer, skip, len, rest.is_empty());
                    at += len;
                }
            }
            other => panic!("{other:?}"),
        }
        self.settle();
    }

    fn settle(&mut self) {
        self.outstanding.append(self.exchange.requests());
        for answer in std::mem::take(self.exchange.answers()) {
            let at =
                self.expected.iter().position(|e| (e.client, e.cookie) == (answer.client, answer.cookie));
            let at = at.expect("answered once, and no other client");
            match answer.reply {
                Reply::Done => {}
                Reply::Data { offset, pieces, .. } => {
                    let expected = &mut self.expected[at];
                    assert_eq!(offset as usize, expected.from + expected.got.len(), "in order");
                    expected.got.extend(pieces.concat());
                }
                other => panic!("{other:?}"),
            }
            if answer.ended.is_some() {
                let expected = self.expected.swap_remove(at);
                if let Some(content) = expected.content {
                    assert!(content == expected.got, "read {}..{}", expected.from, expected.to);
                }
            }
        }
    }

    /// Lets the resource do a request that no earlier one holds up, or answer one that it has done.
    fn work(&mut self) {
        if !self.done.is_empty() && (self.outstanding.is_empty() || self.rng.below(2) == 0) {
            let at = self.rng.below(self.done.len());
            let (tag, result) = self.done.swap_remove(at);
            self.exchange.complete(tag, result);
            return self.settle();
        }
        let free: Vec<_> = (0..self.outstanding.len())
            .filter(|&at| {
                let (from, to) = range_of(&self.outstanding[at].op);
                !self.outstanding[..at].iter().any(|earlier| {
                    let (first, last) = range_of(&earlier.op);
                    first < to && from < last
                })
            })
            .collect();
        if free.is_empty() {
            return;
        }
        let request = self.outstanding.remove(free[self.rng.below(free.len())]);
        let (from, to) = range_of(&request.op);
        assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK) && to <= self.volume.len());
        let result = match &request.op {
            FrontendOp::Read { .. } => {
                assert!(to - from <= REQUEST_BYTES_MAX as usize);
                let cut = from + self.rng.below(to - from);
                let piece = |range: std::ops::Range<usize>| Bytes::copy_from_slice(&self.volume[range]);
                [piece(from..cut), piece(cut..to)].into_iter().collect()
            }
            FrontendOp::Write { payload, .. } => {
                assert!(payload.len() <= REQUEST_BYTES_MAX as usize);
                self.volume[from..to].copy_from_slice(payload);
                Pieces::new()
            }
            FrontendOp::Discard { .. } | FrontendOp::WriteZeroes { .. } => {
                self.volume[from..to].fill(0);
                Pieces::new()
            }
            FrontendOp::Flush => Pieces::new(),
            FrontendOp::Extents { .. } => unreachable!("not asked for"),
        };
        self.done.push((request.tag, Ok(result)));
    }

    fn finish(&mut self) {
        while !self.outstanding.is_empty() || !self.done.is_empty() {
            self.work();
        }
        assert!(self.expected.is_empty(), "everything is answered");
        assert!(self.volume == self.model, "the volume is as the clients left it");
        assert_eq!((self.exchange.tasks.len(), self.exchange.jobs.len(), self.exchange.merges), (0, 0, 0));
        assert!(self.exchange.waiting.is_empty());
    }
}

fn run(seed: u64, blocks: usize, len_max: usize, steps: usize) {
    let mut lab = Lab::new(seed, blocks);
    for _ in 0..steps {
        if lab.rng.below(2) == 0 && lab.exchange.has_room() {
            lab.ask(len_max);
        } else {
            lab.work();
        }
    }
    lab.finish();
}

/// Clients that share blocks, but no bytes, never lose what another one wrote, in whatever order
/// things happen.
#[test]
fn neighbours_in_a_block_do_not_lose_their_writes() {
    for seed in 1..=400 {
        let result = std::panic::catch_unwind(|| run(seed, 8, 3 * BLOCK, 400));
        if let Err(cause) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(cause);
        }
    }
}

#[test]
fn long_requests_are_cut_at_the_limit_of_the_log() {
    for seed in 1..=6 {
        run(seed, 1200, 3 << 20, 40);
    }
}

fn request(command: Command, offset: u64, len: u32) -> Request {
    Request { command, cookie: 1, offset, len, bad_flags: false }
}

fn only_answer(exchange: &mut Exchange) -> Reply {
    assert_eq!(exchange.answers().len(), 1);
    exchange.answers().remove(0).reply
}

#[test]
fn a_refused_request_gets_the_error_of_the_nbd_document() {
    let mut lab = Lab::new(1, 8);
    let end = lab.volume.len() as u64;
    let client = lab.client(1);
    let read = Command::Read { whole: false };
    let cases = [
        (request(read, end - 1, 2), NbdError::Invalid),
        (request(read, u64::MAX, 2), NbdError::Invalid),
        (request(Command::Trim, end, 1), NbdError::Invalid),
        (request(Command::WriteZeroes { keep: false }, end, 1), NbdError::NoSpace),
        (request(Command::BlockStatus { one: false }, 0, 0), NbdError::Invalid),
        (request(Command::Unknown, 0, 0), NbdError::Invalid),
        (Request { bad_flags: true, ..request(Command::Flush, 0, 0) }, NbdError::Invalid),
    ];
    for (request, error) in cases {
        assert_eq!(lab.exchange.request(client, &request, 0, 0), Admission::Taken(0), "{request:?}");
        let reply = only_answer(&mut lab.exchange);
        assert!(matches!(reply, Reply::Failed(found, _) if found == error), "{request:?}: {reply:?}");
    }
    let write = request(Command::Write, end - 1, 2);
    assert!(matches!(lab.exchange.request(client, &write, 0, 0), Admission::Refused(NbdError::NoSpace, _)));
    let long = request(Command::Write, 0, u32::MAX);
    assert!(matches!(lab.exchange.request(client, &long, 0, 0), Admission::Hostile(_)));
    let large = Client { bytes: 1 << 30, ..client };
    let whole = request(Command::Read { whole: true }, 0, 2 << 20);
    lab.exchange.request(large, &whole, 0, 0);
    assert!(matches!(only_answer(&mut lab.exchange), Reply::Failed(NbdError::Overflow, _)));
    assert!(lab.exchange.requests().is_empty(), "nothing of this reached the resource");
}

#[test]
fn a_client_waits_when_it_has_too_much_in_progress() {
    let mut lab = Lab::new(1, 8);
    let client = lab.client(1);
    let read = request(Command::Read { whole: false }, 0, 4096);
    assert_eq!(lab.exchange.request(client, &read, JOBS_MAX, 0), Admission::Wait);
    assert_eq!(lab.exchange.request(client, &read, 1, WINDOW_BYTES), Admission::Wait);
    assert_eq!(lab.exchange.request(client, &read, 1, WINDOW_BYTES - 4096), Admission::Taken(4096));
    let mut taken = 1;
    while lab.exchange.request(client, &read, 0, 0) != Admission::Wait {
        taken += 1;
    }
    assert!(taken <= TASKS_MAX && taken > TASKS_MAX - TASKS_PER_JOB);
    // One that is longer than the window is served alone.
    let mut exchange = Exchange::new(BufferPool::new(0));
    let large = Client { bytes: 1 << 30, ..client };
    let long = request(Command::Read { whole: false }, 0, 32 << 20);
    assert_eq!(exchange.request(large, &long, 0, 0), Admission::Taken(32 << 20));
}

#[test]
fn an_error_is_told_once_and_the_fence_answers_everything() {
    let mut lab = Lab::new(1, 8);
    let client = lab.client(1);
    lab.exchange.request(client, &request(Command::WriteZeroes { keep: false }, 100, 3 * 4096), 0, 0);
    let tags: Vec<_> = lab.exchange.requests().drain(..).map(|request| request.tag).collect();
    assert_eq!(tags.len(), 3, "two ends and the middle");
    for tag in tags {
        lab.exchange.complete(tag, Err(libc::EIO));
    }
    assert!(matches!(only_answer(&mut lab.exchange), Reply::Failed(NbdError::Io, _)));
    lab.exchange.request(client, &request(Command::Read { whole: false }, 0, 4096), 0, 0);
    let Admission::Payload(job) = lab.exchange.request(client, &request(Command::Write, 0, 4096), 0, 0)
    else {
        panic!("a write has a payload");
    };
    lab.exchange.fail_all(libc::EIO);
    assert_eq!(lab.exchange.answers().drain(..).count(), 2);
    lab.exchange.requests().clear();
    lab.exchange.part(job, 0, BufferPool::new(0).get(4096), 0, 4096, true);
    assert!(lab.exchange.requests().is_empty() && lab.exchange.answers().is_empty());
    lab.exchange.request(client, &request(Command::Flush, 0, 0), 0, 0);
    assert!(matches!(only_answer(&mut lab.exchange), Reply::Failed(NbdError::Io, _)));
}

#[test]
fn a_client_that_dies_leaves_no_gap_for_others() {
    let mut lab = Lab::new(1, 8);
    let (dying, other) = (lab.client(1), lab.client(2));
    let write = |lab: &mut Lab, client, offset| {
        let admitted = lab.exchange.request(client, &request(Command::Write, offset, 10), 0, 0);
        let Admission::Payload(job) = admitted else { panic!("{admitted:?}") };
        let mut buffer = BufferPool::new(0).get(4096);
        buffer.as_mut_slice().fill(client.number as u8);
        lab.exchange.part(job, offset, buffer, offset as usize, 10, true);
    };
    write(&mut lab, dying, 100);
    write(&mut lab, other, 200);
    lab.exchange.forget(dying.number);
    assert_eq!(lab.exchange.requests().len(), 1, "the second waits for the first");
    lab.outstanding.append(lab.exchange.requests());
    lab.expected.push(Expected { client: 2, cookie: 1, from: 0, to: 0, content: None, got: vec![] });
    lab.model[100..110].fill(1);
    lab.model[200..210].fill(2);
    lab.finish();
}

#[test]
fn block_status_is_cut_to_the_requested_range() {
    let extents = [
        Extent { len: 8192, written: true },
        Extent { len: 4096, written: false },
        Extent { len: 8192, written: true },
    ];
    let mut lab = Lab::new(1, 8);
    for (one, expected) in
        [(false, vec![(8092, 0), (4096, STATE_HOLE_ZERO), (4000, 0)]), (true, vec![(8092, 0)])]
    {
        let status = request(Command::BlockStatus { one }, 100, 16188);
        lab.exchange.request(lab.client(1), &status, 0, 0);
        let asked = lab.exchange.requests().remove(0);
        assert_eq!(asked.op, FrontendOp::Extents { offset: 0, len: 16384 });
        lab.exchange.extents(asked.tag, &extents);
        assert_eq!(only_answer(&mut lab.exchange), Reply::Status(expected));
    }
}

const STATE_HOLE_ZERO: u32 = 3;

proptest! {
    /// Every request that reaches the resource lies within the volume and is made of whole blocks,
    /// whatever a client asks for.
    #[test]
    fn no_request_reaches_beyond_the_volume(
        command in prop_oneof![
            Just(Command::Read { whole: false }), Just(Command::Trim), Just(Command::Flush), Just(Command::Unknown),
            Just(Command::WriteZeroes { keep: true }), Just(Command::BlockStatus { one: false }),
        ],
        offset in prop_oneof![0u64..40_000, any::<u64>()],
        len in prop_oneof![0u32..40_000, any::<u32>()],
    ) {
        let mut lab = Lab::new(7, 8);
        let client = lab.client(1);
        lab.exchange.request(client, &request(command, offset, len), 0, 0);
        for found in lab.exchange.requests().drain(..) {
            let (from, to) = range_of(&found.op);
            prop_assert!(to <= lab.volume.len() && from <= to);
            prop_assert!(from.is_multiple_of(BLOCK) && to.is_multiple_of(BLOCK));
        }
    }
}

/// R26: cut where a page of up to a mebibyte cannot lie.
#[test]
fn a_write_of_a_mebibyte_is_one_part_and_a_longer_one_is_cut_between_mebibytes() {
    const MAX: u64 = REQUEST_BYTES_MAX;
    let parts = |offset: u64, len: u64| {
        let (mut at, mut parts) = (offset, Vec::new());
        while at < offset + len {
            let (skip, part) = part_of_write(at, offset + len - at);
            assert_eq!(skip as u64, at % BLOCK_BYTES);
            assert!(part > 0 && (skip + part) as u64 <= MAX, "{part} bytes at {at}");
            parts.push((at, part as u64));
            at += part as u64;
        }
        assert_eq!(at, offset + len);
        parts
    };
    for offset in [0, BLOCK_BYTES, 7 * BLOCK_BYTES, MAX - BLOCK_BYTES, 3 * MAX - 16384] {
        for len in [BLOCK_BYTES, 16384, MAX - BLOCK_BYTES, MAX] {
            assert_eq!(parts(offset, len).len(), 1, "{len} bytes at {offset}");
        }
    }
    // A request that begins or ends inside of a block counts as all blocks that it touches.
    assert_eq!(parts(512, MAX - BLOCK_BYTES).len(), 1);
    assert_eq!(parts(512, MAX).len(), 2);
    for (offset, len) in
        [(4096, MAX + 4096), (3 * 4096, 5 * MAX), (512, MAX), (MAX - 512, 32 << 20), (1, MAX + 1)]
    {
        for (at, _) in parts(offset, len).into_iter().skip(1) {
            assert!(at.is_multiple_of(MAX), "{len} bytes at {offset} are cut at {at}");
        }
        assert!(parts(offset, len).len() as u64 <= len / MAX + 2);
    }
}
