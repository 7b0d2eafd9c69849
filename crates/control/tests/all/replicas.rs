//! Replicas that are added, removed and moved, in the record and by nodes that follow their plans.

use crate::common::*;
use mainstay_control::actions::{ServiceObserved, plan};
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::{Code, Incarnation, NodeId, ServicePhase};

const NEW: NodeId = W;

fn add(state: &mut State, node: NodeId) -> Outcome {
    apply(state, Command::AddReplica { resource: R, node })
}

fn remove(state: &mut State, node: NodeId) -> Outcome {
    apply(state, Command::RemoveReplica { resource: R, node })
}

fn relocate(state: &mut State, from: NodeId, to: NodeId) -> Outcome {
    apply(state, Command::MoveReplica { resource: R, from, to })
}

fn refused(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

fn holders(nodes: &Nodes) -> Vec<NodeId> {
    nodes.observed.iter().filter(|(_, seen)| seen.stored.contains_key(&R)).map(|(node, _)| *node).collect()
}

#[test]
fn an_added_replica_is_made_registered_and_in_sync_only_when_the_primary_says_so() {
    let mut nodes = running();
    assert!(add(&mut nodes.state, NEW).is_ok());
    nodes.settle();
    assert_eq!(holders(&nodes), [A, B, NEW]);
    assert!(nodes.state.resources[&R].record.replica(NEW).is_some());
    assert_eq!(members(&nodes.state), [A, B], "it is empty (R9)");
    assert!(nodes.grows(NEW).is_ok());
    nodes.settle();
    assert_eq!((members(&nodes.state), nodes.runs_on()), (vec![A, B, NEW], vec![A]));
}

#[test]
fn a_removed_replica_leaves_record_and_node() {
    let mut nodes = running();
    let version = nodes.state.resources[&R].record.version;
    assert!(remove(&mut nodes.state, B).is_ok());
    assert_eq!(members(&nodes.state), [A]);
    assert!(nodes.state.resources[&R].record.version > version, "the primary has to learn it (R3)");
    nodes.settle();
    assert_eq!(holders(&nodes), [A]);
    assert!(nodes.state.resources[&R].leaving.is_empty());
    assert_eq!(nodes.runs_on(), [A]);
}

#[test]
fn an_unsafe_removal_or_move_of_a_replica_is_refused() {
    let mut state = ready();
    assert_eq!(refused(remove(&mut state, A)), Code::IsPrimary);
    assert_eq!(refused(remove(&mut state, NEW)), Code::NoReplicaHere);
    assert_eq!(refused(add(&mut state, B)), Code::HasReplica);
    assert_eq!(refused(add(&mut state, NodeId(9))), Code::UnknownNode);
    assert_eq!(refused(relocate(&mut state, NEW, B)), Code::NoReplicaHere);
    assert_eq!(refused(relocate(&mut state, A, B)), Code::HasReplica);
    // A dies and B serves alone; then B dies, and A is back without what B wrote.
    die(&mut state, A);
    die(&mut state, B);
    rejoin(&mut state, A);
    assert_eq!(members(&state), [B]);
    assert_eq!(refused(remove(&mut state, B)), Code::LastCopy);
    assert_eq!(refused(remove(&mut state, A)), Code::LastCopy, "it may be all that can be rescued");
    rejoin(&mut state, B);
    assert!(remove(&mut state, A).is_ok(), "B is back, and no replica needs the content of A");
    assert_eq!(refused(remove(&mut state, B)), Code::LastReplica);
}

#[test]
fn a_witness_holds_no_data() {
    let mut state = ready();
    let voters_version = state.voters_version;
    for node in [A, B, W] {
        apply(&mut state, Command::VotersSeen { node, voters_version });
    }
    let (agent_addr, engine_addr) = ("d:1".to_owned(), "d:2".to_owned());
    let (voter, witness, nonce) = (true, true, 7);
    let command = Command::AddNode { name: "d".into(), agent_addr, engine_addr, voter, witness, nonce };
    let Outcome::NodeAdded { node, .. } = apply(&mut state, command) else { panic!("not added") };
    assert_eq!(refused(add(&mut state, node)), Code::IsWitness);
    assert_eq!(refused(relocate(&mut state, B, node)), Code::IsWitness);
}

#[test]
fn a_moved_replica_goes_when_the_new_one_is_in_sync_and_not_before() {
    let mut nodes = running();
    assert!(relocate(&mut nodes.state, B, NEW).is_ok());
    assert_eq!(relocate(&mut nodes.state, B, NEW), Outcome::Unchanged);
    nodes.settle();
    assert_eq!((holders(&nodes), members(&nodes.state)), (vec![A, B, NEW], vec![A, B]));
    assert!(nodes.grows(NEW).is_ok());
    nodes.settle();
    assert_eq!((holders(&nodes), members(&nodes.state)), (vec![A, NEW], vec![A, NEW]));
    assert!(nodes.state.resources[&R].moving.is_empty());
    // The same end once more, late, after B was asked for again.
    assert!(add(&mut nodes.state, B).is_ok());
    let late = Command::FinishMove { resource: R, from: B, to: NEW };
    assert!(matches!(apply(&mut nodes.state, late), Outcome::Conflict { .. }));
    assert!(nodes.state.resources[&R].spec.replicas.contains(&B));
}

#[test]
fn the_primary_hands_over_before_its_replica_goes() {
    let mut nodes = running();
    assert!(relocate(&mut nodes.state, A, NEW).is_ok());
    nodes.settle();
    assert_eq!(nodes.runs_on(), [A], "nothing moves before the new replica is in sync");
    assert!(nodes.grows(NEW).is_ok());
    nodes.settle();
    assert_eq!((nodes.runs_on(), primary(&nodes.state)), (vec![NEW], Some(NEW)));
    assert_eq!((holders(&nodes), members(&nodes.state)), (vec![B, NEW], vec![B, NEW]));
}

/// Simulator seed 100351: the move waited for ever, because the primary went nowhere else.
#[test]
fn the_primary_goes_elsewhere_when_its_service_fails_at_the_new_place() {
    let mut nodes = running();
    assert!(relocate(&mut nodes.state, A, NEW).is_ok());
    nodes.settle();
    let ServiceObserved { epoch, round, .. } = nodes.observed[&A].services["db"];
    let (name, detail, phase) = ("db".to_owned(), "exit 1".to_owned(), ServicePhase::Failed);
    apply(
        &mut nodes.state,
        Command::ServiceStatus {
            name,
            node: NEW,
            phase,
            epoch,
            round,
            detail,
            failures: 4,
            passes: false,
            last_failure: String::new(),
        },
    );
    assert!(nodes.state.services["db"].failed_on(NEW));
    nodes.settle();
    assert_eq!(nodes.runs_on(), [A], "nothing moves before the new replica is in sync");
    assert!(nodes.grows(NEW).is_ok());
    nodes.settle();
    assert_eq!((nodes.runs_on(), primary(&nodes.state)), (vec![B], Some(B)));
    assert_eq!((holders(&nodes), members(&nodes.state)), (vec![B, NEW], vec![B, NEW]));
}

#[test]
fn a_dead_nodes_replica_is_replaced_and_dropped_when_the_node_returns() {
    let mut nodes = running();
    nodes.power_cut(B);
    die(&mut nodes.state, B);
    assert!(relocate(&mut nodes.state, B, NEW).is_ok());
    nodes.settle();
    assert!(nodes.grows(NEW).is_ok());
    nodes.settle();
    assert_eq!(members(&nodes.state), [A, NEW]);
    assert_eq!(refused(add(&mut nodes.state, B)), Code::BeingRemoved);
    nodes.up.insert(B, true);
    nodes.settle();
    assert_eq!(holders(&nodes), [A, NEW]);
    assert!(add(&mut nodes.state, B).is_ok(), "now there is room for a new one");
}

#[test]
fn removing_the_new_replica_ends_the_move() {
    let mut nodes = running();
    assert!(relocate(&mut nodes.state, B, NEW).is_ok());
    assert_eq!(refused(relocate(&mut nodes.state, NEW, A)), Code::MovingAlready);
    nodes.settle();
    assert!(remove(&mut nodes.state, NEW).is_ok());
    nodes.settle();
    assert_eq!((holders(&nodes), members(&nodes.state)), (vec![A, B], vec![A, B]));
    assert!(nodes.state.resources[&R].moving.is_empty());
}

/// The node acts on a state in which its first replica leaves; meanwhile it was given a second one.
#[test]
fn an_older_state_drops_no_newer_replica() {
    let mut nodes = running();
    assert!(remove(&mut nodes.state, B).is_ok());
    let older = nodes.state.clone();
    nodes.settle();
    assert!(add(&mut nodes.state, B).is_ok());
    nodes.settle();
    let actions = plan(B, &older, &nodes.observed[&B]);
    for action in actions {
        // `act` refuses to drop what is registered.
        nodes.act(B, action);
    }
    assert_eq!(holders(&nodes), [A, B]);
    nodes.settle();
    assert_eq!(holders(&nodes), [A, B]);
}

#[test]
fn a_replica_that_was_made_too_late_is_dropped() {
    let mut nodes = running();
    assert!(add(&mut nodes.state, NEW).is_ok());
    assert!(remove(&mut nodes.state, NEW).is_ok());
    // It had begun to make one.
    nodes.observed.get_mut(&NEW).unwrap().stored.insert(R, Incarnation(99));
    nodes.settle();
    assert_eq!(holders(&nodes), [A, B]);
    assert!(nodes.state.resources[&R].leaving.is_empty());
}
