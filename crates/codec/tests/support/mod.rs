//! Strategies and helpers that the codec's tests share.
#![allow(dead_code, reason = "each test binary uses its own part of this module")]

pub mod nbd;
pub mod samples;

use bytes::{Bytes, BytesMut};
use mainstay_codec::frame::{self, EPOCHS_MAX};
use mainstay_codec::superblock::{
    Checkpoint, SnapshotRecord, Superblock, TABLE_PAGES_MAX, TablePlace, UnfinishedCopy, VOIDS_MAX, Void,
};
use mainstay_codec::{
    Answered, Ask, Batch, BlockSums, ClientAnswer, ClientAsk, DecodeError, EntryKind, Envelope,
    FRAME_HEADER_BYTES, FrameHeader, LogState, Message, NewEntry, Refusal, Reject, rollback_range,
    snapshot_range,
};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, ConfigVersion, DataState, EXTENT_BYTES, Epoch, Extent, Incarnation,
    Index, Instance, NodeId, Position, Range, ResourceId, SNAPSHOTS_MAX, SessionId, SnapshotId,
    VOLUME_BYTES_MAX, VOLUMES_MAX, VolumeId,
};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::sync::Arc;

/// A write of `blocks` blocks whose bytes all follow from `seed`.
pub fn pattern(seed: u64, bytes: usize) -> Bytes {
    let mut state = seed | 1;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(bytes);
    out.into()
}

fn entry() -> impl Strategy<Value = NewEntry> {
    let kind = prop_oneof![
        4 => Just(EntryKind::Write),
        1 => Just(EntryKind::Discard),
        1 => Just(EntryKind::WriteZeroes),
        1 => Just(EntryKind::EpochStart),
        1 => Just(EntryKind::Resize),
        1 => Just(EntryKind::DropSnapshot),
        1 => Just(EntryKind::Scrub),
    ];
    let place = (0..VOLUMES_MAX as u16, 0..VOLUME_BYTES_MAX / BLOCK_BYTES, 1..=8u64);
    (kind, place, any::<u64>(), any::<u64>()).prop_map(|(kind, (volume, block, blocks), session, request)| {
        let len = blocks * BLOCK_BYTES;
        let offset = (block * BLOCK_BYTES).min(VOLUME_BYTES_MAX - len);
        let range = match kind {
            EntryKind::EpochStart => Range { volume: VolumeId(0), offset: 0, len: 0 },
            EntryKind::Resize => Range { volume: VolumeId(volume), offset: offset.max(BLOCK_BYTES), len: 0 },
            EntryKind::DropSnapshot | EntryKind::Snapshot => snapshot_range(SnapshotId(1 + block as u32 / 2)),
            EntryKind::Scrub => {
                Range { volume: VolumeId(volume), offset: offset / EXTENT_BYTES * EXTENT_BYTES, len }
            }
            _ => Range { volume: VolumeId(volume), offset, len },
        };
        let payload =
            if kind == EntryKind::Write { pattern(session, range.len as usize) } else { Bytes::new() };
        NewEntry { kind, range, payload, session, request }
    })
}

pub fn batch() -> impl Strategy<Value = Batch> {
    let head = (any::<u64>(), any::<u64>(), 1..u64::MAX - 200, any::<u64>(), any::<u64>());
    (head, vec(entry(), 1..=12)).prop_map(|((resource, epoch, first, prev_chain, commit), mut entries)| {
        if commit % 4 == 0 {
            // Nothing follows a snapshot in its batch.
            let range = snapshot_range(SnapshotId(1 + epoch as u32 / 2));
            let kind = EntryKind::Snapshot;
            entries.push(NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 });
        } else if commit % 4 == 1 {
            let range = rollback_range(SnapshotId(1 + epoch as u32 / 2), SnapshotId(u32::MAX - 1));
            let kind = EntryKind::Rollback;
            entries.push(NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 });
        }
        Batch::seal(
            ResourceId(resource),
            Epoch(epoch),
            Index(first),
            Chain(prev_chain),
            Index(commit),
            entries,
        )
    })
}

fn position() -> impl Strategy<Value = Position> {
    any::<(u64, u64)>().prop_map(|(epoch, index)| Position::new(epoch, index))
}

fn log_state() -> impl Strategy<Value = LogState> {
    let epochs = vec(any::<(u64, u64)>().prop_map(|(e, i)| (Epoch(e), Index(i))), 0..=EPOCHS_MAX);
    (any::<bool>(), position(), any::<(u64, u64, u64)>(), epochs).prop_map(
        |(consistent, end, (chain, commit, base), epochs)| LogState {
            data: if consistent { DataState::Consistent } else { DataState::Inconsistent },
            end,
            chain: Chain(chain),
            commit: Index(commit),
            base: Index(base),
            epochs,
        },
    )
}

fn reject() -> impl Strategy<Value = Reject> {
    prop_oneof![
        any::<u64>().prop_map(|e| Reject::Epoch(Epoch(e))),
        Just(Reject::Unknown),
        position().prop_map(Reject::Gap),
        Just(Reject::Chain),
        Just(Reject::Failed),
        Just(Reject::Snapshot),
    ]
}

/// Places of blocks in an extent, ascending.
fn places() -> impl Strategy<Value = Vec<u32>> {
    btree_set(0..(EXTENT_BYTES / BLOCK_BYTES) as u32, 0..=3).prop_map(|places| places.into_iter().collect())
}

fn sums() -> impl Strategy<Value = BlockSums> {
    vec(any::<(u64, bool)>(), 0..=(EXTENT_BYTES / BLOCK_BYTES) as usize).prop_map(|blocks| {
        let sums = blocks.iter().map(|(sum, _)| *sum).collect();
        let damaged = (0..).zip(&blocks).filter(|(_, (_, damaged))| *damaged).map(|(n, _)| n);
        BlockSums { sums, damaged: damaged.collect() }
    })
}

fn extent() -> impl Strategy<Value = (VolumeId, Extent)> {
    (0..VOLUMES_MAX as u16, 0..(VOLUME_BYTES_MAX / EXTENT_BYTES) as u32)
        .prop_map(|(v, e)| (VolumeId(v), Extent(e)))
}

fn blocks() -> impl Strategy<Value = Range> {
    let place = (0..VOLUMES_MAX as u16, 0..VOLUME_BYTES_MAX / BLOCK_BYTES - 8, 1..=8u64);
    place.prop_map(|(volume, block, blocks)| Range {
        volume: VolumeId(volume),
        offset: block * BLOCK_BYTES,
        len: blocks * BLOCK_BYTES,
    })
}

fn client() -> impl Strategy<Value = ClientMark> {
    any::<(u64, u64)>().prop_map(|(session, number)| ClientMark { session: SessionId(session), number })
}

fn ask() -> impl Strategy<Value = Message> {
    let place = (0..VOLUMES_MAX as u16, 0..VOLUME_BYTES_MAX / BLOCK_BYTES / 2, 1..=8u64);
    (0..6, place, any::<u64>(), client()).prop_map(|(kind, (volume, block, blocks), stream, client)| {
        let (offset, len) = (block * BLOCK_BYTES, blocks * BLOCK_BYTES);
        let range = Range { volume: VolumeId(volume), offset, len };
        let ask = match kind {
            0 => Ask::Attach,
            1 => Ask::Write { range, payload: pattern(stream, len as usize) },
            2 => Ask::Discard { range },
            3 => Ask::WriteZeroes { range },
            4 => Ask::Read { range },
            _ => Ask::Flush,
        };
        Message::ClientAsk(ClientAsk { session: client.session, stream, number: client.number, ask })
    })
}

fn answer() -> impl Strategy<Value = Message> {
    (0..7, sizes(), 1..=8usize, any::<u64>(), client()).prop_map(|(kind, volumes, blocks, stream, client)| {
        let answer = match kind {
            0 => Answered::Attached { volumes },
            1 => Answered::Done,
            2 => Answered::Data([pattern(stream, blocks * BLOCK_BYTES as usize)].into()),
            3 => Answered::Refused(Refusal::NotServing),
            4 => Answered::Refused(Refusal::Over),
            5 => Answered::Refused(Refusal::Lost),
            _ => Answered::Unreadable,
        };
        Message::ClientAnswer(ClientAnswer { session: client.session, stream, number: client.number, answer })
    })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        any::<(u64, u32, u32)>().prop_map(|(cluster, node, to)| Message::Hello {
            cluster,
            node: NodeId(node),
            to: NodeId(to)
        }),
        Just(Message::Ping),
        Just(Message::Pong),
        Just(Message::Attach),
        log_state().prop_map(Message::AttachReply),
        (position(), proptest::option::of(any::<u64>()))
            .prop_map(|(to, chain)| Message::Cut { to, chain: chain.map(Chain) }),
        position().prop_map(|end| Message::CutReply { end }),
        batch().prop_map(|batch| Message::Append(Arc::new(batch))),
        any::<u64>().prop_map(|i| Message::Ack { durable: Index(i) }),
        any::<(u64, u64)>().prop_map(|(o, i)| Message::Received { instance: Instance(o), index: Index(i) }),
        any::<u64>().prop_map(|i| Message::Commit { commit: Index(i) }),
        (position(), any::<u64>(), sizes(), snapshots(), client()).prop_map(
            |(at, chain, volumes, snapshots, client)| {
                let snapshots = snapshots.into_iter().map(|snapshot| snapshot.id).collect();
                Message::CopyBegin { at, chain: Chain(chain), volumes, snapshots, client }
            }
        ),
        ask(),
        answer(),
        (position(), any::<bool>()).prop_map(|(at, sums)| Message::CopyBeginReply { at, sums }),
        (extent(), any::<(u64, u64)>(), 0..=4u64, places(), places()).prop_map(
            |((volume, extent), (version, at), blocks, damaged, kept)| {
                Message::CopyExtent {
                    volume,
                    extent,
                    version: Index(version),
                    at: Index(at),
                    data: pattern(version, (blocks * BLOCK_BYTES) as usize),
                    damaged,
                    kept,
                }
            }
        ),
        (position(), extent()).prop_map(|(at, (volume, extent))| Message::CopyAsk { at, volume, extent }),
        (position(), extent(), sums()).prop_map(|(at, (volume, extent), held)| Message::CopyHeld {
            at,
            volume,
            extent,
            held
        }),
        extent().prop_map(|(volume, extent)| Message::CopyExtentAck { volume, extent }),
        any::<u64>().prop_map(|i| Message::CopyEnd { need: Index(i) }),
        Just(Message::CopyEndReply),
        (any::<u64>(), sums()).prop_map(|(at, held)| Message::ScrubSums { at: Index(at), held }),
        (blocks(), any::<u64>()).prop_map(|(range, at)| Message::ReadBlocks { range, at: Index(at) }),
        (blocks(), any::<(u64, bool)>()).prop_map(|(range, (seed, some))| {
            let data = if some { pattern(seed, range.len as usize) } else { Bytes::new() };
            Message::BlocksRead { range, data }
        }),
        reject().prop_map(Message::Rejected),
    ]
}

pub fn envelope() -> impl Strategy<Value = Envelope> {
    (any::<(u64, u64, u64, u64)>(), message()).prop_map(
        |((resource, epoch, version, incarnation), message)| {
            // A batch names its resource too, and a frame in which the two differ is refused.
            let resource = match &message {
                Message::Append(batch) => batch.resource,
                _ => ResourceId(resource),
            };
            Envelope {
                resource,
                epoch: Epoch(epoch),
                version: ConfigVersion(version),
                incarnation: Incarnation(incarnation),
                message,
            }
        },
    )
}

/// Sizes of the volumes of a resource, in bytes.
fn sizes() -> impl Strategy<Value = Vec<u64>> {
    vec((1..=VOLUME_BYTES_MAX / BLOCK_BYTES).prop_map(|blocks| blocks * BLOCK_BYTES), 1..=VOLUMES_MAX)
}

fn snapshots() -> impl Strategy<Value = Vec<SnapshotRecord>> {
    let states = proptest::collection::btree_map(1..u32::MAX, any::<(bool, u64)>(), 0..=SNAPSHOTS_MAX);
    states.prop_map(|states| {
        let record = |(id, (held, at))| SnapshotRecord { id: SnapshotId(id), held, at: Index(at) };
        states.into_iter().map(record).collect()
    })
}

pub fn superblock() -> impl Strategy<Value = Superblock> {
    let numbers = any::<(u64, u64, u64, u64, u64, u64)>();
    let place = (position(), any::<u64>(), 0..=1024u64);
    let table = |&bytes: &u64| TablePlace {
        first_page: (bytes % u64::from(TABLE_PAGES_MAX)) as u32,
        extents: bytes.div_ceil(EXTENT_BYTES) as u32,
    };
    let pairs = |max| vec(any::<(u64, u64)>(), 0..=max);
    let state = (proptest::option::of(any::<u64>()), any::<bool>(), snapshots(), client());
    (numbers, place, sizes(), pairs(VOIDS_MAX), pairs(EPOCHS_MAX), state).prop_map(
        move |(numbers, (at, chain, block), volumes, voids, epochs, (base, slot, snapshots, client))| {
            Superblock {
                sequence: numbers.0,
                resource: ResourceId(numbers.1),
                incarnation: Incarnation(numbers.2),
                tables: volumes.iter().map(table).collect(),
                volumes,
                journal_bytes: 1024 * BLOCK_BYTES,
                sums: numbers.0 % 2 == 1,
                filled: numbers.0 % 3 == 1,
                promised: Epoch(numbers.3),
                generation: numbers.4,
                voids: voids
                    .into_iter()
                    .map(|(generation, end)| Void { generation, end: Index(end) })
                    .collect(),
                checkpoint: Checkpoint { at, chain: Chain(chain), offset: block * BLOCK_BYTES },
                commit: Index(numbers.5),
                unfinished: base.map(|base| UnfinishedCopy { base: Index(base), kept: base % 2 == 1 }),
                epochs: epochs.into_iter().map(|(epoch, last)| (Epoch(epoch), Index(last))).collect(),
                versions_slot: slot.into(),
                versions_root: numbers.0 ^ numbers.5,
                snapshots,
                client,
            }
        },
    )
}

/// The whole frame as one slice, as it would lie in a socket's buffer.
pub fn wire(envelope: &Envelope) -> Bytes {
    let mut out = BytesMut::new();
    for piece in frame::encode(envelope) {
        out.extend_from_slice(&piece);
    }
    out.freeze()
}

/// Reads one frame off a stream the way a connection does: header, then meta and payload of the
/// lengths that the header states. `Short` if the stream ends before.
pub fn receive(stream: &Bytes) -> Result<Envelope, DecodeError> {
    let short = |need| DecodeError::Short { what: "stream", need, have: stream.len() };
    let head = stream.get(..FRAME_HEADER_BYTES).ok_or(short(FRAME_HEADER_BYTES))?;
    let header = FrameHeader::decode(head)?;
    let meta_end = FRAME_HEADER_BYTES + header.meta_len;
    let end = meta_end + header.payload_len;
    if stream.len() < end {
        return Err(short(end));
    }
    frame::decode(&header, &stream[FRAME_HEADER_BYTES..meta_end], &stream.slice(meta_end..end))
}
