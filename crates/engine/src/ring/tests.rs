use super::*;
use crate::buffer::BufferPool;
use bytes::Bytes;

fn pipe() -> (Fd, Fd) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (Arc::new(read.into()), Arc::new(write.into()))
}

fn read(fd: &Fd, pool: &BufferPool) -> Op {
    Op::Read { fd: Arc::clone(fd), offset: STREAM_OFFSET, buffer: pool.get(4096), at: 0, len: 4096 }
}

#[test]
fn a_deadline_ends_the_wait() {
    let mut ring = Ring::new().expect("a ring");
    let before = now();
    let mut out = Vec::new();
    assert!(!ring.turn(Some(before.plus_ms(20)), &mut out).expect("a turn"));
    assert!(out.is_empty() && now().ms_since(before) >= 19);
}

#[test]
fn another_thread_wakes_the_ring_again_and_again() {
    let mut ring = Ring::new().expect("a ring");
    for _ in 0..3 {
        let waker = ring.waker();
        let thread = std::thread::spawn(move || waker.wake());
        assert!(ring.turn(None, &mut Vec::new()).expect("a turn"));
        thread.join().expect("woken");
    }
    assert!(!ring.turn(Some(now()), &mut Vec::new()).expect("a turn"), "one wake, one turn");
}

#[test]
fn buffers_come_back_with_the_completion() {
    let mut ring = Ring::new().expect("a ring");
    let pool = BufferPool::new(1 << 20);
    let (reader, writer) = pipe();
    ring.submit(Owner::Frontend, 7, read(&reader, &pool));
    let pieces = [Bytes::from_static(b"one "), Bytes::from_static(b"two")].into();
    ring.submit(Owner::Shard, 8, Op::Write { fd: writer, offset: STREAM_OFFSET, pieces, durable: false });
    let mut out = Vec::new();
    while out.len() < 2 {
        ring.turn(None, &mut out).expect("a turn");
    }
    out.sort_by_key(|completion| completion.tag);
    assert_eq!((out[0].owner, out[1].owner), (Owner::Frontend, Owner::Shard));
    let (Op::Read { buffer, .. }, Ok(7)) = (&out[0].op, &out[0].result) else { panic!("{:?}", out[0]) };
    assert_eq!(&buffer.as_slice()[..7], b"one two");
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_cancelled_operation_completes() {
    let mut ring = Ring::new().expect("a ring");
    let pool = BufferPool::new(1 << 20);
    let (reader, _writer) = pipe();
    let handle = ring.submit(Owner::Shard, 1, read(&reader, &pool));
    ring.turn(Some(now()), &mut Vec::new()).expect("a turn");
    ring.cancel(handle);
    let mut out = Vec::new();
    while out.is_empty() {
        ring.turn(None, &mut out).expect("a turn");
    }
    assert_eq!(out[0].result.as_ref().map_err(io::Error::raw_os_error), Err(Some(libc::ECANCELED)));
}

#[test]
fn more_operations_than_the_queue_holds() {
    let mut ring = Ring::new().expect("a ring");
    let pool = BufferPool::new(1 << 20);
    let null: Fd = Arc::new(std::fs::File::open("/dev/zero").expect("a device").into());
    let count = ENTRIES as usize * 20;
    for tag in 0..count {
        ring.submit(Owner::Shard, tag as u64, read(&null, &pool));
    }
    let mut out = Vec::new();
    while out.len() < count {
        ring.turn(None, &mut out).expect("a turn");
    }
    assert!(out.iter().all(|completion| completion.result.as_ref().is_ok_and(|n| *n == 4096)));
}

#[test]
fn dropping_a_ring_waits_for_the_kernel() {
    let pool = BufferPool::new(1 << 20);
    let (reader, _writer) = pipe();
    let mut ring = Ring::new().expect("a ring");
    for tag in 0..10 {
        ring.submit(Owner::Shard, tag, read(&reader, &pool));
    }
    ring.turn(Some(now()), &mut Vec::new()).expect("a turn");
    assert_eq!(pool.in_use_bytes(), 10 * 4096);
    drop(ring);
    assert_eq!(pool.in_use_bytes(), 0);
    assert_eq!(Arc::strong_count(&reader), 1);
}

/// A turn reports completions soon, on every kernel, even if it waits for more than come.
#[test]
fn a_turn_that_gathers_does_not_wait_long_for_absent_completions() {
    let mut ring = Ring::new().expect("a ring");
    let pool = BufferPool::new(1 << 20);
    let ((reader, writer), (_other, unread)) = (pipe(), pipe());
    let write = |fd: Fd| {
        let pieces = [Bytes::from_static(b"one")].into();
        Op::Write { fd, offset: STREAM_OFFSET, pieces, durable: false }
    };
    ring.submit(Owner::Shard, 1, read(&reader, &pool));
    ring.submit(Owner::Shard, 2, write(writer));
    ring.submit(Owner::Shard, 3, write(unread));
    let (before, mut out) = (now(), Vec::new());
    while out.len() < 3 {
        ring.turn_gathering(Some(before.plus_ms(5000)), 7, &mut out).expect("a turn");
    }
    assert!(now().ms_since(before) < 4000, "the deadline was not needed");
}

/// A ring that waits for several things for longer than a test may take.
fn gathering() -> Ring {
    let mut ring = Ring::new().expect("a ring");
    ring.patience_us = 10_000_000;
    ring
}

/// Writes to each descriptor after its number of milliseconds.
fn later(writers: Vec<(u64, Fd)>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        for (ms, writer) in writers {
            std::thread::sleep(Duration::from_millis(ms));
            // SAFETY: the descriptor is open and the byte is a constant.
            let wrote = unsafe { libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            assert_eq!(wrote, 1);
        }
    })
}

fn tags(out: &[Completion]) -> Vec<u64> {
    out.iter().map(|completion| completion.tag).collect()
}

#[test]
fn an_urgent_completion_ends_a_wait_for_several() {
    let (mut ring, pool) = (gathering(), BufferPool::new(1 << 20));
    let ((patient, _never), before) = (pipe(), now());
    ring.submit_patient(Owner::Shard, 7, read(&patient, &pool));
    for round in 0..5 {
        let (urgent, writer) = pipe();
        ring.submit(Owner::Shard, round, read(&urgent, &pool));
        let (thread, mut out) = (later(vec![(20, writer)]), Vec::new());
        ring.turn_gathering(None, 3, &mut out).expect("a turn");
        assert_eq!(tags(&out), [round]);
        thread.join().expect("written");
    }
    let waker = ring.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    assert!(ring.turn_gathering(None, 3, &mut Vec::new()).expect("a turn"));
    thread.join().expect("woken");
    assert!(now().ms_since(before) < 8_000);
}

#[test]
fn patient_completions_are_gathered() {
    let (mut ring, pool) = (gathering(), BufferPool::new(1 << 20));
    if !ring.gathers {
        return;
    }
    for round in 0..5 {
        // It ends alone, and may leave the empty operations behind it for the next turn.
        let (urgent, writer) = pipe();
        ring.submit(Owner::Shard, 1, read(&urgent, &pool));
        let (thread, mut out) = (later(vec![(5, writer)]), Vec::new());
        ring.turn(None, &mut out).expect("a turn");
        assert_eq!(tags(&out), [1], "round {round}");
        thread.join().expect("written");
        let (pipes, sent) = ([pipe(), pipe()], pipe());
        for ((reader, _), tag) in pipes.iter().zip(2..) {
            ring.submit_patient(Owner::Shard, tag, read(reader, &pool));
        }
        // It ends while it enters the kernel, and is not among those that are due.
        let pieces = [Bytes::from_static(b"x")].into();
        let op = Op::Write { fd: sent.1, offset: STREAM_OFFSET, pieces, durable: false };
        ring.submit(Owner::Shard, 4, op);
        let thread = later(pipes.map(|(_, writer)| (20, writer)).into());
        out.clear();
        ring.turn_gathering(None, 2, &mut out).expect("a turn");
        assert_eq!(tags(&out), [4, 2, 3], "round {round}");
        thread.join().expect("written");
    }
}

#[test]
fn a_ring_does_not_gather_while_it_might_miss_an_urgent_completion() {
    let (mut ring, pool, before) = (gathering(), BufferPool::new(1 << 20), now());
    let ((urgent, _never), (patient, writer)) = (pipe(), pipe());
    let light = ring.urgent.begin(false);
    ring.submit_as(Owner::Shard, 1, read(&urgent, &pool), light);
    ring.submit_patient(Owner::Shard, 2, read(&patient, &pool));
    let (thread, mut out) = (later(vec![(20, writer)]), Vec::new());
    ring.turn_gathering(None, 3, &mut out).expect("a turn");
    assert_eq!(tags(&out), [2]);
    thread.join().expect("written");
    assert!(now().ms_since(before) < 8_000);
}

#[test]
fn pieces_advance_over_their_borders() {
    let mut pieces: VecDeque<_> = [Bytes::from_static(b"abc"), Bytes::from_static(b"def")].into();
    advance(&mut pieces, 4);
    assert_eq!(pieces, [Bytes::from_static(b"ef")]);
    advance(&mut pieces, 2);
    assert!(pieces.is_empty());
}

#[test]
fn polling_still_honours_the_deadline() {
    let mut ring = Ring::new().expect("a ring");
    ring.set_spin(Spin::fixed(Duration::from_secs(60)));
    let before = now();
    assert!(!ring.turn(Some(before.plus_ms(2)), &mut Vec::new()).expect("a turn"));
    assert!(now().ms_since(before) < 30_000);
}

/// Some completions are made by the kernel only when it is entered. A ring that missed these would
/// poll for a minute.
#[test]
fn a_polling_ring_sees_every_completion() {
    let mut ring = Ring::new().expect("a ring");
    ring.set_spin(Spin::fixed(Duration::from_secs(60)));
    let (pool, before) = (BufferPool::new(1 << 20), now());
    for round in 0..3 {
        let (reader, writer) = pipe();
        if round > 0 {
            ring.submit(Owner::Shard, round, read(&reader, &pool));
        }
        let waker = ring.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            match round {
                0 => waker.wake(),
                _ => {
                    // SAFETY: the descriptor is open and the byte is a constant.
                    let wrote = unsafe { libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1) };
                    assert_eq!(wrote, 1);
                }
            }
        });
        let mut out = Vec::new();
        let woken = ring.turn(None, &mut out).expect("a turn");
        assert_eq!((woken, out.len()), (round == 0, usize::from(round > 0)));
        thread.join().expect("written");
    }
    assert!(now().ms_since(before) < 30_000 && ring.polled() >= Duration::from_millis(20));
}

/// Compares how long a turn waits for more after one completion: polling must not lengthen it. The
/// rings take turns, because the load of the machine varies.
#[test]
fn a_polling_ring_gathers_no_longer_than_a_waiting_one() {
    let pool = BufferPool::new(1 << 20);
    // One never polls, one polls for less than it gathers, and one for longer.
    let windows = [None, Some(45), Some(200)];
    for gathers in [true, false] {
        let mut rings = windows.map(|window| {
            let mut ring = Ring::new().expect("a ring");
            ring.gathers &= gathers;
            ring.set_spin(window.map_or_else(Spin::never, |us| Spin::fixed(Duration::from_micros(us))));
            ring.patience_us = GATHER_US;
            (ring, Vec::new())
        });
        for round in 0..200 {
            for (ring, times) in &mut rings {
                let (reader, writer) = pipe();
                // SAFETY: as above.
                assert_eq!(unsafe { libc::write(writer.as_raw_fd(), c"x".as_ptr().cast(), 1) }, 1);
                ring.submit_patient(Owner::Shard, round, read(&reader, &pool));
                let (before, mut out) = (Instant::now(), Vec::new());
                ring.turn_gathering(Some(now().plus_ms(5000)), 7, &mut out).expect("a turn");
                assert_eq!(out.len(), 1);
                times.push(before.elapsed());
            }
        }
        let [sleeps, short, long] = rings.map(|(_, mut times)| {
            times.sort();
            times[times.len() / 4]
        });
        // Half of what would be gathered twice.
        let most = sleeps + Duration::from_micros(u64::from(GATHER_US) / 2);
        assert!(
            short <= most && long <= most,
            "{sleeps:?} sleeping, {short:?} and {long:?} polling; {gathers}"
        );
    }
}

#[test]
fn a_long_wait_without_anything_ends_the_polling() {
    let mut ring = Ring::new().expect("a ring");
    let mut spin = Spin::always();
    spin.waited(Duration::from_micros(100), Duration::ZERO, true);
    ring.set_spin(spin);
    for _ in 0..3 {
        assert!(!ring.turn(Some(now().plus_ms(5)), &mut Vec::new()).expect("a turn"));
    }
    let polled = ring.polled();
    assert!(!polled.is_zero(), "the first time");
    ring.turn(Some(now().plus_ms(5)), &mut Vec::new()).expect("a turn");
    assert_eq!(ring.polled(), polled);
}

/// Writes to a file and to a stream differ by their offset. A pipe takes both in the order in which
/// they begin.
#[test]
fn writes_to_a_disk_begin_after_sends() {
    let mut ring = Ring::new().expect("a ring");
    let pool = BufferPool::new(1 << 20);
    let (reader, writer) = pipe();
    let write = |offset, text: &'static str| Op::Write {
        fd: Arc::clone(&writer),
        offset,
        pieces: [Bytes::from_static(text.as_bytes())].into(),
        durable: false,
    };
    for (tag, op) in [write(0, "1"), write(STREAM_OFFSET, "a"), write(4096, "2"), write(STREAM_OFFSET, "b")]
        .into_iter()
        .enumerate()
    {
        ring.submit(Owner::Shard, tag as u64, op);
    }
    let mut out = Vec::new();
    while out.len() < 4 {
        ring.turn(Some(now().plus_ms(60_000)), &mut out).expect("a turn");
    }
    let order: Vec<_> = out.iter().map(|completion| (completion.tag, completion.result.is_ok())).collect();
    assert_eq!(order, [(1, true), (3, true), (0, true), (2, true)]);
    ring.submit(Owner::Shard, 4, read(&reader, &pool));
    out.clear();
    ring.turn(Some(now().plus_ms(60_000)), &mut out).expect("a turn");
    let Op::Read { buffer, .. } = &out[0].op else { panic!("{:?}", out[0]) };
    assert_eq!(&buffer.as_slice()[..4], b"ab12");
    // None is left in the kernel's hands, or behind, when the ring goes.
    ring.submit(Owner::Shard, 5, write(0, "3"));
    drop(ring);
    drop(writer);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(reader.try_clone().expect("a pipe")), &mut rest)
        .expect("the end of the pipe");
    assert_eq!(rest, b"3");
}
