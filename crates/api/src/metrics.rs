//! Counts of an engine. Its agent asks for them to answer `GET /metrics`.
//!
//! The engine answers [`Request::Metrics`](crate::engine::Request::Metrics) with one
//! [`MetricsPage`] at a time. So a node with a thousand replicas does not hold up its shard, and no
//! line grows beyond [`LINE_BYTES_MAX`](crate::engine::LINE_BYTES_MAX). Counts begin at 0 when an
//! engine opens a replica. Durations are in microseconds. They begin in the turn of the shard in
//! which an operation began, and end in the turn in which its end was seen. An operation that
//! begins and ends within one turn counts as 0, and the length of a turn is the error.

use crate::engine::{ClientStatus, ReplicaStatus};
use mainstay_types::{Histogram, NodeId, ResourceId, Time};
use serde::{Deserialize, Serialize};

/// Kind of a device's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    Read,
    Write,
    Discard,
    WriteZeroes,
    Flush,
}

impl RequestKind {
    /// In the order of [`VolumeCounts::requests`] and [`ReplicaCounts::requests_us`].
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Discard, Self::WriteZeroes, Self::Flush];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
            Self::Flush => "flush",
        }
    }
}

/// Part of a promotion, each from the end of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PromotionStep {
    /// From the record that names this replica to its durable promise of the epoch (R1).
    Promise,
    /// To the start of the epoch in its log, for which its journal needs room.
    Begin,
    /// To the commit of that start (R6), for which the other members answer and are cut: it serves.
    Serve,
    /// To the last of its devices.
    Device,
}

impl PromotionStep {
    /// In the order of [`ReplicaCounts::promotions`].
    pub const ALL: [Self; 4] = [Self::Promise, Self::Begin, Self::Serve, Self::Device];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Promise => "promise",
            Self::Begin => "begin",
            Self::Serve => "serve",
            Self::Device => "device",
        }
    }
}

/// A part of what an engine counts.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricsPage {
    /// On the boot-time clock of this machine.
    pub now_us: Time,
    /// The guard has acted and the lease was not renewed since.
    pub fenced: bool,
    /// Turns of the shard since the engine was started: how often it woke up.
    pub turns: u64,
    /// How long the shard has polled before it slept, or instead, since then, in microseconds.
    pub polled_us: u64,
    /// Connections to other engines; only on the first page.
    pub links: Vec<LinkCounts>,
    /// Clients that are open; only on the first page, and not more than fit on it.
    pub clients: Vec<ClientStatus>,
    /// In the order of resources.
    pub replicas: Vec<ReplicaMetrics>,
    /// There are more, after this one.
    pub more_after: Option<ResourceId>,
}

/// The connections to the engine of another node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkCounts {
    pub node: NodeId,
    /// The one that this node opened, on which its primaries speak.
    pub outgoing: bool,
    /// The one that the other node opened.
    pub incoming: bool,
    /// Bytes that wait to be sent on both.
    pub queued_bytes: u64,
}

/// One replica: its state, and what was counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaMetrics {
    pub status: ReplicaStatus,
    pub counts: ReplicaCounts,
}

/// Counts of one replica.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplicaCounts {
    pub volumes: Vec<VolumeCounts>,
    /// From the arrival of a request of a device to its answer, by [`RequestKind::ALL`].
    pub requests_us: [Histogram; 5],
    /// From when a read may be executed, because no write in flight overlaps it, to its answer.
    pub read_us: Histogram,
    /// A write of the journal, in any role.
    pub journal_us: Histogram,
    /// Time from the sealing of a batch to its commit, while this replica was primary.
    pub commit_us: Histogram,
    /// Entries of each batch, while this replica was primary.
    pub batch_entries: Histogram,
    pub disk: DiskCounts,
    /// Operations on disks that have not ended.
    pub disk_operations: u64,
    /// Replicas that this replica fed.
    pub peers: Vec<PeerCounts>,
    /// Replicas that must have an entry before it is committed, the primary itself included.
    pub required: u64,
    /// Members of the in-sync set that answer, the primary itself included, and the number of
    /// copies that is wanted. Only of a primary that serves.
    pub copies: u64,
    pub min_copies: u64,
    /// Bytes of the log that were acknowledged from memory and are not committed. Only of a
    /// primary, in mode B.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_bytes: Option<u64>,
    /// Whether this primary now slows down the filling of other replicas, for clients or by a
    /// limit.
    pub filling_slowed: bool,
    /// Results of the scrubs that this replica led as primary.
    pub scrubs: ScrubCounts,
    /// Blocks that do not fit their checksums.
    pub damage: DamageCounts,
    /// Extents that arrived here as the target of a copy, and their bytes. Extents of zeroes count
    /// no bytes.
    pub copied_extents: u64,
    pub copied_bytes: u64,
    /// By [`PromotionStep::ALL`].
    pub promotions: [StepCounts; 4],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubCounts {
    pub extents: u64,
    /// Blocks.
    pub different: u64,
    pub repaired: u64,
    /// One is under way.
    pub running: bool,
    /// Blocks that the last one left as they are; `None` before the first has ended.
    pub unrepaired: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DamageCounts {
    /// Reads that have found damage.
    pub found: u64,
    /// Blocks that were written anew for that reason.
    pub mended: u64,
    /// Reads that were answered with an error, because no replica has the block.
    pub unreadable: u64,
    /// Blocks that were sent to other replicas as damaged, because no replica has them.
    pub copied: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct VolumeCounts {
    /// By [`RequestKind::ALL`].
    pub requests: [OperationCounts; 5],
}

/// Requests that have been answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OperationCounts {
    pub count: u64,
    pub bytes: u64,
    /// Requests among these that were answered with an error.
    pub errors: u64,
}

/// Bytes that went to and came from a replica's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCounts {
    pub journal_written: u64,
    /// Destaged, and copied to here.
    pub volume_written: u64,
    /// Superblocks and version tables.
    pub metadata_written: u64,
    /// Put aside for snapshots before it was written over, in a pool that cannot clone files.
    pub snapshot_written: u64,
    pub journal_read: u64,
    pub volume_read: u64,
    /// Ranges of volumes that were made zero.
    pub zeroed: u64,
}

/// A replica that is fed from here.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerCounts {
    pub node: NodeId,
    /// Batches, and their bytes in a journal, whether new or fed to one that lags.
    pub sent_batches: u64,
    pub sent_bytes: u64,
    /// Extents that were copied to it, and their bytes; zeroes have none.
    pub copied_extents: u64,
    pub copied_bytes: u64,
    /// From when a batch was sent to the acknowledgement that covers it, since this node became
    /// primary.
    pub acknowledged_us: Histogram,
    /// How often it left the in-sync set for being slow, since this node became primary.
    pub times_slow: u64,
}

/// How often something happened, and how long it took altogether.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StepCounts {
    pub count: u64,
    pub sum_us: u64,
}

impl StepCounts {
    pub fn note(&mut self, us: u64) {
        self.count += 1;
        self.sum_us += us;
    }
}
