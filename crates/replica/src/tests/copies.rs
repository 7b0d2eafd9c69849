//! How many copies there have to be: one story per edge of the states in `copies.rs`.

use super::lab::{A, B, C, Lab, LabAnswer};
use crate::{Event, Mended, Op, RequestError};
use mainstay_types::{Extent, MinCopies, Mode, NodeId, Role, SlowLimits, SnapshotId, VolumeId};

/// Longer than any story.
const LONG_MS: u64 = 60_000;

fn lab(nodes: u32, copies: u32, suspend_ms: u64) -> Lab {
    let mut lab = Lab::new(nodes, 40, 1);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    want(&mut lab, copies, suspend_ms);
    lab
}

/// Sets the copies that are wanted, as the control plane does it.
fn want(lab: &mut Lab, copies: u32, suspend_ms: u64) {
    lab.record.version = lab.record.version.next();
    lab.record.policy.min_copies = MinCopies { copies, suspend_ms };
    lab.publish();
    lab.run_ms(20);
}

/// The control plane takes a dead primary out and names another.
fn take_over(lab: &mut Lab, dead: NodeId, node: NodeId) {
    lab.record.iss.retain(|member| member.node != dead);
    lab.promote(node);
    lab.run_ms(500);
}

fn failed(lab: &Lab, id: crate::RequestId) -> bool {
    matches!(lab.answers.get(&id), Some(LabAnswer::Failed(RequestError::Copies)))
}

#[test]
fn no_write_is_acknowledged_by_fewer_copies_than_wanted() {
    let mut lab = lab(3, 2, LONG_MS);
    lab.cut(A, B);
    lab.cut(A, C);
    let id = lab.write(A, 0, 0);
    lab.run_ms(5000);
    assert!(!lab.answers.contains_key(&id), "it waits");
    assert_eq!(lab.iss().len(), 2, "one has left, and the retained member lacks no acknowledged write");
    let waiting = lab.status(A).waiting_for.join("; ");
    assert!(
        waiting.contains("2 copies are wanted (min-copies) and one is in sync; writes wait"),
        "{waiting}"
    );
    lab.heal();
    lab.settle();
    assert!(lab.done(id));
    assert_eq!((lab.iss().len(), lab.status(A).waiting_for.len()), (3, 0));
    lab.assert_equal();
}

#[test]
fn a_silent_member_is_retained_and_may_take_over() {
    let mut lab = lab(2, 2, LONG_MS);
    let before = lab.write(A, 0, 0);
    lab.run_ms(50);
    lab.cut(A, B);
    let during = lab.write(A, 0, 1);
    lab.run_ms(5000);
    assert_eq!(lab.iss(), [A, B]);
    assert!(lab.done(before) && !lab.done(during));
    lab.crash(A);
    lab.heal();
    take_over(&mut lab, A, B);
    assert_eq!(lab.serving(), Some(B), "a promotion does not wait for absent members");
    let alone = lab.write(B, 1, 0);
    lab.run_ms(2000);
    assert!(!lab.answers.contains_key(&alone), "committed here, and by too few");
    lab.start(A);
    lab.settle();
    assert!(lab.done(alone));
    lab.assert_equal();
}

/// Only a primary that serves can take others in.
#[test]
fn a_promotion_does_not_wait_for_absent_retained_members() {
    let mut lab = lab(3, 3, LONG_MS);
    lab.crash(C);
    lab.run_ms(2000);
    assert_eq!(lab.iss(), [A, B, C]);
    lab.crash(A);
    take_over(&mut lab, A, B);
    lab.run_ms(2000);
    assert_eq!(lab.serving(), Some(B));
    lab.start(A);
    lab.start(C);
    lab.settle();
    assert_eq!(lab.iss(), [A, B, C]);
    lab.assert_equal();
}

#[test]
fn requests_fail_in_the_end_and_go_on_when_there_are_enough() {
    let mut lab = lab(2, 2, 2000);
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(1500);
    let read = lab.read(A, 0);
    assert!(!lab.answers.contains_key(&id) && !lab.answers.contains_key(&read), "they wait");
    lab.run_ms(2500);
    assert!(failed(&lab, id) && failed(&lab, read), "for two seconds");
    let (late, other, unacknowledged) = (lab.write(A, 0, 1), lab.read(A, 1), lab.read(A, 0));
    lab.run_ms(5);
    assert!(failed(&lab, late), "at once from then on");
    assert!(
        matches!(lab.answers.get(&other), Some(LabAnswer::Content(_))),
        "what is acknowledged can be read"
    );
    assert!(failed(&lab, unacknowledged), "and what is not cannot");
    assert_eq!(lab.status(A).requests, 0, "nothing is held");
    lab.heal();
    lab.run_ms(1000);
    let (read, write) = (lab.read(A, 0), lab.write(A, 0, 1));
    lab.settle();
    assert!(lab.done(write) && matches!(lab.answers.get(&read), Some(LabAnswer::Content(_))));
    lab.assert_equal();
}

/// Snapshots and rollbacks acknowledge no write of a client. A rollback that was asked for later
/// does not come before a snapshot.
#[test]
fn snapshots_and_rollbacks_are_not_refused_and_keep_their_order() {
    let mut lab = lab(2, 2, 2000);
    let taken = lab.request(A, Op::Snapshot { id: SnapshotId(1) });
    lab.run_ms(50);
    assert!(lab.done(taken));
    for node in [A, B] {
        lab.event(node, Event::SnapshotsHeld([SnapshotId(1)].into()));
    }
    // A replica with a new disk leaves, so that a snapshot or a rollback can be committed without
    // it.
    lab.cut(A, B);
    lab.replace_disk(B);
    lab.run_ms(5000);
    let write = lab.write(A, 0, 0);
    lab.run_ms(5);
    assert!(failed(&lab, write), "clients' requests are refused");
    let next = lab.request(A, Op::Snapshot { id: SnapshotId(2) });
    lab.run_ms(50);
    let back = lab.request(A, Op::Rollback { to: SnapshotId(1), mark: SnapshotId(3) });
    lab.run_ms(50);
    assert!(lab.done(next) && lab.done(back));
    let dropped = lab.request(A, Op::DropSnapshot { id: SnapshotId(2) });
    lab.run_ms(50);
    assert!(lab.done(dropped));
}

#[test]
fn without_time_to_wait_requests_fail_when_a_copy_is_missing() {
    let mut lab = lab(2, 2, 0);
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(1200);
    assert!(failed(&lab, id));
}

#[test]
fn a_member_with_a_new_disk_leaves_and_writes_wait_for_its_copy() {
    let mut lab = lab(2, 2, LONG_MS);
    lab.write(A, 0, 0);
    lab.run_ms(50);
    lab.cut(A, B);
    lab.replace_disk(B);
    let id = lab.write(A, 0, 1);
    lab.run_ms(2000);
    assert_eq!(lab.iss(), [A]);
    let status = lab.status(A);
    assert_eq!(status.commit, status.end.index, "committed");
    let read = lab.read(A, 0);
    lab.run_ms(50);
    assert!(!lab.answers.contains_key(&id) && !lab.answers.contains_key(&read), "and told to no client");
    lab.heal();
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    assert!(lab.done(id) && matches!(lab.answers.get(&read), Some(LabAnswer::Content(_))));
    lab.assert_equal();
}

#[test]
fn the_wanted_copies_are_changed_while_requests_wait() {
    let mut lab = lab(2, 1, LONG_MS);
    lab.cut(A, B);
    let alone = lab.write(A, 0, 0);
    lab.run_ms(3000);
    assert!(lab.done(alone), "one copy is enough");
    want(&mut lab, 2, LONG_MS);
    let id = lab.write(A, 0, 1);
    lab.run_ms(3000);
    assert!(!lab.answers.contains_key(&id));
    want(&mut lab, 1, LONG_MS);
    assert!(lab.done(id));
}

#[test]
fn a_demotion_does_not_wait_for_copies() {
    for recorded in [true, false] {
        let mut lab = lab(2, 2, LONG_MS);
        lab.cut(A, B);
        if !recorded {
            lab.replace_disk(B);
        }
        let id = lab.write(A, 0, 0);
        lab.run_ms(3000);
        lab.demote(A);
        lab.run_ms(3000);
        assert!(lab.demoted.contains(&A), "recorded: {recorded}");
        assert!(matches!(lab.answers.get(&id), Some(LabAnswer::Failed(_))), "recorded: {recorded}");
    }
}

#[test]
fn in_mode_b_memory_does_not_count_for_more() {
    let mut lab = lab(2, 2, LONG_MS);
    lab.record.version = lab.record.version.next();
    lab.record.policy.mode = Mode::B.into();
    lab.publish();
    lab.event(A, crate::Event::Cached(true));
    lab.run_ms(500);
    let quick = lab.write(A, 0, 0);
    lab.run_ms(50);
    assert!(lab.done(quick) && lab.from_memory > 0);
    lab.cut(A, B);
    lab.replace_disk(B);
    let id = lab.write(A, 0, 1);
    lab.run_ms(3000);
    assert_eq!(lab.iss(), [A]);
    assert!(!lab.answers.contains_key(&id));
    lab.heal();
    lab.settle();
    assert!(lab.done(id));
}

#[test]
fn as_many_members_as_wanted_copies_stay_however_slow() {
    let slow = SlowLimits {
        ack_ms: 10,
        factor: 2,
        for_ms: 100,
        min_copies: 1,
        quiet_ms: 1500,
        ..SlowLimits::default()
    };
    for (copies, left) in [(1, 2), (3, 3)] {
        let mut lab = Lab::with_slow(3, 40, 1, slow);
        lab.run_ms(50);
        want(&mut lab, copies, LONG_MS);
        lab.nodes.get_mut(&C).expect("known").disk_ms = 60;
        for block in 0..40 {
            lab.write(A, 0, block % 4);
            lab.run_ms(25);
        }
        assert_eq!(lab.iss().len(), left, "with {copies} wanted");
    }
}

/// A repair could not be committed. In the first round B is lost before the mend begins; in the
/// second, when B is about to answer.
#[test]
fn a_mend_without_enough_copies_ends_as_writes_do() {
    for begun in [false, true] {
        let mut lab = lab(2, 2, 2000);
        lab.sums = true;
        lab.write(A, 1, 1);
        lab.settle();
        lab.rot(A, 1, 1);
        if begun {
            lab.scrub_ms.insert(B, 500);
            lab.mend(A, 1);
            lab.run_ms(100);
        }
        lab.cut(A, B);
        if !begun {
            lab.run_ms(1000);
            lab.mend(A, 1);
        }
        lab.run_ms(1000);
        assert_eq!(lab.mended, [], "it waits as writes do");
        lab.run_ms(3000);
        assert_eq!(lab.mended, [(A, VolumeId(1), Extent(0), Mended::NotNow)], "begun: {begun}");
        lab.mend(A, 1);
        assert_eq!(lab.mended.len(), 2, "at once from then on");
        assert_eq!(lab.role(A), Role::Primary, "it costs no replica");
        lab.heal();
        lab.settle();
        lab.mend(A, 1);
        lab.settle();
        assert_eq!(lab.mended[2..], [(A, VolumeId(1), Extent(0), Mended::Again)]);
        lab.assert_equal();
    }
}
