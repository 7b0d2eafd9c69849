//! Links fail while every node lives.

use crate::cluster::{Cluster, DB, LIMIT};
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::StatusView;
use mainstay_tests::command;
use mainstay_tests::ledger::first_commit_after;
use mainstay_tests::now_us;
use mainstay_tests::proof::Ledger;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// One look at a node: which parts of the service were there during this span.
#[derive(Clone, Copy, Debug)]
struct Look {
    from_us: u64,
    to_us: u64,
    address: bool,
    server: bool,
}

fn look(cluster: &Cluster, node: &str) -> Result<Look> {
    let script =
        format!("ip -o address show to {}; pgrep -x mariadbd >/dev/null && echo server; true", DB.vip);
    let from_us = now_us();
    let said = command::output(&mut cluster.lab.inside(node, &["sh", "-c", &script]), LIMIT)?;
    Ok(Look { from_us, to_us: now_us(), address: said.contains(DB.vip), server: said.contains("server") })
}

fn watch(cluster: &Cluster, node: &str, stop: &AtomicBool) -> Result<Vec<Look>> {
    let mut looks = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        looks.push(look(cluster, node)?);
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(looks)
}

/// R19: the old node is silent before the new one starts.
fn silent_before(old: &[Look], new: &[Look], what: &str, there: fn(&Look) -> bool) -> Result<()> {
    let last_old = old.iter().filter(|look| there(look)).map(|look| look.from_us).max();
    let last_old = last_old.with_context(|| format!("{what} was never seen on the old node"))?;
    let first_new = new.iter().filter(|look| there(look)).map(|look| look.to_us).min();
    let first_new = first_new.with_context(|| format!("{what} was never seen on the new node"))?;
    ensure!(
        last_old < first_new,
        "{what} was on both nodes: on the old one {} ms after it was on the new one",
        (last_old - first_new) / 1000
    );
    eprintln!(
        "  {what}: gone on the old node {} ms before it was on the new one",
        (first_new - last_old) / 1000
    );
    Ok(())
}

pub fn isolate_the_primary(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let old = cluster.primary()?;
    let others = cluster.secondaries()?;
    let stop = AtomicBool::new(false);
    let (looks_old, looks_new) = std::thread::scope(|scope| -> Result<_> {
        let old_watch = scope.spawn(|| watch(cluster, &old, &stop));
        let new_watches: Vec<_> =
            others.iter().map(|node| scope.spawn(|| watch(cluster, node, &stop))).collect();
        let position = ledger.position()?;
        cluster.lab.lab(&["isolate", &old])?;
        let cut_us = now_us();
        let committed = mainstay_tests::wait_for("a commit on another node", LIMIT, || {
            first_commit_after(&ledger.notes_from(position)?, cut_us).context("no row was acknowledged")
        });
        stop.store(true, Ordering::Relaxed);
        let old_looks = old_watch.join().expect("a watcher returns its errors")?;
        let mut new_looks = Vec::new();
        for watch in new_watches {
            new_looks.extend(watch.join().expect("a watcher returns its errors")?);
        }
        committed?;
        Ok((old_looks, new_looks))
    })?;
    silent_before(&looks_old, &looks_new, "the address", |look| look.address)?;
    silent_before(&looks_old, &looks_new, "the server", |look| look.server)?;
    let now = look(cluster, &old)?;
    ensure!(!now.address && !now.server, "the isolated node still serves: {now:?}");
    let view = cluster.lab.agent(&old)?.get::<StatusView>("/v1/status")?.cluster.context("a cluster")?;
    ensure!(view.as_of_ms != Some(0), "the isolated node shows an old state as the present one: {view:?}");
    for words in
        [&["resource", "list"][..], &["service", "list"], &["resource", "status", DB.resource], &["events"]]
    {
        let said = cluster.lab.try_cli(&[&["--node", old.as_str()][..], words].concat())?.stderr;
        ensure!(
            said.contains("could not confirm its state"),
            "{words:?} shows an old state as the present one: {said}"
        );
    }
    cluster.lab.lab(&["heal"])?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}

pub fn cut_the_primary_from_one_secondary(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let primary = cluster.primary()?;
    let cut = cluster.secondaries()?[0];
    cluster.lab.lab(&["cut", &primary, cut])?;
    // Long enough for every lease and election to have run out.
    std::thread::sleep(Duration::from_secs(5));
    ledger.wait_commit(now_us(), LIMIT)?;
    ensure!(cluster.primary()? == primary, "{primary} lost its role though a majority sees it");
    cluster.lab.lab(&["heal"])?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}
