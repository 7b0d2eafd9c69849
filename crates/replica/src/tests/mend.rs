//! Mending in passing: content that a read has found damaged comes from another replica. If no
//! replica has it, the read is told.

use super::lab::{A, B, C, Lab};
use super::modes::set_mode;
use super::scrub::{holds, written};
use crate::{Event, Mended, Replica};
use mainstay_types::{BLOCK_BYTES, Extent, Mode, NodeId, PeerState, Role, VolumeId};

const VOLUME: u16 = 2;

fn with_sums(nodes: u32) -> Lab {
    let mut lab = written(nodes);
    lab.sums = true;
    lab
}

fn told(node: NodeId, mended: Mended) -> (NodeId, VolumeId, Extent, Mended) {
    (node, VolumeId(VOLUME), Extent(0), mended)
}

/// One undamaged replica is right where the other knows its damage. A damaged block beside the one
/// that was read is mended too.
#[test]
fn a_damaged_block_is_written_anew_from_another_replica_before_it_is_read() {
    for nodes in [2, 3] {
        let mut lab = with_sums(nodes);
        let right = holds(&lab, A, VOLUME, 1);
        lab.rot(A, VOLUME, 1);
        // This block was not asked for, and is damaged too: it is learnt by the way.
        lab.rot(B, VOLUME, 0);
        lab.mend(A, VOLUME);
        while lab.mended.is_empty() {
            lab.run_ms(1);
        }
        assert_eq!(lab.mended, [told(A, Mended::Again)]);
        assert_eq!(holds(&lab, A, VOLUME, 1), right, "already when it is told");
        lab.settle();
        lab.assert_equal();
        let replica = lab.nodes[&A].replica.as_ref().expect("up");
        assert_eq!(replica.scrub_totals().mended, 2);
        assert_eq!((replica.scrub_totals().repaired, replica.scrub_report()), (0, None), "it was no scrub");
        assert_eq!(replica.next_deadline(), None, "idle");
    }
}

#[test]
fn undamaged_blocks_are_read_again_and_other_differences_left_to_a_scrub() {
    let mut lab = with_sums(3);
    lab.mend(A, VOLUME);
    lab.settle();
    assert_eq!(lab.mended, [told(A, Mended::Again)]);
    // Without checksums no replica knows that this is damage.
    lab.sums = false;
    lab.rot(B, VOLUME, 1);
    lab.mend(A, VOLUME);
    lab.settle();
    assert_eq!(lab.mended.len(), 2);
    assert_ne!(holds(&lab, B, VOLUME, 1), holds(&lab, A, VOLUME, 1));
    lab.scrub(A, true);
    lab.settle();
    lab.assert_equal();
}

#[test]
fn a_block_that_no_replica_has_is_an_error_and_costs_no_replica() {
    for nodes in [1, 2, 3] {
        let mut lab = with_sums(nodes);
        for node in 1..=nodes {
            lab.rot(NodeId(node), VOLUME, 1);
        }
        lab.mend(A, VOLUME);
        lab.settle();
        assert_eq!(lab.mended, [told(A, Mended::Nowhere)]);
        assert_eq!((lab.role(A), lab.iss().len()), (Role::Primary, nodes as usize));
        // A client may write it anew, and that is all that helps.
        let write = lab.write(A, VOLUME, 1);
        lab.settle();
        assert!(lab.done(write));
        lab.mend(A, VOLUME);
        lab.settle();
        assert_eq!(lab.mended[1], told(A, Mended::Again));
        lab.assert_equal();
    }
}

#[test]
fn a_silent_member_may_have_the_damaged_block() {
    let mut lab = with_sums(3);
    lab.rot(A, VOLUME, 1);
    lab.rot(B, VOLUME, 1);
    lab.scrub_ms.insert(C, 30_000);
    lab.mend(A, VOLUME);
    lab.run_ms(60_000);
    assert_eq!(lab.mended, [told(A, Mended::Unknown)]);
    // It speaks again, and had it.
    lab.scrub_ms.clear();
    lab.mend(A, VOLUME);
    lab.settle();
    assert_eq!(lab.mended[1], told(A, Mended::Again));
    lab.assert_equal();
}

/// The connection to the only replica that has the content is lost after it was asked. Seed 786034.
#[test]
fn a_replica_away_for_a_moment_is_asked_again() {
    let mut lab = with_sums(2);
    let right = holds(&lab, A, VOLUME, 1);
    lab.rot(A, VOLUME, 1);
    lab.repair_read_ms = 400;
    lab.mend(A, VOLUME);
    lab.run_ms(390);
    lab.cut(A, B);
    lab.run_ms(20);
    assert!(lab.mended.is_empty(), "{:?}", lab.mended);
    lab.heal();
    lab.settle();
    assert_eq!((lab.mended.clone(), lab.iss()), (vec![told(A, Mended::Again)], vec![A, B]));
    assert_eq!(holds(&lab, A, VOLUME, 1), right);
}

/// Two replicas in mode A, where commits wait for the primary alone. A block of the primary is
/// damaged. Returns its right content.
fn in_mode_a() -> (Lab, u64) {
    let mut lab = with_sums(2);
    set_mode(&mut lab, Mode::A);
    lab.settle();
    assert_eq!(lab.iss(), [A]);
    let right = holds(&lab, A, VOLUME, 1);
    lab.rot(A, VOLUME, 1);
    (lab, right)
}

/// The connection to the follower is lost after it was asked for its sums, or for the content. Seed
/// 901281.
#[test]
fn a_follower_that_is_away_for_a_moment_is_waited_for() {
    for (at_ms, away_ms) in (0..60).step_by(5).flat_map(|at| [(at, 1), (at, 5_000)]) {
        let (mut lab, right) = in_mode_a();
        lab.repair_read_ms = 30;
        lab.mend(A, VOLUME);
        lab.run_ms(at_ms);
        lab.cut(A, B);
        lab.run_ms(away_ms);
        lab.heal();
        lab.settle();
        assert_eq!(lab.mended, [told(A, Mended::Again)], "cut off after {at_ms} ms for {away_ms} ms");
        assert_eq!(holds(&lab, A, VOLUME, 1), right);
        assert_eq!(lab.nodes[&A].replica.as_ref().and_then(Replica::next_deadline), None, "idle");
    }
}

#[test]
fn a_follower_is_asked_though_it_lags() {
    for after_ms in 0..30 {
        let (mut lab, right) = in_mode_a();
        lab.cut(A, B);
        for _ in 0..4 {
            lab.write(A, 0, 0);
            lab.run_ms(10);
        }
        lab.run_ms(30_000);
        lab.heal();
        lab.run_ms(after_ms);
        if lab.status(A).peers[0].state != PeerState::Disconnected {
            lab.mend(A, VOLUME);
            lab.settle();
            assert_eq!(lab.mended, [told(A, Mended::Again)], "{after_ms} ms after it was connected again");
            assert_eq!(holds(&lab, A, VOLUME, 1), right);
        }
    }
}

/// The read fails in bounded time (R20), and no replica fails for it.
#[test]
fn a_follower_that_stays_away_is_not_waited_for_long() {
    for at_ms in [0, 5, 15, 25] {
        let (mut lab, right) = in_mode_a();
        lab.repair_read_ms = 30;
        lab.mend(A, VOLUME);
        lab.run_ms(at_ms);
        lab.cut(A, B);
        lab.run_ms(9_000);
        assert!(lab.mended.is_empty(), "cut off after {at_ms} ms: it may come back");
        lab.run_ms(1_500);
        assert_eq!(lab.mended, [told(A, Mended::Nowhere)]);
        // Now it has been away for long.
        lab.mend(A, VOLUME);
        lab.run_ms(100);
        assert_eq!(lab.mended[1..], [told(A, Mended::Nowhere)]);
        assert_eq!(lab.role(A), Role::Primary);
        lab.heal();
        lab.settle();
        lab.mend(A, VOLUME);
        lab.settle();
        assert_eq!(lab.mended[2..], [told(A, Mended::Again)]);
        assert_eq!(holds(&lab, A, VOLUME, 1), right);
    }
}

/// B says that it has the block, and does not give it. In mode A no commit waits for B, so A does
/// not fail for a block that B may have.
#[test]
fn a_withheld_block_costs_the_primary_only_if_commits_wait_for_its_holder() {
    for (mode, end) in [(Mode::A, Mended::Nowhere), (Mode::C, Mended::Unknown)] {
        let mut lab = with_sums(2);
        set_mode(&mut lab, mode);
        lab.settle();
        lab.rot(A, VOLUME, 1);
        lab.repair_read_ms = 120_000;
        lab.mend(A, VOLUME);
        lab.run_ms(60_000);
        assert_eq!(lab.mended, [told(A, end)], "{mode:?}");
    }
}

/// A journal at rest may have little room for ever: no client writes, so nothing is destaged. Seed
/// 1901.
#[test]
fn little_room_in_the_journal_holds_up_no_read() {
    let mut lab = with_sums(2);
    lab.rot(A, VOLUME, 1);
    let bytes = 8 * BLOCK_BYTES;
    lab.event(A, Event::Room { bytes, with_reserve: bytes });
    lab.mend(A, VOLUME);
    lab.settle();
    assert_eq!(lab.mended, [told(A, Mended::Again)]);
}

/// A mend that has not begun ends with the role: the read was answered, and the next epoch begins
/// no mend.
#[test]
fn a_mend_that_has_not_begun_is_forgotten_with_the_role() {
    let mut lab = with_sums(3);
    lab.event(A, Event::Pause);
    lab.mend(A, VOLUME);
    lab.run_ms(10);
    lab.demote(A);
    lab.settle();
    lab.promote(A);
    lab.event(A, Event::Resume);
    lab.settle();
    assert_eq!((lab.role(A), lab.mended.len()), (Role::Primary, 0));
}

/// The right content was read; before it is written, a client writes.
#[test]
fn a_mend_does_not_take_back_later_writes() {
    let mut lab = with_sums(3);
    lab.rot(A, VOLUME, 0);
    lab.rot(A, VOLUME, 1);
    lab.repair_read_ms = 500;
    lab.mend(A, VOLUME);
    lab.run_ms(400);
    let newer = lab.write(A, VOLUME, 0);
    lab.run_ms(50);
    assert!(lab.done(newer) && lab.mended.is_empty());
    lab.settle();
    assert_eq!(lab.mended, [told(A, Mended::Again)]);
    for node in [A, B, C] {
        assert_eq!(holds(&lab, node, VOLUME, 0), newer.0, "what mends is older");
    }
    lab.assert_equal();
}

#[test]
fn mending_ends_with_the_role() {
    let mut lab = with_sums(3);
    lab.rot(A, VOLUME, 1);
    lab.scrub_ms.insert(B, 200);
    lab.mend(A, VOLUME);
    lab.run_ms(20);
    lab.demote(A);
    lab.settle();
    assert!(lab.mended.is_empty(), "the reader was told by the end of the role");
    lab.mend(A, VOLUME);
    assert_eq!(lab.mended, [told(A, Mended::Unknown)], "it does not serve");
    lab.promote(A);
    lab.settle();
    lab.mend(A, VOLUME);
    lab.settle();
    assert_eq!(lab.mended[1], told(A, Mended::Again));
    assert_eq!(lab.nodes[&A].replica.as_ref().and_then(Replica::next_deadline), None, "idle");
    lab.assert_equal();
}
