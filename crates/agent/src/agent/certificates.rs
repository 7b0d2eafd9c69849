//! Certificates of the nodes and tokens to join: how an agent gives, gets and renews them (R23).
//!
//! Guarantees
//! - A node's certificate is renewed after two thirds of its life, by any member that answers. If
//!   no member answers, the node gives itself a new one: it has the authority's key, and the
//!   record, not the certificate, says who is a member. So certificates that ended while all nodes
//!   were off stop nobody.
//! - A member gives a certificate only for a key that the record has of the asking node, and only
//!   after a handshake has proven that key.
//! - What a node believes follows the record: a node that is removed is believed no more.

use super::{ASK_TIMEOUT, Agent, PROPOSE_TIMEOUT};
use crate::clock::wall_ms;
use crate::error::{AgentError, settle};
use crate::member::Member;
use crate::messages::{Call, CallReply, Certified};
use crate::raft::ConsensusLog;
use crate::threads::{lock, spawn};
use crate::transport::{Proofs, Transport};
use crate::trust::{Membership, OwnTrust, believed, open_authority};
use mainstay_control::State;
use mainstay_control::identities::{self, CERTIFICATE_LIFE_MS, Phase, TOKEN_LIFE_MS};
use mainstay_control::state::Command;
use mainstay_trust::{
    Authority, CertificateDer, Expect, Issued, LIFE_MS, PublicKey, SealKey, Subject, Token, TrustError,
    Zeroizing, fingerprint_of, is_due,
};
use mainstay_types::{Code, HexBytes, NodeId, Problem};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often a node looks whether its certificate is due.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often a node looks whether a rotation waits for it.
const PART_EVERY: Duration = Duration::from_secs(1);
/// Pause after an attempt to do that part that failed.
const PART_AGAIN: Duration = Duration::from_secs(5);
/// Certificates live as long as the record expects.
const _: () = assert!(LIFE_MS == CERTIFICATE_LIFE_MS);
/// Number of a cluster's first authority.
const FIRST: u32 = 1;

pub(crate) fn problem_of(error: &TrustError) -> Problem {
    Problem::new(
        Code::AgentInternal,
        error.to_string(),
        "Look at the agent's log and at the clock of this node.",
    )
}

/// The record's form of an authority, with its key sealed.
///
/// # Errors
/// When the kernel gives no randomness.
pub(crate) fn recorded_authority(
    cluster: u64,
    number: u32,
    authority: &Authority,
    seal: &SealKey,
    phase: Phase,
) -> Result<identities::Authority, TrustError> {
    Ok(identities::Authority {
        number,
        phase,
        certificate: HexBytes(authority.certificate().to_vec()),
        fingerprint: authority.fingerprint(),
        sealed_key: HexBytes(seal.seal(cluster, number, authority.key())?),
    })
}

/// An authority that is made with a cluster, and the first node's certificate.
pub(crate) struct Founded {
    pub authority: identities::Authority,
    pub membership: Membership,
    pub given: Command,
}

/// Makes the authority of a new cluster and a certificate for its first node.
///
/// # Errors
/// When the kernel gives no randomness, or the clock is impossible.
pub(crate) fn found(cluster: u64, number: u32, node: NodeId, key: &PublicKey) -> Result<Founded, TrustError> {
    let (authority, seal) = (Authority::make(cluster, number, wall_ms())?, SealKey::generate()?);
    let issued = authority.issue(Subject { cluster, node }, key, wall_ms())?;
    let given = given(node, key, &issued, number);
    let authorities = vec![authority.certificate().clone()];
    let authority = recorded_authority(cluster, number, &authority, &seal, Phase::Issues)?;
    let Issued { certificate, until_ms } = issued;
    let membership = Membership { certificate, until_ms, authorities, seal, number, next: None };
    Ok(Founded { authority, membership, given })
}

/// The first number of an authority.
pub(crate) fn first_number() -> u32 {
    FIRST
}

/// The entry about a certificate.
pub(super) fn given(node: NodeId, key: &PublicKey, issued: &Issued, authority: u32) -> Command {
    Command::GiveCertificate {
        node,
        key: key.fingerprint(),
        fingerprint: fingerprint_of(&issued.certificate),
        authority,
        until_ms: issued.until_ms,
    }
}

/// Shows and believes what a node of no cluster does.
///
/// # Errors
/// When the kernel gives no randomness.
pub(crate) fn proofs_of(own: &OwnTrust, cluster: Option<u64>) -> Result<Proofs, AgentError> {
    let shown = own.credentials().map_err(|error| AgentError::Fatal(error.to_string()))?;
    let ahead = own.membership.as_ref().map(Membership::ahead).unwrap_or_default();
    Ok(Proofs { own: shown, trust: Arc::new(own.first_trust(cluster)), ahead })
}

/// Lets what this agent believes follow the record.
pub(crate) fn follow(transport: &Transport, cluster: u64, state: &State) {
    if state.cluster.is_none() || state.identities.is_empty() {
        return;
    }
    transport.change_proofs(|proofs| {
        let trust = believed(cluster, &state.identities, &proofs.ahead);
        if *proofs.trust != trust {
            proofs.trust = Arc::new(trust);
        }
    });
}

fn certified(issued: &Issued, authorities: &[CertificateDer<'static>]) -> Certified {
    Certified {
        certificate: HexBytes(issued.certificate.to_vec()),
        until_ms: issued.until_ms,
        authorities: authorities.iter().map(|der| HexBytes(der.to_vec())).collect(),
    }
}

/// Certificates of the record's authorities, the one that issues first.
pub(crate) fn authorities_of(state: &State) -> Vec<CertificateDer<'static>> {
    let known = &state.identities.authorities;
    let issuing = known.values().filter(|authority| authority.phase == Phase::Issues);
    let others = known.values().filter(|authority| authority.phase != Phase::Issues);
    issuing.chain(others).map(|authority| CertificateDer::from(authority.certificate.0.clone())).collect()
}

/// Refuses a node whose key is not the one that the record has.
pub(super) fn refuse_other_key(state: &State, subject: Subject, key: &PublicKey) -> Result<(), Problem> {
    let known = state.identities.members.get(&subject.node).map(|known| known.key);
    if known == Some(key.fingerprint()) {
        return Ok(());
    }
    Err(Problem::new(
        Code::CertificateRefused,
        "the record has another key of this node, or none",
        "Remove the node, and let the machine join anew by a token.",
    ))
}

impl Agent {
    /// The seal of an authority of the record.
    pub(crate) fn seal_of(&self, authority: &identities::Authority) -> Result<SealKey, Problem> {
        let own = lock(&self.trust);
        let seal = own.membership.as_ref().and_then(|member| member.seal_of(authority)).cloned();
        seal.ok_or_else(|| problem_of(&TrustError::NotSealedHere))
    }

    /// Gives a node a certificate for its key, by the record that this node has. Returns the seal
    /// of the authority with it.
    pub(super) fn issue(
        &self,
        member: &Member,
        node: NodeId,
        key: &PublicKey,
    ) -> Result<(Certified, Command, SealKey), Problem> {
        let (state, cluster) = (member.log.view().state, member.identity.cluster);
        let issuing = state.identities.issuing().ok_or_else(|| problem_of(&TrustError::NotSealedHere))?;
        let seal = self.seal_of(issuing)?;
        let authority = open_authority(cluster, issuing, &seal).map_err(|error| problem_of(&error))?;
        let issued =
            authority.issue(Subject { cluster, node }, key, wall_ms()).map_err(|error| problem_of(&error))?;
        let certified = certified(&issued, &authorities_of(&state));
        Ok((certified, given(node, key, &issued, issuing.number), seal))
    }

    /// A member asks for a new certificate. The record need not be writable for that: the nodes may
    /// need their certificates to form a majority.
    pub(super) fn renew_for(&self, subject: Subject, key: &PublicKey) -> Result<Certified, Problem> {
        let member = self.member()?;
        refuse_other_key(&member.log.view().state, subject, key)?;
        let (certified, entry, _) = self.issue(&member, subject.node, key)?;
        member.log.submit(entry);
        Ok(certified)
    }

    /// Takes a new certificate of this node into use. Open connections stay. A node that shows a
    /// certificate of an authority does not go back to an earlier one.
    fn take(&self, certified: Certified, state: &State) -> Result<(), Problem> {
        let authorities: Vec<_> =
            certified.authorities.into_iter().map(|der| CertificateDer::from(der.0)).collect();
        let certificate = CertificateDer::from(certified.certificate.0);
        let issued = Issued { certificate, until_ms: certified.until_ms };
        let mut own = lock(&self.trust);
        let issuing = state.identities.issuing().map_or(0, |authority| authority.number);
        let known = own.membership.as_ref().zip(authorities.first());
        let number = known.and_then(|(own, first)| {
            let number = own.number_of(first, &state.identities)?;
            (number >= issuing.max(own.number)).then_some(number)
        });
        let Some(number) = number else {
            return Err(Problem::new(
                Code::CertificateRefused,
                "the new certificate comes from no authority that issues now, as far as this node knows",
                "See `mainstay cluster authority show`.",
            ));
        };
        own.renew(issued, authorities, number).and_then(|()| self.show(&own)).map_err(|error| error.problem())
    }

    /// Shows what this node has as a member now.
    pub(super) fn show(&self, own: &OwnTrust) -> Result<(), AgentError> {
        let shown = own.credentials().map_err(|error| AgentError::Fatal(error.to_string()))?;
        let ahead = own.membership.as_ref().map(Membership::ahead).unwrap_or_default();
        self.transport.change_proofs(|proofs| (proofs.own, proofs.ahead) = (shown, ahead));
        Ok(())
    }

    /// Renews the certificate of this node if it is due.
    fn renew_own(&self) -> Result<(), Problem> {
        let Ok(member) = self.member() else { return Ok(()) };
        let until_ms = lock(&self.trust).membership.as_ref().map(|known| known.until_ms);
        match until_ms {
            Some(until_ms) if is_due(until_ms, wall_ms()) => self.renew(&member),
            _ => Ok(()),
        }
    }

    /// Gets a new certificate for this node, of the authority that issues.
    pub(super) fn renew(&self, member: &Member) -> Result<(), Problem> {
        let state = member.log.view().state;
        let others = state.nodes.values().filter(|node| node.id != member.identity.node && !node.candidate);
        for other in others {
            let reply = self.transport.call(&other.agent_addr, Expect::Renewal, &Call::Renew, ASK_TIMEOUT);
            let Ok(CallReply::Renewed(certified)) = reply else { continue };
            match self.take(certified, &state) {
                Ok(()) => {
                    tracing::info!(by = other.name, "the certificate of this node is renewed");
                    return Ok(());
                }
                Err(problem) => {
                    let why = problem.message;
                    tracing::warn!(by = other.name, why, "a new certificate cannot be used");
                }
            }
        }
        let key = lock(&self.trust).key.public();
        let (certified, entry, _) = self.issue(member, member.identity.node, &key)?;
        self.take(certified, &state)?;
        member.log.submit(entry);
        tracing::info!("no other member gives one, so this node has renewed its certificate by itself");
        Ok(())
    }

    /// Renews this node's certificate when it is due, and does this node's part in a rotation of
    /// the authority, as long as the agent is in use.
    pub(super) fn watch_certificate(self: &Arc<Self>) {
        let this: Weak<Self> = Arc::downgrade(self);
        spawn("agent-certificate", move || {
            let mut looked: Option<Instant> = None;
            let (mut due, mut told) = (None, None);
            while let Some(agent) = this.upgrade() {
                if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                    looked = Some(Instant::now());
                    due = agent.renew_own().err();
                }
                let part = agent.rotation_part().err();
                let pause = if part.is_none() { PART_EVERY } else { PART_AGAIN };
                let why = part.or_else(|| due.clone()).map(|problem| problem.message);
                if let Some(why) = why.as_ref().filter(|why| told.as_ref() != Some(*why)) {
                    tracing::warn!(why, "the certificate of this node cannot be renewed");
                }
                told.clone_from(&why);
                *lock(&agent.renewal) = why;
                drop(agent);
                std::thread::sleep(pause);
            }
        });
    }

    /// Makes a token by which a machine may join as `node`, and returns it with its end.
    ///
    /// # Errors
    /// When this node is no member, or the cluster refuses it.
    pub fn create_token(&self, node: &str, life_ms: u64) -> Result<(u64, Zeroizing<String>, u64), Problem> {
        let member = self.member()?;
        let view = member.log.view();
        let authority = view.state.identities.issuing().map(|authority| authority.fingerprint);
        let authority = authority.ok_or_else(|| problem_of(&TrustError::NotSealedHere))?;
        let token = Token::make(authority).map_err(|error| problem_of(&error))?;
        let until_ms = wall_ms().saturating_add(life_ms.min(TOKEN_LIFE_MS + 1));
        let node = node.to_owned();
        let command = Command::CreateToken { id: token.id(), hash: token.hash(), node, until_ms };
        settle(member.log.propose(command, PROPOSE_TIMEOUT))?;
        // The view has the entry about the token now. If another authority issued before it, the
        // token would lead a machine to no member.
        let issuing = member.log.view().state.identities.issuing().map(|issuing| issuing.fingerprint);
        if issuing != Some(authority) {
            return Err(Problem::new(
                Code::Conflict,
                "the cluster has replaced its authority while the token was made",
                "Run the command again.",
            ));
        }
        Ok((token.id(), token.text(), until_ms))
    }
}
