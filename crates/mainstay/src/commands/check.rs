//! `mainstay check`: one line and an exit code for Nagios, Icinga and other monitors.
//!
//! Guarantees
//! - Whatever happens, there is one line on standard output, and the exit code is that of the word
//!   in it: OK 0, WARNING 1, CRITICAL 2, UNKNOWN 3.
//! - The command ends within its timeout, also if the agent, its socket or a name server hangs.
//! - An agent that does not run or does not answer is CRITICAL: its node takes part in no failover.
//!   What keeps the check itself from its work, such as a missing right, is UNKNOWN.

mod atomic;
mod judge;

use crate::cli::{CheckArgs, CheckCommand, Cli};
use crate::failure::{Code, Failure, Outcome};
use crate::output::{self, Output};
use clap::CommandFactory;
use judge::{Checked, State};
use mainstay_api::rest::StatusView;
use mainstay_client::Client;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Returns the exit code.
pub fn run(args: &CheckArgs, connect: impl FnOnce() -> Outcome<Client>, output: Output) -> u8 {
    if let Some(CheckCommand::Atomic(args)) = &args.what {
        return atomic::run(args, output);
    }
    output::quiet();
    let limit = Duration::from_millis(args.timeout);
    let is_told = Arc::new(AtomicBool::new(false));
    let told = is_told.clone();
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        if !told.swap(true, Ordering::SeqCst) {
            let late = format!("no answer within {}", mainstay_types::duration::typed(ms_of(limit)));
            std::process::exit(tell(&Checked::of(State::Critical, late), output).into());
        }
    });
    let checked = checked(args, connect).unwrap_or_else(|failure| failed(&failure));
    if is_told.swap(true, Ordering::SeqCst) {
        // The other thread is telling, and ends the process.
        loop {
            std::thread::park();
        }
    }
    tell(&checked, output)
}

fn ms_of(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}

fn checked(args: &CheckArgs, connect: impl FnOnce() -> Outcome<Client>) -> Outcome<Checked> {
    // The age of an answer is part of the verdict.
    let client = connect()?.with_on_stale(|_| ());
    let status: StatusView = client.get("/v1/status")?;
    Ok(match (&args.resource, &args.service) {
        (Some(name), _) => judge::resource(&status, name),
        (None, Some(name)) => judge::service(&status, name),
        (None, None) => judge::cluster(&status),
    })
}

/// The verdict when the check could not be made.
fn failed(failure: &Failure) -> Checked {
    let problem = &failure.problem;
    let state = match problem.code {
        Code::AgentUnreachable | Code::AgentTimeout => State::Critical,
        _ => State::Unknown,
    };
    Checked::of(state, format!("{} [{}]", problem.message, problem.code))
}

/// The exit code when the command cannot even begin.
pub fn refused(failure: &Failure, output: Output) -> u8 {
    tell(&failed(failure), output)
}

/// The verdict on a wrong command line of this command; `None` if it is another command's. Monitors
/// would take the usual exit code of a wrong command line for CRITICAL.
pub fn misused(words: &[OsString], error: &clap::Error) -> Option<ExitCode> {
    let cli = Cli::command();
    let command = words.iter().skip(1).find_map(|word| cli.find_subcommand(word))?;
    if command.get_name() != "check" || !error.use_stderr() {
        return None;
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
    let json = words.iter().any(|word| word == "--json");
    Some(ExitCode::from(tell(&Checked::of(State::Unknown, first), Output::new(json))))
}

/// Prints a verdict. Returns its exit code.
fn tell(checked: &Checked, output: Output) -> u8 {
    match output.json.then(|| serde_json::to_string(checked)) {
        Some(Ok(json)) => output::line(&json),
        _ => output::line(&checked.line()),
    }
    checked.state as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    fn misuse(words: &[&str]) -> Option<ExitCode> {
        let error = Cli::try_parse_from(words).map(|_| ()).expect_err("a wrong command line");
        let words: Vec<OsString> = words.iter().map(Into::into).collect();
        misused(&words, &error)
    }

    #[test]
    fn a_wrong_command_line_of_check_is_unknown_and_that_of_others_is_their_own() {
        assert!(misuse(&["mainstay", "check", "--wrong"]).is_some());
        assert!(misuse(&["mainstay", "--json", "check", "--timeout", "soon"]).is_some());
        assert!(misuse(&["mainstay", "service", "check"]).is_none());
        assert!(misuse(&["mainstay", "check", "--help"]).is_none());
        assert!(misuse(&["mainstay", "check", "atomic"]).is_some());
        assert!(misuse(&["mainstay", "check", "atomic", "/srv", "--page", "5000"]).is_some());
        assert!(misuse(&["mainstay", "check", "--service", "db", "atomic", "/srv"]).is_some());
    }

    #[test]
    fn an_agent_that_does_not_run_is_critical_and_a_right_that_is_missing_unknown() {
        let args = CheckArgs { what: None, resource: None, service: None, timeout: 5_000 };
        let directory = tempfile::tempdir().expect("a directory");
        let client = Client::new(directory.path().join("agent.sock"));
        let found = checked(&args, || Ok(client)).unwrap_or_else(|failure| failed(&failure));
        assert_eq!(found.state, State::Critical);
        assert!(found.line().starts_with("MAINSTAY CRITICAL - no agent answers"), "{}", found.line());
        let found = failed(&Failure::new(Code::AgentForbidden, "no", "Be root."));
        assert_eq!(
            (found.state, found.line()),
            (State::Unknown, "MAINSTAY UNKNOWN - no [agent-forbidden]".into())
        );
    }

    /// The agent takes the connection and says nothing.
    #[test]
    fn a_silent_agent_is_told_within_the_timeout() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("agent.sock");
        let _silent = UnixListener::bind(&socket).expect("a socket");
        let binary = std::env::current_exe().expect("a path");
        // The command ends its process, so it runs in one of its own.
        let begun = Instant::now();
        let run = std::process::Command::new(binary)
            .args(["--exact", "commands::check::tests::checks_the_socket_that_is_named", "--nocapture"])
            .env("MAINSTAY_TEST_CHECK", &socket)
            .output()
            .expect("it runs");
        assert_eq!(run.status.code(), Some(2), "{run:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(said.contains("MAINSTAY CRITICAL - no answer within 300ms"), "{said}");
    }

    /// Does nothing unless the test above runs it.
    #[test]
    fn checks_the_socket_that_is_named() {
        if let Some(socket) = std::env::var_os("MAINSTAY_TEST_CHECK") {
            let args = CheckArgs { what: None, resource: None, service: None, timeout: 300 };
            std::process::exit(run(&args, || Ok(Client::new(&socket)), Output::new(false)).into());
        }
    }
}
