//! Modes A and B, and going on without entries that no replica has any more (R11).

use crate::cluster::{Cluster, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{Mode, ResourceView};
use std::time::Duration;

const NAME: &str = "modes";
/// Blocks that every replica has, and those that only the old primary has.
const KEPT: u64 = 20;
const LOST: u64 = 7;

/// In mode A writes wait for the primary alone. The primary dies with entries that its followers
/// lack, and no follower takes over by itself. The operator is told the cost of going on before,
/// and the exact loss after. The old primary begins anew, and all replicas are equal in mode C
/// again.
pub fn mode_a_and_a_forced_promotion(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(NAME, "64MiB", &NODES, &["--journal", "16MiB"])?;
    lab.cli(&["resource", "set-mode", NAME, "a", "--lag-bytes", "4MiB", "--lag-s", "30"])?;
    let (lost, device) = cluster.device(NAME)?;
    fill(cluster, &lost, &device, 0, KEPT)?;
    let view = mainstay_tests::wait_for("followers that lack nothing", LIMIT, || {
        let view = lab.resource(NAME)?;
        let lacking: Vec<_> = peers(&view).filter(|peer| peer.1 > 0).collect();
        ensure!(lacking.is_empty() && peers(&view).count() == 2, "{lacking:?}");
        Ok(view)
    })?;
    ensure!(view.mode == Mode::A && view.replicas.iter().filter(|one| one.in_sync).count() == 1, "{view:?}");
    let said = lab.cli(&["resource", "status", NAME])?;
    ensure!(said.contains("lacks nothing") && said.contains("mode A"), "{said}");

    let others: Vec<_> = NODES.into_iter().filter(|node| *node != lost).collect();
    for node in &others {
        lab.lab(&["cut", &lost, node])?;
    }
    // Its lease goes on for a while.
    fill(cluster, &lost, &device, KEPT, LOST)?;
    lab.kill(&lost)?;
    lab.lab(&["heal"])?;
    mainstay_tests::wait_for("a resource without primary", LIMIT, || {
        let view = lab.resource(NAME)?;
        ensure!(view.primary.is_none(), "{:?} is primary", view.primary);
        ensure!(view.advice.iter().any(|one| one.contains("force-promote")), "{:?}", view.advice);
        Ok(())
    })?;
    std::thread::sleep(Duration::from_secs(5));
    ensure!(lab.resource(NAME)?.primary.is_none(), "a node took over in mode A by itself");

    let to = others[0];
    let asked = lab.try_cli(&["resource", "force-promote", NAME, to])?;
    ensure!(asked.stderr.contains("loss-not-accepted") && asked.stderr.contains(&lost), "{asked:?}");
    ensure!(lab.resource(NAME)?.primary.is_none(), "it was done without having been accepted");
    lab.cli(&["resource", "force-promote", NAME, to, "--accept-loss"])?;
    let (serving, device) = cluster.device(NAME)?;
    ensure!(serving == to, "{serving} serves, not {to}");
    check(cluster, to, &device, KEPT)?;
    fill(cluster, to, &device, KEPT, 1)?;

    lab.start(&lost)?;
    let forced = mainstay_tests::wait_for("the loss", LIMIT, || {
        let forced = lab.resource(NAME)?.forced.context("nothing was forced")?;
        ensure!(forced.lost.is_some(), "{lost} has not told yet what it had");
        Ok(forced)
    })?;
    let (from, until) = forced.lost.context("just seen")?;
    ensure!(until + 1 - from == LOST, "{LOST} entries were lost, {from} to {until} is said");
    let events = lab.cli(&["events"])?;
    ensure!(events.contains(&format!("{LOST} entries")), "{events}");
    lab.cli(&["resource", "set-mode", NAME, "c"])?;
    lab.wait_in_sync(NAME, LIMIT)?;
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// In mode B a device states a volatile cache. The loss of the primary right after its answers
/// loses nothing, because the other replicas have the writes in memory. The lost primary is proven
/// when it returns, and the mode is left without a pause. A device that has refused a flush in mode
/// C stays as it was (S258). The device of the next primary takes the mode up.
pub fn mode_b_loses_nothing_with_its_primary(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    lab.create_resource(NAME, "64MiB", &NODES, &["--journal", "16MiB"])?;
    let (first, device) = cluster.device(NAME)?;
    let flushed =
        format!("dd if=/dev/zero of={device} bs=4096 count=1 oflag=direct conv=notrunc,fsync status=none");
    lab.shell(&first, &flushed)?;
    lab.cli(&["resource", "set-mode", NAME, "b"])?;
    mainstay_tests::wait_for("mode B on its way", LIMIT, || {
        let said = lab.cli(&["resource", "status", NAME])?;
        ensure!(said.contains("when they are attached anew"), "{said}");
        Ok(())
    })?;
    lose(cluster, &first)?;
    lab.start(&first)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    in_force(cluster)?;
    let (lost, device) = cluster.device(NAME)?;
    let cache =
        lab.shell(&lost, &format!("cat /sys/block/{}/queue/write_cache", device.replace("/dev/", "")))?;
    ensure!(cache.trim() == "write back", "{device} has the cache {cache:?}");
    fill(cluster, &lost, &device, 0, KEPT)?;
    let (to, device) = lose(cluster, &lost)?;
    check(cluster, &to, &device, KEPT)?;
    lab.start(&lost)?;
    lab.wait_in_sync(NAME, LIMIT)?;
    in_force(cluster)?;
    lab.cli(&["resource", "set-mode", NAME, "c"])?;
    mainstay_tests::wait_for("the end of mode B", LIMIT, || {
        let view = lab.resource(NAME)?;
        ensure!(view.mode == Mode::C && view.memory.is_empty(), "{:?} still counts", view.memory);
        Ok(())
    })?;
    cluster.prove_equal(NAME)?;
    lab.cli(&["resource", "delete", NAME, "--yes"]).map(drop)
}

/// Cuts the power of the primary. Returns the next primary and its device.
fn lose(cluster: &Cluster, primary: &str) -> Result<(String, String)> {
    cluster.lab.kill(primary)?;
    mainstay_tests::wait_for("another primary", LIMIT, || {
        let (node, device) = cluster.device(NAME)?;
        ensure!(node != primary, "{primary} is still primary");
        Ok((node, device))
    })
}

fn in_force(cluster: &Cluster) -> Result<()> {
    mainstay_tests::wait_for("mode B in force", LIMIT, || {
        let said = cluster.lab.cli(&["resource", "status", NAME])?;
        ensure!(said.contains("acknowledged from memory"), "{said}");
        Ok(())
    })
}

fn peers(view: &ResourceView) -> impl Iterator<Item = (&str, u64)> {
    let live = view.replicas.iter().filter_map(|replica| replica.live.as_ref());
    live.flat_map(|live| &live.peers).map(|peer| (peer.node.as_str(), peer.lag_entries))
}

/// Writes blocks one after the other, an entry each. Block number `n` is full of the letter number
/// `n`.
fn fill(cluster: &Cluster, node: &str, device: &str, from: u64, count: u64) -> Result<()> {
    let letters = (from..from + count).map(|block| format!("{} ", letter(block))).collect::<String>();
    let blocks = format!("for letter in {letters}; do head -c 4096 /dev/zero | tr '\\0' $letter; done");
    let dd =
        format!("dd of={device} bs=4096 seek={from} iflag=fullblock oflag=direct conv=notrunc status=none");
    cluster.lab.shell(node, &format!("{blocks} | {dd}")).map(drop)
}

fn letter(block: u64) -> char {
    char::from(b'a' + (block % 26) as u8)
}

/// Checks that the blocks before `end` have their content, and that the block at `end` has none.
fn check(cluster: &Cluster, node: &str, device: &str, end: u64) -> Result<()> {
    for block in [0, end / 2, end - 1, end] {
        let script = format!(
            "dd if={device} bs=4096 skip={block} count=1 iflag=direct status=none | tr -d '\\0' | head -c 1"
        );
        let found = cluster.lab.shell(node, &script)?;
        let expected = if block < end { letter(block).to_string() } else { String::new() };
        ensure!(found.trim() == expected, "block {block} begins with {found:?}, not with {expected:?}");
    }
    Ok(())
}
