//! Directories that an operator names: those of a node, and the one that a copy of a snapshot goes
//! to.
//!
//! Guarantees
//! - Mainstay puts nothing into or over a directory of the system, or one where it keeps something
//!   else.
//! - A copy of a snapshot goes into a directory that is new or empty.

use crate::service::place::{needed, resolve};
use std::io;
use std::path::{Path, PathBuf};

/// A directory that cannot be what it is meant to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// Name of the directory and the fault, as a sentence without its full stop.
    pub why: String,
    pub remedy: String,
}

/// The directories that a node is started with.
#[derive(Clone, Copy, Debug)]
pub struct OfNode<'a> {
    /// `--state-dir`.
    pub state: &'a Path,
    /// `--run-dir`.
    pub run: &'a Path,
    /// `--journal-dir`.
    pub journals: Option<&'a Path>,
}

/// Checks the directories of a node, before anything is made in them.
///
/// # Errors
/// The first one that is a directory of the system or no directory, or that is in the way of
/// another one.
pub fn check_node(of: OfNode) -> Result<(), Unfit> {
    let default = |option: &str| match option {
        "--state-dir" => "for example `--state-dir /var/lib/mainstay`",
        "--run-dir" => "for example `--run-dir /run/mainstay`",
        _ => "for example `--journal-dir /mnt/nvme/journals`, below the mount point of its device",
    };
    let unfit = |option: &str, path: &Path, why: String| Unfit {
        why: format!("{option}: {} {why}", path.display()),
        remedy: format!("Name a directory of its own, {}.", default(option)),
    };
    let plain = |option: &str, named: &Path| -> Result<PathBuf, Unfit> {
        let found = std::path::absolute(named).and_then(|path| resolve(&path));
        let path = found.map_err(|error| unfit(option, named, format!("cannot be looked at: {error}")))?;
        if let Some(why) = needed(&path, &[]) {
            return Err(unfit(option, &path, why));
        }
        let mut above = path.ancestors().filter(|above| above.exists());
        if let Some(file) = above.next().filter(|above| !above.is_dir()) {
            return Err(unfit(
                option,
                &path,
                format!("cannot be made: {} is not a directory", file.display()),
            ));
        }
        Ok(path)
    };
    let (state, run) = (plain("--state-dir", of.state)?, plain("--run-dir", of.run)?);
    if state.starts_with(&run) {
        let why =
            format!("lies in the run directory {}, which a restart of the machine empties", run.display());
        return Err(unfit("--state-dir", &state, why));
    }
    let pool = mainstay_pool::place(&state);
    if run.starts_with(&pool) || pool.starts_with(&run) {
        return Err(unfit("--run-dir", &run, format!("lies in or over the pool {}", pool.display())));
    }
    let Some(journals) = of.journals else { return Ok(()) };
    let journals = plain("--journal-dir", journals)?;
    if journals.starts_with(&run) {
        let why =
            format!("lies in the run directory {}, which a restart of the machine empties", run.display());
        return Err(unfit("--journal-dir", &journals, why));
    }
    if journals.starts_with(&pool) || state.starts_with(&journals) {
        let why = format!("lies in or over the state directory's own {}", pool.display());
        return Err(unfit("--journal-dir", &journals, why));
    }
    Ok(())
}

/// Checks the directory below which services get their control groups.
///
/// # Errors
/// When it is a directory of the system and no control group of version 2.
pub fn check_cgroup(root: &Path) -> Result<(), Unfit> {
    let is_group = |path: &&Path| path.join("cgroup.controllers").exists();
    let above = root.ancestors().find(|above| above.exists());
    let is_system = || {
        let path = std::path::absolute(root).and_then(|path| resolve(&path));
        path.is_ok_and(|path| needed(&path, &[]).is_some())
    };
    if above.as_ref().is_some_and(is_group) || !is_system() {
        return Ok(());
    }
    Err(Unfit {
        why: format!("--cgroup-root: {} is no control group of version 2", root.display()),
        remedy: "Name a directory below where cgroup2 is mounted, for example `--cgroup-root /sys/fs/cgroup/mainstay`, or \
                 leave the option out."
            .into(),
    })
}

/// Checks the directory that a copy of a snapshot is to go to, before anything is made in it.
/// `own`: directories of Mainstay on this node; `pool`: the one in which a copy may have a
/// directory beside the replicas, so that it shares their space.
///
/// # Errors
/// When something else is there, or has to be there.
pub fn check_clone(directory: &Path, own: &[PathBuf], pool: &Path) -> Result<(), Unfit> {
    let own: Vec<PathBuf> = own.iter().map(|own| resolve(own).unwrap_or_else(|_| own.clone())).collect();
    let pool = resolve(pool).unwrap_or_else(|_| pool.to_path_buf());
    let remedy = format!(
        "Name a new or an empty directory elsewhere, for example {}.",
        pool.join("clones/NAME").display()
    );
    let unfit =
        |path: &Path, why: String| Unfit { why: format!("{} {why}", path.display()), remedy: remedy.clone() };
    let cannot = |error: io::Error| unfit(directory, format!("cannot be looked at: {error}"));
    let path = std::path::absolute(directory).and_then(|path| resolve(&path)).map_err(cannot)?;
    let in_pool = path.strip_prefix(&pool).ok().filter(|_| pool.is_absolute());
    let beside = in_pool.and_then(|rest| rest.iter().next()).map(|first| pool.join(first));
    let why = match beside {
        Some(beside) if mainstay_pool::replica_at(&beside).is_taken() => {
            Some(format!("lies in {}, which is, or may become, a directory of a replica", beside.display()))
        }
        Some(_) => None,
        None => needed(&path, &own),
    };
    if let Some(why) = why {
        return Err(unfit(&path, why));
    }
    let entries = match std::fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return Err(unfit(&path, "is not a directory".into()));
        }
        Err(error) => return Err(cannot(error)),
    };
    for entry in entries {
        let name = entry.map_err(cannot)?.file_name();
        // An interrupted copy leaves these, and the next one replaces them.
        if !name.to_string_lossy().ends_with(".part") {
            return Err(unfit(&path, format!("is not empty: {} is there", name.to_string_lossy())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn directories_of_a_node_are_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::write(top.join("file"), "").unwrap();
        symlink("/etc", top.join("etc")).unwrap();
        let check = |state: &str, run: &str, journals: Option<&str>| {
            let [state, run] = [state, run].map(|path| top.join(path));
            let journals = journals.map(|path| top.join(path));
            check_node(OfNode { state: &state, run: &run, journals: journals.as_deref() })
        };
        assert_eq!(check("state", "run", None), Ok(()));
        assert_eq!(check("state", "run", Some("journals")), Ok(()));
        assert_eq!(check("state", "run", Some("state/journals")), Ok(()), "a device may be mounted there");
        assert!(!top.join("state").exists(), "it only looks");
        for (state, run, journals, option, why) in [
            ("/etc", "run", None, "--state-dir", "system needs"),
            ("/usr/lib/mainstay", "run", None, "--state-dir", "system needs"),
            ("state", "/run", None, "--run-dir", "system needs"),
            ("state", "run", Some("/boot"), "--journal-dir", "system needs"),
            ("etc/mainstay", "run", None, "--state-dir", "/etc/mainstay"),
            ("file", "run", None, "--state-dir", "not a directory"),
            ("state", "file", None, "--run-dir", "not a directory"),
            ("file/state", "run", None, "--state-dir", "file is not a directory"),
            ("run", "run", None, "--state-dir", "restart of the machine"),
            ("run/state", "run", None, "--state-dir", "restart of the machine"),
            ("state", "state/pools/default/run", None, "--run-dir", "pool"),
            ("state", "run", Some("run/journals"), "--journal-dir", "restart of the machine"),
            ("state", "run", Some("state"), "--journal-dir", "state directory"),
            ("state", "run", Some("state/pools/default"), "--journal-dir", "state directory"),
        ] {
            let unfit = check(state, run, journals).expect_err(&format!("{state} {run} {journals:?}"));
            assert!(unfit.why.starts_with(option) && unfit.why.contains(why), "{unfit:?}");
            assert!(unfit.remedy.contains(option), "{unfit:?}");
        }
    }

    #[test]
    fn control_groups_have_a_place_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let unfit = check_cgroup(Path::new("/etc/mainstay")).expect_err("it is none");
        assert!(unfit.why.contains("--cgroup-root"), "{unfit:?}");
        assert_eq!(check_cgroup(directory.path()), Ok(()), "a node without services needs none");
        std::fs::write(directory.path().join("cgroup.controllers"), "").unwrap();
        assert_eq!(check_cgroup(&directory.path().join("mainstay/n1")), Ok(()));
    }

    #[test]
    fn a_copy_of_a_snapshot_goes_where_nothing_is() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        let pool = top.join("state/pools/default");
        let own = [top.join("state"), top.join("run")];
        for path in ["db-1", "empty", "half", "odd", "full"] {
            std::fs::create_dir_all(pool.join(path)).unwrap();
        }
        std::fs::write(pool.join("half/vol0.part"), "").unwrap();
        std::fs::write(pool.join("odd/replica.json"), "{}").unwrap();
        std::fs::write(pool.join("full/notes"), "").unwrap();
        std::fs::write(top.join("file"), "").unwrap();
        symlink(pool.join("db-1"), top.join("link")).unwrap();
        let check = |path: &str| check_clone(&top.join(path), &own, &pool);
        let in_pool = |path: &str| check_clone(&pool.join(path), &own, &pool);
        for path in ["clones/new", "clone-test", "empty", "half"] {
            assert_eq!(in_pool(path), Ok(()), "{path}");
        }
        assert_eq!(check("elsewhere/new"), Ok(()));
        for (path, why) in [
            ("/etc/x", "system needs"),
            ("/usr/share/x", "system needs"),
            ("/", "system needs"),
            ("state", "Mainstay's own"),
            ("state/services/db", "Mainstay's own"),
            ("run/x", "Mainstay's own"),
            ("", "Mainstay's own"),
            ("file", "not a directory"),
            ("file/x", "file/x"),
            ("link", "directory of a replica"),
        ] {
            let unfit = check(path).expect_err(path);
            assert!(unfit.why.contains(why) && unfit.remedy.contains("clones"), "{path}: {unfit:?}");
        }
        for (path, why) in [
            ("", "Mainstay's own"),
            ("db-1", "directory of a replica"),
            ("db-1/x", "directory of a replica"),
            ("db-77", "directory of a replica"),
            ("odd", "directory of a replica"),
            ("full", "notes is there"),
        ] {
            let unfit = in_pool(path).expect_err(path);
            assert!(unfit.why.contains(why), "{path}: {unfit:?}");
        }
    }
}
