//! `services [--rounds N] [--minutes M] CASE…`: how long services are away when something dies or
//! moves, and what the way to them costs.
//!
//! The cases:
//! - `failover-mariadb`, `failover-postgresql`: a power cut of the node that serves, until the
//!   first commit through the floating address.
//! - `kill`: SIGKILL of the database alone, until the first commit.
//! - `move`: a planned move of an almost idle database, as the longest time between two commits.
//! - `vip`: sysbench through the floating address, beside the address of the node itself.
//! - `router`: processor time for each transaction through `mainstay router`, beside HAProxy.
//! - `many`: the node of 24 services loses power, until all of them run again.
//! - `lease`: failovers during M minutes under full load with a lease of one second. There should
//!   be none.
//!
//! Without a case, all but `lease` are measured. The yardstick of the first three is the same
//! database on a plain device in the same lab. Each prints the rounds as rows of Markdown and their
//! medians. Ctrl-C and failures remove the lab. Needs root, MariaDB, PostgreSQL, sysbench, and
//! HAProxy for `router`.

use anyhow::{Context, Result, bail, ensure};
use mainstay_api::rest::ServicePhase;
use mainstay_bench::stats::Spread;
use mainstay_bench::sysbench::{Load, Workload};
use mainstay_tests::events::Follower;
use mainstay_tests::lab::{CLIENT, Lab};
use mainstay_tests::ledger::{first_commit_after, longest_gap_us};
use mainstay_tests::local::{self, DISK};
use mainstay_tests::mariadb::Service;
use mainstay_tests::measured::in_lab;
use mainstay_tests::plain::Plain;
use mainstay_tests::proof::{self, Ledger};
use mainstay_tests::sysbench::{self, Background};
use mainstay_tests::{now_us, wait_for};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NODES: [&str; 3] = ["n1", "n2", "n3"];
const FIRST: &str = NODES[0];
const FIRST_ADDRESS: &str = "10.213.0.1";
const DB: Service<'static> = Service { name: "db", resource: "db", vip: "10.213.0.100", port: 3306 };
const PLAIN_PORT: u16 = 3307;
const LIMIT: Duration = Duration::from_secs(120);
/// Connections of the ledger, and the pause of each between two rows.
const CONNECTIONS: usize = 4;
const PAUSE_MS: u64 = 5;
/// The ledger has committed this long before something is done to its database.
const BEFORE: Duration = Duration::from_secs(2);
/// Window in which failures of the database are counted while it is killed again and again.
const WINDOW_S: u64 = 10;
const SYSBENCH_S: u64 = 10;
const THREADS: [u32; 3] = [16, 32, 64];
const ROUTED_THREADS: u32 = 16;
const MANY: usize = 24;
const ALL: [&str; 7] = ["failover-mariadb", "failover-postgresql", "kill", "move", "vip", "router", "many"];

struct Wanted {
    rounds: usize,
    minutes: u64,
    cases: Vec<String>,
}

fn main() -> Result<()> {
    let wanted = wanted(std::env::args().skip(1))
        .context("usage: services [--rounds N] [--minutes M] CASE…; its source lists the cases")?;
    in_lab("services", |lab| {
        wanted.cases.iter().try_for_each(|case| {
            println!("\n## {case}\n");
            measure(lab, case, &wanted)
        })
    })
}

fn wanted(mut words: impl Iterator<Item = String>) -> Result<Wanted> {
    let mut wanted = Wanted { rounds: 10, minutes: 60, cases: Vec::new() };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64> {
            let number = words.next().with_context(|| format!("{word} needs a number"))?;
            let number = number.parse().with_context(|| format!("`{number}` is no number"))?;
            ensure!(number > 0, "{word} is at least 1");
            Ok(number)
        };
        match word.as_str() {
            "--rounds" => wanted.rounds = number()? as usize,
            "--minutes" => wanted.minutes = number()?,
            case if case == "lease" || ALL.contains(&case) => wanted.cases.push(word),
            other => bail!("`{other}` is no case"),
        }
    }
    if wanted.cases.is_empty() {
        wanted.cases = ALL.map(str::to_owned).to_vec();
    }
    Ok(wanted)
}

fn measure(lab: &Lab, case: &str, wanted: &Wanted) -> Result<()> {
    match case {
        "lease" => return lease(lab, wanted.minutes),
        "many" => return many(lab, wanted.rounds),
        _ => {}
    }
    lab.up(NODES.len() as u8)?;
    lab.quick_keepalive()?;
    match case {
        "failover-mariadb" => failover_mariadb(lab, wanted.rounds),
        "failover-postgresql" => failover_postgresql(lab, wanted.rounds),
        "kill" => kill(lab, wanted.rounds),
        "move" => planned_move(lab, wanted.rounds),
        "vip" => vip(lab, wanted.rounds),
        _ => router(lab, wanted.rounds),
    }
}

/// A database on three replicas, running on the first node.
fn database(lab: &Lab) -> Result<()> {
    let more = ["--preferred", FIRST, "--scrub-interval", "off"];
    lab.create_resource(DB.resource, "2GiB", &NODES, &more)?;
    DB.apply(lab)?;
    let node = lab.wait_running(DB.name, LIMIT)?;
    ensure!(node == FIRST, "the database runs on {node}");
    lab.wait_in_sync(DB.resource, LIMIT)
}

fn lease_ms(lab: &Lab) -> Result<f64> {
    Ok(lab.status()?.cluster.context("the lab has a cluster")?.lease_ms as f64)
}

fn median(values: &[f64]) -> f64 {
    Spread::of(values.iter().copied()).map_or(f64::NAN, |spread| spread.median)
}

fn ms(from_us: u64, to_us: u64) -> f64 {
    to_us.saturating_sub(from_us) as f64 / 1000.0
}

/// Milliseconds from the start of a killed database on a plain device to its first commit, as often
/// as there are rounds.
fn plain_recoveries(lab: &Lab, rounds: usize) -> Result<Vec<f64>> {
    let mut plain = Plain::start(lab, FIRST, FIRST_ADDRESS, PLAIN_PORT, 2 << 10)?;
    let notes = lab.dir().join("plain.notes");
    let ledger = Ledger::start(lab, plain.address(), &notes, CONNECTIONS, PAUSE_MS)?;
    let mut recoveries = Vec::new();
    for _ in 0..rounds {
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(BEFORE);
        let restarted_us = plain.crash_and_restart()?;
        recoveries.push(ms(restarted_us, ledger.wait_commit(restarted_us, LIMIT)?));
    }
    ledger.stop()?;
    plain.stop()?;
    Ok(recoveries)
}

fn told(what: &str, values: &[f64]) {
    println!("\n{what}: median {:.0} ms of {}", median(values), row(values));
}

fn row(values: &[f64]) -> String {
    let mut text = String::new();
    for value in values {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{value:.0}", if text.is_empty() { "" } else { ", " });
    }
    text
}

/// Returns a node that lost its power, and waits until the cluster is whole.
fn whole_again(lab: &Lab, lost: &str, resource: &str) -> Result<()> {
    lab.start(lost)?;
    lab.wait_agent(lost)?;
    lab.wait_in_sync(resource, LIMIT)
}

fn failover_mariadb(lab: &Lab, rounds: usize) -> Result<()> {
    database(lab)?;
    let recoveries = plain_recoveries(lab, rounds)?;
    let lease = lease_ms(lab)?;
    let notes = lab.dir().join("ledger.notes");
    let ledger = Ledger::start(lab, &DB.address(), &notes, CONNECTIONS, PAUSE_MS)?;
    let mut totals = Vec::new();
    for _ in 0..rounds {
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(BEFORE);
        let lost = lab.wait_running(DB.name, LIMIT)?;
        let position = ledger.position()?;
        let cut_us = now_us();
        lab.kill(&lost)?;
        let dead_us = now_us();
        let commit_us = wait_for("a commit", LIMIT, || {
            first_commit_after(&ledger.notes_from(position)?, dead_us).context("none yet")
        })?;
        totals.push(ms(cut_us, commit_us));
        lab.wait_running(DB.name, LIMIT)?;
        // While the lost node is still off: its disk shows what it had. Rows that come while the
        // notes are read are not known to them.
        let verdict = proof::ledger(lab, &DB.address(), &notes)?;
        let none_lost = verdict.lost_rows == 0 && verdict.wrong_rows == 0;
        ensure!(none_lost, "rows are lost or wrong after {lost} was cut off at {cut_us}: {verdict:?}");
        whole_again(lab, &lost, DB.resource)?;
    }
    ledger.stop()?;
    let verdict = proof::ledger(lab, &DB.address(), &notes)?;
    ensure!(verdict.good(), "rows are lost or wrong: {verdict:?}");
    told("recovery on a plain device", &recoveries);
    told("power cut to first commit", &totals);
    excess(&totals, lease, &recoveries, verdict.acknowledged_rows);
    Ok(())
}

/// The part of failovers that neither the lease nor the database's own recovery explains.
fn excess(totals: &[f64], lease: f64, recoveries: &[f64], rows: u64) {
    let (total, recovery) = (median(totals), median(recoveries));
    println!(
        "\n{total:.0} ms = lease {lease:.0} + recovery {recovery:.0} + {:.0} ms; {rows} acknowledged rows, none lost",
        total - lease - recovery
    );
}

const PG_VIP: &str = "10.213.0.101";
const PG: &str = "pg";

/// A client that inserts through one connection for each row, with several processes beside each
/// other, and notes when each row was acknowledged.
struct Inserts {
    children: Vec<Child>,
    notes: PathBuf,
    stop: PathBuf,
}

impl Inserts {
    fn start(lab: &Lab, address: &str, port: u16) -> Result<Self> {
        let (notes, stop) = (lab.dir().join("pg.notes"), lab.dir().join("pg.stop"));
        drop(fs::remove_file(&notes));
        drop(fs::remove_file(&stop));
        let mut children = Vec::new();
        for writer in 0..CONNECTIONS {
            // The connection is tried first with a short limit: psql itself waits for two seconds
            // at least.
            let script = format!(
                "i=0; while [ ! -e {stop} ]; do \
                 i=$((i+1)); n=$((i * {CONNECTIONS} + {writer})); s=$(date +%s%6N); \
                 timeout 0.1 bash -c 'exec 3<>/dev/tcp/{address}/{port}' 2>/dev/null \
                 && PGPASSWORD=w PGCONNECT_TIMEOUT=2 timeout 5 psql -q -h {address} -p {port} -U w -d postgres \
                    -c \"INSERT INTO t VALUES ($s, $n)\" 2>/dev/null \
                 && echo acked $n $s $(date +%s%6N) >>{notes}; done",
                stop = stop.display(),
                notes = notes.display(),
            );
            children.push(lab.spawn(CLIENT, &["bash", "-c", &script], "pg-inserts.log")?);
        }
        Ok(Self { children, notes, stop })
    }

    /// Waits for a row that was sent after `after_us`, and returns when it was acknowledged.
    fn wait_commit(&self, after_us: u64) -> Result<u64> {
        wait_for("a commit", LIMIT, || {
            first_commit_after(&proof::read_notes(&self.notes)?, after_us).context("none yet")
        })
    }

    /// Stops all processes, and returns the number of acknowledged rows.
    fn stop(mut self) -> Result<usize> {
        fs::write(&self.stop, "")?;
        for child in &mut self.children {
            mainstay_tests::command::wait(child, LIMIT)?.context("a writer does not end")?;
        }
        Ok(proof::read_notes(&self.notes)?.len())
    }
}

impl Drop for Inserts {
    fn drop(&mut self) {
        // Does nothing after an orderly end.
        for child in &mut self.children {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

const PG_TABLE: &str =
    "CREATE TABLE t (at BIGINT, i BIGINT PRIMARY KEY); CREATE USER w PASSWORD 'w'; GRANT ALL ON t TO w";

fn as_postgres(socket: &str, port: u16, statement: &str) -> String {
    format!(
        "setpriv --reuid=postgres --regid=postgres --init-groups \
         psql --host={socket} -p {port} -v ON_ERROR_STOP=1 -At -c \"{statement}\""
    )
}

/// Milliseconds that PostgreSQL takes to its first commit after SIGKILL on a plain device.
fn plain_postgresql(lab: &Lab, rounds: usize) -> Result<Vec<f64>> {
    let root = format!("{DISK}/plainpg");
    local::file_system(lab, FIRST, &root, 1 << 10)?;
    let user = "setpriv --reuid=postgres --regid=postgres --init-groups";
    let initialize = format!(
        "bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
         install -d -o postgres -g postgres {root}/run
         install -d -o postgres -g postgres -m 700 {root}/data
         {user} $bin/initdb -D {root}/data -E UTF8 >/dev/null
         echo 'host all w 0.0.0.0/0 scram-sha-256' >>{root}/data/pg_hba.conf"
    );
    lab.shell(FIRST, &initialize)?;
    let start = || {
        let run = format!(
            "exec {user} $(ls -d /usr/lib/postgresql/*/bin | tail -1)/postgres -D {root}/data -p 5433 \
             -k {root}/run -c listen_addresses='*'"
        );
        lab.spawn(FIRST, &["sh", "-ec", &run], "plainpg.log")
    };
    let mut server = start()?;
    wait_for("PostgreSQL on a plain device", LIMIT, || {
        lab.shell(FIRST, &as_postgres(&format!("{root}/run"), 5433, PG_TABLE)).map(drop)
    })?;
    let inserts = Inserts::start(lab, FIRST_ADDRESS, 5433)?;
    let mut recoveries = Vec::new();
    for _ in 0..rounds {
        inserts.wait_commit(now_us())?;
        std::thread::sleep(BEFORE);
        // The first line names the server, whose other processes end with it.
        lab.shell(FIRST, &format!("kill -9 $(head -1 {root}/data/postmaster.pid)"))?;
        server.wait()?;
        // Its other processes notice that the first one is gone. The next server refuses to start
        // before that.
        wait_for("the end of its processes", LIMIT, || {
            lab.shell(FIRST, "! pgrep -u postgres -f '^postgres: ' >/dev/null").map(drop)
        })?;
        let restarted_us = now_us();
        server = start()?;
        recoveries.push(ms(restarted_us, inserts.wait_commit(restarted_us)?));
    }
    inserts.stop()?;
    lab.shell(FIRST, &format!("kill -INT $(head -1 {root}/data/postmaster.pid)"))?;
    server.wait()?;
    lab.shell(FIRST, &format!("umount {root}; rm -rf {root} {root}.img"))?;
    Ok(recoveries)
}

fn failover_postgresql(lab: &Lab, rounds: usize) -> Result<()> {
    let recoveries = plain_postgresql(lab, rounds)?;
    let more = ["--preferred", FIRST, "--scrub-interval", "off"];
    lab.create_resource(PG, "1GiB", &NODES, &more)?;
    let file = lab.dir().join("pg.toml");
    drop(fs::remove_file(&file));
    let (file, address) = (file.to_string_lossy().into_owned(), format!("{PG_VIP}/24"));
    let create = ["service", "create", "postgresql", "--name", PG, "--resource", PG, "--memory", "256MiB"];
    lab.cli(&[&create[..], &["--vip", &address, "--output", &file]].concat())?;
    let node = lab.wait_running(PG, LIMIT)?;
    lab.shell(&node, &as_postgres(&format!("/srv/{PG}/run"), 5432, PG_TABLE))?;
    lab.wait_in_sync(PG, LIMIT)?;
    let lease = lease_ms(lab)?;
    let inserts = Inserts::start(lab, PG_VIP, 5432)?;
    let mut totals = Vec::new();
    for _ in 0..rounds {
        inserts.wait_commit(now_us())?;
        std::thread::sleep(BEFORE);
        let lost = lab.wait_running(PG, LIMIT)?;
        let cut_us = now_us();
        lab.kill(&lost)?;
        totals.push(ms(cut_us, inserts.wait_commit(now_us())?));
        lab.wait_running(PG, LIMIT)?;
        whole_again(lab, &lost, PG)?;
    }
    let notes = inserts.notes.clone();
    let rows = inserts.stop()?;
    let node = lab.wait_running(PG, LIMIT)?;
    let present = lab.shell(&node, &as_postgres(&format!("/srv/{PG}/run"), 5432, "SELECT i FROM t"))?;
    let present: std::collections::BTreeSet<&str> = present.lines().collect();
    let acknowledged = fs::read_to_string(&notes)?;
    let lost = acknowledged.lines().filter_map(|line| line.split(' ').nth(1));
    let lost: Vec<&str> = lost.filter(|number| !present.contains(number)).collect();
    ensure!(lost.is_empty(), "lost rows: {lost:?}");
    told("recovery on a plain device", &recoveries);
    told("power cut to first commit", &totals);
    excess(&totals, lease, &recoveries, rows as u64);
    Ok(())
}

fn kill(lab: &Lab, rounds: usize) -> Result<()> {
    database(lab)?;
    // The first restart within the window comes at once, so each kill has a window of its own.
    let policy = format!("\n[policy]\nwindow_s = {WINDOW_S}\n");
    lab.apply_service(DB.name, &(DB.toml() + &policy))?;
    let recoveries = plain_recoveries(lab, rounds)?;
    let notes = lab.dir().join("ledger.notes");
    let ledger = Ledger::start(lab, &DB.address(), &notes, CONNECTIONS, PAUSE_MS)?;
    let mut totals = Vec::new();
    for _ in 0..rounds {
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(BEFORE);
        let node = lab.wait_running(DB.name, LIMIT)?;
        let position = ledger.position()?;
        let pid = format!("{}/data/mariadb.pid", DB.root());
        let killed_us = now_us();
        lab.shell(&node, &format!("kill -9 $(cat {pid})"))?;
        let dead_us = now_us();
        let commit_us = wait_for("a commit", LIMIT, || {
            first_commit_after(&ledger.notes_from(position)?, dead_us).context("none yet")
        })?;
        totals.push(ms(killed_us, commit_us));
        ensure!(lab.wait_running(DB.name, LIMIT)? == node, "the service left {node}");
        std::thread::sleep(Duration::from_secs(WINDOW_S + 5));
    }
    ledger.stop()?;
    told("recovery on a plain device", &recoveries);
    told("SIGKILL to first commit", &totals);
    println!("\nbeyond the recovery: {:.0} ms", median(&totals) - median(&recoveries));
    Ok(())
}

fn planned_move(lab: &Lab, rounds: usize) -> Result<()> {
    database(lab)?;
    // Stop and start of the same database on a plain device.
    let mut plain = Plain::start(lab, FIRST, FIRST_ADDRESS, PLAIN_PORT, 2 << 10)?;
    let notes = lab.dir().join("plain.notes");
    let ledger = Ledger::start(lab, plain.address(), &notes, 1, PAUSE_MS)?;
    let mut restarts = Vec::new();
    for _ in 0..rounds {
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(BEFORE);
        let position = ledger.position()?;
        plain.restart()?;
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(Duration::from_millis(300));
        restarts.push(longest_gap_us(&ledger.notes_from(position)?) as f64 / 1000.0);
    }
    ledger.stop()?;
    plain.stop()?;
    let notes = lab.dir().join("ledger.notes");
    let ledger = Ledger::start(lab, &DB.address(), &notes, 1, PAUSE_MS)?;
    let mut totals = Vec::new();
    for _ in 0..rounds {
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(BEFORE);
        let from = lab.wait_running(DB.name, LIMIT)?;
        let to = NODES.iter().find(|node| **node != from).context("there are other nodes")?;
        let position = ledger.position()?;
        lab.cli(&["service", "move", DB.name, "--to", to])?;
        ledger.wait_commit(now_us(), LIMIT)?;
        std::thread::sleep(Duration::from_millis(300));
        totals.push(longest_gap_us(&ledger.notes_from(position)?) as f64 / 1000.0);
        ensure!(lab.wait_running(DB.name, LIMIT)? == *to, "the service is not on {to}");
        lab.wait_in_sync(DB.resource, LIMIT)?;
    }
    ledger.stop()?;
    told("stop and start on a plain device", &restarts);
    told("planned move", &totals);
    println!("\nbeyond stop and start: {:.0} ms", median(&totals) - median(&restarts));
    Ok(())
}

fn vip(lab: &Lab, rounds: usize) -> Result<()> {
    database(lab)?;
    let direct = format!("{FIRST_ADDRESS}:{}", DB.port);
    sysbench::prepare(lab, &DB.address())?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    println!("| threads | direct TPS | VIP TPS | VIP to direct |");
    println!("|---|---|---|---|");
    for threads in THREADS {
        let load = Load { workload: Workload::ReadWrite, threads };
        sysbench::once(lab, &direct, load, 3)?;
        let (mut ratios, mut own, mut floating) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            // Each run through the address stands between two runs beside it.
            let before = sysbench::once(lab, &direct, load, SYSBENCH_S)?.tps;
            let through = sysbench::once(lab, &DB.address(), load, SYSBENCH_S)?.tps;
            let after = sysbench::once(lab, &direct, load, SYSBENCH_S)?.tps;
            ratios.push(through / f64::midpoint(before, after) * 1000.0);
            own.push(f64::midpoint(before, after));
            floating.push(through);
        }
        println!(
            "| {threads} | {:.0} | {:.0} | {:.3} (of {}, in thousandths) |",
            median(&own),
            median(&floating),
            median(&ratios) / 1000.0,
            row(&ratios)
        );
    }
    Ok(())
}

/// Processor time of a process and its threads, in ticks of 10 ms: that of its own code, and that
/// of the kernel for it.
fn ticks(lab: &Lab, pid_file: &str) -> Result<[f64; 2]> {
    let stat = lab.shell(CLIENT, &format!("cat /proc/$(cat {pid_file})/stat"))?;
    let after = stat.rsplit_once(')').context("a process has a name")?.1;
    let words: Vec<&str> = after.split_whitespace().collect();
    let number = |place: usize| -> Result<f64> { Ok(words.get(place).context("a number")?.parse()?) };
    Ok([number(11)?, number(12)?])
}

fn router(lab: &Lab, rounds: usize) -> Result<()> {
    ensure!(
        lab.shell(CLIENT, "command -v haproxy").is_ok(),
        "HAProxy is missing: apt-get install haproxy, or make bench-deps"
    );
    database(lab)?;
    sysbench::prepare(lab, &DB.address())?;
    let dir = lab.dir().to_string_lossy().into_owned();
    let config = format!(
        "global\n  nbthread 2\n  maxconn 1000\ndefaults\n  mode tcp\n  timeout connect 5s\n  \
         timeout client 1h\n  timeout server 1h\nlisten db\n  bind 127.0.0.1:7446\n  server db {}\n",
        DB.address()
    );
    fs::write(format!("{dir}/haproxy.cfg"), config)?;
    let program = lab.binary().to_string_lossy().into_owned();
    let agents = NODES.map(|node| lab.address(node)).into_iter().collect::<Result<Vec<_>>>()?.join(",");
    let start = |name: &str, words: &str| {
        let script = format!("echo $$ >{dir}/{name}.pid; exec {words}");
        lab.spawn(CLIENT, &["sh", "-ec", &script], &format!("{name}.log"))
    };
    let mut running = [
        start(
            "router",
            &format!(
                "{program} router --agent {agents} --service {} --port {} --listen 127.0.0.1:6446 --status-listen 127.0.0.1:6440",
                DB.name, DB.port
            ),
        )?,
        start("haproxy", &format!("haproxy -db -f {dir}/haproxy.cfg"))?,
    ];
    let doors = [("router", "127.0.0.1:6446"), ("haproxy", "127.0.0.1:7446")];
    let load = Load { workload: Workload::ReadWrite, threads: ROUTED_THREADS };
    let measured = (|| -> Result<()> {
        for (name, door) in doors {
            wait_for(name, LIMIT, || {
                let (host, port) = door.split_once(':').context("a port")?;
                let open = format!("timeout 2 bash -c 'exec 3<>/dev/tcp/{host}/{port}'");
                lab.shell(CLIENT, &open).map(drop)
            })?;
            sysbench::once(lab, door, load, 2)?;
        }
        println!(
            "Processor time for a transaction in µs, and how much of it is the program's own, not the kernel's\n"
        );
        println!("| round | router TPS | router µs | own | HAProxy TPS | HAProxy µs | own | ratio |");
        println!("|---|---|---|---|---|---|---|---|");
        let mut ratios = Vec::new();
        for round in 1..=rounds {
            let mut line = format!("| {round}");
            let mut costs = Vec::new();
            for (name, door) in doors {
                let pid_file = format!("{dir}/{name}.pid");
                let before = ticks(lab, &pid_file)?;
                let summary = sysbench::once(lab, door, load, SYSBENCH_S)?;
                let after = ticks(lab, &pid_file)?;
                let transactions = summary.tps * SYSBENCH_S as f64;
                let [own, kernel] = [0, 1].map(|part| (after[part] - before[part]) * 10_000.0 / transactions);
                costs.push(own + kernel);
                let _ = write!(line, " | {:.0} | {:.1} | {own:.1}", summary.tps, own + kernel);
            }
            ratios.push(costs[0] / costs[1]);
            println!("{line} | {:.2} |", costs[0] / costs[1]);
        }
        println!("\nprocessor time of the router to HAProxy's: median {:.2}", median(&ratios));
        Ok(())
    })();
    for child in &mut running {
        drop(child.kill());
        drop(child.wait());
    }
    measured
}

fn many(lab: &Lab, rounds: usize) -> Result<()> {
    lab.up(NODES.len() as u8)?;
    let names: Vec<String> = (1..=MANY).map(|number| format!("s{number:02}")).collect();
    for (place, name) in names.iter().enumerate() {
        let more = ["--preferred", FIRST, "--journal", "16MiB", "--scrub-interval", "off"];
        lab.create_resource(name, "64MiB", &NODES, &more)?;
        let toml = format!(
            "name = \"{name}\"\nresource = \"{name}\"\n\n[mount]\npath = \"/srv/{name}\"\nfstype = \"ext4\"\nmkfs = true\n\n\
             [[process]]\nname = \"sleeper\"\ncommand = [\"sleep\", \"infinity\"]\n\n[vip]\naddress = \"10.213.0.{}/24\"\n",
            120 + place
        );
        lab.apply_service(name, &toml)?;
    }
    let elsewhere = |than: Option<&str>| -> Result<()> {
        let services = lab.status()?.services;
        for service in &services {
            let runs = service.phase == ServicePhase::Running
                && service.node.is_some()
                && service.node == service.phase_node;
            ensure!(
                runs && service.node.as_deref() != than,
                "{}: {} on {:?}",
                service.name,
                service.phase,
                service.node
            );
        }
        ensure!(services.len() == MANY, "{} services", services.len());
        Ok(())
    };
    let mut totals = Vec::new();
    for _ in 0..rounds {
        for name in &names {
            if lab.wait_running(name, LIMIT)? != FIRST {
                lab.cli(&["service", "move", name, "--to", FIRST])?;
            }
        }
        for name in &names {
            lab.wait_in_sync(name, LIMIT)?;
        }
        std::thread::sleep(BEFORE);
        let cut = Instant::now();
        lab.kill(FIRST)?;
        wait_for("all services elsewhere", LIMIT, || elsewhere(Some(FIRST)))?;
        totals.push(cut.elapsed().as_secs_f64() * 1000.0);
        whole_again(lab, FIRST, &names[0])?;
    }
    told(&format!("power cut until {MANY} services run elsewhere"), &totals);
    Ok(())
}

fn lease(lab: &Lab, minutes: u64) -> Result<()> {
    lab.up_with(NODES.len() as u8, &["--lease-ms", "1000"])?;
    database(lab)?;
    sysbench::prepare(lab, &DB.address())?;
    lab.wait_in_sync(DB.resource, LIMIT)?;
    let follower = Follower::start(&Arc::new(Lab::new(&lab.name)?))?;
    let load = Background::start(lab, &DB.address(), 32, minutes * 60)?;
    let until = Instant::now() + Duration::from_secs(minutes * 60);
    let mut alarms = Vec::new();
    while Instant::now() < until {
        let Some(event) = follower.next(Duration::from_secs(1)) else { continue };
        let alarm = ["suspected", "lease has ended", "serves"].iter().any(|words| event.text.contains(words));
        if alarm {
            alarms.push(format!("{}: {}", event.subject, event.text));
        }
    }
    let lines = load.seconds()?;
    drop(load);
    let rates: Vec<f64> = lines.iter().map(|second| second.tps).collect();
    println!("{minutes} minutes, lease 1000 ms, 32 threads, median {:.0} TPS", median(&rates));
    println!("alarms: {}", alarms.len());
    for alarm in alarms {
        println!("- {alarm}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::wanted;

    #[test]
    fn cases_are_named_and_numbers_belong_to_options() {
        let of = |words: &[&str]| wanted(words.iter().map(|word| (*word).to_owned())).ok();
        assert_eq!(of(&[]).unwrap().cases.len(), 7);
        let some = of(&["--rounds", "3", "vip", "lease"]).unwrap();
        assert_eq!((some.rounds, some.cases.len()), (3, 2));
        for wrong in [&["--rounds", "0"][..], &["--rounds"], &["nothing"]] {
            assert!(of(wrong).is_none(), "{wrong:?}");
        }
    }
}
