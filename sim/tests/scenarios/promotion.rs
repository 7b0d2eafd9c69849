//! Promotion, the start of an epoch (R5, R6), and the return of an old primary (R7).

use mainstay_sim::plan::{DiskFault, Fault};
use mainstay_sim::scenario::{Scenario, n};

#[test]
fn a_secondary_takes_over_with_everything() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.power_cut(p);
    sim.expect_primary_within_ms(s, 8_000);
    sim.read(7);
    sim.write(7);
    assert_eq!(sim.epoch(), 2);
    sim.settle();
}

/// The handover is planned: it waits for no lease, and the set of replicas in sync stays whole.
#[test]
fn an_operator_moves_a_primary_without_a_service_there_and_back() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.move_primary(s);
    sim.expect_primary_within_ms(s, 1_000);
    sim.read(7);
    sim.write(8);
    sim.move_primary(p);
    sim.expect_primary_within_ms(p, 1_000);
    assert_eq!((sim.epoch(), sim.iss()), (3, vec![1, 2, 3]));
    sim.read(8);
    sim.settle();
}

#[test]
fn a_primary_is_moved_whose_agent_ends_at_that_moment() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.move_primary(s);
    sim.kill_agent(p);
    sim.until_primary_is_not(p, 20_000);
    sim.read(7);
    sim.settle();
}

#[test]
fn a_primary_moves_in_mode_a_after_the_follower_has_everything() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.write_many(10);
    sim.cut(p, s);
    sim.write_many(10);
    sim.move_primary(s);
    sim.run_ms(500);
    assert_eq!(sim.primary(), Some(p), "it lacks entries that were acknowledged");
    sim.heal();
    sim.expect_primary_within_ms(s, 20_000);
    sim.expect_iss_within_ms(&[s], 5_000);
    sim.settle();
}

#[test]
fn a_new_primary_does_not_serve_before_its_epoch_start_is_committed() {
    let mut sim = Scenario::three();
    let [p, _, t] = sim.cast();
    sim.write(7);
    sim.power_cut(p);
    sim.disk(t, DiskFault::Stall { ms: 3_000 });
    sim.until_epoch(2, 6_000);
    sim.disk(t, DiskFault::Stall { ms: 900 });
    sim.expect_no_device_for_ms(600);
    sim.read(7);
    sim.settle();
}

#[test]
fn an_old_primary_that_was_cut_off_cuts_its_tail() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.isolate(p);
    for _ in 0..3 {
        sim.write_without_waiting(7);
    }
    sim.expect_primary_within_ms(s, 8_000);
    sim.write(7);
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.expect_seen("cut your log after");
    sim.settle();
}

#[test]
fn an_old_primary_that_died_with_a_tail_on_disk_cuts_it() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    sim.fault(Fault::CutEngines(n(p), n(s)));
    sim.fault(Fault::CutEngines(n(p), n(t)));
    for _ in 0..3 {
        sim.write_without_waiting(7);
    }
    sim.run_ms(100);
    sim.power_cut(p);
    sim.heal();
    sim.expect_primary_within_ms(s, 8_000);
    sim.write(7);
    sim.power_on(p);
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.expect_seen("cut your log after");
    sim.settle();
}

#[test]
fn an_old_primary_returns_in_the_middle_of_the_promotion() {
    for moment in (0..600).step_by(60) {
        let mut sim = Scenario::three();
        let [p, ..] = sim.cast();
        sim.write(7);
        sim.isolate(p);
        sim.write_without_waiting(7);
        sim.run_ms(1_800 + moment);
        sim.heal();
        sim.write(7);
        sim.settle();
    }
}

#[test]
fn the_new_primary_dies_at_its_epoch_start() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    sim.power_cut(p);
    sim.until_epoch(2, 6_000);
    sim.power_cut(s);
    sim.power_on(p);
    sim.expect_primary_within_ms(t, 10_000);
    sim.read(7);
    sim.settle();
}

#[test]
fn a_primary_whose_engine_was_restarted_needs_a_new_epoch() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.write_without_waiting(7);
    sim.kill_engine(p);
    sim.until_epoch(2, 8_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn failovers_go_round() {
    let mut sim = Scenario::three();
    for _ in 0..6 {
        let [p, ..] = sim.cast();
        sim.write(7);
        sim.power_cut(p);
        sim.until_primary_is_not(p, 8_000);
        sim.write(7);
        sim.power_on(p);
        sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    }
    assert!(sim.epoch() >= 7);
    sim.settle();
}
