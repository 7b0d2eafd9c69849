//! Changes of primaries: what happened, why, and how long it took.

use serde::{Deserialize, Serialize};

/// Answer to a request for the history.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HistoryPage {
    /// Oldest first.
    pub changes: Vec<ChangeView>,
    /// Wall clock of the oldest event, if the cluster has forgotten earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}

/// A change of the primary of a resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChangeView {
    pub resource: String,
    /// The service that ran or failed on the new primary; none if the resource has none, or if it
    /// was stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// None if no node could take over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    pub epoch: u64,
    /// For example `node-dead`; the manual lists all.
    pub cause: String,
    /// `operator` or `cluster`.
    pub decided_by: String,
    pub at_ms: u64,
    /// From the change until the service ran, in milliseconds; none if it did not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    pub stages: Vec<StageView>,
}

/// Something that was told on the way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StageView {
    /// Time since the change, in milliseconds.
    pub after_ms: u64,
    pub text: String,
}
