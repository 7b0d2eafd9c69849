//! Advice about one resource: its replicas, its primary, and what keeps it from a failover.

use super::{Feed, Observations};
use crate::snapshots::BEFORE_COPY;
use crate::stalls::{Stalled, large_ping};
use crate::state::{Resource, State};
use mainstay_types::{Code, Member, Mode, NodeId, Severity};
use std::collections::BTreeSet;

/// `full`: nodes whose pool has no space for it.
pub(super) fn advise_resource(
    state: &State,
    resource: &Resource,
    full: &BTreeSet<NodeId>,
    observations: &Observations,
    add: &mut impl FnMut(Severity, String, String, String),
) {
    let subject = format!("resource {}", resource.name);
    let names =
        |nodes: Vec<NodeId>| nodes.iter().map(|node| state.node_name(*node)).collect::<Vec<_>>().join(", ");
    let record = &resource.record;
    if resource.deleting {
        let waiting: Vec<NodeId> =
            resource.spec.replicas.iter().copied().filter(|node| !resource.gone.contains(node)).collect();
        add(
            Severity::Info,
            subject,
            format!("is being deleted; not yet gone from {}", names(waiting)),
            "if this lasts, look at the logs of the agents and engines there; the name becomes free when each of these nodes has removed its files or counts as dead"
                .into(),
        );
        return;
    }
    advise_broken(state, resource, full, add);
    if let Some((what, remedy)) = state.advise_attached(resource) {
        add(Severity::Critical, subject.clone(), what, remedy);
    }
    if let Some((lost, what, remedy)) = state.advise_origin(resource) {
        let severity = if lost { Severity::Critical } else { Severity::Info };
        add(severity, subject.clone(), what, remedy);
        if record.epoch.0 == 0 {
            return;
        }
    }
    let unmade: Vec<NodeId> =
        resource.spec.replicas.iter().copied().filter(|node| record.replica(*node).is_none()).collect();
    if record.epoch.0 == 0 {
        let what = if unmade.is_empty() {
            "waits for its first promotion".to_string()
        } else {
            format!("waits for the replicas of {}", names(unmade))
        };
        add(Severity::Warning, subject, what, "see `mainstay node list` if this lasts".into());
        return;
    }
    let lost = record.iss.iter().map(|member| member.node).find(|node| resource.lost_the_last_copy(*node));
    let old_disk = lost.map(|node| {
        format!(
            "bring the old disk of {} back, or delete the resource and restore a backup: no other replica has every acknowledged write{}",
            state.node_name(node),
            force(state, resource)
        )
    });
    if record.primary.is_none() {
        let (broken, members): (Vec<NodeId>, Vec<NodeId>) =
            record.iss.iter().map(|member| member.node).partition(|node| resource.broken(*node).is_some());
        // In mode B, when all members have reported that they lost their memory, one of them goes
        // on by itself.
        let lost = |node: &NodeId| state.alive(*node) && !State::proven(resource, *node);
        let all_lost = !members.is_empty() && members.iter().all(lost);
        let members: Vec<NodeId> = members.into_iter().filter(|node| all_lost || !lost(node)).collect();
        let living = members.iter().any(|node| state.alive(*node));
        let what = resource.failure.clone().unwrap_or_else(|| "has no primary".into());
        let remedy = if let Some(remedy) = old_disk {
            remedy
        } else if living {
            format!(
                "{} should become primary by itself; see `mainstay resource status {}`",
                names(members),
                resource.name
            )
        } else if broken.iter().any(|node| full.contains(node)) {
            // The advice about the full pool tells this problem and its consequences.
            return;
        } else if members.is_empty() {
            format!(
                "{}; or delete the resource and restore a backup: no other node has every acknowledged write{}",
                broken
                    .iter()
                    .filter_map(|node| Some(mend(&resource.broken(*node)?.code, &state.node_name(*node))))
                    .collect::<Vec<_>>()
                    .join("; or "),
                force(state, resource)
            )
        } else {
            format!(
                "bring {} back: no other node has every acknowledged write{}",
                names(members),
                force(state, resource)
            )
        };
        add(Severity::Critical, subject, what, remedy);
        return;
    }
    let in_a = record.policy.mode() == Mode::A;
    let behind: Vec<NodeId> = resource
        .spec
        .replicas
        .iter()
        .copied()
        .filter(|node| record.iss_member(*node).is_none() && !state.follows(resource, *node))
        .collect();
    let alone = record.iss.len() == 1 && resource.spec.replicas.len() > 1 && !in_a;
    let only_broken = behind.iter().all(|node| resource.broken(*node).is_some());
    // The advice about full pools covers replicas that only a full pool keeps out. The advice about
    // broken replicas covers them while failover is possible.
    if !behind.iter().all(|node| full.contains(node)) && (alone || !only_broken) {
        let dead: Vec<NodeId> = behind.iter().copied().filter(|node| !state.alive(*node)).collect();
        let how = if in_a { "following" } else { "in sync" };
        let mut what = format!("is degraded: {} not {how}", names(behind.clone()));
        if alone {
            what.push_str("; no failover is possible");
        }
        let remedy = if only_broken {
            String::new()
        } else if dead.is_empty() {
            let none: Vec<NodeId> =
                behind.iter().copied().filter(|node| resource.broken(*node).is_none()).collect();
            none.iter()
                .map(|node| how_it_is_fed(state, resource, *node, observations))
                .collect::<Vec<_>>()
                .join("; ")
        } else {
            let each = if dead.len() == 1 { "it catches" } else { "they catch" };
            format!(
                "bring {} back: {each} up by {}{}",
                names(dead.clone()),
                if dead.len() == 1 { "itself" } else { "themselves" },
                or_put_elsewhere(state, resource, dead[0])
            )
        };
        add(if alone { Severity::Critical } else { Severity::Warning }, subject.clone(), what, remedy);
    }
    if let Some((what, remedy)) = state.advise_copies(resource) {
        add(Severity::Critical, subject.clone(), what, remedy);
    } else if behind.is_empty() && resource.spec.replicas.len() == 1 {
        add(
            Severity::Warning,
            subject.clone(),
            "has one replica: no failover is possible".into(),
            format!("run `mainstay resource add-replica {} NODE`", resource.name),
        );
    }
    if let Some(failure) = &resource.failure {
        let severity = if old_disk.is_some() { Severity::Critical } else { Severity::Warning };
        let remedy = old_disk.unwrap_or_else(|| format!("see `mainstay resource status {}`", resource.name));
        add(severity, subject, failure.clone(), remedy);
    }
}

/// Sentence on what a living replica that is not in sync does, with the remedy.
fn how_it_is_fed(state: &State, resource: &Resource, node: NodeId, observations: &Observations) -> String {
    let name = state.node_name(node);
    let Some(primary) = resource.record.primary else { return String::new() };
    let at = state.node_name(primary);
    let has = |what: Stalled| observations.stalls.iter().any(|stall| stall.what == what);
    for hung in [node, primary] {
        let name = state.node_name(hung);
        if has(Stalled::LogDisk(hung)) {
            return format!(
                "the disk of {name} hangs: mend it, and {} catches up by itself",
                state.node_name(node)
            );
        }
        if has(Stalled::Engine(hung)) {
            return format!(
                "the engine of {name} hangs: mend that, and {} catches up by itself",
                state.node_name(node)
            );
        }
    }
    if has(Stalled::Unheard(node, primary)) || has(Stalled::Unheard(primary, node)) {
        return format!("there is no connection between {at} and {name}: check the network between them");
    }
    if has(Stalled::Cropped(node, primary)) || has(Stalled::Cropped(primary, node)) {
        return format!(
            "large packets get lost between {at} and {name}: compare the MTU and the firewalls of both"
        );
    }
    match observations.feeds.get(&(resource.id, node)) {
        Some(Feed::Moves) => format!("{name} catches up by itself"),
        Some(Feed::Stands(ms)) => format!(
            "{name} has acknowledged nothing that {at} sent for {} s: check that large packets reach it with {}, and look at its disk",
            ms / 1000,
            large_ping(state, node)
        ),
        Some(Feed::Unconnected) => format!(
            "the engine of {at} has no connection to the engine of {name}: start the engine of {name} if it does not run, or check the network between them"
        ),
        Some(Feed::Refused) => {
            format!("{name} refuses what {at} sends: look at the log of the engine of {name}")
        }
        None => format!("the engine of {at} does not say how far {name} is"),
    }
}

/// The command that puts a replica on a node that has none, if there is one.
fn or_put_elsewhere(state: &State, resource: &Resource, from: NodeId) -> String {
    let free = |node: &&crate::state::Node| {
        !node.witness
            && !node.candidate
            && state.alive(node.id)
            && !resource.spec.replicas.contains(&node.id)
            && resource.record.replica(node.id).is_none()
    };
    match state.nodes.values().find(free) {
        Some(to) => format!(
            "; or put its replica elsewhere: `mainstay resource move-replica {} {} --to {}`",
            resource.name,
            state.node_name(from),
            to.name
        ),
        None => String::new(),
    }
}

/// R11: the remedy when no replica with every acknowledged write comes back.
fn force(state: &State, resource: &Resource) -> String {
    let record = &resource.record;
    let lacks = |member: &Member| !record.iss.contains(member) || !State::proven(resource, member.node);
    if !record.replicas.iter().any(lacks) {
        return String::new();
    }
    let lacking = record.replicas.iter().filter(|member| lacks(member)).map(|member| member.node);
    let (living, dead): (Vec<NodeId>, Vec<NodeId>) = lacking.partition(|node| state.alive(*node));
    let mut candidates = living.into_iter().chain(dead).map(|node| state.node_name(node));
    let mut text = format!(
        "; or go on without what only they have: `mainstay resource force-promote {} {}` says what that costs",
        resource.name,
        candidates.next().unwrap_or_default()
    );
    let others: Vec<String> = candidates.collect();
    if !others.is_empty() {
        text += &format!(", and the same with {}", others.join(" or "));
    }
    // The half-copied replica whose kept state goes furthest.
    let kept = resource.before_copy.iter().filter(|(_, kept)| !kept.dropping);
    if let Some((node, kept)) = kept.max_by_key(|(_, kept)| kept.at) {
        text += &format!(
            ", and removes what {node} held before it was copied to, up to entry {at}, unless another resource is made of that first: `mainstay resource create NAME --from {name}@{BEFORE_COPY} --replicas {node}`",
            node = state.node_name(*node),
            at = kept.at.0,
            name = resource.name,
        );
    }
    text
}

/// The remedy by which the replica on a node can be used again as it is, for an error's code.
fn mend(code: &Code, node: &str) -> String {
    match code {
        Code::OlderCopy => format!("put its newest files back on {node}"),
        Code::LedAsOlderCopy => format!("stop the engine of {node}, put its newest files back, and start it"),
        Code::NoLabel => format!("do what is said there on {node}"),
        Code::DirectoryGone => format!("put its directory back on {node}"),
        Code::WrongDisk | Code::OtherResource | Code::EarlierReplica => {
            format!("put the files back on {node} that the cluster knows")
        }
        Code::JournalMissing | Code::WrongJournal => format!("mount the device of its journal on {node}"),
        Code::VolatileJournal => {
            format!("start the agent of {node} with --volatile-journals if a power cut may cost the replica")
        }
        _ => format!("mend the disk of {node} and restart its engine"),
    }
}

/// R12: the remedy for a replica depends on which other replicas have everything.
fn advise_broken(
    state: &State,
    resource: &Resource,
    full: &BTreeSet<NodeId>,
    add: &mut impl FnMut(Severity, String, String, String),
) {
    let members = resource.record.iss.iter().map(|member| member.node);
    let (living, dead): (Vec<NodeId>, Vec<NodeId>) = members
        .filter(|node| resource.broken(*node).is_none())
        .partition(|node| state.lives_whole(resource, *node));
    for (node, broken) in resource.broken.iter().filter(|(node, _)| !full.contains(node)) {
        let name = state.node_name(*node);
        let remedy = if let Some(source) = living.first().filter(|_| broken.code == Code::DirectoryGone) {
            format!("it is copied again from {} by itself", state.node_name(*source))
        } else if let Some(source) = living.first().filter(|_| broken.code == Code::NoLabel) {
            let source = state.node_name(*source);
            format!("{}: it is used again, or copied again from {source}", mend(&broken.code, &name))
        } else if let Some(source) = living.first() {
            format!(
                "{}; or move its directory out of the pool of {name}, and it is copied again from {}",
                mend(&broken.code, &name),
                state.node_name(*source)
            )
        } else if let Some(source) = dead.first() {
            let source = state.node_name(*source);
            format!(
                "bring {source} back; then move its directory out of the pool of {name}, and it is copied again from {source}; or {}",
                mend(&broken.code, &name)
            )
        } else if broken.code == Code::LedAsOlderCopy {
            format!("{}{}", mend(&broken.code, &name), force(state, resource))
        } else {
            let use_it = if broken.code == Code::OlderCopy {
                format!(
                    "; or use the older copy, which costs what it lacks: stop the agent of {name}, rename held.json in its state directory, and start the agent"
                )
            } else {
                String::new()
            };
            format!(
                "keep its files: no other replica has every acknowledged write; {}; or delete the resource and restore a backup{use_it}",
                mend(&broken.code, &name)
            )
        };
        add(
            if living.is_empty() { Severity::Critical } else { Severity::Warning },
            format!("resource {}", resource.name),
            format!("the replica of {} on {name} cannot be used: {}", resource.name, broken.reason),
            remedy,
        );
    }
}
