//! Identities of nodes: the authority of a cluster, certificates, tokens, and TLS between nodes
//! (R23); and what clients of the API need to know a node, and a node to know them.
//!
//! Guarantees
//! - A peer is a member only if its certificate comes from an authority of the record, names this
//!   cluster and a node of it, and is for the key that the record has of that node. Names and
//!   addresses decide nothing.
//! - A certificate that has ended gives a known member access to one thing: a new certificate. One
//!   that is not valid yet gives none. A node that has left may learn that.
//! - Only TLS 1.3, and both ends prove their keys. There is no other way in and no fall-back.
//! - The key of the authority leaves a process only sealed, and tokens are recorded as hashes. Keys
//!   and secrets are wiped from memory and shown nowhere.
//!
//! What this does not guarantee: a node that was a member once may have kept the seal and with it
//! the authority's key. It cannot speak as any node, because the record has each node's key. It
//! could deceive a machine that joins, until the authority is replaced.

pub mod api_token;
pub mod authority;
pub mod https;
pub mod key;
pub mod peer;
pub mod pem;
mod records;
pub mod seal;
pub mod server_certificate;
pub mod session;
pub mod subject;
pub mod tls;
pub mod token;

pub use api_token::{ApiToken, BadApiToken};
pub use authority::{Authority, Issued, LIFE_MS, RENEWAL_MS, is_due, newcomer};
pub use key::{Key, PublicKey, fingerprint_of};
pub use peer::{Expect, Peer, Refusal, Trust};
pub use rustls::pki_types::CertificateDer;
pub use seal::SealKey;
pub use server_certificate::ServerNames;
pub use session::{Payloads, Session, SessionError};
pub use subject::Subject;
pub use tls::{Credentials, Outcome};
pub use token::{BadToken, Token};
pub use zeroize::Zeroizing;

/// Reasons why something of this crate cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("the kernel gives no randomness")]
    Randomness,
    #[error("this is no key of the kind that is used here")]
    BadKey,
    #[error("the authority's key cannot be opened with the seal of this node")]
    NotSealedHere,
    #[error("the clock of this node is outside of what certificates can say")]
    Clock,
    #[error("a certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}
