//! Two and more transports over the loopback device, and peers that misbehave.

#[path = "support/identities.rs"]
mod identities;

use bytes::{Bytes, BytesMut};
use identities::identities;
use mainstay_codec::{Batch, EntryKind, Envelope, Message, NewEntry, frame};
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::ring::{Owner, Ring, now};
use mainstay_engine::transport::{
    Channel, DownReason, GREETING_MS, GREETINGS_MAX, PING_MS, SILENCE_MS, SendError, Transport,
    TransportEvent,
};
use mainstay_trust::session::RECORD_PAYLOAD_MAX;
use mainstay_trust::{Payloads, Refusal, Session, SessionError};
use mainstay_types::{
    Chain, ConfigVersion, Epoch, Extent, Incarnation, Index, NodeId, Range, ResourceId, Time, VolumeId,
};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const CLUSTER: u64 = 0xC1;
/// How long anything here may take; far more than it does.
const PATIENCE_MS: u64 = 20_000;

struct Node {
    id: NodeId,
    ring: Ring,
    pool: BufferPool,
    transport: Transport,
    events: Vec<TransportEvent>,
}

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().expect("an address")
}

impl Node {
    fn new(id: u32) -> Self {
        Self::with(id, CLUSTER, any_port())
    }

    fn with(id: u32, cluster: u64, addr: SocketAddr) -> Self {
        let (id, pool) = (NodeId(id), BufferPool::new(16 << 20));
        let mut transport = Transport::new(pool.clone(), cluster, id, addr).expect("a free port");
        transport.set_identities(identities(id.0, Payloads::Encrypted));
        Self { id, ring: Ring::new().expect("a ring"), pool, transport, events: Vec::new() }
    }

    fn addr(&self) -> SocketAddr {
        self.transport.local_addr()
    }

    fn know(&mut self, peers: &[(u32, SocketAddr)]) {
        let peers: BTreeMap<_, _> = peers.iter().map(|(id, addr)| (NodeId(*id), *addr)).collect();
        self.transport.set_peers(&peers);
    }

    /// One turn of a shard's loop that waits for a millisecond at most.
    fn turn(&mut self) {
        let mut completions = Vec::new();
        self.transport.flush(&mut self.ring);
        self.ring.turn(Some(now().plus_ms(1)), &mut completions).expect("a turn");
        for completion in completions {
            assert_eq!(completion.owner, Owner::Transport);
            self.transport.handle_completion(&mut self.ring, now(), completion);
        }
        self.transport.tick(&mut self.ring, now());
        while let Some(event) = self.transport.poll() {
            self.events.push(event);
        }
    }

    fn downs(&self) -> Vec<(Channel, DownReason)> {
        let down = |event: &TransportEvent| match event {
            TransportEvent::PeerDown { channel, reason } => Some((*channel, reason.clone())),
            _ => None,
        };
        self.events.iter().filter_map(down).collect()
    }

    fn last_error(&self, peer: u32) -> Option<DownReason> {
        self.transport.peers().into_iter().find(|p| p.node == NodeId(peer)).expect("a peer").last_error
    }
}

fn out(peer: u32) -> Channel {
    Channel { peer: NodeId(peer), initiated_by_us: true }
}

fn back(peer: u32) -> Channel {
    Channel { peer: NodeId(peer), initiated_by_us: false }
}

fn run(nodes: &mut [&mut Node], what: &str, mut until: impl FnMut(&mut [&mut Node]) -> bool) {
    let end = now().plus_ms(PATIENCE_MS);
    while !until(nodes) {
        assert!(
            now() < end,
            "in vain: {what}; {:?}",
            nodes.iter().map(|n| n.transport.peers()).collect::<Vec<_>>()
        );
        for node in nodes.iter_mut() {
            node.turn();
        }
    }
}

fn for_ms(nodes: &mut [&mut Node], ms: u64) {
    let end = now().plus_ms(ms);
    run(nodes, "time", |_| now() >= end);
}

/// Two nodes that know each other, both connections up.
fn pair() -> (Node, Node) {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.know(&[(2, b.addr())]);
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
    (a, b)
}

fn up(a: &mut Node, b: &mut Node) {
    let (one, two) = (a.id.0, b.id.0);
    run(&mut [a, b], "both connections up", |nodes| {
        let up = |node: &Node, peer| node.transport.is_up(out(peer)) && node.transport.is_up(back(peer));
        up(nodes[0], two) && up(nodes[1], one)
    });
}

fn envelope(message: Message) -> Envelope {
    let (epoch, version, incarnation) = (Epoch(4), ConfigVersion(5), Incarnation(6));
    Envelope { resource: ResourceId(3), epoch, version, incarnation, message }
}

fn append(first: u64, lens: &[usize]) -> Envelope {
    let entry = |(n, len): (usize, &usize)| NewEntry {
        kind: EntryKind::Write,
        range: Range { volume: VolumeId(0), offset: n as u64 * (1 << 20), len: *len as u64 },
        payload: (0..*len)
            .map(|at| ((at * 7 + at / 4096 + n + first as usize) % 253) as u8)
            .collect::<Vec<_>>()
            .into(),
        session: first,
        request: n as u64,
    };
    let entries: Vec<_> = lens.iter().enumerate().map(entry).collect();
    let batch = Batch::seal(ResourceId(3), Epoch(4), Index(first), Chain(first), Index(0), entries);
    envelope(Message::Append(Arc::new(batch)))
}

/// The n-th of a mix of messages of all sizes.
fn mixed(n: u64) -> Envelope {
    match n % 10 {
        0..4 => append(n + 1, &[4096]),
        4 => append(n + 1, &[4096, 8192, 12288]),
        5 if n.is_multiple_of(500) => append(n + 1, &[1 << 20, 1 << 20, 1 << 20, 1 << 20]),
        5 => append(n + 1, &[65536]),
        6 => {
            let data = Bytes::from(vec![n as u8; if n.is_multiple_of(200) { 1 << 20 } else { 20480 }]);
            let (volume, extent) = (VolumeId(1), n as u32);
            envelope(Message::CopyExtent {
                volume,
                extent: Extent(extent),
                version: Index(n),
                at: Index(n),
                data,
                damaged: Vec::new(),
                kept: Vec::new(),
            })
        }
        7 => envelope(Message::Commit { commit: Index(n) }),
        _ => envelope(Message::Ack { durable: Index(n) }),
    }
}

fn bytes_of(envelope: &Envelope) -> Vec<u8> {
    frame::encode(envelope).concat()
}

#[test]
fn ten_thousand_mixed_messages_arrive_whole_and_in_order() {
    const COUNT: u64 = 10_000;
    let (mut a, mut b) = pair();
    let (mut sent, mut there, mut again) = (0, 0, 0);
    a.events.clear();
    b.events.clear();
    run(&mut [&mut a, &mut b], "all messages", |nodes| {
        // Few enough are on the way that the queue stays short.
        while sent < COUNT && nodes[0].transport.queued_bytes(out(2)) < 4 << 20 && sent < there + 600 {
            nodes[0].transport.send(out(2), &mixed(sent)).expect("up");
            sent += 1;
        }
        for event in std::mem::take(&mut nodes[1].events) {
            let TransportEvent::Message { channel, envelope } = event else { panic!("{event:?}") };
            assert_eq!(channel, back(1), "it came on the connection that the sender opened");
            assert!(bytes_of(&envelope) == bytes_of(&mixed(there)), "message {there}");
            if let Message::Append(batch) = &envelope.message {
                assert_eq!(batch.payload[0].as_ptr() as usize % 4096, 0, "ready for direct I/O");
            }
            there += 1;
            // Some answers, on the same connection.
            if there % 3 == 0 {
                let ack = super_ack(there);
                nodes[1].transport.send(channel, &ack).expect("up");
            }
        }
        for event in std::mem::take(&mut nodes[0].events) {
            let TransportEvent::Message { channel, envelope } = event else { panic!("{event:?}") };
            again += 3;
            assert_eq!((channel, bytes_of(&envelope)), (out(2), bytes_of(&super_ack(again))));
        }
        there == COUNT && again == COUNT - COUNT % 3
    });
    assert_eq!(a.transport.queued_bytes(out(2)), 0);
    let staging = 2 * (64 << 10);
    assert_eq!((a.pool.in_use_bytes(), b.pool.in_use_bytes()), (staging, staging), "nothing leaks");
}

fn super_ack(durable: u64) -> Envelope {
    envelope(Message::Ack { durable: Index(durable) })
}

#[test]
fn an_idle_pair_stays_connected_and_says_nothing_to_the_shard() {
    let (mut a, mut b) = pair();
    a.events.clear();
    b.events.clear();
    for_ms(&mut [&mut a, &mut b], 3 * SILENCE_MS);
    assert!(a.events.is_empty() && b.events.is_empty(), "{:?} {:?}", a.events, b.events);
    let far = a.transport.next_deadline().expect("a ping is due some time");
    assert!(far > now(), "nothing is due now");
}

/// Connections are made one after the other, so their pings would be due at as many moments, and
/// each is a wake-up. On the connection that a node has opened come answers, which its shard waits
/// for together; what the peer asks ends that wait.
#[test]
fn requests_of_a_peer_are_urgent_and_its_answers_are_not() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.turn();
    let before = a.ring.urgent_in_flight();
    if before == 0 {
        // A kernel that cannot wait for several things: nothing is urgent there, not even another
        // thread.
        return;
    }
    a.know(&[(2, b.addr())]);
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
    assert_eq!((a.ring.urgent_in_flight(), b.ring.urgent_in_flight()), (before + 1, before + 1));
    // It stays so, whichever side has said something.
    a.transport.send(out(2), &super_ack(1)).expect("it is up");
    b.transport.send(back(1), &super_ack(2)).expect("it is up");
    let heard = |node: &Node| node.events.iter().any(|event| matches!(event, TransportEvent::Message { .. }));
    run(&mut [&mut a, &mut b], "both heard", |nodes| nodes.iter().all(|node| heard(node)));
    assert_eq!((a.ring.urgent_in_flight(), b.ring.urgent_in_flight()), (before + 1, before + 1));
}

#[test]
fn quiet_connections_are_pinged_together() {
    const INTERVALS: u64 = 10;
    let (mut a, mut b) = pair();
    for_ms(&mut [&mut a, &mut b], PING_MS / 2);
    let mut c = Node::new(3);
    a.know(&[(2, b.addr()), (3, c.addr())]);
    b.know(&[(1, a.addr()), (3, c.addr())]);
    c.know(&[(1, a.addr()), (2, b.addr())]);
    run(&mut [&mut a, &mut b, &mut c], "all connected", |nodes| {
        [2, 3].iter().all(|peer| nodes[0].transport.is_up(out(*peer))) && nodes[1].transport.is_up(back(3))
    });
    for_ms(&mut [&mut a, &mut b, &mut c], 4 * PING_MS);
    let (end, mut moments) = (now().plus_ms(INTERVALS * PING_MS), 0);
    while now() < end {
        for node in [&mut a, &mut b, &mut c] {
            moments += u64::from(node.transport.next_deadline().is_some_and(|at| at <= now()));
            node.turn();
        }
    }
    assert!(moments <= 3 * INTERVALS, "{moments} moments in {INTERVALS} intervals for six connections");
    assert!(a.downs().is_empty() && b.downs().is_empty() && c.downs().is_empty());
}

#[test]
fn another_cluster_is_refused_on_both_sides() {
    let (mut a, mut b) = (Node::new(1), Node::with(2, 0xC2, any_port()));
    a.know(&[(2, b.addr())]);
    b.know(&[(1, a.addr())]);
    run(&mut [&mut a, &mut b], "a refusal", |nodes| {
        nodes[0].last_error(2).is_some() && nodes[1].last_error(1).is_some()
    });
    assert_eq!(a.last_error(2), Some(DownReason::OtherCluster { ours: CLUSTER, theirs: 0xC2 }));
    assert_eq!(b.last_error(1), Some(DownReason::OtherCluster { ours: 0xC2, theirs: CLUSTER }));
    for_ms(&mut [&mut a, &mut b], 300);
    assert!(a.events.is_empty() && b.events.is_empty(), "no peer was up");
}

#[test]
fn a_wrong_address_is_noticed() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.know(&[(3, b.addr())]);
    b.know(&[(1, a.addr())]);
    run(&mut [&mut a, &mut b], "a refusal", |nodes| nodes[0].last_error(3).is_some());
    let refusal = Refusal::OtherNode { expected: NodeId(3), found: NodeId(2) };
    assert_eq!(a.last_error(3), Some(DownReason::Session(SessionError::Refused(refusal))));
}

#[test]
fn an_unknown_node_is_not_let_in_until_it_is_known() {
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.know(&[(2, b.addr())]);
    run(&mut [&mut a, &mut b], "a refusal", |nodes| nodes[0].last_error(2).is_some());
    assert!(!b.transport.is_up(back(1)));
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
}

#[test]
fn a_refused_connection_is_an_error_and_is_tried_again() {
    let mut a = Node::new(1);
    let gone = TcpListener::bind(any_port()).expect("a port").local_addr().expect("an address");
    a.know(&[(2, gone)]);
    run(&mut [&mut a], "a refusal", |nodes| nodes[0].last_error(2).is_some());
    assert!(
        matches!(a.last_error(2), Some(DownReason::System { what: "connecting", .. })),
        "{:?}",
        a.last_error(2)
    );
    let mut b = Node::with(2, CLUSTER, gone);
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
    assert_eq!(a.last_error(2), None);
}

#[test]
fn a_peer_that_restarts_is_connected_again() {
    let (mut a, b) = pair();
    let addr = b.addr();
    a.events.clear();
    drop(b);
    run(&mut [&mut a], "both directions down", |nodes| nodes[0].downs().len() == 2);
    assert_eq!(a.transport.send(out(2), &super_ack(1)), Err(SendError::Down));
    let mut b = Node::with(2, CLUSTER, addr);
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
    a.transport.send(out(2), &append(1, &[4096])).expect("up");
    run(&mut [&mut a, &mut b], "a message", |nodes| {
        nodes[1].events.iter().any(|event| matches!(event, TransportEvent::Message { .. }))
    });
}

#[test]
fn a_peer_that_is_removed_is_disconnected() {
    let (mut a, mut b) = pair();
    a.know(&[]);
    run(&mut [&mut a, &mut b], "down on both sides", |nodes| {
        nodes[0].downs().len() == 2 && nodes[1].downs().len() == 2
    });
    assert_eq!(a.downs(), [(out(2), DownReason::Removed), (back(2), DownReason::Removed)]);
}

/// A peer made by hand, which proves to be a node and says what it likes.
struct Hand {
    stream: TcpStream,
    session: Session,
    heard: Vec<u8>,
    is_over: bool,
}

impl Hand {
    fn new(stream: TcpStream, session: Session) -> Self {
        stream.set_nonblocking(true).expect("a socket");
        Self { stream, session, heard: Vec::new(), is_over: false }
    }

    /// Connects to a node as another one.
    fn connect(node: &Node, id: u32) -> Self {
        let own = identities(id, Payloads::Encrypted);
        let session = Session::connect(own.trust, &own.own, node.id, own.allowed).expect("a session");
        Self::new(connect(node), session)
    }

    /// Says and hears what there is.
    fn pump(&mut self) {
        let said = self.session.said().split();
        if !said.is_empty() {
            self.send(&said);
        }
        let mut wire = [0; 65536];
        match self.stream.read(&mut wire) {
            Ok(0) => self.is_over = true,
            Ok(count) => {
                let heard = &mut self.heard;
                let mut sink = |bytes: &[u8]| {
                    heard.extend_from_slice(bytes);
                    Ok::<(), SessionError>(())
                };
                self.session.open(&mut wire[..count], &mut sink).expect("good bytes");
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.is_over = true,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.set_nonblocking(false).expect("a socket");
        // A peer that has ended the connection hears no more.
        let _ = self.stream.write_all(bytes);
        self.stream.set_nonblocking(true).expect("a socket");
    }

    fn say(&mut self, payload: &[u8]) {
        let mut wire = BytesMut::new();
        for part in payload.chunks(RECORD_PAYLOAD_MAX) {
            let fill = |record: &mut BytesMut| record.extend_from_slice(part);
            self.session.seal(&mut wire, fill).expect("an open session");
        }
        self.send(&wire);
    }

    /// Proves who it is, and says hello as node `says`.
    fn greet(&mut self, node: &mut Node, says: u32) {
        run(&mut [&mut *node], "a handshake", |_| {
            self.pump();
            self.session.is_open()
        });
        let to = node.id;
        self.say(&bytes_of(&hello(says, to)));
    }
}

fn hello(id: u32, to: NodeId) -> Envelope {
    Envelope {
        resource: ResourceId(0),
        epoch: Epoch(0),
        version: ConfigVersion(0),
        incarnation: Incarnation(0),
        message: Message::Hello { cluster: CLUSTER, node: NodeId(id), to },
    }
}

/// Takes the connection of `node` and says a correct hello.
fn by_hand(node: &mut Node, listener: &TcpListener, id: u32) -> Hand {
    listener.set_nonblocking(true).expect("a socket");
    let mut accepted = None;
    run(&mut [node], "a connection", |_| {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    let own = identities(id, Payloads::Encrypted);
    let session = Session::accept(own.trust, &own.own, own.allowed).expect("a session");
    let mut hand = Hand::new(accepted.expect("accepted").0, session);
    hand.greet(node, id);
    run(&mut [node], "a hello", |nodes| nodes[0].transport.is_up(out(id)));
    hand
}

#[test]
fn a_silent_peer_is_down_after_a_second() {
    let mut a = Node::new(1);
    let listener = TcpListener::bind(any_port()).expect("a port");
    a.know(&[(2, listener.local_addr().expect("an address"))]);
    let mut stream = by_hand(&mut a, &listener, 2);
    let before = now();
    run(&mut [&mut a], "down", |nodes| !nodes[0].downs().is_empty());
    let waited = now().ms_since(before);
    assert_eq!(a.downs(), [(out(2), DownReason::Silent)]);
    assert!((SILENCE_MS - 100..SILENCE_MS + 1500).contains(&waited), "{waited} ms");
    // It was asked before: a hello and some pings.
    run(&mut [&mut a], "the end", |_| {
        stream.pump();
        stream.is_over
    });
    assert!(stream.heard.len() >= 64 + 20 + 2 * 68, "{} bytes", stream.heard.len());
}

#[test]
fn a_peer_that_only_listens_to_half_of_a_payload_is_down() {
    // A peer that stops reading must not hold memory for ever.
    let mut a = Node::new(1);
    let listener = TcpListener::bind(any_port()).expect("a port");
    a.know(&[(2, listener.local_addr().expect("an address"))]);
    let _stream = by_hand(&mut a, &listener, 2);
    for n in 0..8 {
        a.transport.send(out(2), &append(n + 1, &[1 << 20, 1 << 20])).expect("up");
    }
    run(&mut [&mut a], "down", |nodes| !nodes[0].downs().is_empty());
    assert_eq!(a.transport.queued_bytes(out(2)), 0);
}

#[test]
fn a_talkative_peer_is_pinged_all_the_same() {
    // Its own pings may be far behind in its queue; without ours it would take us for silent.
    let mut a = Node::new(1);
    let listener = TcpListener::bind(any_port()).expect("a port");
    a.know(&[(2, listener.local_addr().expect("an address"))]);
    let mut stream = by_hand(&mut a, &listener, 2);
    for n in 0..20 {
        stream.say(&bytes_of(&super_ack(n)));
        for_ms(&mut [&mut a], 50);
        stream.pump();
    }
    assert!(stream.heard.len() >= 64 + 20 + 2 * 68, "{} bytes", stream.heard.len());
    assert!(a.downs().is_empty());
}

#[test]
fn damaged_bytes_end_the_connection_with_a_reason() {
    let good = bytes_of(&append(1, &[4096, 65536]));
    // In the header, in the meta, in a small and in a large payload; and something that is no frame
    // at all.
    for at in [0, 44, 70, 64 + 128 + 80 + 100, good.len() - 100] {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        let mut a = Node::new(1);
        let listener = TcpListener::bind(any_port()).expect("a port");
        a.know(&[(2, listener.local_addr().expect("an address"))]);
        let mut stream = by_hand(&mut a, &listener, 2);
        stream.say(&good);
        stream.say(&bad);
        run(&mut [&mut a], "down", |nodes| !nodes[0].downs().is_empty());
        let [(channel, DownReason::Garbled(_))] = a.downs()[..] else { panic!("byte {at}: {:?}", a.downs()) };
        assert_eq!(channel, out(2));
        let messages = a.events.iter().filter(|event| matches!(event, TransportEvent::Message { .. }));
        assert_eq!(messages.count(), 1, "what came before the fault was good");
    }
}

#[test]
fn noise_from_a_stranger_is_refused() {
    let mut a = Node::new(1);
    a.know(&[]);
    let (mut noise, mut early) = (connect(&a), connect(&a));
    noise.write_all(b"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: noise that is longer than one header\r\n\r\n").expect("sent");
    early.write_all(&bytes_of(&append(1, &[4096]))).expect("sent");
    for mut stream in [noise, early] {
        stream.set_nonblocking(true).expect("a socket");
        run(&mut [&mut a], "the end of the connection", |_| match stream.read(&mut [0; 8]) {
            Ok(n) => n == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        });
    }
    assert!(a.events.is_empty());
    // One that says nothing at all is not kept either.
    let mut mute = connect(&a);
    mute.set_nonblocking(true).expect("a socket");
    run(&mut [&mut a], "the end of the connection", |_| matches!(mute.read(&mut [0; 8]), Ok(0)));
}

fn connect(node: &Node) -> TcpStream {
    TcpStream::connect(node.addr()).expect("it listens")
}

#[test]
fn a_send_queue_that_is_too_long_ends_the_connection() {
    let (mut a, _b) = pair();
    let big = append(1, &[1 << 20, 1 << 20, 1 << 20, 1 << 20]);
    let end = (0..100).find_map(|_| a.transport.send(out(2), &big).err());
    assert_eq!(end, Some(SendError::Overflow));
    assert!(a.transport.next_deadline().is_some_and(|at| at <= now()), "the event waits for nothing");
    a.turn();
    assert_eq!(a.downs(), [(out(2), DownReason::Overflow)]);
}

#[test]
fn a_newer_connection_of_a_peer_replaces_the_older() {
    let mut a = Node::new(1);
    a.know(&[(2, any_port())]);
    let mut first = Hand::connect(&a, 2);
    first.greet(&mut a, 2);
    run(&mut [&mut a], "up", |nodes| nodes[0].transport.is_up(back(2)));
    let mut second = Hand::connect(&a, 2);
    second.greet(&mut a, 2);
    run(&mut [&mut a], "replaced", |nodes| !nodes[0].downs().is_empty());
    assert_eq!(a.downs(), [(back(2), DownReason::Replaced)]);
    run(&mut [&mut a], "up again", |nodes| nodes[0].transport.is_up(back(2)));
    let ups = a.events.iter().filter(|event| matches!(event, TransportEvent::PeerUp { .. })).count();
    assert_eq!((ups, matches!(a.events.last(), Some(TransportEvent::PeerUp { .. }))), (2, true));
}

#[test]
fn a_deadline_is_always_given() {
    let a = Node::new(1);
    assert_eq!(a.transport.next_deadline(), Some(Time(0)), "the first accept is due");
}

#[test]
fn without_identities_nobody_is_reached_and_nobody_gets_in() {
    let pool = BufferPool::new(16 << 20);
    let transport = Transport::new(pool.clone(), CLUSTER, NodeId(1), any_port()).expect("a free port");
    let ring = Ring::new().expect("a ring");
    let mut a = Node { id: NodeId(1), ring, pool, transport, events: Vec::new() };
    let mut b = Node::new(2);
    a.know(&[(2, b.addr())]);
    b.know(&[(1, a.addr())]);
    run(&mut [&mut a, &mut b], "a reason", |nodes| nodes[1].last_error(1).is_some());
    for_ms(&mut [&mut a, &mut b], 300);
    assert_eq!(a.last_error(2), Some(DownReason::NoIdentities));
    assert!(a.events.is_empty() && b.events.is_empty());
    a.transport.set_identities(identities(1, Payloads::Encrypted));
    up(&mut a, &mut b);
}

#[test]
fn a_member_that_says_it_is_another_is_refused() {
    let mut a = Node::new(1);
    a.know(&[(2, any_port()), (3, any_port())]);
    let mut liar = Hand::connect(&a, 3);
    liar.greet(&mut a, 2);
    run(&mut [&mut a], "the end", |_| {
        liar.pump();
        liar.is_over
    });
    assert!(a.events.is_empty());
    let mut honest = Hand::connect(&a, 3);
    honest.greet(&mut a, 3);
    run(&mut [&mut a], "up", |nodes| nodes[0].transport.is_up(back(3)));
}

#[test]
fn payloads_are_clear_only_while_both_nodes_are_told_so() {
    let clear = |node: &Node| node.transport.peers()[0].is_clear;
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    a.transport.set_identities(identities(1, Payloads::Clear));
    a.know(&[(2, b.addr())]);
    b.know(&[(1, a.addr())]);
    up(&mut a, &mut b);
    assert!(!clear(&a) && !clear(&b), "one of the two was not told so");
    let (mut c, mut d) = (Node::new(1), Node::new(2));
    for node in [&mut c, &mut d] {
        node.transport.set_identities(identities(node.id.0, Payloads::Clear));
    }
    c.know(&[(2, d.addr())]);
    d.know(&[(1, c.addr())]);
    up(&mut c, &mut d);
    assert!(clear(&c) && clear(&d));
    // Messages of all sizes, also received in place.
    c.events.clear();
    d.events.clear();
    for n in 0..600 {
        c.transport.send(out(2), &mixed(n)).expect("up");
        for_ms(&mut [&mut c, &mut d], u64::from(n % 50 == 0));
    }
    let mut there = 0;
    run(&mut [&mut c, &mut d], "all messages", |nodes| {
        for event in std::mem::take(&mut nodes[1].events) {
            let TransportEvent::Message { envelope, .. } = event else { panic!("{event:?}") };
            assert!(bytes_of(&envelope) == bytes_of(&mixed(there)), "message {there}");
            there += 1;
        }
        there == 600
    });
    // As soon as one node is told to encrypt, nothing is clear any more.
    d.transport.set_identities(identities(2, Payloads::Encrypted));
    d.turn();
    let ended = [(out(1), DownReason::ToBeEncrypted), (back(1), DownReason::ToBeEncrypted)];
    assert!(ended.iter().all(|end| d.downs().contains(end)), "{:?}", d.downs());
    up(&mut c, &mut d);
    assert!(!clear(&c) && !clear(&d));
}

/// A node that has left, or that a rotation of the authority has left out, is believed no more.
#[test]
fn a_connection_ends_with_the_membership_of_its_peer() {
    let (mut a, mut b) = pair();
    let mut without = identities(1, Payloads::Encrypted);
    let mut trust = (*without.trust).clone();
    trust.members.as_mut().expect("listed").remove(&NodeId(2));
    without.trust = Arc::new(trust);
    a.transport.set_identities(without);
    run(&mut [&mut a, &mut b], "down on both sides", |nodes| {
        nodes[0].downs().len() == 2 && nodes[1].downs().len() == 2
    });
    assert_eq!(a.downs(), [(out(2), DownReason::NoMember), (back(2), DownReason::NoMember)]);
    for_ms(&mut [&mut a, &mut b], 500);
    assert!(!b.transport.is_up(out(1)) && !a.transport.is_up(back(2)));
    let told = b.last_error(1);
    assert!(matches!(told, Some(DownReason::Session(SessionError::RefusedByPeer(_)))), "{told:?}");
    a.transport.set_identities(identities(1, Payloads::Encrypted));
    up(&mut a, &mut b);
}

/// Strangers from another address that begin handshakes, and say nothing or a byte now and then.
#[test]
fn strangers_take_no_place_of_a_peer_and_do_not_stay() {
    use socket2::{Domain, Socket, Type};
    let (mut a, mut b) = (Node::new(1), Node::new(2));
    let stranger = |to: SocketAddr| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let from: SocketAddr = "127.0.0.9:0".parse().expect("an address");
        socket.bind(&from.into()).expect("an address of the loopback device");
        socket.connect(&to.into()).expect("it listens");
        TcpStream::from(socket)
    };
    a.know(&[(2, b.addr())]);
    // As many as get in keep their places for as long as they can, by a byte now and then. Others
    // are refused.
    let hello = [0x16, 3, 1, 0x20, 0, 1, 0, 0x1f, 0xfc, 3, 3];
    let mut crowd: Vec<(TcpStream, usize)> = Vec::new();
    let until = now().plus_ms(GREETING_MS - 300);
    while now() < until {
        crowd.extend((0..10).map(|_| (stranger(a.addr()), 0)));
        crowd.retain_mut(|(stream, at)| {
            *at += 1;
            stream.write_all(&hello[(*at - 1) % hello.len()..][..1]).is_ok()
        });
        for_ms(&mut [&mut a, &mut b], 200);
    }
    b.know(&[(1, a.addr())]);
    run(&mut [&mut a, &mut b], "the way from a peer", |nodes| nodes[1].transport.is_up(out(1)));
    // Many more than there is room for peers were there at that moment.
    crowd.retain_mut(|(stream, _)| {
        stream.set_nonblocking(true).expect("a socket");
        stream.read(&mut [0; 8]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    assert!(crowd.len() > GREETINGS_MAX, "only {} strangers are there", crowd.len());
    up(&mut a, &mut b);
    // One that drips bytes of a handshake is not kept for longer than one that says nothing.
    let mut slow = stranger(a.addr());
    slow.set_nonblocking(true).expect("a socket");
    let (mut is_over, mut at) = (false, 0);
    let begun = now();
    run(&mut [&mut a, &mut b], "the end of the slow one", |_| {
        at += 1;
        if slow.write_all(&hello[(at - 1) % hello.len()..][..1]).is_err()
            || matches!(slow.read(&mut [0; 8]), Ok(0))
        {
            is_over = true;
        }
        std::thread::sleep(Duration::from_millis(300));
        is_over
    });
    assert!(now().ms_since(begun) < 10_000);
    for (stream, _) in &mut crowd {
        run(&mut [&mut a, &mut b], "the end of the crowd", |_| match stream.read(&mut [0; 8]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        });
    }
    assert!(a.transport.is_up(out(2)) && a.transport.is_up(back(2)) && a.downs().is_empty());
}
