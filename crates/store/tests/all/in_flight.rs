//! Several journal writes in flight (docs/adr/0022-several-journal-writes.md): how many, in what
//! order they are durable, and what a crash or damage among them comes to.

use crate::lab::{self, BLOCK, Doing, Lab, Log, discard, tuning, write};
use mainstay_store::{Area, Output, RecoverError, Tuning};
use mainstay_types::{Index, JOURNAL_WRITES_MAX};

/// Tuning under which nothing is destaged, so that every write in flight is one to the journal.
fn lazy() -> Tuning {
    Tuning { destage_start_bytes: u64::MAX, write_bytes_max: 32 << 20, ..tuning() }
}

fn append(lab: &mut Lab, log: &mut Log, entries: u64) {
    for _ in 0..entries {
        let block = log.end().index.0 % 4;
        lab.store.append(log.seal(1, Index(0), vec![discard(block, 1)]));
    }
    lab.pump();
}

/// How many batches of one entry without payload each write in flight has, the oldest write first.
fn batches_in_flight(lab: &Lab) -> Vec<usize> {
    let mut found = lab.doing.clone();
    found.sort_by_key(|(op, _)| *op);
    let len = |doing: &Doing| match doing {
        Doing::Durable { area: Area::Journal, data, .. } => data.len() / BLOCK,
        _ => panic!("only the journal is written"),
    };
    found.iter().map(|(_, doing)| len(doing)).collect()
}

/// Ends the write that began as the `nth` of those in flight, from 0.
fn end(lab: &mut Lab, nth: usize) {
    let mut ops: Vec<_> = lab.doing.iter().map(|(op, _)| *op).collect();
    ops.sort();
    let at = lab.doing.iter().position(|(op, _)| *op == ops[nth]).expect("it is one of them");
    lab.complete(at);
    lab.pump();
}

fn durable(lab: &Lab) -> u64 {
    lab.store.log_state().end.index.0
}

#[test]
fn a_batch_is_written_at_once_unless_enough_is_in_flight() {
    for most in 1..=JOURNAL_WRITES_MAX {
        let tuning = Tuning { journal_writes_max: most, ..lazy() };
        let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
        (0..7).for_each(|_| append(&mut lab, &mut log, 1));
        assert_eq!(batches_in_flight(&lab), vec![1; most], "the others wait");
        // A write that has ended early still counts. Otherwise the number of records without a
        // witness would not be known.
        if most > 1 {
            end(&mut lab, most - 1);
            append(&mut lab, &mut log, 1);
            assert_eq!(batches_in_flight(&lab), vec![1; most - 1]);
        }
        let waited = log.end().index.0 as usize - most;
        end(&mut lab, 0);
        assert!(batches_in_flight(&lab).ends_with(&[waited]), "{most}: what has waited goes together");
        lab.settle();
        assert_eq!(lab.store.log_state().end, log.end());
    }
}

/// R18: bytes in flight delay the clients that read.
#[test]
fn journal_bytes_in_flight_are_bounded() {
    let tuning = Tuning { write_bytes_max: 8 * BLOCK as u64, ..lazy() };
    let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
    let mut add = |lab: &mut Lab, blocks: u64| {
        lab.store.append(log.seal(1, Index(0), vec![write(0, blocks, 1)]));
        lab.pump();
    };
    add(&mut lab, 4);
    assert_eq!(batches_in_flight(&lab), [5]);
    // Three blocks are left, so the first of these goes, and no other.
    add(&mut lab, 2);
    add(&mut lab, 2);
    assert_eq!(batches_in_flight(&lab), [5, 3]);
    for _ in 0..8 {
        add(&mut lab, 1);
    }
    assert_eq!(batches_in_flight(&lab), [5, 3], "there is room for no byte more");
    end(&mut lab, 0);
    assert_eq!(batches_in_flight(&lab), [3, 5]);

    // One that is larger than all that may be in flight waits until it is alone, and then it goes.
    let tuning = Tuning { write_bytes_max: 4 * BLOCK as u64, ..lazy() };
    let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
    append(&mut lab, &mut log, 1);
    for _ in 0..2 {
        lab.store.append(log.seal(1, Index(0), vec![write(0, 6, 1)]));
        lab.pump();
    }
    assert_eq!(batches_in_flight(&lab), [1]);
    end(&mut lab, 0);
    assert_eq!(batches_in_flight(&lab), [7]);
}

#[test]
fn writes_end_in_any_order_and_are_durable_in_that_of_the_log() {
    for order in [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0], [2, 0, 0], [2, 1, 0]] {
        let (mut lab, mut log) = (Lab::with(lab::config(), lazy()), Log::default());
        append(&mut lab, &mut log, 1);
        append(&mut lab, &mut log, 2);
        append(&mut lab, &mut log, 6);
        lab.store.commit(Index(9));
        // The entry up to which each goes.
        let mut left = vec![1, 3, 9];
        for nth in order {
            left.remove(nth);
            end(&mut lab, nth);
            let expected = left.first().map_or(9, |last| match last {
                1 => 0,
                3 => 1,
                _ => 3,
            });
            assert_eq!((durable(&lab), lab.store.applied()), (expected, Index(expected)), "{order:?}");
            assert_eq!(lab.told_durable(), Index(expected));
        }
    }
}

/// R13: a write in flight with one that fails is not told as durable any more, whether it came
/// before or after and however it ends.
#[test]
fn a_failed_journal_write_ends_durability_for_the_writes_in_flight_with_it() {
    for (ended, failed) in [(None, 0), (None, 1), (None, 2), (Some(1), 0), (Some(2), 0), (Some(0), 0)] {
        let (mut lab, mut log) = (Lab::with(lab::config(), lazy()), Log::default());
        append(&mut lab, &mut log, 1);
        append(&mut lab, &mut log, 2);
        append(&mut lab, &mut log, 6);
        if let Some(nth) = ended {
            end(&mut lab, nth);
        }
        let told = if ended == Some(0) { 1 } else { 0 };
        lab.doing.sort_by_key(|(op, _)| *op);
        lab.fail(failed);
        assert!(lab.told.iter().any(|told| matches!(told, Output::Failed { .. })), "{ended:?} {failed}");
        // Whatever still ends says nothing.
        while !lab.doing.is_empty() {
            lab.complete(0);
        }
        assert_eq!(lab.told_durable(), Index(told), "{ended:?} {failed}");
    }
}

/// R12: a power cut leaves any part of the writes in flight. The log ends before the first that is
/// not whole, and nothing is taken for damage. Nothing behind it comes back when the log goes on
/// with the same bytes.
#[test]
fn a_crash_leaves_a_prefix_of_the_journal_writes_in_flight() {
    let (mut lab, mut log) = (Lab::with(lab::config(), lazy()), Log::default());
    append(&mut lab, &mut log, 1);
    end(&mut lab, 0);
    append(&mut lab, &mut log, 1);
    append(&mut lab, &mut log, 2);
    append(&mut lab, &mut log, 6);
    let mut writes = lab.doing.clone();
    writes.sort_by_key(|(op, _)| *op);
    for subset in 0..1u32 << 9 {
        let mut disk = lab.disk.clone();
        let journal = disk.areas.get_mut(&Area::Journal).expect("exists");
        let mut nth = 0;
        for (_, doing) in &writes {
            let Doing::Durable { area: Area::Journal, offset, data } = doing else {
                panic!("only the journal is written")
            };
            for (n, block) in data.chunks(BLOCK).enumerate() {
                if subset & (1 << nth) != 0 {
                    let at = *offset as usize + n * BLOCK;
                    journal[at..at + BLOCK].copy_from_slice(block);
                }
                nth += 1;
            }
        }
        let mut torn = Lab::with(lab::config(), lazy());
        torn.recover_from(disk).expect("torn writes are no damage");
        let expected = 1 + u64::from(subset.trailing_ones());
        assert_eq!(durable(&torn), expected, "{subset:09b}");
        if expected == 10 {
            continue;
        }
        // The next batch of the same log comes again, byte for byte, and the one after it may be
        // there already.
        torn.store.append(log.batches[expected as usize].clone());
        torn.settle();
        let again = torn.disk.clone();
        torn.recover_from(again).expect("nothing is damaged");
        assert_eq!(durable(&torn), expected + 1, "{subset:09b}");
    }
}

/// A record is known to have been durable once a write that began later is. Until then its damage
/// looks like a torn tail.
#[test]
fn a_later_journal_write_is_the_witness_of_damage() {
    let (mut lab, mut log) = (Lab::with(lab::config(), lazy()), Log::default());
    append(&mut lab, &mut log, 1);
    append(&mut lab, &mut log, 2);
    end(&mut lab, 0);
    end(&mut lab, 0);
    // Both are durable, and began with nothing behind them.
    let damaged = |lab: &Lab, block: usize| {
        let mut disk = lab.disk.clone();
        disk.areas.get_mut(&Area::Journal).expect("exists")[block * BLOCK + 20] ^= 1;
        let mut damaged = Lab::with(lab::config(), lazy());
        damaged.recover_from(disk).map(|()| durable(&damaged))
    };
    assert_eq!(damaged(&lab, 0).expect("nothing says that it was durable"), 0);
    assert_eq!(damaged(&lab, 1).expect("nothing says that it was durable"), 1);
    append(&mut lab, &mut log, 1);
    end(&mut lab, 0);
    for block in 0..3 {
        match damaged(&lab, block) {
            Err(RecoverError::Corrupt { index, known_durable, .. }) => {
                assert_eq!((index, known_durable), (Index(block as u64 + 1), Index(3)));
            }
            other => panic!("block {block}: {other:?}"),
        }
    }
    assert_eq!(damaged(&lab, 3).expect("nothing says that it was durable"), 3);
}

/// R7: a batch that is cut may still be in flight. Nothing is written in its place before it has
/// ended and the cut is durable.
#[test]
fn a_cut_waits_for_all_that_is_in_flight() {
    let (mut lab, mut log) = (Lab::with(lab::config(), lazy()), Log::default());
    append(&mut lab, &mut log, 1);
    end(&mut lab, 0);
    append(&mut lab, &mut log, 1);
    append(&mut lab, &mut log, 2);
    let to = log.batches[1].end();
    log.truncate(to.index);
    lab.store.cut(to);
    append(&mut lab, &mut log, 4);
    assert_eq!(batches_in_flight(&lab), [1, 2], "neither the superblock nor the journal is written");
    end(&mut lab, 1);
    assert_eq!((batches_in_flight(&lab), durable(&lab)), (vec![1], 1));
    end(&mut lab, 0);
    assert_eq!(durable(&lab), 2);
    let superblock = |doing: &Doing| matches!(doing, Doing::Durable { area: Area::Meta, .. });
    assert!(lab.doing.iter().all(|(_, doing)| superblock(doing)) && !lab.doing.is_empty());
    assert!(!lab.told.iter().any(|told| matches!(told, Output::CutDone { .. })));
    lab.settle();
    assert!(lab.told.iter().any(|told| matches!(told, Output::CutDone { .. })));
    assert_eq!(durable(&lab), 6);
    lab.check_log(&log);
    let disk = lab.disk.clone();
    lab.recover_from(disk).expect("nothing is damaged");
    assert_eq!(durable(&lab), 6);
}
