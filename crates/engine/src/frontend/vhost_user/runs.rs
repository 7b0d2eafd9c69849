//! Periods in which no other node can have written. They decide whether a machine that was cut off
//! may go on.
//!
//! Such a period is a *run*, known by a random number. [`super::inflight`] keeps the number of the
//! run in which a machine was served last. A file in the run directory names, for each resource,
//! the run in which this node is primary, and the last epoch of that run.
//!
//! Epochs rise by one with every promotion (R5). So an epoch that follows the last one of the run
//! and has this node as its primary leaves no room for another primary in between. While the
//! resource is attached elsewhere a client writes, in whatever epoch (ADR 13): that ends the run.
//! Each session of a client is a run of its own, because between two of them others may write.
//!
//! A file that is missing, as after a restart of this machine, begins a new run: no virtual machine
//! is left then that could be of the past.

use mainstay_devices::device_recovery::new_cookie;
use mainstay_silence::no_other_primary;
use mainstay_types::{Epoch, ResourceId};
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

/// The number of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run(pub u64);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The run that this node is in as primary in `epoch`, or that begins now if it is a client.
///
/// # Errors
/// When it cannot be noted for the next engine.
pub fn current(directory: &Path, resource: ResourceId, epoch: Option<Epoch>) -> io::Result<Run> {
    let Some(epoch) = epoch else {
        end(directory, resource)?;
        return Ok(Run(new_cookie()));
    };
    let path = path(directory, resource);
    let run = match read(&path) {
        Some((run, last)) if no_other_primary(last, epoch) => run,
        _ => Run(new_cookie()),
    };
    write(&path, run, epoch)?;
    Ok(run)
}

/// Ends the run of a resource: other nodes may write from now on.
///
/// # Errors
/// When the note cannot be removed.
pub fn end(directory: &Path, resource: ResourceId) -> io::Result<()> {
    match fs::remove_file(path(directory, resource)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn path(directory: &Path, resource: ResourceId) -> PathBuf {
    directory.join(format!("{}.run", resource.0))
}

fn read(path: &PathBuf) -> Option<(Run, Epoch)> {
    let text = fs::read_to_string(path).ok()?;
    let (run, last) = text.strip_suffix('\n')?.split_once(' ')?;
    Some((Run(u64::from_str_radix(run, 16).ok()?), Epoch(last.parse().ok()?)))
}

/// Written under another name first: an engine may die at any time.
fn write(path: &Path, run: Run, last: Epoch) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, format!("{run} {}\n", last.0))?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_client_elsewhere_and_a_session_begin_a_new_run() {
        let directory = std::env::temp_dir().join(format!("mainstay-vhost-runs-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let run = |epoch: Option<u64>| current(&directory, ResourceId(7), epoch.map(Epoch)).expect("noted");
        let first = run(Some(4));
        assert_eq!([4, 5, 6].map(|epoch| run(Some(epoch))), [first; 3]);
        let second = run(Some(8));
        assert!(second != first && run(Some(9)) == second, "another node may have been primary in 7");
        let third = run(Some(3));
        assert!(third != second, "another history");

        end(&directory, ResourceId(8)).expect("there is none");
        assert_eq!(run(Some(3)), third, "another resource");
        end(&directory, ResourceId(7)).expect("ended");
        let fourth = run(Some(3));
        assert_ne!(fourth, third, "a client may have written in the same epoch");

        let sessions = [run(None), run(None)];
        assert!(sessions[0] != sessions[1] && !sessions.contains(&fourth));
        assert_ne!(
            run(Some(3)),
            fourth,
            "what this node has written as a client is seen by no machine of before"
        );
        for noise in ["", "4", "x 4\n", "a b\n", "4 99999999999999999999\n", "4 9"] {
            let before = run(Some(10));
            fs::write(directory.join("7.run"), noise).expect("written");
            assert_ne!(run(Some(10)), before, "{noise:?}");
        }
        fs::remove_dir_all(&directory).expect("removed");
    }
}
