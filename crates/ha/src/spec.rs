//! The description of a service, as the operator writes it in TOML.
//!
//! [`ServiceSpec::parse`] is the only way in from text. Each specification that it returns has
//! passed [`ServiceSpec::validate`], so no later code has to check again. Unknown fields are
//! refused: a mistyped name must not silently become a default.

use crate::fields;
use crate::mkfs;
use crate::ocf::Ocf;
use crate::options::{MountOption, OPTIONS_BYTES_MAX, mount_options};
use crate::pages::Pages;
use crate::placement::{Placement, name_or_names, names_field};
use crate::probe::Probe;
use crate::system::system_directory;
use crate::unit;
use crate::vip::{self, Vip};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Most processes of one service.
pub const PROCESSES_MAX: usize = 16;
/// Longest time that a step may be given, in seconds.
pub const TIMEOUT_S_MAX: u64 = 3600;
/// Longest interval and time limit of a probe, in seconds.
const PROBE_S_MAX: u64 = 300;
const PROBE_FAILURES_MAX: u32 = 100;
/// Longest name of a user, in bytes; as useradd(8) has it.
const USER_BYTES_MAX: usize = 32;
/// Longest specification that is parsed, in bytes.
pub const SPEC_BYTES_MAX: usize = 64 << 10;

/// Fault of a specification, in words for the operator.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The field as it is written in TOML, for example `process[0].command`, with its line where
    /// the type or the name is wrong; `line 3` when the text could not be read at all.
    pub field: String,
    pub problem: String,
    pub remedy: String,
}

impl SpecError {
    pub(crate) fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), remedy: remedy.into() }
    }
}

/// A service: started on the primary of `resource` in the order mount, processes, address; stopped
/// in reverse.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSpec {
    pub name: String,
    /// Name of the resource whose primary runs the service.
    pub resource: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount: Option<Mount>,
    /// Started in this order.
    #[serde(default, rename = "process", skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
    /// Taken and given up together; in this order.
    #[serde(default, rename = "vip", with = "vip::one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub vips: Vec<Vip>,
    #[serde(default, skip_serializing_if = "Placement::is_empty")]
    pub placement: Placement,
    #[serde(default)]
    pub policy: Policy,
}

/// A file system on a volume of the resource.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mount {
    #[serde(default)]
    pub volume: u16,
    pub path: String,
    #[serde(default = "default_fstype")]
    pub fstype: String,
    /// Mount options, as for mount(8) `-o`; empty for none.
    #[serde(default)]
    pub options: String,
    /// Make the file system if the volume is blank.
    #[serde(default)]
    pub mkfs: bool,
    /// Options of the program that makes the file system, each with its value as the next word.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mkfs_options: Vec<String>,
    /// Mount over a directory that has files in it: they are out of sight until it is unmounted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hide_files: bool,
    /// Make the file system as large as the volume, when it is mounted and when the volume grows.
    #[serde(default = "default_grow")]
    pub grow: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    pub name: String,
    /// Program and arguments; no shell is involved. Stays in the foreground. Empty only where
    /// something else is run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Resource agent that is run instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ocf: Option<Ocf>,
    /// Unit of systemd that is started instead of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// Runs to its end before `command` is started, each time the service starts: must be
    /// idempotent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// User that runs `prepare`; `user` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepare_user: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// How long `prepare` and, after the start, readiness may take, each.
    #[serde(default = "default_start_timeout_s")]
    pub start_timeout_s: u64,
    /// How long the process may take to end after `stop_signal`, before it is killed.
    #[serde(default = "default_stop_timeout_s")]
    pub stop_timeout_s: u64,
    #[serde(default = "default_stop_signal")]
    pub stop_signal: String,
    /// When the process counts as ready. If absent, when its probe finds it healthy, or at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
    /// How the process is asked, while it runs, whether it answers; not at all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// From the beginning of a probe to that of the next one, in seconds.
    #[serde(default = "default_probe_interval_s")]
    pub probe_interval_s: u64,
    /// How long one probe may take, in seconds.
    #[serde(default = "default_probe_timeout_s")]
    pub probe_timeout_s: u64,
    /// Probes that fail in a row before the process is restarted.
    #[serde(default = "default_probe_failures")]
    pub probe_failures: u32,
    /// Arguments that count only while no page of its files can tear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Pages>,
}

/// A test that is repeated until it succeeds or `start_timeout_s` is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ready {
    /// Exits with 0.
    Command(Vec<String>),
    /// `host:port` accepts a connection.
    Tcp(String),
    /// The process has lived for this many seconds.
    #[serde(alias = "delay")]
    DelayS(u64),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Restarts on the same node within `window_s` before the service goes to another node.
    #[serde(default = "default_restart_limit")]
    pub restart_limit: u32,
    #[serde(default = "default_window_s")]
    pub window_s: u64,
    /// Names of the nodes that are chosen first when there is a choice, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "name_or_names")]
    pub preferred: Vec<String>,
    /// Go to a node that is preferred to the present one as soon as it is in sync.
    #[serde(default)]
    pub failback: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            restart_limit: default_restart_limit(),
            window_s: default_window_s(),
            preferred: Vec::new(),
            failback: false,
        }
    }
}

fn default_grow() -> bool {
    true
}

fn default_fstype() -> String {
    "xfs".into()
}
fn default_start_timeout_s() -> u64 {
    60
}
fn default_stop_timeout_s() -> u64 {
    30
}
fn default_stop_signal() -> String {
    "SIGTERM".into()
}
fn default_probe_interval_s() -> u64 {
    2
}
fn default_probe_timeout_s() -> u64 {
    3
}
fn default_probe_failures() -> u32 {
    3
}
fn default_restart_limit() -> u32 {
    3
}
fn default_window_s() -> u64 {
    600
}

/// Signals that may be used to stop a process, with their numbers on Linux.
const STOP_SIGNALS: [(&str, i32); 7] = [
    ("SIGTERM", 15),
    ("SIGINT", 2),
    ("SIGQUIT", 3),
    ("SIGHUP", 1),
    ("SIGUSR1", 10),
    ("SIGUSR2", 12),
    ("SIGKILL", 9),
];

impl Process {
    /// The number of `stop_signal`; SIGTERM if the name is unknown, which validation excludes.
    #[must_use]
    pub fn stop_signal_number(&self) -> i32 {
        STOP_SIGNALS.iter().find(|(name, _)| *name == self.stop_signal).map_or(15, |(_, number)| *number)
    }

    /// From one look at the process to the next, in milliseconds.
    pub(crate) fn probe_interval_ms(&self) -> u64 {
        self.ocf.as_ref().map_or(self.probe_interval_s, |ocf| ocf.monitor_interval_s).saturating_mul(1000)
    }

    /// How long one look at the process may take, in seconds.
    #[must_use]
    pub fn look_timeout_s(&self) -> u64 {
        self.ocf.as_ref().map_or(self.probe_timeout_s, |ocf| ocf.monitor_timeout_s)
    }

    /// The same in milliseconds.
    pub(crate) fn probe_timeout_ms(&self) -> u64 {
        self.look_timeout_s().saturating_mul(1000)
    }

    /// Looks that fail in a row before the process is restarted.
    pub(crate) fn failures_max(&self) -> u32 {
        self.ocf.as_ref().map_or(self.probe_failures, |ocf| ocf.monitor_failures)
    }

    /// Whether it is looked at while it runs, by its probe or the monitor of its agent.
    pub(crate) fn is_probed(&self) -> bool {
        self.probe.is_some() || self.ocf.is_some()
    }

    /// Whether its start ends with a readiness test.
    pub(crate) fn is_tested(&self) -> bool {
        self.ready.is_some() || self.is_probed() || self.unit.is_some()
    }
}

/// Whether `name` can name a node, a resource, a service or a process: they become parts of paths.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
}

const NAME_REMEDY: &str = "use 1 to 32 of a-z, 0-9 and '-', not starting with '-'";

impl ServiceSpec {
    /// Parses and validates.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        if text.len() > SPEC_BYTES_MAX {
            return Err(SpecError::new(
                "file",
                format!("longer than {SPEC_BYTES_MAX} bytes"),
                "check that this is a service file",
            ));
        }
        let wrong = |path: &str, error: &toml::de::Error| {
            let before = error.span().map(|span| &text.as_bytes()[..span.start.min(text.len())]);
            let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
            fields::error(path, error.message(), line)
        };
        let document = toml::Deserializer::parse(text).map_err(|error| wrong("", &error))?;
        let spec: Self = serde_path_to_error::deserialize(document).map_err(|error| {
            let path = error.path().to_string();
            wrong(if path == "." { "" } else { &path }, error.inner())
        })?;
        spec.validate()?;
        Ok(spec)
    }

    /// Whether it has fields that builds below feature level 2 do not know.
    #[must_use]
    pub fn uses_level_2(&self) -> bool {
        self.mount.as_ref().is_some_and(|mount| !mount.mkfs_options.is_empty())
            || self.processes.iter().any(|process| process.pages.is_some())
    }

    /// Checks everything that can be checked without a node.
    pub fn validate(&self) -> Result<(), SpecError> {
        name_field("name", &self.name)?;
        name_field("resource", &self.resource)?;
        if self.mount.is_none() && self.processes.is_empty() && self.vips.is_empty() {
            return Err(SpecError::new(
                "service",
                "there is nothing to run",
                "add [mount], [[process]] or [vip]",
            ));
        }
        if let Some(mount) = &self.mount {
            mount.validate()?;
        }
        if self.processes.len() > PROCESSES_MAX {
            return Err(SpecError::new(
                "process",
                format!("more than {PROCESSES_MAX} processes"),
                "split the service or start helpers from one process",
            ));
        }
        let (mut names, mut units) = (BTreeSet::new(), BTreeSet::new());
        for (i, process) in self.processes.iter().enumerate() {
            process.validate(&format!("process[{i}]"))?;
            if let Some(pages) = &process.pages {
                let mount = self.mount.as_ref().map(|mount| mount.path.as_str());
                pages.validate(&format!("process[{i}].pages"), mount, !process.command.is_empty())?;
            }
            if !names.insert(&process.name) {
                return Err(SpecError::new(
                    format!("process[{i}].name"),
                    format!("'{}' is used twice", process.name),
                    "give every process its own name",
                ));
            }
            if let Some(unit) = process.unit.as_ref().filter(|unit| !units.insert(*unit)) {
                return Err(SpecError::new(
                    format!("process[{i}].unit"),
                    format!("{unit} is used twice"),
                    "remove one of the two; a template has several instances",
                ));
            }
        }
        vip::validate(&self.vips)?;
        if self.policy.restart_limit > 100 {
            return Err(SpecError::new("policy.restart_limit", "more than 100", "use 0 to 100"));
        }
        if self.policy.window_s == 0 || self.policy.window_s > 86_400 {
            return Err(SpecError::new("policy.window_s", "out of range", "use 1 to 86400"));
        }
        names_field("policy.preferred", &self.policy.preferred)?;
        if self.policy.preferred.is_empty() && self.policy.failback {
            return Err(SpecError::new(
                "policy.failback",
                "there is no node to go back to",
                "name it in policy.preferred",
            ));
        }
        self.placement.validate(&self.name)
    }
}

impl Mount {
    fn validate(&self) -> Result<(), SpecError> {
        let path_is_plain = self.path.starts_with('/')
            && self.path.len() > 1
            && self.path.len() <= 1024
            && !self.path.contains(char::is_control)
            && self.path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
        if !path_is_plain {
            return Err(SpecError::new(
                "mount.path",
                format!("'{}' is not a plain absolute path", self.path),
                "write it like \"/srv/db\", without '.', '..' or a trailing '/'",
            ));
        }
        if let Some(system) = system_directory(&self.path) {
            let problem = if system == self.path {
                format!("{system} is a directory that the system needs as it is")
            } else {
                format!("{} would lie in or over {system}, which the system needs as it is", self.path)
            };
            return Err(SpecError::new(
                "mount.path",
                problem,
                "give the service a directory of its own, for example \"/srv/db\"; a program that wants another path can have a \
                 link there",
            ));
        }
        if self.fstype.is_empty() || !self.fstype.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(SpecError::new(
                "mount.fstype",
                format!("'{}' is not a file system type", self.fstype),
                "use for example \"xfs\" or \"ext4\"",
            ));
        }
        mkfs::validate(&self.fstype, self.mkfs, &self.mkfs_options)?;
        self.validate_options()
    }

    fn validate_options(&self) -> Result<(), SpecError> {
        let field = "mount.options";
        if self.options.len() > OPTIONS_BYTES_MAX {
            let problem = format!("longer than {OPTIONS_BYTES_MAX} bytes");
            return Err(SpecError::new(field, problem, "leave options out"));
        }
        if self.options.contains(|c: char| c.is_control()) {
            let problem = "contains a control character";
            return Err(SpecError::new(field, problem, "write options as for mount(8), separated by commas"));
        }
        let parts = self.options.split(',').map(str::trim).filter(|part| !part.is_empty());
        for (part, option) in parts.zip(mount_options(&self.options)) {
            match option {
                MountOption::Refused { why, remedy } => {
                    return Err(SpecError::new(field, format!("'{part}' cannot be used: {why}"), remedy));
                }
                MountOption::FileSystem(text) if text.contains(char::is_whitespace) => {
                    let problem = format!("'{part}' contains a space");
                    return Err(SpecError::new(field, problem, "separate options by commas"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl Process {
    /// Checks that it is said what runs, once, with the fields that go with it.
    fn validate_runner(&self, field: &str) -> Result<(), SpecError> {
        let runs = [
            ("command", !self.command.is_empty()),
            ("ocf", self.ocf.is_some()),
            ("unit", self.unit.is_some()),
        ];
        let mut named = runs.iter().filter(|(_, is_named)| *is_named).map(|(name, _)| *name);
        if let (Some(one), Some(other)) = (named.next(), named.next()) {
            return Err(SpecError::new(
                format!("{field}.{other}"),
                format!("there is {one} too, and an entry runs one of them"),
                format!("remove {one} or {other}, or make a second [[process]] of it"),
            ));
        }
        if let Some(unit) = &self.unit {
            Self::refuse_fields(
                field,
                "unit",
                &[
                    ("user", self.user.is_some(), "the unit names its user"),
                    (
                        "env",
                        !self.env.is_empty(),
                        "the environment of the unit counts; change it with `systemctl edit`",
                    ),
                    (
                        "stop_signal",
                        self.stop_signal != default_stop_signal(),
                        "the unit's KillSignal= counts",
                    ),
                ],
            )?;
            return unit::validate(&format!("{field}.unit"), unit);
        }
        let Some(ocf) = &self.ocf else {
            if self.command.is_empty() {
                return Err(SpecError::new(
                    format!("{field}.command"),
                    "there is nothing to run: the field is missing or empty",
                    "add it; write it like `command = [\"/usr/sbin/mysqld\", \"--datadir=/srv/db\"]`; a resource agent is run with `ocf`, a unit of systemd with `unit`",
                ));
            }
            return command_field(&format!("{field}.command"), &self.command);
        };
        Self::refuse_fields(
            field,
            "ocf",
            &[
                (
                    "user",
                    self.user.is_some(),
                    "agents run as root, and a parameter of the agent names the user of its program",
                ),
                (
                    "ready",
                    self.ready.is_some(),
                    "it is ready when the agent's start has ended and its monitor finds it running",
                ),
                ("probe", self.probe.is_some(), "the agent's monitor is its probe"),
                ("stop_signal", self.stop_signal != default_stop_signal(), "the agent's stop ends it"),
            ],
        )?;
        ocf.validate(&format!("{field}.ocf"))
    }

    /// Refuses fields that have no meaning beside `runner`: their names, whether they are written,
    /// and why.
    fn refuse_fields(field: &str, runner: &str, fields: &[(&str, bool, &str)]) -> Result<(), SpecError> {
        match fields.iter().find(|(_, is_set, _)| *is_set) {
            None => Ok(()),
            Some((name, _, why)) => Err(SpecError::new(
                format!("{field}.{name}"),
                format!("it cannot be used with {runner}"),
                format!("remove the line: {why}"),
            )),
        }
    }

    fn validate(&self, field: &str) -> Result<(), SpecError> {
        name_field(&format!("{field}.name"), &self.name)?;
        self.validate_runner(field)?;
        if !self.prepare.is_empty() {
            command_field(&format!("{field}.prepare"), &self.prepare)?;
        }
        for (name, seconds) in
            [("start_timeout_s", self.start_timeout_s), ("stop_timeout_s", self.stop_timeout_s)]
        {
            if seconds == 0 || seconds > TIMEOUT_S_MAX {
                return Err(SpecError::new(
                    format!("{field}.{name}"),
                    format!("{seconds} is out of range"),
                    format!("use 1 to {TIMEOUT_S_MAX} seconds"),
                ));
            }
        }
        for (name, seconds) in
            [("probe_interval_s", self.probe_interval_s), ("probe_timeout_s", self.probe_timeout_s)]
        {
            if seconds == 0 || seconds > PROBE_S_MAX {
                return Err(SpecError::new(
                    format!("{field}.{name}"),
                    format!("{seconds} is out of range"),
                    format!("use 1 to {PROBE_S_MAX} seconds"),
                ));
            }
        }
        if self.probe_failures == 0 || self.probe_failures > PROBE_FAILURES_MAX {
            return Err(SpecError::new(
                format!("{field}.probe_failures"),
                format!("{} is out of range", self.probe_failures),
                format!("use 1 to {PROBE_FAILURES_MAX}"),
            ));
        }
        if let Some(probe) = &self.probe {
            probe.validate(&format!("{field}.probe"))?;
        }
        if !STOP_SIGNALS.iter().any(|(name, _)| *name == self.stop_signal) {
            let known: Vec<&str> = STOP_SIGNALS.iter().map(|(name, _)| *name).collect();
            return Err(SpecError::new(
                format!("{field}.stop_signal"),
                format!("'{}' is not known", self.stop_signal),
                format!("use one of {}", known.join(", ")),
            ));
        }
        let strange = |c: char| c.is_control() || c.is_whitespace();
        user_field(&format!("{field}.user"), self.user.as_ref())?;
        user_field(&format!("{field}.prepare_user"), self.prepare_user.as_ref())?;
        if self.prepare_user.is_some() && self.prepare.is_empty() {
            return Err(SpecError::new(
                format!("{field}.prepare_user"),
                "there is no prepare that this user could run",
                "remove the line, or add prepare",
            ));
        }
        let named = |name: &String| !name.is_empty() && !name.contains('=') && !name.contains(strange);
        if let Some(bad) = self.env.keys().find(|name| !named(name)) {
            return Err(SpecError::new(
                format!("{field}.env"),
                format!("{bad:?} is not a variable name"),
                "use a name without '=', spaces and control characters",
            ));
        }
        if let Some((name, _)) = self.env.iter().find(|(_, value)| value.contains('\0')) {
            return Err(SpecError::new(
                format!("{field}.env.{name}"),
                "the value contains a NUL character, which no variable can hold",
                "remove it",
            ));
        }
        match &self.ready {
            None => Ok(()),
            Some(Ready::Command(command)) => command_field(&format!("{field}.ready.command"), command),
            Some(Ready::Tcp(target)) => {
                let port = Some(target)
                    .filter(|target| !target.contains(strange))
                    .and_then(|target| target.rsplit_once(':'))
                    .and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok()).flatten());
                if port.is_none_or(|port| port == 0) {
                    return Err(SpecError::new(
                        format!("{field}.ready.tcp"),
                        format!("'{target}' is not host:port"),
                        "write it like \"127.0.0.1:3306\"",
                    ));
                }
                Ok(())
            }
            Some(Ready::DelayS(seconds)) if *seconds >= self.start_timeout_s => Err(SpecError::new(
                format!("{field}.ready.delay_s"),
                format!("{seconds} s is not less than start_timeout_s ({} s)", self.start_timeout_s),
                "raise start_timeout_s or shorten the delay",
            )),
            Some(Ready::DelayS(_)) => Ok(()),
        }
    }
}

fn user_field(field: &str, user: Option<&String>) -> Result<(), SpecError> {
    let strange = |c: char| c.is_control() || c.is_whitespace() || c == ':' || c == '/';
    let wrong = |user: &&String| user.is_empty() || user.len() > USER_BYTES_MAX || user.contains(strange);
    match user.filter(wrong) {
        None => Ok(()),
        Some(user) => Err(SpecError::new(
            field,
            format!("{user:?} is not a user name"),
            "name a user as `getent passwd` shows it, or leave the field out for root",
        )),
    }
}

pub(crate) fn name_field(field: &str, name: &str) -> Result<(), SpecError> {
    if valid_name(name) {
        Ok(())
    } else {
        Err(SpecError::new(field, format!("'{name}' is not a valid name"), NAME_REMEDY))
    }
}

pub(crate) fn command_field(field: &str, command: &[String]) -> Result<(), SpecError> {
    match command.first() {
        None => {
            Err(SpecError::new(field, "is empty", "give the program and its arguments as a list of strings"))
        }
        Some(program) if program.is_empty() => {
            Err(SpecError::new(field, "the program is an empty string", "name a program"))
        }
        Some(_) if command.iter().any(|argument| argument.contains('\0')) => {
            Err(SpecError::new(field, "contains a NUL character", "remove it"))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
name = "db"
resource = "db"
[mount]
volume = 0
path = "/srv/db"
fstype = "xfs"
options = "noatime"
mkfs = true
[[process]]
name = "mysqld"
command = ["/usr/sbin/mysqld", "--datadir=/srv/db/data"]
prepare = ["/usr/local/bin/init-db"]
user = "mysql"
env = { TZ = "UTC" }
start_timeout_s = 120
stop_timeout_s = 60
stop_signal = "SIGTERM"
ready = { tcp = "127.0.0.1:3306" }
[vip]
address = "10.213.1.100/24"
[policy]
restart_limit = 2
window_s = 300
preferred = "alpha"
"#;

    #[test]
    fn a_full_specification_survives_json() {
        let spec = ServiceSpec::parse(FULL).unwrap();
        assert_eq!(spec.processes[0].ready, Some(Ready::Tcp("127.0.0.1:3306".into())));
        assert_eq!(spec.vips[0].parsed().unwrap().prefix, 24);
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
    }

    #[test]
    fn defaults_are_filled_in() {
        let spec = ServiceSpec::parse("name='a'\nresource='r'\n[mount]\npath='/srv/a'\n").unwrap();
        assert_eq!(spec.mount.unwrap().fstype, "xfs");
        assert_eq!(spec.policy, Policy::default());
    }

    #[test]
    fn all_forms_of_readiness_are_read() {
        for (text, ready) in [
            ("{ delay_s = 3 }", Ready::DelayS(3)),
            ("{ delay = 3 }", Ready::DelayS(3)),
            ("{ command = ['/bin/true'] }", Ready::Command(vec!["/bin/true".into()])),
        ] {
            let spec = ServiceSpec::parse(&FULL.replace("{ tcp = \"127.0.0.1:3306\" }", text)).unwrap();
            assert_eq!(spec.processes[0].ready, Some(ready));
        }
    }

    #[test]
    fn every_error_names_its_field_and_a_remedy() {
        for (from, to, field) in [
            ("name = \"db\"\nresource", "name = \"DB\"\nresource", "name"),
            ("path = \"/srv/db\"", "path = \"srv/../db\"", "mount.path"),
            ("path = \"/srv/db\"", "", "mount.path"),
            ("stop_signal = \"SIGTERM\"", "stop_signal = \"TERM\"", "process[0].stop_signal"),
            ("10.213.1.100/24", "10.213.1.100", "vip.address"),
            ("10.213.1.100/24", "10.213.1.100/33", "vip.address"),
            ("user = \"mysql\"", "usr = \"mysql\"", "process[0].usr (line "),
            ("start_timeout_s = 120", "start_timeout_s = 0", "process[0].start_timeout_s"),
            ("127.0.0.1:3306", "3306", "process[0].ready.tcp"),
            ("{ tcp = \"127.0.0.1:3306\" }", "{ delay_s = 120 }", "process[0].ready.delay_s"),
            ("preferred = \"alpha\"", "failback = true", "policy.failback"),
            ("[\"/usr/sbin/mysqld\", \"--datadir=/srv/db/data\"]", "[]", "process[0].command"),
            ("window_s = 300", "window_s = \"x\"", "policy.window_s (line 2"),
            ("\"noatime\"", "\"noatime,users\"", "mount.options"),
            ("\"noatime\"", "\"no\\natime\"", "mount.options"),
            ("\"noatime\"", "\"remount,noatime\"", "mount.options"),
            ("\"noatime\"", "\"noatime nodev\"", "mount.options"),
            ("\"/srv/db\"\nfstype", "\"/srv/d\\nb\"\nfstype", "mount.path"),
            ("TZ = \"UTC\"", "TZ = \"U\\u0000C\"", "process[0].env.TZ"),
            ("TZ = \"UTC\"", "\"T\\nZ\" = \"UTC\"", "process[0].env"),
            ("user = \"mysql\"", "user = \"my\\u0000sql\"", "process[0].user"),
            ("user = \"mysql\"", "user = \"my sql\"", "process[0].user"),
            ("user = \"mysql\"", "prepare_user = \"my:sql\"", "process[0].prepare_user"),
            ("prepare = [\"/usr/local/bin/init-db\"]", "prepare_user = \"root\"", "process[0].prepare_user"),
            ("127.0.0.1:3306", "127.0.0.1\\u0000:3306", "process[0].ready.tcp"),
            ("10.213.1.100/24\"", "10.213.1.100/24\"\ninterface = \"eth\\u0007\"", "vip.interface"),
            ("\"/usr/local/bin/init-db\"", "\"/usr\\u0000\"", "process[0].prepare"),
        ] {
            let text = FULL.replacen(from, to, 1);
            assert_ne!(text, FULL, "the test did not change {from}");
            let error = ServiceSpec::parse(&text).unwrap_err();
            assert!(error.field.starts_with(field), "{error} names {} and not {field}", error.field);
            assert!(!error.remedy.is_empty());
        }
    }

    #[test]
    fn an_entry_runs_one_thing_with_the_fields_that_go_with_it() {
        let parsed = |lines: &str| {
            ServiceSpec::parse(&format!("name='a'\nresource='r'\n[[process]]\nname='p'\n{lines}\n"))
        };
        let good = parsed("unit='a.service'\nprepare=['/bin/true']\nready={tcp='127.0.0.1:1'}").unwrap();
        assert_eq!(good.processes[0].unit.as_deref(), Some("a.service"));
        assert!(good.processes[0].is_tested(), "its start is waited for");
        let two = "unit='a.service'\n[[process]]\nname='q'\nunit=";
        for (lines, field, word) in [
            ("unit='a.service'\ncommand=['/a']", "process[0].unit", "command too"),
            ("unit='a.service'\nocf={agent='ocf:a:b'}", "process[0].unit", "ocf too"),
            ("command=['/a']\nocf={agent='ocf:a:b'}", "process[0].ocf", "command too"),
            ("unit='a.service'\nuser='root'", "process[0].user", "with unit"),
            ("unit='a.service'\nenv={A='b'}", "process[0].env", "with unit"),
            ("unit='a.service'\nstop_signal='SIGINT'", "process[0].stop_signal", "with unit"),
            ("unit='a.socket'", "process[0].unit", "ending"),
            (&format!("{two}'a.service'"), "process[1].unit", "twice"),
            ("", "process[0].command", "nothing to run"),
        ] {
            let error = parsed(lines).expect_err(lines);
            assert!(error.field == field && error.problem.contains(word), "{lines}: {error}");
        }
        assert!(parsed(&format!("{two}'b.service'")).is_ok());
    }

    #[test]
    fn names_are_safe_in_paths() {
        for bad in ["", ".", "..", "a/b", "-a", "A", "a b", &"x".repeat(33)] {
            assert!(!valid_name(bad), "{bad}");
        }
        assert!(valid_name("db-1"));
    }
}
