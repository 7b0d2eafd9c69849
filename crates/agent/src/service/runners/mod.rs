//! Runners: how a process of a service is started, watched, stopped and killed on a node.
//!
//! A runner is one file here and one line in [`RUNNERS`]. `service::work` decides what is done and
//! when, and knows nothing of a runner but [`Runner`].
//!
//! Guarantees that a runner has:
//! - A process is started only when nothing of it is left, since [`Runner::kill`] has succeeded
//!   just before, and on the file system of its service (R28).
//! - The calls that change the processes of one service take turns (`service::lane`). A kill may
//!   also come beside a start that is still at work; then it comes again after that.
//! - The note that a start returns is on disk before anything else is done for the service. The
//!   next agent gives it back to [`Runner::adopt`].
//!
//! Duties of a runner:
//! - A start looks at its [`Footing`] last, after the process is where a kill finds it. So nothing
//!   begins on a node that is being silenced (R19).
//! - The process and all that it starts live in the cgroup of their service, or in those of
//!   [`Runner::cgroups`]. The engine's guard kills these when the lease ends, and asks no runner.
//! - A stop and a kill succeed only when nothing of the process is left. A state that cannot be
//!   found out counts as running (R19).
//! - A kill takes no longer than its patience. Only a watch may wait without a limit.
//! - A runner keeps nothing in memory: the next agent starts with what was noted.

mod ocf;
mod process;
mod unit;

use super::cgroup;
use super::command::{ProcessPlan, ServiceDirs};
use super::footing::Footing;
use super::lacks::Lack;
use super::lane::Haste;
use super::output::Outputs;
use mainstay_ha::{Finding, Process, Ready, ServiceSpec};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// All runners. Each entry of a specification is for one of them.
static RUNNERS: [&dyn Runner; 3] = [&process::PlainProcess, &ocf::OcfAgent, &unit::SystemdUnit];

const CONNECT_WAIT: Duration = Duration::from_millis(500);

/// See the top of this file.
pub trait Runner: Sync {
    /// Whether this entry of a specification is for this runner.
    fn takes(&self, process: &Process) -> bool;

    /// Returns the needs of the process that this node does not meet, with the names of fields
    /// within its entry. Users, preparations and readiness tests are looked for elsewhere.
    fn lacks(&self, process: &Process, spec: &ServiceSpec) -> Vec<Lack>;

    /// Returns the cgroups of the process that are not below the one of its service.
    fn cgroups(&self, _process: &Process, _dirs: &ServiceDirs) -> Vec<PathBuf> {
        Vec::new()
    }

    /// Starts the process, and does not wait until it is ready.
    ///
    /// # Errors
    /// When it was not started, in words for the operator.
    fn start(&self, here: &ProcessHere, footing: Footing) -> Result<Started, String>;

    /// Returns the watch over a process that an earlier agent has started.
    fn adopt(&self, here: &ProcessHere, note: &Note) -> Watch;

    /// Whether a process that was started still runs.
    fn runs(&self, here: &ProcessHere, note: &Note) -> bool;

    /// Whether the process is ready. The test is repeated; `waited` is the time since the first.
    ///
    /// # Errors
    /// When that cannot be asked, and will not be either a moment later.
    fn ready(&self, here: &ProcessHere, note: Option<&Note>, waited: Duration) -> Result<Readiness, String>;

    /// Returns the command by which this runner itself looks whether the process runs; `None` if it
    /// has none, so that the specification's probe counts.
    fn monitor(&self, _here: &ProcessHere) -> Option<Result<ProcessPlan, String>> {
        None
    }

    /// Meaning of the exit code and the last line of [`Runner::monitor`].
    fn judged(&self, code: i32, said: String) -> Finding {
        Finding::NotAsked(format!("{code} {said}"))
    }

    /// Stops the process, with the patience of its specification unless it has to end at once.
    ///
    /// # Errors
    /// When something of it is left or may be.
    fn stop(&self, here: &ProcessHere, note: &Note, haste: Haste) -> Result<(), String>;

    /// Ends all that belongs to the process, also what no agent remembers.
    ///
    /// # Errors
    /// When something of it is left or may be after `patience`.
    fn kill(&self, here: &ProcessHere, patience: Duration) -> Result<(), String>;
}

/// A process that was started.
pub struct Started {
    pub note: Note,
    pub watch: Watch,
}

/// Waits until the process has ended, and returns how. Runs on a thread of its own. Gives up when
/// it is not wanted any more, since the process was stopped or killed.
pub type Watch = Box<dyn FnOnce(&dyn Fn() -> bool) -> Ended + Send>;

/// End of a process by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// In words for the operator.
    pub status: String,
    /// Whether another attempt on this node would end alike.
    pub is_permanent: bool,
}

impl From<String> for Ended {
    fn from(status: String) -> Self {
        Self { status, is_permanent: false }
    }
}

/// Identity of a process that was started. Only its runner knows the form.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Note(Value);

impl Note {
    /// # Panics
    /// When `identity` has no form in JSON.
    #[must_use]
    pub fn of(identity: &impl Serialize) -> Self {
        Self(serde_json::to_value(identity).expect("an identity is plain data"))
    }

    /// Returns `None` if another runner or a later release has written the note.
    #[must_use]
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        T::deserialize(&self.0).ok()
    }
}

/// Answer to a readiness test.
pub enum Readiness {
    Ready,
    NotYet,
    /// This command tells, by ending well.
    Ask(ProcessPlan),
    /// The probe of the process tells.
    Probe,
}

/// One process of a service on this node.
pub struct ProcessHere<'a> {
    pub process: &'a Process,
    pub runner: &'static dyn Runner,
    pub dirs: &'a ServiceDirs,
    index: usize,
    outputs: &'a Outputs,
}

impl<'a> ProcessHere<'a> {
    /// # Errors
    /// When the service has no such process, or this release has no runner for it.
    pub fn of(
        spec: &'a ServiceSpec,
        index: usize,
        dirs: &'a ServiceDirs,
        outputs: &'a Outputs,
    ) -> Result<Self, String> {
        let process = spec.processes.get(index);
        let process = process.ok_or_else(|| format!("the service has no process {index}"))?;
        Ok(Self { process, runner: of(process)?, dirs, index, outputs })
    }

    /// Returns the plan of a command of the process, with its user, environment and log.
    ///
    /// # Errors
    /// When its log cannot be written.
    pub fn plan(&self, command: &[String]) -> Result<ProcessPlan, String> {
        let Process { name, user, env, .. } = self.process;
        let output = self.outputs.of(self.index, name, self.dirs).map_err(|error| error.to_string())?;
        let (name, command) = (name.clone(), command.to_vec());
        Ok(ProcessPlan { name, command, user: user.clone(), env: env.clone(), output })
    }
}

/// Returns the runner of a process.
///
/// # Errors
/// When this release has none.
pub fn of(process: &Process) -> Result<&'static dyn Runner, String> {
    let found = RUNNERS.iter().find(|runner| runner.takes(process));
    found.copied().ok_or_else(|| format!("this release cannot run process {}", process.name))
}

/// Returns every cgroup in which processes of a service live; first its own, beside which the
/// silencer of the engine has a place.
#[must_use]
pub fn cgroups(spec: &ServiceSpec, dirs: &ServiceDirs) -> Vec<PathBuf> {
    let own = std::iter::once(dirs.cgroup.clone());
    let of_one = |process| of(process).map(|runner| runner.cgroups(process, dirs));
    let others = spec.processes.iter().flat_map(of_one);
    own.chain(others.flatten()).collect()
}

/// Ends every process of a service: the cgroups at once, then what else their runners know.
///
/// # Errors
/// When something is left or may be after `patience`.
pub fn kill(
    spec: &ServiceSpec,
    dirs: &ServiceDirs,
    outputs: &Outputs,
    patience: Duration,
) -> Result<(), String> {
    let deadline = Instant::now() + patience;
    let mut killed = cgroup::kill(&cgroups(spec, dirs), patience).map_err(|error| error.to_string());
    for index in (0..spec.processes.len()).rev() {
        let left = deadline.saturating_duration_since(Instant::now());
        let here = ProcessHere::of(spec, index, dirs, outputs);
        killed = killed.and(here.and_then(|here| here.runner.kill(&here, left)));
    }
    killed
}

/// Asks the test that a specification names for a process. Without one its probe tells, and without
/// that the process is ready.
///
/// # Errors
/// When the log of its command cannot be written.
fn answer_of_test(here: &ProcessHere, waited: Duration) -> Result<Readiness, String> {
    let is_ready = match &here.process.ready {
        None if here.process.probe.is_some() => return Ok(Readiness::Probe),
        None => true,
        Some(Ready::Command(command)) => return Ok(Readiness::Ask(here.plan(command)?)),
        Some(Ready::Tcp(address)) => tcp_answers(address),
        Some(Ready::DelayS(seconds)) => waited >= Duration::from_secs(*seconds),
    };
    Ok(if is_ready { Readiness::Ready } else { Readiness::NotYet })
}

/// Whether `address` accepts a TCP connection now.
fn tcp_answers(address: &str) -> bool {
    let addresses = address.to_socket_addrs().into_iter().flatten();
    addresses.into_iter().any(|address| TcpStream::connect_timeout(&address, CONNECT_WAIT).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_process_that_a_specification_may_name_has_one_runner() {
        let process = |entry: &str| {
            let text = format!("name='s'\nresource='db'\n[[process]]\nname='p'\n{entry}\n");
            ServiceSpec::parse(&text).expect("it is one").processes.remove(0)
        };
        for entry in ["command=['a']", "ocf={agent='ocf:heartbeat:Dummy'}", "unit='a.service'"] {
            let process = process(entry);
            assert_eq!(RUNNERS.iter().filter(|runner| runner.takes(&process)).count(), 1, "{entry}");
        }
        let none = Process { command: Vec::new(), ..process("command=['a']") };
        assert!(of(&none).is_err_and(|why| why.contains("cannot run process p")));
    }
}
