//! The verdict of `mainstay check` on a status.
//!
//! CRITICAL is what is not served or cannot be relied on now. WARNING is what is served, and would
//! not survive everything that it should, or wants an operator.

use mainstay_api::rest::{
    ClusterView, Health, NodeStatus, NodeView, ReplicaView, ResourceView, Role, ServicePhase, ServiceView,
    StatusView,
};
use serde::{Serialize, Serializer};

/// Problems that the line names; it counts the others.
const NAMED_MAX: usize = 3;
/// Longest text of one problem, in characters.
const PROBLEM_CHARS_MAX: usize = 240;

/// A state of a monitor; the number is the exit code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    Ok = 0,
    Warning = 1,
    Critical = 2,
    Unknown = 3,
}

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Critical => "CRITICAL",
            Self::Unknown => "UNKNOWN",
        }
    }

    /// Order of states: a service that is down is worse than one of which nothing is known.
    const fn weight(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Unknown => 2,
            Self::Critical => 3,
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A number for the graphs of a monitor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Number {
    pub name: &'static str,
    pub value: u64,
    /// `B` for bytes; empty for a count.
    pub unit: &'static str,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Checked {
    pub state: State,
    /// Sentences about what is wrong, worst first; none if all is well.
    pub problems: Vec<String>,
    pub well: String,
    pub numbers: Vec<Number>,
}

impl Checked {
    /// A verdict without numbers.
    pub fn of(state: State, why: String) -> Self {
        Self { state, problems: vec![why], well: String::new(), numbers: Vec::new() }
    }

    fn new(mut found: Vec<(State, String)>, well: String, numbers: Vec<Number>) -> Self {
        found.sort_by_key(|(state, _)| std::cmp::Reverse(state.weight()));
        let state = found.first().map_or(State::Ok, |(state, _)| *state);
        Self { state, problems: found.into_iter().map(|(_, why)| why).collect(), well, numbers }
    }

    /// The line that monitors read.
    pub fn line(&self) -> String {
        let named: Vec<String> = self.problems.iter().take(NAMED_MAX).map(|why| plain(why)).collect();
        let more = match self.problems.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        let text = if named.is_empty() { plain(&self.well) } else { named.join("; ") + &more };
        let numbers: Vec<String> =
            self.numbers.iter().map(|one| format!("{}={}{};;;0", one.name, one.value, one.unit)).collect();
        let numbers = if numbers.is_empty() { String::new() } else { format!(" | {}", numbers.join(" ")) };
        format!("MAINSTAY {} - {text}{numbers}", self.state.name())
    }
}

/// One line without the sign that begins the numbers.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "/");
    match line.char_indices().nth(PROBLEM_CHARS_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

const fn count(name: &'static str, value: usize) -> Number {
    Number { name, value: value as u64, unit: "" }
}

/// Several of a kind in words.
fn some(count: usize, one: &str, many: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {many}") }
}

fn not_a_member() -> Checked {
    Checked::of(State::Unknown, "this node is not a member of a cluster".to_owned())
}

/// The verdict on everything.
pub fn cluster(status: &StatusView) -> Checked {
    let Some(view) = &status.cluster else { return not_a_member() };
    let mut found = own(status, view);
    found.extend(view.nodes.iter().filter_map(node));
    found.extend(status.resources.iter().flat_map(problems));
    found.extend(status.services.iter().filter_map(of_service));
    if found.is_empty() {
        found.extend(status.advice.first().map(|advice| (State::Warning, advice.clone())));
    }
    let alive = view.nodes.iter().filter(|node| node.status == NodeStatus::Alive).count();
    let ok = status.resources.iter().filter(|one| one.health == Health::Ok).count();
    let runs = status.services.iter().filter(|one| one.phase == ServicePhase::Running).count();
    let numbers = vec![
        count("nodes", view.nodes.len()),
        count("nodes_alive", alive),
        count("resources", status.resources.len()),
        count("resources_ok", ok),
        count("services", status.services.len()),
        count("services_running", runs),
        count("advice", status.advice.len()),
    ];
    let well = format!(
        "cluster {}: {} alive, {} ok, {} running",
        view.name,
        some(alive, "node", "nodes"),
        some(ok, "resource", "resources"),
        some(runs, "service", "services")
    );
    Checked::new(found, well, numbers)
}

/// Problems of the node that was asked.
fn own(status: &StatusView, view: &ClusterView) -> Vec<(State, String)> {
    let own = &view.this_node;
    let witness = view.nodes.iter().any(|node| node.witness && node.name == *own);
    let mut found = Vec::new();
    if view.as_of_ms != Some(0) {
        found.push((State::Critical, format!("{own} reaches no majority of the voters: {}", age(view))));
    }
    if status.lease_left_ms == 0 && !witness {
        found.push((State::Critical, format!("{own} holds no lease: it serves nothing")));
    }
    if !status.engine.connected && !witness {
        found.push((
            State::Critical,
            format!("the engine of {own} does not answer: {}", status.engine.message),
        ));
    }
    if view.maintenance.is_some() {
        found.push((State::Warning, "the cluster is in maintenance: nothing fails over".to_owned()));
    }
    found
}

fn age(view: &ClusterView) -> String {
    match view.as_of_ms {
        Some(ms) => format!("its state is {} s old", ms / 1000),
        None => "the age of its state is unknown".to_owned(),
    }
}

fn node(node: &NodeView) -> Option<(State, String)> {
    let name = &node.name;
    let why = match (node.status, node.log_lag_ms) {
        (NodeStatus::Dead, _) => format!("node {name} is dead"),
        (NodeStatus::Alive, Some(ms)) => {
            format!("node {name} has received no entries of the record for {} s", ms / 1000)
        }
        (NodeStatus::Alive, None) if node.maintenance.is_some() => {
            format!("node {name} is in maintenance: what is there does not fail over")
        }
        (NodeStatus::Alive, None) => return None,
    };
    Some((State::Warning, why))
}

/// Problems of a resource.
fn problems(resource: &ResourceView) -> Vec<(State, String)> {
    let name = &resource.name;
    if resource.deleting {
        return Vec::new();
    }
    let mut found = Vec::new();
    let outside: Vec<&str> = resource
        .replicas
        .iter()
        .filter(|replica| !replica.in_sync)
        .map(|replica| replica.node.as_str())
        .collect();
    match resource.health {
        Health::Ok => {}
        Health::Down => {
            let why = resource.failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            found.push((State::Critical, format!("resource {name} has no primary{why}")));
        }
        Health::Degraded => {
            let why = if outside.is_empty() {
                String::new()
            } else {
                format!(": {} not in sync", outside.join(" "))
            };
            found.push((State::Warning, format!("resource {name} is degraded{why}")));
        }
        Health::Changing => found.push((State::Warning, format!("resource {name} is changing"))),
    }
    for replica in &resource.replicas {
        found.extend(of_replica(resource, replica));
    }
    let left = resource.scrubs.whole.as_ref().map_or(0, |last| last.unrepaired);
    if left > 0 {
        found.push((State::Critical, format!("the replicas of {name} differ in {left} blocks")));
    }
    if resource.scrubs.late_ms.is_some() {
        found.push((State::Warning, format!("the comparison of the replicas of {name} is late")));
    }
    if found.is_empty() {
        found.extend(resource.advice.first().map(|why| (State::Warning, format!("resource {name}: {why}"))));
    }
    found
}

fn of_replica(resource: &ResourceView, replica: &ReplicaView) -> Vec<(State, String)> {
    let (name, node) = (&resource.name, &replica.node);
    let mut found = Vec::new();
    if let Some(why) = &replica.broken {
        found.push((State::Warning, format!("the replica of {name} on {node} cannot be used: {why}")));
    }
    let Some(live) = &replica.live else { return found };
    let leads = live.role == Role::Primary;
    if let Some(why) = &live.no_space {
        let state = if leads { State::Critical } else { State::Warning };
        found.push((state, format!("the pool of {node} has no space for {name}: {why}")));
    }
    if let Some(block) = &live.unreadable {
        found.push((State::Critical, format!("resource {name}: {block}, and no replica has it whole")));
    }
    if leads && let Some(why) = live.waiting_for.first() {
        found.push((State::Critical, format!("requests of {name} wait: {why}")));
    }
    found
}

/// The problem of a service, if it has one.
fn of_service(service: &ServiceView) -> Option<(State, String)> {
    let name = &service.name;
    let advice = service.advice.first();
    if service.deleting || service.stopped_ms.is_some() {
        return None;
    }
    if service.maintenance.is_some() {
        return Some((State::Warning, format!("service {name} is in maintenance: it does not fail over")));
    }
    let why = |head: &str| match advice {
        Some(advice) => format!("service {name} {head}: {advice}"),
        None => format!("service {name} {head}"),
    };
    match (service.phase, service.hindrances.first()) {
        (ServicePhase::Running, Some(hindrance)) => {
            Some((State::Critical, format!("service {name} runs and is of no use: {hindrance}")))
        }
        (ServicePhase::Running, None) => advice.map(|_| (State::Warning, why("runs"))),
        (ServicePhase::Starting | ServicePhase::Stopping | ServicePhase::BackingOff, _)
            if advice.is_none() =>
        {
            Some((State::Warning, format!("service {name} is {}", service.phase)))
        }
        _ => Some((State::Critical, why("does not run"))),
    }
}

/// The verdict on an object that the status of a node without a majority may be wrong about.
fn unconfirmed(view: &ClusterView) -> Option<Checked> {
    (view.as_of_ms != Some(0)).then(|| {
        let why = format!("{} reaches no majority of the voters: {}", view.this_node, age(view));
        Checked::of(State::Unknown, why)
    })
}

fn absent(kind: &str, name: &str, names: impl Iterator<Item = impl AsRef<str>>) -> Checked {
    let hint =
        mainstay_ha::nearest(name, names).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
    Checked::of(State::Unknown, format!("there is no {kind} {name}{hint}"))
}

/// The verdict on a resource.
pub fn resource(status: &StatusView, name: &str) -> Checked {
    let Some(view) = &status.cluster else { return not_a_member() };
    if let Some(unknown) = unconfirmed(view) {
        return unknown;
    }
    match status.resources.iter().find(|one| one.name == name) {
        Some(one) => of_resource(one, Vec::new(), Vec::new(), None),
        None => absent("resource", name, status.resources.iter().map(|one| &one.name)),
    }
}

fn of_resource(
    resource: &ResourceView,
    mut found: Vec<(State, String)>,
    mut numbers: Vec<Number>,
    service: Option<&ServiceView>,
) -> Checked {
    found.extend(problems(resource));
    let in_sync = resource.replicas.iter().filter(|replica| replica.in_sync).count();
    let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let behind = live.flat_map(|live| &live.peers).map(|peer| peer.lag_bytes).max().unwrap_or(0);
    numbers.extend([count("replicas", resource.replicas.len()), count("replicas_in_sync", in_sync)]);
    numbers.push(Number { name: "behind", value: behind, unit: "B" });
    let primary = resource.primary.as_deref().unwrap_or("no node");
    let runs = match service {
        Some(service) if service.stopped_ms.is_some() => format!("service {} is stopped; ", service.name),
        Some(service) => {
            let node = service.phase_node.as_deref().unwrap_or("no node");
            format!("service {} runs on {node}; ", service.name)
        }
        None => String::new(),
    };
    let well = format!(
        "{runs}resource {}: primary {primary}, {in_sync} of {} in sync",
        resource.name,
        some(resource.replicas.len(), "replica", "replicas")
    );
    Checked::new(found, well, numbers)
}

/// The verdict on a service and its resource.
pub fn service(status: &StatusView, name: &str) -> Checked {
    let Some(view) = &status.cluster else { return not_a_member() };
    if let Some(unknown) = unconfirmed(view) {
        return unknown;
    }
    let Some(service) = status.services.iter().find(|one| one.name == name) else {
        return absent("service", name, status.services.iter().map(|one| &one.name));
    };
    let found: Vec<_> = of_service(service).into_iter().collect();
    let runs = usize::from(service.phase == ServicePhase::Running);
    let failures = service.failures.iter().map(|one| one.count as usize).sum();
    let numbers = vec![count("running", runs), count("failures", failures)];
    match status.resources.iter().find(|one| one.name == service.resource) {
        Some(resource) => of_resource(resource, found, numbers, Some(service)),
        None => Checked::new(found, format!("service {name} runs"), numbers),
    }
}

#[cfg(test)]
mod tests;
