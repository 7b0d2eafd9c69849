//! placeholder

pub mod buffer;
pub mod ring;
