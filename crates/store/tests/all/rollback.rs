//! Rolling back to a snapshot (R17): the content of the volumes, the states after a crash, and the
//! replicas that cannot roll back.

use crate::lab::{
    self, BLOCK, Doing, Lab, Log, Random, drop_snapshot, resize, rollback, scrub, snapshot, write,
};
use mainstay_store::{Area, Checked, DamagedBlock, Output, Segments, Store, StoreConfig};
use mainstay_types::SnapshotState::{Held, Missing};
use mainstay_types::{
    BLOCK_BYTES, ClientMark, EXTENT_BYTES, Extent, Index, Range, SnapshotId, SnapshotState, VolumeId,
};

const S: SnapshotId = SnapshotId(1);
/// In another extent than the first, whatever the size of extents in this build.
const FAR: u64 = 2 * EXTENT_BYTES / BLOCK_BYTES - 4;
const VOLUME: VolumeId = VolumeId(0);

fn state(lab: &Lab, id: u32) -> Option<SnapshotState> {
    lab.store.snapshots().find(|(of, _)| *of == SnapshotId(id)).map(|(_, snapshot)| snapshot.state)
}

/// The first byte of a block of volume 0.
fn block(lab: &Lab, block: u64) -> u8 {
    lab.disk.slice(Area::Volume(VOLUME), block * BLOCK_BYTES, 1)[0]
}

fn failed(lab: &Lab) -> bool {
    lab.told.iter().any(|told| matches!(told, Output::Failed { .. }))
}

fn is_restore((_, doing): &(mainstay_store::OpId, Doing)) -> bool {
    matches!(doing, Doing::Restore { .. })
}

/// A snapshot of ones, and twos and a new block after it.
fn with_snapshot() -> (Lab, Log) {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 4, 1), snapshot(1)]);
    lab.append(&mut log, vec![write(2, 4, 2), write(FAR, 4, 2)]);
    lab.settle();
    (lab, log)
}

#[test]
fn after_a_rollback_all_volumes_hold_the_snapshot_with_later_writes_over_it() {
    let (mut lab, mut log) = with_snapshot();
    lab.append(&mut log, vec![write(1, 1, 3), rollback(1, 2)]);
    lab.append(&mut log, vec![write(3, 1, 4)]);
    while !lab.doing.iter().any(is_restore) {
        lab.complete(0);
    }
    assert!(lab.store.rolling_back(), "nothing is read until it is done");
    lab.settle();
    assert!(!lab.store.rolling_back());
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    assert_eq!([0, 1, 2, 3, 4, FAR].map(|n| block(&lab, n)), [1, 1, 1, 4, 0, 0]);
    assert_eq!((state(&lab, 1), state(&lab, 2)), (Some(Held), Some(Held)));
    assert!(lab.disk.snapshots[&SnapshotId(2)] == lab.disk.snapshots[&S], "it is kept as its mark as well");
    // Every extent counts as changed, so that the target of a copy gets all of them.
    let extents = lab.config.volumes.iter().map(|bytes| bytes.div_ceil(EXTENT_BYTES)).sum::<u64>();
    let entry = log.snapshots(log.end().index)[&SnapshotId(2)];
    assert_eq!(lab.store.extents_newer_than(Index(entry.0 - 1)).len() as u64, extents);
}

#[test]
fn volumes_go_back_and_forth_between_snapshots() {
    let (mut lab, mut log) = with_snapshot();
    // Like an operator, it takes a snapshot of the content that is given up.
    lab.append(&mut log, vec![snapshot(2)]);
    lab.append(&mut log, vec![rollback(1, 3)]);
    lab.append(&mut log, vec![write(0, 1, 7)]);
    lab.append(&mut log, vec![rollback(2, 4)]);
    lab.append(&mut log, vec![drop_snapshot(3), drop_snapshot(4)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    assert_eq!([0, 2, 5, FAR].map(|n| block(&lab, n)), [1, 2, 2, 2]);
    assert!(lab.disk.snapshots.keys().eq(&[S, SnapshotId(2)]), "the marks are gone");
}

#[test]
fn a_volume_that_grew_since_keeps_its_size_and_has_zeroes_there() {
    let (mut lab, mut log) = with_snapshot();
    let old = lab.config.volumes[0];
    lab.append(&mut log, vec![resize(0, old + 4 * BLOCK_BYTES)]);
    lab.append(&mut log, vec![write(old / BLOCK_BYTES, 2, 9), write(0, 1, 9)]);
    lab.append(&mut log, vec![rollback(1, 2)]);
    lab.settle();
    lab.check(&log);
    assert_eq!(lab.store.config().volumes[0], old + 4 * BLOCK_BYTES);
    assert_eq!((block(&lab, 0), block(&lab, old / BLOCK_BYTES)), (1, 0));
}

/// The power fails after `completed` operations, from the entry to the one after its checkpoint.
/// Any part of the operations under way may be left.
#[test]
fn after_any_crash_a_rollback_is_done_or_not_begun() {
    let mut begun = 0;
    for completed in 0..24 {
        for variant in 0..8 {
            let (mut lab, mut log) = with_snapshot();
            lab.append(&mut log, vec![write(1, 2, 3)]);
            lab.append(&mut log, vec![rollback(1, 2)]);
            lab.append(&mut log, vec![write(3, 2, 4)]);
            lab.complete_some(completed);
            begun += u32::from(lab.doing.iter().any(is_restore));
            lab.crash(&mut Random(completed * 8 + variant)).expect("only torn tails");
            lab.check(&log);
            log.truncate(lab.store.log_state().end.index);
            lab.store.commit(log.end().index);
            lab.settle();
            lab.check(&log);
            let exists = log.snapshots(log.end().index).contains_key(&SnapshotId(2));
            assert_eq!(state(&lab, 2), exists.then_some(Held), "after {completed} operations");
            assert_eq!(state(&lab, 1), Some(Held));
        }
    }
    assert!(begun > 0, "no crash came while the files were cloned");
}

/// Entries that are committed and have to wait until the volumes are rolled back count as committed
/// from the beginning. Seed 918717.
#[test]
fn nothing_is_applied_later_that_was_not_said_to_be_committed() {
    let mut waited = 0;
    for completed in 0..24 {
        let (mut lab, mut log) = with_snapshot();
        lab.append(&mut log, vec![rollback(1, 2)]);
        for block in 0..4 {
            lab.append(&mut log, vec![drop_snapshot(1), write(block, 1, 5)]);
        }
        lab.complete_some(completed);
        lab.crash(&mut Random(completed)).expect("only torn tails");
        let known = lab.store.log_state().commit;
        waited += u32::from(lab.store.applied() < known);
        lab.settle();
        assert_eq!(lab.store.applied(), known, "after {completed} operations");
    }
    assert!(waited > 0, "nothing had to wait");
}

/// Its primary was told that it is here, and copies nothing that is older. Seed 1620212.
#[test]
fn entries_that_wait_for_a_rollback_are_not_lost_with_a_copy() {
    let mut waited = 0;
    for completed in 0..24 {
        let (mut lab, mut log) = with_snapshot();
        lab.append(&mut log, vec![rollback(1, 2)]);
        lab.append(&mut log, vec![drop_snapshot(1), write(3, 1, 5)]);
        lab.complete_some(completed);
        let known = lab.store.log_state().commit;
        waited += u32::from(lab.store.applied() < known);
        let (at, volumes) = (log.end(), lab.config.volumes.clone());
        lab.store.restart(at, log.chain(), &volumes, &[SnapshotId(2)], ClientMark::default());
        lab.settle();
        let base = lab.store.log_state().base;
        assert!(
            base >= known,
            "{base} is in the volumes, {known} was said to be, after {completed} operations"
        );
        if known == log.end().index {
            assert_eq!([0, 3, 4].map(|n| block(&lab, n)), [1, 5, 0], "after {completed} operations");
        }
    }
    assert!(waited > 0, "nothing had to wait");
}

/// A primary copies to another replica everything that has changed since that one left. Entries
/// that are committed and not applied count too. Seed 3163911.
#[test]
fn extents_of_entries_that_wait_for_a_rollback_are_listed_as_changed() {
    let mut waited = 0;
    for completed in 0..24 {
        let (mut lab, mut log) = with_snapshot();
        lab.append(&mut log, vec![rollback(1, 2)]);
        let rolled_back = log.end().index;
        lab.append(&mut log, vec![drop_snapshot(1), write(FAR, 1, 5)]);
        let written = log.end().index;
        lab.append(&mut log, vec![rollback(2, 3)]);
        lab.complete_some(completed);
        let known = lab.store.log_state().commit;
        waited += u32::from(lab.store.applied() < known);
        let listed = |newer_than| lab.store.extents_newer_than(newer_than);
        if known >= written {
            let far = (VOLUME, Extent::of(FAR * BLOCK_BYTES));
            assert!(listed(rolled_back).contains(&far), "after {completed} operations");
        }
        if known == log.end().index {
            let extents: u64 = lab.config.volumes.iter().map(|bytes| bytes.div_ceil(EXTENT_BYTES)).sum();
            assert_eq!(listed(written).len() as u64, extents, "after {completed} operations");
            assert!(listed(written).is_sorted());
        }
    }
    assert!(waited > 0, "nothing had to wait");
}

/// A later entry drops the snapshot at once. Its files are needed until the volumes hold their
/// content.
#[test]
fn a_snapshot_is_not_dropped_before_it_was_rolled_back_to() {
    for completed in 0..24 {
        let (mut lab, mut log) = with_snapshot();
        lab.append(&mut log, vec![write(1, 2, 3)]);
        lab.append(&mut log, vec![rollback(1, 2)]);
        lab.append(&mut log, vec![drop_snapshot(1), drop_snapshot(2), write(0, 1, 5)]);
        lab.complete_some(completed);
        lab.crash_and_commit(&mut Random(completed), &mut log);
        lab.store.destage_now();
        lab.settle();
        assert!(!failed(&lab), "after {completed} operations");
        lab.check(&log);
        let left = log.snapshots(log.end().index).len();
        assert_eq!(lab.disk.snapshots.len(), left, "after {completed} operations");
    }
}

#[test]
fn a_store_that_lacks_the_snapshot_of_a_rollback_stops() {
    let (mut lab, mut log) = with_snapshot();
    lab.store.snapshot_lost(S);
    assert_eq!(state(&lab, 1), Some(Missing));
    lab.append(&mut log, vec![rollback(1, 2)]);
    lab.settle();
    assert!(failed(&lab));
    // It was lost when the entry had been applied, and its end is not in the volumes.
    let (mut lab, mut log) = with_snapshot();
    lab.append(&mut log, vec![write(0, 1, 3), rollback(1, 2)]);
    while !lab.store.rolling_back() {
        lab.complete(0);
    }
    lab.store.snapshot_lost(S);
    lab.settle();
    assert!(failed(&lab));
    assert!(!lab.doing.iter().any(is_restore));
}

#[test]
fn every_store_leaves_out_an_impossible_rollback() {
    let (mut lab, mut log) = with_snapshot();
    let before = lab.content();
    for entry in [rollback(8, 9), rollback(8, 1)] {
        let batch = log.seal(1, log.end().index, vec![entry]);
        lab.store.append(batch.clone());
        lab.store.commit(batch.last());
        lab.settle();
    }
    assert!(!lab.store.rolling_back() && !failed(&lab));
    assert!(lab.content() == before);
}

#[test]
fn a_pool_without_space_is_tried_again() {
    let (mut lab, mut log) = with_snapshot();
    lab.append(&mut log, vec![write(0, 1, 3), rollback(1, 2)]);
    loop {
        if let Some(at) = lab.doing.iter().position(is_restore) {
            lab.fail_for_space(at);
            break;
        }
        lab.complete(0);
    }
    lab.settle();
    assert!(lab.store.is_stalled() && lab.store.rolling_back() && !failed(&lab));
    lab.store.retry();
    lab.settle();
    assert!(!lab.store.is_stalled() && !lab.store.rolling_back());
    lab.check(&log);
    // Any other failure is final (R13).
    lab.append(&mut log, vec![write(0, 1, 3), rollback(1, 3)]);
    while !lab.doing.iter().any(is_restore) {
        lab.complete(0);
    }
    let at = lab.doing.iter().position(is_restore).expect("it is there");
    lab.fail(at);
    assert!(failed(&lab));
}

/// Returns the check of a block of volume 0 that is read now.
fn checked(lab: &Lab, block: u64) -> Checked {
    let offset = block * BLOCK_BYTES;
    lab.checked(VOLUME, offset, lab.disk.slice(Area::Volume(VOLUME), offset, BLOCK_BYTES))
}

/// Sums come back with the blocks that they are of. So a block that has rotted in the snapshot is
/// damaged afterwards too.
#[test]
fn only_blocks_rotten_in_the_snapshot_are_damaged_after_a_rollback() {
    let (mut lab, mut log) = with_snapshot();
    lab.disk.snapshots.get_mut(&S).expect("it is kept")[0][3 * BLOCK] ^= 4;
    lab.append(&mut log, vec![rollback(1, 2)]);
    lab.settle();
    for again in [false, true] {
        let damaged = DamagedBlock { volume: VOLUME, block: 3 };
        for block in (0..4).chain([4, FAR]) {
            let expected = if block == 3 { Checked::Damaged(damaged) } else { Checked::Well };
            assert_eq!(checked(&lab, block), expected, "block {block}");
        }
        // The mark was made of the same, and its sums are as old.
        if !again {
            lab.append(&mut log, vec![write(0, 8, 9)]);
            lab.append(&mut log, vec![rollback(2, 3)]);
            lab.settle();
        }
    }
}

#[test]
fn a_replica_without_sums_is_rolled_back() {
    let mut lab = Lab::with(StoreConfig { sums: false, ..lab::config() }, lab::tuning());
    let mut log = Log::default();
    lab.append(&mut log, vec![write(0, 4, 1), snapshot(1)]);
    lab.append(&mut log, vec![write(2, 4, 2)]);
    lab.append(&mut log, vec![rollback(1, 2)]);
    lab.settle();
    lab.check(&log);
    assert_eq!([0, 2, 4].map(|n| block(&lab, n)), [1, 1, 0]);
    assert!(lab.disk.areas[&Area::Sums(VOLUME)].iter().all(|&byte| byte == 0));
}

/// A read that began before gets some of this and some of that, with sums of either.
#[test]
fn a_read_that_a_rollback_overtakes_is_done_anew() {
    let (mut lab, mut log) = with_snapshot();
    lab.store.destage_now();
    lab.settle();
    let (offset, stamp) = (2 * BLOCK_BYTES, lab.store.volume_stamp());
    let before = lab.disk.slice(Area::Volume(VOLUME), offset, BLOCK_BYTES).to_vec();
    let after = vec![1; BLOCK];
    let check = |lab: &Lab, found: &[u8]| lab.store.check_blocks((VOLUME, 2), found, &[], stamp);
    assert_eq!(check(&lab, &before), Checked::Well, "its sum is in memory");
    lab.append(&mut log, vec![rollback(1, 2)]);
    while !lab.doing.iter().any(is_restore) {
        lab.complete(0);
    }
    assert_eq!(check(&lab, &after), Checked::Again, "the volume is ahead of its sums");
    lab.settle();
    assert_eq!(check(&lab, &before), Checked::Again);
    assert_eq!(checked(&lab, 2), Checked::Well);
}

/// The entries of scrubs that were applied since this was asked last.
fn scrubs(lab: &mut Lab) -> Vec<(Index, Range, Segments)> {
    let mut found = Vec::new();
    lab.told.retain(|told| match told {
        Output::Scrub { at, range, segments } => {
            found.push((*at, *range, segments.clone()));
            false
        }
        _ => true,
    });
    found
}

/// A scrub that is asked for before the rollback gets the content before it, and one that is asked
/// for after it the content after it. Neither gets a mixture.
#[test]
fn scrubs_see_the_content_before_or_after_a_rollback_never_a_mixture() {
    let (mut lab, mut log) = with_snapshot();
    lab.store.destage_now();
    lab.settle();
    let bytes = lab.config.volumes[0];
    lab.append(&mut log, vec![scrub(0, 0, bytes)]);
    lab.append(&mut log, vec![rollback(1, 2)]);
    lab.append(&mut log, vec![scrub(0, 0, bytes)]);
    lab.settle();
    let before = scrubs(&mut lab);
    assert_eq!(before.len(), 1, "the second one waits");
    assert!(lab.store.rolling_back(), "it waits for the first one to be read");
    let (at, range, segments) = &before[0];
    let found = lab.gather(*range, segments).expect("it is there");
    assert_eq!((found[0], found[2 * BLOCK]), (1, 2));
    assert!(lab.store.scrub_ended(*at));
    lab.settle();
    assert!(!lab.store.rolling_back());
    let after = scrubs(&mut lab);
    let (at, range, segments) = &after[0];
    let found = lab.gather(*range, segments).expect("it is there");
    assert_eq!((found[0], found[2 * BLOCK]), (1, 1));
    assert!(lab.store.scrub_ended(*at));
}

/// A replica of another resource that is made with clones of a snapshot's files
/// (docs/adr/0017-clones.md). Its log before the rollback is empty. After any crash the volumes
/// hold nothing, or the content of the snapshot.
#[test]
fn a_replica_that_begins_with_a_snapshot_is_rolled_back_to_it() {
    let (source, _) = with_snapshot();
    let begin = || {
        let mut lab = Lab::new();
        lab.disk.snapshots.insert(S, source.disk.snapshots[&S].clone());
        lab.disk.kept_sums.insert(S, source.disk.kept_sums[&S].clone());
        Store::format_holding(&mut lab.disk, &lab.config, &[S]).expect("the simulated disk does not fail");
        lab.store = Store::recover(&mut lab.disk, lab::tuning()).expect("a formatted replica");
        lab
    };
    let lab = begin();
    assert_eq!(lab.store.snapshots_held().collect::<Vec<_>>(), [S]);
    assert_eq!(lab.store.snapshots_on_disk().collect::<Vec<_>>(), [S]);
    let mut ends = [0, 0];
    for completed in 0..24 {
        let (mut lab, mut log) = (begin(), Log::default());
        lab.append(&mut log, vec![write(1, 1, 9)]);
        lab.append(&mut log, vec![rollback(1, 2)]);
        lab.append(&mut log, vec![write(3, 1, 4)]);
        lab.complete_some(completed);
        lab.crash(&mut Random(completed)).expect("only torn tails");
        let end = lab.store.log_state().end.index;
        lab.store.commit(end);
        lab.settle();
        lab.store.destage_now();
        lab.settle();
        let found = [0, 1, 3, 4].map(|n| block(&lab, n));
        let expected: &[[u8; 4]] = match state(&lab, 2) {
            Some(_) => &[[1, 1, 1, 0], [1, 1, 4, 0]],
            None => &[[0, 0, 0, 0], [0, 9, 0, 0]],
        };
        ends[usize::from(state(&lab, 2).is_some())] += 1;
        assert!(expected.contains(&found), "{found:?} after {completed} operations");
        assert_eq!(state(&lab, 1), Some(Held));
        for block in [0, 1, 3, 4] {
            assert_eq!(checked(&lab, block), Checked::Well, "block {block}");
        }
    }
    assert!(ends.iter().all(|count| *count > 0), "{ends:?}");
}
