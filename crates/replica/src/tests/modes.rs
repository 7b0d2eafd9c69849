//! Mode A, and what is left by a forced promotion: one story per edge of the states in `mode_a.rs`.

use super::lab::{A, B, C, Lab};
use crate::{Event, PeerStatus};
use mainstay_types::{
    BLOCK_BYTES, Index, IssChange, LagLimits, Member, Mode, ModePolicy, NodeId, PeerState, Proposal,
    ProposedChange, Role,
};

/// Writes are to wait for a follower that lacks more than three of them.
const LAG: LagLimits = LagLimits { bytes: 6 * BLOCK_BYTES, ms: 60_000 };

fn lab(mode: Mode) -> Lab {
    let mut lab = Lab::new(3, 40, 1);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    set_mode(&mut lab, mode);
    lab
}

/// Sets the mode of the resource, as the control plane does it.
/// The mode, with these limits if it is mode A.
fn within(mode: Mode, lag: LagLimits) -> ModePolicy {
    match mode {
        Mode::A => ModePolicy::A { lag, takeover: false },
        other => other.into(),
    }
}

pub(super) fn set_mode(lab: &mut Lab, mode: Mode) {
    let record = &mut lab.record;
    record.version = record.version.next();
    record.policy.mode = within(mode, LAG);
    if mode == Mode::A {
        let primary = record.primary;
        record
            .iss
            .retain(|member| Some(member.node) == primary || record.joining_for_move.contains(&member.node));
    }
    lab.publish();
    lab.run_ms(20);
}

fn call(lab: &mut Lab, joining: &[NodeId]) {
    lab.record.version = lab.record.version.next();
    lab.record.joining_for_move = joining.to_vec();
    lab.publish();
}

fn peer(lab: &Lab, node: NodeId) -> PeerStatus {
    lab.status(A).peers.into_iter().find(|peer| peer.member.node == node).expect("a peer")
}

fn disk_ms(lab: &mut Lab, node: NodeId, ms: u64) {
    lab.nodes.get_mut(&node).expect("known node").disk_ms = ms;
}

/// A forced promotion, as the control plane does it. Entries that the others committed beyond the
/// log of `node` are lost.
fn force(lab: &mut Lab, node: NodeId) {
    let end = lab.status(node).end.index;
    let record = &mut lab.record;
    let to = record.replica(node).expect("a replica");
    record.version = record.version.next();
    record.epoch = record.epoch.next();
    record.primary = Some(node);
    record.iss = vec![to];
    record.unverified = record.replicas.iter().copied().filter(|member| *member != to).collect();
    lab.fork(end);
    lab.publish();
}

fn parted(lab: &Lab) -> Vec<(Member, Index, Index)> {
    let part = |proposal: &Proposal| match &proposal.change {
        ProposedChange::Iss(IssChange::Part { member, common, end }) => {
            Some((*member, common.index, end.index))
        }
        _ => None,
    };
    let mut all: Vec<_> = lab.proposed.iter().filter_map(part).collect();
    all.dedup();
    all
}

#[test]
fn in_mode_a_the_primary_alone_acknowledges_and_the_others_follow() {
    let mut lab = lab(Mode::A);
    assert_eq!(lab.iss(), [A]);
    lab.cut(A, B);
    lab.cut(A, C);
    let id = lab.write(A, 0, 0);
    lab.run_ms(3);
    assert!(lab.done(id), "no other replica has it");
    lab.heal();
    lab.settle();
    assert_eq!(
        (lab.iss(), peer(&lab, B).state, peer(&lab, B).lag.entries),
        (vec![A], PeerState::Following, 0)
    );
    lab.assert_equal();
}

#[test]
fn from_a_to_c_the_followers_join_and_from_c_to_a_they_leave_at_once() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    lab.settle();
    set_mode(&mut lab, Mode::C);
    lab.settle();
    assert_eq!(lab.iss(), [A, B, C]);
    lab.cut(A, B);
    let id = lab.write(A, 1, 0);
    lab.run_ms(5);
    assert!(!lab.done(id), "in mode C it waits for B");
    set_mode(&mut lab, Mode::A);
    assert!(lab.done(id));
    lab.heal();
    lab.settle();
    lab.assert_equal();
}

#[test]
fn a_joiner_is_not_waited_for_when_the_mode_becomes_a() {
    let mut lab = lab(Mode::A);
    lab.hold_proposals = true;
    set_mode(&mut lab, Mode::C);
    lab.run_ms(100);
    assert_eq!(peer(&lab, B).state, PeerState::Joining);
    set_mode(&mut lab, Mode::A);
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(5);
    assert!(lab.done(id));
    lab.hold_proposals = false;
    lab.let_go();
    lab.heal();
    lab.settle();
    assert_eq!(lab.iss(), [A]);
}

#[test]
fn the_target_of_a_move_joins_and_the_primary_goes_there() {
    let mut lab = lab(Mode::A);
    call(&mut lab, &[B]);
    lab.settle();
    assert_eq!(lab.iss(), [A, B]);
    lab.cut(A, B);
    let id = lab.write(A, 0, 0);
    lab.run_ms(5);
    assert!(!lab.done(id), "what is acknowledged now has to be there");
    lab.heal();
    lab.settle();
    lab.demote(A);
    lab.run_ms(50);
    lab.promote(B);
    call(&mut lab, &[]);
    lab.settle();
    assert_eq!((lab.serving(), lab.iss()), (Some(B), vec![B]));
    lab.assert_equal();
}

/// R18: as many as it lacks, and no more.
#[test]
fn writes_wait_for_a_follower_that_lags_too_far_and_go_at_its_pace() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    lab.run_ms(50);
    for node in [B, C] {
        disk_ms(&mut lab, node, 100);
    }
    let mut ids = Vec::new();
    for block in 0..8 {
        ids.push(lab.write(A, block % 6, 0));
        lab.run_ms(8);
    }
    let done = ids.iter().filter(|id| lab.done(**id)).count();
    assert!((3..6).contains(&done), "{done} of 8 are acknowledged: {:?}", peer(&lab, B).lag);
    assert!(lab.status(A).waiting_for.iter().any(|what| what.contains("mode A")), "{:?}", lab.status(A));
    let lag = peer(&lab, B).lag;
    assert!(lag.bytes <= LAG.bytes + 2 * BLOCK_BYTES && lag.entries > 0 && !lag.more, "{lag:?}");
    lab.run_ms(1500);
    assert!(ids.iter().all(|id| lab.done(*id)));
    assert!(peer(&lab, B).lag.since.is_none());
}

/// The account of bytes begins with the epoch. Seed 33 of the simulator.
#[test]
fn a_follower_that_lacks_entries_of_older_epochs_is_beyond_the_limits() {
    let mut lab = lab(Mode::A);
    lab.cut(A, B);
    for block in 0..6 {
        lab.write(A, block, 0);
        lab.run_ms(8);
    }
    lab.run_ms(1500);
    disk_ms(&mut lab, B, 5_000);
    lab.heal();
    lab.promote(A);
    lab.run_ms(300);
    assert!(peer(&lab, B).lag.more, "{:?}", peer(&lab, B));
    let replica = lab.nodes[&A].replica.as_ref().expect("it runs");
    assert!(replica.waited_followers().all(|(node, _)| node != B));
}

#[test]
fn writes_wait_for_a_follower_that_lacks_something_old() {
    let mut lab = lab(Mode::A);
    lab.record.policy.mode = within(Mode::A, LagLimits { bytes: 1 << 30, ms: 200 });
    lab.record.version = lab.record.version.next();
    lab.publish();
    lab.run_ms(20);
    disk_ms(&mut lab, B, 700);
    lab.write(A, 0, 0);
    lab.run_ms(300);
    let id = lab.write(A, 1, 0);
    lab.run_ms(100);
    assert!(!lab.done(id), "B lacks something for 400 ms");
    lab.run_ms(400);
    assert!(lab.done(id));
}

/// R20: as long as a member in mode C may take.
#[test]
fn a_follower_that_stands_still_or_is_gone_holds_up_writes_for_a_second_at_most() {
    for gone in [false, true] {
        let mut lab = lab(Mode::A);
        lab.write(A, 0, 0);
        lab.run_ms(50);
        disk_ms(&mut lab, B, 60_000);
        if gone {
            lab.cut(A, B);
        }
        let ids: Vec<_> = (0..8).map(|block| (lab.write(A, block % 6, 0), lab.run_ms(8)).0).collect();
        assert!(!ids.iter().all(|id| lab.done(*id)));
        lab.run_ms(1100);
        assert!(ids.iter().all(|id| lab.done(*id)), "gone: {gone}: {:?}", lab.status(A));
        let id = lab.write(A, 0, 0);
        lab.run_ms(5);
        assert!(lab.done(id), "it is not waited for again");
    }
}

/// R11: the old primary has committed entries that the new history lacks, and its volumes have
/// them.
#[test]
fn after_a_forced_promotion_the_old_primary_is_parted_with_and_the_loss_is_told() {
    let mut lab = lab(Mode::A);
    for block in 0..4 {
        lab.write(A, block, 0);
        lab.run_ms(8);
    }
    lab.settle();
    let common = lab.status(B).end.index;
    lab.cut(A, B);
    lab.cut(A, C);
    for block in 0..4 {
        lab.write(A, block, 1);
        lab.run_ms(8);
    }
    let end = lab.status(A).end.index;
    assert!(end > common);
    lab.crash(A);
    force(&mut lab, B);
    lab.run_ms(500);
    assert_eq!(lab.serving(), Some(B));
    lab.write(B, 5, 0);
    lab.run_ms(100);
    assert!(lab.record.unverified.iter().all(|member| member.node == A), "C has nothing that B lacks");
    lab.heal();
    lab.start(A);
    lab.run_ms(500);
    let told = parted(&lab);
    assert_eq!(told.len(), 1, "{told:?}");
    // Entries that were not durable when A lost its power were not acknowledged.
    assert!(told[0].0.node == A && told[0].1 == common && told[0].2 > common && told[0].2 <= end, "{told:?}");
    assert!(lab.record.replica(A).is_none() && lab.record.unverified.is_empty());
    assert_eq!(lab.wrong, None);
}

#[test]
fn after_a_forced_promotion_a_replica_that_held_no_more_is_trusted_and_fed() {
    let mut lab = lab(Mode::A);
    for block in 0..4 {
        lab.write(A, block, 0);
        lab.run_ms(8);
    }
    lab.settle();
    lab.crash(A);
    force(&mut lab, B);
    lab.run_ms(500);
    lab.write(B, 5, 0);
    lab.start(A);
    lab.settle();
    assert!(parted(&lab).is_empty() && lab.record.unverified.is_empty(), "{:?}", lab.record);
    lab.assert_equal();
}

/// The follower's copy was interrupted before the record said that the follower holds nothing
/// outside the history. Half a copy looks like another history. Found by seed 271574.
#[test]
fn a_replica_trusted_meanwhile_is_not_parted_with_for_ever() {
    let mut lab = Lab::new(3, 4, 1);
    lab.run_ms(50);
    set_mode(&mut lab, Mode::A);
    lab.isolate(C);
    for block in 0..60 {
        lab.write(A, 0, block % 4);
        lab.run_ms(20);
    }
    lab.crash(A);
    force(&mut lab, B);
    lab.run_ms(500);
    assert_eq!(lab.serving(), Some(B));
    lab.hold_proposals = true;
    disk_ms(&mut lab, C, 100);
    lab.heal();
    let copied = |lab: &Lab| lab.nodes[&C].store.data == mainstay_types::DataState::Inconsistent;
    for _ in 0..500 {
        if !copied(&lab) {
            lab.run_ms(2);
        }
    }
    assert!(copied(&lab), "{:?}", lab.status(B));
    lab.cut(B, C);
    lab.run_ms(200);
    lab.heal();
    lab.run_ms(50);
    assert!(!parted(&lab).is_empty(), "it looks as if it were of another history");
    let trust = |proposal: &Proposal| matches!(proposal.change, ProposedChange::Iss(IssChange::Trust { member }) if member.node == C);
    lab.held.retain(trust);
    assert!(!lab.held.is_empty(), "this was asked before");
    lab.hold_proposals = false;
    lab.let_go();
    assert!(lab.record.unverified.iter().all(|member| member.node != C));
    lab.start(A);
    lab.settle();
    assert!(lab.record.replica(C).is_some() && !copied(&lab), "{:?}", lab.status(B));
    lab.assert_equal();
}

fn with_takeover(lab: &mut Lab) {
    lab.record.policy.mode = ModePolicy::A { lag: lab.record.policy.lag(), takeover: true };
    lab.record.version = lab.record.version.next();
    lab.publish();
    lab.run_ms(500);
}

#[test]
fn with_takeover_the_record_follows_which_followers_are_within_the_limits() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    with_takeover(&mut lab);
    let ready = |lab: &Lab| lab.record.failover_ready.iter().map(|member| member.node).collect::<Vec<_>>();
    assert_eq!(ready(&lab), [B, C]);
    lab.cut(A, B);
    lab.run_ms(1_000);
    assert_eq!(ready(&lab), [C]);
    lab.heal();
    lab.settle();
    let mut back = ready(&lab);
    back.sort();
    assert_eq!(back, [B, C]);
}

/// Writes wait as under R3: the bound on what B lacks holds until the primary has learnt that B may
/// not take over any more.
#[test]
fn with_takeover_writes_wait_for_an_absent_follower_until_its_removal_is_recorded() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    with_takeover(&mut lab);
    lab.hold_proposals = true;
    lab.cut(A, B);
    let ids: Vec<_> = (0..8).map(|block| (lab.write(A, block % 6, 0), lab.run_ms(8)).0).collect();
    lab.run_ms(5_000);
    let done = ids.iter().filter(|id| lab.done(**id)).count();
    assert!(done < 6, "{done} of 8 are acknowledged, and B may take over");
    lab.hold_proposals = false;
    lab.let_go();
    lab.run_ms(600);
    assert!(ids.iter().all(|id| lab.done(*id)), "{:?}", lab.status(A));
}

/// The record has moved on without B, so B may not take over.
#[test]
fn with_takeover_an_absent_follower_whose_proposal_came_to_nothing_holds_up_no_write() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    lab.hold_proposals = true;
    with_takeover(&mut lab);
    lab.cut(A, B);
    lab.run_ms(2_000);
    lab.record.version = lab.record.version.next();
    lab.publish();
    let ids: Vec<_> = (0..8).map(|block| (lab.write(A, block % 6, 0), lab.run_ms(8)).0).collect();
    lab.run_ms(2_000);
    assert!(ids.iter().all(|id| lab.done(*id)), "{:?}", lab.status(A));
}

/// B is failover-ready by wider limits, and lags by more than the new ones allow. Found by seed
/// 3345710.
#[test]
fn with_takeover_a_follower_beyond_narrower_limits_is_not_recorded() {
    let mut lab = lab(Mode::A);
    lab.record.policy.mode = within(Mode::A, LagLimits { bytes: 1 << 20, ms: 60_000 });
    lab.write(A, 0, 0);
    with_takeover(&mut lab);
    let names_b = |lab: &Lab| lab.record.failover_ready.iter().any(|member| member.node == B);
    assert!(names_b(&lab));
    lab.cut(A, B);
    for block in 0..5 {
        lab.write(A, block, 0);
        lab.run_ms(1);
    }
    // The control plane names no follower as failover-ready by limits that have changed.
    lab.record.policy.mode = ModePolicy::A { lag: LAG, takeover: true };
    lab.record.failover_ready.clear();
    lab.record.version = lab.record.version.next();
    lab.publish();
    lab.run_ms(20);
    assert!(!names_b(&lab), "it lacks more than may be lost: {:?}", lab.status(A));
    lab.heal();
    lab.settle();
    assert!(names_b(&lab), "it has caught up");
}

/// The disk of the target is slow, and the order to restart its log cannot be taken back. Found by
/// seed 211656.
#[test]
fn a_replica_whose_log_is_being_restarted_cannot_be_promoted() {
    let mut lab = Lab::new(3, 4, 1);
    lab.run_ms(50);
    lab.isolate(C);
    lab.run_ms(1_000);
    for block in 0..60 {
        lab.write(A, 0, block % 4);
        lab.run_ms(20);
    }
    assert_eq!(lab.iss(), [A, B], "it was away for longer than the journal reaches back");
    disk_ms(&mut lab, C, 5_000);
    lab.heal();
    lab.run_ms(200);
    let status = lab.status(C);
    assert_eq!(
        status.data,
        mainstay_types::DataState::Inconsistent,
        "the cluster must not choose it: {status:?}"
    );
    assert_eq!(lab.nodes[&C].store.data, mainstay_types::DataState::Consistent, "its disk does not know yet");
    // What the record says is judged elsewhere; here only what the replica makes of it.
    let mut record = lab.record.clone();
    let to = record.replica(C).expect("a replica");
    (record.version, record.epoch) = (record.version.next(), record.epoch.next());
    (record.primary, record.iss) = (Some(C), vec![to]);
    lab.event(C, Event::Record(Box::new(record)));
    assert_eq!(lab.role(C), Role::Fenced);
    lab.run_ms(20_000);
    assert_eq!(lab.role(C), Role::Fenced);
}

/// A primary that is cut off does not know that another replica is to replace it. It may begin to
/// copy to that replica. Found by seed 244085.
#[test]
fn a_replica_that_promised_ahead_heeds_no_older_primary_and_serves_its_epoch() {
    let mut lab = lab(Mode::A);
    lab.write(A, 0, 0);
    lab.run_ms(50);
    let epoch = lab.record.epoch.next();
    let replica = |lab: &mut Lab, node| -> bool {
        let promised_ahead = lab
            .nodes
            .get_mut(&node)
            .expect("known node")
            .replica
            .as_mut()
            .expect("it runs")
            .promise_ahead(epoch);
        lab.event(node, Event::Tick);
        promised_ahead
    };
    assert!(!replica(&mut lab, A), "not of one that leads");
    assert!(replica(&mut lab, B) && replica(&mut lab, B), "as often as one likes");
    lab.run_ms(50);
    let end = lab.status(B).end;
    assert_eq!(lab.nodes[&B].replica.as_ref().expect("it runs").promised_ahead(), Some(epoch));
    lab.write(A, 0, 1);
    lab.run_ms(50);
    assert_eq!(lab.status(B).end, end, "A is not heard any more");
    assert_eq!(lab.status(A).role, Role::Fenced, "and knows that it is outlived");
    lab.crash(A);
    force(&mut lab, B);
    lab.run_ms(500);
    assert_eq!(lab.serving(), Some(B));
    assert_eq!(lab.record.epoch, epoch, "there is no need for another");
}
