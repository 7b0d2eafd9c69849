//! Refusals to start as a node that another machine may be.
//!
//! Guarantees
//! - An agent does not start as a node if another machine is heard as that node. Nor does it start
//!   as a node that is recorded at an address where the agent does not find itself.

use super::address_proof::Proof;
use super::{ASK_TIMEOUT, Agent, removed};
use crate::error::AgentError;
use crate::identity::{Identity, number_of};
use crate::member::log_path;
use crate::messages::{Call, CallReply, random_u64};
use crate::own_state::recorded;
use crate::raft::store::RaftStore;
use crate::service::vip::own_addresses;
use crate::transport::silence_of;
use mainstay_control::State;
use mainstay_control::members::is_recorded_here;
use mainstay_trust::Expect;
use mainstay_types::NodeId;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long an agent waits for another process with its identity to end, beyond the silence after
/// which one whose power was cut does not count as living.
const TWIN_PATIENCE: Duration = Duration::from_millis(2500);
/// How long a machine that has not the recorded address of its node is waited for: its network may
/// come up late.
const ADDRESS_PATIENCE: Duration = Duration::from_secs(10);
const ADDRESS_PAUSE: Duration = Duration::from_millis(300);

impl Agent {
    /// Refuses to start as a node if another machine is heard as that node: one of the two is a
    /// copy of the other.
    pub(super) fn refuse_twins(&self, identity: &Identity) -> Result<(), AgentError> {
        let known = recorded(&RaftStore::open(&log_path(&self.options.state_dir))?)?;
        let agents = others(identity, &known);
        let number = number_in(identity, &known);
        let deadline = Instant::now() + silence_of(known.settings.heartbeat_ms) + TWIN_PATIENCE;
        loop {
            let words = self.transport.ask_about((number, identity.node), &agents);
            if let Some(problem) = words.gone {
                return Err(removed::note(&self.options.state_dir, identity, &problem));
            }
            if let Some(problem) = words.too_old {
                return Err(AgentError::TooOld(problem));
            }
            let Some(other) = words.twin else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(AgentError::Twin {
                    name: identity.name.clone(),
                    own: self.listens.clone(),
                    other,
                });
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Refuses to start as a node whose recorded address this machine does not have, and where it
    /// does not reach itself. The machine may be a copy of the node, which is off just now.
    pub(super) fn refuse_elsewhere(&self, identity: &Identity) -> Result<(), AgentError> {
        let known = recorded(&RaftStore::open(&log_path(&self.options.state_dir))?)?;
        let Some(recorded) = known.nodes.get(&identity.node).map(|node| node.agent_addr.as_str()) else {
            return Ok(());
        };
        let (agents, number) = (others(identity, &known), number_in(identity, &known));
        let nonce = random_u64();
        let _proof = Proof::begin(self, nonce);
        let deadline = Instant::now() + ADDRESS_PATIENCE;
        let mut is_told = false;
        loop {
            // If the kernel does not tell, nothing is known against this machine.
            let is_here = own_addresses().map_or(true, |own| is_recorded_here(recorded, &own, &self.listens));
            let ask = || self.transport.call_as(None, recorded, Expect::Member, &Call::WhoJoins, ASK_TIMEOUT);
            let reply = (!is_here).then(|| ask().map(|answer| answer.reply));
            // The cluster may have recorded another address while this node was off.
            if reply.is_some() {
                let words = self.transport.ask_about((number, identity.node), &agents);
                let own = own_addresses().unwrap_or_default();
                if words.recorded.iter().any(|recorded| is_recorded_here(recorded, &own, &self.listens)) {
                    return Ok(());
                }
            }
            if reply
                .is_none_or(|reply| matches!(reply, Ok(CallReply::Joins { nonce: found }) if found == nonce))
            {
                return Ok(());
            }
            if !std::mem::replace(&mut is_told, true) {
                tracing::warn!(
                    recorded,
                    "this machine has not the address at which its node is recorded; waiting for its network, and ending if it stays so"
                );
            }
            if Instant::now() >= deadline {
                let (name, recorded) = (identity.name.clone(), recorded.to_owned());
                return Err(AgentError::Elsewhere { name, recorded });
            }
            std::thread::sleep(ADDRESS_PAUSE);
        }
    }
}

/// Agents of all other nodes, as far as this one knows.
fn others(identity: &Identity, known: &State) -> Vec<String> {
    let mut agents: BTreeMap<NodeId, String> = identity.first_members.clone();
    agents.extend(known.nodes.values().map(|node| (node.id, node.agent_addr.clone())));
    agents.remove(&identity.node);
    agents.into_values().collect()
}

/// Number by which other agents know the cluster of this node.
fn number_in(identity: &Identity, known: &State) -> u64 {
    number_of(identity.cluster, known.cluster.as_ref().map_or(identity.era, |cluster| cluster.era))
}
