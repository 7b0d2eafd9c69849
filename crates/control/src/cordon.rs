//! Nodes that are to be left alone: cordoned, drained, in maintenance.
//!
//! Guarantees
//! - No service and no primary comes to a cordoned node, or to one in maintenance. Those that are
//!   there stay.
//! - A node that is drained is cordoned, and its primaries leave it, one after another. The next
//!   one leaves when the service of the one before runs elsewhere or has failed there. A primary
//!   without another node stays, and status says why.
//! - A drain is a state and no command under way: it goes on whatever ends meanwhile.

use crate::state::{Outcome, Resource, State, refused};
use mainstay_types::{Code, NodeId, ResourceId, ServicePhase, Severity, reach};
use serde::{Deserialize, Serialize};

/// A node to which nothing comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cordon {
    /// Wall clock of the order, for display.
    pub at_ms: u64,
    /// Primaries that are there leave.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,
}

impl State {
    pub(crate) fn set_cordon(&mut self, at_ms: u64, node: NodeId, on: bool, drain: bool) -> Outcome {
        let Some(known) = self.nodes.get_mut(&node) else {
            return refused(
                Code::UnknownNode,
                format!("there is no node {node}"),
                "see `mainstay node list`",
            );
        };
        let wanted = on.then_some(drain);
        if known.cordon.map(|cordon| cordon.drain) == wanted {
            return Outcome::Unchanged;
        }
        let since_ms = known.cordon.map_or(at_ms, |cordon| cordon.at_ms);
        known.cordon = wanted.map(|drain| Cordon { at_ms: since_ms, drain });
        let subject = format!("node {}", known.name);
        let text = match wanted {
            None => "an operator ends its cordon",
            Some(false) => "an operator cordons it: nothing new comes there",
            Some(true) => "an operator drains it: its services and primaries leave",
        };
        reach!("control: a node is cordoned, drained or neither any more");
        self.note(at_ms, Severity::Info, subject, text);
        self.cancel_impossible_moves(at_ms);
        Outcome::Done
    }

    #[must_use]
    pub fn is_drained(&self, node: NodeId) -> bool {
        self.nodes.get(&node).and_then(|node| node.cordon).is_some_and(|cordon| cordon.drain)
    }

    /// Why nothing comes to a node, if that is so.
    #[must_use]
    pub fn closed(&self, node: NodeId) -> Option<String> {
        let known = self.nodes.get(&node)?;
        let name = &known.name;
        match (&known.cordon, &known.maintenance) {
            (Some(Cordon { drain: true, .. }), _) => {
                Some(format!("it is drained (`mainstay node uncordon {name}` ends that)"))
            }
            (Some(_), _) => Some(format!("it is cordoned (`mainstay node uncordon {name}` ends that)")),
            (None, Some(_)) => {
                Some(format!("it is in maintenance (`mainstay node maintenance {name} --off` ends that)"))
            }
            (None, None) => None,
        }
    }

    /// Whether it is the turn of a resource to leave the node that is drained.
    pub(crate) fn drains_now(&self, resource: &Resource, from: NodeId) -> bool {
        !self.resources.values().any(|other| {
            other.id != resource.id
                && (self.is_on_its_way(other, from) || self.leaves_earlier(other, resource.id, from))
        })
    }

    /// Whether the service of a resource has just left the node and does not run elsewhere yet.
    fn is_on_its_way(&self, resource: &Resource, from: NodeId) -> bool {
        let record = &resource.record;
        let Some((name, service)) = self.service_of(resource.id) else { return false };
        let came_from = service.nodes.get(&from).is_some_and(|on| on.epoch.0 + 1 == record.epoch.0);
        let Some(to) = record.primary.filter(|to| *to != from && came_from) else { return false };
        let arrived = service.nodes.get(&to).is_some_and(|on| {
            let over = [ServicePhase::Running, ServicePhase::Failed, ServicePhase::BackingOff];
            on.epoch == record.epoch && over.contains(&on.phase)
        });
        service.is_wanted() && self.may_begin(name, service) && service.halted.is_none() && !arrived
    }

    fn leaves_earlier(&self, other: &Resource, id: ResourceId, from: NodeId) -> bool {
        other.id < id
            && other.record.primary == Some(from)
            && self.held(other).is_none()
            && self.candidates(other).iter().any(|to| *to != from)
    }
}
