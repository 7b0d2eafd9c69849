//! One story per rule, and per row of the table "two replicas and a witness" that concerns data.
//! The witness holds no data: it is the lab's control plane.

use super::lab::{A, B, C, Lab, LabAnswer, whole};
use crate::{Effect, Event, Op, ReplicaConfig, RequestError};
use mainstay_types::{
    BLOCK_BYTES, DataState, Epoch, Incarnation, Index, IssChange, NodeId, PeerState, Proposal,
    ProposedChange, Range, Role, StepDownReason, Time, VolumeId,
};

fn two() -> Lab {
    let mut lab = Lab::new(2, 4, 1);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    lab
}

fn three() -> Lab {
    let mut lab = Lab::new(3, 4, 1);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    lab
}

fn write_many(lab: &mut Lab, node: NodeId, n: u16) {
    for i in 0..n {
        let id = lab.write(node, i % 6, u64::from(i % 2));
        lab.run_ms(10);
        assert!(lab.done(id), "write {i}: {:?}", lab.status(node));
    }
}

/// R2, R7: an acknowledged write is on both, and in the store of both once the commit index is
/// known.
#[test]
fn a_write_is_acknowledged_by_both() {
    let mut lab = two();
    let id = lab.write(A, 0, 0);
    lab.run_ms(20);
    assert!(lab.done(id));
    assert_eq!(lab.status(B).commit, lab.status(A).commit, "an idle primary tells its commit index soon");
    lab.assert_equal();
    assert_eq!(lab.nodes[&A].replica.as_ref().and_then(crate::Replica::next_deadline), None, "idle");
}

/// The commit index rides on the next batch if there is one soon, and is told alone if there is
/// none.
#[test]
fn a_commit_index_waits_a_moment_for_a_batch() {
    let mut lab = two();
    lab.settle();
    let first = lab.write(A, 0, 0);
    lab.run_ms(6);
    let committed = lab.status(A).commit;
    assert!(lab.done(first) && lab.status(B).commit < committed, "it is not told yet");
    let second = lab.write(A, 1, 0);
    lab.run_ms(3);
    assert_eq!(lab.status(B).commit, committed, "the second batch has carried it");
    lab.run_ms(20);
    assert!(lab.done(second));
    assert_eq!(lab.status(B).commit, lab.status(A).commit, "no third batch has come");
}

/// R1: acknowledgements by an earlier instance of a replica do not count, whether or not clients
/// write meanwhile.
#[test]
fn a_secondary_that_is_opened_anew_is_attached_again() {
    for writes in [0, 1, 40] {
        let mut lab = two();
        write_many(&mut lab, A, 3);
        lab.reopen(B);
        assert_eq!(lab.status(A).peers[0].state, PeerState::Failed, "its primary heard of it");
        for n in 0..writes {
            lab.write(A, n % 6, 0);
            lab.run_ms(20);
        }
        lab.run_ms(8_000);
        assert_eq!(lab.status(A).peers[0].state, PeerState::InSync, "after {writes} writes");
        assert_eq!(lab.iss(), [A, B]);
        write_many(&mut lab, A, 3);
        lab.settle();
        lab.assert_equal();
    }
}

/// The same for a replica that could not say that it was being closed.
#[test]
fn a_replica_says_that_it_does_not_know_the_session_of_its_primary() {
    let mut lab = two();
    write_many(&mut lab, A, 3);
    lab.nodes.get_mut(&B).expect("known node").replica = None;
    lab.run_ms(5);
    lab.start(B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(10);
    assert_eq!(lab.status(A).peers[0].state, PeerState::Failed);
    lab.run_ms(8_000);
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A, B]);
    lab.settle();
    lab.assert_equal();
}

/// R3: the primary waits for a member until it has learnt that the record is without it.
#[test]
fn a_shrink_counts_when_the_primary_has_learnt_of_it() {
    let mut lab = two();
    lab.hold_proposals = true;
    lab.crash(B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(3000);
    assert!(!lab.done(id) && !lab.proposed.is_empty());
    assert!(lab.proposed.len() <= 7, "a proposal is repeated in measure: {}", lab.proposed.len());
    lab.let_go();
    lab.run_ms(20);
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A]);
}

/// A member whose connection comes back within the grace stays a member.
#[test]
fn a_mere_reconnect_does_not_shrink() {
    let mut lab = two();
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(100);
    lab.heal();
    lab.settle();
    assert!(lab.done(id) && lab.proposed.is_empty());
}

/// R4: a joiner is required before it is proposed, and stays required while its change may still
/// happen.
#[test]
fn a_joiner_is_required_until_its_change_can_no_longer_happen() {
    let mut lab = two();
    lab.crash(B);
    lab.run_ms(1000);
    assert_eq!(lab.iss(), [A]);
    lab.hold_proposals = true;
    lab.start(B);
    lab.run_ms(200);
    let peer = lab.status(A).peers[0].clone();
    assert_eq!((peer.state, peer.required, peer.in_iss), (PeerState::Joining, true, false));
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(2000);
    assert!(!lab.done(id), "the change may still happen");
    // The removal of a replica that is not recorded raises the version, so that the grow fails.
    lab.held.retain(|held| matches!(held.change, ProposedChange::Iss(IssChange::Shrink { .. })));
    lab.let_go();
    lab.hold_proposals = false;
    lab.settle();
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A]);
    lab.heal();
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// A proposal may get lost on its way, and no client wakes an idle primary.
#[test]
fn an_idle_primary_repeats_its_proposals_until_they_are_answered() {
    let mut lab = two();
    let repeated = |lab: &mut Lab, meant: fn(&IssChange) -> bool| {
        lab.held.clear();
        lab.run_ms(2600);
        let held = lab.held.iter().map(|held| &held.change);
        held.filter(|change| matches!(change, ProposedChange::Iss(change) if meant(change))).count()
    };
    lab.hold_proposals = true;
    lab.crash(B);
    let shrinks = repeated(&mut lab, |change| matches!(change, IssChange::Shrink { .. }));
    lab.let_go();
    lab.run_ms(50);
    assert_eq!(lab.iss(), [A]);
    lab.start(B);
    let grows = repeated(&mut lab, |change| matches!(change, IssChange::Grow { .. }));
    assert!(shrinks >= 4 && grows >= 4, "{shrinks} and {grows}");
}

/// R1, R5: after a promotion the old primary is refused by everyone that promised, and cannot
/// commit.
#[test]
fn an_old_primary_is_fenced_by_epochs() {
    let mut lab = three();
    lab.aside.insert(A);
    lab.promote(B);
    lab.run_ms(50);
    let id = lab.write(A, 0, 0);
    lab.run_ms(2000);
    assert!(!lab.done(id));
    assert_ne!(lab.role(A), Role::Primary);
    assert_eq!(lab.role(B), Role::Primary);
}

/// R6: the acknowledged writes of the old primary are there before the new one answers its first
/// read.
#[test]
fn a_new_primary_serves_after_its_epoch_start() {
    let mut lab = three();
    let id = lab.write(A, 0, 0);
    lab.run_ms(20);
    assert!(lab.done(id));
    lab.crash(A);
    lab.cut(B, C);
    lab.run_ms(100);
    lab.promote(B);
    lab.run_ms(20);
    let read = lab.read(B, 0);
    lab.run_ms(300);
    assert_eq!(lab.role(B), Role::Promoting, "{:?}", lab.status(B).waiting_for);
    assert!(!lab.answers.contains_key(&read));
    lab.settle();
    assert_eq!(lab.iss(), [B]);
    assert!(matches!(&lab.answers[&read], LabAnswer::Content(content) if content[0] == id.0));
}

/// R10: between two leases another may have been promoted.
#[test]
fn no_primary_leads_on_after_a_gap_between_leases() {
    let mut lab = three();
    let write = lab.write(A, 0, 0);
    lab.run_ms(20);
    assert!(lab.done(write));
    for node in [A, B] {
        lab.event(node, Event::LeaseEnded);
    }
    lab.run_ms(20);
    assert_eq!((lab.role(A), lab.role(B)), (Role::Fenced, Role::Secondary));
    let read = lab.read(A, 0);
    lab.publish();
    lab.run_ms(200);
    assert_eq!(lab.role(A), Role::Fenced, "the same record changes nothing");
    assert!(!matches!(lab.answers.get(&read), Some(LabAnswer::Content(_))));
    lab.promote(A);
    lab.run_ms(200);
    assert_eq!(lab.role(A), Role::Primary);
}

/// R18: promotions that commit nothing fill the journal with epoch starts. The entries that they
/// left behind are committed once the members are attached. That makes room for the promotion that
/// serves.
#[test]
fn promotions_that_commit_nothing_leave_room_for_one_that_does() {
    let mut lab = two();
    write_many(&mut lab, A, 4);
    lab.hold_proposals = true;
    lab.cut(A, B);
    for _ in 0..60 {
        lab.promote(A);
        lab.run_ms(20);
    }
    let waits = lab.status(A).waiting_for;
    assert!(waits.iter().any(|what| what.starts_with("room in the journal")), "{waits:?}");
    lab.hold_proposals = false;
    lab.heal();
    lab.settle();
    assert_eq!((lab.role(A), lab.iss()), (Role::Primary, vec![A, B]));
    write_many(&mut lab, A, 8);
    lab.settle();
    lab.assert_equal();
}

/// R7: an unacknowledged tail is cut when its replica returns.
#[test]
fn a_tail_that_no_other_replica_has_is_cut() {
    let mut lab = two();
    write_many(&mut lab, A, 3);
    lab.isolate(A);
    let lost = lab.write(A, 5, 1);
    lab.run_ms(2000);
    assert!(!lab.done(lost));
    lab.promote(B);
    lab.run_ms(2000);
    write_many(&mut lab, B, 3);
    lab.heal();
    lab.settle();
    assert_eq!(lab.role(A), Role::Secondary);
    assert!(matches!(lab.answers[&lost], LabAnswer::Failed(RequestError::NotPrimary)));
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// R9: messages of a replica with another disk content than the recorded one do not count.
#[test]
fn a_replaced_disk_joins_empty() {
    let mut lab = two();
    write_many(&mut lab, A, 12);
    lab.replace_disk(B);
    write_many(&mut lab, A, 3);
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// R16: a replica for which the journal no longer reaches back is copied, inconsistent meanwhile,
/// and joins after.
#[test]
fn a_replica_that_fell_far_behind_is_copied() {
    let mut lab = two();
    lab.crash(B);
    lab.run_ms(1000);
    write_many(&mut lab, A, 60);
    lab.start(B);
    let mut was_inconsistent = false;
    for _ in 0..400 {
        lab.run_ms(5);
        let inconsistent = lab.nodes[&B].store.data == DataState::Inconsistent;
        was_inconsistent |= inconsistent;
        assert!(!inconsistent || lab.iss() == [A]);
        if lab.random.chance(30) {
            lab.write(A, 2, 1);
        }
    }
    lab.settle();
    assert!(was_inconsistent);
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// A short absence is made up from the journal alone.
#[test]
fn a_replica_that_missed_little_is_fed_from_the_journal() {
    let mut lab = Lab::new(2, 100, 1);
    lab.run_ms(50);
    lab.crash(B);
    lab.run_ms(1000);
    write_many(&mut lab, A, 20);
    lab.start(B);
    for _ in 0..100 {
        lab.run_ms(5);
        assert_eq!(lab.nodes[&B].store.data, DataState::Consistent);
    }
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// Table: A dies, B is promoted with {B}; A returns and joins.
#[test]
fn a_dies_and_b_takes_over() {
    let mut lab = two();
    write_many(&mut lab, A, 5);
    lab.crash(A);
    lab.promote(B);
    lab.run_ms(100);
    assert_eq!(lab.role(B), Role::Primary);
    assert_eq!(lab.iss(), [B]);
    write_many(&mut lab, B, 5);
    lab.start(A);
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// Table: the link between A and B is cut and both see the witness.
#[test]
fn a_cut_link_leaves_the_primary_alone() {
    let mut lab = two();
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.settle();
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A]);
    assert_eq!(lab.role(B), Role::Secondary);
}

/// Table: A is isolated; it cannot commit, and B takes over.
#[test]
fn an_isolated_primary_cannot_commit() {
    let mut lab = two();
    lab.isolate(A);
    let id = lab.write(A, 0, 0);
    lab.run_ms(5000);
    assert!(!lab.done(id));
    lab.promote(B);
    lab.run_ms(100);
    assert_eq!(lab.role(B), Role::Primary);
}

/// Table: all lose power, A's disk is gone; B was in the ISS and is promoted.
#[test]
fn after_a_power_loss_any_member_of_the_set_is_promoted() {
    let mut lab = two();
    write_many(&mut lab, A, 7);
    lab.crash(A);
    lab.crash(B);
    lab.start(B);
    lab.promote(B);
    lab.settle();
    assert_eq!(lab.role(B), Role::Primary);
    lab.replace_disk(A);
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// Table: a slow secondary leaves the ISS and returns only after a quiet period.
#[test]
fn a_slow_member_leaves_and_returns_after_a_while() {
    let mut lab = two();
    lab.nodes.get_mut(&B).expect("known").disk_ms = 1800;
    let id = lab.write(A, 0, 0);
    lab.run_ms(1500);
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A]);
    lab.nodes.get_mut(&B).expect("known").disk_ms = 1;
    lab.run_ms(700);
    assert_eq!(lab.iss(), [A], "not yet");
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.assert_equal();
}

/// A primary that was restarted may have given away positions that it forgot: it asks for a new
/// epoch.
#[test]
fn a_restarted_primary_does_not_go_on_in_its_epoch() {
    let mut lab = two();
    write_many(&mut lab, A, 2);
    lab.crash(A);
    lab.start(A);
    assert_eq!(lab.role(A), Role::Fenced);
    lab.run_ms(100);
    let asked =
        |p: &Proposal| matches!(p.change, ProposedChange::StepDown { reason: StepDownReason::Restarted });
    assert!(lab.proposed.iter().any(asked));
    assert_eq!(lab.record.primary, None);
    lab.promote(A);
    lab.settle();
    assert_eq!((lab.role(A), lab.iss()), (Role::Primary, vec![A, B]));
    write_many(&mut lab, A, 2);
    lab.settle();
    lab.assert_equal();
}

/// R13: after a failed store nothing is acknowledged, and the replica asks for another primary.
#[test]
fn a_failed_store_ends_the_epoch() {
    let mut lab = two();
    let id = lab.write(A, 0, 0);
    lab.fail_store(A);
    lab.run_ms(50);
    assert!(matches!(lab.answers[&id], LabAnswer::Failed(RequestError::StoreFailed)));
    assert_eq!((lab.record.primary, lab.iss()), (None, vec![B]));
    lab.promote(B);
    lab.settle();
    assert_eq!(lab.role(B), Role::Primary);
}

/// A failed store of a member is a shrink at once.
#[test]
fn a_member_with_a_failed_store_leaves() {
    let mut lab = two();
    lab.fail_store(B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(100);
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A]);
}

/// A planned switch loses no request: admitted requests are finished first.
#[test]
fn a_demotion_finishes_admitted_requests() {
    let mut lab = two();
    let ids: Vec<_> = (0..12).map(|i| lab.write(A, i % 6, 0)).collect();
    lab.demote(A);
    let late = lab.write(A, 0, 1);
    lab.run_ms(200);
    assert!(lab.demoted.contains(&A));
    assert!(ids.iter().all(|id| lab.done(*id)));
    assert!(matches!(lab.answers[&late], LabAnswer::Failed(RequestError::NotPrimary)));
    lab.promote(B);
    lab.settle();
    assert_eq!((lab.role(B), lab.iss()), (Role::Primary, vec![A, B]));
    lab.assert_equal();
}

/// P30: a read that overlaps an uncommitted write waits for it; one that does not is answered at
/// once.
#[test]
fn reads_wait_for_uncommitted_writes_that_overlap() {
    let mut lab = two();
    lab.crash(B);
    let id = lab.write(A, 0, 1);
    let overlapping = lab.read(A, 0);
    let other = lab.read(A, 1);
    lab.run_ms(20);
    assert!(lab.answers.contains_key(&other) && !lab.answers.contains_key(&overlapping));
    lab.settle();
    assert!(matches!(&lab.answers[&overlapping], LabAnswer::Content(content) if content[1] == id.0));
}

/// R18: requests are bounded; ranges are checked.
#[test]
fn requests_are_bounded_and_checked() {
    let mut lab = two();
    lab.crash(B);
    let ids: Vec<_> = (0..1100).map(|_| lab.request(A, Op::Discard { range: whole(0) })).collect();
    let busy = |id| matches!(lab.answers.get(id), Some(LabAnswer::Failed(RequestError::Busy)));
    assert_eq!(ids.iter().filter(|id| busy(id)).count(), 1100 - 1024);
    let beyond = Range { volume: VolumeId(0), offset: 8192, len: 4096 };
    let id = lab.request(A, Op::Read { range: beyond });
    assert!(matches!(lab.answers[&id], LabAnswer::Failed(RequestError::Range)));
    lab.settle();
}

/// While paused, writes are held and everything sequenced is committed.
#[test]
fn a_pause_holds_writes() {
    let mut lab = two();
    lab.event(A, Event::Pause);
    let id = lab.write(A, 0, 0);
    lab.run_ms(500);
    assert!(!lab.done(id));
    assert_eq!(lab.status(A).commit, lab.status(A).end.index);
    lab.event(A, Event::Resume);
    lab.run_ms(20);
    assert!(lab.done(id));
}

/// R1: the answer to an attach waits for the promise.
#[test]
fn a_promise_is_durable_before_it_is_given() {
    use mainstay_codec::{Envelope, Message};
    let store = super::store::Store::new(4, 1 << 20);
    let resource = mainstay_types::ResourceId(7);
    let config = ReplicaConfig::new(resource, B, Incarnation(2), vec![8192]);
    let mut replica = crate::Replica::new(config, Epoch(0), store.log_state());
    let attach = |epoch, incarnation| Event::Message {
        from: A,
        envelope: Envelope {
            resource,
            epoch: Epoch(epoch),
            version: mainstay_types::ConfigVersion(1),
            incarnation: Incarnation(incarnation),
            message: Message::Attach,
        },
    };
    let drain = |replica: &mut crate::Replica| std::iter::from_fn(|| replica.poll()).collect::<Vec<_>>();
    replica.handle(Time(0), Event::PeerUp { node: A });
    replica.handle(Time(1), attach(5, 2));
    assert!(matches!(drain(&mut replica)[..], [Effect::Promise(Epoch(5))]));
    replica.handle(Time(2), Event::Promised { epoch: Epoch(5) });
    let sent = drain(&mut replica);
    assert!(matches!(&sent[..], [Effect::Send { envelope, .. }]
        if matches!(envelope.message, Message::AttachReply(_))));
    replica.handle(Time(3), attach(4, 2));
    assert!(matches!(&drain(&mut replica)[..], [Effect::Send { envelope, .. }]
        if matches!(envelope.message, Message::Rejected(mainstay_codec::Reject::Epoch(Epoch(5))))));
    replica.handle(Time(4), attach(6, 3));
    assert!(matches!(&drain(&mut replica)[..], [Effect::Send { envelope, .. }]
        if matches!(envelope.message, Message::Rejected(mainstay_codec::Reject::Unknown))));
    assert_eq!(replica.status().commit, Index(0));
}

/// R17: a volume is as large as its last committed resize says. Any primary admits requests up to
/// there.
#[test]
fn a_resize_is_committed_like_a_write_and_only_then_counts() {
    let mut lab = three();
    let old = whole(0).len;
    let beyond = Range { volume: VolumeId(0), offset: old, len: BLOCK_BYTES };
    let refused = lab.request(A, Op::Discard { range: beyond });
    lab.run_ms(10);
    assert!(!lab.done(refused));
    for bytes in [old, old - BLOCK_BYTES, old + 1, 0] {
        let id = lab.request(A, Op::Resize { volume: VolumeId(0), bytes });
        lab.run_ms(10);
        assert!(!lab.done(id), "{bytes} is no growth");
    }
    let grown = lab.request(A, Op::Resize { volume: VolumeId(0), bytes: old + BLOCK_BYTES });
    let again = lab.request(A, Op::Resize { volume: VolumeId(0), bytes: old + BLOCK_BYTES });
    lab.run_ms(20);
    assert!(lab.done(grown) && !lab.done(again), "once is enough");
    let id = lab.request(A, Op::Discard { range: beyond });
    lab.run_ms(20);
    assert!(lab.done(id));
    lab.crash(A);
    lab.run_ms(3000);
    lab.promote(B);
    lab.run_ms(200);
    assert_eq!(lab.role(B), Role::Primary);
    let id = lab.request(B, Op::Discard { range: beyond });
    lab.run_ms(50);
    assert!(lab.done(id), "the new primary knows the size: {:?}", lab.status(B));
}
