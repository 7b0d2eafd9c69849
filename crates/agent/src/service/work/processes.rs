//! The processes of a service, their preparations and their readiness tests.
//!
//! Guarantees
//! - A process that was started is noted before any later effect.
//! - A process that ends by itself is told, whatever else is being done. A process that was stopped
//!   or killed has not ended by itself.

use super::{POLL, Work, tell_loss, words};
use crate::service::cgroup;
use crate::service::command::{self, Identified, ProcessError, ProcessPlan, Role, Running};
use crate::service::instance::OnDone;
use crate::service::lane::{CALLED_OFF, Haste};
use crate::service::output::Output;
use crate::threads::{lock, spawn};
use mainstay_ha::{Event, Ready, Step};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest run of one readiness test, after which it counts as failed and is repeated.
const READY_TEST_MAX: Duration = Duration::from_secs(10);
/// How long a process may take to vanish once it is killed.
pub(in crate::service) const KILL_PATIENCE: Duration = Duration::from_secs(8);

impl Work {
    pub(super) fn prepare(&self, process: usize, number: u64, on_done: &OnDone) -> Result<(), String> {
        let spec = self.process(process)?;
        if spec.prepare.is_empty() {
            return Ok(());
        }
        let plan = ProcessPlan { command: spec.prepare.clone(), ..self.plan(process)? };
        let limit = Duration::from_secs(spec.start_timeout_s);
        self.command(process, &plan, Role::Prepare, number, limit, on_done)
    }

    pub(super) fn start_process(
        self: &Arc<Self>,
        process: usize,
        number: u64,
        on_done: &OnDone,
    ) -> Result<(), String> {
        let start = || {
            if lock(&self.running).get(&process).is_some_and(Running::is_alive) {
                return Ok(());
            }
            // A forgotten instance may have left processes that are in the way of a new one (R19).
            self.kill_process(process)?;
            self.stands(Step::StartProcess { process }, on_done)?;
            let plan = self.plan(process)?;
            let (running, mut child) = command::start(&self.dirs, &plan, self.footing()?).map_err(words)?;
            lock(&self.running).insert(process, running.clone());
            // The state file has to name the process before this agent may end and forget it.
            self.save(None);
            let (work, on_done) = (Arc::clone(self), on_done.clone());
            spawn("agent-child", move || {
                let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                work.ended(process, &running, &status, &on_done);
            });
            Ok(())
        };
        let revoke = || self.warn_of_left(self.kill_process(process));
        self.processes.make(number, start, revoke)
    }

    /// Takes in the end of a process. A process that was stopped or killed has not ended by itself,
    /// and the machine does not wait for it. Its end is told before the answer to the stop, or not
    /// at all.
    pub fn ended(&self, process: usize, ended: &Running, status: &str, on_done: &OnDone) {
        let log = command::log_path(&self.dirs, &ended.name);
        let status = format!("{status}{}; see {}", command::said(&log), log.display());
        let running = lock(&self.running);
        if running.get(&process) == Some(ended) {
            let event = Event::ProcessExited { process, status };
            tell_loss(&self.places.run_dir, &self.name, event, on_done);
        }
    }

    /// Watches a process that an earlier agent started.
    pub fn watch_process(self: &Arc<Self>, process: usize, running: &Running, on_done: &OnDone) {
        let (work, running, on_done) = (Arc::clone(self), running.clone(), on_done.clone());
        spawn("agent-adopted", move || {
            while running.is_alive() {
                std::thread::sleep(POLL);
            }
            let status = "its exit status is not known, because the agent was restarted meanwhile";
            work.ended(process, &running, status, &on_done);
        });
    }

    /// Runs a command of a process to its end.
    fn command(
        &self,
        process: usize,
        plan: &ProcessPlan,
        role: Role,
        number: u64,
        timeout: Duration,
        on_done: &OnDone,
    ) -> Result<(), String> {
        let step = match role {
            Role::Ready => Step::CheckReady { process },
            _ => Step::Prepare { process },
        };
        let begin = || {
            // A command that an earlier agent began may still run. Only the answer of this one
            // counts.
            self.kill_role(process, role)?;
            self.stands(step, on_done)?;
            command::begin(&self.dirs, plan, role, self.footing()?).map_err(words)
        };
        let revoke = || self.warn_of_left(self.kill_role(process, role));
        let started = self.processes.make(number, begin, revoke)?;
        let wanted = || self.processes.is_newest(number);
        command::finish(&self.dirs, plan, started, timeout, &wanted).map_err(|error| {
            // A readiness test is repeated, and may fail often.
            let tells = role == Role::Prepare && matches!(error, ProcessError::Failed { .. });
            let log = command::log_path(&self.dirs, &plan.name);
            format!("{error}{}", if tells { command::said(&log) } else { String::new() })
        })
    }

    fn warn_of_left(&self, result: Result<(), String>) {
        if let Err(error) = result {
            tracing::warn!(service = self.name, error, "a process that is not wanted any more still runs");
        }
    }

    pub(super) fn check_ready(&self, process: usize, number: u64, on_done: &OnDone) -> Result<(), String> {
        let start = Instant::now();
        // The machine's own time limit ends this, through an undo of the process.
        while self.processes.is_newest(number) {
            // An operator may mend the test while it is repeated.
            let Some(ready) = self.process(process)?.ready else { return Ok(()) };
            let is_ready = match &ready {
                Ready::Command(command) => {
                    let plan = ProcessPlan { command: command.clone(), ..self.plan(process)? };
                    self.command(process, &plan, Role::Ready, number, READY_TEST_MAX, on_done).is_ok()
                }
                Ready::Tcp(address) => command::tcp_answers(address),
                Ready::DelayS(seconds) => start.elapsed() >= Duration::from_secs(*seconds),
            };
            if is_ready {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err(CALLED_OFF.into())
    }

    /// Ends every process of the service. `number` is the kill's on [`Work::processes`].
    pub fn kill(&self, number: u64) -> Result<(), String> {
        self.processes.undo(number, Haste::AtOnce, KILL_PATIENCE, || {
            cgroup::kill(&[&self.dirs.cgroup], KILL_PATIENCE)
                .map_err(|error| self.unless_frozen(words(error)))?;
            lock(&self.running).clear();
            Ok(())
        })
    }

    pub(super) fn stop_process(&self, process: usize, force: bool) -> Result<(), String> {
        let spec = self.process(process)?;
        let running = lock(&self.running).get(&process).cloned();
        let patience = if force { Duration::ZERO } else { Duration::from_secs(spec.stop_timeout_s) };
        match running {
            Some(running) => {
                let signal = if force { "SIGKILL" } else { &spec.stop_signal };
                command::stop(&self.dirs, &running, signal, patience).map_err(words)?;
            }
            None => self.kill_process(process)?,
        }
        // A readiness test ends with the process that it tests.
        self.kill_role(process, Role::Ready)?;
        lock(&self.running).remove(&process);
        Ok(())
    }

    /// Ends all that belongs to a process, also what an earlier agent started.
    fn kill_process(&self, process: usize) -> Result<(), String> {
        let cgroup = self.dirs.process(&self.process(process)?.name);
        cgroup::kill(&[cgroup], KILL_PATIENCE).map_err(words)
    }

    pub(super) fn kill_role(&self, process: usize, role: Role) -> Result<(), String> {
        let name = self.process(process)?.name;
        cgroup::kill(&[self.dirs.role(&name, role)], KILL_PATIENCE).map_err(words)?;
        // An older agent may have used this other cgroup, which may belong to a process of today.
        let former = format!("{name}-{}", role.name());
        if self.spec().processes.iter().any(|other| other.name == former) {
            return Ok(());
        }
        cgroup::kill(&[self.dirs.process(&former)], KILL_PATIENCE).map_err(words)
    }

    fn process(&self, index: usize) -> Result<mainstay_ha::Process, String> {
        let found = self.spec().processes.get(index).cloned();
        found.ok_or_else(|| format!("the service has no process {index}"))
    }

    /// Where the output of a process goes; a writer is started if there is none.
    fn output(&self, index: usize, name: &str) -> Result<Option<Arc<Output>>, String> {
        if self.dirs.log_writer.is_empty() {
            return Ok(None);
        }
        let mut outputs = lock(&self.outputs);
        if let Some(output) = outputs.get(&index) {
            return Ok(Some(output.clone()));
        }
        let output = Output::open(&self.dirs, name, &self.dirs.log_writer).map_err(words)?;
        let output = Arc::new(output);
        outputs.insert(index, output.clone());
        Ok(Some(output))
    }

    /// Goes on with the writer of a log that an earlier agent started.
    pub fn adopt_output(&self, index: usize, writer: &Identified) {
        let Ok(process) = self.process(index) else { return };
        if let Some(output) = Output::adopt(&self.dirs, &process.name, &self.dirs.log_writer, writer) {
            lock(&self.outputs).insert(index, Arc::new(output));
        }
    }

    fn plan(&self, index: usize) -> Result<ProcessPlan, String> {
        let spec = self.process(index)?;
        let output = self.output(index, &spec.name)?;
        let mainstay_ha::Process { name, command, user, env, .. } = spec;
        Ok(ProcessPlan { name, command, user, env, output })
    }
}
