//! Nodes that leave, are replaced, and return.

use crate::cluster::{Cluster, LIMIT};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{NodeStatus, NodeView, TokenMade};
use mainstay_tests::lab::Lab;
use mainstay_tests::wait_for;

const RESOURCE: &str = "r";
/// Stands by beside three voters, and takes a place later.
const SPARE: &str = "n4";

/// A node that stands by is removed and told so, and takes the place of a dead node. The dead node
/// returns, is told so, and disturbs nothing.
pub fn a_dead_node_is_replaced_and_told_so_when_it_returns(cluster: &Cluster) -> Result<()> {
    let lab = Lab::new(&format!("{}-nodes", cluster.lab.name))?;
    lab.up_with(4, &[])?;
    let ended = replaced(&lab);
    let logs = || lab.lab(&["logs", SPARE, "-n", "30"]).unwrap_or_default();
    let ended = ended.with_context(logs);
    lab.down()?;
    ended
}

fn nodes(lab: &Lab) -> Result<Vec<NodeView>> {
    Ok(lab.status()?.cluster.context("a cluster")?.nodes)
}

/// The agent of this node has ended, because the node was removed.
fn wait_told(lab: &Lab, node: &str) -> Result<()> {
    wait_for(&format!("the end of the agent of {node}"), LIMIT, || {
        ensure!(lab.pids(node, "agent")?.is_empty(), "it runs");
        let logs = lab.lab(&["logs", node, "-n", "40"])?;
        ensure!(logs.contains("was removed from cluster"), "{logs}");
        Ok(())
    })
}

fn replaced(lab: &Lab) -> Result<()> {
    lab.create_resource(RESOURCE, "64MiB", &["n1", "n2", "n3"], &["--journal", "16MiB"])?;
    let listed = lab.cli(&["node", "list"])?;
    let stands_by = |line: &str| line.contains("stands by");
    ensure!(listed.lines().all(|line| line.starts_with(SPARE) == stands_by(line)), "{listed}");

    lab.cli(&["node", "remove", SPARE])?;
    wait_told(lab, SPARE)?;
    // The operator keeps the old state. It is a mount point here.
    let aside = "cd /var/lib/mainstay; mkdir old; find . -mindepth 1 -maxdepth 1 ! -name old -exec mv {} old/ \\;; sync";
    lab.shell(SPARE, aside)?;
    lab.kill(SPARE)?;
    lab.start(SPARE)?;

    let primary = lab.primary(RESOURCE)?;
    let refused = lab.try_cli(&["node", "remove", &primary])?;
    ensure!(refused.stderr.contains("is-primary"), "{refused:?}");
    let lost = if primary == "n2" { "n3" } else { "n2" };
    lab.kill(lost)?;
    wait_for("the death of the node", LIMIT, || {
        let nodes = nodes(lab)?;
        let dead = nodes.iter().any(|node| node.name == lost && node.status == NodeStatus::Dead);
        ensure!(dead, "{nodes:?}");
        Ok(())
    })?;
    let (binary, peer) = (lab.binary().to_string_lossy().into_owned(), lab.address(&primary)?);
    let made: TokenMade = lab.cli_json(&["cluster", "token", "create", lost])?;
    let join =
        [&*binary, "cluster", "join", "--peer", &peer, "--as", lost, "--replace", "--token", &made.token];
    wait_for("the new node", LIMIT, || lab.exec(SPARE, &join).map(drop))?;
    lab.wait_in_sync(RESOURCE, LIMIT)?;
    let address = lab.address(SPARE)?;
    wait_for("three voters", LIMIT, || {
        let nodes = nodes(lab)?;
        let new = nodes.iter().any(|node| node.name == lost && node.agent_address.starts_with(&address));
        ensure!(new && nodes.len() == 3 && nodes.iter().all(|node| node.voter), "{nodes:?}");
        Ok(())
    })?;

    let leader = lab.leader()?;
    // The lab waits for its agent in vain.
    if let Err(error) = lab.start(lost) {
        ensure!(format!("{error:#}").contains("was removed from cluster"), "{error:#}");
    }
    wait_told(lab, lost)?;
    ensure!(lab.leader()? == leader, "the lead has changed from {leader} to {}", lab.leader()?);
    lab.wait_in_sync(RESOURCE, LIMIT)
}
