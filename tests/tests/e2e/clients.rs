//! Nodes without a replica that have the devices of a resource (ADR 13).

use crate::cluster::{Cluster, LIMIT};
use anyhow::{Context, Result, bail, ensure};
use mainstay_api::rest::{ClientView, ResourceView};
use mainstay_tests::command::wait;
use mainstay_tests::lab::built;
use mainstay_tests::metrics::Scrape;
use mainstay_tests::wait_for;
use std::process::Child;
use std::time::Duration;

const NAME: &str = "remote";

/// A node without a replica writes, and the machine of the primary loses its power. Requests wait
/// and go on with the next primary, on the same device, without an error. Reads return the written
/// content.
pub fn a_client_goes_on_with_the_next_primary(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(NAME, "128MiB", &["n1", "n2"], &[])?;
    let (lost, _) = cluster.device(NAME)?;
    let other = if lost == "n1" { "n2" } else { "n1" };
    let refused = lab.try_cli(&["resource", "attach", NAME, other])?;
    ensure!(refused.stderr.contains("has-replica"), "{refused:?}");

    lab.cli(&["resource", "attach", NAME, "n3"])?;
    let before = client(&lab.resource(NAME)?)?;
    let device = path(&before)?;
    ensure!(before.primary.as_ref() == Some(&lost) && before.streams == 1, "{before:?}");
    wait_for("the primary to have no device", LIMIT, || no_own_device(&lab.resource(NAME)?))?;
    wait_for("the primary to name none", LIMIT, || gone(cluster, &lost))?;
    let said = lab.try_cli(&["status"])?.stdout;
    ensure!(said.contains("attached to n3"), "{said}");

    let words = [
        "fio",
        "--name=writer",
        &format!("--filename={device}"),
        "--rw=randwrite",
        "--bs=4k",
        "--size=64M",
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=8",
        "--rate_iops=1000",
        "--time_based",
        "--runtime=20",
        "--verify=crc32c",
        "--verify_backlog=64",
    ];
    let mut writer = lab.spawn("n3", &words, "client-fio.log")?;
    std::thread::sleep(Duration::from_secs(4));
    lab.kill(&lost)?;
    let after = wait_for("the client to go on", LIMIT, || {
        let now = client(&lab.resource(NAME)?)?;
        ensure!(now.primary.as_deref() == Some(other), "{now:?}");
        Ok(now)
    })?;
    ensure!(path(&after)? == device && after.streams >= 2, "{before:?} before, {after:?} after");
    let status = wait(&mut writer, LIMIT)?;
    let log = std::fs::read_to_string(lab.dir().join("client-fio.log")).unwrap_or_default();
    ensure!(status.is_some_and(|status| status.success()), "the writer saw an error: {log}");
    let page = Scrape::of(lab, "n3")?;
    for shown in ["mainstay_client_ready", "mainstay_client_connected"] {
        page.is(&format!("{shown}{{resource=\"{NAME}\"}}"), 1.0)?;
    }

    lab.start(&lost)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    cluster.prove_equal(NAME)?;
    let refused = lab.try_cli(&["resource", "add-replica", NAME, "n3"])?;
    ensure!(refused.stderr.contains("attached"), "{refused:?}");

    // The devices go back to the primary, with what the client has written.
    lab.shell("n3", &write(&device, 3))?;
    lab.cli(&["resource", "detach", NAME])?;
    wait_for("the devices to be gone", LIMIT, || gone(cluster, "n3"))?;
    let (primary, own) = cluster.device(NAME)?;
    ensure!(
        primary == other && lab.shell(&primary, &read(&own))? == "3",
        "another content than the client wrote"
    );
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// One client writes at a time, and a client whose devices were taken over writes no more. A
/// request that waits for too long fails, and an engine that dies takes its devices with it. Both
/// times the client is opened anew, and every acknowledged write is there.
pub fn one_client_at_a_time(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(NAME, "64MiB", &["n1"], &[])?;
    let (primary, own) = cluster.device(NAME)?;
    let holder = lab.shell(&primary, &format!("exec 3<{own}; sleep 1000 >/dev/null 2>&1 & echo $!"))?;
    let taken = lab.try_cli(&["resource", "attach", NAME, "n2", "--take-over"])?;
    let named = format!("sleep (process {})", holder.trim());
    let said = taken.stderr.contains(&named) && taken.stderr.contains(&primary);
    ensure!(taken.code() == 0 && said, "{taken:?}");
    lab.shell(&primary, &format!("kill {holder}"))?;
    let device = path(&client(&lab.resource(NAME)?)?)?;
    let mut writer = Writer::start(cluster, "n2", &device, 2)?;
    let refused = lab.try_cli(&["resource", "attach", NAME, "n3"])?;
    ensure!(refused.stderr.contains("attached-elsewhere"), "{refused:?}");

    // The client with the devices is cut off, and does not hear that it has lost them. It goes on
    // asking when it is back.
    lab.lab(&["isolate", "n2"])?;
    lab.cli(&["resource", "attach", NAME, "n3", "--take-over", "--wait", "3s"])?;
    let device = path(&client(&lab.resource(NAME)?)?)?;
    let last = *told(cluster)?.last().context("nothing was acknowledged")?;
    let found = newest(cluster, "n3", &device)?;
    ensure!(found == last || found == last + 1, "{found} is found, and {last} was acknowledged last");
    lab.shell("n3", &write(&device, 5))?;
    lab.lab(&["heal"])?;
    ensure!(writer.end(cluster)? == last, "n2 was told of a write that n3 took over from");
    ensure!(lab.shell("n3", &read(&device))? == "5", "n2 has written after it was taken over");

    // The only replica goes away for longer than a request may wait.
    let mut writer = Writer::start(cluster, "n3", &device, found + 1)?;
    lab.kill("n1")?;
    let last = writer.end(cluster)?;
    let events = lab.cli(&["events"])?;
    ensure!(events.contains("a request has waited for too long"), "{events}");
    lab.start("n1")?;
    let device = reopened(cluster, "n3")?;
    let found = newest(cluster, "n3", &device)?;
    ensure!(found == last || found == last + 1, "{found} is found, and {last} was acknowledged last");

    let mut writer = Writer::start(cluster, "n3", &device, found + 1)?;
    lab.kill_program("n3", "engine")?;
    let last = writer.end(cluster)?;
    let device = reopened(cluster, "n3")?;
    let found = newest(cluster, "n3", &device)?;
    ensure!(found == last || found == last + 1, "{found} is found, and {last} was acknowledged last");
    lab.shell("n3", &write(&device, 7))?;
    lab.cli(&["resource", "detach", NAME])?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// A writer of ascending numbers, each durable before the next. See `order`.
struct Writer {
    process: Child,
}

impl Writer {
    fn start(cluster: &Cluster, node: &str, device: &str, from: u64) -> Result<Self> {
        let program = built("order")?.to_string_lossy().into_owned();
        let from = from.to_string();
        let words = [program.as_str(), "write", from.as_str(), device];
        let process = cluster.lab.spawn(node, &words, "client-order.log")?;
        let writer = Self { process };
        wait_for("the writer to have written", LIMIT, || {
            let told = told(cluster)?;
            ensure!(told.len() > 20, "it was told {} writes", told.len());
            Ok(())
        })?;
        Ok(writer)
    }

    /// Waits until it ends by itself, with an error, and returns the last acknowledged write.
    fn end(&mut self, cluster: &Cluster) -> Result<u64> {
        let status = wait(&mut self.process, LIMIT)?;
        let log = std::fs::read_to_string(cluster.lab.dir().join("client-order.log"))?;
        ensure!(
            status.is_some_and(|status| !status.success()),
            "the writer did not see its device fail: {status:?}"
        );
        ensure!(log.contains("writing"), "it failed otherwise: {log}");
        told(cluster)?.last().copied().context("nothing was acknowledged")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn told(cluster: &Cluster) -> Result<Vec<u64>> {
    let log = std::fs::read_to_string(cluster.lab.dir().join("client-order.log"))?;
    Ok(log.lines().map_while(|line| line.parse().ok()).collect())
}

fn newest(cluster: &Cluster, node: &str, device: &str) -> Result<u64> {
    let program = built("order")?.to_string_lossy().into_owned();
    Ok(cluster.lab.exec(node, &[&program, "read", device])?.trim().parse()?)
}

/// The devices of a client that was opened anew, connected to a primary.
fn reopened(cluster: &Cluster, node: &str) -> Result<String> {
    wait_for("the client to be opened anew", LIMIT, || {
        let view = cluster.lab.resource(NAME)?;
        let attached = view.attached.as_ref().context("it is not attached")?;
        let now = client(&view)?;
        ensure!(attached.node == node && now.over.is_none() && now.primary.is_some(), "{attached:?}");
        path(&now)
    })
}

fn client(view: &ResourceView) -> Result<ClientView> {
    let attached = view.attached.as_ref().context("it is not attached")?;
    attached.live.clone().with_context(|| format!("no client is open: {attached:?}"))
}

fn path(client: &ClientView) -> Result<String> {
    match &client.devices[..] {
        [device] => Ok(device.path.clone()),
        devices => bail!("one volume has the devices {devices:?}"),
    }
}

/// The number of the device proves nothing: all nodes share a kernel, and another device may get
/// the number again.
fn gone(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.lab.shell(node, &format!("! test -e /run/mainstay/dev/{NAME}/0")).map(drop)
}

fn no_own_device(view: &ResourceView) -> Result<()> {
    let live = view.replicas.iter().filter_map(|replica| replica.live.as_ref());
    let devices: Vec<_> = live.flat_map(|live| &live.devices).collect();
    ensure!(devices.is_empty(), "{devices:?} are still there");
    Ok(())
}

/// Fills the first block with a digit.
fn write(device: &str, digit: u8) -> String {
    format!(
        "test -b {device}; head -c 4096 /dev/zero | tr '\\0' {digit} | dd of={device} bs=4096 iflag=fullblock oflag=direct conv=notrunc status=none"
    )
}

/// Says the first byte.
fn read(device: &str) -> String {
    format!("dd if={device} bs=4096 count=1 iflag=direct status=none | head -c 1")
}
