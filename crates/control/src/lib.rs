//! The cluster state machine: what the operator asked for, who may write, who is alive, and what a node does next.
//!
//! Pure. [`State::apply`] is run by every agent on the same committed entries and gives the same state everywhere;
//! [`lease::LeaseMachine`] decides whether a node may act (R10);
//! [`handover::Handover`] when the log's leader should be another one; [`reconcile::plan`] tells a node what to do next, and
//! [`reconciler::Reconciler`] when and in which order; [`advice::advice`] says in words what is wrong and what to do about it.

pub mod advice;
mod apply;
mod broken;
pub mod causes;
pub mod clients;
mod copies;
mod failover;
mod force;
mod grow;
pub mod handover;
mod iss;
pub mod labels;
pub mod lease;
pub mod members;
mod memory;
mod mode;
pub mod origin;
pub mod placement;
mod promote;
pub mod reconcile;
pub mod reconciler;
mod replicas;
pub mod rollback;
pub mod scrubs;
mod service;
pub mod snapshots;
pub mod stalls;
pub mod state;
mod unfinished;

pub use state::State;
