//! The long-running roles of the binary. The only place where the command line meets the
//! runtimes.

use crate::cli::log_filter;
use crate::cli::{AgentArgs, EngineArgs, LogWriterArgs, MayStartArgs, PathArgs, SilencerArgs};
use crate::config::{Changes, Started};
use crate::failure::{Code, Failure, Outcome, chain, is_forbidden};
use crate::router::{self, RouterArgs};
use mainstay_agent::AgentOptions;
use mainstay_agent::access::Groups;
use mainstay_agent::directories::{OfNode, Unfit, check_cgroup, check_node};
use mainstay_agent::error::AgentError;
use mainstay_agent::https::ApiListen;
use mainstay_engine::frontend::nbd::{NetworkOptions, ServerError};
use mainstay_engine::watchdog::WatchdogOptions;
use mainstay_engine::{EngineError, EngineOptions};
use mainstay_pool::journals::Journals;
use mainstay_types::Problem;
use std::thread;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

const FORBIDDEN: &str =
    "Run it as root, or name directories that its user may write, with --state-dir and --run-dir.";
const REMEDY: &str = "The supervisor starts it again; its log tells what went before.";

/// Refuses directories that are the system's or in each other's way, before anything is made there.
fn check(of: OfNode) -> Outcome<()> {
    check_node(of).map_err(|Unfit { why, remedy }| Failure::new(Code::BadDirectory, why, remedy))
}

pub fn engine(args: EngineArgs, started: Option<Started>) -> Outcome<()> {
    // Before the first thread: one that does not hold these signals would be ended by them, and the
    // whole process with it.
    mainstay_engine::hold_signals();
    start_reloadable(&args.config.log, started);
    check(OfNode { state: &args.paths.state_dir, run: &args.paths.run_dir, journals: None })?;
    let mut options = EngineOptions::new(args.paths.run_dir, args.listen);
    options.device = args.device;
    let tls = args.nbd_tls.files();
    options.nbd_network = args.nbd_listen.map(|addr| NetworkOptions { addr, tls });
    options.poll = !args.no_poll;
    options.preallocate = args.preallocate;
    options.watchdog = WatchdogOptions { choice: args.watchdog, device: args.watchdog_device };
    options.stands_alone = true;
    // The builds that the end-to-end tests run.
    options.check_reads = cfg!(debug_assertions);
    let Err(error) = mainstay_engine::run(options);
    let (code, remedy) = match &error {
        EngineError::Device(_) => {
            (Code::DeviceUnavailable, "Start it with --device auto, or make what it names available.")
        }
        EngineError::Nbd(ServerError::Tls(_)) => (
            Code::NbdCertificates,
            "Put the file right, or start it without --nbd-listen: then NBD clients of this machine only.",
        ),
        _ if is_forbidden(&error) => (Code::EngineEnded, FORBIDDEN),
        _ => (Code::EngineEnded, REMEDY),
    };
    Err(Failure::new(code, chain(&error), remedy))
}

pub fn silencer(args: &SilencerArgs) -> Outcome<()> {
    start_log();
    let ended = mainstay_engine::silencer::run(&args.run_dir);
    ended.map_err(|error| Failure::new(Code::SilencerEnded, chain(&error), "The engine starts it again."))
}

pub fn agent(args: AgentArgs, started: Option<Started>) -> Outcome<()> {
    start_reloadable(&args.config.log, started);
    // Links lead there from elsewhere.
    let directory = args.journal_dir.map(std::path::absolute).transpose();
    let directory = directory.map_err(|error| {
        Failure::new(Code::JournalDirectory, error.to_string(), "Name a directory with --journal-dir.")
    })?;
    let PathArgs { state_dir, run_dir } = &args.paths;
    check(OfNode { state: state_dir, run: run_dir, journals: directory.as_deref() })?;
    if let Some(root) = &args.cgroup_root {
        check_cgroup(root).map_err(|Unfit { why, remedy }| Failure::new(Code::BadDirectory, why, remedy))?;
    }
    if let Some(hooks) = &args.hooks {
        mainstay_agent::hooks::check(hooks).map_err(|why| {
            let remedy = "Make the directory, or name another one with --hooks.";
            Failure::new(Code::BadDirectory, format!("the hooks directory: {why}"), remedy)
        })?;
    }
    if let Some(program) = &args.fence_command {
        mainstay_agent::fence::check(program).map_err(|why| {
            Failure::new(
                Code::BadDirectory,
                why,
                "Name a program that its user may run with --fence-command.",
            )
        })?;
    }
    let files = args.api_tls.files();
    let console = !args.no_console;
    let api = args.api_listen.map(|address| ApiListen { address, files, console });
    let options = AgentOptions {
        fence_command: args.fence_command,
        groups: Groups { read: args.read_group, operate: args.operate_group, admin: args.admin_group },
        hooks: args.hooks,
        journals: Journals { directory, volatile: args.volatile_journals },
        state_dir: args.paths.state_dir,
        run_dir: args.paths.run_dir,
        listen: Some(args.listen.to_string()),
        metrics_listen: args.metrics_listen,
        router_listen: args.router_listen,
        api,
        cgroup_root: args.cgroup_root,
        // This very program, even if the path that it was started from holds another version now.
        log_writer: vec!["/proc/self/exe".into(), "log-writer".into()],
    };
    mainstay_agent::run(options).map_err(|error| {
        let known = error.problem().code;
        let stays = [Code::StateLost, Code::NodeRemoved, Code::BuildTooOld].contains(&known);
        let remedy = match error {
            AgentError::Twin { .. } | AgentError::Elsewhere { .. } => error.problem().remedy,
            _ if is_forbidden(&error) => FORBIDDEN.to_owned(),
            AgentError::Transport(_) => {
                "Give --listen an address of this machine and a port that no other program has.".to_owned()
            }
            _ if stays => error.problem().remedy,
            _ => REMEDY.to_owned(),
        };
        let code = if stays { known } else { Code::AgentEnded };
        Failure::new(code, chain(&error), remedy)
    })
}

pub fn router(args: RouterArgs) -> Outcome<()> {
    start_log();
    router::run(args)
}

/// Looks whether this node is being silenced (R19). Returns the exit status.
pub fn may_start(args: &MayStartArgs) -> u8 {
    let footing = mainstay_agent::service::footing::Footing::of(&args.run_dir, None);
    let looked = footing.map_err(|error| error.to_string()).and_then(|footing| {
        footing.look().map_err(|_| "this node is being silenced, so nothing begins on it".to_owned())
    });
    match looked {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("mainstay: {why}");
            1
        }
    }
}

/// Writes the output of a service's process to its log.
pub fn log_writer(args: &LogWriterArgs) -> Outcome<()> {
    mainstay_agent::service::output::write_log(&args.log).map_err(|error| {
        let message = format!("the log {} cannot be written: {error}", args.log.display());
        Failure::new(
            Code::LogUnwritable,
            message,
            "Make room in the state directory, and let the agent's user write there.",
        )
    })
}

/// Starts the log of a role, and a thread that reads the configuration again at SIGHUP. The thread
/// has a handler and no mask: processes of services would inherit a mask.
fn start_reloadable(filter: &str, started: Option<Started>) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    // This fails only if it was done before.
    let _ = log.try_init();
    let Some(mut started) = started else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let hangups = runtime.and_then(|runtime| {
        let hangups = runtime.block_on(async { signal(SignalKind::hangup()) })?;
        Ok((runtime, hangups))
    });
    let (runtime, mut hangups) = match hangups {
        Ok(both) => both,
        Err(error) => {
            tracing::warn!(%error, "the configuration cannot be read again while this program runs");
            return;
        }
    };
    let wait = move || {
        while runtime.block_on(hangups.recv()).is_some() {
            reload(&mut started, |filter| handle.reload(EnvFilter::new(filter)).is_ok());
        }
    };
    if let Err(error) = thread::Builder::new().name("reload".into()).spawn(wait) {
        tracing::warn!(%error, "the configuration cannot be read again while this program runs");
    }
}

fn reload(started: &mut Started, set_log: impl Fn(&str) -> bool) {
    let changes = match started.reload() {
        Ok(changes) => changes,
        Err(failure) => {
            let Problem { message, remedy, .. } = failure.problem;
            tracing::error!(remedy, "the configuration is refused, and nothing has changed: {message}");
            return;
        }
    };
    if let Some(log) = &changes.log {
        let filter = log.as_deref().unwrap_or("info");
        let is_set = log_filter(filter).is_ok() && set_log(filter);
        tracing::info!(log = filter, is_set, "the configuration was read again: the log has changed");
    }
    for key in &changes.restart {
        tracing::warn!(key, "this key of the configuration has changed and needs a restart");
    }
    if changes == Changes::default() {
        tracing::info!("the configuration was read again: nothing has changed");
    }
}

/// Logs go to standard error, from `MAINSTAY_LOG` on (`info` if not set), in the syntax of
/// `tracing`.
fn start_log() {
    let filter = EnvFilter::try_from_env("MAINSTAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // This fails only if it was done before.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .try_init();
}
