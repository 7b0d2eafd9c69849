//! Where the devices of a resource are, if not on its primary (ADR 13).

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, change, find_node, find_resource, users};
use axum::extract::State as AppState;
use mainstay_api::rest::{Accepted, ResourceAttach};
use mainstay_control::attachments::WAIT_MS_DEFAULT;
use mainstay_control::state::Command;

pub(super) async fn attach(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(request): JsonRequest<ResourceAttach>,
) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let (resource, node) = (find_resource(view, &name)?, find_node(view, &request.node)?);
        // One that is attached elsewhere is refused as such, with the way to take it over.
        if resource.record.attached.is_none() && !request.take_over {
            let doing = format!("resource {name} is not attached to {}", request.node);
            users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        }
        let mut message = format!("resource {name} is being attached to {}", request.node);
        if request.take_over
            && let Some(users) = users::cut_off(&asked, view, resource)
        {
            message += &format!("; it is cut off from {users}");
        }
        let resource = resource.id;
        let wait_ms = request.wait_ms.unwrap_or(WAIT_MS_DEFAULT);
        let take_over = request.take_over;
        Ok((Command::AttachResource { resource, node, wait_ms, take_over }, message))
    })
    .await
}

pub(super) async fn detach(AppState(agent): App, Path(name): Path<String>) -> ApiResult<Accepted> {
    let asked = agent.clone();
    change(agent, move |view| {
        let resource = find_resource(view, &name)?;
        if resource.record.attached.is_some() {
            let doing = format!("resource {name} is not detached");
            users::refuse_used(&asked, view, resource, &doing, users::PASSING)?;
        }
        let message = match resource.record.attached {
            Some(attached) => {
                format!("resource {name} is being detached from {}", view.state.node_name(attached.node))
            }
            None => format!("resource {name} is attached to no node; its devices are on its primary"),
        };
        Ok((Command::DetachResource { resource: resource.id }, message))
    })
    .await
}
