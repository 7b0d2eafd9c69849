//! `mainstay service show`, `check`, `logs` and `history`.

use super::super::events;
use super::{checked_name, path, read};
use crate::failure::{Code, Context, Outcome, exit};
use crate::output::{self, Output};
use mainstay_api::rest::{
    ServiceCheck, ServiceChecked, ServiceCheckedOn, ServiceFile, ServiceHistory, ServiceLog, ServiceLogs,
};
use mainstay_client::Client;
use mainstay_types::clock::clock;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// How often a log that is followed is read.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// Refusals after which there is nothing more to follow.
const ENDS: [Code; 4] = [Code::UnknownService, Code::UnknownProcess, Code::UnknownNode, Code::NotFound];
/// Longest beginning of a line that waits for its rest, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

pub(super) fn show(name: &str, client: &Client, output: Output) -> Outcome<()> {
    let file: ServiceFile = client.get(&format!("{}/file", path(name)?))?;
    if output.json {
        return output.result(&file, |_| String::new());
    }
    // As it is, whatever the width of the terminal: it is a file.
    output::line(file.toml.trim_end());
    Ok(())
}

/// Returns the exit code.
pub(super) fn check(file: &Path, client: &Client, output: Output) -> Outcome<u8> {
    let checked: ServiceChecked = client.post("/v1/service-check", &ServiceCheck { toml: read(file)? })?;
    output.result(&checked, verdict)?;
    Ok(exit_code(&checked))
}

fn can_run(on: &ServiceCheckedOn) -> bool {
    on.silent.is_none() && on.problems.is_empty()
}

fn exit_code(checked: &ServiceChecked) -> u8 {
    let able = checked.nodes.iter().filter(|on| can_run(on)).count();
    match able {
        able if able == checked.nodes.len() => 0,
        0 => exit::FAILED,
        _ => exit::ATTENTION,
    }
}

fn verdict(checked: &ServiceChecked) -> String {
    let head = match exit_code(checked) {
        0 => "could run on every node of resource",
        exit::FAILED => "could run on no node of resource",
        _ => "could not run on every node of resource",
    };
    let mut text = format!("service {} {head} {}", checked.name, checked.resource);
    for on in &checked.nodes {
        text += &match &on.silent {
            Some(why) => format!("\n  {}: not known, because {why}", on.node),
            None if on.problems.is_empty() => format!("\n  {}: nothing would fail", on.node),
            None => format!("\n  {}: would fail", on.node),
        };
        for problem in &on.problems {
            text += &format!("\n    {}: {}\n      → {}", problem.field, problem.problem, problem.remedy);
        }
    }
    text + "\nnothing was changed"
}

pub(super) fn history(name: &str, lines: usize, client: &Client, output: Output) -> Outcome<()> {
    let history: ServiceHistory = client.get(&format!("{}/history?lines={lines}", path(name)?))?;
    output.newest(lines, &history, |history| {
        let mut lines: Vec<String> = history.events.iter().map(events::words).collect();
        if let Some(since) = history.since_ms {
            let since = clock(since);
            lines.insert(0, format!("the cluster has no events from before {since}"));
        }
        if lines.is_empty() { "no events".into() } else { lines.join("\n") }
    })
}

/// Output that is to be shown.
pub(super) struct Wish<'a> {
    pub name: &'a str,
    pub process: Option<&'a str>,
    pub node: Option<&'a str>,
    pub lines: usize,
    pub follow: bool,
}

pub(super) fn logs(wish: &Wish<'_>, client: &Client, output: Output) -> Outcome<()> {
    let base = format!("{}/logs", path(wish.name)?);
    let process = wish.process.map(checked_name).transpose()?;
    let node = wish.node.map(checked_name).transpose()?;
    let chosen = |process: Option<&str>| {
        let process = process.map_or_else(String::new, |process| format!("&process={process}"));
        process + &node.map_or_else(String::new, |node| format!("&node={node}"))
    };
    let first: ServiceLogs = client.get(&format!("{base}?lines={}{}", wish.lines, chosen(process)))?;
    if !wish.follow {
        if output.json {
            return output.result(&first, |_| String::new());
        }
        if wish.lines > 0 {
            output::line(printed(&first).trim_end());
        }
        return Ok(());
    }
    let mut at = first.node.clone();
    let mut next: BTreeMap<String, String> = BTreeMap::new();
    let mut begun: BTreeMap<String, String> = BTreeMap::new();
    let mut noted: BTreeMap<String, Option<String>> = BTreeMap::new();
    let prefixed = first.logs.len() > 1;
    let mut logs = first;
    loop {
        if logs.node != at {
            at.clone_from(&logs.node);
            output.note(&format!("service {} is on {at} now", wish.name));
        }
        for log in &mut logs.logs {
            next.insert(log.process.clone(), log.next.clone());
            // Once, and not with every look.
            let notice = log.notice.take();
            let known = noted.insert(log.process.clone(), notice.clone()).flatten();
            if let Some(notice) = notice.filter(|notice| known.as_ref() != Some(notice)) {
                output.note(&format!("process {}: {notice}", log.process));
            }
            if !output.json {
                whole_lines(log, begun.entry(log.process.clone()).or_default());
            }
            if output.json && !log.text.is_empty() {
                output::line(
                    &serde_json::to_string(log).or_fail(Code::Output, || "write output as JSON".into())?,
                );
            } else if !output.json && !log.text.is_empty() {
                output::line(&piece(log, prefixed));
            }
        }
        let newer = || -> Outcome<ServiceLogs> {
            let mut newer = ServiceLogs { node: at.clone(), logs: Vec::new() };
            for (process, after) in &next {
                let process = chosen(Some(process.as_str()));
                let mut answer: ServiceLogs = client.get(&format!("{base}?after={after}{process}"))?;
                // Another node knows nothing of a place in this one's log.
                if answer.node != at {
                    answer = client.get(&format!("{base}?lines={}{process}", wish.lines))?;
                }
                newer.node = answer.node;
                newer.logs.extend(answer.logs);
            }
            Ok(newer)
        };
        let mut told = String::new();
        logs = loop {
            std::thread::sleep(FOLLOW_EVERY);
            match newer() {
                Ok(newer) => break newer,
                Err(failure) if ENDS.contains(&failure.problem.code) => return Err(failure),
                // A node that dies is followed by another one, and an agent that ends by the next.
                Err(failure) if failure.problem.message != told => {
                    told = failure.problem.message;
                    output.note(&format!("{told}; the output goes on when it can be read again"));
                }
                Err(_) => {}
            }
        };
    }
}

/// Keeps back the beginning of a line until the rest of it comes.
fn whole_lines(log: &mut ServiceLog, begun: &mut String) {
    let mut text = std::mem::take(begun) + &log.text;
    let end = text.rfind('\n').map_or(0, |end| end + 1);
    if text.len() - end <= LINE_BYTES_MAX {
        *begun = text.split_off(end);
    }
    log.text = text;
}

fn printed(logs: &ServiceLogs) -> String {
    let several = logs.logs.len() > 1;
    let with_head = |log: &ServiceLog| {
        let head =
            if several { format!("==> {} on {} <==\n", log.process, logs.node) } else { String::new() };
        let text = match &log.notice {
            Some(_) if log.text.is_empty() => String::new(),
            None if log.text.is_empty() => "no output".to_owned(),
            _ => piece(log, false),
        };
        let notice = log.notice.as_ref().map_or_else(String::new, |notice| format!("[{}]", notice.trim()));
        let gap = if text.is_empty() || notice.is_empty() { "" } else { "\n" };
        format!("{head}{text}{gap}{notice}")
    };
    logs.logs.iter().map(with_head).collect::<Vec<_>>().join("\n\n")
}

/// A part of a log as lines, without what a terminal would obey.
fn piece(log: &ServiceLog, prefixed: bool) -> String {
    let plain = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
    let line = |line: &str| {
        let line: String = line.trim_end_matches('\r').chars().map(plain).collect();
        if prefixed { format!("{}: {line}", log.process) } else { line }
    };
    let cut = log.cut.then(|| line("[earlier output is left out]"));
    cut.into_iter()
        .chain(log.text.trim_end_matches('\n').split('\n').map(line))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::ServiceProblem;

    fn on(node: &str, silent: Option<&str>, problems: usize) -> ServiceCheckedOn {
        let problem = ServiceProblem {
            field: "process[0].user".into(),
            problem: "there is no user mysql".into(),
            remedy: "make the user".into(),
        };
        let silent = silent.map(Into::into);
        ServiceCheckedOn { node: node.into(), silent, problems: vec![problem; problems] }
    }

    #[test]
    fn the_exit_code_of_a_check_says_on_how_many_nodes_a_service_could_run() {
        let code = |nodes| {
            let checked = ServiceChecked { name: "db".into(), resource: "db".into(), nodes };
            (exit_code(&checked), verdict(&checked))
        };
        assert_eq!(code(vec![on("a", None, 0), on("b", None, 0)]).0, 0);
        let (some, text) = code(vec![on("a", None, 0), on("b", None, 1)]);
        assert_eq!(some, exit::ATTENTION);
        assert!(
            text.contains("b: would fail") && text.contains("process[0].user: there is no user"),
            "{text}"
        );
        assert_eq!(code(vec![on("a", None, 0), on("b", Some("it is dead"), 0)]).0, exit::ATTENTION);
        assert_eq!(code(vec![on("a", None, 2), on("b", Some("it is dead"), 0)]).0, exit::FAILED);
    }

    #[test]
    fn a_line_that_comes_in_two_pieces_is_printed_once() {
        let mut begun = String::new();
        let mut told = |text: &str| {
            let (process, next) = (String::new(), String::new());
            let mut log = ServiceLog { process, text: text.into(), next, cut: false, notice: None };
            whole_lines(&mut log, &mut begun);
            log.text
        };
        assert_eq!(told("a\nb"), "a\n");
        assert_eq!(told("c"), "");
        assert_eq!(told("d\ne\n"), "bcd\ne\n");
        assert_eq!(told(&"x".repeat(LINE_BYTES_MAX + 1)).len(), LINE_BYTES_MAX + 1);
    }

    #[test]
    fn output_that_cannot_be_read_is_told() {
        let log = |text: &str| ServiceLog {
            process: "p".into(),
            text: text.into(),
            next: String::new(),
            cut: false,
            notice: Some("there is no journal".into()),
        };
        let printed = |log| printed(&ServiceLogs { node: "n1".into(), logs: vec![log] });
        assert_eq!(printed(log("")), "[there is no journal]");
        assert_eq!(printed(log("a\n")), "a\n[there is no journal]");
    }

    #[test]
    fn output_of_a_process_cannot_command_the_terminal() {
        let log = ServiceLog {
            process: "p".into(),
            text: "a\tb\u{1b}[2Jc\r\nd\n".into(),
            next: String::new(),
            cut: true,
            notice: None,
        };
        let text = piece(&log, true);
        assert_eq!(text, "p: [earlier output is left out]\np: a\tb\u{fffd}[2Jc\np: d");
    }
}
