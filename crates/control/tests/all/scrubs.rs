//! Scrubs on a schedule, and what is remembered of them (R17).

use crate::common::*;
use mainstay_control::scrubs::Scrubs;
use mainstay_control::state::{Command, Outcome, ResourceSpec};
use mainstay_types::{
    Choices, Code, Epoch, Incarnation, Key, NodeId, ResourceId, ScrubEnd, ScrubRepair, ScrubState,
    ScrubSummary, Severity,
};
use std::collections::BTreeMap;

const DAY: u64 = 24 * 3_600_000;
/// Some time in 2026.
const NOW: u64 = 1_790_000_000_000;
const EVERY: u64 = 10 * DAY;

fn scrubs(nodes: &Nodes) -> &Scrubs {
    &nodes.state.resources[&R].scrubs
}

/// Two replicas with nothing to do, and a schedule since [`NOW`].
fn scheduled() -> Nodes {
    let mut nodes = running();
    let command = change_settings(nodes.state.resources[&R].record.version, &[(Key::ScrubInterval, EVERY)]);
    assert!(apply_at(&mut nodes.state, NOW, command).is_ok());
    clocks(&mut nodes, NOW);
    nodes
}

/// Sets the wall clock of all nodes to `wall_ms`, and lets primaries feed all others.
fn clocks(nodes: &mut Nodes, wall_ms: u64) {
    for observed in nodes.observed.values_mut() {
        observed.wall_ms = wall_ms;
        observed.replicas.values_mut().for_each(|replica| replica.feeds_all = true);
    }
    nodes.settle();
}

fn due(nodes: &Nodes, now: u64) -> u64 {
    nodes.state.resources[&R].scrub_due_ms(now).expect("there is a schedule")
}

fn running_on(nodes: &Nodes, node: NodeId) -> Option<u64> {
    let seen = nodes.observed[&node].replicas.get(&R)?.scrub.as_ref()?;
    (seen.state == ScrubState::Running).then_some(seen.ordinal)
}

/// The scrub that `node` leads ends.
fn ends(nodes: &mut Nodes, node: NodeId, with: impl FnOnce(&mut ScrubSummary)) {
    let replicas = &mut nodes.observed.get_mut(&node).unwrap().replicas;
    let seen = replicas.get_mut(&R).unwrap().scrub.as_mut().unwrap();
    (seen.state, seen.took_ms) = (ScrubState::Done, 1000);
    (seen.extents, seen.done, seen.compared) = (16, 16, vec![(A, 16), (B, 16)]);
    with(seen);
    nodes.settle();
}

#[test]
fn a_scrub_begins_when_it_is_due_and_the_next_an_interval_later() {
    let mut nodes = scheduled();
    let mut at = NOW;
    for ordinal in 1..4 {
        let next = due(&nodes, at);
        assert!(next > at && next <= at + EVERY, "{ordinal}: {next} after {at}");
        clocks(&mut nodes, next - 1);
        assert_eq!(running_on(&nodes, A), None);
        clocks(&mut nodes, next);
        assert_eq!((running_on(&nodes, A), running_on(&nodes, B)), (Some(ordinal), None));
        clocks(&mut nodes, next + 5000);
        ends(&mut nodes, A, |_| {});
        let whole = scrubs(&nodes).whole.clone().expect("it was whole");
        assert_eq!((whole.ordinal, whole.end, whole.at_ms), (ordinal, ScrubEnd::Whole, next + 5000));
        assert!(scrubs(&nodes).turn.is_none());
        at = next;
        assert_eq!(due(&nodes, at + 5000), at + EVERY);
    }
    let event = nodes.state.events.back().expect("it is told");
    assert!(event.severity == Severity::Info && event.text.contains("all replicas are equal"), "{event:?}");
}

#[test]
fn resources_are_not_due_at_once() {
    let mut nodes = scheduled();
    let mut firsts: BTreeMap<u64, u32> = BTreeMap::new();
    for number in 0..100 {
        let spec = ResourceSpec {
            volumes: vec![1 << 20],
            journal_bytes: 16 << 20,
            replicas: vec![A, B],
            preferred: vec![],
        };
        let choices = [(Key::ScrubInterval, EVERY)].into_iter().collect();
        let command = Command::CreateResource { name: format!("r{number}"), spec, choices, origin: None };
        let Outcome::ResourceCreated { resource } = apply_at(&mut nodes.state, NOW, command) else {
            panic!()
        };
        let first = nodes.state.resources[&resource].scrub_due_ms(NOW).expect("a schedule");
        *firsts.entry((first - NOW - 1) / DAY).or_default() += 1;
    }
    assert!(firsts.len() == 10 && firsts.values().all(|count| (2..25).contains(count)), "{firsts:?}");
}

#[test]
fn no_scrub_begins_while_a_replica_is_not_in_sync_or_is_copied_to() {
    let mut nodes = scheduled();
    let at = due(&nodes, NOW);
    nodes.power_cut(B);
    assert!(die(&mut nodes.state, B).is_ok());
    clocks(&mut nodes, at);
    assert_eq!(running_on(&nodes, A), None);
    let why = nodes.state.scrub_waits_for(R).expect("B is dead");
    assert!(why.contains("replica on b is not in sync"), "{why}");
    nodes.up.insert(B, true);
    nodes.settle();
    assert_eq!(running_on(&nodes, A), None, "alive, and not in sync");
    assert!(nodes.grows(B).is_ok());
    let primary = nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&R).unwrap();
    primary.feeds_all = false;
    nodes.settle();
    assert_eq!(running_on(&nodes, A), None, "the primary copies to a replica");
    clocks(&mut nodes, at + 1);
    assert_eq!(running_on(&nodes, A), Some(1));
}

#[test]
fn a_new_primary_keeps_the_schedule_and_soon_retries_an_interrupted_scrub() {
    let mut nodes = scheduled();
    let first = due(&nodes, NOW);
    clocks(&mut nodes, first);
    ends(&mut nodes, A, |_| {});
    let fail_over = |nodes: &mut Nodes, from: NodeId, to: NodeId, now: u64| {
        nodes.power_cut(from);
        let generation = nodes.state.nodes[&from].generation;
        apply_at(&mut nodes.state, now, Command::NodeDead { node: from, generation });
        nodes.up.insert(from, true);
        clocks(nodes, now);
        assert_eq!(primary(&nodes.state), Some(to));
        assert!(nodes.grows(from).is_ok());
        clocks(nodes, now);
    };
    fail_over(&mut nodes, A, B, first + 1000);
    assert_eq!((running_on(&nodes, A), running_on(&nodes, B)), (None, None), "it was whole");
    assert_eq!(due(&nodes, first + 1000), first + EVERY);

    let second = first + EVERY;
    clocks(&mut nodes, second);
    assert_eq!(running_on(&nodes, B), Some(1));
    fail_over(&mut nodes, B, A, second + 1000);
    let state = scrubs(&nodes);
    assert_eq!(state.whole.as_ref().map(|whole| whole.at_ms), Some(first), "what is known stays known");
    assert_eq!(state.failed.as_ref().map(|failed| failed.end), Some(ScrubEnd::Interrupted));
    assert_eq!(running_on(&nodes, A), None, "not at once");
    let again = due(&nodes, second + 1000);
    assert_eq!(again, second + 1000 + 600_000);
    clocks(&mut nodes, again);
    assert_eq!(running_on(&nodes, A), Some(1));
    // The report of the scrub before comes too late, and is of an epoch that is over.
    let late = ScrubSummary { epoch: Epoch(2), ..nodes.observed[&A].replicas[&R].scrub.clone().unwrap() };
    let late = ScrubSummary { state: ScrubState::Interrupted, ..late };
    let command = Command::ScrubEnded { resource: R, node: B, seen: late };
    assert_eq!(apply(&mut nodes.state, command), Outcome::Unchanged);
    fail_over(&mut nodes, A, B, again + 1000);
    assert_eq!(due(&nodes, again + 1000), again + 1000 + 1_200_000, "later and later");
}

#[test]
fn a_partial_scrub_is_tried_again_and_an_aborted_one_waits_for_the_next_turn() {
    let mut nodes = scheduled();
    let first = due(&nodes, NOW);
    clocks(&mut nodes, first);
    ends(&mut nodes, A, |seen| seen.compared = vec![(A, 16), (B, 15)]);
    let failed = scrubs(&nodes).failed.clone().expect("B was not compared in one extent");
    assert_eq!((failed.end, failed.lacking), (ScrubEnd::Partial, vec![B]));
    let again = due(&nodes, first);
    assert_eq!(again, first + 600_000);
    clocks(&mut nodes, again);
    assert_eq!(running_on(&nodes, A), Some(2));
    ends(&mut nodes, A, |seen| (seen.state, seen.done) = (ScrubState::Stopped, 3));
    assert_eq!(scrubs(&nodes).failed.as_ref().map(|failed| failed.end), Some(ScrubEnd::Stopped));
    assert_eq!(due(&nodes, again), first + EVERY);
    let resource = &nodes.state.resources[&R];
    assert_eq!(resource.scrub_late_ms(first + EVERY / 4), None);
    assert_eq!(
        resource.scrub_late_ms(first + EVERY / 2),
        Some(EVERY / 2),
        "no scrub has compared them since"
    );
}

#[test]
fn an_operators_scrub_counts_and_its_findings_are_told() {
    let mut nodes = scheduled();
    let planned = due(&nodes, NOW);
    // A day before it would have been due.
    clocks(&mut nodes, planned - DAY);
    let epoch = nodes.state.resources[&R].record.epoch;
    nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&R).unwrap().scrub =
        Some(ScrubSummary::running(epoch, 7));
    nodes.settle();
    assert!(scrubs(&nodes).whole.is_none() && scrubs(&nodes).turn.is_none());
    ends(&mut nodes, A, |seen| (seen.different, seen.repaired, seen.overwritten) = (5, 2, 1));
    let whole = scrubs(&nodes).whole.clone().expect("it was whole");
    assert_eq!((whole.different, whole.unrepaired(), whole.at_ms), (5, 2, planned - DAY));
    assert_eq!(due(&nodes, planned - DAY), planned + EVERY, "no operator asks for it again within a day");
    let event = nodes.state.events.back().expect("it is told");
    assert!(event.severity == Severity::Critical && event.text.contains("5 blocks differed"), "{event:?}");
}

#[test]
fn every_node_scrubs_one_resource_at_a_time() {
    let mut nodes = scheduled();
    let spec = |replicas: Vec<NodeId>| ResourceSpec {
        volumes: vec![1 << 20],
        journal_bytes: 16 << 20,
        replicas,
        preferred: vec![],
    };
    let mut other = |name: &str, replicas: Vec<NodeId>| {
        let spec = spec(replicas.clone());
        let command =
            Command::CreateResource { name: name.into(), spec, choices: Choices::default(), origin: None };
        let Outcome::ResourceCreated { resource } = apply(&mut nodes.state, command) else { panic!() };
        for node in &replicas {
            let version = nodes.state.resources[&resource].record.version;
            let incarnation = Incarnation(1000 + resource.0 * 10 + u64::from(node.0));
            let ready = Command::ReplicaReady { resource, version, node: *node, incarnation };
            assert!(apply(&mut nodes.state, ready).is_ok());
        }
        let expect_version = nodes.state.resources[&resource].record.version;
        let (by, to) = (replicas[0], replicas[0]);
        let promote = Command::Promote { resource, expect_version, by, to, reason: "test".into() };
        assert!(apply(&mut nodes.state, promote).is_ok());
        (resource, nodes.state.resources[&resource].record.epoch)
    };
    let (beside, beside_epoch) = other("beside", vec![B]);
    let (apart, apart_epoch) = other("apart", vec![W]);
    let epoch = nodes.state.resources[&R].record.epoch;
    assert_eq!(apply(&mut nodes.state, Command::BeginScrub { resource: R, epoch }), Outcome::Done);
    let begin = |resource, epoch| Command::BeginScrub { resource, epoch };
    assert_eq!(apply(&mut nodes.state, begin(beside, beside_epoch)), Outcome::Unchanged);
    let why = nodes.state.scrub_waits_for(beside).expect("R has its turn on B");
    assert!(why.contains("resource db is being compared on b"), "{why}");
    assert_eq!(apply(&mut nodes.state, begin(apart, apart_epoch)), Outcome::Done);
    let seen = ScrubSummary {
        state: ScrubState::Done,
        done: 16,
        compared: vec![(A, 16), (B, 16)],
        ..ScrubSummary::running(epoch, 1)
    };
    assert_eq!(apply(&mut nodes.state, Command::ScrubEnded { resource: R, node: A, seen }), Outcome::Done);
    assert_eq!(apply(&mut nodes.state, begin(beside, beside_epoch)), Outcome::Done);
}

#[test]
fn wrong_clocks_make_a_scrub_early_or_late_and_nothing_else() {
    let mut nodes = scheduled();
    let first = due(&nodes, NOW);
    // A clock that is years ahead begins a scrub. When it is right again, the next scrub does not
    // wait for years.
    let ahead = first + 2000 * DAY;
    clocks(&mut nodes, ahead);
    ends(&mut nodes, A, |_| {});
    assert_eq!(scrubs(&nodes).whole.as_ref().map(|whole| whole.at_ms), Some(ahead));
    assert_eq!(due(&nodes, first), first);
    clocks(&mut nodes, first);
    assert_eq!(running_on(&nodes, A), Some(2));
    ends(&mut nodes, A, |_| {});
    // A little ahead: no longer than two intervals and a half.
    for off in [DAY, EVERY / 2, EVERY] {
        let at = scrubs(&nodes).whole.as_ref().unwrap().at_ms - off;
        assert!(due(&nodes, at) <= at + 5 * EVERY / 2, "{off}");
    }
    // Behind, before there were computers: nothing is due, and nothing overflows.
    assert!(due(&nodes, 0) > 0);
    assert!(nodes.state.resources[&R].scrub_late_ms(u64::MAX).is_some());
}

#[test]
fn a_schedule_can_be_ended_changed_and_refused() {
    let mut nodes = scheduled();
    let first = due(&nodes, NOW);
    let of = |resource, interval_ms| {
        let off = (Key::ScrubRepair, ScrubRepair::Off as u64);
        let values = [(Key::ScrubInterval, interval_ms), off, (Key::ScrubRate, 5)];
        let changes = values.map(|(key, value)| (key, Some(value))).into();
        Command::ChangeSettings { resource: Some(resource), version: None, changes }
    };
    let set = |interval_ms| of(R, interval_ms);
    assert!(apply_at(&mut nodes.state, NOW, set(0)).is_ok());
    clocks(&mut nodes, first + EVERY);
    assert_eq!(running_on(&nodes, A), None);
    assert_eq!(nodes.state.resources[&R].scrub_due_ms(NOW), None);
    let epoch = nodes.state.resources[&R].record.epoch;
    assert_eq!(apply(&mut nodes.state, Command::BeginScrub { resource: R, epoch }), Outcome::Unchanged);
    for bad in [999, 3651 * DAY] {
        let Outcome::Refused(refusal) = apply(&mut nodes.state, set(bad)) else { panic!("{bad}") };
        assert_eq!(refusal.code, Code::BadSettings);
    }
    let now = first + EVERY;
    assert!(apply_at(&mut nodes.state, now, set(1000)).is_ok());
    assert!((now + 1..=now + 1000).contains(&due(&nodes, now)), "not at once, however long ago the last was");
    assert_eq!(apply_at(&mut nodes.state, now, set(1000)), Outcome::Unchanged);
    let scrub = nodes.state.resources[&R].record.policy.scrub;
    assert_eq!((scrub.repair, scrub.rate), (ScrubRepair::Off, 5));
    // When nothing is left of the resource, it is unknown.
    assert!(!apply(&mut nodes.state, of(ResourceId(99), 1000)).is_ok());
}
