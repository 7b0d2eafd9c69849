//! A router of TCP sessions to the node where a service runs, for networks in which no floating
//! address can move ([ADR 32](../../../docs/adr/0032-the-router.md)).
//!
//! Reading order: `switch.rs` (all decisions, pure), `router.rs` (what is done about them),
//! `agents.rs` (where the news come from), `doors.rs` (ports), `lane.rs` and `copy.rs` (bytes),
//! `settings.rs`, `status.rs`, `proxy.rs`.

pub mod agents;
pub mod copy;
mod doors;
pub mod lane;
mod proxy;
mod router;
pub mod settings;
mod signals;
mod status;
pub mod switch;

pub use router::{RouterError, run};
pub use signals::stops;
