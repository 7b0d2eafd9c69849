//! Nodes that have the devices of a resource and no replica of it (S18, ADR 13). In these stories
//! `w` is such a node.

use mainstay_sim::plan::{DiskFault, Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};

/// Two replicas, and two nodes without one.
fn two_and_two() -> Scenario {
    Scenario::new(Shape::small(4, 2, false), 1)
}

#[test]
fn a_clients_device_survives_the_primary() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.attach(w);
    sim.write_many(20);
    sim.power_cut(p);
    sim.write_without_waiting(7);
    sim.expect_acknowledged_within_ms(15_000);
    assert_eq!(sim.primary(), Some(s));
    sim.expect_devices(&[w]);
    sim.read(7);
    sim.power_on(p);
    sim.write_many(5);
    sim.settle();
}

#[test]
fn a_clients_device_survives_a_move_of_the_primary() {
    let mut sim = Scenario::two_and_a_witness();
    let [_, s, w] = sim.cast();
    sim.attach(w);
    sim.write_many(20);
    sim.write_without_waiting(7);
    sim.move_primary(s);
    sim.expect_acknowledged_within_ms(5_000);
    sim.until_epoch(2, 1_000);
    assert_eq!(sim.primary(), Some(s));
    sim.expect_devices(&[w]);
    sim.read(7);
    sim.settle();
}

#[test]
fn the_next_primary_answers_requests_that_were_carried_out_before() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.attach(w);
    sim.write(1);
    // The write and the write over it arrive at the primary, and the answers do not come back.
    sim.fault(Fault::CutOneWay(n(p), n(w)));
    sim.write_without_waiting(5);
    sim.write_without_waiting(5);
    sim.run_ms(300);
    assert_eq!(sim.unanswered(), 2);
    sim.power_cut(p);
    sim.heal();
    sim.expect_acknowledged_within_ms(15_000);
    assert_eq!(sim.primary(), Some(s));
    sim.read(5);
    sim.power_on(p);
    sim.settle();
}

#[test]
fn a_client_that_takes_the_devices_over_fences_the_earlier_client() {
    let mut sim = two_and_two();
    let p = sim.primary().expect("a node is primary");
    sim.attach(3);
    sim.write_many(5);
    // Node 3 does not hear that it has lost the devices, and goes on asking.
    sim.fault(Fault::CutAgents(n(3), n(1)));
    sim.fault(Fault::CutAgents(n(3), n(2)));
    sim.fault(Fault::CutAgents(n(3), n(4)));
    sim.take_over(4);
    sim.write_at(4, 9);
    // Node 3, which may not write any more, asks too.
    sim.write_without_waiting(9);
    sim.run_ms(1_000);
    sim.heal();
    sim.run_ms(2_000);
    sim.expect_devices(&[4]);
    sim.read(9);
    sim.write_many(5);
    sim.detach();
    sim.write_many(5);
    sim.expect_devices(&[p]);
    sim.settle();
}

#[test]
fn requests_that_wait_too_long_fail_and_the_device_comes_back() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.attach_for(w, 2_000);
    sim.write(1);
    sim.power_cut(p);
    sim.power_cut(s);
    sim.write_without_waiting(2);
    sim.expect_no_acknowledgement_for_ms(2_500);
    assert_eq!(sim.unanswered(), 0, "it has failed (R20)");
    sim.expect_devices(&[]);
    sim.power_on(p);
    sim.power_on(s);
    sim.write(3);
    sim.expect_devices(&[w]);
    sim.settle();
}

#[test]
fn a_client_that_was_started_again_has_a_new_session() {
    let mut sim = Scenario::two_and_a_witness();
    let [_, _, w] = sim.cast();
    sim.attach(w);
    sim.write_many(5);
    let before = sim.session();
    sim.kill_engine(w);
    sim.run_ms(50);
    sim.write_many(5);
    assert!(sim.session() > before);
    sim.settle();
}

#[test]
fn the_primary_finds_that_an_answered_write_of_a_client_is_lost() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    sim.mode_a(24, 5_000);
    sim.attach(w);
    sim.write(1);
    sim.run_ms(500);
    sim.cut(p, s);
    sim.write(2);
    let before = sim.session();
    sim.power_cut(p);
    sim.run_ms(8_000);
    sim.force();
    sim.until_primary_is_not(p, 15_000);
    sim.heal();
    sim.run_ms(3_000);
    sim.write(4);
    assert!(sim.session() > before, "its users have seen an error");
    sim.power_on(p);
    sim.settle();
}

/// ADR 14: the block is read from the other replica and written anew. That entry belongs to no
/// session. The client goes on reading and writing.
#[test]
fn a_damaged_block_is_mended_under_a_client() {
    for pick in 0..8 {
        let mut sim = Scenario::two_and_a_witness();
        let [p, _, w] = sim.cast();
        sim.attach(w);
        // More writes than a journal holds, so every block to be read is in the volume.
        for block in 0..60 {
            sim.write(block % 4);
        }
        for block in 4..8 {
            sim.write_many(30);
            sim.write(block);
        }
        sim.disk(p, DiskFault::RotVolume { pick });
        for block in 0..8 {
            sim.read(block);
            sim.write(block);
        }
        assert_eq!(sim.primary(), Some(p));
        sim.settle();
    }
}

/// ADR 18: requests of a client fail once it is no longer attached. The next client is served all
/// the same.
#[test]
fn the_next_client_is_served_where_writes_of_the_last_one_failed_for_want_of_copies() {
    let mut sim = Scenario::two_and_a_witness();
    let [_, s, w] = sim.cast();
    sim.want_copies(2, 0);
    sim.attach(w);
    sim.power_cut(s);
    for block in 0..4 {
        sim.write_without_waiting(block);
    }
    sim.run_ms(500);
    sim.detach();
    sim.run_ms(1_000);
    sim.attach(w);
    sim.write_without_waiting(9);
    sim.run_ms(2_000);
    sim.power_on(s);
    sim.expect_acknowledged_within_ms(20_000);
    sim.write_many(5);
    sim.settle();
}
