//! Cuts of every kind, and bytes that arrive wrong.

use mainstay_sim::plan::Fault;
use mainstay_sim::scenario::{Scenario, n};

#[test]
fn only_primary_and_secondary_are_cut_off_from_each_other() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.make_leader(t);
    sim.cut(p, s);
    sim.write(7);
    assert_eq!((sim.primary(), sim.iss()), (Some(p), vec![p.min(t), p.max(t)]));
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.settle();
}

#[test]
fn no_message_of_the_primary_arrives() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    for other in [s, t] {
        sim.fault(Fault::CutOneWay(n(p), n(other)));
    }
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 8_000);
    sim.write(7);
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.settle();
}

#[test]
fn the_primary_hears_no_other_node() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.write(7);
    for other in [s, t] {
        sim.fault(Fault::CutOneWay(n(other), n(p)));
    }
    sim.write_without_waiting(7);
    sim.until_primary_is_not(p, 8_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn a_secondary_hears_the_primary_and_is_not_heard() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.make_leader(t);
    sim.fault(Fault::CutOneWay(n(s), n(p)));
    sim.write(7);
    assert!(!sim.iss().contains(&s));
    sim.heal();
    sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
    sim.settle();
}

#[test]
fn a_link_that_flaps_stops_no_writer() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    for block in 0..20 {
        sim.cut(p, s);
        sim.write_without_waiting(block);
        sim.run_ms(150);
        sim.heal();
        sim.run_ms(150);
    }
    sim.expect_acknowledged_within_ms(3_000);
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn connections_break_in_the_middle_of_frames() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    for block in 0..40 {
        sim.write_without_waiting(block);
        sim.run_us(block * 20);
        sim.fault(Fault::Reset(n(p), n(if block % 2 == 0 { s } else { t })));
        sim.run_ms(60);
    }
    sim.expect_acknowledged_within_ms(2_000);
    sim.settle();
}

#[test]
fn a_corrupt_frame_ends_the_connection_and_nothing_else() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    for block in 0..20 {
        sim.fault(Fault::CorruptFrame(n(p), n(s)));
        sim.write(block);
        sim.fault(Fault::CorruptFrame(n(s), n(p)));
        sim.write(block);
    }
    sim.expect_seen("damaged bytes");
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn a_slow_link_makes_writes_slow_and_costs_no_member() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 500 });
    sim.write_without_waiting(7);
    sim.expect_no_acknowledgement_for_ms(50);
    sim.expect_acknowledged_within_ms(1_000);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}
