//! A host in a world that does what it is told when it is told.

use crate::{AnswerError, DeviceAnswer, Digest, DigestError, Happened, Host, Platform};
use bytes::Bytes;
use mainstay_codec::Pieces;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Envelope, LogState, Message};
use mainstay_replica::{Op, ReplicaConfig, RequestId};
use mainstay_store::{Area, IoFailure, Media, MediaError, OpId, Output, Store, StoreConfig, Tuning};
use mainstay_types::{
    BLOCK_BYTES, Chain, ConfigVersion, DataState, EXTENT_BYTES, Epoch, Incarnation, Index, Instance, Member,
    NodeId, Position, Range, ResourceId, ResourceRecord, Role, SnapshotId, Time, VolumeId,
};
use std::collections::{BTreeMap, VecDeque};

pub const RESOURCE: ResourceId = ResourceId(7);
pub const HERE: Member = Member { node: NodeId(1), incarnation: Incarnation(11) };
pub const THERE: Member = Member { node: NodeId(2), incarnation: Incarnation(12) };
/// In which the replica here was opened.
pub const INSTANCE: Instance = Instance(5);
pub const VOLUME: VolumeId = VolumeId(0);
/// Blocks of the journal; a write of one block takes two.
pub const JOURNAL_BLOCKS: u64 = 40;

/// Blocks of a simulated disk. A block that was never written reads as zeroes.
#[derive(Default)]
pub struct Blocks(BTreeMap<(Area, u64), Bytes>);

impl Blocks {
    pub fn put(&mut self, area: Area, offset: u64, data: &[u8]) {
        for (block, data) in (offset / BLOCK_BYTES..).zip(data.chunks(BLOCK_BYTES as usize)) {
            let mut whole = data.to_vec();
            whole.resize(BLOCK_BYTES as usize, 0);
            self.0.insert((area, block), whole.into());
        }
    }

    pub fn get(&self, area: Area, offset: u64, len: u64) -> Bytes {
        let mut bytes = Vec::with_capacity(len as usize);
        for block in offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES) {
            match self.0.get(&(area, block)) {
                Some(data) => bytes.extend_from_slice(data),
                None => bytes.resize(bytes.len() + BLOCK_BYTES as usize, 0),
            }
        }
        bytes.truncate(len as usize);
        bytes.into()
    }
}

impl Blocks {
    /// Forgets all blocks of an area.
    pub fn forget(&mut self, area: Area) {
        self.0.retain(|(of, _), _| *of != area);
    }
}

impl Media for Blocks {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        Ok(self.get(area, offset, len as u64))
    }

    fn flush(&mut self, _area: Area) -> Result<(), MediaError> {
        Ok(())
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.put(area, offset, data);
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Read {
    pub token: u64,
    pub area: Area,
    pub offset: u64,
    pub len: u64,
}

/// Blocks of volumes and of their sums.
pub type Kept = BTreeMap<(Area, u64), Bytes>;

fn is_kept((area, _): &(Area, u64)) -> bool {
    matches!(area, Area::Volume(_) | Area::Sums(_))
}

#[derive(Default)]
pub struct LabPlatform {
    pub now: Time,
    pub lease: bool,
    pub blocks: Blocks,
    pub operations: VecDeque<Output>,
    pub reads: VecDeque<Read>,
    pub sent: Vec<(NodeId, bool, Envelope)>,
    pub answers: BTreeMap<RequestId, DeviceAnswer>,
    pub happened: Vec<Happened>,
    /// The files of snapshots.
    pub kept: BTreeMap<SnapshotId, Kept>,
    /// Whether a range without blocks is known to be a hole.
    pub knows_holes: bool,
}

impl Platform for LabPlatform {
    fn now(&self) -> Time {
        self.now
    }

    fn may_answer(&self) -> bool {
        self.lease
    }

    fn store_operation(&mut self, output: Output) {
        self.operations.push_back(output);
    }

    fn read(&mut self, token: u64, area: Area, offset: u64, len: u64, _passes: bool) {
        self.reads.push_back(Read { token, area, offset, len });
    }

    fn is_hole(&mut self, volume: VolumeId, offset: u64, len: u64) -> bool {
        let (area, first) = (Area::Volume(volume), offset / BLOCK_BYTES);
        let blocks = (area, first)..(area, first + len / BLOCK_BYTES);
        self.knows_holes && self.blocks.0.range(blocks).next().is_none()
    }

    fn join(&mut self, pieces: Pieces) -> Bytes {
        pieces.concat().into()
    }

    fn send(&mut self, to: NodeId, answer: bool, envelope: Envelope) {
        self.sent.push((to, answer, envelope));
    }

    fn complete(&mut self, id: RequestId, answer: DeviceAnswer) {
        if id == RequestId::NOBODY {
            return;
        }
        assert!(self.answers.insert(id, answer).is_none(), "{id:?} was answered twice");
    }

    fn happened(&mut self, happened: Happened) {
        self.happened.push(happened);
    }
}

impl LabPlatform {
    /// Does what the store asked for.
    pub fn execute(&mut self, output: Output) -> (OpId, Option<Bytes>) {
        match output {
            Output::JournalWrite { op, offset, parts } => {
                let mut at = offset;
                for (local, batch) in parts {
                    self.blocks.put(Area::Journal, at, &batch.header_block(local));
                    self.blocks.put(Area::Journal, at + HEADER_BLOCK_BYTES as u64, &batch.payload.concat());
                    at += batch.journal_len();
                }
                (op, None)
            }
            Output::JournalRead { op, offset, len } => {
                (op, Some(self.blocks.get(Area::Journal, offset, len)))
            }
            Output::SumsRead { op, volume, offset, len } => {
                (op, Some(self.blocks.get(Area::Sums(volume), offset, len)))
            }
            Output::SumsWrite { op, volume, offset, data } => {
                self.blocks.put(Area::Sums(volume), offset, &data);
                (op, None)
            }
            Output::VolumeWrite { op, volume, offset, data, .. } => {
                self.blocks.put(Area::Volume(volume), offset, &data.concat());
                (op, None)
            }
            Output::VolumeZero { op, volume, offset, len, .. } => {
                let range = (Area::Volume(volume), offset / BLOCK_BYTES)
                    ..(Area::Volume(volume), (offset + len) / BLOCK_BYTES);
                self.blocks.0.retain(|key, _| !range.contains(key));
                (op, None)
            }
            // Blocks that were never written read as zeroes, wherever they are.
            Output::VolumeFlush { op, .. }
            | Output::VolumeGrow { op, .. }
            | Output::SnapshotDrop { op, .. } => (op, None),
            Output::SnapshotTake { op, snapshot, .. } => {
                let blocks = self.blocks.0.iter().filter(|(at, _)| is_kept(at));
                self.kept.insert(snapshot, blocks.map(|(at, block)| (*at, block.clone())).collect());
                (op, None)
            }
            Output::SnapshotRestore { op, snapshot, from, .. } => {
                let kept = self.kept[&from].clone();
                self.blocks.0.retain(|at, _| !is_kept(at));
                self.blocks.0.extend(kept.clone());
                self.kept.insert(snapshot, kept);
                (op, None)
            }
            Output::MetaWrite { op, offset, data } => {
                self.blocks.put(Area::Meta, offset, &data);
                (op, None)
            }
            other => panic!("{other:?} is not an operation"),
        }
    }
}

pub struct Lab {
    pub host: Host,
    pub world: LabPlatform,
    pub next: u64,
}

/// Tuning under which nothing is destaged before it must be, and nothing stays in memory.
pub fn lazy() -> Tuning {
    Tuning {
        destage_start_bytes: u64::MAX,
        pass_parts: 1,
        pass_bytes_min: 0,
        memory_bytes_max: 0,
        reserve_bytes: 2 * BLOCK_BYTES,
        ..Tuning::default()
    }
}

/// Tuning under which nothing is destaged before it must be, and all stays in memory.
pub fn roomy() -> Tuning {
    Tuning { memory_bytes_max: u64::MAX, ..lazy() }
}

pub fn record(version: u64, epoch: u64, primary: NodeId) -> ResourceRecord {
    ResourceRecord {
        resource: RESOURCE,
        version: ConfigVersion(version),
        epoch: Epoch(epoch),
        primary: Some(primary),
        iss: vec![HERE],
        replicas: vec![HERE, THERE],
        ..ResourceRecord::new(RESOURCE)
    }
}

impl Lab {
    pub fn new(tuning: Tuning) -> Self {
        Self::sized(tuning, 2 * EXTENT_BYTES + 8 * BLOCK_BYTES)
    }

    pub fn sized(tuning: Tuning, volume_bytes: u64) -> Self {
        Self::with_journal(tuning, volume_bytes, JOURNAL_BLOCKS)
    }

    pub fn with_journal(tuning: Tuning, volume_bytes: u64, journal_blocks: u64) -> Self {
        let config = StoreConfig {
            resource: RESOURCE,
            incarnation: HERE.incarnation,
            volumes: vec![volume_bytes],
            journal_bytes: journal_blocks * BLOCK_BYTES,
            sums: false,
        };
        Self::formatted(tuning, &config)
    }

    /// A primary whose blocks have sums.
    pub fn summed(tuning: Tuning) -> Self {
        let config = StoreConfig { sums: true, ..Self::new(lazy()).host.store().config().clone() };
        let mut lab = Self::formatted(tuning, &config);
        lab.promote();
        lab
    }

    fn formatted(tuning: Tuning, config: &StoreConfig) -> Self {
        let mut world = LabPlatform { now: Time(1_000_000), lease: true, ..LabPlatform::default() };
        Store::format(&mut world.blocks, config).expect("nothing fails here");
        Self::opened(tuning, world, INSTANCE)
    }

    fn opened(tuning: Tuning, mut world: LabPlatform, instance: Instance) -> Self {
        let store = Store::recover(&mut world.blocks, tuning).expect("nothing is damaged");
        let volumes = store.config().volumes.clone();
        let replica = ReplicaConfig {
            // Commits shall not begin to wait for a peer that has nothing yet.
            join_lag_bytes: 0,
            instance,
            ..ReplicaConfig::new(RESOURCE, HERE.node, HERE.incarnation, volumes)
        };
        let mut lab = Self { host: Host::new(replica, store), world, next: 0 };
        lab.host.pump(&mut lab.world);
        lab
    }

    /// The replica after a crash, with what its disk has, and primary again in the next epoch.
    pub fn reopened(self, tuning: Tuning) -> Self {
        let LabPlatform { now, blocks, kept, .. } = self.world;
        let world = LabPlatform { now, lease: true, blocks, kept, ..LabPlatform::default() };
        let mut lab = Self::opened(tuning, world, Instance(INSTANCE.0 + 1));
        lab.host.record(lab.world.now, record(2, 2, HERE.node));
        lab.settle();
        lab
    }

    /// The only member of its in-sync set, serving.
    pub fn primary(tuning: Tuning) -> Self {
        let mut lab = Self::new(tuning);
        lab.promote();
        lab
    }

    pub fn promote(&mut self) {
        self.host.record(self.world.now, record(1, 1, HERE.node));
        self.settle();
        assert_eq!(self.host.role(), Role::Primary);
    }

    /// Ends the oldest operation of the store.
    pub fn step(&mut self) -> bool {
        self.host.pump(&mut self.world);
        let Some(output) = self.world.operations.pop_front() else { return false };
        let (op, bytes) = self.world.execute(output);
        self.host.store_done(op, Ok(bytes));
        self.host.pump(&mut self.world);
        true
    }

    /// Ends all operations of the store, and what writes to a volume for want of space. Reads stay.
    pub fn settle_without_space(&mut self) {
        self.host.pump(&mut self.world);
        while let Some(output) = self.world.operations.pop_front() {
            let (op, result) = match output {
                Output::VolumeWrite { op, .. } | Output::VolumeZero { op, .. } => {
                    (op, Err(IoFailure { no_space: true, ..IoFailure::new("the pool is full") }))
                }
                output => {
                    let (op, bytes) = self.world.execute(output);
                    (op, Ok(bytes))
                }
            };
            self.host.store_done(op, result);
            self.host.pump(&mut self.world);
        }
    }

    /// Ends all operations of the store. Reads stay.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    pub fn answer(&mut self, read: Read, result: Result<Bytes, IoFailure>) {
        self.host.read_done(&mut self.world, read.token, result);
        self.host.pump(&mut self.world);
    }

    /// Answers all reads with what is on the disk now.
    pub fn answer_reads(&mut self) {
        while let Some(read) = self.world.reads.pop_front() {
            let bytes = self.world.blocks.get(read.area, read.offset, read.len);
            self.answer(read, Ok(bytes));
        }
    }

    pub fn the_read(&mut self) -> Read {
        assert_eq!(self.world.reads.len(), 1, "{:?}", self.world.reads);
        self.world.reads[0]
    }

    pub fn request(&mut self, op: Op) -> RequestId {
        self.next += 1;
        let id = RequestId(self.next);
        self.host.request(self.world.now, id, op);
        self.host.pump(&mut self.world);
        id
    }

    pub fn write(&mut self, block: u64, fill: u8) -> RequestId {
        let payload = vec![fill; BLOCK_BYTES as usize].into();
        self.request(Op::Write { range: range(block, 1), payload })
    }

    pub fn read(&mut self, block: u64, blocks: u64) -> RequestId {
        self.request(Op::Read { range: range(block, blocks) })
    }

    pub fn content(&self, id: RequestId) -> Vec<u8> {
        self.world.answers[&id].as_ref().expect("the read succeeded").concat()
    }

    pub fn error(&self, id: RequestId) -> AnswerError {
        *self.world.answers[&id].as_ref().expect_err("the request failed")
    }

    pub fn is_answered(&self, id: RequestId) -> bool {
        self.world.answers.contains_key(&id)
    }

    pub fn digest(&mut self) -> Result<Digest, DigestError> {
        self.host.start_digest(&mut self.world).expect("none is being made");
        self.answer_reads();
        self.digested().expect("it has ended")
    }

    pub fn digested(&mut self) -> Option<Result<Digest, DigestError>> {
        match self.world.happened.pop() {
            Some(Happened::Digested(result)) => Some(result),
            _ => None,
        }
    }

    pub fn failures(&self) -> usize {
        self.world.happened.iter().filter(|h| matches!(h, Happened::Failed { .. })).count()
    }

    /// The other node's engine says something to this one.
    pub fn hear(&mut self, initiated_by_us: bool, incarnation: Incarnation, message: Message) -> bool {
        let (epoch, version) = (Epoch(1), ConfigVersion(1));
        let envelope = Envelope { resource: RESOURCE, epoch, version, incarnation, message };
        let heard = self.host.message(self.world.now, THERE.node, initiated_by_us, envelope);
        self.settle();
        heard
    }

    /// Connects the other replica, whose log is empty.
    pub fn attach_empty_peer(&mut self) {
        self.host.peer(self.world.now, THERE.node, true);
        self.settle();
        let state = LogState {
            data: DataState::Consistent,
            end: Position::default(),
            chain: Chain(0),
            commit: Index(0),
            base: Index(0),
            epochs: Vec::new(),
        };
        assert!(self.hear(true, THERE.incarnation, Message::AttachReply(state)));
    }

    /// Connects the other replica, which has all that is here.
    pub fn attach_equal_peer(&mut self) {
        self.host.peer(self.world.now, THERE.node, true);
        self.settle();
        let state = self.host.store().log_state();
        let end = state.end;
        assert!(self.hear(true, THERE.incarnation, Message::AttachReply(state)));
        assert!(self.hear(true, THERE.incarnation, Message::CutReply { end }));
        assert!(self.hear(true, THERE.incarnation, Message::Ack { durable: end.index }));
    }

    pub fn appended(&self) -> Vec<Index> {
        let first = |(_, _, envelope): &(NodeId, bool, Envelope)| match &envelope.message {
            Message::Append(batch) => Some(batch.first),
            _ => None,
        };
        self.world.sent.iter().filter_map(first).collect()
    }
}

pub fn range(block: u64, blocks: u64) -> Range {
    Range { volume: VOLUME, offset: block * BLOCK_BYTES, len: blocks * BLOCK_BYTES }
}

pub fn filled(fills: &[u8]) -> Vec<u8> {
    fills.iter().flat_map(|fill| [*fill; BLOCK_BYTES as usize]).collect()
}

pub fn broken() -> IoFailure {
    IoFailure::new("the disk is broken")
}
