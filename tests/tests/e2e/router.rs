//! Clients that find the database through a router, and not by its floating address.

use crate::cluster::{Cluster, DB, LIMIT, NODES, under_load_through};
use crate::failover::lose_primary;
use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::{CLIENT, Lab};
use mainstay_tests::{now_us, wait_for};
use std::process::Child;

/// Where the router listens, in the client's network.
const DOOR: &str = "127.0.0.1:6446";
const STATUS: &str = "127.0.0.1:6440";
/// Name of the router's log in the lab's directory.
const LOG: &str = "router.log";

/// A router in the client's network, which ends with this.
struct Router {
    running: Child,
}

impl Router {
    fn start(lab: &Lab) -> Result<Self> {
        let program = lab.binary().to_string_lossy().into_owned();
        let agents = NODES.map(|node| lab.address(node)).into_iter().collect::<Result<Vec<_>>>()?.join(",");
        let (pid, name, port) = (pid_file(lab), DB.name, DB.port);
        let script = format!(
            "echo $$ >{pid}; exec {program} router --agent {agents} --service {name} --port {port} --listen {DOOR} --status-listen {STATUS}"
        );
        Ok(Self { running: lab.spawn(CLIENT, &["sh", "-ec", &script], LOG)? })
    }

    /// Ends it as a supervisor does: it drains its sessions first.
    fn end(mut self, lab: &Lab) -> Result<()> {
        lab.shell(CLIENT, &format!("kill -TERM $(cat {})", pid_file(lab)))?;
        wait_for("the end of the router", LIMIT, || {
            let status = self.running.try_wait()?.context("the router still runs")?;
            ensure!(status.success(), "the router ended with {status}");
            Ok(())
        })
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        // The router has ended already unless the scenario failed.
        drop(self.running.kill());
        drop(self.running.wait());
    }
}

/// File with the process id of the router, as the client's network sees it.
fn pid_file(lab: &Lab) -> String {
    lab.dir().join("router.pid").to_string_lossy().into_owned()
}

/// The body of the router's answer to `/primary`.
fn primary_of_router(lab: &Lab) -> Result<String> {
    let place = STATUS.replace(':', "/");
    let script = format!("exec 3<>/dev/tcp/{place}; printf 'GET /primary HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3");
    let answer = lab.exec(CLIENT, &["timeout", "10", "bash", "-c", &script])?;
    Ok(answer.split_once("\r\n\r\n").context("an answer with a head")?.1.to_owned())
}

fn wait_for_primary(lab: &Lab, node: &str) -> Result<()> {
    wait_for(&format!("a router that leads to {node}"), LIMIT, || {
        let said = primary_of_router(lab)?;
        ensure!(said.starts_with(&format!("{}: {node} in epoch ", DB.name)), "the router says: {said}");
        Ok(())
    })
}

pub fn clients_of_a_router_commit_again_after_a_power_cut(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    let router = Router::start(lab)?;
    let scenario = || {
        wait_for_primary(lab, &cluster.primary()?)?;
        under_load_through(cluster, DOOR, |cluster, ledger| {
            let (lost, ms) = lose_primary(cluster, ledger)?;
            eprintln!("  {lost} lost, {ms:.0} ms to the first commit through the router");
            wait_for_primary(lab, &cluster.primary()?)?;
            lab.start(&lost)?;
            lab.wait_in_sync(DB.resource, LIMIT)?;

            lab.cli(&["service", "move", DB.name, "--to", &lost])?;
            wait_for("the service at its first node", LIMIT, || {
                let node = lab.wait_running(DB.name, LIMIT)?;
                ensure!(node == lost, "it runs on {node}");
                Ok(())
            })?;
            wait_for_primary(lab, &lost)?;
            ledger.wait_commit(now_us(), LIMIT).map(drop).context("through the router, after a move")
        })
    };
    let log = || std::fs::read_to_string(lab.dir().join(LOG)).unwrap_or_default();
    scenario().with_context(|| format!("the router's log:\n{}", log()))?;
    router.end(lab).with_context(|| format!("the router's log:\n{}", log()))
}
