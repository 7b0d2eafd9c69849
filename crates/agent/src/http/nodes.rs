//! Nodes that leave, are replaced or get other addresses, and the backup of the record.

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, PROPOSE_TIMEOUT, READ_PATIENCE, blocking, find_node};
use crate::agent::Agent;
use crate::clock::wall_ms;
use crate::error::settle;
use crate::messages::{Call, CallReply};
use crate::raft::{ConsensusLog, View};
use crate::recovery;
use axum::extract::State as AppState;
use mainstay_api::rest::{
    Accepted, BACKUP_FORMAT, ClusterBackup, EngineSuccessor, NodeAddress, NodeRemoval, NodeRemove,
    NodeReplace, ProgramsView,
};
use mainstay_control::members::Addresses;
use mainstay_control::state::{Command, Outcome};
use mainstay_trust::Expect;
use mainstay_types::{Code, NodeId, Problem, ResourceId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a change of members waits until all living nodes have taken notice of the last one.
const SETTLE_WITHIN: Duration = Duration::from_secs(10);
const SETTLE_PAUSE: Duration = Duration::from_millis(100);
/// How long one of two voters may take to confirm that it is no member any more.
const PART_WITHIN: Duration = Duration::from_secs(10);
/// How long a node has to answer at an address.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// Proposes a change of members, and again while the last one settles.
pub(super) fn propose(agent: &Arc<Agent>, command: &Command, message: String) -> Result<Accepted, Problem> {
    propose_as(agent, command, |_| message)
}

/// The same, with a message that depends on what came of it.
pub(super) fn propose_as(
    agent: &Arc<Agent>,
    command: &Command,
    message: impl FnOnce(&Outcome) -> String,
) -> Result<Accepted, Problem> {
    let member = agent.member()?;
    let deadline = Instant::now() + SETTLE_WITHIN;
    loop {
        match settle(member.log.propose(command.clone(), PROPOSE_TIMEOUT)) {
            Err(error) if error.code == Code::MembershipSettling && Instant::now() < deadline => {
                std::thread::sleep(SETTLE_PAUSE);
            }
            Err(error) => return Err(error),
            Ok(outcome) => {
                let message = message(&outcome);
                return Ok(Accepted { revision: member.log.view().state.revision, message });
            }
        }
    }
}

fn names(view: &View, resources: impl IntoIterator<Item = ResourceId>) -> Vec<String> {
    let known = resources.into_iter().filter_map(|id| view.state.resources.get(&id));
    known.map(|resource| resource.name.clone()).collect()
}

fn removal_of(view: &View, node: NodeId) -> NodeRemoval {
    let lost = view.state.lost_with(node);
    let holds = |id: &ResourceId| {
        let resource = view.state.resources.get(id);
        resource.is_some_and(|known| !known.deleting && known.spec.replicas.contains(&node))
    };
    let held: Vec<ResourceId> =
        view.state.resources.keys().copied().filter(|id| holds(id) && !lost.contains(id)).collect();
    NodeRemoval { lost: names(view, lost), replicas: names(view, held) }
}

pub(super) async fn programs(AppState(agent): App) -> ApiResult<ProgramsView> {
    blocking(move || Ok(agent.programs())).await
}

pub(super) async fn in_place(AppState(agent): App) -> ApiResult<Accepted> {
    blocking(move || agent.can_be_replaced_in_place()).await
}

pub(super) async fn successor(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<EngineSuccessor>,
) -> ApiResult<Accepted> {
    blocking(move || agent.announce_successor(request.within_ms)).await
}

pub(super) async fn removal(AppState(agent): App, Path(name): Path<String>) -> ApiResult<NodeRemoval> {
    blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        Ok(removal_of(&view, find_node(&view, &name)?))
    })
    .await
}

pub(super) async fn remove(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<NodeRemove>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        super::require_majority(&agent, &format!("node {name} is not removed"))?;
        let node = find_node(&view, &name)?;
        let lost: Result<BTreeSet<ResourceId>, Problem> =
            request.lost.iter().map(|name| Ok(super::find_resource(&view, name)?.id)).collect();
        let is_one_of_two = view.voters.len() == 2 && view.voters.contains(&node);
        let removal = Command::RemoveNode { node, lost: lost? };
        let accepted = propose(&agent, &removal, format!("node {name} is removed"))?;
        if is_one_of_two {
            return confirmed_by_both(&agent, node, &name, accepted);
        }
        Ok(accepted)
    })
    .await
}

/// Waits until the remaining one of two voters decides alone: the removed one has to confirm that.
fn confirmed_by_both(
    agent: &Arc<Agent>,
    node: NodeId,
    name: &str,
    accepted: Accepted,
) -> Result<Accepted, Problem> {
    let member = agent.member()?;
    let is_out = |view: &View| !view.voters.contains(&node) && !view.learners.contains(&node);
    // A node that is asked to remove itself ends before it learns of that.
    if node == member.identity.node || agent.wait_for(&member, PART_WITHIN, is_out) {
        return Ok(accepted);
    }
    let message = format!(
        "node {name} is removed, and has not confirmed yet that the other node decides alone: leave its agent running until it ends \
         by itself"
    );
    Ok(Accepted { message, ..accepted })
}

pub(super) async fn replace(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<NodeReplace>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let view = agent.member()?.log.confirmed_view(READ_PATIENCE);
        let (node, by) = (find_node(&view, &name)?, find_node(&view, &request.with)?);
        let message = format!("node {name} is removed, and {} gets its replicas", request.with);
        propose(&agent, &Command::ReplaceNode { node, by }, message)
    })
    .await
}

pub(super) async fn set_address(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<NodeAddress>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let node = find_node(&view, &name)?;
        let addresses = Addresses::read(&request.address, request.engine_address.as_deref())?;
        let (agent_addr, engine_addr) = (addresses.agent.to_string(), addresses.engine.to_string());
        if !request.unseen {
            let reply = member.transport.call(&agent_addr, Expect::Node(node), &Call::Who, ANSWER_WITHIN);
            if !matches!(reply, Ok(CallReply::Is { node: found }) if found == node) {
                return Err(Problem::new(
                    Code::AddressUnreachable,
                    format!("{name} does not answer at {agent_addr}"),
                    "Give the machine the address first, beside the old one, and let the agent listen there. If the node is off, add \
                     --unseen.",
                ));
            }
        }
        let message = format!("node {name} is recorded at {agent_addr}");
        propose(&agent, &Command::SetAddress { node, agent_addr, engine_addr }, message)
    })
    .await
}

pub(super) async fn backup(AppState(agent): App) -> ApiResult<ClusterBackup> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let state = serde_json::to_string(&*view.state).map_err(|error| {
            Problem::new(Code::AgentInternal, error.to_string(), "Look at the agent's log.")
        })?;
        Ok(ClusterBackup {
            format: BACKUP_FORMAT,
            cluster: member.identity.cluster_name.clone(),
            node: member.identity.name.clone(),
            at_ms: wall_ms(),
            revision: view.state.revision,
            sum: recovery::sum_of(&state),
            state,
        })
    })
    .await
}
