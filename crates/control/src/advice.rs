//! Problems of the cluster and the steps that an operator can take, in words.

use crate::causes::causes;
use crate::labels::Notice;
use crate::snapshots::BEFORE_COPY;
use crate::stalls::{Stall, Stalled, large_ping};
use crate::state::{Resource, Service, State};
use mainstay_types::{Code, Member, Mode, NodeId, NodeStatus, ResourceId, ServicePhase, Severity};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Advice {
    pub severity: Severity,
    /// For example `resource db`.
    pub subject: String,
    /// The problem, in words.
    pub what: String,
    /// The next step of the operator; empty when the problem passes by itself.
    pub remedy: String,
}

impl Advice {
    /// Whether it is about this resource, alone or with others.
    #[must_use]
    pub fn is_about_resource(&self, name: &str) -> bool {
        match self.subject.split_once(' ') {
            Some(("resource", one)) => one == name,
            Some(("resources", list)) => list.split(", ").any(|one| one == name),
            _ => false,
        }
    }
}

/// How a primary feeds a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feed {
    /// The replica acknowledges entries.
    Moves,
    /// The replica was given entries and has acknowledged none of them for this many milliseconds.
    Stands(u64),
    /// The engines have no connection.
    Unconnected,
    /// The replica refuses entries.
    Refused,
}

/// Observations of the asked node and its peers that the cluster state does not contain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Observations {
    /// The node that was asked.
    pub own: Option<NodeId>,
    /// How each replica is fed, as the engine of its primary says.
    pub feeds: BTreeMap<(ResourceId, NodeId), Feed>,
    /// Nodes whose agent could not be reached just now.
    pub unreachable: BTreeSet<NodeId>,
    /// Nodes that said nothing about their engine when they were asked just now, reachable or not.
    pub silent: BTreeSet<NodeId>,
    /// The control plane has a leader that this node knows.
    pub has_leader: bool,
    /// Nodes whose pool has no space for what is to be written to a resource.
    pub full: BTreeMap<ResourceId, BTreeSet<NodeId>>,
    /// Needs of services that nodes do not meet, by service, in words for the operator.
    pub lacks: BTreeMap<String, BTreeMap<NodeId, Vec<String>>>,
    /// Engines, disks and voters that give no answer.
    pub stalls: Vec<Stall>,
    /// Paths of nodes that are not as they should be: directories of pools, for example.
    pub left: BTreeMap<NodeId, BTreeMap<String, Notice>>,
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Why the agent of a node cannot renew its certificate or do its part in a rotation, in its
    /// own words.
    pub renewals: BTreeMap<NodeId, String>,
}

/// Everything that is not as it should be, worst first; empty if all is well.
#[must_use]
pub fn advice(state: &State, observations: &Observations) -> Vec<Advice> {
    let mut list = Vec::new();
    let mut add = |severity, subject: String, what: String, remedy: String| {
        list.push(Advice { severity, subject, what, remedy });
    };
    if state.cluster.is_none() {
        add(
            Severity::Critical,
            "cluster".into(),
            "this node belongs to no cluster".into(),
            "run `mainstay cluster init --name CLUSTER --as NODE --address ADDRESS` or `mainstay cluster join --peer ADDRESS --as NODE --token TOKEN`".into(),
        );
        return list;
    }
    if !observations.has_leader {
        advise_no_leader(state, observations, &mut add);
    }
    let told = KnownCauses::of(state, observations);
    for node in state.nodes.values() {
        if state.is_left_out(node.id).is_some() {
            // The advice about identities says what to do with it.
        } else if node.status == NodeStatus::Dead {
            add(
                Severity::Critical,
                format!("node {}", node.name),
                "is dead: it does not answer and its lease has ended".into(),
                format!(
                    "bring {0} back; it rejoins by itself; if its agent does not start, the agent's log on {0} says why",
                    node.name
                ),
            );
        } else if told.nodes.contains(&node.id) {
            // The advice about a stall says why this node is silent.
        } else if observations.unreachable.contains(&node.id) {
            add(
                Severity::Warning,
                format!("node {}", node.name),
                "cannot be reached from this node".into(),
                format!(
                    "bring {0} back if it is off, or check the network between {0} and this node",
                    node.name
                ),
            );
        } else if observations.silent.contains(&node.id) {
            add(
                Severity::Warning,
                format!("node {}", node.name),
                "did not say just now how its replicas are".into(),
                "if this lasts, look at the logs of its agent and its engine".into(),
            );
        }
    }
    let of_record = state.fencing_advice().into_iter().chain(state.level_advice());
    for Advice { severity, subject, what, remedy } in of_record.chain(state.identity_advice(observations)) {
        add(severity, subject, what, remedy);
    }
    for (node, left) in &observations.left {
        // The advice about a replica also covers a directory in its place.
        let told = |path: &str| {
            let broken = |resource: &Resource| resource.broken(*node).cloned();
            let mut broken = state.resources.values().filter_map(broken);
            broken.any(|broken| broken.code == Code::NoLabel && broken.reason.contains(path))
        };
        for (path, notice) in left.iter().filter(|(path, _)| !told(path)) {
            add(
                Severity::Warning,
                format!("node {}", state.node_name(*node)),
                format!("{path} {}", notice.what),
                notice.remedy.clone(),
            );
        }
    }
    // The advice above names each dead node.
    let voters = state.voters();
    let alive = voters.iter().filter(|node| state.alive(**node)).count();
    let majority = voters.len() / 2 + 1;
    // Without a leader the cluster cannot record a death, so the count of living voters says
    // nothing.
    if observations.has_leader && !voters.is_empty() && alive <= majority && !state.resources.is_empty() {
        let (what, remedy) = if voters.len() < 3 {
            (
                format!("has {} voter(s): no failover is possible when one is lost", voters.len()),
                "add nodes until there are three; one may be a witness without data (`mainstay cluster join --peer ADDRESS --as NODE --token TOKEN --witness`)"
                    .into(),
            )
        } else {
            (
                format!("{alive} of {} voters live: if one more is lost nothing can fail over", voters.len()),
                String::new(),
            )
        };
        add(Severity::Warning, "cluster".into(), what, remedy);
    }
    for (severity, subject, what, remedy) in state.advise_left_alone(observations.wall_ms) {
        add(severity, subject, what, remedy);
    }
    for resource in state.resources.values() {
        let none = BTreeSet::new();
        let full = observations.full.get(&resource.id).unwrap_or(&none);
        advise_resource(state, resource, full, observations, &mut add);
        if let Some((severity, what, remedy)) = state.advise_scrubs(resource, observations.wall_ms) {
            add(severity, format!("resource {}", resource.name), what, remedy);
        }
    }
    advise_full(state, &observations.full, &mut add);
    for (name, service) in &state.services {
        let subject = format!("service {name}");
        if service.deleting {
            add(Severity::Info, subject, "is being deleted".into(), String::new());
            continue;
        }
        if service.stopped.is_some() {
            advise_stopped(state, service, subject, &mut add);
            continue;
        }
        if let Some(halted) = &service.halted {
            add(
                Severity::Critical,
                subject,
                halted.clone(),
                format!("mend the cause, then run `mainstay service start {name}`: that clears the failures"),
            );
            continue;
        }
        for (node, on) in &service.nodes {
            let node_name = state.node_name(*node);
            if service.failed_on(*node) {
                add(
                    Severity::Warning,
                    subject.clone(),
                    format!(
                        "is not tried on {node_name} any more, after {}: {}",
                        count_of(on.failures),
                        on.detail
                    ),
                    clear_failures(state, name, service, &node_name),
                );
            } else if on.phase == ServicePhase::BackingOff {
                add(
                    Severity::Warning,
                    subject.clone(),
                    format!("failed on {node_name} and is tried again soon: {}", on.detail),
                    format!("mend the cause there{}", or_move(state, name, service, *node)),
                );
            } else if on.phase == ServicePhase::Running && !on.detail.is_empty() {
                add(
                    Severity::Warning,
                    subject.clone(),
                    format!("runs on {node_name}, but {}", on.detail),
                    match state.rests(name) {
                        Some(scope) => format!(
                            "{} is in maintenance, so nothing is done about it until `{}`",
                            scope.words(state),
                            scope.off(state)
                        ),
                        None => format!(
                            "Mainstay restarts a process that does not answer; if this lasts, run `mainstay service logs {name}`"
                        ),
                    },
                );
            }
        }
        let runs = service.nodes.values().any(|on| on.phase == ServicePhase::Running);
        let primary = state.resource_of(service).and_then(|resource| resource.record.primary);
        // A service that waits for its next attempt is named above, with the same reason.
        let waits =
            |node: &NodeId| service.nodes.get(node).is_some_and(|on| on.phase == ServicePhase::BackingOff);
        if let Some(primary) = primary.filter(|node| !runs && !waits(node)) {
            let (mut what, mut remedy) = not_running(state, name, service, primary);
            if let Some((why, then)) = state.why_it_waits(name, service, primary) {
                (what, remedy) = (format!("does not run: {why}"), then);
            } else if let Some(cause) = told.of_service(state, service, primary) {
                what += &format!(", because {cause}");
                remedy.clear();
            }
            add(Severity::Warning, subject.clone(), what, remedy);
        }
        for (node, lacks) in observations.lacks.get(name).into_iter().flatten() {
            let node_name = state.node_name(*node);
            add(
                Severity::Warning,
                subject.clone(),
                format!("cannot run on {node_name}: {}", lacks.join("; ")),
                format!("mend it on {node_name}; until then that node cannot take the service over"),
            );
        }
    }
    let causes = told.causes.iter().filter(|stall| !is_told(state, observations, stall));
    list.extend(causes.map(|stall| with_waiting(state, &told.causes, stall)));
    list.sort_by_key(|advice| std::cmp::Reverse(advice.severity));
    list
}

/// Whether another advice tells the cause of a stall: a pool is full, or fewer copies are recorded
/// than the operator wants.
fn is_told(state: &State, observations: &Observations, stall: &Stall) -> bool {
    let hangs = |node: &NodeId| {
        let of_it = |what: &Stalled| matches!(what, Stalled::Engine(on) | Stalled::LogDisk(on) if on == node);
        observations.stalls.iter().any(|stall| of_it(&stall.what))
    };
    let is_full = |id, node: &NodeId| observations.full.get(id).is_some_and(|full| full.contains(node));
    match &stall.what {
        Stalled::Journal(id, node) | Stalled::Replica(id, node) => is_full(id, node) || hangs(node),
        Stalled::Copies(id, _) => state.resources.get(id).is_some_and(|resource| {
            resource.record.primary.is_some() && state.advise_copies(resource).is_some()
        }),
        Stalled::Engine(_)
        | Stalled::LogDisk(_)
        | Stalled::Voter(_)
        | Stalled::Unheard(..)
        | Stalled::Cropped(..)
        | Stalled::Service(..) => false,
    }
}

/// Causes that an advice tells. The nodes get no further advice that follows from these causes.
struct KnownCauses {
    causes: Vec<Stall>,
    nodes: BTreeSet<NodeId>,
}

impl KnownCauses {
    fn of(state: &State, observations: &Observations) -> Self {
        let causes = causes(state, observations.stalls.clone());
        let own = observations.own;
        let node = |stall: &Stall| match stall.what {
            Stalled::Engine(node) | Stalled::LogDisk(node) => Some(node),
            Stalled::Unheard(node, other) | Stalled::Cropped(node, other) if Some(node) == own => Some(other),
            Stalled::Unheard(node, other) if Some(other) == own => Some(node),
            _ => None,
        };
        let nodes = causes.iter().filter_map(node).collect();
        Self { causes, nodes }
    }

    /// Reason for which a service is not started on a node, if one is told.
    fn of_service(&self, state: &State, service: &Service, node: NodeId) -> Option<String> {
        let id = state.resource_of(service)?.id;
        let name = state.node_name(node);
        let cause = |stall: &Stall| match stall.what {
            Stalled::Engine(on) if on == node => Some(format!("the engine of {name} does not answer")),
            Stalled::LogDisk(on) if on == node => Some(format!("the disk of {name} hangs")),
            Stalled::Journal(of, _) | Stalled::Replica(of, _) if of == id => {
                Some(format!("writes to resource {} wait", service.spec.resource))
            }
            Stalled::Copies(of, _) if of == id => {
                Some(format!("resource {} has too few copies", service.spec.resource))
            }
            _ => None,
        };
        self.causes.iter().find_map(cause)
    }
}

/// A cause with the resources whose writes wait because of it. Waits for an engine or a disk that
/// hangs are told with that engine or disk.
fn with_waiting(state: &State, causes: &[Stall], stall: &Stall) -> Advice {
    let mut advice = stall.advice(state);
    if let Stalled::Engine(node) | Stalled::LogDisk(node) = stall.what {
        let waits = |other: &Stall| match other.what {
            Stalled::Replica(id, on) | Stalled::Journal(id, on) if on == node => state.resources.get(&id),
            _ => None,
        };
        let names: BTreeSet<&str> =
            causes.iter().filter_map(waits).map(|resource| resource.name.as_str()).collect();
        if !names.is_empty() {
            let names: Vec<_> = names.into_iter().collect();
            advice.what += &format!("; all writes to {} wait for it", names.join(", "));
        }
    }
    advice
}

/// The control plane confirms nothing here.
fn advise_no_leader(
    state: &State,
    observations: &Observations,
    add: &mut impl FnMut(Severity, String, String, String),
) {
    let (voters, own) = (state.voters(), observations.own);
    let (there, away): (Vec<NodeId>, Vec<NodeId>) =
        voters.into_iter().partition(|node| Some(*node) == own || !observations.unreachable.contains(node));
    if there.len() <= away.len() || own.is_none() {
        let names: Vec<String> = away.iter().map(|node| state.node_name(*node)).collect();
        let remedy = if names.is_empty() {
            "bring nodes or their network back; see `mainstay node list`".to_owned()
        } else {
            format!("bring {} back, or the network to them", names.join(" or "))
        };
        let what = "no majority of the voters is reachable from here: no change and no failover is possible";
        return add(Severity::Critical, "cluster".into(), what.into(), remedy);
    }
    let mine = |stall: &Stall| matches!(stall.what, Stalled::LogDisk(node) | Stalled::Cropped(node, _) if Some(node) == own);
    // Another advice tells the cause, and the other nodes go on.
    if !observations.stalls.iter().any(mine) {
        add(
            Severity::Warning,
            "cluster".into(),
            "the control plane has confirmed nothing to this node just now, although it reaches a majority of the voters: this answer may be old"
                .into(),
            "if this lasts, run `mainstay status` on another node".into(),
        );
    }
}

/// Full pools and their consequences: one advice for all resources that the same pools hold up.
fn advise_full(
    state: &State,
    full: &BTreeMap<ResourceId, BTreeSet<NodeId>>,
    add: &mut impl FnMut(Severity, String, String, String),
) {
    let mut groups: BTreeMap<&BTreeSet<NodeId>, Vec<&Resource>> = BTreeMap::new();
    for (id, nodes) in full.iter().filter(|(_, nodes)| !nodes.is_empty()) {
        groups.entry(nodes).or_default().extend(state.resources.get(id).filter(|one| !one.deleting));
    }
    groups.retain(|_, resources| !resources.is_empty());
    for (nodes, resources) in groups {
        let join = |names: Vec<String>| names.join(", ");
        let pools = match nodes.iter().map(|node| state.node_name(*node)).collect::<Vec<_>>() {
            names if names.len() == 1 => join(names),
            names => format!("each of {}", join(names)),
        };
        let mut what = format!("the pool of {pools} has no space for what is written");
        let down: Vec<_> = resources.iter().filter(|one| one.record.primary.is_none()).collect();
        let is_out = |node: &&NodeId| resources.iter().any(|one| one.record.iss_member(**node).is_none());
        let out: Vec<_> = nodes.iter().filter(is_out).map(|node| state.node_name(*node)).collect();
        if !down.is_empty() {
            let names = down.iter().map(|one| one.name.clone()).collect();
            what += &format!(", and there is no primary of {}", join(names));
        } else if !out.is_empty() {
            what += &format!("; not in sync: {}", join(out));
            if resources.iter().any(|one| one.record.iss.len() == 1 && one.spec.replicas.len() > 1) {
                what += ", so no failover is possible";
            }
        }
        let names: Vec<_> = resources.iter().map(|one| one.name.clone()).collect();
        let subject = if names.len() == 1 { "resource" } else { "resources" };
        let copies: String = nodes.iter().map(|node| room_of_copies(state, *node)).collect();
        add(
            Severity::Critical,
            format!("{subject} {}", join(names)),
            what,
            format!(
                "make room there (docs/volumes.md says how): it goes on by itself, and what was acknowledged is safe in the journal{copies}"
            ),
        );
    }
}

fn count_of(failures: u32) -> String {
    if failures == 1 { "1 failure".into() } else { format!("{failures} failures") }
}

/// Says what a service does that an operator has stopped, until nothing of it is left. After that
/// there is nothing to do.
fn advise_stopped(
    state: &State,
    service: &Service,
    subject: String,
    add: &mut impl FnMut(Severity, String, String, String),
) {
    let Some((node, on)) = service.nodes.iter().find(|(_, on)| !on.phase.is_silent()) else { return };
    let detail = if on.detail.is_empty() { String::new() } else { format!(": {}", on.detail) };
    let node = state.node_name(*node);
    let what = format!("is to stop because an operator asked for it, and is {} on {node}{detail}", on.phase);
    add(Severity::Info, subject, what, String::new());
}

/// The command that has a service run on a node where it can, if there is one beside `node`.
pub(crate) fn or_move(state: &State, name: &str, service: &Service, node: NodeId) -> String {
    let resource = state.resource_of(service);
    let may = |to: &NodeId| {
        *to != node
            && !service.failed_on(*to)
            && resource.is_some_and(|resource| {
                resource.record.iss_member(*to).is_some() && state.may_come(resource, *to)
            })
    };
    let replicas = resource.into_iter().flat_map(|resource| &resource.spec.replicas);
    match replicas.copied().find(may) {
        Some(to) => format!(", or run `mainstay service move {name} {}`", state.node_name(to)),
        None => String::new(),
    }
}

/// The command that clears the failures of a service on a node.
fn clear_failures(state: &State, name: &str, service: &Service, node: &str) -> String {
    let mut running = service.nodes.iter().filter(|(_, on)| on.phase == ServicePhase::Running);
    match running.next() {
        Some((on, _)) => format!(
            "mend the cause on {node} if it is still there, then run `mainstay service move {name} {0}`: that clears the failures, and interrupts nothing, because it runs on {0} already",
            state.node_name(*on)
        ),
        None => format!(
            "mend the cause on {node}, then run `mainstay service start {name}`: that clears the failures"
        ),
    }
}

/// Returns what a service does instead of running on the primary, and the remedy.
fn not_running(state: &State, name: &str, service: &Service, primary: NodeId) -> (String, String) {
    let node = state.node_name(primary);
    let Some(on) = service.nodes.get(&primary) else {
        let what = format!("does not run yet: {node} has not begun to start it");
        return (what, format!("see `mainstay resource status {}`", service.spec.resource));
    };
    let doing = match on.phase {
        ServicePhase::Starting => "is being started",
        ServicePhase::Stopping => "is being stopped",
        ServicePhase::BackingOff => "waits for the next attempt",
        ServicePhase::Killing => "is being killed",
        ServicePhase::Failed => "has failed",
        ServicePhase::Stopped | ServicePhase::Running => "has not begun to start",
    };
    let mut what = format!("does not run yet: it {doing} on {node}");
    if !on.detail.is_empty() {
        what += &format!(" ({})", on.detail);
    }
    if on.last_failure.is_empty() || on.last_failure == on.detail {
        let remedy = if service.spec.processes.is_empty() {
            format!("if this lasts, look at the log of the agent on {node}")
        } else {
            format!(
                "if this lasts, look at the output of its processes with `mainstay service logs {name} --on {node}`, and at the log of the agent on {node}"
            )
        };
        return (what, remedy);
    }
    what += &format!("; the last failure: {}", on.last_failure);
    (what, format!("mend the cause on {node}{}", or_move(state, name, service, primary)))
}

/// `full`: nodes whose pool has no space for it.
fn advise_resource(
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

/// Returns words about space on a node that can be freed: the state that replicas held before they
/// are copied to. Empty if the node keeps no such state.
fn room_of_copies(state: &State, node: NodeId) -> String {
    let keep = state.resources.values().filter(|other| other.before_copy.contains_key(&node));
    let commands: Vec<String> =
        keep.map(|other| format!("`mainstay snapshot delete {} {BEFORE_COPY}`", other.name)).collect();
    if commands.is_empty() {
        return String::new();
    }
    format!("; what replicas held before they are copied to goes with {}", commands.join(", "))
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
    // Of all half-copied replicas, the one whose kept state goes furthest.
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
