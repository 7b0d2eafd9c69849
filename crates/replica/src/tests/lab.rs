//! The machine: nodes with replicas and stores, connections, and the control plane. Everything
//! happens in the order of a clock that only the lab moves.

use super::store::{Image, Store, VOLUME_BLOCKS, Value};
use crate::{
    Effect, Event, Mended, Op, Replica, ReplicaConfig, RequestError, RequestId, ScrubOrder, ScrubReport,
};
use bytes::Bytes;
use mainstay_codec::{Batch, BlockSums, EntryKind, Envelope, block_sum};
use mainstay_types::{
    BLOCK_BYTES, BackgroundLimits, Chain, ConfigVersion, DataState, Epoch, Extent, Incarnation, Index,
    Instance, IssChange, Member, Mode, NodeId, Policy, Position, Proposal, ProposedChange, Range, ResourceId,
    ResourceRecord, Role, ScrubRepair, SlowLimits, StepDownReason, Time, VolumeId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const A: NodeId = NodeId(1);
pub const B: NodeId = NodeId(2);
pub const C: NodeId = NodeId(3);
const RESOURCE: ResourceId = ResourceId(7);
pub const VOLUMES: u16 = 6;
/// Values above are of damaged blocks.
const ROTTEN_MIN: Value = u64::MAX - 99;

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// Event that is to happen at its time.
#[derive(Debug)]
enum Due {
    /// To the replica on a node, in this boot of it.
    Event(NodeId, u64, Event),
    /// The replica is told the room that there is then.
    Room(NodeId, u64),
    /// The disk of a node finishes its oldest operation.
    Disk(NodeId, u64, DiskOp),
    /// On a connection of this generation.
    Message {
        from: NodeId,
        to: NodeId,
        connection: u64,
        envelope: Envelope,
    },
    /// A node notices that a connection is gone.
    Lost {
        at: NodeId,
        peer: NodeId,
        connection: u64,
    },
    Proposal(Proposal),
    /// The record reaches a node.
    Record(NodeId, Box<ResourceRecord>),
}

#[derive(Debug)]
enum DiskOp {
    Durable(Index),
    Promise(Epoch),
    Cut(Position),
    Restart(Position, Chain),
    Install(VolumeId, Extent, Index, Bytes, Vec<u32>),
    Finish(Index),
}

pub struct Node {
    pub replica: Option<Replica>,
    pub store: Store,
    pub incarnation: Incarnation,
    boot: u64,
    disk_free: Time,
    connected: BTreeMap<NodeId, u64>,
    /// Milliseconds that a write to the journal takes.
    pub disk_ms: u64,
}

#[derive(Clone, Debug)]
pub enum LabAnswer {
    Done,
    Content(Vec<Value>),
    Failed(RequestError),
}

struct LabRequest {
    node: NodeId,
    op: Op,
    /// For a read: the newest acknowledged value of each block when it was asked.
    floor: Vec<Index>,
}

pub struct Lab {
    pub now: Time,
    due: BTreeMap<(Time, u64), Due>,
    sequence: u64,
    pub nodes: BTreeMap<NodeId, Node>,
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// Nodes that the control plane cannot hear nor reach.
    pub aside: BTreeSet<NodeId>,
    connections: BTreeMap<(NodeId, NodeId), u64>,
    last_arrival: BTreeMap<(NodeId, NodeId), Time>,
    pub record: ResourceRecord,
    pub random: Random,
    /// Whether proposals and records get lost and late.
    pub rough: bool,
    /// Proposals are answered only when let go.
    pub hold_proposals: bool,
    pub held: Vec<Proposal>,
    pub proposed: Vec<Proposal>,
    requests: BTreeMap<RequestId, LabRequest>,
    pub answers: BTreeMap<RequestId, LabAnswer>,
    next_request: u64,
    /// Committed entries, as the first replica that committed them saw them.
    truth: BTreeMap<Index, (Epoch, Chain, Position)>,
    /// Newest value of each block in the committed log, with its index; and where each value was
    /// written.
    pub model: BTreeMap<(VolumeId, u64), (Index, Value)>,
    written: BTreeMap<(VolumeId, u64, Value), Index>,
    floor: BTreeMap<(VolumeId, u64), Index>,
    pub acknowledged: Index,
    pub demoted: BTreeSet<NodeId>,
    pub acks: u64,
    /// Acknowledgements that came before the entry was committed.
    pub from_memory: u64,
    /// The first thing that was found wrong.
    pub wrong: Option<String>,
    /// See `ReplicaConfig`; some seeds wait for a batch that carries the commit index, others do
    /// not.
    commit_tell_ms: u64,
    /// How long a disk takes to read the content for a repair, in milliseconds.
    pub repair_read_ms: u64,
    /// A disk was damaged: replicas may be found to differ.
    pub rotten: bool,
    /// Replicas have checksums of their blocks: a replica that holds a damaged block knows it.
    pub sums: bool,
    /// Limit for replicas that start from now on.
    pub copy_extents_max: usize,
    /// How long a disk takes to read an extent that is scrubbed, in milliseconds, if that is not
    /// left to chance.
    pub scrub_ms: BTreeMap<NodeId, u64>,
    /// Outcome of each mend, in order: the node that read, the volume, the extent, the end.
    pub mended: Vec<(NodeId, VolumeId, Extent, Mended)>,
    /// Print every event, as `TRACE=1` asks.
    pub trace: bool,
}

impl Lab {
    /// A resource on `nodes`, all in the ISS, the first one primary.
    pub fn new(nodes: u32, keep: usize, seed: u64) -> Self {
        Self::with_slow(nodes, keep, seed, SlowLimits { ack_ms: 0, quiet_ms: 1500, ..SlowLimits::default() })
    }

    /// With these limits for slow members; [`new`](Self::new) has none, so that stories about
    /// absence tell of nothing else.
    pub fn with_slow(nodes: u32, keep: usize, seed: u64, slow: SlowLimits) -> Self {
        let members: Vec<Member> =
            (1..=nodes).map(|n| Member { node: NodeId(n), incarnation: Incarnation(u64::from(n)) }).collect();
        // Half of the seeds yield to clients; stories, which are of the first ones, do not, unless
        // they are about that.
        let background = BackgroundLimits {
            min_rate: if (seed / 4).is_multiple_of(2) { 0 } else { 1 << 20 },
            ..BackgroundLimits::default()
        };
        let record = ResourceRecord {
            resource: RESOURCE,
            version: ConfigVersion(1),
            epoch: Epoch(1),
            primary: Some(A),
            iss: members.clone(),
            replicas: members.clone(),
            policy: Policy { slow, background, ..Policy::default() },
            ..ResourceRecord::new(RESOURCE)
        };
        let mut lab = Self {
            now: Time(1_000_000),
            due: BTreeMap::new(),
            sequence: 0,
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            aside: BTreeSet::new(),
            connections: BTreeMap::new(),
            last_arrival: BTreeMap::new(),
            record,
            random: Random(seed),
            rough: false,
            hold_proposals: false,
            held: Vec::new(),
            proposed: Vec::new(),
            requests: BTreeMap::new(),
            answers: BTreeMap::new(),
            next_request: 1,
            truth: BTreeMap::new(),
            model: BTreeMap::new(),
            written: BTreeMap::new(),
            floor: BTreeMap::new(),
            acknowledged: Index(0),
            demoted: BTreeSet::new(),
            acks: 0,
            from_memory: 0,
            wrong: None,
            commit_tell_ms: if (seed / 2).is_multiple_of(2) { 10 } else { 0 },
            repair_read_ms: 1,
            rotten: false,
            sums: false,
            copy_extents_max: 2,
            scrub_ms: BTreeMap::new(),
            mended: Vec::new(),
            trace: std::env::var_os("TRACE").is_some(),
        };
        for member in members {
            lab.nodes.insert(
                member.node,
                Node {
                    replica: None,
                    store: Store::new(keep, 40 * BLOCK_BYTES),
                    incarnation: member.incarnation,
                    boot: 0,
                    disk_free: Time(0),
                    connected: BTreeMap::new(),
                    disk_ms: 1,
                },
            );
            lab.start(member.node);
        }
        lab
    }

    // Actions of scenarios.

    pub fn start(&mut self, node: NodeId) {
        let record = self.record.clone();
        let n = self.nodes.get_mut(&node).expect("known node");
        n.boot += 1;
        n.disk_free = self.now;
        let sizes = vec![VOLUME_BLOCKS * BLOCK_BYTES; usize::from(VOLUMES)];
        let mut config = ReplicaConfig::new(RESOURCE, node, n.incarnation, sizes);
        config.instance = Instance(100 * u64::from(node.0) + n.boot);
        config.commit_tell_ms = self.commit_tell_ms;
        config.window_bytes = 10 * BLOCK_BYTES;
        config.join_lag_bytes = 20 * BLOCK_BYTES;
        config.copy_extents_max = self.copy_extents_max;
        // As with the real limits, the largest batch is less than the half of the journal that is
        // always freed.
        config.request_bytes_max = 16 * BLOCK_BYTES;
        n.replica = Some(Replica::new(config, n.store.promised, n.store.log_state()));
        let room = n.store.told_room();
        self.event(node, room);
        self.event(node, Event::Cached(true));
        if !self.aside.contains(&node) {
            self.event(node, Event::Record(Box::new(record)));
        }
        self.connect();
    }

    /// Power cut: entries that were not durable may or may not have reached the journal.
    pub fn crash(&mut self, node: NodeId) {
        let survivors = self.random.below(3) as usize;
        let n = self.nodes.get_mut(&node).expect("known node");
        if n.replica.take().is_none() {
            return;
        }
        n.boot += 1;
        n.store.crash(survivors);
        n.store.writing.clear();
        n.connected.clear();
        self.requests.retain(|_, asked| asked.node != node);
        let peers: Vec<NodeId> = self.nodes.keys().copied().filter(|peer| *peer != node).collect();
        for peer in peers {
            self.drop_connection(node, peer);
        }
    }

    /// The replica is closed when its disk rests, and opened anew. The connections of its node
    /// stay.
    pub fn reopen(&mut self, node: NodeId) {
        self.event(node, Event::Close);
        while !self.nodes[&node].store.writing.is_empty() {
            self.run_ms(1);
        }
        self.nodes.get_mut(&node).expect("known node").replica = None;
        self.run_ms(5);
        self.start(node);
        for peer in self.nodes[&node].connected.keys().copied().collect::<Vec<_>>() {
            self.event(node, Event::PeerUp { node: peer });
        }
    }

    /// The node comes back with an empty disk of a new identity (R9).
    pub fn replace_disk(&mut self, node: NodeId) {
        self.crash(node);
        let n = self.nodes.get_mut(&node).expect("known node");
        n.store = Store::new(n.store.keep, n.store.capacity);
        n.incarnation = Incarnation(n.incarnation.0 + 100);
        let member = Member { node, incarnation: n.incarnation };
        self.record.version = self.record.version.next();
        self.record.iss.retain(|m| m.node != node);
        for replica in self.record.replicas.iter_mut().filter(|m| m.node == node) {
            *replica = member;
        }
        assert!(!self.record.iss.is_empty());
        self.publish();
        self.start(node);
    }

    pub fn fail_store(&mut self, node: NodeId) {
        self.event(node, Event::StoreFailed);
    }

    pub fn cut(&mut self, a: NodeId, b: NodeId) {
        self.cuts.insert((a.min(b), a.max(b)));
        self.drop_connection(a, b);
    }

    /// From the control plane and from everyone.
    pub fn isolate(&mut self, node: NodeId) {
        self.aside.insert(node);
        for peer in self.nodes.keys().copied().collect::<Vec<_>>() {
            if peer != node {
                self.cut(node, peer);
            }
        }
    }

    pub fn heal(&mut self) {
        self.cuts.clear();
        self.aside.clear();
        self.connect();
        self.publish();
    }

    /// R5: does as the control plane once it has decided.
    pub fn promote(&mut self, node: NodeId) {
        assert!(self.record.iss_member(node).is_some(), "not eligible");
        let old = self.record.primary.filter(|old| *old != node);
        self.record.version = self.record.version.next();
        self.record.epoch = self.record.epoch.next();
        self.record.primary = Some(node);
        self.record.iss.retain(|member| Some(member.node) != old);
        self.forget_instances();
        self.publish();
    }

    /// The same where the old primary could not serve, and is still a member.
    pub fn promote_beside(&mut self, node: NodeId) {
        self.record.version = self.record.version.next();
        self.record.epoch = self.record.epoch.next();
        self.record.primary = Some(node);
        self.publish();
    }

    /// A forced promotion has taken the entries after `end` out of the history (R11).
    pub fn fork(&mut self, end: Index) {
        self.truth.retain(|index, _| *index <= end);
        self.model.retain(|_, (index, _)| *index <= end);
        self.written.retain(|_, index| *index <= end);
        self.floor.retain(|_, index| *index <= end);
        self.acknowledged = self.acknowledged.min(end);
    }

    pub fn demote(&mut self, node: NodeId) {
        self.event(node, Event::Demote);
    }

    pub fn request(&mut self, node: NodeId, op: Op) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        let floor = match &op {
            Op::Read { range } => (range.first_block()..range.end_block())
                .map(|block| self.floor.get(&(range.volume, block)).copied().unwrap_or_default())
                .collect(),
            _ => Vec::new(),
        };
        self.requests.insert(id, LabRequest { node, op: op.clone(), floor });
        self.event(node, Event::Request { id, op });
        id
    }

    /// Writes a new value to a block; the value is the number of the request.
    pub fn write(&mut self, node: NodeId, volume: u16, block: u64) -> RequestId {
        let mut payload = vec![0; BLOCK_BYTES as usize];
        payload[..8].copy_from_slice(&self.next_request.to_le_bytes());
        let range = Range { volume: VolumeId(volume), offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
        self.request(node, Op::Write { range, payload: payload.into() })
    }

    /// The disk of a node damages a block.
    pub fn rot(&mut self, node: NodeId, volume: u16, block: u64) {
        self.rotten = true;
        let store = &mut self.nodes.get_mut(&node).expect("known").store;
        store.rot(VolumeId(volume), block, u64::MAX - u64::from(node.0));
    }

    /// A read of a node finds damage in a volume.
    pub fn mend(&mut self, node: NodeId, volume: u16) {
        self.event(node, Event::Mend { volume: VolumeId(volume), extent: Extent(0) });
    }

    pub fn scrub(&mut self, node: NodeId, repair: bool) {
        let repair = if repair { ScrubRepair::All } else { ScrubRepair::Off };
        self.event(node, Event::Scrub(Some(ScrubOrder { repair, rate: 0 })));
    }

    pub fn report(&self, node: NodeId) -> ScrubReport {
        let replica = self.nodes[&node].replica.as_ref().expect("the node is up");
        replica.scrub_report().expect("it has scrubbed").clone()
    }

    pub fn read(&mut self, node: NodeId, volume: u16) -> RequestId {
        self.request(node, Op::Read { range: whole(volume) })
    }

    pub fn run_ms(&mut self, ms: u64) {
        let until = self.now.plus_ms(ms);
        while self.wrong.is_none() && self.step(until) {}
        self.now = until;
    }

    /// Runs until nothing changes any more, for 8 s; panics on what is wrong.
    pub fn settle(&mut self) {
        self.run_ms(8000);
        assert_eq!(self.wrong, None);
    }

    pub fn done(&self, id: RequestId) -> bool {
        matches!(self.answers.get(&id), Some(LabAnswer::Done))
    }

    pub fn role(&self, node: NodeId) -> Role {
        self.status(node).role
    }

    pub fn status(&self, node: NodeId) -> crate::Status {
        self.nodes[&node].replica.as_ref().expect("the node is up").status()
    }

    pub fn iss(&self) -> Vec<NodeId> {
        self.record.iss.iter().map(|member| member.node).collect()
    }

    pub fn serving(&self) -> Option<NodeId> {
        let primary = self.record.primary?;
        let replica = self.nodes[&primary].replica.as_ref()?;
        let status = replica.status();
        (status.role == Role::Primary && status.epoch == self.record.epoch).then_some(primary)
    }

    /// After healing all replicas hold the same content, and it is that of the committed log.
    pub fn assert_equal(&self) {
        let expected: Image = self.model.iter().map(|(at, (_, value))| (*at, *value)).collect();
        for (id, node) in &self.nodes {
            for volume in 0..VOLUMES {
                for block in 0..VOLUME_BLOCKS {
                    let at = (VolumeId(volume), block);
                    let want = expected.get(&at).copied().unwrap_or(0);
                    let have = node.store.block(at.0, at.1);
                    assert_eq!(have, want, "{id} differs at {at:?}; record {:?}", self.record);
                }
            }
        }
    }

    // The machine.

    fn at(&mut self, when: Time, due: Due) {
        self.sequence += 1;
        self.due.insert((when, self.sequence), due);
    }

    fn step(&mut self, until: Time) -> bool {
        let tick =
            self.nodes.iter().filter_map(|(id, n)| Some((n.replica.as_ref()?.next_deadline()?, *id))).min();
        let next = self.due.keys().next().map(|(when, _)| *when);
        match (next, tick) {
            (next, Some((when, node))) if when <= until && next.is_none_or(|next| when < next) => {
                self.now = self.now.max(when);
                self.event(node, Event::Tick);
                let again = self.nodes[&node].replica.as_ref().and_then(Replica::next_deadline);
                assert!(again.is_none_or(|again| again > self.now), "a deadline that does not pass");
                true
            }
            (Some(when), _) if when <= until => {
                let (_, due) = self.due.pop_first().expect("just seen");
                self.now = self.now.max(when);
                self.happen(due);
                true
            }
            _ => false,
        }
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Event(node, boot, event) => {
                if self.nodes[&node].boot == boot {
                    self.event(node, event);
                }
            }
            Due::Room(node, boot) => {
                if self.nodes[&node].boot == boot {
                    let room = self.nodes[&node].store.told_room();
                    self.event(node, room);
                }
            }
            Due::Disk(node, boot, op) => {
                if self.nodes[&node].boot == boot {
                    self.disk_done(node, op);
                }
            }
            Due::Message { from, to, connection, envelope } => {
                let alive = self.connections.get(&(from.min(to), from.max(to))) == Some(&connection);
                if alive && self.nodes[&to].connected.get(&from) == Some(&connection) {
                    self.event(to, Event::Message { from, envelope });
                }
            }
            Due::Lost { at, peer, connection } => {
                let n = self.nodes.get_mut(&at).expect("known node");
                if n.connected.get(&peer) == Some(&connection) {
                    n.connected.remove(&peer);
                    self.event(at, Event::PeerDown { node: peer });
                    self.connect();
                }
            }
            Due::Proposal(proposal) => self.decide(proposal),
            Due::Record(node, record) => {
                if !self.aside.contains(&node) {
                    self.event(node, Event::Record(record));
                }
            }
        }
    }

    fn disk_done(&mut self, node: NodeId, op: DiskOp) {
        let n = self.nodes.get_mut(&node).expect("known node");
        let event = match op {
            DiskOp::Durable(index) => {
                n.store.durable = index;
                let began = n.store.written(index).unwrap_or(self.now);
                Event::Durable { index, began, next: n.store.writing.front().map(|(_, began)| *began) }
            }
            DiskOp::Promise(epoch) => {
                n.store.promised = epoch;
                Event::Promised { epoch }
            }
            DiskOp::Cut(to) => {
                let (end, chain) = n.store.cut(to);
                Event::CutDone { end, chain }
            }
            DiskOp::Restart(at, chain) => {
                n.store.restart(at, chain);
                Event::Restarted { at }
            }
            DiskOp::Install(volume, extent, version, data, kept) => {
                n.store.install(volume, version, &data, &kept);
                Event::ExtentInstalled { volume, extent }
            }
            DiskOp::Finish(need) => {
                n.store.finish = Some(need);
                n.store.destage();
                if n.store.try_finish() { Event::CopyFinished } else { Event::Tick }
            }
        };
        let room = n.store.told_room();
        self.event(node, room);
        self.event(node, event);
    }

    /// Gives an event to a replica and carries out its effects.
    pub fn event(&mut self, node: NodeId, event: Event) {
        let now = self.now;
        let n = self.nodes.get_mut(&node).expect("known node");
        let Some(replica) = n.replica.as_mut() else { return };
        if self.trace {
            let text = format!("{event:?}");
            println!("{:>10} {node} <- {}", now.0, &text[..text.len().min(300)]);
        }
        replica.handle(now, event);
        let differ = replica.scrub_report().is_some_and(|report| report.different > 0);
        if differ && !self.rotten {
            self.wrong.get_or_insert(format!("{node} finds replicas that differ, and no disk was damaged"));
        }
        while let Some(effect) =
            self.nodes.get_mut(&node).and_then(|n| n.replica.as_mut()).and_then(Replica::poll)
        {
            self.carry_out(node, effect);
        }
    }

    fn carry_out(&mut self, node: NodeId, effect: Effect) {
        let n = self.nodes.get_mut(&node).expect("known node");
        let boot = n.boot;
        match effect {
            Effect::Send { to, envelope } => self.send(node, to, envelope),
            Effect::Append(batch) => {
                let last = batch.last();
                n.store.append(batch);
                n.store.writing.push_back((last, self.now));
                self.disk(node, DiskOp::Durable(last));
            }
            Effect::Commit(to) => self.commit(node, to),
            Effect::Promise(epoch) => self.disk(node, DiskOp::Promise(epoch)),
            Effect::Cut(to) => self.disk(node, DiskOp::Cut(to)),
            Effect::Restart { at, chain, .. } => self.disk(node, DiskOp::Restart(at, chain)),
            Effect::InstallExtent { volume, extent, version, data, kept, .. } => {
                self.disk(node, DiskOp::Install(volume, extent, version, data, kept));
            }
            Effect::SumExtent { volume, extent, at } => {
                let blocks = (0..VOLUME_BLOCKS).map(|block| n.store.block(volume, block));
                let sum = |value: Value| {
                    let mut bytes = vec![0; BLOCK_BYTES as usize];
                    bytes[..8].copy_from_slice(&value.to_le_bytes());
                    block_sum(&bytes)
                };
                let held = BlockSums { sums: blocks.map(sum).collect(), damaged: Vec::new() };
                let when = self.soon();
                self.at(when, Due::Event(node, boot, Event::ExtentSummed { volume, extent, at, held }));
            }
            Effect::FinishCopy { need } => self.disk(node, DiskOp::Finish(need)),
            Effect::LoadLog { peer, from, .. } => {
                let batches = n.store.load(from);
                let when = self.soon();
                self.at(when, Due::Event(node, boot, Event::LogLoaded { peer, from, batches }));
            }
            Effect::ListExtents { peer, newer_than } => {
                let extents = n.store.newer_than(newer_than);
                self.at(self.now, Due::Event(node, boot, Event::ExtentList { peer, extents }));
            }
            Effect::LoadExtent { peer, volume, extent } => {
                let mut data = vec![0; (VOLUME_BLOCKS * BLOCK_BYTES) as usize];
                for block in 0..VOLUME_BLOCKS {
                    let at = (block * BLOCK_BYTES) as usize;
                    data[at..at + 8].copy_from_slice(&n.store.block(volume, block).to_le_bytes());
                }
                let (version, at) = (n.store.version(volume), n.store.commit);
                let data = data.into();
                let late = if self.random.chance(30) { 400 } else { 1 };
                let when = self.now.plus_ms(late);
                self.at(
                    when,
                    Due::Event(
                        node,
                        boot,
                        Event::ExtentLoaded { peer, volume, extent, version, at, data, damaged: Vec::new() },
                    ),
                );
            }
            Effect::LoadBlocks { range } => {
                let values = n.store.read(range);
                let damaged = self.sums && values.iter().any(|value| *value > ROTTEN_MIN);
                let data = if damaged { Bytes::new() } else { blocks_of(&values) };
                let when = self.now.plus_ms(self.repair_read_ms);
                self.at(when, Due::Event(node, boot, Event::BlocksLoaded { range, data }));
            }
            Effect::Complete { id, result } => self.complete(id, result),
            Effect::Read { id, range } => self.execute_read(node, id, range),
            Effect::Propose(proposal) => {
                self.proposed.push(proposal);
                if self.aside.contains(&node) || (self.rough && self.random.chance(20)) {
                    return;
                }
                if self.hold_proposals {
                    self.held.push(proposal);
                    return;
                }
                let late = if self.rough { 1 + self.random.below(900) } else { 5 };
                self.at(self.now.plus_ms(late), Due::Proposal(proposal));
            }
            Effect::Demoted => {
                self.demoted.insert(node);
            }
            Effect::Mended { volume, extent, mended, .. } => {
                if mended == Mended::Nowhere && !self.rotten {
                    self.fault(format!("{node} takes {volume} for damaged, and no disk was damaged"));
                }
                self.mended.push((node, volume, extent, mended));
            }
            Effect::RoleChanged(_) | Effect::Paused { .. } => {}
        }
    }

    fn soon(&mut self) -> Time {
        Time(self.now.0 + 200 + self.random.below(2000))
    }

    fn disk(&mut self, node: NodeId, op: DiskOp) {
        let n = self.nodes.get_mut(&node).expect("known node");
        n.disk_free = Time(n.disk_free.max(self.now).0 + n.disk_ms * 1000);
        let (when, boot) = (n.disk_free, n.boot);
        self.at(when, Due::Disk(node, boot, op));
    }

    fn send(&mut self, from: NodeId, to: NodeId, envelope: Envelope) {
        let Some(connection) = self.nodes[&from].connected.get(&to).copied() else { return };
        let earliest = self.soon();
        let last = self.last_arrival.entry((from, to)).or_default();
        let when = earliest.max(*last);
        *last = when;
        self.at(when, Due::Message { from, to, connection, envelope });
    }

    fn connect(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        for a in &ids {
            for b in ids.iter().filter(|b| *b > a) {
                let pair = (*a, *b);
                let up = [a, b].iter().all(|n| self.nodes[n].replica.is_some());
                let free =
                    !self.nodes[a].connected.contains_key(b) && !self.nodes[b].connected.contains_key(a);
                if !up || !free || self.cuts.contains(&pair) {
                    continue;
                }
                self.sequence += 1;
                let connection = self.sequence;
                self.connections.insert(pair, connection);
                for (x, y) in [(*a, *b), (*b, *a)] {
                    self.nodes.get_mut(&x).expect("known node").connected.insert(y, connection);
                }
                self.event(*a, Event::PeerUp { node: *b });
                self.event(*b, Event::PeerUp { node: *a });
            }
        }
    }

    /// From now on nothing arrives; both ends notice after a while.
    fn drop_connection(&mut self, a: NodeId, b: NodeId) {
        let pair = (a.min(b), a.max(b));
        let Some(connection) = self.connections.remove(&pair) else { return };
        for (at, peer) in [(a, b), (b, a)] {
            let late = 1 + self.random.below(if self.rough { 600 } else { 50 });
            self.at(self.now.plus_ms(late), Due::Lost { at, peer, connection });
        }
    }

    // The control plane.

    pub fn publish(&mut self) {
        self.check_members();
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            if self.aside.contains(&node) || (self.rough && self.random.chance(30)) {
                continue;
            }
            let late = if self.rough { 1 + self.random.below(400) } else { 2 };
            let record = self.record.clone();
            self.at(self.now.plus_ms(late), Due::Record(node, Box::new(record)));
        }
    }

    pub fn let_go(&mut self) {
        for proposal in std::mem::take(&mut self.held) {
            self.decide(proposal);
        }
    }

    fn decide(&mut self, proposal: Proposal) {
        let Proposal { version, epoch, change } = proposal;
        if (version, epoch) != (self.record.version, self.record.epoch) {
            return;
        }
        self.record.version = version.next();
        match change {
            ProposedChange::Iss(IssChange::Shrink { remove, .. }) => {
                self.record.iss.retain(|member| *member != remove)
            }
            ProposedChange::Iss(IssChange::Grow { add }) => {
                if self.record.replicas.contains(&add) && !self.record.iss.contains(&add) {
                    self.record.iss.push(add);
                    self.record.iss.sort();
                }
            }
            ProposedChange::Iss(IssChange::Trust { member }) => {
                self.record.unverified.retain(|other| *other != member)
            }
            ProposedChange::Iss(IssChange::FailoverReady { member }) => {
                self.record.failover_ready.push(member)
            }
            ProposedChange::Iss(IssChange::NotFailoverReady { member }) => {
                self.record.failover_ready.retain(|other| *other != member)
            }
            ProposedChange::Iss(IssChange::Memory { member, instance }) => {
                self.record.instances.remove(&member.node);
                self.record.instances.extend(instance.map(|instance| (member.node, instance)));
            }
            ProposedChange::Iss(IssChange::Part { member, .. }) => {
                self.record.unverified.retain(|other| *other != member);
                self.record.replicas.retain(|other| *other != member);
            }
            ProposedChange::StepDown { reason } => {
                let old = self.record.primary.take();
                if reason != StepDownReason::Restarted && self.record.iss.len() > 1 {
                    self.record.iss.retain(|member| Some(member.node) != old);
                }
            }
        }
        assert!(!self.record.iss.is_empty(), "R11");
        self.forget_instances();
        self.publish();
    }

    /// Removes the instances of members that are not in sync any more.
    fn forget_instances(&mut self) {
        let iss = &self.record.iss;
        self.record.instances.retain(|node, _| iss.iter().any(|member| member.node == *node));
    }

    // Invariants.

    fn fault(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    /// S6: committed entries agree on all replicas.
    fn commit(&mut self, node: NodeId, to: Index) {
        let n = self.nodes.get_mut(&node).expect("known node");
        let from = n.store.commit;
        if to > n.store.durable {
            return self.fault(format!("{node} commits {to} before it is durable"));
        }
        let batches: Vec<Arc<Batch>> = n.store.journal.iter().filter(|b| b.last() > from).cloned().collect();
        let whole = n.store.data == DataState::Consistent;
        let mut scrubbed = Vec::new();
        for (index, entry) in batches.iter().flat_map(|b| (b.first.0..).map(Index).zip(&b.entries)) {
            if entry.kind == EntryKind::Scrub && index <= to {
                let value = |block| n.store.block_at(entry.range.volume, block, index);
                let values = (entry.range.first_block()..entry.range.end_block()).map(value);
                let values: Vec<_> = if whole { values.collect() } else { Vec::new() };
                let damaged = (0..).zip(&values).filter(|(_, value)| self.sums && **value > ROTTEN_MIN);
                let damaged = damaged.map(|(block, _)| block).collect();
                let sums = values.iter().map(|value| block_sum(&blocks_of(&[*value]))).collect();
                scrubbed.push(Event::Scrubbed { at: index, held: BlockSums { sums, damaged } });
            }
        }
        n.store.commit(to);
        let finished = n.store.try_finish();
        let boot = n.boot;
        for event in scrubbed {
            let late = if self.random.chance(20) { 300 } else { 1 };
            let late = self.scrub_ms.get(&node).copied().unwrap_or(late);
            self.at(self.now.plus_ms(late), Due::Event(node, boot, event));
        }
        self.at(self.now, Due::Room(node, boot));
        if finished {
            self.at(self.now, Due::Event(node, boot, Event::CopyFinished));
        }
        for batch in batches {
            for (place, entry) in batch.entries.iter().enumerate() {
                let index = Index(batch.first.0 + place as u64);
                if index > to {
                    return;
                }
                let identity = (batch.epoch, batch.chain, batch.end());
                let known = *self.truth.entry(index).or_insert(identity);
                if known != identity {
                    return self
                        .fault(format!("{node} commits another {index}: {identity:?}, was {known:?}"));
                }
                if !entry.kind.changes_blocks() {
                    continue;
                }
                for (nth, block) in (entry.range.first_block()..entry.range.end_block()).enumerate() {
                    let at = nth * BLOCK_BYTES as usize;
                    let value = if entry.payload.is_empty() {
                        0
                    } else {
                        super::store::value_of(&entry.payload[at..])
                    };
                    let key = (entry.range.volume, block);
                    let at = self.written.entry((key.0, key.1, value)).or_default();
                    *at = index.max(*at);
                    let newest = self.model.entry(key).or_default();
                    if newest.0 < index {
                        *newest = (index, value);
                    }
                }
            }
        }
    }

    fn complete(&mut self, id: RequestId, result: Result<(), RequestError>) {
        let Some(asked) = self.requests.remove(&id) else { return };
        let range = match (&asked.op, result) {
            (Op::Write { range, .. } | Op::Discard { range } | Op::WriteZeroes { range }, Ok(())) => *range,
            (_, result) => {
                self.answers.insert(id, result.map_or_else(LabAnswer::Failed, |()| LabAnswer::Done));
                return;
            }
        };
        self.answers.insert(id, LabAnswer::Done);
        self.acks += 1;
        let value = if matches!(asked.op, Op::Write { .. }) { id.0 } else { 0 };
        let key = (range.volume, range.first_block());
        let Some(index) = self.written.get(&(key.0, key.1, value)).copied() else {
            if self.record.policy.mode() == Mode::B {
                self.from_memory += 1;
                return;
            }
            return self.fault(format!("request {id:?} is acknowledged and not committed"));
        };
        self.acknowledged = self.acknowledged.max(index);
        for block in range.first_block()..range.end_block() {
            let floor = self.floor.entry((range.volume, block)).or_default();
            *floor = index.max(*floor);
        }
        self.check_members();
        self.check_copies(asked.node);
    }

    /// Checks that the record names as many members as are wanted, if the primary knows the record.
    fn check_copies(&mut self, primary: NodeId) {
        let replica = self.nodes[&primary].replica.as_ref();
        let knows = replica.is_some_and(|replica| replica.record_version() == self.record.version);
        let (recorded, wanted) = (self.record.iss.len(), self.record.copies_wanted());
        if knows && recorded < wanted {
            self.fault(format!("acknowledged with {recorded} copies, and {wanted} are wanted"));
        }
    }

    /// S1, S8: every recorded member of the ISS holds all that was acknowledged, and is whole.
    fn check_members(&mut self) {
        let Some((epoch, chain, position)) = self.truth.get(&self.acknowledged).copied() else { return };
        debug_assert_eq!(epoch, position.epoch);
        for member in self.record.iss.clone() {
            let n = &self.nodes[&member.node];
            let whole = n.store.data == DataState::Consistent && n.incarnation == member.incarnation;
            if !whole || !n.store.holds(position, chain) {
                self.fault(format!(
                    "{} is recorded and lacks acknowledged entries up to {position} (whole: {whole})",
                    member.node
                ));
            }
        }
    }

    /// A read returns committed content only. On the primary of the newest epoch it returns nothing
    /// older than the content that was acknowledged when it was asked. (On others freshness is the
    /// lease's task, R10.)
    fn execute_read(&mut self, node: NodeId, id: RequestId, range: Range) {
        let Some(asked) = self.requests.remove(&id) else { return };
        let content = self.nodes[&node].store.read(range);
        let fresh = self.record.primary == Some(node)
            && self.nodes[&node].replica.as_ref().is_some_and(|r| r.status().epoch == self.record.epoch);
        for (nth, value) in content.iter().enumerate() {
            let block = range.first_block() + nth as u64;
            let index = self.written.get(&(range.volume, block, *value)).copied();
            if index.is_none() && *value != 0 {
                self.fault(format!("a read returned {value}, which was never committed"));
            }
            if fresh && index.unwrap_or_default() < asked.floor[nth] {
                self.fault(format!("{node} read {value} after something newer was acknowledged"));
            }
        }
        self.answers.insert(id, LabAnswer::Content(content));
    }
}

fn blocks_of(values: &[Value]) -> Bytes {
    let mut data = vec![0; values.len() * BLOCK_BYTES as usize];
    for (value, block) in values.iter().zip(data.chunks_mut(BLOCK_BYTES as usize)) {
        block[..8].copy_from_slice(&value.to_le_bytes());
    }
    data.into()
}

pub fn whole(volume: u16) -> Range {
    Range { volume: VolumeId(volume), offset: 0, len: VOLUME_BLOCKS * BLOCK_BYTES }
}
