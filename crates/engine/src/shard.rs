//! The shard: one thread, one ring, all replicas of this engine.
//!
//! A turn takes what has completed on the ring and what other threads have sent, and tells it to
//! the replicas that it concerns. It lets their cores run until they are quiet. It hands everything
//! they want to the kernel with one system call at the beginning of the next turn. Nothing on this
//! thread blocks, and no other thread touches what it owns: there is no lock on the path of a
//! request.

mod agent;
mod attachments;
mod fill_rates;
mod successor;

use crate::attachment::OpenClient;
use crate::buffer::BufferPool;
use crate::devices::{DeviceAdmin, DeviceOutcome};
use crate::disk::{Disk, SnapshotDone, SnapshotJob};
use crate::frontend::nbd::NbdServer;
use crate::frontend::nbd::server::SERVER_ID;
use crate::frontend::{Choice, FrontendId, FrontendRequest, frontend_of};
use crate::guard::Guard;
use crate::ipc::{Client, IpcServer};
use crate::left_devices::LeftDevices;
use crate::lifecycle::{Lifecycle, Opened};
use crate::open_replica::{AgentReply, OpenReplica, ShardParts};
use crate::options::EngineOptions;
use crate::ring::{Completion, Owner, Ring, RingError, now};
use crate::transport::{Channel, Transport, TransportEvent};
use crate::watchdog::WatchdogThread;
use fill_rates::FillRates;
use mainstay_api::engine::{EngineEvent, Request};
use mainstay_codec::nbd::Export;
use mainstay_codec::{Envelope, Message};
use mainstay_devices::supervisor;
use mainstay_devices::users::Users;
use mainstay_types::{NodeId, ResourceId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Receiver;
pub use successor::{Left, Successor};

/// Makes the [`ShardParts`] for a host, from all its fields but those that hold the
/// hosts.
macro_rules! shared {
    ($shard:expr, $identity:expr, $now:expr) => {
        ShardParts {
            ring: &mut $shard.ring,
            transport: $shard.transport.as_mut()?,
            pool: &$shard.pool,
            devices: &$shard.devices,
            snapshots: &*$shard.snapshots,
            guard: &$shard.guard,
            run_dir: &$shard.options.run_dir,
            choice: &$shard.choice,
            node: $identity.node,
            now: $now,
            lease_until: $shard.lease_until,
            fenced: $shard.fenced,
            events: &mut $shard.events,
            next_frontend: &mut $shard.next_frontend,
            frontends: &mut $shard.frontends,
            left: &mut $shard.left,
        }
    };
}
use shared;

/// Most messages kept for replicas that are not open yet (R18). A primary repeats a message that
/// finds no place.
const EARLY_MAX: usize = 4096;

/// A message of another thread to the shard.
pub enum Inbound {
    /// The agent asks for something. `client` is its connection.
    Request { client: Client, request: Box<Request>, answer: AgentReply },
    /// A new agent listens to events, and is to get the whole state.
    Connected(Client),
    /// A device was attached or detached.
    Device(DeviceOutcome),
    /// A replica was recovered.
    Opened(Box<Opened>),
    /// The files of a snapshot were made or removed.
    Snapshot(SnapshotDone),
    /// R19: the lease has run out; the devices answer with errors from now on.
    Fence,
    /// The engine was told to end: this node is being silenced.
    Ends,
    /// The engine was told to end, and its successor comes: see `successor.rs`.
    Leave(Left),
    /// The engine could not leave: it ends as any other, and its devices answer until then.
    Stay,
    /// The supervisor wants to hear that this thread works.
    Alive,
    /// The services on a resource were killed, because its devices are about to fail.
    Killed(ResourceId),
}

/// Identity of this engine, from the agent's first hello.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    cluster: u64,
    node: NodeId,
}

/// See the top of this file.
pub struct Shard {
    options: EngineOptions,
    choice: Choice,
    nbd: Option<NbdServer>,
    ring: Ring,
    pool: BufferPool,
    inbox: Receiver<Inbound>,
    ipc: IpcServer,
    guard: Guard,
    watchdog: WatchdogThread,
    users: Users,
    devices: DeviceAdmin,
    lifecycle: Lifecycle,
    snapshots: Box<dyn Fn(SnapshotJob)>,
    identity: Option<Identity>,
    transport: Option<Transport>,
    replicas: BTreeMap<ResourceId, OpenReplica>,
    /// Never of a resource of which a replica is open, or being opened.
    clients: BTreeMap<ResourceId, OpenClient>,
    /// Which resource a [`Disk`] belongs to; its numbers are not used again.
    disks: BTreeMap<u32, ResourceId>,
    next_disk: u32,
    frontends: BTreeMap<FrontendId, ResourceId>,
    next_frontend: u32,
    /// Replicas that are being opened, with the requests that wait for it.
    being_opened: BTreeMap<ResourceId, Vec<AgentReply>>,
    /// Replicas that are to be dropped once their devices are gone.
    dropping: BTreeMap<ResourceId, Vec<AgentReply>>,
    /// Messages of primaries to replicas that are not open: this engine has just started, or the
    /// replicas are being made. A replica gets them when it opens.
    early: BTreeMap<(ResourceId, Channel), Envelope>,
    /// When which replica wants a tick: an idle one costs nothing.
    timers: BTreeSet<(Time, ResourceId)>,
    deadlines: BTreeMap<ResourceId, Time>,
    /// How many completions each replica waits for before there is something to do for it, see
    /// [`Ring::turn_gathering`]. Replicas that wait for none are not listed.
    awaiting: BTreeMap<ResourceId, usize>,
    /// Replicas whose cores have something to say.
    touched: BTreeSet<ResourceId>,
    fill_rates: FillRates,
    /// Devices of the engine before this one.
    left: LeftDevices,
    successor: Successor,
    /// To be answered when everything that was read from devices is answered.
    leaving: Option<Left>,
    up: BTreeSet<NodeId>,
    lease_until: Time,
    fenced: bool,
    events: Vec<EngineEvent>,
    requests: Vec<FrontendRequest>,
    /// Turns so far.
    turns: u64,
}

/// Parts from which a shard is built.
pub struct Parts {
    pub options: EngineOptions,
    pub choice: Choice,
    pub nbd: Option<NbdServer>,
    pub ring: Ring,
    pub pool: BufferPool,
    pub inbox: Receiver<Inbound>,
    pub ipc: IpcServer,
    pub guard: Guard,
    pub watchdog: WatchdogThread,
    pub devices: DeviceAdmin,
    pub lifecycle: Lifecycle,
    /// Hands a job to a thread, which reports its end to the shard.
    pub snapshots: Box<dyn Fn(SnapshotJob)>,
    /// Devices of the engine before this one.
    pub left: LeftDevices,
    pub successor: Successor,
}

impl Shard {
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            users: Users::new(&parts.options.run_dir),
            options: parts.options,
            choice: parts.choice,
            nbd: parts.nbd,
            ring: parts.ring,
            pool: parts.pool,
            inbox: parts.inbox,
            ipc: parts.ipc,
            guard: parts.guard,
            watchdog: parts.watchdog,
            devices: parts.devices,
            lifecycle: parts.lifecycle,
            snapshots: parts.snapshots,
            identity: None,
            transport: None,
            replicas: BTreeMap::new(),
            clients: BTreeMap::new(),
            disks: BTreeMap::new(),
            next_disk: 1,
            frontends: BTreeMap::new(),
            next_frontend: 1,
            being_opened: BTreeMap::new(),
            dropping: BTreeMap::new(),
            early: BTreeMap::new(),
            timers: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            awaiting: BTreeMap::new(),
            touched: BTreeSet::new(),
            fill_rates: FillRates::default(),
            left: parts.left,
            successor: parts.successor,
            leaving: None,
            up: BTreeSet::new(),
            lease_until: Time(0),
            fenced: true,
            events: Vec::new(),
            requests: Vec::new(),
            turns: 0,
        }
    }

    /// Runs for as long as the process lives; returns only when the ring fails.
    pub fn run(&mut self) -> Result<std::convert::Infallible, RingError> {
        let mut completions = Vec::new();
        loop {
            self.flush();
            let woken = self.ring.turn_gathering(self.next_deadline(), self.awaited(), &mut completions)?;
            let now = now();
            self.turns += 1;
            for completion in completions.drain(..) {
                self.completed(now, completion);
            }
            if woken {
                while let Ok(inbound) = self.inbox.try_recv() {
                    self.inbound(now, inbound);
                }
            }
            self.transport_events(now);
            self.due(now);
            self.pump(now);
            self.leave(now);
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let replicas = self.timers.first().map(|(at, _)| *at);
        let transport = self.transport.as_ref().and_then(Transport::next_deadline);
        let nbd = self.nbd.as_ref().and_then(NbdServer::next_deadline);
        replicas.into_iter().chain(transport).chain(nbd).chain(self.left.deadline()).min()
    }

    /// Hands what is queued to the kernel and to the listeners.
    fn flush(&mut self) {
        if let Some(transport) = &mut self.transport {
            transport.flush(&mut self.ring);
        }
        for event in self.events.drain(..) {
            self.ipc.send_all(&event);
        }
    }

    /// Calls `work` with a replica and what it needs of the shard.
    fn with<T>(
        &mut self,
        now: Time,
        resource: ResourceId,
        work: impl FnOnce(&mut OpenReplica, &mut ShardParts<'_>) -> T,
    ) -> Option<T> {
        let identity = self.identity?;
        let replica = self.replicas.get_mut(&resource)?;
        let mut shared = shared!(self, identity, now);
        self.touched.insert(resource);
        Some(work(replica, &mut shared))
    }

    fn with_all(&mut self, now: Time, mut work: impl FnMut(&mut OpenReplica, &mut ShardParts<'_>)) {
        for resource in self.replicas.keys().copied().collect::<Vec<_>>() {
            self.with(now, resource, &mut work);
        }
    }

    fn completed(&mut self, now: Time, completion: Completion) {
        match completion.owner {
            Owner::Disk => {
                if let Some(&resource) = self.disks.get(&Disk::id_of(&completion)) {
                    self.with(now, resource, |replica, shared| replica.disk_completed(shared, completion));
                }
            }
            Owner::Transport => {
                if let Some(transport) = &mut self.transport {
                    transport.handle_completion(&mut self.ring, now, completion);
                }
            }
            Owner::Frontend => {
                let id = frontend_of(completion.tag);
                if id == SERVER_ID {
                    return self.nbd_completed(now, completion);
                }
                let Some(&resource) = self.frontends.get(&id) else { return };
                let mut requests = std::mem::take(&mut self.requests);
                if self.clients.contains_key(&resource) {
                    self.with_client(now, resource, |client, shared| {
                        client.frontend_completed(shared, id, completion, &mut requests);
                        for request in requests.drain(..) {
                            client.request(shared, id, request);
                        }
                    });
                } else {
                    self.with(now, resource, |replica, shared| {
                        replica.frontend_completed(shared, id, completion, &mut requests);
                        for request in requests.drain(..) {
                            replica.request(shared, id, request);
                        }
                    });
                }
                self.requests = requests;
            }
            Owner::Shard => {}
        }
    }

    fn nbd_completed(&mut self, now: Time, completion: Completion) {
        let (Some(server), replicas, clients) = (&mut self.nbd, &self.replicas, &self.clients) else {
            return;
        };
        let of_replicas = || replicas.iter().map(|(resource, replica)| (*resource, replica.exports()));
        let of_clients = || clients.iter().map(|(resource, client)| (*resource, client.exports()));
        let exports = || of_replicas().chain(of_clients()).flat_map(|(_, exports)| exports).collect();
        let Some(arrived) = server.completed(&mut self.ring, now, completion, exports) else { return };
        let offers = |(resource, exports): (ResourceId, Vec<Export>)| {
            exports.iter().any(|export| export.name == arrived.negotiated.export).then_some(resource)
        };
        let Some(resource) = of_replicas().chain(of_clients()).find_map(offers) else { return };
        if self.clients.contains_key(&resource) {
            self.with_client(now, resource, |client, shared| client.adopt(shared, arrived));
        } else {
            self.with(now, resource, |replica, shared| replica.adopt(shared, arrived));
        }
    }

    fn transport_events(&mut self, now: Time) {
        let Some(transport) = &mut self.transport else { return };
        transport.tick(&mut self.ring, now);
        while let Some(event) = self.transport.as_mut().and_then(Transport::poll) {
            match event {
                TransportEvent::PeerUp { channel } if channel.initiated_by_us => {
                    tracing::info!(peer = %channel.peer, "connected");
                    self.up.insert(channel.peer);
                    self.with_all(now, |replica, _| replica.peer(now, channel.peer, true));
                    self.clients_peer(now, channel.peer, true);
                }
                TransportEvent::PeerDown { channel, reason } if channel.initiated_by_us => {
                    tracing::info!(peer = %channel.peer, %reason, "disconnected");
                    self.up.remove(&channel.peer);
                    self.with_all(now, |replica, _| replica.peer(now, channel.peer, false));
                    self.clients_peer(now, channel.peer, false);
                }
                TransportEvent::PeerUp { .. } => {}
                TransportEvent::PeerDown { channel, .. } => {
                    self.early.retain(|(_, from), _| *from != channel)
                }
                TransportEvent::Message { channel, envelope } => {
                    let Some(envelope) = self.client_message(now, channel, envelope) else { continue };
                    let resource = envelope.resource;
                    if self.replicas.contains_key(&resource) {
                        self.with(now, resource, |replica, _| replica.message(now, channel, envelope));
                    } else if matches!(envelope.message, Message::Attach) && self.early.len() < EARLY_MAX {
                        self.early.insert((resource, channel), envelope);
                    }
                }
            }
        }
    }

    fn due(&mut self, now: Time) {
        if self.left.deadline().is_some_and(|at| at <= now) {
            self.left.give_up_all(&self.devices, &self.options.run_dir);
        }
        if let Some(server) = &mut self.nbd {
            server.tick(&mut self.ring, now);
        }
        while let Some(&(at, resource)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.deadlines.remove(&resource);
            self.with(now, resource, |replica, _| replica.tick(now));
            self.with_client(now, resource, |client, _| client.tick(now));
        }
    }

    fn pump(&mut self, now: Time) {
        while let Some(resource) = self.touched.pop_first() {
            if self.clients.contains_key(&resource) {
                self.pump_client(now, resource);
                continue;
            }
            self.with(now, resource, |replica, shared| replica.pump(shared));
            self.touched.remove(&resource);
            if let Some(replica) = self.replicas.get(&resource) {
                match replica.awaited() {
                    0 => self.awaiting.remove(&resource),
                    awaited => self.awaiting.insert(resource, awaited),
                };
                let deadline = replica.next_deadline();
                self.set_timer(resource, deadline);
            }
            self.divide_background(now, resource);
            self.finish_drop(resource);
        }
    }

    /// Number of completions that a wait gathers: with fewer, only urgent work can be done.
    fn awaited(&self) -> usize {
        // Answers for a client on this node come like the acknowledgements of a primary, so the
        // shard waits for one.
        let least = if self.clients.is_empty() { self.awaiting.values().min().copied() } else { None };
        least.unwrap_or(1)
    }

    /// Sees whether a replica has begun or ended to fill others, or has heard of another limit, and
    /// divides the node's rate anew then.
    fn divide_background(&mut self, now: Time, resource: ResourceId) {
        let replica = self.replicas.get(&resource);
        let limit = replica.map_or(0, OpenReplica::fill_rate_of_node);
        if limit == 0 && self.fill_rates.is_empty() {
            return;
        }
        let fills = limit > 0 && replica.is_some_and(OpenReplica::fills);
        let Some(share) = self.fill_rates.note(resource, fills.then_some(limit)) else { return };
        for resource in self.fill_rates.resources() {
            self.with(now, resource, |replica, _| replica.background_rate(now, share));
        }
    }

    /// A replica wants a tick then. A tick that it does not want any more, or wants later, comes
    /// all the same, once: most deadlines are those of a write, and moving them with every write
    /// costs more.
    fn set_timer(&mut self, resource: ResourceId, deadline: Option<Time>) {
        let Some(at) = deadline else { return };
        let old = self.deadlines.get(&resource).copied();
        if old.is_some_and(|old| old <= at) {
            return;
        }
        if let Some(old) = old {
            self.timers.remove(&(old, resource));
        }
        self.deadlines.insert(resource, at);
        self.timers.insert((at, resource));
    }

    fn inbound(&mut self, now: Time, inbound: Inbound) {
        match inbound {
            Inbound::Request { client, request, answer } => self.request(now, &client, *request, answer),
            Inbound::Connected(client) => {
                for replica in self.kept() {
                    client.send(EngineEvent::Replica(replica.status()));
                }
                for open in self.clients.values() {
                    client.send(EngineEvent::Client(open.status()));
                }
            }
            Inbound::Device(outcome) => {
                let resource = match &outcome {
                    DeviceOutcome::Attached { resource, .. }
                    | DeviceOutcome::Opened { resource, .. }
                    | DeviceOutcome::AttachFailed { resource, .. }
                    | DeviceOutcome::Detached { resource, .. } => *resource,
                };
                if self.clients.contains_key(&resource) {
                    self.with_client(now, resource, |client, shared| client.device_outcome(shared, outcome));
                } else {
                    self.with(now, resource, |replica, shared| replica.device_outcome(shared, outcome));
                }
            }
            Inbound::Opened(opened) => self.opened(now, *opened),
            Inbound::Snapshot(done) => {
                self.with(now, done.resource, |replica, _| replica.snapshot_done(done));
            }
            Inbound::Killed(resource) => {
                self.with(now, resource, |replica, shared| replica.killed(shared));
                self.with_client(now, resource, |client, shared| client.killed(shared));
            }
            Inbound::Fence => {
                tracing::warn!("the lease has run out; the devices answer with errors");
                self.fenced = true;
                self.left.give_up_all(&self.devices, &self.options.run_dir);
                self.with_all(now, |replica, shared| replica.fence(shared));
                let silenced_us = self.guard.silenced();
                self.events.push(EngineEvent::LeaseLost { until_us: self.lease_until, silenced_us });
            }
            Inbound::Alive => supervisor::alive(),
            Inbound::Leave(left) => {
                self.leaving = Some(left);
                self.with_all(now, |replica, shared| replica.quiesce(shared, true));
            }
            Inbound::Stay => {
                self.leaving = None;
                self.with_all(now, |replica, shared| replica.quiesce(shared, false));
            }
            Inbound::Ends => {
                tracing::warn!("the engine was told to end: the services of this node are silenced first");
                let silenced_us = self.guard.silenced();
                self.events.push(EngineEvent::LeaseLost { until_us: self.lease_until, silenced_us });
            }
        }
    }
}
