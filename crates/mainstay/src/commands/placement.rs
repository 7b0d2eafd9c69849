//! `mainstay explain`, and the maintenance, cordon and drain of nodes, services and the cluster.

use super::{checked_name, follow};
use crate::cli::{ExplainArgs, ExplainCommand, MaintenanceArgs, WaitArgs};
use crate::failure::{Code, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::{Output, Progress};
use mainstay_api::rest::{
    Accepted, ClusterView, CordonSet, FailoverExplained, FitView, MaintenanceSet, MaintenanceView, NodeView,
    ResourceView, ServiceExplained,
};
use mainstay_client::Client;
use mainstay_types::clock::clock;

/// `path`: of what is in maintenance.
pub fn maintain(path: &str, set: MaintenanceArgs, client: &Client, output: Output) -> Outcome<()> {
    let wish = MaintenanceSet { on: set.on, for_ms: set.for_ms };
    let accepted: Accepted = client.put(&format!("{path}/maintenance"), &wish)?;
    output.result(&accepted, |accepted| accepted.message.clone())
}

pub fn cordon(name: &str, on: bool, client: &Client, output: Output) -> Outcome<()> {
    let path = format!("/v1/nodes/{}/cordon", checked_name(name)?);
    let accepted: Accepted = client.put(&path, &CordonSet { on, drain: false })?;
    output.result(&accepted, |accepted| accepted.message.clone())
}

/// Empties a node. Returns the exit code.
pub fn drain(name: &str, wait: WaitArgs, client: &Client, output: Output) -> Outcome<u8> {
    let mut accepted = begin_drain(name, client)?;
    let mut code = 0;
    if !wait.no_wait {
        let undo = format!("mainstay node uncordon {name}");
        let _told = GoesOn::work(&format!("draining node {name}"), "mainstay node list", &undo);
        let reasons = emptied(name, wait.wait_s, client)?;
        accepted.message = match reasons.is_empty() {
            true => format!("nothing is left on {name}; nothing comes back until `{undo}`"),
            false => format!("something stays on {name}:\n  {}", reasons.join("\n  ")),
        };
        code = if reasons.is_empty() { 0 } else { exit::ATTENTION };
    }
    output.result(&accepted, |accepted| accepted.message.clone())?;
    Ok(code)
}

pub fn begin_drain(name: &str, client: &Client) -> Outcome<Accepted> {
    let path = format!("/v1/nodes/{}/cordon", checked_name(name)?);
    Ok(client.put(&path, &CordonSet { on: true, drain: true })?)
}

/// Waits until nothing is left on a node that is drained. Returns why what stays there cannot
/// leave.
pub fn emptied(name: &str, wait_s: u64, client: &Client) -> Outcome<Vec<String>> {
    let mut progress = Progress::new();
    let mut left = Vec::new();
    let result = follow(&format!("draining node {name}"), wait_s, || {
        left = primaries(name, client)?;
        progress.show(&format!("still on {name}: {}", left.join(", ")));
        let reasons = stuck(&left, name, client)?;
        Ok((left.is_empty() || reasons.len() == left.len()).then_some(reasons))
    });
    drop(progress);
    match result {
        Err(failure) if failure.problem.code == Code::WaitOver => {
            Ok(left.iter().map(|resource| format!("{resource} is still on its way")).collect())
        }
        result => result,
    }
}

/// The resources whose primary is on a node.
fn primaries(name: &str, client: &Client) -> Outcome<Vec<String>> {
    let cluster: ClusterView = client.get("/v1/cluster")?;
    let node = cluster.nodes.into_iter().find(|node: &NodeView| node.name == name);
    Ok(node.and_then(|node| node.cordon).map(|cordon| cordon.primaries).unwrap_or_default())
}

/// Why the rest of a node's primaries cannot leave it, for those that cannot.
fn stuck(left: &[String], name: &str, client: &Client) -> Outcome<Vec<String>> {
    let services: Vec<mainstay_api::rest::ServiceView> = client.get("/v1/services")?;
    let mut reasons = Vec::new();
    for resource in left {
        let service = services.iter().find(|service| service.resource == *resource);
        let why = match service {
            Some(service) => {
                let told: ServiceExplained = client.get(&format!("/v1/services/{}/explain", service.name))?;
                let others = || told.nodes.iter().filter(|fit| fit.node != name);
                if others().any(|fit| fit.can) && told.maintenance.is_none() {
                    continue;
                }
                let rests = told.maintenance.as_ref().map(resting).unwrap_or_default();
                let others: Vec<String> = others().map(|fit| format!("{}: {}", fit.node, fit.why)).collect();
                format!("service {}{rests}; {}", service.name, others.join("; "))
            }
            None => {
                let view: ResourceView = client.get(&format!("/v1/resources/{resource}"))?;
                let in_sync =
                    |replica: &&mainstay_api::rest::ReplicaView| replica.node != name && replica.in_sync;
                if view.replicas.iter().any(|replica| in_sync(&replica)) {
                    continue;
                }
                format!("resource {resource}: no other node has a replica in sync")
            }
        };
        reasons.push(why);
    }
    Ok(reasons)
}

pub fn explain(args: &ExplainArgs, client: &Client, output: Output) -> Outcome<u8> {
    match (&args.what, &args.name) {
        (Some(ExplainCommand::Failover { resource }), _) => failover(resource, client, output),
        (None, name) => of_service(name.as_deref().unwrap_or_default(), client, output),
    }
}

fn failover(name: &str, client: &Client, output: Output) -> Outcome<u8> {
    let path = format!("/v1/resources/{}/failover", checked_name(name)?);
    let told: FailoverExplained = client.get(&path)?;
    output.result(&told, takeover)?;
    Ok(0)
}

fn takeover(told: &FailoverExplained) -> String {
    let service = told.service.as_ref().map(|name| format!(" with service {name}")).unwrap_or_default();
    let head = match &told.primary {
        Some(primary) => {
            format!("resource {}{service}, if {primary} died now: {}", told.resource, told.outcome)
        }
        None => format!("resource {}{service}: {}", told.resource, told.outcome),
    };
    head + &lines(&told.nodes)
}

fn of_service(name: &str, client: &Client, output: Output) -> Outcome<u8> {
    let told: ServiceExplained = client.get(&format!("/v1/services/{}/explain", checked_name(name)?))?;
    output.result(&told, |told| {
        let rests = told.maintenance.as_ref().map(resting).unwrap_or_default();
        let waits = if told.waits.is_empty() { String::new() } else { format!("\nit waits: {}", told.waits) };
        format!("service {}, on resource {}{rests}{}{waits}", told.name, told.resource, lines(&told.nodes))
    })?;
    Ok(0)
}

/// One line a node, the chosen one marked.
pub fn lines(nodes: &[FitView]) -> String {
    let line = |fit: &FitView| {
        let mark = match (fit.chosen, fit.can) {
            (true, _) => "→",
            (false, true) => " ",
            (false, false) => "✗",
        };
        format!("\n  {mark} {}: {}", fit.node, fit.why)
    };
    nodes.iter().map(line).collect()
}

/// Part of a line about what is in maintenance.
pub fn resting(maintenance: &MaintenanceView) -> String {
    let end = match maintenance.left_ms {
        Some(left_ms) => format!("ends within {} min", left_ms.div_ceil(60_000)),
        None => format!("until `{}`", maintenance.end),
    };
    format!(", in maintenance ({}) since {}, {end}", maintenance.of, clock(maintenance.since_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failover_is_explained_with_the_node_that_takes_over_and_the_reasons_of_the_others() {
        let fit =
            |node: &str, chosen, can, why: &str| FitView { node: node.into(), chosen, can, why: why.into() };
        let mut told = FailoverExplained {
            resource: "db".into(),
            service: Some("mariadb".into()),
            primary: Some("n1".into()),
            to: Some("n2".into()),
            outcome: "n2 takes over as soon as the lease of n1 has ended".into(),
            nodes: vec![fit("n2", true, true, "takes over"), fit("n3", false, false, "it is dead")],
        };
        assert_eq!(
            takeover(&told),
            "resource db with service mariadb, if n1 died now: n2 takes over as soon as the lease of n1 has ended\n  \
             → n2: takes over\n  ✗ n3: it is dead"
        );
        (told.primary, told.service, told.outcome) = (None, None, "no node is primary now: x".into());
        assert!(
            takeover(&told).starts_with("resource db: no node is primary now: x\n"),
            "{}",
            takeover(&told)
        );
    }
}
