//! Input of an NBD client: a handshake and requests after it. If the first byte says so, TLS comes
//! before the handshake.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_codec::nbd::{End, Export, Handshake, REQUEST_BYTES, Request, Tls};
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
    let Some((first, mut rest)) = data.split_first() else { return };
    let mut tls = [Tls::Absent, Tls::Required, Tls::Up][usize::from(first % 3)];
    let mut handshake = Handshake::new(tls);
    loop {
        let mut out = Vec::new();
        // Its length is that of an option without data: nothing may come behind STARTTLS.
        let given =
            if tls == Tls::Required && first & 0x80 == 0 { &rest[..rest.len().min(16)] } else { rest };
        let (consumed, end) = bounded(given.len(), || handshake.step(given, &exports, &mut out));
        rest = &rest[consumed..];
        match end {
            Some(End::StartTls) => {
                tls = Tls::Up;
                handshake.tls_is_up();
            }
            Some(End::Transmit(found)) => {
                assert_ne!(tls, Tls::Required, "an export without the TLS that is required");
                assert!(exports.iter().any(|export| export.name == found.export));
                return requests(rest);
            }
            Some(_) => return,
            None if consumed == 0 => return requests(rest),
            None => {}
        }
    }
});
