//! What stands still without an error, as it was measured, and since when (R28).
//!
//! A disk that hangs, an engine that is stopped and a link that loses large packets report nothing: every write waits, and
//! heartbeats go on. So the age of the oldest request without an answer is measured, and told from [`STALL_MS`] on.

use crate::advice::Advice;
use crate::state::{Severity, State};
use mainstay_types::{Copies, NodeId, ResourceId};

/// A request without an answer for so long stands still. A slow disk takes less.
pub const STALL_MS: u64 = 3000;

/// Something that gives no answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stalled {
    /// The engine of a node.
    Engine(NodeId),
    /// The disk with the control plane's log of a node.
    LogDisk(NodeId),
    /// A voter gets no entries of the control plane's log, and its heartbeats arrive.
    Voter(NodeId),
    /// The journal of a primary.
    Journal(ResourceId, NodeId),
    /// A replica that writes wait for.
    Replica(ResourceId, NodeId),
    /// Writes that wait for copies, or fail for want of them.
    Copies(ResourceId, Copies),
}

/// The same with its age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    pub what: Stalled,
    /// Of the oldest request without an answer, in milliseconds. 0 if that is not known.
    pub ms: u64,
}

impl Stalled {
    /// The resource whose writes wait, if it is one.
    #[must_use]
    pub fn resource(self) -> Option<ResourceId> {
        match self {
            Self::Journal(resource, _) | Self::Replica(resource, _) | Self::Copies(resource, _) => {
                Some(resource)
            }
            Self::Engine(_) | Self::LogDisk(_) | Self::Voter(_) => None,
        }
    }
}

impl Stall {
    /// Whether it has lasted long enough to be told.
    #[must_use]
    pub fn counts(&self) -> bool {
        matches!(self.what, Stalled::Copies(..)) || self.ms >= STALL_MS
    }

    /// The object as events and advice name it.
    #[must_use]
    pub fn subject(&self, state: &State) -> String {
        match self.what {
            Stalled::Engine(node) | Stalled::LogDisk(node) | Stalled::Voter(node) => {
                format!("node {}", state.node_name(node))
            }
            Stalled::Journal(resource, _) | Stalled::Replica(resource, _) | Stalled::Copies(resource, _) => {
                let name = state.resources.get(&resource).map(|resource| resource.name.clone());
                format!("resource {}", name.unwrap_or_else(|| resource.to_string()))
            }
        }
    }

    /// What is the case, with its age.
    #[must_use]
    pub fn words(&self, state: &State) -> String {
        let seconds = self.ms / 1000;
        match self.what {
            Stalled::Engine(_) => {
                format!("its engine has not answered for {seconds} s: reads and writes there stand still")
            }
            Stalled::LogDisk(_) => format!(
                "its disk has not completed a write of the control plane's log for {seconds} s and reports no error"
            ),
            Stalled::Voter(_) => format!(
                "it has received no entries of the control plane's log for {seconds} s, although its heartbeats arrive: it does not count towards a majority"
            ),
            Stalled::Journal(_, node) => format!(
                "the journal of the primary on {} has not completed a write for {seconds} s: all writes wait",
                state.node_name(node)
            ),
            Stalled::Replica(_, node) => format!(
                "the replica on {} has not acknowledged a write for {seconds} s: all writes wait for it",
                state.node_name(node)
            ),
            Stalled::Copies(_, Copies::Refusing) => {
                "writes fail: fewer copies exist than --min-copies wants".into()
            }
            Stalled::Copies(..) => "writes wait: fewer copies exist than --min-copies wants".into(),
        }
    }

    fn remedy(&self, state: &State) -> String {
        match self.what {
            Stalled::Engine(node) => format!(
                "look at the process of the engine of {0} and at its log; if it hangs, restart it",
                state.node_name(node)
            ),
            Stalled::LogDisk(node) | Stalled::Journal(_, node) => format!(
                "look at the disk of {} and at its kernel's log; if it does not come back, cut the power of the node: another one takes over",
                state.node_name(node)
            ),
            Stalled::Voter(node) => format!(
                "check that large packets reach {0}: `ping -M do -s 1472 ADDRESS` with the address of {0} shows whether they do",
                state.node_name(node)
            ),
            Stalled::Replica(_, node) => {
                format!("look at the disk of {} and at the network to it", state.node_name(node))
            }
            Stalled::Copies(resource, _) => {
                let name = state.resources.get(&resource).map(|resource| resource.name.clone());
                let name = name.unwrap_or_else(|| resource.to_string());
                format!(
                    "bring the other replicas back; or go on with fewer: `mainstay resource set-min-copies {name} 1`"
                )
            }
        }
    }

    pub(crate) fn advice(&self, state: &State) -> Advice {
        let severity =
            if matches!(self.what, Stalled::Voter(_)) { Severity::Warning } else { Severity::Critical };
        Advice { severity, subject: self.subject(state), what: self.words(state), remedy: self.remedy(state) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_still_is_told_with_its_age_from_some_seconds_on() {
        let state = State::default();
        let stall = |ms| Stall { what: Stalled::Engine(NodeId(2)), ms };
        assert_eq!((stall(2999).counts(), stall(3000).counts()), (false, true));
        let advice = stall(12_700).advice(&state);
        assert!(advice.what.contains("has not answered for 12 s"), "{advice:?}");
        assert!(Stall { what: Stalled::Copies(ResourceId(1), Copies::Suspended), ms: 0 }.counts());
    }
}
