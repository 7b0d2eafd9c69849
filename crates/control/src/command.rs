//! The commands that change the replicated state, as entries of the control plane's log.
//!
//! Nodes of two builds may apply the same entry, and have to get the same state. So a new command,
//! a new field and a changed effect need a feature level. `level.rs` has the rules, and
//! `tests/shape.rs` fails for a part without a level.

use crate::audit::{Asked, AuditResult};
use crate::identities::{Admission, Authority, Phase};
use crate::maintenance::Scope;
use crate::origin::SnapshotOf;
use crate::state::{Links, ResourceSpec, Settings};
use mainstay_ha::ServiceSpec;
use mainstay_types::settings::Changes;
use mainstay_types::{
    Access, Choices, Code, ConfigVersion, Epoch, Fingerprint, Incarnation, Index, Instance, IssChange,
    Member, NodeId, Position, ResourceId, ScrubSummary, ServicePhase, SessionId, Severity, SnapshotId,
    SnapshotOn, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One entry of the control plane's log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Wall clock of the proposer in milliseconds since 1970. It is for display, and ends the life
    /// of tokens.
    pub at_ms: u64,
    pub command: Command,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Command {
    /// The first entry of a cluster.
    InitCluster {
        id: u64,
        name: String,
        settings: Settings,
    },
    /// First record of a request for a change; see `audit.rs`. Repeated with the same id it changes
    /// nothing.
    AuditBegun {
        asked: Asked,
    },
    /// Result of this request: the change was made, or refused with a code.
    AuditEnded {
        id: u64,
        result: AuditResult,
    },
    /// Ids are given in order. Repeated with the same nonce it answers the same node.
    AddNode {
        name: String,
        agent_addr: String,
        engine_addr: String,
        voter: bool,
        #[serde(default)]
        witness: bool,
        nonce: u64,
    },
    /// The interfaces of a node, as the node sees them.
    NodeLinks {
        node: NodeId,
        links: Links,
    },
    /// The feature level of the build that a node runs, as it says of itself; see `level.rs`.
    NodeLevel {
        node: NodeId,
        level: u32,
    },
    /// Proposed by the leader: every node has this feature level, and the cluster uses it from now
    /// on.
    RaiseLevel {
        level: u32,
    },
    /// Whether a node may be primary, as it says of itself, and why not.
    NodeFitness {
        node: NodeId,
        unfit: Option<String>,
    },
    /// How the fence command for this generation of a node ended: the node that ran it, or why it
    /// failed.
    Fenced {
        node: NodeId,
        generation: u64,
        result: Result<String, String>,
    },
    /// An operator says that a node is off.
    ConfirmOff {
        node: NodeId,
    },
    /// A node joins: it receives the log and does not vote yet (R29); see `members.rs`. Repeated
    /// with the same nonce it answers the same node.
    AdmitNode {
        name: String,
        agent_addr: String,
        engine_addr: String,
        witness: bool,
        nonce: u64,
        /// The node of this name is dead, and this one takes its place; see `replacement.rs`.
        #[serde(default)]
        replace: bool,
        /// Feature level of its build.
        #[serde(default)]
        level: u32,
        /// Token and key of the node. A cluster that has an authority lets no node in without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Admission>,
    },
    /// The cluster's authority; see `identities.rs`. Repeated it changes nothing.
    SetAuthority {
        authority: Authority,
    },
    /// The authority has given a node a certificate. `fingerprint` is that of the certificate,
    /// `key` that of the node's key, which never changes.
    GiveCertificate {
        node: NodeId,
        key: Fingerprint,
        fingerprint: Fingerprint,
        authority: u32,
        /// End of the certificate, in milliseconds since 1970.
        until_ms: u64,
    },
    /// Lets one node with this name join until `until_ms`, in milliseconds since 1970, by the
    /// proposers' clocks.
    CreateToken {
        id: u64,
        hash: Fingerprint,
        node: String,
        until_ms: u64,
    },
    RevokeToken {
        id: u64,
    },
    /// Another authority is to take the place of the present one; see `identities/rotation.rs`.
    /// Repeated it changes nothing.
    AnnounceAuthority {
        authority: Authority,
    },
    /// A node says of itself that it believes the announced authority and can issue by it. With
    /// `certified`: that it shows a certificate of it.
    ConfirmAuthority {
        node: NodeId,
        authority: u32,
        certified: bool,
    },
    /// Proposed by the leader: every node is so far that the rotation can leave the phase `from`.
    AdvanceRotation {
        authority: u32,
        from: Phase,
    },
    /// An operator withdraws an authority that is announced and does not issue yet.
    CancelRotation {
        authority: u32,
    },
    /// An operator lets the rotation go on without these dead nodes. They have to join anew.
    LeaveOut {
        authority: u32,
        nodes: BTreeSet<NodeId>,
    },
    /// Lets the holder of this token use the API with this right until `until_ms`; see
    /// `api_tokens.rs`. Repeated it changes nothing.
    CreateApiToken {
        name: String,
        /// Public half.
        id: u64,
        hash: Fingerprint,
        access: Access,
        /// End, in milliseconds since 1970.
        until_ms: u64,
    },
    RevokeApiToken {
        name: String,
    },
    /// A node was asked by the token with this public half.
    ApiTokenUsed {
        id: u64,
    },
    /// Proposed by the leader: a node that joins has answered at its address with all entries in
    /// its log, and votes from now on.
    SeatNode {
        node: NodeId,
    },
    /// The node that joined with this nonce could not prove itself, and is forgotten again.
    WithdrawNode {
        nonce: u64,
    },
    /// The node leaves the cluster for good; see `removal.rs`. `lost` are the resources that the
    /// operator gives up with it: it holds their only replica.
    RemoveNode {
        node: NodeId,
        #[serde(default)]
        lost: BTreeSet<ResourceId>,
    },
    /// A dead node leaves the cluster, and another member gets replicas of what it had; see
    /// `replacement.rs`.
    ReplaceNode {
        node: NodeId,
        by: NodeId,
    },
    /// Proposed by the leader: a member gets a vote, or loses it; see `votes.rs`.
    SetVote {
        node: NodeId,
        votes: bool,
    },
    /// Other nodes find the agent and the engine of this member at other addresses from now on.
    SetAddress {
        node: NodeId,
        agent_addr: String,
        engine_addr: String,
    },
    /// `node` acts on the voters of this version (or later): its lease counts only acknowledgements
    /// of those. Until every alive node has said so no further voter is added, so that any two
    /// majorities in use intersect (R10).
    VotersSeen {
        node: NodeId,
        voters_version: u64,
    },
    /// Proposed when a majority of voters suspects this generation: one entry for everything that
    /// follows.
    NodeDead {
        node: NodeId,
        generation: u64,
    },
    /// The node is alive and silent, and wants a new generation. `generation` is the one it had.
    NodeRejoin {
        node: NodeId,
        generation: u64,
    },
    CreateResource {
        name: String,
        spec: ResourceSpec,
        #[serde(default)]
        choices: Choices,
        /// The volumes are to hold what this snapshot of another resource holds; see `origin.rs`.
        #[serde(default)]
        origin: Option<SnapshotOf>,
    },
    /// The node has formatted a replica. With another incarnation than before: the old content is
    /// lost (R9). Counts only on the version that is named: a report that comes late may be of a
    /// disk that was replaced since.
    ReplicaReady {
        resource: ResourceId,
        version: ConfigVersion,
        node: NodeId,
        incarnation: Incarnation,
    },
    /// The node cannot use its replica, for a reason that does not pass by itself (R12, R13).
    /// Counts only on the version that is named: if `node` is the primary of that version it has
    /// stopped its services (R19).
    ReplicaBroken {
        resource: ResourceId,
        version: ConfigVersion,
        node: NodeId,
        incarnation: Incarnation,
        reason: String,
        /// By which the advice is chosen; may be empty.
        #[serde(default)]
        code: Code,
    },
    /// The node has opened the replica that it had said to be broken, and its store works.
    ReplicaOpened {
        resource: ResourceId,
        node: NodeId,
        incarnation: Incarnation,
    },
    /// The replica was opened anew, and the record counts on what it had in memory before (mode B).
    /// `end`: the end of its log now. Counts only on the version that is named. If `node` is the
    /// primary of that version, it has stopped its services (R19).
    ReplicaReopened {
        resource: ResourceId,
        version: ConfigVersion,
        node: NodeId,
        incarnation: Incarnation,
        #[serde(rename = "opening")]
        instance: Instance,
        end: Position,
    },
    DeleteResource {
        resource: ResourceId,
    },
    /// `node` is to hold a replica too.
    AddReplica {
        resource: ResourceId,
        node: NodeId,
    },
    /// `node` is to hold no replica any more.
    RemoveReplica {
        resource: ResourceId,
        node: NodeId,
    },
    /// `to` is to hold a replica instead of `from`; the old one goes when the new one is in sync.
    MoveReplica {
        resource: ResourceId,
        from: NodeId,
        to: NodeId,
    },
    /// The primary of a resource without a service is to be on `to`; see `moves.rs`.
    MovePrimary {
        resource: ResourceId,
        to: NodeId,
    },
    /// The new replica is in sync and the old one is not primary: the old one goes.
    FinishMove {
        resource: ResourceId,
        from: NodeId,
        to: NodeId,
    },
    /// The replica and its files are gone from the node, or never existed.
    ReplicaGone {
        resource: ResourceId,
        node: NodeId,
    },
    /// A volume is to have this number of bytes.
    GrowVolume {
        resource: ResourceId,
        volume: VolumeId,
        bytes: u64,
    },
    /// The primary of this epoch makes a file system of this identity on a volume. `None`: the file
    /// system is complete, or Mainstay no longer looks after it.
    MakeFileSystem {
        resource: ResourceId,
        epoch: Epoch,
        volume: VolumeId,
        uuid: Option<[u8; 16]>,
    },
    /// A volume has grown, on the primary of this epoch and in its log.
    VolumeGrown {
        resource: ResourceId,
        epoch: Epoch,
        volume: VolumeId,
        bytes: u64,
    },
    TakeSnapshot {
        resource: ResourceId,
        name: String,
    },
    DropSnapshot {
        resource: ResourceId,
        name: String,
    },
    /// Makes all volumes hold what a snapshot holds. The state until then is kept as a snapshot
    /// named `keep`, if a name is given.
    RollBack {
        resource: ResourceId,
        /// Number of the last snapshot when this was wished, so that a repeated wish is fulfilled
        /// once.
        last: u32,
        name: String,
        keep: Option<String>,
        /// A service that runs on the resource is stopped for this, and started again. If false,
        /// such a service is a reason to refuse.
        restart: bool,
    },
    /// All snapshots that the replica of a node has, and those that its log has and it lacks.
    SnapshotsSeen {
        resource: ResourceId,
        node: NodeId,
        seen: Vec<(SnapshotId, SnapshotOn)>,
    },
    /// Proposed by the primary's node when one is due.
    BeginScrub {
        resource: ResourceId,
        epoch: Epoch,
    },
    /// The primary's node tells how a scrub ended.
    ScrubEnded {
        resource: ResourceId,
        node: NodeId,
        seen: ScrubSummary,
    },
    /// The devices are to be on `node`, which holds no replica, and not on the primary; see
    /// `attachments.rs`.
    AttachResource {
        resource: ResourceId,
        node: NodeId,
        /// A request that waits for this time ends the session.
        wait_ms: u64,
        /// The devices move to `node` even if they are on another node.
        take_over: bool,
    },
    /// The devices are to be on the primary again.
    DetachResource {
        resource: ResourceId,
    },
    /// The engine of the node that is attached has opened a client.
    ClaimAttachment {
        resource: ResourceId,
        session: SessionId,
        node: NodeId,
        #[serde(rename = "opening")]
        instance: Instance,
    },
    /// Changes settings of a resource, or of the cluster if none is named; see `settings.rs`. If a
    /// version is named, the resource's record has to have it. Of the cluster it is the tag that
    /// its choices have to have.
    ChangeSettings {
        resource: Option<ResourceId>,
        version: Option<ConfigVersion>,
        changes: Changes,
    },
    /// Goes on from a replica that may lack acknowledged writes, because no replica that has them
    /// all comes back (R11). `end` and `heard` are what the operator was told about the loss: the
    /// end of its log, and the last entry that it had heard to be committed.
    ForcePromote {
        resource: ResourceId,
        version: ConfigVersion,
        to: Member,
        end: Index,
        heard: Index,
    },
    /// Proposed by the primary's engine (R3, R4).
    ChangeIss {
        resource: ResourceId,
        version: ConfigVersion,
        epoch: Epoch,
        change: IssChange,
    },
    /// Makes `to` the primary in the next epoch (R5). `by` is the node that proposes: either there
    /// is no primary, or `by` is the primary and has stopped its services and its role before
    /// (R19).
    Promote {
        resource: ResourceId,
        expect_version: ConfigVersion,
        by: NodeId,
        to: NodeId,
        reason: String,
    },
    /// The primary `node` cannot go on (R13) and has stopped its services. Another member takes
    /// over, if there is one.
    StepDown {
        resource: ResourceId,
        version: ConfigVersion,
        node: NodeId,
        reason: String,
    },
    /// Begins, changes or ends a maintenance.
    SetMaintenance {
        scope: Scope,
        on: bool,
        /// The maintenance ends by itself after this time.
        for_ms: Option<u64>,
    },
    /// Proposed by the node that counts: so much of this maintenance is left.
    MaintenanceCounted {
        scope: Scope,
        number: u64,
        left_ms: u64,
    },
    /// A node that nothing comes to any more, or something does again. `drain`: what is there
    /// leaves.
    SetCordon {
        node: NodeId,
        on: bool,
        drain: bool,
    },
    /// Creates or changes a service, and clears its failures. The answer is
    /// [`crate::state::Outcome::Unchanged`] if there is nothing to change and nothing to clear.
    ApplyService {
        spec: ServiceSpec,
    },
    DeleteService {
        name: String,
    },
    /// The service is stopped on every node: forget it. Only after `DeleteService`.
    ServiceGone {
        name: String,
    },
    /// Clears failures and names the node where the service is to run.
    MoveService {
        name: String,
        to: NodeId,
    },
    /// The service is not to run until an operator starts it. Its resource stays where it is.
    StopService {
        name: String,
    },
    /// The service is to run; clears its failures.
    StartService {
        name: String,
    },
    /// The service is to be restarted where it runs: one process, with what was started after it,
    /// or all.
    RestartService {
        name: String,
        #[serde(default)]
        process: Option<String>,
    },
    /// Proposed by the node that runs the service: this restart is done.
    ServiceRestarted {
        name: String,
        number: u64,
    },
    /// The service is halted since this round, for a cause that may have passed: it is tried anew.
    RetryService {
        name: String,
        round: u64,
    },
    /// Something that an operator may want to see in the list of events; changes nothing else.
    Note {
        /// Earlier releases do not say it.
        #[serde(default)]
        severity: Severity,
        subject: String,
        text: String,
    },
    ServiceStatus {
        name: String,
        node: NodeId,
        phase: ServicePhase,
        epoch: Epoch,
        round: u64,
        detail: String,
        failures: u32,
        /// See [`mainstay_ha::Report::passes`].
        #[serde(default)]
        passes: bool,
        #[serde(default)]
        last_failure: String,
    },
}
