//! Options with which an engine is started. It learns everything else from its agent.

use crate::frontend::DeviceOption;
use crate::frontend::nbd::NetworkOptions;
use crate::watchdog::WatchdogOptions;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Limits and places of one engine process.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where the agent's socket and the mounts of the devices live; gone after a reboot.
    pub run_dir: PathBuf,
    /// Where the engines of other nodes connect to.
    pub listen: SocketAddr,
    /// How volumes become devices.
    pub device: DeviceOption,
    /// Where NBD clients of other machines connect to, if they may; those of this machine use a
    /// socket in `run_dir`.
    pub nbd_network: Option<NetworkOptions>,
    /// Payload memory that may lie idle in the pool, in bytes (R18).
    pub idle_memory_bytes: usize,
    /// The shard may poll for a moment before it sleeps, while processors are left over, see
    /// [`crate::ring::Spin`].
    pub poll: bool,
    /// The files of new volumes are allocated whole, and discarded blocks keep their space, so a
    /// write never lacks any.
    pub preallocate: bool,
    /// Compare what devices read with what the log says, and end the engine where they differ. For
    /// tests: it costs a checksum and a look-up for each block that is written or read, and some 30
    /// bytes for each block of a volume.
    pub check_reads: bool,
    /// Whether the watchdog of this machine backs the guard.
    pub watchdog: WatchdogOptions,
    /// The process is the engine of a node, and nothing else: it has a silencer, and ends in order
    /// at SIGTERM and SIGINT.
    pub stands_alone: bool,
}

impl EngineOptions {
    #[must_use]
    pub fn new(run_dir: PathBuf, listen: SocketAddr) -> Self {
        let device = DeviceOption::Auto;
        Self {
            run_dir,
            listen,
            device,
            nbd_network: None,
            idle_memory_bytes: 32 << 20,
            poll: true,
            preallocate: false,
            check_reads: false,
            watchdog: WatchdogOptions::default(),
            stands_alone: false,
        }
    }
}
