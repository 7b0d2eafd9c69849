//! Which agent a command talks to.

use crate::cli::Target;
use crate::failure::{Failure, Outcome};
use crate::lab::state::{Lab, Node};
use mainstay_api::client::Client;

/// A client for `--socket`, or for an agent inside a lab.
pub fn client(target: &Target) -> Outcome<Client> {
    let Some(name) = &target.lab else {
        return Ok(Client::new(&target.socket));
    };
    let lab = Lab::load(&crate::lab::state::base_dir(None), name)?;
    let node = match &target.node {
        Some(node) => lab.node(node)?,
        None => lab.nodes.iter().find(|node| answers(&lab, node)).ok_or_else(|| {
            Failure::new(
                "lab-down",
                format!("no node of lab `{name}` runs"),
                format!("`mainstay lab status --name {name}` shows them; start or resume one"),
            )
        })?,
    };
    lab.awake(&node.name)?;
    Ok(Client::new(lab.agent_socket(node)?))
}

/// Whether a node has power and is not paused.
fn answers(lab: &Lab, node: &Node) -> bool {
    lab.init_pid(node).is_some() && lab.awake(&node.name).is_ok()
}
