//! Nodes that leave the cluster, dead or alive, and return (H19, H20).

use mainstay_sim::plan::{Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_types::NodeId;

#[test]
fn a_node_that_was_removed_while_it_was_dead_returns_and_does_no_harm() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.power_cut(s);
    sim.write(7);
    sim.until_dead(s);
    sim.remove_node(s);
    sim.write(8);
    let leader = sim.leader();
    sim.power_on(s);
    sim.expect_no_lease_for_ms(s, 8_000);
    assert_eq!((sim.leader(), sim.primary()), (leader, Some(p)));
    assert!(!sim.iss().contains(&s));
    sim.write(9);
    sim.settle();
}

#[test]
fn a_node_that_is_removed_behind_a_cut_loses_its_lease_and_is_no_voter_when_the_cut_heals() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.isolate(s);
    sim.write(7);
    sim.until_dead(s);
    sim.remove_node(s);
    sim.expect_no_lease_for_ms(s, 2_000);
    sim.heal();
    sim.expect_no_lease_for_ms(s, 5_000);
    assert_eq!(sim.primary(), Some(p));
    sim.write(8);
    sim.settle();
}

#[test]
fn a_leader_that_is_removed_gives_the_lead_away_and_the_others_go_on() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.make_leader(t);
    sim.remove_node(t);
    sim.until("another node leads", 5_000, |world| {
        world.node_of(mainstay_sim::plan::Target::Leader).is_some_and(|node| node != NodeId(t))
    });
    let both = [p.min(s), p.max(s)];
    sim.expect_iss_within_ms(&both, 5_000);
    sim.write(7);
    sim.run_ms(6_000);
    sim.expect_no_lease_for_ms(t, 2_000);
    sim.write(8);
    sim.settle();
}

#[test]
fn a_living_node_that_does_not_learn_of_its_removal_keeps_no_lease() {
    let mut sim = Scenario::three();
    let [_, _, t] = sim.cast();
    // Its agent stands still while it is removed, and goes on with what it knew.
    sim.fault(Fault::PauseAgent { target: n(t), ms: 1_500 });
    sim.remove_node(t);
    sim.run_ms(6_000);
    sim.expect_no_lease_for_ms(t, 4_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn a_living_one_of_two_voters_is_removed_and_the_other_decides_alone() {
    for led_by_the_removed in [false, true] {
        let mut sim = Scenario::new(Shape::small(2, 2, false), 1);
        let p = sim.primary().unwrap();
        let s = 3 - p;
        sim.make_leader(if led_by_the_removed { s } else { p });
        sim.remove_node(s);
        sim.until("the other one leads", 5_000, |world| {
            world.node_of(mainstay_sim::plan::Target::Leader) == Some(NodeId(p))
        });
        sim.run_ms(2_000);
        sim.power_cut(s);
        sim.expect_iss_within_ms(&[p], 5_000);
        sim.write(7);
        sim.run_ms(6_000);
        assert_eq!((sim.leader(), sim.primary()), (Some(p), Some(p)), "it needs no other node");
        sim.power_on(s);
        sim.expect_no_lease_for_ms(s, 6_000);
        sim.write(8);
        sim.settle();
    }
}

/// Both have to confirm a removal. One that loses its power before that does so when it is back.
#[test]
fn a_removed_one_of_two_voters_that_loses_its_power_at_once_confirms_when_it_returns() {
    let mut sim = Scenario::new(Shape::small(2, 2, false), 1);
    let p = sim.primary().unwrap();
    let s = 3 - p;
    sim.remove_node(s);
    sim.power_cut(s);
    sim.run_ms(6_000);
    sim.power_on(s);
    sim.until("the other one leads", 10_000, |world| {
        world.node_of(mainstay_sim::plan::Target::Leader) == Some(NodeId(p))
    });
    sim.expect_no_lease_for_ms(s, 6_000);
    sim.power_cut(s);
    sim.expect_iss_within_ms(&[p], 10_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn the_devices_of_a_client_on_a_removed_node_move_back_to_the_primary() {
    let mut sim = Scenario::new(Shape::small(4, 3, false), 1);
    let [p, ..] = sim.cast();
    sim.attach(4);
    sim.write(7);
    sim.remove_node(4);
    sim.until("the devices are on the primary", 8_000, |world| world.devices(0) == [NodeId(p)]);
    sim.write(8);
    sim.settle();
}

#[test]
fn removals_with_lost_and_late_proposals_and_cuts_do_no_harm() {
    for seed in 1..20 {
        let mut sim = Scenario::new(Shape::small(5, 3, false), seed);
        let [_, s, t] = sim.cast();
        sim.write(7);
        match seed % 4 {
            0 => sim.isolate(s),
            1 => sim.power_cut(s),
            2 => sim.kill_agent(s),
            _ => sim.fault(Fault::LoseProposals),
        }
        sim.run_ms(200 * seed);
        sim.remove_node(s);
        sim.fault(Fault::LoseProposals);
        sim.write(8);
        if seed % 2 == 0 {
            sim.fault(Fault::LeaderChange);
        }
        sim.heal();
        sim.power_on(s);
        sim.remove_node(4);
        // A lease that it held when it was removed ends by itself.
        sim.run_ms(5_000);
        sim.expect_no_lease_for_ms(s, 1_000 * (seed % 4));
        sim.power_cut(t);
        sim.write(9);
        sim.settle();
    }
}
