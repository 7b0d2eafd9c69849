//! TLS 1.3 to a server.
//!
//! Guarantees
//! - A probe that asks for TLS sends nothing of its login before the handshake is done.
//! - With the certificates of an authority, the server's certificate is one of that authority, in
//!   its time, and has the host's name. Without them any certificate is taken: the bytes are hidden
//!   from who listens, but not from who answers in the server's place.
//! - A password itself goes only through a socket or to a server whose certificate was checked.

use crate::connection::Connection;
use crate::stage::Stage;
use crate::{Outcome, Probed};
use mainstay_ha::host_and_port;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, version};
use std::sync::Arc;
use tokio_rustls::TlsConnector;

/// Longest file with certificates, in bytes.
const CA_BYTES_MAX: u64 = 1 << 20;

/// How a probe secures its connection.
pub struct Tls {
    config: Arc<ClientConfig>,
    /// Path of the file with the authority's certificates, if there is one.
    ca_file: Option<String>,
}

impl Tls {
    /// Reads the file with the authority's certificates, in a thread of its own: it may hang.
    pub async fn read(ca_file: Option<&String>) -> Probed<Self> {
        let ca_file = ca_file.cloned();
        let read = tokio::task::spawn_blocking(move || {
            let provider = Arc::new(ring::default_provider());
            let verifier = match &ca_file {
                Some(path) => checking(path, &provider)?,
                None => Arc::new(AnyCertificate(Arc::clone(&provider))),
            };
            let config = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[&version::TLS13])
                .map_err(|error| format!("TLS cannot be used here: {error}"))?
                .dangerous()
                .with_custom_certificate_verifier(verifier)
                .with_no_client_auth();
            Ok(Self { config: Arc::new(config), ca_file })
        });
        let read = read.await.map_err(|error| Outcome::Unhealthy(format!("the probe failed: {error}")))?;
        read.map_err(Outcome::Unhealthy)
    }

    /// Whether the server's certificate is checked.
    #[must_use]
    pub fn checks(&self) -> bool {
        self.ca_file.is_some()
    }
}

impl Connection {
    /// Makes the handshake. `place` of the connection is the server's address.
    pub async fn secure(&mut self, tls: &Tls, stage: &Stage) -> Probed<()> {
        let wrong = |why: String| Outcome::Unhealthy(format!("{}: {why}", self.place));
        let host = host_and_port(&self.place).map(|(host, _)| host.to_owned());
        let name = host.and_then(|host| ServerName::try_from(host).ok());
        let name = name.ok_or_else(|| wrong("no certificate can have this name".into()))?;
        stage.reach(format!("{} does not answer the TLS handshake", self.place));
        let plain = std::mem::replace(&mut self.stream, Box::new(tokio::io::empty()));
        let secured = TlsConnector::from(Arc::clone(&tls.config)).connect(name, plain).await;
        let secured = secured.map_err(|error| {
            let why = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
            wrong(match (why, &tls.ca_file) {
                (Some(Error::InvalidCertificate(why)), Some(path)) => format!(
                    "the server's certificate is refused ({why}): compare its authority with {path}, its names with the \
                     address of the probe, and its time with the clock"
                ),
                (Some(why), _) => {
                    format!("the TLS handshake failed ({why}): the probe needs a server with TLS 1.3")
                }
                (None, _) => format!("the TLS handshake broke off ({error}); the server's log says why"),
            })
        })?;
        self.stream = Box::new(secured);
        self.is_secret = tls.checks();
        Ok(())
    }
}

fn checking(path: &str, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let unread = |why: String| format!("the certificates in {path} cannot be used: {why}");
    let length = std::fs::metadata(path).map_err(|error| unread(error.to_string()))?.len();
    if length > CA_BYTES_MAX {
        return Err(unread(format!("the file has more than {CA_BYTES_MAX} bytes")));
    }
    let bytes = std::fs::read(path).map_err(|error| unread(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        let certificate = certificate.map_err(|error| unread(format!("it is no PEM ({error})")))?;
        roots.add(certificate).map_err(|error| unread(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unread("there is none in PEM form".into()));
    }
    let built = WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider)).build();
    Ok(built.map_err(|error| unread(error.to_string()))?)
}

/// Takes every certificate whose owner has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
