//! A replica that is slow.

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::SlowView;
use mainstay_tests::command;
use std::process::Command;
use std::time::Duration;

/// Attempts while other work of the machine makes another replica slow.
const ATTEMPTS: u32 = 3;

/// One of three replicas is fed through a link with 1 % of the bandwidth that clients used: after a
/// second the others write on without it, the primary feeds it all the same, and it returns when
/// the link is whole.
///
/// The aim is a loss of less than 10 % (S125). This machine has other work, and its disk has bad
/// moments: the test compares with a plain file that is written in the same moment, and fails when
/// the clients have less than half of their share.
pub fn one_replica_throttled_to_a_hundredth(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "slow";
    let lab = &cluster.lab;
    lab.create_resource(NAME, "256MiB", &NODES, &["--journal", "64MiB"])?;
    let (node, device) = cluster.device(NAME)?;
    let slow = NODES.into_iter().find(|other| *other != node).context("there are three nodes")?;
    Rate::measure(cluster, &node, &device)?;
    let mut attempt = 0;
    let (before, throttled, throttle) = loop {
        attempt += 1;
        lab.wait_in_sync(NAME, LIMIT)?;
        let before = Rate::measure(cluster, &node, &device)?;
        let others = others_out(cluster, NAME, "")?;
        // A hundredth of a disk that is slow just now would be so little that the replica would
        // count as absent.
        let throttle = Throttle::set(&lab.name, slow, (before.device / 100).max(256 << 10))?;
        let throttled = Rate::measure(cluster, &node, &device)?;
        let others = [others, others_out(cluster, NAME, slow)?].concat();
        if others.is_empty() {
            break (before, throttled, throttle);
        }
        // Other work of this machine made another replica slow: two copies are the fewest that
        // stay, so nothing can be said of the one that is throttled.
        ensure!(attempt < ATTEMPTS, "in each of {attempt} attempts another replica left: {others:?}");
        eprintln!("  {others:?} left because of other work");
    };
    let view = lab.resource(NAME)?;
    ensure!(view.replicas.iter().all(|replica| replica.in_sync == (replica.node != slow)), "{view:?}");
    let known = seen(cluster, NAME, slow)?.context("the primary does not call the replica slow")?;
    ensure!(known.latency_us > 10_000 && known.out_ms > 0, "{known:?}");
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(said.contains(&format!("{slow} is out because it was slow")), "{said}");
    let events = lab.cli(&["events"])?;
    ensure!(
        events.contains(&format!("{slow} left the in-sync set: it did not acknowledge in time")),
        "{events}"
    );

    drop(throttle);
    lab.wait_in_sync(NAME, LIMIT)?;
    Rate::measure(cluster, &node, &device)?;
    let after = Rate::measure(cluster, &node, &device)?;
    eprintln!("  {before:?} before, {throttled:?} with {slow} at 1 %, {after:?} afterwards");
    ensure!(
        throttled.share() * 2.0 > before.share().min(after.share()),
        "{throttled:?} with a slow replica, {before:?} before and {after:?} afterwards"
    );
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Returns the nodes, other than `slow`, whose replicas are out of the in-sync set for their
/// slowness.
fn others_out(cluster: &Cluster, name: &str, slow: &str) -> Result<Vec<&'static str>> {
    let mut out = Vec::new();
    for node in NODES.into_iter().filter(|node| *node != slow) {
        if seen(cluster, name, node)?.is_some() {
            out.push(node);
        }
    }
    Ok(out)
}

/// Returns the primary's view of the slowness of the node `slow`.
fn seen(cluster: &Cluster, name: &str, slow: &str) -> Result<Option<SlowView>> {
    let view = cluster.lab.resource(name)?;
    let mut peers =
        view.replicas.iter().filter_map(|replica| replica.live.as_ref()).flat_map(|live| &live.peers);
    Ok(peers.find(|peer| peer.node == slow).and_then(|peer| peer.slow))
}

/// Bytes that were written per second, to a device and to a plain file on the same disk at the same
/// time.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub device: u64,
    pub plain: u64,
}

impl Rate {
    /// Writes for six seconds and counts the last five. The plain file lies beside the node's pool
    /// and is written one block at a time, so that it measures the disk and takes little of it.
    ///
    /// # Errors
    /// When fio fails.
    pub fn measure(cluster: &Cluster, node: &str, device: &str) -> Result<Self> {
        let file = format!("--filename={device}");
        let all = ["fio", "--rw=randwrite", "--bs=4k", "--size=128M", "--direct=1", "--ioengine=io_uring"];
        let time = ["--time_based", "--ramp_time=1", "--runtime=5", "--output-format=json"];
        let plain = ["--name=plain", "--filename=/var/lib/mainstay/plain.fio", "--iodepth=1", "--sync=dsync"];
        let jobs = [&["--name=device", &file, "--iodepth=8"][..], &plain].concat();
        let said = cluster.lab.exec(node, &[&all[..], &time, &jobs].concat())?;
        let start = said.find('{').context("fio says nothing")?;
        let report: serde_json::Value = serde_json::from_str(&said[start..])?;
        let bytes = |job: usize| {
            report["jobs"][job]["write"]["bw_bytes"].as_u64().context("fio does not say how much it wrote")
        };
        Ok(Self { device: bytes(0)?, plain: bytes(1)? })
    }

    /// Bytes written to the device for each byte written to the plain file.
    #[must_use]
    pub fn share(self) -> f64 {
        self.device as f64 / self.plain.max(1) as f64
    }
}

/// Limit on the rate at which the switch sends to the engine of a node. Dropping it ends the limit.
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
        // If this fails, the lab is in a state that the next test notices.
        let _ = self.tc(&["qdisc", "delete"], &["root"]);
    }
}
