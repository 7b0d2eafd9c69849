//! Choice of the agent that a command talks to.

use crate::failure::{Code, Failure, Outcome};
use crate::members::{self, Members, Node, lab_name};
use crate::{interrupt, output};
use clap::Args;
use mainstay_client::{Client, Method, OnWait, Stale};
use std::path::PathBuf;
use std::sync::Once;

/// Options that choose the agent to ask and the form of the answer.
#[derive(Args, Debug)]
pub struct Target {
    /// Print answers and errors as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Socket of the agent to ask.
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_SOCKET",
        default_value = "/run/mainstay/agent.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// Ask an agent inside this lab instead of the one behind --socket. With `mainstay lab` it
    /// means the same as --name.
    #[arg(long, global = true, value_name = "NAME", value_parser = lab_name)]
    pub lab: Option<String>,
    /// With --lab: the node whose agent is asked. Default: the first node that runs.
    #[arg(long = "node", id = "lab_node", global = true, requires = "lab", value_name = "NODE")]
    pub node: Option<String>,
}

impl Target {
    /// Advice to run a command of this machine inside a node of the lab.
    pub fn inside(&self, verb: &str) -> String {
        let node = self.node.as_deref().unwrap_or("NODE");
        let name = self.lab.as_deref().unwrap_or("NAME");
        format!(
            "To run it inside a node of the lab: `mainstay lab exec {node} --name {name} -- mainstay {verb}`."
        )
    }
}

/// Failure of an option that does nothing for a command. Without it the command would act on
/// another place than the operator means.
pub fn idle(option: &str, why: &str, remedy: impl Into<String>) -> Failure {
    Failure::new(Code::OptionWithoutEffect, format!("{option} has no effect here: {why}"), remedy)
}

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

/// Names go into request paths; the API allows only these characters in them.
pub fn checked_name(name: &str) -> Outcome<&str> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if (1..=32).contains(&name.len()) && name.chars().all(fits) {
        return Ok(name);
    }
    let what = match name {
        "" => "a name is empty".to_owned(),
        name => format!("`{}` is not a name", name.chars().take(80).collect::<String>()),
    };
    Err(Failure::new(Code::BadName, what, "Names have 1 to 32 characters out of a-z, 0-9 and the dash."))
}

/// Tells what the operator should know while requests are under way.
fn told(client: Client) -> Client {
    client.with_on_stale(say_age).with_on_wait(OnWait { change: interrupt::change_begins, slow: say_slow })
}

fn say_slow(method: &Method, path: &str) {
    output::waits_for(long_step(method, path));
}

/// Returns words for the work of the agent while a request is under way, such as `for …`.
fn long_step(method: &Method, path: &str) -> &'static str {
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

    #[test]
    fn a_name_cannot_leave_its_path() {
        assert!(checked_name("db-1").is_ok());
        for name in ["", "../nodes", "a b", "DB", "a?b", &"x".repeat(33)] {
            assert!(checked_name(name).is_err(), "{name}");
        }
    }
}
