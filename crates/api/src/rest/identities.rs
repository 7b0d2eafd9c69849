//! Tokens by which machines join, and the authority and certificates of the cluster.

use serde::{Deserialize, Serialize};

/// Longest life of a token, in milliseconds, and the one that a request has without a choice.
const fn token_life_ms() -> u64 {
    24 * 60 * 60 * 1000
}

/// Makes a token by which one machine may join under this name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenCreate {
    /// Name of the node that is to join.
    pub node: String,
    /// Time for which it is good, at most 24 h.
    #[serde(default = "token_life_ms")]
    pub life_ms: u64,
}

/// A token that was made. It is shown in this answer and never again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenMade {
    /// Public half, 16 hexadecimal digits.
    pub id: String,
    pub node: String,
    /// The whole token. Secret.
    pub token: String,
    /// End, in milliseconds since 1970.
    pub until_ms: u64,
    /// Address of the agent that made it.
    pub peer: String,
}

/// State of a token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenStatus {
    Open,
    Used,
    Revoked,
    Ended,
    /// The cluster has replaced the authority that the token names.
    Superseded,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenView {
    /// Public half, 16 hexadecimal digits.
    pub id: String,
    pub node: String,
    pub status: TokenStatus,
    /// Wall clock, in milliseconds since 1970.
    pub made_ms: u64,
    pub until_ms: u64,
}

/// Certificates of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificatesView {
    pub authorities: Vec<AuthorityView>,
    pub nodes: Vec<CertificateView>,
    /// Another authority takes the place of the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotation: Option<RotationView>,
}

/// A rotation of the cluster's authority that is under way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RotationView {
    /// Number of the new authority.
    pub to: u32,
    /// Phase of the new authority: `announced`, then `issues`.
    pub phase: AuthorityPhase,
    /// Beginning of this phase: wall clock, in milliseconds since 1970.
    pub since_ms: u64,
    /// Names of the nodes that it waits for.
    pub waits_for: Vec<String>,
    /// The dead ones of them.
    pub dead: Vec<String>,
}

/// The use that the cluster makes of an authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorityPhase {
    /// To issue when every node believes it.
    Announced,
    /// New certificates come from it.
    Issues,
    /// Its certificates count, and no new ones come from it.
    Believed,
}

/// Lets a rotation go on without these dead nodes. They have to join anew.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LeaveOut {
    /// Names of the nodes.
    pub nodes: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuthorityView {
    pub number: u32,
    /// New certificates come from this authority.
    pub issues: bool,
    /// The use that the cluster makes of it; `null` from an agent of an earlier release.
    #[serde(default)]
    pub phase: Option<AuthorityPhase>,
    /// SHA-256 of its certificate.
    pub fingerprint: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CertificateView {
    pub node: String,
    /// SHA-256 of the node's key.
    pub key: String,
    /// End of the certificate, in milliseconds since 1970. `None`: the node has none yet.
    pub until_ms: Option<u64>,
    /// Number of the authority that gave it.
    pub authority: Option<u32>,
}
