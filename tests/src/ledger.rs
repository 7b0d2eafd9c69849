//! The ledger: numbered rows, each inserted by a transaction of its own, and a file outside the
//! cluster in which every acknowledged number is noted. Afterwards the table must have every noted
//! row.
//!
//! A number is used once. When its insert fails, the row may or may not exist. That is noted as
//! `unknown`, and the next attempt takes the next number. So a missing noted row is always a loss,
//! and a row that no client asked for is always a fault.

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

pub const TABLE: &str = "ledger.entries";

/// Content of the row of `number`. It follows from the number, so that a wrong row is noticed.
#[must_use]
pub fn content(number: u64) -> String {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = String::with_capacity(64);
    for _ in 0..4 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        write!(out, "{state:016x}").expect("writing to a string cannot fail");
    }
    out
}

/// One line of the notes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// A connection was made.
    Connected { at_us: u64 },
    /// The database acknowledged the row's commit.
    Acked { number: u64, sent_us: u64, done_us: u64 },
    /// The insert failed: the row may or may not exist.
    Unknown { number: u64, sent_us: u64, done_us: u64, why: String },
}

impl Note {
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Connected { at_us } => format!("connected {at_us}\n"),
            Self::Acked { number, sent_us, done_us } => format!("acked {number} {sent_us} {done_us}\n"),
            Self::Unknown { number, sent_us, done_us, why } => {
                format!("unknown {number} {sent_us} {done_us} {}\n", why.replace('\n', " "))
            }
        }
    }

    fn parse(line: &str) -> Result<Self> {
        let mut words = line.splitn(5, ' ');
        let kind = words.next().unwrap_or_default();
        let mut number = || -> Result<u64> { Ok(words.next().context("a number")?.parse::<u64>()?) };
        Ok(match kind {
            "connected" => Self::Connected { at_us: number()? },
            "acked" => Self::Acked { number: number()?, sent_us: number()?, done_us: number()? },
            "unknown" => {
                let (number, sent_us, done_us) = (number()?, number()?, number()?);
                Self::Unknown { number, sent_us, done_us, why: words.next().unwrap_or_default().into() }
            }
            other => bail!("`{other}` is no kind of note"),
        })
    }
}

/// Reads notes. A last line without its end was still being written and does not count.
///
/// # Errors
/// On a line that is no note.
pub fn parse_notes(text: &str) -> Result<Vec<Note>> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole.lines().map(|line| Note::parse(line).with_context(|| format!("note `{line}`"))).collect()
}

/// The first acknowledgement of a row that was sent after `after_us`, in microseconds of wall
/// clock.
#[must_use]
pub fn first_commit_after(notes: &[Note], after_us: u64) -> Option<u64> {
    let times = notes.iter().filter_map(|note| match note {
        Note::Acked { sent_us, done_us, .. } if *sent_us > after_us => Some(*done_us),
        _ => None,
    });
    times.min()
}

/// The first connection made after `after_us`.
#[must_use]
pub fn first_connection_after(notes: &[Note], after_us: u64) -> Option<u64> {
    let times = notes.iter().filter_map(|note| match note {
        Note::Connected { at_us } if *at_us > after_us => Some(*at_us),
        _ => None,
    });
    times.min()
}

/// The longest time between two acknowledgements, in microseconds.
#[must_use]
pub fn longest_gap_us(notes: &[Note]) -> u64 {
    let mut times: Vec<u64> = notes
        .iter()
        .filter_map(|note| match note {
            Note::Acked { done_us, .. } => Some(*done_us),
            _ => None,
        })
        .collect();
    times.sort_unstable();
    times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Result of comparing the notes with the table.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verdict {
    pub acknowledged_rows: u64,
    pub present_rows: u64,
    /// Rows that were acknowledged and are not in the table.
    pub lost_rows: u64,
    /// Numbers of the first few lost rows.
    pub lost: Vec<u64>,
    /// Rows of the table with other content than was asked for.
    pub wrong_rows: u64,
    /// Rows of the table that no client asked for.
    pub unasked_rows: u64,
}

impl Verdict {
    #[must_use]
    pub fn good(&self) -> bool {
        self.lost_rows == 0 && self.wrong_rows == 0 && self.unasked_rows == 0
    }
}

/// Compares the notes with the rows of the table.
#[must_use]
pub fn judge(notes: &[Note], rows: &BTreeMap<u64, String>) -> Verdict {
    let mut acked = BTreeSet::new();
    let mut asked = BTreeSet::new();
    for note in notes {
        match note {
            Note::Acked { number, .. } => {
                acked.insert(*number);
                asked.insert(*number);
            }
            Note::Unknown { number, .. } => {
                asked.insert(*number);
            }
            Note::Connected { .. } => {}
        }
    }
    let lost: Vec<u64> = acked.iter().copied().filter(|number| !rows.contains_key(number)).collect();
    Verdict {
        acknowledged_rows: acked.len() as u64,
        present_rows: rows.len() as u64,
        lost_rows: lost.len() as u64,
        lost: lost.into_iter().take(20).collect(),
        wrong_rows: rows.iter().filter(|(number, found)| **found != content(**number)).count() as u64,
        unasked_rows: rows.keys().filter(|number| !asked.contains(number)).count() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(numbers: &[u64]) -> BTreeMap<u64, String> {
        numbers.iter().map(|&number| (number, content(number))).collect()
    }

    fn notes() -> Vec<Note> {
        vec![
            Note::Connected { at_us: 5 },
            Note::Acked { number: 1, sent_us: 10, done_us: 12 },
            Note::Unknown { number: 2, sent_us: 20, done_us: 30, why: "gone\naway".into() },
            Note::Acked { number: 3, sent_us: 40, done_us: 55 },
        ]
    }

    #[test]
    fn notes_read_back_and_a_half_line_counts_for_nothing() {
        let mut text: String = notes().iter().map(Note::line).collect();
        text += "acked 4 60 6";
        let mut expected = notes();
        expected[2] = Note::Unknown { number: 2, sent_us: 20, done_us: 30, why: "gone away".into() };
        assert_eq!(parse_notes(&text).unwrap(), expected);
        assert!(parse_notes("nonsense 1\n").is_err());
    }

    #[test]
    fn a_lost_a_wrong_and_an_unasked_row_are_told_apart() {
        assert!(judge(&notes(), &rows(&[1, 3])).good());
        assert!(judge(&notes(), &rows(&[1, 2, 3])).good(), "an unknown row may be there");
        let lost = judge(&notes(), &rows(&[1]));
        assert_eq!((lost.lost_rows, lost.lost.clone(), lost.good()), (1, vec![3], false));
        assert_eq!(judge(&notes(), &rows(&[1, 3, 9])).unasked_rows, 1);
        let mut wrong = rows(&[1, 3]);
        wrong.insert(3, content(4));
        assert_eq!(judge(&notes(), &wrong).wrong_rows, 1);
    }

    #[test]
    fn times_are_found_in_the_notes() {
        assert_eq!(first_commit_after(&notes(), 10), Some(55));
        assert_eq!(first_commit_after(&notes(), 9), Some(12));
        assert_eq!(first_connection_after(&notes(), 4), Some(5));
        assert_eq!(longest_gap_us(&notes()), 43);
    }
}
