//! The processes of a service, their preparations and their readiness tests: when their runners and
//! their commands are called, and on what footing.
//!
//! Guarantees
//! - A process that was started is noted before any later effect.
//! - A process that ends by itself is told, whatever else is being done. A process that was stopped
//!   or killed has not ended by itself.
//! - Nothing begins before its footing was found in place (see [`Work::stands`]), nor beside
//!   another start or stop of the service (see `service::lane`).

use super::{Work, tell_loss, words};
use crate::service::cgroup;
use crate::service::command::{self, Identified, ProcessError, ProcessPlan, Role};
use crate::service::instance::OnDone;
use crate::service::lane::{CALLED_OFF, Haste};
use crate::service::runners::{self, Ended, Note, ProcessHere, Readiness, Started, Watch};
use crate::threads::{lock, spawn};
use mainstay_ha::{Event, ServiceSpec, Step};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest run of one readiness test, after which it counts as failed and is repeated.
const READY_TEST_MAX: Duration = Duration::from_secs(10);
/// How long readiness is tested often, the pause between two tests then, and later.
const OFTEN: Duration = Duration::from_secs(10);
const SOON: Duration = Duration::from_millis(20);
const SELDOM: Duration = Duration::from_millis(100);
/// How long a process may take to vanish once it is killed.
pub(in crate::service) const KILL_PATIENCE: Duration = Duration::from_secs(8);

/// The specification with arguments added to the command of a process.
fn with_arguments(spec: &Arc<ServiceSpec>, process: usize, arguments: Vec<String>) -> Arc<ServiceSpec> {
    if arguments.is_empty() {
        return Arc::clone(spec);
    }
    let mut spec = ServiceSpec::clone(spec);
    if let Some(described) = spec.processes.get_mut(process) {
        described.command.extend(arguments);
    }
    Arc::new(spec)
}

impl Work {
    fn here<'a>(&'a self, spec: &'a ServiceSpec, process: usize) -> Result<ProcessHere<'a>, String> {
        ProcessHere::of(spec, process, &self.dirs, &self.outputs)
    }

    pub(super) fn prepare(&self, process: usize, number: u64, on_done: &OnDone) -> Result<(), String> {
        let spec = self.spec();
        let here = self.here(&spec, process)?;
        if here.process.prepare.is_empty() {
            return Ok(());
        }
        let mut plan = here.plan(&here.process.prepare)?;
        if here.process.prepare_user.is_some() {
            plan.user.clone_from(&here.process.prepare_user);
        }
        let limit = Duration::from_secs(here.process.start_timeout_s);
        self.command(process, &plan, Role::Prepare, number, limit, on_done)
    }

    pub(super) fn start_process(
        self: &Arc<Self>,
        process: usize,
        number: u64,
        on_done: &OnDone,
    ) -> Result<(), String> {
        let start = || {
            let spec = self.spec();
            let here = self.here(&spec, process)?;
            let noted = lock(&self.running).get(&process).cloned();
            if noted.is_some_and(|note| here.runner.runs(&here, &note)) {
                return Ok(());
            }
            // A forgotten instance may have left processes that are in the way of a new one (R19).
            here.runner.kill(&here, KILL_PATIENCE)?;
            let wanted = || self.processes.is_newest(number);
            let arguments = self.page_arguments(&spec, process, &wanted)?;
            let spec = with_arguments(&spec, process, arguments);
            let here = self.here(&spec, process)?;
            self.stands(Step::StartProcess { process }, on_done)?;
            let Started { note, watch } = here.runner.start(&here, self.footing()?)?;
            lock(&self.running).insert(process, note.clone());
            // The state file has to name the process before this agent may end and forget it.
            self.save(None);
            self.watch_pages(process, &note, on_done);
            self.watch_process(process, note, watch, on_done);
            self.probe_early();
            Ok(())
        };
        let revoke = || {
            let spec = self.spec();
            let killed = self.here(&spec, process).and_then(|here| here.runner.kill(&here, KILL_PATIENCE));
            self.warn_of_left(killed);
        };
        self.processes.make(number, start, revoke)
    }

    fn watch_process(self: &Arc<Self>, process: usize, note: Note, watch: Watch, on_done: &OnDone) {
        let (work, on_done) = (Arc::clone(self), on_done.clone());
        spawn("agent-child", move || {
            let ended = watch(&|| lock(&work.running).get(&process) == Some(&note));
            work.ended(process, &note, ended, &on_done);
        });
    }

    /// Takes in the end of a process. A process that was stopped or killed has not ended by itself,
    /// and the machine does not wait for it. Its end is told before the answer to the stop, or not
    /// at all.
    pub fn ended(&self, process: usize, note: &Note, ended: Ended, on_done: &OnDone) {
        let running = lock(&self.running);
        if running.get(&process) == Some(note) {
            let Ended { status, is_permanent } = ended;
            let event = match is_permanent {
                false => Event::ProcessExited { process, status },
                true => Event::Lost { step: Step::StartProcess { process }, why: status, mendable: false },
            };
            tell_loss(&self.places.run_dir, &self.name, event, on_done);
        }
    }

    /// Watches a process that an earlier agent started.
    pub fn adopt_process(self: &Arc<Self>, process: usize, note: Note, on_done: &OnDone) {
        let spec = self.spec();
        match self.here(&spec, process).map(|here| here.runner.adopt(&here, &note)) {
            Ok(watch) => {
                self.watch_pages(process, &note, on_done);
                self.watch_process(process, note, watch, on_done);
            }
            Err(error) => tracing::error!(service = self.name, error, "a process cannot be watched"),
        }
    }

    /// Goes on with the writer of a log that an earlier agent started.
    pub fn adopt_output(&self, process: usize, writer: &Identified) {
        if let Some(named) = self.spec().processes.get(process) {
            self.outputs.adopt(process, &named.name, &self.dirs, writer);
        }
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
            if role == Role::Prepare {
                self.kill_forgotten(process)?;
            }
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

    /// Ends the rest that a forgotten instance has left of a process, so that a preparation has its
    /// files for itself (R19). A process that is noted is no such rest.
    fn kill_forgotten(&self, process: usize) -> Result<(), String> {
        let spec = self.spec();
        let here = self.here(&spec, process)?;
        let noted = lock(&self.running).get(&process).cloned();
        match noted {
            Some(note) if here.runner.runs(&here, &note) => Ok(()),
            _ => here.runner.kill(&here, KILL_PATIENCE),
        }
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
            let spec = self.spec();
            let here = self.here(&spec, process)?;
            let note = lock(&self.running).get(&process).cloned();
            let is_ready = match here.runner.ready(&here, note.as_ref(), start.elapsed())? {
                Readiness::Ready => true,
                Readiness::NotYet => false,
                Readiness::Ask(plan) => {
                    self.command(process, &plan, Role::Ready, number, READY_TEST_MAX, on_done).is_ok()
                }
                Readiness::Probe => self.probe_start(process, number, on_done),
            };
            if is_ready {
                return Ok(());
            }
            std::thread::sleep(if start.elapsed() < OFTEN { SOON } else { SELDOM });
        }
        Err(CALLED_OFF.into())
    }

    /// Ends every process of the service. `number` is the kill's on [`Work::processes`].
    pub fn kill(&self, number: u64) -> Result<(), String> {
        self.processes.undo(number, Haste::AtOnce, KILL_PATIENCE, || {
            let spec = self.spec();
            runners::kill(&spec, &self.dirs, &self.outputs, KILL_PATIENCE)
                .map_err(|why| self.unless_frozen(why))?;
            lock(&self.running).clear();
            // No probe begins from here on, and one may have begun beside the kill.
            (0..spec.processes.len()).try_for_each(|process| self.kill_role(process, Role::Probe))
        })
    }

    pub(super) fn stop_process(&self, process: usize, haste: Haste) -> Result<(), String> {
        let spec = self.spec();
        let here = self.here(&spec, process)?;
        let noted = lock(&self.running).get(&process).cloned();
        match noted {
            Some(note) => here.runner.stop(&here, &note, haste)?,
            None => here.runner.kill(&here, KILL_PATIENCE)?,
        }
        // A readiness test ends with the process that it tests.
        self.kill_role(process, Role::Ready)?;
        lock(&self.running).remove(&process);
        // No probe begins from here on, and one may have begun beside the stop.
        self.kill_role(process, Role::Probe)
    }

    pub(super) fn kill_role(&self, process: usize, role: Role) -> Result<(), String> {
        let spec = self.spec();
        let name = &self.here(&spec, process)?.process.name;
        let mut cgroups = vec![self.dirs.role(name, role)];
        // An older agent may have used this other cgroup, which may belong to a process of today.
        let former = format!("{name}-{}", role.name());
        if spec.processes.iter().all(|other| other.name != former) {
            cgroups.push(self.dirs.process(&former));
        }
        cgroup::kill(&cgroups, KILL_PATIENCE).map_err(words)
    }
}
