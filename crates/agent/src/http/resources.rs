//! Resources: shown, created, grown and deleted, and their replicas added, moved and removed.

use super::extract::{Path, Query};
use super::pages::{self, Paged, Paging};
use super::{
    ApiResult, App, JsonRequest, PROPOSE_TIMEOUT, READ_PATIENCE, Refused, advise, blocking, change, existing,
    explained, require_majority, settings, snapshots, users,
};
use crate::agent::Agent;
use crate::error::{OTHER_RELEASE, settle};
use crate::member::Member;
use crate::raft::{ConsensusLog, View};
use crate::views::{self, Live};
use axum::extract::State as AppState;
use axum::http::Uri;
use mainstay_api::rest::{
    Accepted, PrimaryMove, PrimaryMoves, ReplicaAdd, ReplicaMove, ResourceCreate, ResourceView, VolumeResize,
};
use mainstay_control::advice::Advice;
use mainstay_control::state::{Command, Outcome, Resource, ResourceSpec, State};
use mainstay_pool::replica_bytes;
use mainstay_types::{Code, NodeId, Problem, ResourceId, VolumeId, size_words};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Journal of a resource when the operator names no size.
pub(super) const JOURNAL_BYTES_DEFAULT: u64 = 256 << 20;
/// How long a new resource may take until its devices exist.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) fn words(advice: &Advice) -> String {
    if advice.remedy.is_empty() {
        format!("{}: {}", advice.subject, advice.what)
    } else {
        format!("{}: {}; {}", advice.subject, advice.what, advice.remedy)
    }
}

pub(super) fn with_advice(mut resources: Vec<ResourceView>, advice: &[Advice]) -> Vec<ResourceView> {
    for resource in &mut resources {
        let about = advice.iter().filter(|one| one.is_about_resource(&resource.name));
        // No advice points to the answer that it stands in.
        let here = format!("; see `mainstay resource status {}`", resource.name);
        resource.advice = about.map(|one| words(one).replace(&here, "")).collect();
    }
    resources
}

pub(super) async fn list(
    AppState(agent): App,
    Query(paging): Query<Paging>,
    uri: Uri,
) -> Result<Paged<Vec<ResourceView>>, Refused> {
    let all = move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let live = agent.asked_lately(&member, &view);
        Ok(with_advice(views::resources(&view.state, &live), &advise(&agent, &member, &view, &live)))
    };
    pages::listed(uri, paging, |resource: &ResourceView| resource.name.clone(), all).await
}

pub(super) async fn show(AppState(agent): App, Path(name): Path<String>) -> ApiResult<ResourceView> {
    blocking(move || {
        let member = agent.member()?;
        resource_view(&agent, &member, &name, Agent::asked_lately)
    })
    .await
}

/// `ask`: how all nodes are asked.
fn resource_view(
    agent: &Arc<Agent>,
    member: &Member,
    name: &str,
    ask: fn(&Arc<Agent>, &Member, &View) -> Arc<Live>,
) -> Result<ResourceView, Problem> {
    let view = member.log.confirmed_view(READ_PATIENCE);
    let resource = find_resource(&view, name)?;
    let live = ask(agent, member, &view);
    let shown = vec![views::resource(&view.state, resource, &live)];
    let shown = with_advice(shown, &advise(agent, member, &view, &live)).pop();
    shown.ok_or_else(|| unknown_resource(name))
}

/// The answers of all nodes after a change.
fn asked_anew(agent: &Arc<Agent>, member: &Member, view: &View) -> Arc<Live> {
    Arc::new(agent.ask_all(member, view))
}

pub(super) fn find_resource<'a>(view: &'a View, name: &str) -> Result<&'a Resource, Problem> {
    view.state.resource_by_name(name).ok_or_else(|| {
        let names = view.state.resources.values().map(|resource| &resource.name);
        Problem { remedy: nearest(name, names, "See `mainstay resource list`."), ..unknown_resource(name) }
    })
}

/// A remedy that also names what was probably meant.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a String>, remedy: &str) -> String {
    match mainstay_ha::nearest(name, names) {
        Some(near) => format!("Did you mean {near}? {remedy}"),
        None => remedy.to_owned(),
    }
}

fn being_deleted(name: &str) -> Problem {
    Problem::new(
        Code::NameTaken,
        format!("resource {name} is being deleted, and has its name until then"),
        format!(
            "Wait until `mainstay resource list` does not show it any more, or choose another name. `mainstay resource status {name}` says what the deletion waits for."
        ),
    )
}

pub(super) fn unknown_resource(name: &str) -> Problem {
    Problem::new(
        Code::UnknownResource,
        format!("there is no resource {name}"),
        "See `mainstay resource list`.",
    )
}

pub(super) async fn create(
    AppState(agent): App,
    JsonRequest(request): JsonRequest<ResourceCreate>,
) -> ApiResult<ResourceView> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.view();
        if let Some(resource) = view.state.resource_by_name(&request.name) {
            if resource.deleting {
                return Err(being_deleted(&request.name));
            }
            let differences = existing::differences(&view.state, resource, &request)?;
            if !differences.is_empty() {
                return Err(existing::refusal(&request.name, &differences));
            }
            // The client made the same request before, and was interrupted.
            await_creation(&agent, &member, resource.id)?;
            return resource_view(&agent, &member, &request.name, asked_anew);
        }
        let live = agent.ask_all(&member, &view);
        let origin = request.from.as_ref().map(|from| snapshots::find(&view, from)).transpose()?;
        let spec = match &origin {
            Some(origin) => snapshots::clone_spec(&view, &live, &request, origin)?,
            None => resource_spec(&view, &live, &request)?,
        };
        let name = request.name.clone();
        let choices = settings::choices(&request.settings)?;
        let origin = origin.map(|origin| origin.of);
        let command = Command::CreateResource { name: name.clone(), spec, choices, origin };
        let outcome = settle(member.log.propose(command, PROPOSE_TIMEOUT))?;
        let Outcome::ResourceCreated { resource } = outcome else {
            return Err(Problem::new(
                Code::Conflict,
                format!("the cluster answered {outcome:?}"),
                OTHER_RELEASE,
            ));
        };
        await_creation(&agent, &member, resource)?;
        resource_view(&agent, &member, &name, asked_anew)
    })
    .await
}

/// Chooses the nodes, and refuses what their pools cannot hold.
fn resource_spec(view: &View, live: &Live, request: &ResourceCreate) -> Result<ResourceSpec, Problem> {
    let journal_bytes = request.journal_bytes.unwrap_or(JOURNAL_BYTES_DEFAULT);
    let needed = replica_bytes(&request.volumes, journal_bytes);
    let mut replicas = nodes_named(&view.state, &request.replicas)?;
    if replicas.is_empty() {
        let free = roomiest(live);
        let count = request.replica_count.map_or_else(|| free.len().min(2), |count| count as usize);
        if free.len() < count {
            return Err(too_few(count, free.len()));
        }
        replicas = free.into_iter().take(count).collect();
    }
    for &node in &replicas {
        check_room(view, live, node, needed)?;
    }
    let preferred = nodes_named(&view.state, &request.preferred)?;
    Ok(ResourceSpec { volumes: request.volumes.clone(), journal_bytes, replicas, preferred })
}

pub(super) fn nodes_named(state: &State, names: &[String]) -> Result<Vec<NodeId>, Problem> {
    names.iter().map(|name| node_named(state, name)).collect()
}

/// The nodes that answer, those with the most free space first.
pub(super) fn roomiest(live: &Live) -> Vec<NodeId> {
    let mut free: Vec<(u64, NodeId)> = live.pools.iter().map(|(&node, &bytes)| (bytes, node)).collect();
    free.sort_by_key(|&(bytes, node)| (std::cmp::Reverse(bytes), node));
    free.into_iter().map(|(_, node)| node).collect()
}

pub(super) fn too_few(wanted: usize, found: usize) -> Problem {
    Problem::new(
        Code::TooFewNodes,
        format!("{wanted} replicas are wanted, and {found} nodes that may hold data answer"),
        "Bring nodes up, or ask for fewer replicas.",
    )
}

pub(super) fn find_node(view: &View, name: &str) -> Result<NodeId, Problem> {
    node_named(&view.state, name)
}

pub(super) fn node_named(state: &State, name: &str) -> Result<NodeId, Problem> {
    if name.is_empty() {
        return Err(Problem::new(
            Code::UnknownNode,
            "the name of a node is empty",
            "See `mainstay node list`.",
        ));
    }
    let known = state.node_by_name(name).map(|node| node.id);
    known.ok_or_else(|| {
        let names = state.nodes.values().map(|node| &node.name);
        let remedy = nearest(name, names, "See `mainstay node list`.");
        Problem::new(Code::UnknownNode, format!("there is no node {name}"), remedy)
    })
}

/// Refuses what the pool of `node` cannot hold.
pub(super) fn check_room(view: &View, live: &Live, node: NodeId, needed: u64) -> Result<(), Problem> {
    let name = view.state.node_name(node);
    match live.pools.get(&node) {
        Some(&free) if free >= needed => Ok(()),
        Some(free) => Err(Problem::new(
            Code::PoolTooSmall,
            format!(
                "the pool of {name} has {} free, and {} may be needed there",
                size_words(*free),
                size_words(needed)
            ),
            "Choose another node, or make the resource smaller.",
        )),
        None if view.state.nodes.get(&node).is_some_and(|node| node.witness) => Err(Problem::new(
            Code::IsWitness,
            format!("{name} is a witness and holds no data"),
            "Choose another node.",
        )),
        None => Err(Problem::new(
            Code::NodeUnreachable,
            format!("node {name} does not answer"),
            "Bring it up, or choose another node.",
        )),
    }
}

/// The node on which a replica of an existing resource is to be made.
fn place_for(agent: &Arc<Agent>, view: &View, resource: &Resource, name: &str) -> Result<NodeId, Problem> {
    let node = find_node(view, name)?;
    if !resource.spec.replicas.contains(&node) {
        let live = agent.ask_all(&*agent.member()?, view);
        let needed = replica_bytes(&resource.spec.volumes, resource.spec.journal_bytes);
        check_room(view, &live, node, needed)?;
    }
    Ok(node)
}

pub(super) async fn add_replica(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<ReplicaAdd>,
) -> ApiResult<Accepted> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.view();
        let resource = find_resource(&view, &name)?;
        let (id, node) = (resource.id, place_for(&agent, &view, resource, &request.node)?);
        // The client may have made the same request before, and may have been interrupted while the
        // replica was filled.
        let message = if resource.record.iss_member(node).is_some() {
            format!("resource {name} has a replica on {} already", request.node)
        } else if resource.spec.replicas.contains(&node) {
            format!("resource {name} gets a replica on {} already: it is being filled", request.node)
        } else {
            settle(member.log.propose(Command::AddReplica { resource: id, node }, PROPOSE_TIMEOUT))?;
            format!("resource {name} gets a replica on {}", request.node)
        };
        Ok(Accepted { revision: member.log.view().state.revision, message })
    })
    .await
}

pub(super) async fn remove_replica(
    AppState(agent): App,
    Path((name, node)): Path<(String, String)>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let (resource, holder) = (find_resource(view, &name)?, find_node(view, &node)?);
        if resource.record.primary == Some(holder) {
            let doing = format!("the replica of resource {name} on {node} is not removed");
            users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        }
        let message = format!("the replica of resource {name} on {node} is being removed");
        Ok((Command::RemoveReplica { resource: resource.id, node: holder }, message))
    })
    .await
}

pub(super) async fn move_replica(
    AppState(agent): App,
    Path((name, from)): Path<(String, String)>,
    JsonRequest(request): JsonRequest<ReplicaMove>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let (holder, to) = (find_node(view, &from)?, place_for(&asked, view, resource, &request.to)?);
        if resource.record.primary == Some(holder) {
            let doing = format!("the replica of resource {name} on {from} is not moved");
            users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        }
        let message = format!("the replica of resource {name} on {from} moves to {}", request.to);
        Ok((Command::MoveReplica { resource: resource.id, from: holder, to }, message))
    })
    .await
}

pub(super) async fn move_primary(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<PrimaryMove>,
) -> ApiResult<PrimaryMoves> {
    blocking(move || {
        let member = agent.member()?;
        let doing = format!("resource {name} is not moved");
        require_majority(&agent, &doing)?;
        let view = member.log.view();
        let resource = find_resource(&view, &name)?;
        let (id, primary) = (resource.id, resource.record.primary);
        let to = match &request.to {
            Some(to) => find_node(&view, to)?,
            None => view.state.best_move(resource)?,
        };
        let to_name = view.state.node_name(to);
        // A service is a reason to refuse whatever uses the devices, and the devices of a node
        // without a replica stay where they are.
        let alone = view.state.service_of(id).is_none() && resource.record.attached.is_none();
        if alone && primary != Some(to) {
            users::refuse_used_to_move(&agent, &view, resource, &doing)?;
        }
        let moved = settle(member.log.propose(Command::MovePrimary { resource: id, to }, PROPOSE_TIMEOUT));
        moved.map_err(|refusal| match refusal.code {
            Code::NotEligible => explained(&agent, &view, refusal, Some(resource), &to_name),
            _ => refusal,
        })?;
        let message = if primary == Some(to) {
            format!("the primary of resource {name} is on {to_name} already")
        } else {
            format!("the primary of resource {name} moves to {to_name}")
        };
        let accepted = Accepted { revision: member.log.view().state.revision, message };
        Ok(PrimaryMoves { accepted, to: to_name })
    })
    .await
}

pub(super) async fn resize(
    AppState(agent): App,
    Path((name, volume)): Path<(String, u16)>,
    JsonRequest(request): JsonRequest<VolumeResize>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let now = resource.spec.volumes.get(usize::from(volume)).copied().unwrap_or(0);
        if let more @ 1.. = request.bytes.saturating_sub(now) {
            // A node that does not answer now has its file made larger when it returns. If its pool
            // is full then, it says so.
            let live = asked.ask_all(&*asked.member()?, view);
            let reached = resource.spec.replicas.iter().filter(|node| live.pools.contains_key(node));
            reached.copied().try_for_each(|node| check_room(view, &live, node, more))?;
        }
        let message = format!("volume {volume} of resource {name} grows to {}", size_words(request.bytes));
        let (resource, volume) = (resource.id, VolumeId(volume));
        Ok((Command::GrowVolume { resource, volume, bytes: request.bytes }, message))
    })
    .await
}

/// Waits until every replica exists and the devices are there. If some node cannot make its
/// replica, the whole creation is undone.
fn await_creation(agent: &Arc<Agent>, member: &Member, id: ResourceId) -> Result<(), Problem> {
    let deadline = Instant::now() + CREATE_TIMEOUT;
    loop {
        std::thread::sleep(Duration::from_millis(100));
        let view = member.log.view();
        let Some(resource) = view.state.resources.get(&id) else {
            return Err(Problem::new(
                Code::Conflict,
                "the resource was deleted meanwhile",
                "See `mainstay events`; to make it, run the command again.",
            ));
        };
        let live = agent.ask_all(member, &view);
        let failure =
            live.failures.iter().find_map(|(node, failures)| failures.get(&id).map(|error| (node, error)));
        if let Some((&node, error)) =
            failure.filter(|_| resource.record.replicas.len() < resource.spec.replicas.len())
        {
            settle(member.log.propose(Command::DeleteResource { resource: id }, PROPOSE_TIMEOUT))?;
            let mut failure = error.clone();
            failure.message = format!(
                "{} could not make its replica, so the resource is removed again: {}",
                view.state.node_name(node),
                failure.message
            );
            return Err(failure);
        }
        let serving =
            resource.record.primary.and_then(|primary| live.engines.get(&primary)).is_some_and(|engine| {
                engine.replicas.iter().any(|replica| replica.resource == id && !replica.devices.is_empty())
            });
        if serving && resource.origin.is_none() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Problem::new(
                Code::CreationUnfinished,
                "the resource is recorded, but is not being served yet",
                "See `mainstay status`; creation goes on by itself.",
            ));
        }
    }
}

pub(super) async fn delete(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        // If a service runs on the resource, the refusal of the control plane says so, and that is
        // enough.
        if !view.state.services.values().any(|service| service.spec.resource == name) {
            let doing = format!("resource {name} is not deleted");
            users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        }
        let command = Command::DeleteResource { resource: resource.id };
        Ok((command, format!("resource {name} is being deleted")))
    })
    .await
}
