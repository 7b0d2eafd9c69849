//! A node that joins as a witness: it has an agent and no engine, a vote and no data (S26).

use crate::cluster::{Cluster, DB, LIMIT};
use crate::failover::lose_primary;
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{NodeStatus, TokenMade};
use mainstay_tests::lab::CLIENT;
use mainstay_tests::ledger::{Note, longest_gap_us};
use mainstay_tests::metrics::Scrape;
use mainstay_tests::proof::Ledger;
use mainstay_tests::{command, now_us, wait_for};
use std::time::Duration;

const HOLDERS: [&str; 2] = ["n1", "n2"];
const WITNESS: &str = "n3";
/// Limit from the power cut to the first commit on the other node. It takes some 3 s on an idle
/// machine, and this one may be busy.
const FAILOVER: Duration = Duration::from_secs(30);
/// Time for which the test watches a cluster without a majority: several leases.
const NO_TAKEOVER_FOR: Duration = Duration::from_secs(6);

pub fn cluster() -> Result<Cluster> {
    Cluster::of("-witness", &["--witness", WITNESS], &HOLDERS)
}

/// Two replicas and a witness survive the loss of each of the three. Without the witness and one
/// replica, the other replica does not serve.
pub fn lets_the_other_take_over(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    is_shown(cluster)?;
    holds_nothing(cluster)?;
    let (lost, ms) = lose_primary(cluster, ledger)?;
    eprintln!("  {lost} lost, {ms:.0} ms to the first commit elsewhere");
    ensure!(ms < FAILOVER.as_millis() as f64, "the other took over after {ms:.0} ms");
    let next = other(&lost);
    let runs = cluster.lab.wait_running(DB.name, LIMIT)?;
    ensure!(runs == next && cluster.primary()? == next, "the database runs on {runs}, not on {next}");
    let advice = cluster.lab.resource(DB.resource)?.advice;
    ensure!(advice.iter().any(|one| one.contains("no failover is possible")), "{advice:?}");
    cluster.prove_rows()?;
    cluster.lab.start(&lost)?;
    cluster.lab.wait_in_sync(DB.resource, LIMIT)?;

    its_loss_stops_nothing(cluster, ledger)?;
    without_the_witness_no_node_takes_over(cluster, ledger)?;
    a_second_witness_joins_a_running_cluster(cluster)
}

/// The other one of the two that have replicas.
fn other(node: &str) -> &'static str {
    if node == HOLDERS[0] { HOLDERS[1] } else { HOLDERS[0] }
}

fn is_shown(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    ensure!(lab.pids(WITNESS, "engine")?.is_empty(), "an engine runs on the witness");
    ensure!(lab.pids(WITNESS, "agent")?.len() == 1, "no agent runs on the witness");
    let nodes = lab.status()?.cluster.context("a cluster")?.nodes;
    for node in &nodes {
        let (is, has_pool) = (node.name == WITNESS, node.pool_free_bytes.is_some());
        ensure!(node.voter && node.witness == is && has_pool != is, "{node:?}");
    }
    ensure!(nodes.len() == 3, "{nodes:?}");
    let listed = lab.cli(&["node", "list"])?;
    for line in listed.lines() {
        ensure!(line.contains("witness") == line.starts_with(WITNESS), "{listed}");
    }
    let page = Scrape::of(lab, WITNESS)?;
    let cluster_name = &lab.name;
    let info =
        format!("mainstay_node_info{{cluster=\"{cluster_name}\",node=\"{WITNESS}\",witness=\"true\"}}");
    page.is(&info, 1.0)?;
    page.is("mainstay_engine_up", 0.0)?;
    page.is("mainstay_control_voters", 3.0)?;
    for holder in HOLDERS {
        let page = Scrape::of(lab, holder)?;
        page.is(&format!("mainstay_node_alive{{peer=\"{WITNESS}\"}}"), 1.0)?;
    }
    // The witness lacks nothing, and any node that is asked says so.
    for node in [HOLDERS[0], WITNESS] {
        wait_for("a cluster in good order", LIMIT, || {
            let status = lab.try_cli(&["--node", node, "status"])?;
            let called = status.stdout.contains("this node is a witness");
            ensure!(status.code() == 0 && called == (node == WITNESS), "{status:?}");
            ensure!(!status.stdout.contains("does not answer"), "{status:?}");
            Ok(())
        })?;
    }
    Ok(())
}

/// A witness refuses every request that would put data or devices there, and says why.
fn holds_nothing(cluster: &Cluster) -> Result<()> {
    let lab = &cluster.lab;
    let primary = cluster.primary()?;
    let create = ["resource", "create", "more", "--size", "64MiB"];
    let on_it = [&create[..], &["--replicas", "n1,n3"]].concat();
    let too_many = [&create[..], &["--replica-count", "3"]].concat();
    let is_witness = "n3 is a witness";
    let cases: &[(&[&str], &str)] = &[
        (&["resource", "add-replica", DB.resource, WITNESS], is_witness),
        (&["resource", "move-replica", DB.resource, &primary, "--to", WITNESS], is_witness),
        (&on_it, is_witness),
        (&["resource", "attach", DB.resource, WITNESS], is_witness),
        (&too_many, "2 nodes that may hold data"),
        (&["service", "move", DB.name, "--to", WITNESS], WITNESS),
    ];
    for (words, says) in cases {
        let refused = lab.try_cli(words)?;
        ensure!(refused.code() == 1 && refused.stderr.contains(says), "{words:?}: {refused:?}");
    }
    let status = lab.status()?;
    let [only] = &status.resources[..] else { anyhow::bail!("{:?}", status.resources) };
    let holders: Vec<_> = only.replicas.iter().map(|replica| replica.node.as_str()).collect();
    ensure!(holders == HOLDERS, "{holders:?}");
    let stored = lab.shell(WITNESS, "find /var/lib/mainstay -name 'vol*' -o -name journal -o -name meta")?;
    ensure!(stored.is_empty(), "the witness has {stored}");
    Ok(())
}

/// Writers do not notice the loss of the witness, and the status tells the operator that one more
/// loss ends failover.
fn its_loss_stops_nothing(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let before = lab.resource(DB.resource)?;
    let position = ledger.position()?;
    lab.kill(WITNESS)?;
    let said = wait_for("the advice", LIMIT, || {
        let status = lab.try_cli(&["status"])?;
        ensure!(status.stdout.contains("2 of 3 voters live"), "{status:?}");
        Ok(status)
    })?;
    ensure!(
        said.code() == 4 && said.stdout.contains("if one more is lost nothing can fail over"),
        "{said:?}"
    );
    ensure!(said.stdout.contains(&format!("node {WITNESS}: is dead")), "{said:?}");
    ledger.wait_commit(now_us(), LIMIT)?;
    let after = lab.resource(DB.resource)?;
    let same =
        (before.epoch, before.version, &before.primary) == (after.epoch, after.version, &after.primary);
    ensure!(same && after.replicas.iter().all(|replica| replica.in_sync), "{before:?} became {after:?}");
    let notes = ledger.notes_from(position)?;
    ensure!(notes.iter().all(|note| matches!(note, Note::Acked { .. })), "the database was lost: {notes:?}");
    eprintln!("  the witness lost, {} ms the longest time without a commit", longest_gap_us(&notes) / 1000);
    Ok(())
}

/// One of three votes is no majority. So the other node waits, with everything that was
/// acknowledged, until the witness is back.
fn without_the_witness_no_node_takes_over(cluster: &Cluster, ledger: &Ledger) -> Result<()> {
    let lab = &cluster.lab;
    let lost = cluster.primary()?;
    let next = other(&lost);
    lab.kill(&lost)?;
    wait_for("the advice", LIMIT, || {
        let said = lab.try_cli(&["--node", next, "status"])?;
        ensure!(said.stdout.contains("no change and no failover is possible"), "{said:?}");
        Ok(())
    })?;
    std::thread::sleep(NO_TAKEOVER_FOR);
    ensure!(cluster.primary()? == lost, "{next} took over without a majority");
    lab.shell(next, &format!("! mountpoint -q {}", DB.root()))?;
    lab.start(WITNESS)?;
    let back_us = now_us();
    // Until then the record names the old primary, on whose node the service ran.
    ledger.wait_commit(back_us, LIMIT)?;
    let runs = lab.wait_running(DB.name, LIMIT)?;
    ensure!(runs == next, "the database runs on {runs}, not on {next}");
    cluster.prove_rows()?;
    lab.start(&lost)?;
    lab.wait_in_sync(DB.resource, LIMIT)
}

/// A second witness joins as an operator does it: with an agent, and `mainstay cluster join
/// --witness`. The agent runs in the client's network until the lab ends.
fn a_second_witness_joins_a_running_cluster(cluster: &Cluster) -> Result<()> {
    const NAME: &str = "n4";
    let lab = &cluster.lab;
    let dir = lab.dir().join(NAME);
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (run_dir, state_dir, cgroup) = (path("run"), path("state"), path("cgroup"));
    let program = lab.binary().to_string_lossy().into_owned();
    let words = ["agent", "--run-dir", &run_dir, "--state-dir", &state_dir, "--cgroup-root", &cgroup];
    let words = [&[&program[..]], &words[..], &["--listen", "10.213.0.254:7400"]].concat();
    drop(lab.spawn(CLIENT, &words, "n4.log")?);
    let socket = format!("{run_dir}/agent.sock");
    wait_for("the agent of the second witness", LIMIT, || {
        ensure!(std::fs::exists(&socket)?, "{socket} is not there");
        Ok(())
    })?;
    let made: TokenMade = lab.cli_json(&["cluster", "token", "create", NAME])?;
    let peer = lab.address(HOLDERS[0])?;
    let join = ["cluster", "join", "--peer", &peer, "--as", NAME, "--witness", "--token", &made.token];
    let joined = command::output(
        &mut lab.command(&[&["--socket", &socket][..], &join].concat()),
        Duration::from_secs(60),
    )?;
    ensure!(
        joined.lines().any(|line| line.starts_with(NAME) && line.contains("no vote, witness")),
        "{joined}"
    );
    wait_for("a second witness that is alive", LIMIT, || {
        let nodes = lab.status()?.cluster.context("a cluster")?.nodes;
        let new = nodes.iter().find(|node| node.name == NAME).context("it is not there")?;
        // Of four nodes three vote.
        ensure!(new.witness && !new.voter && new.connected && new.status == NodeStatus::Alive, "{new:?}");
        Scrape::of(lab, HOLDERS[0])?.is("mainstay_control_voters", 3.0)
    })?;
    let refused = lab.try_cli(&["resource", "add-replica", DB.resource, NAME])?;
    ensure!(refused.stderr.contains("is-witness"), "{refused:?}");
    Ok(())
}
