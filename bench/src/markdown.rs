//! A report as Markdown.

use crate::case::Case;
use crate::report::{Report, Row, RowBytes};
use crate::stats::{Spread, number};

/// The whole document.
#[must_use]
pub fn of(report: &Report) -> String {
    let terms = &report.terms;
    let mut text = format!(
        "# Benchmark\n\nEach figure is the median over the rounds, in brackets the smallest and the largest. *Ratio* is to the \
         mean of the baseline's runs just before and just after. Processor time is that of the set-up's processes and of \
         the kernel's threads, for each operation, in microseconds; the client's stands beside it.\n\n\
         - repeat: `{}`\n- {} s for each run; fio works on {} MiB\n- measured: {}\n{}\n",
        report.command,
        terms.seconds,
        terms.mib,
        terms.version,
        report.machine.markdown()
    );
    text += "| set-up | what it is |\n|---|---|\n";
    for set_up in &report.set_ups {
        text += &format!("| {} | {} |\n", set_up.name, set_up.text);
    }
    for case in Case::all() {
        let rows: Vec<&Row> = report.rows.iter().filter(|row| row.case == case.name()).collect();
        if !rows.is_empty() {
            text += &table(&case, &rows);
        }
    }
    text += &bytes(&report.rows);
    text += &processes(&report.rows);
    if !report.failures.is_empty() {
        text += "\n## Runs without figures\n\n| set-up | case | round | why |\n|---|---|---|---|\n";
        for failure in &report.failures {
            let why = failure.why.lines().collect::<Vec<_>>().join(" ").replace('|', "/");
            text += &format!("| {} | {} | {} | {why} |\n", failure.set_up, failure.case, failure.round);
        }
    }
    text
}

fn spread(spread: Spread) -> String {
    if spread.count < 2 {
        return number(spread.median);
    }
    format!("{} ({}–{})", number(spread.median), number(spread.min), number(spread.max))
}

fn maybe(of: Option<Spread>) -> String {
    of.map_or("-".into(), spread)
}

fn table(case: &Case, rows: &[&Row]) -> String {
    let tail = if rows.iter().any(|row| row.latency_p99_us.is_some()) { "p99" } else { "p95" };
    let counted = rows.iter().any(|row| row.bytes.is_some());
    let (head, line) = if counted { (" disk KiB | wire KiB |", "---|---|") } else { ("", "") };
    let mut text = format!(
        "\n## {}\n\n`{}`\n\n| set-up | n | {} | ratio |{head} mean latency µs | its ratio | {tail} µs | max µs | CPU µs | client CPU µs |\n\
         |---|---|---|---|{line}---|---|---|---|---|---|\n",
        case.title(),
        case.name(),
        case.measure().unit()
    );
    for row in rows {
        let kib = |of: &dyn Fn(&RowBytes) -> Spread| maybe(row.bytes.as_ref().map(|bytes| in_kib(of(bytes))));
        let bytes = format!(" {} | {} |", kib(&|bytes| bytes.disk), kib(&|bytes| bytes.wire));
        text += &format!(
            "| {} | {} | {} | {} |{} {} | {} | {} | {} | {} | {} |\n",
            row.set_up,
            row.value.count,
            spread(row.value),
            maybe(row.ratio),
            if counted { bytes.as_str() } else { "" },
            spread(row.latency_mean_us),
            maybe(row.latency_ratio),
            maybe(row.latency_p99_us.or(row.latency_p95_us)),
            // Not every program tells its longest.
            if row.latency_max_us > 0.0 { number(row.latency_max_us) } else { "-".into() },
            spread(row.cpu_us),
            spread(row.client_cpu_us)
        );
    }
    text
}

fn in_kib(spread: Spread) -> Spread {
    let kib = |bytes: f64| bytes / 1024.0;
    Spread { median: kib(spread.median), min: kib(spread.min), max: kib(spread.max), ..spread }
}

/// Bytes with and without a doublewrite buffer.
fn bytes(rows: &[Row]) -> String {
    let mut text = "\n## Bytes to disks and wire\n\nKiB for each operation, all copies together, counted until nothing was written any more. \
                    *Later* is what was written after the run. The ratios are to the same set-up with a doublewrite buffer in the \
                    same round. The disk's counter is that of the whole machine's disk: other programs that write make it \
                    useless.\n\n| case | set-up | disk KiB | later | its ratio | wire KiB | its ratio |\n|---|---|---|---|---|---|---|\n"
        .to_owned();
    let front = text.len();
    for row in rows {
        let Some(bytes) = &row.bytes else { continue };
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            row.case,
            row.set_up,
            spread(in_kib(bytes.disk)),
            spread(in_kib(bytes.disk_later)),
            maybe(bytes.disk_ratio),
            spread(in_kib(bytes.wire)),
            maybe(bytes.wire_ratio)
        );
    }
    if text.len() == front { String::new() } else { text }
}

/// Where the processor time goes.
fn processes(rows: &[Row]) -> String {
    let mut text = "\n## Processor time by process\n\nMicroseconds for each operation; the kernel's workers serve any process that has work. *Others* is what had nothing to do with the set-up: where it is not small, the machine was not \
                    quiet.\n\n| case | set-up | processes and kernel threads | others |\n|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let mut parts: Vec<(&String, &f64)> =
            row.cpu_by_process_us.iter().filter(|(_, us)| **us > 0.0).collect();
        parts.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        let parts: Vec<String> = parts.iter().map(|(name, us)| format!("{name} {}", number(**us))).collect();
        text += &format!(
            "| {} | {} | {} | {} |\n",
            row.case,
            row.set_up,
            parts.join(", "),
            number(row.other_cpu_us.median)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_report_names_measured_cases_and_cases_without_figures() {
        let text = super::of(&crate::report::tests::report());
        assert!(text.contains("| three | 2 | 55.0 (50.0–60.0) | 0.55 (0.50–0.60) |"), "{text}");
        assert!(
            text.contains("## oltp_read_write, 10 threads") && !text.contains("oltp_write_only"),
            "{text}"
        );
        assert!(text.contains("n1 engine 5.00, kernel kworker 2.00"), "{text}");
        assert!(text.contains("| x | seq1m | 1 | no |"), "{text}");
        assert!(!text.contains("disk KiB"), "{text}");
    }

    #[test]
    fn bytes_stand_beside_the_transactions_and_beside_those_with_a_doublewrite_buffer() {
        use crate::report::{Report, tests};
        let counted = ["three", "three-once"].map(|name| {
            let samples = [tests::counted(name, 1, if name == "three" { 600 } else { 300 }, 100)];
            samples[0].clone()
        });
        let report = tests::report();
        let rows = crate::report::rows(&counted);
        let text = super::of(&Report { rows: [report.rows.clone(), rows].concat(), ..report });
        assert!(text.contains("| TPS | ratio | disk KiB | wire KiB | mean latency µs |"), "{text}");
        assert!(text.contains("| three-once | 1 | 80.0 | 0.80 | 300 | 100 | "), "{text}");
        assert!(text.contains("| big-oltp-wo | three-once | 300 | 75.0 | 0.50 | 100 | 1.00 |"), "{text}");
        assert!(text.contains("| IOPS | ratio | mean latency µs |"), "{text}");
    }
}
