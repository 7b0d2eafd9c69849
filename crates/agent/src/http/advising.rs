//! Advice for operators, made of the record and of the answers of the nodes.

use crate::agent::Agent;
use crate::clock::wall_ms;
use crate::member::Member;
use crate::raft::View;
use crate::views::Live;
use mainstay_control::advice::{Advice, Observations, advice};
use mainstay_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The advice of this moment. It is made once for the same record and the same answers.
pub(super) fn advise(agent: &Agent, member: &Member, view: &View, live: &Arc<Live>) -> Arc<[Advice]> {
    let has_leader = view.leader.is_some() && view.age_ms == Some(0);
    agent.advised(&view.state, has_leader, live, || made(agent, member, view, live, has_leader))
}

fn made(agent: &Agent, member: &Member, view: &View, live: &Live, has_leader: bool) -> Vec<Advice> {
    let own = member.identity.node;
    let unreachable: BTreeSet<NodeId> =
        view.state.nodes.keys().copied().filter(|&node| node != own && !agent.is_connected(node)).collect();
    let holders = view.state.nodes.values().filter(|node| !node.witness && !node.candidate);
    let holders = holders.map(|node| node.id);
    let silent = holders.filter(|node| !live.engines.contains_key(node)).collect();
    let mut full: BTreeMap<_, BTreeSet<NodeId>> = BTreeMap::new();
    for (node, engine) in &live.engines {
        for replica in engine.replicas.iter().filter(|replica| replica.no_space.is_some() || replica.full) {
            full.entry(replica.resource).or_default().insert(*node);
        }
    }
    let mut lacks: BTreeMap<String, BTreeMap<NodeId, Vec<String>>> = BTreeMap::new();
    for (node, services) in &live.lacks {
        for (service, found) in services {
            let words =
                found.iter().map(|lack| format!("{}: {} ({})", lack.field, lack.problem, lack.remedy));
            lacks.entry(service.clone()).or_default().insert(*node, words.collect());
        }
    }
    let (stalls, left) = (live.stalls(), live.left.clone());
    let observed = Observations {
        own: Some(own),
        feeds: live.feeds(),
        unreachable,
        silent,
        has_leader,
        full,
        lacks,
        stalls,
        left,
        wall_ms: wall_ms(),
        renewals: live.renewals(),
    };
    advice(&view.state, &observed)
}
