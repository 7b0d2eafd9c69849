//! Replicas that are added, removed and moved (R4, R9, R11, R16).

use mainstay_sim::plan::Shape;
use mainstay_sim::scenario::Scenario;

#[test]
fn an_added_replica_is_filled_and_takes_over() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.write_many(40);
    sim.add_replica(w);
    sim.expect_replicas_within_ms(&[1, 2, 3], 20_000);
    sim.write(7);
    // Only the new one is left of those who have everything.
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
