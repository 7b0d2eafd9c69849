//! placeholder

pub mod buffer;
pub mod ring;
pub mod transport;
