//! Comparison of a changed specification with the one in force, field by field: tells which changes
//! need a restart of a service that runs.
//!
//! A field needs a restart if the running parts were made with it: another value would count only
//! for some later start, on some other node. Limits, time limits, tests and choices count from the
//! next decision on, so they are changed in place.

use crate::ocf::{Ocf, is_secret};
use crate::pages::Pages;
use crate::placement::Placement;
use crate::probe::Probe;
use crate::spec::{Mount, Policy, Process, Ready, ServiceSpec};
use crate::vip::{Vip, listed};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Debug;

/// One field that has another value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// Name of the field as it is written in TOML, for example `process[0].command`.
    pub field: String,
    /// The value that is in force; `not set` for none.
    pub from: String,
    pub to: String,
    /// The service has to be started again for it.
    pub restarts: bool,
}

/// Collects changes.
#[derive(Default)]
struct Changes(Vec<Change>);

impl Changes {
    fn note(&mut self, field: impl Into<String>, from: String, to: String, restarts: bool) {
        if from != to {
            self.0.push(Change { field: field.into(), from, to, restarts });
        }
    }

    fn value<T: Debug + PartialEq>(&mut self, field: impl Into<String>, from: &T, to: &T, restarts: bool) {
        self.note(field, format!("{from:?}"), format!("{to:?}"), restarts);
    }

    fn names(&mut self, field: &str, from: &[String], to: &[String]) {
        let shown = |names: &[String]| if names.is_empty() { "not set".into() } else { names.join(", ") };
        self.note(field, shown(from), shown(to), false);
    }

    fn text(&mut self, field: impl Into<String>, from: Option<&String>, to: Option<&String>, restarts: bool) {
        self.note(field, shown(from), shown(to), restarts);
    }
}

fn shown(value: Option<&String>) -> String {
    value.map_or_else(|| "not set".into(), |value| format!("{value:?}"))
}

impl ServiceSpec {
    /// The fields of `new` that are not as they are here, in the order of the specification. Values
    /// of environment variables are not shown: they may be secret (R24).
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Change> {
        let Self { name, resource, mount, processes, vips, placement, policy } = self;
        let mut changes = Changes::default();
        changes.value("name", name, &new.name, true);
        changes.value("resource", resource, &new.resource, true);
        mount_changes(mount.as_ref(), new.mount.as_ref(), &mut changes);
        process_changes(processes, &new.processes, &mut changes);
        vip_changes(vips, &new.vips, &mut changes);
        placement_changes(placement, &new.placement, &mut changes);
        policy_changes(policy, &new.policy, &mut changes);
        changes.0
    }

    /// Whether the service has to be started again for `new`, if it runs under this specification.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> bool {
        self.changes(new).iter().any(|change| change.restarts)
    }
}

fn mount_changes(old: Option<&Mount>, new: Option<&Mount>, changes: &mut Changes) {
    let (Some(old), Some(new)) = (old, new) else {
        changes.text("mount", old.map(|mount| &mount.path), new.map(|mount| &mount.path), true);
        return;
    };
    let Mount { volume, path, fstype, options, mkfs, mkfs_options, hide_files, grow } = old;
    changes.value("mount.volume", volume, &new.volume, true);
    changes.value("mount.path", path, &new.path, true);
    changes.value("mount.fstype", fstype, &new.fstype, true);
    changes.value("mount.options", options, &new.options, true);
    changes.value("mount.mkfs", mkfs, &new.mkfs, false);
    changes.value("mount.mkfs_options", mkfs_options, &new.mkfs_options, false);
    changes.value("mount.hide_files", hide_files, &new.hide_files, false);
    changes.value("mount.grow", grow, &new.grow, false);
}

fn process_changes(old: &[Process], new: &[Process], changes: &mut Changes) {
    let names = |list: &[Process]| list.iter().map(|process| process.name.clone()).collect::<Vec<_>>();
    if names(old) != names(new) {
        changes.note("process", names(old).join(", "), names(new).join(", "), true);
        return;
    }
    for (i, (old, new)) in old.iter().zip(new).enumerate() {
        let field = |name: &str| format!("process[{i}].{name}");
        let Process {
            name: _,
            command,
            ocf,
            unit,
            prepare,
            user,
            prepare_user,
            env,
            start_timeout_s,
            stop_timeout_s,
            stop_signal,
            ready,
            probe,
            probe_interval_s,
            probe_timeout_s,
            probe_failures,
            pages,
        } = old;
        changes.value(field("command"), command, &new.command, true);
        ocf_changes(&field("ocf"), ocf.as_ref(), new.ocf.as_ref(), changes);
        changes.text(field("unit"), unit.as_ref(), new.unit.as_ref(), true);
        changes.value(field("prepare"), prepare, &new.prepare, true);
        changes.text(field("user"), user.as_ref(), new.user.as_ref(), true);
        changes.text(field("prepare_user"), prepare_user.as_ref(), new.prepare_user.as_ref(), true);
        let variables: BTreeSet<&String> = env.keys().chain(new.env.keys()).collect();
        for variable in variables {
            let (from, to) = match (env.get(variable), new.env.get(variable)) {
                (Some(from), Some(to)) if from == to => continue,
                (Some(_), Some(_)) => ("a value", "another value"),
                (None, _) => ("not set", "a value"),
                (_, None) => ("a value", "not set"),
            };
            changes.note(field(&format!("env.{variable}")), from.into(), to.into(), true);
        }
        changes.value(field("start_timeout_s"), start_timeout_s, &new.start_timeout_s, false);
        changes.value(field("stop_timeout_s"), stop_timeout_s, &new.stop_timeout_s, false);
        changes.value(field("stop_signal"), stop_signal, &new.stop_signal, false);
        changes.note(field("ready"), ready_words(ready.as_ref()), ready_words(new.ready.as_ref()), false);
        changes.note(field("probe"), probe_words(probe.as_ref()), probe_words(new.probe.as_ref()), false);
        changes.value(field("probe_interval_s"), probe_interval_s, &new.probe_interval_s, false);
        changes.value(field("probe_timeout_s"), probe_timeout_s, &new.probe_timeout_s, false);
        changes.value(field("probe_failures"), probe_failures, &new.probe_failures, false);
        pages_changes(&field("pages"), pages.as_ref(), new.pages.as_ref(), changes);
    }
}

/// The question is asked before a start and again while the process runs, so another question needs
/// a start. When it is asked next may change at any time.
fn pages_changes(field: &str, old: Option<&Pages>, new: Option<&Pages>, changes: &mut Changes) {
    let (Some(old), Some(new)) = (old, new) else {
        let shown = |pages: Option<&Pages>| pages.map_or_else(|| "not set".into(), Pages::words);
        return changes.note(field, shown(old), shown(new), true);
    };
    let Pages { size, arguments, path, buffered, interval_s, timeout_s } = old;
    changes.value(format!("{field}.size"), size, &new.size, true);
    changes.value(format!("{field}.arguments"), arguments, &new.arguments, true);
    changes.text(format!("{field}.path"), path.as_ref(), new.path.as_ref(), true);
    changes.value(format!("{field}.buffered"), buffered, &new.buffered, true);
    changes.value(format!("{field}.interval_s"), interval_s, &new.interval_s, false);
    changes.value(format!("{field}.timeout_s"), timeout_s, &new.timeout_s, false);
}

fn ocf_changes(field: &str, old: Option<&Ocf>, new: Option<&Ocf>, changes: &mut Changes) {
    let (Some(old), Some(new)) = (old, new) else {
        changes.text(field, old.map(|ocf| &ocf.agent), new.map(|ocf| &ocf.agent), true);
        return;
    };
    let Ocf { agent, params, monitor_interval_s, monitor_timeout_s, monitor_failures } = old;
    changes.value(format!("{field}.agent"), agent, &new.agent, true);
    let names: BTreeSet<&String> = params.keys().chain(new.params.keys()).collect();
    for name in names {
        let (from, to) = (params.get(name), new.params.get(name));
        if is_secret(name) && from != to {
            let said = |value: Option<&String>| if value.is_some() { "a value" } else { "not set" };
            let to = if from.is_some() && to.is_some() { "another value" } else { said(to) };
            changes.note(format!("{field}.params.{name}"), said(from).into(), to.into(), true);
        } else {
            changes.text(format!("{field}.params.{name}"), from, to, true);
        }
    }
    changes.value(format!("{field}.monitor_interval_s"), monitor_interval_s, &new.monitor_interval_s, false);
    changes.value(format!("{field}.monitor_timeout_s"), monitor_timeout_s, &new.monitor_timeout_s, false);
    changes.value(format!("{field}.monitor_failures"), monitor_failures, &new.monitor_failures, false);
}

fn ready_words(ready: Option<&Ready>) -> String {
    match ready {
        None => "not set".into(),
        Some(Ready::Command(command)) => format!("command = {command:?}"),
        Some(Ready::Tcp(target)) => format!("tcp = {target:?}"),
        Some(Ready::DelayS(seconds)) => format!("delay_s = {seconds}"),
    }
}

/// A probe holds no secret, so it is shown as it is written.
fn probe_words(probe: Option<&Probe>) -> String {
    let Some(probe) = probe else { return "not set".into() };
    toml::Value::try_from(probe).map_or_else(|_| probe.kind().into(), |probe| probe.to_string())
}

fn vip_changes(old: &[Vip], new: &[Vip], changes: &mut Changes) {
    if old.len() != new.len() {
        let shown = |list: &[Vip]| if list.is_empty() { "not set".into() } else { listed(list) };
        changes.note("vip", shown(old), shown(new), true);
        return;
    }
    let is_one = old.len() == 1;
    for (i, (old, new)) in old.iter().zip(new).enumerate() {
        let table = if is_one { "vip".to_owned() } else { format!("vip[{i}]") };
        let field = |name: &str| format!("{table}.{name}");
        let Vip { address, interface } = old;
        changes.value(field("address"), address, &new.address, true);
        changes.text(field("interface"), interface.as_ref(), new.interface.as_ref(), true);
    }
}

/// A constraint counts from the next decision on. The decision may be that the service moves.
fn placement_changes(old: &Placement, new: &Placement, changes: &mut Changes) {
    let Placement { after, with, apart, avoid } = old;
    changes.names("placement.after", after, &new.after);
    changes.text("placement.with", with.as_ref(), new.with.as_ref(), false);
    changes.names("placement.apart", apart, &new.apart);
    changes.names("placement.avoid", avoid, &new.avoid);
}

fn policy_changes(old: &Policy, new: &Policy, changes: &mut Changes) {
    let Policy { restart_limit, window_s, preferred, failback } = old;
    changes.value("policy.restart_limit", restart_limit, &new.restart_limit, false);
    changes.value("policy.window_s", window_s, &new.window_s, false);
    changes.names("policy.preferred", preferred, &new.preferred);
    changes.value("policy.failback", failback, &new.failback, false);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = r#"
name = "db"
resource = "db"
[mount]
path = "/srv/db"
options = "noatime"
[[process]]
name = "mysqld"
command = ["/usr/sbin/mysqld"]
prepare = ["/usr/local/bin/init-db"]
user = "mysql"
env = { TZ = "UTC", SECRET = "x1" }
ready = { tcp = "127.0.0.1:3306" }
[vip]
address = "10.213.1.100/24"
[policy]
window_s = 300
"#;

    #[test]
    fn each_change_is_named_with_its_field_and_says_whether_it_restarts() {
        let old = ServiceSpec::parse(FULL).unwrap();
        assert_eq!(old.changes(&old), []);
        for (from, to, field, restarts) in [
            ("\"/srv/db\"", "\"/srv/db2\"", "mount.path", true),
            ("options = \"noatime\"", "options = \"\"", "mount.options", true),
            ("options = \"noatime\"", "options = \"noatime\"\ngrow = false", "mount.grow", false),
            ("options = \"noatime\"", "options = \"noatime\"\nmkfs = true", "mount.mkfs", false),
            ("[\"/usr/sbin/mysqld\"]", "[\"/usr/sbin/mysqld\", \"-v\"]", "process[0].command", true),
            ("prepare = [\"/usr/local/bin/init-db\"]\n", "", "process[0].prepare", true),
            ("user = \"mysql\"\n", "", "process[0].user", true),
            (
                "user = \"mysql\"\n",
                "user = \"mysql\"\nprepare_user = \"root\"\n",
                "process[0].prepare_user",
                true,
            ),
            ("TZ = \"UTC\"", "TZ = \"CET\"", "process[0].env.TZ", true),
            ("ready = { tcp = \"127.0.0.1:3306\" }", "", "process[0].ready", false),
            ("user = ", "stop_timeout_s = 7\nuser = ", "process[0].stop_timeout_s", false),
            ("user = ", "start_timeout_s = 7\nuser = ", "process[0].start_timeout_s", false),
            ("user = ", "stop_signal = \"SIGINT\"\nuser = ", "process[0].stop_signal", false),
            ("user = ", "probe = { command = [\"/bin/true\"] }\nuser = ", "process[0].probe", false),
            ("user = ", "probe_interval_s = 9\nuser = ", "process[0].probe_interval_s", false),
            ("user = ", "probe_timeout_s = 9\nuser = ", "process[0].probe_timeout_s", false),
            ("user = ", "probe_failures = 9\nuser = ", "process[0].probe_failures", false),
            ("name = \"mysqld\"", "name = \"mariadbd\"", "process", true),
            ("10.213.1.100/24", "10.213.1.101/24", "vip.address", true),
            ("/24\"\n", "/24\"\ninterface = \"eth0\"\n", "vip.interface", true),
            ("window_s = 300", "window_s = 301", "policy.window_s", false),
            ("window_s = 300", "window_s = 300\nrestart_limit = 9", "policy.restart_limit", false),
            ("window_s = 300", "window_s = 300\npreferred = \"alpha\"", "policy.preferred", false),
        ] {
            let new = ServiceSpec::parse(&FULL.replacen(from, to, 1)).unwrap();
            let changes = old.changes(&new);
            let found: Vec<_> =
                changes.iter().map(|change| (change.field.as_str(), change.restarts)).collect();
            assert_eq!(found, [(field, restarts)], "{from} to {to}");
            assert_eq!(old.needs_restart(&new), restarts);
            assert_ne!(changes[0].from, changes[0].to);
        }
    }

    /// R24
    #[test]
    fn values_of_the_environment_are_not_shown() {
        let old = ServiceSpec::parse(FULL).unwrap();
        let new = ServiceSpec::parse(&FULL.replacen("x1", "x2", 1)).unwrap();
        let said = format!("{:?}", old.changes(&new));
        assert!(said.contains("SECRET") && !said.contains("x1") && !said.contains("x2"), "{said}");
    }
}
