//! Which node would take over if the node of a primary died now: the words of `mainstay explain
//! failover`.
//!
//! Nothing is judged here. The death is applied to a copy of the state, by the rules that apply to
//! a real one, and the copy says what has become of the resource. The reasons of the other nodes
//! are those of [`crate::explain`].

use crate::command::Command;
use crate::explain::Fit;
use crate::state::{Entry, Resource, State};
use mainstay_types::NodeId;
use std::collections::BTreeMap;

/// Fate of a resource.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AfterDeath {
    /// Node of the primary, whose death it is about; `None` if there is no primary now.
    pub primary: Option<NodeId>,
    /// Node that would take over.
    pub to: Option<NodeId>,
    /// In words, one line.
    pub outcome: String,
    /// Every other node of the cluster.
    pub nodes: Vec<Fit>,
}

impl State {
    /// Tells what would follow if the node of the primary of `resource` died now. `lacks`: what
    /// nodes lack for the service of the resource, as they say.
    #[must_use]
    pub fn after_death(&self, resource: &Resource, lacks: &BTreeMap<NodeId, Vec<String>>) -> AfterDeath {
        let Some(primary) = resource.record.primary else {
            let why = resource.failure.clone().unwrap_or_else(|| "it is being made or moved".to_owned());
            let outcome = format!("no node is primary now: {why}");
            return self.told(resource, (None, None), outcome, lacks);
        };
        let name = self.node_name(primary);
        if let Some(outcome) = self.lost_majority(primary) {
            return self.told(resource, (Some(primary), None), outcome, lacks);
        }
        let (trial, is_fenced) = self.without(primary, resource);
        let Some(then) = trial.resources.get(&resource.id) else {
            return self.told(
                resource,
                (Some(primary), None),
                "the resource is being deleted".to_owned(),
                lacks,
            );
        };
        let to = then.record.primary;
        let outcome = match to {
            Some(to) if is_fenced => {
                let to = self.node_name(to);
                format!("{to} takes over as soon as the fence command has switched {name} off")
            }
            Some(to) => format!("{} takes over as soon as the lease of {name} has ended", self.node_name(to)),
            None => then.failure.clone().unwrap_or_else(|| "no node takes over".to_owned()),
        };
        trial.told(then, (Some(primary), to), outcome, lacks)
    }

    /// The state after the death of `node`, and after its fence if `resource` waits for that; and
    /// whether it does.
    fn without(&self, node: NodeId, resource: &Resource) -> (Self, bool) {
        let mut trial = self.clone();
        let generation = self.nodes.get(&node).map_or(0, |known| known.generation);
        trial.apply(Entry { at_ms: 0, command: Command::NodeDead { node, generation } });
        let is_fenced = trial.fence_awaited(resource.id) == Some(node);
        if is_fenced {
            let result = Ok("this node".to_owned());
            trial.apply(Entry { at_ms: 0, command: Command::Fenced { node, generation, result } });
        }
        (trial, is_fenced)
    }

    /// Words for the case that the voters left are no majority: then no death is recorded.
    fn lost_majority(&self, dead: NodeId) -> Option<String> {
        let voters = self.voters();
        let left = voters.iter().filter(|node| **node != dead && self.alive(**node)).count();
        (left <= voters.len() / 2).then(|| {
            format!(
                "no node takes over: without {} only {left} of {} voters live, and no majority can decide it",
                self.node_name(dead),
                voters.len()
            )
        })
    }

    fn told(
        &self,
        resource: &Resource,
        (primary, to): (Option<NodeId>, Option<NodeId>),
        outcome: String,
        lacks: &BTreeMap<NodeId, Vec<String>>,
    ) -> AfterDeath {
        let next: Vec<NodeId> = self
            .candidates(resource)
            .into_iter()
            .filter(|node| Some(*node) != to && Some(*node) != primary)
            .collect();
        let others = self.nodes.keys().copied().filter(|node| Some(*node) != primary);
        let fits = others.map(|node| {
            let chosen = to == Some(node);
            let barred = self.bars_takeover(resource, node).filter(|_| !chosen);
            let lacking = lacks.get(&node).filter(|lacks| !lacks.is_empty());
            let lacking =
                lacking.map(|lacks| format!(", and the service could not run there: {}", lacks.join("; ")));
            let can = chosen || barred.is_none();
            let why = match (barred, next.iter().position(|known| *known == node)) {
                (Some(why), _) => why,
                (None, _) if chosen => "takes over".to_owned(),
                (None, Some(0)) if to.is_none() => "could take over".to_owned(),
                (None, Some(0)) => "could take over, and is next".to_owned(),
                (None, Some(at)) => format!("could take over, and comes after {at} more"),
                (None, None) => "could take over".to_owned(),
            };
            Fit { node, chosen, can, why: why + &lacking.unwrap_or_default() }
        });
        let nodes = fits.collect();
        AfterDeath { primary, to, outcome, nodes }
    }

    /// Why `node` does not take over; `None` if it could.
    fn bars_takeover(&self, resource: &Resource, node: NodeId) -> Option<String> {
        let record = &resource.record;
        let lags = self.follows(resource, node) && !self.eligible(resource, node);
        if !lags || self.closed(node).is_some() {
            return self.unable(resource, node).or_else(|| self.closed(node));
        }
        let name = &resource.name;
        let near = record.failover_ready.iter().any(|member| member.node == node);
        Some(match (record.policy.takeover(), near) {
            (true, true) => return None,
            (true, false) => format!(
                "lacks more than the limits of mode A allow (`mainstay resource status {name}` says how much)"
            ),
            (false, _) => format!(
                "follows in mode A: it takes over only by `mainstay resource force-promote {name} {}`",
                self.node_name(node)
            ),
        })
    }
}
