//! Arguments of a process that count only while no page of its files can tear, as the operator
//! writes them in TOML.
//!
//! Guarantees
//! - A table that has passed [`Pages::validate`] names a page size that can be promised, a
//!   directory on the service's own mount, and at least one argument.
//!
//! The agent asks the question before each start of the process and again while it runs. This file
//! only holds what is to be asked.

use crate::spec::SpecError;
use crate::system::is_within;
use mainstay_types::DATABASE_PAGE_BYTES;
use serde::{Deserialize, Serialize};

/// Shortest and longest time between two checks, in seconds.
const INTERVAL_S: (u64, u64) = (60, 7 * 86_400);
/// Longest time that the check before a start may take, in seconds.
const TIMEOUT_S_MAX: u64 = 600;
const ARGUMENTS_MAX: usize = 64;

/// See the top of this file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// Bytes of a page.
    pub size: u64,
    /// Arguments that are added to `command` while no page can tear.
    pub arguments: Vec<String>,
    /// Directory with the data files; the path of the mount if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The process writes its pages through the page cache, and not with O_DIRECT.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub buffered: bool,
    /// From one check to the next while the process runs, in seconds.
    #[serde(default = "default_interval_s")]
    pub interval_s: u64,
    /// How long the check before a start may take, in seconds.
    #[serde(default = "default_timeout_s")]
    pub timeout_s: u64,
}

fn default_interval_s() -> u64 {
    86_400
}
fn default_timeout_s() -> u64 {
    10
}

impl Pages {
    /// `mount`: path of the service's mount, if it has one. `runs_command`: the entry runs a
    /// command.
    pub(crate) fn validate(
        &self,
        field: &str,
        mount: Option<&str>,
        runs_command: bool,
    ) -> Result<(), SpecError> {
        let wrong = |name: &str, problem: String, remedy: &str| {
            let field = if name.is_empty() { field.to_owned() } else { format!("{field}.{name}") };
            Err(SpecError::new(field, problem, remedy))
        };
        if !runs_command {
            return wrong(
                "",
                "arguments are added to a command, and this entry has none".into(),
                "remove the line, or write `command` instead of `ocf` or `unit`",
            );
        }
        let Some(mount) = mount else {
            return wrong(
                "",
                "the service has no file system of its own that could be checked".into(),
                "add [mount], or remove the line",
            );
        };
        if !DATABASE_PAGE_BYTES.contains(&self.size) {
            let sizes = DATABASE_PAGE_BYTES.map(|bytes| bytes.to_string()).join(", ");
            return wrong(
                "size",
                format!("{} is no page size that is promised", self.size),
                &format!("use one of {sizes}"),
            );
        }
        if self.arguments.is_empty() || self.arguments.len() > ARGUMENTS_MAX {
            return wrong(
                "arguments",
                format!("there are {} arguments", self.arguments.len()),
                &format!("give 1 to {ARGUMENTS_MAX}"),
            );
        }
        if self.arguments.iter().any(|argument| argument.is_empty() || argument.contains('\0')) {
            return wrong(
                "arguments",
                "an argument is empty or contains a NUL character".into(),
                "remove it",
            );
        }
        if let Some(path) = &self.path {
            let is_plain =
                path.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
            if !is_plain || path.contains(char::is_control) || !is_within(path, mount) {
                return wrong(
                    "path",
                    format!("'{path}' is no plain path in the mount {mount}"),
                    "name the directory with the data files, without '.', '..' and a trailing '/'",
                );
            }
        }
        for (name, seconds, least, most) in [
            ("interval_s", self.interval_s, INTERVAL_S.0, INTERVAL_S.1),
            ("timeout_s", self.timeout_s, 1, TIMEOUT_S_MAX),
        ] {
            if !(least..=most).contains(&seconds) {
                return wrong(
                    name,
                    format!("{seconds} is out of range"),
                    &format!("use {least} to {most} seconds"),
                );
            }
        }
        Ok(())
    }

    /// The arguments as they stand in a command line, for operators.
    #[must_use]
    pub fn words(&self) -> String {
        self.arguments.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::{ServiceSpec, SpecError};

    fn parse(runs: &str, pages: &str) -> Result<ServiceSpec, SpecError> {
        ServiceSpec::parse(&format!(
            "name='s'\nresource='r'\n[mount]\npath='/srv/s'\n[[process]]\nname='p'\n{runs}\npages={pages}\n"
        ))
    }

    #[test]
    fn arguments_for_whole_pages_have_plain_defaults() {
        let spec = parse("command=['/bin/db']", "{size=16384, arguments=['--once']}").unwrap();
        let pages = spec.processes[0].pages.as_ref().unwrap();
        assert_eq!((pages.interval_s, pages.timeout_s, pages.buffered), (86_400, 10, false));
        assert_eq!((pages.path.as_deref(), pages.words()), (None, "--once".to_owned()));
        assert!(spec.uses_level_2());
        let shown = spec.to_toml().unwrap();
        assert_eq!(ServiceSpec::parse(&shown).unwrap(), spec, "{shown}");
        let without = "name='s'\nresource='r'\n[[process]]\nname='p'\ncommand=['/bin/db']\n";
        let without = ServiceSpec::parse(without).unwrap();
        assert!(!without.uses_level_2());
        let json = serde_json::to_string(&without).unwrap();
        assert!(!json.contains("pages"), "an older build reads it: {json}");
    }

    #[test]
    fn each_mistake_about_pages_is_named_by_its_field() {
        let command = "command=['/bin/db']";
        for (runs, pages, field) in [
            (command, "{size=12288, arguments=['a']}", "process[0].pages.size"),
            (command, "{size=16384, arguments=[]}", "process[0].pages.arguments"),
            (command, "{size=16384, arguments=['']}", "process[0].pages.arguments"),
            (command, "{size=16384, arguments=['a'], path='/srv/other'}", "process[0].pages.path"),
            (command, "{size=16384, arguments=['a'], path='/srv/s/../x'}", "process[0].pages.path"),
            (command, "{size=16384, arguments=['a'], interval_s=59}", "process[0].pages.interval_s"),
            (command, "{size=16384, arguments=['a'], timeout_s=0}", "process[0].pages.timeout_s"),
            ("unit='a.service'", "{size=16384, arguments=['a']}", "process[0].pages"),
        ] {
            let error = parse(runs, pages).unwrap_err();
            assert_eq!(error.field, field, "{error}");
            assert!(!error.remedy.is_empty());
        }
        let no_mount = "name='s'\nresource='r'\n[[process]]\nname='p'\ncommand=['a']\n\
                        pages={size=16384, arguments=['a']}\n";
        assert_eq!(ServiceSpec::parse(no_mount).unwrap_err().field, "process[0].pages");
        for path in ["/srv/s", "/srv/s/data"] {
            parse(command, &format!("{{size=16384, arguments=['a'], path='{path}'}}")).unwrap();
        }
    }
}
