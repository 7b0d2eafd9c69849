//! Counts of a node at one moment, from its page of metrics, and what happened between two.

use super::page::samples;
use serde::Serialize;
use std::collections::BTreeMap;

/// How often something happened, and how long it took altogether.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Took {
    pub count: f64,
    pub sum_s: f64,
}

impl Took {
    fn since(self, before: Self) -> Self {
        Self { count: since(self.count, before.count), sum_s: since(self.sum_s, before.sum_s) }
    }

    /// Mean duration in microseconds; `None` if it did not happen.
    pub fn mean_us(self) -> Option<u64> {
        (self.count > 0.0).then(|| (self.sum_s / self.count * 1e6).round() as u64)
    }
}

/// Growth of a counter. A counter that is smaller than before began anew at 0.
fn since(now: f64, before: f64) -> f64 {
    if now >= before { now - before } else { now }
}

/// A replica that a primary on this node feeds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerCounts {
    pub acknowledged: Took,
    pub lag_bytes: f64,
    pub lag_inexact: bool,
}

/// One replica on this node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counts {
    pub role: String,
    pub suspended: bool,
    pub in_flight: f64,
    pub journal_size: f64,
    pub journal_used: f64,
    pub reads: f64,
    pub read_bytes: f64,
    pub writes: f64,
    pub write_bytes: f64,
    /// Requests from their arrival to their answer: reads, writes, and all that are no reads.
    pub front_read: Took,
    pub front_write: Took,
    pub front_changes: Took,
    pub read: Took,
    pub journal: Took,
    pub commit: Took,
    pub journal_written: f64,
    pub volume_written: f64,
    pub peers: BTreeMap<String, PeerCounts>,
}

/// Counts of one node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    pub node: String,
    pub cluster: String,
    pub engine_up: bool,
    /// The clock of the node's engine when it counted, in seconds.
    pub clock_s: Option<f64>,
    pub resources: BTreeMap<String, Counts>,
    /// Bytes that wait to be sent to the engine of another node.
    pub queued_bytes: BTreeMap<String, f64>,
}

impl Reading {
    pub fn of(page: &str) -> Self {
        let mut reading = Self::default();
        for one in samples(page) {
            let (name, value) = (one.name, one.value);
            let Some(name) = name.strip_prefix("mainstay_") else { continue };
            match name {
                "node_info" => {
                    reading.node = one.label("node").to_owned();
                    reading.cluster = one.label("cluster").to_owned();
                }
                "engine_up" => reading.engine_up = value > 0.0,
                "engine_clock_seconds" => reading.clock_s = Some(value),
                "link_queued_bytes" => {
                    reading.queued_bytes.insert(one.label("peer").to_owned(), value);
                }
                name if !one.label("resource").is_empty() => {
                    let (op, area, peer) = (one.label("op"), one.label("area"), one.label("peer"));
                    // Series of the record are about resources without a replica here, too.
                    let resource = one.label("resource");
                    if name == "replica_role" {
                        reading.resources.entry(resource.to_owned()).or_default().role =
                            one.label("role").to_owned();
                        continue;
                    }
                    let Some(counts) = reading.resources.get_mut(resource) else { continue };
                    counts.take(name, (op, area, peer), value);
                }
                _ => {}
            }
        }
        reading
    }
}

impl Counts {
    fn take(&mut self, name: &str, (op, area, peer): (&str, &str, &str), value: f64) {
        let took = |series: &str, took: &mut Took| match name.strip_prefix(series) {
            Some("_sum") => took.sum_s += value,
            Some("_count") => took.count += value,
            _ => {}
        };
        took("journal_write_duration_seconds", &mut self.journal);
        took("commit_duration_seconds", &mut self.commit);
        took("read_duration_seconds", &mut self.read);
        if op == "read" {
            took("request_duration_seconds", &mut self.front_read);
        } else {
            took("request_duration_seconds", &mut self.front_changes);
        }
        if op == "write" {
            took("request_duration_seconds", &mut self.front_write);
        }
        if !peer.is_empty() && name.starts_with("peer_") {
            let peer = self.peers.entry(peer.to_owned()).or_default();
            took("peer_acknowledgement_duration_seconds", &mut peer.acknowledged);
            match name {
                "peer_lag_bytes" => peer.lag_bytes = value,
                "peer_lag_inexact" => peer.lag_inexact = value > 0.0,
                _ => {}
            }
        }
        match (name, op, area) {
            ("replica_io_suspended", ..) => self.suspended = value > 0.0,
            ("requests_in_flight", ..) => self.in_flight = value,
            ("journal_size_bytes", ..) => self.journal_size = value,
            ("journal_used_bytes", ..) => self.journal_used = value,
            // Each volume has a sample of its own.
            ("requests_total", "read", _) => self.reads += value,
            ("requests_total", "write", _) => self.writes += value,
            ("request_bytes_total", "read", _) => self.read_bytes += value,
            ("request_bytes_total", "write", _) => self.write_bytes += value,
            ("disk_written_bytes_total", _, "journal") => self.journal_written = value,
            ("disk_written_bytes_total", _, "volume") => self.volume_written = value,
            _ => {}
        }
    }

    /// Growth of the counters since `before`. Gauges are those of now.
    pub fn since(&self, before: &Self) -> Self {
        let peer = |(name, now): (&String, &PeerCounts)| {
            let before = before.peers.get(name).map(|peer| peer.acknowledged).unwrap_or_default();
            (name.clone(), PeerCounts { acknowledged: now.acknowledged.since(before), ..now.clone() })
        };
        Self {
            reads: since(self.reads, before.reads),
            read_bytes: since(self.read_bytes, before.read_bytes),
            writes: since(self.writes, before.writes),
            write_bytes: since(self.write_bytes, before.write_bytes),
            front_read: self.front_read.since(before.front_read),
            front_write: self.front_write.since(before.front_write),
            front_changes: self.front_changes.since(before.front_changes),
            read: self.read.since(before.read),
            journal: self.journal.since(before.journal),
            commit: self.commit.since(before.commit),
            journal_written: since(self.journal_written, before.journal_written),
            volume_written: since(self.volume_written, before.volume_written),
            peers: self.peers.iter().map(peer).collect(),
            ..self.clone()
        }
    }

    /// Part of the journal that is full, in percent.
    pub fn journal_percent(&self) -> u8 {
        let share = self.journal_used / self.journal_size * 100.0;
        if share.is_finite() { share.clamp(0.0, 100.0) as u8 } else { 0 }
    }

    /// The peer whose acknowledgements take longest, with the mean of them in microseconds.
    pub fn slowest_peer(&self) -> Option<(&str, u64)> {
        let known =
            self.peers.iter().filter_map(|(name, one)| Some((name.as_str(), one.acknowledged.mean_us()?)));
        known.max_by_key(|(_, us)| *us)
    }
}

/// Rates of one resource whose primary is on the node. Durations are means, in microseconds; a
/// stage in which nothing happened has none.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PrimaryRow {
    pub name: String,
    pub reads_per_s: f64,
    pub read_bytes_per_s: f64,
    pub writes_per_s: f64,
    pub write_bytes_per_s: f64,
    pub read_us: Option<u64>,
    pub write_us: Option<u64>,
    pub journal_us: Option<u64>,
    /// The slowest of the other replicas.
    pub peer_us: Option<u64>,
    pub peer: Option<String>,
    pub commit_us: Option<u64>,
    /// Bytes of the journal that the other replica lacks which lacks most.
    pub behind_bytes: u64,
    pub behind_inexact: bool,
    pub journal_percent: u8,
    pub requests_in_flight: u64,
    pub suspended: bool,
}

/// Rates of one replica whose primary is elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SecondaryRow {
    pub name: String,
    pub role: String,
    pub journal_writes_per_s: f64,
    pub journal_bytes_per_s: f64,
    pub journal_us: Option<u64>,
    pub volume_bytes_per_s: f64,
    pub journal_percent: u8,
}

/// Events of a node between two readings.
pub struct Between {
    pub seconds: f64,
    pub now: Reading,
    /// By resource.
    pub changes: BTreeMap<String, Counts>,
}

impl Between {
    /// `passed_s`: time between the readings by the clock of this machine, for a node that does not
    /// tell its own. `None` if both readings are of one moment.
    pub fn of(before: &Reading, now: Reading, passed_s: f64) -> Option<Self> {
        let seconds = match (before.clock_s, now.clock_s) {
            // Another engine may run on another clock only after a restart of the machine.
            (Some(before), Some(now)) if now >= before => now - before,
            _ => passed_s,
        };
        if seconds <= 0.0 {
            return None;
        }
        let nothing = Counts::default();
        let changes = now.resources.iter().map(|(name, counts)| {
            // A replica that was not there counted from 0.
            let old = before.resources.get(name).unwrap_or(&nothing);
            (name.clone(), counts.since(old))
        });
        Some(Self { seconds, changes: changes.collect(), now })
    }

    /// Resources with their primary here, those with the most bytes and requests first.
    pub fn primaries(&self) -> Vec<PrimaryRow> {
        let mut rows: Vec<_> = self
            .changes
            .iter()
            .filter(|(_, one)| one.leads())
            .map(|(name, one)| self.primary(name, one))
            .collect();
        let weight = |row: &PrimaryRow| row.reads_per_s + row.writes_per_s;
        rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)).then_with(|| a.name.cmp(&b.name)));
        rows
    }

    pub fn secondaries(&self) -> Vec<SecondaryRow> {
        let row = |(name, one): (&String, &Counts)| SecondaryRow {
            name: name.clone(),
            role: one.role.clone(),
            journal_writes_per_s: one.journal.count / self.seconds,
            journal_bytes_per_s: one.journal_written / self.seconds,
            journal_us: one.journal.mean_us(),
            volume_bytes_per_s: one.volume_written / self.seconds,
            journal_percent: one.journal_percent(),
        };
        let mut rows: Vec<_> = self.changes.iter().filter(|(_, one)| !one.leads()).map(row).collect();
        rows.sort_by(|a, b| {
            b.journal_bytes_per_s.total_cmp(&a.journal_bytes_per_s).then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    fn primary(&self, name: &str, one: &Counts) -> PrimaryRow {
        let behind = one.peers.values().max_by(|a, b| a.lag_bytes.total_cmp(&b.lag_bytes));
        let peer = one.slowest_peer();
        PrimaryRow {
            name: name.to_owned(),
            reads_per_s: one.reads / self.seconds,
            read_bytes_per_s: one.read_bytes / self.seconds,
            writes_per_s: one.writes / self.seconds,
            write_bytes_per_s: one.write_bytes / self.seconds,
            read_us: one.front_read.mean_us(),
            write_us: one.front_write.mean_us(),
            journal_us: one.journal.mean_us(),
            peer_us: peer.map(|(_, us)| us),
            peer: peer.map(|(name, _)| name.to_owned()),
            commit_us: one.commit.mean_us(),
            behind_bytes: behind.map_or(0, |peer| peer.lag_bytes as u64),
            behind_inexact: behind.is_some_and(|peer| peer.lag_inexact),
            journal_percent: one.journal_percent(),
            requests_in_flight: one.in_flight as u64,
            suspended: one.suspended,
        }
    }
}

impl Counts {
    /// Whether the replica is, or is about to be, the one that serves.
    pub fn leads(&self) -> bool {
        matches!(self.role.as_str(), "primary" | "promoting")
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A page of a primary after this many writes of 4 KiB, each of which took 2 ms, of which 1.5
    /// ms were for the commit. The journal takes 0.5 ms and the peer `peer_ms`.
    pub fn page(clock_s: f64, writes: u64, peer_ms: f64) -> String {
        let s = |ms: f64| writes as f64 * ms / 1e3;
        format!(
            "mainstay_node_info{{cluster=\"shop\",node=\"n1\",witness=\"false\"}} 1\nmainstay_engine_up 1\n\
             mainstay_engine_clock_seconds {clock_s}\nmainstay_link_queued_bytes{{peer=\"n2\"}} 0\n\
             mainstay_resource_primary{{resource=\"elsewhere\"}} 1\n\
             mainstay_replica_role{{resource=\"db\",role=\"primary\"}} 1\n\
             mainstay_replica_role{{resource=\"web\",role=\"secondary\"}} 1\n\
             mainstay_requests_in_flight{{resource=\"db\"}} 4\n\
             mainstay_journal_size_bytes{{resource=\"db\"}} 1000\nmainstay_journal_used_bytes{{resource=\"db\"}} 123\n\
             mainstay_requests_total{{resource=\"db\",volume=\"0\",op=\"write\"}} {writes}\n\
             mainstay_requests_total{{resource=\"db\",volume=\"1\",op=\"write\"}} 5\n\
             mainstay_requests_total{{resource=\"db\",volume=\"0\",op=\"read\"}} 0\n\
             mainstay_request_bytes_total{{resource=\"db\",volume=\"0\",op=\"write\"}} {}\n\
             mainstay_request_duration_seconds_sum{{resource=\"db\",op=\"write\"}} {}\n\
             mainstay_request_duration_seconds_count{{resource=\"db\",op=\"write\"}} {writes}\n\
             mainstay_journal_write_duration_seconds_sum{{resource=\"db\"}} {}\n\
             mainstay_journal_write_duration_seconds_count{{resource=\"db\"}} {writes}\n\
             mainstay_journal_write_duration_seconds_count{{resource=\"web\"}} {writes}\n\
             mainstay_journal_write_duration_seconds_sum{{resource=\"web\"}} {}\n\
             mainstay_peer_acknowledgement_duration_seconds_sum{{resource=\"db\",peer=\"n2\"}} {}\n\
             mainstay_peer_acknowledgement_duration_seconds_count{{resource=\"db\",peer=\"n2\"}} {writes}\n\
             mainstay_commit_duration_seconds_sum{{resource=\"db\"}} {}\n\
             mainstay_commit_duration_seconds_count{{resource=\"db\"}} {writes}\n\
             mainstay_disk_written_bytes_total{{resource=\"web\",area=\"journal\"}} {}\n\
             mainstay_peer_lag_bytes{{resource=\"db\",peer=\"n2\"}} 8192\n",
            writes * 4096,
            s(2.0),
            s(0.5),
            s(0.5),
            s(peer_ms),
            s(1.5),
            writes * 4096,
        )
    }

    pub fn between(before: &str, now: &str) -> Between {
        Between::of(&Reading::of(before), Reading::of(now), 9.0).expect("time has passed")
    }

    #[test]
    fn rates_are_the_difference_of_two_readings_by_the_clock_of_the_node() {
        let between = between(&page(100.0, 1000, 1.0), &page(102.0, 3000, 1.0));
        assert_eq!(between.seconds, 2.0);
        let [db] = &between.primaries()[..] else { panic!("one primary") };
        assert_eq!((db.writes_per_s, db.write_bytes_per_s, db.reads_per_s), (1000.0, 4_096_000.0, 0.0));
        assert_eq!((db.write_us, db.journal_us, db.commit_us), (Some(2000), Some(500), Some(1500)));
        assert_eq!((db.peer_us, db.peer.as_deref(), db.read_us), (Some(1000), Some("n2"), None));
        assert_eq!((db.behind_bytes, db.journal_percent, db.requests_in_flight), (8192, 12, 4));
        let [web] = &between.secondaries()[..] else { panic!("one secondary") };
        assert_eq!((web.journal_writes_per_s, web.journal_us), (1000.0, Some(500)));
    }

    #[test]
    fn a_page_that_was_kept_makes_no_rates_and_a_counter_that_began_anew_no_negative_ones() {
        let now = Reading::of(&page(100.0, 10, 1.0));
        assert!(Between::of(&now, now.clone(), 1.0).is_none());
        let between = between(&page(100.0, 5000, 1.0), &page(101.0, 200, 1.0));
        assert_eq!(between.primaries()[0].writes_per_s, 205.0);
        let older = page(0.0, 1000, 1.0).replace("mainstay_engine_clock_seconds 0\n", "");
        let old = Reading::of(&older);
        assert_eq!(Between::of(&old, old.clone(), 4.0).expect("time").seconds, 4.0);
    }
}
