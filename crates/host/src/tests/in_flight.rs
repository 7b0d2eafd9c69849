//! Several writes to the journal in flight, from the requests to the disk
//! (docs/adr/0022-several-journal-writes.md).

use super::lab::{HERE, INSTANCE, Lab, RESOURCE, THERE, broken, record, roomy};
use mainstay_codec::{Envelope, Message};
use mainstay_store::{Output, Tuning};
use mainstay_types::{
    BLOCK_BYTES, ConfigVersion, Epoch, Index, JOURNAL_WRITES_MAX, Mode, Policy, ResourceRecord, Role, Time,
};
use std::collections::{BTreeMap, VecDeque};

/// Entries in each write to the journal that is in flight.
fn in_flight(lab: &Lab) -> Vec<usize> {
    let entries = |output: &Output| match output {
        Output::JournalWrite { parts, .. } => Some(parts.iter().map(|(_, batch)| batch.entries.len()).sum()),
        _ => None,
    };
    lab.world.operations.iter().filter_map(entries).collect()
}

/// A primary whose journal took `us` microseconds for each write of late.
fn with_journal_of(us: u64, journal_writes_max: usize) -> Lab {
    tuned(us, Tuning { journal_writes_max, ..roomy() })
}

fn tuned(us: u64, tuning: Tuning) -> Lab {
    let mut lab = Lab::with_journal(tuning, 1 << 20, 1 << 14);
    lab.promote();
    // That of the promotion took no time at all, and is forgotten by and by.
    for _ in 0..3 {
        lab.world.now = lab.world.now.plus_ms(11_000);
        lab.write(0, 9);
        lab.world.now.0 += us;
        lab.settle();
    }
    lab
}

/// Writes that wait for a journal write are to wait for less than a millisecond together.
#[test]
fn a_batch_is_sealed_beside_others_if_enough_would_wait_long_enough() {
    for (us, expected) in [
        (2_000, vec![1, 1, 1, 1]),
        (1_000, vec![1, 1, 1, 1]),
        (999, vec![1, 2, 2, 2]),
        (250, vec![1, 4, 4, 4]),
        (100, vec![1, 10, 10, 10]),
        (5, vec![1]),
    ] {
        let mut lab = with_journal_of(us, JOURNAL_WRITES_MAX);
        let first = lab.write(0, 1);
        (1..200).for_each(|n| _ = lab.write(n, 1));
        assert_eq!(in_flight(&lab), expected, "{us} µs");
        lab.world.now.0 += us;
        lab.step();
        assert!(lab.is_answered(first));
        assert_eq!(
            in_flight(&lab)[expected.len() - 1],
            96,
            "{us} µs: as much as has come, as far as a batch goes"
        );
        lab.settle();
        assert_eq!(lab.world.answers.len(), 3 + 200);
    }
}

/// Does all there is to do on a disk that takes `us` microseconds for each operation, one after the
/// other.
fn settle_in(lab: &mut Lab, us: u64) {
    loop {
        lab.world.now.0 += us;
        if !lab.step() {
            return;
        }
    }
}

/// Returns how many writes to the journal four requests make, after one that took `us`
/// microseconds. If the journal takes 500 µs or more and less than 1,000, a write is sealed beside
/// others as soon as two requests would wait.
fn after_one_that_took(lab: &mut Lab, us: u64) -> usize {
    lab.write(0, 1);
    settle_in(lab, us);
    (0..4).for_each(|n| _ = lab.write(n, 1));
    let found = in_flight(lab).len();
    settle_in(lab, 900);
    lab.world.now = lab.world.now.plus_ms(2_000);
    found
}

/// One slow write among fast ones says nothing about the disk, and neither does one fast write of
/// long ago.
#[test]
fn the_time_of_a_journal_write_is_the_least_of_the_latest_ones() {
    let mut lab = with_journal_of(900, JOURNAL_WRITES_MAX);
    assert_eq!(after_one_that_took(&mut lab, 3_000), 2, "one, and two beside it; the fourth waits");
    assert_eq!(after_one_that_took(&mut lab, 100), 1, "four would wait for less than a millisecond together");
    // Each of these takes 2 s and some milliseconds: so 10 s later at least, and no more than 20.
    for _ in 0..4 {
        assert_eq!(after_one_that_took(&mut lab, 3_000), 1);
    }
    for _ in 0..5 {
        after_one_that_took(&mut lab, 3_000);
    }
    assert_eq!(after_one_that_took(&mut lab, 3_000), 2);
    // Nor is it remembered over a night in which no client writes.
    assert_eq!(after_one_that_took(&mut lab, 100), 1);
    lab.world.now = lab.world.now.plus_ms(60_000);
    assert_eq!(after_one_that_took(&mut lab, 3_000), 4, "of that disk only this one is known");
}

/// A disk that takes as long for each operation, however many are in flight.
struct Disk {
    us: u64,
    /// When each ends.
    doing: VecDeque<(Time, Output)>,
}

impl Disk {
    fn new(us: u64) -> Self {
        Self { us, doing: VecDeque::new() }
    }

    /// Takes what is to be done now.
    fn take(&mut self, lab: &mut Lab) {
        let mut end = lab.world.now;
        end.0 += self.us;
        self.doing.extend(lab.world.operations.drain(..).map(|output| (end, output)));
    }

    /// Lets time pass to the end of the next operation. When that is; `None` when the disk rests.
    fn end_next(&mut self, lab: &mut Lab) -> Option<Time> {
        let (at, output) = self.doing.pop_front()?;
        lab.world.now = lab.world.now.max(at);
        let (op, bytes) = lab.world.execute(output);
        lab.host.store_done(op, Ok(bytes));
        lab.host.pump(&mut lab.world);
        Some(at)
    }
}

/// The latency is the time that each write took, not the time between their ends. That is so in
/// mode B too, where no request waits for the journal and more is sealed than the store writes at
/// once.
#[test]
fn the_latency_of_each_of_several_journal_writes_is_known() {
    for mode in [Mode::C, Mode::B] {
        let mut lab = with_journal_of(2_000, JOURNAL_WRITES_MAX);
        if mode == Mode::B {
            let instances = BTreeMap::from([(HERE.node, INSTANCE)]);
            let policy = Policy { mode: mode.into(), ..Policy::default() };
            let record =
                ResourceRecord { policy, instances, replicas: vec![HERE], ..record(2, 1, HERE.node) };
            lab.host.cached(lab.world.now, true);
            lab.host.record(lab.world.now, record);
            settle_in(&mut lab, 2_000);
            lab.world.now = lab.world.now.plus_ms(30_000);
        }
        let mut disk = Disk::new(2_000);
        // It is smoothed over many.
        for _ in 0..20 {
            for n in 0..8 {
                let write = lab.write(n, 1);
                assert_eq!(lab.is_answered(write), mode == Mode::B, "{mode:?}");
                disk.take(&mut lab);
                lab.world.now.0 += 100;
            }
            while disk.end_next(&mut lab).is_some() {
                disk.take(&mut lab);
            }
        }
        let took = lab.host.replica().status().journal_latency_us;
        assert!((1_800..2_300).contains(&took), "{mode:?}: {took} µs");
    }
}

/// Nor is one that was in flight when the replica ceased to lead timed for ever.
#[test]
fn a_replica_that_does_not_lead_times_no_writes_in_flight() {
    let mut lab = with_journal_of(500, JOURNAL_WRITES_MAX);
    lab.write(0, 1);
    lab.host.lease_ended(lab.world.now);
    lab.settle();
    lab.world.now = lab.world.now.plus_ms(60_000);
    assert_ne!(lab.host.role(), Role::Primary);
    let took = lab.host.replica().status().journal_latency_us;
    assert!(took < 1_000, "{took} µs");
}

/// A batch that would only wait behind others is not sealed: once sealed, it does not grow any
/// more.
#[test]
fn a_batch_is_not_sealed_before_its_bytes_may_be_written() {
    let tuning = Tuning { write_bytes_max: 6 * BLOCK_BYTES, ..roomy() };
    let mut lab = tuned(2_000, tuning);
    (0..8).for_each(|n| _ = lab.write(n, 1));
    assert_eq!(in_flight(&lab), [1, 1, 1], "two blocks each");
    for left in [2, 1] {
        lab.world.now.0 += 2_000;
        lab.step();
        assert_eq!(in_flight(&lab), vec![1; left], "all that waits is more than may be in flight with these");
    }
    lab.step();
    assert_eq!(in_flight(&lab), [5]);
}

/// Completions are gathered until there is something to do for the oldest batch.
#[test]
fn the_host_waits_for_the_oldest_of_several_batches() {
    let mut lab = with_journal_of(2_000, JOURNAL_WRITES_MAX);
    lab.attach_equal_peer();
    let both = ResourceRecord { iss: vec![HERE, THERE], ..record(2, 1, HERE.node) };
    lab.host.record(lab.world.now, both);
    settle_in(&mut lab, 2_000);
    let writes: Vec<_> = (0..2).map(|n| lab.write(n, 1)).collect();
    assert_eq!(in_flight(&lab), [1, 1]);
    let awaited = |lab: &Lab| lab.host.replica().awaited();
    let end = lab.host.replica().status().end.index;
    assert_eq!(awaited(&lab), 2, "the journals of both");
    let acked = |lab: &mut Lab, durable: Index| {
        let envelope = Envelope {
            resource: RESOURCE,
            epoch: Epoch(1),
            version: ConfigVersion(1),
            incarnation: THERE.incarnation,
            message: Message::Ack { durable },
        };
        assert!(lab.host.message(lab.world.now, THERE.node, true, envelope));
        lab.host.pump(&mut lab.world);
    };
    acked(&mut lab, Index(end.0 - 1));
    assert_eq!(awaited(&lab), 1, "the peer lacks only what is not waited for");
    lab.step();
    assert!(lab.is_answered(writes[0]) && !lab.is_answered(writes[1]));
    assert_eq!(awaited(&lab), 2);
    acked(&mut lab, end);
    assert_eq!(awaited(&lab), 1);
    lab.step();
    assert!(lab.is_answered(writes[1]));
    assert_eq!(awaited(&lab), 0);
}

/// Returns how many writes a disk that takes a millisecond for each answers within 100 ms. Each of
/// the `writers` writers goes on as soon as it has its answer.
fn answered_in_100_ms(writers: u64, journal_writes_max: usize) -> u64 {
    let mut lab = with_journal_of(1_000, journal_writes_max);
    let start = lab.world.now;
    let mut disk = Disk::new(1_000);
    let mut waiting: VecDeque<_> = (0..writers).map(|n| lab.write(n, 1)).collect();
    let mut answered = 0;
    loop {
        disk.take(&mut lab);
        match disk.end_next(&mut lab) {
            None => panic!("writers wait and the disk rests"),
            Some(at) if at > start.plus_ms(100) => return answered,
            Some(_) => {}
        }
        while waiting.front().is_some_and(|write| lab.world.answers.contains_key(write)) {
            waiting.pop_front();
            answered += 1;
            waiting.push_back(lab.write(answered % 256, 2));
        }
    }
}

/// With one write to the journal at a time, the first writer after a write has the next one alone,
/// and all others wait for two. With four at a time, three of the first writers have one each, and
/// all others share the fourth.
#[test]
fn a_disk_that_takes_its_time_is_kept_busy() {
    let both = |writers| [1, JOURNAL_WRITES_MAX].map(|most| answered_in_100_ms(writers, most));
    assert_eq!(both(1), [100, 100]);
    assert_eq!(both(2), [100, 200]);
    assert_eq!(both(4), [200, 400]);
    assert_eq!(both(8), [400, 640]);
    assert_eq!(both(32), [1600, 2560]);
    assert_eq!(both(64), [3200, 5120]);
}

/// A replica that has failed waits for nothing: what it lacked does not come any more.
#[test]
fn a_failed_replica_waits_for_nothing() {
    let mut lab = with_journal_of(2_000, JOURNAL_WRITES_MAX);
    lab.write(0, 1);
    assert_eq!(lab.host.replica().awaited(), 1, "its journal");
    lab.write(1, 1);
    let Some(Output::JournalWrite { op, .. }) = lab.world.operations.pop_front() else {
        panic!("{:?}", lab.world.operations)
    };
    lab.host.store_done(op, Err(broken()));
    lab.host.pump(&mut lab.world);
    assert!(lab.host.failed().is_some());
    assert_eq!(lab.host.replica().awaited(), 0);
}

/// A write that comes while the journal has as much in flight as it may waits for a journal write
/// to end, whatever else is awaited.
#[test]
fn an_unsequenced_write_waits_for_one_completion() {
    let mut lab = with_journal_of(2_000, 1);
    lab.attach_equal_peer();
    let both = ResourceRecord { iss: vec![HERE, THERE], ..record(2, 1, HERE.node) };
    lab.host.record(lab.world.now, both);
    settle_in(&mut lab, 2_000);
    lab.write(0, 1);
    assert_eq!(lab.host.replica().awaited(), 2, "the journals of both");
    lab.write(1, 1);
    assert_eq!((in_flight(&lab), lab.host.replica().awaited()), (vec![1], 1));
}
