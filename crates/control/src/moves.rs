//! An operator's move of the primary of a resource that no service uses.
//!
//! Guarantees
//! - The move is a planned handover: the target has everything before the role leaves the primary,
//!   and the primary hands over by itself (R19). No lease is waited for.
//! - A resource with a service is moved with its service alone.
//! - A move that became impossible is given up, and an event says why. Nothing is moved later by
//!   surprise.

use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::{Code, NodeId, Problem, ResourceId, Severity, reach};

impl State {
    /// Where an operator wants the primary of a resource, with its service or without one.
    pub(crate) fn desired(&self, resource: &Resource) -> Option<NodeId> {
        match self.service_of(resource.id) {
            Some((_, service)) => service.desired_node,
            None => resource.desired_node,
        }
    }

    /// The node to which the primary of a resource would best move: it could lead, nothing keeps
    /// primaries from it, and its replica stays. In order of weight: one that the resource prefers,
    /// with the fewest primaries, with the lowest id.
    ///
    /// # Errors
    /// When no node is such a one, with the reason for each.
    pub fn best_move(&self, resource: &Resource) -> Result<NodeId, Problem> {
        let primary = self.movable_primary(resource, None)?;
        if let Some(best) = self.move_targets(resource).first() {
            return Ok(*best);
        }
        reach!("control: a primary can move nowhere");
        let name = &resource.name;
        let others = resource.spec.replicas.iter().copied().filter(|node| *node != primary);
        let reason = |node: NodeId| {
            let why = self.refuses_primary(resource, node).unwrap_or_else(|| "its replica moves away".into());
            format!("{}: {why}", self.node_name(node))
        };
        let reasons: Vec<String> = others.map(reason).collect();
        Err(if reasons.is_empty() {
            Problem::new(
                Code::NotEligible,
                format!("resource {name} is not moved: no other node holds a replica"),
                format!("Add one: `mainstay resource add-replica {name} NODE`."),
            )
        } else {
            Problem::new(
                Code::NotEligible,
                format!(
                    "resource {name} is not moved, because no other node can lead: {}",
                    reasons.join("; ")
                ),
                "Mend that, or wait until a replica is in sync.",
            )
        })
    }

    /// The present primary.
    ///
    /// # Errors
    /// When an operator may not move it, whatever the target is.
    fn movable_primary(&self, resource: &Resource, to: Option<NodeId>) -> Result<NodeId, Problem> {
        let name = &resource.name;
        if let Some((service, _)) = self.service_of(resource.id) {
            reach!("control: a resource with a service is not moved without it");
            let to = to.map_or_else(|| "NODE".into(), |to| self.node_name(to));
            return Err(Problem::new(
                Code::ResourceInUse,
                format!("resource {name} is not moved: service {service} uses it"),
                format!(
                    "Move the service, and the resource goes with it: `mainstay service move {service} --to {to}`."
                ),
            ));
        }
        resource.record.primary.ok_or_else(|| {
            reach!("control: a resource without a primary is not moved");
            Problem::new(
                Code::NotReady,
                format!("resource {name} is not moved: it has no primary now"),
                format!("See what it waits for: `mainstay resource status {name}`."),
            )
        })
    }

    fn move_targets(&self, resource: &Resource) -> Vec<NodeId> {
        let could = |node: &NodeId| {
            resource.record.primary != Some(*node)
                && self.may_come(resource, *node)
                && self.closed(*node).is_none()
                && !resource.moving.contains_key(node)
        };
        let mut nodes: Vec<NodeId> = resource.spec.replicas.iter().copied().filter(could).collect();
        let place = |node: &NodeId| resource.spec.preferred.iter().position(|known| known == node);
        nodes.sort_by_key(|node| (place(node).unwrap_or(usize::MAX), self.primaries_on(*node), *node));
        nodes
    }

    /// Why the primary of a resource is not moved to `node` by an operator; `None` if it may be.
    fn refuses_primary(&self, resource: &Resource, node: NodeId) -> Option<String> {
        match self.nodes.get(&node) {
            None => Some("it is no node of the cluster".into()),
            Some(known) if known.witness => Some("it is a witness, and holds no data".into()),
            Some(_) => self.unable(resource, node).or_else(|| self.closed(node)),
        }
    }

    pub(crate) fn move_primary(&mut self, at_ms: u64, id: ResourceId, to: NodeId) -> Outcome {
        let found = self.resources.get(&id).filter(|resource| !resource.deleting);
        let Some(resource) = found else { return Outcome::Conflict { record: None } };
        let name = resource.name.clone();
        let primary = match self.movable_primary(resource, Some(to)) {
            Ok(primary) => primary,
            Err(refusal) => return Outcome::Refused(refusal),
        };
        if primary != to
            && let Some(why) = self.refuses_primary(resource, to)
        {
            reach!("control: a primary is not moved to a node that could not lead");
            let possible: Vec<String> =
                self.move_targets(resource).iter().map(|node| self.node_name(*node)).collect();
            return refused(
                Code::NotEligible,
                format!("resource {name} is not moved to {}: {why}", self.node_name(to)),
                format!(
                    "possible now: {}",
                    if possible.is_empty() { "none".into() } else { possible.join(", ") }
                ),
            );
        }
        let wanted = (primary != to).then_some(to);
        if resource.desired_node == wanted {
            return Outcome::Unchanged;
        }
        reach!("control: an operator moves a primary without a service");
        let text = match wanted {
            Some(to) => format!("an operator moves its primary to {}", self.node_name(to)),
            None => format!("an operator leaves its primary on {}", self.node_name(to)),
        };
        if let Some(resource) = self.resources.get_mut(&id) {
            resource.desired_node = wanted;
        }
        self.note(at_ms, Severity::Info, format!("resource {name}"), text);
        Outcome::Done
    }

    /// Gives up the moves of primaries without a service to nodes that can no longer lead.
    pub(crate) fn cancel_impossible_primary_moves(&mut self, at_ms: u64) {
        let impossible = |resource: &Resource| {
            let to = resource.desired_node?;
            let why = match self.closed(to) {
                None if self.may_come(resource, to) => return None,
                None => "it is not alive and in sync any more".to_owned(),
                Some(why) => why,
            };
            Some((resource.id, to, why))
        };
        let cancelled: Vec<_> = self.resources.values().filter_map(impossible).collect();
        for (id, to, why) in cancelled {
            reach!("control: a move of a primary without a service is given up");
            let text = format!("the move of its primary to {} is given up: {why}", self.node_name(to));
            let Some(resource) = self.resources.get_mut(&id) else { continue };
            resource.desired_node = None;
            let subject = format!("resource {}", resource.name);
            self.note(at_ms, Severity::Warning, subject, text);
        }
    }
}
