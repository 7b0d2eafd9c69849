//! `catchup [ROUNDS]`: how long a replica needs to be in sync again after 30 seconds away, and how
//! much that costs the running database. MariaDB runs under sysbench's oltp_read_write on three
//! replicas.
//!
//! In each round a secondary loses its machine. Later the machine starts again, with its agent and
//! engine. The throughput is compared with that before the loss.
//!
//! Prints a row of Markdown for each round. Ctrl-C and failures remove the lab. Needs root,
//! MariaDB, sysbench and 14 GiB of disk.

use anyhow::{Context, Result, ensure};
use mainstay_tests::lab::Lab;
use mainstay_tests::mariadb::Service;
use mainstay_tests::measured::in_rounds;
use mainstay_tests::metrics::Scrape;
use mainstay_tests::report::mean_tps;
use mainstay_tests::sysbench::{self, Background};
use std::time::{Duration, Instant};

const NAME: &str = "catchup";
const NODES: [&str; 3] = ["n1", "n2", "n3"];
const FIRST: &str = NODES[0];
const AWAY: &str = NODES[2];
const DB: Service<'static> = Service { name: "db", resource: "db", vip: "10.213.0.100", port: 3306 };
const THREADS: u32 = 10;
/// The load runs this long before the first round counts.
const WARMUP: Duration = Duration::from_secs(10);
const BEFORE: Duration = Duration::from_secs(10);
const ABSENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<()> {
    in_rounds(NAME, measure)
}

fn measure(lab: &Lab, rounds: u32) -> Result<()> {
    lab.up(NODES.len() as u8)?;
    // No comparison begins by itself meanwhile.
    lab.create_resource(DB.resource, "4GiB", &NODES, &["--preferred", FIRST, "--scrub-interval", "off"])?;
    DB.apply(lab)?;
    let node = lab.wait_running(DB.name, LIMIT)?;
    ensure!(node == FIRST, "the database runs on {node}");
    sysbench::prepare(lab, &DB.address())?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    // The longest time that the run can take. The load ends with the lab.
    let seconds = (WARMUP + (BEFORE * 2 + ABSENCE + LIMIT) * rounds).as_secs();
    let began = Instant::now();
    let load = Background::start(lab, &DB.address(), THREADS, seconds)?;
    std::thread::sleep(WARMUP);
    println!(
        "| tps before | tps without it | missed MiB | in sync again after s | tps meanwhile | of before | tps afterwards |"
    );
    println!("|---|---|---|---|---|---|---|");
    for _ in 0..rounds {
        row(lab, &load, began)?;
    }
    drop(load);
    lab.cli(&["service", "delete", DB.name])?;
    ensure!(lab.scrub(DB.resource)?.equal, "the replicas differ");
    Ok(())
}

fn row(lab: &Lab, load: &Background, began: Instant) -> Result<()> {
    let from = began.elapsed();
    std::thread::sleep(BEFORE);
    let lost = began.elapsed();
    let so_far = written(lab)?;
    lab.kill(AWAY)?;
    std::thread::sleep(ABSENCE);
    let missed = written(lab)? - so_far;
    let started = began.elapsed();
    lab.start(AWAY)?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    let whole = began.elapsed();
    std::thread::sleep(BEFORE + Duration::from_secs(1));
    let lines = load.seconds()?;
    let tps = |from: Duration, to: Duration| mean_tps(&lines, from.as_secs_f64(), to.as_secs_f64());
    let before = tps(from, lost);
    // Every second that the catch-up has a part in.
    let meanwhile = mean_tps(&lines, started.as_secs_f64().floor(), whole.as_secs_f64().ceil());
    println!(
        "| {before:.0} | {:.0} | {:.0} | {:.1} | {meanwhile:.0} | {:.2} | {:.0} |",
        tps(lost + Duration::from_secs(2), started),
        missed / f64::from(1 << 20),
        (whole - started).as_secs_f64(),
        meanwhile / before,
        tps(whole + Duration::from_secs(1), whole + BEFORE)
    );
    Ok(())
}

/// Bytes that the database has written so far.
fn written(lab: &Lab) -> Result<f64> {
    let sample =
        format!("mainstay_request_bytes_total{{resource=\"{}\",volume=\"0\",op=\"write\"}}", DB.resource);
    Scrape::of(lab, FIRST)?.get(&sample).with_context(|| format!("{FIRST} does not tell {sample}"))
}
