//! The simulator: whole clusters of the real cores in one thread, from one seed.
//!
//! Read on in this order:
//! - `plan`: the cluster, and everything that is done to it; `swarm`: plans from seeds.
//! - `world`: the event loop.
//! - `disk`, `network`, `engine`, `agent`, `consensus`, `service`: the simulated parts.
//! - `oracle`: the invariants, under the ids of `faults.md`.
//! - `explain` and `shrink`: tools for people.
//! - `enumerate`: every crash of small workloads.

pub mod agent;
pub mod budget;
pub mod campaign;
pub mod clock;
pub mod consensus;
pub mod coverage;
pub mod disk;
pub mod engine;
pub mod enumerate;
pub mod explain;
pub mod network;
pub mod oracle;
pub mod plan;
pub mod prose;
pub mod random;
pub mod record;
pub mod run;
pub mod scenario;
pub mod service;
pub mod shrink;
pub mod storm;
pub mod swarm;
pub mod trace;
pub mod words;
pub mod world;
