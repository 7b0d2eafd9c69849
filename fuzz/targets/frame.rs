//! Frames as they come off a connection, as they are and with their checksums made right.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use mainstay_codec::{FRAME_HEADER_BYTES, FrameHeader, frame};
use mainstay_fuzz::{bounded, mend_frame};

fn decode(stream: &Bytes) {
    let Some(head) = stream.get(..FRAME_HEADER_BYTES) else { return };
    let Ok(header) = FrameHeader::decode(head) else { return };
    let meta_end = FRAME_HEADER_BYTES + header.meta_len;
    let end = meta_end + header.payload_len;
    if stream.len() < end {
        return;
    }
    let payload = stream.slice(meta_end..end);
    let found = bounded(end, || frame::decode(&header, &stream[FRAME_HEADER_BYTES..meta_end], &payload));
    if let Ok(envelope) = found {
        // An accepted frame is canonical: it encodes to the bytes that it came from.
        assert_eq!(frame::encode(&envelope).concat(), stream[..end]);
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    decode(&Bytes::copy_from_slice(data));
    mend_frame(&mut bytes);
    decode(&bytes.into());
});
