use super::files::Writer;
use super::pages::{LoadQuestion, page};
use super::*;
use crate::metrics::{EngineSeen, Gathered};
use mainstay_api::engine::{PeerStatus, ReplicaStatus};
use mainstay_api::metrics::{PeerCounts, ReplicaCounts, ReplicaMetrics, RequestKind, VolumeCounts};
use mainstay_api::rest::WaitClass;
use mainstay_control::State;
use mainstay_history::{DISCARD, FLUSH, KINDS, READ, WRITE, WRITE_ZEROES};
use mainstay_types::{NodeId, ResourceId, Role, Time};

const BEGIN_MS: u64 = 1_790_000_000_000;

/// Data for a page of metrics after this many writes of 4 KiB and 300 µs each.
fn seen(writes: u64, wall_ms: u64) -> Gathered {
    let status = ReplicaStatus {
        resource: ResourceId(4),
        name: "db".into(),
        role: Role::Primary,
        journal_bytes: 1000,
        journal_bytes_used: 250,
        peers: vec![PeerStatus {
            node: NodeId(2),
            lag_bytes: 4096,
            lag_since_us: Time(500_000),
            ..PeerStatus::default()
        }],
        ..ReplicaStatus::default()
    };
    let mut counts = ReplicaCounts { volumes: vec![VolumeCounts::default()], ..ReplicaCounts::default() };
    let mut peer = PeerCounts { node: NodeId(2), sent_bytes: 4096 * writes, ..PeerCounts::default() };
    for _ in 0..writes {
        counts.requests_us[WRITE].note(300);
        counts.commit_us.note(250);
        counts.journal_us.note(100);
        peer.acknowledged_us.note(250);
    }
    counts.volumes[0].requests[WRITE].count = writes;
    counts.volumes[0].requests[WRITE].bytes = 4096 * writes;
    counts.peers = vec![peer];
    let replicas = vec![ReplicaMetrics { status, counts }];
    let engine = EngineSeen { now: Time(1_000_000), replicas, ..EngineSeen::default() };
    Gathered { wall_ms, engine: Some(engine), pool: Some((100, 40)), ..Gathered::default() }
}

fn take(recorder: &mut Recorder, at: u64, writes: u64, engine: u32) {
    let now = counters::reading(&seen(writes, BEGIN_MS + at * 60_000), Some(engine), Time(at * 60_000_000));
    recorder.take(now.unwrap());
}

#[test]
fn kinds_of_requests_are_in_the_order_of_the_engine() {
    use RequestKind::{Discard, Flush, Read, Write, WriteZeroes};
    let kinds =
        [(READ, Read), (WRITE, Write), (DISCARD, Discard), (WRITE_ZEROES, WriteZeroes), (FLUSH, Flush)];
    assert_eq!(RequestKind::ALL.len(), KINDS);
    assert!(kinds.into_iter().all(|(place, kind)| RequestKind::ALL[place] == kind));
}

#[test]
fn an_answer_is_the_sum_of_minutes_over_restarts_of_engine_and_agent() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("history");
    let mut recorder = Recorder::new(Writer::new(directory.clone()));
    take(&mut recorder, 0, 1000, 7);
    take(&mut recorder, 1, 1010, 7);
    // The engine is started anew, and has counted more since than before.
    take(&mut recorder, 2, 2000, 8);
    // So is the agent: nobody knows what was counted before its first reading.
    let mut recorder = Recorder::new(Writer::new(directory.clone()));
    take(&mut recorder, 3, 9000, 8);
    take(&mut recorder, 4, 9005, 8);
    // The engine was silent for too long: the record would say nothing of its minutes.
    take(&mut recorder, 20, 9900, 8);
    let files = files::Files::new(directory);
    let question =
        LoadQuestion { from_ms: BEGIN_MS, to_ms: BEGIN_MS + 3_600_000, step_ms: 0, resources: Vec::new() };
    let answer = page(&files, &question, "n1".into(), &State::default()).unwrap();
    assert_eq!(
        (answer.points.len(), answer.step_ms, answer.since_ms),
        (1, 3_600_000, Some(BEGIN_MS + 60_000))
    );
    let point = &answer.points[0];
    assert_eq!((point.covered_ms, point.pool_free_bytes), (180_000, 40));
    let db = &point.resources[0];
    assert_eq!((db.resource.as_str(), db.primary_ms, db.journal_permille), ("db", 180_000, 250));
    assert_eq!((db.writes.count, db.writes.bytes), (2015, 2015 * 4096));
    assert_eq!((db.writes.time_us, db.commit.time_us), (2015 * 300, 2015 * 250));
    assert!(db.writes.p99_us > 256 && db.writes.p99_us <= 512, "{:?}", db.writes);
    assert_eq!(db.writes.histogram.iter().sum::<u64>(), 2015);
    let peer = &db.peers[0];
    assert_eq!((peer.lag_bytes, peer.lag_ms, peer.sent_bytes), (4096, 500, 2015 * 4096));
    let waits: Vec<_> = db.waits.iter().map(|wait| (wait.class, wait.node.is_some(), wait.time_us)).collect();
    assert_eq!(waits, [(WaitClass::Queue, false, 2015 * 50), (WaitClass::Peer, true, 2015 * 250)]);
    // By minutes, and of one resource.
    let by_minute = LoadQuestion { step_ms: 1, resources: vec!["db".into()], ..question.clone() };
    let answer = page(&files, &by_minute, "n1".into(), &State::default()).unwrap();
    assert_eq!(answer.step_ms, 60_000);
    let writes: Vec<_> =
        answer.points.iter().map(|point| (point.at_ms, point.resources[0].writes.count)).collect();
    assert_eq!(writes, [(BEGIN_MS, 10), (BEGIN_MS + 60_000, 2000), (BEGIN_MS + 180_000, 5)]);
    let other = LoadQuestion { resources: vec!["other".into()], ..question };
    let answer = page(&files, &other, "n1".into(), &State::default()).unwrap();
    assert!(answer.points[0].resources.is_empty());
}

#[test]
fn a_history_that_cannot_be_written_is_told_once() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("history");
    std::fs::write(&directory, "in the way").unwrap();
    let mut recorder = Recorder::new(Writer::new(directory.clone()));
    take(&mut recorder, 0, 1, 7);
    assert!(!recorder.fails);
    take(&mut recorder, 1, 2, 7);
    assert!(recorder.fails);
    std::fs::remove_file(&directory).unwrap();
    take(&mut recorder, 2, 3, 7);
    assert!(!recorder.fails);
}

#[test]
fn an_engine_that_does_not_answer_gives_no_reading() {
    let silent = Gathered { engine: None, ..seen(1, BEGIN_MS) };
    assert_eq!(counters::reading(&silent, Some(7), Time(1)), None);
}
