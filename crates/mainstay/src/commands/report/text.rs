//! The report for a terminal.

use super::title_of;
use crate::commands::{events, history};
use crate::output;
use mainstay_api::rest::{NodeReport, Report, ReportPoint, RequestLoad, ResourceReport, ratio};
use mainstay_types::clock::time_words as us;
use mainstay_types::size_words as bytes;
use std::fmt::Write as _;

/// Most resources in a table.
pub const ROWS_MAX: usize = 20;
/// Most warnings and errors that are shown.
pub const EVENTS_MAX: usize = 20;
/// Most classes of waiting in a line.
const CLASSES_MAX: usize = 4;
/// Resources whose waiting is shown over time.
const TIMELINES_MAX: usize = 5;

/// The whole report. `columns`: those that sentences of the history are folded to.
pub fn words(report: &Report, columns: Option<usize>) -> String {
    let mut parts = vec![format!("report of cluster {}, {}", report.cluster, title_of(report))];
    let mut section = |head: &str, body: String| {
        if !body.is_empty() {
            parts.push(format!("\n{head}\n{body}"));
        }
    };
    let findings: Vec<String> = report.findings.iter().map(|text| format!("  - {text}")).collect();
    section("What stands out", if findings.is_empty() { "  nothing".into() } else { findings.join("\n") });
    if report.resources.is_empty() {
        section("Requests", "  no replica did anything".into());
    } else {
        section("Requests", requests(report));
        section("Latency: times that 50, 95 and 99 % of the requests did not exceed", latencies(report));
        section("Waiting: mean number of requests that waited, and for what", waiting(report));
    }
    section("Nodes", nodes(&report.nodes));
    let changes = report.changes.iter().map(|change| history::of_change(change, true, columns));
    section("Changes of primaries", changes.collect::<Vec<_>>().join("\n"));
    section("Warnings and errors", warnings(report));
    if let Some(before) = &report.compared {
        section(&format!("Compared with {}", title_of(before)), compared(report, before));
    }
    parts.join("\n")
}

/// A number with as many digits as matter.
pub fn short(value: f64) -> String {
    match value {
        _ if value <= 0.0 => "0".to_owned(),
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// MiB a second of some requests.
pub fn mib_per_second(point: &ReportPoint, requests: &RequestLoad) -> f64 {
    point.per_second(requests.bytes) / 1_048_576.0
}

/// Growth in percent; `None` from nothing.
pub fn change(now: f64, before: f64) -> Option<f64> {
    (before > 0.0).then(|| 100.0 * (now - before) / before)
}

fn shown(report: &Report) -> impl Iterator<Item = &ResourceReport> {
    report.resources.iter().take(ROWS_MAX)
}

fn more(report: &Report) -> String {
    match report.resources.len().saturating_sub(ROWS_MAX) {
        0 => String::new(),
        more => format!("\n{more} more resources waited less"),
    }
}

fn requests(report: &Report) -> String {
    let row = |resource: &ResourceReport| {
        let total = &resource.total;
        let mut row = vec![resource.resource.clone()];
        for requests in [&total.reads, &total.writes] {
            row.push(short(total.per_second(requests.count)));
            row.push(short(mib_per_second(total, requests)));
        }
        row.push((total.reads.errors + total.writes.errors).to_string());
        row.push(resource.primaries.keys().cloned().collect::<Vec<_>>().join(", "));
        row
    };
    let rows: Vec<_> = shown(report).map(row).collect();
    let head = ["RESOURCE", "READS/s", "MiB/s", "WRITES/s", "MiB/s", "ERRORS", "PRIMARY"];
    output::table(&head, &rows) + &more(report)
}

fn latencies(report: &Report) -> String {
    let row = |resource: &ResourceReport| {
        let mut row = vec![resource.resource.clone()];
        for requests in [&resource.total.reads, &resource.total.writes] {
            row.extend([500, 950, 990].map(|at| requests.percentile_us(at).map_or("-".into(), us)));
        }
        row
    };
    let rows: Vec<_> = shown(report).filter(|resource| resource.total.waited_us() > 0).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    output::table(&["RESOURCE", "READ 50", "95", "99", "WRITE 50", "95", "99"], &rows)
}

fn waiting(report: &Report) -> String {
    let row = |resource: &ResourceReport| {
        let shares = resource.total.shares();
        let classes = shares.iter().take(CLASSES_MAX).filter(|(_, share)| *share >= 0.5);
        let classes: Vec<String> = classes.map(|(class, share)| format!("{class} {share:.0} %")).collect();
        vec![resource.resource.clone(), short(resource.total.waiting()), classes.join(", ")]
    };
    let waited = || shown(report).filter(|resource| resource.total.waited_us() > 0);
    let rows: Vec<_> = waited().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut text = output::table(&["RESOURCE", "WAITING", "FOR"], &rows);
    for resource in waited().take(TIMELINES_MAX) {
        let _ = write!(text, "\n{}", timeline(report, resource));
    }
    text
}

/// The waiting over time, as a line of bars.
fn timeline(report: &Report, resource: &ResourceReport) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let points = report.points();
    let value = |number: u64| resource.points.get(&number).map_or(0.0, ReportPoint::waiting);
    let most = (0..points).map(value).fold(0.0, f64::max);
    let bar = |number: u64| {
        let value = value(number);
        let mut place = BARS.iter().enumerate().filter(|(at, _)| value > most * ratio(*at as u64, 8));
        place.next_back().map_or(' ', |(_, bar)| *bar)
    };
    let bars: String = (0..points).map(bar).collect();
    let (from, to) = (report.point_clock(0), report.point_clock(points));
    format!("\n{} from {from} to {to}, at most {}\n  {}", resource.resource, short(most), bars.trim_end())
}

fn nodes(nodes: &[NodeReport]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let percent = |permille: u64| format!("{} %", short(ratio(permille, 10)));
    let row = |node: &NodeReport| {
        let free = match node.pool_size_bytes {
            0 => "-".to_owned(),
            size => format!("{} of {}", bytes(node.pool_free_bytes), bytes(size)),
        };
        vec![
            node.node.clone(),
            percent(node.engine_cpu_permille),
            percent(node.agent_cpu_permille),
            bytes(node.engine_memory_bytes + node.agent_memory_bytes),
            free,
        ]
    };
    let rows: Vec<_> = nodes.iter().map(row).collect();
    output::table(&["NODE", "ENGINE CPU", "AGENT CPU", "MEMORY", "POOL FREE"], &rows)
}

fn warnings(report: &Report) -> String {
    let left_out = report.events.len().saturating_sub(EVENTS_MAX);
    let mut lines: Vec<String> = report.events.iter().skip(left_out).map(events::words).collect();
    if left_out > 0 {
        lines.insert(0, format!("{left_out} earlier ones are left out; `mainstay events` has them"));
    }
    lines.join("\n")
}

/// Rates, latencies and waiting of both intervals. `None` where no primary's work is recorded.
pub fn pairs(now: &ResourceReport, before: &Report) -> [(Option<f64>, f64); 3] {
    let rate = |one: &ResourceReport| one.total.per_second(one.total.reads.count + one.total.writes.count);
    let p99 = |one: &ResourceReport| ratio(one.total.writes.percentile_us(990).unwrap_or(0), 1000);
    let waiting = |one: &ResourceReport| one.total.waiting();
    let then = before.resources.iter().find(|then| then.resource == now.resource);
    let then = then.filter(|then| then.is_recorded());
    [(then.map(rate), rate(now)), (then.map(p99), p99(now)), (then.map(waiting), waiting(now))]
}

/// Heads of the columns of [`pairs`].
pub const PAIRS: [&str; 3] = ["REQUESTS/s", "WRITE 99 % (ms)", "WAITING"];

/// Both values, with the growth in percent.
pub fn pair((then, now): (Option<f64>, f64)) -> String {
    let Some(then) = then else { return format!("not recorded → {}", short(now)) };
    let growth = change(now, then).filter(|growth| growth.abs() >= 0.5);
    let growth = growth.map(|growth| format!(" ({growth:+.0} %)")).unwrap_or_default();
    format!("{} → {}{growth}", short(then), short(now))
}

fn compared(report: &Report, before: &Report) -> String {
    let row = |now: &ResourceReport| {
        let values = pairs(now, before).map(pair);
        [vec![now.resource.clone()], values.to_vec()].concat()
    };
    let rows: Vec<_> = shown(report).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    output::table(&["RESOURCE", PAIRS[0], PAIRS[1], PAIRS[2]], &rows)
}
