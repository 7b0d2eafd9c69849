//! The storage core of one replica: a journal in front of a backing store, as a pure state machine.
//!
//! The caller calls methods. [`Store::poll`] tells it which operations to carry out, and
//! [`Store::complete`] takes their results. Operations in flight may complete in any order. No
//! clock, no I/O; [`Media`] is used by formatting and recovery only.
//!
//! Guarantees, for any disks that do not lie about a completed durable write:
//! - Only committed entries, durable in the own journal, are content of a volume (R7). Uncommitted
//!   ones can be cut. A large write may fill blocks that held nothing before it is committed; they
//!   read as zeroes until then (`fill`).
//! - A damaged journal record that is known to have been durable is reported as corruption. Only a
//!   record that may never have been durable is cut as a torn tail (R12). Cut records never come
//!   back.
//! - Payload that is read back from the journal is checked against the checksum of its entry before
//!   it is written to a volume. Damage is a failure. A caller that reads the content of a
//!   [`Segment`] gets what it needs for the same check.
//! - After any failed operation the store issues nothing more and acknowledges nothing (R13). A
//!   volume without space is not a failure: its write waits for [`Store::retry`], and the journal
//!   fills meanwhile.
//! - Volumes are flushed, then versions and superblock are durable, then journal space is reused.
//!   Versions on disk may be too new, never too old (R14).
//! - Discards and write-zeroes read as zeroes on exactly their range. Discards free its space,
//!   write-zeroes keep it (R15).
//! - A copy target is durably inconsistent from before its first extent is written until all of it
//!   is flushed (R16). An extent that is copied late never overwrites newer content.
//! - Journal, memory, overlay and operations in flight are bounded by [`Tuning`] (R18).
//! - If the replica has sums, a block of a volume that does not hold its last written content is
//!   damage. A caller that reads a volume asks [`Store::check_blocks`].
//!
//! Not guaranteed: a durable record that decays looks like a torn tail, until a write that began
//! after it has become durable. So does what it has filled in a volume. The peers find such damage.
//!
//! An entry's way: `append` → queued → placed in the ring, being written → durable → (`commit`)
//! applied: in the overlay, readable → destaged → flushed → behind the checkpoint, its space
//! reusable. A large write to where nothing was written before takes a shorter way (`fill`).
//!
//! Where to read on: `journal` (the ring), `append` (from queue to overlay), `overlay`, `destage`
//! (a *pass* up to one position: writes, flushes, version table, superblock), `fill` (large writes
//! straight to their place), `superblock`
//! (promise, cut, restart: everything that waits for a superblock), `copy` (the target of an extent
//! copy), `grow` (volumes that get larger), `before_copy` (the last whole content of a target),
//! `snapshots`, `rollback`, `scrub`, `sums`, `read`, `recovery` (format and recover).

mod ahead;
mod api;
mod append;
mod before_copy;
mod copy;
mod destage;
mod fill;
mod grow;
mod inspect;
mod journal;
mod overlay;
mod read;
mod recovery;
mod rollback;
mod scrub;
mod snapshots;
mod sums;
mod superblock;
mod versions;
mod volume_op;

pub use api::{
    Area, Damaged, Gone, IoFailure, IoResult, LogPiece, LogSource, Media, MediaError, OpId, Output,
    PAYLOADS_READ_BYTES_MAX, Payload, RecoverError, Segment, Segments, Source, StoreConfig, Tuning,
};

pub use inspect::{FoundBatch, FoundEntry, Inspection, inspect};
pub use recovery::table_blocks;
pub use sums::{Checked, DamagedBlock};
pub use superblock::SUPERBLOCK_COPIES;

use ahead::Ahead;
use append::JournalInFlight;
use before_copy::Kept;
use copy::Install;
use destage::Pass;
use fill::Fills;
use journal::Journal;
use mainstay_codec::{Batch, Superblock, UnfinishedCopy};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BLOCK_BYTES, Chain, ClientMark, Epoch, Extent, Index, Position, SnapshotId, SnapshotOn, VolumeId, reach,
};
use overlay::Overlay;
use scrub::Pin;
use snapshots::Layer;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use sums::{PageAt, Sums};
use superblock::{Job, SuperblockWrite};
use versions::Versions;
use volume_op::{Group, GroupId};

/// See the top of this crate.
pub struct Store {
    /// With the sizes of the volumes as of the applied entries.
    config: StoreConfig,
    /// Sizes of the volumes at the end of the log.
    end_volumes: Vec<u64>,
    /// How large the file of each volume is, at least.
    files: Vec<u64>,
    /// Size that the area of superblocks and version tables has at least, in bytes.
    meta_bytes: u64,
    /// Volumes whose files are being made larger, and those of them that found no space in the
    /// pool.
    growing: BTreeSet<VolumeId>,
    grow_stalled: BTreeSet<VolumeId>,
    /// Files may have to be made larger.
    grow_due: bool,
    tuning: Tuning,

    /// The superblock as it was last submitted. Its fields count only once it is durable. So fields
    /// that other parts look at are kept again below.
    superblock: Superblock,
    superblock_write: Option<SuperblockWrite>,
    /// Waiting for their turn to change the superblock.
    jobs: VecDeque<Job>,
    promised: Epoch,
    /// Promises that are durable and wait for the journal to come to rest.
    promises_made: VecDeque<Epoch>,
    unfinished: Option<UnfinishedCopy>,

    journal: Journal,
    /// Appended, not yet placed.
    queue: VecDeque<Arc<Batch>>,
    /// Journal bytes that the queue will need.
    queue_bytes: u64,
    /// In the order of the log.
    journal_writes: VecDeque<JournalInFlight>,
    /// Position and chain of the last appended batch.
    end: Position,
    end_chain: Chain,
    /// Epochs up to `end` with their last index.
    epochs: Vec<(Epoch, Index)>,
    durable: Index,
    durable_chain: Chain,
    /// Highest commit index heard of; may be ahead of the log.
    commit: Index,
    /// Everything up to here is in the overlay or beyond: committed, and durable here.
    applied: Index,
    /// Batches with entries after `applied`, placed or not. Their payload may be missing.
    pending: VecDeque<Arc<Batch>>,

    overlay: Overlay,
    /// Large writes whose payload is in the volumes already.
    fills: Fills,
    /// Content under the overlay that is not in the volumes yet, up to one snapshot each, oldest
    /// first.
    layers: VecDeque<Layer>,
    /// The last change that a client asked for, as of `applied` (S18).
    client: ClientMark,
    snapshots: BTreeMap<SnapshotId, SnapshotOn>,
    /// The highest number that a snapshot had here since the store was opened.
    last_snapshot: SnapshotId,
    /// Found no space in the pool, see `rollback.rs`.
    restore_stalled: bool,
    /// Dropped; their files are removed after the next checkpoint.
    doomed: Vec<SnapshotId>,
    versions: Versions,
    sums: Sums,
    pass: Option<Pass>,
    /// A checkpoint up to the present is wanted, no matter how little there is to destage.
    destage_forced: bool,

    /// Between [`Output::Restarted`] and [`Output::CopyFinished`].
    copying: bool,
    /// Sizes of the volumes where the log was restarted, which are those of the extents that come.
    copy_volumes: Vec<u64>,
    /// Extents installed since the restart.
    installed: BTreeSet<(VolumeId, Extent)>,
    /// Blocks that were destaged into extents that are not installed yet: the copies of these
    /// extents must not overwrite them with something older.
    ahead: Ahead,
    installs: VecDeque<Install>,
    /// Groups that are still to complete, for each extent being installed, and its version.
    installing: BTreeMap<(VolumeId, Extent), (usize, Index)>,
    finish: Option<Index>,
    /// Whether the last whole content of a copy's target is kept.
    kept: Kept,

    /// In flight, in no order: there are few, and a search through them is cheaper than a tree.
    ops: Vec<(OpId, Op)>,
    groups: BTreeMap<GroupId, Group>,
    /// How many of them are a pass's, and their bytes.
    of_pass: (usize, u64),
    /// Volumes written since their last flush was issued.
    touched: BTreeSet<VolumeId>,
    /// Extents that are being scrubbed.
    pins: Vec<Pin>,
    outputs: VecDeque<Output>,
    next_op: u64,
    failed: bool,
}

/// Purpose of an operation in flight.
#[derive(Clone, Copy, Debug)]
enum Op {
    JournalWrite,
    Superblock,
    VersionTable,
    Flush,
    Grow {
        volume: VolumeId,
        bytes: u64,
        meta_bytes: u64,
    },
    SnapshotTake(SnapshotId),
    SnapshotRestore(SnapshotId),
    SnapshotDrop(SnapshotId),
    /// Payload of a group's piece that had to be read from the journal.
    Piece {
        group: GroupId,
        piece: usize,
        len: u64,
    },
    Volume(GroupId),
    /// Payload of the batch with this first entry, written to its place.
    Fill(Index),
    UndoFlush,
    SumsRead(PageAt),
    SumsWrite {
        volume: VolumeId,
        first: u64,
        end: u64,
    },
}

impl Store {
    #[must_use]
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    #[must_use]
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// The highest epoch whose promise is durable (R1).
    #[must_use]
    pub fn promised(&self) -> Epoch {
        self.promised
    }

    /// Version-table entry of an extent: at least the index of the last committed entry that
    /// changed it.
    #[must_use]
    pub fn version(&self, volume: VolumeId, extent: Extent) -> Index {
        self.versions.get(volume, extent)
    }

    /// Whether no entry has ever changed an extent of the volume. One that was copied or rolled
    /// back is never blank.
    #[must_use]
    pub fn is_blank(&self, volume: VolumeId) -> bool {
        self.versions.is_blank(volume)
    }

    /// Tells the outcome of an operation. A failure is final (R13).
    ///
    /// # Panics
    /// On an operation that is not in flight.
    pub fn complete(&mut self, op: OpId, result: IoResult) {
        if self.failed {
            reach!("store: an operation ends after the failure");
            return;
        }
        let at = self.ops.iter().position(|(id, _)| *id == op);
        assert!(at.is_some(), "operation {op:?} is not in flight");
        let kind = at.map(|at| self.ops.swap_remove(at).1);
        match kind {
            Some(Op::SnapshotTake(SnapshotId::BEFORE_COPY)) => return self.kept_taken(&result.map(|_| ())),
            Some(Op::SnapshotTake(id)) => return self.snapshot_taken(id, result.map(|_| ())),
            Some(Op::SnapshotRestore(id)) => return self.snapshot_restored(id, result.map(|_| ())),
            // The files that are left of one are removed when the replica is opened.
            Some(Op::SnapshotDrop(SnapshotId::BEFORE_COPY)) => return self.kept_dropped(),
            Some(Op::SnapshotDrop(_)) => return,
            _ => {}
        }
        let ignored = match kind {
            Some(Op::Flush) => planted(Bug::FailedFlushIgnored),
            _ => planted(Bug::FailedWriteIgnored),
        };
        let result = if ignored { result.or(Ok(None)) } else { result };
        if let (Some(Op::Volume(group)), Err(IoFailure { no_space: true, .. })) = (kind, &result) {
            return self.group_stalled(group);
        }
        if let (Some(Op::Fill(first)), Err(IoFailure { no_space: true, .. })) = (kind, &result) {
            return self.filled(first, false);
        }
        if let (Some(Op::SumsWrite { volume, first, end }), Err(IoFailure { no_space: true, .. })) =
            (kind, &result)
        {
            return self.sums_stalled(volume, first, end);
        }
        if let (Some(Op::Grow { volume, .. }), Err(IoFailure { no_space: true, .. })) = (kind, &result) {
            reach!("store: a volume finds no space to grow");
            self.grow_stalled.insert(volume);
            return self.give_up_kept();
        }
        let (Some(kind), Ok(bytes)) = (kind, &result) else {
            let detail = result.err().map_or_else(String::new, |failure| failure.detail);
            return self.fail(format!("{} failed: {detail}", kind.map_or("operation", Op::name)));
        };
        match kind {
            Op::JournalWrite => self.journal_written(op),
            Op::Superblock => self.superblock_written(),
            Op::VersionTable => self.version_table_written(),
            Op::Flush => self.volume_flushed(),
            Op::Grow { volume, bytes, meta_bytes } => self.volume_grown(volume, bytes, meta_bytes),
            Op::Piece { group, piece, len } => match bytes {
                Some(bytes) if bytes.len() as u64 == len => self.piece_read(group, piece, bytes.clone()),
                _ => self.fail("journal read returned the wrong number of bytes".to_owned()),
            },
            Op::Volume(group) => self.group_written(group),
            Op::Fill(first) => self.filled(first, true),
            Op::UndoFlush => self.undo_flushed(),
            Op::SumsRead(at) => match bytes {
                Some(bytes) if bytes.len() as u64 == BLOCK_BYTES => self.sums_read(at, bytes),
                _ => self.fail("a read of sums returned the wrong number of bytes".to_owned()),
            },
            Op::SumsWrite { volume, first, end } => self.sums_written(volume, first, end),
            Op::SnapshotTake(_) | Op::SnapshotRestore(_) | Op::SnapshotDrop(_) => {}
        }
    }

    /// The next thing to do or to know.
    pub fn poll(&mut self) -> Option<Output> {
        if self.outputs.is_empty() && !self.failed {
            self.issue_journal_writes();
            self.tell_promises();
            self.issue_grows();
            self.undo_fills();
            self.issue_superblock();
            self.write_sums_early();
            self.destage();
            self.issue_installs();
        }
        self.outputs.pop_front()
    }

    /// R13: stop for good.
    fn fail(&mut self, reason: String) {
        reach!("store: an operation failed and the store stops");
        self.failed = true;
        self.ops.clear();
        self.groups.clear();
        self.of_pass = (0, 0);
        self.outputs.clear();
        self.outputs.push_back(Output::Failed { reason });
    }

    fn start(&mut self, op: Op) -> OpId {
        let id = OpId(self.next_op);
        self.next_op += 1;
        self.ops.push((id, op));
        id
    }
}

impl Op {
    fn name(self) -> &'static str {
        match self {
            Self::JournalWrite => "journal write",
            Self::Superblock => "superblock write",
            Self::VersionTable => "version table write",
            Self::Flush | Self::UndoFlush => "volume flush",
            Self::Grow { .. } => "growing a volume",
            Self::SnapshotTake(_) => "taking a snapshot",
            Self::SnapshotRestore(_) => "rolling back to a snapshot",
            Self::SnapshotDrop(_) => "removing a snapshot",
            Self::Piece { .. } => "journal read",
            Self::Volume(_) | Self::Fill(_) => "volume write",
            Self::SumsRead(_) => "reading sums",
            Self::SumsWrite { .. } => "writing sums",
        }
    }
}
