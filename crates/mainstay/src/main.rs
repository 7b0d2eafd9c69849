//! The one binary of Mainstay: engine, agent, command line and lab.

#[cfg(test)]
mod advised;
mod cli;
mod commands;
mod lab;
mod roles;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use cli::{Cli, Command, SnapshotCommand};
use failure::{Code, Failure, Outcome};
use mainstay_cli::{connect, failure, interrupt, members, output};
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output { json: cli.target.json };
    if output.json {
        output::be_quiet();
    }
    match refuse_idle_target(&cli, &matches).and_then(|()| run(cli, output)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output.failure(&failure);
            ExitCode::from(failure.exit)
        }
    }
}

fn run(cli: Cli, output: Output) -> Outcome<u8> {
    let connect = || connect::client(&cli.target);
    match cli.command {
        Command::Engine(args) => roles::engine(args).map(|()| 0),
        Command::Agent(args) => roles::agent(args).map(|()| 0),
        Command::Silencer(args) => roles::silencer(&args).map(|()| 0),
        Command::LogWriter(args) => roles::log_writer(&args).map(|()| 0),
        Command::Cluster(command) => commands::cluster::run(command, &connect()?, output),
        Command::Node(command) => commands::cluster::node(&command, &connect()?, output),
        Command::Resource(command) => commands::resource::run(command, &connect()?, output),
        Command::Snapshot(command) => commands::snapshot::run(command, &connect()?, output),
        Command::Service(command) => commands::service::run(command, &connect()?, output),
        Command::Events(args) => commands::events::run(&args, &connect()?, output),
        Command::Status => commands::status::run(&connect()?, output),
        Command::Metrics => commands::metrics::run(&connect()?, output),
        Command::Inspect(args) => commands::inspect::run(&args, output),
        Command::Bench(command) => commands::bench::run(command, connect, output),
        Command::Lab(command) => lab::run(command, cli.target.lab.as_deref(), output),
        Command::LabNode(args) => lab::init::run(&args).map(|()| 0),
        Command::LabFuseAbort { connections } => lab::fuse::abort_here(&connections).map(|()| 0),
    }
}

/// Refuses options that name an agent for commands that do not ask one. Otherwise the command would
/// act on another place than the operator means.
fn refuse_idle_target(cli: &Cli, matches: &ArgMatches) -> Outcome<()> {
    let named = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let (socket, lab) = (named("socket"), named("lab"));
    let inside = |verb: &str| {
        let node = cli.target.node.as_deref().unwrap_or("NODE");
        let name = cli.target.lab.as_deref().unwrap_or("NAME");
        format!(
            "To run it inside a node of the lab: `mainstay lab exec {node} --name {name} -- mainstay {verb}`."
        )
    };
    let refuse = |option: &str, why: &str, remedy: String| {
        Err(Failure::new(Code::OptionWithoutEffect, format!("{option} has no effect here: {why}"), remedy))
    };
    match &cli.command {
        Command::Agent(args) if socket => refuse(
            "--socket",
            "an agent makes its socket in its run directory",
            format!(
                "Leave it out: the socket is {}. Another directory: --run-dir.",
                args.paths.run_dir.join("agent.sock").display()
            ),
        ),
        Command::Engine(_) if socket => refuse(
            "--socket",
            "an engine asks no agent",
            "Leave it out. To use another run directory, give --run-dir.".into(),
        ),
        Command::Lab(_) if socket => {
            refuse("--socket", "a lab has an agent in each node", "Name the lab with --name.".into())
        }
        Command::Inspect(_) if socket => {
            refuse("--socket", "it reads files and asks no agent", "Leave it out.".into())
        }
        Command::Agent(_) if lab => refuse("--lab", "an agent runs on this machine", inside("agent")),
        Command::Engine(_) if lab => refuse("--lab", "an engine runs on this machine", inside("engine")),
        Command::Inspect(_) if lab => {
            refuse("--lab", "it reads a directory of this machine", inside("inspect DIRECTORY"))
        }
        Command::Bench(_) if lab => {
            refuse("--lab", "it measures devices and directories of this machine", inside("bench"))
        }
        Command::Snapshot(SnapshotCommand::Clone { name, snapshot, directory }) if lab => refuse(
            "--lab",
            "a clone is made of files of the node on which the command runs",
            inside(&format!("snapshot clone {name} {snapshot} {}", directory.display())),
        ),
        _ if socket && lab => refuse("--socket", "--lab names another agent", "Give one of the two.".into()),
        _ => Ok(()),
    }
}
