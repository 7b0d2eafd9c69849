use super::*;
use crate::authority::Authority;
use crate::key::Key;
use crate::subject::Subject;
use rustls::crypto::CipherSuiteCommon;
use rustls::{SupportedCipherSuite, Tls13CipherSuite};

/// Bytes of a record around its payload: header, type and tag.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
const CLUSTER: u64 = 0x00c0_ffee;
const NOW_MS: u64 = 1_800_000_000_000;
const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1000;
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

struct Node {
    id: NodeId,
    key: Key,
    shows: Credentials,
}

impl Node {
    fn of(authority: &Authority, cluster: u64, id: NodeId, at_ms: u64) -> Self {
        let key = Key::generate().unwrap();
        let subject = Subject { cluster, node: id };
        let issued = authority.issue(subject, &key.public(), at_ms).unwrap();
        let shows =
            Credentials::new(&key, vec![issued.certificate, authority.certificate().clone()]).unwrap();
        Self { id, key, shows }
    }
}

fn authority() -> Authority {
    Authority::make(CLUSTER, 1, NOW_MS).unwrap()
}

fn trust(authority: &Authority, members: &[&Node]) -> Arc<Trust> {
    Arc::new(Trust {
        cluster: Some(CLUSTER),
        authorities: vec![authority.certificate().clone()],
        members: Some(members.iter().map(|node| (node.id, node.key.public().fingerprint())).collect()),
    })
}

/// An end with the payload that it has received.
struct Open {
    session: Session,
    received: Vec<u8>,
    error: Option<SessionError>,
}

impl Open {
    fn new(session: Session) -> Self {
        Self { session, received: Vec::new(), error: None }
    }

    /// Takes bytes in steps of this length.
    fn take(&mut self, wire: &[u8], step: usize) {
        for part in wire.chunks(step) {
            if self.error.is_some() {
                return;
            }
            let received = &mut self.received;
            let mut sink = |payload: &[u8]| {
                received.extend_from_slice(payload);
                Ok::<(), SessionError>(())
            };
            self.error = self.session.open(&mut part.to_vec(), &mut sink).err();
        }
    }

    fn said(&mut self) -> Vec<u8> {
        self.session.said().split().to_vec()
    }

    /// Bytes for the socket that carry this payload.
    fn send(&mut self, payload: &[u8]) -> Vec<u8> {
        if self.session.sends_clear() {
            return payload.to_vec();
        }
        let mut out = BytesMut::new();
        for part in payload.chunks(RECORD_PAYLOAD_MAX) {
            self.session.seal(&mut out, |record| record.extend_from_slice(part)).unwrap();
        }
        out.to_vec()
    }
}

/// Carries the handshake until both ends have nothing more to say. Bytes arrive in steps of this
/// length.
fn carry(client: &mut Open, server: &mut Open, step: usize) {
    loop {
        let (there, back) = (client.said(), server.said());
        if there.is_empty() && back.is_empty() {
            return;
        }
        server.take(&there, step);
        client.take(&back, step);
    }
}

fn ends(from: (&Arc<Trust>, &Node, Payloads), to: (&Arc<Trust>, &Node, Payloads)) -> (Open, Open) {
    let client = Session::connect(from.0.clone(), &from.1.shows, to.1.id, from.2).unwrap();
    let server = Session::accept(to.0.clone(), &to.1.shows, to.2).unwrap();
    (Open::new(client), Open::new(server))
}

/// Two members of one cluster whose handshake has ended.
fn pair(allowed: (Payloads, Payloads), step: usize) -> (Open, Open) {
    let authority = authority();
    let (a, b) = (Node::of(&authority, CLUSTER, A, NOW_MS), Node::of(&authority, CLUSTER, B, NOW_MS));
    let trust = trust(&authority, &[&a, &b]);
    let (mut client, mut server) = ends((&trust, &a, allowed.0), (&trust, &b, allowed.1));
    assert_eq!((client.session.peer(), server.session.peer()), (None, None));
    carry(&mut client, &mut server, step);
    assert_eq!((client.error.take(), server.error.take()), (None, None));
    assert!(client.session.is_open() && server.session.is_open());
    assert_eq!((client.session.peer(), server.session.peer()), (Some(B), Some(A)));
    (client, server)
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn payload_arrives_whole_however_the_bytes_come() {
    for step in [1, 3, 7, 100, 1448, 65536, usize::MAX] {
        let (mut client, mut server) = pair((Payloads::Encrypted, Payloads::Encrypted), step);
        let mut sent = Vec::new();
        let mut wire = Vec::new();
        for (n, len) in [1, 64, 4160, 16384, 16385, 100_000].into_iter().enumerate() {
            let payload = noise(n as u64 + 1, len);
            wire.extend(client.send(&payload));
            sent.extend(payload);
            // The other end speaks in the middle of what it receives.
            let (now, later) = wire.split_at(wire.len() / 2);
            server.take(now, step);
            let answer = server.send(&[n as u8; 10]);
            client.take(&answer, step);
            wire = later.to_vec();
        }
        server.take(&wire, step);
        assert_eq!((server.error, client.error), (None, None), "in steps of {step}");
        assert!(server.received == sent, "in steps of {step}");
        assert_eq!(client.received.len(), 60);
    }
}

#[test]
fn payloads_are_clear_only_if_both_ends_say_so() {
    use Payloads::{Clear, Encrypted};
    let secret = noise(5, 4096);
    let has_it = |wire: &[u8]| wire.windows(32).any(|window| window == &secret[..32]);
    for (ours, theirs) in [(Encrypted, Encrypted), (Encrypted, Clear), (Clear, Encrypted), (Clear, Clear)] {
        for step in [1, 100, usize::MAX] {
            let (mut client, mut server) = pair((ours, theirs), step);
            let agreed = if (ours, theirs) == (Clear, Clear) { Clear } else { Encrypted };
            assert_eq!((client.session.payloads(), server.session.payloads()), (Some(agreed), Some(agreed)));
            // The first record of each direction is encrypted.
            let mut wire = client.send(&secret);
            assert!(!has_it(&wire));
            wire.extend(client.send(&secret));
            wire.extend(client.send(&secret));
            assert_eq!(has_it(&wire), agreed == Clear);
            server.take(&wire, step);
            assert!(server.received == secret.repeat(3) && server.error.is_none(), "in steps of {step}");
            let mut back = server.send(&secret);
            assert!(!has_it(&back));
            back.extend(server.send(&secret));
            client.take(&back, step);
            assert!(client.received == secret.repeat(2) && client.error.is_none(), "in steps of {step}");
        }
    }
}

/// The ciphers of sessions, for this number of records with one key.
fn limited(records: u64) -> Arc<CryptoProvider> {
    let mut provider = (*ciphers()).clone();
    let suites = provider.cipher_suites.iter().filter_map(|suite| {
        let suite = suite.tls13()?;
        let common = CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: records,
        };
        let limited = Tls13CipherSuite {
            common,
            hkdf_provider: suite.hkdf_provider,
            aead_alg: suite.aead_alg,
            quic: None,
        };
        Some(SupportedCipherSuite::Tls13(Box::leak(Box::new(limited))))
    });
    provider.cipher_suites = suites.collect();
    Arc::new(provider)
}

#[test]
fn keys_are_changed_before_they_have_protected_too_many_records() {
    const LIMIT: u64 = 8;
    const RECORDS: usize = 100;
    let authority = authority();
    let (a, b) = (Node::of(&authority, CLUSTER, A, NOW_MS), Node::of(&authority, CLUSTER, B, NOW_MS));
    let trust = trust(&authority, &[&a, &b]);
    let client =
        Session::connect_with(limited(LIMIT), trust.clone(), &a.shows, B, Payloads::Encrypted).unwrap();
    let mut client = Open::new(client);
    let mut server = Open::new(Session::accept(trust, &b.shows, Payloads::Encrypted).unwrap());
    carry(&mut client, &mut server, usize::MAX);
    let mut longer = 0;
    for n in 0..RECORDS {
        let wire = client.send(&[n as u8; 100]);
        longer += usize::from(wire.len() > 100 + RECORD_OVERHEAD);
        server.take(&wire, usize::MAX);
        let wire = server.send(&[n as u8]);
        client.take(&wire, usize::MAX);
    }
    assert_eq!((client.error, server.error), (None, None));
    assert_eq!((server.received.len(), client.received.len()), (100 * RECORDS, RECORDS));
    assert!(longer >= RECORDS / LIMIT as usize, "new keys were announced {longer} times");
}

#[test]
fn the_record_alone_decides_and_clocks_do_not() {
    let authority = authority();
    // Certificates that ended long ago, and ones that begin in many years.
    for at_ms in [NOW_MS - 20 * YEAR_MS, NOW_MS + 20 * YEAR_MS] {
        let (a, b) = (Node::of(&authority, CLUSTER, A, at_ms), Node::of(&authority, CLUSTER, B, at_ms));
        let both = trust(&authority, &[&a, &b]);
        let (mut client, mut server) =
            ends((&both, &a, Payloads::Encrypted), (&both, &b, Payloads::Encrypted));
        carry(&mut client, &mut server, usize::MAX);
        assert_eq!((client.error, server.error), (None, None));
        assert_eq!((client.session.peer(), server.session.peer()), (Some(B), Some(A)));
    }
}

/// Errors of both ends about each other: first of the one that connects.
fn met(
    from: (&Arc<Trust>, &Node),
    to: (&Arc<Trust>, &Node),
    wanted: NodeId,
) -> (Option<SessionError>, Option<SessionError>) {
    let encrypted = Payloads::Encrypted;
    let mut client = Open::new(Session::connect(from.0.clone(), &from.1.shows, wanted, encrypted).unwrap());
    let mut server = Open::new(Session::accept(to.0.clone(), &to.1.shows, encrypted).unwrap());
    carry(&mut client, &mut server, usize::MAX);
    assert!(client.received.is_empty() && server.received.is_empty());
    (client.error, server.error)
}

#[test]
fn strangers_are_refused_by_both_ends_with_the_reason() {
    let (ours, theirs) = (authority(), authority());
    let a = Node::of(&ours, CLUSTER, A, NOW_MS);
    let b = Node::of(&ours, CLUSTER, B, NOW_MS);
    let both = trust(&ours, &[&a, &b]);
    assert_eq!(met((&both, &a), (&both, &b), B), (None, None));
    let refused = |refusal| Some(SessionError::Refused(refusal));
    let told = |error: &Option<SessionError>| matches!(error, Some(SessionError::RefusedByPeer(_)));
    // Another node than the one that was wanted.
    let (client, server) = met((&both, &a), (&both, &b), NodeId(3));
    assert_eq!(client, refused(Refusal::OtherNode { expected: NodeId(3), found: B }));
    assert!(told(&server), "{server:?}");
    // Another key than that of the record, a node that has left, another authority and cluster.
    let copy = Node::of(&ours, CLUSTER, A, NOW_MS);
    let foreign = Node::of(&theirs, CLUSTER, A, NOW_MS);
    let other = Node::of(&ours, CLUSTER + 1, A, NOW_MS);
    let alone = trust(&ours, &[&b]);
    for (judge, node, refusal) in [
        (&both, &copy, Refusal::OtherKey { node: A }),
        (&alone, &a, Refusal::NoMember { node: A }),
        (&both, &foreign, Refusal::OtherAuthority),
        (&both, &other, Refusal::OtherCluster),
    ] {
        let (client, server) = met((&both, node), (judge, &b), B);
        assert_eq!(server, refused(refusal));
        assert!(told(&client), "{client:?}");
        let (client, server) = met((judge, &b), (&both, node), A);
        assert_eq!(client, refused(refusal));
        assert!(told(&server), "{server:?}");
    }
    // A node of no cluster, and one that does not know yet who is a member.
    let key = Key::generate().unwrap();
    let newcomer = Node { id: A, shows: Credentials::newcomer(&key).unwrap(), key };
    assert_eq!(met((&both, &newcomer), (&both, &b), B).1, refused(Refusal::Newcomer));
    let unknown = Arc::new(Trust { members: None, ..(*both).clone() });
    assert_eq!(met((&both, &a), (&unknown, &b), B).1, refused(Refusal::NoMember { node: A }));
}

#[test]
fn plain_text_noise_and_damage_end_a_session_and_deliver_nothing() {
    let server = || {
        let authority = authority();
        let b = Node::of(&authority, CLUSTER, B, NOW_MS);
        Open::new(Session::accept(trust(&authority, &[&b]), &b.shows, Payloads::Clear).unwrap())
    };
    let mut plain = server();
    plain.take(&[b'M'; 200], 7);
    assert_eq!(plain.error, Some(SessionError::NoTls));
    for seed in 1..300 {
        let mut noisy = server();
        noisy.take(&noise(seed, 70), 1 + seed as usize % 70);
        // A header that announces more than that is waited for.
        noisy.take(&noise(seed, 20_000), 4096);
        assert!(noisy.error.is_some() && noisy.received.is_empty());
    }
    for seed in 0..200_usize {
        let (mut client, mut server) = pair((Payloads::Encrypted, Payloads::Encrypted), usize::MAX);
        let mut wire = client.send(&[7; 300]);
        // Type and version of a record say nothing that counts, and rustls does not look at them.
        let at = 3 + (seed * 13) % (wire.len() - 3);
        wire[at] ^= 1 << (seed % 8);
        server.take(&wire, 1 + seed);
        // A longer length is waited for and then found out.
        server.take(&client.send(&[7; 20_000]), 999);
        assert!(server.error.is_some() && server.received.is_empty(), "byte {at}");
        // The end that has failed says so, and says the same again when it is used.
        let again = server.error.take();
        server.take(&[7; 100], usize::MAX);
        assert_eq!(server.error, again);
        client.take(&server.said(), usize::MAX);
        assert!(client.error.is_some());
    }
}

/// Whether TLS protects this byte: not type and version of a record, nor records that are there for
/// old devices on the way only (RFC 8446, appendix D.4).
fn counts(records: &[u8], at: usize) -> bool {
    let mut begin = 0;
    loop {
        let len = HEADER_BYTES + usize::from(u16::from_be_bytes([records[begin + 3], records[begin + 4]]));
        if at < begin + len {
            return at - begin >= 3 && records[begin] != 20;
        }
        begin += len;
    }
}

/// A handshake of which single bytes are changed, in both directions.
#[test]
fn a_damaged_handshake_opens_nothing() {
    let authority = authority();
    let (a, b) = (Node::of(&authority, CLUSTER, A, NOW_MS), Node::of(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&authority, &[&a, &b]);
    for seed in 0..120_usize {
        let (mut client, mut server) =
            ends((&both, &a, Payloads::Encrypted), (&both, &b, Payloads::Encrypted));
        let mut first = client.said();
        let mut second = Vec::new();
        if seed % 2 == 0 {
            let at = (seed * 7) % first.len();
            if !counts(&first, at) {
                continue;
            }
            first[at] ^= 0x41;
            server.take(&first, 1 + seed);
        } else {
            server.take(&first, usize::MAX);
            second = server.said();
            let at = (seed * 31) % second.len();
            if !counts(&second, at) {
                continue;
            }
            second[at] ^= 0x41;
        }
        client.take(&second, 1 + seed);
        let last = server.said();
        client.take(&last, 1 + seed);
        carry(&mut client, &mut server, 50);
        assert!(!(client.session.is_open() && server.session.is_open()), "seed {seed}");
        assert!(client.received.is_empty() && server.received.is_empty());
    }
}

/// An end that rustls has as a whole.
fn whole(authority: &Authority, a: &Node, trust: &Arc<Trust>) -> rustls::ClientConnection {
    let verifier = Servers { trust: trust.clone(), rule: ServerRule::Engine(B), outcome: Outcome::default() };
    let clock = Arc::new(WallClock);
    let config = client_config(ciphers(), verifier, &a.shows, clock, &[ENCRYPTED_PROTOCOL]).unwrap();
    assert_eq!(trust.authorities, [authority.certificate().clone()]);
    rustls::ClientConnection::new(Arc::new(config), no_name().unwrap()).unwrap()
}

/// Carries bytes between an end of rustls and a session, until neither has more to say. Returns
/// what that end of rustls has received.
fn pump(
    client: &mut rustls::ClientConnection,
    server: &mut Open,
    wire: &[u8],
) -> Result<Vec<u8>, rustls::Error> {
    let (mut back, mut read) = (wire.to_vec(), Vec::new());
    loop {
        let mut rest = &back[..];
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
            // There is no end of the connection yet, which reads as `WouldBlock`.
            let _ = std::io::Read::read_to_end(&mut client.reader(), &mut read);
        }
        let mut there = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut there).unwrap();
        }
        server.take(&there, 1000);
        back = server.said();
        if there.is_empty() && back.is_empty() {
            return Ok(read);
        }
    }
}

/// The records of this crate are those of rustls: payload, new keys that either end asks for, an
/// end, and a reason.
#[test]
fn rustls_understands_the_records_and_is_understood() {
    let authority = authority();
    let (a, b) = (Node::of(&authority, CLUSTER, A, NOW_MS), Node::of(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&authority, &[&a, &b]);
    let open = || {
        let mut client = whole(&authority, &a, &both);
        let server = Session::accept(both.clone(), &b.shows, Payloads::Encrypted).unwrap();
        let mut server = Open::new(server);
        pump(&mut client, &mut server, &[]).unwrap();
        assert!(!client.is_handshaking() && server.session.is_open());
        (client, server)
    };
    let (mut client, mut server) = open();
    for round in 0..5_u8 {
        let payload = vec![round; 40_000];
        std::io::Write::write_all(&mut client.writer(), &payload).unwrap();
        pump(&mut client, &mut server, &[]).unwrap();
        assert_eq!(std::mem::take(&mut server.received), payload);
        // Rustls asks for new keys of both ends.
        client.refresh_traffic_keys().unwrap();
        pump(&mut client, &mut server, &[]).unwrap();
        let wire = server.send(&payload);
        assert_eq!(wire.len(), 40_000 + 3 * RECORD_OVERHEAD + RECORD_OVERHEAD + 5);
        assert_eq!(pump(&mut client, &mut server, &wire).unwrap(), payload);
        let wire = server.send(&payload);
        assert_eq!(wire.len(), 40_000 + 3 * RECORD_OVERHEAD, "no key was asked for again");
        assert_eq!(pump(&mut client, &mut server, &wire).unwrap(), payload);
    }
    client.send_close_notify();
    pump(&mut client, &mut server, &[]).unwrap();
    assert_eq!(server.error, Some(SessionError::Closed));
    // A damaged record.
    let (mut client, mut server) = open();
    std::io::Write::write_all(&mut client.writer(), b"payload").unwrap();
    let mut wire = Vec::new();
    client.write_tls(&mut wire).unwrap();
    wire[9] ^= 1;
    server.take(&wire, usize::MAX);
    let said = server.said();
    let told = pump(&mut client, &mut server, &said);
    assert_eq!(told, Err(rustls::Error::AlertReceived(AlertDescription::BadRecordMac)));
    assert!(server.received.is_empty());
}

/// The end of the handshake and the first payload may come together.
#[test]
fn payload_that_comes_with_the_end_of_the_handshake_is_delivered() {
    for allowed in [Payloads::Encrypted, Payloads::Clear] {
        for step in [usize::MAX, 1, 7, 100] {
            let authority = authority();
            let (a, b) = (Node::of(&authority, CLUSTER, A, NOW_MS), Node::of(&authority, CLUSTER, B, NOW_MS));
            let both = trust(&authority, &[&a, &b]);
            let (mut client, mut server) = ends((&both, &a, allowed), (&both, &b, allowed));
            let hello = client.said();
            server.take(&hello, usize::MAX);
            let answer = server.said();
            client.take(&answer, usize::MAX);
            let mut wire = client.said();
            for part in [&b"first"[..], b" and second"] {
                wire.extend(client.send(part));
            }
            server.take(&wire, step);
            assert_eq!(
                (server.error.as_ref(), &server.received[..]),
                (None, &b"first and second"[..]),
                "{step}"
            );
        }
    }
}

/// Records that a member seals although the RFC does not allow them.
#[test]
fn records_that_say_something_else_end_the_session() {
    let from = |kind: u8, content: &[u8]| {
        let (mut client, mut server) = pair((Payloads::Encrypted, Payloads::Encrypted), usize::MAX);
        let Side::Open(records) = &mut client.session.side else { panic!("it is open") };
        let mut wire = BytesMut::new();
        records
            .put(kind.into(), usize::from(u16::MAX), &mut wire, |out| out.extend_from_slice(content))
            .unwrap();
        server.take(&wire, usize::MAX);
        // The payload before the fault may be delivered, and nothing comes after it.
        let said = server.said();
        assert_eq!(server.error.is_some(), server.session.failed.is_some());
        (server.received, server.error, !said.is_empty())
    };
    let fine = |payload: &[u8]| (payload.to_vec(), None, false);
    assert_eq!(from(23, b"payload"), fine(b"payload"));
    assert_eq!(from(23, b""), fine(b""));
    assert_eq!(from(0, b"padded\x17\0\0\0"), fine(b"padded"));
    let closed = (Vec::new(), Some(SessionError::Closed), false);
    assert_eq!(from(21, &[1, 0]), closed);
    let (received, error, says) = from(21, &[2, 48]);
    assert!(received.is_empty() && !says, "an alert is not answered");
    assert!(matches!(error, Some(SessionError::RefusedByPeer(_))), "{error:?}");
    for (kind, content) in [
        (0, &[0; 9][..]),        // nothing but padding
        (21, &[2]),              // half an alert
        (20, &[1]),              // a change of ciphers, after the handshake
        (22, &[24, 0, 0, 1, 2]), // a new key with an unknown wish
        (22, &[24, 0, 0, 1]),    // a part of it
        (22, &[4, 0, 0, 0]),     // a ticket
        (22, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]),
        (24, b"heartbeat"),
        (99, b"unknown"),
    ] {
        let (received, error, says) = from(kind, content);
        assert!(received.is_empty() && says, "{kind} {content:?}");
        assert!(matches!(error, Some(SessionError::Tls(_))), "{kind} {content:?}: {error:?}");
    }
    let (received, error, _) = from(23, &[7; RECORD_PAYLOAD_MAX + 1]);
    assert!(received.is_empty() && error.is_some(), "a payload that is too long");
    // A good record whose type was changed on the way.
    let (mut client, mut server) = pair((Payloads::Encrypted, Payloads::Encrypted), usize::MAX);
    let mut wire = client.send(b"payload");
    wire[0] = 22;
    server.take(&wire, usize::MAX);
    assert!(server.error.is_some() && server.received.is_empty());
    // Longer than a record may be, and another type outside.
    for header in [[23, 3, 3, 0x41, 1], [22, 3, 3, 0, 40], [20, 3, 3, 0, 1]] {
        let (_, mut server) = pair((Payloads::Encrypted, Payloads::Encrypted), usize::MAX);
        server.take(&header, usize::MAX);
        server.take(&[0; 40], usize::MAX);
        assert!(server.error.is_some() && server.received.is_empty(), "{header:?}");
    }
}
