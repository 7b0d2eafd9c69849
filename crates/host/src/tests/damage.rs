//! Blocks of a volume that do not fit their sums: mended from another replica, or an error.

use super::lab::{JOURNAL_BLOCKS, Lab, LabPlatform, THERE, VOLUME, filled, lazy, range};
use crate::{AnswerError, DigestError, Happened};
use bytes::Bytes;
use mainstay_codec::{BlockSums, EntryKind, Envelope, Message, block_sum};
use mainstay_replica::{Op, RequestId};
use mainstay_store::{Area, DamagedBlock, Tuning};
use mainstay_types::{BLOCK_BYTES, EXTENT_BYTES, Extent, Index, Position};

const EXTENT_BLOCKS: usize = (EXTENT_BYTES / BLOCK_BYTES) as usize;

/// The lab's primary with blocks 0 and 1 in the volume, of which block 1 has then rotted.
fn rotten() -> Lab {
    let mut lab = Lab::summed(Tuning { destage_start_bytes: 0, ..lazy() });
    lab.request(Op::Write { range: range(0, 2), payload: filled(&[1, 2]).into() });
    lab.settle();
    rot(&mut lab);
    // The absent replica has been away for so long that nothing waits for it.
    lab.world.now = lab.world.now.plus_ms(60_000);
    lab.host.tick(lab.world.now);
    lab
}

fn rot(lab: &mut Lab) {
    let mut block = lab.world.blocks.get(Area::Volume(VOLUME), BLOCK_BYTES, BLOCK_BYTES).to_vec();
    block[77] ^= 1;
    lab.world.blocks.put(Area::Volume(VOLUME), BLOCK_BYTES, &block);
}

/// Does all that the disk is asked for.
fn run(lab: &mut Lab) {
    lab.settle();
    while !lab.world.reads.is_empty() {
        lab.answer_reads();
        lab.settle();
    }
}

/// The entry of the newest scrub that the other replica was sent.
fn scrubbed_at(world: &LabPlatform) -> Index {
    let scrubs = world.sent.iter().rev().find_map(|(_, _, envelope)| match &envelope.message {
        Message::Append(batch) if batch.entries[0].kind == EntryKind::Scrub => Some(batch.first),
        _ => None,
    });
    scrubs.expect("the extent is compared")
}

fn asks_for_blocks(world: &LabPlatform) -> bool {
    world.sent.iter().any(|(_, _, envelope)| matches!(envelope.message, Message::ReadBlocks { .. }))
}

fn unreadable(lab: &Lab) -> usize {
    lab.world.happened.iter().filter(|h| matches!(h, Happened::Unreadable(_))).count()
}

/// The other replica acknowledges all there is, and says what it holds of the extent: two blocks,
/// and zeroes.
fn compare(lab: &mut Lab, damaged: &[u32]) {
    let at = scrubbed_at(&lab.world);
    let mut sums = vec![block_sum(&filled(&[0])); EXTENT_BLOCKS];
    (sums[0], sums[1]) = (block_sum(&filled(&[1])), block_sum(&filled(&[2])));
    acknowledge(lab);
    let held = BlockSums { sums, damaged: damaged.to_vec() };
    assert!(lab.hear(true, THERE.incarnation, Message::ScrubSums { at, held }));
    run(lab);
}

fn acknowledge(lab: &mut Lab) {
    let durable = lab.host.store().log_state().end.index;
    assert!(lab.hear(true, THERE.incarnation, Message::Ack { durable }));
    run(lab);
}

/// A read of the rotten block by the primary of two replicas, which has been judged as far as its
/// own disk goes.
fn read_of_two(lab: &mut Lab) -> RequestId {
    lab.attach_equal_peer();
    let read = lab.read(0, 2);
    run(lab);
    assert!(!lab.is_answered(read), "it waits");
    read
}

#[test]
fn a_rotten_block_is_read_from_another_replica_and_written_anew() {
    let mut lab = rotten();
    let whole = lab.read(0, 1);
    lab.answer_reads();
    assert_eq!(lab.content(whole), filled(&[1]), "the other block is well");
    let read = read_of_two(&mut lab);
    let beside = lab.read(1, 1);
    run(&mut lab);
    compare(&mut lab, &[]);
    assert!(asks_for_blocks(&lab.world));
    assert!(!lab.is_answered(read));
    let blocks = Message::BlocksRead { range: range(1, 1), data: filled(&[2]).into() };
    assert!(lab.hear(true, THERE.incarnation, blocks));
    acknowledge(&mut lab);
    assert_eq!(lab.content(read), filled(&[1, 2]));
    assert_eq!(lab.content(beside), filled(&[2]), "the read that waited for the same extent");
    // It lies there again.
    lab.settle();
    let at_rest = lab.world.blocks.get(Area::Volume(VOLUME), BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(at_rest, filled(&[2]));
    assert_eq!((lab.failures(), unreadable(&lab)), (0, 0));
    assert_eq!((lab.host.damage_counts().found, lab.host.replica().scrub_totals().mended), (2, 1));
}

#[test]
fn a_block_that_no_replica_has_is_an_error_and_the_replica_goes_on() {
    for with_peer in [false, true] {
        let mut lab = rotten();
        let read = if with_peer {
            let read = read_of_two(&mut lab);
            compare(&mut lab, &[1]);
            read
        } else {
            let read = lab.read(0, 2);
            run(&mut lab);
            read
        };
        assert_eq!(lab.error(read), AnswerError::Disk);
        assert!(!asks_for_blocks(&lab.world));
        assert_eq!((lab.failures(), unreadable(&lab), lab.host.damage_counts().unreadable), (0, 1, 1));
        assert!(lab.host.unreadable().eq([DamagedBlock { volume: VOLUME, block: 1 }]));
        lab.write(1, 3);
        run(&mut lab);
        let read = lab.read(0, 2);
        run(&mut lab);
        assert_eq!(lab.host.unreadable().len(), 0);
        assert_eq!(lab.content(read), filled(&[1, 3]), "a client has written it anew");
    }
}

/// The disk gives back something else whenever a client reads, and what was written when it is
/// compared.
#[test]
fn damage_that_comes_and_goes_is_an_error_in_the_end() {
    let mut lab = rotten();
    let damaged = lab.world.blocks.get(Area::Volume(VOLUME), 0, 2 * BLOCK_BYTES);
    lab.world.blocks.put(Area::Volume(VOLUME), BLOCK_BYTES, &filled(&[2]));
    let read = lab.read(0, 2);
    let mut rounds = 0;
    while let Some(asked) = lab.world.reads.pop_front() {
        let clients = asked.area == Area::Volume(VOLUME) && asked.len == 2 * BLOCK_BYTES;
        let disk = lab.world.blocks.get(asked.area, asked.offset, asked.len);
        rounds += u32::from(clients);
        assert!(rounds < 20);
        lab.answer(asked, Ok(if clients { damaged.clone() } else { disk }));
        lab.settle();
    }
    assert!(rounds > 2, "{rounds}");
    assert_eq!(lab.error(read), AnswerError::Disk);
    assert_eq!((lab.failures(), unreadable(&lab), lab.host.damage_counts().found), (0, 1, 1));
}

#[test]
fn a_read_that_waits_ends_with_the_role() {
    let mut lab = rotten();
    let read = read_of_two(&mut lab);
    lab.host.record(lab.world.now, super::lab::record(2, 2, THERE.node));
    run(&mut lab);
    assert_eq!(lab.error(read), AnswerError::Request(mainstay_replica::RequestError::NotPrimary));
    assert_eq!(lab.failures(), 0);
}

/// A copy to a replica without checksums waits until the block is written anew.
#[test]
fn a_block_that_no_replica_has_holds_up_a_copy_and_nothing_else() {
    let mut lab = rotten();
    let Lab { host, world, .. } = &mut lab;
    host.load_extent(world, THERE.node, VOLUME, Extent(0));
    run(&mut lab);
    assert_eq!((lab.failures(), unreadable(&lab)), (0, 1));
    let retry = |lab: &mut Lab| {
        let again = lab.host.next_deadline().expect("it is tried again");
        lab.world.now = again;
        lab.host.tick(again);
        run(lab);
    };
    retry(&mut lab);
    assert_eq!(unreadable(&lab), 2, "nothing has changed");
    assert_eq!(lab.host.unreadable().len(), 1);
    lab.write(1, 3);
    run(&mut lab);
    retry(&mut lab);
    assert_eq!((lab.host.next_deadline(), unreadable(&lab), lab.host.unreadable().len()), (None, 2, 0));
    // A replica that lost the role copies to no other.
    rot(&mut lab);
    lab.host.load_extent(&mut lab.world, THERE.node, VOLUME, Extent(0));
    run(&mut lab);
    assert!(lab.host.next_deadline().is_some());
    lab.host.record(lab.world.now, super::lab::record(2, 2, THERE.node));
    run(&mut lab);
    assert_eq!(lab.host.next_deadline(), None);
}

/// The extents that the other replica was sent, with what is damaged in them.
fn copied(world: &LabPlatform) -> Vec<(Extent, Bytes, Vec<u32>)> {
    let extent = |(_, _, envelope): &(_, _, Envelope)| match &envelope.message {
        Message::CopyExtent { extent, data, damaged, .. } => Some((*extent, data.clone(), damaged.clone())),
        _ => None,
    };
    world.sent.iter().filter_map(extent).collect()
}

/// The rotten primary begins a copy to a replica that lacks everything. What is read for that has
/// not been answered.
fn begin_copy(sums: bool) -> Lab {
    let mut lab = rotten();
    for _ in 0..JOURNAL_BLOCKS {
        lab.write(5, 9);
        lab.settle();
    }
    lab.attach_empty_peer();
    assert!(lab.hear(true, THERE.incarnation, Message::CutReply { end: Position::default() }));
    run(&mut lab);
    let begins = lab.world.sent.iter().find_map(|(_, _, envelope)| match &envelope.message {
        Message::CopyBegin { at, .. } => Some(*at),
        _ => None,
    });
    let at = begins.expect("its log has been destaged");
    assert!(lab.hear(true, THERE.incarnation, Message::CopyBeginReply { at, sums }));
    lab
}

fn copying(sums: bool) -> Lab {
    let mut lab = begin_copy(sums);
    run(&mut lab);
    lab
}

/// ADR 15: the damage is copied as damage, and told until a client writes the block anew.
#[test]
fn a_block_that_no_replica_has_is_copied_as_damage_and_told_until_written() {
    let mut lab = copying(true);
    let [(Extent(0), data, damaged)] = &copied(&lab.world)[..] else { panic!("{:?}", lab.world.sent) };
    assert_eq!(damaged, &[1]);
    assert_eq!(data[..2 * BLOCK_BYTES as usize], filled(&[1, 0]), "damaged content is sent to no replica");
    let told = lab.world.happened.iter().any(
        |h| matches!(h, Happened::DamageCopied { to, extent: Extent(0), blocks: 1, .. } if *to == THERE.node),
    );
    assert!(told, "{:?}", lab.world.happened);
    assert_eq!((lab.failures(), lab.host.damage_counts().copied), (0, 1));
    // It is not looked for by others' requests: looking finds that it is still so, and that it is
    // well.
    let look = |lab: &mut Lab| {
        lab.world.now = lab.world.now.plus_ms(10_000);
        assert!(lab.host.next_deadline().expect("it is looked at again") <= lab.world.now);
        lab.host.tick(lab.world.now);
        run(lab);
        lab.host.unreadable().collect::<Vec<_>>()
    };
    assert_eq!(look(&mut lab), [DamagedBlock { volume: VOLUME, block: 1 }]);
    lab.write(1, 3);
    run(&mut lab);
    assert_eq!(look(&mut lab), []);
    assert_eq!(lab.host.damage_counts().found, 1, "a request that only looks has found nothing");
}

#[test]
fn a_replica_without_checksums_is_sent_no_damage() {
    let mut lab = copying(false);
    assert_eq!(copied(&lab.world), []);
    assert_eq!((lab.failures(), lab.host.damage_counts().copied), (0, 0));
    lab.write(1, 3);
    run(&mut lab);
    while copied(&lab.world).is_empty() {
        lab.world.now = lab.host.next_deadline().expect("it is tried again");
        lab.host.tick(lab.world.now);
        run(&mut lab);
    }
    let [(Extent(0), data, damaged)] = &copied(&lab.world)[..] else { panic!("{:?}", lab.world.sent) };
    assert_eq!((&data[..2 * BLOCK_BYTES as usize], &damaged[..]), (&filled(&[1, 3])[..], &[][..]));
}

/// A block that rots after the others were asked is not sent as damaged: they are asked for it
/// first.
#[test]
fn only_blocks_that_other_replicas_were_asked_for_are_copied_as_damage() {
    let mut lab = begin_copy(true);
    let mut extents_read = 0;
    while let Some(asked) = lab.world.reads.pop_front() {
        if asked.area == Area::Volume(VOLUME) && asked.offset == 0 && lab.host.damage_counts().found > 0 {
            extents_read += 1;
            // The first of them is the comparison, the second is for the copy.
            if extents_read == 2 {
                let block = [0xee; BLOCK_BYTES as usize];
                lab.world.blocks.put(Area::Volume(VOLUME), 0, &block);
            }
        }
        let bytes = lab.world.blocks.get(asked.area, asked.offset, asked.len);
        lab.answer(asked, Ok(bytes));
        lab.settle();
    }
    assert!(extents_read > 3, "{extents_read}: they are asked again");
    let [(Extent(0), _, damaged)] = &copied(&lab.world)[..] else { panic!("{:?}", lab.world.sent) };
    assert_eq!(damaged, &[0, 1]);
}

#[test]
fn a_rotten_block_of_a_volume_is_not_digested() {
    let mut lab = rotten();
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    lab.answer_reads();
    let disk = |h: &Happened| matches!(h, Happened::Digested(Err(DigestError::Disk(_))));
    assert!(lab.world.happened.iter().any(disk), "{:?}", lab.world.happened);
    assert_eq!(lab.failures(), 0, "a block that no replica has would cost all replicas, one after the other");
}

/// F2: the discarded blocks' holes, or what was written there before.
#[test]
fn a_hole_where_there_should_be_data_is_not_digested() {
    let mut lab = rotten();
    lab.world.knows_holes = true;
    lab.world.blocks.forget(Area::Volume(VOLUME));
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    lab.answer_reads();
    let disk = |h: &Happened| matches!(h, Happened::Digested(Err(DigestError::Disk(_))));
    assert!(lab.world.happened.iter().any(disk), "{:?}", lab.world.happened);
}
