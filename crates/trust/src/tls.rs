//! TLS 1.3 between nodes: both ends show a certificate and prove their key.
//!
//! The two functions make one end of a connection each. The verdict about the peer is in the
//! [`Outcome`] as soon as the handshake is over.

use crate::TrustError;
use crate::key::Key;
use crate::peer::{Expect, Part, Peer, Refusal, Trust};
use mainstay_types::NodeId;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ServerConnection};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, ServerConfig, SignatureScheme,
};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Name of the protocol of the agents, so that no connection is taken for one of another protocol
/// of ours (RFC 7301).
pub const AGENT_PROTOCOL: &[u8] = b"mainstay-agent/1";

/// Key and certificates that this node shows.
#[derive(Clone)]
pub struct Credentials {
    shown: Arc<CertifiedKey>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({} certificates)", self.shown.cert.len())
    }
}

impl Credentials {
    /// `chain`: the certificate of the node, then that of its authority; for a newcomer its own
    /// certificate alone.
    ///
    /// # Errors
    /// When the first certificate is for another key.
    pub fn new(key: &Key, chain: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.pkcs8()));
        let shown = CertifiedKey::new(chain, rustls::crypto::ring::sign::any_ecdsa_type(&der)?);
        shown.keys_match()?;
        Ok(Self { shown: Arc::new(shown) })
    }

    /// Returns the credentials of a node that belongs to no cluster.
    ///
    /// # Errors
    /// When the kernel gives no randomness.
    pub fn newcomer(key: &Key) -> Result<Self, TrustError> {
        Self::new(key, vec![crate::newcomer(key)?])
    }

    /// The certificates that are shown, the node's first.
    #[must_use]
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.shown.cert
    }
}

/// The verdict about the peer.
#[derive(Clone, Debug, Default)]
pub struct Outcome(Arc<Mutex<Option<Result<Shown, Refusal>>>>);

#[derive(Clone, Debug)]
struct Shown {
    peer: Peer,
    chain: Vec<CertificateDer<'static>>,
}

impl Outcome {
    /// The peer; `None` before the handshake has come so far, or if the peer was refused.
    #[must_use]
    pub fn peer(&self) -> Option<Peer> {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.as_ref().and_then(|outcome| outcome.as_ref().ok()).map(|shown| shown.peer.clone())
    }

    /// The certificates that the peer showed, if it was not refused.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.iter().flatten().flat_map(|shown| shown.chain.clone()).collect()
    }

    /// Why the peer was refused.
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.as_ref().and_then(|outcome| outcome.as_ref().err()).copied()
    }

    fn note(
        &self,
        end_entity: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        judge: impl FnOnce(&[CertificateDer<'_>]) -> Result<Peer, Refusal>,
    ) -> Result<(), Error> {
        let chain: Vec<CertificateDer<'static>> =
            std::iter::once(end_entity).chain(others).map(|shown| shown.clone().into_owned()).collect();
        let verdict = judge(&chain).map(|peer| Shown { peer, chain });
        let result = verdict.as_ref().map(drop).map_err(|refusal| error_of(*refusal));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(verdict);
        result
    }
}

/// Error that makes TLS tell the peer the kind of the refusal.
fn error_of(refusal: Refusal) -> Error {
    Error::InvalidCertificate(match refusal {
        Refusal::Malformed => CertificateError::BadEncoding,
        Refusal::OtherAuthority | Refusal::Newcomer => CertificateError::UnknownIssuer,
        Refusal::Expired { .. } => CertificateError::Expired,
        Refusal::NotYetValid { .. } => CertificateError::NotValidYet,
        Refusal::WrongUse => CertificateError::InvalidPurpose,
        Refusal::OtherCluster
        | Refusal::OtherNode { .. }
        | Refusal::OtherKey { .. }
        | Refusal::NoMember { .. }
        | Refusal::OtherNewcomer => CertificateError::Other(OtherError(Arc::new(refusal))),
    })
}

/// Makes the end of a connection that another node has opened.
///
/// # Errors
/// When TLS cannot be set up.
pub fn accept(
    trust: Arc<Trust>,
    own: &Credentials,
    clock: Arc<dyn TimeProvider>,
    protocol: &[u8],
) -> Result<(ServerConnection, Outcome), TrustError> {
    let outcome = Outcome::default();
    let verifier = Clients { trust, rule: ClientRule::Agent, outcome: outcome.clone() };
    let config = server_config(provider(), verifier, own, clock, &[protocol])?;
    Ok((ServerConnection::new(Arc::new(config))?, outcome))
}

/// Settings of the end of a connection that another node has opened. `protocols`: in the order in
/// which they are preferred.
pub(crate) fn server_config(
    provider: Arc<CryptoProvider>,
    verifier: Clients,
    own: &Credentials,
    clock: Arc<dyn TimeProvider>,
    protocols: &[&[u8]],
) -> Result<ServerConfig, TrustError> {
    let mut config = ServerConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(own.shown.clone())));
    // Every connection proves itself anew: what a node may do can change at any time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Makes the end of a connection that this node opens.
///
/// # Errors
/// When TLS cannot be set up.
pub fn connect(
    trust: Arc<Trust>,
    own: &Credentials,
    expect: Expect,
    clock: Arc<dyn TimeProvider>,
    protocol: &[u8],
) -> Result<(ClientConnection, Outcome), TrustError> {
    let outcome = Outcome::default();
    let verifier = Servers { trust, rule: ServerRule::Agent(expect), outcome: outcome.clone() };
    let config = client_config(provider(), verifier, own, clock, &[protocol])?;
    Ok((ClientConnection::new(Arc::new(config), no_name()?)?, outcome))
}

/// TLS wants a name of the peer. It is neither sent nor looked at.
pub(crate) fn no_name() -> Result<ServerName<'static>, TrustError> {
    ServerName::try_from("mainstay").map_err(|_| TrustError::BadKey)
}

/// Settings of the end of a connection that this node opens.
pub(crate) fn client_config(
    provider: Arc<CryptoProvider>,
    verifier: Servers,
    own: &Credentials,
    clock: Arc<dyn TimeProvider>,
    protocols: &[&[u8]],
) -> Result<ClientConfig, TrustError> {
    let mut config = ClientConfig::builder_with_details(provider, clock)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own.shown.clone())));
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// The answer to a handshake of an earlier version, which is never begun.
fn no_earlier_version() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
}

/// The rule by which nodes that connect are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ClientRule {
    Agent,
    Engine,
}

/// The rule by which nodes are judged to which this one connects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerRule {
    Agent(Expect),
    Engine(NodeId),
}

#[derive(Debug)]
pub(crate) struct Clients {
    pub trust: Arc<Trust>,
    pub rule: ClientRule,
    pub outcome: Outcome,
}

impl ClientCertVerifier for Clients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let judge = |shown: &[CertificateDer<'_>]| match self.rule {
            ClientRule::Agent => self.trust.judge_client(shown, now),
            ClientRule::Engine => self.trust.judge_engine(shown, Part::Client, None, now),
        };
        self.outcome.note(end_entity, intermediates, judge).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_earlier_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

#[derive(Debug)]
pub(crate) struct Servers {
    pub trust: Arc<Trust>,
    pub rule: ServerRule,
    pub outcome: Outcome,
}

impl ServerCertVerifier for Servers {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let judge = |shown: &[CertificateDer<'_>]| match self.rule {
            ServerRule::Agent(expect) => self.trust.judge_server(shown, expect, now),
            ServerRule::Engine(node) => self.trust.judge_engine(shown, Part::Server, Some(node), now),
        };
        self.outcome.note(end_entity, intermediates, judge).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_earlier_version()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}
