//! The smallest number of copies that a resource must have (`min-copies`).

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::ServicePhase;
use std::time::{Duration, Instant};

const NAME: &str = "copies";
/// Time for which writes wait for copies before they fail (`--suspend-io`).
const SUSPEND: Duration = Duration::from_secs(4);

/// Two copies are wanted, and one replica is lost. Writes wait and then fail, and reads go on.
/// Writes go on when the replica is back, or when the operator lets one copy be enough.
pub fn no_write_rests_on_one_machine_if_two_are_wanted(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    let suspend = format!("{}s", SUSPEND.as_secs());
    let more = ["--journal", "16MiB", "--min-copies", "2", "--suspend-io", &suspend];
    lab.create_resource(NAME, "512MiB", &NODES[..2], &more)?;
    let (primary, device) = cluster.device(NAME)?;
    let other = NODES[..2].iter().find(|node| **node != primary).context("two replicas")?;
    let refused = lab.try_cli(&["resource", "remove-replica", NAME, other])?;
    ensure!(refused.stderr.contains("too-few-replicas"), "{refused:?}");
    let refused = lab.try_cli(&["resource", "set-mode", NAME, "a"])?;
    ensure!(refused.stderr.contains("set copies mode=a min-copies=1"), "{refused:?}");
    let write = |block: u64| {
        let script =
            format!("dd if=/dev/zero of={device} bs=4096 seek={block} count=1 oflag=direct conv=notrunc");
        lab.shell(&primary, &script)
    };
    write(0)?;

    lab.kill(other)?;
    let begun = Instant::now();
    let failed = write(1).expect_err("the other copy is off");
    let took = begun.elapsed();
    ensure!(format!("{failed:#}").contains("Input/output error"), "{failed:#}");
    ensure!(took > SUSPEND - Duration::from_secs(1), "the write failed after {took:?}");
    let again = Instant::now();
    ensure!(write(1).is_err() && again.elapsed() < SUSPEND, "the next write waited as well");
    lab.shell(&primary, &format!("dd if={device} of=/dev/null bs=4096 count=1 iflag=direct"))?;
    mainstay_tests::wait_for("advice", LIMIT, || {
        let view = lab.resource(NAME)?;
        let told = view.advice.iter().any(|one| one.contains("2 copies are wanted and 1 is there"));
        ensure!(told, "{:?}", view.advice);
        ensure!(view.replicas.iter().all(|one| one.in_sync), "the node that is off lacks nothing: {view:?}");
        Ok(())
    })?;
    let said = lab.cli(&["resource", "status", NAME])?;
    let state = format!("{primary} waits: 2 copies are wanted (min-copies) and one is in sync; writes fail");
    ensure!(said.contains(&state), "{said}");
    ensure!(said.contains("acknowledged with 2 copies at least"), "{said}");

    lab.start(other)?;
    mainstay_tests::wait_for("a write that is acknowledged again", LIMIT, || write(1).map(drop))?;
    lab.kill(other)?;
    ensure!(write(2).is_err());
    lab.cli(&["resource", "set-min-copies", NAME, "1"])?;
    mainstay_tests::wait_for("a write with one copy", LIMIT, || write(2).map(drop))?;
    lab.start(other)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    cluster.prove_equal(NAME)?;
    its_service_stops_and_starts_again(cluster)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// The service stops while too few copies are there, starts again when there are enough, and does
/// not use up its attempts meanwhile.
fn its_service_stops_and_starts_again(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.cli(&["resource", "set-min-copies", NAME, "2", "--suspend-io", "1s"])?;
    // The volume was written to above, so the service must not format it.
    let (primary, device) = cluster.device(NAME)?;
    lab.exec(&primary, &["mkfs.xfs", "-q", "-f", "-K", &device])?;
    let toml = format!(
        "name = \"{NAME}\"\nresource = \"{NAME}\"\n\n[mount]\npath = \"/srv/{NAME}\"\nfstype = \"xfs\"\n"
    );
    lab.apply_service(NAME, &toml)?;
    let node = lab.wait_running(NAME, LIMIT)?;
    let other = NODES[..2].iter().find(|other| **other != node).context("two replicas")?;
    let path = format!("/srv/{NAME}");
    lab.shell(&node, &format!("echo kept > {path}/file && sync {path}/file"))?;
    lab.kill(other)?;
    mainstay_tests::wait_for("the end of the service", LIMIT, || {
        let view = lab.service(NAME)?;
        ensure!(view.phase == ServicePhase::Stopped, "{} on {:?}", view.phase, view.phase_node);
        Ok(())
    })?;
    ensure!(lab.service(NAME)?.failures.is_empty(), "{:?}", lab.service(NAME)?.failures);
    lab.start(other)?;
    let node = lab.wait_running(NAME, LIMIT)?;
    let kept = lab.shell(&node, &format!("cat {path}/file"))?;
    ensure!(kept.trim() == "kept", "{kept}");
    lab.cli(&["service", "delete", NAME]).map(drop)
}
