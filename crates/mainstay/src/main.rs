//! The one binary of Mainstay: engine, agent, command line and lab.

#[cfg(test)]
mod advised;
mod cli;
mod commands;
mod connect;
mod duration;
mod failure;
mod lab;
mod output;
mod roles;
mod size;

use clap::Parser;
use cli::{Cli, Command};
use failure::Outcome;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output { json: cli.target.json };
    match run(cli, output) {
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
        Command::Lab(command) => lab::run(command, output),
        Command::LabNode(args) => lab::init::run(&args).map(|()| 0),
        Command::LabFuseAbort { connections } => lab::fuse::abort_here(&connections).map(|()| 0),
    }
}
