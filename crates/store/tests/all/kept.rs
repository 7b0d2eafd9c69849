//! The target of a copy keeps what it holds already (R16): only the other blocks of an extent are
//! written.

use crate::lab::{BLOCK, Doing, Lab, Log, write};
use bytes::Bytes;
use mainstay_store::{Area, Output};
use mainstay_types::{ClientMark, EXTENT_BYTES, Extent, VolumeId};

const VOLUME: VolumeId = VolumeId(0);
const BLOCKS: usize = EXTENT_BYTES as usize / BLOCK;

/// A replica that has content 1 in the first blocks of its volume and begins to be copied to.
/// `flushed`: that content has reached the medium.
fn target(flushed: bool) -> (Lab, Log) {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 4, 1)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    if !flushed {
        // As a store leaves it that was killed while it installed an extent: written, and not
        // flushed.
        lab.disk.put_volatile(Area::Volume(VOLUME), 0, &[2; BLOCK]);
    }
    let sizes = lab.config.volumes.clone();
    lab.store.restart(log.end(), log.chain(), &sizes, &[], ClientMark::default());
    lab.settle();
    lab.told.clear();
    (lab, log)
}

/// Content for all blocks of an extent but the kept ones.
fn rest(kept: &[u32], fill: impl Fn(u32) -> u8) -> Bytes {
    let sent = (0..BLOCKS as u32).filter(|block| !kept.contains(block));
    sent.flat_map(|block| vec![fill(block); BLOCK]).collect()
}

fn finish(lab: &mut Lab, log: &Log) {
    lab.settle();
    lab.store.finish_copy(log.end().index);
    lab.settle();
    lab.told.retain(|told| !matches!(told, Output::SnapshotsChanged));
    assert!(matches!(lab.told[..], [Output::ExtentInstalled { .. }, Output::CopyFinished]), "{:?}", lab.told);
}

fn in_volume(lab: &Lab, block: u32) -> u8 {
    lab.disk.slice(Area::Volume(VOLUME), u64::from(block) * BLOCK as u64, 1)[0]
}

#[test]
fn kept_blocks_stay_and_copied_blocks_go_to_their_place() {
    let (mut lab, log) = target(true);
    let kept = [0, 2, 3, 9];
    let data = rest(&kept, |block| 100 + (block % 100) as u8);
    lab.store.install_extent(VOLUME, Extent(0), log.end().index, data, Vec::new(), kept.to_vec());
    finish(&mut lab, &log);
    for block in 0..BLOCKS as u32 {
        let expected = match block {
            0 | 2 | 3 => 1,
            9 => 0,
            _ => 100 + (block % 100) as u8,
        };
        assert_eq!(in_volume(&lab, block), expected, "block {block}");
    }
}

#[test]
fn kept_damaged_and_zero_blocks_of_one_extent() {
    let (mut lab, log) = target(true);
    let (kept, damaged) = (vec![0, 1], vec![5]);
    // Long zeroes become a hole, and the blocks after them are in their place.
    let data = rest(&kept, |block| if (8..13).contains(&block) { 0 } else { 7 });
    lab.store.install_extent(VOLUME, Extent(0), log.end().index, data, damaged, kept);
    finish(&mut lab, &log);
    let found = [0, 1, 2, 4, 6, 7, 8, 12, 13].map(|block| in_volume(&lab, block));
    assert_eq!(found, [1, 1, 7, 7, 7, 7, 0, 0, 7]);
}

#[test]
fn an_extent_of_which_all_is_kept_is_installed_without_a_write() {
    let (mut lab, log) = target(true);
    let all: Vec<u32> = (0..BLOCKS as u32).collect();
    lab.store.install_extent(VOLUME, Extent(0), log.end().index, Bytes::new(), Vec::new(), all);
    lab.pump();
    let written = lab.doing.iter().filter(|(_, doing)| matches!(doing, Doing::Volatile { .. })).count();
    assert_eq!(written, 0);
    finish(&mut lab, &log);
    assert_eq!(lab.store.version(VOLUME, Extent(0)), log.end().index);
}

/// A device gives back what is in its cache, so it is kept; then the power goes.
#[test]
fn kept_blocks_are_durable_before_the_replica_counts_as_whole() {
    let (mut lab, log) = target(false);
    let all: Vec<u32> = (0..BLOCKS as u32).collect();
    lab.store.install_extent(VOLUME, Extent(0), log.end().index, Bytes::new(), Vec::new(), all);
    finish(&mut lab, &log);
    lab.disk.lose_volatile();
    assert_eq!(in_volume(&lab, 0), 2);
}
