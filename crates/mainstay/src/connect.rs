//! Choice of the agent that a command talks to.

use crate::cli::Target;
use crate::failure::{Code, Failure, Outcome};
use crate::members::{self, Members, Node};
use crate::{interrupt, output};
use mainstay_client::{Client, Method, OnWait, Stale};
use std::sync::Once;

/// A client for `--socket`, or for an agent inside a lab.
pub fn client(target: &Target) -> Outcome<Client> {
    let Some(name) = &target.lab else {
        return Ok(told(Client::new(&target.socket)));
    };
    let lab: Members = members::read(&members::base_dir(None).join(name))?;
    let node = match &target.node {
        Some(node) => lab.node(node)?,
        None => lab.nodes.iter().find(|node| answers(&lab, node)).ok_or_else(|| {
            Failure::new(
                Code::LabDown,
                format!("no node of lab `{name}` runs"),
                format!("`mainstay lab status --name {name}` shows them; start or resume one"),
            )
        })?,
    };
    lab.awake(&node.name)?;
    Ok(told(Client::new(lab.agent_socket(node)?)))
}

/// Tells what the operator should know while requests are under way.
fn told(client: Client) -> Client {
    client.with_on_stale(say_age).with_on_wait(OnWait { change: interrupt::change_begins, slow: say_slow })
}

fn say_slow(method: &Method, path: &str) {
    output::waits_for(what_takes_long(method, path));
}

/// Returns words for the work of the agent while a request is under way, such as `for …`.
fn what_takes_long(method: &Method, path: &str) -> &'static str {
    match (method.as_str(), path) {
        ("GET", _) => "for the agent's answer: it asks the other nodes, and those that are dead cost time",
        (_, "/v1/cluster/init") => "for the agent to make the cluster",
        (_, "/v1/cluster/join") => {
            "for a member of the cluster to reach this node, and for the cluster's state to arrive here"
        }
        ("POST", "/v1/resources") => "for the nodes to make their replicas, and for the devices",
        ("PUT", "/v1/services") => "for the nodes to say whether they can run the service",
        (_, path) if path.starts_with("/v1/services/") && path.ends_with("/move") => {
            "for the service's file system to be let go by other programs"
        }
        _ => "for a majority of the nodes to record the change",
    }
}

/// Says once how old the answers are: on standard error, because standard output may be read by a
/// program.
fn say_age(stale: &Stale) {
    static SAID: Once = Once::new();
    SAID.call_once(|| output::say(&age(stale)));
}

fn age(Stale { node, age_ms }: &Stale) -> String {
    let shown = match age_ms {
        Some(ms) => format!("what it shows is as of {} s ago", ms / 1000),
        None => "the age of what it shows is unknown".to_owned(),
    };
    format!("warning: {node} could not confirm its state with a majority of the voters; {shown}")
}

/// Whether a node has power and is not paused.
fn answers(lab: &Members, node: &Node) -> bool {
    lab.init_pid(node).is_some() && lab.awake(&node.name).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_answer_names_its_node_and_its_age() {
        let of = |age_ms| age(&Stale { node: "n3".into(), age_ms });
        assert!(
            of(Some(12_400)).contains("n3 could not confirm") && of(Some(12_400)).ends_with("as of 12 s ago")
        );
        assert!(of(None).ends_with("is unknown"));
    }
}
