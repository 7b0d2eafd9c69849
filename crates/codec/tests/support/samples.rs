//! One sample of each message and record: the content of the golden files, and the samples for the
//! page of formats. Values differ from field to field, so that a swap of two fields is seen.

use super::pattern;
use bytes::Bytes;
use mainstay_codec::old_map::OldMapHeader;
use mainstay_codec::superblock::{Checkpoint, SnapshotRecord, Superblock, TablePlace, UnfinishedCopy, Void};
use mainstay_codec::{
    Answered, Ask, Batch, BlockSums, ClientAnswer, ClientAsk, EntryKind, Envelope, JournalLabel, LocalHeader,
    LogState, Message, NewEntry, PayloadPlace, Refusal, Reject,
};
use mainstay_types::{
    Chain, ClientMark, ConfigVersion, DataState, Epoch, Extent, Incarnation, Index, Instance, NodeId,
    Position, Range, ResourceId, SessionId, SnapshotId, VolumeId,
};
use std::sync::Arc;

pub const LOCAL: LocalHeader =
    LocalHeader { generation: 17, durable_before: Index(38), payload: PayloadPlace::Journal };
pub const VERSIONS_PAGE: u32 = 2;
pub const VERSIONS: [Index; 3] = [Index(3), Index(0), Index(36)];

pub fn envelope(message: Message) -> Envelope {
    Envelope {
        resource: ResourceId(7),
        epoch: Epoch(3),
        version: ConfigVersion(11),
        incarnation: Incarnation(0xd15c),
        message,
    }
}

pub fn sample_batch() -> Batch {
    let entry = |kind, volume, offset, len, session| NewEntry {
        kind,
        range: Range { volume: VolumeId(volume), offset, len },
        payload: if kind == EntryKind::Write { pattern(session, len as usize) } else { Bytes::new() },
        session,
        request: session * 2,
    };
    Batch::seal(
        ResourceId(7),
        Epoch(3),
        Index(41),
        Chain(0x0123_4567_89ab_cdef),
        Index(40),
        vec![
            entry(EntryKind::EpochStart, 0, 0, 0, 0),
            entry(EntryKind::Write, 1, 8192, 4096, 5),
            entry(EntryKind::Discard, 0, 1 << 20, 1 << 21, 6),
            entry(EntryKind::WriteZeroes, 2, 4096, 4096, 9),
            entry(EntryKind::Resize, 1, 1 << 30, 0, 0),
            entry(EntryKind::DropSnapshot, 0, 3, 0, 0),
            entry(EntryKind::Scrub, 1, 1 << 20, 1 << 16, 0),
            entry(EntryKind::Snapshot, 0, 4, 0, 0),
        ],
    )
}

fn blocks() -> Range {
    Range { volume: VolumeId(1), offset: 12_288, len: 8192 }
}

pub fn messages() -> Vec<(&'static str, Message)> {
    let at = Position::new(3, 40);
    let log_state = LogState {
        data: DataState::Inconsistent,
        end: at,
        chain: Chain(99),
        commit: Index(39),
        base: Index(12),
        epochs: vec![(Epoch(1), Index(20)), (Epoch(3), Index(40))],
    };
    vec![
        ("hello", Message::Hello { cluster: 0xfeed, node: NodeId(1), to: NodeId(2) }),
        ("ping", Message::Ping),
        ("pong", Message::Pong),
        ("attach", Message::Attach),
        ("attach_reply", Message::AttachReply(log_state)),
        ("cut", Message::Cut { to: at, chain: Some(Chain(5)) }),
        ("cut_no_chain", Message::Cut { to: at, chain: None }),
        ("cut_reply", Message::CutReply { end: at }),
        ("append", Message::Append(Arc::new(sample_batch()))),
        ("ack", Message::Ack { durable: Index(44) }),
        ("received", Message::Received { instance: Instance(0xabc), index: Index(45) }),
        ("commit", Message::Commit { commit: Index(44) }),
        (
            "copy_begin",
            Message::CopyBegin {
                at,
                chain: Chain(6),
                volumes: vec![1 << 30, 1 << 20],
                snapshots: vec![SnapshotId(2), SnapshotId(4)],
                client: CLIENT,
            },
        ),
        ("copy_begin_reply", Message::CopyBeginReply { at, sums: true }),
        (
            "copy_extent",
            Message::CopyExtent {
                volume: VolumeId(1),
                extent: Extent(9),
                version: Index(30),
                at: Index(44),
                data: pattern(4, 4096),
                damaged: vec![0, 7],
                kept: vec![2, 3, 4],
            },
        ),
        ("copy_ask", Message::CopyAsk { at, volume: VolumeId(1), extent: Extent(9) }),
        (
            "copy_held",
            Message::CopyHeld {
                at,
                volume: VolumeId(1),
                extent: Extent(9),
                held: BlockSums { sums: vec![9, 0xfedc_ba98_7654_3210], damaged: vec![0] },
            },
        ),
        ("copy_extent_ack", Message::CopyExtentAck { volume: VolumeId(1), extent: Extent(9) }),
        ("copy_end", Message::CopyEnd { need: Index(44) }),
        ("copy_end_reply", Message::CopyEndReply),
        (
            "scrub_sums",
            Message::ScrubSums {
                at: Index(44),
                held: BlockSums { sums: vec![7, 8, 0x0123_4567_89ab_cdef], damaged: vec![1] },
            },
        ),
        ("read_blocks", Message::ReadBlocks { range: blocks(), at: Index(44) }),
        ("blocks_read", Message::BlocksRead { range: blocks(), data: pattern(5, 8192) }),
        ("rejected_epoch", Message::Rejected(Reject::Epoch(Epoch(4)))),
        ("rejected_unknown", Message::Rejected(Reject::Unknown)),
        ("rejected_gap", Message::Rejected(Reject::Gap(at))),
        ("rejected_chain", Message::Rejected(Reject::Chain)),
        ("rejected_failed", Message::Rejected(Reject::Failed)),
        ("rejected_snapshot", Message::Rejected(Reject::Snapshot)),
        ("client_attach", asked(Ask::Attach)),
        ("client_write", asked(Ask::Write { range: CLIENT_RANGE, payload: pattern(8, 4096) })),
        ("client_discard", asked(Ask::Discard { range: CLIENT_RANGE })),
        ("client_write_zeroes", asked(Ask::WriteZeroes { range: CLIENT_RANGE })),
        ("client_read", asked(Ask::Read { range: CLIENT_RANGE })),
        ("client_flush", asked(Ask::Flush)),
        ("client_attached", answered(Answered::Attached { volumes: vec![1 << 30, 1 << 20] })),
        ("client_done", answered(Answered::Done)),
        ("client_data", answered(Answered::Data([pattern(9, 4096)].into()))),
        ("client_unreadable", answered(Answered::Unreadable)),
        ("client_refused", answered(Answered::Refused(Refusal::Over))),
    ]
}

pub const CLIENT: ClientMark = ClientMark { session: SessionId(6), number: 71 };
const CLIENT_RANGE: Range = Range { volume: VolumeId(1), offset: 8192, len: 4096 };

fn asked(ask: Ask) -> Message {
    Message::ClientAsk(ClientAsk { session: CLIENT.session, stream: 3, number: CLIENT.number, ask })
}

fn answered(answer: Answered) -> Message {
    Message::ClientAnswer(ClientAnswer { session: CLIENT.session, stream: 3, number: CLIENT.number, answer })
}

pub fn superblock() -> Superblock {
    Superblock {
        sequence: 9,
        resource: ResourceId(7),
        incarnation: Incarnation(0xd15c),
        volumes: vec![1 << 30, 1 << 20],
        tables: vec![
            TablePlace { first_page: 0, extents: 1 << 10 },
            TablePlace { first_page: 8, extents: 1 },
        ],
        journal_bytes: 1 << 26,
        sums: true,
        filled: false,
        promised: Epoch(4),
        generation: 17,
        voids: vec![Void { generation: 16, end: Index(30) }],
        checkpoint: Checkpoint { at: Position::new(3, 36), chain: Chain(77), offset: 8192 },
        commit: Index(40),
        unfinished: Some(UnfinishedCopy { base: Index(12), kept: true }),
        epochs: vec![(Epoch(1), Index(20)), (Epoch(3), Index(36))],
        versions_slot: 1,
        versions_root: 0x600d,
        snapshots: vec![
            SnapshotRecord { id: SnapshotId(2), held: true, at: Index(21) },
            SnapshotRecord { id: SnapshotId(4), held: false, at: Index(35) },
        ],
        client: CLIENT,
    }
}

pub fn journal_label() -> JournalLabel {
    JournalLabel {
        resource: ResourceId(7),
        incarnation: Incarnation(0xd15c),
        journal_bytes: 1 << 26,
        volatile: true,
    }
}

pub fn old_map_header() -> OldMapHeader {
    OldMapHeader { snapshot: SnapshotId(12), volume: VolumeId(1), bytes: 5 << 30 }
}

/// Number of the sample sector, the second one of a map.
pub const OLD_MAP_SECTOR: u32 = 1;
pub const OLD_MAP_SECTOR_WORDS: [u64; 2] = [0x8000_0000_0000_0001, 0xf0];
