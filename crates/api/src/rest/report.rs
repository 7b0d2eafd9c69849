//! The load of the cluster in an interval, made of the histories of all nodes.

use super::{ChangeView, EventView, RequestLoad};
use mainstay_types::clock::clock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A report of an interval.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the baseline whose kept figures these are; none for the histories of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baseline: Option<String>,
    /// Name of the resource that the report is limited to. Its nodes are those that have a replica
    /// now, or were primary in this time; its events are also those of its service and its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// The interval: records count that end after `from_ms` and not after `to_ms`.
    pub from_ms: u64,
    pub to_ms: u64,
    /// Length of a point.
    pub step_ms: u64,
    /// Sentences that say what stands out, most important first.
    pub findings: Vec<String>,
    /// The resource whose requests waited most is the first.
    pub resources: Vec<ResourceReport>,
    pub nodes: Vec<NodeReport>,
    /// Nodes without a history of this time, each with the reason.
    pub missing: Vec<String>,
    /// Changes of primaries, oldest first.
    pub changes: Vec<ChangeView>,
    /// Warnings and errors, oldest first.
    pub events: Vec<EventView>,
    /// The same for the interval or baseline that was to be compared with, without events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared: Option<Box<Report>>,
}

/// The load of one resource.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ResourceReport {
    pub resource: String,
    /// For how long each node was primary, in milliseconds.
    pub primaries: BTreeMap<String, u64>,
    /// All of the interval.
    pub total: ReportPoint,
    /// By their number in the interval. Nothing is known of requests in a point that is missing, or
    /// in which no node was recorded as primary.
    pub points: BTreeMap<u64, ReportPoint>,
}

impl ResourceReport {
    /// Whether the work of a primary is recorded, so that no request means that there was none.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.total.primary_ms > 0
    }
}

/// Work of a resource within some time.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReportPoint {
    /// Time that is recorded.
    pub covered_ms: u64,
    /// Time for which nodes were recorded as primary.
    pub primary_ms: u64,
    /// Requests. Their histograms are left empty in single points.
    pub reads: RequestLoad,
    /// Writes, discards and write-zeroes.
    pub writes: RequestLoad,
    /// Sums of waiting by class, in microseconds. All classes together are the time of all
    /// requests.
    pub waits: BTreeMap<String, u64>,
    /// Bytes of extents that were copied to replicas.
    pub copied_bytes: u64,
    /// How often a replica left the in-sync set for being slow.
    pub times_slow: u64,
    /// The most that any replica lacked.
    pub lag_bytes: u64,
    /// The fullest journal, in thousandths, and its node.
    pub journal_permille: u64,
    pub journal_node: String,
}

/// The use of one node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: String,
    /// Time that is recorded.
    pub covered_ms: u64,
    /// Mean shares of one processor, in thousandths.
    pub engine_cpu_permille: u64,
    pub agent_cpu_permille: u64,
    /// The most resident memory.
    pub engine_memory_bytes: u64,
    pub agent_memory_bytes: u64,
    /// Size of the pool, and its free bytes at the first and the last record; 0 if not known.
    pub pool_size_bytes: u64,
    pub pool_free_bytes_first: u64,
    pub pool_free_bytes: u64,
    /// Processor time of the engine in thousandths, and free bytes of the pool, by point.
    pub points: BTreeMap<u64, (u64, u64)>,
}

impl RequestLoad {
    /// Time that this share of the requests, in thousandths, did not exceed, in microseconds: for
    /// 500, 950 and 990. None without requests.
    #[must_use]
    pub fn percentile_us(&self, permille: u32) -> Option<u64> {
        let us = match permille {
            500 => self.p50_us,
            950 => self.p95_us,
            990 => self.p99_us,
            _ => return None,
        };
        (self.count > 0).then_some(us)
    }
}

impl ReportPoint {
    /// Time of all requests, in microseconds.
    #[must_use]
    pub fn waited_us(&self) -> u64 {
        self.waits.values().fold(0, |sum, us| sum.saturating_add(*us))
    }

    /// Mean number of requests that waited.
    #[must_use]
    pub fn waiting(&self) -> f64 {
        ratio(self.waited_us(), self.covered_ms.saturating_mul(1000))
    }

    /// Rate of something that is counted, in the recorded time.
    #[must_use]
    pub fn per_second(&self, count: u64) -> f64 {
        ratio(count.saturating_mul(1000), self.covered_ms)
    }

    /// Classes of waiting with their shares of all of it, in percent, greatest first.
    #[must_use]
    pub fn shares(&self) -> Vec<(&str, f64)> {
        let all = self.waited_us();
        let shares = self.waits.iter().map(|(class, us)| (class.as_str(), 100.0 * ratio(*us, all)));
        let mut shares: Vec<(&str, f64)> = shares.collect();
        shares.sort_by(|one, other| other.1.total_cmp(&one.1));
        shares
    }
}

/// The ratio for display; 0 for nothing.
#[must_use]
pub fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl Report {
    /// Number of points of the interval, recorded or not.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.to_ms.saturating_sub(self.from_ms).div_ceil(self.step_ms.max(1))
    }

    /// Begin of a point as a time of day, with the date if the interval is longer than a day.
    #[must_use]
    pub fn point_clock(&self, number: u64) -> String {
        let at = self.from_ms.saturating_add(number.saturating_mul(self.step_ms));
        let whole = clock(at);
        let is_long = self.to_ms.saturating_sub(self.from_ms) > 86_400_000;
        whole.get(if is_long { 5..16 } else { 11..16 }).unwrap_or(&whole).to_owned()
    }
}
