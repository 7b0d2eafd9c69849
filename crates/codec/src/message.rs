//! Messages between engines about one resource.
//!
//! The primary of an epoch talks; replicas answer. Every message carries resource, epoch and
//! configuration version (R1), in [`Envelope`].

use crate::Batch;
use crate::client::{ClientAnswer, ClientAsk};
use bytes::Bytes;
use mainstay_types::{
    Chain, ClientMark, ConfigVersion, DataState, Epoch, Extent, Incarnation, Index, Instance, NodeId,
    Position, Range, ResourceId, SnapshotId, VolumeId,
};
use std::sync::Arc;

/// A message with what R1 demands of it.
#[derive(Clone, Debug)]
pub struct Envelope {
    pub resource: ResourceId,
    /// The epoch in which the primary speaks, or which a replica answers in.
    pub epoch: Epoch,
    /// Version of the record that the sender holds.
    pub version: ConfigVersion,
    /// Primary to replica: the incarnation it expects there. Replica to primary: its own (R9).
    pub incarnation: Incarnation,
    pub message: Message,
}

/// Content of a range of blocks on one replica, as checksums. A replica sends it for a scrub, or
/// before an extent is copied to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockSums {
    /// [`block_sum`](crate::block_sum) of each block; none when the replica cannot say.
    pub sums: Vec<u64>,
    /// Blocks that do not fit the replica's own checksums, by their place in `sums`, ascending.
    /// Their sums say nothing about the data that was written.
    pub damaged: Vec<u32>,
}

/// State of a replica's log, as far as the replica knows it; the answer to [`Message::Attach`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogState {
    pub data: DataState,
    /// Last entry that is durable in the journal.
    pub end: Position,
    /// Chain after `end`.
    pub chain: Chain,
    /// Highest commit index that this replica has learnt; never above `end`.
    pub commit: Index,
    /// While inconsistent: every extent of the backing store is at least as new as this index.
    /// While consistent: equal to `commit`.
    pub base: Index,
    /// For each epoch with entries: the epoch and its last index; ascending; the newest 64 at most.
    /// The first one may reach below what the journal still holds.
    pub epochs: Vec<(Epoch, Index)>,
}

/// Why a replica refused a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reject {
    /// The replica has promised a higher epoch, given here (R1).
    Epoch(Epoch),
    /// No such resource, incarnation or session here: the replica is being closed, or was opened
    /// anew.
    Unknown,
    /// Batch does not continue the replica's log; its end is given here.
    Gap(Position),
    /// Same position, different chain: one of the two logs is damaged.
    Chain,
    /// The replica has stopped using its device (R13).
    Failed,
    /// The replica does not hold the snapshot that the entry rolls back to, so it must be copied.
    Snapshot,
}

/// Primary to replica (P→R) or replica to primary (R→P).
#[derive(Clone, Debug)]
pub enum Message {
    /// First on every connection, both ways.
    Hello {
        cluster: u64,
        node: NodeId,
        to: NodeId,
    },
    /// Sent on a quiet connection to learn whether it still lives; answered by `Pong`.
    Ping,
    Pong,
    /// P→R: I am the primary of this epoch. The replica persists its promise, then answers (R1).
    Attach,
    /// R→P.
    AttachReply(LogState),
    /// P→R: cut your log after `to` (R7). `chain` is the primary's chain at `to` where it still has
    /// it.
    Cut {
        to: Position,
        chain: Option<Chain>,
    },
    /// R→P: the cut is durable.
    CutReply {
        end: Position,
    },
    /// P→R.
    Append(Arc<Batch>),
    /// R→P: everything up to `durable` is durable here. Cumulative.
    Ack {
        durable: Index,
    },
    /// R→P: everything up to `index` is in memory here and given to the journal, in this instance.
    /// Cumulative; in mode B only.
    Received {
        instance: Instance,
        index: Index,
    },
    /// P→R: everything up to `commit` is committed.
    Commit {
        commit: Index,
    },
    /// P→R: mark yourself inconsistent, then restart your log empty right after `at` (R16), where
    /// the volumes have these sizes in bytes and there are these snapshots, in ascending order.
    CopyBegin {
        at: Position,
        chain: Chain,
        volumes: Vec<u64>,
        snapshots: Vec<SnapshotId>,
        /// The last change before it that a client asked for.
        client: ClientMark,
    },
    /// R→P: marked, durable.
    CopyBeginReply {
        at: Position,
        /// Whether the replica has checksums of its blocks, so that it can hold a block as damaged.
        sums: bool,
    },
    /// P→R: say what you hold of this extent in the copy that began at `at`; it may be that little
    /// of it must be sent.
    CopyAsk {
        at: Position,
        volume: VolumeId,
        extent: Extent,
    },
    /// R→P: answers it.
    CopyHeld {
        at: Position,
        volume: VolumeId,
        extent: Extent,
        held: BlockSums,
    },
    /// P→R: content of one extent as of commit index `at`; empty `data` means zeroes. `version` is
    /// the version-table entry that belongs to the content.
    CopyExtent {
        volume: VolumeId,
        extent: Extent,
        version: Index,
        at: Index,
        data: Bytes,
        /// Blocks that no replica holds whole, by their place in the extent, ascending. The bytes
        /// of `data` in their place mean nothing.
        damaged: Vec<u32>,
        /// Blocks that the target holds with the same content as the source, by their place in the
        /// extent, ascending. They are not among `data`.
        kept: Vec<u32>,
    },
    /// R→P: installed (not necessarily flushed).
    CopyExtentAck {
        volume: VolumeId,
        extent: Extent,
    },
    /// P→R: that was all; once your log is committed up to `need` you are consistent.
    CopyEnd {
        need: Index,
    },
    /// R→P: flushed, consistent, and recorded so durably.
    CopyEndReply,
    /// R→P: sums of this replica's blocks in the range of the scrub entry `at`, as of that entry.
    ScrubSums {
        at: Index,
        held: BlockSums,
    },
    /// P→R: send the committed content of a range of at most an extent, as of `at` or later.
    ReadBlocks {
        range: Range,
        at: Index,
    },
    /// R→P: answers it; `data` fills the range, or is empty when this replica cannot say.
    BlocksRead {
        range: Range,
        data: Bytes,
    },
    /// R→P.
    Rejected(Reject),
    /// From a client, on the connection that it opened.
    ClientAsk(ClientAsk),
    /// To a client.
    ClientAnswer(ClientAnswer),
}
