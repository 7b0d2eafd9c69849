//! Requests and answers of the HTTP API that an agent serves on `<run>/agent.sock`, and over TLS if
//! it is told to.
//!
//! Bodies are JSON. Every failure is a [`ProblemDocument`] with content type
//! `application/problem+json` and a stable code. Lists are ordered by name. Byte counts are `u64`.
//! Points in time are wall clock milliseconds since 1970 and serve display only: nothing is decided
//! by them.
//!
//! [`crate::routes`] has the table of routes.

mod api_tokens;
mod audit;
mod baselines;
mod destinations;
mod headers;
mod history;
mod identities;
mod load;
mod nodes;
mod operations;
mod placement;
mod problem;
mod programs;
mod report;
mod scrubs;
mod services;
mod settings;
mod snapshots;
mod stream;

use crate::engine::{FrontendStatus, WatchdogStatus};
pub use api_tokens::*;
pub use audit::*;
pub use baselines::*;
pub use destinations::*;
pub use headers::*;
pub use history::*;
pub use identities::*;
pub use load::*;
pub use mainstay_types::{
    Code, Mode, NodeStatus, PeerState, Problem, Role, ScrubEnd, ScrubOutcome, ScrubRepair, ScrubState,
    ServicePhase, Severity, SnapshotState, StoreState, exit, size_words,
};
pub use nodes::*;
pub use operations::*;
pub use placement::*;
pub use problem::*;
pub use programs::*;
pub use report::*;
pub use scrubs::*;
use serde::{Deserialize, Serialize};
pub use services::*;
pub use settings::*;
pub use snapshots::*;
use std::collections::BTreeMap;
pub use stream::*;

/// Longest time that a request for events or destinations may wait, in milliseconds.
pub const EVENTS_WAIT_MS_MAX: u64 = 60_000;

/// A change was recorded; the nodes carry it out in the background.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Accepted {
    /// Revision of the cluster state that contains the change.
    pub revision: u64,
    pub message: String,
}

/// Makes the asked agent the first member of a new cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterInit {
    pub name: String,
    /// Name of this node.
    pub node: String,
    /// Address under which other agents reach this one, with or without a port (7400 if none).
    pub address: String,
    /// Address under which other engines reach this node's engine; the host of `address` and port
    /// 7401 if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_ms: Option<u64>,
}

/// Makes the asked agent a member of an existing cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterJoin {
    /// Address of the agent of any member.
    pub peer: String,
    pub node: String,
    /// See [`ClusterInit::address`]; if none, that on which the agent listens, or, if it listens on
    /// all, the local one of a connection to `peer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_address: Option<String>,
    /// The node votes and holds no data. It needs no engine.
    #[serde(default)]
    pub witness: bool,
    /// The node of this name is dead, and this one takes its place.
    #[serde(default)]
    pub replace: bool,
    /// The token that a member made for a node of this name. Secret.
    pub token: String,
}

/// Age of an answer of an earlier release, which names none.
#[expect(clippy::unnecessary_wraps, reason = "the type of the field")]
fn confirmed_now() -> Option<u64> {
    Some(0)
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClusterView {
    pub id: u64,
    pub name: String,
    pub revision: u64,
    /// Name of the node that leads the control plane, as far as the asked node knows.
    pub leader: Option<String>,
    /// Name of the node that answered.
    pub this_node: String,
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    /// Feature level that the cluster uses. It rises when the build of every node has it.
    #[serde(default)]
    pub level: u32,
    /// Age of this answer: 0 if a majority of the voters confirmed it just now, else the
    /// milliseconds since the asked node knew that it was the present one; nothing if that is
    /// unknown.
    #[serde(default = "confirmed_now")]
    pub as_of_ms: Option<u64>,
    /// Milliseconds for which the asked node has been joining the cluster without its state;
    /// nothing once it has received that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joining_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceView>,
    /// Whether data goes from node to node without encryption, because the setting
    /// `data-encryption` is off.
    #[serde(default)]
    pub sends_clear: bool,
    pub nodes: Vec<NodeView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeView {
    pub id: u32,
    pub name: String,
    pub agent_address: String,
    pub engine_address: String,
    pub status: NodeStatus,
    pub generation: u64,
    pub voter: bool,
    /// Whether the node votes and holds no data.
    #[serde(default)]
    pub witness: bool,
    /// Whether the node is still joining. It receives the state of the cluster, and votes and holds
    /// data when it has proven itself.
    #[serde(default)]
    pub candidate: bool,
    pub leader: bool,
    /// Whether the asked agent has a connection to this node's agent; true for itself.
    pub connected: bool,
    /// Free bytes of the node's default pool; `None` when it could not be asked.
    pub pool_free_bytes: Option<u64>,
    /// Time for which the node has confirmed no entry of the control plane's log although it lacks
    /// some, in milliseconds, as the leader reports it. `None` unless the node lives and that time
    /// is long.
    #[serde(default)]
    pub log_lag_ms: Option<u64>,
    /// Entries of that log that the node lacks; 0 while `log_lag_ms` is `None`.
    #[serde(default)]
    pub log_lag_entries: u64,
    /// Feature level of the build that the node runs, as it told.
    #[serde(default)]
    pub level: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceView>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<CordonView>,
}

/// A new resource. Sizes are multiples of 4096.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceCreate {
    pub name: String,
    /// Bytes of each volume. For a resource that is made of a snapshot: empty for the sizes of its
    /// origin, or at least as many bytes each.
    #[serde(default)]
    pub volumes: Vec<u64>,
    /// 256 MiB if none, or what the origin has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal_bytes: Option<u64>,
    /// Names of the nodes. Empty: `replica_count` nodes are chosen. Nodes that hold the snapshot
    /// that the resource is made of come first, then those with the most free space.
    #[serde(default)]
    pub replicas: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica_count: Option<u32>,
    /// Names of nodes that should be primary, best first.
    #[serde(default)]
    pub preferred: Vec<String>,
    /// Settings for this resource, by name. Those of the cluster and the defaults count for the
    /// others.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, SettingValue>,
    /// The volumes hold the content of this snapshot from the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<OriginView>,
}

/// A snapshot of a resource, of which another one is made.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OriginView {
    /// Names.
    pub resource: String,
    pub snapshot: String,
}

/// A further replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaAdd {
    /// Name of the node.
    pub node: String,
}

/// A replica elsewhere instead of this one, which goes when the new one is in sync.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaMove {
    /// Name of the node.
    pub to: String,
}

/// The primary of a resource without a service elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PrimaryMove {
    /// Name of the node. The server chooses the best one if none is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// The move was recorded; the nodes carry it out in the background.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PrimaryMoves {
    #[serde(flatten)]
    pub accepted: Accepted,
    /// Name of the node that is to be primary.
    pub to: String,
}

/// Another size of a volume, which is in use all the while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeResize {
    pub bytes: u64,
}

/// Give a node without a replica the devices of a resource, instead of its primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceAttach {
    pub node: String,
    /// Time after which a waiting request of the devices fails, and the devices with it, in
    /// milliseconds; 60 s if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
    /// Even if another node has them, whose requests fail from then on.
    #[serde(default)]
    pub take_over: bool,
}

/// The node that has the devices of a resource, instead of its primary.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttachedView {
    pub node: String,
    /// The only session that may write.
    pub session: u64,
    pub wait_ms: u64,
    /// State of that session, as the node's engine reports it. `None` if the engine does not
    /// answer, or has not opened a client.
    pub live: Option<ClientView>,
}

/// The devices of a node without a replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientView {
    /// Node that answers the client's requests; `None` while they wait.
    pub primary: Option<String>,
    /// Requests that are not answered, and for how long the oldest of them has waited.
    pub requests: u64,
    pub waits_ms: u64,
    /// How often it was connected to a primary: once, and once more after each failover or broken
    /// connection.
    pub streams: u64,
    /// Why it is of no use any more; it is opened anew.
    pub over: Option<String>,
    pub devices: Vec<DeviceView>,
    /// Why there are no devices, if they could not be made.
    pub failure: Option<String>,
}

/// Cost of going on from a replica that may lack acknowledged writes. The operator accepts the cost
/// by sending this back, and the server takes it only while nothing of it has changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForceView {
    pub node: String,
    /// Version of the record that the cost was computed from.
    pub version: u64,
    /// Last entry that is durable there.
    pub end: u64,
    /// The highest commit index that it had heard of: everything up to there was acknowledged.
    pub heard: u64,
    /// Nodes whose replicas have every acknowledged write.
    pub lost_with: Vec<String>,
    /// The cost in words.
    pub cost: String,
}

/// A promotion of a replica that may have lacked acknowledged writes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForcedView {
    pub node: String,
    pub epoch: u64,
    pub at_ms: u64,
    /// Last entry that the replica held when the operator was told. `None`: the replica took over
    /// by itself, within the limits of mode A.
    pub end: Option<u64>,
    /// Entries that were lost: from, to. `None` until a replica that had every acknowledged write
    /// has returned.
    pub lost: Option<(u64, u64)>,
}

/// Health of a resource, worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// All replicas are in sync and there is a primary.
    Ok,
    /// Served, but not all replicas are in sync.
    Degraded,
    /// Being created, promoted or deleted.
    Changing,
    /// No primary, and the cluster cannot promote one by itself.
    Down,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceView {
    pub id: u64,
    pub name: String,
    pub health: Health,
    pub deleting: bool,
    pub volumes: Vec<u64>,
    pub journal_bytes: u64,
    pub epoch: u64,
    pub version: u64,
    pub primary: Option<String>,
    pub preferred: Vec<String>,
    pub replicas: Vec<ReplicaView>,
    /// Volumes that are to be larger, and are not yet.
    #[serde(default)]
    pub growing: Vec<GrowingView>,
    #[serde(default)]
    pub snapshots: Vec<SnapshotView>,
    #[serde(default)]
    pub rollback: Option<RollbackView>,
    #[serde(default)]
    pub rolled_back: Option<RolledBackView>,
    /// Snapshot that the resource is being made of. The resource cannot be used before it is
    /// complete.
    #[serde(default)]
    pub origin: Option<OriginView>,
    #[serde(default)]
    pub scrubs: ScrubsView,
    /// Replicas that go when the one at the new place is in sync.
    #[serde(default)]
    pub moves: Vec<MoveView>,
    /// The node to which an operator moves the primary, until it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary_moves_to: Option<String>,
    /// Replicas that were removed and whose files are not known to be gone.
    #[serde(default)]
    pub leaving: Vec<LeavingView>,
    /// When writes are acknowledged.
    #[serde(default)]
    pub mode: Mode,
    /// How many copies there have to be. Does not count in mode A.
    #[serde(default)]
    pub min_copies: u32,
    /// How long requests wait while there are fewer, in milliseconds.
    #[serde(default)]
    pub suspend_ms: u64,
    /// Limits of the lag in mode A.
    #[serde(default)]
    pub lag_bytes: u64,
    #[serde(default)]
    pub lag_ms: u64,
    /// In mode A, whether a follower takes over by itself, and which could now.
    #[serde(default)]
    pub takeover: bool,
    #[serde(default, rename = "near")]
    pub failover_ready: Vec<String>,
    /// Members whose memory the record counts on: all that are in sync when mode B is in force. In
    /// another mode, members whose memory may hold writes that are not durable yet.
    #[serde(default)]
    pub memory: Vec<String>,
    /// The last forced promotion.
    #[serde(default)]
    pub forced: Option<ForcedView>,
    /// The node without a replica that has the devices.
    #[serde(default)]
    pub attached: Option<AttachedView>,
    /// Nodes that had them and still have to take them away.
    #[serde(default)]
    pub detaching: Vec<String>,
    /// Why the last operation on the resource failed, if it did.
    pub failure: Option<String>,
    pub advice: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GrowingView {
    pub volume: u16,
    /// Its size to be.
    pub bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MoveView {
    pub from: String,
    pub to: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeavingView {
    pub node: String,
    /// The files go when the node returns.
    pub dead: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaView {
    pub node: String,
    /// Whether the replica is in the in-sync set of the record, and has not lost entries that it
    /// had only in memory (mode B).
    pub in_sync: bool,
    /// Why its node cannot use it, for example because what is on its disk is damaged.
    #[serde(default)]
    pub broken: Option<String>,
    /// State of the replica, as its engine reports it; `None` when the node could not be asked.
    pub live: Option<ReplicaLive>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReplicaLive {
    pub role: Role,
    pub data: StoreState,
    pub epoch: u64,
    pub version: u64,
    pub commit: u64,
    pub end: u64,
    pub durable: u64,
    /// How long the journal of a primary took when it last had something to write, in microseconds.
    #[serde(default)]
    pub journal_latency_us: u64,
    /// Bytes of the pool that each volume takes.
    #[serde(default)]
    pub allocated: Vec<u64>,
    /// Why no write to its volumes is possible, if its pool has no space for one.
    #[serde(default)]
    pub no_space: Option<String>,
    /// A block that no replica in sync had whole when this primary last read it. Every read of it
    /// fails. Names the first such block, and how many more there are.
    #[serde(default)]
    pub unreadable: Option<String>,
    /// Reasons that keep the replica from its work as a primary, one sentence each.
    #[serde(default)]
    pub waiting_for: Vec<String>,
    /// Users of its devices flush writes that must not be lost, and learn when other writes are
    /// lost. Without that, mode B acknowledges no write from memory.
    #[serde(default)]
    pub caches: bool,
    /// Paths of the block devices, by volume; only on the primary.
    pub devices: Vec<DeviceView>,
    /// How the primary sees the other replicas; empty elsewhere.
    pub peers: Vec<PeerView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceView {
    pub volume: u16,
    pub path: String,
    /// Longest write that is whole or absent on every replica, in bytes, if it reaches the device
    /// as one request of whole blocks. 0: no write is promised to be whole.
    #[serde(default)]
    pub atomic_write_max: u64,
    /// Reason why no write is promised to be whole. `None` if one is, or if the engine does not
    /// say.
    #[serde(default)]
    pub not_atomic: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PeerView {
    pub node: String,
    pub state: PeerState,
    pub lag_entries: u64,
    pub lag_bytes: u64,
    /// Age of the oldest entry that it lacks.
    #[serde(default)]
    pub lag_ms: u64,
    /// Whether the lag is only a lower bound, because the primary does not know it exactly.
    #[serde(default)]
    pub lag_more: bool,
    /// Share of an extent copy that is done, in percent; `None` when none runs.
    pub progress_percent: Option<u8>,
    /// How long its last acknowledgement took, in microseconds; 0 if that is not known.
    #[serde(default)]
    pub latency_us: u64,
    /// How fast an extent copy has gone lately, in bytes per second, and how long the rest takes at
    /// that rate, in milliseconds. `None` when none runs or that is not known yet.
    #[serde(default)]
    pub copy_bytes_per_s: Option<u64>,
    #[serde(default)]
    pub copy_left_ms: Option<u64>,
    /// `None` unless it is out of the in-sync set because it was slow.
    #[serde(default)]
    pub slow: Option<SlowView>,
}

/// A replica that is out of the in-sync set because it was slow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlowView {
    /// For how long it has been out, in milliseconds.
    pub out_ms: u64,
    /// How long it took to acknowledge when it left, in microseconds.
    pub latency_us: u64,
    /// Time until the replica is asked to return, in milliseconds, if it keeps up until then.
    pub returns_in_ms: u64,
}

/// Names of severities in events: the worst one is not called as in the control plane's log.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Severity", rename_all = "kebab-case")]
enum EventSeverity {
    Info,
    Warning,
    #[serde(rename = "error")]
    Critical,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventView {
    /// Rises with every event; give the highest one seen as `after`.
    pub index: u64,
    pub at_ms: u64,
    #[serde(with = "EventSeverity")]
    pub severity: Severity,
    /// `node/n1`, `resource/db`, `service/db` or `cluster`.
    pub subject: String,
    pub text: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EventsPage {
    pub events: Vec<EventView>,
    /// Pass this as `after` next time.
    pub last: u64,
    /// Events after the asked position were dropped from the bounded list.
    pub gap: bool,
}

/// Whether the agent can talk to the engine of its node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EngineView {
    pub connected: bool,
    pub message: String,
    /// How it makes devices, as far as it has said so.
    #[serde(default)]
    pub frontend: Option<FrontendStatus>,
    /// Its watchdog, as far as it has said so; `None` if it was started without one.
    #[serde(default)]
    pub watchdog: Option<WatchdogStatus>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StatusView {
    /// `None` while the agent is not a member of a cluster.
    pub cluster: Option<ClusterView>,
    pub engine: EngineView,
    /// How long this node's lease lasts from now on, in milliseconds; 0 when it has none.
    pub lease_left_ms: u64,
    pub resources: Vec<ResourceView>,
    pub services: Vec<ServiceView>,
    /// Actions to take next, most urgent first; empty when all is well.
    pub advice: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::{EventView, ServicePhase, Severity};

    #[test]
    fn states_have_the_names_that_scripts_know() {
        let event = EventView {
            index: 1,
            at_ms: 2,
            severity: Severity::Critical,
            subject: "node/n1".into(),
            text: "dead".into(),
        };
        let json = serde_json::to_string(&event).unwrap();
        assert_eq!(json, r#"{"index":1,"at_ms":2,"severity":"error","subject":"node/n1","text":"dead"}"#);
        assert_eq!(serde_json::from_str::<EventView>(&json).unwrap(), event);
        assert_eq!(serde_json::to_string(&ServicePhase::BackingOff).unwrap(), r#""backing-off""#);
        assert_eq!(format!("{:>12}.", ServicePhase::BackingOff), " backing-off.");
    }
}
