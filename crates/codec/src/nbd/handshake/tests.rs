use super::*;
use proptest::prelude::*;

fn export(name: &str) -> Export {
    Export::volume(name.into(), "a volume".into(), 1 << 30)
}

fn two() -> Vec<Export> {
    vec![export("db/0"), export("db/1")]
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut out = OPTION_MAGIC.to_be_bytes().to_vec();
    out.extend(number.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
    out
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}

fn info(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|number| number.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query)));
    data
}

/// A client that has greeted.
fn greeted(flags: u32) -> Handshake {
    greeted_with(Tls::Absent, flags)
}

fn greeted_with(tls: Tls, flags: u32) -> Handshake {
    let mut handshake = Handshake::new(tls);
    assert_eq!(handshake.step(&flags.to_be_bytes(), &[], &mut Vec::new()), (4, None));
    handshake
}

/// The replies to one option as (kind, data), and the end if it was one.
fn ask(handshake: &mut Handshake, bytes: &[u8], exports: &[Export]) -> (Vec<(u32, Vec<u8>)>, Option<End>) {
    let mut out = Vec::new();
    let (consumed, end) = handshake.step(bytes, exports, &mut out);
    assert_eq!(consumed, bytes.len());
    let mut replies = Vec::new();
    let mut fields = Fields(&out);
    while !fields.is_empty() {
        assert_eq!(fields.u64(), Some(REPLY_MAGIC));
        assert_eq!(fields.u32().map(u32::to_be_bytes).as_ref().map(|n| &n[..]), bytes.get(8..12));
        let kind = fields.u32().expect("a kind");
        replies.push((kind, fields.string().expect("data").to_vec()));
    }
    (replies, end)
}

fn kinds(replies: &[(u32, Vec<u8>)]) -> Vec<u32> {
    replies.iter().map(|(kind, _)| *kind).collect()
}

#[test]
fn the_greeting_offers_the_fixed_newstyle_handshake() {
    assert_eq!(&Handshake::greeting(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn a_client_goes_to_an_export_with_everything() {
    let (mut client, exports) = (greeted(3), two());
    assert_eq!(kinds(&ask(&mut client, &option(OPT_STRUCTURED_REPLY, b""), &exports).0), [REP_ACK]);
    let set = contexts("db/1", &["qemu:dirty-bitmap:x", ALLOCATION]);
    let (replies, _) = ask(&mut client, &option(OPT_SET_META_CONTEXT, &set), &exports);
    assert_eq!(kinds(&replies), [REP_META_CONTEXT, REP_ACK]);
    assert_eq!(replies[0].1, [&[0, 0, 0, 1], ALLOCATION.as_bytes()].concat());
    let go = info("db/1", &[INFO_BLOCK_SIZE, INFO_DESCRIPTION, INFO_NAME, 77]);
    let (replies, end) = ask(&mut client, &option(OPT_GO, &go), &exports);
    assert_eq!(kinds(&replies), [REP_INFO, REP_INFO, REP_INFO, REP_INFO, REP_ACK]);
    let all = flags::VOLUME | flags::SEND_DF;
    assert_eq!(replies[0].1, [&[0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0][..], &all.to_be_bytes()].concat());
    assert_eq!(replies[1].1, [0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 0, 0x10, 0, 0]);
    let expected = Negotiated { export: "db/1".into(), structured: true, allocation: true };
    assert_eq!(end, Some(End::Transmit(expected)));
}

#[test]
fn contexts_belong_to_the_export_they_were_chosen_for() {
    let exports = two();
    for (second, allocation) in [("db/0", true), ("db/1", false)] {
        let mut client = greeted(3);
        ask(&mut client, &option(OPT_STRUCTURED_REPLY, b""), &exports);
        ask(&mut client, &option(OPT_SET_META_CONTEXT, &contexts("db/0", &[ALLOCATION])), &exports);
        let (_, end) = ask(&mut client, &option(OPT_GO, &info(second, &[])), &exports);
        let Some(End::Transmit(found)) = end else { panic!("{end:?}") };
        assert_eq!((found.export.as_str(), found.allocation), (second, allocation));
    }
    // A failed choice takes the earlier one back.
    let mut client = greeted(3);
    ask(&mut client, &option(OPT_STRUCTURED_REPLY, b""), &exports);
    ask(&mut client, &option(OPT_SET_META_CONTEXT, &contexts("db/0", &[ALLOCATION])), &exports);
    ask(&mut client, &option(OPT_SET_META_CONTEXT, &contexts("nobody", &[ALLOCATION])), &exports);
    let (_, end) = ask(&mut client, &option(OPT_GO, &info("db/0", &[])), &exports);
    assert!(matches!(end, Some(End::Transmit(Negotiated { allocation: false, .. }))));
}

#[test]
fn contexts_are_listed_by_name_by_wildcard_and_without_a_query() {
    let exports = two();
    let mut client = greeted(3);
    let list = |queries: &[&str]| option(OPT_LIST_META_CONTEXT, &contexts("db/0", queries));
    assert_eq!(kinds(&ask(&mut client, &list(&[]), &exports).0), [REP_ERR_INVALID]);
    ask(&mut client, &option(OPT_STRUCTURED_REPLY, b""), &exports);
    for queries in [&[][..], &["base:"], &[ALLOCATION]] {
        let replies = ask(&mut client, &list(queries), &exports).0;
        assert_eq!(kinds(&replies), [REP_META_CONTEXT, REP_ACK], "{queries:?}");
    }
    assert_eq!(kinds(&ask(&mut client, &list(&["base:other", "x-y:"]), &exports).0), [REP_ACK]);
    let set = option(OPT_SET_META_CONTEXT, &contexts("db/0", &["base:"]));
    assert_eq!(kinds(&ask(&mut client, &set, &exports).0), [REP_ACK]);
}

#[test]
fn the_old_way_to_choose_an_export() {
    for (client_flags, len) in [(1, 134), (3, 10)] {
        let mut out = Vec::new();
        let (_, end) = greeted(client_flags).step(&option(OPT_EXPORT_NAME, b"db/0"), &two(), &mut out);
        assert_eq!(out.len(), len);
        assert!(matches!(end, Some(End::Transmit(Negotiated { structured: false, .. }))));
        let (_, end) = greeted(client_flags).step(&option(OPT_EXPORT_NAME, b"db/9"), &two(), &mut out);
        assert!(matches!(end, Some(End::Refused(_))));
    }
}

#[test]
fn no_name_means_the_only_export() {
    let (_, end) = ask(&mut greeted(3), &option(OPT_GO, &info("", &[])), &[export("db/0")]);
    assert!(matches!(end, Some(End::Transmit(Negotiated { export, .. })) if export == "db/0"));
    let (replies, end) = ask(&mut greeted(3), &option(OPT_GO, &info("", &[])), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ERR_UNKNOWN], None));
}

#[test]
fn a_refused_option_is_answered_with_words_and_the_handshake_goes_on() {
    let mut client = greeted(3);
    for (bytes, kind) in [
        (option(OPT_STARTTLS, b""), REP_ERR_UNSUP),
        (option(99, b"data"), REP_ERR_UNSUP),
        (option(OPT_LIST, b"x"), REP_ERR_INVALID),
        (option(OPT_INFO, &info("nobody/0", &[])), REP_ERR_UNKNOWN),
        (option(OPT_GO, &string("db/0")), REP_ERR_INVALID),
        (option(OPT_GO, &[255; 40]), REP_ERR_INVALID),
    ] {
        let (replies, end) = ask(&mut client, &bytes, &two());
        assert_eq!((kinds(&replies), end), (vec![kind], None));
        assert!(!replies[0].1.is_empty(), "an error without words");
    }
    let (replies, end) = ask(&mut client, &option(OPT_LIST, b""), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_SERVER, REP_SERVER, REP_ACK], None));
    let (replies, end) = ask(&mut client, &option(OPT_ABORT, b""), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ACK], Some(End::Closed)));
}

#[test]
fn without_the_tls_that_is_required_nothing_is_said() {
    let mut client = greeted_with(Tls::Required, 3);
    let query = contexts("db/0", &[ALLOCATION]);
    for (number, data) in [
        (OPT_LIST, &b""[..]),
        (OPT_STRUCTURED_REPLY, b""),
        (OPT_INFO, &info("db/0", &[])),
        (OPT_GO, &info("db/0", &[])),
        (OPT_LIST_META_CONTEXT, &query),
        (OPT_SET_META_CONTEXT, &query),
        (99, b"data"),
    ] {
        let (replies, end) = ask(&mut client, &option(number, data), &two());
        assert_eq!((kinds(&replies), end), (vec![REP_ERR_TLS_REQD], None), "option {number}");
    }
    let (replies, end) = ask(&mut client, &option(OPT_STARTTLS, b"x"), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ERR_INVALID], None));
    let (replies, end) = ask(&mut client, &option(OPT_STARTTLS, b""), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ACK], Some(End::StartTls)));
    client.tls_is_up();
    let (replies, end) = ask(&mut client, &option(OPT_STARTTLS, b""), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ERR_INVALID], None), "once is enough");
    let (replies, _) = ask(&mut client, &option(OPT_LIST, b""), &two());
    assert_eq!(kinds(&replies), [REP_SERVER, REP_SERVER, REP_ACK]);
    let (_, end) = ask(&mut client, &option(OPT_GO, &info("db/0", &[])), &two());
    let expected = Negotiated { export: "db/0".into(), structured: false, allocation: false };
    assert_eq!(end, Some(End::Transmit(expected)), "what was asked for without TLS does not count");

    let (replies, end) = ask(&mut greeted_with(Tls::Required, 3), &option(OPT_ABORT, b""), &two());
    assert_eq!((kinds(&replies), end), (vec![REP_ACK], Some(End::Closed)));
    let mut out = Vec::new();
    let old_way = option(OPT_EXPORT_NAME, b"db/0");
    let (_, end) = greeted_with(Tls::Required, 3).step(&old_way, &two(), &mut out);
    assert!(
        matches!(end, Some(End::Refused(_))) && out.is_empty(),
        "there is no way to say no but to hang up"
    );
}

/// An attacker between client and server could put bytes there, and the server would take them for
/// the client's own.
#[test]
fn bytes_behind_starttls_before_tls_end_the_handshake() {
    for injected in [option(OPT_LIST, b""), vec![0]] {
        let mut out = Vec::new();
        let bytes = [option(OPT_STARTTLS, b""), injected].concat();
        let (_, end) = greeted_with(Tls::Required, 3).step(&bytes, &two(), &mut out);
        assert!(matches!(end, Some(End::Refused(_))) && out.is_empty());
    }
}

#[test]
fn foreign_bytes_end_the_handshake() {
    let refused = |mut client: Handshake, bytes: &[u8]| {
        matches!(client.step(bytes, &two(), &mut Vec::new()).1, Some(End::Refused(_)))
    };
    assert!(refused(Handshake::new(Tls::Absent), &0u32.to_be_bytes()));
    assert!(refused(Handshake::new(Tls::Absent), &7u32.to_be_bytes()));
    assert!(refused(greeted(3), b"GET / HTTP/1.1\r\n\r\n"));
    let mut long = option(OPT_LIST, b"");
    long[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(refused(greeted(3), &long));
    let mut client = greeted(3);
    for _ in 0..OPTIONS_MAX {
        assert_eq!(client.step(&option(99, b""), &two(), &mut Vec::new()).1, None);
    }
    assert!(refused(client, &option(99, b"")));
}

proptest! {
    /// However a conversation is cut into pieces, it ends in the same way.
    #[test]
    fn the_cuts_do_not_matter(cuts in proptest::collection::vec(1usize..40, 1..40)) {
        let exports = two();
        let mut bytes = 3u32.to_be_bytes().to_vec();
        bytes.extend(option(OPT_LIST, b""));
        bytes.extend(option(OPT_STRUCTURED_REPLY, b""));
        bytes.extend(option(OPT_SET_META_CONTEXT, &contexts("db/0", &[ALLOCATION])));
        bytes.extend(option(OPT_GO, &info("db/0", &[INFO_BLOCK_SIZE])));
        let run = |cuts: &[usize]| {
            let (mut handshake, mut out, mut held, mut rest) =
                (Handshake::new(Tls::Absent), Vec::new(), Vec::new(), &bytes[..]);
            for cut in cuts.iter().cycle() {
                let (now, later) = rest.split_at(rest.len().min(*cut));
                held.extend_from_slice(now);
                rest = later;
                loop {
                    let (consumed, end) = handshake.step(&held, &exports, &mut out);
                    held.drain(..consumed);
                    if end.is_some() {
                        return (end, out, held.len() + rest.len());
                    }
                    if consumed == 0 {
                        break;
                    }
                }
            }
            unreachable!("there is at least one cut");
        };
        prop_assert_eq!(run(&cuts), run(&[bytes.len()]));
    }

    /// No input makes the handshake panic, or makes it consume more bytes than it was given.
    #[test]
    fn noise_is_survived(
        number in 0u32..12,
        data in proptest::collection::vec(any::<u8>(), 0..200),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut client = greeted(3);
        client.structured = true;
        let bytes = [option(number, &data), tail].concat();
        let (consumed, _) = client.step(&bytes, &two(), &mut Vec::new());
        prop_assert_eq!(consumed, 16 + data.len());
    }
}
