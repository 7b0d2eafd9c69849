//! The content of a record of the history, and how records add up.
//!
//! Durations are in microseconds, sizes in bytes, points in time in milliseconds since 1970 by the
//! clock of the node.

use crate::buckets::Buckets;
use mainstay_types::{NodeId, ResourceId};
use std::collections::BTreeMap;

/// Number of kinds of requests.
pub const KINDS: usize = 5;
/// Places in [`Work::requests`].
pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const DISCARD: usize = 2;
pub const WRITE_ZEROES: usize = 3;
pub const FLUSH: usize = 4;

/// The work of a node within a minute, or within several that were added up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Minute {
    /// End of the time that it covers.
    pub end_ms: u64,
    /// Length of the time that it covers. Less than the time from the first minute to the last if
    /// minutes are missing.
    pub span_ms: u64,
    pub node: NodeUse,
    /// Replicas on this node that were open.
    pub resources: BTreeMap<ResourceId, Work>,
}

/// Use of processors, memory and space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeUse {
    /// Processor time.
    pub agent_cpu_us: u64,
    pub engine_cpu_us: u64,
    /// The most memory.
    pub agent_memory_bytes: u64,
    pub engine_memory_bytes: u64,
    /// Size and free bytes of the pool at the end.
    pub pool_size_bytes: u64,
    pub pool_free_bytes: u64,
}

/// The work of one replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Name of the resource.
    pub name: String,
    /// Time for which it was primary, in milliseconds.
    pub primary_ms: u64,
    /// Requests of devices that were answered, by kind.
    pub requests: [Requests; KINDS],
    /// Writes of the replica's own journal.
    pub journal: Stage,
    /// Batches, from sealing to commit.
    pub commit: Stage,
    /// Reads, from when no write in flight overlapped them.
    pub read: Stage,
    /// Bytes that went to the replica's files, and came from them.
    pub disk_written_bytes: u64,
    pub disk_read_bytes: u64,
    /// Bytes of extents that were copied to this replica.
    pub copied_bytes: u64,
    /// Replicas that this one fed.
    pub peers: BTreeMap<NodeId, Peer>,
    /// The most that the journal was filled, in thousandths.
    pub journal_permille: u64,
}

/// Requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Requests {
    pub bytes: u64,
    pub errors: u64,
    /// Sum of the times from arrival to answer.
    pub time_us: u64,
    /// These times.
    pub buckets: Buckets,
}

/// Operations of one stage: how many, and the sum of their times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stage {
    pub count: u64,
    pub time_us: u64,
}

/// A replica that was fed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// Batches, from sending to the acknowledgement that covers them.
    pub acknowledged: Stage,
    /// How often it left the in-sync set for being slow.
    pub times_slow: u64,
    pub sent_bytes: u64,
    /// Bytes of extents that were copied to it.
    pub copied_bytes: u64,
    /// The most that it lacked.
    pub lag_bytes: u64,
    pub lag_ms: u64,
}

impl Stage {
    /// Mean time; 0 without operations.
    #[must_use]
    pub fn mean_us(&self) -> u64 {
        self.time_us.checked_div(self.count).unwrap_or(0)
    }

    fn counters(&mut self) -> [&mut u64; 2] {
        [&mut self.count, &mut self.time_us]
    }
}

impl Requests {
    fn counters(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.bytes, &mut self.errors, &mut self.time_us].into_iter().chain(self.buckets.0.iter_mut())
    }
}

impl NodeUse {
    pub(crate) fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        [
            &mut self.agent_cpu_us,
            &mut self.engine_cpu_us,
            &mut self.agent_memory_bytes,
            &mut self.engine_memory_bytes,
            &mut self.pool_size_bytes,
            &mut self.pool_free_bytes,
        ]
        .into_iter()
    }
}

impl Peer {
    /// Counters that begin anew with each promotion.
    fn of_promotion(&mut self) -> impl Iterator<Item = &mut u64> {
        self.acknowledged.counters().into_iter().chain([&mut self.times_slow])
    }

    fn of_replica(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.sent_bytes, &mut self.copied_bytes].into_iter()
    }

    /// All numbers, in the order of the encoding.
    pub(crate) fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        self.acknowledged.counters().into_iter().chain([
            &mut self.times_slow,
            &mut self.sent_bytes,
            &mut self.copied_bytes,
            &mut self.lag_bytes,
            &mut self.lag_ms,
        ])
    }

    fn add(&mut self, other: &Self) {
        let mut other = *other;
        sum(self.of_promotion(), other.of_promotion());
        sum(self.of_replica(), other.of_replica());
        self.lag_bytes = self.lag_bytes.max(other.lag_bytes);
        self.lag_ms = self.lag_ms.max(other.lag_ms);
    }

    /// Counters since an earlier reading of them.
    fn since(&self, before: &Self) -> Self {
        let (mut now, mut before) = (*self, *before);
        if !began_anew(now.of_promotion(), before.of_promotion()) {
            subtract(now.of_promotion(), before.of_promotion());
        }
        if !began_anew(now.of_replica(), before.of_replica()) {
            subtract(now.of_replica(), before.of_replica());
        }
        now
    }
}

impl Work {
    /// All counters but those of peers.
    fn counters(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.primary_ms]
            .into_iter()
            .chain(self.requests.iter_mut().flat_map(Requests::counters))
            .chain(self.journal.counters())
            .chain(self.commit.counters())
            .chain(self.read.counters())
            .chain([&mut self.disk_written_bytes, &mut self.disk_read_bytes, &mut self.copied_bytes])
    }

    /// All numbers but those of peers, in the order of the encoding.
    pub(crate) fn numbers(&mut self) -> impl Iterator<Item = &mut u64> {
        [&mut self.primary_ms, &mut self.journal_permille]
            .into_iter()
            .chain(self.requests.iter_mut().flat_map(Requests::counters))
            .chain(self.journal.counters())
            .chain(self.commit.counters())
            .chain(self.read.counters())
            .chain([&mut self.disk_written_bytes, &mut self.disk_read_bytes, &mut self.copied_bytes])
    }

    /// Adds the work of another time.
    pub fn add(&mut self, other: &Self) {
        sum(self.counters(), other.clone().counters());
        self.journal_permille = self.journal_permille.max(other.journal_permille);
        for (node, peer) in &other.peers {
            self.peers.entry(*node).or_default().add(peer);
        }
        if !other.name.is_empty() {
            self.name.clone_from(&other.name);
        }
    }

    /// Counters since an earlier reading of them. If one of them is smaller now, the replica was
    /// opened anew meanwhile, and counts from 0.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let (mut now, mut earlier) = (self.clone(), before.clone());
        if began_anew(now.counters(), earlier.counters()) {
            return now;
        }
        subtract(now.counters(), earlier.counters());
        for (node, peer) in &mut now.peers {
            if let Some(before) = before.peers.get(node) {
                *peer = peer.since(before);
            }
        }
        now
    }

    /// Whether a device asked for anything.
    #[must_use]
    pub fn served(&self) -> bool {
        self.requests.iter().any(|kind| kind.buckets.count() > 0)
    }
}

impl Minute {
    /// Adds another time of the same node.
    pub fn add(&mut self, other: &Self) {
        self.node.agent_cpu_us = self.node.agent_cpu_us.saturating_add(other.node.agent_cpu_us);
        self.node.engine_cpu_us = self.node.engine_cpu_us.saturating_add(other.node.engine_cpu_us);
        self.node.agent_memory_bytes = self.node.agent_memory_bytes.max(other.node.agent_memory_bytes);
        self.node.engine_memory_bytes = self.node.engine_memory_bytes.max(other.node.engine_memory_bytes);
        if other.end_ms >= self.end_ms && other.node.pool_size_bytes > 0 {
            self.node.pool_size_bytes = other.node.pool_size_bytes;
            self.node.pool_free_bytes = other.node.pool_free_bytes;
        }
        self.end_ms = self.end_ms.max(other.end_ms);
        self.span_ms = self.span_ms.saturating_add(other.span_ms);
        for (resource, work) in &other.resources {
            self.resources.entry(*resource).or_default().add(work);
        }
    }
}

fn sum<'a>(into: impl Iterator<Item = &'a mut u64>, from: impl Iterator<Item = &'a mut u64>) {
    into.zip(from).for_each(|(into, from)| *into = into.saturating_add(*from));
}

fn subtract<'a>(from: impl Iterator<Item = &'a mut u64>, what: impl Iterator<Item = &'a mut u64>) {
    from.zip(what).for_each(|(from, what)| *from = from.saturating_sub(*what));
}

fn began_anew<'a>(now: impl Iterator<Item = &'a mut u64>, before: impl Iterator<Item = &'a mut u64>) -> bool {
    now.zip(before).any(|(now, before)| *now < *before)
}
