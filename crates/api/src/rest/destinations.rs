//! Nodes at which the clients of services and resources find them, for routers.

use mainstay_types::ServicePhase;
use serde::{Deserialize, Serialize};

/// Answer to a router, which asks for the next one with `after` as the revision of this one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DestinationsPage {
    /// Id of the cluster.
    pub cluster: u64,
    /// Revision of the cluster state that this is made of. The page with the highest one is the
    /// newest, whichever agent sent it.
    pub revision: u64,
    /// Age of that state: 0 if a majority of the voters confirmed it just now, else the
    /// milliseconds since the asked node knew that it was the present one; nothing if that is
    /// unknown.
    pub as_of_ms: Option<u64>,
    /// One for each resource, and one for each service.
    pub destinations: Vec<DestinationView>,
}

/// Node that serves a resource, or the service on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DestinationView {
    pub resource: String,
    /// Name of the service; nothing if this is about the resource itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    pub epoch: u64,
    /// The primary's node; nothing while there is none.
    pub primary: Option<NodePlace>,
    /// Phase of the service on the primary, in this epoch; nothing for a resource itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ServicePhase>,
    /// Nodes whose copies clients can read. Empty: secondaries cannot be read.
    #[serde(default)]
    pub readers: Vec<NodePlace>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct NodePlace {
    pub node: String,
    /// IP address or name, without a port.
    pub address: String,
}
