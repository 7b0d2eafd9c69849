//! The reference page of service files, made of the table of their fields.
//!
//! Guarantees
//! - Every field of the table is on the page, with what it holds, its default and an example.
//! - Defaults are those that the parser fills in: nobody writes them a second time.

use crate::fields::{FIELDS, example_of, fields_of, holds_of, is_known, is_switch};
use crate::shown::REQUIRED;
use crate::spec::ServiceSpec;
use std::fmt::Write;
use toml::{Table, Value};

/// Effect of each field. Elements of lists are described with their list.
const MEANINGS: &[(&str, &str)] = &[
    ("name", "Name of the service: 1 to 32 characters out of a-z, 0-9 and the dash."),
    ("resource", "Name of the resource whose primary runs the service."),
    ("mount", "A file system on a volume of the resource. It is mounted before the processes start."),
    ("mount.volume", "Volume of the resource, counted from 0."),
    ("mount.path", "Directory where the file system is mounted. Give each service one of its own."),
    ("mount.fstype", "Type of the file system, as for mount(8)."),
    (
        "mount.options",
        "Options of the mount, separated by commas. Options for other kinds of mounts are refused.",
    ),
    ("mount.mkfs", "Make the file system if nothing was ever written to the volume."),
    (
        "mount.mkfs_options",
        "Options of `mkfs.ext4` or `mkfs.xfs` that shape the file system, each with its value as the next word. Paths, devices and identities are refused. They count when the file system is made.",
    ),
    ("mount.hide_files", "Mount over a directory that has files in it. They are out of sight meanwhile."),
    ("mount.grow", "Make the file system as large as the volume, at the mount and when the volume grows."),
    (
        "process",
        "Processes, started in the order of the file and stopped in reverse. Each has `command`, `ocf` or `unit`.",
    ),
    ("process[].name", "Name of the process, different from those of the service's other processes."),
    ("process[].command", "Program and arguments, without a shell. It stays in the foreground."),
    (
        "process[].ocf",
        "A resource agent of Pacemaker, run instead of a command. Promotable agents are refused.",
    ),
    ("process[].ocf.agent", "Provider and type of the agent, as in `/usr/lib/ocf/resource.d`."),
    (
        "process[].ocf.params",
        "Parameters of the agent, without `OCF_RESKEY_`. Their names are checked against its meta-data.",
    ),
    ("process[].ocf.monitor_interval_s", "From one monitor of the agent to the next. 1 to 3600."),
    ("process[].ocf.monitor_timeout_s", "How long one monitor may take. 1 to 3600."),
    (
        "process[].ocf.monitor_failures",
        "Monitors that fail in a row before the process is restarted. \"Not running\" restarts it at once.",
    ),
    (
        "process[].unit",
        "A service unit of systemd, started instead of a command. It must not be enabled, nor run already.",
    ),
    ("process[].prepare", "Command that runs to its end before each start. It must be repeatable."),
    ("process[].user", "User that the process runs as. Without it, root."),
    ("process[].prepare_user", "User that runs `prepare`. Without it, the one in `user`."),
    ("process[].env", "Environment variables. `service show` hides their values."),
    (
        "process[].start_timeout_s",
        "How long `prepare` may take, and then how long until the process is ready. 1 to 3600.",
    ),
    ("process[].stop_timeout_s", "How long the process may take to end before it is killed. 1 to 3600."),
    (
        "process[].stop_signal",
        "Signal that asks the process to end: SIGTERM, SIGINT, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2 or SIGKILL.",
    ),
    (
        "process[].ready",
        "Test that is repeated at the start until it succeeds. Without it, the probe decides, or the process is ready at once.",
    ),
    ("process[].ready.command", "Ready when this command exits with 0."),
    ("process[].ready.tcp", "Ready when this host and port accept a connection."),
    ("process[].ready.delay_s", "Ready when the process has lived for so long."),
    ("process[].probe", "How to ask the process, while it runs, whether it answers."),
    ("process[].probe.mariadb", "A login to MariaDB and a statement. It has `socket` or `address`."),
    ("process[].probe.mysql", "A login to MySQL and a statement. It has `socket` or `address`."),
    ("process[].probe.postgresql", "A login to PostgreSQL and a statement. It has `socket` or `address`."),
    (
        "process[].probe.tcp",
        "A connection to this host and port. As a table with `address` and `expect`: the first bytes that the server sends.",
    ),
    (
        "process[].probe.http",
        "A request. As a table with `url`, `status`, `expect` and `ca_file`: the status, a text in the answer, and for an `https` URL a file with the certificates of the authority that the server's certificate must come from.",
    ),
    (
        "process[].probe.command",
        "A command that exits with 0 if the process is well, and with 75 if it recovers from a crash.",
    ),
    ("process[].probe_interval_s", "From one probe to the next. 1 to 300."),
    ("process[].probe_timeout_s", "How long one probe may take. 1 to 300."),
    ("process[].probe_failures", "Probes that fail in a row before the process is restarted. 1 to 100."),
    (
        "process[].pages",
        "Arguments that count only while no page of the files can tear. [pages-that-cannot-tear.md](pages-that-cannot-tear.md) has more.",
    ),
    ("process[].pages.size", "Bytes of a page: 4096, 8192, 16384, 32768 or 65536."),
    (
        "process[].pages.arguments",
        "Added to the end of `command` if the check before the start says that no page can tear.",
    ),
    ("process[].pages.path", "Directory with the data files, in the mount. Without it, the whole mount."),
    ("process[].pages.buffered", "The process writes through the page cache and not with O_DIRECT."),
    ("process[].pages.interval_s", "From one check to the next while the process runs. 60 to 604800."),
    (
        "process[].pages.timeout_s",
        "How long the check before a start may take. If it takes longer, the answer counts as no. 1 to 600.",
    ),
    (
        "vip",
        "A floating address, added when all processes are ready. One may be written as `[vip]`; several repeat `[[vip]]`.",
    ),
    (
        "placement",
        "Other services and nodes that the place of the service depends on. [placement.md](placement.md) has more.",
    ),
    (
        "placement.after",
        "Services that have to run for this one to run. It starts after them and stops before them.",
    ),
    ("placement.with", "Service on whose node this one runs."),
    ("placement.apart", "Services that never run on the node of this one."),
    ("placement.avoid", "Nodes on which the service never runs."),
    ("vip.address", OF_ADDRESS),
    ("vip.interface", OF_INTERFACE),
    ("vip[].address", OF_ADDRESS),
    ("vip[].interface", OF_INTERFACE),
    ("policy", "What happens when the service fails."),
    (
        "policy.restart_limit",
        "Restarts that one node may try within `window_s` before the service goes to another node. 0 to 100.",
    ),
    ("policy.window_s", "See `restart_limit`. 1 to 86400."),
    ("policy.preferred", "Nodes that are chosen first, best first. One name needs no list."),
    (
        "policy.failback",
        "Go to a better one of the preferred nodes when it is in sync. It needs `preferred`.",
    ),
];

const OF_ADDRESS: &str =
    "Address of IPv4 or IPv6, such as `fd00::7/64`, with the length of the prefix of its network.";
const OF_INTERFACE: &str =
    "Interface that gets the address. Without it, the one with an address in the same network.";

/// Fields of the probes of databases, which mean the same for each of them.
const OF_DATABASES: &[(&str, &str, &str)] = &[
    ("socket", "", "Socket of the server; for PostgreSQL its directory."),
    ("address", "", "Host and port of the server."),
    ("user", "", "Account. Without it, the one with the name of the process's user."),
    ("password_file", "", "File that holds the password of the account, and nothing else."),
    ("database", "`\"postgres\"`", "Database."),
    ("statement", "`\"SELECT 1\"`", "Statement that has to succeed."),
    ("write_table", "", "Table of which one row is replaced, to find a database that cannot write."),
    ("tls", "`false`", "Log in through TLS 1.3 only. It needs `address`."),
    (
        "ca_file",
        "",
        "File with the certificates of an authority, in PEM. The server's certificate must come from that authority, and must name the host or the address that the probe connects to. Without it any certificate is taken. It needs `tls`.",
    ),
    ("port", "`5432`", "Port that is part of the name of the socket."),
];

fn meaning(path: &str) -> Option<(&'static str, &'static str)> {
    let named = MEANINGS.iter().find(|(known, _)| *known == path).map(|(_, words)| ("", *words));
    named.or_else(|| {
        let (probe, last) = path.rsplit_once('.')?;
        let of_database =
            ["mariadb", "mysql", "postgresql"].iter().any(|kind| probe.ends_with(&format!(".probe.{kind}")));
        let found = OF_DATABASES.iter().find(|(name, ..)| *name == last);
        found.filter(|_| of_database).map(|(_, default, words)| (*default, *words))
    })
}

/// Whether a path is of an element of a list or of a name that an operator chooses, and therefore
/// described with its list or table.
fn is_element(path: &str) -> bool {
    path.ends_with("[]") || path.ends_with('.')
}

/// Whether the table of a field is none without it.
fn is_required(path: &str) -> bool {
    let (table, name) = path.rsplit_once('.').unwrap_or(("", path));
    let required = REQUIRED.iter().any(|(of, names)| *of == table && names.contains(&name));
    let in_table = ["process[].ocf.agent", "process[].pages.size", "process[].pages.arguments"];
    required || in_table.contains(&path)
}

/// The default of a field as the parser fills it in; none for a field that may be left out and has
/// no value then.
fn default_of(path: &str) -> Option<String> {
    let run = match path {
        _ if path.starts_with("process[].ocf") => "ocf = { agent = \"ocf:heartbeat:pgsql\" }",
        _ if path.starts_with("process[].pages.") => {
            "command = [\"a\"]\npages = { size = 16384, arguments = [\"a\"] }"
        }
        _ => "command = [\"a\"]",
    };
    let least = format!(
        "name = \"a\"\nresource = \"a\"\n[mount]\npath = \"/srv/a\"\n[[process]]\nname = \"a\"\n{run}\n[vip]\naddress = \"10.0.0.7/24\"\n"
    );
    let filled = Table::try_from(ServiceSpec::parse(&least).ok()?).ok()?;
    let mut value = Value::Table(filled);
    for part in path.split('.') {
        let name = part.trim_end_matches("[]");
        value = match value.get(name) {
            Some(Value::Array(list)) if part.ends_with("[]") => list.first()?.clone(),
            Some(value) => value.clone(),
            None => return is_switch(path).then(|| "false".into()),
        };
    }
    (!value.is_table() && !value.is_array()).then(|| value.to_string())
}

/// The column of the default.
fn default_words(path: &str, fixed: &str) -> String {
    match default_of(path) {
        _ if is_required(path) => "has to be there".into(),
        _ if path == "process[].command" => "this, `ocf` or `unit`".into(),
        Some(default) => format!("`{default}`"),
        None if fixed.is_empty() => "not set".into(),
        None => fixed.to_owned(),
    }
}

/// The page.
#[must_use]
pub fn reference_page() -> String {
    let mut page = String::from(
        "# Service files: reference\n\n\
         For operators who write a service file. [services.md](services.md) explains how services work.\n\n\
         This page is made from the program. `mainstay service create mariadb --resource db` writes a\n\
         whole file with comments. `mainstay service show db` prints the file of a service with all\n\
         defaults. Unknown fields are refused. A service needs at least one of `[mount]`, `[[process]]` and\n\
         `[vip]`. Names of fields in `[[process]]` are those of one entry. Each example is a line as it\n\
         stands in the file, or a part of that line.\n",
    );
    let mut section = |head: &str, words: &str, paths: &[&str]| {
        let _ = write!(page, "\n## {head}\n\n");
        if !words.is_empty() {
            let _ = write!(page, "{words}\n\n");
        }
        page += "| field | holds | default | what it does |\n|---|---|---|---|\n";
        for path in paths {
            let (fixed, words) = meaning(path).unwrap_or_default();
            let default = default_words(path, fixed);
            let holds = holds_of(path).unwrap_or_default();
            let name = path.split_once('.').map_or(*path, |(_, name)| name);
            let example = example_of(path).unwrap_or_default();
            let _ = writeln!(page, "| `{name}` | {holds} | {default} | {words}<br>`{example}` |");
        }
    };
    let is_table = |name: &str| !fields_of(name).is_empty() || !fields_of(&format!("{name}[]")).is_empty();
    let top = fields_of("");
    let plain: Vec<&str> = top.iter().copied().filter(|name| !is_table(name)).collect();
    section("At the top", "", &plain);
    for table in top.iter().filter(|name| is_table(name)) {
        let is_list = is_known(&format!("{table}[]"));
        let head = if is_list { format!("[[{table}]]") } else { format!("[{table}]") };
        let prefix = if is_list { format!("{table}[].") } else { format!("{table}.") };
        let inside = FIELDS.iter().map(|(path, ..)| *path);
        let paths: Vec<&str> = inside.filter(|path| path.starts_with(&prefix) && !is_element(path)).collect();
        section(&head, meaning(table).unwrap_or_default().1, &paths);
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest service file with this field as its example has it.
    fn example_file(path: &str) -> String {
        let example = |path: &str| example_of(path).unwrap_or_else(|| panic!("{path} has no example"));
        let own = example(path);
        let has = |name: &str| own.starts_with(&format!("{name} = "));
        let is_head = own.starts_with('[');
        let table = match path.split_once('.') {
            Some((table, _)) => table,
            None if is_head => path,
            None => "",
        };
        let plain = table.trim_end_matches("[]");
        let is_list = is_known(&format!("{plain}[]"));
        let mut lines: Vec<String> = Vec::new();
        for name in ["name", "resource"].into_iter().filter(|name| !plain.is_empty() || !has(name)) {
            lines.push(example(name).to_owned());
        }
        if !plain.is_empty() {
            lines.push(if is_list { format!("[[{plain}]]") } else { format!("[{plain}]") });
            let table = if is_list { format!("{plain}[]") } else { plain.to_owned() };
            let needed = REQUIRED.iter().find(|(of, _)| *of == table).map_or(&[][..], |(_, names)| names);
            let more = match (plain, path) {
                ("process", "process[].prepare_user") => &["command", "prepare"][..],
                ("mount", _) if has("mkfs_options") => &["mkfs"][..],
                ("process", _) if !has("ocf") && !has("unit") => &["command"][..],
                _ => &[][..],
            };
            for name in needed.iter().chain(more).filter(|name| !has(name)) {
                lines.push(example(&format!("{table}.{name}")).to_owned());
            }
        }
        match path.strip_prefix("process[].probe.").and_then(|rest| rest.split_once('.')) {
            Some((kind, last)) if !has("probe") => {
                // A socket has no TLS.
                let place = match last {
                    "tls" => "address = \"10.0.0.7:3306\"",
                    "ca_file" => "address = \"10.0.0.7:3306\", tls = true",
                    _ => "socket = \"/run/server\"",
                };
                lines.push(format!("probe = {{ {kind} = {{ {place}, {own} }} }}"));
            }
            _ if is_head => {}
            _ => lines.push(own.to_owned()),
        }
        if has("mkfs_options") {
            lines.push("fstype = \"ext4\"".to_owned());
        }
        // A service has to run something.
        if has("pages") || plain.is_empty() || plain == "policy" || plain == "placement" {
            lines.extend([example("mount").to_owned(), example("mount.path").to_owned()]);
        }
        lines.join("\n")
    }

    #[test]
    fn every_field_has_a_meaning_and_each_meaning_a_field() {
        for (path, ..) in FIELDS.iter().filter(|(path, ..)| !is_element(path)) {
            let (_, words) = meaning(path).unwrap_or_else(|| panic!("{path} has no meaning in reference.rs"));
            assert!(words.ends_with('.') && !words.contains('|'), "{path}: {words}");
        }
        for (path, _) in MEANINGS {
            assert!(is_known(path), "{path} is no field any more");
        }
    }

    #[test]
    fn every_example_is_part_of_a_file_that_is_taken() {
        for (path, ..) in &FIELDS {
            let file = example_file(path);
            if let Err(error) = ServiceSpec::parse(&file) {
                panic!("{path}: {error}: {}\n{file}", error.remedy);
            }
        }
    }

    #[test]
    fn the_page_has_each_field_with_its_default_and_its_example() {
        let page = reference_page();
        for (path, _, example) in FIELDS.iter().filter(|(path, ..)| !is_element(path)) {
            assert!(page.contains(example), "{path}");
        }
        for line in [
            "| `fstype` | a string | `\"xfs\"` |",
            "| `grow` | true or false | `true` |",
            "| `start_timeout_s` | a whole number of seconds | `60` |",
            "| `ocf.monitor_interval_s` | a whole number of seconds | `10` |",
            "| `restart_limit` | a whole number | `3` |",
            "| `path` | a string | has to be there |",
            "| `hide_files` | true or false | `false` |",
            "| `user` | a string | not set |",
        ] {
            assert!(page.contains(line), "{line} is not in:\n{page}");
        }
    }
}
