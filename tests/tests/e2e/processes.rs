//! Mainstay's own programs die while their node lives.

use crate::cluster::{Cluster, DB, LIMIT, NODES};
use anyhow::{Result, ensure};
use mainstay_tests::ledger::Note;
use mainstay_tests::now_us;
use mainstay_tests::proof::Ledger;
use std::time::Duration;

const RAW: &str = "raw";

/// The agent decides and the engine serves, so programs above the device do not notice that the
/// agent is gone.
pub fn kill_the_agent_alone(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let primary = cluster.primary()?;
    lab.create_resource(RAW, "128MiB", &NODES, &["--preferred", &primary])?;
    let (node, device) = cluster.device(RAW)?;
    ensure!(node == primary, "{RAW} is served by {node}, though {primary} is preferred");
    let writer = [
        "fio",
        "--name=writer",
        &format!("--filename={device}"),
        "--rw=randwrite",
        "--bs=4k",
        "--size=64M",
        "--direct=1",
        "--ioengine=psync",
        "--rate_iops=400",
        "--time_based",
        "--runtime=10",
        "--verify=crc32c",
        "--verify_backlog=64",
    ];
    let mut writer = lab.spawn(&node, &writer, "fio.log")?;
    std::thread::sleep(Duration::from_secs(1));
    let position = ledger.position()?;
    for _ in 0..3 {
        lab.kill_program(&node, "agent")?;
        std::thread::sleep(Duration::from_millis(1500));
    }
    ledger.wait_commit(now_us(), LIMIT)?;
    let status = mainstay_tests::command::wait(&mut writer, LIMIT)?;
    let said = std::fs::read_to_string(lab.dir().join("fio.log")).unwrap_or_default();
    ensure!(status.is_some_and(|status| status.success()), "the writer saw an error: {said}");
    for note in ledger.notes_from(position)? {
        ensure!(matches!(note, Note::Acked { .. }), "the database's client noticed: {note:?}");
    }
    ensure!(cluster.primary()? == primary, "the primary moved");
    cluster.prove_equal(RAW)?;
    lab.cli(&["resource", "delete", RAW, "--yes"]).map(drop)
}

/// The engine is the data plane: its death takes the devices away, and the cluster repairs that by
/// itself, here or on another node.
pub fn kill_the_engine_alone(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let primary = cluster.primary()?;
    cluster.lab.kill_program(&primary, "engine")?;
    let dead_us = now_us();
    let commit_us = ledger.wait_commit(dead_us, LIMIT)?;
    eprintln!("  {} ms to the first commit", (commit_us - dead_us) / 1000);
    cluster.lab.wait_in_sync(DB.resource, LIMIT)?;
    let secondary = cluster.secondaries()?[0];
    cluster.lab.kill_program(secondary, "engine")?;
    ledger.wait_commit(now_us(), LIMIT)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)
}

/// A database that hangs is found by its probe, which logs in. It is killed and started again where
/// it is. Nothing that it acknowledged is missing afterwards.
pub fn a_database_that_stands_still_is_started_again(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let (lab, primary) = (&cluster.lab, cluster.primary()?);
    lab.shell(&primary, "kill -STOP $(pgrep -x mariadbd)")?;
    let stopped_us = now_us();
    let commit_us = ledger.wait_commit(stopped_us, LIMIT)?;
    eprintln!("  {} ms to the first commit", (commit_us - stopped_us) / 1000);
    ensure!(cluster.primary()? == primary, "the primary moved");
    let service = lab.cli(&["service", "status", DB.name])?;
    ensure!(service.contains("does not answer"), "the status does not tell why: {service}");
    let events = lab.cli(&["events"])?;
    ensure!(events.contains("process mariadb does not answer"), "no event tells why:\n{events}");
    Ok(())
}
