//! The tables of `mainstay top`. They fit 80 columns.

use super::Seen;
use super::reading::{PrimaryRow, SecondaryRow};
use crate::output::fold;
use mainstay_types::clock::clock;

/// Columns that are never too many.
const COLUMNS: usize = 80;
/// Columns of the numbers of a primary and of a secondary.
const PRIMARY: [usize; 11] = [6, 6, 7, 6, 6, 6, 8, 6, 7, 7, 4];
/// Columns of the heads above the numbers of a primary.
const GROUPS: [usize; 5] = [12, 13, 33, 7, 4];
const SECONDARY: [usize; 5] = [9, 6, 9, 14, 12];

/// Text of one look. `columns`: of the terminal. `lines`: resources of each table.
pub fn words(seen: &Seen, columns: Option<usize>, lines: usize) -> String {
    let columns = columns.unwrap_or(COLUMNS);
    let mut text = format!(
        "{}{}, {}, over {:.1} s",
        if seen.node.is_empty() { "this node" } else { seen.node.as_str() },
        if seen.cluster.is_empty() { String::new() } else { format!(" of cluster {}", seen.cluster) },
        clock(seen.at_ms),
        seen.seconds
    );
    if !seen.primaries.is_empty() {
        let name = columns.max(COLUMNS) - PRIMARY.iter().sum::<usize>();
        text += &format!(
            "\n\n{}\n{}",
            line("", name, &GROUPS, ["READS", "WRITES", "MEAN TIME", "", "JRNL"]),
            line(
                "RESOURCE",
                name,
                &PRIMARY,
                ["/s", "MiB/s", "/s", "MiB/s", "read", "write", "journal", "peer", "commit", "behind", "%"]
            )
        );
        for row in seen.primaries.iter().take(lines) {
            text += &format!(
                "\n{}",
                line(&row.name, name, &PRIMARY, primary(row).each_ref().map(String::as_str))
            );
        }
        text += &more(seen.primaries.len(), lines);
    }
    if !seen.secondaries.is_empty() {
        let name = columns.max(COLUMNS) - SECONDARY.iter().sum::<usize>();
        text += &format!(
            "\n\n{}\n{}",
            line("", name, &SECONDARY, ["JOURNAL", "", "", "VOLUMES", "JOURNAL"]),
            line(
                "PRIMARY ELSEWHERE",
                name,
                &SECONDARY,
                ["writes/s", "MiB/s", "a write", "MiB/s written", "% full"]
            )
        );
        for row in seen.secondaries.iter().take(lines) {
            text += &format!(
                "\n{}",
                line(&row.name, name, &SECONDARY, secondary(row).each_ref().map(String::as_str))
            );
        }
        text += &more(seen.secondaries.len(), lines);
    }
    if seen.primaries.is_empty() && seen.secondaries.is_empty() {
        text += "\n\nno replica is open on this node";
    }
    text += &format!("\n\n{}", fold(&format!("bottleneck: {}", seen.bottleneck.words), Some(columns)));
    text
}

fn more(rows: usize, lines: usize) -> String {
    if rows > lines { format!("\n… and {} more", rows - lines) } else { String::new() }
}

/// A name and its numbers. A name that is too long has a line of its own.
fn line<const N: usize>(name: &str, width: usize, widths: &[usize; N], cells: [&str; N]) -> String {
    let numbers: String = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
    let line = match name.chars().count() {
        long if long > width => format!("{name}\n{:width$}{numbers}", ""),
        _ => format!("{name:width$}{numbers}"),
    };
    line.trim_end().to_owned()
}

fn primary(row: &PrimaryRow) -> [String; 11] {
    let took = |us: Option<u64>| us.map_or_else(|| "-".to_owned(), time);
    let behind = format!("{}{}", if row.behind_inexact { ">" } else { "" }, bytes(row.behind_bytes));
    [
        number(row.reads_per_s),
        mib(row.read_bytes_per_s),
        number(row.writes_per_s),
        mib(row.write_bytes_per_s),
        took(row.read_us),
        took(row.write_us),
        took(row.journal_us),
        took(row.peer_us),
        if row.suspended { "WAITS".to_owned() } else { took(row.commit_us) },
        behind,
        row.journal_percent.to_string(),
    ]
}

fn secondary(row: &SecondaryRow) -> [String; 5] {
    [
        number(row.journal_writes_per_s),
        mib(row.journal_bytes_per_s),
        row.journal_us.map_or_else(|| "-".to_owned(), time),
        mib(row.volume_bytes_per_s),
        row.journal_percent.to_string(),
    ]
}

/// A number in at most five columns.
fn number(value: f64) -> String {
    match value {
        v if v < 0.05 => "0".to_owned(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 99_999.5 => format!("{v:.0}"),
        v if v < 9_999_500.0 => format!("{:.0}k", v / 1e3),
        v => format!("{:.0}M", v / 1e6),
    }
}

fn mib(bytes: f64) -> String {
    match bytes / f64::from(1 << 20) {
        v if v < 0.005 => "0".to_owned(),
        v if v < 0.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Microseconds in at most five columns.
pub fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us}µs"),
        1_000..9_950 => format!("{:.1}ms", us as f64 / 1e3),
        9_950..999_500 => format!("{:.0}ms", us as f64 / 1e3),
        999_500..9_950_000 => format!("{:.1}s", us as f64 / 1e6),
        _ => format!("{:.0}s", us as f64 / 1e6),
    }
}

/// Bytes in at most five columns.
fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit > 0 && value < 9.95 {
        format!("{value:.1}{}", UNITS[unit])
    } else {
        format!("{value:.0}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{between, page};
    use super::super::seen;
    use super::*;

    #[test]
    fn numbers_take_no_more_columns_than_they_have() {
        for value in [0.0, 0.06, 9.94, 9.96, 123.4, 99_999.4, 99_999.6, 9_999_499.0, 9_999_501.0, 5e8] {
            assert!(number(value).chars().count() <= 5, "{value}: {}", number(value));
        }
        for us in [0, 999, 1_000, 9_949, 9_951, 999_499, 999_501, 9_949_999, 59_000_000] {
            assert!(time(us).chars().count() <= 5, "{us}: {}", time(us));
        }
        for count in [0, 999, 1000, 1023, 10_239, 1 << 20, 999 << 20, 900 << 40] {
            assert!(bytes(count).chars().count() <= 5, "{count}: {}", bytes(count));
        }
        assert_eq!(
            (number(12_345.0), mib(13_000_000.0), time(1_234)),
            ("12345".into(), "12.4".into(), "1.2ms".into())
        );
        assert_eq!((bytes(8192), bytes(0), bytes(64 << 20)), ("8.0K".into(), "0".into(), "64M".into()));
    }

    #[test]
    fn the_tables_fit_80_columns_with_long_names() {
        let name = "a".repeat(32);
        let renamed = |text: String| text.replace("\"db\"", &format!("\"{name}\"")).replace("n2", &name);
        let pages = [(100.0, 1000), (102.0, 300_000_000)].map(|(at, writes)| renamed(page(at, writes, 1.0)));
        for columns in [None, Some(80), Some(120)] {
            let text = words(&seen(between(&pages[0], &pages[1]), 0), columns, 10);
            let width = columns.unwrap_or(80);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.contains(&name) && text.contains("bottleneck: the replica on"), "{text}");
        }
    }

    #[test]
    fn a_table_has_its_numbers_in_columns() {
        let text = words(&seen(between(&page(100.0, 1000, 1.0), &page(102.0, 3000, 1.0)), 0), Some(80), 10);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "n1 of cluster shop, 1970-01-01 00:00:00.000Z, over 2.0 s");
        assert_eq!(
            &lines[2..5],
            &[
                "                  READS       WRITES                        MEAN TIME       JRNL",
                "RESOURCE       /s MiB/s     /s MiB/s  read write journal  peer commit behind   %",
                "db              0     0   1000   3.9     - 2.0ms   500µs 1.0ms  1.5ms   8.0K  12",
            ][..]
        );
        assert!(lines[8].starts_with("web "), "{text}");
    }
}
