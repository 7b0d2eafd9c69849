//! `mainstay cluster …` and `mainstay node …`.

use super::{authority, checked_name, identities, nodes, placement, settings, upgrade, watch};
use crate::cli::{ClusterCommand, NodeCommand};
use crate::failure::{Code, Failure, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::{self, Output};
use mainstay_api::rest::{
    Accepted, ClusterInit, ClusterJoin, ClusterView, NodeAddress, NodeStatus, NodeView,
};
use mainstay_cli::list::{Cell, Form, List};
use mainstay_client::Client;
use serde::{Serialize, Serializer};
use std::io::IsTerminal;
use std::net::SocketAddr;

pub fn run(command: ClusterCommand, client: &Client, output: Output) -> Outcome<u8> {
    let mut told = Vec::new();
    let cluster: ClusterView = match command {
        ClusterCommand::Init { name, node, address, engine_address, lease_ms, heartbeat_ms } => {
            let _told = forming("making the cluster");
            let request = ClusterInit { name, node, address, engine_address, lease_ms, heartbeat_ms };
            let made = client.post("/v1/cluster/init", &request)?;
            match for_one_machine(&made) {
                Some(warning) => output::say(&format!("warning: {warning}")),
                None => told.push(next_node(&made, client)),
            }
            made
        }
        ClusterCommand::Join { peer, node, address, engine_address, witness, replace, token } => {
            let token = identities::given_token(token)?;
            let _told = forming("joining");
            let request = ClusterJoin { peer, node, address, engine_address, witness, replace, token };
            client.post("/v1/cluster/join", &request)?
        }
        ClusterCommand::Token(command) => {
            identities::token(command, client, output)?;
            return Ok(0);
        }
        ClusterCommand::Certificates => {
            identities::certificates(client, output)?;
            return Ok(0);
        }
        ClusterCommand::Authority(command) => {
            authority::run(command, client, output)?;
            return Ok(0);
        }
        ClusterCommand::Backup { file } => {
            nodes::backup(&file, client, output)?;
            return Ok(0);
        }
        ClusterCommand::Recover { .. } | ClusterCommand::Restore { .. } => {
            unreachable!("these ask no agent")
        }
        ClusterCommand::Status(args) => {
            let ask = || Ok(client.get::<ClusterView>("/v1/cluster")?);
            watch::show(args, output, ask, |cluster| format!("{}\n{}", head(cluster), table_of(cluster)))?;
            return Ok(0);
        }
        ClusterCommand::Set { settings: chosen } => {
            settings::set("/v1/cluster", chosen, client, output)?;
            return Ok(0);
        }
        ClusterCommand::Maintenance { set } => {
            placement::maintain("/v1/cluster", set, client, output)?;
            return Ok(0);
        }
        ClusterCommand::Settings => {
            settings::show("/v1/cluster", client, output)?;
            return Ok(0);
        }
    };
    output.result(&cluster, |cluster| {
        let lines = [head(cluster), table_of(cluster)].into_iter().chain(told);
        lines.collect::<Vec<_>>().join("\n")
    })?;
    Ok(0)
}

fn forming(doing: &str) -> GoesOn {
    GoesOn::tell(format!(
        "{doing} goes on in the agent for up to two minutes. To see the result, run `mainstay status`."
    ))
}

/// The line that makes the next machine a node, as it can be pasted there, if the name of that node
/// is clear; otherwise the command that makes such a line.
fn next_node(cluster: &ClusterView, client: &Client) -> String {
    let made = next_name(&cluster.this_node).map(|next| identities::make_token(client, &next, None));
    match made {
        Some(Ok(made)) => format!(
            "To add the next node, {}, run on it within a day:\n  {}\nFor a node with another name, run here:\n  \
             mainstay cluster token create NODE",
            made.node,
            identities::join_line(&made)
        ),
        _ => "To add the next node, run here:\n  mainstay cluster token create NODE".to_owned(),
    }
}

/// The name after one that ends with a number.
fn next_name(name: &str) -> Option<String> {
    let stem = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let number: u32 = name[stem.len()..].parse().ok()?;
    (!stem.is_empty() && !name[stem.len()..].starts_with('0')).then(|| format!("{stem}{}", number + 1))
}

/// Text for the operator if other machines cannot reach the node that made the cluster.
fn for_one_machine(cluster: &ClusterView) -> Option<String> {
    let address = &cluster.nodes.iter().find(|node| node.name == cluster.this_node)?.agent_address;
    let is_loopback = address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    is_loopback.then(|| {
        format!(
            "only this machine reaches {address}, so no other one can join. If others are to join, stop agent and engine, empty \
             the state directory, and make the cluster again with another --address."
        )
    })
}

/// The nodes of a cluster.
struct Nodes(ClusterView);

impl Nodes {
    fn list(&self) -> List {
        match self.0.as_of_ms {
            Some(0) => list_of(&self.0),
            _ => list_of(&self.0).above(head(&self.0)),
        }
    }
}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.nodes.serialize(serializer)
    }
}

pub fn node(command: &NodeCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        NodeCommand::List(args) => {
            watch::list(*args, output, || Ok(Nodes(client.get("/v1/cluster")?)), Nodes::list)?;
        }
        NodeCommand::Cordon { name } => placement::cordon(name, true, client, output)?,
        NodeCommand::Uncordon { name } => placement::cordon(name, false, client, output)?,
        NodeCommand::Drain { name, wait } => return placement::drain(name, *wait, client, output),
        NodeCommand::Upgrade { always, drain, interrupt, wait } => {
            let (always, drain, interrupt) = (*always, *drain, *interrupt);
            let how = upgrade::How { always, drain, interrupt, wait_s: wait.wait_s };
            return upgrade::upgrade(how, client, output);
        }
        NodeCommand::Maintenance { name, set } => {
            let path = format!("/v1/nodes/{}", checked_name(name)?);
            placement::maintain(&path, *set, client, output)?;
        }
        NodeCommand::ConfirmOff { node, yes } => {
            confirm_off(node, *yes)?;
            let accepted: Accepted = client.post(&format!("/v1/nodes/{node}/confirm-off"), &())?;
            output.result(&accepted, |accepted: &Accepted| accepted.message.clone())?;
        }
        NodeCommand::Remove { name, force } => nodes::remove(name, *force, client, output)?,
        NodeCommand::Replace { name, with } => nodes::replace(name, with, client, output)?,
        NodeCommand::SetAddress { name, address, engine_address, unseen } => {
            let (address, engine_address, unseen) = (address.clone(), engine_address.clone(), *unseen);
            let request = NodeAddress { address, engine_address, unseen };
            nodes::set_address(name, &request, client, output)?;
        }
    }
    Ok(0)
}

/// Has the operator type the name of a node that is to count as switched off.
fn confirm_off(name: &str, yes: bool) -> Outcome<()> {
    if yes {
        return Ok(());
    }
    let remedy = format!("To say so without a question, run `mainstay node confirm-off {name} --yes`.");
    if !std::io::stdin().is_terminal() {
        let message =
            format!("if node {name} still runs, two nodes may serve, and there is no terminal to ask on");
        return Err(Failure::new(Code::NotConfirmed, message, remedy));
    }
    eprint!("If node {name} still runs, two nodes may serve at the same time. Is it off? Type its name: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && answer.trim() == name {
        return Ok(());
    }
    Err(Failure::new(Code::NotConfirmed, format!("node {name} is not said to be off"), remedy)
        .with_exit(exit::FAILED))
}

/// One line about the cluster.
pub fn head(cluster: &ClusterView) -> String {
    if let Some(ms) = cluster.joining_ms {
        return format!(
            "cluster {}: {} has been joining for {} s and has not received the state of the cluster",
            cluster.name,
            cluster.this_node,
            ms / 1000
        );
    }
    let age = match cluster.as_of_ms {
        Some(0) => None,
        Some(ms) => Some(format!("what follows is as of {} ago", super::resource::duration(ms))),
        None => Some("it is not known how old the state is that follows".to_owned()),
    };
    if let Some(age) = age {
        return format!(
            "cluster {}: no majority of the voters answers {}; {age}",
            cluster.name, cluster.this_node
        );
    }
    // A node that receives no entries counts for no majority.
    let lives = |node: &&NodeView| node.status == NodeStatus::Alive && node.log_lag_ms.is_none();
    let alive = cluster.nodes.iter().filter(lives).count();
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

fn table_of(cluster: &ClusterView) -> String {
    list_of(cluster).text(Form::Table, output::columns())
}

pub(super) fn list_of(cluster: &ClusterView) -> List {
    let row = |node: &NodeView| {
        let status = match (node.status, node.connected, node.log_lag_ms) {
            (NodeStatus::Alive, ..) if cluster.as_of_ms != Some(0) && node.name != cluster.this_node => {
                match cluster.as_of_ms {
                    Some(ms) => format!("alive {} ago", super::resource::duration(ms)),
                    None => "alive once, not known when".to_owned(),
                }
            }
            (NodeStatus::Alive, true, Some(ms)) => format!("receives no entries for {} s", ms / 1000),
            (NodeStatus::Alive, true, None) => "alive".into(),
            (NodeStatus::Alive, false, _) => "alive, no connection".into(),
            (NodeStatus::Dead, ..) => "dead".into(),
        };
        let role = match (node.leader, node.voter) {
            (true, _) => "leader",
            (false, true) => "voter",
            (false, false) if node.candidate => "joins, no vote yet",
            (false, false) => "stands by, no vote",
        };
        let role = if node.witness { format!("{role}, witness") } else { role.to_owned() };
        let free = match node.pool_free_bytes {
            Some(bytes) => Cell::bytes(&[bytes]),
            None if node.witness => Cell::new("", ""),
            None => Cell::new("?", ""),
        };
        let alone = match (&node.cordon, &node.maintenance) {
            (_, Some(_)) => ", in maintenance",
            (Some(cordon), None) if cordon.drain => ", drained",
            (Some(_), None) => ", cordoned",
            (None, None) => "",
        };
        let status = status + alone;
        vec![
            Cell::from(node.name.clone()),
            status.into(),
            role.into(),
            free,
            node.agent_address.clone().into(),
            node.engine_address.clone().into(),
            node.id.to_string().into(),
            node.level.to_string().into(),
            node.generation.to_string().into(),
        ]
    };
    List::new(
        &["NODE", "STATUS", "ROLE", "FREE", "AGENT", "ENGINE"],
        &["ID", "LEVEL", "GENERATION"],
        cluster.nodes.iter().map(row),
    )
}

#[cfg(test)]
mod tests {
    use super::{head, table_of};
    use mainstay_api::rest::ClusterView;

    /// An answer of a release that did not tell the age.
    fn answer() -> ClusterView {
        let node = |id: u32, name: &str| {
            serde_json::json!({
                "id": id, "name": name, "agent_address": "", "engine_address": "", "status": "alive",
                "generation": 1, "voter": true, "leader": false, "connected": true, "pool_free_bytes": null
            })
        };
        let view = serde_json::json!({
            "id": 1, "name": "c", "revision": 1, "leader": "b", "this_node": "a", "lease_ms": 2000,
            "heartbeat_ms": 200, "nodes": [node(1, "a"), node(2, "b")]
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn the_name_of_the_next_node_follows_from_a_number_at_the_end() {
        let next = |name: &str| super::next_name(name);
        assert_eq!((next("n1").as_deref(), next("db-9").as_deref()), (Some("n2"), Some("db-10")));
        assert_eq!((next("alpha"), next("7"), next("n07"), next("n")), (None, None, None, None));
    }

    #[test]
    fn the_age_of_a_state_is_told_and_that_it_is_unknown() {
        let mut view = answer();
        assert!(head(&view).contains("2 of 2 nodes alive"), "{}", head(&view));
        view.as_of_ms = Some(90_000);
        assert!(head(&view).contains("no majority") && head(&view).contains(" ago"), "{}", head(&view));
        assert!(table_of(&view).contains(" ago"), "{}", table_of(&view));
        view.as_of_ms = None;
        assert!(head(&view).contains("it is not known how old the state is"), "{}", head(&view));
        assert!(table_of(&view).contains("alive once, not known when"), "{}", table_of(&view));
        view.joining_ms = Some(12_400);
        assert_eq!(
            head(&view),
            "cluster c: a has been joining for 12 s and has not received the state of the cluster"
        );
        let sent = serde_json::to_string(&view).unwrap();
        assert_eq!(serde_json::from_str::<ClusterView>(&sent).unwrap(), view);
    }
}
