//! Answers that are shown again and again: drawn over the last one on a terminal, one after another
//! elsewhere.

use crate::output::{self, Shown};
use std::io::{IsTerminal, Write};

/// Moves to the first line of the terminal.
const HOME: &str = "\x1b[H";
/// Clears the rest of a line, and all lines below.
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_BELOW: &str = "\x1b[J";
const CLEAR_ALL: &str = "\x1b[2J";

/// A place for one answer, which the next one replaces.
pub struct Screen {
    is_terminal: bool,
    last: Option<String>,
    _shown: Option<Shown>,
}

impl Screen {
    #[expect(clippy::new_without_default, reason = "what goes to a terminal is no default value")]
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
        let is_terminal = std::io::stdout().is_terminal() && !dumb;
        Self { is_terminal, last: None, _shown: is_terminal.then(Shown::new) }
    }

    /// Shows a text, unless it is the one that is shown.
    pub fn draw(&mut self, text: &str) {
        if self.last.as_deref() == Some(text) {
            return;
        }
        if self.is_terminal {
            let first = if self.last.is_none() { CLEAR_ALL } else { "" };
            let mut out = std::io::stdout().lock();
            let drawn = drawn(text, output::rows());
            if write!(out, "{first}{drawn}").and_then(|()| out.flush()).is_err() {
                std::process::exit(0);
            }
        } else {
            output::line(text);
        }
        self.last = Some(text.to_owned());
    }

    /// Leaves an empty line before the next answer where each comes after the one before it.
    pub fn part(&self) {
        if !self.is_terminal {
            output::line("");
        }
    }
}

/// Draws a text over another one on a terminal with this number of rows. Lines for which there is
/// no room are counted in the last one.
fn drawn(text: &str, rows: Option<usize>) -> String {
    let lines: Vec<&str> = text.lines().collect();
    // The cursor stays in the row below the text.
    let room = rows.map_or(lines.len(), |rows| rows.saturating_sub(1).max(1));
    let mut out = HOME.to_owned();
    let shown = if lines.len() > room { room - 1 } else { lines.len() };
    for line in &lines[..shown] {
        out += &format!("{line}{CLEAR_LINE}\n");
    }
    if shown < lines.len() {
        out += &format!("… and {} lines more{CLEAR_LINE}\n", lines.len() - shown);
    }
    out + CLEAR_BELOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_drawn_over_the_last_one_and_fits_the_terminal() {
        let text = "a\nb\nc\nd";
        let plain = |rows| drawn(text, rows).replace(CLEAR_LINE, "");
        assert_eq!(plain(Some(24)), "\x1b[Ha\nb\nc\nd\n\x1b[J");
        assert_eq!(plain(Some(4)), "\x1b[Ha\nb\n… and 2 lines more\n\x1b[J");
        assert_eq!(plain(Some(1)), "\x1b[H… and 4 lines more\n\x1b[J");
        assert_eq!(plain(None), plain(Some(5)));
    }
}
