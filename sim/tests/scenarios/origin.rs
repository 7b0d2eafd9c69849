//! A resource that is made of a snapshot of another one (docs/adr/0017-clones.md).

use mainstay_sim::plan::{Operator, ResourceShape, Shape};
use mainstay_sim::scenario::Scenario;
use mainstay_sim::world::resource_id;

/// Three replicas of a resource, and the shape of another one that is to be made of it on the same
/// nodes.
fn with_copy(seed: u64) -> Scenario {
    let mut shape = Shape::small(3, 3, false);
    let copy = ResourceShape { late: true, origin: Some(0), ..shape.resources[0].clone() };
    shape.resources.push(copy);
    Scenario::new(shape, seed)
}

fn take_snapshot(sim: &mut Scenario) {
    sim.operator(Operator::Snapshot { resource: 0, drop: None });
    sim.until("it is held", 3_000, |world| {
        let mut snapshots = world.state().resources[&resource_id(0)].snapshots.values();
        snapshots.any(|snapshot| snapshot.nodes.len() == 3)
    });
}

fn make_copy(sim: &mut Scenario) {
    sim.operator(Operator::CreateResource { resource: 1 });
    sim.until("it is recorded", 3_000, |world| world.state().resources.contains_key(&resource_id(1)));
}

/// A copy is asked for while `t` is away: the other two hold the snapshot.
fn make_copy_without(sim: &mut Scenario, t: u32) {
    sim.write_many(5);
    take_snapshot(sim);
    sim.power_cut(t);
    sim.until_iss_changes(10_000);
    make_copy(sim);
}

fn all_are_in_sync(sim: &mut Scenario) {
    sim.until("all three are in sync", 30_000, |world| {
        world.state().resources[&resource_id(1)].record.iss.len() == 3
    });
}

fn is_made(sim: &mut Scenario, ms: u64) {
    sim.until("it holds what it is made of", ms, |world| {
        let copy = &world.state().resources[&resource_id(1)];
        copy.origin.is_none() && !world.devices(1).is_empty()
    });
}

/// Later writes to one of the two resources change nothing of the other. The oracle compares all
/// blocks of both.
#[test]
fn a_clone_holds_the_snapshot_and_goes_its_own_way() {
    let mut sim = with_copy(1);
    sim.write_many(10);
    take_snapshot(&mut sim);
    sim.write_many(5);
    make_copy(&mut sim);
    sim.write_many(5);
    is_made(&mut sim, 10_000);
    assert_eq!(sim.count("F57 a replica is made of a snapshot"), 3);
    sim.write_many(5);
    sim.settle();
}

/// Power fails everywhere at every moment of the making.
#[test]
fn a_clone_is_made_whenever_power_fails() {
    for moment in 0..60 {
        let mut sim = with_copy(1);
        let all = sim.cast();
        sim.write_many(5);
        take_snapshot(&mut sim);
        make_copy(&mut sim);
        sim.run_ms(moment * 4);
        for node in all {
            sim.power_cut(node);
        }
        sim.run_ms(100);
        for node in all {
            sim.power_on(node);
        }
        is_made(&mut sim, 30_000);
        sim.settle();
    }
}

/// A node that comes late can still be used.
#[test]
fn a_node_that_was_away_while_the_clone_was_made_is_filled() {
    let mut sim = with_copy(1);
    let [_, _, t] = sim.cast();
    make_copy_without(&mut sim, t);
    is_made(&mut sim, 20_000);
    sim.power_on(t);
    all_are_in_sync(&mut sim);
    assert_eq!(sim.count("F57 a replica is made of a snapshot"), 2, "the third one is copied");
    sim.settle();
}

/// Other replicas are filled only after the rollback. So the rollback must not wait for all copies
/// that are wanted. Found by seeds 2156435 and 2168171.
#[test]
fn a_clone_is_made_although_more_copies_are_wanted_than_hold_the_snapshot() {
    let mut sim = with_copy(1);
    let [_, _, t] = sim.cast();
    make_copy_without(&mut sim, t);
    sim.operator(Operator::MinCopies { resource: 1, copies: 3, suspend_ms: 0 });
    sim.run_ms(5_000);
    sim.power_on(t);
    is_made(&mut sim, 20_000);
    all_are_in_sync(&mut sim);
    sim.settle();
}
