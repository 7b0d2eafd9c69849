//! TLS 1.3 between an agent and clients of its API from other machines.
//!
//! The agent shows a certificate; clients show none, and prove themselves by tokens
//! ([`crate::ApiToken`]). A client knows the agent in one of two ways: by an authority and the name
//! of the host, or by a fingerprint.

use crate::TrustError;
use crate::key::fingerprint_of;
use mainstay_types::Fingerprint;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::sync::Arc;

/// Name of HTTP/1.1 in the handshake (RFC 7301).
pub const HTTP_PROTOCOL: &[u8] = b"http/1.1";

/// Makes the settings of a server that shows these certificates, its own first.
///
/// # Errors
/// When key and certificate do not fit together, or cannot be used.
pub fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, TrustError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    // Nothing is remembered of a client.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![HTTP_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// How a client knows the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Believed {
    /// By the certificates of these authorities. The server's certificate has the name of the host.
    Authorities(Vec<CertificateDer<'static>>),
    /// By the SHA-256 of the server's certificate, whatever names it has; or by that of the
    /// authority whose certificate the server shows as well. Then the server's certificate has the
    /// name of the host.
    Fingerprint(Fingerprint),
}

/// Makes the settings of a client.
///
/// # Errors
/// When none of the authorities' certificates can be used.
pub fn client(believed: Believed) -> Result<Arc<ClientConfig>, TrustError> {
    let provider = Arc::new(ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match believed {
        Believed::Authorities(certificates) => {
            let mut roots = RootCertStore::empty();
            // A machine's list may have some of a kind that is not read here.
            roots.add_parsable_certificates(certificates);
            by_authorities(roots, &provider)?
        }
        Believed::Fingerprint(fingerprint) => Arc::new(Pinned { fingerprint, provider: provider.clone() }),
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![HTTP_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

fn by_authorities(
    roots: RootCertStore,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, Error> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    built.map_err(|error| Error::General(error.to_string()))
}

/// Knows a server by a fingerprint.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if fingerprint_of(end_entity) == self.fingerprint {
            return Ok(ServerCertVerified::assertion());
        }
        let authority = intermediates.iter().find(|shown| fingerprint_of(shown) == self.fingerprint);
        let authority = authority.ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        by_authorities(roots, &self.provider)?.verify_server_cert(
            end_entity,
            &[],
            server_name,
            ocsp_response,
            now,
        )
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // A handshake of an earlier version is never begun.
        Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Key, ServerNames, Subject};
    use mainstay_types::NodeId;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::{ClientConnection, ServerConnection};
    use std::time::{SystemTime, UNIX_EPOCH};

    fn now_ms() -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        u64::try_from(now.as_millis()).unwrap()
    }

    fn private(key: &Key) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(key.pkcs8().to_vec()).into()
    }

    /// A server for the name `n1`, and its certificates.
    fn named(authority: &Authority) -> (Arc<ServerConfig>, Vec<CertificateDer<'static>>) {
        let (key, mut names) = (Key::generate().unwrap(), ServerNames::default());
        names.add("n1");
        names.add("10.0.0.1");
        let own = authority.issue_server(&names, &key.public(), now_ms()).unwrap().certificate;
        let chain = vec![own, authority.certificate().clone()];
        (server(chain.clone(), private(&key)).unwrap(), chain)
    }

    /// Makes a handshake in memory.
    fn meet(server: &Arc<ServerConfig>, believed: Believed, host: &str) -> Result<(), Error> {
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut client = ClientConnection::new(client(believed).unwrap(), name).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        for _ in 0..10 {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets()?;
            }
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets()?;
            }
            if !client.is_handshaking() && !server.is_handshaking() {
                assert_eq!(client.alpn_protocol(), Some(HTTP_PROTOCOL));
                return Ok(());
            }
        }
        panic!("the handshake goes on");
    }

    #[test]
    fn a_client_knows_the_server_by_authority_and_name_or_by_a_fingerprint() {
        let authority = Authority::make(7, 1, now_ms()).unwrap();
        let (own, chain) = named(&authority);
        let by_authority = Believed::Authorities(vec![authority.certificate().clone()]);
        let by_its_print = Believed::Fingerprint(authority.fingerprint());
        for believed in [by_authority, by_its_print] {
            for host in ["n1", "10.0.0.1"] {
                assert_eq!(meet(&own, believed.clone(), host), Ok(()));
            }
            for host in ["n2", "10.0.0.2"] {
                assert!(meet(&own, believed.clone(), host).is_err(), "{host}");
            }
        }
        // The server's own certificate, whatever its names are.
        assert_eq!(meet(&own, Believed::Fingerprint(fingerprint_of(&chain[0])), "n2"), Ok(()));
    }

    #[test]
    fn a_client_refuses_a_server_of_another_authority() {
        let (authority, other) =
            (Authority::make(7, 1, now_ms()).unwrap(), Authority::make(7, 1, now_ms()).unwrap());
        let (own, chain) = named(&authority);
        let by_other = Believed::Authorities(vec![other.certificate().clone()]);
        assert!(meet(&own, by_other, "n1").is_err());
        assert!(meet(&own, Believed::Fingerprint(other.fingerprint()), "n1").is_err());
        // One that shows the certificate of the authority that is believed, and is not of it.
        let key = Key::generate().unwrap();
        let mut names = ServerNames::default();
        names.add("n1");
        let foreign = other.issue_server(&names, &key.public(), now_ms()).unwrap().certificate;
        let chain = vec![foreign, chain[1].clone()];
        let thief = server(chain, private(&key)).unwrap();
        assert!(meet(&thief, Believed::Fingerprint(authority.fingerprint()), "n1").is_err());
        assert!(client(Believed::Authorities(Vec::new())).is_err());
    }

    #[test]
    fn the_certificate_of_a_node_is_none_for_the_api() {
        let (authority, key) = (Authority::make(7, 1, now_ms()).unwrap(), Key::generate().unwrap());
        let subject = Subject { cluster: 7, node: NodeId(1) };
        let node = authority.issue(subject, &key.public(), now_ms()).unwrap().certificate;
        let as_api = server(vec![node, authority.certificate().clone()], private(&key)).unwrap();
        for host in ["n1", "10.0.0.1", "mainstay"] {
            assert!(meet(&as_api, Believed::Fingerprint(authority.fingerprint()), host).is_err());
        }
    }

    #[test]
    fn a_key_that_is_not_of_the_certificate_makes_no_server() {
        let authority = Authority::make(7, 1, now_ms()).unwrap();
        let (_, chain) = named(&authority);
        assert!(server(chain, private(&Key::generate().unwrap())).is_err());
    }
}
