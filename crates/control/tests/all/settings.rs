//! Settings of a resource and of the cluster: which values are taken, and which one counts.

use crate::common::*;
use mainstay_control::state::{Command, Outcome, State};
use mainstay_types::settings::Changes;
use mainstay_types::{Choices, Code, ConfigVersion, Key, Mode, Policy, Problem};

fn policy(state: &State) -> Policy {
    state.resources[&R].record.policy
}

/// Changes settings of the resource; `None` takes a choice back.
fn choose<const N: usize>(state: &mut State, changes: [(Key, Option<u64>); N]) -> Outcome {
    let version = Some(state.resources[&R].record.version);
    apply(state, Command::ChangeSettings { resource: Some(R), version, changes: changes.into() })
}

fn choose_for_all<const N: usize>(state: &mut State, changes: [(Key, Option<u64>); N]) -> Outcome {
    apply(state, Command::ChangeSettings { resource: None, version: None, changes: changes.into() })
}

fn refused(outcome: Outcome) -> Problem {
    let Outcome::Refused(problem) = outcome else { panic!("{outcome:?}") };
    assert!(!problem.message.is_empty() && !problem.remedy.is_empty(), "{problem:?}");
    problem
}

fn last_event(state: &State) -> &str {
    &state.events.back().expect("an event").text
}

#[test]
fn the_limits_of_a_slow_replica_are_those_of_the_resource_and_then_of_the_cluster() {
    let mut state = ready();
    let before = state.resources[&R].record.version;
    assert!(choose_for_all(&mut state, [(Key::SlowAck, Some(50)), (Key::SlowFor, Some(900))]).is_ok());
    assert_eq!((policy(&state).slow.ack_ms, policy(&state).slow.for_ms), (50, 900));
    assert!(state.resources[&R].record.version > before, "engines learn it with the record");
    assert!(choose(&mut state, [(Key::SlowAck, Some(20))]).is_ok());
    assert_eq!((policy(&state).slow.ack_ms, policy(&state).slow.for_ms), (20, 900));
    assert_eq!(last_event(&state), "slow-ack is 20ms");
    assert_eq!(choose(&mut state, [(Key::SlowAck, Some(20))]), Outcome::Unchanged);
    assert!(choose_for_all(&mut state, [(Key::SlowAck, None)]).is_ok());
    assert_eq!(policy(&state).slow.ack_ms, 20, "the resource's own choice stays");
    assert!(choose(&mut state, [(Key::SlowAck, None)]).is_ok());
    assert_eq!((policy(&state).slow.ack_ms, policy(&state).slow.for_ms), (10, 900));
}

#[test]
fn a_new_resource_has_the_settings_of_the_cluster() {
    let mut state = cluster();
    assert!(
        choose_for_all(&mut state, [(Key::MinCopies, Some(2)), (Key::Mode, Some(Mode::B as u64))]).is_ok()
    );
    let mut nodes = [A, B].to_vec();
    let create = |name: &str, replicas| Command::CreateResource {
        name: name.into(),
        spec: mainstay_control::state::ResourceSpec {
            volumes: vec![1 << 20],
            journal_bytes: 16 << 20,
            replicas,
            preferred: vec![],
        },
        choices: Default::default(),
        origin: None,
    };
    assert!(apply(&mut state, create("two", nodes.clone())).is_ok());
    let two = state.resource_by_name("two").expect("it is made").record.policy;
    assert_eq!((two.mode(), two.min_copies.copies), (Mode::B, 2));
    nodes.pop();
    assert_eq!(refused(apply(&mut state, create("one", nodes))).code, Code::BadMinCopies);
}

#[test]
fn a_choice_for_the_cluster_that_a_resource_cannot_keep_is_refused_by_its_name() {
    let mut state = ready();
    let before = state.clone();
    let problem = refused(choose_for_all(&mut state, [(Key::MinCopies, Some(3))]));
    assert_eq!(problem.code, Code::BadMinCopies);
    assert!(
        problem.message.contains("resource db") && problem.remedy.contains("resource set db"),
        "{problem:?}"
    );
    assert_eq!((state.choices, &state.resources), (before.choices, &before.resources));
}

#[test]
fn the_limits_of_mode_a_go_with_the_mode() {
    let mut state = ready();
    let early = refused(choose(&mut state, [(Key::Takeover, Some(1))]));
    assert_eq!(early.code, Code::NotForThisMode);
    let a = (Key::Mode, Some(Mode::A as u64));
    assert!(choose(&mut state, [a, (Key::LagTime, Some(500)), (Key::Takeover, Some(1))]).is_ok());
    assert!(policy(&state).takeover() && policy(&state).lag().ms == 500);
    assert_eq!(policy(&state).lag().bytes, 8 << 20, "half the journal, because the default is more");
    assert!(choose(&mut state, [(Key::Mode, None)]).is_ok());
    assert_eq!(policy(&state).mode(), Mode::C);
    assert!(state.resources[&R].choices.is_empty());
    assert!(choose(&mut state, [a]).is_ok());
    assert!(!policy(&state).takeover() && policy(&state).lag().ms == 10_000, "as a new mode A");
}

#[test]
fn the_limits_of_mode_a_go_with_the_mode_of_the_cluster() {
    let mut state = ready();
    assert!(choose_for_all(&mut state, [(Key::Mode, Some(Mode::A as u64))]).is_ok());
    assert!(choose(&mut state, [(Key::LagTime, Some(500))]).is_ok());
    assert_eq!(policy(&state).lag().ms, 500);
    assert!(choose_for_all(&mut state, [(Key::Mode, None)]).is_ok());
    assert!(state.resources[&R].choices.is_empty(), "kept for later: {:?}", state.resources[&R].choices);
    assert!(choose_for_all(&mut state, [(Key::Mode, Some(Mode::A as u64))]).is_ok());
    assert_eq!(policy(&state).lag().ms, 10_000, "as a new mode A");
}

#[test]
fn mode_a_is_refused_where_two_copies_are_wanted_with_the_command_that_does_both() {
    let mut state = ready();
    assert!(choose(&mut state, [(Key::MinCopies, Some(2))]).is_ok());
    let a = (Key::Mode, Some(Mode::A as u64));
    let refusal = refused(choose(&mut state, [a]));
    assert_eq!(refusal.code, Code::BadMode);
    assert!(refusal.remedy.contains("`mainstay resource set db mode=a min-copies=1`"), "{refusal:?}");
    assert!(choose(&mut state, [a, (Key::MinCopies, Some(1))]).is_ok());
}

#[test]
fn values_out_of_range_and_settings_of_the_cluster_are_refused() {
    let mut state = ready();
    for (key, value) in
        [(Key::SlowFactor, 0), (Key::SuspendIo, 3_600_001), (Key::Mode, 3), (Key::ScrubInterval, 999)]
    {
        let changes = Changes::from([(key, Some(value))]);
        for resource in [Some(R), None] {
            let command = Command::ChangeSettings { resource, version: None, changes: changes.clone() };
            assert_eq!(refused(apply(&mut state, command)).code, Code::BadSettings, "{key:?}");
        }
    }
    let rate = refused(choose(&mut state, [(Key::CMaxRate, Some(1 << 20))]));
    assert!(rate.remedy.contains("mainstay cluster set c-max-rate=1MiB"), "{rate:?}");
    assert!(choose_for_all(&mut state, [(Key::CMaxRate, Some(1 << 20))]).is_ok());
    assert_eq!(policy(&state).background.max_rate, 1 << 20);
}

#[test]
fn a_change_is_based_on_the_version_that_was_read() {
    let mut state = ready();
    let old = state.resources[&R].record.version;
    assert!(choose(&mut state, [(Key::SlowAck, Some(20))]).is_ok());
    let late = change_settings(old, &[(Key::SlowAck, 30)]);
    assert!(matches!(apply(&mut state, late), Outcome::Conflict { .. }));
    assert_eq!(policy(&state).slow.ack_ms, 20);
}

/// S645. Without a word of the operator all is encrypted.
#[test]
fn data_is_encrypted_unless_an_operator_turns_it_off_and_that_needs_its_level() {
    let mut state = ready();
    assert!(!policy(&state).clear && !state.sends_clear());
    let off = [(Key::DataEncryption, Some(0))];
    let command = Command::ChangeSettings { resource: None, version: None, changes: off.into() };
    assert_eq!(command.level(), 2);
    assert_eq!(refused(choose_for_all(&mut state, off)).code, Code::FeatureLevel);
    state.nodes.values_mut().for_each(|node| node.level = 2);
    state.level = 2;
    assert!(choose_for_all(&mut state, off).is_ok());
    assert!(policy(&state).clear && state.sends_clear(), "each record says so");
    // No resource has a choice of its own.
    let problem = refused(choose(&mut state, [(Key::DataEncryption, Some(1))]));
    assert!(problem.remedy.contains("mainstay cluster set data-encryption=on"), "{problem:?}");
    assert!(choose_for_all(&mut state, [(Key::DataEncryption, None)]).is_ok());
    assert!(!policy(&state).clear && !state.sends_clear());
}

#[test]
fn a_change_of_the_settings_of_the_cluster_that_is_based_on_older_ones_changes_nothing() {
    let mut state = ready();
    let change = |tag: u64, ms: u64| {
        let changes = [(Key::SlowAck, Some(ms))].into();
        Command::ChangeSettings { resource: None, version: Some(ConfigVersion(tag)), changes }
    };
    let tag = state.choices.tag();
    assert_eq!(change(0, 1).level(), 2, "an earlier build takes no notice of the tag");
    assert_eq!(refused(apply(&mut state, change(tag, 50))).code, Code::FeatureLevel);
    state.nodes.values_mut().for_each(|node| node.level = 2);
    state.level = 2;
    assert!(apply(&mut state, change(tag, 50)).is_ok());
    let before = state.clone();
    assert_eq!(apply(&mut state, change(tag, 60)), Outcome::Conflict { record: None });
    assert_eq!(state.choices, before.choices);
    assert_ne!(tag, state.choices.tag());
    let tag = state.choices.tag();
    assert!(apply(&mut state, change(tag, 60)).is_ok());
    assert_eq!(policy(&state).slow.ack_ms, 60);
    // Without a tag the last change counts.
    assert!(choose_for_all(&mut state, [(Key::SlowAck, Some(70))]).is_ok());
}

#[test]
fn the_tag_of_choices_is_the_same_in_every_release() {
    let mut choices = Choices::default();
    assert_eq!(choices.tag(), 0xcbf2_9ce4_8422_2325);
    choices.change(&[(Key::SlowAck, Some(50)), (Key::MinCopies, Some(2))].into());
    assert_eq!(choices.tag(), 0x7158_0cda_d8da_0f64);
    choices.change(&[(Key::MinCopies, Some(3))].into());
    assert_ne!(choices.tag(), 0x7158_0cda_d8da_0f64);
}
