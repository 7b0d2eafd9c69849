//! Scenarios of a host during a scrub.

use super::lab::{HERE, Lab, RESOURCE, THERE, VOLUME, broken, filled, lazy, record};
use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, Envelope, Message, NewEntry};
use mainstay_replica::{ScrubOrder, ScrubReport};
use mainstay_store::{Area, Output, Tuning};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, ConfigVersion, EXTENT_BYTES, Epoch, Index, Position, Range, Role,
    ScrubState,
};
use std::collections::BTreeSet;
use std::sync::Arc;

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

/// A forced promotion uses numbers of entries again, and a sum of the old history would be told at
/// one of the new.
#[test]
fn sums_read_before_the_log_began_anew_are_not_told() {
    let mut lab = Lab::new(Tuning { destage_start_bytes: 0, ..lazy() });
    lab.host.record(lab.world.now, record(2, 2, THERE.node));
    lab.host.peer(lab.world.now, THERE.node, true);
    lab.settle();
    let bytes = lab.host.store().config().volumes[0];
    let told = |lab: &Lab| {
        let sums = |(_, _, envelope): &(_, _, Envelope)| match envelope.message {
            Message::ScrubSums { at, .. } => Some(at),
            _ => None,
        };
        lab.world.sent.iter().filter_map(sums).collect::<Vec<_>>()
    };
    let says = |lab: &mut Lab, message| {
        let envelope = Envelope {
            resource: RESOURCE,
            epoch: Epoch(2),
            version: ConfigVersion(2),
            incarnation: HERE.incarnation,
            message,
        };
        assert!(lab.host.message(lab.world.now, THERE.node, false, envelope));
        lab.settle();
    };
    let entry = |extent: u64| {
        let offset = extent * EXTENT_BYTES;
        let range = Range { volume: VOLUME, offset, len: EXTENT_BYTES.min(bytes - offset) };
        NewEntry { kind: EntryKind::Scrub, range, payload: Bytes::new(), session: 0, request: 0 }
    };
    let scrubs = |chain| {
        let entries = [0, 1, 2].map(entry);
        Message::Append(Arc::new(Batch::seal(RESOURCE, Epoch(2), Index(1), chain, Index(0), entries)))
    };
    says(&mut lab, Message::Attach);
    says(&mut lab, Message::Cut { to: Position::default(), chain: None });
    says(&mut lab, scrubs(Chain(0)));
    says(&mut lab, Message::Commit { commit: Index(3) });
    assert_eq!(in_reading(&lab), BTreeSet::from([0, 1]), "and one waits");
    let old = std::mem::take(&mut lab.world.reads);
    // It begins anew where it was before them, and other entries come to their numbers.
    let (at, volumes) = (Position { epoch: Epoch(2), index: Index(0) }, vec![bytes]);
    let (snapshots, client) = (Vec::new(), ClientMark::default());
    says(&mut lab, Message::CopyBegin { at, chain: Chain(7), volumes, snapshots, client });
    says(&mut lab, Message::CopyEnd { need: Index(0) });
    says(&mut lab, scrubs(Chain(7)));
    says(&mut lab, Message::Commit { commit: Index(3) });
    for read in old {
        let bytes = lab.world.blocks.get(read.area, read.offset, read.len);
        lab.answer(read, Ok(bytes));
    }
    lab.settle();
    assert_eq!(told(&lab), []);
    while !lab.world.reads.is_empty() {
        lab.answer_reads();
        lab.settle();
    }
    assert_eq!(told(&lab), [1, 2, 3].map(Index));
}

#[test]
fn a_read_error_of_a_scrub_ends_the_use_of_the_disk() {
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
