//! Mode B: acknowledgements from memory, requests that wait for journals, and members that the
//! record lets be promoted. One story per edge of the states in `mode_b.rs`.

use super::lab::{A, B, C, Lab, whole};
use crate::{Event, Op, RequestId};
use mainstay_types::{BLOCK_BYTES, Mode, NodeId, Role, SnapshotId, VolumeId};

/// Longer than any message takes, shorter than a slow journal.
const SOON_MS: u64 = 15;
const SLOW_DISK_MS: u64 = 200;

fn set_mode(lab: &mut Lab, mode: Mode) {
    lab.record.version = lab.record.version.next();
    lab.record.policy.mode = mode.into();
    lab.publish();
    lab.run_ms(60);
}

/// Three in mode B whose memory counts, with slow journals.
fn lab() -> Lab {
    let mut lab = Lab::new(3, 40, 1);
    lab.run_ms(50);
    set_mode(&mut lab, Mode::B);
    lab.run_ms(200);
    assert_eq!(counted(&lab), [A, B, C]);
    slow_disks(&mut lab, SLOW_DISK_MS);
    lab
}

fn slow_disks(lab: &mut Lab, ms: u64) {
    for node in lab.nodes.values_mut() {
        node.disk_ms = ms;
    }
}

fn counted(lab: &Lab) -> Vec<NodeId> {
    lab.record.instances.keys().copied().collect()
}

fn flush(lab: &mut Lab) -> RequestId {
    lab.request(A, Op::Flush)
}

#[test]
fn a_write_is_acknowledged_from_memory_and_a_flush_waits_for_the_journals() {
    let mut lab = lab();
    let write = lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    let status = lab.status(A);
    assert!(lab.done(write) && status.commit < status.answered, "{status:?}");
    let flush = flush(&mut lab);
    lab.run_ms(SOON_MS);
    assert!(!lab.done(flush), "no journal has it");
    lab.run_ms(2 * SLOW_DISK_MS);
    assert!(lab.done(flush));
    lab.settle();
    lab.assert_equal();
    assert_eq!(lab.nodes[&A].replica.as_ref().and_then(crate::Replica::next_deadline), None, "idle");
}

#[test]
fn a_snapshot_and_a_size_are_told_when_they_cannot_be_lost() {
    let mut lab = lab();
    let write = lab.write(A, 0, 0);
    let snapshot = lab.request(A, Op::Snapshot { id: SnapshotId(7) });
    let grown = lab.request(A, Op::Resize { volume: VolumeId(0), bytes: 64 * BLOCK_BYTES });
    lab.run_ms(SOON_MS);
    assert!(lab.done(write) && lab.status(A).answered.0 > 2, "{:?}", lab.status(A));
    assert!(!lab.done(snapshot) && !lab.done(grown), "no journal has it");
    let after = lab.write(A, 1, 0);
    lab.run_ms(SOON_MS);
    assert!(lab.done(after), "what comes after them does not wait for journals");
    lab.run_ms(3 * SLOW_DISK_MS);
    assert!(lab.done(snapshot) && lab.done(grown));
    lab.settle();
}

#[test]
fn writes_follow_each_other_without_waiting_for_a_journal() {
    let mut lab = lab();
    for n in 0..4 {
        let write = lab.write(A, n, 0);
        lab.run_ms(SOON_MS);
        assert!(lab.done(write), "{n}");
    }
    assert_eq!(lab.from_memory, 4);
    lab.settle();
    lab.assert_equal();
}

#[test]
fn the_acknowledged_uncommitted_bytes_are_bounded() {
    let mut lab = lab();
    // The window of the lab is ten blocks; each of these counts for two.
    let writes: Vec<RequestId> = (0..9u16)
        .map(|n| {
            let id = lab.write(A, n % 6, u64::from(n / 6));
            lab.run_ms(SOON_MS);
            id
        })
        .collect();
    assert!(lab.done(writes[4]) && !lab.done(writes[8]));
    lab.settle();
    assert!(writes.iter().all(|id| lab.done(*id)));
    lab.assert_equal();
}

#[test]
fn a_read_waits_for_an_acknowledged_write_that_can_still_be_lost() {
    let mut lab = lab();
    lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    let (read, other) = (lab.read(A, 0), lab.read(A, 1));
    lab.run_ms(SOON_MS);
    assert!(!lab.answers.contains_key(&read) && lab.answers.contains_key(&other));
    lab.settle();
    assert!(lab.answers.contains_key(&read));
}

#[test]
fn nothing_is_acknowledged_from_memory_for_users_that_do_not_flush() {
    let mut lab = Lab::new(2, 40, 1);
    lab.run_ms(50);
    lab.event(A, Event::Cached(false));
    set_mode(&mut lab, Mode::B);
    slow_disks(&mut lab, SLOW_DISK_MS);
    let write = lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    assert!(!lab.done(write) && counted(&lab).is_empty());
    lab.settle();
    assert!(lab.done(write));
}

#[test]
fn memory_counts_from_when_the_record_says_in_which_opening() {
    let mut lab = Lab::new(2, 40, 1);
    lab.run_ms(50);
    lab.hold_proposals = true;
    set_mode(&mut lab, Mode::B);
    slow_disks(&mut lab, SLOW_DISK_MS);
    let write = lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    assert!(!lab.done(write));
    lab.settle();
    assert!(lab.done(write) && counted(&lab).is_empty());
    lab.hold_proposals = false;
    lab.let_go();
    lab.settle();
    assert_eq!(counted(&lab), [A, B]);
}

/// The promise of mode C holds when no instance is recorded any more, and not before.
#[test]
fn from_b_to_c_the_instances_stay_until_everything_is_durable() {
    let mut lab = lab();
    let before = lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    assert!(lab.done(before));
    set_mode(&mut lab, Mode::C);
    let after = lab.write(A, 1, 0);
    lab.run_ms(SOON_MS);
    assert!(!lab.done(after), "it waits for journals");
    assert_eq!(counted(&lab), [A, B, C]);
    lab.run_ms(4 * SLOW_DISK_MS);
    assert!(lab.done(after) && counted(&lab).is_empty(), "{:?}", lab.record);
    lab.settle();
    lab.assert_equal();
}

/// R5: a member that lost its memory does not lead, whatever the record says. It counts again when
/// its journal has everything.
#[test]
fn a_member_that_was_opened_anew_is_not_promoted_until_it_is_proven() {
    let mut lab = lab();
    let known = lab.record.instances[&B];
    lab.aside.insert(B);
    lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    lab.crash(B);
    lab.start(B);
    lab.aside.clear();
    lab.crash(A);
    lab.promote(B);
    lab.run_ms(50);
    assert_eq!(lab.role(B), Role::Fenced, "{:?}", lab.record);
    assert!(lab.nodes[&B].replica.as_ref().is_some_and(|replica| replica.reopened().is_some()));
    // C has everything. The entries that B had are on their way back to it.
    lab.promote_beside(C);
    lab.settle();
    assert_eq!(lab.role(C), Role::Primary);
    assert!(lab.record.instances.contains_key(&B) && lab.record.instances[&B] != known, "{:?}", lab.record);
    lab.start(A);
    lab.settle();
    let read = lab.request(C, Op::Read { range: whole(0) });
    lab.settle();
    assert!(lab.answers.contains_key(&read));
    lab.assert_equal();
}

#[test]
fn a_primary_that_hands_over_leaves_nothing_in_memory() {
    let mut lab = lab();
    lab.write(A, 0, 0);
    lab.run_ms(SOON_MS);
    lab.demote(A);
    lab.run_ms(SOON_MS);
    assert!(!lab.demoted.contains(&A), "it is acknowledged and not committed");
    lab.run_ms(3 * SLOW_DISK_MS);
    assert!(lab.demoted.contains(&A));
}
