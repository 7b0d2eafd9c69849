//! Several writes to the journal in flight, from the requests to the disk (docs/adr/0022-several-journal-writes.md).

use super::lab::{Lab, roomy};
use mainstay_store::{Output, Tuning};
use mainstay_types::{JOURNAL_WRITES_MAX, Time};
use std::collections::VecDeque;

/// Entries in each write to the journal that is in flight.
fn in_flight(lab: &Lab) -> Vec<usize> {
    let entries = |output: &Output| match output {
        Output::JournalWrite { parts, .. } => Some(parts.iter().map(|(_, batch)| batch.entries.len()).sum()),
        _ => None,
    };
    lab.world.operations.iter().filter_map(entries).collect()
}

/// A primary whose journal took so long for a write, and never less of late.
fn with_journal_of(us: u64, journal_writes_max: usize) -> Lab {
    let tuning = Tuning { journal_writes_max, ..roomy() };
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

/// Those who wait are to wait for less than a millisecond together.
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

/// One slow write among fast ones says nothing about the disk, and neither does one fast write of long ago.
#[test]
fn what_a_journal_write_takes_is_the_least_of_late() {
    let mut lab = with_journal_of(2_000, JOURNAL_WRITES_MAX);
    let mut takes = |us: u64| {
        lab.world.now = lab.world.now.plus_ms(1);
        lab.write(0, 1);
        lab.world.now.0 += us;
        lab.settle();
        (0..3).for_each(|n| _ = lab.write(n, 1));
        let found = in_flight(&lab).len();
        lab.settle();
        lab.world.now = lab.world.now.plus_ms(2_000);
        found
    };
    assert_eq!(takes(3_000), 3);
    // From then on no journal write is that fast again. (Those of the second half of each round take no time, and count.)
    assert_eq!(takes(100), 1);
    assert_eq!(takes(3_000), 1);
}

/// What a disk does that takes a millisecond for each write, however many are in flight: writes that are answered within 100 ms if each of so
/// many writers goes on as soon as it has its answer.
fn answered_in_100_ms(writers: u64, journal_writes_max: usize) -> u64 {
    let mut lab = with_journal_of(1_000, journal_writes_max);
    let start = lab.world.now;
    let mut on_disk: VecDeque<(Time, Output)> = VecDeque::new();
    let mut waiting: VecDeque<_> = (0..writers).map(|n| lab.write(n, 1)).collect();
    let mut answered = 0;
    loop {
        let done_at = lab.world.now.plus_ms(1);
        on_disk.extend(lab.world.operations.drain(..).map(|output| (done_at, output)));
        let Some((at, output)) = on_disk.pop_front() else { panic!("writers wait and the disk rests") };
        if at > start.plus_ms(100) {
            return answered;
        }
        lab.world.now = at;
        let (op, bytes) = lab.world.execute(output);
        lab.host.store_done(op, Ok(bytes));
        lab.host.pump(&mut lab.world);
        while waiting.front().is_some_and(|write| lab.world.answers.contains_key(write)) {
            waiting.pop_front();
            answered += 1;
            waiting.push_back(lab.write(answered % 256, 2));
        }
    }
}

/// With one at a time, who comes first after a write has the next one alone, and all others wait for two.
#[test]
fn a_disk_that_takes_its_time_is_kept_busy() {
    let both = |writers| [1, JOURNAL_WRITES_MAX].map(|most| answered_in_100_ms(writers, most));
    assert_eq!(both(1), [100, 100]);
    for (writers, percent) in [(2, 190), (4, 190), (8, 200), (32, 220), (64, 220)] {
        let [one, several] = both(writers);
        println!("{writers} writers: {one}, {several}");
        assert!(
            several * 100 >= one * percent,
            "{writers} writers: {one} with one write at a time, {several}"
        );
        assert!(several <= 100 * writers, "a write takes a millisecond");
    }
}
