//! Types of Mainstay's interfaces: the agent's HTTP API with its client, and the messages between an
//! agent and the engine of its node.

pub mod client;
pub mod engine;
pub mod inspect;
pub mod metrics;
pub mod rest;
