//! Metrics of the nodes, before and after the primary's node loses its power.

use crate::cluster::{Cluster, DB, LIMIT, NODES};
use crate::failover::lose_primary;
use anyhow::{Context, Result, ensure};
use mainstay_tests::metrics::Scrape;
use mainstay_tests::proof::Ledger;
use mainstay_tests::wait_for;
use std::collections::BTreeSet;
use std::path::Path;

/// The mean of a histogram or a summary, in seconds.
fn mean(page: &Scrape, family: &str, labels: &str) -> Result<f64> {
    let count = page.value(&format!("{family}_count{labels}"))?;
    ensure!(count > 0.0, "{family}{labels} has counted nothing");
    Ok(page.value(&format!("{family}_sum{labels}"))? / count)
}

fn writes(page: &Scrape) -> Result<f64> {
    page.value("mainstay_requests_total{resource=\"db\",volume=\"0\",op=\"write\"}")
}

pub fn metrics_follow_a_failover(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let primary = cluster.primary()?;
    let before = Scrape::of(lab, &primary)?;
    check_primary(&before, NODES.len())?;
    for node in NODES {
        let page = Scrape::of(lab, node)?;
        check_node(&page, &lab.name, node)?;
        if node != primary {
            check_secondary(&page)?;
        }
        ensure!(page.names().count() > 50, "{page:?}");
        known_names(&page)?;
    }
    wait_for("more writes in the metrics, of the command line too", LIMIT, || {
        let [now, said] = [Scrape::of(lab, &primary)?, Scrape::from_cli(lab, &primary)?];
        ensure!(writes(&now)? > writes(&before)? && writes(&said)? > writes(&before)?, "no more writes");
        Ok(())
    })?;

    let secondaries = cluster.secondaries()?;
    let counted = |node: &str| -> Result<f64> {
        let page = Scrape::of(lab, node)?;
        Ok(page.get("mainstay_promotions_total{resource=\"db\",cause=\"failover\"}").unwrap_or(0.0))
    };
    let failovers = secondaries.iter().map(|node| counted(node)).collect::<Result<Vec<_>>>()?;
    let (lost, _) = lose_primary(cluster, ledger)?;
    ensure!(lost == primary, "{lost} was lost and not {primary}");
    let new = cluster.primary()?;
    lab.wait_running(DB.name, LIMIT)?;
    let place = secondaries.iter().position(|node| *node == new).context("a secondary took over")?;
    ensure!(counted(&new)? == failovers[place] + 1.0, "the failover to {new} was not counted once");
    wait_for("the new primary in the metrics", LIMIT, || {
        let page = Scrape::of(lab, &new)?;
        check_primary(&page, NODES.len() - 1)?;
        page.is(&format!("mainstay_node_alive{{peer=\"{lost}\"}}"), 0.0)?;
        page.is("mainstay_service_running{service=\"db\"}", 1.0)?;
        for step in ["promise", "begin", "serve", "device"] {
            let labels = format!("{{resource=\"db\",step=\"{step}\"}}");
            let took = mean(&page, "mainstay_promotion_step_duration_seconds", &labels)?;
            ensure!(took < 60.0, "{step} took {took} s");
        }
        ensure!(mean(&page, "mainstay_service_start_duration_seconds", "{service=\"db\"}")? > 0.0, "no time");
        Ok(())
    })?;
    let other = secondaries.into_iter().find(|node| *node != new).context("there are three nodes")?;
    ensure!(counted(other)? == failovers[1 - place], "a failover to {new} was counted on {other}");
    lab.start(&lost)?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    wait_for("the node that was lost in the metrics", LIMIT, || {
        let page = Scrape::of(lab, &lost)?;
        check_node(&page, &lab.name, &lost)?;
        // The agent has gone through the log again, with the promotion of this node in it.
        let counted = page.names().any(|name| name == "mainstay_promotions_total");
        ensure!(!counted, "{lost} counts promotions of before it was started");
        check_secondary(&page)
    })
}

fn check_node(page: &Scrape, cluster: &str, node: &str) -> Result<()> {
    let labels = format!("{{cluster=\"{cluster}\",node=\"{node}\",witness=\"false\"}}");
    page.is(&format!("mainstay_node_info{labels}"), 1.0)?;
    page.is("mainstay_engine_up", 1.0)?;
    page.is("mainstay_control_leader_known", 1.0)?;
    page.is("mainstay_control_voters", 3.0)?;
    let lease = page.value("mainstay_lease_remaining_seconds")?;
    ensure!(lease > 0.0 && lease < 60.0, "{node} has a lease of {lease} s");
    let (free, size) = (page.value("mainstay_pool_free_bytes")?, page.value("mainstay_pool_size_bytes")?);
    ensure!(free > 0.0 && free < size, "{node} has {free} of {size} bytes free");
    let (used, size) = (
        page.value("mainstay_journal_used_bytes{resource=\"db\"}")?,
        page.value("mainstay_journal_size_bytes{resource=\"db\"}")?,
    );
    ensure!(used <= size && size == f64::from(64 << 20), "{node}: {used} of {size} bytes of the journal");
    for process in ["agent", "engine"] {
        let labels = format!("{{process=\"{process}\"}}");
        ensure!(page.value(&format!("mainstay_process_resident_memory_bytes{labels}"))? > 1e6, "{process}");
        ensure!(page.value(&format!("mainstay_process_cpu_seconds_total{labels}"))? > 0.0, "{process}");
    }
    mean(page, "mainstay_journal_write_duration_seconds", "{resource=\"db\"}").map(drop)
}

/// Checks the metrics of the primary while `copies` replicas are in sync.
fn check_primary(page: &Scrape, copies: usize) -> Result<()> {
    page.is("mainstay_replica_role{resource=\"db\",role=\"primary\"}", 1.0)?;
    page.is("mainstay_replica_serving{resource=\"db\"}", 1.0)?;
    page.is("mainstay_resource_in_sync_replicas{resource=\"db\"}", copies as f64)?;
    page.is("mainstay_replica_required_members{resource=\"db\"}", copies as f64)?;
    page.is("mainstay_resource_replicas{resource=\"db\"}", NODES.len() as f64)?;
    ensure!(writes(page)? > 0.0, "no writes under load");
    // A slower operation would have ended the load.
    for (family, labels) in [
        ("mainstay_request_duration_seconds", "{resource=\"db\",op=\"write\"}"),
        ("mainstay_commit_duration_seconds", "{resource=\"db\"}"),
        ("mainstay_journal_write_duration_seconds", "{resource=\"db\"}"),
    ] {
        let mean = mean(page, family, labels)?;
        ensure!(mean > 1e-6 && mean < 30.0, "{family}: {mean} s on average");
    }
    let entries = mean(page, "mainstay_batch_entries", "{resource=\"db\"}")?;
    ensure!((1.0..=96.0).contains(&entries), "{entries} entries in a batch");
    // Every write is in the journal as a whole.
    let written = page.value("mainstay_disk_written_bytes_total{resource=\"db\",area=\"journal\"}")?;
    let asked = page.value("mainstay_request_bytes_total{resource=\"db\",volume=\"0\",op=\"write\"}")?;
    ensure!(written > asked, "{written} bytes in the journal for {asked}");
    Ok(())
}

fn check_secondary(page: &Scrape) -> Result<()> {
    page.is("mainstay_replica_role{resource=\"db\",role=\"secondary\"}", 1.0)?;
    page.is("mainstay_replica_serving{resource=\"db\"}", 0.0)?;
    page.is("mainstay_replica_in_sync{resource=\"db\"}", 1.0)?;
    page.is("mainstay_replica_consistent{resource=\"db\"}", 1.0)?;
    ensure!(page.names().all(|name| name != "mainstay_peer_connected"), "a secondary sees no peers");
    Ok(())
}

/// Every name is one that docs/metrics.md explains.
fn known_names(page: &Scrape) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let known: BTreeSet<&str> = text.split('`').collect();
    let ends = ["", "_bucket", "_sum", "_count"];
    let explained =
        |name: &str| ends.iter().any(|end| name.strip_suffix(end).is_some_and(|name| known.contains(name)));
    let unknown: BTreeSet<&str> = page.names().filter(|name| !explained(name)).collect();
    ensure!(unknown.is_empty(), "not in docs/metrics.md: {unknown:?}");
    Ok(())
}
