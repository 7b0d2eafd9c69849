//! Volumes that grow (R17): when the size counts, where the version table goes, what a crash
//! leaves.

use crate::lab::{self, Lab, Log, Random, resize, write};
use mainstay_codec::versions::VERSIONS_PER_PAGE;
use mainstay_store::{Area, Output, StoreConfig};
use mainstay_types::{BLOCK_BYTES, ClientMark, EXTENT_BYTES, Extent, Index, VolumeId};

const V: VolumeId = VolumeId(0);

fn append(lab: &mut Lab, log: &mut Log, entries: Vec<mainstay_codec::NewEntry>) -> Index {
    let batch = log.seal(1, Index(0), entries);
    lab.store.append(batch.clone());
    batch.last()
}

fn size(lab: &Lab) -> u64 {
    lab.store.config().volumes[0]
}

fn grown(lab: &Lab) -> Vec<u64> {
    lab.told
        .iter()
        .filter_map(|told| if let Output::Grown { bytes, .. } = told { Some(*bytes) } else { None })
        .collect()
}

#[test]
fn a_size_counts_when_it_is_committed_and_goes_with_a_tail_that_is_cut() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let old = size(&lab);
    let first = append(&mut lab, &mut log, vec![write(0, 1, 1)]);
    append(&mut lab, &mut log, vec![resize(0, old + BLOCK_BYTES)]);
    // A later write may lie in the new part.
    append(&mut lab, &mut log, vec![write(old / BLOCK_BYTES, 1, 2)]);
    lab.settle();
    assert_eq!((size(&lab), grown(&lab).len()), (old, 0));
    let end = log.ends(first)[0];
    lab.store.cut(end);
    log.truncate(first);
    lab.settle();
    let last = append(&mut lab, &mut log, vec![resize(0, old + 2 * BLOCK_BYTES)]);
    lab.settle();
    lab.store.commit(last);
    lab.settle();
    assert_eq!((size(&lab), grown(&lab)), (old + 2 * BLOCK_BYTES, vec![old + 2 * BLOCK_BYTES]));
    assert_eq!(lab.disk.areas[&Area::Volume(V)].len() as u64, old + 2 * BLOCK_BYTES);
    lab.check(&log);
}

#[test]
fn the_new_part_of_a_volume_is_readable_and_not_destaged_before_its_file_grows() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let old = size(&lab);
    append(&mut lab, &mut log, vec![resize(0, old + 4 * BLOCK_BYTES)]);
    let last = append(&mut lab, &mut log, vec![write(old / BLOCK_BYTES + 1, 1, 7)]);
    lab.settle();
    lab.store.commit(last);
    lab.store.destage_now();
    lab.pump();
    let file = lab.disk.areas[&Area::Volume(V)].len() as u64;
    assert_eq!((lab.doing.len(), file), (1, old), "nothing but the growth is under way");
    // The content is compared with the model: zeroes beyond the end of the file, and the written
    // blocks.
    lab.check(&log);
    lab.settle();
    lab.check(&log);
    assert!(lab.disk.slice(Area::Volume(V), old + BLOCK_BYTES, 1) == [7], "it is destaged");
}

/// A table of one page grows to three, which do not fit where it lies.
#[test]
fn a_version_table_that_moves_is_found_again_after_any_crash() {
    let page = VERSIONS_PER_PAGE as u64 * EXTENT_BYTES;
    let config = StoreConfig { volumes: vec![page, EXTENT_BYTES], ..lab::config() };
    // More than there are operations.
    for completed in 0..16 {
        let mut random = Random(completed);
        let (mut lab, mut log) = (Lab::with(config.clone(), lab::tuning()), Log::default());
        append(&mut lab, &mut log, vec![write(0, 1, 1)]);
        append(&mut lab, &mut log, vec![resize(0, 3 * page)]);
        let last = append(&mut lab, &mut log, vec![write(3 * page / BLOCK_BYTES - 1, 1, 2)]);
        lab.settle();
        lab.store.commit(last);
        lab.store.destage_now();
        lab.pump();
        lab.complete_some(completed);
        lab.crash(&mut random).expect("nothing is damaged");
        lab.store.commit(last);
        lab.store.destage_now();
        lab.settle();
        assert_eq!(size(&lab), 3 * page, "after {completed} operations");
        // A size that a checkpoint has recorded counts without the log.
        let disk = std::mem::take(&mut lab.disk);
        lab.recover_from(disk).expect("nothing is damaged");
        assert_eq!((size(&lab), lab.store.config().volumes[1]), (3 * page, EXTENT_BYTES));
        let extents = lab.store.extents_newer_than(Index(0));
        let changed = [(V, Extent(0)), (V, Extent::of(3 * page - 1))];
        assert_eq!(extents, changed, "after {completed} operations");
        assert!(changed.iter().all(|(volume, extent)| lab.store.version(*volume, *extent) > Index(0)));
    }
}

#[test]
fn the_target_of_a_copy_takes_over_the_sizes_before_it_is_marked() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let old = size(&lab);
    append(&mut lab, &mut log, vec![write(0, 1, 1)]);
    lab.settle();
    lab.store.commit(log.end().index);
    lab.settle();
    log.seal(1, log.end().index, vec![resize(0, old + EXTENT_BYTES)]);
    let volumes = log.sizes(&lab.config.volumes, log.end().index);
    lab.store.restart(log.end(), log.chain(), &volumes, &[], ClientMark::default());
    lab.pump();
    while !lab.told.iter().any(|told| matches!(told, Output::Restarted { .. })) {
        let file = lab.disk.areas[&Area::Volume(V)].len() as u64;
        assert!(size(&lab) <= file, "a size that the file does not have");
        lab.complete(0);
    }
    assert_eq!(
        (size(&lab), lab.disk.areas[&Area::Volume(V)].len() as u64),
        (old + EXTENT_BYTES, old + EXTENT_BYTES)
    );
    // An entry behind the restart may lie in the new part.
    let batch = log.seal(1, log.end().index, vec![write(old / BLOCK_BYTES, 1, 3)]);
    lab.store.append(batch.clone());
    lab.settle();
    lab.store.commit(batch.last());
    lab.settle();
}

/// Seen to end the store before: with every replica's pool full, one after the other would have
/// been given up.
#[test]
fn a_volume_that_finds_no_space_to_grow_waits_for_it() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let old = size(&lab);
    let last = append(&mut lab, &mut log, vec![resize(0, old + BLOCK_BYTES)]);
    lab.settle();
    lab.store.commit(last);
    for _ in 0..3 {
        lab.pump();
        assert_eq!(lab.doing.len(), 1, "the growth");
        lab.fail_for_space(0);
        assert!(lab.store.is_stalled() && grown(&lab).is_empty());
        lab.pump();
        assert!(lab.doing.is_empty(), "nothing is tried before the host says so");
        lab.store.retry();
        assert!(!lab.store.is_stalled());
    }
    lab.settle();
    assert_eq!(grown(&lab), [old + BLOCK_BYTES]);
    lab.check(&log);
}
