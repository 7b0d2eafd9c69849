//! One TCP connection: what it has received so far, what it has to send, and when something last
//! came.

use super::assembler::Assembler;
use super::stream::Stream;
use super::{Channel, DownReason, Identities};
use crate::buffer::{BufMut, BufferPool};
use crate::ring::{Fd, Op, OpHandle, Owner, Ring, advance};
use bytes::{Bytes, BytesMut};
use mainstay_codec::{Envelope, Message, frame};
use mainstay_trust::Payloads;
use mainstay_types::{ConfigVersion, Epoch, Incarnation, NodeId, ResourceId, Time};
use socket2::{SockRef, TcpKeepalive};
use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::time::Duration;

/// Milliseconds after which a connection is pinged on which nothing came, or on which this node
/// said nothing. The second matters where much is received: the other side's pings may wait behind
/// much data, and it must hear something.
pub const PING_MS: u64 = 250;
/// A connection that is to be pinged within this many milliseconds is pinged with another one that
/// is due: one wake-up here for all, and one there for both of a pair.
const PING_EARLY_MS: u64 = PING_MS / 2;
/// Milliseconds after which a connection is lost on which nothing came.
pub const SILENCE_MS: u64 = 1000;
/// How long a side may say nothing before both have said hello, in milliseconds.
pub const HELLO_MS: u64 = 1000;
/// How long the handshake and both hellos may take together, in milliseconds: nobody keeps a
/// connection by a byte now and then.
pub const GREETING_MS: u64 = 3000;
/// Most bytes waiting to be sent on one connection (R18). All resources of a node pair share it;
/// each bounds itself by its window, and looks at the queue before it sends what can wait.
pub const SEND_QUEUE_BYTES_MAX: usize = 256 << 20;
/// How much is received at once when no large payload is expected, in bytes.
const STAGING_BYTES: usize = 64 << 10;
/// Memory for the heads of frames, used again when what was in it has left; more is taken when that
/// is not enough.
const HEADS_BYTES: usize = 16 << 10;
/// Milliseconds without an answer after which the kernel itself gives a connection up.
const USER_TIMEOUT_MS: u64 = 2 * SILENCE_MS;

const _: () = assert!(3 * PING_MS < SILENCE_MS, "a lost ping or two must not end a connection");

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    Connecting {
        peer: NodeId,
        attempt: OpHandle,
    },
    /// Waiting for the peer's hello. `peer` is known when this node opened the connection.
    Greeting {
        peer: Option<NodeId>,
    },
    Up {
        channel: Channel,
    },
    /// Refused: ends when the own hello has left.
    Refused,
}

pub(super) struct Connection {
    pub(super) state: State,
    socket: Fd,
    stream: Stream,
    /// Accepted from an address at which no peer is known to be.
    pub(super) is_foreign: bool,
    assembler: Assembler,
    /// `None` while the kernel has it.
    staging: Option<BufMut>,
    /// Heads of frames that are not among `frames` yet: those of messages without payload go out as
    /// one piece.
    heads: BytesMut,
    frames: VecDeque<Bytes>,
    /// Bytes in `heads` and `frames`.
    frames_bytes: usize,
    /// List for the pieces of the send in flight, kept to be filled again. `None` while the kernel
    /// has it.
    wire: Option<VecDeque<Bytes>>,
    wire_bytes: usize,
    /// When the wait for the peer's hello began.
    greeting_since: Time,
    last_received: Time,
    last_said: Time,
    last_ping: Time,
}

/// Marks which operation of a connection a completion belongs to; the low bits of the ring's tag.
pub(super) const TAG_BITS: u32 = 2;
pub(super) const TAG_CONNECT: u64 = 0;
pub(super) const TAG_RECEIVE: u64 = 1;
pub(super) const TAG_SEND: u64 = 2;

/// A message about the connection and not about a resource.
pub(super) fn own(message: Message) -> Envelope {
    Envelope {
        resource: ResourceId(0),
        epoch: Epoch(0),
        version: ConfigVersion(0),
        incarnation: Incarnation(0),
        message,
    }
}

pub(super) fn system(what: &'static str, error: &io::Error) -> DownReason {
    DownReason::System { what, error: error.to_string() }
}

impl Connection {
    pub(super) fn new(state: State, socket: Fd, stream: Stream, pool: &BufferPool, now: Time) -> Self {
        Self {
            state,
            socket,
            stream,
            is_foreign: false,
            assembler: Assembler::new(pool.clone()),
            staging: Some(pool.get(STAGING_BYTES)),
            heads: BytesMut::with_capacity(HEADS_BYTES),
            frames: VecDeque::new(),
            frames_bytes: 0,
            wire: Some(VecDeque::new()),
            wire_bytes: 0,
            greeting_since: now,
            last_received: now,
            last_said: now,
            last_ping: now,
        }
    }

    /// Sets what every connection needs, whichever side opened it.
    pub(super) fn configure(socket: &Fd) -> io::Result<()> {
        let socket = SockRef::from(&**socket);
        socket.set_tcp_nodelay(true)?;
        let second = Duration::from_secs(1);
        socket.set_tcp_keepalive(
            &TcpKeepalive::new().with_time(second).with_interval(second).with_retries(3),
        )?;
        socket.set_tcp_user_timeout(Some(Duration::from_millis(USER_TIMEOUT_MS)))
    }

    /// Starts the wait for the peer's hello.
    pub(super) fn connected(&mut self, peer: NodeId, now: Time) {
        self.state = State::Greeting { peer: Some(peer) };
        self.greeting_since = now;
        self.last_received = now;
    }

    /// The node at the other end, once it has proven who it is.
    pub(super) fn proven(&self) -> Option<NodeId> {
        self.stream.peer()
    }

    /// The reason why this connection may not go on with these identities, if there is one.
    pub(super) fn fault(&self, identities: &Identities) -> Option<DownReason> {
        if !self.stream.is_believed(&identities.trust) {
            return Some(DownReason::NoMember);
        }
        let may_be_clear = identities.allowed == Payloads::Clear;
        (self.is_clear() && !may_be_clear).then_some(DownReason::ToBeEncrypted)
    }

    /// Whether payloads on this connection are not encrypted.
    pub(super) fn is_clear(&self) -> bool {
        self.stream.is_clear()
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.frames_bytes + self.wire_bytes
    }

    /// Queues a message; refuses when the queue is too long.
    pub(super) fn queue(&mut self, envelope: &Envelope) -> Result<(), DownReason> {
        let before = self.heads.len();
        let payload = frame::encode_head(envelope, &mut self.heads);
        self.frames_bytes += self.heads.len() - before;
        if !payload.is_empty() {
            self.frames.push_back(self.heads.split().freeze());
            self.frames_bytes += payload.iter().map(Bytes::len).sum::<usize>();
            self.frames.extend(payload.iter().filter(|piece| !piece.is_empty()).cloned());
        }
        if self.queued_bytes() > SEND_QUEUE_BYTES_MAX { Err(DownReason::Overflow) } else { Ok(()) }
    }

    /// Sends all that is queued, unless a send is in flight.
    pub(super) fn flush(&mut self, ring: &mut Ring, id: u64, now: Time) -> Result<(), DownReason> {
        if matches!(self.state, State::Connecting { .. }) {
            return Ok(());
        }
        let Some(mut wire) = self.wire.take() else { return Ok(()) };
        if !self.heads.is_empty() {
            self.frames.push_back(self.heads.split().freeze());
        }
        self.frames_bytes -= self.stream.seal(&mut self.frames, &mut wire)?;
        self.wire_bytes = wire.iter().map(Bytes::len).sum();
        if wire.is_empty() {
            self.wire = Some(wire);
        } else {
            self.last_said = now;
            self.send(ring, id, wire);
        }
        Ok(())
    }

    fn send(&self, ring: &mut Ring, id: u64, pieces: VecDeque<Bytes>) {
        let op = Op::Send { socket: Fd::clone(&self.socket), pieces };
        ring.submit(Owner::Transport, id << TAG_BITS | TAG_SEND, op);
    }

    /// Takes the end of a send; goes on where it ended short.
    pub(super) fn sent(
        &mut self,
        ring: &mut Ring,
        id: u64,
        result: io::Result<u32>,
        mut pieces: VecDeque<Bytes>,
    ) -> Result<(), DownReason> {
        let sent = result.map_err(|error| system("sending", &error))? as usize;
        advance(&mut pieces, sent);
        self.wire_bytes -= sent;
        if pieces.is_empty() {
            self.wire = Some(pieces);
        } else {
            self.send(ring, id, pieces);
        }
        Ok(())
    }

    /// Whether everything queued has been handed to the kernel.
    pub(super) fn is_drained(&self) -> bool {
        self.queued_bytes() == 0
    }

    /// Asks for more bytes: the rest of a large payload in place, anything else into the staging
    /// buffer.
    pub(super) fn receive(&mut self, ring: &mut Ring, id: u64) {
        let socket = Fd::clone(&self.socket);
        let lent = if self.stream.receives_clear() { self.assembler.lend() } else { None };
        let op = match lent {
            Some((buffer, at, len)) => Op::Receive { socket, buffer, at, len, whole: true },
            None => {
                let buffer = self.staging.take().expect("one receive at a time");
                Op::Receive { socket, buffer, at: 0, len: STAGING_BYTES, whole: false }
            }
        };
        let tag = id << TAG_BITS | TAG_RECEIVE;
        // A connection that this node opened brings answers, which a shard waits for together.
        // Requests of other nodes come on theirs.
        match self.state {
            State::Up { channel } if channel.initiated_by_us => {
                ring.submit_patient(Owner::Transport, tag, op)
            }
            _ => ring.submit(Owner::Transport, tag, op),
        };
    }

    /// Takes the end of a receive and adds the messages that it completes to `out`. The messages
    /// before a fault in the stream are delivered.
    pub(super) fn received(
        &mut self,
        now: Time,
        result: io::Result<u32>,
        mut buffer: BufMut,
        whole: bool,
        out: &mut Vec<Envelope>,
    ) -> Result<(), DownReason> {
        let received = result.map_err(|error| system("receiving", &error))? as usize;
        if received == 0 {
            return Err(DownReason::Closed);
        }
        self.last_received = now;
        if whole {
            return self.assembler.take_back(buffer, received, out);
        }
        let assembler = &mut self.assembler;
        let wire = &mut buffer.as_mut_slice()[..received];
        let result = self.stream.open(wire, &mut |bytes| assembler.feed(bytes, out));
        self.staging = Some(buffer);
        result
    }

    /// When [`tick`](Self::tick) has something to do next.
    pub(super) fn deadline(&self) -> Time {
        match self.state {
            State::Connecting { .. } => self.last_received.plus_ms(super::CONNECT_MS),
            State::Greeting { .. } | State::Refused => {
                self.last_received.plus_ms(HELLO_MS).min(self.greeting_since.plus_ms(GREETING_MS))
            }
            State::Up { .. } => self.ping_at().min(self.last_received.plus_ms(SILENCE_MS)),
        }
    }

    fn ping_at(&self) -> Time {
        self.last_received.min(self.last_said).max(self.last_ping).plus_ms(PING_MS)
    }

    /// Pings a peer that is soon to be pinged. To be called when another one is.
    pub(super) fn ping_too(&mut self, now: Time) -> Result<(), DownReason> {
        if !matches!(self.state, State::Up { .. }) || now.plus_ms(PING_EARLY_MS) < self.ping_at() {
            return Ok(());
        }
        self.last_ping = now;
        self.queue(&own(Message::Ping))
    }

    /// Pings a quiet peer; fails when it has been quiet for too long.
    pub(super) fn tick(&mut self, now: Time) -> Result<(), DownReason> {
        if now < self.deadline() {
            return Ok(());
        }
        match self.state {
            State::Connecting { .. } => Err(DownReason::ConnectTimeout),
            State::Greeting { .. } | State::Refused => Err(DownReason::Silent),
            State::Up { .. } if now.ms_since(self.last_received) >= SILENCE_MS => Err(DownReason::Silent),
            State::Up { .. } => {
                self.last_ping = now;
                self.queue(&own(Message::Ping))
            }
        }
    }

    /// Ends the connection: what is in flight on it completes soon after, with an error. The peer
    /// is told why, if that takes no waiting.
    pub(super) fn close(mut self) {
        let words = self.stream.last_words();
        if !words.is_empty() && self.wire.is_some() {
            // The peer finds out anyway, only without the reason.
            let _ =
                SockRef::from(&*self.socket).send_with_flags(&words, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        }
        // It fails when the peer was faster; then there is nothing left to end.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
    }
}
