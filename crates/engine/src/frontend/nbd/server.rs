//! The NBD server of a shard: takes connections for all resources, and speaks the handshake with
//! them.
//!
//! ```text
//! accepted ──greeting sent──▶ haggling ──an export is chosen and the answer sent──▶ handed to its resource
//!                              │   ▲└──ABORT, nonsense, or the time is up──▶ closed
//!                              └───┘ STARTTLS: from now on through a bridge
//! ```
//! Guarantees:
//! - At most [`STRANGERS_MAX`] clients of each socket are in the handshake, each for at most
//!   [`HANDSHAKE_MS`], with at most one option and its answer in memory (R18).
//! - On the Unix socket only root gets in. The TCP address is off unless configured.
//! - With certificates, a client of the network gets in only if the clients' authority has signed
//!   its own. It has [`PROOF_MS`] to prove that, and learns nothing before.
//! - Without certificates, every client that reaches the address gets in.

use super::super::{FrontendId, TAG_KIND_BITS, ring_tag};
use super::bridge::Bridges;
use super::tls::{TlsError, TlsFiles};
use crate::buffer::{BufMut, BufferPool};
use crate::ring::{Completion, Fd, Op, Owner, Ring, advance};
use bytes::Bytes;
use mainstay_api::engine::DeviceUser;
use mainstay_codec::nbd::handshake::INPUT_BYTES_MAX;
use mainstay_codec::nbd::{End, Export, Handshake, Negotiated, Tls};
use mainstay_types::Time;
use rustix::net::sockopt::socket_peercred;
use socket2::{Domain, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::collections::{BTreeMap, VecDeque};
use std::fs::Permissions;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// The server's own; resources begin with 1.
pub const SERVER_ID: FrontendId = FrontendId(0);
/// Most clients of one socket in the handshake; more are refused. Those of the network cannot crowd
/// out those of this machine.
pub const STRANGERS_MAX: usize = 64;
/// How long a handshake may take, in milliseconds. Humans at a shell haggle as well.
pub const HANDSHAKE_MS: u64 = 60_000;
/// How long a client may take from its connection until it has proved who it is, where it must. No
/// human is part of that, and a client without a proof must not hold a place for long.
pub const PROOF_MS: u64 = 10_000;
const _: () = assert!(PROOF_MS < HANDSHAKE_MS);
/// Pause after a failed accept (no descriptors left), in milliseconds.
const ACCEPT_RETRY_MS: u64 = 100;
const BACKLOG: i32 = 128;
/// A client on the network that is silent is asked whether it still lives after this time, and then
/// again.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long a client on the network may leave bytes unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

const KIND_ACCEPT: u8 = 0;
const KIND_RECEIVE: u8 = 1;
const KIND_SEND: u8 = 2;
const TAG_PLACE_SHIFT: u32 = TAG_KIND_BITS + 32;

/// Why no client can connect.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("cannot listen for NBD clients at {at}")]
    Listen {
        at: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot offer TLS to NBD clients")]
    Tls(#[from] TlsError),
}

/// Where clients of the network connect to, and how.
#[derive(Clone, Debug)]
pub struct NetworkOptions {
    pub addr: SocketAddr,
    /// Certificates for TLS. Without them nothing is encrypted, and neither side proves its
    /// identity.
    pub tls: Option<TlsFiles>,
}

/// A client that has chosen its export.
#[derive(Debug)]
pub struct Arrived {
    pub socket: Fd,
    pub negotiated: Negotiated,
    pub user: DeviceUser,
    /// Bytes that the client sent behind the handshake.
    pub early: Vec<u8>,
}

struct Listener {
    socket: Fd,
    is_tcp: bool,
    /// How its clients come to TLS, if they must.
    bridges: Option<Bridges>,
    /// When to accept again; `None` while an accept is in flight.
    accept_at: Option<Time>,
}

struct Stranger {
    socket: Fd,
    /// Place of the listener that it came to.
    listener: usize,
    /// Address, for the log.
    peer: String,
    user: DeviceUser,
    handshake: Handshake,
    /// `None` while a receive is under way.
    input: Option<BufMut>,
    filled: usize,
    sending: bool,
    end: Option<End>,
    until: Time,
    /// The client must prove its identity by TLS, and has not done so yet.
    unproved: bool,
    closed: bool,
}

/// See the top of this file.
pub struct NbdServer {
    pool: BufferPool,
    listeners: Vec<Listener>,
    strangers: BTreeMap<u64, Stranger>,
    /// Numbers are not used again before they wrap, which takes longer than a handshake.
    next: u64,
}

impl NbdServer {
    /// Listens at the path, in place of whatever is there, and for the network, if there is to be
    /// one.
    ///
    /// # Errors
    /// When one of them cannot be had, or no client could ever get in with these certificates.
    pub fn new(pool: BufferPool, path: &Path, network: Option<NetworkOptions>) -> Result<Self, ServerError> {
        let fail = |at: String| move |source| ServerError::Listen { at, source };
        let unix = listen_unix(path).map_err(fail(path.display().to_string()))?;
        let accept_at = Some(Time(0));
        let mut listeners = vec![Listener { socket: unix, is_tcp: false, bridges: None, accept_at }];
        if let Some(NetworkOptions { addr, tls }) = network {
            match tls.as_ref().map(TlsFiles::load) {
                None => {
                    tracing::warn!(%addr, "NBD clients may connect without encryption or proof of their identity")
                }
                Some(Ok(_)) => tracing::info!(%addr, "NBD clients may connect with TLS and a certificate"),
                // The replicas of this node must not depend on a date.
                Some(Err(error)) if error.is_of_time() => {
                    tracing::error!(%addr, %error, "no NBD client can connect");
                }
                Some(Err(error)) => return Err(error.into()),
            }
            let socket = listen_tcp(addr).map_err(fail(addr.to_string()))?;
            listeners.push(Listener { socket, is_tcp: true, bridges: tls.map(Bridges::new), accept_at });
        }
        Ok(Self { pool, listeners, strangers: BTreeMap::new(), next: 0 })
    }

    /// When [`tick`](Self::tick) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let accepts = self.listeners.iter().filter_map(|listener| listener.accept_at);
        let handshakes = self.strangers.values().filter(|s| !s.closed).map(|stranger| stranger.until);
        accepts.chain(handshakes).min()
    }

    /// Does what is due.
    pub fn tick(&mut self, ring: &mut Ring, now: Time) {
        for (place, listener) in self.listeners.iter_mut().enumerate() {
            if listener.accept_at.is_some_and(|at| at <= now) {
                listener.accept_at = None;
                let op = Op::Accept { listener: Fd::clone(&listener.socket), accepted: None };
                ring.submit(Owner::Frontend, tag(place as u64, KIND_ACCEPT), op);
            }
        }
        for stranger in self.strangers.values_mut().filter(|stranger| stranger.until <= now) {
            stranger.close();
        }
        self.strangers.retain(|_, stranger| !stranger.is_gone());
    }

    /// Takes the completion of an operation of the server. `exports`: what can be chosen at this
    /// moment. Returns a client that has chosen.
    pub fn completed(
        &mut self,
        ring: &mut Ring,
        now: Time,
        completion: Completion,
        exports: impl FnOnce() -> Vec<Export>,
    ) -> Option<Arrived> {
        let place = completion.tag >> TAG_PLACE_SHIFT;
        match completion.op {
            Op::Accept { accepted, .. } => {
                self.accepted(ring, now, place as usize, completion.result, accepted);
                None
            }
            Op::Send { mut pieces, .. } => {
                let stranger = self.strangers.get_mut(&place)?;
                stranger.sending = false;
                match completion.result {
                    Ok(sent) => advance(&mut pieces, sent as usize),
                    Err(_) => stranger.close(),
                }
                if !pieces.is_empty() && !stranger.closed {
                    stranger.send(ring, place, pieces);
                    return None;
                }
                self.go_on(ring, place, exports)
            }
            Op::Receive { buffer, .. } => {
                let stranger = self.strangers.get_mut(&place)?;
                stranger.input = Some(buffer);
                match completion.result {
                    Ok(bytes) if bytes > 0 => stranger.filled += bytes as usize,
                    _ => stranger.close(),
                }
                if stranger.filled > 0 && stranger.handshake.is_protected() && stranger.unproved {
                    stranger.unproved = false;
                    stranger.until = now.plus_ms(HANDSHAKE_MS);
                }
                self.go_on(ring, place, exports)
            }
            op => unreachable!("the NBD server submits no {op:?}"),
        }
    }

    fn accepted(
        &mut self,
        ring: &mut Ring,
        now: Time,
        place: usize,
        result: io::Result<u32>,
        accepted: Option<OwnedFd>,
    ) {
        let Some(listener) = self.listeners.get_mut(place) else { return };
        let Some(socket) = accepted else {
            if let Err(error) = result {
                tracing::warn!(%error, "cannot accept NBD clients");
            }
            listener.accept_at = Some(now.plus_ms(ACCEPT_RETRY_MS));
            return;
        };
        listener.accept_at = Some(now);
        if self.strangers.values().filter(|stranger| stranger.listener == place).count() >= STRANGERS_MAX {
            tracing::warn!("an NBD client was refused: too many are in the handshake");
            return;
        }
        if listener.is_tcp
            && let Err(error) = configure(&socket)
        {
            tracing::warn!(%error, "an NBD client's connection cannot be configured");
            return;
        }
        let peer = SockRef::from(&socket).peer_addr().ok().and_then(|peer| peer.as_socket());
        let user = DeviceUser {
            what: peer.map_or_else(|| "an NBD client".to_owned(), |peer| format!("an NBD client at {peer}")),
            process: if peer.is_none() { process_of(&socket) } else { None },
            follows: true,
        };
        let unproved = listener.bridges.is_some();
        let number = self.next;
        self.next = (self.next + 1) % (1 << (64 - TAG_PLACE_SHIFT));
        let mut stranger = Stranger {
            socket: Fd::new(socket),
            listener: place,
            peer: peer.map_or_else(|| "this machine".to_owned(), |peer| peer.to_string()),
            user,
            handshake: Handshake::new(if unproved { Tls::Required } else { Tls::Absent }),
            input: Some(self.pool.get(INPUT_BYTES_MAX)),
            filled: 0,
            sending: false,
            end: None,
            until: now.plus_ms(if unproved { PROOF_MS } else { HANDSHAKE_MS }),
            unproved,
            closed: false,
        };
        let greeting = Bytes::copy_from_slice(&Handshake::greeting());
        stranger.send(ring, number, [greeting].into());
        self.strangers.insert(number, stranger);
    }

    /// The next step of a handshake, unless something is under way.
    fn go_on(
        &mut self,
        ring: &mut Ring,
        number: u64,
        exports: impl FnOnce() -> Vec<Export>,
    ) -> Option<Arrived> {
        let stranger = self.strangers.get_mut(&number)?;
        if stranger.is_gone() {
            self.strangers.remove(&number);
            return None;
        }
        if stranger.closed || stranger.sending || stranger.input.is_none() {
            return None;
        }
        if stranger.end.is_none() {
            let answer = stranger.step(&exports());
            if !answer.is_empty() {
                stranger.send(ring, number, [Bytes::from(answer)].into());
                return None;
            }
        }
        match stranger.end.take() {
            None => stranger.receive(ring, number),
            Some(End::StartTls) => {
                let bridges =
                    self.listeners.get(stranger.listener).and_then(|listener| listener.bridges.as_ref());
                match bridges.map(|bridges| stranger.protect(bridges)) {
                    Some(Ok(())) => stranger.receive(ring, number),
                    failed => {
                        let error = failed.and_then(Result::err);
                        tracing::warn!(
                            peer = stranger.peer,
                            ?error,
                            "an NBD client was refused: TLS cannot begin"
                        );
                        self.strangers.remove(&number);
                    }
                }
            }
            Some(End::Transmit(negotiated)) => {
                let stranger = self.strangers.remove(&number)?;
                let early = stranger.input.map(|input| input.as_slice()[..stranger.filled].to_vec());
                return Some(Arrived {
                    socket: stranger.socket,
                    negotiated,
                    user: stranger.user,
                    early: early.unwrap_or_default(),
                });
            }
            Some(end) => {
                if let End::Refused(why) = end {
                    tracing::warn!(peer = stranger.peer, why, "an NBD client was refused");
                }
                self.strangers.remove(&number);
            }
        }
        None
    }
}

impl Stranger {
    /// Takes one option of what has come; the answer to it.
    fn step(&mut self, exports: &[Export]) -> Vec<u8> {
        let Some(input) = &mut self.input else { return Vec::new() };
        let mut answer = Vec::new();
        loop {
            let (consumed, end) = self.handshake.step(&input.as_slice()[..self.filled], exports, &mut answer);
            input.as_mut_slice().copy_within(consumed..self.filled, 0);
            self.filled -= consumed;
            self.end = end;
            if self.end.is_some() || consumed == 0 || !answer.is_empty() {
                return answer;
            }
        }
    }

    /// Puts TLS between the client and this server. All that was received before has been taken: a
    /// client that sends more is refused earlier.
    fn protect(&mut self, bridges: &Bridges) -> io::Result<()> {
        self.socket = Fd::new(bridges.start(self.socket.try_clone()?, self.peer.clone())?);
        self.handshake.tls_is_up();
        Ok(())
    }

    fn send(&mut self, ring: &mut Ring, number: u64, pieces: VecDeque<Bytes>) {
        self.sending = true;
        let op = Op::Send { socket: Fd::clone(&self.socket), pieces };
        ring.submit(Owner::Frontend, tag(number, KIND_SEND), op);
    }

    fn receive(&mut self, ring: &mut Ring, number: u64) {
        let Some(buffer) = self.input.take() else { return };
        let (at, len) = (self.filled, INPUT_BYTES_MAX - self.filled);
        let op = Op::Receive { socket: Fd::clone(&self.socket), buffer, at, len, whole: false };
        ring.submit(Owner::Frontend, tag(number, KIND_RECEIVE), op);
    }

    fn close(&mut self) {
        self.closed = true;
        // Fails only when the other side has closed it already.
        let _ = SockRef::from(&*self.socket).shutdown(Shutdown::Both);
    }

    fn is_gone(&self) -> bool {
        self.closed && !self.sending && self.input.is_some()
    }
}

fn tag(place: u64, kind: u8) -> u64 {
    place << TAG_PLACE_SHIFT | ring_tag(SERVER_ID, kind)
}

/// Listens at `path`, in place of whatever is there, for processes of the engine's own user.
pub(in crate::frontend) fn listen_unix(path: &Path) -> io::Result<Fd> {
    // A socket that a killed engine has left.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM.cloexec(), None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    // No client can connect before the socket listens.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    Ok(Fd::new(socket.into()))
}

/// The process at the other end of a Unix socket, as this process sees its number.
pub(in crate::frontend) fn process_of(socket: impl AsFd) -> Option<u32> {
    let pid = socket_peercred(socket).ok()?.pid.as_raw_nonzero().get();
    u32::try_from(pid).ok()
}

fn listen_tcp(addr: SocketAddr) -> io::Result<Fd> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM.cloexec(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&addr.into())?;
    socket.listen(BACKLOG)?;
    Ok(Fd::new(socket.into()))
}

fn configure(socket: &OwnedFd) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
