//! The control plane's record of a resource: which node may sequence, and which replicas hold every
//! acknowledged write.

use crate::{ConfigVersion, Epoch, Incarnation, Instance, Mode, NodeId, Policy, ResourceId, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A replica as the control plane knows it: a node together with the identity of its disk content
/// (R9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
}

/// Reason for a member to leave the in-sync set. Only messages depend on it: for every reason, a
/// member that left counts equally little (R3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShrinkReason {
    /// The member does not answer, refuses, or needs a copy.
    #[default]
    Absent,
    /// The member answers, and makes writes wait for too long.
    Slow,
}

/// Whether as many copies are there as are wanted, as a primary sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    #[default]
    Enough,
    /// There are fewer, and requests wait.
    Suspended,
    /// There have been fewer for too long: requests fail.
    Refusing,
}

/// A client that has the devices of a resource, instead of its primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Attachment {
    pub node: NodeId,
    /// The only one whose requests are admitted.
    pub session: SessionId,
    /// Instance of the client that owns the session; `None` while no client has taken the session.
    #[serde(rename = "opening")]
    pub instance: Option<Instance>,
    /// Time after which a waiting request ends the session (R20), in milliseconds.
    pub wait_ms: u64,
}

/// The last change of a log that a client asked for: session and number rise along it, the number
/// within a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ClientMark {
    pub session: SessionId,
    pub number: u64,
}

impl ClientMark {
    /// Mark of an entry that no client asked for. Such an entry repairs blocks that a scrub found
    /// to differ, and gives no block another content.
    pub const REPAIR: Self = Self { session: SessionId(0), number: 1 };
}

/// The one linearizable register per resource. Every change of it is a compare-and-set on
/// `version`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceRecord {
    pub resource: ResourceId,
    /// Rises with every change, by any node.
    pub version: ConfigVersion,
    /// Rises by one with every promotion (R5).
    pub epoch: Epoch,
    /// The node that may sequence in `epoch`; `None` before the first promotion and after a
    /// demotion.
    pub primary: Option<NodeId>,
    /// The in-sync set: sorted by node, never empty once the resource is ready (R11). In mode A the
    /// primary and those in `joining_for_move`.
    pub iss: Vec<Member>,
    /// All replicas that are meant to exist and have a disk, sorted by node; a superset of `iss`.
    pub replicas: Vec<Member>,
    /// Settings in force: the operator's choice, else that of the cluster, else the default.
    #[serde(flatten)]
    pub policy: Policy,
    /// With `takeover`: followers that lack no more acknowledged writes than `lag` allows, sorted
    /// by node. The primary ensures this from before they are in the list (as R4) until it knows
    /// that they are out of it (as R3).
    #[serde(default, rename = "near")]
    pub failover_ready: Vec<Member>,
    /// Nodes whose replicas are to be in sync although the mode is A, because the primary, or a
    /// replica, moves there.
    #[serde(default, rename = "called")]
    pub joining_for_move: Vec<NodeId>,
    /// Replicas that were there when a promotion was forced (R11). Their logs and volumes may hold
    /// entries that are no longer in the history. A primary feeds one only after it has seen that
    /// it holds none.
    #[serde(default, rename = "doubtful")]
    pub unverified: Vec<Member>,
    /// Members of the in-sync set whose memory counts, each with the instance in which it does. In
    /// another instance the member may lack acknowledged writes, and must not be promoted. A member
    /// that is not named here holds its acknowledged writes durably. Empty unless the mode is B, or
    /// was B and some entries are not durable yet.
    #[serde(default, with = "pairs", rename = "openings")]
    pub instances: BTreeMap<NodeId, Instance>,
    /// The client that has the devices, if the primary does not. No other client is admitted.
    #[serde(default)]
    pub attached: Option<Attachment>,
}

impl ResourceRecord {
    /// Returns the record of a new resource: in mode C, without a primary and without replicas.
    #[must_use]
    pub fn new(resource: ResourceId) -> Self {
        Self {
            resource,
            version: ConfigVersion(1),
            epoch: Epoch(0),
            primary: None,
            iss: Vec::new(),
            replicas: Vec::new(),
            policy: Policy::default(),
            failover_ready: Vec::new(),
            joining_for_move: Vec::new(),
            unverified: Vec::new(),
            instances: BTreeMap::new(),
            attached: None,
        }
    }

    /// Whether a replica on `node` that has caught up is to become a member of the in-sync set.
    #[must_use]
    pub fn admits(&self, node: NodeId) -> bool {
        self.policy.mode() != Mode::A || self.joining_for_move.contains(&node)
    }

    /// How many copies of a write there have to be before it is acknowledged.
    #[must_use]
    pub fn copies_wanted(&self) -> usize {
        match self.policy.mode() {
            Mode::A => 1,
            Mode::B | Mode::C => self.policy.min_copies.copies as usize,
        }
    }

    /// Whether too few copies would be left without any one member of the in-sync set.
    #[must_use]
    pub fn needs_every_member(&self) -> bool {
        self.copies_wanted() > 1 && self.iss.len() <= self.copies_wanted()
    }

    /// Whether the replica may be named as failover-ready while its lag is within the limits.
    #[must_use]
    pub fn may_be_failover_ready(&self, member: Member) -> bool {
        self.policy.takeover()
            && self.replicas.contains(&member)
            && !self.iss.contains(&member)
            && !self.unverified.contains(&member)
    }

    /// The in-sync member on `node`, if there is one.
    #[must_use]
    pub fn iss_member(&self, node: NodeId) -> Option<Member> {
        self.iss.iter().copied().find(|m| m.node == node)
    }

    /// The replica on `node`, if there is one.
    #[must_use]
    pub fn replica(&self, node: NodeId) -> Option<Member> {
        self.replicas.iter().copied().find(|m| m.node == node)
    }
}

/// A map as a list of pairs. Keys of JSON objects are texts. Where serde first has to look for the
/// kind of a message, it does not make numbers of them again.
mod pairs {
    use crate::{Instance, NodeId};
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub fn serialize<S: Serializer>(map: &BTreeMap<NodeId, Instance>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(map)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<NodeId, Instance>, D::Error> {
        Ok(Vec::<(NodeId, Instance)>::deserialize(from)?.into_iter().collect())
    }
}
