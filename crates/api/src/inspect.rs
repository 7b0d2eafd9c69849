//! Findings of `mainstay inspect` about a replica's files.

use mainstay_types::{DataState, EntryKind};
use serde::{Deserialize, Serialize};

/// A replica as recovery would find it. Sizes and offsets are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaFilesView {
    pub path: String,
    pub resource: u64,
    /// Hexadecimal.
    pub incarnation: String,
    pub volumes: Vec<u64>,
    pub journal_bytes: u64,
    /// Where it is, if not in the directory.
    pub journal: Option<String>,
    /// Sequence of each copy of the superblock; null for a damaged one.
    pub superblock_copies: Vec<Option<u64>>,
    pub generation: u64,
    pub promised_epoch: u64,
    pub data: DataState,
    /// The copy that has not ended, while the data is inconsistent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_copy: Option<UnfinishedCopyView>,
    pub checkpoint: LogPosition,
    pub checkpoint_offset: u64,
    /// Last entry of the log.
    pub end: LogPosition,
    pub end_offset: u64,
    /// Entries up to here are known to be committed.
    pub commit: u64,
    /// Entries up to here are known to have been durable; more than the end means damage.
    pub known_durable: u64,
    pub epochs: Vec<LogPosition>,
    pub voids: Vec<VoidView>,
    pub batches: Vec<BatchView>,
    /// Extents that were ever written; absent when the version table is damaged.
    pub extents: Option<Vec<ExtentView>>,
    /// Faults of the files, in words. Empty when journal and metadata show none.
    pub faults: Vec<String>,
}

/// A copy to the replica that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnfinishedCopyView {
    /// Every extent is at least as of this entry.
    pub base: u64,
    /// Whether the last whole content of the volumes is kept.
    pub kept: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LogPosition {
    pub epoch: u64,
    pub index: u64,
}

/// Records of older generations beyond the index do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VoidView {
    pub generation: u64,
    pub end: u64,
}

/// A batch of the journal after the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchView {
    pub epoch: u64,
    pub first: u64,
    pub offset: u64,
    pub len: u64,
    pub generation: u64,
    pub durable_before: u64,
    pub commit: u64,
    /// Hexadecimal.
    pub chain: String,
    pub entries: Vec<EntryView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EntryView {
    pub index: u64,
    pub kind: EntryKind,
    pub volume: u16,
    pub offset: u64,
    pub len: u64,
    /// Where the payload is in the journal, and its CRC-32C in hexadecimal; only of a write. No
    /// place: the payload is where the entry belongs in the volume.
    pub payload: Option<(Option<u64>, String)>,
}

/// An extent with the last entry that may have changed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExtentView {
    pub volume: u16,
    pub extent: u32,
    pub version: u64,
}
