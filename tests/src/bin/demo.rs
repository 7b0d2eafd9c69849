//! The demo: MariaDB runs under load on three replicas, loses its machine, and goes on elsewhere
//! with nothing lost. Then come the proofs and the times. `demo --down` ends the cluster that the
//! demo leaves up.

use anyhow::{Context, Result, ensure};
use mainstay_tests::events::Follower;
use mainstay_tests::lab::Lab;
use mainstay_tests::ledger::{Note, first_commit_after, first_connection_after};
use mainstay_tests::mariadb::Service;
use mainstay_tests::plain::Plain;
use mainstay_tests::proof::{self, Ledger};
use mainstay_tests::report::{Report, Run, Throughput, mean_tps};
use mainstay_tests::sysbench::{self, Background, Second};
use mainstay_tests::timeline::{Failover, Stage};
use mainstay_tests::{interrupt, now_us, wait_for};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LAB: &str = "demo";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const FIRST: &str = NODES[0];
/// Every lab has a switch of its own, so these are the same everywhere.
const FIRST_ADDRESS: &str = "10.213.0.1";
const DB: Service<'static> = Service { name: "db", resource: "db", vip: "10.213.0.100", port: 3306 };
const SINGLE: Service<'static> =
    Service { name: "single", resource: "single", vip: "10.213.0.101", port: 3308 };
const PLAIN_PORT: u16 = 3307;
const VOLUME_GIB: u32 = 4;

const THREADS: u32 = 10;
const ROUNDS: usize = 2;
const WARMUP_S: u64 = 3;
const ROUND_S: u64 = 12;
/// Phases of the failover run.
const BEFORE: Duration = Duration::from_secs(12);
const DEGRADED: Duration = Duration::from_secs(10);
const AFTER: Duration = Duration::from_secs(10);
/// Longest patience with anything that should take seconds.
const LIMIT: Duration = Duration::from_secs(60);
const LEDGER_CONNECTIONS: usize = 4;
const LEDGER_PAUSE_MS: u64 = 5;

fn main() -> ExitCode {
    let down = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--down") => true,
        Some(_) => {
            eprintln!("usage: demo [--down]");
            return ExitCode::from(2);
        }
    };
    let result = Lab::new(LAB).and_then(|lab| if down { lab.down().map(|()| true) } else { demo(lab) });
    interrupt::give_way();
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("\nA proof failed. The cluster is still up: look around, then `make demo-down`.");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("\nThe demo could not go on: {error:#}");
            eprintln!("The cluster is left as it is: look around, then `make demo-down`.");
            ExitCode::FAILURE
        }
    }
}

fn step(text: &str) {
    println!("\n── {text}");
}

fn demo(lab: Lab) -> Result<bool> {
    let start = Instant::now();
    let lab = Arc::new(lab);
    interrupt::remove(vec![lab.clone()], "make demo-down")?;
    let mut report = Report {
        version: lab.command(&["--version"]).output().map_or_else(
            |_| String::new(),
            |output| String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        ),
        processors: std::thread::available_parallelism().map_or(0, usize::from),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        ..Report::default()
    };

    step("A cluster of three nodes on this machine");
    lab.up(NODES.len() as u8)?;
    lab.quick_keepalive()?;
    report.lease_ms = lab.status()?.cluster.context("the lab has a cluster")?.lease_ms;
    println!("{} nodes, lease {} ms", NODES.len(), report.lease_ms);

    step("MariaDB three times: on a plain device, on a single copy, on three replicas");
    let size = format!("{VOLUME_GIB}GiB");
    lab.create_resource(DB.resource, &size, &NODES, &["--preferred", FIRST])?;
    DB.apply(&lab)?;
    lab.create_resource(SINGLE.resource, &size, &[FIRST], &[])?;
    SINGLE.apply(&lab)?;
    let mut plain = Plain::start(&lab, FIRST, FIRST_ADDRESS, PLAIN_PORT, u64::from(VOLUME_GIB) << 10)?;
    for service in [&DB, &SINGLE] {
        let node = lab.wait_running(service.name, LIMIT)?;
        println!("service `{}` runs on {node}, reached at {}", service.name, service.address());
        ensure!(node == FIRST, "all three databases have to run on {FIRST} to be compared");
    }

    step(&format!("sysbench oltp_read_write, {THREADS} threads, over TCP, in turns"));
    report.runs = compare(&lab, plain.address())?;
    report.db_recovery_ms = plain_recovery(&lab, &mut plain)?;
    println!("the plain database after kill -9: {:.0} ms to its first commit", report.db_recovery_ms);
    plain.stop()?;
    lab.cli(&["service", "delete", SINGLE.name])?;
    lab.cli(&["resource", "delete", SINGLE.resource, "--yes"])?;

    step("The machine under the database loses power");
    let notes = lab.dir().join("ledger.notes");
    fail_over(&lab, &notes, &mut report)?;

    step("Proofs");
    let verdict = proof::ledger(&lab, &DB.address(), &notes)?;
    (report.acknowledged_rows, report.lost_rows) = (verdict.acknowledged_rows, verdict.lost_rows);
    report.wrong_rows = verdict.wrong_rows + verdict.unasked_rows;
    (report.tables_checked, report.table_faults) = proof::tables(&lab, &DB.address())?;
    let scrub = lab.scrub(DB.resource)?;
    (report.replicas_equal, report.compared_at_index) = (scrub.equal, scrub.index);
    if !scrub.equal {
        println!("{}", proof::difference(&scrub));
    }
    println!("{}", report.text());
    let path = write_json(&report)?;
    println!("The report as JSON: {}", path.display());
    println!("The demo took {:.0} s.", start.elapsed().as_secs_f64());
    try_next(&lab)?;
    Ok(report.good())
}

/// Runs all environments in turns, so that a machine that becomes slower is slower for all.
fn compare(lab: &Lab, plain: &str) -> Result<Vec<Run>> {
    let (single, three) = (SINGLE.address(), DB.address());
    let environments =
        [("plain local device", plain), ("single-copy volume", &*single), ("three replicas", &*three)];
    for (name, address) in environments {
        wait_for(name, LIMIT, || sysbench::prepare(lab, address))?;
    }
    let mut rounds = vec![Vec::new(); environments.len()];
    for round in 1..=ROUNDS {
        for (place, (name, address)) in environments.iter().enumerate() {
            let summary = sysbench::run(lab, address, THREADS, WARMUP_S, ROUND_S)?;
            println!("round {round}: {name:<20} {:>6.0} TPS, {:.1} ms p95", summary.tps, summary.p95_ms);
            rounds[place].push(summary);
        }
    }
    let run = |((name, _), rounds): (&(&str, &str), &Vec<_>)| Run::over(name, THREADS, rounds);
    Ok(environments.iter().zip(&rounds).map(run).collect())
}

/// Milliseconds from the start of the killed server to its first commit, under the load that the
/// failover run has.
fn plain_recovery(lab: &Lab, plain: &mut Plain<'_>) -> Result<f64> {
    let notes = lab.dir().join("plain.notes");
    let ledger = Ledger::start(lab, plain.address(), &notes, LEDGER_CONNECTIONS, LEDGER_PAUSE_MS)?;
    let load = Background::start(lab, plain.address(), THREADS, 8)?;
    ledger.wait_commit(0, LIMIT)?;
    std::thread::sleep(Duration::from_secs(5));
    let restarted_us = plain.crash_and_restart()?;
    let commit_us = ledger.wait_commit(restarted_us, LIMIT)?;
    load.end()?;
    ledger.stop()?;
    Ok((commit_us - restarted_us) as f64 / 1000.0)
}

fn fail_over(lab: &Arc<Lab>, notes: &Path, report: &mut Report) -> Result<()> {
    let lost = lab.primary(DB.resource)?;
    let ledger = Ledger::start(lab, &DB.address(), notes, LEDGER_CONNECTIONS, LEDGER_PAUSE_MS)?;
    ledger.wait_commit(0, LIMIT)?;
    let load_s = (BEFORE + DEGRADED + AFTER + LIMIT).as_secs();
    let load = Background::start(lab, &DB.address(), THREADS, load_s)?;
    let load_began = Instant::now();
    std::thread::sleep(BEFORE);
    for node in NODES {
        report.memory_bytes.push((node.into(), lab.memory(node)?));
    }
    let follower = Follower::start(lab)?;
    let position = ledger.position()?;

    println!("  +0.000 s  {lost} loses power: the database, its file system and its address were there");
    let cut = load_began.elapsed().as_secs_f64();
    let cut_us = now_us();
    lab.kill(&lost)?;
    let dead_us = now_us();
    let failover = watch(&follower, || ledger.notes_from(position), &lost, cut_us, dead_us)?;
    let first_commit = load_began.elapsed().as_secs_f64();
    let runs_on = lab.wait_running(DB.name, LIMIT)?;
    println!("the database runs on {runs_on}; {:.0} ms without a commit", failover.total.unwrap_or_default());
    report.failover_ms = failover;
    // sysbench does not survive the loss of its server, so the phases after it have a load of their
    // own.
    let until_cut: Vec<Second> = load.seconds()?;
    drop(load);
    let load = Background::start(lab, &DB.address(), THREADS, load_s)?;
    let load_began = Instant::now();
    std::thread::sleep(DEGRADED);

    let returned = load_began.elapsed().as_secs_f64();
    let start = Instant::now();
    lab.start(&lost)?;
    println!("{lost} has power again");
    lab.wait_in_sync(DB.resource, LIMIT)?;
    report.resync_ms = start.elapsed().as_secs_f64() * 1000.0;
    println!("{lost} is in sync again after {:.1} s, under load", report.resync_ms / 1000.0);
    std::thread::sleep(AFTER);
    let seconds: Vec<Second> = load.seconds()?;
    drop(load);
    ledger.stop()?;
    report.throughput = Throughput {
        before_tps: mean_tps(&until_cut, 2.0, cut),
        during_tps: mean_tps(&until_cut, cut, first_commit),
        degraded_tps: mean_tps(&seconds, 2.0, returned),
        after_tps: mean_tps(&seconds, returned, f64::INFINITY),
    };
    Ok(())
}

/// Prints what happens after a power cut as it happens, until the ledger has its first row
/// acknowledged.
fn watch(
    follower: &Follower,
    notes: impl Fn() -> Result<Vec<Note>>,
    lost: &str,
    cut_us: u64,
    dead_us: u64,
) -> Result<Failover> {
    let since_cut = |at_us: u64| at_us.saturating_sub(cut_us) as f64 / 1000.0;
    let mut failover = Failover::default();
    let start = Instant::now();
    let mut committed_at: Option<Instant> = None;
    // The last events may arrive a little after the commit that they made possible.
    while committed_at.is_none_or(|at| at.elapsed() < Duration::from_millis(500)) {
        ensure!(start.elapsed() < LIMIT, "no row was acknowledged within {LIMIT:?} of the power cut");
        if let Some(event) = follower.next(Duration::from_millis(20)) {
            let ms = since_cut(event.at_ms * 1000);
            println!("  +{:.3} s  {}: {}", ms / 1000.0, event.subject, event.text);
            if let Some(stage) = Stage::of(&event, lost, DB.resource, DB.name) {
                failover.note(stage, ms);
            }
        }
        if committed_at.is_none() {
            let notes = notes()?;
            if failover.vip_answering.is_none()
                && let Some(at_us) = first_connection_after(&notes, dead_us)
            {
                failover.vip_answering = Some(since_cut(at_us));
                println!("  +{:.3} s  the client is connected through the VIP", since_cut(at_us) / 1000.0);
            }
            if let Some(at_us) = first_commit_after(&notes, dead_us) {
                failover.total = Some(since_cut(at_us));
                println!("  +{:.3} s  first commit through the VIP", since_cut(at_us) / 1000.0);
                committed_at = Some(Instant::now());
            }
        }
    }
    Ok(failover)
}

fn write_json(report: &Report) -> Result<PathBuf> {
    let own = std::env::current_exe().context("path of this program")?;
    let target = own.ancestors().nth(2).context("the build's directory")?;
    let dir = target.join("demo");
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let path = dir.join("report.json");
    std::fs::write(&path, serde_json::to_vec_pretty(report)?).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn try_next(lab: &Lab) -> Result<()> {
    let binary = lab.binary().display();
    let primary = lab.primary(DB.resource)?;
    let other = NODES.iter().find(|node| **node != primary).context("there is more than one node")?;
    println!("\nThe cluster is up. Try next:");
    println!("  {binary} --lab {LAB} status");
    println!("  {binary} --lab {LAB} service move {} --to {other}", DB.name);
    println!("  {binary} lab --name {LAB} kill {primary} && {binary} --lab {LAB} events --follow");
    println!(
        "To see the cluster in a browser, make a token, leave the second command running, and open the address:"
    );
    println!("  {binary} --lab {LAB} token create console --scope operate");
    println!("  {binary} lab --name {LAB} forward {FIRST_ADDRESS}:7404");
    println!("  https://127.0.0.1:7404/console/ (the browser does not know the certificate, and says so)");
    println!("and in the end: make demo-down");
    Ok(())
}
