//! The kernel's interface to ublk devices: its structures, its commands, and the memory that it
//! shares.

pub mod abi;
mod channel;
pub mod control;

pub use channel::Channel;
pub use control::{Control, UblkError};
