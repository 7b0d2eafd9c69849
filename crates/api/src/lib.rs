//! Types of Mainstay's interfaces: the agent's HTTP API, and the messages between an agent and the
//! engine of its node.

pub mod engine;
pub mod inspect;
pub mod metrics;
pub mod rest;
pub mod routes;
