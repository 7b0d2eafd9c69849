//! The set-ups of `make bench`: Mainstay in a lab of three nodes, and peers in a lab of the same
//! nodes without Mainstay. The cases and the measuring are in `mainstay_bench`.

pub mod big;
pub mod mainstay;
pub mod peers;
pub mod ready;

pub use ready::{Needs, Ready};

/// The nodes of every lab.
pub const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Where the client's programs and the databases run.
pub const FIRST: &str = NODES[0];
/// Every lab has a switch of its own, so these are the same everywhere.
pub const ADDRESSES: [&str; 3] = ["10.213.0.1", "10.213.0.2", "10.213.0.3"];
