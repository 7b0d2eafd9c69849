//! One or two replicas in memory: disks are byte arrays, and what is sent is encoded, decoded and
//! handed over at once.

use bytes::Bytes;
use mainstay_codec::batch::HEADER_BLOCK_BYTES;
use mainstay_codec::{Envelope, FRAME_HEADER_BYTES, FrameHeader, Pieces, frame};
use mainstay_host::{DeviceAnswer, Happened, Host, Platform};
use mainstay_replica::{Op, ReplicaConfig, RequestId};
use mainstay_store::{Area, Media, MediaError, OpId, Output, Store, StoreConfig, Tuning};
use mainstay_types::{
    BLOCK_BYTES, ConfigVersion, Epoch, Incarnation, IssChange, Member, NodeId, Proposal, ProposedChange,
    Range, ResourceId, ResourceRecord, Role, Time, VolumeId,
};
use std::collections::VecDeque;

const RESOURCE: ResourceId = ResourceId(1);
const VOLUME_BLOCKS: u64 = 4096;
/// The journal goes round several times in a run, so destaging, checkpoints and trimming are part
/// of every case.
const JOURNAL_BYTES: u64 = 4 << 20;

/// Places of blocks in an order that looks random and is always the same.
pub struct Blocks(u64);

impl Blocks {
    pub fn new() -> Self {
        Self(1)
    }

    /// The first of `blocks` blocks in the volume.
    pub fn next(&mut self, blocks: u64) -> u64 {
        // Knuth's MMIX generator.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % (VOLUME_BLOCKS - (blocks - 1))
    }
}

/// The areas of one replica.
struct Disk {
    meta: Vec<u8>,
    journal: Vec<u8>,
    volume: Vec<u8>,
    sums: Vec<u8>,
}

impl Disk {
    fn area(&mut self, area: Area) -> &mut Vec<u8> {
        match area {
            Area::Meta => &mut self.meta,
            Area::Journal => &mut self.journal,
            Area::Volume(_) => &mut self.volume,
            Area::Sums(_) => &mut self.sums,
        }
    }

    fn put(&mut self, area: Area, offset: u64, data: &[u8]) {
        self.area(area)[offset as usize..][..data.len()].copy_from_slice(data);
    }

    fn get(&mut self, area: Area, offset: u64, len: u64) -> Bytes {
        Bytes::copy_from_slice(&self.area(area)[offset as usize..][..len as usize])
    }

    fn execute(&mut self, output: Output) -> (OpId, Option<Bytes>) {
        match output {
            Output::JournalWrite { op, offset, parts } => {
                let mut at = offset;
                for (local, batch) in parts {
                    let block = self.journal[at as usize..].first_chunk_mut().expect("within the journal");
                    batch.put_header_block(local, block);
                    let mut payload_at = at + HEADER_BLOCK_BYTES as u64;
                    for piece in &batch.payload {
                        self.put(Area::Journal, payload_at, piece);
                        payload_at += piece.len() as u64;
                    }
                    at += batch.journal_len();
                }
                (op, None)
            }
            Output::JournalRead { op, offset, len } => (op, Some(self.get(Area::Journal, offset, len))),
            Output::SumsRead { op, volume, offset, len } => {
                (op, Some(self.get(Area::Sums(volume), offset, len)))
            }
            Output::SumsWrite { op, volume, offset, data } => {
                self.put(Area::Sums(volume), offset, &data);
                (op, None)
            }
            Output::VolumeWrite { op, volume, offset, data, .. } => {
                let mut at = offset;
                for piece in &data {
                    self.put(Area::Volume(volume), at, piece);
                    at += piece.len() as u64;
                }
                (op, None)
            }
            Output::VolumeZero { op, offset, len, .. } => {
                self.volume[offset as usize..][..len as usize].fill(0);
                (op, None)
            }
            Output::VolumeFlush { op, .. } => (op, None),
            Output::MetaWrite { op, offset, data } => {
                self.put(Area::Meta, offset, &data);
                (op, None)
            }
            other => panic!("{other:?} is not an operation"),
        }
    }
}

impl Media for Disk {
    fn read(&mut self, area: Area, offset: u64, len: usize) -> Result<Bytes, MediaError> {
        Ok(self.get(area, offset, len as u64))
    }

    fn write_durable(&mut self, area: Area, offset: u64, data: &[u8]) -> Result<(), MediaError> {
        self.put(area, offset, data);
        Ok(())
    }

    fn flush(&mut self, _area: Area) -> Result<(), MediaError> {
        Ok(())
    }
}

/// Outputs of one host that were not carried out yet.
#[derive(Default)]
struct HostOutputs {
    operations: VecDeque<Output>,
    reads: VecDeque<(u64, Area, u64, u64)>,
    sent: VecDeque<(NodeId, bool, Vec<Bytes>)>,
    proposed: Vec<Proposal>,
    answered: u64,
}

impl Platform for HostOutputs {
    fn now(&self) -> Time {
        Time(1_000_000)
    }

    fn may_answer(&self) -> bool {
        true
    }

    fn store_operation(&mut self, output: Output) {
        self.operations.push_back(output);
    }

    fn read(&mut self, token: u64, area: Area, offset: u64, len: u64, _passes: bool) {
        self.reads.push_back((token, area, offset, len));
    }

    fn join(&mut self, pieces: Pieces) -> Bytes {
        pieces.concat().into()
    }

    fn send(&mut self, to: NodeId, answer: bool, envelope: Envelope) {
        self.sent.push_back((to, answer, frame::encode(&envelope)));
    }

    fn complete(&mut self, _id: RequestId, answer: DeviceAnswer) {
        answer.expect("no request of this program fails");
        self.answered += 1;
    }

    fn happened(&mut self, happened: Happened) {
        match happened {
            Happened::Proposed(proposal) => self.proposed.push(proposal),
            Happened::Failed { reason } => panic!("a disk in memory failed: {reason}"),
            _ => {}
        }
    }
}

/// The envelope that was encoded to these pieces. The pieces after the first are payload.
fn decoded(pieces: &[Bytes]) -> Envelope {
    let first = &pieces[0];
    let header = FrameHeader::decode(&first[..FRAME_HEADER_BYTES]).expect("just encoded");
    let payload = match &pieces[1..] {
        [] => Bytes::new(),
        [one] => one.clone(),
        several => several.concat().into(),
    };
    frame::decode(&header, &first[FRAME_HEADER_BYTES..], &payload).expect("just encoded")
}

struct Node {
    host: Host,
    disk: Disk,
    outputs: HostOutputs,
}

impl Node {
    fn new(me: Member) -> Self {
        let config = StoreConfig {
            resource: RESOURCE,
            incarnation: me.incarnation,
            volumes: vec![VOLUME_BLOCKS * BLOCK_BYTES],
            journal_bytes: JOURNAL_BYTES,
            sums: true,
        };
        let volume_bytes = (VOLUME_BLOCKS * BLOCK_BYTES) as usize;
        let mut disk = Disk {
            meta: vec![0; Store::meta_bytes(&config) as usize],
            journal: vec![0; JOURNAL_BYTES as usize],
            volume: vec![0; volume_bytes],
            sums: vec![0; volume_bytes / 1024 + BLOCK_BYTES as usize],
        };
        let tuning = Tuning {
            destage_start_bytes: 1 << 20,
            reserve_bytes: 8 * BLOCK_BYTES,
            batch_bytes_max: 1 << 20,
            ..Tuning::default()
        };
        Store::format(&mut disk, &config).expect("memory does not fail");
        let store = Store::recover(&mut disk, tuning).expect("it was just formatted");
        let replica = ReplicaConfig::new(RESOURCE, me.node, me.incarnation, config.volumes);
        Self { host: Host::new(replica, store), disk, outputs: HostOutputs::default() }
    }

    /// Carries out what the host wants until it wants nothing of its disk any more.
    fn work(&mut self) -> bool {
        let mut worked = false;
        self.host.pump(&mut self.outputs);
        loop {
            if let Some(output) = self.outputs.operations.pop_front() {
                let (op, bytes) = self.disk.execute(output);
                self.host.store_done(op, Ok(bytes));
            } else if let Some((token, area, offset, len)) = self.outputs.reads.pop_front() {
                let bytes = self.disk.get(area, offset, len);
                self.host.read_done(&mut self.outputs, token, Ok(bytes));
            } else {
                return worked;
            }
            worked = true;
            self.host.pump(&mut self.outputs);
        }
    }
}

/// See the top of this file. The first node is the primary.
pub struct Cluster {
    nodes: Vec<Node>,
    record: ResourceRecord,
    next: u64,
}

impl Cluster {
    pub fn new(copies: u32) -> Self {
        let member =
            |number: u32| Member { node: NodeId(number), incarnation: Incarnation(10 + u64::from(number)) };
        let replicas: Vec<Member> = (1..=copies).map(member).collect();
        let record = ResourceRecord {
            resource: RESOURCE,
            version: ConfigVersion(1),
            epoch: Epoch(1),
            primary: Some(replicas[0].node),
            iss: vec![replicas[0]],
            replicas: replicas.clone(),
            ..ResourceRecord::new(RESOURCE)
        };
        let nodes = replicas.iter().map(|&me| Node::new(me)).collect();
        let mut cluster = Self { nodes, record, next: 0 };
        for (place, member) in replicas.iter().enumerate().skip(1) {
            for (from, to) in [(0, member.node), (place, replicas[0].node)] {
                cluster.nodes[from].host.peer(Time(1_000_000), to, true);
            }
        }
        cluster.tell_record();
        cluster.settle();
        assert_eq!(cluster.nodes[0].host.role(), Role::Primary);
        assert_eq!(cluster.record.iss.len(), copies as usize, "every replica has joined");
        cluster
    }

    fn tell_record(&mut self) {
        for node in &mut self.nodes {
            node.host.record(Time(1_000_000), self.record.clone());
        }
    }

    /// Plays the control plane.
    fn decide(&mut self) -> bool {
        let proposed: Vec<_> =
            self.nodes.iter_mut().flat_map(|node| node.outputs.proposed.drain(..)).collect();
        for proposal in &proposed {
            match *proposal {
                Proposal { version, change: ProposedChange::Iss(IssChange::Grow { add }), .. }
                    if version == self.record.version =>
                {
                    self.record.iss.push(add);
                }
                other => panic!("nothing here leads to {other:?}"),
            }
            self.record.version = ConfigVersion(self.record.version.0 + 1);
            self.tell_record();
        }
        !proposed.is_empty()
    }

    /// Hands every message over, in the order of sending.
    fn deliver(&mut self) -> bool {
        let mut delivered = false;
        for from in 0..self.nodes.len() {
            while let Some((to, answer, pieces)) = self.nodes[from].outputs.sent.pop_front() {
                delivered = true;
                let (me, to) = (NodeId(from as u32 + 1), to.0 as usize - 1);
                // An answer goes back on the connection that its receiver has opened.
                let heard = self.nodes[to].host.message(Time(1_000_000), me, answer, decoded(&pieces));
                assert!(heard, "the message came on the wrong side");
            }
        }
        delivered
    }

    /// Goes on until no node has anything left to do.
    pub fn settle(&mut self) {
        loop {
            let mut busy = false;
            for node in &mut self.nodes {
                busy |= node.work();
            }
            busy |= self.deliver();
            busy |= self.decide();
            if !busy {
                return;
            }
        }
    }

    fn request(&mut self, op: Op) {
        self.next += 1;
        self.nodes[0].host.request(Time(1_000_000), RequestId(self.next), op);
    }

    pub fn write(&mut self, block: u64, blocks: u64) {
        // As a frontend does: every write has a payload of its own.
        let payload = Bytes::from(vec![self.next as u8; (blocks * BLOCK_BYTES) as usize]);
        self.request(Op::Write { range: range(block, blocks), payload });
    }

    pub fn read(&mut self, block: u64) {
        self.request(Op::Read { range: range(block, 1) });
    }

    /// Requests answered since the beginning.
    pub fn answered(&self) -> u64 {
        self.nodes[0].outputs.answered
    }
}

fn range(block: u64, blocks: u64) -> Range {
    Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: blocks * BLOCK_BYTES }
}
