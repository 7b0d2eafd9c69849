//! Full journals (R18), and what a crash leaves in them.

use mainstay_sim::plan::{ClientOp, DiskFault, Fault, Shape};
use mainstay_sim::scenario::{Scenario, n};

/// Fills the journals of all replicas but `slow`. No write is committed while the disk of `slow`
/// stands still, so no write can be destaged. The writes are zeroes, because the limit on requests
/// in flight counts bytes of data.
fn fill_journals(sim: &mut Scenario, slow: u32) {
    sim.write_many(5);
    sim.disk(slow, DiskFault::Stall { ms: 900 });
    for block in 0..40 {
        sim.client(ClientOp::WriteZeroes { volume: 0, block, blocks: 1 });
        sim.run_ms(2);
    }
}

#[test]
fn a_full_journal_holds_writers_back_until_there_is_room() {
    let mut sim = Scenario::lazy_journal(32, 1);
    let [p, s, _] = sim.cast();
    fill_journals(&mut sim, s);
    sim.until_journal_is_full(p, 0);
    sim.expect_acknowledged_within_ms(2_000);
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}

#[test]
fn a_full_journal_still_has_room_to_fail_over() {
    let mut sim = Scenario::lazy_journal(32, 1);
    let [p, s, t] = sim.cast();
    fill_journals(&mut sim, t);
    sim.until_journal_is_full(s, 0);
    sim.power_cut(p);
    sim.expect_primary_within_ms(s, 8_000);
    sim.write_many(20);
    sim.settle();
}

#[test]
fn failover_after_failover_with_full_journals() {
    let mut sim = Scenario::lazy_journal(32, 1);
    for _ in 0..5 {
        let [p, _, t] = sim.cast();
        fill_journals(&mut sim, t);
        sim.power_cut(p);
        sim.until_primary_is_not(p, 8_000);
        sim.write(1);
        sim.power_on(p);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    }
    sim.settle();
}

/// A promotion that commits nothing. The journal of the new primary gets one more epoch start. The
/// primary is gone again before the other replica, whose disk stands still, could have answered.
fn promote_in_vain(sim: &mut Scenario) {
    let [p, s, _] = sim.cast();
    let epoch = sim.epoch();
    sim.disk(s, DiskFault::Stall { ms: 900 });
    sim.fault(Fault::KillEngine { target: n(p), restart_after_ms: 0 });
    sim.until_epoch(epoch + 1, 8_000);
    sim.run_ms(30);
}

#[test]
fn many_promotions_that_commit_nothing_left_no_room_for_an_epoch_start() {
    for seed in 1..=5 {
        let mut shape = Shape::small(3, 2, false);
        shape.resources[0].journal_blocks = 32;
        let mut sim = Scenario::new(shape, seed);
        sim.write_many(5);
        for _ in 0..45 {
            promote_in_vain(&mut sim);
        }
        sim.write_many(20);
        sim.settle();
    }
}

#[test]
fn promotions_in_vain_after_a_full_journal() {
    for seed in 1..=5 {
        let mut shape = Shape::small(3, 2, false);
        shape.resources[0].journal_blocks = 32;
        shape.resources[0].destage_start_blocks = 64;
        let mut sim = Scenario::new(shape, seed);
        let [_, s, _] = sim.cast();
        fill_journals(&mut sim, s);
        for _ in 0..12 {
            promote_in_vain(&mut sim);
        }
        sim.write_many(20);
        sim.settle();
    }
}

#[test]
fn a_journal_goes_round_many_times() {
    let mut sim = Scenario::small_journal(32, 1);
    for round in 0..10 {
        for block in 0..20 {
            sim.write_without_waiting(block * 7 % 32 + round);
            sim.run_ms(1);
        }
    }
    sim.fault(Fault::PowerCutAll);
    sim.fault(Fault::PowerOnAll);
    sim.write_many(20);
    sim.settle();
}

#[test]
fn with_two_small_free_parts_nothing_was_destaged_and_writes_waited_for_ever() {
    for blocks in 32..=40 {
        let mut sim = Scenario::small_journal(blocks, 1);
        for first in 0..20 {
            for len in [5, 1, 1, 6, 6, 7] {
                sim.write_blocks(first, len);
            }
        }
        sim.settle();
    }
}

#[test]
fn entries_that_a_killed_engine_left_in_the_cache_survive_a_power_cut() {
    for seed in 1..=30 {
        let mut sim = Scenario::new(mainstay_sim::plan::Shape::small(3, 3, false), seed);
        let [p, s, t] = sim.cast();
        // The connections fail, so the primary cannot send again the entries that the engine
        // forgets.
        sim.write(7);
        sim.write_without_waiting(8);
        sim.run_us(500);
        for node in [s, t] {
            sim.fault(Fault::KillEngine { target: n(node), restart_after_ms: 0 });
        }
        sim.run_ms(400);
        sim.power_cut(s);
        sim.power_cut(t);
        sim.power_cut(p);
        sim.fault(Fault::PowerOnAll);
        sim.read(8);
        sim.settle();
    }
}
