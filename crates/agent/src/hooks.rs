//! Hooks: commands of an operator that this node runs at the stages of a failover.
//!
//! An executable file of the hooks directory with the name of a stage is run at that stage, and the
//! file `all` at every stage. [`mainstay_control::hooks`] says which are due here.
//!
//! Guarantees
//! - Only a start waits for a hook, for the one of the stage before it, which the service's own
//!   threads run as a step of the start (`service::work::hook`). No failover, start or stop waits
//!   for another one: one thread of its own runs them in order, one at a time, each for at most
//!   [`LIMIT`]. Then the hook's process group is killed.
//! - How far this node has come is on disk before a hook runs. So no hook runs twice for an event,
//!   also when the agent is restarted. A hook that the restart interrupts is not run again.
//! - At most [`OUTPUT_BYTES`] of a hook's output are kept, and become an event.

use crate::raft::{ConsensusLog, View};
use crate::threads::{lock, spawn};
use mainstay_control::hooks::{EVERY_STAGE, Hook, STAGES, STARTING, due};
use mainstay_control::state::Command as ControlCommand;
use mainstay_types::{NodeId, Severity};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access};
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longest run of one hook.
const LIMIT: Duration = Duration::from_secs(30);
/// Most hooks that wait for their turn and that no event tells.
const QUEUE_MAX: usize = 256;
/// How often a hook that runs is looked at.
const POLL: Duration = Duration::from_millis(20);
/// How long the end of the output of a hook that has ended may take: a process that it left may
/// keep it open.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);
const OUTPUT_BYTES: usize = 300;
/// How long the first look at the cluster may take before it is repeated.
const FIRST_LOOK: Duration = Duration::from_secs(5);
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// File of the state directory with the index of the last event that was looked at.
const CURSOR: &str = "hooks-done";

/// Says why a directory cannot be the hooks directory.
///
/// # Errors
/// In words for the operator.
pub fn check(directory: &Path) -> Result<(), String> {
    let shown = directory.display();
    if !directory.is_absolute() {
        return Err(format!("{shown} is not an absolute path"));
    }
    let entries = std::fs::read_dir(directory).map_err(|error| format!("cannot read {shown}: {error}"))?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !STAGES.iter().chain([&EVERY_STAGE]).any(|stage| name.as_os_str() == *stage) {
            tracing::warn!(
                "{} is no hook: no stage has its name; the stages are {}",
                entry.path().display(),
                STAGES.join(", ")
            );
        } else if access(&entry.path(), AccessFlags::X_OK).is_err() {
            tracing::warn!("{} is not executable, so it is not run", entry.path().display());
        }
    }
    Ok(())
}

/// The hooks of this node. Clones are the same hooks.
#[derive(Clone, Debug)]
pub struct Hooks {
    directory: PathBuf,
    node: NodeId,
    name: String,
    /// Hooks that no event tells, in the order in which they run.
    queue: Arc<Mutex<VecDeque<Hook>>>,
    news: SyncSender<()>,
    woken: Arc<Mutex<Option<Receiver<()>>>>,
}

impl Hooks {
    #[must_use]
    pub fn new(directory: PathBuf, node: NodeId, name: String) -> Self {
        let (news, woken) = sync_channel(1);
        let woken = Arc::new(Mutex::new(Some(woken)));
        Self { directory, node, name, queue: Arc::default(), news, woken }
    }

    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Has a hook run that no event tells. Nothing waits for it.
    pub fn tell(&self, hook: Hook) {
        let mut queue = lock(&self.queue);
        if queue.len() >= QUEUE_MAX {
            tracing::warn!(stage = hook.stage, "a hook is not run, because too many others wait");
            return;
        }
        queue.push_back(hook);
        drop(queue);
        let _ = self.news.try_send(());
    }

    /// The hooks that were told since the last call.
    pub(crate) fn take_told(&self) -> VecDeque<Hook> {
        std::mem::take(&mut *lock(&self.queue))
    }

    /// The hook before a start, if there is one, and the variable with the name of this node.
    #[must_use]
    pub fn before_start(&self) -> Option<(PathBuf, (&'static str, &str))> {
        let file = self.directory.join(STARTING);
        is_executable(&file).then_some((file, (NODE_VARIABLE, &self.name)))
    }

    /// Runs the hooks from now on, but for the one before a start. To be called once.
    pub fn start(&self, state_dir: &Path, log: Arc<dyn ConsensusLog>) {
        let Some(woken) = lock(&self.woken).take() else { return };
        let news = self.news.clone();
        log.subscribe(Box::new(move |_: &View| {
            let _ = news.try_send(());
        }));
        let (hooks, cursor) = (self.clone(), state_dir.join(CURSOR));
        spawn("agent-hooks", move || Runner { hooks, cursor, log: &*log }.run(&woken));
    }
}

const NODE_VARIABLE: &str = "MAINSTAY_NODE";

fn is_executable(file: &Path) -> bool {
    file.is_file() && access(file, AccessFlags::X_OK).is_ok()
}

struct Runner<'a> {
    hooks: Hooks,
    cursor: PathBuf,
    log: &'a dyn ConsensusLog,
}

impl Runner<'_> {
    fn run(&self, wake: &Receiver<()>) {
        let mut done = self.first();
        loop {
            let state = self.log.view().state;
            let (hooks, looked) = due(&state, self.hooks.node, done, crate::clock::wall_ms());
            if looked != done && !hooks.is_empty() && !self.note(looked) {
                // These hooks would run again after a restart.
                std::thread::sleep(FIRST_LOOK);
                continue;
            }
            done = looked;
            for hook in hooks.into_iter().chain(self.hooks.take_told()) {
                for file in [hook.stage, EVERY_STAGE].map(|file| self.hooks.directory.join(file)) {
                    self.run_one(&file, &hook);
                }
            }
            if wake.recv().is_err() {
                return;
            }
        }
    }

    /// The last event that was looked at. A node without a note begins with what happens from now
    /// on.
    fn first(&self) -> u64 {
        loop {
            let view = self.log.confirmed_view(FIRST_LOOK);
            let noted = std::fs::read_to_string(&self.cursor).ok().and_then(|text| text.trim().parse().ok());
            if view.age_ms == Some(0) && view.replayed {
                let last = view.state.last_event;
                // A cluster that was made anew counts from the beginning.
                let done = noted.filter(|noted| *noted <= last).unwrap_or(last);
                if self.note(done) {
                    return done;
                }
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn note(&self, done: u64) -> bool {
        let fresh = self.cursor.with_extension("new");
        let write = || {
            std::fs::write(&fresh, format!("{done}\n"))?;
            std::fs::File::open(&fresh)?.sync_all()?;
            std::fs::rename(&fresh, &self.cursor)
        };
        let written: io::Result<()> = write();
        if let Err(error) = &written {
            tracing::error!(path = %self.cursor.display(), %error, "no hook is run, because it cannot be noted that it was");
        }
        written.is_ok()
    }

    fn run_one(&self, file: &Path, hook: &Hook) {
        if !is_executable(file) {
            return;
        }
        let ended = run(file, hook, &self.hooks.name, LIMIT);
        let shown = format!("hook {} at stage {}", file.display(), hook.stage);
        let (severity, text) = match ended {
            Ok(output) if output.is_empty() => return,
            Ok(output) => (Severity::Info, format!("{shown}: {output}")),
            Err(why) => (Severity::Warning, format!("{shown} failed: {why}")),
        };
        let subject = format!("node {}", self.hooks.name);
        self.log.submit(ControlCommand::Note { severity, subject, text });
    }
}

/// Runs a file to its end; returns its output. A hook that ends otherwise than with 0, or does not
/// end within `limit`, is an error, in words.
fn run(file: &Path, hook: &Hook, node: &str, limit: Duration) -> Result<String, String> {
    let words = |error: io::Error| error.to_string();
    let (reader, writer) = io::pipe().map_err(words)?;
    let mut command = Command::new(file);
    command.env_clear().env("PATH", SEARCH_PATH).env(NODE_VARIABLE, node).envs(&hook.environment);
    command.current_dir("/").process_group(0).stdin(Stdio::null());
    command.stdout(writer.try_clone().map_err(words)?).stderr(writer);
    let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    // The command holds the ends for writing until it is dropped.
    drop(command);
    let (tell, told) = sync_channel(1);
    spawn("agent-hook-output", move || drop(tell.send(first_bytes(reader))));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(words)? {
            Some(status) => break Some(status),
            None if Instant::now() >= deadline => break None,
            None => std::thread::sleep(POLL),
        }
    };
    if status.is_none() {
        let _ = killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL);
        drop(child.wait());
    }
    let output = told.recv_timeout(OUTPUT_PATIENCE).unwrap_or_default();
    let said = if output.is_empty() { String::new() } else { format!(": {output}") };
    match status {
        Some(status) if status.success() => Ok(output),
        Some(status) => Err(format!("{status}{said}")),
        None => Err(format!("it did not end within {} s and was killed{said}", limit.as_secs())),
    }
}

/// Reads to the end, and returns the beginning as one line.
fn first_bytes(mut reader: impl Read) -> String {
    let (mut kept, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(length @ 1..) = reader.read(&mut buffer) {
        let room = OUTPUT_BYTES.saturating_sub(kept.len());
        kept.extend_from_slice(&buffer[..length.min(room)]);
    }
    let text = String::from_utf8_lossy(&kept);
    let lines = text.lines().map(|line| line.replace(|c: char| c.is_control(), " "));
    let lines: Vec<String> =
        lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    lines.join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::fs::PermissionsExt;

    fn hook() -> Hook {
        let environment = BTreeMap::from([("MAINSTAY_STAGE", "node-lost".to_owned())]);
        Hook { stage: "node-lost", environment }
    }

    fn ran(script: &str, limit: Duration) -> Result<String, String> {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("node-lost");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).expect("set");
        run(&file, &hook(), "n1", limit)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn a_hook_gets_its_environment_and_nothing_else_and_its_output_is_bounded() {
        let said = ran("echo $MAINSTAY_STAGE on $MAINSTAY_NODE in $PWD; env | grep -c CARGO", LONG);
        assert!(said.as_ref().is_err_and(|why| why.contains("node-lost on n1 in / / 0")), "{said:?}");
        let long = ran("head -c 100000 /dev/zero | tr '\\0' x", LONG).expect("it ends well");
        assert_eq!(long.len(), OUTPUT_BYTES);
        assert_eq!(ran("true", LONG), Ok(String::new()));
        let failed = ran("echo no route >&2; exit 3", LONG);
        assert!(failed.as_ref().is_err_and(|why| why.contains("3: no route")), "{failed:?}");
    }

    #[test]
    fn a_hook_that_hangs_is_killed_with_what_it_started() {
        let start = Instant::now();
        let hung = ran("sleep 300 & echo begun; wait", Duration::from_millis(500));
        assert!(
            hung.as_ref().is_err_and(|why| why.contains("did not end") && why.contains("begun")),
            "{hung:?}"
        );
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn a_directory_that_is_missing_or_named_by_half_is_refused() {
        let directory = tempfile::tempdir().expect("a directory");
        assert_eq!(check(directory.path()), Ok(()));
        assert!(check(&directory.path().join("missing")).is_err_and(|why| why.contains("missing")));
        assert!(check(Path::new("hooks")).is_err_and(|why| why.contains("absolute")));
        std::fs::write(directory.path().join("file"), "").expect("written");
        assert!(check(&directory.path().join("file")).is_err());
    }
}
