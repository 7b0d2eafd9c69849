//! The files of the state directory that make this node the member that it is: `identity.json`,
//! `agent.redb` and `suspects.redb`.
//!
//! Guarantees
//! - A node whose files are missing, empty or damaged does not run, and names the file. With an
//!   empty log it would vote again where it has voted, or confirm entries anew that it has lost
//!   (R10, R11). Then a majority could forget its decisions.
//! - A node that joins has no log yet. When its first entry, vote or snapshot is durable, and
//!   before the node confirms any of it, `identity.json` says that there is a log.
//! - A leader may know entries that this node confirmed and no longer has. From then on
//!   `identity.json` says that the log is lost, and the node does not run again.
//! - Nothing is removed, and no missing file is made anew.

use crate::error::AgentError;
use crate::identity::{FILE, Identity, LogMark};
use crate::level;
use crate::member::{log_path, suspects_path};
use crate::raft::Machine;
use crate::raft::store::RaftStore;
use mainstay_control::State;
use std::fs;
use std::io;
use std::path::Path;

/// Returns the identity of this node, if it is a member and its files are whole.
///
/// # Errors
/// When one of the files is missing, empty or damaged, or cannot be read.
pub fn load(state_dir: &Path) -> Result<Option<Identity>, AgentError> {
    let path = state_dir.join(FILE);
    match Identity::load(state_dir) {
        Ok(Some(identity)) => check(state_dir, identity).map(Some),
        Ok(None) => no_identity(state_dir).map(|()| None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let is_empty = fs::metadata(&path).is_ok_and(|found| found.len() == 0);
            let what = if is_empty { "is empty".to_owned() } else { format!("is damaged: {error}") };
            Err(AgentError::Lost { path, what })
        }
        Err(source) => Err(AgentError::File { path, source }),
    }
}

/// A log of several members is not what a failed attempt to become one has left.
fn no_identity(state_dir: &Path) -> Result<(), AgentError> {
    let log = log_path(state_dir);
    if missing(&log)?.is_some() {
        return Ok(());
    }
    // A log that cannot be read may be what an interrupted `init` has left; the next one removes
    // it.
    let Ok(store) = RaftStore::open(&log) else { return Ok(()) };
    let state = recorded(&store)?;
    if state.nodes.len() < 2 && state.resources.is_empty() {
        return Ok(());
    }
    let what = "is missing, and beside it is the log of a member of a cluster, agent.redb".to_owned();
    Err(AgentError::Lost { path: state_dir.join(FILE), what })
}

fn check(state_dir: &Path, mut identity: Identity) -> Result<Identity, AgentError> {
    if let Some(words) = identity.removed {
        return Err(AgentError::Removed(words));
    }
    let (log, suspects) = (log_path(state_dir), suspects_path(state_dir));
    if identity.log == LogMark::Lost {
        let what = "lacks entries that this node had confirmed to the cluster".to_owned();
        return Err(AgentError::Lost { path: log, what });
    }
    if let Some(what) = missing(&log)? {
        if identity.log == LogMark::Awaited {
            return Ok(identity);
        }
        return Err(AgentError::Lost { path: log, what });
    }
    let is_initialized = RaftStore::open(&log)?.is_initialized();
    if !is_initialized && identity.log != LogMark::Awaited {
        return Err(AgentError::Lost { path: log, what: "has no content".into() });
    }
    if !is_initialized {
        return Ok(identity);
    }
    if let Some(what) = missing(&suspects)? {
        return Err(AgentError::Lost { path: suspects, what });
    }
    if identity.log != LogMark::Begun {
        mark(state_dir, &mut identity, LogMark::Begun)
            .map_err(|source| AgentError::File { path: state_dir.join(FILE), source })?;
    }
    Ok(identity)
}

/// Notes durably how it stands with the log of this node.
///
/// # Errors
/// When it may not survive a power cut.
pub fn mark(state_dir: &Path, identity: &mut Identity, log: LogMark) -> io::Result<()> {
    identity.log = log;
    identity.save(state_dir)
}

/// The state of the cluster as far as this node knows that it is committed.
pub(crate) fn recorded(store: &RaftStore) -> Result<State, AgentError> {
    let mut machine = Machine::restore(store.newest_snapshot())?;
    let after = store.newest_snapshot().get_metadata().index;
    let commit = store.hard_state().commit;
    for entry in store.log().filter(|entry| entry.index > after && entry.index <= commit) {
        // Entries that cannot be read are judged by the log when it starts.
        if let Ok(proposal) = level::read_entry(&entry.data) {
            machine.apply(&proposal)?;
        }
    }
    Ok(machine.state)
}

/// Says how a file is missing; `None` if it has content.
fn missing(path: &Path) -> Result<Option<String>, AgentError> {
    match fs::metadata(path) {
        Ok(found) if found.len() == 0 => Ok(Some("is empty".to_owned())),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some("is missing".to_owned())),
        Err(source) => Err(AgentError::File { path: path.to_path_buf(), source }),
    }
}
