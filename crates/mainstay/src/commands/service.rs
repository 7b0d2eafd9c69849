//! `mainstay service …`.

mod create;
mod edit;
mod import;
mod looks;
mod orders;

use super::{advice_lines, checked_name, follow, watch};
use crate::cli::{ServiceCommand, WaitArgs};
use crate::failure::{Code, Failure, Outcome};
use crate::interrupt::GoesOn;
use crate::output::{Output, Progress, waits_for};
use mainstay_api::rest::{
    Accepted, ServiceApplied, ServiceApply, ServiceEffect, ServiceMove, ServicePhase, ServiceView,
};
use mainstay_cli::list::List;
use mainstay_client::Client;
use mainstay_types::clock::clock;
use std::io::{self, IsTerminal, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::time::Instant;

pub fn run(command: ServiceCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        ServiceCommand::Apply { file, dry_run, force, wait } => {
            apply_text(read(&file)?, (dry_run, force), None, wait, client, output)?
        }
        ServiceCommand::Create(args) => create::create(args, client, output)?,
        ServiceCommand::Import(args) => import::import(args, client, output)?,
        ServiceCommand::Check { file } => return looks::check(&file, client, output),
        ServiceCommand::Show { name } => looks::show(&name, client, output)?,
        ServiceCommand::Edit { name, yes, force, wait } => {
            edit::edit(&name, (yes, force), wait, client, output)?;
        }
        ServiceCommand::Stop { name, force, wait } => {
            orders::want(&name, (false, force), wait, client, output)?;
        }
        ServiceCommand::Start { name, wait } => {
            orders::want(&name, (true, false), wait, client, output)?;
        }
        ServiceCommand::Restart { name, process, wait } => {
            orders::restart(&name, process, wait, client, output)?;
        }
        ServiceCommand::Logs { name, process, on, lines, follow } => {
            let (process, node) = (process.as_deref(), on.as_deref());
            let wish = looks::Wish { name: &name, process, node, lines, follow };
            looks::logs(&wish, client, output)?;
        }
        ServiceCommand::History { name, lines } => looks::history(&name, lines, client, output)?,
        ServiceCommand::List(args) => {
            let ask = || Ok(client.get::<Vec<ServiceView>>("/v1/services")?);
            watch::list(args, output, ask, |list| overview(list))?;
        }
        ServiceCommand::Status { name, watch } => {
            let path = path(&name)?;
            watch::show(watch, output, || Ok(client.get::<ServiceView>(&path)?), details)?;
        }
        ServiceCommand::Move { name, node, to, force, wait } => {
            // The command line wants one of the two.
            let to = node.or(to).unwrap_or_default();
            relocate(&name, (&to, force), wait, client, output)?;
        }
        ServiceCommand::Maintenance { name, set } => {
            super::placement::maintain(&path(&name)?, set, client, output)?;
        }
        ServiceCommand::Delete { name, force, wait } => delete(&name, force, wait, client, output)?,
    }
    Ok(0)
}

fn path(name: &str) -> Outcome<String> {
    Ok(format!("/v1/services/{}", checked_name(name)?))
}

/// Bytes of a service file that are read. A longer file is no service file, and the agent refuses
/// less.
const FILE_BYTES_MAX: u64 = 1 << 20;

fn read(file: &Path) -> Outcome<String> {
    let shown = file.display();
    let refuse = |code: Code, why: String, remedy: &str| {
        Failure::new(code, format!("cannot read the service file {shown}: {why}"), remedy)
    };
    let cannot = |error: io::Error| {
        refuse(Code::ServiceFileUnreadable, error.to_string(), "Name a TOML file, or `-` for standard input.")
    };
    let is_input = file == Path::new("-");
    let input: Box<dyn Read> = if is_input {
        if io::stdin().is_terminal() {
            waits_for("for a service file on standard input; end it with Ctrl-D");
        }
        Box::new(io::stdin())
    } else {
        let kind = std::fs::metadata(file).map_err(cannot)?.file_type();
        if kind.is_dir() {
            return Err(cannot(io::ErrorKind::IsADirectory.into()));
        }
        if kind.is_fifo() {
            waits_for(&format!("for a program to write to the pipe {shown}"));
        }
        Box::new(std::fs::File::open(file).map_err(cannot)?)
    };
    let mut bytes = Vec::new();
    input.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let why = format!("it has more than {FILE_BYTES_MAX} bytes");
        return Err(refuse(
            Code::ServiceFileTooLarge,
            why,
            "Check that it is a service file: docs/services.md shows one.",
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let why = format!("it is no text in UTF-8, from byte {at} on");
        refuse(Code::ServiceFileUnreadable, why, "Save the file as plain text in UTF-8.")
    })
}

/// Applies the text of a service file. `edition`: the one that it was made from, if it was.
fn apply_text(
    toml: String,
    (dry_run, force): (bool, bool),
    edition: Option<u64>,
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let applied: ServiceApplied =
        client.put("/v1/services", &ServiceApply { toml, dry_run, force, edition })?;
    if dry_run {
        return output.result(&applied, would);
    }
    await_applied(applied, wait, client, output)
}

/// Waits until a service that was applied runs, and says how it is.
fn await_applied(
    mut applied: ServiceApplied,
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    output.note(&did(&applied));
    let unchanged = applied.effect == ServiceEffect::Unchanged && runs(&applied.service);
    // A service that an operator has stopped does not run because its file is another one.
    if !wait.no_wait && !unchanged && applied.service.stopped_ms.is_none() {
        let name = applied.service.name.clone();
        let _told = GoesOn::work(
            &format!("starting service {name}"),
            &format!("mainstay service status {name}"),
            &format!("mainstay service delete {name}"),
        );
        applied.service = await_service(&name, "run", wait, client, runs, |_| None)?;
    }
    output.result(&applied, |applied| {
        let unchanged = if unchanged { "unchanged\n" } else { "" };
        format!("{unchanged}{}", details(&applied.service))
    })
}

/// Follows a service until it is as wanted. If the service is given up, or when the time is over,
/// says why it does not run.
fn await_service(
    name: &str,
    goal: &str,
    wait: WaitArgs,
    client: &Client,
    wanted: impl Fn(&ServiceView) -> bool,
    given_up: impl Fn(&ServiceView) -> Option<Failure>,
) -> Outcome<ServiceView> {
    let path = path(name)?;
    let mut progress = Progress::new();
    let mut last = None;
    let result = follow(&format!("service {name}"), wait.wait_s, || {
        let now: ServiceView = client.get(&path)?;
        progress.show(&summary(&now));
        // A service that runs and waits for one of its addresses has advice, and is no failure.
        if let Some(reason) = now.advice.first().filter(|_| now.phase != ServicePhase::Running) {
            let remedy = format!("Mend the cause, then run `mainstay service start {name}`.");
            let message = format!("service {name} {reason}{}", failure_lines(&now));
            return Err(Failure::new(Code::ServiceFailed, message, remedy));
        }
        if let Some(failure) = given_up(&now) {
            return Err(failure);
        }
        // A process without a readiness test counts as ready at once, and may end in the next
        // moment.
        let same = last.as_ref().is_some_and(|last: &ServiceView| {
            wanted(last) && last.phase_node == now.phase_node && last.failures == now.failures
        });
        last = Some(now.clone());
        Ok((same && wanted(&now)).then_some(now))
    });
    drop(progress);
    result.map_err(|failure| match last {
        Some(now) if failure.problem.code == Code::WaitOver => not_running(&now, goal, wait.wait_s),
        _ => failure,
    })
}

fn runs(service: &ServiceView) -> bool {
    service.current && service.phase == ServicePhase::Running && service.node == service.phase_node
}

/// The time is over, and this is how far the service is.
fn not_running(service: &ServiceView, goal: &str, limit_s: u64) -> Failure {
    let message = format!(
        "service {} does not {goal} after {limit_s} s: it is {} on {}{}{}{}",
        service.name,
        service.phase,
        place(service),
        doing(service),
        advice_lines(&service.hindrances),
        failure_lines(service)
    );
    let remedy = match service.failures.first() {
        None if !service.hindrances.is_empty() => {
            "Do what is said above. The rest goes on by itself.".to_owned()
        }
        Some(failure) => format!(
            "Mend the cause on {0}; `mainstay service logs {1} --on {0}` shows what its processes wrote. The start goes on by itself; `mainstay service start {1}` clears the failures.",
            failure.node, service.name
        ),
        None => format!(
            "It goes on by itself. If it hangs, `mainstay service logs {}` shows what its processes write.",
            service.name
        ),
    };
    Failure::new(Code::ServiceNotRunning, message, remedy)
}

fn doing(service: &ServiceView) -> String {
    if service.doing.is_empty() { String::new() } else { format!(" ({})", service.doing) }
}

fn failure_lines(service: &ServiceView) -> String {
    let lines = service.failures.iter().map(|failure| {
        let count = match failure.count {
            1 => "1 failure".to_owned(),
            count => format!("{count} failures"),
        };
        let at = failure.at_ms.map_or_else(String::new, |at_ms| format!(" at {}", clock(at_ms)));
        let last = match (&failure.reason[..], &at[..]) {
            ("", "") => String::new(),
            ("", at) => format!(", the last{at}"),
            (reason, at) => format!(", the last{at}: {reason}"),
        };
        format!("\n{count} on {}{last}", failure.node)
    });
    lines.collect()
}

/// Describes the result of a dry run.
fn would(applied: &ServiceApplied) -> String {
    let name = &applied.service.name;
    let head = match applied.effect {
        ServiceEffect::Created => format!("service {name} would be made"),
        ServiceEffect::Unchanged => format!("service {name} would stay as it is"),
        ServiceEffect::FailuresCleared => {
            format!("service {name} would stay as it is, and its failures would be cleared")
        }
        ServiceEffect::ChangedInPlace => format!("service {name} would be changed, and go on"),
        ServiceEffect::Restarted if applied.service.stopped_ms.is_some() => {
            format!("service {name} would be changed, and stay stopped")
        }
        ServiceEffect::Restarted => {
            format!("service {name} would be changed and RESTARTED on {}", place(&applied.service))
        }
    };
    let places = super::placement::lines(&applied.places);
    format!("{head}{}{places}\nnothing was changed (--dry-run)", change_lines(applied))
}

/// Describes the change that was recorded.
fn did(applied: &ServiceApplied) -> String {
    let name = &applied.service.name;
    let head = match applied.effect {
        ServiceEffect::Created => format!("service {name} is made"),
        ServiceEffect::Unchanged => String::new(),
        ServiceEffect::FailuresCleared => {
            format!("service {name} stays as it is, and its failures are cleared")
        }
        ServiceEffect::ChangedInPlace => format!("service {name} is changed, and goes on"),
        ServiceEffect::Restarted if applied.service.stopped_ms.is_some() => {
            format!("service {name} is changed, and stays stopped")
        }
        ServiceEffect::Restarted => {
            format!("service {name} is changed, and is started again on {}", place(&applied.service))
        }
    };
    format!("{head}{}", change_lines(applied)).trim().to_owned()
}

fn change_lines(applied: &ServiceApplied) -> String {
    let changes = applied.changes.iter().map(|change| {
        let how = if change.restarts { "restarts" } else { "in place" };
        format!("\n  {}: {} → {} ({how})", change.field, change.from, change.to)
    });
    let warnings = applied.warnings.iter().map(|warning| format!("\nwarning: {warning}"));
    changes.chain(warnings).collect()
}

fn relocate(
    name: &str,
    (to, force): (&str, bool),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let path = path(name)?;
    let there = |now: &ServiceView| now.failures.iter().find(|failure| failure.node == to).cloned();
    let before = client.get(&path).ok().and_then(|before: ServiceView| there(&before));
    let mut accepted: Accepted =
        client.post(&format!("{path}/move"), &ServiceMove { to: checked_name(to)?.to_owned(), force })?;
    if !wait.no_wait {
        let look = format!("mainstay service status {name}");
        let _told = GoesOn::work(&format!("moving service {name} to {to}"), &look, "");
        let runs_on =
            |now: &ServiceView| now.phase_node.clone().filter(|_| now.phase == ServicePhase::Running);
        // A service that an operator has stopped arrives with its resource.
        let arrived = |now: &ServiceView| {
            runs_on(now).as_deref() == Some(to) || now.stopped_ms.is_some() && now.node.as_deref() == Some(to)
        };
        let given_up = |now: &ServiceView| {
            let node = runs_on(now).filter(|node| node != to)?;
            let failure = there(now).filter(|failure| before.as_ref() != Some(failure))?;
            let message =
                format!("service {name} could not start on {to}, and runs on {node}: {}", failure.reason);
            let remedy = format!("Mend the cause on {to} and move the service again.");
            Some(Failure::new(Code::ServiceFailed, message, remedy))
        };
        // The pause as a client sees it: from the first answer that it runs nowhere to the first
        // one that it runs there.
        let pause: std::cell::Cell<Option<Instant>> = std::cell::Cell::new(None);
        let lasted = std::cell::Cell::new(None);
        let timed = |now: &ServiceView| {
            match runs_on(now) {
                None => pause.set(pause.get().or(Some(Instant::now()))),
                Some(node) if node == to => {
                    lasted.set(lasted.get().or(pause.get().map(|since| since.elapsed())));
                }
                Some(_) => {}
            }
            arrived(now)
        };
        let now = await_service(name, &format!("run on {to}"), wait, client, timed, given_up)?;
        let waits =
            accepted.message.split_once("; ").map(|(_, waits)| format!("; {waits}")).unwrap_or_default();
        let lasted =
            lasted.get().map(|pause| format!(", after a pause of about {:.1} s", pause.as_secs_f64()));
        accepted.message = match now.stopped_ms {
            None => format!("service {name} runs on {to}{}{waits}", lasted.unwrap_or_default()),
            Some(_) => format!("the resource of service {name} is on {to}; the service stays stopped"),
        };
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn delete(name: &str, force: bool, wait: WaitArgs, client: &Client, output: Output) -> Outcome<()> {
    let query = if force { "?force=true" } else { "" };
    let mut accepted: Accepted = client.delete(&format!("{}{query}", path(name)?))?;
    if !wait.no_wait {
        let _told = GoesOn::work(&format!("deleting service {name}"), "mainstay service list", "");
        let mut progress = Progress::new();
        follow(&format!("deleting service {name}"), wait.wait_s, || {
            let list: Vec<ServiceView> = client.get("/v1/services")?;
            let left = list.iter().find(|service| service.name == name);
            if let Some(left) = left {
                progress.show(&summary(left));
            }
            Ok(left.is_none().then_some(()))
        })?;
        accepted.message = format!("service {name} is stopped and deleted");
    }
    output.result(&accepted, |accepted| accepted.message.clone())
}

fn place(service: &ServiceView) -> &str {
    service.phase_node.as_deref().or(service.node.as_deref()).unwrap_or("no node")
}

/// One line about a service.
pub fn summary(service: &ServiceView) -> String {
    let vip = service.vip.as_deref().map_or(String::new(), |vip| format!(", address {vip}"));
    let deleting = if service.deleting { ", being deleted" } else { "" };
    let stopped = service
        .stopped_ms
        .map_or_else(String::new, |at_ms| format!(", stopped by an operator since {}", clock(at_ms)));
    let restarting = if service.restarting { ", being restarted by an operator" } else { "" };
    let hindered = if service.phase == ServicePhase::Running && !service.hindrances.is_empty() {
        ", but is hindered"
    } else {
        ""
    };
    let rests = service.maintenance.as_ref().map(super::placement::resting).unwrap_or_default();
    let (name, phase, place) = (&service.name, service.phase, place(service));
    format!("service {name}: {phase} on {place}{hindered}{stopped}{restarting}{rests}{vip}{deleting}")
}

pub(super) fn overview(list: &[ServiceView]) -> List {
    let row = |service: &ServiceView| {
        let vip = service.vip.clone().unwrap_or_default();
        let phase = match service.stopped_ms {
            Some(_) if service.phase.is_silent() => "stopped by an operator".to_owned(),
            _ => service.phase.to_string(),
        };
        let failures =
            service.failures.iter().map(|failure| format!("{} on {}", failure.count, failure.node));
        let rests = if service.maintenance.is_some() { "yes" } else { "no" };
        vec![
            service.name.clone(),
            phase,
            place(service).into(),
            vip,
            service.resource.clone(),
            service.doing.clone(),
            failures.collect::<Vec<_>>().join(" "),
            rests.to_owned(),
        ]
    };
    List::new(
        &["SERVICE", "PHASE", "NODE", "ADDRESS", "RESOURCE"],
        &["NOW", "FAILURES", "MAINTENANCE"],
        list.iter().map(row),
    )
}

fn details(service: &ServiceView) -> String {
    let mut text = format!("{}, on resource {}", summary(service), service.resource);
    if !service.doing.is_empty() {
        text += &format!("\nnow: {}", service.doing);
    }
    text += &failure_lines(service);
    text + &advice_lines(&service.advice) + &advice_lines(&service.hindrances)
}
