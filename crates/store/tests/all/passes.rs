//! How far a pass of destaging goes (R18): a client that waits for room in a full journal waits for
//! a part of it.

use crate::lab::{self, Doing, Lab, Log, discard, tuning, write};
use mainstay_codec::NewEntry;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_store::{Area, StoreConfig, Tuning};
use mainstay_types::{BLOCK_BYTES, VolumeId};

/// Journal bytes that a batch of one block takes.
const BATCH_BYTES: u64 = HEADER_BLOCK_BYTES as u64 + BLOCK_BYTES;

/// Returns a store that destages nothing before the journal is half full.
fn in_parts(pass_parts: u64) -> Lab {
    Lab::with(lab::config(), Tuning { destage_start_bytes: u64::MAX, pass_parts, ..tuning() })
}

fn is_of_volume(doing: &Doing) -> bool {
    matches!(doing, Doing::Volatile { area: Area::Volume(_), .. })
}

/// Lets everything end but writes to volumes.
fn end_all_but_writes_to_volumes(lab: &mut Lab) {
    while let Some(at) = lab.doing.iter().position(|(_, doing)| !is_of_volume(doing)) {
        lab.complete(at);
    }
}

fn in_volume(lab: &Lab, block: u64) -> u8 {
    lab.disk.slice(Area::Volume(VolumeId(0)), block * BLOCK_BYTES, 1)[0]
}

#[test]
fn a_pass_frees_a_part_of_the_journal_and_hot_blocks_stay() {
    let (mut lab, mut log) = (in_parts(4), Log::default());
    let part = lab.config.journal_bytes / 4 / BATCH_BYTES;
    let half = lab.config.journal_bytes / 2 / BATCH_BYTES;
    let full = lab.store.room_with_reserve();
    for n in 1..=half + 1 {
        // Every other write is one of block 0.
        let block = if n % 2 == 1 { 0 } else { n };
        lab.append(&mut log, vec![write(block, 1, n as u8)]);
        lab.settle();
    }
    assert!(lab.store.room_with_reserve() < full);
    let destaged: Vec<_> = (0..=half).filter(|block| in_volume(&lab, *block) != 0).collect();
    assert_eq!(destaged, (2..=part).step_by(2).collect::<Vec<_>>());
    lab.check(&log);
    // A forced pass destages everything.
    lab.store.destage_now();
    lab.settle();
    assert_eq!(u64::from(in_volume(&lab, 0)), half + 1);
    lab.check(&log);
}

/// Writes to volumes that have to end before a journal without room has some.
fn writes_until_there_is_room(pass_parts: u64) -> usize {
    let (mut lab, mut log) = (in_parts(pass_parts), Log::default());
    let mut block = 0;
    while lab.store.room() >= BATCH_BYTES {
        // Not neighbours, so that each is a write of its own.
        lab.append(&mut log, vec![write(block, 1, 1)]);
        block += 2;
        end_all_but_writes_to_volumes(&mut lab);
    }
    let mut writes = 0;
    while lab.store.room() < BATCH_BYTES {
        writes += usize::from(is_of_volume(&lab.doing[0].1));
        lab.complete(0);
    }
    lab.settle();
    lab.check(&log);
    writes
}

#[test]
fn a_write_that_waits_for_room_waits_for_a_part_of_the_journal() {
    let blocks = (lab::config().journal_bytes / BATCH_BYTES) as usize;
    let all = writes_until_there_is_room(1);
    assert!(all >= blocks / 2, "for all {all} that were there when the pass began");
    assert!(writes_until_there_is_room(8) <= blocks / 8 + 1);
    assert!((1..=2).contains(&writes_until_there_is_room(1000)), "a batch at a time, and the reserve first");
}

/// How many writes a pass has under way at once, each of `blocks` neighbouring blocks.
fn under_way(blocks: u64, destage_writes_max: usize, destage_bytes_max: u64) -> usize {
    let tuning = Tuning { destage_writes_max, destage_bytes_max, ..tuning() };
    let (mut lab, mut log) =
        (Lab::with(lab::config(), Tuning { destage_start_bytes: u64::MAX, ..tuning }), Log::default());
    for n in 0..8 {
        lab.append(&mut log, vec![write(n * (blocks + 1), blocks, 1)]);
        lab.settle();
    }
    lab.store.destage_now();
    lab.pump();
    end_all_but_writes_to_volumes(&mut lab);
    let most = lab.doing.len();
    lab.settle();
    lab.check(&log);
    most
}

#[test]
fn scattered_blocks_are_written_together_and_large_writes_are_not() {
    assert_eq!(under_way(1, 3, u64::MAX), 3);
    assert_eq!(under_way(1, 64, 5 * BLOCK_BYTES), 5);
    assert_eq!(under_way(2, 64, 5 * BLOCK_BYTES), 2);
    assert_eq!(under_way(3, 64, 2 * BLOCK_BYTES), 1, "one at least");
}

/// A journal of 400 blocks, and a pass as soon as more than 20 blocks are to be destaged.
fn unhurried() -> Tuning {
    Tuning {
        destage_start_bytes: 20 * BLOCK_BYTES,
        destage_writes_max: 8,
        destage_bunch: 1,
        destage_bytes_max: u64::MAX,
        ..tuning()
    }
}

/// Operations of a pass under way when `blocks` entries of one block each wait to be destaged, none
/// beside another.
fn at_once(tuning: Tuning, blocks: u64, entry: fn(u64, u64, u8) -> NewEntry, awaited: bool) -> usize {
    at_once_in(400, tuning, blocks, entry, awaited)
}

fn at_once_in(
    journal: u64,
    tuning: Tuning,
    blocks: u64,
    entry: fn(u64, u64, u8) -> NewEntry,
    awaited: bool,
) -> usize {
    let (mut lab, log) = gathered(journal, tuning, blocks, entry);
    if awaited {
        lab.store.destage_now();
    }
    lab.pump();
    let under_way = lab.doing.len();
    lab.settle();
    lab.check(&log);
    under_way
}

/// A store with a journal of `journal` blocks, and `blocks` entries in its overlay. No write of a
/// pass to the volume has ended.
fn gathered(journal: u64, tuning: Tuning, blocks: u64, entry: fn(u64, u64, u8) -> NewEntry) -> (Lab, Log) {
    let (volumes, journal_bytes) = (vec![512 * BLOCK_BYTES], journal * BLOCK_BYTES);
    let config = StoreConfig { volumes, journal_bytes, sums: false, ..lab::config() };
    let (mut lab, mut log) = (Lab::with(config, tuning), Log::default());
    for block in 0..blocks {
        lab.append(&mut log, vec![entry(2 * block, 1, 1)]);
        end_all_but_writes_to_volumes(&mut lab);
    }
    (lab, log)
}

#[test]
fn a_pass_takes_its_time_unless_much_has_gathered_or_a_write_waits() {
    let scattered = |blocks, awaited| at_once(unhurried(), blocks, write, awaited);
    assert_eq!(scattered(20, false), 0);
    assert_eq!(scattered(21, false), 1);
    assert_eq!(scattered(30, false), 4);
    assert_eq!(scattered(40, false), 8);
    assert_eq!(scattered(60, false), 8);
    assert_eq!(scattered(21, true), 8);
}

#[test]
fn a_pass_has_fewer_bytes_in_flight_while_it_takes_its_time() {
    let tuning = Tuning { destage_writes_max: 64, destage_bytes_max: 8 * BLOCK_BYTES, ..unhurried() };
    assert_eq!([21, 30, 40].map(|blocks| at_once(tuning, blocks, write, false)), [1, 4, 8]);
}

#[test]
fn a_pass_hurries_more_the_more_of_its_cause_there_is() {
    let lazy = Tuning { destage_start_bytes: u64::MAX, ..unhurried() };
    // Half of the journal, and three quarters.
    assert_eq!([100, 101, 126, 151].map(|blocks| at_once(lazy, blocks, write, false)), [0, 1, 4, 8]);
    // A small one has no room for the largest batch before that: then all six that the pass began
    // with.
    assert_eq!([7, 8].map(|blocks| at_once_in(24, lazy, blocks, write, false)), [2, 6]);
    let crowded = Tuning { runs_max: 40, ..lazy };
    assert_eq!([20, 21, 25, 30].map(|blocks| at_once(crowded, blocks, write, false)), [0, 1, 4, 8]);
    let discarded = |block, blocks, _| discard(block, blocks);
    assert_eq!([20, 21, 30, 40].map(|blocks| at_once(unhurried(), blocks, discarded, false)), [0, 1, 4, 8]);
}

/// Tuning with bunches of four writes, for which the journal is not read either.
fn bunches_of_four() -> Tuning {
    Tuning { destage_bunch: 4, memory_bytes_max: u64::MAX, ..unhurried() }
}

fn of_volumes(lab: &Lab) -> usize {
    lab.doing.iter().filter(|(_, doing)| is_of_volume(doing)).count()
}

#[test]
fn while_little_has_gathered_a_pass_writes_in_bunches() {
    let tuning = bunches_of_four();
    let at_once = |blocks| of_volumes(&gathered(400, tuning, blocks, write).0);
    assert_eq!([20, 21, 32, 35, 40].map(at_once), [0, 4, 4, 6, 8]);
    // The next begins when all of one have ended.
    let (mut lab, log) = gathered(400, tuning, 24, write);
    for left in [3, 2, 1, 4, 3] {
        lab.complete(0);
        assert_eq!(lab.doing.len(), left);
    }
    lab.settle();
    lab.check(&log);
    // Of large writes there are fewer, and one at least.
    let bytes = |blocks| Tuning { destage_bytes_max: blocks * BLOCK_BYTES, ..tuning };
    let at_once = |blocks| of_volumes(&gathered(400, bytes(blocks), 21, write).0);
    assert_eq!([16, 8, 4, 1].map(at_once), [4, 4, 2, 1]);
}

#[test]
fn a_bunch_waits_until_nothing_is_written_to_the_journal() {
    let tuning = bunches_of_four();
    let one_after_another = |blocks| {
        let (mut lab, mut log) = gathered(400, tuning, blocks, write);
        let first = of_volumes(&lab);
        lab.append(&mut log, vec![write(2 * blocks, 1, 1)]);
        for _ in 0..first {
            let at = lab.doing.iter().position(|(_, doing)| is_of_volume(doing));
            lab.complete(at.expect("it is in flight"));
        }
        let beside = of_volumes(&lab);
        end_all_but_writes_to_volumes(&mut lab);
        let after = of_volumes(&lab);
        lab.settle();
        lab.check(&log);
        [first, beside, after]
    };
    assert_eq!(one_after_another(30), [4, 0, 4]);
    // Whatever is written to the journal, when more has gathered.
    assert_eq!(one_after_another(50), [8, 8, 8]);
}
