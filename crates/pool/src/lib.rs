//! Where a node keeps its replicas.

pub mod directory;
pub mod durable;
pub mod journals;
