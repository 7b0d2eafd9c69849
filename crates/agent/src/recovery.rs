//! A cluster that begins anew on this node: after its majority is lost for good, or from a backup
//! of its record. The agent of this node is stopped meanwhile.
//!
//! Guarantees
//! - Nothing changes while another node of the cluster answers, or while the agent runs.
//! - The log begins anew in one transaction, beyond every entry of the earlier members. What this
//!   node had in its log is kept, also entries that it did not know to be committed: a majority may
//!   have committed them.
//! - Nothing is removed. A node that is a member of a cluster does not take a backup in.

use crate::agent::certificates::{Founded, found, problem_of, proofs_of};
use crate::clock::wall_ms;
use crate::error::AgentError;
use crate::identity::{Identity, LogMark, number_of};
use crate::lease;
use crate::level;
use crate::member::{log_path, suspects_path};
use crate::messages::{Call, CallReply, random_u64};
use crate::own_state;
use crate::raft::Machine;
use crate::raft::store::RaftStore;
use crate::transport::{Proofs, Transport, TransportError};
use crate::trust::{OwnTrust, recorded_trust};
use mainstay_api::rest::{BACKUP_FORMAT, ClusterBackup};
use mainstay_control::State;
use mainstay_control::era::Anew;
use mainstay_control::state::Node;
use mainstay_trust::{Expect, Refusal};
use mainstay_types::{Code, NodeId, Problem};
use protobuf::Message as _;
use raft::eraftpb::{ConfChange, ConfChangeType, EntryType};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// How long another node has to show that it lives.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// The result, or what the result would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Outcome {
    pub cluster: String,
    /// Name of the node on which the cluster begins anew.
    pub node: String,
    /// Names of the nodes that are refused from then on.
    pub refused: Vec<String>,
    /// Names of the resources of which this node has no replica with every acknowledged write.
    pub lacking: Vec<String>,
    /// Whether it was done.
    pub done: bool,
}

/// Sum by which a damaged backup is noticed (FNV-1a, folded to 32 bits).
#[must_use]
pub fn sum_of(text: &str) -> u32 {
    let mixed = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (mixed >> 32) as u32 ^ mixed as u32
}

fn problem(error: &AgentError) -> Problem {
    let problem = error.problem();
    let runs = problem.message.contains("already open") || problem.message.contains("lock");
    if problem.code == Code::AgentStore && runs {
        return Problem::new(
            Code::AgentRuns,
            "the agent of this node runs, or another command uses its files",
            "Stop the agent first, for example with `systemctl stop mainstay-agent`.",
        );
    }
    problem
}

/// Refuses while another node of the cluster answers.
fn refuse_living(state: &State, identity: (u64, NodeId), transport: &Transport) -> Result<(), Problem> {
    let others = state.nodes.values().filter(|node| node.id != identity.1);
    let answers: Vec<(String, String)> = std::thread::scope(|scope| {
        let asked: Vec<_> = others
            .map(|node| {
                scope.spawn(move || {
                    is_living(state, node, identity, transport)
                        .then(|| (node.name.clone(), node.agent_addr.clone()))
                })
            })
            .collect();
        asked.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    let Some((name, address)) = answers.first() else { return Ok(()) };
    Err(Problem::new(
        Code::NodeAlive,
        format!("the agent of {name} answers at {address}"),
        format!(
            "If a majority of the nodes can be brought back, do that: nothing is lost then. Otherwise stop agent and engine of {name} \
             first; it joins again afterwards."
        ),
    ))
}

/// Whether a member answers at the address of `node`. A machine that has no certificate yet,
/// because it is to become a member by a backup, hears from a member that it is none. A node of an
/// authority that is not known here counts as a member: the cluster may have replaced its authority
/// since the backup, or since this node was left out.
fn is_living(state: &State, node: &Node, identity: (u64, NodeId), transport: &Transport) -> bool {
    let authority = state.identities.issuing().map(|authority| authority.fingerprint);
    let is_member = transport.proofs().is_some_and(|proofs| proofs.trust.cluster.is_some());
    let (expect, own) = match authority {
        Some(authority) if !is_member => (Expect::Authority(authority), None),
        _ => (Expect::Renewal, Some(identity)),
    };
    let answer = transport.call_as(own, &node.agent_addr, expect, &Call::Who, ANSWER_WITHIN);
    match answer.map(|answer| answer.reply) {
        Ok(CallReply::Is { .. }) => true,
        Ok(CallReply::Error(problem)) => {
            problem.code == Code::CertificateRefused || !is_member && problem.code == Code::OtherCluster
        }
        Err(TransportError::Unproven { source, .. }) => {
            let refusal = source.get_ref().and_then(|source| source.downcast_ref::<Refusal>());
            refusal == Some(&Refusal::OtherAuthority)
        }
        _ => false,
    }
}

/// A transport for questions alone.
fn questions(own: &OwnTrust, cluster: Option<u64>, state: &State) -> Result<Transport, AgentError> {
    let transport = Transport::new();
    let proofs = proofs_of(own, None)?;
    let trust = cluster.map(|cluster| recorded_trust(cluster, &state.identities)).unwrap_or_default();
    transport.set_proofs(Proofs { trust: Arc::new(trust), ..proofs });
    Ok(transport)
}

fn others_of(state: &State, own: NodeId) -> Vec<String> {
    let others = state.nodes.values().filter(|node| node.id != own && !node.candidate);
    others.map(|node| node.name.clone()).collect()
}

/// Begins the cluster anew on this node with what it knows, if `dead` are all other nodes. Without
/// any name it only tells the result.
///
/// # Errors
/// When this node is no member, another one lives, the names are not all others, or the disk fails.
pub fn recover(state_dir: &Path, dead: &[String]) -> Result<Outcome, Problem> {
    let Some(identity) = own_state::load(state_dir).map_err(|error| problem(&error))? else {
        return Err(not_a_member(state_dir));
    };
    let path = log_path(state_dir);
    let mut store = RaftStore::open(&path).map_err(|error| problem(&error.into()))?;
    let mut state = all_known(&store).map_err(|error| problem(&error))?;
    let own = identity.node;
    let known = state.nodes.get(&own).filter(|node| !node.candidate && state.cluster.is_some());
    let Some(node) = known.map(|node| node.name.clone()) else {
        return Err(Problem::new(
            Code::HasNotJoined,
            "this node has not finished joining, and does not know the record of the cluster",
            "Run the command on a node that has joined.",
        ));
    };
    let era = state.cluster.as_ref().map_or(0, |cluster| cluster.era);
    let mut others = others_of(&state, own);
    if others.is_empty() {
        others = parting(&store, &state, own);
    }
    if others.is_empty() {
        return Err(Problem::new(
            Code::LastNode,
            format!("{node} is the only node of the cluster, and has its majority"),
            "Start the agent, and look at `mainstay status`.",
        ));
    }
    let keys = OwnTrust::load(state_dir, true).map_err(|error| problem(&error))?;
    let transport = questions(&keys, Some(identity.cluster), &state).map_err(|error| problem(&error))?;
    refuse_living(&state, (number_of(identity.cluster, era), own), &transport)?;
    let named: BTreeSet<&String> = dead.iter().collect();
    let lacking = state.begin_anew(wall_ms(), own, random_u64(), Anew::MajorityLost);
    let mut outcome = Outcome { cluster: identity.cluster_name, node, refused: others, lacking, done: false };
    if dead.is_empty() {
        return Ok(outcome);
    }
    if named != outcome.refused.iter().collect() {
        return Err(Problem::new(
            Code::NodesNotNamed,
            format!("the other nodes of the cluster are {}", outcome.refused.join(", ")),
            "Name exactly these. If one of them can come back, bring it back instead.",
        ));
    }
    let data = Machine::new(state).encode().map_err(|error| problem(&error.into()))?;
    store.begin_anew(u64::from(own.0), data).map_err(|error| problem(&error.into()))?;
    outcome.done = true;
    Ok(outcome)
}

/// Names of removed nodes that are voters of the log still. One of two that is lost before it has
/// confirmed its removal leaves the other one without a majority.
fn parting(store: &RaftStore, state: &State, own: NodeId) -> Vec<String> {
    let metadata = store.newest_snapshot().get_metadata();
    let mut voters: BTreeSet<u64> = metadata.get_conf_state().voters.iter().copied().collect();
    let committed = metadata.index + 1..=store.hard_state().commit;
    for entry in store.log().filter(|entry| committed.contains(&entry.index)) {
        let mut change = ConfChange::default();
        let is_change = entry.get_entry_type() == EntryType::EntryConfChange;
        if !is_change || change.merge_from_bytes(&entry.data).is_err() {
            continue;
        }
        match change.get_change_type() {
            ConfChangeType::AddNode => voters.insert(change.node_id),
            ConfChangeType::RemoveNode | ConfChangeType::AddLearnerNode => voters.remove(&change.node_id),
        };
    }
    let nodes = voters.into_iter().filter_map(|id| u32::try_from(id).ok().map(NodeId));
    nodes.filter(|node| *node != own).map(|node| state.node_name(node)).collect()
}

fn not_a_member(state_dir: &Path) -> Problem {
    Problem::new(
        Code::NotAMember,
        format!("{} is not the state of a member of a cluster", state_dir.display()),
        "Name the state directory of the node with --state-dir.",
    )
}

/// The state with every entry that is in the log.
fn all_known(store: &RaftStore) -> Result<State, AgentError> {
    let mut machine = Machine::restore(store.newest_snapshot())?;
    let after = store.newest_snapshot().get_metadata().index;
    for entry in store.log().filter(|entry| entry.index > after) {
        if let Ok(proposal) = level::read_entry(&entry.data) {
            machine.apply(&proposal)?;
        }
    }
    Ok(machine.state)
}

/// Reads a backup.
///
/// # Errors
/// When it is none, or is damaged, or of a newer release.
pub fn read_backup(text: &str) -> Result<State, Problem> {
    let bad = |why: String| {
        let remedy = "Take another copy of the file.";
        Err(Problem::new(Code::BadBackup, format!("this is no whole backup of a cluster: {why}"), remedy))
    };
    let backup: ClusterBackup = match serde_json::from_str(text) {
        Ok(backup) => backup,
        Err(error) => return bad(error.to_string()),
    };
    if backup.format > BACKUP_FORMAT {
        return Err(Problem::new(
            Code::BadBackup,
            format!("the backup has format {}, and this release reads {BACKUP_FORMAT}", backup.format),
            "Use the release that wrote the backup, or a newer one.",
        ));
    }
    if sum_of(&backup.state) != backup.sum {
        return bad("its sum is wrong".into());
    }
    level::check_state(backup.state.as_bytes()).map_err(|error| AgentError::from(error).problem())?;
    match serde_json::from_str::<State>(&backup.state) {
        Ok(state) if state.cluster.is_some() => match state.check() {
            Ok(()) => Ok(state),
            Err(why) => bad(why),
        },
        Ok(_) => bad("it has no cluster".into()),
        Err(error) => bad(error.to_string()),
    }
}

/// Makes this machine the node `name` of a backup, and the only voter of the cluster.
///
/// # Errors
/// When this machine is a member already, a node of the cluster lives, the backup does not fit, or
/// the disk fails.
pub fn restore(state_dir: &Path, text: &str, name: &str) -> Result<Outcome, Problem> {
    let mut state = read_backup(text)?;
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| AgentError::File { path, source }.problem()
    };
    let taken = [crate::identity::FILE, "agent.redb", "suspects.redb"];
    if let Some(file) = taken.iter().find(|file| state_dir.join(file).exists()) {
        return Err(Problem::new(
            Code::AlreadyAMember,
            format!(
                "{} is there: this machine is a member of a cluster, or was one",
                state_dir.join(file).display()
            ),
            "Move identity.json, agent.redb and suspects.redb away first, and keep them.",
        ));
    }
    let Some(node) = state.nodes.values().find(|node| node.name == name && !node.candidate) else {
        let names: Vec<&str> = state.nodes.values().map(|node| node.name.as_str()).collect();
        return Err(Problem::new(
            Code::UnknownNode,
            format!("the backup has no node {name}"),
            format!("Name one of {}.", names.join(", ")),
        ));
    };
    let own = node.id;
    let Some(cluster) = state.cluster.clone() else { return Err(not_a_member(state_dir)) };
    let mut keys = OwnTrust::load(state_dir, false).map_err(|error| problem(&error))?;
    let transport = questions(&keys, None, &state).map_err(|error| problem(&error))?;
    refuse_living(&state, (number_of(cluster.id, cluster.era), own), &transport)?;
    let refused = others_of(&state, own);
    let era = random_u64();
    let lacking = state.begin_anew(wall_ms(), own, era, Anew::Restored);
    fs::create_dir_all(state_dir).map_err(failed(state_dir))?;
    // No backup contains the key of the authority, so the cluster gets another one.
    let number = state.identities.next_number();
    let Founded { authority, membership, given } =
        found(cluster.id, number, own, &keys.key.public()).map_err(|error| problem_of(&error))?;
    state.found_anew(wall_ms(), own, authority, given);
    let identity = Identity {
        cluster: cluster.id,
        cluster_name: cluster.name.clone(),
        node: own,
        name: name.to_owned(),
        first_members: BTreeMap::new(),
        log: LogMark::Begun,
        era,
        removed: None,
    };
    // The log before the identity: with the identity the node is a member.
    let write = || -> Result<(), AgentError> {
        lease::prepare(&suspects_path(state_dir))?;
        let mut store = RaftStore::open(&log_path(state_dir))?;
        store.bootstrap(u64::from(own.0), Machine::new(state).encode()?)?;
        drop(store);
        keys.membership = Some(membership);
        keys.save()?;
        identity.save(state_dir).map_err(|source| AgentError::File { path: state_dir.to_path_buf(), source })
    };
    write().map_err(|error| problem(&error))?;
    Ok(Outcome { cluster: cluster.name, node: name.to_owned(), refused, lacking, done: true })
}

#[cfg(test)]
mod tests;
