//! The ledger's client; the harness runs it in the lab's client network.
//!
//! `ledger run ADDRESS:PORT NOTES STOP CONNECTIONS PAUSE_MS` inserts until the file STOP exists.
//! `ledger verify ADDRESS:PORT NOTES` compares the notes with the table and prints a verdict.
//! `ledger check ADDRESS:PORT` runs CHECK TABLE … EXTENDED on every table and prints what it says.

use anyhow::{Context, Result, bail};
use mainstay_tests::ledger::{Note, TABLE, content, judge, parse_notes};
use mainstay_tests::{mariadb, now_us, wait_for};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Short, so that the measurement covers the failover and not the client's patience.
const CONNECT_LIMIT: Duration = Duration::from_millis(200);
/// Time after which the client gives up a server whose machine neither acknowledges data nor
/// answers probes.
const DEAD_AFTER: Duration = Duration::from_secs(1);
/// A server whose machine lives may wait for its disk. A commit that takes seconds is slow, and not
/// failed.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Pause between attempts to connect.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// For reading whole tables.
const PATIENT: Duration = Duration::from_secs(120);

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["run", address, notes, stop, connections, pause_ms] => {
            run(address, Path::new(notes), Path::new(stop), connections.parse()?, pause_ms.parse()?)
        }
        ["verify", address, notes] => verify(address, Path::new(notes)),
        ["check", address] => check(address),
        _ => bail!("usage: ledger run|verify|check …; see the head of its source"),
    }
}

fn options(address: &str, limit: Duration) -> Result<Opts> {
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let options = OptsBuilder::new()
        .ip_or_hostname(Some(host))
        .tcp_port(port.parse().context("a port")?)
        .user(Some(mariadb::USER))
        .pass(Some(mariadb::PASSWORD))
        .prefer_socket(false)
        // The value is known beforehand, which saves a round trip for each connection.
        .max_allowed_packet(Some(16 << 20))
        .tcp_connect_timeout(Some(CONNECT_LIMIT))
        .tcp_user_timeout_ms(Some(DEAD_AFTER.as_millis() as u32))
        .tcp_keepalive_time_ms(Some(DEAD_AFTER.as_millis() as u32))
        .tcp_keepalive_probe_interval_secs(Some(1))
        .tcp_keepalive_probe_count(Some(1))
        .read_timeout(Some(limit))
        .write_timeout(Some(limit));
    Ok(options.into())
}

struct Notes(Mutex<File>);

impl Notes {
    fn add(&self, note: &Note) -> Result<()> {
        // A poisoned lock means that another connection's thread panicked between two whole lines.
        let mut file = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        file.write_all(note.line().as_bytes()).context("write a note")
    }
}

fn run(address: &str, notes: &Path, stop: &Path, connections: usize, pause_ms: u64) -> Result<()> {
    let options = options(address, ANSWER_LIMIT)?;
    let before = std::fs::read_to_string(notes).unwrap_or_default();
    let last = parse_notes(&before)?.iter().fold(0, |last, note| match note {
        Note::Acked { number, .. } | Note::Unknown { number, .. } => last.max(*number),
        Note::Connected { .. } => last,
    });
    let next = AtomicU64::new(last + 1);
    let file = OpenOptions::new().append(true).create(true).open(notes).context("open the notes")?;
    let notes = Notes(Mutex::new(file));
    std::thread::scope(|scope| {
        let (options, notes, next, pause) = (&options, &notes, &next, Duration::from_millis(pause_ms));
        let workers: Vec<_> = (0..connections)
            .map(|worker| {
                // An address that is gone costs each attempt its whole limit, and it goes for all
                // workers at once. Their attempts are spread over that time, so that one of them
                // soon finds the server.
                let lag = CONNECT_LIMIT * worker as u32 / connections as u32;
                scope.spawn(move || insert(options, notes, stop, next, pause, lag))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker returns its errors"))
    })
}

/// One connection's work: insert, note, reconnect when anything fails. `lag`: pause after the first
/// attempt to connect that got no answer.
fn insert(
    options: &Opts,
    notes: &Notes,
    stop: &Path,
    next: &AtomicU64,
    pause: Duration,
    lag: Duration,
) -> Result<()> {
    let mut connection: Option<Conn> = None;
    let mut lags = false;
    while !stop.exists() {
        let Some(open) = &mut connection else {
            let asked = Instant::now();
            match Conn::new(options.clone()) {
                Ok(made) => {
                    notes.add(&Note::Connected { at_us: now_us() })?;
                    connection = Some(made);
                    lags = false;
                }
                // The limit is counted by the kernel, in whole milliseconds.
                Err(_) if !lags && asked.elapsed() >= CONNECT_LIMIT / 2 => {
                    lags = true;
                    std::thread::sleep(lag);
                }
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
            continue;
        };
        let number = next.fetch_add(1, Ordering::Relaxed);
        let statement = format!("INSERT INTO {TABLE} VALUES ({number}, '{}')", content(number));
        let sent_us = now_us();
        let result = open.query_drop(statement);
        let done_us = now_us();
        match result {
            Ok(()) => notes.add(&Note::Acked { number, sent_us, done_us })?,
            Err(error) => {
                notes.add(&Note::Unknown { number, sent_us, done_us, why: error.to_string() })?;
                // The destructor would wait for a server that may be gone. The thread that runs it
                // ends with the connection's own time limit.
                let broken = connection.take();
                std::thread::spawn(move || drop(broken));
            }
        }
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    Ok(())
}

fn patient(address: &str) -> Result<Conn> {
    let options = options(address, PATIENT)?;
    wait_for("connect", Duration::from_secs(30), || Ok(Conn::new(options.clone())?))
}

fn verify(address: &str, notes: &Path) -> Result<()> {
    let text = std::fs::read_to_string(notes).with_context(|| notes.display().to_string())?;
    let notes = parse_notes(&text)?;
    let mut rows = BTreeMap::new();
    let query = format!("SELECT number, content FROM {TABLE}");
    for row in patient(address)?.query_iter(query)? {
        let (number, found): (u64, String) = mysql::from_row_opt(row?)?;
        rows.insert(number, found);
    }
    println!("{}", serde_json::to_string(&judge(&notes, &rows))?);
    Ok(())
}

fn check(address: &str) -> Result<()> {
    let mut connection = patient(address)?;
    let tables: Vec<(String, String)> = connection.query(
        "SELECT table_schema, table_name FROM information_schema.tables \
         WHERE table_schema IN ('sbtest', 'ledger') ORDER BY 1, 2",
    )?;
    // First the purge removes deleted rows from all indexes. CHECK TABLE … EXTENDED looks from one
    // index into another. While the purge runs it reports entries that are marked as deleted and
    // whose rows have other versions by then, on a plain disk too. Its findings after the purge are
    // faults.
    connection.query_drop("SET GLOBAL innodb_max_purge_lag_wait = 0")?;
    let mut said = Vec::new();
    for (schema, table) in tables {
        let rows: Vec<(String, String, String, String)> =
            connection.query(format!("CHECK TABLE `{schema}`.`{table}` EXTENDED"))?;
        said.extend(rows.into_iter().map(|(table, _, kind, text)| (table, kind, text)));
    }
    println!("{}", serde_json::to_string(&said)?);
    Ok(())
}
