//! Shrink and grow of the in-sync set (R3, R4), with lost and late proposals.

use mainstay_sim::plan::Fault;
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::PeerState;

#[test]
fn a_primary_waits_until_it_has_learnt_of_the_shrink() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    // Without this the control plane has no quorum while the agent stands still.
    sim.make_leader(t);
    sim.power_cut(s);
    sim.write_without_waiting(7);
    sim.run_ms(600);
    // The engine will ask to shrink, and its agent stands still and does not pass that on to the
    // control plane.
    sim.fault(Fault::PauseAgent { target: n(p), ms: 1_000 });
    sim.expect_no_acknowledgement_for_ms(980);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.expect_acknowledged_within_ms(500);
    assert!(!sim.iss().contains(&s));
    sim.settle();
}

#[test]
fn a_shrink_that_is_recorded_but_not_learnt_acknowledges_nothing() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.power_cut(s);
    sim.write_without_waiting(7);
    sim.until_iss_changes(2_000);
    sim.fault(Fault::PauseEngine { target: n(p), ms: 300 });
    sim.expect_no_acknowledgement_for_ms(290);
    sim.expect_acknowledged_within_ms(100);
    sim.settle();
}

#[test]
fn lost_proposals_to_shrink_are_made_again() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.power_cut(s);
    sim.write_without_waiting(7);
    for _ in 0..20 {
        sim.fault(Fault::LoseProposals);
        sim.run_ms(50);
    }
    assert_eq!(sim.iss(), [1, 2, 3], "so far all were lost");
    sim.expect_acknowledged_within_ms(5_000);
    sim.settle();
}

#[test]
fn lost_and_late_proposals_to_grow_are_made_again() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.power_cut(s);
    sim.write(7);
    sim.power_on(s);
    sim.run_ms(200);
    for _ in 0..40 {
        sim.fault(Fault::LoseProposals);
        sim.run_ms(50);
        sim.write_without_waiting(7);
    }
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.expect_acknowledged_within_ms(100);
    sim.settle();
}

#[test]
fn a_joiner_that_dies_before_it_is_recorded_is_given_up() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.power_cut(s);
    sim.write(7);
    sim.power_on(s);
    sim.write(8);
    // The replica joins, and the proposal to record it stays with an agent that stands still.
    sim.fault(Fault::PauseAgent { target: n(p), ms: 1_000 });
    sim.until_peer(s, 1_000, |state| *state == PeerState::Joining);
    sim.power_cut(s);
    sim.write_without_waiting(7);
    sim.expect_acknowledged_within_ms(5_000);
    assert!(!sim.iss().contains(&s));
    sim.settle();
}

#[test]
fn a_late_grow_that_comes_after_the_joiner_died_acknowledges_nothing_without_it() {
    for moment in (0..60).step_by(3) {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.power_cut(s);
        sim.write(7);
        sim.power_on(s);
        sim.fault(Fault::LoseProposals);
        sim.run_ms(100 + moment * 10);
        sim.write_without_waiting(8);
        sim.power_cut(s);
        sim.run_ms(20);
        sim.write_without_waiting(9);
        sim.expect_acknowledged_within_ms(10_000);
        sim.settle();
    }
}

#[test]
fn a_short_disconnection_costs_no_member() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.fault(Fault::Reset(n(p), n(s)));
    sim.write(7);
    sim.run_ms(1_000);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}

#[test]
fn both_secondaries_leave_and_return_one_after_the_other() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.fault(Fault::CutEngines(n(p), n(s)));
    sim.fault(Fault::CutEngines(n(p), n(t)));
    sim.write(7);
    assert_eq!(sim.iss(), [p]);
    sim.write_many(10);
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 5_000);
    sim.settle();
}
