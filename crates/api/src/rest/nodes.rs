//! Nodes that leave, are replaced or move, and the record of the cluster as a file.

use serde::{Deserialize, Serialize};

/// Data and replicas that go with a node that is removed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeRemoval {
    /// Names of the resources whose only replica is on the node: their data is lost.
    #[serde(default)]
    pub lost: Vec<String>,
    /// Names of the resources of which a replica goes. Others have everything.
    #[serde(default)]
    pub replicas: Vec<String>,
}

/// Removes a node from the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeRemove {
    /// The resources that the operator gives up: [`NodeRemoval::lost`], as it was shown.
    #[serde(default)]
    pub lost: Vec<String>,
}

/// Another member takes over the replicas of a dead node, which is removed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReplace {
    /// Name of the member.
    pub with: String,
}

/// Addresses at which the other nodes are to find a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeAddress {
    /// Address of the agent, with or without a port (7400 if none).
    pub address: String,
    /// Address of the engine; the host of `address` and port 7401 if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_address: Option<String>,
    /// Records the address although the node does not answer there.
    #[serde(default)]
    pub unseen: bool,
}

/// The record of the cluster, to be kept elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterBackup {
    /// Version of this form.
    pub format: u32,
    pub cluster: String,
    /// Name of the node that answered.
    pub node: String,
    /// In milliseconds since 1970.
    pub at_ms: u64,
    /// Revision of the record.
    pub revision: u64,
    /// The record as JSON.
    pub state: String,
    /// CRC-32C of `state`.
    pub sum: u32,
}

/// Version of [`ClusterBackup`] that this release writes, and the newest that it reads.
pub const BACKUP_FORMAT: u32 = 1;
