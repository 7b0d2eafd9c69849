//! A specification as the service file that it came from: for operators who look at it or edit it.
//!
//! Guarantees
//! - Every field is there, those that nobody wrote as well, and each that has its default says so.
//! - Values of environment variables are hidden: they may be secret (R24). A file that still has
//!   [`HIDDEN`] in such a place means the value that is in force ([`ServiceSpec::keep_hidden`]).
//! - The text, parsed and with its hidden values kept, is the same specification.

use crate::fields::{self, fields_of};
use crate::ocf::is_secret;
use crate::spec::{Process, ServiceSpec, SpecError};
use serde::Deserialize;
use toml::{Table, Value};

/// Stands for the value of an environment variable.
pub const HIDDEN: &str = "(hidden)";

/// The fields without which a table is none, by the table's path.
pub(crate) const REQUIRED: [(&str, &[&str]); 5] = [
    ("", &["name", "resource"]),
    ("mount", &["path"]),
    ("process[]", &["name"]),
    ("vip", &["address"]),
    ("vip[]", &["address"]),
];

impl ServiceSpec {
    /// The specification as a service file.
    ///
    /// # Errors
    /// When a number does not fit into TOML, which validation excludes.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        let mut spec = self.clone();
        for value in spec.processes.iter_mut().flat_map(hideable) {
            *value.1 = HIDDEN.into();
        }
        let shown = Table::try_from(&spec)?;
        // The same tables with nothing in them but what has to be there.
        let least = Self::deserialize(Value::Table(required("", &shown))).ok();
        let least = least.and_then(|least| Table::try_from(&least).ok()).unwrap_or_default();
        let mut text = format!(
            "# Service {}, as it counts now. What is marked as default may be left out.\n",
            self.name
        );
        if spec.processes.iter_mut().any(|process| hideable(process).next().is_some()) {
            text += &format!(
                "# Values of env and passwords are not shown. A value that is left as \"{HIDDEN}\" stays as it is.\n"
            );
        }
        text += &lines("", &shown, &least);
        for name in fields_of("") {
            let of = |table: &Table| match table.get(name) {
                Some(Value::Table(table)) => vec![table.clone()],
                Some(Value::Array(list)) => list.iter().filter_map(Value::as_table).cloned().collect(),
                _ => Vec::new(),
            };
            let is_list = fields::is_known(&format!("{name}[]"));
            let (head, path) = match is_list {
                true => (format!("[[{name}]]"), format!("{name}[]")),
                false => (format!("[{name}]"), name.to_owned()),
            };
            if fields_of(&path).is_empty() {
                continue;
            }
            let (tables, least) = (of(&shown), of(&least));
            if tables.is_empty() {
                text += &format!("\n# {head} is not set\n");
            }
            for (i, table) in tables.iter().enumerate() {
                let least = least.get(i).cloned().unwrap_or_default();
                text += &format!("\n{head}\n{}", lines(&path, table, &least));
            }
        }
        Ok(text)
    }

    /// Puts the values in force in the place of hidden ones. `old`: the specification in force.
    ///
    /// # Errors
    /// When there is no value in force.
    pub fn keep_hidden(&mut self, old: Option<&Self>) -> Result<(), SpecError> {
        for (i, process) in self.processes.iter_mut().enumerate() {
            let before = old.and_then(|old| old.processes.iter().find(|known| known.name == process.name));
            for (name, value) in hideable(process).filter(|(_, value)| *value == HIDDEN) {
                let kept = before.and_then(|before| match name.strip_prefix("env.") {
                    Some(variable) => before.env.get(variable),
                    None => before.ocf.as_ref()?.params.get(name.strip_prefix("ocf.params.")?),
                });
                *value = kept.cloned().ok_or_else(|| SpecError {
                    field: format!("process[{i}].{name}"),
                    problem: format!("it is \"{HIDDEN}\", and the service has no value for it"),
                    remedy: "write the value that it is to have".into(),
                })?;
            }
        }
        Ok(())
    }
}

/// The values of a process that are not shown, with the names of their fields.
fn hideable(process: &mut Process) -> impl Iterator<Item = (String, &mut String)> {
    let env = process.env.iter_mut().map(|(name, value)| (format!("env.{name}"), value));
    let params = process.ocf.iter_mut().flat_map(|ocf| ocf.params.iter_mut());
    let secret = params.filter(|(name, _)| is_secret(name));
    env.chain(secret.map(|(name, value)| (format!("ocf.params.{name}"), value)))
}

/// The part of `table`, which is at `path`, that has to be there.
fn required(path: &str, table: &Table) -> Table {
    let needed = REQUIRED.iter().find(|(of, _)| *of == path).map_or(&[][..], |(_, names)| names);
    let inner = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let kept = table.iter().filter_map(|(name, value)| {
        let value = match value {
            value if needed.contains(&name.as_str()) => value.clone(),
            Value::Table(table) if path.is_empty() => Value::Table(required(&inner(name), table)),
            Value::Array(list) if path.is_empty() => {
                let path = format!("{}[]", inner(name));
                let tables = list.iter().filter_map(Value::as_table);
                Value::Array(tables.map(|table| Value::Table(required(&path, table))).collect())
            }
            _ => return None,
        };
        Some((name.clone(), value))
    });
    kept.collect()
}

/// The fields of one table that are no tables of their own, one a line.
fn lines(path: &str, table: &Table, least: &Table) -> String {
    let of_table = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    let needed = REQUIRED.iter().find(|(of, _)| *of == path).map_or(&[][..], |(_, names)| names);
    let line = |name: &'static str| {
        let of = of_table(name);
        // Tables of the file have a place of their own.
        if path.is_empty() && !needed.contains(&name) {
            return None;
        }
        Some(match table.get(name) {
            Some(value) if !needed.contains(&name) && least.get(name) == Some(value) => {
                format!("{name} = {value}  # default\n")
            }
            Some(value) => format!("{name} = {value}\n"),
            None if fields::is_switch(&of) => format!("{name} = false  # default\n"),
            None => format!("# {name} is not set\n"),
        })
    };
    fields_of(path).into_iter().filter_map(line).collect()
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
command = ["/usr/sbin/mysqld", "--x=\"1\""]
user = "mysql"
env = { TZ = "UTC", SECRET = "x1" }
ready = { tcp = "127.0.0.1:3306" }
stop_timeout_s = 7
[[process]]
name = "second"
command = ["/bin/second"]
[vip]
address = "10.213.1.100/24"
[policy]
window_s = 300
"#;

    #[test]
    fn a_service_is_shown_as_the_file_that_makes_it() {
        for text in [FULL, "name='a'\nresource='a'\n[vip]\naddress='10.0.0.7/24'\n"] {
            let spec = ServiceSpec::parse(text).unwrap();
            let shown = spec.to_toml().unwrap();
            let mut again = ServiceSpec::parse(&shown).unwrap_or_else(|error| panic!("{error}: {shown}"));
            again.keep_hidden(Some(&spec)).unwrap();
            assert_eq!(again, spec, "{shown}");
        }
    }

    #[test]
    fn the_file_that_is_shown_says_what_is_default_and_what_is_not_set() {
        let shown = ServiceSpec::parse(FULL).unwrap().to_toml().unwrap();
        for line in [
            "name = \"db\"",
            "fstype = \"xfs\"  # default",
            "options = \"noatime\"",
            "mkfs = false  # default",
            "hide_files = false  # default",
            "grow = true  # default",
            "start_timeout_s = 60  # default",
            "stop_timeout_s = 7",
            "# prepare is not set",
            "# interface is not set",
            "window_s = 300",
            "restart_limit = 3  # default",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line} is not in:\n{shown}");
        }
        let bare = ServiceSpec::parse("name='a'\nresource='a'\n[vip]\naddress='10.0.0.7/24'\n").unwrap();
        let bare = bare.to_toml().unwrap();
        assert!(bare.contains("# [mount] is not set") && bare.contains("# [[process]] is not set"), "{bare}");
    }

    /// R24
    #[test]
    fn a_secret_is_not_shown_and_stays_when_the_shown_file_is_applied() {
        let spec = ServiceSpec::parse(FULL).unwrap();
        let shown = spec.to_toml().unwrap();
        assert!(!shown.contains("x1") && !shown.contains("UTC") && shown.contains("SECRET"), "{shown}");
        let mut other = ServiceSpec::parse(&shown.replace("7\n", "8\n")).unwrap();
        other.keep_hidden(Some(&spec)).unwrap();
        assert_eq!(other.processes[0].env, spec.processes[0].env);
        // A process of another name, or a service that is new, has no value to keep.
        for old in [None, Some(ServiceSpec::parse(&FULL.replace("\"mysqld\"", "\"other\"")).unwrap())] {
            let mut spec = ServiceSpec::parse(&shown).unwrap();
            let refused = spec.keep_hidden(old.as_ref()).unwrap_err();
            assert_eq!(refused.field, "process[0].env.SECRET");
        }
    }
}
