//! The control-plane runtime: it drives the pure cores of `mainstay_control` and `mainstay_ha`, and is the
//! only crate but the engine's that touches the operating system.
//!
//! Reading order: `runtime.rs` (what runs on which thread), `raft/`, `lease.rs`, `reconcile.rs`,
//! `service/`, `http/`.

pub mod clock;
pub mod engine_link;
pub mod service;
mod sys;
pub mod threads;

use std::path::PathBuf;

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// `/var/lib/mainstay`: the cluster state and the pools.
    pub state_dir: PathBuf,
    /// `/run/mainstay`: sockets, devices, and what has to be forgotten at a reboot.
    pub run_dir: PathBuf,
    /// Address on which other agents are served; `0.0.0.0:7400` if none.
    pub listen: Option<String>,
    /// cgroup (version 2) below which services run; `<mount point>/mainstay/<node>` if none.
    pub cgroup_root: Option<PathBuf>,
}
