//! Messages of `GET /v1/stream`, beside events ([`super::EventView`]).

use serde::{Deserialize, Serialize};

/// Data of the message `change`: the record or the status of the cluster has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamChange {
    /// Revision of the cluster state.
    pub revision: u64,
}

/// Data of the message `resync`: the cluster no longer keeps the events after the one that the
/// reader has seen last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamResync {
    /// Index of the newest event. The stream goes on after it.
    pub last: u64,
    /// Revision of the cluster state.
    pub revision: u64,
}
