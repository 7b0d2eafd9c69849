//! The fields of a service file as an operator writes them, and errors that name them.
//!
//! Guarantees
//! - An error of a type, a name or a missing field names the field by its path
//!   (`process[0].restart`) and its line, says what was found and what is expected, and shows an
//!   example.

use crate::spec::SpecError;
use mainstay_types::distance;

/// A field: its path, of lists without numbers; what it holds; an example.
type Field = (&'static str, &'static str, &'static str);

pub(crate) const FIELDS: [Field; 104] = [
    ("name", "a string", "name = \"db\""),
    ("resource", "a string", "resource = \"db\""),
    ("mount", "a table", "[mount]"),
    ("mount.volume", "the number of a volume, from 0 on", "volume = 0"),
    ("mount.path", "a string", "path = \"/srv/db\""),
    ("mount.fstype", "a string", "fstype = \"xfs\""),
    ("mount.options", "a string, as for mount(8) -o", "options = \"noatime,discard\""),
    ("mount.mkfs", "true or false", "mkfs = true"),
    ("mount.mkfs_options", "a list of strings", "mkfs_options = [\"-O\", \"bigalloc\", \"-C\", \"16384\"]"),
    ("mount.mkfs_options[]", "a string", "mkfs_options = [\"-O\", \"bigalloc\", \"-C\", \"16384\"]"),
    ("mount.hide_files", "true or false", "hide_files = false"),
    ("mount.grow", "true or false", "grow = true"),
    ("process", "a list of tables", "[[process]]"),
    ("process[]", "a table", "[[process]]"),
    ("process[].name", "a string", "name = \"mysqld\""),
    ("process[].command", "a list of strings", "command = [\"/usr/sbin/mysqld\", \"--datadir=/srv/db\"]"),
    ("process[].command[]", "a string", "command = [\"/usr/sbin/mysqld\", \"--port=3306\"]"),
    ("process[].ocf", "a table", "ocf = { agent = \"ocf:heartbeat:pgsql\" }"),
    ("process[].ocf.agent", "a string", "ocf = { agent = \"ocf:heartbeat:pgsql\" }"),
    (
        "process[].ocf.params",
        "a table of strings",
        "ocf = { agent = \"ocf:heartbeat:pgsql\", params = { pgdata = \"/srv/db/data\" } }",
    ),
    (
        "process[].ocf.params.",
        "a string",
        "ocf = { agent = \"ocf:heartbeat:pgsql\", params = { pgport = \"5432\" } }",
    ),
    (
        "process[].ocf.monitor_interval_s",
        "a whole number of seconds",
        "ocf = { agent = \"ocf:heartbeat:pgsql\", monitor_interval_s = 10 }",
    ),
    (
        "process[].ocf.monitor_timeout_s",
        "a whole number of seconds",
        "ocf = { agent = \"ocf:heartbeat:pgsql\", monitor_timeout_s = 20 }",
    ),
    (
        "process[].ocf.monitor_failures",
        "a whole number",
        "ocf = { agent = \"ocf:heartbeat:pgsql\", monitor_failures = 2 }",
    ),
    ("process[].unit", "the name of a unit", "unit = \"mariadb.service\""),
    ("process[].prepare", "a list of strings", "prepare = [\"/usr/local/bin/init-db\"]"),
    ("process[].prepare[]", "a string", "prepare = [\"/usr/local/bin/init-db\", \"/srv/db\"]"),
    ("process[].user", "a string", "user = \"mysql\""),
    ("process[].prepare_user", "a string", "prepare_user = \"root\""),
    ("process[].env", "a table of strings", "env = { TZ = \"UTC\" }"),
    ("process[].env.", "a string", "env = { THREADS = \"4\" }"),
    ("process[].start_timeout_s", "a whole number of seconds", "start_timeout_s = 60"),
    ("process[].stop_timeout_s", "a whole number of seconds", "stop_timeout_s = 30"),
    ("process[].stop_signal", "a string", "stop_signal = \"SIGTERM\""),
    ("process[].ready", "one of command, tcp and delay_s", "ready = { tcp = \"127.0.0.1:3306\" }"),
    (
        "process[].ready.command",
        "a list of strings",
        "ready = { command = [\"/usr/bin/mysqladmin\", \"ping\"] }",
    ),
    ("process[].ready.command[]", "a string", "ready = { command = [\"/usr/bin/mysqladmin\", \"ping\"] }"),
    ("process[].ready.tcp", "a string", "ready = { tcp = \"127.0.0.1:3306\" }"),
    ("process[].ready.delay_s", "a whole number of seconds", "ready = { delay_s = 5 }"),
    (
        "process[].probe",
        "one of mariadb, mysql, postgresql, tcp, http and command",
        "probe = { mariadb = { socket = \"/run/mysqld/mysqld.sock\" } }",
    ),
    ("process[].probe.mariadb", "a table", "probe = { mariadb = { socket = \"/run/mysqld/mysqld.sock\" } }"),
    (
        "process[].probe.mariadb.socket",
        "a string",
        "probe = { mariadb = { socket = \"/run/mysqld/mysqld.sock\" } }",
    ),
    ("process[].probe.mariadb.address", "a string", "probe = { mariadb = { address = \"127.0.0.1:3306\" } }"),
    ("process[].probe.mariadb.user", "a string", "user = \"probe\""),
    ("process[].probe.mariadb.password_file", "a string", "password_file = \"/etc/mainstay/probe.password\""),
    ("process[].probe.mariadb.statement", "a string", "statement = \"SELECT 1\""),
    ("process[].probe.mariadb.write_table", "a string", "write_table = \"mainstay.probe\""),
    ("process[].probe.mariadb.tls", "true or false", "tls = true"),
    ("process[].probe.mariadb.ca_file", "a string", "ca_file = \"/etc/mainstay/database-ca.pem\""),
    ("process[].probe.mysql", "a table", "probe = { mysql = { socket = \"/run/mysqld/mysqld.sock\" } }"),
    (
        "process[].probe.mysql.socket",
        "a string",
        "probe = { mysql = { socket = \"/run/mysqld/mysqld.sock\" } }",
    ),
    ("process[].probe.mysql.address", "a string", "probe = { mysql = { address = \"127.0.0.1:3306\" } }"),
    ("process[].probe.mysql.user", "a string", "user = \"probe\""),
    ("process[].probe.mysql.password_file", "a string", "password_file = \"/etc/mainstay/probe.password\""),
    ("process[].probe.mysql.statement", "a string", "statement = \"SELECT 1\""),
    ("process[].probe.mysql.write_table", "a string", "write_table = \"mainstay.probe\""),
    ("process[].probe.mysql.tls", "true or false", "tls = true"),
    ("process[].probe.mysql.ca_file", "a string", "ca_file = \"/etc/mainstay/database-ca.pem\""),
    ("process[].probe.postgresql", "a table", "probe = { postgresql = { socket = \"/run/postgresql\" } }"),
    (
        "process[].probe.postgresql.socket",
        "a string",
        "probe = { postgresql = { socket = \"/run/postgresql\" } }",
    ),
    (
        "process[].probe.postgresql.address",
        "a string",
        "probe = { postgresql = { address = \"127.0.0.1:5432\" } }",
    ),
    ("process[].probe.postgresql.user", "a string", "user = \"probe\""),
    (
        "process[].probe.postgresql.password_file",
        "a string",
        "password_file = \"/etc/mainstay/probe.password\"",
    ),
    ("process[].probe.postgresql.database", "a string", "database = \"postgres\""),
    ("process[].probe.postgresql.statement", "a string", "statement = \"SELECT 1\""),
    ("process[].probe.postgresql.write_table", "a string", "write_table = \"public.mainstay_probe\""),
    ("process[].probe.postgresql.tls", "true or false", "tls = true"),
    ("process[].probe.postgresql.ca_file", "a string", "ca_file = \"/etc/mainstay/database-ca.pem\""),
    ("process[].probe.postgresql.port", "the number of a port", "port = 5433"),
    ("process[].probe.tcp", "a string or a table", "probe = { tcp = \"127.0.0.1:3306\" }"),
    ("process[].probe.http", "a string or a table", "probe = { http = \"http://127.0.0.1:8080/health\" }"),
    ("process[].probe.command", "a list of strings", "probe = { command = [\"/usr/local/bin/check-app\"] }"),
    ("process[].probe.command[]", "a string", "probe = { command = [\"/usr/local/bin/check-app\"] }"),
    ("process[].probe_interval_s", "a whole number of seconds", "probe_interval_s = 2"),
    ("process[].probe_timeout_s", "a whole number of seconds", "probe_timeout_s = 3"),
    ("process[].probe_failures", "a whole number", "probe_failures = 3"),
    ("process[].pages", "a table", "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"] }"),
    (
        "process[].pages.size",
        "a number of bytes",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"] }",
    ),
    (
        "process[].pages.arguments",
        "a list of strings",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"] }",
    ),
    (
        "process[].pages.arguments[]",
        "a string",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"] }",
    ),
    (
        "process[].pages.path",
        "a string",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"], path = \"/srv/db\" }",
    ),
    (
        "process[].pages.buffered",
        "true or false",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"], buffered = true }",
    ),
    (
        "process[].pages.interval_s",
        "a whole number of seconds",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"], interval_s = 86400 }",
    ),
    (
        "process[].pages.timeout_s",
        "a whole number of seconds",
        "pages = { size = 16384, arguments = [\"--innodb-doublewrite=OFF\"], timeout_s = 10 }",
    ),
    ("vip", "a table or a list of tables", "[vip]"),
    ("vip.address", "a string", "address = \"10.0.0.7/24\""),
    ("vip.interface", "a string", "interface = \"eth0\""),
    ("vip[]", "a table", "[[vip]]"),
    ("vip[].address", "a string", "address = \"10.0.0.7/24\""),
    ("vip[].interface", "a string", "interface = \"eth0\""),
    ("placement", "a table", "[placement]"),
    ("placement.after", "a list of names of services", "after = [\"storage\"]"),
    ("placement.after[]", "the name of a service, as a string", "after = [\"storage\"]"),
    ("placement.with", "the name of a service, as a string", "with = \"storage\""),
    ("placement.apart", "a list of names of services", "apart = [\"db-2\"]"),
    ("placement.apart[]", "the name of a service, as a string", "apart = [\"db-2\"]"),
    ("placement.avoid", "a list of names of nodes", "avoid = [\"n3\"]"),
    ("placement.avoid[]", "the name of a node, as a string", "avoid = [\"n3\"]"),
    ("policy", "a table", "[policy]"),
    ("policy.restart_limit", "a whole number", "restart_limit = 3"),
    ("policy.window_s", "a whole number of seconds", "window_s = 600"),
    ("policy.preferred", "the name of a node, or a list of such names", "preferred = [\"n1\", \"n2\"]"),
    ("policy.preferred[]", "the name of a node, as a string", "preferred = [\"n1\", \"n2\"]"),
    ("policy.failback", "true or false", "failback = false"),
];

/// Names that are taken for another field by habit from other systems, and the field that does this
/// here.
const HABITS: [(&str, &str); 10] = [
    ("restart", "policy.restart_limit"),
    ("restarts", "policy.restart_limit"),
    ("timeout", "start_timeout_s or stop_timeout_s"),
    ("type", "mount.fstype"),
    ("device", "mount.volume"),
    ("args", "command, a list of the program and its arguments"),
    ("exec", "command, a list of the program and its arguments"),
    ("environment", "env"),
    ("ip", "vip.address"),
    ("dir", "mount.path"),
];

/// The paths of the direct fields of a table; the empty path is that of the file.
pub(crate) fn fields_of(table: &str) -> Vec<&'static str> {
    let direct = |path: &'static str| {
        let rest = if table.is_empty() { path } else { path.strip_prefix(table)?.strip_prefix('.')? };
        (!rest.is_empty() && !rest.contains(['.', '['])).then_some(rest)
    };
    FIELDS.iter().filter_map(|(path, ..)| direct(path)).collect()
}

/// The path without the numbers of lists, and without the names of variables.
fn plain(path: &str) -> String {
    let mut plain = String::new();
    let mut inside = false;
    for c in path.chars() {
        inside = (inside || c == '[') && c != ']';
        if !inside || c == '[' {
            plain.push(c);
        }
    }
    let tables = [".env.", ".ocf.params."];
    let named = tables.iter().find_map(|table| Some(format!("{}{table}", plain.split_once(table)?.0)));
    named.unwrap_or(plain)
}

fn field(path: &str) -> Option<&'static Field> {
    let path = plain(path);
    FIELDS.iter().find(|(known, ..)| *known == path)
}

/// Returns the kind of value that a field holds.
pub(crate) fn holds_of(path: &str) -> Option<&'static str> {
    field(path).map(|(_, holds, _)| *holds)
}

/// An example of a field, as it is written in a file.
pub(crate) fn example_of(path: &str) -> Option<&'static str> {
    field(path).map(|(.., example)| *example)
}

/// Whether there is such a field.
pub(crate) fn is_known(path: &str) -> bool {
    field(path).is_some()
}

/// Whether the field is true or false, and false where it is not written.
pub(crate) fn is_switch(path: &str) -> bool {
    field(path).is_some_and(|(_, holds, _)| *holds == "true or false")
}

fn joined(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

/// Returns the text in the first pair of backquotes.
fn quoted(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

/// Returns in plain words what the parser found: the parser names types of its own.
fn found(text: &str) -> String {
    let (kind, value) = text.split_once(' ').unwrap_or((text, ""));
    let value = value.trim_matches('`');
    match kind {
        "string" => format!("the string {value}"),
        "integer" => format!("the number {value}"),
        "floating" => format!("the number {}", value.trim_start_matches("point ").trim_matches('`')),
        "boolean" => format!("the word {value} without quotes"),
        "map" => "a table".into(),
        "sequence" => "a list".into(),
        _ => text.to_owned(),
    }
}

/// Returns the remedy for a name that is no field of `table`.
fn instead(table: &str, name: &str) -> String {
    let fields = fields_of(&plain(table));
    let near = fields.iter().map(|field| (distance(name, field), field)).min();
    let elsewhere = || {
        let mut other =
            FIELDS.iter().filter(|(path, ..)| path.rsplit_once('.').is_some_and(|(_, last)| last == name));
        other.next().map(|(path, ..)| *path)
    };
    let hint = match near {
        Some((1..=2, near)) if name.len() > 2 => format!("did you mean {near}? "),
        _ => match elsewhere()
            .or_else(|| HABITS.iter().find(|(habit, _)| *habit == name).map(|(_, field)| *field))
        {
            Some(field) => format!("did you mean {field}? "),
            None => String::new(),
        },
    };
    let place = if table.is_empty() { "at the top of the file".to_owned() } else { format!("in {table}") };
    format!("{hint}correct the name or remove the line; {place} there can be {}", fields.join(", "))
}

/// Turns the parser's error into ours. `path`: of the field, as far as the parser came; empty for
/// the file itself. `line`: counted from 1.
pub(crate) fn error(path: &str, message: &str, line: Option<usize>) -> SpecError {
    let at = |field: String| match line {
        Some(line) if field.is_empty() => format!("line {line}"),
        Some(line) => format!("{field} (line {line})"),
        None if field.is_empty() => "file".into(),
        None => field,
    };
    let above = |name: &str| match path.strip_suffix(name) {
        Some(table) if table.is_empty() || table.ends_with('.') => table.trim_end_matches('.'),
        _ => path,
    };
    let example = |path: &str| field(path).map(|(.., example)| format!("write it like `{example}`"));
    let parts = |head: &str| message.strip_prefix(head).and_then(|rest| rest.rsplit_once(", expected "));
    if let Some(name) = quoted(message).filter(|_| message.starts_with("unknown field")) {
        let table = above(name);
        return SpecError {
            field: at(joined(table, name)),
            problem: "there is no such field".into(),
            remedy: instead(table, name),
        };
    }
    if let Some(name) = quoted(message).filter(|_| message.starts_with("unknown variant")) {
        let table = above(name);
        return SpecError {
            field: at(joined(table, name)),
            problem: format!(
                "there is no such field, and {table} is {}",
                field(table).map_or("a choice", |field| field.1)
            ),
            remedy: example(table).unwrap_or_else(|| "correct the name or remove the line".into()),
        };
    }
    if let Some(name) = quoted(message).filter(|_| message.starts_with("missing field")) {
        let field = joined(above(name), name);
        let remedy = example(&field)
            .map_or_else(|| "add the field".into(), |example| format!("add the field; {example}"));
        let problem = "missing field: it has to be there".into();
        return SpecError { field: at(field), problem, remedy };
    }
    if let Some((what, expected)) = parts("invalid type: ").or_else(|| parts("invalid value: ")) {
        let expected = field(path).map_or(expected, |field| field.1);
        return SpecError {
            field: at(path.into()),
            problem: format!("it is {}, and has to be {expected}", found(what)),
            remedy: example(path).unwrap_or_else(|| "correct the value there".into()),
        };
    }
    let words = message.lines().map(str::trim).collect::<Vec<_>>().join(", ");
    SpecError {
        field: at(path.into()),
        problem: format!("it is no TOML: {words}"),
        remedy: "correct the line; strings need quotes, each field a line of its own, and tables a [header]"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceSpec;

    const TOP: &str = "name = \"db\"\nresource = \"db\"\n";

    fn refused(text: &str) -> SpecError {
        ServiceSpec::parse(&format!("{TOP}{text}")).expect_err(text)
    }

    #[test]
    fn a_wrong_type_names_field_line_finding_and_example() {
        let process = "[[process]]\nname = \"a\"\ncommand = [\"a\"]\n";
        for (text, field, finding, expected) in [
            ("[mount]\npath = 5\n", "mount.path (line 4)", "the number 5", "a string"),
            (
                "[mount]\npath = \"/srv/a\"\nmkfs = \"yes\"\n",
                "mount.mkfs (line 5)",
                "the string \"yes\"",
                "true or false",
            ),
            (
                "[mount]\npath = \"/srv/a\"\nvolume = -1\n",
                "mount.volume (line 5)",
                "the number -1",
                "number of a volume",
            ),
            (
                "[mount]\npath = \"/srv/a\"\nvolume = 70000\n",
                "mount.volume (line 5)",
                "the number 70000",
                "number of a volume",
            ),
            ("[policy]\nwindow_s = \"10m\"\n", "policy.window_s (line 4)", "the string \"10m\"", "seconds"),
            ("[policy]\nwindow_s = 1.5\n", "policy.window_s (line 4)", "the number 1.5", "seconds"),
            ("[policy]\nfailback = 1\n", "policy.failback (line 4)", "the number 1", "true or false"),
            ("[vip]\naddress = [\"10.0.0.7/24\"]\n", "vip.address (line 4)", "a list", "a string"),
            (
                &format!("{process}start_timeout_s = \"30s\"\n"),
                "process[0].start_timeout_s (line 6)",
                "\"30s\"",
                "seconds",
            ),
            (
                &format!("{process}{process}env = {{ A = 1 }}\n"),
                "process[1].env.A (line 9)",
                "the number 1",
                "a string",
            ),
            (
                &format!("{process}ready = {{ delay_s = \"5\" }}\n"),
                "process[0].ready.delay_s (line 6)",
                "\"5\"",
                "seconds",
            ),
            (
                "[[process]]\nname = \"a\"\ncommand = \"/bin/a -x\"\n",
                "process[0].command (line 5)",
                "/bin/a -x",
                "list of strings",
            ),
            (
                "[[process]]\nname = \"a\"\ncommand = [\"a\", 7]\n",
                "process[0].command[1] (line 5)",
                "the number 7",
                "a string",
            ),
            ("[process]\nname = \"a\"\n", "process (line 3)", "a table", "a list of tables"),
        ] {
            let error = refused(text);
            assert_eq!(error.field, field, "{error} for {text}");
            assert!(error.problem.contains(finding) && error.problem.contains(expected), "{error}");
            assert!(error.remedy.starts_with("write it like `"), "{error}: {}", error.remedy);
        }
    }

    #[test]
    fn an_unknown_or_missing_field_is_named_with_the_possible_ones() {
        for (text, field, remedy) in [
            ("colour = \"red\"\n", "colour (line 3)", "mount, process, vip, placement, policy"),
            ("[mount]\npath = \"/srv/a\"\nfstyp = \"xfs\"\n", "mount.fstyp (line 5)", "did you mean fstype?"),
            (
                "[[process]]\nname = \"a\"\ncommand = [\"a\"]\nrestart = 3\n",
                "process[0].restart (line 6)",
                "policy.restart_limit",
            ),
            (
                "[[process]]\nname = \"a\"\ncommand = [\"a\"]\npath = \"x\"\n",
                "process[0].path (line 6)",
                "mount.path",
            ),
            ("[[process]]\nname = \"a\"\n", "process[0].command", "write it like `command = "),
            ("[mount]\n", "mount.path", "write it like `path = "),
            (
                "[[process]]\nname = \"a\"\ncommand = [\"a\"]\nready = { tpc = \"h:1\" }\n",
                "process[0].ready",
                "ready = { tcp",
            ),
        ] {
            let error = refused(text);
            assert!(error.field.starts_with(field), "{error} for {text}");
            assert!(error.remedy.contains(remedy), "{error}: {}", error.remedy);
        }
        let error = ServiceSpec::parse("resource = \"db\"\n").unwrap_err();
        assert!(error.field.starts_with("name") && error.remedy.contains("name = \"db\""), "{error}");
    }

    #[test]
    fn a_syntax_error_of_toml_names_its_line() {
        for text in [
            "name = [",
            "= 5",
            "[mount\npath = 1",
            "[mount]\npath = \"/srv/a\"\npath = \"/srv/b\"\n",
            "x = 5s\n",
            "\u{0}",
        ] {
            let error = refused(text);
            assert!(
                error.field.contains("line ") && error.problem.contains("no TOML"),
                "{error} for {text:?}"
            );
        }
    }

    #[test]
    fn every_field_that_a_file_can_have_is_in_the_list() {
        let known: Vec<String> = FIELDS.iter().map(|(path, ..)| (*path).to_owned()).collect();
        for table in ["", "mount", "process[0]", "vip", "policy"] {
            let text = match table {
                "" => format!("{TOP}zzzz = 1\n"),
                "process[0]" => format!("{TOP}[[process]]\nzzzz = 1\n"),
                table => format!("{TOP}[{table}]\nzzzz = 1\n"),
            };
            let message = toml::from_str::<ServiceSpec>(&text).unwrap_err().message().to_owned();
            let names: Vec<_> = message.split('`').skip(3).step_by(2).collect();
            assert!(names.len() > 1, "{message}");
            for name in names {
                assert!(known.contains(&joined(&plain(table), name)), "{table}.{name} has no example");
            }
        }
    }
}
