//! `mainstay service …`.

use super::{advice_lines, checked_name, follow};
use crate::cli::{ServiceCommand, WaitArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Output, Progress, table};
use mainstay_api::client::Client;
use mainstay_api::rest::{Accepted, ServiceApply, ServiceMove, ServiceView};
use std::io::Read;
use std::path::Path;

pub fn run(command: ServiceCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        ServiceCommand::Apply { file, wait } => apply(&file, wait, client, output)?,
        ServiceCommand::List => {
            let list: Vec<ServiceView> = client.get("/v1/services")?;
            output.result(&list, |list| overview(list))?;
        }
        ServiceCommand::Status { name } => {
            let service: ServiceView = client.get(&path(&name)?)?;
            output.result(&service, details)?;
        }
        ServiceCommand::Move { name, to, force, wait } => {
            relocate(&name, (&to, force), wait, client, output)?;
        }
        ServiceCommand::Delete { name, wait } => delete(&name, wait, client, output)?,
    }
    Ok(0)
}

fn path(name: &str) -> Outcome<String> {
    Ok(format!("/v1/services/{}", checked_name(name)?))
}

fn read(file: &Path) -> Outcome<String> {
    let mut text = String::new();
    let result = if file == Path::new("-") {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text))
    };
    result.map_err(|error| {
        let message = format!("cannot read the service file {}: {error}", file.display());
        Failure::new("service-file-unreadable", message, "Name a TOML file, or `-` for standard input.")
    })?;
    Ok(text)
}

fn apply(file: &Path, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let mut service: ServiceView = client.put("/v1/services", &ServiceApply { toml: read(file)? })?;
    if !wait.no_wait {
        let path = path(&service.name)?;
        let mut progress = Progress::new();
        service = follow(&format!("starting service {}", service.name), wait.wait_s, || {
            let now: ServiceView = client.get(&path)?;
            progress.show(&summary(&now));
            if let Some(reason) = now.advice.first() {
                let remedy = "Mend the cause and apply the service again.";
                return Err(Failure::new("service-failed", format!("service {} {reason}", now.name), remedy));
            }
            let runs = now.current && now.phase == "running" && now.node == now.phase_node;
            Ok(runs.then_some(now))
        })?;
    }
    output.result(&service, details)
}

fn relocate(
    name: &str,
    (to, force): (&str, bool),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let path = path(name)?;
    let accepted: Accepted =
        client.post(&format!("{path}/move"), &ServiceMove { to: checked_name(to)?.to_owned(), force })?;
    if !wait.no_wait {
        let mut progress = Progress::new();
        follow(&format!("moving service {name}"), wait.wait_s, || {
            let now: ServiceView = client.get(&path)?;
            progress.show(&summary(&now));
            Ok((now.phase == "running" && now.phase_node.as_deref() == Some(to)).then_some(()))
        })?;
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn delete(name: &str, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let accepted: Accepted = client.delete(&path(name)?)?;
    if !wait.no_wait {
        let mut progress = Progress::new();
        follow(&format!("deleting service {name}"), wait.wait_s, || {
            let list: Vec<ServiceView> = client.get("/v1/services")?;
            let left = list.iter().find(|service| service.name == name);
            if let Some(left) = left {
                progress.show(&summary(left));
            }
            Ok(left.is_none().then_some(()))
        })?;
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn place(service: &ServiceView) -> &str {
    service.phase_node.as_deref().or(service.node.as_deref()).unwrap_or("no node")
}

/// One line about a service.
pub fn summary(service: &ServiceView) -> String {
    let vip = service.vip.as_deref().map_or(String::new(), |vip| format!(", address {vip}"));
    let deleting = if service.deleting { ", being deleted" } else { "" };
    format!("service {}: {} on {}{vip}{deleting}", service.name, service.phase, place(service))
}

fn overview(list: &[ServiceView]) -> String {
    let row = |service: &ServiceView| {
        let vip = service.vip.clone().unwrap_or_default();
        vec![
            service.name.clone(),
            service.phase.clone(),
            place(service).into(),
            vip,
            service.resource.clone(),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["SERVICE", "PHASE", "NODE", "ADDRESS", "RESOURCE"], &rows)
}

fn details(service: &ServiceView) -> String {
    let mut text = format!("{}, on resource {}", summary(service), service.resource);
    if !service.doing.is_empty() {
        text += &format!("\nnow: {}", service.doing);
    }
    for failure in &service.failures {
        text += &format!("\n{} failures on {}, the last: {}", failure.count, failure.node, failure.reason);
    }
    text + &advice_lines(&service.advice)
}
