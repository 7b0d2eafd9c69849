//! Clients of an engine: devices of resources of which it holds no replica. Mirrors
//! `engine/src/attachment.rs`.

use super::devices::goes;
use super::{Engine, EngineOut};
use crate::agent::EngineEvent;
use mainstay_codec::{Envelope, Message};
use mainstay_control::attachments::ClientSeen;
use mainstay_host::AnswerError;
use mainstay_replica::{Client, ClientConfig, ClientEffect, ClientEvent, Op, RequestId};
use mainstay_silence::{Devices, Wanted};
use mainstay_types::{Instance, NodeId, ResourceId, ResourceRecord, Time};

/// Generations of devices from here on are of clients.
const FIRST_GENERATION: u64 = 1 << 32;

/// Whether the device of this generation is a client's.
#[must_use]
pub fn is_of_client(generation: u64) -> bool {
    generation >= FIRST_GENERATION
}

/// An open client.
pub struct HostedClient {
    pub client: Client,
    pub device: Devices,
    generation: u64,
    /// Numbers of the agent's steps that wait for this client to close. It closes when its device
    /// is gone.
    closing: Vec<u64>,
    reported: Option<ClientSeen>,
}

impl HostedClient {
    fn wanted(&self) -> Wanted {
        match self.client.over() {
            _ if !self.closing.is_empty() => Wanted::Never,
            Some(_) => Wanted::No,
            None => Wanted::Yes,
        }
    }

    fn seen(&self) -> ClientSeen {
        ClientSeen {
            instance: self.client.instance(),
            version: self.client.record().map_or_else(Default::default, |record| record.version),
            ready: self.device.is_offered(),
            over: self.client.over().is_some(),
        }
    }
}

impl Engine {
    /// The agent wants a client, under `instance` if there is none, and says what the record is.
    pub(super) fn attach_client(
        &mut self,
        now: Time,
        resource: ResourceId,
        number: u64,
        record: ResourceRecord,
        instance: Instance,
    ) {
        let config = ClientConfig::new(resource, self.node, instance);
        let fresh = !self.clients.contains_key(&resource);
        if fresh {
            self.last_generation += 1;
            let generation = FIRST_GENERATION + self.last_generation;
            // A device that an earlier engine has left belongs to a session that is over.
            self.outs.push(EngineOut::GiveUp(resource));
            let (client, device) = (Client::new(config), Devices::None);
            let closing = Vec::new();
            let hosted = HostedClient { client, device, generation, closing, reported: None };
            self.clients.insert(resource, hosted);
            for node in self.up.clone() {
                self.client(now, resource, ClientEvent::PeerUp { node });
            }
        }
        self.client(now, resource, ClientEvent::Record(Box::new(record)));
        self.outs.push(EngineOut::StepDone { resource, number });
    }

    pub(super) fn detach_client(&mut self, resource: ResourceId, number: u64) {
        let Some(hosted) = self.clients.get_mut(&resource) else {
            return self.outs.push(EngineOut::StepDone { resource, number });
        };
        hosted.closing.push(number);
        for effect in hosted.client.close() {
            self.client_effect(resource, effect);
        }
        self.withdraw_client(resource);
        self.close_clients();
    }

    pub(super) fn clients_peer(&mut self, now: Time, node: NodeId, up: bool) {
        for resource in self.clients.keys().copied().collect::<Vec<_>>() {
            let event = if up { ClientEvent::PeerUp { node } } else { ClientEvent::PeerDown { node } };
            self.client(now, resource, event);
        }
    }

    pub(super) fn clients_tick(&mut self, now: Time) {
        let due = |hosted: &HostedClient| hosted.client.next_deadline().is_some_and(|at| at <= now);
        let due: Vec<_> =
            self.clients.iter().filter(|(_, hosted)| due(hosted)).map(|(resource, _)| *resource).collect();
        for resource in due {
            self.client(now, resource, ClientEvent::Tick);
        }
    }

    /// Whether the message is for a client here.
    pub(super) fn client_message(&mut self, now: Time, from: NodeId, envelope: &Envelope) -> bool {
        if !matches!(envelope.message, Message::ClientAnswer(_)) {
            return false;
        }
        let resource = envelope.resource;
        self.client(now, resource, ClientEvent::Message { from, envelope: envelope.clone() });
        true
    }

    /// Whether the request is for the device of a client here.
    pub(super) fn client_request(&mut self, now: Time, resource: ResourceId, request: u64, op: &Op) -> bool {
        if !self.clients.get(&resource).is_some_and(|hosted| hosted.device.is_offered()) {
            return false;
        }
        self.client(now, resource, ClientEvent::Request { id: RequestId(request), op: op.clone() });
        true
    }

    fn client(&mut self, now: Time, resource: ResourceId, event: ClientEvent) {
        let Some(hosted) = self.clients.get_mut(&resource) else { return };
        hosted.client.handle(now, event);
        while let Some(effect) = self.clients.get_mut(&resource).and_then(|hosted| hosted.client.poll()) {
            self.client_effect(resource, effect);
        }
    }

    fn client_effect(&mut self, resource: ResourceId, effect: ClientEffect) {
        match effect {
            ClientEffect::Send { to, envelope } => {
                self.outs.push(EngineOut::Send { to, answer: false, envelope });
            }
            ClientEffect::Complete { id, result } => {
                let answer = result.map_err(AnswerError::Request);
                self.outs.push(EngineOut::Complete { request: id.0, answer, soft: None });
            }
            ClientEffect::Ready { .. } => {
                let Some(hosted) = self.clients.get_mut(&resource) else { return };
                if hosted.device.offer(hosted.wanted(), false) {
                    hosted.device.made(1);
                    self.outs.push(EngineOut::Attach { resource, generation: hosted.generation });
                }
            }
            ClientEffect::Over(_) => self.withdraw_client(resource),
        }
    }

    fn withdraw_client(&mut self, resource: ResourceId) {
        let Some(hosted) = self.clients.get_mut(&resource) else { return };
        if goes(&mut hosted.device) {
            self.outs.push(EngineOut::Detach { resource, generation: hosted.generation });
        }
    }

    /// Whether the device is a client's.
    pub(super) fn client_attached(&mut self, resource: ResourceId, generation: u64) -> bool {
        if let Some(hosted) = self.clients.get_mut(&resource)
            && hosted.generation == generation
            && hosted.device.attached()
            && hosted.device.is_to_go(hosted.wanted(), false)
        {
            self.withdraw_client(resource);
        }
        is_of_client(generation)
    }

    pub(super) fn client_detached(&mut self, resource: ResourceId, generation: u64) -> bool {
        if let Some(hosted) = self.clients.get_mut(&resource)
            && hosted.generation == generation
        {
            hosted.device.detached();
        }
        is_of_client(generation)
    }

    /// Closes what is to be closed, and tells the agent what has changed.
    pub(super) fn close_clients(&mut self) {
        for resource in self.clients.keys().copied().collect::<Vec<_>>() {
            let Some(hosted) = self.clients.get_mut(&resource) else { continue };
            if !hosted.closing.is_empty() && hosted.device.is_none() {
                let done = |number| EngineOut::StepDone { resource, number };
                let closing = std::mem::take(&mut hosted.closing);
                self.clients.remove(&resource);
                self.outs.push(EngineOut::ToAgent(EngineEvent::Client { resource, seen: None }));
                self.outs.extend(closing.into_iter().map(done));
                continue;
            }
            let seen = hosted.seen();
            if hosted.reported != Some(seen) {
                hosted.reported = Some(seen);
                self.outs.push(EngineOut::ToAgent(EngineEvent::Client { resource, seen: Some(seen) }));
            }
        }
    }

    /// A new agent knows nothing.
    pub(super) fn clients_untold(&mut self) {
        for hosted in self.clients.values_mut() {
            hosted.reported = None;
        }
    }
}
