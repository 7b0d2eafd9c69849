//! The control-plane runtime: it drives the pure cores of `mainstay_control` and `mainstay_ha`, and
//! is the only crate but the engine's that touches the operating system.
//!
//! Reading order: `runtime.rs` (what runs on which thread), `raft/`, `lease.rs`,
//! `reconciler_thread.rs`, `service/`, `http.rs`, `https.rs`, `metrics/`.

pub mod access;
pub mod agent;
pub mod clock;
pub mod directories;
pub mod engine_absence;
pub mod engine_feed;
pub mod engine_link;
mod engine_proofs;
pub mod error;
mod extents;
pub mod fence;
pub mod health;
pub mod held;
pub mod history;
pub mod hooks;
pub mod http;
pub mod https;
pub mod identity;
pub mod lease;
pub mod level;
pub mod member;
pub mod messages;
pub mod metrics;
pub mod own_state;
pub mod picture;
mod placed;
pub mod ports;
mod private;
pub mod programs;
pub mod raft;
mod reach;
pub mod reconciler_thread;
pub mod recovery;
pub mod replicas;
pub mod report;
pub mod reserve;
pub mod service;
mod sys;
pub mod threads;
pub mod transport;
mod trust;
pub mod views;
mod volumes;
pub mod watch;

use agent::{Agent, Started};
use error::AgentError;
use mainstay_devices::supervisor;
use mainstay_pool::journals::Journals;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Options that an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// `/var/lib/mainstay`: the cluster state and the pools.
    pub state_dir: PathBuf,
    /// `/run/mainstay`: sockets, devices, and what has to be forgotten at a reboot.
    pub run_dir: PathBuf,
    /// Address on which other agents are served; `0.0.0.0:7400` if none.
    pub listen: Option<String>,
    /// Address on which `/metrics` and the answers for load balancers are served, and nothing else;
    /// on the API's socket alone if none.
    pub metrics_listen: Option<SocketAddr>,
    /// Address on which routers are told where services run, and nothing else; on the API's socket
    /// alone if none.
    pub router_listen: Option<SocketAddr>,
    /// cgroup (version 2) below which services run; `<mount point>/mainstay/<node>` if none.
    pub cgroup_root: Option<PathBuf>,
    /// Program and first arguments of the writer of the log of a service's process
    /// ([`service::output::write_log`]). The log's path follows them. If empty, processes write
    /// their logs themselves, and their logs are not bounded while they run.
    pub log_writer: Vec<String>,
    /// Where the journals of new replicas go; in the pool if nothing is said.
    pub journals: Journals,
    /// Directory of the hooks ([`hooks`]); none are run if none.
    pub hooks: Option<PathBuf>,
    /// Program that switches a node off; see [`fence`].
    pub fence_command: Option<PathBuf>,
    /// Where the API is served over TLS; on the socket alone if none.
    pub api: Option<https::ApiListen>,
    /// Groups whose members may use the API's socket; `root` alone if there are none.
    pub groups: access::Groups,
}

/// Name of the API's socket in the run directory.
pub const SOCKET: &str = "agent.sock";
/// Threads that serve connections of the API. What waits runs on others.
const HTTP_THREADS: usize = 2;

/// Runs an agent until it cannot go on.
///
/// # Errors
/// Always: an agent ends only because something failed. Its supervisor starts it again.
pub fn run(options: AgentOptions) -> Result<(), AgentError> {
    let started = Agent::start(options)?;
    serve(started.agent.clone())?;
    tracing::info!(address = %started.address, "the agent is up");
    supervisor::ready("serves");
    let Started { agent, fatal, .. } = started;
    let asked = supervisor::keep_asking(move || agent.say_alive());
    asked.map_err(|error| AgentError::Fatal(format!("a thread cannot be started: {error}")))?;
    Err(fatal.recv().unwrap_or_else(|_| AgentError::Fatal("all threads ended".to_owned())))
}

/// Serves the API of a started agent on its socket, and on the ports that it was told, in the
/// background.
///
/// # Errors
/// When the socket cannot be made.
pub fn serve(agent: Arc<Agent>) -> Result<(), AgentError> {
    let path = agent.options.run_dir.join(SOCKET);
    let failed = |source: io::Error| AgentError::File { path: path.clone(), source };
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("agent-http")
        .enable_all()
        .build()
        .map_err(failed)?;
    let listener = {
        let _inside = runtime.enter();
        tokio::net::UnixListener::bind(&path).map_err(failed)?
    };
    // Each request is refused or allowed by its user. Where only root may ask, others do not even
    // get a connection.
    let mode = if agent.options.groups.any() { 0o666 } else { 0o600 };
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
    if let Some(address) = agent.options.metrics_listen {
        runtime.spawn(metrics::listener::serve(agent.clone(), address));
    }
    if let Some(address) = agent.options.router_listen {
        runtime.spawn(http::destinations::serve(agent.clone(), address));
    }
    if let Some(listen) = agent.options.api.clone() {
        https::serve(agent.clone(), listen).map_err(failed)?;
    }
    let routes = http::numbered(http::router(agent)).into_make_service_with_connect_info::<access::Peer>();
    threads::spawn("agent-http", move || {
        if let Err(error) =
            runtime.block_on(async { axum::serve(access::Socket::new(listener), routes).await })
        {
            tracing::error!(%error, "the API is no longer served");
        }
    });
    Ok(())
}
