//! Rotation of the cluster's authority: how an agent begins one, and does the part of its node
//! (R23). `mainstay_control::identities::rotation` has the phases.
//!
//! Guarantees
//! - What a node says of itself in a rotation is durable on it before: the announced authority with
//!   the seal that opens its key, and later the certificate.
//! - The key of the new authority is sealed with a new seal. That goes from a member to a member,
//!   over a connection on which both have proven themselves by the record. So a node that was
//!   removed before does not get it.
//! - The agent that announces an authority keeps it before it asks for that, and asks for the same
//!   one if it is told to begin again soon. So an answer that was lost makes no second authority.

use super::certificates::{given, problem_of, recorded_authority, refuse_other_key};
use super::{ASK_TIMEOUT, Agent, PROPOSE_TIMEOUT};
use crate::clock::wall_ms;
use crate::error::settle;
use crate::member::Member;
use crate::messages::{Call, CallReply};
use crate::raft::ConsensusLog;
use crate::threads::lock;
use crate::trust::{Membership, Next, open_authority};
use mainstay_control::State;
use mainstay_control::identities::{self, Phase};
use mainstay_control::state::Command;
use mainstay_trust::{
    Authority, Expect, Issued, PublicKey, SealKey, Subject, TrustError, Zeroizing, fingerprint_of,
};
use mainstay_types::{Code, HexBytes, NodeId, NodeStatus, Problem};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long a node waits for the record of what it says of itself.
const SAY_WITHIN: Duration = Duration::from_secs(3);
/// An order to begin that is repeated within this time announces the same authority.
const SAME_WITHIN: Duration = Duration::from_secs(120);

/// The refusal of an order about a rotation where there is none.
fn no_rotation() -> Problem {
    Problem::new(
        Code::RotationState,
        "the cluster is not replacing its authority",
        "Begin with `mainstay cluster authority rotate`.",
    )
}

impl Agent {
    /// Announces a new authority, which takes the place of the present one by itself. Returns its
    /// number and the dead nodes that this waits for.
    ///
    /// # Errors
    /// When a rotation is under way, this node is no member, its disk fails, or the cluster refuses
    /// it.
    pub fn rotate_authority(&self) -> Result<(u32, Vec<String>), Problem> {
        let mut made = lock(&self.rotating);
        let member = self.member()?;
        let state = member.log.view().state;
        if let Some(refusal) = state.cannot_rotate() {
            return Err(refusal);
        }
        let number = state.identities.next_number();
        let kept = lock(&self.trust).membership.as_ref().and_then(|own| own.next.clone());
        // One that was kept for long may have leaked meanwhile.
        let is_fresh = made.is_some_and(|made| made.elapsed() < SAME_WITHIN);
        let kept = kept.filter(|next| is_fresh && next.authority.number == number);
        let authority = match kept {
            Some(next) => next.authority,
            None => self.make_authority(member.identity.cluster, number)?,
        };
        *made = made.filter(|_| is_fresh).or_else(|| Some(Instant::now()));
        settle(member.log.propose(Command::AnnounceAuthority { authority }, PROPOSE_TIMEOUT))?;
        let dead = state.nodes.values().filter(|node| node.status == NodeStatus::Dead);
        Ok((number, dead.map(|node| node.name.clone()).collect()))
    }

    /// Makes an authority with a seal of its own, and keeps them.
    fn make_authority(&self, cluster: u64, number: u32) -> Result<identities::Authority, Problem> {
        let make = || -> Result<Next, TrustError> {
            let (made, seal) = (Authority::make(cluster, number, wall_ms())?, SealKey::generate()?);
            let authority = recorded_authority(cluster, number, &made, &seal, Phase::Announced)?;
            Ok(Next { authority, seal })
        };
        let next = make().map_err(|error| problem_of(&error))?;
        let authority = next.authority.clone();
        self.keep_next(Some(next))?;
        Ok(authority)
    }

    fn keep_next(&self, next: Option<Next>) -> Result<(), Problem> {
        self.keep(|own| own.next = next)
    }

    fn keep_seal(&self, authority: &identities::Authority, seal: SealKey) -> Result<(), Problem> {
        self.keep(|own| {
            if own.number == authority.number {
                own.seal = seal;
            } else {
                own.next = Some(Next { authority: authority.clone(), seal });
            }
        })
    }

    /// Changes what this node has as a member, durably, and believes accordingly.
    fn keep(&self, change: impl FnOnce(&mut Membership)) -> Result<(), Problem> {
        let mut own = lock(&self.trust);
        own.change(change).and_then(|()| self.show(&own)).map_err(|error| error.problem())
    }

    /// Withdraws the announced authority. Returns its number.
    ///
    /// # Errors
    /// When none is announced, or it issues already.
    pub fn cancel_rotation(&self) -> Result<u32, Problem> {
        let member = self.member()?;
        let view = member.log.view();
        let (rotation, _) = view.state.identities.rotates().ok_or_else(no_rotation)?;
        let authority = rotation.to;
        settle(member.log.propose(Command::CancelRotation { authority }, PROPOSE_TIMEOUT))?;
        Ok(authority)
    }

    /// Lets the rotation go on without these dead nodes.
    ///
    /// # Errors
    /// When there is no rotation, or it does not wait for one of them.
    pub fn leave_out(&self, nodes: BTreeSet<NodeId>) -> Result<(), Problem> {
        let member = self.member()?;
        let view = member.log.view();
        let (rotation, _) = view.state.identities.rotates().ok_or_else(no_rotation)?;
        let command = Command::LeaveOut { authority: rotation.to, nodes };
        settle(member.log.propose(command, PROPOSE_TIMEOUT)).map(drop)
    }

    /// A member asks for the seal of an authority of the record.
    pub(super) fn give_seal(
        &self,
        subject: Subject,
        key: &PublicKey,
        number: u32,
    ) -> Result<HexBytes, Problem> {
        let member = self.member()?;
        let state = member.log.view().state;
        // The asker may have been removed since its connection began.
        refuse_other_key(&state, subject, key)?;
        let authority = state.identities.authorities.get(&number);
        let authority = authority.ok_or_else(|| problem_of(&TrustError::NotSealedHere))?;
        let seal = self.seal_of(authority)?;
        open_authority(member.identity.cluster, authority, &seal).map_err(|error| problem_of(&error))?;
        Ok(HexBytes(seal.bytes().to_vec()))
    }

    /// Does what a rotation waits for on this node, by the record that this node has: one thing
    /// after the other.
    pub(super) fn rotation_part(&self) -> Result<(), Problem> {
        let Ok(member) = self.member() else { return Ok(()) };
        let (view, node) = (member.log.view(), member.identity.node);
        let state = view.state;
        // A node that has no leader can say nothing, and hears of nothing new.
        if view.leader.is_none() || !state.identities.members.contains_key(&node) {
            return Ok(());
        }
        self.note_number(&state)?;
        self.drop_withdrawn(&state)?;
        if self.is_of_earlier(&state) {
            self.renew(&member)?;
        }
        self.tell_certificate(&member, &state);
        let Some((rotation, new)) = state.identities.rotates() else { return Ok(()) };
        let authority = new.number;
        let opens = |seal: SealKey| open_authority(member.identity.cluster, new, &seal).is_ok();
        if !self.seal_of(new).is_ok_and(opens) {
            self.fetch_seal(&member, &state, new)?;
        }
        if !rotation.believed_by.contains(&node) {
            self.say(&member, Command::ConfirmAuthority { node, authority, certified: false });
        }
        let shows = lock(&self.trust).membership.as_ref().is_some_and(|own| own.number == authority);
        if new.phase == Phase::Issues && shows && !rotation.certified.contains(&node) {
            self.say(&member, Command::ConfirmAuthority { node, authority, certified: true });
        }
        Ok(())
    }

    /// Says something of this node in the record. What does not get there is said again.
    fn say(&self, member: &Member, command: Command) {
        if let Err(problem) = settle(member.log.propose(command, SAY_WITHIN)) {
            tracing::debug!(why = problem.message, "the record has not what this node says of itself");
        }
    }

    /// Notes which authority has given the certificate of this node. A node that has just joined
    /// learns that from the record.
    fn note_number(&self, state: &State) -> Result<(), Problem> {
        let number = {
            let own = lock(&self.trust);
            let unknown = own.membership.as_ref().filter(|known| known.number == 0);
            unknown.and_then(|known| known.number_of(known.authorities.first()?, &state.identities))
        };
        number.map_or(Ok(()), |number| self.keep(|own| own.number = number))
    }

    /// Forgets an authority that is not announced any more, or that another one was announced for.
    fn drop_withdrawn(&self, state: &State) -> Result<(), Problem> {
        let known = &state.identities;
        let is_over =
            lock(&self.trust).membership.as_ref().and_then(|own| own.next.as_ref()).is_some_and(|next| {
                let recorded = known.authorities.get(&next.authority.number);
                next.authority.number <= known.last_number()
                    && recorded.is_none_or(|recorded| recorded.fingerprint != next.authority.fingerprint)
            });
        if is_over { self.keep_next(None) } else { Ok(()) }
    }

    /// Whether this node shows a certificate of an earlier authority than the one that issues.
    fn is_of_earlier(&self, state: &State) -> bool {
        let Some(issuing) = state.identities.issuing() else { return false };
        let own = lock(&self.trust);
        own.membership.as_ref().is_some_and(|own| own.number < issuing.number)
    }

    /// Sees that the record has the certificate that this node shows.
    fn tell_certificate(&self, member: &Member, state: &State) {
        let node = member.identity.node;
        let entry = {
            let own = lock(&self.trust);
            let Some(shown) = &own.membership else { return };
            let Some(known) = state.identities.members.get(&node) else { return };
            let fingerprint = fingerprint_of(&shown.certificate);
            let is_told = known.certificate.is_some_and(|known| known.fingerprint == fingerprint);
            let is_known = state.identities.authorities.contains_key(&shown.number);
            if is_told || !is_known || known.key != own.key.public().fingerprint() {
                return;
            }
            let issued = Issued { certificate: shown.certificate.clone(), until_ms: shown.until_ms };
            given(node, &own.key.public(), &issued, shown.number)
        };
        self.say(member, entry);
    }

    /// Gets the seal of the announced authority from another member, and keeps it.
    fn fetch_seal(&self, member: &Member, state: &State, new: &identities::Authority) -> Result<(), Problem> {
        let (own, cluster) = (member.identity.node, member.identity.cluster);
        let mut others: Vec<_> = state.nodes.values().filter(|node| node.id != own).collect();
        others.sort_by_key(|node| node.status == NodeStatus::Dead);
        let question = Call::Seal { authority: new.number };
        for other in others {
            let reply =
                self.transport.call(&other.agent_addr, Expect::Node(other.id), &question, ASK_TIMEOUT);
            let Ok(CallReply::Seal(bytes)) = reply else { continue };
            let Ok(seal) = SealKey::read(&Zeroizing::new(bytes.0)) else { continue };
            if open_authority(cluster, new, &seal).is_ok() {
                return self.keep_seal(new, seal);
            }
        }
        Err(Problem::new(
            Code::AgentTransport,
            format!("no member that this node reaches can open authority {} for it", new.number),
            "Bring the node back on which the rotation was begun, or run `mainstay cluster authority cancel` and begin again.",
        ))
    }
}
