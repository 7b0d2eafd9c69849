//! Names of D-Bus whose first use starts a unit of systemd.
//!
//! D-Bus reads files `*.service` in the directories of dbus-daemon(1),
//! `standard_system_servicedirs`. The first file of a name counts. One with a line
//! `SystemdService=` starts that unit.

use mainstay_ha::{Starts, UnitStarter};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The directories, in the order in which they count.
pub(super) const PLACES: [&str; 5] = [
    "/etc/dbus-1/system-services",
    "/run/dbus-1/system-services",
    "/usr/local/share/dbus-1/system-services",
    "/usr/share/dbus-1/system-services",
    "/lib/dbus-1/system-services",
];
/// Most files that are read in one directory.
const FILES_MAX: usize = 1000;
/// Longest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Returns the names whose first use starts a unit that is called one of `called`.
pub(super) fn names_that_start<P: AsRef<Path>>(places: &[P], called: &[String]) -> Vec<UnitStarter> {
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for place in places {
        let Ok(entries) = fs::read_dir(place) else { continue };
        let paths = entries.flatten().take(FILES_MAX).map(|entry| entry.path());
        for path in paths.filter(|path| path.extension().is_some_and(|end| end == "service")) {
            if fs::metadata(&path).map_or(true, |file| file.len() > FILE_BYTES_MAX) {
                continue;
            }
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let Some(name) = value(&text, "Name") else { continue };
            if !seen.insert(name.to_owned()) {
                continue;
            }
            let starts = value(&text, "SystemdService");
            if starts.is_some_and(|unit| called.iter().any(|other| other == unit)) {
                found.push(UnitStarter {
                    id: name.to_owned(),
                    how: Starts::OnName,
                    load: "loaded".into(),
                    active: String::new(),
                    file: path.display().to_string(),
                    is_needed: false,
                });
            }
        }
    }
    found
}

/// Value of a key in the section of the service.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let lines = text.lines().map(str::trim);
    let mut section = lines.skip_while(|line| *line != "[D-BUS Service]").skip(1);
    section.by_ref().take_while(|line| !line.starts_with('[')).find_map(|line| {
        let (found, value) = line.split_once('=')?;
        (found.trim() == key).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R19: whoever uses such a name starts the unit, on a node without the lease.
    #[test]
    fn a_name_of_d_bus_that_starts_the_unit_is_found_and_the_first_file_of_a_name_counts() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["first", "second", "missing"].map(|place| dir.path().join(place));
        for place in &places[..2] {
            fs::create_dir(place).unwrap();
        }
        let file = |place: usize, name: &str, text: &str| fs::write(places[place].join(name), text).unwrap();
        let text = |name: &str, unit: &str| {
            format!(
                "# by hand\n[D-BUS Service]\nName={name}\nExec=/bin/false\nUser=root\nSystemdService={unit}\n"
            )
        };
        file(1, "org.a.service", &text("org.a", "a.service"));
        file(1, "org.alias.service", &text("org.alias", "dbus-org.alias.service"));
        file(1, "org.other.service", &text("org.other", "other.service"));
        file(1, "org.over.service", &text("org.over", "a.service"));
        file(0, "org.over.service", "[D-BUS Service]\nName=org.over\nExec=/bin/false\n");
        file(1, "org.elsewhere.service", "[Other]\nName=org.elsewhere\nSystemdService=a.service\n");
        file(1, "org.a.conf", &text("org.conf", "a.service"));
        file(1, "bad.service", "\u{0}\u{1}[D-BUS");
        let called = ["a.service".to_owned(), "dbus-org.alias.service".to_owned()];
        let found = names_that_start(&places, &called);
        let mut names: Vec<&str> = found.iter().map(|starter| starter.id.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["org.a", "org.alias"]);
        let fault = found[0].fault("a.service").unwrap();
        assert!(fault.problem.contains(&found[0].id), "{fault:?}");
        assert!(fault.remedy.contains(&found[0].file), "{fault:?}");
    }
}
