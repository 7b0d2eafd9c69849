//! The audit log: each change that somebody asked for.

use mainstay_types::{Access, Code};
use serde::{Deserialize, Serialize};

/// Answer to a request for the audit log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditPage {
    /// Oldest first.
    pub records: Vec<AuditView>,
    /// Number of the newest record of the cluster.
    pub last: u64,
    /// Records after the asked number were dropped from the bounded log.
    pub gap: bool,
}

/// A request that changes something.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AuditView {
    /// Rises by one with each record.
    pub number: u64,
    pub at_ms: u64,
    /// User who asked, or `token` and the name of a token.
    pub who: String,
    /// Address from which the request came, if it came over TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// User who had logged in, if that is another one, as with `sudo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login: Option<String>,
    /// Right that the user has.
    pub access: Access,
    /// Node whose agent was asked.
    pub node: String,
    /// Method and path.
    pub action: String,
    /// The request as JSON, without values that may be secrets; at most 512 bytes. If the path has
    /// the id of something and no name, `about` says what that is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub body: String,
    /// Random id of the request.
    pub request: String,
    /// From the request to its answer, in milliseconds; none if the result is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// HTTP status of the answer; none if the agent ended before it wrote the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Code of the refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
}
