//! Replicas that are added, removed and moved (R4, R9, R11, R16).

use mainstay_control::state::Resource;
use mainstay_sim::plan::{DiskFault, DiskOp, Fault, ServiceFault, Shape};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::NodeId;

#[test]
fn an_added_replica_is_filled_and_takes_over() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.write_many(40);
    sim.add_replica(w);
    sim.expect_replicas_within_ms(&[1, 2, 3], 20_000);
    sim.write(7);
    // Of the replicas that have everything only the new one is left.
    sim.power_cut(s);
    let mut left = [p, w];
    left.sort_unstable();
    sim.expect_iss_within_ms(&left, 8_000);
    sim.write(8);
    sim.power_cut(p);
    sim.power_on(s);
    sim.expect_primary_within_ms(w, 20_000);
    sim.read(7);
    sim.read(8);
    sim.settle();
}

#[test]
fn a_removed_replica_is_not_waited_for() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.power_cut(t);
    sim.remove_replica(t);
    sim.write(1);
    let mut left = [p, s];
    left.sort_unstable();
    sim.expect_iss_within_ms(&left, 3_000);
    sim.power_on(t);
    sim.expect_replicas_within_ms(&left, 20_000);
    sim.settle();
}

#[test]
fn the_primary_s_replica_moves_under_load_and_its_service_with_it() {
    let mut sim = Scenario::new(Shape::small(3, 2, true), 3);
    let [p, s, w] = sim.cast();
    sim.expect_service_on_within_ms(p, 10_000);
    sim.write_many(30);
    sim.move_replica(p, w);
    sim.write_many(30);
    let mut left = [s, w];
    left.sort_unstable();
    sim.expect_replicas_within_ms(&left, 40_000);
    sim.expect_service_on_within_ms(w, 10_000);
    sim.settle();
}

#[test]
fn a_dead_node_s_replica_is_replaced_and_goes_when_the_node_returns() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.write_many(20);
    sim.power_cut(s);
    sim.write(1);
    sim.move_replica(s, w);
    sim.until("the new one is in sync and the old one forgotten", 20_000, |world| {
        world
            .state()
            .resources
            .values()
            .all(|known| known.moving.is_empty() && known.record.iss.iter().any(|member| member.node.0 == w))
    });
    sim.power_on(s);
    let mut left = [p, w];
    left.sort_unstable();
    sim.expect_replicas_within_ms(&left, 20_000);
    sim.settle();
}

#[test]
fn a_move_goes_on_when_everything_lost_power_in_the_middle() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.write_many(40);
    sim.move_replica(s, w);
    sim.until("the new replica is registered", 10_000, |world| {
        world
            .state()
            .resources
            .values()
            .all(|known| known.record.replicas.iter().any(|member| member.node.0 == w))
    });
    for node in [p, s, w] {
        sim.power_cut(node);
    }
    for node in [p, s, w] {
        sim.power_on(node);
    }
    let mut left = [p, w];
    left.sort_unstable();
    sim.expect_replicas_within_ms(&left, 40_000);
    sim.settle();
}

/// The label of a replica goes before its files, and a replica without a label is nothing.
#[test]
fn a_removal_goes_on_when_the_node_lost_power_in_the_middle() {
    for wait_us in (0..30_000).step_by(1_500) {
        let mut sim = Scenario::three();
        let [p, s, t] = sim.cast();
        sim.write(1);
        sim.remove_replica(t);
        sim.run_us(wait_us);
        sim.power_cut(t);
        sim.run_ms(100);
        sim.power_on(t);
        let mut left = [p, s];
        left.sort_unstable();
        sim.expect_replicas_within_ms(&left, 20_000);
        sim.settle();
    }
}

/// A replica gets its label when its files are complete. So a half-made replica is made anew (R9).
#[test]
fn a_replica_is_made_although_its_node_lost_power_in_the_middle() {
    for wait_us in (0..90_000).step_by(3_000) {
        let mut sim = Scenario::two_and_a_witness();
        let [_, _, w] = sim.cast();
        sim.write(1);
        sim.add_replica(w);
        sim.run_us(wait_us);
        sim.power_cut(w);
        sim.run_ms(100);
        sim.power_on(w);
        sim.expect_replicas_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    }
}

/// Two processes of the agent have the same replica made, and the engine is slow.
#[test]
fn a_replica_is_made_although_an_earlier_agent_had_it_made_too() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.write(1);
    sim.fault(Fault::PauseEngine { target: n(w), ms: 500 });
    sim.add_replica(w);
    sim.run_ms(100);
    sim.kill_agent(w);
    let mut all = [p, s, w];
    all.sort_unstable();
    sim.expect_replicas_within_ms(&all, 20_000);
    sim.settle();
}

#[test]
fn files_that_an_operator_removes_are_made_anew_by_the_agent_that_runs() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write_many(20);
    sim.disk(s, DiskFault::Remove);
    sim.write(1);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

/// The connections of its node stay, so only the replica itself can tell its primary.
#[test]
fn a_replica_that_is_opened_anew_while_clients_write_is_in_sync_again() {
    for seed in 1..=5 {
        let mut sim = Scenario::new(Shape::small(3, 3, false), seed);
        let [_, s, _] = sim.cast();
        sim.write(1);
        sim.disk(s, DiskFault::Copied);
        write_for_a_second(&mut sim);
        sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
        sim.write(1);
        sim.settle();
    }
}

fn write_for_a_second(sim: &mut Scenario) {
    for block in 0..100 {
        sim.write_without_waiting(block % 16);
        sim.run_ms(10);
    }
}

/// Seed 247: the disk rests late, and the agent that is started meanwhile hears of no replica that
/// is open.
#[test]
fn a_replica_is_opened_anew_although_its_agent_ended_while_it_was_being_closed() {
    for wait_ms in [1, 20, 300] {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.write(1);
        sim.disk(s, DiskFault::Late { what: DiskOp::VolumeWrite, ms: 1_000 });
        write_for_a_second(&mut sim);
        sim.disk(s, DiskFault::Late { what: DiskOp::VolumeWrite, ms: 1_000 });
        sim.disk(s, DiskFault::Late { what: DiskOp::JournalWrite, ms: 1_000 });
        sim.write_without_waiting(1);
        sim.run_ms(5);
        sim.disk(s, DiskFault::Copied);
        sim.until_seen(s, "closed, to remove it", 5_000);
        sim.run_ms(wait_ms);
        sim.kill_agent(s);
        write_for_a_second(&mut sim);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    }
}

#[test]
fn a_primary_s_replica_is_opened_anew_while_clients_write() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(1);
    sim.disk(p, DiskFault::Copied);
    write_for_a_second(&mut sim);
    sim.until_primary_is_not(p, 10_000);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.write(1);
    sim.settle();
}

#[test]
fn a_replica_that_is_being_copied_to_is_opened_anew() {
    for wait_ms in [0, 5, 20, 60, 200] {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.write_many(100);
        sim.disk(s, DiskFault::Remove);
        sim.until_seen(s, "is open: its log ends", 5_000);
        sim.run_ms(wait_ms);
        sim.disk(s, DiskFault::Copied);
        write_for_a_second(&mut sim);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    }
}

#[test]
fn a_follower_in_mode_a_is_opened_anew_while_clients_write() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.expect_iss_within_ms(&[p], 1_000);
    sim.disk(s, DiskFault::Copied);
    write_for_a_second(&mut sim);
    sim.expect_acknowledged_within_ms(10_000);
    sim.mode_c();
    sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    sim.settle();
}

#[test]
fn a_replica_in_mode_b_is_opened_anew_while_clients_write() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.mode_b();
    sim.write(1);
    sim.disk(s, DiskFault::Copied);
    write_for_a_second(&mut sim);
    sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    sim.write(1);
    sim.settle();
}

/// A report that was under way while the disk was replaced says nothing about the new one (R9).
#[test]
fn a_late_report_of_an_earlier_disk_does_not_count() {
    let mut sim = Scenario::with_service();
    let [p, _, _] = sim.cast();
    let late = sim.report_of(p);
    for _ in 0..2 {
        sim.disk(p, DiskFault::Replace);
        sim.run_ms(500);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    }
    sim.move_service(p);
    sim.expect_service_on_within_ms(p, 20_000);
    sim.arrives_late(late);
    sim.run_ms(1_000);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

/// R21: the service had failed on that node with another replica, or with none.
#[test]
fn a_primary_moves_to_a_new_replica_where_its_service_had_failed() {
    let mut sim = Scenario::new(Shape::small(3, 3, true), 3);
    let [p, s, _] = sim.cast();
    sim.expect_service_on_within_ms(p, 10_000);
    sim.service(s, ServiceFault::FailStart);
    sim.move_service(s);
    sim.until("it has failed there and is back", 60_000, |world| {
        world.state().services.values().all(|service| service.failed_on(NodeId(s)))
    });
    sim.expect_service_on_within_ms(p, 20_000);
    sim.service(s, ServiceFault::Well);
    sim.remove_replica(s);
    sim.until("the old one is gone", 20_000, |world| {
        let gone = |known: &Resource| known.leaving.is_empty() && !known.spec.replicas.contains(&NodeId(s));
        world.state().resources.values().all(gone)
    });
    sim.move_replica(p, s);
    sim.expect_service_on_within_ms(s, 40_000);
    sim.settle();
}
