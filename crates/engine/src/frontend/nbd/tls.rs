//! Certificates of this server and of the clients that it lets in, read from PEM files.
//!
//! Guarantees:
//! - A client gets in only by a certificate that the client CA has signed, for clients, and that is
//!   valid now. TLS is 1.3.
//! - Nothing is remembered of a client (no tickets, no early data): every connection proves itself
//!   anew.
//! - Files are read for every connection, so a certificate is renewed by putting the new files in
//!   the old ones' places (the key first, then its certificate). Files that do not fit together let
//!   no client in.
//! - A private key that others may read is not used.
//!
//! When the engine starts it refuses files with which no client could ever get in. It starts with a
//! certificate that has expired, or is not valid yet, and lets no client in: replication must not
//! depend on it.
//!
//! *Not* checked: lists of revoked certificates, and until when the client CA's own certificate is
//! valid. To shut out a client whose key was lost, use another CA.

use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{AlertDescription, CertificateError, InconsistentKeys, RootCertStore, ServerConfig};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Longest file that is read, in bytes. Chains and bundles of authorities have some tens of
/// thousands.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Mode bits that a private key must not have: all access of others, and writing by its group.
const KEY_MODE_FORBIDDEN: u32 = 0o027;

/// Where the certificates are, all in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsFiles {
    /// Certificate of the server. The certificates between it and its authority, if there are any,
    /// follow it.
    pub certificate: PathBuf,
    /// The private key of that certificate, without a password.
    pub key: PathBuf,
    /// Certificates of the authorities whose clients are let in.
    pub client_ca: PathBuf,
}

/// Why no client gets in.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("cannot read {path}: put the {what} there, in PEM form, or name another file")]
    Read {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{path} is longer than {FILE_BYTES_MAX} bytes: it is no {what}")]
    Long { path: PathBuf, what: &'static str },
    #[error(
        "{path} can be read or changed by others (mode {mode:o}): chmod 600 it, and make a new one if others had access"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} holds no {what} in PEM form{hint}")]
    Nothing { path: PathBuf, what: &'static str, hint: &'static str },
    #[error("{path} is not in PEM form: {reason}")]
    NotPem { path: PathBuf, reason: String },
    #[error(
        "the key in {key} is not that of the certificate in {certificate}: name the two that belong together"
    )]
    OtherKey { key: PathBuf, certificate: PathBuf },
    #[error("{path} holds a certificate that cannot be used: {reason}")]
    Unusable { path: PathBuf, reason: String },
    #[error("the certificate in {path} has expired: renew it")]
    Expired { path: PathBuf },
    #[error(
        "the certificate in {path} is not valid yet: compare the clocks of this machine and of its authority"
    )]
    NotYet { path: PathBuf },
}

impl TlsError {
    /// Whether it may come and go by itself, as time passes.
    #[must_use]
    pub fn is_of_time(&self) -> bool {
        matches!(self, Self::Expired { .. } | Self::NotYet { .. })
    }
}

impl TlsFiles {
    /// Reads the files and sees whether they fit together.
    ///
    /// # Errors
    /// With words that say what to do.
    pub fn load(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let authorities = self.authorities()?;
        let chain = certificates(&self.certificate, "server's certificate")?;
        let key = self.private_key()?;
        self.check(&chain, &authorities, &provider)?;
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&provider))
                .build()
                .map_err(|error: VerifierBuilderError| unusable(&self.client_ca, &error))?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| unusable(&self.certificate, &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    TlsError::OtherKey { key: self.key.clone(), certificate: self.certificate.clone() }
                }
                error => unusable(&self.key, &error),
            })?;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut store = RootCertStore::empty();
        for certificate in certificates(&self.client_ca, "certificate of the clients' authority")? {
            store.add(certificate).map_err(|error| unusable(&self.client_ca, &error))?;
        }
        Ok(store)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let what = "private key";
        let bytes = read(&self.key, what, KEY_MODE_FORBIDDEN)?;
        PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => {
                let hint = " (one with a password cannot be used)";
                TlsError::Nothing { path: self.key.clone(), what, hint }
            }
            // Its words might quote the key.
            _ => TlsError::NotPem { path: self.key.clone(), reason: "it is damaged".into() },
        })
    }

    /// Whether the server's certificate can be used as one, now. Its signature is for clients to
    /// check: its authority need not be that of the clients. Faults that do not depend on the
    /// signature are found first.
    fn check(
        &self,
        chain: &[CertificateDer<'_>],
        authorities: &RootCertStore,
        provider: &CryptoProvider,
    ) -> Result<(), TlsError> {
        let path = || self.certificate.clone();
        let parsed =
            ParsedCertificate::try_from(&chain[0]).map_err(|error| unusable(&self.certificate, &error))?;
        let algorithms = provider.signature_verification_algorithms.all;
        let verdict = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            authorities,
            &chain[1..],
            UnixTime::now(),
            algorithms,
        );
        match verdict {
            Err(rustls::Error::InvalidCertificate(error)) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    Err(TlsError::Expired { path: path() })
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Err(TlsError::NotYet { path: path() })
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    Err(unusable(&self.certificate, &"it was not made for servers (extended key usage)"))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::Unusable { path: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path, what: &'static str, forbidden: u32) -> Result<Vec<u8>, TlsError> {
    let fail = |source| TlsError::Read { path: path.to_owned(), what, source };
    let file = fs::File::open(path).map_err(fail)?;
    let metadata = file.metadata().map_err(fail)?;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & forbidden != 0 {
        return Err(TlsError::Exposed { path: path.to_owned(), mode });
    }
    if metadata.len() > FILE_BYTES_MAX {
        return Err(TlsError::Long { path: path.to_owned(), what });
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    io::Read::read_to_end(&mut io::Read::take(file, FILE_BYTES_MAX), &mut bytes).map_err(fail)?;
    Ok(bytes)
}

/// At least one.
fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read(path, what, 0)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::Nothing { path: path.to_owned(), what, hint: "" }),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::NotPem { path: path.to_owned(), reason: error.to_string() }),
    }
}

/// Why a client did not get in, for the operator.
#[must_use]
pub fn refusal(error: &rustls::Error) -> String {
    use rustls::Error as E;
    let words = match error {
        E::NoCertificatesPresented => {
            "it has no certificate: it needs one that the clients' authority has signed"
        }
        E::InvalidCertificate(certificate) => match certificate {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired: renew it"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "its certificate is not valid yet: compare the clocks of the machines"
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "its certificate is not of the clients' authority: sign it there, or name another authority"
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                "its certificate was not made for clients (extended key usage)"
            }
            other => return format!("its certificate cannot be used: {other}"),
        },
        E::AlertReceived(AlertDescription::UnknownCA | AlertDescription::BadCertificate) => {
            "it does not trust this server's certificate: give it the authority that signed that one"
        }
        E::AlertReceived(AlertDescription::CertificateExpired) => {
            "it says that this server's certificate has expired"
        }
        E::AlertReceived(alert) => return format!("it has ended TLS: {alert:?}"),
        E::PeerIncompatible(_) => "it does not speak TLS 1.3 in a way that is known here",
        E::InvalidMessage(_) => "what it sent is not TLS",
        other => return other.to_string(),
    };
    words.to_owned()
}
