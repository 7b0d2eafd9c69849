//! Mode B: a write that was acknowledged from memory is lost only when no member in sync has it any
//! more. A flushed write is never lost.

use mainstay_sim::plan::{DiskFault, DiskOp, Fault};
use mainstay_sim::scenario::Scenario;

/// The next write of the journal on each of these nodes takes `ms` milliseconds.
fn late(sim: &mut Scenario, nodes: &[u32], ms: u64) {
    for node in nodes {
        sim.disk(*node, DiskFault::Late { what: DiskOp::JournalWrite, ms });
    }
}

#[test]
fn a_primary_that_is_lost_takes_nothing_with_it() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_b();
    late(&mut sim, &[p, s, t], 400);
    sim.write(1);
    sim.power_cut(p);
    sim.until_primary_is_not(p, 15_000);
    assert_ne!(sim.read_volume(0, 1), 0, "the others have it in memory");
    sim.power_on(p);
    sim.settle();
}

#[test]
fn when_all_lose_power_the_member_with_the_longest_log_goes_on() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.mode_b();
    sim.write(1);
    sim.flush_without_waiting();
    sim.run_ms(200);
    late(&mut sim, &[p, s], 3_000);
    sim.write(2);
    sim.run_ms(100);
    sim.fault(Fault::PowerCutAll);
    sim.run_ms(3_000);
    sim.fault(Fault::PowerOnAll);
    // Of writes that were under way when the power went, any part may be there.
    assert_ne!(sim.read_volume(0, 1), 0);
    assert_ne!(sim.read_volume(0, 2), 0, "the journal of one certainly had it");
    sim.settle();
}

#[test]
fn unjournaled_writes_are_lost_with_the_power_of_all_and_writes_go_on() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_b();
    sim.write(1);
    sim.flush_without_waiting();
    sim.run_ms(200);
    late(&mut sim, &[p, s, t], 3_000);
    sim.write(2);
    sim.fault(Fault::PowerCutAll);
    sim.run_ms(3_000);
    sim.fault(Fault::PowerOnAll);
    sim.write(3);
    assert_ne!(sim.read_volume(0, 1), 0, "it was flushed");
    sim.settle();
}

/// A member lost its memory just before the primary dies, and the record still names it. The third
/// replica has everything.
#[test]
fn a_reopened_member_does_not_lead_while_another_may_have_more() {
    let mut sim = Scenario::three();
    let [p, s, t] = sim.cast();
    sim.mode_b();
    late(&mut sim, &[p, s, t], 400);
    sim.write(1);
    sim.kill_engine(s);
    sim.run_ms(1);
    sim.power_cut(p);
    sim.expect_primary_within_ms(t, 15_000);
    assert_ne!(sim.read_volume(0, 1), 0);
    sim.power_on(p);
    sim.settle();
}

#[test]
fn a_member_that_is_opened_anew_is_proven_by_its_primary() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.mode_b();
    sim.write_many(5);
    sim.kill_engine(s);
    sim.run_ms(2_000);
    sim.write_many(5);
    sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    sim.kill_engine(p);
    sim.until_primary_is_not(p, 15_000);
    sim.settle();
}

#[test]
fn modes_change_in_every_direction_under_writes() {
    let mut sim = Scenario::three();
    let _ = sim.cast();
    let mut block = 0;
    let mut writes = |sim: &mut Scenario| {
        for _ in 0..20 {
            block += 1;
            sim.write_without_waiting(block);
            sim.run_ms(3);
        }
    };
    sim.mode_b();
    writes(&mut sim);
    sim.mode_c();
    writes(&mut sim);
    sim.mode_b();
    writes(&mut sim);
    sim.mode_a(24, 5_000);
    writes(&mut sim);
    sim.mode_b();
    writes(&mut sim);
    sim.flush_without_waiting();
    sim.mode_a(24, 5_000);
    sim.mode_c();
    writes(&mut sim);
    sim.settle();
}
