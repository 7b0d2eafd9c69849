//! Replicas are compared and repaired under the database, while rows are inserted.

use crate::cluster::{Cluster, DB, LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_api::engine::{ScrubOutcome, ScrubState};
use mainstay_api::rest::{ResourceView, ScrubReport, ScrubsView};
use mainstay_tests::proof::Ledger;
use mainstay_tests::wait_for;

const BLOCK: u64 = 4096;
const POOL: &str = "/var/lib/mainstay/pools/default";
/// A copy of the file system's superblock, which is not written again, and blocks that it does not use.
const DAMAGED: [(u64, u64); 2] = [(65_536, 1), (100_000, 3)];

fn scrub(cluster: &Cluster, more: &[&str]) -> Result<ScrubReport> {
    cluster.lab.cli_json(&[&["resource", "scrub", DB.resource], more].concat())
}

/// What a disk does that loses or changes what it holds: nobody is told.
fn damage(cluster: &Cluster, node: &str) -> Result<()> {
    for (block, blocks) in DAMAGED {
        let script = format!(
            "f=$(ls {POOL}/*{}*/vol0) && \
             dd if=/dev/urandom of=$f bs={BLOCK} seek={block} count={blocks} oflag=direct conv=notrunc,fsync",
            DB.resource
        );
        cluster.lab.shell(node, &script)?;
    }
    Ok(())
}

/// The primary's own blocks are damaged: who reads them gets what the others hold, the primary goes on, and nothing is left to repair.
fn read_in_passing(cluster: &Cluster) -> Result<()> {
    let (primary, device) = cluster.device(DB.resource)?;
    // Never damaged, so that its file holds what is right whatever was destaged.
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
    let blamed = |one: &mainstay_api::rest::ScrubFinding| {
        one.proven && one.groups.len() == 1 && one.damaged == [node] && !one.right.contains(&node.into())
    };
    ensure!(found.findings.iter().all(blamed), "who is wrong is known: {found:?}");
    ensure!(scrub(cluster, &["--report"])? == found, "the report can be had again");

    let repaired = scrub(cluster, &["--repair"])?;
    ensure!(repaired.equal && repaired.unrepaired == 0, "{repaired:?}");
    ensure!(repaired.repaired + repaired.overwritten == 4, "{repaired:?}");
    let outcomes = [ScrubOutcome::Repaired, ScrubOutcome::Overwritten];
    ensure!(repaired.findings.iter().all(|one| outcomes.contains(&one.outcome)), "{repaired:?}");
    let again = scrub(cluster, &[])?;
    ensure!(again.equal && again.different == 0, "{again:?}");

    read_in_passing(cluster)?;

    // One that takes long is watched, is the only one, and can be ended.
    cluster.lab.cli(&["resource", "scrub", DB.resource, "--no-wait", "--rate", "1MiB"])?;
    let running = scrub(cluster, &["--report"])?;
    ensure!(running.state == ScrubState::Running && running.done < running.extents, "{running:?}");
    let second = cluster.lab.try_cli(&["resource", "scrub", DB.resource])?;
    ensure!(second.code() == 1 && second.stderr.contains("scrub-running"), "{}", second.stderr);
    cluster.lab.cli(&["resource", "scrub", DB.resource, "--stop"])?;
    ensure!(scrub(cluster, &["--report"])?.state == ScrubState::Stopped, "it was ended");
    Ok(())
}

/// By a schedule, on the next primary too, which knows of the one before.
pub fn what_rots_is_found_and_repaired_unasked(cluster: &Cluster, _ledger: &Ledger) -> Result<()> {
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
