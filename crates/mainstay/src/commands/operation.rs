//! `mainstay operation …`.

use super::identities::now_ms;
use super::resource::duration;
use super::watch;
use crate::cli::OperationCommand;
use crate::failure::{Code, Failure, Outcome};
use crate::output::Output;
use mainstay_api::rest::{OPERATIONS, OperationState, OperationView};
use mainstay_cli::list::List;
use mainstay_client::Client;
use mainstay_types::clock::clock;

pub fn run(command: OperationCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        OperationCommand::List(args) => {
            let ask = || Ok(client.get::<Vec<OperationView>>(OPERATIONS)?);
            watch::list(args, output, ask, |all| overview(all, now_ms()))?;
        }
        OperationCommand::Show { id, watch } => {
            let path = path(&id)?;
            let ask = || Ok(client.get::<OperationView>(&path)?);
            watch::show(watch, output, ask, |one| details(one, now_ms()))?;
        }
        OperationCommand::Cancel { id } => {
            let ended: OperationView = client.delete(&path(&id)?)?;
            output
                .result(&ended, |ended| format!("operation {} is cancelled: {}", ended.id, ended.message))?;
        }
    }
    Ok(0)
}

/// The path of an operation. The id becomes a part of it.
fn path(id: &str) -> Outcome<String> {
    if id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(format!("{OPERATIONS}/{id}"));
    }
    let message = format!("`{id}` is not the id of an operation");
    Err(Failure::new(Code::UnknownOperation, message, "See `mainstay operation list`."))
}

fn state(view: &OperationView) -> &'static str {
    match view.state {
        OperationState::Running => "running",
        OperationState::Succeeded => "succeeded",
        OperationState::Failed => "FAILED",
        OperationState::Cancelled => "cancelled",
    }
}

/// Time from the beginning of an operation to its end, or to now.
fn took(view: &OperationView, now_ms: u64) -> String {
    duration(view.ended_ms.unwrap_or(now_ms).saturating_sub(view.since_ms))
}

fn percent(view: &OperationView) -> Option<String> {
    Some(format!("{} %", view.progress_percent?))
}

fn overview(all: &[OperationView], now_ms: u64) -> List {
    let row = |view: &OperationView| {
        vec![
            view.id.clone(),
            state(view).to_owned(),
            percent(view).unwrap_or_default(),
            took(view, now_ms),
            view.message.clone(),
            view.who.clone(),
            clock(view.since_ms),
            view.ended_ms.map(clock).unwrap_or_default(),
            view.action.clone(),
        ]
    };
    let head = &["ID", "STATE", "DONE", "TIME", "WORK"];
    let list = List::new(head, &["ASKED BY", "BEGAN", "ENDED", "REQUEST"], all.iter().map(row));
    list.or_say("the node that was asked knows no operation; each node lists those that were begun on it")
}

fn details(view: &OperationView, now_ms: u64) -> String {
    let done = percent(view).filter(|_| view.state == OperationState::Running);
    let done = done.map(|done| format!(", {done} done")).unwrap_or_default();
    let mut text = format!("operation {}: {}{done}: {}", view.id, state(view), view.message);
    text += &format!("\n{} asked for it at {}: {}", view.who, clock(view.since_ms), view.action);
    text += &match view.ended_ms {
        Some(ended_ms) => format!("\nit ended at {}, after {}", clock(ended_ms), took(view, now_ms)),
        None => format!("\nit has been running for {}", took(view, now_ms)),
    };
    if let Some(problem) = &view.problem {
        text += &format!("\ncode: {}\n  → {}", problem.code, problem.remedy);
    }
    if let Some(right) = view.cancel_needs {
        text += &format!("\nto end it midway, run `mainstay operation cancel {}` (right `{right}`)", view.id);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{Problem, ProblemDocument};
    use mainstay_cli::list::Form;
    use mainstay_types::Access;

    const BEGAN_MS: u64 = 1_764_423_000_000;

    fn drain() -> OperationView {
        OperationView {
            id: "0d1c2b3a00000007".into(),
            action: "PUT /v1/nodes/n1/cordon".into(),
            who: "root".into(),
            state: OperationState::Running,
            since_ms: BEGAN_MS,
            ended_ms: None,
            progress_percent: None,
            message: format!("services and primaries leave n1; still there: {}", "a".repeat(32)),
            cancel_needs: Some(Access::Operate),
            problem: None,
        }
    }

    fn failed() -> OperationView {
        let problem = Problem::new(
            Code::NotEligible,
            "the move of service db to n2 was given up",
            "See `mainstay events`.",
        );
        OperationView {
            id: "0d1c2b3a00000008".into(),
            state: OperationState::Failed,
            ended_ms: Some(BEGAN_MS + 61_000),
            progress_percent: Some(100),
            message: problem.message.clone(),
            cancel_needs: None,
            problem: Some(ProblemDocument::new(&problem, None)),
            ..drain()
        }
    }

    #[test]
    fn operations_are_listed_at_80_columns_with_long_names() {
        let list = overview(&[drain(), failed()], BEGAN_MS + 12_000);
        let text = list.text(Form::Table, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.starts_with("ID                STATE    DONE   TIME  WORK"), "{text}");
        assert!(text.contains("0d1c2b3a00000007  running         12 s"), "{text}");
        assert!(text.contains("0d1c2b3a00000008  FAILED   100 %  61 s"), "{text}");
        assert_eq!(list.text(Form::Name, None), "0d1c2b3a00000007\n0d1c2b3a00000008");
        assert!(
            list.text(Form::Csv, None).contains(",root,2025-11-29 13:30:00.000Z,,PUT /v1/nodes/n1/cordon")
        );
        assert!(list.is_even());
        assert!(overview(&[], 0).text(Form::Table, None).contains("knows no operation"));
    }

    #[test]
    fn an_operation_says_since_when_it_runs_how_it_ended_and_what_to_do() {
        let shown = details(&OperationView { progress_percent: Some(42), ..drain() }, BEGAN_MS + 12_000);
        assert!(shown.starts_with("operation 0d1c2b3a00000007: running, 42 % done: services and"), "{shown}");
        assert!(
            shown.contains("root asked for it at 2025-11-29 13:30:00.000Z: PUT /v1/nodes/n1/cordon"),
            "{shown}"
        );
        assert!(shown.contains("it has been running for 12 s"), "{shown}");
        assert!(shown.contains("`mainstay operation cancel 0d1c2b3a00000007`"), "{shown}");
        let shown = details(&failed(), BEGAN_MS + 999_000);
        assert!(shown.contains(": FAILED: the move of service db to n2 was given up"), "{shown}");
        assert!(shown.contains("it ended at 2025-11-29 13:31:01.000Z, after 61 s"), "{shown}");
        assert!(shown.contains("code: not-eligible\n  → See `mainstay events`."), "{shown}");
        assert!(!shown.contains("operation cancel"), "{shown}");
    }

    #[test]
    fn only_an_id_becomes_a_part_of_a_path() {
        assert_eq!(path("0d1c2b3a00000007").unwrap(), "/v1/operations/0d1c2b3a00000007");
        for bad in ["", "0d1c2b3a0000000", "0d1c2b3a000000070", "../../../v1/statu"] {
            let refused = path(bad).unwrap_err();
            assert_eq!(refused.problem.code, Code::UnknownOperation, "{bad}");
        }
    }
}
