//! The judgement of a peer's certificate.

use crate::authority::NEWCOMER;
use crate::key::{PublicKey, fingerprint_of};
use crate::subject::Subject;
use mainstay_types::{Fingerprint, NodeId};
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use std::collections::BTreeMap;
use webpki::{EndEntityCert, KeyUsage, anchor_from_trusted_cert};

/// The members and authorities by which a node judges its peers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Trust {
    /// `None` before this node belongs to a cluster: then only newcomers are let in.
    pub cluster: Option<u64>,
    /// Certificates of the cluster's authorities.
    pub authorities: Vec<CertificateDer<'static>>,
    /// Keys of the members. `None` before this node has the record: then the authority's word
    /// suffices.
    pub members: Option<BTreeMap<NodeId, Fingerprint>>,
}

/// The part of a connection that the peer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Client,
    Server,
}

/// The peer that a caller wants to reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// This node of the cluster.
    Node(NodeId),
    /// Any node of the cluster.
    Member,
    /// Any node of the cluster, even if its certificate has ended: to get a new one there.
    Renewal,
    /// A member of the cluster whose authority has this fingerprint: to join.
    Authority(Fingerprint),
    /// A node that is about to join, with the key of this fingerprint: to see that it is where it
    /// says.
    Newcomer(Fingerprint),
}

/// The other end of a connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    Member {
        subject: Subject,
        key: PublicKey,
    },
    /// A member whose certificate ended at this time, in seconds since 1970.
    Expired {
        subject: Subject,
        key: PublicKey,
        until_s: u64,
    },
    /// Has a certificate of this cluster, and the record has no such node: it has left. It may
    /// learn that, and nothing else.
    Left {
        subject: Subject,
        key: PublicKey,
    },
    /// Has a key and belongs to no cluster yet.
    Newcomer {
        key: PublicKey,
    },
}

/// Reasons why a peer is refused, in words for the operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("its certificate cannot be read")]
    Malformed,
    #[error("it comes from no authority of this cluster")]
    OtherAuthority,
    #[error("its certificate is of another cluster")]
    OtherCluster,
    #[error("it is node {found}, and node {expected} was expected there", found = .found.0, expected = .expected.0)]
    OtherNode { expected: NodeId, found: NodeId },
    #[error("it has another key than the record has of node {node}", node = .node.0)]
    OtherKey { node: NodeId },
    #[error("node {node} is no member of this cluster", node = .node.0)]
    NoMember { node: NodeId },
    #[error("its certificate ended {by_s} s ago by the clock of this node")]
    Expired { by_s: u64 },
    #[error(
        "its certificate begins to be valid in {in_s} s by the clock of this node, so one of the two clocks is wrong"
    )]
    NotYetValid { in_s: u64 },
    #[error("its certificate is not for this use")]
    WrongUse,
    #[error("it belongs to no cluster")]
    Newcomer,
    #[error("it is another machine than the one that asks to join")]
    OtherNewcomer,
}

/// A certificate that an authority of ours has given.
struct Proven {
    subject: Subject,
    key: PublicKey,
    /// End of its life if that has passed, in seconds since 1970.
    ended_s: Option<u64>,
}

/// DER of the name of the use, 1.3.6.1.5.5.7.3.1 and .2 (RFC 5280, 4.2.1.12).
const SERVER_USE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const CLIENT_USE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 2];

impl Trust {
    /// Judges a node that connects to this one.
    ///
    /// # Errors
    /// When it is neither a member, nor was one, nor is a newcomer.
    pub fn judge_client(&self, shown: &[CertificateDer<'_>], now: UnixTime) -> Result<Peer, Refusal> {
        if let Some(key) = newcomer_in(shown) {
            return Ok(Peer::Newcomer { key });
        }
        let cluster = self.cluster.ok_or(Refusal::OtherAuthority)?;
        let proven = prove(shown, &self.authorities, Part::Client, now, Times::Count)?;
        let (subject, key) = (proven.subject, proven.key);
        match self.judge_member(proven, cluster, now) {
            Err(Refusal::NoMember { .. }) => Ok(Peer::Left { subject, key }),
            verdict => verdict,
        }
    }

    /// Judges the node at the other end of a connection that this node opened.
    ///
    /// # Errors
    /// When it is another one than was expected.
    pub fn judge_server(
        &self,
        shown: &[CertificateDer<'_>],
        expect: Expect,
        now: UnixTime,
    ) -> Result<Peer, Refusal> {
        let newcomer = newcomer_in(shown);
        if let Expect::Newcomer(fingerprint) = expect {
            let key = newcomer.ok_or(Refusal::OtherNewcomer)?;
            let is_it = key.fingerprint() == fingerprint;
            return is_it.then_some(Peer::Newcomer { key }).ok_or(Refusal::OtherNewcomer);
        }
        if newcomer.is_some() {
            return Err(Refusal::Newcomer);
        }
        if let Expect::Authority(fingerprint) = expect {
            let authority = authority_in(shown, fingerprint).ok_or(Refusal::OtherAuthority)?;
            let proven = prove(shown, std::slice::from_ref(&authority), Part::Server, now, Times::Count)?;
            return match proven.ended_s {
                Some(ended_s) => Err(expired(ended_s, now)),
                None => Ok(Peer::Member { subject: proven.subject, key: proven.key }),
            };
        }
        let cluster = self.cluster.ok_or(Refusal::OtherAuthority)?;
        let proven = prove(shown, &self.authorities, Part::Server, now, Times::Count)?;
        let peer = self.judge_member(proven, cluster, now)?;
        match (expect, &peer) {
            (Expect::Renewal, _) | (Expect::Member, Peer::Member { .. }) => Ok(peer),
            (Expect::Node(expected), Peer::Member { subject, .. }) if subject.node == expected => Ok(peer),
            (Expect::Node(expected), Peer::Member { subject, .. }) => {
                Err(Refusal::OtherNode { expected, found: subject.node })
            }
            (_, Peer::Expired { until_s, .. }) => Err(expired(*until_s, now)),
            _ => Err(Refusal::Newcomer),
        }
    }

    /// Judges the other end of a connection between engines. `expected`: the node that this one
    /// wants to reach, if it opened the connection.
    ///
    /// The record alone decides who is a member. The times of a certificate do not count, so no
    /// clock ends the replication. The key of a node that leaves goes with it.
    ///
    /// # Errors
    /// When the peer is no member, is another one than was expected, or has another key than the
    /// record has of it.
    pub fn judge_engine(
        &self,
        shown: &[CertificateDer<'_>],
        part: Part,
        expected: Option<NodeId>,
        now: UnixTime,
    ) -> Result<Peer, Refusal> {
        if newcomer_in(shown).is_some() {
            return Err(Refusal::Newcomer);
        }
        let cluster = self.cluster.ok_or(Refusal::OtherAuthority)?;
        let proven = prove(shown, &self.authorities, part, now, Times::Ignored)?;
        let (subject, key, found) = (proven.subject, proven.key, proven.subject.node);
        if self.members.is_none() {
            return Err(Refusal::NoMember { node: found });
        }
        self.judge_member(Proven { ended_s: None, ..proven }, cluster, now)?;
        match expected {
            Some(expected) if expected != found => Err(Refusal::OtherNode { expected, found }),
            _ => Ok(Peer::Member { subject, key }),
        }
    }

    fn judge_member(&self, proven: Proven, cluster: u64, now: UnixTime) -> Result<Peer, Refusal> {
        let Proven { subject, key, ended_s } = proven;
        if subject.cluster != cluster {
            return Err(Refusal::OtherCluster);
        }
        if let Some(members) = &self.members {
            let node = subject.node;
            let recorded = members.get(&node).ok_or(Refusal::NoMember { node })?;
            if *recorded != key.fingerprint() {
                return Err(Refusal::OtherKey { node });
            }
        }
        match ended_s {
            None => Ok(Peer::Member { subject, key }),
            Some(until_s) if self.members.is_some() => Ok(Peer::Expired { subject, key, until_s }),
            Some(until_s) => Err(expired(until_s, now)),
        }
    }
}

fn expired(until_s: u64, now: UnixTime) -> Refusal {
    Refusal::Expired { by_s: now.as_secs().saturating_sub(until_s) }
}

/// The key of a node that shows the certificate that it made for itself. The handshake proves that
/// it has the key; nothing else is believed of it.
fn newcomer_in(shown: &[CertificateDer<'_>]) -> Option<PublicKey> {
    let [certificate] = shown else { return None };
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let mut names = certificate.valid_uri_names();
    (names.next() == Some(NEWCOMER) && names.next().is_none())
        .then(|| PublicKey::read(&certificate.subject_public_key_info()))?
}

/// The authority of this fingerprint, if the peer shows its certificate.
#[must_use]
pub fn authority_in(
    shown: &[CertificateDer<'_>],
    fingerprint: Fingerprint,
) -> Option<CertificateDer<'static>> {
    let shown = shown.iter().skip(1).find(|shown| fingerprint_of(shown) == fingerprint)?;
    Some(shown.clone().into_owned())
}

/// Whether the times of a certificate count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Times {
    Count,
    Ignored,
}

fn prove(
    shown: &[CertificateDer<'_>],
    authorities: &[CertificateDer<'_>],
    part: Part,
    now: UnixTime,
    times: Times,
) -> Result<Proven, Refusal> {
    let own = shown.first().ok_or(Refusal::Malformed)?;
    let certificate = EndEntityCert::try_from(own).map_err(|_| Refusal::Malformed)?;
    let anchors: Vec<TrustAnchor<'_>> =
        authorities.iter().filter_map(|authority| anchor_from_trusted_cert(authority).ok()).collect();
    let ended_s = match verify(&certificate, &anchors, part, now) {
        Ok(()) => None,
        Err(webpki::Error::CertExpired { not_after, .. }) => {
            verify(&certificate, &anchors, part, not_after).map_err(|error| refusal_of(&error))?;
            Some(not_after.as_secs())
        }
        Err(webpki::Error::CertNotValidYet { not_before, .. }) if times == Times::Ignored => {
            verify(&certificate, &anchors, part, not_before).map_err(|error| refusal_of(&error))?;
            None
        }
        Err(error) => return Err(refusal_of(&error)),
    };
    let mut names = certificate.valid_uri_names();
    let subject = names.next().and_then(Subject::read).ok_or(Refusal::Malformed)?;
    let key = PublicKey::read(&certificate.subject_public_key_info()).ok_or(Refusal::Malformed)?;
    if names.next().is_some() {
        return Err(Refusal::Malformed);
    }
    Ok(Proven { subject, key, ended_s })
}

fn verify(
    certificate: &EndEntityCert<'_>,
    anchors: &[TrustAnchor<'_>],
    part: Part,
    at: UnixTime,
) -> Result<(), webpki::Error> {
    let usage = KeyUsage::required(match part {
        Part::Client => CLIENT_USE,
        Part::Server => SERVER_USE,
    });
    // No authority gives a certificate to another one, so nothing lies between.
    certificate
        .verify_for_usage(&[webpki::ring::ECDSA_P256_SHA256], anchors, &[], at, usage, None, None)
        .map(drop)
}

fn refusal_of(error: &webpki::Error) -> Refusal {
    match error {
        webpki::Error::CertNotValidYet { time, not_before } => {
            Refusal::NotYetValid { in_s: not_before.as_secs().saturating_sub(time.as_secs()) }
        }
        webpki::Error::RequiredEkuNotFoundContext(_) | webpki::Error::EmptyEkuExtension => Refusal::WrongUse,
        webpki::Error::UnknownIssuer
        | webpki::Error::InvalidSignatureForPublicKey
        | webpki::Error::UnsupportedSignatureAlgorithmContext(_)
        | webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)
        | webpki::Error::CaUsedAsEndEntity => Refusal::OtherAuthority,
        _ => Refusal::Malformed,
    }
}
