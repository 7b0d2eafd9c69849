//! Messages between the engine and the agent of one node.
//!
//! One JSON document per line, at most [`LINE_BYTES_MAX`] bytes, over the unix socket
//! `<run>/engine.sock`. The agent sends [`RequestLine`]s, the engine answers each with a
//! [`EngineLine::Reply`] of the same id, in any order, and sends [`EngineLine::Event`]s unasked.
//!
//! Requests are level-triggered: the agent may reconnect whenever it likes and state everything
//! again. The engine answers with success if it already knows or has already done what a request
//! asks. The connection that said [`Request::Hello`] last is the agent. The others may ask for
//! [`Request::Status`] and listen to events.

mod clients;
mod lines;

pub use clients::ClientStatus;
pub use lines::{LINE_BYTES_MAX, LineDecoder, LineError, encode_line, read_line, write_line};

use crate::metrics::MetricsPage;
use mainstay_types::{
    Code, ConfigVersion, Copies, CopyStatus, Epoch, Fingerprint, FrontendKind, HexBytes, Incarnation, Index,
    Instance, NodeId, PeerState, Position, Problem, Proposal, ResourceId, ResourceRecord, Role, ScrubFinding,
    ScrubRepair, ScrubState, ScrubSummary, SlowStatus, SnapshotId, SnapshotState, StoreState, Time, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// File in the run directory in which the engine notes its lease and what it has silenced, for
/// processes that must not wait for it.
pub const LEASE_FILE: &str = "lease";
/// Place in [`LEASE_FILE`] of a little-endian number of 8 bytes: the point of the boot-time clock,
/// in microseconds, from which on no process of a service begins. 0: processes may begin.
pub const STARTS_BARRED_AT: usize = 72;
/// Place in [`LEASE_FILE`] of a little-endian number of 8 bytes: the point of the boot-time clock,
/// in microseconds, at which the guard or the silencer acted last; 0 for never.
pub const SILENCED_AT: usize = 8;

/// A request and the id that its reply will carry. Ids are chosen by the sender and need to be
/// different only while their replies are outstanding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RequestLine {
    pub id: u64,
    pub request: Request,
}

/// Proofs of a node, and what it believes of the others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proofs {
    /// Private key of the node, in PKCS #8.
    pub key: HexBytes,
    /// Certificate of the node, then that of the authority that gave it.
    pub chain: Vec<HexBytes>,
    /// Number of the cluster in certificates.
    pub cluster: u64,
    /// Certificates of the cluster's authorities.
    pub authorities: Vec<HexBytes>,
    /// Key of each member, as its fingerprint.
    pub members: Vec<(NodeId, Fingerprint)>,
    /// Whether payloads may be sent without encryption, if the other end agrees.
    pub allows_clear: bool,
}

/// Request of the agent to the engine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Request {
    /// First request on the agent's connection: the identity of this node. A second agent
    /// connection replaces the first. Answered by [`Reply::Ok`], or by an error when the engine
    /// serves another cluster or node.
    Hello {
        node: NodeId,
        cluster: u64,
        generation: u64,
    },
    /// Proofs that this node shows to other engines, and the members that it believes. Replaces
    /// what was stated before. Without it the engine connects to nobody and lets nobody in.
    Trust {
        proofs: Box<Proofs>,
    },
    /// All engines of the cluster, this node's own included or not. Replaces what was stated
    /// before.
    Peers {
        peers: Vec<Peer>,
    },
    /// Formats a replica in `dir` (made if missing), unless it holds one of the same incarnation.
    /// Answered by [`Reply::Created`]. The replica is not open afterwards.
    Create {
        resource: ResourceId,
        name: String,
        /// Bytes of each volume.
        volumes: Vec<u64>,
        journal_bytes: u64,
        incarnation: Incarnation,
        dir: String,
        /// Where the journal is to be, if not in `dir`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        journal: Option<JournalPlace>,
        /// The snapshot that the new replica holds from the beginning, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<ContentSource>,
    },
    /// Recovers the replica in `dir` and starts it as a secondary. Answered by [`Reply::Opened`].
    /// `name` names the directory of its devices.
    Open {
        resource: ResourceId,
        name: String,
        dir: String,
        /// Incarnation on the label of the replica to open. The engine refuses a directory with
        /// another label. `None`: the engine opens the replica that is there.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        incarnation: Option<Incarnation>,
        /// The last entry that this replica is known to have held, durable and committed. A log
        /// that ends earlier is not opened.
        #[serde(default)]
        held: Index,
    },
    /// Stops the replica, without deleting anything.
    Drop {
        resource: ResourceId,
    },
    /// The control plane's record, whenever it changed. Older versions than the known one are
    /// ignored.
    Record {
        record: ResourceRecord,
    },
    /// The node's lease ends at `until_us` on this machine's boot-time clock (R10). Answered by
    /// [`Reply::Lease`].
    Lease {
        until_us: Time,
    },
    /// Everything that must be silent before the lease ends (R19). Replaces what was stated before.
    Guard {
        entries: Vec<GuardEntry>,
    },
    /// Stop admitting requests, finish those in flight, and give the devices back. An
    /// [`EngineEvent::Replica`] with the role [`Role::Secondary`] tells when that has been done.
    Demote {
        resource: ResourceId,
    },
    /// Make these volumes of the primary as large as this, in bytes. Larger volumes stay as they
    /// are. An [`EngineEvent::Replica`] tells when the volumes have grown.
    Grow {
        resource: ResourceId,
        volumes: Vec<(VolumeId, u64)>,
    },
    /// Promise this epoch (R1) although it has no primary yet. From then on no primary of a lower
    /// epoch changes the replica. Answered when the promise is durable. Refused if the replica is
    /// not whole or has promised this epoch or a higher one.
    Promise {
        resource: ResourceId,
        epoch: Epoch,
    },
    /// Take and drop snapshots until the log of the primary has these and no others, except for
    /// `mark`. If the log does not have `mark`, roll back to the snapshot `to`, which makes the
    /// mark. A replica that is copied to gives up the state that it held before, unless
    /// [`SnapshotId::BEFORE_COPY`] is wanted. An [`EngineEvent::Replica`] tells when this is done.
    Snapshots {
        resource: ResourceId,
        wanted: BTreeSet<SnapshotId>,
        #[serde(default)]
        mark: Option<SnapshotId>,
        #[serde(default)]
        to: Option<SnapshotId>,
    },
    /// Begin to compare all replicas, extent by extent at one entry of the log each (R17). A
    /// replica that is not primary refuses this, and so does a primary that is comparing already.
    Scrub {
        resource: ResourceId,
        repair: ScrubRepair,
        /// Bytes per second that each replica reads; 0: no limit but that of background work.
        rate: u64,
        /// If the engine has begun a scrub since this one ([`ScrubSummary::ordinal`]), that is
        /// success, and it begins none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<u64>,
    },
    /// Hold new requests until [`Request::Resume`], for a while at most. Answered when all requests
    /// that were admitted before are committed.
    Pause {
        resource: ResourceId,
    },
    Resume {
        resource: ResourceId,
    },
    /// Digests of the volumes as of the commit index, which must not move meanwhile. Answered by
    /// [`Reply::Digest`].
    Digest {
        resource: ResourceId,
    },
    /// End the scrub that is under way, if there is one.
    StopScrub {
        resource: ResourceId,
    },
    /// The last scrub that this replica led, or the one that is under way. Answered by
    /// [`Reply::Scrub`].
    ScrubStatus {
        resource: ResourceId,
    },
    /// Whether nothing was ever written to the volume, nor discarded. Answered by [`Reply::Blank`].
    Blank {
        resource: ResourceId,
        volume: VolumeId,
    },
    /// For this time, an end of the engine that it is told of (SIGTERM) is that of an engine whose
    /// successor comes: it answers what it has read from its devices, leaves the devices with the
    /// agent, and silences no service. Refused with the reason if that is not possible now. 0 takes
    /// an earlier order back, and `None` only asks whether it is possible.
    Successor {
        within_ms: Option<u64>,
    },
    /// Takes the devices away from their users: outstanding and later requests fail with EIO.
    Detach {
        resource: ResourceId,
    },
    /// Open a client of the resource under this instance, if there is none, and tell it the record,
    /// which names this node as attached. `name` names the directory of its devices. An
    /// [`EngineEvent::Client`] tells when they are there. Refused while a replica of the resource
    /// is open.
    AttachClient {
        name: String,
        record: Box<ResourceRecord>,
        #[serde(rename = "opening")]
        instance: Instance,
    },
    /// Close the client: waiting requests are answered with errors, and its devices go. Answered
    /// when they are gone. If there is no client, that is success.
    DetachClient {
        resource: ResourceId,
    },
    /// Answered by [`Reply::Status`].
    Status,
    /// Asks for one page of counts, about the replicas after `after`, or from the first replica on
    /// if that is `None`. Answered by [`Reply::Metrics`].
    Metrics {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<ResourceId>,
    },
}

/// A place for a journal outside of its replica's directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JournalPlace {
    /// Absolute path of the journal's file, which must not exist yet.
    pub path: String,
    /// Whether the journal may be in memory that a power cut empties.
    pub volatile: bool,
}

/// A snapshot in the files of another replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ContentSource {
    /// Directory of that replica, on the same file system; absolute.
    pub dir: String,
    pub snapshot: SnapshotId,
    /// Number of the snapshot in the new replica.
    pub name: SnapshotId,
}

/// The engine of another node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Peer {
    pub node: NodeId,
    /// `host:port` with an IP address as host.
    pub addr: String,
}

/// Parts of one service that the engine silences by itself when the lease runs out without renewal
/// (R19). The engine does so even when the agent is dead.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GuardEntry {
    /// The resource whose devices answer with errors from then on.
    pub resource: ResourceId,
    /// Absolute paths of cgroups (version 2) whose processes are killed, nested ones included.
    #[serde(default)]
    pub cgroups: Vec<String>,
    /// Addresses that are removed before anything is killed, on whichever interface they are, if
    /// Mainstay has added them.
    #[serde(default)]
    pub addresses: Vec<GuardAddress>,
    /// Mount points, without links in them, that are detached after the kill, if their file system
    /// is on one of `devices`.
    #[serde(default)]
    pub mounts: Vec<String>,
    /// Links to devices of the resource. A link that leads nowhere has no effect.
    #[serde(default)]
    pub devices: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct GuardAddress {
    /// The interface that the service names, for people; empty if it names none. The guard looks on
    /// all of them.
    #[serde(default)]
    pub interface: String,
    /// An IPv4 or IPv6 address with its prefix length, for example `10.0.0.7/24`.
    pub address: String,
}

/// Message from the engine to the agent.
#[expect(clippy::large_enum_variant, reason = "sent a few times per second; no list of them is kept")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum EngineLine {
    Reply { id: u64, reply: Reply },
    Event { event: EngineEvent },
}

/// Answer to one request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Reply {
    Ok,
    Error(Problem),
    Created {
        incarnation: Incarnation,
    },
    Opened {
        incarnation: Incarnation,
    },
    Status(EngineStatus),
    /// The guard knows this lease now. `silenced_us` as in [`EngineStatus`].
    Lease {
        until_us: Time,
        silenced_us: Time,
    },
    /// None: this replica has led none since it was opened.
    Scrub {
        status: Option<ScrubStatus>,
    },
    Digest(DigestReport),
    Blank {
        blank: bool,
    },
    Metrics(MetricsPage),
}

impl Reply {
    #[must_use]
    pub fn refused(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Error(Problem::new(code, message, remedy))
    }
}

/// Digests of all volumes at one log position. Equal positions must have equal digests (R17).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DigestReport {
    pub resource: ResourceId,
    /// The commit index at which the content was read.
    pub index: Index,
    pub volumes: Vec<VolumeDigest>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeDigest {
    pub bytes: u64,
    /// Lower-case hexadecimal.
    pub digest: String,
}

/// A scrub, as it is or as it ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ScrubStatus {
    pub state: ScrubState,
    pub repair: ScrubRepair,
    /// Bytes per second; 0: no limit of its own.
    pub rate: u64,
    /// How long it has taken, in milliseconds.
    pub took_ms: u64,
    /// Extents of all volumes, and how many of them the scrub has judged.
    pub extents: u64,
    pub done: u64,
    /// In how many extents each replica was compared.
    pub compared: Vec<(NodeId, u64)>,
    /// Extents that the primary could compare with no other replica.
    pub uncompared: u64,
    /// Blocks that differed; of these, written anew, and overwritten by clients before that.
    pub different: u64,
    pub repaired: u64,
    pub overwritten: u64,
    /// The first findings; neighbouring blocks are one finding.
    pub findings: Vec<ScrubFinding>,
    /// Entries of the first and the last extent.
    pub from: Index,
    pub to: Index,
    /// How long the rest takes, in milliseconds, if that is known.
    pub left_ms: Option<u64>,
}

/// Everything an engine knows about itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct EngineStatus {
    /// Node that the agent named in [`Request::Hello`]; `None` before the first one.
    pub node: Option<NodeId>,
    /// Address on which the engine listens for other engines. Before the first [`Request::Hello`]:
    /// the address on which it will.
    #[serde(default)]
    pub listen: Option<String>,
    /// The engine's boot-time clock.
    pub now_us: Time,
    pub lease_until_us: Time,
    /// Whether the guard has acted and the lease was not renewed since.
    pub fenced: bool,
    /// When the guard last finished silencing this node's services. While the guard is silencing
    /// them: now. 0 if it never did. Every service that began before this time is silenced, even if
    /// the lease was renewed since (R19).
    pub silenced_us: Time,
    /// How volumes become devices here; `None` from an engine that does not say.
    #[serde(default)]
    pub frontend: Option<FrontendStatus>,
    /// `None` if the engine was started without a watchdog.
    #[serde(default)]
    pub watchdog: Option<WatchdogStatus>,
    pub replicas: Vec<ReplicaStatus>,
    #[serde(default)]
    pub clients: Vec<ClientStatus>,
}

/// Whether the watchdog of a machine backs the guard of its engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WatchdogChoice {
    #[default]
    Off,
    /// If there is one that can be used.
    Automatic,
    /// The node does not become primary without one.
    Required,
}

/// State of the watchdog of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WatchdogStatus {
    pub choice: WatchdogChoice,
    /// Path of the device.
    pub device: String,
    /// Name of the device, given by its driver; empty while it is not open.
    pub identity: String,
    /// Whether it resets the machine if the engine does not feed it.
    pub armed: bool,
    /// How long after the last feed it does so, in milliseconds; 0 unless armed.
    pub timeout_ms: u64,
    /// When it does so unless it is fed, on the engine's boot-time clock; 0 unless armed.
    pub fires_at_us: Time,
    /// Why it cannot be used, in words.
    pub problem: Option<String>,
}

/// Which frontend an engine uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrontendStatus {
    /// `None` when none can be used and resources get no devices.
    pub kind: Option<FrontendKind>,
    /// Why this one, in words.
    pub reason: String,
}

/// Message that the engine sends unasked. Every connection gets [`EngineEvent::Replica`] and
/// [`EngineEvent::Client`] of all resources when it is accepted. The engine repeats a proposal
/// until a newer record arrives.
#[expect(clippy::large_enum_variant, reason = "sent a few times per second; no list of them is kept")]
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum EngineEvent {
    /// The status of a replica changed. The progress of peers is sent at most a few times per
    /// second.
    Replica(ReplicaStatus),
    /// The status of a client changed.
    Client(ClientStatus),
    /// There is no client of this resource any more.
    ClientGone { resource: ResourceId },
    /// The replica asks for a change of its record: a compare-and-set on `version`.
    Proposal(ProposalEvent),
    /// The replica has stopped using its store or its devices (R13).
    Failed { resource: ResourceId, reason: String },
    /// The guard has silenced this node's services: the lease ran out at `until_us` (R19).
    /// `silenced_us` as in [`EngineStatus`].
    LeaseLost { until_us: Time, silenced_us: Time },
}

/// Proposal of one replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProposalEvent {
    pub resource: ResourceId,
    #[serde(flatten)]
    pub proposal: Proposal,
}

/// Identity of an open file, as `stat` tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileId {
    /// Device number of its file system.
    pub dev: u64,
    pub ino: u64,
}

/// One replica of this node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReplicaStatus {
    pub resource: ResourceId,
    pub name: String,
    pub incarnation: Incarnation,
    /// Files that the engine has open, by their names in the replica's directory. Empty if the
    /// engine does not say.
    #[serde(default)]
    pub files: BTreeMap<String, FileId>,
    /// New whenever the replica is opened.
    #[serde(default, rename = "opening")]
    pub instance: Instance,
    /// The end of its log (mode B). Set only if the record that it acts on counts on memory of
    /// another instance.
    #[serde(default)]
    pub reopened: Option<Position>,
    /// Users of its devices flush writes that must not be lost, and learn when other writes are
    /// lost. Without that, mode B acknowledges no write from memory.
    #[serde(default)]
    pub caches: bool,
    pub role: Role,
    /// Highest epoch promised (R1).
    pub epoch: Epoch,
    /// Version of the record that the replica acts on; 0 before the first.
    pub version: ConfigVersion,
    pub commit: Index,
    /// Last entry in the log.
    pub end: Index,
    /// Last entry that is durable here.
    pub durable: Index,
    /// The highest commit index that it was told; of a secondary it may be beyond its log.
    #[serde(default)]
    pub heard: Index,
    pub data: StoreState,
    pub paused: bool,
    /// When the current promotion was complete, on this machine's boot-time clock; 0 unless
    /// primary.
    pub promoted_at_us: Time,
    pub journal_bytes_used: u64,
    pub journal_bytes: u64,
    /// How long the journal of a primary took when it last had something to write, in microseconds.
    #[serde(default)]
    pub journal_latency_us: u64,
    /// Bytes of each volume.
    pub volumes: Vec<u64>,
    /// Bytes of the pool that each volume takes.
    #[serde(default)]
    pub allocated: Vec<u64>,
    /// Why no write to its volumes is possible, if the pool has no space for one. The engine tries
    /// again by itself.
    #[serde(default)]
    pub no_space: Option<String>,
    /// The store is no longer used because the pool had no space. It can be opened again when there
    /// is room.
    #[serde(default)]
    pub full: bool,
    /// Whether the replica's files are an older copy: it led, and another replica holds
    /// acknowledged entries that it lacks.
    #[serde(default)]
    pub older: bool,
    /// A block that no replica in sync had whole when this primary last read it. Every read of it
    /// fails. Names the first such block, and how many more there are.
    #[serde(default)]
    pub unreadable: Option<String>,
    /// Requests of devices that have not been answered.
    #[serde(default)]
    pub requests: usize,
    /// Reasons for which the replica waits, in words; empty when all is well.
    #[serde(default)]
    pub waiting_for: Vec<String>,
    /// The other replicas as the primary sees them; empty on others.
    pub peers: Vec<PeerStatus>,
    /// Empty unless primary.
    pub devices: Vec<DeviceStatus>,
    /// Epoch in which an engine before this one served these same devices, and left them to this
    /// one. No other node was primary since then. `None` if this engine made the devices.
    #[serde(default)]
    pub continues: Option<Epoch>,
    /// The record gives the devices to a client, so a primary has none.
    #[serde(default)]
    pub attached: bool,
    /// The snapshots that its log has, as far as it is committed here, in ascending order. Also the
    /// state that it held before it was copied to, if that is kept ([`SnapshotId::BEFORE_COPY`]).
    #[serde(default)]
    pub snapshots: Vec<SnapshotStatus>,
    /// The last scrub that it led since it was opened.
    #[serde(default)]
    pub scrub: Option<ScrubSummary>,
    /// Whether this replica, as a primary in mode A, feeds every follower and copies to none. In
    /// the other modes the in-sync set tells that.
    #[serde(default)]
    pub feeds_all: bool,
    /// Whether there are as many copies as are wanted, as this primary sees it.
    #[serde(default)]
    pub copies: Copies,
    /// The proposal that waits for a newer record.
    pub proposal: Option<ProposalEvent>,
}

/// A snapshot as one replica has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SnapshotStatus {
    pub id: SnapshotId,
    /// The entry that it is as of; 0 if that is not known here.
    pub at: Index,
    pub state: SnapshotState,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeerStatus {
    pub node: NodeId,
    pub state: PeerState,
    /// Bytes and entries that it lacks, as far as that is known.
    pub lag_bytes: u64,
    pub lag_entries: u64,
    /// When the oldest entry that it lacks was made, on the engine's boot-time clock. 0 if it lacks
    /// none, or if that is not known.
    #[serde(default)]
    pub lag_since_us: Time,
    /// Whether the lag is only a lower bound, because the primary does not know it exactly.
    #[serde(default)]
    pub lag_more: bool,
    /// Progress of an extent copy in thousandths; 0 while none is going on.
    pub copied_permille: u16,
    /// How long its last acknowledgement took, in microseconds; 0 if that is not known.
    #[serde(default)]
    pub latency_us: u64,
    /// Details about the slowness for which the replica left the in-sync set; `None` unless it did.
    #[serde(default)]
    pub slow: Option<SlowStatus>,
    /// How fast it has been copied to lately, if that is known.
    #[serde(default)]
    pub copy: Option<CopyStatus>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeviceStatus {
    pub volume: VolumeId,
    /// For example `/dev/loop3`.
    pub path: String,
    /// Users that the kernel does not know of.
    #[serde(default)]
    pub users: Vec<DeviceUser>,
    /// Longest write that is whole or absent on every replica, in bytes, if it reaches the device
    /// as one request of whole blocks. 0: no write is promised to be whole.
    #[serde(default)]
    pub atomic_write_max: u64,
    /// Reason why no write is promised to be whole. `None` if one is, or if the engine does not
    /// say.
    #[serde(default)]
    pub not_atomic: Option<String>,
}

/// User of a volume that the engine serves through a socket of its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceUser {
    /// In words for the operator, such as `an NBD client at 10.0.0.9:40112`.
    pub what: String,
    /// Its process, if it is on the engine's node.
    #[serde(default)]
    pub process: Option<u32>,
    /// Whether the user finds the next primary by itself.
    #[serde(default)]
    pub follows: bool,
}

#[cfg(test)]
mod tests;
