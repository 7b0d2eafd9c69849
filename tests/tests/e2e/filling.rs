//! A replica that is filled while clients write.

use crate::cluster::{Cluster, LIMIT, NODES};
use crate::slow::bytes_per_s;
use anyhow::{Context, Result, anyhow, ensure};
use mainstay_tests::wait_for;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Clients go on at more than a third of what they have without it, on average (the aim is 0.7), the status tells how long it will take,
/// and it ends while they write. The machine that this runs on may have other work, and more of it later: what they have without it is the
/// less of what they had before and after.
pub fn filling_a_replica_yields_to_clients(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "filled";
    let lab = &cluster.lab;
    lab.create_resource(NAME, "1GiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    lab.shell(&node, &format!("dd if=/dev/urandom of={device} bs=1M oflag=direct status=none || true"))?;
    let away = NODES.into_iter().find(|other| *other != node).context("there are three nodes")?;
    lab.cli(&["resource", "remove-replica", NAME, away])?;
    bytes_per_s(cluster, &node, &device)?;
    let before = bytes_per_s(cluster, &node, &device)?;

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
                ensure!(during.len() < 40, "{away} is not filled while clients write: {during:?} bytes/s");
                during.push(bytes_per_s(cluster, &node, &device)?);
            }
            Ok(())
        })();
        filled.store(true, Ordering::Relaxed);
        let said = watch.join().map_err(|_| anyhow!("the status could not be watched"))?;
        wrote.and(said)
    })?;
    let after = bytes_per_s(cluster, &node, &device)?;
    eprintln!("  {before} bytes/s before, {after} after, meanwhile {during:?}; last said: {said}");
    let mean = during.iter().sum::<u64>() / (during.len() as u64).max(1);
    ensure!(
        mean * 3 > before.min(after),
        "{mean} bytes/s on average of {during:?}; {before} before, {after} after"
    );
    ensure!(!said.is_empty(), "the status never told how long it takes");
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME]).map(drop)
}

/// What the status tells last of the time that a filling takes, until it has ended.
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
