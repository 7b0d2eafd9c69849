//! A message on a byte stream: a fixed 64-byte header with its own checksum, then `meta`, then
//! `payload`. `meta` is small and has a checksum. `payload` is large and block-aligned in length.
//! Its checksums are in `meta`.
//!
//! `docs/internals/formats.md` has the layout and the meta of every kind, which a test compares
//! with the encoded bytes.
//!
//! A receiver reads the header and learns both lengths, which are bounded. It reads meta and
//! payload into buffers of exactly these sizes, and hands all three to [`decode`].

use crate::batch::BATCH_FIXED_BYTES;
use crate::client::{ClientAnswer, ClientAsk};
use crate::message::{BlockSums, Envelope, LogState, Message, Reject};
use crate::wire::{DecodeError, Reader};
use crate::{Batch, crc32c};
use bytes::{BufMut, Bytes, BytesMut};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BATCH_BYTES_MAX, BLOCK_BYTES, Chain, ClientMark, ConfigVersion, DataState, EXTENT_BYTES, Epoch, Extent,
    Incarnation, Index, Instance, NodeId, Position, Range, ResourceId, SNAPSHOTS_MAX, SessionId, SnapshotId,
    VOLUME_BYTES_MAX, VOLUMES_MAX, VolumeId, is_volume_size, reach,
};
use std::sync::Arc;

pub const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"MSW1");
pub const PROTOCOL_VERSION: u16 = 1;
pub const FRAME_HEADER_BYTES: usize = 64;
/// Most bytes of meta.
pub const META_BYTES_MAX: usize = 4096;
/// Most bytes of payload.
pub const PAYLOAD_BYTES_MAX: usize = BATCH_BYTES_MAX as usize;
/// Most epochs in a [`LogState`].
pub const EPOCHS_MAX: usize = 64;

const _: () = assert!(BATCH_FIXED_BYTES + 96 * 40 <= META_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES <= BATCH_BYTES_MAX);
// The sums of a scrub.
const _: () = assert!(EXTENT_BYTES / BLOCK_BYTES * 12 + 64 <= META_BYTES_MAX as u64);

/// Room for the head of most messages: that of an [`Message::Append`] of one entry fits.
const ENCODED_HEAD_BYTES: usize = 256;

mod kind {
    pub const HELLO: u16 = 1;
    pub const PING: u16 = 2;
    pub const PONG: u16 = 3;
    pub const ATTACH: u16 = 4;
    pub const ATTACH_REPLY: u16 = 5;
    pub const CUT: u16 = 6;
    pub const CUT_REPLY: u16 = 7;
    pub const APPEND: u16 = 8;
    pub const ACK: u16 = 9;
    pub const COMMIT: u16 = 10;
    pub const COPY_BEGIN: u16 = 11;
    pub const COPY_BEGIN_REPLY: u16 = 12;
    pub const COPY_EXTENT: u16 = 13;
    pub const COPY_EXTENT_ACK: u16 = 14;
    pub const COPY_END: u16 = 15;
    pub const COPY_END_REPLY: u16 = 16;
    pub const REJECTED: u16 = 17;
    pub const RECEIVED: u16 = 18;
    pub const SCRUB_SUMS: u16 = 19;
    pub const READ_BLOCKS: u16 = 20;
    pub const BLOCKS_READ: u16 = 21;
    pub const CLIENT_ASK: u16 = 22;
    pub const CLIENT_ANSWER: u16 = 23;
    pub const COPY_ASK: u16 = 24;
    pub const COPY_HELD: u16 = 25;
    /// One past the last.
    pub const END: u16 = 26;
}

/// A verified frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    pub kind: u16,
    pub resource: ResourceId,
    pub epoch: Epoch,
    pub version: ConfigVersion,
    pub incarnation: Incarnation,
    /// At most [`META_BYTES_MAX`].
    pub meta_len: usize,
    /// At most [`PAYLOAD_BYTES_MAX`].
    pub payload_len: usize,
}

impl FrameHeader {
    /// Decodes and verifies the [`FRAME_HEADER_BYTES`] bytes that start a frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let what = "frame header";
        if bytes.len() != FRAME_HEADER_BYTES {
            return Err(DecodeError::Short { what, need: FRAME_HEADER_BYTES, have: bytes.len() });
        }
        let mut reader = Reader::new(what, bytes);
        let magic = reader.u32()?;
        if magic != FRAME_MAGIC {
            return Err(DecodeError::Magic { what, found: magic });
        }
        let version = reader.u16()?;
        let kind = reader.u16()?;
        let header = Self {
            kind,
            resource: ResourceId(reader.u64()?),
            epoch: Epoch(reader.u64()?),
            version: ConfigVersion(reader.u64()?),
            incarnation: Incarnation(reader.u64()?),
            meta_len: reader.u32()? as usize,
            payload_len: reader.u32()? as usize,
        };
        let reserved = reader.zeroes(12);
        let crc = reader.u32()?;
        if crc32c(&bytes[..FRAME_HEADER_BYTES - 4]) != crc {
            reach!("codec: a frame header is damaged");
            return Err(DecodeError::Checksum { what });
        }
        if version != PROTOCOL_VERSION {
            return Err(DecodeError::Version { what, found: version, known: PROTOCOL_VERSION });
        }
        reserved?;
        if !(kind::HELLO..kind::END).contains(&kind) {
            return Err(reader.field("kind", kind.into()));
        }
        if header.meta_len > META_BYTES_MAX {
            return Err(reader.field("meta length", header.meta_len as u64));
        }
        if header.payload_len > PAYLOAD_BYTES_MAX {
            return Err(reader.field("payload length", header.payload_len as u64));
        }
        Ok(header)
    }
}

/// Encodes a message as pieces to be sent in order: header and meta in the first, payload in the
/// rest.
#[must_use]
pub fn encode(envelope: &Envelope) -> Vec<Bytes> {
    let mut head = BytesMut::with_capacity(ENCODED_HEAD_BYTES);
    let payload = encode_head(envelope, &mut head);
    let mut pieces = Vec::with_capacity(1 + payload.len());
    pieces.push(head.freeze());
    pieces.extend(payload.iter().filter(|p| !p.is_empty()).cloned());
    pieces
}

/// Appends header and meta of a message to `out`, and returns the payload, which follows them on
/// the stream.
pub fn encode_head<'a>(envelope: &'a Envelope, out: &mut BytesMut) -> &'a [Bytes] {
    let start = out.len();
    out.put_bytes(0, FRAME_HEADER_BYTES);
    let (kind, payload) = put_meta(&envelope.message, out);
    let meta = start + FRAME_HEADER_BYTES;
    // The header of a batch has a checksum of its own; every other meta gets one at its end.
    if kind != kind::APPEND {
        let crc = crc32c(&out[meta..]);
        out.put_u32_le(crc);
    }
    let meta_len = out.len() - meta;
    let payload_len: usize = payload.iter().map(Bytes::len).sum();
    let mut head = &mut out[start..meta - 4];
    head.put_u32_le(FRAME_MAGIC);
    head.put_u16_le(PROTOCOL_VERSION);
    head.put_u16_le(kind);
    head.put_u64_le(envelope.resource.0);
    head.put_u64_le(envelope.epoch.0);
    head.put_u64_le(envelope.version.0);
    head.put_u64_le(envelope.incarnation.0);
    head.put_u32_le(meta_len as u32);
    head.put_u32_le(payload_len as u32);
    let crc = crc32c(&out[start..meta - 4]);
    out[meta - 4..meta].copy_from_slice(&crc.to_le_bytes());
    payload
}

/// Appends the meta of a message without its checksum; returns the kind of the message and its
/// payload.
fn put_meta<'a>(message: &'a Message, meta: &mut BytesMut) -> (u16, &'a [Bytes]) {
    let mut payload: &[Bytes] = &[];
    let kind = match message {
        Message::Hello { cluster, node, to } => {
            meta.put_u64_le(*cluster);
            meta.put_u32_le(node.0);
            meta.put_u32_le(to.0);
            kind::HELLO
        }
        Message::Ping => kind::PING,
        Message::Pong => kind::PONG,
        Message::Attach => kind::ATTACH,
        Message::AttachReply(state) => {
            put_log_state(meta, state);
            kind::ATTACH_REPLY
        }
        Message::Cut { to, chain } => {
            put_position(meta, *to);
            meta.put_u64_le(u64::from(chain.is_some()));
            meta.put_u64_le(chain.unwrap_or_default().0);
            kind::CUT
        }
        Message::CutReply { end } => {
            put_position(meta, *end);
            kind::CUT_REPLY
        }
        Message::Append(batch) => {
            meta.extend_from_slice(&batch.header);
            payload = &batch.payload;
            kind::APPEND
        }
        Message::Ack { durable } => {
            meta.put_u64_le(durable.0);
            kind::ACK
        }
        Message::Received { instance, index } => {
            meta.put_u64_le(instance.0);
            meta.put_u64_le(index.0);
            kind::RECEIVED
        }
        Message::Commit { commit } => {
            meta.put_u64_le(commit.0);
            kind::COMMIT
        }
        Message::CopyBegin { at, chain, volumes, snapshots, client } => {
            put_position(meta, *at);
            meta.put_u64_le(chain.0);
            meta.put_u64_le(client.session.0);
            meta.put_u64_le(client.number);
            meta.put_u64_le(volumes.len() as u64);
            meta.put_u64_le(snapshots.len() as u64);
            for &bytes in volumes {
                meta.put_u64_le(bytes);
            }
            for snapshot in snapshots {
                meta.put_u64_le(snapshot.0.into());
            }
            kind::COPY_BEGIN
        }
        Message::CopyBeginReply { at, sums } => {
            put_position(meta, *at);
            meta.put_u64_le(u64::from(*sums));
            kind::COPY_BEGIN_REPLY
        }
        Message::CopyAsk { at, volume, extent } => {
            put_position(meta, *at);
            put_extent_id(meta, *volume, *extent);
            kind::COPY_ASK
        }
        Message::CopyHeld { at, volume, extent, held } => {
            put_position(meta, *at);
            put_extent_id(meta, *volume, *extent);
            put_sums(meta, held);
            kind::COPY_HELD
        }
        Message::CopyExtent { volume, extent, version, at, data, damaged, kept } => {
            put_extent_id(meta, *volume, *extent);
            meta.put_u64_le(version.0);
            meta.put_u64_le(at.0);
            meta.put_u32_le(data.len() as u32);
            meta.put_u32_le(crc32c(data));
            meta.put_u32_le(damaged.len() as u32);
            meta.put_u32_le(kept.len() as u32);
            for &block in damaged.iter().chain(kept) {
                meta.put_u32_le(block);
            }
            payload = std::slice::from_ref(data);
            kind::COPY_EXTENT
        }
        Message::CopyExtentAck { volume, extent } => {
            put_extent_id(meta, *volume, *extent);
            kind::COPY_EXTENT_ACK
        }
        Message::CopyEnd { need } => {
            meta.put_u64_le(need.0);
            kind::COPY_END
        }
        Message::CopyEndReply => kind::COPY_END_REPLY,
        Message::ScrubSums { at, held } => {
            meta.put_u64_le(at.0);
            put_sums(meta, held);
            kind::SCRUB_SUMS
        }
        Message::ReadBlocks { range, at } => {
            put_range(meta, *range);
            meta.put_u64_le(at.0);
            kind::READ_BLOCKS
        }
        Message::BlocksRead { range, data } => {
            put_range(meta, *range);
            meta.put_u32_le(data.len() as u32);
            meta.put_u32_le(crc32c(data));
            payload = std::slice::from_ref(data);
            kind::BLOCKS_READ
        }
        Message::Rejected(reject) => {
            put_reject(meta, *reject);
            kind::REJECTED
        }
        Message::ClientAsk(ask) => {
            payload = ask.put(meta);
            kind::CLIENT_ASK
        }
        Message::ClientAnswer(answer) => {
            payload = answer.put(meta);
            kind::CLIENT_ANSWER
        }
    };
    (kind, payload)
}

/// Decodes a whole frame. `meta` and `payload` have exactly the lengths that `header` states.
pub fn decode(header: &FrameHeader, meta: &[u8], payload: &Bytes) -> Result<Envelope, DecodeError> {
    if meta.len() != header.meta_len || payload.len() != header.payload_len {
        return Err(DecodeError::Short {
            what: "frame",
            need: header.meta_len + header.payload_len,
            have: meta.len() + payload.len(),
        });
    }
    let message = if header.kind == kind::APPEND {
        let batch = Batch::decode(meta, payload)?;
        if batch.resource != header.resource {
            return Err(DecodeError::Field { what: "append", field: "resource", value: batch.resource.0 });
        }
        if batch.header.len() != meta.len() {
            return Err(DecodeError::Field {
                what: "append",
                field: "trailing bytes",
                value: meta.len() as u64,
            });
        }
        Message::Append(Arc::new(batch))
    } else {
        decode_small(header, meta, payload)?
    };
    Ok(Envelope {
        resource: header.resource,
        epoch: header.epoch,
        version: header.version,
        incarnation: header.incarnation,
        message,
    })
}

fn decode_small(header: &FrameHeader, meta: &[u8], payload: &Bytes) -> Result<Message, DecodeError> {
    let Some(split) = meta.len().checked_sub(4) else {
        return Err(DecodeError::Short { what: "frame meta", need: 4, have: meta.len() });
    };
    let (body, crc) = meta.split_at(split);
    if crc32c(body).to_le_bytes() != crc {
        reach!("codec: the meta of a frame is damaged");
        return Err(DecodeError::Checksum { what: "frame meta" });
    }
    let mut r = Reader::new("message", body);
    let with_payload = [kind::COPY_EXTENT, kind::BLOCKS_READ, kind::CLIENT_ASK, kind::CLIENT_ANSWER];
    if !with_payload.contains(&header.kind) && !payload.is_empty() {
        return Err(r.field("payload length", payload.len() as u64));
    }
    let message = match header.kind {
        kind::HELLO => Message::Hello { cluster: r.u64()?, node: NodeId(r.u32()?), to: NodeId(r.u32()?) },
        kind::PING => Message::Ping,
        kind::PONG => Message::Pong,
        kind::ATTACH => Message::Attach,
        kind::ATTACH_REPLY => Message::AttachReply(log_state(&mut r)?),
        kind::CUT => {
            let to = position(&mut r)?;
            let some = r.u64()?;
            let chain = Chain(r.u64()?);
            match some {
                0 if chain.0 == 0 => Message::Cut { to, chain: None },
                1 => Message::Cut { to, chain: Some(chain) },
                _ => return Err(r.field("chain flag", some)),
            }
        }
        kind::CUT_REPLY => Message::CutReply { end: position(&mut r)? },
        kind::ACK => Message::Ack { durable: Index(r.u64()?) },
        kind::RECEIVED => Message::Received { instance: Instance(r.u64()?), index: Index(r.u64()?) },
        kind::COMMIT => Message::Commit { commit: Index(r.u64()?) },
        kind::COPY_BEGIN => {
            let (at, chain) = (position(&mut r)?, Chain(r.u64()?));
            let client = ClientMark { session: SessionId(r.u64()?), number: r.u64()? };
            let (volumes, snapshots) = (r.u64()?, r.u64()?);
            let volumes = volume_sizes(&mut r, volumes)?;
            let snapshots = snapshot_ids(&mut r, snapshots)?;
            Message::CopyBegin { at, chain, volumes, snapshots, client }
        }
        kind::COPY_BEGIN_REPLY => {
            let at = position(&mut r)?;
            let sums = match r.u64()? {
                0 => false,
                1 => true,
                other => return Err(r.field("flag of checksums", other)),
            };
            Message::CopyBeginReply { at, sums }
        }
        kind::COPY_EXTENT => {
            let (volume, extent) = extent_id(&mut r)?;
            let version = Index(r.u64()?);
            let at = Index(r.u64()?);
            let len = r.u32()? as usize;
            let crc = r.u32()?;
            let (damaged, kept) = (r.u32()?, r.u32()?);
            let damaged = blocks_in_order(&mut r, damaged, "damaged blocks")?;
            let kept = blocks_in_order(&mut r, kept, "kept blocks")?;
            if len != payload.len()
                || len > EXTENT_BYTES as usize
                || !len.is_multiple_of(BLOCK_BYTES as usize)
            {
                return Err(r.field("extent length", len as u64));
            }
            if crc32c(payload) != crc && !planted(Bug::ExtentNotChecked) {
                reach!("codec: an extent is damaged on its way");
                return Err(DecodeError::Checksum { what: "extent" });
            }
            Message::CopyExtent { volume, extent, version, at, data: payload.clone(), damaged, kept }
        }
        kind::COPY_ASK => {
            let at = position(&mut r)?;
            let (volume, extent) = extent_id(&mut r)?;
            Message::CopyAsk { at, volume, extent }
        }
        kind::COPY_HELD => {
            let at = position(&mut r)?;
            let (volume, extent) = extent_id(&mut r)?;
            Message::CopyHeld { at, volume, extent, held: sums(&mut r)? }
        }
        kind::COPY_EXTENT_ACK => {
            let (volume, extent) = extent_id(&mut r)?;
            Message::CopyExtentAck { volume, extent }
        }
        kind::COPY_END => Message::CopyEnd { need: Index(r.u64()?) },
        kind::COPY_END_REPLY => Message::CopyEndReply,
        kind::SCRUB_SUMS => {
            let at = Index(r.u64()?);
            Message::ScrubSums { at, held: sums(&mut r)? }
        }
        kind::READ_BLOCKS => Message::ReadBlocks { range: range(&mut r)?, at: Index(r.u64()?) },
        kind::BLOCKS_READ => {
            let range = range(&mut r)?;
            let (len, crc) = (u64::from(r.u32()?), r.u32()?);
            if len != payload.len() as u64 || (len != 0 && len != range.len) {
                return Err(r.field("length of blocks", len));
            }
            if crc32c(payload) != crc {
                reach!("codec: blocks are damaged on their way");
                return Err(DecodeError::Checksum { what: "blocks" });
            }
            Message::BlocksRead { range, data: payload.clone() }
        }
        kind::REJECTED => Message::Rejected(reject(&mut r)?),
        kind::CLIENT_ASK => Message::ClientAsk(ClientAsk::take(&mut r, payload)?),
        kind::CLIENT_ANSWER => Message::ClientAnswer(ClientAnswer::take(&mut r, payload)?),
        other => return Err(r.field("kind", other.into())),
    };
    r.finish()?;
    Ok(message)
}

fn put_extent_id(out: &mut BytesMut, volume: VolumeId, extent: Extent) {
    out.put_u16_le(volume.0);
    out.put_u16_le(0);
    out.put_u32_le(extent.0);
}

fn put_sums(out: &mut BytesMut, held: &BlockSums) {
    out.put_u32_le(held.sums.len() as u32);
    out.put_u32_le(held.damaged.len() as u32);
    for &sum in &held.sums {
        out.put_u64_le(sum);
    }
    for &block in &held.damaged {
        out.put_u32_le(block);
    }
}

/// Reads the sums of at most one extent.
fn sums(r: &mut Reader<'_>) -> Result<BlockSums, DecodeError> {
    let (count, damaged) = (r.u32()?, r.u32()?);
    if u64::from(count) > EXTENT_BYTES / BLOCK_BYTES {
        return Err(r.field("sums", count.into()));
    }
    if damaged > count {
        return Err(r.field("damaged blocks", damaged.into()));
    }
    let sums = (0..count).map(|_| r.u64()).collect::<Result<_, _>>()?;
    let damaged = (0..damaged).map(|_| r.u32()).collect::<Result<Vec<_>, _>>()?;
    if let Some(&beyond) = damaged.iter().find(|block| **block >= count) {
        return Err(r.field("damaged block", beyond.into()));
    }
    Ok(BlockSums { sums, damaged })
}

/// Reads the places of `count` blocks in an extent, ascending.
fn blocks_in_order(r: &mut Reader<'_>, count: u32, what: &'static str) -> Result<Vec<u32>, DecodeError> {
    if u64::from(count) > EXTENT_BYTES / BLOCK_BYTES {
        return Err(r.field(what, count.into()));
    }
    let blocks = (0..count).map(|_| r.u32()).collect::<Result<Vec<_>, _>>()?;
    let beyond = blocks.last().is_some_and(|last| u64::from(*last) >= EXTENT_BYTES / BLOCK_BYTES);
    if beyond || !blocks.is_sorted_by(|one, next| one < next) {
        return Err(r.field(what, count.into()));
    }
    Ok(blocks)
}

fn put_range(out: &mut BytesMut, range: Range) {
    out.put_u16_le(range.volume.0);
    out.put_u16_le(0);
    out.put_u32_le(range.len as u32);
    out.put_u64_le(range.offset);
}

/// Whole blocks, at most as many as an extent has.
fn range(r: &mut Reader<'_>) -> Result<Range, DecodeError> {
    let volume = r.u16()?;
    r.zeroes(2)?;
    let (len, offset) = (u64::from(r.u32()?), r.u64()?);
    if usize::from(volume) >= VOLUMES_MAX {
        return Err(r.field("volume", volume.into()));
    }
    if len == 0 || len > EXTENT_BYTES || !len.is_multiple_of(BLOCK_BYTES) {
        return Err(r.field("length", len));
    }
    if !offset.is_multiple_of(BLOCK_BYTES) || offset > VOLUME_BYTES_MAX - len {
        return Err(r.field("offset", offset));
    }
    Ok(Range { volume: VolumeId(volume), offset, len })
}

fn extent_id(r: &mut Reader<'_>) -> Result<(VolumeId, Extent), DecodeError> {
    let volume = r.u16()?;
    r.zeroes(2)?;
    let extent = r.u32()?;
    if usize::from(volume) >= VOLUMES_MAX {
        return Err(r.field("volume", volume.into()));
    }
    if u64::from(extent) >= VOLUME_BYTES_MAX / EXTENT_BYTES {
        return Err(r.field("extent", extent.into()));
    }
    Ok((VolumeId(volume), Extent(extent)))
}

/// Sizes of all volumes of a resource.
pub(crate) fn volume_sizes(r: &mut Reader<'_>, count: u64) -> Result<Vec<u64>, DecodeError> {
    if count == 0 || count > VOLUMES_MAX as u64 {
        return Err(r.field("volumes", count));
    }
    (0..count)
        .map(|_| match r.u64()? {
            bytes if is_volume_size(bytes) => Ok(bytes),
            bytes => Err(r.field("volume bytes", bytes)),
        })
        .collect()
}

/// All snapshots of a resource, in ascending order.
fn snapshot_ids(r: &mut Reader<'_>, count: u64) -> Result<Vec<SnapshotId>, DecodeError> {
    if count > SNAPSHOTS_MAX as u64 {
        return Err(r.field("snapshots", count));
    }
    let mut before = 0;
    (0..count)
        .map(|_| match r.u64()? {
            id if id > u64::from(before) => {
                before = u32::try_from(id).map_err(|_| r.field("snapshot", id))?;
                Ok(SnapshotId(before))
            }
            id => Err(r.field("snapshot", id)),
        })
        .collect()
}

fn put_position(out: &mut BytesMut, position: Position) {
    out.put_u64_le(position.epoch.0);
    out.put_u64_le(position.index.0);
}

fn position(r: &mut Reader<'_>) -> Result<Position, DecodeError> {
    Ok(Position { epoch: Epoch(r.u64()?), index: Index(r.u64()?) })
}

fn put_log_state(out: &mut BytesMut, state: &LogState) {
    out.put_u64_le(match state.data {
        DataState::Consistent => 0,
        DataState::Inconsistent => 1,
    });
    put_position(out, state.end);
    out.put_u64_le(state.chain.0);
    out.put_u64_le(state.commit.0);
    out.put_u64_le(state.base.0);
    let newest = &state.epochs[state.epochs.len().saturating_sub(EPOCHS_MAX)..];
    out.put_u64_le(newest.len() as u64);
    for (epoch, last) in newest {
        out.put_u64_le(epoch.0);
        out.put_u64_le(last.0);
    }
}

fn log_state(r: &mut Reader<'_>) -> Result<LogState, DecodeError> {
    let data = match r.u64()? {
        0 => DataState::Consistent,
        1 => DataState::Inconsistent,
        other => return Err(r.field("data state", other)),
    };
    let end = position(r)?;
    let chain = Chain(r.u64()?);
    let commit = Index(r.u64()?);
    let base = Index(r.u64()?);
    let count = r.u64()?;
    if count > EPOCHS_MAX as u64 {
        return Err(r.field("epochs", count));
    }
    let mut epochs = Vec::with_capacity(count as usize);
    for _ in 0..count {
        epochs.push((Epoch(r.u64()?), Index(r.u64()?)));
    }
    Ok(LogState { data, end, chain, commit, base, epochs })
}

fn put_reject(out: &mut BytesMut, reject: Reject) {
    out.put_u64_le(match reject {
        Reject::Epoch(_) => 1,
        Reject::Unknown => 2,
        Reject::Gap(_) => 3,
        Reject::Chain => 4,
        Reject::Failed => 5,
        Reject::Snapshot => 6,
    });
    put_position(out, reject_position(reject));
}

/// Returns the content of the position field that travels beside a reject's code.
fn reject_position(reject: Reject) -> Position {
    match reject {
        Reject::Epoch(epoch) => Position { epoch, index: Index(0) },
        Reject::Gap(end) => end,
        Reject::Unknown | Reject::Chain | Reject::Failed | Reject::Snapshot => Position::default(),
    }
}

fn reject(r: &mut Reader<'_>) -> Result<Reject, DecodeError> {
    let code = r.u64()?;
    let at = position(r)?;
    let reject = match code {
        1 => Reject::Epoch(at.epoch),
        2 => Reject::Unknown,
        3 => Reject::Gap(at),
        4 => Reject::Chain,
        5 => Reject::Failed,
        6 => Reject::Snapshot,
        other => return Err(r.field("reject", other)),
    };
    if reject_position(reject) != at {
        return Err(r.field("reject position", at.index.0));
    }
    Ok(reject)
}
