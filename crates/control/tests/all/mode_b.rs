//! Mode B in the record: which members' memory counts, which one is promoted, and which one goes on
//! when all have lost it.

use crate::common::*;
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Command, Outcome, Resource, State};
use mainstay_types::{Index, Instance, IssChange, LagLimits, Member, Mode, NodeId, Position};

const OLD: Instance = Instance(50);
const NEW: Instance = Instance(51);

fn resource(state: &State) -> &Resource {
    &state.resources[&R]
}

fn member(state: &State, node: NodeId) -> Member {
    resource(state).record.replica(node).expect("a replica")
}

fn set(state: &mut State, mode: Mode) -> Outcome {
    let version = resource(state).record.version;
    let lag = LagLimits { bytes: 1 << 20, ms: 1000 };
    apply(state, change_mode(version, mode, lag, false))
}

fn counts(state: &mut State, node: NodeId, instance: Option<Instance>) -> Outcome {
    let change = IssChange::Memory { member: member(state, node), instance };
    let record = &resource(state).record;
    let (version, epoch) = (record.version, record.epoch);
    apply(state, Command::ChangeIss { resource: R, version, epoch, change })
}

fn reopened(state: &State, node: NodeId, instance: Instance, end: u64) -> Command {
    let Member { incarnation, .. } = member(state, node);
    let (version, end) = (resource(state).record.version, Position::new(1, end));
    Command::ReplicaReopened { resource: R, version, node, incarnation, instance, end }
}

fn says(state: &mut State, node: NodeId, end: u64) -> Outcome {
    let command = reopened(state, node, NEW, end);
    apply(state, command)
}

/// A is primary of A and B, and the memory of both counts.
fn in_b() -> State {
    let mut state = ready();
    assert!(set(&mut state, Mode::B).is_ok());
    for node in [A, B] {
        assert!(counts(&mut state, node, Some(OLD)).is_ok());
    }
    state
}

#[test]
fn memory_counts_in_mode_b_only_of_members_and_until_the_primary_says_otherwise() {
    let mut state = ready();
    assert!(!counts(&mut state, A, Some(OLD)).is_ok(), "in mode C");
    let mut state = in_b();
    assert!(!counts(&mut state, A, Some(OLD)).is_ok(), "it does already");
    assert!(!counts(&mut state, A, Some(Instance(0))).is_ok(), "no instance");
    assert!(set(&mut state, Mode::C).is_ok());
    assert_eq!(resource(&state).record.instances.len(), 2, "not everything may be durable yet");
    assert!(counts(&mut state, A, None).is_ok() && counts(&mut state, B, None).is_ok());
    assert!(resource(&state).record.instances.is_empty());
}

#[test]
fn the_memory_of_a_member_that_leaves_counts_no_more() {
    let mut state = in_b();
    die(&mut state, B);
    assert_eq!(members(&state), [A]);
    assert_eq!(resource(&state).record.instances.keys().copied().collect::<Vec<_>>(), [A]);
}

/// On the way from B to A, the set shrinks once no write is in memory alone.
#[test]
fn for_mode_a_the_set_shrinks_when_memory_counts_no_more() {
    let mut state = in_b();
    assert!(set(&mut state, Mode::A).is_ok());
    assert_eq!(members(&state), [A, B]);
    assert!(counts(&mut state, A, None).is_ok());
    assert_eq!(members(&state), [A, B]);
    assert!(counts(&mut state, B, None).is_ok());
    assert_eq!(members(&state), [A]);
}

#[test]
fn a_member_that_lost_its_memory_stays_a_member_and_is_not_promoted() {
    let mut state = in_b();
    assert!(says(&mut state, B, 7).is_ok());
    assert_eq!(members(&state), [A, B]);
    assert!(!promote(&mut state, A, B).is_ok());
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (None, vec![A, B]), "A may have everything");
    let advised = advice(&state, &Observations { has_leader: true, ..Observations::default() });
    assert!(advised.iter().any(|one| one.remedy.contains("bring a back")), "{advised:?}");
    // A is back as it was: it was only cut off.
    rejoin(&mut state, A);
    assert!(promote(&mut state, A, A).is_ok());
    assert!(counts(&mut state, B, Some(NEW)).is_ok(), "the primary has fed it");
    die(&mut state, A);
    assert_eq!(primary(&state), Some(B));
}

#[test]
fn a_primary_that_lost_its_memory_is_replaced() {
    let mut state = in_b();
    assert!(says(&mut state, A, 7).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![A, B]));
}

#[test]
fn when_all_have_lost_their_memory_the_furthest_goes_on() {
    let mut state = in_b();
    assert!(says(&mut state, B, 3).is_ok());
    assert!(says(&mut state, A, 5).is_ok());
    assert_eq!(primary(&state), None);
    assert!(!promote(&mut state, A, A).is_ok(), "B may have been fed since it said how far it was");
    assert!(says(&mut state, B, 9).is_ok());
    assert_eq!(resource(&state).record.instances[&B], NEW);
    assert!(!promote(&mut state, A, A).is_ok() && promote(&mut state, B, B).is_ok());
    assert!(!resource(&state).reopened.contains_key(&B) && resource(&state).reopened.contains_key(&A));
}

#[test]
fn promotion_waits_for_the_absent_member_with_the_longest_log() {
    let mut state = in_b();
    assert!(says(&mut state, B, 3).is_ok());
    assert!(says(&mut state, A, 5).is_ok());
    die(&mut state, A);
    assert!(says(&mut state, B, 3).is_ok());
    assert!(!promote(&mut state, B, B).is_ok());
    rejoin(&mut state, A);
    assert!(promote(&mut state, A, A).is_ok());
}

#[test]
fn a_late_word_of_an_opening_counts_for_nothing() {
    let mut state = in_b();
    let late = reopened(&state, B, NEW, 3);
    assert!(says(&mut state, B, 3).is_ok());
    assert!(counts(&mut state, B, Some(Instance(52))).is_ok());
    assert!(matches!(apply(&mut state, late), Outcome::Conflict { .. }));
    let own = reopened(&state, B, Instance(52), 3);
    assert!(matches!(apply(&mut state, own), Outcome::Conflict { .. }), "it counts in that one");
}

/// R11: the member that may have everything does not come back.
#[test]
fn going_on_without_the_member_that_may_have_everything_is_an_act() {
    let mut state = in_b();
    assert!(says(&mut state, B, 7).is_ok());
    die(&mut state, A);
    let (to, version) = (member(&state, B), resource(&state).record.version);
    let (end, heard) = (Index(7), Index(7));
    assert!(apply(&mut state, Command::ForcePromote { resource: R, version, to, end, heard }).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(B), vec![B]));
    assert!(resource(&state).record.instances.is_empty() && resource(&state).reopened.is_empty());
}

/// Nodes follow their plans here. Engines that restart say so before anything else, and one of them
/// serves again.
#[test]
fn nodes_that_lost_their_memory_go_on_with_the_furthest() {
    let mut nodes = running();
    assert!(set(&mut nodes.state, Mode::B).is_ok());
    for node in [A, B] {
        let instance = nodes.observed[&node].replicas[&R].instance;
        assert!(counts(&mut nodes.state, node, Some(instance)).is_ok());
    }
    nodes.settle();
    nodes.ends.insert(A, Position::new(1, 8));
    nodes.ends.insert(B, Position::new(1, 9));
    nodes.engine_restart(A);
    nodes.engine_restart(B);
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(B), vec![B]));
    // One of two: the other goes on.
    let instance = nodes.observed[&A].replicas[&R].instance;
    assert!(counts(&mut nodes.state, A, Some(instance)).is_ok());
    nodes.engine_restart(B);
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.runs_on()), (Some(A), vec![A]));
}
