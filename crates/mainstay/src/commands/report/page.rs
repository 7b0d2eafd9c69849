//! The report as one HTML page: no script, and nothing from elsewhere.

use super::plot::{COLOURS, Kind, Line, escaped, plot};
use super::text::{self, EVENTS_MAX, PAIRS, ROWS_MAX, mib_per_second, short};
use super::title_of;
use mainstay_api::rest::{NodeReport, Report, ReportPoint, ResourceReport, Severity, ratio};
use mainstay_types::clock::{clock, time_words as us};
use mainstay_types::size_words as bytes;
use std::fmt::Write as _;

/// Resources that have plots.
const PLOTTED_MAX: usize = 6;

const STYLE: &str = "
:root { color-scheme: light dark; --back: #fff; --text: #1a1d21; --soft: #57606a; --line: #d5dae0; --mark: #f2f5f8;
  --c0: #0b62b8; --c1: #c2410c; --c2: #15803d; --c3: #7c3aed; --c4: #b0146b; --c5: #0e7490; --c6: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e6e9ed; --soft: #a0a9b4; --line: #3a424c; --mark: #1d2228;
  --c0: #6db3f8; --c1: #fb9a66; --c2: #5fd38a; --c3: #b79cf9; --c4: #f285bb; --c5: #5cc9dd; --c6: #a0a9b4; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem; background: var(--back); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .25rem; }
p.when, .unit, caption { color: var(--soft); } ul.findings { padding-left: 1.2rem; } ul.findings li { margin: .25rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .75rem .25rem 0; text-align: left; border-bottom: 1px solid var(--line); vertical-align: top; } th { font-weight: 600; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); } .end { text-anchor: end; } .middle { text-anchor: middle; }
.grid { stroke: var(--line); fill: none; } .line { fill: none; stroke-width: 1.6; } .area { fill-opacity: .8; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: .25rem 0 0; padding: 0; font-size: .85rem; }
.legend i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; border-radius: 2px; vertical-align: -1px; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
";

/// Patterns of lines, so that colours are not needed to tell them apart.
const DASHES: [&str; COLOURS] = ["none", "6 3", "2 3", "8 3 2 3", "4 2", "1 2", "10 4"];

/// The whole page.
pub fn html(report: &Report) -> String {
    let name = format!("Report of cluster {}", report.cluster);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0}</title>\n<style>{STYLE}",
        escaped(&name)
    );
    for (number, dashes) in DASHES.iter().enumerate() {
        let _ = writeln!(
            page,
            ".c{number} {{ stroke: var(--c{number}); stroke-dasharray: {dashes}; }} .f{number} {{ fill: var(--c{number}); background: var(--c{number}); }}"
        );
    }
    let _ = write!(
        page,
        "</style>\n</head>\n<body>\n<h1>{}</h1>\n<p class=\"when\">{}</p>\n",
        escaped(&name),
        escaped(&title_of(report))
    );
    findings(report, &mut page);
    tables(report, &mut page);
    report.resources.iter().take(PLOTTED_MAX).for_each(|resource| plots(report, resource, &mut page));
    nodes(report, &mut page);
    happened(report, &mut page);
    page.push_str("</body>\n</html>\n");
    page
}

fn findings(report: &Report, page: &mut String) {
    page.push_str("<h2>What stands out</h2>\n");
    if report.findings.is_empty() {
        page.push_str("<p>Nothing.</p>\n");
        return;
    }
    page.push_str("<ul class=\"findings\">\n");
    for finding in &report.findings {
        let _ = writeln!(page, "<li>{}</li>", escaped(finding));
    }
    page.push_str("</ul>\n");
}

fn table(page: &mut String, title: &str, head: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let cells = |tag: &str, cells: &[String]| {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect::<String>()
    };
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let _ = write!(
        page,
        "<h2>{}</h2>\n<div class=\"wide\"><table>\n<thead><tr>{}</tr></thead>\n<tbody>\n",
        escaped(title),
        cells("th scope=\"col\"", &head).replace("</th scope=\"col\">", "</th>")
    );
    for row in rows {
        let _ = writeln!(page, "<tr>{}</tr>", cells("td", row));
    }
    page.push_str("</tbody></table></div>\n");
}

fn tables(report: &Report, page: &mut String) {
    let shown = || report.resources.iter().take(ROWS_MAX);
    let row = |resource: &ResourceReport| {
        let total = &resource.total;
        let mut row = vec![resource.resource.clone()];
        for requests in [&total.reads, &total.writes] {
            let time = |at| requests.percentile_us(at).map_or("-".into(), us);
            let rate = short(total.per_second(requests.count));
            row.extend([rate, short(mib_per_second(total, requests)), time(500), time(990)]);
        }
        row.push(short(total.waiting()));
        row.push(resource.primaries.keys().cloned().collect::<Vec<_>>().join(", "));
        row
    };
    let rows: Vec<_> = shown().map(row).collect();
    let head = [
        "Resource", "Reads/s", "MiB/s", "50 %", "99 %", "Writes/s", "MiB/s", "50 %", "99 %", "Waiting",
        "Primary",
    ];
    table(page, "Resources", &head, &rows);
    let waits = |resource: &ResourceReport| {
        let shares = resource.total.shares().into_iter().filter(|(_, share)| *share >= 0.5);
        let shares: Vec<String> = shares.map(|(class, share)| format!("{class} {share:.0} %")).collect();
        vec![resource.resource.clone(), short(resource.total.waiting()), shares.join(", ")]
    };
    let rows: Vec<_> = shown().filter(|resource| resource.total.waited_us() > 0).map(waits).collect();
    table(page, "What requests waited for", &["Resource", "Mean number", "For"], &rows);
    if let Some(before) = &report.compared {
        let row = |now: &ResourceReport| {
            let values = text::pairs(now, before).map(text::pair);
            [vec![now.resource.clone()], values.to_vec()].concat()
        };
        let rows: Vec<_> = shown().map(row).collect();
        let head = ["Resource", PAIRS[0], PAIRS[1], PAIRS[2]];
        table(page, &format!("Compared with {}", title_of(before)), &head, &rows);
    }
}

fn draw(report: &Report, title: &str, unit: &str, kind: Kind, lines: &[Line], page: &mut String) {
    let points = report.points();
    let clocks = [0, points / 2, points].map(|number| report.point_clock(number));
    let lines: Vec<&Line> = lines.iter().filter(|line| line.values.iter().any(Option::is_some)).collect();
    page.push_str(&plot(title, unit, kind, &lines, [&clocks[0], &clocks[1], &clocks[2]]));
}

fn plots(report: &Report, resource: &ResourceReport, page: &mut String) {
    // Without the record of a primary nothing is known of requests: a gap, and no zero.
    let point = |number: u64| resource.points.get(&number).filter(|point| point.primary_ms > 0);
    let line = |name: &str, of: &dyn Fn(&ReportPoint) -> Option<f64>| Line {
        name: name.to_owned(),
        values: (0..report.points()).map(|number| point(number).and_then(of)).collect(),
    };
    let ms = |us: Option<u64>| us.map(|us| ratio(us, 1000));
    let _ = writeln!(page, "<h2>Resource {}</h2>", escaped(&resource.resource));
    let rates = [
        line("reads", &|one| Some(one.per_second(one.reads.count))),
        line("writes", &|one| Some(one.per_second(one.writes.count))),
    ];
    draw(report, "Requests", "a second", Kind::Lines, &rates, page);
    let throughput = [
        line("reads", &|one| Some(mib_per_second(one, &one.reads))),
        line("writes", &|one| Some(mib_per_second(one, &one.writes))),
    ];
    draw(report, "Throughput", "MiB a second", Kind::Lines, &throughput, page);
    let latencies = [
        line("writes, 50 %", &|one| ms(one.writes.percentile_us(500))),
        line("writes, 99 %", &|one| ms(one.writes.percentile_us(990))),
        line("reads, 50 %", &|one| ms(one.reads.percentile_us(500))),
        line("reads, 99 %", &|one| ms(one.reads.percentile_us(990))),
    ];
    draw(report, "Latency", "ms", Kind::Lines, &latencies, page);
    let shares = resource.total.shares();
    let of_class = |class: &str, one: &ReportPoint| {
        Some(ratio(one.waits.get(class).copied().unwrap_or(0), one.covered_ms.saturating_mul(1000)))
    };
    let waits: Vec<Line> =
        shares.iter().take(COLOURS).map(|(class, _)| line(class, &|one| of_class(class, one))).collect();
    if !waits.is_empty() {
        draw(report, "Waiting", "requests on average", Kind::Stack, &waits, page);
    }
}

fn nodes(report: &Report, page: &mut String) {
    let percent = |permille: u64| format!("{} %", short(ratio(permille, 10)));
    let row = |node: &NodeReport| {
        vec![
            node.node.clone(),
            percent(node.engine_cpu_permille),
            percent(node.agent_cpu_permille),
            bytes(node.engine_memory_bytes),
            bytes(node.agent_memory_bytes),
            bytes(node.pool_free_bytes_first),
            bytes(node.pool_free_bytes),
            bytes(node.pool_size_bytes),
        ]
    };
    let rows: Vec<_> = report.nodes.iter().map(row).collect();
    let head = [
        "Node",
        "Engine CPU",
        "Agent CPU",
        "Engine memory",
        "Agent memory",
        "Pool free before",
        "After",
        "Size",
    ];
    table(page, "Nodes", &head, &rows);
    let lines = |of: &dyn Fn(&(u64, u64)) -> f64| -> Vec<Line> {
        let of_node = |node: &NodeReport| Line {
            name: node.node.clone(),
            values: (0..report.points()).map(|number| node.points.get(&number).map(of)).collect(),
        };
        report.nodes.iter().take(COLOURS).map(of_node).collect()
    };
    if !report.nodes.is_empty() {
        let cpu = lines(&|(permille, _)| ratio(*permille, 10));
        draw(report, "Processor time of engines", "% of one processor", Kind::Lines, &cpu, page);
        let free = lines(&|(_, free)| ratio(*free, 1 << 30));
        draw(report, "Free space of pools", "GiB", Kind::Lines, &free, page);
    }
}

fn happened(report: &Report, page: &mut String) {
    let changes = report.changes.iter().map(|change| {
        let node = |node: &Option<String>| node.clone().unwrap_or_else(|| "-".into());
        let took = change.took_ms.map_or("-".into(), |ms| us(ms * 1000));
        vec![
            clock(change.at_ms),
            change.resource.clone(),
            node(&change.from),
            node(&change.to),
            change.cause.clone(),
            took,
        ]
    });
    let head = ["Time", "Resource", "From", "To", "Cause", "Service ran after"];
    table(page, "Changes of primaries", &head, &changes.collect::<Vec<_>>());
    let left_out = report.events.len().saturating_sub(EVENTS_MAX * 5);
    let events = report.events.iter().skip(left_out).map(|event| {
        let severity = if event.severity == Severity::Critical { "error" } else { "warning" };
        vec![clock(event.at_ms), severity.to_owned(), event.subject.clone(), event.text.clone()]
    });
    table(
        page,
        "Warnings and errors",
        &["Time", "Severity", "Subject", "Event"],
        &events.collect::<Vec<_>>(),
    );
    let copied = report.resources.iter().filter(|resource| resource.total.copied_bytes > 0);
    let rows: Vec<_> =
        copied.map(|resource| vec![resource.resource.clone(), bytes(resource.total.copied_bytes)]).collect();
    table(page, "Copies to replicas that had been away", &["Resource", "Bytes"], &rows);
}
