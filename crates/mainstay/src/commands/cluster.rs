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
        ClusterCommand::Join { peer, node, address, engine_address } => {
            client.post("/v1/cluster/join", &ClusterJoin { peer, node, address, engine_address })?
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
        let role = if node.leader {
            "leader"
        } else if node.voter {
            "voter"
        } else {
            ""
        };
        let free = node.pool_free_bytes.map_or("?".into(), size::format);
        vec![
            node.name.clone(),
            status.into(),
            role.into(),
            free,
            node.agent_address.clone(),
            node.engine_address.clone(),
        ]
    };
    let rows: Vec<_> = list.iter().map(row).collect();
    table(&["NODE", "STATUS", "ROLE", "FREE", "AGENT", "ENGINE"], &rows)
}
