//! Nodes that have left the cluster: how others refuse them, and how such a node learns that and
//! ends.
//!
//! Guarantees
//! - No message of a removed node reaches the log, a lease or a proposal of a member that has taken
//!   it out of the members of its log. So it cannot vote, and cannot disturb an election.
//! - A removed node that runs gives its lease up as soon as its log says so. It stays a member of
//!   the log until the others have taken it out: they may need its confirmation for that. Then a
//!   member tells it, or its log does. It notes that beside its log, and ends. From then on it does
//!   not run, also if no member answers.
//! - Nothing of its files is removed.

use crate::clock::{boot_now, wall_ms};
use crate::error::{AgentError, REJOIN_REMEDY};
use crate::identity::{Identity, number_of};
use crate::member::Member;
use crate::raft::{ConsensusLog, View};
use crate::threads::spawn;
use mainstay_types::{Code, NodeId, Problem};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often a node without a lease asks whether it still is a member.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Time in which a removed node tells its engine that its lease has ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Why a node with this identity is no member, if it was one. A node that the state has removed and
/// that is still a member of the log counts as a member.
#[must_use]
pub fn of(view: &View, cluster: u64, node: NodeId) -> Option<Problem> {
    let state = &view.state;
    let own = state.cluster.as_ref()?;
    let problem = |message: String| Some(Problem::new(Code::NodeRemoved, message, REJOIN_REMEDY));
    if cluster == number_of(own.id, own.era) {
        let is_of_log = view.voters.contains(&node) || view.learners.contains(&node);
        if !state.is_removed(node) || is_of_log {
            return None;
        }
        return problem(match state.removed.get(&node) {
            Some(removed) => format!(
                "this node was {} and was removed from cluster {} {} ago",
                removed.name,
                own.name,
                age(removed.at_ms)
            ),
            None => format!("this node was removed from cluster {}", own.name),
        });
    }
    if own.era != 0 && own.earlier.contains(&cluster) {
        return problem(format!(
            "cluster {} began anew on another node, after it had lost its majority, and this node is no member any more",
            own.name
        ));
    }
    None
}

/// Returns the age of a point in time in words.
fn age(at_ms: u64) -> String {
    let minutes = wall_ms().saturating_sub(at_ms) / 60_000;
    match minutes {
        0 => "less than a minute".to_owned(),
        1..=119 => format!("{minutes} min"),
        120..=2879 => format!("{} h", minutes / 60),
        _ => format!("{} days", minutes / 1440),
    }
}

/// Notes durably that this node is no member, and returns the error that ends its agent.
#[must_use]
pub fn note(state_dir: &Path, identity: &Identity, problem: &Problem) -> AgentError {
    let words = problem.message.clone();
    let noted = Identity { removed: Some(words.clone()), ..identity.clone() };
    if let Err(error) = noted.save(state_dir) {
        tracing::error!(%error, "cannot note that this node was removed; it asks again when it starts");
    }
    AgentError::Removed(words)
}

/// Ends the agent when its node is removed.
pub fn watch(member: &Arc<Member>, state_dir: &Path, fatal: &SyncSender<AgentError>) {
    let end = {
        let (state_dir, identity, fatal) = (state_dir.to_path_buf(), member.identity.clone(), fatal.clone());
        move |problem: Problem| {
            let error = note(&state_dir, &identity, &problem);
            // The lease has ended with the state that says so, or long ago. The engine hears of it.
            std::thread::sleep(LAST_WORDS);
            drop(fatal.try_send(error));
        }
    };
    let own = member.identity.node;
    let ends = end.clone();
    member.log.subscribe(Box::new(move |view: &View| {
        // Only a removal ends a node. A node that could not join is told by its attempt.
        if view.state.removed.contains_key(&own)
            && let Some(cluster) = &view.state.cluster
            && let Some(problem) = of(view, number_of(cluster.id, cluster.era), own)
        {
            let ends = ends.clone();
            spawn("agent-removed", move || ends(problem));
        }
    }));
    let member = Arc::downgrade(member);
    spawn("agent-belongs", move || {
        while let Some(problem) = asked(&member) {
            if let Some(problem) = problem {
                return end(problem);
            }
            std::thread::sleep(ASK_EVERY);
        }
    });
}

/// The words of a member about a node that has no lease. `None`: this process is no member any
/// more.
fn asked(member: &Weak<Member>) -> Option<Option<Problem>> {
    let member = member.upgrade().filter(|member| !member.log.is_stopped())?;
    if member.lease.until() > boot_now() || member.is_joining() {
        return Some(None);
    }
    let (state, own) = (member.log.view().state, member.identity.node);
    let others = state.nodes.values().filter(|node| node.id != own);
    let agents: Vec<String> = others.map(|node| node.agent_addr.clone()).collect();
    let identity = member.transport.identity()?;
    let transport = member.transport.clone();
    drop(member);
    Some(transport.ask_about(identity, &agents).gone)
}
