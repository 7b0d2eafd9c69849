//! Places for the file systems of services: which paths of this node may be one.
//!
//! Guarantees
//! - Links in a path are resolved once, before anything is mounted there.
//! - A mount never covers a path that the system or Mainstay itself needs, and never lies in or
//!   over the place of another service.

use super::bounded::Bounded;
use super::holders::Held;
use super::instance::{self, Places};
use super::mount::Place;
use super::mount_table::{DeviceId, MountTable};
use mainstay_ha::{AtPath, ServiceSpec, system_directory};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the guard's list waits for a path.
const RESOLVE_PATIENCE: Duration = Duration::from_millis(500);

static RESOLVED: Bounded = Bounded::new();

/// The path without links, as far as it exists.
///
/// # Errors
/// When a part of it cannot be looked at.
pub fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut rest: Vec<OsString> = Vec::new();
    let mut above = path;
    loop {
        match above.canonicalize() {
            Ok(mut found) => {
                found.extend(rest.iter().rev());
                return Ok(found);
            }
            // The link leads nowhere. Only its owner may make the directory that it leads to.
            Err(error) if error.kind() == io::ErrorKind::NotFound && above.is_symlink() => return Err(error),
            // A file system that has shut down answers nothing, but its mount point is still known.
            Err(error) => {
                let (Some(parent), Some(name)) = (above.parent(), above.file_name()) else {
                    return Err(error);
                };
                rest.push(name.to_owned());
                above = parent;
            }
        }
    }
}

/// The path without links. If that is not known soon, because a file system on the way hangs, the
/// path as it is.
#[must_use]
pub fn resolve_soon(path: &Path) -> PathBuf {
    let asked = path.to_path_buf();
    let resolved = RESOLVED.ask(path, Instant::now() + RESOLVE_PATIENCE, move || resolve(&asked));
    resolved.and_then(Result::ok).unwrap_or_else(|| path.to_path_buf())
}

/// Why a user's files may not be put at `path`, which has no links in it: the system or Mainstay
/// needs the path. `own`: the directories of Mainstay on this node.
#[must_use]
pub fn needed(path: &Path, own: &[PathBuf]) -> Option<String> {
    let text = path.to_string_lossy();
    if let Some(system) = system_directory(&text) {
        if system == text {
            return Some("is a directory that the system needs as it is".into());
        }
        return Some(format!("would lie in or over {system}, which the system needs as it is"));
    }
    if let Some(directory) = own.iter().find(|directory| meets(path, directory)) {
        return Some(format!("would lie in or over Mainstay's own directory {}", directory.display()));
    }
    let program = std::env::current_exe().and_then(|program| program.canonicalize()).ok();
    let program = program.filter(|program| program.starts_with(path));
    program.map(|program| format!("would lie over Mainstay's own program {}", program.display()))
}

fn meets(path: &Path, other: &Path) -> bool {
    path.starts_with(other) || other.starts_with(path)
}

/// Why nothing may be mounted at `path`, which has no links in it; `others` are the places of other
/// services with their names.
#[must_use]
pub fn refusal(path: &Path, places: &Places, others: &[(String, PathBuf)]) -> Option<String> {
    let own = [Some(&places.state_dir), Some(&places.run_dir), places.journal_dir.as_ref()];
    let own = own.into_iter().flatten().map(|own| resolve(own).unwrap_or_else(|_| own.clone()));
    if let Some(why) = needed(path, &own.collect::<Vec<_>>()) {
        return Some(why);
    }
    let met = others.iter().find(|(_, other)| meets(path, other));
    met.map(|(name, other)| {
        format!("would lie in or over the file system of service {name} at {}", other.display())
    })
}

/// Why a service cannot mount its file system on this node; `None` if no reason is known. `others`
/// are the other services that may run here.
#[must_use]
pub fn unfit(spec: &ServiceSpec, places: &Places, others: &[ServiceSpec]) -> Option<String> {
    let mount = spec.mount.as_ref()?;
    let path = match resolve(Path::new(&mount.path)) {
        Ok(path) => path,
        Err(error) => return Some(format!("{} cannot be looked at: {error}", mount.path)),
    };
    let shown = path.display();
    if let Some(why) = refusal(&path, places, &resolved(others)) {
        return Some(format!("{shown} {why}"));
    }
    let link = places.run_dir.join("dev").join(&spec.resource).join(mount.volume.to_string());
    let device = DeviceId::of(&link).unwrap_or_else(|_| DeviceId::from_number(0));
    // A mount that the service has left there goes before it comes again, if it can.
    let left = instance::mounted_by(places, &spec.name).filter(|left| left.path == path);
    let left = left.filter(|left| left.device != device);
    let held = left.as_ref().map_or(Held { device, number: None }, Place::held);
    match MountTable::read().ok()?.look(&path, held, true) {
        AtPath::Foreign(what) | AtPath::Covered(what) => {
            Some(format!("something else is mounted there: {what}"))
        }
        AtPath::Holds(what) if left.is_some() => Some(format!("something else is mounted in it: {what}")),
        AtPath::Nothing if !mount.hide_files => {
            if path.exists() && !path.is_dir() {
                return Some(format!("{shown} is not a directory"));
            }
            let file = std::fs::read_dir(&path).ok()?.next()?.ok()?.file_name();
            Some(format!(
                "{shown} holds files, among them {}, which the mount would hide; move them away, or set hide_files = true in [mount]",
                file.to_string_lossy()
            ))
        }
        AtPath::Nothing | AtPath::Ours | AtPath::Holds(_) | AtPath::Dead(_) => None,
    }
}

/// Where these services have their file systems on this node.
#[must_use]
pub fn resolved(services: &[ServiceSpec]) -> Vec<(String, PathBuf)> {
    let place = |spec: &ServiceSpec| {
        let path = Path::new(&spec.mount.as_ref()?.path);
        Some((spec.name.clone(), resolve(path).unwrap_or_else(|_| path.to_path_buf())))
    };
    services.iter().filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn places(directory: &Path) -> Places {
        Places {
            cgroup_root: directory.join("cgroup"),
            state_dir: directory.join("state"),
            run_dir: directory.join("run"),
            journal_dir: None,
            hindrances: Default::default(),
            neighbours: instance::Neighbours::default(),
            disregarded: instance::Disregarded::default(),
            mount_lanes: super::super::left_mounts::MountLanes::default(),
            log_writer: Vec::new(),
            hooks: None,
        }
    }

    fn service(name: &str, path: &Path) -> ServiceSpec {
        let path = path.display();
        ServiceSpec::parse(&format!("name='{name}'\nresource='{name}'\n[mount]\npath='{path}'\n")).unwrap()
    }

    #[test]
    fn links_in_a_path_are_resolved_and_missing_parts_stay() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("real")).unwrap();
        symlink(top.join("real"), top.join("link")).unwrap();
        assert_eq!(resolve(&top.join("link/db/data")).unwrap(), top.join("real/db/data"));
        symlink(top.join("nowhere"), top.join("broken")).unwrap();
        assert!(resolve(&top.join("broken/db")).is_err());
    }

    #[test]
    fn no_place_meets_the_system_mainstay_or_another_service() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let places = Places { journal_dir: Some(top.join("journals")), ..places(&top) };
        let others = [("web".to_owned(), top.join("web"))];
        let refused = |path: &Path| refusal(path, &places, &others);
        for path in ["/", "/usr", "/usr/lib/systemd", "/etc/ssh", "/proc/1", "/run", "/sys/fs/cgroup"] {
            assert!(refused(Path::new(path)).is_some(), "{path}");
        }
        for path in ["state", "state/pool", "run/dev", "journals", "journals/db", "web", "web/inner"] {
            assert!(refused(&top.join(path)).is_some(), "{path}");
        }
        assert!(refused(&top).is_some(), "it lies over all of them");
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert!(refused(program.parent().unwrap()).is_some(), "the next agent is started from there");
        assert_eq!(refused(&top.join("db")), None);
        assert_eq!(refused(&top.join("website")), None, "a name that begins alike is another directory");
    }

    #[test]
    fn a_directory_with_files_and_one_that_meets_another_by_a_link_are_unfit() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let places = places(&top);
        let mut db = service("db", &top.join("db"));
        assert_eq!(unfit(&db, &places, &[]), None, "it is not there yet");
        std::fs::create_dir(top.join("db")).unwrap();
        std::fs::write(top.join("db/notes"), "theirs").unwrap();
        let why = unfit(&db, &places, &[]).expect("it would hide a file");
        assert!(why.contains("notes") && why.contains("hide_files"), "{why}");
        db.mount.as_mut().unwrap().hide_files = true;
        assert_eq!(unfit(&db, &places, &[]), None);
        symlink(top.join("db"), top.join("link")).unwrap();
        symlink("/usr/share", top.join("share")).unwrap();
        let why = unfit(&service("doc", &top.join("share/doc")), &places, &[]);
        let why = why.expect("a link leads it into a directory of the system");
        assert!(why.contains("/usr/share/doc") && why.contains("system needs"), "{why}");
        let other = service("web", &top.join("link/web"));
        let why = unfit(&db, &places, &[other]).expect("it would cover the other one");
        assert!(why.contains("service web"), "{why}");
    }
}
