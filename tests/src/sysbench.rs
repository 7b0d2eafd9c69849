//! Running sysbench in the lab's client network, and reading what it prints.

use crate::lab::{CLIENT, Lab};
use crate::mariadb;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

const TABLES: u32 = 10;
const TABLE_ROWS: u32 = 10_000;

/// One line of the report that sysbench prints every second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since the run began.
    pub at_s: u64,
    pub tps: f64,
    pub p95_ms: f64,
    pub errors: f64,
    pub reconnects: f64,
}

/// The summary at the end of a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub reads: u64,
    pub writes: u64,
    pub transactions: u64,
    pub tps: f64,
    pub ignored_errors: u64,
    pub min_ms: f64,
    pub avg_ms: f64,
    pub p95_ms: f64,
    pub max_ms: f64,
}

fn words(address: &str, more: &[String], verb: &str) -> Result<Vec<String>> {
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let mut words = vec![
        "sysbench".to_owned(),
        "oltp_read_write".into(),
        "--db-driver=mysql".into(),
        format!("--mysql-host={host}"),
        format!("--mysql-port={port}"),
        format!("--mysql-user={}", mariadb::USER),
        format!("--mysql-password={}", mariadb::PASSWORD),
        "--mysql-db=sbtest".into(),
        format!("--tables={TABLES}"),
        format!("--table-size={TABLE_ROWS}"),
        "--percentile=95".into(),
    ];
    words.extend_from_slice(more);
    words.push(verb.into());
    Ok(words)
}

/// Makes and fills the tables.
///
/// # Errors
/// When sysbench fails.
pub fn prepare(lab: &Lab, address: &str) -> Result<()> {
    // sysbench ends with 0 even when it could not connect, so that is tried by another client first.
    let (host, port) = address.rsplit_once(':').context("ADDRESS:PORT")?;
    let (host, port) = (format!("--host={host}"), format!("--port={port}"));
    let (user, password) = (format!("--user={}", mariadb::USER), format!("--password={}", mariadb::PASSWORD));
    lab.exec(CLIENT, &["mariadb", &host, &port, &user, &password, "--execute=SELECT 1"])?;
    let words = words(address, &["--threads=2".into()], "prepare")?;
    lab.exec(CLIENT, &words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
}

/// Runs the load for `warmup_s` seconds that do not count, then for `seconds` that do.
///
/// # Errors
/// When sysbench fails or prints something unknown.
pub fn run(lab: &Lab, address: &str, threads: u32, warmup_s: u64, seconds: u64) -> Result<Summary> {
    let once = |seconds: u64| {
        let words = words(address, &[format!("--threads={threads}"), format!("--time={seconds}")], "run")?;
        lab.exec(CLIENT, &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    once(warmup_s)?;
    parse_summary(&once(seconds)?)
}

/// A run in the background that outlives its server: it reconnects and goes on.
pub struct Background {
    child: Child,
    log: PathBuf,
    seconds: u64,
}

impl Background {
    /// # Errors
    /// When sysbench cannot be started.
    pub fn start(lab: &Lab, address: &str, threads: u32, seconds: u64) -> Result<Self> {
        let more = [
            format!("--threads={threads}"),
            format!("--time={seconds}"),
            "--report-interval=1".into(),
            "--mysql-ignore-errors=all".into(),
            // A statement prepared on the lost server is unknown to the new one for good.
            "--db-ps-mode=disable".into(),
        ];
        let words = words(address, &more, "run")?;
        // Line by line, so that the report can be read while it is written.
        let words = [&["stdbuf", "-oL"][..], &words.iter().map(String::as_str).collect::<Vec<_>>()].concat();
        let child = lab.spawn(CLIENT, &words, "sysbench.log")?;
        Ok(Self { child, log: lab.dir().join("sysbench.log"), seconds })
    }

    /// The lines so far.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn seconds(&self) -> Result<Vec<Second>> {
        Ok(parse_seconds(&read(&self.log)?))
    }

    /// Waits for the end and returns all lines. A thread that hangs on a dead connection may keep
    /// sysbench from printing its summary, so none is asked for.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn end(mut self) -> Result<Vec<Second>> {
        let limit = Duration::from_secs(self.seconds + 10);
        crate::command::wait(&mut self.child, limit)?;
        self.seconds()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Does nothing when it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Reads the lines `[ 3s ] thds: 10 tps: 812.97 qps: … lat (ms,95%): 17.63 err/s: 0.00 reconn/s: 0.00`.
#[must_use]
pub fn parse_seconds(text: &str) -> Vec<Second> {
    let after = |line: &str, label: &str| -> Option<f64> {
        let rest = line.split_once(label)?.1.trim_start();
        rest.split_whitespace().next()?.parse().ok()
    };
    let second = |line: &str| {
        let at = line.trim_start().strip_prefix('[')?.split_once("s ]")?.0.trim().parse().ok()?;
        Some(Second {
            at_s: at,
            tps: after(line, " tps:")?,
            p95_ms: after(line, "95%):")?,
            errors: after(line, "err/s:")?,
            reconnects: after(line, "reconn/s:")?,
        })
    };
    text.lines().filter_map(second).collect()
}

/// Reads the summary.
///
/// # Errors
/// When a figure is missing.
pub fn parse_summary(text: &str) -> Result<Summary> {
    let number = |label: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.trim_start().starts_with(label));
        let line = line.with_context(|| format!("sysbench printed no `{label}`:\n{text}"))?;
        let rest = line.trim_start()[label.len()..].trim();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].parse().with_context(|| format!("`{line}`"))
    };
    let per_second = |label: &str| -> Result<f64> {
        let line = text.lines().find(|line| line.trim_start().starts_with(label)).context("no such line")?;
        let rest = line.split_once('(').with_context(|| format!("`{line}`"))?.1;
        rest.split_whitespace().next().unwrap_or_default().parse().with_context(|| format!("`{line}`"))
    };
    let summary = Summary {
        reads: number("read:")? as u64,
        writes: number("write:")? as u64,
        transactions: number("transactions:")? as u64,
        tps: per_second("transactions:")?,
        ignored_errors: number("ignored errors:")? as u64,
        min_ms: number("min:")?,
        avg_ms: number("avg:")?,
        p95_ms: number("95th percentile:")?,
        max_ms: number("max:")?,
    };
    ensure!(summary.transactions > 0, "sysbench made no transaction:\n{text}");
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
sysbench 1.0.20 (using system LuaJIT 2.1.0-beta3)

[ 1s ] thds: 10 tps: 812.97 qps: 16412.16 (r/w/o: 11506.78/3272.47/1632.91) lat (ms,95%): 17.63 err/s: 0.00 reconn/s: 0.00
[ 2s ] thds: 10 tps: 0.00 qps: 0.00 (r/w/o: 0.00/0.00/0.00) lat (ms,95%): 0.00 err/s: 9.98 reconn/s: 9.98
SQL statistics:
    queries performed:
        read:                            24500
        write:                           7000
        other:                           3500
        total:                           35000
    transactions:                        1750   (874.06 per sec.)
    queries:                             35000  (17481.28 per sec.)
    ignored errors:                      10     (5.00 per sec.)
    reconnects:                          10     (5.00 per sec.)

General statistics:
    total time:                          2.0011s
    total number of events:              1750

Latency (ms):
         min:                                    4.33
         avg:                                   11.42
         max:                                   58.77
         95th percentile:                       17.95
         sum:                                19993.07

Threads fairness:
    events (avg/stddev):           175.0000/3.29
    execution time (avg/stddev):   1.9993/0.00
";

    #[test]
    fn the_lines_of_every_second_are_read() {
        let seconds = parse_seconds(OUTPUT);
        assert_eq!(seconds.len(), 2);
        assert_eq!(seconds[0], Second { at_s: 1, tps: 812.97, p95_ms: 17.63, errors: 0.0, reconnects: 0.0 });
        assert_eq!((seconds[1].at_s, seconds[1].tps, seconds[1].errors), (2, 0.0, 9.98));
    }

    #[test]
    fn the_summary_is_read() {
        let summary = parse_summary(OUTPUT).unwrap();
        assert_eq!(
            summary,
            Summary {
                reads: 24500,
                writes: 7000,
                transactions: 1750,
                tps: 874.06,
                ignored_errors: 10,
                min_ms: 4.33,
                avg_ms: 11.42,
                p95_ms: 17.95,
                max_ms: 58.77,
            }
        );
        assert!(parse_summary("FATAL: unable to connect").is_err());
    }
}
