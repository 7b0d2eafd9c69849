//! One end of a connection between engines: TLS 1.3 for a caller that owns sockets and buffers.
//!
//! A session takes the bytes that a socket delivers and gives the bytes that a socket is to send.
//! There is no I/O and no thread in it. Rustls makes the handshake and all keys; [`crate::records`]
//! seals payload and opens it, in place.
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
use crate::records::{self, Record, Records};
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
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{AlertDescription, CipherSuite, CommonState};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// Names of the protocols of the engines (RFC 7301): one with encrypted payloads, and one with
/// clear ones.
pub const ENCRYPTED_PROTOCOL: &[u8] = b"mainstay-engine/1";
pub const CLEAR_PROTOCOL: &[u8] = b"mainstay-engine-clear/1";
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

/// The part that has the connection: rustls during the handshake, and then its records.
enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
    Open(Box<Records>),
    /// The connection has failed on its way from the handshake to its records.
    Lost,
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
    /// Whether payloads are encrypted, once both ends have agreed.
    agreed: Option<Payloads>,
    /// In each direction, a first record has gone.
    has_received: bool,
    has_sent: bool,
    /// The reason why it has ended.
    failed: Option<SessionError>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(open: {}, payloads: {:?})", self.is_open(), self.payloads())
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
        let mut config = server_config(ciphers(), verifier, own, Arc::new(WallClock), protocols(allowed))?;
        config.enable_secret_extraction = true;
        let side = Side::Server(Box::new(UnbufferedServerConnection::new(Arc::new(config))?));
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
        let mut config = client_config(ciphers, verifier, own, Arc::new(WallClock), protocols(allowed))?;
        config.enable_secret_extraction = true;
        let side = Side::Client(Box::new(UnbufferedClientConnection::new(Arc::new(config), no_name()?)?));
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
            agreed: None,
            has_received: false,
            has_sent: false,
            failed: None,
        }
    }

    /// Whether the handshake has ended, so that payload can be sent.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.side, Side::Open(_))
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
        if !self.is_open() {
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
        self.agreed
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
        let result = match &mut self.side {
            Side::Client(end) => shake_hands(&mut **end, wire, &mut self.said),
            Side::Server(end) => shake_hands(&mut **end, wire, &mut self.said),
            Side::Open(_) | Side::Lost => Ok(Progress { used: 0, agreed: self.agreed }),
        };
        let Progress { used, agreed } = result.map_err(|error| self.fail(error))?;
        self.agreed = agreed;
        if agreed.is_none() {
            return Ok(used);
        }
        self.begin_records().map_err(|error| self.fail(error))?;
        Ok(used + self.open_records(&mut wire[used..], sink)?)
    }

    /// Goes on from the handshake, which has ended, to payload.
    fn begin_records(&mut self) -> Result<(), rustls::Error> {
        let records = match std::mem::replace(&mut self.side, Side::Lost) {
            Side::Client(end) => Box::new(Records::of_client(*end)?),
            Side::Server(end) => Box::new(Records::of_server(*end)?),
            Side::Open(records) => records,
            Side::Lost => return Err(rustls::Error::HandshakeNotComplete),
        };
        self.side = Side::Open(records);
        Ok(())
    }

    /// Hands the payload of the whole records in `wire` to `sink`. Stops behind the first payload
    /// if those that follow are clear. Returns how many bytes are done with.
    fn open_records<E: From<SessionError>>(
        &mut self,
        wire: &mut [u8],
        sink: Sink<'_, E>,
    ) -> Result<usize, E> {
        let mut used = 0;
        while !self.receives_clear() {
            let Side::Open(records) = &mut self.side else { break };
            let Record { length, payload } = match records.open(&mut wire[used..]) {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(records::Ended::Closed) => {
                    self.failed = Some(SessionError::Closed);
                    return Err(SessionError::Closed.into());
                }
                Err(records::Ended::Failed(error)) => {
                    if !matches!(error, rustls::Error::AlertReceived(_)) {
                        records.alert(alert_of(&error), &mut self.said);
                    }
                    return Err(self.fail(error).into());
                }
            };
            used += length;
            if let Some(payload) = payload {
                self.has_received = true;
                if let Err(error) = sink(payload) {
                    self.failed = Some(SessionError::Closed);
                    return Err(error);
                }
            }
        }
        Ok(used)
    }

    /// Puts a record at the end of `out`, after whatever the session itself has to say. `fill`
    /// appends the payload, at most [`RECORD_PAYLOAD_MAX`] bytes. To be called only while the
    /// session [is open](Self::is_open) and does not send clear.
    ///
    /// # Errors
    /// When TLS has failed before, or the payload is longer.
    pub fn seal(&mut self, out: &mut BytesMut, fill: impl FnOnce(&mut BytesMut)) -> Result<(), SessionError> {
        if let Some(reason) = &self.failed {
            return Err(reason.clone());
        }
        out.extend_from_slice(&self.said);
        self.said.clear();
        let result = match &mut self.side {
            Side::Open(records) => records.seal(out, fill),
            _ => Err(rustls::Error::HandshakeNotComplete),
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
            rustls::Error::InvalidMessage(_) if !self.is_open() => SessionError::NoTls,
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

/// Bytes of the first record, as far as it is there.
fn record_bytes(wire: &[u8]) -> usize {
    let whole = wire
        .get(3..HEADER_BYTES)
        .map(|length| HEADER_BYTES + usize::from(u16::from_be_bytes([length[0], length[1]])));
    whole.map_or(wire.len(), |whole| whole.min(wire.len()))
}

/// How far a handshake has come.
struct Progress {
    /// Bytes that are done with.
    used: usize,
    /// Whether payloads are encrypted: known once the handshake has ended.
    agreed: Option<Payloads>,
}

/// Processes the parts of a handshake at the beginning of `wire`, and nothing behind its end.
fn shake_hands<T: End>(end: &mut T, wire: &mut [u8], said: &mut BytesMut) -> Result<Progress, rustls::Error> {
    // Rustls sees one record after the other, and so none behind the end of the handshake. It needs
    // several at once only for a message that is longer than a record.
    let (mut used, mut seen) = (0, record_bytes(wire));
    loop {
        let UnbufferedStatus { discard, state, .. } = end.process(&mut wire[used..seen]);
        let state = match state {
            Ok(state) => state,
            Err(error) => {
                last_words(end, &mut wire[used + discard..seen], said);
                return Err(error);
            }
        };
        used += discard;
        match state {
            ConnectionState::EncodeTlsData(mut data) => encode(&mut data, said)?,
            ConnectionState::TransmitTlsData(data) => data.done(),
            ConnectionState::BlockedHandshake => match record_bytes(&wire[seen..]) {
                0 => return Ok(Progress { used, agreed: None }),
                more => seen += more,
            },
            ConnectionState::WriteTraffic(_) => {
                let agreed = agreed(end.common()).ok_or(rustls::Error::NoApplicationProtocol)?;
                return Ok(Progress { used, agreed: Some(agreed) });
            }
            ConnectionState::PeerClosed | ConnectionState::Closed => {
                return Err(rustls::Error::AlertReceived(AlertDescription::CloseNotify));
            }
            _ => return Err(rustls::Error::General("payload before the end of the handshake".into())),
        }
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

/// The alert that tells the peer about an error in its records (RFC 8446, 6.2).
fn alert_of(error: &rustls::Error) -> AlertDescription {
    match error {
        rustls::Error::DecryptError => AlertDescription::BadRecordMac,
        rustls::Error::PeerSentOversizedRecord => AlertDescription::RecordOverflow,
        _ => AlertDescription::UnexpectedMessage,
    }
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

#[cfg(test)]
mod tests;
