//! A whole cluster on one machine: a network, mount, process and host name namespace per node, its
//! own disk that loses unsynced data in a power cut, and a switch whose ports can be cut.
//!
//! Guarantees of a lab:
//! - The host's own network namespace gets no address, interface or rule. Mounts exist only inside
//!   nodes.
//! - Everything is named after the lab. The state file is written before the first part is made, so
//!   `lab down` removes all of it, whichever process died when.
//! - A power cut cuts everything. After the link went down no packet leaves, and no write reaches
//!   the disk. When the command returns, no process of the node runs.
//! - A lab that is up belongs to no process. It stays when the command that made it ends.
//!
//! Reading order: `state` (what a lab is), `up`, `node` (start and power cut), `init` (first
//! process of a node), `machine` (nodes under systemd), `network`, `disk`, `cgroup`, `exec`,
//! `forward`, `down`; `program` finds what is started. `bench` is no part of the lab: it measures storage of
//! any kind.

mod bench;
mod cgroup;
pub mod cli;
mod disk;
mod down;
mod exec;
mod forward;
mod fuse;
mod init;
mod logs;
mod machine;
mod network;
mod node;
mod program;
mod report;
mod state;
mod sys;
mod tool;
mod up;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use cli::{Cli, Command, LabArgs, LabVerb};
use failure::{Code, Failure, Outcome, exit};
use mainstay_cli::connect::{client, idle};
use mainstay_cli::{failure, members, output};
use output::Output;
use state::{Lab, base_dir};
use std::process::ExitCode;

/// Name of the lab when none is named.
const NAME_DEFAULT: &str = "lab";

/// The program: parses the command line and carries it out.
pub fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let output = Output::new(cli.target.json);
    output.end(refuse_idle_options(&cli, &matches).and_then(|()| run(cli, output)))
}

fn run(cli: Cli, output: Output) -> Outcome<u8> {
    match cli.command {
        Command::Lab(verb) => lab(verb, &cli.lab, cli.target.lab.as_deref(), output),
        Command::Bench(command) => bench::run(command, || client(&cli.target), output),
        Command::Node(args) => init::run(&args).map(|()| 0),
        Command::FuseAbort { connections } => fuse::abort_here(&connections).map(|()| 0),
    }
}

fn refuse_idle_options(cli: &Cli, matches: &ArgMatches) -> Outcome<()> {
    const NEEDS_NO_LAB: &str = "it measures devices and directories of this machine";
    let named = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    Err(match &cli.command {
        Command::Lab(_) if named("socket") => {
            idle("--socket", "a lab has an agent in each node", "Name the lab with --name.")
        }
        Command::Lab(_) if named("server") => {
            idle("--server", "a lab has an agent in each node", "Name the lab with --name.")
        }
        Command::Bench(_) if named("lab") => idle("--lab", NEEDS_NO_LAB, cli.target.inside("bench")),
        Command::Bench(_) if named("name") => idle("--name", NEEDS_NO_LAB, "Leave it out."),
        Command::Bench(_) if named("dir") => idle("--dir", NEEDS_NO_LAB, "Leave it out."),
        _ => return Ok(()),
    })
}

/// `named`: by the option that names a lab to every other verb.
fn lab(verb: LabVerb, args: &LabArgs, named: Option<&str>, output: Output) -> Outcome<u8> {
    let dir = base_dir(args.dir.as_deref());
    let name = match (args.name.as_deref(), named) {
        (Some(name), Some(other)) if name != other => {
            let message =
                format!("two labs are named: `{other}` by --lab, and `{name}` by --name or MAINSTAY_LAB");
            return Err(Failure::new(Code::LabTwice, message, "Name one."));
        }
        (name, named) => name.or(named).unwrap_or(NAME_DEFAULT),
    };
    if let LabVerb::Exec { node, command } = &verb {
        let status = require_root().and_then(|()| exec::run(&Lab::load(&dir, name)?, node, command));
        return status.map_err(|failure| failure.with_exit(exit::EXEC));
    }
    require_root()?;
    match verb {
        LabVerb::Up(args) => up::run(&dir, name, &args, output)?,
        LabVerb::Down => {
            down::run(&dir, name)?;
            said(output, format!("lab `{name}` is gone"))?;
        }
        LabVerb::Kill { node } => changed(&dir, name, output, |lab| {
            node::power_cut(lab, &node)?;
            Ok(format!("{node} has lost its power; `mainstay lab start {node} --name {name}` returns it"))
        })?,
        LabVerb::Start { node } => changed(&dir, name, output, |lab| {
            node::start(lab, &node)?;
            if lab.systemd {
                machine::wait_booted(lab, &node)?;
            }
            if !lab.plain {
                up::wait_for_agent(lab, &node)?;
            }
            Ok(format!("{node} runs again"))
        })?,
        LabVerb::Pause { node } => changed(&dir, name, output, |lab| {
            node::freeze(lab, &node, true)?;
            Ok(format!("{node} stands still; `mainstay lab resume {node} --name {name}` lets it go on"))
        })?,
        LabVerb::Resume { node } => changed(&dir, name, output, |lab| {
            node::freeze(lab, &node, false)?;
            Ok(format!("{node} goes on"))
        })?,
        LabVerb::Cut { one, other } => changed(&dir, name, output, |lab| {
            lab.port(&one)?;
            lab.port(&other)?;
            if one == other {
                return Err(Failure::new(
                    Code::LabCut,
                    "a port cannot be cut from itself",
                    "Name two nodes.",
                ));
            }
            lab.cuts.insert((one.clone(), other.clone()));
            network::apply_cuts(lab)?;
            Ok(format!("nothing passes between {one} and {other}; `mainstay lab heal --name {name}` ends it"))
        })?,
        LabVerb::Isolate { node } => changed(&dir, name, output, |lab| {
            lab.port(&node)?;
            lab.isolated.insert(node.clone());
            network::apply_cuts(lab)?;
            Ok(format!("{node} is cut off from everything; `mainstay lab heal --name {name}` ends it"))
        })?,
        LabVerb::Heal => changed(&dir, name, output, |lab| {
            lab.cuts.clear();
            lab.isolated.clear();
            network::apply_cuts(lab)?;
            Ok("all links are whole".into())
        })?,
        LabVerb::Status => report::run(&Lab::load(&dir, name)?, output)?,
        LabVerb::Logs(args) => {
            let lab = Lab::load(&dir, name)?;
            if lab.systemd {
                let journal = machine::journal(args.lines, args.program.as_deref(), args.follow);
                return exec::run(&lab, &lab.node(&args.node)?.name, &journal);
            }
            logs::run(&lab, &args)?;
        }
        LabVerb::Forward { to, listen } => forward::run(&Lab::load(&dir, name)?, to, listen)?,
        LabVerb::Exec { .. } => unreachable!("handled above, because its exit code is the command's"),
    }
    Ok(0)
}

/// Runs one change of a lab under its lock and saves what is known afterwards, also when it failed.
fn changed(
    dir: &std::path::Path,
    name: &str,
    output: Output,
    change: impl FnOnce(&mut Lab) -> Outcome<String>,
) -> Outcome<()> {
    let _lock = state::Lock::take(dir, name)?;
    let mut lab = Lab::load(dir, name)?;
    let result = change(&mut lab);
    lab.save()?;
    said(output, result?)
}

/// Result of a verb, for people or for scripts.
#[derive(serde::Serialize)]
struct Done {
    message: String,
}

fn said(output: Output, message: String) -> Outcome<()> {
    output.result(&Done { message }, |done| done.message.clone())
}

fn require_root() -> Outcome<()> {
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    Err(Failure::new(
        Code::LabNeedsRoot,
        "a lab makes namespaces, mounts and loop devices, and only root may do that",
        "Run the command as root, for example with sudo.",
    ))
}
