//! Runs a command inside a node, or in the client's network.

use super::state::{CLIENT, Lab};
use super::{cgroup, machine, sys};
use crate::failure::{Code, Context, Failure, Outcome};
use nix::sched::{CloneFlags, setns};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::Command;

/// Returns the command's exit code; 128 and the number of the signal if one ended it.
pub fn run(lab: &Lab, node: &str, command: &[String]) -> Outcome<u8> {
    let (program, args) = command
        .split_first()
        .ok_or_else(|| Failure::new(Code::LabExec, "no command is given", "Write it after `--`."))?;
    let mut command = Command::new(program);
    let path = if lab.systemd && node != CLIENT { machine::SEARCH_PATH.into() } else { search_path()? };
    command.args(args).env("PATH", path);
    if node == CLIENT { in_client_network(lab, &mut command) } else { in_node(lab, node, &mut command) }
}

/// The client is a network only: the command replaces this process.
fn in_client_network(lab: &Lab, command: &mut Command) -> Outcome<u8> {
    cgroup::enter(lab, CLIENT)?;
    let path = Path::new("/run/netns").join(lab.netns(CLIENT));
    let network = File::open(&path).or_fail(Code::LabExec, || format!("open {}", path.display()))?;
    setns(network, CloneFlags::CLONE_NEWNET)
        .or_fail(Code::LabExec, || "enter the client's network".into())?;
    let error = command.exec();
    Err(not_started(command, &error))
}

fn in_node(lab: &Lab, name: &str, command: &mut Command) -> Outcome<u8> {
    let pid = lab.running(lab.node(name)?)?;
    lab.awake(name)?;
    let mut kinds = vec![
        ("uts", CloneFlags::CLONE_NEWUTS),
        ("net", CloneFlags::CLONE_NEWNET),
        ("pid", CloneFlags::CLONE_NEWPID),
        ("mnt", CloneFlags::CLONE_NEWNS),
    ];
    if lab.systemd {
        kinds.extend([("ipc", CloneFlags::CLONE_NEWIPC), ("cgroup", CloneFlags::CLONE_NEWCGROUP)]);
    }
    // All are opened before the first is entered: the paths mean something else afterwards.
    let mut namespaces = Vec::new();
    for (kind, flag) in kinds {
        let path = format!("/proc/{pid}/ns/{kind}");
        namespaces.push((File::open(&path).or_fail(Code::LabExec, || format!("open {path}"))?, flag));
    }
    let here = std::env::current_dir();
    // The command belongs to the node and dies with it; this process outlives it to tell how it
    // ended.
    let own_group = cgroup::own()?;
    cgroup::enter(lab, name)?;
    for (namespace, flag) in namespaces {
        setns(namespace, flag).or_fail(Code::LabExec, || format!("enter the namespaces of {name}"))?;
    }
    let stayed = here.and_then(std::env::set_current_dir);
    if stayed.is_err() {
        std::env::set_current_dir("/").or_fail(Code::LabExec, || "change the directory".into())?;
    }
    // The terminal sends Ctrl-C to the command as well; its answer is awaited.
    sys::note_interrupts();
    sys::die_with_parent(command);
    let child = command.spawn();
    cgroup::leave_to(&own_group)?;
    let status = child.and_then(|mut child| child.wait());
    let status = status.map_err(|error| not_started(command, &error))?;
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(u8::try_from(code).unwrap_or(1))
}

fn not_started(command: &Command, error: &std::io::Error) -> Failure {
    let program = command.get_program().display();
    let remedy = "A node has the programs of this machine: install it here, or correct the name.";
    Failure::new(Code::LabExec, format!("cannot run `{program}`: {error}"), remedy)
}

/// `mainstay`, which lies beside this program, is found inside a node, wherever it was built.
fn search_path() -> Outcome<OsString> {
    let exe = std::env::current_exe().or_fail(Code::LabExec, || "find this program".into())?;
    let own = exe.parent().map(Path::to_path_buf);
    let given = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    let all = std::env::split_paths(&given).chain(own);
    std::env::join_paths(all).or_fail(Code::LabExec, || "make a search path".into())
}
