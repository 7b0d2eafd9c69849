//! States of replicas, peers, snapshots, scrubs, nodes and services, as every part of Mainstay
//! names them.
//!
//! The cores decide them, engine and agent report them, the control plane records some of them, and
//! people read them. Each has one name, in JSON as in texts: in lower case with dashes.

use crate::{EntryKind, Epoch, Index, Mode, NodeId, StepDownReason, VolumeId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Part that a replica plays at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Follows a primary, or waits for one.
    #[default]
    Secondary,
    /// Named primary. It has not yet committed the first entry of its epoch, so it does not serve
    /// (R6): requests are queued.
    Promoting,
    /// Serves.
    Primary,
    /// Neither serves nor follows: the store failed, or it has learnt that its epoch is over and
    /// not yet what came after. It answers every request with an error.
    Fenced,
}

impl Role {
    /// Whether it leads an epoch, or is about to.
    #[must_use]
    pub fn leads(self) -> bool {
        matches!(self, Self::Promoting | Self::Primary)
    }
}

/// How a primary is connected to another replica, and what it does for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeerState {
    /// No connection.
    #[default]
    Disconnected,
    /// Connected; log positions are being compared or cut.
    Attaching,
    /// Fed from the journal.
    CatchingUp,
    /// Fed from the journal in mode A: it is not to be in sync, and writes do not wait for it
    /// unless it lags too far.
    Following,
    /// Extents are being copied.
    Copying,
    /// Caught up and required, not yet recorded (R4).
    Joining,
    /// Member of the in-sync set.
    InSync,
    /// The peer refuses: foreign disk content, a failed store, or a damaged log.
    Failed,
}

/// Whether a replica's data is whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataState {
    /// Journal and volumes together are a prefix of the log.
    Consistent,
    /// Target of an extent copy that has not ended; not promotable (R16).
    Inconsistent,
}

/// State of a replica's store: that of its data, as long as the store is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreState {
    #[default]
    Consistent,
    /// See [`DataState::Inconsistent`].
    Inconsistent,
    /// The store reported an error and is no longer used (R13).
    Failed,
}

/// Whether a node takes part in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeStatus {
    Alive,
    /// A majority of voters has stopped hearing it and its lease has ended.
    Dead,
}

/// Weight of an event or of advice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    #[default]
    Info,
    Warning,
    /// Something is down or unprotected.
    Critical,
}

/// A way for a volume to become a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrontendKind {
    Ublk,
    Nbd,
    Fuse,
    VhostUser,
}

impl FrontendKind {
    /// Whether users of these devices flush what must not be lost, and see the device fail when
    /// something else is. Loop devices state a volatile cache in every mode, and fail with their
    /// engine. The others outlive it: a program that uses one that was left would go on as if
    /// nothing were lost with the engine's memory. So in mode B nothing is acknowledged from memory
    /// there.
    #[must_use]
    pub fn caches(self) -> bool {
        self == Self::Fuse
    }
}

/// Why the session of a client is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientOver {
    /// The resource is attached elsewhere, or nowhere, or under a newer session.
    Detached,
    /// The log has lost changes that the client was told are done (R11).
    Lost,
    /// A request has waited for longer than the attachment allows (R20).
    Waited,
}

impl ClientOver {
    /// For operators.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Detached => "it was detached",
            Self::Lost => "writes that it was told are done were lost",
            Self::Waited => "a request has waited for too long",
        }
    }
}

/// Where a service is on one node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServicePhase {
    /// Proven to be silent here.
    #[default]
    Stopped,
    Starting,
    Running,
    /// Being undone, or waiting for the next attempt after a failure.
    Stopping,
    /// A failure was undone; waiting before the next attempt on this node.
    BackingOff,
    /// The lease ended: being killed (R19).
    Killing,
    /// Too many failures here; proven to be silent. Starts again only in a later round.
    Failed,
}

impl ServicePhase {
    /// Whether nothing of the service is left on the node and nothing starts by itself.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Stopped | Self::Failed)
    }
}

/// State of a snapshot on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnapshotState {
    /// The replica is still writing the entries before the snapshot's entry to the volumes.
    Taking,
    /// Its files are here.
    Held,
    /// The replica could not take the snapshot, or was copied to after the snapshot was taken.
    Missing,
}

/// A snapshot on one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotOn {
    /// The entry of the log that it is as of; 0 if that is not known there.
    pub at: Index,
    pub state: SnapshotState,
}

/// State of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubState {
    Running,
    /// All extents were judged.
    Done,
    /// An operator ended it.
    Stopped,
    /// The replica that led it ceased to be primary.
    Interrupted,
}

/// The last scrub that a replica led since it was opened, or the one that is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubSummary {
    pub epoch: Epoch,
    /// Which one it is since the replica was opened, from 1 on. No two scrubs of a resource have
    /// both epoch and ordinal in common.
    pub ordinal: u64,
    pub state: ScrubState,
    /// In milliseconds. This and all further ones are 0 until it has ended.
    pub took_ms: u64,
    /// Extents of all volumes.
    pub extents: u64,
    /// Extents that were judged, however many replicas were compared.
    pub done: u64,
    /// In how many extents each replica was compared.
    pub compared: Vec<(NodeId, u64)>,
    /// Blocks of 4096 bytes that differed.
    pub different: u64,
    /// Differing blocks that the scrub wrote anew.
    pub repaired: u64,
    /// Differing blocks that clients overwrote before the scrub could write them anew.
    pub overwritten: u64,
}

impl ScrubSummary {
    /// Returns the summary of a scrub that has just begun.
    #[must_use]
    pub fn running(epoch: Epoch, ordinal: u64) -> Self {
        Self {
            epoch,
            ordinal,
            state: ScrubState::Running,
            took_ms: 0,
            extents: 0,
            done: 0,
            compared: Vec::new(),
            different: 0,
            repaired: 0,
            overwritten: 0,
        }
    }
}

/// How a scrub of the whole resource ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubEnd {
    /// Every block of every replica was compared.
    #[default]
    Whole,
    /// Some blocks were not compared on every replica.
    Partial,
    /// An operator ended it.
    Stopped,
    /// The primary changed.
    Interrupted,
}

/// Neighbouring blocks that the same replicas hold differently, or know to be damaged.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubFinding {
    pub volume: VolumeId,
    /// The first block of 4096 bytes, and how many.
    pub block: u64,
    pub blocks: u64,
    /// The entry of the log as of which they differ.
    pub at: Index,
    /// Replicas that agree, the largest group first; each in ascending order.
    pub groups: Vec<Vec<NodeId>>,
    /// Replicas whose own checksums say that theirs are damaged. They are in no group.
    #[serde(default)]
    pub damaged: Vec<NodeId>,
    /// The group that is taken to be right, if any is.
    pub right: Option<usize>,
    /// More than half of the replicas that are not damaged say so.
    pub proven: bool,
    pub outcome: ScrubOutcome,
}

/// Fate of blocks that differed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScrubOutcome {
    /// No repair was asked for, or nothing is known to be right.
    Found,
    /// The repair is under way.
    Repairing,
    /// Written anew everywhere, but for blocks that clients have overwritten since.
    Repaired,
    /// All of them were overwritten by clients before they could be repaired.
    Overwritten,
    /// No replica of the right group could give the content.
    Failed,
}

/// State of a node of a lab.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LabNodeState {
    Running,
    /// All its processes stand still.
    Paused,
    /// Its power was cut, or it was not switched on yet.
    NoPower,
    /// Its first process has ended by itself.
    Died,
}

/// A replica that left the in-sync set because it was slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowStatus {
    pub since_us: crate::Time,
    /// Its latency when it left, in microseconds.
    pub latency_us: u64,
    /// When it is asked to join, if it keeps up until then.
    pub returns_us: crate::Time,
}

/// Speed of an extent copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CopyStatus {
    /// Extents of zeroes count like others.
    pub bytes_per_s: u64,
    /// How long the rest takes at that, in milliseconds.
    pub left_ms: u64,
}

// The name that JSON has: serde writes it into a formatter as well.
macro_rules! display {
    ($($name:ident),+) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.serialize(f)
            }
        }
    )+};
}

display!(
    EntryKind,
    LabNodeState,
    Role,
    PeerState,
    StoreState,
    ServicePhase,
    SnapshotState,
    ScrubEnd,
    FrontendKind,
    Mode,
    StepDownReason
);

#[cfg(test)]
mod tests {
    use super::LabNodeState::*;

    #[test]
    fn a_node_of_a_lab_has_the_state_that_json_names() {
        let states = [Running, Paused, NoPower, Died];
        assert_eq!(states.map(|state| state.to_string()), ["running", "paused", "no-power", "died"]);
    }
}
