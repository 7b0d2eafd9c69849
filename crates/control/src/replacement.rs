//! A dead node whose place another machine takes, and addresses that change.
//!
//! A machine that joins *in place of* a dead node is admitted as a candidate of the same name. The
//! dead node stays until the new one is seated: an attempt that fails changes nothing. Being seated
//! is one entry: the dead node is removed as `removal.rs` has it, and its replicas are wanted on
//! the new node. The primary fills them (R16). The new node has another number, so the old identity
//! is refused from then on.
//!
//! The new node gets its vote later, by [`Command::SetVote`]. The old vote goes and the new one
//! comes in two entries, so voters change one at a time (R10).
//!
//! [`Command::SetVote`]: crate::state::Command::SetVote

use crate::members::{Addresses, settling};
use crate::state::{Node, Outcome, State, refused};
use mainstay_types::{Code, NodeId, NodeStatus, Problem, ResourceId, Severity};
use std::collections::BTreeSet;

impl State {
    /// The node that another machine is to take the place of, under the same name.
    ///
    /// # Errors
    /// Why it cannot be replaced.
    pub(crate) fn replaceable(&self, name: &str) -> Result<NodeId, Problem> {
        let Some(old) = self.nodes.values().find(|node| node.name == name && !node.candidate) else {
            return Err(Problem::new(
                Code::UnknownNode,
                format!("there is no node {name} to replace"),
                "leave --replace out, or name a node that `mainstay node list` shows as dead",
            ));
        };
        if old.status == NodeStatus::Alive {
            return Err(Problem::new(
                Code::NodeAlive,
                format!("node {name} is alive"),
                "only a dead node can be replaced. If it died just now, wait until `mainstay node list` shows that",
            ));
        }
        match self.cannot_remove(old.id, &BTreeSet::new()) {
            Some(problem) => Err(problem),
            None => Ok(old.id),
        }
    }

    /// Resources that have a replica on `node`.
    fn held_by(&self, node: NodeId) -> Vec<ResourceId> {
        let holds = self
            .resources
            .values()
            .filter(|resource| !resource.deleting && resource.spec.replicas.contains(&node));
        holds.map(|resource| resource.id).collect()
    }

    /// Removes a dead node, and wants replicas on `by` of what it had. `by` is a member.
    fn hand_down(&mut self, at_ms: u64, old: NodeId, by: NodeId) -> Outcome {
        if let Some(refusal) = self.cannot_remove(old, &BTreeSet::new()) {
            return Outcome::Refused(refusal);
        }
        if self.nodes.get(&old).is_some_and(|node| node.voter)
            && let Some(behind) = self.unaware_of_voters()
        {
            return settling(&behind.name);
        }
        let held = self.held_by(old);
        let name = self.node_name(by);
        self.forget_node(at_ms, old, "was removed from the cluster: another node takes its place");
        for id in held {
            let Some(resource) = self.resources.get(&id) else { continue };
            if self.cannot_hold(resource, by).is_some() {
                continue;
            }
            self.want_replica(id, by);
            self.note_on(at_ms, id, Severity::Info, format!("{name} is to hold a replica"));
        }
        Outcome::Done
    }

    /// A candidate that has proven itself takes the place of a dead node.
    pub(crate) fn take_place(&mut self, at_ms: u64, id: NodeId, old: NodeId) -> Outcome {
        if self.alive(old) {
            return refused(
                Code::NodeAlive,
                format!("node {} is back", self.node_name(old)),
                "only a dead node can be replaced",
            );
        }
        // Until then the new node can hold nothing.
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Unchanged };
        (node.candidate, node.replaces) = (false, None);
        let outcome = self.hand_down(at_ms, old, id);
        if !outcome.is_ok()
            && let Some(node) = self.nodes.get_mut(&id)
        {
            (node.candidate, node.replaces) = (true, Some(old));
        }
        outcome
    }

    pub(crate) fn replace_node(&mut self, at_ms: u64, old: NodeId, by: NodeId) -> Outcome {
        if self.is_removed(old) {
            return Outcome::Unchanged;
        }
        let name = self.node_name(old);
        if let Err(problem) = self.replaceable(&name) {
            return Outcome::Refused(problem);
        }
        let by_name = self.node_name(by);
        let fit = |node: &&Node| !node.candidate && !node.witness && node.id != old && self.alive(node.id);
        if self.nodes.get(&by).filter(fit).is_none() {
            return refused(
                Code::NotEligible,
                format!("{by_name} cannot take the place of {name}"),
                "name a living node that holds data and has joined; `mainstay node list` shows them",
            );
        }
        self.hand_down(at_ms, old, by)
    }

    /// Records other addresses of a member.
    pub(crate) fn set_address(
        &mut self,
        at_ms: u64,
        id: NodeId,
        agent_addr: &str,
        engine_addr: &str,
    ) -> Outcome {
        let Some(node) = self.nodes.get(&id) else {
            return refused(
                Code::UnknownNode,
                format!("there is no node {}", self.node_name(id)),
                "see `mainstay node list`",
            );
        };
        let Addresses { agent, engine } = match Addresses::read(agent_addr, Some(engine_addr)) {
            Ok(read) => read,
            Err(problem) => return Outcome::Refused(problem),
        };
        let (agent_addr, engine_addr) = (agent.to_string(), engine.to_string());
        if node.agent_addr == agent_addr && node.engine_addr == engine_addr {
            return Outcome::Unchanged;
        }
        if let Err(problem) = self.check_addresses(Addresses { agent, engine }, |other| other.id == id) {
            return Outcome::Refused(problem);
        }
        let Some(node) = self.nodes.get_mut(&id) else { return Outcome::Unchanged };
        let text = format!("has the address {agent_addr}, and its engine {engine_addr}");
        (node.agent_addr, node.engine_addr) = (agent_addr, engine_addr);
        let subject = format!("node {}", node.name);
        self.note(at_ms, Severity::Info, subject, text);
        Outcome::Done
    }
}
