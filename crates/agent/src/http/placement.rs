//! Where services run, and what is left alone.

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, blocking, change, find_node, find_resource, unknown_service, users};
use crate::agent::{Agent, READ_PATIENCE};
use crate::member::Member;
use crate::raft::{ConsensusLog, View};
use crate::service::lacks::Lack;
use crate::views;
use axum::extract::State as AppState;
use mainstay_api::rest::{Accepted, CordonSet, FailoverExplained, FitView, MaintenanceSet, ServiceExplained};
use mainstay_control::explain::Fit;
use mainstay_control::maintenance::{Scope, span};
use mainstay_control::state::{Command, State};
use mainstay_ha::ServiceSpec;
use mainstay_types::NodeId;
use std::collections::BTreeMap;
use std::sync::Arc;

pub async fn maintain_cluster(
    AppState(agent): App,
    JsonRequest(set): JsonRequest<MaintenanceSet>,
) -> ApiResult<Accepted> {
    change(agent, move |view| Ok(maintain(view, Scope::Cluster, set))).await
}

pub async fn maintain_node(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(set): JsonRequest<MaintenanceSet>,
) -> ApiResult<Accepted> {
    change(agent, move |view| Ok(maintain(view, Scope::Node { node: find_node(view, &name)? }, set))).await
}

pub async fn maintain_service(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(set): JsonRequest<MaintenanceSet>,
) -> ApiResult<Accepted> {
    change(agent, move |view| Ok(maintain(view, Scope::Service { name }, set))).await
}

fn maintain(view: &View, scope: Scope, MaintenanceSet { on, for_ms }: MaintenanceSet) -> (Command, String) {
    let words = scope.words(&view.state);
    let message = match (on, for_ms) {
        (false, _) => format!("{words} is in maintenance no longer"),
        (true, Some(ms)) => format!(
            "{words} is in maintenance for {}: Mainstay watches it, and moves, restarts and stops nothing by itself; nothing fails over",
            span(ms)
        ),
        (true, None) => format!(
            "{words} is in maintenance until `{}`: Mainstay watches it, and moves, restarts and stops nothing by itself; nothing fails over",
            scope.off(&view.state)
        ),
    };
    (Command::SetMaintenance { scope, on, for_ms: for_ms.filter(|_| on) }, message)
}

pub async fn cordon(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(CordonSet { on, drain }): JsonRequest<CordonSet>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let node = find_node(view, &name)?;
        if on && drain {
            users::refuse_drain(&asked, view, node)?;
        }
        let message = match (on, drain) {
            (false, _) => format!("services and primaries may come to {name} again"),
            (true, false) => {
                format!("no service and no primary comes to {name} any more; those that are there stay")
            }
            (true, true) => format!("services and primaries leave {name}, one after another"),
        };
        Ok((Command::SetCordon { node, on, drain: drain && on }, message))
    })
    .await
}

pub async fn explain(AppState(agent): App, Path(name): Path<String>) -> ApiResult<ServiceExplained> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let state = &view.state;
        let service = state.services.get(&name).ok_or_else(|| unknown_service(state, &name))?;
        let nodes = fits(&agent, &member, &view, &view, &service.spec);
        let primary = state.resource_of(service).and_then(|resource| resource.record.primary);
        let barred = primary.and_then(|primary| state.barred(&name, primary));
        let waits = barred.or_else(|| state.awaits(&name).map(|bar| bar.why)).unwrap_or_default();
        let maintenance = views::maintenance_of_service(state, &name);
        Ok(ServiceExplained { resource: service.spec.resource.clone(), name, nodes, waits, maintenance })
    })
    .await
}

pub async fn failover(AppState(agent): App, Path(name): Path<String>) -> ApiResult<FailoverExplained> {
    blocking(move || {
        let member = agent.member()?;
        let view = member.log.confirmed_view(READ_PATIENCE);
        let state = &view.state;
        let resource = find_resource(&view, &name)?;
        let service = state.service_of(resource.id);
        let lacks =
            service.map(|(_, service)| lacking(&agent, &member, &view, &service.spec)).unwrap_or_default();
        let told = state.after_death(resource, &lacks);
        let named = |node: Option<NodeId>| node.map(|node| state.node_name(node));
        Ok(FailoverExplained {
            service: service.map(|(name, _)| name.clone()),
            primary: named(told.primary),
            to: named(told.to),
            outcome: told.outcome,
            nodes: told.nodes.into_iter().map(|fit| fit_view(state, fit)).collect(),
            resource: name,
        })
    })
    .await
}

/// Requirements of a service that the nodes with replicas do not meet, in words.
fn lacking(
    agent: &Arc<Agent>,
    member: &Member,
    view: &View,
    spec: &ServiceSpec,
) -> BTreeMap<NodeId, Vec<String>> {
    let resource = view.state.resource_by_name(&spec.resource);
    let replicas: Vec<NodeId> = resource.map(|resource| resource.spec.replicas.clone()).unwrap_or_default();
    let lacks = agent.ask_lacks(member, view, &replicas, spec);
    let words =
        |lacks: Vec<Lack>| lacks.iter().map(|lack| format!("{}: {}", lack.field, lack.problem)).collect();
    lacks.into_iter().map(|(node, lacks)| (node, words(lacks))).collect()
}

fn fit_view(state: &State, fit: Fit) -> FitView {
    FitView { node: state.node_name(fit.node), chosen: fit.chosen, can: fit.can, why: fit.why }
}

/// Each node, for a service as `trial` has it. The nodes of its replicas say what they lack for it.
pub(super) fn fits(
    agent: &Arc<Agent>,
    member: &Member,
    view: &View,
    trial: &View,
    spec: &ServiceSpec,
) -> Vec<FitView> {
    let fits = trial.state.explain(&spec.name, &lacking(agent, member, view, spec));
    fits.into_iter().map(|fit| fit_view(&trial.state, fit)).collect()
}
