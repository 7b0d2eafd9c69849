//! What a replica tells about itself.

use crate::Role;
use mainstay_codec::ReplicaData;
use mainstay_types::{ConfigVersion, Epoch, Index, Member, Position};

/// A snapshot of a replica for people and for the agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    pub role: Role,
    /// The epoch it leads in, or has promised.
    pub epoch: Epoch,
    /// Version of the record that it holds; 0 before the first.
    pub version: ConfigVersion,
    pub commit: Index,
    pub durable: Index,
    /// Last entry of its log, durable or not.
    pub end: Position,
    pub data: ReplicaData,
    /// The other replicas, as the primary sees them; empty on others.
    pub peers: Vec<PeerStatus>,
    /// Requests admitted and not completed.
    pub requests: usize,
    /// What it waits for, in words; empty when all is well.
    pub waiting_for: Vec<String>,
}

/// A replica as its primary sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerStatus {
    pub member: Member,
    pub state: PeerState,
    /// Whether commits wait for it: recorded in the ISS, or joining.
    pub required: bool,
    pub in_iss: bool,
    /// Everything up to here is durable there; 0 if not known since the last connection.
    pub durable: Index,
    pub lag_entries: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerState {
    Disconnected,
    /// Connected; its log is being compared and cut.
    Attaching,
    /// Fed from the journal. `lag_bytes` is `None` when it lags further than the primary keeps account of.
    CatchingUp {
        lag_bytes: Option<u64>,
    },
    /// Extents are copied.
    Copying {
        done: u64,
        total: u64,
    },
    InSync,
    /// Required, and about to be recorded (R4).
    Joining,
    /// It refuses: foreign disk content, a failed store, or a damaged log.
    Refused,
}
