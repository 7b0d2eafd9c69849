//! `explain failover` tells what a real death then does.

use crate::common::*;
use mainstay_control::State;
use mainstay_control::after_death::AfterDeath;
use mainstay_control::state::Command;
use mainstay_types::{LagLimits, Mode, NodeId};
use std::collections::BTreeMap;

const LAG: LagLimits = LagLimits { bytes: 1 << 20, ms: 1000 };

fn told(state: &State) -> AfterDeath {
    state.after_death(&state.resources[&R], &BTreeMap::new())
}

/// The fate that is told, after it was compared with a real death of the primary.
fn proven(state: &State) -> AfterDeath {
    let told = told(state);
    let mut real = state.clone();
    if let Some(primary) = told.primary {
        die(&mut real, primary);
        assert_eq!(primary_of(&real), told.to, "{told:?}");
    }
    told
}

fn primary_of(state: &State) -> Option<NodeId> {
    state.resources[&R].record.primary
}

fn why(told: &AfterDeath, node: NodeId) -> &str {
    &told.nodes.iter().find(|fit| fit.node == node).expect("the node is told of").why
}

#[test]
fn the_node_that_would_take_over_is_named_and_the_reasons_of_the_others() {
    let state = ready();
    let before = state.clone();
    let told = proven(&state);
    assert_eq!((told.primary, told.to), (Some(A), Some(B)));
    assert_eq!(told.outcome, "b takes over as soon as the lease of a has ended");
    assert_eq!(why(&told, B), "takes over");
    assert_eq!(why(&told, W), "it holds no replica of resource db");
    assert!(told.nodes.iter().all(|fit| fit.node != A), "the node that dies is no choice");
    assert_eq!(before, state, "nothing is changed");
}

#[test]
fn a_node_that_cannot_take_over_says_why_and_the_resource_what_it_would_miss() {
    let mut state = ready();
    die(&mut state, B);
    let told = told(&state);
    assert_eq!(told.to, None);
    assert!(told.outcome.starts_with("no node takes over: without a only 1 of 3 voters live"), "{told:?}");
    assert_eq!(why(&told, B), "it is dead");
    rejoin(&mut state, B);
    let told = proven(&state);
    assert_eq!(told.to, None);
    assert!(told.outcome.contains("only a has everything that was acknowledged"), "{told:?}");
    assert!(why(&told, B).starts_with("not in sync"), "{told:?}");
    let cordon = Command::SetCordon { node: B, on: true, drain: false };
    let mut closed = ready();
    assert!(apply(&mut closed, cordon).is_ok());
    let told = proven(&closed);
    assert_eq!((told.to, why(&told, B).starts_with("it is cordoned")), (None, true), "{told:?}");
}

#[test]
fn a_takeover_that_waits_for_a_fence_is_told_with_it() {
    let mut state = ready();
    let change = mainstay_types::settings::parse_change("fencing", "required").expect("a setting");
    apply(&mut state, Command::ChangeSettings { resource: Some(R), version: None, changes: [change].into() });
    let told = told(&state);
    assert_eq!(told.to, Some(B));
    assert_eq!(told.outcome, "b takes over as soon as the fence command has switched a off");
}

#[test]
fn in_mode_a_and_in_maintenance_no_node_takes_over_by_itself() {
    let mut state = ready();
    let version = state.resources[&R].record.version;
    assert!(apply(&mut state, change_mode(version, Mode::A, LAG, false)).is_ok());
    let told = proven(&state);
    assert_eq!(told.to, None);
    assert!(why(&told, B).contains("`mainstay resource force-promote db b`"), "{told:?}");
    let mut held = ready();
    let scope = mainstay_control::maintenance::Scope::Cluster;
    assert!(apply(&mut held, Command::SetMaintenance { scope, on: true, for_ms: None }).is_ok());
    let told = proven(&held);
    assert_eq!(told.to, None);
    assert!(told.outcome.contains("nothing is moved in maintenance"), "{told:?}");
}

#[test]
fn a_resource_without_a_primary_says_so() {
    let told = told(&with_resource());
    assert_eq!((told.primary, told.to), (None, None));
    assert!(told.outcome.starts_with("no node is primary now"), "{told:?}");
}
