//! Discards and write-zeroes in the volumes (R15): what gives its space back, what keeps it, and
//! what happens when there is none.

use crate::lab::{self, BLOCK, Doing, Lab, Log, Random, discard, tuning, write, zeroes};
use bytes::Bytes;
use mainstay_codec::{EntryKind, NewEntry};
use mainstay_store::{Output, Tuning};
use mainstay_types::{BLOCK_BYTES, ClientMark, EXTENT_BYTES, Extent, VolumeId};

/// Tuning under which nothing is destaged before it is asked for.
fn lazy() -> Tuning {
    Tuning { destage_start_bytes: u64::MAX, ..tuning() }
}

fn destaged(tuning: Tuning, batches: Vec<Vec<NewEntry>>) -> Lab {
    let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
    for entries in batches {
        lab.append(&mut log, entries);
        lab.settle();
    }
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    lab
}

#[test]
fn a_discard_is_a_hole_and_write_zeroes_is_not() {
    let lab = destaged(lazy(), vec![vec![write(0, 6, 1), discard(1, 2), zeroes(3, 2)], vec![discard(20, 3)]]);
    assert_eq!(lab.zeroed, [(1, 2, true), (3, 2, false), (20, 3, true)]);
}

#[test]
fn the_newest_entry_decides_whether_space_stays() {
    let lab = destaged(
        lazy(),
        vec![vec![discard(0, 8)], vec![zeroes(2, 2)], vec![write(4, 1, 9)], vec![discard(3, 1)]],
    );
    assert_eq!(lab.zeroed, [(0, 2, true), (2, 1, false), (3, 1, true), (5, 3, true)]);
}

#[test]
fn neighbouring_discards_are_one_hole() {
    // As a file system discards: piece by piece, here backwards, with one that is of another kind
    // between.
    let pieces: Vec<_> = (0..30).rev().filter(|&block| block != 12).map(|block| discard(block, 1)).collect();
    let lab = destaged(lazy(), pieces.chunks(5).map(<[_]>::to_vec).chain([vec![zeroes(12, 1)]]).collect());
    assert_eq!(lab.zeroed, [(0, 12, true), (12, 1, false), (13, 17, true)]);
}

#[test]
fn space_is_given_back_without_waiting_for_writes() {
    let tuning = Tuning { destage_start_bytes: 12 * BLOCK_BYTES, ..tuning() };
    let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
    lab.append(&mut log, vec![discard(0, 12)]);
    lab.settle();
    assert_eq!(lab.zeroed, [], "little enough to wait");
    lab.append(&mut log, vec![discard(30, 1)]);
    lab.settle();
    assert_eq!(lab.zeroed, [(0, 12, true), (30, 1, true)]);
    // Zeroes that keep their space give nothing back.
    lab.append(&mut log, vec![zeroes(0, 40)]);
    lab.settle();
    assert_eq!(lab.zeroed.len(), 2);
}

/// R18: a journal has room for millions of discards, each a run of the overlay. They wait for a
/// checkpoint, nothing is lost, and an epoch can start meanwhile.
#[test]
fn an_overlay_full_of_discards_holds_up_later_entries() {
    let tuning = Tuning { runs_max: 8, ..lazy() };
    let (mut lab, mut log) = (Lab::with(lab::config(), tuning), Log::default());
    // The log of a secondary, which does not ask for room.
    for n in 0..10 {
        lab.append(&mut log, vec![discard(4 * n, 1), discard(4 * n + 2, 1)]);
        complete_all_but_volumes(&mut lab);
    }
    let durable = lab.told_durable().0;
    assert!((8..=10).contains(&durable), "{durable} entries are in an overlay of 8");
    let start = NewEntry { kind: EntryKind::EpochStart, ..discard(0, 0) };
    let before = lab.store.log_state().end.index;
    lab.settle();
    assert_eq!(lab.told_durable(), log.end().index, "a checkpoint makes room");
    assert!(lab.told_durable() > before);
    // Full again, and nothing waits but the start of an epoch.
    for n in 0..4 {
        lab.append(&mut log, vec![write(4 * n, 1, 1), write(4 * n + 2, 1, 1)]);
        complete_all_but_volumes(&mut lab);
    }
    assert_eq!(lab.store.room(), 0);
    lab.append(&mut log, vec![start]);
    complete_all_but_volumes(&mut lab);
    assert_eq!(lab.told_durable(), log.end().index);
    lab.settle();
    lab.check(&log);
}

fn complete_all_but_volumes(lab: &mut Lab) {
    while let Some(at) = lab.doing.iter().position(|(_, doing)| !matches!(doing, Doing::Volatile { .. })) {
        lab.complete(at);
    }
}

#[test]
fn zeroes_within_a_copied_extent_become_holes() {
    let blocks = (EXTENT_BYTES / BLOCK_BYTES) as usize;
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let hole_blocks = (lab.tuning.hole_bytes_min / BLOCK_BYTES) as usize;
    log.seal(1, log.end().index, vec![write(0, 1, 1)]);
    lab.store.restart(log.end(), log.chain(), &lab.config.volumes.clone(), &[], ClientMark::default());
    lab.settle();
    // Data; zeroes that are too short; data; zeroes; data; zeroes up to the end.
    let fills: Vec<u8> = (0..blocks)
        .map(|block| match block {
            1 => 0,
            4..6 => 0,
            _ if block >= blocks - hole_blocks => 0,
            _ => 7,
        })
        .collect();
    let data: Bytes = fills.iter().flat_map(|fill| [*fill; BLOCK]).collect::<Vec<_>>().into();
    lab.store.install_extent(VolumeId(0), Extent(0), log.end().index, data.clone(), Vec::new(), Vec::new());
    lab.store.install_extent(VolumeId(0), Extent(1), log.end().index, Bytes::new(), Vec::new(), Vec::new());
    lab.settle();
    let at = (blocks - hole_blocks) as u64;
    assert_eq!(
        lab.zeroed,
        [(4, 2, true), (at, hole_blocks as u64, true), (blocks as u64, blocks as u64, true)]
    );
    assert!(lab.disk.areas[&mainstay_store::Area::Volume(VolumeId(0))][..data.len()] == data);
    assert_eq!(lab.told.iter().filter(|told| matches!(told, Output::ExtentInstalled { .. })).count(), 2);
}

#[test]
fn a_volume_without_space_is_tried_again() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let (mut lab, mut log) = (Lab::new(), Log::default());
        for _ in 0..6 {
            lab.append(&mut log, lab::entries(&mut random, &lab::config().volumes));
        }
        lab.store.destage_now();
        if !lab.settle_without_space() {
            continue;
        }
        assert!(lab.store.is_stalled());
        let trimmed = lab.store.log_plan(mainstay_types::Index(1), 1);
        assert!(trimmed.is_ok(), "the journal keeps what no volume has");
        lab.check(&log);
        lab.store.retry();
        assert!(lab.settle_without_space() && lab.store.is_stalled(), "there is still none");
        let crashes = random.chance(30);
        if crashes {
            lab.crash(&mut random).expect("no corruption");
            let end = lab.store.log_state().end.index;
            assert_eq!(end, log.end().index, "what was acknowledged is there");
            lab.store.commit(end);
            lab.store.destage_now();
        } else {
            lab.store.retry();
        }
        lab.settle();
        assert!(!lab.store.is_stalled());
        lab.check(&log);
        // Entries that were appended after the pass had begun.
        lab.store.destage_now();
        lab.settle();
        for (n, model) in log.content(&lab.config.volumes, log.end().index).iter().enumerate() {
            let area = mainstay_store::Area::Volume(VolumeId(n as u16));
            assert!(&lab.disk.areas[&area] == model, "seed {seed}: volume {n}, crashed: {crashes}");
        }
    }
}

#[test]
fn a_copy_without_space_goes_on_when_there_is_some() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    log.seal(1, log.end().index, vec![write(0, 1, 1)]);
    lab.store.restart(log.end(), log.chain(), &lab.config.volumes.clone(), &[], ClientMark::default());
    lab.settle();
    lab.told.clear();
    let data = Bytes::from(vec![5; EXTENT_BYTES as usize]);
    lab.store.install_extent(VolumeId(0), Extent(0), log.end().index, data.clone(), Vec::new(), Vec::new());
    lab.store.finish_copy(log.end().index);
    assert!(lab.settle_without_space());
    assert!(lab.told.is_empty(), "{:?}", lab.told);
    lab.store.retry();
    lab.settle();
    assert!(matches!(lab.told[..], [Output::ExtentInstalled { .. }, Output::CopyFinished]), "{:?}", lab.told);
    assert!(lab.disk.areas[&mainstay_store::Area::Volume(VolumeId(0))][..data.len()] == data);
}
