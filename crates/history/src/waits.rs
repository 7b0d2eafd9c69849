//! Waiting of requests by class.
//!
//! The sum of the times that requests spent in a place, divided by the length of the interval, is
//! the mean number of requests that were in that place: Little's law (J. D. C. Little, "A proof for
//! the queuing formula L = λW", Operations Research 9, 1961). The engine counts these sums without
//! gaps, so they say exactly what a sample of the requests in flight each second only estimates.
//!
//! The engine counts the times of requests from arrival to answer, and those of batches in each
//! stage. The time of a write is divided by the means of the same record:
//! - The time before its batch is sealed is [`Wait::Queue`]: what the mean write took longer than
//!   the mean commit.
//! - The rest belongs to the slowest stage of a mean batch, the own journal or a peer, as far as
//!   that reaches, and then to [`Wait::Commit`].
//!
//! So the sum over all classes is exact, and the division is as good as the means of a minute are.
//! A peer whose acknowledgements take longer than commits is not waited for: it follows in mode A,
//! or is not in sync.

use crate::minute::{DISCARD, FLUSH, READ, WRITE, WRITE_ZEROES, Work};
use mainstay_types::NodeId;
use std::collections::BTreeMap;

/// A class of waiting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Wait {
    /// A read waits for the disk.
    Read,
    /// A read waits for a write in flight that overlaps it.
    Overlap,
    /// A write waits until its batch is sealed, or, in mode B, for memory.
    Queue,
    /// A write waits for the journal of the primary.
    Journal,
    /// A write waits for the network to this node and the journal there.
    Peer(NodeId),
    /// A write waits for what is left of the commit.
    Commit,
    /// A flush waits.
    Flush,
}

/// Sums of waiting by class, in microseconds, without zeroes.
pub type Waits = BTreeMap<Wait, u64>;

/// By how much means may differ that begin and end in different turns of the shard.
const TURN_US: u64 = 50;

/// Divides the time of all requests of an interval by what they waited for.
#[must_use]
pub fn waits(work: &Work) -> Waits {
    let mut waits = Waits::new();
    let mut note = |class, us: u64| {
        if us > 0 {
            *waits.entry(class).or_default() += us;
        }
    };
    let reads = work.requests[READ].time_us;
    let disk = work.read.time_us.min(reads);
    note(Wait::Read, disk);
    note(Wait::Overlap, reads - disk);
    note(Wait::Flush, work.requests[FLUSH].time_us);
    let kinds = [WRITE, DISCARD, WRITE_ZEROES].map(|kind| &work.requests[kind]);
    let count = kinds.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.buckets.count()));
    let time = kinds.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.time_us));
    let commit = work.commit.mean_us();
    let in_commit = commit.saturating_mul(count).min(time);
    note(Wait::Queue, time - in_commit);
    let peers = work.peers.iter().map(|(node, peer)| (Wait::Peer(*node), peer.acknowledged.mean_us()));
    let stages = [(Wait::Journal, work.journal.mean_us())].into_iter().chain(peers);
    let waited_for = stages.filter(|(_, mean)| *mean <= commit.saturating_add(TURN_US));
    // The first of equals.
    let slowest = waited_for.reduce(|most, one| if one.1 > most.1 { one } else { most });
    let (class, mean) = slowest.unwrap_or((Wait::Commit, 0));
    let part = u128::from(in_commit) * u128::from(mean.min(commit)) / u128::from(commit.max(1));
    let part = u64::try_from(part).unwrap_or(u64::MAX).min(in_commit);
    note(class, part);
    note(Wait::Commit, in_commit - part);
    waits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::minute::{Peer, Stage};
    use proptest::prelude::*;

    fn writes(count: u64, mean_us: u64) -> Work {
        let mut work = Work::default();
        work.requests[WRITE].buckets.0[10] = count;
        work.requests[WRITE].time_us = count * mean_us;
        work
    }

    fn stage(count: u64, mean_us: u64) -> Stage {
        Stage { count, time_us: count * mean_us }
    }

    fn peer(mean_us: u64) -> Peer {
        Peer { acknowledged: stage(100, mean_us), ..Peer::default() }
    }

    #[test]
    fn the_slowest_stage_of_a_commit_is_what_writes_waited_for() {
        let mut work = writes(1000, 3000);
        (work.commit, work.journal) = (stage(100, 2000), stage(100, 500));
        work.peers = [(NodeId(2), peer(600)), (NodeId(3), peer(1900))].into();
        let found = waits(&work);
        let expected =
            [(Wait::Queue, 1_000_000), (Wait::Peer(NodeId(3)), 1_900_000), (Wait::Commit, 100_000)];
        assert_eq!(found, expected.into());
        // In mode A commits do not wait for the followers.
        work.commit = stage(100, 520);
        assert_eq!(waits(&work)[&Wait::Journal], 500_000);
        assert!(!waits(&work).contains_key(&Wait::Peer(NodeId(3))));
    }

    #[test]
    fn reads_wait_for_the_disk_and_for_writes_in_flight() {
        let mut work = Work::default();
        work.requests[READ].time_us = 1000;
        work.read = stage(10, 70);
        assert_eq!(waits(&work), [(Wait::Read, 700), (Wait::Overlap, 300)].into());
        assert_eq!(waits(&Work::default()), Waits::new());
    }

    proptest! {
        #[test]
        fn all_classes_together_are_the_time_of_all_requests(
            times in prop::array::uniform5(0u64..1 << 40),
            counts in prop::array::uniform5(0u64..1 << 20),
            stages in prop::array::uniform4((0u64..1 << 20, 0u64..1 << 40)),
        ) {
            let mut work = Work::default();
            for (kind, (time, count)) in times.into_iter().zip(counts).enumerate() {
                work.requests[kind].time_us = time;
                work.requests[kind].buckets.0[3] = count;
            }
            let [journal, commit, read, acknowledged] = stages.map(|(count, time_us)| Stage { count, time_us });
            (work.journal, work.commit, work.read) = (journal, commit, read);
            work.peers.insert(NodeId(2), Peer { acknowledged, ..Peer::default() });
            prop_assert_eq!(waits(&work).values().sum::<u64>(), times.iter().sum::<u64>());
        }
    }
}
