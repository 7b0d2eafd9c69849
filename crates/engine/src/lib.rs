//! The data plane of one node: devices, disks and the network on one io_uring per shard, driving
//! the replication core and the storage core of every replica. It keeps serving while the agent
//! restarts, as long as its lease lasts.
//!
//! Where to start reading: [`shard`], the loop; [`open_replica`], one replica; then [`ring`],
//! [`transport`], [`disk`], [`frontend`], [`guard`].

mod addresses;
pub mod attachment;
pub mod buffer;
pub mod devices;
pub mod disk;
mod fault;
pub mod frontend;
pub mod guard;
pub mod inspect;
pub mod ipc;
pub mod lease_file;
mod left_devices;
pub mod lifecycle;
pub mod loop_device;
mod metrics_page;
mod mount_table;
pub mod open_replica;
pub mod options;
mod requests;
pub mod resource_devices;
pub mod ring;
pub mod runtime;
pub mod shard;
mod signals;
pub mod silencer;
pub mod transport;
pub mod watchdog;

pub use frontend::DeviceOption;
pub use options::EngineOptions;
pub use runtime::{EngineError, run};
pub use signals::block as hold_signals;
