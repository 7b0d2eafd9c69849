//! The replicated state of the cluster. `command.rs` has the commands that change it.
//!
//! Guaranteed after every command (`State::check` asserts it in tests):
//! - the in-sync set of a resource that was ever ready is never empty (R11), and contains the
//!   primary (R8);
//! - epochs and versions never decrease; a promotion raises the epoch by exactly one (R5);
//! - a change that names a version applies to exactly that version, or the answer is
//!   [`Outcome::Conflict`];
//! - applying is deterministic: no clock, no randomness; `at_ms` is kept for display, and ends the
//!   life of tokens (`identities.rs`).

use crate::api_tokens::ApiToken;
use crate::audit::AuditLog;
pub use crate::command::{Command, Entry};
use crate::cordon::Cordon;
use crate::facts::Fact;
use crate::fencing::Fence;
use crate::identities::Identities;
use crate::maintenance::Maintenance;
use crate::orders::{Restart, Stopped};
use crate::origin::Origin;
use crate::removal::Removed;
use crate::rollback::{Rollback, RolledBack};
use crate::scrubs::Scrubs;
use crate::snapshots::{BeforeCopy, Snapshot};
use mainstay_ha::ServiceSpec;
use mainstay_types::{
    Choices, Code, ConfigVersion, Epoch, Incarnation, Index, Instance, MacAddress, Member, NodeId,
    NodeStatus, Position, Problem, ResourceId, ResourceRecord, ServicePhase, Severity, SnapshotId, VolumeId,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Most nodes of a cluster.
pub const NODES_MAX: usize = 64;
/// Most resources, and most services, of a cluster.
pub const RESOURCES_MAX: usize = 1024;
/// Removed nodes that are remembered by name.
pub const REMOVED_MAX: usize = 256;
/// Events that are kept.
pub const EVENTS_MAX: usize = 1000;
/// Longest text of an event or a reason, in bytes; longer ones are cut.
pub const TEXT_BYTES_MAX: usize = 512;
/// Bounds of the length of a lease, in milliseconds. The engine's guard acts 400 ms before its end:
/// with a shorter lease a late heartbeat would stop the services.
pub const LEASE_MS: std::ops::RangeInclusive<u64> = 1000..=60_000;

/// Everything that the nodes agree on. Serialisable as JSON; two nodes that applied the same
/// entries hold equal values.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// `None` before [`Command::InitCluster`].
    pub cluster: Option<Cluster>,
    /// Feature level that the cluster uses; see `level.rs`.
    #[serde(default, skip_serializing_if = "is_level_0")]
    pub level: u32,
    pub settings: Settings,
    /// Settings of resources that have no choice of their own; see `settings.rs`.
    #[serde(default, skip_serializing_if = "Choices::is_empty")]
    pub choices: Choices,
    /// The whole cluster is in maintenance; see `maintenance.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
    pub nodes: BTreeMap<NodeId, Node>,
    pub resources: BTreeMap<ResourceId, Resource>,
    /// By name.
    pub services: BTreeMap<String, Service>,
    /// The last [`EVENTS_MAX`], oldest first.
    pub events: VecDeque<EventRecord>,
    /// Rises by one with every entry that changed something.
    pub revision: u64,
    /// Rises by one with every change of the set of voters.
    pub voters_version: u64,
    /// Number of the newest event; the first is 1.
    pub last_event: u64,
    pub last_node: u32,
    pub last_resource: u64,
    /// Nodes that are not to be primary at this moment, and the reason, as each says of itself.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfit: BTreeMap<NodeId, String>,
    /// Nodes that are to be switched off, or were; see `fencing.rs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fences: BTreeMap<NodeId, Fence>,
    /// Nodes that have left the cluster, the last [`REMOVED_MAX`]; see `removal.rs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub removed: BTreeMap<NodeId, Removed>,
    /// Changes that were asked for; see `audit.rs`.
    #[serde(default, skip_serializing_if = "AuditLog::is_empty")]
    pub audit: AuditLog,
    /// See `identities.rs`.
    #[serde(default, skip_serializing_if = "Identities::is_empty")]
    pub identities: Identities,
    /// Tokens of the API by their names; see `api_tokens.rs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub api_tokens: BTreeMap<String, ApiToken>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// Random; the same on all nodes.
    pub id: u64,
    pub name: String,
    /// 0, or random since the cluster was last begun anew on one node; see `era.rs`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub era: u64,
    /// Numbers by which agents knew the cluster in its earlier eras.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_level_0(level: &u32) -> bool {
    *level == 0
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// How long a node may act after the heartbeat that a majority acknowledged was sent.
    pub lease_ms: u64,
    pub heartbeat_ms: u64,
    /// Time that the other nodes wait beyond the lease, for clocks that run at different rates
    /// (R10). At least 2.5 % of `lease_ms`.
    pub margin_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lease_ms: 2000, heartbeat_ms: 200, margin_ms: 50 }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    pub name: String,
    /// `host:port` of the agent.
    pub agent_addr: String,
    /// `host:port` of the engine.
    pub engine_addr: String,
    pub status: NodeStatus,
    /// Rises with every rejoin; a suspicion concerns one generation only.
    pub generation: u64,
    pub voter: bool,
    /// The node votes and never holds data.
    #[serde(default)]
    pub witness: bool,
    /// The node joins. It receives the log, and votes and holds data only when it has proven
    /// itself; see `members.rs`.
    #[serde(default)]
    pub candidate: bool,
    /// The node joins in place of this one, under its name; see `replacement.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<NodeId>,
    /// The newest [`State::voters_version`] that the node is known to act on.
    pub voters_seen: u64,
    /// Random number of the request that added the node, to recognise its repetition.
    pub nonce: u64,
    /// Feature level of its build, as it told; see `level.rs`.
    #[serde(default, skip_serializing_if = "is_level_0")]
    pub level: u32,
    #[serde(default)]
    pub links: Links,
    /// See `maintenance.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
    /// See `cordon.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordon: Option<Cordon>,
}

/// The network of a node, as far as other nodes have to know it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Links {
    /// Hardware addresses of its interfaces that have an IP address.
    pub macs: BTreeSet<MacAddress>,
    /// IP addresses that Mainstay has not added, and that other hosts may reach.
    pub addresses: BTreeSet<IpAddr>,
}

impl Links {
    /// Most of each that are kept.
    pub const MAX: usize = 64;
}

impl Node {
    /// IP addresses that are known to be its own.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let told = [&self.agent_addr, &self.engine_addr].into_iter().filter_map(|addr| host_address(addr));
        told.chain(self.links.addresses.iter().copied())
    }
}

/// The host of `host:port`, if it is an IP address.
pub(crate) fn host_address(addr: &str) -> Option<IpAddr> {
    let (host, _) = addr.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok()?;
    Some(host.to_canonical())
}

/// The resource as the operator asked for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceSpec {
    /// Bytes of each volume. They rise when volumes grow.
    pub volumes: Vec<u64>,
    pub journal_bytes: u64,
    /// The nodes that hold a replica, sorted.
    pub replicas: Vec<NodeId>,
    /// Nodes that should be primary, best first; each one of `replicas`.
    pub preferred: Vec<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Resource {
    pub id: ResourceId,
    pub name: String,
    pub spec: ResourceSpec,
    /// Settings that were chosen for this resource; see `settings.rs`.
    #[serde(default, skip_serializing_if = "Choices::is_empty")]
    pub choices: Choices,
    pub record: ResourceRecord,
    /// Being deleted; nodes drop their replicas and confirm.
    pub deleting: bool,
    /// While deleting: the nodes whose replica is gone.
    pub gone: BTreeSet<NodeId>,
    /// Why the last primary could not go on, or why there is none. Cleared by a promotion.
    pub failure: Option<String>,
    /// The node whose primary ended in maintenance. It alone may lead until the maintenance ends;
    /// see `maintenance.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<NodeId>,
    /// Where an operator wants the primary of a resource without a service; cleared when it got
    /// there or when that became impossible. See `moves.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_node: Option<NodeId>,
    /// The version of the record on which a node offered an empty replica in place of the last
    /// complete copy, and was refused. The node does not ask again on the same version.
    #[serde(default)]
    pub refused: Option<(ConfigVersion, Member)>,
    /// Registered replicas that cannot be used, by node; see `broken.rs`.
    #[serde(default)]
    pub broken: BTreeMap<NodeId, Broken>,
    /// Replicas that are removed when the one at the new place is in sync: old node, new node; see
    /// `replicas.rs`.
    #[serde(default)]
    pub moving: BTreeMap<NodeId, NodeId>,
    /// Removed replicas whose files are not known to be gone, by node. A node that is to hold a
    /// replica all the same makes a new one then.
    #[serde(default)]
    pub leaving: BTreeMap<NodeId, Incarnation>,
    /// Volumes that are to have more bytes than the specification says; see `grow.rs`.
    #[serde(default)]
    pub growing: BTreeMap<VolumeId, u64>,
    /// The sizes of its volumes where its log begins, in bytes, once one of them has grown; until
    /// then the specification has them.
    #[serde(default)]
    pub first_sizes: Vec<u64>,
    /// See `snapshots.rs`.
    #[serde(default)]
    pub snapshots: BTreeMap<SnapshotId, Snapshot>,
    /// Last complete states of replicas that are being copied to, by node.
    #[serde(default)]
    pub before_copy: BTreeMap<NodeId, BeforeCopy>,
    /// The number of the last snapshot that was wanted.
    #[serde(default)]
    pub last_snapshot: u32,
    /// The resource is to be rolled back to a snapshot; see `rollback.rs`.
    #[serde(default)]
    pub rollback: Option<Rollback>,
    #[serde(default)]
    pub rolled_back: Option<RolledBack>,
    /// The resource is being made of a snapshot of another resource; see `origin.rs`.
    #[serde(default)]
    pub origin: Option<Origin>,
    /// Volumes on which a file system is being made, or was when that was interrupted, with its
    /// identity; see `unfinished.rs`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unfinished: BTreeMap<VolumeId, [u8; 16]>,
    /// See `scrubs.rs`.
    #[serde(default)]
    pub scrubs: Scrubs,
    /// The last promotion outside the in-sync set; see `force.rs`.
    #[serde(default)]
    pub forced: Option<Forced>,
    /// Members that were opened anew since their memory began to count, by node; see `mode_b.rs`.
    #[serde(default)]
    pub reopened: BTreeMap<NodeId, Reopened>,
}

/// A replica that lost what it had only in memory (mode B).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Reopened {
    /// The instance that the replica is in.
    #[serde(rename = "opening")]
    pub instance: Instance,
    /// Where its log ended when its node was last asked; `None`: it is to say so anew.
    pub end: Option<Position>,
}

/// A promotion outside the in-sync set (R11).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forced {
    /// The epoch that the promotion began.
    pub epoch: Epoch,
    pub to: NodeId,
    /// The replicas that had every acknowledged write; one that was made anew on the same node is
    /// another.
    pub lost_with: Vec<Member>,
    /// How far the log of `to` reached when the operator was told, and the last entry that it had
    /// heard to be committed. `None`: the follower took over by itself, and lacked no more than the
    /// limits of the record allow.
    pub told: Option<(Index, Index)>,
    /// Wall clock, for display.
    pub at_ms: u64,
    /// Known when one of `lost_with` has returned.
    pub loss: Option<Loss>,
}

/// Entries that were lost: all after one position, up to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Loss {
    pub after: Position,
    pub until: Position,
}

impl Loss {
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.until.index.0.saturating_sub(self.after.index.0)
    }
}

/// A replica that its node cannot use (R12, R13).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Broken {
    /// Incarnation of the replica on the disk that this is about.
    pub incarnation: Incarnation,
    pub reason: String,
    /// The code by which the advice is chosen; empty where an earlier release reported the failure.
    #[serde(default)]
    pub code: Code,
}

/// Last report of one node about a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceOnNode {
    pub phase: ServicePhase,
    /// Epoch of the start that this is about.
    pub epoch: Epoch,
    pub round: u64,
    pub detail: String,
    /// Failures in the policy's window, as the node counted them.
    pub failures: u32,
    /// Why it failed there the last time, also if it runs again.
    #[serde(default)]
    pub last_failure: String,
    /// Wall clock of the report that told the last failure, for display; 0 if none was told.
    #[serde(default)]
    pub last_failure_ms: u64,
    /// The round in which it used up its attempts here; see [`Service::round`].
    pub failed_round: Option<u64>,
    /// See [`mainstay_ha::Report::passes`].
    #[serde(default)]
    pub passes: bool,
    /// Wall clock of the report, for display.
    pub at_ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Service {
    pub spec: ServiceSpec,
    /// Rises when the specification changes so that what runs has to be started again.
    pub revision: u64,
    /// Rises with every change of the specification.
    #[serde(default)]
    pub edition: u64,
    /// Rises when the operator applies or moves the service: failures of earlier rounds do not
    /// count any more (R21).
    pub round: u64,
    /// Where the operator wants it; cleared when it got there or when that became impossible.
    pub desired_node: Option<NodeId>,
    pub nodes: BTreeMap<NodeId, ServiceOnNode>,
    /// Being deleted; removed when the node that runs it has stopped it.
    pub deleting: bool,
    /// Why it runs nowhere, when it used up its attempts on every node that could run it.
    pub halted: Option<String>,
    /// A node came or went after the last failure: a new round is due when some time has passed
    /// since that failure.
    #[serde(default)]
    pub nodes_changed: bool,
    /// An operator has stopped it; see `orders.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<Stopped>,
    /// An operator wants it restarted in place; see `orders.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// See `maintenance.rs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<Maintenance>,
    /// The round in which an operator wants it started although it is in maintenance. Cleared when
    /// it was tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<u64>,
    /// Number of the last move that an operator asked for; 0 if there was none.
    #[serde(default)]
    pub moved: u64,
    /// The round since which its present specification counts for what is started.
    #[serde(default)]
    pub changed_round: u64,
}

impl Service {
    /// A service that was never started.
    #[must_use]
    pub fn new(spec: ServiceSpec) -> Self {
        Self {
            spec,
            revision: 1,
            edition: 1,
            round: 1,
            desired_node: None,
            nodes: BTreeMap::new(),
            deleting: false,
            halted: None,
            nodes_changed: false,
            stopped: None,
            restart: None,
            maintenance: None,
            ordered: None,
            moved: 0,
            changed_round: 0,
        }
    }

    /// Whether there are failures that the operator can clear.
    #[must_use]
    pub fn has_failures(&self) -> bool {
        self.halted.is_some()
            || self
                .nodes
                .iter()
                .any(|(node, on)| self.failures_on(*node) > 0 || on.phase == ServicePhase::BackingOff)
    }

    /// Failures on `node` that count in the current round: the operator cleared those of earlier
    /// ones.
    #[must_use]
    pub fn failures_on(&self, node: NodeId) -> u32 {
        match self.nodes.get(&node) {
            Some(on) if on.round >= self.round => on.failures.max(u32::from(self.failed_on(node))),
            _ => 0,
        }
    }

    /// Whether the service used up its attempts on `node` in the current round.
    #[must_use]
    pub fn failed_on(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|on| on.failed_round.is_some_and(|round| round >= self.round))
    }

    /// Nodes on which the service used up its attempts in the current round.
    fn failed(&self) -> impl Iterator<Item = (NodeId, &ServiceOnNode)> {
        self.nodes.iter().filter(|(node, _)| self.failed_on(**node)).map(|(node, on)| (*node, on))
    }

    /// These nodes, with what tells one such failure from another: epoch and number of failures.
    #[must_use]
    pub fn failures(&self) -> BTreeMap<NodeId, (Epoch, u32)> {
        self.failed().map(|(node, on)| (node, (on.epoch, on.failures))).collect()
    }

    /// Whether it is halted, and its cause may pass by itself.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        self.halted.is_some() && self.is_wanted() && self.failed().any(|(_, on)| on.passes)
    }

    /// Whether nodes have come or gone since it failed somewhere.
    #[must_use]
    pub fn nodes_have_changed(&self) -> bool {
        self.nodes_changed && self.is_wanted() && self.failed().next().is_some()
    }

    /// Whether another round may be begun for it ([`crate::state::Command::RetryService`]). The
    /// reconciler says when.
    #[must_use]
    pub fn may_be_tried_again(&self) -> bool {
        self.may_pass() || self.nodes_have_changed()
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventRecord {
    /// Rises by one per event.
    pub index: u64,
    /// Wall clock of the proposer.
    pub at_ms: u64,
    pub severity: Severity,
    /// For example `node alpha`, `resource db`, `service db`.
    pub subject: String,
    pub text: String,
    /// The same for programs; none for an event that only operators need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fact: Option<Fact>,
    /// The node that runs the hooks for the fact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<NodeId>,
}

/// The answer to a command; the same on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "an outcome is made once for a command, and few are kept")]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum Outcome {
    Done,
    /// The state was as the command wanted already.
    Unchanged,
    NodeAdded {
        node: NodeId,
        generation: u64,
    },
    ResourceCreated {
        resource: ResourceId,
    },
    /// The record is not the one that the command was based on. `record` is the current one. It is
    /// `None` if the command is not about a resource, or if the resource is gone.
    Conflict {
        record: Option<ResourceRecord>,
    },
    Refused(Problem),
}

impl Outcome {
    /// Whether what was asked for is now the case.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !matches!(self, Self::Conflict { .. } | Self::Refused(_))
    }
}

impl State {
    #[must_use]
    pub fn node_by_name(&self, name: &str) -> Option<&Node> {
        self.nodes.values().find(|node| node.name == name)
    }

    #[must_use]
    pub fn resource_by_name(&self, name: &str) -> Option<&Resource> {
        self.resources.values().find(|resource| resource.name == name)
    }

    #[must_use]
    pub fn alive(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.status == NodeStatus::Alive)
    }

    /// The node's name, or its id if it is unknown.
    #[must_use]
    pub fn node_name(&self, node: NodeId) -> String {
        let left = || self.removed.get(&node).map(|removed| removed.name.clone());
        let known = self.nodes.get(&node).map(|node| node.name.clone());
        known.or_else(left).unwrap_or_else(|| node.to_string())
    }

    /// The service that runs on the primary of `resource`; there is at most one.
    #[must_use]
    pub fn service_of(&self, resource: ResourceId) -> Option<(&String, &Service)> {
        let name = &self.resources.get(&resource)?.name;
        self.services.iter().find(|(_, service)| service.spec.resource == *name)
    }

    /// The resource that `service` runs on.
    #[must_use]
    pub fn resource_of(&self, service: &Service) -> Option<&Resource> {
        self.resource_by_name(&service.spec.resource)
    }

    #[must_use]
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.nodes.values().filter(|node| node.voter).map(|node| node.id).collect()
    }

    /// Adds an event; called while a command is applied.
    pub(crate) fn note(&mut self, at_ms: u64, severity: Severity, subject: String, text: impl Into<String>) {
        self.last_event += 1;
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        let text = cut(text.into());
        let (index, fact, on) = (self.last_event, None, None);
        self.events.push_back(EventRecord { index, at_ms, severity, subject, text, fact, on });
    }

    /// Whether one of the last events told the same, less than [`TOLD_AGAIN_MS`] before.
    pub(crate) fn was_told(&self, at_ms: u64, subject: &str, text: &str) -> bool {
        let text = cut(text.to_owned());
        let same = |event: &EventRecord| {
            event.subject == subject && event.text == text && at_ms.abs_diff(event.at_ms) < TOLD_AGAIN_MS
        };
        self.events.iter().rev().take(16).any(same)
    }
}

/// Time within which several nodes tell of the same trouble once.
const TOLD_AGAIN_MS: u64 = 5000;

/// Shortens to [`TEXT_BYTES_MAX`] at a character's edge.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

/// The same for a code, which may be one that this version does not know.
pub(crate) fn cut_code(code: Code) -> Code {
    cut(code.into()).into()
}

pub(crate) fn refused(code: Code, message: impl Into<String>, remedy: impl Into<String>) -> Outcome {
    Outcome::Refused(Problem::new(code, message, remedy))
}
