//! A whole cluster on one machine: a network, mount, process and host name namespace per node, its
//! own disk that loses unsynced data in a power cut, and a switch whose ports can be cut.
//!
//! What a lab guarantees:
//! - The host's own network namespace gets no address, interface or rule. Mounts exist only inside
//!   nodes.
//! - Everything is named after the lab. The state file is written before the first part is made, so
//!   `lab down` removes all of it, whichever process died when.
//! - A power cut cuts everything. After the link went down no packet leaves, and no write reaches
//!   the disk. When the command returns, no process of the node runs.
//! - A lab that is up belongs to no process. It stays when the command that made it ends.
//!
//! Reading order: `state` (what a lab is), `up`, `node` (start and power cut), `init` (first
//! process of a node), `network`, `disk`, `cgroup`, `exec`, `down`.

mod cgroup;
pub mod cli;
mod disk;
mod down;
mod exec;
pub mod fuse;
pub mod init;
mod logs;
mod network;
mod node;
mod report;
pub mod state;
pub mod sys;
mod tool;
mod up;

use crate::failure::{Code, Failure, Outcome, exit};
use crate::output::Output;
use cli::{LabCommand, LabVerb};
use state::{Lab, base_dir};

/// Name of the lab when none is named.
const NAME_DEFAULT: &str = "lab";

/// `named`: by the option that names a lab to every other verb.
pub fn run(command: LabCommand, named: Option<&str>, output: Output) -> Outcome<u8> {
    let dir = base_dir(command.dir.as_deref());
    let name = match (command.name.as_deref(), named) {
        (Some(name), Some(other)) if name != other => {
            let message =
                format!("two labs are named: `{other}` by --lab, and `{name}` by --name or MAINSTAY_LAB");
            return Err(Failure::new(Code::LabTwice, message, "Name one."));
        }
        (name, named) => name.or(named).unwrap_or(NAME_DEFAULT),
    };
    if let LabVerb::Exec { node, command } = &command.verb {
        let status = require_root().and_then(|()| exec::run(&Lab::load(&dir, name)?, node, command));
        return status.map_err(|failure| failure.with_exit(exit::EXEC));
    }
    require_root()?;
    match command.verb {
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
        LabVerb::Logs(args) => logs::run(&Lab::load(&dir, name)?, &args)?,
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
