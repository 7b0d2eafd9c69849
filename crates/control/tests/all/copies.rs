//! The number of copies that there have to be: the records that are accepted, and the members that
//! stay in sync.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::{Code, ConfigVersion, Copies, IssChange, LagLimits, MinCopies, Mode, ShrinkReason};

const TWO: MinCopies = MinCopies { copies: 2, suspend_ms: 20_000 };

fn version(state: &State) -> ConfigVersion {
    state.resources[&R].record.version
}

fn want(state: &mut State, min_copies: MinCopies) -> Outcome {
    let version = version(state);
    apply(state, change_copies(version, min_copies))
}

fn set_mode(state: &mut State, mode: Mode) -> Outcome {
    let version = version(state);
    let lag = LagLimits { bytes: 1 << 20, ms: 1000 };
    apply(state, change_mode(version, mode, lag, false))
}

/// A and B, and two copies are wanted.
fn wanting_two() -> State {
    let mut state = ready();
    assert!(want(&mut state, TWO).is_ok());
    state
}

fn refused(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

fn told(state: &State) -> Vec<(String, String)> {
    let observations = Observations { has_leader: true, ..Observations::default() };
    let of_copies =
        advice(state, &observations).into_iter().filter(|one| one.what.contains("copies are wanted"));
    of_copies.map(|one| (one.what, one.remedy)).collect()
}

#[test]
fn the_wanted_copies_are_changed_on_the_version_that_was_read() {
    let mut state = ready();
    let old = version(&state);
    assert_eq!(state.resources[&R].record.policy.min_copies, MinCopies::default());
    assert!(want(&mut state, TWO).is_ok());
    assert!(version(&state) > old);
    assert_eq!(want(&mut state, TWO), Outcome::Unchanged);
    let late = change_copies(old, MinCopies::default());
    assert!(matches!(apply(&mut state, late), Outcome::Conflict { .. }));
    assert_eq!(state.resources[&R].record.policy.min_copies, TWO);
}

#[test]
fn no_more_copies_are_wanted_than_there_can_be() {
    let mut state = ready();
    for (copies, suspend_ms, code) in
        [(0, 1, Code::BadSettings), (3, 1, Code::BadMinCopies), (2, 3_600_001, Code::BadSettings)]
    {
        assert_eq!(refused(want(&mut state, MinCopies { copies, suspend_ms })), code);
    }
    assert!(want(&mut state, MinCopies { copies: 2, suspend_ms: 3_600_000 }).is_ok());
    assert_eq!(refused(set_mode(&mut state, Mode::A)), Code::BadMode, "the primary alone would acknowledge");
    assert_eq!(
        refused(apply(&mut state, Command::RemoveReplica { resource: R, node: B })),
        Code::TooFewReplicas
    );
    assert!(apply(&mut state, Command::AddReplica { resource: R, node: W }).is_ok());
    assert!(apply(&mut state, Command::RemoveReplica { resource: R, node: B }).is_ok());
    assert!(want(&mut state, MinCopies::default()).is_ok());
    assert!(set_mode(&mut state, Mode::A).is_ok());
    assert_eq!(refused(want(&mut state, TWO)), Code::BadMinCopies, "in mode A");
}

#[test]
fn a_moving_replica_counts_as_one_copy() {
    let mut state = wanting_two();
    assert!(apply(&mut state, Command::MoveReplica { resource: R, from: B, to: W }).is_ok());
    let three = MinCopies { copies: 3, ..TWO };
    assert_eq!(refused(want(&mut state, three)), Code::BadMinCopies);
    assert!(
        apply(&mut state, Command::RemoveReplica { resource: R, node: W }).is_ok(),
        "it stays at the old place"
    );
    assert!(apply(&mut state, Command::MoveReplica { resource: R, from: B, to: W }).is_ok());
    assert!(
        apply(&mut state, Command::RemoveReplica { resource: R, node: B }).is_ok(),
        "it stays at the new place"
    );
    assert_eq!(
        refused(apply(&mut state, Command::RemoveReplica { resource: R, node: W })),
        Code::TooFewReplicas
    );
}

#[test]
fn a_dead_member_stays_if_too_few_remain() {
    let mut state = ready();
    die(&mut state, B);
    assert_eq!(members(&state), [A], "one copy is enough");
    assert_eq!(told(&state), []);

    let mut state = wanting_two();
    assert_eq!(told(&state), []);
    die(&mut state, B);
    assert_eq!((members(&state), primary(&state)), (vec![A, B], Some(A)));
    let told_now = told(&state);
    assert!(told_now[0].0.contains("2 copies are wanted and 1 is there: writes wait 20s"), "{told_now:?}");
    assert!(
        told_now[0].1.contains("bring b back; or go on with fewer: `mainstay resource set-min-copies db 1`")
    );
    rejoin(&mut state, B);
    assert_eq!(told(&state), []);
}

#[test]
fn a_retained_member_serves_when_it_is_the_first_to_return() {
    let mut state = wanting_two();
    die(&mut state, B);
    die(&mut state, A);
    assert_eq!(primary(&state), None);
    rejoin(&mut state, B);
    assert!(promote(&mut state, B, B).is_ok(), "it has everything that was acknowledged");
    assert_eq!(primary(&state), Some(B));
}

/// Returns whether the plan of A starts a service, and whether it stops one.
fn planned(nodes: &Nodes) -> (bool, bool) {
    let actions = plan(A, &nodes.state, &nodes.observed[&A]);
    let starts = actions.iter().any(|action| matches!(action, Action::StartService { .. }));
    (starts, actions.iter().any(|action| matches!(action, Action::StopService { .. })))
}

#[test]
fn a_service_waits_for_copies_and_stops_when_requests_fail() {
    let mut nodes = Nodes::new(wanting_two());
    apply(&mut nodes.state, Command::ApplyService { spec: db_service() });
    let copies = |nodes: &mut Nodes, copies| {
        nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&R).unwrap().copies = copies;
    };
    nodes.settle();
    assert_eq!((nodes.runs_on(), planned(&nodes)), (vec![A], (false, false)));
    copies(&mut nodes, Copies::Suspended);
    assert_eq!(planned(&nodes), (false, false), "it waits as long as its requests do");
    copies(&mut nodes, Copies::Refusing);
    assert_eq!(planned(&nodes), (false, true));
    nodes.settle();
    assert!(nodes.runs_on().is_empty());
    copies(&mut nodes, Copies::Suspended);
    assert_eq!(planned(&nodes), (false, false), "nothing can be mounted");
    copies(&mut nodes, Copies::Enough);
    nodes.settle();
    assert_eq!(nodes.runs_on(), [A]);
}

#[test]
fn a_dead_primary_does_not_stay() {
    let mut state = wanting_two();
    die(&mut state, A);
    assert_eq!((members(&state), primary(&state)), (vec![B], Some(B)));
    assert_eq!(told(&state).len(), 1);
}

#[test]
fn the_primary_may_remove_a_member_that_it_knows_to_lack_entries() {
    let mut state = wanting_two();
    let remove = state.resources[&R].record.replica(B).expect("a replica");
    let (version, epoch) = (version(&state), state.resources[&R].record.epoch);
    let change = IssChange::Shrink { remove, why: ShrinkReason::Absent };
    assert!(apply(&mut state, Command::ChangeIss { resource: R, version, epoch, change }).is_ok());
    assert_eq!(members(&state), [A]);
}
