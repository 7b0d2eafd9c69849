//! Output to the terminal: results to standard output, progress and failures to standard error.

use crate::failure::{Code, Context, Failure, Outcome};
use crate::list::{Form, List};
use crate::pasted::for_this_user;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A command that waits longer says so where standard error is no terminal.
const SAID_AFTER: Duration = Duration::from_millis(1500);
/// Then it says how far things are, if that has changed since.
const SAID_EVERY: Duration = Duration::from_secs(30);

/// Whether only results and failures are printed, because a program reads them.
static QUIET: AtomicBool = AtomicBool::new(false);
/// Lines of progress that are shown now.
static SHOWN: AtomicUsize = AtomicUsize::new(0);

/// From now on only results and failures are printed.
pub fn quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// While this lives, something is shown that a line about a wait would spoil.
pub struct Shown(());

impl Shown {
    #[expect(clippy::new_without_default, reason = "something that is shown from now on is no default value")]
    pub fn new() -> Self {
        SHOWN.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        SHOWN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a line of progress is shown.
pub fn is_shown() -> bool {
    SHOWN.load(Ordering::Relaxed) > 0
}

/// Says what a command waits for, unless a line of progress does.
pub fn waits_for(what: &str) {
    if !QUIET.load(Ordering::Relaxed) && SHOWN.load(Ordering::Relaxed) == 0 {
        say(&format!("waiting {what} …"));
    }
}

/// Least width of output, in columns.
const COLUMNS_MIN: usize = 40;
/// Columns by which further lines of a sentence are indented more than its first line.
const HANGING: usize = 4;

/// Prints a result. With `--json` it is the API's own type, so scripts see exactly what the API
/// says.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub json: bool,
    /// Form of lists.
    pub form: Form,
}

impl Output {
    /// With `json` a program reads the output, so no progress is printed to anything but terminals.
    pub fn new(json: bool) -> Self {
        if json {
            quiet();
        }
        Self { json, form: Form::default() }
    }

    /// The same output with lists in this form.
    #[must_use]
    pub fn in_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// Says why a command failed, if it did, and returns its exit code.
    pub fn end(self, outcome: Outcome<u8>) -> ExitCode {
        ExitCode::from(outcome.unwrap_or_else(|failure| {
            self.failure(&failure);
            failure.exit
        }))
    }

    pub fn result<T: Serialize>(self, value: &T, words: impl FnOnce(&T) -> String) -> Outcome<()> {
        let text = if self.json {
            serde_json::to_string_pretty(value).or_fail(Code::Output, || "write the answer as JSON".into())?
        } else {
            for_people(&words(value), columns())
        };
        line(&text);
        Ok(())
    }

    /// Prints the newest entries of a list, of which the user wants `lines`. For 0 of them it
    /// prints nothing, because words about an empty list would not be true.
    ///
    /// # Errors
    /// When the answer cannot be written as JSON.
    pub fn newest<T: Serialize>(
        self,
        lines: usize,
        value: &T,
        words: impl FnOnce(&T) -> String,
    ) -> Outcome<()> {
        if lines == 0 && !self.json { Ok(()) } else { self.result(value, words) }
    }

    /// Prints a list in the form that the user wants.
    ///
    /// # Errors
    /// When the answer cannot be written as JSON.
    pub fn list<T: Serialize>(self, value: &T, list: impl FnOnce(&T) -> List) -> Outcome<()> {
        if self.json || !self.form.is_for_programs() {
            return self.result(value, |value| list(value).text(self.form, columns()));
        }
        let list = list(value);
        self.note(&list.notes());
        let text = list.text(self.form, None);
        if !text.is_empty() {
            line(&text);
        }
        Ok(())
    }

    /// Says something on the way, to standard error. With `--json` the result has it.
    pub fn note(self, text: &str) {
        if !self.json && !text.is_empty() {
            say(text);
        }
    }

    fn failure(self, failure: &Failure) {
        match self.json.then(|| serde_json::to_string_pretty(&failure.problem)) {
            Some(Ok(json)) => eprintln!("{json}"),
            _ => say(&failure.to_string()),
        }
    }
}

/// Prints sentences to standard error, folded to the width of its terminal.
pub fn say(text: &str) {
    eprintln!("{}", for_people(text, columns_of(&std::io::stderr())));
}

/// Columns that a line on standard output may have; `None` if it goes to no terminal.
pub fn columns() -> Option<usize> {
    columns_of(&std::io::stdout())
}

/// Rows of the terminal on standard output; `None` if it goes to no terminal.
pub fn rows() -> Option<usize> {
    let out = std::io::stdout();
    let rows = usize::from(tcgetwinsize(&out).ok().filter(|_| out.is_terminal())?.ws_row);
    (rows > 0).then_some(rows)
}

fn columns_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let named = std::env::var("COLUMNS").ok();
    let is_terminal = stream.is_terminal();
    columns_from(is_terminal, named.as_deref(), || Some(tcgetwinsize(stream).ok()?.ws_col.into()))
}

/// Output that goes to no terminal is for programs, so it is not folded, whatever COLUMNS says.
fn columns_from(
    is_terminal: bool,
    named: Option<&str>,
    of_terminal: impl FnOnce() -> Option<usize>,
) -> Option<usize> {
    if !is_terminal {
        return None;
    }
    let columns = named.and_then(|text| text.parse().ok()).or_else(of_terminal);
    columns.filter(|columns| *columns > 0).map(|columns| columns.max(COLUMNS_MIN))
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// A text whose commands can be pasted, folded to this number of columns.
pub fn for_people(text: &str, columns: Option<usize>) -> String {
    fold(&for_this_user(text), columns)
}

/// Breaks lines that are longer than `columns` between words. Text between backticks stays whole,
/// so that it can be pasted.
pub fn fold(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns else { return text.to_owned() };
    let lines: Vec<String> = text.lines().map(|line| fold_line(line, columns)).collect();
    lines.join("\n")
}

fn fold_line(line: &str, columns: usize) -> String {
    if width(line) <= columns {
        return line.to_owned();
    }
    let indent = line.chars().take_while(|c| *c == ' ').count();
    let hanging = " ".repeat((indent + HANGING).min(columns / 2));
    let mut folded = " ".repeat(indent);
    let (mut used, mut begun) = (indent, false);
    for word in words_of(&line[indent..]) {
        let gap = usize::from(begun);
        if begun && used + gap + width(word) > columns {
            folded = format!("{folded}\n{hanging}{word}");
            used = width(&hanging) + width(word);
        } else {
            folded = format!("{folded}{}{word}", " ".repeat(gap));
            used += gap + width(word);
        }
        begun = true;
    }
    folded
}

/// Words, and commands between backticks as one word each.
fn words_of(text: &str) -> Vec<&str> {
    let (mut words, mut start, mut quoted) = (Vec::new(), None, false);
    for (at, c) in text.char_indices() {
        quoted ^= c == '`';
        match (c == ' ' && !quoted, start) {
            (true, Some(from)) => {
                words.push(&text[from..at]);
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    words.extend(start.map(|from| &text[from..]));
    words
}

/// Writes a line to standard output. A reader that went away (`mainstay events | head`) is no
/// failure.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// A line that is rewritten in place during long work. If standard error is no terminal, it is a
/// line of its own, after a moment, and again when it has changed.
pub struct Progress {
    shown: usize,
    terminal: bool,
    began: Instant,
    /// The last line that was printed where there is no terminal, and when.
    said: Option<(String, Instant)>,
    _shown: Shown,
}

impl Progress {
    #[expect(clippy::new_without_default, reason = "a line that begins now is no default value")]
    pub fn new() -> Self {
        Self {
            shown: 0,
            terminal: std::io::stderr().is_terminal(),
            began: Instant::now(),
            said: None,
            _shown: Shown::new(),
        }
    }

    /// Whether a line that is `text` now is to be printed where there is no terminal.
    fn is_due(&self, text: &str, now: Instant) -> bool {
        match &self.said {
            None => now.saturating_duration_since(self.began) >= SAID_AFTER,
            Some((said, at)) => said != text && now.saturating_duration_since(*at) >= SAID_EVERY,
        }
    }

    pub fn show(&mut self, text: &str) {
        let now = Instant::now();
        if !self.terminal && !QUIET.load(Ordering::Relaxed) && self.is_due(text, now) {
            say(&format!("{text} …"));
            self.said = Some((text.to_owned(), now));
        }
        if self.terminal {
            // A line that wraps cannot be rewritten; the last column makes some terminals wrap.
            let columns = columns_of(&std::io::stderr()).unwrap_or(80) - 1;
            let text = cut(text, columns);
            let width = width(&text);
            eprint!("\r{text}{}", " ".repeat(self.shown.min(columns).saturating_sub(width)));
            self.shown = width;
        }
    }
}

/// The beginning of the first line, if there is no room for all of it.
fn cut(text: &str, columns: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if width(line) <= columns {
        return line.to_owned();
    }
    line.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown > 0 {
            eprint!("\r{}\r", " ".repeat(self.shown));
        }
    }
}

/// A table with a head line. Columns are as wide as their widest cell, as far as the terminal is.
/// Cells that are too wide are broken between words. If that is not enough, each row becomes a
/// list.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    table_within(head, rows, columns())
}

/// A table for a terminal with this number of columns, or for none.
pub fn table_within(head: &[&str], rows: &[Vec<String>], columns: Option<usize>) -> String {
    const GAP: usize = 2;
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| cells(column).map(|cell| width(cell)).chain([width(head[column])]).max();
    let longest_word = |column: usize| {
        let words = cells(column).flat_map(|cell| words_of(cell)).chain([head[column]]);
        words.map(width).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..head.len()).map(|column| widest(column).unwrap_or(0)).collect();
    let least: Vec<usize> = (0..head.len()).map(longest_word).collect();
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * head.len().saturating_sub(1);
    if let Some(columns) = columns {
        if total(&least) > columns {
            return lists(head, rows, columns);
        }
        while total(&widths) > columns {
            let shrinkable = (0..head.len()).filter(|&column| widths[column] > least[column]);
            let Some(column) = shrinkable.max_by_key(|&column| widths[column]) else { break };
            widths[column] -= 1;
        }
    }
    let render = |cells: &[&str]| {
        let broken: Vec<Vec<String>> =
            cells.iter().zip(&widths).map(|(cell, &width)| lines_of(cell, width)).collect();
        let height = broken.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let line = |at: usize| {
            let cell = |(lines, &width): (&Vec<String>, &usize)| {
                format!("{:width$}", lines.get(at).map_or("", String::as_str))
            };
            let padded: Vec<String> = broken.iter().zip(&widths).map(cell).collect();
            padded.join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    };
    let mut lines = vec![render(head)];
    lines.extend(rows.iter().map(|row| render(&row.iter().map(String::as_str).collect::<Vec<_>>())));
    lines.join("\n")
}

/// The lines of a cell that has this width.
fn lines_of(cell: &str, columns: usize) -> Vec<String> {
    if width(cell) <= columns {
        return vec![cell.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in words_of(cell) {
        match lines.last_mut() {
            Some(last) if width(last) + 1 + width(word) <= columns => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Each row as its first cell, and the others below it by name.
fn lists(head: &[&str], rows: &[Vec<String>], columns: usize) -> String {
    let row = |row: &Vec<String>| {
        let cells = head.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        let lines = cells.enumerate().map(|(at, (name, cell))| {
            let indent = if at == 0 { "" } else { "  " };
            fold_line(&format!("{indent}{}: {cell}", name.to_lowercase()), columns)
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    rows.iter().map(row).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::{COLUMNS_MIN, Duration, Progress, columns_from, cut, fold, table_within, width};

    fn rows(rows: &[&[&str]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|&cell| cell.to_owned()).collect()).collect()
    }

    #[test]
    fn without_a_terminal_a_wait_is_told_after_a_moment_and_when_it_has_changed() {
        let mut progress = Progress::new();
        let after = |progress: &Progress, ms| progress.began + Duration::from_millis(ms);
        assert!(!progress.is_due("copying", after(&progress, 1000)), "what is quick says nothing");
        assert!(progress.is_due("copying", after(&progress, 1900)));
        progress.said = Some(("copying".into(), after(&progress, 1900)));
        assert!(!progress.is_due("copied 7 %", after(&progress, 9000)));
        assert!(progress.is_due("copied 50 %", after(&progress, 40_000)));
        assert!(!progress.is_due("copying", after(&progress, 400_000)), "nothing has changed");
    }

    #[test]
    fn only_output_to_a_terminal_is_folded() {
        assert_eq!(columns_from(false, Some("60"), || Some(80)), None, "a program reads it");
        assert_eq!(columns_from(true, Some("60"), || Some(80)), Some(60));
        assert_eq!(columns_from(true, None, || Some(80)), Some(80));
        assert_eq!(columns_from(true, Some("2"), || None), Some(COLUMNS_MIN));
    }

    #[test]
    fn columns_line_up() {
        let rows = rows(&[&["n1", "alive"], &["node-2", "dead"]]);
        let shown = table_within(&["NAME", "STATUS"], &rows, None);
        assert_eq!(shown, "NAME    STATUS\nn1      alive\nnode-2  dead");
    }

    #[test]
    fn a_table_fits_the_terminal_by_broken_cells_and_then_as_lists() {
        let rows = rows(&[&["n1", "alive, no connection", "10.213.0.1:7400"]]);
        let head = ["NODE", "STATUS", "AGENT"];
        let shown = table_within(&head, &rows, Some(36));
        assert_eq!(
            shown,
            "NODE  STATUS         AGENT\nn1    alive, no      10.213.0.1:7400\n      connection"
        );
        let shown = table_within(&head, &rows, Some(30));
        assert_eq!(shown, "node: n1\n  status: alive, no connection\n  agent: 10.213.0.1:7400");
    }

    #[test]
    fn long_lines_are_broken_between_words_and_commands_stay_whole() {
        let text = "  → the cause is this one; run `mainstay service move db --to n2` when it is over";
        let folded = fold(text, Some(44));
        assert!(folded.lines().all(|line| width(line) <= 44), "{folded}");
        assert!(folded.contains("\n      `mainstay service move db --to n2`"), "{folded}");
        assert_eq!(fold(text, None), text);
        assert_eq!(fold("a b", Some(40)), "a b");
    }

    #[test]
    fn progress_stays_on_its_line() {
        assert_eq!(cut("creating: resource db", 12), "creating: r…");
        assert_eq!(cut("two\nlines", 12), "two");
    }
}
