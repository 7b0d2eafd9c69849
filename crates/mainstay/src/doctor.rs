//! `mainstay doctor`: whether this machine can be a node, before anything is made on it.
//!
//! Guarantees
//! - The command changes nothing: the one file that it writes has a name of its own, and is gone
//!   when the command ends. It asks no agent and needs none.
//! - Each check ends: writes to the disk and connections have a limit.
//! - Each row says what was found. A warning or a failure also says what it costs and what to do.

mod machine;
mod network;
mod pool;

use crate::config;
use crate::failure::Outcome;
use crate::failure::exit;
use crate::output::{Output, columns, fold};
use clap::Args;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Columns if the output is no terminal.
const COLUMNS: usize = 80;

#[derive(Args, Debug, Clone)]
pub struct DoctorArgs {
    /// Address of another machine that is to be a node. Its ports are tried from here. If `mainstay
    /// doctor --listen` runs there, it also tries the ports of this machine. Give the option once
    /// per machine.
    #[arg(long = "peer", value_name = "ADDRESS")]
    pub peers: Vec<String>,
    /// Answer `mainstay doctor --peer` of other machines on the ports of agent and engine, until
    /// you end the command. Nothing else is checked then.
    #[arg(long, conflicts_with = "peers")]
    pub listen: bool,
    /// Durable state of the node, whose disk is checked [default: that of the configuration]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Result of one check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    Warning,
    Fails,
}

/// One check, with what was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Row {
    pub check: String,
    pub verdict: Verdict,
    pub found: String,
    /// Cost of a warning or a failure.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub costs: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub remedy: String,
}

impl Row {
    pub fn ok(check: &str, found: impl Into<String>) -> Self {
        let (costs, remedy) = (String::new(), String::new());
        Self { check: check.into(), verdict: Verdict::Ok, found: found.into(), costs, remedy }
    }

    pub fn warning(check: &str, found: impl Into<String>, costs: &str, remedy: impl Into<String>) -> Self {
        let (costs, remedy) = (costs.to_owned(), remedy.into());
        Self { check: check.into(), verdict: Verdict::Warning, found: found.into(), costs, remedy }
    }

    pub fn fails(check: &str, found: impl Into<String>, costs: &str, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fails, ..Self::warning(check, found, costs, remedy) }
    }
}

/// Places and ports of the node, by the configuration of this machine.
pub struct Node {
    pub state_dir: PathBuf,
    pub run_dir: PathBuf,
    pub agent: SocketAddr,
    pub engine: SocketAddr,
}

impl Node {
    /// # Errors
    /// When the configuration has a mistake.
    fn here(state_dir: Option<PathBuf>) -> Outcome<Self> {
        let of = |role, name| config::value(role, name);
        let address = |role, usual: u16| -> Outcome<SocketAddr> {
            let unspecified = SocketAddr::from(([0, 0, 0, 0], usual));
            Ok(of(role, "listen")?.and_then(|text| text.parse().ok()).unwrap_or(unspecified))
        };
        Ok(Self {
            state_dir: match state_dir {
                Some(named) => named,
                None => of("agent", "state_dir")?.unwrap_or_else(|| "/var/lib/mainstay".into()).into(),
            },
            run_dir: of("agent", "run_dir")?.unwrap_or_else(|| "/run/mainstay".into()).into(),
            agent: address("agent", 7400)?,
            engine: address("engine", 7401)?,
        })
    }
}

pub fn run(args: DoctorArgs, output: Output) -> Outcome<u8> {
    let node = Node::here(args.state_dir)?;
    if args.listen {
        return network::listen(&node, output);
    }
    let rows = checks(&node, &args.peers);
    output.result(&rows, |rows| words(rows, columns().unwrap_or(COLUMNS)))?;
    Ok(code(&rows))
}

fn checks(node: &Node, peers: &[String]) -> Vec<Row> {
    let mut rows = machine::rows(node);
    rows.extend(pool::rows(&node.state_dir));
    rows.extend(network::rows(node, peers));
    rows
}

/// All checks of this machine that need no other one.
///
/// # Errors
/// When the configuration has a mistake.
pub fn of_this_machine() -> Outcome<Vec<Row>> {
    Ok(checks(&Node::here(None)?, &[]))
}

fn code(rows: &[Row]) -> u8 {
    let has = |verdict| rows.iter().any(|row| row.verdict == verdict);
    match (has(Verdict::Fails), has(Verdict::Warning)) {
        (true, _) => exit::FAILED,
        (false, true) => exit::ATTENTION,
        (false, false) => 0,
    }
}

fn words(rows: &[Row], columns: usize) -> String {
    let name = rows.iter().map(|row| row.check.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    let mut put = |head: &str, body: &str| {
        let indent = head.chars().count();
        let folded = fold(body, Some(columns.saturating_sub(indent).max(20)));
        for (number, line) in folded.lines().enumerate() {
            let begin = if number == 0 { head.to_owned() } else { " ".repeat(indent) };
            text.push_str(&format!("{begin}{}\n", line.trim_start()));
        }
    };
    for row in rows {
        let verdict = match row.verdict {
            Verdict::Ok => "ok",
            Verdict::Warning => "warning",
            Verdict::Fails => "FAILS",
        };
        put(&format!("{verdict:<8} {:<name$}  ", row.check), &row.found);
        for (title, body) in [("costs", &row.costs), ("to do", &row.remedy)] {
            if !body.is_empty() {
                put(&format!("         {title:<6} "), body);
            }
        }
    }
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count();
    let (fails, warnings) = (count(Verdict::Fails), count(Verdict::Warning));
    text.push_str(&match (fails, warnings) {
        (0, 0) => "This machine can be a node.".to_owned(),
        (0, n) => format!("This machine can be a node. Warnings: {n}."),
        (n, _) => format!("This machine cannot be a node yet. Failures: {n}, warnings: {warnings}."),
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fit_eighty_columns_and_decide_the_exit_code() {
        let long = "a text that is so long that it has to go on in the next line, and in the one after that as well, or it does not fit";
        let rows = [Row::ok("root", "yes"), Row::warning("clock", long, long, long)];
        let text = words(&rows, 80);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("ok       root   yes\nwarning  clock  a text"), "{text}");
        assert!(text.ends_with("This machine can be a node. Warnings: 1."), "{text}");
        assert_eq!(code(&rows), exit::ATTENTION);
        assert_eq!(code(&rows[..1]), 0);
        assert_eq!(code(&[rows[0].clone(), Row::fails("x", "", "", "")]), exit::FAILED);
    }

    #[test]
    fn every_check_here_ends_and_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let node = Node {
            state_dir: directory.path().join("not/yet"),
            run_dir: "/run".into(),
            agent: any,
            engine: any,
        };
        let mut rows = machine::rows(&node);
        rows.extend(pool::rows(&node.state_dir));
        rows.extend(network::rows(&node, &[]));
        assert!(rows.len() > 12, "{rows:?}");
        for row in &rows {
            let is_ok = row.verdict == Verdict::Ok;
            assert!(!row.found.is_empty() && row.costs.is_empty() == is_ok, "{row:?}");
            assert!(row.remedy.is_empty() == is_ok, "{row:?}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }
}
