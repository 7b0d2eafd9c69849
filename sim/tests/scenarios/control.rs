//! The control plane: its leader changes at every moment, states come whole, the majority is lost.

use mainstay_sim::plan::{Deed, Fault, Moment, Operator, Proposed, Side};
use mainstay_sim::scenario::{Scenario, n};

#[test]
fn the_leader_changes_around_a_shrink() {
    for moment in 0..20 {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.fault(Fault::CutEngines(n(s), n(if s == 1 { 2 } else { 1 })));
        sim.isolate(s);
        sim.write_without_waiting(7);
        sim.run_ms(1_000 + moment * 20);
        sim.fault(Fault::LeaderChange);
        sim.expect_acknowledged_within_ms(5_000);
        sim.settle();
    }
}

#[test]
fn the_leader_changes_around_a_grow() {
    for moment in 0..20 {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.power_cut(s);
        sim.write(7);
        sim.power_on(s);
        sim.run_ms(100 + moment * 20);
        sim.fault(Fault::LeaderChange);
        sim.write(8);
        sim.expect_iss_within_ms(&[1, 2, 3], 5_000);
        sim.settle();
    }
}

#[test]
fn the_leader_changes_around_a_promotion() {
    for moment in 0..20 {
        let mut sim = Scenario::three();
        let [p, ..] = sim.cast();
        sim.write(7);
        sim.power_cut(p);
        sim.run_ms(2_000 + moment * 20);
        sim.fault(Fault::LeaderChange);
        sim.fault(Fault::LoseProposals);
        sim.until_primary_is_not(p, 10_000);
        sim.write(7);
        sim.settle();
    }
}

#[test]
fn a_node_that_lags_gets_the_state_whole() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.isolate(s);
    sim.write(7);
    sim.fault(Fault::Snapshot(n(s)));
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    assert!(sim.count("F48 snapshot installed") >= 1);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn the_old_primary_gets_a_state_in_which_it_is_not_primary() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.isolate(p);
    sim.write_without_waiting(7);
    sim.expect_primary_within_ms(s, 8_000);
    sim.write(7);
    sim.fault(Fault::Snapshot(n(p)));
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    // Its engine may be in sync before its agent has heard.
    sim.until_count("F48 snapshot installed", 1, 8_000);
    sim.settle();
}

#[test]
fn no_node_serves_while_no_agent_reaches_another() {
    let mut sim = Scenario::with_service();
    let [p, s, t] = sim.cast();
    for (a, b) in [(p, s), (p, t), (s, t)] {
        sim.fault(Fault::CutAgents(n(a), n(b)));
    }
    sim.expect_no_device_within_ms(2_500);
    sim.expect_no_device_for_ms(60_000);
    sim.heal();
    sim.write(7);
    let [p, ..] = sim.cast();
    sim.expect_service_on_within_ms(p, 10_000);
    sim.settle();
}

#[test]
fn two_of_three_are_off_for_long() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    sim.power_cut(s);
    sim.power_cut(t);
    sim.expect_no_device_within_ms(2_500);
    sim.expect_no_device_for_ms(60_000);
    sim.power_on(t);
    sim.read(7);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

/// H7: the command is under way for seconds. The operator gets an answer when it is done.
#[test]
fn a_proposal_of_an_operator_is_a_moment_for_a_trap() {
    let mut sim = Scenario::three();
    sim.write(7);
    sim.trap(Moment::Propose(Proposed::TakeSnapshot), Deed::Late { ms: 3_000 });
    sim.operator(Operator::Snapshot { resource: 0, drop: None });
    sim.run_ms(2_000);
    assert_eq!((sim.count("trap at TakeSnapshot"), sim.count("H7 answer done")), (1, 0));
    sim.until_count("H7 answer done", 1, 3_000);
    sim.expect_seen("operator is told, of 'take snapshot s1 of r0': done");
    sim.settle();
}

/// A death is about no resource, so it springs the traps of every resource.
#[test]
fn the_agent_that_declares_a_node_dead_dies_itself() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write(7);
    let whom = Side::Actor;
    sim.trap(Moment::Propose(Proposed::NodeDead), Deed::KillAgent { whom, restart_after_ms: 3_000 });
    sim.power_cut(s);
    sim.until_count("trap at NodeDead", 1, 10_000);
    sim.until_count("F21 agent killed", 1, 100);
    sim.run_ms(10_000);
    sim.power_on(s);
    sim.settle();
}

/// F24: the old primary goes on after minutes, in a history in which it is not a member. It is
/// taken back.
#[test]
fn a_primary_that_stood_still_for_minutes_is_taken_back() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.pause_machine(p, 200_000);
    sim.until_primary_is_not(p, 10_000);
    // The device of the paused machine stays, and does not answer.
    for block in 0..60 {
        sim.write_without_waiting(block);
        sim.run_ms(3_000);
    }
    sim.run_ms(20_000);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.write(7);
    assert_ne!(sim.primary(), Some(p));
    sim.settle();
}
