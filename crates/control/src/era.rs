//! A cluster that begins anew on one node, after its majority is lost for good or from a backup.
//!
//! The node that remains is the only voter. All other nodes stay in the record as dead ones without
//! a vote, so that an operator can go on from what they had, remove them, or replace them. The
//! cluster gets another *era*. Agents talk only to agents of their own era, so a node of the
//! earlier one is refused when it returns, and can neither vote nor serve.
//!
//! Guarantees:
//! - no resource is served by a replica that may lack acknowledged writes, unless an operator
//!   forces it (R11): the in-sync sets stay as they were recorded. A backup may be older than a
//!   change of an in-sync set. So after it was put back, the remaining node is in sync only with
//!   resources of which it holds the only replica;
//! - no token of the API is good any more: what this node knows may be older than the revocation of
//!   one;
//! - epochs and versions continue beyond everything that the earlier era may have used (R5): an
//!   epoch that the remaining node has not heard of is not begun a second time.

use crate::facts::Cause;
use crate::state::{Outcome, State};
use mainstay_types::{ConfigVersion, Epoch, NodeId, NodeStatus, Severity};

/// Epochs and versions that are left out. No cluster loses its majority in the middle of so many
/// changes of one record.
const LEFT_OUT: u64 = 1 << 20;

/// How a cluster came to begin anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anew {
    /// The state is what the remaining node knew last.
    MajorityLost,
    /// The state is as of the time of a backup.
    Restored,
}

impl State {
    /// Begins the cluster anew on `node`. The answer tells each resource that has no replica with
    /// every acknowledged write on this node.
    pub fn begin_anew(&mut self, at_ms: u64, node: NodeId, era: u64, how: Anew) -> Vec<String> {
        if let Some(cluster) = &mut self.cluster {
            cluster.earlier.push(cluster.id ^ cluster.era);
            cluster.era = era;
        }
        // The operator has said that the other nodes do not run.
        self.fences.clear();
        self.unfit.clear();
        // A token may have been revoked without this node.
        self.api_tokens.clear();
        let candidates: Vec<NodeId> =
            self.nodes.values().filter(|known| known.candidate).map(|known| known.id).collect();
        for candidate in candidates {
            self.nodes.remove(&candidate);
            self.identities.forget(candidate);
        }
        if let Some(known) = self.nodes.get_mut(&node) {
            known.status = NodeStatus::Alive;
        }
        // The others have none of this, so each resource is judged with them dead.
        for resource in self.resources.values_mut() {
            let record = &mut resource.record;
            if record.epoch > Epoch(0) {
                record.epoch = Epoch(record.epoch.0 + LEFT_OUT);
            }
            record.version = ConfigVersion(record.version.0 + LEFT_OUT);
            if how == Anew::Restored && record.epoch > Epoch(0) {
                let others: Vec<_> =
                    record.replicas.iter().filter(|member| member.node != node).copied().collect();
                if !others.is_empty() {
                    record.iss = others;
                    record.primary = None;
                    let (iss, unverified) = (&record.iss, &mut record.unverified);
                    unverified.retain(|member| !iss.contains(member));
                    record.instances.retain(|of, _| *of != node);
                    resource.reopened.remove(&node);
                }
            }
            // The engine of the remaining node starts anew, and no service runs.
            if record.primary == Some(node) {
                record.primary = None;
            }
        }
        let others: Vec<(NodeId, u64)> = self
            .nodes
            .values()
            .filter(|known| known.id != node && known.status == NodeStatus::Alive)
            .map(|known| (known.id, known.generation))
            .collect();
        for (other, generation) in others {
            let outcome = self.node_dead(at_ms, other, generation);
            debug_assert_eq!(outcome, Outcome::Done);
        }
        for known in self.nodes.values_mut() {
            known.voter = known.id == node;
            known.generation += 1;
        }
        self.voters_version += 1;
        if let Some(known) = self.nodes.get_mut(&node) {
            known.voters_seen = self.voters_version;
        }
        for resource in self.resources.keys().copied().collect::<Vec<_>>() {
            let Some(known) = self.resources.get(&resource) else { continue };
            if known.record.epoch > Epoch(0) && known.record.primary.is_none() && !known.deleting {
                self.replace_primary(at_ms, resource, "the cluster began anew on one node", Cause::Operator);
            }
        }
        let lacking = self.resources.values().filter(|resource| {
            let record = &resource.record;
            !resource.deleting && record.epoch > Epoch(0) && record.iss_member(node).is_none()
        });
        let lacking: Vec<String> = lacking.map(|resource| resource.name.clone()).collect();
        let name = self.node_name(node);
        let text = match how {
            Anew::MajorityLost => {
                format!("begins anew on {name}, because the majority is lost; earlier members are refused")
            }
            Anew::Restored => format!("begins anew on {name}, from a backup; earlier members are refused"),
        };
        let subject =
            self.cluster.as_ref().map_or_else(String::new, |cluster| format!("cluster {}", cluster.name));
        self.note(at_ms, Severity::Critical, subject, text);
        self.revision += 1;
        lacking
    }
}
