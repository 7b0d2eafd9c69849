//! The counters page, `bench/simulator.md`: rows of its tables, and where they go.

use crate::campaign::{Hunt, Tally};
use crate::coverage::Covered;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Beginning of the head line of the table of soaks.
pub const SOAKS: &str = "| date | commit |";
/// Beginning of the head line of the table of planted bugs.
pub const HUNTS: &str = "| rule | planted bug |";
const HUNTS_HEAD: &str =
    "| rule | planted bug | what is left out | caught in | first seed | by |\n|---|---|---|---|---|---|\n";

/// Faults of the catalogue that plans of campaigns inject, each counted under its number. The page
/// names those that a soak never injected.
const SIMULATED: &[u32] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 14, 16, 21, 24, 25, 30, 31, 32, 33, 34, 36, 37, 38, 42, 43, 46, 47, 48,
    50, 51, 54, 57, 59, 60, 62, 63, 65,
];

/// Figures of a row in the table of soaks, besides the tally.
pub struct Soak<'a> {
    pub date: &'a str,
    pub commit: &'a str,
    pub from: u64,
    /// Time that processors spent on it.
    pub core_seconds: f64,
    /// Marks of the cores that were reached, and the others.
    pub marks: &'a Covered,
    /// Planted bugs that were caught, and all of them that were hunted; `None`: none were hunted.
    pub bugs: Option<(usize, usize)>,
}

/// One row of the table of soaks, with its line end.
#[must_use]
pub fn soak_row(soak: &Soak<'_>, tally: &Tally) -> String {
    let speed = tally.simulated_us as f64 / 1e6 / soak.core_seconds.max(0.001);
    let bugs = soak.bugs.map_or("not run".to_owned(), |(caught, all)| format!("{caught} of {all}"));
    let mut open = match tally.found.len() {
        0 => "0".to_owned(),
        n => {
            let seeds: Vec<_> =
                tally.found.iter().take(10).map(|f| format!("{} in {}", f.violation.id, f.seed)).collect();
            format!("**{n}**: {}", seeds.join(", "))
        }
    };
    if !tally.differ.is_empty() {
        let _ = write!(open, "; **{} not repeatable**", tally.differ.len());
    }
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {bugs} | {open} |\n",
        soak.date,
        soak.commit,
        soak.from,
        thousands(tally.seeds),
        days(tally.simulated_us),
        thousands(speed as u64),
        thousands(tally.acknowledged),
        by_fault(&tally.counters),
        marks(soak.marks),
    )
}

/// Number of marks that were reached, of all marks; why others need not be; and the marks that are
/// neither.
fn marks(covered: &Covered) -> String {
    let mut text = format!("{} of {}", covered.reached.len(), covered.marks());
    for (marks, why) in [(&covered.told, "by stories"), (&covered.never, "cannot be")] {
        if !marks.is_empty() {
            let _ = write!(text, ", {} {why}", marks.len());
        }
    }
    let missed: Vec<_> = covered.missed.iter().map(String::as_str).collect();
    for (marks, what) in [(missed, "not reached"), (covered.not_as_explained(), "not as explained")] {
        if !marks.is_empty() {
            let _ = write!(text, "; **{} {what}**: {}", marks.len(), marks.join("; "));
        }
    }
    text
}

/// The table of planted bugs, whole.
#[must_use]
pub fn hunt_table(hunts: &[Hunt]) -> String {
    let mut table = HUNTS_HEAD.to_owned();
    for hunt in hunts {
        let first = hunt.caught.first().map_or("–".to_owned(), |(seed, _)| seed.to_string());
        let caught = match hunt.story {
            Some(_) => "a story".to_owned(),
            None if hunt.caught.is_empty() => format!("**0 of {}**", hunt.seeds),
            None => format!("{} of {}", hunt.caught.len(), hunt.seeds),
        };
        let by = hunt.story.map_or_else(|| hunt.by().join(", "), |story| format!("story `{story}`"));
        let unclean = if hunt.unclean > 0 { format!(" ({} unclean)", hunt.unclean) } else { String::new() };
        let _ = writeln!(
            table,
            "| {} | {} | {} | {caught}{unclean} | {first} | {by} |",
            hunt.info.rule,
            hunt.info.name,
            hunt.info.what.trim(),
        );
    }
    table
}

/// Returns the text of the file that [`seeds`] reads: for each bug its name and the seeds that
/// caught it. Bugs that only a story catches are left out.
#[must_use]
pub fn seed_file(hunts: &[Hunt]) -> String {
    let mut text = String::new();
    for hunt in hunts.iter().filter(|hunt| hunt.story.is_none()) {
        let seeds: Vec<_> = hunt.caught.iter().map(|(seed, _)| format!(" {seed}")).collect();
        let _ = writeln!(text, "{}{}", hunt.info.name, seeds.concat());
    }
    text
}

/// The seeds that caught each bug, by its name, from a file of `mainstay-sim bugs --record-seeds`.
#[must_use]
pub fn seeds(text: &str) -> BTreeMap<&str, Vec<u64>> {
    text.lines()
        .map(|line| {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            (name, words.filter_map(|seed| seed.parse().ok()).collect())
        })
        .collect()
}

/// `page` with `row` after the last row of the table that begins with `head`.
///
/// # Errors
/// There is no such table.
pub fn append_row(page: &str, head: &str, row: &str) -> Result<String, String> {
    let (_, end) = table(page, head)?;
    let (before, after) = page.split_at(end);
    let line_end = if before.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{before}{line_end}{row}{after}"))
}

/// `page` with `new` in place of the table that begins with `head`.
///
/// # Errors
/// There is no such table.
pub fn replace_table(page: &str, head: &str, new: &str) -> Result<String, String> {
    let (start, end) = table(page, head)?;
    Ok(format!("{}{new}{}", &page[..start], &page[end..]))
}

/// The seed after the last one in the table of soaks: the next soak goes on from there.
#[must_use]
pub fn next_seed(page: &str) -> u64 {
    let Ok((start, end)) = table(page, SOAKS) else { return 0 };
    let rows = page[start..end].lines().filter_map(|row| {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let number = |cell: &&str| cell.replace(',', "").parse::<u64>().ok();
        Some(number(cells.get(3)?)? + number(cells.get(4)?)?)
    });
    rows.max().unwrap_or(0)
}

/// Where the table is in the page, in bytes.
fn table(page: &str, head: &str) -> Result<(usize, usize), String> {
    let mut at = 0;
    let mut start = None;
    for line in page.split_inclusive('\n') {
        match start {
            None if line.starts_with(head) => start = Some(at),
            Some(start) if !line.starts_with('|') => return Ok((start, at)),
            _ => {}
        }
        at += line.len();
    }
    start.map(|start| (start, at)).ok_or_else(|| format!("there is no table that begins with `{head}`"))
}

/// Sums of the counters whose names begin with the id of a fault, and of replaced disks. An example
/// is `F1 20, F25 12k, R9 3`. Then the faults that plans may have and that did not occur.
fn by_fault(counters: &BTreeMap<&'static str, u64>) -> String {
    let sums = sums(counters);
    let texts: Vec<_> =
        sums.iter().map(|((kind, id), count)| format!("{kind}{id} {}", short(*count))).collect();
    let absent = SIMULATED.iter().filter(|id| !sums.contains_key(&('F', **id)));
    let absent: Vec<_> = absent.map(|id| format!("F{id}")).collect();
    if absent.is_empty() {
        return texts.join(", ");
    }
    let none = format!("**none of {}**", absent.join(", "));
    if texts.is_empty() { none } else { format!("{}; {none}", texts.join(", ")) }
}

fn sums(counters: &BTreeMap<&'static str, u64>) -> BTreeMap<(char, u32), u64> {
    let mut sums: BTreeMap<(char, u32), u64> = BTreeMap::new();
    for (name, count) in counters {
        let id = name.split([' ', ',', ':']).next().unwrap_or_default();
        let mut chars = id.chars();
        if let (Some(kind), Ok(number)) = (chars.next(), chars.as_str().parse())
            && (kind == 'F' || id == "R9")
        {
            *sums.entry((kind, number)).or_default() += count;
        }
    }
    sums
}

/// All faults that were counted.
#[must_use]
pub fn faults(counters: &BTreeMap<&'static str, u64>) -> u64 {
    sums(counters).values().sum()
}

fn short(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..10_000_000 => format!("{}k", count / 1000),
        _ => format!("{}M", count / 1_000_000),
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Simulated time for people.
#[must_use]
pub fn days(simulated_us: u64) -> String {
    let hours = simulated_us as f64 / 3.6e9;
    match hours {
        h if h < 1.0 => format!("{:.0} s", h * 3600.0),
        h if h < 48.0 => format!("{h:.1} h"),
        h if h < 24.0 * 365.0 => format!("{:.1} days", h / 24.0),
        h => format!("{:.2} years", h / 24.0 / 365.25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::{Found, Mode};
    use crate::oracle::Violation;
    use mainstay_types::simulation::BUGS;

    const PAGE: &str = "# Page\n\n| date | commit | first seed | seeds |\n|---|---|---|---|\n\nText.\n\n| rule | planted bug | old |\n|---|---|---|\n| R9 | x | y |\n";

    /// All faults of [`SIMULATED`] but those named.
    fn all_but(ids: &[u32]) -> String {
        let others: Vec<_> =
            SIMULATED.iter().filter(|id| !ids.contains(id)).map(|id| format!("F{id}")).collect();
        format!("**none of {}**", others.join(", "))
    }

    #[test]
    fn rows_go_to_the_end_of_their_table() {
        let covered = Covered {
            reached: vec![("x: a".into(), 1); 3],
            missed: vec!["x: b".into()],
            ..Covered::default()
        };
        let tally = Tally {
            seeds: 12_000,
            simulated_us: 720_000_000_000,
            acknowledged: 7,
            counters: BTreeMap::from([
                ("F25 power cut", 15_000),
                ("F25, all", 3),
                ("F2x", 1),
                ("reads", 9),
                ("F7 error", 2),
                ("R9 disk replaced", 5),
                ("R19 silenced", 8),
            ]),
            ..Tally::default()
        };
        let mut soak = Soak {
            date: "2026-01-02",
            commit: "abc",
            from: 500,
            core_seconds: 600.0,
            marks: &covered,
            bugs: Some((1, 2)),
        };
        let row = soak_row(&soak, &tally);
        assert_eq!(
            row,
            format!(
                "| 2026-01-02 | abc | 500 | 12,000 | 8.3 days | 1,200 | 7 | F7 2, F25 15k, R9 5; {} | 3 of 4; **1 not reached**: x: b | 1 of 2 | 0 |\n",
                all_but(&[7, 25])
            )
        );
        assert_eq!(next_seed(PAGE), 0);
        let page = append_row(PAGE, SOAKS, &row).expect("there is a table");
        assert_eq!(next_seed(&page), 12_500);
        soak.from = 12_500;
        let found = Found {
            seed: 13_000,
            mode: Mode::Survivable,
            violation: Violation { id: "S8", text: String::new() },
        };
        let bad = Tally { found: vec![found], differ: vec![1], ..tally };
        let page = append_row(&page, SOAKS, &soak_row(&soak, &bad)).expect("there is a table");
        let lines: Vec<_> = page.lines().collect();
        assert!(lines[4].contains("| 500 |") && lines[5].contains("| 12500 |"), "{page}");
        assert!(lines[5].ends_with("| **1**: S8 in 13000; **1 not repeatable** |"), "{}", lines[5]);
        assert_eq!(&lines[6..8], ["", "Text."]);
        assert_eq!(next_seed(&page), 24_500);
        assert!(append_row("no table", SOAKS, "").is_err());
    }

    #[test]
    fn a_table_is_replaced_whole() {
        let caught = vec![(3, "S1"), (5, "S8"), (6, "S8")];
        let hunts = [
            Hunt { info: &BUGS[0], seeds: 9, caught, unclean: 0, story: None },
            Hunt { info: &BUGS[1], seeds: 100, caught: vec![], unclean: 2, story: None },
            Hunt::told(&BUGS[2], "a_story"),
        ];
        assert_eq!(hunts.each_ref().map(Hunt::is_missed), [false, true, false]);
        let file = seed_file(&hunts);
        assert_eq!(seeds(&file), BTreeMap::from([(BUGS[0].name, vec![3, 5, 6]), (BUGS[1].name, vec![])]));
        let page = replace_table(PAGE, HUNTS, &hunt_table(&hunts)).expect("there is a table");
        assert!(!page.contains("R9") && page.contains("Text."), "{page}");
        assert!(
            page.contains("| 3 of 9 | 3 | S8, S1 |") && page.contains("| **0 of 100** (2 unclean) | – |  |"),
            "{page}"
        );
        assert!(page.contains("| a story | – | story `a_story` |"), "{page}");
    }

    #[test]
    fn faults_that_did_not_come_are_named() {
        let names: Vec<&'static str> =
            SIMULATED.iter().map(|id| &*Box::leak(format!("F{id} x").into_boxed_str())).collect();
        let mut counters: BTreeMap<_, _> = names.iter().map(|name| (*name, 1)).collect();
        assert!(by_fault(&counters).ends_with(", F65 1"), "{}", by_fault(&counters));
        counters.remove("F1 x");
        counters.remove("F43 x");
        assert!(by_fault(&counters).ends_with(", F65 1; **none of F1, F43**"), "{}", by_fault(&counters));
        assert_eq!(by_fault(&BTreeMap::new()), all_but(&[]));
        assert_eq!(faults(&BTreeMap::from([("F1 x", 2), ("F1 y", 3), ("R9 z", 4), ("reads", 9)])), 9);
    }

    /// Every fault that the table of `simulator.md` lists as injected is counted, either under its
    /// own number or under that of the fault that it looks like.
    #[test]
    fn every_fault_that_is_simulated_is_counted() {
        const COUNTED_AS: &[(u32, u32)] =
            &[(13, 11), (17, 1), (23, 21), (26, 25), (28, 24), (35, 33), (44, 24), (45, 25)];
        let page = include_str!("../../docs/internals/simulator.md");
        let (_, table) = page.split_once("| | fault | simulated |").expect("the table of faults");
        let mut counted = Vec::new();
        for row in table.lines().skip(2).take_while(|row| row.starts_with('|')) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            // Faults that are not injected at all, or not in a campaign, or that are not done to
            // the cluster.
            let left_out = ["no", "`--beyond`", "as F4", "older image", "a panic"];
            if left_out.iter().any(|words| cells[3].starts_with(words)) {
                continue;
            }
            for id in cells[1].split(", ") {
                let id: u32 = id.trim_start_matches('F').parse().expect("a number");
                let own = COUNTED_AS.iter().find(|(of, _)| *of == id).map_or(id, |(_, other)| *other);
                assert!(SIMULATED.contains(&own), "F{id} is not counted: {row}");
                counted.push(own);
            }
        }
        assert!(SIMULATED.iter().all(|id| counted.contains(id)), "{counted:?}");
    }

    #[test]
    fn marks_are_told_apart() {
        let names = |marks: &[&str]| marks.iter().map(|mark| (*mark).to_owned()).collect::<Vec<_>>();
        let mut covered = Covered {
            reached: vec![("x: a".into(), 5)],
            told: names(&["x: t", "x: u"]),
            never: names(&["x: n"]),
            missed: Vec::new(),
        };
        assert_eq!(marks(&covered), "1 of 4, 2 by stories, 1 cannot be");
        covered.missed = names(&["x: b", "x: c, or d"]);
        covered.reached.push(("control: a shrink of the primary".into(), 1));
        let text = marks(&covered);
        assert!(text.starts_with("2 of 7, "), "{text}");
        assert!(
            text.ends_with("; **2 not reached**: x: b; x: c, or d; **1 not as explained**: control: a shrink of the primary"),
            "{text}"
        );
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(days(90_000_000), "90 s");
        assert_eq!(days(36_000_000_000), "10.0 h");
        assert_eq!(days(100 * 86_400_000_000), "100.0 days");
        assert_eq!(days(730 * 86_400_000_000), "2.00 years");
    }
}
