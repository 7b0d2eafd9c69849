//! Measures the round trip of one append and its acknowledgement between two transports over the
//! loopback device, with and without a durable journal write on the far side. Run with `--release`;
//! arguments: payload bytes, rounds, 1 to poll while processors are idle. Each is measured with
//! encrypted and with clear payloads.

#[path = "../tests/support/identities.rs"]
mod identities;

use bytes::Bytes;
use mainstay_codec::{Batch, EntryKind, Envelope, LocalHeader, Message, NewEntry};
use mainstay_engine::buffer::BufferPool;
use mainstay_engine::disk::{Disk, Layout, NewReplica};
use mainstay_engine::ring::{Owner, Ring, Spin, now};
use mainstay_engine::transport::{Channel, Transport, TransportEvent};
use mainstay_store::{OpId, Output};
use mainstay_trust::{Payloads, Session, SessionError};
use mainstay_types::{Chain, ConfigVersion, Epoch, Incarnation, Index, NodeId, Range, ResourceId, VolumeId};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

const JOURNAL_BYTES: u64 = 64 << 20;

fn envelope(message: Message) -> Envelope {
    let (epoch, version, incarnation) = (Epoch(1), ConfigVersion(1), Incarnation(1));
    Envelope { resource: ResourceId(1), epoch, version, incarnation, message }
}

fn append(index: u64, payload: Bytes) -> Envelope {
    let range = Range { volume: VolumeId(0), offset: 0, len: payload.len() as u64 };
    let entry = NewEntry { kind: EntryKind::Write, range, payload, session: 0, request: 0 };
    let batch = Batch::seal(ResourceId(1), Epoch(1), Index(index), Chain(0), Index(0), vec![entry]);
    envelope(Message::Append(Arc::new(batch)))
}

struct Node {
    ring: Ring,
    transport: Transport,
    disk: Option<Disk>,
    journal_at: u64,
    next_op: u64,
}

impl Node {
    fn new(id: u32, poll: bool, allowed: Payloads, dir: Option<&Path>) -> Self {
        let pool = BufferPool::new(64 << 20);
        let mut ring = Ring::new().expect("a ring");
        if poll {
            ring.set_spin(Spin::while_idle());
        }
        let addr = "127.0.0.1:0".parse().expect("an address");
        let mut transport = Transport::new(pool.clone(), 1, NodeId(id), addr).expect("a port");
        transport.set_identities(identities::identities(id, allowed));
        let disk = dir.map(|dir| {
            let layout = Layout {
                meta_bytes: 4096,
                journal_bytes: JOURNAL_BYTES,
                volumes: vec![4096],
                sums: false,
                preallocate: false,
            };
            let files =
                NewReplica::create(dir, &layout, None, &pool).expect("space").publish().expect("a name");
            Disk::new(1, files, pool)
        });
        Self { ring, transport, disk, journal_at: 0, next_op: 0 }
    }

    fn meet(&mut self, mine: &Sender<SocketAddr>, theirs: &Receiver<SocketAddr>, peer: u32) {
        mine.send(self.transport.local_addr()).expect("the other thread lives");
        let addr = theirs.recv().expect("the other thread lives");
        self.transport.set_peers(&BTreeMap::from([(NodeId(peer), addr)]));
    }

    /// One turn of the loop; answers appends, in the journal first where there is one.
    fn turn(&mut self, acks: &mut Vec<Index>) {
        let mut completions = Vec::new();
        self.transport.flush(&mut self.ring);
        self.ring.turn(self.transport.next_deadline(), &mut completions).expect("a turn");
        for completion in completions {
            if completion.owner == Owner::Transport {
                self.transport.handle_completion(&mut self.ring, now(), completion);
            } else if let Some(disk) = &mut self.disk
                && let Some(done) = disk.handle_completion(&mut self.ring, completion)
            {
                done.result.expect("a good disk");
                self.acknowledge();
            }
        }
        self.transport.tick(&mut self.ring, now());
        while let Some(event) = self.transport.poll() {
            let TransportEvent::Message { envelope, .. } = event else { continue };
            match envelope.message {
                Message::Ack { durable } => acks.push(durable),
                Message::Append(batch) => {
                    let Some(disk) = &mut self.disk else {
                        self.acknowledge();
                        continue;
                    };
                    if self.journal_at + batch.journal_len() > JOURNAL_BYTES {
                        self.journal_at = 0;
                    }
                    let (op, offset) = (OpId(self.next_op), self.journal_at);
                    self.next_op += 1;
                    self.journal_at += batch.journal_len();
                    let parts = vec![(LocalHeader::default(), batch)];
                    disk.submit(&mut self.ring, Output::JournalWrite { op, offset, parts: parts.into() });
                }
                _ => {}
            }
        }
    }

    fn acknowledge(&mut self) {
        let channel = Channel { peer: NodeId(1), initiated_by_us: false };
        self.transport.send(channel, &envelope(Message::Ack { durable: Index(1) })).expect("up");
    }
}

fn measure(
    payloads: Payloads,
    name: &str,
    payload_bytes: usize,
    rounds: usize,
    depth: usize,
    poll: bool,
    dir: Option<&Path>,
) {
    let (to_b, from_a) = channel();
    let (to_a, from_b) = channel();
    let (stop, stopped) = channel::<()>();
    let far_dir = dir.map(Path::to_path_buf);
    let far = std::thread::spawn(move || {
        let mut node = Node::new(2, poll, payloads, far_dir.as_deref());
        node.meet(&to_a, &from_a, 1);
        while stopped.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
            node.turn(&mut Vec::new());
        }
    });
    let mut node = Node::new(1, poll, payloads, None);
    node.meet(&to_b, &from_b, 2);
    let there = Channel { peer: NodeId(2), initiated_by_us: true };
    let mut acks = Vec::new();
    while !node.transport.is_up(there) {
        node.turn(&mut acks);
    }
    let payload = BufferPool::new(0).copy_of(&vec![7; payload_bytes]);
    let mut sent = std::collections::VecDeque::new();
    let mut times = Vec::with_capacity(rounds);
    let begin = Instant::now();
    while times.len() < rounds {
        while sent.len() < depth {
            sent.push_back(Instant::now());
            node.transport.send(there, &append(1, payload.clone())).expect("up");
        }
        node.turn(&mut acks);
        for _ in acks.drain(..) {
            times.push(sent.pop_front().expect("one acknowledgement per append").elapsed());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    println!(
        "{name:<28} {payload_bytes:>7} B  depth {depth:>2}  p50 {:>7.1} us  p99 {:>7.1} us  p99.9 {:>7.1} us  {:>8.0} /s",
        at(0.5),
        at(0.99),
        at(0.999),
        times.len() as f64 / seconds,
    );
    drop(stop);
    far.join().expect("the far side ended well");
}

/// Measures the handshakes of connections, both ends together, without a network.
fn measure_handshakes(count: u32) {
    let (a, b) =
        (identities::identities(1, Payloads::Encrypted), identities::identities(2, Payloads::Encrypted));
    let begin = Instant::now();
    for _ in 0..count {
        let mut client = Session::connect(a.trust.clone(), &a.own, NodeId(2), a.allowed).expect("a session");
        let mut server = Session::accept(b.trust.clone(), &b.own, b.allowed).expect("a session");
        let nowhere: &mut dyn FnMut(&[u8]) -> Result<(), SessionError> = &mut |_| Ok(());
        while !(client.is_open() && server.is_open()) {
            let mut there = client.said().split();
            server.open(&mut there, nowhere).expect("a good peer");
            let mut back = server.said().split();
            client.open(&mut back, nowhere).expect("a good peer");
        }
    }
    println!("handshake, both ends: {:.0} us", begin.elapsed().as_secs_f64() * 1e6 / f64::from(count));
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).map(|a| a.parse().expect("a number")).collect();
    let payload_bytes = numbers.first().copied().unwrap_or(4096);
    let rounds = numbers.get(1).copied().unwrap_or(20_000);
    let poll = numbers.get(2).is_some_and(|poll| *poll > 0);
    measure_handshakes(500);
    let dir = std::env::temp_dir().join(format!("transport-ping-{}", std::process::id()));
    for payloads in [Payloads::Clear, Payloads::Encrypted] {
        println!("{payloads:?}");
        measure(payloads, "network", payload_bytes, rounds, 1, poll, None);
        measure(payloads, "network", payload_bytes, rounds, 32, poll, None);
        let places = [dir.join(format!("{payloads:?}-one")), dir.join(format!("{payloads:?}-two"))];
        measure(payloads, "network + durable journal", payload_bytes, rounds / 10, 1, poll, Some(&places[0]));
        measure(payloads, "network + durable journal", payload_bytes, rounds / 2, 32, poll, Some(&places[1]));
    }
    let _ = std::fs::remove_dir_all(&dir);
}
