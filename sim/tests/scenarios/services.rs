//! Services on top of a primary (R19 to R22).

use mainstay_sim::plan::{DiskFault, Fault, ServiceFault, Shape};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::NodeId;

#[test]
fn a_service_follows_its_primary() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.power_cut(p);
    sim.expect_primary_within_ms(s, 8_000);
    sim.expect_service_on_within_ms(s, 3_000);
    sim.settle();
}

#[test]
fn a_service_starts_only_after_the_epoch_start() {
    let mut sim = Scenario::with_service();
    let [p, s, t] = sim.cast();
    sim.power_cut(p);
    sim.disk(t, DiskFault::Stall { ms: 3_000 });
    sim.until_epoch(2, 6_000);
    sim.disk(t, DiskFault::Stall { ms: 900 });
    sim.run_ms(600);
    sim.expect_service_gone_within_ms(s, 0);
    sim.expect_service_on_within_ms(s, 5_000);
    sim.settle();
}

#[test]
fn an_isolated_node_is_silent_before_another_one_starts() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.isolate(p);
    sim.expect_service_gone_within_ms(p, 2_000);
    assert_eq!(sim.primary(), Some(p), "and no other node was promoted before");
    sim.expect_service_on_within_ms(s, 10_000);
    sim.settle();
}

#[test]
fn a_service_that_ignores_the_stop_signal_is_killed() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.service(p, ServiceFault::IgnoreStop);
    sim.move_service(s);
    // The process may take five seconds after the signal. Until then no other node is promoted.
    sim.run_ms(4_500);
    assert_eq!(sim.primary(), Some(p));
    sim.expect_service_on_within_ms(s, 10_000);
    sim.expect_service_gone_within_ms(p, 0);
    sim.settle();
}

#[test]
fn an_address_that_cannot_be_taken_away_counts_as_there() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.service(p, ServiceFault::KeepAddress);
    sim.move_service(s);
    sim.expect_service_on_within_ms(s, 20_000);
    sim.expect_seen("the kernel refused to remove the address");
    sim.settle();
}

#[test]
fn a_service_that_starts_nowhere_stops_and_says_why() {
    let mut sim = Scenario::with_service();
    for node in 1..=3 {
        sim.service(node, ServiceFault::FailStart);
    }
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Dies);
    sim.until("the service is halted, and says why", 90_000, |world| {
        world.state().services["s0"].halted.as_ref().is_some_and(|why| !why.is_empty())
    });
    for node in 1..=3 {
        sim.expect_service_gone_within_ms(node, 0);
    }
    sim.write(7);
    sim.settle();
}

#[test]
fn a_service_that_does_not_start_here_goes_elsewhere() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::FailStart);
    sim.service(p, ServiceFault::Dies);
    sim.until_primary_is_not(p, 60_000);
    let next = sim.primary().expect("a node is primary");
    sim.expect_service_on_within_ms(next, 10_000);
    sim.settle();
}

#[test]
fn a_service_is_moved_there_and_back() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.write(7);
    sim.move_service(s);
    sim.expect_service_on_within_ms(s, 5_000);
    sim.read(7);
    sim.move_service(p);
    sim.expect_service_on_within_ms(p, 5_000);
    assert_eq!(sim.epoch(), 3);
    sim.settle();
}

/// The node forgot in the reboot that it ran the service. It was never dead, so the control plane
/// did not forget, and waited for the report of a stop that could not come.
#[test]
fn a_service_is_deleted_although_its_node_was_restarted() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.power_cut(p);
    sim.delete_service();
    sim.power_on(p);
    sim.expect_service_deleted_within_ms(20_000);
    sim.settle();
}

/// H14: the resource goes on as a volume.
#[test]
fn a_service_that_an_operator_stopped_stays_stopped_through_a_failover() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.stop_service();
    sim.expect_service_gone_within_ms(p, 5_000);
    assert_eq!(sim.primary(), Some(p), "its resource stays where it is");
    sim.write(7);
    sim.power_cut(p);
    sim.expect_primary_within_ms(s, 8_000);
    sim.read(7);
    sim.run_ms(5_000);
    for node in 1..=3 {
        sim.expect_service_gone_within_ms(node, 0);
    }
    sim.power_on(p);
    sim.start_service();
    sim.expect_service_on_within_ms(s, 10_000);
    sim.settle();
}

#[test]
fn a_service_that_an_operator_stopped_is_stopped_when_everything_has_healed() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.stop_service();
    sim.run_ms(50);
    sim.kill_agent(p);
    sim.settle();
    for node in 1..=3 {
        sim.expect_service_gone_within_ms(node, 0);
    }
}

#[test]
fn a_service_that_an_operator_restarts_stays_on_its_node_without_a_failure() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    let epoch = sim.epoch();
    sim.restart_service();
    sim.until("the restart is done", 10_000, |world| {
        let told = &world.state().events;
        told.iter().any(|event| event.text == "is restarted in place")
    });
    sim.expect_service_on_within_ms(p, 5_000);
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), epoch));
    let failures = sim.world.state().services["s0"].failures_on(NodeId(p));
    assert_eq!(failures, 0);
    sim.settle();
}

#[test]
fn a_process_that_dies_is_started_again() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 10_000);
    sim.expect_seen("its process ended by itself");
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn a_process_that_stands_still_is_killed_and_started_again() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::StandsStill);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 20_000);
    sim.expect_seen("process db does not answer: there was no answer");
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn a_process_whose_probe_fails_once_goes_on() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::FailProbe);
    sim.run_ms(20_000);
    sim.expect_seen("Unhealthy");
    sim.expect_service_on_within_ms(p, 0);
    sim.settle();
}

#[test]
fn a_process_that_recovers_from_a_crash_is_left_alone() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Recovers);
    sim.run_ms(60_000);
    sim.expect_seen("Recovering");
    sim.expect_service_on_within_ms(p, 0);
    sim.settle();
}

/// S726: the process is started again in place and counts no failure, however often a check says
/// no. With the arguments it comes back only in a later start.
#[test]
fn a_process_whose_pages_can_tear_is_started_again_in_place() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    for _ in 0..5 {
        sim.service(p, ServiceFault::PagesTear);
        assert!(sim.is_outdated(p));
        sim.run_ms(3_000);
        sim.expect_service_on_within_ms(p, 0);
        sim.service(p, ServiceFault::PagesTear);
        assert!(!sim.is_outdated(p), "it runs without the arguments");
        sim.service(p, ServiceFault::Well);
        sim.restart_service();
        sim.run_ms(3_000);
        sim.expect_service_on_within_ms(p, 0);
    }
    sim.expect_seen("because pages can tear now");
    assert_eq!((sim.primary(), sim.epoch()), (Some(p), 1));
    sim.service(p, ServiceFault::PagesTear);
    sim.power_cut(p);
    sim.expect_service_on_within_ms(s, 15_000);
    sim.power_on(p);
    sim.settle();
}

/// S726: the agent was killed after the check had said no. The next one knows of it.
#[test]
fn a_later_agent_starts_a_process_again_whose_pages_can_tear() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.kill_agent(p);
    sim.service(p, ServiceFault::PagesTear);
    sim.run_ms(5_000);
    sim.expect_service_on_within_ms(p, 5_000);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn a_file_system_that_an_operator_unmounts_is_mounted_again() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.service(p, ServiceFault::Unmounted);
    sim.run_ms(1_500);
    sim.expect_service_on_within_ms(p, 10_000);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn an_agent_that_was_restarted_does_not_mount_under_a_running_process() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.kill_agent(p);
    sim.service(p, ServiceFault::Unmounted);
    sim.run_ms(1_500);
    sim.expect_service_on_within_ms(p, 10_000);
    sim.settle();
}

#[test]
fn an_address_that_was_off_was_taken_on_an_old_probe() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    // The service is stopped down to its process, and started again after a pause. By then the
    // probe of the first start is old.
    sim.service(p, ServiceFault::Dies);
    sim.run_ms(50);
    sim.expect_service_on_within_ms(p, 10_000);
    sim.settle();
}

#[test]
fn a_probe_still_counted_after_the_engine_was_killed() {
    // The agent first hears of the probe's end, and then that the engine is gone. It asked for the
    // address all the same.
    for moment in 0..30 {
        let mut sim = Scenario::new(Shape::small(3, 3, true), 1);
        let [p, ..] = sim.cast();
        sim.run_ms(moment * 10);
        sim.fault(Fault::PauseAgent { target: n(p), ms: 400 });
        sim.run_ms(300);
        sim.kill_engine(p);
        sim.settle();
    }
}

#[test]
fn a_step_that_hangs_is_undone() {
    let mut sim = Scenario::with_service();
    let [_, s, _] = sim.cast();
    sim.service(s, ServiceFault::Hang);
    sim.move_service(s);
    sim.run_ms(2_000);
    sim.settle();
}

#[test]
fn steps_that_were_queued_when_the_lease_was_lost_still_began() {
    for moment in 0..25 {
        let mut sim = Scenario::new(Shape::small(3, 3, true), 1);
        let [p, ..] = sim.cast();
        // The agent is killed in the middle of the start. When it is back, another node has run the
        // service for long.
        sim.run_ms(moment * 10);
        sim.fault(Fault::KillAgent { target: n(p), restart_after_ms: 8_000 });
        sim.run_ms(10_000);
        sim.settle();
    }
}
