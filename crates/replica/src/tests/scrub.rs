//! Scrubbing: which extents are compared, which replica is right, which blocks are written anew and
//! which are not.

use super::lab::{A, B, C, Lab, VOLUMES};
use super::store::VOLUME_BLOCKS;
use crate::{Event, Op, ScrubOrder};
use mainstay_codec::{Batch, EntryKind};
use mainstay_types::{
    BLOCK_BYTES, NodeId, Role, ScrubOutcome, ScrubRepair, ScrubState, SnapshotId, VolumeId,
};
use std::sync::Arc;

const EXTENTS: u64 = VOLUMES as u64;

pub(super) fn written(nodes: u32) -> Lab {
    let mut lab = Lab::new(nodes, 4, 1);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    for volume in 0..VOLUMES {
        for block in 0..VOLUME_BLOCKS {
            lab.write(A, volume, block);
            lab.run_ms(10);
        }
    }
    lab.run_ms(50);
    lab
}

pub(super) fn holds(lab: &Lab, node: NodeId, volume: u16, block: u64) -> u64 {
    lab.nodes[&node].store.block(VolumeId(volume), block)
}

#[test]
fn equal_replicas_compare_equal_under_concurrent_writes() {
    let mut lab = written(3);
    lab.scrub(A, true);
    let mut writes = Vec::new();
    while lab.report(A).state == ScrubState::Running {
        writes.push(lab.write(A, writes.len() as u16 % VOLUMES, 0));
        lab.run_ms(5);
        assert!(writes.len() < 5000, "{:?}", lab.report(A));
    }
    lab.settle();
    let report = lab.report(A);
    assert_eq!((report.state, report.extents, report.done), (ScrubState::Done, EXTENTS, EXTENTS));
    assert_eq!((report.different, report.uncompared), (0, 0));
    assert!([A, B, C].iter().all(|node| report.compared[node] == EXTENTS), "{:?}", report.compared);
    for write in &writes {
        assert!(lab.done(*write), "{:?}", lab.answers.get(write));
    }
    assert_eq!(lab.nodes[&A].replica.as_ref().and_then(crate::Replica::next_deadline), None, "idle");
}

/// Half of those that may be under way are begun together: one batch for all journals.
#[test]
fn extents_of_a_scrub_go_in_common_batches() {
    let mut lab = written(3);
    lab.copy_extents_max = 4;
    lab.crash(B);
    lab.start(B);
    lab.settle();
    lab.promote(B);
    lab.settle();
    lab.scrub(B, true);
    lab.settle();
    assert_eq!((lab.report(B).state, lab.report(B).done), (ScrubState::Done, EXTENTS));
    let scrubs = |batch: &Arc<Batch>| batch.entries.iter().filter(|e| e.kind == EntryKind::Scrub).count();
    let batches = lab.nodes[&C].store.batches().map(scrubs).filter(|scrubs| *scrubs > 0);
    assert_eq!(batches.collect::<Vec<_>>(), [4, 2]);
}

/// The entries of a scrub take longer while it reads. That harms no client.
#[test]
fn a_scrub_does_not_yield_to_itself() {
    let slowed = |lab: &Lab| lab.nodes[&A].replica.as_ref().is_some_and(crate::Replica::filling_slowed);
    for client in [false, true] {
        // With a rate that it may be slowed down to.
        let mut lab = Lab::new(3, 4, 4);
        lab.run_ms(1_000);
        lab.scrub(A, false);
        let mut yielded = false;
        while lab.report(A).state == ScrubState::Running {
            if client {
                lab.write(A, 0, 0);
            }
            lab.run_ms(1);
            yielded |= slowed(&lab);
        }
        assert_eq!((lab.report(A).done, yielded), (EXTENTS, client));
    }
}

#[test]
fn a_block_that_differs_on_one_of_three_is_found_and_written_anew() {
    for rotten in [A, B] {
        let mut lab = written(3);
        lab.rot(rotten, 2, 1);
        lab.rot(rotten, 4, 0);
        lab.rot(rotten, 4, 1);
        lab.scrub(A, false);
        lab.settle();
        let report = lab.report(A);
        assert_eq!((report.different, report.repaired, report.unrepaired()), (3, 0, 3));
        let found: Vec<_> = report.findings.iter().map(|f| (f.volume.0, f.block, f.blocks)).collect();
        assert_eq!(found, [(2, 1, 1), (4, 0, 2)]);
        assert!(report.findings.iter().all(|f| f.proven && f.groups[1] == [rotten]));
        lab.scrub(A, true);
        lab.settle();
        let report = lab.report(A);
        assert_eq!((report.different, report.repaired, report.unrepaired()), (3, 3, 0));
        assert!(report.findings.iter().all(|f| f.outcome == ScrubOutcome::Repaired), "{report:?}");
        lab.assert_equal();
        lab.scrub(A, true);
        lab.settle();
        assert_eq!(lab.report(A).different, 0, "and stays so");
    }
}

#[test]
fn of_two_the_primary_is_right_if_a_repair_is_asked_for() {
    let mut lab = written(2);
    lab.rot(B, 2, 1);
    lab.scrub(A, false);
    lab.settle();
    assert_eq!((lab.report(A).unrepaired(), lab.report(A).findings[0].right), (1, None));
    lab.scrub(A, true);
    lab.settle();
    let report = lab.report(A);
    assert_eq!((report.repaired, report.findings[0].proven), (1, false));
    lab.assert_equal();
}

/// A block that its own checksum shows to be damaged is not right, even on the primary.
#[test]
fn of_two_replicas_the_undamaged_one_is_right() {
    for rotten in [A, B] {
        let mut lab = written(2);
        lab.sums = true;
        let right = holds(&lab, A, 2, 1);
        lab.rot(rotten, 2, 1);
        for repair in [false, true] {
            lab.scrub(A, repair);
            lab.settle();
            let report = lab.report(A);
            let finding = &report.findings[0];
            assert_eq!((report.different, report.repaired), (1, u64::from(repair)));
            assert_eq!((&finding.damaged, finding.right, finding.proven), (&vec![rotten], Some(0), true));
        }
        assert_eq!((holds(&lab, A, 2, 1), holds(&lab, B, 2, 1)), (right, right));
    }
}

/// The right content was read. A client writes before it is written. No client may see the older
/// content again.
#[test]
fn a_repair_does_not_take_back_later_writes() {
    let mut lab = written(3);
    lab.rot(A, 2, 0);
    lab.rot(A, 2, 1);
    lab.repair_read_ms = 300;
    lab.scrub(A, true);
    while lab.report(A).findings.is_empty() {
        lab.run_ms(1);
    }
    lab.run_ms(50);
    let newer = lab.write(A, 2, 0);
    lab.run_ms(50);
    assert!(lab.done(newer));
    lab.settle();
    let report = lab.report(A);
    assert_eq!((report.different, report.repaired, report.overwritten), (2, 1, 1));
    for node in [A, B, C] {
        assert_eq!(holds(&lab, node, 2, 0), newer.0, "the repair is older");
    }
    lab.assert_equal();
}

#[test]
fn a_scrub_does_not_wait_for_an_absent_replica_and_does_not_count_it() {
    let mut lab = written(3);
    lab.rot(B, 2, 1);
    lab.isolate(C);
    lab.run_ms(3000);
    assert_eq!(lab.iss(), [A, B]);
    lab.scrub(A, true);
    lab.settle();
    let report = lab.report(A);
    assert_eq!((report.state, report.uncompared, report.repaired), (ScrubState::Done, 0, 1));
    assert_eq!(report.compared.get(&C), None);
    // Alone there is nothing to compare.
    lab.isolate(B);
    lab.run_ms(3000);
    lab.scrub(A, true);
    lab.settle();
    assert_eq!((lab.report(A).done, lab.report(A).uncompared), (EXTENTS, EXTENTS));
}

#[test]
fn a_scrub_ends_with_its_primary_or_when_it_is_stopped() {
    let mut lab = written(3);
    lab.nodes.get_mut(&B).expect("known").disk_ms = 200;
    lab.scrub(A, true);
    lab.run_ms(20);
    lab.demote(A);
    lab.settle();
    assert_eq!(lab.report(A).state, ScrubState::Interrupted);
    lab.promote(B);
    lab.settle();
    lab.event(A, Event::Scrub(Some(ScrubOrder::default())));
    lab.scrub(B, true);
    lab.run_ms(20);
    lab.event(B, Event::Scrub(None));
    assert_eq!(lab.report(B).state, ScrubState::Stopped);
    assert_eq!(lab.report(A).state, ScrubState::Interrupted, "it is no primary");
    lab.settle();
    lab.assert_equal();
}

/// Two blocks of each volume: with one volume in a second it takes as many seconds as there are
/// volumes, less the first.
#[test]
fn a_limit_is_kept_to() {
    let mut lab = written(3);
    lab.event(
        A,
        Event::Scrub(Some(ScrubOrder { repair: ScrubRepair::All, rate: VOLUME_BLOCKS * BLOCK_BYTES })),
    );
    lab.run_ms(3500);
    let done = lab.report(A).done;
    assert!((3..=5).contains(&done), "{done}");
    assert!(lab.report(A).left_ms.is_some_and(|left| left > 500), "{:?}", lab.report(A));
    lab.run_ms(4000);
    assert_eq!(lab.report(A).state, ScrubState::Done);
}

/// The right content was read. Before it is written, all of it is rolled back. The next scrub
/// judges the content after that.
#[test]
fn a_repair_does_not_take_back_a_rollback() {
    let mut lab = written(3);
    let (to, mark) = (SnapshotId(1), SnapshotId(2));
    lab.request(A, Op::Snapshot { id: to });
    lab.run_ms(50);
    for node in [A, B, C] {
        lab.event(node, Event::SnapshotsHeld([to].into()));
    }
    lab.rot(A, 2, 0);
    lab.rot(A, 2, 1);
    lab.repair_read_ms = 300;
    lab.scrub(A, true);
    while lab.report(A).findings.is_empty() {
        lab.run_ms(1);
    }
    let back = lab.request(A, Op::Rollback { to, mark });
    lab.run_ms(50);
    assert!(lab.done(back));
    lab.settle();
    let report = lab.report(A);
    assert_eq!((report.different, report.repaired, report.overwritten), (2, 0, 2));
    assert_eq!(report.state, ScrubState::Done);
}

/// The replica with the right content is away for a moment when it is asked; still, no damage is
/// left (seed 802860).
#[test]
fn a_repair_waits_for_the_replica_with_the_content_to_come_back() {
    for away_ms in [1, 50, 500] {
        let mut lab = written(2);
        lab.sums = true;
        let right = holds(&lab, B, 2, 1);
        lab.rot(A, 2, 0);
        lab.rot(A, 2, 1);
        lab.repair_read_ms = 300;
        lab.scrub(A, true);
        while lab.report(A).findings.is_empty() {
            lab.run_ms(1);
        }
        lab.cut(A, B);
        lab.run_ms(away_ms);
        lab.heal();
        let newer = lab.write(A, 2, 0);
        lab.run_ms(15_000);
        assert!(lab.done(newer));
        let report = lab.report(A);
        assert_eq!((report.state, report.different), (ScrubState::Done, 2), "{report:?}");
        assert_eq!((report.repaired, report.overwritten), (1, 1), "away for {away_ms} ms: {report:?}");
        assert_eq!((holds(&lab, A, 2, 0), holds(&lab, A, 2, 1)), (newer.0, right));
        lab.assert_equal();
        assert_eq!(lab.nodes[&A].replica.as_ref().and_then(crate::Replica::next_deadline), None, "idle");
    }
}

#[test]
fn a_repair_does_not_wait_for_ever_for_the_replica_with_the_content() {
    let mut lab = written(3);
    lab.sums = true;
    lab.rot(A, 2, 1);
    lab.rot(C, 2, 1);
    lab.repair_read_ms = 300;
    lab.scrub(A, true);
    while lab.report(A).findings.is_empty() {
        lab.run_ms(1);
    }
    lab.isolate(B);
    lab.run_ms(5_000);
    assert_eq!(lab.report(A).state, ScrubState::Running, "it may come back");
    lab.run_ms(10_000);
    let report = lab.report(A);
    assert_eq!((report.state, report.unrepaired()), (ScrubState::Done, 1));
    assert_eq!(report.findings[0].outcome, ScrubOutcome::Failed);
}

#[test]
fn only_proven_differences_are_repaired_if_no_more_is_asked_for() {
    let proven = Event::Scrub(Some(ScrubOrder { repair: ScrubRepair::Proven, rate: 0 }));
    for (nodes, repaired) in [(2, 0), (3, 1)] {
        let mut lab = written(nodes);
        lab.rot(B, 2, 1);
        lab.event(A, proven.clone());
        lab.settle();
        let report = lab.report(A);
        assert_eq!((report.different, report.repaired), (1, repaired), "of {nodes} replicas");
    }
}

#[test]
fn scrubs_are_numbered() {
    let mut lab = written(2);
    for ordinal in 1..3 {
        lab.scrub(A, false);
        lab.settle();
        let report = lab.report(A);
        let epoch = lab.nodes[&A].replica.as_ref().map(crate::Replica::epoch);
        assert_eq!((Some(report.epoch), report.ordinal), (epoch, ordinal));
    }
}
