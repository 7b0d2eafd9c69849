//! Devices that fail, and devices that an engine leaves when it dies or is replaced: R5, R19, R20.

use mainstay_silence::LEFT_MS_MAX;
use mainstay_sim::plan::{ClientOp, DiskFault, Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};

const KILLED: &str = "R19 a service was killed before its device failed";
const TAKEN_OVER: &str = "R5 a left device is taken over";
const GIVEN_UP: &str = "R20 a left device is given up";

const GOES_ON: &str = "S560 a service goes on in a later epoch";
const SAME_DEVICES: &str = "S560 an engine goes on with the devices of the one before";

#[test]
fn an_engine_is_replaced_under_a_service() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.run_ms(1_000);
    let (epoch, refused) = (sim.epoch(), sim.refused());
    for round in 1..=3 {
        sim.write_without_waiting(7);
        sim.fault(Fault::ReplaceEngine { target: n(p), gap_ms: 200 });
        sim.write_without_waiting(8);
        sim.expect_acknowledged_within_ms(3_000);
        sim.until_count(GOES_ON, round, 1_000);
        sim.expect_service_on_within_ms(p, 0);
    }
    assert_eq!((sim.primary(), sim.epoch(), sim.refused()), (Some(p), epoch + 3, refused));
    assert_eq!((sim.count(SAME_DEVICES), sim.count(KILLED)), (3, 0));
    sim.settle();
}

#[test]
fn a_service_is_killed_and_runs_elsewhere_when_no_engine_comes_for_its_devices() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.run_ms(1_000);
    sim.fault(Fault::ReplaceEngine { target: n(p), gap_ms: 60_000 });
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 15_000);
    sim.expect_service_gone_within_ms(p, 0);
    assert_eq!((sim.count("S561 no engine came for the devices"), sim.count(GOES_ON)), (1, 0));
    sim.settle();
}

#[test]
fn a_service_starts_anew_when_the_next_engine_dies_too() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.run_ms(1_000);
    sim.fault(Fault::ReplaceEngine { target: n(p), gap_ms: 10 });
    sim.run_ms(15);
    sim.kill_engine(p);
    sim.until_count(KILLED, 1, 1_000);
    sim.settle();
    assert_eq!((sim.count(GOES_ON), sim.count(SAME_DEVICES)), (0, 0));
}

#[test]
fn a_service_is_killed_before_its_device_answers_an_error() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.disk(p, DiskFault::WriteError);
    sim.write_without_waiting(7);
    sim.until_count(KILLED, 1, 5_000);
    sim.until_primary_is_not(p, 15_000);
    sim.settle();
}

#[test]
fn the_next_engine_answers_what_was_asked_of_the_one_before() {
    let mut sim = Scenario::new(Shape::small(1, 1, false), 1);
    sim.keep_devices();
    sim.write(7);
    sim.write_without_waiting(7);
    sim.kill_engine(1);
    sim.write_without_waiting(8);
    sim.client(ClientOp::Read { volume: 0, block: 7, blocks: 1 });
    let refused = sim.refused();
    sim.expect_acknowledged_within_ms(10_000);
    assert_eq!((sim.refused(), sim.count(TAKEN_OVER)), (refused, 1));
    sim.settle();
}

#[test]
fn a_left_device_fails_in_the_end_when_no_engine_comes() {
    let mut sim = Scenario::new(Shape::small(1, 1, false), 1);
    sim.keep_devices();
    sim.write(7);
    sim.write_without_waiting(7);
    sim.fault(Fault::KillEngine { target: n(1), restart_after_ms: 2 * LEFT_MS_MAX });
    sim.run_ms(LEFT_MS_MAX - 1_000);
    assert_eq!((sim.unanswered(), sim.count(GIVEN_UP)), (1, 0));
    sim.expect_acknowledged_within_ms(2_000);
    assert_eq!(sim.count(GIVEN_UP), 1);
    sim.settle();
}

#[test]
fn a_left_device_under_a_service_fails_at_once_after_the_service_was_killed() {
    let mut sim = Scenario::with_service();
    sim.keep_devices();
    let [p, ..] = sim.cast();
    sim.fault(Fault::KillEngine { target: n(p), restart_after_ms: 60_000 });
    sim.until_count(GIVEN_UP, 1, 2_000);
    sim.expect_service_gone_within_ms(p, 5_000);
    sim.settle();
}
