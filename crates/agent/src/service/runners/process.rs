//! Plain processes: programs that the agent starts itself and that stay in the foreground.
//!
//! Guarantees
//! - Processes survive the agent. The next one finds them by process id and start time.
//! - A process is stopped by a signal to its process group. What is left of its cgroup after its
//!   patience is killed.

use super::{Note, ProcessHere, Readiness, Runner, Started, Watch};
use crate::service::cgroup;
use crate::service::command::{
    Identified, ProcessError, ProcessPlan, Role, ServiceDirs, log_path, said, spawn,
};
use crate::service::footing::Footing;
use crate::service::lacks::{Lack, program_lacks};
use crate::service::lane::Haste;
use crate::sys::OtherProcess;
use mainstay_ha::{Process, ServiceSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::process::Child;
use std::str::FromStr;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(20);
/// How often a process is looked at that is no child of this agent, where the kernel does not tell
/// of its end.
const LOOK: Duration = Duration::from_millis(20);
/// How often it is asked whether the watch over such a process is still wanted.
const LONG_LOOK: Duration = Duration::from_millis(500);
/// How long the rest of a cgroup may take to vanish after a stop.
const REST_PATIENCE: Duration = Duration::from_secs(5);

pub(super) struct PlainProcess;

/// A process that was started, by this agent or by its predecessor.
#[derive(Serialize, Deserialize)]
struct Running {
    name: String,
    #[serde(flatten)]
    process: Identified,
}

impl Runner for PlainProcess {
    fn takes(&self, process: &Process) -> bool {
        !process.command.is_empty()
    }

    fn lacks(&self, process: &Process, spec: &ServiceSpec) -> Vec<Lack> {
        program_lacks("command", &process.command, process, spec).into_iter().collect()
    }

    fn start(&self, here: &ProcessHere, footing: Footing) -> Result<Started, String> {
        let plan = here.plan(&here.process.command)?;
        let (running, mut child) = start(here.dirs, &plan, footing).map_err(|error| error.to_string())?;
        let end = words(here);
        let watch: Watch = Box::new(move |_: &dyn Fn() -> bool| {
            end(&child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())).into()
        });
        Ok(Started { note: Note::of(&running), watch })
    }

    fn adopt(&self, here: &ProcessHere, note: &Note) -> Watch {
        let (running, end) = (note.read::<Running>(), words(here));
        Box::new(move |wanted: &dyn Fn() -> bool| {
            let other = running.as_ref().and_then(|running| OtherProcess::open(running.process.pid).ok());
            // The descriptor is of the right process if that is alive after it was opened.
            while wanted() && running.as_ref().is_some_and(|running| running.process.is_alive()) {
                match &other {
                    Some(other) => {
                        let _ = other.ends_within(LONG_LOOK);
                    }
                    None => std::thread::sleep(LOOK),
                }
            }
            end("its exit status is not known, because the agent was restarted meanwhile").into()
        })
    }

    fn runs(&self, _: &ProcessHere, note: &Note) -> bool {
        note.read::<Running>().is_some_and(|running| running.process.is_alive())
    }

    fn ready(&self, here: &ProcessHere, _: Option<&Note>, waited: Duration) -> Result<Readiness, String> {
        super::answer_of_test(here, waited)
    }

    fn stop(&self, here: &ProcessHere, note: &Note, haste: Haste) -> Result<(), String> {
        let Some(running) = note.read::<Running>() else { return self.kill(here, REST_PATIENCE) };
        let (signal, patience) = match haste {
            Haste::Orderly => {
                (here.process.stop_signal.as_str(), Duration::from_secs(here.process.stop_timeout_s))
            }
            Haste::AtOnce => ("SIGKILL", Duration::ZERO),
        };
        stop(here.dirs, &running, signal, patience).map_err(|error| error.to_string())
    }

    fn kill(&self, here: &ProcessHere, patience: Duration) -> Result<(), String> {
        let cgroup = here.dirs.process(&here.process.name);
        cgroup::kill(&[cgroup], patience).map_err(|error| error.to_string())
    }
}

/// Returns what tells of an end: the status, the last words, and where to read on.
fn words(here: &ProcessHere) -> impl Fn(&str) -> String + Send + use<> {
    let log = log_path(here.dirs, &here.process.name);
    move |status| format!("{status}{}; see {}", said(&log), log.display())
}

/// Starts a process in its cgroup and does not wait for it.
fn start(dirs: &ServiceDirs, plan: &ProcessPlan, footing: Footing) -> Result<(Running, Child), ProcessError> {
    let child = spawn(dirs, plan, Role::Main, footing)?;
    Ok((Running { name: plan.name.clone(), process: Identified::of(&child) }, child))
}

/// Stops a process: the signal to its process group, then, after `timeout`, the end of its whole
/// cgroup.
fn stop(dirs: &ServiceDirs, running: &Running, signal: &str, timeout: Duration) -> Result<(), ProcessError> {
    let signal = parse_signal(signal)?;
    if running.process.is_alive() {
        let pid = Pid::from_raw(running.process.pid);
        // The process leads its own session and thereby its own process group. A database gets the
        // signal once, from here. The process may have ended by itself just now.
        let _ = kill(pid, signal);
        let deadline = Instant::now() + timeout;
        while running.process.is_alive() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
    Ok(cgroup::kill(&[dirs.process(&running.name)], REST_PATIENCE)?)
}

fn parse_signal(name: &str) -> Result<Signal, ProcessError> {
    let upper = name.to_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    Signal::from_str(&full).map_err(|_| ProcessError::UnknownSignal(name.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::command::{begin, finish};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    /// The end is heard of, and not looked for at the end of a pause.
    #[test]
    fn the_end_of_a_process_that_is_no_child_is_heard_at_once() {
        let script = "sleep 300 >/dev/null 2>&1 & echo $!";
        let shell = std::process::Command::new("/bin/sh").args(["-c", script]).output().expect("a shell");
        let pid: i32 = String::from_utf8_lossy(&shell.stdout).trim().parse().expect("a process id");
        let other = OtherProcess::open(pid).expect("it runs");
        assert!(!other.ends_within(Duration::from_millis(10)));
        let start = Instant::now();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            kill(Pid::from_raw(pid), Signal::SIGKILL)
        });
        assert!(other.ends_within(Duration::from_secs(120)));
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
        killer.join().expect("it ends").expect("it is killed");
        assert!(OtherProcess::open(-1).is_err());
    }

    fn dirs(dir: &Path) -> Option<ServiceDirs> {
        let root =
            crate::service::mount::cgroup2_mount()?.join(format!("mainstay-test-{}", std::process::id()));
        fs::create_dir_all(&root).ok()?;
        Some(ServiceDirs { cgroup: root.join("svc"), logs: dir.join("logs"), log_writer: Vec::new() })
    }

    fn plan(script: &str) -> ProcessPlan {
        ProcessPlan {
            name: "p".into(),
            command: vec!["sh".into(), "-c".into(), script.into()],
            user: None,
            env: BTreeMap::from([("WORD".to_owned(), "hello".to_owned())]),
            output: None,
        }
    }

    #[test]
    fn a_process_and_all_that_it_started_are_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let Some(dirs) = dirs(dir.path()) else {
            eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
            return;
        };
        // The shell ignores the signal, and has a child in a session of its own.
        let (running, mut child) = start(
            &dirs,
            &plan("trap '' TERM; echo $WORD; setsid sleep 1000 & while :; do sleep 0.1; done"),
            Footing::default(),
        )
        .unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while fs::read_to_string(dirs.logs.join("p.log")).unwrap() != "hello\n" {
            assert!(Instant::now() < deadline, "the process wrote no log");
            std::thread::sleep(POLL);
        }
        assert!(running.process.is_alive() && cgroup::is_populated(&dirs.cgroup));
        stop(&dirs, &running, "TERM", Duration::from_millis(200)).unwrap();
        drop(child.wait());
        assert!(!running.process.is_alive() && !cgroup::is_populated(&dirs.cgroup));
        let run = |script: &str, timeout_ms: u64| {
            let started = begin(&dirs, &plan(script), Role::Prepare, Footing::default())?;
            finish(&dirs, &plan(script), started, Duration::from_millis(timeout_ms), &|| true)
        };
        assert!(run("exit 0", 5_000).is_ok());
        assert!(matches!(run("exit 3", 5_000), Err(ProcessError::Failed { .. })));
        assert!(matches!(run("sleep 1000", 100), Err(ProcessError::Timeout { .. })));
        cgroup::remove(&dirs.cgroup);
        cgroup::remove(dirs.cgroup.parent().unwrap());
    }

    /// `p-ready` was the cgroup of the readiness test of `p` once, and is a process here.
    #[test]
    fn processes_whose_names_meet_are_stopped_one_by_one() {
        let dir = tempfile::tempdir().unwrap();
        let Some(dirs) = dirs(dir.path()) else {
            eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
            return;
        };
        let dirs = ServiceDirs { cgroup: dirs.cgroup.with_file_name("meet"), ..dirs };
        let named = |name: &str| ProcessPlan { name: name.into(), ..plan("exec sleep 1000") };
        let mut started: Vec<(Running, Child)> = ["p", "p-ready", "p-prepare", "ready", "main"]
            .map(|name| start(&dirs, &named(name), Footing::default()).unwrap())
            .into_iter()
            .collect();
        let test = ProcessPlan { name: "p".into(), ..plan("exit 0") };
        for role in [Role::Ready, Role::Prepare] {
            let run = begin(&dirs, &test, role, Footing::default()).unwrap();
            finish(&dirs, &test, run, Duration::from_secs(5), &|| true).unwrap();
        }
        while let Some((running, mut child)) = (!started.is_empty()).then(|| started.remove(0)) {
            stop(&dirs, &running, "TERM", Duration::from_secs(5)).unwrap();
            drop(child.wait());
            assert!(!running.process.is_alive());
            for (other, _) in &started {
                assert!(other.process.is_alive(), "{} died with {}", other.name, running.name);
            }
        }
        cgroup::remove(&dirs.cgroup);
        assert!(!dirs.cgroup.exists());
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(parse_signal("quit").unwrap(), Signal::SIGQUIT);
        assert_eq!(parse_signal("SIGINT").unwrap(), Signal::SIGINT);
        assert!(parse_signal("BANG").is_err());
    }

    /// Agents of all releases read the notes of one another.
    #[test]
    fn the_note_of_a_process_has_its_name_its_id_and_its_start() {
        let process = Identified { pid: 7, start_ticks: 9 };
        let note = serde_json::to_value(Note::of(&Running { name: "p".into(), process })).unwrap();
        assert_eq!(note, serde_json::json!({"name": "p", "pid": 7, "start_ticks": 9}));
    }
}
