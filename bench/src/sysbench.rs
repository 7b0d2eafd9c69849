//! The loads of sysbench, its command line, and the summary that it prints.

use crate::case::{Figures, Latency};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The tables of a load: their database, their number, and the rows of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tables {
    pub database: &'static str,
    pub count: u32,
    pub rows: u64,
}

/// Tables that fit into the buffer pool.
pub const SMALL: Tables = Tables { database: "sbtest", count: 10, rows: 10_000 };
/// Numbers of threads, each with one connection.
pub const THREADS: [u32; 4] = [1, 10, 32, 64];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    ReadWrite,
    WriteOnly,
    UpdateIndex,
}

impl Workload {
    /// Name of the workload in sysbench.
    #[must_use]
    pub fn script(self) -> &'static str {
        match self {
            Self::ReadWrite => "oltp_read_write",
            Self::WriteOnly => "oltp_write_only",
            Self::UpdateIndex => "oltp_update_index",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Load {
    pub workload: Workload,
    pub threads: u32,
}

/// All loads, in the order of running.
pub fn loads() -> impl Iterator<Item = Load> {
    [Workload::ReadWrite, Workload::WriteOnly]
        .into_iter()
        .flat_map(|workload| THREADS.map(|threads| Load { workload, threads }))
}

impl Load {
    #[must_use]
    pub fn name(&self) -> String {
        let short = match self.workload {
            Workload::ReadWrite => "oltp-rw",
            Workload::WriteOnly => "oltp-wo",
            Workload::UpdateIndex => "oltp-ui",
        };
        format!("{short}-t{}", self.threads)
    }

    #[must_use]
    pub fn title(&self) -> String {
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        format!("{}, {} {threads}", self.workload.script(), self.threads)
    }
}

/// How to reach a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Server {
    Tcp {
        host: String,
        port: String,
        user: String,
        password: String,
    },
    /// A server of our own that asks for no password.
    Socket {
        path: String,
        user: String,
    },
}

impl Server {
    fn words(&self) -> Vec<String> {
        match self {
            Self::Tcp { host, port, user, password } => vec![
                format!("--mysql-host={host}"),
                format!("--mysql-port={port}"),
                format!("--mysql-user={user}"),
                format!("--mysql-password={password}"),
            ],
            Self::Socket { path, user } => {
                vec![format!("--mysql-socket={path}"), format!("--mysql-user={user}")]
            }
        }
    }

    /// A whole command on the small tables; `verb` is `prepare`, `run` or `cleanup`.
    #[must_use]
    pub fn command(&self, workload: Workload, more: &[String], verb: &str) -> Vec<String> {
        self.command_on(&SMALL, workload, more, verb)
    }

    /// A whole command on these tables.
    #[must_use]
    pub fn command_on(
        &self,
        tables: &Tables,
        workload: Workload,
        more: &[String],
        verb: &str,
    ) -> Vec<String> {
        let mut words = vec!["sysbench".to_owned(), workload.script().into(), "--db-driver=mysql".into()];
        words.extend(self.words());
        words.extend([
            format!("--mysql-db={}", tables.database),
            format!("--tables={}", tables.count),
            format!("--table-size={}", tables.rows),
            "--percentile=95".into(),
        ]);
        words.extend_from_slice(more);
        words.push(verb.into());
        words
    }

    /// The command that makes and fills the tables.
    #[must_use]
    pub fn prepare(&self) -> Vec<String> {
        self.command(Workload::ReadWrite, &["--threads=2".into()], "prepare")
    }

    /// The command of a run of `seconds`.
    #[must_use]
    pub fn run(&self, load: Load, seconds: u64) -> Vec<String> {
        let more = [format!("--threads={}", load.threads), format!("--time={seconds}")];
        self.command(load.workload, &more, "run")
    }
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

impl Summary {
    #[must_use]
    pub fn figures(&self) -> Figures {
        let latency_us = Latency {
            mean: self.avg_ms * 1000.0,
            p95: Some(self.p95_ms * 1000.0),
            max: self.max_ms * 1000.0,
            ..Latency::default()
        };
        Figures { rate: self.tps, mib_per_second: None, operations: self.transactions, latency_us }
    }
}

/// Reads the summary.
///
/// # Errors
/// When a figure is missing.
pub fn parse_summary(text: &str) -> Result<Summary> {
    let missing = |what: &str| Error::Output { program: "sysbench", what: what.into(), output: text.into() };
    let rest_of = |label: &str| {
        text.lines().find_map(|line| line.trim_start().strip_prefix(label)).ok_or_else(|| missing(label))
    };
    let number = |label: &str| -> Result<f64> {
        let rest = rest_of(label)?.trim();
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].parse().map_err(|_| missing(label))
    };
    let per_second = |label: &str| -> Result<f64> {
        let inside = rest_of(label)?.split_once('(').ok_or_else(|| missing(label))?.1;
        inside.split_whitespace().next().unwrap_or_default().parse().map_err(|_| missing(label))
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
    if summary.transactions == 0 {
        return Err(missing("finished transaction"));
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
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
        assert_eq!(summary.figures().latency_us.mean, 11_420.0);
        assert!(parse_summary("FATAL: unable to connect").is_err());
        assert!(parse_summary(&OUTPUT.replace("1750", "0")).is_err());
    }
}
