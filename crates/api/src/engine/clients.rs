//! State of a client, as its engine reports it. A client has the devices of a resource of which its
//! node has no replica.

use super::DeviceStatus;
use mainstay_types::{ClientOver, ConfigVersion, Instance, NodeId, ResourceId, SessionId, Time};
use serde::{Deserialize, Serialize};

/// A client that is open.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ClientStatus {
    pub resource: ResourceId,
    pub name: String,
    #[serde(rename = "opening")]
    pub instance: Instance,
    /// Version of the record that the client acts on; 0 for none.
    pub version: ConfigVersion,
    /// `None` before the record names this instance.
    pub session: Option<SessionId>,
    /// Why its session is over: it is of no use any more.
    pub over: Option<ClientOver>,
    /// The primary that answers; `None` while requests wait for one.
    pub primary: Option<NodeId>,
    /// Requests of its devices that are not answered.
    pub requests: usize,
    /// Since when the oldest of them waits, on the engine's boot-time clock; 0: there is none.
    pub waits_since_us: Time,
    /// How often it was connected to a primary: once, and once more after each failover or broken
    /// connection.
    pub streams: u64,
    /// Bytes of each volume; empty before a primary has said so.
    pub volumes: Vec<u64>,
    /// One for each volume once they exist and answer, and none before.
    pub devices: Vec<DeviceStatus>,
    /// Why there are none, in words, if they could not be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}
