//! Messages between agents.
//!
//! Guarantees
//! - A message arrives whole or not at all. It may be lost, and later ones may then still arrive.
//!   Each sender repeats its message until it has had its effect.
//! - Nothing here waits for a peer: each peer has two lanes with a bounded queue, a thread and a
//!   connection each (see `lane.rs`). The lease has a lane of its own, so that neither a snapshot
//!   nor a slow disk delays a heartbeat (R10).
//! - [`FRAME_BYTES_MAX`] bounds what arrives, and memory grows only with bytes that have arrived
//!   (R25).
//! - Every connection is TLS 1.3, and both ends have proven themselves before anything is said (see
//!   `tls.rs`, R23). A lane is open to the node whose certificate the sender shows, and to no other.
//! - A connection starts with a greeting that names the protocol version, the cluster and the
//!   sender. Messages of another cluster are refused, and told once a minute and sender.
//!
//! The sender dials a connection, which carries messages in one direction. So two agents never have
//! to choose between two connections. Questions that want an answer use a connection of their own
//! ([`Transport::call`]). Everything goes through [`Wire`].

mod admission;
mod lane;
mod question;
mod tls;
mod twins;

use crate::level;
use crate::messages::{Call, CallReply, Greeting, LaneKind, LeaseMessage, Proposal, random_u64};
use crate::threads::{lock, read, spawn, write};
use admission::{match_greeting, refuse_question};
use lane::Lane;
use mainstay_control::members::{AGENT_PORT, canonical};
use mainstay_trust::{Expect, Peer};
use mainstay_types::{NodeId, Problem};
pub use question::local_address;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};
pub use tls::Proofs;
use tls::{OneUnproven, TlsWire, Unproven};
use twins::{Holder, Holders};
pub use twins::{Notices, silence_of};

/// Largest frame, its header included, in bytes. A snapshot of the cluster state has to fit.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Version of the frames and messages.
const PROTOCOL_VERSION: u8 = 1;
/// Bytes before a frame's body: its length, the version and the kind.
const HEADER_BYTES: usize = 6;
/// Connections that this agent serves at a time; more are closed at once.
const INBOUND_MAX: usize = 256;
/// Connections that a listener that lasts for a while serves at a time; more are closed at once.
const PROOF_INBOUND_MAX: usize = 16;
/// How often the log tells of a host that does not speak the protocol, and of how many hosts in
/// that time.
const TELL_PAUSE: Duration = Duration::from_secs(60);
const TOLD_MAX: usize = 64;
/// Time in which a node that is no member has to say something.
const STRANGER_SILENCE: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(400);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How often a listener that lasts for a while looks whether it is to end.
const LISTEN_PAUSE: Duration = Duration::from_millis(20);
/// Unacknowledged data breaks a connection after this time. After a healed cut the next message
/// then starts on a new connection at once, instead of waiting for a retransmission that has backed
/// off for seconds.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_millis(1000);

#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    #[error("cannot listen on {address}: {source}")]
    Listen {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("no agent answers at {address}: {source}")]
    Unreachable {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("the agent at {address} cannot be believed: {source}")]
    Unproven {
        address: String,
        #[source]
        source: io::Error,
    },
    #[error("{address} is not an address: give an IP address, or a name, with or without a port")]
    Address { address: String },
}

/// A byte stream between two agents.
trait Wire: Read + Write + Send {
    /// Writes as much as goes without a wait. Returns how many bytes that was.
    ///
    /// # Errors
    /// When the connection is broken.
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Whether bytes that were taken have not been sent. They go before anything else.
    fn is_held(&self) -> bool;
}

/// Tests of lanes need no peer that proves itself.
#[cfg(test)]
impl Wire for TcpStream {
    fn write_now(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match socket2::SockRef::from(&*self).send_with_flags(bytes, flags) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(0)
            }
            written => written,
        }
    }

    fn is_held(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Greeting,
    Raft,
    Lease,
    Propose,
    Call,
    Reply,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Greeting, Self::Raft, Self::Lease, Self::Propose, Self::Call, Self::Reply];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Takes what arrives. Called on the threads of the connections; must not wait.
pub trait Inbound: Send + Sync + 'static {
    /// A message of the Raft core, as protobuf.
    fn raft(&self, from: NodeId, message: Vec<u8>);
    fn lease(&self, from: NodeId, message: LeaseMessage);
    fn propose(&self, from: NodeId, proposal: Proposal);
    /// May wait; runs on the thread of the caller's own connection. `peer` has proven itself.
    fn call(&self, peer: &Peer, call: Call) -> CallReply;
    /// A second process speaks as `node` while the first one, at `holder`, is heard. Its connection
    /// is refused.
    fn twin(&self, node: NodeId, holder: &str, other: &str);
    /// Two processes at one address speak as `node` by turns.
    fn twin_in_place(&self, node: NodeId, address: &str);
    /// Why nothing is taken of a node that says that it is `node` of this cluster, or of an earlier
    /// era of it: the node has left the cluster.
    fn gone(&self, cluster: u64, node: NodeId) -> Option<Problem>;
    /// Why a node with a build of this feature level cannot run in the cluster.
    fn too_old(&self, node: NodeId, level: u32) -> Option<Problem>;
}

/// The sending side towards all peers. Clones share it.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<TransportShared>,
}

struct TransportShared {
    /// Cluster and own node; `None` before this agent is a member.
    identity: RwLock<Option<(u64, NodeId)>>,
    peers: RwLock<BTreeMap<NodeId, PeerLanes>>,
    /// Random per start of this agent.
    run: u64,
    /// Where this agent listens; `None` for all addresses of the machine.
    address: RwLock<Option<SocketAddr>>,
    /// Which process speaks as each of the other nodes.
    holders: Holders,
    /// Feature level that the process of each other node has told.
    levels: Mutex<BTreeMap<NodeId, u32>>,
    /// When the log told last of a host that does not speak the protocol.
    told: Mutex<BTreeMap<IpAddr, Instant>>,
    /// `None` before this agent has a key.
    proofs: RwLock<Option<Proofs>>,
    unproven: Unproven,
}

impl TransportShared {
    fn proofs(&self) -> Option<Proofs> {
        read(&self.proofs).clone()
    }

    /// Where a node is recorded, if this node has its state.
    fn recorded(&self, node: NodeId) -> Option<String> {
        read(&self.peers).get(&node).map(|lanes| lanes.address.clone())
    }

    /// Whether the log is to tell of a host that does not speak the protocol.
    fn is_news(&self, host: IpAddr, now: Instant) -> bool {
        let mut told = lock(&self.told);
        told.retain(|_, at| now.saturating_duration_since(*at) < TELL_PAUSE);
        if told.contains_key(&host) || told.len() >= TOLD_MAX {
            return false;
        }
        told.insert(host, now);
        true
    }
}

/// Words of other agents about a node.
#[derive(Clone, Default, Debug)]
pub struct Known {
    /// The address of another process that is heard as this node.
    pub twin: Option<String>,
    /// Where the node is recorded.
    pub recorded: Vec<String>,
    /// The node has left the cluster.
    pub gone: Option<Problem>,
    /// The cluster uses a higher feature level than this build has.
    pub too_old: Option<Problem>,
}

struct PeerLanes {
    address: String,
    lease: Lane,
    log: Lane,
    connected: Arc<AtomicBool>,
}

/// A complete frame, header included.
type Frame = Vec<u8>;

impl Transport {
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Arc::new(TransportShared {
                identity: RwLock::new(None),
                peers: RwLock::new(BTreeMap::new()),
                run: random_u64(),
                address: RwLock::new(None),
                holders: Holders::default(),
                levels: Mutex::default(),
                told: Mutex::default(),
                proofs: RwLock::new(None),
                unproven: Unproven::default(),
            }),
        }
    }

    /// Serves connections on `address` until the process ends.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn listen(&self, address: &str, inbound: Arc<dyn Inbound>) -> Result<SocketAddr, TransportError> {
        let listener = with_port(address, AGENT_PORT)
            .to_socket_addrs()
            .and_then(|mut found| found.next().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
            .and_then(|address| TcpListener::bind(canonical(address)))
            .map_err(|source| TransportError::Listen { address: address.to_owned(), source })?;
        let bound = listener
            .local_addr()
            .map_err(|source| TransportError::Listen { address: address.to_owned(), source })?;
        *write(&self.shared.address) = Some(bound).filter(|bound| !bound.ip().is_unspecified());
        let shared = self.shared.clone();
        spawn("agent-accept", move || accept_loop(&listener, &shared, &inbound));
        Ok(bound)
    }

    /// Serves connections on an address where an engine will listen later, until the guard is
    /// dropped: so that another node can see that the address leads here.
    ///
    /// # Errors
    /// When the address cannot be bound.
    pub fn listen_for_a_while(
        &self,
        address: SocketAddr,
        inbound: Arc<dyn Inbound>,
    ) -> io::Result<Listening> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (shared, ends) = (self.shared.clone(), Arc::new(AtomicBool::new(false)));
        let (ended, open) = (ends.clone(), Arc::new(AtomicUsize::new(0)));
        let (done, over) = sync_channel::<()>(0);
        spawn("agent-proof", move || {
            // Dropped after the listener, at the end of the thread.
            let _done = done;
            let listener = listener;
            while !ended.load(Ordering::Relaxed) {
                let Ok((stream, from)) = listener.accept() else {
                    thread::sleep(LISTEN_PAUSE);
                    continue;
                };
                if stream.set_nonblocking(false).is_ok() {
                    serve_on_a_thread(stream, from, &shared, &inbound, (&open, PROOF_INBOUND_MAX));
                }
            }
        });
        Ok(Listening { ends, over })
    }

    /// This agent is no member any more.
    pub fn clear_identity(&self) {
        *write(&self.shared.identity) = None;
        self.set_peers(&BTreeMap::new());
    }

    /// Sets what this agent shows and believes from now on. Open connections stay.
    pub fn set_proofs(&self, proofs: Proofs) {
        *write(&self.shared.proofs) = Some(proofs);
    }

    /// Changes what this agent shows and believes. Open connections stay.
    pub fn change_proofs(&self, change: impl FnOnce(&mut Proofs)) {
        if let Some(proofs) = write(&self.shared.proofs).as_mut() {
            change(proofs);
        }
    }

    /// Returns the proofs that this agent shows, and whom it believes.
    #[must_use]
    pub fn proofs(&self) -> Option<Proofs> {
        self.shared.proofs()
    }

    /// Whether each of these nodes runs a build that knows feature levels.
    #[must_use]
    pub fn know_levels(&self, mut nodes: impl Iterator<Item = NodeId>) -> bool {
        let levels = lock(&self.shared.levels);
        nodes.all(|node| levels.get(&node).is_some_and(|level| *level > 0))
    }

    /// Nodes of the cluster send heartbeats this often.
    pub fn set_heartbeat(&self, heartbeat_ms: u64) {
        self.shared.holders.set_heartbeat(heartbeat_ms);
    }

    /// Time without a word after which a process of another node does not count as living.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.shared.holders.silence()
    }

    /// Sets the cluster and the node for greetings. Called once this agent is a member.
    pub fn set_identity(&self, cluster: u64, node: NodeId) {
        *write(&self.shared.identity) = Some((cluster, node));
    }

    /// This node, once it is a member.
    #[must_use]
    pub fn own_node(&self) -> Option<NodeId> {
        read(&self.shared.identity).map(|(_, node)| node)
    }

    /// Cluster and node, once this agent is a member.
    #[must_use]
    pub fn identity(&self) -> Option<(u64, NodeId)> {
        *read(&self.shared.identity)
    }

    /// The agents of all other nodes. Lanes of nodes that left or moved are closed.
    pub fn set_peers(&self, addresses: &BTreeMap<NodeId, String>) {
        let current = |peers: &BTreeMap<NodeId, PeerLanes>| {
            peers.len() == addresses.len()
                && addresses
                    .iter()
                    .all(|(node, address)| peers.get(node).is_some_and(|lanes| lanes.address == *address))
        };
        if current(&read(&self.shared.peers)) {
            return;
        }
        let mut peers = write(&self.shared.peers);
        peers.retain(|node, lanes| addresses.get(node) == Some(&lanes.address));
        for (&node, address) in addresses {
            peers.entry(node).or_insert_with(|| {
                let connected = Arc::new(AtomicBool::new(false));
                PeerLanes {
                    address: address.clone(),
                    lease: self.start_lane(LaneKind::Lease, (node, address), &connected),
                    log: self.start_lane(LaneKind::Log, (node, address), &Arc::default()),
                    connected,
                }
            });
        }
    }

    /// Sends a message of the Raft core. `false`: it was dropped.
    pub fn send_raft(&self, to: NodeId, message: &[u8]) -> bool {
        self.send(to, LaneKind::Log, frame(Kind::Raft, message))
    }

    /// Sends a message of the lease machine. `false`: it was dropped.
    pub fn send_lease(&self, to: NodeId, message: &LeaseMessage) -> bool {
        self.send(to, LaneKind::Lease, json_frame(Kind::Lease, message))
    }

    /// Passes a proposal on to the node that leads. `false`: it was dropped.
    pub fn send_proposal(&self, to: NodeId, proposal: &Proposal) -> bool {
        self.send(to, LaneKind::Log, json_frame(Kind::Propose, proposal))
    }

    /// Whether heartbeats reach `node`: the log lane is opened only when there is something to say.
    #[must_use]
    pub fn is_connected(&self, node: NodeId) -> bool {
        read(&self.shared.peers).get(&node).is_some_and(|lanes| lanes.connected.load(Ordering::Relaxed))
    }

    fn send(&self, to: NodeId, lane: LaneKind, frame: Option<Frame>) -> bool {
        let peers = read(&self.shared.peers);
        let (Some(lanes), Some(frame)) = (peers.get(&to), frame) else {
            return false;
        };
        let lane = match lane {
            LaneKind::Lease => &lanes.lease,
            LaneKind::Log | LaneKind::Call => &lanes.log,
        };
        lane.send(frame)
    }

    fn start_lane(&self, lane: LaneKind, to: (NodeId, &str), connected: &Arc<AtomicBool>) -> Lane {
        let shared = self.shared.clone();
        let (node, address) = (to.0, to.1.to_owned());
        Lane::start(connected.clone(), move || open_lane(lane, (node, &address), &shared))
    }
}

impl Default for Transport {
    fn default() -> Self {
        Self::new()
    }
}

/// See [`Transport::listen_for_a_while`].
pub struct Listening {
    ends: Arc<AtomicBool>,
    over: Receiver<()>,
}

impl Drop for Listening {
    /// Waits until the address is free again.
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // Nothing is ever sent: this ends when the thread does.
        let _ = self.over.recv();
    }
}

fn greeting_of((cluster, node): (u64, NodeId), lane: LaneKind, shared: &TransportShared) -> Greeting {
    let (run, address) = (shared.run, *read(&shared.address));
    Greeting { cluster, node, lane, run, address, level: level::own() }
}

/// `address` with `port` added when it names none.
#[must_use]
pub fn with_port(address: &str, port: u16) -> String {
    if address.parse::<SocketAddr>().is_ok() {
        return address.to_owned();
    }
    if let Ok(ip) = address.parse::<IpAddr>() {
        return SocketAddr::new(ip, port).to_string();
    }
    match address.rsplit_once(':') {
        Some((_, digits)) if digits.parse::<u16>().is_ok() => address.to_owned(),
        _ => format!("{address}:{port}"),
    }
}

fn accept_loop(listener: &TcpListener, shared: &Arc<TransportShared>, inbound: &Arc<dyn Inbound>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, from)) = listener.accept() else {
            // Out of file descriptors or memory: others may be closed meanwhile.
            thread::sleep(RETRY_PAUSE);
            continue;
        };
        serve_on_a_thread(stream, from, shared, inbound, (&open, INBOUND_MAX));
    }
}

/// Serves a connection on a thread of its own, or closes it if `max` are open.
fn serve_on_a_thread(
    stream: TcpStream,
    from: SocketAddr,
    shared: &Arc<TransportShared>,
    inbound: &Arc<dyn Inbound>,
    (open, max): (&Arc<AtomicUsize>, usize),
) {
    let Some(unproven) = shared.unproven.take(from.ip()) else { return };
    if open.load(Ordering::Relaxed) >= max || tune(&stream).is_err() {
        return;
    }
    open.fetch_add(1, Ordering::Relaxed);
    let (shared, inbound, open) = (shared.clone(), inbound.clone(), open.clone());
    spawn("agent-inbound", move || {
        if let Err(error) = prove(stream, from, unproven, &shared, &*inbound)
            && error.kind() == io::ErrorKind::InvalidData
            && shared.is_news(from.ip(), Instant::now())
        {
            tracing::warn!(%from, %error, "closed a connection whose other end is not believed");
        }
        open.fetch_sub(1, Ordering::Relaxed);
    });
}

/// Has the other end of a new connection prove itself, and serves it.
fn prove(
    stream: TcpStream,
    from: SocketAddr,
    unproven: OneUnproven,
    shared: &TransportShared,
    inbound: &dyn Inbound,
) -> io::Result<()> {
    let Some(proofs) = shared.proofs() else { return Err(io::ErrorKind::ConnectionRefused.into()) };
    let (mut wire, peer) = TlsWire::accept(stream, &proofs)?;
    // A peer that is no member keeps its place among the unproven ones, and only for a short time.
    let _unproven = match peer {
        Peer::Member { .. } => {
            drop(unproven);
            None
        }
        Peer::Expired { .. } | Peer::Left { .. } | Peer::Newcomer { .. } => {
            wire.set_read_timeout(Some(STRANGER_SILENCE))?;
            Some(unproven)
        }
    };
    serve(&mut wire, from, &peer, shared, inbound)
}

fn serve(
    wire: &mut dyn Wire,
    from: SocketAddr,
    peer: &Peer,
    shared: &TransportShared,
    inbound: &dyn Inbound,
) -> io::Result<()> {
    let (kind, body) = read_frame(wire)?;
    if kind != Kind::Greeting {
        return Err(invalid("a greeting was expected"));
    }
    let greeting: Greeting = parse(&body)?;
    match_greeting(peer, &greeting)?;
    let own = read(&shared.identity).map(|(cluster, _)| cluster);
    let stranger = own != Some(greeting.cluster);
    if own.is_none() && greeting.lane != LaneKind::Call {
        // This agent is starting, or its node is joining. The sender tries again.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let gone = inbound.gone(greeting.cluster, greeting.node);
    if stranger && greeting.lane != LaneKind::Call {
        return Err(invalid("the sender belongs to another cluster"));
    }
    if gone.is_some() && greeting.lane != LaneKind::Call {
        // No vote, no heartbeat and no proposal of it reaches anything. It asks why.
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    let address =
        greeting.address.map_or_else(|| from.ip().to_canonical().to_string(), |address| address.to_string());
    let speaker = Holder::new(greeting.run, &address);
    let recorded = shared.recorded(greeting.node);
    let recorded = recorded.as_deref();
    if shared.holders.is_back(greeting.node, greeting.run, &address) {
        inbound.twin_in_place(greeting.node, &address);
    }
    let _open = match shared.holders.open(greeting.node, speaker, greeting.lane, recorded) {
        Ok(open) => open,
        Err(holder) => {
            inbound.twin(greeting.node, &holder, &address);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
    };
    if greeting.lane != LaneKind::Call {
        lock(&shared.levels).insert(greeting.node, greeting.level);
    }
    loop {
        let (kind, body) = read_frame(wire)?;
        if greeting.lane != LaneKind::Call && !shared.holders.speaks(greeting.node, greeting.run) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        shared.holders.heard(greeting.node, greeting.run);
        match (greeting.lane, kind) {
            (LaneKind::Log, Kind::Raft) => inbound.raft(greeting.node, body),
            (LaneKind::Lease, Kind::Lease) => inbound.lease(greeting.node, parse(&body)?),
            (LaneKind::Log, Kind::Propose) => inbound.propose(greeting.node, parse(&body)?),
            (LaneKind::Call, Kind::Call) => {
                let question: Call = parse(&body)?;
                let reply = match question {
                    _ if gone.is_some() && !question.is_for_strangers() => {
                        gone.clone().map_or_else(CallReply::other_cluster, CallReply::Error)
                    }
                    _ if stranger && !question.is_for_strangers() => CallReply::other_cluster(),
                    Call::AmI if inbound.too_old(greeting.node, greeting.level).is_some() => inbound
                        .too_old(greeting.node, greeting.level)
                        .map_or_else(CallReply::other_cluster, CallReply::Error),
                    question if let Some(refusal) = refuse_question(peer, &question) => refusal,
                    Call::AmI => {
                        let other = shared.holders.other(greeting.node, greeting.run, &address, recorded);
                        if let Some(holder) = &other {
                            inbound.twin(greeting.node, holder, &address);
                        }
                        CallReply::Other { address: other, recorded: recorded.map(str::to_owned) }
                    }
                    question => inbound.call(peer, question),
                };
                write_json(wire, Kind::Reply, &reply)?;
            }
            _ => return Err(invalid("a message came on the wrong lane")),
        }
    }
}

fn open_lane(
    lane: LaneKind,
    (node, address): (NodeId, &str),
    shared: &TransportShared,
) -> Option<Box<dyn Wire>> {
    let (identity, proofs) = ((*read(&shared.identity))?, shared.proofs()?);
    let stream = dial(address).ok()?;
    let (mut wire, _) = TlsWire::connect(stream, &proofs, Expect::Node(node))
        .inspect_err(|error| tell_of_peer(address, error, shared))
        .ok()?;
    write_json(&mut wire, Kind::Greeting, &greeting_of(identity, lane, shared)).ok()?;
    Some(Box::new(wire))
}

/// Tells, now and then, why no lane to a peer opens.
fn tell_of_peer(address: &str, error: &io::Error, shared: &TransportShared) {
    let host = address.parse::<SocketAddr>().ok().map(|address| address.ip());
    if error.kind() == io::ErrorKind::InvalidData
        && host.is_some_and(|host| shared.is_news(host, Instant::now()))
    {
        tracing::warn!(address, %error, "a node is not believed");
    }
}

fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in with_port(address, AGENT_PORT).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(stream) => {
                tune(&stream)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(UNACKNOWLEDGED_MAX * 2))?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    // Finds peers that vanished while nothing is being sent.
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(2))
        .with_interval(Duration::from_secs(1))
        .with_retries(2);
    socket.set_tcp_keepalive(&keepalive)
}

fn frame(kind: Kind, body: &[u8]) -> Option<Frame> {
    let length = HEADER_BYTES + body.len();
    if length > FRAME_BYTES_MAX {
        tracing::error!(?kind, length, "a message is larger than a frame may be and is not sent");
        return None;
    }
    let mut frame = Vec::with_capacity(length);
    frame.extend_from_slice(&u32::try_from(length).ok()?.to_le_bytes());
    frame.push(PROTOCOL_VERSION);
    frame.push(kind as u8);
    frame.extend_from_slice(body);
    Some(frame)
}

fn json_frame(kind: Kind, message: &impl Serialize) -> Option<Frame> {
    frame(kind, &serde_json::to_vec(message).ok()?)
}

fn write_json(wire: &mut (impl Write + ?Sized), kind: Kind, message: &impl Serialize) -> io::Result<()> {
    let frame = json_frame(kind, message).ok_or_else(|| invalid("a message is too large"))?;
    wire.write_all(&frame)
}

fn read_frame(wire: &mut (impl Read + ?Sized)) -> io::Result<(Kind, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    wire.read_exact(&mut header)?;
    let [a, b, c, d, version, kind] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if version != PROTOCOL_VERSION {
        return Err(invalid("the peer speaks another version of the protocol"));
    }
    let kind = Kind::from_byte(kind).ok_or_else(|| invalid("unknown kind of message"))?;
    if !(HEADER_BYTES..=FRAME_BYTES_MAX).contains(&length) {
        return Err(invalid("a frame of an impossible length"));
    }
    let expected = length - HEADER_BYTES;
    let mut body = Vec::new();
    wire.take(expected as u64).read_to_end(&mut body)?;
    if body.len() < expected {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((kind, body))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> io::Result<T> {
    serde_json::from_slice(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Mute;

    impl Inbound for Mute {
        fn raft(&self, _: NodeId, _: Vec<u8>) {}
        fn lease(&self, _: NodeId, _: LeaseMessage) {}
        fn propose(&self, _: NodeId, _: Proposal) {}
        fn call(&self, _: &Peer, _: Call) -> CallReply {
            CallReply::Withdrawn
        }
        fn twin(&self, _: NodeId, _: &str, _: &str) {}
        fn twin_in_place(&self, _: NodeId, _: &str) {}
        fn gone(&self, _: u64, _: NodeId) -> Option<Problem> {
            None
        }
        fn too_old(&self, _: NodeId, _: u32) -> Option<Problem> {
            None
        }
    }

    #[test]
    fn the_log_tells_of_a_stranger_once_a_minute_and_of_a_few_only() {
        let transport = Transport::new();
        let (shared, start) = (&transport.shared, Instant::now());
        let host = |last: u8| IpAddr::from([10, 0, 0, last]);
        assert!(shared.is_news(host(1), start) && shared.is_news(host(2), start));
        assert!(!shared.is_news(host(1), start + TELL_PAUSE / 2));
        assert!(shared.is_news(host(1), start + TELL_PAUSE));
        let told = (0..=u8::MAX).filter(|last| shared.is_news(host(*last), start + TELL_PAUSE * 3)).count();
        assert_eq!(told, TOLD_MAX);
    }

    #[test]
    fn a_listener_for_a_while_closes_connections_beyond_its_limit() {
        let free = TcpListener::bind("127.0.0.7:0").unwrap().local_addr().unwrap();
        let (transport, key) = (Transport::new(), mainstay_trust::Key::generate().unwrap());
        let own = mainstay_trust::Credentials::newcomer(&key).unwrap();
        transport.set_proofs(Proofs { own, trust: Arc::default(), ahead: Vec::new() });
        let _listening = transport.listen_for_a_while(free, Arc::new(Mute)).unwrap();
        let idle: Vec<TcpStream> =
            (0..PROOF_INBOUND_MAX).map(|_| TcpStream::connect(free).unwrap()).collect();
        let mut further = TcpStream::connect(free).unwrap();
        further.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(further.read(&mut [0]).ok(), Some(0), "it is closed");
        drop(idle);
    }

    #[test]
    fn ports_are_added_where_they_are_missing() {
        assert_eq!(with_port("10.0.0.1", 7400), "10.0.0.1:7400");
        assert_eq!(with_port("10.0.0.1:9", 7400), "10.0.0.1:9");
        assert_eq!(with_port("fd00::1", 7400), "[fd00::1]:7400");
        assert_eq!(with_port("[fd00::1]:9", 7400), "[fd00::1]:9");
        assert_eq!(with_port("host", 7400), "host:7400");
        assert_eq!(with_port("host:9", 7400), "host:9");
    }

    #[test]
    fn frames_from_outside_are_bounded_and_checked() {
        let good = frame(Kind::Raft, b"abc").unwrap();
        assert_eq!(read_frame(&mut good.as_slice()).unwrap(), (Kind::Raft, b"abc".to_vec()));
        let kind_of = |bytes: &[u8]| read_frame(&mut &*bytes).unwrap_err().kind();
        assert_eq!(kind_of(&good[..good.len() - 1]), io::ErrorKind::UnexpectedEof);
        let mut bad = good.clone();
        bad[0..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(kind_of(&bad), io::ErrorKind::InvalidData);
        bad[0..4].copy_from_slice(&5_u32.to_le_bytes());
        assert_eq!(kind_of(&bad), io::ErrorKind::InvalidData);
        let mut other = good.clone();
        other[4] = 9;
        assert_eq!(kind_of(&other), io::ErrorKind::InvalidData);
        let mut unknown = good;
        unknown[5] = 200;
        assert_eq!(kind_of(&unknown), io::ErrorKind::InvalidData);
    }
}
