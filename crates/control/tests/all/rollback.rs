//! Rolling a resource back to a snapshot (R17), as the control plane sees it.

use crate::common::*;
use mainstay_control::actions::{Action, plan};
use mainstay_control::state::{Command, Outcome};
use mainstay_types::{Code, Index, SNAPSHOTS_MAX, SnapshotId, SnapshotOn, SnapshotState};

fn take(nodes: &mut Nodes, name: &str) {
    assert!(apply(&mut nodes.state, Command::TakeSnapshot { resource: R, name: name.into() }).is_ok());
    nodes.settle();
}

fn wish(nodes: &Nodes, name: &str, keep: Option<&str>) -> Command {
    let last = nodes.state.resources[&R].last_snapshot;
    Command::RollBack { resource: R, last, name: name.into(), keep: keep.map(Into::into), restart: true }
}

fn code(outcome: Outcome) -> Code {
    let Outcome::Refused(refusal) = outcome else { panic!("{outcome:?}") };
    assert!(!refusal.message.is_empty() && !refusal.remedy.is_empty(), "{refusal:?}");
    refusal.code
}

/// Returns the snapshot that the engine of the primary is told to go back to.
fn told(nodes: &Nodes) -> Option<SnapshotId> {
    let actions = plan(A, &nodes.state, &nodes.observed[&A]);
    actions.into_iter().find_map(|action| match action {
        Action::KeepSnapshots { wanted, .. } => wanted.to,
        _ => None,
    })
}

fn names(nodes: &Nodes) -> Vec<String> {
    nodes.state.resources[&R].snapshots.values().map(|known| known.name.clone()).collect()
}

#[test]
fn a_rollback_runs_once_without_a_service_and_keeps_the_present_state() {
    let mut nodes = running();
    take(&mut nodes, "s");
    let wish = wish(&nodes, "s", Some("undo"));
    let Command::RollBack { resource, name, keep, restart, .. } = wish.clone() else { panic!("{wish:?}") };
    let earlier = Command::RollBack { resource, last: 0, name, keep, restart };
    assert!(matches!(apply(&mut nodes.state, earlier), Outcome::Conflict { .. }), "it knew of no snapshot");
    let others = [("s", None), ("s", Some("other")), ("t", Some("undo"))];
    let others = others.map(|(name, keep)| self::wish(&nodes, name, keep));
    assert!(apply(&mut nodes.state, wish.clone()).is_ok());
    let repeated = |nodes: &mut Nodes| {
        assert_eq!(apply(&mut nodes.state, wish.clone()), Outcome::Unchanged);
        for other in &others {
            let answer = apply(&mut nodes.state, other.clone());
            assert!(matches!(answer, Outcome::Conflict { .. }), "{other:?} is another wish: {answer:?}");
        }
    };
    repeated(&mut nodes);
    assert_eq!(told(&nodes), None, "the service runs, and nothing is kept yet");
    for node in [A, B] {
        while let Some(action) = plan(node, &nodes.state, &nodes.observed[&node]).into_iter().next() {
            if matches!(&action, Action::KeepSnapshots { wanted, .. } if wanted.to.is_some()) {
                assert!(nodes.runs_on().is_empty(), "a volume changes under a service");
                let held = nodes.state.resources[&R].snapshots[&SnapshotId(2)].nodes.get(&A);
                assert!(held.is_some_and(|on| on.state == SnapshotState::Held), "undo is kept before");
            }
            nodes.act(node, action);
        }
    }
    nodes.settle();
    assert_eq!(nodes.rollbacks, 1);
    assert_eq!(names(&nodes), ["s", "undo"], "the mark is gone");
    assert_eq!(nodes.observed[&A].replicas[&R].snapshots.len(), 2);
    let done = nodes.state.resources[&R].rolled_back.clone().expect("it is told");
    assert!(done.to == "s" && done.entry.is_some());
    assert_eq!(nodes.runs_on(), [A], "the service runs again");
    // A client that got no answer asks again.
    repeated(&mut nodes);
    nodes.settle();
    assert_eq!(nodes.rollbacks, 1);
}

/// The engine has logged the rollback, and its node dies before it could say so.
#[test]
fn the_next_primary_does_not_repeat_the_rollback() {
    let mut nodes = running();
    take(&mut nodes, "s");
    let wish = wish(&nodes, "s", None);
    assert!(apply(&mut nodes.state, wish).is_ok());
    let mut acted = 0;
    while nodes.rollbacks == 0 {
        let action = plan(A, &nodes.state, &nodes.observed[&A]).into_iter().next().expect("it is not done");
        nodes.act(A, action);
        acted += 1;
        assert!(acted < 50);
    }
    assert!(nodes.state.resources[&R].rollback.is_some());
    // The mark stays, whatever else the agent tells the engine meanwhile.
    let keeps = plan(A, &nodes.state, &nodes.observed[&A]).into_iter().any(|action| {
        matches!(action, Action::KeepSnapshots { wanted, .. } if wanted.to.is_some() || wanted.mark.is_none())
    });
    assert!(!keeps, "it would be done again");
    nodes.power_cut(A);
    let generation = nodes.state.nodes[&A].generation;
    assert!(apply(&mut nodes.state, Command::NodeDead { node: A, generation }).is_ok());
    nodes.settle();
    assert_eq!((primary(&nodes.state), nodes.rollbacks), (Some(B), 1));
    assert!(nodes.state.resources[&R].rollback.is_none());
    assert_eq!(nodes.runs_on(), [B]);
}

#[test]
fn a_rollback_ends_if_its_snapshot_or_its_mark_is_missing() {
    for (missing, keep) in [(1, None), (1, Some("undo")), (2, Some("undo"))] {
        let mut nodes = running();
        take(&mut nodes, "s");
        let wish = wish(&nodes, "s", keep);
        assert!(apply(&mut nodes.state, wish).is_ok());
        let on = |state| SnapshotOn { at: Index(1), state };
        let seen = [1, 2].map(|id| {
            let state = if id == missing { SnapshotState::Missing } else { SnapshotState::Held };
            (SnapshotId(id), on(state))
        });
        let seen = Command::SnapshotsSeen {
            resource: R,
            node: A,
            seen: seen[..1 + usize::from(keep.is_some())].to_vec(),
        };
        assert!(apply(&mut nodes.state, seen).is_ok());
        assert!(nodes.state.resources[&R].rollback.is_none());
        let done = nodes.state.resources[&R].rolled_back.clone().expect("it is told");
        assert_eq!(done.entry, None, "nothing was changed");
        nodes.settle();
        assert_eq!((nodes.rollbacks, nodes.runs_on()), (0, vec![A]));
    }
}

#[test]
fn impossible_orders_are_refused() {
    let mut nodes = running();
    let none = wish(&nodes, "s", None);
    assert_eq!(code(apply(&mut nodes.state, none)), Code::UnknownSnapshot);
    take(&mut nodes, "s");
    let in_use = match wish(&nodes, "s", None) {
        Command::RollBack { resource, last, name, keep, .. } => {
            Command::RollBack { resource, last, name, keep, restart: false }
        }
        other => other,
    };
    assert_eq!(code(apply(&mut nodes.state, in_use)), Code::ResourceInUse);
    for (keep, why) in [("a b", Code::BadName), ("s", Code::Exists)] {
        let bad = wish(&nodes, "s", Some(keep));
        assert_eq!(code(apply(&mut nodes.state, bad)), why);
    }
    // Only B has it: A's file is gone.
    let on = |state| vec![(SnapshotId(1), SnapshotOn { at: Index(1), state })];
    let seen = |state| Command::SnapshotsSeen { resource: R, node: A, seen: on(state) };
    assert!(apply(&mut nodes.state, seen(SnapshotState::Missing)).is_ok());
    let not_held = wish(&nodes, "s", None);
    assert_eq!(code(apply(&mut nodes.state, not_held)), Code::NotHeld);
    assert!(apply(&mut nodes.state, seen(SnapshotState::Held)).is_ok());
    let good = wish(&nodes, "s", Some("undo"));
    assert!(apply(&mut nodes.state, good).is_ok());
    let again = wish(&nodes, "s", Some("undo2"));
    assert_eq!(code(apply(&mut nodes.state, again)), Code::RollingBack);
    for name in ["s", "undo"] {
        let drop = Command::DropSnapshot { resource: R, name: name.into() };
        assert_eq!(code(apply(&mut nodes.state, drop)), Code::RollingBack, "{name} is needed");
    }
    nodes.settle();
    assert_eq!(nodes.rollbacks, 1);
    for n in nodes.state.resources[&R].snapshots.len()..SNAPSHOTS_MAX {
        take(&mut nodes, &format!("t{n}"));
    }
    let no_room = wish(&nodes, "s", None);
    assert_eq!(code(apply(&mut nodes.state, no_room)), Code::TooMany, "the mark takes one");
}
