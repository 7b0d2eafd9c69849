//! Ends of runs: everything is whole, or a resource has stopped for a stated reason. At first the
//! nodes that stay away are left out.

use mainstay_sim::plan::{DiskFault, Fault, Shape};
use mainstay_sim::scenario::Scenario;
use mainstay_types::{BackgroundLimits, EXTENT_BYTES};

#[test]
fn the_others_serve_while_the_primary_stays_off() {
    let mut sim = Scenario::with_service();
    let [p, ..] = sim.cast();
    sim.write_many(10);
    sim.stay_away(&[p], false);
    sim.settle();
    assert_eq!(sim.count("a core heals: served"), 1);
    assert!(sim.epoch() > 1, "another one was primary meanwhile");
}

#[test]
fn the_others_serve_while_the_primary_stays_cut_off() {
    let mut sim = Scenario::with_service();
    let [p, s, _] = sim.cast();
    sim.write_many(10);
    sim.stay_away(&[p], true);
    sim.power_cut(s);
    sim.settle();
    assert_eq!(sim.count("a core heals: served"), 1);
    assert!(sim.epoch() > 1, "another one was primary meanwhile");
}

#[test]
fn while_the_only_whole_member_stays_away_all_nodes_wait_and_say_so() {
    for cut in [false, true] {
        let mut sim = Scenario::two_and_a_witness();
        let [a, b, _] = sim.cast();
        sim.power_cut(b);
        sim.write(7);
        assert_eq!(sim.iss(), [a]);
        sim.stay_away(&[a], cut);
        sim.settle();
        assert_eq!(sim.count("a core heals: stopped, as those with everything are away"), 1);
        sim.expect_seen("nodes that were away come back");
    }
}

#[test]
fn the_status_says_when_no_replica_can_be_used_any_more() {
    let mut sim = Scenario::with_service();
    sim.write_many(10);
    sim.dare();
    for node in 1..=3 {
        sim.disk(node, DiskFault::RotSuperblocks);
    }
    sim.fault(Fault::PowerCutAll);
    sim.fault(Fault::PowerOnAll);
    sim.settle();
    assert_eq!(sim.count("unsurvivable: stopped, no replica with everything can be used"), 1);
}

#[test]
fn the_status_says_when_the_last_complete_copy_has_a_new_disk() {
    let mut sim = Scenario::three();
    sim.write_many(10);
    sim.dare();
    for node in 1..=3 {
        sim.disk(node, DiskFault::Replace);
    }
    sim.settle();
    assert_eq!(sim.count("unsurvivable: stopped, the last complete copy has a new disk"), 1);
}

/// The registered disk is gone and the new one cannot be opened. The control plane has heard of
/// neither.
#[test]
fn a_new_disk_damaged_before_the_cluster_heard_of_it_is_reported() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write_many(10);
    sim.dare();
    for node in (1..=3).filter(|node| *node != p) {
        sim.power_cut(node);
    }
    sim.disk(p, DiskFault::Replace);
    sim.until_seen(p, "labels its replica of r0", 10_000);
    sim.run_ms(40);
    sim.disk(p, DiskFault::RotSuperblocks);
    sim.kill_engine(p);
    sim.until_count("R12 a replica refused to open", 1, 5_000);
    for node in (1..=3).filter(|node| *node != p) {
        sim.power_on(node);
    }
    sim.run_ms(10_000);
    sim.expect_seen("its disk is a new one, which cannot be used either");
    sim.settle();
}

/// ADR 15, ADR 18: without this copy there are never enough copies. So the copy takes the block as
/// damaged, although writes fail meanwhile.
#[test]
fn damaged_blocks_are_copied_while_writes_fail_for_want_of_copies() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    for block in 0..60 {
        sim.write(block % 4);
    }
    sim.write_many(30);
    sim.run_ms(2_000);
    sim.want_copies(2, 0);
    sim.dare();
    for pick in 0..4 {
        sim.disk(p, DiskFault::RotVolume { pick });
    }
    sim.disk(s, DiskFault::Replace);
    sim.expect_copy_within_ms(s, 10_000);
    sim.expect_iss_within_ms(&[1, 2], 20_000);
    sim.settle();
}

#[test]
fn a_replica_is_copied_at_the_end_while_clients_write() {
    let mut shape = Shape::small(3, 3, false);
    let rate = 2 * EXTENT_BYTES;
    shape.resources[0].background =
        BackgroundLimits { max_rate: rate, min_rate: rate, ..BackgroundLimits::default() };
    let mut sim = Scenario::new(shape, 1);
    let [_, s, _] = sim.cast();
    sim.leave_far_behind(s);
    sim.expect_copy_within_ms(s, 5_000);
    sim.settle();
    assert_eq!(sim.count("a copy ended while clients wrote"), 1);
}
