//! The long-running roles of the binary. The only place where the command line meets the
//! runtimes.

use crate::cli::{AgentArgs, EngineArgs, LogWriterArgs, PathArgs, SilencerArgs};
use crate::failure::{Code, Failure, Outcome, chain, is_forbidden};
use crate::router::{self, RouterArgs};
use mainstay_agent::AgentOptions;
use mainstay_agent::directories::{OfNode, Unfit, check_cgroup, check_node};
use mainstay_agent::error::AgentError;
use mainstay_engine::frontend::nbd::{NetworkOptions, ServerError};
use mainstay_engine::{EngineError, EngineOptions};
use mainstay_pool::journals::Journals;
use tracing_subscriber::EnvFilter;

const FORBIDDEN: &str =
    "Run it as root, or name directories that its user may write, with --state-dir and --run-dir.";
const REMEDY: &str = "The supervisor starts it again; its log tells what went before.";

/// Refuses directories that are the system's or in each other's way, before anything is made there.
fn check(of: OfNode) -> Outcome<()> {
    check_node(of).map_err(|Unfit { why, remedy }| Failure::new(Code::BadDirectory, why, remedy))
}

pub fn engine(args: EngineArgs) -> Outcome<()> {
    start_log();
    check(OfNode { state: &args.paths.state_dir, run: &args.paths.run_dir, journals: None })?;
    let mut options = EngineOptions::new(args.paths.run_dir, args.listen);
    options.device = args.device;
    let tls = args.nbd_tls.files();
    options.nbd_network = args.nbd_listen.map(|addr| NetworkOptions { addr, tls });
    options.poll = !args.no_poll;
    options.preallocate = args.preallocate;
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

pub fn agent(args: AgentArgs) -> Outcome<()> {
    start_log();
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
    let options = AgentOptions {
        hooks: args.hooks,
        journals: Journals { directory, volatile: args.volatile_journals },
        state_dir: args.paths.state_dir,
        run_dir: args.paths.run_dir,
        listen: Some(args.listen.to_string()),
        metrics_listen: args.metrics_listen,
        router_listen: args.router_listen,
        cgroup_root: args.cgroup_root,
        // This very program, even if the path that it was started from holds another version now.
        log_writer: vec!["/proc/self/exe".into(), "log-writer".into()],
    };
    mainstay_agent::run(options).map_err(|error| {
        let known = error.problem().code;
        let is_lost = known == Code::StateLost || known == Code::NodeRemoved;
        let remedy = match error {
            AgentError::Twin { .. } | AgentError::Elsewhere { .. } => error.problem().remedy,
            _ if is_forbidden(&error) => FORBIDDEN.to_owned(),
            AgentError::Transport(_) => {
                "Give --listen an address of this machine and a port that no other program has.".to_owned()
            }
            _ if is_lost => error.problem().remedy,
            _ => REMEDY.to_owned(),
        };
        let code = if is_lost { known } else { Code::AgentEnded };
        Failure::new(code, chain(&error), remedy)
    })
}

pub fn router(args: RouterArgs) -> Outcome<()> {
    start_log();
    router::run(args)
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
