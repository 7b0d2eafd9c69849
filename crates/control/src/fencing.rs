//! External fencing: a node that was primary and died is switched off by a program of the operator,
//! and another node takes over only afterwards if the operator wants it so (R19).
//!
//! The end of a lease proves that a node serves nothing, as long as its clock and its guard work.
//! An operator who wants another proof sets `fencing` for a resource: `best-effort` runs the
//! command and waits for nothing, `required` waits until it has succeeded.
//!
//! Guarantees (`State::check` asserts the first one in tests)
//! - While a fence is owed, no resource that waits for it has a primary, and none gets one.
//! - A fence is about one generation of a node. It is over when the command has succeeded, when the
//!   operator has confirmed that the node is off, or when the node is back: it joins again only
//!   after it has silenced itself.
//! - The command is run again after a failure, by the agent of whichever node leads then.
//!
//! Per fence:
//!
//! | from | command | to | with it |
//! |---|---|---|---|
//! | none | [`Command::NodeDead`] of the primary of a resource with `fencing` | owed | resources with `required` get no primary |
//! | owed | [`Command::Fenced`], failed | owed | the reason is kept; the next attempt follows later |
//! | owed | [`Command::Fenced`], succeeded | done | resources that waited are taken over |
//! | owed | [`Command::ConfirmOff`] by an operator | done | the same |
//! | owed, done | [`Command::NodeRejoin`] | none | the same, also by the node itself |
//!
//! [`Command::NodeDead`]: crate::state::Command::NodeDead
//! [`Command::NodeRejoin`]: crate::state::Command::NodeRejoin
//! [`Command::Fenced`]: crate::state::Command::Fenced
//! [`Command::ConfirmOff`]: crate::state::Command::ConfirmOff

use crate::advice::Advice;
use crate::facts::Cause;
use crate::state::{Outcome, Resource, State, cut, refused};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Code, Fencing, NodeId, NodeStatus, Problem, ResourceId, Severity, reach};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Pause between two attempts of the command, in milliseconds.
pub const FENCE_AGAIN_MS: u64 = 10_000;

/// A node that is to be switched off, or was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fence {
    pub generation: u64,
    /// Why, in words.
    pub reason: String,
    /// Resources that wait for it.
    pub waiting: BTreeSet<ResourceId>,
    /// Failed attempts, and the reason of the last one.
    pub failures: u32,
    pub last_failure: String,
    /// How it was done; `None` while it is owed.
    pub done: Option<String>,
}

impl Resource {
    fn fencing(&self) -> Fencing {
        self.record.policy.fencing
    }
}

impl State {
    /// The node whose fence the resource waits for.
    #[must_use]
    pub fn fence_awaited(&self, resource: ResourceId) -> Option<NodeId> {
        let awaits = |fence: &Fence| fence.done.is_none() && fence.waiting.contains(&resource);
        self.fences.iter().find(|(_, fence)| awaits(fence)).map(|(node, _)| *node)
    }

    /// Why no node is promoted while the fence of `node` is owed.
    pub(crate) fn awaits_fence_of(&self, node: NodeId) -> Problem {
        let name = self.node_name(node);
        Problem::new(
            Code::NotEligible,
            format!("node {name} was primary, and is to be switched off first"),
            format!("See that it is off, then run `mainstay node confirm-off {name}`."),
        )
    }

    /// The fences that are owed, for the leader's agent.
    pub fn fences_owed(&self) -> impl Iterator<Item = (NodeId, &Fence)> {
        self.fences.iter().filter(|(_, fence)| fence.done.is_none()).map(|(node, fence)| (*node, fence))
    }

    /// Fences that fail, and nodes that are not to be primary.
    pub(crate) fn fencing_advice(&self) -> Vec<Advice> {
        let failing = self.fences_owed().filter(|(_, fence)| fence.failures > 0).map(|(node, fence)| {
            let name = self.node_name(node);
            let severity = if fence.waiting.is_empty() { Severity::Warning } else { Severity::Critical };
            Advice {
                severity,
                subject: format!("node {name}"),
                what: format!(
                    "cannot be switched off, tried {} times: {}",
                    fence.failures, fence.last_failure
                ),
                remedy: format!(
                    "mend the fence command; if {name} is off, run `mainstay node confirm-off {name}`"
                ),
            }
        });
        let unfit = self.unfit.iter().filter(|(node, _)| self.alive(**node)).map(|(node, why)| Advice {
            severity: Severity::Warning,
            subject: format!("node {}", self.node_name(*node)),
            what: format!("is not to be primary: {why}"),
            remedy: "mend that; or start the engine there with --watchdog automatic".into(),
        });
        failing.chain(unfit).collect()
    }

    /// A node died that was primary of these resources. Returns those that wait for its fence.
    pub(crate) fn owe_fence(&mut self, at_ms: u64, node: NodeId, led: &[ResourceId]) -> BTreeSet<ResourceId> {
        let wants = |id: &ResourceId| self.resources.get(id).map_or(Fencing::Off, Resource::fencing);
        let fenced = led.iter().any(|id| wants(id) != Fencing::Off);
        if !fenced {
            return BTreeSet::new();
        }
        let waiting: BTreeSet<ResourceId> = led
            .iter()
            .copied()
            .filter(|id| wants(id) == Fencing::Required && !planted(Bug::FenceNotAwaited))
            .collect();
        let Some(known) = self.nodes.get(&node) else { return BTreeSet::new() };
        let (generation, name) = (known.generation, known.name.clone());
        reach!("control: a fence is owed");
        let names: Vec<String> = waiting
            .iter()
            .filter_map(|id| self.resources.get(id).map(|resource| resource.name.clone()))
            .collect();
        let text = if names.is_empty() {
            "is to be switched off by the fence command".to_owned()
        } else {
            format!("is to be switched off by the fence command; {} wait for that", names.join(", "))
        };
        let fence = Fence {
            generation,
            reason: format!("{name} was primary and does not answer; its lease has ended"),
            waiting: waiting.clone(),
            failures: 0,
            last_failure: String::new(),
            done: None,
        };
        self.fences.insert(node, fence);
        self.note(at_ms, Severity::Warning, format!("node {name}"), text);
        waiting
    }

    /// The resource has lost its primary and waits for the fence.
    pub(crate) fn wait_for_fence(&mut self, at_ms: u64, id: ResourceId, node: NodeId) {
        reach!("control: a resource waits for a fence");
        let name = self.node_name(node);
        let text = format!(
            "no node takes over before {name} is switched off; if it is off, say so: `mainstay node confirm-off {name}`"
        );
        let Some(resource) = self.resources.get_mut(&id) else { return };
        resource.record.primary = None;
        resource.record.version = resource.record.version.next();
        resource.failure = Some(text.clone());
        self.note_on(at_ms, id, Severity::Critical, text);
    }

    pub(crate) fn fenced(
        &mut self,
        at_ms: u64,
        node: NodeId,
        generation: u64,
        result: Result<String, String>,
    ) -> Outcome {
        let name = self.node_name(node);
        let owed = |fence: &&mut Fence| fence.generation == generation && fence.done.is_none();
        let Some(fence) = self.fences.get_mut(&node).filter(owed) else { return Outcome::Unchanged };
        match result {
            Ok(by) => {
                reach!("control: a node is fenced");
                let text = format!("is switched off, says the fence command on {by}");
                self.fence_is_done(at_ms, node, text);
            }
            Err(why) => {
                reach!("control: a fence command fails");
                fence.failures = fence.failures.saturating_add(1);
                let again = fence.last_failure == why;
                fence.last_failure = cut(why.clone());
                if !again {
                    let text = format!("cannot be switched off: {why}; it is tried again");
                    self.note(at_ms, Severity::Critical, format!("node {name}"), text);
                }
            }
        }
        Outcome::Done
    }

    /// An operator says that a node is off.
    pub(crate) fn confirm_off(&mut self, at_ms: u64, node: NodeId) -> Outcome {
        let Some(known) = self.nodes.get(&node) else {
            return refused(Code::UnknownNode, "there is no such node", "look at `mainstay node list`");
        };
        let name = known.name.clone();
        if known.status != NodeStatus::Dead {
            return refused(
                Code::NotReady,
                format!("node {name} answers: it is not off"),
                "switch it off first, and wait until `mainstay status` says that it is dead",
            );
        }
        if self.fences.get(&node).is_none_or(|fence| fence.done.is_some()) {
            return Outcome::Unchanged;
        }
        reach!("control: an operator confirms that a node is off");
        self.fence_is_done(at_ms, node, "is switched off, says an operator".into());
        Outcome::Done
    }

    /// A node is back; it has silenced itself before.
    pub(crate) fn fence_is_moot(&mut self, at_ms: u64, node: NodeId) {
        let Some(fence) = self.fences.remove(&node) else { return };
        if fence.done.is_none() {
            reach!("control: a node is back before it was fenced");
            self.take_over_after_fence(at_ms, &fence.waiting, "the node is back, and silent");
        }
    }

    fn fence_is_done(&mut self, at_ms: u64, node: NodeId, text: String) {
        let subject = format!("node {}", self.node_name(node));
        let Some(fence) = self.fences.get_mut(&node) else { return };
        fence.done = Some(text.clone());
        let waiting = std::mem::take(&mut fence.waiting);
        let why = format!("{subject} {text}");
        self.note(at_ms, Severity::Info, subject, text);
        self.take_over_after_fence(at_ms, &waiting, &why);
    }

    fn take_over_after_fence(&mut self, at_ms: u64, waiting: &BTreeSet<ResourceId>, why: &str) {
        for id in waiting {
            let without = |resource: &Resource| !resource.deleting && resource.record.primary.is_none();
            if self.resources.get(id).is_some_and(without) {
                self.replace_primary(at_ms, *id, why, Cause::NodeDead);
            }
        }
    }

    /// For [`State::check`].
    pub(crate) fn check_fences(&self) -> Result<(), &'static str> {
        let led = |id: &ResourceId| {
            self.resources.get(id).is_some_and(|resource| resource.record.primary.is_some())
        };
        let owed = self.fences_owed().any(|(_, fence)| fence.waiting.iter().any(led));
        if owed { Err("a resource that waits for a fence has a primary (R19)") } else { Ok(()) }
    }
}
