//! Baselines: intervals whose figures nodes keep under a name.

use serde::{Deserialize, Serialize};

/// All baselines of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct BaselinesPage {
    /// In the order of names.
    pub baselines: Vec<BaselineView>,
    /// Nodes that did not tell theirs, each with the reason.
    pub missing: Vec<String>,
}

/// An interval whose figures are kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BaselineView {
    pub name: String,
    pub from_ms: u64,
    pub to_ms: u64,
    /// When it was saved.
    pub made_ms: u64,
    /// Nodes that keep a part of it.
    pub nodes: Vec<String>,
    /// Bytes on the disks of all of them together.
    pub bytes: u64,
}

/// Request to keep the figures of an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BaselineSave {
    pub from_ms: u64,
    pub to_ms: u64,
}
