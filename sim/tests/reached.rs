//! Stories that reach places of the cores which the smoke seeds seldom or never reach
//! (`coverage/told.rs`).

#![allow(clippy::disallowed_types, reason = "tests of one process take turns; the cores know nothing of it")]

use mainstay_sim::coverage::stories;
use mainstay_sim::plan::{
    ClientOp, Deed, DiskFault, DiskOp, Fault, Moment, Operator, ResourceShape, ServiceFault, Shape, Side,
};
use mainstay_sim::scenario::{Scenario, n};
use mainstay_sim::world::resource_id;
use mainstay_types::simulation::reached;
use mainstay_types::{NodeId, SNAPSHOTS_MAX, ServicePhase};
use std::sync::{Mutex, PoisonError};

/// Marks are counted for the whole process, so these stories are told one after the other.
static TURN: Mutex<()> = Mutex::new(());

/// Tells a story, and checks that it reaches the mark.
fn reaches(mark: &str, tell: impl FnOnce()) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = || reached().get(mark).copied().unwrap_or(0);
    let before = count();
    tell();
    assert!(count() > before, "the story does not come to: {mark}");
}

#[test]
fn every_story_is_here() {
    let text = include_str!("reached.rs");
    for (mark, story) in stories() {
        let told = text.split_once(&format!("fn {story}() {{")).map(|(_, told)| told);
        let told = told.and_then(|told| told.split("#[test]").next()).unwrap_or_default();
        // A call that is too long for a line has its arguments on lines of their own.
        let told = told.replace("reaches(\n        ", "reaches(");
        assert!(told.contains(&format!("reaches(\"{mark}\"")), "{story} is to come to: {mark}");
    }
}

/// R9
#[test]
fn a_copy_of_a_directory_is_no_replica() {
    reaches("control: a directory has the label of another one", || {
        let mut sim = Scenario::three();
        let [p, ..] = sim.cast();
        sim.write(7);
        sim.copy_directory(p);
        sim.power_cut(p);
        sim.power_on(p);
        sim.write(7);
        sim.settle();
    });
}

/// A node is off, and comes back with an older copy of its replica.
fn with_an_older_copy(forget: bool) {
    let mut sim = Scenario::three();
    let nodes = sim.cast();
    let [p, ..] = nodes;
    sim.write(7);
    sim.copy_directory(p);
    sim.write_many(3);
    sim.run_ms(100);
    nodes.into_iter().for_each(|node| sim.power_cut(node));
    if forget {
        sim.forget_held(p);
    }
    sim.put_copy_back(p);
    nodes.into_iter().for_each(|node| sim.power_on(node));
    sim.until_primary_is_not(p, 20_000);
    sim.read(7);
    sim.settle();
}

/// R12
#[test]
fn an_older_copy_is_put_in_the_place_of_a_replica() {
    reaches("store: the files are an older copy", || with_an_older_copy(false));
}

/// R7, R12: the node does not know that its replica held more, but the other nodes do.
#[test]
fn an_older_copy_leads_until_it_hears_of_entries_that_it_lacks() {
    reaches("replica: a peer knows to be committed what the own log lacks", || with_an_older_copy(true));
}

/// R5: the record is as it was, and so is the node that the promotion names. But that node counts
/// as dead again.
#[test]
fn a_promotion_whose_node_died_again_does_not_count() {
    reaches("control: a promotion by a dead node", || {
        let mut sim = Scenario::new(Shape::small(3, 1, false), 1);
        let [p, ..] = sim.cast();
        sim.write(1);
        sim.power_cut(p);
        sim.until_no_primary(10_000);
        sim.trap(Moment::Promote, Deed::Late { ms: 10_000 });
        sim.trap(Moment::Promote, Deed::PowerCut { whom: Side::Actor, on_after_ms: 15_000 });
        sim.power_on(p);
        sim.until_count("F47 proposal late", 1, 10_000);
        sim.expect_no_device_for_ms(14_000);
        sim.expect_primary_within_ms(p, 10_000);
        sim.read(1);
        sim.settle();
    });
}

/// R5: all replicas are empty and in sync without a copy, so a first promotion waits for every node
/// that can come. While this promotion is on its way a node comes back.
#[test]
fn a_node_comes_back_before_the_first_promotion_counts() {
    reaches("control: a first promotion comes too early", || {
        let mut shape = Shape::small(3, 3, false);
        let later = ResourceShape { late: true, ..shape.resources[0].clone() };
        shape.resources.push(later);
        let mut sim = Scenario::new(shape, 1);
        let [_, s, _] = sim.cast();
        sim.power_cut(s);
        sim.until("it counts as dead", 10_000, |world| !world.state().alive(NodeId(s)));
        sim.trap_at(1, Moment::Promote, 0, Deed::Late { ms: 2_000 });
        sim.operator(Operator::CreateResource { resource: 1 });
        sim.until_count("F47 proposal late", 1, 10_000);
        sim.power_on(s);
        sim.until("it is back", 5_000, |world| world.state().alive(NodeId(s)));
        sim.pause_engine(s, 5_000);
        sim.until("the resource is served", 15_000, |world| !world.devices(1).is_empty());
        let members = &sim.world.state().resources[&resource_id(1)].record.iss;
        assert_eq!(members.len(), 3, "the one that came back is one of them");
        sim.settle();
    });
}

/// R5, R12: the replica of a lone member cannot be used, and that changes nothing in the record.
#[test]
fn a_promotion_of_a_replica_that_broke_meanwhile_does_not_count() {
    reaches("control: a promotion of what is not eligible", || {
        let mut sim = Scenario::new(Shape::small(3, 1, false), 1);
        let [p, ..] = sim.cast();
        sim.write(1);
        sim.power_cut(p);
        sim.until_no_primary(10_000);
        sim.trap(Moment::Promote, Deed::Late { ms: 4_000 });
        sim.trap(Moment::Promote, Deed::KillEngine { whom: Side::Actor, restart_after_ms: 50 });
        sim.power_on(p);
        sim.until_count("F47 proposal late", 1, 10_000);
        sim.dare();
        sim.disk(p, DiskFault::Vanish);
        sim.expect_no_device_for_ms(8_000);
        sim.settle();
    });
}

/// R9: another member takes over, until an operator has removed the files that do not belong there.
#[test]
fn files_of_another_replica_are_not_used() {
    reaches("control: the files of a replica are not what its label says", || {
        let mut sim = Scenario::three();
        let [p, ..] = sim.cast();
        sim.write(1);
        sim.disk(p, DiskFault::OtherFiles);
        sim.until_primary_is_not(p, 10_000);
        sim.write(2);
        sim.disk(p, DiskFault::Remove);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    });
}

/// The replica was closed to be removed, and its restarted node no longer knows that. The primary
/// hears of neither, and goes on.
#[test]
fn a_replica_that_is_opened_again_hears_no_primary_before_an_attach() {
    reaches("replica: a primary goes on in a session of an earlier instance", || {
        for seed in 1..=20 {
            let mut sim = Scenario::new(Shape::small(3, 3, false), seed);
            let [p, s, t] = sim.cast();
            sim.write(1);
            sim.pause_agent(p, 1_500);
            // The replica's message about its closing arrives after it was opened again.
            sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 400 });
            sim.remove_replica(s);
            sim.until_seen(s, "closed, to remove it", 3_000);
            sim.run_us(1_500);
            sim.fault(Fault::KillAgent { target: n(s), restart_after_ms: 1 });
            for block in 0..100 {
                sim.write_without_waiting(block);
                sim.run_ms(2);
            }
            let mut left = [p, t];
            left.sort_unstable();
            sim.expect_replicas_within_ms(&left, 20_000);
            sim.settle();
        }
    });
}

/// The engine does not answer for too long, and its agent asks again.
#[test]
fn a_record_is_told_again_when_the_engine_stood_still() {
    reaches("replica: a record that is not newer", || {
        let mut sim = Scenario::three();
        let [p, s, t] = sim.cast();
        sim.pause_engine(s, 25_000);
        sim.write(1);
        let mut left = [p, t];
        left.sort_unstable();
        sim.expect_iss_within_ms(&left, 10_000);
        sim.expect_iss_within_ms(&[1, 2, 3], 40_000);
        sim.settle();
    });
}

#[test]
fn a_cut_outlasts_the_connection_that_it_was_asked_on() {
    reaches("replica: a cut ends in a later session", || {
        let mut sim = Scenario::three();
        let [p, s, t] = sim.cast();
        sim.write(1);
        // Writes that no other replica gets.
        sim.fault(Fault::CutEngines(n(p), n(s)));
        sim.fault(Fault::CutEngines(n(p), n(t)));
        for block in 0..4 {
            sim.write_without_waiting(block);
        }
        sim.run_ms(100);
        sim.power_cut(p);
        sim.heal();
        sim.until_primary_is_not(p, 10_000);
        let next = sim.primary().expect("another node took over");
        sim.write(2);
        sim.trap(Moment::Cut, Deed::LateDisk { whose: Side::Peer, what: DiskOp::MetaWrite, ms: 800 });
        sim.power_on(p);
        sim.until_count("F14 late operation", 1, 20_000);
        sim.run_ms(20);
        sim.fault(Fault::Reset(n(next), n(p)));
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    });
}

#[test]
fn a_replica_is_promoted_more_often_than_its_log_lists_epochs() {
    reaches("replica: the list of epochs is full", || {
        let mut sim = Scenario::new(Shape::small(3, 1, false), 1);
        let [p, ..] = sim.cast();
        for _ in 0..70 {
            let epoch = sim.epoch();
            sim.kill_engine(p);
            sim.until_epoch(epoch + 1, 5_000);
            sim.write(epoch);
        }
        sim.settle();
    });
}

/// R12: the primary reads the record back, sees that its content has changed, and gives the replica
/// up.
#[test]
fn decayed_journal_content_is_not_read() {
    reaches("store: the journal does not give back what was written", || {
        let mut sim = Scenario::lazy_journal(96, 1);
        let [p, ..] = sim.cast();
        for block in 0..24 {
            sim.write(block);
        }
        for pick in 0..8 {
            sim.disk(p, DiskFault::RotJournal { pick });
        }
        for block in 0..24 {
            sim.client(mainstay_sim::plan::ClientOp::Read { volume: 0, block, blocks: 1 });
        }
        sim.until_primary_is_not(p, 20_000);
        sim.settle();
    });
}

/// R19, R21: the address stays at the first attempt, so a second attempt is still to be made.
#[test]
fn an_agent_that_ends_in_the_midst_of_a_kill_goes_on_with_it() {
    reaches("ha: a kill is adopted after a restart", || {
        let mut sim = Scenario::with_service();
        let [p, ..] = sim.cast();
        sim.service(p, ServiceFault::KeepAddress);
        sim.isolate(p);
        sim.until_phase(p, ServicePhase::Killing, 10_000);
        sim.run_ms(50);
        sim.kill_agent(p);
        sim.expect_service_gone_within_ms(p, 5_000);
        sim.until_primary_is_not(p, 10_000);
        sim.settle();
    });
}

/// R21
#[test]
fn an_undo_that_hangs_is_repeated_with_force() {
    reaches("ha: an undo took too long", || {
        let mut sim = Scenario::with_service();
        let [p, s, _] = sim.cast();
        sim.service(p, ServiceFault::Hang);
        sim.move_service(s);
        sim.expect_service_on_within_ms(s, 200_000);
        sim.settle();
    });
}

/// A secondary is not asked for room. Its disk is slow, so many small discards fill its overlay.
fn many_discards_on_a_slow_secondary() {
    let mut shape = Shape::small(3, 3, false);
    shape.resources[0].journal_blocks = 96;
    let mut sim = Scenario::new(shape, 1);
    let [_, s, _] = sim.cast();
    sim.disk(s, DiskFault::Slow { factor: 40 });
    for piece in 0..600 {
        sim.client(ClientOp::Discard { volume: 0, block: piece * 2 % 1024, blocks: 1 });
        if piece % 8 == 0 {
            sim.run_ms(2);
        }
    }
    sim.settle();
}

/// R18
#[test]
fn a_slow_secondary_is_given_many_discards() {
    reaches("store: a batch waits because the overlay is full", many_discards_on_a_slow_secondary);
}

/// R18
#[test]
fn entries_stopped_by_a_full_overlay_wait_for_a_checkpoint() {
    reaches("store: the queue waits for a cut, a restart or a checkpoint", many_discards_on_a_slow_secondary);
}

/// R17
#[test]
fn more_snapshots_are_asked_for_than_there_may_be() {
    reaches("control: a snapshot too many", || {
        let mut sim = Scenario::three();
        for _ in 0..=SNAPSHOTS_MAX {
            sim.operator(Operator::Snapshot { resource: 0, drop: None });
            sim.run_ms(50);
        }
        let taken = sim.world.state().resources[&resource_id(0)].snapshots.len();
        assert_eq!(taken, SNAPSHOTS_MAX, "one was refused");
        sim.settle();
    });
}

/// R18: a pass of destaging ends at a snapshot, so the next pass begins before there is room.
#[test]
fn a_pass_that_ends_at_a_snapshot_leaves_no_room() {
    reaches("store: a pass is due because the journal is full", || {
        let mut shape = Shape::small(3, 3, false);
        shape.resources[0].journal_blocks = 96;
        let mut sim = Scenario::new(shape, 1);
        let [_, s, _] = sim.cast();
        sim.disk(s, DiskFault::Slow { factor: 40 });
        for piece in 0..1_200 {
            sim.client(ClientOp::Discard { volume: 0, block: piece * 2 % 1024, blocks: 1 });
            if piece % 8 == 0 {
                sim.run_ms(2);
            }
            if piece % 60 == 30 {
                sim.operator(Operator::Snapshot { resource: 0, drop: None });
            }
        }
        sim.settle();
    });
}

/// R17: a rollback takes a snapshot to be its mark.
#[test]
fn a_rollback_needs_room_for_its_mark() {
    reaches("control: no room for the mark of a rollback", || {
        let mut sim = Scenario::three();
        for _ in 0..SNAPSHOTS_MAX {
            sim.operator(Operator::Snapshot { resource: 0, drop: None });
            sim.run_ms(50);
        }
        sim.operator(Operator::RollBack { resource: 0, pick: 0, keep: false, restart: true });
        sim.run_ms(1_000);
        let resource = &sim.world.state().resources[&resource_id(0)];
        assert_eq!(resource.snapshots.len(), SNAPSHOTS_MAX);
        assert!(resource.rollback.is_none() && resource.rolled_back.is_none(), "it was refused");
        sim.settle();
    });
}

/// R13: the rollback is done again when there is room.
#[test]
fn a_full_disk_is_not_rolled_back_yet() {
    reaches("store: a rollback finds no space", || {
        let mut sim = Scenario::three();
        let [_, s, _] = sim.cast();
        sim.write(1);
        sim.operator(Operator::Snapshot { resource: 0, drop: None });
        sim.run_ms(2_000);
        sim.write(1);
        sim.run_ms(2_000);
        sim.disk(s, DiskFault::Full);
        sim.operator(Operator::RollBack { resource: 0, pick: 0, keep: false, restart: true });
        sim.run_ms(3_000);
        sim.disk(s, DiskFault::Room);
        sim.settle();
    });
}

/// S18: in mode A, a forced promotion costs the last write that the client was told of.
#[test]
fn a_client_is_told_that_an_answered_write_is_lost() {
    reaches("replica: sessions: the log lost what a client was told", || {
        let mut sim = Scenario::two_and_a_witness();
        let [p, s, w] = sim.cast();
        sim.mode_a(24, 5_000);
        sim.attach(w);
        sim.write(1);
        sim.run_ms(500);
        sim.cut(p, s);
        sim.write(2);
        sim.power_cut(p);
        sim.run_ms(8_000);
        sim.force();
        sim.until_primary_is_not(p, 15_000);
        sim.heal();
        sim.run_ms(3_000);
        sim.power_on(p);
        sim.settle();
    });
}

/// Fills the volumes, until the first blocks are no longer in the journals.
fn at_rest(sim: &mut Scenario) {
    for block in 0..60 {
        sim.write(block % 4);
    }
    sim.write_many(30);
    sim.run_ms(2_000);
}

fn rot(sim: &mut Scenario, node: u32) {
    for pick in 0..4 {
        sim.disk(node, DiskFault::RotVolume { pick });
    }
}

/// The next reads of its disk take `ms` milliseconds.
fn reads_come_late(sim: &mut Scenario, node: u32, ms: u64) {
    for _ in 0..4 {
        sim.disk(node, DiskFault::Late { what: DiskOp::Read, ms });
    }
}

fn read_rotten_blocks(sim: &mut Scenario) {
    for block in 0..4 {
        sim.client(ClientOp::Read { volume: 0, block, blocks: 1 });
    }
}

/// ADR 14: a member reports that it has the block whole. The block is damaged there as well before
/// it is read. The third replica has it.
fn the_sound_block_rots_before_it_is_read() {
    for step in 0..40 {
        let mut sim = Scenario::new(Shape::small(3, 3, false), 1);
        let [p, s, t] = sim.cast();
        at_rest(&mut sim);
        sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 20 });
        sim.fault(Fault::SlowLink { a: n(p), b: n(t), factor: 20 });
        rot(&mut sim, p);
        read_rotten_blocks(&mut sim);
        sim.run_us(step * 500);
        let other = if step % 2 == 0 { s } else { t };
        rot(&mut sim, other);
        sim.run_ms(5_000);
        sim.heal();
        sim.settle();
    }
}

#[test]
fn a_block_for_a_repair_rots_before_it_is_read() {
    reaches("host: what is to repair others is damaged too", the_sound_block_rots_before_it_is_read);
}

#[test]
fn a_rotten_block_repairs_no_replica() {
    reaches("replica: what is to repair others is not what it was", the_sound_block_rots_before_it_is_read);
}

/// S195: a member repeatedly does not report in time what it holds. It may have the block, so the
/// primary gives up, and the member goes on.
fn a_member_says_nothing() {
    let mut sim = Scenario::new(Shape::small(3, 2, false), 1);
    let [p, s, _] = sim.cast();
    at_rest(&mut sim);
    rot(&mut sim, p);
    read_rotten_blocks(&mut sim);
    for _ in 0..60 {
        sim.disk(s, DiskFault::Late { what: DiskOp::Read, ms: 12_000 });
        sim.run_ms(500);
    }
    sim.until_primary_is_not(p, 60_000);
    sim.settle();
}

#[test]
fn a_primary_gives_up_a_block_that_another_replica_may_have() {
    reaches("replica: another replica may have the damaged block", a_member_says_nothing);
}

#[test]
fn a_replica_with_damage_that_another_may_have_fails() {
    reaches("host: others may have what is damaged", a_member_says_nothing);
}

/// S195: a replica has said what it holds, and is started again. When it is asked for the block, it
/// does not know yet that its entries are committed.
fn it_was_started_again() {
    for step in 0..60 {
        let mut sim = Scenario::new(Shape::small(3, 2, false), 1);
        let [p, s, _] = sim.cast();
        at_rest(&mut sim);
        rot(&mut sim, p);
        sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 20 });
        sim.operator(Operator::Scrub { resource: 0, repair: true, rate: 0 });
        sim.run_us(step * 1_000);
        sim.fault(Fault::KillEngine { target: n(s), restart_after_ms: 1_200 });
        sim.run_ms(5_000);
        sim.heal();
        sim.settle();
    }
}

#[test]
fn a_restarted_replica_cannot_read_for_a_repair() {
    reaches("replica: blocks cannot be read for a primary", it_was_started_again);
}

#[test]
fn a_restarted_replica_is_asked_again_for_the_content_of_a_repair() {
    reaches("replica: the replica with the content for a repair is asked again", it_was_started_again);
}

/// R3: in mode B, one of two wanted copies is gone, with the content of its memory.
#[test]
fn a_flush_fails_when_its_writes_lack_a_copy() {
    reaches("replica: a flush is refused for want of copies", || {
        let mut sim = Scenario::two_and_a_witness();
        let [_, s, _] = sim.cast();
        sim.mode_b();
        sim.want_copies(2, 3_000);
        sim.disk(s, DiskFault::Late { what: DiskOp::JournalWrite, ms: 2_000 });
        sim.write(1);
        sim.power_cut(s);
        sim.run_ms(6_000);
        sim.flush_without_waiting();
        sim.run_ms(100);
        sim.power_on(s);
        sim.settle();
    });
}

/// ADR 18: the replica that has the block is a member, and does not answer. So no new write would
/// be committed.
fn damage_is_read_while_a_copy_is_missing() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, _] = sim.cast();
    at_rest(&mut sim);
    sim.want_copies(2, 1_000);
    sim.power_cut(s);
    sim.run_ms(4_000);
    rot(&mut sim, p);
    read_rotten_blocks(&mut sim);
    sim.run_ms(1_000);
    sim.power_on(s);
    sim.settle();
}

#[test]
fn nothing_is_mended_while_a_copy_is_missing() {
    reaches("replica: nothing is mended for want of copies", damage_is_read_while_a_copy_is_missing);
}

#[test]
fn a_read_of_damage_fails_while_a_copy_is_missing() {
    reaches("host: what is damaged is not mended for want of copies", damage_is_read_while_a_copy_is_missing);
}

/// The same, and the other replica goes away while it is asked for the block.
#[test]
fn a_mend_is_given_up_when_a_copy_is_missing() {
    reaches("replica: what is mended is given up for want of copies", || {
        let mut sim = Scenario::two_and_a_witness();
        let [p, s, _] = sim.cast();
        at_rest(&mut sim);
        sim.want_copies(2, 1_000);
        rot(&mut sim, p);
        sim.disk(s, DiskFault::Late { what: DiskOp::Read, ms: 3_000 });
        read_rotten_blocks(&mut sim);
        sim.run_ms(100);
        sim.power_cut(s);
        sim.run_ms(8_000);
        sim.power_on(s);
        sim.settle();
    });
}

/// The content for a repair has one wrong bit when it reaches the primary.
#[test]
fn the_content_for_a_repair_is_damaged_on_its_way() {
    reaches("codec: blocks are damaged on their way", || {
        for step in 0..60 {
            let mut sim = Scenario::new(Shape::small(3, 2, false), 1);
            let [p, s, _] = sim.cast();
            at_rest(&mut sim);
            rot(&mut sim, p);
            sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 20 });
            read_rotten_blocks(&mut sim);
            sim.run_us(step * 500);
            sim.fault(Fault::CorruptFrame(n(s), n(p)));
            sim.run_ms(5_000);
            sim.heal();
            sim.settle();
        }
    });
}

/// R19: the replica with the whole block takes long to read it, and meanwhile the primary's lease
/// ends.
#[test]
fn a_read_that_waits_for_a_repair_ends_with_the_role() {
    reaches("host: a read waits for damage to be mended when the role ends", || {
        let mut sim = Scenario::new(Shape::small(3, 2, false), 1);
        let [p, s, _] = sim.cast();
        at_rest(&mut sim);
        rot(&mut sim, p);
        sim.disk(s, DiskFault::Late { what: DiskOp::Read, ms: 4_000 });
        read_rotten_blocks(&mut sim);
        sim.run_ms(100);
        sim.isolate(p);
        sim.run_ms(8_000);
        sim.heal();
        sim.settle();
    });
}

/// S16: the same blocks rot everywhere, and a client reads them.
fn a_client_reads_a_block_that_no_replica_has() {
    let mut sim = Scenario::two_and_a_witness();
    let [p, s, w] = sim.cast();
    at_rest(&mut sim);
    sim.attach(w);
    sim.dare();
    rot(&mut sim, p);
    rot(&mut sim, s);
    for block in 0..60 {
        sim.client(ClientOp::Read { volume: 0, block, blocks: 1 });
    }
    sim.run_ms(3_000);
    sim.settle();
}

#[test]
fn a_client_is_told_that_no_replica_has_the_block() {
    reaches(
        "replica: client: no replica has what was to be read",
        a_client_reads_a_block_that_no_replica_has,
    );
}

#[test]
fn a_primary_says_that_no_replica_has_the_block() {
    reaches(
        "replica: sessions: a read that no replica can answer",
        a_client_reads_a_block_that_no_replica_has,
    );
}

/// S16: the same blocks have rotted on two replicas, and a third replica is copied from them. It
/// has no checksums, so it cannot hold these blocks as damaged.
#[test]
fn a_copy_waits_for_blocks_that_have_rotted_everywhere() {
    reaches("host: a copy waits at an extent that no replica has whole", || {
        // With this seed the third replica has no checksums.
        let mut sim = Scenario::new(Shape::small(3, 2, false), 153);
        let [p, s, t] = sim.cast();
        at_rest(&mut sim);
        sim.dare();
        rot(&mut sim, p);
        rot(&mut sim, s);
        sim.add_replica(t);
        sim.run_ms(5_000);
        assert_eq!(sim.iss().len(), 2, "it is not whole");
        for block in 0..60 {
            sim.write(block);
        }
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    });
}

#[test]
fn no_replica_has_the_content_for_a_repair_any_more() {
    reaches("replica: no replica has the content for a repair", it_was_started_again);
}

/// S195: a replica is being copied to when the primary looks for the block, so the primary does not
/// wait for it. It is in sync when the last other replica reports that the block is damaged there
/// too.
///
/// The replicas have destaged different parts by then. So most content of the third one rots, and
/// the client reads every block that was written.
#[test]
fn a_replica_that_must_have_the_damaged_block_is_asked_again() {
    reaches("replica: a replica that must have the damaged block is asked again", || {
        for step in 0..60 {
            let mut sim = Scenario::small_journal(32, 1);
            let [p, s, t] = sim.cast();
            at_rest(&mut sim);
            sim.leave_far_behind(s);
            sim.expect_copy_within_ms(s, 5_000);
            sim.dare();
            sim.run_us(step * 1_000);
            rot(&mut sim, p);
            for pick in 0..100 {
                sim.disk(t, DiskFault::RotVolume { pick });
            }
            reads_come_late(&mut sim, t, 300);
            for block in 0..80 {
                sim.client(ClientOp::Read { volume: 0, block: block * 13 % 1024, blocks: 1 });
            }
            sim.settle();
        }
    });
}

/// ADR 14: the only replica with the whole block reports that, and then the block rots there as
/// well.
#[test]
fn a_block_that_no_replica_can_give_any_more_is_looked_for_again() {
    reaches("replica: content to mend with could not be had, and is looked for again", || {
        for step in 0..40 {
            let mut sim = Scenario::two_and_a_witness();
            let [p, s, _] = sim.cast();
            at_rest(&mut sim);
            sim.dare();
            sim.fault(Fault::SlowLink { a: n(p), b: n(s), factor: 20 });
            rot(&mut sim, p);
            read_rotten_blocks(&mut sim);
            sim.run_us(step * 500);
            rot(&mut sim, s);
            sim.run_ms(5_000);
            sim.heal();
            sim.settle();
        }
    });
}

/// ADR 17: the new resource is wanted on the third node only.
#[test]
fn a_resource_is_to_be_made_where_the_snapshot_is_not() {
    reaches("control: a resource is to be made of a snapshot where no replica holds it", || {
        let mut shape = Shape::small(3, 2, false);
        let copy =
            ResourceShape { late: true, origin: Some(0), replicas: vec![3], ..shape.resources[0].clone() };
        shape.resources.push(copy);
        let mut sim = Scenario::new(shape, 1);
        sim.write_many(5);
        sim.operator(Operator::Snapshot { resource: 0, drop: None });
        sim.run_ms(1_000);
        sim.operator(Operator::CreateResource { resource: 1 });
        sim.run_ms(1_000);
        assert!(!sim.world.state().resources.contains_key(&resource_id(1)), "it was refused");
        sim.settle();
    });
}

/// Isolates a node while its engine goes on, until the other replicas have written more than a
/// journal holds.
fn isolate_until_far_behind(sim: &mut Scenario, node: u32) {
    sim.isolate(node);
    for block in 0..80 {
        sim.write(block * 13 % 1024);
    }
    sim.heal();
}

/// R17: a secondary takes long to read an extent for a scrub, and meanwhile it is copied from the
/// beginning.
#[test]
fn a_scrub_is_read_while_the_log_begins_anew() {
    reaches("host: the log began anew while an extent was scrubbed", || {
        for step in 0..40 {
            let mut sim = Scenario::small_journal(32, 1);
            let [_, s, _] = sim.cast();
            at_rest(&mut sim);
            sim.operator(Operator::Scrub { resource: 0, repair: false, rate: 0 });
            sim.run_us(step * 500);
            reads_come_late(&mut sim, s, 8_000);
            sim.run_ms(100);
            isolate_until_far_behind(&mut sim, s);
            sim.run_ms(12_000);
            sim.settle();
        }
    });
}

/// R17: a scrub waits for the rollback, the rollback for room, and the log begins anew.
#[test]
fn entries_wait_for_a_rollback_when_the_log_begins_anew() {
    reaches("store: a restart waits for what waits for a rollback", || {
        let mut sim = Scenario::small_journal(32, 1);
        let [_, s, _] = sim.cast();
        sim.write(1);
        sim.operator(Operator::Snapshot { resource: 0, drop: None });
        sim.run_ms(2_000);
        sim.write(1);
        sim.run_ms(2_000);
        sim.disk(s, DiskFault::Full);
        sim.operator(Operator::RollBack { resource: 0, pick: 0, keep: false, restart: true });
        sim.run_ms(3_000);
        sim.operator(Operator::Scrub { resource: 0, repair: false, rate: 0 });
        sim.run_ms(500);
        isolate_until_far_behind(&mut sim, s);
        sim.run_ms(3_000);
        sim.disk(s, DiskFault::Room);
        sim.settle();
    });
}

/// R17: the primary's reads for a scrub take long, and meanwhile a rollback begins.
#[test]
fn a_rollback_comes_while_a_scrub_reads() {
    reaches("store: a rollback waits for a scrub", || {
        for step in 0..40 {
            let mut sim = Scenario::three();
            let [p, ..] = sim.cast();
            at_rest(&mut sim);
            sim.operator(Operator::Snapshot { resource: 0, drop: None });
            sim.run_ms(2_000);
            sim.operator(Operator::Scrub { resource: 0, repair: false, rate: 0 });
            sim.run_us(step * 500);
            reads_come_late(&mut sim, p, 1_500);
            sim.operator(Operator::RollBack { resource: 0, pick: 0, keep: false, restart: true });
            sim.run_ms(3_000);
            sim.settle();
        }
    });
}

/// F3: the record landed at the start of the ring.
#[test]
fn a_record_lies_where_the_ring_begins() {
    reaches("store: a record lies at the start of the ring that had room before its end", || {
        for pick in 0..60 {
            let mut sim = Scenario::small_journal(32, 1);
            let [_, s, _] = sim.cast();
            for block in 0..30 + pick % 16 {
                sim.write(block);
            }
            sim.disk(s, DiskFault::MisdirectedRecord { pick });
            sim.power_cut(s);
            sim.run_ms(1_000);
            sim.power_on(s);
            sim.settle();
        }
    });
}

/// S18: the primary has been told to hand over, and its writes that are under way take long.
#[test]
fn a_client_asks_a_primary_that_hands_over() {
    reaches("host: a client asks for what cannot be", || {
        let mut sim = Scenario::new(Shape::small(4, 2, false), 1);
        let p = sim.primary().expect("a node is primary");
        sim.attach(4);
        sim.write(1);
        sim.disk(p, DiskFault::Slow { factor: 10 });
        sim.move_replica(p, 3);
        for block in 0..1_000 {
            if sim.primary() == Some(p) {
                sim.write_without_waiting(block);
                sim.run_us(500);
            }
        }
        sim.until_primary_is_not(p, 20_000);
        sim.settle();
    });
}

/// ADR 18: a new copy needs the damaged block. Without this copy there are too few, and a client
/// waits for the copies. Seed 3254914.
#[test]
fn a_repair_does_not_wait_for_the_copies_that_wait_for_it() {
    reaches("replica: a repair ends while copies are wanted", || {
        let mut sim = Scenario::new(Shape::small(4, 2, false), 1);
        let p = sim.primary().expect("a node is primary");
        at_rest(&mut sim);
        sim.attach(4);
        sim.add_replica(3);
        rot(&mut sim, p);
        sim.want_copies(3, 1_000);
        sim.write_without_waiting(20);
        sim.expect_iss_within_ms(&[1, 2, 3], 20_000);
        sim.settle();
    });
}

/// S251: while a scrub holds a rollback up, its snapshot is dropped and a client writes. Then a
/// replica returns that is far behind.
#[test]
fn entries_that_wait_for_a_rollback_are_copied_as_well() {
    reaches("store: what is not applied yet is listed as changed", || {
        for step in 0..40 {
            let mut sim = Scenario::small_journal(32, 1);
            let [p, _, t] = sim.cast();
            at_rest(&mut sim);
            sim.operator(Operator::Snapshot { resource: 0, drop: None });
            sim.run_ms(2_000);
            sim.isolate(t);
            for block in 0..80 {
                sim.write(block * 13 % 1024);
            }
            sim.run_ms(3_000);
            sim.operator(Operator::Scrub { resource: 0, repair: false, rate: 0 });
            sim.run_us(step * 500);
            reads_come_late(&mut sim, p, 6_000);
            sim.operator(Operator::RollBack { resource: 0, pick: 0, keep: false, restart: true });
            sim.run_ms(2_000);
            sim.operator(Operator::Snapshot { resource: 0, drop: Some(0) });
            sim.run_ms(2_000);
            sim.write_without_waiting(7);
            sim.run_ms(100);
            sim.heal();
            sim.run_ms(3_000);
            sim.settle();
        }
    });
}
