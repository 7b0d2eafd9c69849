//! Why the agent refuses or fails, with stable codes for operators.

use crate::raft::ProposeError;
use crate::raft::store::RaftStoreError;
use crate::transport::TransportError;
use mainstay_control::level::UPGRADE_REMEDY;
use mainstay_control::state::Outcome;
use mainstay_types::{Code, Problem};
use std::io;
use std::path::{Path, PathBuf};

/// Ends the agent.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("{path}: {source}")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Store(#[from] RaftStoreError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(
        "there is no cgroup hierarchy of version 2 here; mount one, or name a directory with --cgroup-root"
    )]
    NoCgroup,
    #[error(
        "another machine, at {other}, is running as node {name} while this one, which listens on {own}, has the same identity"
    )]
    Twin { name: String, own: String, other: String },
    #[error(
        "this node is recorded as {name} at {recorded}, and that is no address of this machine: this is a copy of its disk, or the \
         machine has got another address"
    )]
    Elsewhere { name: String, recorded: String },
    #[error(
        "the file {path} of this node's state {what}, so this node cannot go on as the member that it was"
    )]
    Lost { path: PathBuf, what: String },
    #[error("the file {path} of this node's keys {what}, so no other node would talk to this one")]
    TrustLost { path: PathBuf, what: String },
    #[error("{0}")]
    Removed(String),
    /// Told by a member.
    #[error("{}", .0.message)]
    TooOld(Problem),
    #[error("the agent cannot go on: {0}")]
    Fatal(String),
}

/// Remedy when a node gives an answer that does not fit the question.
pub const OTHER_RELEASE: &str =
    "The two run different releases: install the same one on all nodes, and try again.";

/// Remedy of a node that was removed from its cluster.
pub const REJOIN_REMEDY: &str = "A restart does not help. The files of the node are kept. To join again as a new member: stop agent and engine, move the \
     state directory away with `mv`, start both, and run `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN`. docs/nodes.md has each step.";

/// Remedy of a node without its keys.
const TRUST_REMEDY: &str = "A restart does not help. Put the file back from a copy of this state directory. If there is none, run `mainstay node remove NODE` on a \
     member, move the state directory of this node away, and join it anew by a token. docs/identities.md has each step.";
/// Remedy when the other end is not the member that was sought.
pub const UNPROVEN_REMEDY: &str = "Check the address, and that the token comes from this cluster. If the cluster has replaced its authority since the token was made, make a new \
     one. If the message speaks of time, compare the clocks of the two machines.";

impl AgentError {
    #[must_use]
    pub fn problem(&self) -> Problem {
        let (code, remedy) = match self {
            Self::File { .. } => (Code::AgentFile, "Look at the file system and its permissions."),
            Self::Lost { path, .. } => return lost(self.to_string(), path),
            Self::Store(error) if error.lost_file().is_some() => {
                return lost(self.to_string(), error.lost_file().unwrap_or(Path::new("")));
            }
            Self::TooOld(problem) => return problem.clone(),
            Self::Store(RaftStoreError::TooOld { .. }) => (Code::BuildTooOld, UPGRADE_REMEDY),
            Self::Store(RaftStoreError::Entry { .. }) => (
                Code::BuildTooOld,
                "Install the release of the other nodes on this one, and start its agent anew. Its state is kept. If it has that \
                 release already, make the node anew: docs/lost-state.md has each step.",
            ),
            Self::Store(_) => (Code::AgentStore, "Look at the disk of the state directory."),
            Self::TrustLost { .. } => (Code::CertificateLost, TRUST_REMEDY),
            Self::Transport(TransportError::Unproven { .. }) => (Code::PeerUnproven, UNPROVEN_REMEDY),
            Self::Transport(_) => (Code::AgentTransport, "Check the address and the network."),
            Self::NoCgroup => (Code::AgentCgroup, ""),
            Self::Removed(_) => (Code::NodeRemoved, REJOIN_REMEDY),
            Self::Twin { .. } => (
                Code::IdentityInUse,
                "Stop the machine that is the copy. To use it as another node, empty its state directory and join it under another name.",
            ),
            Self::Elsewhere { .. } => (
                Code::IdentityElsewhere,
                "If this is a copy, empty its state directory and join it under another name. If it is the node, give it the recorded \
                 address back and start the agent.",
            ),
            Self::Fatal(_) => {
                (Code::AgentFatal, "Look at the agent's log; it is restarted by its supervisor.")
            }
        };
        Problem::new(code, self.to_string(), remedy)
    }
}

fn lost(message: String, path: &Path) -> Problem {
    let state_dir = path.parent().unwrap_or(Path::new("/")).display();
    Problem::new(
        Code::StateLost,
        message,
        format!(
            "A restart does not help. Do not put an older copy of the file in its place: the node could vote twice. Keep the state \
             directory, and make the node anew: stop its agent and its engine, run `mv {state_dir} {state_dir}.lost`, start both, and \
             join in its own place with `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN --replace`. docs/lost-state.md has each step."
        ),
    )
}

/// The answer of a proposal, for the API.
///
/// # Errors
/// What was refused or remains unknown.
pub fn settle(result: Result<Outcome, ProposeError>) -> Result<Outcome, Problem> {
    match result {
        Ok(Outcome::Refused(refusal)) => Err(refusal),
        Ok(Outcome::Conflict { .. }) => Err(Problem::new(
            Code::Conflict,
            "the state changed meanwhile",
            "Look at the state and try again.",
        )),
        Ok(outcome) => Ok(outcome),
        Err(error @ ProposeError::Unknown { .. }) => Err(Problem::new(
            Code::ResultUnknown,
            error.to_string(),
            "Look at the state before trying again; `mainstay status` says whether a majority of nodes is up.",
        )),
        Err(error) => Err(Problem::new(Code::ControlPlaneBusy, error.to_string(), "Try again.")),
    }
}
