//! The thread that runs the operator's fence command for nodes that are to be switched off
//! ([`mainstay_control::fencing`], R19).
//!
//! Guarantees
//! - Only the node that leads the control plane runs it, once at a time for each node that is to be
//!   switched off. A leader that is replaced meanwhile may leave a command running while the next
//!   leader runs another one, so the command must be repeatable.
//! - A command that does not end within [`TIME_LIMIT`] is killed with its process group, and counts
//!   as failed. So does one that cannot be started.

use crate::raft::{ConsensusLog, RaftHandle, View};
use crate::threads::{lock, spawn};
use mainstay_control::State;
use mainstay_control::fencing::{FENCE_AGAIN_MS, Fence};
use mainstay_control::state::Command as Proposal;
use mainstay_types::NodeId;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest time that the command may take.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two looks at what is owed, while anything is.
const PAUSE: Duration = Duration::from_millis(250);
/// Number of bytes of the command's output that are looked at, the last ones.
const OUTPUT_MAX: u64 = 4096;

/// Ends the thread when dropped.
pub struct Fencer {
    ends: Arc<AtomicBool>,
    wake: SyncSender<()>,
}

impl Drop for Fencer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.wake.try_send(());
    }
}

/// Whether the command can be run; why not, in words.
///
/// # Errors
/// When there is no such program.
pub fn check(program: &Path) -> Result<(), String> {
    if !program.is_absolute() {
        return Err(format!("{} is not a path from the root", program.display()));
    }
    let found = std::fs::metadata(program).map_err(|error| format!("{}: {error}", program.display()))?;
    if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
        return Err(format!("{} is not a program", program.display()));
    }
    Ok(())
}

/// Last attempt for each node: its generation, when it began, and whether it has ended.
type Tried = BTreeMap<NodeId, (u64, Instant, Arc<AtomicBool>)>;

/// Starts the thread.
#[must_use]
pub fn start(node: NodeId, log: RaftHandle, program: Option<PathBuf>) -> Fencer {
    let ends = Arc::new(AtomicBool::new(false));
    let ended = ends.clone();
    // A view comes with every change of the state and of the leader.
    let (wake, woken) = sync_channel(1);
    let news = wake.clone();
    log.subscribe(Box::new(move |_: &View| {
        let _ = news.try_send(());
    }));
    spawn("agent-fencer", move || {
        let mut tried = Tried::new();
        while woken.recv().is_ok() && !ended.load(Ordering::Relaxed) {
            loop {
                let view = log.view();
                if !view.is_leader {
                    break;
                }
                look(node, &view.state, &log, program.as_deref(), &mut tried);
                // A command that has failed is repeated in time, without any news.
                if view.state.fences_owed().next().is_none() || ended.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
    });
    Fencer { ends, wake }
}

fn look(node: NodeId, state: &State, log: &RaftHandle, program: Option<&Path>, tried: &mut Tried) {
    tried.retain(|other, _| state.fences.contains_key(other));
    let own = state.node_name(node);
    for (other, fence) in state.fences_owed() {
        let generation = fence.generation;
        let waits = tried.get(&other).is_some_and(|(last, at, ends)| {
            *last == generation
                && (!ends.load(Ordering::SeqCst) || at.elapsed() < Duration::from_millis(FENCE_AGAIN_MS))
        });
        if waits {
            continue;
        }
        let ends = Arc::new(AtomicBool::new(false));
        tried.insert(other, (generation, Instant::now(), ends.clone()));
        let Some(program) = program else {
            ends.store(true, Ordering::SeqCst);
            let why = format!("the agent of {own} was started without --fence-command");
            if fence.last_failure != why {
                log.submit(Proposal::Fenced { node: other, generation, result: Err(why) });
            }
            continue;
        };
        let command = prepared(program, state, (node, &own), (other, fence));
        let (log, own) = (log.clone(), own.clone());
        tracing::warn!(node = state.node_name(other), program = %program.display(), "the fence command runs");
        spawn("agent-fence", move || {
            let result =
                run(command, TIME_LIMIT).map(|()| own).map_err(|why| format!("the fence command {why}"));
            log.submit(Proposal::Fenced { node: other, generation, result });
            ends.store(true, Ordering::SeqCst);
        });
    }
}

/// The command with its environment, which docs/fencing.md describes.
fn prepared(program: &Path, state: &State, by: (NodeId, &str), of: (NodeId, &Fence)) -> Command {
    let (node, fence) = of;
    let address = state.nodes.get(&node).map_or("", |known| known.agent_addr.as_str());
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let resources: Vec<&str> = fence
        .waiting
        .iter()
        .filter_map(|id| state.resources.get(id).map(|resource| resource.name.as_str()))
        .collect();
    let mut command = Command::new(program);
    command
        .env("MAINSTAY_CLUSTER", state.cluster.as_ref().map_or("", |cluster| cluster.name.as_str()))
        .env("MAINSTAY_NODE", state.node_name(node))
        .env("MAINSTAY_NODE_ID", node.0.to_string())
        .env("MAINSTAY_NODE_ADDRESS", host.trim_start_matches('[').trim_end_matches(']'))
        .env("MAINSTAY_GENERATION", fence.generation.to_string())
        .env("MAINSTAY_REASON", &fence.reason)
        .env("MAINSTAY_RESOURCES", resources.join(" "))
        .env("MAINSTAY_ATTEMPT", fence.failures.saturating_add(1).to_string())
        .env("MAINSTAY_FENCED_BY", by.1);
    command
}

/// Runs it to its end.
///
/// # Errors
/// Why it has not succeeded, as the end of a sentence, with the last line that it wrote.
fn run(mut command: Command, limit: Duration) -> Result<(), String> {
    let output = std::io::pipe();
    let (mut reader, writer) = output.map_err(|error| format!("cannot be started: {error}"))?;
    let second = writer.try_clone().map_err(|error| format!("cannot be started: {error}"))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(second).process_group(0);
    let started = command.spawn();
    // The ends of the pipe that are here would keep it open.
    drop(command);
    let mut child = started.map_err(|error| format!("cannot be started: {error}"))?;
    let said = Arc::new(Mutex::new(Vec::new()));
    let into = said.clone();
    spawn("agent-fence-output", move || {
        let mut bytes = [0; 512];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            let mut said = lock(&into);
            said.extend_from_slice(&bytes[..count]);
            let excess = said.len().saturating_sub(usize::try_from(OUTPUT_MAX).unwrap_or(usize::MAX));
            said.drain(..excess);
        }
    });
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                let group = i32::try_from(child.id()).unwrap_or(i32::MAX);
                let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
                let _ = child.wait();
                return Err(format!("has not ended within {} s", limit.as_secs()));
            }
            Err(error) => return Err(format!("cannot be waited for: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    // Its last output may still be on its way.
    std::thread::sleep(Duration::from_millis(50));
    let said = String::from_utf8_lossy(&lock(&said)).into_owned();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).map(str::trim).unwrap_or_default();
    let last: String = last.chars().filter(|letter| !letter.is_control()).take(200).collect();
    let words = if last.is_empty() { String::new() } else { format!(": {last}") };
    Err(format!("failed with {status}{words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn the_end_of_a_fence_command_is_told_with_its_last_line() {
        assert_eq!(run(shell("echo well"), TIME_LIMIT), Ok(()));
        let failed = run(shell("echo first; echo 'no such outlet' >&2; exit 3"), TIME_LIMIT).unwrap_err();
        assert_eq!(failed, "failed with exit status: 3: no such outlet");
        let missing = run(Command::new("/nowhere/fence"), TIME_LIMIT).unwrap_err();
        assert!(missing.starts_with("cannot be started"), "{missing}");
    }

    #[test]
    fn a_fence_command_learns_what_it_is_to_do() {
        use mainstay_control::state::{Entry, Settings};
        let mut state = State::default();
        let init = Proposal::InitCluster { id: 1, name: "c".into(), settings: Settings::default() };
        let node = Proposal::AddNode {
            name: "n1".into(),
            agent_addr: "[fd00::7]:7400".into(),
            engine_addr: "[fd00::7]:7401".into(),
            voter: true,
            witness: false,
            nonce: 1,
        };
        for command in [init, node] {
            assert!(state.apply(Entry { at_ms: 0, command }).is_ok());
        }
        let fence = Fence {
            generation: 3,
            reason: "n1 was primary".into(),
            waiting: Default::default(),
            failures: 1,
            last_failure: String::new(),
            done: None,
        };
        let command = prepared(Path::new("/bin/true"), &state, (NodeId(2), "n2"), (NodeId(1), &fence));
        let variables: BTreeMap<_, _> = command
            .get_envs()
            .map(|(name, value)| (name.to_str().unwrap(), value.and_then(|value| value.to_str()).unwrap()))
            .collect();
        let expected = [
            ("MAINSTAY_ATTEMPT", "2"),
            ("MAINSTAY_CLUSTER", "c"),
            ("MAINSTAY_FENCED_BY", "n2"),
            ("MAINSTAY_GENERATION", "3"),
            ("MAINSTAY_NODE", "n1"),
            ("MAINSTAY_NODE_ADDRESS", "fd00::7"),
            ("MAINSTAY_NODE_ID", "1"),
            ("MAINSTAY_REASON", "n1 was primary"),
            ("MAINSTAY_RESOURCES", ""),
        ];
        assert_eq!(variables, expected.into());
    }

    /// Also what it started is killed.
    #[test]
    fn a_fence_command_that_does_not_end_is_killed() {
        let began = Instant::now();
        let failed = run(shell("sleep 1000 & sleep 1000"), Duration::from_millis(200)).unwrap_err();
        assert!(failed.starts_with("has not ended"), "{failed}");
        assert!(began.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn only_a_program_is_taken_for_a_fence_command() {
        assert_eq!(check(Path::new("/bin/sh")), Ok(()));
        for (path, why) in [
            ("sh", "is not a path from the root"),
            ("/nowhere/fence", "No such file"),
            ("/etc/passwd", "is not a program"),
            ("/etc", "is not a program"),
        ] {
            let said = check(Path::new(path)).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
