//! Events that go into a replica, effects that come out of it, requests and proposals.

use crate::{Mended, ScrubOrder};
use bytes::Bytes;
use mainstay_codec::{Batch, BlockSums, Envelope};
use mainstay_types::{
    Chain, ClientMark, Epoch, Extent, Incarnation, Index, Instance, JOURNAL_WRITE_BYTES_MAX,
    JOURNAL_WRITES_MAX, NodeId, Position, Proposal, Range, ResourceId, ResourceRecord, Role, SnapshotId,
    Time, VolumeId,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// Identity of a replica, the state in which its store was found, and its limits. All limits are
/// bounds in the sense of R18.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    pub resource: ResourceId,
    /// The node that this replica lives on.
    pub node: NodeId,
    /// The identity of its disk content (R9).
    pub incarnation: Incarnation,
    /// New whenever the replica is opened. 0: the content of its memory never counts.
    pub instance: Instance,
    /// Size of each volume in bytes, as of the commit index; entries beyond are refused on
    /// admission and on receipt.
    pub volumes: Vec<u64>,
    /// Entries after the commit index that change a size: index, volume, bytes.
    pub resizes_ahead: Vec<(Index, VolumeId, u64)>,
    /// Which snapshots there are as of the commit index.
    pub snapshots: Vec<SnapshotId>,
    /// Entries after the commit index that take a snapshot (true) or drop one.
    pub snapshots_ahead: Vec<(Index, SnapshotId, bool)>,
    /// Whether it has checksums of its blocks, and so can hold one as damaged.
    pub sums: bool,
    /// The last change that a client asked for, as of the commit index, and those after it.
    pub client: ClientMark,
    pub clients_ahead: Vec<(Index, ClientMark)>,
    /// A member that acknowledges nothing for this long while something is outstanding leaves the
    /// ISS.
    pub member_timeout_ms: u64,
    /// A member that is disconnected for longer than this leaves the ISS; a mere reconnect is
    /// shorter.
    pub reconnect_grace_ms: u64,
    /// A proposal without an answer is repeated after this time.
    pub proposal_repeat_ms: u64,
    /// How long a commit index that no batch carries waits before it is told alone, in
    /// milliseconds.
    pub commit_tell_ms: u64,
    /// Most bytes of batches sent to one peer and not acknowledged.
    pub window_bytes: u64,
    /// How many writes of the own journal may be in flight, and how many bytes of them.
    pub journal_writes_max: usize,
    pub journal_write_bytes_max: u64,
    /// Most requests admitted and not completed.
    pub requests_max: usize,
    /// Most payload bytes admitted and not completed.
    pub request_bytes_max: u64,
    /// A replica that lags by less than this is made to join the ISS.
    pub join_lag_bytes: u64,
    /// Most extents of all copies being read, sent or installed at a time.
    pub copy_extents_max: usize,
}

impl ReplicaConfig {
    /// The defaults for everything that need not be chosen.
    #[must_use]
    pub fn new(resource: ResourceId, node: NodeId, incarnation: Incarnation, volumes: Vec<u64>) -> Self {
        Self {
            resource,
            node,
            incarnation,
            instance: Instance(0),
            volumes,
            resizes_ahead: Vec::new(),
            snapshots: Vec::new(),
            snapshots_ahead: Vec::new(),
            sums: false,
            client: ClientMark::default(),
            clients_ahead: Vec::new(),
            member_timeout_ms: 1000,
            reconnect_grace_ms: 300,
            proposal_repeat_ms: 500,
            commit_tell_ms: 10,
            window_bytes: 16 << 20,
            journal_writes_max: JOURNAL_WRITES_MAX,
            journal_write_bytes_max: JOURNAL_WRITE_BYTES_MAX,
            requests_max: 1024,
            request_bytes_max: 8 << 20,
            join_lag_bytes: 4 << 20,
            copy_extents_max: 16,
        }
    }
}

/// Names a request between a frontend and the replica; chosen by the runtime, unique while pending.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

impl RequestId {
    /// Identifier of requests that no frontend waits for.
    pub const NOBODY: Self = Self(u64::MAX);
    /// Identifier of the writes that repair damage found by a scrub or a read.
    pub(crate) const REPAIR: Self = Self(u64::MAX - 1);

    /// Whether a frontend or a client asked for it, rather than this program.
    pub(crate) fn is_of_client(self) -> bool {
        self != Self::NOBODY && self != Self::REPAIR
    }
}

/// Requests of a frontend. Ranges are whole blocks.
#[derive(Clone, Debug)]
pub enum Op {
    /// `payload` has exactly `range.len` bytes, at most `REQUEST_BYTES_MAX`. It was copied once and
    /// does not change any more (P34).
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
    /// Make a volume as large as this. Completed when that is committed; the store tells when there
    /// is room.
    Resize {
        volume: VolumeId,
        bytes: u64,
    },
    /// Keep the present content of the volumes under this number. Completed when the entry is
    /// committed. The store tells when the snapshot is kept.
    Snapshot {
        id: SnapshotId,
    },
    DropSnapshot {
        id: SnapshotId,
    },
    /// Make all volumes hold the content of the snapshot `to`, and keep it under the number `mark`.
    /// Completed when the entry is committed.
    Rollback {
        to: SnapshotId,
        mark: SnapshotId,
    },
}

/// Why a request failed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum RequestError {
    /// A write that fails so may or may not have happened, as after a crash.
    #[error("this replica is not the primary")]
    NotPrimary,
    #[error(
        "the range is not within the volume, not whole blocks, or too long; or the volume is at least as large already"
    )]
    Range,
    #[error("the snapshot exists already, or is not here, or there are as many as there can be")]
    Snapshot,
    #[error("the resource is attached elsewhere, or the session is over")]
    NotAttached,
    #[error("too many requests or bytes are in flight")]
    Busy,
    #[error("the replica has stopped using its store")]
    StoreFailed,
    #[error("a block is damaged on every replica")]
    Unreadable,
    /// A write that fails so may or may not have happened, as after a crash.
    #[error("fewer copies are in sync and answer than are wanted (min-copies)")]
    Copies,
}

/// Events that a replica handles. Those of one connection arrive in the order of that connection;
/// after its `PeerDown` none of them arrives any more.
#[derive(Clone, Debug)]
pub enum Event {
    /// The control plane's record, at start and after every change; older versions are ignored.
    Record(Box<ResourceRecord>),
    /// A connection to this node stands. On a peer that is already up it means a new connection.
    PeerUp {
        node: NodeId,
    },
    PeerDown {
        node: NodeId,
    },
    Message {
        from: NodeId,
        envelope: Envelope,
    },
    /// A request of a device on this node.
    Request {
        id: RequestId,
        op: Op,
    },
    /// A request of a client. The changes of a client arrive in the order of their numbers, each
    /// once.
    ClientRequest {
        id: RequestId,
        op: Op,
        mark: ClientMark,
    },
    /// Room in the journal, told after every [`Effect::Append`] that was polled; 0 until first
    /// told. The replica appends only what fits into it.
    Room {
        /// Journal bytes for entries of clients, in batches of any size.
        bytes: u64,
        /// The same for epoch starts, which may use the reserve (R18).
        with_reserve: u64,
    },
    /// The journal holds everything up to `index` durably. `began`: when the oldest write was
    /// issued that this took; `next`: when the oldest was that is still in flight.
    Durable {
        index: Index,
        began: Time,
        next: Option<Time>,
    },
    Promised {
        epoch: Epoch,
    },
    /// Answers [`Effect::Cut`].
    CutDone {
        end: Position,
        chain: Chain,
    },
    /// Answers [`Effect::Restart`].
    Restarted {
        at: Position,
    },
    /// Answers [`Effect::InstallExtent`].
    ExtentInstalled {
        volume: VolumeId,
        extent: Extent,
    },
    /// Answers [`Effect::FinishCopy`].
    CopyFinished,
    /// Answers [`Effect::LoadLog`]: at least one batch, beginning at `from`; `None`: no longer in
    /// the journal.
    LogLoaded {
        peer: NodeId,
        from: Index,
        batches: Option<Vec<Arc<Batch>>>,
    },
    /// Answers [`Effect::ListExtents`], in the order of asking.
    ExtentList {
        peer: NodeId,
        extents: Vec<(VolumeId, Extent)>,
    },
    /// Answers [`Effect::LoadExtent`]: committed content as of commit index `at`; empty data is
    /// zeroes.
    ExtentLoaded {
        peer: NodeId,
        volume: VolumeId,
        extent: Extent,
        version: Index,
        at: Index,
        data: Bytes,
        /// Blocks that no replica holds whole, by their place in the extent. Only for a peer that
        /// [`holds_damage`](crate::Replica::holds_damage).
        damaged: Vec<u32>,
    },
    /// Answers [`Effect::SumExtent`]: the sums of this replica's blocks, at some moment since. No
    /// sums: the store cannot say.
    ExtentSummed {
        volume: VolumeId,
        extent: Extent,
        at: Position,
        held: BlockSums,
    },
    /// Begin to compare the replicas, if this is a primary that serves and does not do so already;
    /// or end it.
    Scrub(Option<ScrubOrder>),
    /// The store has read what its scrub entry `at` is about.
    Scrubbed {
        at: Index,
        held: BlockSums,
    },
    /// A read has found a block of this extent that does not fit its checksum; [`Effect::Mended`]
    /// follows while this is primary.
    Mend {
        volume: VolumeId,
        extent: Extent,
    },
    /// Answers [`Effect::LoadBlocks`] with committed content; empty if that is damaged.
    BlocksLoaded {
        range: Range,
        data: Bytes,
    },
    /// This replica's share of the limit for everything that the node fills, in bytes per second. 0
    /// means no limit. Counts instead of [`mainstay_types::BackgroundLimits::max_rate`]
    /// until a record has another rate.
    BackgroundRate {
        bytes_per_s: u64,
    },
    /// Whether users of the devices know that a write may be lost until they have flushed. Until
    /// told, they do not.
    Cached(bool),
    /// The snapshots whose files the store holds. None until told.
    SnapshotsHeld(BTreeSet<SnapshotId>),
    /// R13: the store has given up its device.
    StoreFailed,
    /// R10: there is a new lease, but the last one had ended before. So this replica does not lead
    /// in this epoch any more. In between the control plane may have promoted another replica, of
    /// which the new lease says nothing.
    LeaseEnded,
    /// Stop admitting, finish the requests in flight, then say [`Effect::Demoted`].
    Demote,
    /// Hold new writes; [`Effect::Paused`] follows when everything sequenced is committed.
    Pause,
    Resume,
    /// The replica is about to be closed, and the connections of its node stay. The replica tells
    /// its primary, and follows no other one.
    Close,
    /// The time of [`crate::Replica::next_deadline`] has come.
    Tick,
}

/// Effects that the runtime carries out, in this order.
#[derive(Clone, Debug)]
pub enum Effect {
    Send {
        to: NodeId,
        envelope: Envelope,
    },
    Append(Arc<Batch>),
    Commit(Index),
    Promise(Epoch),
    Cut(Position),
    Restart {
        at: Position,
        chain: Chain,
        /// Sizes of the volumes there.
        volumes: Vec<u64>,
        /// Which snapshots there are.
        snapshots: Vec<SnapshotId>,
        /// The last change that a client asked for.
        client: ClientMark,
    },
    InstallExtent {
        volume: VolumeId,
        extent: Extent,
        version: Index,
        data: Bytes,
        /// Blocks that are to be held as damaged, by their place in the extent, ascending.
        damaged: Vec<u32>,
        /// Blocks that are here as they are to be, and not among `data`, in the same manner.
        kept: Vec<u32>,
    },
    /// Read an extent and sum its blocks, for the copy that began at `at`.
    SumExtent {
        volume: VolumeId,
        extent: Extent,
        at: Position,
    },
    FinishCopy {
        need: Index,
    },
    /// Read batches from `from` on for `peer`: about `max_bytes`, at least one.
    LoadLog {
        peer: NodeId,
        from: Index,
        max_bytes: u64,
    },
    ListExtents {
        peer: NodeId,
        newer_than: Index,
    },
    LoadExtent {
        peer: NodeId,
        volume: VolumeId,
        extent: Extent,
    },
    /// Read a range of at most an extent.
    LoadBlocks {
        range: Range,
    },
    /// Answers [`Event::Mend`].
    Mended {
        volume: VolumeId,
        extent: Extent,
        mended: Mended,
        /// With [`Mended::Nowhere`]: the blocks that no replica holds whole, by their place in the
        /// extent. Empty where a replica promised content that did not come.
        lost: Vec<u32>,
    },
    /// Writes complete in log order.
    Complete {
        id: RequestId,
        result: Result<(), RequestError>,
    },
    /// Execute this read now: no uncommitted entry overlaps it. The runtime completes it.
    Read {
        id: RequestId,
        range: Range,
    },
    Propose(Proposal),
    RoleChanged(Role),
    Paused {
        at: Position,
    },
    Demoted,
}
