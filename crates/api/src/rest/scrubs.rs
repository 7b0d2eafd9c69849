//! Scrubs: begun, followed, and what is remembered of them.

use super::{ScrubEnd, ScrubOutcome, ScrubRepair, ScrubState};
use serde::{Deserialize, Serialize};

/// Compare all replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrubStart {
    /// Write anew blocks that differ. They get what more than half of the replicas hold, otherwise
    /// what the primary holds.
    pub repair: bool,
    /// Bytes per second that each replica reads; 0: no limit but that of background work.
    pub rate: u64,
}

/// The schedule of a resource's scrubs, and what is remembered of them. Times are of wall clocks,
/// in milliseconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubsView {
    /// Present time of the node that answers.
    pub now_ms: u64,
    pub interval_ms: u64,
    pub repair: ScrubRepair,
    pub rate: u64,
    /// The schedule has begun one, or is about to.
    pub running: bool,
    /// The last one that compared all replicas.
    pub whole: Option<ScrubbedView>,
    /// One after that, which did not.
    pub failed: Option<ScrubbedView>,
    /// When the next one is due.
    pub due_ms: Option<u64>,
    /// Time by which the next scrub is late, in milliseconds. `None` unless that is more than a
    /// quarter of the interval.
    pub late_ms: Option<u64>,
    /// Why none could begin now.
    pub waits_for: Option<String>,
}

/// A scrub that has ended.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ScrubbedView {
    pub at_ms: u64,
    pub took_ms: u64,
    pub end: ScrubEnd,
    /// Nodes whose replicas were not compared everywhere.
    pub lacking: Vec<String>,
    /// Blocks that differed, and what became of them, as in [`ScrubReport`].
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
    pub unrepaired: u64,
}

/// How a scrub goes, or how the last one went. `equal` is the verdict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubReport {
    pub resource: String,
    /// Node whose replica leads the scrub.
    pub primary: String,
    pub state: ScrubState,
    pub repair: ScrubRepair,
    /// All replicas were compared in all extents.
    pub complete: bool,
    /// Whether the scrub is complete and no block differs any more.
    pub equal: bool,
    /// Entries of the log of the first and the last extent.
    pub from: u64,
    pub index: u64,
    pub extents: u64,
    pub done: u64,
    pub took_ms: u64,
    /// How long the rest takes, if that is known.
    pub left_ms: Option<u64>,
    /// Blocks of 4096 bytes that differed. Of these: written anew, overwritten by clients before
    /// that, and left as they are.
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
    pub unrepaired: u64,
    pub replicas: Vec<ScrubReplica>,
    /// The first findings; neighbouring blocks are one finding.
    pub findings: Vec<ScrubFindingView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubReplica {
    pub node: String,
    /// Extents in which this replica was compared.
    pub extents: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubFindingView {
    pub volume: u16,
    pub block: u64,
    pub blocks: u64,
    pub index: u64,
    /// Nodes whose replicas agree, the largest group first.
    pub groups: Vec<Vec<String>>,
    /// Nodes whose own checksums say that theirs are damaged.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Nodes whose replicas are taken to be right; empty if that is not known.
    pub right: Vec<String>,
    /// More than half of the replicas that are not damaged say so.
    pub proven: bool,
    pub outcome: ScrubOutcome,
}
