//! Replicas, fake stores, a network and a control plane in one deterministic machine. The scenarios
//! read like prose; the random test plays many of them at once and checks what must always hold.

mod background;
mod copies;
mod lab;
mod mend;
mod mode_b;
mod modes;
mod random;
mod rollback;
mod scenarios;
mod scrub;
mod slow;
mod store;
