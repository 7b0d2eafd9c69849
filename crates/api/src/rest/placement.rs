//! Where services run, and what is left alone: maintenance, cordons, reasons.

use serde::{Deserialize, Serialize};

/// Whether something is in maintenance. The same wish again changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MaintenanceSet {
    pub on: bool,
    /// The maintenance ends by itself after this time, in milliseconds; if none, when an operator
    /// ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
}

/// A maintenance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MaintenanceView {
    /// For example `service db`, `node n1`. A service also rests when its node or cluster is in
    /// maintenance, or a service that it depends on.
    pub of: String,
    /// Wall clock of the order, in milliseconds since 1970.
    pub since_ms: u64,
    /// How much is left, in milliseconds, as it was last recorded; none if it does not end by
    /// itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_ms: Option<u64>,
    /// The command that ends it.
    pub end: String,
}

/// Whether services and primaries may come to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CordonSet {
    pub on: bool,
    /// Services and primaries that are there leave, as far as they have somewhere to go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}

/// A node to which no service and no primary comes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CordonView {
    /// Wall clock of the order, in milliseconds since 1970.
    pub since_ms: u64,
    pub drain: bool,
    /// Resources whose primary is still there.
    pub primaries: Vec<String>,
}

/// One node, for a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FitView {
    pub node: String,
    /// The service runs there, or would, as things are.
    pub chosen: bool,
    /// Whether the service could run there.
    pub can: bool,
    /// In words, one line.
    pub why: String,
}

/// Fate of a resource if the node of its primary died now. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailoverExplained {
    pub resource: String,
    /// The service on the resource, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Node of the primary, whose death it is about; `null` if there is no primary now.
    pub primary: Option<String>,
    /// Node that would take over; `null` if none would.
    pub to: Option<String>,
    /// The fate in words, one line.
    pub outcome: String,
    /// Every other node of the cluster. `chosen`: it takes over. `can`: it could.
    pub nodes: Vec<FitView>,
}

/// Where a service runs, and why not elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceExplained {
    pub name: String,
    pub resource: String,
    /// Every node of the cluster.
    pub nodes: Vec<FitView>,
    /// Why it does not run although its place is known; empty if it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub waits: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceView>,
}
