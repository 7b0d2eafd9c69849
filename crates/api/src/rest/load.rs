//! The work of a node over time, as its agent has recorded it each minute.

use serde::{Deserialize, Serialize};

/// The work of one node in an interval. Sums of all points are those of the interval.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LoadPage {
    /// Name of the node whose history this is.
    pub node: String,
    /// The interval: records count that end after `from_ms` and not after `to_ms`.
    pub from_ms: u64,
    pub to_ms: u64,
    /// Time from one point to the next. Larger than asked for if the answer would be too large.
    pub step_ms: u64,
    /// End of the oldest record that the node keeps; none if it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Points that have records, oldest first.
    pub points: Vec<LoadPoint>,
}

/// The work of a node in one step.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LoadPoint {
    /// Begin of the step.
    pub at_ms: u64,
    /// Time that records cover. Less than the step if agent or engine did not run for a part of it.
    pub covered_ms: u64,
    /// Processor time of the agent and the engine, in microseconds.
    pub agent_cpu_us: u64,
    pub engine_cpu_us: u64,
    /// The most resident memory.
    pub agent_memory_bytes: u64,
    pub engine_memory_bytes: u64,
    /// Size and free bytes of the pool at the end of the step; 0 if not known.
    pub pool_size_bytes: u64,
    pub pool_free_bytes: u64,
    /// Replicas on the node that did anything, in the order of names.
    pub resources: Vec<ResourceLoad>,
}

/// The work of one replica in one step. Fields that are 0 or empty are left out.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceLoad {
    pub resource: String,
    /// Time for which the replica was primary, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub primary_ms: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub reads: RequestLoad,
    #[serde(skip_serializing_if = "is_default")]
    pub writes: RequestLoad,
    #[serde(skip_serializing_if = "is_default")]
    pub discards: RequestLoad,
    #[serde(skip_serializing_if = "is_default")]
    pub write_zeroes: RequestLoad,
    #[serde(skip_serializing_if = "is_default")]
    pub flushes: RequestLoad,
    /// Writes of the replica's own journal.
    #[serde(skip_serializing_if = "is_default")]
    pub journal: StageLoad,
    /// Batches, from sealing to commit.
    #[serde(skip_serializing_if = "is_default")]
    pub commit: StageLoad,
    /// Reads, from when no write in flight overlapped them.
    #[serde(skip_serializing_if = "is_default")]
    pub read: StageLoad,
    /// Replicas that this one fed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<PeerLoad>,
    /// Waiting of the requests by class. All classes together are the time of all requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<WaitLoad>,
    /// Bytes that went to the replica's files, and came from them.
    #[serde(skip_serializing_if = "is_zero")]
    pub disk_written_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub disk_read_bytes: u64,
    /// Bytes of extents that were copied to this replica.
    #[serde(skip_serializing_if = "is_zero")]
    pub copied_bytes: u64,
    /// The most that the journal was filled, in thousandths.
    #[serde(skip_serializing_if = "is_zero")]
    pub journal_permille: u64,
}

/// Requests of one kind that were answered in one step.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestLoad {
    pub count: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Requests among these that were answered with an error.
    #[serde(skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// Sum of the times from arrival to answer, in microseconds. Divided by the time that is
    /// covered, it is the mean number of requests that were open.
    pub time_us: u64,
    /// Times that 50 %, 95 % and 99 % of the requests did not exceed, in microseconds. They are off
    /// by less than half.
    pub p50_us: u64,
    pub p95_us: u64,
    pub p99_us: u64,
    /// Requests by their time: number n is for those above 2^(n-1) and not above 2^n microseconds.
    /// Zeroes at the end are left out.
    pub histogram: Vec<u64>,
}

/// Operations of one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct StageLoad {
    pub count: u64,
    /// Sum of their times, in microseconds.
    pub time_us: u64,
}

/// A replica that was fed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerLoad {
    pub node: String,
    /// Batches, from sending to the acknowledgement that covers them.
    pub acknowledged: StageLoad,
    /// How often it left the in-sync set for being slow.
    #[serde(skip_serializing_if = "is_zero")]
    pub times_slow: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// Bytes of extents that were copied to it.
    #[serde(skip_serializing_if = "is_zero")]
    pub copied_bytes: u64,
    /// The most that it lacked, at the ends of minutes.
    #[serde(skip_serializing_if = "is_zero")]
    pub lag_bytes: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub lag_ms: u64,
}

/// Time that requests of one replica waited for one thing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct WaitLoad {
    pub class: WaitClass,
    /// The other node, for `peer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Sum over all requests, in microseconds.
    pub time_us: u64,
}

/// A class of waiting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitClass {
    /// A read waits for the disk of the primary.
    Read,
    /// A read waits for a write in flight that overlaps it.
    Overlap,
    /// A write waits until its batch is sealed.
    Queue,
    /// A write waits for the journal of the primary.
    Journal,
    /// A write waits for the network to another node and the journal there.
    Peer,
    /// A write waits for what is left of the commit.
    Commit,
    /// A flush waits.
    Flush,
}

fn is_zero(value: &u64) -> bool {
    *value == 0
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_that_did_little_is_a_short_text() {
        let writes = RequestLoad {
            count: 2,
            time_us: 9,
            p50_us: 4,
            p95_us: 8,
            p99_us: 8,
            histogram: vec![0, 0, 1, 1],
            ..RequestLoad::default()
        };
        let waits = vec![WaitLoad { class: WaitClass::Peer, node: Some("n2".into()), time_us: 9 }];
        let load = ResourceLoad { resource: "db".into(), writes, waits, ..ResourceLoad::default() };
        let json = serde_json::to_string(&load).unwrap();
        assert_eq!(
            json,
            r#"{"resource":"db","writes":{"count":2,"time_us":9,"p50_us":4,"p95_us":8,"p99_us":8,"histogram":[0,0,1,1]},"waits":[{"class":"peer","node":"n2","time_us":9}]}"#
        );
        assert_eq!(serde_json::from_str::<ResourceLoad>(&json).unwrap(), load);
    }
}
