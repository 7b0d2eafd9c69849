//! Volumes that grow while they are in use (R17). The size changes at the same entry of the log on
//! every replica.

use mainstay_sim::plan::ClientOp;
use mainstay_sim::scenario::Scenario;
use mainstay_types::{BLOCK_BYTES, ResourceId};

const OLD: u64 = 1024;
const NEW: u64 = 1500;

fn has_grown(sim: &mut Scenario, ms: u64) {
    sim.until("the volume has grown", ms, |world| {
        world.state().resources[&ResourceId(1)].spec.volumes[0] == NEW * BLOCK_BYTES
    });
}

fn is_wanted(sim: &mut Scenario) {
    sim.until("the wish is recorded", 1_000, |world| {
        let known = &world.state().resources[&ResourceId(1)];
        !known.growing.is_empty() || known.spec.volumes[0] > OLD * BLOCK_BYTES
    });
}

#[test]
fn a_volume_grows_under_load_on_every_replica() {
    let mut sim = Scenario::three();
    sim.write_many(10);
    sim.grow(0, NEW);
    sim.write_many(10);
    has_grown(&mut sim, 3_000);
    sim.write(NEW - 1);
    sim.read(NEW - 1);
    assert_eq!(sim.read_volume(0, OLD), 0, "what is new reads as zeroes");
    // The sizes of all replicas are compared at the end.
    sim.settle();
}

#[test]
fn a_write_beyond_the_old_end_survives_the_primary() {
    let mut sim = Scenario::three();
    let [p, _, _] = sim.cast();
    sim.grow(0, NEW);
    has_grown(&mut sim, 3_000);
    sim.write(NEW - 1);
    sim.power_cut(p);
    sim.until_primary_is_not(p, 10_000);
    sim.read(NEW - 1);
    sim.write(NEW - 2);
    sim.power_on(p);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

#[test]
fn power_fails_everywhere_at_every_moment_of_the_growth() {
    for moment in 0..40 {
        let mut sim = Scenario::three();
        let all = sim.cast();
        sim.write_many(3);
        sim.grow(0, NEW);
        is_wanted(&mut sim);
        sim.run_us(moment * 2_500);
        all.into_iter().for_each(|node| sim.power_cut(node));
        all.into_iter().for_each(|node| sim.power_on(node));
        has_grown(&mut sim, 30_000);
        sim.write(NEW - 1);
        sim.settle();
    }
}

#[test]
fn the_primary_loses_power_at_every_moment_of_the_growth() {
    for moment in 0..40 {
        let mut sim = Scenario::three();
        let [p, _, _] = sim.cast();
        sim.write_many(3);
        sim.grow(0, NEW);
        is_wanted(&mut sim);
        sim.run_us(moment * 2_500);
        sim.power_cut(p);
        has_grown(&mut sim, 30_000);
        sim.write(NEW - 1);
        sim.power_on(p);
        sim.settle();
    }
}

#[test]
fn a_replica_that_missed_the_growth_takes_it_over_with_its_copy() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.power_cut(s);
    sim.grow(0, NEW);
    has_grown(&mut sim, 10_000);
    sim.write(NEW - 1);
    sim.power_on(s);
    sim.leave_far_behind(s);
    sim.expect_copy_within_ms(s, 10_000);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

#[test]
fn a_volume_grows_while_a_replica_is_copied() {
    for moment in 0..25 {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.leave_far_behind(s);
        sim.expect_copy_within_ms(s, 5_000);
        sim.run_us(moment * 200);
        sim.grow(0, NEW);
        has_grown(&mut sim, 10_000);
        sim.write(NEW - 1);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    }
}

#[test]
fn a_volume_grows_twice_before_anything_is_destaged() {
    let mut sim = Scenario::three();
    sim.grow(0, NEW - 200);
    sim.grow(0, NEW);
    has_grown(&mut sim, 5_000);
    sim.client(ClientOp::Discard { volume: 0, block: OLD - 5, blocks: NEW - OLD });
    sim.write(NEW - 1);
    sim.settle();
}
