//! The replicated state machine: the cluster state, and the outcomes of the last proposals by id.

use super::store::RaftStoreError;
use crate::level;
use crate::messages::{Proposal, ProposalId};
use mainstay_control::State;
use mainstay_control::state::Outcome;
use raft::eraftpb::Snapshot;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Outcomes that are remembered. A proposal is repeated for as long as its proposer waits, a minute
/// at most; the log takes in fewer proposals in that time than this.
const REMEMBERED_MAX: usize = 2048;

/// All nodes' machines are equal after the same entries.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    pub state: State,
    recent: VecDeque<(ProposalId, Outcome)>,
}

impl Machine {
    #[must_use]
    pub fn new(state: State) -> Self {
        Self { state, recent: VecDeque::new() }
    }

    /// # Errors
    /// When the snapshot is not one of this version's.
    pub fn restore(snapshot: &Snapshot) -> Result<Self, RaftStoreError> {
        let index = snapshot.get_metadata().index;
        if index == 0 {
            return Ok(Self::default());
        }
        level::check_machine(&snapshot.data)?;
        serde_json::from_slice(&snapshot.data)
            .map_err(|error| RaftStoreError::Entry { index, what: error.to_string() })
    }

    /// # Errors
    /// When the state cannot be written as JSON.
    pub fn encode(&self) -> Result<Vec<u8>, RaftStoreError> {
        serde_json::to_vec(self).map_err(|error| RaftStoreError::Entry { index: 0, what: error.to_string() })
    }

    /// Applies a proposal, once.
    ///
    /// # Errors
    /// When the cluster uses a higher feature level from this entry on than this build has.
    pub fn apply(&mut self, proposal: &Proposal) -> Result<Outcome, RaftStoreError> {
        if let Some(outcome) = self.remembered(proposal.id) {
            return Ok(outcome.clone());
        }
        let outcome = self.state.apply(proposal.entry.clone());
        self.recent.push_back((proposal.id, outcome.clone()));
        if self.recent.len() > REMEMBERED_MAX {
            self.recent.pop_front();
        }
        level::check(self.state.level)?;
        Ok(outcome)
    }

    /// The outcome of a proposal that was applied not long ago.
    #[must_use]
    pub fn remembered(&self, id: ProposalId) -> Option<&Outcome> {
        self.recent.iter().rev().find(|(known, _)| *known == id).map(|(_, outcome)| outcome)
    }
}
