//! Counting instructions instead of time: the same on a busy machine as on a quiet one.
//!
//! A program does a fixed piece of work a number of times under callgrind, and then twice as many
//! times. The difference, divided by the number of times, is the cost of one. Work that happens
//! once is in neither run's share.
//!
//! Counts are recorded in a file and compared with it. They depend on the compiler, on the C
//! library and on what valgrind makes of the processor. So these are part of the record. Counts of
//! other tools are shown and not judged.

use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Difference from the record that still counts as equal, in percent. A run repeats to a few in a
/// hundred thousand, but any change of the sources may change the compiler's inlining.
pub const TOLERANCE_PERCENT: f64 = 5.0;
/// A case takes a second or two.
const LIMIT: Duration = Duration::from_secs(120);

/// Unit of counting: the name of a case and how often it is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    pub case: String,
    pub times: u64,
}

/// A file of counts. `#` begins a comment, and `tools: …` names the tools of the record. Every
/// other line has a case, its number of repetitions, and the instructions of one repetition.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Record {
    pub tools: String,
    pub work: Vec<Work>,
    pub counts: BTreeMap<String, f64>,
}

impl Record {
    /// # Errors
    /// [`Error::Samples`] for a line that cannot be read.
    pub fn parse(text: &str) -> Result<Self> {
        let mut record = Self::default();
        for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            if let Some(tools) = line.strip_prefix("tools:") {
                record.tools = tools.trim().into();
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = || Error::Samples { path: "the recorded counts".into(), why: format!("`{line}`") };
            let [case, times, count] = words[..] else { return Err(wrong()) };
            let times = times.parse().map_err(|_| wrong())?;
            record.work.push(Work { case: case.into(), times });
            record.counts.insert(case.into(), count.parse().map_err(|_| wrong())?);
        }
        Ok(record)
    }

    /// The file with these counts in place of the old ones; comments stay.
    #[must_use]
    pub fn rewritten(&self, text: &str, tools: &str, counts: &BTreeMap<String, f64>) -> String {
        let mut out = String::new();
        for line in text.lines() {
            let case = line.split_whitespace().next().unwrap_or_default();
            let known = self.work.iter().find(|work| work.case == case);
            match (known.zip(counts.get(case)), line.starts_with("tools:")) {
                (Some((work, count)), _) => {
                    out += &format!("{:<22} {:>6} {count:>10.0}\n", work.case, work.times)
                }
                (None, true) => out += &format!("tools: {tools}\n"),
                (None, false) => out += &format!("{line}\n"),
            }
        }
        out
    }
}

/// The compiler, the C library and valgrind, and the processor features that decide which routines
/// are chosen.
#[must_use]
pub fn tools() -> String {
    let said = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        let done = crate::command::finish(&mut command, LIMIT);
        done.map_or(String::new(), |done| done.stdout.lines().next().unwrap_or_default().trim().to_owned())
    };
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let avx2 = if info.contains(" avx2 ") { "avx2" } else { "no avx2" };
    let rustc = said(&["rustc", "--version"]);
    format!(
        "{rustc}, {}, {}, {avx2}",
        said(&["getconf", "GNU_LIBC_VERSION"]),
        said(&["valgrind", "--version"])
    )
}

/// Instructions of one repetition of a case.
///
/// # Errors
/// When valgrind or the program fails.
pub fn count(program: &Path, work: &Work) -> Result<f64> {
    let all = |times: u64| -> Result<f64> {
        let mut command = Command::new("valgrind");
        command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
        command.arg(&work.case).arg(times.to_string());
        let done = crate::command::finish(&mut command, LIMIT)?;
        let missing = || Error::Output {
            program: "valgrind",
            what: format!("count of `{} {times}`", work.case),
            output: done.stderr.clone(),
        };
        let line = done.stderr.lines().find_map(|line| line.split_once("Collected :")).ok_or_else(missing)?.1;
        if !done.status.success() {
            return Err(missing());
        }
        line.trim().parse().map_err(|_| missing())
    };
    Ok((all(2 * work.times)? - all(work.times)?) / work.times as f64)
}

/// Result of comparing a count with the recorded one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Same,
    /// Fewer instructions, by more than the tolerance. Record the new count, or a later loss would
    /// hide behind the old one.
    Better,
    Worse,
}

#[must_use]
pub fn verdict(recorded: f64, counted: f64) -> Verdict {
    let percent = (counted / recorded - 1.0) * 100.0;
    if percent > TOLERANCE_PERCENT {
        Verdict::Worse
    } else if percent < -TOLERANCE_PERCENT {
        Verdict::Better
    } else {
        Verdict::Same
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# what and how\ntools: some\n\nseal-1                  10  2000\nread                    20   300\n";

    #[test]
    fn a_record_is_read_and_written_anew() {
        let record = Record::parse(TEXT).unwrap();
        assert_eq!((record.tools.as_str(), record.work.len(), record.counts["read"]), ("some", 2, 300.0));
        let counts = [("seal-1".to_owned(), 1999.6), ("read".to_owned(), 301.0)].into();
        let text = record.rewritten(TEXT, "others", &counts);
        let again = Record::parse(&text).unwrap();
        assert_eq!((again.tools.as_str(), again.counts["seal-1"]), ("others", 2000.0));
        assert!(text.starts_with("# what and how\n") && again.work == record.work);
        assert!(Record::parse("seal-1 10").is_err() && Record::parse("seal-1 ten 3").is_err());
    }

    #[test]
    fn only_more_instructions_are_worse() {
        assert_eq!(verdict(1000.0, 1049.0), Verdict::Same);
        assert_eq!(verdict(1000.0, 1051.0), Verdict::Worse);
        assert_eq!(verdict(1000.0, 951.0), Verdict::Same);
        assert_eq!(verdict(1000.0, 949.0), Verdict::Better);
    }
}
