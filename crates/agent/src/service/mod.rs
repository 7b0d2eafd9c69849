//! Changes that services make to the operating system: mounts, processes, addresses.
//!
//! The order of steps, their time limits and their undoing are decided by `mainstay_ha`; the files
//! here carry single steps out. Every step may be repeated.

mod bounded;
pub mod content;
mod filesystem;
pub mod footing;
mod freeze;
pub mod hindrances;
pub mod holders;
pub mod lacks;
mod lane;
pub mod left;
pub mod make;
pub mod mount;
pub mod mount_table;
pub mod output;
pub mod place;
pub mod process;
pub mod runner;
pub mod vip;
mod work;
