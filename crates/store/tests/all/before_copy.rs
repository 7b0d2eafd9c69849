//! Kept states: the last whole content of a replica is kept while the replica is copied to (R16).

use crate::lab::{self, Doing, Lab, Log, Random, write};
use bytes::Bytes;
use mainstay_types::{BLOCK_BYTES, ClientMark, DataState, EXTENT_BYTES, Extent, Index, SnapshotId, VolumeId};

const KEPT: SnapshotId = SnapshotId::BEFORE_COPY;

/// A replica that holds ones in its first block and lacks the later entries of the log.
fn behind() -> (Lab, Log) {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 2, 1)]);
    lab.settle();
    log.seal(1, log.end().index, vec![write(0, 1, 7)]);
    (lab, log)
}

fn restart(lab: &mut Lab, log: &Log) {
    let volumes = lab.config.volumes.clone();
    lab.store.restart(log.end(), log.chain(), &volumes, &[], ClientMark::default());
}

/// The first extent as the log has it, for a target that lacks it.
fn install(lab: &mut Lab, log: &Log) {
    let content = &log.content(&lab.config.volumes, log.end().index)[0];
    let data = Bytes::copy_from_slice(&content[..EXTENT_BYTES as usize]);
    lab.store.install_extent(VolumeId(0), Extent(0), log.end().index, data, Vec::new(), Vec::new());
}

fn finish(lab: &mut Lab, log: &Log) {
    lab.store.finish_copy(log.end().index);
    lab.settle();
    assert_eq!(lab.store.log_state().data, DataState::Consistent);
    lab.check(log);
}

/// Ends operations until this one comes, and returns its place among those under way.
fn until(lab: &mut Lab, what: impl Fn(&Doing) -> bool) -> usize {
    lab.pump();
    loop {
        match lab.doing.iter().position(|(_, doing)| what(doing)) {
            Some(at) => return at,
            None => lab.complete(0),
        }
    }
}

fn until_take(lab: &mut Lab) -> usize {
    until(lab, |doing| matches!(doing, Doing::Take { id: KEPT, .. }))
}

fn is_kept(lab: &Lab) -> bool {
    lab.store.kept().is_some()
}

#[test]
fn a_whole_state_is_kept_until_the_copy_has_ended() {
    let (mut lab, log) = behind();
    assert!(!is_kept(&lab));
    restart(&mut lab, &log);
    let take = until_take(&mut lab);
    assert_eq!(lab.doing.len(), 1, "nothing says that it is kept, or inconsistent, before it is kept");
    lab.complete(take);
    lab.settle();
    assert_eq!(lab.store.log_state().data, DataState::Inconsistent);
    lab.crash(&mut Random(1)).expect("no corruption");
    lab.check_kept(&log);
    assert!(is_kept(&lab), "it survives");
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    lab.settle();
    let (id, kept) = lab.store.kept().expect("it is kept");
    assert_eq!((id, kept.at), (KEPT, Index(1)));
    let first = |lab: &Lab| lab.disk.snapshots[&KEPT][0][0];
    let now = lab.disk.slice(mainstay_store::Area::Volume(VolumeId(0)), 0, 1)[0];
    assert_eq!((first(&lab), now), (1, 7));
    lab.check_kept(&log);
    assert!(lab.store.snapshots().next().is_none(), "the log does not know of it");
    finish(&mut lab, &log);
    assert!(!is_kept(&lab) && lab.disk.snapshots.is_empty(), "it stays");
}

#[test]
fn a_kept_state_stays_when_the_copy_begins_anew() {
    let (mut lab, mut log) = behind();
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    lab.settle();
    for power_is_lost in [false, true] {
        log.seal(1, log.end().index, vec![write(1, 1, 8)]);
        if power_is_lost {
            lab.crash(&mut Random(1)).expect("no corruption");
            lab.check_kept(&log);
        }
        restart(&mut lab, &log);
        lab.settle();
        assert_eq!(lab.store.kept().map(|(_, kept)| kept.at), Some(Index(1)));
        lab.check_kept(&log);
    }
    install(&mut lab, &log);
    finish(&mut lab, &log);
    assert!(lab.disk.snapshots.is_empty());
}

/// Begins the copy anew: a target that is half copied is worth nothing and is not kept.
fn copy_anew_keeping_nothing(lab: &mut Lab, log: &Log) {
    restart(lab, log);
    lab.settle();
    assert!(!is_kept(lab) && lab.disk.snapshots.is_empty());
    install(lab, log);
    finish(lab, log);
}

#[test]
fn a_copy_goes_on_where_the_earlier_state_cannot_be_kept() {
    let (mut lab, log) = behind();
    restart(&mut lab, &log);
    let take = until_take(&mut lab);
    lab.fail(take);
    lab.settle();
    assert!(!is_kept(&lab));
    install(&mut lab, &log);
    copy_anew_keeping_nothing(&mut lab, &log);
}

#[test]
fn a_kept_state_is_given_up_for_the_space_that_the_copy_needs() {
    let (mut lab, log) = behind();
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    let write = until(&mut lab, |doing| matches!(doing, Doing::Volatile { .. }));
    lab.fail_for_space(write);
    assert!(lab.store.is_stalled() && !is_kept(&lab));
    // First the superblock stops naming the kept state. If a crash comes before its files are gone,
    // they are removed when the replica is opened.
    let drop = until(&mut lab, |doing| matches!(doing, Doing::Drop { id: KEPT }));
    let mut other = Lab::new();
    other.recover_from(lab.disk.clone()).expect("no corruption");
    assert!(!is_kept(&other) && other.disk.snapshots.is_empty());
    lab.complete(drop);
    lab.settle();
    assert!(lab.disk.snapshots.is_empty());
    lab.store.retry();
    lab.settle();
    finish(&mut lab, &log);
}

#[test]
fn a_kept_state_is_given_up_when_no_resource_wants_it() {
    let (mut lab, log) = behind();
    lab.store.give_up_kept();
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    lab.store.give_up_kept();
    assert!(!is_kept(&lab));
    lab.settle();
    assert!(lab.disk.snapshots.is_empty());
    lab.crash(&mut Random(1)).expect("no corruption");
    assert_eq!(lab.store.log_state().data, DataState::Inconsistent);
    copy_anew_keeping_nothing(&mut lab, &log);
}

#[test]
fn an_empty_replica_keeps_no_state_before_a_copy() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    log.seal(1, log.end().index, vec![write(0, 1, 7)]);
    restart(&mut lab, &log);
    lab.settle();
    assert_eq!(lab.store.log_state().data, DataState::Inconsistent);
    assert!(!is_kept(&lab) && lab.disk.snapshots.is_empty());
}

#[test]
fn a_restart_waits_for_the_removal_of_the_earlier_kept_state() {
    let (mut lab, mut log) = behind();
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    lab.store.finish_copy(log.end().index);
    let drop = until(&mut lab, |doing| matches!(doing, Doing::Drop { id: KEPT }));
    let whole = log.end().index;
    log.seal(1, log.end().index, vec![write(0, 1, 9)]);
    restart(&mut lab, &log);
    // Everything but the removal ends.
    lab.pump();
    while let Some(at) = lab.doing.iter().position(|(_, doing)| !matches!(doing, Doing::Drop { .. })) {
        assert!(!matches!(lab.doing[at].1, Doing::Take { .. }), "taken while the one before is removed");
        lab.complete(at);
    }
    assert_eq!(lab.store.log_state().data, DataState::Consistent);
    assert_eq!(lab.doing.len(), 1, "the removal, and nothing else ({drop})");
    lab.settle();
    assert_eq!(lab.store.kept().map(|(_, kept)| kept.at), Some(whole));
    lab.check_kept(&log);
}

#[test]
fn files_that_are_gone_are_not_named_any_more() {
    let (mut lab, log) = behind();
    restart(&mut lab, &log);
    lab.settle();
    lab.store.snapshot_lost(KEPT);
    assert!(!is_kept(&lab));
    lab.settle();
    lab.crash(&mut Random(1)).expect("no corruption");
    assert!(!is_kept(&lab));
    assert_eq!(lab.store.log_state().data, DataState::Inconsistent);
    assert_eq!(lab.store.log_state().base, Index(1));
    restart(&mut lab, &log);
    lab.settle();
    install(&mut lab, &log);
    finish(&mut lab, &log);
}

/// The kept volumes have the sizes that they had before the copy.
#[test]
fn volumes_that_grow_meanwhile_are_kept_as_they_were() {
    let (mut lab, mut log) = behind();
    let before = lab.config.volumes.clone();
    let bytes = before[0] + 8 * BLOCK_BYTES;
    log.seal(1, log.end().index, vec![lab::resize(0, bytes)]);
    let mut volumes = before.clone();
    volumes[0] = bytes;
    lab.store.restart(log.end(), log.chain(), &volumes, &[], ClientMark::default());
    lab.settle();
    assert_eq!(lab.store.config().volumes[0], bytes);
    assert_eq!(lab.disk.snapshots[&KEPT][0].len() as u64, before[0]);
    lab.check_kept(&log);
}
