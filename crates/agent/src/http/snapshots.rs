//! Snapshots of resources (R17).

use super::extract::{JsonRequest, Path};
use super::resources::{check_room, nodes_named, roomiest, too_few};
use super::{ApiResult, App, blocking, change, change_present_state, find_resource, users};
use crate::agent::Agent;
use crate::extents;
use crate::raft::{ConsensusLog, View};
use crate::views::{self, Live};
use axum::extract::State as AppState;
use mainstay_api::rest::{
    Accepted, OriginView, ResourceCreate, SnapshotFiles, SnapshotRollback, SnapshotSpace, SnapshotTake,
};
use mainstay_control::origin::SnapshotOf;
use mainstay_control::snapshots::BEFORE_COPY;
use mainstay_control::state::{Command, Resource, ResourceSpec};
use mainstay_pool::{Part, replica_bytes};
use mainstay_types::{Area, Code, NodeId, Problem, SnapshotId, SnapshotState, VolumeId};

pub(super) async fn take(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(SnapshotTake { name: snapshot }): JsonRequest<SnapshotTake>,
) -> ApiResult<Accepted> {
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let message = format!("snapshot {snapshot} of resource {name} is being taken");
        Ok((Command::TakeSnapshot { resource: resource.id, name: snapshot }, message))
    })
    .await
}

pub(super) async fn delete(
    AppState(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
) -> ApiResult<Accepted> {
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let message = format!("snapshot {snapshot} of resource {name} is being deleted");
        Ok((Command::DropSnapshot { resource: resource.id, name: snapshot }, message))
    })
    .await
}

pub(super) async fn roll_back(
    AppState(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
    JsonRequest(SnapshotRollback { keep, discard, restart_service }): JsonRequest<SnapshotRollback>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change_present_state(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let doing = format!("resource {name} is not rolled back");
        users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        let message = format!("resource {name} is being rolled back to snapshot {snapshot}");
        let keep = keep.clone().unwrap_or_else(|| format!("before-rollback-{}", resource.last_snapshot + 1));
        let keep = (!discard).then_some(keep);
        let (resource, last) = (resource.id, resource.last_snapshot);
        let command =
            Command::RollBack { resource, last, name: snapshot.clone(), keep, restart: restart_service };
        Ok((command, message))
    })
    .await
}

/// A snapshot of which a resource is to be made.
pub(super) struct Found<'a> {
    pub of: SnapshotOf,
    source: &'a Resource,
    /// Nodes of which a replica of the new resource can be made.
    holders: Vec<NodeId>,
}

pub(super) fn find<'a>(view: &'a View, from: &OriginView) -> Result<Found<'a>, Problem> {
    let source = find_resource(view, &from.resource)?;
    let snapshot = number_of(source, &from.snapshot)?;
    let holders = source.holders(snapshot).iter().map(|member| member.node).collect();
    Ok(Found { of: SnapshotOf { resource: source.id, snapshot }, source, holders })
}

/// Returns the specification of a resource that is made of a snapshot. Fields that the request
/// leaves out are as in the origin.
///
/// Volumes of a replica that is made of the snapshot share its space: they need more only as they
/// change.
pub(super) fn clone_spec(
    view: &View,
    live: &Live,
    request: &ResourceCreate,
    found: &Found<'_>,
) -> Result<ResourceSpec, Problem> {
    let source = &found.source.spec;
    let volumes = if request.volumes.is_empty() { found.source.sizes_max() } else { request.volumes.clone() };
    let journal_bytes = request.journal_bytes.unwrap_or(source.journal_bytes);
    let mut replicas = nodes_named(&view.state, &request.replicas)?;
    if replicas.is_empty() && found.of.snapshot == SnapshotId::BEFORE_COPY && found.holders.len() > 1 {
        let text = format!(
            "several replicas of {} keep what they held before they were copied to",
            found.source.name
        );
        return Err(Problem::new(
            Code::Ambiguous,
            text,
            format!(
                "Name one of their nodes with --replicas; `mainstay snapshot list {}` shows the nodes.",
                found.source.name
            ),
        ));
    }
    if replicas.is_empty() {
        let count = request.replica_count.map_or(found.holders.len(), |count| count as usize);
        let others = roomiest(live).into_iter().filter(|node| !found.holders.contains(node));
        replicas = found.holders.iter().copied().chain(others).take(count).collect();
        if replicas.len() < count {
            return Err(too_few(count, replicas.len()));
        }
    }
    for &node in &replicas {
        let shared = found.holders.contains(&node);
        check_room(view, live, node, replica_bytes(if shared { &[] } else { &volumes }, journal_bytes))?;
    }
    let preferred = nodes_named(&view.state, &request.preferred)?;
    Ok(ResourceSpec { volumes, journal_bytes, replicas, preferred })
}

/// The number of a snapshot of this name, or of what replicas held before they were copied to.
fn number_of(resource: &Resource, name: &str) -> Result<SnapshotId, Problem> {
    if name == BEFORE_COPY && !resource.before_copy.is_empty() {
        return Ok(SnapshotId::BEFORE_COPY);
    }
    let known = resource.snapshots.iter().find(|(_, known)| known.name == name);
    known.map(|(id, _)| *id).ok_or_else(|| unknown_snapshot(&resource.name, name))
}

fn unknown_snapshot(resource: &str, snapshot: &str) -> Problem {
    let text = format!("resource {resource} has no snapshot {snapshot}");
    Problem::new(Code::UnknownSnapshot, text, format!("See `mainstay snapshot list {resource}`."))
}

pub(super) async fn files(
    AppState(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
) -> ApiResult<SnapshotFiles> {
    blocking(move || files_here(&agent, &agent.member()?.log.view(), &name, &snapshot)).await
}

fn files_here(agent: &Agent, view: &View, name: &str, snapshot: &str) -> Result<SnapshotFiles, Problem> {
    let resource = find_resource(view, name)?;
    let id = number_of(resource, snapshot)?;
    let node = agent.member()?.identity.node;
    let (held, shown) = match resource.snapshots.get(&id) {
        Some(known) => {
            let held = known.nodes.get(&node).is_some_and(|on| on.state == SnapshotState::Held);
            (held, Some(views::snapshot(&view.state, id, known)))
        }
        None => (resource.before_copy.contains_key(&node), views::before_copy(&view.state, resource)),
    };
    let Some(shown) = shown else { return Err(unknown_snapshot(name, snapshot)) };
    let pool = mainstay_pool::of_node(agent.state_dir());
    let replica = pool.replica_of(resource.id, &resource.name);
    let volumes = (0..resource.spec.volumes.len()).map(|n| VolumeId(n as u16));
    let in_layers = replica.has(Part::map(id, VolumeId(0)));
    let part =
        |volume| if in_layers { Part::map(id, volume) } else { Part::Snapshot(id, Area::Volume(volume)) };
    let path = |volume| replica.part(part(volume)).to_string_lossy().into_owned();
    let files = if held { volumes.map(path).collect() } else { Vec::new() };
    let mut space = held.then(|| extents::space(&*replica, id).ok()).flatten();
    // An older snapshot also needs the extents that this one has put aside.
    let older = |other: &SnapshotId| replica.has(Part::map(*other, VolumeId(0)));
    if in_layers && resource.snapshots.range(..id).map(|(other, _)| other).any(older) {
        space = space.map(|space| SnapshotSpace { own_bytes: 0, ..space });
    }
    let journals = agent.options.journals.directory.as_deref();
    let own = [Some(agent.state_dir()), Some(agent.options.run_dir.as_path()), journals];
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    Ok(SnapshotFiles {
        snapshot: shown,
        files,
        space,
        own: own.into_iter().flatten().map(text).collect(),
        pool: text(pool.place()),
    })
}
