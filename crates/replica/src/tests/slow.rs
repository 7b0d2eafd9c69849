//! Slow members: one story per edge of the states in `slow.rs`.

use super::lab::{A, B, C, Lab};
use crate::PeerStatus;
use mainstay_types::{
    Index, IssChange, NodeId, PeerState, Proposal, ProposedChange, Role, ShrinkReason, SlowLimits, Time,
};

const LIMITS: SlowLimits =
    SlowLimits { ack_ms: 10, factor: 5, for_ms: 300, min_copies: 2, quiet_ms: 2_000, quiet_max_ms: 16_000 };

fn lab(nodes: u32, limits: SlowLimits) -> Lab {
    let mut lab = Lab::with_slow(nodes, 12, 1, limits);
    lab.run_ms(50);
    assert_eq!(lab.role(A), Role::Primary);
    lab
}

fn disk_ms(lab: &mut Lab, node: NodeId, ms: u64) {
    lab.nodes.get_mut(&node).expect("known node").disk_ms = ms;
}

/// Writes one block after the other for `ms` milliseconds, with pauses, because the lab's journal
/// is short. Returns how many writes were acknowledged.
fn load(lab: &mut Lab, ms: u64) -> u64 {
    let (until, before) = (lab.now.plus_ms(ms), lab.acks);
    let mut block = 0;
    while lab.now < until {
        let id = lab.write(A, block % 6, u64::from(block % 2));
        block += 1;
        while !lab.done(id) && lab.now < until {
            lab.run_ms(1);
        }
        lab.run_ms(8);
        assert_eq!(lab.wrong, None);
    }
    lab.acks - before
}

fn peer(lab: &Lab, node: NodeId) -> PeerStatus {
    lab.status(A).peers.into_iter().find(|peer| peer.member.node == node).expect("a peer")
}

fn slow_shrinks(lab: &Lab) -> usize {
    let slow = |proposal: &&Proposal| {
        matches!(proposal.change, ProposedChange::Iss(IssChange::Shrink { why: ShrinkReason::Slow, .. }))
    };
    lab.proposed.iter().filter(slow).count()
}

/// Milliseconds until it may return.
fn quiet_ms(lab: &Lab, node: NodeId) -> u64 {
    peer(lab, node).slow.map_or(0, |slow| slow.returns_us.ms_since(lab.now))
}

#[test]
fn a_slow_member_leaves_and_writes_go_on() {
    let mut lab = lab(3, LIMITS);
    let before = load(&mut lab, 400);
    assert_eq!(lab.iss(), [A, B, C]);
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 700);
    assert_eq!(lab.iss(), [A, C], "{:?}", lab.status(A));
    assert_eq!(slow_shrinks(&lab), 1);
    let slow = peer(&lab, B).slow.expect("it is known why");
    assert!((30_000..120_000).contains(&slow.latency_us), "{slow:?}");
    let after = load(&mut lab, 400);
    assert!(after * 10 > before * 9, "{after} writes without it, {before} before");
}

/// Counts for people: how long the acknowledgements of each replica took, and how often each left.
#[test]
fn acknowledgements_and_departures_are_counted() {
    let mut lab = lab(3, LIMITS);
    let acks = load(&mut lab, 400);
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 700);
    let counted = |node| lab.nodes[&node].replica.as_ref().expect("the node is up").peer_counts();
    let counts: Vec<_> = counted(A).collect();
    let [slow, well] = &counts[..] else { panic!("two peers: {counts:?}") };
    assert_eq!((slow.node, slow.required, slow.times_slow), (B, false, 1));
    assert_eq!((well.node, well.required, well.times_slow), (C, true, 0));
    assert!(well.acknowledged_us.count() > acks, "{counts:?}");
    let mean = |of: &mainstay_types::Histogram| of.sum() / of.count();
    assert!(mean(slow.acknowledged_us) > 2 * mean(well.acknowledged_us), "{counts:?}");
    assert_eq!(counted(C).count(), 0, "a replica that does not lead counts nothing");
}

/// R3: it is decided by another clock, and nothing else is different.
#[test]
fn a_slow_member_counts_until_its_removal_is_known() {
    let mut lab = lab(3, LIMITS);
    lab.hold_proposals = true;
    disk_ms(&mut lab, B, 10_000);
    let id = lab.write(A, 0, 0);
    lab.run_ms(900);
    assert!(slow_shrinks(&lab) > 0 && !lab.done(id));
    lab.let_go();
    lab.run_ms(20);
    assert!(lab.done(id));
    assert_eq!(lab.iss(), [A, C]);
}

#[test]
fn a_stall_that_passes_costs_no_member() {
    let mut lab = lab(3, LIMITS);
    load(&mut lab, 200);
    disk_ms(&mut lab, B, 200);
    load(&mut lab, 150);
    disk_ms(&mut lab, B, 1);
    load(&mut lab, 2_000);
    assert_eq!((lab.iss(), lab.proposed.len()), (vec![A, B, C], 0));
}

/// The load, the primary's network, its own journal: no member is slower than the others.
#[test]
fn when_all_members_are_slow_none_leaves() {
    for slow in [vec![A, B, C], vec![B, C], vec![A, B], vec![A]] {
        let mut lab = lab(3, LIMITS);
        for node in &slow {
            disk_ms(&mut lab, *node, 60);
        }
        load(&mut lab, 3_000);
        assert_eq!((lab.iss(), slow_shrinks(&lab)), (vec![A, B, C], 0), "slow are {slow:?}");
    }
}

#[test]
fn with_more_copies_two_slow_members_leave() {
    let mut lab = lab(5, LIMITS);
    disk_ms(&mut lab, B, 60);
    disk_ms(&mut lab, C, 90);
    load(&mut lab, 1_500);
    assert_eq!(lab.iss(), [A, NodeId(4), NodeId(5)]);
}

#[test]
fn as_many_members_as_min_copies_stay_however_slow() {
    let mut two = lab(2, LIMITS);
    disk_ms(&mut two, B, 60);
    load(&mut two, 2_000);
    assert_eq!((two.iss(), two.proposed.len()), (vec![A, B], 0));
    let mut alone = lab(2, SlowLimits { min_copies: 1, ..LIMITS });
    disk_ms(&mut alone, B, 60);
    load(&mut alone, 2_000);
    assert_eq!(alone.iss(), [A]);
    // The third copy is gone, and not yet out of the record: it is not one of those that remain.
    let mut three = lab(3, LIMITS);
    disk_ms(&mut three, B, 60);
    load(&mut three, 250);
    three.cut(A, C);
    load(&mut three, 3_000);
    assert_eq!((three.iss(), slow_shrinks(&three)), (vec![A, B], 0));
}

/// R11, and what `min_copies` is for: better slow than alone.
#[test]
fn a_slow_replica_returns_us_once_when_too_few_copies_are_left() {
    let mut lab = lab(3, SlowLimits { quiet_ms: 60_000, ..LIMITS });
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 800);
    assert_eq!(lab.iss(), [A, C]);
    assert!(quiet_ms(&lab, B) > 50_000);
    lab.crash(C);
    lab.run_ms(6_000);
    assert_eq!(lab.iss(), [A, B]);
    load(&mut lab, 2_000);
    assert_eq!(lab.iss(), [A, B], "and stays");
}

#[test]
fn a_slow_member_returns_after_a_quiet_period_that_doubles() {
    let mut lab = lab(3, LIMITS);
    let mut waited = Vec::new();
    for _ in 0..6 {
        disk_ms(&mut lab, B, 60);
        load(&mut lab, 900);
        assert_eq!(lab.iss(), [A, C]);
        disk_ms(&mut lab, B, 1);
        let since = lab.now;
        while lab.iss() != [A, B, C] {
            load(&mut lab, 50);
            assert!(lab.now.ms_since(since) < 20_000, "{:?}", lab.status(A));
        }
        waited.push(lab.now.ms_since(since));
    }
    let expected = [2_000, 4_000, 8_000, 16_000, 16_000, 16_000];
    for (waited, expected) in waited.iter().zip(expected) {
        assert!((expected..expected + 1_500).contains(waited), "{waited} ms instead of {expected}");
    }
    // Good behaviour is remembered too.
    for _ in 0..4 {
        lab.run_ms(16_000);
    }
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 900);
    assert!((1_000..=2_000).contains(&quiet_ms(&lab, B)), "{}", quiet_ms(&lab, B));
    lab.settle();
    lab.assert_equal();
}

/// While a member is slow its quiet period does not begin, however long that lasts. It is fed, and
/// holds up no write.
#[test]
fn a_slow_member_stays_out_and_is_fed() {
    let mut lab = lab(3, LIMITS);
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 900);
    let mut fed = Index(0);
    let out = peer(&lab, B).durable;
    for _ in 0..20 {
        let acks = load(&mut lab, 500);
        assert!(lab.iss() == [A, C] && acks > 30, "{acks} {:?}", lab.status(A));
        fed = fed.max(peer(&lab, B).durable);
    }
    assert!(fed > out, "{fed} {out}");
    disk_ms(&mut lab, B, 1);
    lab.settle();
    assert_eq!(lab.iss(), [A, B, C]);
    lab.assert_equal();
}

/// Power cuts under load look like slowness at first.
#[test]
fn a_member_that_died_does_not_count_as_slow() {
    let mut lab = lab(3, SlowLimits { quiet_ms: 60_000, ..LIMITS });
    load(&mut lab, 200);
    // The connection breaks later than it takes to be too slow.
    disk_ms(&mut lab, B, 100_000);
    load(&mut lab, 600);
    assert_eq!((lab.iss(), slow_shrinks(&lab)), (vec![A, C], 1));
    lab.crash(B);
    load(&mut lab, 200);
    assert_eq!(peer(&lab, B).slow, None);
    disk_ms(&mut lab, B, 1);
    lab.start(B);
    lab.run_ms(4_000);
    assert_eq!(lab.iss(), [A, B, C]);
    // Not again and again.
    disk_ms(&mut lab, B, 100_000);
    load(&mut lab, 600);
    lab.crash(B);
    load(&mut lab, 200);
    assert!(peer(&lab, B).slow.is_some() && lab.iss() == [A, C]);
}

/// R4: a joiner holds up commits as well, and not for longer than a member.
#[test]
fn a_joiner_that_turns_out_slow_is_given_up() {
    let mut lab = lab(3, LIMITS);
    lab.crash(B);
    lab.run_ms(1_000);
    assert_eq!(lab.iss(), [A, C]);
    lab.hold_proposals = true;
    lab.start(B);
    lab.run_ms(200);
    assert_eq!(peer(&lab, B).state, PeerState::Joining);
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 800);
    // The removal of who is not recorded raises the version, so that the grow fails.
    lab.held.retain(|held| matches!(held.change, ProposedChange::Iss(IssChange::Shrink { .. })));
    lab.hold_proposals = false;
    lab.let_go();
    load(&mut lab, 1_000);
    assert_eq!(lab.iss(), [A, C]);
    assert!(!peer(&lab, B).required && peer(&lab, B).slow.is_some(), "{:?}", peer(&lab, B));
    disk_ms(&mut lab, B, 1);
    lab.settle();
    assert_eq!(lab.iss(), [A, B, C]);
}

#[test]
fn an_idle_resource_is_not_woken() {
    let mut lab = lab(3, SlowLimits { quiet_ms: 6_000, ..LIMITS });
    disk_ms(&mut lab, B, 60);
    load(&mut lab, 900);
    assert_eq!(lab.iss(), [A, C]);
    disk_ms(&mut lab, B, 1);
    lab.run_ms(4_000);
    let next = |lab: &Lab| lab.nodes[&A].replica.as_ref().and_then(crate::Replica::next_deadline);
    let returns = peer(&lab, B).slow.map(|slow| slow.returns_us);
    assert_eq!(next(&lab), returns, "nothing but the end of the quiet period");
    lab.settle();
    assert_eq!((lab.iss(), next(&lab)), (vec![A, B, C], None::<Time>));
}

/// The sample of the stall is smoothed away by eight writes, which take longer here than `for_ms`.
#[test]
fn a_stall_before_few_writes_costs_no_member() {
    let mut lab = lab(3, LIMITS);
    load(&mut lab, 600);
    disk_ms(&mut lab, B, 200);
    let id = lab.write(A, 0, 0);
    lab.run_ms(230);
    assert!(lab.done(id));
    disk_ms(&mut lab, B, 1);
    for _ in 0..20 {
        let id = lab.write(A, 0, 0);
        lab.run_ms(60);
        assert!(lab.done(id), "it is acknowledged within 60 ms");
    }
    assert_eq!((lab.iss(), slow_shrinks(&lab)), (vec![A, B, C], 0));
}
