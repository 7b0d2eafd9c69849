//! Identities: the cluster's authority, the keys and certificates of its nodes, and tokens to join
//! (R23).
//!
//! Per token, as the state has it:
//!
//! | from | command | to |
//! |---|---|---|
//! | none | [`Command::CreateToken`] | open |
//! | open | [`Command::AdmitNode`] of the named node | used by that request |
//! | used | [`Command::WithdrawNode`] of that request | open |
//! | open | [`Command::RevokeToken`] | revoked |
//!
//! Guarantees, after every command:
//! - a cluster with an authority lets a node in only by an open token for the node's name, before
//!   the token's end, and each token lets one node in. A repetition of the same request with the
//!   same key is answered as the first one;
//! - a token is good for at most [`TOKEN_LIFE_MS`], and counts as ended for a proposer whose clock
//!   is far behind its beginning: such a clock proves nothing;
//! - the key of a node, once recorded, never changes. A node that leaves takes its key along;
//! - neither a token's secret nor the authority's key is in the state: it holds a hash, and what is
//!   sealed with a key that the state does not have.
//!
//! `rotation.rs` says how another authority takes the place of the first one.
//!
//! [`Command::CreateToken`]: crate::state::Command::CreateToken
//! [`Command::AdmitNode`]: crate::state::Command::AdmitNode
//! [`Command::WithdrawNode`]: crate::state::Command::WithdrawNode
//! [`Command::RevokeToken`]: crate::state::Command::RevokeToken

pub(crate) mod advice;
pub mod rotation;

use crate::apply::NAME_REMEDY;
use crate::members::Newcomer;
use crate::state::{Command, Entry, Outcome, State, refused};
use mainstay_ha::valid_name;
use mainstay_types::{Code, Fingerprint, HexBytes, NodeId, Problem, Severity};
use rotation::Rotation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

const HOUR_MS: u64 = 60 * 60 * 1000;
/// Life of a node's certificate.
pub const CERTIFICATE_LIFE_MS: u64 = 30 * 24 * HOUR_MS;
/// Longest life of a token.
pub const TOKEN_LIFE_MS: u64 = 24 * HOUR_MS;
/// Clocks of nodes may differ by this much.
const CLOCKS_DIFFER_MS: u64 = HOUR_MS;
/// Time for which a token that has ended in any way is remembered, so that a refusal says why.
const REMEMBERED_MS: u64 = 24 * HOUR_MS;
/// Most tokens that are open at a time.
pub const TOKENS_MAX: usize = 64;
/// Tokens that are remembered, the open ones included.
const TOKENS_KNOWN_MAX: usize = 256;
/// Largest certificate and largest sealed key, in bytes.
const AUTHORITY_BYTES_MAX: usize = 4096;
/// Remedy for a token that lets nobody in.
const TOKEN_REMEDY: &str = "make a new one on a member: `mainstay cluster token create NODE`";

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Identities {
    /// By number. One of them issues.
    pub authorities: BTreeMap<u32, Authority>,
    /// The highest number that a rotation has given to an authority.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub last_authority: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// Nodes that a rotation has left out. The record has no key of them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub left_out: BTreeSet<NodeId>,
    pub members: BTreeMap<NodeId, NodeIdentity>,
    /// By their public halves.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tokens: BTreeMap<u64, JoinToken>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// Number of a cluster's first authority, which gave every token of a build that knew no rotation.
const fn first_authority() -> u32 {
    1
}

/// An authority of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Authority {
    pub number: u32,
    pub phase: Phase,
    /// DER.
    pub certificate: HexBytes,
    /// SHA-256 of the certificate.
    pub fingerprint: Fingerprint,
    /// Sealed with a key that only the members' own files have.
    pub sealed_key: HexBytes,
}

/// The use that the cluster makes of an authority. Every authority in the record is believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// To issue when every member believes it; see `rotation.rs`.
    Announced,
    /// New certificates come from it.
    Issues,
    /// Its certificates count, and no new ones come from it.
    Believed,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// Fingerprint of the node's key.
    pub key: Fingerprint,
    /// The newest certificate. `None`: the authority has given none yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<Certificate>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Certificate {
    pub fingerprint: Fingerprint,
    /// Number of the authority that gave it.
    pub authority: u32,
    /// End of its life, in milliseconds since 1970.
    pub until_ms: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JoinToken {
    pub hash: Fingerprint,
    /// Name of the node that may join by it.
    pub node: String,
    /// Wall clock when it was made.
    pub made_ms: u64,
    pub until_ms: u64,
    pub state: TokenState,
    /// Number of the authority that issued when it was made.
    #[serde(default = "first_authority")]
    pub authority: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenState {
    Open,
    /// The request with this number has used it.
    Used(u64),
    Revoked,
    /// Another authority issues now than the one that the token names.
    Superseded,
}

/// The right of a node to join, and its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Admission {
    /// Public half of the token.
    pub token: u64,
    /// Hash of the token, made of what the node showed.
    pub hash: Fingerprint,
    pub key: Fingerprint,
}

/// Fields of [`Command::CreateToken`](crate::state::Command::CreateToken).
pub(crate) struct NewToken {
    pub hash: Fingerprint,
    pub node: String,
    pub until_ms: u64,
}

impl Identities {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The authority that gives certificates.
    #[must_use]
    pub fn issuing(&self) -> Option<&Authority> {
        self.authorities.values().find(|authority| authority.phase == Phase::Issues)
    }

    /// Notes a node that is let in by a token. The caller has checked both.
    pub(crate) fn admit(&mut self, node: NodeId, nonce: u64, by: Admission) {
        if let Some(token) = self.tokens.get_mut(&by.token) {
            token.state = TokenState::Used(nonce);
        }
        self.members.insert(node, NodeIdentity { key: by.key, certificate: None });
    }

    /// Forgets a node that has not come to vote. Its token is good again: nothing came of it.
    pub(crate) fn withdraw(&mut self, node: NodeId, nonce: u64) {
        self.forget(node);
        let issuing = self.issuing().map(|authority| authority.number);
        for token in self.tokens.values_mut().filter(|token| token.state == TokenState::Used(nonce)) {
            let is_good = Some(token.authority) == issuing;
            token.state = if is_good { TokenState::Open } else { TokenState::Superseded };
        }
    }

    pub(crate) fn forget(&mut self, node: NodeId) {
        self.members.remove(&node);
        self.left_out.remove(&node);
        if let Some(rotation) = &mut self.rotation {
            rotation.believed_by.remove(&node);
            rotation.certified.remove(&node);
        }
    }

    /// Drops tokens that ended long ago, and the oldest of too many.
    fn prune(&mut self, at_ms: u64) {
        self.tokens.retain(|_, token| token.until_ms.saturating_add(REMEMBERED_MS) > at_ms);
        while self.tokens.len() >= TOKENS_KNOWN_MAX {
            let ended = |token: &JoinToken| token.state != TokenState::Open || token.until_ms <= at_ms;
            let oldest = self.tokens.iter().min_by_key(|(_, token)| (!ended(token), token.made_ms));
            let Some(oldest) = oldest.map(|(id, _)| *id) else { return };
            self.tokens.remove(&oldest);
        }
    }
}

impl Authority {
    /// Why no agent of this release has made this authority, if so.
    fn impossible(&self) -> Option<Problem> {
        let sizes = [self.certificate.0.len(), self.sealed_key.0.len()];
        let fit = sizes.iter().all(|bytes| (1..=AUTHORITY_BYTES_MAX).contains(bytes));
        (!fit).then(|| {
            Problem::new(
                Code::PeerAnswer,
                "the authority's certificate or key has an impossible size",
                "see the log of the agent",
            )
        })
    }
}

impl JoinToken {
    /// Why no node may join by this token now, if so. `nonce`: number of the request.
    fn is_shut(&self, at_ms: u64, new: &Newcomer, by: Admission) -> Option<String> {
        if self.hash != by.hash {
            return Some("the cluster does not know this token".into());
        }
        if self.node != new.name {
            return Some(format!("this token is for a node named {}, and not for {}", self.node, new.name));
        }
        match self.state {
            TokenState::Used(nonce) if nonce == new.nonce => None,
            TokenState::Used(_) => Some("another request has used this token".into()),
            TokenState::Revoked => Some("this token was revoked".into()),
            TokenState::Superseded => Some("the cluster has replaced the authority of this token".into()),
            TokenState::Open if at_ms >= self.until_ms => {
                Some(format!("this token ended {}", ago(at_ms - self.until_ms)))
            }
            TokenState::Open if at_ms.saturating_add(CLOCKS_DIFFER_MS) < self.made_ms => Some(
                "the clock of the member that was asked is behind the time at which this token was made"
                    .into(),
            ),
            TokenState::Open => None,
        }
    }
}

/// A length of time in words, as the past.
fn ago(ms: u64) -> String {
    match ms / 60_000 {
        0 => "less than a minute ago".into(),
        minutes if minutes < 120 => format!("{minutes} min ago"),
        minutes => format!("{} h ago", minutes / 60),
    }
}

fn shut(message: impl Into<String>) -> Problem {
    Problem::new(Code::TokenRefused, message, TOKEN_REMEDY)
}

impl State {
    /// Sees that a node that wants to join has a token for that.
    pub(crate) fn check_admission(&self, at_ms: u64, new: &Newcomer) -> Result<(), Problem> {
        if self.identities.authorities.is_empty() {
            return Ok(());
        }
        let Some(by) = new.by else {
            return Err(shut("a node joins this cluster by a token, and none was given"));
        };
        let Some(token) = self.identities.tokens.get(&by.token) else {
            return Err(shut("the cluster does not know this token"));
        };
        if let Some(why) = token.is_shut(at_ms, new, by) {
            return Err(shut(why));
        }
        let repeated = self.nodes.values().find(|node| node.name == new.name && node.nonce == new.nonce);
        let key = repeated.and_then(|node| self.identities.members.get(&node.id)).map(|known| known.key);
        match key {
            Some(key) if key != by.key => Err(shut("another machine has used this token")),
            _ => Ok(()),
        }
    }

    pub(crate) fn set_authority(&mut self, authority: Authority) -> Outcome {
        if let Some(refusal) = authority.impossible() {
            return Outcome::Refused(refusal);
        }
        if self.identities.authorities.get(&authority.number) == Some(&authority) {
            return Outcome::Unchanged;
        }
        if !self.identities.authorities.is_empty() {
            return refused(
                Code::AuthorityExists,
                "the cluster has an authority already",
                "see `mainstay cluster certificates`",
            );
        }
        self.identities.authorities.insert(authority.number, authority);
        Outcome::Done
    }

    /// Gives a cluster that begins anew on `node`, from a backup, another authority. `given` is the
    /// entry about the certificate of the node, which has another key than before. The earlier
    /// authorities are believed on, so that earlier members hear that they are none any more. A
    /// rotation that was under way in the backup is over.
    pub fn found_anew(&mut self, at_ms: u64, node: NodeId, authority: Authority, given: Command) {
        for earlier in self.identities.authorities.values_mut() {
            earlier.phase = Phase::Believed;
        }
        self.identities.rotation = None;
        self.identities.last_authority = self.identities.last_number().max(authority.number);
        self.identities.authorities.insert(authority.number, authority);
        self.identities.forget(node);
        self.identities.tokens.clear();
        let outcome = self.apply(Entry { at_ms, command: given });
        debug_assert_eq!(outcome, Outcome::Done);
    }

    pub(crate) fn give_certificate(&mut self, node: NodeId, key: Fingerprint, given: Certificate) -> Outcome {
        if !self.nodes.contains_key(&node) {
            return refused(
                Code::UnknownNode,
                format!("there is no node {}", self.node_name(node)),
                "see `mainstay node list`",
            );
        }
        if !self.identities.authorities.contains_key(&given.authority) {
            return refused(
                Code::CertificateRefused,
                format!("the cluster has no authority {}", given.authority),
                "see `mainstay cluster certificates`",
            );
        }
        if let Some(refusal) = self.is_left_out(node) {
            return Outcome::Refused(refusal);
        }
        let known = self.identities.members.entry(node).or_insert(NodeIdentity { key, certificate: None });
        if known.key != key {
            return refused(
                Code::CertificateRefused,
                format!("the record has another key of node {}", self.node_name(node)),
                "remove the node, and let the machine join anew by a token",
            );
        }
        if known.certificate == Some(given) {
            return Outcome::Unchanged;
        }
        known.certificate = Some(given);
        Outcome::Done
    }

    pub(crate) fn create_token(&mut self, at_ms: u64, id: u64, new: NewToken) -> Outcome {
        let NewToken { hash, node, until_ms } = new;
        if let Some(known) = self.identities.tokens.get(&id) {
            let is_same = known.hash == hash && known.node == node;
            return if is_same { Outcome::Unchanged } else { Outcome::Conflict { record: None } };
        }
        if !valid_name(&node) {
            return refused(Code::BadName, format!("'{node}' is not a valid name"), NAME_REMEDY);
        }
        if until_ms <= at_ms || until_ms - at_ms > TOKEN_LIFE_MS {
            return refused(
                Code::BadTokenLife,
                "a token is good for at most 24 h, and for more than no time",
                "give a time of up to 24h with --ttl",
            );
        }
        self.identities.prune(at_ms);
        let is_open = |token: &&JoinToken| token.state == TokenState::Open && token.until_ms > at_ms;
        if self.identities.tokens.values().filter(is_open).count() >= TOKENS_MAX {
            return refused(
                Code::TooManyTokens,
                format!("{TOKENS_MAX} tokens are open already"),
                "revoke some: `mainstay cluster token list` and `mainstay cluster token revoke ID`",
            );
        }
        let authority = self.identities.issuing().map_or(first_authority(), |issuing| issuing.number);
        let (made_ms, state) = (at_ms, TokenState::Open);
        let token = JoinToken { hash, node: node.clone(), made_ms, until_ms, state, authority };
        self.identities.tokens.insert(id, token);
        let text = format!("a token was made, by which a machine may join as {node}");
        self.note(at_ms, Severity::Info, format!("token {id:016x}"), text);
        Outcome::Done
    }

    pub(crate) fn revoke_token(&mut self, at_ms: u64, id: u64) -> Outcome {
        let Some(token) = self.identities.tokens.get_mut(&id) else {
            return refused(
                Code::UnknownToken,
                format!("there is no token {id:016x}"),
                "see `mainstay cluster token list`",
            );
        };
        match token.state {
            TokenState::Revoked | TokenState::Superseded => return Outcome::Unchanged,
            TokenState::Used(_) => {
                let node = &token.node;
                return refused(
                    Code::TokenRefused,
                    format!("this token was used: {node} has joined by it, or does so now"),
                    format!("to take the node out of the cluster: `mainstay node remove {node}`"),
                );
            }
            TokenState::Open => {}
        }
        token.state = TokenState::Revoked;
        self.note(at_ms, Severity::Info, format!("token {id:016x}"), "was revoked");
        Outcome::Done
    }
}

#[cfg(test)]
mod tests;
