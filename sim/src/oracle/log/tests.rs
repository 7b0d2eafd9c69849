//! Each check fires on the smallest thing that is wrong, and a lawful cluster is never accused.

use super::*;
use crate::random::Random;
use bytes::Bytes;
use mainstay_codec::NewEntry;
use mainstay_types::{ConfigVersion, Member, Range, VolumeId};

mod fork;
mod mode_b;

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const C: NodeId = NodeId(3);
const RESOURCE: ResourceId = ResourceId(7);
/// The incarnation of every disk that was not replaced.
const D: Incarnation = Incarnation(1);

fn id(result: Check) -> &'static str {
    result.expect_err("this is wrong").id
}

fn member(node: NodeId) -> Member {
    Member { node, incarnation: D }
}

fn record(version: u64, epoch: u64, primary: NodeId, iss: &[NodeId]) -> ResourceRecord {
    ResourceRecord {
        resource: RESOURCE,
        version: ConfigVersion(version),
        epoch: Epoch(epoch),
        primary: Some(primary),
        iss: iss.iter().copied().map(member).collect(),
        replicas: [A, B, C].map(member).to_vec(),
        ..ResourceRecord::new(RESOURCE)
    }
}

/// A batch that follows `before` and writes each value to its block; 0 discards. No writes: an
/// epoch start.
fn batch(before: Option<&Batch>, epoch: u64, writes: &[(u64, u64)]) -> Arc<Batch> {
    let (first, chain) = before.map_or((Index(1), Chain(0)), |batch| (batch.last().next(), batch.chain));
    let mut entries: Vec<NewEntry> = writes
        .iter()
        .map(|(block, value)| {
            let range = Range { volume: VolumeId(0), offset: block * BLOCK_BYTES, len: BLOCK_BYTES };
            let mut payload = vec![0; BLOCK_BYTES as usize];
            payload[..8].copy_from_slice(&value.to_le_bytes());
            let (kind, payload) = if *value == 0 {
                (EntryKind::Discard, Bytes::new())
            } else {
                (EntryKind::Write, payload.into())
            };
            NewEntry { kind, range, payload, session: 0, request: 0 }
        })
        .collect();
    if entries.is_empty() {
        let range = Range { volume: VolumeId(0), offset: 0, len: 0 };
        let kind = EntryKind::EpochStart;
        entries.push(NewEntry { kind, range, payload: Bytes::new(), session: 0, request: 0 });
    }
    Arc::new(Batch::seal(RESOURCE, Epoch(epoch), first, chain, Index(0), entries))
}

fn state(batch: Option<&Batch>, commit: u64) -> LogState {
    LogState {
        data: DataState::Consistent,
        end: batch.map_or(Position::default(), Batch::end),
        chain: batch.map_or(Chain(0), |batch| batch.chain),
        commit: Index(commit),
        base: Index(commit),
        epochs: Vec::new(),
    }
}

impl LogOracle {
    /// The epoch is promised before anything is made in it.
    fn promises(&mut self, node: NodeId, epoch: Epoch) {
        if self.replica(node, D).promised < epoch {
            self.promised(node, D, epoch).expect("higher");
        }
    }

    fn holds(&mut self, node: NodeId, batch: &Arc<Batch>) {
        self.promises(node, batch.epoch);
        self.appended(node, D, batch).expect("lawful");
        self.durable(node, D, batch.last()).expect("lawful");
    }
}

/// A, B and C hold an epoch start, (0: 11, 1: 12) and (0: 13); A and B have committed all, and it
/// is acknowledged.
fn running() -> (LogOracle, Vec<Arc<Batch>>) {
    let mut oracle = LogOracle::new(RESOURCE, &[4, 300]);
    for node in [A, B, C] {
        oracle.recovered(node, D, Epoch(0), &state(None, 0)).expect("empty");
        oracle.promised(node, D, Epoch(1)).expect("the first");
    }
    oracle.record(&record(1, 1, A, &[A, B, C])).expect("the first");
    let start = batch(None, 1, &[]);
    let one = batch(Some(&start), 1, &[(0, 11), (1, 12)]);
    let two = batch(Some(&one), 1, &[(0, 13)]);
    let batches = vec![start, one, two];
    for batch in &batches {
        for node in [A, B, C] {
            oracle.holds(node, batch);
        }
    }
    oracle.committed(A, D, Index(4)).expect("durable everywhere");
    oracle.committed(B, D, Index(3)).expect("durable everywhere");
    oracle.acknowledged(A, Epoch(1), false, Index(4)).expect("committed");
    (oracle, batches)
}

#[test]
fn the_model_is_the_committed_log() {
    let (oracle, _) = running();
    assert_eq!((oracle.highest_acked(), oracle.highest_committed()), (Index(4), Index(4)));
    let v = VolumeId(0);
    assert_eq!(oracle.content(Index(3)), BTreeMap::from([((v, 0), 11), ((v, 1), 12)]));
    assert_eq!(oracle.content(Index(4)), BTreeMap::from([((v, 0), 13), ((v, 1), 12)]));
    assert_eq!(oracle.content(Index(1)), BTreeMap::new());
    let at_three = |_: VolumeId, block: u64| [11, 12].get(block as usize).copied().or(Some(0));
    let at_three_in_v0 = &mut |v: VolumeId, block| if v.0 == 0 { at_three(v, block) } else { Some(0) };
    oracle.check_replica(B, D, Index(3), true, at_three_in_v0).expect("it is so");
    assert_eq!(id(oracle.check_replica(B, D, Index(4), true, at_three_in_v0)), "S4");
    assert_eq!(id(oracle.check_replica(B, D, Index(5), false, at_three_in_v0)), "S6");
    assert_eq!(id(oracle.check_replica(B, D, Index(3), true, &mut |_, _| Some(99))), "S16");
}

#[test]
fn versions_are_not_too_old() {
    let (oracle, _) = running();
    oracle.check_versions(A, D, Index(4), &mut |v, _| Index(if v.0 == 0 { 4 } else { 0 })).expect("exact");
    oracle.check_versions(A, D, Index(3), &mut |_, _| Index(9)).expect("too new is allowed");
    assert_eq!(id(oracle.check_versions(A, D, Index(4), &mut |_, _| Index(3))), "S12");
}

#[test]
fn one_node_makes_the_entries_of_an_epoch() {
    let (mut oracle, batches) = running();
    let last = batches.last().expect("three");
    assert_eq!(id(oracle.appended(B, D, &batch(Some(last), 1, &[(2, 14)]))), "S7");
    oracle.appended(A, D, &batch(Some(last), 1, &[(2, 15)])).expect("its epoch");
    // The same position twice, after a restart for example.
    assert_eq!(id(oracle.sequenced(A, D, &batch(Some(last), 1, &[(2, 16)]))), "S7");
    // An epoch that the control plane does not know.
    assert_eq!(id(oracle.sequenced(A, D, &batch(Some(last), 2, &[]))), "S7");
    // An epoch that is another's.
    oracle.record(&record(2, 2, B, &[B, C])).expect("by promotion");
    assert_eq!(id(oracle.sequenced(A, D, &batch(Some(last), 2, &[]))), "S7");
    oracle.promises(B, Epoch(2));
    oracle.appended(B, D, &batch(Some(last), 2, &[])).expect("named");
    // The same holds when the oracle has not heard the record of the control plane.
    let mut oracle = LogOracle::new(RESOURCE, &[4]);
    let start = batch(None, 1, &[]);
    oracle.promises(A, Epoch(1));
    oracle.sequenced(A, D, &start).expect("the first");
    oracle.promises(B, Epoch(1));
    assert_eq!(id(oracle.sequenced(B, D, &batch(Some(&start), 1, &[(0, 1)]))), "S7");
}

#[test]
fn logs_are_continued() {
    let (mut oracle, batches) = running();
    assert_eq!(id(oracle.appended(B, D, &batches[1])), "S4");
    let next = batch(batches.last().map(|batch| &**batch), 1, &[(2, 14)]);
    let after = batch(Some(&next), 1, &[(2, 15)]);
    oracle.appended(A, D, &next).expect("next");
    oracle.appended(A, D, &after).expect("next");
    assert_eq!(id(oracle.appended(B, D, &after)), "S4");
    assert_eq!(id(oracle.durable(B, D, after.last())), "S4");
    assert_eq!(id(oracle.committed(A, D, after.last())), "S4");
}

#[test]
fn entries_stay_within_their_volume() {
    let (mut oracle, batches) = running();
    let next = batch(batches.last().map(|batch| &**batch), 1, &[(4, 14)]);
    assert_eq!(id(oracle.appended(A, D, &next)), "S16");
}

#[test]
fn committed_entries_agree() {
    let (mut oracle, batches) = running();
    // C was cut off with a tail of its own, which no other replica has.
    oracle.damaged(C, D, true);
    oracle.cut(C, D, batches[1].end()).expect("it lost them");
    oracle.cut_done(C, D, batches[1].end(), batches[1].chain).expect("there");
    oracle.record(&record(2, 2, C, &[C])).expect("promoted");
    let other = batch(Some(&batches[1]), 2, &[(0, 99)]);
    oracle.holds(C, &other);
    assert_eq!(id(oracle.committed(C, D, Index(4))), "S6");
}

#[test]
fn commits_do_not_go_back_nor_leave_holes() {
    let (mut oracle, batches) = running();
    assert_eq!(id(oracle.committed(A, D, Index(3))), "S6");
    assert_eq!(id(oracle.committed(NodeId(9), D, Index(1))), "S6");
    let mut oracle = LogOracle::new(RESOURCE, &[4]);
    oracle.holds(A, &batches[0]);
    oracle.holds(A, &batches[1]);
    oracle
        .recovered(A, D, Epoch(1), &state(Some(&batches[1]), 1))
        .map_or_else(|wrong| assert_eq!(wrong.id, "S6"), |()| panic!("nothing was committed"));
}

#[test]
fn a_cut_takes_nothing_acknowledged_from_a_member() {
    let (mut oracle, batches) = running();
    let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
    oracle.holds(A, &tail);
    oracle.cut(A, D, batches[2].end()).expect("only the tail");
    oracle.cut_done(A, D, batches[2].end(), batches[2].chain).expect("there");
    assert_eq!(id(oracle.cut_done(A, D, tail.end(), tail.chain)), "S4");
    assert_eq!(id(oracle.cut(A, D, batches[1].end())), "S8");
    oracle.record(&record(2, 2, B, &[B])).expect("without A and C");
    oracle.cut(C, D, batches[0].end()).expect("it is to be copied to");
}

#[test]
fn a_crash_leaves_the_durable_entries_and_a_part_of_the_rest() {
    let (mut oracle, batches) = running();
    let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
    let more = batch(Some(&tail), 1, &[(2, 15)]);
    oracle.appended(A, D, &tail).expect("next");
    oracle.appended(A, D, &more).expect("next");
    oracle.recovered(A, D, Epoch(1), &state(Some(&tail), 4)).expect("half of what was written");
    assert_eq!(id(oracle.recovered(A, D, Epoch(1), &state(Some(&more), 4))), "S4");
    assert_eq!(id(oracle.recovered(A, D, Epoch(1), &state(Some(&batches[2]), 4))), "S19");
    assert_eq!(id(oracle.recovered(B, D, Epoch(0), &state(Some(&batches[2]), 4))), "S19");
    assert_eq!(id(oracle.recovered(B, D, Epoch(1), &state(Some(&batches[2]), 5))), "S6");
    let strange = batch(Some(&batches[1]), 1, &[(0, 77)]);
    assert_eq!(id(oracle.recovered(B, D, Epoch(1), &state(Some(&strange), 3))), "S4");
    // Of a disk that lied nothing is demanded.
    oracle.damaged(B, D, true);
    oracle.recovered(B, D, Epoch(0), &state(Some(&batches[0]), 0)).expect("it lied");
}

#[test]
fn a_cut_that_a_crash_interrupts_has_happened_or_not() {
    for cut in [true, false] {
        let (mut oracle, batches) = running();
        let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
        oracle.holds(A, &tail);
        oracle.holds(B, &tail);
        oracle.cut(B, D, batches[2].end()).expect("only the tail");
        let left = if cut { &batches[2] } else { &tail };
        oracle.recovered(B, D, Epoch(1), &state(Some(left), 4)).expect("either");
    }
}

#[test]
fn batches_that_wait_for_room_may_be_dropped_and_durable_ones_may_not() {
    let (mut oracle, batches) = running();
    let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
    oracle.appended(A, D, &tail).expect("next");
    oracle.dropped(A, D, batches[2].end(), batches[2].chain).expect("never durable");
    assert_eq!(id(oracle.dropped(A, D, batches[1].end(), batches[1].chain)), "S19");
    assert_eq!(id(oracle.dropped(A, D, tail.end(), tail.chain)), "S4");
}

#[test]
fn the_reserve_is_used_by_epoch_starts_only() {
    let (mut oracle, batches) = running();
    assert_eq!(id(oracle.reserve_used(A, D, 8192)), "R18");
    let start = batch(batches.last().map(AsRef::as_ref), 2, &[]);
    oracle.record(&record(2, 2, B, &[B, C])).expect("a promotion");
    oracle.holds(B, &start);
    oracle.reserve_used(B, D, 8192).expect("its log ends with an epoch start");
    let end = &batches[2];
    oracle.cut(B, D, end.end()).expect("not acknowledged");
    oracle.cut_done(B, D, end.end(), end.chain).expect("where it was");
    assert_eq!(id(oracle.reserve_used(B, D, 8192)), "R18");
}

#[test]
fn promises_do_not_go_back() {
    let (mut oracle, _) = running();
    oracle.promised(B, D, Epoch(3)).expect("higher");
    assert_eq!(id(oracle.promised(B, D, Epoch(2))), "S19");
}

#[test]
fn acknowledgements_are_committed_and_of_the_newest_epoch() {
    let (mut oracle, batches) = running();
    assert_eq!(id(oracle.acknowledged(A, Epoch(1), false, Index(5))), "S1");
    oracle.record(&record(2, 2, B, &[B, C])).expect("promoted");
    let start = batch(Some(&batches[2]), 2, &[]);
    oracle.holds(B, &start);
    oracle.holds(C, &start);
    oracle.committed(B, D, Index(5)).expect("durable on both");
    oracle.acknowledged(A, Epoch(1), false, Index(4)).expect("nothing newer yet");
    oracle.acknowledged_now(B, D, Epoch(2)).expect("committed");
    assert_eq!(oracle.highest_acked(), Index(5));
    assert_eq!(id(oracle.acknowledged(A, Epoch(1), false, Index(4))), "S9");
}

#[test]
fn members_hold_acknowledged_entries() {
    // One that lags.
    let (mut oracle, batches) = running();
    let next = batch(Some(&batches[2]), 1, &[(2, 14)]);
    oracle.holds(A, &next);
    oracle.holds(B, &next);
    oracle.committed(A, D, Index(5)).expect("durable here");
    assert_eq!(id(oracle.acknowledged(A, Epoch(1), false, Index(5))), "S8");
    // One that lags is recorded.
    let (mut oracle, _) = running();
    oracle.record(&record(2, 1, A, &[A, B])).expect("without C");
    oracle.holds(A, &next);
    oracle.holds(B, &next);
    oracle.committed(A, D, Index(5)).expect("durable on both");
    oracle.acknowledged(A, Epoch(1), false, Index(5)).expect("both hold it");
    assert_eq!(id(oracle.record(&record(3, 1, A, &[A, B, C]))), "S8");
    // One with another entry there.
    let (mut oracle, _) = running();
    let other = batch(Some(&batches[2]), 2, &[(2, 99)]);
    oracle.record(&record(2, 1, A, &[A, B])).expect("without C");
    oracle.holds(A, &next);
    oracle.holds(B, &next);
    oracle.committed(A, D, Index(5)).expect("durable on both");
    oracle.acknowledged(A, Epoch(1), false, Index(5)).expect("both hold it");
    oracle.record(&record(3, 2, B, &[B])).expect("promoted");
    oracle.record = None;
    oracle.holds(C, &other);
    assert_eq!(id(oracle.record(&record(4, 2, B, &[B, C]))), "S8");
    // One that is being copied to, one that does not exist.
    let (mut oracle, _) = running();
    oracle.restart(C, D, batches[2].end(), batches[2].chain).expect("committed");
    assert_eq!(id(oracle.check_members()), "S8");
    let (mut oracle, _) = running();
    let mut strange = record(2, 1, A, &[A, B, C]);
    strange.iss[2].incarnation = Incarnation(2);
    strange.replicas[2].incarnation = Incarnation(2);
    assert_eq!(id(oracle.record(&strange)), "S8");
    // A disk that is gone counts until the record says so, and one that lied is the failure that is
    // counted.
    let (mut oracle, _) = running();
    oracle.wiped(C);
    oracle.holds(A, &next);
    oracle.holds(B, &next);
    oracle.committed(A, D, Index(5)).expect("durable here");
    assert_eq!(id(oracle.acknowledged(A, Epoch(1), false, Index(5))), "S8");
    // A new disk does not stand for the old one.
    let (mut oracle, _) = running();
    oracle.recovered(C, Incarnation(2), Epoch(0), &state(None, 0)).expect("empty");
    oracle.holds(A, &next);
    oracle.holds(B, &next);
    oracle.committed(A, D, Index(5)).expect("durable here");
    assert_eq!(id(oracle.acknowledged(A, Epoch(1), false, Index(5))), "S8");
}

#[test]
fn the_record_moves_lawfully() {
    let (oracle, _) = running();
    let refuses = |record: ResourceRecord| {
        let mut again = running().0;
        id(again.record(&record))
    };
    drop(oracle);
    assert_eq!(refuses(record(1, 1, A, &[A, B])), "S19");
    assert_eq!(refuses(record(0, 1, A, &[A, B, C])), "S19");
    assert_eq!(refuses(record(2, 0, A, &[A, B, C])), "S19");
    assert_eq!(refuses(record(2, 3, B, &[B, C])), "S19");
    assert_eq!(refuses(record(2, 1, B, &[B, C])), "S7");
    assert_eq!(refuses(record(2, 2, B, &[C])), "S8");
    assert_eq!(refuses(record(2, 1, A, &[])), "S8");
    let mut none = record(2, 1, A, &[A, B, C]);
    none.replicas.pop();
    assert_eq!(refuses(none), "S8");
    let (mut oracle, _) = running();
    oracle.record(&record(2, 1, A, &[A, B])).expect("C leaves");
    assert_eq!(id(oracle.record(&record(3, 2, C, &[B, C]))), "S8");
}

#[test]
fn a_copy_begins_at_a_committed_position() {
    let (mut oracle, batches) = running();
    oracle.record(&record(2, 1, A, &[A, B])).expect("C leaves");
    assert_eq!(id(oracle.restart(C, D, batches[2].end(), Chain(5))), "S11");
    assert_eq!(id(oracle.restarted(C, D, batches[2].end())), "S11");
    let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
    oracle.holds(A, &tail);
    assert_eq!(id(oracle.restart(C, D, tail.end(), tail.chain)), "S11");
    oracle.restart(C, D, batches[2].end(), batches[2].chain).expect("committed");
    oracle.restarted(C, D, batches[2].end()).expect("asked for");
    oracle.check_replica(C, D, Index(4), true, &mut |_, _| Some(99)).expect("nothing is claimed yet");
    oracle.holds(C, &tail);
    let mut half = state(Some(&tail), 4);
    half.data = DataState::Inconsistent;
    oracle.recovered(C, D, Epoch(1), &half).expect("a crash on the way");
    oracle.copy_finished(C, D);
    assert_eq!(id(oracle.check_replica(C, D, Index(4), false, &mut |_, _| Some(0))), "S4");
}

#[test]
fn a_restart_that_a_crash_interrupts_has_happened_or_not() {
    for done in [true, false] {
        let (mut oracle, batches) = running();
        oracle.record(&record(2, 1, A, &[A, B])).expect("C leaves");
        let tail = batch(Some(&batches[2]), 1, &[(2, 14)]);
        oracle.holds(A, &tail);
        oracle.holds(B, &tail);
        oracle.committed(A, D, Index(5)).expect("durable on both");
        oracle.restart(C, D, tail.end(), tail.chain).expect("committed");
        let mut after = if done { state(Some(&tail), 5) } else { state(Some(&batches[2]), 4) };
        after.data = if done { DataState::Inconsistent } else { DataState::Consistent };
        oracle.recovered(C, D, Epoch(1), &after).expect("either");
    }
}

#[test]
fn a_second_copy_that_a_crash_interrupts_leaves_the_first_or_itself() {
    for done in [true, false] {
        let (mut oracle, batches) = running();
        oracle.record(&record(2, 1, A, &[A, B])).expect("C leaves");
        oracle.restart(C, D, batches[1].end(), batches[1].chain).expect("committed");
        oracle.restarted(C, D, batches[1].end()).expect("asked for");
        oracle.restart(C, D, batches[2].end(), batches[2].chain).expect("committed");
        let mut after = state(Some(&batches[if done { 2 } else { 1 }]), if done { 4 } else { 3 });
        after.data = DataState::Inconsistent;
        oracle.recovered(C, D, Epoch(1), &after).expect("either");
        // Where the log goes on tells which it was.
        assert_eq!(oracle.appended(C, D, &batches[2]).is_ok(), !done);
    }
}

/// A lawful cluster in a few lines: every replica is a list of batches.
struct Cluster {
    oracle: LogOracle,
    random: Random,
    record: ResourceRecord,
    logs: BTreeMap<NodeId, Vec<Arc<Batch>>>,
    durable: BTreeMap<NodeId, usize>,
    commit: BTreeMap<NodeId, usize>,
    acknowledged: usize,
    value: u64,
    /// Fault that the cluster makes, if any.
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    CommitAlone,
    PromoteAnybody,
    GrowEarly,
    LoseDurable,
    NoCut,
}

impl Cluster {
    fn new(seed: u64, fault: Option<Fault>) -> Self {
        let mut cluster = Self {
            oracle: LogOracle::new(RESOURCE, &[8]),
            random: Random::new(seed),
            record: record(1, 1, A, &[A, B, C]),
            logs: [A, B, C].map(|node| (node, Vec::new())).into(),
            durable: [A, B, C].map(|node| (node, 0)).into(),
            commit: [A, B, C].map(|node| (node, 0)).into(),
            acknowledged: 0,
            value: 0,
            fault,
        };
        for node in [A, B, C] {
            cluster.oracle.recovered(node, D, Epoch(0), &state(None, 0)).expect("empty");
        }
        let record = cluster.record.clone();
        cluster.oracle.record(&record).expect("the first");
        cluster.sequence(true).expect("the first");
        cluster
    }

    fn primary(&self) -> NodeId {
        self.record.primary.expect("always one")
    }

    fn is(&mut self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn publish(&mut self) -> Check {
        self.record.version = self.record.version.next();
        self.oracle.record(&self.record)
    }

    fn sequence(&mut self, start: bool) -> Check {
        let primary = self.primary();
        let log = self.logs.get_mut(&primary).expect("known");
        let mut writes = Vec::new();
        for _ in 0..if start { 0 } else { 1 + self.random.below(3) } {
            self.value += 1;
            let value = if self.random.permille(100) { 0 } else { self.value };
            writes.push((self.random.below(8), value));
        }
        let made = batch(log.last().map(|batch| &**batch), self.record.epoch.0, &writes);
        log.push(made.clone());
        self.oracle.promises(primary, made.epoch);
        self.oracle.appended(primary, D, &made)
    }

    /// Cuts what the primary does not hold and appends one batch more.
    fn feed(&mut self, node: NodeId) -> Check {
        let primary = self.primary();
        let source = self.logs[&primary].clone();
        let log = self.logs.get_mut(&node).expect("known");
        let common = source.iter().zip(log.iter()).take_while(|(a, b)| a.chain == b.chain).count();
        if common < log.len() {
            if self.fault == Some(Fault::NoCut) {
                return Ok(());
            }
            let to = common.checked_sub(1).map(|at| log[at].clone());
            let to = state(to.as_deref(), 0);
            self.oracle.cut(node, D, to.end)?;
            log.truncate(common);
            let durable = self.durable.get_mut(&node).expect("known");
            *durable = common.min(*durable);
            return self.oracle.cut_done(node, D, to.end, to.chain);
        }
        let Some(next) = source.get(common) else { return Ok(()) };
        log.push(next.clone());
        self.oracle.appended(node, D, next)
    }

    fn flush(&mut self, node: NodeId) -> Check {
        let Some(last) = self.logs[&node].last() else { return Ok(()) };
        self.durable.insert(node, self.logs[&node].len());
        self.oracle.durable(node, D, last.last())
    }

    fn advance(&mut self) -> Check {
        let primary = self.primary();
        let source = &self.logs[&primary];
        let mut to = self.durable[&primary];
        for member in self.record.iss.iter().filter(|_| self.fault != Some(Fault::CommitAlone)) {
            let log = &self.logs[&member.node];
            let same = source.iter().zip(log).take_while(|(a, b)| a.chain == b.chain).count();
            let whole = same == log.len() || self.fault == Some(Fault::NoCut);
            to = to.min(if whole { self.durable[&member.node] } else { 0 });
        }
        // R6: nothing before the epoch start is committed.
        if to <= self.commit[&primary] || to > source.len() || source[to - 1].epoch != self.record.epoch {
            return Ok(());
        }
        let index = source[to - 1].last();
        self.commit.insert(primary, to);
        self.acknowledged = self.acknowledged.max(to);
        self.oracle.committed(primary, D, index)?;
        self.oracle.acknowledged_now(primary, D, self.record.epoch)
    }

    fn crash(&mut self, node: NodeId) -> Check {
        let lose = self.is(Fault::LoseDurable);
        let log = self.logs.get_mut(&node).expect("known");
        let least = if lose { self.durable[&node].saturating_sub(1) } else { self.durable[&node] };
        let keep = least as u64 + self.random.below((log.len() - least) as u64 + 1);
        log.truncate(keep as usize);
        self.durable.insert(node, keep as usize);
        let commit = self.commit[&node].min(keep as usize);
        self.commit.insert(node, commit);
        let last = log.last().map(|batch| &**batch);
        let committed = commit.checked_sub(1).map_or(0, |at| log[at].last().0);
        self.oracle.recovered(node, D, self.record.epoch, &state(last, committed))?;
        if node == self.primary() { self.promote() } else { Ok(()) }
    }

    fn promote(&mut self) -> Check {
        let anybody = self.is(Fault::PromoteAnybody);
        let candidates: Vec<NodeId> =
            if anybody { vec![A, B, C] } else { self.record.iss.iter().map(|member| member.node).collect() };
        let chosen = *self.random.pick(&candidates).expect("never empty");
        if anybody && !self.record.iss.contains(&member(chosen)) {
            self.record.iss = vec![member(chosen)];
        }
        self.record.epoch = self.record.epoch.next();
        self.record.primary = Some(chosen);
        self.publish()?;
        self.flush(chosen)?;
        self.sequence(true)
    }

    fn step(&mut self) -> Check {
        let node = *self.random.pick(&[A, B, C]).expect("three");
        let primary = self.primary();
        match self.random.below(100) {
            0..20 => self.sequence(false),
            20..55 if node != primary => self.feed(node),
            55..80 => self.flush(node),
            80..92 => self.advance(),
            92..94 => self.crash(node),
            94..97 if node != primary => {
                self.record.iss.retain(|member| member.node != node);
                self.publish()
            }
            97..100 => {
                let log = &self.logs[&node];
                let source = &self.logs[&primary];
                let same = source.iter().zip(log).take_while(|(a, b)| a.chain == b.chain).count();
                let ready = same == log.len() && self.durable[&node] >= self.acknowledged;
                let served = self.commit[&primary] > 0 && self.commit[&primary] >= self.acknowledged;
                if self.record.iss.contains(&member(node)) || !(ready && served || self.is(Fault::GrowEarly))
                {
                    return Ok(());
                }
                self.record.iss.push(member(node));
                self.record.iss.sort();
                self.publish()
            }
            _ => Ok(()),
        }
    }
}

#[test]
fn a_lawful_cluster_is_never_accused() {
    let mut acknowledged = 0;
    for seed in 0..300 {
        let mut cluster = Cluster::new(seed, None);
        for step in 0..800 {
            cluster.step().unwrap_or_else(|wrong| panic!("seed {seed}, step {step}: {wrong:?}"));
        }
        let mut content = BTreeMap::new();
        for batch in &cluster.logs[&cluster.primary()][..cluster.commit[&cluster.primary()]] {
            for entry in batch.entries.iter().filter(|entry| entry.range.len > 0) {
                let value = entry.payload.first_chunk().map_or(0, |front| u64::from_le_bytes(*front));
                content.insert((entry.range.volume, entry.range.first_block()), value);
            }
        }
        let upto = cluster.oracle.commit_of(cluster.primary(), D);
        assert_eq!(cluster.oracle.content(upto), content, "seed {seed}");
        acknowledged += cluster.oracle.highest_acked().0;
    }
    assert!(acknowledged > 10_000, "only {acknowledged} entries were acknowledged");
}

#[test]
fn an_unlawful_cluster_is_found_out() {
    let faults: [(Fault, &[&str], u32); 5] = [
        (Fault::CommitAlone, &["S8"], 45),
        (Fault::PromoteAnybody, &["S8"], 45),
        (Fault::GrowEarly, &["S8", "S6"], 45),
        (Fault::LoseDurable, &["S19"], 45),
        // A replica that keeps a tail gets nothing more, and so is rarely missed.
        (Fault::NoCut, &["S8", "S6"], 10),
    ];
    for (fault, ids, least) in faults {
        let mut found = 0;
        for seed in 0..50 {
            let mut cluster = Cluster::new(seed, Some(fault));
            let wrong = (0..2000).find_map(|_| cluster.step().err());
            if let Some(wrong) = wrong {
                assert!(ids.contains(&wrong.id), "{fault:?}, seed {seed}: {wrong:?}");
                found += 1;
            }
        }
        assert!(found >= least, "{fault:?} was found in {found} of 50 seeds");
    }
}
