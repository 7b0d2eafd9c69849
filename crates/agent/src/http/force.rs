//! Promotion outside the in-sync set (R11).

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, blocking, change, find_node, find_resource, unknown_resource};
use crate::agent::Agent;
use crate::messages::{Call, CallReply};
use crate::raft::{ConsensusLog, View};
use crate::views;
use axum::extract::State as AppState;
use mainstay_api::engine::{Reply, Request};
use mainstay_api::rest::{Accepted, ForceView};
use mainstay_control::state::Command;
use mainstay_types::{Code, Index, Problem};
use std::sync::Arc;
use std::time::Duration;

/// How long a replica has to promise the epoch that is to begin.
const PROMISE_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the cost of a forced promotion of `node`, if the promotion is possible.
fn cost_of_force(agent: &Arc<Agent>, view: &View, name: &str, node: &str) -> Result<ForceView, Problem> {
    let (resource, node) = (find_resource(view, name)?, find_node(view, node)?);
    if let Some(refusal) = view.state.cannot_force(resource.id, node) {
        // Without a majority, the cluster cannot know about deaths since then, and that is the
        // cause.
        let doing = format!("resource {name} does not go on from {}", view.state.node_name(node));
        super::require_majority(agent, &doing)?;
        return Err(refusal);
    }
    let live = agent.ask_all(&*agent.member()?, view);
    views::force(&view.state, resource, node, &live)
        .map_err(|why| Problem::new(Code::NotEligible, why, "Choose another node, or bring its engine up."))
}

pub(super) async fn force_cost(
    AppState(agent): App,
    Path((name, node)): Path<(String, String)>,
) -> ApiResult<ForceView> {
    blocking(move || cost_of_force(&agent, &agent.member()?.log.view(), &name, &node)).await
}

pub(super) async fn force_promote(
    AppState(agent): App,
    Path((name, node)): Path<(String, String)>,
    JsonRequest(accepted): JsonRequest<ForceView>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let (resource, holder) = (find_resource(view, &name)?, find_node(view, &node)?);
        if let Some(refusal) = view.state.cannot_force(resource.id, holder) {
            return Err(refusal);
        }
        let doing = format!("resource {name} does not go on from {node}");
        super::require_majority(&asked, &doing)?;
        super::users::refuse_used(&asked, view, resource, &doing, super::users::PASSING)?;
        // From then on, a primary that is cut off and does not know that it is replaced cannot
        // change the replica. The cost is compared after that.
        let promise = Request::Promise { resource: resource.id, epoch: resource.record.epoch.next() };
        match asked.ask(&*asked.member()?, holder, Call::Engine(promise), PROMISE_TIMEOUT)? {
            CallReply::Error(error) | CallReply::Engine(Reply::Error(error)) => return Err(error),
            _ => {}
        }
        let now = cost_of_force(&asked, view, &name, &node)?;
        if now != accepted {
            return Err(Problem::new(
                Code::Conflict,
                format!("{doing}: the cost has changed since you accepted it"),
                format!("Run `mainstay resource force-promote {name} {node}` to see the present cost."),
            ));
        }
        let to = resource.record.replica(holder).ok_or_else(|| unknown_resource(&name))?;
        let message = format!("resource {name} goes on from {}", now.node);
        let command = Command::ForcePromote {
            resource: resource.id,
            version: resource.record.version,
            to,
            end: Index(now.end),
            heard: Index(now.heard),
        };
        Ok((command, message))
    })
    .await
}
