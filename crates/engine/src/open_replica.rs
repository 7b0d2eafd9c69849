//! One open replica with everything that makes it one: its cores, its files and, while it is
//! primary, its devices.
//!
//! `mainstay_host` drives the cores, here and in the simulator. This file gives it what it wants of
//! the world: disk operations on the ring, messages on the transport, answers for devices and for
//! the agent.

mod counts;
mod devices;
mod platform;
mod report;
mod scrub;
mod watch;

pub use devices::Closing;

use crate::buffer::BufferPool;
use crate::devices::DeviceAdmin;
use crate::disk::{Disk, DiskDone, DiskTag, SnapshotDone, SnapshotJob};
use crate::frontend::vhost_user::{self, runs};
use crate::frontend::{Choice, Extent, FrontendId, FrontendRequest};
use crate::guard::Guard;
use crate::left_devices::LeftDevices;
use crate::options::EngineOptions;
use crate::requests::{REQUESTS_MAX, Requests, operation};
use crate::resource_devices::{Offered, ResourceDevices};
use crate::ring::{Completion, Ring};
use crate::transport::{Channel, Transport};
use counts::{Counts, DeviceRequest};
use mainstay_api::engine::{EngineEvent, ProposalEvent, Reply};
use mainstay_codec::Envelope;
use mainstay_host::{Host, Platform};
use mainstay_replica::ReplicaConfig;
use mainstay_store::Store;
use mainstay_types::{
    Code, Copies, Epoch, Index, Instance, Mode, NodeId, REQUEST_BYTES_MAX, Range, ResourceId, ResourceRecord,
    Role, ScrubState, SnapshotId, Time, VolumeId,
};
use platform::HostPlatform;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use watch::Watch;

/// Most operations whose ends are told in one pump, of those that end when they are started:
/// journals in memory must not hold up the shard (R18).
const ENDED_MAX: usize = 16;

/// Sends the reply of a request of the agent.
pub type AgentReply = Box<dyn FnOnce(Reply) + Send>;

/// Parts of the shard that a host uses while it works.
pub struct ShardParts<'a> {
    pub ring: &'a mut Ring,
    pub transport: &'a mut Transport,
    pub pool: &'a BufferPool,
    pub devices: &'a DeviceAdmin,
    /// Starts what a store wants done to the files of a snapshot; [`OpenReplica::snapshot_done`]
    /// follows.
    pub snapshots: &'a dyn Fn(SnapshotJob),
    pub guard: &'a Guard,
    pub run_dir: &'a Path,
    pub choice: &'a Choice,
    pub node: NodeId,
    pub now: Time,
    /// Until when reads may be answered (R10).
    pub lease_until: Time,
    /// The guard has acted and the lease was not renewed since (R19).
    pub fenced: bool,
    pub events: &'a mut Vec<EngineEvent>,
    pub next_frontend: &'a mut u32,
    pub frontends: &'a mut BTreeMap<FrontendId, ResourceId>,
    /// Devices of the engine before this one.
    pub left: &'a mut LeftDevices,
}

/// A request of a device that is on its way through the cores.
struct Pending {
    frontend: FrontendId,
    tag: u64,
    asked: DeviceRequest,
}

/// See the top of this file.
pub struct OpenReplica {
    host: Host,
    around: ReplicaParts,
}

/// Everything around the cores of a replica: its files, its devices, and the requests and reports
/// that are still to be answered or sent.
struct ReplicaParts {
    resource: ResourceId,
    name: String,
    instance: Instance,
    /// See [`FrontendKind::caches`](mainstay_types::FrontendKind::caches).
    caches: bool,
    /// All flushes of users of the devices come, or there are no devices.
    flushed: bool,
    /// Bytes of each volume.
    volumes: Vec<u64>,
    disk: Disk,
    resource_devices: ResourceDevices,
    pending: Requests<Pending>,
    /// The last epoch in which the record named this node primary.
    epoch: Epoch,
    /// Role of the replica, as the cores reported it last.
    role: Role,
    /// The devices are those of a client, as the record says.
    attached: bool,
    proposal: Option<ProposalEvent>,
    pause_answers: Vec<AgentReply>,
    digest_answer: Option<AgentReply>,
    /// The request that waits for a promise of this epoch.
    promise_answer: Option<(Epoch, AgentReply)>,
    dirty: bool,
    /// The replica is being closed: no agent counts on it any more.
    closing: bool,
    /// State that was reported last: whether all peers are fed, the copies, and the last scrub with
    /// its state.
    awaited: (bool, Copies, Option<(u64, ScrubState)>),
    reported_at: Time,
    counts: Counts,
    watch: Option<Box<Watch>>,
}

impl OpenReplica {
    /// A replica as it was recovered. Peers that are already connected must be told with
    /// [`peer`](Self::peer).
    #[must_use]
    pub fn new(
        node: NodeId,
        name: String,
        (store, disk): (Store, Disk),
        caches: bool,
        options: &EngineOptions,
    ) -> Self {
        let config = store.config().clone();
        let instance = new_instance();
        // Whatever the kernel may have outstanding is admitted: it waits for room, it does not
        // fail.
        let replica_config = ReplicaConfig {
            instance,
            requests_max: REQUESTS_MAX,
            request_bytes_max: REQUESTS_MAX as u64 * REQUEST_BYTES_MAX,
            ..ReplicaConfig::new(config.resource, node, config.incarnation, config.volumes.clone())
        };
        let counts = Counts::new(config.volumes.len());
        let offered = Offered { resource: config.resource, name: name.clone(), leased: true };
        let mut resource_devices = ResourceDevices::new(offered);
        resource_devices.set_sizes(&config.volumes);
        let around = ReplicaParts {
            resource: config.resource,
            name,
            instance,
            caches,
            flushed: true,
            volumes: config.volumes,
            disk,
            resource_devices,
            pending: Requests::default(),
            epoch: Epoch(0),
            role: Role::Secondary,
            attached: false,
            proposal: None,
            pause_answers: Vec::new(),
            digest_answer: None,
            promise_answer: None,
            dirty: true,
            closing: false,
            awaited: (false, Copies::Enough, None),
            reported_at: Time(0),
            counts,
            watch: options.check_reads.then(Box::default),
        };
        let mut host = Host::new(replica_config, store);
        host.cached(Time(0), caches);
        Self { host, around }
    }

    /// Limit of the record for everything that this node fills, in bytes per second. 0: no limit,
    /// or no record yet.
    #[must_use]
    pub fn fill_rate_of_node(&self) -> u64 {
        self.host.replica().fill_rate_of_node()
    }

    /// Whether another replica is being filled from here.
    #[must_use]
    pub fn fills(&self) -> bool {
        self.host.replica().fills()
    }

    /// How much of the node's limit is this replica's, in bytes per second; 0: there is none.
    pub fn background_rate(&mut self, now: Time, bytes_per_s: u64) {
        self.host.background_rate(now, bytes_per_s);
    }

    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        // Operations that a pump has left are due at once.
        let now = self.around.disk.has_ended().then_some(Time(0));
        now.or_else(|| self.host.next_deadline())
    }

    /// Completions that the last writes need before they can be acknowledged.
    #[must_use]
    pub fn awaited(&self) -> usize {
        self.host.replica().awaited()
    }

    /// The control plane's record, which may name this node primary.
    pub fn record(&mut self, shared: &mut ShardParts<'_>, record: ResourceRecord) {
        if record.primary == Some(shared.node) {
            self.around.epoch = self.around.epoch.max(record.epoch);
        }
        if self.around.proposal.is_some_and(|event| event.proposal.version < record.version) {
            self.around.proposal = None;
        }
        self.around.dirty = true;
        // Before the mode is known to the cores, which would acknowledge from memory at once.
        let flushes = self.around.resource_devices.need_flushes(record.policy.mode() == Mode::B);
        self.told_of_flushes(shared.now, flushes);
        self.host.record(shared.now, record);
        let attached = self.host.replica().attached().is_some();
        if attached != self.around.attached {
            self.around.attached = attached;
            // Noted before a client is admitted elsewhere, which takes this record. When the
            // resource is detached the epoch may be the same.
            if attached
                && let Err(error) = runs::end(&vhost_user::directory(shared.run_dir), self.around.resource)
            {
                tracing::error!(resource = %self.around.resource, %error, "virtual machines that were served here are not known to be of the past: end them before the resource is detached");
            }
            self.around.settle_devices(shared);
        }
    }

    /// Allows acknowledgement from memory only where users of devices here flush what must not be
    /// lost (S155). `flushes`: whether they do; `None` without devices, as on a secondary. Without
    /// devices memory counts: devices are made as the mode is then.
    fn told_of_flushes(&mut self, now: Time, flushes: Option<bool>) {
        self.around.flushed = flushes != Some(false);
        self.host.cached(now, self.around.caches && self.around.flushed);
    }

    /// The connection that this node opened to `node` has come up or gone down.
    pub fn peer(&mut self, now: Time, node: NodeId, up: bool) {
        self.around.dirty = true;
        self.host.peer(now, node, up);
    }

    /// A message of another engine.
    pub fn message(&mut self, now: Time, channel: Channel, envelope: Envelope) {
        if !self.host.message(now, channel.peer, channel.initiated_by_us, envelope) {
            let resource = self.around.resource;
            tracing::warn!(%resource, peer = %channel.peer, "dropped a message of the wrong direction");
        }
    }

    pub fn tick(&mut self, now: Time) {
        let paused = self.host.paused_until().is_some();
        self.host.tick(now);
        if paused && self.host.paused_until().is_none() {
            tracing::warn!(resource = %self.around.resource, "no agent has ended the pause in time; writes go on");
            self.pause_ended();
        }
    }

    /// Stop serving on behalf of the agent; the devices go when what is in flight has ended.
    pub fn demote(&mut self, now: Time) {
        self.host.demote(now);
    }

    /// Makes a volume as large as `bytes`, if it is smaller and this is the primary.
    pub fn grow(&mut self, now: Time, volume: VolumeId, bytes: u64) {
        self.host.grow(now, volume, bytes);
    }

    /// Answered when the epoch is promised, durably.
    pub fn promise_ahead(&mut self, epoch: Epoch, answer: AgentReply) {
        if self.host.promise_ahead(epoch) {
            self.around.promise_answer = Some((epoch, answer));
        } else {
            answer(self.around.refuse(
                Code::NotEligible,
                "the replica is not whole, or follows a primary of that epoch",
                "choose another node",
            ));
        }
    }

    /// Takes and drops snapshots until there are these, if this is the primary, and rolls back: see
    /// [`mainstay_host::Host::snapshots`].
    pub fn snapshots(
        &mut self,
        now: Time,
        wanted: &BTreeSet<SnapshotId>,
        mark: Option<SnapshotId>,
        to: Option<SnapshotId>,
    ) {
        self.host.snapshots(now, wanted, mark, to);
    }

    /// The end of what a thread did to the files of a snapshot.
    pub fn snapshot_done(&mut self, mut done: SnapshotDone) {
        // A replica that was closed meanwhile has another disk.
        if done.disk == self.around.disk.id() {
            self.around.disk.snapshot_done(&mut done);
            self.host.store_done(done.op, done.result.map(|()| None));
        }
    }

    /// Answered when everything that was admitted is committed.
    pub fn pause(&mut self, now: Time, answer: AgentReply) {
        if self.host.pause(now) {
            self.around.pause_answers.push(answer);
        } else {
            answer(self.around.refuse(
                Code::NotPrimary,
                "the resource is not primary on this node",
                "ask the primary's node",
            ));
        }
    }

    pub fn resume(&mut self, now: Time) {
        self.host.resume(now);
        self.pause_ended();
    }

    /// Refuses the requests that still wait for a pause of writes: that pause has ended before it
    /// began.
    fn pause_ended(&mut self) {
        for answer in std::mem::take(&mut self.around.pause_answers) {
            answer(self.around.refuse(
                Code::Busy,
                "the pause ended before it had begun",
                "try again in a moment",
            ));
        }
    }

    /// Digests everything as of the present commit index. Refuses when that index moves meanwhile,
    /// so the caller pauses writes first.
    pub fn start_digest(&mut self, shared: &mut ShardParts<'_>, answer: AgentReply) {
        if self.around.digest_answer.is_some() {
            return answer(self.around.refuse(Code::Busy, "a digest is being made", "try again in a moment"));
        }
        self.around.digest_answer = Some(answer);
        if let Err(error) = self.host.start_digest(&mut HostPlatform { around: &mut self.around, shared }) {
            self.around.digested(Err(error));
        }
    }

    /// A request of a device.
    pub fn request(&mut self, shared: &mut ShardParts<'_>, frontend: FrontendId, request: FrontendRequest) {
        let volume = request.volume;
        let (kind, bytes, op) = match operation(volume, request.op) {
            Ok(operation) => operation,
            Err(range) => return self.extents(shared, frontend, request.tag, range),
        };
        let asked = DeviceRequest { kind, volume, bytes, since: shared.now, reads_since: None };
        let id = self.around.pending.add(Pending { frontend, tag: request.tag, asked });
        self.host.request(shared.now, id, op);
    }

    /// A completion of one of this replica's files.
    pub fn disk_completed(&mut self, shared: &mut ShardParts<'_>, completion: Completion) {
        if let Some(done) = self.around.disk.handle_completion(shared.ring, completion) {
            self.disk_done(shared, done);
        }
    }

    fn disk_done(&mut self, shared: &mut ShardParts<'_>, done: DiskDone) {
        match done.tag {
            DiskTag::Store(op) => {
                self.around.counts.store_done(shared.now, op);
                self.host.store_done(op, done.result);
            }
            DiskTag::Shard(token) => {
                let result = done.result.map(Option::unwrap_or_default);
                self.host.read_done(&mut HostPlatform { around: &mut self.around, shared }, token, result);
            }
        }
    }

    /// Carries out what the cores want until they and the devices want nothing more. The cores hear
    /// here, between two rounds, of operations that ended when they were started, as of a
    /// completion of the next turn.
    pub fn pump(&mut self, shared: &mut ShardParts<'_>) {
        let mut left = ENDED_MAX;
        loop {
            self.host.pump(&mut HostPlatform { around: &mut self.around, shared });
            let mut more = false;
            while left > 0
                && let Some(done) = self.around.disk.ended()
            {
                (left, more) = (left - 1, true);
                self.disk_done(shared, done);
            }
            if !self.poll_frontend(shared) && !more {
                break;
            }
        }
        if let Some((_, answer)) = self
            .around
            .promise_answer
            .take_if(|(epoch, _)| self.host.replica().promised_ahead() == Some(*epoch))
        {
            answer(Reply::Ok);
        }
        self.report(shared);
    }

    /// Where something was ever written, from the version table: an extent that no entry has
    /// changed is zero.
    fn extents(&mut self, shared: &mut ShardParts<'_>, frontend: FrontendId, tag: u64, range: Range) {
        // The same conditions as for what is read (R10).
        let may_answer = self.around.role == Role::Primary
            && HostPlatform { around: &mut self.around, shared }.may_answer();
        if !may_answer {
            return self.around.resource_devices.answer(shared, frontend, tag, Err(libc::EIO));
        }
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = range.offset;
        while at < range.end() {
            let extent = mainstay_types::Extent::of(at);
            let end = extent.next().offset().min(range.end());
            let written = self.host.store().version(range.volume, extent) > Index(0);
            match extents.last_mut() {
                Some(last) if last.written == written => last.len += end - at,
                _ => extents.push(Extent { len: end - at, written }),
            }
            at = end;
        }
        self.around.resource_devices.answer_extents(shared, frontend, tag, &extents);
    }
}

impl ReplicaParts {
    fn refuse(&self, code: Code, message: &str, remedy: &str) -> Reply {
        Reply::refused(code, format!("{}: {message}", self.name), remedy)
    }
}

/// A number that no other instance has, and not 0. Seeded by the kernel for each process.
fn new_instance() -> Instance {
    Instance(RandomState::new().build_hasher().finish().max(1))
}
