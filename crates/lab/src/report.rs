//! `mainstay lab status`.

use super::cgroup;
use super::state::{CLIENT, Lab, Phase};
use crate::failure::Outcome;
use crate::output::{Output, table};
use mainstay_types::LabNodeState;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Serialize)]
struct LabView {
    name: String,
    dir: PathBuf,
    whole: bool,
    nodes: Vec<LabNodeView>,
    client: String,
    cuts: Vec<(String, String)>,
    isolated: Vec<String>,
}

#[derive(Serialize)]
struct LabNodeView {
    name: String,
    address: String,
    /// Whether the node runs no engine and holds no data.
    witness: bool,
    state: LabNodeState,
    init: Option<u32>,
    processes: usize,
    /// The agent's socket as seen from outside.
    socket: Option<PathBuf>,
}

pub fn run(lab: &Lab, output: Output) -> Outcome<()> {
    let mut nodes = Vec::new();
    for node in &lab.nodes {
        let group = lab.cgroup(&node.name)?;
        let init = lab.init_pid(node);
        let state = match (init, node.init) {
            (Some(_), _) if cgroup::is_frozen(&group) => LabNodeState::Paused,
            (Some(_), _) => LabNodeState::Running,
            (None, Some(_)) => LabNodeState::Died,
            (None, None) => LabNodeState::NoPower,
        };
        nodes.push(LabNodeView {
            name: node.name.clone(),
            address: node.address.clone(),
            witness: node.witness,
            state,
            init,
            processes: cgroup::processes(&group).len(),
            socket: lab.agent_socket(node).ok(),
        });
    }
    let view = LabView {
        name: lab.name.clone(),
        dir: lab.dir.clone(),
        whole: lab.phase == Phase::Up,
        nodes,
        client: lab.client().address,
        cuts: lab.cuts.iter().cloned().collect(),
        isolated: lab.isolated.iter().cloned().collect(),
    };
    output.result(&view, words)
}

fn words(view: &LabView) -> String {
    let row = |node: &LabNodeView| {
        let role = if node.witness { ", witness" } else { "" };
        let state = format!("{}{role}", node.state);
        vec![node.name.clone(), node.address.clone(), state, node.processes.to_string()]
    };
    let mut rows: Vec<_> = view.nodes.iter().map(row).collect();
    rows.push(vec![CLIENT.into(), view.client.clone(), "network only".into(), String::new()]);
    let mut text = format!("lab {} in {}\n", view.name, view.dir.display());
    text += &table(&["NODE", "ADDRESS", "STATE", "PROCESSES"], &rows);
    for (one, other) in &view.cuts {
        text += &format!("\nnothing passes between {one} and {other}");
    }
    for node in &view.isolated {
        text += &format!("\n{node} is cut off from everything");
    }
    if !view.whole {
        let name = &view.name;
        text +=
            &format!("\nits making did not finish; `mainstay lab down --name {name}` removes what there is");
    }
    text
}
