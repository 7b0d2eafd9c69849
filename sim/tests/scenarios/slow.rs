//! Slow members (P11, P12). They leave by the same shrink as other members, and return when they
//! have kept up for a while.

use mainstay_sim::plan::{DiskFault, Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::SlowLimits;

const QUIET_MS: u64 = 4_000;

fn scenario(replicas: u32, min_copies: u32) -> Scenario {
    let mut shape = Shape::small(3, replicas, false);
    shape.resources[0].slow =
        SlowLimits { quiet_ms: QUIET_MS, quiet_max_ms: 4 * QUIET_MS, min_copies, ..SlowLimits::default() };
    Scenario::new(shape, 1)
}

/// Writes every 10 ms, and does not wait for answers.
fn load(sim: &mut Scenario, ms: u64) {
    for step in 0..ms / 10 {
        sim.write_without_waiting(step % 100);
        sim.run_ms(10);
    }
}

#[test]
fn a_slow_disk_takes_its_replica_out_until_it_is_well() {
    let mut sim = scenario(3, 2);
    let [_, s, _] = sim.cast();
    load(&mut sim, 300);
    sim.disk(s, DiskFault::Slow { factor: 300 });
    load(&mut sim, 1_200);
    assert!(!sim.iss().contains(&s), "in sync {:?}", sim.iss());
    sim.expect_acknowledged_within_ms(50);
    load(&mut sim, 2 * QUIET_MS);
    assert!(!sim.iss().contains(&s), "it is as slow as before");
    sim.disk(s, DiskFault::Slow { factor: 1 });
    load(&mut sim, QUIET_MS - 500);
    assert!(!sim.iss().contains(&s), "it has to prove itself");
    load(&mut sim, 2_500);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}

#[test]
fn a_narrow_link_takes_a_replica_out() {
    let mut sim = scenario(3, 2);
    let [p, s, _] = sim.cast();
    load(&mut sim, 300);
    sim.fault(Fault::NarrowLink { a: n(p), b: n(s), kib_per_s: 64 });
    load(&mut sim, 1_500);
    assert!(!sim.iss().contains(&s), "in sync {:?}", sim.iss());
    sim.expect_acknowledged_within_ms(50);
    sim.settle();
}

/// The disk of the primary is slow, or its network, or all disks: no other member is to blame. All
/// exceed the limit of a millisecond. An operation of a slow disk takes two, and now and then 64
/// times as long (F14). That long one is over before its member counts as slow.
#[test]
fn a_cause_that_slows_every_member_costs_none() {
    for slow in [&[0][..], &[1, 2], &[0, 1, 2]] {
        let mut shape = Shape::small(3, 3, false);
        shape.resources[0].slow = SlowLimits { ack_ms: 1, min_copies: 1, ..SlowLimits::default() };
        let mut sim = Scenario::new(shape, 1);
        let cast = sim.cast();
        load(&mut sim, 300);
        for place in slow {
            sim.disk(cast[*place], DiskFault::Slow { factor: 10 });
        }
        load(&mut sim, 3_000);
        assert_eq!(sim.iss(), [1, 2, 3], "slow were {slow:?}");
        sim.settle();
    }
}

/// Row "A is slow (gray failure)" of the table: with two copies a slow secondary stays, unless one
/// copy is said to be enough.
#[test]
fn of_two_copies_a_slow_one_stays_unless_one_is_enough() {
    for min_copies in [2, 1] {
        let mut sim = scenario(2, min_copies);
        let [p, s, _] = sim.cast();
        load(&mut sim, 300);
        sim.disk(s, DiskFault::Slow { factor: 300 });
        load(&mut sim, 3_000);
        assert_eq!(sim.iss().len(), min_copies as usize);
        assert!(sim.iss().contains(&p));
        sim.settle();
    }
}

#[test]
fn a_slow_replica_is_taken_back_when_another_one_dies() {
    let mut sim = scenario(3, 2);
    let [p, s, t] = sim.cast();
    load(&mut sim, 300);
    sim.disk(s, DiskFault::Slow { factor: 100 });
    load(&mut sim, 1_200);
    assert!(!sim.iss().contains(&s), "in sync {:?}", sim.iss());
    sim.power_cut(t);
    let mut left = [p, s];
    left.sort_unstable();
    sim.expect_iss_within_ms(&left, 3_500);
    sim.settle();
}

/// R3, R5: the primary dies while the change is under way. The slow member holds everything that
/// was acknowledged, or it is no longer a member.
#[test]
fn a_primary_that_dies_while_a_slow_member_leaves_loses_nothing() {
    for moment in 0..12 {
        let mut sim = scenario(3, 2);
        let [p, s, _] = sim.cast();
        load(&mut sim, 300);
        sim.disk(s, DiskFault::Slow { factor: 300 });
        load(&mut sim, 400 + moment * 25);
        sim.power_cut(p);
        sim.until_primary_is_not(p, 10_000);
        sim.write(7);
        sim.settle();
    }
}
