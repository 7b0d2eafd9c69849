//! A run for people: the plan, then the events in columns, one for each node, then the violation.

use crate::plan::Plan;
use crate::prose;
use crate::run::Outcome;
use crate::trace::{Line, Part};
use std::fmt::Write as _;

/// Columns are never narrower than this, whatever the width of the page.
const COLUMN_MIN: usize = 18;
/// Width of the first column: seconds and microseconds.
const TIME: usize = 10;
/// How many of the last lines are repeated at the end.
const LAST: usize = 25;

/// Selection of the lines to show, and width of the page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// Characters of a line of the page.
    pub width: usize,
    pub from_ms: u64,
    pub to_ms: u64,
    /// `None`: all parts.
    pub parts: Option<Vec<Part>>,
}

impl Default for View {
    fn default() -> Self {
        Self { width: 160, from_ms: 0, to_ms: u64::MAX, parts: None }
    }
}

impl View {
    fn shows(&self, line: &Line) -> bool {
        let ms = line.at_us / 1000;
        // Faults and verdicts are always shown: everything else is read against them.
        let wanted = self.parts.as_ref().is_none_or(|parts| parts.contains(&line.part));
        (self.from_ms..=self.to_ms).contains(&ms)
            && (wanted || matches!(line.part, Part::Fault | Part::Oracle))
    }
}

/// Each part with its tag, its name on the command line, and what it stands for.
pub const PARTS: &[(Part, &str, &str, &str)] = &[
    (Part::Machine, "MCH", "machine", "the machine: power, pauses, clocks"),
    (Part::Engine, "eng", "engine", "the engine: replicas, what they acknowledge and apply"),
    (Part::Agent, "agt", "agent", "the agent: leases, what it proposes and orders"),
    (Part::Disk, "dsk", "disk", "a replica's disk"),
    (Part::Network, "net", "network", "connections and datagrams"),
    (Part::Service, "svc", "service", "a service: mount, process, address"),
    (Part::Client, "cli", "client", "a client's request and its answer"),
    (Part::Control, "log", "control", "the control plane's log: what was decided"),
    (Part::Message, "msg", "message", "what one engine says to another, when it is sent (shown on request)"),
    (Part::Fault, "***", "fault", "what the plan does to the cluster"),
    (Part::Oracle, "!!!", "oracle", "what should not have happened"),
];

fn tag(part: Part) -> &'static str {
    PARTS.iter().find(|(other, ..)| *other == part).map_or("???", |(_, tag, ..)| tag)
}

/// The whole page.
#[must_use]
pub fn explain(plan: &Plan, outcome: &Outcome, view: &View) -> String {
    let mut page = prose::plan(plan);
    page.push('\n');
    page.push_str(&legend(plan.shape.nodes));
    page.push('\n');
    let shown: Vec<&Line> = outcome.lines.iter().filter(|line| view.shows(line)).collect();
    columns(&mut page, plan.shape.nodes as usize, view.width, &shown);
    if shown.len() < outcome.lines.len() {
        let _ = writeln!(page, "\n{} of {} lines are shown.", shown.len(), outcome.lines.len());
    }
    page.push('\n');
    page.push_str(&end(plan, outcome, view));
    page
}

fn legend(nodes: u32) -> String {
    let mut text = format!(
        "How to read it: time is true time in seconds; a node's own clock may differ. What concerns one node is in its column\n\
         (n1 to n{nodes}), what concerns several or none is under \"cluster\". The tag says which part it was:\n"
    );
    for (_, tag, _, what) in PARTS {
        let _ = writeln!(text, "  {tag}  {what}");
    }
    text
}

/// Returns the last section of the page: the violation with the lines before it, or a line that
/// says that nothing went wrong.
fn end(plan: &Plan, outcome: &Outcome, view: &View) -> String {
    let seconds = outcome.simulated_us as f64 / 1e6;
    let mut text = String::new();
    let Some(violation) = &outcome.violation else {
        let _ = writeln!(
            text,
            "Nothing went wrong in {seconds:.1} s and {} events; {} writes were acknowledged. Hash {:016x}.",
            outcome.events, outcome.acknowledged, outcome.hash
        );
        return text;
    };
    let _ = writeln!(text, "VIOLATION of {} after {seconds:.6} s: {}\n", violation.id, violation.text);
    let faults: Vec<&Line> = outcome.lines.iter().filter(|line| line.part == Part::Fault).collect();
    let last_faults = &faults[faults.len().saturating_sub(5)..];
    if !last_faults.is_empty() {
        text.push_str("The last things that were done to the cluster:\n");
        for line in last_faults {
            let node = line.node.map_or(String::new(), |node| format!("{node}: "));
            let _ = writeln!(text, "  {}  {node}{}", time(line.at_us), line.text);
        }
        text.push('\n');
    }
    if !outcome.lines.is_empty() {
        text.push_str("The last lines before it, of all parts but the network:\n");
        let lines: Vec<&Line> = outcome.lines.iter().filter(|line| line.part != Part::Network).collect();
        columns(&mut text, plan.shape.nodes as usize, view.width, &lines[lines.len().saturating_sub(LAST)..]);
    }
    text
}

/// `lines` as rows. Texts that are too long for their column go on in the next row.
fn columns(page: &mut String, nodes: usize, width: usize, lines: &[&Line]) {
    // A blank, a bar and a blank before each of the columns.
    let column = (width.saturating_sub(TIME) / (nodes + 1)).saturating_sub(3).max(COLUMN_MIN);
    let head = (1..=nodes).map(|node| format!("n{node}")).chain(["cluster".into()]);
    row(page, "time", &head.collect::<Vec<_>>(), column);
    let rule = vec!["-".repeat(column); nodes + 1];
    row(page, &"-".repeat(TIME), &rule, column);
    let mut before = None;
    for line in lines {
        let place = line.node.map_or(nodes, |node| (node.0 as usize).saturating_sub(1).min(nodes));
        for (number, text) in
            wrap(&format!("{} {}", tag(line.part), line.text), column).into_iter().enumerate()
        {
            let mut cells = vec![String::new(); nodes + 1];
            cells[place] = if number == 0 { text } else { format!("    {text}") };
            let same = number > 0 || before == Some(line.at_us);
            let shown = if same { String::new() } else { time(line.at_us) };
            row(page, &shown, &cells, column);
        }
        before = Some(line.at_us);
    }
}

fn row(page: &mut String, time: &str, cells: &[String], column: usize) {
    let _ = write!(page, "{time:>TIME$}");
    for cell in cells {
        let _ = write!(page, " | {cell:<column$}");
    }
    page.push('\n');
}

fn time(at_us: u64) -> String {
    format!("{:>3}.{:06}", at_us / 1_000_000, at_us % 1_000_000)
}

/// Pieces of at most `width` characters; the ones after the first are shorter by the depth at which
/// they are shown. Cut at blanks where there are any.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let room = if pieces.is_empty() { width } else { width - 4 };
            let used = piece.chars().count();
            let blank = usize::from(used > 0);
            if used + blank + word.len() <= room {
                piece.extend([' '].iter().take(blank));
                piece.extend(word);
                break;
            }
            // A word that is longer than a whole line is cut anywhere.
            if word.len() > width - 4 && used + blank < room {
                let rest = word.split_off(room - used - blank);
                piece.extend([' '].iter().take(blank));
                piece.extend(word);
                word = rest;
            }
            pieces.push(std::mem::take(&mut piece));
        }
    }
    if !piece.is_empty() || pieces.is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Violation;
    use crate::swarm;
    use mainstay_types::NodeId;

    fn line(at_us: u64, node: Option<u32>, part: Part, text: &str) -> Line {
        Line { at_us, node: node.map(NodeId), part, text: text.into() }
    }

    fn failed() -> (Plan, Outcome) {
        let plan =
            (0..).map(swarm::plan).find(|plan| plan.shape.nodes == 3).unwrap_or_else(|| unreachable!());
        let long =
            "promises epoch e12 and waits until everything before it is durable, then answers with its log";
        let lines = vec![
            line(1_000_000, Some(1), Part::Engine, "appends i7"),
            line(1_000_000, Some(3), Part::Engine, long),
            line(2_500_001, None, Part::Fault, "the power of n2 is cut"),
            line(2_500_002, Some(2), Part::Machine, "dark"),
            line(
                3_000_000,
                Some(2),
                Part::Network,
                "waaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaay",
            ),
            line(4_000_000, Some(9), Part::Oracle, "S1: block 3 of v0 lost"),
        ];
        let violation = Some(Violation { id: "S1", text: "block 3 of v0 lost".into() });
        let counters = std::collections::BTreeMap::new();
        (
            plan,
            Outcome {
                violation,
                hash: 1,
                events: 6,
                simulated_us: 4_000_000,
                counters,
                lines,
                acknowledged: 1,
            },
        )
    }

    #[test]
    fn columns_have_a_fixed_width() {
        let (plan, outcome) = failed();
        for width in [20, 100, 160] {
            let page = explain(&plan, &outcome, &View { width, ..View::default() });
            let rows: Vec<&str> = page.lines().filter(|row| row.matches(" | ").count() >= 4).collect();
            let bars = |row: &str| -> Vec<usize> {
                row.chars().enumerate().filter(|(_, c)| *c == '|').map(|(at, _)| at).collect()
            };
            assert!(rows.len() > 12, "{page}");
            for row in &rows {
                assert_eq!(row.chars().count(), rows[0].chars().count(), "{row}");
                assert_eq!(bars(row), bars(rows[0]), "{row}");
            }
            assert!(width < 100 || rows[0].chars().count() <= width);
        }
    }

    #[test]
    fn texts_are_in_their_column_and_whole() {
        let (plan, outcome) = failed();
        let page = explain(&plan, &outcome, &View::default());
        let cell = |row: &str, at: usize| row.split(" | ").nth(at).map(|cell| cell.trim().to_owned());
        let row = page.lines().find(|row| row.contains("eng appends i7")).expect("is there");
        assert_eq!(cell(row, 0).as_deref(), Some("1.000000"));
        assert_eq!(cell(row, 1).as_deref(), Some("eng appends i7"));
        let start = page.find("time |").or_else(|| page.find("time")).expect("is there");
        let third: Vec<_> = page[start..].lines().take(8).filter_map(|row| cell(row, 3)).collect();
        let third = third.join(" ");
        assert!(third.contains("everything before it is durable, then answers with its log"), "{third}");
        let row = page.lines().find(|row| row.contains("*** the power")).expect("is there");
        assert_eq!(cell(row, 4).as_deref(), Some("*** the power of n2 is cut"));
    }

    #[test]
    fn the_end_of_an_explanation_names_the_violation() {
        let (plan, mut outcome) = failed();
        let page = explain(&plan, &outcome, &View::default());
        let end = &page[page.find("VIOLATION").expect("is there")..];
        assert!(end.starts_with("VIOLATION of S1 after 4.000000 s: block 3 of v0 lost"), "{end}");
        assert!(
            end.contains("2.500001  the power of n2 is cut")
                && end.contains("MCH dark")
                && !end.contains("waaaa")
        );
        outcome.violation = None;
        let page = explain(&plan, &outcome, &View::default());
        assert!(page.contains("Nothing went wrong in 4.0 s") && !page.contains("VIOLATION"));
    }

    #[test]
    fn a_view_leaves_out_other_parts_and_times() {
        let (plan, mut outcome) = failed();
        outcome.violation = None;
        let view = View { parts: Some(vec![Part::Machine]), from_ms: 2000, ..View::default() };
        let page = explain(&plan, &outcome, &view);
        assert!(
            page.contains("MCH dark")
                && page.contains("*** the power of n2")
                && !page.contains("eng appends")
        );
        assert!(page.contains("3 of 6 lines are shown"), "{page}");
    }

    #[test]
    fn wrapping_loses_nothing() {
        for width in 10..40 {
            for text in [
                "",
                "a",
                "several words that go on and on, longer than any column",
                "0123456789012345678901234567890123456789012345678901234567890 end",
            ] {
                let pieces = wrap(text, width);
                assert!(
                    pieces
                        .iter()
                        .enumerate()
                        .all(|(n, p)| p.chars().count() <= if n == 0 { width } else { width - 4 }),
                    "{pieces:?}"
                );
                let squeezed = |text: &str| text.replace(' ', "");
                assert_eq!(squeezed(&pieces.join(" ")), squeezed(text));
            }
        }
    }
}
