//! All tests of the crate from outside, in one program: each program costs a build and a link.

mod after_death;
mod attachments;
mod audit;
mod broken;
mod causes;
mod common;
mod copies;
mod facts;
mod fencing;
mod grow;
mod leases;
mod maintenance;
mod mode_b;
mod modes;
mod orders;
mod origin;
mod record;
mod replicas;
mod rollback;
mod scrubs;
mod settings;
mod shape;
mod snapshots;
mod standstill;
mod tied;
mod unfinished;
