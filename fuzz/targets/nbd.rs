//! What an NBD client sends: a handshake, and after it requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_codec::nbd::{End, Export, Handshake, REQUEST_BYTES, Request};
use mainstay_fuzz::bounded;

fn export(name: &str) -> Export {
    Export::volume(name.into(), "a volume".into(), 1 << 30)
}

fn requests(bytes: &[u8]) {
    for bytes in bytes.chunks_exact(REQUEST_BYTES) {
        let bytes = bytes.try_into().expect("as long as a request");
        let Some(found) = bounded(REQUEST_BYTES, || Request::decode(bytes)) else { continue };
        let again = Request::decode(&found.encode()).expect("encoded here");
        assert_eq!((again.command, again.cookie, again.offset), (found.command, found.cookie, found.offset));
    }
}

fuzz_target!(|data: &[u8]| {
    let exports = [export("db/0"), export("db/1")];
    let (mut handshake, mut rest) = (Handshake::new(), data);
    loop {
        let mut out = Vec::new();
        let (consumed, end) = bounded(rest.len(), || handshake.step(rest, &exports, &mut out));
        rest = &rest[consumed..];
        match end {
            Some(End::Transmit(found)) => {
                assert!(exports.iter().any(|export| export.name == found.export));
                return requests(rest);
            }
            Some(_) => return,
            None if consumed == 0 => return requests(rest),
            None => {}
        }
    }
});
