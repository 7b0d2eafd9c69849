//! The probes of processes: the command that asks, and what its answer means.
//!
//! Guarantees
//! - A probe is a process of its own: whatever hangs in it ends with its time limit. It has the
//!   user, the environment and the cgroup of the process that it asks, so it ends with that
//!   process.
//! - A probe begins only while its process runs, and on the footing of a process
//!   ([`crate::service::footing`]): never on a node that is being silenced.
//! - A probe that this node cannot begin says nothing of the process ([`Finding::NotAsked`]): a
//!   mistake in a service file, or a node without memory, restarts no database.

use super::{Work, words};
use crate::service::command::{self, Asked, ProcessError, ProcessPlan, Role, ServiceDirs};
use crate::service::instance::{Done, OnDone};
use crate::service::lane::CALLED_OFF;
use crate::service::runners::{ProcessHere, Runner};
use crate::threads::lock;
use mainstay_ha::{Event, Finding, Probe, ProbeExit, Step};
use std::time::Duration;

/// This program, also where its file was replaced or another user may not reach it.
const THIS_PROGRAM: &str = "/proc/self/exe";
/// Exit code of a probe that found the process in crash recovery.
const RECOVERS: i32 = ProbeExit::Recovering as i32;
/// How much longer than its time limit a probe of this program may take to say where it hung.
const SAYS_WHERE: Duration = Duration::from_millis(500);

impl Work {
    /// Asks the probe of a process that runs, for at most `timeout`.
    pub fn ask_process(&self, process: usize, timeout: Duration) -> Finding {
        let spec = self.spec();
        let asked = ProcessHere::of(&spec, process, &self.dirs, &self.outputs).and_then(|here| {
            let asks = plan(&here, timeout)?;
            // One that an earlier agent began may still run.
            self.kill_role(process, Role::Probe)?;
            let footing = self.footing()?;
            let running = lock(&self.running);
            if !running.contains_key(&process) {
                return Err(CALLED_OFF.into());
            }
            let asked = command::ask(&self.dirs, &asks.plan, Role::Probe, footing).map_err(words)?;
            drop(running);
            Ok((asks, asked))
        });
        match asked {
            Ok((asks, asked)) => asks.finding(&self.dirs, asked, &|| true),
            Err(why) => Finding::NotAsked(why),
        }
    }

    /// Whether the probe finds a process that is being started healthy. If not, the machine is
    /// told.
    pub(super) fn probe_start(&self, process: usize, number: u64, on_done: &OnDone) -> bool {
        let spec = self.spec();
        let Some(described) = spec.processes.get(process) else { return false };
        let timeout = Duration::from_secs(described.look_timeout_s());
        let begin = || {
            let here = ProcessHere::of(&spec, process, &self.dirs, &self.outputs)?;
            let asks = plan(&here, timeout)?;
            self.kill_role(process, Role::Ready)?;
            self.stands(Step::CheckReady { process }, on_done)?;
            let asked = command::ask(&self.dirs, &asks.plan, Role::Ready, self.footing()?).map_err(words)?;
            Ok((asks, asked))
        };
        let revoke = || {
            if let Err(error) = self.kill_role(process, Role::Ready) {
                tracing::warn!(service = self.name, error, "a probe that is not wanted any more still runs");
            }
        };
        let wanted = || self.processes.is_newest(number);
        let found = match self.processes.make(number, begin, revoke) {
            Ok((asks, asked)) => asks.finding(&self.dirs, asked, &wanted),
            Err(why) => Finding::NotAsked(why),
        };
        let (why, recovers) = match found {
            Finding::Healthy => return true,
            Finding::Recovering(why) => (why, true),
            Finding::Unhealthy(why) | Finding::Gone(why) | Finding::NotAsked(why) => (why, false),
        };
        if wanted() {
            let event = Event::NotReady { process, why, recovers };
            on_done(Done { service: self.name.clone(), event });
        }
        false
    }
}

/// A command that asks a process, and what its answer means.
struct Asks {
    plan: ProcessPlan,
    /// How long the process has to answer.
    timeout: Duration,
    /// How long the command is waited for.
    patience: Duration,
    /// The runner whose own monitor this is.
    monitor: Option<&'static dyn Runner>,
}

impl Asks {
    /// Waits for the answer.
    fn finding(&self, dirs: &ServiceDirs, asked: Asked, wanted: &dyn Fn() -> bool) -> Finding {
        let answer = command::answer(dirs, &self.plan, asked, self.patience, wanted);
        match (self.monitor, answer) {
            (Some(runner), Ok((code, said))) => runner.judged(code, said),
            (_, answer) => finding(answer, self.timeout),
        }
    }
}

/// Returns the command that asks a process: its runner's own, or that of its probe.
fn plan(here: &ProcessHere, timeout: Duration) -> Result<Asks, String> {
    if let Some(monitor) = here.runner.monitor(here) {
        return Ok(Asks { plan: monitor?, timeout, patience: timeout, monitor: Some(here.runner) });
    }
    let (command, patience) = match &here.process.probe {
        None => return Err("it has no probe".into()),
        Some(Probe::Command(command)) => (command.clone(), timeout),
        Some(probe) => {
            let spec = serde_json::to_string(probe).map_err(words)?;
            let seconds = timeout.as_secs().to_string();
            let command = [THIS_PROGRAM, "probe", "--timeout-s", &seconds, "--spec", &spec];
            (command.map(str::to_owned).into(), timeout + SAYS_WHERE)
        }
    };
    Ok(Asks { plan: here.plan(&command)?, timeout, patience, monitor: None })
}

fn finding(answer: Result<(i32, String), ProcessError>, timeout: Duration) -> Finding {
    let said = |code, said: String| match (code, said.is_empty()) {
        (-1, true) => "a signal ended its probe".into(),
        (code, true) => format!("its probe ended with exit status {code}"),
        (_, false) => said,
    };
    match answer {
        Ok((0, _)) => Finding::Healthy,
        Ok((RECOVERS, words)) => Finding::Recovering(said(RECOVERS, words)),
        Ok((code, words)) => Finding::Unhealthy(said(code, words)),
        Err(ProcessError::Timeout { .. }) => {
            Finding::Unhealthy(format!("there was no answer within {} s", timeout.as_secs()))
        }
        Err(error) => Finding::NotAsked(words(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::made;
    use super::*;
    use crate::service::cgroup;
    use crate::service::mount::cgroup2_mount;
    use crate::service::runners::Note;
    use mainstay_ha::ServiceSpec;
    use std::path::PathBuf;
    use std::time::Instant;

    const SECOND: Duration = Duration::from_secs(1);

    /// A service whose process is noted as running, with this script as its probe; its cgroup is
    /// gone when dropped.
    struct Probed {
        work: Work,
        root: PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Probed {
        fn new(name: &str, command: &str) -> Option<Self> {
            let root = format!("mainstay-test-{}-probe-{name}", std::process::id());
            let root = cgroup2_mount().map(|mount| mount.join(root))?;
            if std::fs::create_dir_all(&root).is_err() {
                eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
                return None;
            }
            let dir = tempfile::tempdir().unwrap();
            let spec = format!(
                "name='s'\nresource='db'\n[[process]]\nname='p'\ncommand=['/bin/true']\nprobe={{command={command}}}\n"
            );
            let dirs =
                ServiceDirs { cgroup: root.join("s"), logs: dir.path().join("logs"), log_writer: Vec::new() };
            let work = made(dir.path(), &ServiceSpec::parse(&spec).unwrap(), dirs);
            lock(&work.running).insert(0, Note::of(&"the process"));
            Some(Self { work, root, _dir: dir })
        }

        fn script(name: &str, script: &str) -> Option<Self> {
            Self::new(name, &format!("['/bin/sh', '-c', '{script}']"))
        }
    }

    impl Drop for Probed {
        fn drop(&mut self) {
            cgroup::remove(&self.root.join("s"));
            cgroup::remove(&self.root);
        }
    }

    #[test]
    fn the_exit_code_and_the_last_line_of_a_probe_are_its_finding() {
        let healthy = Finding::Healthy;
        let unhealthy = |why: &str| Finding::Unhealthy(why.into());
        for (name, script, found) in [
            ("well", "exit 0", healthy.clone()),
            ("says", "echo all is well", healthy),
            ("ill", "echo one; echo two; echo; exit 1", unhealthy("two")),
            ("errors", "echo refused >&2; exit 3", unhealthy("refused")),
            ("mute", "exit 3", unhealthy("its probe ended with exit status 3")),
            ("killed", "kill -9 $$", unhealthy("a signal ended its probe")),
            ("recovers", "echo starting up; exit 75", Finding::Recovering("starting up".into())),
            ("much", "head -c 1000000 /dev/zero; echo; echo much; exit 1", unhealthy("much")),
        ] {
            let Some(asked) = Probed::script(name, script) else { return };
            assert_eq!(asked.work.ask_process(0, SECOND * 20), found, "{script}");
        }
    }

    #[test]
    fn a_probe_that_hangs_ends_with_its_time_limit_and_all_that_it_started() {
        let Some(asked) = Probed::script("hangs", "sleep 1000 & sleep 1000") else { return };
        let began = Instant::now();
        let found = asked.work.ask_process(0, SECOND);
        assert_eq!(found, Finding::Unhealthy("there was no answer within 1 s".into()));
        assert!(began.elapsed() < SECOND * 10, "{:?}", began.elapsed());
        assert!(!cgroup::is_populated(&asked.root.join("s")), "something of it is left");
    }

    #[test]
    fn a_probe_that_cannot_begin_says_nothing_of_its_process() {
        let Some(asked) = Probed::new("missing", "['/nowhere/ask']") else { return };
        let found = asked.work.ask_process(0, SECOND);
        assert!(matches!(&found, Finding::NotAsked(why) if why.contains("/nowhere/ask")), "{found:?}");
        let Some(asked) = Probed::script("stopped", "exit 1") else { return };
        lock(&asked.work.running).clear();
        assert_eq!(asked.work.ask_process(0, SECOND), Finding::NotAsked(CALLED_OFF.into()));
        assert!(!asked.root.join("s/p/probe").exists(), "it was begun");
    }

    #[test]
    fn no_probe_outlives_the_stop_or_the_kill_of_its_process() {
        for kill in [true, false] {
            let Some(asked) = Probed::script("outlives", "sleep 1000") else { return };
            std::thread::scope(|scope| {
                let probe = scope.spawn(|| asked.work.ask_process(0, SECOND * 60));
                let probes = asked.root.join("s/p/probe");
                while !cgroup::is_populated(&probes) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let number = asked.work.processes.number();
                if kill {
                    asked.work.kill(number).unwrap();
                } else {
                    let step = Step::StartProcess { process: 0 };
                    asked.work.undo(step, Some(number), false, SECOND * 20).unwrap();
                }
                assert!(!cgroup::is_populated(&probes));
                assert!(matches!(probe.join().unwrap(), Finding::Unhealthy(_)));
            });
        }
    }
}
