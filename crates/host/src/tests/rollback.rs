//! Reads while volumes are rolled back to a snapshot.

use super::lab::{Lab, THERE, filled, lazy, range, record};
use crate::AnswerError;
use crate::reads::Purpose;
use mainstay_replica::RequestError;
use mainstay_store::{Output, Tuning};
use mainstay_types::{Role, SnapshotId, SnapshotState};

const S: SnapshotId = SnapshotId(1);
const MARK: SnapshotId = SnapshotId(2);

/// A primary whose volumes are about to be cloned.
fn rolling() -> Lab {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    keep(&mut lab);
    roll(&mut lab);
    lab
}

fn keep(lab: &mut Lab) {
    lab.settle();
    lab.host.snapshots(lab.world.now, &[S].into(), None, None);
    lab.settle();
    assert!(lab.host.store().snapshots().any(|(id, known)| id == S && known.state == SnapshotState::Held));
}

fn roll(lab: &mut Lab) {
    lab.host.snapshots(lab.world.now, &[S].into(), Some(MARK), Some(S));
    lab.host.pump(&mut lab.world);
    while !matches!(lab.world.operations.front(), Some(Output::SnapshotRestore { .. })) {
        assert!(lab.step(), "it is never done");
    }
}

/// A primary whose blocks have sums, with twos in a volume and ones in its snapshot.
fn summed() -> Lab {
    let mut lab = Lab::summed(Tuning { destage_start_bytes: 0, ..lazy() });
    let fill = |lab: &mut Lab, fill| {
        for block in 0..2 {
            lab.write(block, fill);
        }
        lab.settle();
    };
    fill(&mut lab, 1);
    keep(&mut lab);
    fill(&mut lab, 2);
    lab
}

/// A read that has begun before may get what was there, what is to be there, or both; neither is
/// damage.
#[test]
fn a_read_that_a_rollback_overtakes_begins_anew() {
    for early in [true, false] {
        let mut lab = summed();
        let read = lab.read(0, 2);
        let under_way: Vec<_> = lab.world.reads.drain(..).collect();
        assert!(!under_way.is_empty());
        roll(&mut lab);
        if !early {
            lab.settle();
        }
        for read in under_way {
            let sums = lab.world.blocks.get(read.area, read.offset, read.len);
            let half = filled(&[1, 2]).into();
            lab.answer(read, Ok(if read.len == 2 * mainstay_types::BLOCK_BYTES { half } else { sums }));
        }
        assert!(!lab.is_answered(read));
        assert_eq!(lab.host.waiting.len(), usize::from(early));
        lab.settle();
        lab.answer_reads();
        assert_eq!((lab.content(read), lab.failures()), (filled(&[1, 1]), 0));
    }
}

/// Blocks for a copy or a repair of another replica are no mixture of both contents either.
#[test]
fn blocks_for_a_repair_wait_too() {
    let mut lab = summed();
    roll(&mut lab);
    lab.host.start_read(&mut lab.world, Purpose::Blocks, range(0, 2));
    assert!(lab.world.reads.is_empty() && lab.host.waiting.len() == 1);
    lab.settle();
    assert!(!lab.world.reads.is_empty() && lab.host.waiting.is_empty());
    lab.answer_reads();
    assert_eq!(lab.failures(), 0);
}

#[test]
fn a_read_waits_until_the_volumes_are_rolled_back() {
    let mut lab = rolling();
    let read = lab.read(0, 1);
    let write = lab.write(3, 7);
    assert!(!lab.is_answered(read) && lab.world.reads.is_empty(), "the volume is half of both");
    lab.settle();
    assert!(lab.is_answered(write));
    lab.answer_reads();
    assert!(lab.is_answered(read));
    assert!(lab.host.waiting.is_empty());
}

#[test]
fn a_read_that_waits_is_refused_when_another_becomes_primary() {
    let mut lab = rolling();
    let read = lab.read(0, 1);
    lab.host.record(lab.world.now, record(2, 2, THERE.node));
    lab.host.pump(&mut lab.world);
    assert_eq!(lab.host.role(), Role::Secondary);
    assert_eq!(lab.error(read), AnswerError::Request(RequestError::NotPrimary));
}

/// A rollback that is asked for again and again is done once. The mark is kept for as long as it is
/// wanted.
#[test]
fn a_rollback_asked_for_repeatedly_is_done_once() {
    let mut lab = rolling();
    for _ in 0..3 {
        lab.host.snapshots(lab.world.now, &[S].into(), Some(MARK), Some(S));
        lab.settle();
    }
    let known = |lab: &Lab| lab.host.store().snapshots().map(|(id, _)| id).collect::<Vec<_>>();
    let end = lab.host.store().log_state().end;
    lab.host.snapshots(lab.world.now, &[S].into(), Some(MARK), None);
    lab.settle();
    assert_eq!((known(&lab), lab.host.store().log_state().end), (vec![S, MARK], end));
    lab.host.snapshots(lab.world.now, &[S].into(), None, None);
    lab.settle();
    assert_eq!(known(&lab), [S]);
}
