//! A small specification of the replication protocol, checked exhaustively at stated bounds.
//!
//! It describes how commit, shrink and grow, promotion, rejoin and copy work between replicas and
//! the control plane. Messages are lost and late, nodes crash, disks are lost. Nodes learn the
//! results of compare-and-sets late or never. The checker walks through every order of events
//! within the bounds and looks at every state. See `README.md`.
//!
//! Read in this order: `log.rs`, `state.rs`, `primary.rs`, `secondary.rs`, `control.rs`,
//! `model.rs`; then `rules.rs` (the rules that can be left out), `check.rs`, `prose.rs`.

pub mod check;
mod control;
pub mod log;
pub mod model;
mod primary;
pub mod prose;
pub mod rules;
mod secondary;
pub mod state;

pub use check::{Counterexample, Outcome, run, shortest};
pub use model::{Bounds, Spec, Step};
pub use rules::{MUTATIONS, Mutation, MutationInfo};
