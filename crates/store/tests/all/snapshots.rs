//! Snapshots (R17): what they hold, what a crash leaves of them, what becomes of them on the target
//! of a copy.

use crate::lab::{Doing, Lab, Log, Random, discard, drop_snapshot, resize, snapshot, write};
use mainstay_store::{Area, Output};
use mainstay_types::SnapshotState::{Held, Missing, Taking};
use mainstay_types::{BLOCK_BYTES, ClientMark, Index, SNAPSHOTS_MAX, SnapshotId, SnapshotState, VolumeId};

const S: SnapshotId = SnapshotId(1);

fn state(lab: &Lab, id: u32) -> Option<SnapshotState> {
    lab.store.snapshots().find(|(of, _)| *of == SnapshotId(id)).map(|(_, snapshot)| snapshot.state)
}

/// The first byte of a block of volume 0 in a snapshot.
fn kept(lab: &Lab, id: SnapshotId, block: u64) -> u8 {
    lab.disk.snapshots[&id][0][(block * BLOCK_BYTES) as usize]
}

fn at_take(lab: &Lab) -> Option<usize> {
    lab.doing.iter().position(|(_, doing)| matches!(doing, Doing::Take { .. }))
}

/// Ends what is under way until a snapshot is about to be taken.
fn until_take(lab: &mut Lab) -> usize {
    lab.pump();
    loop {
        match at_take(lab) {
            Some(at) => return at,
            None => lab.complete(0),
        }
    }
}

#[test]
fn a_snapshot_excludes_later_writes_and_delays_no_write() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 2, 1), write(8, 1, 1)]);
    lab.append(&mut log, vec![write(1, 1, 2), snapshot(1)]);
    // Before anything was destaged: one block changes, one is discarded, one is new.
    lab.append(&mut log, vec![write(0, 1, 9), discard(8, 1), write(20, 1, 9)]);
    while log.end().index > lab.store.log_state().commit {
        lab.complete(0);
    }
    assert_eq!(state(&lab, 1), Some(Taking));
    lab.check(&log);
    let take = until_take(&mut lab);
    lab.check(&log);
    assert_eq!(lab.disk.slice(Area::Volume(VolumeId(0)), 0, 1), [1], "nothing newer is in the volume");
    lab.complete(take);
    lab.settle();
    assert_eq!(state(&lab, 1), Some(Held));
    assert_eq!([0, 1, 8, 20].map(|block| kept(&lab, S, block)), [1, 2, 1, 0]);
    lab.check(&log);
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    assert_eq!(lab.disk.slice(Area::Volume(VolumeId(0)), 0, 1), [9]);
}

#[test]
fn several_snapshots_are_taken_although_the_first_still_waits() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    for id in 1..=3 {
        lab.append(&mut log, vec![write(0, 1, id as u8), write(u64::from(id), 1, id as u8), snapshot(id)]);
    }
    lab.append(&mut log, vec![write(0, 1, 9), drop_snapshot(2)]);
    lab.settle();
    assert_eq!((1..=3).map(|id| state(&lab, id)).collect::<Vec<_>>(), [Some(Held), None, Some(Held)]);
    assert_eq!((kept(&lab, S, 0), kept(&lab, SnapshotId(3), 0)), (1, 3));
    assert!(!lab.disk.snapshots.contains_key(&SnapshotId(2)), "it was dropped before it was taken");
    lab.check(&log);
}

#[test]
fn a_snapshot_number_used_before_is_missing_and_passes_end_at_it() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    let take = until_take(&mut lab);
    lab.append(&mut log, vec![drop_snapshot(1)]);
    lab.append(&mut log, vec![write(0, 1, 2), snapshot(1)]);
    lab.append(&mut log, vec![write(0, 1, 3)]);
    lab.complete(take);
    lab.settle();
    assert_eq!(state(&lab, 1), Some(Missing), "what was cloned is of the first one's entry");
    assert!(!lab.disk.snapshots.contains_key(&S));
    lab.store.destage_now();
    lab.settle();
    assert_eq!(lab.disk.slice(Area::Volume(VolumeId(0)), 0, 1), [3]);
}

#[test]
fn a_snapshot_keeps_the_size_of_a_volume_that_grows_afterwards() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let old = lab.config.volumes[0];
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    lab.append(&mut log, vec![resize(0, old + 4 * BLOCK_BYTES)]);
    lab.append(&mut log, vec![write(old / BLOCK_BYTES, 1, 2), snapshot(2)]);
    lab.settle();
    let sizes = [1, 2].map(|id| lab.disk.snapshots[&SnapshotId(id)][0].len() as u64);
    assert_eq!(sizes, [old, old + 4 * BLOCK_BYTES]);
    lab.check(&log);
}

/// The checkpoint that ends at the first of two does not know of the growth after the second.
#[test]
fn a_volume_that_grows_after_two_has_its_old_size_in_both_after_a_crash() {
    for completed in 0..40 {
        let (mut lab, mut log) = (Lab::new(), Log::default());
        let old = lab.config.volumes[0];
        // A pass is under way, so that the one of the first snapshot begins when all of it is
        // applied.
        lab.append(&mut log, vec![write(0, 1, 9)]);
        lab.complete(0);
        lab.store.destage_now();
        lab.pump();
        lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
        lab.append(&mut log, vec![write(0, 1, 2), snapshot(2)]);
        lab.append(&mut log, vec![resize(0, old + 4 * BLOCK_BYTES)]);
        let journal = |(_, doing): &(_, Doing)| matches!(doing, Doing::Durable { area: Area::Journal, .. });
        while let Some(at) = lab.doing.iter().position(journal) {
            lab.complete(at);
        }
        lab.complete_some(completed);
        lab.crash_and_commit(&mut Random(completed), &mut log);
        lab.check(&log);
        assert!(lab.disk.snapshots.values().all(|files| files[0].len() as u64 == old), "after {completed}");
    }
}

/// The power fails after `completed` operations, from the snapshot's entry to the one after its
/// checkpoint.
#[test]
fn after_any_crash_a_snapshot_is_taken_again_or_there() {
    for completed in 0..24 {
        for variant in 0..8 {
            let (mut lab, mut log) = (Lab::new(), Log::default());
            lab.append(&mut log, vec![write(0, 4, 1)]);
            lab.settle();
            lab.append(&mut log, vec![write(2, 4, 2), snapshot(1)]);
            lab.append(&mut log, vec![write(3, 2, 3)]);
            lab.complete_some(completed);
            lab.crash_and_commit(&mut Random(completed * 8 + variant), &mut log);
            lab.check(&log);
            let exists = log.snapshots(log.end().index).contains_key(&S);
            assert_eq!(state(&lab, 1), exists.then_some(Held), "after {completed} operations");
        }
    }
}

#[test]
fn a_pool_that_cannot_take_a_snapshot_costs_only_the_snapshot() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    let take = until_take(&mut lab);
    lab.fail(take);
    lab.settle();
    assert_eq!(state(&lab, 1), Some(Missing));
    lab.append(&mut log, vec![write(0, 1, 2), snapshot(2)]);
    lab.settle();
    assert_eq!((state(&lab, 1), state(&lab, 2)), (Some(Missing), Some(Held)));
    assert!(!lab.told.iter().any(|told| matches!(told, Output::Failed { .. })));
    lab.check(&log);
    // It stays missing after a restart, and can be dropped.
    lab.crash(&mut Random(3)).expect("nothing is torn");
    assert_eq!(state(&lab, 1), Some(Missing));
    lab.append(&mut log, vec![drop_snapshot(1)]);
    lab.settle();
    assert_eq!(state(&lab, 1), None);
}

#[test]
fn files_go_only_when_no_superblock_names_them() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    lab.settle();
    lab.append(&mut log, vec![drop_snapshot(1)]);
    while !lab.doing.iter().any(|(_, doing)| matches!(doing, Doing::Drop { .. })) {
        assert!(lab.disk.snapshots.contains_key(&S));
        lab.complete(0);
    }
    assert_eq!(lab.store.snapshots_on_disk().count(), 0);
    lab.settle();
    assert!(lab.disk.snapshots.is_empty());
    // The end comes between the superblock and the removal: the program that opens the replica
    // removes the files that are left.
    lab.append(&mut log, vec![snapshot(2)]);
    lab.settle();
    lab.append(&mut log, vec![drop_snapshot(2)]);
    while !lab.doing.iter().any(|(_, doing)| matches!(doing, Doing::Drop { .. })) {
        lab.complete(0);
    }
    assert!(lab.disk.snapshots.contains_key(&SnapshotId(2)));
    lab.crash(&mut Random(0)).expect("nothing is torn");
    assert!(lab.disk.snapshots.is_empty());
    lab.check(&log);
}

#[test]
fn files_that_are_gone_are_told_and_recorded() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    lab.settle();
    lab.store.snapshot_lost(S);
    lab.store.snapshot_lost(SnapshotId(9));
    assert_eq!(state(&lab, 1), Some(Missing));
    lab.append(&mut log, vec![write(0, 1, 2)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    assert_eq!(lab.store.snapshots_on_disk().count(), 0);
}

#[test]
fn there_are_only_so_many_everywhere() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    for id in 1..=SNAPSHOTS_MAX as u32 + 1 {
        lab.append(&mut log, vec![snapshot(id)]);
        lab.settle();
    }
    let all: Vec<_> = lab.store.snapshots().map(|(id, _)| id.0).collect();
    assert_eq!(all, (1..=SNAPSHOTS_MAX as u32).collect::<Vec<_>>());
}

#[test]
fn the_target_of_a_copy_learns_the_list_of_snapshots_and_keeps_its_own() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    lab.append(&mut log, vec![write(0, 1, 2), snapshot(2)]);
    lab.settle();
    // While it is away the second is dropped and a third is taken.
    log.seal(1, Index(0), vec![drop_snapshot(2)]);
    log.seal(1, Index(0), vec![write(0, 1, 3), snapshot(3)]);
    let (at, volumes) = (log.end(), lab.config.volumes.clone());
    lab.store.restart(at, log.chain(), &volumes, &[S, SnapshotId(3)], ClientMark::default());
    lab.settle();
    assert_eq!([1, 2, 3].map(|id| state(&lab, id)), [Some(Held), None, Some(Missing)]);
    let here = [S, SnapshotId::BEFORE_COPY];
    assert!(lab.disk.snapshots.keys().eq(&here) && kept(&lab, S, 0) == 1);
    // One that is taken meanwhile is missing too: the volumes are no prefix of the log.
    lab.append(&mut log, vec![write(5, 1, 4), snapshot(4)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    assert_eq!(state(&lab, 4), Some(Missing));
    for crash in 0..4 {
        lab.crash(&mut Random(crash)).expect("nothing is torn");
        assert_eq!([1, 3, 4].map(|id| state(&lab, id)), [Some(Held), Some(Missing), Some(Missing)]);
    }
}

#[test]
fn a_restart_waits_for_a_snapshot_that_is_being_taken() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 1, 1), snapshot(1)]);
    lab.append(&mut log, vec![write(0, 1, 2)]);
    while log.end().index > lab.store.log_state().commit {
        lab.complete(0);
    }
    let volumes = lab.config.volumes.clone();
    lab.store.restart(log.end(), log.chain(), &volumes, &[S], ClientMark::default());
    lab.settle();
    assert_eq!((state(&lab, 1), kept(&lab, S, 0)), (Some(Held), 1));
}

/// The superblock that the pass writes says that the replica is whole, so after a crash this entry
/// is met by one. Found by seed 314670.
#[test]
fn a_snapshot_met_while_a_copy_ends_is_taken() {
    let mut met = 0;
    for completed in 0..16 {
        for crash in [None, Some(0), Some(1), Some(2)] {
            let (mut lab, mut log) = (Lab::new(), Log::default());
            lab.append(&mut log, vec![write(0, 1, 1)]);
            lab.settle();
            let volumes = lab.config.volumes.clone();
            lab.store.restart(log.end(), log.chain(), &volumes, &[], ClientMark::default());
            lab.settle();
            lab.append(&mut log, vec![write(1, 1, 2)]);
            lab.settle();
            lab.store.finish_copy(log.end().index);
            lab.pump();
            lab.complete_some(completed);
            met += u32::from(!lab.told.iter().any(|told| matches!(told, Output::CopyFinished)));
            lab.append(&mut log, vec![write(0, 1, 3), snapshot(1)]);
            lab.append(&mut log, vec![write(0, 1, 4)]);
            if let Some(variant) = crash {
                while log.end().index > lab.store.log_state().commit {
                    lab.complete(0);
                }
                lab.complete_some(completed);
                lab.crash(&mut Random(variant)).expect("nothing is torn");
                lab.store.commit(log.end().index);
            }
            lab.settle();
            lab.store.destage_now();
            lab.settle();
            let held = state(&lab, 1) == Some(Held);
            assert!(held || state(&lab, 1) == Some(Missing));
            // Never with what came after it, and a replica that crashed has the one that it would
            // have had.
            assert!(!held || kept(&lab, S, 0) == 3, "after {completed} operations, crash {crash:?}");
            lab.check(&log);
        }
    }
    assert!(met > 4, "the entry hardly ever came while the copy ended");
}
