//! Why the agent refuses or fails, with stable codes for operators.

use crate::raft::ProposeError;
use crate::raft::store::RaftStoreError;
use crate::transport::TransportError;
use mainstay_api::engine::EngineError;
use mainstay_api::rest::ErrorBody;
use mainstay_control::state::{Outcome, Refusal};
use std::io;
use std::path::PathBuf;

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
    #[error("the agent cannot go on: {0}")]
    Fatal(String),
}

/// What to do when a node answers what was not asked.
pub const OTHER_RELEASE: &str =
    "The two run different releases: install the same one on all nodes, and try again.";

/// A body for the API.
#[must_use]
pub fn body(code: &str, message: impl Into<String>, remedy: impl Into<String>) -> ErrorBody {
    ErrorBody { code: code.into(), message: message.into(), remedy: remedy.into() }
}

impl AgentError {
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        let (code, remedy) = match self {
            Self::File { .. } => ("agent-file", "Look at the file system and its permissions."),
            Self::Store(_) => ("agent-store", "Look at the disk of the state directory."),
            Self::Transport(_) => ("agent-transport", "Check the address and the network."),
            Self::NoCgroup => ("agent-cgroup", ""),
            Self::Twin { .. } => (
                "identity-in-use",
                "Stop the machine that is the copy. To use it as another node, empty its state directory and join it under another name.",
            ),
            Self::Elsewhere { .. } => (
                "identity-elsewhere",
                "If this is a copy, empty its state directory and join it under another name. If it is the node, give it the recorded \
                 address back and start the agent.",
            ),
            Self::Fatal(_) => ("agent-fatal", "Look at the agent's log; it is restarted by its supervisor."),
        };
        body(code, self.to_string(), remedy)
    }
}

/// The answer of a proposal, for the API.
///
/// # Errors
/// What was refused or remains unknown.
pub fn settle(result: Result<Outcome, ProposeError>) -> Result<Outcome, ErrorBody> {
    match result {
        Ok(Outcome::Refused(Refusal { code, message, remedy })) => Err(ErrorBody { code, message, remedy }),
        Ok(Outcome::Conflict { .. }) => {
            Err(body("conflict", "the state changed meanwhile", "Look at the state and try again."))
        }
        Ok(outcome) => Ok(outcome),
        Err(error @ ProposeError::Unknown { .. }) => Err(body(
            "result-unknown",
            error.to_string(),
            "Look at the state before trying again; `mainstay status` says whether a majority of nodes is up.",
        )),
        Err(error) => Err(body("control-plane-busy", error.to_string(), "Try again.")),
    }
}

/// An error of the engine, for the API.
#[must_use]
pub fn from_engine(error: EngineError) -> ErrorBody {
    ErrorBody { code: error.code, message: error.message, remedy: error.remedy }
}
