//! The life of a write.

use mainstay_sim::plan::{ClientOp, DiskFault, Fault};
use mainstay_sim::scenario::Scenario;

#[test]
fn a_write_is_acknowledged_when_all_in_sync_replicas_have_it() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.disk(s, DiskFault::Stall { ms: 500 });
    sim.write_without_waiting(7);
    sim.expect_no_acknowledgement_for_ms(490);
    sim.expect_acknowledged_within_ms(20);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}

#[test]
fn a_read_waits_for_the_write_that_it_overlaps() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write(7);
    sim.disk(s, DiskFault::Stall { ms: 500 });
    sim.write_without_waiting(7);
    sim.client(ClientOp::Read { volume: 0, block: 7, blocks: 1 });
    let answered = sim.unanswered();
    sim.run_ms(480);
    assert_eq!(sim.unanswered(), answered, "neither is answered yet");
    sim.expect_acknowledged_within_ms(40);
    sim.settle();
}

#[test]
fn a_read_of_other_blocks_does_not_wait() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write(8);
    sim.disk(s, DiskFault::Stall { ms: 500 });
    sim.write_without_waiting(7);
    sim.run_ms(1);
    sim.client(ClientOp::Read { volume: 0, block: 8, blocks: 1 });
    sim.run_ms(100);
    assert_eq!(sim.unanswered(), 1, "only the write waits");
    sim.settle();
}

#[test]
fn acknowledged_writes_outlive_a_power_cut_of_all_nodes() {
    let mut sim = Scenario::three();
    sim.write_many(40);
    sim.fault(Fault::PowerCutAll);
    sim.run_ms(500);
    sim.fault(Fault::PowerOnAll);
    sim.read(0);
    sim.read(39);
    sim.settle();
}

#[test]
fn an_unacknowledged_write_is_there_or_not_and_stays_so() {
    let mut sim = Scenario::three();
    sim.write(7);
    for _ in 0..20 {
        sim.write_without_waiting(7);
    }
    sim.run_ms(0);
    sim.fault(Fault::PowerCutAll);
    sim.fault(Fault::PowerOnAll);
    sim.read(7);
    sim.read(7);
    sim.settle();
}

#[test]
fn zeroes_and_discards_are_entries_like_any_other() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write_blocks(0, 8);
    sim.client(ClientOp::Discard { volume: 0, block: 2, blocks: 2 });
    sim.client(ClientOp::WriteZeroes { volume: 0, block: 6, blocks: 4 });
    sim.expect_acknowledged_within_ms(50);
    sim.power_cut(p);
    for block in 0..10 {
        sim.read(block);
    }
    sim.settle();
}

#[test]
fn requests_in_flight_fail_when_the_primary_loses_its_role() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.isolate(p);
    sim.write_without_waiting(7);
    sim.expect_acknowledged_within_ms(2_500);
    sim.expect_seen("failed: ");
    sim.settle();
}

/// R26, S710. The write lies in two extents. The oracle judges what each replica holds, and the
/// read.
#[test]
fn a_write_of_several_blocks_is_whole_or_absent_whenever_the_power_goes() {
    let write = ClientOp::Write { volume: 0, block: 12, blocks: 8 };
    let read = ClientOp::Read { volume: 0, block: 12, blocks: 8 };
    for (number, us) in (0..2_000).step_by(125).enumerate() {
        let mut sim = Scenario::three();
        let [p, s, _] = sim.cast();
        sim.write_blocks(12, 8);
        sim.client(write);
        sim.run_us(us);
        match number % 3 {
            0 => sim.fault(Fault::PowerCutAll),
            1 => sim.power_cut(p),
            _ => sim.kill_engine(s),
        }
        sim.run_ms(4_000);
        sim.fault(Fault::PowerOnAll);
        sim.until("there is a device", 15_000, |world| !world.devices(0).is_empty());
        sim.client(read);
        sim.expect_acknowledged_within_ms(5_000);
        sim.settle();
    }
}
