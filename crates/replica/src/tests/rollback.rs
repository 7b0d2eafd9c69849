//! Rolling back to a snapshot (R17): which replicas may be told of it, and what becomes of a
//! replica that does not hold the snapshot.

use super::lab::{A, B, C, Lab};
use crate::{Event, Op};
use mainstay_codec::EntryKind;
use mainstay_types::{NodeId, SnapshotId};

const S: SnapshotId = SnapshotId(1);
const BACK: Op = Op::Rollback { to: S, mark: SnapshotId(2) };

fn held(lab: &mut Lab, node: NodeId) {
    lab.event(node, Event::SnapshotsHeld([S].into()));
}

/// Three with a snapshot in their logs, whose files these nodes hold.
fn lab(holders: &[NodeId]) -> Lab {
    let mut lab = Lab::new(3, 40, 1);
    lab.run_ms(50);
    lab.write(A, 0, 0);
    let taken = lab.request(A, Op::Snapshot { id: S });
    lab.run_ms(50);
    assert!(lab.done(taken));
    for &node in holders {
        held(&mut lab, node);
    }
    lab
}

fn has_entry(lab: &Lab, node: NodeId) -> bool {
    let journal = &lab.nodes[&node].store.journal;
    journal.iter().any(|batch| batch.entries.iter().any(|entry| entry.kind == EntryKind::Rollback))
}

#[test]
fn a_rollback_is_committed_alone_after_every_earlier_entry() {
    let mut lab = lab(&[A, B, C]);
    let before = lab.write(A, 0, 1);
    let back = lab.request(A, BACK);
    let after = lab.write(A, 1, 0);
    lab.run_ms(100);
    assert!([before, back, after].iter().all(|id| lab.done(*id)));
    for node in [A, B, C] {
        let journal = &lab.nodes[&node].store.journal;
        let alone = |kind| kind == EntryKind::Rollback;
        let batch = journal.iter().find(|batch| batch.entries.iter().any(|entry| alone(entry.kind)));
        let batch = batch.expect("every replica has it");
        assert_eq!(batch.entries.len(), 1);
        assert!(batch.commit.0 == batch.first.0 - 1, "everything before it was committed");
    }
    assert_eq!(lab.iss(), [A, B, C]);
}

#[test]
fn a_primary_without_the_snapshot_does_not_begin() {
    for holders in [&[B, C][..], &[]] {
        let mut lab = lab(holders);
        lab.request(A, BACK);
        lab.run_ms(100);
        assert!(![A, B, C].iter().any(|node| has_entry(&lab, *node)));
    }
    // Nor does one whose log drops it before, or has the mark already.
    for first in [Op::DropSnapshot { id: S }, BACK] {
        let mut lab = lab(&[A, B, C]);
        lab.request(A, first.clone());
        lab.request(A, BACK);
        lab.run_ms(100);
        lab.request(A, BACK);
        lab.run_ms(100);
        let entries = lab.nodes[&A].store.journal.iter().flat_map(|batch| &batch.entries);
        let count = entries.filter(|entry| entry.kind == EntryKind::Rollback).count();
        assert_eq!(count, usize::from(matches!(first, Op::Rollback { .. })));
    }
}

#[test]
fn a_member_without_the_snapshot_leaves_and_is_copied_and_returns() {
    let mut lab = lab(&[A, C]);
    let back = lab.request(A, BACK);
    let after = lab.write(A, 0, 1);
    lab.run_ms(200);
    assert!(lab.done(back) && lab.done(after), "no write waits for it longer than for its removal");
    assert!(!has_entry(&lab, B) && has_entry(&lab, C));
    lab.settle();
    lab.run_ms(5000);
    lab.settle();
    assert_eq!(lab.iss(), [A, B, C]);
    assert!(!has_entry(&lab, B), "its log begins after the entry");
    assert!(lab.nodes[&B].store.commit >= lab.nodes[&C].store.commit);
    lab.assert_equal();
}
