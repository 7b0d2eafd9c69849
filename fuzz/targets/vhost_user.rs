//! Input of a virtual machine monitor: messages with their headers, one after the other.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_codec::vhost_user::{Header, Message};
use mainstay_fuzz::bounded;

fuzz_target!(|data: &[u8]| {
    let mut rest = data;
    while let Some((head, behind)) = rest.split_first_chunk() {
        let Ok(header) = Header::decode(head) else { return };
        let Some((body, behind)) = behind.split_at_checked(header.len) else { return };
        rest = behind;
        let Ok(message) = bounded(body.len(), || Message::decode(&header, body)) else { return };
        if let Some(again) = message.encode(header.need_reply) {
            let (head, body) = again.split_first_chunk().expect("a header");
            let header = Header::decode(head).expect("encoded here");
            assert_eq!(Message::decode(&header, body).expect("encoded here"), message);
        }
    }
});
