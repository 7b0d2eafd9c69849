//! Logs of a node: the output of its engine, its agent and its first process.

use super::cli::LogsArgs;
use super::node;
use super::state::Lab;
use crate::failure::{Code, Failure, Outcome};
use crate::output;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How much of a log's end is looked at.
const TAIL_BYTES_MAX: u64 = 4 << 20;
const POLL: Duration = Duration::from_millis(200);

pub fn run(lab: &Lab, args: &LogsArgs) -> Outcome<()> {
    let dir = node::log_dir(lab, &lab.node(&args.node)?.name);
    let programs = match &args.program {
        Some(program) => vec![program.as_str()],
        None => vec!["init", "engine", "agent"],
    };
    let path = |program: &str| dir.join(format!("{program}.log"));
    let logs: Vec<(&str, PathBuf)> =
        programs.iter().map(|&program| (program, path(program))).filter(|(_, path)| path.exists()).collect();
    if logs.is_empty() {
        return Err(Failure::new(
            Code::LabNoLog,
            format!("{} has no log yet", args.node),
            format!("Start it with `mainstay lab start {}`, or leave --program out.", args.node),
        ));
    }
    let mut ends = Vec::new();
    for (program, path) in &logs {
        ends.push(length(path));
        for line in tail(path, args.lines) {
            show(program, &line, logs.len() > 1);
        }
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(POLL);
        for ((program, path), end) in logs.iter().zip(&mut ends) {
            let fresh = from(path, *end);
            // A line that is still being written is left for the next look.
            let whole = fresh.rfind('\n').map_or(0, |at| at + 1);
            *end += whole as u64;
            for line in fresh[..whole].lines() {
                show(program, line, logs.len() > 1);
            }
        }
    }
}

fn show(program: &str, line: &str, named: bool) {
    if named { output::line(&format!("{program:6} | {line}")) } else { output::line(line) }
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn from(path: &Path, offset: u64) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(offset))?;
        file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)
    });
    // An unreadable log has no lines to show; the caller has just seen that it exists.
    if read.is_err() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() }
}

/// The last lines of a log.
pub fn tail(path: &Path, lines: usize) -> Vec<String> {
    let text = from(path, length(path).saturating_sub(TAIL_BYTES_MAX));
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].iter().map(|&line| line.to_owned()).collect()
}
