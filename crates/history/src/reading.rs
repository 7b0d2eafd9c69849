//! A reading of all counters of a node, and the record of the time between two readings.

use crate::minute::{Minute, NodeUse, Work};
use mainstay_types::{ResourceId, Time};
use std::collections::BTreeMap;

/// Counters of a node as they stand: each since the process began that counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reading {
    /// On the boot-time clock.
    pub at: Time,
    /// The wall clock, in milliseconds since 1970.
    pub wall_ms: u64,
    /// Id of the engine's process; all of its counters begin anew with another one.
    pub engine: Option<u32>,
    pub node: NodeUse,
    pub replicas: BTreeMap<ResourceId, ReplicaReading>,
}

/// Counters of one replica.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReplicaReading {
    pub is_primary: bool,
    /// `primary_ms` is not used.
    pub work: Work,
}

impl Reading {
    /// Returns the record of the time since an earlier reading. A replica that the earlier reading
    /// does not have was opened since then.
    #[must_use]
    pub fn since(&self, before: &Self) -> Minute {
        let span_ms = self.at.us_since(before.at) / 1000;
        let is_same_engine = self.engine == before.engine;
        let nothing = Work::default();
        let work_of = |(resource, now): (&ResourceId, &ReplicaReading)| {
            let earlier = before.replicas.get(resource).filter(|_| is_same_engine);
            let mut work = now.work.since(earlier.map_or(&nothing, |earlier| &earlier.work));
            work.primary_ms = if now.is_primary { span_ms } else { 0 };
            (*resource, work)
        };
        let cpu = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let node = NodeUse {
            agent_cpu_us: cpu(self.node.agent_cpu_us, before.node.agent_cpu_us),
            engine_cpu_us: cpu(
                self.node.engine_cpu_us,
                if is_same_engine { before.node.engine_cpu_us } else { 0 },
            ),
            ..self.node
        };
        let resources = self.replicas.iter().map(work_of).collect();
        Minute { end_ms: self.wall_ms, span_ms, node, resources }
    }
}
