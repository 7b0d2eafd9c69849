//! `mainstay cluster …` and `mainstay node …`.

use crate::cli::{ClusterCommand, NodeCommand};
use crate::failure::Outcome;
use crate::output::{Output, table};
use crate::size;
use mainstay_api::client::Client;
use mainstay_api::rest::{ClusterInit, ClusterJoin, ClusterView, NodeStatus, NodeView};

pub fn run(command: ClusterCommand, client: &Client, output: Output) -> Outcome<u8> {
    let cluster: ClusterView = match command {
        ClusterCommand::Init { name, node, address, engine_address, lease_ms, heartbeat_ms } => {
            let request = ClusterInit { name, node, address, engine_address, lease_ms, heartbeat_ms };
            client.post("/v1/cluster/init", &request)?
        }
        ClusterCommand::Join { peer, node, address, engine_address, witness } => {
            let request = ClusterJoin { peer, node, address, engine_address, witness };
            client.post("/v1/cluster/join", &request)?
        }
        ClusterCommand::Status => client.get("/v1/cluster")?,
    };
    output.result(&cluster, |cluster| format!("{}\n{}", head(cluster), nodes(&cluster.nodes)))?;
    Ok(0)
}

pub fn node(command: &NodeCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        NodeCommand::List => {
            let list: Vec<NodeView> = client.get("/v1/nodes")?;
            output.result(&list, |list| nodes(list))?;
        }
    }
    Ok(0)
}

/// One line about the cluster.
pub fn head(cluster: &ClusterView) -> String {
    if cluster.as_of_ms > 0 {
        return format!(
            "cluster {}: no majority of the voters answers {}; what follows is as of {} ago",
            cluster.name,
            cluster.this_node,
            super::resource::duration(cluster.as_of_ms)
        );
    }
    let alive = cluster.nodes.iter().filter(|node| node.status == NodeStatus::Alive).count();
    let leader =
        cluster.leader.as_deref().map_or("no known leader".into(), |leader| format!("leader {leader}"));
    format!(
        "cluster {}: {alive} of {} nodes alive, {leader}, lease {} ms (answered by {})",
        cluster.name,
        cluster.nodes.len(),
        cluster.lease_ms,
        cluster.this_node
    )
}

fn nodes(list: &[NodeView]) -> String {
    let row = |node: &NodeView| {
        let status = match (node.status, node.connected) {
            (NodeStatus::Alive, true) => "alive",
            (NodeStatus::Alive, false) => "alive, no connection",
            (NodeStatus::Dead, _) => "dead",
        };
        let role = match (node.leader, node.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) => "",
        };
        let role = if node.witness { format!("{role}, witness") } else { role.to_owned() };
        let free = match node.pool_free_bytes {
            Some(bytes) => size::format(bytes),
            None if node.witness => String::new(),
            None => "?".into(),
        };
        vec![
            node.name.clone(),
            status.into(),
            role,
            free,
            node.agent_address.clone(),
            node.engine_address.clone(),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["NODE", "STATUS", "ROLE", "FREE", "AGENT", "ENGINE"], &rows)
}
