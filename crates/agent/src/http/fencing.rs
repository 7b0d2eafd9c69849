//! Statements of an operator about nodes that are to be switched off (`fencing.rs` of `control`).

use super::extract::Path;
use super::{ApiResult, App, change};
use axum::extract::State as AppState;
use mainstay_api::rest::Accepted;
use mainstay_control::state::Command;
use mainstay_types::{Code, Problem};

/// The node is off: others may take over.
pub async fn confirm_off(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    change(agent, move |view| {
        let Some(node) = view.state.node_by_name(&name) else {
            return Err(Problem::new(
                Code::UnknownNode,
                format!("there is no node {name}"),
                "Look at `mainstay node list`.",
            ));
        };
        let waits = view.state.fences.get(&node.id).is_some_and(|fence| fence.done.is_none());
        let message = if waits {
            format!("node {name} counts as switched off")
        } else {
            format!("nothing waits for node {name} to be switched off")
        };
        Ok((Command::ConfirmOff { node: node.id }, message))
    })
    .await
}
