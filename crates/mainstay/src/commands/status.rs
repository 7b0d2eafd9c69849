//! `mainstay status`: the state of everything in words, and what to do next.

use super::{advice_lines, cluster, resource, scrub, service};
use crate::failure::{Outcome, exit};
use crate::output::Output;
use mainstay_api::client::Client;
use mainstay_api::rest::StatusView;

pub fn run(client: &Client, output: Output) -> Outcome<u8> {
    let status: StatusView = client.get("/v1/status")?;
    output.result(&status, words)?;
    Ok(if status.advice.is_empty() { 0 } else { exit::ATTENTION })
}

fn words(status: &StatusView) -> String {
    let mut lines = Vec::new();
    match &status.cluster {
        Some(view) => lines.push(cluster::head(view)),
        None => lines.push("this node is not a member of a cluster".into()),
    }
    if !status.engine.connected {
        lines.push(format!("the engine of this node does not answer: {}", status.engine.message));
    }
    if let Some(frontend) = &status.engine.frontend {
        let kind = frontend.kind.as_deref().unwrap_or("no");
        lines.push(format!("devices of this node: {kind} ({})", frontend.reason));
    }
    if let Some(view) = status.cluster.as_ref().filter(|_| status.lease_left_ms == 0) {
        // It serves nothing, whatever the record says that it read when it still heard from a majority.
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

fn advice(advice: &[String]) -> String {
    format!("what to do:{}", advice_lines(advice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::EngineView;

    #[test]
    fn advice_is_shown_and_silence_means_well() {
        let mut status = StatusView {
            cluster: None,
            engine: EngineView { connected: true, message: String::new(), frontend: None },
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
