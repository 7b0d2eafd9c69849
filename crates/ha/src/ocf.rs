//! OCF resource agents as a service file names them, and what their meta-data and exit codes mean.
//!
//! Guarantees
//! - A parameter that an agent does not have, and one that it needs and that is missing, is found
//!   from its meta-data before anything runs.
//! - An agent whose work Mainstay itself does, and could not silence at the end of a lease if the
//!   agent did it (R19), is refused with the field that does the same.
//! - An agent that Pacemaker promotes is refused: a resource has one primary, and Mainstay chooses
//!   it.
//!
//! Exit codes are those of the OCF Resource Agent API 1.1, section 3.3.

use crate::spec::SpecError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where the agents of a distribution are, unless `env.OCF_ROOT` of a process says otherwise.
pub const OCF_ROOT: &str = "/usr/lib/ocf";
/// Most parameters of one agent.
const PARAMS_MAX: usize = 100;
/// Longest interval and time limit of a monitor, in seconds.
const MONITOR_S_MAX: u64 = 3600;
const MONITOR_FAILURES_MAX: u32 = 100;

/// A resource agent of Pacemaker, used as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ocf {
    /// `ocf:PROVIDER:TYPE`.
    pub agent: String,
    /// Its parameters, without `OCF_RESKEY_`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, String>,
    /// From the beginning of a monitor to that of the next one, in seconds.
    #[serde(default = "default_monitor_interval_s")]
    pub monitor_interval_s: u64,
    /// How long one monitor may take, in seconds.
    #[serde(default = "default_monitor_timeout_s")]
    pub monitor_timeout_s: u64,
    /// Monitors that fail in a row before the process is restarted. One that finds it not running
    /// restarts it at once.
    #[serde(default = "default_monitor_failures")]
    pub monitor_failures: u32,
}

fn default_monitor_interval_s() -> u64 {
    10
}
fn default_monitor_timeout_s() -> u64 {
    20
}
fn default_monitor_failures() -> u32 {
    2
}

/// Agents whose work a field of the service file does, under the guard of the lease.
const OWN_WORK: [(&str, &str); 7] = [
    ("ocf:heartbeat:Filesystem", "[mount]"),
    ("ocf:heartbeat:IPaddr", "[vip]"),
    ("ocf:heartbeat:IPaddr2", "[vip]"),
    ("ocf:heartbeat:IPv6addr", "[vip]"),
    ("ocf:heartbeat:IPsrcaddr", "[vip]"),
    ("ocf:heartbeat:Raid1", "[mount]"),
    ("ocf:linbit:drbd", "the resource of Mainstay itself"),
];

/// Agents that can be promoted and need not be: a parameter says so, with the value that it has if
/// it is not written.
const RUN_ALONE: [(&str, &str, &str); 2] =
    [("ocf:heartbeat:pgsql", "rep_mode", "none"), ("ocf:heartbeat:mysql", "replication_user", "root")];

impl Ocf {
    /// An agent with these parameters, and with the defaults for its monitor.
    #[must_use]
    pub fn new(agent: impl Into<String>, params: BTreeMap<String, String>) -> Self {
        Self {
            agent: agent.into(),
            params,
            monitor_interval_s: default_monitor_interval_s(),
            monitor_timeout_s: default_monitor_timeout_s(),
            monitor_failures: default_monitor_failures(),
        }
    }

    /// Provider and type.
    #[must_use]
    pub fn names(&self) -> Option<(&str, &str)> {
        let (provider, kind) = self.agent.strip_prefix("ocf:")?.split_once(':')?;
        let plain = |name: &str| {
            !name.is_empty()
                && !name.starts_with('.')
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        (plain(provider) && plain(kind)).then_some((provider, kind))
    }

    pub(crate) fn validate(&self, field: &str) -> Result<(), SpecError> {
        let agent = format!("{field}.agent");
        if self.names().is_none() {
            return Err(SpecError::new(
                agent,
                format!("{:?} is not an agent of OCF", self.agent),
                "write it like \"ocf:heartbeat:pgsql\": provider and type, as they are below /usr/lib/ocf/resource.d",
            ));
        }
        if let Some((_, instead)) = OWN_WORK.iter().find(|(known, _)| *known == self.agent) {
            return Err(SpecError::new(
                agent,
                format!(
                    "{} does what Mainstay does itself, and would not be undone when the lease of a node ends",
                    self.agent
                ),
                format!("use {instead} instead; `mainstay service import FILE` translates a promoter's file"),
            ));
        }
        if self.params.len() > PARAMS_MAX {
            let problem = format!("more than {PARAMS_MAX} parameters");
            return Err(SpecError::new(format!("{field}.params"), problem, "leave parameters out"));
        }
        let named = |name: &str| {
            !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        };
        if let Some(bad) = self.params.keys().find(|name| !named(name)) {
            return Err(SpecError::new(
                format!("{field}.params"),
                format!("{bad:?} is not the name of a parameter"),
                "use the name that the agent's meta-data has, without OCF_RESKEY_",
            ));
        }
        if let Some((name, _)) = self.params.iter().find(|(_, value)| value.contains('\0')) {
            return Err(SpecError::new(
                format!("{field}.params.{name}"),
                "the value contains a NUL character, which no variable can hold",
                "remove it",
            ));
        }
        for (name, value, most) in [
            ("monitor_interval_s", self.monitor_interval_s, MONITOR_S_MAX),
            ("monitor_timeout_s", self.monitor_timeout_s, MONITOR_S_MAX),
            ("monitor_failures", self.monitor_failures.into(), MONITOR_FAILURES_MAX.into()),
        ] {
            if value == 0 || value > most {
                return Err(SpecError::new(
                    format!("{field}.{name}"),
                    format!("{value} is out of range"),
                    format!("use 1 to {most}"),
                ));
            }
        }
        Ok(())
    }

    /// Faults that the meta-data of the agent shows.
    #[must_use]
    pub fn faults(&self, metadata: &Metadata) -> Vec<SpecError> {
        let mut faults = Vec::new();
        let known = || metadata.parameters.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        for name in self.params.keys().filter(|name| !metadata.parameters.contains_key(*name)) {
            faults.push(SpecError::new(
                format!("ocf.params.{name}"),
                format!("{} has no parameter {name}", self.agent),
                format!("correct the name or remove it; there can be {}", known()),
            ));
        }
        let missing = |name: &&String| !self.params.contains_key(*name);
        let required = metadata.parameters.iter().filter(|(_, required)| **required).map(|(name, _)| name);
        for name in required.filter(missing) {
            faults.push(SpecError::new(
                format!("ocf.params.{name}"),
                format!("{} needs the parameter {name}", self.agent),
                "add it to params",
            ));
        }
        if metadata.promotes && !self.runs_alone() {
            faults.push(SpecError::new(
                "ocf.agent",
                format!("{} is promotable: it replicates between its own instances", self.agent),
                "run one instance on a resource of Mainstay, which replicates it: use an agent or a command that does not replicate",
            ));
        }
        faults
    }

    /// Whether an agent that could be promoted is used as one that is not.
    fn runs_alone(&self) -> bool {
        let found = RUN_ALONE.iter().find(|(agent, ..)| *agent == self.agent);
        found.is_some_and(|(_, name, value)| self.params.get(*name).is_none_or(|given| given == value))
    }
}

/// Whether the value of a parameter is not to be shown (R24).
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["pass", "secret", "token", "credential"].iter().any(|part| name.contains(part))
}

/// The meta-data of an agent, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata {
    /// Its parameters, and whether each has to be there.
    pub parameters: BTreeMap<String, bool>,
    /// Whether it has an action `promote`.
    pub promotes: bool,
}

impl Metadata {
    /// Reads meta-data. `None` if the text is none.
    #[must_use]
    pub fn parse(xml: &str) -> Option<Self> {
        let mut metadata = Self::default();
        let mut is_metadata = false;
        // Descriptions are for people and may hold anything but a `<`.
        for tag in xml.split('<').skip(1) {
            let tag = tag.split_once('>').map_or(tag, |(tag, _)| tag);
            let attribute = |name: &str| attribute(tag, name);
            match tag.split([' ', '\t', '\n', '/']).next() {
                Some("resource-agent") => is_metadata = true,
                Some("parameter") => {
                    let required = matches!(attribute("required"), Some("1" | "true" | "yes"));
                    metadata.parameters.insert(attribute("name")?.to_owned(), required);
                }
                Some("action") if attribute("name") == Some("promote") => metadata.promotes = true,
                _ => {}
            }
        }
        is_metadata.then_some(metadata)
    }
}

/// Returns the value of an attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = tag;
    while let Some(at) = rest.find(name) {
        let before = rest[..at].chars().next_back();
        let after = rest[at + name.len()..].trim_start();
        if before.is_some_and(char::is_whitespace)
            && let Some(value) = after.strip_prefix('=').map(str::trim_start)
            && let Some(quote @ ('"' | '\'')) = value.chars().next()
        {
            return value[1..].split(quote).next();
        }
        rest = &rest[at + name.len()..];
    }
    None
}

/// Meaning of the exit code of an agent's action, in words.
#[must_use]
pub fn ocf_words(code: i32) -> String {
    let words = match code {
        0 => "success",
        1 => "a generic error",
        2 => "an invalid argument",
        3 => "an action that the agent does not have",
        4 => "insufficient permissions",
        5 => "a program that is not installed",
        6 => "an invalid configuration",
        7 => "not running",
        8 => "running as promoted",
        9 => "failed as promoted",
        190 => "running, but degraded",
        191 => "running as promoted, but degraded",
        -1 => return "it was ended by a signal".into(),
        code => return format!("exit code {code}"),
    };
    format!("exit code {code}: {words}")
}

/// Whether another attempt on the same node would fail with this exit code as well.
#[must_use]
pub fn ocf_is_permanent(code: i32) -> bool {
    (2..=6).contains(&code)
}

/// Exit code of a monitor that found its resource running.
pub const OCF_SUCCESS: i32 = 0;
/// Exit code of a monitor that found its resource cleanly stopped.
pub const OCF_NOT_RUNNING: i32 = 7;
/// Exit code of a monitor that found its resource running, with less than it should have.
pub const OCF_DEGRADED: i32 = 190;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceSpec;

    fn ocf(agent: &str, params: &[(&str, &str)]) -> Ocf {
        let params = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Ocf::new(agent, params)
    }

    const METADATA: &str = r#"<?xml version="1.0"?>
<!DOCTYPE resource-agent SYSTEM "ra-api-1.dtd">
<resource-agent name="x" version="1.0">
<parameters>
<parameter name="binfile" unique="1" required='1'>
<longdesc lang="en">The full name of a program, for example name="x" &lt;here&gt;</longdesc>
<content type="string" default="dummy"/>
</parameter>
<parameter required="0" name="user"/>
</parameters>
<actions><action name="start" timeout="20s"/><action timeout="1" name="promote" /></actions>
</resource-agent>"#;

    #[test]
    fn metadata_has_parameters_and_says_whether_it_promotes() {
        let metadata = Metadata::parse(METADATA).unwrap();
        let parameters = BTreeMap::from([("binfile".to_owned(), true), ("user".to_owned(), false)]);
        assert_eq!(metadata, Metadata { parameters, promotes: true });
        assert!(!Metadata::parse(&METADATA.replace("promote", "notify")).unwrap().promotes);
        for nonsense in ["", "ocf-exit-reason: no", "<a>", "<resource-agent><parameter required='1'>"] {
            assert_eq!(Metadata::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn wrong_and_missing_parameters_and_promotion_are_found() {
        let plain = Metadata::parse(&METADATA.replace("promote", "notify")).unwrap();
        assert_eq!(ocf("ocf:a:b", &[("binfile", "x")]).faults(&plain), []);
        let fields = |faults: Vec<SpecError>| {
            assert!(faults.iter().all(|fault| !fault.remedy.is_empty()));
            faults.into_iter().map(|fault| fault.field).collect::<Vec<_>>()
        };
        assert_eq!(
            fields(ocf("ocf:a:b", &[("binfil", "x")]).faults(&plain)),
            ["ocf.params.binfil", "ocf.params.binfile"]
        );
        let promotes = Metadata { promotes: true, ..Metadata::default() };
        assert_eq!(fields(ocf("ocf:a:b", &[]).faults(&promotes)), ["ocf.agent"]);
        // A database that could replicate itself, and does not.
        assert_eq!(ocf("ocf:heartbeat:pgsql", &[]).faults(&promotes), []);
        let replicates = ocf("ocf:heartbeat:pgsql", &[("rep_mode", "sync")]);
        let rep_mode = BTreeMap::from([("rep_mode".to_owned(), false)]);
        assert_eq!(
            fields(replicates.faults(&Metadata { parameters: rep_mode, promotes: true })),
            ["ocf.agent"]
        );
    }

    #[test]
    fn an_agent_is_named_as_pacemaker_names_it_and_does_no_work_of_mainstay() {
        for (agent, problem) in [
            ("heartbeat:pgsql", "not an agent"),
            ("ocf:heartbeat", "not an agent"),
            ("ocf:../x:pgsql", "not an agent"),
            ("ocf:heartbeat:a/b", "not an agent"),
            ("ocf:heartbeat:IPaddr2", "Mainstay does itself"),
            ("ocf:heartbeat:Filesystem", "Mainstay does itself"),
        ] {
            let refused = ocf(agent, &[]).validate("ocf").unwrap_err();
            assert!(refused.field == "ocf.agent" && refused.problem.contains(problem), "{agent}: {refused}");
        }
        assert_eq!(ocf("ocf:heartbeat:pgsql", &[]).names(), Some(("heartbeat", "pgsql")));
        assert!(ocf("ocf:heartbeat:pgsql", &[("a b", "x")]).validate("ocf").is_err());
        assert!(ocf("ocf:heartbeat:pgsql", &[("a", "\0")]).validate("ocf").is_err());
    }

    #[test]
    fn an_entry_runs_a_command_or_an_agent() {
        let parse = |entry: &str| {
            ServiceSpec::parse(&format!("name='a'\nresource='r'\n[[process]]\nname='p'\n{entry}\n"))
        };
        let agent = "ocf = { agent = 'ocf:heartbeat:Dummy', params = { state = '/run/d' } }";
        let spec = parse(agent).unwrap();
        let json = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
        for (more, field) in [
            ("command = ['/bin/true']", "process[0].ocf"),
            ("user = 'x'", "process[0].user"),
            ("ready = { delay_s = 1 }", "process[0].ready"),
            ("probe = { tcp = 'a:1' }", "process[0].probe"),
            ("stop_signal = 'SIGINT'", "process[0].stop_signal"),
        ] {
            let refused = parse(&format!("{agent}\n{more}")).unwrap_err();
            assert!(refused.field.starts_with(field) && !refused.remedy.is_empty(), "{more}: {refused}");
        }
        let refused = parse("ocf = { agent = 'ocf:heartbeat:Dummy', parms = {} }").unwrap_err();
        assert!(refused.field.contains("ocf.parms") && refused.remedy.contains("params"), "{refused}");
        assert!(parse("stop_timeout_s = 5").unwrap_err().field.starts_with("process[0].command"));
    }

    #[test]
    fn a_password_among_the_parameters_is_not_shown() {
        let text = "name='a'\nresource='r'\n[[process]]\nname='p'\n\
             ocf = { agent = 'ocf:heartbeat:mysql', params = { test_passwd = 'x1', datadir = '/srv/a' } }\n";
        let spec = ServiceSpec::parse(text).unwrap();
        let shown = spec.to_toml().unwrap();
        assert!(
            !shown.contains("x1") && shown.contains("/srv/a") && shown.contains("test_passwd"),
            "{shown}"
        );
        let mut again = ServiceSpec::parse(&shown).unwrap();
        again.keep_hidden(Some(&spec)).unwrap();
        assert_eq!(again, spec);
        let changed = ServiceSpec::parse(&text.replace("x1", "x2").replace("/srv/a", "/srv/b")).unwrap();
        let said = format!("{:?}", spec.changes(&changed));
        assert!(said.contains("ocf.params.test_passwd") && said.contains("/srv/b"), "{said}");
        assert!(!said.contains("x1") && !said.contains("x2"), "{said}");
    }
}
