//! Records of a TLS 1.3 connection whose handshake has ended (RFC 8446, 5 and 7): payload is
//! encrypted where it is to be sent from, and decrypted where it was received, without a copy and
//! without an allocation. The handshake itself, and every new key, come from rustls.
//!
//! Guarantees
//! - Nothing is delivered that the peer has not sealed, each record once and in order: the number
//!   of a record is part of its nonce.
//! - A key seals no more records than its cipher allows. Then, and when the peer asks for it, the
//!   next record announces a new key.
//! - Any other record than payload, a new key or an alert ends the connection. So do padding and
//!   lengths that the RFC does not allow.

use crate::session::RECORD_PAYLOAD_MAX;
use bytes::BytesMut;
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets, InvalidMessage,
    PeerMisbehaved, SupportedCipherSuite,
};

/// Bytes before the length of a record, and with it.
const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// Longest body of a record (RFC 8446, 5.2).
const BODY_MAX: usize = RECORD_PAYLOAD_MAX + 256;
/// The version that every record names (RFC 8446, 5.1).
const VERSION: [u8; 2] = [3, 3];
const KEY_UPDATE: u8 = 24;
const FATAL: u8 = 2;

/// Reasons why records end.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The peer has said that it sends no more.
    Closed,
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// A record that was received.
pub(crate) struct Record<'a> {
    /// Bytes that it takes on the wire.
    pub(crate) length: usize,
    /// `None` if the record is about keys.
    pub(crate) payload: Option<&'a [u8]>,
}

/// The part of rustls that stays: it makes new keys.
enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

/// The key of one direction, and the number of the next record.
struct Direction {
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl Direction {
    fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self, Error> {
        let (cipher, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Error::General("the cipher is not known".into())),
        };
        let bad = |_| Error::General("the key does not fit its cipher".into());
        let key = LessSafeKey::new(UnboundKey::new(cipher, key.as_ref()).map_err(bad)?);
        let iv = iv.as_ref().try_into().map_err(|_| Error::General("the IV has another length".into()))?;
        Ok(Self { key, iv, number })
    }

    /// The nonce of the next record (RFC 8446, 5.3).
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, of_number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= of_number;
        }
        // Keys are changed long before the numbers are used up.
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }
}

/// See the top of this file.
pub(crate) struct Records {
    keys: Keys,
    sent: Direction,
    received: Direction,
    /// Records that a key may seal.
    limit: u64,
    /// The peer wants the next record to be sealed with a new key.
    owes_key: bool,
}

impl Records {
    /// # Errors
    /// When the handshake has not ended, or something of it is still to be sent.
    pub(crate) fn of_client(end: UnbufferedClientConnection) -> Result<Self, Error> {
        let (secrets, keys) = end.dangerous_into_kernel_connection()?;
        let suite = keys.negotiated_cipher_suite();
        Self::new(secrets, Keys::Client(keys), suite)
    }

    /// # Errors
    /// As [`Records::of_client`].
    pub(crate) fn of_server(end: UnbufferedServerConnection) -> Result<Self, Error> {
        let (secrets, keys) = end.dangerous_into_kernel_connection()?;
        let suite = keys.negotiated_cipher_suite();
        Self::new(secrets, Keys::Server(keys), suite)
    }

    fn new(secrets: ExtractedSecrets, keys: Keys, suite: SupportedCipherSuite) -> Result<Self, Error> {
        let suite = suite.tls13().ok_or_else(|| Error::General("this is not TLS 1.3".into()))?;
        let (sent, received) = (Direction::new(secrets.tx)?, Direction::new(secrets.rx)?);
        Ok(Self { keys, sent, received, limit: suite.common.confidentiality_limit, owes_key: false })
    }

    /// Puts a record at the end of `out`, and one that announces a new key before it if it is due.
    /// `fill` appends its payload, at most [`RECORD_PAYLOAD_MAX`] bytes.
    ///
    /// # Errors
    /// When the payload is longer than that, or rustls has no new key.
    pub(crate) fn seal(&mut self, out: &mut BytesMut, fill: impl FnOnce(&mut BytesMut)) -> Result<(), Error> {
        // The announcement is sealed with the old key, so one record of it is kept for that.
        if self.owes_key || self.sent.number.saturating_add(1) >= self.limit {
            // Not requested: the peer changes its own key when that is due.
            self.put(ContentType::Handshake, RECORD_PAYLOAD_MAX, out, |out| {
                out.extend_from_slice(&[KEY_UPDATE, 0, 0, 1, 0])
            })?;
            let secrets = match &mut self.keys {
                Keys::Client(keys) => keys.update_tx_secret(),
                Keys::Server(keys) => keys.update_tx_secret(),
            };
            self.sent = Direction::new(secrets?)?;
            self.owes_key = false;
        }
        self.put(ContentType::ApplicationData, RECORD_PAYLOAD_MAX, out, fill)
    }

    /// Puts a record at the end of `out` that tells the peer why the connection ends.
    pub(crate) fn alert(&mut self, why: AlertDescription, out: &mut BytesMut) {
        // Without it the peer learns no reason, and the connection ends all the same.
        let _ = self.put(ContentType::Alert, RECORD_PAYLOAD_MAX, out, |out| {
            out.extend_from_slice(&[FATAL, u8::from(why)])
        });
    }

    /// Puts a record of this type at the end of `out`, with a payload of at most `max` bytes.
    pub(crate) fn put(
        &mut self,
        kind: ContentType,
        max: usize,
        out: &mut BytesMut,
        fill: impl FnOnce(&mut BytesMut),
    ) -> Result<(), Error> {
        let at = out.len();
        let body_at = at + HEADER_BYTES;
        out.extend_from_slice(&[0; HEADER_BYTES]);
        fill(out);
        if out.len() - body_at > max {
            out.truncate(at);
            return Err(Error::General("a record is too short for its payload".into()));
        }
        out.extend_from_slice(&[u8::from(kind)]);
        let header = header(out.len() - body_at + TAG_BYTES);
        out[at..body_at].copy_from_slice(&header);
        let nonce = self.sent.nonce();
        let sealed = self.sent.key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut out[body_at..]);
        let Ok(tag) = sealed else {
            out.truncate(at);
            return Err(Error::EncryptError);
        };
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }

    /// Decrypts the first record of `wire` in place, if that is there as a whole.
    ///
    /// # Errors
    /// When the peer has closed the connection, or this is no record of it.
    pub(crate) fn open<'a>(&mut self, wire: &'a mut [u8]) -> Result<Option<Record<'a>>, Ended> {
        let Some((&mut [kind, _, _, high, low], rest)) = wire.split_first_chunk_mut() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if kind != u8::from(ContentType::ApplicationData) {
            return Err(Error::from(InvalidMessage::InvalidContentType).into());
        }
        if length > BODY_MAX {
            return Err(Error::PeerSentOversizedRecord.into());
        }
        let Some(body) = rest.get_mut(..length) else { return Ok(None) };
        let nonce = self.received.nonce();
        let opened = self.received.key.open_in_place(nonce, Aad::from(header(length)), body);
        let inner: &'a [u8] = opened.map_err(|_| Error::DecryptError)?;
        if inner.len() > RECORD_PAYLOAD_MAX + 1 {
            return Err(Error::PeerSentOversizedRecord.into());
        }
        // The type is the last byte that is not zero; zeros behind it are padding.
        let end = inner.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or(Error::from(PeerMisbehaved::IllegalTlsInnerPlaintext))?;
        let content = &inner[..end];
        let payload = match ContentType::from(inner[end]) {
            ContentType::ApplicationData => Some(content),
            ContentType::Handshake => {
                self.take_key(content)?;
                None
            }
            ContentType::Alert => return Err(told(content)),
            _ => return Err(Error::from(InvalidMessage::InvalidContentType).into()),
        };
        Ok(Some(Record { length: HEADER_BYTES + length, payload }))
    }

    /// Takes the announcement of a new key (RFC 8446, 4.6.3). It is the only message that may come
    /// after the handshake here: nobody sends tickets, or asks for certificates again.
    fn take_key(&mut self, message: &[u8]) -> Result<(), Error> {
        let &[KEY_UPDATE, 0, 0, 1, request @ (0 | 1)] = message else {
            return Err(InvalidMessage::UnexpectedMessage("after the handshake").into());
        };
        let secrets = match &mut self.keys {
            Keys::Client(keys) => keys.update_rx_secret(),
            Keys::Server(keys) => keys.update_rx_secret(),
        };
        self.received = Direction::new(secrets?)?;
        self.owes_key |= request == 1;
        Ok(())
    }
}

/// The header of a record with a body of this length, which the tag protects too.
fn header(length: usize) -> [u8; HEADER_BYTES] {
    let [high, low] = (length as u16).to_be_bytes();
    [u8::from(ContentType::ApplicationData), VERSION[0], VERSION[1], high, low]
}

/// An alert of the peer.
fn told(content: &[u8]) -> Ended {
    let &[_, why] = content else { return Error::from(InvalidMessage::MessageTooShort).into() };
    match AlertDescription::from(why) {
        AlertDescription::CloseNotify => Ended::Closed,
        why => Error::AlertReceived(why).into(),
    }
}
