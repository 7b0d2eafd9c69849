//! Snapshots of resources (R17).

use super::{Answer, App, blocking, change, change_what_is_now, find_resource};
use crate::agent::Agent;
use crate::error::body;
use crate::pool;
use crate::raft::{ConsensusLog, View};
use crate::views;
use axum::Json;
use axum::extract::{Path, State as Shared};
use mainstay_api::engine::snapshot_file;
use mainstay_api::rest::{Accepted, ErrorBody, SnapshotFiles, SnapshotRollback, SnapshotTake};
use mainstay_control::snapshots::SnapshotState;
use mainstay_control::state::Command;
use mainstay_types::VolumeId;

pub(super) async fn take(
    Shared(agent): App,
    Path(name): Path<String>,
    Json(SnapshotTake { name: snapshot }): Json<SnapshotTake>,
) -> Answer<Accepted> {
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let message = format!("snapshot {snapshot} of resource {name} is taken");
        Ok((Command::TakeSnapshot { resource: resource.id, name: snapshot }, message))
    })
    .await
}

pub(super) async fn delete(
    Shared(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
) -> Answer<Accepted> {
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let message = format!("snapshot {snapshot} of resource {name} is deleted");
        Ok((Command::DropSnapshot { resource: resource.id, name: snapshot }, message))
    })
    .await
}

pub(super) async fn roll_back(
    Shared(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
    Json(SnapshotRollback { keep, discard, restart_service }): Json<SnapshotRollback>,
) -> Answer<Accepted> {
    change_what_is_now(agent, move |view| {
        let resource = find_resource(view, &name)?;
        let message = format!("resource {name} is rolled back to snapshot {snapshot}");
        let keep = keep.clone().unwrap_or_else(|| format!("before-rollback-{}", resource.last_snapshot + 1));
        let keep = (!discard).then_some(keep);
        let (resource, last) = (resource.id, resource.last_snapshot);
        let command =
            Command::RollBack { resource, last, name: snapshot.clone(), keep, restart: restart_service };
        Ok((command, message))
    })
    .await
}

pub(super) async fn files(
    Shared(agent): App,
    Path((name, snapshot)): Path<(String, String)>,
) -> Answer<SnapshotFiles> {
    blocking(move || files_here(&agent, &agent.member()?.log.view(), &name, &snapshot)).await
}

fn files_here(agent: &Agent, view: &View, name: &str, snapshot: &str) -> Result<SnapshotFiles, ErrorBody> {
    let resource = find_resource(view, name)?;
    let found = resource.snapshots.iter().find(|(_, known)| known.name == snapshot);
    let Some((&id, known)) = found else {
        let text = format!("resource {name} has no snapshot {snapshot}");
        return Err(body("unknown-snapshot", text, "See `mainstay snapshot list`."));
    };
    let here = known.nodes.get(&agent.member()?.identity.node);
    let held = here.is_some_and(|on| on.state == SnapshotState::Held);
    let directory = pool::replica_directory(agent.state_dir(), resource.id, &resource.name);
    let volumes = (0..resource.spec.volumes.len()).map(|n| VolumeId(n as u16));
    let path = |volume| directory.join(snapshot_file(id, volume)).to_string_lossy().into_owned();
    let files = if held { volumes.map(path).collect() } else { Vec::new() };
    Ok(SnapshotFiles { snapshot: views::snapshot(&view.state, id, known), files })
}
