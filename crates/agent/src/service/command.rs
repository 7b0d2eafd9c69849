//! Processes of services.
//!
//! Guarantees
//! - A process is in the cgroup `<root>/<service>/<process>/main` from its first instruction on.
//!   Its preparation is in `prepare` and its readiness test in `ready` beside that. Their children
//!   stay there. So killing a cgroup leaves no process of it behind, and ends no other process,
//!   whatever their names are.
//! - Processes survive the agent. A restarted agent finds them by process id and start
//!   time, from the state file, checked against the cgroup. So a reused id is never
//!   taken for the process.
//! - A process whose state cannot be found out counts as running (R19).

use super::cgroup::{self, Unkillable};
use super::footing::{self, Footing};
use super::output::{self, Output};
use crate::sys::{self, Identity};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid, User, fchown};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where programs of services are looked for that are named without a directory.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const POLL: Duration = Duration::from_millis(20);
/// A log that no writer bounds is moved aside when its process starts and it is larger.
const LOG_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("the cgroup {path} cannot be used: {source}")]
    Cgroup {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the log file {path} cannot be opened: {source}")]
    Log {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("there is no user {0} on this node")]
    UnknownUser(String),
    #[error("an empty command")]
    EmptyCommand,
    #[error("{command} cannot be started: {source}")]
    Start {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("{command} did not finish within {seconds} s")]
    Timeout { command: String, seconds: u64 },
    #[error("{command} ended with {status}; see {log}")]
    Failed { command: String, status: ExitStatus, log: PathBuf },
    #[error(transparent)]
    Unkillable(#[from] Unkillable),
    #[error("{0} is not a signal name")]
    UnknownSignal(String),
    #[error(
        "this node is being silenced, because its lease or its engine ends; nothing begins before it has a lease again"
    )]
    Barred,
    #[error("the file system of the service is not mounted any more")]
    NoMount,
    #[error("it was called off")]
    CalledOff,
}

/// The last words of a process, to follow what is said of its end. Waits a moment for them.
#[must_use]
pub fn said(log: &Path) -> String {
    output::last_words(log).map(|words| format!(", its last words: \"{words}\"")).unwrap_or_default()
}

/// Where a service's processes live.
#[derive(Clone, Debug)]
pub struct ServiceDirs {
    /// `<root>/<service>`
    pub cgroup: PathBuf,
    /// `<state>/services/<service>`
    pub logs: PathBuf,
    /// Program and first arguments of what writes a log; see [`super::output`]. If empty, processes
    /// write their logs themselves.
    pub log_writer: Vec<String>,
}

/// Purpose of a command for its process: each has a cgroup of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    Main,
    Prepare,
    Ready,
}

impl Role {
    /// Returns the name of the cgroup.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Prepare => "prepare",
            Self::Ready => "ready",
        }
    }
}

impl ServiceDirs {
    /// Returns the cgroup of a process and all that belongs to it. Agents before this layout
    /// started the process itself here.
    #[must_use]
    pub fn process(&self, process: &str) -> PathBuf {
        self.cgroup.join(process)
    }

    #[must_use]
    pub fn role(&self, process: &str, role: Role) -> PathBuf {
        self.process(process).join(role.name())
    }
}

/// A process to be started.
#[derive(Clone, Debug)]
pub struct ProcessPlan {
    pub name: String,
    pub command: Vec<String>,
    pub user: Option<String>,
    pub env: BTreeMap<String, String>,
    /// Where its output goes; straight into its log if none.
    pub output: Option<Arc<Output>>,
}

/// A process that is not mistaken for a later one of the same id.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identified {
    pub pid: i32,
    /// Start time of the process, as [`Running::start_ticks`].
    pub start_ticks: u64,
}

impl Identified {
    /// The child is not reaped yet, so its entry in /proc exists even if it has ended.
    #[must_use]
    pub fn of(child: &Child) -> Self {
        let pid = i32::try_from(child.id()).expect("process ids of Linux fit");
        Self { pid, start_ticks: stat_of(pid).map_or(0, |(_, ticks)| ticks) }
    }

    /// Whether it still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        matches!(stat_of(self.pid), Some((state, ticks)) if ticks == self.start_ticks && state != 'Z' && state != 'X')
    }
}

/// A process that was started, by this agent or by its predecessor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Running {
    pub name: String,
    pub pid: i32,
    /// Clock ticks since boot, from `/proc/<pid>/stat`: with the id the identity of a process.
    pub start_ticks: u64,
}

impl Running {
    /// Whether it still runs. A zombie does not.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Identified { pid: self.pid, start_ticks: self.start_ticks }.is_alive()
    }
}

/// Starts a process in its cgroup and does not wait for it.
///
/// # Errors
/// See [`ProcessError`].
pub fn start(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    footing: Footing,
) -> Result<(Running, Child), ProcessError> {
    let child = spawn(dirs, plan, Role::Main, footing)?;
    let Identified { pid, start_ticks } = Identified::of(&child);
    Ok((Running { name: plan.name.clone(), pid, start_ticks }, child))
}

/// A command that was started and is expected to end: a preparation or a check.
pub struct Started {
    child: Child,
    role: Role,
}

/// Starts a command in a cgroup of its own beside that of the process; [`finish`] waits for its
/// end.
///
/// # Errors
/// See [`ProcessError`].
pub fn begin(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
) -> Result<Started, ProcessError> {
    Ok(Started { child: spawn(dirs, plan, role, footing)?, role })
}

/// Waits for the end of a command. If the command is not `wanted` any more, the undo that called it
/// off kills it.
///
/// # Errors
/// See [`ProcessError`]. After a timeout the command has been killed with all that it started.
pub fn finish(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    Started { mut child, role }: Started,
    timeout: Duration,
    wanted: &dyn Fn() -> bool,
) -> Result<(), ProcessError> {
    let deadline = Instant::now() + timeout;
    let command = plan.command.join(" ");
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(ProcessError::Failed { command, status, log: log_path(dirs, &plan.name) });
            }
            Ok(None) if !wanted() => {
                // The cgroup may be another attempt's by now, so this attempt only waits for its
                // own process.
                drop(child.wait());
                return Err(ProcessError::CalledOff);
            }
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) | Err(_) => {
                cgroup::kill(&[dirs.role(&plan.name, role)], Duration::from_secs(5))?;
                drop(child.wait());
                return Err(ProcessError::Timeout { command, seconds: timeout.as_secs() });
            }
        }
    }
}

/// Stops a process: the signal to its process group, then, after `timeout`, the end of its whole
/// cgroup.
///
/// # Errors
/// When something survived, which then counts as running (R19).
pub fn stop(
    dirs: &ServiceDirs,
    running: &Running,
    signal: &str,
    timeout: Duration,
) -> Result<(), ProcessError> {
    let signal = parse_signal(signal)?;
    if running.is_alive() {
        let pid = Pid::from_raw(running.pid);
        // The process leads its own session and thereby its own process group. A database gets the
        // signal once, from here. The process may have ended by itself just now.
        let _ = kill(pid, signal);
        let deadline = Instant::now() + timeout;
        while running.is_alive() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
    Ok(cgroup::kill(&[dirs.process(&running.name)], Duration::from_secs(5))?)
}

/// Whether `address` accepts a TCP connection now.
#[must_use]
pub fn tcp_answers(address: &str) -> bool {
    let Ok(addresses) = address.to_socket_addrs() else {
        return false;
    };
    addresses
        .into_iter()
        .any(|address| TcpStream::connect_timeout(&address, Duration::from_millis(500)).is_ok())
}

/// Readiness tests come often, and are not noted.
fn note_start(plan: &ProcessPlan, role: Role) {
    if let Some(output) = plan.output.as_ref().filter(|_| role != Role::Ready) {
        output.note_start(&plan.name, role.name());
    }
}

fn spawn(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
) -> Result<Child, ProcessError> {
    note_start(plan, role);
    let (program, arguments) = plan.command.split_first().ok_or(ProcessError::EmptyCommand)?;
    let cgroup = dirs.role(&plan.name, role);
    let unusable = |source| ProcessError::Cgroup { path: cgroup.clone(), source };
    fs::create_dir_all(&cgroup).map_err(unusable)?;
    let procs = OpenOptions::new().write(true).open(cgroup.join("cgroup.procs")).map_err(unusable)?;
    let unwritable = |source| ProcessError::Log { path: log_path(dirs, &plan.name), source };
    let log = match &plan.output {
        Some(output) => output.end().map_err(unwritable)?,
        None => open_log(dirs, &plan.name)?,
    };
    let log_again = log.try_clone().map_err(unwritable)?;
    let user = plan.user.as_deref().map(find_user).transpose()?;
    if let Some(user) = user.as_ref().filter(|_| plan.output.is_some()) {
        // So that the service may open /dev/stdout. If that is not possible, it writes to the
        // descriptor that it has.
        let _ = fchown(&log, Some(user.uid), Some(user.gid));
    }
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(log_again).current_dir("/");
    // The agent's own environment is its operator's business, not the service's.
    command.env_clear().env("PATH", SEARCH_PATH);
    if let Some(user) = &user {
        command.env("HOME", &user.dir).env("USER", &user.name).env("LOGNAME", &user.name);
    }
    command.envs(&plan.env);
    sys::isolate(&mut command, procs, user.map(|user| identity_of(&user)), footing);
    command.spawn().map_err(|source| match source.raw_os_error().map(Errno::from_raw) {
        Some(footing::BARRED) => ProcessError::Barred,
        Some(footing::NO_MOUNT) => ProcessError::NoMount,
        _ => ProcessError::Start { command: plan.command.join(" "), source },
    })
}

/// Where a process writes what it says.
pub fn log_path(dirs: &ServiceDirs, process: &str) -> PathBuf {
    dirs.logs.join(format!("{process}.log"))
}

fn open_log(dirs: &ServiceDirs, process: &str) -> Result<File, ProcessError> {
    let path = log_path(dirs, process);
    let open = || -> io::Result<File> {
        fs::create_dir_all(&dirs.logs)?;
        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
            fs::rename(&path, path.with_extension("log.old"))?;
        }
        OpenOptions::new().create(true).append(true).open(&path)
    };
    open().map_err(|source| ProcessError::Log { path: path.clone(), source })
}

/// Whether this node knows a user. Users that could not be looked up count as known.
pub fn user_exists(name: &str) -> bool {
    !matches!(User::from_name(name), Ok(None))
}

fn find_user(name: &str) -> Result<User, ProcessError> {
    User::from_name(name).ok().flatten().ok_or_else(|| ProcessError::UnknownUser(name.to_owned()))
}

fn identity_of(user: &User) -> Identity {
    let groups = CString::new(user.name.as_str())
        .ok()
        .and_then(|name| nix::unistd::getgrouplist(&name, user.gid).ok())
        .unwrap_or_else(|| {
            vec![Group::from_gid(user.gid).ok().flatten().map_or(user.gid, |group| group.gid)]
        });
    Identity { uid: user.uid, gid: user.gid, groups }
}

fn parse_signal(name: &str) -> Result<Signal, ProcessError> {
    let upper = name.to_uppercase();
    let full = if upper.starts_with("SIG") { upper } else { format!("SIG{upper}") };
    Signal::from_str(&full).map_err(|_| ProcessError::UnknownSignal(name.to_owned()))
}

/// State and start time of a process.
fn stat_of(pid: i32) -> Option<(char, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses; the fields start behind the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.first()?.chars().next()?, fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(running.is_alive() && cgroup::is_populated(&dirs.cgroup));
        stop(&dirs, &running, "TERM", Duration::from_millis(200)).unwrap();
        drop(child.wait());
        assert!(!running.is_alive() && !cgroup::is_populated(&dirs.cgroup));
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
            assert!(!running.is_alive());
            for (other, _) in &started {
                assert!(other.is_alive(), "{} died with {}", other.name, running.name);
            }
        }
        cgroup::remove(&dirs.cgroup);
        assert!(!dirs.cgroup.exists());
    }

    #[test]
    fn a_reused_process_id_is_not_taken_for_the_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let (_, ticks) = stat_of(pid).unwrap();
        let me = Running { name: "me".into(), pid, start_ticks: ticks };
        assert!(me.is_alive());
        assert!(!Running { start_ticks: ticks + 1, ..me }.is_alive());
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(parse_signal("quit").unwrap(), Signal::SIGQUIT);
        assert_eq!(parse_signal("SIGINT").unwrap(), Signal::SIGINT);
        assert!(parse_signal("BANG").is_err());
    }
}
