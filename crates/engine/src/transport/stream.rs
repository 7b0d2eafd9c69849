//! The layer between the bytes on a socket and the bytes of frames: a TLS session, which encrypts
//! frames unless both nodes have been told to send them as they are. Frames never see the socket.

use super::DownReason;
use bytes::{Buf, Bytes, BytesMut};
use mainstay_trust::session::RECORD_PAYLOAD_MAX;
use mainstay_trust::{Credentials, Payloads, Session, Trust};
use mainstay_types::NodeId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most bytes of frames that are sealed for one send. The rest waits as it is, so the queue of a
/// connection does not take its memory twice.
const SEAL_BYTES_MAX: usize = 1 << 20;

/// Proofs that this node shows to other engines, and the members that it believes.
#[derive(Clone, Debug)]
pub struct Identities {
    pub own: Credentials,
    pub trust: Arc<Trust>,
    /// Whether connections may have clear payloads, if the other end agrees.
    pub allowed: Payloads,
}

/// Takes the bytes of frames out of what a socket delivers.
pub(super) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), DownReason>;

pub(super) struct Stream {
    session: Session,
    /// Records that are not sent yet. Its memory is used again when they have left.
    sealed: BytesMut,
}

impl Stream {
    /// Begins a session on a connection that this node opens, or that another node has opened
    /// (`None`).
    pub(super) fn new(identities: &Identities, to: Option<NodeId>) -> Result<Self, DownReason> {
        let Identities { own, trust, allowed } = identities;
        let session = match to {
            Some(node) => Session::connect(trust.clone(), own, node, *allowed),
            None => Session::accept(trust.clone(), own, *allowed),
        };
        let session = session.map_err(|error| DownReason::NoSession { error: error.to_string() })?;
        Ok(Self { session, sealed: BytesMut::new() })
    }

    /// Whether the socket carries the bytes of frames as they are, so that payload may be received
    /// in place.
    pub(super) fn receives_clear(&self) -> bool {
        self.session.receives_clear()
    }

    /// Whether payloads on this connection are not encrypted.
    pub(super) fn is_clear(&self) -> bool {
        self.session.payloads() == Some(Payloads::Clear)
    }

    /// The node at the other end, once it has proven who it is.
    pub(super) fn peer(&self) -> Option<NodeId> {
        self.session.peer()
    }

    /// Whether the node at the other end is a member by this record too.
    pub(super) fn is_believed(&self, trust: &Trust) -> bool {
        self.session.is_believed(trust)
    }

    /// Hands what `wire` holds for the frames to `frames`. Overwrites `wire`.
    pub(super) fn open(&mut self, wire: &mut [u8], frames: Sink<'_>) -> Result<(), DownReason> {
        self.session.open(wire, frames)
    }

    /// Turns as much of `frames` as may be sent now into bytes for the socket, after whatever the
    /// session has to say itself. Returns how many bytes of `frames` it took: none before the
    /// handshake has ended.
    pub(super) fn seal(
        &mut self,
        frames: &mut VecDeque<Bytes>,
        wire: &mut VecDeque<Bytes>,
    ) -> Result<usize, DownReason> {
        let said = self.session.said();
        if !said.is_empty() {
            wire.push_back(said.split().freeze());
        }
        if !self.session.is_open() || frames.is_empty() {
            return Ok(0);
        }
        let mut taken = 0;
        while !self.session.sends_clear() && taken < SEAL_BYTES_MAX && !frames.is_empty() {
            taken += self.seal_record(frames)?;
        }
        if !self.sealed.is_empty() {
            wire.push_back(self.sealed.split().freeze());
        }
        if self.session.sends_clear() {
            taken += frames.iter().map(Bytes::len).sum::<usize>();
            wire.append(frames);
        }
        Ok(taken)
    }

    /// Seals the payload of one record, from as many pieces as it has room for.
    fn seal_record(&mut self, frames: &mut VecDeque<Bytes>) -> Result<usize, DownReason> {
        let mut taken = 0;
        self.session.seal(&mut self.sealed, |record| {
            while let Some(piece) = frames.front_mut() {
                let part = piece.len().min(RECORD_PAYLOAD_MAX - taken);
                record.extend_from_slice(&piece[..part]);
                taken += part;
                if part < piece.len() {
                    piece.advance(part);
                    break;
                }
                frames.pop_front();
            }
        })?;
        Ok(taken)
    }

    /// Words by which the session tells the peer why it ends.
    pub(super) fn last_words(&mut self) -> Bytes {
        self.session.said().split().freeze()
    }
}
