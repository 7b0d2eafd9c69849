//! The programs of Mainstay that run on this node, and whether they are still the installed ones.
//!
//! A package replaces the file of the program and stops nothing. The kernel then says of the
//! running program that its file is deleted. Both versions are what the two files say of
//! themselves.
//!
//! Guarantees
//! - A program counts as replaced only if another file is at its path now.
//! - A file that does not answer in time counts as there, with an unknown version.

use mainstay_api::rest::ProgramView;
use mainstay_control::labels::Notice;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a program has to say its version.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(5);
/// Words that the kernel appends to the path of a running program whose file is gone.
const DELETED: &str = " (deleted)";

/// The path of a program that was replaced while it ran; none if it was not.
fn replaced(link: &Path) -> Option<PathBuf> {
    let path = PathBuf::from(link.to_str()?.strip_suffix(DELETED)?);
    path.is_file().then_some(path)
}

/// The version that a program says it has, without its name.
fn version(program: &Path) -> Option<String> {
    let mut child = Command::new(program)
        .arg("--version")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let deadline = Instant::now() + ANSWER_WITHIN;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) | Err(_) => {
                drop(child.kill());
                drop(child.wait());
                break false;
            }
        }
    };
    let mut said = String::new();
    // The answer of a program that has ended is in the pipe.
    let output = child.stdout.take().filter(|_| ended)?;
    output.take(200).read_to_string(&mut said).ok()?;
    said.split_whitespace().last().map(str::to_owned)
}

/// A running program of Mainstay; none if it cannot be looked at.
#[must_use]
pub fn of(pid: u32) -> Option<ProgramView> {
    let running = PathBuf::from(format!("/proc/{pid}/exe"));
    let link = std::fs::read_link(&running).ok()?;
    let replaced = replaced(&link);
    Some(ProgramView {
        pid,
        path: replaced.as_deref().unwrap_or(&link).display().to_string(),
        running: replaced.is_some().then(|| version(&running)).flatten(),
        installed: replaced.as_deref().and_then(version),
        replaced: replaced.is_some(),
    })
}

/// Notices for the operator about programs that were replaced, by what they do. `node`: its name.
#[must_use]
pub fn notices<'a>(
    programs: impl IntoIterator<Item = (&'a str, Option<ProgramView>)>,
    node: &str,
) -> Vec<(String, Notice)> {
    let of_one = |(role, program): (&str, Option<ProgramView>)| {
        let program = program.filter(|program| program.replaced)?;
        let (running, installed) = (program.running?, program.installed?);
        let what = if running == installed {
            format!("is another build of version {installed} than the one that the {role} runs")
        } else {
            format!("is version {installed}, and the {role} still runs version {running}")
        };
        let remedy = format!("run `mainstay node upgrade` on {node}");
        Some((format!("{} ({role})", program.path), Notice { what, remedy }))
    };
    programs.into_iter().filter_map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_whose_file_was_replaced_is_told_with_both_versions() {
        let own = of(std::process::id()).unwrap();
        assert!(!own.replaced && own.installed.is_none() && own.running.is_none(), "{own:?}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sleeper");
        std::fs::copy("/bin/sleep", &path).unwrap();
        let mut child = Command::new(&path).arg("1000").spawn().unwrap();
        let look = || of(child.id()).unwrap();
        // The new process may not have become the program yet.
        while look().path != path.display().to_string() {
            std::thread::sleep(POLL);
        }
        assert!(!look().replaced);
        let fresh = directory.path().join("fresh");
        std::fs::write(&fresh, "#!/bin/sh\necho mainstay 9.9.9\n").unwrap();
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        let seen = look();
        let told = notices([("engine", Some(seen.clone())), ("agent", None)], "n1");
        std::fs::remove_file(&path).unwrap();
        let gone = look();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.replaced && seen.running.is_some(), "{seen:?}");
        assert_eq!(seen.installed.as_deref(), Some("9.9.9"));
        assert_eq!(told.len(), 1);
        assert!(
            told[0].1.what.starts_with("is version 9.9.9, and the engine still runs version"),
            "{told:?}"
        );
        assert!(told[0].1.remedy.contains("mainstay node upgrade"));
        assert!(!gone.replaced, "nothing is installed there: {gone:?}");
    }

    #[test]
    fn a_file_that_does_not_answer_has_no_version() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hangs");
        std::fs::write(&path, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(version(&path), None);
        assert_eq!(version(Path::new("/bin/false")), None);
        assert_eq!(version(&directory.path().join("missing")), None);
    }
}
