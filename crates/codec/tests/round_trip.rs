//! Every message that can be encoded decodes to the same message, and encodes to the same bytes
//! again.

mod support;

use bytes::{Bytes, BytesMut};
use mainstay_codec::batch::{BatchHead, HEADER_BLOCK_BYTES};
use mainstay_codec::{Batch, EntryKind, LocalHeader, Message, NewEntry, PayloadPlace};
use mainstay_types::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, BLOCK_BYTES, Chain, Epoch, Index, REQUEST_BYTES_MAX, Range,
    ResourceId, VolumeId,
};
use proptest::prelude::*;
use support::{batch, envelope, pattern, receive, wire};

fn payload_of(batch: &Batch) -> Bytes {
    let mut out = BytesMut::new();
    for piece in &batch.payload {
        out.extend_from_slice(piece);
    }
    out.freeze()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_message_survives_the_wire(sent in envelope()) {
        let bytes = wire(&sent);
        let received = receive(&bytes).expect("a frame that was just encoded");
        prop_assert_eq!(received.resource, sent.resource);
        prop_assert_eq!(received.epoch, sent.epoch);
        prop_assert_eq!(received.version, sent.version);
        prop_assert_eq!(received.incarnation, sent.incarnation);
        match (&received.message, &sent.message) {
            (Message::Append(a), Message::Append(b)) => {
                prop_assert_eq!(&a.entries, &b.entries);
                prop_assert_eq!((a.first, a.epoch, a.prev_chain, a.chain), (b.first, b.epoch, b.prev_chain, b.chain));
            }
            (a, b) => prop_assert_eq!(format!("{a:?}"), format!("{b:?}")),
        }
        prop_assert_eq!(wire(&received), bytes);
    }

    #[test]
    fn every_batch_survives_the_journal(
        sealed in batch(),
        generation in any::<u64>(),
        durable in any::<u64>(),
        payload in prop::sample::select(vec![PayloadPlace::Journal, PayloadPlace::Volume, PayloadPlace::JournalAfterVolume]),
    ) {
        let written: Vec<_> =
            sealed.entries.iter().filter(|entry| entry.kind == EntryKind::Write).map(|entry| entry.range).collect();
        prop_assert_eq!(Batch::written_ranges(&sealed.header).expect("its own header").to_vec(), written);
        let local = LocalHeader { generation, durable_before: Index(durable), payload };
        let block = sealed.header_block(local);
        let payload = payload_of(&sealed);
        prop_assert_eq!(HEADER_BLOCK_BYTES as u64 + payload.len() as u64, sealed.journal_len());
        let found = Batch::decode(&block, &payload).expect("a batch that was just sealed");
        prop_assert_eq!(&found.entries, &sealed.entries);
        prop_assert_eq!(&found.header, &sealed.header);
        prop_assert_eq!(found.last(), sealed.last());
        prop_assert_eq!(LocalHeader::decode(&block, found.chain).expect("its own local area"), local);
        // The local area of another batch is not taken for this one's.
        prop_assert!(LocalHeader::decode(&block, Chain(found.chain.0 ^ 1)).is_err());
    }

    /// Every single flipped bit of a batch is noticed: in the header, in a payload, in the local
    /// area.
    #[test]
    fn a_flipped_bit_is_noticed(sealed in batch(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut record = sealed.header_block(LocalHeader::default()).to_vec();
        record.extend_from_slice(&payload_of(&sealed));
        let at = at.index(record.len());
        record[at] ^= 1 << bit;
        let record = Bytes::from(record);
        let block = &record[..HEADER_BLOCK_BYTES];
        let decoded = Batch::decode(block, &record.slice(HEADER_BLOCK_BYTES..));
        let local = LocalHeader::decode(block, sealed.chain);
        // The gap between the descriptors and the local area carries nothing.
        let in_gap = (sealed.header.len()..HEADER_BLOCK_BYTES - 64).contains(&at);
        prop_assert_eq!(decoded.is_ok() && local.is_ok(), in_gap);
    }
}

fn write(blocks: u64, at_block: u64) -> NewEntry {
    let len = blocks * BLOCK_BYTES;
    NewEntry {
        kind: EntryKind::Write,
        range: Range { volume: VolumeId(0), offset: at_block * BLOCK_BYTES, len },
        payload: pattern(at_block, len as usize),
        session: 0,
        request: 0,
    }
}

fn seal(entries: Vec<NewEntry>) -> Batch {
    Batch::seal(ResourceId(1), Epoch(1), Index(1), Chain(0), Index(0), entries)
}

#[test]
fn the_largest_batches_decode() {
    let many = seal((0..BATCH_ENTRIES_MAX as u64).map(|i| write(1, i)).collect());
    let large = seal(
        (0..BATCH_BYTES_MAX / REQUEST_BYTES_MAX).map(|i| write(REQUEST_BYTES_MAX / BLOCK_BYTES, i)).collect(),
    );
    for batch in [many, large] {
        let found = Batch::decode(&batch.header, &payload_of(&batch)).expect("within the limits");
        assert_eq!(found.entries, batch.entries);
    }
}

#[test]
fn chains_depend_on_everything_before() {
    let first = seal(vec![write(1, 0)]);
    let other = seal(vec![write(1, 1)]);
    assert_ne!(first.chain, other.chain);
    let next = |prev| Batch::seal(ResourceId(1), Epoch(1), Index(2), prev, Index(0), vec![write(1, 7)]).chain;
    assert_ne!(next(first.chain), next(other.chain));
}

#[test]
fn an_index_that_would_overflow_is_refused() {
    let batch =
        Batch::seal(ResourceId(1), Epoch(1), Index(u64::MAX - 1), Chain(0), Index(0), vec![write(1, 0)]);
    assert!(BatchHead::decode(&batch.header).is_ok());
    let batch = Batch::seal(ResourceId(1), Epoch(1), Index(u64::MAX), Chain(0), Index(0), vec![write(1, 0)]);
    assert!(BatchHead::decode(&batch.header).is_err());
}

#[test]
#[should_panic(expected = "admitted beyond a limit")]
fn sealing_asserts_the_limits_that_decoding_checks() {
    let _ = seal(vec![write(REQUEST_BYTES_MAX / BLOCK_BYTES + 1, 0)]);
}
