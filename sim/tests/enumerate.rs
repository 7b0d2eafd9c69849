//! Every crash of every workload of up to three operations. The soak goes up to four: `--ignored`,
//! in a release build. A further test proves that the enumeration would notice a wrong disk.

use mainstay_sim::enumerate::{Lie, Op, Setup, enumerate};

fn right(setup: &Setup) {
    match enumerate(setup) {
        Ok(counts) => println!("depth {}, journal of {} blocks: {counts}", setup.depth, setup.journal_blocks),
        Err(wrong) => panic!("depth {}, journal of {} blocks: {wrong}", setup.depth, setup.journal_blocks),
    }
}

#[test]
fn every_crash_of_three_operations_is_survived() {
    right(&Setup::wide(3));
}

#[test]
fn every_crash_of_three_operations_in_a_small_journal_is_survived() {
    right(&Setup::narrow(3));
}

/// Longer workloads of few kinds of operations: some mistakes need four or five steps.
#[test]
fn every_crash_of_longer_workloads_of_few_operations_is_survived() {
    right(&Setup { ops: vec![Op::Write0, Op::Cut], ..Setup::wide(4) });
    right(&Setup { ops: vec![Op::Write0, Op::Commit, Op::Destage], ..Setup::narrow(5) });
}

#[test]
#[ignore = "takes 12 minutes in a release build; part of the soak"]
fn every_crash_of_four_operations_is_survived() {
    right(&Setup::wide(4));
}

#[test]
#[ignore = "takes 5 minutes in a release build; part of the soak"]
fn every_crash_of_four_operations_in_a_small_journal_is_survived() {
    right(&Setup::narrow(4));
}

/// The enumeration finds each lie of a disk, under the right name. So the store does need what it
/// relies on.
#[test]
fn a_disk_that_lies_is_seen() {
    let seen = [
        (Lie::Journal, vec![Op::Write0], "told durable"),
        (Lie::Meta, vec![Op::Promise], "no valid superblock"),
        (Lie::Flush, vec![Op::Write0, Op::Commit, Op::Destage], "S4: content"),
        (Lie::Flush, vec![Op::Copy], "S4: content"),
    ];
    for (lie, ops, what) in seen {
        let setup = Setup { lie: Some(lie), ops, ..Setup::wide(3) };
        let wrong = enumerate(&setup).expect_err("a lie that no check sees");
        assert!(wrong.wrong.contains(what), "{lie:?}: {wrong}");
    }
}

/// Equal states are taken for one. That must not hide any image.
#[test]
fn taking_equal_states_for_one_hides_no_image() {
    let counts = [true, false].map(|merge| {
        let setup = Setup { merge, ..Setup::narrow(2) };
        enumerate(&setup).unwrap_or_else(|wrong| panic!("{wrong}"))
    });
    assert!(counts[0].crash_points < counts[1].crash_points, "{counts:?}");
    let tried = counts.map(|counts| (counts.workloads, counts.recoveries, counts.second_recoveries));
    assert_eq!(tried[0], tried[1]);
}
