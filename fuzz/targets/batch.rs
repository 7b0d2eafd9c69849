//! Journal records: a header block with its local area, and the payload behind it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mainstay_codec::batch::{BatchHead, HEADER_BLOCK_BYTES};
use mainstay_codec::{Batch, LocalHeader};
use mainstay_fuzz::{bounded, mend_batch, mend_block};
use mainstay_types::Chain;

fn decode(record: &[u8]) {
    let (header, payload) = record.split_at(record.len().min(HEADER_BLOCK_BYTES));
    let payload = Bytes::copy_from_slice(payload);
    let head = bounded(header.len(), || BatchHead::decode(header));
    let chain = head.as_ref().map_or(Chain(0), |head| head.chain);
    let _ = bounded(header.len(), || LocalHeader::decode(header, chain));
    if let Ok(batch) = bounded(record.len(), || Batch::decode(header, &payload)) {
        let head = head.expect("a batch is not decoded without its head");
        assert_eq!((batch.first, batch.last()), (head.first, head.last()));
        assert_eq!(batch.payload_len, payload.len() as u64);
        assert_eq!(batch.header[..], header[..head.header_len()]);
        let written: u64 = batch.entries.iter().map(|entry| entry.payload.len() as u64).sum();
        assert_eq!(written, batch.payload_len);
    }
}

fuzz_target!(|data: &[u8]| {
    decode(data);
    let mut record = data.to_vec();
    let front = record.len().min(HEADER_BLOCK_BYTES);
    let (header, payload) = record.split_at_mut(front);
    mend_batch(header, payload);
    if header.len() == HEADER_BLOCK_BYTES {
        // The local area names the chain of its batch and ends with its own checksum.
        let chain: [u8; 8] = header[40..48].try_into().expect("eight bytes");
        let local = &mut header[HEADER_BLOCK_BYTES - 64..];
        local[24..32].copy_from_slice(&chain);
        mend_block(local, 60);
    }
    decode(&record);
});
