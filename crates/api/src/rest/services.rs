//! Services: what is asked of them, and what they are.

use super::{EventView, FitView, MaintenanceView, ServicePhase};
use serde::{Deserialize, Serialize};

/// A service file (TOML). Applying the same file again changes nothing, unless there are failures
/// to clear.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServiceApply {
    pub toml: String,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Restart it although another program holds the file system. All data written to the file
    /// system is on the device before it is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Refuse if the service has another edition by now: see [`ServiceFile`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub edition: Option<u64>,
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
    /// Each node, and whether the service would run there, in the answer to a dry run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<FitView>,
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
    /// Wall clock of the operator's order to stop, in milliseconds since 1970; none if the service
    /// is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped_ms: Option<u64>,
    /// An operator wants the service restarted, and that is not done yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restarting: bool,
    /// The maintenance because of which Mainstay leaves the service alone, its own or another's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<MaintenanceView>,
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

/// Whether a service is to run. The same wish again changes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceWanted {
    /// `false`: the service stops, and stays stopped until it is wanted again. `true` also clears
    /// its failures.
    pub run: bool,
    /// Whether the service stops although another program holds the file system. All data written
    /// to the file system is on the device before it is taken away.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

/// A restart of a service where it runs. No failure is counted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ServiceRestart {
    /// Name of the process that is restarted, with what was started after it; all processes if
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
}

/// The service file as it counts now.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceFile {
    pub name: String,
    /// With all defaults. Values of environment variables are hidden; in [`ServiceApply`] a hidden
    /// value stays as it is.
    pub toml: String,
    /// Rises with every change.
    pub edition: u64,
}

/// A service file (TOML) that is checked as if it were applied. Nothing is changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceCheck {
    pub toml: String,
}

/// Answer to [`ServiceCheck`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceChecked {
    pub name: String,
    pub resource: String,
    /// Every node that may run the service.
    pub nodes: Vec<ServiceCheckedOn>,
}

/// Answer of one node about a service file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceCheckedOn {
    pub node: String,
    /// Why the node could not be asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<String>,
    /// Parts of the file that would fail there.
    pub problems: Vec<ServiceProblem>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceProblem {
    /// The field as in TOML, for example `process[0].user`.
    pub field: String,
    pub problem: String,
    pub remedy: String,
}

/// Newest output of the processes of a service, from one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceLogs {
    pub node: String,
    pub logs: Vec<ServiceLog>,
}

/// Part of the output of one process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceLog {
    pub process: String,
    pub text: String,
    /// Pass this as `after` for what comes next.
    pub next: String,
    /// Output before `text` was left out, because there is more than one answer may have, or
    /// because it is not there any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
    /// Output of the process that cannot be read, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// Events about a service and about the primaries of its resource, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ServiceHistory {
    pub name: String,
    pub events: Vec<EventView>,
    /// Time from which on events are known, in milliseconds since 1970; none if all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
}
