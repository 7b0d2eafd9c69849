//! Frames out of a byte stream: header, then meta, then payload in an aligned buffer of its own.
//!
//! Small things are copied out of what was received; the rest of a large payload is received in
//! place, see [`Assembler::lend`]. Memory is taken only for lengths that a verified header states,
//! and before the peer has said hello not even for those (R25).

use super::DownReason;
use crate::buffer::{BufMut, BufferPool};
use bytes::Bytes;
use mainstay_codec::{Envelope, FRAME_HEADER_BYTES, FrameHeader, META_BYTES_MAX, Message, frame};

/// Fewest missing bytes of a payload that is received in place.
const DIRECT_BYTES_MIN: usize = 16 << 10;
/// Most bytes received in place at once; what a slow link must deliver before a peer counts as
/// silent.
const DIRECT_BYTES_MAX: usize = 256 << 10;
/// Most bytes of meta before the peer has said hello.
const GREETING_META_BYTES_MAX: usize = 64;

pub(super) struct Assembler {
    pool: BufferPool,
    /// Header and meta as far as they have come; never more than both.
    head: Vec<u8>,
    header: Option<FrameHeader>,
    payload: Option<BufMut>,
    payload_at: usize,
    /// The peer has said hello; whether that was the right hello is for others to judge.
    greeted: bool,
}

impl Assembler {
    pub(super) fn new(pool: BufferPool) -> Self {
        Self {
            pool,
            head: Vec::with_capacity(FRAME_HEADER_BYTES + META_BYTES_MAX),
            header: None,
            payload: None,
            payload_at: 0,
            greeted: false,
        }
    }

    /// Takes bytes in and adds the messages that they complete to `out`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], out: &mut Vec<Envelope>) -> Result<(), DownReason> {
        loop {
            let Some(header) = self.header else {
                if !self.fill_head(&mut bytes, FRAME_HEADER_BYTES) {
                    return Ok(());
                }
                let header = FrameHeader::decode(&self.head).map_err(DownReason::Garbled)?;
                if !self.greeted && (header.payload_len > 0 || header.meta_len > GREETING_META_BYTES_MAX) {
                    return Err(DownReason::NoHello);
                }
                self.header = Some(header);
                continue;
            };
            if !self.fill_head(&mut bytes, FRAME_HEADER_BYTES + header.meta_len) {
                return Ok(());
            }
            if header.payload_len > 0 {
                let payload = self.payload.get_or_insert_with(|| self.pool.get(header.payload_len));
                let part = bytes.len().min(header.payload_len - self.payload_at);
                payload.as_mut_slice()[self.payload_at..][..part].copy_from_slice(&bytes[..part]);
                self.payload_at += part;
                bytes = &bytes[part..];
                if self.payload_at < header.payload_len {
                    return Ok(());
                }
            }
            out.push(self.finish(&header)?);
        }
    }

    /// Moves bytes to `head` until it has `len`; false when they do not suffice.
    fn fill_head(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let part = bytes.len().min(len.saturating_sub(self.head.len()));
        self.head.extend_from_slice(&bytes[..part]);
        *bytes = &bytes[part..];
        self.head.len() >= len
    }

    fn finish(&mut self, header: &FrameHeader) -> Result<Envelope, DownReason> {
        let payload = self.payload.take().map_or_else(Bytes::new, |buffer| buffer.freeze(header.payload_len));
        let envelope = frame::decode(header, &self.head[FRAME_HEADER_BYTES..], &payload);
        self.head.clear();
        self.header = None;
        self.payload_at = 0;
        let envelope = envelope.map_err(DownReason::Garbled)?;
        self.greeted |= matches!(envelope.message, Message::Hello { .. });
        Ok(envelope)
    }

    /// The buffer of a payload that misses many bytes, and where the next of them belong, as `at`
    /// and `len`. Give it back with [`take_back`](Self::take_back).
    pub(super) fn lend(&mut self) -> Option<(BufMut, usize, usize)> {
        let missing = self.header?.payload_len - self.payload_at;
        if missing < DIRECT_BYTES_MIN {
            return None;
        }
        self.payload.take().map(|buffer| (buffer, self.payload_at, missing.min(DIRECT_BYTES_MAX)))
    }

    /// Takes a lent buffer back with `received` more bytes in it.
    pub(super) fn take_back(
        &mut self,
        buffer: BufMut,
        received: usize,
        out: &mut Vec<Envelope>,
    ) -> Result<(), DownReason> {
        let header = self.header.expect("a buffer is lent only within a frame");
        self.payload = Some(buffer);
        self.payload_at += received;
        if self.payload_at == header.payload_len {
            out.push(self.finish(&header)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_codec::{Batch, EntryKind, NewEntry};
    use mainstay_types::{
        Chain, ConfigVersion, Epoch, Incarnation, Index, NodeId, Range, ResourceId, VolumeId,
    };
    use std::sync::Arc;

    fn envelope(message: Message) -> Envelope {
        let (epoch, version, incarnation) = (Epoch(1), ConfigVersion(2), Incarnation(3));
        Envelope { resource: ResourceId(9), epoch, version, incarnation, message }
    }

    fn append(len: usize) -> Envelope {
        let entry = NewEntry {
            kind: EntryKind::Write,
            range: Range { volume: VolumeId(0), offset: 0, len: len as u64 },
            payload: Bytes::from((0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()),
            session: 0,
            request: 0,
        };
        let batch = Batch::seal(ResourceId(9), Epoch(1), Index(1), Chain(0), Index(0), vec![entry]);
        envelope(Message::Append(Arc::new(batch)))
    }

    fn wire(envelopes: &[Envelope]) -> Vec<u8> {
        envelopes.iter().flat_map(|e| frame::encode(e).concat()).collect()
    }

    fn greeted() -> Assembler {
        let mut assembler = Assembler::new(BufferPool::new(1 << 20));
        let hello = envelope(Message::Hello { cluster: 1, node: NodeId(1), to: NodeId(2) });
        assembler.feed(&wire(&[hello]), &mut Vec::new()).expect("a hello");
        assembler
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same_messages() {
        let sent = [
            append(4096),
            envelope(Message::Ping),
            append(65536),
            envelope(Message::Ack { durable: Index(7) }),
        ];
        let bytes = wire(&sent);
        for step in [1, 7, 63, 64, 65, 4096, 16384, bytes.len()] {
            let (mut assembler, mut out) = (greeted(), Vec::new());
            for part in bytes.chunks(step) {
                assembler.feed(part, &mut out).expect("good bytes");
            }
            assert_eq!(wire(&out), bytes, "in steps of {step}");
        }
    }

    #[test]
    fn the_rest_of_a_large_payload_is_received_in_place() {
        let bytes = wire(&[append(1 << 20)]);
        let (mut assembler, mut out) = (greeted(), Vec::new());
        let mut at = 40_000;
        assembler.feed(&bytes[..at], &mut out).expect("good bytes");
        while let Some((mut buffer, start, len)) = assembler.lend() {
            assert!(len <= DIRECT_BYTES_MAX);
            let part = len.min(100_000);
            buffer.as_mut_slice()[start..start + part].copy_from_slice(&bytes[at..at + part]);
            at += part;
            assembler.take_back(buffer, part, &mut out).expect("good bytes");
        }
        assembler.feed(&bytes[at..], &mut out).expect("good bytes");
        assert_eq!(wire(&out), bytes);
        let Message::Append(batch) = &out[0].message else { panic!("{out:?}") };
        assert_eq!(batch.payload[0].as_ptr() as usize % 4096, 0, "ready for direct I/O");
    }

    #[test]
    fn a_stranger_gets_no_memory() {
        let mut assembler = Assembler::new(BufferPool::new(1 << 20));
        let mut out = Vec::new();
        assert_eq!(assembler.feed(&wire(&[append(4096)]), &mut out), Err(DownReason::NoHello));
    }

    #[test]
    fn every_damaged_byte_is_found() {
        let bytes = wire(&[append(4096)]);
        for at in (0..bytes.len()).step_by(13) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            let mut out = Vec::new();
            let result = greeted().feed(&bad, &mut out);
            assert!(out.is_empty() && matches!(result, Err(DownReason::Garbled(_))), "byte {at}: {result:?}");
        }
    }
}
