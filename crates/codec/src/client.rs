//! Messages between a client and the primary. A client has the devices of a resource and no replica
//! of it.
//!
//! Every message names a session, which the record names too, and a stream. The client opens a
//! stream with [`Ask::Attach`] and sends every unanswered request on it, in ascending numbers.
//! Messages of any other stream than the present one are ignored. So late messages of an older
//! connection do no harm.

use crate::Pieces;
use crate::frame::volume_sizes;
use crate::wire::{DecodeError, Reader};
use bytes::{BufMut, Bytes, BytesMut};
use mainstay_types::{
    BLOCK_BYTES, REQUEST_BYTES_MAX, Range, SessionId, VOLUME_BYTES_MAX, VOLUMES_MAX, VolumeId, reach,
};

/// Client to primary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientAsk {
    pub session: SessionId,
    /// Rises with every [`Ask::Attach`].
    pub stream: u64,
    /// Number of the request, from 1 on in its session. For [`Ask::Attach`]: the highest number of
    /// a change that the primary has answered.
    pub number: u64,
    pub ask: Ask,
}

/// Ranges are whole blocks, at most `REQUEST_BYTES_MAX` where bytes travel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    Attach,
    /// `payload` has exactly `range.len` bytes.
    Write {
        range: Range,
        payload: Bytes,
    },
    Discard {
        range: Range,
    },
    WriteZeroes {
        range: Range,
    },
    Read {
        range: Range,
    },
    Flush,
}

impl Ask {
    /// Whether it becomes an entry of the log.
    #[must_use]
    pub fn is_change(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Discard { .. } | Self::WriteZeroes { .. })
    }

    /// Bytes that travel for it, one way or the other.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Write { range, .. } | Self::Read { range } => range.len,
            _ => 0,
        }
    }

    #[must_use]
    pub fn range(&self) -> Option<Range> {
        match self {
            Self::Write { range, .. }
            | Self::Discard { range }
            | Self::WriteZeroes { range }
            | Self::Read { range } => Some(*range),
            Self::Attach | Self::Flush => None,
        }
    }
}

/// Primary to client. Session, stream and number are those of the question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientAnswer {
    pub session: SessionId,
    pub stream: u64,
    pub number: u64,
    pub answer: Answered,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The stream is open. Also when the size of a volume has changed: bytes of each.
    Attached {
        volumes: Vec<u64>,
    },
    Done,
    /// Content of a read, in pieces.
    Data(Pieces),
    /// No replica has the content that the client asked for. The session goes on.
    Unreadable,
    /// The stream is closed.
    Refused(Refusal),
}

/// Why a stream is not opened, or closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// This is not the primary, or it does not know the stream. Attach again.
    NotServing,
    /// The session is over.
    Over,
    /// The log lacks acknowledged changes. The session is over.
    Lost,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::NotServing, Self::Over, Self::Lost];

    const fn to_u16(self) -> u16 {
        match self {
            Self::NotServing => 1,
            Self::Over => 2,
            Self::Lost => 3,
        }
    }
}

impl ClientAsk {
    /// Appends the meta; returns the payload.
    pub(crate) fn put(&self, meta: &mut BytesMut) -> &[Bytes] {
        let mut payload: &[Bytes] = &[];
        let kind = match &self.ask {
            Ask::Attach => 0,
            Ask::Write { payload: bytes, .. } => {
                payload = std::slice::from_ref(bytes);
                1
            }
            Ask::Discard { .. } => 2,
            Ask::WriteZeroes { .. } => 3,
            Ask::Read { .. } => 4,
            Ask::Flush => 5,
        };
        let range = self.ask.range().unwrap_or(Range { volume: VolumeId(0), offset: 0, len: 0 });
        meta.put_u64_le(self.session.0);
        meta.put_u64_le(self.stream);
        meta.put_u64_le(self.number);
        meta.put_u16_le(kind);
        meta.put_u16_le(range.volume.0);
        meta.put_u32_le(checksum(payload));
        meta.put_u64_le(range.offset);
        meta.put_u64_le(range.len);
        payload
    }

    pub(crate) fn take(r: &mut Reader<'_>, payload: &Bytes) -> Result<Self, DecodeError> {
        let (session, stream, number) = (SessionId(r.u64()?), r.u64()?, r.u64()?);
        let (kind, volume) = (r.u16()?, r.u16()?);
        let crc = r.u32()?;
        let range = Range { volume: VolumeId(volume), offset: r.u64()?, len: r.u64()? };
        let has_range = matches!(kind, 1..=4);
        if has_range != (range.len > 0)
            || usize::from(volume) >= VOLUMES_MAX
            || !range.len.is_multiple_of(BLOCK_BYTES)
            || range.len > if matches!(kind, 1 | 4) { REQUEST_BYTES_MAX } else { u64::from(u32::MAX) }
        {
            return Err(r.field("length", range.len));
        }
        if !range.offset.is_multiple_of(BLOCK_BYTES)
            || range.offset > VOLUME_BYTES_MAX - range.len
            || (!has_range && (range.offset > 0 || volume > 0))
        {
            return Err(r.field("offset", range.offset));
        }
        if payload.len() as u64 != if kind == 1 { range.len } else { 0 } {
            return Err(r.field("payload length", payload.len() as u64));
        }
        if checksum(std::slice::from_ref(payload)) != crc {
            reach!("codec: what a client writes is damaged on its way");
            return Err(DecodeError::Checksum { what: "client's payload" });
        }
        let ask = match kind {
            0 => Ask::Attach,
            1 => Ask::Write { range, payload: payload.clone() },
            2 => Ask::Discard { range },
            3 => Ask::WriteZeroes { range },
            4 => Ask::Read { range },
            5 => Ask::Flush,
            other => return Err(r.field("request", other.into())),
        };
        Ok(Self { session, stream, number, ask })
    }
}

impl ClientAnswer {
    /// Appends the meta; returns the payload.
    pub(crate) fn put(&self, meta: &mut BytesMut) -> &[Bytes] {
        let mut payload: &[Bytes] = &[];
        let mut sizes: &[u64] = &[];
        let (kind, why) = match &self.answer {
            Answered::Attached { volumes } => {
                sizes = volumes;
                (0, 0)
            }
            Answered::Done => (1, 0),
            Answered::Data(pieces) => {
                payload = pieces;
                (2, 0)
            }
            Answered::Refused(why) => (3, why.to_u16()),
            Answered::Unreadable => (4, 0),
        };
        meta.put_u64_le(self.session.0);
        meta.put_u64_le(self.stream);
        meta.put_u64_le(self.number);
        meta.put_u16_le(kind);
        meta.put_u16_le(why);
        meta.put_u32_le(checksum(payload));
        meta.put_u64_le(sizes.len() as u64);
        for &bytes in sizes {
            meta.put_u64_le(bytes);
        }
        payload
    }

    pub(crate) fn take(r: &mut Reader<'_>, payload: &Bytes) -> Result<Self, DecodeError> {
        let (session, stream, number) = (SessionId(r.u64()?), r.u64()?, r.u64()?);
        let (kind, why) = (r.u16()?, r.u16()?);
        let crc = r.u32()?;
        let count = r.u64()?;
        let whole = payload.len().is_multiple_of(BLOCK_BYTES as usize);
        if !whole || payload.len() as u64 > REQUEST_BYTES_MAX || payload.is_empty() == (kind == 2) {
            return Err(r.field("payload length", payload.len() as u64));
        }
        if checksum(std::slice::from_ref(payload)) != crc {
            reach!("codec: what a client reads is damaged on its way");
            return Err(DecodeError::Checksum { what: "client's payload" });
        }
        if kind != 0 && count != 0 {
            return Err(r.field("volumes", count));
        }
        if kind != 3 && why != 0 {
            return Err(r.field("why", why.into()));
        }
        let answer = match kind {
            0 => Answered::Attached { volumes: volume_sizes(r, count)? },
            1 => Answered::Done,
            2 => Answered::Data([payload.clone()].into()),
            3 => match Refusal::ALL.into_iter().find(|refusal| refusal.to_u16() == why) {
                Some(refusal) => Answered::Refused(refusal),
                None => return Err(r.field("why", why.into())),
            },
            4 => Answered::Unreadable,
            other => return Err(r.field("answer", other.into())),
        };
        Ok(Self { session, stream, number, answer })
    }
}

/// CRC-32C over the pieces, as if they were one.
fn checksum(pieces: &[Bytes]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for piece in pieces {
        digest.update(piece);
    }
    digest.finalize() as u32
}
