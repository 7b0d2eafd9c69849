//! Problems of the cluster and the steps that an operator can take, in words.

mod resource;

use crate::causes::causes;
use crate::labels::Notice;
use crate::snapshots::BEFORE_COPY;
use crate::stalls::{Stall, Stalled};
use crate::state::{Resource, Service, State};
use mainstay_types::{Code, NodeId, NodeStatus, ResourceId, ServicePhase, Severity};
use resource::advise_resource;
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
