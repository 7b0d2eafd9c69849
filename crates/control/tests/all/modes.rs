//! Replication modes and forced promotions (R11), in the record and by nodes that follow their
//! plans.

use crate::common::*;
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::{
    Code, ConfigVersion, Epoch, Index, IssChange, LagLimits, Member, Mode, NodeId, Position,
};

const LAG: LagLimits = LagLimits { bytes: 1 << 20, ms: 1000 };

fn version(state: &State) -> ConfigVersion {
    state.resources[&R].record.version
}

/// Where a version is at hand already.
use version as version_of;

fn set(state: &mut State, mode: Mode) -> Outcome {
    let version = version(state);
    apply(state, change_mode(version, mode, LAG, false))
}

fn force(state: &mut State, node: NodeId) -> Outcome {
    let record = &state.resources[&R].record;
    let to = record.replica(node).expect("a replica");
    let (version, end, heard) = (record.version, Index(10), Index(12));
    apply(state, Command::ForcePromote { resource: R, version, to, end, heard })
}

fn change(state: &mut State, change: IssChange) -> Outcome {
    let (version, epoch) = (version(state), state.resources[&R].record.epoch);
    apply(state, Command::ChangeIss { resource: R, version, epoch, change })
}

fn member(state: &State, node: NodeId) -> Member {
    state.resources[&R].record.replica(node).expect("a replica")
}

fn refused(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

/// In mode A; A has died with what B lacks.
fn without_a() -> State {
    let mut state = ready();
    assert!(set(&mut state, Mode::A).is_ok());
    die(&mut state, A);
    state
}

#[test]
fn a_mode_is_changed_on_the_version_that_was_read() {
    let mut state = ready();
    let old = version(&state);
    assert_eq!(state.resources[&R].record.policy.mode(), Mode::C);
    assert!(set(&mut state, Mode::A).is_ok());
    assert!(version(&state) > old);
    assert_eq!(members(&state), [A], "writes wait for no other replica");
    assert_eq!(set(&mut state, Mode::A), Outcome::Unchanged);
    let late = change_mode(old, Mode::C, LAG, false);
    assert!(matches!(apply(&mut state, late), Outcome::Conflict { .. }));
    assert!(set(&mut state, Mode::C).is_ok());
    assert_eq!(members(&state), [A], "the primary says which replicas have everything");
    let add = member(&state, B);
    assert!(change(&mut state, IssChange::Grow { add }).is_ok());
    assert_eq!(members(&state), [A, B]);
}

#[test]
fn the_lag_has_to_fit_into_the_journal() {
    let mut state = ready();
    for (lag, code) in [
        (LagLimits { bytes: 4096, ..LAG }, Code::BadSettings),
        (LagLimits { bytes: 9 << 20, ..LAG }, Code::BadMode),
        (LagLimits { ms: 1, ..LAG }, Code::BadSettings),
        (LagLimits { ms: 4_000_000, ..LAG }, Code::BadSettings),
    ] {
        let command = change_mode(version(&state), Mode::A, lag, false);
        assert_eq!(refused(apply(&mut state, command)), code, "{lag:?}");
    }
}

#[test]
fn in_mode_a_no_replica_joins_by_itself_and_none_takes_over() {
    let mut state = ready();
    assert!(set(&mut state, Mode::A).is_ok());
    let add = member(&state, B);
    assert_eq!(refused(change(&mut state, IssChange::Grow { add })), Code::NotCalled);
    die(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (None, vec![A]), "only A has everything");
    let advised = advice(&state, &Observations { has_leader: true, ..Observations::default() });
    assert!(advised.iter().any(|one| one.remedy.contains("resource force-promote db")), "{advised:?}");
    rejoin(&mut state, A);
    assert!(promote(&mut state, A, A).is_ok());
}

#[test]
fn a_service_that_moves_calls_its_node_into_sync() {
    let mut nodes = running();
    assert!(set(&mut nodes.state, Mode::A).is_ok());
    nodes.settle();
    let moved = apply(&mut nodes.state, Command::MoveService { name: "db".into(), to: B });
    assert!(moved.is_ok(), "{moved:?}");
    nodes.settle();
    assert_eq!(nodes.runs_on(), [A], "B has not everything yet");
    assert_eq!(nodes.state.resources[&R].record.joining_for_move, [B]);
    assert!(nodes.grows(B).is_ok());
    nodes.settle();
    assert_eq!((nodes.runs_on(), members(&nodes.state)), (vec![B], vec![B]));
    assert!(nodes.state.resources[&R].record.joining_for_move.is_empty());
}

#[test]
fn a_primary_that_moves_without_a_service_calls_its_node_into_sync() {
    let mut nodes = Nodes::new(ready());
    nodes.settle();
    assert!(set(&mut nodes.state, Mode::A).is_ok());
    nodes.settle();
    assert!(apply(&mut nodes.state, Command::MovePrimary { resource: R, to: B }).is_ok());
    nodes.settle();
    assert_eq!(
        (primary(&nodes.state), members(&nodes.state)),
        (Some(A), vec![A]),
        "B has not everything yet"
    );
    assert_eq!(nodes.state.resources[&R].record.joining_for_move, [B]);
    assert!(nodes.grows(B).is_ok());
    nodes.settle();
    assert_eq!((primary(&nodes.state), members(&nodes.state)), (Some(B), vec![B]));
    assert!(nodes.state.resources[&R].record.joining_for_move.is_empty());
}

#[test]
fn a_replica_that_moves_in_mode_a_joins_until_the_old_one_is_gone() {
    let mut nodes = running();
    assert!(set(&mut nodes.state, Mode::A).is_ok());
    assert!(apply(&mut nodes.state, Command::MoveReplica { resource: R, from: B, to: W }).is_ok());
    nodes.settle();
    assert_eq!(nodes.state.resources[&R].record.joining_for_move, [W]);
    assert!(nodes.grows(W).is_ok());
    nodes.settle();
    let resource = &nodes.state.resources[&R];
    assert_eq!((resource.spec.replicas.clone(), members(&nodes.state)), (vec![A, W], vec![A]));
}

#[test]
fn a_promotion_is_forced_only_when_no_replica_with_everything_can_serve() {
    let mut state = ready();
    assert!(set(&mut state, Mode::A).is_ok());
    assert_eq!(refused(force(&mut state, B)), Code::HasPrimary);
    die(&mut state, A);
    assert_eq!(refused(force(&mut state, A)), Code::NotEligible);
    rejoin(&mut state, A);
    assert_eq!(refused(force(&mut state, B)), Code::NotNeeded);
    die(&mut state, A);
    let old = version(&state);
    assert!(force(&mut state, B).is_ok());
    let record = &state.resources[&R].record;
    assert_eq!((record.primary, record.epoch, members(&state)), (Some(B), Epoch(2), vec![B]));
    assert_eq!(record.unverified, [member(&state, A)]);
    let forced = state.resources[&R].forced.clone().expect("it is recorded");
    let a = member(&state, A);
    let told = Some((Index(10), Index(12)));
    assert_eq!((forced.to, forced.lost_with, forced.told, forced.loss), (B, vec![a], told, None));
    let to = member(&state, B);
    let late = Command::ForcePromote { resource: R, version: old, to, end: Index(1), heard: Index(1) };
    assert_eq!(refused(apply(&mut state, late)), Code::HasPrimary);
}

#[test]
fn the_replica_that_had_everything_begins_anew_and_the_loss_is_told() {
    let mut state = without_a();
    assert!(force(&mut state, B).is_ok());
    rejoin(&mut state, A);
    let add = member(&state, A);
    let conflict = change(&mut state, IssChange::Grow { add });
    assert!(!conflict.is_ok(), "no primary has looked at it yet: {conflict:?}");
    let part = IssChange::Part { member: add, common: Position::new(1, 10), end: Position::new(1, 14) };
    assert!(change(&mut state, part).is_ok());
    let resource = &state.resources[&R];
    assert_eq!(resource.record.replica(A), None);
    assert_eq!(resource.leaving.get(&A), Some(&add.incarnation), "it goes under its own name");
    assert!(resource.record.unverified.is_empty() && resource.spec.replicas.contains(&A));
    let loss = resource.forced.as_ref().and_then(|forced| forced.loss).expect("known");
    assert_eq!((loss.entries(), loss.after.index, loss.until.index), (4, Index(10), Index(14)));
    assert!(
        state.events.iter().any(|event| event.text.contains("4 entries, i11 to i14")),
        "{:?}",
        state.events
    );
}

#[test]
fn the_node_of_a_parted_replica_drops_it_and_makes_a_new_one() {
    let mut nodes = running();
    assert!(set(&mut nodes.state, Mode::A).is_ok());
    nodes.settle();
    nodes.power_cut(A);
    die(&mut nodes.state, A);
    assert!(force(&mut nodes.state, B).is_ok());
    nodes.settle();
    assert_eq!(nodes.runs_on(), [B]);
    rejoin(&mut nodes.state, A);
    nodes.up.insert(A, true);
    nodes.settle();
    let old = member(&nodes.state, A);
    let part = IssChange::Part { member: old, common: Position::new(1, 10), end: Position::new(1, 14) };
    assert!(change(&mut nodes.state, part).is_ok());
    nodes.settle();
    assert_ne!(member(&nodes.state, A).incarnation, old.incarnation);
    assert!(nodes.state.resources[&R].leaving.is_empty());
    assert_eq!((members(&nodes.state), nodes.runs_on()), (vec![B], vec![B]));
}

#[test]
fn a_replica_that_held_no_more_is_trusted_again() {
    let mut state = without_a();
    assert!(force(&mut state, B).is_ok());
    rejoin(&mut state, A);
    let known = member(&state, A);
    assert!(change(&mut state, IssChange::Trust { member: known }).is_ok());
    assert!(!change(&mut state, IssChange::Trust { member: known }).is_ok(), "once");
    assert!(set(&mut state, Mode::C).is_ok());
    assert!(change(&mut state, IssChange::Grow { add: known }).is_ok());
    assert_eq!(members(&state), [A, B]);
}

/// B never served. The loss is what A had acknowledged, and B may lack some of that.
#[test]
fn after_two_forced_promotions_the_first_primary_still_tells_the_loss() {
    let mut state = ready();
    assert!(apply(&mut state, Command::AddReplica { resource: R, node: W }).is_ok());
    let (incarnation, of_record) = (mainstay_types::Incarnation(33), version_of(&state));
    let ready = Command::ReplicaReady { resource: R, version: of_record, node: W, incarnation };
    assert!(apply(&mut state, ready).is_ok());
    assert!(set(&mut state, Mode::A).is_ok());
    die(&mut state, A);
    assert!(force(&mut state, B).is_ok());
    die(&mut state, B);
    assert!(force(&mut state, W).is_ok());
    let had = [B, A].map(|node| member(&state, node));
    let lost_with =
        |state: &State| state.resources[&R].forced.as_ref().map(|forced| forced.lost_with.clone());
    assert_eq!(lost_with(&state), Some(had.to_vec()));
    for (node, end) in [(B, 12), (A, 14)] {
        rejoin(&mut state, node);
        let (member, common) = (member(&state, node), Position::new(1, 10));
        let part = IssChange::Part { member, common, end: Position::new(1, end) };
        assert!(change(&mut state, part).is_ok());
    }
    let loss = state.resources[&R].forced.as_ref().and_then(|forced| forced.loss).expect("known");
    assert_eq!((loss.after.index, loss.until.index), (Index(10), Index(14)));
}

/// R11 applies to every mode: also in mode C, the replica that has everything may never come back.
#[test]
fn a_promotion_is_forced_in_mode_c_as_well() {
    let mut state = ready();
    die(&mut state, A);
    die(&mut state, B);
    rejoin(&mut state, A);
    assert_eq!((primary(&state), members(&state)), (None, vec![B]));
    assert!(force(&mut state, A).is_ok());
    assert_eq!((primary(&state), members(&state)), (Some(A), vec![A]));
}

#[test]
fn with_takeover_only_a_follower_within_the_limits_takes_over_by_itself() {
    let mut state = ready();
    let command = change_mode(version(&state), Mode::A, LAG, true);
    assert!(apply(&mut state, command).is_ok());
    let mut far = state.clone();
    die(&mut far, A);
    assert_eq!(primary(&far), None, "the cluster does not know what B lacks");
    let b = member(&state, B);
    assert!(change(&mut state, IssChange::FailoverReady { member: b }).is_ok());
    let a = member(&state, A);
    assert!(!change(&mut state, IssChange::FailoverReady { member: a }).is_ok(), "it is in sync");
    let mut gone = state.clone();
    assert!(change(&mut gone, IssChange::NotFailoverReady { member: b }).is_ok());
    die(&mut gone, A);
    assert_eq!(primary(&gone), None);
    let mut lower = state.clone();
    let lag = LagLimits { bytes: 65_536, ..LAG };
    let command = change_mode(version_of(&lower), Mode::A, lag, true);
    assert!(apply(&mut lower, command).is_ok());
    assert!(lower.resources[&R].record.failover_ready.is_empty(), "it was failover-ready by other limits");
    die(&mut state, A);
    let record = &state.resources[&R].record;
    assert_eq!((record.primary, record.epoch, members(&state)), (Some(B), Epoch(2), vec![B]));
    assert!(record.failover_ready.is_empty() && record.unverified == [member(&state, A)]);
    assert_eq!(state.resources[&R].forced.as_ref().map(|forced| forced.told), Some(None));
    rejoin(&mut state, A);
    assert!(!change(&mut state, IssChange::FailoverReady { member: a }).is_ok(), "it is unverified");
}

/// R11: a living replica that has everything comes first, even when its service has to start again.
#[test]
fn with_takeover_a_primary_that_lives_is_not_given_up() {
    let mut state = ready();
    let resource = R;
    let command = change_mode(version(&state), Mode::A, LAG, true);
    assert!(apply(&mut state, command).is_ok());
    let b = member(&state, B);
    assert!(change(&mut state, IssChange::FailoverReady { member: b }).is_ok());
    let version = version_of(&state);
    let command = Command::StepDown { resource, version, node: A, reason: "restarted".into() };
    assert!(apply(&mut state, command).is_ok());
    assert_eq!((primary(&state), members(&state)), (None, vec![A]));
    assert!(promote(&mut state, A, A).is_ok());
    assert!(state.resources[&R].record.failover_ready.is_empty(), "a new primary begins with none");
}
