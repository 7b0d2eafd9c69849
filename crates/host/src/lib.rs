//! One open replica: its replication core and its store, joined. Pure; what it wants of the world
//! goes through a [`Platform`].
//!
//! The host decides nothing. It carries out what the cores ask for, and tells them what has
//! happened: an effect of the replica core becomes a call of the store or a message, an output of
//! the store becomes an operation on a disk, a completion becomes an event. [`Host::pump`] runs
//! until neither core has more to say. The engine and the simulator run this same code.
//!
//! Guarantees beyond those of the cores:
//! - R10 A read is answered with content only if the lease holds when it completes, and if the
//!   replica has been primary all the time since it began. (`reads.rs`) A write is acknowledged
//!   only if the lease holds then.
//! - S18 A request that a client repeats is not applied again. (`clients.rs`)
//! - R13 After a failed operation, a read included, nothing more is written to the disk. The
//!   failure is told once.
//! - R20 Writes are held for [`PAUSE_MS_MAX`] at most. A primary whose pool has no space gives up
//!   its store when its journal is full for [`FULL_MS_MAX`], so that another member takes over. A
//!   secondary waits, and leaves the in-sync set when its journal is full. (`space.rs`)
//! - R12 Content from the journal is used only if the journal still holds it afterwards and its
//!   checksum is right. Damage is a failed operation. (`reads.rs`, `loads.rs`) Content from a
//!   volume is used only if it fits its checksum; a primary's damage is mended from other replicas.
//!   (`damage.rs`)

mod clients;
mod damage;
mod digest;
mod direction;
mod loads;
mod platform;
mod reads;
mod rollback;
mod scrub;
mod space;
#[cfg(test)]
mod tests;

pub use damage::DamageCounts;
pub use platform::{AnswerError, CoreMessage, DeviceAnswer, Digest, DigestError, Happened, Platform};
pub use space::FULL_MS_MAX;

use bytes::Bytes;
use damage::Damage;
use digest::Digesting;
use direction::is_answer;
use loads::LogLoad;
use mainstay_codec::{Envelope, Message, Pieces};
use mainstay_replica::{AttachedClients, Effect, Event, Op, Replica, ReplicaConfig, RequestId};
use mainstay_store::{IoFailure, IoResult, OpId, Output, Segments, Store};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Epoch, Index, NodeId, Range, ResourceRecord, Role, SnapshotId, Time, VolumeId, reach};
use reads::{Purpose, ReadJob};
use rollback::Waiting;
use space::Space;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Longest pause of writes, in milliseconds; a scrub of some gigabytes fits (R20).
pub const PAUSE_MS_MAX: u64 = 15_000;

/// See the top of this file. After any call, [`pump`](Self::pump) is to be called.
pub struct Host {
    store: Store,
    replica: Replica,
    /// By the token of the first part; a job has as many tokens in a row as it has parts.
    reads: BTreeMap<u64, ReadJob>,
    log_loads: BTreeMap<u64, LogLoad>,
    next_token: u64,
    /// Room that the replication core was told last; `None` once it has appended since. The core
    /// counts down by itself. But the room of a ring that continues at its start need not shrink
    /// with an append, and then is told again.
    told_room: Option<(u64, u64)>,
    role: Role,
    promoted_at: Time,
    /// Writes are held until then at the latest (R20).
    paused_until: Option<Time>,
    demoted: bool,
    failed: Option<String>,
    /// The pool has no space, or had none when the store failed.
    short: bool,
    digest: Option<Digesting>,
    /// Reads that wait until the volumes are rolled back.
    waiting: Vec<Waiting>,
    /// `None` unless the pool has none.
    space: Option<Space>,
    sessions: AttachedClients,
    damage: Damage,
    /// Entries of scrubs whose extents are not read yet, in the order of the log.
    scrubs: VecDeque<(Index, Range, Segments)>,
    /// Writes to the journal that are not durable yet, in the order of the log: up to which entry,
    /// and when they were issued.
    journal_writes: VecDeque<(Index, Time)>,
}

impl Host {
    /// A replica as it was recovered. Peers that are already connected must be told with
    /// [`peer`](Self::peer).
    #[must_use]
    pub fn new(mut config: ReplicaConfig, store: Store) -> Self {
        config.volumes.clone_from(&store.config().volumes);
        config.resizes_ahead = store.resizes_ahead().collect();
        config.snapshots = store.snapshots().map(|(id, _)| id).collect();
        config.snapshots_ahead = store.snapshots_ahead().collect();
        config.sums = store.config().sums;
        config.client = store.client();
        config.clients_ahead = store.clients_ahead().collect();
        config.journal_writes_max = store.tuning().journal_writes_max;
        config.journal_write_bytes_max = store.tuning().write_bytes_max;
        let mut replica = Replica::new(config, store.promised(), store.log_state());
        replica.handle(Time(0), Event::SnapshotsHeld(store.snapshots_held().collect()));
        Self {
            store,
            replica,
            reads: BTreeMap::new(),
            log_loads: BTreeMap::new(),
            next_token: 0,
            told_room: None,
            role: Role::Secondary,
            promoted_at: Time(0),
            paused_until: None,
            demoted: false,
            failed: None,
            short: false,
            digest: None,
            waiting: Vec::new(),
            space: None,
            sessions: AttachedClients::default(),
            damage: Damage::default(),
            scrubs: VecDeque::new(),
            journal_writes: VecDeque::new(),
        }
    }

    #[must_use]
    pub fn replica(&self) -> &Replica {
        &self.replica
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Role that the platform was told last.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// Since when it serves; zero when it does not.
    #[must_use]
    pub fn promoted_at(&self) -> Time {
        self.promoted_at
    }

    /// Until when writes are held, unless they are let go before.
    #[must_use]
    pub fn paused_until(&self) -> Option<Time> {
        self.paused_until
    }

    /// Whether the replica has stopped serving because it was asked to, and waits for the record to
    /// name the next primary.
    #[must_use]
    pub fn demoted(&self) -> bool {
        self.demoted
    }

    /// Why the store is not used any more (R13).
    #[must_use]
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Whether the store is no longer used because the pool had no space. What was durable is as it
    /// was, so it may be opened again when there is room.
    #[must_use]
    pub fn failed_full(&self) -> bool {
        self.failed.is_some() && self.short
    }

    /// When [`tick`](Self::tick) is wanted.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let space = self.space.as_ref().map(Space::retry_at);
        let damage = self.damage.retry_at();
        self.replica.next_deadline().into_iter().chain(self.paused_until).chain(space).chain(damage).min()
    }

    /// The control plane's record.
    pub fn record(&mut self, now: Time, record: ResourceRecord) {
        self.sessions.record(&record);
        self.replica.handle(now, Event::Record(Box::new(record)));
    }

    /// The connection that this node opened to `node` has come up or gone down.
    pub fn peer(&mut self, now: Time, node: NodeId, up: bool) {
        self.replica.handle(now, if up { Event::PeerUp { node } } else { Event::PeerDown { node } });
    }

    /// A message of another engine. One that came on the wrong side of a node pair is dropped: only
    /// a primary speaks on the connection that it opened. False then.
    pub fn message(&mut self, now: Time, from: NodeId, initiated_by_us: bool, envelope: Envelope) -> bool {
        if is_answer(&envelope.message) != initiated_by_us {
            return false;
        }
        match envelope.message {
            Message::ClientAsk(ask) => self.client_asks(from, ask),
            _ => self.replica.handle(now, Event::Message { from, envelope }),
        }
        true
    }

    /// Whether users of the devices know that a write may be lost until they have flushed (mode B).
    /// Until told, they do not.
    pub fn cached(&mut self, now: Time, cached: bool) {
        self.replica.handle(now, Event::Cached(cached));
    }

    /// The replica's share of what this node may fill others with, in bytes per second; 0: no
    /// limit.
    pub fn background_rate(&mut self, now: Time, bytes_per_s: u64) {
        self.replica.handle(now, Event::BackgroundRate { bytes_per_s });
    }

    pub fn tick(&mut self, now: Time) {
        if self.paused_until.is_some_and(|until| until <= now) {
            self.resume(now);
        }
        self.retry_for_space(now);
        self.replica.handle(now, Event::Tick);
    }

    /// Stop serving; [`Happened::Demoted`] follows when what is in flight has ended.
    pub fn demote(&mut self, now: Time) {
        self.replica.handle(now, Event::Demote);
    }

    /// The replica is about to be closed, while the connections of its node stay.
    pub fn close(&mut self, now: Time) {
        self.replica.handle(now, Event::Close);
    }

    /// There is a new lease, and the last one had ended before (R10). To be said before the new one
    /// counts.
    pub fn lease_ended(&mut self, now: Time) {
        self.replica.handle(now, Event::LeaseEnded);
    }

    /// Promises an epoch that has no primary yet, see [`Replica::promise_ahead`];
    /// [`Replica::promised_ahead`] tells when that is durable. False if it cannot be promised.
    pub fn promise_ahead(&mut self, epoch: Epoch) -> bool {
        self.replica.promise_ahead(epoch)
    }

    /// Holds new writes; [`Happened::Paused`] follows when everything that was admitted is
    /// committed. Ends by itself after [`PAUSE_MS_MAX`], and when the role changes. False, and
    /// nothing, when this is not the primary.
    pub fn pause(&mut self, now: Time) -> bool {
        let primary = self.role == Role::Primary;
        if primary {
            self.paused_until = Some(now.plus_ms(PAUSE_MS_MAX));
            self.replica.handle(now, Event::Pause);
        }
        primary
    }

    pub fn resume(&mut self, now: Time) {
        if self.paused_until.take().is_some() {
            self.replica.handle(now, Event::Resume);
        }
    }

    /// Makes a volume as large as `bytes`, if it is smaller and this is the primary;
    /// [`Happened::Resized`] follows when it is. May be said again and again.
    pub fn grow(&mut self, now: Time, volume: VolumeId, bytes: u64) {
        if self.role == Role::Primary {
            self.replica
                .handle(now, Event::Request { id: RequestId::NOBODY, op: Op::Resize { volume, bytes } });
        }
    }

    /// Takes the snapshots of `wanted` that do not exist, and drops those that exist and are not
    /// wanted, except `mark`, if this is the primary. Then rolls back to the snapshot `to`, unless
    /// the log has the mark. A replica that is being copied to gives up what it held before, unless
    /// [`SnapshotId::BEFORE_COPY`] is wanted. May be said again and again;
    /// [`Happened::SnapshotsChanged`] follows.
    pub fn snapshots(
        &mut self,
        now: Time,
        wanted: &BTreeSet<SnapshotId>,
        mark: Option<SnapshotId>,
        to: Option<SnapshotId>,
    ) {
        if !wanted.contains(&SnapshotId::BEFORE_COPY) {
            self.store.give_up_kept();
        }
        if self.role != Role::Primary {
            return;
        }
        let dropped =
            self.store.snapshots().map(|(id, _)| id).filter(|id| !wanted.contains(id) && Some(*id) != mark);
        let dropped = dropped.map(|id| Op::DropSnapshot { id });
        // Those that exist are refused by the core, which knows of the log's end too.
        let taken = wanted.iter().map(|&id| Op::Snapshot { id });
        let rollback = to.zip(mark).map(|(to, mark)| Op::Rollback { to, mark });
        for op in dropped.chain(taken).chain(rollback).collect::<Vec<_>>() {
            self.replica.handle(now, Event::Request { id: RequestId::NOBODY, op });
        }
    }

    /// The files of a snapshot that the superblock names are not there.
    pub fn snapshot_lost(&mut self, id: SnapshotId) {
        self.store.snapshot_lost(id);
    }

    /// A request of a device. `id` is not used again before it was answered.
    pub fn request(&mut self, now: Time, id: RequestId, op: Op) {
        self.replica.handle(now, Event::Request { id, op });
    }

    /// Answers [`Platform::store_operation`].
    ///
    /// # Panics
    /// On an operation that is not in flight.
    pub fn store_done(&mut self, op: OpId, result: IoResult) {
        let no_space =
            result.as_ref().err().filter(|failure| failure.no_space).map(|failure| failure.detail.clone());
        self.short |= self.failed.is_none() && result.as_ref().is_err_and(|failure| failure.full);
        self.store.complete(op, result);
        if let Some(detail) = no_space {
            self.found_no_space(detail);
        }
    }

    /// Answers [`Platform::read`]. An answer that comes after its read has ended is ignored.
    pub fn read_done(&mut self, platform: &mut impl Platform, token: u64, result: Result<Bytes, IoFailure>) {
        if let Some(load) = self.load_of(token) {
            self.log_read(platform, load, token, result);
        } else if let Some(job) = self.job_of(token) {
            self.piece_read(platform, job, token, result);
        }
    }

    /// Carries out what the cores want until they want nothing more.
    pub fn pump(&mut self, platform: &mut impl Platform) {
        self.judge_space(platform);
        self.look_at_damage(platform);
        loop {
            let mut quiet = true;
            while let Some(output) = self.store.poll() {
                quiet = false;
                self.output(platform, output);
            }
            while let Some(effect) = self.replica.poll() {
                quiet = false;
                self.effect(platform, effect);
            }
            quiet &= !self.answer_waiting_reads(platform);
            // Only now: entries that the replica has appended and the store has not heard of would
            // be counted as room again.
            let (bytes, with_reserve) = (self.store.room(), self.store.room_with_reserve());
            if self.told_room != Some((bytes, with_reserve)) {
                self.told_room = Some((bytes, with_reserve));
                self.replica.handle(platform.now(), Event::Room { bytes, with_reserve });
                quiet = false;
            }
            quiet &= self.sessions.is_idle() || !self.serve_clients(platform);
            if quiet {
                break;
            }
        }
    }

    fn output(&mut self, platform: &mut impl Platform, output: Output) {
        platform.observe(CoreMessage::Output(&output));
        let event = match output {
            Output::Durable { index } => {
                let began = self.journal_writes.front().map_or(platform.now(), |(_, began)| *began);
                while self.journal_writes.front().is_some_and(|(last, _)| *last <= index) {
                    self.journal_writes.pop_front();
                }
                let next = self.journal_writes.front().map(|(_, began)| *began);
                Event::Durable { index, began, next }
            }
            Output::Promised { epoch } => Event::Promised { epoch },
            Output::CutDone { end, chain } => {
                // The journal has come to rest before.
                self.journal_writes.clear();
                Event::CutDone { end, chain }
            }
            Output::Restarted { at } => {
                self.journal_writes.clear();
                self.forget_scrubs();
                Event::Restarted { at }
            }
            Output::ExtentInstalled { volume, extent } => Event::ExtentInstalled { volume, extent },
            Output::CopyFinished => Event::CopyFinished,
            Output::Grown { volume, bytes } => {
                self.sizes_for_clients();
                return platform.happened(Happened::Resized { volume, bytes });
            }
            Output::SnapshotsChanged => {
                platform.happened(Happened::SnapshotsChanged);
                Event::SnapshotsHeld(self.store.snapshots_held().collect())
            }
            Output::Scrub { at, range, segments } => {
                return self.scrub_extent(platform, at, range, segments);
            }
            Output::Failed { reason } => return self.fail(platform, reason),
            Output::JournalWrite { .. }
            | Output::JournalRead { .. }
            | Output::VolumeWrite { .. }
            | Output::SumsRead { .. }
            | Output::SumsWrite { .. }
            | Output::VolumeZero { .. }
            | Output::VolumeFlush { .. }
            | Output::VolumeGrow { .. }
            | Output::SnapshotTake { .. }
            | Output::SnapshotRestore { .. }
            | Output::SnapshotDrop { .. }
            | Output::MetaWrite { .. } => {
                // R13: the store does not know of a read that failed here, and would go on.
                if self.failed.is_none() {
                    if let Output::JournalWrite { parts, .. } = &output {
                        let last = parts.last().map(|(_, batch)| batch.last());
                        self.journal_writes.extend(last.map(|last| (last, platform.now())));
                    }
                    platform.store_operation(output);
                }
                return;
            }
        };
        self.replica.handle(platform.now(), event);
    }

    fn effect(&mut self, platform: &mut impl Platform, effect: Effect) {
        platform.observe(CoreMessage::Effect(&effect));
        match effect {
            Effect::Send { to, envelope } => {
                let answer = is_answer(&envelope.message);
                platform.send(to, answer, envelope);
            }
            Effect::Append(batch) => {
                self.store.append(batch);
                self.told_room = None;
            }
            Effect::Commit(index) => self.store.commit(index),
            Effect::Promise(epoch) => self.store.promise(epoch),
            Effect::Cut(to) => self.store.cut(to),
            Effect::Restart { at, chain, volumes, snapshots, client } => {
                self.digest_overtaken();
                self.store.restart(at, chain, &volumes, &snapshots, client);
            }
            Effect::InstallExtent { volume, extent, version, data, damaged, kept } => {
                self.store.install_extent(volume, extent, version, data, damaged, kept);
            }
            Effect::SumExtent { volume, extent, at } => self.sum_extent(platform, volume, extent, at),
            Effect::FinishCopy { need } => self.store.finish_copy(need),
            Effect::LoadLog { peer, from, max_bytes } => self.load_log(platform, peer, from, max_bytes),
            Effect::ListExtents { peer, newer_than } => {
                let extents = self.store.extents_newer_than(newer_than);
                self.replica.handle(platform.now(), Event::ExtentList { peer, extents });
            }
            Effect::LoadExtent { peer, volume, extent } => self.load_extent(platform, peer, volume, extent),
            Effect::LoadBlocks { range } => self.start_read(platform, Purpose::Blocks, range),
            Effect::Mended { volume, extent, mended, lost } => {
                self.mended(platform, (volume, extent), mended, &lost);
            }
            Effect::Complete { id, result } => {
                // Where the whole in-sync set is cut off, as a primary alone is in mode A, others
                // may go on without it (R11) as soon as its lease has ended.
                let answer =
                    if result.is_ok() && !platform.may_answer() && !planted(Bug::LeaseNotAskedOfWrites) {
                        reach!("host: a write completes after the lease");
                        Err(AnswerError::NoLease)
                    } else {
                        result.map(|()| Pieces::new()).map_err(AnswerError::Request)
                    };
                self.answer(platform, id, answer);
            }
            Effect::Read { id, range } => self.start_read(platform, Purpose::Request(id), range),
            Effect::Propose(proposal) => platform.happened(Happened::Proposed(proposal)),
            Effect::RoleChanged(role) => self.role_changed(platform, role),
            Effect::Paused { at } => platform.happened(Happened::Paused { at }),
            Effect::Demoted => {
                self.demoted = true;
                platform.happened(Happened::Demoted);
            }
        }
    }

    fn role_changed(&mut self, platform: &mut impl Platform, role: Role) {
        self.role = role;
        self.demoted &= role == Role::Fenced;
        self.promoted_at = if role == Role::Primary { platform.now() } else { Time(0) };
        if role != Role::Primary {
            self.paused_until = None;
        }
        self.role_for_clients(role);
        if matches!(role, Role::Secondary | Role::Fenced) {
            self.refuse_reads(platform);
            // These are not wanted any more, and a cut may now put other batches where they are
            // being read.
            self.log_loads.clear();
        }
        platform.happened(Happened::RoleChanged(role));
    }

    /// R13: the store is not used any more; the replica leaves the in-sync set.
    fn fail(&mut self, platform: &mut impl Platform, reason: String) {
        if self.failed.is_some() {
            return;
        }
        self.failed = Some(reason.clone());
        self.short |= self.space.take().is_some();
        platform.happened(Happened::Failed { reason });
        self.replica.handle(platform.now(), Event::StoreFailed);
    }

    /// Takes `count` tokens in a row, and returns the first.
    fn tokens(&mut self, count: usize) -> u64 {
        let first = self.next_token;
        // A job without parts has a number nevertheless.
        self.next_token += count.max(1) as u64;
        first
    }
}
