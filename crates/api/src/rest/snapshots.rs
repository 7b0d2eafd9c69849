//! Snapshots, and volumes that go back to one.

use super::SnapshotState;
use serde::{Deserialize, Serialize};

/// A new snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotTake {
    /// 1 to 32 characters out of a-z, 0-9 and the dash.
    pub name: String,
}

/// Going back to a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SnapshotRollback {
    /// Name of the snapshot that keeps the content of the volumes from before the rollback. The
    /// server chooses a name if none is given.
    #[serde(default)]
    pub keep: Option<String>,
    /// Whether that content is discarded instead of kept.
    #[serde(default)]
    pub discard: bool,
    /// A service that runs on the resource is stopped for this and started again.
    #[serde(default)]
    pub restart_service: bool,
}

/// A rollback that is wanted and not done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RollbackView {
    pub snapshot: String,
    /// The snapshot that is to hold the state of before.
    pub keep: Option<String>,
}

/// Result of the last rollback.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RolledBackView {
    pub snapshot: String,
    /// Entry of the log from which on the volumes held the content of `snapshot`. `None`: the
    /// rollback could not be done, and changed nothing.
    pub index: Option<u64>,
    /// In milliseconds since 1970.
    pub at_ms: u64,
}

/// A snapshot, and where its files are on the node that was asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotFiles {
    pub snapshot: SnapshotView,
    /// One for each volume, absolute. They are only to be read. Where the pool cannot clone files
    /// each is the map of what was put aside of the volume, `snapN-mapV`; `mainstay snapshot clone`
    /// makes files of the content. Empty if this node does not hold it.
    pub files: Vec<String>,
    /// Space of the snapshot on this node. `None` if the node does not hold the snapshot, or its
    /// file system does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub space: Option<SnapshotSpace>,
    /// Directories of Mainstay on the node that was asked. A copy goes elsewhere, or into `pool`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<String>,
    /// The pool of the node that was asked. A copy may have a directory beside its replicas.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pool: String,
}

/// Space that the files of a snapshot take in one node's pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SnapshotSpace {
    /// Bytes on the disk, those that it shares with volumes, clones and other snapshots included.
    pub bytes: u64,
    /// Bytes among these that nothing else shares or needs: the least that deleting the snapshot
    /// gives back.
    pub own_bytes: u64,
}

/// A snapshot of a resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotView {
    pub id: u32,
    pub name: String,
    /// When it was asked for, in milliseconds since 1970.
    pub at_ms: u64,
    pub deleting: bool,
    pub nodes: Vec<SnapshotOnView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotOnView {
    pub node: String,
    /// The entry of the log that it is as of; 0 if that is not known.
    pub index: u64,
    pub state: SnapshotState,
}
