//! Large writes that go straight to their place (docs/adr/0057-large-writes.md).

use crate::lab::{
    self, BLOCK, Disk, Doing, Lab, Log, Random, discard, filling, resize, rollback, snapshot, write,
};
use bytes::Bytes;
use mainstay_codec::sums::SUMS_PER_PAGE;
use mainstay_codec::{NewEntry, Superblock};
use mainstay_store::{
    Area, Checked, LogSource, Media, MediaError, RecoverError, Store, StoreConfig, Tuning, inspect,
};
use mainstay_types::simulation::{Bug, plant};
use mainstay_types::{BLOCK_BYTES, Index, Position, Range, SnapshotId, SnapshotState, VolumeId};

const FIRST: VolumeId = VolumeId(0);

/// Destages nothing by itself.
fn lazy() -> Tuning {
    Tuning { destage_start_bytes: u64::MAX, memory_bytes_max: u64::MAX, ..filling() }
}

fn config() -> StoreConfig {
    StoreConfig {
        volumes: vec![136 * BLOCK_BYTES, 16 * BLOCK_BYTES],
        journal_bytes: 200 * BLOCK_BYTES,
        ..lab::config()
    }
}

/// A lab whose page of sums of the first volume is in memory, and whose superblock says that writes
/// may be filled, so that the next large one is.
fn lab(tuning: Tuning) -> (Lab, Log) {
    let (mut lab, mut log) = (Lab::with(config(), tuning), Log::default());
    for block in [100, 110] {
        lab.append(&mut log, vec![write(block, 2, 1)]);
        lab.settle();
    }
    lab.told.clear();
    (lab, log)
}

/// Appends without a commit.
fn append(lab: &mut Lab, log: &mut Log, entries: Vec<NewEntry>) {
    let batch = log.seal(1, lab.store.applied(), entries);
    lab.store.append(batch);
    lab.pump();
}

fn commit(lab: &mut Lab, log: &Log) {
    lab.store.commit(log.end().index);
    lab.pump();
}

/// The area of each write in flight, and its bytes.
fn writes(lab: &Lab) -> Vec<(Area, usize)> {
    let write = |(_, doing): &(_, Doing)| match doing {
        Doing::Durable { area, data, .. } | Doing::Volatile { area, data, .. } => Some((*area, data.len())),
        _ => None,
    };
    lab.doing.iter().filter_map(write).collect()
}

/// Completes the header block of a fill of three blocks and then its payload, and nothing else.
fn end_fill(lab: &mut Lab) {
    for filling in [(Area::Journal, BLOCK), (Area::Volume(FIRST), 3 * BLOCK)] {
        let is = |(_, doing): &(_, Doing)| match doing {
            Doing::Durable { area, data, .. } => (*area, data.len()) == filling,
            _ => false,
        };
        let at = lab.doing.iter().position(is).expect("it is being filled");
        lab.complete(at);
    }
}

fn volume(lab: &Lab, block: u64, blocks: u64) -> Vec<u8> {
    lab.disk.slice(Area::Volume(FIRST), block * BLOCK_BYTES, blocks * BLOCK_BYTES).to_vec()
}

#[test]
fn a_large_write_to_blank_blocks_is_written_once() {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![write(10, 3, 7)]);
    assert_eq!(writes(&lab), [(Area::Journal, BLOCK)], "the header block alone");
    lab.complete(0);
    assert_eq!(lab.told_durable(), Index(0));
    assert_eq!(writes(&lab), [(Area::Volume(FIRST), 3 * BLOCK)], "then the payload");
    lab.complete(0);
    assert_eq!(lab.told_durable(), log.end().index);
    commit(&mut lab, &log);
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    assert!(volume(&lab, 10, 3) == vec![7; 3 * BLOCK]);
    assert_eq!(lab.store.checkpoint(), log.end().index);
    lab.crash(&mut Random(1)).expect("nothing is damaged");
    lab.check(&log);
}

/// Older builds must not take the record of a filled batch for a torn one.
#[test]
fn a_superblock_says_that_batches_may_be_filled_until_a_checkpoint_covers_them() {
    let says = |lab: &Lab| {
        let block = lab.disk.slice(Area::Meta, 0, BLOCK_BYTES);
        Superblock::decode(block).expect("a whole copy").filled
    };
    let (mut lab, mut log) = (Lab::with(config(), lazy()), Log::default());
    assert!(!says(&lab));
    lab.append(&mut log, vec![write(100, 2, 1)]);
    lab.settle();
    assert!(!says(&lab), "its sums were not in memory");
    lab.append(&mut log, vec![write(110, 2, 1)]);
    assert!(writes(&lab).contains(&(Area::Journal, 3 * BLOCK)), "nothing is filled before it says so");
    lab.settle();
    assert!(says(&lab));
    lab.append(&mut log, vec![write(120, 2, 1)]);
    assert_eq!(writes(&lab), [(Area::Journal, BLOCK)]);
    lab.settle();
    lab.crash(&mut Random(1)).expect("nothing is damaged");
    assert!(says(&lab));
    lab.check(&log);
    commit(&mut lab, &log);
    lab.store.destage_now();
    lab.settle();
    assert!(!says(&lab), "a checkpoint covers everything");
    append(&mut lab, &mut log, vec![write(20, 2, 1)]);
    assert!(writes(&lab).contains(&(Area::Journal, 3 * BLOCK)), "it has to say so again");
    lab.settle();
    lab.check(&log);
}

#[test]
fn a_small_write_and_one_to_blocks_that_were_written_go_to_the_journal() {
    let (mut lab, mut log) = lab(lazy());
    for (entry, blocks, why) in [
        (write(10, 1, 7), 2, "small"),
        (write(9, 3, 7), 4, "over what waits to be destaged"),
        (write(101, 2, 7), 3, "over what is in the volume"),
    ] {
        append(&mut lab, &mut log, vec![entry]);
        assert_eq!(writes(&lab), [(Area::Journal, blocks * BLOCK)], "{why}");
        lab.settle();
        commit(&mut lab, &log);
    }
    append(&mut lab, &mut log, vec![write(20, 2, 1)]);
    append(&mut lab, &mut log, vec![write(21, 3, 2)]);
    assert!(writes(&lab).contains(&(Area::Journal, 4 * BLOCK)), "over a fill that is not committed");
    append(&mut lab, &mut log, vec![write(25, 1, 1)]);
    append(&mut lab, &mut log, vec![write(25, 2, 2)]);
    lab.settle();
    assert!(lab.content()[0][25 * BLOCK..27 * BLOCK] == vec![0; 2 * BLOCK]);
    commit(&mut lab, &log);
    assert!(lab.content()[0][25 * BLOCK..27 * BLOCK] == vec![2; 2 * BLOCK], "after what came before");
    append(&mut lab, &mut log, vec![write(30, 2, 1), discard(40, 1)]);
    assert_eq!(writes(&lab), [(Area::Journal, 3 * BLOCK)], "with an entry that is no write");
    lab.settle();
    commit(&mut lab, &log);
    append(&mut lab, &mut log, vec![write(50, 2, 1), write(51, 2, 2)]);
    assert_eq!(writes(&lab), [(Area::Journal, 5 * BLOCK)], "twice to one block");
    lab.settle();
    commit(&mut lab, &log);
    lab.check(&log);
}

#[test]
fn what_is_filled_reads_as_zeroes_until_it_is_committed() {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![write(10, 3, 7)]);
    for _ in 0..2 {
        lab.complete(0);
        assert!(lab.content()[0][10 * BLOCK..13 * BLOCK] == vec![0; 3 * BLOCK]);
        lab.check(&log);
    }
    assert!(volume(&lab, 10, 3) == vec![7; 3 * BLOCK]);
    commit(&mut lab, &log);
    assert!(lab.content()[0][10 * BLOCK..13 * BLOCK] == vec![7; 3 * BLOCK]);
    // An entry after it lies over it.
    lab.append(&mut log, vec![write(11, 1, 9)]);
    lab.settle();
    lab.check(&log);
}

/// Evidence that a filled batch was durable before it is cut.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Witness {
    None,
    /// A later record.
    Record,
    /// A recovery.
    Recovery,
}

/// Cuts after `done` operations of a fill, then ends all, or crashes after `crash` more.
fn cut_after(done: usize, witness: Witness, crash: Option<u64>, seed: u64) {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![write(10, 3, 7), write(20, 2, 8)]);
    if witness != Witness::None {
        lab.settle();
        append(&mut lab, &mut log, vec![write(130, 1, 4)]);
        lab.settle();
    }
    if witness == Witness::Recovery {
        lab.crash(&mut Random(seed)).expect("nothing is damaged");
    }
    (0..done.min(lab.doing.len())).for_each(|_| lab.complete(0));
    let to = Position { index: Index(2), ..log.end() };
    lab.store.cut(to);
    lab.pump();
    match crash {
        None => lab.settle(),
        Some(operations) => {
            lab.complete_some(operations);
            lab.crash(&mut Random(seed)).expect("only a torn tail");
            if lab.store.log_state().end == log.end() {
                // The cut did not come to be.
                commit(&mut lab, &log);
                return lab.check(&log);
            }
        }
    }
    log.truncate(lab.store.log_state().end.index);
    lab.check(&log);
    assert!(volume(&lab, 10, 3) == vec![0; 3 * BLOCK], "{done} {crash:?} {seed}");
    // The blocks are blank: what comes next is filled, and what is read between fits its sums.
    lab.append(&mut log, vec![write(9, 4, 5)]);
    lab.settle();
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    lab.crash(&mut Random(seed)).expect("nothing is damaged");
    lab.check(&log);
}

#[test]
fn a_cut_makes_what_was_filled_zeroes_again() {
    (0..4).for_each(|done| cut_after(done, Witness::None, None, 0));
    cut_after(0, Witness::Record, None, 0);
    cut_after(0, Witness::Recovery, None, 0);
}

#[test]
fn a_crash_during_a_cut_leaves_zeroes_or_the_whole_write() {
    for (done, operations, seed) in
        (0..4).flat_map(|d| (0..10).flat_map(move |o| (0..6).map(move |s| (d, o, s))))
    {
        cut_after(done, Witness::None, Some(operations), seed);
        cut_after(0, Witness::Record, Some(operations), seed);
        cut_after(0, Witness::Recovery, Some(operations), seed);
    }
}

#[test]
fn a_crash_at_any_moment_of_a_fill_leaves_all_of_it_or_zeroes() {
    let (mut whole, mut nothing) = (0, 0);
    for (done, seed) in (0..4).flat_map(|done| (0..40).map(move |seed| (done, seed))) {
        let (mut lab, mut log) = lab(lazy());
        append(&mut lab, &mut log, vec![write(10, 3, 7), write(20, 2, 8)]);
        (0..done).for_each(|_| lab.complete(0));
        lab.crash(&mut Random(seed)).expect("only a torn tail");
        let end = lab.store.log_state().end;
        assert!(end == log.end() || done < 3, "it was durable");
        if end == log.end() {
            whole += 1
        } else {
            nothing += 1
        }
        log.truncate(end.index);
        lab.check(&log);
        if end.index == Index(2) {
            assert!(volume(&lab, 10, 3) == vec![0; 3 * BLOCK], "{done} {seed}");
        }
        commit(&mut lab, &log);
        lab.check(&log);
        lab.append(&mut log, vec![write(8, 14, 5)]);
        lab.settle();
        lab.check(&log);
    }
    assert!(whole > 20 && nothing > 20, "{whole} {nothing}");
}

#[test]
fn a_pass_ends_before_what_was_filled_changes() {
    for (operations, seed) in (0..40).flat_map(|operations| (0..4).map(move |seed| (operations, seed))) {
        let (mut lab, mut log) = lab(lazy());
        lab.append(&mut log, vec![write(10, 3, 7)]);
        lab.settle();
        let filled = log.end().index;
        lab.append(&mut log, vec![write(30, 1, 1)]);
        lab.append(&mut log, vec![write(11, 1, 9)]);
        lab.append(&mut log, vec![discard(12, 1)]);
        lab.settle();
        lab.store.destage_now();
        lab.pump();
        for _ in 0..operations {
            if volume(&lab, 11, 1) != vec![7; BLOCK] {
                assert!(lab.store.checkpoint() >= filled);
            }
            lab.complete_some(1);
        }
        if lab.doing.is_empty() {
            assert_eq!(lab.store.checkpoint(), log.end().index, "all of it, in two passes");
        }
        lab.crash_and_commit(&mut Random(seed), &mut log);
        lab.check(&log);
    }
}

/// A discard that is destaged and not covered by a checkpoint, and a write that fills the same
/// blocks.
#[test]
fn what_recovery_applies_once_more_does_not_hide_what_came_later() {
    for (operations, committed) in (0..30).flat_map(|operations| [(operations, false), (operations, true)]) {
        let (mut lab, mut log) = lab(lazy());
        lab.append(&mut log, vec![write(10, 3, 7)]);
        lab.settle();
        lab.store.destage_now();
        lab.settle();
        lab.append(&mut log, vec![discard(10, 3)]);
        lab.settle();
        // The second of these is filled, so the superblock allows it until the checkpoint.
        for block in [60, 70] {
            lab.append(&mut log, vec![write(block, 3, 5)]);
            lab.settle();
        }
        lab.store.destage_now();
        lab.pump();
        lab.complete_some(operations);
        append(&mut lab, &mut log, vec![write(10, 3, 9)]);
        while lab.told_durable() < log.end().index {
            let of_pass = |(_, doing): &(_, Doing)| match doing {
                Doing::Durable { area, .. } => *area == Area::Meta,
                _ => true,
            };
            let Some(at) = lab.doing.iter().position(|doing| !of_pass(doing)) else { break };
            lab.complete(at);
        }
        if lab.told_durable() < log.end().index {
            lab.settle();
        }
        lab.crash(&mut Random(operations)).expect("nothing is damaged");
        log.truncate(lab.store.log_state().end.index);
        lab.check(&log);
        if !committed {
            lab.store.destage_now();
            lab.settle();
            lab.check(&log);
        }
        commit(&mut lab, &log);
        lab.check(&log);
        lab.store.destage_now();
        lab.settle();
        lab.check(&log);
    }
}

/// Many more blocks than the sums in memory tell of.
#[test]
fn a_load_is_filled_however_many_sums_have_been_in_memory() {
    let blocks = 8 * SUMS_PER_PAGE;
    let config = StoreConfig {
        volumes: vec![blocks * BLOCK_BYTES],
        journal_bytes: 4000 * BLOCK_BYTES,
        ..lab::config()
    };
    let tuning = Tuning {
        batch_bytes_max: 200 * BLOCK_BYTES,
        write_bytes_max: 1 << 20,
        destage_start_bytes: 1500 * BLOCK_BYTES,
        sums_bytes_max: 5 * BLOCK_BYTES,
        ..filling()
    };
    let (mut lab, mut log) = (Lab::with(config, tuning), Log::default());
    let mut filled = 0;
    for block in (0..blocks - 128).step_by(128) {
        append(&mut lab, &mut log, vec![write(block, 128, 7)]);
        filled += usize::from(writes(&lab).contains(&(Area::Journal, BLOCK)));
        lab.settle();
        commit(&mut lab, &log);
        lab.settle();
    }
    assert!(filled > 40, "{filled} of 63");
}

#[test]
fn without_space_the_payload_goes_to_the_ring() {
    for (crash, cut) in [(false, false), (true, false), (true, true), (false, true)] {
        let (mut lab, mut log) = lab(lazy());
        append(&mut lab, &mut log, vec![write(10, 3, 7), write(20, 2, 8)]);
        lab.complete(0);
        // One part is written, the other one in part.
        lab.complete(0);
        lab.disk.areas.get_mut(&Area::Volume(FIRST)).expect("exists")[20 * BLOCK..21 * BLOCK].fill(8);
        lab.fail_for_space(0);
        assert_eq!(writes(&lab), [(Area::Journal, 6 * BLOCK)], "at its place in the ring");
        lab.complete(0);
        assert_eq!(lab.told_durable(), log.end().index);
        lab.check(&log);
        if crash {
            lab.crash(&mut Random(3)).expect("nothing is damaged");
            lab.check(&log);
        }
        if cut {
            lab.store.cut(Position { index: Index(2), ..log.end() });
            lab.settle();
            log.truncate(Index(2));
            assert!(volume(&lab, 10, 3) == vec![0; 3 * BLOCK]);
            assert!(volume(&lab, 20, 2) == vec![0; 2 * BLOCK]);
        }
        commit(&mut lab, &log);
        lab.check(&log);
        lab.store.destage_now();
        lab.settle();
        lab.check(&log);
        lab.append(&mut log, vec![write(60, 3, 7)]);
        lab.settle();
        lab.append(&mut log, vec![write(70, 3, 7)]);
        assert_eq!(writes(&lab).len(), 1);
        let rests = !crash;
        assert_eq!(writes(&lab)[0].1 == 4 * BLOCK, rests, "for a while nothing is filled");
        lab.settle();
        lab.check(&log);
    }
}

#[test]
fn nothing_is_filled_beside_a_snapshot_or_before_a_volume_has_grown() {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![snapshot(4)]);
    append(&mut lab, &mut log, vec![write(10, 3, 7)]);
    assert!(writes(&lab).contains(&(Area::Journal, 4 * BLOCK)), "the snapshot is not applied");
    lab.settle();
    commit(&mut lab, &log);
    append(&mut lab, &mut log, vec![write(20, 3, 7)]);
    assert!(writes(&lab).contains(&(Area::Journal, 4 * BLOCK)), "the snapshot is being taken");
    lab.settle();
    commit(&mut lab, &log);
    lab.settle();
    let held = lab.store.snapshots().all(|(_, snapshot)| snapshot.state == SnapshotState::Held);
    assert!(held && lab.disk.snapshots.contains_key(&SnapshotId(4)));
    lab.check_snapshots(&log);
    // The checkpoint covered all that was filled, so a superblock has to allow it again.
    lab.append(&mut log, vec![write(60, 3, 7)]);
    lab.settle();
    append(&mut lab, &mut log, vec![write(30, 3, 7)]);
    assert_eq!(writes(&lab), [(Area::Journal, BLOCK)], "it is taken");
    lab.settle();
    commit(&mut lab, &log);
    let bytes = lab.config.volumes[0];
    lab.append(&mut log, vec![resize(0, bytes + 8 * BLOCK_BYTES)]);
    lab.settle();
    append(&mut lab, &mut log, vec![write(bytes / BLOCK_BYTES, 3, 7)]);
    assert_eq!(writes(&lab)[0], (Area::Journal, 4 * BLOCK), "no superblock knows the size");
    lab.settle();
    commit(&mut lab, &log);
    lab.check(&log);
}

#[test]
fn a_peer_is_fed_with_what_was_filled_until_it_changes() {
    let tuning = Tuning { memory_bytes_max: 0, ..lazy() };
    let (mut lab, mut log) = lab(tuning);
    lab.append(&mut log, vec![write(10, 3, 7)]);
    lab.settle();
    let filled = log.end().index;
    let plan = lab.store.log_plan(filled, 1).expect("it is in the ring");
    let range = Range { volume: FIRST, offset: 10 * BLOCK_BYTES, len: 3 * BLOCK_BYTES };
    assert!(matches!(&plan[0].source, LogSource::Volume { ranges, .. } if **ranges == [range]));
    lab.check_log(&log);
    assert!(lab.store.filled_gone(filled), "before the checkpoint covers it that would be damage");
    lab.append(&mut log, vec![write(11, 1, 9)]);
    lab.store.destage_now();
    lab.settle();
    assert!(lab.store.retains(filled));
    assert!(!lab.store.filled_gone(filled), "it has changed");
    assert!(lab.store.log_plan(filled, 1).is_err());
    assert!(lab.store.log_plan(Index(filled.0 + 1), 1).is_ok(), "what came later is there");
    lab.check(&log);
}

#[test]
fn damage_to_what_was_filled_is_found_before_and_after_a_crash() {
    let (mut lab, mut log) = lab(lazy());
    lab.append(&mut log, vec![write(10, 3, 7)]);
    lab.settle();
    lab.append(&mut log, vec![write(30, 1, 7)]);
    lab.settle();
    let mut rotten = lab.disk.clone();
    rotten.areas.get_mut(&Area::Volume(FIRST)).expect("exists")[11 * BLOCK] ^= 1;
    let found = rotten.slice(Area::Volume(FIRST), 11 * BLOCK_BYTES, BLOCK_BYTES).to_vec();
    let checked = lab.checked(FIRST, 11 * BLOCK_BYTES, &found);
    assert!(matches!(checked, Checked::Damaged(_)));
    let error = lab.recover_from(rotten).expect_err("an entry that was durable is damaged");
    assert!(matches!(error, RecoverError::Corrupt { .. }), "{error}");
}

/// Applies a large write after the commit index of a pass is durable, crashes after `first` more
/// operations, cuts what no superblock says to be committed, and crashes after `second`. Whether
/// the cut came to be.
fn applied_and_cut(first: u64, second: u64, seed: u64) -> bool {
    let (mut lab, mut log) = lab(lazy());
    lab.append(&mut log, vec![write(50, 1, 3)]);
    lab.settle();
    lab.store.destage_now();
    lab.pump();
    // Both pairs of the superblock with the commit index.
    lab.complete_some(2);
    lab.append(&mut log, vec![write(10, 3, 7)]);
    end_fill(&mut lab);
    assert_eq!(lab.store.applied(), log.end().index);
    lab.complete_some(first);
    lab.crash(&mut Random(seed)).expect("nothing is damaged");
    lab.check(&log);
    let state = lab.store.log_state();
    if state.commit < state.end.index {
        lab.store.cut(log.ends(state.commit)[0]);
        lab.pump();
        lab.complete_some(second);
        lab.crash(&mut Random(seed)).expect("nothing is damaged");
    }
    let end = lab.store.log_state().end;
    let cut = end != log.end();
    log.truncate(end.index);
    lab.check(&log);
    if cut {
        assert!(volume(&lab, 10, 3) == vec![0; 3 * BLOCK], "{first} {second} {seed}");
    }
    commit(&mut lab, &log);
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    cut
}

/// Where one replica alone has committed something (mode A), the others may go on without it.
#[test]
fn what_was_applied_may_be_cut_after_a_crash() {
    let cases =
        (0..12).flat_map(|first| (0..8).flat_map(move |second| (0..6).map(move |s| (first, second, s))));
    let cut = cases.filter(|(first, second, seed)| applied_and_cut(*first, *second, *seed)).count();
    assert!(cut > 50, "{cut}");
}

/// Discards what is in the volume, fills the place before the pass has written the sums of the
/// discard, crashes, destages the discard and cuts the fill, and crashes once more after
/// `operations`. Whether the cut came to be.
fn filled_over_a_discard(operations: u64, seed: u64) -> bool {
    let (mut lab, mut log) = lab(lazy());
    lab.append(&mut log, vec![write(10, 1, 3)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    // The superblock says once more that writes may be filled.
    lab.append(&mut log, vec![write(120, 2, 1)]);
    lab.settle();
    lab.append(&mut log, vec![discard(8, 8)]);
    lab.settle();
    lab.store.destage_now();
    lab.pump();
    let of_pass = |(_, doing): &(_, Doing)| !matches!(doing, Doing::Flush { .. });
    while let Some(at) = lab.doing.iter().position(of_pass) {
        lab.complete(at);
    }
    append(&mut lab, &mut log, vec![write(9, 3, 7)]);
    end_fill(&mut lab);
    lab.crash(&mut Random(seed)).expect("nothing is damaged");
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    let to = log.ends(lab.store.applied())[0];
    assert_ne!(to, log.end());
    lab.store.cut(to);
    lab.pump();
    lab.complete_some(operations);
    lab.crash(&mut Random(seed)).expect("nothing is damaged");
    let end = lab.store.log_state().end;
    let cut = end != log.end();
    log.truncate(end.index);
    lab.check(&log);
    cut
}

#[test]
fn a_cut_finds_blank_what_was_discarded_before_it_was_filled() {
    let cases = (0..8).flat_map(|operations| (0..6).map(move |seed| (operations, seed)));
    let cut = cases.filter(|(operations, seed)| filled_over_a_discard(*operations, *seed)).count();
    assert!(cut > 20, "{cut}");
}

/// A page that was read before the volumes are rolled back would be one from before.
#[test]
fn a_rollback_waits_for_sums_that_are_read_ahead() {
    let blocks = 6 * SUMS_PER_PAGE;
    let config = StoreConfig { volumes: vec![blocks * BLOCK_BYTES], ..config() };
    let (mut lab, mut log) = (Lab::with(config, filling()), Log::default());
    lab.append(&mut log, vec![write(10, 2, 7)]);
    lab.settle();
    lab.append(&mut log, vec![snapshot(1)]);
    lab.settle();
    // Page 3 is not in memory. Page 4 is read ahead, and no write waits for it.
    let reads = |(_, doing): &(_, Doing)| matches!(doing, Doing::Read { area: Area::Sums(_), offset, .. } if *offset == 4 * BLOCK_BYTES);
    lab.append(&mut log, vec![write(3 * SUMS_PER_PAGE, 2, 8)]);
    assert!(lab.doing.iter().any(reads), "it is read");
    lab.append(&mut log, vec![rollback(1, 2)]);
    while let Some(at) = lab.doing.iter().position(|doing| !reads(doing)) {
        let restores = matches!(lab.doing[at].1, Doing::Restore { .. });
        assert!(!restores, "the volumes are rolled back while sums are read");
        lab.complete(at);
    }
    lab.settle();
    lab.check(&log);
}

#[test]
fn an_inspection_tells_that_a_payload_is_in_the_volume() {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![write(10, 3, 7)]);
    lab.settle();
    let found = inspect(&mut lab.disk).expect("nothing is damaged");
    assert_eq!(found.end, log.end());
    let places: Vec<_> = found.batches.iter().map(|batch| batch.entries[0].offset.is_some()).collect();
    assert_eq!(places, [true, true, false]);
}

/// Notes what is flushed.
struct Noting<'a> {
    disk: &'a mut Disk,
    flushed: Vec<Area>,
}

impl Media for Noting<'_> {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        self.disk.read(area, offset, len)
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.disk.write_durable(area, offset, data)
    }

    fn flush(&mut self, area: Area) -> Result<(), MediaError> {
        self.flushed.push(area);
        self.disk.flush(area)
    }
}

/// After the end of the process alone, what was filled may be in the cache of the device.
#[test]
fn recovery_flushes_the_volumes_that_it_finds_filled() {
    let (mut lab, mut log) = lab(lazy());
    append(&mut lab, &mut log, vec![write(10, 3, 7)]);
    lab.settle();
    let mut media = Noting { disk: &mut lab.disk, flushed: Vec::new() };
    Store::recover(&mut media, lazy()).expect("nothing is damaged");
    assert!(media.flushed.contains(&Area::Volume(FIRST)), "{:?}", media.flushed);
}

/// Rules that are left out, each with a test that fails then. `make sim-bugs` plants them too, and
/// needs many seeds for some.
#[test]
fn each_rule_of_filling_is_needed() {
    let rules: &[(Bug, fn())] = &[
        (Bug::CutLeavesFilled, a_cut_makes_what_was_filled_zeroes_again),
        (Bug::RecoveryLeavesFilled, a_crash_at_any_moment_of_a_fill_leaves_all_of_it_or_zeroes),
        (Bug::FilledReadEarly, what_is_filled_reads_as_zeroes_until_it_is_committed),
        (Bug::FilledBeforeHeader, a_crash_at_any_moment_of_a_fill_leaves_all_of_it_or_zeroes),
        (Bug::FilledUnderOlder, what_recovery_applies_once_more_does_not_hide_what_came_later),
        (Bug::UndoneBeforeCut, a_crash_during_a_cut_leaves_zeroes_or_the_whole_write),
        (Bug::FilledUnannounced, a_superblock_says_that_batches_may_be_filled_until_a_checkpoint_covers_them),
        (Bug::FilledNotFlushed, a_crash_at_any_moment_of_a_fill_leaves_all_of_it_or_zeroes),
        (Bug::FoundFillsNotFlushed, recovery_flushes_the_volumes_that_it_finds_filled),
        (Bug::FilledOverwritten, a_pass_ends_before_what_was_filled_changes),
        (Bug::SumsReadAcrossRollback, a_rollback_waits_for_sums_that_are_read_ahead),
        (Bug::SumsBeforeCommit, what_was_applied_may_be_cut_after_a_crash),
        (Bug::FilledBesideSnapshot, nothing_is_filled_beside_a_snapshot_or_before_a_volume_has_grown),
    ];
    let fails = |bug, test: fn()| {
        plant(bug);
        let failed = std::panic::catch_unwind(test).is_err();
        plant(None);
        failed
    };
    for (bug, test) in rules {
        assert!(!fails(None, *test), "without {bug:?}");
        assert!(fails(Some(*bug), *test), "{bug:?} is not noticed");
    }
}
