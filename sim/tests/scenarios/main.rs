//! Stories about clusters. Each is ten lines or so; `sim/src/scenario.rs` has the verbs.
//!
//! `cast` names the nodes of a story: the primary `p`, then another replica `s`, and a third node.
//! The third is another replica `t`, or the witness `w`. `Shape::small` sets the network, disks and
//! clocks.

mod attachments;
mod control;
mod copies;
mod disks;
mod ends;
mod grow;
mod journal;
mod leases;
mod left_devices;
mod membership;
mod min_copies;
mod mode_b;
mod modes;
mod network;
mod order;
mod origin;
mod promotion;
mod removal;
mod replicas;
mod services;
mod slow;
mod table;
mod writes;
