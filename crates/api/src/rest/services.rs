//! Services: what is asked of them, and what they are.

use super::ServicePhase;
use serde::{Deserialize, Serialize};

/// A service file (TOML). Applying the same file again changes nothing, unless there are failures
/// to clear.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceApply {
    pub toml: String,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Restart it although another program holds the file system. All data written to the file
    /// system is on the device before it is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// Effect of applying a service file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServiceEffect {
    Created,
    /// The service is the same already, and there is no failure to clear.
    Unchanged,
    /// The specification is the same; failures on some nodes do not count any more.
    FailuresCleared,
    /// The specification changes, and running processes go on.
    ChangedInPlace,
    /// The running service is stopped, and started by the new specification.
    Restarted,
}

/// A field of a service that gets another value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceChange {
    /// Name of the field as in TOML, for example `process[0].command`.
    pub field: String,
    /// `not set` for none. Values of environment variables are not told.
    pub from: String,
    pub to: String,
    /// Whether the change stops and starts the running service.
    pub restarts: bool,
}

/// Answer to [`ServiceApply`]: the service as it is then, or, of a dry run, as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceApplied {
    #[serde(flatten)]
    pub service: ServiceView,
    pub effect: ServiceEffect,
    pub changes: Vec<ServiceChange>,
    /// Requirements of the service that single nodes do not meet, and nodes that could not be
    /// asked, one text each.
    pub warnings: Vec<String>,
    pub dry_run: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceMove {
    /// Name of the node.
    pub to: String,
    /// Whether the service moves although another program holds the file system. All data written
    /// to the file system is on the device before it is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceView {
    pub name: String,
    pub resource: String,
    /// Node that should run it now: the primary's.
    pub node: Option<String>,
    /// Phase that was reported last.
    pub phase: ServicePhase,
    pub phase_node: Option<String>,
    /// Step that the node takes, or waits for, while the service starts or stops.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub doing: String,
    /// Whether `phase` is about the specification that was applied last. False until the node that
    /// should run the service has taken that up.
    #[serde(default)]
    pub current: bool,
    pub vip: Option<String>,
    pub deleting: bool,
    pub failures: Vec<ServiceFailure>,
    pub advice: Vec<String>,
    /// Hindrances of a service that runs and is of no use, as its node has just measured them, with
    /// their age and what to do. Not in the answers to changes, and not in `GET /v1/services`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hindrances: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceFailure {
    pub node: String,
    pub count: u32,
    /// Wall clock of the last one in milliseconds since 1970; none if it was not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    pub reason: String,
}
