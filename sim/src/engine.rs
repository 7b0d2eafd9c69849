//! One engine process: the hosts of its replicas, its devices and its guard. Mirrors
//! `engine/src/shard.rs` without a kernel; what guard and devices do when is decided by the same
//! code as there. It collects its requests to the world as [`EngineOut`].

mod attachments;
mod devices;
mod guard;

pub use attachments::{HostedClient, is_of_client};

use crate::agent::{EngineEvent, ReplicaReport};
use crate::disk::{Disk, Finished, Operation, Place, Ticket};
use crate::oracle::Oracle;
use crate::world::service_resource;
use bytes::Bytes;
use devices::{HeldError, unseen};
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Answered, Envelope, Message, PayloadPlace, Pieces};
use mainstay_control::reconciler::ReplicaSeen;
use mainstay_control::reconciler::job::Step;
use mainstay_control::scrubs::ScrubTask;
use mainstay_control::standstill::{JournalWait, LOOK_MS_MAX};
use mainstay_host::{AnswerError, CoreMessage, DeviceAnswer, Digest, Happened, Host, Platform};
use mainstay_replica::{Op, PeerStatus, ReplicaConfig, RequestError, RequestId, ScrubOrder, ScrubReport};
use mainstay_silence::{Devices, Guard, HeldErrors, Wanted};
use mainstay_store::{Area, Output, Store};
use mainstay_types::{
    BLOCK_BYTES, Epoch, Incarnation, Index, Instance, NodeId, PeerState, Proposal, ResourceId,
    ResourceRecord, Role, Time, VolumeId,
};

/// Clients ask for no more at once.
const REQUEST_BYTES_MAX: u64 = 8 * BLOCK_BYTES;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Journal bytes that only epoch starts may use (R18); small like everything here.
pub const RESERVE_BYTES: u64 = 4 * BLOCK_BYTES;

/// Time after which a primary must have asked for the removal of a member that is not connected, in
/// milliseconds.
const PATIENCE_MS: u64 = 5_000;

/// Request or report of an engine to the world.
#[derive(Debug)]
pub enum EngineOut {
    /// An operation was given to the disk.
    Disk {
        resource: ResourceId,
        ticket: Ticket,
    },
    Send {
        to: NodeId,
        answer: bool,
        envelope: Envelope,
    },
    /// A request of a device has ended.
    Complete {
        request: u64,
        answer: DeviceAnswer,
        /// Its place in the log, if it is a write that is not committed yet (mode B).
        soft: Option<Index>,
    },
    ToAgent(EngineEvent),
    /// The device is to be attached or detached; the world says when that is done.
    Attach {
        resource: ResourceId,
        generation: u64,
    },
    Detach {
        resource: ResourceId,
        generation: u64,
    },
    /// The control plane's record of a resource, which tells whether a left device may still wait.
    /// `own`: this node is primary, and the resource is attached nowhere.
    Record {
        resource: ResourceId,
        epoch: Epoch,
        own: bool,
    },
    /// The device of this resource that an engine before this one has left is given up.
    GiveUp(ResourceId),
    /// The guard knows the services of this request now.
    Guarded(u64),
    /// R19: the services on this resource are killed now, because its device is about to fail.
    KillUsers(ResourceId),
    /// R19: these services are silenced now.
    Silence(Vec<String>),
    RoleChanged {
        resource: ResourceId,
        role: Role,
    },
    /// The agent has been told everything that it missed.
    Connected {
        lease_until: Time,
        silenced: Time,
    },
    /// The replica says what it holds, in short.
    Digested {
        resource: ResourceId,
        incarnation: Incarnation,
        digest: Digest,
    },
    /// The primary holds new writes and everything before them is committed.
    Paused {
        resource: ResourceId,
    },
    /// The engine has finished the step that the agent asked for under this number.
    StepDone {
        resource: ResourceId,
        number: u64,
    },
}

/// Input of an engine from the world.
#[expect(clippy::large_enum_variant, reason = "no list of them is kept")]
pub enum EngineIn {
    Disk {
        resource: ResourceId,
        finished: Finished,
    },
    Message {
        from: NodeId,
        initiated_by_us: bool,
        envelope: Envelope,
    },
    Peer {
        node: NodeId,
        up: bool,
    },
    AcceptedDown {
        from: NodeId,
    },
    Request {
        resource: ResourceId,
        request: u64,
        op: Op,
    },
    Lease(Time),
    Guard {
        number: u64,
        services: Vec<String>,
    },
    /// The agent wants a client: this instance of it, if there is none.
    AttachClient {
        resource: ResourceId,
        number: u64,
        record: Box<ResourceRecord>,
        instance: Instance,
    },
    /// The agent asks for a step of a job.
    Step {
        resource: ResourceId,
        number: u64,
        step: Step,
    },
    Opened {
        resource: ResourceId,
        store: Box<Store>,
        config: Box<ReplicaConfig>,
    },
    Attached {
        resource: ResourceId,
        generation: u64,
    },
    Detached {
        resource: ResourceId,
        generation: u64,
    },
    /// An operator compares replicas: the primary is to hold new writes or to let them go, and a
    /// replica is to report its digest.
    Pause(ResourceId),
    Resume(ResourceId),
    Digest(ResourceId),
    /// An operator scrubs, or ends that.
    Scrub(ResourceId, Option<ScrubOrder>),
    /// Promise an epoch that has no primary yet.
    Promise(ResourceId, Epoch),
    /// The agent's connection has come up: tell it everything.
    Agent,
    Tick,
}

/// An open replica.
pub struct Hosted {
    pub host: Host,
    instance: Instance,
    pub role: Role,
    pub device: Devices,
    /// Rises with every device, so that events of an old device are known as such.
    generation: u64,
    demoted: bool,
    proposal: Option<Proposal>,
    reported: Option<ReplicaReport>,
    /// Bytes of each volume, as its device says.
    volumes: Vec<u64>,
    /// Requests of the device that are not answered.
    pending: BTreeSet<u64>,
    held_errors: HeldErrors<HeldError>,
    /// Epoch in which the engine before served the same devices, if it has left them to this one.
    pub continues: Option<Epoch>,
    /// Most bytes of a batch in the journal.
    batch_bytes_max: u64,
    /// The highest limit of the lag until now.
    lag_bytes_max: u64,
    /// Numbers of the agent's steps that wait for this replica to close. It closes when its device
    /// is gone and its disk rests.
    closing: Vec<u64>,
    /// Where the newest batches were placed in the journal.
    placed: VecDeque<PlacedBatch>,
}

/// A batch that was written to the journal, or is being written.
#[derive(Clone, Copy)]
struct PlacedBatch {
    offset: u64,
    len: u64,
    first: Index,
    last: Index,
    /// Last entry that the record of this batch calls durable.
    durable_before: Index,
}

/// Placements that are remembered.
const PLACED_MAX: usize = 32;

impl Hosted {
    /// Whether there is to be a device.
    fn wanted(&self) -> Wanted {
        match self.role {
            _ if self.closes() => Wanted::Never,
            Role::Primary if self.host.replica().attached().is_none() => Wanted::Yes,
            _ => Wanted::No,
        }
    }

    fn is_beyond(&self, op: &Op) -> bool {
        let (Op::Write { range, .. }
        | Op::Read { range }
        | Op::Discard { range }
        | Op::WriteZeroes { range }) = op
        else {
            return false;
        };
        self.volumes.get(usize::from(range.volume.0)).is_none_or(|bytes| range.end() > *bytes)
    }

    /// Whether it is being closed.
    #[must_use]
    pub fn closes(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Places of the batches that a later durable batch calls durable, and places of the others.
    /// None of them was overwritten since.
    #[must_use]
    pub fn in_journal(&self) -> (Vec<Place>, Vec<Place>) {
        let mut found: Vec<Place> = Vec::new();
        let durable = self.host.store().log_state().end.index;
        let (mut called_durable, mut next) = (Index(0), Index(u64::MAX));
        let (mut needed, mut others) = (Vec::new(), Vec::new());
        for placed in self.placed.iter().rev() {
            let PlacedBatch { offset, len, first, last, durable_before } = *placed;
            let overwritten =
                found.iter().any(|(newer, size)| offset < newer + size && *newer < offset + len);
            if overwritten {
                break;
            }
            found.push((offset, len));
            // A record that was cut off proves nothing, and the replica does not need it.
            let counts = last < next;
            // A batch is called durable by a write that began later, and that write must itself be
            // durable.
            let of = if counts && last <= called_durable { &mut needed } else { &mut others };
            of.push((offset, len));
            if counts {
                next = first;
                if last <= durable {
                    called_durable = called_durable.max(durable_before);
                }
            }
        }
        (needed, others)
    }
}

/// Whether an answer says that the device fails, and not that the request is wrong.
pub fn is_of_device(error: &AnswerError) -> bool {
    !matches!(error, AnswerError::Request(RequestError::Range))
}

/// See the top of this file.
pub struct Engine {
    node: NodeId,
    pub hosts: BTreeMap<ResourceId, Hosted>,
    pub clients: BTreeMap<ResourceId, HostedClient>,
    last_generation: u64,
    early: BTreeMap<(ResourceId, NodeId), Envelope>,
    up: BTreeSet<NodeId>,
    /// Time since which each peer has not been connected, for the peers without a connection.
    down_since: BTreeMap<NodeId, Time>,
    pub lease_until: Time,
    pub fenced: bool,
    /// Its targets are services.
    guard: Guard<String>,
    /// The timer of the guard's thread.
    guard_wakes_at: Option<Time>,
    /// When this node was silenced the last time, as guard or silencer has noted; 0 for never.
    silenced: Time,
    /// From this time on no process of a service begins, as guard or silencer has noted; 0 if
    /// processes may begin.
    barred: Time,
    /// The agent has greeted this process. The engine knows which services to silence, or will know
    /// in a moment.
    pub greeted: bool,
    pub outs: Vec<EngineOut>,
    touched: BTreeSet<ResourceId>,
}

/// The world around one host while it works.
struct Shop<'a> {
    now: Time,
    node: NodeId,
    may_read: bool,
    resource: ResourceId,
    incarnation: Incarnation,
    disk: &'a mut Disk,
    oracle: &'a mut Oracle,
    outs: &'a mut Vec<EngineOut>,
    placed: &'a mut VecDeque<PlacedBatch>,
    happened: VecDeque<Happened>,
    answered: Vec<(RequestId, DeviceAnswer)>,
    /// A client was told that something is done.
    client_told: bool,
}

impl Platform for Shop<'_> {
    fn now(&self) -> Time {
        self.now
    }

    fn may_answer(&self) -> bool {
        self.may_read
    }

    fn store_operation(&mut self, output: Output) {
        if let Output::JournalWrite { offset, parts, .. } = &output {
            let mut at = *offset;
            for (local, batch) in parts {
                if self.placed.len() == PLACED_MAX {
                    self.placed.pop_front();
                }
                self.placed.push_back(PlacedBatch {
                    offset: at,
                    len: match local.payload {
                        PayloadPlace::Volume => HEADER_BLOCK_BYTES as u64,
                        PayloadPlace::Journal | PayloadPlace::JournalAfterVolume => batch.journal_len(),
                    },
                    first: batch.first,
                    last: batch.last(),
                    durable_before: local.durable_before,
                });
                at += batch.journal_len();
            }
        }
        let ticket = self.disk.submit(Operation::Store(output));
        self.outs.push(EngineOut::Disk { resource: self.resource, ticket });
    }

    fn read(&mut self, token: u64, area: Area, offset: u64, len: u64, _passes: bool) {
        let ticket = self.disk.submit(Operation::Read { token, area, offset, len });
        self.outs.push(EngineOut::Disk { resource: self.resource, ticket });
    }

    fn is_hole(&mut self, volume: VolumeId, offset: u64, len: u64) -> bool {
        self.disk.is_hole(Area::Volume(volume), offset, len)
    }

    fn join(&mut self, pieces: Pieces) -> Bytes {
        let mut all = Vec::with_capacity(pieces.iter().map(Bytes::len).sum());
        for piece in pieces {
            all.extend_from_slice(&piece);
        }
        all.into()
    }

    fn send(&mut self, to: NodeId, answer: bool, envelope: Envelope) {
        self.oracle.answered(self.node, self.incarnation, &envelope);
        if let Message::ClientAnswer(said) = &envelope.message
            && said.answer == Answered::Done
        {
            self.client_told = true;
            self.oracle.client_told(self.resource, said.session, said.number, envelope.epoch);
        }
        self.outs.push(EngineOut::Send { to, answer, envelope });
    }

    fn complete(&mut self, id: RequestId, answer: DeviceAnswer) {
        self.answered.push((id, answer));
    }

    fn happened(&mut self, happened: Happened) {
        self.happened.push_back(happened);
    }

    fn observe(&mut self, seen: CoreMessage<'_>) {
        self.oracle.seen(self.resource, self.node, self.incarnation, seen);
    }
}

impl Engine {
    /// `silenced`: time at which this node was last silenced, as the engine before or the silencer
    /// has noted; 0 for never. `barred`: time from which on no process begins, as they have noted;
    /// 0 if processes may begin. They have also noted the last lease, and services to silence.
    #[must_use]
    pub fn new(node: NodeId, lease_until: Time, silenced: Time, barred: Time, services: Vec<String>) -> Self {
        let mut engine = Self {
            node,
            hosts: BTreeMap::new(),
            clients: BTreeMap::new(),
            last_generation: 0,
            early: BTreeMap::new(),
            up: BTreeSet::new(),
            down_since: BTreeMap::new(),
            lease_until: Time(0),
            fenced: true,
            guard: Guard::taking_over(lease_until, silenced, services),
            guard_wakes_at: None,
            silenced,
            barred,
            greeted: false,
            outs: Vec::new(),
            touched: BTreeSet::new(),
        };
        engine.guard_effects();
        engine
    }

    /// When this node was silenced the last time, 0 for never.
    #[must_use]
    pub fn silenced(&self) -> Time {
        self.silenced
    }

    /// Time from which on no process of a service begins; 0 if processes may begin.
    #[must_use]
    pub fn barred(&self) -> Time {
        self.barred
    }

    /// When a [`EngineIn::Tick`] is due, on the node's clock.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let clients = self.clients.values().filter_map(|hosted| hosted.client.next_deadline());
        let hosts = self.hosts.values().filter_map(|hosted| hosted.host.next_deadline());
        hosts.chain(clients).chain(self.guard_wakes_at).min()
    }

    /// A member that commits of a serving primary here have waited for since [`PATIENCE_MS`],
    /// without a connection and without a proposal to remove it.
    #[must_use]
    pub fn waits(&self, now: Time, resource: ResourceId) -> Option<NodeId> {
        let hosted = self.hosts.get(&resource)?;
        let serving =
            hosted.role == Role::Primary && hosted.host.failed().is_none() && !hosted.host.demoted();
        let long = |since: Time| now.ms_since(since) >= PATIENCE_MS;
        if !serving || hosted.proposal.is_some() || !long(hosted.host.promoted_at()) {
            return None;
        }
        let replica = hosted.host.replica();
        let peers = replica.status().peers;
        // A member that is wanted as a copy may stay, even when more members are there (ADR 18).
        let recorded = 1 + peers.iter().filter(|peer| peer.in_iss).count();
        let kept = replica.copies().is_some_and(|(_, wanted)| wanted > 1 && recorded <= wanted);
        let gone = peers.into_iter().find(|peer| {
            peer.required
                && !(peer.in_iss && kept)
                && peer.state == PeerState::Disconnected
                && self.down_since.get(&peer.member.node).is_some_and(|since| long(*since))
        });
        gone.map(|peer| peer.member.node)
    }

    /// Ages of the journals of primaries, as the status of the engine tells them.
    #[must_use]
    pub fn journal_waits(&self, now: Time) -> Vec<JournalWait> {
        let primaries = self.hosts.iter().filter(|(_, hosted)| hosted.role == Role::Primary);
        let wait = |(resource, hosted): (&ResourceId, &Hosted)| {
            let status = hosted.host.replica().status_at(now);
            let answers = |peer: &&PeerStatus| {
                matches!(peer.state, PeerState::InSync | PeerState::Joining | PeerState::Following)
                    && peer.latency_us / 1000 < LOOK_MS_MAX
            };
            JournalWait {
                resource: *resource,
                ms: status.journal_latency_us / 1000,
                answering: status.peers.iter().filter(answers).map(|peer| peer.member.node).collect(),
            }
        };
        primaries.map(wait).collect()
    }

    /// Requests of a primary here that wait for copies for too long. There are too few copies, and
    /// the time to wait for them ended [`PATIENCE_MS`] ago.
    pub fn waiting_for_copies(&self, now: Time, resource: ResourceId) -> impl Iterator<Item = u64> {
        let hosted = self.hosts.get(&resource).filter(|hosted| Self::waits_for_copies(now, hosted));
        hosted.into_iter().flat_map(|hosted| hosted.pending.iter().copied())
    }

    fn waits_for_copies(now: Time, hosted: &Hosted) -> bool {
        let short = hosted.host.replica().short_of_copies();
        let over = short.is_some_and(|short| now.ms_since(short.since) >= short.suspend_ms + PATIENCE_MS);
        over && hosted.host.failed().is_none() && !hosted.host.demoted()
    }

    /// Takes in what happened and lets the cores run until they are quiet.
    pub fn handle(
        &mut self,
        now: Time,
        input: EngineIn,
        disks: &mut BTreeMap<ResourceId, Disk>,
        oracle: &mut Oracle,
    ) {
        let greeted = matches!(input, EngineIn::Agent);
        match input {
            EngineIn::Disk { resource, finished } => {
                self.with(now, resource, disks, oracle, |host, shop| match finished {
                    Finished::Store { op, result } => host.store_done(op, result),
                    Finished::Read { token, result } => host.read_done(shop, token, result),
                });
            }
            EngineIn::Message { from, initiated_by_us, envelope } => {
                let resource = envelope.resource;
                if self.client_message(now, from, &envelope) {
                    // The message is not for a replica.
                } else if let Some(hosted) = self.hosts.get_mut(&resource) {
                    hosted.host.message(now, from, initiated_by_us, envelope);
                    self.touched.insert(resource);
                } else if !initiated_by_us && matches!(envelope.message, Message::Attach) {
                    self.early.insert((resource, from), envelope);
                }
            }
            EngineIn::Peer { node, up } => {
                oracle.reconnected(self.node, node);
                if up {
                    self.up.insert(node);
                    self.down_since.remove(&node);
                } else {
                    if self.up.remove(&node) {
                        self.down_since.insert(node, now);
                    }
                }
                for (resource, hosted) in &mut self.hosts {
                    hosted.host.peer(now, node, up);
                    self.touched.insert(*resource);
                }
                self.clients_peer(now, node, up);
            }
            EngineIn::AcceptedDown { from } => self.early.retain(|(_, node), _| *node != from),
            EngineIn::Request { resource, request, op }
                if self.client_request(now, resource, request, &op) => {}
            EngineIn::Request { resource, request, op } => match self.hosts.get_mut(&resource) {
                // A file system never asks for blocks beyond the end of its device.
                Some(hosted) if hosted.device.is_offered() && hosted.is_beyond(&op) => {
                    let answer = Err(AnswerError::Request(RequestError::Range));
                    self.outs.push(EngineOut::Complete { request, answer, soft: None });
                }
                Some(hosted) if hosted.device.is_offered() => {
                    hosted.pending.insert(request);
                    hosted.host.request(now, RequestId(request), op);
                    self.touched.insert(resource);
                }
                // A device that is being taken away answers with errors.
                _ => {
                    let answer = Err(AnswerError::NoLease);
                    self.outs.push(EngineOut::Complete { request, answer, soft: None });
                }
            },
            EngineIn::Lease(until) => self.lease(now, until),
            EngineIn::Guard { number, services } => {
                // The agent stops what ran on a device of an engine before this one, and must be
                // able to stop it.
                let left = services.iter().map(|service| EngineOut::GiveUp(service_resource(service)));
                self.outs.extend(left);
                // No engine is told to end here, so the guard takes every list.
                if self.guard.set_targets(services).is_ok() {
                    self.outs.push(EngineOut::Guarded(number));
                }
                self.guard_runs(now);
            }
            EngineIn::Step { resource, number, step } => self.step(now, resource, number, step),
            EngineIn::Opened { resource, store, config } => self.opened(now, resource, *store, *config),
            EngineIn::AttachClient { resource, number, record, instance } => {
                self.attach_client(now, resource, number, *record, instance);
            }
            EngineIn::Attached { resource, generation } => {
                if !self.client_attached(resource, generation) {
                    self.attached(resource, generation);
                }
            }
            EngineIn::Detached { resource, generation } => {
                if !self.client_detached(resource, generation) {
                    self.detached(resource, generation);
                }
            }
            EngineIn::Agent => {
                self.clients_untold();
                for hosted in self.hosts.values_mut() {
                    hosted.reported = None;
                }
                self.touched.extend(self.hosts.keys().copied());
            }
            EngineIn::Pause(resource) => {
                self.with(now, resource, disks, oracle, |host, _| host.pause(now));
            }
            EngineIn::Resume(resource) => {
                self.with(now, resource, disks, oracle, |host, _| host.resume(now));
            }
            EngineIn::Digest(resource) => {
                // While one digest is being made, the replica does not begin another one.
                self.with(now, resource, disks, oracle, |host, shop| host.start_digest(shop).is_ok());
            }
            EngineIn::Scrub(resource, order) => {
                self.with(now, resource, disks, oracle, |host, _| match order {
                    Some(order) => _ = host.scrub(now, order),
                    None => host.stop_scrub(now),
                });
            }
            EngineIn::Promise(resource, epoch) => {
                self.with(now, resource, disks, oracle, |host, _| host.promise_ahead(epoch));
            }
            EngineIn::Tick => self.tick(now),
        }
        self.pump(now, disks, oracle);
        // Devices that are about to fail wake the guard.
        self.guard_effects();
        self.close_clients();
        if greeted {
            self.greeted = true;
            let lease_until = if self.fenced { Time(0) } else { self.lease_until };
            self.outs.push(EngineOut::Connected { lease_until, silenced: self.silenced });
        }
    }

    fn with<T>(
        &mut self,
        now: Time,
        resource: ResourceId,
        disks: &mut BTreeMap<ResourceId, Disk>,
        oracle: &mut Oracle,
        work: impl FnOnce(&mut Host, &mut Shop<'_>) -> T,
    ) -> Option<T> {
        let may_read = now < self.lease_until && !self.fenced;
        let hosted = self.hosts.get_mut(&resource)?;
        let mut shop = Shop {
            now,
            node: self.node,
            may_read,
            resource,
            incarnation: hosted.host.store().config().incarnation,
            disk: disks.get_mut(&resource)?,
            oracle: &mut *oracle,
            outs: &mut self.outs,
            placed: &mut hosted.placed,
            happened: VecDeque::new(),
            answered: Vec::new(),
            client_told: false,
        };
        let result = work(&mut hosted.host, &mut shop);
        let Shop { happened, answered, client_told, .. } = shop;
        let mut acknowledged = client_told;
        let mut free = Vec::new();
        for (id, answer) in answered {
            if !hosted.pending.remove(&id.0) {
                continue;
            }
            match answer {
                Err(error) if is_of_device(&error) => {
                    let held = HeldError { request: id.0, error };
                    let unseen = || unseen(&mut self.guard, self.fenced, resource);
                    free.push(hosted.held_errors.answer(held, unseen));
                }
                answer => {
                    acknowledged |= answer.as_ref().is_ok_and(|pieces| pieces.is_empty());
                    let soft = hosted.host.replica().uncommitted_index(id);
                    self.outs.push(EngineOut::Complete { request: id.0, answer, soft });
                }
            }
        }
        if acknowledged {
            // Clients may have been told of everything that is committed.
            let replica = hosted.host.replica();
            let when = (replica.epoch(), !may_read);
            oracle.acknowledged(resource, self.node, when, replica.committed());
            if replica.role() == Role::Primary {
                let incarnation = hosted.host.store().config().incarnation;
                oracle.answered_up_to(resource, (self.node, incarnation), when, replica.answered());
            }
            if let Some(lag) = replica.lag_limits() {
                // A decision that was made before the batch was sealed does not know of that batch.
                // A batch may also have been sealed under a higher limit that was lowered since.
                hosted.lag_bytes_max = hosted.lag_bytes_max.max(lag.bytes);
                oracle.followed(resource, &hosted.host, hosted.lag_bytes_max + hosted.batch_bytes_max);
            }
        }
        let incarnation = hosted.host.store().config().incarnation;
        for happened in happened {
            if matches!(happened, Happened::Failed { .. }) {
                oracle.gave_up(resource, self.node, incarnation);
            }
            self.happened(resource, happened);
        }
        free.into_iter().for_each(|free| self.fail(resource, free));
        self.touched.insert(resource);
        Some(result)
    }

    fn pump(&mut self, now: Time, disks: &mut BTreeMap<ResourceId, Disk>, oracle: &mut Oracle) {
        while let Some(resource) = self.touched.pop_first() {
            self.with(now, resource, disks, oracle, |host, shop| {
                host.pump(shop);
                if let Some(report) = host.replica().scrub_report().filter(|report| report.different > 0) {
                    shop.oracle.differ(shop.resource, shop.node, report);
                }
                let left = host.store().room_with_reserve();
                if left < RESERVE_BYTES && host.failed().is_none() {
                    shop.oracle.reserve_used(shop.resource, shop.node, shop.incarnation, left);
                }
            });
            self.touched.remove(&resource);
            self.report(resource);
            // A write that is under way must not end in the engine that opens the files next. Seed
            // 2832629.
            let rests = disks.get(&resource).is_none_or(|disk| disk.in_flight() == 0);
            let closed = |hosted: &Hosted| rests && !hosted.closing.is_empty() && hosted.device.is_none();
            if self.hosts.get(&resource).is_some_and(closed)
                && let Some(hosted) = self.hosts.remove(&resource)
            {
                let done = |number| EngineOut::StepDone { resource, number };
                self.outs.extend(hosted.closing.into_iter().map(done));
            }
        }
    }

    fn report(&mut self, resource: ResourceId) {
        // The engine does not report a replica that is being closed. An agent that starts meanwhile
        // would take it for open, and never hear of its end.
        let Some(hosted) = self.hosts.get_mut(&resource).filter(|hosted| !hosted.closes()) else {
            return;
        };
        let replica = hosted.host.replica();
        let seen = ReplicaSeen {
            role: match replica.role() {
                Role::Secondary => Role::Secondary,
                Role::Promoting => Role::Promoting,
                Role::Primary => Role::Primary,
                Role::Fenced if hosted.demoted && hosted.device.is_none() => Role::Secondary,
                Role::Fenced => Role::Fenced,
            },
            epoch: replica.epoch(),
            version: replica.record_version(),
            incarnation: hosted.host.store().config().incarnation,
            instance: hosted.instance,
            reopened: replica.reopened(),
            devices_ready: hosted.device.is_offered() && replica.role() == Role::Primary,
            continues: hosted.continues,
            volumes: hosted.volumes.clone(),
            snapshots: hosted.host.store().snapshots().chain(hosted.host.store().kept()).collect(),
            scrub: replica.scrub_report().map(ScrubReport::summary),
            feeds_all: replica.feeds_all(),
            copies: replica.copies_state(),
            store_failed: hosted.host.failed().is_some(),
            full: hosted.host.failed_full(),
            older: replica.is_older(),
        };
        let report = ReplicaReport { resource, seen, proposal: hosted.proposal };
        if hosted.reported.as_ref() != Some(&report) {
            hosted.reported = Some(report.clone());
            self.outs.push(EngineOut::ToAgent(EngineEvent::Replica(report)));
        }
    }

    fn happened(&mut self, resource: ResourceId, happened: Happened) {
        let Some(hosted) = self.hosts.get_mut(&resource) else { return };
        match happened {
            Happened::RoleChanged(role) => {
                hosted.role = role;
                hosted.demoted &= role == Role::Fenced;
                self.outs.push(EngineOut::RoleChanged { resource, role });
                if role == Role::Primary {
                    self.offer(resource);
                } else if role != Role::Promoting {
                    self.withdraw(resource);
                }
            }
            Happened::Proposed(proposal) => {
                hosted.proposal = Some(proposal);
                self.outs.push(EngineOut::ToAgent(EngineEvent::Proposal { resource, proposal }));
            }
            Happened::SnapshotsChanged => {}
            Happened::Resized { volume, bytes } => {
                if let Some(size) = hosted.volumes.get_mut(usize::from(volume.0)) {
                    *size = bytes;
                }
            }
            Happened::Demoted => {
                hosted.demoted = true;
                self.withdraw(resource);
            }
            Happened::Failed { reason } => {
                self.outs.push(EngineOut::ToAgent(EngineEvent::Failed { resource, reason }));
            }
            Happened::Paused { .. } => self.outs.push(EngineOut::Paused { resource }),
            Happened::Digested(Ok(digest)) => {
                let incarnation = hosted.host.store().config().incarnation;
                self.outs.push(EngineOut::Digested { resource, incarnation, digest });
            }
            // A report for people. Its consequences show in the replica.
            Happened::NoSpace { .. }
            | Happened::Damaged(_)
            | Happened::Unreadable(_)
            | Happened::DamageCopied { .. }
            | Happened::Digested(Err(_)) => {}
        }
    }

    fn tick(&mut self, now: Time) {
        for (resource, hosted) in &mut self.hosts {
            if hosted.host.next_deadline().is_some_and(|deadline| deadline <= now) {
                hosted.host.tick(now);
                self.touched.insert(*resource);
            }
        }
        self.clients_tick(now);
        self.guard_runs(now);
    }

    fn step(&mut self, now: Time, resource: ResourceId, number: u64, step: Step) {
        if step == Step::Detach {
            return self.detach_client(resource, number);
        }
        if let Step::Tell(record) = &step {
            // While it is attached elsewhere a client writes, in the same epoch.
            let own = record.primary == Some(self.node) && record.attached.is_none();
            self.outs.push(EngineOut::Record { resource, epoch: record.epoch, own });
        }
        let hosted = self.hosts.get_mut(&resource);
        match (step, hosted) {
            (Step::Tell(record), Some(hosted)) => {
                if hosted.proposal.is_some_and(|proposal| proposal.version < record.version) {
                    hosted.proposal = None;
                }
                hosted.host.record(now, record);
                if hosted.host.replica().attached().is_some() {
                    self.withdraw(resource);
                } else if hosted.role == Role::Primary {
                    self.offer(resource);
                }
            }
            (Step::Demote, Some(hosted)) => hosted.host.demote(now),
            (Step::Grow(volumes), Some(hosted)) => {
                for (volume, bytes) in volumes {
                    hosted.host.grow(now, volume, bytes);
                }
            }
            (Step::Snapshots(wanted), Some(hosted)) => {
                hosted.host.snapshots(now, &wanted.snapshots, wanted.mark, wanted.to)
            }
            (Step::Scrub(ScrubTask { repair, rate, after }), Some(hosted)) => {
                let last = hosted.host.replica().scrub_report().map_or(0, |report| report.ordinal);
                if last <= after {
                    hosted.host.scrub(now, ScrubOrder { repair, rate });
                }
            }
            (Step::Close, Some(hosted)) => {
                hosted.closing.push(number);
                hosted.host.close(now);
                self.withdraw(resource);
                self.touched.insert(resource);
                return;
            }
            // The world formats and recovers, because that takes time and needs the disk; files are
            // the agent's.
            _ => {}
        }
        self.touched.insert(resource);
        self.outs.push(EngineOut::StepDone { resource, number });
    }

    fn opened(&mut self, now: Time, resource: ResourceId, store: Store, config: ReplicaConfig) {
        if self.hosts.contains_key(&resource) {
            return;
        }
        let volumes = store.config().volumes.clone();
        let batch_bytes_max = config.request_bytes_max + REQUEST_BYTES_MAX + BLOCK_BYTES;
        let instance = config.instance;
        let mut host = Host::new(config, store);
        // Clients know that they have to flush, and flush when they want to.
        host.cached(now, true);
        for node in &self.up {
            host.peer(now, *node, true);
        }
        let early: Vec<_> = self.early.keys().filter(|(of, _)| *of == resource).copied().collect();
        for key in early {
            if let Some(envelope) = self.early.remove(&key) {
                host.message(now, key.1, false, envelope);
            }
        }
        self.hosts.insert(
            resource,
            Hosted {
                host,
                instance,
                role: Role::Secondary,
                device: Devices::None,
                generation: 0,
                demoted: false,
                proposal: None,
                reported: None,
                volumes,
                pending: BTreeSet::new(),
                held_errors: HeldErrors::default(),
                continues: None,
                batch_bytes_max,
                lag_bytes_max: 0,
                closing: Vec::new(),
                placed: VecDeque::new(),
            },
        );
        self.touched.insert(resource);
    }
}
