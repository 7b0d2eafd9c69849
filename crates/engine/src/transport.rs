//! Messages between engines over TCP.
//!
//! Guarantees:
//! - Messages of a channel arrive in order, each exactly once, or the channel goes down.
//! - No message is delivered before both ends have proven by TLS 1.3 which member they are (R23),
//!   have said [`Message::Hello`], and have agreed on cluster and identities. Without identities of
//!   its own this node connects to nobody and lets nobody in.
//! - Frames are encrypted, unless both nodes have been told otherwise.
//! - Connections that have proven nothing are limited in number and rate, and take no place of one
//!   that comes from the address of a peer.
//! - Damaged or foreign bytes end the connection with a stated reason and never panic (R25).
//! - A peer from which nothing came for [`SILENCE_MS`] is down.
//! - The queue of each connection is bounded (R18).
//!
//! A node pair has two connections, one opened by each side. A primary speaks on the connection
//! that its own node opened; the replica answers on that same connection. A [`Channel`] therefore
//! names a peer and the side that opened it. A replica core means only channels with
//! `initiated_by_us` by a peer that is up or down.
//!
//! Call order in a turn of the shard: [`Transport::handle_completion`] for each completion, then
//! [`Transport::tick`], [`Transport::poll`] until it is empty, and last [`Transport::flush`], which
//! turns all that was queued on a connection into one gathered send. The tick comes after the
//! completions so that a shard that was held up itself does not take its peers for silent.

mod assembler;
mod connection;
mod stream;

use crate::buffer::BufferPool;
use crate::ring::{Completion, Fd, Op, OpHandle, Owner, Ring};
use connection::{Connection, State, TAG_BITS, TAG_CONNECT, TAG_RECEIVE, TAG_SEND, own, system};
use mainstay_codec::{Envelope, Message};
use mainstay_trust::SessionError;
use mainstay_types::{NodeId, Time};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use stream::Stream;
use thiserror::Error;

pub use connection::{GREETING_MS, HELLO_MS, PING_MS, SEND_QUEUE_BYTES_MAX, SILENCE_MS};
pub use stream::Identities;

/// Shortest and longest pause between two attempts to connect, in milliseconds.
pub const RETRY_MS_MIN: u64 = 50;
pub const RETRY_MS_MAX: u64 = 1000;
/// How long an attempt to connect may take, in milliseconds.
pub const CONNECT_MS: u64 = 1000;
/// Most accepted connections from addresses of peers that have not said hello yet; more are
/// refused. Connections from other addresses take none of these places.
pub const GREETINGS_MAX: usize = 32;
/// How many connections from addresses of no peer may begin a handshake, each second. The time for
/// a greeting, [`GREETING_MS`], bounds how many there are.
pub const HANDSHAKES_PER_S: u32 = 20;
/// Pause after a failed accept (no descriptors left), in milliseconds.
const ACCEPT_RETRY_MS: u64 = 100;
const BACKLOG: i32 = 128;

/// One direction between this node and a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Channel {
    pub peer: NodeId,
    /// Whether this node opened the connection (and speaks on it as primary) or the peer did (and
    /// this node answers on it as replica).
    pub initiated_by_us: bool,
}

/// An event on one of the channels. [`Transport::poll`] gives them in order.
#[derive(Debug)]
pub enum TransportEvent {
    PeerUp { channel: Channel },
    PeerDown { channel: Channel, reason: DownReason },
    Message { channel: Channel, envelope: Envelope },
}

/// Why a connection ended or did not come up.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum DownReason {
    #[error("the peer closed the connection")]
    Closed,
    #[error("nothing was received for {SILENCE_MS} ms")]
    Silent,
    #[error("{what}: {error}")]
    System { what: &'static str, error: String },
    #[error("received bytes that are no message: {0}")]
    Garbled(mainstay_codec::DecodeError),
    #[error("the peer belongs to cluster {theirs:#x}, this node to {ours:#x}")]
    OtherCluster { ours: u64, theirs: u64 },
    #[error("the peer says it is {says}, expected was {expected}")]
    OtherNode { says: NodeId, expected: NodeId },
    #[error("the peer wants to talk to {wants}, this is {this}")]
    NotMe { wants: NodeId, this: NodeId },
    #[error("{0} is not a known peer of this node")]
    Stranger(NodeId),
    #[error("the peer did not say hello first")]
    NoHello,
    #[error("the peer said hello twice")]
    HelloTwice,
    #[error("no answer to the connection request for {CONNECT_MS} ms")]
    ConnectTimeout,
    #[error("the send queue exceeded {SEND_QUEUE_BYTES_MAX} bytes")]
    Overflow,
    #[error("a newer connection of the same peer took its place")]
    Replaced,
    #[error("the peer was removed or its address changed")]
    Removed,
    #[error("this engine has no certificate yet; its agent states it")]
    NoIdentities,
    #[error("a session cannot be made: {error}")]
    NoSession { error: String },
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the peer says it is {says}, and has proven that it is {proven}")]
    NotProven { says: NodeId, proven: NodeId },
    #[error("payloads are to be encrypted from now on")]
    ToBeEncrypted,
    #[error("the record has this node as a member no longer")]
    NoMember,
}

/// Why a message was not queued.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum SendError {
    #[error("the channel is down")]
    Down,
    #[error("the send queue is full; the connection has been dropped")]
    Overflow,
}

/// A transport could not be made.
#[derive(Debug, Error)]
#[error("cannot listen on {addr}")]
pub struct ListenError {
    pub addr: SocketAddr,
    #[source]
    pub source: io::Error,
}

/// A peer's connections, for status output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    pub node: NodeId,
    pub addr: SocketAddr,
    /// The connection that this node opened is up.
    pub outgoing: bool,
    /// The connection that the peer opened is up.
    pub incoming: bool,
    /// Bytes waiting to be sent on both.
    pub queued_bytes: usize,
    /// Payloads on one of the two are not encrypted.
    pub is_clear: bool,
    /// Why the newest attempt of this node to connect failed or its connection ended.
    pub last_error: Option<DownReason>,
}

struct Peer {
    addr: SocketAddr,
    /// The connection that this node opened, from the first attempt on.
    outgoing: Option<u64>,
    /// The connection that the peer opened, once it has said hello.
    incoming: Option<u64>,
    /// Failed attempts since the last hello.
    failures: u32,
    retry_at: Time,
    last_error: Option<DownReason>,
}

/// The connections of one shard. See the top of this file for the call order.
pub struct Transport {
    pool: BufferPool,
    cluster: u64,
    node: NodeId,
    listener: Fd,
    local_addr: SocketAddr,
    /// When to accept again; `None` while an accept is in flight.
    accept_at: Option<Time>,
    /// `None` before the agent has stated them.
    identities: Option<Identities>,
    /// Handshakes with foreign addresses that may still begin in the second that began then.
    handshakes: (Time, u32),
    peers: BTreeMap<NodeId, Peer>,
    connections: BTreeMap<u64, Connection>,
    /// Ids of connections are never used again, so that late completions find nothing.
    next_id: u64,
    events: VecDeque<TransportEvent>,
    /// Attempts to connect that were given up and must be told so.
    cancels: Vec<OpHandle>,
    /// Time that the newest call brought.
    now: Time,
    /// Kept to be filled again.
    received: Vec<Envelope>,
}

impl Transport {
    /// Listens on `addr` (port 0: any free port, see [`local_addr`](Self::local_addr)). No peer is
    /// let in before [`set_identities`](Self::set_identities) and [`set_peers`](Self::set_peers).
    pub fn new(pool: BufferPool, cluster: u64, node: NodeId, addr: SocketAddr) -> Result<Self, ListenError> {
        let listen = || -> io::Result<(Fd, SocketAddr)> {
            let socket = Socket::new(Domain::for_address(addr), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
            socket.set_reuse_address(true)?;
            socket.bind(&addr.into())?;
            socket.listen(BACKLOG)?;
            let local = socket.local_addr()?.as_socket().unwrap_or(addr);
            Ok((Arc::new(OwnedFd::from(socket)), local))
        };
        let (listener, local_addr) = listen().map_err(|source| ListenError { addr, source })?;
        Ok(Self {
            pool,
            cluster,
            node,
            listener,
            local_addr,
            accept_at: Some(Time(0)),
            identities: None,
            handshakes: (Time(0), HANDSHAKES_PER_S),
            peers: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_id: 1,
            events: VecDeque::new(),
            cancels: Vec::new(),
            now: Time(0),
            received: Vec::new(),
        })
    }

    /// The address that peers can connect to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// States what this node shows and believes, for new connections. Open ones stay, except for
    /// those with clear payloads if these are allowed no longer, and those of nodes that are
    /// members no longer.
    pub fn set_identities(&mut self, identities: Identities) {
        let faults = self.connections.iter().map(|(id, known)| (*id, known.fault(&identities)));
        let ended: Vec<_> = faults.filter_map(|(id, fault)| Some((id, fault?))).collect();
        for (id, reason) in ended {
            self.close(id, reason);
        }
        if self.identities.replace(identities).is_none() {
            for peer in self.peers.values_mut().filter(|peer| peer.outgoing.is_none()) {
                (peer.failures, peer.retry_at) = (0, self.now);
            }
        }
    }

    /// States the whole set of peers. Connections to nodes that are no longer in it, or whose
    /// address has changed, end; new ones are opened with the next [`tick`](Self::tick).
    pub fn set_peers(&mut self, addrs: &BTreeMap<NodeId, SocketAddr>) {
        let gone: Vec<_> = self
            .peers
            .iter()
            .filter(|(node, peer)| addrs.get(node) != Some(&peer.addr))
            .map(|(node, peer)| (*node, peer.outgoing, peer.incoming.filter(|_| !addrs.contains_key(node))))
            .collect();
        for (node, outgoing, incoming) in gone {
            for id in [outgoing, incoming].into_iter().flatten() {
                self.close(id, DownReason::Removed);
            }
            if let Some(addr) = addrs.get(&node) {
                let peer = self.peers.get_mut(&node).expect("listed above");
                *peer = Peer { incoming: peer.incoming, ..Peer::new(*addr) };
            } else {
                self.peers.remove(&node);
            }
        }
        for (node, addr) in addrs.iter().filter(|(node, _)| **node != self.node) {
            self.peers.entry(*node).or_insert_with(|| Peer::new(*addr));
        }
    }

    /// Queues a message. It leaves with the next [`flush`](Self::flush).
    pub fn send(&mut self, channel: Channel, envelope: &Envelope) -> Result<(), SendError> {
        let id = self.id_of(channel).ok_or(SendError::Down)?;
        let connection = self.connections.get_mut(&id).ok_or(SendError::Down)?;
        connection.queue(envelope).map_err(|reason| {
            self.close(id, reason);
            SendError::Overflow
        })
    }

    /// Bytes waiting to be sent on a channel; 0 when it is down.
    #[must_use]
    pub fn queued_bytes(&self, channel: Channel) -> usize {
        self.id_of(channel).and_then(|id| self.connections.get(&id)).map_or(0, Connection::queued_bytes)
    }

    /// Whether messages can be sent on a channel.
    #[must_use]
    pub fn is_up(&self, channel: Channel) -> bool {
        self.id_of(channel).is_some()
    }

    /// All peers, for status output.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerStatus> {
        let status = |(node, peer): (&NodeId, &Peer)| {
            let channel = |initiated_by_us| Channel { peer: *node, initiated_by_us };
            PeerStatus {
                node: *node,
                addr: peer.addr,
                outgoing: self.is_up(channel(true)),
                incoming: self.is_up(channel(false)),
                queued_bytes: self.queued_bytes(channel(true)) + self.queued_bytes(channel(false)),
                is_clear: [peer.outgoing, peer.incoming]
                    .into_iter()
                    .flatten()
                    .any(|id| self.connections.get(&id).is_some_and(Connection::is_clear)),
                last_error: peer.last_error.clone(),
            }
        };
        self.peers.iter().map(status).collect()
    }

    /// Takes the next event, in order; `None` after the last one.
    pub fn poll(&mut self) -> Option<TransportEvent> {
        self.events.pop_front()
    }

    /// When [`tick`](Self::tick) or [`poll`](Self::poll) has something to do next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        // A send that overflowed its queue has left an event outside of any completion.
        if !self.events.is_empty() {
            return Some(self.now);
        }
        let retries = self.peers.values().filter(|peer| peer.outgoing.is_none()).map(|peer| peer.retry_at);
        let connections = self.connections.values().map(Connection::deadline);
        retries.chain(connections).chain(self.accept_at).min()
    }

    /// Does what is due: accepts, connects, pings, and gives up on the silent.
    pub fn tick(&mut self, ring: &mut Ring, now: Time) {
        self.now = now;
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            ring.submit(
                Owner::Transport,
                0,
                Op::Accept { listener: Fd::clone(&self.listener), accepted: None },
            );
        }
        let due: Vec<_> =
            self.connections.iter().filter(|(_, c)| c.deadline() <= now).map(|(id, _)| *id).collect();
        if !due.is_empty() {
            for id in due {
                self.with(id, |connection| connection.tick(now));
            }
            for id in self.connections.keys().copied().collect::<Vec<_>>() {
                self.with(id, |connection| connection.ping_too(now));
            }
        }
        let due = self.peers.iter().filter(|(_, peer)| peer.outgoing.is_none() && peer.retry_at <= now);
        for (node, addr) in due.map(|(node, peer)| (*node, peer.addr)).collect::<Vec<_>>() {
            self.connect(ring, node, addr);
        }
    }

    /// Sends what is queued; one gathered send per connection.
    pub fn flush(&mut self, ring: &mut Ring) {
        for attempt in self.cancels.drain(..) {
            ring.cancel(attempt);
        }
        let now = self.now;
        let mut ended = Vec::new();
        for (&id, connection) in &mut self.connections {
            if let Err(reason) = connection.flush(ring, id, now) {
                ended.push((id, reason));
            }
        }
        for (id, reason) in ended {
            self.close(id, reason);
        }
    }

    fn id_of(&self, channel: Channel) -> Option<u64> {
        let peer = self.peers.get(&channel.peer)?;
        let id = if channel.initiated_by_us { peer.outgoing? } else { peer.incoming? };
        matches!(self.connections.get(&id)?.state, State::Up { .. }).then_some(id)
    }
}

/// The rest of the life of a connection: made, greeted, used, ended.
impl Transport {
    /// Takes a completion whose owner is [`Owner::Transport`].
    pub fn handle_completion(&mut self, ring: &mut Ring, now: Time, completion: Completion) {
        self.now = now;
        let id = completion.tag >> TAG_BITS;
        match (completion.op, completion.tag & ((1 << TAG_BITS) - 1)) {
            (Op::Accept { accepted, .. }, _) => self.accepted(ring, completion.result, accepted),
            (Op::Connect { .. }, TAG_CONNECT) => self.connected(ring, id, completion.result),
            (Op::Send { pieces, .. }, TAG_SEND) => {
                self.with(id, |connection| connection.sent(ring, id, completion.result, pieces));
                let done = |c: &Connection| c.state == State::Refused && c.is_drained();
                if self.connections.get(&id).is_some_and(done) {
                    self.close(id, DownReason::Closed);
                }
            }
            (Op::Receive { buffer, whole, .. }, TAG_RECEIVE) => {
                let mut received = std::mem::take(&mut self.received);
                let mut end = Ok(());
                if let Some(connection) = self.connections.get_mut(&id) {
                    end = connection.received(now, completion.result, buffer, whole, &mut received);
                }
                for envelope in received.drain(..) {
                    self.message(id, envelope);
                }
                self.received = received;
                self.with(id, |connection| {
                    end?;
                    connection.receive(ring, id);
                    Ok(())
                });
            }
            (op, tag) => unreachable!("{op:?} is never submitted with tag {tag}"),
        }
    }

    /// Does something with a connection that still exists, and ends it if that fails.
    fn with(&mut self, id: u64, what: impl FnOnce(&mut Connection) -> Result<(), DownReason>) {
        if let Some(Err(reason)) = self.connections.get_mut(&id).map(what) {
            self.close(id, reason);
        }
    }

    fn add(&mut self, state: impl FnOnce(u64) -> State, socket: Fd, stream: Stream) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.connections.insert(id, Connection::new(state(id), socket, stream, &self.pool, self.now));
        id
    }

    /// Begins a session; see [`Stream::new`].
    fn session(&self, to: Option<NodeId>) -> Result<Stream, DownReason> {
        Stream::new(self.identities.as_ref().ok_or(DownReason::NoIdentities)?, to)
    }

    fn connect(&mut self, ring: &mut Ring, node: NodeId, addr: SocketAddr) {
        let stream = match self.session(Some(node)) {
            Ok(stream) => stream,
            Err(reason) => return self.failed(node, reason),
        };
        // The socket stays blocking: that is how io_uring knows to wait itself instead of answering
        // EAGAIN.
        let socket = Socket::new(Domain::for_address(addr), Type::STREAM.cloexec(), Some(Protocol::TCP))
            .map(|socket| Fd::new(socket.into()))
            .and_then(|socket| Connection::configure(&socket).map(|()| socket));
        let socket = match socket {
            Ok(socket) => socket,
            Err(error) => return self.failed(node, system("making a socket", &error)),
        };
        let connect = Op::Connect { socket: Fd::clone(&socket), to: Box::new(addr.into()) };
        let state = |id| {
            let attempt = ring.submit(Owner::Transport, id << TAG_BITS | TAG_CONNECT, connect);
            State::Connecting { peer: node, attempt }
        };
        let id = self.add(state, socket, stream);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.outgoing = Some(id);
        }
    }

    fn connected(&mut self, ring: &mut Ring, id: u64, result: io::Result<u32>) {
        let (cluster, node, now) = (self.cluster, self.node, self.now);
        self.with(id, |connection| {
            let State::Connecting { peer, .. } = connection.state else {
                unreachable!("one attempt per connection")
            };
            // The attempt has ended, so there is nothing left to cancel.
            connection.connected(peer, now);
            result.map_err(|error| system("connecting", &error))?;
            connection.queue(&own(Message::Hello { cluster, node, to: peer }))?;
            connection.receive(ring, id);
            Ok(())
        });
    }

    fn accepted(&mut self, ring: &mut Ring, result: io::Result<u32>, accepted: Option<OwnedFd>) {
        let error = match (result, accepted) {
            (Ok(_), Some(socket)) => {
                self.accept_at = Some(self.now);
                return self.greet(ring, Arc::new(socket));
            }
            (Ok(_), None) => unreachable!("an accept that succeeds has a socket"),
            (Err(error), _) => error,
        };
        tracing::warn!(%error, "cannot accept a connection; trying again in {ACCEPT_RETRY_MS} ms");
        self.accept_at = Some(self.now.plus_ms(ACCEPT_RETRY_MS));
    }

    fn greet(&mut self, ring: &mut Ring, socket: Fd) {
        let from = SockRef::from(&*socket).peer_addr().ok().and_then(|addr| addr.as_socket());
        let is_peers = |addr: SocketAddr| self.peers.values().any(|peer| peer.addr.ip() == addr.ip());
        let is_foreign = !from.is_some_and(is_peers);
        if !self.may_greet(is_foreign) {
            return;
        }
        if let Err(error) = Connection::configure(&socket) {
            tracing::warn!(%error, "cannot configure an accepted connection");
            return;
        }
        let stream = match self.session(None) {
            Ok(stream) => stream,
            Err(reason) => return tracing::debug!(%reason, "refused a connection"),
        };
        let id = self.add(|_| State::Greeting { peer: None }, socket, stream);
        self.with(id, |connection| {
            connection.is_foreign = is_foreign;
            connection.receive(ring, id);
            Ok(())
        });
    }

    /// Whether one more connection may begin a handshake.
    fn may_greet(&mut self, is_foreign: bool) -> bool {
        if !is_foreign {
            let waits = |c: &&Connection| !c.is_foreign && matches!(c.state, State::Greeting { peer: None });
            let is_room = self.connections.values().filter(waits).count() < GREETINGS_MAX;
            if !is_room {
                tracing::warn!("refused a connection: {GREETINGS_MAX} others have not said hello yet");
            }
            return is_room;
        }
        if self.now.ms_since(self.handshakes.0) >= 1000 {
            self.handshakes = (self.now, HANDSHAKES_PER_S);
        }
        if self.handshakes.1 == 0 {
            tracing::debug!("refused a connection: {HANDSHAKES_PER_S} others began in this second");
            return false;
        }
        self.handshakes.1 -= 1;
        true
    }

    fn message(&mut self, id: u64, envelope: Envelope) {
        // Messages behind the one that ended the connection are of no interest.
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = match (connection.state, &envelope.message) {
            (State::Up { .. }, Message::Ping) => connection.queue(&own(Message::Pong)),
            (State::Up { .. }, Message::Pong) | (State::Refused, _) => Ok(()),
            (State::Up { .. }, Message::Hello { .. }) => Err(DownReason::HelloTwice),
            (State::Up { channel }, _) => {
                self.events.push_back(TransportEvent::Message { channel, envelope });
                Ok(())
            }
            (State::Greeting { peer }, Message::Hello { cluster, node, to }) => {
                self.hello(id, peer, *cluster, *node, *to)
            }
            (State::Greeting { .. }, _) => Err(DownReason::NoHello),
            (State::Connecting { .. }, _) => unreachable!("nothing is received before the connection stands"),
        };
        if let Err(reason) = end {
            self.close(id, reason);
        }
    }

    /// Judges a hello. `expected` is known when this node opened the connection.
    fn hello(
        &mut self,
        id: u64,
        expected: Option<NodeId>,
        cluster: u64,
        node: NodeId,
        to: NodeId,
    ) -> Result<(), DownReason> {
        let fault = if cluster != self.cluster {
            Some(DownReason::OtherCluster { ours: self.cluster, theirs: cluster })
        } else if to != self.node {
            Some(DownReason::NotMe { wants: to, this: self.node })
        } else {
            None
        };
        let connection = self.connections.get_mut(&id).expect("it has just delivered this message");
        let proven = connection.proven().ok_or(DownReason::NoHello)?;
        if proven != node {
            return Err(DownReason::NotProven { says: node, proven });
        }
        // The record may have changed since the handshake began.
        if let Some(reason) = self.identities.as_ref().and_then(|known| connection.fault(known)) {
            return Err(reason);
        }
        let reply = own(Message::Hello { cluster: self.cluster, node: self.node, to: node });
        let Some(expected) = expected else {
            if let Some(reason) = fault {
                // The answer tells the other side what is wrong.
                tracing::warn!(%node, %reason, "refused a connection");
                connection.state = State::Refused;
                return connection.queue(&reply);
            }
            let peer = self.peers.get_mut(&node).ok_or(DownReason::Stranger(node))?;
            let channel = Channel { peer: node, initiated_by_us: false };
            connection.state = State::Up { channel };
            connection.queue(&reply)?;
            if let Some(older) = peer.incoming.replace(id) {
                self.close(older, DownReason::Replaced);
            }
            self.events.push_back(TransportEvent::PeerUp { channel });
            return Ok(());
        };
        if let Some(reason) = fault {
            return Err(reason);
        }
        if node != expected {
            return Err(DownReason::OtherNode { says: node, expected });
        }
        let channel = Channel { peer: node, initiated_by_us: true };
        connection.state = State::Up { channel };
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.failures = 0;
            peer.last_error = None;
        }
        self.events.push_back(TransportEvent::PeerUp { channel });
        Ok(())
    }

    fn close(&mut self, id: u64, reason: DownReason) {
        let Some(connection) = self.connections.remove(&id) else { return };
        match connection.state {
            State::Connecting { peer, attempt } => {
                self.cancels.push(attempt);
                self.failed(peer, reason);
            }
            State::Greeting { peer: Some(peer) } => self.failed(peer, reason),
            State::Greeting { peer: None } => {
                tracing::warn!(%reason, "an accepted connection ended without a hello")
            }
            State::Refused => {}
            State::Up { channel } => {
                self.events.push_back(TransportEvent::PeerDown { channel, reason: reason.clone() });
                if channel.initiated_by_us {
                    self.failed(channel.peer, reason);
                } else if let Some(peer) = self.peers.get_mut(&channel.peer) {
                    tracing::warn!(peer = %channel.peer, %reason, "the connection from the peer ended");
                    peer.incoming = peer.incoming.filter(|incoming| *incoming != id);
                }
            }
        }
        connection.close();
    }

    /// The outgoing connection to `node` ended or did not come up: says so once and tries again
    /// later.
    fn failed(&mut self, node: NodeId, reason: DownReason) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        // Nodes that fail together must not try again together.
        let spread = u64::from(self.node.0.wrapping_mul(31) ^ node.0.wrapping_mul(17)) % RETRY_MS_MIN;
        let pause_ms = (RETRY_MS_MIN << peer.failures.min(16)).min(RETRY_MS_MAX) + spread;
        if peer.last_error.as_ref() != Some(&reason) {
            tracing::warn!(peer = %node, addr = %peer.addr, %reason, "no connection; trying again every {RETRY_MS_MAX} ms");
        }
        peer.outgoing = None;
        peer.failures += 1;
        peer.retry_at = self.now.plus_ms(pause_ms);
        peer.last_error = Some(reason);
    }
}

impl Peer {
    fn new(addr: SocketAddr) -> Self {
        Self { addr, outgoing: None, incoming: None, failures: 0, retry_at: Time(0), last_error: None }
    }
}

impl Drop for Transport {
    /// Ends what is in flight, so that the ring gives its buffers and descriptors back.
    fn drop(&mut self) {
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        for (_, connection) in std::mem::take(&mut self.connections) {
            connection.close();
        }
    }
}
