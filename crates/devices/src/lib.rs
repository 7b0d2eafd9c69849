//! Block devices that outlive their engine, and the services that use devices, for engine and
//! agent. The engine makes the devices and serves them. Both may have to end those that a dead
//! engine has left, and kill their users first.
//!
//! [`mainstay_silence`] decides what may be done with a left device, and when.

pub mod atomic;
pub mod block_queue;
pub mod clock;
pub mod descriptor_holder;
pub mod device_recovery;
pub mod nbd_device;
pub mod netlink;
pub mod succession;
pub mod supervisor;
pub mod ublk;
pub mod ublk_device;
pub mod users;

use device_recovery::LeavesDevices;
use nbd_device::NbdAdmin;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use ublk_device::UblkAdmin;

/// A descriptor that is closed when the last user is done with it.
pub type Fd = Arc<OwnedFd>;

/// Fails everything that a dead engine has left in `run_dir`. The agent calls this when no engine
/// comes back.
pub fn give_up_left(run_dir: &Path) {
    UblkAdmin::new(run_dir).give_up_all();
    NbdAdmin::new(run_dir).give_up_all();
}
