//! External fencing (R19): with `required` no node takes over before the former primary is switched
//! off, and a node that says that it is unfit is not made primary.

use crate::common::{A, B, R, W, apply, die, primary, promote, ready, rejoin};
use mainstay_control::advice::{Observations, advice};
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::NodeId;
use std::collections::BTreeSet;

fn with(fencing: &str) -> State {
    let mut state = ready();
    let change = mainstay_types::settings::parse_change("fencing", fencing).expect("a setting");
    let set = Command::ChangeSettings { resource: Some(R), version: None, changes: [change].into() };
    assert!(apply(&mut state, set).is_ok());
    state.check().expect("its invariants hold");
    state
}

fn fenced(state: &mut State, node: NodeId, result: Result<&str, &str>) -> Outcome {
    let generation = state.nodes[&node].generation;
    let result = result.map(Into::into).map_err(Into::into);
    let done = apply(state, Command::Fenced { node, generation, result });
    state.check().expect("its invariants hold");
    done
}

fn events(state: &State, text: &str) -> usize {
    let of_nodes = state.events.iter().filter(|event| event.subject.starts_with("node "));
    of_nodes.filter(|event| event.text.contains(text)).count()
}

#[test]
fn nothing_is_fenced_unless_an_operator_wants_it() {
    let mut state = ready();
    die(&mut state, A);
    assert_eq!((primary(&state), state.fences_owed().count()), (Some(B), 0));
}

#[test]
fn with_best_effort_the_takeover_waits_for_nothing() {
    let mut state = with("best-effort");
    die(&mut state, A);
    assert_eq!((primary(&state), state.fences_owed().count()), (Some(B), 1));
    assert_eq!(fenced(&mut state, A, Err("no such outlet")), Outcome::Done);
    assert_eq!(events(&state, "no such outlet"), 1);
    fenced(&mut state, A, Err("no such outlet"));
    assert_eq!(events(&state, "no such outlet"), 1, "once");
    assert_eq!(state.fences[&A].failures, 2);
    let list = advice(&state, &Observations { has_leader: true, ..Observations::default() });
    let told =
        list.iter().find(|one| one.what.contains("tried 2 times: no such outlet")).expect("it is told");
    assert!(told.remedy.contains("`mainstay node confirm-off a`"), "{told:?}");
    assert_eq!(fenced(&mut state, A, Ok("b")), Outcome::Done);
    assert_eq!((state.fences_owed().count(), events(&state, "says the fence command on b")), (0, 1));
    assert_eq!(fenced(&mut state, A, Ok("w")), Outcome::Unchanged);
}

#[test]
fn with_required_the_takeover_waits_until_the_node_is_switched_off() {
    let mut state = with("required");
    die(&mut state, A);
    state.check().expect("its invariants hold");
    assert_eq!((primary(&state), state.target(R)), (None, None));
    let Outcome::Refused(problem) = promote(&mut state, B, B) else { panic!("it is promoted") };
    assert!(problem.remedy.contains("mainstay node confirm-off a"), "{problem:?}");
    fenced(&mut state, A, Err("no such outlet"));
    assert_eq!(primary(&state), None);
    let refusal = state.cannot_remove(A, &BTreeSet::new()).expect("it is not to be forgotten");
    assert!(refusal.remedy.contains("mainstay node confirm-off a"), "{refusal:?}");
    fenced(&mut state, A, Ok("w"));
    assert_eq!(primary(&state), Some(B));
    rejoin(&mut state, A);
    assert!(state.fences.is_empty());
}

#[test]
fn an_operator_confirms_that_a_node_is_off() {
    let mut state = with("required");
    let confirm = |state: &mut State, node| apply(state, Command::ConfirmOff { node });
    assert!(matches!(confirm(&mut state, A), Outcome::Refused(_)), "it answers");
    assert!(matches!(confirm(&mut state, NodeId(99)), Outcome::Refused(_)), "there is none");
    die(&mut state, A);
    assert_eq!(confirm(&mut state, A), Outcome::Done);
    state.check().expect("its invariants hold");
    assert_eq!((primary(&state), events(&state, "says an operator")), (Some(B), 1));
    assert_eq!(confirm(&mut state, A), Outcome::Unchanged);
}

/// A node joins only after it has silenced itself, and has everything that was acknowledged.
#[test]
fn a_node_that_comes_back_ends_the_wait_for_its_fence() {
    let mut state = with("required");
    die(&mut state, A);
    rejoin(&mut state, A);
    state.check().expect("its invariants hold");
    assert!(state.fences.is_empty() && primary(&state).is_some());
}

/// A late answer about the generation before says nothing.
#[test]
fn a_fence_is_about_one_generation() {
    let mut state = with("required");
    let generation = state.nodes[&A].generation;
    die(&mut state, A);
    rejoin(&mut state, A);
    let back = primary(&state).expect("one of them");
    die(&mut state, back);
    let late = Command::Fenced { node: back, generation: generation.wrapping_sub(1), result: Ok("w".into()) };
    assert_eq!(apply(&mut state, late), Outcome::Unchanged);
    assert_eq!(primary(&state), None);
}

#[test]
fn a_node_that_is_unfit_is_not_made_primary_and_hands_over() {
    let mut state = ready();
    let says = |state: &mut State, node, unfit: Option<&str>| {
        apply(state, Command::NodeFitness { node, unfit: unfit.map(Into::into) })
    };
    assert_eq!(says(&mut state, W, None), Outcome::Unchanged);
    assert_eq!(says(&mut state, B, Some("there is no watchdog")), Outcome::Done);
    assert_eq!(says(&mut state, B, Some("there is no watchdog")), Outcome::Unchanged);
    let Outcome::Refused(problem) = promote(&mut state, A, B) else { panic!("it is promoted") };
    assert!(problem.message.contains("there is no watchdog"), "{problem:?}");
    assert_eq!(state.target(R), Some(A));
    assert_eq!(says(&mut state, B, None), Outcome::Done);
    assert_eq!(says(&mut state, A, Some("there is no watchdog")), Outcome::Done);
    assert_eq!(state.target(R), Some(B), "the primary is to move");
    assert!(promote(&mut state, A, B).is_ok());
}
