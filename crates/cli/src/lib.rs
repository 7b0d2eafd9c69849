//! Parts that the command lines of all programs share: failures with a code and a remedy, output,
//! and the agent to ask.

pub mod connect;
pub mod failure;
pub mod interrupt;
pub mod list;
pub mod members;
pub mod output;
pub mod pasted;
pub mod screen;
