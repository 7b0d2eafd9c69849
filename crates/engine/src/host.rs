//! One open replica: its replication core, its store, its files and, while it is primary, its devices.
//!
//! Nothing is decided here. What the cores ask for is carried out, and what has happened is told to them: an
//! effect of the replica core becomes a call of the store or a message, an output of the store becomes an
//! operation on a file, a completion becomes an event. [`Host::pump`] runs until neither core has more to say.

mod loads;
mod presence;
mod reads;
mod report;

pub use presence::Closing;

use crate::buffer::BufferPool;
use crate::devices::DeviceAdmin;
use crate::disk::{Disk, DiskTag};
use crate::frontend::{FrontendId, FrontendOp, FrontendRequest};
use crate::ring::{Completion, Ring};
use crate::transport::{Channel, Transport};
use loads::LogLoad;
use mainstay_api::engine::{EngineError, EngineEvent, ProposalEvent, ProposedChange, Reply};
use mainstay_codec::{Envelope, Message};
use mainstay_replica::{Effect, Event, Op, Proposal, Replica, ReplicaConfig, RequestError, RequestId, Role};
use mainstay_store::{Output, Store};
use mainstay_types::{NodeId, REQUEST_BYTES_MAX, Range, ResourceId, ResourceRecord, Time};
use presence::Presence;
use reads::{Purpose, ReadJob};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// Most requests of a device that are admitted and not completed. The FUSE frontend lets the kernel have
/// [`crate::frontend::BACKGROUND_MAX`] outstanding, and those who wait for their own request beside them (R18).
const REQUESTS_MAX: usize = 4 * crate::frontend::BACKGROUND_MAX as usize;

/// Longest pause of writes that the agent can ask for, in milliseconds; a scrub of some gigabytes fits (R20).
const PAUSE_MS_MAX: u64 = 15_000;

/// Sends the reply of a request of the agent.
pub type Answer = Box<dyn FnOnce(Reply) + Send>;

/// What a host needs of its shard while it works.
pub struct Shared<'a> {
    pub ring: &'a mut Ring,
    pub transport: &'a mut Transport,
    pub pool: &'a BufferPool,
    pub devices: &'a DeviceAdmin,
    pub run_dir: &'a Path,
    pub node: NodeId,
    pub now: Time,
    /// Until when reads may be answered (R10).
    pub lease_until: Time,
    /// The guard has acted and the lease was not renewed since (R19).
    pub fenced: bool,
    pub events: &'a mut Vec<EngineEvent>,
    pub next_frontend: &'a mut u32,
    pub frontends: &'a mut BTreeMap<FrontendId, ResourceId>,
}

/// A request of a device that is on its way through the cores.
struct Pending {
    frontend: FrontendId,
    tag: u64,
}

/// See the top of this file.
pub struct Host {
    resource: ResourceId,
    name: String,
    store: Store,
    replica: Replica,
    disk: Disk,
    presence: Presence,
    pending: HashMap<RequestId, Pending>,
    next_request: u64,
    reads: BTreeMap<u64, ReadJob>,
    log_loads: BTreeMap<u64, LogLoad>,
    next_token: u64,
    /// What the replication core was told last; `None` once it has appended since. It counts down by itself, but
    /// the room of a ring that continues at its start need not shrink with an append, and then is told again.
    told_room: Option<u64>,
    role: Role,
    promoted_at: Time,
    /// Writes are held until then at the latest (R20).
    paused_until: Option<Time>,
    /// Has stopped serving at the agent's wish, and waits for the record to say who is next.
    demoted: bool,
    failed: Option<String>,
    proposal: Option<ProposalEvent>,
    pause_answers: Vec<Answer>,
    digest: Option<reads::Digest>,
    dirty: bool,
    reported_at: Time,
}

impl Host {
    /// A replica as it was recovered. Peers that are already connected must be told with
    /// [`peer`](Self::peer).
    #[must_use]
    pub fn new(node: NodeId, name: String, store: Store, disk: Disk) -> Self {
        let config = store.config();
        let resource = config.resource;
        // Whatever the kernel may have outstanding is admitted: it waits for room, it does not fail.
        let replica_config = ReplicaConfig {
            requests_max: REQUESTS_MAX,
            request_bytes_max: REQUESTS_MAX as u64 * REQUEST_BYTES_MAX,
            ..ReplicaConfig::new(resource, node, config.incarnation, config.volumes.clone())
        };
        let replica = Replica::new(replica_config, store.promised(), store.log_state());
        Self {
            resource,
            name,
            store,
            replica,
            disk,
            presence: Presence::default(),
            pending: HashMap::new(),
            next_request: 1,
            reads: BTreeMap::new(),
            log_loads: BTreeMap::new(),
            next_token: 1,
            told_room: None,
            role: Role::Secondary,
            promoted_at: Time(0),
            paused_until: None,
            demoted: false,
            failed: None,
            proposal: None,
            pause_answers: Vec::new(),
            digest: None,
            dirty: true,
            reported_at: Time(0),
        }
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.replica.next_deadline().into_iter().chain(self.paused_until).min()
    }

    /// The control plane's record.
    pub fn record(&mut self, now: Time, record: ResourceRecord) {
        if self.proposal.as_ref().is_some_and(|proposal| proposal.version < record.version) {
            self.proposal = None;
        }
        self.dirty = true;
        self.replica.handle(now, Event::Record(record));
    }

    /// The connection that this node opened to `node` has come up or gone down.
    pub fn peer(&mut self, now: Time, node: NodeId, up: bool) {
        self.dirty = true;
        self.replica.handle(now, if up { Event::PeerUp { node } } else { Event::PeerDown { node } });
    }

    /// A message of another engine. One that came on the wrong side of a node pair is dropped: only a primary
    /// speaks on the connection that it opened.
    pub fn message(&mut self, now: Time, channel: Channel, envelope: Envelope) {
        if is_answer(&envelope.message) != channel.initiated_by_us {
            tracing::warn!(resource = %self.resource, peer = %channel.peer, "dropped a message of the wrong direction");
            return;
        }
        self.replica.handle(now, Event::Message { from: channel.peer, envelope });
    }

    pub fn tick(&mut self, now: Time) {
        if self.paused_until.is_some_and(|until| until <= now) {
            tracing::warn!(resource = %self.resource, "nobody has ended the pause in time; writes go on");
            self.resume(now);
        }
        self.replica.handle(now, Event::Tick);
    }

    /// Stop serving on behalf of the agent; the devices go when what is in flight has ended.
    pub fn demote(&mut self, now: Time) {
        self.replica.handle(now, Event::Demote);
    }

    /// Answered when everything that was admitted is committed.
    pub fn pause(&mut self, now: Time, answer: Answer) {
        if self.role != Role::Primary {
            return answer(self.refuse(
                "not-primary",
                "the resource is not primary on this node",
                "ask the primary's node",
            ));
        }
        self.paused_until = Some(now.plus_ms(PAUSE_MS_MAX));
        self.pause_answers.push(answer);
        self.replica.handle(now, Event::Pause);
    }

    pub fn resume(&mut self, now: Time) {
        if self.paused_until.take().is_some() {
            self.replica.handle(now, Event::Resume);
        }
    }

    /// A request of a device.
    pub fn request(&mut self, shared: &mut Shared<'_>, frontend: FrontendId, request: FrontendRequest) {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.pending.insert(id, Pending { frontend, tag: request.tag });
        let range = |offset, len| Range { volume: request.volume, offset, len };
        let op = match request.op {
            FrontendOp::Read { offset, len } => Op::Read { range: range(offset, len) },
            FrontendOp::Write { offset, payload } => {
                Op::Write { range: range(offset, payload.len() as u64), payload }
            }
            FrontendOp::Discard { offset, len } => Op::Discard { range: range(offset, len) },
            FrontendOp::WriteZeroes { offset, len } => Op::WriteZeroes { range: range(offset, len) },
            FrontendOp::Flush => Op::Flush,
        };
        self.replica.handle(shared.now, Event::Request { id, op });
    }

    /// A completion of one of this replica's files.
    pub fn disk_completed(&mut self, shared: &mut Shared<'_>, completion: Completion) {
        let Some(done) = self.disk.handle_completion(shared.ring, completion) else { return };
        match done.tag {
            DiskTag::Store(op) => self.store.complete(op, done.result),
            DiskTag::Shard(token) => {
                let result = done.result.map(Option::unwrap_or_default);
                if self.log_loads.values().any(|load| load.wants(token)) {
                    self.log_read(shared, token, result);
                } else {
                    self.piece_read(shared, token, result);
                }
            }
        }
    }

    /// Carries out what the cores want until they want nothing more.
    pub fn pump(&mut self, shared: &mut Shared<'_>) {
        loop {
            let mut quiet = true;
            while let Some(output) = self.store.poll() {
                quiet = false;
                self.output(shared, output);
            }
            let room = self.store.room();
            if self.told_room != Some(room) {
                self.told_room = Some(room);
                self.replica.handle(shared.now, Event::Room { bytes: room });
            }
            while let Some(effect) = self.replica.poll() {
                quiet = false;
                self.effect(shared, effect);
            }
            if quiet {
                break;
            }
        }
        self.report(shared);
    }

    fn output(&mut self, shared: &mut Shared<'_>, output: Output) {
        let event = match self.disk.submit(shared.ring, output) {
            Some(Output::Durable { index }) => Event::Durable { index },
            Some(Output::Promised { epoch }) => Event::Promised { epoch },
            Some(Output::CutDone { end, chain }) => Event::CutDone { end, chain },
            Some(Output::Restarted { at }) => Event::Restarted { at },
            Some(Output::ExtentInstalled { volume, extent }) => Event::ExtentInstalled { volume, extent },
            Some(Output::CopyFinished) => Event::CopyFinished,
            Some(Output::Failed { reason }) => return self.fail(shared, reason),
            // Everything else was an operation, which the disk has taken.
            Some(_) | None => return,
        };
        self.replica.handle(shared.now, event);
    }

    fn effect(&mut self, shared: &mut Shared<'_>, effect: Effect) {
        match effect {
            Effect::Send { to, envelope } => {
                let channel = Channel { peer: to, initiated_by_us: !is_answer(&envelope.message) };
                // A channel that is down or overflows reports so as an event of its own.
                let _ = shared.transport.send(channel, &envelope);
            }
            Effect::Append(batch) => {
                self.store.append(batch);
                self.told_room = None;
            }
            Effect::Commit(index) => self.store.commit(index),
            Effect::Promise(epoch) => self.store.promise(epoch),
            Effect::Cut(to) => self.store.cut(to),
            Effect::Restart { at, chain } => self.store.restart(at, chain),
            Effect::InstallExtent { volume, extent, version, data } => {
                self.store.install_extent(volume, extent, version, data);
            }
            Effect::FinishCopy { need } => self.store.finish_copy(need),
            Effect::LoadLog { peer, from, max_bytes } => self.load_log(shared, peer, from, max_bytes),
            Effect::ListExtents { peer, newer_than } => {
                let extents = self.store.extents_newer_than(newer_than);
                self.replica.handle(shared.now, Event::ExtentList { peer, extents });
            }
            Effect::LoadExtent { peer, volume, extent } => self.load_extent(shared, peer, volume, extent),
            Effect::Complete { id, result } => self.complete(shared, id, result.map(|()| Vec::new())),
            Effect::Read { id, range } => self.start_read(shared, Purpose::Request(id), range),
            Effect::Propose(proposal) => self.propose(shared, proposal),
            Effect::RoleChanged(role) => self.role_changed(shared, role),
            Effect::Paused { .. } => {
                for answer in self.pause_answers.drain(..) {
                    answer(Reply::Ok);
                }
            }
            Effect::Demoted => {
                self.dirty = true;
                self.demoted = true;
                self.withdraw(shared);
            }
        }
    }

    fn complete(
        &mut self,
        shared: &mut Shared<'_>,
        id: RequestId,
        result: Result<Vec<bytes::Bytes>, RequestError>,
    ) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let result = result.map_err(|error| match error {
            RequestError::Range => libc::EINVAL,
            RequestError::NotPrimary | RequestError::Busy | RequestError::StoreFailed => libc::EIO,
        });
        self.answer(shared, pending.frontend, pending.tag, result);
    }

    fn propose(&mut self, shared: &mut Shared<'_>, proposal: Proposal) {
        let (version, epoch, change) = match proposal {
            Proposal::Shrink { version, epoch, remove } => {
                (version, epoch, ProposedChange::Shrink { remove })
            }
            Proposal::Grow { version, epoch, add } => (version, epoch, ProposedChange::Grow { add }),
            Proposal::StepDown { version, epoch, reason } => {
                (version, epoch, ProposedChange::StepDown { reason: report::step_down_words(reason).into() })
            }
        };
        let event = ProposalEvent { resource: self.resource, version, epoch, change };
        self.proposal = Some(event.clone());
        self.dirty = true;
        shared.events.push(EngineEvent::Proposal(event));
    }

    fn role_changed(&mut self, shared: &mut Shared<'_>, role: Role) {
        self.role = role;
        self.dirty = true;
        self.demoted &= role == Role::Fenced;
        tracing::info!(resource = %self.resource, ?role, "role changed");
        if role == Role::Primary {
            self.promoted_at = shared.now;
            self.offer(shared);
        } else {
            self.promoted_at = Time(0);
            if role != Role::Promoting {
                self.withdraw(shared);
            }
            for answer in self.pause_answers.drain(..) {
                answer(Reply::Error(refusal("not-primary", "the resource is no longer primary here", "")));
            }
            self.paused_until = None;
        }
    }

    /// R13: the store is not used any more; the replica leaves the in-sync set.
    fn fail(&mut self, shared: &mut Shared<'_>, reason: String) {
        if self.failed.is_some() {
            return;
        }
        tracing::error!(resource = %self.resource, reason, "the replica stops using its store");
        self.failed = Some(reason.clone());
        self.dirty = true;
        shared.events.push(EngineEvent::Failed { resource: self.resource, reason });
        self.replica.handle(shared.now, Event::StoreFailed);
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn refuse(&self, code: &str, message: &str, remedy: &str) -> Reply {
        Reply::Error(refusal(code, &format!("{}: {message}", self.name), remedy))
    }
}

fn refusal(code: &str, message: &str, remedy: &str) -> EngineError {
    EngineError { code: code.into(), message: message.into(), remedy: remedy.into() }
}

/// Whether a replica says this to its primary, rather than the other way round.
fn is_answer(message: &Message) -> bool {
    match message {
        Message::AttachReply(_)
        | Message::CutReply { .. }
        | Message::Ack { .. }
        | Message::CopyBeginReply { .. }
        | Message::CopyExtentAck { .. }
        | Message::CopyEndReply
        | Message::Rejected(_) => true,
        Message::Hello { .. }
        | Message::Ping
        | Message::Pong
        | Message::Attach
        | Message::Cut { .. }
        | Message::Append(_)
        | Message::Commit { .. }
        | Message::CopyBegin { .. }
        | Message::CopyExtent { .. }
        | Message::CopyEnd { .. } => false,
    }
}
