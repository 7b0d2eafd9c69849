//! The cluster state machine: the operator's specification, the nodes that may write and that are
//! alive, and the next actions of a node.
//!
//! Pure. Every agent runs [`State::apply`] on the same committed entries and gets the same state.
//!
//! - [`lease::LeaseMachine`] decides whether a node may act (R10).
//! - [`handover::Handover`] decides when the log's leader hands the lead to another voter.
//! - [`actions::plan`] tells a node what to do next, and [`reconciler::Reconciler`] when and in
//!   which order.
//! - [`level`] says which functions all nodes know, so that builds of two releases can run
//!   together.
//! - [`constraints::decide`] says where services run that are tied to one another, and
//!   [`explain::explain`] why a service runs where it does.
//! - [`advice::advice`] says in words what is wrong and what to do about it.

pub mod actions;
pub mod advice;
pub mod after_death;
pub mod api_tokens;
mod apply;
pub mod attachments;
pub mod audit;
pub mod behind;
mod broken;
pub mod causes;
pub mod command;
pub mod constraints;
mod copies;
pub mod cordon;
pub mod era;
pub mod explain;
pub mod facts;
mod failover;
pub mod fencing;
mod force;
mod grow;
pub mod handover;
mod history;
pub mod hooks;
pub mod identities;
mod in_sync_set;
pub mod labels;
pub mod lease;
pub mod level;
pub mod maintenance;
pub mod members;
mod mode;
mod mode_b;
mod moves;
pub mod orders;
pub mod origin;
pub mod placement;
mod promote;
pub mod reconciler;
pub mod removal;
mod replacement;
mod replicas;
pub mod rollback;
pub mod scrubs;
mod service;
pub mod settings;
pub mod snapshots;
pub mod stalls;
pub mod standstill;
pub mod state;
pub mod tied;
mod unfinished;
pub mod votes;

pub use state::State;
