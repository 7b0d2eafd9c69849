//! Which agent a command talks to.

use crate::cli::Target;
use crate::failure::{Failure, Outcome};
use crate::lab::state::Lab;
use mainstay_api::client::Client;

/// A client for `--socket`, or for an agent inside a lab.
pub fn client(target: &Target) -> Outcome<Client> {
    let Some(name) = &target.lab else {
        return Ok(Client::new(&target.socket));
    };
    let lab = Lab::load(&crate::lab::state::base_dir(None), name)?;
    let node = match &target.node {
        Some(node) => lab.node(node)?,
        None => lab.nodes.iter().find(|node| lab.init_pid(node).is_some()).ok_or_else(|| {
            Failure::new(
                "lab-down",
                format!("no node of lab `{name}` runs"),
                format!("mainstay lab start n1 --name {name}"),
            )
        })?,
    };
    Ok(Client::new(lab.agent_socket(node)?))
}
