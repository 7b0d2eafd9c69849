//! A replica that is slow.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::SlowView;
use mainstay_tests::command;
use std::process::Command;
use std::time::Duration;

/// One of three replicas is fed through a link with 1 % of what was written before: after a second the others write on without
/// it, it is fed all the same, and it returns when the link is well.
///
/// The aim is less than 10 % (S125); the machine that this runs on may have other work, and more of it later, so a half of the less of what was
/// written before and afterwards is what fails the test.
pub fn one_replica_throttled_to_a_hundredth(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "slow";
    let lab = &cluster.lab;
    lab.create_resource(NAME, "256MiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    let slow = NODES.into_iter().find(|other| *other != node).context("there are three nodes")?;
    bytes_per_s(cluster, &node, &device)?;
    let before = bytes_per_s(cluster, &node, &device)?;
    ensure!(seen(cluster, NAME, slow)?.is_none(), "{slow} is said to be slow, and nothing slows it");

    // On a disk that is slow just now a hundredth would be so little that it counts as absent.
    let throttle = Throttle::set(&lab.name, slow, (before / 100).max(256 << 10))?;
    let after = bytes_per_s(cluster, &node, &device)?;
    eprintln!(
        "  {before} bytes/s before, {after} after a second with {slow} at 1 %: {} %",
        after * 100 / before
    );
    let view = lab.resource(NAME)?;
    ensure!(view.replicas.iter().all(|replica| replica.in_sync == (replica.node != slow)), "{view:?}");
    let known = seen(cluster, NAME, slow)?.context("nobody says that it is slow")?;
    ensure!(known.latency_us > 10_000 && known.out_ms > 0, "{known:?}");
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(said.contains(&format!("{slow} is out because it was slow")), "{said}");
    let events = lab.cli(&["events"])?;
    ensure!(events.contains(&format!("{slow} left the in-sync set: it is slow")), "{events}");

    drop(throttle);
    lab.wait_in_sync(NAME, LIMIT)?;
    bytes_per_s(cluster, &node, &device)?;
    let later = bytes_per_s(cluster, &node, &device)?;
    ensure!(
        after * 2 > before.min(later),
        "{after} bytes/s with a slow replica, {before} before and {later} with it well again"
    );
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME]).map(drop)
}

/// What the primary says of its slowness.
fn seen(cluster: &Cluster, name: &str, slow: &str) -> Result<Option<SlowView>> {
    let view = cluster.lab.resource(name)?;
    let mut peers =
        view.replicas.iter().filter_map(|replica| replica.live.as_ref()).flat_map(|live| &live.peers);
    Ok(peers.find(|peer| peer.node == slow).and_then(|peer| peer.slow))
}

/// How much is written in a second, after the first one.
pub fn bytes_per_s(cluster: &Cluster, node: &str, device: &str) -> Result<u64> {
    let file = format!("--filename={device}");
    let job = ["fio", "--name=slow", &file, "--rw=randwrite", "--bs=4k", "--size=128M", "--direct=1"];
    let more = ["--ioengine=io_uring", "--iodepth=8", "--time_based", "--ramp_time=1", "--runtime=5"];
    let said = cluster.lab.exec(node, &[&job[..], &more, &["--output-format=json"]].concat())?;
    let start = said.find('{').context("fio says nothing")?;
    let report: serde_json::Value = serde_json::from_str(&said[start..])?;
    report["jobs"][0]["write"]["bw_bytes"].as_u64().context("fio does not say how much it wrote")
}

/// Of what the switch sends to a node, what is for its engine goes at a bounded rate. Ended by drop.
pub struct Throttle {
    switch: String,
    port: String,
}

impl Throttle {
    pub fn set(lab: &str, port: &str, bytes_per_s: u64) -> Result<Self> {
        let own = Self { switch: format!("mainstay-{lab}.switch"), port: port.to_owned() };
        let rate = format!("{}bps", bytes_per_s.max(10_000));
        own.tc(&["qdisc", "add"], &["root", "handle", "1:", "htb", "default", "10"])?;
        own.tc(&["class", "add"], &["parent", "1:", "classid", "1:10", "htb", "rate", "10gbit"])?;
        own.tc(
            &["class", "add"],
            &["parent", "1:", "classid", "1:20", "htb", "rate", &rate, "burst", "16k"],
        )?;
        own.tc(&["qdisc", "add"], &["parent", "1:20", "handle", "20:", "bfifo", "limit", "256k"])?;
        let engine = ["match", "ip", "dport", "7401", "0xffff", "flowid", "1:20"];
        own.tc(&["filter", "add"], &[&["parent", "1:", "protocol", "ip", "u32"][..], &engine].concat())?;
        Ok(own)
    }

    fn tc(&self, verb: &[&str], what: &[&str]) -> Result<()> {
        let mut tc = Command::new("ip");
        tc.args(["netns", "exec", &self.switch, "tc"]).args(verb).args(["dev", &self.port]).args(what);
        command::output(&mut tc, Duration::from_secs(10)).map(drop).map_err(Into::into)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // When it fails the lab is in a state that the next test notices.
        let _ = self.tc(&["qdisc", "delete"], &["root"]);
    }
}
