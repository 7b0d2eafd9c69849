//! placeholder

pub mod buffer;
pub mod disk;
pub mod ring;
pub mod transport;
