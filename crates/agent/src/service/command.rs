//! Commands of services: programs that this node starts for a service, with the cgroup, the user,
//! the environment and the log of their process.
//!
//! Guarantees
//! - A program is in the cgroup `<root>/<service>/<process>/main` from its first instruction on.
//!   The preparation of a process is in `prepare`, its readiness test in `ready`, its probe in
//!   `probe` and the stop of a resource agent in `stop` beside that.
//!   Their children stay there. So killing a cgroup leaves no process of it behind, and ends no
//!   other process, whatever their names are.
//! - A reused process id is never taken for the process: it is told by its start time as well.

use super::cgroup::{self, Unkillable};
use super::footing::{self, Footing};
use super::output::{self, Output};
use crate::sys::{self, Identity};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{Group, User, fchown};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, PipeReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where programs of services are looked for that are named without a directory.
pub const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const POLL: Duration = Duration::from_millis(20);
/// Bytes of an answer that are kept, from its end.
const SAID_BYTES_MAX: usize = 1024;
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
    Probe,
    Stop,
}

impl Role {
    /// Returns the name of the cgroup.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Prepare => "prepare",
            Self::Ready => "ready",
            Self::Probe => "probe",
            Self::Stop => "stop",
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
    /// Clock ticks from the boot to the start of the process, from `/proc/<pid>/stat`.
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

/// A command that was begun and is expected to end: a preparation or a readiness test.
pub struct Begun {
    child: Child,
    role: Role,
}

/// Begins a command in a cgroup of its own beside that of the process; [`finish`] waits for its
/// end.
///
/// # Errors
/// See [`ProcessError`].
pub fn begin(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
) -> Result<Begun, ProcessError> {
    Ok(Begun { child: spawn(dirs, plan, role, footing)?, role })
}

/// Waits for the end of a command. If the command is not `wanted` any more, the undo that called it
/// off kills it.
///
/// # Errors
/// See [`ProcessError`]. After a timeout the command has been killed with all that it started.
pub fn finish(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    Begun { mut child, role }: Begun,
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

/// A command that was begun to answer a question.
pub struct Asked {
    begun: Begun,
    /// Both outputs of the command.
    said: PipeReader,
}

/// Begins a command whose exit code and last line are the answer; [`answer`] waits for them.
///
/// # Errors
/// See [`ProcessError`].
pub fn ask(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
) -> Result<Asked, ProcessError> {
    let unreadable = |source| ProcessError::Start { command: plan.command.join(" "), source };
    let (said, out) = io::pipe().map_err(unreadable)?;
    let errors = out.try_clone().map_err(unreadable)?;
    fcntl(&said, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|errno| unreadable(errno.into()))?;
    let user = plan.user.as_deref().map(find_user).transpose()?;
    let child = spawn_into(dirs, plan, role, footing, user, (out.into(), errors.into()))?;
    Ok(Asked { begun: Begun { child, role }, said })
}

/// Waits for the end of a command that was asked. Returns its exit code, -1 if a signal ended it,
/// and the last line that it wrote, of at most [`SAID_BYTES_MAX`] bytes.
///
/// # Errors
/// See [`ProcessError`]. After a timeout the command has been killed with all that it started.
pub fn answer(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    Asked { begun, said }: Asked,
    timeout: Duration,
    wanted: &dyn Fn() -> bool,
) -> Result<(i32, String), ProcessError> {
    let (said, bytes) = (RefCell::new(said), RefCell::new(Vec::new()));
    // A command that writes more than a pipe holds must not wait for its reader.
    let read = || {
        let (mut chunk, mut bytes) = ([0; 4096], bytes.borrow_mut());
        while let Ok(length @ 1..) = said.borrow_mut().read(&mut chunk) {
            bytes.extend_from_slice(&chunk[..length]);
            let excess = bytes.len().saturating_sub(SAID_BYTES_MAX);
            bytes.drain(..excess);
        }
    };
    let ended = finish(dirs, plan, begun, timeout, &|| {
        read();
        wanted()
    });
    read();
    let code = match ended {
        Ok(()) => 0,
        Err(ProcessError::Failed { status, .. }) => status.code().unwrap_or(-1),
        Err(error) => return Err(error),
    };
    let bytes = bytes.into_inner();
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    Ok((code, last.chars().filter(|c| !c.is_control()).collect()))
}

/// Readiness tests and probes come often, and are not noted.
fn note_start(plan: &ProcessPlan, role: Role) {
    if let Some(output) = plan.output.as_ref().filter(|_| !matches!(role, Role::Ready | Role::Probe)) {
        output.note_start(&plan.name, role.name());
    }
}

/// Starts a program and does not wait for it.
///
/// # Errors
/// See [`ProcessError`].
pub fn spawn(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
) -> Result<Child, ProcessError> {
    note_start(plan, role);
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
    spawn_into(dirs, plan, role, footing, user, (log.into(), log_again.into()))
}

/// Starts a program whose output goes to the two given places.
fn spawn_into(
    dirs: &ServiceDirs,
    plan: &ProcessPlan,
    role: Role,
    footing: Footing,
    user: Option<User>,
    (out, errors): (Stdio, Stdio),
) -> Result<Child, ProcessError> {
    let (program, arguments) = plan.command.split_first().ok_or(ProcessError::EmptyCommand)?;
    let cgroup = dirs.role(&plan.name, role);
    let unusable = |source| ProcessError::Cgroup { path: cgroup.clone(), source };
    fs::create_dir_all(&cgroup).map_err(unusable)?;
    let procs = OpenOptions::new().write(true).open(cgroup.join("cgroup.procs")).map_err(unusable)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(out).stderr(errors).current_dir("/");
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
        crate::private::directory(&dirs.logs)?;
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

    #[test]
    fn a_reused_process_id_is_not_taken_for_the_process() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let (_, start_ticks) = stat_of(pid).unwrap();
        let me = Identified { pid, start_ticks };
        assert!(me.is_alive());
        assert!(!Identified { start_ticks: start_ticks + 1, ..me }.is_alive());
    }
}
