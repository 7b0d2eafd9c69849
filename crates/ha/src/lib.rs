//! Service promotion: the service on top of a primary, the order of its start, and how it is
//! undone.
//!
//! Pure: [`Machine::handle`] takes events, [`Machine::poll`] gives effects, time is a parameter.
//! The agent carries the effects out. [`Guard`] knows what the engine silences by itself. Rules:
//!
//! - R19: the old node is silent before the new one starts.
//! - R21: a start is a persisted sequence of steps, each with timeout and undo.
//! - R22: an address is probed before it is taken.

mod change;
mod fields;
mod foundation;
mod guard;
mod import;
mod machine;
mod mkfs;
mod mount_watch;
mod ocf;
mod options;
mod pages;
mod placement;
mod probe;
mod reference;
mod shown;
mod spec;
mod starters;
mod steps;
mod system;
mod template;
mod unit;
mod vip;

pub use change::Change;
pub use foundation::{AtPath, Unmount};
pub use guard::{Guard, REPEAT_GUARD_MS, Wanted};
pub use import::{ImportChoices, Imported, import};
pub use machine::{Effect, Event, Finding, HeldAddresses, Machine, Report, Saved};
pub use mainstay_types::{distance, nearest};
pub use mount_watch::{MountNews, MountWatch, Room};
pub use ocf::{
    Metadata, OCF_DEGRADED, OCF_NOT_RUNNING, OCF_ROOT, OCF_SUCCESS, Ocf, ocf_is_permanent, ocf_words,
};
pub use options::{MountOption, mount_options};
pub use pages::Pages;
pub use placement::{PLACEMENT_NAMES_MAX, Placement};
pub use probe::{
    HttpProbe, HttpTarget, MysqlProbe, PROBE_TIMEOUT_S, PostgresqlProbe, Probe, ProbeExit, TcpProbe,
    host_and_port,
};
pub use reference::reference_page;
pub use shown::HIDDEN;
pub use spec::{Mount, Policy, Process, Ready, ServiceSpec, SpecError, valid_name};
pub use starters::{Starts, UNIT_NEEDS, UnitStarter};
pub use steps::Step;
pub use system::{is_within, system_directory};
pub use template::{Choices, TEMPLATE_MEMORY_BYTES_MIN, TEMPLATE_VOLUME_BYTES_MIN, Template};
pub use unit::{
    UnitCondition, UnitFault, UnitFound, UnitGate, UnitState, drop_in_made_directory, drop_in_owner,
    unit_cgroup, unit_drop_in, unit_slice,
};
pub use vip::{Address, VIPS_MAX, Vip, listed as listed_addresses};
