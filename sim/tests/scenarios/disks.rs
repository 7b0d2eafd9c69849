//! Disks that fail (R13), rot (R12, R14), and are replaced (R9).

use mainstay_sim::plan::{ClientOp, DiskFault, Shape};
use mainstay_sim::scenario::Scenario;

#[test]
fn a_write_error_on_a_secondary_costs_the_member_and_no_write() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.disk(s, DiskFault::WriteError);
    sim.write(7);
    sim.expect_seen("r0 is given up");
    assert!(!sim.iss().contains(&s));
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn a_write_error_on_the_primary_hands_over() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.disk(p, DiskFault::WriteError);
    sim.write_without_waiting(8);
    sim.until_primary_is_not(p, 5_000);
    assert!(!sim.iss().contains(&p), "what cannot be trusted is not in sync");
    sim.read(7);
    sim.settle();
}

/// S25: no write fails, and no replica is given up. The journal of the secondary fills, and then it
/// counts as absent, like a replica that does not answer.
#[test]
fn a_secondary_whose_pool_is_full_leaves_and_returns() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.disk(s, DiskFault::Full);
    for block in 0..60 {
        sim.write(block);
    }
    assert!(!sim.iss().contains(&s), "in sync {:?}", sim.iss());
    assert_eq!(sim.primary(), Some(p));
    sim.run_ms(20_000);
    sim.expect_not_seen("r0 is given up");
    sim.disk(s, DiskFault::Room);
    sim.expect_iss_within_ms(&[1, 2, 3], 10_000);
    sim.settle();
}

/// A full pool costs nothing while no write needs space: overwriting needs none.
#[test]
fn a_full_pool_harms_nothing_that_has_its_space() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    for block in 0..60 {
        sim.write(block % 10);
    }
    sim.run_ms(2_000);
    sim.disk(s, DiskFault::Full);
    for block in 0..60 {
        sim.write(block % 10);
    }
    assert_eq!(sim.iss(), [1, 2, 3]);
    sim.settle();
}

/// Writes more than the journal of a replica with a full pool takes.
fn write_beyond_the_pool(sim: &mut Scenario) {
    for block in 0..60 {
        sim.write_without_waiting(block);
        sim.run_ms(5);
    }
}

/// The primary's pool is full, and another node is primary.
fn handed_over_for_a_full_pool() -> (Scenario, u32) {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.disk(p, DiskFault::Full);
    write_beyond_the_pool(&mut sim);
    sim.until_primary_is_not(p, 15_000);
    (sim, p)
}

/// R20: writes wait for space on the primary until it hands over.
#[test]
fn a_primary_whose_pool_is_full_hands_over() {
    let (mut sim, _) = handed_over_for_a_full_pool();
    sim.read(7);
    sim.settle();
}

/// S270: no operator has to start an engine.
#[test]
fn a_replica_that_had_no_space_goes_on_by_itself_when_there_is_room() {
    let (mut sim, p) = handed_over_for_a_full_pool();
    sim.disk(p, DiskFault::Room);
    sim.expect_iss_within_ms(&[1, 2, 3], 15_000);
    sim.settle();
}

/// S270: the pools of all replicas are full at once. Acknowledged writes are in the journals.
#[test]
fn three_full_pools_go_on_by_themselves_when_there_is_room() {
    let mut sim = Scenario::three();
    sim.spare_no_disk();
    let nodes = sim.cast();
    sim.write(7);
    nodes.into_iter().for_each(|node| sim.disk(node, DiskFault::Full));
    write_beyond_the_pool(&mut sim);
    sim.until_no_primary(60_000);
    nodes.into_iter().for_each(|node| sim.disk(node, DiskFault::Room));
    sim.read(7);
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

#[test]
fn a_flush_error_on_a_secondary_is_not_tried_again() {
    let mut sim = Scenario::three();
    let [p, s, _] = sim.cast();
    sim.disk(s, DiskFault::FlushError);
    sim.write_many(40);
    sim.expect_seen("r0 is given up");
    assert!(!sim.iss().contains(&s));
    assert_eq!(sim.primary(), Some(p));
    sim.settle();
}

#[test]
fn after_a_failed_flush_a_restarted_engine_has_everything() {
    for seed in 1..=20 {
        let mut sim = Scenario::new(Shape::small(3, 3, false), seed);
        let [_, s, _] = sim.cast();
        sim.disk(s, DiskFault::FlushError);
        // Every block is written more than once. So the blocks that the failed flush tore are
        // partly old and partly new.
        for block in 0..60 {
            sim.write(block % 9);
        }
        sim.expect_seen("r0 is given up");
        // The oracle checks the recovered content as soon as the replica is open, and at the end.
        sim.kill_engine(s);
        sim.expect_iss_within_ms(&[1, 2, 3], 8_000);
        sim.settle();
    }
}

#[test]
fn a_flush_that_was_to_fail_failed_after_faults_had_ended() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.disk(s, DiskFault::FlushError);
    sim.world.heal();
    sim.write_many(40);
    sim.expect_not_seen("r0 is given up");
    sim.settle();
}

#[test]
fn a_flush_error_on_the_primary_hands_over() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.disk(p, DiskFault::FlushError);
    for block in 0..40 {
        sim.write_without_waiting(block);
        sim.run_ms(2);
    }
    sim.until_primary_is_not(p, 5_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn a_read_error_on_the_primary_hands_over() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write_many(60);
    sim.disk(p, DiskFault::ReadError);
    for block in 0..10 {
        sim.client(ClientOp::Read { volume: 0, block, blocks: 1 });
    }
    sim.until_primary_is_not(p, 5_000);
    sim.read(0);
    sim.settle();
}

#[test]
fn a_disk_that_vanishes_under_the_primary() {
    let mut sim = Scenario::three();
    let [p, ..] = sim.cast();
    sim.write(7);
    sim.disk(p, DiskFault::Vanish);
    sim.write_without_waiting(8);
    sim.until_primary_is_not(p, 5_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn a_disk_that_vanishes_under_a_secondary() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.disk(s, DiskFault::Vanish);
    sim.write(7);
    assert!(!sim.iss().contains(&s));
    sim.settle();
}

#[test]
fn a_journal_with_rot_before_its_end_is_not_opened() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    // Few enough writes that none is destaged and trimmed.
    sim.write_many(6);
    sim.disk(s, DiskFault::RotJournal { pick: 0 });
    sim.power_cut(s);
    sim.power_on(s);
    sim.write(7);
    sim.until_count("R12 a replica refused to open", 1, 3_000);
    sim.write_many(10);
    assert!(!sim.iss().contains(&s));
    sim.settle();
}

#[test]
fn one_rotten_copy_of_the_superblock_harms_no_replica() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write_many(10);
    for copy in 0..4 {
        sim.disk(s, DiskFault::RotSuperblock { copy });
        sim.power_cut(s);
        sim.power_on(s);
        sim.write(7);
        sim.expect_iss_within_ms(&[1, 2, 3], 5_000);
    }
    assert_eq!(sim.count("R12 a replica refused to open"), 0);
    sim.settle();
}

#[test]
fn without_any_good_superblock_a_replica_is_not_opened() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.write_many(10);
    sim.disk(s, DiskFault::RotSuperblocks);
    sim.power_cut(s);
    sim.power_on(s);
    sim.until_count("R12 a replica refused to open", 1, 3_000);
    sim.write(7);
    sim.settle();
}

#[test]
fn a_disk_that_stands_still_for_long_costs_the_member_for_a_while() {
    let mut sim = Scenario::three();
    let [_, s, _] = sim.cast();
    sim.disk(s, DiskFault::Stall { ms: 5_000 });
    sim.write(7);
    assert!(!sim.iss().contains(&s));
    sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
    sim.settle();
}

/// F2, F3, F4, R12: a record in the middle of a journal was changed. That is no torn tail, and no
/// part of the journal is used.
#[test]
fn a_journal_that_lost_a_write_in_its_middle_is_not_opened() {
    for pick in 0..4 {
        for fault in [
            DiskFault::LostRecord { pick },
            DiskFault::MisdirectedRecord { pick },
            DiskFault::StaleRecord { pick },
        ] {
            let mut sim = Scenario::three();
            let [_, s, _] = sim.cast();
            for block in 0..6 {
                sim.write(block);
            }
            sim.disk(s, fault);
            sim.power_cut(s);
            sim.power_on(s);
            sim.until_count("R12 a replica refused to open", 1, 10_000);
            sim.settle();
        }
    }
}

/// F2, F3, F4, R14: a page of the version table is not the one that the checkpoint wrote. Its
/// versions would call extents older than they are.
#[test]
fn a_version_table_with_a_page_of_before_is_not_opened() {
    for pick in 0..4 {
        for fault in [
            DiskFault::LostVersions { pick },
            DiskFault::MisdirectedVersions { pick },
            DiskFault::StaleVersions { pick },
        ] {
            let mut sim = Scenario::three();
            let [_, s, _] = sim.cast();
            // Its journal fills again and again, so there are checkpoints.
            for block in 0..40 {
                sim.write(block % 8);
            }
            sim.disk(s, fault);
            sim.power_cut(s);
            sim.power_on(s);
            sim.until_count("R12 a replica refused to open", 1, 10_000);
            sim.settle();
        }
    }
}

/// F2: the newest copy of the superblock that is whole counts, wherever it is: no promise is
/// forgotten (R1).
#[test]
fn a_copy_of_the_superblock_that_was_not_written_costs_nothing() {
    for copy in 0..4 {
        let mut sim = Scenario::three();
        let [p, s, t] = sim.cast();
        sim.write(7);
        sim.power_cut(p);
        // The last superblock that both secondaries have written holds their promise.
        sim.until_primary_is_not(p, 10_000);
        for node in [s, t] {
            sim.disk(node, DiskFault::LostSuperblock { copy });
            sim.power_cut(node);
        }
        for node in [p, s, t] {
            sim.power_on(node);
        }
        sim.write(7);
        sim.settle();
        assert_eq!(sim.count("F2 lost superblock copy"), 2);
        assert_eq!(sim.count("R12 a replica refused to open"), 0);
    }
}
