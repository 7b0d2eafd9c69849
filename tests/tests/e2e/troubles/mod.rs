//! Troubles that users of comparable systems reported, and inputs of the same kinds, each with its
//! right outcome.
//!
//! The tests share a lab of three nodes that holds no database, so that the group can run beside
//! the others: `make e2e ARGS=troubles`. A test removes the resources and services that it made.
//! After a failure the next test gets a new lab.

mod addresses;
mod cluster;
mod daily;
mod hooks;
mod mounts;
mod moves;
mod processes;
mod replicas;
mod slips;
mod templates;

use crate::cluster::{LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::NodeStatus;
use mainstay_tests::lab::Lab;

/// One test of this group.
pub type Trouble = fn(&Lab) -> Result<()>;

/// All tests of this group, by subject. Their names begin with `troubles_`.
pub const ALL: &[&[(&str, Trouble)]] = &[
    replicas::TROUBLES,
    mounts::TROUBLES,
    moves::TROUBLES,
    addresses::TROUBLES,
    processes::TROUBLES,
    daily::TROUBLES,
    hooks::TROUBLES,
    cluster::TROUBLES,
    slips::TROUBLES,
    templates::TROUBLES,
];

/// Run only when asked for by name and with `--ignored`: they want more than the gate installs.
pub const LONG: &[(&str, Trouble)] = templates::LONG;

/// The lab with all nodes alive and nothing on them. Makes a new one if `held` is none.
///
/// # Errors
/// When nodes are dead for long, or an earlier test left something.
pub fn ready(held: Option<Lab>) -> Result<Lab> {
    let Some(lab) = held else {
        let name = std::env::var("MAINSTAY_E2E_LAB").unwrap_or_else(|_| "e2e".into());
        let lab = Lab::new(&format!("{name}-troubles"))?;
        lab.up(NODES.len() as u8)?;
        return Ok(lab);
    };
    mainstay_tests::wait_for("a cluster in good order", LIMIT, || {
        let status = lab.status()?;
        let cluster = status.cluster.context("a cluster")?;
        let dead: Vec<_> = cluster.nodes.iter().filter(|node| node.status != NodeStatus::Alive).collect();
        ensure!(dead.is_empty(), "not alive: {dead:?}");
        let resources: Vec<_> = status.resources.iter().map(|resource| &resource.name).collect();
        ensure!(resources.is_empty(), "the test before this one left {resources:?}");
        Ok(())
    })?;
    Ok(lab)
}

/// The newest lines of every node's logs, for a failure's message.
#[must_use]
pub fn logs(lab: &Lab) -> String {
    let mut out = String::new();
    for node in NODES {
        out += &format!("── logs of {node}\n");
        out += &lab.lab(&["logs", node, "-n", "30"]).unwrap_or_else(|error| format!("{error:#}\n"));
    }
    out
}
