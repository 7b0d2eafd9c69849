//! Clients on the shard: resources of which this node has the devices and no replica.

use super::{Shard, shared};
use crate::attachment::OpenClient;
use crate::devices::DeviceJob;
use crate::open_replica::{AgentReply, ShardParts};
use crate::transport::Channel;
use mainstay_api::engine::{EngineEvent, Reply};
use mainstay_codec::{Envelope, Message};
use mainstay_types::{Code, Instance, NodeId, ResourceId, ResourceRecord, Time};

impl Shard {
    /// Calls `work` with a client and what it needs of the shard.
    pub(super) fn with_client<T>(
        &mut self,
        now: Time,
        resource: ResourceId,
        work: impl FnOnce(&mut OpenClient, &mut ShardParts<'_>) -> T,
    ) -> Option<T> {
        let identity = self.identity?;
        let client = self.clients.get_mut(&resource)?;
        let mut shared = shared!(self, identity, now);
        self.touched.insert(resource);
        Some(work(client, &mut shared))
    }

    /// Opens a client, unless there is one, and tells it the record.
    pub(super) fn attach_client(
        &mut self,
        now: Time,
        name: String,
        record: ResourceRecord,
        instance: Instance,
        answer: AgentReply,
    ) {
        let resource = record.resource;
        if self.replicas.contains_key(&resource) || self.being_opened.contains_key(&resource) {
            return answer(Reply::refused(
                Code::HasReplica,
                format!("a replica of resource {resource} is open here"),
                "close it first",
            ));
        }
        if !self.clients.contains_key(&resource) {
            let Some(identity) = self.identity else { return };
            // Devices that an earlier engine has left belong to a session that is over.
            self.devices.submit(DeviceJob::GiveUp { resource });
            self.clients.insert(resource, OpenClient::new(identity.node, resource, name, instance));
            for node in self.up.clone() {
                self.with_client(now, resource, |client, _| client.peer(now, node, true));
            }
        }
        self.with_client(now, resource, |client, _| client.record(now, record));
        answer(Reply::Ok);
    }

    /// Closes it. Answered when its devices are gone.
    pub(super) fn detach_client(&mut self, now: Time, resource: ResourceId, answer: AgentReply) {
        if self.clients.contains_key(&resource) {
            self.with_client(now, resource, |client, shared| client.close(shared, answer));
        } else {
            answer(Reply::Ok);
        }
    }

    /// The connection that this node opened to `node` has come up or gone down.
    pub(super) fn clients_peer(&mut self, now: Time, node: NodeId, up: bool) {
        for resource in self.clients.keys().copied().collect::<Vec<_>>() {
            self.with_client(now, resource, |client, _| client.peer(now, node, up));
        }
    }

    /// Takes what a primary says to a client; gives back what is for replicas.
    pub(super) fn client_message(
        &mut self,
        now: Time,
        channel: Channel,
        envelope: Envelope,
    ) -> Option<Envelope> {
        // A primary answers on the connection that this node opened.
        if !channel.initiated_by_us || !matches!(envelope.message, Message::ClientAnswer(_)) {
            return Some(envelope);
        }
        let resource = envelope.resource;
        self.with_client(now, resource, |client, _| client.message(now, channel.peer, envelope));
        None
    }

    /// Lets the core of a client run until it is quiet, and forgets a client that is closed.
    pub(super) fn pump_client(&mut self, now: Time, resource: ResourceId) {
        self.with_client(now, resource, |client, shared| client.pump(shared));
        self.touched.remove(&resource);
        if self.clients.get(&resource).is_some_and(OpenClient::is_closed) {
            if let Some(client) = self.clients.remove(&resource) {
                client.answer_closed();
            }
            if let Some(at) = self.deadlines.remove(&resource) {
                self.timers.remove(&(at, resource));
            }
            self.events.push(EngineEvent::ClientGone { resource });
        } else if let Some(client) = self.clients.get(&resource) {
            let deadline = client.next_deadline();
            self.set_timer(resource, deadline);
        }
    }
}
