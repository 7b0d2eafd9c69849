//! Orders about a service: whether it is to run, and that it is to be restarted in place.

use super::extract::{JsonRequest, Path};
use super::{ApiResult, App, change, disregard_holders, users};
use axum::extract::State as AppState;
use mainstay_api::rest::{Accepted, ServiceRestart, ServiceWanted};
use mainstay_control::state::Command;

pub async fn set_wanted(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(ServiceWanted { run, force }): JsonRequest<ServiceWanted>,
) -> ApiResult<Accepted> {
    let (asked, service) = (agent.clone(), name.clone());
    let changed = change(agent.clone(), move |view| {
        if run {
            let message = format!("service {name} is to run{}", view.state.order_waits(&name));
            return Ok((Command::StartService { name }, message));
        }
        let known = view.state.services.get(&name);
        if !force && known.is_some_and(|known| known.stopped.is_none()) {
            let doing = format!("service {name} is not stopped");
            let or = format!("To stop it all the same, run `mainstay service stop {name} --force`.");
            users::refuse_held(&asked, view, &name, &doing, &or)?;
        }
        let waits = view.state.order_waits(&name);
        let message = format!("service {name} is being stopped, and stays stopped{waits}");
        Ok((Command::StopService { name }, message))
    })
    .await?;
    if force && !run {
        disregard_holders(agent, service).await;
    }
    Ok(changed)
}

pub async fn restart(
    AppState(agent): App,
    Path(name): Path<String>,
    JsonRequest(ServiceRestart { process }): JsonRequest<ServiceRestart>,
) -> ApiResult<Accepted> {
    change(agent, move |_| {
        let message = match &process {
            Some(process) => format!("process {process} of service {name} is being restarted"),
            None => format!("service {name} is being restarted"),
        };
        Ok((Command::RestartService { name, process }, message))
    })
    .await
}
