//! Rotation: a new authority takes the place of the cluster's authority, in recorded phases.
//!
//! | phase of the new authority | who issues | the phase ends when |
//! |---|---|---|
//! | [`Phase::Announced`] | the earlier one | every node has said that it believes the new one and can issue by it |
//! | [`Phase::Issues`] | the new one | every node has said that it shows a certificate of the new one |
//! | alone | the new one | |
//!
//! A rotation begins with [`Command::AnnounceAuthority`]. Each node says how far it is with
//! [`Command::ConfirmAuthority`], and the leader goes to the next phase with
//! [`Command::AdvanceRotation`].
//!
//! Guarantees, after every command:
//! - two members believe each other, however far the log of one of them is behind. No certificate
//!   comes from an authority before every member believes it, and no authority goes while a member
//!   may still show a certificate of it. A node that could not be believed would not get the log
//!   that says whom to believe;
//! - only what a node says of itself counts. The record may have a certificate that never reached
//!   its node;
//! - there is one rotation at a time, and no two authorities ever have the same number;
//! - a rotation waits for each node that is off. An operator can leave a dead node out. The record
//!   then forgets its key, so no member believes it again, and it does not return as the node that
//!   it was;
//! - a rotation can be cancelled until the new authority issues;
//! - when the new authority issues, no token of an earlier one lets a machine in.
//!
//! [`Command::AnnounceAuthority`]: crate::state::Command::AnnounceAuthority
//! [`Command::ConfirmAuthority`]: crate::state::Command::ConfirmAuthority
//! [`Command::AdvanceRotation`]: crate::state::Command::AdvanceRotation

use super::{Authority, Identities, Phase, TokenState};
use crate::state::{Command, Outcome, State, refused};
use mainstay_types::{Code, NodeId, NodeStatus, Problem, Severity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Where an operator sees how far a rotation is.
const SHOW: &str = "see `mainstay cluster authority show`";

/// A rotation that is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rotation {
    /// Number of the new authority.
    pub to: u32,
    /// Wall clock at which the present phase began, in milliseconds since 1970.
    pub since_ms: u64,
    /// Nodes that believe the new authority and can issue by it, durably.
    pub believed_by: BTreeSet<NodeId>,
    /// Nodes that show a certificate of the new authority.
    pub certified: BTreeSet<NodeId>,
}

impl Identities {
    /// The highest number that an authority of this cluster ever had; 0 if it had none.
    #[must_use]
    pub fn last_number(&self) -> u32 {
        self.authorities.keys().next_back().copied().unwrap_or(0).max(self.last_authority)
    }

    /// Number of the next authority.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        self.last_number() + 1
    }

    /// The authority that takes the place of the others, and how far that is.
    #[must_use]
    pub fn rotates(&self) -> Option<(&Rotation, &Authority)> {
        let rotation = self.rotation.as_ref()?;
        Some((rotation, self.authorities.get(&rotation.to)?))
    }

    /// Tokens of authorities that issue no more let nobody in: a machine would have to believe such
    /// an authority.
    fn end_earlier_tokens(&mut self) {
        let issuing = self.issuing().map(|authority| authority.number);
        for token in self.tokens.values_mut() {
            if token.state == TokenState::Open && Some(token.authority) != issuing {
                token.state = TokenState::Superseded;
            }
        }
    }
}

fn names_of(state: &State, nodes: impl IntoIterator<Item = NodeId>) -> String {
    nodes.into_iter().map(|node| state.node_name(node)).collect::<Vec<_>>().join(", ")
}

impl State {
    /// Nodes for which the rotation waits in its present phase.
    #[must_use]
    pub fn rotation_waits_for(&self) -> BTreeSet<NodeId> {
        let Some((rotation, authority)) = self.identities.rotates() else { return BTreeSet::new() };
        let done = |node: &NodeId| match authority.phase {
            Phase::Announced => rotation.believed_by.contains(node),
            Phase::Issues | Phase::Believed => {
                let known = self.identities.members.get(node).and_then(|known| known.certificate);
                rotation.certified.contains(node) && known.is_some_and(|known| known.authority == rotation.to)
            }
        };
        let waits = |node: &NodeId| !self.identities.left_out.contains(node) && !done(node);
        self.nodes.keys().copied().filter(waits).collect()
    }

    /// The rotation that is under way, in words: what happens now, and for which nodes it waits.
    #[must_use]
    pub fn rotation_words(&self) -> Option<String> {
        let (rotation, authority) = self.identities.rotates()?;
        let waits = names_of(self, self.rotation_waits_for());
        let to = rotation.to;
        Some(match (authority.phase, waits.is_empty()) {
            (_, true) => format!("authority {to} goes to its next phase in a moment"),
            (Phase::Announced, false) => format!("authority {to} is announced, and {waits} must learn of it"),
            (_, false) => format!("authority {to} issues, and {waits} must get a certificate of it"),
        })
    }

    /// Why no rotation can begin, if so.
    #[must_use]
    pub fn cannot_rotate(&self) -> Option<Problem> {
        if let Some(words) = self.rotation_words() {
            return Some(Problem::new(
                Code::RotationRuns,
                format!("the cluster is replacing its authority already: {words}"),
                SHOW,
            ));
        }
        self.identities.issuing().is_none().then(|| {
            Problem::new(
                Code::RotationState,
                "the cluster has no authority that could be replaced",
                "see `mainstay cluster certificates`",
            )
        })
    }

    fn no_rotation() -> Outcome {
        refused(
            Code::RotationState,
            "the cluster is not replacing its authority",
            "begin with `mainstay cluster authority rotate`",
        )
    }

    /// A rotation begins.
    pub(crate) fn announce_authority(&mut self, at_ms: u64, authority: Authority) -> Outcome {
        if let Some(refusal) = authority.impossible() {
            return Outcome::Refused(refusal);
        }
        let (number, known) = (authority.number, self.identities.authorities.get(&authority.number));
        if known.is_some_and(|known| known.fingerprint == authority.fingerprint) {
            return Outcome::Unchanged;
        }
        if let Some(refusal) = self.cannot_rotate() {
            return Outcome::Refused(refusal);
        }
        if number != self.identities.next_number() || authority.phase != Phase::Announced {
            return Outcome::Conflict { record: None };
        }
        self.identities.authorities.insert(number, authority);
        self.identities.last_authority = number;
        self.identities.rotation = Some(Rotation {
            to: number,
            since_ms: at_ms,
            believed_by: BTreeSet::new(),
            certified: BTreeSet::new(),
        });
        let text = format!("authority {number} is announced, and is to replace the present one");
        self.note_identities(at_ms, Severity::Info, text);
        Outcome::Done
    }

    /// A node says how far it is. `certified`: it shows a certificate of the new authority.
    pub(crate) fn confirm_authority(&mut self, node: NodeId, number: u32, certified: bool) -> Outcome {
        let is_member = self.nodes.contains_key(&node) && !self.identities.left_out.contains(&node);
        let phase = self.identities.rotates().filter(|(rotation, _)| rotation.to == number);
        let phase = phase.map(|(_, authority)| authority.phase);
        let may = is_member && phase.is_some() && (!certified || phase == Some(Phase::Issues));
        let Some(rotation) = self.identities.rotation.as_mut().filter(|_| may) else {
            return Outcome::Conflict { record: None };
        };
        let list = if certified { &mut rotation.certified } else { &mut rotation.believed_by };
        if list.insert(node) { Outcome::Done } else { Outcome::Unchanged }
    }

    /// The entry by which the leader goes to the next phase of a rotation, if every node is so far.
    #[must_use]
    pub fn next_rotation_step(&self) -> Option<Command> {
        let (rotation, authority) = self.identities.rotates()?;
        let ready = self.rotation_waits_for().is_empty();
        ready.then_some(Command::AdvanceRotation { authority: rotation.to, from: authority.phase })
    }

    /// The rotation to authority `number` leaves the phase `from`.
    pub(crate) fn advance_rotation(&mut self, at_ms: u64, number: u32, from: Phase) -> Outcome {
        let is_there =
            |(rotation, authority): (&Rotation, &Authority)| rotation.to == number && authority.phase == from;
        if !self.identities.rotates().is_some_and(is_there) {
            return Outcome::Unchanged;
        }
        if !self.rotation_waits_for().is_empty() {
            return Outcome::Conflict { record: None };
        }
        if from == Phase::Announced {
            for authority in self.identities.authorities.values_mut() {
                authority.phase = if authority.number == number { Phase::Issues } else { Phase::Believed };
            }
            if let Some(rotation) = &mut self.identities.rotation {
                rotation.since_ms = at_ms;
            }
            self.identities.end_earlier_tokens();
            let text = format!("authority {number} issues: each node gets a certificate of it");
            self.note_identities(at_ms, Severity::Info, text);
            return Outcome::Done;
        }
        self.identities.authorities.retain(|known, _| *known == number);
        self.identities.rotation = None;
        let text =
            format!("authority {number} has replaced the earlier one, which no node believes any more");
        self.note_identities(at_ms, Severity::Info, text);
        Outcome::Done
    }

    /// An operator ends a rotation whose authority has not issued.
    pub(crate) fn cancel_rotation(&mut self, at_ms: u64, number: u32) -> Outcome {
        let Some((rotation, authority)) = self.identities.rotates() else { return Self::no_rotation() };
        if rotation.to != number {
            return Outcome::Conflict { record: None };
        }
        if authority.phase != Phase::Announced {
            return refused(
                Code::RotationState,
                format!("authority {number} issues already, so there is no way back"),
                SHOW,
            );
        }
        self.identities.authorities.remove(&number);
        self.identities.rotation = None;
        let text = format!("authority {number} is withdrawn: the rotation was cancelled");
        self.note_identities(at_ms, Severity::Warning, text);
        Outcome::Done
    }

    /// The refusal of a node that a rotation has left out.
    pub(crate) fn is_left_out(&self, node: NodeId) -> Option<Problem> {
        self.identities.left_out.contains(&node).then(|| {
            let name = self.node_name(node);
            Problem::new(
                Code::CertificateRefused,
                format!("{name} was left out when the authority was replaced, and has to join anew"),
                format!("make a token with `mainstay cluster token create {name}`, and join with --replace"),
            )
        })
    }

    /// Why the rotation cannot go on without this node, if so.
    fn cannot_leave_out(&self, id: NodeId) -> Option<Problem> {
        let name = self.node_name(id);
        let Some(node) = self.nodes.get(&id) else {
            return Some(Problem::new(
                Code::UnknownNode,
                format!("there is no node {name}"),
                "see `mainstay node list`",
            ));
        };
        if node.status == NodeStatus::Alive {
            return Some(Problem::new(
                Code::NodeAlive,
                format!("{name} is alive, so the rotation goes on as soon as its agent does its part"),
                format!("look at the log of the agent on {name}"),
            ));
        }
        (!self.rotation_waits_for().contains(&id)).then(|| {
            Problem::new(Code::RotationState, format!("the rotation does not wait for {name}"), SHOW)
        })
    }

    /// The rotation to authority `number` goes on without these dead nodes.
    pub(crate) fn leave_out(&mut self, at_ms: u64, number: u32, nodes: &BTreeSet<NodeId>) -> Outcome {
        let Some((rotation, _)) = self.identities.rotates() else { return Self::no_rotation() };
        if rotation.to != number {
            return Outcome::Conflict { record: None };
        }
        let new: Vec<NodeId> =
            nodes.iter().copied().filter(|node| !self.identities.left_out.contains(node)).collect();
        if let Some(refusal) = new.iter().find_map(|node| self.cannot_leave_out(*node)) {
            return Outcome::Refused(refusal);
        }
        if new.is_empty() {
            return Outcome::Unchanged;
        }
        for node in new {
            self.identities.forget(node);
            self.identities.left_out.insert(node);
            let subject = format!("node {}", self.node_name(node));
            let text = format!("is left out of the rotation to authority {number}, and has to join anew");
            self.note(at_ms, Severity::Warning, subject, text);
        }
        Outcome::Done
    }

    fn note_identities(&mut self, at_ms: u64, severity: Severity, text: String) {
        let subject =
            self.cluster.as_ref().map_or_else(String::new, |known| format!("cluster {}", known.name));
        self.note(at_ms, severity, subject, text);
    }

    /// For [`State::check`].
    pub(crate) fn check_identities(&self) -> Result<(), &'static str> {
        let known = &self.identities;
        let issuing = known.authorities.values().filter(|authority| authority.phase == Phase::Issues).count();
        if !known.authorities.is_empty() && issuing != 1 {
            return Err("not exactly one authority issues");
        }
        let announced = known.authorities.values().filter(|authority| authority.phase == Phase::Announced);
        if announced
            .map(|authority| authority.number)
            .any(|number| known.rotates().is_none_or(|(rotation, _)| rotation.to != number))
        {
            return Err("an authority is announced without a rotation");
        }
        if known.rotation.is_some() && known.rotates().is_none_or(|(_, new)| new.phase == Phase::Believed) {
            return Err("a rotation leads to no authority");
        }
        if known.left_out.iter().any(|node| known.members.contains_key(node)) {
            return Err("a node that was left out has a key");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
