//! A volume that grows under a database.

use crate::cluster::{Cluster, DB, LIMIT};
use crate::failover::lose_primary;
use anyhow::{Context, Result, ensure};
use mainstay_tests::proof::Ledger;
use mainstay_tests::{now_us, wait_for};

const MORE: u64 = 256 << 20;

/// `what` of the database's file system in bytes (`size`, `avail`), on the node where it runs.
fn file_system(cluster: &Cluster, what: &str) -> Result<u64> {
    let node = cluster.primary()?;
    let column = format!("--output={what}");
    let list = cluster.lab.exec(&node, &["df", "--block-size=1", &column, &DB.root()])?;
    let last = list.lines().last().context("df says nothing")?;
    last.trim().parse().with_context(|| format!("df says `{last}`"))
}

/// While rows are inserted the volume grows, and its file system with it. Content beyond the old
/// end survives the loss of the node.
pub fn a_volume_grows_under_load(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let old = cluster.lab.resource(DB.resource)?.volumes[0];
    let (before, free, new) = (file_system(cluster, "size")?, file_system(cluster, "avail")?, old + MORE);
    cluster.lab.cli(&["resource", "resize", DB.resource, &new.to_string()])?;
    let view = cluster.lab.resource(DB.resource)?;
    ensure!(view.volumes[0] == new && view.growing.is_empty(), "the volumes have {:?} bytes", view.volumes);
    wait_for("a larger file system", LIMIT, || {
        let now = file_system(cluster, "size")?;
        ensure!(now >= before + MORE / 10 * 9, "it had {before} bytes and has {now}");
        Ok(())
    })?;
    ledger.wait_commit(now_us(), LIMIT)?;
    // All free space is taken, so new writes go to the new part.
    let (node, root) = (cluster.primary()?, DB.root());
    let fill = format!(
        "fallocate -l {free} {root}/filler && head -c {} /dev/urandom > {root}/beyond && sync {root}/beyond",
        MORE / 4
    );
    cluster.lab.shell(&node, &fill)?;
    let sum = |node: &str| cluster.lab.shell(node, &format!("md5sum < {root}/beyond"));
    let wrote = sum(&node)?;
    let (lost, _) = lose_primary(cluster, ledger)?;
    let next = cluster.lab.wait_running(DB.name, LIMIT)?;
    let read = sum(&next)?;
    ensure!(wrote == read, "{next} reads {read} where {node} wrote {wrote}");
    cluster.lab.shell(&next, &format!("rm {root}/beyond {root}/filler"))?;
    cluster.lab.start(&lost)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}
