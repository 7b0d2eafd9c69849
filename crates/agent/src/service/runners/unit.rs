//! Units of systemd: services that systemd starts and stops for Mainstay.
//!
//! ```text
//!   start   state and starters looked at ─ drop-in ─ daemon-reload ─ settings looked at ─ footing ─ StartUnit
//!   watch   JobRemoved ─ state ─ pidfd of the main process ─ state ─ … ─ ended
//!   stop    StopUnit ─ JobRemoved ─ kill
//!   kill    cgroup.kill ─ StopUnit ─ state ─ drop-in away ─ daemon-reload
//! ```
//!
//! Guarantees
//! - A unit runs in the slice of its service, so its cgroup is known without D-Bus. The engine's
//!   guard and the silencer kill that cgroup (R19).
//! - A unit that another unit would start is not started: a socket, a timer and the like (R19).
//! - A unit that runs and is in another slice is somebody else's. It is refused, and never stopped
//!   or killed (R27).
//! - A drop-in of another service or of an operator is neither changed nor removed. A directory of
//!   drop-ins is removed only if Mainstay has made it (R27).
//! - While the drop-in is there, systemd may still start something: a kill succeeds only after
//!   systemd has said that nothing of the unit runs (R19).
//! - The unit looks itself whether its node is being silenced, in its cgroup, just before its
//!   program begins; and whether there is a mount at the path of its file system (R28).
//!
//! Not guaranteed: a node that is silenced while systemd makes the main process, in the moment
//! after that look, may run it until systemd or the agent is asked to end it.

mod activation;
mod bus;

use super::{Ended, Note, ProcessHere, Readiness, Runner, Started, Watch};
use crate::service::cgroup;
use crate::service::command::ServiceDirs;
use crate::service::footing::{BARRED, Footing};
use crate::service::lacks::Lack;
use crate::service::lane::Haste;
use crate::service::mount::cgroup2_mount;
use crate::sys::OtherProcess;
use bus::{Bus, Systemd};
use mainstay_ha::{
    Process, ServiceSpec, UnitFault, UnitFound, UnitGate, UnitStarter, UnitState, drop_in_made_directory,
    drop_in_owner, unit_cgroup, unit_drop_in,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where drop-ins are that do not outlive a boot.
const DROP_INS: &str = "/run/systemd/system";
/// Comes after the name of every usual drop-in, so that its settings count.
const DROP_IN: &str = "zz-mainstay.conf";
/// How long one call may take. On a busy machine systemd needs seconds to read its units anew.
const CALL: Duration = Duration::from_secs(20);
/// How long a question of an operator may take, within the time that a node has to answer.
const QUESTION: Duration = Duration::from_millis(600);
/// Pause between two looks at a unit that starts or ends.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is asked whether a watch is still wanted.
const LONG_LOOK: Duration = Duration::from_millis(500);
/// How often the state of a unit is looked at whose main process runs.
const STATE_LOOK: Duration = Duration::from_secs(10);
/// How long the rest of a unit may take to end once its main process has, before it is told.
const ENDING: Duration = Duration::from_secs(1);
/// How much longer than its own limit a stop is waited for.
const STOP_MARGIN: Duration = Duration::from_secs(2);
/// How long the rest of a unit may take to vanish after a stop.
const REST_PATIENCE: Duration = Duration::from_secs(5);
/// Longest start of a unit. The machine ends one that takes longer than its specification says.
const START_MAX: Duration = Duration::from_secs(24 * 3600);

pub(super) struct SystemdUnit;

/// A start that was begun. The job tells it from other starts of this boot.
#[derive(Serialize, Deserialize)]
struct Begun {
    unit: String,
    job: String,
}

impl Runner for SystemdUnit {
    fn takes(&self, process: &Process) -> bool {
        process.unit.is_some()
    }

    fn lacks(&self, process: &Process, spec: &ServiceSpec) -> Vec<Lack> {
        let Some(unit) = &process.unit else { return Vec::new() };
        let lack = |UnitFault { problem, remedy }| vec![Lack { field: "unit".into(), problem, remedy }];
        if let Some(problem) = bus::absence() {
            let remedy =
                "run the program of the unit as a `command`, or boot the node with systemd and D-Bus";
            return lack(UnitFault { problem, remedy: remedy.into() });
        }
        // A thread of its own: the caller may be in a runtime already.
        let asked = std::thread::scope(|scope| {
            let ask = || {
                let bus = Bus::open(QUESTION)?;
                let state = bus.state(unit)?;
                // Without an answer none is known.
                let starters = bus.starters(unit).unwrap_or_default();
                Ok::<_, String>((state, starters))
            };
            scope.spawn(ask).join().unwrap_or_else(|_| Err("the question failed".into()))
        });
        let Ok((state, starters)) = asked else { return Vec::new() };
        let fault = state.fault(unit, &spec.name).or_else(|| DropIn::of(unit).fault(&spec.name));
        if let Some(fault) = fault {
            return lack(fault);
        }
        let faults = faults_of_starters(unit, &spec.name, &starters, Path::new(DROP_INS));
        faults.into_iter().flat_map(lack).collect()
    }

    fn cgroups(&self, process: &Process, dirs: &ServiceDirs) -> Vec<PathBuf> {
        process.unit.iter().filter_map(|unit| cgroup_of(unit, dirs)).collect()
    }

    fn start(&self, here: &ProcessHere, footing: Footing) -> Result<Started, String> {
        let named = Named::of(here)?;
        if named.cgroup.is_none() {
            return Err(
                "there are no control groups of version 2, so the unit could not be killed; mount them"
                    .into(),
            );
        }
        let bus = Bus::open(CALL)?;
        let job = named.begin(&bus, here.process.stop_timeout_s, &footing)?;
        let note = Note::of(&Begun { unit: named.unit.clone(), job: job.clone() });
        let watch: Watch = Box::new(move |wanted: &dyn Fn() -> bool| {
            // `done` is also said when a condition did not hold: only the state afterwards counts.
            let end = bus.job_end(&named.unit, &job, START_MAX, wanted);
            tracing::debug!(unit = named.unit, ?end, "the start of a unit has ended");
            // In the same conversation: systemd forgets a unit that was not started, and why.
            let state = bus.state(&named.unit).ok();
            drop(bus);
            named.ended(state, wanted)
        });
        Ok(Started { note, watch })
    }

    fn adopt(&self, here: &ProcessHere, _: &Note) -> Watch {
        let named = Named::of(here);
        Box::new(move |wanted: &dyn Fn() -> bool| match named {
            Ok(named) => named.ended(None, wanted),
            Err(why) => why.into(),
        })
    }

    /// A state that cannot be found out counts as running (R19).
    fn runs(&self, here: &ProcessHere, _: &Note) -> bool {
        let Ok(named) = Named::of(here) else { return false };
        match Bus::open(CALL).and_then(|bus| bus.state(&named.unit)) {
            Ok(state) => state.is_of(&named.service) && !matches!(state.found(), UnitFound::Ended { .. }),
            Err(_) => named.drop_in().is_of(&named.service),
        }
    }

    fn ready(&self, here: &ProcessHere, _: Option<&Note>, waited: Duration) -> Result<Readiness, String> {
        let named = Named::of(here)?;
        let found = Bus::open(CALL).and_then(|bus| bus.state(&named.unit)).map(|state| state.found());
        if found == Ok(UnitFound::Running) {
            return super::answer_of_test(here, waited);
        }
        // The watch tells of an end.
        std::thread::sleep(LOOK);
        Ok(Readiness::NotYet)
    }

    fn stop(&self, here: &ProcessHere, _: &Note, haste: Haste) -> Result<(), String> {
        if haste == Haste::Orderly {
            let stopped =
                Named::of(here).and_then(|named| named.stop(&Bus::open(CALL)?, here.process.stop_timeout_s));
            if let Err(error) = stopped {
                tracing::warn!(
                    process = here.process.name,
                    error,
                    "a unit did not stop; its processes are killed"
                );
            }
        }
        self.kill(here, REST_PATIENCE)
    }

    fn kill(&self, here: &ProcessHere, patience: Duration) -> Result<(), String> {
        let named = Named::of(here)?;
        let deadline = Instant::now() + patience;
        // First without asking anybody.
        let killed = named.kill_processes(patience);
        if !named.drop_in().is_of(&named.service) {
            return killed;
        }
        let left = deadline.saturating_duration_since(Instant::now()).max(LOOK);
        let bus = Bus::open(left.min(CALL)).map_err(|why| {
            let Named { unit, .. } = &named;
            format!("the processes of {unit} are killed, and systemd may start it again: {why}")
        })?;
        named.silence(&bus, deadline)?;
        killed
    }
}

/// A unit of a service on this node.
struct Named {
    unit: String,
    service: String,
    cgroup: Option<PathBuf>,
    /// Program of Mainstay that the unit asks before it starts; none in tests.
    gate: Option<PathBuf>,
    /// Where the drop-ins are.
    drop_ins: PathBuf,
}

impl Named {
    fn of(here: &ProcessHere) -> Result<Self, String> {
        let unit = here.process.unit.clone().ok_or("it names no unit")?;
        let cgroup = cgroup_of(&unit, here.dirs);
        // The agent that writes logs with this program is Mainstay itself.
        let gate = (!here.dirs.log_writer.is_empty()).then(own_program).flatten();
        Ok(Self { unit, service: service_of(here.dirs), cgroup, gate, drop_ins: DROP_INS.into() })
    }

    fn drop_in(&self) -> DropIn {
        DropIn::below(&self.drop_ins, &self.unit)
    }

    /// Begins the start, and returns its job.
    fn begin(&self, systemd: &dyn Systemd, stop_timeout_s: u64, footing: &Footing) -> Result<String, String> {
        let Self { unit, service, .. } = self;
        let refused = |UnitFault { problem, remedy }| format!("{problem}; {remedy}");
        let state = systemd.state(unit)?;
        if let Some(fault) = state.fault(unit, service).or_else(|| self.drop_in().fault(service)) {
            return Err(refused(fault));
        }
        let starters = systemd.starters(unit)?;
        if let Some(fault) = faults_of_starters(unit, service, &starters, &self.drop_ins).into_iter().next() {
            return Err(refused(fault));
        }
        let gate = self.gate.as_ref().map(|program| UnitGate { program, run_dir: footing.run_dir() });
        let text = |made_directory| {
            unit_drop_in(service, stop_timeout_s, footing.mount_path(), gate.as_ref(), made_directory)
        };
        self.drop_in().write(&text)?;
        let checked = systemd.reload().and_then(|()| systemd.state(unit)).and_then(|state| {
            let fault = state.fault(unit, service).or_else(|| state.fault_of_settings(service));
            fault.map_or(Ok(()), |fault| Err(refused(fault)))
        });
        if let Err(why) = checked {
            self.drop_in().remove(service)?;
            drop(systemd.reload());
            return Err(why);
        }
        footing.look().map_err(|error| match error.raw_os_error().map(Errno::from_raw) {
            Some(BARRED) => "this node is being silenced".to_owned(),
            _ => "the file system of the service is not mounted any more".to_owned(),
        })?;
        let job = systemd.start(unit)?;
        // The engine may have begun to silence this node meanwhile.
        if footing.look().is_err() {
            drop(systemd.stop(unit));
            self.kill_processes(REST_PATIENCE)?;
            return Err("this node is being silenced".into());
        }
        Ok(job)
    }

    /// Asks the unit to end, and waits for that.
    fn stop(&self, systemd: &dyn Systemd, stop_timeout_s: u64) -> Result<(), String> {
        let Self { unit, service, .. } = self;
        let state = systemd.state(unit)?;
        if !state.is_of(service) || !(state.is_up() || state.has_job) {
            return Ok(());
        }
        let job = systemd.stop(unit)?;
        let patience = Duration::from_secs(stop_timeout_s) + STOP_MARGIN;
        let end = systemd.job_end(unit, &job, patience, &|| true);
        tracing::debug!(unit, ?end, "the stop of a unit has ended");
        Ok(())
    }

    /// Kills what is in the cgroup, and asks nobody.
    fn kill_processes(&self, patience: Duration) -> Result<(), String> {
        let cgroups: Vec<&PathBuf> = self.cgroup.iter().collect();
        cgroup::kill(&cgroups, patience).map_err(|error| error.to_string())
    }

    /// Has systemd say that nothing of the unit runs and that nothing will, and takes the drop-in
    /// away.
    fn silence(&self, systemd: &dyn Systemd, deadline: Instant) -> Result<(), String> {
        let Self { unit, service, .. } = self;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut state = systemd.state(unit)?;
        while state.is_of(service) && (state.is_up() || state.has_job) {
            // A stop takes the place of a start that waits.
            let job = systemd.stop(unit);
            drop(systemd.kill(unit));
            self.kill_processes(left())?;
            if let Ok(job) = job {
                let _ = systemd.job_end(unit, &job, left().min(LONG_LOOK), &|| true);
            }
            state = systemd.state(unit)?;
            if left().is_zero() && state.is_of(service) && state.is_up() {
                return Err(format!("the unit {unit} is still {}", state.active));
            }
        }
        self.kill_processes(left())?;
        self.drop_in().remove(service)?;
        systemd.reload()?;
        if state.active == "failed" {
            systemd.forget_failure(unit);
        }
        Ok(())
    }

    /// Waits until the unit has ended; `known` is its state if that was just looked at.
    fn ended(&self, mut known: Option<UnitState>, wanted: &dyn Fn() -> bool) -> Ended {
        let mut ending: Option<Instant> = None;
        while wanted() {
            let look = || Bus::open(CALL).and_then(|bus| bus.state(&self.unit));
            let state = match known.take().map_or_else(look, Ok) {
                Ok(state) => state,
                Err(why) => {
                    if !self.cgroup.as_deref().is_some_and(cgroup::is_populated) {
                        let unit = &self.unit;
                        return format!(
                            "all processes of the unit {unit} are gone, and systemd does not answer: {why}"
                        )
                        .into();
                    }
                    std::thread::sleep(LONG_LOOK);
                    continue;
                }
            };
            match state.found() {
                UnitFound::Ended { words, is_permanent } => return Ended { status: words, is_permanent },
                UnitFound::Running if !state.is_of(&self.service) => {
                    let unit = &self.unit;
                    return format!(
                        "the unit {unit} was started anew by somebody else, outside of this service"
                    )
                    .into();
                }
                UnitFound::Running => {
                    ending = None;
                    wait_for_end(&state, wanted);
                }
                UnitFound::Starting => std::thread::sleep(LOOK),
                // A main process that is gone leaves nothing to wait for.
                UnitFound::Ending if state.main_pid == 0 => {
                    if ending.get_or_insert_with(Instant::now).elapsed() >= ENDING {
                        let unit = &self.unit;
                        return format!("the main process of the unit {unit} has ended, and the rest of it is ending; see `journalctl -u {unit}`").into();
                    }
                    std::thread::sleep(LOOK);
                }
                UnitFound::Ending => std::thread::sleep(LOOK),
            }
        }
        Ended::from("it is not watched any more".to_owned())
    }
}

/// Waits for the end of the main process, and no longer than the next look at the state.
fn wait_for_end(state: &UnitState, wanted: &dyn Fn() -> bool) {
    let pid = i32::try_from(state.main_pid).ok().filter(|pid| *pid > 0);
    let Some(main) = pid.and_then(|pid| OtherProcess::open(pid).ok()) else {
        return std::thread::sleep(LONG_LOOK);
    };
    let next = Instant::now() + STATE_LOOK;
    while wanted() && Instant::now() < next {
        if main.ends_within(LONG_LOOK) {
            // systemd hears of it at the same time.
            return std::thread::sleep(LOOK);
        }
    }
}

/// Reasons why `unit` cannot be run for `service`: each other unit that would start it. Those that
/// run for the same service are none.
fn faults_of_starters(
    unit: &str,
    service: &str,
    starters: &[UnitStarter],
    drop_ins: &Path,
) -> Vec<UnitFault> {
    let is_own = |starter: &&UnitStarter| DropIn::below(drop_ins, &starter.id).is_of(service);
    starters.iter().filter(|starter| !is_own(starter)).filter_map(|starter| starter.fault(unit)).collect()
}

fn service_of(dirs: &ServiceDirs) -> String {
    dirs.cgroup.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The cgroup in which a unit runs for a service. `None` where there are no cgroups of version 2.
fn cgroup_of(unit: &str, dirs: &ServiceDirs) -> Option<PathBuf> {
    Some(systemd_root()?.join(unit_cgroup(&service_of(dirs), unit)))
}

/// The cgroup below which systemd makes all others.
fn systemd_root() -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/1/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = path.strip_suffix("/init.scope").unwrap_or(path);
    Some(cgroup2_mount()?.join(root.trim_start_matches('/')))
}

/// The program of this agent, where it lies now.
fn own_program() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?;
    // A package may have replaced it since this agent was started.
    let path = PathBuf::from(path.to_string_lossy().trim_end_matches(" (deleted)"));
    path.is_file().then_some(path)
}

/// Place of the drop-in under which a unit runs for a service.
struct DropIn {
    directory: PathBuf,
}

impl DropIn {
    fn of(unit: &str) -> Self {
        Self::below(Path::new(DROP_INS), unit)
    }

    fn below(root: &Path, unit: &str) -> Self {
        Self { directory: root.join(format!("{unit}.d")) }
    }

    fn path(&self) -> PathBuf {
        self.directory.join(DROP_IN)
    }

    /// Returns its text. `None` if there is none.
    fn text(&self) -> Option<String> {
        match fs::read(self.path()) {
            Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            // A file that cannot be read is somebody's.
            Err(_) => Some(String::new()),
        }
    }

    fn is_of(&self, service: &str) -> bool {
        self.text().is_some_and(|text| drop_in_owner(&text) == Some(service))
    }

    /// Returns the reason why `service` cannot have the drop-in.
    fn fault(&self, service: &str) -> Option<UnitFault> {
        let text = self.text()?;
        let path = self.path();
        let path = path.display();
        match drop_in_owner(&text) {
            Some(owner) if owner == service => None,
            Some(owner) => Some(UnitFault {
                problem: format!("the unit is used by service {owner}"),
                remedy: format!("stop that service there, or name another unit; {path} says so"),
            }),
            None => Some(UnitFault {
                problem: format!("{path} is there, and Mainstay has not made it"),
                remedy: "rename it: Mainstay needs the name for a drop-in of its own".into(),
            }),
        }
    }

    /// Writes it; `text` is told whether its directory is made as well.
    fn write(&self, text: &dyn Fn(bool) -> String) -> Result<(), String> {
        let unwritable = |error: io::Error| format!("{}: {error}", self.path().display());
        let is_new = match fs::create_dir(&self.directory) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.text().is_some_and(|text| drop_in_made_directory(&text))
            }
            Err(error) => return Err(unwritable(error)),
        };
        let fresh = self.directory.join(format!(".{DROP_IN}.new"));
        fs::write(&fresh, text(is_new)).map_err(unwritable)?;
        fs::set_permissions(&fresh, Permissions::from_mode(0o644)).map_err(unwritable)?;
        fs::rename(&fresh, self.path()).map_err(unwritable)
    }

    /// Removes it if it was made for `service`.
    fn remove(&self, service: &str) -> Result<(), String> {
        let Some(text) = self.text().filter(|text| drop_in_owner(text) == Some(service)) else {
            return Ok(());
        };
        fs::remove_file(self.path()).map_err(|error| format!("{}: {error}", self.path().display()))?;
        if drop_in_made_directory(&text) {
            // It stays if somebody has put another file there.
            drop(fs::remove_dir(&self.directory));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
