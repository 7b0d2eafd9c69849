//! Things that are full.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Writes much faster than a smallest journal can be emptied: writers wait, nothing fails, and the
/// node can be lost while the journal is full (R18).
pub fn full_journal(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "narrow";
    let lab = &cluster.lab;
    lab.create_resource(NAME, "512MiB", &NODES, &["--journal", "16MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    let file = format!("--filename={device}");
    let writer = |seconds: &str| {
        let words = ["fio", "--name=writer", &file, "--rw=randwrite", "--bs=1M", "--size=512M", "--direct=1"];
        let more = ["--ioengine=io_uring", "--iodepth=16", "--time_based", "--runtime", seconds];
        [&words[..], &more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let words = writer("5");
    lab.exec(&node, &words.iter().map(String::as_str).collect::<Vec<_>>())?;
    cluster.prove_equal(NAME)?;

    let words = writer("30");
    let mut writer = lab.spawn(&node, &words.iter().map(String::as_str).collect::<Vec<_>>(), "fio.log")?;
    std::thread::sleep(Duration::from_secs(2));
    lab.kill(&node)?;
    mainstay_tests::command::wait(&mut writer, LIMIT)?;
    let promoted = mainstay_tests::wait_for("another primary", LIMIT, || {
        let (now, device) = cluster.device(NAME)?;
        ensure!(now != node, "{node} is still recorded as primary");
        Ok((now, device))
    })?;
    lab.exec(
        &promoted.0,
        &["dd", "if=/dev/zero", &format!("of={}", promoted.1), "bs=1M", "count=64", "oflag=direct"],
    )?;
    lab.start(&node)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// A pool without space. A resource that can never fit is refused with the reason. A secondary
/// whose pool fills up leaves the in-sync set when its journal is full, while the others go on. It
/// returns by itself when there is room again.
pub fn full_pool(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "wide";
    let lab = &cluster.lab;
    let refused = lab.try_cli(&["resource", "create", NAME, "--size", "3TiB", "--replicas", "n1,n2,n3"])?;
    ensure!(refused.code() == 1, "a resource larger than the pool was not refused: {refused:?}");
    ensure!(refused.stderr.contains("free") || refused.stderr.contains("space"), "{}", refused.stderr);

    lab.create_resource(NAME, "256MiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    let full = NODES.into_iter().find(|other| *other != node).expect("there are three nodes");
    let fill = "/var/lib/mainstay/fill";
    // Most of the space at once, and the rest until "no space left", which is the purpose here.
    let most = format!(
        "fallocate -l $(($(stat -f -c '%a * %S' {dir}) - (64 << 20))) {fill}",
        dir = "/var/lib/mainstay"
    );
    let rest = format!("dd if=/dev/zero of={fill}.rest bs=1M status=none || true; sync");
    let agent = lab.pids(full, "agent")?;
    lab.shell(full, &format!("{most}\n{rest}"))?;
    let write = format!("dd if=/dev/urandom of={device} bs=1M count=200 oflag=direct status=none");
    lab.shell(&node, &write)?;
    ensure!(lab.primary(NAME)? == node, "a full pool elsewhere moved the primary");
    let view = lab.resource(NAME)?;
    ensure!(view.replicas.iter().all(|replica| replica.in_sync == (replica.node != full)), "{view:?}");
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(said.contains(&format!("the pool of {full} has no space")), "{said}");
    // The control state lies on the same disk.
    for interval in ["8d", "9d"] {
        lab.cli(&["resource", "set-scrub", NAME, "--scrub-interval", interval])?;
    }
    ensure!(lab.pids(full, "agent")? == agent, "the agent of {full} ended because its disk is full");
    lab.shell(full, &format!("rm {fill} {fill}.rest; sync"))?;
    lab.wait_in_sync(NAME, LIMIT)?;
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}
