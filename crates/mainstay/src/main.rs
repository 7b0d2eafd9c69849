//! The program that servers run: engine, agent and command line.

#[cfg(test)]
mod advised;
mod cli;
#[cfg(test)]
mod command_page;
mod commands;
mod config;
mod doctor;
mod front;
mod generate;
mod moment;
#[cfg(test)]
mod reference_page;
mod roles;
mod router;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use cli::{CheckArgs, Cli, ClusterCommand, Command, NodeCommand, SnapshotCommand};
use config::Started;
use connect::idle;
use failure::Outcome;
use front::Front;
use list::Form;
use mainstay_cli::{connect, failure, interrupt, list, output, pasted};
use output::Output;
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(front) = Front::of_help(std::env::args_os().skip(1)) {
        return Output::new(false).end(Err(front.become_program()));
    }
    if let Some(words) = commands::probe::of_help(std::env::args_os().skip(1)) {
        return ExitCode::from(commands::probe::run(&words, Output::new(false)));
    }
    let words: Vec<OsString> = std::env::args_os().collect();
    let first = Cli::command().try_get_matches_from(&words);
    if let Err(error) = &first
        && let Some(code) = commands::check::misused(&words, error)
    {
        return code;
    }
    let (matches, started) = match config::complete(&words, first) {
        Ok(completed) => completed,
        Err(failure) => return Output::new(false).end(Err(failure)),
    };
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    pasted::asks(&cli.target);
    let named = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    // The command line wins over the environment.
    if named("socket") && !named("server") {
        cli.target.server = None;
    }
    let form = list::named_form(&matches);
    let is_json = cli.target.json || form == Some(Form::Json);
    let output = Output::new(is_json).in_form(form.unwrap_or_default());
    if let Some(front) = Front::of(&cli, &matches) {
        return output.end(Err(front.become_program()));
    }
    let refused = refuse_idle_target(&cli, &matches).and_then(|()| refuse_two_forms(&cli, form));
    if let (Command::Check(_), Err(failure)) = (&cli.command, &refused) {
        return ExitCode::from(commands::check::refused(failure, output));
    }
    output.end(refused.and_then(|()| run(cli, started, output)))
}

fn run(cli: Cli, started: Option<Started>, output: Output) -> Outcome<u8> {
    let connect = || connect::client(&cli.target);
    match cli.command {
        Command::Engine(args) => roles::engine(args, started).map(|()| 0),
        Command::Agent(args) => roles::agent(args, started).map(|()| 0),
        Command::Router(args) => roles::router(args).map(|()| 0),
        Command::Silencer(args) => roles::silencer(&args).map(|()| 0),
        Command::MayStart(args) => Ok(roles::may_start(&args)),
        Command::LogWriter(args) => roles::log_writer(&args).map(|()| 0),
        Command::Cluster(ClusterCommand::Recover { state, dead }) => {
            commands::nodes::recover(&state, &dead, output)
        }
        Command::Cluster(ClusterCommand::Restore { file, node, state }) => {
            commands::nodes::restore(&file, &node, &state, output)
        }
        Command::Cluster(command) => commands::cluster::run(command, &connect()?, output),
        Command::Node(command) => commands::cluster::node(&command, &connect()?, output),
        Command::Resource(command) => commands::resource::run(command, &connect()?, output),
        Command::Snapshot(command) => commands::snapshot::run(command, &connect()?, output),
        Command::Service(command) => commands::service::run(command, &connect()?, output),
        Command::Operation(command) => commands::operation::run(command, &connect()?, output),
        Command::Events(args) => commands::events::run(&args, &connect()?, output),
        Command::Explain(args) => commands::placement::explain(&args, &connect()?, output),
        Command::Audit(args) => commands::audit::run(&args, &connect()?, output),
        Command::Token(command) => commands::token::run(command, &connect()?, output),
        Command::History(args) => commands::history::run(&args, &connect()?, output),
        Command::Report(args) => commands::report::run(&args, &connect()?, output),
        Command::Status(args) => commands::status::run(args, &connect()?, output),
        Command::Top(args) => commands::top::run(&args, &connect()?, output),
        Command::Check(args) => Ok(commands::check::run(&args, connect, output)),
        Command::SupportBundle(args) => commands::support::run(&args, &cli.target, output),
        Command::Metrics => commands::metrics::run(&connect()?, output),
        Command::Inspect(args) => commands::inspect::run(&args, output),
        Command::Config(command) => config::run(command, output),
        Command::Doctor(args) => doctor::run(args, output),
        Command::Generate(command) => generate::run(&command).map(|()| 0),
        Command::Probe(args) => Ok(commands::probe::run(&args.words, output)),
        Command::Bench(_) | Command::Lab(_) => unreachable!("a front has become another program"),
    }
}

/// Refuses two options that name different forms of an answer.
fn refuse_two_forms(cli: &Cli, form: Option<Form>) -> Outcome<()> {
    match form {
        Some(form) if cli.target.json && form != Form::Json => {
            Err(idle("--json", "-o names another form", "Give one of the two."))
        }
        _ => Ok(()),
    }
}

/// Refuses options that name an agent for commands that do not ask one.
fn refuse_idle_target(cli: &Cli, matches: &ArgMatches) -> Outcome<()> {
    let named = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let (socket, lab, server) = (named("socket"), named("lab"), named("server"));
    let elsewhere = cli.target.server.is_some() && !lab;
    let inside = |verb: &str| cli.target.inside(verb);
    Err(match &cli.command {
        Command::Agent(args) if socket => idle(
            "--socket",
            "an agent makes its socket in its run directory",
            format!(
                "Leave it out: the socket is {}. Another directory: --run-dir.",
                args.paths.run_dir.join("agent.sock").display()
            ),
        ),
        Command::Engine(_) if socket => idle(
            "--socket",
            "an engine asks no agent",
            "Leave it out. To use another run directory, give --run-dir.",
        ),
        Command::Router(_) if socket => {
            idle("--socket", "a router asks the agents that --agent names", "Give --agent the path.")
        }
        Command::Inspect(_) if socket => {
            idle("--socket", "it reads files and asks no agent", "Leave it out.")
        }
        Command::Doctor(_) if socket => {
            idle("--socket", "it looks at this machine and asks no agent", "Leave it out.")
        }
        Command::Doctor(_) if lab => idle("--lab", "it looks at this machine", inside("doctor")),
        Command::Check(CheckArgs { what: Some(_), .. }) if socket => {
            idle("--socket", "it looks at files of this machine and asks no agent", "Leave it out.")
        }
        Command::Check(CheckArgs { what: Some(_), .. }) if lab => {
            idle("--lab", "it looks at files of this machine", inside("check atomic PATH"))
        }
        Command::Config(_) if socket => {
            idle("--socket", "it reads a file and asks no agent", "Leave it out.")
        }
        Command::Probe(_) if socket => idle(
            "--socket",
            "a probe asks no agent",
            "Name the server's socket after the kind, for example `mainstay probe mariadb --socket /run/mysqld/mysqld.sock`.",
        ),
        Command::Probe(_) if lab => idle("--lab", "a probe is made from this machine", inside("probe KIND")),
        Command::Agent(_) if lab => idle("--lab", "an agent runs on this machine", inside("agent")),
        Command::Engine(_) if lab => idle("--lab", "an engine runs on this machine", inside("engine")),
        Command::Router(_) if lab => idle("--lab", "a router runs on this machine", inside("router")),
        Command::Config(_) if lab => idle("--lab", "it reads a file of this machine", inside("config check")),
        Command::Inspect(_) if lab => {
            idle("--lab", "it reads a directory of this machine", inside("inspect DIRECTORY"))
        }
        Command::Snapshot(SnapshotCommand::Clone { name, snapshot, directory }) if lab => idle(
            "--lab",
            "a clone is made of files of the node on which the command runs",
            inside(&format!("snapshot clone {name} {snapshot} {}", directory.display())),
        ),
        Command::Agent(_)
        | Command::Engine(_)
        | Command::Router(_)
        | Command::Inspect(_)
        | Command::Doctor(_)
        | Command::Check(CheckArgs { what: Some(_), .. })
        | Command::Config(_)
        | Command::Probe(_)
        | Command::Cluster(ClusterCommand::Recover { .. } | ClusterCommand::Restore { .. })
            if server =>
        {
            idle("--server", "the command asks no agent", "Leave it out.")
        }
        Command::Snapshot(SnapshotCommand::Clone { .. })
        | Command::Node(NodeCommand::Upgrade { .. })
        | Command::Cluster(ClusterCommand::Init { .. } | ClusterCommand::Join { .. })
            if elsewhere =>
        {
            idle(
                "--server",
                "the command is about the machine on which it runs",
                "Run it on the node itself, without --server and MAINSTAY_SERVER.",
            )
        }
        _ if server && (socket || lab) => {
            idle("--server", "another option names another agent", "Give one of the two.")
        }
        _ if socket && lab => idle("--socket", "--lab names another agent", "Give one of the two."),
        _ => return Ok(()),
    })
}
