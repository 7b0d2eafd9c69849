//! Nodes that leave the cluster for good, alive or dead.
//!
//! Per node, as the state has it:
//!
//! | from | command | to |
//! |---|---|---|
//! | none | [`Command::AdmitNode`] | candidate |
//! | candidate | [`Command::SeatNode`] | member, with a vote or without; see `votes.rs` |
//! | candidate | [`Command::WithdrawNode`], [`Command::RemoveNode`] | removed |
//! | member | [`Command::RemoveNode`], [`Command::ReplaceNode`] | removed |
//!
//! One entry of the log does all of it: the replicas of the node leave, its vote goes, the devices
//! of its clients move back to the primary, and its name and its addresses are free.
//!
//! Guarantees, after every command:
//! - a living whole member of the in-sync set remains for every resource, unless the operator has
//!   given the resource up by name (R11);
//! - the primary of a resource is not removed, so nothing that writes is removed (R8);
//! - the voters that live are a majority of the voters that remain. Of two voters a living one can
//!   go: it confirms the entry that removes it, and the change of the log's members;
//! - voters change one at a time, and only when every living node counts by the last change. So any
//!   two majorities in use intersect (R10);
//! - the number of a removed node is never used again. So a node with this number is refused for
//!   ever, however old the state is that it returns with ([`State::is_removed`]).
//!
//! A removed node that lives gives its lease up when it learns of its removal. If it does not learn
//! of it, its lease ends by itself, because no voter acknowledges a node that it does not know.
//!
//! [`Command::AdmitNode`]: crate::state::Command::AdmitNode
//! [`Command::SeatNode`]: crate::state::Command::SeatNode
//! [`Command::WithdrawNode`]: crate::state::Command::WithdrawNode
//! [`Command::RemoveNode`]: crate::state::Command::RemoveNode
//! [`Command::ReplaceNode`]: crate::state::Command::ReplaceNode

use crate::level::ONE_OF_TWO_GOES;
use crate::members::settling;
use crate::state::{Node, Outcome, REMOVED_MAX, Resource, State};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, NodeId, Problem, ResourceId, Severity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A node that has left the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Removed {
    pub name: String,
    /// Wall clock, for display.
    pub at_ms: u64,
    /// Where its agent was: it stays a member of the log until it has confirmed its removal. Empty
    /// if the cluster had feature level 0.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent_addr: String,
}

/// The refusal of a dead node that is one of two voters.
fn both_confirm(node: &Node) -> Problem {
    Problem::new(
        Code::VoteNeeded,
        format!("{} is dead and one of two voters, and both have to confirm a removal", node.name),
        format!(
            "bring {} back, and remove it then; if it is lost for good, see the page on nodes about `mainstay cluster recover`",
            node.name
        ),
    )
}

impl State {
    /// Whether a node with this number was a member, or wanted to be one, and is none any more.
    #[must_use]
    pub fn is_removed(&self, node: NodeId) -> bool {
        node.0 != 0 && node.0 <= self.last_node && !self.nodes.contains_key(&node)
    }

    /// Resources whose only replica is on `node`. They are lost if the node is removed.
    #[must_use]
    pub fn lost_with(&self, node: NodeId) -> BTreeSet<ResourceId> {
        let only = |resource: &&Resource| !resource.deleting && resource.spec.replicas == [node];
        self.resources.values().filter(only).map(|resource| resource.id).collect()
    }

    /// Why `node` cannot be removed, if it cannot. `lost` are the resources that the operator gives
    /// up with it.
    #[must_use]
    pub fn cannot_remove(&self, id: NodeId, lost: &BTreeSet<ResourceId>) -> Option<Problem> {
        let Some(node) = self.nodes.get(&id) else {
            return Some(Problem::new(
                Code::UnknownNode,
                format!("there is no node {}", self.node_name(id)),
                "see `mainstay node list`",
            ));
        };
        if node.candidate {
            return None;
        }
        let others = self.nodes.values().filter(|other| other.id != id && !other.candidate).count();
        if others == 0 {
            return Some(Problem::new(
                Code::LastNode,
                format!("{} is the only node of the cluster", node.name),
                "to end the cluster, stop its agent and its engine, and move its state directory away",
            ));
        }
        if self.fences.get(&id).is_some_and(|fence| fence.done.is_none() && !fence.waiting.is_empty()) {
            return Some(self.awaits_fence_of(id));
        }
        let refusal = self.serves(node).or_else(|| self.cannot_spare(node, lost));
        refusal.or_else(|| self.vote_needed(node))
    }

    /// The refusal of a node that is primary.
    fn serves(&self, node: &Node) -> Option<Problem> {
        let resource = self.resources.values().find(|resource| resource.record.primary == Some(node.id))?;
        let remedy = match self.service_of(resource.id) {
            Some((service, _)) => {
                format!("move the service first: `mainstay service move {service} --to NODE`")
            }
            None if resource.spec.replicas.len() > 1 => {
                format!("move the primary first: `mainstay resource move {}`", resource.name)
            }
            None => format!(
                "move the replica first: `mainstay resource move-replica {} {} --to NODE`",
                resource.name, node.name
            ),
        };
        let message = format!("{} is the primary of resource {}", node.name, resource.name);
        Some(Problem::new(Code::IsPrimary, message, remedy))
    }

    /// The refusal of a node that holds a replica that the cluster cannot do without.
    fn cannot_spare(&self, node: &Node, lost: &BTreeSet<ResourceId>) -> Option<Problem> {
        let id = node.id;
        let only = self.lost_with(id);
        if only != *lost {
            if only.is_empty() {
                return Some(Problem::new(
                    Code::Conflict,
                    format!("what is lost with {} has changed", node.name),
                    format!("see what is lost now: `mainstay node remove {}`", node.name),
                ));
            }
            let names: Vec<&str> = only
                .iter()
                .filter_map(|id| self.resources.get(id).map(|known| known.name.as_str()))
                .collect();
            return Some(Problem::new(
                Code::LastReplica,
                format!("{} holds the only replica of {}", node.name, names.join(", ")),
                format!(
                    "add a replica on another node first, or give the data up: `mainstay node remove {} --force`",
                    node.name
                ),
            ));
        }
        for resource in self.resources.values().filter(|resource| !resource.deleting) {
            if only.contains(&resource.id) {
                if let Some(refusal) = self.cannot_delete(resource.id) {
                    return Some(refusal);
                }
                continue;
            }
            if !resource.spec.replicas.contains(&id) {
                continue;
            }
            if !self.others_have_everything(resource, id) && !planted(Bug::RemovedWithLastCopy) {
                let remedy = if self.alive(id) {
                    "wait until another replica is in sync: `mainstay status`".to_owned()
                } else {
                    format!(
                        "bring {0} back; or go on without the writes that only it has: `mainstay resource force-promote {1} NODE`, \
                         or give all of it up: `mainstay resource delete {1}`; and remove it then",
                        node.name, resource.name
                    )
                };
                return Some(Problem::new(
                    Code::LastCopy,
                    format!(
                        "no other living node has every acknowledged write of resource {}",
                        resource.name
                    ),
                    remedy,
                ));
            }
            let moves = resource.moving.iter().any(|(from, to)| *from == id || *to == id);
            let wanted = resource.record.policy.min_copies.copies as usize;
            if resource.lasting_replicas() - usize::from(!moves) < wanted {
                return Some(Problem::new(
                    Code::TooFewReplicas,
                    format!("{wanted} copies of resource {} are wanted (min-copies)", resource.name),
                    format!(
                        "add a replica on another node first, or want fewer: `mainstay resource set {} min-copies={}`",
                        resource.name,
                        wanted - 1
                    ),
                ));
            }
        }
        None
    }

    /// The refusal of a node whose vote the living nodes need.
    fn vote_needed(&self, node: &Node) -> Option<Problem> {
        let remain: Vec<&Node> =
            self.nodes.values().filter(|other| other.voter && other.id != node.id).collect();
        if node.voter && remain.len() == 1 {
            // A build of a lower level refuses this entry.
            let behind = self.lacks_level(ONE_OF_TWO_GOES);
            if behind.is_some() || !self.alive(node.id) {
                return behind.or_else(|| Some(both_confirm(node)));
            }
        }
        let alive = remain.iter().filter(|other| self.alive(other.id)).count();
        if !node.voter || alive * 2 > remain.len() || planted(Bug::RemovalBreaksMajority) {
            return None;
        }
        let dead: Vec<&str> =
            remain.iter().filter(|other| !self.alive(other.id)).map(|other| other.name.as_str()).collect();
        let message = format!(
            "without {} only {alive} of {} votes would live, which is no majority: {} dead",
            node.name,
            remain.len(),
            if dead.len() == 1 { format!("{} is", dead[0]) } else { format!("{} are", dead.join(", ")) }
        );
        let remedy = match dead.first() {
            Some(dead) => {
                format!("bring {dead} back, or remove it first: `mainstay node remove {dead}`")
            }
            None => "let another node join first".to_owned(),
        };
        Some(Problem::new(Code::VoteNeeded, message, remedy))
    }

    pub(crate) fn remove_node(&mut self, at_ms: u64, id: NodeId, lost: &BTreeSet<ResourceId>) -> Outcome {
        if self.is_removed(id) {
            return Outcome::Unchanged;
        }
        if let Some(refusal) = self.cannot_remove(id, lost) {
            return Outcome::Refused(refusal);
        }
        let is_voter = self.nodes.get(&id).is_some_and(|node| node.voter);
        if is_voter && let Some(behind) = self.unaware_of_voters() {
            return settling(&behind.name);
        }
        self.forget_node(at_ms, id, "was removed from the cluster");
        Outcome::Done
    }

    /// Takes a node out of everything. The caller has checked that it may go.
    pub(crate) fn forget_node(&mut self, at_ms: u64, id: NodeId, text: &str) {
        let Some(node) = self.nodes.get(&id) else { return };
        let (name, is_voter) = (node.name.clone(), node.voter);
        let has_level = self.level >= ONE_OF_TWO_GOES;
        let agent_addr = if has_level { node.agent_addr.clone() } else { String::new() };
        for resource in self.resources.keys().copied().collect::<Vec<_>>() {
            self.forget_on(at_ms, resource, id);
        }
        for service in self.services.values_mut() {
            service.nodes.remove(&id);
            service.desired_node = service.desired_node.filter(|to| *to != id);
        }
        for resource in self.resources.values_mut() {
            resource.desired_node = resource.desired_node.filter(|to| *to != id);
        }
        self.nodes.remove(&id);
        self.unfit.remove(&id);
        self.fences.remove(&id);
        self.identities.forget(id);
        if is_voter {
            self.voters_version += 1;
        }
        self.removed.insert(id, Removed { name: name.clone(), at_ms, agent_addr });
        while self.removed.len() > REMOVED_MAX {
            self.removed.pop_first();
        }
        self.note(at_ms, Severity::Warning, format!("node {name}"), text);
    }

    /// Takes a node that is removed out of a resource.
    fn forget_on(&mut self, at_ms: u64, resource: ResourceId, node: NodeId) {
        let Some(known) = self.resources.get_mut(&resource) else { return };
        if known.deleting {
            known.gone.insert(node);
            return self.finish_deletion(at_ms, resource);
        }
        if known.spec.replicas == [node] {
            let outcome = self.delete_resource(at_ms, resource);
            debug_assert!(outcome.is_ok(), "{outcome:?}");
            if let Some(known) = self.resources.get_mut(&resource) {
                known.gone.insert(node);
            }
            return self.finish_deletion(at_ms, resource);
        }
        if known.record.attached.is_some_and(|attached| attached.node == node) {
            self.detach_resource(at_ms, resource);
        }
        if self.resources.get(&resource).is_some_and(|known| known.spec.replicas.contains(&node)) {
            self.drop_replica(at_ms, resource, node);
        }
        let Some(known) = self.resources.get_mut(&resource) else { return };
        known.leaving.remove(&node);
        known.broken.remove(&node);
        known.reopened.remove(&node);
        known.before_copy.remove(&node);
        self.drop_broken(at_ms, resource);
    }

    /// For [`State::check`]: a removed node is nowhere.
    pub(crate) fn check_removed(&self, resource: &Resource) -> Result<(), &'static str> {
        let record = &resource.record;
        let members = record.replicas.iter().chain(&record.iss).chain(&record.unverified);
        let named = members.map(|member| member.node).chain(record.primary);
        let named = named.chain(record.attached.map(|attached| attached.node));
        let maps = resource.leaving.keys().chain(resource.broken.keys()).chain(resource.reopened.keys());
        let known = maps.chain(resource.before_copy.keys()).chain(&resource.spec.replicas).copied();
        if resource.deleting || !named.chain(known).any(|node| self.is_removed(node)) {
            return Ok(());
        }
        Err("a removed node is a part of it")
    }
}

#[cfg(test)]
pub(crate) mod tests;
