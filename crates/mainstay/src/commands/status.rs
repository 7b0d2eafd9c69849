//! `mainstay status`: the state of everything in words, and what to do next.

use super::{advice_lines, cluster, resource, scrub, service, watch};
use crate::cli::WatchArgs;
use crate::failure::{Outcome, exit};
use crate::output::Output;
use mainstay_api::engine::WatchdogStatus;
use mainstay_api::rest::{ClusterView, StatusView};
use mainstay_client::Client;

pub fn run(args: WatchArgs, client: &Client, output: Output) -> Outcome<u8> {
    let status: StatusView = watch::show(args, output, || Ok(client.get("/v1/status")?), words)?;
    Ok(if status.advice.is_empty() { 0 } else { exit::ATTENTION })
}

fn words(status: &StatusView) -> String {
    let mut lines = Vec::new();
    match &status.cluster {
        Some(view) => lines.push(cluster::head(view)),
        None => lines.push("this node is not a member of a cluster".into()),
    }
    if status.cluster.as_ref().is_some_and(|cluster| cluster.sends_clear) {
        lines.push("data between nodes is not encrypted: data-encryption is off".into());
    }
    let own = |view: &ClusterView| view.nodes.iter().any(|node| node.witness && node.name == view.this_node);
    if status.cluster.as_ref().is_some_and(own) {
        lines.push("this node is a witness: it votes, holds no data and needs no engine".into());
    } else if !status.engine.connected {
        lines.push(format!("the engine of this node does not answer: {}", status.engine.message));
    }
    if let Some(frontend) = &status.engine.frontend {
        let kind = frontend.kind.map_or_else(|| "no".to_owned(), |kind| kind.to_string());
        lines.push(format!("devices of this node: {kind} ({})", frontend.reason));
    }
    lines.extend(status.engine.watchdog.as_ref().map(watchdog));
    if let Some(view) = status.cluster.as_ref().filter(|_| status.lease_left_ms == 0) {
        // The node serves nothing, whatever its record says. It read the record when it still heard
        // from a majority.
        lines.push(format!(
            "{} holds no lease: it serves nothing, and this is what it knew last:",
            view.this_node
        ));
    }
    let resource = |one| resource::summary(one) + &resource::space(one) + &scrub::line(one);
    lines.extend(status.resources.iter().map(resource));
    lines.extend(status.services.iter().map(service::summary));
    let verdict = if status.advice.is_empty() { "all is well".into() } else { advice(&status.advice) };
    lines.push(verdict);
    lines.join("\n")
}

/// One line about the watchdog of the node that was asked.
fn watchdog(watchdog: &WatchdogStatus) -> String {
    let WatchdogStatus { device, identity, armed, timeout_ms, problem, .. } = watchdog;
    match problem {
        Some(problem) => format!("watchdog of this node: cannot be used: {problem}"),
        None if *armed => format!(
            "watchdog of this node: armed; it resets the machine {} s after the engine stands still ({identity}, {device})",
            timeout_ms / 1000
        ),
        None => {
            format!("watchdog of this node: ready, not armed: no service runs here ({identity}, {device})")
        }
    }
}

fn advice(advice: &[String]) -> String {
    format!("what to do:{}", advice_lines(advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{EngineView, NodeStatus, NodeView};

    /// A node and a witness, as the witness sees them.
    fn of_two() -> StatusView {
        let node = |name: &str, witness| NodeView {
            id: 1,
            name: name.into(),
            agent_address: String::new(),
            engine_address: String::new(),
            status: NodeStatus::Alive,
            generation: 1,
            voter: true,
            witness,
            candidate: false,
            leader: false,
            connected: true,
            pool_free_bytes: None,
            log_lag_ms: None,
            log_lag_entries: 0,
            level: 1,
            maintenance: None,
            cordon: None,
        };
        StatusView {
            cluster: Some(ClusterView {
                id: 1,
                name: "c".into(),
                revision: 1,
                leader: None,
                this_node: "w".into(),
                lease_ms: 2000,
                heartbeat_ms: 100,
                level: 1,
                as_of_ms: Some(0),
                joining_ms: None,
                maintenance: None,
                sends_clear: false,
                nodes: vec![node("a", false), node("w", true)],
            }),
            engine: EngineView { connected: false, message: "gone".into(), frontend: None, watchdog: None },
            lease_left_ms: 1,
            resources: vec![],
            services: vec![],
            advice: vec![],
        }
    }

    #[test]
    fn data_without_encryption_is_told() {
        let mut status = of_two();
        assert!(!words(&status).contains("encrypted"));
        status.cluster.as_mut().unwrap().sends_clear = true;
        let said = words(&status);
        assert!(said.contains("data between nodes is not encrypted: data-encryption is off"), "{said}");
    }

    /// A witness has no engine, and the output must not make an operator look for one.
    #[test]
    fn a_witness_is_called_one_and_misses_no_engine() {
        let mut status = of_two();
        let said = words(&status);
        assert!(said.contains("this node is a witness") && !said.contains("does not answer"), "{said}");
        status.cluster.as_mut().unwrap().this_node = "a".into();
        let said = words(&status);
        assert!(
            !said.contains("witness") && said.contains("the engine of this node does not answer"),
            "{said}"
        );
    }

    #[test]
    fn advice_is_shown_and_silence_means_well() {
        let mut status = StatusView {
            cluster: None,
            engine: EngineView { connected: true, message: String::new(), frontend: None, watchdog: None },
            lease_left_ms: 0,
            resources: vec![],
            services: vec![],
            advice: vec![],
        };
        assert!(words(&status).ends_with("all is well"));
        status.advice.push("Start a cluster.".into());
        assert!(words(&status).ends_with("what to do:\n  → Start a cluster."));
    }
}
