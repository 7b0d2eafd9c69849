//! What goes to the terminal: results to standard output, progress and failures to standard error.

use crate::failure::{Context, Failure, Outcome};
use serde::Serialize;
use std::io::{IsTerminal, Write};

/// Prints a result. With `--json` it is the API's own type, so scripts see exactly what the API says.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub json: bool,
}

impl Output {
    pub fn result<T: Serialize>(self, value: &T, words: impl FnOnce(&T) -> String) -> Outcome<()> {
        let text = if self.json {
            serde_json::to_string_pretty(value).or_fail("output", || "write the answer as JSON".into())?
        } else {
            words(value)
        };
        line(&text);
        Ok(())
    }

    /// Says something on the way, to standard error. With `--json` the result has it.
    pub fn note(self, text: &str) {
        if !self.json && !text.is_empty() {
            eprintln!("{text}");
        }
    }

    pub fn failure(self, failure: &Failure) {
        let text = if self.json {
            serde_json::to_string_pretty(&failure.body).unwrap_or_else(|_| failure.to_string())
        } else {
            failure.to_string()
        };
        eprintln!("{text}");
    }
}

/// Writes a line to standard output. A reader that went away (`mainstay events | head`) is no failure.
pub fn line(text: &str) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// A line that is rewritten in place while something takes long. Silent unless standard error is a
/// terminal.
pub struct Progress {
    shown: usize,
    terminal: bool,
}

impl Progress {
    pub fn new() -> Self {
        Self { shown: 0, terminal: std::io::stderr().is_terminal() }
    }

    pub fn show(&mut self, text: &str) {
        if self.terminal {
            let width = text.chars().count();
            eprint!("\r{text}{}", " ".repeat(self.shown.saturating_sub(width)));
            self.shown = width;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown > 0 {
            eprint!("\r{}\r", " ".repeat(self.shown));
        }
    }
}

/// A table with a head line; columns are as wide as their widest cell.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let render = |cells: &[&str]| {
        let padded: Vec<String> =
            cells.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let mut lines = vec![render(head)];
    lines.extend(rows.iter().map(|row| render(&row.iter().map(String::as_str).collect::<Vec<_>>())));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_line_up() {
        let rows =
            vec![vec!["n1".to_owned(), "alive".to_owned()], vec!["node-2".to_owned(), "dead".to_owned()]];
        assert_eq!(super::table(&["NAME", "STATUS"], &rows), "NAME    STATUS\nn1      alive\nnode-2  dead");
    }
}
