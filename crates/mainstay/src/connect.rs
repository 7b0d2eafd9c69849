//! Which agent a command talks to.

use crate::cli::Target;
use crate::failure::{Failure, Outcome};
use crate::lab::state::{Lab, Node};
use mainstay_api::client::{Client, Stale};
use std::sync::Once;

/// A client for `--socket`, or for an agent inside a lab.
pub fn client(target: &Target) -> Outcome<Client> {
    let Some(name) = &target.lab else {
        return Ok(Client::new(&target.socket).with_on_stale(say_age));
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
    Ok(Client::new(lab.agent_socket(node)?).with_on_stale(say_age))
}

/// Says once how old the answers are: on standard error, because standard output may be read by a
/// program.
fn say_age(stale: &Stale) {
    static SAID: Once = Once::new();
    SAID.call_once(|| eprintln!("{}", age(stale)));
}

fn age(Stale { node, age_ms }: &Stale) -> String {
    let shown = match age_ms {
        Some(ms) => format!("what it shows is as of {} s ago", ms / 1000),
        None => "the age of what it shows is unknown".to_owned(),
    };
    format!("warning: {node} could not confirm its state with a majority of the voters; {shown}")
}

/// Whether a node has power and is not paused.
fn answers(lab: &Lab, node: &Node) -> bool {
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
