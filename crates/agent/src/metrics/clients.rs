//! Metrics of the engine about resources that are attached to this node.

use super::Gathered;
use super::families as f;
use super::text::{Page, seconds};
use mainstay_types::Time;

/// All families of clients. Nothing when the engine did not answer.
pub fn all(page: &mut Page, seen: &Gathered) {
    let Some(engine) = &seen.engine else { return };
    page.family(&f::CLIENT_READY, |out| {
        for client in &engine.clients {
            let ready = !client.devices.is_empty() && client.devices.len() == client.volumes.len();
            out.add(&[&client.name], ready);
        }
    });
    page.family(&f::CLIENT_CONNECTED, |out| {
        engine.clients.iter().for_each(|client| out.add(&[&client.name], client.primary.is_some()));
    });
    page.family(&f::CLIENT_REQUESTS, |out| {
        engine.clients.iter().for_each(|client| out.add(&[&client.name], client.requests));
    });
    page.family(&f::CLIENT_WAITS, |out| {
        for client in &engine.clients {
            let us = match client.waits_since_us {
                Time(0) => 0,
                since => engine.now.us_since(since),
            };
            out.add(&[&client.name], seconds(us));
        }
    });
    page.family(&f::CLIENT_STREAMS, |out| {
        engine.clients.iter().for_each(|client| out.add(&[&client.name], client.streams));
    });
}
