//! The replicated cluster state: an existing Raft core, a durable log, and a thread that drives
//! both.
//!
//! Everything else sees [`ConsensusLog`] only, so that the Raft library can be exchanged.

mod driver;
mod machine;
pub mod store;
mod wire;

pub use driver::{RaftHandle, RaftSettings, start};
pub use machine::Machine;

use crate::messages::ProposalId;
use mainstay_control::State;
use mainstay_control::state::{Command, Outcome};
use mainstay_types::NodeId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// The log as this node knows it now.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The state after the last entry that was applied here.
    pub state: Arc<State>,
    pub leader: Option<NodeId>,
    pub is_leader: bool,
    /// Nodes whose agents make up the majority.
    pub voters: BTreeSet<NodeId>,
    /// Nodes that receive the log and do not vote yet.
    pub learners: BTreeSet<NodeId>,
    /// Everything that was in the log when this process began has been applied or replaced. So the
    /// state is no older than any that an earlier process has seen.
    pub replayed: bool,
    /// Raft term, and the last entry that was applied. Subscribers do not hear of a change of only
    /// these.
    pub term: u64,
    pub applied: u64,
    /// Age of the state, from [`ConsensusLog::confirmed_view`]: 0 if a majority confirmed it, else
    /// milliseconds since it was the present one; `None` if that is unknown.
    pub age_ms: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
pub enum ProposeError {
    /// The change may have taken effect, or may do so later: the caller reads the state again.
    #[error("the control plane did not confirm the change in time; it may still take effect (proposal {id})")]
    Unknown { id: ProposalId },
    #[error("too many changes wait for the control plane")]
    Busy,
    #[error("this agent is stopping")]
    Stopped,
}

/// The log of commands that all nodes apply in one order.
pub trait ConsensusLog: Send + Sync {
    /// Proposes a command and waits until it was applied here.
    ///
    /// # Errors
    /// [`ProposeError::Unknown`] after `timeout`; nothing happened with the other errors.
    fn propose(&self, command: Command, timeout: Duration) -> Result<Outcome, ProposeError>;

    /// Proposes a command without waiting. It is repeated for a few seconds until it was applied.
    /// For commands that the proposer makes again by itself if they are still needed.
    fn submit(&self, command: Command);

    /// The state as of the last entry applied here, with the membership and the leader.
    fn view(&self) -> View;

    /// The state, no older than what a majority had when this was called. After `patience` without
    /// an answer of a majority it is what this node knew last, with its age. (Raft's ReadIndex,
    /// Ongaro's thesis, 6.4.)
    fn confirmed_view(&self, patience: Duration) -> View {
        let _ = patience;
        self.view()
    }

    /// Called, on the log's own thread, after every change of the view. Must not wait.
    fn subscribe(&self, listener: Box<dyn Fn(&View) + Send>);
}
