//! `mainstay service import`: a promoter's configuration of drbd-reactor as a service file.
//!
//! Guarantees
//! - Each entry and option of the promoter is told of before anything is applied.
//! - Files and services are treated as `service create` does.

use super::create::{print, refused, write_and_apply};
use super::read;
use crate::cli::ServiceImportArgs;
use crate::failure::Outcome;
use crate::output::{self, Output};
use mainstay_client::Client;
use mainstay_ha::{ImportChoices, Imported};
use std::fs;
use std::path::{Path, PathBuf};

/// Where units of systemd are, the first one first.
const UNITS: [&str; 4] =
    ["/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/lib/systemd/system"];

pub(super) fn import(args: ServiceImportArgs, client: &Client, output: Output) -> Outcome<()> {
    let choices = ImportChoices { promoted: args.promoted, name: args.name, resource: args.resource };
    let unit_file = |name: &str| unit_file(&UNITS.map(Path::new), name);
    let imported = mainstay_ha::import(&read(&args.file)?, &choices, &unit_file).map_err(refused)?;
    if args.print {
        return print(&imported.toml, output);
    }
    if !output.json {
        output::say(&report(&imported));
    }
    let path = args.output.unwrap_or_else(|| PathBuf::from(format!("{}.toml", imported.name)));
    write_and_apply(imported.toml, &path, args.wait, client, output)
}

/// Says what became of each entry and option.
fn report(imported: &Imported) -> String {
    let mut text = String::new();
    for (head, lines) in [("it became:", &imported.mapped), ("no meaning here:", &imported.left_out)] {
        if !lines.is_empty() {
            text += &format!("{head}\n");
            text.extend(lines.iter().map(|line| format!("  {}\n", line.replace(char::is_control, " "))));
        }
    }
    text.trim_end().to_owned()
}

/// The text of a unit with its drop-ins, of `name@.service` for `name@instance.service`.
fn unit_file(directories: &[&Path], name: &str) -> Option<String> {
    // A name from a file is not to lead elsewhere.
    if name.contains('/') || name.starts_with('.') {
        return None;
    }
    let template = name.split_once('@').and_then(|(base, rest)| {
        let (_, kind) = rest.rsplit_once('.')?;
        Some(format!("{base}@.{kind}"))
    });
    let found =
        |name: &str| directories.iter().find_map(|directory| fs::read_to_string(directory.join(name)).ok());
    let mut text = found(name).or_else(|| found(&template?))?;
    let mut drop_ins: Vec<PathBuf> = directories
        .iter()
        .filter_map(|directory| fs::read_dir(directory.join(format!("{name}.d"))).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        // The promoter's own says only when the unit starts.
        .filter(|path| path.extension().is_some_and(|end| end == "conf") && !path.ends_with("reactor.conf"))
        .collect();
    drop_ins.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    for path in drop_ins {
        text += "\n";
        text += &fs::read_to_string(path).unwrap_or_default();
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_found_with_its_drop_ins_and_by_its_template() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("etc"), dir.path().join("lib"));
        let write = |path: &Path, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(&second.join("a.service"), "second");
        write(&second.join("b@.service"), "template");
        write(&first.join("c.service"), "first");
        write(&second.join("c.service"), "second");
        write(&first.join("a.service.d/20.conf"), "twenty");
        write(&second.join("a.service.d/10.conf"), "ten");
        write(&first.join("a.service.d/reactor.conf"), "promoter");
        write(&dir.path().join("secret"), "secret");
        let find = |name: &str| unit_file(&[&first, &second], name);
        assert_eq!(find("a.service").as_deref(), Some("second\nten\ntwenty"));
        assert_eq!(find("b@x.service").as_deref(), Some("template"));
        assert_eq!(find("c.service").as_deref(), Some("first"));
        for name in ["d.service", "../secret", "", "."] {
            assert_eq!(find(name), None, "{name}");
        }
    }

    #[test]
    fn the_report_names_everything_in_plain_lines() {
        let imported = Imported {
            name: "a".into(),
            toml: String::new(),
            mapped: vec!["x: y".into()],
            left_out: vec!["z\u{1b}: w".into()],
        };
        assert_eq!(report(&imported), "it became:\n  x: y\nno meaning here:\n  z : w");
    }
}
