//! What a host does for a scrub.

use super::lab::{HERE, Lab, VOLUME, broken, filled, lazy};
use mainstay_replica::{Role, ScrubOrder, ScrubReport, ScrubState};
use mainstay_store::{Area, Output, Tuning};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES};
use std::collections::BTreeSet;

fn begun() -> Lab {
    let mut lab = Lab::primary(Tuning { destage_start_bytes: 0, ..lazy() });
    lab.write(1, 7);
    lab.settle();
    assert!(lab.host.scrub(lab.world.now, ScrubOrder { repair: mainstay_types::ScrubRepair::All, rate: 0 }));
    assert!(!lab.host.scrub(lab.world.now, ScrubOrder::default()), "one at a time");
    lab.settle();
    lab
}

fn report(lab: &Lab) -> ScrubReport {
    lab.host.replica().scrub_report().expect("it has begun").clone()
}

#[test]
fn a_scrub_reads_its_extent_before_anything_newer_is_written_there() {
    let mut lab = begun();
    let read = *lab.world.reads.front().expect("the volume is read");
    assert_eq!(read.area, Area::Volume(VOLUME));
    lab.write(1, 8);
    lab.settle();
    let held = lab.world.blocks.get(Area::Volume(VOLUME), BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(held, filled(&[7]), "it waits for the read");
    while report(&lab).state == ScrubState::Running {
        lab.answer_reads();
        lab.settle();
    }
    let held = lab.world.blocks.get(Area::Volume(VOLUME), BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(held, filled(&[8]), "it goes on");
    let report = report(&lab);
    assert_eq!((report.state, report.done), (ScrubState::Done, report.extents));
    assert_eq!((report.compared[&HERE.node], report.uncompared), (report.done, report.done), "it is alone");
}

/// Extents of which something is being read.
fn in_reading(lab: &Lab) -> BTreeSet<u64> {
    let reads = lab.world.reads.iter().filter(|read| read.area == Area::Volume(VOLUME));
    reads.map(|read| read.offset / EXTENT_BYTES).collect()
}

/// The third one's entry is committed as well, and its extent does not change either.
#[test]
fn two_extents_are_read_at_a_time() {
    let mut lab = begun();
    assert_eq!(in_reading(&lab), BTreeSet::from([0, 1]));
    let third = 2 * EXTENT_BYTES / BLOCK_BYTES;
    lab.write(third, 9);
    lab.settle();
    while in_reading(&lab).contains(&0) {
        let read = lab.world.reads.pop_front().expect("one of the first extent");
        let bytes = lab.world.blocks.get(read.area, read.offset, read.len);
        lab.answer(read, Ok(bytes));
        lab.settle();
    }
    assert_eq!(in_reading(&lab), BTreeSet::from([1, 2]));
    let held = lab.world.blocks.get(Area::Volume(VOLUME), 2 * EXTENT_BYTES, BLOCK_BYTES);
    assert_eq!(held, filled(&[0]), "it waits for its read");
}

#[test]
fn what_a_scrub_cannot_read_ends_the_use_of_the_disk() {
    let mut lab = begun();
    let read = lab.world.reads.pop_front().expect("the volume is read");
    lab.answer(read, Err(broken()));
    lab.settle();
    assert_eq!((lab.failures(), lab.host.role()), (1, Role::Fenced));
    assert_eq!(report(&lab).state, ScrubState::Interrupted);
    lab.answer_reads();
    let written = |output: &Output| matches!(output, Output::VolumeWrite { .. });
    assert!(!lab.world.operations.iter().any(written));
}
