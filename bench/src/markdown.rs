//! A report as Markdown.

use crate::case::Case;
use crate::report::{Report, Row};
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
    let mut text = format!(
        "\n## {}\n\n`{}`\n\n| set-up | n | {} | ratio | mean latency µs | its ratio | {tail} µs | max µs | CPU µs | client CPU µs |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        case.title(),
        case.name(),
        case.measure().unit()
    );
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            row.set_up,
            row.value.count,
            spread(row.value),
            maybe(row.ratio),
            spread(row.latency_mean_us),
            maybe(row.latency_ratio),
            maybe(row.latency_p99_us.or(row.latency_p95_us)),
            number(row.latency_max_us),
            spread(row.cpu_us),
            spread(row.client_cpu_us)
        );
    }
    text
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
    }
}
