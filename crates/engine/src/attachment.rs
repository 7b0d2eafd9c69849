//! An open client: the devices of a resource of which this node has no replica (ADR 13).
//!
//! [`mainstay_replica::Client`] decides what a request becomes, where it goes and when it is sent
//! again. This file has the devices of a client, and its requests to the transport.
//!
//! Guarantees:
//! - The devices are the same from the first answer of a primary until the session is over,
//!   whichever node is primary meanwhile.
//! - They do not depend on the node's lease: a client that is cut off does not write, because no
//!   primary admits it.
//! - A client never takes over devices that an earlier engine has left: the requests in them belong
//!   to a session that is over. The engine gives these devices up before it opens a client.

use crate::devices::DeviceOutcome;
use crate::frontend::nbd::Arrived;
use crate::frontend::{Extent, FrontendId, FrontendRequest};
use crate::open_replica::{AgentReply, ShardParts};
use crate::requests::{REQUESTS_MAX, Requests, errno, operation};
use crate::resource_devices::{Offered, ResourceDevices};
use crate::ring::Completion;
use crate::transport::Channel;
use mainstay_api::engine::{ClientStatus, EngineEvent, Reply};
use mainstay_codec::Envelope;
use mainstay_codec::nbd::Export;
use mainstay_replica::{Client, ClientConfig, ClientEffect, ClientEvent};
use mainstay_types::{
    ClientOver, ConfigVersion, Instance, NodeId, REQUEST_BYTES_MAX, ResourceId, ResourceRecord, SessionId,
    Time, VolumeId,
};

/// A request of a device that is not answered.
struct Pending {
    frontend: FrontendId,
    tag: u64,
}

/// See the top of this file.
pub struct OpenClient {
    resource: ResourceId,
    name: String,
    client: Client,
    resource_devices: ResourceDevices,
    pending: Requests<Pending>,
    /// Bytes of each volume, as a primary said last.
    volumes: Vec<u64>,
    /// Set while the client is being closed: the requests that wait for its end.
    closing: Option<Vec<AgentReply>>,
    /// State that was reported to the agent last.
    told: Option<ReportedClient>,
}

/// State of a client that is reported to the agent as soon as it changes. The number of waiting
/// requests is not part of it.
type ReportedClient = (ConfigVersion, Option<SessionId>, Option<ClientOver>, Option<NodeId>, u64);

impl OpenClient {
    /// Peers that are already connected must be told with [`peer`](Self::peer).
    #[must_use]
    pub fn new(node: NodeId, resource: ResourceId, name: String, instance: Instance) -> Self {
        // Whatever the kernel may have outstanding is admitted: it waits, it does not fail.
        let config = ClientConfig {
            requests_max: REQUESTS_MAX,
            request_bytes_max: REQUESTS_MAX as u64 * REQUEST_BYTES_MAX,
            ..ClientConfig::new(resource, node, instance)
        };
        Self {
            resource,
            resource_devices: ResourceDevices::new(Offered { resource, name: name.clone(), leased: false }),
            name,
            client: Client::new(config),
            pending: Requests::default(),
            volumes: Vec::new(),
            closing: None,
            told: None,
        }
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.client.next_deadline()
    }

    /// The control plane's record.
    pub fn record(&mut self, now: Time, record: ResourceRecord) {
        self.client.handle(now, ClientEvent::Record(Box::new(record)));
    }

    /// The connection that this node opened to `node` has come up or gone down.
    pub fn peer(&mut self, now: Time, node: NodeId, up: bool) {
        let event = if up { ClientEvent::PeerUp { node } } else { ClientEvent::PeerDown { node } };
        self.client.handle(now, event);
    }

    /// Handles a message of a primary.
    pub fn message(&mut self, now: Time, from: NodeId, envelope: Envelope) {
        self.client.handle(now, ClientEvent::Message { from, envelope });
    }

    pub fn tick(&mut self, now: Time) {
        self.client.handle(now, ClientEvent::Tick);
    }

    /// A request of a device.
    pub fn request(&mut self, shared: &mut ShardParts<'_>, frontend: FrontendId, request: FrontendRequest) {
        let tag = request.tag;
        match operation(request.volume, request.op) {
            Ok((_, _, op)) => {
                let id = self.pending.add(Pending { frontend, tag });
                self.client.handle(shared.now, ClientEvent::Request { id, op });
            }
            // This node has no replica, so it reports everything as written.
            Err(range) => {
                let all = [Extent { len: range.len, written: true }];
                self.resource_devices.answer_extents(shared, frontend, tag, &all);
            }
        }
    }

    /// Carries out what the core wants until it and the devices want nothing more.
    pub fn pump(&mut self, shared: &mut ShardParts<'_>) {
        loop {
            while let Some(effect) = self.client.poll() {
                self.effect(shared, effect);
            }
            let Some((id, mut requests)) = self.resource_devices.poll(shared) else { break };
            let found = !requests.is_empty();
            for request in requests.drain(..) {
                self.request(shared, id, request);
            }
            self.resource_devices.polled(shared, requests);
            if !found {
                break;
            }
        }
        self.report(shared);
    }

    fn effect(&mut self, shared: &mut ShardParts<'_>, effect: ClientEffect) {
        match effect {
            ClientEffect::Send { to, envelope } => {
                let channel = Channel { peer: to, initiated_by_us: true };
                // A channel that is down or overflows reports so as an event of its own.
                let _ = shared.transport.send(channel, &envelope);
            }
            ClientEffect::Complete { id, result } => {
                let Some(Pending { frontend, tag }) = self.pending.take(id) else { return };
                self.resource_devices.answer(shared, frontend, tag, result.map_err(errno));
            }
            ClientEffect::Ready { volumes } => self.ready(shared, volumes),
            ClientEffect::Over(why) => {
                tracing::warn!(resource = %self.resource, why = why.words(), "the session of a client is over; its devices go");
                self.resource_devices.want(false, None);
                self.resource_devices.withdraw(shared);
            }
        }
    }

    fn ready(&mut self, shared: &mut ShardParts<'_>, volumes: Vec<u64>) {
        if self.volumes.is_empty() {
            self.resource_devices.set_sizes(&volumes);
            self.resource_devices.want(true, None);
            self.resource_devices.offer(shared);
        }
        let known = self.volumes.iter().zip(&volumes).enumerate();
        for (volume, (_, bytes)) in known.filter(|(_, (before, now))| before != now) {
            self.resource_devices.resized(shared, VolumeId(volume as u16), *bytes);
        }
        self.volumes = volumes;
    }

    /// Closes the client: waiting requests are answered with errors, and its devices go. Then
    /// [`Self::answer_closed`] calls `answer`.
    pub fn close(&mut self, shared: &mut ShardParts<'_>, answer: AgentReply) {
        self.closing.get_or_insert_default().push(answer);
        for effect in self.client.close() {
            self.effect(shared, effect);
        }
        self.resource_devices.close(shared);
    }

    /// Whether it was to be closed and nothing of it is left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing.is_some() && self.resource_devices.is_gone()
    }

    /// Answers the callers of [`Self::close`].
    pub fn answer_closed(self) {
        for answer in self.closing.into_iter().flatten() {
            answer(Reply::Ok);
        }
    }

    /// A device job of this resource has ended.
    pub fn device_outcome(&mut self, shared: &mut ShardParts<'_>, outcome: DeviceOutcome) {
        self.resource_devices.device_outcome(shared, outcome);
    }

    /// The guard has sent SIGKILL to all services on the resource, of which there are to be none.
    pub fn killed(&mut self, shared: &mut ShardParts<'_>) {
        self.resource_devices.killed(shared);
    }

    /// A completion of one of this resource's frontends.
    pub fn frontend_completed(
        &mut self,
        shared: &mut ShardParts<'_>,
        id: FrontendId,
        completion: Completion,
        requests: &mut Vec<FrontendRequest>,
    ) {
        self.resource_devices.frontend_completed(shared, id, completion, requests);
    }

    /// Exports that clients of the NBD server may choose.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        self.resource_devices.exports()
    }

    /// Takes over a client of the NBD server that has chosen one of the exports.
    pub fn adopt(&mut self, shared: &mut ShardParts<'_>, arrived: Arrived) {
        self.resource_devices.adopt(shared, arrived);
    }

    #[must_use]
    pub fn status(&self) -> ClientStatus {
        ClientStatus {
            resource: self.resource,
            name: self.name.clone(),
            instance: self.client.instance(),
            version: self.version(),
            session: self.client.session(),
            over: self.client.over(),
            primary: self.client.primary(),
            requests: self.client.waiting(),
            waits_since_us: self.client.waits_since().unwrap_or_default(),
            streams: self.client.streams(),
            volumes: self.volumes.clone(),
            devices: self.resource_devices.device_list(),
            failure: self.resource_devices.failure().map(str::to_owned),
        }
    }

    /// Tells the agent about a change.
    fn report(&mut self, shared: &mut ShardParts<'_>) {
        let client = &self.client;
        let now = (self.version(), client.session(), client.over(), client.primary(), client.streams());
        if self.resource_devices.take_changed() || self.told != Some(now) {
            self.told = Some(now);
            shared.events.push(EngineEvent::Client(self.status()));
        }
    }

    fn version(&self) -> ConfigVersion {
        self.client.record().map_or_else(Default::default, |record| record.version)
    }
}
