//! Which device, link or replica the requests of a node wait for most.
//!
//! The time for which requests waited between two readings is divided up by cause:
//!
//! - A read waits for the disk of the pool (stage *read*), and before that for writes in flight.
//! - Any other request waits for the commit of its batch, and that for the slower one of the node's
//!   own journal and the slowest other replica. The rest is the wait for its turn.
//! - If the journal of a resource is nearly full, its writes wait until the journal is destaged,
//!   which is the work of the disk of the pool.
//! - Requests that are suspended wait for something else, which `mainstay status` names.
//!
//! An acknowledgement contains the way to the other replica and its journal. It counts as the
//! link's only while bytes wait to be sent.

use super::reading::{Between, Counts};
use serde::Serialize;
use std::collections::BTreeMap;

/// Mean number of waiting requests below which nothing is called a bottleneck.
const WAITING_MIN: f64 = 0.02;
/// Share of a journal from which on writes wait for it to be destaged, in percent.
const FULL_PERCENT: u8 = 90;
/// Bytes that wait to be sent from which on a link counts as slow.
const QUEUED_MIN: f64 = 256.0 * 1024.0;

/// The kind of thing that requests wait for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Requests hardly wait.
    None,
    /// The engine does not answer.
    Engine,
    /// The disk with the journals of this node.
    Journal,
    /// The disk of this node's pool.
    Disk,
    /// The connection to another node.
    Link,
    /// Another replica, or the way to it.
    Replica,
    /// More requests than are answered at once.
    Queue,
    /// A cause that the status names.
    Suspended,
}

/// The place where requests wait most.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Bottleneck {
    pub kind: Kind,
    /// Node of the device or of the replica; for a link the other end.
    pub node: Option<String>,
    /// The resource whose requests wait there most.
    pub resource: Option<String>,
    /// Share of all waiting, in percent.
    pub percent: u8,
    /// Mean number of requests that waited at once, for anything.
    pub waiting: f64,
    /// One sentence for people.
    pub words: String,
}

/// Time waited by place, and by resource at each.
type Waits<'a> = BTreeMap<(Kind, Option<&'a str>), BTreeMap<&'a str, f64>>;

pub fn of(between: &Between) -> Bottleneck {
    let own = between.now.node.as_str();
    let none = |kind, words: String| Bottleneck {
        kind,
        node: None,
        resource: None,
        percent: 0,
        waiting: 0.0,
        words,
    };
    if !between.now.engine_up {
        return none(Kind::Engine, format!("the engine of {own} does not answer"));
    }
    let mut waits = Waits::new();
    for (name, one) in between.changes.iter().filter(|(_, one)| one.leads()) {
        add(&mut waits, between, name, one);
    }
    let total: f64 = waits.values().flat_map(BTreeMap::values).sum();
    let waiting = total / between.seconds;
    let sum = |by: &BTreeMap<&str, f64>| by.values().sum::<f64>();
    let most = waits.iter().max_by(|(_, a), (_, b)| sum(a).total_cmp(&sum(b)));
    let Some(((kind, node), by)) = most.filter(|_| waiting >= WAITING_MIN) else {
        return none(Kind::None, "nothing: requests hardly wait".to_owned());
    };
    let resource = by.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or("", |(name, _)| *name);
    let percent = (sum(by) / total * 100.0).round().clamp(0.0, 100.0) as u8;
    let about = about(between, *kind, node.unwrap_or(own), resource);
    let words = format!("{about}; {percent} % of the waiting of {waiting:.1} requests on average");
    let node = matches!(kind, Kind::Journal | Kind::Disk | Kind::Link | Kind::Replica)
        .then(|| node.unwrap_or(own).to_owned());
    Bottleneck { kind: *kind, node, resource: Some(resource.to_owned()), percent, waiting, words }
}

/// Adds the waits of one resource.
fn add<'a>(waits: &mut Waits<'a>, between: &'a Between, name: &'a str, one: &'a Counts) {
    let mut note = |kind, node: Option<&'a str>, s: f64| {
        if s > 0.0 {
            *waits.entry((kind, node)).or_default().entry(name).or_default() += s;
        }
    };
    if one.suspended {
        note(Kind::Suspended, None, one.in_flight * between.seconds);
        return;
    }
    let changes = one.front_changes;
    let mean = |took: super::reading::Took| if took.count > 0.0 { took.sum_s / took.count } else { 0.0 };
    if one.journal_percent() >= FULL_PERCENT {
        note(Kind::Disk, None, changes.sum_s);
    } else {
        let commit = (changes.count * mean(one.commit)).min(changes.sum_s);
        let peer = one.slowest_peer().filter(|(_, us)| *us as f64 / 1e6 > mean(one.journal));
        match peer {
            None => note(Kind::Journal, None, commit),
            Some((peer, _)) => {
                let queued = between.now.queued_bytes.get(peer).copied().unwrap_or_default();
                let kind = if queued >= QUEUED_MIN { Kind::Link } else { Kind::Replica };
                note(kind, Some(peer), commit);
            }
        }
        note(Kind::Queue, None, changes.sum_s - commit);
    }
    let read = one.read.sum_s.min(one.front_read.sum_s);
    note(Kind::Disk, None, read);
    note(Kind::Queue, None, one.front_read.sum_s - read);
}

/// The place in words. `node`: of the device or of the replica.
fn about(between: &Between, kind: Kind, node: &str, resource: &str) -> String {
    let Some(one) = between.changes.get(resource) else { return String::new() };
    let own = &between.now.node;
    let time = |us: Option<u64>| super::words::time(us.unwrap_or(0));
    let journal = time(one.journal.mean_us());
    match kind {
        Kind::Journal => match one.slowest_peer() {
            Some((peer, us)) => format!(
                "the journal of {node}: a write of it takes {journal}, and {peer} acknowledges in {} ({resource})",
                time(Some(us))
            ),
            None => format!("the journal of {node}: a write of it takes {journal} ({resource})"),
        },
        Kind::Replica => {
            let us = one.peers.get(node).and_then(|peer| peer.acknowledged.mean_us());
            format!(
                "the replica on {node}, or the link to it: it acknowledges in {}, and a write of the journal of {own} takes {journal} ({resource})",
                time(us)
            )
        }
        Kind::Link => {
            let queued = between.now.queued_bytes.get(node).copied().unwrap_or_default();
            let queued = mainstay_types::size::size_words(queued as u64);
            format!("the link to {node}: {queued} wait to be sent ({resource})")
        }
        Kind::Disk if one.journal_percent() >= FULL_PERCENT => format!(
            "the disk of the pool of {node}: the journal of {resource} is {} % full, and writes wait until it is destaged",
            one.journal_percent()
        ),
        Kind::Disk => {
            format!("the disk of the pool of {node}: a read takes {} ({resource})", time(one.read.mean_us()))
        }
        Kind::Queue => format!(
            "the number of requests at once: {resource} has {} in flight, which wait for their turn longer than for disks and network",
            one.in_flight
        ),
        Kind::Suspended => {
            format!("resource {resource}: its requests are suspended, and `mainstay status` says for what")
        }
        Kind::None | Kind::Engine => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{between, page};
    use super::*;

    fn judged(now: &str) -> Bottleneck {
        of(&between(&page(100.0, 1000, 1.0), now))
    }

    #[test]
    fn the_slower_one_of_journal_and_replica_is_the_bottleneck() {
        // 1000 writes a second, 1.5 ms of each for the commit and 0.5 ms for its turn.
        let found = judged(&page(102.0, 3000, 1.0));
        assert_eq!((found.kind, found.node.as_deref()), (Kind::Replica, Some("n2")));
        assert_eq!((found.percent, found.resource.as_deref()), (75, Some("db")));
        assert!((found.waiting - 2.0).abs() < 0.01, "{found:?}");
        assert!(
            found.words.starts_with("the replica on n2, or the link to it: it acknowledges in 1.0ms"),
            "{found:?}"
        );
        let found = of(&between(&page(100.0, 1000, 0.1), &page(102.0, 3000, 0.1)));
        assert_eq!((found.kind, found.node.as_deref()), (Kind::Journal, Some("n1")), "{found:?}");
        assert!(found.words.contains("n2 acknowledges in 100µs"), "{found:?}");
    }

    #[test]
    fn bytes_that_wait_to_be_sent_make_it_the_link() {
        let queued = page(102.0, 3000, 1.0)
            .replace("queued_bytes{peer=\"n2\"} 0", "queued_bytes{peer=\"n2\"} 3145728");
        let found = judged(&queued);
        assert_eq!((found.kind, found.node.as_deref()), (Kind::Link, Some("n2")));
        assert!(found.words.starts_with("the link to n2: 3 MiB wait to be sent"), "{found:?}");
    }

    #[test]
    fn a_full_journal_waits_for_the_disk_of_the_pool() {
        let found = judged(&page(102.0, 3000, 1.0).replace("} 123\n", "} 970\n"));
        assert_eq!((found.kind, found.node.as_deref(), found.percent), (Kind::Disk, Some("n1"), 100));
        assert!(found.words.contains("is 97 % full"), "{found:?}");
    }

    #[test]
    fn suspended_requests_an_idle_node_and_a_dead_engine_are_told() {
        let found = judged(&(page(102.0, 1000, 1.0) + "mainstay_replica_io_suspended{resource=\"db\"} 1\n"));
        assert_eq!((found.kind, found.node), (Kind::Suspended, None));
        assert!(found.words.contains("`mainstay status` says for what"), "{}", found.words);
        assert_eq!(judged(&page(102.0, 1000, 1.0)).kind, Kind::None);
        assert_eq!(judged("mainstay_engine_up 0\n").kind, Kind::Engine);
    }
}
