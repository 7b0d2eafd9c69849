//! Snapshots, and a database that is started on a clone of one while replication goes on.

use crate::cluster::{Cluster, DB, LEDGER_CONNECTIONS, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::engine::SnapshotState;
use mainstay_tests::ledger::TABLE;
use mainstay_tests::mariadb::{PASSWORD, USER, command};
use mainstay_tests::proof::Ledger;
use mainstay_tests::{now_us, wait_for};

const NAME: &str = "nightly";
const PORT: u16 = 3399;

/// What a server says that listens at a socket of a node.
fn sql(cluster: &Cluster, node: &str, root: &str, statement: &str) -> Result<String> {
    let socket = format!("--socket={root}/data/mariadb.sock");
    let (user, password) = (format!("--user={USER}"), format!("--password={PASSWORD}"));
    let words = ["mariadb", "--no-defaults", &socket, &user, &password, "--skip-column-names", "--execute"];
    let said = cluster.lab.exec(node, &[&words[..], &[statement]].concat())?;
    Ok(said.trim().to_owned())
}

fn rows(cluster: &Cluster, node: &str, root: &str) -> Result<u64> {
    let said = sql(cluster, node, root, &format!("SELECT COUNT(*) FROM {TABLE}"))?;
    said.parse().with_context(|| format!("the server says `{said}`"))
}

/// The files of snapshots in the pool of a node.
fn files(cluster: &Cluster, node: &str) -> Result<usize> {
    let list = cluster.lab.shell(node, "find /var/lib/mainstay/pools/default -name 'snap*' | wc -l")?;
    list.trim().parse().with_context(|| format!("find says `{list}`"))
}

/// No peer can do this: rows are inserted all the while, the snapshot is the same everywhere, and a secondary serves it.
pub fn a_database_runs_on_a_clone_of_a_snapshot(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let primary = cluster.primary()?;
    // InnoDB shows a row to others before its commit is on the disk and acknowledged: one of each of the ledger's connections.
    let before = rows(cluster, &primary, &DB.root())?.saturating_sub(LEDGER_CONNECTIONS as u64);
    cluster.lab.cli(&["snapshot", "create", DB.resource, NAME])?;
    let after = rows(cluster, &primary, &DB.root())?;
    let view = cluster.lab.resource(DB.resource)?;
    let [snapshot] = &view.snapshots[..] else { anyhow::bail!("the snapshots are {:?}", view.snapshots) };
    let at = snapshot.nodes.first().map(|on| on.index);
    let whole = snapshot.nodes.iter().all(|on| on.state == SnapshotState::Held && Some(on.index) == at);
    ensure!(snapshot.nodes.len() == NODES.len() && whole, "it is not the same everywhere: {snapshot:?}");

    let node = cluster.secondaries()?[0];
    let (directory, binary) =
        ("/var/lib/mainstay/pools/default/clone-test", cluster.lab.binary().to_string_lossy());
    let root = format!("{directory}/mnt");
    cluster.lab.exec(node, &[&binary, "snapshot", "clone", DB.resource, NAME, directory])?;
    // The original is mounted in the same kernel, by another node of the lab.
    let mount = format!("mkdir -p {root} && mount -o loop,nouuid {directory}/vol0 {root}");
    cluster.lab.shell(node, &mount)?;
    let words = command(&root, PORT);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut server = cluster.lab.spawn(node, &words, "clone.log")?;
    let found = wait_for("a database on the clone", LIMIT, || rows(cluster, node, &root))?;
    ensure!(
        (before..=after).contains(&found),
        "{found} rows are in the clone, {before} to {after} were there"
    );
    let check = sql(cluster, node, &root, &format!("CHECK TABLE {TABLE} EXTENDED"))?;
    ensure!(check.ends_with("OK"), "CHECK TABLE: {check}");
    sql(cluster, node, &root, &format!("DELETE FROM {TABLE}"))?;
    ensure!(rows(cluster, node, &root)? == 0, "the clone can be written");
    ledger.wait_commit(now_us(), LIMIT).context("beside a database on the clone")?;
    sql(cluster, node, &root, "SHUTDOWN")?;
    server.wait().context("the clone's server")?;
    cluster.lab.shell(node, &format!("umount {root} && rm -r {directory}"))?;

    // It outlives the node that it was taken on, and its files go when it is deleted.
    ensure!(files(cluster, node)? == 1, "the snapshot's file is there");
    cluster.lab.cli(&["snapshot", "delete", DB.resource, NAME])?;
    for node in NODES {
        wait_for("the end of the snapshot's files", LIMIT, || {
            let left = files(cluster, node)?;
            ensure!(left == 0, "{left} are left on {node}");
            Ok(())
        })?;
    }
    ensure!(cluster.lab.resource(DB.resource)?.snapshots.is_empty(), "it is forgotten");
    Ok(())
}
