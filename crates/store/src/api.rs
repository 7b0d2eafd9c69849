//! The words that the store and its caller exchange: configuration, operations, answers, errors.

use bytes::Bytes;
use mainstay_codec::sums::{KeptSums, payload_sums};
use mainstay_codec::{Batch, DecodeError, LocalHeader, crc32c};
pub use mainstay_types::Area;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{
    BATCH_BYTES_MAX, BLOCK_BYTES, Chain, EXTENT_BYTES, Epoch, Extent, Incarnation, Index,
    JOURNAL_RESERVE_BYTES, JOURNAL_WRITE_BYTES_MAX, JOURNAL_WRITES_MAX, Position, REQUEST_BYTES_MAX, Range,
    ResourceId, SnapshotId, VolumeId, reach,
};
use smallvec::SmallVec;
use std::sync::Arc;
use thiserror::Error;

/// Parameters with which a replica is formatted. The superblock keeps them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    pub resource: ResourceId,
    pub incarnation: Incarnation,
    /// Size of each volume in bytes, a multiple of the block size. Entries of the log may raise it.
    pub volumes: Vec<u64>,
    /// Size of the journal in bytes, a multiple of the block size. The caller demands
    /// `JOURNAL_BYTES_MIN` of its users; the store itself works with any ring of two batches.
    pub journal_bytes: u64,
    /// Whether each read of a volume is compared with the sums of its blocks
    /// (docs/adr/0012-block-checksums.md).
    pub sums: bool,
}

/// Limits of the running store (R18). They are not kept on disk and may differ after each start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Destaging starts when the overlay holds more bytes than this, or more is to be given back to
    /// the pool.
    pub destage_start_bytes: u64,
    /// Number of parts of the journal, of which a pass frees at most one, but one batch at least. A
    /// write that waits for room in a full journal waits for one pass, so more parts make its wait
    /// shorter; each costs a checkpoint. 1: a pass frees all that there is.
    pub pass_parts: u64,
    /// Smallest part, unless it would be more than half of the journal: a checkpoint costs the same
    /// for a small part as for a large one.
    pub pass_bytes_min: u64,
    /// Payloads of batches that are kept in memory; beyond it they are read from the journal.
    pub memory_bytes_max: u64,
    /// Largest journal write that is made of several queued batches, and most bytes of those in
    /// flight together, unless one batch is larger.
    pub write_bytes_max: u64,
    /// Most journal writes in flight.
    pub journal_writes_max: usize,
    /// Largest merged write to a volume.
    pub destage_write_bytes_max: u64,
    /// Most destage operations in flight. Blocks that lie scattered are one each, and a disk wants
    /// many of them at once.
    pub destage_writes_max: usize,
    /// Number of destage writes that begin together while little has gathered and the journal is
    /// not being written. A journal write that comes then waits for them in the disk's queue, so
    /// they are few. Begun one by one, each would cost a notification of the disk and a wake-up.
    pub destage_bunch: usize,
    /// Most bytes of destage operations in flight, because reads wait behind them (R18). One
    /// operation counts as no more than the largest write.
    pub destage_bytes_max: u64,
    /// Most extent installations in flight.
    pub installs_max: usize,
    /// Most runs in the overlay; discards cost no journal bytes worth mentioning but they cost
    /// memory.
    pub runs_max: usize,
    /// Shortest run of zeroes in the copy of an extent that becomes a hole, in bytes. Shorter runs
    /// are written, because a hole is an operation of its own.
    pub hole_bytes_min: u64,
    /// Part of the journal that [`crate::Store::room`] keeps back for epoch starts.
    pub reserve_bytes: u64,
    /// Sums of blocks that are kept in memory, unless more are needed by writes under way: four
    /// bytes for each block.
    pub sums_bytes_max: u64,
    /// Smallest write that goes straight to its place in a volume if nothing is there, in bytes.
    /// `u64::MAX`: none does.
    pub fill_bytes_min: u64,
    /// Largest batch that may come, in journal bytes. Destaging starts when there is no room for
    /// one, so the journal must be at least twice this and the reserve.
    pub batch_bytes_max: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            destage_start_bytes: 32 << 20,
            pass_parts: 32,
            pass_bytes_min: 4 << 20,
            memory_bytes_max: 64 << 20,
            write_bytes_max: JOURNAL_WRITE_BYTES_MAX,
            journal_writes_max: JOURNAL_WRITES_MAX,
            destage_write_bytes_max: EXTENT_BYTES,
            destage_writes_max: 64,
            destage_bunch: 4,
            destage_bytes_max: 8 << 20,
            installs_max: 8,
            runs_max: 1 << 20,
            hole_bytes_min: 64 << 10,
            reserve_bytes: JOURNAL_RESERVE_BYTES,
            sums_bytes_max: 16 << 20,
            fill_bytes_min: 128 << 10,
            batch_bytes_max: BATCH_BYTES_MAX + BLOCK_BYTES,
        }
    }
}

/// Why a [`Media`] did not do what it was asked.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{detail}")]
pub struct MediaError {
    pub detail: String,
}

/// Synchronous access to a replica's areas, for formatting and recovery only.
pub trait Media {
    /// Exactly `len` bytes; bytes that were never written read as zeroes.
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError>;
    /// Returns when `data` would survive a power cut.
    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError>;
    /// Returns when everything that was ever written to the area, by whomever, would survive a
    /// power cut.
    fn flush(&mut self, area: Area) -> Result<(), MediaError>;
    /// Makes blocks of a volume zeroes, durably after the next flush of it.
    fn zero(&mut self, volume: VolumeId, offset: u64, len: u64) -> Result<(), MediaError> {
        self.write_durable(Area::Volume(volume), offset, &vec![0; len as usize])
    }
}

/// Why a replica could not be recovered. None of these changes anything on the media.
#[derive(Debug, Error)]
pub enum RecoverError {
    #[error("the device failed")]
    Media(#[from] MediaError),
    #[error("no valid superblock: this is not a replica, or all of its copies are damaged")]
    NoSuperblock,
    /// R12: something that is known to have been durable cannot be read back.
    #[error(
        "the journal record of entry {} at byte {offset} of the journal is damaged; entries up to {} were durable", index.0, known_durable.0
    )]
    Corrupt { index: Index, offset: u64, known_durable: Index },
    /// R12: the log ends before an entry that this replica is known to have held, durable and
    /// committed.
    #[error(
        "the log ends at entry {}, and this replica is known to have held every entry up to {}: these files are an older copy", end.0, known.0
    )]
    Older { end: Index, known: Index },
    #[error("version table page {page} is damaged")]
    VersionTable {
        page: u32,
        #[source]
        source: DecodeError,
    },
    /// Each page is whole, but not all of them are those that belong to the checkpoint: the last
    /// write of one was lost.
    #[error("a page of the version table is as it was before the last checkpoint")]
    OlderVersionTable,
    #[error("the replica was made by another version of this program")]
    Format(#[source] DecodeError),
}

/// Names an operation between its [`Output`] and [`crate::Store::complete`]. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u64);

/// Why an operation failed.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{detail}")]
pub struct IoFailure {
    pub detail: String,
    /// The pool has no space for a write to a volume. Nothing else is in doubt, see
    /// [`crate::Store::retry`].
    pub no_space: bool,
    /// Whether it failed because the pool has no space, whatever was to be written.
    pub full: bool,
}

impl IoFailure {
    /// After this nothing is certain (R13).
    #[must_use]
    pub fn new(detail: impl Into<String>) -> Self {
        Self { detail: detail.into(), no_space: false, full: false }
    }
}

/// Outcome of an operation: bytes for a [`Output::JournalRead`] and a [`Output::SumsRead`], nothing
/// for the others.
pub type IoResult = Result<Option<Bytes>, IoFailure>;

/// Where the bytes of a [`Segment`] are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Memory(Bytes),
    /// At this offset of the journal, within this payload. Read the payload whole and then ask
    /// [`crate::Store::holds`] whether it is still there; if not, its place may have been
    /// overwritten meanwhile: ask the store again. If so, take [`Payload::part`].
    Journal {
        offset: u64,
        payload: Payload,
    },
    /// At the segment's offset of the volume.
    Volume,
    Zero,
}

/// Payloads of the journal that are read at once for one read or one write of a volume (R18).
/// Payloads are read whole, even if only one block of a payload of [`REQUEST_BYTES_MAX`] is wanted.
pub const PAYLOADS_READ_BYTES_MAX: u64 = 2 * REQUEST_BYTES_MAX;

/// The payload of one entry as it lies in the journal. It is read whole, because its checksum is
/// one of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Payload {
    pub index: Index,
    /// Offset within the journal, in bytes.
    pub offset: u64,
    /// At most [`REQUEST_BYTES_MAX`].
    pub len: u64,
    /// CRC-32C.
    pub crc: u32,
}

impl Payload {
    /// Returns the `len` bytes at `offset` of the journal, out of `bytes`, which were read where
    /// this payload lies.
    ///
    /// # Errors
    /// [`Damaged`]: the bytes are not the payload.
    pub fn part(&self, bytes: &Bytes, offset: u64, len: u64) -> Result<Bytes, Damaged> {
        self.check(bytes, crc32c(bytes))?;
        Ok(self.cut(bytes, offset, len))
    }

    /// The same with the sums of the blocks of the part, from the pass over the bytes that checks
    /// the payload.
    pub(crate) fn part_and_sums(
        &self,
        bytes: &Bytes,
        offset: u64,
        len: u64,
    ) -> Result<(Bytes, Option<KeptSums>), Damaged> {
        let (crc, sums) = payload_sums(bytes);
        self.check(bytes, crc)?;
        let first = ((offset - self.offset) / BLOCK_BYTES) as u32;
        let sums = KeptSums::of_payload(self.len, crc, sums.as_ref(), first);
        Ok((self.cut(bytes, offset, len), sums))
    }

    /// Whether `bytes`, whose CRC-32C is `crc`, are the payload.
    fn check(&self, bytes: &Bytes, crc: u32) -> Result<(), Damaged> {
        if bytes.len() as u64 == self.len && (crc == self.crc || planted(Bug::PayloadNotChecked)) {
            return Ok(());
        }
        reach!("store: the journal does not give back what was written");
        Err(Damaged { index: self.index })
    }

    fn cut(&self, bytes: &Bytes, offset: u64, len: u64) -> Bytes {
        let start = (offset - self.offset) as usize;
        let part = &bytes[start..start + len as usize];
        // A slice would keep all of the payload in memory for as long as the part is needed.
        if part.len() == bytes.len() { bytes.clone() } else { Bytes::copy_from_slice(part) }
    }
}

/// R12: an entry that was durable in the journal cannot be read back.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("the journal record of entry {} is damaged", index.0)]
pub struct Damaged {
    pub index: Index,
}

/// Consecutive parts of a volume. A read of a few blocks is one as a rule, and needs no list.
pub type Segments = SmallVec<[Segment; 1]>;

/// A part of a volume and where its committed content is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Offset within the volume, in bytes.
    pub offset: u64,
    pub len: u64,
    pub source: Source,
}

/// A batch of the log and where it is.
#[derive(Clone, Debug)]
pub struct LogPiece {
    pub first: Index,
    pub last: Index,
    /// Chain after this batch.
    pub chain: Chain,
    /// Header block and payload, in bytes.
    pub len: u64,
    pub source: LogSource,
}

#[derive(Clone, Debug)]
pub enum LogSource {
    Memory(Arc<Batch>),
    /// At this offset of the journal. A batch behind the checkpoint may be overwritten while it is
    /// being read: the reader decodes what it got and checks index and chain, or asks
    /// [`crate::Store::retains`], before it uses it.
    Journal {
        offset: u64,
    },
    /// The header block at this offset of the journal, the payloads one after the other in these
    /// ranges of the volumes. The reader decodes what it got and checks index and chain. If they do
    /// not fit, [`crate::Store::filled_gone`] tells why.
    Volume {
        offset: u64,
        ranges: Box<[Range]>,
    },
}

/// The journal does not hold the asked index any more.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[error("the journal no longer holds the asked entries")]
pub struct Gone;

/// Outputs of the store: operations that it wants done, and news. Operations carry an [`OpId`] and
/// may complete in any order.
#[derive(Clone, Debug)]
pub enum Output {
    /// Write the batches one after the other, each as its header block with the local area and its
    /// payload, starting at `offset`. Completion means durable.
    JournalWrite {
        op: OpId,
        offset: u64,
        parts: SmallVec<[(LocalHeader, Arc<Batch>); 1]>,
    },
    JournalRead {
        op: OpId,
        offset: u64,
        len: u64,
    },
    /// Completion means durable only if that is asked for.
    VolumeWrite {
        op: OpId,
        volume: VolumeId,
        offset: u64,
        data: SmallVec<[Bytes; 1]>,
        durable: bool,
    },
    /// Read from [`Area::Sums`].
    SumsRead {
        op: OpId,
        volume: VolumeId,
        offset: u64,
        len: u64,
    },
    /// Write to [`Area::Sums`]. Completion means durable.
    SumsWrite {
        op: OpId,
        volume: VolumeId,
        offset: u64,
        data: Bytes,
    },
    /// Make the range read as zeroes (R15). Completion does not mean durable.
    VolumeZero {
        op: OpId,
        volume: VolumeId,
        offset: u64,
        len: u64,
        /// Its space goes back to the pool, where that is possible. Otherwise the range is
        /// allocated afterwards, so that later writes to it need no new space.
        free: bool,
    },
    VolumeFlush {
        op: OpId,
        volume: VolumeId,
    },
    /// Make the file of a volume as large as `bytes` and [`Area::Meta`] as large as `meta_bytes`,
    /// if they are smaller. The new part reads as zeroes. Completion means durable.
    VolumeGrow {
        op: OpId,
        volume: VolumeId,
        bytes: u64,
        meta_bytes: u64,
    },
    /// Keep the present content of the volumes as the files of a snapshot, cut to these sizes in
    /// bytes. Of each [`Area::Sums`] keep the sums for that number of bytes. Replace files of that
    /// snapshot that are there. Completion means durable. Nothing is written to the volumes or the
    /// sums meanwhile.
    SnapshotTake {
        op: OpId,
        snapshot: SnapshotId,
        volumes: Vec<u64>,
    },
    /// Make the volumes and each [`Area::Sums`] hold the content of the files of the snapshot
    /// `from`, and zeroes beyond their ends. Keep the same content as the files of `snapshot`, of
    /// these sizes in bytes, and replace files of it that are there. Completion means durable.
    /// After a crash all of these may hold a mixture. Nothing else is written to them meanwhile.
    SnapshotRestore {
        op: OpId,
        snapshot: SnapshotId,
        from: SnapshotId,
        volumes: Vec<u64>,
    },
    /// Remove the files of a snapshot, if there are any.
    SnapshotDrop {
        op: OpId,
        snapshot: SnapshotId,
    },
    /// Completion means durable.
    MetaWrite {
        op: OpId,
        offset: u64,
        data: Bytes,
    },
    /// Everything up to `index` is durable in the journal.
    Durable {
        index: Index,
    },
    /// The promise is durable (R1), and so is everything that was appended before. Batches for
    /// which the full journal had no room are dropped. `log_state` tells where the log ends now.
    Promised {
        epoch: Epoch,
    },
    /// The cut is durable; this is the end now.
    CutDone {
        end: Position,
        chain: Chain,
    },
    /// The replica is marked inconsistent and its log is empty after `at` (R16).
    Restarted {
        at: Position,
    },
    ExtentInstalled {
        volume: VolumeId,
        extent: Extent,
    },
    /// The replica is consistent and recorded so.
    CopyFinished,
    /// A volume has this size now, in the log and on the disk (R17).
    Grown {
        volume: VolumeId,
        bytes: u64,
    },
    /// An entry of a scrub is applied: where the content of its range is, as of that entry; nothing
    /// if this replica cannot tell. To be read at once, and then [`crate::Store::scrub_ended`] to
    /// be called, if there are segments.
    Scrub {
        at: Index,
        range: Range,
        segments: Segments,
    },
    /// [`crate::Store::snapshots`] has something new to say.
    SnapshotsChanged,
    /// R13: the last output ever. Nothing in flight is acknowledged any more.
    Failed {
        reason: String,
    },
}
