//! Peers of every kind on both ends of a connection, and what each of them reaches.

use mainstay_trust::peer::{Part, authority_in};
use mainstay_trust::tls::{AGENT_PROTOCOL, accept, connect};
use mainstay_trust::{
    Authority, CertificateDer, Credentials, Expect, Key, LIFE_MS, Outcome, Peer, Refusal, SealKey, Subject,
    Trust,
};
use mainstay_types::NodeId;
use rcgen::ExtendedKeyUsagePurpose::{self as Use, ClientAuth, ServerAuth};
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use rustls::{ClientConnection, ServerConnection};
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

const CLUSTER: u64 = 0x00c0_ffee;
const NOW_MS: u64 = 1_800_000_000_000;
const HOUR_MS: u64 = 60 * 60 * 1000;
const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

/// A clock that stands.
#[derive(Debug)]
struct At(u64);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_millis(self.0)))
    }
}

/// A node with a key and what it shows.
struct Node {
    id: NodeId,
    key: Key,
    shows: Credentials,
}

impl Node {
    fn member(authority: &Authority, cluster: u64, id: NodeId, at_ms: u64) -> Self {
        let key = Key::generate().unwrap();
        let shows = certified(authority, &key, Subject { cluster, node: id }, at_ms);
        Self { id, key, shows }
    }

    fn newcomer() -> Self {
        let key = Key::generate().unwrap();
        let shows = Credentials::newcomer(&key).unwrap();
        Self { id: NodeId(0), key, shows }
    }

    /// A node with a certificate that no release gives.
    fn odd(authority: &Authority, id: NodeId, name: &str, uses: &[Use]) -> Self {
        let key = Key::generate().unwrap();
        let certificate = authority.issue_oddly(name, &key.public(), NOW_MS, uses).unwrap();
        let shows = Credentials::new(&key, vec![certificate, authority.certificate().clone()]).unwrap();
        Self { id, key, shows }
    }
}

fn certified(authority: &Authority, key: &Key, subject: Subject, at_ms: u64) -> Credentials {
    let issued = authority.issue(subject, &key.public(), at_ms).unwrap();
    Credentials::new(key, vec![issued.certificate, authority.certificate().clone()]).unwrap()
}

fn trust(authorities: &[&Authority], members: &[&Node]) -> Arc<Trust> {
    Arc::new(Trust {
        cluster: Some(CLUSTER),
        authorities: authorities.iter().map(|authority| authority.certificate().clone()).collect(),
        members: Some(members.iter().map(|node| (node.id, node.key.public().fingerprint())).collect()),
    })
}

/// The verdicts of both ends about each other.
struct Met {
    /// The verdict of the end that connects, about the one that accepts.
    by_client: Outcome,
    by_server: Outcome,
    /// Both ends have ended the handshake without an error.
    is_open: bool,
    errors: Vec<rustls::Error>,
}

/// Carries what the two ends have to say until both have nothing more.
fn carry(client: &mut ClientConnection, server: &mut ServerConnection) -> Vec<rustls::Error> {
    let mut errors = Vec::new();
    loop {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        let mut back = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut back).unwrap();
        }
        if wire.is_empty() && back.is_empty() {
            return errors;
        }
        let (mut wire, mut back) = (wire.as_slice(), back.as_slice());
        while !wire.is_empty() && server.read_tls(&mut wire).is_ok_and(|length| length > 0) {
            errors.extend(server.process_new_packets().err());
        }
        while !back.is_empty() && client.read_tls(&mut back).is_ok_and(|length| length > 0) {
            errors.extend(client.process_new_packets().err());
        }
        if errors.len() > 4 {
            return errors;
        }
    }
}

struct End<'a> {
    trust: Arc<Trust>,
    node: &'a Node,
    at_ms: u64,
}

fn end<'a>(trust: &Arc<Trust>, node: &'a Node) -> End<'a> {
    End { trust: trust.clone(), node, at_ms: NOW_MS }
}

fn meet(from: &End<'_>, expect: Expect, to: &End<'_>) -> Met {
    let (mut client, by_client) =
        connect(from.trust.clone(), &from.node.shows, expect, Arc::new(At(from.at_ms)), AGENT_PROTOCOL)
            .unwrap();
    let (mut server, by_server) =
        accept(to.trust.clone(), &to.node.shows, Arc::new(At(to.at_ms)), AGENT_PROTOCOL).unwrap();
    let errors = carry(&mut client, &mut server);
    let is_open = errors.is_empty() && !client.is_handshaking() && !server.is_handshaking();
    Met { by_client, by_server, is_open, errors }
}

fn member_of(node: &Node) -> Option<Peer> {
    Some(Peer::Member { subject: Subject { cluster: CLUSTER, node: node.id }, key: node.key.public() })
}

fn left(node: &Node) -> Option<Peer> {
    Some(Peer::Left { subject: Subject { cluster: CLUSTER, node: node.id }, key: node.key.public() })
}

#[test]
fn two_members_meet_whatever_their_addresses() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) =
        (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&authority, CLUSTER, B, NOW_MS));
    let trust = trust(&[&authority], &[a, b]);
    for expect in
        [Expect::Node(B), Expect::Member, Expect::Renewal, Expect::Authority(authority.fingerprint())]
    {
        let met = meet(&end(&trust, a), expect, &end(&trust, b));
        assert!(met.is_open, "{:?}", met.errors);
        assert_eq!((met.by_client.peer(), met.by_server.peer()), (member_of(b), member_of(a)));
    }
}

#[test]
fn another_node_another_key_and_a_node_that_left_are_refused_by_both_ends() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let node = |id| Node::member(&authority, CLUSTER, id, NOW_MS);
    let (a, b, thief) = (&node(A), &node(B), &node(B));
    let both = trust(&[&authority], &[a, b]);
    let met = meet(&end(&both, a), Expect::Node(NodeId(3)), &end(&both, b));
    assert_eq!(met.by_client.refusal(), Some(Refusal::OtherNode { expected: NodeId(3), found: B }));
    // It has a certificate of the authority for the node's name, and another key than is recorded.
    let met = meet(&end(&both, a), Expect::Node(B), &end(&both, thief));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherKey { node: B }), false));
    let met = meet(&end(&both, thief), Expect::Node(A), &end(&both, a));
    assert_eq!((met.by_server.refusal(), met.is_open), (Some(Refusal::OtherKey { node: B }), false));
    let alone = trust(&[&authority], &[a]);
    // A node that has left may ask why nobody talks to it.
    let met = meet(&end(&both, b), Expect::Node(A), &end(&alone, a));
    assert_eq!((met.by_server.peer(), met.is_open), (left(b), true));
    let met = meet(&end(&alone, a), Expect::Node(B), &end(&both, b));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::NoMember { node: B }), false));
}

#[test]
fn another_authority_and_another_cluster_are_refused_by_both_ends() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    // The same name, another key.
    let other = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) = (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&other, CLUSTER, B, NOW_MS));
    let ours = trust(&[&authority], &[a, b]);
    let both = trust(&[&authority, &other], &[a, b]);
    let met = meet(&end(&ours, a), Expect::Node(B), &end(&both, b));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherAuthority), false));
    let met = meet(&end(&both, b), Expect::Node(A), &end(&ours, a));
    assert_eq!((met.by_server.refusal(), met.is_open), (Some(Refusal::OtherAuthority), false));
    // While one authority replaces another one, both count.
    assert!(meet(&end(&both, a), Expect::Node(B), &end(&both, b)).is_open);
    // Our authority, and the name of another cluster.
    let stray = &Node::member(&authority, CLUSTER + 1, B, NOW_MS);
    let met = meet(&end(&both, a), Expect::Node(B), &end(&both, stray));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherCluster), false));
    let met = meet(&end(&both, stray), Expect::Node(A), &end(&both, a));
    assert_eq!((met.by_server.refusal(), met.is_open), (Some(Refusal::OtherCluster), false));
}

#[test]
fn an_expired_certificate_of_a_known_member_reaches_renewal_only() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) = (
        &Node::member(&authority, CLUSTER, A, NOW_MS),
        &Node::member(&authority, CLUSTER, B, NOW_MS - LIFE_MS - HOUR_MS),
    );
    let both = trust(&[&authority], &[a, b]);
    let until_s = (NOW_MS - HOUR_MS) / 1000;
    let subject = Subject { cluster: CLUSTER, node: B };
    let expired = Some(Peer::Expired { subject, key: b.key.public(), until_s });
    let met = meet(&end(&both, b), Expect::Member, &end(&both, a));
    assert_eq!(
        (met.by_server.peer(), met.is_open),
        (expired.clone(), true),
        "it is let in as one that has ended"
    );
    let met = meet(&end(&both, a), Expect::Renewal, &end(&both, b));
    assert_eq!((met.by_client.peer(), met.is_open), (expired, true));
    for expect in [Expect::Node(B), Expect::Member, Expect::Authority(authority.fingerprint())] {
        let met = meet(&end(&both, a), expect, &end(&both, b));
        assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::Expired { by_s: 3600 }), false));
    }
    // The record does not know the node, or there is none yet.
    let met = meet(&end(&both, b), Expect::Member, &end(&trust(&[&authority], &[a]), a));
    assert_eq!((met.by_server.peer(), met.is_open), (left(b), true));
    let no_record = Arc::new(Trust { members: None, ..(*both).clone() });
    let met = meet(&end(&both, b), Expect::Member, &end(&no_record, a));
    assert_eq!((met.by_server.refusal(), met.is_open), (Some(Refusal::Expired { by_s: 3600 }), false));
}

#[test]
fn a_certificate_that_is_not_valid_yet_reaches_nothing() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) = (
        &Node::member(&authority, CLUSTER, A, NOW_MS),
        &Node::member(&authority, CLUSTER, B, NOW_MS + 2 * HOUR_MS),
    );
    let both = trust(&[&authority], &[a, b]);
    for expect in [Expect::Node(B), Expect::Member, Expect::Renewal] {
        let met = meet(&end(&both, a), expect, &end(&both, b));
        assert_eq!(
            (met.by_client.refusal(), met.is_open),
            (Some(Refusal::NotYetValid { in_s: 3600 }), false)
        );
    }
    let met = meet(&end(&both, b), Expect::Member, &end(&both, a));
    assert_eq!((met.by_server.refusal(), met.is_open), (Some(Refusal::NotYetValid { in_s: 3600 }), false));
    // Clocks may differ by less than that.
    let b = &Node::member(&authority, CLUSTER, B, NOW_MS + HOUR_MS);
    assert!(
        meet(
            &end(&trust(&[&authority], &[a, b]), b),
            Expect::Member,
            &end(&trust(&[&authority], &[a, b]), a)
        )
        .is_open
    );
}

#[test]
fn a_clock_that_is_a_year_off_shuts_its_own_node_out_and_opens_nothing() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) =
        (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&[&authority], &[a, b]);
    let off = |at_ms| End { trust: both.clone(), node: b, at_ms };
    let right = || end(&both, a);
    let (ahead, behind) = (NOW_MS + YEAR_MS, NOW_MS - YEAR_MS);
    let met = meet(&off(ahead), Expect::Node(A), &right());
    assert!(matches!(met.by_client.refusal(), Some(Refusal::Expired { .. })) && !met.is_open);
    // A node with a wrong clock gets a certificate by the clock of another one.
    let met = meet(&off(ahead), Expect::Renewal, &right());
    assert!(matches!(met.by_client.peer(), Some(Peer::Expired { .. })) && met.is_open);
    assert_eq!(met.by_server.peer(), member_of(b));
    let met = meet(&off(behind), Expect::Renewal, &right());
    assert!(matches!(met.by_client.refusal(), Some(Refusal::NotYetValid { .. })) && !met.is_open);
    // And it serves a member as far as the member may renew.
    let met = meet(&right(), Expect::Node(B), &off(ahead));
    assert!(matches!(met.by_server.peer(), Some(Peer::Expired { .. })) && met.is_open);
    let met = meet(&right(), Expect::Node(B), &off(behind));
    assert!(matches!(met.by_server.refusal(), Some(Refusal::NotYetValid { .. })) && !met.is_open);
    // The record, and no clock, says who has left.
    let alone = trust(&[&authority], &[a]);
    for at_ms in [ahead, behind] {
        let met = meet(&end(&both, b), Expect::Member, &End { trust: alone.clone(), node: a, at_ms });
        assert!(!matches!(met.by_server.peer(), Some(Peer::Member { .. } | Peer::Expired { .. })));
    }
}

#[test]
fn a_certificate_for_another_use_or_with_another_name_is_refused() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let a = &Node::member(&authority, CLUSTER, A, NOW_MS);
    let name = Subject { cluster: CLUSTER, node: B }.to_string();
    let is_refused = |odd: &Node, part: Part, refusal: Refusal| {
        let both = trust(&[&authority], &[a, odd]);
        let met = match part {
            Part::Server => meet(&end(&both, a), Expect::Node(B), &end(&both, odd)),
            Part::Client => meet(&end(&both, odd), Expect::Node(A), &end(&both, a)),
        };
        let found = if part == Part::Server { met.by_client.refusal() } else { met.by_server.refusal() };
        assert_eq!((found, met.is_open), (Some(refusal), false));
    };
    let odd = |name: &str, uses: &[Use]| Node::odd(&authority, B, name, uses);
    is_refused(&odd(&name, &[ClientAuth]), Part::Server, Refusal::WrongUse);
    is_refused(&odd(&name, &[ServerAuth]), Part::Client, Refusal::WrongUse);
    for uses in [&[][..], &[Use::CodeSigning]] {
        is_refused(&odd(&name, uses), Part::Server, Refusal::WrongUse);
        is_refused(&odd(&name, uses), Part::Client, Refusal::WrongUse);
    }
    for name in ["https://example.org/", "mainstay://c0ffee/node/2", "mainstay:newcomers"] {
        is_refused(&odd(name, &[ClientAuth, ServerAuth]), Part::Server, Refusal::Malformed);
        is_refused(&odd(name, &[ClientAuth, ServerAuth]), Part::Client, Refusal::Malformed);
    }
    // The certificate of the authority is no node's.
    let key = Key::read(authority.key().pkcs8().to_vec().into()).unwrap();
    let shows = Credentials::new(&key, vec![authority.certificate().clone()]).unwrap();
    is_refused(&Node { id: B, key, shows }, Part::Client, Refusal::OtherAuthority);
}

#[test]
fn a_newcomer_finds_the_cluster_of_its_token_and_is_known_by_its_key() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, new) = (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::newcomer());
    let (ours, nothing) = (trust(&[&authority], &[a]), Arc::new(Trust::default()));
    let met = meet(&end(&nothing, new), Expect::Authority(authority.fingerprint()), &end(&ours, a));
    assert!(met.is_open, "{:?}", met.errors);
    assert_eq!(met.by_server.peer(), Some(Peer::Newcomer { key: new.key.public() }));
    let shown = met.by_client.chain();
    assert_eq!(authority_in(&shown, authority.fingerprint()).as_ref(), Some(authority.certificate()));
    // Another cluster, and a machine that belongs to none.
    let other = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let met = meet(&end(&nothing, new), Expect::Authority(other.fingerprint()), &end(&ours, a));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherAuthority), false));
    let met =
        meet(&end(&nothing, new), Expect::Authority(other.fingerprint()), &end(&nothing, &Node::newcomer()));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::Newcomer), false));
    // It shows the right authority, and has a certificate of its own making.
    let forged = Node::newcomer();
    let chain = vec![forged.shows.chain()[0].clone(), authority.certificate().clone()];
    let forged = Node { shows: Credentials::new(&forged.key, chain).unwrap(), ..forged };
    let met = meet(&end(&nothing, new), Expect::Authority(authority.fingerprint()), &end(&nothing, &forged));
    assert!(met.by_client.refusal().is_some() && !met.is_open);
    // A member looks for the newcomer where it says that it is.
    let proof = Expect::Newcomer(new.key.public().fingerprint());
    assert!(meet(&end(&ours, a), proof, &end(&ours, new)).is_open);
    let met = meet(&end(&ours, a), proof, &end(&nothing, &Node::newcomer()));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherNewcomer), false));
    let met = meet(&end(&ours, a), proof, &end(&ours, a));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::OtherNewcomer), false));
    // No member is sought, and found, in a newcomer.
    let met = meet(&end(&ours, a), Expect::Member, &end(&nothing, new));
    assert_eq!((met.by_client.refusal(), met.is_open), (Some(Refusal::Newcomer), false));
    // Outside of a cluster no certificate of any cluster counts.
    let met = meet(&end(&ours, a), Expect::Member, &end(&nothing, new));
    assert!(!met.is_open);
}

#[test]
fn a_stolen_certificate_is_worth_nothing_without_its_key() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let b = Node::member(&authority, CLUSTER, B, NOW_MS);
    let thief = Key::generate().unwrap();
    assert!(Credentials::new(&thief, b.shows.chain().to_vec()).is_err());
}

#[test]
fn an_authority_that_was_sealed_gives_certificates_that_count() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let seal = SealKey::generate().unwrap();
    let sealed = seal.seal(CLUSTER, 1, authority.key()).unwrap();
    let opened =
        Authority::open(CLUSTER, 1, authority.certificate().clone(), seal.open(CLUSTER, 1, &sealed).unwrap())
            .unwrap();
    let (a, b) = (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&opened, CLUSTER, B, NOW_MS));
    let both = trust(&[&authority], &[a, b]);
    assert!(meet(&end(&both, a), Expect::Node(B), &end(&both, b)).is_open);
}

/// Returns the answer of the accepting end to these bytes, and whether it ends the connection.
fn told(bytes: &[u8]) -> (Vec<u8>, bool) {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let a = Node::member(&authority, CLUSTER, A, NOW_MS);
    let (mut server, outcome) =
        accept(trust(&[&authority], &[&a]), &a.shows, Arc::new(At(NOW_MS)), AGENT_PROTOCOL).unwrap();
    let (mut bytes, mut is_ended) = (bytes, false);
    while !bytes.is_empty() && !is_ended {
        is_ended = server.read_tls(&mut bytes).is_err() || server.process_new_packets().is_err();
    }
    let mut answer = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut answer).unwrap();
    }
    assert_eq!(outcome.peer(), None);
    assert!(server.is_handshaking() && server.reader().read(&mut [0]).is_err());
    (answer, is_ended)
}

/// A greeting of TLS 1.2 (RFC 5246), as OpenSSL 1.0 would say it.
fn hello_of_1_2() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    // No session; ECDHE-ECDSA-AES128-GCM and ECDHE-RSA-AES128-GCM; no compression.
    body.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    // P-256 and x25519; ECDSA with SHA-256.
    let extensions = [0, 10, 0, 6, 0, 4, 0, 23, 0, 29, 0, 13, 0, 4, 0, 2, 4, 3];
    body.extend([0, extensions.len() as u8]);
    body.extend(extensions);
    let mut record = vec![22, 3, 1, 0, body.len() as u8 + 4, 1, 0, 0, body.len() as u8];
    record.extend(body);
    record
}

#[test]
fn tls_1_2_is_refused_by_name() {
    let (answer, is_ended) = told(&hello_of_1_2());
    assert!(is_ended);
    // A fatal alert: protocol version (RFC 8446, 6.2).
    assert_eq!(answer, [21, 3, 3, 0, 2, 2, 70]);
}

#[test]
fn plain_text_and_garbage_reach_nothing() {
    // A frame of the agents as it was before TLS, a request of HTTP, noise.
    let frame = [&[38, 0, 0, 0, 1, 0][..], br#"{"cluster":7,"node":1,"lane":"Log"}"#].concat();
    for text in [&frame[..], b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", &[0; 4096], &[0xff; 4096]] {
        let (_, is_ended) = told(text);
        assert!(is_ended, "{text:?}");
    }
    let mut seed = 1_u64;
    for _ in 0..2000 {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as u8
        };
        let mut hello = hello_of_1_2();
        let (at, byte) = (usize::from(next()) % hello.len(), next());
        hello[at] = byte;
        hello.truncate(usize::from(next()).max(1));
        told(&hello);
    }
}

#[test]
fn a_connection_goes_on_after_its_keys_were_changed() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) =
        (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&[&authority], &[a, b]);
    let clock = || Arc::new(At(NOW_MS));
    let (mut client, _) = connect(both.clone(), &a.shows, Expect::Node(B), clock(), AGENT_PROTOCOL).unwrap();
    let (mut server, _) = accept(both, &b.shows, clock(), AGENT_PROTOCOL).unwrap();
    assert!(carry(&mut client, &mut server).is_empty());
    for round in 0..3_u8 {
        client.writer().write_all(&[round; 100]).unwrap();
        assert!(carry(&mut client, &mut server).is_empty());
        let mut found = [0; 100];
        server.reader().read_exact(&mut found).unwrap();
        assert_eq!(found, [round; 100]);
        client.refresh_traffic_keys().unwrap();
    }
}

#[test]
fn an_open_connection_outlives_the_certificates() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) =
        (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&[&authority], &[a, b]);
    /// A clock that jumps a year ahead once it has been read this often.
    #[derive(Debug, Default)]
    struct Jumps(std::sync::atomic::AtomicU64);
    impl TimeProvider for Jumps {
        fn current_time(&self) -> Option<UnixTime> {
            At(NOW_MS + self.0.load(std::sync::atomic::Ordering::Relaxed)).current_time()
        }
    }
    let jumps = Arc::new(Jumps::default());
    let (mut client, _) =
        connect(both.clone(), &a.shows, Expect::Node(B), jumps.clone(), AGENT_PROTOCOL).unwrap();
    let (mut server, _) = accept(both, &b.shows, jumps.clone(), AGENT_PROTOCOL).unwrap();
    assert!(carry(&mut client, &mut server).is_empty());
    jumps.0.store(YEAR_MS, std::sync::atomic::Ordering::Relaxed);
    client.writer().write_all(b"heartbeat").unwrap();
    client.refresh_traffic_keys().unwrap();
    client.writer().write_all(b"heartbeat").unwrap();
    assert!(carry(&mut client, &mut server).is_empty());
    let mut found = [0; 18];
    server.reader().read_exact(&mut found).unwrap();
    assert_eq!(&found, b"heartbeatheartbeat");
}

#[test]
fn another_protocol_of_ours_is_told_apart() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let (a, b) =
        (&Node::member(&authority, CLUSTER, A, NOW_MS), &Node::member(&authority, CLUSTER, B, NOW_MS));
    let both = trust(&[&authority], &[a, b]);
    let clock = || Arc::new(At(NOW_MS));
    let (mut client, _) =
        connect(both.clone(), &a.shows, Expect::Node(B), clock(), b"mainstay-engine/1").unwrap();
    let (mut server, _) = accept(both, &b.shows, clock(), AGENT_PROTOCOL).unwrap();
    assert!(!carry(&mut client, &mut server).is_empty());
}

#[test]
fn certificates_of_strangers_never_make_this_fail() {
    let authority = Authority::make(CLUSTER, 1, NOW_MS).unwrap();
    let a = Node::member(&authority, CLUSTER, A, NOW_MS);
    let ours = trust(&[&authority], &[&a]);
    let now = UnixTime::since_unix_epoch(Duration::from_millis(NOW_MS));
    let good = a.shows.chain()[0].to_vec();
    assert!(ours.judge_client(&[CertificateDer::from(good.clone())], now).is_ok());
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut changed = good.clone();
            changed[at] ^= 1 << bit;
            let verdict = ours.judge_client(&[CertificateDer::from(changed)], now);
            // What is not signed may be changed: the names of the algorithm come twice.
            assert!(!matches!(verdict, Ok(Peer::Newcomer { .. } | Peer::Expired { .. })), "byte {at}");
            assert!(verdict.is_err(), "byte {at}, bit {bit}");
        }
        assert!(ours.judge_client(&[CertificateDer::from(&good[..at])], now).is_err());
    }
    assert_eq!(ours.judge_client(&[], now), Err(Refusal::Malformed));
}
