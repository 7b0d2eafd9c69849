//! Changes that services make to the operating system: mounts, processes, addresses.
//!
//! `mainstay_ha` decides the order of steps, their time limits and their undoing. The files here
//! carry out single steps. Every step may be repeated. `instance.rs` has the threads of one
//! service, `work.rs` its steps, and `runners/mod.rs` how its processes are run.

mod bounded;
pub mod cgroup;
pub mod command;
pub mod content;
mod filesystem;
pub mod footing;
mod freeze;
pub mod hindrances;
pub mod holders;
pub mod instance;
pub mod journal;
pub mod lacks;
mod lane;
pub mod left_mounts;
pub mod logs;
pub mod make;
pub mod mount;
pub mod mount_table;
pub mod output;
pub mod place;
mod runners;
#[cfg(test)]
mod unmounted;
pub mod vip;
mod work;
