//! `mainstay service create`: a service file made from a template, and applied.
//!
//! Guarantees
//! - A file that exists is never overwritten, and a service that exists is never changed.
//! - If the service is refused, no file is left.

use super::await_applied;
use crate::cli::{ServiceCreateArgs, TemplateName};
use crate::commands::resource;
use crate::failure::{Code, Context, Failure, Outcome};
use crate::output::{self, Output};
use mainstay_api::rest::{ResourceView, ServiceApplied, ServiceApply, ServiceEffect};
use mainstay_client::Client;
use mainstay_ha::{Choices, SpecError, TEMPLATE_MEMORY_BYTES_MIN, Template};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Directory in which Debian keeps the versions of PostgreSQL.
const POSTGRESQL: &str = "/usr/lib/postgresql";

pub(super) fn create(args: ServiceCreateArgs, client: &Client, output: Output) -> Outcome<()> {
    let template = match args.template {
        TemplateName::Mariadb => Template::Mariadb,
        TemplateName::Mysql => Template::Mysql,
        TemplateName::Postgresql => Template::Postgresql,
        TemplateName::Filesystem => Template::Filesystem,
    };
    let name = args.name.unwrap_or_else(|| args.resource.clone());
    let version = match (template, args.release) {
        (_, Some(version)) => version,
        (Template::Postgresql, None) => newest_version(Path::new(POSTGRESQL)).ok_or_else(|| {
            let message = format!("no version of PostgreSQL is installed here, in {POSTGRESQL}");
            Failure::new(Code::BadService, message, "Name the version that the nodes have with --release.")
        })?,
        (_, None) => 0,
    };
    // A file that is only printed may be for a resource that is not there yet.
    let found: Option<ResourceView> = match client.get(&resource::path(&args.resource)?) {
        Ok(found) => Some(found),
        Err(_) if args.print => None,
        Err(error) => return Err(error.into()),
    };
    let volume_bytes = found.and_then(|resource| resource.volumes.get(usize::from(args.volume)).copied());
    let choices = Choices {
        name: name.clone(),
        resource: args.resource,
        volume: args.volume,
        volume_bytes,
        vip: args.vip,
        memory_bytes: args.memory.unwrap_or_else(default_memory),
        version,
    };
    let toml = template.file(&choices).map_err(refused)?;
    if args.print {
        return print(&toml, output);
    }
    let path = args.output.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    write_and_apply(toml, &path, args.wait, client, output)
}

/// Prints a service file as it is, whatever the width of the terminal.
pub(super) fn print(toml: &str, output: Output) -> Outcome<()> {
    if output.json {
        return output.result(&serde_json::json!({ "toml": toml }), |_| String::new());
    }
    output::line(toml.trim_end());
    Ok(())
}

/// Writes a service file where none is, applies it, and waits until the service runs.
pub(super) fn write_and_apply(
    toml: String,
    path: &Path,
    wait: crate::cli::WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let ask = |dry_run| {
        let request = ServiceApply { toml: toml.clone(), dry_run, force: false, edition: None };
        client.put::<_, ServiceApplied>("/v1/services", &request)
    };
    if fs::symlink_metadata(path).is_ok() {
        return Err(exists(path));
    }
    let dry = ask(true)?;
    if dry.effect != ServiceEffect::Created {
        let name = &dry.service.name;
        let remedy = format!(
            "Give the new one another name with --name, or change it with `mainstay service edit {name}`."
        );
        return Err(Failure::new(Code::ServiceExists, format!("there is a service {name} already"), remedy));
    }
    write_new(path, &toml)?;
    match ask(false) {
        Ok(applied) => {
            output.note(&format!("the service file is {}", path.display()));
            await_applied(applied, wait, client, output)
        }
        Err(error) => {
            let mut failure = Failure::from(error);
            // The cluster may have made the service, and its answer was lost.
            if failure.problem.code == Code::ResultUnknown {
                failure.problem.remedy += &format!(" The service file is {}.", path.display());
            } else {
                drop(fs::remove_file(path));
            }
            Err(failure)
        }
    }
}

/// Writes a file that must not exist. One that cannot be written whole is removed.
fn write_new(path: &Path, text: &str) -> Outcome<()> {
    let doing = || format!("write the service file {}", path.display());
    let mut file = match OpenOptions::new().write(true).create_new(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(exists(path)),
        file => file.or_fail(Code::Io, doing)?,
    };
    file.write_all(text.as_bytes()).or_fail(Code::Io, doing).inspect_err(|_| drop(fs::remove_file(path)))
}

fn exists(path: &Path) -> Failure {
    let message = format!("{} exists, and is not overwritten", path.display());
    let remedy = format!(
        "Name another file with --output, or apply this one with `mainstay service apply {}`.",
        path.display()
    );
    Failure::new(Code::Io, message, remedy)
}

/// A choice that was refused, under the name of its option.
pub(super) fn refused(error: SpecError) -> Failure {
    let remedy = sentence(&error.remedy);
    Failure::new(Code::BadService, error.to_string(), remedy)
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| format!("{}{}.", first.to_uppercase(), letters.as_str())).unwrap_or_default()
}

/// Half the memory of this machine, in whole GiB if it has several.
fn default_memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    memory_of(&text)
}

fn memory_of(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
    let half = kib * 1024 / 2;
    let whole = if half >= 4 << 30 { half >> 30 << 30 } else { half >> 20 << 20 };
    whole.max(TEMPLATE_MEMORY_BYTES_MIN)
}

/// The newest version of PostgreSQL below `directory` that has a server.
fn newest_version(directory: &Path) -> Option<u32> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let with_server = entries.filter(|entry| entry.path().join("bin/postgres").exists());
    with_server.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db.toml");
        write_new(&path, "first").unwrap();
        let refused = write_new(&path, "second").unwrap_err();
        assert!(refused.problem.message.contains("exists"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        let link = dir.path().join("link.toml");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), &link).unwrap();
        assert!(write_new(&link, "third").is_err(), "a link was followed");
    }

    #[test]
    fn a_database_gets_half_the_memory_unless_that_is_too_little() {
        assert_eq!(memory_of("MemFree: 1 kB\nMemTotal:       65801234 kB\n"), 31 << 30);
        assert_eq!(memory_of("MemTotal: 3000000 kB\n"), 1464 << 20);
        assert_eq!(memory_of("MemTotal: 300 kB\n"), TEMPLATE_MEMORY_BYTES_MIN);
        assert_eq!(memory_of("nonsense"), TEMPLATE_MEMORY_BYTES_MIN);
    }

    #[test]
    fn the_newest_version_with_a_server_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(newest_version(&dir.path().join("none")), None);
        for (version, program) in [("9", "postgres"), ("15", "postgres"), ("17", "psql"), ("x", "postgres")] {
            let bin = dir.path().join(version).join("bin");
            fs::create_dir_all(&bin).unwrap();
            fs::write(bin.join(program), "").unwrap();
        }
        assert_eq!(newest_version(dir.path()), Some(15));
    }
}
