//! Nodes lose power.

use crate::cluster::{Cluster, DB, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_tests::ledger::first_commit_after;
use mainstay_tests::now_us;
use mainstay_tests::proof::Ledger;

/// Cuts the power of the primary's node; returns milliseconds from then to the first commit
/// elsewhere.
pub fn lose_primary(cluster: &Cluster, ledger: &Ledger) -> Result<(String, f64)> {
    let lost = cluster.primary()?;
    let position = ledger.position()?;
    let cut_us = now_us();
    cluster.lab.kill(&lost)?;
    let dead_us = now_us();
    let commit_us = mainstay_tests::wait_for("a commit on another node", LIMIT, || {
        first_commit_after(&ledger.notes_from(position)?, dead_us).context("no row was acknowledged")
    })?;
    let now = cluster.primary()?;
    ensure!(now != lost, "{lost} is still recorded as primary");
    Ok((lost, (commit_us - cut_us) as f64 / 1000.0))
}

pub fn kill_the_primary_ten_times(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let mut times = Vec::new();
    for round in 1..=10 {
        let (lost, ms) = lose_primary(cluster, ledger).with_context(|| format!("round {round}"))?;
        eprintln!("  round {round}: {lost} lost, {ms:.0} ms to the first commit elsewhere");
        times.push(ms);
        cluster.lab.start(&lost)?;
        cluster.lab.wait_in_sync(DB.resource, LIMIT).with_context(|| format!("round {round}"))?;
    }
    times.sort_by(f64::total_cmp);
    let (least, most) = (times[0], times[times.len() - 1]);
    let median = (times[4] + times[5]) / 2.0;
    eprintln!("  failover: median {median:.0} ms, {least:.0} to {most:.0} ms");
    let path = cluster.lab.binary().with_file_name("e2e-failover.json");
    std::fs::write(&path, serde_json::to_vec(&times)?).with_context(|| path.display().to_string())
}

/// Kills the primary's node as above, for as many rounds as `MAINSTAY_E2E_ROUNDS` says. The next
/// power cut comes as soon as all replicas are in sync again. The scenario ends at the first fault
/// and leaves everything as it is, for inspection. A database that ends by itself is a fault.
pub fn kill_the_primary_again_and_again(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    /// A proof of all rows and all replicas takes time, in which a database would come to rest.
    const ROUNDS_BETWEEN_PROOFS: u32 = 10;
    let rounds = std::env::var("MAINSTAY_E2E_ROUNDS").map_or(Ok(100), |rounds| rounds.parse::<u32>());
    for round in 1..=rounds.context("MAINSTAY_E2E_ROUNDS is no number")? {
        let looked_at = || format!("round {round}");
        let (lost, ms) = lose_primary(cluster, ledger).with_context(looked_at)?;
        cluster.lab.start(&lost)?;
        cluster.lab.wait_in_sync(DB.resource, LIMIT).with_context(looked_at)?;
        eprintln!("  round {round}: {lost} lost, {ms:.0} ms to the first commit elsewhere");
        for node in NODES {
            let log = cluster.lab.lab(&["logs", node, "-n", "1000"])?;
            let ended = log.lines().find(|line| line.contains("ended by itself"));
            ensure!(ended.is_none(), "round {round}, {node}: {}", ended.unwrap_or_default());
        }
        if round % ROUNDS_BETWEEN_PROOFS == 0 {
            cluster.prove_rows().with_context(looked_at)?;
            cluster.prove_equal(DB.resource).with_context(looked_at)?;
        }
    }
    Ok(())
}

pub fn kill_a_secondary(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let primary = cluster.primary()?;
    let lost = cluster.secondaries()?[0];
    cluster.lab.kill(lost)?;
    ledger.wait_commit(now_us(), LIMIT)?;
    ensure!(cluster.primary()? == primary, "the loss of a secondary moved the primary");
    let view = cluster.lab.resource(DB.resource)?;
    let in_sync = view.replicas.iter().filter(|replica| replica.in_sync).count();
    ensure!(in_sync == 2, "{in_sync} replicas in sync without {lost}: {:?}", view.replicas);
    cluster.lab.start(lost)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}

pub fn kill_the_primary_that_leads(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let leader = cluster.lab.leader()?;
    if cluster.primary()? != leader {
        cluster.lab.cli(&["service", "move", DB.name, "--to", &leader])?;
        cluster.lab.wait_running(DB.name, LIMIT)?;
        cluster.lab.wait_in_sync(DB.resource, LIMIT)?;
    }
    ensure!(cluster.primary()? == cluster.lab.leader()?, "primary and leader are not the same node");
    let (lost, ms) = lose_primary(cluster, ledger)?;
    eprintln!("  primary and leader {lost} lost, {ms:.0} ms to the first commit elsewhere");
    ensure!(cluster.lab.leader()? != lost, "{lost} is still taken for the leader");
    cluster.lab.start(&lost)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}

pub fn kill_all_three(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    for node in NODES {
        cluster.lab.kill(node)?;
    }
    for node in NODES {
        cluster.lab.start(node)?;
    }
    let back_us = now_us();
    cluster.lab.wait_running(DB.name, LIMIT)?;
    ledger.wait_commit(back_us, LIMIT)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}
