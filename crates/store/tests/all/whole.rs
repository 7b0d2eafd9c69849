//! R26: writes of several blocks, each one entry, are whole or absent. The test knows nothing of
//! the log: each write fills pages with a number of its own, and no page ever shows two numbers,
//! whatever is in flight, after any crash, in volumes and in snapshots.

use crate::lab::{self, BLOCK, Lab, Log, Random, drop_snapshot, filling, rollback, snapshot, tuning};
use bytes::Bytes;
use mainstay_codec::{EntryKind, NewEntry};
use mainstay_types::{BLOCK_BYTES, DataState, Range, SnapshotState, VolumeId};

/// No divisor of an extent, so that some pages lie in two extents.
const PAGE_BLOCKS: u64 = 5;
const PAGE: usize = PAGE_BLOCKS as usize * BLOCK;

/// The first page with two numbers.
fn torn(content: &[Vec<u8>]) -> Option<(usize, usize)> {
    let is_torn = |page: &[u8]| page.chunks(BLOCK).any(|block| block[..8] != page[..8]);
    content
        .iter()
        .enumerate()
        .find_map(|(volume, bytes)| bytes.chunks_exact(PAGE).position(is_torn).map(|page| (volume, page)))
}

/// A write of one page, or a discard or zeroing of some.
fn change(random: &mut Random, volumes: &[u64], number: u64) -> NewEntry {
    let volume = random.below(volumes.len());
    let pages = volumes[volume] / (PAGE_BLOCKS * BLOCK_BYTES);
    let page = random.below(pages.min(5) as usize) as u64;
    let (kind, count) = match random.below(8) {
        0 => (EntryKind::Discard, 1 + random.below((pages - page).min(3) as usize) as u64),
        1 => (EntryKind::WriteZeroes, 1),
        _ => (EntryKind::Write, 1),
    };
    let len = count * PAGE_BLOCKS * BLOCK_BYTES;
    let payload = match kind {
        EntryKind::Write => number.to_le_bytes().repeat(len as usize / 8).into(),
        _ => Bytes::new(),
    };
    let offset = page * PAGE_BLOCKS * BLOCK_BYTES;
    let range = Range { volume: VolumeId(volume as u16), offset, len };
    NewEntry { kind, range, payload, session: 0, request: 0 }
}

/// Sometimes a snapshot is taken, dropped or rolled back to instead.
fn next_entry(random: &mut Random, log: &Log, volumes: &[u64], number: u64) -> NewEntry {
    let snapshots: Vec<_> = log.snapshots(log.end().index).into_keys().collect();
    let pick = snapshots.get(random.below(snapshots.len())).map(|id| id.0);
    match (random.below(20), pick) {
        (0, _) if snapshots.len() < 4 => snapshot(number as u32),
        (1, Some(id)) => drop_snapshot(id),
        (2, Some(id)) => rollback(id, number as u32),
        _ => change(random, volumes, number),
    }
}

fn check(lab: &Lab, seed: u64) {
    if lab.store.log_state().data == DataState::Consistent && !lab.store.rolling_back() {
        assert_eq!(torn(&lab.content()), None, "a volume, seed {seed}");
    }
    for (id, known) in lab.store.snapshots() {
        if known.state == SnapshotState::Held {
            assert_eq!(torn(&lab.disk.snapshots[&id]), None, "snapshot {id}, seed {seed}");
        }
    }
}

#[test]
fn no_page_is_torn_whatever_is_in_flight_and_after_any_crash() {
    let (mut crashes, mut entries) = (0, 0);
    for seed in 0..60 {
        let mut random = Random(seed);
        let tuning = if seed % 2 == 0 { filling() } else { tuning() };
        let mut lab = Lab::with(lab::config(), tuning);
        let mut log = Log::default();
        let volumes = lab.config.volumes.clone();
        for number in 1..120 {
            match random.below(10) {
                0..=3 if lab.store.room() >= (1 + PAGE_BLOCKS) * BLOCK_BYTES => {
                    let entry = next_entry(&mut random, &log, &volumes, number);
                    let commit = lab.store.applied();
                    lab.store.append(log.seal(1, commit, vec![entry]));
                }
                4 => {
                    let ends = log.ends(lab.store.log_state().commit);
                    lab.store.commit(ends[random.below(ends.len())].index);
                }
                5 => lab.store.destage_now(),
                6 if random.chance(50) => {
                    lab.crash(&mut random).expect("only torn tails");
                    log.truncate(lab.store.log_state().end.index);
                    crashes += 1;
                    check(&lab, seed);
                    lab.store.commit(log.end().index);
                }
                _ => {}
            }
            lab.pump();
            for _ in 0..random.below(3) {
                if !lab.doing.is_empty() {
                    let at = random.below(lab.doing.len());
                    lab.complete(at);
                }
            }
            check(&lab, seed);
        }
        lab.store.commit(log.end().index);
        lab.store.destage_now();
        lab.settle();
        check(&lab, seed);
        lab.check(&log);
        entries += log.end().index.0;
    }
    assert!(crashes > 100 && entries > 200, "{crashes} crashes, {entries} entries at the ends");
}
