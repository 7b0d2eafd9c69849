//! `mainstay service stop`, `start` and `restart`.

use super::{await_service, path, runs};
use crate::cli::WaitArgs;
use crate::failure::Outcome;
use crate::interrupt::GoesOn;
use crate::output::Output;
use mainstay_api::rest::{Accepted, ServiceRestart, ServiceView, ServiceWanted};
use mainstay_client::Client;

/// Has the service stop, or start. `force` counts for a stop.
pub(super) fn want(
    name: &str,
    (run, force): (bool, bool),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let wanted = ServiceWanted { run, force };
    let mut accepted: Accepted = client.put(&format!("{}/wanted", path(name)?), &wanted)?;
    if !wait.no_wait {
        let look = format!("mainstay service status {name}");
        let (doing, undo) = match run {
            true => ("starting", format!("mainstay service stop {name}")),
            false => ("stopping", format!("mainstay service start {name}")),
        };
        let _told = GoesOn::work(&format!("{doing} service {name}"), &look, &undo);
        accepted.message = if run {
            let now = await_service(name, "run", wait, client, runs, |_| None)?;
            format!("service {name} runs on {}", super::place(&now))
        } else {
            await_service(name, "stop", wait, client, is_stopped, |_| None)?;
            format!("service {name} is stopped, and stays stopped; `mainstay service start {name}` starts it")
        };
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn is_stopped(service: &ServiceView) -> bool {
    service.stopped_ms.is_some() && service.phase.is_silent()
}

pub(super) fn restart(
    name: &str,
    process: Option<String>,
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let path = format!("{}/restart", path(name)?);
    let what = match &process {
        Some(process) => format!("process {process} of service {name}"),
        None => format!("service {name}"),
    };
    let mut accepted: Accepted = client.post(&path, &ServiceRestart { process })?;
    if !wait.no_wait {
        let look = format!("mainstay service status {name}");
        let _told = GoesOn::work(&format!("restarting {what}"), &look, "");
        let done = |now: &ServiceView| !now.restarting && runs(now);
        let now = await_service(name, "run again", wait, client, done, |_| None)?;
        accepted.message = format!("{what} is restarted on {}", super::place(&now));
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}
