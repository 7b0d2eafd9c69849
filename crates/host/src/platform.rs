//! Interface between a host and the world around it: operations that the host starts, and its news.

use bytes::Bytes;
use mainstay_codec::{Envelope, Pieces};
use mainstay_replica::{Effect, RequestError, RequestId};
use mainstay_store::{Area, DamagedBlock, Output};
use mainstay_types::{Extent, Index, NodeId, Position, Proposal, Role, Time, VolumeId};
use thiserror::Error;

/// The world around a host: the engine's shard, or the simulator. Everything is started here and
/// answered later, by a call of the host; nothing blocks.
pub trait Platform {
    fn now(&self) -> Time;

    /// Whether what has been read or written may be answered at this moment: the lease holds and
    /// the guard has not acted (R10, R19).
    fn may_answer(&self) -> bool;

    /// Starts an operation of the store. Answered by [`crate::Host::store_done`].
    fn store_operation(&mut self, output: Output);

    /// Reads whole blocks. Answered by [`crate::Host::read_done`] with the same token. `passes`:
    /// the content is for a device of this node, and is not kept for long.
    fn read(&mut self, token: u64, area: Area, offset: u64, len: u64, passes: bool);

    /// Whether it costs little to know that whole blocks of a volume are a hole, so that they need
    /// not be read to be zeroes. Asked for long reads for which no client waits.
    fn is_hole(&mut self, _volume: VolumeId, _offset: u64, _len: u64) -> bool {
        false
    }

    /// The pieces one after the other, in memory that a disk can take.
    fn join(&mut self, pieces: Pieces) -> Bytes;

    /// Sends to the engine of another node. `answer`: a replica speaks to its primary, on the
    /// connection that the primary opened. A connection that is down swallows it and is reported by
    /// itself.
    fn send(&mut self, to: NodeId, answer: bool, envelope: Envelope);

    /// Answers a request of a device: the pieces of a read, nothing otherwise.
    fn complete(&mut self, id: RequestId, answer: DeviceAnswer);

    fn happened(&mut self, happened: Happened);

    /// Shows what passes between the two cores, before it is carried out, to a platform that judges
    /// it. Does nothing by default.
    #[inline]
    fn observe(&mut self, _seen: CoreMessage<'_>) {}
}

/// Word of one core to the other: an effect of the replication core, or an output of the store.
#[derive(Clone, Copy, Debug)]
pub enum CoreMessage<'a> {
    Effect(&'a Effect),
    Output(&'a Output),
}

/// Answer to a request of a device.
pub type DeviceAnswer = Result<Pieces, AnswerError>;

/// Why a request failed.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
pub enum AnswerError {
    #[error(transparent)]
    Request(#[from] RequestError),
    /// R10: content that was read may not be the newest any more, or the history may not go on with
    /// what was written.
    #[error("the lease of this node has ended")]
    NoLease,
    #[error("the disk could not be read")]
    Disk,
}

/// News for the runtime, besides answers.
#[derive(Clone, Debug)]
pub enum Happened {
    RoleChanged(Role),
    /// A compare-and-set for the control plane.
    Proposed(Proposal),
    /// Everything that was admitted is committed, and writes are held.
    Paused {
        at: Position,
    },
    /// A volume has this size now: the log says so, and there is room for it (R17). Larger than
    /// before; smaller only in the target of a copy.
    Resized {
        volume: VolumeId,
        bytes: u64,
    },
    /// The store has something new to say of its snapshots (R17).
    SnapshotsChanged,
    /// Stopped serving because it was asked to.
    Demoted,
    /// R13: the store is not used any more. Said once.
    Failed {
        reason: String,
    },
    /// The pool has no space for what is to be written to a volume; said once until there is space
    /// again. It is tried anew, and the journal fills meanwhile.
    NoSpace {
        reason: String,
    },
    /// A read has found damage. On a primary it waits until that is mended.
    Damaged(DamagedBlock),
    /// No replica has the block: a read of it gets an error.
    Unreadable(DamagedBlock),
    /// Blocks of an extent are sent to a replica as damaged, because no replica has them whole.
    /// `blocks` is their number.
    DamageCopied {
        to: NodeId,
        volume: VolumeId,
        extent: Extent,
        blocks: u64,
    },
    /// The end of [`crate::Host::start_digest`].
    Digested(Result<Digest, DigestError>),
}

/// Digest of the content of a replica: equal digests at equal indexes mean equal content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digest {
    pub index: Index,
    /// One for each volume. Extents of zeroes are left out, so that it does not matter whether one
    /// was written with zeroes or never.
    pub volumes: Vec<u64>,
}

/// Why there is no digest.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DigestError {
    #[error("a digest is being made already")]
    Busy,
    #[error("the replica is being copied")]
    Incomplete,
    #[error("the log moved while the digest was made")]
    Moved,
    #[error("the disk could not be read: {0}")]
    Disk(String),
}
