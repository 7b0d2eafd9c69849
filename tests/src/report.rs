//! Results of the demo, as a text for people and as JSON for programs.

use crate::sysbench::{Second, Summary};
use crate::timeline::Failover;
use serde::Serialize;
use std::fmt::Write as _;

/// One environment of the comparison, over all its rounds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Run {
    pub environment: String,
    pub threads: u32,
    pub rounds: usize,
    /// Statements, in all rounds together.
    pub reads: u64,
    pub writes: u64,
    pub tps: f64,
    pub min_ms: f64,
    pub avg_ms: f64,
    /// Mean of the rounds' 95th percentiles.
    pub p95_ms: f64,
    pub max_ms: f64,
}

impl Run {
    /// # Panics
    /// Without a round: the caller has run at least one.
    #[must_use]
    pub fn over(environment: &str, threads: u32, rounds: &[Summary]) -> Self {
        assert!(!rounds.is_empty(), "no round of {environment}");
        let count = rounds.len() as f64;
        let transactions: f64 = rounds.iter().map(|round| round.transactions as f64).sum();
        let mean = |of: fn(&Summary) -> f64| rounds.iter().map(of).sum::<f64>() / count;
        Self {
            environment: environment.into(),
            threads,
            rounds: rounds.len(),
            reads: rounds.iter().map(|round| round.reads).sum(),
            writes: rounds.iter().map(|round| round.writes).sum(),
            tps: mean(|round| round.tps),
            min_ms: rounds.iter().map(|round| round.min_ms).fold(f64::INFINITY, f64::min),
            avg_ms: rounds.iter().map(|round| round.avg_ms * round.transactions as f64).sum::<f64>()
                / transactions.max(1.0),
            p95_ms: mean(|round| round.p95_ms),
            max_ms: rounds.iter().map(|round| round.max_ms).fold(0.0, f64::max),
        }
    }
}

/// Transactions per second in the phases of the failover run.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Throughput {
    /// Three replicas, until the power cut.
    pub before_tps: f64,
    /// From the power cut to the first commit.
    pub during_tps: f64,
    /// Two replicas, until the lost node returned.
    pub degraded_tps: f64,
    /// While the lost node caught up and afterwards.
    pub after_tps: f64,
}

/// Mean of the whole seconds that lie in `from..to`, both in seconds since the run began.
#[must_use]
pub fn mean_tps(seconds: &[Second], from: f64, to: f64) -> f64 {
    // The line of second n covers n-1 to n.
    let inside = |second: &&Second| (second.at_s as f64 - 1.0) >= from && (second.at_s as f64) <= to;
    let tps: Vec<f64> = seconds.iter().filter(inside).map(|second| second.tps).collect();
    if tps.is_empty() { 0.0 } else { tps.iter().sum::<f64>() / tps.len() as f64 }
}

#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Report {
    pub acknowledged_rows: u64,
    pub lost_rows: u64,
    pub wrong_rows: u64,
    pub tables_checked: usize,
    /// Complaints of CHECK TABLE … EXTENDED; empty when every table is clean.
    pub table_faults: Vec<String>,
    pub replicas_equal: bool,
    /// The position of the log at which the replicas were compared.
    pub compared_at_index: u64,
    pub failover_ms: Failover,
    pub lease_ms: u64,
    /// The same database after kill -9 on the plain device: start of the server to the first
    /// commit.
    pub db_recovery_ms: f64,
    /// From the return of the lost node's power until it was in sync again.
    pub resync_ms: f64,
    pub throughput: Throughput,
    pub runs: Vec<Run>,
    /// Resident memory of engine and agent on each node under load, in bytes.
    pub memory_bytes: Vec<(String, u64)>,
    /// Output of `mainstay --version`.
    pub version: String,
    pub processors: usize,
    pub kernel: String,
}

impl Report {
    /// Whether every proof holds.
    #[must_use]
    pub fn good(&self) -> bool {
        self.acknowledged_rows > 0
            && self.lost_rows == 0
            && self.wrong_rows == 0
            && self.tables_checked > 0
            && self.table_faults.is_empty()
            && self.replicas_equal
            && self.failover_ms.total.is_some()
    }

    /// The text for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("writing to a string cannot fail");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let verdict = |good: bool| if good { "yes" } else { "NO" };
        writeln!(out, "Proofs")?;
        let (rows, lost) = (self.acknowledged_rows, self.lost_rows);
        writeln!(
            out,
            "  every acknowledged row is there:  {}  ({rows} acknowledged, {lost} lost)",
            verdict(lost == 0)
        )?;
        let clean = verdict(self.table_faults.is_empty());
        writeln!(out, "  every table passes CHECK TABLE:   {clean}  ({} tables)", self.tables_checked)?;
        for fault in &self.table_faults {
            writeln!(out, "      {fault}")?;
        }
        let equal = verdict(self.replicas_equal);
        writeln!(out, "  all replicas are byte-equal:      {equal}  (at index {})", self.compared_at_index)?;
        writeln!(out, "\nFailover, milliseconds after the power cut (lease {} ms)", self.lease_ms)?;
        let mut last = 0.0;
        for (name, ms) in self.failover_ms.stages() {
            match ms {
                Some(ms) => {
                    writeln!(out, "  {name:<20} {ms:>7.0}   (+{:.0})", ms - last)?;
                    last = ms;
                }
                None => writeln!(out, "  {name:<20}       -")?,
            }
        }
        writeln!(out, "  the same database after kill -9 on a plain device: {:.0} ms", self.db_recovery_ms)?;
        writeln!(out, "  the lost node was in sync again {:.1} s after its return", self.resync_ms / 1000.0)?;
        let Throughput { before_tps, during_tps, degraded_tps, after_tps } = self.throughput;
        writeln!(out, "\nThroughput of the failover run, transactions per second, the ledger beside it")?;
        writeln!(
            out,
            "  before {before_tps:.0}   power cut to first commit {during_tps:.0}   two replicas {degraded_tps:.0}   \
             after the node's return {after_tps:.0}"
        )?;
        let threads = self.runs.first().map_or(0, |run| run.threads);
        writeln!(out, "\nsysbench oltp_read_write, {threads} threads, latencies in milliseconds")?;
        let head =
            "environment             |    reads |   writes |    TPS |   min |    avg |    p95 |    max";
        writeln!(out, "  {head}")?;
        writeln!(out, "  {}", head.replace(|c| c != '|', "-").replace('|', "+"))?;
        for run in &self.runs {
            writeln!(
                out,
                "  {:<23} | {:>8} | {:>8} | {:>6.0} | {:>5.1} | {:>6.1} | {:>6.1} | {:>6.1}",
                run.environment,
                run.reads,
                run.writes,
                run.tps,
                run.min_ms,
                run.avg_ms,
                run.p95_ms,
                run.max_ms
            )?;
        }
        if let (Some(first), Some(last)) = (self.runs.first(), self.runs.last())
            && self.runs.len() > 1
        {
            let ratio = last.tps / first.tps;
            writeln!(out, "  {} reach {ratio:.2} of the {}", last.environment, first.environment)?;
        }
        writeln!(out, "\nMemory of engine and agent under load")?;
        for (node, bytes) in &self.memory_bytes {
            writeln!(out, "  {node}  {:.0} MiB", *bytes as f64 / f64::from(1 << 20))?;
        }
        writeln!(out, "\n{}, {} processors, Linux {}", self.version, self.processors, self.kernel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_without_proofs_is_not_good() {
        let mut report = Report::default();
        assert!(!report.good());
        report = Report {
            acknowledged_rows: 5,
            tables_checked: 1,
            replicas_equal: true,
            failover_ms: Failover { total: Some(3000.0), ..Failover::default() },
            ..report
        };
        assert!(report.good());
        for broken in [
            Report { lost_rows: 1, ..report.clone() },
            Report { wrong_rows: 1, ..report.clone() },
            Report { replicas_equal: false, ..report.clone() },
            Report { table_faults: vec!["torn".into()], ..report.clone() },
            Report { failover_ms: Failover::default(), ..report.clone() },
        ] {
            assert!(!broken.good());
        }
    }

    #[test]
    fn rounds_are_put_together() {
        let round = |tps, avg_ms, transactions, max_ms| Summary {
            tps,
            avg_ms,
            transactions,
            max_ms,
            min_ms: avg_ms / 2.0,
            p95_ms: avg_ms * 2.0,
            reads: 14 * transactions,
            ..Summary::default()
        };
        let run = Run::over("x", 10, &[round(100.0, 10.0, 1000, 50.0), round(50.0, 20.0, 500, 40.0)]);
        assert_eq!((run.tps, run.max_ms, run.min_ms, run.p95_ms), (75.0, 50.0, 5.0, 30.0));
        assert!((run.avg_ms - 13.33).abs() < 0.01 && run.reads == 21_000);
    }

    #[test]
    fn only_whole_seconds_count() {
        let second = |at_s, tps| Second { at_s, tps, p95_ms: 0.0, errors: 0.0, reconnects: 0.0 };
        let seconds = [second(1, 10.0), second(2, 20.0), second(3, 90.0)];
        assert!((mean_tps(&seconds, 0.0, 2.9) - 15.0).abs() < 1e-9);
        assert!((mean_tps(&seconds, 0.5, 3.0) - 55.0).abs() < 1e-9);
        assert_eq!(mean_tps(&seconds, 8.0, 9.0), 0.0);
    }
}
