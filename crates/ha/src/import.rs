//! Translation of a promoter's configuration of drbd-reactor into a service file.
//!
//! | in `start` | becomes |
//! |---|---|
//! | `ocf:heartbeat:Filesystem` on a device of the resource, or a `.mount` unit | `[mount]` |
//! | `ocf:heartbeat:IPaddr2` | `[vip]` |
//! | another agent | `[[process]]` with `ocf` |
//! | a `.service` unit | `[[process]]` with `unit` |
//!
//! Guarantees
//! - Every entry and every option of the promoter is told of: what it became, or why it has no
//!   meaning here. Nothing is left out in silence.
//! - The file that is given is a specification that [`ServiceSpec::parse`] takes.

use crate::ocf::Ocf;
use crate::spec::{ServiceSpec, SpecError, name_field, valid_name};
use crate::unit;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A service file made of one resource of a promoter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Imported {
    pub name: String,
    pub toml: String,
    /// Entries and options with what they became.
    pub mapped: Vec<String>,
    /// Entries and options that have no meaning here, and why.
    pub left_out: Vec<String>,
}

/// Choices of an operator for a translation.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ImportChoices {
    /// Resource of the promoter that is translated; it has to be named if there are several.
    pub promoted: Option<String>,
    /// Name of the service; that of the resource if it is not given.
    pub name: Option<String>,
    /// Resource of Mainstay; the promoter's name for it if it is not given.
    pub resource: Option<String>,
}

/// Options of a promoter that have no meaning here, and why.
const OPTIONS: [(&str, &str); 14] = [
    (
        "on-drbd-demote-failure",
        "a node without a lease silences its services and refuses their writes; no node has to be restarted for that",
    ),
    (
        "on-stop-failure",
        "a node without a lease silences its services and refuses their writes; no node has to be restarted for that",
    ),
    ("secondary-force", "an unmount that is held up is answered by the time limits of the service"),
    (
        "stop-services-on-exit",
        "a service goes on while the agent is restarted, and ends before the lease does",
    ),
    ("target-as", "there are no targets: the order of the file is the order of the start"),
    (
        "dependencies-as",
        "there are no dependencies of units: the order of the file is the order of the start",
    ),
    ("sleep-before-promote-factor", "only a replica that is in sync is promoted, so nothing has to wait"),
    ("adjust-resource-on-start", "the settings of a resource are in the cluster and count at once"),
    ("on-disk-detach", "a primary whose disk fails hands over by itself"),
    ("fencing-promote-delay", "the lease of the old primary is waited for"),
    ("quorum", "a majority of the nodes is always needed"),
    ("preferred-nodes-policy", "it is in policy.failback"),
    ("stop", "processes are stopped in the reverse order of their start"),
    ("id", "a service has its name"),
];

/// Agents without a meaning here, and why.
const AGENTS: [(&str, &str); 3] = [
    (
        "ocf:heartbeat:portblock",
        "the floating address is added when everything else runs, so no port has to be blocked until then",
    ),
    ("ocf:heartbeat:SendArp", "the floating address is announced by itself"),
    ("ocf:linbit:drbd", "the resource of Mainstay is in its place"),
];

/// Translates one resource of a promoter. `unit_file` gives the text of a unit of this machine.
///
/// # Errors
/// When the text is no configuration of a promoter, when it has several resources and none was
/// chosen, or when it cannot become a service.
pub fn import(
    text: &str,
    choices: &ImportChoices,
    unit_file: &dyn Fn(&str) -> Option<String>,
) -> Result<Imported, SpecError> {
    let refused = |problem: String, remedy: &str| Err(SpecError::new("file", problem, remedy));
    let file: Table = match text.parse() {
        Ok(file) => file,
        Err(error) => {
            let error: toml::de::Error = error;
            return refused(
                format!("it is no TOML: {}", error.message()),
                "name a file of /etc/drbd-reactor.d",
            );
        }
    };
    let promoters = file.get("promoter").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let of_one = |promoter: &Value| {
        let resources = promoter.get("resources").and_then(Value::as_table).cloned().unwrap_or_default();
        resources
            .into_iter()
            .filter_map(|(name, options)| Some((name, options.as_table()?.clone())))
            .collect::<Vec<_>>()
    };
    let all: Vec<(String, Table)> = promoters.iter().flat_map(of_one).collect();
    let names = || all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let (promoted, options) = match (&choices.promoted, &all[..]) {
        (_, []) => {
            let problem = "it has no [promoter.resources.NAME]".to_owned();
            return refused(problem, "name a file with a promoter, as they are in /etc/drbd-reactor.d");
        }
        (None, [one]) => one,
        (None, _) => {
            return refused(
                format!("it has the resources {}", names()),
                "choose one of them with --promoted",
            );
        }
        (Some(wanted), all) => match all.iter().find(|(name, _)| name == wanted) {
            Some(one) => one,
            None => {
                return refused(
                    format!("it has no resource {wanted}, only {}", names()),
                    "correct --promoted",
                );
            }
        },
    };
    let mut import = Import::new(promoted);
    for name in file.keys().filter(|name| *name != "promoter") {
        import.leave_out(name, "it is of the daemon, and not of a service");
    }
    for name in promoters.iter().filter_map(Value::as_table).flat_map(Table::keys) {
        if name != "resources" {
            import.leave_out(name, option_words(name));
        }
    }
    import.options(options);
    import.entries(options, unit_file);
    import.finish(choices)
}

fn option_words(name: &str) -> &'static str {
    OPTIONS.iter().find(|(known, _)| *known == name).map_or("it is not known here", |(_, why)| why)
}

/// A translation under way.
struct Import<'a> {
    promoted: &'a str,
    mount: Option<Table>,
    processes: Vec<Table>,
    vip: Option<Table>,
    policy: Table,
    /// Entries of processes that an operator has to complete.
    to_complete: Vec<String>,
    mapped: Vec<String>,
    left_out: Vec<String>,
}

fn text(value: &str) -> Value {
    Value::String(value.to_owned())
}

impl<'a> Import<'a> {
    fn new(promoted: &'a str) -> Self {
        Self {
            promoted,
            mount: None,
            processes: Vec::new(),
            vip: None,
            policy: Table::new(),
            to_complete: Vec::new(),
            mapped: Vec::new(),
            left_out: Vec::new(),
        }
    }

    fn map(&mut self, what: &str, became: &str) {
        self.mapped.push(format!("{what}: {became}"));
    }

    fn leave_out(&mut self, what: &str, why: &str) {
        self.left_out.push(format!("{what}: {why}"));
    }

    fn options(&mut self, options: &Table) {
        let start_only = options.get("preferred-nodes-policy").and_then(Value::as_str) == Some("start-only");
        for (name, value) in options {
            let is = |word: &str| value.as_str() == Some(word);
            match name.as_str() {
                "start" => {}
                "preferred-nodes" => {
                    let nodes = value.as_array().map_or(&[][..], Vec::as_slice);
                    let nodes: Vec<&str> = nodes.iter().filter_map(Value::as_str).collect();
                    let Some((first, others)) = nodes.split_first() else { continue };
                    if !valid_name(first) {
                        self.leave_out(name, "its first node has a name that no node can have here");
                        continue;
                    }
                    self.policy.insert("preferred".into(), text(first));
                    self.policy.insert("failback".into(), Value::Boolean(!start_only));
                    self.map(name, &format!("policy.preferred = \"{first}\", failback = {}", !start_only));
                    if !others.is_empty() {
                        self.leave_out(
                            &format!("{name}, all but the first"),
                            "a service has one preferred node; of the others the one with the newest data is chosen",
                        );
                    }
                }
                "preferred-nodes-policy" if options.contains_key("preferred-nodes") => {}
                "runner" if is("systemd") => self.map(name, "systemd runs its units, when the agent says so"),
                "runner" if is("shell") => {}
                "on-quorum-loss" if is("shutdown") => {
                    self.map(name, "a node without a majority stops its services before its lease ends");
                }
                "on-quorum-loss" => {
                    self.leave_out(name, "processes are not frozen: they end before the lease does")
                }
                name => self.leave_out(name, option_words(name)),
            }
        }
    }

    fn entries(&mut self, options: &Table, unit_file: &dyn Fn(&str) -> Option<String>) {
        let shell = options.get("runner").and_then(Value::as_str) == Some("shell");
        let start = options.get("start").and_then(Value::as_array).cloned().unwrap_or_default();
        for entry in &start {
            let Some(entry) = entry.as_str().map(str::trim) else {
                self.leave_out(&entry.to_string(), "it is no string");
                continue;
            };
            if shell {
                self.leave_out(
                    entry,
                    "a script of the runner shell ends by itself; write the program that it starts, in the foreground, as the command of a [[process]]",
                );
            } else if entry.starts_with("ocf:") {
                self.agent(entry);
            } else {
                self.unit(entry, unit_file);
            }
        }
    }

    fn agent(&mut self, entry: &str) {
        let words = words_of(entry);
        let (Some(agent), instance) = (words.first(), words.get(1)) else { return };
        let params: BTreeMap<&str, &str> =
            words.iter().skip(2).filter_map(|word| word.split_once('=')).collect();
        let what = match instance {
            Some(instance) => format!("{agent} {instance}"),
            None => agent.clone(),
        };
        match agent.as_str() {
            "ocf:heartbeat:Filesystem" => self.file_system(&what, &params),
            "ocf:heartbeat:IPaddr2" | "ocf:heartbeat:IPaddr" => self.address(&what, &params),
            agent => {
                if let Some((_, why)) = AGENTS.iter().find(|(known, _)| *known == agent) {
                    return self.leave_out(&what, why);
                }
                let owned = params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
                let ocf = Ocf::new(agent, owned.collect());
                if let Err(error) = ocf.validate("ocf") {
                    return self.leave_out(&what, &format!("{}; {}", error.problem, error.remedy));
                }
                let name = self.process_name(instance.map_or(agent, String::as_str));
                let mut table = Table::from_iter([("agent".to_owned(), text(agent))]);
                if !params.is_empty() {
                    let params = params.iter().map(|(name, value)| ((*name).to_owned(), text(value)));
                    table.insert("params".into(), Value::Table(params.collect()));
                }
                self.map(&what, &format!("process {name} with ocf"));
                self.processes.push(Table::from_iter([
                    ("name".to_owned(), text(&name)),
                    ("ocf".to_owned(), Value::Table(table)),
                ]));
            }
        }
    }

    fn file_system(&mut self, what: &str, params: &BTreeMap<&str, &str>) {
        let (device, path) = (params.get("device").copied(), params.get("directory").copied());
        let (Some(device), Some(path)) = (device, path) else {
            return self.leave_out(what, "it names no device or no directory");
        };
        let by_name = device.strip_prefix(&format!("/dev/drbd/by-res/{}/", self.promoted));
        let volume = match by_name {
            Some(volume) => volume.parse::<u16>().ok(),
            None if device.starts_with("/dev/drbd") && !device.starts_with("/dev/drbd/") => Some(0),
            None => None,
        };
        let Some(volume) = volume else {
            return self.leave_out(what, &format!("{device} is no device of {}", self.promoted));
        };
        if self.mount.is_some() {
            return self.leave_out(what, "a service mounts one file system; make a second service of it");
        }
        let fstype = params.get("fstype").copied().unwrap_or("xfs");
        let mut mount = Table::from_iter([
            ("volume".to_owned(), Value::Integer(volume.into())),
            ("path".to_owned(), text(path)),
            ("fstype".to_owned(), text(fstype)),
        ]);
        if let Some(options) = params.get("options") {
            mount.insert("options".into(), text(options));
        }
        let sure = if by_name.is_some() { "" } else { "; check that it is this volume" };
        self.map(what, &format!("[mount] of volume {volume}{sure}"));
        for name in
            params.keys().filter(|name| !matches!(**name, "device" | "directory" | "fstype" | "options"))
        {
            self.leave_out(&format!("{what} {name}"), "the mount is watched and made anew by itself");
        }
        self.mount = Some(mount);
    }

    fn address(&mut self, what: &str, params: &BTreeMap<&str, &str>) {
        let Some(ip) = params.get("ip") else { return self.leave_out(what, "it names no ip") };
        if self.vip.is_some() {
            return self.leave_out(what, "a service has one floating address; make a second service of it");
        }
        let prefix = params.get("cidr_netmask").map(|mask| prefix_of(mask));
        let (prefix, sure) = match prefix {
            Some(Some(prefix)) => (prefix, ""),
            _ => (24, "; check the length of its prefix"),
        };
        let address = format!("{ip}/{prefix}");
        let mut vip = Table::from_iter([("address".to_owned(), text(&address))]);
        if let Some(nic) = params.get("nic") {
            vip.insert("interface".into(), text(nic));
        }
        self.map(what, &format!("[vip] {address}{sure}; it is added when all processes run"));
        for name in params.keys().filter(|name| !matches!(**name, "ip" | "cidr_netmask" | "nic")) {
            self.leave_out(&format!("{what} {name}"), "the address is probed and announced by itself");
        }
        self.vip = Some(vip);
    }

    fn unit(&mut self, entry: &str, unit_file: &dyn Fn(&str) -> Option<String>) {
        let Some((base, kind)) = entry.rsplit_once('.').filter(|(base, _)| !base.is_empty()) else {
            return self.leave_out(entry, "it is no unit: it has no ending such as .service");
        };
        if base.starts_with("drbd-") || base.starts_with("drbd@") {
            return self.leave_out(entry, "it is of DRBD");
        }
        if kind == "mount" {
            if self.mount.is_some() {
                return self
                    .leave_out(entry, "a service mounts one file system; make a second service of it");
            }
            let path = path_of_unit(base);
            self.map(
                entry,
                &format!(
                    "[mount] at {path}; check volume, fstype and options against the unit, and disable it"
                ),
            );
            self.mount = Some(Table::from_iter([("path".to_owned(), text(&path))]));
            return;
        }
        if kind != "service" {
            return self.leave_out(entry, &format!("Mainstay runs no units of the kind {kind}"));
        }
        let unit = entry;
        if let Err(error) = unit::validate("unit", unit) {
            return self.leave_out(entry, &format!("{}; {}", error.problem, error.remedy));
        }
        if self.processes.iter().any(|table| table.get("unit") == Some(&text(unit))) {
            return self.leave_out(entry, "it is there already");
        }
        let name = self.process_name(base);
        let unit_text = unit_file(unit);
        if unit_text.as_deref().and_then(type_of_unit) == Some("oneshot") {
            self.leave_out(
                entry,
                &format!(
                    "it is a unit of Type=oneshot, which runs nothing that could be watched; write its command as `prepare` of a process, or complete process {name} below"
                ),
            );
            self.to_complete.push(name);
            return;
        }
        let here = if unit_text.is_none() { " (there is no such unit on this machine)" } else { "" };
        self.map(
            entry,
            &format!("process {name} with unit{here}; run `systemctl disable --now {unit}` on every node"),
        );
        self.processes
            .push(Table::from_iter([("name".to_owned(), text(&name)), ("unit".to_owned(), text(unit))]));
    }

    /// A name that a process may have and no other one has.
    fn process_name(&self, wanted: &str) -> String {
        let wanted = wanted.rsplit(':').next().unwrap_or(wanted);
        let base = plain_name(wanted);
        let base = if base.is_empty() { "process".to_owned() } else { base };
        let taken = |name: &str| {
            let made = self.processes.iter().any(|table| table.get("name") == Some(&text(name)));
            made || self.to_complete.iter().any(|other| other == name)
        };
        let mut name = base.clone();
        let mut number = 2;
        while taken(&name) {
            let end = format!("-{number}");
            name = format!("{}{end}", &base[..base.len().min(32 - end.len())]);
            number += 1;
        }
        name
    }

    fn finish(self, choices: &ImportChoices) -> Result<Imported, SpecError> {
        let resource = choices.resource.clone().unwrap_or_else(|| plain_name(self.promoted));
        let name = choices.name.clone().unwrap_or_else(|| plain_name(self.promoted));
        name_field("name", &name)?;
        name_field("resource", &resource)?;
        let mut toml = format!(
            "# Made by `mainstay service import FILE` of resource {} of a promoter of drbd-reactor.\n",
            self.promoted.escape_default()
        );
        for (head, lines) in [("It became", &self.mapped), ("It has no meaning here", &self.left_out)] {
            if !lines.is_empty() {
                toml += &format!("# {head}:\n");
                for line in lines {
                    // A name may have ends of lines in it.
                    toml += &format!("# - {}\n", line.replace(char::is_control, " "));
                }
            }
        }
        toml += &format!("name = {}\nresource = {}\n", text(&name), text(&resource));
        let mut section = |head: &str, table: &Table| {
            toml += &format!("\n{head}\n");
            for (name, value) in table {
                toml += &format!("{name} = {value}\n");
            }
        };
        if let Some(mount) = &self.mount {
            section("[mount]", mount);
        }
        for process in &self.processes {
            section("[[process]]", process);
        }
        for name in &self.to_complete {
            toml += &format!(
                "\n# [[process]]\n# name = \"{name}\"\n# command = [\"/path/of/the/program\", \"its arguments\"]\n"
            );
        }
        let mut section = |head: &str, table: &Table| {
            toml += &format!("\n{head}\n");
            for (name, value) in table {
                toml += &format!("{name} = {value}\n");
            }
        };
        if let Some(vip) = &self.vip {
            section("[vip]", vip);
        }
        if !self.policy.is_empty() {
            section("[policy]", &self.policy);
        }
        if self.mount.is_none() && self.processes.is_empty() && self.vip.is_none() {
            return Err(SpecError::new(
                "file",
                format!("nothing of it can run here: {}", self.left_out.join("; ")),
                "write a service file by hand; docs/services.md shows one",
            ));
        }
        ServiceSpec::parse(&toml)?;
        Ok(Imported { name, toml, mapped: self.mapped, left_out: self.left_out })
    }
}

/// The `Type=` of a unit, if it names one.
fn type_of_unit(unit: &str) -> Option<&str> {
    let lines = unit.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let mut in_service = false;
    let mut kind = None;
    for line in lines {
        if line.starts_with('[') {
            in_service = line == "[Service]";
        } else if let (true, Some((name, value))) = (in_service, line.split_once('='))
            && name.trim() == "Type"
        {
            kind = Some(value.trim()).filter(|value| !value.is_empty());
        }
    }
    kind
}

/// The nearest name that something may have here.
fn plain_name(name: &str) -> String {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => '-',
    };
    let plain: String = name.chars().map(letter).collect();
    let mut plain = plain.trim_matches('-').to_owned();
    plain.truncate(32);
    plain
}

/// The length of a netmask that is written as a number or as an address.
fn prefix_of(mask: &str) -> Option<u8> {
    if let Ok(prefix) = mask.parse::<u8>() {
        return (1..=128).contains(&prefix).then_some(prefix);
    }
    let bits = mask.parse::<std::net::Ipv4Addr>().ok()?.to_bits();
    (bits.leading_ones() + bits.trailing_zeros() == 32).then_some(bits.leading_ones() as u8)
}

/// The path of a mount unit, after systemd-escape(1).
fn path_of_unit(base: &str) -> String {
    let mut path = String::from("/");
    let mut rest = base;
    while let Some(c) = rest.chars().next() {
        if let Some(hex) = rest.strip_prefix("\\x").and_then(|rest| rest.get(..2))
            && let Ok(byte) = u8::from_str_radix(hex, 16)
        {
            path.push(char::from(byte));
            rest = &rest[4..];
            continue;
        }
        path.push(if c == '-' { '/' } else { c });
        rest = &rest[c.len_utf8()..];
    }
    path
}

/// The words of an entry, as a shell takes them apart.
fn words_of(entry: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = entry.chars();
    while let Some(c) = letters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_with(String::new);
            }
            (None | Some('"'), '\\') => word.get_or_insert_with(String::new).extend(letters.next()),
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_with(String::new).push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMOTER: &str = r#"
[[log]]
level = "info"
[[promoter]]
id = "db"
[promoter.resources.my_DB]
start = [
  "ocf:heartbeat:Filesystem fs_db device=/dev/drbd/by-res/my_DB/1 directory=/srv/db fstype=ext4 options=noatime run_fsck=no",
  "mariadb.service",
  """ocf:heartbeat:anything app binfile=/bin/app cmdline_options='-x "1 2"'""",
  "ocf:heartbeat:portblock block ip=10.0.0.7",
  "ocf:heartbeat:IPaddr2 vip ip=10.0.0.7 cidr_netmask=255.255.240.0 nic=eth1",
]
runner = "systemd"
on-drbd-demote-failure = "reboot-immediate"
stop-services-on-exit = true
preferred-nodes = ["alpha", "beta"]
preferred-nodes-policy = "start-only"
on-quorum-loss = "shutdown"
"#;

    fn unit_file(name: &str) -> Option<String> {
        let service = |lines: &str| format!("[Unit]\nType=oneshot\n[Service]\n{lines}\n[Install]\n");
        match name {
            "mariadb.service" => Some(service("# Type=oneshot\nType=oneshot\nType=notify\nUser=mysql")),
            "once.service" => Some(service("Type = oneshot\nExecStart=/bin/true")),
            "none.service" => None,
            _ => Some(service("ExecStart=-/bin/sleep 1000")),
        }
    }

    fn imported(text: &str) -> Imported {
        import(text, &ImportChoices::default(), &unit_file)
            .unwrap_or_else(|error| panic!("{error}: {}", error.remedy))
    }

    #[test]
    fn a_promoter_becomes_a_service_and_nothing_is_left_out_in_silence() {
        let imported = imported(PROMOTER);
        let spec = ServiceSpec::parse(&imported.toml).unwrap();
        assert_eq!((&*imported.name, &*spec.name, &*spec.resource), ("my-db", "my-db", "my-db"));
        let mount = spec.mount.unwrap();
        assert_eq!(
            (mount.volume, &*mount.path, &*mount.fstype, &*mount.options),
            (1, "/srv/db", "ext4", "noatime")
        );
        assert!(!mount.mkfs, "a file system with data is never made anew");
        let names: Vec<_> = spec.processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["mariadb", "app"]);
        let mariadb = &spec.processes[0];
        assert_eq!(mariadb.unit.as_deref(), Some("mariadb.service"));
        assert_eq!(spec.processes[1].ocf.as_ref().unwrap().params["cmdline_options"], "-x \"1 2\"");
        let vip = spec.vips[0].clone();
        assert_eq!((&*vip.address, vip.interface.as_deref()), ("10.0.0.7/20", Some("eth1")));
        assert_eq!(
            (spec.policy.preferred.first().map(String::as_str), spec.policy.failback),
            (Some("alpha"), false)
        );
        let said = format!("{:?} {:?}", imported.mapped, imported.left_out);
        for word in [
            "log",
            "id",
            "fs_db",
            "run_fsck",
            "mariadb.service",
            "anything app",
            "portblock",
            "IPaddr2 vip",
            "runner",
            "on-drbd-demote-failure",
            "stop-services-on-exit",
            "preferred-nodes",
            "all but the first",
            "on-quorum-loss",
        ] {
            assert!(said.contains(word), "{word} is left out in silence: {said}");
            assert!(word == "log" || imported.toml.contains(word), "{word} is not in the file");
        }
    }

    #[test]
    fn units_become_mounts_and_processes_by_their_ending() {
        let text = r#"
[[promoter]]
[promoter.resources.r]
start = ["var-lib-my\\x2ddb.mount", "drbd-reconfigure-suspend-or-error@r.service", "a@x.service", "a@x.service", "b.target", "c", "once.service", "t@.service", "none.service"]
"#;
        let imported = imported(text);
        let spec = ServiceSpec::parse(&imported.toml).unwrap();
        assert_eq!(spec.mount.unwrap().path, "/var/lib/my-db");
        let names: Vec<_> = spec.processes.iter().map(|process| process.name.as_str()).collect();
        assert_eq!(names, ["a-x", "none"]);
        let units: Vec<_> = spec.processes.iter().filter_map(|process| process.unit.as_deref()).collect();
        assert_eq!(units, ["a@x.service", "none.service"]);
        assert_eq!(imported.left_out.len(), 6, "{:?}", imported.left_out);
        assert!(imported.toml.contains("# name = \"once\""), "{}", imported.toml);
        assert!(imported.mapped.iter().any(|line| line.contains("no such unit on this machine")));
    }

    #[test]
    fn what_cannot_become_a_service_is_refused_with_a_reason() {
        let resource = |name: &str, start: &str| format!("[promoter.resources.{name}]\nstart = [{start}]\n");
        let two = format!("[[promoter]]\n{}{}", resource("a", "'a.service'"), resource("b", "'b.service'"));
        for (text, choices, word) in [
            ("= 1", ImportChoices::default(), "no TOML"),
            ("[[umh]]\n", ImportChoices::default(), "promoter.resources"),
            ("[promoter]\n", ImportChoices::default(), "promoter.resources"),
            (&two, ImportChoices::default(), "resources a, b"),
            (&two, ImportChoices { promoted: Some("c".into()), ..Default::default() }, "no resource c"),
            (&format!("[[promoter]]\n{}", resource("a", "")), ImportChoices::default(), "nothing of it"),
            (
                &format!("[[promoter]]\n{}", resource("'---'", "'a.service'")),
                ImportChoices::default(),
                "valid name",
            ),
            (
                &format!(
                    "[[promoter]]\n{}",
                    resource("a", "'ocf:heartbeat:IPaddr2 x ip=127.0.0.1 cidr_netmask=8'")
                ),
                ImportChoices::default(),
                "loopback",
            ),
            (
                &format!("[[promoter]]\n{}runner = 'shell'\n", resource("a", "'/bin/a'")),
                ImportChoices::default(),
                "foreground",
            ),
        ] {
            let refused = import(text, &choices, &unit_file).expect_err(text);
            assert!(refused.problem.contains(word) && !refused.remedy.is_empty(), "{refused} for {text}");
        }
        let chosen =
            ImportChoices { promoted: Some("b".into()), name: Some("n".into()), resource: Some("r".into()) };
        let imported = import(&two, &chosen, &unit_file).unwrap();
        let spec = ServiceSpec::parse(&imported.toml).unwrap();
        assert_eq!((&*spec.name, &*spec.resource, &*spec.processes[0].name), ("n", "r", "b"));
    }

    #[test]
    fn a_device_of_another_resource_is_not_mounted() {
        let text = |device: &str| {
            format!(
                "[[promoter]]\n[promoter.resources.a]\nstart = ['x.service', 'ocf:heartbeat:Filesystem f device={device} directory=/srv/a']\n"
            )
        };
        for (device, mounts) in [
            ("/dev/drbd/by-res/a/0", true),
            ("/dev/drbd7", true),
            ("/dev/drbd/by-res/b/0", false),
            ("nfs:/export", false),
            ("/dev/sda1", false),
        ] {
            let imported = imported(&text(device));
            assert_eq!(ServiceSpec::parse(&imported.toml).unwrap().mount.is_some(), mounts, "{device}");
            assert_eq!(imported.left_out.is_empty(), mounts, "{:?}", imported.left_out);
        }
    }
}
