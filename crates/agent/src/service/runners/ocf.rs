//! OCF resource agents: programs that start, stop and monitor something else.
//!
//! An agent's `start` runs in the cgroup of its process, and all that it leaves behind stays there,
//! so the kill of the cgroup, the engine's guard and the silencer reach it. The other actions have
//! cgroups beside it.
//!
//! | what runs | what is known |
//! |---|---|
//! | `start` | the process starts; no monitor is asked |
//! | nothing, `start` ended well | monitors tell whether it is ready, and later whether it runs |
//! | nothing, `start` failed | the process has ended, with the meaning of the exit code |
//! | `stop` | the process is being stopped; then its cgroup is killed |
//!
//! Guarantees
//! - No monitor is begun beside a start or a stop.
//! - A stop and a kill succeed when the cgroup is empty. An effect that is no process, such as a
//!   state file, is taken away by the agent's `stop`, as well as the agent can.
//! - Processes stay in their cgroup also where `su` would open a session of systemd-logind, which
//!   moves them to a cgroup of its own: agents find programs [`SHIMS`] that open none.

use super::{Ended, Note, ProcessHere, Readiness, Runner, Started, Watch};
use crate::service::cgroup;
use crate::service::command::{
    Identified, ProcessError, ProcessPlan, Role, SEARCH_PATH, ServiceDirs, begin, finish, log_path, said,
    spawn,
};
use crate::service::footing::Footing;
use crate::service::lacks::{Lack, is_on_volume};
use crate::service::lane::Haste;
use mainstay_ha::{
    Finding, Metadata, OCF_DEGRADED, OCF_NOT_RUNNING, OCF_ROOT, OCF_SUCCESS, Ocf, Process, ServiceSpec,
    ocf_is_permanent, ocf_words,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often the processes of an agent are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long the processes that a start leaves behind must have lived before their end is the end of
/// what the agent runs. Some agents leave programs that only finish the start.
const SETTLED: Duration = Duration::from_millis(if cfg!(test) { 300 } else { 5000 });
/// How long the rest of a cgroup may take to vanish after a stop.
const REST_PATIENCE: Duration = Duration::from_secs(5);
/// How long the `stop` after a kill may take, which only clears up.
const CLEARING: Duration = Duration::from_secs(if cfg!(test) { 20 } else { 3 });
/// How long an agent may take to describe itself, within the time that a node has to answer.
const METADATA_WAIT: Duration = Duration::from_millis(if cfg!(test) { 20_000 } else { 600 });
/// Most of a description that is read, in bytes.
const METADATA_BYTES_MAX: u64 = 1 << 20;
/// Directory in which Debian's agents keep state files.
const STATE_FILES: &str = "/run/resource-agents";
/// Programs that are put before the system's own on the path of agents.
const SHIMS: [&str; 2] = ["su", "runuser"];
/// Runs a command as another user without a session: the options that ask for one are left out.
const SHIM: &str = "#!/bin/sh
# Made by Mainstay. A session of systemd-logind would take the process out of its control group.
for word; do
    shift
    case $word in
        - | -l | --login) ;;
        *) set -- \"$@\" \"$word\" ;;
    esac
done
exec /usr/sbin/runuser \"$@\"
";

pub(super) struct OcfAgent;

/// A start that was begun.
#[derive(Serialize, Deserialize)]
struct Begun {
    name: String,
    #[serde(flatten)]
    start: Identified,
}

impl Runner for OcfAgent {
    fn takes(&self, process: &Process) -> bool {
        process.ocf.is_some()
    }

    fn lacks(&self, process: &Process, spec: &ServiceSpec) -> Vec<Lack> {
        let Some(ocf) = &process.ocf else { return Vec::new() };
        let path = program(ocf, process);
        if is_on_volume(&path, spec) {
            return Vec::new();
        }
        let lack = |problem: String, remedy: &str| {
            vec![Lack { field: "ocf.agent".into(), problem, remedy: remedy.into() }]
        };
        match metadata(&path, process) {
            Ok(Some(metadata)) => {
                let faults = ocf.faults(&metadata).into_iter();
                faults
                    .map(|fault| Lack { field: fault.field, problem: fault.problem, remedy: fault.remedy })
                    .collect()
            }
            Ok(None) => Vec::new(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => lack(
                format!("there is no resource agent {}, no {}", ocf.agent, path.display()),
                "install it there, on Debian with the package resource-agents, or correct the name",
            ),
            Err(error) => lack(
                format!("the resource agent {} does not describe itself: {error}", ocf.agent),
                "run it there with the action meta-data to see why",
            ),
        }
    }

    fn start(&self, here: &ProcessHere, footing: Footing) -> Result<Started, String> {
        let plan = action(here, "start", here.process.start_timeout_s)?;
        make_places(here.dirs).map_err(|error| format!("the place for the agent's files: {error}"))?;
        // From here on a kill clears up.
        let mark = mark(here);
        fs::write(&mark, "").map_err(|error| format!("{}: {error}", mark.display()))?;
        let mut child = spawn(here.dirs, &plan, Role::Main, footing).map_err(|error| error.to_string())?;
        let note = Note::of(&Begun { name: plan.name, start: Identified::of(&child) });
        let (tell, cgroup) = (words(here), main(here));
        let watch: Watch =
            Box::new(move |wanted: &dyn Fn() -> bool| match child.wait().map(|status| status.code()) {
                Ok(Some(OCF_SUCCESS)) => tell.processes_ended(&cgroup, wanted),
                Ok(code) => tell.failed(code.unwrap_or(-1)),
                Err(error) => Ended::from(error.to_string()),
            });
        Ok(Started { note, watch })
    }

    fn adopt(&self, here: &ProcessHere, note: &Note) -> Watch {
        let (begun, tell, cgroup) = (note.read::<Begun>(), words(here), main(here));
        Box::new(move |wanted: &dyn Fn() -> bool| {
            // Whether that start ended well is for the monitor to say.
            while wanted() && begun.as_ref().is_some_and(|begun| begun.start.is_alive()) {
                std::thread::sleep(LOOK);
            }
            tell.processes_ended(&cgroup, wanted)
        })
    }

    /// An agent need not run a process, so a start that was noted counts until a monitor
    /// or the watch says otherwise.
    fn runs(&self, _: &ProcessHere, _: &Note) -> bool {
        true
    }

    fn ready(&self, _: &ProcessHere, note: Option<&Note>, _: Duration) -> Result<Readiness, String> {
        let starts = note.and_then(Note::read::<Begun>).is_some_and(|begun| begun.start.is_alive());
        Ok(if starts { Readiness::NotYet } else { Readiness::Probe })
    }

    fn monitor(&self, here: &ProcessHere) -> Option<Result<ProcessPlan, String>> {
        let ocf = here.process.ocf.as_ref()?;
        let plan = action(here, "monitor", ocf.monitor_timeout_s).map(|mut plan| {
            let interval = (ocf.monitor_interval_s * 1000).to_string();
            plan.env.insert("OCF_RESKEY_CRM_meta_interval".into(), interval);
            plan
        });
        Some(plan)
    }

    fn judged(&self, code: i32, said: String) -> Finding {
        let words = match said.is_empty() {
            true => ocf_words(code),
            false => format!("{} ({said})", ocf_words(code)),
        };
        match code {
            OCF_SUCCESS | OCF_DEGRADED => Finding::Healthy,
            OCF_NOT_RUNNING => Finding::Gone(format!("its agent's monitor ended with {words}")),
            _ => Finding::Unhealthy(format!("its agent's monitor ended with {words}")),
        }
    }

    fn stop(&self, here: &ProcessHere, note: &Note, haste: Haste) -> Result<(), String> {
        let rest = [Role::Probe, Role::Ready].map(|role| here.dirs.role(&here.process.name, role));
        cgroup::kill(&rest, REST_PATIENCE).map_err(|error| error.to_string())?;
        if haste == Haste::AtOnce {
            return self.kill(here, REST_PATIENCE);
        }
        // A start that is under way is called off, and the stop clears up after it.
        if note.read::<Begun>().is_some_and(|begun| begun.start.is_alive()) {
            cgroup::kill(&[main(here)], REST_PATIENCE).map_err(|error| error.to_string())?;
        }
        clear_up(here, Duration::from_secs(here.process.stop_timeout_s));
        kill_all(here, REST_PATIENCE)
    }

    fn kill(&self, here: &ProcessHere, patience: Duration) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        kill_all(here, patience)?;
        let left = deadline.saturating_duration_since(Instant::now()) / 2;
        if left > LOOK && mark(here).exists() {
            clear_up(here, left.min(CLEARING));
            return kill_all(here, deadline.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

fn main(here: &ProcessHere) -> PathBuf {
    here.dirs.role(&here.process.name, Role::Main)
}

fn kill_all(here: &ProcessHere, patience: Duration) -> Result<(), String> {
    cgroup::kill(&[here.dirs.process(&here.process.name)], patience).map_err(|error| error.to_string())
}

/// The mark of a start that no stop has cleared up after yet. It outlives a reboot: then a stop
/// finds nothing.
fn mark(here: &ProcessHere) -> PathBuf {
    here.dirs.logs.join(format!("{}.ocf", here.process.name))
}

/// Runs the agent's `stop`. Processes are killed after it in any case, so that a stop that fails
/// holds up nothing.
fn clear_up(here: &ProcessHere, patience: Duration) {
    let stopped = action(here, "stop", patience.as_secs().max(1)).and_then(|plan| {
        let run = begin(here.dirs, &plan, Role::Stop, Footing::default());
        let result = run.and_then(|begun| finish(here.dirs, &plan, begun, patience, &|| true));
        result.map_err(|error| match error {
            ProcessError::Failed { status, .. } => {
                format!("the agent's stop ended with {}", ocf_words(status.code().unwrap_or(-1)))
            }
            error => error.to_string(),
        })
    });
    match stopped {
        Ok(()) => drop(fs::remove_file(mark(here))),
        Err(error) => {
            tracing::warn!(
                process = here.process.name,
                error,
                "an agent did not stop; its processes are killed"
            );
        }
    }
}

/// The file of an agent.
fn program(ocf: &Ocf, process: &Process) -> PathBuf {
    let (provider, kind) = ocf.names().unwrap_or_default();
    root(process).join("resource.d").join(provider).join(kind)
}

fn root(process: &Process) -> &Path {
    Path::new(process.env.get("OCF_ROOT").map_or(OCF_ROOT, String::as_str))
}

/// The command of one action, with the environment that the API of agents names.
fn action(here: &ProcessHere, action: &str, timeout_s: u64) -> Result<ProcessPlan, String> {
    let ocf = here.process.ocf.as_ref().ok_or("it names no agent")?;
    let path = program(ocf, here.process).display().to_string();
    let mut plan = here.plan(&[path, action.to_owned()])?;
    let shims = shims(here.dirs);
    let search = plan.env.get("PATH").map_or(SEARCH_PATH, String::as_str);
    let search = format!("{}:{search}", shims.display());
    plan.env.extend(environment(ocf, here.process));
    let service = here.dirs.cgroup.file_name().unwrap_or_default().to_string_lossy();
    let instance = format!("{service}-{}", here.process.name);
    let more = [
        ("PATH", search),
        ("OCF_RESOURCE_INSTANCE", instance),
        ("OCF_RESKEY_CRM_meta_name", action.to_owned()),
        ("OCF_RESKEY_CRM_meta_timeout", (timeout_s * 1000).to_string()),
    ];
    plan.env.extend(more.map(|(name, value)| (name.to_owned(), value)));
    Ok(plan)
}

/// Environment of an agent that does not depend on the action.
fn environment(ocf: &Ocf, process: &Process) -> BTreeMap<String, String> {
    let (provider, kind) = ocf.names().unwrap_or_default();
    let named = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let fixed = [
        ("OCF_ROOT", &*root(process).to_string_lossy()),
        ("OCF_RA_VERSION_MAJOR", "1"),
        ("OCF_RA_VERSION_MINOR", "1"),
        ("OCF_RESOURCE_TYPE", kind),
        ("OCF_RESOURCE_PROVIDER", provider),
        // Its output goes to the log of the process.
        ("HA_LOGFACILITY", "none"),
        ("LC_ALL", "C.UTF-8"),
    ]
    .map(named);
    let params = ocf.params.iter().map(|(name, value)| (format!("OCF_RESKEY_{name}"), value.clone()));
    fixed.into_iter().chain(params).collect()
}

fn shims(dirs: &ServiceDirs) -> PathBuf {
    dirs.logs.join("ocf-bin")
}

/// Makes the programs that agents find before the system's own, and the directory for state files.
fn make_places(dirs: &ServiceDirs) -> io::Result<()> {
    let shims = shims(dirs);
    fs::create_dir_all(&shims)?;
    for name in SHIMS {
        let path = shims.join(name);
        if fs::read_to_string(&path).is_ok_and(|text| text == SHIM) {
            continue;
        }
        let fresh = shims.join(format!("{name}.new"));
        fs::write(&fresh, SHIM)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o755))?;
        fs::rename(&fresh, &path)?;
    }
    // Where agents are installed the system makes it at each boot.
    if !Path::new(STATE_FILES).exists() && fs::create_dir_all(STATE_FILES).is_ok() {
        fs::set_permissions(STATE_FILES, Permissions::from_mode(0o1755))?;
    }
    Ok(())
}

/// Asks an agent to describe itself; `None` if that takes too long to know.
fn metadata(path: &Path, process: &Process) -> io::Result<Option<Metadata>> {
    let Some(ocf) = &process.ocf else { return Ok(None) };
    let mut command = Command::new(path);
    command.arg("meta-data").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env_clear().env("PATH", SEARCH_PATH).envs(environment(ocf, process));
    command.env("OCF_RESOURCE_INSTANCE", "meta-data").current_dir("/").process_group(0);
    let mut child = command.spawn()?;
    let mut out = child.stdout.take().map(|out| out.take(METADATA_BYTES_MAX));
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = out.as_mut().map_or(Ok(0), |out| out.read_to_end(&mut bytes));
        read.map(|_| bytes)
    });
    let deadline = Instant::now() + METADATA_WAIT;
    while !reader.is_finished() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    let in_time = reader.is_finished();
    // Also what it started: that has the same group.
    if let Ok(group) = i32::try_from(child.id()) {
        let _ =
            nix::sys::signal::killpg(nix::unistd::Pid::from_raw(group), nix::sys::signal::Signal::SIGKILL);
    }
    drop(child.wait());
    if !in_time {
        return Ok(None);
    }
    let bytes = reader.join().map_err(|_| io::Error::other("its answer could not be read"))??;
    let found = Metadata::parse(&String::from_utf8_lossy(&bytes));
    found.map(Some).ok_or_else(|| io::Error::other("its answer is no meta-data"))
}

/// Words on the end of an agent.
struct Words {
    agent: String,
    log: PathBuf,
}

fn words(here: &ProcessHere) -> Words {
    let agent = here.process.ocf.as_ref().map_or_else(String::new, |ocf| ocf.agent.clone());
    Words { agent, log: log_path(here.dirs, &here.process.name) }
}

impl Words {
    /// A start that failed.
    fn failed(&self, code: i32) -> Ended {
        let Self { agent, log } = self;
        let words = ocf_words(code);
        let status = format!("the start of {agent} ended with {words}{}; see {}", said(log), log.display());
        Ended { status, is_permanent: ocf_is_permanent(code) }
    }

    /// Waits for the end of the processes that a start has left, if it has left any that stay.
    fn processes_ended(&self, cgroup: &Path, wanted: &dyn Fn() -> bool) -> Ended {
        let (mut since, mut settled) = (None, false);
        while wanted() {
            if cgroup::is_populated(cgroup) {
                settled = since.get_or_insert_with(Instant::now).elapsed() >= SETTLED;
            } else if settled {
                break;
            } else {
                since = None;
            }
            std::thread::sleep(LOOK);
        }
        let Self { agent, log } = self;
        Ended::from(format!(
            "all processes that {agent} had started are gone{}; see {}",
            said(log),
            log.display()
        ))
    }
}

#[cfg(test)]
mod tests;
