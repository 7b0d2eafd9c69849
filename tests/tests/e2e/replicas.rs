//! Replicas that are added, removed and moved under load, and two replicas with a witness.

use crate::cluster::{Cluster, DB, LIMIT};
use crate::failover::lose_primary;
use anyhow::{Result, ensure};
use mainstay_tests::now_us;
use mainstay_tests::proof::Ledger;

const POOL: &str = "/var/lib/mainstay/pools/default";

/// The replicas that a node has on its disk.
fn stored(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    let list = cluster.lab.exec(node, &["ls", POOL])?;
    Ok(list.split_whitespace().map(str::to_owned).collect())
}

fn remove(cluster: &Cluster, node: &str) -> Result<()> {
    let before = stored(cluster, node)?;
    cluster.lab.cli(&["resource", "remove-replica", DB.resource, node])?;
    let (now, holders) = (stored(cluster, node)?, holders(cluster)?);
    ensure!(now.len() + 1 == before.len(), "{node} had {before:?} and has {now:?}");
    ensure!(!holders.iter().any(|holder| holder == node), "{node} still counts: {holders:?}");
    Ok(())
}

fn add(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.lab.cli(&["resource", "add-replica", DB.resource, node]).map(drop)
}

fn holders(cluster: &Cluster) -> Result<Vec<String>> {
    Ok(cluster.lab.resource(DB.resource)?.replicas.into_iter().map(|replica| replica.node).collect())
}

/// While rows are inserted a replica is removed, with its files. It is added again and filled.
pub fn remove_and_add_a_replica(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let node = cluster.secondaries()?[0];
    remove(cluster, node)?;
    ledger.wait_commit(now_us(), LIMIT)?;
    add(cluster, node)?;
    ensure!(stored(cluster, node)?.len() == 1, "the replica is counted as in sync and is not there");
    Ok(())
}

/// The node without a replica makes the majority with which the other one takes over.
pub fn two_replicas_and_a_witness(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let witness = cluster.secondaries()?[0];
    remove(cluster, witness)?;
    let (primary, _) = lose_primary(cluster, ledger)?;
    let next = cluster.lab.wait_running(DB.name, LIMIT)?;
    ensure!(
        next != primary && next != witness,
        "{next} took over from {primary}, beside the witness {witness}"
    );
    cluster.lab.start(&primary)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)?;
    add(cluster, witness)
}

/// The primary's own replica moves: the database goes on at the new place before the old one is
/// removed.
pub fn move_the_replica_of_the_primary(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let to = cluster.secondaries()?[0];
    remove(cluster, to)?;
    let from = cluster.primary()?;
    cluster.lab.cli(&["resource", "move-replica", DB.resource, &from, "--to", to])?;
    ledger.wait_commit(now_us(), LIMIT)?;
    let runs = cluster.lab.wait_running(DB.name, LIMIT)?;
    ensure!(runs == to, "the database runs on {runs}, not on {to}");
    let holders = holders(cluster)?;
    ensure!(holders.len() == 2 && !holders.contains(&from), "the replicas are on {holders:?}");
    ensure!(stored(cluster, &from)?.is_empty(), "{from} keeps files of the moved replica");
    add(cluster, &from)
}
