//! The smallest number of copies that a resource must have (ADR 18).

use mainstay_sim::scenario::Scenario;

#[test]
fn with_two_wanted_copies_no_write_rests_on_one_machine() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    sim.write(1);
    sim.want_copies(2, 20_000);
    sim.power_cut(s);
    sim.write_without_waiting(2);
    sim.expect_no_acknowledgement_for_ms(8_000);
    assert_eq!(sim.iss(), [p, s], "a dead member lacks no acknowledged write");
    sim.power_on(s);
    sim.expect_acknowledged_within_ms(15_000);
    sim.settle();
}

#[test]
fn a_retained_member_serves_after_the_primary_dies_as_well() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    sim.write(1);
    sim.want_copies(2, 60_000);
    sim.power_cut(s);
    sim.run_ms(5_000);
    sim.power_cut(p);
    sim.run_ms(3_000);
    sim.power_on(s);
    sim.expect_primary_within_ms(s, 15_000);
    sim.read(1);
    sim.write_without_waiting(2);
    sim.expect_no_acknowledgement_for_ms(5_000);
    sim.power_on(p);
    sim.expect_acknowledged_within_ms(20_000);
    sim.settle();
}

#[test]
fn requests_that_wait_for_copies_fail_in_the_end() {
    let mut sim = Scenario::two_and_a_witness();
    let [_, s, _] = sim.cast();
    sim.want_copies(2, 3_000);
    sim.power_cut(s);
    sim.run_ms(1_000);
    sim.write_without_waiting(1);
    sim.run_ms(1_000);
    assert_eq!(sim.unanswered(), 1);
    sim.run_ms(4_000);
    assert_eq!(sim.unanswered(), 0, "it failed");
    sim.want_copies(1, 3_000);
    sim.run_ms(1_000);
    sim.write(1);
    sim.settle();
}
