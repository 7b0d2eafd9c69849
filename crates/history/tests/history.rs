//! Records against plain models: bytes, sums, differences and series.

use mainstay_history::{
    BUCKETS, Kept, Minute, NodeUse, Peer, READ, Reading, Records, ReplicaReading, Requests, SEGMENT_HEADER,
    Series, Stage, WRITE, Work, encode, thin,
};
use mainstay_types::{Histogram, NodeId, ResourceId, Time};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Mostly small numbers and zeroes, as in real records, and any others.
fn value() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0u64..300, 2 => 0u64..1 << 40, 1 => any::<u64>()]
}

fn stage() -> impl Strategy<Value = Stage> {
    (value(), value()).prop_map(|(count, time_us)| Stage { count, time_us })
}

fn requests() -> impl Strategy<Value = Requests> {
    (value(), value(), value(), vec(value(), BUCKETS)).prop_map(|(bytes, errors, time_us, counts)| {
        let mut requests = Requests { bytes, errors, time_us, ..Requests::default() };
        requests.buckets.0.copy_from_slice(&counts);
        requests
    })
}

fn peer() -> impl Strategy<Value = Peer> {
    (stage(), vec(value(), 5)).prop_map(|(acknowledged, numbers)| Peer {
        acknowledged,
        times_slow: numbers[0],
        sent_bytes: numbers[1],
        copied_bytes: numbers[2],
        lag_bytes: numbers[3],
        lag_ms: numbers[4],
    })
}

fn work() -> impl Strategy<Value = Work> {
    let peers = btree_map((1u32..9).prop_map(NodeId), peer(), 0..3);
    ("[a-z]{0,8}", prop::array::uniform5(requests()), vec(stage(), 3), vec(value(), 5), peers).prop_map(
        |(name, requests, stages, numbers, peers)| Work {
            name,
            primary_ms: numbers[0],
            requests,
            journal: stages[0],
            commit: stages[1],
            read: stages[2],
            disk_written_bytes: numbers[1],
            disk_read_bytes: numbers[2],
            copied_bytes: numbers[3],
            peers,
            journal_permille: numbers[4],
        },
    )
}

fn minute() -> impl Strategy<Value = Minute> {
    let resources = btree_map((0u64..20).prop_map(ResourceId), work(), 0..4);
    (value(), 0u64..100_000, vec(value(), 6), resources).prop_map(|(end_ms, span_ms, node, resources)| {
        let node = NodeUse {
            agent_cpu_us: node[0],
            engine_cpu_us: node[1],
            agent_memory_bytes: node[2],
            engine_memory_bytes: node[3],
            pool_size_bytes: node[4],
            pool_free_bytes: node[5],
        };
        Minute { end_ms, span_ms, node, resources }
    })
}

/// A segment, and where each of its records ends.
fn segment(minutes: &[Minute]) -> (Vec<u8>, Vec<usize>) {
    let (mut bytes, mut named, mut ends) = (SEGMENT_HEADER.to_vec(), BTreeSet::new(), Vec::new());
    for minute in minutes {
        bytes.extend(encode(minute, &mut named).unwrap());
        ends.push(bytes.len());
    }
    (bytes, ends)
}

/// The minutes with the first name of each resource, as a reader of the segment knows them.
fn named(minutes: &[Minute]) -> Vec<Minute> {
    let mut first = BTreeMap::new();
    let mut minutes = minutes.to_vec();
    for (resource, work) in minutes.iter_mut().flat_map(|minute| &mut minute.resources) {
        work.name.clone_from(first.entry(*resource).or_insert_with(|| work.name.clone()));
    }
    minutes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_segment_is_read_as_it_was_written(minutes in vec(minute(), 0..4)) {
        let (bytes, _) = segment(&minutes);
        let mut records = Records::of(&bytes);
        let read: Vec<Minute> = records.by_ref().collect();
        prop_assert_eq!(records.good_bytes(), bytes.len());
        prop_assert_eq!(read, named(&minutes));
    }

    #[test]
    fn a_segment_that_ends_anywhere_has_the_records_before(minutes in vec(minute(), 1..3)) {
        let (bytes, ends) = segment(&minutes);
        let expected = named(&minutes);
        for length in 0..bytes.len() {
            let mut records = Records::of(&bytes[..length]);
            let read: Vec<Minute> = records.by_ref().collect();
            let whole = ends.iter().filter(|end| **end <= length).count();
            prop_assert_eq!(&read[..], &expected[..whole]);
            let good = ends[..whole].last().copied().unwrap_or(SEGMENT_HEADER.len());
            prop_assert_eq!(records.good_bytes(), if length < SEGMENT_HEADER.len() { 0 } else { good });
        }
    }

    #[test]
    fn a_bit_that_flips_costs_records_and_invents_none(
        minutes in vec(minute(), 2..4), place in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        let (mut bytes, ends) = segment(&minutes);
        let at = place.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let read: Vec<Minute> = Records::of(&bytes).collect();
        let before = ends.iter().filter(|end| **end <= at).count();
        prop_assert!(read.len() < minutes.len(), "one record at least is lost");
        if at >= SEGMENT_HEADER.len() {
            prop_assert_eq!(&read[..before], &named(&minutes)[..before]);
        }
        for minute in read {
            // A name may be lost with the record that has it.
            let is_of = |written: &Minute| written.end_ms == minute.end_ms && written.node == minute.node;
            prop_assert!(minutes.iter().any(is_of));
        }
    }

    #[test]
    fn any_bytes_are_decoded_without_a_panic(mut bytes in vec(any::<u8>(), 0..200)) {
        Records::of(&bytes).for_each(drop);
        bytes.splice(0..0, SEGMENT_HEADER);
        Records::of(&bytes).for_each(drop);
    }

    #[test]
    fn a_thinned_segment_has_the_same_sum(mut minutes in vec(minute(), 1..5)) {
        for (at, minute) in (1..).zip(&mut minutes) {
            minute.end_ms = 600_000 * 7 + at * 60_000;
        }
        let sum = |minutes: &[Minute]| {
            minutes.iter().fold(Minute::default(), |mut sum, one| { sum.add(one); sum })
        };
        let (bytes, _) = segment(&minutes);
        let thinned: Vec<Minute> = Records::of(&thin(&bytes, 600_000).unwrap()).collect();
        prop_assert_eq!(thinned.len(), 1);
        prop_assert_eq!(sum(&thinned), sum(&named(&minutes)));
        prop_assert_eq!(thin(b"no segment", 600_000), None);
    }

    #[test]
    fn the_records_of_a_baseline_add_up_to_those_of_its_interval_and_stay_near_their_bound(
        mut minutes in vec(minute(), 1..40), step in 1u64..200_000, bytes_max in 0usize..9_000,
    ) {
        let (from_ms, to_ms) = (4_200_000, 4_200_000 + 40 * 60_000);
        for (at, minute) in (1..).zip(&mut minutes) {
            minute.end_ms = from_ms + at * 60_000;
        }
        let sum = |minutes: &[Minute]| {
            minutes.iter().fold(Minute::default(), |mut sum, one| { sum.add(one); sum })
        };
        let mut kept = Kept::new(from_ms, to_ms, step, bytes_max);
        minutes.iter().for_each(|minute| kept.add(minute));
        let (step_ms, segment) = kept.finish().unwrap();
        let records: Vec<Minute> = Records::of(&segment).collect();
        // A resource that was renamed may have another of its names in the sum.
        let nameless = |mut sum: Minute| {
            sum.resources.values_mut().for_each(|work| work.name.clear());
            sum
        };
        prop_assert_eq!(nameless(sum(&records)), nameless(sum(&minutes)));
        prop_assert!(step_ms >= step && step_ms < 2 * (to_ms - from_ms).max(step), "{}", step_ms);
        prop_assert!(segment.len() <= bytes_max || records.len() <= 2, "{} bytes in {}", segment.len(), records.len());
        prop_assert!(Kept::new(from_ms, to_ms, step, bytes_max).finish().is_none());
    }

    #[test]
    fn points_of_a_series_add_up_to_all_of_its_interval(
        ends in vec(1u64..4_000_000, 1..40), step in 0u64..400_000, cells_max in 1usize..60,
    ) {
        let mut series = Series::new(600_000, 3_600_000, step, cells_max);
        let mut expected = 0;
        for end_ms in ends {
            let mut minute = Minute { end_ms, span_ms: 60_000, ..Minute::default() };
            let mut work = Work { name: "db".into(), ..Work::default() };
            work.requests[READ].time_us = 7;
            minute.resources.insert(ResourceId(1), work);
            minute.resources.insert(ResourceId(2), Work { name: "other".into(), ..Work::default() });
            let inside = end_ms > 600_000 && end_ms <= 3_600_000;
            expected += u64::from(inside);
            series.add(minute, |work| work.name == "db");
        }
        let points: Vec<_> = series.points().collect();
        let total: u64 = points.iter().map(|(_, point)| point.minute.span_ms / 60_000).sum();
        prop_assert_eq!(total, expected);
        let waited: u64 = points.iter().flat_map(|(_, point)| point.waits[&ResourceId(1)].values()).sum();
        prop_assert_eq!(waited, 7 * expected);
        prop_assert!(points.len() == 1 || points.len() * 2 <= cells_max);
        for (begin, point) in points {
            prop_assert!(point.minute.end_ms > begin && point.minute.end_ms <= begin + series.step_ms());
            prop_assert_eq!(point.minute.resources.len(), 1);
        }
    }

    /// Counters of a pretended engine that is started anew now and then, against sums that were
    /// kept beside it.
    #[test]
    fn minutes_add_up_to_what_was_done_also_over_restarts(
        steps in vec((vec(1u64..5000, 1..6), 0u64..100, 0u8..8), 2..20),
    ) {
        let (mut counted, mut total, mut done) = (Work::default(), Minute::default(), 0);
        let mut latencies = Histogram::default();
        let mut before = Reading { engine: Some(1), ..Reading::default() };
        before.replicas.insert(ResourceId(3), ReplicaReading::default());
        for (at, (values, bytes, event)) in (1..).zip(steps) {
            let mut engine = before.engine;
            if event == 0 {
                // The engine was started anew, and no counter says so by itself.
                (counted, latencies) = (Work::default(), Histogram::default());
                engine = engine.map(|pid| pid + 1);
            }
            for value in values {
                latencies.note(value);
                counted.requests[WRITE].bytes += bytes;
                done += bytes;
            }
            counted.requests[WRITE].time_us = latencies.sum();
            counted.requests[WRITE].buckets = (&latencies).into();
            let peer = counted.peers.entry(NodeId(2)).or_default();
            peer.sent_bytes += bytes;
            if event == 1 {
                // A promotion: acknowledgements are counted anew, and bytes are not.
                peer.acknowledged = Stage::default();
            }
            peer.acknowledged.count += 1;
            let mut now = Reading { at: Time(at * 60_000_000), wall_ms: at * 60_000, engine, ..Reading::default() };
            let replica = ReplicaReading { is_primary: true, work: counted.clone() };
            now.replicas.insert(ResourceId(3), replica);
            total.add(&now.since(&before));
            prop_assert_eq!(total.span_ms, at * 60_000);
            before = now;
        }
        let work = &total.resources[&ResourceId(3)];
        prop_assert_eq!(work.requests[WRITE].bytes, done);
        prop_assert_eq!(work.primary_ms, total.span_ms);
        prop_assert!(work.peers[&NodeId(2)].acknowledged.count <= before.at.0 / 60_000_000);
    }
}

#[test]
fn a_counter_that_became_smaller_began_anew() {
    let reading = |count: u64, at: u64| {
        let mut work = Work { journal: Stage { count, time_us: 10 * count }, ..Work::default() };
        work.peers.insert(NodeId(2), Peer { sent_bytes: count, ..Peer::default() });
        let replicas = [(ResourceId(1), ReplicaReading { is_primary: false, work })].into();
        Reading { at: Time(at), engine: Some(7), replicas, ..Reading::default() }
    };
    let minute = reading(5, 60_000_000).since(&reading(900, 0));
    let work = &minute.resources[&ResourceId(1)];
    assert_eq!((work.journal.count, work.journal.time_us, work.primary_ms), (5, 50, 0));
    assert_eq!(work.peers[&NodeId(2)].sent_bytes, 5);
    assert_eq!(minute.span_ms, 60_000);
    let minute = reading(905, 60_000_000).since(&reading(900, 0));
    assert_eq!(minute.resources[&ResourceId(1)].journal.count, 5);
}

#[test]
fn a_sum_has_the_most_of_lag_and_fill_and_the_last_of_space() {
    let minute = |end_ms: u64, fill: u64, free: u64| {
        let mut work = Work { journal_permille: fill, ..Work::default() };
        work.peers.insert(NodeId(2), Peer { lag_bytes: fill, ..Peer::default() });
        let node = NodeUse { pool_size_bytes: 100, pool_free_bytes: free, ..NodeUse::default() };
        Minute { end_ms, node, resources: [(ResourceId(1), work)].into(), ..Minute::default() }
    };
    // In any order.
    let mut sum = minute(2, 400, 30);
    sum.add(&minute(3, 900, 20));
    sum.add(&minute(1, 100, 40));
    let work = &sum.resources[&ResourceId(1)];
    assert_eq!((work.journal_permille, work.peers[&NodeId(2)].lag_bytes), (900, 900));
    assert_eq!((sum.node.pool_free_bytes, sum.end_ms), (20, 3));
}

/// A replica whose device does 2000 requests a second, with two peers: its minute as it is written.
fn busy(seed: u64) -> Work {
    let mut work = Work { primary_ms: 60_000, journal_permille: 300 + seed, ..Work::default() };
    for kind in [READ, WRITE] {
        let requests = &mut work.requests[kind];
        (requests.bytes, requests.time_us) = (60_000 * 16_384 + seed, 60_000 * 700 + seed);
        // Twelve sizes of latencies, from 32 µs to 64 ms.
        requests.buckets.0[5..17]
            .iter_mut()
            .enumerate()
            .for_each(|(at, count)| *count = 9000 / (1 + at as u64) + seed);
    }
    let stage = Stage { count: 40_000 + seed, time_us: 40_000 * 300 + seed };
    (work.journal, work.commit, work.read) = (stage, stage, stage);
    (work.disk_written_bytes, work.disk_read_bytes) = (2_000_000_000 + seed, 900_000_000 + seed);
    for node in [2, 3] {
        let peer = Peer {
            acknowledged: stage,
            sent_bytes: 1_000_000_000 + seed,
            lag_bytes: 40_960,
            ..Peer::default()
        };
        work.peers.insert(NodeId(node), peer);
    }
    work
}

/// 8 days of 100 busy primaries on one node fit into 64 MiB, because older hours are thinned to
/// records of ten minutes when space runs out: at most 1440 minutes and 7 days of tens.
#[test]
fn a_minute_of_a_hundred_busy_replicas_takes_at_most_17_kib() {
    let resources = (1..=100).map(|at| (ResourceId(at), busy(at))).collect();
    let node = NodeUse {
        agent_cpu_us: 900_000,
        engine_cpu_us: 50_000_000,
        agent_memory_bytes: 30 << 20,
        engine_memory_bytes: 300 << 20,
        pool_size_bytes: 1 << 40,
        pool_free_bytes: 1 << 39,
    };
    let minute = Minute { end_ms: 1_790_000_000_000, span_ms: 60_000, node, resources };
    let mut named = BTreeSet::new();
    let bytes = encode(&minute, &mut named).unwrap().len();
    println!("a minute of 100 busy replicas takes {bytes} bytes");
    assert!(bytes <= 17 << 10, "{bytes}");
    // Numbers of ten minutes take half a byte more each.
    let mut tens = Minute::default();
    (0..10).for_each(|_| tens.add(&minute));
    let ten_bytes = encode(&tens, &mut named).unwrap().len();
    let all = 1440 * bytes + 7 * 144 * ten_bytes;
    println!("ten minutes take {ten_bytes} bytes, and 8 days {all}");
    assert!(all <= 64 << 20, "{all}");
    let idle = (1..=100).map(|at| (ResourceId(at), Work::default())).collect();
    let bytes = encode(&Minute { resources: idle, ..Minute::default() }, &mut named).unwrap().len();
    assert!(bytes <= 1024, "{bytes} for idle replicas");
}
