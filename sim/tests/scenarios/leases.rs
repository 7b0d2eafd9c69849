//! Leases and pauses: a node that cannot know whether it may act does not act (R10, R19).

use mainstay_sim::plan::{ClientOp, DiskFault, Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};

#[test]
fn a_primary_that_stands_still_for_longer_than_its_lease_answers_nothing_afterwards() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.pause_machine(p, 8_000);
    // The requests wait in its queue. The primary must not answer them from its old knowledge.
    sim.client(ClientOp::Read { volume: 0, block: 7, blocks: 1 });
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 6_000);
    sim.run_ms(1_000);
    sim.write_at(s, 7);
    sim.run_ms(6_000);
    sim.read(7);
    sim.settle();
}

#[test]
fn a_machine_that_stands_still_for_less_than_its_lease_goes_on() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.pause_machine(p, 700);
    sim.write(7);
    sim.run_ms(3_000);
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), 1));
    sim.settle();
}

#[test]
fn an_agent_alone_stands_still_and_the_guard_acts() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.fault(Fault::PauseAgent { target: n(p), ms: 8_000 });
    // The engine is well, but the lease runs out.
    sim.expect_service_gone_within_ms(p, 2_000);
    assert_eq!(sim.count("R19 the guard acted"), 1);
    sim.until_primary_is_not(p, 6_000);
    let next = sim.primary().expect("a node is primary");
    sim.expect_service_on_within_ms(next, 5_000);
    sim.settle();
}

#[test]
fn an_engine_alone_stands_still_and_the_others_go_on() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.fault(Fault::PauseEngine { target: n(p), ms: 5_000 });
    sim.write_without_waiting(7);
    sim.run_ms(6_000);
    sim.write(7);
    sim.settle();
}

/// R19: the disk hangs and reports no error; the agent and the engine are well.
#[test]
fn a_primary_whose_disk_hangs_hands_over() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.disk(p, DiskFault::Stall { ms: 30_000 });
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 7_000);
    sim.expect_service_gone_within_ms(p, 0);
    let next = sim.primary().expect("one of the others");
    sim.expect_service_on_within_ms(next, 3_000);
    sim.write_at(next, 7);
    sim.settle();
}

/// Only the leader of the control plane proposes that a node is dead, and here it is that node
/// itself: its agent is well, its engine is not.
#[test]
fn a_primary_that_leads_the_control_plane_and_whose_engine_stands_still_hands_over() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.make_leader(p);
    sim.fault(Fault::PauseEngine { target: n(p), ms: 30_000 });
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 9_000);
    let next = sim.primary().expect("one of the others");
    sim.expect_service_on_within_ms(next, 3_000);
    assert_eq!(sim.leader(), Some(p), "its agent is well");
    sim.settle();
}

/// No member can do better than the primary, so it keeps its role.
#[test]
fn a_primary_keeps_its_role_if_all_disks_hang() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    for node in [p, s, t] {
        sim.disk(node, DiskFault::Stall { ms: 9_000 });
    }
    sim.write_without_waiting(7);
    sim.run_ms(8_900);
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), 1));
    sim.settle();
}

#[test]
fn an_engine_of_a_secondary_stands_still_and_leaves() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.fault(Fault::PauseEngine { target: n(s), ms: 5_000 });
    sim.write(7);
    assert_eq!(sim.primary(), Some(p));
    assert!(!sim.iss().contains(&s));
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

#[test]
fn a_killed_agent_interrupts_no_client() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    for block in 0..5 {
        sim.kill_agent(p);
        sim.write(block);
        sim.run_ms(600);
    }
    sim.expect_service_on_within_ms(p, 1_000);
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), 1));
    sim.settle();
}

#[test]
fn an_agent_that_stood_still_starts_the_silenced_service_anew() {
    // A node alone renews its lease as soon as it wakes, before it hears that the guard has acted.
    for moment in 0..20 {
        let mut sim = Scenario::new(Shape::small(1, 1, true), 1);
        sim.run_ms(moment * 10);
        sim.fault(Fault::PauseAgent { target: n(1), ms: 2_500 });
        sim.run_ms(2_000);
        assert_eq!(sim.count("R19 the guard acted"), 1);
        sim.expect_service_on_within_ms(1, 10_000);
        sim.settle();
    }
}

#[test]
fn a_machine_that_stood_still_starts_the_silenced_service_anew() {
    for moment in 0..20 {
        let mut sim = Scenario::new(Shape::small(1, 1, true), 1);
        sim.run_ms(moment * 10);
        sim.pause_machine(1, 2_500);
        sim.run_ms(3_000);
        sim.expect_service_on_within_ms(1, 10_000);
        sim.settle();
    }
}

#[test]
fn a_restarted_agent_starts_the_silenced_service_anew() {
    let mut sim = Scenario::new(Shape::small(1, 1, true), 1);
    sim.expect_service_on_within_ms(1, 10_000);
    let epoch = sim.epoch();
    sim.fault(Fault::KillAgent { target: n(1), restart_after_ms: 2_500 });
    sim.expect_service_gone_within_ms(1, 2_200);
    assert_eq!(sim.count("R19 the guard acted"), 1);
    // The agent knows the service as running, and has a lease at once. It starts the service again
    // in an epoch of its own.
    sim.until_epoch(epoch + 1, 5_000);
    sim.expect_service_on_within_ms(1, 10_000);
    sim.settle();
}

#[test]
fn a_restarted_agent_forgot_which_epoch_was_silenced() {
    // The agent starts with an older state without a primary. So it does not use its knowledge of
    // the service.
    for moment in 0..30 {
        let mut sim = Scenario::new(Shape::small(1, 1, true), moment);
        sim.expect_service_on_within_ms(1, 10_000);
        sim.fault(Fault::PauseAgent { target: n(1), ms: 2_500 });
        sim.run_ms(2_510 + moment * 10);
        sim.kill_agent(1);
        sim.settle();
    }
}

#[test]
fn an_engine_is_killed_and_its_services_start_again() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.kill_engine(p);
    sim.until_epoch(2, 8_000);
    let next = sim.primary().expect("a node is primary");
    sim.expect_service_on_within_ms(next, 20_000);
    sim.read(7);
    sim.settle();
}

#[test]
fn clocks_run_one_per_cent_fast_and_slow() {
    for turn in 0..3 {
        let mut clocks = [10_000, -10_000, 0];
        clocks.rotate_right(turn);
        let mut sim = Scenario::new(Shape { clock_ppm: clocks.into(), ..Shape::small(3, 3, true) }, 1);
        for _ in 0..3 {
            let [p, ..] = sim.cast();
            sim.write(7);
            sim.isolate(p);
            sim.write_without_waiting(7);
            sim.until_primary_is_not(p, 8_000);
            sim.write(7);
            sim.heal();
            sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
        }
        sim.settle();
    }
}
