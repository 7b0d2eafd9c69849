//! One end of a connection between engines: TLS 1.3 for a caller that owns sockets and buffers.
//!
//! A session takes the bytes that a socket delivers and gives the bytes that a socket is to send.
//! There is no I/O and no thread in it.
//!
//! Guarantees
//! - Nothing is delivered before the handshake has ended: both ends have proven their keys, and the
//!   record of this node has the peer's ([`Trust::judge_engine`]).
//! - Payloads are encrypted unless both ends have been told that they may be clear. The handshake
//!   itself covers this choice, so nobody between the two can change it.
//! - Bytes of a peer, whatever they are, end in an error and never in a panic (R25).
//! - Keys are changed before they have protected as many records as their cipher allows.
//!
//! With clear payloads the first record of each direction is still encrypted. What follows on the
//! same connection is not, and whoever can change packets on the way can change it.

use crate::TrustError;
use crate::peer::{Peer, Refusal, Trust};
use crate::tls::{
    ClientRule, Clients, Credentials, Outcome, ServerRule, Servers, client_config, no_name, provider,
    server_config,
};
use bytes::BytesMut;
use mainstay_types::{Fingerprint, NodeId};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::UnixTime;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::time_provider::TimeProvider;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};
use rustls::{AlertDescription, CipherSuite, CommonState};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Names of the protocols of the engines (RFC 7301): one with encrypted payloads, and one with
/// clear ones.
pub const ENCRYPTED_PROTOCOL: &[u8] = b"mainstay-engine/1";
pub const CLEAR_PROTOCOL: &[u8] = b"mainstay-engine-clear/1";
/// Bytes of a record around its payload, at most.
const RECORD_OVERHEAD: usize = 5 + 1 + 16;
/// Most payload of a record, in bytes (RFC 8446, 5.1).
pub const RECORD_PAYLOAD_MAX: usize = 16 << 10;
/// Bytes before the length of a record, and with it.
const HEADER_BYTES: usize = 5;

/// Whether payloads are encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payloads {
    Encrypted,
    /// Both nodes have been told to send payloads as they are.
    Clear,
}

/// Reasons why a session ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("the peer is not believed: {0}")]
    Refused(Refusal),
    #[error("the peer does not believe this node: it answered {0}")]
    RefusedByPeer(String),
    #[error("the peer does not speak TLS; it may run a build without it")]
    NoTls,
    #[error("TLS failed: {0}")]
    Tls(String),
    #[error("the peer closed the session")]
    Closed,
}

/// The wall clock, which certificates of engines are not judged by; TLS asks for one.
#[derive(Debug)]
struct WallClock;

impl TimeProvider for WallClock {
    fn current_time(&self) -> Option<UnixTime> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Some(UnixTime::since_unix_epoch(since))
    }
}

/// Makes the ciphers of sessions known. AES with keys of 128 bits comes first, because it takes the
/// least processor time where processors help with it.
fn ciphers() -> Arc<CryptoProvider> {
    let mut provider = (*provider()).clone();
    provider.cipher_suites.sort_by_key(|suite| match suite.suite() {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => 0,
        CipherSuite::TLS13_AES_256_GCM_SHA384 => 1,
        _ => 2,
    });
    Arc::new(provider)
}

/// The two ends of TLS, which differ in their type only.
trait End {
    type Data;
    fn process<'c, 'i>(&'c mut self, wire: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn common(&self) -> &CommonState;
}

impl End for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, wire: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(wire)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl End for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, wire: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(wire)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// Taker of payload.
pub type Sink<'a, E> = &'a mut dyn FnMut(&[u8]) -> Result<(), E>;

/// See the top of this file.
pub struct Session {
    side: Side,
    outcome: Outcome,
    /// Received bytes that are no whole record yet, or of which TLS still needs some.
    held: Vec<u8>,
    /// Bytes of the handshake that are to be sent.
    said: BytesMut,
    is_open: bool,
    /// In each direction, a first record has gone.
    has_received: bool,
    has_sent: bool,
    /// The reason why it has ended.
    failed: Option<SessionError>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(open: {}, payloads: {:?})", self.is_open, self.payloads())
    }
}

fn protocols(allowed: Payloads) -> &'static [&'static [u8]] {
    match allowed {
        Payloads::Encrypted => &[ENCRYPTED_PROTOCOL],
        Payloads::Clear => &[CLEAR_PROTOCOL, ENCRYPTED_PROTOCOL],
    }
}

impl Session {
    /// Makes the end of a connection to `node` that this node opens. Payloads are clear if
    /// `allowed` says so at both ends.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn connect(
        trust: Arc<Trust>,
        own: &Credentials,
        node: NodeId,
        allowed: Payloads,
    ) -> Result<Self, TrustError> {
        Self::connect_with(ciphers(), trust, own, node, allowed)
    }

    /// Makes the end of a connection that another node has opened.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub fn accept(trust: Arc<Trust>, own: &Credentials, allowed: Payloads) -> Result<Self, TrustError> {
        let outcome = Outcome::default();
        let verifier = Clients { trust, rule: ClientRule::Engine, outcome: outcome.clone() };
        let config = server_config(ciphers(), verifier, own, Arc::new(WallClock), protocols(allowed))?;
        let side = Side::Server(Box::new(UnbufferedServerConnection::new(config)?));
        Ok(Self::new(side, outcome))
    }

    fn connect_with(
        ciphers: Arc<CryptoProvider>,
        trust: Arc<Trust>,
        own: &Credentials,
        node: NodeId,
        allowed: Payloads,
    ) -> Result<Self, TrustError> {
        let outcome = Outcome::default();
        let verifier = Servers { trust, rule: ServerRule::Engine(node), outcome: outcome.clone() };
        let config = client_config(ciphers, verifier, own, Arc::new(WallClock), protocols(allowed))?;
        let side = Side::Client(Box::new(UnbufferedClientConnection::new(config, no_name()?)?));
        let mut session = Self::new(side, outcome);
        // The first words of the handshake; there is nothing yet that could be delivered.
        session
            .open(&mut [], &mut |_| Ok::<(), SessionError>(()))
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(session)
    }

    fn new(side: Side, outcome: Outcome) -> Self {
        Self {
            side,
            outcome,
            held: Vec::new(),
            said: BytesMut::new(),
            is_open: false,
            has_received: false,
            has_sent: false,
            failed: None,
        }
    }

    fn common(&self) -> &CommonState {
        match &self.side {
            Side::Client(end) => end.common(),
            Side::Server(end) => end.common(),
        }
    }

    /// Whether the handshake has ended, so that payload can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// The node at the other end. `None` before it has proven who it is.
    #[must_use]
    pub fn peer(&self) -> Option<NodeId> {
        self.proven().map(|(node, _)| node)
    }

    /// Whether the node at the other end is a member by this record too, which may be newer than
    /// the one that has judged it. True before it has proven who it is.
    #[must_use]
    pub fn is_believed(&self, trust: &Trust) -> bool {
        let is_member = |(node, key)| trust.members.as_ref().and_then(|all| all.get(&node)) == Some(&key);
        self.proven().is_none_or(is_member)
    }

    /// Node and key at the other end.
    fn proven(&self) -> Option<(NodeId, Fingerprint)> {
        if self.common().is_handshaking() {
            return None;
        }
        match self.outcome.peer()? {
            Peer::Member { subject, key } => Some((subject.node, key.fingerprint())),
            _ => None,
        }
    }

    /// Whether payloads are encrypted. `None` before the ends have agreed.
    #[must_use]
    pub fn payloads(&self) -> Option<Payloads> {
        agreed(self.common())
    }

    /// Whether bytes of the socket are payload as they are, from now on.
    #[must_use]
    pub fn receives_clear(&self) -> bool {
        self.has_received && self.payloads() == Some(Payloads::Clear)
    }

    /// Whether payload is to be sent as it is, from now on.
    #[must_use]
    pub fn sends_clear(&self) -> bool {
        self.has_sent && self.payloads() == Some(Payloads::Clear)
    }

    /// Takes bytes that came from the socket, and gives the payload in them to `sink`. `wire` is
    /// overwritten. What the session wants to answer is in [`said`](Self::said) afterwards, also
    /// after an error.
    ///
    /// # Errors
    /// Reasons why the connection has to end, or the error of `sink`.
    pub fn open<E: From<SessionError>>(&mut self, mut wire: &mut [u8], sink: Sink<'_, E>) -> Result<(), E> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone().into());
        }
        while !self.held.is_empty() && !self.receives_clear() {
            if wire.is_empty() {
                return Ok(());
            }
            // Whole records that are still held are parts of a message whose rest is to come.
            let missing = Some(missing_bytes(&self.held)).filter(|missing| *missing > 0);
            let (part, rest) = wire.split_at_mut(missing.unwrap_or(HEADER_BYTES).min(wire.len()));
            self.held.extend_from_slice(part);
            wire = rest;
            if missing_bytes(&self.held) == 0 {
                let mut held = std::mem::take(&mut self.held);
                let used = self.process(&mut held, sink)?;
                held.drain(..used);
                self.held = held;
            }
        }
        if self.receives_clear() {
            if !self.held.is_empty() {
                let held = std::mem::take(&mut self.held);
                sink(&held)?;
            }
            return if wire.is_empty() { Ok(()) } else { sink(wire) };
        }
        let used = self.process(wire, sink)?;
        let rest = &wire[used..];
        if self.receives_clear() {
            return if rest.is_empty() { Ok(()) } else { sink(rest) };
        }
        self.held.extend_from_slice(rest);
        Ok(())
    }

    /// Processes whole records. Returns how many bytes of `wire` are done with.
    fn process<E: From<SessionError>>(&mut self, wire: &mut [u8], sink: Sink<'_, E>) -> Result<usize, E> {
        let mut seen = Seen { said: &mut self.said, has_received: &mut self.has_received, is_open: false };
        let result = match &mut self.side {
            Side::Client(end) => look(&mut **end, wire, &mut seen, sink),
            Side::Server(end) => look(&mut **end, wire, &mut seen, sink),
        };
        self.is_open |= seen.is_open;
        match result {
            Ok(used) => Ok(used),
            Err(Ended::Sink(error)) => {
                self.failed = Some(SessionError::Closed);
                Err(error)
            }
            Err(Ended::Tls(error)) => Err(self.fail(error).into()),
        }
    }

    /// Turns payload into records at the end of `out`, after whatever the session itself has to
    /// say. To be called only while it [is open](Self::is_open) and does not send clear.
    ///
    /// # Errors
    /// When TLS has failed before.
    pub fn seal(&mut self, payload: &[u8], out: &mut BytesMut) -> Result<(), SessionError> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        let result = match &mut self.side {
            Side::Client(end) => encrypt(&mut **end, &mut self.held, payload, &mut self.said, out),
            Side::Server(end) => encrypt(&mut **end, &mut self.held, payload, &mut self.said, out),
        };
        self.has_sent = true;
        result.map_err(|error| self.fail(error))
    }

    /// Ends the session: TLS must not be asked again after an error.
    fn fail(&mut self, error: rustls::Error) -> SessionError {
        let reason = self.reason(error);
        self.failed = Some(reason.clone());
        reason
    }

    /// Bytes of the handshake that are to be sent before anything else.
    pub fn said(&mut self) -> &mut BytesMut {
        &mut self.said
    }

    fn reason(&self, error: rustls::Error) -> SessionError {
        if let Some(refusal) = self.outcome.refusal() {
            return SessionError::Refused(refusal);
        }
        match error {
            rustls::Error::AlertReceived(alert) => SessionError::RefusedByPeer(words_of(alert)),
            rustls::Error::InvalidMessage(_) if !self.is_open => SessionError::NoTls,
            error => SessionError::Tls(error.to_string()),
        }
    }
}

/// The protocol that both ends have, as far as they have agreed.
fn agreed(common: &CommonState) -> Option<Payloads> {
    match common.alpn_protocol()? {
        CLEAR_PROTOCOL => Some(Payloads::Clear),
        ENCRYPTED_PROTOCOL => Some(Payloads::Encrypted),
        _ => None,
    }
}

/// An alert of the peer, in words for the operator.
fn words_of(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::UnknownCA => {
            "that it does not know the authority of this node's certificate".into()
        }
        AlertDescription::NoApplicationProtocol => "that it speaks another protocol".into(),
        AlertDescription::CertificateUnknown | AlertDescription::BadCertificate => {
            "that its record has no such node, or another key of it".into()
        }
        alert => format!("`{alert:?}`"),
    }
}

/// Bytes that are missing from the last record in `held`; from its header if that is not whole.
fn missing_bytes(held: &[u8]) -> usize {
    let mut rest = held;
    loop {
        let Some(header) = rest.get(..HEADER_BYTES) else {
            return if rest.is_empty() { 0 } else { HEADER_BYTES - rest.len() };
        };
        let record = HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]]));
        match rest.get(record..) {
            Some(after) => rest = after,
            None => return record - rest.len(),
        }
    }
}

/// Things that come to light while records are processed.
struct Seen<'a> {
    said: &'a mut BytesMut,
    has_received: &'a mut bool,
    is_open: bool,
}

enum Ended<E> {
    Tls(rustls::Error),
    Sink(E),
}

impl<E> From<rustls::Error> for Ended<E> {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error)
    }
}

/// Processes the whole records at the beginning of `wire`, and returns how many bytes they take.
/// Stops behind the first payload if those that follow are clear.
fn look<T: End, E: From<SessionError>>(
    end: &mut T,
    wire: &mut [u8],
    seen: &mut Seen<'_>,
    sink: Sink<'_, E>,
) -> Result<usize, Ended<E>> {
    let mut used = 0;
    loop {
        let UnbufferedStatus { mut discard, state, .. } = end.process(&mut wire[used..]);
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                last_words(end, &mut wire[used + discard..], seen.said);
                return Err(error.into());
            }
        };
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record?;
                    discard += record.discard;
                    // Payload comes after the handshake only.
                    (*seen.has_received, seen.is_open) = (true, true);
                    sink(record.payload).map_err(Ended::Sink)?;
                }
                used += discard;
                match agreed(end.common()) {
                    Some(Payloads::Encrypted) => {}
                    Some(Payloads::Clear) => return Ok(used),
                    None => return Err(no_protocol().into()),
                }
                continue;
            }
            ConnectionState::EncodeTlsData(mut data) => encode(&mut data, seen.said)?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::BlockedHandshake => return Ok(used + discard),
            ConnectionState::WriteTraffic(_) => {
                if agreed(end.common()).is_none() {
                    return Err(no_protocol().into());
                }
                seen.is_open = true;
                return Ok(used + discard);
            }
            ConnectionState::PeerClosed | ConnectionState::Closed => {
                return Err(Ended::Sink(SessionError::Closed.into()));
            }
            _ => return Err(rustls::Error::General("early data, which is not allowed".into()).into()),
        }
        used += discard;
    }
}

/// Fetches what TLS tells the peer about an error. `rest`: the bytes behind those that are done
/// with; TLS may still have places in them in mind.
fn last_words<T: End>(end: &mut T, rest: &mut [u8], said: &mut BytesMut) {
    // Without words it would look at the bytes again.
    while end.common().wants_write() {
        let Ok(ConnectionState::EncodeTlsData(mut data)) = end.process(rest).state else { return };
        if encode(&mut data, said).is_err() {
            return;
        }
    }
}

fn no_protocol() -> rustls::Error {
    rustls::Error::NoApplicationProtocol
}

/// Puts a record of TLS itself at the end of `said`.
fn encode<Data>(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, Data>,
    said: &mut BytesMut,
) -> Result<(), rustls::Error> {
    let at = said.len();
    let needed = match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(needed)) => needed.required_size,
        _ => return Ok(()),
    };
    said.resize(at + needed, 0);
    let result = data.encode(&mut said[at..]);
    result.map(drop).map_err(|error| rustls::Error::General(error.to_string()))
}

/// Encrypts `payload`. `held`: all bytes that were received and not processed.
fn encrypt<T: End>(
    end: &mut T,
    held: &mut [u8],
    payload: &[u8],
    said: &mut BytesMut,
    out: &mut BytesMut,
) -> Result<(), rustls::Error> {
    let internal = |what: String| rustls::Error::General(what);
    loop {
        let UnbufferedStatus { state, .. } = end.process(held);
        match state? {
            ConnectionState::EncodeTlsData(mut data) => encode(&mut data, said)?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::WriteTraffic(mut traffic) => {
                out.extend_from_slice(said);
                said.clear();
                let at = out.len();
                let records = payload.len().div_ceil(RECORD_PAYLOAD_MAX);
                out.resize(at + payload.len() + records * RECORD_OVERHEAD, 0);
                let written = match traffic.encrypt(payload, &mut out[at..]) {
                    // Words of TLS itself come before the records.
                    Err(EncryptError::InsufficientSize(needed)) => {
                        out.resize(at + needed.required_size, 0);
                        traffic.encrypt(payload, &mut out[at..])
                    }
                    result => result,
                };
                out.truncate(at + written.map_err(|error| internal(error.to_string()))?);
                return Ok(());
            }
            _ => return Err(internal("no payload can be sent now".into())),
        }
    }
}

#[cfg(test)]
mod tests;
