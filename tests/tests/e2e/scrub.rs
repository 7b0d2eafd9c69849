//! Replicas are compared and repaired under the database, while rows are inserted.

use crate::cluster::{Cluster, DB, LIMIT, NODES};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{ResourceView, ScrubFindingView, ScrubOutcome, ScrubReport, ScrubState, ScrubsView};
use mainstay_tests::metrics::Scrape;
use mainstay_tests::proof::Ledger;
use mainstay_tests::wait_for;

const BLOCK: u64 = 4096;
const POOL: &str = "/var/lib/mainstay/pools/default";
/// A copy of the file system's superblock, which is not written again, and blocks that it does not
/// use.
const DAMAGED: [(u64, u64); 2] = [(65_536, 1), (100_000, 3)];
/// File of its own, so that the lost blocks are not the database's.
const LOST: &str = "/srv/db/lost-blocks";
const LOST_BLOCKS: u64 = 3;

fn scrub(cluster: &Cluster, more: &[&str]) -> Result<ScrubReport> {
    cluster.lab.cli_json(&[&["resource", "scrub", DB.resource], more].concat())
}

/// Overwrites blocks of a replica's file behind Mainstay's back, like a disk that loses or changes
/// its content.
fn damage(cluster: &Cluster, node: &str) -> Result<()> {
    DAMAGED.into_iter().try_for_each(|blocks| damage_at(cluster, node, blocks))
}

fn damage_at(cluster: &Cluster, node: &str, (block, blocks): (u64, u64)) -> Result<()> {
    let script = format!(
        "f=$(ls {POOL}/*{}*/vol0) && \
         dd if=/dev/urandom of=$f bs={BLOCK} seek={block} count={blocks} oflag=direct conv=notrunc,fsync",
        DB.resource
    );
    cluster.lab.shell(node, &script).map(drop)
}

/// The primary's own blocks are damaged. Reads return the content of the other replicas, the
/// primary goes on, and nothing is left to repair.
fn read_in_passing(cluster: &Cluster) -> Result<()> {
    let (primary, device) = cluster.device(DB.resource)?;
    // Never damaged, so that its file has the right content, however much was destaged.
    let whole = cluster.secondaries()?[1];
    damage(cluster, &primary)?;
    for (block, blocks) in DAMAGED {
        let sum = |file: &str| {
            format!("dd if={file} bs={BLOCK} skip={block} count={blocks} iflag=direct status=none | md5sum")
        };
        let read = cluster.lab.shell(&primary, &sum(&device))?;
        let held = cluster.lab.shell(whole, &sum(&format!("$(ls {POOL}/*{}*/vol0)", DB.resource)))?;
        ensure!(read == held, "block {block} is read as {read}, and {whole} holds {held}");
    }
    let after = scrub(cluster, &[])?;
    ensure!(after.equal && after.different == 0, "all of it was written anew: {after:?}");
    ensure!(cluster.primary()? == primary, "its replica has gone on");
    Ok(())
}

/// Place of the last blocks of a file, from the output of `filefrag -v`.
fn end_of(told: &str) -> Result<u64> {
    let is_extent =
        |line: &&str| line.split(':').next().is_some_and(|number| number.trim().parse::<u64>().is_ok());
    let last = told.lines().rfind(is_extent).context("no extent")?;
    let end = last.split(':').nth(2).and_then(|physical| physical.split("..").nth(1)?.trim().parse().ok());
    end.with_context(|| format!("the last block is not in {last}"))
}

/// No replica has some blocks whole. A replica that is filled anew takes them as damaged and joins,
/// a read of them fails, and a write heals them everywhere.
fn copied_as_damage(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    let (primary, device) = cluster.device(DB.resource)?;
    let blocks = LOST_BLOCKS;
    let made = format!(
        "dd if=/dev/urandom of={LOST} bs={BLOCK} count=2048 conv=fsync status=none && filefrag -b{BLOCK} -v {LOST}"
    );
    let block = end_of(&lab.shell(&primary, &made)?)? + 1 - blocks;
    let over = format!("bs={BLOCK} seek={block} count={blocks} oflag=direct status=none");
    // Content that is still in a journal would be written over the damage.
    let sum = |node: &str, file: &str| {
        lab.shell(
            node,
            &format!("dd if={file} bs={BLOCK} skip={block} count={blocks} iflag=direct status=none | md5sum"),
        )
    };
    let written = sum(&primary, &device)?;
    for node in NODES {
        wait_for("the blocks are at rest", LIMIT, || {
            let held = sum(node, &format!("$(ls {POOL}/*{}*/vol0)", DB.resource))?;
            ensure!(held == written, "{node} holds {held}, and {written} was written");
            Ok(())
        })?;
        damage_at(cluster, node, (block, blocks))?;
    }
    let new = cluster.secondaries()?[0];
    lab.cli(&["resource", "remove-replica", DB.resource, new])?;
    lab.cli(&["resource", "add-replica", DB.resource, new])?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    let at_rest = format!(
        "dd if=$(ls {POOL}/*{}*/vol0) bs={BLOCK} skip={block} count=1 iflag=direct status=none",
        DB.resource
    );
    let held = lab.shell(new, &format!("{at_rest} | head -c 15"))?;
    ensure!(held == "MAINSTAY: LOST.", "{new} holds {held:?} where no replica has anything");
    let copied = Scrape::of(lab, &primary)?.value("mainstay_damage_copied_blocks_total{resource=\"db\"}")?;
    ensure!(copied == blocks as f64, "{copied} blocks were copied as damaged");

    // The read fails on the new replica's node too.
    for node in [primary.as_str(), new] {
        if node != primary {
            lab.cli(&["service", "move", DB.name, "--to", node])?;
        }
        let (serving, device) = cluster.device(DB.resource)?;
        ensure!(serving == node, "{serving} serves, not {node}");
        let read =
            format!("dd if={device} bs={BLOCK} skip={block} count=1 iflag=direct status=none || echo ERROR");
        let read = lab.shell(node, &read)?;
        ensure!(
            read.trim_end().ends_with("ERROR"),
            "{node} reads {} bytes of content that no replica has",
            read.len()
        );
        let told = || lab.cli(&["resource", "status", DB.resource]);
        wait_for("the status names the block", LIMIT, || {
            let text = told()?;
            ensure!(text.contains(&format!("block {block} of volume 0 is damaged, with 2 more")), "{text}");
            Ok(())
        })?;
    }
    let found = scrub(cluster, &["--repair"])?;
    let nowhere = |one: &ScrubFindingView| one.right.is_empty() && one.damaged.len() == NODES.len();
    ensure!(found.unrepaired == blocks && found.findings.iter().all(nowhere), "no replica has it: {found:?}");

    let (_, device) = cluster.device(DB.resource)?;
    lab.shell(new, &format!("dd if=/dev/zero of={device} {over}"))?;
    wait_for("nothing is lost any more", LIMIT, || {
        let text = lab.cli(&["resource", "status", DB.resource])?;
        ensure!(!text.contains("is damaged"), "{text}");
        Ok(())
    })?;
    let after = scrub(cluster, &[])?;
    ensure!(after.equal && after.different == 0, "the write has healed all replicas: {after:?}");
    lab.shell(new, &format!("rm {LOST}"))?;
    Ok(())
}

pub fn damaged_blocks_are_found_and_repaired(cluster: &Cluster, _ledger: &Ledger) -> Result<()> {
    cluster.prove_equal(DB.resource)?;
    let node = cluster.secondaries()?[0];
    damage(cluster, node)?;

    let found = scrub(cluster, &[])?;
    ensure!(found.state == ScrubState::Done && found.complete && !found.equal, "{found:?}");
    ensure!(
        found.replicas.len() == NODES.len() && found.replicas.iter().all(|one| one.extents == found.extents),
        "all are compared in all extents: {found:?}"
    );
    let places: Vec<_> = found.findings.iter().map(|one| (one.block, one.blocks)).collect();
    ensure!(
        places == DAMAGED && found.unrepaired == 4,
        "what was damaged is found, and nothing else: {found:?}"
    );
    let blamed = |one: &ScrubFindingView| {
        one.proven && one.groups.len() == 1 && one.damaged == [node] && !one.right.contains(&node.into())
    };
    ensure!(found.findings.iter().all(blamed), "the wrong replica is known: {found:?}");
    ensure!(scrub(cluster, &["--report"])? == found, "the report can be had again");

    let repaired = scrub(cluster, &["--repair"])?;
    ensure!(repaired.equal && repaired.unrepaired == 0, "{repaired:?}");
    ensure!(repaired.repaired + repaired.overwritten == 4, "{repaired:?}");
    let outcomes = [ScrubOutcome::Repaired, ScrubOutcome::Overwritten];
    ensure!(repaired.findings.iter().all(|one| outcomes.contains(&one.outcome)), "{repaired:?}");
    let again = scrub(cluster, &[])?;
    ensure!(again.equal && again.different == 0, "{again:?}");

    read_in_passing(cluster)?;
    copied_as_damage(cluster)?;

    // A long scrub can be watched and ended, and it is the only one.
    cluster.lab.cli(&["resource", "scrub", DB.resource, "--no-wait", "--rate", "1MiB"])?;
    let running = scrub(cluster, &["--report"])?;
    ensure!(running.state == ScrubState::Running && running.done < running.extents, "{running:?}");
    let second = cluster.lab.try_cli(&["resource", "scrub", DB.resource])?;
    ensure!(second.code() == 1 && second.stderr.contains("scrub-running"), "{}", second.stderr);
    cluster.lab.cli(&["resource", "scrub", DB.resource, "--stop"])?;
    ensure!(scrub(cluster, &["--report"])?.state == ScrubState::Stopped, "it was ended");
    Ok(())
}

/// A scheduled scrub finds the damage and repairs it. The next primary knows of the last scrub.
pub fn a_scheduled_scrub_finds_and_repairs_rot(cluster: &Cluster, _ledger: &Ledger) -> Result<()> {
    cluster.prove_equal(DB.resource)?;
    let shown = || cluster.lab.cli_json::<ResourceView>(&["resource", "status", DB.resource]);
    let until = |what: &str, is: &dyn Fn(&ScrubsView) -> bool| -> Result<ScrubsView> {
        wait_for(what, LIMIT, || {
            let scrubs = shown()?.scrubs;
            ensure!(is(&scrubs), "{scrubs:?}");
            Ok(scrubs)
        })
    };
    let before = shown()?.scrubs;
    ensure!(before.interval_ms == 30 * 86_400_000 && before.due_ms.is_some(), "{before:?}");
    damage(cluster, cluster.secondaries()?[0])?;
    cluster.lab.cli(&["resource", "set-scrub", DB.resource, "--scrub-interval", "8s"])?;
    let found = until("a scrub that finds the damage", &|scrubs| {
        scrubs.whole.as_ref().is_some_and(|last| last.different > 0)
    })?;
    let whole = found.whole.unwrap_or_default();
    ensure!(whole.different == 4 && whole.unrepaired == 0, "all of it was repaired: {whole:?}");
    until("the next one, which finds nothing", &|scrubs| {
        scrubs.whole.as_ref().is_some_and(|last| last.at_ms > whole.at_ms && last.different == 0)
    })?;

    cluster.lab.cli(&["resource", "set-scrub", DB.resource, "--scrub-interval", "off"])?;
    let last = until("that none is under way", &|scrubs| !scrubs.running)?.whole;
    let (primary, to) = (cluster.primary()?, cluster.secondaries()?[0]);
    cluster.lab.cli(&["service", "move", DB.name, "--to", to])?;
    ensure!(cluster.primary()? != primary, "the service has moved");
    let known = shown()?.scrubs;
    ensure!(last.is_some() && known.whole == last && known.due_ms.is_none(), "{last:?}, then {known:?}");
    cluster.lab.cli(&["resource", "set-scrub", DB.resource, "--scrub-interval", "30d"])?;
    Ok(())
}
