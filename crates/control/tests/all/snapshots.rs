//! Snapshots (R17), as the control plane sees them.

use crate::common::*;
use mainstay_control::State;
use mainstay_control::actions::{Action, plan};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Code, Index, NodeId, ResourceId, SNAPSHOTS_MAX, SnapshotId, SnapshotOn, SnapshotState};

fn take(nodes: &mut Nodes, name: &str) -> Outcome {
    apply(&mut nodes.state, Command::TakeSnapshot { resource: R, name: name.into() })
}

fn drop_it(nodes: &mut Nodes, name: &str) -> Outcome {
    apply(&mut nodes.state, Command::DropSnapshot { resource: R, name: name.into() })
}

fn held_on(nodes: &Nodes, id: u32) -> Vec<NodeId> {
    let known = nodes.state.resources[&R].snapshots.get(&SnapshotId(id));
    let on = known.into_iter().flat_map(|known| &known.nodes);
    on.filter(|(_, on)| on.state == SnapshotState::Held).map(|(node, _)| *node).collect()
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

#[test]
fn a_snapshot_is_taken_told_by_every_node_and_dropped() {
    let mut nodes = running();
    assert!(take(&mut nodes, "before-upgrade").is_ok());
    assert_eq!(held_on(&nodes, 1), []);
    nodes.settle();
    assert_eq!(held_on(&nodes, 1), [A, B]);
    assert_eq!(nodes.runs_on(), [A], "under its service");
    assert!(drop_it(&mut nodes, "before-upgrade").is_ok());
    assert_eq!(drop_it(&mut nodes, "before-upgrade"), Outcome::Unchanged);
    assert_eq!(code(take(&mut nodes, "before-upgrade")), Code::Exists, "until it is gone");
    nodes.settle();
    assert!(nodes.state.resources[&R].snapshots.is_empty());
    assert!(take(&mut nodes, "before-upgrade").is_ok());
    assert!(nodes.state.resources[&R].snapshots.contains_key(&SnapshotId(2)), "numbers are not used again");
}

#[test]
fn an_agent_that_does_not_know_of_a_snapshot_yet_does_not_drop_it() {
    let mut nodes = running();
    let old = nodes.state.clone();
    assert!(take(&mut nodes, "s").is_ok());
    nodes.settle();
    assert_eq!(held_on(&nodes, 1), [A, B]);
    let keeps = |state: &State, nodes: &Nodes| {
        let actions = plan(A, state, &nodes.observed[&A]);
        actions.into_iter().any(|action| matches!(action, Action::KeepSnapshots { .. }))
    };
    assert!(!keeps(&old, &nodes), "seed 273762: it was started again with an older state");
    assert!(drop_it(&mut nodes, "s").is_ok());
    let record = nodes.state.resources[&R].record.clone();
    assert!(!keeps(&nodes.state, &nodes), "the engine acts on an older record");
    nodes.observed.get_mut(&A).unwrap().replicas.get_mut(&R).unwrap().version = record.version;
    assert!(keeps(&nodes.state, &nodes));
}

#[test]
fn the_next_primary_carries_out_the_order() {
    let mut nodes = running();
    nodes.power_cut(A);
    assert!(take(&mut nodes, "s").is_ok());
    let generation = nodes.state.nodes[&A].generation;
    assert!(apply(&mut nodes.state, Command::NodeDead { node: A, generation }).is_ok());
    nodes.settle();
    assert_eq!((primary(&nodes.state), held_on(&nodes, 1)), (Some(B), vec![B]));
}

#[test]
fn a_snapshot_that_a_node_cannot_keep_is_told() {
    let mut nodes = running();
    assert!(take(&mut nodes, "s").is_ok());
    nodes.settle();
    let on = SnapshotOn { at: Index(0), state: SnapshotState::Missing };
    let seen = |seen| Command::SnapshotsSeen { resource: R, node: B, seen };
    assert!(apply(&mut nodes.state, seen(vec![(SnapshotId(1), on)])).is_ok());
    assert_eq!(held_on(&nodes, 1), [A]);
    let told =
        nodes.state.events.iter().any(|event| event.text.contains("snapshot s could not be kept on b"));
    assert!(told, "{:?}", nodes.state.events);
    // A secondary that does not name it any more does not end it: only the primary's log does.
    assert!(drop_it(&mut nodes, "s").is_ok());
    assert!(apply(&mut nodes.state, seen(vec![])).is_ok());
    assert_eq!(nodes.state.resources[&R].snapshots.len(), 1);
    let strange = seen(vec![(SnapshotId(77), on)]);
    assert_eq!(apply(&mut nodes.state, strange), Outcome::Unchanged);
}

#[test]
fn the_snapshots_of_a_replica_go_with_its_disk() {
    let mut nodes = running();
    assert!(take(&mut nodes, "s").is_ok());
    nodes.settle();
    assert_eq!(held_on(&nodes, 1), [A, B]);
    // A new disk on B holds nothing, whatever the old one did.
    let version = nodes.state.resources[&R].record.version;
    let incarnation = mainstay_types::Incarnation(4711);
    let other = Command::ReplicaReady { resource: R, version, node: B, incarnation };
    assert!(apply(&mut nodes.state, other).is_ok());
    assert_eq!(held_on(&nodes, 1), [A]);
    let on = SnapshotOn { at: Index(1), state: SnapshotState::Held };
    let seen = Command::SnapshotsSeen { resource: R, node: B, seen: vec![(SnapshotId(1), on)] };
    assert!(apply(&mut nodes.state, seen.clone()).is_ok());
    assert!(apply(&mut nodes.state, Command::RemoveReplica { resource: R, node: B }).is_ok());
    assert_eq!(held_on(&nodes, 1), [A]);
    assert_eq!(apply(&mut nodes.state, seen), Outcome::Unchanged, "it comes late");
}

#[test]
fn impossible_orders_are_refused() {
    let mut nodes = running();
    for name in ["", "a b", "../x", "DB", &"x".repeat(33)] {
        assert_eq!(code(take(&mut nodes, name)), Code::BadName, "{name:?}");
    }
    assert_eq!(code(drop_it(&mut nodes, "s")), Code::UnknownSnapshot);
    let nowhere = Command::TakeSnapshot { resource: ResourceId(99), name: "s".into() };
    assert_eq!(code(apply(&mut nodes.state, nowhere)), Code::UnknownResource);
    for n in 0..SNAPSHOTS_MAX {
        assert!(take(&mut nodes, &format!("s{n}")).is_ok());
    }
    assert_eq!(code(take(&mut nodes, "one-more")), Code::TooMany);
    assert_eq!(code(take(&mut nodes, "s3")), Code::Exists);
}
