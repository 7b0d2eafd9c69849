//! `mainstay check atomic`: whether a page of a database can tear at a place.
//!
//! Guarantees
//! - The first line is one for monitors, as that of `mainstay check`: OK if no page can tear,
//!   WARNING if one can, UNKNOWN if it could not be looked at. The exit code is that of the word.
//! - Each reason for no says what was found and what to do.

use super::judge::{Checked, State};
use super::tell;
use crate::cli::AtomicArgs;
use crate::config;
use crate::failure::{Code, Failure, Outcome, chain, remedy_of};
use crate::output::{self, Output, columns, fold};
use mainstay_devices::atomic::verdict::{Answer, Writes};
use mainstay_devices::atomic::{AtomicError, Question, check};
use serde::Serialize;

/// Columns if the output is no terminal.
const COLUMNS: usize = 80;

/// Result with the word for monitors, for programs.
#[derive(Serialize)]
struct Told<'a> {
    state: State,
    path: String,
    #[serde(flatten)]
    answer: &'a Answer,
}

/// Returns the exit code.
pub fn run(args: &AtomicArgs, output: Output) -> u8 {
    let asked = question(args).and_then(|question| Ok((check(&question).map_err(failed)?, question)));
    let (answer, question) = match asked {
        Ok(asked) => asked,
        Err(failure) => {
            let problem = &failure.problem;
            let code =
                tell(&Checked::of(State::Unknown, format!("{} [{}]", problem.message, problem.code)), output);
            output.note(&problem.remedy);
            return code;
        }
    };
    let path = question.path.display().to_string();
    let state = state(&answer);
    let told = Told { state, path: path.clone(), answer: &answer };
    match output.json.then(|| serde_json::to_string_pretty(&told)) {
        Some(Ok(json)) => output::line(&json),
        _ => output::line(&words(&path, &answer, columns().unwrap_or(COLUMNS))),
    }
    state as u8
}

fn question(args: &AtomicArgs) -> Outcome<Question> {
    let run_dir = match &args.run_dir {
        Some(named) => named.clone(),
        None => config::value("agent", "run_dir")?.unwrap_or_else(|| "/run/mainstay".into()).into(),
    };
    let writes = if args.buffered { Writes::Buffered } else { Writes::Direct };
    Ok(Question { path: args.path.clone(), page: args.page, writes, files: args.files.clone(), run_dir })
}

fn failed(error: AtomicError) -> Failure {
    Failure::new(Code::PagesUnseen, chain(&error), remedy_of(&error))
}

fn state(answer: &Answer) -> State {
    if answer.atomic { State::Ok } else { State::Warning }
}

fn words(path: &str, answer: &Answer, columns: usize) -> String {
    let Answer { page, device, file_system, files, pages, findings, condition, .. } = answer;
    let first = if answer.atomic {
        format!("no page of {page} bytes can tear on {path}")
    } else {
        let reasons =
            if findings.len() == 1 { "1 reason".to_owned() } else { format!("{} reasons", findings.len()) };
        format!("a page of {page} bytes can tear on {path}: {reasons}")
    };
    let problems = if answer.atomic { Vec::new() } else { vec![first.clone()] };
    let checked = Checked { state: state(answer), problems, well: first, numbers: Vec::new() };
    let mut text = checked.line() + "\n";
    let mut put = |head: &str, body: &str| {
        if body.is_empty() {
            text.push('\n');
        }
        let indent = head.chars().count();
        let folded = fold(body, Some(columns.saturating_sub(indent).max(20)));
        for (number, line) in folded.lines().enumerate() {
            let begin = if number == 0 { head.to_owned() } else { " ".repeat(indent) };
            text.push_str(&format!("{begin}{}\n", line.trim_start()));
        }
    };
    put("device       ", device);
    put("file system  ", file_system);
    put("data files   ", &format!("{files}, with {pages} pages on the device"));
    for finding in findings {
        put("", "");
        put(&format!("{}: ", finding.code), &finding.found);
        for example in &finding.examples {
            put("  file   ", example);
        }
        put("  to do  ", &finding.remedy);
    }
    if !condition.is_empty() {
        put("condition    ", condition);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_devices::atomic::verdict::Finding;

    fn answer(findings: Vec<Finding>) -> Answer {
        Answer {
            atomic: findings.is_empty(),
            page: 16384,
            writes: Writes::Direct,
            device: "/dev/loop3".into(),
            file_system: "XFS with blocks of 4096 bytes".into(),
            files: 12,
            pages: 4711,
            condition: if findings.is_empty() {
                "The database must write with O_DIRECT.".into()
            } else {
                String::new()
            },
            findings,
        }
    }

    fn finding() -> Finding {
        Finding {
            code: "file-system-blocks",
            found: "XFS with blocks of 4096 bytes may put the parts of a page of 16384 bytes into several places".into(),
            remedy: "Make an ext4 with `mkfs.ext4 -O bigalloc -C 16384` on an empty volume, and move the database there.".into(),
            examples: vec!["/srv/db/data/shop/orders.ibd (17 of 4711 pages)".into()],
        }
    }

    #[test]
    fn the_first_line_is_for_monitors_and_all_lines_fit_eighty_columns() {
        let no = words("/srv/db", &answer(vec![finding(), finding()]), 80);
        assert!(no.lines().all(|line| line.chars().count() <= 80), "{no}");
        assert!(
            no.starts_with("MAINSTAY WARNING - a page of 16384 bytes can tear on /srv/db: 2 reasons\n"),
            "{no}"
        );
        assert!(
            no.contains("\n\nfile-system-blocks: XFS with") && no.contains("\n  to do  Make an ext4"),
            "{no}"
        );
        assert!(no.contains("\n  file   /srv/db/data/shop/orders.ibd (17 of 4711 pages)\n"), "{no}");
        let yes = words("/srv/db", &answer(Vec::new()), 80);
        assert!(yes.starts_with("MAINSTAY OK - no page of 16384 bytes can tear on /srv/db\n"), "{yes}");
        assert!(yes.ends_with("condition    The database must write with O_DIRECT.\n"), "{yes}");
        assert_eq!((state(&answer(Vec::new())) as u8, state(&answer(vec![finding()])) as u8), (0, 1));
    }

    #[test]
    fn a_place_that_is_not_there_is_unknown() {
        let args = AtomicArgs {
            path: "/nonexistent/place".into(),
            page: 16384,
            buffered: false,
            files: Vec::new(),
            run_dir: Some("/nonexistent".into()),
        };
        assert_eq!(run(&args, Output::new(false)), 3);
        let failure = failed(check(&question(&args).expect("a question")).expect_err("it is not there"));
        assert!(failure.problem.message.contains("/nonexistent/place"), "{failure}");
    }
}
