//! Scrubbing (R17): what an extent holds at an entry, however long it takes to read it.

use crate::lab::{Lab, Log, scrub, write};
use mainstay_store::{Area, Output, Segments, Source};
use mainstay_types::{BLOCK_BYTES, ClientMark, EXTENT_BYTES, Index, Range, VolumeId};

/// Takes what the store has told of scrub entries so far.
fn scrubs(lab: &mut Lab) -> Vec<(Index, Range, Segments)> {
    lab.pump();
    let told = std::mem::take(&mut lab.told).into_iter();
    told.filter_map(|told| match told {
        Output::Scrub { at, range, segments } => Some((at, range, segments)),
        _ => None,
    })
    .collect()
}

fn of_extent(lab: &Lab, extent: u64) -> mainstay_codec::NewEntry {
    scrub(0, extent, lab.store.config().volumes[0])
}

fn in_volume(lab: &Lab, block: u64) -> u8 {
    lab.disk.slice(Area::Volume(VolumeId(0)), block * BLOCK_BYTES, 1)[0]
}

#[test]
fn nothing_newer_reaches_an_extent_before_it_is_read() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    lab.append(&mut log, vec![write(0, 2, 1)]);
    lab.settle();
    lab.store.destage_now();
    lab.settle();
    let entry = of_extent(&lab, 0);
    let other = EXTENT_BYTES / BLOCK_BYTES;
    lab.append(&mut log, vec![write(1, 1, 2), entry]);
    lab.append(&mut log, vec![write(0, 2, 3), write(other, 1, 3)]);
    lab.settle();
    let [(at, range, segments)] = &scrubs(&mut lab)[..] else { panic!("one entry") };
    lab.store.destage_now();
    lab.settle();
    assert_eq!((in_volume(&lab, 0), lab.store.is_stalled()), (1, false), "it is pinned");
    let found = lab.gather(*range, segments).expect("nothing was written over");
    assert_eq!([found[0], found[BLOCK_BYTES as usize]], [1, 2]);
    assert!(lab.store.scrub_ended(*at) && !lab.store.scrub_ended(*at));
    lab.settle();
    assert_eq!([0, 1, other].map(|block| in_volume(&lab, block)), [3, 3, 3], "the pass goes on");
    lab.check(&log);
}

#[test]
fn other_extents_are_written_during_a_scrub() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let entry = of_extent(&lab, 1);
    lab.append(&mut log, vec![write(0, 1, 1), entry]);
    lab.settle();
    assert_eq!(scrubs(&mut lab).len(), 1);
    lab.store.destage_now();
    lab.settle();
    assert_eq!(in_volume(&lab, 0), 1);
}

#[test]
fn only_so_many_extents_are_pinned_and_none_by_recovery() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    for _ in 0..26 {
        let entry = of_extent(&lab, 0);
        lab.append(&mut log, vec![entry]);
    }
    lab.settle();
    let told = scrubs(&mut lab);
    let pinned = told.iter().filter(|(.., segments)| !segments.is_empty()).count();
    assert_eq!((told.len(), pinned), (26, 24));
    let disk = lab.disk.clone();
    lab.recover_from(disk).expect("nothing is damaged");
    assert!(scrubs(&mut lab).is_empty());
    assert!(told.iter().all(|(at, ..)| !lab.store.scrub_ended(*at)));
}

/// R16: the content of such a replica is that of no entry.
#[test]
fn the_target_of_a_copy_says_nothing_and_a_restart_ends_all() {
    let (mut lab, mut log) = (Lab::new(), Log::default());
    let entry = of_extent(&lab, 0);
    lab.append(&mut log, vec![write(0, 1, 1), entry]);
    lab.settle();
    let [(at, _, segments)] = &scrubs(&mut lab)[..] else { panic!("one entry") };
    assert!(matches!(segments[0].source, Source::Memory(_) | Source::Journal { .. }));
    let (end, chain, volumes) = (log.end(), log.chain(), lab.store.config().volumes.clone());
    lab.store.restart(end, chain, &volumes, &[], ClientMark::default());
    // The pass before the restart waits for the extent.
    lab.store.scrub_ended(*at);
    lab.settle();
    let entry = of_extent(&lab, 0);
    lab.append(&mut log, vec![entry]);
    lab.settle();
    let [(at, _, segments)] = &scrubs(&mut lab)[..] else { panic!("one entry") };
    assert!(segments.is_empty() && !lab.store.scrub_ended(*at));
}
