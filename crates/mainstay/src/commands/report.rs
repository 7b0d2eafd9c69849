//! `mainstay report`: the load of an interval, from the histories of all nodes.
//!
//! Reading order: `report/gather.rs` (one report of the records of all nodes), `report/findings.rs`
//! (what stands out), `report/text.rs`, `report/page.rs` and `report/plot.rs` (how it is shown).

mod findings;
mod gather;
mod page;
mod plot;
#[cfg(test)]
mod tests;
mod text;

use super::events::clock;
use crate::cli::ReportArgs;
use crate::failure::{Code, Context, Failure, Outcome};
use crate::moment;
use crate::output::{self, Output};
use gather::Interval;
use mainstay_api::rest::{ChangeView, EventView};
use mainstay_client::Client;
use mainstay_history::percentile;
use mainstay_types::duration;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Shortest interval: a record has a minute.
const INTERVAL_MS_MIN: u64 = 60_000;

/// The report of an interval, as `--json` prints it.
#[derive(Clone, Default, Serialize)]
pub struct Report {
    pub cluster: String,
    pub from_ms: u64,
    pub to_ms: u64,
    pub step_ms: u64,
    /// Sentences, most important first.
    pub findings: Vec<String>,
    /// The resource whose requests waited most is the first.
    pub resources: Vec<ResourceReport>,
    pub nodes: Vec<NodeReport>,
    /// Nodes without a history, each with the reason.
    pub missing: Vec<String>,
    pub changes: Vec<ChangeView>,
    /// Warnings and errors.
    pub events: Vec<EventView>,
    /// The same for another interval, without events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<Box<Report>>,
}

/// The load of one resource.
#[derive(Clone, Default, Serialize)]
pub struct ResourceReport {
    pub resource: String,
    /// For how long each node was primary, in milliseconds.
    pub primaries: BTreeMap<String, u64>,
    pub total: Numbers,
    /// By their number in the interval.
    pub points: BTreeMap<u64, Numbers>,
}

/// Work of a resource within some time.
#[derive(Clone, Default, Serialize)]
pub struct Numbers {
    /// Time that is recorded.
    pub covered_ms: u64,
    pub reads: Requests,
    /// Discards and write-zeroes included.
    pub writes: Requests,
    /// Sums of waiting by class, in microseconds.
    pub waits: BTreeMap<String, u64>,
    pub copied_bytes: u64,
    pub times_slow: u64,
    /// The follower that lacked most.
    pub lag_bytes: u64,
    /// The fullest journal, in thousandths, and its node.
    pub journal_permille: u64,
    pub journal_node: String,
}

/// Requests of one direction.
#[derive(Clone, Default, Serialize)]
pub struct Requests {
    pub count: u64,
    pub bytes: u64,
    pub errors: u64,
    pub time_us: u64,
    pub histogram: Vec<u64>,
}

/// The use of one node.
#[derive(Clone, Default, Serialize)]
pub struct NodeReport {
    pub node: String,
    pub covered_ms: u64,
    /// Mean shares of one processor, in thousandths.
    pub engine_cpu_permille: u64,
    pub agent_cpu_permille: u64,
    pub engine_memory_bytes: u64,
    pub agent_memory_bytes: u64,
    pub pool_size_bytes: u64,
    pub pool_free_bytes_first: u64,
    pub pool_free_bytes: u64,
    /// Processor time of the engine in thousandths, and free bytes of the pool, by point.
    pub points: BTreeMap<u64, (u64, u64)>,
}

impl Requests {
    fn percentile_us(&self, permille: u32) -> Option<u64> {
        percentile(&self.histogram, permille)
    }
}

impl Numbers {
    /// Time of all requests, which all classes of waiting add up to.
    fn waited_us(&self) -> u64 {
        self.waits.values().fold(0, |sum, us| sum.saturating_add(*us))
    }

    /// Mean number of requests that waited.
    fn waiting(&self) -> f64 {
        ratio(self.waited_us(), self.covered_ms.saturating_mul(1000))
    }

    fn per_second(&self, count: u64) -> f64 {
        ratio(count.saturating_mul(1000), self.covered_ms)
    }

    /// Classes of waiting with their shares of all of it, in percent, greatest first.
    fn shares(&self) -> Vec<(&str, f64)> {
        let all = self.waited_us();
        let shares = self.waits.iter().map(|(class, us)| (class.as_str(), 100.0 * ratio(*us, all)));
        let mut shares: Vec<(&str, f64)> = shares.collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }
}

/// The ratio for display; 0 for nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

pub fn run(args: &ReportArgs, client: &Client, output: Output) -> Outcome<u8> {
    let interval = interval(args, moment::now_ms())?;
    let mut report = gather::report(client, interval)?;
    gather::add_events(client, &mut report)?;
    if let Some(other) = compared(args, interval) {
        report.compared = Some(Box::new(gather::report(client, other)?));
    }
    report.findings = findings::of(&report);
    match &args.output {
        None => output.result(&report, |report| text::words(report, output::columns()))?,
        Some(path) => {
            write_new(path, &page::html(&report))?;
            output.note(&format!("the report is in {}", path.display()));
        }
    }
    Ok(0)
}

fn interval(args: &ReportArgs, now_ms: u64) -> Outcome<Interval> {
    let to_ms = args.to.unwrap_or(now_ms);
    let from_ms = args.from.unwrap_or_else(|| to_ms.saturating_sub(args.last));
    if to_ms.saturating_sub(from_ms) < INTERVAL_MS_MIN {
        return Err(Failure::new(
            Code::BadRequest,
            format!("from {} to {} is less than a minute", clock(from_ms), clock(to_ms)),
            "Name an earlier begin, for example `mainstay report --last 1h`. Nodes record each minute.",
        ));
    }
    Ok(Interval { from_ms, to_ms })
}

/// The interval to compare with.
fn compared(args: &ReportArgs, interval: Interval) -> Option<Interval> {
    let length = interval.to_ms - interval.from_ms;
    let from_ms = args.compare?.unwrap_or_else(|| interval.from_ms.saturating_sub(length));
    Some(Interval { from_ms, to_ms: from_ms.saturating_add(length) })
}

fn write_new(path: &Path, text: &str) -> Outcome<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .or_fail(Code::Io, || format!("write the report to {}", path.display()))
}

/// The begin of a point as a time of day, with the date if the interval is longer than a day.
fn point_clock(report: &Report, number: u64) -> String {
    let at = report.from_ms.saturating_add(number.saturating_mul(report.step_ms));
    let whole = clock(at);
    let is_long = report.to_ms - report.from_ms > 86_400_000;
    whole.get(if is_long { 5..16 } else { 11..16 }).unwrap_or(&whole).to_owned()
}

/// Begin, end and length of the interval.
fn title(report: &Report) -> String {
    let short = |at| clock(at).get(..16).unwrap_or_default().to_owned();
    let length = (report.to_ms - report.from_ms) / 60_000 * 60_000;
    format!("{} to {} UTC ({})", short(report.from_ms), short(report.to_ms), duration::typed(length))
}
