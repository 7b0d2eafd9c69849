//! The control plane's record of a resource: who may sequence and who holds every acknowledged write.

use crate::{ConfigVersion, Epoch, Incarnation, NodeId, ResourceId};
use serde::{Deserialize, Serialize};

/// A replica as the control plane knows it: a node together with the identity of its disk content (R9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    pub node: NodeId,
    pub incarnation: Incarnation,
}

/// Why a member is to leave the in-sync set. Only words depend on it: whoever left for whatever reason counts no more and no
/// less (R3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShrinkReason {
    /// It does not answer, refuses, or needs a copy.
    #[default]
    Absent,
    /// It answers, and writes wait for it too long.
    Slow,
}

/// The one linearizable register per resource. Every change of it is a compare-and-set on `version`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourceRecord {
    pub resource: ResourceId,
    /// Rises with every change, whoever made it.
    pub version: ConfigVersion,
    /// Rises by one with every promotion (R5).
    pub epoch: Epoch,
    /// The node that may sequence in `epoch`; `None` before the first promotion and after a demotion.
    pub primary: Option<NodeId>,
    /// The in-sync set: sorted by node, never empty once the resource is ready (R11).
    pub iss: Vec<Member>,
    /// All replicas that are meant to exist and have a disk, sorted by node; a superset of `iss`.
    pub replicas: Vec<Member>,
}

impl ResourceRecord {
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
