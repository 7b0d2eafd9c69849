//! Scenarios of a host: its work beyond that of its cores.

mod damage;
mod in_flight;
mod lab;
mod rollback;
mod room;
mod scrub;
mod space;
mod whole;

use crate::{AnswerError, Digest, DigestError, Happened, PAUSE_MS_MAX};
use lab::{HERE, JOURNAL_BLOCKS, Lab, THERE, VOLUME, broken, filled, lazy, range, record, roomy};
use mainstay_codec::{Envelope, Message, Pieces};
use mainstay_replica::{Effect, Op, RequestError};
use mainstay_store::{Area, LogSource, Output, PAYLOADS_READ_BYTES_MAX, Tuning};
use mainstay_types::{
    BLOCK_BYTES, ClientMark, DataState, EXTENT_BYTES, Epoch, Extent, Index, REQUEST_BYTES_MAX, Range, Role,
    VolumeId,
};

#[test]
fn a_write_completes_when_the_journal_has_it() {
    let mut lab = Lab::primary(roomy());
    let write = lab.write(3, 0xaa);
    assert!(!lab.is_answered(write));
    let journal_write = |output: &Output| matches!(output, Output::JournalWrite { .. });
    assert!(lab.world.operations.iter().any(journal_write), "{:?}", lab.world.operations);
    lab.settle();
    assert_eq!(lab.world.answers[&write], Ok(Pieces::new()));
    let read = lab.read(3, 1);
    assert_eq!(lab.content(read), filled(&[0xaa]), "from memory, at once");
    let beyond = lab.read(1 << 20, 1);
    assert_eq!(lab.error(beyond), AnswerError::Request(RequestError::Range));
}

#[test]
fn a_read_spans_overlay_and_volume() {
    for memory_bytes_max in [0, 1 << 20] {
        let mut lab = Lab::primary(Tuning { memory_bytes_max, ..lazy() });
        lab.world.blocks.put(Area::Volume(VOLUME), 0, &filled(&[1, 2, 3, 4, 5]));
        lab.write(1, 0xaa);
        lab.request(Op::Discard { range: range(3, 1) });
        lab.settle();
        let read = lab.read(0, 5);
        assert!(!lab.is_answered(read));
        assert_eq!(lab.world.reads.len(), if memory_bytes_max == 0 { 4 } else { 3 });
        // The disk may be in no hurry to keep the order.
        lab.world.reads.make_contiguous().reverse();
        lab.answer_reads();
        assert_eq!(lab.content(read), filled(&[1, 0xaa, 3, 0, 5]));
    }
}

#[test]
fn a_read_whose_place_in_the_journal_was_used_again_is_done_anew() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 0x11);
    lab.settle();
    let read = lab.read(0, 1);
    let old = lab.the_read();
    assert_eq!(old.area, Area::Journal);
    for fill in 0..JOURNAL_BLOCKS as u8 {
        lab.write(5, fill);
        lab.settle();
    }
    let found = lab.world.blocks.get(old.area, old.offset, old.len);
    assert_ne!(found, filled(&[0x11]), "the place was used again, or this test shows nothing");
    lab.world.reads.clear();
    lab.answer(old, Ok(found));
    assert!(!lab.is_answered(read));
    assert_eq!(lab.the_read().area, Area::Volume(VOLUME));
    lab.answer_reads();
    assert_eq!(lab.content(read), filled(&[0x11]));
    lab.answer(old, Ok(filled(&[9]).into()));
    assert_eq!(lab.failures(), 0, "an answer without a waiting request is ignored");
}

#[test]
fn a_read_that_completes_without_lease_is_refused() {
    let mut lab = Lab::primary(lazy());
    let read = lab.read(0, 1);
    lab.the_read();
    lab.world.lease = false;
    lab.answer_reads();
    assert_eq!(lab.error(read), AnswerError::NoLease);
    lab.world.lease = true;
    let again = lab.read(0, 1);
    lab.answer_reads();
    assert_eq!(lab.content(again), filled(&[0]));
}

/// R10, R11: the nodes that go on without this one may not have the write.
#[test]
fn a_write_that_completes_without_lease_is_not_acknowledged() {
    let mut lab = Lab::primary(lazy());
    let write = lab.write(0, 7);
    lab.world.lease = false;
    lab.settle();
    assert_eq!(lab.error(write), AnswerError::NoLease);
    lab.world.lease = true;
    let again = lab.write(0, 8);
    lab.settle();
    assert!(lab.is_answered(again) && lab.world.answers[&again].is_ok());
}

#[test]
fn a_read_in_flight_is_refused_when_another_becomes_primary() {
    let mut lab = Lab::primary(lazy());
    let read = lab.read(0, 1);
    lab.host.record(lab.world.now, record(2, 2, THERE.node));
    lab.settle();
    assert_eq!(lab.host.role(), Role::Secondary);
    assert_eq!(lab.error(read), AnswerError::Request(RequestError::NotPrimary));
    // The lease of the node goes on; the answer would be the content before the other's writes.
    lab.answer_reads();
    assert_eq!(lab.failures(), 0);
}

#[test]
fn a_failed_read_ends_the_use_of_the_disk() {
    let mut lab = Lab::primary(Tuning { destage_start_bytes: 0, ..lazy() });
    let reads = [lab.read(0, 1), lab.read(1, 1)];
    lab.write(5, 1);
    assert!(lab.step(), "the journal write");
    assert!(
        matches!(lab.world.operations.make_contiguous(), [Output::MetaWrite { .. }]),
        "destaging has begun"
    );
    let failed = lab.world.reads.pop_front().expect("two reads");
    lab.answer(failed, Err(broken()));
    assert_eq!(lab.error(reads[0]), AnswerError::Disk);
    assert!(lab.host.failed().is_some_and(|reason| reason.contains("the disk is broken")));
    assert_eq!(lab.host.role(), Role::Fenced);
    assert!(lab.step());
    assert!(lab.world.operations.is_empty(), "nothing follows on the operation that was in flight");
    lab.answer_reads();
    let failed = lab.request(Op::Flush);
    assert_eq!(lab.error(failed), AnswerError::Request(RequestError::StoreFailed));
}

#[test]
fn a_failure_is_said_once() {
    let mut lab = Lab::primary(lazy());
    lab.read(0, 1);
    lab.write(5, 1);
    let read = lab.the_read();
    lab.answer(read, Err(broken()));
    let Some(Output::JournalWrite { op, .. }) = lab.world.operations.pop_front() else {
        panic!("the write is in flight");
    };
    lab.host.store_done(op, Err(broken()));
    lab.settle();
    assert_eq!(lab.failures(), 1);
}

#[test]
fn a_short_read_is_a_failed_read() {
    let mut lab = Lab::primary(lazy());
    let read = lab.read(0, 2);
    let asked = lab.the_read();
    lab.answer(asked, Ok(filled(&[0]).into()));
    assert_eq!(lab.error(read), AnswerError::Disk);
}

/// Runs a primary whose journal gives back something else than was written. `ask` begins the read.
fn decayed(ask: impl FnOnce(&mut Lab)) -> Lab {
    let mut lab = Lab::primary(lazy());
    lab.request(Op::Write { range: range(0, 3), payload: filled(&[1, 2, 3]).into() });
    lab.settle();
    lab.write(1, 9);
    lab.settle();
    ask(&mut lab);
    let payload = *lab.world.reads.iter().find(|read| read.area == Area::Journal).expect("it left memory");
    assert_eq!(payload.len, 3 * BLOCK_BYTES, "the checksum is of the whole payload");
    // The block that was overwritten since: not one of those that are wanted, which would otherwise
    // look well.
    let mut damaged = lab.world.blocks.get(payload.area, payload.offset, payload.len).to_vec();
    damaged[BLOCK_BYTES as usize + 100] ^= 1;
    lab.world.blocks.put(payload.area, payload.offset, &damaged);
    lab.answer_reads();
    let reason = lab.host.failed().expect("a damaged journal is not used any more");
    assert!(reason.contains("journal record of entry 2 is damaged"), "{reason}");
    assert_eq!((lab.failures(), lab.host.role()), (1, Role::Fenced));
    lab
}

#[test]
fn decayed_journal_content_is_not_answered() {
    let mut read = None;
    let lab = decayed(|lab| read = Some(lab.read(0, 1)));
    assert_eq!(lab.error(read.expect("it was asked for")), AnswerError::Disk);
}

#[test]
fn decayed_journal_content_is_not_copied() {
    let lab = decayed(|lab| {
        let Lab { host, world, .. } = lab;
        host.load_extent(world, THERE.node, VOLUME, Extent(0));
    });
    let copied = |(_, _, envelope): &(_, _, Envelope)| matches!(envelope.message, Message::CopyExtent { .. });
    assert!(!lab.world.sent.iter().any(copied), "{:?}", lab.world.sent);
}

#[test]
fn decayed_journal_content_is_not_digested() {
    let lab = decayed(|lab| lab.host.start_digest(&mut lab.world).expect("none is being made"));
    let disk = |h: &Happened| matches!(h, Happened::Digested(Err(DigestError::Disk(_))));
    assert!(lab.world.happened.iter().any(disk), "{:?}", lab.world.happened);
}

#[test]
fn parts_of_entries_are_cut_out_of_their_payloads() {
    let mut lab = Lab::primary(lazy());
    lab.request(Op::Write { range: range(0, 4), payload: filled(&[1, 2, 3, 4]).into() });
    lab.settle();
    lab.write(1, 9);
    lab.settle();
    let read = lab.read(0, 4);
    lab.answer_reads();
    assert_eq!(lab.content(read), filled(&[1, 9, 3, 4]));
    let part = lab.read(2, 1);
    lab.answer_reads();
    assert_eq!(lab.content(part), filled(&[3]));
}

#[test]
fn payloads_that_are_read_for_one_answer_are_bounded() {
    let mut lab = Lab::with_journal(lazy(), 2 * REQUEST_BYTES_MAX, 4096);
    lab.promote();
    let blocks = REQUEST_BYTES_MAX / BLOCK_BYTES;
    // Only one block of each payload but the last stays visible.
    for fill in 0..4 {
        let payload = filled(&[fill]).repeat(blocks as usize);
        let write = lab.request(Op::Write { range: range(u64::from(fill), blocks), payload: payload.into() });
        lab.settle();
        assert_eq!(lab.world.answers[&write], Ok(Pieces::new()));
    }
    let read = lab.read(0, 4);
    let mut reads = 0;
    while let Some(read) = lab.world.reads.pop_front() {
        let in_flight = read.len + lab.world.reads.iter().map(|read| read.len).sum::<u64>();
        assert!(in_flight <= PAYLOADS_READ_BYTES_MAX, "{in_flight} bytes");
        reads += 1;
        let bytes = lab.world.blocks.get(read.area, read.offset, read.len);
        lab.answer(read, Ok(bytes));
    }
    assert_eq!(reads, 4);
    assert_eq!(lab.content(read), filled(&[0, 1, 2, 3]));
}

#[test]
fn a_message_of_the_wrong_direction_is_dropped() {
    let mut lab = Lab::new(lazy());
    assert!(
        !lab.hear(true, HERE.incarnation, Message::Attach),
        "only the node that opened a connection may be primary"
    );
    assert!(lab.world.sent.is_empty() && lab.host.store().promised() == Epoch(0));
    assert!(lab.hear(false, HERE.incarnation, Message::Attach));
    let [(to, answer, envelope)] = &lab.world.sent[..] else { panic!("{:?}", lab.world.sent) };
    assert!(*to == THERE.node && *answer && matches!(envelope.message, Message::AttachReply(_)));
    assert_eq!(lab.host.store().promised(), Epoch(1));
    assert!(!lab.hear(false, HERE.incarnation, Message::Ack { durable: Index(1) }));
}

#[test]
fn a_lagging_peer_is_fed_from_the_journal() {
    let mut lab = Lab::primary(lazy());
    for fill in 1..=3 {
        lab.write(0, fill);
        lab.settle();
    }
    lab.attach_empty_peer();
    assert_eq!(lab.appended(), [], "they are being read");
    assert_eq!(lab.world.reads.len(), 4);
    lab.answer_reads();
    assert_eq!(lab.appended(), [Index(1), Index(2), Index(3), Index(4)]);
}

#[test]
fn a_damaged_batch_in_the_journal_is_not_sent() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.attach_empty_peer();
    let damaged = *lab.world.reads.back().expect("the write is read");
    lab.world.blocks.put(Area::Journal, damaged.offset + damaged.len - BLOCK_BYTES, &filled(&[0xee]));
    lab.answer_reads();
    assert_eq!(lab.appended(), []);
    assert!(lab.host.failed().is_some_and(|reason| reason.contains("damaged")));
}

/// The disk has lost a write, or returns older content: a whole batch with the same first entry,
/// which was cut.
#[test]
fn a_batch_of_another_history_in_the_journal_is_not_sent() {
    let mut other = Lab::primary(lazy());
    other.write(0, 2);
    other.settle();
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.attach_empty_peer();
    let read = *lab.world.reads.back().expect("the write is read");
    let old = other.world.blocks.get(Area::Journal, read.offset, read.len);
    lab.world.blocks.put(Area::Journal, read.offset, &old);
    lab.answer_reads();
    assert_eq!(lab.appended(), []);
    assert!(lab.host.failed().is_some_and(|reason| reason.contains("damaged")));
}

#[test]
fn an_entry_overwritten_while_it_is_read_for_a_peer_is_no_damage() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.attach_empty_peer();
    for fill in 0..JOURNAL_BLOCKS as u8 {
        lab.write(5, fill);
        lab.settle();
    }
    lab.answer_reads();
    lab.settle();
    assert_eq!(lab.failures(), 0);
    assert!(!lab.appended().contains(&Index(1)), "the journal does not reach back any more");
    let copy = |(_, _, envelope): &(_, _, Envelope)| matches!(envelope.message, Message::CopyBegin { .. });
    assert!(lab.world.sent.iter().any(copy), "{:?}", lab.world.sent);
}

/// Writes two blocks where nothing is, so that they go straight to the volume.
fn write_two(lab: &mut Lab, block: u64, fills: &[u8; 2]) {
    lab.request(Op::Write { range: range(block, 2), payload: filled(fills).into() });
    lab.settle();
    lab.answer_reads();
    lab.settle();
}

/// A primary that has filled blocks 4 and 5 with its last entry, which left memory.
fn filling(destage_start_bytes: u64) -> (Lab, Index) {
    let tuning = Tuning { fill_bytes_min: 2 * BLOCK_BYTES, destage_start_bytes, ..lazy() };
    let mut lab = Lab::summed(tuning);
    for block in [0, 2, 4] {
        write_two(&mut lab, block, &[7, 8]);
    }
    let end = lab.host.store().log_state().end.index;
    let plan = lab.host.store().log_plan(end, 1).expect("it is in the journal");
    assert!(matches!(plan[0].source, LogSource::Volume { .. }), "{plan:?}");
    (lab, end)
}

#[test]
fn a_peer_is_fed_with_what_was_filled() {
    let (mut lab, end) = filling(u64::MAX);
    lab.attach_empty_peer();
    lab.answer_reads();
    let sent = lab.world.sent.iter().find_map(|(_, _, envelope)| match &envelope.message {
        Message::Append(batch) if batch.first == end => Some(batch.payload.concat()),
        _ => None,
    });
    assert!(sent == Some(filled(&[7, 8])));
    assert_eq!(lab.failures(), 0);
}

#[test]
fn what_was_filled_and_has_changed_is_copied_to_a_peer_instead() {
    // More than the fill and less than what is written then.
    let (mut lab, end) = filling(6 * BLOCK_BYTES);
    for fill in 9..20 {
        lab.write(5, fill);
        lab.write(u64::from(fill), fill);
        lab.settle();
        lab.answer_reads();
        lab.settle();
    }
    assert!(lab.host.store().checkpoint() > end);
    lab.attach_empty_peer();
    lab.answer_reads();
    lab.settle();
    assert_eq!(lab.failures(), 0);
    assert!(!lab.appended().contains(&end));
    let copy = |(_, _, envelope): &(_, _, Envelope)| matches!(envelope.message, Message::CopyBegin { .. });
    assert!(lab.world.sent.iter().any(copy), "{:?}", lab.world.sent);
}

#[test]
fn damage_to_what_was_filled_last_is_not_sent() {
    let (mut lab, end) = filling(u64::MAX);
    lab.world.blocks.put(Area::Volume(VolumeId(0)), 5 * BLOCK_BYTES, &filled(&[9]));
    lab.attach_empty_peer();
    lab.answer_reads();
    assert!(!lab.appended().contains(&end));
    assert!(lab.host.failed().is_some_and(|reason| reason.contains("damaged")));
}

#[test]
fn loads_of_a_former_primary_are_forgotten() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.attach_empty_peer();
    lab.host.record(lab.world.now, record(2, 2, THERE.node));
    lab.settle();
    // A cut may have put something else where this is being read; that is no damage.
    for read in std::mem::take(&mut lab.world.reads) {
        lab.answer(read, Ok(filled(&[0xee, 0xee]).into()));
    }
    assert_eq!((lab.failures(), lab.appended()), (0, Vec::new()));
}

#[test]
fn equal_content_gives_equal_digests_wherever_it_lies() {
    let extent = EXTENT_BYTES / BLOCK_BYTES;
    // In the journal, in memory, in the volume: the overlay makes no difference.
    let destaging = Tuning { destage_start_bytes: 0, ..lazy() };
    let digests = [lazy(), roomy(), destaging].map(|tuning| {
        let mut lab = Lab::primary(tuning);
        for (block, fill) in [(0, 1), (extent, 2), (extent + 1, 3), (0, 4)] {
            lab.write(block, fill);
        }
        let zeroes = lab.request(Op::WriteZeroes { range: range(2 * extent + 3, 2) });
        lab.settle();
        assert_eq!(lab.world.answers[&zeroes], Ok(Pieces::new()));
        let digest = lab.digest().expect("nothing moves");
        assert_eq!(digest.index, Index(6));
        assert!(lab.host.start_digest(&mut lab.world).is_ok(), "the next one can be made");
        digest.volumes
    });
    assert_ne!(digests[0], [0]);
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");

    let mut lab = Lab::primary(lazy());
    lab.write(0, 4);
    lab.write(extent, 2);
    lab.settle();
    let without = lab.digest().expect("nothing moves");
    lab.write(extent + 1, 3);
    lab.settle();
    let with = lab.digest().expect("nothing moves");
    assert_ne!(without.volumes, with.volumes);
    assert_eq!(with.volumes, digests[0], "zeroes that were written are zeroes that never were");
}

#[test]
fn a_digest_of_a_moving_log_is_refused() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    assert_eq!(lab.host.start_digest(&mut lab.world), Err(DigestError::Busy));
    lab.write(0, 2);
    lab.settle();
    assert_eq!(lab.digested(), None);
    lab.answer_reads();
    assert_eq!(lab.digested(), Some(Err(DigestError::Moved)));

    lab.host.start_digest(&mut lab.world).expect("none is being made");
    let read = lab.world.reads.pop_front().expect("a read");
    lab.answer(read, Err(broken()));
    let disk = |h: &Happened| matches!(h, Happened::Digested(Err(DigestError::Disk(_))));
    assert!(lab.world.happened.iter().any(disk), "{:?}", lab.world.happened);
}

/// R16: while a replica is copied its content is that of no commit index; and what was read before
/// is not what is there after.
#[test]
fn a_digest_and_a_copy_do_not_mix() {
    let mut lab = Lab::primary(lazy());
    lab.write(0, 1);
    lab.settle();
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    let log = lab.host.store().log_state();
    lab.host.effect(
        &mut lab.world,
        Effect::Restart {
            at: log.end,
            chain: log.chain,
            volumes: lab.host.store().config().volumes.clone(),
            snapshots: vec![],
            client: ClientMark::default(),
        },
    );
    lab.settle();
    assert_eq!(lab.host.store().log_state().data, DataState::Inconsistent);
    assert_eq!(lab.digested(), None);
    lab.host.effect(&mut lab.world, Effect::FinishCopy { need: log.end.index });
    lab.settle();
    assert_eq!(lab.host.store().log_state().data, DataState::Consistent);
    lab.answer_reads();
    assert_eq!(lab.digested(), Some(Err(DigestError::Moved)), "the copy was shorter");

    lab.host.effect(
        &mut lab.world,
        Effect::Restart {
            at: log.end,
            chain: log.chain,
            volumes: lab.host.store().config().volumes.clone(),
            snapshots: vec![],
            client: ClientMark::default(),
        },
    );
    lab.settle();
    assert_eq!(lab.host.start_digest(&mut lab.world), Err(DigestError::Incomplete));
}

#[test]
fn a_digest_of_a_discarded_volume_needs_no_disk_and_little_stack() {
    let bytes: u64 = 64 << 30;
    let mut lab = Lab::sized(lazy(), bytes);
    lab.promote();
    for offset in (0..bytes).step_by(2 << 30) {
        lab.request(Op::Discard { range: Range { volume: VOLUME, offset, len: 2 << 30 } });
    }
    // The store is told, and has no time to destage.
    while lab.host.store().log_state().commit < Index(33) {
        assert!(lab.step());
    }
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    assert!(lab.world.reads.is_empty(), "{} reads", lab.world.reads.len());
    assert_eq!(lab.digested(), Some(Ok(Digest { index: Index(33), volumes: vec![0] })));
}

/// A range that was discarded and destaged is in no overlay any more; the file system says that it
/// is a hole.
#[test]
fn a_hole_is_not_read_where_much_is_read() {
    let mut lab = Lab::primary(Tuning { destage_start_bytes: 0, ..lazy() });
    lab.world.knows_holes = true;
    let extent = EXTENT_BYTES / BLOCK_BYTES;
    for block in [0, extent] {
        lab.write(block, 1);
        lab.settle();
    }
    lab.request(Op::Discard { range: range(0, extent) });
    lab.settle();
    lab.host.start_digest(&mut lab.world).expect("none is being made");
    let read = lab.the_read();
    assert_eq!((read.area, read.offset, read.len), (Area::Volume(VOLUME), EXTENT_BYTES, EXTENT_BYTES));
    lab.answer_reads();
    let with = lab.digested().expect("it has ended").expect("nothing moves");
    lab.world.knows_holes = false;
    assert_eq!(lab.digest().expect("nothing moves"), with, "a hole reads as zeroes");
    // A device is not made to wait for the question.
    lab.world.knows_holes = true;
    lab.read(0, 1);
    assert_eq!(lab.the_read().len, BLOCK_BYTES);
}

#[test]
fn a_pause_ends_by_itself() {
    let mut lab = Lab::new(lazy());
    assert!(!lab.host.pause(lab.world.now), "not the primary");
    lab.promote();
    assert!(lab.host.pause(lab.world.now));
    lab.settle();
    assert!(lab.world.happened.iter().any(|h| matches!(h, Happened::Paused { .. })));
    let write = lab.write(0, 1);
    lab.settle();
    assert!(!lab.is_answered(write));
    let end = lab.world.now.plus_ms(PAUSE_MS_MAX);
    assert_eq!((lab.host.paused_until(), lab.host.next_deadline()), (Some(end), Some(end)));
    lab.world.now = end;
    lab.host.tick(end);
    lab.settle();
    assert_eq!(lab.host.paused_until(), None);
    assert_eq!(lab.world.answers[&write], Ok(Pieces::new()));
}

#[test]
fn a_read_of_a_volume_that_a_write_overtakes_is_done_anew() {
    let mut lab = Lab::summed(Tuning { destage_start_bytes: 0, ..lazy() });
    lab.write(0, 1);
    lab.settle();
    let read = lab.read(0, 1);
    // The read gets the earlier content, and the sum of the later one.
    let asked = *lab.world.reads.iter().find(|read| read.area == Area::Volume(VOLUME)).expect("it is read");
    let before = lab.world.blocks.get(asked.area, asked.offset, asked.len);
    lab.write(0, 2);
    lab.settle();
    lab.world.reads.retain(|read| *read != asked);
    lab.answer_reads();
    lab.answer(asked, Ok(before));
    lab.answer_reads();
    assert_eq!(lab.content(read), filled(&[2]));
    assert_eq!(lab.host.failed(), None);
}
