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
use crate::trust::{Membership, OwnTrust, open_authority, recorded_trust};
use mainstay_control::State;
use mainstay_control::identities::{self, Phase, TOKEN_LIFE_MS};
use mainstay_control::state::Command;
use mainstay_trust::{
    Authority, CertificateDer, Expect, Issued, PublicKey, SealKey, Subject, Token, TrustError, Zeroizing,
    fingerprint_of, is_due,
};
use mainstay_types::{Code, HexBytes, NodeId, Problem};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a node looks whether its certificate is due.
const LOOK_EVERY: Duration = Duration::from_secs(10);
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
) -> Result<identities::Authority, TrustError> {
    Ok(identities::Authority {
        number,
        phase: Phase::Issues,
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
    let authority = recorded_authority(cluster, number, &authority, &seal)?;
    let Issued { certificate, until_ms } = issued;
    Ok(Founded { authority, membership: Membership { certificate, until_ms, authorities, seal }, given })
}

/// The first number of an authority.
pub(crate) fn first_number() -> u32 {
    FIRST
}

/// The entry about a certificate.
fn given(node: NodeId, key: &PublicKey, issued: &Issued, authority: u32) -> Command {
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
    Ok(Proofs { own: shown, trust: Arc::new(own.first_trust(cluster)) })
}

/// Lets what this agent believes follow the record.
pub(crate) fn follow(transport: &Transport, cluster: u64, state: &State) {
    if state.cluster.is_none() || state.identities.is_empty() {
        return;
    }
    let trust = recorded_trust(cluster, &state.identities);
    transport.change_proofs(|proofs| {
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

impl Agent {
    /// The seal of this member.
    pub(crate) fn seal(&self) -> Result<SealKey, Problem> {
        let own = lock(&self.trust);
        own.membership
            .as_ref()
            .map(|member| member.seal.clone())
            .ok_or_else(|| problem_of(&TrustError::NotSealedHere))
    }

    /// Gives a node a certificate for its key, by the record that this node has.
    pub(super) fn issue(
        &self,
        member: &Member,
        node: NodeId,
        key: &PublicKey,
    ) -> Result<(Issued, Certified, Command), Problem> {
        let (state, cluster) = (member.log.view().state, member.identity.cluster);
        let seal = self.seal()?;
        let (number, authority) =
            open_authority(cluster, &state.identities, &seal).map_err(|error| problem_of(&error))?;
        let issued =
            authority.issue(Subject { cluster, node }, key, wall_ms()).map_err(|error| problem_of(&error))?;
        let certified = certified(&issued, &authorities_of(&state));
        let entry = given(node, key, &issued, number);
        Ok((issued, certified, entry))
    }

    /// A member asks for a new certificate. The record need not be writable for that: the nodes may
    /// need their certificates to form a majority.
    pub(super) fn renew_for(&self, subject: Subject, key: &PublicKey) -> Result<Certified, Problem> {
        let member = self.member()?;
        let known = member.log.view().state.identities.members.get(&subject.node).map(|known| known.key);
        if known != Some(key.fingerprint()) {
            return Err(Problem::new(
                Code::CertificateRefused,
                "the record has another key of this node, or none",
                "Remove the node, and let the machine join anew by a token.",
            ));
        }
        let (_, certified, entry) = self.issue(&member, subject.node, key)?;
        member.log.submit(entry);
        Ok(certified)
    }

    /// Takes a new certificate of this node into use. Open connections stay.
    fn take(&self, issued: Issued, authorities: Vec<CertificateDer<'static>>) -> Result<(), AgentError> {
        let mut own = lock(&self.trust);
        own.renew(issued, authorities)?;
        let shown = own.credentials().map_err(|error| AgentError::Fatal(error.to_string()))?;
        drop(own);
        self.transport.change_proofs(|proofs| proofs.own = shown);
        Ok(())
    }

    /// Renews the certificate of this node if it is due.
    pub(super) fn renew_own(&self) -> Result<(), Problem> {
        let Ok(member) = self.member() else { return Ok(()) };
        let key = {
            let own = lock(&self.trust);
            match &own.membership {
                Some(known) if is_due(known.until_ms, wall_ms()) => own.key.public(),
                _ => return Ok(()),
            }
        };
        let state = member.log.view().state;
        let others = state.nodes.values().filter(|node| node.id != member.identity.node && !node.candidate);
        for other in others {
            let reply = self.transport.call(&other.agent_addr, Expect::Renewal, &Call::Renew, ASK_TIMEOUT);
            let Ok(CallReply::Renewed(certified)) = reply else { continue };
            let authorities =
                certified.authorities.into_iter().map(|der| CertificateDer::from(der.0)).collect();
            let issued = Issued {
                certificate: CertificateDer::from(certified.certificate.0),
                until_ms: certified.until_ms,
            };
            match self.take(issued, authorities) {
                Ok(()) => {
                    tracing::info!(by = other.name, "the certificate of this node is renewed");
                    return Ok(());
                }
                Err(error) => tracing::warn!(by = other.name, %error, "a new certificate cannot be used"),
            }
        }
        let (issued, _, entry) = self.issue(&member, member.identity.node, &key)?;
        self.take(issued, authorities_of(&state)).map_err(|error| error.problem())?;
        member.log.submit(entry);
        tracing::info!("no other member answers, so this node has renewed its certificate by itself");
        Ok(())
    }

    /// Renews this node's certificate when it is due, as long as the agent is in use.
    pub(super) fn watch_certificate(self: &Arc<Self>) {
        let this: Weak<Self> = Arc::downgrade(self);
        spawn("agent-certificate", move || {
            while let Some(agent) = this.upgrade() {
                if let Err(problem) = agent.renew_own() {
                    tracing::warn!(why = problem.message, "the certificate of this node cannot be renewed");
                }
                drop(agent);
                std::thread::sleep(LOOK_EVERY);
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
        Ok((token.id(), token.text(), until_ms))
    }
}
