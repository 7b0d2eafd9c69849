//! R26: a request of a device is one entry, and is whole or absent after a crash at any moment.

use super::lab::{Lab, lazy, range};
use mainstay_codec::Message;
use mainstay_replica::{Op, RequestId};
use mainstay_store::{Output, Tuning};
use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX, Role};

/// First block of the write, inside of an extent.
const FIRST: u64 = 7;
const BLOCKS: u64 = REQUEST_BYTES_MAX / BLOCK_BYTES;

/// Everything is destaged at once, in several writes.
fn eager() -> Tuning {
    Tuning { destage_start_bytes: 0, destage_write_bytes_max: 64 * BLOCK_BYTES, ..lazy() }
}

fn lab() -> Lab {
    Lab::with_journal(eager(), 2 * REQUEST_BYTES_MAX, 2048)
}

fn write(lab: &mut Lab, fill: u8) -> RequestId {
    let payload = vec![fill; REQUEST_BYTES_MAX as usize].into();
    lab.request(Op::Write { range: range(FIRST, BLOCKS), payload })
}

/// The first bytes of the blocks, each once.
fn fills(lab: &mut Lab) -> Vec<u8> {
    let read = lab.read(FIRST, BLOCKS);
    lab.answer_reads();
    let mut fills = lab.content(read);
    fills.dedup();
    fills
}

/// Tears the oldest operation of the store: the disk does a part of it, and the power goes.
fn tear(lab: &mut Lab, parts: usize) {
    let Some(output) = lab.world.operations.pop_front() else { return };
    let half = match output {
        Output::VolumeWrite { op, volume, offset, data, durable } => {
            let data = data.into_iter().map(|piece| piece.slice(..piece.len() / parts)).collect();
            Output::VolumeWrite { op, volume, offset, data, durable }
        }
        Output::JournalWrite { op, offset, parts: batches } => {
            let torn = |(local, batch): (_, std::sync::Arc<mainstay_codec::Batch>)| {
                let payload = batch.payload.iter().map(|piece| piece.slice(..piece.len() / parts)).collect();
                (local, std::sync::Arc::new(mainstay_codec::Batch { payload, ..(*batch).clone() }))
            };
            Output::JournalWrite { op, offset, parts: batches.into_iter().map(torn).collect() }
        }
        other => other,
    };
    lab.world.execute(half);
}

#[test]
fn a_request_of_a_mebibyte_is_one_entry() {
    let mut lab = lab();
    lab.promote();
    lab.attach_equal_peer();
    lab.world.sent.clear();
    let end = lab.host.store().log_state().end.index;
    write(&mut lab, 1);
    lab.settle();
    let sent: Vec<_> = lab.world.sent.iter().map(|(_, _, envelope)| &envelope.message).collect();
    let batch = |sent: &&Message| match sent {
        Message::Append(batch) => Some(batch.clone()),
        _ => None,
    };
    let batches: Vec<_> = sent.iter().filter_map(batch).collect();
    let [batch] = &batches[..] else { panic!("{} batches", batches.len()) };
    assert_eq!((batch.first, batch.last()), (end.next(), end.next()));
    assert_eq!(batch.entries[0].range, range(FIRST, BLOCKS));
}

#[test]
fn a_request_of_a_mebibyte_is_whole_or_absent_after_a_crash_at_any_step() {
    let mut seen = [0, 0];
    for parts in [1, 3] {
        for steps in 0.. {
            let mut lab = lab();
            lab.promote();
            write(&mut lab, 1);
            lab.settle();
            write(&mut lab, 2);
            let ended = (0..steps).any(|_| !lab.step());
            tear(&mut lab, parts);
            let mut lab = lab.reopened(eager());
            assert_eq!(lab.host.role(), Role::Primary);
            let fills = fills(&mut lab);
            assert!(fills == [1] || fills == [2], "{fills:?} after {steps} steps");
            seen[usize::from(fills[0] == 2)] += 1;
            lab.settle();
            assert_eq!(self::fills(&mut lab), fills);
            if ended {
                break;
            }
        }
    }
    assert!(seen[0] > 0 && seen[1] > 4, "{seen:?}");
}
