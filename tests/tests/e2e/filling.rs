//! A replica that is filled while clients write.

use crate::cluster::{Cluster, LIMIT, NODES};
use crate::slow::Rate;
use anyhow::{Context, Result, anyhow, ensure};
use mainstay_tests::wait_for;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A replica is filled while clients write. The clients keep more than a third of their rate on
/// average (the aim is 0.7), the status tells how long the filling will take, and it ends while
/// they write.
///
/// This machine has other work, and its disk has bad moments: each rate is the share of a plain
/// file that is written in the same moment, and the rate without the filling is the lower of those
/// before and after it.
pub fn filling_a_replica_yields_to_clients(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "filled";
    let lab = &cluster.lab;
    lab.create_resource(NAME, "1GiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    lab.shell(&node, &format!("dd if=/dev/urandom of={device} bs=1M oflag=direct status=none || true"))?;
    let away = NODES.into_iter().find(|other| *other != node).context("there are three nodes")?;
    lab.cli(&["resource", "remove-replica", NAME, away])?;
    Rate::measure(cluster, &node, &device)?;
    let before = Rate::measure(cluster, &node, &device)?;

    lab.cli(&["resource", "add-replica", NAME, away, "--no-wait"])?;
    wait_for("a copy to begin", LIMIT, || {
        let said = lab.try_cli(&["status"])?.stdout;
        ensure!(said.contains("% copied"), "{said}");
        Ok(())
    })?;
    let mut during = Vec::new();
    let filled = AtomicBool::new(false);
    let said = std::thread::scope(|scope| -> Result<String> {
        let watch = scope.spawn(|| time_left(cluster, &filled));
        let wrote = (|| {
            while !lab.resource(NAME)?.replicas.iter().any(|replica| replica.node == away && replica.in_sync)
            {
                ensure!(during.len() < 40, "{away} is not filled while clients write: {during:?}");
                during.push(Rate::measure(cluster, &node, &device)?);
            }
            Ok(())
        })();
        filled.store(true, Ordering::Relaxed);
        let said = watch.join().map_err(|_| anyhow!("the status could not be watched"))?;
        wrote.and(said)
    })?;
    let after = Rate::measure(cluster, &node, &device)?;
    eprintln!("  {before:?} before, {after:?} after, meanwhile {during:?}; last said: {said}");
    let mean = during.iter().map(|rate| rate.share()).sum::<f64>() / during.len().max(1) as f64;
    ensure!(
        mean * 3.0 > before.share().min(after.share()),
        "a share of {mean} on average of {during:?}; {before:?} before, {after:?} after"
    );
    ensure!(!said.is_empty(), "the status never told how long it takes");
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Follows the status until the filling has ended. Returns its last line about the time that is
/// left.
fn time_left(cluster: &Cluster, filled: &AtomicBool) -> Result<String> {
    let mut last = String::new();
    while !filled.load(Ordering::Relaxed) {
        let now = cluster.lab.try_cli(&["status"])?.stdout;
        if let Some(line) = now.lines().find(|line| line.contains("% copied") && line.contains(" left at ")) {
            line.clone_into(&mut last);
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(last)
}
