//! Blocks of volumes that are not what was written there last (docs/adr/0012-block-checksums.md).

use crate::lab::{self, BLOCK, Doing, Lab, Log, Random, write, zeroes};
use bytes::Bytes;
use mainstay_codec::NewEntry;
use mainstay_codec::sums::{SUMS_PER_PAGE, block_sum};
use mainstay_store::{Area, Checked, DamagedBlock, Source, StoreConfig, Tuning};
use mainstay_types::{BLOCK_BYTES, ClientMark, EXTENT_BYTES, Extent, Index, Range, VolumeId};
use proptest::prelude::*;
use std::sync::Arc;

const VOLUME: VolumeId = VolumeId(0);

/// The lab's replica with these blocks of its first volume written and destaged.
fn destaged(blocks: &[u64]) -> (Lab, Log) {
    let mut lab = Lab::new();
    let mut log = Log::default();
    for &block in blocks {
        lab.append(&mut log, vec![write(block, 1, block as u8 + 1)]);
        lab.settle();
    }
    lab.store.destage_now();
    lab.settle();
    (lab, log)
}

fn checked(lab: &Lab, block: u64, blocks: u64) -> Checked {
    let (offset, len) = (block * BLOCK_BYTES, blocks * BLOCK_BYTES);
    let segments = lab.store.read(Range { volume: VOLUME, offset, len });
    assert!(segments.iter().all(|segment| segment.source == Source::Volume), "{segments:?}");
    lab.checked(VOLUME, offset, lab.disk.slice(Area::Volume(VOLUME), offset, len))
}

fn damaged(block: u64) -> Checked {
    Checked::Damaged(DamagedBlock { volume: VOLUME, block })
}

#[test]
fn every_flipped_byte_of_a_block_and_of_a_hole_is_noticed() {
    let (lab, _) = destaged(&[3, 5]);
    assert_eq!(checked(&lab, 0, 8), Checked::Well);
    for at in (0..8 * BLOCK).step_by(61) {
        let mut lab = Lab { disk: lab.disk.clone(), ..destaged(&[]).0 };
        lab.recover_from(lab.disk.clone()).expect("volumes are not looked at");
        assert_eq!(checked(&lab, 0, 8), Checked::Well);
        lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists")[at] ^= 4;
        assert_eq!(checked(&lab, 0, 8), damaged((at / BLOCK) as u64));
    }
}

#[test]
fn a_lost_a_misdirected_and_an_older_block_are_noticed() {
    let (mut lab, mut log) = destaged(&[3, 5]);
    let before = lab.disk.clone();
    lab.append(&mut log, vec![write(3, 1, 77)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    assert_eq!(checked(&lab, 0, 8), Checked::Well);
    let at = |block: usize| block * BLOCK..(block + 1) * BLOCK;
    let now = lab.disk.areas[&Area::Volume(VOLUME)].clone();
    let volume =
        |lab: &mut Lab| lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists").clone_from(&now);

    let older = before.slice(Area::Volume(VOLUME), 3 * BLOCK_BYTES, BLOCK_BYTES).to_vec();
    lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists")[at(3)].copy_from_slice(&older);
    assert_eq!(checked(&lab, 0, 8), damaged(3), "the last write was lost");
    volume(&mut lab);
    lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists").copy_within(at(3), 6 * BLOCK);
    assert_eq!(checked(&lab, 0, 8), damaged(6), "it landed on a hole");
    volume(&mut lab);
    lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists").copy_within(at(3), 5 * BLOCK);
    assert_eq!(checked(&lab, 0, 8), damaged(5), "it landed on another block");
    volume(&mut lab);
    assert_eq!(checked(&lab, 0, 8), Checked::Well);
}

/// Pages of sums have no checksums: one that rots, or is an older one, makes good blocks damaged
/// and no damaged one good.
#[test]
fn sums_that_are_damaged_or_older_are_never_taken_for_data() {
    let (mut lab, mut log) = destaged(&[3]);
    let older = lab.disk.areas[&Area::Sums(VOLUME)].clone();
    lab.append(&mut log, vec![write(3, 1, 77)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    let mut disk = lab.disk.clone();
    disk.areas.insert(Area::Sums(VOLUME), older);
    lab.recover_from(disk.clone()).expect("sums are not looked at");
    assert_eq!(checked(&lab, 3, 1), damaged(3));
    disk.areas.get_mut(&Area::Sums(VOLUME)).expect("exists")[4 * 6] ^= 1;
    lab.recover_from(disk).expect("sums are not looked at");
    assert_eq!(checked(&lab, 6, 1), damaged(6));
    // A block that is written anew is well, and so is its sum.
    lab.append(&mut log, vec![write(3, 4, 9)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    assert_eq!(checked(&lab, 0, 8), Checked::Well);
}

/// After any crash in the middle of a pass, content that is read from the volume fits its sums. The
/// rest is in the overlay.
#[test]
fn a_crash_at_any_moment_of_a_pass_leaves_no_block_that_seems_damaged() {
    // In another extent than the rest, whatever the size of extents in this build.
    const FAR: u64 = EXTENT_BYTES / BLOCK_BYTES + 2;
    for seed in 0..40 {
        let mut random = lab::Random(seed);
        for steps in 0..40 {
            let (mut lab, mut log) = destaged(&[1, 2, 3, FAR]);
            lab.append(&mut log, vec![write(2, 3, 50), lab::discard(FAR, 2)]);
            lab.settle();
            lab.store.destage_now();
            lab.pump();
            for _ in 0..steps {
                if lab.doing.is_empty() {
                    break;
                }
                let at = random.below(lab.doing.len());
                lab.complete(at);
            }
            lab.crash(&mut random).expect("a crash damages nothing");
            // Reads everything, and compares it with its sums.
            lab.check(&log);
        }
    }
}

#[test]
fn a_read_that_a_write_overtakes_is_done_anew() {
    let (mut lab, mut log) = destaged(&[3]);
    let stamp = lab.store.volume_stamp();
    let read = lab.disk.slice(Area::Volume(VOLUME), 3 * BLOCK_BYTES, BLOCK_BYTES).to_vec();
    lab.append(&mut log, vec![write(3, 1, 77)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    let check = |lab: &Lab, stamp| lab.store.check_blocks((VOLUME, 3), &read, &[], stamp);
    assert!(lab.store.sums_to_read(Range { volume: VOLUME, offset: 0, len: BLOCK_BYTES }).next().is_none());
    assert_eq!(check(&lab, stamp), Checked::Again);
    assert_eq!(check(&lab, lab.store.volume_stamp()), damaged(3));
}

/// Pages in memory are bounded, whatever is written; and what left memory is read again.
#[test]
fn sums_of_a_large_volume_do_not_stay_in_memory() {
    let blocks = 12 * SUMS_PER_PAGE;
    let config = StoreConfig { volumes: vec![blocks * BLOCK_BYTES], ..lab::config() };
    let tuning = Tuning { sums_bytes_max: 2 * BLOCK_BYTES, ..lab::tuning() };
    let mut lab = Lab::with(config, tuning);
    let mut log = Log::default();
    for round in 0..2 {
        for page in 0..12 {
            lab.append(&mut log, vec![write(page * SUMS_PER_PAGE + 7 + round, 1, page as u8 + 1)]);
            lab.settle();
        }
        lab.store.destage_now();
        lab.settle();
        let all = Range { volume: VOLUME, offset: 0, len: blocks * BLOCK_BYTES };
        assert!(lab.store.sums_to_read(all).count() >= 10, "of 12 pages two may stay");
        lab.check(&log);
    }
    lab.append(&mut log, vec![lab::discard(0, blocks)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    lab.check(&log);
    assert!(lab.disk.areas[&Area::Sums(VOLUME)].iter().all(|&byte| byte == 0), "holes have sums of zero");
}

/// Sums that were in memory when the read of a pinned extent began count, though they have left
/// memory since: no block is taken for whole without its sum.
#[test]
fn damage_is_found_though_sums_leave_memory_meanwhile() {
    let blocks = 12 * SUMS_PER_PAGE;
    let config = StoreConfig { volumes: vec![blocks * BLOCK_BYTES], ..lab::config() };
    let tuning = Tuning { sums_bytes_max: 2 * BLOCK_BYTES, ..lab::tuning() };
    let mut lab = Lab::with(config, tuning);
    let mut log = Log::default();
    let mut destage = |lab: &mut Lab, block| {
        lab.append(&mut log, vec![write(block, 1, 7)]);
        lab.settle();
        lab.store.destage_now();
        lab.settle();
    };
    destage(&mut lab, 3);
    let range = Range { volume: VOLUME, offset: 3 * BLOCK_BYTES, len: BLOCK_BYTES };
    assert_eq!(lab.store.sums_to_read(range).count(), 0);
    let held: Vec<_> = lab.store.sums_in_memory(range).collect();
    for page in 1..12 {
        destage(&mut lab, page * SUMS_PER_PAGE);
    }
    assert_eq!(lab.store.sums_to_read(range).count(), 1, "it has left memory");
    let well = lab.disk.slice(Area::Volume(VOLUME), 3 * BLOCK_BYTES, BLOCK_BYTES).to_vec();
    assert_eq!(lab.store.damaged_blocks((VOLUME, 3), &well, &held), []);
    let mut rotten = well;
    rotten[9] ^= 1;
    assert_eq!(lab.store.damaged_blocks((VOLUME, 3), &rotten, &held), [3]);
}

/// Sums that a read has brought are kept beside writes elsewhere, for a busy database has such all
/// the time. Sums that have changed since the read began are not, though they have left memory.
#[test]
fn sums_that_a_read_has_brought_are_kept_unless_they_have_changed_meanwhile() {
    let blocks = 40 * SUMS_PER_PAGE;
    let config = StoreConfig { volumes: vec![blocks * BLOCK_BYTES], ..lab::config() };
    let tuning = Tuning { sums_bytes_max: 4 * BLOCK_BYTES, ..lab::tuning() };
    let mut lab = Lab::with(config, tuning);
    let mut log = Log::default();
    let mut destage = |lab: &mut Lab, block: u64, fill: u8| {
        lab.append(&mut log, vec![write(block, 1, fill)]);
        lab.settle();
        lab.store.destage_now();
        lab.settle();
    };
    destage(&mut lab, 3, 7);
    let push_out = |lab: &mut Lab, destage: &mut dyn FnMut(&mut Lab, u64, u8)| {
        for page in 1..12 {
            destage(lab, page * SUMS_PER_PAGE, 1);
        }
    };
    push_out(&mut lab, &mut destage);
    let range = Range { volume: VOLUME, offset: 3 * BLOCK_BYTES, len: BLOCK_BYTES };
    let missing = |lab: &Lab| lab.store.sums_to_read(range).count();
    let page = |lab: &Lab| {
        let bytes = lab.disk.slice(Area::Sums(VOLUME), 0, BLOCK_BYTES).to_vec();
        vec![(0, Bytes::from(bytes))]
    };
    assert_eq!(missing(&lab), 1, "it has left memory");
    let (stamp, read) = (lab.store.volume_stamp(), page(&lab));
    destage(&mut lab, 20 * SUMS_PER_PAGE, 2);
    assert_ne!(lab.store.volume_stamp(), stamp);
    lab.store.keep_sums(VOLUME, &read, stamp);
    assert_eq!(missing(&lab), 0, "a write elsewhere is no reason to forget it");

    push_out(&mut lab, &mut destage);
    assert_eq!(missing(&lab), 1);
    let (stamp, read) = (lab.store.volume_stamp(), page(&lab));
    destage(&mut lab, 4, 8);
    push_out(&mut lab, &mut destage);
    assert_eq!(missing(&lab), 1, "it has changed, was written, and has left memory");
    lab.store.keep_sums(VOLUME, &read, stamp);
    assert_eq!(missing(&lab), 1, "what was read is an older one");
    assert_eq!(checked(&lab, 3, 2), Checked::Well);
    let (stamp, read) = (lab.store.volume_stamp(), page(&lab));
    lab.store.keep_sums(VOLUME, &read, stamp);
    assert_eq!((missing(&lab), checked(&lab, 3, 2)), (0, Checked::Well));
}

/// `blocks` blocks from `block` on, no two of which are alike, nor like those of another `seed`.
fn write_unlike(block: u64, blocks: u64, seed: u64) -> NewEntry {
    let content = |n: u64| (seed << 32 | (n + 1)).to_le_bytes().repeat(BLOCK / 8);
    let payload = Bytes::from((0..blocks).flat_map(content).collect::<Vec<u8>>());
    NewEntry { payload, ..write(block, blocks, 0) }
}

/// The blocks of the volume whose sum in the file of sums is not that of their content there.
fn unfit(lab: &Lab) -> Vec<usize> {
    let (sums, _) = lab.disk.areas[&Area::Sums(VOLUME)].as_chunks::<4>();
    let blocks = lab.disk.areas[&Area::Volume(VOLUME)].chunks(BLOCK).zip(sums);
    let unfit = blocks.enumerate().filter(|(_, (block, sum))| block_sum(block) != u32::from_le_bytes(**sum));
    unfit.map(|(n, _)| n).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// The sums that are kept since a payload was sealed, and those of what is read back, are those
    /// of the content in the volume, whichever part of a payload is left to write.
    #[test]
    fn sums_that_were_kept_are_those_of_the_written_blocks(
        writes in prop::collection::vec((0u64..40, 1u64..9, any::<bool>()), 1..20),
        memory_blocks in 0u64..30,
    ) {
        let tuning = Tuning {
            memory_bytes_max: memory_blocks * BLOCK_BYTES,
            destage_start_bytes: u64::MAX,
            ..lab::tuning()
        };
        let volumes = vec![48 * BLOCK_BYTES];
        let config = StoreConfig { journal_bytes: 1 << 20, volumes, ..lab::config() };
        let mut lab = Lab::with(config, tuning);
        let mut log = Log::default();
        for (n, (block, blocks, destage)) in (1..).zip(writes) {
            lab.append(&mut log, vec![write_unlike(block, blocks, n)]);
            lab.settle();
            if destage {
                lab.store.destage_now();
                lab.settle();
                lab.check(&log);
            }
        }
        lab.store.destage_now();
        lab.settle();
        lab.check(&log);
        prop_assert_eq!(unfit(&lab), []);
    }
}

/// The sum of a block is that of the bytes which were sealed or checked. So a change in memory
/// after that is damage on the volume, and never data.
#[test]
fn a_block_that_changes_in_memory_after_it_was_checked_is_damage() {
    for (blocks, changed) in [(1, 0), (4, 0), (4, 2), (4, 3)] {
        let mut lab = Lab::new();
        let mut log = Log::default();
        let mut batch = (*log.seal(1, log.end().index, vec![write_unlike(8, blocks, 1)])).clone();
        let mut payload = batch.entries[0].payload.to_vec();
        payload[changed as usize * BLOCK + 77] ^= 1;
        batch.entries[0].payload = payload.into();
        lab.store.append(Arc::new(batch));
        lab.settle();
        lab.store.commit(Index(1));
        lab.store.destage_now();
        lab.settle();
        for block in 0..blocks {
            let expected = if block == changed { damaged(8 + block) } else { Checked::Well };
            assert_eq!(checked(&lab, 8 + block, 1), expected, "block {changed} of {blocks} changed");
        }
    }
}

#[test]
fn a_replica_without_sums_has_nothing_to_check() {
    let mut lab = Lab::with(StoreConfig { sums: false, ..lab::config() }, lab::tuning());
    let mut log = Log::default();
    lab.append(&mut log, vec![write(3, 1, 9)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    lab.disk.areas.get_mut(&Area::Volume(VOLUME)).expect("exists")[3 * BLOCK] ^= 1;
    assert_eq!(checked(&lab, 3, 1), Checked::Well);
    assert!(lab.disk.areas[&Area::Sums(VOLUME)].iter().all(|&byte| byte == 0));
}

/// ADR 15: as the target of a copy holds it, whatever was there and whatever is lost of it.
#[test]
fn a_block_copied_as_damage_is_damaged_until_it_is_written_anew() {
    let (mut lab, mut log) = destaged(&[3, 5]);
    log.seal(1, log.end().index, vec![write(0, 1, 1)]);
    let blocks = EXTENT_BYTES / BLOCK_BYTES;
    let old = lab.disk.clone();
    lab.store.restart(log.end(), log.chain(), &lab.config.volumes.clone(), &[], ClientMark::default());
    lab.settle();
    let data = Bytes::from([7; BLOCK].repeat(blocks as usize));
    let last = blocks as u32 - 1;
    lab.store.install_extent(VOLUME, Extent(0), log.end().index, data, vec![0, 3, 4, last], Vec::new());
    lab.store.install_extent(VOLUME, Extent(1), log.end().index, Bytes::new(), vec![2], Vec::new());
    lab.settle();
    lab.store.finish_copy(log.end().index);
    lab.settle();
    lab.recover_from(lab.disk.clone()).expect("volumes are not looked at");
    let marked = [0, 3, 4, blocks - 1, blocks + 2];
    let expected = |block| if marked.contains(&block) { damaged(block) } else { Checked::Well };
    for block in 0..blocks + 4 {
        assert_eq!(checked(&lab, block, 1), expected(block), "block {block}");
    }
    // Neither a page of sums that is older, or was never written, nor a block that is makes data of
    // it.
    let whole = lab.disk.clone();
    for area in [Area::Sums(VOLUME), Area::Volume(VOLUME)] {
        for before in [old.areas[&area].clone(), vec![0; old.areas[&area].len()]] {
            lab.disk.areas.insert(area, before);
            lab.recover_from(lab.disk.clone()).expect("volumes are not looked at");
            for block in marked {
                assert_eq!(checked(&lab, block, 1), damaged(block), "{area:?}");
            }
            lab.disk = whole.clone();
        }
    }
    lab.recover_from(whole).expect("volumes are not looked at");
    lab.append(&mut log, vec![write(3, 1, 9)]);
    lab.append(&mut log, vec![zeroes(4, 1)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    assert_eq!((checked(&lab, 3, 2), checked(&lab, 0, 1)), (Checked::Well, damaged(0)));
}

/// Without that, blocks that a checkpoint covers would be damaged after a crash.
#[test]
fn a_page_of_sums_that_found_no_space_is_written_before_the_checkpoint() {
    for failed in 0..2 {
        let volumes = vec![3 * SUMS_PER_PAGE * BLOCK_BYTES];
        let tuning = Tuning { sums_bytes_max: 64 * BLOCK_BYTES, memory_bytes_max: u64::MAX, ..lab::tuning() };
        let (mut lab, mut log) =
            (Lab::with(StoreConfig { volumes, ..lab::config() }, tuning), Log::default());
        lab.append(&mut log, vec![write(5, 1, 1), write(2 * SUMS_PER_PAGE, 1, 2)]);
        lab.settle();
        lab.store.destage_now();
        lab.pump();
        let of_sums = |(_, doing): &(_, Doing)| matches!(doing, Doing::Durable { area: Area::Sums(_), .. });
        while lab.doing.iter().filter(|doing| of_sums(doing)).count() < 2 {
            lab.complete(0);
        }
        let sums: Vec<_> = (0..lab.doing.len()).filter(|at| of_sums(&lab.doing[*at])).collect();
        lab.fail_for_space(sums[failed]);
        lab.settle();
        assert!(lab.store.is_stalled());
        let before = lab.store.checkpoint();
        lab.store.retry();
        lab.pump();
        assert!(lab.doing.iter().any(of_sums), "{failed}: it is written again");
        assert_eq!(lab.store.checkpoint(), before);
        lab.settle();
        assert_eq!(lab.store.checkpoint(), log.end().index);
        lab.crash(&mut Random(1)).expect("nothing is damaged");
        lab.check(&log);
    }
}
