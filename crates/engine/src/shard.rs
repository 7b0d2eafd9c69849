//! The shard: one thread, one ring, all replicas of this engine.
//!
//! A turn takes what has completed on the ring and what other threads have sent, tells it to the replicas that it
//! concerns, lets their cores run until they are quiet, and hands everything they want to the kernel with one
//! system call at the beginning of the next turn. Nothing on this thread blocks, and nobody else touches what
//! it owns: there is no lock on the path of a request.

mod clients;

use crate::buffer::BufferPool;
use crate::clients::OpenClient;
use crate::devices::{DeviceAdmin, DeviceJob, DeviceOutcome};
use crate::disk::{Content, Disk, NewJournal, SnapshotDone, SnapshotJob};
use crate::frontend::nbd::NbdServer;
use crate::frontend::nbd::server::SERVER_ID;
use crate::frontend::{Choice, FrontendId, FrontendKind, FrontendRequest, frontend_of};
use crate::guard::{Guard, GuardTarget};
use crate::ipc::{Client, IpcServer};
use crate::lifecycle::{Job, Lifecycle, Opened};
use crate::metrics_page;
use crate::open_replica::{Answer, Closing, OpenReplica, Shared};
use crate::options::EngineOptions;
use crate::ring::{Completion, Owner, Ring, RingError, now};
use crate::transport::{Channel, Transport, TransportEvent};
use crate::users::Users;
use mainstay_api::engine::{
    EngineError, EngineEvent, EngineStatus, FrontendStatus, GuardEntry, JournalPlace, Peer, Reply, Request,
};
use mainstay_api::metrics::MetricsPage;
use mainstay_codec::nbd::Export;
use mainstay_codec::{Envelope, JournalLabel, Message};
use mainstay_replica::ScrubOrder;
use mainstay_store::StoreConfig;
use mainstay_types::{NodeId, ResourceId, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::mpsc::Receiver;

/// What a host needs of its shard, from the shard's fields but those that hold the hosts.
macro_rules! shared {
    ($shard:expr, $identity:expr, $now:expr) => {
        Shared {
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
        }
    };
}
use shared;

/// Most messages kept for replicas that are not open yet (R18). What finds no place is said again by its primary.
const EARLY_MAX: usize = 4096;

/// What other threads tell the shard.
pub enum Inbound {
    /// The agent asks for something. `client` is its connection.
    Request { client: Client, request: Box<Request>, answer: Answer },
    /// Somebody new listens to events, and is to be told everything.
    Connected(Client),
    /// A device was attached or detached.
    Device(DeviceOutcome),
    /// A replica was recovered.
    Opened(Box<Opened>),
    /// The files of a snapshot were made or removed.
    Snapshot(SnapshotDone),
    /// R19: the lease has run out; the devices answer with errors from now on.
    Fence,
    /// The services on a resource were killed, because its devices are about to fail.
    Killed(ResourceId),
}

/// Who this engine is, from the agent's first hello.
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
    /// Replicas that are being opened, and those who wait for it.
    opening: BTreeMap<ResourceId, Vec<Answer>>,
    /// Replicas that are to be dropped once their devices are gone.
    dropping: BTreeMap<ResourceId, Vec<Answer>>,
    /// What primaries said to replicas that are not open yet: this engine has just started, or they are being
    /// made. They hear it when they are.
    early: BTreeMap<(ResourceId, Channel), Envelope>,
    /// When which replica wants a tick: an idle one costs nothing.
    timers: BTreeSet<(Time, ResourceId)>,
    deadlines: BTreeMap<ResourceId, Time>,
    /// Completions that the next turn waits for, see [`Ring::turn_gathering`].
    due: usize,
    /// Replicas whose cores have something to say.
    touched: BTreeSet<ResourceId>,
    /// Resources that fill replicas elsewhere, if that is limited.
    filling: BTreeSet<ResourceId>,
    up: BTreeSet<NodeId>,
    lease_until: Time,
    fenced: bool,
    events: Vec<EngineEvent>,
    requests: Vec<FrontendRequest>,
    /// Turns so far.
    turns: u64,
}

/// What a shard is built from.
pub struct Parts {
    pub options: EngineOptions,
    pub choice: Choice,
    pub nbd: Option<NbdServer>,
    pub ring: Ring,
    pub pool: BufferPool,
    pub inbox: Receiver<Inbound>,
    pub ipc: IpcServer,
    pub guard: Guard,
    pub devices: DeviceAdmin,
    pub lifecycle: Lifecycle,
    /// Has a thread do it, and tell the shard.
    pub snapshots: Box<dyn Fn(SnapshotJob)>,
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
            opening: BTreeMap::new(),
            dropping: BTreeMap::new(),
            early: BTreeMap::new(),
            timers: BTreeSet::new(),
            deadlines: BTreeMap::new(),
            due: 1,
            touched: BTreeSet::new(),
            filling: BTreeSet::new(),
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
            let woken = self.ring.turn_gathering(self.next_deadline(), self.due, &mut completions)?;
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
        }
    }

    fn next_deadline(&self) -> Option<Time> {
        let replicas = self.timers.first().map(|(at, _)| *at);
        let transport = self.transport.as_ref().and_then(Transport::next_deadline);
        let nbd = self.nbd.as_ref().and_then(NbdServer::next_deadline);
        replicas.into_iter().chain(transport).chain(nbd).min()
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
        work: impl FnOnce(&mut OpenReplica, &mut Shared<'_>) -> T,
    ) -> Option<T> {
        let identity = self.identity?;
        let replica = self.replicas.get_mut(&resource)?;
        let mut shared = shared!(self, identity, now);
        self.touched.insert(resource);
        Some(work(replica, &mut shared))
    }

    fn with_all(&mut self, now: Time, mut work: impl FnMut(&mut OpenReplica, &mut Shared<'_>)) {
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
        let mut due = usize::MAX;
        while let Some(resource) = self.touched.pop_first() {
            if self.clients.contains_key(&resource) {
                due = 1;
                self.pump_client(now, resource);
                continue;
            }
            self.with(now, resource, |replica, shared| replica.pump(shared));
            self.touched.remove(&resource);
            if let Some(replica) = self.replicas.get(&resource) {
                due = due.min(replica.awaited().max(1));
                let deadline = replica.next_deadline();
                self.set_timer(resource, deadline);
            }
            self.divide_background(now, resource);
            self.finish_drop(resource);
        }
        self.due = if due == usize::MAX { 1 } else { due };
    }

    /// Sees whether a replica has begun or ended to fill others, and divides what the node may do among those that do.
    fn divide_background(&mut self, now: Time, resource: ResourceId) {
        let node = self.options.background.max_rate;
        if node == 0 {
            return;
        }
        let fills = self.replicas.get(&resource).is_some_and(OpenReplica::fills);
        let changed = if fills { self.filling.insert(resource) } else { self.filling.remove(&resource) };
        if !changed {
            return;
        }
        let share = (node / self.filling.len().max(1) as u64).max(1);
        for resource in self.filling.clone() {
            self.with(now, resource, |replica, _| replica.background_rate(now, share));
        }
    }

    /// A replica wants a tick then. One that it does not want any more, or wants later, comes all the same, once: most
    /// deadlines are those of a write, and moving them with every write costs more.
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
                for replica in self.replicas.values() {
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
                self.with_all(now, |replica, shared| replica.fence(shared));
                let silenced_us = self.guard.silenced();
                self.events.push(EngineEvent::LeaseLost { until_us: self.lease_until, silenced_us });
            }
        }
    }

    fn request(&mut self, now: Time, client: &Client, request: Request, answer: Answer) {
        match request {
            Request::Hello { node, cluster, .. } => {
                self.devices.submit(DeviceJob::Keep);
                answer(self.hello(Identity { cluster, node }));
            }
            Request::Status => answer(Reply::Status(self.status(now))),
            Request::Metrics { after } => answer(Reply::Metrics(self.metrics(now, after))),
            _ if self.identity.is_none() => {
                answer(refusal("no-hello", "the engine does not know its node yet", "say hello first"));
            }
            Request::Peers { peers } => answer(self.set_peers(&peers)),
            Request::Create { resource, .. } | Request::Open { resource, .. }
                if self.clients.contains_key(&resource) =>
            {
                let message = format!("a client of resource {resource} is open here");
                answer(refusal("attached", &message, "detach it first"));
            }
            Request::AttachClient { name, record, opening } => {
                self.attach_client(now, name, *record, opening, answer);
            }
            Request::DetachClient { resource } => self.detach_client(now, resource, answer),
            Request::Create {
                resource, volumes, journal_bytes, incarnation, dir, journal, content, ..
            } => {
                let journal = journal.map(|JournalPlace { path, volatile }| NewJournal {
                    path: path.into(),
                    label: JournalLabel { resource, incarnation, journal_bytes, volatile },
                });
                let config = StoreConfig { resource, incarnation, volumes, journal_bytes, sums: true };
                let content = content.map(Content::from);
                let (dir, client) = (dir.into(), client.clone());
                self.lifecycle.submit(Job::Create { dir, config, journal, content, client, answer });
            }
            Request::Open { resource, name, dir } => self.open(resource, name, dir.into(), answer),
            Request::Drop { resource } => self.drop_replica(now, resource, answer),
            Request::Lease { until_us } => {
                let silenced_us = self.lease(now, until_us);
                answer(Reply::Lease { until_us, silenced_us });
            }
            Request::Guard { entries } => {
                answer(self.set_targets(&entries));
            }
            Request::Record { record } => {
                let primary = record.primary == self.identity.map(|identity| identity.node);
                // While it is attached elsewhere a client writes, in the same epoch.
                let own = primary && record.attached.is_none();
                let (resource, epoch) = (record.resource, record.epoch);
                self.devices.submit(DeviceJob::Record { resource, epoch, own });
                self.on_replica(now, record.resource, answer, |replica, shared, answer| {
                    replica.record(shared, record);
                    answer(Reply::Ok);
                });
            }
            Request::Demote { resource } => self.on_replica(now, resource, answer, |replica, _, answer| {
                replica.demote(now);
                answer(Reply::Ok);
            }),
            Request::Grow { resource, volumes } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    for (volume, bytes) in volumes {
                        replica.grow(now, volume, bytes);
                    }
                    answer(Reply::Ok);
                });
            }
            Request::Promise { resource, epoch } => {
                self.on_replica(now, resource, answer, |replica, _, answer| replica.vow(epoch, answer));
            }
            Request::Snapshots { resource, wanted, mark, to } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.snapshots(now, &wanted, mark, to);
                    answer(Reply::Ok);
                });
            }
            Request::Pause { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| replica.pause(now, answer));
            }
            Request::Resume { resource } => self.on_replica(now, resource, answer, |replica, _, answer| {
                replica.resume(now);
                answer(Reply::Ok);
            }),
            Request::Digest { resource } => {
                self.on_replica(now, resource, answer, |replica, shared, answer| {
                    replica.start_digest(shared, answer)
                });
            }
            Request::Scrub { resource, repair, rate, after } => {
                let order = ScrubOrder { repair, rate };
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.scrub(now, order, after, answer)
                });
            }
            Request::StopScrub { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    replica.stop_scrub(now);
                    answer(Reply::Ok);
                })
            }
            Request::ScrubStatus { resource } => {
                self.on_replica(now, resource, answer, |replica, _, answer| {
                    answer(Reply::Scrub { status: replica.scrub_status(now) });
                });
            }
            Request::Detach { resource } => {
                self.on_replica(now, resource, answer, |replica, shared, answer| {
                    replica.fence(shared);
                    answer(Reply::Ok);
                })
            }
        }
    }

    fn on_replica(
        &mut self,
        now: Time,
        resource: ResourceId,
        answer: Answer,
        work: impl FnOnce(&mut OpenReplica, &mut Shared<'_>, Answer),
    ) {
        if self.replicas.contains_key(&resource) {
            self.with(now, resource, |replica, shared| work(replica, shared, answer));
        } else {
            answer(refusal(
                "unknown-resource",
                &format!("resource {resource} is not open here"),
                "open it first",
            ));
        }
    }

    fn hello(&mut self, identity: Identity) -> Reply {
        match self.identity {
            Some(known) if known == identity => Reply::Ok,
            Some(known) => refusal(
                "other-node",
                &format!("this engine serves node {} of cluster {:#x}", known.node, known.cluster),
                "restart the engine if this machine has another identity now",
            ),
            None => {
                let pool = self.pool.clone();
                match Transport::new(pool, identity.cluster, identity.node, self.options.listen) {
                    Ok(transport) => {
                        self.transport = Some(transport);
                        self.identity = Some(identity);
                        Reply::Ok
                    }
                    Err(error) => {
                        let cause =
                            std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
                        refusal(
                            "listen",
                            &format!("{error}: {cause}"),
                            "free the address, or configure another",
                        )
                    }
                }
            }
        }
    }

    fn set_peers(&mut self, peers: &[Peer]) -> Reply {
        let mut addrs = BTreeMap::new();
        for peer in peers {
            let Ok(addr) = peer.addr.parse::<SocketAddr>() else {
                let message = format!("{} is not an address of the form IP:port", peer.addr);
                return refusal("address", &message, "state the engine's address as IP:port");
            };
            addrs.insert(peer.node, addr);
        }
        if let Some(transport) = &mut self.transport {
            transport.set_peers(&addrs);
        }
        Reply::Ok
    }

    fn set_targets(&mut self, entries: &[GuardEntry]) -> Reply {
        match entries.iter().map(GuardTarget::try_from).collect::<Result<Vec<_>, _>>() {
            Ok(targets) => {
                if let Err(error) = self.users.note(entries) {
                    let message = format!("cannot note who uses devices: {error}");
                    return refusal("run-dir", &message, "make the run directory writable");
                }
                // The agent stops what ran on devices of an engine before this one, and it must be able to stop.
                for entry in entries {
                    self.devices.submit(DeviceJob::GiveUp { resource: entry.resource });
                }
                self.guard.set_targets(targets);
                Reply::Ok
            }
            Err(error) => {
                refusal("guard", &error.to_string(), "state absolute paths and addresses with prefix")
            }
        }
    }

    fn lease(&mut self, now: Time, until: Time) -> Time {
        // This thread may have stood still, and the guard with it: another node may have been promoted meanwhile.
        if now >= self.lease_until {
            self.with_all(now, |replica, shared| replica.lease_ended(shared));
        }
        let silenced = self.guard.set_lease(until);
        self.lease_until = until;
        if self.fenced && until > now.plus_ms(self.options.guard_margin_ms) {
            tracing::info!("the lease is valid");
            self.fenced = false;
            self.with_all(now, |replica, shared| replica.unfence(shared));
        }
        silenced
    }

    fn open(&mut self, resource: ResourceId, name: String, dir: std::path::PathBuf, answer: Answer) {
        if let Some(replica) = self.replicas.get(&resource) {
            return answer(Reply::Opened { incarnation: replica.status().incarnation });
        }
        let waiting = self.opening.entry(resource).or_default();
        waiting.push(answer);
        if waiting.len() == 1 {
            // The answers wait here: the thread's own would only reach the first who asked.
            self.lifecycle.submit(Job::Open { resource, name, dir, answer: Box::new(|_| {}) });
        }
    }

    fn opened(&mut self, now: Time, opened: Opened) {
        let answers = self.opening.remove(&opened.resource).unwrap_or_default();
        let reply = match (opened.result, self.identity) {
            (Ok((store, _)), _) if store.config().resource != opened.resource => refusal(
                "other-resource",
                &format!("the directory holds resource {}", store.config().resource),
                "state the directory of this resource",
            ),
            (Ok((store, files)), Some(identity)) => {
                let incarnation = store.config().incarnation;
                let id = self.next_disk;
                self.next_disk += 1;
                self.disks.insert(id, opened.resource);
                let disk = Disk::new(id, files, self.pool.clone());
                let disk = if self.options.preallocate { disk.preallocated() } else { disk };
                let caches = self.choice.kind.is_some_and(FrontendKind::caches);
                let replica =
                    OpenReplica::new(identity.node, opened.name, (store, disk), caches, &self.options);
                self.replicas.insert(opened.resource, replica);
                for peer in self.up.clone() {
                    self.with(now, opened.resource, |replica, _| replica.peer(now, peer, true));
                }
                let first = (opened.resource, Channel { peer: NodeId(0), initiated_by_us: false });
                while let Some((key, _)) = self.early.range(first..).next()
                    && key.0 == opened.resource
                {
                    let key = *key;
                    if let Some(envelope) = self.early.remove(&key) {
                        self.with(now, opened.resource, |replica, _| replica.message(now, key.1, envelope));
                    }
                }
                self.touched.insert(opened.resource);
                Reply::Opened { incarnation }
            }
            (Ok(_), None) => refusal("no-hello", "the engine does not know its node yet", "say hello first"),
            (Err(error), _) => error.to_reply(),
        };
        if let Reply::Error(error) = &reply {
            tracing::error!(resource = %opened.resource, %error, "cannot open the replica");
        }
        for answer in answers {
            answer(reply.clone());
        }
        if self.dropping.contains_key(&opened.resource) {
            self.close(now, opened.resource);
        }
    }

    /// A replica that is still being opened is closed when it is: whoever asked for the one need not be who asks for the
    /// other, and may remove the files next.
    fn drop_replica(&mut self, now: Time, resource: ResourceId, answer: Answer) {
        self.dropping.entry(resource).or_default().push(answer);
        if !self.opening.contains_key(&resource) {
            self.close(now, resource);
        }
    }

    /// Closes what is to be dropped; nothing open is closed at once.
    fn close(&mut self, now: Time, resource: ResourceId) {
        if self.replicas.contains_key(&resource) {
            self.with(now, resource, |replica, shared| replica.close(shared));
        } else {
            self.answer_dropped(resource);
        }
    }

    fn finish_drop(&mut self, resource: ResourceId) {
        let closed = self.replicas.get(&resource).is_some_and(|replica| replica.closing() == Closing::Done);
        if !closed || !self.dropping.contains_key(&resource) {
            return;
        }
        self.replicas.remove(&resource);
        self.disks.retain(|_, owner| *owner != resource);
        if let Some(at) = self.deadlines.remove(&resource) {
            self.timers.remove(&(at, resource));
        }
        self.answer_dropped(resource);
    }

    fn answer_dropped(&mut self, resource: ResourceId) {
        for answer in self.dropping.remove(&resource).unwrap_or_default() {
            answer(Reply::Ok);
        }
    }

    /// See `metrics_page.rs`.
    fn metrics(&self, now: Time, after: Option<ResourceId>) -> MetricsPage {
        let peers = self.transport.as_ref().filter(|_| after.is_none()).map(Transport::peers);
        let first = self.clients.values().filter(|_| after.is_none()).take(metrics_page::CLIENTS_MAX);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        MetricsPage {
            now_us: now,
            fenced: self.fenced,
            turns: self.turns,
            links: metrics_page::links(peers.unwrap_or_default()),
            clients: first.map(OpenClient::status).collect(),
            ..metrics_page::replicas(self.replicas.range((from, Bound::Unbounded)))
        }
    }

    fn status(&self, now: Time) -> EngineStatus {
        EngineStatus {
            node: self.identity.map(|identity| identity.node),
            now_us: now,
            lease_until_us: self.lease_until,
            fenced: self.fenced,
            silenced_us: self.guard.silenced(),
            frontend: Some(FrontendStatus {
                kind: self.choice.kind.map(|kind| kind.name().to_owned()),
                reason: self.choice.reason.clone(),
            }),
            replicas: self.replicas.values().map(OpenReplica::status).collect(),
            clients: self.clients.values().map(OpenClient::status).collect(),
        }
    }
}

fn refusal(code: &str, message: &str, remedy: &str) -> Reply {
    Reply::Error(EngineError { code: code.into(), message: message.into(), remedy: remedy.into() })
}
