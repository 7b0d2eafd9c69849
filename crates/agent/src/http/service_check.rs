//! A service file that is checked on every node before anything runs.

use super::extract::JsonRequest;
use super::services::{Tried, refuse_small, restarts, try_out};
use super::{ApiResult, App, blocking, users};
use crate::agent::Agent;
use crate::member::Member;
use crate::raft::View;
use axum::extract::State as AppState;
use mainstay_api::rest::{ServiceCheck, ServiceChecked, ServiceCheckedOn, ServiceProblem};
use mainstay_ha::ServiceSpec;
use mainstay_types::{NodeId, NodeStatus, Problem};
use std::sync::Arc;

/// Makes the checks of an application, and names what would fail on each node. A file that the
/// cluster would refuse whatever its nodes have is refused.
pub async fn check(
    AppState(agent): App,
    JsonRequest(ServiceCheck { toml }): JsonRequest<ServiceCheck>,
) -> ApiResult<ServiceChecked> {
    blocking(move || {
        let member = agent.member()?;
        let Tried { spec, view, .. } = try_out(&member, &toml)?;
        let resource = view.state.resource_by_name(&spec.resource);
        if let Some(resource) = resource.filter(|_| !view.state.services.contains_key(&spec.name)) {
            refuse_small(&spec, &resource.spec.volumes)?;
        }
        let nodes = on_nodes(&agent, &member, &view, &spec);
        Ok(ServiceChecked { name: spec.name, resource: spec.resource, nodes })
    })
    .await
}

fn on_nodes(agent: &Arc<Agent>, member: &Member, view: &View, spec: &ServiceSpec) -> Vec<ServiceCheckedOn> {
    let Some(resource) = view.state.resource_by_name(&spec.resource) else { return Vec::new() };
    let nodes = &resource.spec.replicas;
    let lacks = agent.ask_lacks(member, view, nodes, spec);
    let is_alive =
        |node: &NodeId| view.state.nodes.get(node).is_some_and(|known| known.status == NodeStatus::Alive);
    let held = held(agent, view, spec);
    let checked = nodes.iter().map(|node| {
        let lacks = lacks.get(node);
        let found = lacks.into_iter().flatten().map(|lack| ServiceProblem {
            field: lack.field.clone(),
            problem: lack.problem.clone(),
            remedy: lack.remedy.clone(),
        });
        let mut problems: Vec<ServiceProblem> = found.collect();
        if lacks.is_some()
            && let Some(why) = users::unfit(agent, view, spec, *node)
        {
            problems.push(ServiceProblem {
                field: "mount.path".into(),
                problem: why,
                remedy: users::FIT.into(),
            });
        }
        if resource.record.primary == Some(*node) {
            problems.extend(held.clone());
        }
        let silent = match lacks {
            Some(_) => None,
            None if is_alive(node) => Some("it did not answer in time".to_owned()),
            None => Some("it is dead".to_owned()),
        };
        ServiceCheckedOn { node: view.state.node_name(*node), silent, problems }
    });
    checked.collect()
}

/// Users of the file system that hold up the restart which the file needs, if it needs one.
fn held(agent: &Arc<Agent>, view: &View, spec: &ServiceSpec) -> Option<ServiceProblem> {
    if !restarts(view, spec) {
        return None;
    }
    let doing = format!("service {} cannot be restarted for the change", spec.name);
    let or = "`mainstay service apply FILE --force` restarts it all the same.";
    let refused: Problem = users::refuse_held(agent, view, &spec.name, &doing, or).err()?;
    Some(ServiceProblem { field: "mount".into(), problem: refused.message, remedy: refused.remedy })
}
