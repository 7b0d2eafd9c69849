//! Replicas that cannot be used any more (R12, R13). Their nodes live, and yet another node must
//! serve, without an operator.

use mainstay_sim::plan::{DiskFault, Shape};
use mainstay_sim::scenario::Scenario;
use mainstay_sim::world::resource_id;

/// The numbers of the primary and of the other replica.
fn pair(sim: &Scenario) -> (u32, u32) {
    let first = sim.primary().expect("a node serves");
    (first, 3 - first)
}

fn broken(sim: &Scenario) -> Vec<u32> {
    sim.world.state().resources[&resource_id(0)].broken.keys().map(|node| node.0).collect()
}

/// Damages the disk so that no replica on it can be recovered. The engine finds out at its next
/// start.
fn damage(sim: &mut Scenario, node: u32) {
    sim.disk(node, DiskFault::RotSuperblocks);
    sim.kill_engine(node);
}

#[test]
fn a_primary_that_cannot_be_opened_is_replaced() {
    let mut sim = Scenario::two_and_a_witness();
    sim.write(7);
    let (first, other) = pair(&sim);
    damage(&mut sim, first);
    sim.expect_primary_within_ms(other, 5_000);
    sim.expect_iss_within_ms(&[other], 1_000);
    assert_eq!(broken(&sim), [first]);
    sim.write(8);
    sim.settle();
    assert!(broken(&sim).is_empty(), "the new disk is whole");
}

/// R19: the service on the broken node is silent before it runs elsewhere; the oracles watch that.
#[test]
fn the_service_of_a_primary_that_cannot_be_opened_moves() {
    let mut sim = Scenario::new(Shape::small(3, 2, true), 1);
    let runs = |node: u32| {
        move |world: &mainstay_sim::world::World| {
            let service = world.state().services.values().next().expect("there is a service");
            service
                .nodes
                .iter()
                .any(|(on, seen)| on.0 == node && seen.phase == mainstay_types::ServicePhase::Running)
        }
    };
    let (first, other) = pair(&sim);
    sim.until("the service runs", 30_000, runs(first));
    damage(&mut sim, first);
    sim.expect_primary_within_ms(other, 30_000);
    sim.until("the service runs elsewhere", 30_000, runs(other));
    sim.settle();
}

/// The whole replica is off, the broken one lives. No node can serve until the whole one is back;
/// then it does.
#[test]
fn a_secondary_that_cannot_be_opened_does_not_push_the_whole_member_out() {
    let mut sim = Scenario::two_and_a_witness();
    sim.write(7);
    let (first, other) = pair(&sim);
    sim.power_cut(first);
    damage(&mut sim, other);
    sim.until("the first is dead", 10_000, |world| !world.state().alive(mainstay_types::NodeId(first)));
    sim.run_ms(3_000);
    assert_eq!((sim.primary(), sim.iss()), (None, vec![first]));
    let failure = sim.world.state().resources[&resource_id(0)].failure.clone().unwrap_or_default();
    assert!(failure.contains(&format!("only n{first} has")), "{failure}");
    sim.power_on(first);
    sim.expect_primary_within_ms(first, 10_000);
    sim.write(8);
    assert_eq!((sim.iss(), broken(&sim)), (vec![first], vec![other]));
    sim.settle();
}

/// While both live a broken secondary leaves at once, and the primary does not wait for it.
#[test]
fn a_secondary_that_cannot_be_opened_leaves() {
    let mut sim = Scenario::three();
    sim.write(7);
    let first = sim.primary().expect("a node serves");
    let second = if first == 2 { 3 } else { 2 };
    damage(&mut sim, second);
    let rest: Vec<u32> = (1..=3).filter(|node| *node != second).collect();
    sim.expect_iss_within_ms(&rest, 3_000);
    sim.until("it is said", 1_000, |world| !world.state().resources[&resource_id(0)].broken.is_empty());
    sim.write(8);
    assert_eq!(sim.primary(), Some(first));
    sim.settle();
}

/// R13: the same for a store that has stopped after a failed write. Its engine has the replica
/// open, and reports no more.
#[test]
fn a_secondary_whose_store_has_stopped_does_not_push_the_whole_member_out() {
    let mut sim = Scenario::two_and_a_witness();
    sim.write(7);
    let (first, other) = pair(&sim);
    sim.disk(other, DiskFault::WriteError);
    sim.write_without_waiting(8);
    sim.power_cut(first);
    sim.until("the first is dead", 10_000, |world| !world.state().alive(mainstay_types::NodeId(first)));
    sim.run_ms(3_000);
    assert_eq!((sim.primary(), sim.iss()), (None, vec![first]));
    sim.power_on(first);
    sim.expect_primary_within_ms(first, 10_000);
    sim.write(9);
    sim.settle();
}
