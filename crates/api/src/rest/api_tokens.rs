//! Tokens of the API, and the authority by which clients know the nodes.

use mainstay_types::Access;
use serde::{Deserialize, Serialize};

/// Milliseconds of a day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// Life of a token if none is chosen, in days.
pub const API_TOKEN_DAYS: u64 = 90;
/// Longest life of a token, in days.
pub const API_TOKEN_DAYS_MAX: u64 = 366;

const fn life_ms() -> u64 {
    API_TOKEN_DAYS * DAY_MS
}

/// Makes a token by which a person or a program may use the API from elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiTokenCreate {
    /// Name, which the audit log shows.
    pub name: String,
    /// Right of its holder.
    pub access: Access,
    /// Time for which it is good, at most 366 days. 90 days if nothing is said.
    #[serde(default = "life_ms")]
    pub life_ms: u64,
}

/// A token that was made. It is shown in this answer and never again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiTokenMade {
    pub name: String,
    /// The whole token. Secret.
    pub token: String,
    pub access: Access,
    /// End, in milliseconds since 1970.
    pub until_ms: u64,
}

/// A token without its secret.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApiTokenView {
    pub name: String,
    /// Public half, 16 hexadecimal digits.
    pub id: String,
    pub access: Access,
    pub made_ms: u64,
    pub until_ms: u64,
    /// The token has ended.
    pub ended: bool,
    /// Last use, to the hour; none if it was not used yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used_ms: Option<u64>,
}

/// The authorities from which the servers of the nodes have their certificates, unless they show
/// others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuthoritiesView {
    /// SHA-256 of the certificate of the authority that gives certificates now.
    pub fingerprint: String,
    /// Certificates in PEM form, the one that gives certificates now first.
    pub certificates: Vec<String>,
}
