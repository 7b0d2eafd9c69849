//! `mainstay node upgrade`: the installed version runs on this machine, with as little interruption
//! as a planned move has.
//!
//! ```text
//!   look ──▶ can services stay? ── yes ──▶ agent anew ──▶ successor announced ──▶ engine anew ──▶ in sync
//!     │        └─ no ──▶ drain ──▶ agent anew ──▶ engine anew ──▶ in sync ──▶ uncordon
//!     │                    └─ something cannot leave: uncordon, and nothing was started anew
//!     └─ both run what is installed: nothing to do
//! ```
//!
//! The agent comes first: services run on while it starts anew. Where they cannot stay they start
//! once, after the engine.
//!
//! Guarantees
//! - The engine of a node on which a primary is left is not started anew, unless it leaves its
//!   devices to the next one or the operator wants the interruption.
//! - A node that another command has drained or cordoned stays so.
//! - If it fails on the way, the error names the command that ends the drain.

use super::{follow, placement};
use crate::failure::{Code, Failure, Outcome, exit};
use crate::interrupt::GoesOn;
use crate::output::Output;
use mainstay_api::rest::{
    Accepted, ClusterView, CordonSet, EngineSuccessor, NodeStatus, ProgramView, ProgramsView, ResourceView,
    ServicePhase, StatusView,
};
use mainstay_client::Client;
use serde::Serialize;
use std::process::Command;
use std::time::{Duration, Instant};

const ENGINE_UNIT: &str = "mainstay-engine.service";
const AGENT_UNIT: &str = "mainstay-agent.service";
/// How long the engine may take from the announcement of its successor until it is told to end.
const ANNOUNCED_MS: u64 = 10_000;
/// How long services may take to be found again by an agent that was started anew.
const STEADY_WITHIN: Duration = Duration::from_secs(20);
/// How long they have to run steadily before their engine is started anew.
const STEADY_FOR: Duration = Duration::from_secs(2);
const STEADY_PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
pub struct How {
    pub always: bool,
    pub drain: bool,
    pub interrupt: bool,
    pub wait_s: u64,
}

#[derive(Serialize)]
struct Upgraded {
    node: Option<String>,
    /// Programs that were started anew.
    restarted: Vec<&'static str>,
    /// Why resources could not leave the node; then nothing was started anew.
    stays: Vec<String>,
}

pub fn upgrade(how: How, client: &Client, output: Output) -> Outcome<u8> {
    let programs: ProgramsView = client.get("/v1/programs")?;
    let due = |program: &Option<ProgramView>| {
        program.as_ref().is_some_and(|program| how.always || program.replaced)
    };
    let (agent, engine) = (due(&programs.agent), due(&programs.engine));
    let cluster = client.get::<StatusView>("/v1/status")?.cluster;
    let node = cluster.as_ref().map(|cluster| cluster.this_node.clone());
    let mut upgraded = Upgraded { node: node.clone(), restarted: Vec::new(), stays: Vec::new() };
    if !agent && !engine {
        return told(&upgraded, output);
    }
    ensure_here(&programs)?;
    if let Some(cluster) = &cluster {
        ensure_majority(cluster)?;
    }
    // A replica that is copied to for hours, or that follows in mode A, is not waited for.
    let awaited = match &node {
        Some(node) => in_sync(client.get("/v1/resources")?, node),
        None => Vec::new(),
    };
    let in_place = engine && node.is_some() && !how.interrupt && !how.drain && {
        match can_stay(client) {
            Ok(()) => true,
            Err(failure) => {
                output.note(&format!("services cannot stay: {}", failure.problem.message));
                false
            }
        }
    };
    let drains = engine && !how.interrupt && !in_place;
    let back = match (&cluster, &node) {
        (Some(cluster), Some(node)) if drains => way_back(cluster, node),
        _ => None,
    };
    let undo = back.as_ref().map(|(_, command)| command.clone());
    let hint = undo.as_ref().map_or_else(String::new, |undo| format!(" Then run `{undo}`."));
    let with_hint = |mut failure: Failure| {
        failure.problem.remedy += &hint;
        failure
    };
    let undrain = || -> Outcome<()> {
        if let (Some(node), Some((cordon, _))) = (&node, &back) {
            let _: Accepted = client.put(&format!("/v1/nodes/{node}/cordon"), cordon)?;
        }
        Ok(())
    };
    let mut _told = None;
    if drains && let Some(node) = &node {
        output.note(&format!("draining {node} …"));
        placement::begin_drain(node, client)?;
        _told = undo.as_ref().map(|undo| GoesOn::tell(format!("Node {node} is drained until `{undo}`.")));
        upgraded.stays = placement::emptied(node, how.wait_s, client).map_err(with_hint)?;
        if !upgraded.stays.is_empty() {
            undrain()?;
            return told(&upgraded, output);
        }
    }
    for (role, unit, old) in
        [("agent", AGENT_UNIT, &programs.agent), ("engine", ENGINE_UNIT, &programs.engine)]
    {
        if (role == "engine" && !engine) || (role == "agent" && !agent) {
            continue;
        }
        match &node {
            Some(_) if role == "engine" && in_place => announce_soon(client)?,
            Some(node) if role == "engine" && agent => wait_steady(client, node),
            _ => {}
        }
        output.note(&format!("starting the {role} anew …"));
        restart(unit, &hint)?;
        let before = old.as_ref().map(|program| program.pid);
        follow(&format!("waiting for the {role}"), how.wait_s, || {
            // It does not answer while it starts.
            let Ok(now) = client.get::<ProgramsView>("/v1/programs") else { return Ok(None) };
            // The agent is of no use before it has found the engine.
            if programs.engine.is_some() && now.engine.is_none() {
                return Ok(None);
            }
            let of_role = if role == "engine" { now.engine } else { now.agent };
            Ok(of_role.filter(|program| Some(program.pid) != before))
        })
        .map_err(with_hint)?;
        upgraded.restarted.push(role);
    }
    if let Some(node) = &node {
        follow(&format!("waiting until the replicas on {node} are in sync"), how.wait_s, || {
            let Ok(resources) = client.get::<Vec<ResourceView>>("/v1/resources") else { return Ok(None) };
            let known = |name: &&String| resources.iter().any(|resource| resource.name == **name);
            let late: Vec<String> = awaited.iter().filter(known).cloned().collect();
            let now = in_sync(resources.clone(), node);
            Ok(late.iter().all(|name| now.contains(name)).then_some(()))
        })
        .map_err(with_hint)?;
        undrain().map_err(with_hint)?;
    }
    told(&upgraded, output)
}

/// Asks whether the next engine could take the devices of this one.
///
/// # Errors
/// When the services cannot stay on the node meanwhile.
fn can_stay(client: &Client) -> Outcome<()> {
    client.get::<Accepted>("/v1/engine/successor").map(drop)?;
    Ok(())
}

/// Announces that the next engine takes the devices of this one, as soon as the agent, which may
/// have just started, has found its services again.
///
/// # Errors
/// When they do not run steadily within [`STEADY_WITHIN`].
fn announce_soon(client: &Client) -> Outcome<()> {
    let end = Instant::now() + STEADY_WITHIN;
    loop {
        // Only a question is repeated, because each announcement is in the audit log.
        let announced = can_stay(client).and_then(|()| {
            let successor = EngineSuccessor { within_ms: ANNOUNCED_MS };
            client.post("/v1/engine/successor", &successor).map(|Accepted { .. }| ()).map_err(Into::into)
        });
        match announced {
            Err(_) if Instant::now() < end => std::thread::sleep(STEADY_PAUSE),
            announced => return announced,
        }
    }
}

/// Waits until the services of a node have run steadily for a moment. An agent that was started
/// anew looks at each of them first. One whose device goes meanwhile would count as failed. If they
/// do not come to that in [`STEADY_WITHIN`], the upgrade goes on.
fn wait_steady(client: &Client, node: &str) {
    let end = Instant::now() + STEADY_WITHIN;
    let mut since = None;
    while Instant::now() < end {
        let steady = client.get::<StatusView>("/v1/status").is_ok_and(|status| {
            let mut here = status.services.iter().filter(|of| of.phase_node.as_deref() == Some(node));
            here.all(|of| of.phase == ServicePhase::Running || of.phase.is_silent())
        });
        let began = *since.get_or_insert_with(Instant::now);
        if !steady {
            since = None;
        } else if began.elapsed() >= STEADY_FOR {
            return;
        }
        std::thread::sleep(STEADY_PAUSE);
    }
}

/// The cordon that a node has now, to be set again after the drain, and the command for it. `None`
/// if the node is drained already: it stays so.
fn way_back(cluster: &ClusterView, node: &str) -> Option<(CordonSet, String)> {
    let known = cluster.nodes.iter().find(|known| known.name == node);
    match known.and_then(|known| known.cordon.as_ref()).map(|cordon| cordon.drain) {
        Some(true) => None,
        Some(false) => Some((CordonSet { on: true, drain: false }, format!("mainstay node cordon {node}"))),
        None => Some((CordonSet { on: false, drain: false }, format!("mainstay node uncordon {node}"))),
    }
}

/// The resources whose replica on a node is in sync.
fn in_sync(resources: Vec<ResourceView>, node: &str) -> Vec<String> {
    let is_in_sync = |resource: &ResourceView| {
        resource.replicas.iter().any(|replica| replica.node == node && replica.in_sync)
    };
    resources.into_iter().filter(is_in_sync).map(|resource| resource.name).collect()
}

fn told(upgraded: &Upgraded, output: Output) -> Outcome<u8> {
    output.result(upgraded, |upgraded| {
        let node = upgraded.node.as_deref().unwrap_or("this machine");
        match (upgraded.stays.is_empty(), upgraded.restarted.as_slice()) {
            (false, _) => format!(
                "something cannot leave {node}, so nothing was started anew:\n  {}\nTo stop it there meanwhile: `mainstay node upgrade --interrupt`",
                upgraded.stays.join("\n  ")
            ),
            (true, []) => format!("agent and engine of {node} run what is installed"),
            (true, restarted) => format!("{node}: started anew and in sync: {}", restarted.join(" and ")),
        }
    })?;
    Ok(if upgraded.stays.is_empty() { 0 } else { exit::ATTENTION })
}

/// # Errors
/// When the agent that answers runs on another machine than this command.
fn ensure_here(programs: &ProgramsView) -> Outcome<()> {
    let is_here = |program: &ProgramView| {
        let command = std::fs::read_to_string(format!("/proc/{}/cmdline", program.pid)).unwrap_or_default();
        command.split('\0').nth(1) == Some("agent")
    };
    if programs.agent.as_ref().is_some_and(is_here) {
        return Ok(());
    }
    Err(Failure::new(
        Code::Unreachable,
        "the agent that answers does not run on this machine".to_owned(),
        "Run `mainstay node upgrade` on the machine itself, without --node and --agent.".to_owned(),
    ))
}

/// # Errors
/// When the other voters that live are no majority: while the agent starts anew, no node could
/// renew its lease. A cluster whose voters all live stands that for a moment.
fn ensure_majority(cluster: &ClusterView) -> Outcome<()> {
    let voters = || cluster.nodes.iter().filter(|node| node.voter);
    let lives = |name: &str, status: NodeStatus| name != cluster.this_node && status == NodeStatus::Alive;
    let others = voters().filter(|node| lives(&node.name, node.status)).count();
    let dead: Vec<&str> =
        voters().filter(|node| node.status != NodeStatus::Alive).map(|node| node.name.as_str()).collect();
    let is_voter = voters().any(|node| node.name == cluster.this_node);
    if !is_voter || dead.is_empty() || 2 * others > voters().count() {
        return Ok(());
    }
    Err(Failure::new(
        Code::VoteNeeded,
        format!("without {} no majority of the voters lives: {} is dead", cluster.this_node, dead.join(", ")),
        "Bring the dead node back first.".to_owned(),
    ))
}

fn restart(unit: &str, hint: &str) -> Outcome<()> {
    let failed = |why: String| {
        let remedy = format!("Start it anew in the way of this machine.{hint}");
        Failure::new(Code::Io, format!("`systemctl restart {unit}` failed: {why}"), remedy)
    };
    let done = Command::new("systemctl")
        .args(["restart", unit])
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(failed(said.lines().next().unwrap_or("it says nothing").to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{CordonView, NodeView};

    fn cluster(dead: &[&str], voters: &[&str]) -> ClusterView {
        let node = |name: &&str| {
            let status = if dead.contains(name) { "dead" } else { "alive" };
            let view = serde_json::json!({
                "id": 1, "name": name, "agent_address": "", "engine_address": "", "status": status,
                "generation": 1, "voter": true, "leader": false, "connected": true, "pool_free_bytes": null
            });
            serde_json::from_value::<NodeView>(view).unwrap()
        };
        let nodes: Vec<NodeView> = voters.iter().map(node).collect();
        let view = serde_json::json!({
            "id": 1, "name": "c", "revision": 1, "leader": null, "this_node": "n1", "lease_ms": 2000,
            "heartbeat_ms": 400, "nodes": nodes
        });
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn an_agent_that_the_majority_rests_on_is_not_started_anew() {
        for (dead, voters, is_fine) in [
            (&[][..], &["n1"][..], true),
            (&[], &["n1", "n2"], true),
            (&[], &["n1", "n2", "n3"], true),
            (&["n2"], &["n1", "n2", "n3"], false),
            (&["n3"], &["n1", "n2", "n3", "n4", "n5"], true),
            (&["n3", "n4"], &["n1", "n2", "n3", "n4", "n5"], false),
            (&["n3"], &["n2", "n3", "n4"], true),
        ] {
            let refused = ensure_majority(&cluster(dead, voters));
            assert_eq!(refused.is_ok(), is_fine, "{dead:?} of {voters:?}");
        }
    }

    #[test]
    fn a_node_gets_back_the_cordon_that_it_had_before_the_drain() {
        let with = |cordon: Option<bool>| {
            let mut cluster = cluster(&[], &["n1", "n2"]);
            cluster.nodes[1].cordon =
                cordon.map(|drain| CordonView { since_ms: 1, drain, primaries: Vec::new() });
            way_back(&cluster, "n2")
        };
        let set = |on| CordonSet { on, drain: false };
        assert_eq!(with(None), Some((set(false), "mainstay node uncordon n2".into())));
        assert_eq!(with(Some(false)), Some((set(true), "mainstay node cordon n2".into())));
        assert_eq!(with(Some(true)), None, "an operator has drained it, and it stays so");
    }
}
