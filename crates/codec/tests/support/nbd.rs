//! Bytes that an NBD client sends.

use mainstay_codec::nbd::{End, Export, Handshake, Tls};

pub fn nbd_exports() -> Vec<Export> {
    let export = |name: &str| Export::volume(name.into(), "a volume".into(), 1 << 30);
    vec![export("db/0"), export("db/1")]
}

fn option(out: &mut Vec<u8>, number: u32, data: &[u8]) {
    out.extend_from_slice(b"IHAVEOPT");
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// A whole handshake: every option that is known, and at its end the export `name`, the new way or
/// the old.
pub fn nbd_conversation(name: &str, newstyle: bool) -> Vec<u8> {
    let mut out = 3u32.to_be_bytes().to_vec();
    for number in [5, 3, 8] {
        option(&mut out, number, b"");
    }
    for (number, query) in [(9, &b"base:"[..]), (10, b"base:allocation")] {
        let data = [&string(name.as_bytes())[..], &1u32.to_be_bytes(), &string(query)].concat();
        option(&mut out, number, &data);
    }
    let info = [&string(name.as_bytes())[..], &[0, 3, 0, 1, 0, 2, 0, 3]].concat();
    option(&mut out, 6, &info);
    if newstyle {
        option(&mut out, 7, &info);
    } else {
        option(&mut out, 1, name.as_bytes());
    }
    option(&mut out, 2, b"");
    out
}

/// Takes a conversation step by step, `watch` around each; true when it went on to an export.
/// Before a TLS that is required it comes in pieces as long as an option without data, for nothing
/// may come behind STARTTLS.
pub fn nbd_handshake(mut tls: Tls, bytes: &[u8], mut watch: impl FnMut(usize, &mut dyn FnMut())) -> bool {
    let (exports, mut handshake, mut at) = (nbd_exports(), Handshake::new(tls), 0);
    loop {
        let (mut out, mut result) = (Vec::new(), (0, None));
        let end = if tls == Tls::Required { bytes.len().min(at + 16) } else { bytes.len() };
        watch(end - at, &mut || result = handshake.step(&bytes[at..end], &exports, &mut out));
        let (consumed, end) = result;
        assert!(consumed <= bytes.len() - at, "consumed more than there was");
        at += consumed;
        match end {
            Some(End::Transmit(_)) => {
                assert_ne!(tls, Tls::Required, "an export without the TLS that is required");
                return true;
            }
            Some(End::StartTls) => {
                tls = Tls::Up;
                handshake.tls_is_up();
            }
            Some(_) => return false,
            None if consumed == 0 => return false,
            None => {}
        }
    }
}
