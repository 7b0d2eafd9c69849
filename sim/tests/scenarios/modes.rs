//! Mode A and forced promotions (R11).

use mainstay_sim::plan::Shape;
use mainstay_sim::scenario::Scenario;

#[test]
fn in_mode_a_the_primary_goes_on_alone_and_no_replica_takes_over_by_itself() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.expect_iss_within_ms(&[p], 1_000);
    sim.write(1);
    sim.run_ms(500);
    sim.cut(p, s);
    sim.cut(p, t);
    sim.write(2);
    sim.power_cut(p);
    sim.expect_no_device_for_ms(15_000);
    assert!(sim.stated_failure().is_some_and(|why| why.contains("everything that was acknowledged")));
    sim.heal();
    sim.power_on(p);
    sim.expect_primary_within_ms(p, 10_000);
    sim.read(1);
    sim.read(2);
    sim.mode_c();
    sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    sim.settle();
}

#[test]
fn the_loss_by_a_forced_promotion_is_told_when_the_old_primary_returns() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.write(1);
    sim.run_ms(500);
    sim.cut(p, s);
    sim.cut(p, t);
    sim.write(2);
    sim.write(3);
    sim.power_cut(p);
    sim.expect_no_device_within_ms(10_000);
    sim.force();
    sim.expect_primary_within_ms(s, 15_000);
    sim.write(4);
    assert_eq!(sim.stated_loss(), None, "no node knows yet");
    sim.heal();
    sim.power_on(p);
    sim.settle();
    let (from, to) = sim.stated_loss().expect("it has returned");
    assert_eq!(to - from + 1, 2, "blocks 2 and 3: {from} to {to}");
    sim.read(1);
    sim.read(4);
}

#[test]
fn a_service_moves_in_mode_a_and_loses_nothing() {
    let mut sim = Scenario::new(Shape::small(3, 3, true), 3);
    let [p, s, _] = sim.cast();
    sim.expect_service_on_within_ms(p, 10_000);
    sim.mode_a(24, 5_000);
    sim.write_many(10);
    sim.move_service(s);
    sim.write_many(10);
    sim.expect_service_on_within_ms(s, 30_000);
    sim.expect_iss_within_ms(&[s], 5_000);
    sim.settle();
}

#[test]
fn a_replica_moves_in_mode_a() {
    let mut sim = Scenario::new(Shape::small(3, 2, false), 3);
    let [p, s, w] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.write_many(10);
    sim.move_replica(s, w);
    sim.until("the replica has moved", 40_000, |world| {
        let spec = &world.state().resources.values().next().expect("a resource").spec;
        spec.replicas.iter().all(|node| node.0 != s) && spec.replicas.iter().any(|node| node.0 == w)
    });
    sim.expect_iss_within_ms(&[p], 5_000);
    sim.settle();
}

/// A primary stands still since before the end of its lease, and wakes up when another history has
/// begun. It acknowledges nothing.
#[test]
fn a_primary_that_wakes_up_in_another_history_acknowledges_nothing() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.write(1);
    sim.run_ms(500);
    sim.write_without_waiting(2);
    sim.run_us(150);
    sim.pause_machine(p, 12_000);
    sim.run_ms(4_000);
    sim.force();
    sim.expect_primary_within_ms(s, 8_000);
    sim.run_ms(8_000);
    sim.settle();
}

#[test]
fn with_takeover_a_follower_goes_on_by_itself_and_the_limits_bound_the_loss() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_a_with_takeover(16, 5_000);
    sim.write(1);
    sim.run_ms(2_000);
    sim.cut(p, s);
    sim.cut(p, t);
    // A lease lasts longer than the writes need to reach the limit.
    for block in 2..12 {
        sim.write_without_waiting(block);
        sim.run_ms(20);
    }
    sim.power_cut(p);
    sim.heal();
    sim.until_primary_is_not(p, 15_000);
    sim.run_ms(3_000);
    sim.read(1);
    sim.power_on(p);
    sim.settle();
    let (from, to) = sim.stated_loss().expect("something was lost");
    assert!((2..=9).contains(&(to - from + 1)), "{from} to {to}");
}
